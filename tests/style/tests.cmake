# SPDX-License-Identifier: Apache-2.0
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME style_rooms COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/rooms.py)
heddle_test_properties(style_rooms style 30)
add_test(NAME style_docs COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/docs.py)
heddle_test_properties(style_docs style 30)
add_test(NAME style_spdx COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/spdx.py)
heddle_test_properties(style_spdx style 30)
