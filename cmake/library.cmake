# SPDX-License-Identifier: Apache-2.0
# libheddle, shared and static, out of the rooms of the client side.  Both show HEDDLE_API and nothing else.

# heddle_library(ROOMS room... NEEDS pkg...): targets libheddle (libheddle.so.0) and libheddle_static (libheddle.a).
function(heddle_library)
  cmake_parse_arguments(ARG "" "" "ROOMS;NEEDS" ${ARGN})
  set(objects "")
  set(needs "")
  foreach(room IN LISTS ARG_ROOMS)
    list(APPEND objects $<TARGET_OBJECTS:heddle_${room}>)
  endforeach()
  foreach(package IN LISTS ARG_NEEDS)
    list(APPEND needs PkgConfig::${package})
  endforeach()

  add_library(libheddle SHARED ${objects})
  set_target_properties(libheddle PROPERTIES OUTPUT_NAME heddle EXPORT_NAME heddle LINKER_LANGUAGE C
    VERSION ${PROJECT_VERSION} SOVERSION ${HEDDLE_SOVERSION} LIBRARY_OUTPUT_DIRECTORY ${HEDDLE_LIB_DIR})
  target_include_directories(libheddle INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(libheddle PRIVATE ${needs} Threads::Threads ${CMAKE_DL_LIBS} m)
  if(NOT HEDDLE_SANITIZE) # a sanitizer's functions are found in the program
    target_link_options(libheddle PRIVATE -Wl,-z,defs)
  endif()
  target_link_options(libheddle PRIVATE -Wl,-z,nodelete) # others call the deleters of views, whenever they like
  heddle_static_library(${HEDDLE_LIB_DIR}/libheddle.a "${objects}")

  set(names "")
  foreach(package IN LISTS ARG_NEEDS)
    list(APPEND names ${${package}_LIBRARIES})
  endforeach()
  list(APPEND names ${CMAKE_DL_LIBS} m)
  list(REMOVE_DUPLICATES names)
  set(HEDDLE_NEEDED_LIBRARIES "${names}" PARENT_SCOPE) # what a program that links libheddle.a links besides
endfunction()

# One object in the archive, linked from all, whose hidden names are local: an application may have a `session_step` of its own.
function(heddle_static_library archive objects)
  set(whole ${CMAKE_BINARY_DIR}/libheddle.o)
  add_custom_command(OUTPUT ${archive}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${HEDDLE_LIB_DIR}
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${whole} ${objects}
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${whole}
    COMMAND ${CMAKE_COMMAND} -E rm -f ${archive}
    COMMAND ${CMAKE_AR} qcs ${archive} ${whole}
    DEPENDS ${objects}
    COMMAND_EXPAND_LISTS VERBATIM COMMENT "Linking C static library libheddle.a")
  add_custom_target(libheddle_static ALL DEPENDS ${archive})
endfunction()
