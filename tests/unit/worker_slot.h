/* SPDX-License-Identifier: Apache-2.0 */
/* A table of slots without a transfer.  A slot is taken as an adapter does it (worker/adapter.c): begun where
 * it is not MAKING yet, then given one piece of memory a call. */
#ifndef TESTS_WORKER_SLOT_H
#define TESTS_WORKER_SLOT_H

#include "worker/slots.h"

/* A transfer that only counts which memory it was given. */
static int slot_maps, slot_unmaps;
static int slot_map(transfer_t *t, region_t *r)
{
    (void)t;
    (void)r;
    slot_maps++;
    return HEDDLE_OK;
}
static void slot_unmap(transfer_t *t, region_t *r)
{
    (void)t;
    (void)r;
    slot_unmaps++;
}
static bool slot_idle(transfer_t *t, const region_t *r)
{
    (void)t;
    (void)r;
    return true;
}
static const transfer_ops_t SLOT_TRANSFER = {.map = slot_map, .unmap = slot_unmap, .idle = slot_idle};
static const node_io_t SLOT_IO = {.tr = &SLOT_TRANSFER};

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
