/* SPDX-License-Identifier: Apache-2.0 */
/* worker/versions.h (PURE): what one worker does with the versions of one adapter.  state + event + now
 * -> actions.
 *
 * A version number stands for bytes, a decision number for a choice of the cluster.  What is fetched
 * follows ANNOUNCE; what is served follows decisions.
 *
 * Each version that the worker has to do with is one entry:
 *
 *   WAITING   announced, has no slot yet                  ARRIVED  verified; the application loads it
 *   COMING    it has a slot, and its bytes are brought    STAGED   verified and loaded
 *             into it (BRING); how far that is, is in     ACTIVE   served
 *             the intake (worker/intake.h)                KEPT     was active, may be again; or it is to go
 *                                                                back to, and came while another was active
 *
 * A version that is dropped has no entry.  Its slot is LEAVING as long as readers, sends or open receives use
 * the memory; that is a state of the slot, and each step is given what counts of it (versions_slots_t).
 *
 * State x event.  "-": refused or ignored, nothing changes; capitals: next state; L: absent, and its slot is
 * dropped; NF: NOT_FOUND; absent: the version has no entry.
 *
 *   event        absent   WAITING  COMING         ARRIVED   STAGED     ACTIVE     KEPT
 *   ANNOUNCE     WAITING  -(1)     -(1)           -(1)      say STAGED say ACTIVE say STAGED
 *   ARRIVED      -        -        (3)            -         -          -          -
 *   BRING_FAILED -        -        NACK, L(2)     -         -          -          -
 *   APP_STAGED   NF       NF       NF             STAGED(3) ok         ok         ok
 *   APP_ACTIVATE NF       NF       NF             NF        ACTIVE(4)  ok(4)      ACTIVE(4)
 *   APP_REJECT   NF       NF       NF             NACK, L   NACK(5)    NF(5)      NACK(5)
 *   COMMIT       remember remember remember       remember  apply(4)   apply(4)   apply(4)
 *   ABORT        -        absent   L              L         L          -          -
 *   RETIRE       -        absent   L              L         L          mark(6)    L
 *   UP, not kept -        -        -              L         L          mark(6)    L
 *   SOURCES      -        -        (7)            -         -          -          -
 *   HOLDABLE     -        -        WAITING(8)     -         -          -          -
 *   DAMAGED      -        -        -              mark      NACK, L(9) mark(6)    NACK, L(9)
 *   DRAINED      a slot that was dropped is free: the next WAITING one starts
 *
 * *Chosen*: a decision that is not applied yet chose the version, and no later decision stepped back below
 * it. Where the application received COMMIT it stays chosen: the application may have switched.  ABORT
 * leaves a chosen version alone, and UP the one that it names.  RETIRE does not: the broker retires nothing
 * that its latest decision chose.
 *
 * *Starved*: by the last list no process has its bytes.  *Firm*: chosen and not starved, so nothing preempts
 * it.  *Barred*: it waits for its former slot, which is leaving.  *Overtaken*: a decision for a later version
 * is known.
 *
 *   (1) Announced again: the deadline is taken anew, and another digest than before is refused (NACK
 *       digest_mismatch).  Which version is fetched:
 *         - One at a time is COMING, so that it has the whole bandwidth: the chosen one, else the one that
 *           was announced last.
 *         - A later announcement preempts a fetch.  What was preempted waits again, until ABORT, RETIRE, or a
 *           decision for a later version.
 *         - A chosen version that has a source is not preempted: it is finished, so that a worker slower than
 *           its trainer still gets somewhere.
 *         - The first version of a process that joined during a rollout (its announcement has no deadline) is
 *           dropped for a decision that names a later announced version, until half of its bytes are there.
 *         - While the session is DOWN nothing is preempted: only UP says what is chosen.
 *   (2) A WAITING version fails too, with no_slot, when no slot came free for VERSIONS_SLOT_WAIT_US (or a
 *       quarter of the deadline).  A version that is chosen or has no deadline waits on, and is tried again.
 *   (3) Application: ARRIVED, TELL_APP arrived; STAGED when it says so.  AUTO: STAGED at once.  STAGED is
 *       said; then, if the version is chosen, as COMMIT.  One that was announced as kept, and is not chosen,
 *       is KEPT instead of STAGED: no version that waits takes its slot, but by RETIRE.
 *   (4) The switch:
 *         - AUTO: FLIP, say ACTIVE.  Application: TELL_APP commit, and FLIP when it says activate.
 *         - Chosen again while it is active: say ACTIVE alone.  An application that was asked to switch to
 *           another meanwhile, or refused, is asked to switch back first, also by an UP that decides nothing
 *           later.
 *         - APP_ACTIVATE of a version that is not chosen: NOT_FOUND (ACTIVE: ok), or FENCED where the lease
 *           lapsed meanwhile.
 *   (5) Refused by the application:
 *         - chosen: NACK with the decision, it stays where it was, TELL_APP stale;
 *         - the ACTIVE one that it was asked to go back to: the same, with the decision that was applied;
 *         - not chosen: STAGED: NACK, L; KEPT, ACTIVE: NOT_FOUND.
 *   (6) Goes on being served; dropped, and not KEPT, when another becomes active; NACK then, if DAMAGED.
 *   (7) A version with an empty list of sources delays no other: a later announcement preempts it.  It is
 *       dropped if a decision for a later version is known and it is not chosen.
 *   (8) Another process of the host has the bytes in its memory, and the fetch gets nowhere: the version
 *       begins anew, in another slot, or in the same one once that is free.
 *   (9) Its bytes have gone bad in memory: nothing switches to them.  A chosen version is fetched anew; any
 *       other one is, if a later decision names it.
 *
 * COMMIT counts only if its decision is greater than all seen in this session and than the last applied
 * (I13).  An equal one that was applied is answered with ACTIVE again.
 *
 * DOWN: the session is not READY any more.  What was decided and not applied is forgotten, and only the UP
 * (WELCOME) that follows says what to serve.  Nothing is sent meanwhile: STAGED, ACTIVE and NACK of that time
 * are said after UP, unless the JOIN restated them (versions_restate).
 *
 * Loop thread only; its adapter owns it.  Calls fail only for events of the application. */
