/* SPDX-License-Identifier: Apache-2.0 */
/* broker/standby.h (PURE): what a broker answers while another one of its registry leads (store/etcd.h).
 *
 *   any message but PING   ERROR `unavailable`, retriable, with the address of the leader
 *   PING, no message       nothing
 *
 * A broker that led and yields (store/etcd_leader.h) answers its members, and they alone, in this way:
 *
 *   HELLO, JOIN, OPEN      ERROR `unavailable`, retriable; to HELLO with the address of one that stood by
 *   HEARTBEAT, PUBLISH     ERROR `not_found` of the session, which ends: the client says HELLO
 *   HELLO of an admin, QUERY of one that was greeted before, or that waits for its answer
 *                          the same, with the address, once in STANDBY_STAY_US: where no other one leads it
 *                          comes back, and has its answer here
 *
 * It decides nothing, looks up no key and admits no member: the client goes to the leader, or asks again
 * (docs/protocol.md, Standbys).  Without state.  The loop's thread. */
#ifndef BROKER_STANDBY_H
#define BROKER_STANDBY_H

#include "broker/brokers.h"
#include "core/bytes.h"
#include <heddle/error.h>
#include <heddle/keys.h>
#include <stdbool.h>

/* In a takeover a member waits so long; and a thousand of them ask so often. */
#define STANDBY_RETRY_MS 300
#define STANDBY_SOON_MS 100 /* none leads, and this one has all rows: it, or another one, does soon */
#define STANDBY_ADDRESS_BYTES 256

/* What a standby has to say of itself. */
typedef struct {
    char leader[STANDBY_ADDRESS_BYTES]; /* where the other one is; "": none leads, or it is not known */
    char leader_key[HEDDLE_KEY_TEXT];   /* that it proves; "": none, or not known */
    bool is_following;                  /* it has the registry in memory, but for the latest */
    bool is_answered;                   /* by etcd */
    bool is_full;                       /* etcd has no room, so that none can take the lead */
    uint64_t behind;                    /* revisions of etcd that it has not followed yet */
    heddle_error_t refusal;             /* by etcd, of what a broker needs; code 0: none */
} standby_t;

/* OK: it could take over at once.  UNAVAILABLE, NO_SPACE, and why. */
int standby_check_ready(const standby_t *s, heddle_error_t *error);
/* UNAVAILABLE: only the broker that leads answers this. */
int standby_refuse(const standby_t *s, heddle_error_t *error);

/* Appends the answer to `out`.  False: there is none, or no memory for it. */
bool standby_answer(bytes_t frame, const standby_t *s, buf_t *out);

/* The admins that were sent to another one, the latest of them, and when. */
#define STANDBY_SENT 256
#define STANDBY_STAY_US 5000000u /* another one may lead by then */
/* A client that finds no leader there is back by then: a question that ends earlier has its answer here. */
#define STANDBY_AWAY_US 3000000u
typedef struct {
    struct {
        key16_t life;
        uint64_t sent_us;
    } admins[STANDBY_SENT];
    size_t count;
} standby_sent_t;

/* From where a message came to a broker that yields, and where its sender may go. */
typedef struct {
    const key16_t *admin;    /* the life of the admin on that connection; NULL: none */
    const brokers_row_t *to; /* one that stood by; NULL: none is known */
    uint64_t now_us;
} standby_way_t;

/* The answer of a broker that yields.  False: the frame is none of these, and the broker has to answer it.
 * Without memory `out` stays as it is. */
bool standby_turn_away(bytes_t frame, const standby_way_t *way, standby_sent_t *sent, buf_t *out);
/* The same of a question that waits, by its number. */
bool standby_send_on(uint64_t req, const standby_way_t *way, standby_sent_t *sent, buf_t *out);

/* Writes the value of a leader's key: the whole address, for a standby to name it, and of a long host name
 * the first part.  `key` "": none. */
#define STANDBY_HOLDER_BYTES 384
void standby_holder(const char *endpoint, int pid, const char *host, const char *key,
                    char to[STANDBY_HOLDER_BYTES]);
/* Of the value of a leader's key: the address in front of its first blank, and the public key at its end,
 * behind ", key "; "" where it names none. */
void standby_leader(const char *holder, char to[STANDBY_ADDRESS_BYTES], char key[HEDDLE_KEY_TEXT]);

/* Where clients reach a listener: `bound`, with `host` in place of an address that stands for all. */
void standby_reachable(const char *bound, const char *host, char to[STANDBY_ADDRESS_BYTES]);

#endif
