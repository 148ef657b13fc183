/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/worker_node.h"

#include "client/sharing.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/repeat.h"
#include "worker/adapter.h"

#include <stdlib.h>

enum { DEVICES_MAX = 16 };

struct worker_node {
    worker_core_t core;
    checks_t checks;
    uint32_t turn;            /* the adapter whose piece of work is next */
    repeat_t refusals;        /* by code, since it was admitted last */
    uint64_t join_end_us;     /* when it gives up to wait for its name; CLOCK_NEVER */
    repeat_t unjoined;        /* written on stderr: no broker admits this worker */
    uint64_t unjoined_us;     /* when that is looked at; 0: the next tick counts from now; CLOCK_NEVER:
                               * admitted, or not wanted */
    uint32_t unjoined_reason; /* written last, since it was admitted last; 0: none */
    bool wants_to_leave;      /* the application asked for it */
    bool is_draining;         /* the broker knows; said to the application, and restated from then on */
    uint32_t adapter_count;
    adapter_t adapters[];
};

/* --- refusals: the event and the line on stderr ----------------------------------------------- */

/* A refusal is reported at once, then once a minute while the same one repeats: the session may try again
 * every second, and an event for each would flood the application. */
static void tell_refusal(worker_node_t *n, int retriable, uint64_t now_us)
{
    const heddle_error_t *why = &n->core.member.refusal;
    uint64_t times = repeat_note(&n->refusals, error_reason(why) ^ (retriable != 0), now_us);
    heddle_event_t event = {.type = HEDDLE_EVENT_REFUSED,
                            .code = why->code,
                            .retriable = retriable,
                            .step = -1,
                            .repeat_count = times};
    error_text(event.message, sizeof event.message, why->message);
    if (times) member_tell(&n->core.member, &event);
}

/* Writes on stderr that no broker admits this worker, when that is due: an application that does not look at
 * REFUSED would wait for ever without a reason.  Returns when it will be due. */
static uint64_t report_unjoined(worker_node_t *n, uint64_t now_us)
{
    char scratch[REPEAT_TEXT];
    const client_member_t *member = &n->core.member;
    const heddle_error_t *why = &member->refusal;
    session_state_t state = member->session.state;
    if (n->unjoined_us == 0) n->unjoined_us = now_us + WORKER_UNJOINED_US;
    /* A worker that leaves waits for no broker. */
    if (state == SESSION_LEAVING || state == SESSION_LEFT) n->unjoined_us = CLOCK_NEVER;
    if (now_us < n->unjoined_us) return n->unjoined_us;
    n->unjoined_us = now_us + WORKER_UNJOINED_US; /* another reason may come */
    uint32_t reason = error_reason(why);
    uint64_t times = reason == n->unjoined_reason ? 0 : repeat_note(&n->unjoined, reason, now_us);
    if (!times) return n->unjoined_us;
    n->unjoined_reason = reason;
    if (why->code)
        log_emit(LOG_WARN, "worker.refused", "%s: %s%s%s%s%s", heddle_err_name(why->code), why->message,
                 session_is_barred(&member->session) ? "; it is not tried again" : "; it is tried again",
                 why->hint[0] ? "; " : "", why->hint, repeat_text(times, scratch));
    else
        log_emit(LOG_WARN, "worker.waiting",
                 "no broker answers at %s; the worker %s%s; start one with "
                 "`heddle broker`, or name another with HEDDLE_BROKER%s",
                 n->core.opts.broker, member->session.join_count ? "serves on and " : "", "waits for one",
                 repeat_text(times, scratch));
    return n->unjoined_us;
}

/* --- JOIN and HEARTBEAT ----------------------------------------------------------------------- */

/* Counters are sums over the process's life, so that the broker can take differences between two messages
 * of any distance. */
msg_counts_t worker_node_counts(const worker_node_t *n)
{
    const worker_core_t *core = &n->core;
    tr_counters_t c;
    core->io->tr->counters(core->io->t, &c);
    msg_counts_t sum = {.bytes_in = c.bytes_in,
                        .bytes_out = c.bytes_out,
                        .chunks_bad = core->bulk.chunks_bad,
                        .retries = core->bulk.retries,
                        .fenced = core->member.session.fenced_count,
                        .own_bytes = slots_memory(core->bulk.slots).bytes};
    if (core->bulk.sharing) sum.held_bytes = mappings_count(sharing_mappings(core->bulk.sharing)).held_bytes;
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        uint32_t total = n->adapters[i].versions.slot_count;
        slots_count_t count = slots_count(core->bulk.slots, i);
        sum.slots_total += total;
        sum.slots_free += total > count.used ? total - count.used : 0;
        sum.slots_held += count.held;
    }
    return sum;
}

