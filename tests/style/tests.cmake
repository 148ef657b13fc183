# SPDX-License-Identifier: Apache-2.0
find_package(Python3 REQUIRED COMPONENTS Interpreter)
foreach(rule rooms docs environment spdx errors links answers columns failpoints stages)
  add_test(NAME style_${rule} COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/${rule}.py)
  heddle_test_properties(style_${rule} style 30)
endforeach()
