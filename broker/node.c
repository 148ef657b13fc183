/* SPDX-License-Identifier: Apache-2.0 */
/* A turn of the broker: frames come in, records are made durable, sends leave. */
#include "broker/node.h"

#include "broker/apply.h"
#include "broker/call.h"
#include "broker/keys.h"
#include "broker/questions/query.h"
#include "broker/sessions.h"
#include "broker/versions.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"

#include <stddef.h>
#include <stdlib.h>

#define LEASE_DEFAULT_MS 4000u

/* ---- life ---- */

int broker_new(const broker_opts_t *opts, const broker_io_t *io, broker_t **ret_broker,
               heddle_error_t *error)
{
    if (opts->keep > REGISTRY_KEEP_MAX) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "the broker cannot keep %llu versions",
                            (unsigned long long)opts->keep);
        error_expected(error, "0 to %u", REGISTRY_KEEP_MAX);
        error_found(error, "%llu", (unsigned long long)opts->keep);
        return rc;
    }
    broker_t *b = calloc(1, sizeof *b);
    if (!b) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the broker");
    owner_check(&b->owner);
    b->opts = *opts;
    b->io = *io;
    if (!b->opts.lease_ms) b->opts.lease_ms = LEASE_DEFAULT_MS;
    registry_init(&b->registry);
    membership_init(&b->members, b->opts.lease_ms * 1000, opts->keep);
    rollout_init(&b->rollout, b->opts.lease_ms * 1000, opts->keep, opts->seed);
    pending_init(&b->pending);
    *ret_broker = b;
    return HEDDLE_OK;
}

void broker_destroy(broker_t **broker)
{
    broker_t *b = *broker;
    if (!b) return;
    *broker = NULL;
    owner_check(&b->owner);
    broker_peer_t *peer, *next;
    HASH_ITER (hh, b->peers, peer, next) {
        HASH_DEL(b->peers, peer);
        free(peer);
    }
    pending_fini(&b->pending);
    rollout_fini(&b->rollout);
    membership_fini(&b->members);
    registry_fini(&b->registry);
    events_fini(&b->events);
    outbox_fini(&b->out);
    outbox_fini(&b->txn_out);
    free(b->txn.request);
    for (request_t *r = b->requests, *after; r; r = after) {
        after = r->next;
        free(r);
    }
    auth_fini(&b->auth);
    free(b);
}

int broker_load(broker_t *b, const record_t *record)
{
    owner_check(&b->owner);
    return broker_apply_row(b, record);
}

int broker_start(broker_t *b, instant_t now)
{
    owner_check(&b->owner);
    if (!b->registry.epoch) return HEDDLE_ERR_INTERNAL;
    uint64_t lease_us = b->opts.lease_ms * 1000;
    /* An empty registry has no members that could come back, so nothing waits for them. */
    uint64_t settle_end_us = b->registry.adapter_count ? now.us + lease_us : now.us;
    int rc = events_init(&b->events, b->registry.epoch);
    if (rc) return rc;
    b->start_epoch = b->registry.epoch;
    b->start_token = b->start_epoch << 32;
    b->started_us = now.us;
    b->started_ms = now.wall_ms;
    membership_start(&b->members, b->registry.epoch, now.us, settle_end_us);
    rc = rollout_start(&b->rollout, broker_view(b, now), settle_end_us);
    if (rc) return rc;
    b->has_abandoned = true;
    event_row_t *e = events_add(&b->events, EVENT_BROKER_STARTED, NULL, 0, NULL, now);
    events_say(e, HEDDLE_OK, "epoch %llu, %zu adapters", (unsigned long long)b->registry.epoch,
               b->registry.adapter_count);
    broker_decide_all(b, now);
    return b->is_broken ? HEDDLE_ERR_NO_MEMORY : HEDDLE_OK;
}

bool broker_is_settling(const broker_t *b, uint64_t now_us)
{
    return rollout_is_settling(&b->rollout, now_us);
}

const events_t *broker_events(const broker_t *b) { return &b->events; }

bool broker_knows_keys(const broker_t *b) { return b->auth.keys != NULL; }

void broker_end_broken(broker_t *b, int code, const char *what, heddle_error_t *error)
{
    b->is_broken = true;
    if (what) error_fail(error, code, "%s", what);
    b->io.fatal(b->io.self, error);
}

/* ---- sends ---- */

