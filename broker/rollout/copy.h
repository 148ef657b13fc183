/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/copy.h (PURE): a copy is one version on one worker.
 *
 *   state           event                        -> next        notes
 *   (none)          the rollout begins, or wakes -> ANNOUNCED   WAITING without a source
 *   WAITING         a source is there            -> ANNOUNCED
 *   ANNOUNCED       heartbeat with progress      -> FETCHING, ARRIVED (all bytes are there)
 *   in flight       the worker turned to another -> WAITING     of a version that is overtaken, or that it
 *                                                              has gone past (ACTIVE of a later one)
 *   in flight       STAGED, digest equal         -> STAGED      or COMMITTED + COMMIT of the decided one
 *   in flight       NACK, digest differs         -> FAILED
 *   STAGED KEPT     DECISION names the version   -> COMMITTED
 *   COMMITTED       ACTIVE                       -> ACTIVE      the one that was active there -> KEPT
 *   COMMITTED       another version is decided   -> KEPT        it may still switch to it
 *   COMMITTED       NACK                         -> REFUSED     no other worker is turned back
 *   REFUSED         DECISION names the version   -> COMMITTED
 *   STAGED-REFUSED  NACK of its bytes            -> FAILED      they had gone bad in memory; fetched anew
 *   any, eligible   the worker is lost or leaves -> GONE        the others are dropped
 *   any             the worker joins again       -> by what it restates
 *   any, eligible   the worker drains            -> the same, and not eligible any more
 *
 * States from NONE to ARRIVED are in flight.  A copy is eligible if its worker was READY at the announcement:
 * the rollout waits for it.
 *
 * Other files only read a copy.  What happens to it is a function below, named after it: these keep the tally
 * of its track (tally.h), the plan of its sources (plan.h) and the changes, which a publisher's ROLLOUT
 * follows.
 *
 * *Owed*: ANNOUNCE is to be sent again, once there is a source.  *Scope* (record.h): the workers that a
 * decision is for; today all.
 *
 * A track (track.h) owns its copies.  The copy of a session and that session's row in the plan of the track
 * come and go together, and the row points to the copy.  So a copy is found by its worker's token (copy_of),
 * and by the name only where the session may have ended.  One thread, nothing blocks. */
#ifndef BROKER_COPY_H
#define BROKER_COPY_H

#include "broker/members/membership.h"
#include "broker/plan/plan.h"
#include "broker/rollout/tally.h"

#define COPY_LOST_MAX 16u
#define COPY_NAMED_MAX 16u
#define COPY_MESSAGE_BYTES 768u /* as in heddle_error_t: longer ones are cut */

typedef struct track track_t;
typedef struct adapter_rollout adapter_rollout_t;

typedef struct {
    char name[HEDDLE_NAME_MAX + 1];
    source_kind_t kind;
    uint64_t bytes;
    msg_moved_t moved;
} copy_served_t;

/* What the worker goes by now. */
typedef enum {
    ANNOUNCE_NONE, /* nothing was sent to this session, or the worker has turned to another version since */
    ANNOUNCE_OUT,  /* ANNOUNCE was sent: the worker may be fetching or loading the version */
    ANNOUNCE_OWED  /* the same, and ANNOUNCE is to be sent again: it has no source, or a newer version was
                    * announced meanwhile */
} announce_t;

/* The sources that this worker may report as bad or slow. */
typedef struct {
    uint64_t named[COPY_NAMED_MAX]; /* tokens that it was sent last; 0: none */
    uint32_t named_count;
    key16_t bad, slow; /* the process that it blamed first; zero: none */
} copy_word_t;

/* Why a copy is where it is; phase and message "": no trouble. */
typedef struct {
    int code;
    const char *phase, *message;
} copy_why_t;

