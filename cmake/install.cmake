# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where.  Everything finds its neighbours by relative paths, so that a prefix may be moved; the path
# compiled in is the last resort.  The systemd units alone name their programs in full: install again where they moved.
# Components: runtime (programs, plugin, shared library) and development (headers, archive, ...).
include(CMakePackageConfigHelpers)

set(HEDDLE_SOVERSION 0)
set(HEDDLE_PLUGIN_SUBDIR heddle)
set(HEDDLE_PLUGIN_DIR ${CMAKE_INSTALL_LIBDIR}/${HEDDLE_PLUGIN_SUBDIR})
file(RELATIVE_PATH HEDDLE_BIN_TO_PLUGIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/${HEDDLE_PLUGIN_SUBDIR})
set_source_files_properties(transfer/load.c PROPERTIES COMPILE_DEFINITIONS
  "HEDDLE_INSTALLED_PLUGIN_DIR=\"${CMAKE_INSTALL_FULL_LIBDIR}/${HEDDLE_PLUGIN_SUBDIR}\";HEDDLE_BIN_TO_PLUGIN=\"${HEDDLE_BIN_TO_PLUGIN}\"")

# heddle.pc and the CMake package, for the library that heddle_library() made.
function(heddle_install_development)
  set(cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/heddle)
  set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH HEDDLE_PC_TO_PREFIX ${CMAKE_INSTALL_PREFIX}/${pc_dir} ${CMAKE_INSTALL_PREFIX})
  string(REGEX REPLACE "/$" "" HEDDLE_PC_TO_PREFIX ${HEDDLE_PC_TO_PREFIX})
  list(TRANSFORM HEDDLE_NEEDED_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE flags)
  list(JOIN flags " " HEDDLE_PC_PRIVATE)
  configure_file(cmake/heddle.pc.in ${CMAKE_BINARY_DIR}/heddle.pc @ONLY)
  configure_package_config_file(cmake/heddleConfig.cmake.in ${CMAKE_BINARY_DIR}/heddleConfig.cmake INSTALL_DESTINATION ${cmake_dir}
    PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR HEDDLE_PLUGIN_DIR NO_CHECK_REQUIRED_COMPONENTS_MACRO)
  # 0.1 promises nothing to 0.2; from 1.0 on, the same major version.
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/heddleConfigVersion.cmake COMPATIBILITY SameMinorVersion)

  install(TARGETS libheddle EXPORT heddle LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
          NAMELINK_COMPONENT development)
  install(FILES ${HEDDLE_LIB_DIR}/libheddle.a DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(DIRECTORY include/heddle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.h")
  install(FILES ${CMAKE_BINARY_DIR}/heddle.pc DESTINATION ${pc_dir} COMPONENT development)
  install(EXPORT heddle NAMESPACE heddle:: FILE heddleTargets.cmake DESTINATION ${cmake_dir} COMPONENT development)
  install(FILES ${CMAKE_BINARY_DIR}/heddleConfig.cmake ${CMAKE_BINARY_DIR}/heddleConfigVersion.cmake DESTINATION ${cmake_dir}
          COMPONENT development)
endfunction()

set(HEDDLE_ZSH_DIR ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "where zsh looks for completion functions")
# Manual pages (and, for each function of the library, a page that points to its group's), completion, examples, the pages of docs/.
function(heddle_install_pages)
  file(GLOB pages ${HEDDLE_GLOB} docs/man/*.[1-8])
  foreach(page IN LISTS pages)
    string(REGEX REPLACE ".*\\." "" section ${page})
    set(component runtime)
    if(section EQUAL 3)
      set(component development)
      cmake_path(GET page FILENAME file)
      file(STRINGS ${page} names REGEX "^\\.Nm heddle_")
      foreach(name IN LISTS names)
        string(REGEX REPLACE "^\\.Nm ([a-z0-9_]+).*" "\\1" name "${name}")
        file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/man3/${name}.3 CONTENT ".so man3/${file}\n")
        install(FILES ${CMAKE_BINARY_DIR}/man3/${name}.3 DESTINATION ${CMAKE_INSTALL_MANDIR}/man3 COMPONENT development)
      endforeach()
    endif()
    install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT ${component})
  endforeach()
  install(FILES deploy/completion/heddle.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME heddle
          COMPONENT runtime)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/completion)
  foreach(program heddle-broker heddle-worker heddle-bench mkadapter) # found by the program's name
    file(CREATE_LINK heddle ${CMAKE_BINARY_DIR}/completion/${program} SYMBOLIC)
    install(FILES ${CMAKE_BINARY_DIR}/completion/${program} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
            COMPONENT runtime)
  endforeach()
  file(GLOB examples ${HEDDLE_GLOB} examples/*.c)
  install(FILES ${examples} examples/CMakeLists.txt DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT development)
  file(GLOB docs ${HEDDLE_GLOB} docs/*.md)
  install(FILES README.md ${docs} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
  install(FILES deploy/completion/_heddle DESTINATION ${HEDDLE_ZSH_DIR} COMPONENT runtime)
endfunction()

# Units, the user that they run as, its directory for keys, and the sample of their settings.
set(HEDDLE_SYSTEMD_UNIT_DIR lib/systemd/system CACHE STRING "where systemd units are installed")
set(HEDDLE_SYSUSERS_DIR lib/sysusers.d CACHE STRING "where the system user is declared")
set(HEDDLE_TMPFILES_DIR lib/tmpfiles.d CACHE STRING "where the directory for keys is declared")
function(heddle_install_units)
  file(STRINGS deploy/systemd/hardening lines)
  list(JOIN lines "\n" HEDDLE_UNIT_HARDENING)
  foreach(unit heddle-broker.service heddle-worker@.service)
    configure_file(deploy/systemd/${unit}.in ${CMAKE_BINARY_DIR}/systemd/${unit} @ONLY)
    install(FILES ${CMAKE_BINARY_DIR}/systemd/${unit} DESTINATION ${HEDDLE_SYSTEMD_UNIT_DIR} COMPONENT runtime)
    # systemd wants whole paths, and --prefix is known at last when it installs
    install(CODE "
      set(unit \"${HEDDLE_SYSTEMD_UNIT_DIR}/${unit}\")
      set(bin \"${CMAKE_INSTALL_BINDIR}\")
      cmake_path(ABSOLUTE_PATH unit BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\")
      cmake_path(ABSOLUTE_PATH bin BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\")
      file(READ \"\$ENV{DESTDIR}\${unit}\" text)
      string(REPLACE \"ExecStart=${CMAKE_INSTALL_FULL_BINDIR}/\" \"ExecStart=\${bin}/\" text \"\${text}\")
      file(WRITE \"\$ENV{DESTDIR}\${unit}\" \"\${text}\")" COMPONENT runtime)
  endforeach()
  install(FILES deploy/systemd/heddle.sysusers.conf DESTINATION ${HEDDLE_SYSUSERS_DIR} RENAME heddle.conf COMPONENT runtime)
  install(FILES deploy/systemd/heddle.tmpfiles.conf DESTINATION ${HEDDLE_TMPFILES_DIR} RENAME heddle.conf COMPONENT runtime)
  install(FILES deploy/heddle.env DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
endfunction()