/* The receiver does not get this message, so it is logged.  A client without HELLO_OK would wait for ever,
 * and so would every other client: that ends the process. */
void broker_note_unsendable(broker_t *b)
{
    char text[128];
    heddle_error_t error;
    msg_type_t type = b->out.unsendable;
    if (!type) return;
    b->out.unsendable = (msg_type_t)0;
    text_printf(text, sizeof text, "%s is out of its own limits and was not sent: an error of the broker",
                msg_name((int)type));
    if (type == MSG_HELLO_OK && !b->is_broken) broker_end_broken(b, HEDDLE_ERR_INTERNAL, text, &error);
    else if (b->io.warn) b->io.warn(b->io.self, "broker.unsendable", text);
}

/* A refused send means that the member lacks a message.  It is called to join again at its next heartbeat,
 * and WELCOME then restates everything. */
static void note_send(broker_t *b, const send_t *send, int rc)
{
    b->sent[send->type]++;
    if (rc == HEDDLE_OK) return;
    b->dropped_sends++;
    broker_peer_t *peer = broker_peer(b, send->peer);
    member_t *member = peer && peer->token ? membership_by_token(&b->members, peer->token) : NULL;
    if (!member) return;
    if (rc == HEDDLE_ERR_GONE) member->is_gone = true;
    else member->needs_resync = true;
}

void broker_send_outbox(broker_t *b)
{
    broker_note_unsendable(b);
    if (b->out.failed) {
        /* Without memory a message is missing, and it is not known which: each member is called to join again
         * at its next heartbeat. */
        for (size_t i = 0; i < b->members.token_count; i++) b->members.tokens[i]->needs_resync = true;
    }
    for (size_t i = 0; i < b->out.send_count; i++) {
        const send_t *send = &b->out.sends[i];
        bool is_refused = FAILPOINT_OF("broker.send", msg_name((int)send->type));
        note_send(b, send,
                  is_refused ? HEDDLE_ERR_SLOW
                             : b->io.send(b->io.self, send->peer, outbox_frame(&b->out, i)));
    }
    outbox_clear(&b->out);
    if (b->ending_count) broker_forget_ending(b);
}

/* Without memory for a worker that a rollout waits for, `all` would be decided without that worker.  The
 * process ends instead: a restart restores everything. */
static bool ends_incomplete(broker_t *b)
{
    heddle_error_t error;
    if (!b->rollout.is_incomplete || b->is_broken) return b->is_broken;
    outbox_clear(&b->out);
    broker_end_broken(b, HEDDLE_ERR_NO_MEMORY, "no memory for what a version waits for", &error);
    return true;
}

/* Closes the records of writers whose session has ended.  While the broker settles they may still come
 * back. */
static void close_abandoned(broker_t *b, instant_t now)
{
    if (!b->has_abandoned || !b->rollout.is_settled) return;
    b->has_abandoned = false;
    for (size_t i = 0; i < b->registry.adapter_count && !b->has_abandoned; i++) {
        const adapter_row_t *a = b->registry.adapters[i];
        if (!a->writer.token || membership_publisher(&b->members, a->name)) continue;
        if (outbox_has_room(&b->out, 1)) registry_decide_close(a, now, &b->out);
        else b->has_abandoned = true; /* the rest comes with the next transaction */
    }
}

/* Each commit may make another decision possible, so this repeats until no record is added.  It stops
 * while a transaction is open: decisions must see its result. */
void broker_decide_all(broker_t *b, instant_t now)
{
    heddle_error_t error;
    int rc = HEDDLE_OK;
    while (!rc) {
        if (ends_incomplete(b)) return;
        rollout_tick(&b->rollout, broker_view(b, now), &b->events, &b->out);
        broker_send_outbox(b); /* sent even if the commit of the decisions fails */
        if (ends_incomplete(b)) return;
        b->is_undecided |= b->txn.is_open;
        if (b->txn.is_open || b->retry_us) break; /* broker_committed or broker_tick goes on from here */
        rollout_decide(&b->rollout, broker_view(b, now), &b->out);
        close_abandoned(b, now);
        if (!b->out.record_count) break;
        rc = broker_commit(b, &(txn_t){.kind = TXN_OWN}, now, &error);
    }
    broker_send_outbox(b);
    b->has_news = true;
}

/* ---- refusals ---- */

