/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/publisher_node.h"

#include "client/member.h"
#include "client/sharing.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "core/log.h"

#include <assert.h>
#include <stdlib.h>

#define RESEND_US 20000u       /* after a full queue */
#define AWAY_US 3000000u       /* without a frame of the broker: it does not answer */
#define UNREPORTED_US 1000000u /* after the last report of a rollout: its workers are not waited for */
#define ANSWER_US 2000000u     /* what its answer to a heartbeat may take before it counts as silent */

typedef enum {
    REQUEST_NONE,
    REQUEST_WAITING, /* for a session, or until resend_us */
    REQUEST_SENT     /* in this session: the broker may record it */
} request_state_t;
/* How the application's request fares at the broker. */
typedef struct {
    request_state_t state;
    publish_request_t *asked; /* the application's; not read once it is_done */
    uint64_t req;             /* of the last PUBLISH */
    uint64_t resend_us;       /* CLOCK_NEVER: sent, or waits for WELCOME */
    heddle_error_t put_off;   /* why the broker put it off last; code 0: it did not */
} publish_try_t;

/* Of the version that is being staged; 0: of none. */
typedef struct {
    uint64_t version, sent_bytes;
} progress_t;

/* A status query: how the rollout of a version went on while this publisher was away.  ROLLOUT goes to the
 * session that the broker has as the version's publisher.  A publisher that was stopped past its lease, or
 * replaced, has missed some, and may get no more. */
typedef struct {
    uint64_t version, req, due_us;
} inquiry_t; /* version 0: none is open */

/* Whether a take waits until the broker says which region is free. */
typedef enum { TAKE_IDLE, TAKE_WAITS, TAKE_OVERDUE } take_state_t;

