# SPDX-License-Identifier: Apache-2.0
# The nodes of the daemons and the library under a virtual clock: the world is one library, each theme one program.
add_library(scenario_world STATIC ${CMAKE_CURRENT_LIST_DIR}/check.c ${CMAKE_CURRENT_LIST_DIR}/content.c
  ${CMAKE_CURRENT_LIST_DIR}/leftover.c ${CMAKE_CURRENT_LIST_DIR}/wave.c ${CMAKE_CURRENT_LIST_DIR}/world.c ${CMAKE_CURRENT_LIST_DIR}/world_admin.c ${CMAKE_CURRENT_LIST_DIR}/world_broker.c ${CMAKE_CURRENT_LIST_DIR}/world_trainer.c
  ${CMAKE_CURRENT_LIST_DIR}/world_worker.c)
target_link_libraries(scenario_world PUBLIC heddle_mem heddle_broker heddle_worker heddle_trainer_client heddle_criterion PkgConfig::jansson)
target_compile_options(scenario_world PRIVATE -Wno-missing-prototypes)
file(GLOB scenarios ${HEDDLE_GLOB} ${CMAKE_CURRENT_LIST_DIR}/*_test.c)
foreach(file IN LISTS scenarios)
  get_filename_component(stem ${file} NAME_WE)
  string(REGEX REPLACE "_test$" "" theme ${stem})
  set(limit 120)
  if(theme MATCHES "^fanout") # up to a minute of CPU time: waves of up to 128 workers
    set(limit 600)
  endif()
  heddle_test(scenario_${theme} SOURCES ${file} LINK scenario_world LABEL scenario TIMEOUT ${limit})
  # What takes minutes of CPU time runs once with each store: with one that confirms at once under the sanitizers.
  set(is_long FALSE)
  if(theme MATCHES "^(fanout.*|relays)$")
    set(is_long TRUE)
    set_property(TEST scenario_${theme} APPEND PROPERTY LABELS long)
  endif()
  if(NOT (is_long AND HEDDLE_SANITIZE))
    add_test(NAME scenario_${theme}_late COMMAND scenario_${theme} -j1) # with a store that confirms some turns later
    heddle_test_properties(scenario_${theme}_late scenario ${limit})
    set_property(TEST scenario_${theme}_late APPEND PROPERTY ENVIRONMENT HEDDLE_TEST_STORE=late)
  endif()
endforeach()
# With a store of which some confirmations never come: what a scenario with bounds in time does not stand.
add_test(NAME scenario_torture_never COMMAND scenario_torture -j1)
heddle_test_properties(scenario_torture_never scenario 120)
set_property(TEST scenario_torture_never APPEND PROPERTY ENVIRONMENT HEDDLE_TEST_STORE=never)
# Hundreds of worlds with 1 GB of regions: all but the first take those of the one before.
foreach(theme fanout fanout_deaths fanout_faults fanout_restart)
  target_sources(scenario_${theme} PRIVATE ${CMAKE_SOURCE_DIR}/tests/lib/spare_regions.c)
  target_link_options(scenario_${theme} PRIVATE -Wl,--wrap=memory_region_new -Wl,--wrap=memory_region_destroy)
endforeach()
