/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/query.h"

#include "broker/keys/client_keys.h"
#include "broker/forget.h"
#include "broker/members/sessions.h"
#include "broker/questions/answer_pending.h"
#include "broker/registry/active.h"
#include "broker/registry/decision.h"
#include "broker/rollout/messages.h"
#include "core/errors.h"
#include "core/listing.h"
#include "proto/value.h"

#include <stdio.h>
#include <string.h>

/* ---- answers ---- */

static int view_config(const void *self, const char *adapter, uint64_t version, buf_t *out)
{
    const broker_t *b = self;
    return b->io.config(b->io.self, adapter, version, out);
}

static uint64_t view_registry_bytes(const void *self)
{
    const broker_t *b = self;
    return b->io.registry_bytes ? b->io.registry_bytes(b->io.self) : 0;
}

/* Which key a session has proved is known to its connection only. */
static const char *view_session_key(const void *self, const member_t *member)
{
    const broker_peer_t *peer = broker_peer(self, member->peer);
    return peer ? peer->key : "";
}

/* Why the store takes no records.  What an etcd says of itself comes before what the last commit met. */
static void view_refusal(const broker_t *b, instant_t now, answer_view_t *v)
{
    const brokers_t *of = v->brokers;
    bool is_known = b->state == BROKER_READ_ONLY, is_silent = of && !of->is_answered;
    v->is_read_only = is_known || is_silent || (of && of->refusal);
    v->read_only_code = is_known ? b->read_only_code : HEDDLE_ERR_UNAVAILABLE;
    v->read_only_why = is_known ? b->read_only_why : BROKERS_UNANSWERED;
    v->read_only_hint = is_known ? b->read_only_hint : BROKERS_UNANSWERED_HINT;
    if (of && of->has_yielded) v->read_only_why = BROKERS_YIELDED;
    if (of && of->refusal) {
        v->read_only_code = of->refusal->code;
        v->read_only_why = of->refusal->message;
        v->read_only_hint = of->refusal->hint;
    }
    uint64_t since_us = b->txn.is_open ? b->txn.began_us : of && of->seen_us ? of->seen_us : b->started_us;
    v->read_only_ms = is_known ? b->read_only_ms : now.wall_ms - (now.us - since_us) / 1000;
}

/* Answers are made from this view and not from the broker, so that they cannot change anything. */
answer_view_t query_view(const broker_t *b, instant_t now)
{
    answer_view_t view = {
        .registry = &b->registry,
        .members = &b->members,
        .rollout = &b->rollout,
        .events = &b->events,
        .auth = &b->auth,
        .foreign = &b->foreign,
        .refused = &b->refused,
        .now = now,
        .endpoint = b->opts.endpoint,
        .public_key = b->opts.public_key,
        .cluster = b->opts.cluster,
        .data_dir = b->opts.data_dir,
        .pid = b->opts.pid,
        .started_us = b->started_us,
        .started_ms = b->started_ms,
        .brokers = b->io.brokers ? b->io.brokers(b->io.self) : NULL,
        .restored = {b->restored.at_ms, b->restored.from, b->restored.message},
        .self = b,
        .config = b->io.config ? view_config : NULL,
        .registry_bytes = view_registry_bytes,
        .session_key = view_session_key,
    };
    view_refusal(b, now, &view);
    return view;
}

static void send_error(broker_t *b, uint64_t peer, uint64_t req, const heddle_error_t *error)
{
    msg_t m;
    msg_from_error(error, req, MSG_QUERY, &m);
    outbox_send(b->out, peer, &m);
}

typedef struct {
    uint64_t peer, req, next;
    bool more;
    const char *next_name;
    int code;
} report_header_t;

/* Where an answer does not fit into a message an error is sent: the client must not wait for its timeout. */
static void send_report(broker_t *b, const report_header_t *to, const json_t *body)
{
    buf_t bytes = {0};
    heddle_error_t error;
    int rc = value_encode(body, &bytes);
    if (rc) {
        error_fail(&error, rc, "the answer cannot be put into a message");
        send_error(b, to->peer, to->req, &error);
    } else {
        msg_t m = {.type = MSG_REPORT};
        m.report = (msg_report_t){.req = to->req,
                                  .next = to->next,
                                  .more = to->more,
                                  .next_name = to->next_name ? to->next_name : "",
                                  .body = buf_view(&bytes),
                                  .code = to->code ? heddle_err_name(to->code) : ""};
        outbox_send(b->out, to->peer, &m);
    }
    buf_fini(&bytes);
}