struct publisher_node {
    client_member_t member;
    char adapter[HEDDLE_NAME_MAX + 1], writer[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
    char broker[256];
    const content_kind_t *kind;
    bool takeover, is_unread;
    uint64_t max_rate_bytes;    /* as in OPEN */
    bool is_connection_refused; /* member.refusal is of the handshake, not of the broker */
    void (*changed)(void *self);
    void *self;
    publications_t publications;
    outcomes_t outcomes;
    publish_try_t request;
    progress_t progress;
    inquiry_t inquiry;
    take_state_t take;
    uint64_t take_us;     /* WAITS: until then */
    uint64_t sent_bytes;  /* by the last tick */
    uint64_t received_us; /* when the broker's last frame came */
    uint64_t settled_us;  /* until then the broker decides nothing: it had just started */
    heddle_error_t fence; /* why it is over for good; code 0: it is not */
};

static bool is_ready(const publisher_node_t *n) { return n->member.session.state == SESSION_READY; }

/* -- out -------------------------------------------------------------------------------------- */

/* Wakes a waiting call, which gives its command again.  That command is executed after the turn that is
 * under way, so that it sees all of what this turn does. */
static void changed(publisher_node_t *n)
{
    if (n->changed) n->changed(n->self);
}

/* Every event of a publisher is about its one adapter. */
static void tell_event(publisher_node_t *n, heddle_event_t *event)
{
    error_text(event->adapter, sizeof event->adapter, n->adapter);
    event->step = -1;
    member_tell(&n->member, event);
}

/* An event may be what a waiting call waits for. */
static void tell(publisher_node_t *n, heddle_event_type_t type, uint64_t version, const heddle_error_t *why)
{
    heddle_event_t e = {.type = type, .version = version};
    if (why) {
        e.code = why->code;
        e.retriable = why->retriable;
        error_text(e.message, sizeof e.message, why->message);
    }
    tell_event(n, &e);
    changed(n);
}

/* What workers have counts, and not what left this process: workers serve each other, and those of this host
 * copy nothing. It never is the whole before the broker has reported that all have staged the version. */
static void tell_progress(publisher_node_t *n, const outcome_row_t *row, const msg_rollout_t *m)
{
    progress_t *p = &n->progress;
    bool is_staged = outcome_is_staging_over(row);
    uint64_t bytes = m->bytes_done;
    if (m->version != p->version || !m->data_bytes) return;
    if (bytes >= m->data_bytes) bytes = m->data_bytes - !is_staged;
    if (is_staged) p->version = 0;
    if (bytes == p->sent_bytes) return;
    p->sent_bytes = bytes;
    heddle_event_t e = {.type = HEDDLE_EVENT_PROGRESS,
                        .version = m->version,
                        .bytes_done = bytes,
                        .data_bytes = m->data_bytes};
    tell_event(n, &e);
}

/* -- the request ------------------------------------------------------------------------------ */

/* Ends the request, if there is one: with `error`, which has a code, or with asked->result. After a failure
 * the slot is given back, unless the broker may still record the version.  The flag is set last, because the
 * application's thread may return from its call as soon as it sees it. */
static void end_request(publisher_node_t *n, const heddle_error_t *error)
{
    publish_request_t *a = n->request.asked;
    if (n->request.state == REQUEST_NONE) return;
    n->request.state = REQUEST_NONE;
    if (error && n->publications.slots[a->slot].state == PUBLICATION_TAKEN)
        publications_give_back(&n->publications, a->slot);
    if (error) a->error = *error;
    assert(!atomic_load(&a->is_done));
    atomic_store(&a->is_done, true);
    changed(n);
}

/* Sends PUBLISH, if there is a session. A repetition is sent with the same request id and with what is left
 * of the deadline, so that the broker makes at most one version of it. */
static void send_request(publisher_node_t *n, uint64_t now_us)
{
    publish_try_t *r = &n->request;
    const publish_request_t *a = r->asked;
    if (r->state == REQUEST_NONE || !is_ready(n)) return;
    r->req++;
    r->resend_us = CLOCK_NEVER;
    r->put_off = (heddle_error_t){0};
    (void)FAILPOINT("publisher.before_publish"); /* only to die or stop here */

    /* "key=value" each; the caller has checked them, but their bytes may have changed since. */
    char keys[LIMIT_META][HEDDLE_NAME_MAX + 1];
    msg_pair_t pairs[LIMIT_META];
    uint32_t pair_count = 0;
    for (const char *const *meta = a->opts.meta; meta && *meta && pair_count < LIMIT_META; meta++) {
        size_t length = strcspn(*meta, "=");
        const char *value = *meta + length + ((*meta)[length] == '=');
        if (length > HEDDLE_NAME_MAX) length = HEDDLE_NAME_MAX;
        memcpy(keys[pair_count], *meta, length);
        keys[pair_count][length] = 0;
        pairs[pair_count] = (msg_pair_t){keys[pair_count], value};
        pair_count++;
    }
    uint64_t left_us = a->until_us > now_us ? a->until_us - now_us : 0;
    char features[192];
    const char *words[LIMIT_FEATURES];
    msg_part_t part = a->sealed->part;
    memcpy(features, a->pack->features, sizeof features);
    content_id_t offered = regions_offered(n->publications.slots[a->slot].region);
    msg_t m = {.type = MSG_PUBLISH};
    m.publish = (msg_publish_t){.token = n->member.session.token,
                                .req = r->req,
                                .deadline_ms = left_us ? (left_us + 999) / 1000
                                                       : 1, /* 0 would be the broker's default */
                                .activation = (uint64_t)a->opts.activation,
                                .if_unchanged = (uint64_t)a->opts.if_unchanged,
                                .allow_step_back = a->opts.allow_step_back != 0,
                                .adapter = n->adapter,
                                .request_id = a->opts.request_id,
                                .digest = a->sealed->digest,
                                .parts = &part,
                                .part_count = 1,
                                .step = a->opts.step,
                                .data_bytes = a->pack->layout.data_bytes,
                                .tensor_count = a->pack->layout.count,
                                .chunk_count = a->sealed->chunk_count,
                                .kind = a->pack->kind->name,
                                .base_model = a->pack->base_model,
                                .features = words,
                                .feature_count = member_split(features, words, LIMIT_FEATURES),
                                .config = a->pack->config,
                                .meta = pairs,
                                .meta_count = pair_count,
                                .asked_ms = a->opts.asked_ms ? a->opts.asked_ms : a->opts.deadline_ms,
                                .region = sharing_region(&offered)};
    int rc = member_send(&n->member, &m);

    /* SLOW means a full queue, and a retry in a moment. GONE needs no handling: the end of the connection is
     * reported, and the next WELCOME sends it again. */
    r->state = rc ? REQUEST_WAITING : REQUEST_SENT;
    if (rc == HEDDLE_ERR_SLOW) r->resend_us = now_us + RESEND_US;
    if (rc == HEDDLE_ERR_SLOW || rc == HEDDLE_ERR_GONE) return;
    if (rc) {
        heddle_error_t error;
        error_fail(&error, rc, "PUBLISH of %s cannot be sent", n->adapter);
        error_hint(&error, "its config, features and meta go in one message: make them shorter");
        error_where(&error, n->adapter, 0, NULL, "commit");
        end_request(n, &error);
        return;
    }
}

/* -- requests that were abandoned ------------------------------------------------------------- */

/* The request in doubt was not recorded, or will not be served: its slot is free. */
static void end_doubt(publisher_node_t *n, int slot)
{
    publications_give_back(&n->publications, slot);
    changed(n);
}

/* A new session says in OPEN what is served. In-doubt requests of the session before are not among it, so
 * that no worker will ask for them. */
static void end_doubts(publisher_node_t *n)
{
    for (int slot; (slot = publications_in_doubt(&n->publications, 0)) >= 0;) end_doubt(n, slot);
}

/* -- the broker's answer ---------------------------------------------------------------------- */

/* An in-doubt request was recorded after all. The version must be served: the broker counts on this
 * publisher, and no other process has the bytes. */
static void on_late(publisher_node_t *n, const msg_published_t *m)
{
    int slot = publications_in_doubt(&n->publications, m->req);
    if (slot < 0) return;
    publication_doubt_t doubt = n->publications.slots[slot].doubt;
    uint64_t content_bytes = n->publications.slots[slot].content_bytes;
    if (!digest_equal(&m->digest, &doubt.digest)) {
        end_doubt(n, slot);
        return;
    }
    changed(n);
    if (publications_share(&n->publications, slot, m->version, &m->key, content_bytes)) return;
    heddle_publish_opts_t opts = {.activation = doubt.activation, .deadline_ms = doubt.deadline_ms};
    outcomes_begin(&n->outcomes, m->version, &opts, doubt.start_us);
    if (m->version > n->progress.version) n->progress = (progress_t){.version = m->version};
}

/* A version that stands for ours, replayed or unchanged, may still need its bytes: its publisher may have
 * died before any worker had them.  Where the broker counts on us it gives the key. */
static void on_published(publisher_node_t *n, const msg_published_t *m, uint64_t now_us)
{
    publish_try_t *r = &n->request;
    publish_request_t *a = r->asked;
    heddle_error_t error;
    if (r->state == REQUEST_NONE || m->req != r->req) {
        on_late(n, m);
        return;
    }
    if (!digest_equal(&m->digest, &a->sealed->digest)) {
        /* Serving our bytes under this number would only be refused by every worker. */
        char ours[HEDDLE_DIGEST_TEXT], theirs[HEDDLE_DIGEST_TEXT];
        digest_text(&a->sealed->digest, ours);
        digest_text(&m->digest, theirs);
        error_fail(&error, HEDDLE_ERR_PROTOCOL, "the broker recorded other bytes as %s@%llu", n->adapter,
                   (unsigned long long)m->version);
        error_where(&error, n->adapter, m->version, NULL, "commit");
        error_contrast(&error, ours, theirs);
        error_hint(&error, "publish again; if it stays, report it: the broker and this publisher do not "
                           "agree");
        end_request(n, &error);
        return;
    }
    bool is_replayed = !strcmp(m->reason, "replayed");
    a->result = (publish_result_t){.version = m->version,
                                   .published_us = now_us,
                                   .digest = m->digest,
                                   .replayed = is_replayed && !a->is_random_id,
                                   .unchanged = !m->created && !is_replayed};
    error_text(a->result.held, sizeof a->result.held, m->held);
    (void)outcomes_begin(&n->outcomes, m->version, &a->opts, a->start_us);

    /* Workers may get the announcement before this publisher gets its answer. Their read requests are pending
     * until now. */
    (void)FAILPOINT("publisher.before_share");
    int rc = publications_share(&n->publications, a->slot, m->version, &m->key, a->sealed->content_bytes);
    (void)FAILPOINT("publisher.after_share");
    if (rc && rc != HEDDLE_ERR_GONE) { /* GONE: the bytes are not needed */
        error_fail(&error, rc, "%s@%llu is recorded, but its bytes cannot be served", n->adapter,
                   (unsigned long long)m->version);
        error_where(&error, n->adapter, m->version, NULL, "announce");
        error_hint(&error, "free memory, and publish again %s",
                   a->is_random_id ? "with opts.if_unchanged skip" : "under the same request id");
        end_request(n, &error);
        return;
    }
    if (publications_of(&n->publications, m->version)) n->progress = (progress_t){.version = m->version};
    end_request(n, NULL);
}

/* -- status queries: reports that were missed ------------------------------------------------- */

/* Each question has a number of its own, so that a late answer to an earlier one is ignored. One that is lost
 * is repeated by the tick. */
static void inquire(publisher_node_t *n, uint64_t now_us)
{
    inquiry_t *q = &n->inquiry;
    q->due_us = now_us + INQUIRY_US;
    msg_t m = {.type = MSG_QUERY,
               .query = {.req = ++q->req, .op = "rollout", .name = n->adapter, .version = q->version}};
    (void)member_send(&n->member, &m);
}

/* Only the newest version can have missed anything that a caller waits for. */
static void begin_inquiry(publisher_node_t *n, uint64_t now_us)
{
    const outcome_row_t *row = outcomes_newest(&n->outcomes);
    if (!row || outcome_is_over(row)) return;
    n->inquiry.version = row->report.version;
    inquire(n, now_us);
}

static void end_inquiry(publisher_node_t *n)
{
    n->inquiry.version = 0;
    changed(n);
}

/* The answer counts also after the session has left, so that it is looked at whatever the session makes of
 * the frame.  A caller may wait for more than it says, and no ROLLOUT comes to a publisher that the broker
 * does not have as the version's source: then it is asked again. */
static void on_answer(publisher_node_t *n, const msg_rollout_t *m, uint64_t now_us)
{
    uint64_t version = n->inquiry.version;
    outcome_row_t *row = outcomes_find(&n->outcomes, version);
    if (!row || m->req != n->inquiry.req || m->version != version) return;
    outcomes_update(row, m, now_us);
    if (!strcmp(m->state, "retired") && m->decision) outcomes_was_active(row); /* the counts are forgotten */
    bool is_late = now_us >= row->start_us + row->report.deadline_ms * 1000ull;
    bool has_publication = publications_of(&n->publications, version) != NULL;
    if (n->fence.code || has_publication || is_late || outcome_is_over(row)) end_inquiry(n);
    tell(n, HEDDLE_EVENT_ROLLOUT, version, NULL);
}

/* -- the session ------------------------------------------------------------------------------ */

static void on_publisher_session(void *node, const node_event_t *event, uint64_t now_us);

/* n->fence has the reason.  All that waits here ends with it: publishing goes on only with a new handle.
 * A long-lived publisher may not publish for hours, so the log says at once that it has ended. */
static void end_for_good(publisher_node_t *n, heddle_event_type_t type)
{
    tell(n, type, 0, &n->fence);
    if (n->is_unread && n->request.state == REQUEST_NONE)
        log_emit(LOG_WARN, "publisher.ended", "%s; %s", n->fence.message, n->fence.hint);
    end_request(n, &n->fence);
}

/* Another writer owns the adapter now, and the session leaves. */
static void fence(publisher_node_t *n, const msg_error_t *m, uint64_t now_us)
{
    heddle_error_t said;
    msg_to_error(m, &said);
    error_fail(&n->fence, HEDDLE_ERR_FENCED, "this publisher of %s was replaced: %s", n->adapter,
               said.message);
    error_where(&n->fence, n->adapter, 0, NULL, NULL);
    error_contrast(&n->fence, said.expected[0] ? said.expected : NULL, said.found[0] ? said.found : NULL);
    error_hint(&n->fence, "close it, and open the adapter again when the other writer is done");
    end_doubts(n);
    end_for_good(n, HEDDLE_EVENT_FENCED);
    begin_inquiry(n, now_us);
    on_publisher_session(n, &(node_event_t){.kind = SE_LEAVE}, now_us);
}

/* OPEN names what is still served, so that the broker can use it as a source again after its own restart. */
static void send_open(publisher_node_t *n)
{
    const node_io_t *io = n->member.io;
    const session_t *s = &n->member.session;
    bytes_t address = {NULL, 0};
    tr_where_t where;
    const char *addresses[LIMIT_ADDRESSES];
    uint64_t served[PUBLICATIONS_WANTED] = {0};
    msg_offered_t offered[PUBLICATIONS_WANTED];
    uint32_t count = publications_served(&n->publications, served);
    uint32_t offered_count = publications_offered(&n->publications, offered);
    const sharing_t *sharing = n->publications.sharing;
    msg_t m = {.type = MSG_OPEN};
    if (io->tr->address(io->t, &address)) return; /* no answer comes: it is tried again */
    io->tr->where(io->t, &where);
    m.open = (msg_open_t){.req = s->req,
                          .epoch = s->epoch,
                          .prev_token = s->token,
                          .takeover = n->takeover && !s->join_count,
                          .adapter = n->adapter,
                          .writer = n->writer,
                          .backend = io->tr->name,
                          .ucx = io->tr->version(),
                          .address = address,
                          .serving = served[0],
                          .served = served,
                          .served_count = count,
                          .addresses = addresses,
                          .address_count = member_split(where.addresses, addresses, LIMIT_ADDRESSES),
                          .network = where.network,
                          .place = sharing ? sharing_place(sharing) : 0,
                          .offered = offered,
                          .offered_count = offered_count,
                          .max_rate_bytes = n->max_rate_bytes,
                          .kind = kind_said(n->kind->name),
                          .former_tokens = n->member.session.former_tokens,
                          .former_count = s->former_count};
    (void)member_send(&n->member, &m);
}

/* What WELCOME does not list is served no longer: the broker has released it, or has never recorded it. A
 * request that was not answered is sent again. */
static void on_joined(publisher_node_t *n, const msg_welcome_t *m, uint64_t now_us)
{
    uint64_t served[PUBLICATIONS_WANTED];
    uint32_t count = publications_served(&n->publications, served);
    for (uint32_t i = 0; i < count; i++) {
        bool is_kept = false;
        for (uint32_t k = 0; k < m->keep_count; k++)
            is_kept |= m->keep[k].version == served[i] && !strcmp(m->keep[k].adapter, n->adapter);
        if (is_kept) continue;
        publications_stop(&n->publications, served[i]);
        regions_busy(n->publications.regions, now_us);
    }
    end_doubts(n);
    n->settled_us = now_us + m->settling_ms * 1000;
    uint64_t keep = n->member.session.keep;
    regions_usual(n->publications.regions, keep < LIMIT_OFFERED ? (uint32_t)keep + 3 : LIMIT_OFFERED);
    if (m->content_bytes) { /* a trainer that publishes at once is not held up by it */
        regions_expect(n->publications.regions, m->content_bytes);
        regions_busy(n->publications.regions, now_us);
    }
    tell(n, HEDDLE_EVENT_JOINED, 0, NULL);
    send_request(n, now_us);
    if (n->member.session.join_count > 1) {
        outcomes_missed(&n->outcomes, now_us);
        begin_inquiry(n, now_us);
    }
}

/* An error without a number is about a message that the broker could not read, which may have been the
 * request. One with a time to wait puts the request off: a broker that has just started does not decide
 * yet. */
static void on_error(publisher_node_t *n, const msg_error_t *m, uint64_t now_us)
{
    heddle_error_t error;
    if (m->of == MSG_QUERY && m->req == n->inquiry.req) end_inquiry(n);
    int slot = m->of == MSG_PUBLISH && m->req ? publications_in_doubt(&n->publications, m->req) : -1;
    if (slot >= 0) end_doubt(n, slot);
    bool is_ours = !m->req || m->req == n->request.req; /* 0: the broker could not read so far */
    if (m->of != MSG_PUBLISH || !is_ours || n->request.state == REQUEST_NONE) return;
    msg_to_error(m, &error);
    if (error.code == HEDDLE_ERR_FENCED) fence(n, m, now_us);
    else if (m->retriable && m->retry_ms) {
        /* The broker settles. */
        n->request.state = REQUEST_WAITING;
        n->request.resend_us = now_us + m->retry_ms * 1000;
        n->request.put_off = error;
    } else {
        end_request(n, &error);
    }
}

/* For how long a heartbeat has been due: this process stood still, or its loop was blocked.  It asked for no
 * answer then, so that the broker was not silent. */
static uint64_t overdue_us(const session_t *s, uint64_t now_us)
{
    return s->is_connected && now_us > s->next_us ? now_us - s->next_us : 0;
}

/* Steps the session, and does what is left of it for a publisher.
 * FENCED: another session of this adapter was admitted. */
static void on_publisher_session(void *node, const node_event_t *event, uint64_t now_us)
{
    publisher_node_t *n = node;
    owner_check(n->member.io->owner);
    const session_t *s = &n->member.session;
    const heddle_error_t *refusal = &n->member.refusal;
    msg_t m;
    n->received_us = event->kind == SE_FRAME ? now_us : n->received_us + overdue_us(s, now_us);
    unsigned bits = member_step(&n->member, event, now_us, &m);
    if (m.type == MSG_ROLLOUT && m.rollout.req) on_answer(n, &m.rollout, now_us);
    if (bits & SO_LAPSED) tell(n, HEDDLE_EVENT_LOST_BROKER, 0, NULL);
    if (bits & SO_FENCED) fence(n, &m.error, now_us);
    if (bits & SO_ELSEWHERE) {
        /* What it waits for is not in that registry, nor is its writer. */
        error_fail(
            &n->fence, HEDDLE_ERR_REQUEST_CONFLICT,
            "the broker at %s came back with another registry (cluster %s, before %s): the versions of %s "
            "are not known there",
            n->broker, s->cluster, s->joined, n->adapter);
        error_where(&n->fence, n->adapter, 0, NULL, NULL);
        error_contrast(&n->fence, s->joined, s->cluster);
        error_hint(&n->fence,
                   "start the broker on its former data, or open a new publisher and publish there "
                   "again");
        end_for_good(n, HEDDLE_EVENT_REFUSED);
        on_publisher_session(n, &(node_event_t){.kind = SE_LEAVE}, now_us);
    }
    if (bits & SO_JOIN) send_open(n);
    if (bits & SO_JOINED) on_joined(n, &m.welcome, now_us);
    if (bits & SO_REFUSED) {
        error_name_adapter(&n->member.refusal, n->adapter);
        n->is_connection_refused = false;
        tell(n, HEDDLE_EVENT_REFUSED, 0, refusal);
        if (s->join_count && refusal->code == HEDDLE_ERR_WRITER_HELD) fence(n, &m.error, now_us);
        else if (!m.error.retriable) end_request(n, refusal);
    }
    if (bits & SO_HEARTBEAT) {
        msg_t beat = {.type = MSG_HEARTBEAT, .heartbeat = {.token = s->token, .seq = s->heartbeat_seq}};
        (void)member_send(&n->member, &beat); /* one that is lost is one of four */
    }
    if (bits & SO_LEFT) changed(n);
    outcome_row_t *row;
    switch (bits & SO_DELIVER ? m.type : 0) {
    case MSG_PUBLISHED: on_published(n, &m.published, now_us); break;
    case MSG_ERROR: on_error(n, &m.error, now_us); break;
    case MSG_ROLLOUT:
        row = outcomes_find(&n->outcomes, m.rollout.version);
        if (!row || strcmp(m.rollout.adapter, n->adapter) != 0) break; /* another publisher's version */
        outcomes_update(row, &m.rollout, now_us);
        tell_progress(n, row, &m.rollout);
        if (m.rollout.decision && m.rollout.staged_count)
            publications_decided(&n->publications, m.rollout.version);
        tell(n, HEDDLE_EVENT_ROLLOUT, m.rollout.version, NULL);
        break;
    case MSG_RELEASE:
        if (publications_release(&n->publications, m.release.version))
            tell(n, HEDDLE_EVENT_RELEASED, m.release.version, NULL);
        break;
    default: break; /* not meant for publishers */
    }
    msg_fini(&m);
}

/* -- what the shell calls --------------------------------------------------------------------- */

/* The connection was refused before any message: a key is missing or wrong. An error that cannot pass
 * ends the request. */
static void on_connection_refused(void *node, const heddle_error_t *why, uint64_t now_us)
{
    publisher_node_t *n = node;
    (void)now_us;
    owner_check(n->member.io->owner);
    member_connection_refused(&n->member, why);
    n->is_connection_refused = true;
    tell(n, HEDDLE_EVENT_REFUSED, 0, &n->member.refusal);
    if (!why->retriable) end_request(n, &n->member.refusal);
}

/* A publisher sends no read requests. */
static void on_publisher_transfer(void *node, const tr_event_t *event, uint64_t now_us)
{
    (void)node, (void)event, (void)now_us;
}

/* Memory that a call waits for comes first. A region that was made ahead is offered to this host. */
static bool on_publisher_work(void *node, uint64_t now_us)
{
    publisher_node_t *n = node;
    owner_check(n->member.io->owner);
    if (publications_are_making(&n->publications)) {
        if (!publications_make(&n->publications)) changed(n);
        return true;
    }
    if (now_us < regions_deadline(n->publications.regions)) return false;
    return regions_work(n->publications.regions, now_us);
}

/* The application writes a version, workers fetch or activate the newest one, or one that joined late
 * fetches. A rollout of which no report comes any more is not waited for: the next publication needs its
 * region. */
static bool is_on_its_way(publisher_node_t *n, uint64_t now_us)
{
    const outcome_row_t *row = outcomes_newest(&n->outcomes);
    uint64_t was_bytes = n->sent_bytes;
    /* A counter of the process, not of a version. */
    tr_counters_t c;
    n->member.io->tr->counters(n->member.io->t, &c);
    n->sent_bytes = c.bytes_out;
    if (n->sent_bytes != was_bytes || publications_have(&n->publications, PUBLICATION_TAKEN)) return true;
    if (!row || !row->report.eligible_count || outcome_is_over(row)) return false;
    return now_us < row->received_us + UNREPORTED_US;
}

/* A descriptor of its sharing. */
static void on_publisher_readable(void *node)
{
    publisher_node_t *n = node;
    sharing_readable(n->publications.sharing);
}

/* One timer for the request, the status query, the session, and this host. */
static uint64_t on_publisher_tick(void *node, uint64_t now_us)
{
    publisher_node_t *n = node;
    owner_check(n->member.io->owner);
    on_publisher_session(n, &(node_event_t){.kind = SE_TICK}, now_us);
    if (now_us >= n->request.resend_us) send_request(n, now_us);
    if (n->inquiry.version && now_us >= n->inquiry.due_us) {
        if (n->fence.code) end_inquiry(n); /* one that is fenced asks once */
        else inquire(n, now_us);
    }
    if (n->take == TAKE_WAITS && now_us >= n->take_us) { /* lost: a take that waits goes on */
        n->take = TAKE_OVERDUE;
        changed(n);
    }
    if (is_on_its_way(n, now_us)) regions_busy(n->publications.regions, now_us);
    uint64_t at = session_deadline(&n->member.session);
    if (n->inquiry.version) at = clock_earlier(at, n->inquiry.due_us);
    if (n->take == TAKE_WAITS) at = clock_earlier(at, n->take_us);
    at = clock_earlier(at, regions_deadline(n->publications.regions));
    if (n->publications.sharing) at = clock_earlier(at, sharing_turn(n->publications.sharing, now_us));
    /* Without a session it waits for the next WELCOME, which has no time. */
    if (n->request.state != REQUEST_NONE && is_ready(n)) at = clock_earlier(at, n->request.resend_us);
    return at;
}

const node_ops_t publisher_node_ops = {.session = on_publisher_session,
                                       .refused = on_connection_refused,
                                       .transfer = on_publisher_transfer,
                                       .tick = on_publisher_tick,
                                       .work = on_publisher_work,
                                       .readable = on_publisher_readable};

/* -- what the application asks ---------------------------------------------------------------- */

/* A version that is given up here may be the one that the broker is about to announce. Only the broker
 * knows, and its RELEASE or ROLLOUT comes within a turn. While it is away any version may go, since OPEN
 * will list what is left. */
static int do_take(publisher_node_t *n, command_t *c, uint64_t now_us)
{
    publications_t *p = &n->publications;
    publication_take_t *take = &c->take;
    take->may_drop_any = !is_ready(n) || !n->member.session.is_connected || n->take == TAKE_OVERDUE;
    take->waits = PUBLICATION_FOR_BROKER;
    int in_doubt = publications_have(p, PUBLICATION_FREE) ? -1 : publications_in_doubt(p, 0);
    if (in_doubt >= 0 && take->may_drop_any) end_doubt(n, in_doubt); /* before one that is served */
    bool is_answered = in_doubt < 0 || take->may_drop_any;
    int rc = is_answered ? publications_take(p, take, c->error) : HEDDLE_ERR_AGAIN;
    if (!rc) take->own = NULL;
    bool is_waiting = rc == HEDDLE_ERR_AGAIN && take->waits == PUBLICATION_FOR_BROKER && !take->may_drop_any;
    if (is_waiting && n->take != TAKE_WAITS) n->take_us = now_us + TAKE_WAIT_US;
    n->take = is_waiting ? TAKE_WAITS : TAKE_IDLE;
    return rc;
}

/* A caller that chose the request id can repeat the request. A random id is not known to it, and was never
 * promised to stand for one version. A refusal says first what admits this publisher again. */
static void hint_repeat(const publisher_node_t *n, const publish_request_t *a, heddle_error_t *error)
{
    heddle_error_t refusal = *error;
    if (refusal.code == HEDDLE_ERR_DENIED && refusal.hint[0] && !a->is_random_id)
        error_hint(error, "%.160s; then publish again under the same request id", refusal.hint);
    else if (refusal.code == HEDDLE_ERR_DENIED && refusal.hint[0])
        error_hint(error, "%.140s; then `heddle versions %.64s` shows whether it was recorded", refusal.hint,
                   n->adapter);
    else if (!a->is_random_id)
        error_hint(error, "publish again under the same request id: it becomes one version at most");
    else
        error_hint(
            error,
            "whether it was recorded is unknown: `heddle versions %.128s` shows it; with opts.request_id "
            "a repetition is safe",
            n->adapter);
}

/* Where the broker may have the request, its region is kept. A version that no process serves would block
 * all later ones until its deadline. */
static void do_abandon(publisher_node_t *n)
{
    const publish_try_t *r = &n->request;
    if (r->state == REQUEST_NONE) return;
    const publish_request_t *a = r->asked;
    heddle_error_t e = n->member.refusal;
    const char *why = r->put_off.message;
    publication_doubt_t doubt = {.req = r->req,
                                 .digest = a->sealed->digest,
                                 .start_us = a->start_us,
                                 .activation = a->opts.activation,
                                 .deadline_ms = a->opts.deadline_ms};
    if (r->state == REQUEST_SENT && is_ready(n))
        publications_doubt(&n->publications, a->slot, a->sealed->content_bytes, &doubt);
    if (!e.code && is_ready(n) && n->member.session.is_connected)
        error_fail(&e, HEDDLE_ERR_DEADLINE, "the broker did not record the version of %s in time%s%s",
                   n->adapter, *why ? ": " : "", why);
    else if (!e.code) {
        error_fail(&e, HEDDLE_ERR_UNAVAILABLE, "the broker of %s does not answer", n->adapter);
        error_expected(&e, "an answer to the publication within its deadline");
    }
    error_where(&e, n->adapter, 0, NULL, "commit");
    hint_repeat(n, a, &e);
    end_request(n, &e);
}

/* How long ago the last message of the broker came, where one is due; 0: it answers. A broker that has
 * nothing to report still answers four heartbeats a lease. */
static uint64_t silent_us(const publisher_node_t *n, uint64_t now_us)
{
    const session_t *s = &n->member.session;
    uint64_t most_us = s->is_connected ? s->lease_us / 4 + ANSWER_US : 0;
    uint64_t silent_us = now_us - n->received_us - overdue_us(s, now_us);
    if (most_us < AWAY_US) most_us = AWAY_US;
    return s->state != SESSION_LEFT && silent_us >= most_us ? silent_us : 0;
}

/* The key was revoked, or lost its role: reports come no more until an admin changes that.  A broker that was
 * met without its key may be another one at its address, or be starting. */
static bool is_denied(const publisher_node_t *n)
{
    const heddle_error_t *why = &n->member.refusal;
    return why->code == HEDDLE_ERR_DENIED && !(n->is_connection_refused && why->retriable);
}

/* JUDGE, LATE and REPORT: the answer and the report are of the same moment, since both are made in one
 * turn of the loop. */
static int do_look(publisher_node_t *n, command_t *c, uint64_t now_us)
{
    command_look_t *look = &c->look;
    outcome_row_t *row = outcomes_find(&n->outcomes, look->version);
    int rc = HEDDLE_OK;
    if (!row) {
        rc = error_fail(c->error, HEDDLE_ERR_NOT_FOUND, "%s@%llu was not published here", n->adapter,
                        (unsigned long long)look->version);
        error_hint(c->error, "`heddle wait` waits for any version; a publisher remembers its last %u",
                   OUTCOMES_MAX);
    } else if (c->kind == COMMAND_LATE) {
        rc = outcomes_late(&n->outcomes, row, &look->want, look->waited_ms, c->error);
    } else if (c->kind == COMMAND_JUDGE) {
        /* A publisher that was fenced gets no more reports, so that a wait ends with the fence, unless a
         * question is still open. */
        rc = outcomes_judge(&n->outcomes, row, &look->want, c->error);
        bool is_asking = n->inquiry.version == look->version;
        if (rc == HEDDLE_ERR_AGAIN && n->fence.code && !is_asking) {
            *c->error = n->fence;
            rc = n->fence.code;
        } else if (rc == HEDDLE_ERR_AGAIN && is_denied(n)) {
            *c->error = n->member.refusal;
            error_where(c->error, n->adapter, look->version, NULL, NULL);
            rc = c->error->code;
        }
    }
    if (!look->report || (c->kind == COMMAND_JUDGE && rc == HEDDLE_ERR_AGAIN)) return rc;
    /* The report of a version of another publisher is empty, except for the state of the broker. */
    if (row) outcomes_copy(row, look->report);
    else
        *look->report = (heddle_report_t){.size = sizeof *look->report,
                                          .version = look->version,
                                          .staged_ms = -1,
                                          .active_ms = -1};
    bool is_settled = now_us >= n->settled_us;
    look->report->settling_ms = is_settled ? 0 : (uint32_t)((n->settled_us - now_us + 999) / 1000);
    look->report->silent_ms = (uint32_t)(silent_us(n, now_us) / 1000);
    return rc;
}

/* Closing the only source of a version loses it. The caller can wait while workers are fetching it. */
static int is_elsewhere(const publisher_node_t *n, bool *ret_wanted, heddle_error_t *error)
{
    const outcome_row_t *row = outcomes_newest(&n->outcomes);
    const publication_slot_t *slot = row ? publications_of(&n->publications, row->report.version) : NULL;
    *ret_wanted = false;
    if (!slot || slot->is_released || outcome_is_elsewhere(row)) return HEDDLE_OK;
    const char *why = row->report.message[0] ? row->report.message : "no worker has its bytes";
    error_fail(error, HEDDLE_ERR_VERSION_FAILED, "%s@%llu is lost when this publisher closes: %s", n->adapter,
               (unsigned long long)row->report.version, why);
    error_where(error, n->adapter, row->report.version, NULL, "fetch");
    error_hint(error, "wait for phase staged before closing; publish it again");
    bool has_ended = strcmp(row->report.state, "staging") != 0;
    if (has_ended || n->fence.code) return HEDDLE_ERR_VERSION_FAILED;
    /* One that waits for an earlier one to be staged is wanted, too: it is announced next. */
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) {
        const publication_slot_t *other = &n->publications.slots[i];
        row = other->state == PUBLICATION_SERVED ? outcomes_find(&n->outcomes, other->version) : NULL;
        if (row && row->report.eligible_count > 0 && !outcome_is_staging_over(row)) *ret_wanted = true;
    }
    return HEDDLE_ERR_AGAIN;
}

