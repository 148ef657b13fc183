/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sync_entries.h"

/* --- versions --------------------------------------------------------------------------------- */

sync_entry_t *entries_find(sync_t *s, uint64_t version)
{
    for EACH(s, e)
        if (e->state != SYNC_ABSENT && e->state != SYNC_LEAVING && e->version == version) return e;
    return NULL;
}

sync_entry_t *entries_in(sync_t *s, sync_state_t state)
{
    for EACH(s, e)
        if (e->state == state) return e;
    return NULL;
}

sync_entry_t *entries_coming(sync_t *s)
{
    for EACH(s, e)
        if (entry_is_coming(e)) return e;
    return NULL;
}

bool entries_leaving(sync_t *s, uint64_t version)
{
    for EACH(s, e)
        if (e->state == SYNC_LEAVING && e->version == version) return true;
    return false;
}

int entries_free_slot(sync_t *s)
{
    uint64_t used = 0;    /* LIMIT_SLOTS bits */
    for EACH(s, e)
        if (e->state != SYNC_ABSENT && e->slot >= 0) used |= 1ull << e->slot;
    for (uint32_t i = 0; i < s->slot_count && i < LIMIT_SLOTS; i++)
        if (!(used >> i & 1)) return (int)i;
    return -1;
}
_Static_assert(LIMIT_SLOTS <= 64, "one bit a slot");

void entry_forget(sync_entry_t *e) { *e = (sync_entry_t){.state = SYNC_ABSENT, .slot = -1}; }

sync_entry_t *entries_add(sync_t *s, uint64_t version, const digest_t *digest)
{
    sync_entry_t *e = entries_in(s, SYNC_ABSENT);
    *e = (sync_entry_t){.state = SYNC_WAITING,
                        .slot = -1,
                        .version = version,
                        .digest = *digest,
                        .deadline_us = CLOCK_NEVER,
                        .patience_us = SYNC_SLOT_WAIT_US};
    return e;
}

/* --- failures --------------------------------------------------------------------------------- */

sync_nack_t *sync_nack(sync_t *s, uint64_t version, uint64_t decision)
{
    sync_nack_t *last = NULL;
    for (sync_nack_t *k = s->nacks; k < s->nacks + SYNC_NACKS; k++) {
        bool fits = k->order && k->version == version &&
                    (k->decision == decision || decision == SYNC_ANY_DECISION);
        if (fits && (!last || k->order > last->order)) last = k;
    }
    return last;
}

sync_nack_t *nacks_room(sync_t *s, uint64_t version, uint64_t decision)
{
    sync_nack_t *room = sync_nack(s, version, decision);
    if (room) return room;
    room = s->nacks;
    for (sync_nack_t *k = s->nacks; k < s->nacks + SYNC_NACKS; k++)
        if (k->pending < room->pending || (k->pending == room->pending && k->order < room->order)) room = k;
    return room;
}

sync_nack_t *nacks_pending(sync_t *s)
{
    sync_nack_t *first = NULL;
    for (sync_nack_t *k = s->nacks; k < s->nacks + SYNC_NACKS; k++)
        if (k->pending && (!first || k->order < first->order)) first = k;
    return first;
}

/* --- for the node ----------------------------------------------------------------------------- */

const sync_entry_t *sync_find(const sync_t *s, uint64_t version)
{
    return entries_find((sync_t *)s, version);
}

const sync_entry_t *sync_active(const sync_t *s) { return entries_in((sync_t *)s, SYNC_ACTIVE); }

const sync_entry_t *sync_fetching(const sync_t *s) { return entries_coming((sync_t *)s); }

const sync_entry_t *sync_loading(const sync_t *s)
{
    const sync_entry_t *first = NULL;
    for EACH((sync_t *)s, e)
        if (e->state == SYNC_ARRIVED && (!first || e->order < first->order)) first = e;
    return first;
}

void sync_init(sync_t *s, bool app)
{
    *s = (sync_t){.app = app, .give_up_us = CLOCK_NEVER};
    for EACH(s, e) entry_forget(e);
}

void sync_restate(sync_t *s)
{
    s->active_reported = true;
    for EACH(s, e) {
        e->restated = sync_is_held(e);
        e->reported = e->state == SYNC_STAGED;
    }
}
