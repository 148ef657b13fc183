/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/forget.h"

#include "broker/questions/answer_keys.h"
#include "broker/questions/query.h"
#include "broker/registry/decision.h"
#include "core/errors.h"
#include "core/listing.h"

static int refuse_workers(const broker_t *b, const adapter_row_t *a, heddle_error_t *error)
{
    char names[sizeof error->found];
    listing_t list = {.text = names, .size = sizeof names, .most = 4};
    for (size_t i = 0; i < b->members.worker_count; i++)
        if (member_subscribes(b->members.workers[i], a->name))
            listing_add(&list, "%.40s", b->members.workers[i]->name);
    uint32_t count = list.shown + list.others;
    if (!count) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_WORKER_ALIVE, "%s has %u worker%s, and is not forgotten", a->name,
                        count, count == 1 ? "" : "s");
    error_where(error, a->name, 0, NULL, NULL);
    error_expected(error, "no worker that subscribes to it");
    error_found(error, "%s", listing_text(&list));
    const char *them = count == 1 ? "it" : "them";
    error_hint(error, "end %s, or start %s without this adapter; `heddle workers` shows %s", error->found,
               them, them);
    return rc;
}

static int check(const broker_t *b, const char *name, instant_t now, const adapter_row_t **ret_adapter,
                 heddle_error_t *error)
{
    int rc = name_check("adapter", name, error);
    const adapter_row_t *a = rc ? NULL : registry_adapter(&b->registry, name);
    *ret_adapter = a;
    if (rc) return rc;
    if (!b->rollout.is_settled) { /* it is not known yet which workers and writers there are */
        unsigned long long left_ms = rollout_settling_us(&b->rollout, &b->members, now.us) / 1000;
        rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE, "the broker was started a moment ago and is settling");
        error_where(error, name, 0, NULL, NULL);
        error_hint(error, "its workers may still return; try again in %llu ms", left_ms + 1);
        return rc;
    }
    if (!a || registry_is_vacant(a)) return registry_fail_unknown(&b->registry, name, 0, NULL, error);
    if (!a->writer.token) return refuse_workers(b, a, error);
    rc = error_fail(error, HEDDLE_ERR_WRITER_HELD, "%s has a writer: %s on %s, pid %llu", a->name,
                    a->writer.name, a->writer.host, (unsigned long long)a->writer.pid);
    error_where(error, a->name, 0, NULL, NULL);
    error_expected(error, "no live writer");
    error_hint(error, "end that process; if it has ended, wait one lease");
    return rc;
}

/* The answer is made before the commit, because the rows are gone after it.  It leaves with the others of the
 * transaction, when the record is on disk. */
void on_forget(const call_t *c)
{
    broker_t *b = c->b;
    const msg_query_t *q = &c->m->query;
    const adapter_row_t *a;
    heddle_error_t error;
    json_t *body = NULL;
    if (b->txn.is_open && !q->dry_run) {
        txn_defer(c);
        return;
    }
    int rc = check(b, q->name, c->now, &a, &error);
    if (!rc) rc = answer_forget(a, q->dry_run, &body, &error);
    if (rc) {
        broker_refuse(c, &error, 0);
        return;
    }
    query_answer(b, c->from, q->req, body);
    json_decref(body);
    if (q->dry_run) return;
    record_t *rec = outbox_record(b->out, RECORD_FLOOR, q->name, c->now);
    rec->version = a->last_version;
    rec->decision = decision_next(a) - 1;
    rec = outbox_record(b->out, RECORD_ADAPTER_FORGET, q->name, c->now);
    rec->by = q->by && *q->by ? q->by : "unknown";
    txn_t txn = {.kind = TXN_FORGET, .asker = c->asker, .deadline_us = c->deadline_us};
    txn_commit(b, &txn, c->now, &error);
}

void forget_adapter(broker_t *b, const record_t *rec, instant_t now)
{
    const adapter_row_t *a = registry_adapter(&b->registry, rec->adapter);
    heddle_error_t error;
    if (!a) return;
    event_row_t *e = events_add(&b->events, EVENT_ADAPTER_FORGOTTEN, a->name, 0, NULL, now);
    events_message(e, HEDDLE_OK, "forgotten by %.100s, with %zu version%s", rec->by, a->version_count,
                   a->version_count == 1 ? "" : "s");
    error_fail(&error, HEDDLE_ERR_NOT_FOUND, "%s was forgotten, by %.100s", a->name, rec->by);
    error_where(&error, a->name, 0, NULL, NULL);
    error_hint(&error, "`heddle adapters` lists what there is");
    query_refuse(b, a->name, &error);
    tracks_forget(&b->rollout, a->name);
}
