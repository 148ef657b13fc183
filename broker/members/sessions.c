/* SPDX-License-Identifier: Apache-2.0 */
#define HASH_NONFATAL_OOM 1
#include "broker/members/sessions.h"

#include "broker/client_keys.h"
#include "broker/registry/writer.h"
#include "broker/restored_numbers.h"
#include "broker/rollout/messages.h"
#include "broker/rollout/reports.h"
#include "core/errors.h"
#include "core/limits.h"
#include "formats/manifest.h"

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
    HASH_DEL(b->peers, peer);
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
    broker_peer_t *peer, *next;
    HASH_ITER(hh, b->peers, peer, next)
    if (peer->is_ending) forget_peer(b, peer);
}

/* The table of connections is bounded, because any process that reaches the address may say HELLO. */
static broker_peer_t *add_peer(broker_t *b, uint64_t number)
{
    if (b->idle_count >= BROKER_IDLE_PEERS) {
        /* ZeroMQ does not report that a command's connection has ended.  So where the table is full, the
         * connection without a session or a question that was silent for longest makes room. */
        broker_peer_t *silent = NULL, *one, *next;
        HASH_ITER(hh, b->peers, one, next)
        {
            if (one->token || (silent && one->heard_us >= silent->heard_us)) continue;
            if (!pending_has_peer(&b->pending, one->peer) && !txn_has_waiting(b, one->peer)) silent = one;
        }
        if (silent) forget_peer(b, silent);
    }
    if (HASH_COUNT(b->peers) >= LIMIT_PEERS) return NULL;
    broker_peer_t *peer = calloc(1, sizeof *peer);
    if (!peer) return NULL;
    peer->peer = number;
    HASH_ADD(hh, b->peers, peer, sizeof peer->peer, peer);
    if (!peer->hh.tbl) {
        free(peer);
        return NULL;
    }
    b->idle_count++;
    return peer;
}

/* A connection may say HELLO again, with another role: it is the same peer. */
void on_hello(const call_t *c)
{
    broker_t *b = c->b;
    const msg_hello_t *m = &c->m->hello;
    heddle_error_t error;
    if (m->wire_min > WIRE_VERSION_MAX || m->wire_max < WIRE_VERSION_MIN) {
        error_fail(&error, HEDDLE_ERR_WIRE_VERSION,
                   "no common wire version: the broker speaks %u to %u, the peer %llu to %llu",
                   WIRE_VERSION_MIN, WIRE_VERSION_MAX, (unsigned long long)m->wire_min,
                   (unsigned long long)m->wire_max);
        error_expected(&error, "%u to %u", WIRE_VERSION_MIN, WIRE_VERSION_MAX);
        error_found(&error, "%llu to %llu", (unsigned long long)m->wire_min, (unsigned long long)m->wire_max);
        error_hint(&error, "upgrade the %s", m->wire_max < WIRE_VERSION_MIN ? "peer" : "broker");
        broker_refuse(c, &error, 0);
        return;
    }
    if (m->role < ROLE_WORKER || m->role > ROLE_ADMIN) {
        error_fail(&error, HEDDLE_ERR_PROTOCOL, "HELLO names role %llu", (unsigned long long)m->role);
        error_contrast(&error, "1 worker, 2 publisher, 3 admin", NULL);
        broker_refuse(c, &error, 0);
        return;
    }
    broker_peer_t *peer = c->peer ? c->peer : add_peer(b, c->from);
    if (!peer) {
        error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "the broker has no place for another connection");
        error_expected(&error, "at most %u connections", LIMIT_PEERS);
        broker_refuse(c, &error, b->opts.lease_ms);
        return;
    }
    uint64_t wire = m->wire_max < WIRE_VERSION_MAX ? m->wire_max : WIRE_VERSION_MAX;
    peer->role = (role_t)m->role;
    peer->life = m->life;
    peer->pid = m->pid;
    peer->wire = wire;
    peer->heard_us = c->now.us;
    error_text(peer->host, sizeof peer->host, m->host ? m->host : "");
    if (c->key) memcpy(peer->key, c->key->public_key, sizeof peer->key);
    const char *text = strangers_hello(&b->foreign, m, b->opts.cluster, c->now);
    if (text && b->io.warn) b->io.warn(b->io.self, "broker.other_cluster", text);
    msg_t answer = {.type = MSG_HELLO_OK};
    answer.hello_ok = (msg_hello_ok_t){.wire = wire,
                                       .epoch = b->registry.epoch,
                                       .lease_ms = b->opts.lease_ms,
                                       .keep = b->opts.keep,
                                       .pid = b->opts.pid,
                                       .cluster = b->opts.cluster,
                                       .heddle = heddle_version()};
    outbox_send(b->out, c->from, &answer);
}

