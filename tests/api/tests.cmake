# SPDX-License-Identifier: Apache-2.0
# The public library as an application uses it, against real daemons on loopback and over UCX.
file(GLOB apis ${HEDDLE_GLOB} ${CMAKE_CURRENT_LIST_DIR}/*.c)
foreach(file IN LISTS apis)
  get_filename_component(stem ${file} NAME_WE)
  heddle_test(api_${stem} SOURCES ${file} LINK heddle_front process_helpers LABEL api TIMEOUT 180)
  foreach(needed heddle-broker heddle-worker transfer_ucx)
    if(TARGET ${needed})
      add_dependencies(api_${stem} ${needed})
    endif()
  endforeach()
endforeach()
