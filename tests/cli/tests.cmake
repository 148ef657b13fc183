# SPDX-License-Identifier: Apache-2.0
# What the command decides by itself, without a broker.
heddle_test(cli_holders SOURCES ${CMAKE_CURRENT_LIST_DIR}/holders.c ${CMAKE_SOURCE_DIR}/cli/holders.c LINK heddle_core PkgConfig::jansson)
