/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker hears from the broker: about versions, and about its session. */
#include "core/errors.h"
#include "core/log.h"
#include "worker/node.h"

#include <stdlib.h>

/* --- the broker's messages -------------------------------------------------------------------- */

static adapter_t *find_adapter(worker_node_t *n, const char *name)
{
    int index = slots_find(n->slots, name);
    return index < 0 ? NULL : &n->adapters[index];
}

static int check_announce(const msg_announce_t *m, heddle_error_t *error)
{
    const msg_part_t *part = m->part_count == 1 ? &m->parts[0] : NULL;
    if (!part)
        return error_fail(error, HEDDLE_ERR_PROTOCOL,
                          "a version in %u parts was announced, and this release takes one", m->part_count);
    if (part->region_bytes == 0 || part->region_bytes > LIMIT_REGION_BYTES || part->manifest_bytes == 0 ||
        part->manifest_bytes > LIMIT_MANIFEST_BYTES || m->version == 0)
        return error_fail(error, HEDDLE_ERR_LIMIT, "the announced sizes are out of range");
    return HEDDLE_OK;
}

static announced_t *remember(adapter_t *a, const msg_announce_t *m)
{
    announced_t *w = (announced_t *)announced_find(a, m->version);
    if (!w) {
        w = calloc(1, sizeof *w);
        if (!w) return NULL;
        w->version = m->version;
        w->h1 = m->digest;
        w->region_bytes = m->parts[0].region_bytes;
        w->manifest_bytes = m->parts[0].manifest_bytes;
        w->manifest_digest = m->parts[0].manifest_digest;
        w->data_bytes = m->data_bytes;
        w->step = m->step;
        memcpy(&w->key, &m->key, sizeof w->key);
        w->next = a->announced;
        a->announced = w;
    }
    announced_sources(w, m->sources, m->source_count);
    return w;
}

static void greet_sources(worker_node_t *n, const announced_t *w)
{
    if (worker_node_check(n, NULL)) return;    /* why it fails is told when its slot is reserved */
    for (uint32_t i = 0; i < w->source_count; i++) {
        const source_t *s = &w->sources[i];
        peer_ref_t peer = {s->token, bytes_of(s->address, s->address_bytes)};
        /* Connecting takes longer than a small fetch; a failure shows at the ask. */
        n->io.tr->greet(n->io.t, &peer);
    }
}

static void on_announce(worker_node_t *n, adapter_t *a, const msg_announce_t *m, uint64_t now_us)
{
    heddle_error_t error;
    const announced_t *w = NULL;
    if (!check_announce(m, &error)) {
        w = remember(a, m);
        if (!w) error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for an announcement");
    }
    if (!w) {
        error_where(&error, a->name, m->version, n->opts.name, "announce");
        say_nack(n, a, m->version, 0, &error);
        return;
    }
    greet_sources(n, w);
    worker_node_feed(n, a,
                     &(sync_event_t){.kind = SY_ANNOUNCE,
                                     .version = m->version,
                                     .digest = m->digest,
                                     .deadline_us = m->deadline_ms * 1000},
                     now_us);
}

static void on_sources(worker_node_t *n, adapter_t *a, const msg_sources_t *m, uint64_t now_us)
{
    announced_t *w = (announced_t *)announced_find(a, m->version);
    if (!w) return;
    announced_sources(w, m->sources, m->source_count);
    greet_sources(n, w);
    if (a->pull && pull_what(a->pull) == w) pull_resource(a->pull, now_us);
    worker_node_feed(n, a,
                     &(sync_event_t){
                         .kind = SY_SOURCES, .version = m->version, .source_count = w->source_count},
                     now_us);
}

static void on_commit(worker_node_t *n, adapter_t *a, const msg_commit_t *m, uint64_t now_us)
{
    if (!session_is_live(&n->session, now_us)) return;
    a->commit_us = now_us;
    worker_node_feed(n, a,
                     &(sync_event_t){
                         .kind = SY_COMMIT,
                         .version = m->version,
                         .decision = m->decision,
                         .digest = m->digest},
                     now_us);
}

static void on_abort(worker_node_t *n, adapter_t *a, const msg_abort_t *m, uint64_t now_us)
{
    bool is_overtaken = !strcmp(m->code, "superseded");    /* a state, not an error of ours */
    int code = is_overtaken ? HEDDLE_ERR_VERSION_FAILED : heddle_err_from_name(m->code);
    error_fail(&a->error, code, "%s", m->message);
    worker_node_feed(n, a, &(sync_event_t){.kind = SY_ABORT, .version = m->version, .error = &a->error},
                     now_us);
}