/* JOIN restates all that this worker holds, because the broker may have been restarted without any memory
 * of it. Without memory nothing is sent: the session repeats it when no answer comes. */
static void send_join(worker_node_t *n, uint64_t now_us)
{
    const worker_opts_t *opts = &n->core.opts;
    const node_io_t *io = n->core.io;
    const session_t *s = &n->core.member.session;
    char list[256] = "";
    const char *devices[DEVICES_MAX], *addresses[DEVICES_MAX];
    tr_where_t where;
    uint32_t held_count = 0;
    io->tr->devices(io->t, list, sizeof list);
    io->tr->where(io->t, &where);
    msg_subscription_t *adapters = calloc(n->adapter_count, sizeof *adapters);
    msg_held_t *held = calloc(LIMIT_HELD, sizeof *held);
    msg_fetched_t *fetched = calloc(n->adapter_count, sizeof *fetched);
    uint64_t(*sources)[2][LIMIT_SOURCES] = calloc(n->adapter_count, sizeof *sources);
    uint32_t fetched_count = 0;
    if (!adapters || !held || !fetched || !sources) goto done;
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        const adapter_t *a = &n->adapters[i];
        adapters[i] =
            (msg_subscription_t){a->name, a->versions.applied.decision, a->versions.applied.version};
        held_count += adapter_join_rows(a, now_us, held + held_count, LIMIT_HELD - held_count);
        uint64_t(*lists)[LIMIT_SOURCES] = sources[fetched_count];
        fetched_count += adapter_join_fetched(a, lists[0], lists[1], &fetched[fetched_count]);
    }
    /* A join must fit into a frame: of very many versions the last ones are restated without their times. */
    for (uint32_t i = LIMIT_HELD_WHOLE - 2 * fetched_count; i < held_count; i++)
        held[i] = (msg_held_t){held[i].adapter, held[i].version, held[i].state, held[i].digest};
    msg_t m = {.type = MSG_JOIN};
    m.join = (msg_join_t){.req = s->req,
                          .epoch = s->epoch,
                          .slots = opts->slots,
                          .prev_token = s->token,
                          .name = opts->name,
                          .labels = (const char **)opts->labels,
                          .label_count = opts->label_count,
                          .adapters = adapters,
                          .adapter_count = n->adapter_count,
                          .held = held,
                          .held_count = held_count,
                          .fetched = fetched,
                          .fetched_count = fetched_count,
                          .backend = io->tr->name,
                          .ucx = io->tr->version(),
                          .devices = devices,
                          .device_count = member_split(list, devices, DEVICES_MAX),
                          .export_dir = opts->export_dir,
                          .counts = worker_node_counts(n),
                          .max_rate_bytes = opts->max_rate_bytes,
                          .addresses = addresses,
                          .address_count = member_split(where.addresses, addresses, DEVICES_MAX),
                          .network = where.network,
                          .group = opts->group,
                          .rank = opts->rank,
                          .ranks = opts->ranks,
                          .place = n->core.bulk.sharing ? sharing_place(n->core.bulk.sharing) : 0,
                          .unheld = n->core.bulk.unheld,
                          .host_share = opts->host_share,
                          .no_relay = opts->no_relay,
                          .draining = worker_node_drains(n),
                          .own_wish = n->wants_to_leave,
                          .former_tokens = n->core.member.session.former_tokens,
                          .former_count = s->former_count};
    /* Without an address of its own this worker could serve no other one. */
    if (io->tr->address(io->t, &m.join.address)) goto done;
    if (member_send(&n->core.member, &m) == HEDDLE_OK)
        for (uint32_t i = 0; i < n->adapter_count; i++) versions_restate(&n->adapters[i].versions);
done:
    free(adapters);
    free(held);
    free(fetched);
    free(sources);
}

/* A heartbeat is small and frequent; without memory it is left out, and the lease outlives three that are
 * missing. */
