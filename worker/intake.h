/* SPDX-License-Identifier: Apache-2.0 */
/* worker/intake.h: how the bytes of one version come into a slot: taken from a version that is here, held in
 * another process of the host, or fetched.
 *
 *   state       | event                                                       -> next
 *   ------------+---------------------------------------------------------------------------
 *   NONE        | intake_begin: the slot is MAKING                            -> COMPARING
 *   COMPARING   | a version here has this content, and its bytes are hashed   -> SEALED, over its region
 *               | no version here has it, or its memory is damaged            -> HOLDING
 *   HOLDING     | the region of another process is held and verified          -> SEALED, over that region
 *               | no process of the host hands one over                       -> RESERVING
 *   RESERVING   | all memory of the slot is made                              -> DOWNLOADING
 *               | intake_new_sources: a region that was not asked for         -> HOLDING
 *   DOWNLOADING | worker/download.h has fetched all, and intake.c seals it      -> SEALED
 *   any of these| an error; intake_give_up: no source answers in time       -> FAILED
 *   any         | intake_end                                                  -> NONE
 *
 * COMPARING, HOLDING and RESERVING take many calls of intake_work, a bounded piece each: heartbeats must not
 * wait for a digest or for pages of the kernel.  A sealed slot is offered to the host.
 *
 * An end has no event of its own: the owner asks intake_has_ended, and ends the intake.  An adapter begins it
 * by a BRING of versions_t, and ends it by its DROP, or in one place after each call (adapter.c: follow_up).
 *
 * Loop thread only.  An adapter (the admin handle, for its pull) owns it and reads its fields; the intake
 * owns its download and what is held, until the slot has adopted that.  The slot stays the table's. */
#ifndef WORKER_INTAKE_H
#define WORKER_INTAKE_H

#include "worker/download.h"
#include "worker/holding.h"
#include "worker/versions.h"
#include "worker/verify_held.h"

typedef enum {
    INTAKE_NONE,
    INTAKE_COMPARING,
    INTAKE_HOLDING,
    INTAKE_RESERVING,
    INTAKE_DOWNLOADING,
    INTAKE_SEALED,
    INTAKE_FAILED
} intake_state_t;

typedef struct intake {
    /* The owner's, set before intake_begin. */
    bulk_t *bulk;
    uint32_t adapter; /* its number in the table of slots, and in the cookies of read requests */
    const versions_t
        *versions; /* the versions of the adapter; NULL: of a pull, which serves nothing to others, and
                    * does not report why it holds nothing */
    /* Before the first byte of another process is read: what is held, or downloaded.  NULL: not called. */
    void (*begun)(struct intake *in);
    void *self; /* for `begun` */

    intake_state_t state;
    announced_t *what;     /* NULL: NONE */
    slot_t *slot;          /* NULL: NONE, or FAILED before it was reserved: it is FREE again */
    check_t equal;         /* COMPARING: the slot that is hashed; version 0: none yet */
    holding_t holding;     /* from HOLDING on: what was asked for stays known */
    manifest_t manifest;   /* of the region that the slot has adopted, until it is SEALED */
    download_t *download;  /* from DOWNLOADING on */
    unreached_t unreached; /* of `download`; its log outlives the intake */
    heddle_error_t error;  /* FAILED */
} intake_t;

/* NONE -> COMPARING, or FAILED.  `slot`: its index, and it is FREE; `what` is borrowed until intake_end. */
void intake_begin(intake_t *in, announced_t *what, uint32_t slot);
/* Accepts any state.  The slot and its share stay: the caller drops it, unless it is SEALED. */
void intake_end(intake_t *in);
/* One piece; false: there is nothing to do until an event comes, or the deadline. */
bool intake_work(intake_t *in, uint64_t now_us);
/* Returns the next deadline. */
uint64_t intake_tick(intake_t *in, uint64_t now_us);
/* As download_transfer, in any state. */
void intake_transfer(intake_t *in, const tr_event_t *event, uint64_t now_us);
/* A note of a source of regions, as mappings_received_t. */
void intake_receive(intake_t *in, const char *source, note_t note, const content_id_t *id);

/* what->sources changed. */
void intake_new_sources(intake_t *in, uint64_t now_us);
/* The download gets nowhere, and a source is listed whose region was not asked for, or, where nothing came at
 * all, may be given by now. To hold that takes less time, and no memory. But it takes an intake of its own.
 * `has_lost_all`: by the last list. */
bool intake_is_better_held(const intake_t *in, bool has_lost_all, uint64_t now_us);

/* SEALED or FAILED. */
static inline bool intake_has_ended(const intake_t *in) { return in->state >= INTAKE_SEALED; }
/* Every source was lost, or one is to be blamed: the owner takes the list of the lost ones, and looks for
 * others. */
static inline bool intake_needs_sources(const intake_t *in)
{
    return in->state == INTAKE_DOWNLOADING && in->download->needs_sources;
}
/* Bytes of this version come over the data plane, or are asked for there. */
static inline bool intake_is_fetching(const intake_t *in, const announced_t *w)
{
    return in->state == INTAKE_DOWNLOADING && in->what == w;
}
/* DOWNLOADING, as download_lost and download_has_failed. */
static inline uint32_t intake_lost(intake_t *in, uint64_t *ret_lost, uint32_t cap)
{
    return download_lost(in->download, ret_lost, cap);
}
static inline bool intake_has_failed(const intake_t *in, uint64_t token)
{
    return download_has_failed(in->download, token);
}
/* DOWNLOADING, as unreached_look. */
void intake_unreached(intake_t *in, const uint64_t *lost, uint32_t count, uint64_t now_us);
/* FAILED where no source can be reached and the version's deadline is near, whatever the list of sources is
 * by now.  Returns when to look again. */
uint64_t intake_give_up(intake_t *in, uint64_t deadline_us, uint64_t now_us);

/* How much of the payload was verified; of what is held: hashed here. */
static inline uint64_t intake_bytes(const intake_t *in)
{
    return in->download ? in->download->bytes_done : in->holding.job.at;
}
/* DOWNLOADING: the source of the last bytes; 0: none came yet. */
static inline uint64_t intake_source(const intake_t *in) { return in->download->last_token; }
/* As download_trouble. */
const heddle_error_t *intake_trouble(const intake_t *in);

#endif