static member_hello_t hello_of(const broker_peer_t *peer)
{
    return (member_hello_t){.peer = peer->peer,
                            .role = peer->role,
                            .life = peer->life,
                            .host = peer->host,
                            .pid = peer->pid};
}

/* HELLO was checked against the key for its role, so messages of another role are refused. */
static bool has_role(const call_t *c, role_t role)
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
    error_hint(&error, "say HELLO and join again");
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
    char name[HEDDLE_NAME_MAX + 1];
    error_text(name, sizeof name, old ? old->name : by->name);
    sessions_send_fenced(b, &(asker_t){.peer = peer}, token, name, by);
    event_type_t type = by->role == ROLE_WORKER ? EVENT_WORKER_FENCED : EVENT_WRITER_FENCED;
    event_row_t *e =
        events_add(&b->events, type, by->role == ROLE_PUBLISHER ? by->subs[0].adapter : NULL, 0, name, now);
    events_message(e, HEDDLE_ERR_FENCED, "%s took over, from %s, pid %llu", by->name, by->host,
                   (unsigned long long)by->pid);
    error_text(e->other, sizeof e->other, by->name);
    e->token = token;
}

/* The same process now has other data plane addresses: operators see that in the event. */
static void explain_move(event_row_t *e, const member_t *member)
{
    char now[sizeof member->moved_from];
    if (!member->moved_from[0]) return;
    member_addresses(member, now, sizeof now);
    events_message(e, HEDDLE_OK, "its data plane moved from %s to %s", member->moved_from, now);
}

/* ---- workers ---- */

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
    if (ping(b, member->peer, member->token)) member->is_gone = true;
}

bool sessions_is_gone(broker_t *b, uint64_t peer) { return ping(b, peer, 0); }

static void send_welcome(const call_t *c, const member_t *member, msg_welcome_t *welcome)
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

/* One connection has one session.  A JOIN or OPEN under another name ends the former one. */
static void end_former(const call_t *c, role_t role, const char *key)
{
    member_t *former = c->peer->token ? membership_by_token(&c->b->members, c->peer->token) : NULL;
    if (!former) return;
    const char *former_key = former->role == ROLE_WORKER ? former->name : former->subs[0].adapter;
    if (former->role != role || strcmp(former_key, key)) sessions_end_member(c->b, former, END_LEFT, c->now);
}

/* ---- peers ---- */

/* A worker without a place maps nothing in advance. */
static void tell_peers(broker_t *b, const member_t *worker)
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

/* A publisher of the adapter came to this place, or left it. */
static void peers_changed(broker_t *b, const char *adapter, uint64_t place)
{
    for (size_t i = 0; place && i < b->members.worker_count; i++) {
        const member_t *w = b->members.workers[i];
        if (w->place == place && member_subscribes(w, adapter)) tell_peers(b, w);
    }
}

/* ---- workers ---- */

/* It is about to be forgotten, which is refused while a worker subscribes to it, as this one will. */
static bool is_being_forgotten(const broker_t *b, const msg_join_t *join)
{
    const outbox_t *open = &b->outboxes[b->out == b->outboxes];
    if (!b->txn.is_open || b->txn.kind != TXN_FORGET) return false;
    const char *name = open->records[open->record_count - 1].adapter;
    for (uint32_t i = 0; i < join->adapter_count; i++)
        if (!strcmp(join->adapters[i].adapter, name)) return true;
    return false;
}

/* The order matters: the former session of this connection ends first, and the holder of the name before the
 * rollouts see the new session. */