#ifndef WORKER_VERSIONS_H
#define WORKER_VERSIONS_H

#include "core/clock.h"
#include "core/limits.h"
#include "core/names.h"

#include <stdbool.h>

/* announced versions without a slot; the oldest is refused beyond */
#define VERSIONS_WAITING_MAX 4u
/* an announcement and a preempted fetch come on top */
#define VERSIONS_ENTRIES (LIMIT_SLOTS + VERSIONS_WAITING_MAX + 2u)
/* failures that are remembered: more than come together while the broker is away */
#define VERSIONS_NACKS 16u
/* of one step: UP may retire and drop every slot, and say every failure */
#define VERSIONS_ACTIONS_MAX (3u * LIMIT_SLOTS + VERSIONS_NACKS + 16u)
/* readers of a version that is leaving get so long before a version fails */
#define VERSIONS_SLOT_WAIT_US 1000000u
/* first pause before a version is tried again; doubles four times */
#define VERSIONS_RETRY_US 2000000u
#define VERSIONS_GRACE_US 5000000u /* past the deadline: the broker's ABORT got lost */

typedef enum {
    VERSIONS_ABSENT,
    VERSIONS_WAITING,
    VERSIONS_COMING,
    VERSIONS_ARRIVED,
    VERSIONS_STAGED,
    VERSIONS_ACTIVE,
    VERSIONS_KEPT,
    VERSIONS_STATE_COUNT
} versions_state_t;

