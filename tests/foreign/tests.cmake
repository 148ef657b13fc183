# SPDX-License-Identifier: Apache-2.0
# Clients in another language, written from docs/protocol.md; skipped, visibly, where there is no Python environment.
foreach(script client misdeeds replay golden)
  add_test(NAME foreign_${script} COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run ${script})
  heddle_test_properties(foreign_${script} process 120)
  set_tests_properties(foreign_${script} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
