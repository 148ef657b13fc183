/* SPDX-License-Identifier: Apache-2.0 */
/* core/owner.h: which thread may touch an object, asserted in debug builds.
 *
 *   nobody's --(owner_check: by whoever comes first)--> that thread's --(owner_hand_over, by it)--> nobody's
 *
 * The table of threads in docs/architecture.md says who owns what; objects that one thread owns ask at their
 * entries.  What belongs to a loop shares the owner of the loop (loop_owner, node_io_t, transfer_opts_t), so
 * that all of it changes hands at once: it is made on the application's thread, run on the loop's, and ended
 * by the application again.
 *
 * With NDEBUG nothing is asked, and no code is left of it.  Without, another thread's call ends the process
 * (abort) after a line on stderr: it is a mistake of the program, and nothing that a peer or a file can
 * bring about.
 *
 * Threads: any; nothing blocks.  It orders nothing between threads: who hands over does that by other means
 * (pthread_create, pthread_join), and the thread sanitizer sees whether he did. */
#ifndef CORE_OWNER_H
#define CORE_OWNER_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct { atomic_uintptr_t thread; } owner_t;   /* zero: nobody's */

#ifdef NDEBUG
#define owner_check(owner) ((void)sizeof(owner))
#define owner_hand_over(owner) ((void)sizeof(owner))
#else
/* Either takes NULL: an object without an owner, as in tests of one thread. */
#define owner_check(owner) owner_assert((owner), __func__)
#define owner_hand_over(owner) owner_pass((owner), __func__)
#endif

void owner_assert(const owner_t *owner, const char *where);
void owner_pass(const owner_t *owner, const char *where);

#endif