typedef struct {
    versions_state_t state;
    int slot; /* its index; slots.h has its state; -1: none */
    uint64_t version;
    struct announced *what; /* its announcement: the entry's, until FORGET; not looked at here */
    digest_t digest;
    uint64_t decision;       /* the one that chose it; 0: none, or a later one stepped back below it */
    uint64_t asked_decision; /* decision of the last TELL_APP commit */
    uint64_t order;          /* of announcement */
    uint64_t since_us;       /* ARRIVED to KEPT: in this state; of the ACTIVE one, its decision was applied */
    uint64_t deadline_us;    /* by own clock, with grace; CLOCK_NEVER: none */
    uint64_t patience_us;    /* how long it may be blocked for a slot; CLOCK_NEVER: NO_SLOT was reported */
    uint64_t start_us;       /* not to be tried before */
    unsigned tries;
    versions_state_t restated; /* what the last JOIN said of it; ABSENT: nothing */
    bool retired;              /* ACTIVE and not to be kept */
    bool is_kept;              /* announced to be KEPT, and not to be switched to */
    bool is_damaged;           /* ARRIVED, ACTIVE: its bytes have gone bad in memory */
    bool starved;              /* COMING, or waits again: by the last list no process has its bytes */
} versions_entry_t;

/* The switch of the application to the version that it was last asked to switch to. */
typedef enum {
    SWITCH_DONE,   /* it serves that version, or was never asked */
    SWITCH_ASKED,  /* it may serve that one, or neither */
    SWITCH_REFUSED /* it cannot go back to the ACTIVE one; what it serves the broker knows from a NACK */
} versions_switch_t;

typedef struct {
    uint64_t decision, version;
    digest_t digest;
} decision_t;

/* What failed and why, also when the version has no entry any more. */
typedef struct {
    uint64_t order; /* 0: unused; the oldest makes room, one that was said before one that was
                     * not */
    uint64_t version, decision;
    bool pending; /* to be said after UP */
    /* Every slot was in use.  What occupies them only the adapter knows: it adds that to the error, once. */
    bool lacks_occupants;
    heddle_error_t error;
} versions_nack_t;

typedef struct versions {
    bool app, up;
    uint32_t slot_count; /* how many may be used; 0 before the first UP */
    versions_entry_t entries[VERSIONS_ENTRIES];
    decision_t applied; /* by which the ACTIVE one is served; decision 0: there is none */
    decision_t decided; /* the greatest seen */
    versions_switch_t switching;
    uint64_t switching_to; /* the version, unless the switch is DONE */
    uint64_t order;        /* of the last announcement */
    /* when the head of the waiting ones, which lacks a slot, fails; CLOCK_NEVER: it lacks none */
    uint64_t give_up_us;
    versions_nack_t nacks[VERSIONS_NACKS];
    uint64_t nack_order;                                  /* of the last one */
    uint64_t staged_count, activated_count, failed_count; /* so far; a version may fail more than once */
} versions_t;

typedef enum {
    VE_UP,
    VE_DOWN,
    VE_TICK,
    VE_ANNOUNCE,
    VE_COMMIT,
    VE_ABORT,
    VE_RETIRE,
    VE_SOURCES,
    VE_HOLDABLE,
    VE_ARRIVED,
    VE_BRING_FAILED,
    VE_DAMAGED,
    VE_DRAINED,
    VE_APP_STAGED,
    VE_APP_ACTIVATE,
    VE_APP_REJECT
} versions_event_kind_t;

typedef struct {
    versions_event_kind_t kind;
    uint64_t version;
    struct announced *what; /* ANNOUNCE; from then on the entry's */
    digest_t digest;        /* ANNOUNCE, COMMIT, UP */
    uint64_t decision;      /* COMMIT; UP: 0 = nothing was decided yet */
    uint64_t deadline_us;   /* ANNOUNCE: left of the rollout's; 0: none */
    bool is_kept;           /* ANNOUNCE: another version is active, and this one is to go back to */
    /* BRING_FAILED, ABORT, APP_REJECT: why; borrowed */
    const heddle_error_t *error;
    uint32_t slot_count;   /* UP */
    uint32_t source_count; /* SOURCES: how many are in the list */
    const uint64_t *keep;
    uint32_t keep_count; /* UP: versions that may stay */
} versions_event_t;

