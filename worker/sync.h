/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sync.h (PURE): what one worker does with the versions of one adapter.  state + event + now
 * -> actions.
 *
 * A version number stands for bytes, a decision number for a choice of the cluster.  What is fetched
 * follows ANNOUNCE; what is served follows decisions.
 *
 * Each version that the worker has to do with is one entry:
 *
 *   WAITING   announced, has no slot yet                  ARRIVED  verified, offered to the application
 *   COMING    it has a slot: memory for it is made,       STAGED   verified and loaded
 *             then its bytes are fetched; how far that    ACTIVE   served
 *             is, is in the slot (worker/slots.h)         KEPT     was active, may be again
 *
 * A version that is dropped has no entry.  Its slot is LEAVING as long as readers, sends or open receives use
 * the memory; that is a state of the slot, and each step is given what counts of it (sync_slots_t).
 *
 * State x event.  "-": refused or ignored, nothing changes; capitals: next state; L: absent, and its slot is
 * dropped; NF: NOT_FOUND; absent: the version has no entry.
 *
 *   event        absent   WAITING  COMING         ARRIVED   STAGED     ACTIVE     KEPT
 *   ANNOUNCE     WAITING  -(1)     NEW_SOURCES(1) -(1)      say STAGED say ACTIVE say STAGED
 *   NOT_RESERVED -        -        NACK(2)        -         -          -          -
 *   FETCHED      -        -        (3)            -         -          -          -
 *   FETCH_FAILED -        -        NACK, L(2)     -         -          -          -
 *   APP_STAGED   NF       NF       NF             STAGED(3) ok         ok         ok
 *   APP_ACTIVATE NF       NF       NF             NF        ACTIVE(4)  ok(4)      ACTIVE(4)
 *   APP_REJECT   NF       NF       NF             NACK, L   NACK(5)    NF(5)      NACK(5)
 *   COMMIT       remember remember remember       remember  apply(4)   apply(4)   apply(4)
 *   ABORT        -        absent   L              L         L          -          -
 *   RETIRE       -        absent   L              L         L          mark(6)    L
 *   UP, not kept -        -        -              L         L          mark(6)    L
 *   SOURCES      -        -        (7)            -         -          -          -
 *   DRAINED      a slot that was dropped is free: the next WAITING one starts
 *
 * A version is *named* from its decision until that is applied, or until a later decision steps back below
 * it.  Where its COMMIT was offered already it stays named: the application may have switched.  ABORT leaves
 * a named version alone, and UP the one that it names; RETIRE does not: the broker retires nothing that its
 * latest decision chose.
 *
 *   (1) The deadline is taken anew; another digest than before is refused (NACK digest_mismatch).  One
 *       entry at a time is COMING, so that it has the whole bandwidth: the named one, else the one that was
 *       announced last.  A later announcement preempts a fetch unless its version is named and has a source:
 *       that one is finished, so that a worker slower than its trainer still gets somewhere.  What was
 *       preempted waits again, until ABORT, RETIRE, or a decision for a later version.  The first version of
 *       a process that joined during a rollout (its announcement has no deadline) is dropped for a decision
 *       that names a later announced version, until half of its bytes have arrived.  While the session is
 *       DOWN nothing is preempted: what is named only UP says.
 *   (2) A WAITING version also fails, with no_slot, when no slot came free for SYNC_SLOT_WAIT_US (or a
 *       quarter of the deadline).  A version that is named or has no deadline waits on, and is tried again.
 *   (3) Application: ARRIVED, OFFER arrived; STAGED when it says so.  AUTO: STAGED at once.  STAGED is
 *       said; then, if the version is named, as COMMIT.
 *   (4) AUTO: FLIP, say ACTIVE.  Application: OFFER commit, and FLIP when it says activate.  Named again
 *       while it is active: say ACTIVE alone; but an application that was asked to switch to another
 *       meanwhile, or refused, is asked to switch back first, also by an UP that decides nothing later.
 *       APP_ACTIVATE of a version that is not named: NOT_FOUND (ACTIVE: ok), or FENCED where the lease
 *       lapsed meanwhile.
 *   (5) Named: NACK with the decision, it stays where it was, OFFER stale; so too the ACTIVE one that the
 *       application was asked to go back to, with the decision that was applied.  Not named: STAGED: NACK, L;
 *       KEPT, ACTIVE: NOT_FOUND.
 *   (6) Goes on being served; dropped, and not KEPT, when another becomes active.
 *   (7) A version with an empty list of sources delays no other: a later announcement preempts it.  It is
 *       dropped if a decision for a later version is known and it is not named.
 *
 * COMMIT counts only if its decision is greater than all seen in this session and than the last
 * applied (I13); an equal one that was applied is answered with ACTIVE again.  DOWN (the session is
 * not READY any more): what was decided and not applied is forgotten; only the UP (WELCOME) that
 * follows says what to serve.  Nothing is sent meanwhile: STAGED, ACTIVE and NACK of that time are
 * said after UP unless the JOIN restated them (sync_restate).
 *
 * Loop thread only; its adapter owns it.  Calls fail only for events of the application. */
