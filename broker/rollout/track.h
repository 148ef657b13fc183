/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/track.h (PURE): the soft state of versions.  A track is one version; its copies (copy.h),
 * one for each worker, have a tally (tally.h) and a plan of their sources (plan.h).
 *
 * adapter_rollout_t owns the tracks of one adapter and points to the adapter's registry row; a track points
 * to its version's row.  Both rows outlive it, but for a version that is forgotten: RECORD_FORGET clears
 * the pointer (rollout_apply).  One thread, nothing blocks. */
#ifndef BROKER_TRACK_H
#define BROKER_TRACK_H

#include "broker/members/membership.h"
#include "broker/plan/plan.h"
#include "broker/registry/registry.h"
#include "broker/rollout/copy.h"
#include "broker/rollout/costs.h"
#include "broker/rollout/took.h"
#include "core/limits.h"

#define ROLLOUT_ENDED_TRACKS 8u /* of an adapter, kept to show how they ended */

typedef enum {
    TRACK_WAITING, /* staging, behind another version of the adapter */
    TRACK_BEGUN,   /* announced; or decided */
    TRACK_STAGED   /* the event version.staged was said */
} track_phase_t;

/* Where the bytes of a live version are.  rollout.c sets it, when it looks at the track (look_at):
 *
 *   state   | what is so                        | set by          | next
 *   --------+-----------------------------------+-----------------+---------------------------------------
 *   THERE   | the publisher serves them, or a   | look_at         | MISSING, or at once GROWING, when the
 *           | worker has all of them            |                 | last one that had them has gone
 *   GROWING | no process has all; parts of two  | look_for_parts  | THERE; MISSING, when none of the parts
 *           | or more workers grow, and may     |                 | has grown for a lease
 *           | complete each other               |                 |
 *   MISSING | no process has all, since         | look_for_parts; | THERE; GROWING; committed: LOADING, or
 *           | sourceless_us                     | start_track     | LOST; staging, and no source for a
 *           |                                   |                 | lease: LOST if a worker ever had them,
 *           |                                   |                 | else the version fails
 *   LOADING | committed; the worker last_holder | look_for_loader | THERE; LOST, when no worker loads them
 *           | loads them                        |                 | any more
 *   LOST    | the loss was reported and         | become_lost;    | THERE, when a holder or the publisher
 *           | recorded                          | start_track     | has come back; no other
 *
 * While the broker settles, no version becomes LOADING or LOST.  The order matters: from MISSING on there is
 * no source (track_has_source). */
typedef enum { BYTES_THERE, BYTES_GROWING, BYTES_MISSING, BYTES_LOADING, BYTES_LOST } bytes_state_t;

/* The most that had the bytes at one time, there or not any more.  After a start it is known again when a
 * worker restates them, and where the registry has the loss of the version, or that it
 * was staged. */
typedef enum { STAGED_NOWHERE, STAGED_BY_WORKER, STAGED_BY_UNIT } staged_by_t;

/* ROLLOUT is sent at once when one of these differs. */
typedef struct {
    const char *state;
    int code;
    bool is_first_staged, is_all_staged, is_all_active;
} urgent_t;

/* A worker that the version waited for until it was gone.  Kept here, because the worker's own row is
 * another one when it comes back. */
typedef enum { GONE_LEFT, GONE_LOST, GONE_SHUT_OUT, GONE_STARTED_AGAIN } gone_how_t;
typedef struct {
    char worker[HEDDLE_NAME_MAX + 1];
    gone_how_t how;
    uint64_t until_ms;
} gone_row_t;

/* A hold of the adapter.  Soft state: a hold that ended before the broker's start is not known. */
typedef struct {
    uint64_t version, since_ms, until_ms;
} adapter_hold_t; /* version 0: none; until_ms 0: it lasts */

