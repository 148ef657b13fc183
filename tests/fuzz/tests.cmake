# SPDX-License-Identifier: Apache-2.0
# One program a target.  With HEDDLE_FUZZ (clang, preset `fuzz`) libFuzzer calls it; otherwise it replays its corpus
# as a plain test.
set(dir ${CMAKE_CURRENT_LIST_DIR})
file(STRINGS ${dir}/targets lines REGEX "^[a-z]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${dir}/targets)

set(rooms_message heddle_proto)
set(rooms_message_fields heddle_proto)
set(rooms_report heddle_proto)
set(rooms_manifest heddle_formats)
set(rooms_safetensors heddle_formats)
set(rooms_peft_config heddle_formats)
set(rooms_frame heddle_transfer)
set(rooms_strangers heddle_wire heddle_transfer PkgConfig::ucx)
set(parts_strangers ${CMAKE_SOURCE_DIR}/transfer/ucx_address.c)   # else in the plugin
set(rooms_registry_rows heddle_broker)
set(rooms_registry_start heddle_broker)
set(rooms_http_request heddle_http)
set(rooms_command_line heddle_front heddle_broker heddle_http PkgConfig::ncursesw)
set(rooms_keys heddle_broker)
set(rooms_join_string heddle_wire)
set(rooms_etcd_answers heddle_broker)
set(rooms_texts heddle_proto heddle_wire)
set(rooms_broker_core heddle_broker)
set(rooms_worker_core heddle_worker)
set(rooms_fetch_core heddle_worker)

# The programs themselves, each main under another name.
file(GLOB sources_heddle ${HEDDLE_GLOB} ${CMAKE_SOURCE_DIR}/cli/*.c)
file(GLOB sources_broker ${HEDDLE_GLOB} ${CMAKE_SOURCE_DIR}/broker/main*.c)
file(GLOB sources_worker ${HEDDLE_GLOB} ${CMAKE_SOURCE_DIR}/sidecar/*.c)
foreach(program heddle broker worker)
  add_library(fuzz_${program} OBJECT ${sources_${program}})
  target_compile_definitions(fuzz_${program} PRIVATE main=${program}_main)
  target_compile_options(fuzz_${program} PRIVATE -Wno-missing-prototypes)
  target_link_libraries(fuzz_${program} PRIVATE heddle_front heddle_broker heddle_http PkgConfig::jansson)
  list(APPEND parts_command_line $<TARGET_OBJECTS:fuzz_${program}>)
endforeach()

set(targets "")
foreach(line IN LISTS lines)
  string(REGEX MATCH "^[a-z_]+" name ${line})
  add_executable(fuzz_target_${name} ${dir}/${name}.c ${parts_${name}})
  set_target_properties(fuzz_target_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
                                                       OUTPUT_NAME fuzz_${name})
  target_include_directories(fuzz_target_${name} BEFORE PRIVATE ${dir})   # criterion/criterion.h of ours
  target_compile_options(fuzz_target_${name} PRIVATE -Wno-missing-prototypes)
  target_link_libraries(fuzz_target_${name} PRIVATE ${rooms_${name}})
  list(APPEND targets fuzz_target_${name})
  if(HEDDLE_FUZZ)
    target_link_options(fuzz_target_${name} PRIVATE -fsanitize=fuzzer)
    # Comparisons are watched in what is tested, not in the test.
    target_compile_options(fuzz_target_${name} PRIVATE -fno-sanitize-coverage=trace-cmp)
  else()
    target_sources(fuzz_target_${name} PRIVATE ${dir}/replay.c)
    add_test(NAME fuzz_${name} COMMAND fuzz_target_${name} ${dir}/corpus/${name})
    heddle_test_properties(fuzz_${name} fuzz 60)
  endif()
endforeach()
target_link_options(fuzz_target_command_line PRIVATE
  -Wl,--wrap=option_parse -Wl,--wrap=cli_fail -Wl,--wrap=execv)
add_custom_target(fuzz DEPENDS ${targets})
