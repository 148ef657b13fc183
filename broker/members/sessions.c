/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/members/sessions.h"

#include "broker/rollout/drain.h"
#include "broker/rollout/presence.h"
#include "broker/rollout/rollout.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/sorted.h"

#include <stdlib.h>

/* ---- connections ---- */

/* The one place that counts idle connections, but for those that come and go. */
static void bind_peer(broker_t *b, broker_peer_t *peer, uint64_t token)
{
    b->idle_count += !token;
    b->idle_count -= !peer->token;
    peer->token = token;
    peer->resumed_us = 0; /* what comes under a new token was sent after WELCOME */
}

static void unbind_peer(broker_t *b, uint64_t number, uint64_t token)
{
    broker_peer_t *peer = broker_peer(b, number);
    if (peer && peer->token == token) bind_peer(b, peer, 0);
}

static void forget_peer(broker_t *b, broker_peer_t *peer)
{
    bind_peer(b, peer, 0);
    b->idle_count--;
    b->ending_count -= peer->is_ending;
    pending_drop_peer(&b->pending, peer->peer);
    txn_forget_waiting(b, peer->peer);
    bool found;
    sorted_remove(b->peers, &b->peer_count,
                  sorted_place_number(b->peers, b->peer_count, peer->peer, broker_peer_number, &found));
    b->io.forget(b->io.self, peer->peer);
    free(peer);
}

void sessions_end_peer(broker_t *b, broker_peer_t *peer)
{
    b->ending_count += !peer->is_ending;
    peer->is_ending = true;
}

void sessions_forget_ending(broker_t *b)
{
    for (size_t i = b->peer_count; i-- > 0;)
        if (b->peers[i]->is_ending) forget_peer(b, b->peers[i]);
}

/* The table of connections is bounded, because any process that reaches the address may say HELLO. */
broker_peer_t *sessions_add_peer(broker_t *b, uint64_t number)
{
    if (b->idle_count >= BROKER_IDLE_PEERS) {
        /* ZeroMQ does not report that a command's connection has ended.  So where the table is full, the
         * connection without a session or a question that was silent for longest makes room. */
        broker_peer_t *silent = NULL;
        for (size_t i = 0; i < b->peer_count; i++) {
            broker_peer_t *one = b->peers[i];
            if (one->token || (silent && one->received_us >= silent->received_us)) continue;
            if (!pending_has_peer(&b->pending, one->peer) && !txn_has_waiting(b, one->peer)) silent = one;
        }
        if (silent) forget_peer(b, silent);
    }
    if (b->peer_count >= LIMIT_PEERS || !sorted_grow(&b->peers, b->peer_count, &b->peer_capacity))
        return NULL;
    broker_peer_t *peer = calloc(1, sizeof *peer);
    if (!peer) return NULL;
    peer->peer = number;
    bool found;
    sorted_insert(b->peers, &b->peer_count,
                  sorted_place_number(b->peers, b->peer_count, number, broker_peer_number, &found), peer);
    b->idle_count++;
    return peer;
}

/* ---- a session begins ---- */

member_hello_t sessions_hello(const broker_peer_t *peer)
{
    return (member_hello_t){.peer = peer->peer,
                            .role = peer->role,
                            .life = peer->life,
                            .host = peer->host,
                            .pid = peer->pid};
}

/* HELLO was checked against the key for its role, so messages of another role are refused. */
bool sessions_has_role(const call_t *c, role_t role)
{
    heddle_error_t error;
    if (c->peer->role == role) return true;
    error_fail(&error, HEDDLE_ERR_DENIED, "only a %s may send %s",
               role == ROLE_WORKER ? "worker" : "publisher", msg_name((int)c->m->type));
    broker_refuse(c, &error, 0);
    return false;
}

void sessions_send_fenced(broker_t *b, const asker_t *to, uint64_t token, const char *name,
                          const member_t *by)
{
    heddle_error_t error;
    if (by)
        error_fail(&error, HEDDLE_ERR_FENCED, "%s took over, from %s, pid %llu", by->name, by->host,
                   (unsigned long long)by->pid);
    else
        error_fail(&error, HEDDLE_ERR_FENCED,
                   "token %llu%s%s is not valid any more: its lease ended, or a newer session has the name",
                   (unsigned long long)token, *name ? " of " : "", name);
    error_hint(&error, "a worker joins again by itself");
    msg_t m;
    msg_from_error(&error, to->req, to->type, &m);
    m.error.token = token;
    outbox_send(b->out, to->peer, &m);
}