static void on_verify(worker_node_t *n, adapter_t *a, const msg_verify_t *m)
{
    int rc = checks_start(&n->checks, n->slots, a->index, m);
    if (rc)
        say_verified(n, a->index,
                     &(msg_verified_t){.req = m->req, .version = m->version, .code = heddle_err_name(rc)});
}

static void deliver(worker_node_t *n, const msg_t *m, uint64_t now_us)
{
    adapter_t *a = NULL;
    switch (m->type) {
    case MSG_ANNOUNCE:
        if ((a = find_adapter(n, m->announce.adapter))) on_announce(n, a, &m->announce, now_us);
        break;
    case MSG_SOURCES:
        if ((a = find_adapter(n, m->sources.adapter))) on_sources(n, a, &m->sources, now_us);
        break;
    case MSG_COMMIT:
        if ((a = find_adapter(n, m->commit.adapter))) on_commit(n, a, &m->commit, now_us);
        break;
    case MSG_ABORT:
        if ((a = find_adapter(n, m->abort.adapter))) on_abort(n, a, &m->abort, now_us);
        break;
    case MSG_RETIRE:
        if ((a = find_adapter(n, m->retire.adapter)))
            worker_node_feed(n, a, &(sync_event_t){.kind = SY_RETIRE, .version = m->retire.version},
                             now_us);
        break;
    case MSG_VERIFY:
        if ((a = find_adapter(n, m->verify.adapter))) on_verify(n, a, &m->verify);
        break;
    case MSG_ERROR:
        log_emit(LOG_DEBUG, "worker.error", "the broker refused a %s: %s", msg_name((int)m->error.of),
                 m->error.message);
        break;
    default: break;
    }
    if (a) worker_node_drain(n, a, now_us);
}

/* --- the session ------------------------------------------------------------------------------ */

static void go_down(worker_node_t *n, uint64_t now_us)
{
    n->up = false;
    n->unjoined_us = n->opts.broker ? 0 : CLOCK_NEVER;
    for (uint32_t i = 0; i < n->adapter_count; i++)
        worker_node_feed(n, &n->adapters[i], &(sync_event_t){.kind = SY_DOWN}, now_us);
}

/* Which of what is held may stay: as many as there are places at most, and no memory to be had for it. */
static uint32_t list_kept(const adapter_t *a, const msg_welcome_t *m, uint64_t ret_keep[SYNC_ENTRIES])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->keep_count && count < SYNC_ENTRIES; i++)
        if (!strcmp(m->keep[i].adapter, a->name) && sync_find(&a->sync, m->keep[i].version))
            ret_keep[count++] = m->keep[i].version;
    return count;
}

static void welcome_adapter(worker_node_t *n, adapter_t *a, const msg_welcome_t *m, uint64_t now_us)
{
    uint64_t keep[SYNC_ENTRIES];
    sync_event_t event = {.kind = SY_UP,
                          .slot_count = m->slots < LIMIT_SLOTS ? (uint32_t)m->slots : LIMIT_SLOTS,
                          .keep = keep};
    for (uint32_t i = 0; i < m->adapter_count; i++) {
        if (strcmp(m->adapters[i].adapter, a->name) != 0) continue;
        event.decision = m->adapters[i].decision;
        event.version = m->adapters[i].version;
        event.digest = m->adapters[i].digest;
    }
    event.keep_count = list_kept(a, m, keep);
    a->commit_us = now_us;
    worker_node_feed(n, a, &event, now_us);
    worker_node_drain(n, a, now_us);
}

static bool has_decision(const msg_welcome_t *m, const char *adapter)
{
    for (uint32_t i = 0; i < m->adapter_count; i++)
        if (!strcmp(m->adapters[i].adapter, adapter) && m->adapters[i].decision) return true;
    return false;
}

/* A mistyped name is a name: it waits for ever. */
static void say_empty(const worker_node_t *n, const msg_welcome_t *m)
{
    for (uint32_t i = 0; i < n->adapter_count; i++)
        if (!has_decision(m, n->adapters[i].name))
            log_emit(LOG_INFO, "adapter.empty",
                     "nobody has published %s yet, or no version of it was activated", n->adapters[i].name);
}

static void on_joined(worker_node_t *n, const msg_welcome_t *m, uint64_t now_us)
{
    if (!n->cluster[0]) say_empty(n, m);
    n->up = true;
    n->has_unsaid = false;
    n->join_end_us = CLOCK_NEVER;
    n->join_error = (heddle_error_t){0};
    n->refusals = (repeat_t){0};
    n->unjoined_us = CLOCK_NEVER;
    n->unjoined_reason = 0;
    if (repeat_over(&n->unjoined))
        log_emit(LOG_WARN, "worker.joined", "the broker at %s has admitted this worker", n->opts.broker);
    memcpy(n->cluster, n->session.cluster, sizeof n->cluster);
    n->io.tr->set_token(n->io.t, n->session.token);
    heddle_event_t event = {.type = HEDDLE_EVENT_JOINED, .step = -1};
    worker_node_tell(n, &event);
    for (uint32_t i = 0; i < n->adapter_count; i++) welcome_adapter(n, &n->adapters[i], m, now_us);
}

