/* SPDX-License-Identifier: Apache-2.0 */
/* broker/txn.h: the transaction: records that one event leads to, until the store has confirmed them, and
 * the requests that wait meanwhile.
 *
 *   state   event                                  -> next   what happens
 *   idle    txn_commit: confirmed at once       -> idle   apply, replies leave
 *           txn_commit: refused                 -> idle   dropped, the asker gets the error
 *           txn_commit: confirmed later (AGAIN) -> open
 *   open    broker_committed: confirmed            -> idle   apply, replies leave
 *           broker_committed: refused              -> idle   dropped, the asker gets the error
 *           the asker's deadline passes            -> open   it gets an error: the outcome is unknown
 *           the store says why it does not confirm -> open   each OPEN gets that as its error, at once
 *
 * At most one transaction is open.  It owns all that it needs when it ends: its records with their texts,
 * its encoded replies, the asker, and the frame of a request that is handled again.  Nothing of it is on
 * the stack.
 *
 * While it is open, the state of the broker is older than what the store may hold.  Requests that decide
 * something therefore wait here in the order of their arrival, each until its deadline: PUBLISH, OPEN,
 * changes of keys, and a JOIN that would raise numbers.  Heartbeats, the progress of workers, leases and
 * questions that only read go on.  Rollouts and activations are decided when the transaction has ended.
 * Bounded: TXN_REQUESTS and TXN_REQUEST_BYTES; a request beyond them is refused and may be sent again.
 *
 * All that follows from a record follows when it is applied, whether its commit took a moment or a second:
 *
 *   EPOCH             later tokens and event numbers are of it
 *   VERSION           its track begins, and it is announced
 *   DECISION, STATE   COMMIT, ABORT and RETIRE to workers; the next version begins
 *   FLOOR             the adapter's decision may have to be made anew
 *   WRITER            a publisher's session begins, with WELCOME, unless its OPEN got an error meanwhile; or
 *                     the event that it is closed
 *   KEY               an event; of a revoked key all sessions and connections end
 *   FORGET            its track has no row in the registry any more
 *   ADAPTER_FORGET    an event; its tracks go, and questions about it are answered (before it is applied)
 *   ADAPTER, WORKER, LOSS, STAGED, KEY_DROP, ADAPTER_DROP   nothing beyond the tables
 *
 * Messages that follow are added to the broker's outbox, behind the replies of the transaction.  A record
 * that cannot be applied ends the process: memory would be behind the store.
 *
 * Loop thread; nothing here blocks but a store that confirms at once. */
#ifndef BROKER_TXN_H
#define BROKER_TXN_H

#include "broker/outbox.h"
#include <heddle/keys.h>

#define TXN_REQUESTS 1024u
#define TXN_REQUEST_BYTES (64u << 20)

typedef struct broker broker_t;
typedef struct call call_t;

/* The request that gets the answer or the error.  peer 0: the broker began the transaction itself. */
typedef struct {
    uint64_t peer, req;
    msg_type_t type;
} asker_t;

/* A list with commas that has whole items only, and how many more there are. */
typedef struct {
    char text[304];
    uint32_t others;
} items_t;

/* What a member knows that the store does not (restored_numbers.h): how far its numbers are recorded. */
typedef struct {
    uint64_t epochs, numbers; /* by how much the records raise them */
    uint32_t doubted;         /* of its adapters: their decisions are made anew */
    bool is_whole;            /* all of it is recorded with these records */
    bool is_noted;            /* an event has said it */
    char who[HEDDLE_NAME_MAX + 1];
    items_t known; /* an adapter an item */
    items_t back;  /* "policy@19": what workers that follow another version go back to */
} recovery_t;

/* A frame that is handled later, or again. */
typedef struct saved_frame {
    struct saved_frame *prev, *next;
    asker_t asker;
    uint64_t deadline_us; /* then it is answered with an error, and forgotten */
    recovery_t recovery;
    size_t bytes;
    uint8_t frame[];
} saved_frame_t;

typedef enum {
    TXN_OWN, /* decisions, closed writers, a test of the store: nothing is answered */
    TXN_PUBLISH,
    TXN_OPEN,    /* its session begins when the WRITER record is applied, from the request's frame */
    TXN_NUMBERS, /* of a JOIN or OPEN, which is handled again when they are recorded */
    TXN_LEAVE,   /* BYE follows, whether or not the writer could be closed */
    TXN_KEY,
    TXN_FORGET,
    TXN_ACTIVATE /* a waiting question (broker/questions/pending.h) is decided */
} txn_kind_t;

typedef struct txn {
    txn_kind_t kind;
    bool is_open;
    bool is_answered;     /* its asker got an error: at the deadline, or of why the store confirms nothing */
    bool has_turned_away; /* a publisher that opens, in the same way: it comes again */
    asker_t asker;
    uint64_t began_us;
    uint64_t deadline_us;      /* of its asker; 0: none */
    uint64_t retry_ms;         /* that the asker's error names; 0: none */
    saved_frame_t *frame;      /* OPEN, NUMBERS; owned */
    uint64_t question;         /* ACTIVATE: the id of the waiting question */
    uint64_t token;            /* LEAVE: of the session that ended */
    bool has_changed;          /* KEY: there is a record */
    char key[HEDDLE_KEY_TEXT]; /* KEY: the public one */
    uint32_t kept_roles;       /* KEY: of its roles so many, the first ones, it had before */
    uint64_t ended_sessions;   /* KEY: that its revocation ended */
    bool is_of_entered;        /* KEY: of an invitation, with the keys that it entered */
    uint32_t entered_count;    /* KEY: so many of these were live */
} txn_t;

/* Commits what is in the broker's outbox, and takes txn->frame; no transaction is open.  OK: applied, and
 * the replies left.  AGAIN: it is open, and broker_committed ends it.  Else it was refused: the outbox is
 * empty, the asker was answered, *ret_error says why.  What follows from the records is done where they are
 * applied, so a handler calls this last; one that commits no record, as for a repeated PUBLISH, does what
 * follows itself. */
int txn_commit(broker_t *b, const txn_t *txn, instant_t now, heddle_error_t *ret_error);

/* A copy of the frame in hand; NULL: no memory, and the asker has its error. */
saved_frame_t *txn_save_frame(const call_t *c);
/* It waits until no transaction is open. */
void txn_defer(const call_t *c);
/* Of a connection that is forgotten. */
void txn_forget_waiting(broker_t *b, uint64_t peer);
bool txn_has_waiting(const broker_t *b, uint64_t peer);
/* Handles the first one that waits.  There is one, and no transaction is open. */
void txn_handle_waiting(broker_t *b, instant_t now);
/* Askers whose deadline has passed are answered. */
void txn_end_late_waiting(broker_t *b, instant_t now);
uint64_t txn_waiting_deadline(const broker_t *b);

#endif
