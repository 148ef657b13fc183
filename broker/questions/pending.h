/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/pending.h (PURE): questions that are not answered at once: wait, activate, verify,
 * events with wait_ms.  An activation is also a rollback or a resume (broker/rollout/aim.h).
 *
 *   ASKED --(settling is over)--> decided (activate), put to the holders (verify)
 *         --(quorum, failed, lost, held, deadline)--> answered, forgotten
 *
 * Here is decided when and how each ends; its JSON is answer_pending.c's.  At most LIMIT_PENDING_QUERIES, and
 * of them PENDING_PER_PEER of one connection; of keys that are no admin's PENDING_PER_KEY each, and so many
 * in all that PENDING_FOR_ADMINS are left for admins: so an admin can always go back to an older version.
 * Nothing is answered "reached" while the broker settles: half the members may not be back.  One thread. */
#ifndef BROKER_PENDING_H
#define BROKER_PENDING_H

#include "broker/rollout/aim.h"
#include "broker/registry/decision.h"
#include <heddle/keys.h>
#include <heddle/types.h>

#define PENDING_PER_PEER 64u
#define PENDING_PER_KEY 256u
#define PENDING_FOR_ADMINS 128u

typedef enum { PENDING_WAIT = 1, PENDING_ACTIVATE, PENDING_VERIFY, PENDING_EVENTS } pending_kind_t;

/* VERIFY: one row a holder that was asked. */
typedef struct {
    char worker[HEDDLE_NAME_MAX + 1];
    uint64_t token;
    bool is_answered, is_match; /* is_match: digest equals the expected one */
    digest_t digest;            /* of the answer */
    uint64_t hash_us;
    exported_t exported;
    int code; /* heddle_err_t: why there is no digest; beside EXPORTED_DIFFERS
               * of the directory; DIGEST_MISMATCH without that: of the manifest alone; 0 */
} verify_row_t;

/* The connection that asks, its key, and the number of its request. */
typedef struct {
    uint64_t peer, req;
    const char *key; /* that it has proved; NULL: it may do everything (an admin's, or
                      * there are no keys) */
} pending_asker_t;

typedef struct pending_row {
    struct pending_row *prev, *next;
    pending_kind_t kind;
    uint64_t id;               /* never given again */
    uint64_t peer, req;        /* of the asker */
    char key[HEDDLE_KEY_TEXT]; /* of the connection that asked; "": NULL */
    char adapter[HEDDLE_NAME_MAX + 1];
    uint64_t version, asked_us, deadline_us;
    uint64_t asked_ms; /* the deadline as it was asked for, for people */
    /* wait, activate */
    heddle_phase_t phase;
    heddle_quorum_t quorum;
    uint32_t min;
    bool exact;
    char (*workers)[HEDDLE_NAME_MAX + 1];
    uint32_t worker_count; /* only these; 0: all subscribers */
    /* activate, rollback, resume */
    aim_t aim;
    uint64_t named; /* the version in the question; 0: none */
    bool is_decided, dry_run;
    char by[HEDDLE_NAME_MAX + 1];
    activated_t activated; /* from, decision, changed, held, same_bytes */
    uint64_t moved_base;   /* track_moved_bytes when it was decided */
    /* verify */
    uint64_t verify_req; /* of the VERIFY messages; 0: none was sent yet */
    digest_t expected;
    verify_row_t *rows;
    uint32_t row_count;
    /* events */
    uint64_t epoch, after, limit;
    char worker[HEDDLE_NAME_MAX + 1];
} pending_row_t;

typedef struct pending {
    pending_row_t *rows;
    size_t count;
    uint64_t last_id, verify_req;
} pending_t;

/* One worker that counts for a wait. */
typedef struct {
    const member_t *member; /* NULL: named in the question, but not here */
    const copy_row_t *copy; /* the version asked for there, or, where that ended, what it was; NULL */
    const char *worker;
    /* what it serves (phase active), or the version asked for (phase staged) */
    uint64_t version, decision, since_ms;
    copy_state_t state; /* of that version there; COPY_NONE: nothing */
    bool is_reached;
    bool is_refused; /* the version asked for: not before another decision */
    /* where it is, when not reached: announce fetch verify stage activate */
    const char *phase, *message; /* message: with a code */
    int code;                    /* why, where known; 0 */
    uint64_t heartbeat_age_ms;
} wait_row_t;
/* rows ascending by worker; owned */
typedef struct {
    wait_row_t *rows;
    uint32_t count, need, have, eligible, draining; /* draining: subscribers that do not count */
} wait_view_t;

void pending_init(pending_t *p);
void pending_fini(pending_t *p);
/* A new row with the address of its answer.  LIMIT (names the connection or key that has too many),
 * NO_MEMORY. */
int pending_add(pending_t *p, pending_kind_t kind, const pending_asker_t *asker, pending_row_t **ret_row,
                heddle_error_t *error);
/* There is no place for it, but some may be taken by connections that have ended. */
bool pending_is_full(const pending_t *p, const pending_asker_t *asker);
void pending_drop(pending_t *p, pending_row_t *row);
void pending_drop_peer(pending_t *p, uint64_t peer);
/* Questions of connections that is_gone() says have ended; it is asked once of each, or a few times. */
void pending_drop_gone(pending_t *p, bool (*is_gone)(void *self, uint64_t peer), void *self);
bool pending_has_peer(const pending_t *p, uint64_t peer);
pending_row_t *pending_by_id(const pending_t *p, uint64_t id); /* NULL: it was answered */
uint64_t pending_deadline(const pending_t *p);

/* Copies the question of a wait or an activation: USAGE, BAD_NAME, NOT_FOUND (never assigned), NO_MEMORY. */
int pending_set_wait(pending_row_t *row, const msg_query_t *q, view_t v, heddle_error_t *error);
/* The workers that count now.  NO_MEMORY.  wait_view_fini frees the rows. */
int wait_view(const pending_row_t *row, const rollout_t *ro, view_t v, wait_view_t *ret_view);
void wait_view_fini(wait_view_t *w);

/* Is it over?  True: *ret_verdict tells how (code 0: yes, reached). */
bool pending_is_over(const pending_row_t *row, const rollout_t *ro, view_t v, const events_t *ev,
                     heddle_error_t *ret_verdict);

/* The holder sent the digest of the bytes in its memory. */
bool verify_row_has_digest(const verify_row_t *r);
/* VERIFY, when settling is over: asks every holder that is READY.  NO_MEMORY, or VERSION_LOST when there
 * is none. */
int pending_ask_verify(pending_t *p, pending_row_t *row, const rollout_t *ro, view_t v, outbox_t *out,
                       heddle_error_t *error);
void pending_verified(pending_t *p, const member_t *member, const msg_verified_t *m);
/* A holder is gone, and counts as one without an answer. */
void pending_member_gone(pending_t *p, uint64_t token);

#endif