static uint64_t request_number(const msg_t *m)
{
    switch (m->type) {
    case MSG_JOIN: return m->join.req;
    case MSG_OPEN: return m->open.req;
    case MSG_PUBLISH: return m->publish.req;
    case MSG_QUERY: return m->query.req;
    case MSG_LEAVE: return m->leave.req;
    default: return 0;
    }
}

asker_t asker_of(const call_t *c) { return (asker_t){c->from, request_number(c->m), c->m->type}; }

/* A request that waited keeps its first deadline. */
uint64_t request_deadline_us(const call_t *c)
{
    if (c->again) return c->again->deadline_us;
    uint64_t asked_ms = c->m->type == MSG_PUBLISH ? c->m->publish.deadline_ms : 0;
    return c->now.us + (asked_ms ? asked_ms : c->b->opts.lease_ms) * 1000;
}

void broker_refuse_asker(broker_t *b, const asker_t *asker, const heddle_error_t *error, uint64_t retry_ms)
{
    msg_t m;
    msg_from_error(error, asker->req, asker->type, &m);
    m.error.retry_ms = retry_ms;
    outbox_send(&b->out, asker->peer, &m);
}

void broker_refuse(const call_t *c, const heddle_error_t *error, uint64_t retry_ms)
{
    asker_t asker = asker_of(c);
    broker_refuse_asker(c->b, &asker, error, retry_ms);
}

static void send_fenced(broker_t *b, uint64_t peer, uint64_t token, uint64_t req, msg_type_t of,
                        const char *name)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_FENCED,
               "token %llu%s%s is not valid any more: its lease ended, or a newer session has the name",
               (unsigned long long)token, *name ? " of " : "", name);
    error_hint(&error, "say HELLO and join again");
    msg_t m;
    msg_from_error(&error, req, of, &m);
    m.error.token = token;
    outbox_send(&b->out, peer, &m);
}

void broker_tell_fenced(const call_t *c, uint64_t token)
{
    send_fenced(c->b, c->from, token, request_number(c->m), c->m->type, c->peer->name);
}

void broker_tell_replaced(broker_t *b, uint64_t peer, uint64_t token, const char *name)
{
    send_fenced(b, peer, token, 0, (msg_type_t)0, name);
}

/* ---- dispatch ---- */

typedef enum { NEEDS_NOTHING, NEEDS_HELLO, NEEDS_TOKEN, NEEDS_WORKER } needs_t;
typedef struct {
    void (*handle)(const call_t *c);
    needs_t needs;
    bool decides;      /* from all that is recorded: it waits while a transaction is open */
} route_t;

static const route_t ROUTES[] = {
    [MSG_HELLO] = {on_hello, NEEDS_NOTHING},   [MSG_JOIN] = {on_join, NEEDS_HELLO},
    [MSG_OPEN] = {on_open, NEEDS_HELLO, true},       [MSG_QUERY] = {on_query, NEEDS_HELLO},
    [MSG_PUBLISH] = {on_publish, NEEDS_HELLO, true}, [MSG_HEARTBEAT] = {on_heartbeat, NEEDS_TOKEN},
    [MSG_LEAVE] = {on_leave, NEEDS_TOKEN},     [MSG_NEED_SOURCES] = {on_need_sources, NEEDS_WORKER},
    [MSG_STAGED] = {on_staged, NEEDS_WORKER},  [MSG_ACTIVE] = {on_active, NEEDS_WORKER},
    [MSG_NACK] = {on_nack, NEEDS_WORKER},      [MSG_VERIFIED] = {on_verified, NEEDS_WORKER},
    [MSG_PING] = {NULL, NEEDS_NOTHING},
};

/* token_of reads the token of each of these messages, so it must be at the same place in all of them. */
#define BEGINS_WITH_TOKEN(message)                                                                          \
    _Static_assert(offsetof(msg_t, message.token) == offsetof(msg_t, heartbeat.token), "the token is first")
BEGINS_WITH_TOKEN(leave);
BEGINS_WITH_TOKEN(need_sources);
BEGINS_WITH_TOKEN(staged);
BEGINS_WITH_TOKEN(active);
BEGINS_WITH_TOKEN(nack);
BEGINS_WITH_TOKEN(verified);
static uint64_t token_of(const msg_t *m) { return m->heartbeat.token; }

