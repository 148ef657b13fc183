/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/publications.h: the publication slots of a publisher: two or three warm regions, and the use
 * of each.
 *
 *   state    event                    -> next
 *   FREE     publications_take        -> TAKEN    the caller fits a larger one where it is too small
 *   TAKEN    (the application writes, the broker is asked)
 *            publications_share       -> SERVED   key and version; all of the arena is readable
 *            publications_give_back   -> FREE
 *            publications_doubt       -> IN_DOUBT the request was abandoned, and may be recorded yet
 *   IN_DOUBT publications_share       -> SERVED   it was recorded after all
 *            publications_give_back   -> FREE     it was not, its session has ended, or the slot is needed
 *   SERVED   publications_take        -> CLOSING  unshare: wanted for the next publication, and spare
 *            publications_stop        -> CLOSING  unshare: not to be served any more
 *            publications_release     -> SERVED   it is not needed: it goes before one that is
 *            publications_decided     -> SERVED   others have it too: it goes next
 *   CLOSING  publications_unshared    -> FREE     TR_UNSHARED: no send is in flight any more
 *
 * There are two, so that a version is served while the next one is written.  A third one is for publications
 * that come faster than workers fetch: one version is being fetched, the newest waits for it
 * (broker/rollout/rollout.h), and a third is written.  It is made when both others are needed, and stays.
 * When all three are needed, the broker has decided or ended one of them, and its message is on its way.
 * Without a broker (`is_spare_any`) the version between the oldest and the newest goes.
 *
 * A region is made and registered once, and used again for as long as it is large enough.  Serving goes on
 * after RELEASE, because the memory stays anyway and a worker that joins late may need it.
 *
 * Loop thread only, except for the memory of a TAKEN region, which the application's thread writes.  The node
 * owns the slots and their regions.  Nothing blocks. */
#ifndef TRAINER_CLIENT_PUBLICATIONS_H
#define TRAINER_CLIENT_PUBLICATIONS_H

#include "core/errors.h"
#include "proto/msg.h"
#include "transfer/transfer.h"

#define PUBLICATION_SLOTS 3
#define PUBLICATION_WARM 2 /* without need there are no more */

typedef enum {
    PUBLICATION_FREE,
    PUBLICATION_TAKEN,
    PUBLICATION_IN_DOUBT,
    PUBLICATION_SERVED,
    PUBLICATION_CLOSING
} publication_state_t;

/* What is needed of a request whose answer was not received, if its version is served after all. */
typedef struct {
    uint64_t req; /* not 0 */
    digest_t digest;
    uint64_t base_bytes; /* served before it was sent */
    uint64_t start_us;
    uint32_t deadline_ms;
    int activation;
} publication_doubt_t;
typedef struct {
    publication_state_t state;
    region_t *region;          /* owned; NULL: none yet */
    uint64_t version;          /* SERVED */
    uint64_t arena_bytes;      /* SERVED, IN_DOUBT */
    publication_doubt_t doubt; /* IN_DOUBT */
    share_key_t key;
    bool is_released, is_decided;
} publication_slot_t;

typedef struct publications {
    const transfer_ops_t *tr;
    transfer_t *t;
    publication_slot_t slots[PUBLICATION_SLOTS];
} publications_t;

void publications_init(publications_t *p, const transfer_ops_t *tr, transfer_t *t);
/* Stops serving at once and gives all memory back. */
void publications_fini(publications_t *p);

/* At least one slot has this state. */
bool publications_have(const publications_t *p, publication_state_t state);
/* OK with a slot, and its region: NULL or smaller than `bytes` where a new one must be fitted.
 * AGAIN: a region is on its way to be free (ask again after publications_unshared), or each is needed as
 * far as we know and not `is_spare_any` (ask again after publications_release or publications_decided).
 * NO_SLOT: all are being written. */
int publications_take(publications_t *p, uint64_t bytes, bool is_spare_any, int *ret_slot,
                      region_t **ret_region);
/* Puts a new region, owned by the slot from now on also on failure, in place of the old one, and
 * registers it. */
int publications_fit(publications_t *p, int slot, region_t *region);
void publications_give_back(publications_t *p, int slot);
/* TAKEN -> IN_DOUBT. */
void publications_doubt(publications_t *p, int slot, uint64_t arena_bytes, const publication_doubt_t *doubt);
/* The slot whose request in doubt has that number, or the oldest one (0); -1: none. */
int publications_in_doubt(const publications_t *p, uint64_t req);
/* A version that is served already keeps its own slot, and this one is given back.  On failure it is given
 * back, too: GONE without a key (`given` is zero: the bytes are not needed here), or what the transfer
 * answers. */
int publications_share(publications_t *p, int slot, uint64_t version, const key16_t *given,
                       uint64_t arena_bytes);
void publications_unshared(publications_t *p, const share_key_t *key);
/* False when the version is not served here. */
bool publications_release(publications_t *p, uint64_t version);
void publications_decided(publications_t *p, uint64_t version);
void publications_stop(publications_t *p, uint64_t version); /* 0: all */
/* The versions that are served, the newest first; how many. */
uint32_t publications_served(const publications_t *p, uint64_t ret_versions[PUBLICATION_SLOTS]);
/* NULL when the version is not SERVED. */
const publication_slot_t *publications_of(const publications_t *p, uint64_t version);

#endif
