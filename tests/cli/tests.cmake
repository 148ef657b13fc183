# SPDX-License-Identifier: Apache-2.0
# What the command decides by itself, without a broker.
heddle_test(cli_holders SOURCES ${CMAKE_CURRENT_LIST_DIR}/holders.c ${CMAKE_SOURCE_DIR}/cli/holders.c LINK heddle_core PkgConfig::jansson)
heddle_test(cli_shown SOURCES ${CMAKE_CURRENT_LIST_DIR}/shown.c ${CMAKE_SOURCE_DIR}/cli/answer.c ${CMAKE_SOURCE_DIR}/cli/common.c
  ${CMAKE_SOURCE_DIR}/cli/show.c ${CMAKE_SOURCE_DIR}/cli/status.c LINK heddle_front PkgConfig::jansson)