void sessions_stale_token(const call_t *c, uint64_t token)
{
    broker_t *b = c->b;
    /* A stale token changes nothing, and is counted. */
    bool is_known = c->peer->fenced_token == token;
    member_t *worker = c->peer->role == ROLE_WORKER ? membership_worker(&b->members, c->peer->name) : NULL;
    b->members.fenced_count++;
    if (worker) membership_note_rival(worker, token);
    sessions_send_fenced(b, &c->asker, token, c->peer->name, NULL);

    /* A fenced process may go on sending, and another process may send any number.  So there is an event for
     * tokens of this broker alone, once for each, and for one connection once a minute at most. */
    if (is_known || token < b->start_token || !membership_gave(&b->members, token)) return;
    if (c->peer->fenced_us && c->now.us < c->peer->fenced_us + FENCED_EVERY_US) {
        c->peer->fenced_unreported++;
        return;
    }
    c->peer->fenced_token = token;
    c->peer->fenced_us = c->now.us;
    event_type_t type = c->peer->role == ROLE_PUBLISHER ? EVENT_WRITER_FENCED : EVENT_WORKER_FENCED;
    event_row_t *e = events_add(&b->events, type, NULL, 0, c->peer->name, c->now);
    if (c->peer->fenced_unreported)
        events_message(e, HEDDLE_ERR_FENCED, "%s came under a stale token, and %llu more messages in between",
                       msg_name((int)c->m->type), (unsigned long long)c->peer->fenced_unreported);
    else events_message(e, HEDDLE_ERR_FENCED, "%s came under a stale token", msg_name((int)c->m->type));
    e->token = token;
    c->peer->fenced_unreported = 0;
}

void sessions_note_fenced(broker_t *b, const char *name, uint64_t token, const member_t *by, instant_t now)
{
    bool is_worker = by->role == ROLE_WORKER;
    event_row_t *e = events_add(&b->events, is_worker ? EVENT_WORKER_FENCED : EVENT_WRITER_FENCED,
                                is_worker ? NULL : by->subs[0].adapter, 0, name, now);
    events_message(e, HEDDLE_ERR_FENCED, "%s took over, from %s, pid %llu", by->name, by->host,
                   (unsigned long long)by->pid);
    error_text(e->other, sizeof e->other, by->name);
    e->token = token;
}

/* A new session of its name has replaced it: questions that wait for its answer must not wait any longer.  If
 * it was of another process, both get an error that says so.  A session of the same process replaces its own
 * quietly. */
static void end_replaced(broker_t *b, const admitted_t *admitted, instant_t now)
{
    uint64_t peer = admitted->replaced_peer, token = admitted->replaced_token;
    const member_t *by = admitted->member;
    if (!token) return;
    pending_member_gone(&b->pending, token);
    unbind_peer(b, peer, token);
    if (!admitted->is_fenced) return;
    const broker_peer_t *old = broker_peer(b, peer);
    sessions_send_fenced(b, &(asker_t){.peer = peer}, token, old ? old->name : by->name, by);
    if (by->role == ROLE_WORKER && admitted->was_gone) {
        /* Its process was killed and started again before its lease ended, as far as is known: a message
         * of the former one would say otherwise, and then it counts as fenced. */
        event_row_t *e = events_add(&b->events, EVENT_WORKER_LOST, NULL, 0, by->name, now);
        events_message(e, HEDDLE_ERR_UNAVAILABLE,
                       "its connection ended; it was started again on %s, pid %llu", by->host,
                       (unsigned long long)by->pid);
        e->token = token;
    } else sessions_note_fenced(b, old ? old->name : by->name, token, by, now);
}

void sessions_note_begun(const call_t *c, const member_t *member)
{
    char addresses[sizeof member->moved_from];
    const char *adapter = member->role == ROLE_PUBLISHER ? member->subs[0].adapter : NULL;
    event_row_t *e = events_add(&c->b->events, adapter ? EVENT_WRITER_OPENED : EVENT_WORKER_JOINED, adapter,
                                0, member->name, c->now);
    e->token = member->token;
    if (!member->moved_from[0]) return;
    member_addresses(member, addresses, sizeof addresses);
    events_message(e, HEDDLE_OK, "its data plane moved from %s to %s", member->moved_from, addresses);
}

void sessions_begin(const call_t *c, const admitted_t *admitted)
{
    bind_peer(c->b, c->peer, admitted->member->token);
    error_text(c->peer->name, sizeof c->peer->name, admitted->member->name);
    end_replaced(c->b, admitted, c->now);
}

void sessions_send_welcome(const call_t *c, const member_t *member, msg_welcome_t *welcome)
{
    msg_t m = {.type = MSG_WELCOME};
    m.welcome = *welcome;
    m.welcome.token = member->token;
    m.welcome.epoch = c->b->registry.epoch;
    m.welcome.lease_ms = c->b->opts.lease_ms;
    m.welcome.slots = member->slots;
    uint64_t settling_us = rollout_settling_us(&c->b->rollout, &c->b->members, c->now.us);
    m.welcome.settling_ms = (settling_us + 999) / 1000;
    outbox_send(c->b->out, c->from, &m);
}

void sessions_end_former(const call_t *c, role_t role, const char *key)
{
    member_t *former = c->peer->token ? membership_by_token(&c->b->members, c->peer->token) : NULL;
    if (!former) return;
    const char *former_key = former->role == ROLE_WORKER ? former->name : former->subs[0].adapter;
    if (former->role != role || strcmp(former_key, key)) sessions_end_member(c->b, former, END_LEFT, c->now);
}

/* ---- while it lasts ---- */