struct track {
    adapter_rollout_t *of;
    const char *adapter; /* of->row->name */
    uint64_t version;
    const version_row_t *row; /* NULL: forgotten, or unknown to this store */
    copy_row_t **copies;
    size_t copy_count, copy_capacity; /* ascending by worker */
    group_t **groups;
    size_t group_count, group_capacity; /* ascending by name, ranks */
    tally_t tally;
    plan_t plan;
    track_phase_t phase;
    bytes_state_t bytes;
    staged_by_t staged_by;
    msg_region_t region;       /* in which its publisher (plan_t) has it; generation 0: not known */
    uint64_t former_publisher; /* the token of a publisher that is gone */
    uint64_t publisher_end_ms; /* since when it is gone; 0: not known, as after a restart */
    bool is_restored;          /* loaded at the start; while the broker settles ROLLOUT comes later */
    bool awaits_fetchers;      /* restored: workers that fetched it before may not have said so yet */
    bool is_late;              /* the deadline has passed */
    bool is_publisher_refused; /* while read-only: it came back and could not be admitted */
    uint64_t created_us, deadline_us;
    /* while workers wait for another one of their place: when to see what became of its fetch, or before */
    uint64_t fetches_due_us;
    uint64_t probe_us; /* the same: when the connections of those that they wait for were tried; 0: not yet */
    bool is_unreached; /* the connection of one that others fetch from, or wait for, is gone, and that was not
                        * looked at yet */
    uint64_t
        retry_us; /* when FAILED copies are looked at, as one is to be announced again; CLOCK_NEVER: none */
    /* overtaken, and a worker fetches it, or loads or switches to it, so long at least; 0: none */
    uint64_t fetched_until_us, loaded_until_us;
    size_t fetching_at, loading_at; /* copies that were found last (keep.c) */
    uint64_t sourceless_us;         /* but in THERE: since when, or since its parts grew last */
    /* Which process had the bytes last, and until when; "", 0: none since the broker was started.  Of a
     * version whose loss was recorded before the start, the time of that record (version_row_t.lost_ms). */
    char last_holder[HEDDLE_NAME_MAX + 1];
    uint64_t held_until_ms;
    /* the last LIMIT_GONE of them, as a ring: number i is at i % LIMIT_GONE */
    gone_row_t gone[LIMIT_GONE];
    uint32_t gone_count;
    uint64_t deserted_ms; /* since when no worker that takes the version is there; 0: one is */
    took_t took;
    adapter_hold_t hold;  /* the last one that ended while the version waited */
    uint64_t blamed_ms;   /* the least member_trust_t.order_ms of those blamed in this version; 0: none was */
    bool owes_last;       /* those that were put last get their lists at the end of the turn */
    uint64_t checked_us;  /* its holders were asked to compare their bytes; 0: not yet */
    uint64_t bytes_moved; /* reported in STAGED, in total */
    /* the most that a worker on its way to the version has had, and when that grew last */
    uint64_t furthest_bytes, grown_us;
    /* the first LIMIT_FORMER of former_count, in the order in which their rows went */
    former_row_t *former;
    uint32_t former_rows, former_count;
    uint64_t changes; /* grows with each change that ROLLOUT would show; never 0 */
    /* of the last ROLLOUT; changes 0: none yet */
    uint64_t pushed_changes, push_us;
    urgent_t pushed;
    uint64_t earlier_changes; /* WAITING: of the version before it, as ROLLOUT said it last */
};

struct adapter_rollout {
    struct rollout *ro;
    const adapter_row_t *row;
    track_t **tracks;
    size_t track_count, track_capacity; /* ascending by version */
    adapter_hold_t hold;                /* the present one */
    uint64_t due_us;                    /* when it is touched by time alone */
    bool is_touched;                    /* it is in the queue */
    adapter_rollout_t *prev, *next;     /* there */
};

typedef struct rollout {
    adapter_rollout_t **adapters;
    size_t adapter_count, adapter_capacity; /* ascending by name */
    uint64_t lease_us, seed, keep;
    plan_shape_t shape;   /* of plans */
    bool is_settled;      /* the grace after the start is over: decisions are made */
    uint64_t settled_us;  /* when it was; before: when the broker was started */
    size_t back_count;    /* before: the first ones of the roster, which are back */
    bool is_roster_short; /* one came back that is not in it: it came shortly before the broker ended */
    /* The queue of those of which something changed, or whose time has come.  They are looked at, decided and
     * reported to their publishers; the end of the turn empties it. */
    adapter_rollout_t *touched;
    /* No memory for a version, or for a worker that it waits for: no decision may be taken of this any
     * more, and the process must end (a restart knows all of it). */
    bool is_incomplete;
    uint64_t due_us; /* no adapter is due before, nor the end of settling */
    uint64_t walked; /* copies read by track_walk */
    costs_t costs;
} rollout_t;

void tracks_init(rollout_t *ro, uint64_t lease_us, uint64_t keep, plan_shape_t shape, uint64_t seed);
void tracks_fini(rollout_t *ro);