static void send_heartbeat(void *self)
{
    worker_node_t *n = self;
    const node_io_t *io = n->core.io;
    const session_t *s = &n->core.member.session;
    msg_progress_t *rows = calloc(n->adapter_count, sizeof *rows);
    uint64_t(*spare)[LIMIT_SLOTS] = calloc(n->adapter_count, sizeof *spare);
    if (!rows || !spare) goto done;
    for (uint32_t i = 0; i < n->adapter_count; i++)
        rows[i] = adapter_progress(&n->adapters[i], clock_now(io->clock), spare[i]);
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = s->token,
                                    .seq = s->heartbeat_seq,
                                    .adapters = rows,
                                    .adapter_count = n->adapter_count,
                                    .counts = worker_node_counts(n),
                                    .unheld = n->core.bulk.unheld,
                                    .draining = worker_node_drains(n),
                                    .own_wish = n->wants_to_leave};
    (void)member_send(&n->core.member, &m);
    if (n->core.has_unsent) { /* JOIN and what follows repeat all of it */
        log_emit(LOG_INFO, "worker.unsent", "a message to the broker was lost: this worker joins again");
        io->redial(io->self, "", "");
    }
done:
    free(rows);
    free(spare);
}

/* --- VERIFY ----------------------------------------------------------------------------------- */

/* VERIFIED carries the token of the current session, which may be younger than the VERIFY that it
 * answers. */
static void send_verified(worker_node_t *n, uint32_t adapter, const msg_verified_t *result)
{
    msg_t m = {.type = MSG_VERIFIED, .verified = *result};
    m.verified.token = n->core.member.session.token;
    m.verified.adapter = n->adapters[adapter].name;
    (void)member_send(&n->core.member, &m);
}

/* Answers a VERIFY and frees its place. `err`: what is wrong with the application's copy apart from its
 * bytes; OK: nothing. A manifest that alone has gone bad is the whole answer. */
static void answer_check(worker_node_t *n, check_t *check, exported_t exported, int err)
{
    if (check->has_bad_manifest && !check->has_bad_tensors) {
        exported = EXPORTED_UNKNOWN;
        err = HEDDLE_ERR_DIGEST_MISMATCH;
    }
    send_verified(n, check->adapter,
                  &(msg_verified_t){.req = check->req,
                                    .version = check->version,
                                    .hash_us = check->hash_us,
                                    .exported = exported,
                                    .code = err ? heddle_err_name(err) : NULL,
                                    .digest = check->found});
    check_end(check);
}

/* After the slot's own digest the application is asked for that of its copy, where it has one: memory
 * here may be sound and the copy in a GPU or a file may not. */
static void hash_slice(worker_node_t *n, check_t *check, uint64_t now_us)
{
    if (!check_work(check, n->core.bulk.hashing, n->core.io->clock)) return;
    if (!n->core.opts.answers_verify) {
        answer_check(n, check, EXPORTED_UNKNOWN, HEDDLE_OK);
        return;
    }
    /* The slot stays held meanwhile, so that the answer is about the same version. */
    check->state = CHECK_ASKING;
    check->deadline_us = now_us + CHECK_ANSWER_US;
    adapter_t *a = &n->adapters[check->adapter];
    const versions_entry_t *e = versions_find(&a->versions, check->version);
    adapter_tell(a, &(versions_action_t){.event = HEDDLE_EVENT_VERIFY,
                                         .version = check->version,
                                         .what = e ? e->what : NULL,
                                         .digest = check->slot->h1});
}

/* --- the session and the broker's messages ---------------------------------------------------- */

/* Every WELCOME resets the counts of refusals, so that the next refusal is reported at once again. */
static void on_joined(worker_node_t *n, const msg_welcome_t *m, uint64_t now_us)
{
    /* A mistyped name is a name, and its worker would wait for ever: it is logged once. */
    for (uint32_t i = 0; n->core.member.session.join_count == 1 && i < n->adapter_count; i++) {
        bool has_decision = false;
        for (uint32_t k = 0; k < m->adapter_count; k++)
            has_decision |= m->adapters[k].decision && !strcmp(m->adapters[k].adapter, n->adapters[i].name);
        if (!has_decision)
            log_emit(LOG_INFO, "adapter.empty",
                     "%s has no active version yet: nothing was published or activated", n->adapters[i].name);
    }
    /* JOIN and this WELCOME have repeated all that was lost before. */
    n->core.has_unsent = false;
    n->join_end_us = CLOCK_NEVER;
    n->refusals = (repeat_t){0};
    n->unjoined_us = CLOCK_NEVER;
    n->unjoined_reason = 0;
    if (repeat_over(&n->unjoined))
        log_emit(LOG_WARN, "worker.joined", "the broker at %s has admitted this worker", n->core.opts.broker);
    member_tell(&n->core.member, &(heddle_event_t){.type = HEDDLE_EVENT_JOINED, .step = -1});
    for (uint32_t i = 0; i < n->adapter_count; i++) adapter_up(&n->adapters[i], m, now_us);
}

