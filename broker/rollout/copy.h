/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/copy.h (PURE): a copy is one version on one worker.
 *
 *   state           event                        -> next        notes
 *   (none)          the rollout begins, or wakes -> ANNOUNCED   WAITING without a source
 *   WAITING         a source is there            -> ANNOUNCED
 *   ANNOUNCED       heartbeat with progress      -> FETCHING, ARRIVED (all bytes are there)
 *   in flight       the worker turned to another -> WAITING     of a version that is overtaken
 *   in flight       STAGED, digest equal         -> STAGED      or COMMITTED + COMMIT of the decided one
 *   in flight       NACK, digest differs         -> FAILED
 *   STAGED KEPT     DECISION names the version   -> COMMITTED
 *   COMMITTED       ACTIVE                       -> ACTIVE      the one that was active there -> KEPT
 *   COMMITTED       another version is decided   -> KEPT        it may still switch to it
 *   COMMITTED       NACK                         -> REFUSED     no other worker is turned back
 *   REFUSED         DECISION names the version   -> COMMITTED
 *   any, eligible   the worker is lost or leaves -> GONE        the others are dropped
 *   any             the worker joins again       -> by what it restates
 *
 * States from NONE to ARRIVED are in flight.  A copy is eligible if its worker was READY at the announcement:
 * the rollout waits for it.
 *
 * A copy changes through the functions below alone: they keep the tally of its track (tally.h), the plan of
 * its sources (plan.h) and the generation, which a publisher's ROLLOUT follows.
 *
 * A track (track.h) owns its copies.  One thread, nothing blocks. */
#ifndef BROKER_COPY_H
#define BROKER_COPY_H

#include "broker/membership.h"
#include "broker/rollout/tally.h"

#define COPY_LOST_MAX 16u
#define COPY_MESSAGE_BYTES 768u /* as in heddle_error_t: longer ones are cut */

typedef struct track track_t;
typedef struct adapter_rollout adapter_rollout_t;

typedef struct {
    char name[HEDDLE_NAME_MAX + 1];
    source_kind_t kind;
    uint64_t bytes;
} copy_served_t;

typedef struct copy_row {
    char worker[HEDDLE_NAME_MAX + 1];
    uint64_t token; /* of the worker's session; 0 in GONE */
    key16_t life;   /* of its process: a new session of it stays eligible */
    copy_state_t state;
    copy_state_t last_state; /* GONE: the state before */
    bool is_eligible;        /* the rollout waits for it */
    bool has_reached;        /* it has served this version, or a later one, since its latest decision */
    bool is_owed;            /* ANNOUNCED FETCHING ARRIVED: ANNOUNCE is to be sent again: there was no
                              * source, or a newer version was announced meanwhile */
    bool is_spare;           /* KEPT: no reader holds it, and its slot is wanted (last heartbeat) */
    bool is_trouble_said;    /* the event that no byte comes was added: once for a copy */
    group_t *group;          /* NULL: none */
    uint32_t rank;           /* as in JOIN */
    uint64_t since_ms;       /* in this state; 0: since before this session, and not known */
    uint64_t bytes_done;
    uint64_t told_us;       /* when ANNOUNCE was sent last; 0: not to this session, or the worker
                             * turned to another version since */
    uint64_t first_told_us; /* the same of the first ANNOUNCE to this process; 0: none yet */
    uint64_t begun_us;      /* since when no other version is fetched before it; 0: not yet */
    uint64_t behind;        /* the version that was; 0: none */
    bool is_resumed;        /* an earlier session of this process had brought bytes */
    uint64_t moved_us;      /* ANNOUNCED FETCHING ARRIVED: when it was announced, or more bytes came */
    uint64_t switch_us;     /* when COMMIT was sent, or STAGED came after it; 0: it was not sent */
    uint64_t retry_us;      /* FAILED, of the active version: when to announce again; 0: never */
    uint32_t failed_count;
    /* durations; 0: not yet.  All but verify_us, which is within fetch_us, are disjoint */
    uint64_t announce_us, queued_us, connect_us, fetch_us, verify_us, busy_us, stage_us, activate_us;
    /* sources that it lost, an event for each; beyond COPY_LOST_MAX none */
    uint64_t lost[COPY_LOST_MAX];
    uint32_t lost_count;
    /* as STAGED reported, or JOIN restated; ARRIVED: as the last heartbeat did */
    msg_region_t region;
    verified_where_t verified;
    bool is_held;
    copy_served_t *served;
    uint32_t served_count; /* bytes by source, as STAGED reported */
    /* REFUSED FAILED GONE: why; in flight: why no byte comes, as the last heartbeat had it */
    int code;
    char phase[16];
    char *message; /* owned; NULL: none (copy_message) */
} copy_row_t;

