/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/inbox.h"

#include "broker/members/sessions.h"
#include "core/errors.h"
#include "core/limits.h"

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
    broker_peer_t *peer = c->peer ? c->peer : sessions_add_peer(b, c->from);
    if (!peer) {
        error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "the broker's table of connections is full");
        error_expected(&error, "at most %u connections", LIMIT_PEERS);
        broker_refuse(c, &error, b->opts.lease_ms);
        return;
    }
    uint64_t wire = m->wire_max < WIRE_VERSION_MAX ? m->wire_max : WIRE_VERSION_MAX;
    peer->role = (role_t)m->role;
    peer->life = m->life;
    peer->pid = m->pid;
    peer->wire = wire;
    peer->received_us = c->now.us;
    error_text(peer->host, sizeof peer->host, m->host);
    if (c->key) memcpy(peer->key, c->key->public_key, sizeof peer->key);
    const char *text = strangers_hello(&b->foreign, m, b->opts.cluster, c->now);
    if (text && b->io.warn) b->io.warn(b->io.self, "broker.other_cluster", text);
    msg_broker_t brokers[LIMIT_BROKERS];
    const brokers_t *known = b->io.brokers ? b->io.brokers(b->io.self) : NULL;
    peer->told_brokers = brokers_mark(known);
    msg_t answer = {.type = MSG_HELLO_OK};
    answer.hello_ok = (msg_hello_ok_t){.wire = wire,
                                       .epoch = b->registry.epoch,
                                       .lease_ms = b->opts.lease_ms,
                                       .keep = b->opts.keep,
                                       .pid = b->opts.pid,
                                       .cluster = b->opts.cluster,
                                       .heddle = heddle_version(),
                                       .brokers = brokers,
                                       .broker_count = brokers_tell(known, brokers)};
    outbox_send(b->out, c->from, &answer);
}