/* A message for an adapter that this worker did not subscribe to is ignored: the broker and the worker
 * may disagree for a moment after a change. */
static void deliver(worker_node_t *n, const msg_t *m, uint64_t now_us)
{
    const char *name = NULL;
    switch (m->type) {
    case MSG_ANNOUNCE: name = m->announce.adapter; break;
    case MSG_SOURCES: name = m->sources.adapter; break;
    case MSG_COMMIT: name = m->commit.adapter; break;
    case MSG_ABORT: name = m->abort.adapter; break;
    case MSG_RETIRE: name = m->retire.adapter; break;
    case MSG_VERIFY: name = m->verify.adapter; break;
    case MSG_PEERS:
        if (n->core.bulk.sharing)
            sharing_peers(n->core.bulk.sharing, m->peers.peers, m->peers.peer_count, now_us);
        return;
    case MSG_ERROR:
        log_emit(LOG_DEBUG, "worker.error", "the broker refused a %s: %s", msg_name((int)m->error.of),
                 m->error.message);
        return;
    default: return;
    }
    int index = slots_find(n->core.bulk.slots, name);
    if (index < 0) return;
    if (m->type != MSG_VERIFY) {
        adapter_receive(&n->adapters[index], m, now_us);
        return;
    }
    const versions_entry_t *e = versions_find(&n->adapters[index].versions, m->verify.version);
    int rc = checks_start(&n->checks, n->core.bulk.slots, (uint32_t)index, e ? e->what : NULL, &m->verify);
    msg_verified_t none = {.req = m->verify.req, .version = m->verify.version, .code = heddle_err_name(rc)};
    if (rc) send_verified(n, (uint32_t)index, &none);
}

/* The broker's answers say whether this worker drains, because an operator or its own application asked for
 * it.  They say DONE when other workers hold all that is needed of what is here: then this one leaves. */
static void follow_drain(worker_node_t *n, uint64_t now_us)
{
    const session_t *s = &n->core.member.session;
    if (s->state != SESSION_READY) return;
    /* An operator took the drain back, so it is restated no longer.  One that the application asked for is
     * not the operator's to take back. */
    if (s->stays && n->is_draining && !n->wants_to_leave) {
        n->is_draining = false;
        member_tell(&n->core.member, &(heddle_event_t){.type = HEDDLE_EVENT_STAYING, .step = -1});
    }
    if (s->drain == DRAIN_NONE) return;
    if (!n->is_draining)
        member_tell(&n->core.member, &(heddle_event_t){.type = HEDDLE_EVENT_DRAINING, .step = -1});
    n->is_draining = true;
    if (s->drain == DRAIN_DONE) worker_node_leave(n, now_us);
}

