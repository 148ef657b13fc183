/* SPDX-License-Identifier: Apache-2.0 */
/* bench/machine.h: the facts about the machine and the build that a report needs to be comparable. Without
 * state; any thread; blocks on files of /proc. */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <jansson.h>
#include <stdint.h>

/* {"at","cpu","core_count","memory_bytes","kernel","tcp","heddle","transfer_mode","load_before",...}; null
 * where unknown. NULL: out of memory. */
json_t *machine_facts(const char *data_dir);
/* Adds what is known only at the end: the load. */
void machine_finish(json_t *facts);
/* MemAvailable; 0 where unknown. */
uint64_t machine_available_bytes(void);

#endif
