# SPDX-License-Identifier: Apache-2.0
# heddle-bench as a program, small; needs jq.
add_test(NAME bench COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run)
heddle_test_properties(bench process 180)
# The broker's core with many workers; asserts what is sent, prints how long that takes.
add_executable(broker_wave ${CMAKE_CURRENT_LIST_DIR}/broker_wave.c)
set_target_properties(broker_wave PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_include_directories(broker_wave PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(broker_wave PRIVATE heddle_broker)
add_test(NAME broker_wave COMMAND broker_wave 400)
heddle_test_properties(broker_wave unit 60)