/* Steps the session and does what it says. */
static void on_worker_session(void *self, const node_event_t *session_event, uint64_t now_us)
{
    worker_node_t *n = self;
    owner_check(n->core.io->owner);
    client_member_t *member = &n->core.member;
    msg_t m;
    bool was_ready = member->session.state == SESSION_READY;
    unsigned out = member_step(member, session_event, now_us, &m);
    /* Before anything of the same step is delivered: a COMMIT of a session that has ended counts no more. */
    if (was_ready && member->session.state != SESSION_READY) {
        n->unjoined_us = n->core.opts.broker ? 0 : CLOCK_NEVER;
        for (uint32_t i = 0; i < n->adapter_count; i++) adapter_down(&n->adapters[i], now_us);
    }
    if (out & SO_LAPSED) {
        /* The session ended by the clock, or by an ERROR of the broker. */
        heddle_error_t error;
        bool is_fenced = m.type == MSG_ERROR;
        if (is_fenced) msg_to_error(&m.error, &error);
        else
            error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "%s; serving goes on",
                       member->session.has_lapsed
                           ? "this process stood still for longer than a lease, and joins again"
                       : member->refusal.code ? member->refusal.message
                                              : "no message from the broker for a lease");
        heddle_event_t event = {.type = is_fenced ? HEDDLE_EVENT_FENCED : HEDDLE_EVENT_LOST_BROKER,
                                .code = error.code,
                                .retriable = 1,
                                .step = -1};
        memcpy(event.adapter, error.adapter, sizeof event.adapter);
        error_text(event.message, sizeof event.message, error.message);
        member_tell(&n->core.member, &event);
    }
    /* A WELCOME is obeyed before the heartbeat, which then reports what it has changed. */
    if (out & SO_JOIN) send_join(n, now_us);
    if (out & SO_ELSEWHERE) tell_refusal(n, 1, now_us);
    if (out & SO_JOINED) on_joined(n, &m.welcome, now_us);
    if (out & SO_REFUSED) {
        /* The broker refuses a HELLO before it has seen the adapters: the key needs the role of each. */
        char names[sizeof member->refusal.expected] = "";
        for (uint32_t i = 0; i < n->adapter_count; i++) {
            size_t used = strlen(names);
            text_printf(names + used, sizeof names - used, "%s%s", i ? ", worker:" : "", n->adapters[i].name);
        }
        error_name_adapter(&member->refusal, names);
        /* The name is in use. Its worker may be about to end, and gets --join-timeout from the first refusal
         * on. */
        if (member->refusal.code == HEDDLE_ERR_WORKER_ALIVE && n->core.opts.join_timeout_us &&
            n->join_end_us == CLOCK_NEVER)
            n->join_end_us = now_us + n->core.opts.join_timeout_us;
        tell_refusal(n, !session_is_barred(&member->session), now_us);
    }
    if (out & SO_HEARTBEAT) send_heartbeat(n);
    if (out & SO_DELIVER) deliver(n, &m, now_us);
    if (out & SO_LEFT) member_tell(member, &(heddle_event_t){.type = HEDDLE_EVENT_LEFT, .step = -1});
    msg_fini(&m);
    follow_drain(n, now_us);
}

/* --- node_ops --------------------------------------------------------------------------------- */

/* The session never sees that connection. */
static void on_connection_refused(void *self, const heddle_error_t *why, uint64_t now_us)
{
    worker_node_t *n = self;
    owner_check(n->core.io->owner);
    member_connection_refused(&n->core.member, why);
    tell_refusal(n, 1, now_us);
}

/* The end of a read request has one addressee, which its cookie names. That saves a look at every adapter
 * for each chunk. */
static void on_worker_transfer(void *self, const tr_event_t *event, uint64_t now_us)
{
    worker_node_t *n = self;
    owner_check(n->core.io->owner);
    if (event->kind == TR_ARRIVED || event->kind == TR_REFUSED) {
        adapter_receive_transfer(&n->adapters[cookie_adapter(event->cookie)], event, now_us);
        return;
    }
    /* About a peer or a share: each adapter may have to do with it. */
    for (uint32_t i = 0; i < n->adapter_count; i++) adapter_receive_transfer(&n->adapters[i], event, now_us);
}

static bool is_fetching(const worker_node_t *n)
{
    for (uint32_t i = 0; i < n->adapter_count; i++)
        if (adapter_is_fetching(&n->adapters[i])) return true;
    return false;
}

/* A descriptor of its sharing. */
static void on_readable(void *self)
{
    worker_node_t *n = self;
    sharing_readable(n->core.bulk.sharing);
}

/* The session goes first: whether the lease is over decides what the adapters may do. */
static uint64_t on_tick(void *self, uint64_t now_us)
{
    worker_node_t *n = self;
    owner_check(n->core.io->owner);
    on_worker_session(n, &(node_event_t){.kind = SE_TICK}, now_us);
    if (now_us >= n->join_end_us) { /* the name has been alive for too long */
        n->join_end_us = CLOCK_NEVER;
        tell_refusal(n, 0, now_us);
        worker_node_leave(n, now_us);
    }
    uint64_t unjoined_us = report_unjoined(n, now_us);
    for (check_t *check; (check = checks_overdue(&n->checks, now_us));)
        answer_check(n, check, EXPORTED_UNKNOWN, HEDDLE_OK);
    uint64_t next = clock_earlier(clock_earlier(n->join_end_us, unjoined_us), checks_deadline(&n->checks));
    for (uint32_t i = 0; i < n->adapter_count; i++)
        next = clock_earlier(next, adapter_tick(&n->adapters[i], now_us));
    if (is_fetching(n)) regions_busy(slots_regions(n->core.bulk.slots), now_us);
    next = clock_earlier(next, slots_deadline(n->core.bulk.slots));
    if (n->core.bulk.sharing) next = clock_earlier(next, sharing_turn(n->core.bulk.sharing, now_us));
    return clock_earlier(next, session_deadline(&n->core.member.session));
}