void query_answer(broker_t *b, uint64_t peer, uint64_t req, const json_t *body)
{
    send_report(b, &(report_header_t){.peer = peer, .req = req}, body);
}

/* Answers at once with what is there now.  A list that does not fit into one message goes on in the next
 * question, which begins where this page ended. */
static void send_page(broker_t *b, uint64_t peer, const msg_query_t *q, instant_t now)
{
    answer_page_t page = {0};
    heddle_error_t error;
    answer_view_t view = query_view(b, now);
    if (answer_page(&view, q, &page, &error)) {
        send_error(b, peer, q->req, &error);
        return;
    }
    report_header_t to = {.peer = peer,
                          .req = q->req,
                          .next = page.next,
                          .more = page.more,
                          .next_name = page.next_name};
    send_report(b, &to, page.body);
    json_decref(page.body);
}

/* A verify found a holder that has other bytes than the registry: an event says so.  Where the question
 * brought another digest, all holders may differ from that and be right. */
static void note_mismatch(broker_t *b, const pending_row_t *row, const heddle_error_t *verdict, instant_t now)
{
    if (row->kind != PENDING_VERIFY || verdict->code != HEDDLE_ERR_DIGEST_MISMATCH) return;
    const adapter_row_t *a = registry_adapter(&b->registry, row->adapter);
    const version_row_t *v = a ? registry_version(a, row->version) : NULL;
    if (!v || !digest_equal(&v->digest, &row->expected)) return;
    event_row_t *e =
        events_add(&b->events, EVENT_VERIFY_FAILED, row->adapter, row->version, verdict->worker, now);
    events_message(e, verdict->code, "%s", verdict->message);
}

static void send_row(broker_t *b, const pending_row_t *row, const heddle_error_t *verdict, instant_t now)
{
    if (row->kind == PENDING_EVENTS) {
        msg_query_t q = {.req = row->req,
                         .op = "events",
                         .name = row->adapter,
                         .worker = row->worker,
                         .after = row->after,
                         .epoch = row->epoch,
                         .limit = row->limit,
                         .after_name = "",
                         .by = "",
                         .expected = ""};
        send_page(b, row->peer, &q, now);
        return;
    }
    json_t *body = NULL;
    heddle_error_t error;
    note_mismatch(b, row, verdict, now);
    answer_view_t view = query_view(b, now);
    int rc = row->kind == PENDING_VERIFY ? answer_verify(&view, row, verdict, &body)
                                         : answer_wait(&view, row, verdict, &body);
    if (rc) {
        error_fail(&error, rc, "the answer cannot be made");
        send_error(b, row->peer, row->req, &error);
        return;
    }
    report_header_t to = {.peer = row->peer, .req = row->req, .code = verdict->code};
    send_report(b, &to, body);
    json_decref(body);
}

/* ---- activate ---- */

/* The hint names the newest ACTIVATABLE_MAX versions that can be activated now, except the active one. */
enum { ACTIVATABLE_MAX = 8 };
/* A version that cannot be activated leaves the operator with a question: which one can?  The error
 * answers it, except where the version only has to be waited for. */
static void suggest(const broker_t *b, const pending_row_t *row, heddle_error_t *error)
{
    const adapter_row_t *a = registry_adapter(&b->registry, row->adapter);
    char versions[ACTIVATABLE_MAX * 22 + 24], keep[64] = "";
    if (!a || error->code != HEDDLE_ERR_NOT_ACTIVATABLE || !strcmp(error->found, "staging")) return;
    if (!strcmp(error->found, "retired"))
        text_printf(keep, sizeof keep, "; a broker with --keep above %llu keeps more",
                    (unsigned long long)b->rollout.keep);
    uint64_t found[ACTIVATABLE_MAX];
    size_t count = 0;
    listing_t list = {.text = versions, .size = sizeof versions};
    for (size_t i = a->version_count; i-- > registry_live_from(a) && count < ACTIVATABLE_MAX;) {
        const char *state = summary_state(&b->rollout, a, a->versions[i]);
        bool is_aim = row->aim != AIM_BACK || (a->versions[i]->version < active_latest(a) &&
                                               !registry_has_active_bytes(a, a->versions[i]));
        if (is_aim && (!strcmp(state, "kept") || !strcmp(state, "staged")))
            found[count++] = a->versions[i]->version;
    }
    for (size_t i = count; i-- > 0;) listing_add(&list, "%llu", (unsigned long long)found[i]);
    const char *act = row->aim == AIM_BACK ? "roll back to" : "activate";
    if (count)
        error_hint(error, "%s one of %s, or publish its bytes again%s", act, listing_text(&list), keep);
    else
        error_hint(error, "publish its bytes again; no %s version can be activated%s",
                   row->aim == AIM_BACK ? "earlier" : "other", keep);
}

