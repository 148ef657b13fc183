/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/inbox.h"

#include "broker/members/sessions.h"
#include "broker/registry/active.h"
#include "broker/registry/publish.h"
#include "broker/registry/writer.h"
#include "broker/rollout/presence.h"
#include "core/errors.h"

/* The deadline of a publication counts from its call, and here it begins when the message is read.  After a
 * silence that call may have failed long ago, so that its version must not become active.  A publisher that
 * still waits sends it again, with what is left. */
bool publish_is_put_off(const call_t *c)
{
    const broker_peer_t *peer = c->peer;
    uint64_t until_us = peer->resumed_us + c->b->opts.lease_ms * 1000 / 4;
    heddle_error_t error;
    if (c->again || !peer->resumed_us || c->now.us >= until_us) return false;
    error_fail(&error, HEDDLE_ERR_UNAVAILABLE,
               "this publisher was silent for half a lease; its PUBLISH of %s may be old",
               c->m->publish.adapter);
    error_where(&error, c->m->publish.adapter, 0, NULL, "commit");
    error_hint(&error, "nothing was recorded; try again");
    broker_refuse(c, &error, (until_us - c->now.us) / 1000 + 1);
    return true;
}

/* A publication is decided (registry/) and recorded; what follows from the record, ANNOUNCE among it,
 * follows when it is applied (txn.h).  Without the adapter's writer only a repeated request is answered. */
void on_publish(const call_t *c)
{
    broker_t *b = c->b;
    const msg_publish_t *m = &c->m->publish;
    const adapter_row_t *a = registry_adapter(&b->registry, m->adapter);
    member_t *sender = membership_by_token(&b->members, m->token);
    if (sender && sender->peer != c->from) sender = NULL;
    bool is_writer = sender && writer_is_session(a, sender->token);
    char addresses[HEDDLE_NAME_MAX + 1] = "", held[512];
    publish_by_t by = {.now = c->now,
                       .adapter = a,
                       .peer = c->from,
                       .token = sender ? sender->token : 0,
                       .addresses = addresses};
    if (is_writer) {
        membership_received(&b->members, sender, c->now.us);
        by.writer = sender->name;
        by.live = track_newest_live(&b->rollout, a);
        by.is_live_whole = by.live && track_is_whole(track_find(&b->rollout, a->name, by.live->version));
        if (b->rollout.is_settled) {
            by.cut_off_count = membership_cut_off(&b->members, sender);
            if (by.cut_off_count) member_addresses(sender, addresses, sizeof addresses);
        } else { /* members may still come back, with these bytes, or on the same loopback */
            by.uncertain = track_uncertain(&b->rollout, a, &m->digest);
        }
    }
    if (a && a->held) {
        summary_held_text(&b->rollout, a, held, sizeof held);
        by.held = held;
        by.held_version = active_latest(a);
    }
    b->io.random(b->io.self, &by.share_key, sizeof by.share_key);

    heddle_error_t error;
    publish_answer_t published = {0};
    int rc = publish_decide(m, &by, b->out, &published, &error);
    if (rc == HEDDLE_ERR_FENCED) {
        b->members.fenced_count++;
        sessions_send_fenced(b, &c->asker, m->token, c->peer->name, NULL);
    } else if (rc) {
        bool may_change = rc == HEDDLE_ERR_UNAVAILABLE && error.retriable; /* when the broker has settled */
        uint64_t wait_us = rollout_settling_us(&b->rollout, &b->members, c->now.us);
        broker_refuse(c, &error, may_change ? wait_us / 1000 + 1 : 0);
    } else {
        txn_t txn = {.kind = TXN_PUBLISH, .asker = c->asker, .deadline_us = c->deadline_us};
        rc = txn_commit(b, &txn, c->now, &error);
        step_t step = broker_step(b, c->now);
        if (!rc && !published.is_new && is_writer) { /* no record: it is there already */
            presence_republished(&step, sender, published.version);
            presence_offered(&step, sender, published.version, &m->region);
        }
    }
}
