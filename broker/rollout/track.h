/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/track.h (PURE): the soft state of versions: a track is one version, a copy is one version
 * on one worker.
 *
 *   copy state      event                        -> next        notes
 *   (none)          the rollout begins, or wakes -> ANNOUNCED   WAITING without a source; eligible when
 * READY
 *                                                               at the announcement
 *   WAITING         a source is there            -> ANNOUNCED
 *   ANNOUNCED       heartbeat with progress      -> FETCHING, ARRIVED (all bytes are there)
 *   in flight       the worker turned to another -> WAITING     of a version that is overtaken
 *   in flight       STAGED, digest equal         -> STAGED      or COMMITTED + COMMIT of the decided one
 *   in flight       NACK, digest differs         -> FAILED      in flight: NONE to ARRIVED
 *   STAGED KEPT     DECISION names the version   -> COMMITTED
 *   COMMITTED       ACTIVE                       -> ACTIVE      the one that was active there -> KEPT
 *   COMMITTED       another version is decided   -> KEPT        it may still switch to it
 *   COMMITTED       NACK                         -> REFUSED     no other worker is turned back
 *   REFUSED         DECISION names the version   -> COMMITTED
 *   any, eligible   the worker is lost or leaves -> GONE        the others are dropped
 *   any             the worker joins again       -> by what it restates
 *
 * A copy changes through the functions below alone: they keep the tally of its track (tally.h), the plan of
 * its sources (plan.h) and the generation, which a publisher's ROLLOUT follows.
 *
 * adapter_rollout_t owns the tracks of one adapter and points to the adapter's registry row; a track points
 * to its version's row.  Both rows outlive it, but for a version that is forgotten: RECORD_FORGET clears
 * the pointer (rollout_apply).  One thread, nothing blocks. */
#ifndef BROKER_TRACK_H
#define BROKER_TRACK_H

#include "broker/membership.h"
#include "broker/registry/registry.h"
#include "broker/rollout/plan.h"
#include "broker/rollout/tally.h"
#include "core/limits.h"

#define ROLLOUT_ENDED_TRACKS 8u /* of an adapter, kept to show how they ended */
#define COPY_LOST_MAX 16u
#define COPY_MESSAGE_BYTES 768u /* as in heddle_error_t: longer ones are cut */

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
    bool has_reached;        /* it served this version's latest decision, or a later one for a later
                              * version; stays when a decision goes back behind it */
    bool is_owed;            /* ANNOUNCED FETCHING ARRIVED: ANNOUNCE is to be sent again, for want
                              * of a source, or because a newer version was announced meanwhile */
    bool is_spare;           /* KEPT: no reader holds it, and its slot is wanted (last heartbeat) */
    bool is_trouble_said;    /* the event that no byte comes: once, however often that passes */
    group_t *group;
    uint32_t rank;     /* as in JOIN; NULL: none */
    uint64_t since_ms; /* in this state */
    uint64_t bytes_done;
    uint64_t told_us;       /* when ANNOUNCE was sent last; 0: not to this session, or the worker
                             * turned to another version since */
    uint64_t first_told_us; /* the same of the first ANNOUNCE to this process; 0: none yet */
    uint64_t begun_us;      /* since when no other version is fetched before it; 0: not yet */
    uint64_t behind;        /* the version that was; 0: none */
    bool is_resumed;        /* an earlier session of this process had brought bytes */
    uint64_t moved_us;      /* ANNOUNCED FETCHING ARRIVED: when it was told, or more bytes came */
    uint64_t switch_us;     /* when COMMIT was sent, or STAGED came after it; 0: it was not sent */
    uint64_t retry_us;      /* FAILED, of the active version: when to announce again; 0: never */
    uint32_t failed_count;
    /* durations; 0: not yet.  All but verify_us, which is within fetch_us, are disjoint */
    uint64_t announce_us, queued_us, connect_us, fetch_us, verify_us, stage_us, activate_us;
    /* sources that it lost, an event for each; beyond COPY_LOST_MAX none */
    uint64_t lost[COPY_LOST_MAX];
    uint32_t lost_count;
    copy_served_t *served;
    uint32_t served_count; /* bytes by source, as STAGED reported */
    /* REFUSED FAILED GONE: why; in flight: why no byte comes, as the last heartbeat had it */
    int code;
    char phase[16];
    char *message; /* owned; NULL: nothing is said (copy_message) */
} copy_row_t;