static void out_of_place(call_t *c, const char *why)
{
    heddle_error_t error;
    c->b->bad_frames++;
    error_fail(&error, HEDDLE_ERR_PROTOCOL, "%s %s", msg_name((int)c->m->type), why);
    error_hint(&error, "docs/protocol.md lists which messages are allowed, and when");
    broker_refuse(c, &error, 0);
}

/* A stale token changes nothing, and is counted.  The event is written once for each token, because a
 * fenced process may go on sending. */
static void fence(call_t *c)
{
    broker_t *b = c->b;
    uint64_t token = token_of(c->m);
    bool is_known = c->peer->fenced_token == token;
    member_t *worker =
        c->peer->role == ROLE_WORKER ? membership_worker(&b->members, c->peer->name) : NULL;
    b->members.fenced_count++;
    /* A token of an earlier broker's session counts for no worker. */
    if (worker && token >> 32 == worker->token >> 32) worker->counts.fenced++;
    broker_tell_fenced(c, token);
    if (is_known) return;
    c->peer->fenced_token = token;
    event_type_t type = c->peer->role == ROLE_PUBLISHER ? EVENT_WRITER_FENCED : EVENT_WORKER_FENCED;
    event_row_t *e = events_add(&b->events, type, NULL, 0, c->peer->name, c->now);
    events_say(e, HEDDLE_ERR_FENCED, "%s came under a stale token", msg_name((int)c->m->type));
    e->token = token;
}

/* Finds the session that the message belongs to.  A token is good only on the connection that got it.
 * False: the message was refused. */
static bool find_member(call_t *c, needs_t needs)
{
    member_t *member = membership_by_token(&c->b->members, token_of(c->m));
    if (!member || member->peer != c->from) {
        fence(c);
        return false;
    }
    if (needs == NEEDS_WORKER && member->role != ROLE_WORKER) {
        out_of_place(c, "is not for publishers to send");
        return false;
    }
    c->member = member;
    membership_heard(&c->b->members, member, c->now.us);
    return true;
}

/* Requests that decide something wait while a transaction is open.  Reports of workers do not: they change
 * soft state alone. */
static void dispatch(call_t *c)
{
    size_t type = (size_t)c->m->type;
    const route_t *route = type < sizeof ROUTES / sizeof *ROUTES ? &ROUTES[type] : NULL;
    if (c->m->type == MSG_PING) return;
    if (!route || !route->handle) out_of_place(c, "is not for the broker");
    else if (route->needs != NEEDS_NOTHING && !c->peer) out_of_place(c, "came before HELLO");
    else if (route->decides && c->b->txn.is_open) broker_defer(c);
    else if (route->needs < NEEDS_TOKEN || find_member(c, route->needs)) route->handle(c);
}

static void tell_bad_frame(broker_t *b, uint64_t peer, const heddle_error_t *error)
{
    msg_t answer;
    b->bad_frames++;
    msg_from_error(error, 0, (msg_type_t)0, &answer);
    outbox_send(&b->out, peer, &answer);
    broker_send_outbox(b);
}

/* There is no memory to decode this frame.  Its content is lost through no fault of the sender, so that
 * member is called to join again at its next heartbeat. */
static void lose_frame(broker_t *b, uint64_t from, instant_t now)
{
    broker_peer_t *peer = broker_peer(b, from);
    member_t *member = peer && peer->token ? membership_by_token(&b->members, peer->token) : NULL;
    if (!member) return; /* it asks again */
    membership_heard(&b->members, member, now.us);
    member->needs_resync = true;
}

void broker_bad_frame(broker_t *b, uint64_t peer, const char *why, instant_t now)
{
    owner_check(&b->owner);
    (void)now;
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_PROTOCOL, "frame is no message: %s", why);
    tell_bad_frame(b, peer, &error);
}

/* `again` NULL: the frame was received just now, and is not a request that waited. */
static void handle(broker_t *b, uint64_t from, bytes_t frame, const msg_t *m, const request_t *again,
                   instant_t now)
{
    call_t c = {.b = b, .m = m, .frame = frame, .from = from, .again = again, .now = now};
    c.peer = broker_peer(b, from);
    if (broker_allows(&c)) dispatch(&c);
}

/* The last step of each event: everything that follows is decided, and then the requests that waited are
 * handled one by one. */
