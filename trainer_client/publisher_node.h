/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/publisher_node.h: a publisher as a node, without thread, socket and clock: membership,
 * regions, one request, outcomes.  The public calls (publisher.c) and the scenario tests give it the same
 * commands.
 *
 *   request state   event                                       -> next
 *   NONE            COMMAND_PUBLISH                             -> WAITING
 *   WAITING         a session, or the time to repeat it         -> SENT    PUBLISH
 *   SENT            WELCOME of another session                  -> SENT    PUBLISH, under the same request id
 *                   an ERROR that puts it off                   -> WAITING
 *   WAITING, SENT   PUBLISHED                                   -> NONE    its bytes are shared; is_done
 *                   ERROR, fenced, refused for good, abandoned  -> NONE    is_done, with the error
 *
 * The broker answers a repetition with the same version.  A request is in doubt when it was abandoned and the
 * broker may have it.  Its slot is IN_DOUBT (trainer_client/publications.h) until the answer comes, the
 * session ends or the region is needed; recorded after all, its version is served like any other.
 *
 * FENCED is final: a session of another process writes the adapter.  So is a broker of another cluster at the
 * same address.  After a lease that merely lapsed the session joins again with OPEN(prev_token, serving);
 * what WELCOME does not list is served no longer.  Reports on the newest version may have been missed
 * meanwhile: a status query is sent after joining again or before leaving, and repeated until the version is
 * over, where no ROLLOUT will come.
 *
 * Loop thread only; nothing blocks.  The handle (publisher.c), or a test, owns a node, which owns its regions
 * and outcomes.  Commands that answer AGAIN are given again after `changed` was called. */
#ifndef TRAINER_CLIENT_PUBLISHER_NODE_H
#define TRAINER_CLIENT_PUBLISHER_NODE_H

#include "client/node.h"
#include "trainer_client/pack.h"
#include "trainer_client/publications.h"
#include "trainer_client/outcomes.h"

#include <stdatomic.h>

typedef struct publisher_node publisher_node_t;
typedef struct {
    const char *adapter, *writer, *host; /* copied */
    const content_kind_t *kind;          /* of what it will publish */
    const char *broker;                  /* copied: where it is sought, for people; NULL: not named */
    bool takeover;                       /* of the first OPEN only */
    bool is_unread; /* no application reads the events: what ends it for good is logged */
    key16_t life;
    uint64_t pid, seed;
    bool is_sharing;             /* processes of this host may hold what is published, in place of a copy */
    uint64_t max_rate_bytes;     /* for the broker's plans; 0: no limit */
    const char *host_share;      /* with is_sharing: client/sharing.h's directory; NULL: abstract sockets */
    bool is_guarded;             /* as in regions_opts_t */
    void (*changed)(void *self); /* what an AGAIN waited for may be there; NULL: none.  Called
                                  * during a call of the node, which it must not call in turn */
    void *self;
} publisher_node_opts_t;

/* `io` is borrowed for the node's life, and has a transfer. NO_MEMORY; as sharing_new where opts->host_share
 * is named. */
int publisher_node_new(const publisher_node_opts_t *opts, const node_io_t *io, publisher_node_t **ret_node,
                       heddle_error_t *error);
#define PUBLISHER_FDS 2
/* To be polled, until it is destroyed: each turn that one is readable begins with a tick.  How many. */
uint32_t publisher_node_fds(const publisher_node_t *n, int ret_fds[PUBLISHER_FDS]);
/* Stops serving at once; COMMAND_LEAVE first, for a clean end. Accepts NULL and pointers to NULL. */
void publisher_node_destroy(publisher_node_t **n);
extern const node_ops_t publisher_node_ops;

typedef struct {
    uint64_t version, published_us;
    bool replayed, unchanged;
    digest_t digest;
    char held[512];
} publish_result_t;

/* A sealed pack in its slot.  All is borrowed until `is_done`; the slot is the node's from COMMAND_PUBLISH
 * on. */