typedef struct copy_row {
    char worker[HEDDLE_NAME_MAX + 1];
    uint64_t token; /* of the worker's session; 0 in GONE */
    key16_t life;   /* of its process: a new session of it stays eligible */
    group_t *group; /* NULL: none */
    uint32_t rank;  /* as in JOIN */

    copy_state_t state;
    copy_state_t last_state; /* GONE: the state before */
    announce_t announce;     /* in flight; else NONE */
    bool is_eligible;        /* the rollout waits for it */
    bool has_reached;        /* it has served this version, or a later one, since its latest decision */
    bool is_spare;           /* KEPT: no reader holds it, and its slot is wanted (last heartbeat) */
    uint64_t bad_ms;   /* it holds bytes that were found bad then: no source until it has them anew; 0: not */
    tallied_t counted; /* as what its track's tally has it */
    /* REFUSED FAILED GONE: why; in flight: why no byte comes, as the last heartbeat had it */
    int code;
    char phase[16];
    char *message; /* owned; NULL: none (copy_message) */

    /* when something happened to it; 0: it has not happened */
    uint64_t from_us;       /* of the version's record, or of its process's joining where that came later */
    uint64_t since_ms;      /* in this state; 0: since before this session, whose JOIN did not say */
    uint64_t sent_us;       /* ANNOUNCE was sent last; 0: not to this session, or the worker turned to another
                             * version since */
    uint64_t first_sent_us; /* the same of the first ANNOUNCE to this process; 0: none yet */
    uint64_t begun_us;      /* no other version is fetched before it any more; 0: not yet */
    uint64_t moved_us;      /* ANNOUNCED FETCHING ARRIVED: it was announced, or more bytes came */
    uint64_t received_us;   /* the last heartbeat of its fetch; 0: none */
    uint64_t cut_off_us;    /* it lost its last source, as its worker reported; 0: it has one, as far as is
                             * known */
    uint64_t switch_us;     /* COMMIT was sent, or STAGED came after it; 0: it was not sent */
    uint64_t retry_us;      /* FAILED, of the active version: is to be announced again; 0: never */
    /* durations of its phases, in their order; 0: not yet.  They are disjoint, but for verify_us, which is
     * within fetch_us, and busy_us, which is within wait_us: that is in none of the others, until the bytes
     * were loaded */
    uint64_t announce_us, queued_us, wait_us, connect_us, fetch_us, verify_us, busy_us, stage_us, activate_us;

    /* its fetch */
    uint64_t bytes_done;
    uint64_t behind;    /* the version that was fetched before it; 0: none */
    uint64_t waits_for; /* WAITING ANNOUNCED: the worker that fetches it for their host, by its token, as it
                         * was when the copy was to be announced; 0: none */
    uint64_t busy_with; /* ARRIVED: its application switches to this version first; 0: it may be loading */
    uint64_t free_ms;   /* ARRIVED: when it had switched; 0: it was not busy with a switch */
    bool is_connected;  /* a source answered, as a heartbeat of its fetch reported */
    bool is_resumed;    /* an earlier session of this process brought bytes, or may have */
    bool is_former;     /* its worker fetched it before the broker's start, from sources that this broker did
                         * not name */
    bool is_trouble_said; /* the event that no byte comes was added: once for a copy */
    bool is_missed;       /* a worker that fetched from this one could not go on, as it reported */
    uint32_t failed_count;
    uint64_t lost[COPY_LOST_MAX]; /* sources, an event for each; beyond COPY_LOST_MAX none */
    uint32_t lost_count;
    copy_word_t word;
    /* as STAGED reported, or JOIN restated; ARRIVED: as the last heartbeat did */
    msg_region_t region;
    verified_where_t verified;
    bool holds_region; /* it is another process's of its host */
    copy_served_t *served;
    uint32_t served_count; /* by source, as STAGED reported */
} copy_row_t;

/* What a process fetched for the version whose row is gone, or another one's by now: it was started again,
 * has left, or has dropped the version.  It belongs to the version, like the fetches of those that are
 * there. */
typedef struct {
    char worker[HEDDLE_NAME_MAX + 1];
    key16_t life;
    bool held_region;
    uint64_t fetch_us;
    copy_served_t *served; /* owned */
    uint32_t served_count;
} former_row_t;

