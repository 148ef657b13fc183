/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/inbox.h"

#include "broker/members/sessions.h"
#include "broker/registry/active.h"
#include "broker/registry/writer.h"
#include "broker/restored_numbers.h"
#include "broker/rollout/messages.h"
#include "broker/rollout/presence.h"
#include "core/errors.h"
#include "core/limits.h"
#include "formats/manifest.h"

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

bool open_is_same(const saved_frame_t *saved, const msg_open_t *open)
{
    msg_t m;
    if (msg_decode(bytes_of(saved->frame, saved->bytes), &m, NULL)) return false;
    bool is_same = !strcmp(m.open.adapter, open->adapter) && !strcmp(m.open.writer, open->writer);
    msg_fini(&m);
    return is_same;
}

void open_note_refused(broker_t *b, const saved_frame_t *open)
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
    if (!sessions_has_role(c, ROLE_PUBLISHER)) return;
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
    member_hello_t hello = sessions_hello(c->peer);
    uint32_t served_count = served_by(open, served);
    sessions_end_former(c, ROLE_PUBLISHER, open->adapter);
    const member_t *former = membership_publisher(&b->members, open->adapter);
    uint64_t former_place = former ? former->place : 0;
    if (membership_open(&b->members, open, &hello, token, c->now, &admitted)) {
        b->has_abandoned = true;
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "the broker has no memory for writer %s", open->writer);
        broker_refuse(c, &error, b->opts.lease_ms);
        return;
    }
    const member_t *member = admitted.member;
    sessions_begin(c, &admitted);
    step_t step = broker_step(b, c->now);
    presence_opened(&step, member, served, served_count);
    for (uint32_t i = 0; i < open->offered_count; i++)
        presence_offered(&step, member, open->offered[i].version, &open->offered[i].region);

    /* WELCOME names the active version, and what of its own the publisher goes on serving. */
    msg_keep_t keep[LIMIT_OPEN_SERVED + 1];
    const adapter_row_t *a = registry_adapter(&b->registry, member->subs[0].adapter);
    const version_row_t *active = registry_active(a), *newest = registry_newest(a);
    msg_decision_t decision = {.adapter = a->name, .decision = a->decision, .version = active_latest(a)};
    msg_welcome_t welcome = {.req = open->req, .adapters = &decision, .adapter_count = 1, .keep = keep};
    if (active) decision.digest = active->digest;
    if (newest)
        for (uint32_t i = 0; i < newest->parts.count; i++)
            welcome.content_bytes +=
                manifest_offset(newest->parts.part[i].payload_bytes) + newest->parts.part[i].manifest_bytes;
    for (uint32_t i = 0; i < served_count; i++) {
        const version_row_t *row = registry_version(a, served[i]);
        if (row && registry_is_live(row))
            keep[welcome.keep_count++] = (msg_keep_t){a->name, row->version, row->share_key};
    }
    sessions_send_welcome(c, member, &welcome);
    sessions_peers_changed(b, open->adapter, member->place);
    if (former_place != member->place) sessions_peers_changed(b, open->adapter, former_place);

    /* A version that it still serves may have ended.  ROLLOUT says so here, because no later event would. */
    for (uint32_t i = 0; i < served_count; i++) {
        const version_row_t *row = registry_version(a, served[i]);
        if (!row || !registry_is_live(row))
            messages_send_rollout(&step, a->name, served[i], &(rollout_to_t){member->peer, member->token, 0});
    }
    sessions_note_begun(c, member);
}

/* The WRITER record is on disk.  If the publisher is gone by now, its record is closed again.  One that got
 * an error takes no WELCOME: it opens anew, or has ended. */
void open_recorded(broker_t *b, uint64_t token, instant_t now)
{
    const saved_frame_t *r = b->txn.frame;
    call_t c = {.b = b,
                .from = r->asker.peer,
                .asker = r->asker,
                .peer = broker_peer(b, r->asker.peer),
                .now = now};
    msg_t m;
    heddle_error_t error;
    if (!c.peer || c.peer->role != ROLE_PUBLISHER || b->txn.is_answered) { /* the publisher left */
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
