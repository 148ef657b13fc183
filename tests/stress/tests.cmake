# SPDX-License-Identifier: Apache-2.0
# Threads against each other: plain mains, so that they run under the thread sanitizer too.
add_executable(stress_worker_slots ${CMAKE_CURRENT_LIST_DIR}/worker_slots.c)
set_target_properties(stress_worker_slots PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(stress_worker_slots PRIVATE heddle_worker)
add_test(NAME stress_worker_slots COMMAND stress_worker_slots 2 4)
heddle_test_properties(stress_worker_slots stress 60)