/* NULL: none */
copy_row_t *copy_find(const track_t *t, const char *worker);
/* The copy of this very session; NULL: none.  t may be NULL. */
copy_row_t *copy_of(const track_t *t, const member_t *member);
/* The member's copy, found or new; NULL: no memory.  A row of another session of that name is made anew,
 * and stays eligible where the process is the same. */
copy_row_t *copy_add(track_t *t, const member_t *member);
void copy_drop(track_t *t, const char *worker);
/* Frees the row; its track counts it no more. */
void copy_free(copy_row_t *c);
void copy_free_group(group_t *g);

/* Bytes a second of a member's fetch: of late, else since it began; 0: not known. */
uint64_t copy_rate(const copy_row_t *c, const member_t *member, const member_sub_t *sub);
/* The name of the worker that it waits for, or waited for. */
const char *copy_awaited(const track_t *t, const copy_row_t *c);
/* The copy of a worker that this one is to be fetched from first, if that fetches an older version first;
 * NULL: none does. */
const copy_row_t *copy_queued_source(const track_t *t, const copy_row_t *c, const membership_t *members);

/* ---- what happened to a copy ---- */

void copy_expected(track_t *t, copy_row_t *c); /* it is eligible from now on */
void copy_excused(track_t *t, copy_row_t *c);  /* it is not eligible any more: its worker drains */
void copy_announced(track_t *t, copy_row_t *c, instant_t now);
/* ANNOUNCE would have been sent if there were a source. */
void copy_not_announced(track_t *t, copy_row_t *c, instant_t now);
/* What was announced has to be announced again: no source of it is left. */
void copy_owe(track_t *t, copy_row_t *c);
/* The same: a newer version was announced, which the worker fetches first. */
void copy_put_off(track_t *t, copy_row_t *c);
/* The worker was sent these sources. */
void copy_named(copy_row_t *c, const msg_source_t *sources, uint32_t count);
/* JOIN says that the worker fetches it since before the broker's start, along these lists. */
void copy_fetched(track_t *t, copy_row_t *c, const plan_lists_t *lists, instant_t now);
/* The worker could not go on fetching from this session.  False: that was reported before. */
bool copy_lost_source(copy_row_t *c, uint64_t token);
/* Another worker could not go on fetching from this one. */
void copy_missed(copy_row_t *c);
/* Marks the copy as cut off if it has lost every source of its plan.  That ends when it is announced again,
 * or brings more bytes. */
void copy_looked_for_sources(track_t *t, copy_row_t *c, instant_t now);
/* The fetch has other sources, and its time begins again. */
void copy_begun_anew(copy_row_t *c, instant_t now);
/* A heartbeat names it as what the worker fetches.  True, once for a copy, however often the trouble comes
 * and goes: it reports that no byte comes. */
bool copy_progressed(track_t *t, copy_row_t *c, const msg_progress_t *p, instant_t now);
/* The worker has staged it: how long that took, and from where the bytes came. */
void copy_staged(track_t *t, copy_row_t *c, const msg_staged_t *m, instant_t now);
/* STAGED crossed the end of its version on the way.  All bytes were there, which the last heartbeat may not
 * have said yet.  c may be NULL. */
void copy_crossed_end(track_t *t, copy_row_t *c, instant_t now);
/* JOIN restates it, in a state that `state` stands for. */
void copy_restated(track_t *t, copy_row_t *c, const msg_held_t *held, copy_state_t state, instant_t now);
/* COMMIT was sent: a copy that has the bytes is COMMITTED, unless it is ACTIVE already. */
void copy_ordered(track_t *t, copy_row_t *c, instant_t now);
void copy_switched(track_t *t, copy_row_t *c, uint64_t activate_us, instant_t now);
void copy_reached(track_t *t, copy_row_t *c, bool has_reached);
/* The worker has it, and serves another or is to switch to another. */
void copy_kept(track_t *t, copy_row_t *c, instant_t now);
void copy_spared(track_t *t, copy_row_t *c, bool is_spare);
/* A verify found that the bytes in the worker's memory are not the version's.  c may be NULL, or not hold it:
 * nothing changes. */
