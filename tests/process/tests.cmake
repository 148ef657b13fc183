# SPDX-License-Identifier: Apache-2.0
# Real processes on loopback: each file but the helpers is one Criterion program that starts what is in HEDDLE_BIN_DIR.
add_library(process_helpers STATIC ${CMAKE_CURRENT_LIST_DIR}/child.c ${CMAKE_CURRENT_LIST_DIR}/caller.c)
target_link_libraries(process_helpers PUBLIC heddle_client heddle_criterion)
target_compile_options(process_helpers PRIVATE -Wno-missing-prototypes)
file(GLOB processes CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
list(FILTER processes EXCLUDE REGEX "/(child|line)\\.c$")
foreach(file IN LISTS processes)
  get_filename_component(stem ${file} NAME_WE)
  heddle_test(process_${stem} SOURCES ${file} LINK process_helpers LABEL process TIMEOUT 180)
  if(TARGET heddle-broker)
    add_dependencies(process_${stem} heddle-broker)
  endif()
endforeach()
