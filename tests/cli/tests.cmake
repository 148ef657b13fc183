# SPDX-License-Identifier: Apache-2.0
# What the command decides by itself, without a broker.
heddle_test(cli_agreement SOURCES ${CMAKE_CURRENT_LIST_DIR}/agreement.c ${CMAKE_SOURCE_DIR}/cli/agreement.c LINK heddle_core PkgConfig::jansson)
heddle_test(cli_way SOURCES ${CMAKE_CURRENT_LIST_DIR}/way.c ${CMAKE_SOURCE_DIR}/cli/way.c ${CMAKE_SOURCE_DIR}/cli/show.c ${CMAKE_SOURCE_DIR}/cli/frame.c LINK heddle_front PkgConfig::jansson)
heddle_test(cli_board SOURCES ${CMAKE_CURRENT_LIST_DIR}/board.c ${CMAKE_SOURCE_DIR}/cli/board.c ${CMAKE_SOURCE_DIR}/cli/show.c ${CMAKE_SOURCE_DIR}/cli/frame.c LINK heddle_front PkgConfig::jansson)
heddle_test(cli_frame SOURCES ${CMAKE_CURRENT_LIST_DIR}/frame.c ${CMAKE_SOURCE_DIR}/cli/frame.c LINK heddle_core)
heddle_test(cli_verdict SOURCES ${CMAKE_CURRENT_LIST_DIR}/verdict.c ${CMAKE_SOURCE_DIR}/cli/verdict.c LINK heddle_core PkgConfig::jansson)
if(HEDDLE_COVERAGE) # it is built here, and is what is tested
  set_source_files_properties(${CMAKE_SOURCE_DIR}/cli/diagnosis.c PROPERTIES COMPILE_OPTIONS "-fprofile-arcs;-ftest-coverage")
endif()
heddle_test(cli_diagnosis SOURCES ${CMAKE_CURRENT_LIST_DIR}/diagnosis.c ${CMAKE_SOURCE_DIR}/cli/diagnosis.c LINK heddle_core PkgConfig::jansson)
heddle_test(cli_shown SOURCES ${CMAKE_CURRENT_LIST_DIR}/shown.c ${CMAKE_SOURCE_DIR}/cli/answer.c ${CMAKE_SOURCE_DIR}/cli/common.c
  ${CMAKE_SOURCE_DIR}/cli/decide.c
  ${CMAKE_SOURCE_DIR}/cli/show.c ${CMAKE_SOURCE_DIR}/cli/status.c ${CMAKE_SOURCE_DIR}/cli/watch.c
  ${CMAKE_SOURCE_DIR}/cli/frame.c LINK heddle_front PkgConfig::jansson)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME cli_headings COMMAND Python3::Interpreter ${CMAKE_CURRENT_LIST_DIR}/headings.py)
heddle_test_properties(cli_headings unit 30)
