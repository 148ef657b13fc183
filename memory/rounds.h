/* SPDX-License-Identifier: Apache-2.0 */
/* memory/rounds.h (PURE): a content is verified once a host: which process does it, at the source and at a
 * holder.
 *
 * At the source, a round for each content:
 *
 *   state      | one more holds it     | good          | bad                    | the asked one is away
 *   -----------+-----------------------+---------------+------------------------+------------------------
 *   verifying  | asked, if none is;    | -> verified:  | -> doubted: all are    | the next that waits is
 *              | else it waits         |    all are    |    sent                | asked; none: none is
 *              |                       |    sent       |                        |
 *   verified   | sent; after           | –             | -> doubted: all are    | –
 *              | ROUND_FRESH_US        |               |    sent                |
 *              | -> verifying          |               |                        |
 *   doubted    | sent                  | –             | of another process:    | –
 *              |                       |               | -> spoiled: all sent   |
 *   spoiled    | sent                  | –             | –                      | –
 *
 * `away`: gone, or silent. A verdict counts from each process that holds the content, also from one that only
 * waits: it verified the bytes for itself, because it relies on no other or its source was silent, and it
 * would not answer when it is asked. Its first verdict counts, or a bad one after a good one.
 *
 * A process that gives the content up and holds it again is one more that holds it: its claim is new, and the
 * answer to the one before went with that. Only its bad verdict stays.
 *
 * A good verdict is believed for ROUND_FRESH_US: bytes can change after it, by a stray write before the
 * memory is read-only or by a defective cell, and a process that comes later has the time to look.
 *
 * A bad verdict ends the trust of all, whichever verdict came first: from then on each process verifies the
 * content for itself, and the round never calls it verified again. So one process with a defective core
 * neither makes a good version fail on the host nor a bad one pass. Two processes that find it bad decide for
 * all. The content stays doubted after the process that reported it disconnects; a process that connects
 * again and reports again counts once. A holder that uses the content already goes on, and its own round
 * doubts it, too (memory/offer.h); one that verifies it after that hands it on with its own verdict.
 *
 * At a holder, a *claim* for each content that it holds:
 *
 *   state      | verify or  | verified  | spoiled | source is away | bytes match        | bytes differ
 *              | doubted    |           |         |                |                    |
 *   -----------+------------+-----------+---------+----------------+--------------------+-------------
 *   waiting    | verifying  | usable    | bad     | verifying      | –                  | –
 *   verifying  | stays      | usable    | bad     | stays          | usable: note GOOD  | bad: note BAD
 *   usable     | –          | –         | –       | –              | –                  | –
 *   bad        | –          | –         | –       | –              | –                  | –
 *
 * A *note* is a message over a connection that watches (handover.h). One about another content, or another
 * generation of the region, changes nothing. A holder that hands a content on has it usable, so what it hands
 * on is usable. A request to verify is no doubt: that of a source which was silent may come long after its
 * holder has verified the content, and hands it on.
 *
 * Without sockets and clocks; any thread; nothing blocks. The caller owns both. */
#ifndef MEMORY_ROUNDS_H
#define MEMORY_ROUNDS_H

#include "core/limits.h"
#include "memory/rules.h"

/* Between two processes of which one watches the other. The first three go to the source. */
typedef enum {
    NOTE_HELD,     /* this process has a hold of the content */
    NOTE_GOOD,     /* it verified the content */
    NOTE_BAD,      /* the bytes differ from the manifest */
    NOTE_VERIFY,   /* verify it */
    NOTE_VERIFIED, /* another process did: it may be used */
    NOTE_DOUBTED,  /* one process found it bad: verify it, and call it verified no more */
    NOTE_SPOILED,  /* two processes found it bad */
    NOTE_GONE,     /* never sent: the watcher's connection has ended */
} note_t;
#define ROUND_FRESH_US 1000000u /* after a good verdict those that come later verify the content anew */
/* How long an asked process may take: 50 ms, and four times what one core needs for the bytes. A holder waits
 * twice as long for its source. */
uint64_t round_patience_us(uint64_t bytes);

/* ---- the source ---- */

typedef enum { ROUND_VERIFYING, ROUND_VERIFIED, ROUND_DOUBTED, ROUND_SPOILED } round_state_t;
typedef enum {
    MEMBER_NONE,
    MEMBER_WAITING,
    MEMBER_ASKED,
    MEMBER_LATE,
    MEMBER_GOOD,
    MEMBER_BAD
} round_member_t;
typedef struct {
    content_id_t id;
    uint64_t bytes;
    round_state_t state;
    uint64_t due_us;      /* of the one that is asked; CLOCK_NEVER: none is */
    uint64_t verified_us; /* VERIFIED: since when */
    uint32_t next;        /* the order of the next member */
    struct {
        round_member_t state;
        uint32_t order;
    } members[LIMIT_WATCHERS]; /* by their watcher's number */
} round_t;
typedef enum { ROUND_HELD, ROUND_GOOD, ROUND_BAD, ROUND_GONE, ROUND_TIME } round_event_t;
/* What is to be sent, at most one note: to one watcher, or to all members. */
#define ROUND_ALL UINT32_MAX
typedef struct {
    bool is_any;
    note_t note;
    uint32_t watcher;
} round_act_t;

/* `is_verified`: it was, before the round. */
void round_begin(round_t *r, const content_id_t *id, uint64_t bytes, bool is_verified);
/* `watcher`: ignored for ROUND_TIME. */
round_act_t round_step(round_t *r, round_event_t event, uint32_t watcher, uint64_t now_us);
/* Another source doubts the content. */
round_act_t round_doubt(round_t *r);
bool round_has(const round_t *r, uint32_t watcher);
/* It holds the content, and was sent nothing yet. */
bool round_waits(const round_t *r, uint32_t watcher);

/* ---- a holder ---- */

typedef enum { CLAIM_WAITING, CLAIM_VERIFYING, CLAIM_USABLE, CLAIM_BAD } claim_state_t;
typedef struct {
    content_id_t id;
    claim_state_t state;
    bool is_own; /* VERIFIED changes nothing */
    uint64_t due_us;
} claim_t;
/* `is_own`: verifies for itself, and VERIFIED changes nothing. The caller tells the source NOTE_HELD. */
void claim_begin(claim_t *c, const content_id_t *id, uint64_t bytes, bool is_own, uint64_t now_us);
/* A note from the source. False: it is not about this content. */
bool claim_receive(claim_t *c, note_t note, const content_id_t *id);
/* The source is gone. */
void claim_lose(claim_t *c);
void claim_tick(claim_t *c, uint64_t now_us);
/* The bytes were compared with the manifest. True: *ret_note is to be sent to the source. False: it was not
 * verifying, and nothing changes. */
bool claim_found(claim_t *c, bool is_good, note_t *ret_note);

#endif
