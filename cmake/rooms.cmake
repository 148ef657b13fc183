# SPDX-License-Identifier: Apache-2.0
# One helper a concept: a room, the plugin, a program, a test.

# A program's stack may be 1 MiB (core/process.h), a thread's is 2 MiB (core/thread.h).  Sanitizers need more.
function(heddle_limit_frames name)
  if(NOT HEDDLE_SANITIZE)
    target_compile_options(${name} PRIVATE -Wframe-larger-than=81920)
  endif()
endfunction()

# The files whose branches tests/coverage counts.  All others are compiled as for mutants: the two builds share their
# objects by ccache.
set(HEDDLE_COUNTED "/(\
broker/(registry/(registry|publish|writer|decision)|members/membership|rollout/[a-z]+|plan/[a-z]+|\
inbox/(report|staged|active|nack|verified|need|heartbeat)|questions/pending|keys/auth|brokers|events|outbox|\
store/(columns|rows|etcd_(follow|json|leader)))(_[a-z]+)?|\
client/session|worker/(versions|fetch)|memory/(rules|rounds))\\.c$")
function(heddle_count_branches)
  set(counted ${ARGN})
  list(FILTER counted INCLUDE REGEX "${HEDDLE_COUNTED}")
  set_source_files_properties(${counted} PROPERTIES COMPILE_OPTIONS "-fprofile-arcs;-ftest-coverage;-O0")
endfunction()

# heddle_room(NAME [EXCLUDE prefix...] LINK lib...): all .c files of NAME and its folders, but those that begin with a prefix -> static heddle_NAME.
function(heddle_room name)
  cmake_parse_arguments(ARG "" "" "EXCLUDE;LINK" ${ARGN})
  file(GLOB sources ${HEDDLE_GLOB} ${CMAKE_SOURCE_DIR}/${name}/*.c ${CMAKE_SOURCE_DIR}/${name}/*/*.c)
  foreach(prefix IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "/${prefix}[^/]*\\.c$")
  endforeach()
  if(sources)
    add_library(heddle_${name} STATIC ${sources})
    target_include_directories(heddle_${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(heddle_${name} PUBLIC ${ARG_LINK})
    heddle_limit_frames(heddle_${name})
    if(HEDDLE_COVERAGE)
      heddle_count_branches(${sources})
    endif()
  else()
    add_library(heddle_${name} INTERFACE)
    target_include_directories(heddle_${name} INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(heddle_${name} INTERFACE ${ARG_LINK})
  endif()
endfunction()

# A module that exports one table and is loaded at run time.
function(heddle_plugin name)
  cmake_parse_arguments(ARG "" "DIR;PATTERN" "LINK" ${ARGN})
  file(GLOB sources ${HEDDLE_GLOB} ${CMAKE_SOURCE_DIR}/${ARG_DIR}/${ARG_PATTERN})
  if(sources)
    add_library(${name} MODULE ${sources})
    set_target_properties(${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${HEDDLE_LIB_DIR}/heddle)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${name} PRIVATE ${ARG_LINK})
    heddle_limit_frames(${name})
    target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL)   # the rooms inside it stay inside
    install(TARGETS ${name} LIBRARY DESTINATION ${HEDDLE_PLUGIN_DIR} COMPONENT runtime)
  endif()
endfunction()

function(heddle_program name)
  cmake_parse_arguments(ARG "NO_INSTALL" "DIR;PATTERN" "LINK" ${ARGN})
  file(GLOB sources ${HEDDLE_GLOB} ${CMAKE_SOURCE_DIR}/${ARG_DIR}/${ARG_PATTERN})
  if(sources)
    add_executable(${name} ${sources})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(${name} PRIVATE ${ARG_LINK})
    if(TARGET transfer_ucx)
      add_dependencies(${name} transfer_ucx) # they meet at run time: never let one be older than the other
    endif()
    if(NOT ARG_NO_INSTALL)
      install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
    endif()
  endif()
endfunction()

# Where texts for heddle_text lie.
set(HEDDLE_TEXT_DIR ${CMAKE_BINARY_DIR}/text)
# heddle_text(FILE NAME): a text that a program carries: the macro NAME in the header of FILE's path, '_' for '/', without suffix.
function(heddle_text file name)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  string(REPLACE "\\" "\\\\" text "${text}")
  string(REPLACE "\"" "\\\"" text "${text}")
  string(REPLACE "\n" "\\n\" \\\n    \"" text "${text}")
  string(REGEX REPLACE "\\.[a-z]+$" ".h" header "${file}")
  string(REPLACE "/" "_" header "${header}")
  file(CONFIGURE OUTPUT ${HEDDLE_TEXT_DIR}/${header} CONTENT "#define ${name} \\\n    \"${text}\"\n" @ONLY)
endfunction()

# heddle_test(NAME SOURCES file... LINK lib... [TIMEOUT seconds] [LABEL label]): one Criterion program, one ctest entry.
function(heddle_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;LABEL" "SOURCES;LINK;ENV" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
  # Criterion's macros are much code that runs once: without optimization it compiles in less than half the time.
  target_compile_options(${name} PRIVATE -Wno-missing-prototypes -O0)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} heddle_criterion)
  add_test(NAME ${name} COMMAND ${name} -j1)
  heddle_test_properties(${name} ${ARG_LABEL} ${ARG_TIMEOUT})
endfunction()

# Tests that take long, or wait long: ctest starts them first.
set(HEDDLE_LONG_TESTS "^(torture|unit_wire|contract_transfer|api|install|operations|bench|foreign|scenario_(fanout|publish|relays|torture)|style_tidy)")

# Criterion prints a leak, or that it has no test, and passes: the text itself must fail the test.
function(heddle_test_properties name label timeout)
  if(name MATCHES ${HEDDLE_LONG_TESTS})
    set_tests_properties(${name} PROPERTIES COST 100)
  endif()
  math(EXPR timeout "${timeout} * 5") # the limit ends what hangs, and nothing else: not on a busy machine either
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout} FIXTURES_REQUIRED keys
    FAIL_REGULAR_EXPRESSION "Synthesis: Tested: 0 |LeakSanitizer|AddressSanitizer|ThreadSanitizer|runtime error:"
    ENVIRONMENT "HEDDLE_SOURCE_DIR=${CMAKE_SOURCE_DIR};HEDDLE_BIN_DIR=${HEDDLE_BIN_DIR};HEDDLE_PLUGIN_DIR=${HEDDLE_LIB_DIR}/heddle;HEDDLE_KEYS=${CMAKE_BINARY_DIR}/tests/keys/${name};UBSAN_OPTIONS=print_stacktrace=1")
  # Of every process of a test, with where it comes from: daemons write their errors elsewhere.
  if(HEDDLE_SANITIZE STREQUAL thread)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/threads/libraries.tsan:log_path=${CMAKE_BINARY_DIR}/races/${name}:history_size=4")
  endif()
endfunction()
