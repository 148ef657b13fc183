/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/inbox.h"

#include "broker/keys/client_keys.h"
#include "broker/inbox/report.h"
#include "broker/members/sessions.h"
#include "broker/questions/query.h"
#include "core/errors.h"

#include <stddef.h>

static void out_of_place(const call_t *c, const char *why)
{
    heddle_error_t error;
    c->b->bad_frames++;
    error_fail(&error, HEDDLE_ERR_PROTOCOL, "%s %s", msg_name((int)c->m->type), why);
    error_hint(&error, "docs/protocol.md lists which messages are allowed, and when");
    broker_refuse(c, &error, 0);
}

/* A session sends four heartbeats a lease.  What comes after a longer silence may have waited on the network,
 * or here while this process stood still.  Frames that waited come together, in their order. */
static void note_received(broker_t *b, broker_peer_t *peer, uint64_t now_us)
{
    if (peer->token && now_us - peer->received_us >= b->opts.lease_ms * 1000 / 2) peer->resumed_us = now_us;
    peer->received_us = now_us;
}

/* What a message needs before it is handled.  0: it is not for the broker. */
typedef enum { NEEDS_NOTHING = 1, NEEDS_HELLO, NEEDS_TOKEN, NEEDS_WORKER } needs_t;
typedef struct {
    needs_t needs;
    bool decides; /* from all that is recorded: it waits while a transaction is open */
    size_t req;   /* where its request number is; 0: it has none */
} route_t;

static const route_t ROUTES[] = {
    [MSG_HELLO] = {NEEDS_NOTHING},
    [MSG_PING] = {NEEDS_NOTHING},
    [MSG_JOIN] = {NEEDS_HELLO, .req = offsetof(msg_t, join.req)},
    [MSG_OPEN] = {NEEDS_HELLO, true, offsetof(msg_t, open.req)},
    [MSG_QUERY] = {NEEDS_HELLO, .req = offsetof(msg_t, query.req)},
    [MSG_PUBLISH] = {NEEDS_HELLO, true, offsetof(msg_t, publish.req)},
    [MSG_HEARTBEAT] = {NEEDS_TOKEN},
    [MSG_LEAVE] = {NEEDS_TOKEN, .req = offsetof(msg_t, leave.req)},
    [MSG_NEED_SOURCES] = {NEEDS_WORKER},
    [MSG_STAGED] = {NEEDS_WORKER},
    [MSG_ACTIVE] = {NEEDS_WORKER},
    [MSG_NACK] = {NEEDS_WORKER},
    [MSG_VERIFIED] = {NEEDS_WORKER},
};

/* inbox_handle reads the token of each message that needs one, so it must be at the same place in all. */
#define BEGINS_WITH_TOKEN(message)                                                                           \
    _Static_assert(offsetof(msg_t, message.token) == offsetof(msg_t, heartbeat.token), "the token is first")
BEGINS_WITH_TOKEN(leave);
BEGINS_WITH_TOKEN(need_sources);
BEGINS_WITH_TOKEN(staged);
BEGINS_WITH_TOKEN(active);
BEGINS_WITH_TOKEN(nack);
BEGINS_WITH_TOKEN(verified);

void inbox_handle(call_t *c)
{
    broker_t *b = c->b;
    const msg_t *m = c->m;
    heddle_error_t error;
    int rc = HEDDLE_OK;
    static const route_t FOREIGN;
    const route_t *route = (size_t)m->type < sizeof ROUTES / sizeof *ROUTES ? &ROUTES[m->type] : &FOREIGN;

    /* The answer goes to this request, by its deadline: that of a publication is its own, all else has a
     * lease.  A request that waited keeps its first deadline. */
    c->peer = broker_peer(b, c->from);
    if (c->peer && !c->again) note_received(b, c->peer, c->now.us);
    c->asker = (asker_t){.peer = c->from, .type = m->type};
    if (route->req) memcpy(&c->asker.req, (const char *)m + route->req, sizeof c->asker.req);
    uint64_t asked_ms = m->type == MSG_PUBLISH ? m->publish.deadline_ms : 0;
    c->deadline_us =
        c->again ? c->again->deadline_us : c->now.us + (asked_ms ? asked_ms : b->opts.lease_ms) * 1000;

    /* Keys are looked up for each message, so that a revoked key ends at once. */
    if (b->io.key) {
        const char *proved = b->io.key(b->io.self, c->from);
        c->key = proved ? auth_key(&b->auth, proved) : NULL;
        if (!auth_is_live(c->key) || auth_check(c->key, m, &error) != HEDDLE_OK) {
            keys_deny(c, proved, &error);
            return;
        }
    }

    if (!route->needs) {
        out_of_place(c, "is not for the broker");
        return;
    }
    if (route->needs != NEEDS_NOTHING && !c->peer) {
        out_of_place(c, "came before HELLO");
        return;
    }
    if (m->type == MSG_PUBLISH && publish_is_put_off(c)) return;
    /* Requests that decide something wait while a transaction is open.  Reports of workers do not: they
     * change soft state alone. */
    if (route->decides && b->txn.is_open) {
        txn_defer(c);
        return;
    }

    if (route->needs >= NEEDS_TOKEN) {
        c->member = membership_by_token(&b->members, m->heartbeat.token);
        if (!c->member || c->member->peer != c->from) {
            sessions_stale_token(c, m->heartbeat.token);
            return;
        }
        if (route->needs == NEEDS_WORKER && c->member->role != ROLE_WORKER) {
            out_of_place(c, "is not for publishers to send");
            return;
        }
        membership_received(&b->members, c->member, c->now.us);
    }

    step_t step = broker_step(b, c->now);
    switch (m->type) {
    case MSG_HELLO: on_hello(c); break;
    case MSG_JOIN: on_join(c); break;
    case MSG_OPEN: on_open(c); break;
    case MSG_QUERY: on_query(c); break;
    case MSG_PUBLISH: on_publish(c); break;
    case MSG_HEARTBEAT: on_heartbeat(c); break;
    case MSG_LEAVE: on_leave(c); break;
    case MSG_NEED_SOURCES: rc = on_need_sources(&step, c->member, &m->need_sources, &error); break;
    case MSG_STAGED: rc = on_staged(&step, c->member, &m->staged, &error); break;
    case MSG_ACTIVE:
        rc = on_active(&step, c->member, &m->active, &error);
        roster_touch(c->b, ROSTER_LATE_US, c->now);
        break;
    case MSG_NACK: rc = on_nack(&step, c->member, &m->nack, &error); break;
    case MSG_VERIFIED:
        pending_verified(&b->pending, c->member, &m->verified);
        on_verified(&step, c->member, &m->verified);
        break;
    default: break;
    }
    if (rc) broker_refuse(c, &error, 0); /* a worker's report has no other answer */
}
