/* SPDX-License-Identifier: Apache-2.0 */
/* bench/moment.h: the clock of the measurements: CLOCK_MONOTONIC, because its readings can be compared
 * between all processes of a host, and no clock adjustment moves it.  Any thread. */
#ifndef BENCH_MOMENT_H
#define BENCH_MOMENT_H

#include <stdint.h>
#include <time.h>

static inline uint64_t moment_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Signed: a worker's reading may lie a little before ours. */
static inline double moment_ms(uint64_t from_ns, uint64_t to_ns)
{
    return (double)(int64_t)(to_ns - from_ns) / 1e6;
}

#endif
