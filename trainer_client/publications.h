/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/publications.h: the versions that a publisher writes and serves, each in a region of its
 * pool (client/regions.h).
 *
 *   state    event                    -> next
 *   FREE     publications_take        -> TAKEN    when its region is there
 *   TAKEN    (the application writes, publications_seal, the broker is asked)
 *            publications_share       -> SERVED   key and version; all of its content is readable
 *            publications_give_back   -> FREE
 *            publications_doubt       -> IN_DOUBT the request was abandoned, and may be recorded yet
 *   IN_DOUBT publications_share       -> SERVED   it was recorded after all
 *            publications_give_back   -> FREE     it was not, its session has ended, or the slot is needed
 *   SERVED   publications_take        -> TAKEN    unshare: it is in the way of the next one, and may go
 *            publications_stop        -> FREE     unshare: not to be served any more
 *            publications_release     -> SERVED   it is not needed: it goes before one that is
 *            publications_decided     -> SERVED   others have it too: it goes next
 *
 * The region of the next version is taken, and made if need be, before a slot is given up for it: a version
 * is served until its place is used. Where there is no memory for one more region, the served version goes
 * first, if that helps: its region is large enough or others have the version, and no process of this host
 * holds it. One that was released goes at once, so that its memory is used again and no more is made.
 *
 * A slot says that a version is wanted.  There are two, so that one is served while the next one is written.
 * A third one is for publications that come faster than workers fetch: one version is being fetched, the
 * newest waits for it (broker/rollout/rollout.h), and a third is written.  When all three are needed, the
 * broker has decided or ended one of them, and its message is on its way.  Without a broker (`may_drop_any`)
 * the version between the oldest and the newest goes.
 *
 * A publication does not wait for readers of an older version: what is sent is copied first, and what others
 * hold is left to them.  Serving goes on after RELEASE, because the memory stays anyway and a worker that
 * joins late may need it.
 *
 * How many regions there are, where a broker keeps K versions beside the active one and the workers of this
 * host hold them:
 *
 *   K + 3   each version is active before the next one begins: what is kept, what is active, what is being
 *           written, and one that is free then, or that was retired and is let go in a moment (memory/pool.h)
 *   K + 4   publications come faster than workers fetch: what is kept, what is active, what is being fetched,
 *           the newest, which waits for that, and what is being written; none of these is waited for
 *   + 1     for each older version that a reader still has, or a worker is about to let go of; and for the
 *           one ahead, where none of these became free for a while
 *
 * What is too much goes after a minute.
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
    PUBLICATION_TAKEN,
    PUBLICATION_IN_DOUBT,
    PUBLICATION_SERVED
} publication_state_t;

/* What is needed of a request whose answer was not received, if its version is served after all. */
typedef struct {
    uint64_t req; /* not 0 */
    digest_t digest;
    uint64_t start_us;
    uint32_t deadline_ms;
    int activation;
} publication_doubt_t;
typedef struct {
    publication_state_t state;
    region_t *region;          /* a reference; NULL: FREE */
    uint64_t version;          /* SERVED */
    uint64_t content_bytes;    /* SERVED, IN_DOUBT */
    publication_doubt_t doubt; /* IN_DOUBT */
    share_key_t key;
    bool is_released, is_decided;
} publication_slot_t;

typedef struct publications {
    const node_io_t *io;
    regions_t *regions;
    sharing_t *sharing; /* owned; NULL: no process of this host holds anything */
    publication_slot_t slots[PUBLICATIONS_WANTED];
    uint64_t bytes;         /* that the next version was asked for with; 0: no take waits */
    region_t *next;         /* a reference: its region; NULL: not made yet */
    heddle_error_t failure; /* why there is no memory for it; code 0: not known yet */
} publications_t;

/* `io` is borrowed; `is_guarded`: as in regions_opts_t.  NO_MEMORY. */
int publications_init(publications_t *p, const node_io_t *io, bool is_guarded);
/* Stops serving at once and gives all memory back. */
void publications_fini(publications_t *p);

/* At least one slot has this state. */
bool publications_have(const publications_t *p, publication_state_t state);

/* What a take that is answered AGAIN waits for, and after what it is to be given again. */
typedef enum {
    PUBLICATION_FOR_BROKER, /* each version is needed as far as we know, and not `may_drop_any`: after
                             * publications_release or publications_decided */
    PUBLICATION_FOR_MEMORY  /* its region is being made: after publications_make */
} publication_wait_t;
typedef struct {
    uint64_t bytes;       /* not 0 */
    memory_region_t *own; /* made elsewhere (regions_adopt); NULL: one of the pool's is taken */
    bool may_drop_any;
    int slot; /* the result */
    region_t *region;
    publication_wait_t waits; /* AGAIN */
} publication_take_t;
/* AGAIN.  NO_SLOT: all are being written, or processes of the host hold the pool's regions, and the error
 * names them.  NO_MEMORY: to make it, or to register it. */
int publications_take(publications_t *p, publication_take_t *take, heddle_error_t *error);
/* A step of the region that a take waits for; true while there are more.  Afterwards the take is to be given
 * again.  Where no take waits, nothing happens. */
bool publications_make(publications_t *p);
bool publications_are_making(const publications_t *p);
/* No take waits any more; what was made of its region stays with the pool. */
void publications_give_up(publications_t *p);
void publications_give_back(publications_t *p, int slot);
/* The content, of so many bytes and with that manifest, is in the TAKEN region.  Again: nothing changes. */
void publications_seal(publications_t *p, int slot, const digest_t *manifest, uint64_t content_bytes);
/* TAKEN -> IN_DOUBT. */
void publications_doubt(publications_t *p, int slot, uint64_t content_bytes,
                        const publication_doubt_t *doubt);
/* The slot whose request in doubt has that number, or the oldest one (0); -1: none. */
int publications_in_doubt(const publications_t *p, uint64_t req);
/* A version that is served already keeps its own slot, and this one is given back.  On failure it is given
 * back, too: GONE without a key (`given` is zero: the bytes are not needed here), or what the transfer
 * answers. */
int publications_share(publications_t *p, int slot, uint64_t version, const key16_t *given,
                       uint64_t content_bytes);
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