/* ---- tracks ---- */

/* NULL: no version of it was seen */
adapter_rollout_t *tracks_adapter(const rollout_t *ro, const char *name);
/* Puts it into the queue, if it is not there; takes it out. */
void tracks_touch(adapter_rollout_t *a);
void tracks_untouch(adapter_rollout_t *a);
/* Found or new; NULL: no memory. */
adapter_rollout_t *tracks_need_adapter(rollout_t *ro, const adapter_row_t *row);
/* The rows of its versions are about to go: their tracks go first. */
void tracks_forget(rollout_t *ro, const char *adapter);
/* NULL: forgotten or never */
track_t *track_of(const adapter_rollout_t *a, uint64_t version);
track_t *track_find(const rollout_t *ro, const char *adapter, uint64_t version);
/* The version that is being rolled out; NULL: none. */
track_t *track_staging(const adapter_rollout_t *a);
/* The one that begins after it; NULL: none. */
track_t *track_waiting(const adapter_rollout_t *a);
/* The newest version that counts for a comparison of bytes: on its way, or committed and some process has the
 * bytes.  NULL: none. */
const version_row_t *track_newest_live(const rollout_t *ro, const adapter_row_t *a);
/* While it settles: the version of these bytes that may or may not turn out to be the newest live one, by
 * what comes back.  Its own bytes are not back, or they are and those of a newer one are not.  NULL: none; it
 * is known. */
const version_row_t *track_uncertain(const rollout_t *ro, const adapter_row_t *a, const digest_t *digest);
/* Copy number i in a walk over all copies of a version.  A message of one worker must not begin such a walk,
 * since as many come as there are copies; so the copies that walks read are counted. */
static inline copy_row_t *track_walk(const track_t *t, size_t i)
{
    t->of->ro->walked++;
    return t->copies[i];
}
/* Found or new, with its adapter; NULL: no memory. */
track_t *track_add(rollout_t *ro, const adapter_row_t *row, uint64_t version, uint64_t now_us);
/* Every subscriber gets a copy, and unless it drains becomes eligible: the rollout waits for it.  False: no
 * memory, and the rollout is incomplete. */
bool track_expect(track_t *t, const membership_t *members);
/* The rollout of the version begins: track_expect, and a plan of sources for each worker.  False: as
 * there. */
bool track_begin(track_t *t, const membership_t *members);
/* Frees the ended tracks, except the latest ROLLOUT_ENDED_TRACKS.  Their publishers have the last ROLLOUT. */
void track_forget_ended(adapter_rollout_t *a);
/* Something changed: its adapter is queued for rollout_look_at_touched and rollout_decide_touched. */
void track_touch(track_t *t);
#define ROLLOUT_BYTES_US 250000ull /* a ROLLOUT for more bytes alone comes so long after the one before */
/* The same, and ROLLOUT would show it. */
void track_changed(track_t *t);
void track_sooner(track_t *t, uint64_t at_us); /* touched by then */
#define ROLLOUT_RETRY_US 250000ull /* between two looks at the FAILED copies of a version, at least */
/* A FAILED copy is to be announced again then.  What may be announced now is tried by the caller. */
void track_retry(track_t *t, uint64_t at_us, uint64_t now_us);
void track_set_publisher(track_t *t, uint64_t token, publisher_state_t state);
/* Where its publisher is, and in which region it has the version; region NULL: in none that is known. */
void track_offer(track_t *t, const member_t *publisher, const msg_region_t *region);
/* The worker of this copy is gone.  It is noted where the version was waiting for it. */
void track_note_gone(track_t *t, const copy_row_t *c, gone_how_t how, instant_t now);

bool track_is_ended(const track_t *t);
bool track_is_overtaken(const track_t *t);     /* it was decided, and another version is active by now */
bool track_is_served(const track_t *t);        /* the publisher has the bytes */
uint32_t track_holder_count(const track_t *t); /* workers; 0 when it ended; t may be NULL */
uint32_t track_active_count(const track_t *t); /* t may be NULL */
/* Fetched for it so far, by copies in flight too; t may be NULL. */
uint64_t track_moved_bytes(const track_t *t);
/* A holder, or a publisher that serves: a process that has all bytes; t may be NULL. */
bool track_is_whole(const track_t *t);
/* Or workers that may have them together. */
bool track_has_source(const track_t *t);
bool track_has_refused(const track_t *t); /* a worker could not switch; t may be NULL */

#endif
