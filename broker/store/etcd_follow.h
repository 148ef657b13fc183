/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/etcd_follow.h (PURE): the rows of a registry in an etcd as a standby follows them, so that it
 * has them when it takes the lead.  No socket, no clock: requests come out, answers go in.
 *
 *   state      event                                      -> next        what is sent then
 *   UNREAD                                                               the first page of all keys
 *   READING    a page                                     -> READING     the next one, of the same revision
 *              the last page                              -> FOLLOWING   a watch from the next revision on
 *   FOLLOWING  events                                     -> FOLLOWING   nothing: the watch goes on
 *              the watch ended                            -> FOLLOWING   a watch from the next revision on
 *   any        compacted; a transaction is missing;       -> UNREAD
 *              a row that is none of ours; no memory;
 *              etcd_follow_forget
 *
 * Each transaction of a leader writes its marker to `last`, RUN.NUMBER; the first one of a run writes RUN.0
 * and the marker that it came behind (etcd_leader.h).  So a transaction that is missing is noticed, and one
 * that came behind another history: rows are those of the registry exactly where `last` has not been written
 * since what was followed, etcd_follow_has.  That is a reason to try.  What makes it certain is the
 * comparison in the transaction that takes the lead.  Revisions alone do not say it: an etcd whose snapshot
 * was restored gives them a second time, to other transactions.
 *
 * `meta` and `import` are not followed, as they decide whether there may be a next epoch, and which: they are
 * read with the leader's key.  Nor are the rows of brokers, which are no part of the registry.  One thread;
 * nothing blocks. */
#ifndef BROKER_ETCD_FOLLOW_H
#define BROKER_ETCD_FOLLOW_H

#include "broker/store/etcd_json.h"
#include "broker/store/etcd_page.h"
#include "broker/store/rows.h"

#define ETCD_KEY_LEADER "leader"
#define ETCD_KEY_LAST "last"
#define ETCD_KEY_META "meta"
#define ETCD_KEY_IMPORT "import"
#define ETCD_KEY_BROKERS "b/" /* and the run of a standby: its row (broker/brokers.h), under its lease */
#define ETCD_MARKER_BYTES 96
#define ETCD_BEHIND "<" /* in a marker: behind it is that of the transaction before */

typedef enum { ETCD_UNREAD, ETCD_FOLLOW_READING, ETCD_FOLLOWING } etcd_follow_state_t;

typedef struct {
    etcd_follow_state_t state;
    store_rows_t *rows;     /* NULL: UNREAD */
    uint64_t revision;      /* what happened up to it is in the rows */
    uint64_t last_revision; /* in which `last` was written, as far as that is in the rows; 0: never */
    etcd_page_t page;
    char marker[ETCD_MARKER_BYTES]; /* the value of `last` then */
    buf_t after;                    /* the last key of the page before */
    uint64_t anew_count;            /* so often it was UNREAD again, but for etcd_follow_fini */
    const char *why_anew;           /* the last time; static */
    heddle_error_t bad; /* of the row that was none of ours, since an answer that was good; code 0 */
} etcd_follow_t;

void etcd_follow_init(etcd_follow_t *f);
void etcd_follow_fini(etcd_follow_t *f); /* and it may begin anew */
/* UNREAD again: etcd does not have what was followed. */
void etcd_follow_forget(etcd_follow_t *f);

/* Writes the request that it needs next.  True: of a watch; false: of a range. */
bool etcd_follow_request(const etcd_follow_t *f, const char *prefix, buf_t *out);
/* The answer to the range or, each one, of the watch.  False: UNREAD again. */
bool etcd_follow_answer(etcd_follow_t *f, const char *prefix, const etcd_answer_t *a);
/* One of the keys beside the registry's rows: leader, last, import, and those of brokers. */
bool etcd_follow_is_beside(bytes_t key);
/* Whether the rows are the registry's, when `last` has this value since that revision. */
bool etcd_follow_has(const etcd_follow_t *f, uint64_t last_revision, const char *marker);
/* The rows are the caller's from here on, rows_end_read is not done, and it may begin anew. */
store_rows_t *etcd_follow_take(etcd_follow_t *f);

#endif
