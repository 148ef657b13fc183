# SPDX-License-Identifier: Apache-2.0
# HEDDLE_VERSION and HEDDLE_VERSION_MAJOR out of include/heddle/version.h: the one place where the version is written.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS include/heddle/version.h)
set(HEDDLE_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/include/heddle/version.h line REGEX "^#define HEDDLE_VERSION_${part} [0-9]+$")
  string(REGEX MATCH "[0-9]+$" HEDDLE_VERSION_${part} "${line}")
  if(HEDDLE_VERSION_${part} STREQUAL "")
    message(FATAL_ERROR "include/heddle/version.h: no HEDDLE_VERSION_${part}")
  endif()
  list(APPEND HEDDLE_VERSION ${HEDDLE_VERSION_${part}})
endforeach()
list(JOIN HEDDLE_VERSION "." HEDDLE_VERSION)
