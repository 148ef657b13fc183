/* SPDX-License-Identifier: Apache-2.0 */
/* tests/torture/alloc.h: memory that runs out at a chosen moment.
 *
 * Programs that link alloc.c are linked with --wrap for each of its calls (tests.cmake): malloc, calloc,
 * realloc, strdup, asprintf, and what shared memory is made of: memfd_create, fallocate, mmap.  jansson
 * takes its memory here too, but for what it reads.  Counted is what the product itself asks for while alloc_hook says so; what
 * libraries take inside is theirs.  One thread. */
#ifndef TESTS_TORTURE_ALLOC_H
#define TESTS_TORTURE_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* Counted when it says true; NULL: always. */
extern bool (*alloc_hook)(void);
extern bool alloc_is_shown; /* each that fails says who asked, on stderr */

/* From now on calls are counted from 1; those from `first` on fail, `length` of them (first 0: none). */
void alloc_arm(uint64_t first, uint64_t length);
/* Nothing fails and nothing is counted any more; how many there were. */
uint64_t alloc_disarm(void);
uint64_t alloc_failed(void); /* how many were refused since alloc_arm */

#endif
