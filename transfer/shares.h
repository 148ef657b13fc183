/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/shares.h: what this process serves, as the source, and the read requests of peers that it has not
 * answered yet (standing).
 *
 *   a share      exchange_expect -> expected --exchange_share--> with a region --exchange_unshare--> gone
 *   a request    ASK -> HELD (key unknown) | WAITING (for bytes, or for memory) | READY -> DATA, freed
 *                any -> REFUSING -> REFUSED, freed        by a deadline, unshare, or a limit
 *                any -> freed                             by UNASK, or the end of the connection
 *
 * Requests may come before the key is known here, since the broker announces a version to several workers at
 * once: they are held for EXCHANGE_HOLD_US.  A request is in its connection's list, and in the queue of its
 * state.
 *
 * Entries are of one pool of the exchange; nothing on the path of a range takes memory.  Loop thread only.
 * What the backends call of this is in transfer/exchange.h. */
#ifndef TRANSFER_SHARES_H
#define TRANSFER_SHARES_H

#include "transfer/conn.h"
#include "transfer/extents.h"

#define EXCHANGE_SHARES_MAX (LIMIT_HELD + LIMIT_ADAPTERS_PER_WORKER) /* all that is held, and what comes */
#define EXCHANGE_EXPECTED_MAX (4u * LIMIT_ADAPTERS_PER_WORKER) /* versions that are announced and wait */
#define EXCHANGE_STANDING_MAX 16384u /* asks that all peers together may have standing here */
#define EXCHANGE_FORGOTTEN_MAX 64u   /* keys refused at once: they were unshared here */

typedef struct share share_t;

/* One requested range that is not answered yet. */
typedef enum { STANDING_HELD, STANDING_WAITING, STANDING_READY, STANDING_REFUSING } standing_state_t;
typedef struct standing {
    standing_state_t state;
    int err; /* REFUSING */
    uint32_t bytes;
    uint64_t id, offset, since_us;
    share_key_t key;
    conn_t *conn;
    share_t *share;               /* NULL while HELD */
    struct standing *prev, *next; /* held: exchange's; waiting: share's; else conn's */
    struct standing *conn_prev, *conn_next;
} standing_t;

struct share {
    share_key_t key;
    region_t *region;  /* NULL: expected */
    extents_t extents; /* readable; none while it is expected */
    uint64_t moved_us; /* the last extend, or expect */
    standing_t *waiting;
    UT_hash_handle hh;
};

/* ASK and UNASK came. */
void shares_on_ask(transfer_t *t, conn_t *c, const frame_t *f);
void shares_on_unask(transfer_t *t, conn_t *c, const frame_t *f);
/* True when a frame was sent. */
bool shares_send_refusals(transfer_t *t, conn_t *c);
bool shares_send_data(transfer_t *t, conn_t *c);
/* Refuses what has waited too long. */
void shares_expire(transfer_t *t);
/* Forgets the requests of a connection. */
void shares_end_conn(transfer_t *t, conn_t *c);
void shares_fini(transfer_t *t);

#endif
