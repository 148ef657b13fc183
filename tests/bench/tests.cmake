# SPDX-License-Identifier: Apache-2.0
# heddle-bench as a program, small; needs jq.
add_test(NAME bench COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run)
heddle_test_properties(bench process 180)
