# SPDX-License-Identifier: Apache-2.0
# What is installed: exports, ABI, and programs of strangers against it.  Sanitizers and counters add symbols of their own.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME install_notify COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/notify.py)
heddle_test_properties(install_notify process 60)

add_test(NAME install_surfaces COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/tools/surfaces --check ${HEDDLE_BIN_DIR})
heddle_test_properties(install_surfaces style 60)
add_test(NAME install_pages COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/pages)
heddle_test_properties(install_pages style 60)
set_tests_properties(install_pages PROPERTIES SKIP_RETURN_CODE 77)
add_test(NAME install_completion COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/completion)
heddle_test_properties(install_completion process 120)

add_test(NAME install_units COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/units ${CMAKE_BINARY_DIR})
heddle_test_properties(install_units style 60)
set_tests_properties(install_units PROPERTIES SKIP_RETURN_CODE 77)

if(NOT HEDDLE_SANITIZE AND NOT HEDDLE_COVERAGE)
  add_test(NAME install_exports COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/exports ${HEDDLE_LIB_DIR})
  heddle_test_properties(install_exports install 30)
  add_test(NAME install_run COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run ${CMAKE_BINARY_DIR})
  heddle_test_properties(install_run install 240)
  add_test(NAME install_moved COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/moved)
  heddle_test_properties(install_moved install 600)
endif()
