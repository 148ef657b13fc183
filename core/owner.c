/* SPDX-License-Identifier: Apache-2.0 */
#include "core/owner.h"

#ifndef NDEBUG
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

void owner_assert(const owner_t *owner, const char *where)
{
    if (!owner) return;
    owner_t *o = (owner_t *)owner; /* binding an owner does not change the guarded object */
    /* pthread_self() is the same in every copy of this file; the plugin has one of its own. A new thread may
     * get the id of one that has ended: then a wrong call may pass, but a right one is never refused. */
    uintptr_t was = 0, me = (uintptr_t)pthread_self();
    if (atomic_compare_exchange_strong_explicit(&o->thread, &was, me, memory_order_relaxed,
                                                memory_order_relaxed) ||
        was == me)
        return;
    fprintf(stderr, "heddle: %s: called on thread %#jx, belongs to thread %#jx\n", where, (uintmax_t)me,
            (uintmax_t)was);
    abort();
}

void owner_pass(const owner_t *owner, const char *where)
{
    owner_assert(owner, where);
    if (owner) atomic_store_explicit(&((owner_t *)owner)->thread, 0, memory_order_relaxed);
}
#endif
