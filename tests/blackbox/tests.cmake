# SPDX-License-Identifier: Apache-2.0
# Each line of the acceptance list is a ctest entry.
execute_process(COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run --list OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" cases "${cases}")
foreach(case IN LISTS cases)
  add_test(NAME blackbox_${case} COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run ${case})
  heddle_test_properties(blackbox_${case} blackbox 120)
  set_tests_properties(blackbox_${case} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
