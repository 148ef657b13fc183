# SPDX-License-Identifier: Apache-2.0
# The Nth allocation, write, sync, rename fails, for every N.  Plain programs that fork a child for each batch of runs.
set(dir ${CMAKE_CURRENT_LIST_DIR})
set(world ${CMAKE_SOURCE_DIR}/tests/scenario)
set(wrapped malloc calloc realloc strdup asprintf memfd_create fallocate mmap json_loadb json_loads)
list(TRANSFORM wrapped PREPEND -Wl,--wrap= OUTPUT_VARIABLE wrap_memory)

# heddle_torture(NAME SOURCES file... LINK lib... OPTIONS linker-option...)
function(heddle_torture name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;OPTIONS" ${ARGN})
  add_executable(torture_${name} ${ARG_SOURCES} ${dir}/batch.c)
  set_target_properties(torture_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(torture_${name} BEFORE PRIVATE ${dir})   # criterion/criterion.h of ours
  target_compile_options(torture_${name} PRIVATE -Wno-missing-prototypes)
  target_link_libraries(torture_${name} PRIVATE ${ARG_LINK})
  target_link_options(torture_${name} PRIVATE ${ARG_OPTIONS})
  add_test(NAME torture_${name} COMMAND torture_${name})
  heddle_test_properties(torture_${name} torture 300)
endfunction()

# The world of the scenarios, with our assertions.
add_library(torture_plays STATIC ${dir}/plays.c ${world}/check.c ${world}/content.c ${world}/leftover.c ${world}/world.c
  ${world}/world_admin.c ${world}/world_broker.c ${world}/world_trainer.c ${world}/world_worker.c)
target_include_directories(torture_plays BEFORE PRIVATE ${dir})
target_compile_options(torture_plays PRIVATE -Wno-missing-prototypes)
target_link_libraries(torture_plays PUBLIC heddle_mem heddle_broker heddle_worker heddle_trainer_client PkgConfig::jansson)

heddle_torture(memory SOURCES ${dir}/memory.c ${dir}/alloc.c LINK torture_plays OPTIONS ${wrap_memory})
heddle_torture(disk SOURCES ${dir}/disk.c ${dir}/vfs.c LINK torture_plays)

set(wrapped open openat stat lstat fstat fstatat mkdir mkdirat mkostemp fsync fdatasync fallocate ftruncate flock read write pread pwrite rename renameat renameat2 link
  unlink symlinkat unlinkat realpath opendir fdopen fdopendir fflush fwrite fclose readdir readlinkat faccessat utimensat close fcntl
  zmq_curve_keypair)
list(TRANSFORM wrapped PREPEND -Wl,--wrap= OUTPUT_VARIABLE wrap_files)
heddle_torture(files SOURCES ${dir}/files.c ${dir}/datadir.c ${CMAKE_SOURCE_DIR}/sidecar/export.c ${CMAKE_SOURCE_DIR}/sidecar/lock.c LINK heddle_worker heddle_broker OPTIONS ${wrap_files})

if(HEDDLE_TEST_BUILD)
  heddle_torture(failpoints SOURCES ${dir}/failpoints.c LINK torture_plays)
  # failpoints.list: what it runs for the points that no play passes
  add_dependencies(torture_failpoints contract_process contract_transfer process_descriptors unit_broker_store_files unit_client_shell
    unit_formats_writers unit_trainer_client_fill unit_wire_keyring
    heddle heddle-broker heddle-worker mkadapter demo-reader publish-loop)
endif()

add_library(torture_accept_shim MODULE ${dir}/accept_shim.c)
set_target_properties(torture_accept_shim PROPERTIES PREFIX "" OUTPUT_NAME accept_shim LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_compile_options(torture_accept_shim PRIVATE -Wno-missing-prototypes -fno-sanitize=all -fvisibility=default)
target_link_options(torture_accept_shim PRIVATE -fno-sanitize=all)
add_test(NAME torture_accept COMMAND bash ${dir}/accept)
heddle_test_properties(torture_accept torture 300)
set_property(TEST torture_accept APPEND PROPERTY ENVIRONMENT HEDDLE_TORTURE_SHIM=${CMAKE_BINARY_DIR}/tests/accept_shim.so)
