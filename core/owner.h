/* SPDX-License-Identifier: Apache-2.0 */
/* core/owner.h: which thread may use an object, asserted in debug builds.
 *
 *    free --(owner_check, by the first thread that calls)--> owned --(owner_hand_over, by the owner)--> free
 *
 * The table of threads in docs/architecture.md says which thread owns which object; such an object checks
 * at its entries. Everything that belongs to a loop shares the loop's owner (loop_owner, node_io_t,
 * transfer_opts_t), so that all of it changes hands at once: it is made on the application's thread, used
 * on the loop's, and destroyed by the application again.
 *
 * With NDEBUG nothing is checked, and no code is left. Without it, a call by another thread aborts the
 * process after a line on stderr: that is a bug of the program, and nothing that a peer or a file can
 * cause.
 *
 * Any thread; nothing blocks. The check does not order memory between threads: a hand-over needs
 * pthread_create, pthread_join or the like, and the thread sanitizer sees whether that is there. */
#ifndef CORE_OWNER_H
#define CORE_OWNER_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    atomic_uintptr_t thread;
} owner_t; /* zero: free */

#ifdef NDEBUG
#define owner_check(owner) ((void)sizeof(owner))
#define owner_hand_over(owner) ((void)sizeof(owner))
#else
/* Both accept NULL: an object without an owner, as in tests with one thread. */
#define owner_check(owner) owner_assert((owner), __func__)
#define owner_hand_over(owner) owner_pass((owner), __func__)
#endif

void owner_assert(const owner_t *owner, const char *where);
void owner_pass(const owner_t *owner, const char *where);

#endif