void copy_found_bad(track_t *t, copy_row_t *c, instant_t now);
/* NACK of a fetch: how long the attempt took, of which all phases are known if the application refused bytes
 * that were whole. */
void copy_tried(track_t *t, copy_row_t *c, const msg_nack_t *m, instant_t now);
/* The worker could not fetch, verify or load it. */
void copy_failed(track_t *t, copy_row_t *c, copy_why_t why, instant_t now);
/* Where it failed for want of a slot, it may be announced again from now on.  False: it did not. */
bool copy_try_again(track_t *t, copy_row_t *c, uint64_t now_us);
/* Its application could not switch to it. */
void copy_refused(track_t *t, copy_row_t *c, copy_why_t why, instant_t now);
/* The worker's session ended, and the rollout waits for it. */
void copy_gone(track_t *t, copy_row_t *c, int code, const char *message);
/* A new session of the same process goes on with the fetch of its former session, `before`.  The last
 * reported progress counts until the next heartbeat: the new session has reported nothing yet, and must not
 * look like one that has stopped.  NULL: no memory. */
copy_row_t *copy_fetched_on(track_t *t, const copy_row_t *before, const member_t *member, instant_t now);
/* The worker serves a later version, and fetches this one no more.  c may be NULL, or not in flight: nothing
 * changes. */
void copy_turned_away(track_t *t, copy_row_t *c, instant_t now);
/* The worker has turned to another version: it fetches none of the overtaken ones any more, `but` that one
 * (0: none). */
void copies_turned_away(const adapter_rollout_t *a, const member_t *member, uint64_t but, instant_t now);
/* The worker fetches this version: it has left the overtaken ones, and others that were announced to it, and
 * not begun, are behind it. */
void copies_wait_behind(const adapter_rollout_t *a, const member_t *member, uint64_t version, instant_t now);
/* The member answered a switch, or reported progress: of the copies that have all bytes, which switch its
 * application is busy with instead of loading them. */
void copies_follow_switch(const adapter_rollout_t *a, const member_t *member, instant_t now);
/* The worker has finished this version: those behind it begin. */
void copies_go_on(const adapter_rollout_t *a, const member_t *member, uint64_t version, uint64_t now_us);

/* ---- reading ---- */

/* Why it is REFUSED, FAILED or GONE, or why no byte comes; "": not known. */
static inline const char *copy_message(const copy_row_t *c) { return c->message ? c->message : ""; }
/* there, and not yet staged or failed; c may be NULL in both */
bool copy_in_flight(const copy_row_t *c);
/* there, and sealed bytes: STAGED to REFUSED */
bool copy_holds(const copy_row_t *c);
/* ANNOUNCE was sent, owed again or not: the worker may be fetching or loading it now.  c may be NULL in
 * these three. */
bool copy_is_sent(const copy_row_t *c);
/* The same, and nothing is owed: the worker has all that it needs to go on. */
bool copy_is_out(const copy_row_t *c);
/* It fetches along a list, and may be sent another one unasked.  c may be NULL. */
bool copy_takes_list(const copy_row_t *c);
/* ANNOUNCE is to be sent as soon as there is a source: it never was, it is owed, or the time of a retry has
 * come. */
bool copy_needs_announce(const copy_row_t *c, uint64_t now_us);
static inline bool copy_is_switching(const copy_row_t *c) { return tallied_is_switching(&c->counted); }
/* Of the switches that the member was ordered to make and has not answered, the one that was ordered first:
 * that is what its application is busy with.  NULL: none, also where a has none of its copies. */
const copy_row_t *copies_first_switch(const adapter_rollout_t *a, const member_t *member,
                                      const track_t **ret_track);
/* For people: "announced" "fetching" "arrived" ...; "stale" where it is REFUSED. */
const char *copy_state_name(copy_state_t state);
const char *copy_phase(const copy_row_t *c); /* announce fetch stage activate */
#endif
