/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/rollout.h (PURE): where each version is: its copies on workers, its sources, and when it is
 * decided.
 *
 * A track is the soft state of one version; a copy is one version on one worker:
 *
 *   copy state   event                        -> next        notes
 *   (none)       announce                     -> ANNOUNCED   eligible when READY at the announcement
 *   ANNOUNCED    heartbeat with progress      -> FETCHING, ARRIVED (all bytes are there)
 *   these        STAGED, digest equal         -> STAGED      or COMMITTED + COMMIT of the decided one
 *   these        NACK, digest differs         -> FAILED
 *   STAGED KEPT  DECISION names the version   -> COMMITTED
 *   COMMITTED    ACTIVE                       -> ACTIVE      the one that was active there -> KEPT
 *   COMMITTED    NACK                         -> FAILED      nobody else is turned back
 *   any          the worker is lost or leaves -> dropped: state stays, token 0, holds nothing
 *   any          the worker joins again       -> by what it restates
 *   (STALE is derived: ACTIVE, but the adapter's decision is a later one.)
 *
 * After a start, who was eligible is not known any more: those that are there when settling ends are.
 *
 * One version of an adapter is rolled out at a time.  A newer one waits for it while workers are on their
 * way to it, so that publications faster than the link do not starve activation: it begins when that one is
 * decided or has ended.  Of those that wait the newest stays.  Where nothing more comes of the one before
 * (nobody fetches it, or it is staged and waits for somebody's hand), it is superseded at once.
 *
 * Decided versions beyond `keep` are put away (rollout_keep.c), but for those that somebody serves, and
 * those that somebody still fetches, as far as there is room for them.
 *
 * A version is decided when not settling, not held, its policy is met and somebody staged it:
 *   all       every eligible copy that is still there is staged; one that fails fails the version
 *   as-ready  the first copy is staged       manual   never by itself
 * It fails at its deadline: `no_workers` when there was nobody to take it, else `deadline` naming who was
 * where (manual and held versions with a staged copy stay staged instead); and `version_lost` when it had
 * no source for a lease. A committed version without holder and publisher, and whose bytes nobody loads (for
 * longer than its deadline), is lost: derived, said once, and over when a holder comes back. Nothing here
 * blocks; one thread. */
#ifndef BROKER_ROLLOUT_H
#define BROKER_ROLLOUT_H

#include "broker/events.h"
#include "broker/membership.h"
#include "broker/rollout/planner.h"
#include "broker/registry/registry.h"

#define ROLLOUT_ENDED_TRACKS 8u        /* of an adapter, kept to show how they ended */
#define ROLLOUT_PUSH_US 20000ull       /* ROLLOUT messages that only count on are so far apart, at least */
#define ROLLOUT_CANDIDATES 64u         /* holders that the planner chooses from */

typedef enum { COPY_NONE, COPY_ANNOUNCED, COPY_FETCHING, COPY_ARRIVED, COPY_STAGED, COPY_COMMITTED,
               COPY_ACTIVE, COPY_KEPT, COPY_STALE, COPY_FAILED } copy_state_t;

#define COPY_LOST_MAX 16u

typedef struct { char name[HEDDLE_NAME_MAX + 1]; source_kind_t kind; uint64_t bytes; } copy_served_t;

typedef struct copy_row {
    char worker[HEDDLE_NAME_MAX + 1];
    uint64_t token;                    /* 0: the worker is gone */
    /* of its process: eligible it stays over a new session, not over a new process */
    key16_t life;
    copy_state_t state;
    bool is_eligible;
    bool is_spare;                     /* of the last heartbeat: no reader holds it, and its slot is wanted */
    bool has_reached;                  /* served this version's latest decision, or a later one for
                                        * a later version */
    uint64_t since_ms, bytes_done;
    uint64_t announced_us;             /* 0: not announced yet, nobody had the bytes */
    uint64_t told_us;                  /* of the last ANNOUNCE, while the worker may be at it; 0 */
    uint64_t switch_us;                /* of the last COMMIT, or STAGED after it; 0 */
    uint64_t moved_us;                 /* when it was told, or its bytes became more */
    /* durations; 0: not yet */
    uint64_t announce_us, connect_us, fetch_us, verify_us, stage_us, activate_us;
    uint64_t planned[PLANNER_SOURCES]; /* tokens of the sources that were announced */
    /* sources that it lost, said once each; beyond, not at all */
    uint64_t lost[COPY_LOST_MAX]; uint32_t lost_count;
    bool is_trouble_said;              /* that no byte comes: once, however often it passes and returns */
    copy_served_t *served; uint32_t served_count;   /* who served how many bytes, as STAGED said */
    /* FAILED, of the active version: when it is announced again; 0: not */
    uint64_t retry_us;
    uint32_t failed_count;
    /* FAILED, or gone: why; on its way: why no byte comes, as it said last */
    int code;
    char phase[16], message[256];
} copy_row_t;

typedef struct track {
    char adapter[HEDDLE_NAME_MAX + 1];
    uint64_t version;
    copy_row_t **copies; size_t copy_count, copy_capacity;   /* ascending by worker */
    /* token of the session that published it, or restated that it serves it: gets ROLLOUT */
    uint64_t publisher;
    uint64_t former_publisher;         /* its token, when it is gone */
    bool is_served;                    /* that session still has the bytes */
    /* loaded at the start: its publisher is told of it after settling, when its holders are known */
    bool is_restored;
    bool is_released;                  /* RELEASE was sent */
    bool is_lost;                      /* committed, and nobody has the bytes */
    bool is_late;                      /* the deadline has passed */
    bool is_ended;
    bool has_knocked;                  /* its publisher, and the disk refused to let it in */
    bool is_begun;                     /* it was announced; staging, and not begun: it waits for another */
    bool is_staged_said;               /* the event */
    bool is_dirty;                     /* something changed: to be looked at, and told */
    uint64_t created_us, deadline_us;
    uint64_t due_us;                   /* when it is to be looked at by time alone */
    /* overtaken, and somebody fetches it, or loads it or switches to it, so long at least; 0: nobody */
    uint64_t awaited_until_us, loaded_until_us;
    uint64_t sourceless_us;            /* since when nobody has the bytes; 0: somebody has */
    /* who had them last, and until when; "", 0: nobody since the broker was started */
    char last_holder[HEDDLE_NAME_MAX + 1]; uint64_t lost_ms;
    bool is_loaded_alone;              /* nobody holds it, and somebody loads it: last_holder */
    bool has_left;                     /* its publisher said LEAVE: it will not come back with them */
    uint64_t bytes_moved;              /* reported in STAGED, all told */
    /* signature and time of the last ROLLOUT (first: of the publication) */
    uint64_t pushed, push_us;
    uint64_t pushed_state;             /* what of the signature is told at once */
} track_t;

typedef struct rollout {
    track_t **tracks; size_t track_count, track_capacity;   /* ascending by adapter, version */
    uint64_t lease_us, seed, keep;
    uint64_t settle_end_us;            /* nothing is decided before */
    bool is_settled;                   /* that time has come */
    bool is_dirty;                     /* a track is */
    bool is_crowded;                   /* more ended ones stayed than are kept: they were dirty */
    /* No memory for a version, or for somebody whom it waits for: no decision may be taken of this any more,
     * and the process must end (a restart knows all of it). */
    bool is_incomplete;
    uint64_t due_us;                   /* the earliest of the tracks', and of settling */
} rollout_t;

/* What the functions below look at, together. */
typedef struct { const registry_t *registry; const membership_t *members; instant_t now; } view_t;

void rollout_init(rollout_t *ro, uint64_t lease_us, uint64_t keep, uint64_t seed);
void rollout_fini(rollout_t *ro);
bool rollout_is_settling(const rollout_t *ro, uint64_t now_us);
uint64_t rollout_settling_us(const rollout_t *ro, uint64_t now_us);   /* what is left of it; 0: it does not */

/* ---- reading ---- */
/* NULL: forgotten or never */
track_t *rollout_track(const rollout_t *ro, const char *adapter, uint64_t version);
copy_row_t *track_copy(const track_t *t, const char *worker);                         /* NULL: none */
/* The copy of this very session; t may be NULL.  NULL: none. */
copy_row_t *copy_of(const track_t *t, const member_t *member);
const char *copy_phase(const copy_row_t *c);               /* announce fetch stage activate */
/* there, and sealed bytes: STAGED COMMITTED ACTIVE KEPT */
bool copy_holds(const copy_row_t *c);
bool track_has_stale(const track_t *t);                    /* a worker here could not switch to it; NULL:
                                                            * no */
uint32_t track_holder_count(const track_t *t);             /* workers; t may be NULL */
uint32_t track_active_count(const track_t *t);
bool track_has_source(const track_t *t);                   /* a holder, or a publisher that serves */
const char *copy_state_name(copy_state_t state);
/* The copy's state as people see it: STALE is derived here. */
copy_state_t copy_shown(const copy_row_t *c, const adapter_row_t *a, uint64_t version);
/* The same in a word; NULL: it had the bytes, and has them no more (the worker is gone, or the version
 * ended). */
const char *copy_shown_name(const track_t *t, const copy_row_t *c, const adapter_row_t *a);
/* "staging" "staged" "active" "kept" "superseded" "failed" "retired" "lost" */
const char *rollout_state(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);
/* Nothing but the hold keeps it from being active: it is staged, or was taken back. */
bool rollout_is_held(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v);

/* The newest version that is there to be taken for equal bytes: on its way, or committed and somebody has
 * them.  A lost one is not: nobody would get its bytes from there.  NULL: none. */
const version_row_t *rollout_newest_live(const rollout_t *ro, const adapter_row_t *a);
/* While it settles: the version of these bytes that would be the newest live one or not, by who comes back
 * yet: its own bytes are not back, or it is and those of a newer one are not.  NULL: none; it is known. */
const version_row_t *rollout_awaited(const rollout_t *ro, const adapter_row_t *a, const digest_t *digest);

typedef struct { const char *worker, *phase; int code; char message[256]; } missing_row_t;
typedef struct {
    const char *state;
    uint64_t decision, activation, deadline_ms;
    /* eligible: still there; staged, active: of those (of all, with none eligible) */
    uint32_t eligible, staged, active;
    /* why it failed; HELD when only the hold keeps it from being active; 0 */
    int code;
    uint32_t missing_count;                /* all of them; at most `cap` rows were written */
} rollout_sum_t;
rollout_sum_t rollout_sum(const rollout_t *ro, const adapter_row_t *a, const version_row_t *v,
                          missing_row_t *rows, uint32_t cap);
/* The error object of a lost version: who had its bytes last, and until when. */
void rollout_lost_reason(const track_t *t, heddle_error_t *ret_error);
/* Who serves a version to a process that is no member, in the order to be tried; `asker`: any number, which
 * spreads several of them.  Nothing is remembered of it.  Returns how many: 0, nobody has the bytes. */
uint32_t rollout_sources(const rollout_t *ro, const membership_t *members, const track_t *t, uint64_t asker,
                         msg_source_t ret_sources[PLANNER_SOURCES]);
/* The hold, told to people: "policy is held at policy@2 by ann since 2026-...", and whether that version is
 * lost. */
void rollout_held_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size);
/* The track of the active version, where that is lost: no worker can serve what was decided; NULL. */
const track_t *rollout_lost_active(const rollout_t *ro, const adapter_row_t *a);
/* That, told to people, and what to do about it; ROLLOUT_TEXT has room for the longest names. */
#define ROLLOUT_TEXT 768u
void rollout_lost_text(const rollout_t *ro, const adapter_row_t *a, char *ret_text, size_t size);

/* ---- soft steps: what members said.  Each may add sends (to be let go at once) and events. ---- */

/* Start-up: a track for each live version that was loaded. NO_MEMORY. */
int  rollout_start(rollout_t *ro, view_t v, uint64_t settle_end_us);
/* A worker was admitted: takes what it restated (only bytes that equal the registry's), fills the
 * WELCOME's decisions and keep list (arrays in `arena`).  Announcing is rollout_wake's, after WELCOME was
 * queued.  NO_MEMORY. */
int  rollout_joined(rollout_t *ro, view_t v, member_t *member, const msg_join_t *join, arena_t *arena,
                    msg_welcome_t *welcome);
/* Sends a worker what it lacks: ANNOUNCE of the active or the newest version, COMMIT. */
void rollout_wake(rollout_t *ro, view_t v, member_t *member, events_t *ev, outbox_t *out);
/* A publisher was admitted; `served`: the versions whose regions it still has. */
void rollout_opened(rollout_t *ro, view_t v, const member_t *publisher, const uint64_t *served,
                    uint32_t count);
/* The writer published again what is there as `version`.  A version that is wanted has one more source: the
 * writer got its share key.  ROLLOUT tells the writer where the version is, and each time that changes. */
void rollout_republished(rollout_t *ro, view_t v, const member_t *publisher, uint64_t version,
                         outbox_t *out);
void rollout_gone(rollout_t *ro, view_t v, const member_t *member, bool left);
void rollout_progress(rollout_t *ro, view_t v, const member_t *member, const msg_heartbeat_t *hb,
                      events_t *ev);
int  rollout_staged(rollout_t *ro, view_t v, member_t *member, const msg_staged_t *m, events_t *ev,
                    outbox_t *out, heddle_error_t *error);
int  rollout_active(rollout_t *ro, view_t v, member_t *member, const msg_active_t *m, events_t *ev,
                    outbox_t *out, heddle_error_t *error);
int  rollout_nack(rollout_t *ro, view_t v, member_t *member, const msg_nack_t *m, events_t *ev,
                  outbox_t *out, heddle_error_t *error);
int  rollout_need_sources(rollout_t *ro, view_t v, member_t *member, const msg_need_sources_t *m,
                          events_t *ev, outbox_t *out, heddle_error_t *error);

/* ---- deciding ---- */

/* Soft consequences of what was said and of time: deadlines that passed, versions that are lost or found,
 * sources for those who wait for one.  Costs nothing when nothing changed.  To be called before
 * rollout_decide. */
void rollout_tick(rollout_t *ro, view_t v, events_t *ev, outbox_t *out);
/* Looks at what changed: DECISION, STATE failed, STATE retired.  Sends follow in rollout_apply.  Call
 * again after each apply until it adds no record. */
void rollout_decide(const rollout_t *ro, view_t v, outbox_t *out);
/* Everything is to be looked at again: a commit had failed. */
void rollout_stir(rollout_t *ro);
/* Their publisher came back, with their bytes, and could not be let in: the disk refused.  When it takes
 * records again they have a lease for it to come once more. */
void rollout_knocked(rollout_t *ro, const char *adapter, const uint64_t *served, uint32_t count);
void rollout_resume(rollout_t *ro, uint64_t now_us);
/* A record was committed and applied to the registry, which `v` shows.  All that follows from it for the
 * rollout follows here: ANNOUNCE, COMMIT, ABORT and RETIRE are sent, copies change their states, events are
 * added.  A new version gets its track, with the session of the adapter's writer as its publisher.
 * `was_held`: the adapter was held before the record.  Without memory the rollout is incomplete. */
void rollout_apply(rollout_t *ro, view_t v, const record_t *record, bool was_held, events_t *ev,
                   outbox_t *out);
/* Last in a turn: RELEASE and ROLLOUT to publishers that have something new (at most one of each a
 * version). */
void rollout_flush(rollout_t *ro, view_t v, events_t *ev, outbox_t *out);
/* Where a version is, to the session that asked again for it. */
void rollout_tell(const rollout_t *ro, view_t v, const char *adapter, uint64_t version,
                  const member_t *publisher, outbox_t *out);
uint64_t rollout_deadline(const rollout_t *ro);

#endif