#ifndef WORKER_SYNC_H
#define WORKER_SYNC_H

#include "core/clock.h"
#include "core/limits.h"
#include "core/names.h"

#include <stdbool.h>

/* announced versions without a slot; the oldest is refused beyond */
#define SYNC_WAITING_MAX 4u
/* an announcement and a preempted fetch come on top */
#define SYNC_ENTRIES (LIMIT_SLOTS + SYNC_WAITING_MAX + 2u)
/* failures that are remembered: more than come together while the broker is away */
#define SYNC_NACKS 16u
/* of one step: UP may retire and drop every slot, and say every failure */
#define SYNC_ACTIONS_MAX (3u * LIMIT_SLOTS + SYNC_NACKS + 16u)
/* readers of a version that is leaving get so long before a version fails */
#define SYNC_SLOT_WAIT_US 1000000u
/* first pause before a version is tried again; doubles four times */
#define SYNC_RETRY_US 2000000u
#define SYNC_GRACE_US 5000000u /* past the deadline: the broker's ABORT got lost */

typedef enum {
    SYNC_ABSENT,
    SYNC_WAITING,
    SYNC_COMING,
    SYNC_ARRIVED,
    SYNC_STAGED,
    SYNC_ACTIVE,
    SYNC_KEPT,
    SYNC_STATE_COUNT
} sync_state_t;

typedef struct {
    sync_state_t state;
    int slot; /* its index; slots.h has its state; -1: none */
    uint64_t version;
    struct announced *what; /* its announcement: the entry's, until FORGET; not looked at here */
    digest_t digest;
    uint64_t decision;    /* the one that named it; 0: none, or a later one stepped back below it */
    uint64_t offered;     /* decision of the last OFFER commit */
    uint64_t order;       /* of announcement */
    uint64_t deadline_us; /* by own clock, with grace; CLOCK_NEVER: none */
    uint64_t patience_us; /* how long it may be blocked for a slot; CLOCK_NEVER: NO_SLOT was reported */
    uint64_t start_us;    /* not to be tried before */
    unsigned tries;
    sync_state_t restated; /* what the last JOIN said of it; ABSENT: nothing */
    bool retired;          /* ACTIVE and not to be kept */
    bool starved;          /* COMING, or waits again: by the last list no process has its bytes */
} sync_entry_t;

/* The switch of the application to the version that it was offered last with COMMIT. */
typedef enum {
    SWITCH_DONE,   /* it serves that version, or was never asked */
    SWITCH_ASKED,  /* it may serve that one, or neither */
    SWITCH_REFUSED /* it cannot go back to the ACTIVE one; what it serves the broker knows from a NACK */
} sync_switch_t;

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
} sync_nack_t;

typedef struct sync {
    bool app, up;
    uint32_t slot_count; /* how many may be used; 0 before the first UP */
    sync_entry_t entries[SYNC_ENTRIES];
    decision_t applied; /* decision 0: none */
    decision_t decided; /* the greatest seen */
    sync_switch_t switching;
    uint64_t asked; /* the version, unless the switch is DONE */
    uint64_t order; /* of the last announcement */
    /* when the head of the waiting ones, which lacks a slot, fails; CLOCK_NEVER: it lacks none */
    uint64_t give_up_us;
    sync_nack_t nacks[SYNC_NACKS];
    uint64_t nack_order; /* of the last one */
} sync_t;

typedef enum {
    SY_UP,
    SY_DOWN,
    SY_TICK,
    SY_ANNOUNCE,
    SY_COMMIT,
    SY_ABORT,
    SY_RETIRE,
    SY_SOURCES,
    SY_NOT_RESERVED,
    SY_FETCHED,
    SY_FETCH_FAILED,
    SY_DRAINED,
    SY_APP_STAGED,
    SY_APP_ACTIVATE,
    SY_APP_REJECT,
    SY_EVENT_COUNT
} sync_event_kind_t;