/* Adapters take turns, one piece or slice each, so that a large one does not delay the others. Checks come
 * after the adapters: a version on its way is worth more than a VERIFY, which has a deadline of its own. */
static bool on_work(void *self, uint64_t now_us)
{
    worker_node_t *n = self;
    owner_check(n->core.io->owner);
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        uint32_t at = (n->turn + i) % n->adapter_count;
        if (!adapter_work(&n->adapters[at], now_us)) continue;
        n->turn = at + 1;
        return true;
    }
    check_t *check = checks_hashing(&n->checks);
    if (check) hash_slice(n, check, now_us);
    return check || slots_work(n->core.bulk.slots, now_us);
}

const node_ops_t worker_node_ops = {.session = on_worker_session,
                                    .refused = on_connection_refused,
                                    .transfer = on_worker_transfer,
                                    .readable = on_readable,
                                    .tick = on_tick,
                                    .work = on_work};

/* --- the application -------------------------------------------------------------------------- */

/* Answers about a rollout go to the adapter, those about VERIFY to the check that asked. */
int worker_node_answer(worker_node_t *n, const app_answer_t *answer, uint64_t now_us)
{
    owner_check(n->core.io->owner);
    if (answer->kind < APP_VERIFIED) return adapter_answer(&n->adapters[answer->adapter], answer, now_us);
    check_t *check = checks_asking(&n->checks, answer->adapter, answer->version);
    if (!check) return HEDDLE_ERR_NOT_FOUND;
    if (answer->kind == APP_COPY_MISSING) answer_check(n, check, EXPORTED_DIFFERS, HEDDLE_ERR_NOT_FOUND);
    else if (!answer->digest) answer_check(n, check, EXPORTED_UNKNOWN, HEDDLE_OK);
    else
        answer_check(n, check,
                     digest_equal(answer->digest, &check->slot->h1) ? EXPORTED_MATCH : EXPORTED_DIFFERS,
                     HEDDLE_OK);
    return HEDDLE_OK;
}

void worker_node_leave(worker_node_t *n, uint64_t now_us)
{
    owner_check(n->core.io->owner);
    on_worker_session(n, &(node_event_t){.kind = SE_LEAVE}, now_us);
}

bool worker_node_drains(const worker_node_t *n) { return n->wants_to_leave || n->is_draining; }

/* A worker that was never admitted has nothing that others could need. */
void worker_node_drain(worker_node_t *n, uint64_t now_us)
{
    owner_check(n->core.io->owner);
    n->wants_to_leave = true;
    if (!n->core.member.session.join_count) worker_node_leave(n, now_us);
    else session_beat_soon(&n->core.member.session, now_us);
}

_Static_assert(WORKER_FDS == SHARING_FDS, "all that it shares with");
void worker_node_fds(const worker_node_t *n, int ret_fds[WORKER_FDS])
{
    for (int i = 0; i < WORKER_FDS; i++) ret_fds[i] = -1;
    if (n->core.bulk.sharing) sharing_fds(n->core.bulk.sharing, ret_fds);
}

slots_t *worker_node_slots(const worker_node_t *n) { return n->core.bulk.slots; }
const heddle_error_t *worker_node_refusal(const worker_node_t *n) { return &n->core.member.refusal; }
const session_t *worker_node_session(const worker_node_t *n) { return &n->core.member.session; }
const versions_t *worker_node_versions(const worker_node_t *n, uint32_t adapter)
{
    return &n->adapters[adapter].versions;
}
worker_core_t *worker_node_core(worker_node_t *n) { return &n->core; }
adapter_t *worker_node_adapter(worker_node_t *n, uint32_t index) { return &n->adapters[index]; }

/* --- life ------------------------------------------------------------------------------------- */

