# SPDX-License-Identifier: Apache-2.0
# Digests and exported files, judged by Python alone; skipped, visibly, where there is no Python environment.
add_test(NAME independent_eyes COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run)
heddle_test_properties(independent_eyes process 120)
set_tests_properties(independent_eyes PROPERTIES SKIP_RETURN_CODE 77)
