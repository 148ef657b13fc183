/* SPDX-License-Identifier: Apache-2.0 */
/* A turn of the broker: frames come in, records are made durable, sends leave. */
#include "broker/broker.h"

#include "broker/inbox/inbox.h"
#include "broker/members/sessions.h"
#include "broker/questions/query.h"
#include "broker/registry/writer.h"
#include "broker/rollout/fetches.h"
#include "broker/rollout/messages.h"
#include "broker/rollout/rollout.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/sorted.h"

#include <stdlib.h>

#define LEASE_DEFAULT_MS 4000u

/* ---- life ---- */

int broker_new(const broker_opts_t *opts, const broker_io_t *io, broker_t **ret_broker, heddle_error_t *error)
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
    b->out = &b->outboxes[0];
    if (!b->opts.lease_ms) b->opts.lease_ms = LEASE_DEFAULT_MS;
    registry_init(&b->registry);
    membership_init(&b->members, b->opts.lease_ms * 1000, opts->keep);
    tracks_init(&b->rollout, b->opts.lease_ms * 1000, opts->keep, opts->shape, opts->seed);
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
    for (size_t i = 0; i < b->peer_count; i++) free(b->peers[i]);
    free(b->peers);
    pending_fini(&b->pending);
    tracks_fini(&b->rollout);
    membership_fini(&b->members);
    registry_fini(&b->registry);
    events_fini(&b->events);
    for (int i = 0; i < 2; i++) outbox_fini(&b->outboxes[i]);
    free(b->txn.frame);
    for (saved_frame_t *r = b->waiting, *after; r; r = after) {
        after = r->next;
        free(r);
    }
    auth_fini(&b->auth);
    free(b);
}

int broker_start(broker_t *b, instant_t now)
{
    owner_check(&b->owner);
    if (!b->registry.epoch) return HEDDLE_ERR_INTERNAL;
    uint64_t lease_us = b->opts.lease_ms * 1000;
    /* An empty registry has no members that could come back, so nothing waits for them. */
    bool may_return = b->registry.adapter_count || b->registry.worker_count;
    int rc = events_init(&b->events, b->registry.epoch);
    if (rc) return rc;
    b->start_epoch = b->registry.epoch;
    b->start_token = b->start_epoch << 32;
    b->started_us = now.us;
    b->started_ms = now.wall_ms;
    membership_start(&b->members, b->registry.epoch, now.us, may_return ? now.us + lease_us : now.us);
    rc = rollout_start(&b->rollout, broker_view(b, now));
    if (rc) return rc;
    roster_start(b);
    b->has_abandoned = true;
    size_t adapters = 0;
    for (size_t i = 0; i < b->registry.adapter_count; i++)
        adapters += !registry_is_vacant(b->registry.adapters[i]);
    event_row_t *e = events_add(&b->events, EVENT_BROKER_STARTED, NULL, 0, NULL, now);
    events_message(e, HEDDLE_OK, "epoch %llu, %zu %s", (unsigned long long)b->registry.epoch, adapters,
                   adapters == 1 ? "adapter" : "adapters");
    if (b->opts.former && *b->opts.former && strcmp(b->opts.former, b->opts.endpoint)) {
        e = events_add(&b->events, EVENT_LEADER_CHANGED, NULL, 0, NULL, now);
        events_message(e, HEDDLE_OK, "%.60s leads, in place of %.60s", b->opts.endpoint, b->opts.former);
    }
    broker_go_on(b, now);
    return b->state == BROKER_BROKEN ? HEDDLE_ERR_NO_MEMORY : HEDDLE_OK;
}

const key16_t *broker_admin(const broker_t *b, uint64_t number)
{
    const broker_peer_t *peer = broker_peer(b, number);
    return peer && peer->role == ROLE_ADMIN ? &peer->life : NULL;
}

void broker_offer_questions(broker_t *b, uint64_t until_us, broker_takes_t *takes, void *self)
{
    owner_check(&b->owner);
    for (pending_row_t *row = b->pending.rows, *next; row; row = next) {
        next = row->next;
        if (row->deadline_us > until_us && takes(self, row->peer, row->req)) pending_drop(&b->pending, row);
    }
}

const events_t *broker_events(const broker_t *b) { return &b->events; }

bool broker_knows_keys(const broker_t *b) { return b->auth.keys != NULL; }

void broker_end_broken(broker_t *b, int code, const char *what, heddle_error_t *error)
{
    b->state = BROKER_BROKEN;
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
    msg_type_t type = b->out->unsendable;
    if (!type) return;
    b->out->unsendable = (msg_type_t)0;
    text_printf(text, sizeof text, "%s is out of its own limits and was not sent: an error of the broker",
                msg_name((int)type));
    if (type == MSG_HELLO_OK && b->state != BROKER_BROKEN)
        broker_end_broken(b, HEDDLE_ERR_INTERNAL, text, &error);
    else if (b->io.warn) b->io.warn(b->io.self, "broker.unsendable", text);
}