typedef enum {
    TRACK_WAITING, /* staging, behind another version of the adapter */
    TRACK_BEGUN,   /* announced; or decided */
    TRACK_STAGED   /* the event version.staged was said */
} track_phase_t;

/* The session that published the version, or restated that it serves it: it gets ROLLOUT. */
typedef enum {
    PUBLISHER_NONE,     /* none since the broker was started */
    PUBLISHER_SERVES,   /* has the bytes */
    PUBLISHER_RELEASED, /* RELEASE was sent: has them until it publishes again */
    PUBLISHER_WITHOUT,  /* has them no more */
    PUBLISHER_LOST,     /* the session ended */
    PUBLISHER_LEFT      /* the session ended with LEAVE: it will not come back with them */
} publisher_state_t;

typedef enum {
    BYTES_THERE,   /* a worker has them, or the publisher serves them */
    BYTES_MISSING, /* since sourceless_us */
    BYTES_LOADING, /* missing, committed, and the worker last_holder is loading them */
    BYTES_LOST     /* missing, committed or staged before: said, and over when a holder
                    * comes back */
} bytes_state_t;

/* The most that had the bytes at one time, there or not any more.  After a start it is known again when a
 * worker restates them, and where the registry has the loss of the version,
 * or that it was staged. */
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
} hold_t; /* version 0: none; until_ms 0: it lasts */

struct adapter_rollout;
typedef struct track {
    struct adapter_rollout *of;
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
    publisher_state_t publisher_state;
    uint64_t publisher;        /* token; 0 in NONE LOST LEFT */
    uint64_t former_publisher; /* its token, when it is gone */
    bool is_restored;          /* while settling: loaded at the start; ROLLOUT comes later */
    bool is_late;              /* the deadline has passed */
    bool has_knocked;          /* while read-only: its publisher came back and could not be let in */
    bool is_dirty;             /* something changed: to be looked at, and told */
    uint64_t created_us, deadline_us;
    uint64_t due_us; /* when it is to be looked at by time alone */
    /* overtaken, and a worker fetches it, or loads or switches to it, so long at least; 0: none */
    uint64_t awaited_until_us, loaded_until_us;
    uint64_t sourceless_us; /* but in THERE: since when */
    /* which process had the bytes last, and until when; "", 0: none since the broker was started */
    char last_holder[HEDDLE_NAME_MAX + 1];
    uint64_t lost_ms;
    /* the last LIMIT_GONE of them, as a ring: number i is at i % LIMIT_GONE */
    gone_row_t gone[LIMIT_GONE];
    uint32_t gone_count;
    hold_t hold;          /* the last one that ended while the version waited */
    uint64_t bytes_moved; /* reported in STAGED, in total */
    uint64_t generation;  /* grows with each change that ROLLOUT would show; never 0 */
    /* of the last ROLLOUT; generation 0: none yet */
    uint64_t pushed_generation, push_us;
    urgent_t pushed;
    uint64_t awaited_generation; /* WAITING: of the version before it, as ROLLOUT said it last */
} track_t;

typedef struct adapter_rollout {
    struct rollout *ro;
    const adapter_row_t *row;
    track_t **tracks;
    size_t track_count, track_capacity; /* ascending by version */
    hold_t hold;                        /* the present one */
    bool is_dirty;                      /* a track is */
    uint64_t due_us;                    /* the earliest of the tracks' */
} adapter_rollout_t;

typedef struct rollout {
    adapter_rollout_t **adapters;
    size_t adapter_count, adapter_capacity; /* ascending by name */
    uint64_t lease_us, seed, keep;
    bool is_settled;     /* the grace after the start is over: decisions are made */
    uint64_t settled_us; /* when it was; before: when the broker was started */
    bool is_dirty;       /* a track is */
    bool is_crowded;     /* more ended ones stayed than are kept: they were dirty */
    /* No memory for a version, or for a worker that it waits for: no decision may be taken of this any
     * more, and the process must end (a restart knows all of it). */
    bool is_incomplete;
    uint64_t due_us; /* the earliest of the adapters', and of settling */
} rollout_t;

void rollout_init(rollout_t *ro, uint64_t lease_us, uint64_t keep, uint64_t seed);
void rollout_fini(rollout_t *ro);

/* What is active for this worker: the version that the latest decision names, if its scope has the worker. */
uint64_t active_for(const adapter_row_t *a, const member_t *member);
/* The worker serves the active version, and reported so after that was chosen: an earlier report does not
 * count, because it may have been switching to another one since.  False where there is no active version
 * (a may be NULL: never published to). */