void on_join(const call_t *c)
{
    broker_t *b = c->b;
    const msg_join_t *join = &c->m->join;
    heddle_error_t error;
    uint64_t retry_ms = 0;
    admitted_t admitted;
    if (!has_role(c, ROLE_WORKER)) return;
    if (is_being_forgotten(b, join)) {
        txn_defer(c);
        return;
    }
    member_t *holder = membership_worker(&b->members, join->name);
    if (!keys_may_take_name(c, holder)) return;
    bool is_anothers = member_is_ready(holder) && memcmp(&holder->life, &c->peer->life, sizeof holder->life);
    if (is_anothers) sessions_probe(b, holder);
    if (holder) membership_note_rival(holder, join->prev_token);
    member_hello_t hello = hello_of(c->peer);
    if (membership_decide_join(&b->members, join, &hello, c->now.us, &retry_ms, &error)) {
        broker_refuse(c, &error, retry_ms);
        return;
    }
    if (!restored_numbers_check_join(c)) return;
    end_former(c, ROLE_WORKER, join->name);
    arena_t arena = {0};
    msg_welcome_t welcome = {.req = join->req};
    if (membership_join(&b->members, join, &hello, c->now, &admitted)) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "the broker has no memory for worker %s", join->name);
        broker_refuse(c, &error, b->opts.lease_ms);
        return;
    }
    member_t *member = admitted.member;
    bind_peer(b, c->peer, member->token);
    error_text(c->peer->name, sizeof c->peer->name, member->name);
    end_replaced(b, &admitted, c->now);
    step_t step = broker_step(b, c->now);
    if (report_joined(&step, member, join, &arena, &welcome)) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "the broker has no memory for what worker %s holds",
                   join->name);
        broker_refuse(c, &error, b->opts.lease_ms);
        sessions_end_member(b, member, END_LEFT, c->now);
    } else {
        send_welcome(c, member, &welcome);
        tell_peers(b, member);
        event_row_t *e = events_add(&b->events, EVENT_WORKER_JOINED, NULL, 0, member->name, c->now);
        e->token = member->token;
        explain_move(e, member);
        roster_touch(b, ROSTER_SOON_US, c->now);
        messages_wake(&step, member);
    }
    arena_fini(&arena);
}

/* ---- publishers ---- */

/* What it restates, each version once; how many. */
static uint32_t served_by(const msg_open_t *open, uint64_t ret_versions[LIMIT_OPEN_SERVED + 1])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i <= open->served_count; i++) {
        uint64_t version = i < open->served_count ? open->served[i] : open->serving;
        bool is_new = version != 0;
        for (uint32_t k = 0; k < count; k++) is_new &= ret_versions[k] != version;
        if (is_new) ret_versions[count++] = version;
    }
    return count;
}

bool sessions_is_same_open(const saved_frame_t *saved, const msg_open_t *open)
{
    msg_t m;
    if (msg_decode(bytes_of(saved->frame, saved->bytes), &m, NULL)) return false;
    bool is_same = !strcmp(m.open.adapter, open->adapter) && !strcmp(m.open.writer, open->writer);
    msg_fini(&m);
    return is_same;
}

void sessions_note_refused(broker_t *b, const saved_frame_t *open)
{
    msg_t m;
    uint64_t served[LIMIT_OPEN_SERVED + 1];
    if (msg_decode(bytes_of(open->frame, open->bytes), &m, NULL)) return;
    if (m.type == MSG_OPEN)
        rollout_note_refused(&b->rollout, m.open.adapter, served, served_by(&m.open, served));
    msg_fini(&m);
}