/* An application that does not look at REFUSED would wait for ever, and nothing would tell why. */
uint64_t worker_node_report_unjoined(worker_node_t *n, uint64_t now_us)
{
    char scratch[REPEAT_TEXT];
    const heddle_error_t *why = &n->join_error;
    if (n->unjoined_us == 0) n->unjoined_us = now_us + WORKER_UNJOINED_US;
    if (n->session.state == SESSION_LEAVING || n->session.state == SESSION_LEFT) n->unjoined_us = CLOCK_NEVER;
    if (now_us < n->unjoined_us) return n->unjoined_us;
    n->unjoined_us = now_us + WORKER_UNJOINED_US;    /* another reason may come */
    uint32_t reason = error_reason(why);
    uint64_t times = reason == n->unjoined_reason ? 0 : repeat_note(&n->unjoined, reason, now_us);
    if (!times) return n->unjoined_us;
    n->unjoined_reason = reason;
    if (why->code)
        log_emit(LOG_WARN, "worker.refused", "%s: %s%s%s%s%s", heddle_err_name(why->code), why->message,
                 session_is_barred(&n->session) ? "; it is not tried again" : "; it is tried again",
                 why->hint[0] ? "; " : "", why->hint, repeat_text(times, scratch));
    else
        log_emit(LOG_WARN, "worker.waiting", "no broker answers at %s; the worker %s%s; start one with "
                 "`heddle broker`, or name another with HEDDLE_BROKER%s", n->opts.broker,
                 n->cluster[0] ? "serves on and " : "", "waits for one", repeat_text(times, scratch));
    return n->unjoined_us;
}

/* Decisions and versions of another registry mean nothing here: old ones would look new, and new ones old. */
static void join(worker_node_t *n, uint64_t now_us)
{
    if (!n->cluster[0] || !strcmp(n->cluster, n->session.cluster)) {
        say_join(n);
        return;
    }
    error_fail(&n->join_error, HEDDLE_ERR_REQUEST_CONFLICT,
               "the broker has the registry of another cluster (%s) than this worker joined before (%s)",
               n->session.cluster, n->cluster);
    worker_node_tell_refusal(n, 1, now_us);
}

static void on_refused(worker_node_t *n, const msg_error_t *m, uint64_t now_us)
{
    msg_to_error(m, &n->join_error);
    if (n->join_error.code == HEDDLE_ERR_WORKER_ALIVE && n->opts.join_timeout_us &&
        n->join_end_us == CLOCK_NEVER)
        n->join_end_us = now_us + n->opts.join_timeout_us;
    worker_node_tell_refusal(n, !session_is_barred(&n->session), now_us);
}

static void on_lapsed(worker_node_t *n, const msg_t *m)
{
    heddle_error_t error;
    if (m && m->type == MSG_ERROR) msg_to_error(&m->error, &error);
    else error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "no word from the broker for a lease; serving goes on");
    int type = m && m->type == MSG_ERROR ? HEDDLE_EVENT_FENCED : HEDDLE_EVENT_LOST_BROKER;
    worker_node_tell_error(n, type, &error, 1);
}

static void obey_session(worker_node_t *n, unsigned out, const msg_t *m, uint64_t now_us)
{
    if (n->up && (n->session.state != SESSION_READY || (out & SO_LAPSED))) go_down(n, now_us);
    if (out & SO_LAPSED) on_lapsed(n, m);
    if (out & SO_HELLO) {
        msg_t hello;
        session_hello(&n->session, &hello);
        say(n, &hello);
    }
    if (out & SO_JOIN) join(n, now_us);
    if (out & SO_JOINED) on_joined(n, &m->welcome, now_us);
    if (out & SO_REFUSED) on_refused(n, &m->error, now_us);
    if (out & SO_HEARTBEAT) say_heartbeat(n);
    if (out & SO_LEAVE) say(n, &(msg_t){.type = MSG_LEAVE, .leave = {n->session.token, n->session.req}});
    if (out & SO_REDIAL) n->io.redial(n->io.self);
    if (out & SO_DELIVER) deliver(n, m, now_us);
    if (out & SO_LEFT) worker_node_tell(n, &(heddle_event_t){.type = HEDDLE_EVENT_LEFT, .step = -1});
}

void worker_node_step(worker_node_t *n, session_event_kind_t kind, const msg_t *m, uint64_t now_us)
{
    obey_session(n, session_step(&n->session, &(session_event_t){kind, m}, now_us), m, now_us);
}