static bool ping(broker_t *b, uint64_t peer, uint64_t nonce)
{
    buf_t frame = {0};
    msg_t m = {.type = MSG_PING};
    m.ping.nonce = nonce;
    bool is_gone = msg_encode(&m, &frame) == HEDDLE_OK &&
                   b->io.send(b->io.self, peer, buf_view(&frame)) == HEDDLE_ERR_GONE;
    b->sent[MSG_PING]++;
    buf_fini(&frame);
    return is_gone;
}

/* A send is the only way to find out that a connection has ended: ZeroMQ reports it then, and not before. */
void sessions_probe(broker_t *b, member_t *member)
{
    if (ping(b, member->peer, member->token)) sessions_note_gone(b, member);
}

void sessions_note_gone(const broker_t *b, member_t *member)
{
    if (!broker_has_yielded(b)) member->is_gone = true;
}

bool sessions_is_gone(broker_t *b, uint64_t peer) { return ping(b, peer, 0); }

/* A worker without a place maps nothing in advance. */
void sessions_send_peers(broker_t *b, const member_t *worker)
{
    msg_peer_t peers[LIMIT_ADAPTERS_PER_WORKER];
    msg_t m = {.type = MSG_PEERS};
    m.peers = (msg_peers_t){.token = worker->token, .peers = peers};
    if (!worker->place) return;
    for (uint32_t i = 0; i < worker->sub_count; i++) {
        const member_t *p = membership_publisher(&b->members, worker->subs[i].adapter);
        if (p && p->place == worker->place) peers[m.peers.peer_count++] = (msg_peer_t){p->life};
    }
    outbox_send(b->out, worker->peer, &m);
}

void sessions_peers_changed(broker_t *b, const char *adapter, uint64_t place)
{
    for (size_t i = 0; place && i < b->members.worker_count; i++) {
        const member_t *w = b->members.workers[i];
        if (w->place == place && member_subscribes(w, adapter)) sessions_send_peers(b, w);
    }
}

void sessions_drain(broker_t *b, member_t *worker, instant_t now)
{
    if (!membership_drain(worker, now)) return;
    event_row_t *e = events_add(&b->events, EVENT_WORKER_DRAINING, NULL, 0, worker->name, now);
    e->token = worker->token;
    step_t step = broker_step(b, now);
    drain_begin(&step, worker);
}

/* The last heartbeat is answered once more: at the next one this broker may have ended, and another one takes
 * what the worker restates for a drain. */
static void send_staying(broker_t *b, const member_t *worker)
{
    msg_t m = {.type = MSG_HEARTBEAT_OK};
    m.heartbeat_ok = (msg_heartbeat_ok_t){.token = worker->token, .seq = worker->beat_seq, .stays = true};
    if (worker->beat_seq) outbox_send(b->out, worker->peer, &m);
}

int sessions_undrain(broker_t *b, member_t *worker, instant_t now, heddle_error_t *error)
{
    int rc;
    if (!membership_undrain(worker, &rc, error)) return rc;
    event_row_t *e = events_add(&b->events, EVENT_WORKER_STAYING, NULL, 0, worker->name, now);
    e->token = worker->token;
    send_staying(b, worker);
    return HEDDLE_OK;
}

/* ---- it ends ---- */

void sessions_note_closed(broker_t *b, const char *adapter, instant_t now)
{
    const adapter_row_t *a = registry_adapter(&b->registry, adapter);
    if (!a || !a->writer.token) return;
    if (a->writer.token >> 32 >= b->start_epoch) return; /* said when its session ended */
    event_row_t *e = events_add(&b->events, EVENT_WRITER_CLOSED, a->name, 0, a->writer.name, now);
    events_message(e, HEDDLE_ERR_UNAVAILABLE, "it did not come back after the broker's start");
}

/* The row ends first: it says how, when the copies go, and PEERS no longer names the publisher. */
void sessions_end_member(broker_t *b, member_t *member, member_end_t end, instant_t now)
{
    const char *adapter = member->role == ROLE_PUBLISHER ? member->subs[0].adapter : NULL;
    membership_end(&b->members, member, end, now);
    event_type_t type = adapter                        ? EVENT_WRITER_CLOSED
                        : member->state == MEMBER_LOST ? EVENT_WORKER_LOST
                                                       : EVENT_WORKER_LEFT;
    event_row_t *e = events_add(&b->events, type, adapter, 0, member->name, now);
    e->token = member->token;
    if (member->end_code) events_message(e, member->end_code, "%s", member->end_message);
    unbind_peer(b, member->peer, member->token);
    pending_member_gone(&b->pending, member->token);
    step_t step = broker_step(b, now);
    presence_gone(&step, member, member->state == MEMBER_LEFT);
    if (adapter) {
        b->has_abandoned = true;
        sessions_peers_changed(b, adapter, member->place);
    } else {
        roster_touch(b, ROSTER_SOON_US, now);
    }
}

void sessions_send_bye(broker_t *b, const asker_t *asker, uint64_t token)
{
    msg_t m = {.type = MSG_BYE};
    m.bye = (msg_bye_t){.token = token, .req = asker->req};
    outbox_send(b->out, asker->peer, &m);
    broker_peer_t *peer = broker_peer(b, asker->peer);
    if (peer) sessions_end_peer(b, peer);
}
