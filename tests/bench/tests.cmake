# SPDX-License-Identifier: Apache-2.0
# heddle-bench as a program, small; needs jq.
add_test(NAME bench COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run)
heddle_test_properties(bench process 180)
# The broker's core with many workers; asserts what is sent, prints how long that takes.
add_test(NAME broker_wave COMMAND broker-wave 400 8 1)
heddle_test_properties(broker_wave unit 60)