void on_open(const call_t *c)
{
    broker_t *b = c->b;
    const msg_open_t *open = &c->m->open;
    heddle_error_t error;
    if (!has_role(c, ROLE_PUBLISHER)) return;
    /* After a start the holder of an adapter may be on its way back.  Until settling ends it counts as
     * live. */
    const member_t *holder = membership_publisher(&b->members, open->adapter);
    open_by_t by = {.pid = c->peer->pid,
                    .host = c->peer->host,
                    .life = c->peer->life,
                    .holder_is_live = holder || !b->rollout.is_settled,
                    .is_of_before = !holder,
                    .heartbeat_age_ms =
                        holder ? member_silent_ms(holder, c->now.us) : (c->now.us - b->started_us) / 1000};
    int rc = membership_decide_open(&b->members, open, &error);
    if (!rc) rc = writer_check_open(&b->registry, open, &by, &error);
    if (!rc && !restored_numbers_check_open(c)) return;
    by.token = rc ? 0 : membership_next_token(&b->members); /* of the epoch that was recovered */
    if (!rc) rc = writer_decide_open(&b->registry, open, &by, c->now, b->out, &error);
    if (rc) {
        broker_refuse(c, &error, b->opts.lease_ms / 4);
        return;
    }
    txn_t txn = {.kind = TXN_OPEN,
                 .asker = c->asker,
                 .deadline_us = c->deadline_us,
                 .retry_ms = b->opts.lease_ms / 4,
                 .frame = txn_save_frame(c)};
    if (txn.frame) txn_commit(b, &txn, c->now, &error);
    else b->out->record_count = 0;
}

/* The order matters: the former writer of the adapter ends before the rollouts see the new session, and
 * WELCOME is sent before any ROLLOUT of it. */
static void begin_writer(const call_t *c, uint64_t token)
{
    broker_t *b = c->b;
    const msg_open_t *open = &c->m->open;
    heddle_error_t error;
    uint64_t served[LIMIT_OPEN_SERVED + 1];
    admitted_t admitted;
    member_hello_t hello = hello_of(c->peer);
    uint32_t served_count = served_by(open, served);
    end_former(c, ROLE_PUBLISHER, open->adapter);
    const member_t *former = membership_publisher(&b->members, open->adapter);
    uint64_t former_place = former ? former->place : 0;
    if (membership_open(&b->members, open, &hello, token, c->now, &admitted)) {
        b->has_abandoned = true;
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "the broker has no memory for writer %s", open->writer);
        broker_refuse(c, &error, b->opts.lease_ms);
        return;
    }
    const member_t *member = admitted.member;
    bind_peer(b, c->peer, member->token);
    error_text(c->peer->name, sizeof c->peer->name, member->name);
    end_replaced(b, &admitted, c->now);
    step_t step = broker_step(b, c->now);
    report_opened(&step, member, served, served_count);
    for (uint32_t i = 0; i < open->offered_count; i++)
        report_offered(&step, member, open->offered[i].version, &open->offered[i].region);

    /* WELCOME names the active version, and what of its own the publisher goes on serving. */
    msg_keep_t keep[LIMIT_OPEN_SERVED + 1];
    const adapter_row_t *a = registry_adapter(&b->registry, member->subs[0].adapter);
    const version_row_t *active = registry_active(a), *newest = registry_newest(a);
    msg_decision_t decision = {.adapter = a->name, .decision = a->decision, .version = a->active};
    msg_welcome_t welcome = {.req = open->req, .adapters = &decision, .adapter_count = 1, .keep = keep};
    if (active) decision.digest = active->digest;
    if (newest)
        welcome.content_bytes = manifest_offset(newest->part.payload_bytes) + newest->part.manifest_bytes;
    for (uint32_t i = 0; i < served_count; i++) {
        const version_row_t *row = registry_version(a, served[i]);
        if (row && registry_is_live(row))
            keep[welcome.keep_count++] = (msg_keep_t){a->name, row->version, row->share_key};
    }
    send_welcome(c, member, &welcome);
    peers_changed(b, open->adapter, member->place);
    if (former_place != member->place) peers_changed(b, open->adapter, former_place);

    /* A version that it still serves may have ended.  ROLLOUT says so here, because no later event would. */
    for (uint32_t i = 0; i < served_count; i++) {
        const version_row_t *row = registry_version(a, served[i]);
        if (row && registry_is_live(row)) continue;
        if (row) {
            messages_send_rollout(&step, a->name, served[i], member);
            continue;
        }
        msg_t m = {.type = MSG_ROLLOUT};
        m.rollout = (msg_rollout_t){.token = member->token,
                                    .version = served[i],
                                    .adapter = a->name,
                                    .state = "lost",
                                    .code = heddle_err_name(HEDDLE_ERR_VERSION_LOST),
                                    .message = "the broker does not know it, or not any more"};
        outbox_send(b->out, c->from, &m);
    }
    event_row_t *e = events_add(&b->events, EVENT_WRITER_OPENED, open->adapter, 0, member->name, c->now);
    e->token = member->token;
    explain_move(e, member);
}