/* The question is answered with an error and dropped. */
static void refuse_row(broker_t *b, pending_row_t *row, const heddle_error_t *error)
{
    send_error(b, row->peer, row->req, error);
    pending_drop(&b->pending, row);
}

void query_refuse(broker_t *b, const char *adapter, const heddle_error_t *error)
{
    for (pending_row_t *row = b->pending.rows, *next; row; row = next) {
        next = row->next;
        if (row->kind != PENDING_EVENTS && !strcmp(row->adapter, adapter)) refuse_row(b, row, error);
    }
}

void query_activation_ended(broker_t *b, uint64_t question, const heddle_error_t *error)
{
    pending_row_t *row = pending_by_id(&b->pending, question);
    if (!row) return; /* its connection or its deadline ended meanwhile */
    if (error) refuse_row(b, row, error);
    else row->is_decided = true;
}

/* The version is chosen when the decision is made and not when the question arrives: other decisions may
 * come between. */
static void decide_activation(broker_t *b, pending_row_t *row, instant_t now)
{
    heddle_error_t error;
    const adapter_row_t *a = registry_adapter(&b->registry, row->adapter);
    if (aim_version(&b->rollout, a, row->aim, row->named, &row->version, &error)) {
        char nearest[SUMMARY_QUEUED_TEXT];
        bool was_never_active = !active_latest(a) && summary_nearest_text(&b->members, a->name, nearest);
        if (was_never_active) error_hint(&error, "%s", nearest);
        refuse_row(b, row, &error);
        return;
    }
    if (!row->version) { /* nothing was ever active: there is no hold to end */
        row->is_decided = true;
        return;
    }
    const track_t *t = track_find(&b->rollout, row->adapter, row->version);
    heddle_error_t lost = {0};
    if (t && t->bytes == BYTES_LOST) summary_lost_reason(t, &lost);
    activate_by_t by = {.version = row->version,
                        .by = row->by,
                        .lost = lost.code ? lost.message : NULL,
                        .has_source = track_has_source(t),
                        .has_staged = track_holder_count(t) > 0,
                        .has_stale = track_has_refused(t),
                        .dry_run = row->dry_run,
                        .ends_hold = row->aim == AIM_RESUME};
    row->moved_base = track_moved_bytes(t);
    broker_send_outbox(b); /* what was sent to others stays true, also when this is not committed */
    if (decision_by_hand(&b->registry, row->adapter, &by, now, b->out, &row->activated, &error)) {
        suggest(b, row, &error);
        refuse_row(b, row, &error);
    } else if (row->dry_run) {
        row->is_decided = true;
    } else {
        txn_t txn = {.kind = TXN_ACTIVATE, .asker = {row->peer, row->req, MSG_QUERY}, .question = row->id};
        if (txn_commit(b, &txn, now, &error) == HEDDLE_OK) broker_decide(b, now);
    }
}

/* What waits for the end of settling, or of a transaction: an activation is decided, holders are asked to
 * verify.  A dry run only reads.  False: the row is gone. */
static bool begin(broker_t *b, pending_row_t *row, instant_t now)
{
    heddle_error_t error;
    uint64_t id = row->id;
    if (!b->rollout.is_settled) return true;
    if (row->kind == PENDING_ACTIVATE) {
        bool is_free = !b->txn.is_open || row->dry_run;
        if (!row->is_decided && is_free) decide_activation(b, row, now);
    } else if (row->kind == PENDING_VERIFY && !row->verify_req) {
        if (pending_ask_verify(&b->pending, row, &b->rollout, broker_view(b, now), b->out, &error))
            refuse_row(b, row, &error);
    }
    return pending_by_id(&b->pending, id) != NULL;
}

