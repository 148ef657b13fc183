/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sync_entries.h (PURE): what sync knows: the versions that it has to do with, and what failed.
 *
 * Looking and remembering alone: what follows from it is said by worker/sync_step.h. */
#ifndef WORKER_SYNC_ENTRIES_H
#define WORKER_SYNC_ENTRIES_H

#include "worker/sync.h"

/* for EACH(s, e) ... */
#define EACH(s, e) (sync_entry_t *e = (s)->entries; e < (s)->entries + SYNC_ENTRIES; e++)

/* The entry of a version, but for one that is LEAVING; the first in a state; the one that is RESERVING or
 * FETCHING.  NULL: none. */
sync_entry_t *entries_find(sync_t *s, uint64_t version);
sync_entry_t *entries_in(sync_t *s, sync_state_t state);
sync_entry_t *entries_coming(sync_t *s);
bool entries_leaving(sync_t *s, uint64_t version);
/* -1: every slot is used. */
int  entries_free_slot(sync_t *s);
/* A WAITING entry without deadline; there is room. */
sync_entry_t *entries_add(sync_t *s, uint64_t version, const digest_t *digest);
void entry_forget(sync_entry_t *e);

/* A decision that is not applied yet chose this version, and no later one went back behind it. */
static inline bool entry_is_named(const sync_t *s, const sync_entry_t *e)
{
    return e->decision > s->applied.decision;
}
/* Its COMMIT was offered, and the application has not answered. */
static inline bool entry_is_switching(const sync_t *s, const sync_entry_t *e)
{
    return entry_is_named(s, e) && e->offered == e->decision;
}
/* Named, and worth all others' waiting. */
static inline bool entry_is_firm(const sync_t *s, const sync_entry_t *e)
{
    return entry_is_named(s, e) && !e->starved;
}
/* A decision for a later version is known: it is not worth a fetch. */
static inline bool entry_is_overtaken(const sync_t *s, const sync_entry_t *e)
{
    return e->version < s->decided.version;
}
static inline bool entry_is_coming(const sync_entry_t *e)
{
    return e->state == SYNC_RESERVING || e->state == SYNC_FETCHING;
}
static inline bool entry_is_ready(const sync_entry_t *e)
{
    return e->state == SYNC_STAGED || e->state == SYNC_ACTIVE || e->state == SYNC_KEPT;
}

/* Where the next failure is remembered. */
sync_nack_t *nacks_room(sync_t *s, uint64_t version, uint64_t decision);
/* The first failure that is still to be said; NULL. */
sync_nack_t *nacks_pending(sync_t *s);

#endif