static void go_on(broker_t *b, instant_t now)
{
    broker_decide_all(b, now);
    for (request_t *r; !b->is_broken && (r = broker_next_request(b)) != NULL;) {
        heddle_error_t error;
        msg_t m;
        bytes_t frame = bytes_of(r->frame, r->bytes);
        if (msg_decode(frame, &m, &error) == HEDDLE_OK) {
            handle(b, r->asker.peer, frame, &m, r, now);
            msg_fini(&m);
        } else { /* it was decoded when it was received, so memory is missing now */
            broker_refuse_asker(b, &r->asker, &error, b->opts.lease_ms / 4);
        }
        free(r);
        broker_decide_all(b, now);
    }
}

void broker_frame(broker_t *b, uint64_t from, bytes_t frame, instant_t now)
{
    owner_check(&b->owner);
    if (b->is_broken) return;
    heddle_error_t error;
    msg_t m;
    int rc = msg_decode(frame, &m, &error);
    if (!rc && FAILPOINT_OF("broker.frame", msg_name((int)m.type))) {
        msg_fini(&m);
        rc = HEDDLE_ERR_NO_MEMORY;
    }
    if (rc == HEDDLE_ERR_NO_MEMORY) lose_frame(b, from, now);
    else if (rc) tell_bad_frame(b, from, &error);
    if (rc) return;
    broker_peer_t *peer = broker_peer(b, from);
    if (peer) peer->heard_us = now.us;
    b->received[m.type]++;
    handle(b, from, frame, &m, NULL, now);
    /* Most frames are heartbeats that change nothing.  They cost no look at the rollouts. */
    if (m.type == MSG_HEARTBEAT && !b->rollout.is_dirty) broker_send_outbox(b);
    else go_on(b, now);
    msg_fini(&m);
}

/* Rollouts that changed during the commit were left undecided, and are looked at now. */
void broker_committed(broker_t *b, int rc, const heddle_error_t *error, instant_t now)
{
    owner_check(&b->owner);
    if (b->is_broken || !b->txn.is_open) return;
    heddle_error_t why = error ? *error : (heddle_error_t){0};
    broker_end_txn(b, rc, now, &why);
    if (b->is_undecided && !b->retry_us) rollout_stir(&b->rollout);
    b->is_undecided = false;
    go_on(b, now);
}

/* ---- time ---- */

/* Everything that time alone changes: leases, late requests, and the retry after a refused commit. */
void broker_tick(broker_t *b, instant_t now)
{
    owner_check(&b->owner);
    if (b->is_broken) return;
    membership_tick(&b->members, now);
    member_t *lapsed;
    while ((lapsed = membership_lapsed(&b->members, now.us)) != NULL)
        broker_end_member(b, lapsed, MEMBER_LOST, NULL, now);
    broker_end_late_requests(b, now);
    if (b->retry_us && now.us >= b->retry_us && !b->txn.is_open) {
        b->retry_us = 0;
        if (b->is_read_only) {
            /* The store refused the last commit.  The epoch is written again, which changes nothing, to
             * find out whether the store accepts records. */
            heddle_error_t error;
            record_t *rec = outbox_record(&b->out, RECORD_EPOCH, "", now);
            rec->epoch = b->registry.epoch;
            broker_commit(b, &(txn_t){.kind = TXN_OWN}, now, &error);
            b->is_undecided |= b->txn.is_open;
        }
        if (!b->is_read_only) rollout_stir(&b->rollout);
    }
    bool can_close = b->has_abandoned && b->rollout.is_settled && !b->retry_us && !b->txn.is_open;
    if (b->rollout.is_dirty || now.us >= rollout_deadline(&b->rollout) || can_close) go_on(b, now);
}

/* The end of a turn.  Publishers get ROLLOUT here, once for all frames of the turn.  Returns when the next
 * tick is due. */
uint64_t broker_flush(broker_t *b, instant_t now)
{
    owner_check(&b->owner);
    if (b->is_broken) return CLOCK_NEVER;
    broker_answer_pending(b, now);
    rollout_flush(&b->rollout, broker_view(b, now), &b->events, &b->out);
    broker_send_outbox(b);
    uint64_t next = clock_earlier(membership_deadline(&b->members), rollout_deadline(&b->rollout));
    next = clock_earlier(next, pending_deadline(&b->pending));
    next = clock_earlier(next, broker_request_deadline(b));
    return b->retry_us && !b->txn.is_open ? clock_earlier(next, b->retry_us) : next;
}
