# SPDX-License-Identifier: Apache-2.0
# The Nth allocation fails, for every N.
heddle_test(memory_broker SOURCES ${CMAKE_CURRENT_LIST_DIR}/broker_memory.c LINK heddle_broker LABEL unit)
target_link_options(memory_broker PRIVATE -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc -Wl,--wrap=strdup)
heddle_test(memory_rows SOURCES ${CMAKE_CURRENT_LIST_DIR}/store_rows.c LINK heddle_broker LABEL unit)
target_link_options(memory_rows PRIVATE -Wl,--wrap=malloc -Wl,--wrap=calloc -Wl,--wrap=realloc)
# The benchmark of the room memory/, small: processes hold and verify.
add_test(NAME memory_held COMMAND memory-held 1 2)
heddle_test_properties(memory_held unit 60)
