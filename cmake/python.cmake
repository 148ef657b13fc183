# SPDX-License-Identifier: Apache-2.0
# What the Python wheel carries besides Python: the library, its plugin, and the headers as cffi wants them.  Component: python.
#
#   heddle/_abi.py   heddle/_lib/libheddle.so.0   heddle/_lib/heddle/transfer_ucx.so     (the plugin lies where libheddle looks)
function(heddle_python)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(abi ${CMAKE_BINARY_DIR}/python/_abi.py)
  file(GLOB headers ${HEDDLE_GLOB} include/heddle/*.h)
  add_custom_command(OUTPUT ${abi}
    COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/python/tools/abi.py ${CMAKE_SOURCE_DIR}/include ${abi} --cc ${CMAKE_C_COMPILER}
    DEPENDS ${headers} ${CMAKE_SOURCE_DIR}/python/tools/abi.py
    COMMENT "headers for cffi" VERBATIM)
  add_custom_target(heddle_python DEPENDS ${abi} libheddle transfer_ucx)
  install(FILES ${abi} DESTINATION heddle COMPONENT python)
  install(FILES $<TARGET_FILE:libheddle> DESTINATION heddle/_lib RENAME libheddle.so.${HEDDLE_SOVERSION} COMPONENT python)
  install(TARGETS transfer_ucx LIBRARY DESTINATION heddle/_lib/${HEDDLE_PLUGIN_SUBDIR} COMPONENT python)
endfunction()
