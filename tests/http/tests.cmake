# SPDX-License-Identifier: Apache-2.0
# A broker that answers over HTTP, and its clients: each case is a ctest entry.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/run --list OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" cases "${cases}")
foreach(case IN LISTS cases)
  add_test(NAME http_${case} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/run ${case})
  heddle_test_properties(http_${case} process 120)
endforeach()
