# SPDX-License-Identifier: Apache-2.0
# What needs no cluster; tests/kill/run itself is a stage of tests/run.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME kill_parts COMMAND Python3::Interpreter -B ${CMAKE_CURRENT_LIST_DIR}/parts.py)
heddle_test_properties(kill_parts process 60)
