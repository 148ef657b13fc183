# SPDX-License-Identifier: Apache-2.0
# The ABI on record is of gcc's build: another compiler describes the same types in other words.
if(CMAKE_C_COMPILER_ID STREQUAL GNU AND NOT HEDDLE_SANITIZE AND NOT HEDDLE_COVERAGE)
  add_test(NAME install_abi COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/check ${HEDDLE_LIB_DIR}/libheddle.so)
  heddle_test_properties(install_abi install 60)
  set_tests_properties(install_abi PROPERTIES SKIP_RETURN_CODE 77)
endif()
