/* SPDX-License-Identifier: Apache-2.0 */
/* core/failpoint.h: named places where a test build can be made to die, stop or fail.
 *
 * HEDDLE_FAILPOINTS="name=action[:nth],..." in the environment; action: kill (SIGKILL to itself), stop (SIGSTOP),
 * error (the place takes its error path); nth: only at the nth hit, counted from 1 (default 1).
 * In builds without HEDDLE_TEST_BUILD the macro is the constant false. */
#ifndef CORE_FAILPOINT_H
#define CORE_FAILPOINT_H

#include <stdbool.h>

#ifdef HEDDLE_TEST_BUILD
bool failpoint_hit(const char *name);
#define FAILPOINT(name) failpoint_hit(name)
#else
#define FAILPOINT(name) false
#endif

#endif