typedef enum {
    VA_BRING, /* bring the bytes into `slot`; answer ARRIVED or BRING_FAILED, unless a DROP comes first */
    VA_SEND_STAGED,
    VA_SEND_ACTIVE,
    VA_SEND_NACK, /* versions_nack has the reason */
    VA_TELL_APP,  /* an event for the application: `event`; FAILED and STALE: `err` */
    VA_FLIP,      /* `slot` becomes the active one; the one before stays, or a DROP follows */
    VA_DROP,      /* stop fetching into `slot`, and give it back when readers, sends and asks are done;
                   * answer DRAINED, unless it never had memory */
    VA_FORGET     /* `what` is the adapter's again: its entry is gone */
} versions_action_kind_t;

typedef struct {
    versions_action_kind_t kind;
    uint64_t version, decision;
    struct announced *what; /* of that version; NULL: it has no entry */
    int slot;
    int event, err;            /* TELL_APP: heddle_event_type_t; heddle_err_t, 0: none */
    const heddle_error_t *why; /* TELL_APP: of an ABORT, borrowed from the event; NULL: a
                                * failure of this worker, which versions_nack has */
    digest_t digest;
} versions_action_t;

/* The adapter's slots as they are now.  A version whose former slot is LEAVING waits: its share key is in
 * use. */
typedef struct {
    int next;             /* is reserved next, as slots_next_free says; -1: none */
    bool is_half_fetched; /* at least half of the bytes of the version that is COMING have arrived */
    uint32_t leaving_count;
    uint64_t leaving[LIMIT_SLOTS]; /* versions */
} versions_slots_t;

void versions_init(versions_t *s, bool app);
/* Writes at most VERSIONS_ACTIONS_MAX actions; returns how many, or for events of the application NOT_FOUND
 * or FENCED. */
int versions_step(versions_t *s, const versions_event_t *event, const versions_slots_t *slots,
                  uint64_t now_us, versions_action_t out[]);
uint64_t versions_deadline(const versions_t *s); /* when VE_TICK is due; CLOCK_NEVER */

/* The entry of a version; NULL: absent. */
const versions_entry_t *versions_find(const versions_t *s, uint64_t version);
const versions_entry_t *versions_active(const versions_t *s);
uint32_t versions_count(const versions_t *s, versions_state_t state); /* entries in it */
/* How many decided versions the ACTIVE one is behind: the number of later decisions, or the difference of the
 * version numbers where that is less.  Of decisions that did not come here, only the number is known, and a
 * decision may skip versions, or go back.  0: it is the one that was decided last, as far as is known here;
 * 1: none is ACTIVE. */
uint64_t versions_lag(const versions_t *s);
/* The one that is COMING; NULL: none. */
const versions_entry_t *versions_coming(const versions_t *s);
/* ARRIVED: the application loads it, and has not answered; the one that was announced first.  NULL: none. */
const versions_entry_t *versions_loading(const versions_t *s);
/* The version that waits for its former slot, which is LEAVING; of several the one that starts first.  NULL:
 * none. */
const versions_entry_t *versions_barred(const versions_t *s, const versions_slots_t *slots);
/* A version waits, and every slot is used. */
bool versions_lacks_slot(const versions_t *s, const versions_slots_t *slots);
/* The failure that a SEND_NACK is about, or the last one of a version (decision VERSIONS_ANY_DECISION); NULL:
 * forgotten.  A caller that could not send it sets `pending`: it is sent after the next UP. */
#define VERSIONS_ANY_DECISION UINT64_MAX
versions_nack_t *versions_nack(versions_t *s, uint64_t version, uint64_t decision);
/* For JOIN: marks what is held as said. */
void versions_restate(versions_t *s);
static inline bool versions_is_here(const versions_entry_t *e)
{
    return e->state >= VERSIONS_ARRIVED && e->state <= VERSIONS_KEPT;
}
/* A decision that is not applied yet chose this version, and no later decision stepped back below it. */
static inline bool versions_is_chosen(const versions_t *s, const versions_entry_t *e)
{
    return e->decision > s->applied.decision;
}

#endif
