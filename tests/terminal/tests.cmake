# SPDX-License-Identifier: Apache-2.0
# What is drawn on a terminal, behind a real pseudo-terminal.
foreach(what top watch)
  add_test(NAME terminal_${what} COMMAND ${CMAKE_CURRENT_LIST_DIR}/run ${what})
  heddle_test_properties(terminal_${what} process 120)
  set_tests_properties(terminal_${what} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