/* ---- questions ---- */

static bool is_asker_gone(void *self, uint64_t peer) { return sessions_is_gone(self, peer); }

/* ZeroMQ does not report that a connection has ended.  So where the table of questions is full,
 * connections are probed, and the questions of those that have ended are dropped.  Once a second at most,
 * because each probe is a PING to every connection with a question. */
static int add_question(const call_t *c, pending_kind_t kind, pending_row_t **ret_row, heddle_error_t *error)
{
    broker_t *b = c->b;
    pending_asker_t asker = {.peer = c->from, .req = c->m->query.req};
    if (c->key && !auth_is_admin(c->key)) asker.key = c->key->public_key;
    bool is_time = !b->askers_probed_us || c->now.us - b->askers_probed_us >= 1000000;
    if (is_time && pending_is_full(&b->pending, &asker)) {
        b->askers_probed_us = c->now.us;
        pending_drop_gone(&b->pending, is_asker_gone, b);
    }
    return pending_add(&b->pending, kind, &asker, ret_row, error);
}

/* A wait and an activation are the same question: both end when enough workers serve the version.  An
 * activation is first decided, in `begin`. */
static void ask_wait(const call_t *c, pending_kind_t kind)
{
    broker_t *b = c->b;
    const msg_query_t *q = &c->m->query;
    heddle_error_t error;
    pending_row_t *row = NULL;
    int rc = add_question(c, kind, &row, &error);
    if (!rc && kind == PENDING_ACTIVATE) aim_of_op(q->op, &row->aim);
    if (!rc && kind == PENDING_ACTIVATE && row->aim == AIM_VERSION && !q->version) {
        rc = error_fail(&error, HEDDLE_ERR_USAGE, "activate names no version");
        error_contrast(&error, "NAME@V", q->name);
    }
    if (!rc) rc = pending_set_wait(row, q, broker_view(b, c->now), &error);
    if (!rc) {
        /* A worker that was killed a moment ago still has its lease.  Its connection shows at once that it
         * is gone, so the question does not wait for the lease. */
        for (size_t i = 0; i < b->members.token_count; i++) {
            member_t *m = b->members.tokens[i];
            if (m->role == ROLE_WORKER && member_subscribes(m, row->adapter)) sessions_probe(b, m);
        }
        begin(b, row, c->now);
        return;
    }
    broker_refuse(c, &error, 0);
    if (row) pending_drop(&b->pending, row);
}

/* The holders are asked when settling is over, because until then it is not known which ones there are. */
static void ask_verify(const call_t *c)
{
    broker_t *b = c->b;
    heddle_error_t error;
    pending_row_t *row = NULL;
    int rc = add_question(c, PENDING_VERIFY, &row, &error);
    if (!rc) rc = pending_set_wait(row, &c->m->query, broker_view(b, c->now), &error);
    /* The digest that is compared with is that of the question, or the registry's. */
    const char *expected = c->m->query.expected;
    if (!rc && expected && *expected) {
        if (!digest_parse(expected, &row->expected)) {
            rc = error_fail(&error, HEDDLE_ERR_USAGE, "\"%.80s\" is not a digest", expected);
            error_expected(&error, "h1: and 64 hexadecimal digits");
        }
    } else if (!rc) {
        const adapter_row_t *a = registry_adapter(&b->registry, row->adapter);
        const version_row_t *v = registry_version(a, row->version);
        if (v) row->expected = v->digest;
        else
            rc = registry_fail_unremembered(HEDDLE_ERR_VERSION_LOST, row->adapter, row->version, "verify",
                                            &error);
    }
    if (!rc) {
        begin(b, row, c->now);
        return;
    }
    broker_refuse(c, &error, 0);
    if (row) pending_drop(&b->pending, row);
}

/* Goes on behind the events that were seen, or stays where the question begins later. */
static void skip_seen(const broker_t *b, pending_row_t *row)
{
    if (row->after <= b->events.last_seq) row->after = b->events.last_seq + 1;
}