bool member_is_current(const adapter_row_t *a, const member_t *member, const member_sub_t *sub);

/* ---- tracks ---- */

/* NULL: no version of it was seen */
adapter_rollout_t *rollout_adapter(const rollout_t *ro, const char *name);
/* Found or new; NULL: no memory. */
adapter_rollout_t *rollout_need_adapter(rollout_t *ro, const adapter_row_t *row);
/* NULL: forgotten or never */
track_t *adapter_track(const adapter_rollout_t *a, uint64_t version);
track_t *rollout_track(const rollout_t *ro, const char *adapter, uint64_t version);
/* The version that is being rolled out; NULL: none. */
track_t *adapter_staging(const adapter_rollout_t *a);
/* The one that begins after it; NULL: none. */
track_t *adapter_waiting(const adapter_rollout_t *a);
/* Found or new, with its adapter; NULL: no memory. */
track_t *track_add(rollout_t *ro, const adapter_row_t *row, uint64_t version, uint64_t now_us);
/* Every READY subscriber becomes eligible: the rollout waits for it.  False: no memory, and the rollout is
 * incomplete. */
bool track_expect(track_t *t, const membership_t *members);
/* The rollout of the version begins: track_expect, and a plan of sources for each worker.  False: as
 * there. */
bool track_begin(track_t *t, const membership_t *members);
/* Frees the ended tracks whose publisher has the final ROLLOUT, except the latest ROLLOUT_ENDED_TRACKS. */
void track_forget_ended(adapter_rollout_t *a);
/* The track is looked at in the next rollout_tick. */
void track_touch(track_t *t);
/* The same, and ROLLOUT would show it. */
void track_changed(track_t *t);
void track_sooner(track_t *t, uint64_t at_us); /* looked at by then */
void track_set_publisher(track_t *t, uint64_t token, publisher_state_t state);
/* The worker of this copy is gone.  It is noted where the version was waiting for it. */
void track_note_gone(track_t *t, const copy_row_t *c, gone_how_t how, instant_t now);

bool track_is_ended(const track_t *t);
bool track_is_overtaken(const track_t *t); /* it was decided, and another version is active by now */
/* When it was first active, or ended without that; 0: it is on its way. */
uint64_t version_until_ms(const version_row_t *v);
bool track_is_served(const track_t *t);        /* the publisher has the bytes */
uint32_t track_holder_count(const track_t *t); /* workers; 0 when it ended; t may be NULL */
uint32_t track_active_count(const track_t *t); /* t may be NULL */
bool track_has_source(const track_t *t);       /* a holder, or a publisher that serves */
bool track_has_refused(const track_t *t);      /* a worker could not switch; t may be NULL */

/* ---- copies ---- */

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
/* The worker has staged it: how long that took, and from where the bytes came. */
void copy_staged(track_t *t, copy_row_t *c, const msg_staged_t *m, instant_t now);
void copy_blame(track_t *t, copy_row_t *c, int code, const char *phase, const char *message);
/* The worker has turned to another version: it fetches none of the overtaken ones any more, `but` that one
 * (0: none). */
void copies_left(const struct adapter_rollout *a, const member_t *member, uint64_t but, instant_t now);
/* The worker fetches this version: it has left the overtaken ones, and others that were announced to it, and
 * not begun, are behind it. */
void copies_wait_behind(const struct adapter_rollout *a, const member_t *member, uint64_t version,
                        instant_t now);
/* The worker has done with this version: those behind it begin. */
void copies_go_on(const struct adapter_rollout *a, const member_t *member, uint64_t version, uint64_t now_us);
/* The bytes are there: what is left of the time since the version's record goes to announcement and queue. */
void copy_timed(const track_t *t, copy_row_t *c, uint64_t now_us);
/* Why it is REFUSED, FAILED or GONE, or no byte comes; "": nothing is said. */
static inline const char *copy_message(const copy_row_t *c) { return c->message ? c->message : ""; }
/* there, and not yet staged or failed; c may be NULL in both */
bool copy_in_flight(const copy_row_t *c);
/* there, and sealed bytes: STAGED to REFUSED */
bool copy_holds(const copy_row_t *c);
/* ANNOUNCE was sent, and the copy is in flight: the worker may be fetching or loading it now. */
bool copy_is_told(const copy_row_t *c);
const char *copy_phase(const copy_row_t *c); /* announce fetch stage activate */

#endif
