# SPDX-License-Identifier: Apache-2.0
# Every command of docs/operations.md, tried.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME operations COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/run)
heddle_test_properties(operations operations 180)