uint64_t broker_peer_number(const void *row) { return ((const broker_peer_t *)row)->peer; }

broker_peer_t *broker_peer(const broker_t *b, uint64_t peer)
{
    return sorted_find_number(b->peers, b->peer_count, peer, broker_peer_number);
}

/* The live session of a connection; NULL: it has none. */
static member_t *session_of(const broker_t *b, uint64_t number)
{
    const broker_peer_t *peer = broker_peer(b, number);
    return peer && peer->token ? membership_by_token(&b->members, peer->token) : NULL;
}

void broker_send_outbox(broker_t *b)
{
    broker_note_unsendable(b);
    if (b->out->failed) {
        /* Without memory a message is missing, and it is not known which: each member is called to join
         * again at its next heartbeat. */
        for (size_t i = 0; i < b->members.token_count; i++) b->members.tokens[i]->needs_resync = true;
    }
    for (size_t i = 0; i < b->out->send_count; i++) {
        const outbox_send_t *send = &b->out->sends[i];
        bool is_refused = FAILPOINT_OF("broker.send", msg_name((int)send->type));
        int rc = is_refused ? HEDDLE_ERR_SLOW : b->io.send(b->io.self, send->peer, outbox_frame(b->out, i));
        b->sent[send->type]++;
        if (rc == HEDDLE_OK) continue;
        /* The member lacks a message.  It is called to join again at its next heartbeat, and WELCOME then
         * restates everything. */
        b->dropped_sends++;
        member_t *member = session_of(b, send->peer);
        if (member && rc == HEDDLE_ERR_GONE) {
            sessions_note_gone(b, member);
            fetches_unreached(&b->rollout, member);
        } else if (member) {
            member->needs_resync = true;
        }
    }
    outbox_clear(b->out);
    if (b->ending_count) sessions_forget_ending(b);
}

/* ---- what an event leads to ---- */

/* Without memory for a worker that a rollout waits for, `all` would be decided without that worker.  The
 * process ends instead: a restart restores everything. */
static bool ends_incomplete(broker_t *b)
{
    heddle_error_t error;
    if (b->state == BROKER_BROKEN) return true;
    if (!b->rollout.is_incomplete) return false;
    outbox_clear(b->out);
    broker_end_broken(b, HEDDLE_ERR_NO_MEMORY, "no memory for what a version waits for", &error);
    return true;
}

/* Records of writers whose session has ended are closed; not while the broker settles, because a publisher
 * may still come back. */
static void close_abandoned(broker_t *b, instant_t now)
{
    if (!b->has_abandoned || !b->rollout.is_settled) return;
    b->has_abandoned = false;
    for (size_t i = 0; i < b->registry.adapter_count && !b->has_abandoned; i++) {
        const adapter_row_t *a = b->registry.adapters[i];
        if (!a->writer.token || membership_publisher(&b->members, a->name)) continue;
        if (outbox_has_room(b->out, 1)) writer_decide_close(a, now, b->out);
        else b->has_abandoned = true; /* the rest comes with the next transaction */
    }
}

void broker_decide(broker_t *b, instant_t now)
{
    heddle_error_t error;
    for (;;) {
        if (ends_incomplete(b)) return;
        step_t step = broker_step(b, now); /* a transaction that opens takes the outbox with it */
        rollout_look_at_touched(&step);
        broker_send_outbox(b); /* sent even if the commit of the decisions fails */
        if (ends_incomplete(b)) return;

        /* Nothing is decided while a transaction is open, because decisions must see its result, nor after a
         * refused commit: broker_committed or broker_tick goes on from here.  Each commit may make another
         * decision possible, so this repeats until no record is added. */
        if (!b->txn.is_open && !b->retry_us) {
            rollout_decide_touched(&b->rollout, broker_view(b, now), b->out);
            close_abandoned(b, now);
            /* The roster has a transaction of its own: if its write fails, no decision is delayed. */
            if (!b->out->record_count) roster_decide(b, now);
            txn_t own = {.kind = TXN_OWN};
            if (b->out->record_count && txn_commit(b, &own, now, &error) == HEDDLE_OK) continue;
        }
        broker_send_outbox(b);
        b->has_news = true;
        return;
    }
}

/* Requests that waited for the transaction are handled one by one, each with all that follows. */
void broker_go_on(broker_t *b, instant_t now)
{
    broker_decide(b, now);
    while (b->waiting && !b->txn.is_open && b->state != BROKER_BROKEN) {
        txn_handle_waiting(b, now);
        broker_decide(b, now);
    }
}

/* ---- refusals ---- */

