/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/answer.h: the bodies of REPORT: what `heddle status` and its sisters print, as JSON trees.
 *
 * PURE: made from a view of what they show, and of nothing else.  Every field that docs/json.md lists is in
 * every body, null where unknown; lists are sorted.  Nothing blocks but the read of an ended version's
 * config.
 *
 *   answer.c           which page; status, adapters           answer_workers.h  workers
 *   answer_versions.h  versions, a version                    answer_pending.h  wait, activate, verify
 *   answer_keys.h      keys, a forgotten adapter              status_reasons.h  of status: what is not well
 *   answer_brokers.h   brokers                                answer_events.h   events
 *   timing.h           of a version: where its time went      cell.h            what answers are made of
 *   why.h              why a worker is not there, or how it gets on
 *
 * Pages.  A list goes on where the last page ended: status, adapters and workers after the name
 * q->after_name, versions of an adapter after the number q->after, the workers of one version (NAME@V) after
 * the name q->after_name, events from the sequence number q->after on.  `more` says that there is another
 * page, `next` and `next_name` what to ask it with.  To put pages together append the lists of the same
 * name; of NAME@V, the one version's `workers`. */
#ifndef BROKER_ANSWER_H
#define BROKER_ANSWER_H

#include "broker/brokers.h"
#include "broker/keys/auth.h"
#include "broker/members/strangers.h"
#include "broker/questions/pending.h"
#include "core/limits.h"
#include <jansson.h>

#define ANSWER_PAGE_ROWS 200u /* when the question names no limit */
#define ANSWER_PAGE_EVENTS 500u
#define ANSWER_PAGE_BYTES (LIMIT_FRAME_BYTES / 2) /* encoded; a page ends before it, whatever the limit */
/* a larger adapter_config.json is null in a body: it has to fit a frame */
#define ANSWER_CONFIG_BYTES (128u << 10)
/* of `workers` and of `missing` in a wait's body; counts are of all */
#define ANSWER_WAIT_ROWS 1000u

/* What bodies are made from, as of now; all of it borrowed for the call. */
typedef struct answer_view {
    const registry_t *registry;
    const membership_t *members;
    const rollout_t *rollout;
    const events_t *events;
    const auth_t *auth;
    const strangers_t *foreign, *refused;
    instant_t now;
    /* of the broker itself */
    const char *endpoint, *public_key, *cluster, *data_dir; /* public_key NULL: without keys */
    uint64_t pid, started_us, started_ms;
    const brokers_t *brokers; /* NULL: it is the only one */
    bool is_read_only;
    uint64_t read_only_ms;
    int read_only_code;
    const char *read_only_why, *read_only_hint;
    struct {
        uint64_t at_ms;
        const char *from, *message;
    } restored; /* at_ms 0: nothing was */
    const void *self;
    /* The config of an ended version, appended to `out`; NULL: not available. */
    int (*config)(const void *self, const char *adapter, uint64_t version, buf_t *out);
    uint64_t (*registry_bytes)(const void *self);
    const char *(*session_key)(const void *self, const member_t *member); /* "": without keys */
} answer_view_t;

typedef struct {
    json_t *body;
    bool more;
    uint64_t next;
    char next_name[HEDDLE_NAME_MAX + 1];
} answer_page_t;

/* status brokers adapters versions workers events keys, as of now.  On OK the caller owns ret_page->body
 * (json_decref).
 * NOT_FOUND: no such adapter, version or worker, or a tag of another digest · USAGE: no such question
 * · NO_MEMORY. */
int answer_page(const answer_view_t *b, const msg_query_t *q, answer_page_t *ret_page, heddle_error_t *error);
/* For questions that no page answers: a tag names a version by number and digest, and a version of that
 * number with another digest is NOT_FOUND.  A version that is unknown here is OK: each question answers that
 * itself. */
int answer_check_tag(const registry_t *registry, const msg_query_t *q, heddle_error_t *error);
/* Ready: it takes what members ask for, and decides.  UNAVAILABLE: it settles, or no etcd answers · what the
 * store refuses records with. */
int answer_check_ready(const answer_view_t *b, heddle_error_t *error);

#endif