/* One command of the application's thread, between two turns of the loop. */
void publisher_node_do(void *node, void *command, uint64_t now_us)
{
    publisher_node_t *n = node;
    command_t *c = command;
    owner_check(n->member.io->owner);
    c->rc = HEDDLE_OK;
    switch (c->kind) {
    case COMMAND_OPENED: {
        /* A refusal that may pass is waited for. A broker that says no, or that the adapter has a writer,
         * will say so again; one that was met without its key may be starting.  A full disk may get room
         * again, but by a person, to whom it is to be reported at once. */
        const heddle_error_t *why = n->fence.code ? &n->fence : &n->member.refusal;
        bool will_be_denied = why->code == HEDDLE_ERR_DENIED && !n->is_connection_refused;
        bool may_pass = why->retriable && !will_be_denied && why->code != HEDDLE_ERR_WRITER_HELD &&
                        why->code != HEDDLE_ERR_NO_SPACE;
        *c->error = *why;
        /* The broker says that a member may try again, since an admin may give its key the role.  This call
         * ends, and so would the same call. */
        if (will_be_denied) c->error->retriable = 0;
        if (n->fence.code) c->rc = n->fence.code;
        else if (!is_ready(n)) c->rc = why->code && !may_pass ? why->code : HEDDLE_ERR_AGAIN;
        break;
    }
    case COMMAND_TAKE: c->rc = do_take(n, c, now_us); break;
    case COMMAND_GIVE_UP:
        n->take = TAKE_IDLE;
        publications_give_up(&n->publications);
        break;
    case COMMAND_GIVE_BACK: publications_give_back(&n->publications, c->slot); break;
    case COMMAND_PUBLISH:
        /* The request is kept until it is answered, across sessions. */
        n->request = (publish_try_t){.state = REQUEST_WAITING,
                                     .asked = c->request,
                                     .req = n->request.req,
                                     .resend_us = CLOCK_NEVER};
        /* Before it is named to the broker: a worker may ask as soon as it is announced. */
        publications_seal(&n->publications, c->request->slot, &c->request->sealed->part.manifest_digest,
                          c->request->sealed->content_bytes);
        if (n->fence.code) end_request(n, &n->fence);
        else send_request(n, now_us);
        break;
    case COMMAND_ABANDON: do_abandon(n); break;
    case COMMAND_JUDGE:
    case COMMAND_LATE:
    case COMMAND_REPORT: c->rc = do_look(n, c, now_us); break;
    case COMMAND_IS_ELSEWHERE:
        c->rc = is_elsewhere(n, &c->elsewhere.is_wanted, c->error);
        if (c->elsewhere.is_wanted) c->elsewhere.wanted_us = now_us;
        break;
    case COMMAND_LEAVE:
        /* Serving ends before the session does, so that the broker names no source that is gone. */
        publications_stop(&n->publications, 0);
        on_publisher_session(n, &(node_event_t){.kind = SE_LEAVE}, now_us);
        break;
    case COMMAND_HAS_LEFT:
        c->rc = n->member.session.state == SESSION_LEFT ? HEDDLE_OK : HEDDLE_ERR_AGAIN;
        break;
    }
    /* After the command, because a change of the pool is what another rest begins with. A call that only
     * looks may come as often as it likes. */
    if (c->kind == COMMAND_TAKE || c->kind == COMMAND_GIVE_BACK || c->kind == COMMAND_PUBLISH)
        regions_busy(n->publications.regions, now_us);
}

