# SPDX-License-Identifier: Apache-2.0
# One suite against every transfer backend; what needs two processes; a tool that measures.
set(dir ${CMAKE_CURRENT_LIST_DIR})

function(heddle_contract_program name)
  add_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_compile_options(${name} PRIVATE -Wno-missing-prototypes)
  target_link_libraries(${name} PRIVATE heddle_mem heddle_criterion)
  add_dependencies(${name} transfer_ucx)
endfunction()

heddle_contract_program(contract_transfer ${dir}/transfer.c ${dir}/rig.c)
foreach(backend mem mem-rendezvous ucx ucx-rendezvous)
  add_test(NAME contract_transfer_${backend} COMMAND contract_transfer -j1)
  heddle_test_properties(contract_transfer_${backend} contract 300)
  set_property(TEST contract_transfer_${backend} APPEND PROPERTY ENVIRONMENT HEDDLE_CONTRACT=${backend})
endforeach()

heddle_contract_program(contract_links ${dir}/links.c ${dir}/rig.c)
foreach(backend mem mem-rendezvous)
  add_test(NAME contract_links_${backend} COMMAND contract_links -j1)
  heddle_test_properties(contract_links_${backend} contract 60)
  set_property(TEST contract_links_${backend} APPEND PROPERTY ENVIRONMENT HEDDLE_CONTRACT=${backend})
endforeach()

heddle_contract_program(transfer_pair ${dir}/transfer_pair.c)
add_test(NAME contract_pair COMMAND transfer_pair 5000001 65536 2097152 3)
heddle_test_properties(contract_pair contract 60)

heddle_contract_program(contract_process ${dir}/transfer_process.c ${dir}/rig.c)
foreach(backend ucx ucx-rendezvous)
  add_test(NAME contract_process_${backend} COMMAND contract_process -j1)
  heddle_test_properties(contract_process_${backend} contract 300)
  set_property(TEST contract_process_${backend} APPEND PROPERTY ENVIRONMENT HEDDLE_CONTRACT=${backend})
endforeach()

set_property(TEST contract_transfer_ucx-rendezvous contract_process_ucx-rendezvous APPEND PROPERTY ENVIRONMENT
  "LSAN_OPTIONS=suppressions=${dir}/ucx-rendezvous.lsan:print_suppressions=0")

# One suite against every store of the registry.
add_executable(contract_store ${dir}/store.c)
set_target_properties(contract_store PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_compile_options(contract_store PRIVATE -Wno-missing-prototypes)
target_link_libraries(contract_store PRIVATE heddle_broker heddle_criterion)
foreach(store sqlite late)
  add_test(NAME contract_store_${store} COMMAND contract_store -j1)
  heddle_test_properties(contract_store_${store} contract 120)
  set_property(TEST contract_store_${store} APPEND PROPERTY ENVIRONMENT HEDDLE_CONTRACT=${store})
endforeach()
add_executable(contract_import ${dir}/import.c)
set_target_properties(contract_import PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_compile_options(contract_import PRIVATE -Wno-missing-prototypes)
target_link_libraries(contract_import PRIVATE heddle_broker heddle_criterion)
add_test(NAME contract_import_sqlite COMMAND contract_import -j1)
heddle_test_properties(contract_import_sqlite contract 120)
set_property(TEST contract_import_sqlite APPEND PROPERTY ENVIRONMENT HEDDLE_CONTRACT=sqlite)
