/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/versions.h"

#include "broker/rollout/reports.h"
#include "core/errors.h"

/* The writer of the adapter, if this token is its session.  NULL: only a repeated request is answered. */
static const member_t *writer_of(const call_t *c)
{
    const member_t *member = membership_by_token(&c->b->members, c->m->publish.token);
    const adapter_row_t *a = registry_adapter(&c->b->registry, c->m->publish.adapter);
    bool is_writer = member && member->peer == c->from && a && a->writer.token == member->token;
    return is_writer ? member : NULL;
}

/* The sender is not the adapter's writer, and this is not a repeated request: its token is stale, or
 * belongs to another adapter. */
static void refuse_foreign_token(const call_t *c, heddle_error_t *error)
{
    broker_t *b = c->b;
    const member_t *member = membership_by_token(&b->members, c->m->publish.token);
    if (member && member->peer == c->from) {
        error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH to %s by a session that did not open it",
                   c->m->publish.adapter);
        broker_refuse(c, error, 0);
        return;
    }
    b->members.fenced_count++;
    broker_tell_fenced(c, c->m->publish.token);
}

void on_publish(const call_t *c)
{
    broker_t *b = c->b;
    const msg_publish_t *m = &c->m->publish;
    const member_t *writer = writer_of(c);
    const adapter_row_t *known = registry_adapter(&b->registry, m->adapter), *a = writer ? known : NULL;
    char addresses[HEDDLE_NAME_MAX + 1] = "", held[512];
    if (writer) member_addresses(writer, addresses, sizeof addresses);
    publish_by_t by = {.peer = c->from,
                       .writer = writer ? writer->name : NULL,
                       .live = a ? rollout_newest_live(&b->rollout, a) : NULL,
                       .awaited = a ? rollout_awaited(&b->rollout, a, &m->digest) : NULL,
                       /* Not while the broker settles: workers on the same loopback may still come back. */
                       .cut_off_count = writer && b->rollout.is_settled
                                            ? membership_cut_off(&b->members, writer) : 0,
                       .addresses = addresses};
    heddle_error_t error;
    uint64_t version = 0;
    bool created = false;
    if (known && known->held) {
        rollout_held_text(&b->rollout, known, held, sizeof held);
        by.held = held;
        by.held_version = known->active;
    }
    b->io.random(b->io.self, &by.share_key, sizeof by.share_key);
    if (writer) membership_heard(&b->members, membership_by_token(&b->members, m->token), c->now.us);
    int rc = registry_decide_publish(&b->registry, m, &by, c->now, &b->out, &version, &created, &error);
    if (rc == HEDDLE_ERR_FENCED) {
        refuse_foreign_token(c, &error);
    } else if (rc == HEDDLE_ERR_UNAVAILABLE && error.retriable) {
        broker_refuse(c, &error, rollout_settling_us(&b->rollout, c->now.us) / 1000 + 1);
    } else if (rc) {
        broker_refuse(c, &error, 0);
    } else {
        txn_t txn = txn_of(c, TXN_PUBLISH, 0);
        rc = broker_commit(b, &txn, c->now, &error);
        if (!rc && !created && writer) /* no record: it is there already */
            rollout_republished(&b->rollout, broker_view(b, c->now), writer, version, &b->out);
    }
}

/* Reports of workers have no answer, unless they are refused. */
static void answer(const call_t *c, int rc, const heddle_error_t *error)
{
    if (rc) broker_refuse(c, error, 0);
}

void on_staged(const call_t *c)
{
    heddle_error_t error;
    step_t step = broker_step(c->b, c->now);
    answer(c, rollout_staged(&step, c->member, &c->m->staged, &error), &error);
}

void on_active(const call_t *c)
{
    heddle_error_t error;
    step_t step = broker_step(c->b, c->now);
    answer(c, rollout_active(&step, c->member, &c->m->active, &error), &error);
}

void on_nack(const call_t *c)
{
    heddle_error_t error;
    step_t step = broker_step(c->b, c->now);
    answer(c, rollout_nack(&step, c->member, &c->m->nack, &error), &error);
}

void on_need_sources(const call_t *c)
{
    heddle_error_t error;
    step_t step = broker_step(c->b, c->now);
    answer(c, rollout_need_sources(&step, c->member, &c->m->need_sources, &error), &error);
}
