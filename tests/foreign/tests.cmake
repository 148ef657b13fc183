# SPDX-License-Identifier: Apache-2.0
# A client in another language, written from docs/protocol.md; skipped, visibly, where there is no Python environment.
add_test(NAME foreign_client COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run)
heddle_test_properties(foreign_client process 60)
set_tests_properties(foreign_client PROPERTIES SKIP_RETURN_CODE 77)
