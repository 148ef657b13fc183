/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/node.h: a publisher as a node, without thread, socket and clock: membership, regions, one
 * request, reports.  The public calls (publisher.c, publication.c, through handle.h) and the scenario tests
 * drive the same functions.
 *
 *   request state   event                                       -> next
 *   NONE            publisher_node_publish                      -> WAITING
 *   WAITING         a session, or the time to repeat it         -> SENT    PUBLISH
 *   SENT            WELCOME of another session                  -> SENT    PUBLISH, under the same request id
 *                   an ERROR that puts it off                   -> WAITING
 *   WAITING, SENT   PUBLISHED                                   -> NONE    its bytes are shared, then `done`
 *                   ERROR, fenced, refused for good, abandoned  -> NONE    `done`, with the error
 *
 * The broker answers a repetition with the same version.  A request is in doubt ("orphan") when it was
 * abandoned and the broker may have it.  It keeps its region until the answer comes, the session ends or the
 * region is needed; recorded after all, its version is served like any other.
 *
 * FENCED is final: a session of another process writes the adapter.  So is a broker of another cluster at the
 * same address.  After a lease that merely lapsed the session joins again with OPEN(prev_token, serving);
 * what WELCOME does not list is served no longer.  Reports on the newest version may have been missed
 * meanwhile: a status query is sent after joining again or before leaving, and repeated until the version is
 * over, where no ROLLOUT will come.
 *
 * Loop thread only; nothing blocks.  The handle (handle.h), or a test, owns a node, which owns its regions
 * and reports.  Calls that answer AGAIN are made again after `changed` was called. */
#ifndef TRAINER_CLIENT_NODE_H
#define TRAINER_CLIENT_NODE_H

#include "client/node.h"
#include "trainer_client/inquiry.h"
#include "trainer_client/pack.h"
#include "trainer_client/publications.h"
#include "trainer_client/reports.h"

typedef struct publisher_node publisher_node_t;
typedef struct {
    const char *adapter, *writer, *host;      /* copied */
    bool takeover;                            /* of the first OPEN only */
    key16_t life;
    uint64_t pid, seed;
    void (*changed)(void *self);              /* what an AGAIN waited for may be there; NULL: none */
    void *self;
} publisher_node_opts_t;

/* `io` is borrowed for the node's life, and has a transfer. NO_MEMORY. */
int  publisher_node_new(const publisher_node_opts_t *opts, const node_io_t *io,
                        publisher_node_t **ret_node);
/* Stops serving at once; publisher_node_leave first, for a clean end. Accepts NULL and pointers to
 * NULL. */
void publisher_node_destroy(publisher_node_t **n);
extern const node_ops_t publisher_node_ops;

/* OK: admitted · AGAIN · WRITER_HELD, FENCED, REQUEST_CONFLICT (the broker is another cluster's), or why
 * the broker refuses for good.  `error` with
 * AGAIN: why it refused last, if it did (else code 0). */
int  publisher_node_opened(const publisher_node_t *n, heddle_error_t *error);

/* A region for pack_bytes: as publications_take, and AGAIN while a region is on its way to be free, or, for
 * TAKE_WORD_US at most, until the broker says which one is. */
#define TAKE_WORD_US 1000000u
int  publisher_node_take(publisher_node_t *n, uint64_t bytes, uint64_t now_us, int *ret_slot,
                         region_t **ret_region);
/* A take that was answered AGAIN is not made again: what the next one waits for has a second of its own. */
void publisher_node_give_up(publisher_node_t *n);
int  publisher_node_fit(publisher_node_t *n, int slot, region_t *region);
void publisher_node_give_back(publisher_node_t *n, int slot);

typedef struct {
    uint64_t version, published_us;
    bool replayed, unchanged;
    digest_t digest;
    char held[512];
} publish_result_t;

/* A sealed pack in its slot.  All is borrowed until `done` was called; the slot is the node's from now on. */
typedef struct {
    int slot;
    const pack_t *pack;
    const sealed_t *sealed;
    heddle_publish_opts_t opts;               /* request_id is filled in */
    uint64_t until_us;                        /* the end of opts.deadline_ms: each PUBLISH carries the time
                                               * that is left */
    bool is_random_id;                        /* no other process can have used the id */
    uint64_t start_us;                        /* when commit was called */
    /* Called once, during one of the node's calls, publisher_node_publish among them.  `error` NULL: it is
     * recorded and served.  Else the broker's error, FENCED, NO_MEMORY (the record is durable, but its bytes
     * cannot be served). */
    void (*done)(void *self, const publish_result_t *result, const heddle_error_t *error);
    void *self;
} publish_request_t;
void publisher_node_publish(publisher_node_t *n, const publish_request_t *request, uint64_t now_us);
/* Ends the request, if it has not ended: `done` gets what it waited for (DEADLINE, UNAVAILABLE, or why the
 * broker refuses us). */
void publisher_node_abandon(publisher_node_t *n);

/* As reports_judge; NOT_FOUND for a version of another publisher, FENCED when no more reports will come: the
 * last status query had no answer, or the version was not over then. */
int  publisher_node_judge(publisher_node_t *n, uint64_t version, const wait_for_t *want,
                          heddle_error_t *error);
const reports_t *publisher_node_reports(const publisher_node_t *n);
/* For how long yet the broker decides nothing, having just started; 0: it decides. */
uint32_t publisher_node_settling_ms(const publisher_node_t *n, uint64_t now_us);

/* Whether the newest version can do without this publisher.  OK: another process has its bytes, it is not
 * served here, or there is none · AGAIN: not yet; *ret_wanted: workers are fetching from here, so that
 * it may come · VERSION_FAILED: it ended, and no other process had them.  `error` is filled but with OK. */
int  publisher_node_is_held(const publisher_node_t *n, bool *ret_wanted, heddle_error_t *error);

/* LEAVE, and serving ends; publisher_node_has_left once BYE came (or never will) and no send is in
 * flight. */
void publisher_node_leave(publisher_node_t *n, uint64_t now_us);
bool publisher_node_has_left(const publisher_node_t *n);

/* For tests. */
publications_t *publisher_node_publications(publisher_node_t *n);

#endif
