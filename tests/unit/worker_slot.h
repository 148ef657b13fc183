/* SPDX-License-Identifier: Apache-2.0 */
/* A slot is taken as an adapter does it (worker/adapter.c): begun where it is not MAKING yet, then given one
 * piece of memory a call. */
#ifndef TESTS_WORKER_SLOT_H
#define TESTS_WORKER_SLOT_H

#include "worker/slots.h"

static inline int slot_take(slots_t *s, uint32_t adapter, uint32_t index, uint64_t bytes, slot_t **ret_slot,
                            heddle_error_t *error)
{
    slot_t *slot = slots_at(s, adapter, index);
    int rc = slot && slot->state == SLOT_MAKING ? HEDDLE_OK : slots_begin(s, adapter, index, &slot, error);
    if (!rc) rc = slot_reserve(slot, bytes, error);
    if (!rc) *ret_slot = slot;
    return rc;
}

#endif