/* -- life ------------------------------------------------------------------------------------- */

/* What cannot be shared is copied: a publisher needs no more than its broker. Where the operator named a
 * directory for it, that is an error. */
static int open_sharing(publisher_node_t *n, const publisher_node_opts_t *opts, heddle_error_t *error)
{
    heddle_error_t why;
    publications_t *p = &n->publications;
    sharing_opts_t sharing = {.directory = opts->host_share,
                              .life = opts->life,
                              .pool = regions_pool(p->regions)};
    int rc = sharing_new(&sharing, &p->sharing, &why);
    if (!rc) regions_share(p->regions, sharing_offer(p->sharing));
    if (rc && opts->host_share && error) *error = why;
    if (!rc || opts->host_share) return rc;
    log_emit(LOG_WARN, "publisher.unshared", "workers of this host copy the versions of %s: %s%s%s",
             n->adapter, why.message, why.hint[0] ? "; " : "", why.hint);
    return HEDDLE_OK;
}

/* The clients of a node may call it before its first session: all states begin as "none". */
int publisher_node_new(const publisher_node_opts_t *opts, const node_io_t *io, publisher_node_t **ret_node,
                       heddle_error_t *error)
{
    publisher_node_t *n = calloc(1, sizeof *n);
    if (!n) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a publisher");
    error_text(n->adapter, sizeof n->adapter, opts->adapter);
    error_text(n->writer, sizeof n->writer, opts->writer);
    error_text(n->host, sizeof n->host, opts->host);
    error_text(n->broker, sizeof n->broker, opts->broker ? opts->broker : "its address");
    n->kind = opts->kind;
    n->takeover = opts->takeover;
    n->is_unread = opts->is_unread;
    n->max_rate_bytes = opts->max_rate_bytes;
    n->changed = opts->changed;
    n->self = opts->self;
    n->request.resend_us = CLOCK_NEVER;
    session_opts_t session = {.role = ROLE_PUBLISHER,
                              .life = opts->life,
                              .host = n->host,
                              .pid = opts->pid,
                              .seed = opts->seed};
    member_init(&n->member, &session, io);
    int rc = publications_init(&n->publications, n->member.io, opts->is_guarded);
    if (!rc) rc = outcomes_init(&n->outcomes, n->adapter);
    if (rc) error_fail(error, rc = HEDDLE_ERR_NO_MEMORY, "no memory for a publisher");
    if (!rc && opts->is_sharing) rc = open_sharing(n, opts, error);
    if (rc) {
        publisher_node_destroy(&n);
        return rc;
    }
    *ret_node = n;
    return HEDDLE_OK;
}

_Static_assert(PUBLISHER_FDS == SHARING_FDS, "those of its sharing");
uint32_t publisher_node_fds(const publisher_node_t *n, int ret_fds[PUBLISHER_FDS])
{
    if (!n->publications.sharing) return 0;
    sharing_fds(n->publications.sharing, ret_fds);
    return SHARING_FDS;
}

void publisher_node_destroy(publisher_node_t **n)
{
    if (!n || !*n) return;
    owner_check((*n)->member.io->owner);
    publications_fini(&(*n)->publications);
    outcomes_fini(&(*n)->outcomes);
    member_fini(&(*n)->member);
    free(*n);
    *n = NULL;
}
