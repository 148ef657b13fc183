# SPDX-License-Identifier: Apache-2.0
# A broker, or a worker, that answers over HTTP, and its clients: each case is a ctest entry.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/run --list OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" cases "${cases}")
foreach(case IN LISTS cases)
  add_test(NAME http_${case} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/run ${case})
  heddle_test_properties(http_${case} process 120)
  set_tests_properties(http_${case} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()

# The page in a real Chromium, and a real Prometheus beside a real broker, in one build: what they ask for is the same in
# the others.
if(NOT HEDDLE_SANITIZE AND NOT HEDDLE_COVERAGE)
  add_library(http_shim MODULE ${CMAKE_CURRENT_LIST_DIR}/shim.c)
  set_target_properties(http_shim PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_options(http_shim PRIVATE -Wno-missing-prototypes -fvisibility=default)
  foreach(client page prometheus)
    execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/${client} --list OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REPLACE "\n" ";" cases "${cases}")
    foreach(case IN LISTS cases)
      add_test(NAME ${client}_${case} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/${client} ${case})
      heddle_test_properties(${client}_${case} process 120)
      set_tests_properties(${client}_${case} PROPERTIES SKIP_RETURN_CODE 77)
      if(client STREQUAL page)    # a browser keeps several cores busy
        set_tests_properties(${client}_${case} PROPERTIES PROCESSORS 3)
      endif()
      set_property(TEST ${client}_${case} APPEND PROPERTY ENVIRONMENT HEDDLE_HTTP_SHIM=${CMAKE_BINARY_DIR}/tests/http_shim.so)
    endforeach()
  endforeach()
endif()
