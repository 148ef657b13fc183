# SPDX-License-Identifier: Apache-2.0
find_package(Python3 REQUIRED COMPONENTS Interpreter)
foreach(rule rooms docs environment spdx errors links answers columns failpoints stages words path
             typenames nouns glossary metrics alerts findings)
  add_test(NAME style_${rule} COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/${rule}.py)
  heddle_test_properties(style_${rule} style 30)
endforeach()

add_test(NAME style_dashboard COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/dashboard --check)
heddle_test_properties(style_dashboard style 30)

add_test(NAME style_mutants COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/format --check)
heddle_test_properties(style_mutants style 30)

# Once: the same sources are in every build.
if(NOT HEDDLE_SANITIZE AND NOT HEDDLE_COVERAGE)
  add_test(NAME style_tidy COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/tidy.py ${CMAKE_BINARY_DIR})
  heddle_test_properties(style_tidy style 300)
  set_tests_properties(style_tidy PROPERTIES SKIP_RETURN_CODE 77)
  add_test(NAME style_format COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/format.py)
  heddle_test_properties(style_format style 120)
  set_tests_properties(style_format PROPERTIES SKIP_RETURN_CODE 77)
endif()