void broker_refuse_asker(broker_t *b, const asker_t *asker, const heddle_error_t *error, uint64_t retry_ms)
{
    msg_t m;
    msg_from_error(error, asker->req, asker->type, &m);
    m.error.retry_ms = retry_ms;
    outbox_send(b->out, asker->peer, &m);
}

/* ---- frames ---- */

static void tell_bad_frame(broker_t *b, uint64_t peer, const heddle_error_t *error)
{
    b->bad_frames++;
    broker_refuse_asker(b, &(asker_t){.peer = peer}, error, 0);
    broker_send_outbox(b);
}

void broker_bad_frame(broker_t *b, uint64_t peer, const char *why)
{
    owner_check(&b->owner);
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_PROTOCOL, "the frame is not a message: %s", why);
    tell_bad_frame(b, peer, &error);
}

void broker_frame(broker_t *b, uint64_t from, bytes_t frame, instant_t now)
{
    owner_check(&b->owner);
    if (b->state == BROKER_BROKEN) return;
    heddle_error_t error;
    msg_t m;
    int rc = msg_decode(frame, &m, &error);
    if (!rc && FAILPOINT_OF("broker.frame", msg_name((int)m.type))) {
        msg_fini(&m);
        rc = HEDDLE_ERR_NO_MEMORY;
    }
    if (rc == HEDDLE_ERR_NO_MEMORY) {
        /* The frame's content is lost through no fault of the sender.  A member is called to join again at
         * its next heartbeat, and all others ask again. */
        member_t *member = session_of(b, from);
        if (!member) return;
        membership_received(&b->members, member, now.us);
        member->needs_resync = true;
        return;
    }
    if (rc) {
        tell_bad_frame(b, from, &error);
        return;
    }
    b->received[m.type]++;
    inbox_handle(&(call_t){.b = b, .m = &m, .frame = frame, .from = from, .now = now});
    /* Most frames are heartbeats that change nothing.  They cost no look at the rollouts. */
    if (m.type == MSG_HEARTBEAT && !b->rollout.touched) broker_send_outbox(b);
    else broker_go_on(b, now);
    msg_fini(&m);
}

/* ---- time ---- */

/* Everything that time alone changes: leases, late requests, and the retry after a refused commit. */
void broker_tick(broker_t *b, instant_t now)
{
    owner_check(&b->owner);
    if (b->state == BROKER_BROKEN) return;
    membership_tick(&b->members, now);
    if (broker_has_yielded(b)) membership_give_grace(&b->members, now.us);
    member_t *lapsed;
    while ((lapsed = membership_lapsed(&b->members, now.us)) != NULL)
        sessions_end_member(b, lapsed, END_LAPSED, now);
    roster_end_grace(b, now);
    txn_end_late_waiting(b, now);
    if (b->retry_us && now.us >= b->retry_us && !b->txn.is_open) {
        b->retry_us = 0;
        if (b->state == BROKER_READ_ONLY) {
            /* The store refused the last commit.  The epoch is written again, which changes nothing, to
             * find out whether the store accepts records. */
            heddle_error_t error;
            record_t *rec = outbox_record(b->out, RECORD_EPOCH, "", now);
            rec->epoch = b->registry.epoch;
            txn_commit(b, &(txn_t){.kind = TXN_OWN}, now, &error);
        }
        if (b->state == BROKER_READY) rollout_look_again(&b->rollout);
    }
    bool can_write = !b->retry_us && !b->txn.is_open;
    bool is_owed = (b->has_abandoned && b->rollout.is_settled) || now.us >= roster_deadline(b);
    if (now.us >= rollout_deadline(&b->rollout) || (is_owed && can_write)) broker_go_on(b, now);
}

/* A clean end: what changed of the roster is recorded now, because no later turn will. */
void broker_end(broker_t *b, instant_t now)
{
    owner_check(&b->owner);
    if (b->state == BROKER_BROKEN || b->roster.write_us == CLOCK_NEVER) return;
    roster_touch(b, 0, now);
    broker_go_on(b, now);
}

/* The end of a turn.  Publishers get ROLLOUT here, once for all frames of the turn.  Returns when the next
 * tick is due. */
uint64_t broker_flush(broker_t *b, instant_t now)
{
    owner_check(&b->owner);
    if (b->state == BROKER_BROKEN) return CLOCK_NEVER;
    if (b->pending.rows) query_answer_pending(b, now);
    step_t step = broker_step(b, now);
    messages_flush(&step);
    broker_send_outbox(b);
    uint64_t next = clock_earlier(membership_deadline(&b->members), rollout_deadline(&b->rollout));
    next = clock_earlier(next, pending_deadline(&b->pending));
    next = clock_earlier(next, txn_waiting_deadline(b));
    if (b->txn.is_open) return next;
    return clock_earlier(next, b->retry_us ? b->retry_us : roster_deadline(b));
}