/* Answers at once where an event matches or no time to wait was given. */
static void ask_events(const call_t *c)
{
    broker_t *b = c->b;
    const msg_query_t *q = &c->m->query;
    heddle_error_t error;
    events_filter_t f = {.epoch = q->epoch, .after = q->after, .adapter = q->name, .worker = q->worker};
    if (!q->wait_ms || events_ready(&b->events, &f)) {
        send_page(b, c->from, q, c->now);
        return;
    }
    pending_row_t *row = NULL;
    if (add_question(c, PENDING_EVENTS, &row, &error)) {
        broker_refuse(c, &error, 0);
        return;
    }
    row->asked_us = c->now.us;
    row->deadline_us = c->now.us + q->wait_ms * 1000;
    row->epoch = q->epoch;
    row->after = q->after; /* what is there now was not wanted */
    skip_seen(b, row);
    row->limit = q->limit;
    error_text(row->adapter, sizeof row->adapter, q->name ? q->name : "");
    error_text(row->worker, sizeof row->worker, q->worker ? q->worker : "");
}

/* A publisher that has missed reports of a version asks for the last one. */
static void answer_rollout(const call_t *c)
{
    const msg_query_t *q = &c->m->query;
    step_t step = broker_step(c->b, c->now);
    heddle_error_t error;
    if (*q->name && q->version) {
        messages_send_rollout(&step, q->name, q->version, &(rollout_to_t){.peer = c->from, .req = q->req});
        return;
    }
    error_fail(&error, HEDDLE_ERR_USAGE, "rollout names no version");
    error_contrast(&error, "NAME@V", q->name);
    broker_refuse(c, &error, 0);
}

/* A worker that has ended is no error: what it is about has come.  Of a drain that is to be taken back it is
 * one. */
static void drain_worker(const call_t *c)
{
    broker_t *b = c->b;
    const msg_query_t *q = &c->m->query;
    heddle_error_t error;
    bool is_back = !strcmp(q->op, "drain_cancel");
    if (!q->name || !*q->name) {
        error_fail(&error, HEDDLE_ERR_USAGE, "drain names no worker");
        broker_refuse(c, &error, 0);
        return;
    }
    member_t *worker = membership_worker(&b->members, q->name);
    int rc = worker && is_back ? sessions_undrain(b, worker, c->now, &error) : HEDDLE_OK;
    if (worker && !is_back) sessions_drain(b, worker, c->now);
    if (rc) broker_refuse(c, &error, 0);
    else send_page(b, c->from, q, c->now);
}

void on_query(const call_t *c)
{
    const char *op = c->m->query.op;
    heddle_error_t error;
    if (answer_check_tag(&c->b->registry, &c->m->query, &error)) broker_refuse(c, &error, 0);
    else if (!strcmp(op, "wait")) ask_wait(c, PENDING_WAIT);
    else if (aim_of_op(op, &(aim_t){0})) ask_wait(c, PENDING_ACTIVATE);
    else if (!strcmp(op, "verify")) ask_verify(c);
    else if (!strcmp(op, "pull")) on_pull(c);
    else if (!strcmp(op, "reach")) on_reach(c);
    else if (!strcmp(op, "events")) ask_events(c);
    else if (!strcmp(op, "rollout")) answer_rollout(c);
    else if (!strcmp(op, "forget")) on_forget(c);
    else if (!strcmp(op, "drain") || !strcmp(op, "drain_cancel")) drain_worker(c);
    else if (!on_keys(c)) send_page(c->b, c->from, &c->m->query, c->now);
}

/* ---- waiting ones ---- */

/* Questions are looked at only when something happened, or when the first deadline has come. */
void query_answer_pending(broker_t *b, instant_t now)
{
    bool has_news = b->has_news || b->events.last_seq != b->seen_seq;
    if (!has_news && now.us < pending_deadline(&b->pending)) return;
    b->has_news = false;
    b->seen_seq = b->events.last_seq;
    for (pending_row_t *row = b->pending.rows, *next; row; row = next) {
        next = row->next; /* no other row goes meanwhile: no request is handled here */
        heddle_error_t verdict = {0};
        if (!begin(b, row, now)) continue;
        if (pending_is_over(row, &b->rollout, broker_view(b, now), &b->events, &verdict)) {
            send_row(b, row, &verdict, now);
            pending_drop(&b->pending, row);
        } else if (row->kind == PENDING_EVENTS) {
            skip_seen(b, row); /* looked at, not wanted */
        }
    }
}
