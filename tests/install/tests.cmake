# SPDX-License-Identifier: Apache-2.0
# What is installed: exports, ABI, and programs of strangers against it.  Sanitizers and counters add symbols of their own.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME install_notify COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/notify.py)
heddle_test_properties(install_notify process 60)

if(NOT HEDDLE_SANITIZE AND NOT HEDDLE_COVERAGE)
  add_test(NAME install_exports COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/exports ${HEDDLE_LIB_DIR})
  heddle_test_properties(install_exports install 30)
endif()
