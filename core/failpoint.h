/* SPDX-License-Identifier: Apache-2.0 */
/* core/failpoint.h: named places where a test build can be made to die, stop or fail.
 *
 * HEDDLE_FAILPOINTS="name=action[:nth],..." in the environment; action: kill (SIGKILL to itself), stop
 * (SIGSTOP), error (the place takes its error path, if it has one); nth: only at the nth hit, counted from 1
 * (default 1).
 * HEDDLE_FAILPOINTS_HIT=FILE, an existing file: each failpoint that acts adds a line with its name, so that a
 * test can see whether it was reached at all. In builds without HEDDLE_TEST_BUILD the macros are the constant
 * false, and cost nothing.  All names: tests/torture/failpoints.list.  Process-wide state; failpoint_arm and
 * the calls after it: one thread. */
#ifndef CORE_FAILPOINT_H
#define CORE_FAILPOINT_H

#include <stdbool.h>

#ifdef HEDDLE_TEST_BUILD
bool failpoint_hit(const char *name);
bool failpoint_hit_of(const char *place, const char *what);
#define FAILPOINT(name) failpoint_hit(name)
/* One name for each thing that passes the place: "broker.send.WELCOME". */
#define FAILPOINT_OF(place, what) failpoint_hit_of(place, what)

/* For tests that run what has failpoints in their own process (one thread): */
void failpoint_arm(const char *name, unsigned nth); /* takes its error path then; also counts all from now
                                                     * on */
void failpoint_disarm(void);
bool failpoint_has_failed(void); /* since it was armed */
/* The names that were passed since, and how often; NULL: no more of them. */
const char *failpoint_passed(int index, unsigned *ret_count);
#else
#define FAILPOINT(name) false
#define FAILPOINT_OF(place, what) false
#endif

#endif
