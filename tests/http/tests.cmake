# SPDX-License-Identifier: Apache-2.0
# A broker, or a worker, that answers over HTTP, and its clients: each case is a ctest entry.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/run --list OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" cases "${cases}")
foreach(case IN LISTS cases)
  add_test(NAME http_${case} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/run ${case})
  heddle_test_properties(http_${case} process 120)
endforeach()

# A real Prometheus beside a real broker, in one build: what it asks for is the same in the others.
if(NOT HEDDLE_SANITIZE AND NOT HEDDLE_COVERAGE)
  add_library(http_shim MODULE ${CMAKE_CURRENT_LIST_DIR}/shim.c)
  set_target_properties(http_shim PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_options(http_shim PRIVATE -Wno-missing-prototypes -fvisibility=default)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/prometheus --list OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" cases "${cases}")
  foreach(case IN LISTS cases)
    add_test(NAME prometheus_${case} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/prometheus ${case})
    heddle_test_properties(prometheus_${case} process 120)
    set_tests_properties(prometheus_${case} PROPERTIES SKIP_RETURN_CODE 77)
    set_property(TEST prometheus_${case} APPEND PROPERTY ENVIRONMENT HEDDLE_HTTP_SHIM=${CMAKE_BINARY_DIR}/tests/http_shim.so)
  endforeach()
endif()