/* NULL: none */
copy_row_t *track_copy(const track_t *t, const char *worker);
/* The copy of this very session; NULL: none.  t may be NULL. */
copy_row_t *copy_of(const track_t *t, const member_t *member);
/* The member's copy, found or new; NULL: no memory.  A row of another session of that name is made anew,
 * and stays eligible where the process is the same. */
copy_row_t *copy_add(track_t *t, const member_t *member);
void copy_drop(track_t *t, const char *worker);
void copy_move(track_t *t, copy_row_t *c, copy_state_t state, instant_t now); /* sets `since` */
void copy_fail(track_t *t, copy_row_t *c, int code, const char *phase, const char *message, instant_t now);
void copy_gone(track_t *t, copy_row_t *c);
void copy_expect(track_t *t, copy_row_t *c); /* it is eligible from now on */
void copy_reach(track_t *t, copy_row_t *c, bool has_reached);
/* COMMIT was sent at that time: a copy that has the bytes is COMMITTED, unless it is ACTIVE already. */
void copy_order(track_t *t, copy_row_t *c, instant_t at);
void copy_spare(track_t *t, copy_row_t *c, bool is_spare);
/* ANNOUNCE was sent, or would have been if there were a source. */
void copy_announced(track_t *t, copy_row_t *c, bool is_sent, instant_t now);
/* The worker loads the bytes out of this region; NULL: it does not, or it is not known. */
void copy_loaded_from(track_t *t, copy_row_t *c, const msg_region_t *region);
/* The worker has the bytes in this region, and which process verified them. */
void copy_in_region(copy_row_t *c, const msg_region_t *region, uint64_t verified, bool is_held);
/* The worker has staged it: how long that took, and from where the bytes came. */
void copy_staged(track_t *t, copy_row_t *c, const msg_staged_t *m, instant_t now);
void copy_blame(track_t *t, copy_row_t *c, int code, const char *phase, const char *message);
/* The worker has turned to another version: it fetches none of the overtaken ones any more, `but` that one
 * (0: none). */
void copies_left(const adapter_rollout_t *a, const member_t *member, uint64_t but, instant_t now);
/* The worker fetches this version: it has left the overtaken ones, and others that were announced to it, and
 * not begun, are behind it. */
void copies_wait_behind(const adapter_rollout_t *a, const member_t *member, uint64_t version, instant_t now);
/* The worker has finished this version: those behind it begin. */
void copies_go_on(const adapter_rollout_t *a, const member_t *member, uint64_t version, uint64_t now_us);
/* The bytes are there.  The time since the version's record that the worker did not measure is split between
 * announcement and queue. */
void copy_timed(const track_t *t, copy_row_t *c, uint64_t now_us);
/* Why it is REFUSED, FAILED or GONE, or why no byte comes; "": not known. */
static inline const char *copy_message(const copy_row_t *c) { return c->message ? c->message : ""; }
/* there, and not yet staged or failed; c may be NULL in both */
bool copy_in_flight(const copy_row_t *c);
/* there, and sealed bytes: STAGED to REFUSED */
bool copy_holds(const copy_row_t *c);
/* ANNOUNCE was sent, and the copy is in flight: the worker may be fetching or loading it now. */
bool copy_is_told(const copy_row_t *c);
const char *copy_phase(const copy_row_t *c); /* announce fetch stage activate */
/* Frees the row; its track counts it no more. */
void copy_free(copy_row_t *c);

#endif