/* The WRITER record is on disk.  If the publisher is gone by now, its record is closed again. */
void sessions_begin_writer(broker_t *b, uint64_t token, instant_t now)
{
    const saved_frame_t *r = b->txn.frame;
    call_t c = {.b = b,
                .from = r->asker.peer,
                .asker = r->asker,
                .peer = broker_peer(b, r->asker.peer),
                .now = now};
    msg_t m;
    heddle_error_t error;
    if (!c.peer || c.peer->role != ROLE_PUBLISHER) { /* the publisher left */
        b->has_abandoned = true;
    } else if (msg_decode(bytes_of(r->frame, r->bytes), &m, &error)) {
        b->has_abandoned = true;
        broker_refuse_asker(b, &r->asker, &error, b->opts.lease_ms);
    } else {
        c.m = &m;
        begin_writer(&c, token);
        msg_fini(&m);
    }
}

void sessions_note_closed(broker_t *b, const char *adapter, instant_t now)
{
    const adapter_row_t *a = registry_adapter(&b->registry, adapter);
    if (!a || !a->writer.token) return;
    if (a->writer.token >> 32 >= b->start_epoch) return; /* said when its session ended */
    event_row_t *e = events_add(&b->events, EVENT_WRITER_CLOSED, a->name, 0, a->writer.name, now);
    events_message(e, HEDDLE_ERR_UNAVAILABLE, "it did not come back after the broker's start");
}

/* ---- both ---- */

/* A message to this member was not sent, and it is not known which.  The member joins again, restates what
 * it has, and WELCOME brings it up to date.  If this error cannot be sent either, broker_send_outbox asks
 * for it again. */
static void call_again(const call_t *c)
{
    heddle_error_t error;
    uint64_t token = c->member->token;
    error_fail(&error, HEDDLE_ERR_NOT_FOUND, "something for token %llu of %s was lost: its queue was full",
               (unsigned long long)token, c->member->name);
    error_hint(&error, "say HELLO and join again");
    msg_t m;
    msg_from_error(&error, 0, c->m->type, &m);
    m.error.token = token;
    c->member->needs_resync = false;
    outbox_send(c->b->out, c->from, &m);
}

/* The answer renews the member's own view of its lease, so it is sent before anything else. */
void on_heartbeat(const call_t *c)
{
    broker_t *b = c->b;
    const msg_heartbeat_t *hb = &c->m->heartbeat;
    membership_heartbeat(&b->members, c->member, hb, c->now.us);
    msg_t m = {.type = MSG_HEARTBEAT_OK};
    m.heartbeat_ok = (msg_heartbeat_ok_t){.token = hb->token, .seq = hb->seq};
    outbox_send(b->out, c->from, &m);
    step_t step = broker_step(b, c->now);
    if (c->member->role == ROLE_WORKER) report_progress(&step, c->member, hb);
    if (c->member->needs_resync) call_again(c);
}

/* ---- ends ---- */

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
    report_gone(&step, member, member->state == MEMBER_LEFT);
    if (adapter) {
        b->has_abandoned = true;
        peers_changed(b, adapter, member->place);
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

/* The writer's record is closed before BYE is sent, even while the broker settles: a publisher that left
 * does not come back, and the next writer must not wait for it.  If the store refuses or is busy, the
 * record is closed later. */
void on_leave(const call_t *c)
{
    broker_t *b = c->b;
    heddle_error_t error;
    /* No deadline: its client waits for a second, and goes. */
    txn_t txn = {.kind = TXN_LEAVE, .asker = c->asker, .token = c->member->token};
    const char *adapter = c->member->role == ROLE_PUBLISHER ? c->member->subs[0].adapter : "";
    const adapter_row_t *a = registry_adapter(&b->registry, adapter);
    sessions_end_member(b, c->member, END_LEFT, c->now);
    if (writer_is_session(a, txn.token) && !b->txn.is_open) {
        writer_decide_close(a, c->now, b->out);
        txn_commit(b, &txn, c->now, &error);
    } else {
        sessions_send_bye(b, &txn.asker, txn.token);
    }
}