typedef struct {
    sync_event_kind_t kind;
    uint64_t version;
    struct announced *what; /* ANNOUNCE; from then on the entry's */
    digest_t digest;        /* ANNOUNCE, COMMIT, UP */
    uint64_t decision;      /* COMMIT; UP: 0 = nothing was decided yet */
    uint64_t deadline_us;   /* ANNOUNCE: left of the rollout's; 0: none */
    /* NOT_RESERVED, FETCH_FAILED, ABORT, APP_REJECT: why; borrowed */
    const heddle_error_t *error;
    uint32_t slot_count;   /* UP */
    uint32_t source_count; /* SOURCES: how many are in the list */
    const uint64_t *keep;
    uint32_t keep_count; /* UP: versions that may stay */
} sync_event_t;

/* What is to be fetched needs no action: it is the entry that is COMING (sync_coming).  It ends with
 * NOT_RESERVED (no memory for it; its slot is free again), FETCHED or FETCH_FAILED. */
typedef enum {
    SA_NEW_SOURCES, /* the version that is COMING may have new sources */
    SA_SEND_STAGED,
    SA_SEND_ACTIVE,
    SA_SEND_NACK, /* sync_nack has the reason */
    SA_OFFER,     /* an event for the application: `event`; FAILED and STALE: `err` */
    SA_FLIP,      /* `slot` becomes the active one; the one before stays, or a DROP follows */
    SA_DROP,      /* stop fetching into `slot`, and give it back when readers, sends and asks are done;
                   * answer DRAINED */
    SA_FORGET     /* `what` is the adapter's again: its entry is gone */
} sync_action_kind_t;

typedef struct {
    sync_action_kind_t kind;
    uint64_t version, decision;
    struct announced *what; /* of that version; NULL: it has no entry */
    int slot;
    int event, err;            /* OFFER: heddle_event_type_t; heddle_err_t, 0: none */
    const heddle_error_t *why; /* OFFER: of an ABORT, borrowed from the event; NULL: a
                                * failure of this worker, which sync_nack has */
    digest_t digest;
} sync_action_t;

/* The adapter's slots as they are now.  A version whose former slot is LEAVING waits: its share key is in
 * use. */
typedef struct {
    int next;             /* is reserved next, as slots_next_free says; -1: none */
    bool is_half_fetched; /* at least half of the bytes of the version that is COMING have arrived */
    uint32_t leaving_count;
    uint64_t leaving[LIMIT_SLOTS]; /* versions */
} sync_slots_t;

void sync_init(sync_t *s, bool app);
/* Writes at most SYNC_ACTIONS_MAX actions; returns how many, or for events of the application NOT_FOUND or
 * FENCED. */
int sync_step(sync_t *s, const sync_event_t *event, const sync_slots_t *slots, uint64_t now_us,
              sync_action_t out[]);
uint64_t sync_deadline(const sync_t *s); /* when SY_TICK is due; CLOCK_NEVER */

/* The entry of a version; NULL: absent. */
const sync_entry_t *sync_find(const sync_t *s, uint64_t version);
const sync_entry_t *sync_active(const sync_t *s);
/* The one that is COMING; NULL: none. */
const sync_entry_t *sync_coming(const sync_t *s);
/* ARRIVED: the application loads it, and has not answered; the one that was announced first.  NULL: none. */
const sync_entry_t *sync_loading(const sync_t *s);
/* The version that waits for its former slot, which is LEAVING; of several the one that starts first.  NULL:
 * none. */
const sync_entry_t *sync_barred(const sync_t *s, const sync_slots_t *slots);
/* A version waits, and every slot is used. */
bool sync_lacks_slot(const sync_t *s, const sync_slots_t *slots);
/* The failure that a SEND_NACK is about, or the last one of a version (decision SYNC_ANY_DECISION); NULL:
 * forgotten.  A caller that could not send it sets `pending`: it is sent after the next UP. */
#define SYNC_ANY_DECISION UINT64_MAX
sync_nack_t *sync_nack(sync_t *s, uint64_t version, uint64_t decision);
/* For JOIN: marks what is held as said. */
void sync_restate(sync_t *s);
static inline bool sync_is_held(const sync_entry_t *e)
{
    return e->state >= SYNC_ARRIVED && e->state <= SYNC_KEPT;
}

#endif