typedef struct {
    int slot;
    const pack_t *pack;
    const sealed_t *sealed;
    heddle_publish_opts_t opts; /* request_id is filled in */
    uint64_t until_us;          /* the end of opts.deadline_ms: each PUBLISH carries the time
                                 * that is left */
    bool is_random_id;          /* no other process can have used the id */
    uint64_t start_us;          /* when commit was called */
    /* Set once, by the loop's thread, the flag last.  Code 0: the version is recorded and served.  Else the
     * broker's error, FENCED, NO_MEMORY (the record is durable, but its bytes cannot be served). */
    publish_result_t result;
    heddle_error_t error;
    atomic_bool is_done;
} publish_request_t;

#define TAKE_WAIT_US 1000000u /* how long a take waits for the broker to say which region is free */
#define INQUIRY_US 1000000u   /* between two status queries; what an answer may take */

typedef enum {
    /* OK: admitted · AGAIN · WRITER_HELD, FENCED, REQUEST_CONFLICT (the broker is another cluster's), or why
     * the broker refuses for good.  `error` with AGAIN: why it refused last, if it did (else code 0). */
    COMMAND_OPENED,
    /* `take`, as publications_take, which fills it in; may_drop_any is the node's.  OK: `own` is the slot's,
     * and NULL here.  AGAIN by `waits`: while memory is made; or while a region is still being sent, or, for
     * TAKE_WAIT_US at most, until the broker says which version may go. */
    COMMAND_TAKE,
    /* A TAKE that was answered AGAIN is not given again: what the next one waits for has a second of its
     * own. */
    COMMAND_GIVE_UP,
    COMMAND_GIVE_BACK, /* `slot` */
    COMMAND_PUBLISH,   /* `request`, when no other is under way */
    /* Ends the request, if it has not ended: with what it waited for (DEADLINE, UNAVAILABLE, or why the
     * broker refuses us). */
    COMMAND_ABANDON,
    /* `look`, as outcomes_judge; NOT_FOUND for a version of another publisher, FENCED when no more reports
     * will come: the last status query had no answer, or the version was not over then. */
    COMMAND_JUDGE,
    COMMAND_LATE,   /* `look`, as outcomes_late, after `waited_ms` */
    COMMAND_REPORT, /* `look`: the report alone; NOT_FOUND */
    /* `elsewhere`: whether the newest version can do without this publisher.  OK: another process has its
     * bytes, it is not served here, or there is none · AGAIN: not yet · VERSION_FAILED: it ended, and no
     * other process had them. is_wanted: workers are fetching from here, so that it may come.  `error` is
     * filled but with OK. */
    COMMAND_IS_ELSEWHERE,
    COMMAND_LEAVE,   /* LEAVE, and serving ends */
    COMMAND_HAS_LEFT /* OK once BYE came (or never will); else AGAIN */
} command_kind_t;

/* Where a version is, and whether a wait for it is over. */
typedef struct {
    uint64_t version;
    wait_for_t want;
    uint32_t waited_ms;      /* LATE */
    heddle_report_t *report; /* filled, but by a JUDGE that answers AGAIN; NULL: not wanted */
} command_look_t;

typedef struct {
    bool is_wanted;
    uint64_t wanted_us; /* the last time that it was; set by the caller before the first time */
} command_elsewhere_t;

/* One command, its arguments and its results. */
typedef struct {
    command_kind_t kind;
    int rc;
    heddle_error_t *error;
    union { /* by kind; the others have neither arguments nor further results */
        publication_take_t take;
        int slot;
        publish_request_t *request;
        command_look_t look;
        command_elsewhere_t elsewhere;
    };
} command_t;
/* A TAKE is to be given again when more of its memory is there. */
static inline bool command_is_making(const command_t *c)
{
    return c->rc == HEDDLE_ERR_AGAIN && c->take.waits == PUBLICATION_FOR_MEMORY;
}

/* Executes a command_t; of the form that shell_call takes. */
void publisher_node_do(void *node, void *command, uint64_t now_us);

#endif