/* A note of a source about what is held, for the adapter that holds it. */
static void on_note(void *self, const char *source, note_t note, const content_id_t *id)
{
    worker_node_t *n = self;
    for (uint32_t i = 0; i < n->adapter_count; i++) intake_receive(&n->adapters[i].intake, source, note, id);
    /* It may be handed on here already, as verified. */
    if (note == NOTE_DOUBTED || note == NOTE_SPOILED) offer_doubt(sharing_offer(n->core.bulk.sharing), id);
}

/* Without it every version is fetched. Where the operator named a directory for it, that is an error. */
static int share(worker_node_t *n, heddle_error_t *error)
{
    heddle_error_t why;
    regions_t *memory = slots_regions(n->core.bulk.slots);
    sharing_opts_t opts = {.directory = n->core.opts.host_share,
                           .life = n->core.opts.life,
                           .pool = regions_pool(memory),
                           .received = on_note,
                           .self = n};
    int rc = sharing_new(&opts, &n->core.bulk.sharing, &why);
    if (!rc) {
        regions_share(memory, sharing_offer(n->core.bulk.sharing));
        return HEDDLE_OK;
    }
    if (opts.directory && error) *error = why;
    if (opts.directory) return rc;
    error_text(n->core.bulk.unheld, sizeof n->core.bulk.unheld, why.message);
    log_emit(LOG_WARN, "worker.unshared", "this worker copies the versions of its host: %s%s%s", why.message,
             why.hint[0] ? "; " : "", why.hint);
    return HEDDLE_OK;
}

bool worker_node_shares(const worker_node_t *n, const char **ret_why)
{
    *ret_why = n->core.bulk.unheld;
    return n->core.bulk.sharing != NULL;
}

/* The adapters are part of the node's own memory, so that their addresses stay valid for its life. */
int worker_node_new(const worker_opts_t *opts, const node_io_t *io, worker_node_t **ret_node,
                    heddle_error_t *error)
{
    worker_node_t *n = calloc(1, sizeof *n + opts->adapter_count * sizeof *n->adapters);
    if (!n) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a worker");
    n->core = (worker_core_t){.opts = *opts, .io = io, .heartbeat = send_heartbeat, .self = n};
    n->core.bulk = (bulk_t){.io = io,
                            .is_digested_here = opts->verifies_each,
                            .hashing = opts->hashing,
                            .is_limited = opts->max_rate_bytes > 0,
                            .check = opts->check};
    member_init(&n->core.member,
                &(session_opts_t){.role = ROLE_WORKER,
                                  .life = opts->life,
                                  .host = opts->host,
                                  .pid = opts->pid,
                                  .seed = opts->seed},
                io);
    n->join_end_us = CLOCK_NEVER;
    n->unjoined_us = opts->broker ? 0 : CLOCK_NEVER;
    slots_ops_t ops = {.io = io, .wake = opts->wake, .self = opts->wake_self, .is_guarded = opts->is_guarded};
    int rc = slots_new(opts->adapters, opts->adapter_count, &ops, &n->core.bulk.slots);
    if (rc) error_fail(error, rc, "no memory for a worker");
    if (!rc && opts->is_sharing) rc = share(n, error);
    if (rc) {
        worker_node_destroy(&n);
        return rc;
    }
    n->adapter_count = opts->adapter_count;
    for (uint32_t i = 0; i < n->adapter_count; i++) adapter_init(&n->adapters[i], &n->core, i);
    *ret_node = n;
    return HEDDLE_OK;
}

/* The order is fixed by memory: fetches and shares end, sends and receives finish, regions are
 * unregistered, and only then may slots go. Slots with readers outlive the node. */
void worker_node_destroy(worker_node_t **node)
{
    worker_node_t *n = node ? *node : NULL;
    if (!n) return;
    *node = NULL;
    owner_check(n->core.io->owner);
    checks_fini(&n->checks);
    for (uint32_t i = 0; i < n->adapter_count; i++) adapter_end(&n->adapters[i]);
    if (n->core.bulk.slots) {
        bool dropped = false;
        slots_drain(n->core.bulk.slots);
        for (uint32_t i = 0; i < n->adapter_count; i++) dropped |= adapter_drop_sources(&n->adapters[i]);
        if (dropped) slots_drain(n->core.bulk.slots);
        slots_unmap_all(n->core.bulk.slots);
        sharing_close(&n->core.bulk.sharing);
    }
    for (uint32_t i = 0; i < n->adapter_count; i++) adapter_free(&n->adapters[i]);
    slots_close(&n->core.bulk.slots);
    member_fini(&n->core.member);
    free(n);
}
