/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/publications.h: the versions that a publisher writes and serves, each in a region of its
 * pool (client/regions.h).
 *
 *   state    event                    -> next
 *   FREE     publications_take        -> MAKING   its region is made, a step a call
 *   MAKING   publications_take        -> TAKEN    at once where the pool has a free region
 *            publications_give_up     -> FREE
 *   TAKEN    (the application writes, publications_seal, the broker is asked)
 *            publications_share       -> SERVED   key and version; all of the arena is readable
 *            publications_give_back   -> FREE
 *            publications_doubt       -> IN_DOUBT the request was abandoned, and may be recorded yet
 *   IN_DOUBT publications_share       -> SERVED   it was recorded after all
 *            publications_give_back   -> FREE     it was not, its session has ended, or the slot is needed
 *   SERVED   publications_take        -> FREE     unshare: it is in the way of the next one, and spare
 *            publications_stop        -> FREE     unshare: not to be served any more
 *            publications_release     -> SERVED   it is not needed: it goes before one that is
 *            publications_decided     -> SERVED   others have it too: it goes next
 *
 * A slot says that a version is wanted.  There are two, so that one is served while the next one is written.
 * A third one is for publications that come faster than workers fetch: one version is being fetched, the
 * newest waits for it (broker/rollout/rollout.h), and a third is written.  When all three are needed, the
 * broker has decided or ended one of them, and its message is on its way.  Without a broker (`is_spare_any`)
 * the version between the oldest and the newest goes.
 *
 * What is not wanted any more may still be sent.  It is not written before the last send has ended, and
 * another region is taken meanwhile: a publication does not wait for readers of an older version.  Serving
 * goes on after RELEASE, because the memory stays anyway and a worker that joins late may need it.
 *
 * With client/sharing.h processes of this host may hold a version in its region from publications_seal on,
 * while it is wanted.  What they hold then is not written before they let go of it.
 *
 * Loop thread only, except for the memory of a TAKEN region, which the application's thread writes.  The node
 * owns the slots and their regions.  Nothing blocks. */
#ifndef TRAINER_CLIENT_PUBLICATIONS_H
#define TRAINER_CLIENT_PUBLICATIONS_H

#include "client/regions.h"
#include "core/errors.h"
#include "proto/msg.h"

#define PUBLICATIONS_WANTED 3

typedef struct sharing sharing_t; /* client/sharing.h */

typedef enum {
    PUBLICATION_FREE,
    PUBLICATION_MAKING,
    PUBLICATION_TAKEN,
    PUBLICATION_IN_DOUBT,
    PUBLICATION_SERVED
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
    region_t *region;          /* a reference; NULL: FREE, or not made yet */
    uint64_t version;          /* SERVED */
    uint64_t arena_bytes;      /* SERVED, IN_DOUBT */
    publication_doubt_t doubt; /* IN_DOUBT */
    share_key_t key;
    content_id_t content; /* what processes of this host may hold; epoch 0: nothing */
    bool is_released, is_decided;
} publication_slot_t;

typedef struct publications {
    const node_io_t *io;
    regions_t *regions;
    sharing_t *sharing; /* owned; NULL: no process of this host holds anything */
    publication_slot_t slots[PUBLICATIONS_WANTED];
    uint64_t bytes;         /* MAKING: asked for */
    heddle_error_t failure; /* MAKING: why there is no memory; code 0: not known yet */
} publications_t;

/* `io` is borrowed.  NO_MEMORY. */
int publications_init(publications_t *p, const node_io_t *io);
/* Stops serving at once and gives all memory back; what is still being sent goes with its last send. */
void publications_fini(publications_t *p);

/* At least one slot has this state. */
bool publications_have(const publications_t *p, publication_state_t state);
/* A version that is not wanted any more is still being sent to a worker. */
bool publications_are_sending(const publications_t *p);

typedef struct {
    uint64_t bytes;
    memory_region_t *own; /* made elsewhere (regions_adopt); NULL: one of the pool's is taken */
    bool is_spare_any;
    int slot; /* the result */
    region_t *region;
} publication_take_t;
/* AGAIN: a region is being made (MAKING: ask again after publications_make), the last ones are still being
 * sent (after TR_UNSHARED), or each is needed as far as we know and not `is_spare_any` (after
 * publications_release or publications_decided).  NO_SLOT: all are being written, or processes of the host
 * hold the pool's regions, and the error names them.  NO_MEMORY: to make it, or to register it. */
int publications_take(publications_t *p, publication_take_t *take, heddle_error_t *error);
/* A step of the region that a take waits for; true while there are more.  Afterwards the take is to be given
 * again.  Where no take waits, nothing happens. */
bool publications_make(publications_t *p);
bool publications_are_making(const publications_t *p);
/* MAKING -> FREE; what was made of its region stays with the pool. */
void publications_give_up(publications_t *p);
void publications_give_back(publications_t *p, int slot);
/* A TAKEN region is written: an arena of so many bytes with that manifest.  Again: nothing changes. */
void publications_seal(publications_t *p, int slot, const digest_t *manifest, uint64_t arena_bytes,
                       uint64_t now_us);
/* TAKEN -> IN_DOUBT. */
void publications_doubt(publications_t *p, int slot, uint64_t arena_bytes, const publication_doubt_t *doubt);
/* The slot whose request in doubt has that number, or the oldest one (0); -1: none. */
int publications_in_doubt(const publications_t *p, uint64_t req);
/* A version that is served already keeps its own slot, and this one is given back.  On failure it is given
 * back, too: GONE without a key (`given` is zero: the bytes are not needed here), or what the transfer
 * answers. */
int publications_share(publications_t *p, int slot, uint64_t version, const key16_t *given,
                       uint64_t arena_bytes);
/* False when the version is not served here. */
bool publications_release(publications_t *p, uint64_t version);
void publications_decided(publications_t *p, uint64_t version);
void publications_stop(publications_t *p, uint64_t version); /* 0: all */
/* The versions that are served, the newest first; how many. */
uint32_t publications_served(const publications_t *p, uint64_t ret_versions[PUBLICATIONS_WANTED]);
/* Of those, which processes of this host may hold; how many. */
uint32_t publications_offered(const publications_t *p, msg_offered_t ret_offered[PUBLICATIONS_WANTED]);
/* NULL when the version is not SERVED. */
const publication_slot_t *publications_of(const publications_t *p, uint64_t version);

#endif
