/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_metrics.h"

#include "broker/questions/query.h"
#include "broker/questions/status_reasons.h"
#include "broker/registry/active.h"
#include "broker/rollout/summary.h"
#include "broker/state.h"
#include "core/errors.h"

#include <heddle/types.h>
#include <string.h>

/* ---- the table ---- */

/* clang-format off */
enum {
    BUILD, START_TIME, EPOCH, LEADS, FOLLOWS, BEHIND, REASONS, READ_ONLY, SETTLING, LEASE,
    REGISTRY, ANSWERED, COMMITS, REFUSALS,
    ADAPTERS, ADAPTERS_HELD, ADAPTERS_LOST, WRITERS,
    REMEMBERED, VERSIONS, PUBLISHED, ROLLOUTS, DECISIONS, RETIRED,
    WORKERS, CURRENT, LAG, SILENCE, SESSIONS, JOINS, PHASES, BYTES, STAGES, SWITCHES, SOURCES, VERIFICATIONS,
    CONNECTIONS, QUESTIONS, WAITING, RECEIVED, SENT, BAD_FRAMES, DROPPED, DENIED
};
static const metric_t METRICS[] = {
    [BUILD] = {"heddle_build", "", METRIC_INFO, "version",
        "The broker's release"},
    [START_TIME] = {"heddle_broker_start_time_seconds", "seconds", METRIC_GAUGE, NULL,
        "When the broker began to serve, since 1970"},
    [EPOCH] = {"heddle_broker_epoch", "", METRIC_GAUGE, NULL,
        "Number of this start of the broker"},
    [LEADS] = {"heddle_broker_leads", "", METRIC_GAUGE, NULL,
        "1 while this broker leads; 0 while it stands by, or has yielded (`broker.yielded` in its log)"},
    [FOLLOWS] = {"heddle_standby_following", "", METRIC_GAUGE, NULL,
        "Of a standby: 1 while it could take over at once, else 0"},
    [BEHIND] = {"heddle_standby_behind_revisions", "", METRIC_GAUGE, NULL,
        "Of a standby: how many revisions of etcd it has not followed yet"},
    [REASONS] = {"heddle_reasons", "", METRIC_GAUGE, "reason",
        "What needs an operator (`heddle status --check`), by reason; of a worker once for each adapter"},
    [READ_ONLY] = {"heddle_broker_read_only", "", METRIC_GAUGE, NULL,
        "1 while disk or etcd takes no records, else 0"},
    [SETTLING] = {"heddle_broker_settling_seconds", "seconds", METRIC_GAUGE, NULL,
        "For how long the broker still decides nothing after its start"},
    [LEASE] = {"heddle_lease_seconds", "seconds", METRIC_GAUGE, NULL,
        "How long a member may be silent before its session ends"},
    [REGISTRY] = {"heddle_registry_bytes", "bytes", METRIC_GAUGE, NULL,
        "Size of the registry on disk"},
    [ANSWERED] = {"heddle_store_answering", "", METRIC_GAUGE, NULL,
        "0 while no endpoint of the etcd in --store answers, else 1"},
    [COMMITS] = {"heddle_store_commit_seconds", "seconds", METRIC_HISTOGRAM, NULL,
        "How long the store took for a transaction, also for one that it refused"},
    [REFUSALS] = {"heddle_store_refusals", "", METRIC_COUNTER, NULL,
        "How often the store began to refuse records"},
    [ADAPTERS] = {"heddle_adapters", "", METRIC_GAUGE, NULL,
        "Adapters that were published to"},
    [ADAPTERS_HELD] = {"heddle_adapters_held", "", METRIC_GAUGE, NULL,
        "Of these, held at a version that was activated by hand"},
    [ADAPTERS_LOST] = {"heddle_adapters_lost", "", METRIC_GAUGE, NULL,
        "Of these, without a connected process that holds the bytes of the active version"},
    [WRITERS] = {"heddle_writers", "", METRIC_GAUGE, NULL,
        "Publishers that have an adapter open"},
    [REMEMBERED] = {"heddle_versions_remembered", "", METRIC_GAUGE, NULL,
        "Versions that the broker knows, ended ones too"},
    [VERSIONS] = {"heddle_versions", "", METRIC_GAUGE, "state",
        "Versions that have not ended, by state"},
    [PUBLISHED] = {"heddle_versions_published", "", METRIC_COUNTER, NULL,
        "Versions that were recorded"},
    [ROLLOUTS] = {"heddle_rollouts", "", METRIC_COUNTER, "outcome",
        "Rollouts that ended: staged as their rule asks, failed, or superseded by a newer version"},
    [DECISIONS] = {"heddle_decisions", "", METRIC_COUNTER, NULL,
        "How often a version was made the active one, by a rollout or by hand"},
    [RETIRED] = {"heddle_versions_retired", "", METRIC_COUNTER, NULL,
        "Versions that were active and are not kept any longer"},
    [WORKERS] = {"heddle_workers", "", METRIC_GAUGE, "state",
        "Workers by state; left and lost ones are counted for 10 minutes"},
    [CURRENT] = {"heddle_workers_current", "", METRIC_GAUGE, NULL,
        "Ready workers that serve the active version of each of their adapters"},
    [LAG] = {"heddle_worker_lag_versions_max", "", METRIC_GAUGE, NULL,
        "The greatest number of versions that a worker is behind which is ready or drains"},
    [SILENCE] = {"heddle_worker_silence_max_seconds", "seconds", METRIC_GAUGE, NULL,
        "The greatest time since the last message of a worker that is ready or drains"},
    [SESSIONS] = {"heddle_worker_sessions", "", METRIC_COUNTER, "event",
        "Sessions of workers that began (joined) or ended"},
    [JOINS] = {"heddle_join_seconds", "seconds", METRIC_HISTOGRAM, NULL,
        "From the joining of a worker until it served the version of an adapter that was active then"},
    [PHASES] = {"heddle_stage_seconds", "seconds", METRIC_HISTOGRAM, "phase",
        "How long a version took at a worker, by phase; verify is within fetch"},
    [BYTES] = {"heddle_fetched_bytes", "bytes", METRIC_COUNTER, "way",
        "Bytes of versions that workers staged, from a publisher or a worker, or in memory of their host"},
    [STAGES] = {"heddle_worker_stages", "", METRIC_COUNTER, "outcome",
        "Versions that a worker staged, or did not come to stage"},
    [SWITCHES] = {"heddle_worker_activations", "", METRIC_COUNTER, "outcome",
        "Versions that a worker began to serve, or could not"},
    [SOURCES] = {"heddle_sources_failed", "", METRIC_COUNTER, "reason",
        "Sources that a worker lost, got wrong bytes from, or found slow"},
    [VERIFICATIONS] = {"heddle_verifications_failed", "", METRIC_COUNTER, NULL,
        "Holders that a verification found with other bytes"},
    [CONNECTIONS] = {"heddle_connections", "", METRIC_GAUGE, NULL,
        "Processes that have introduced themselves"},
    [QUESTIONS] = {"heddle_questions_waiting", "", METRIC_GAUGE, NULL,
        "Questions that wait: wait, activate, verify, events"},
    [WAITING] = {"heddle_requests_waiting", "", METRIC_GAUGE, NULL,
        "Requests that wait for an open transaction"},
    [RECEIVED] = {"heddle_messages_received", "", METRIC_COUNTER, "type",
        "Messages from members and commands, by type"},
    [SENT] = {"heddle_messages_sent", "", METRIC_COUNTER, "type",
        "Messages to them, by type"},
    [BAD_FRAMES] = {"heddle_frames_malformed", "", METRIC_COUNTER, NULL,
        "Frames that are not messages"},
    [DROPPED] = {"heddle_messages_dropped", "", METRIC_COUNTER, NULL,
        "Messages that found no room in the queue of their connection, or no connection"},
    [DENIED] = {"heddle_messages_denied", "", METRIC_COUNTER, NULL,
        "Messages that the key of their sender does not allow"},
};

/* Counters of events (broker/events.h). */
static const struct {
    int metric;
    event_type_t event;
    const char *value;
} COUNTED[] = {
    {REFUSALS, EVENT_STORE_REFUSED, NULL},
    {PUBLISHED, EVENT_VERSION_PUBLISHED, NULL},
    {ROLLOUTS, EVENT_VERSION_STAGED, "staged"}, {ROLLOUTS, EVENT_VERSION_FAILED, "failed"},
    {ROLLOUTS, EVENT_VERSION_SUPERSEDED, "superseded"},
    {DECISIONS, EVENT_VERSION_ACTIVATED, NULL},
    {RETIRED, EVENT_VERSION_RETIRED, NULL},
    {SESSIONS, EVENT_WORKER_JOINED, "joined"}, {SESSIONS, EVENT_WORKER_LEFT, "left"},
    {SESSIONS, EVENT_WORKER_LOST, "lost"}, {SESSIONS, EVENT_WORKER_FENCED, "fenced"},
    {STAGES, EVENT_STAGE_DONE, "done"}, {STAGES, EVENT_STAGE_FAILED, "failed"},
    {SWITCHES, EVENT_ACTIVATE_DONE, "done"}, {SWITCHES, EVENT_ACTIVATE_FAILED, "failed"},
    {SOURCES, EVENT_SOURCE_LOST, "lost"}, {SOURCES, EVENT_SOURCE_BAD, "bad"},
    {SOURCES, EVENT_SOURCE_SLOW, "slow"},
    {VERIFICATIONS, EVENT_VERIFY_FAILED, NULL},
};
/* clang-format on */

static void put(samples_t *to, int metric, double number) { samples_add(to, &METRICS[metric], NULL, number); }

/* Every event of the metric has a sample, from 0 on: a rate is then seen from the first one. */
static void put_counted(samples_t *to, int metric, const events_t *events)
{
    for (size_t i = 0; i < sizeof COUNTED / sizeof *COUNTED; i++)
        if (COUNTED[i].metric == metric)
            samples_add(to, &METRICS[metric], COUNTED[i].value, (double)events->counts[COUNTED[i].event]);
}

/* ---- what is there now ---- */

static void put_broker(const broker_t *b, const main_store_t *store, const histogram_t *commits,
                       instant_t now, samples_t *to)
{
    uint64_t settling_us = rollout_settling_us(&b->rollout, &b->members, now.us);
    samples_add(to, &METRICS[BUILD], heddle_version(), 1);
    put(to, START_TIME, (double)b->started_ms / 1e3);
    put(to, EPOCH, (double)b->registry.epoch);
    const brokers_t *brokers = b->io.brokers ? b->io.brokers(b->io.self) : NULL;
    put(to, LEADS, !(brokers && brokers->has_yielded));
    uint64_t counts[REASON_COUNT];
    answer_view_t view = query_view(b, now);
    status_reasons_count(&view, counts);
    for (int reason = 0; reason < REASON_MORE; reason++)
        samples_add(to, &METRICS[REASONS], status_reason_name((status_reason_t)reason),
                    (double)counts[reason]);
    put(to, READ_ONLY, view.is_read_only);
    put(to, SETTLING, (double)settling_us / 1e6);
    put(to, LEASE, (double)b->opts.lease_ms / 1e3);
    put(to, REGISTRY, b->io.registry_bytes ? (double)b->io.registry_bytes(b->io.self) : 0);
    put(to, ANSWERED, main_store_is_answered(store));
    samples_add_histogram(to, &METRICS[COMMITS], NULL, commits);
    put_counted(to, REFUSALS, &b->events);
}

static void put_versions(const broker_t *b, samples_t *to)
{
    static const char *const STATES[] = {"staging", "staged", "active", "kept", "lost"};
    enum { STATE_COUNT = sizeof STATES / sizeof *STATES };
    uint64_t adapters = 0, held = 0, lost = 0, writers = 0, versions = 0, in_state[STATE_COUNT] = {0};
    for (size_t i = 0; i < b->registry.adapter_count; i++) {
        const adapter_row_t *a = b->registry.adapters[i];
        adapters += !registry_is_vacant(a);
        held += a->held;
        lost += summary_lost_active(&b->rollout, a) != NULL;
        writers += a->writer.token != 0;
        versions += a->version_count;
        for (size_t v = registry_live_from(a); v < a->version_count; v++) {
            const char *state = summary_state(&b->rollout, a, a->versions[v]);
            for (size_t s = 0; s < STATE_COUNT; s++) in_state[s] += !strcmp(state, STATES[s]);
        }
    }
    put(to, ADAPTERS, (double)adapters);
    put(to, ADAPTERS_HELD, (double)held);
    put(to, ADAPTERS_LOST, (double)lost);
    put(to, WRITERS, (double)writers);
    put(to, REMEMBERED, (double)versions);
    for (size_t s = 0; s < STATE_COUNT; s++)
        samples_add(to, &METRICS[VERSIONS], STATES[s], (double)in_state[s]);
    put_counted(to, PUBLISHED, &b->events);
    put_counted(to, ROLLOUTS, &b->events);
    put_counted(to, DECISIONS, &b->events);
    put_counted(to, RETIRED, &b->events);
}

static void put_workers(const broker_t *b, instant_t now, samples_t *to)
{
    uint64_t in_state[MEMBER_LOST + 1] = {0}, current = 0, max_lag = 0, max_silent_ms = 0;
    for (size_t i = 0; i < b->members.worker_count; i++) {
        const member_t *m = b->members.workers[i];
        in_state[m->state]++;
        if (!member_is_ready(m)) continue;
        uint64_t silent_ms = member_silent_ms(m, now.us);
        bool is_current = true;
        for (uint32_t k = 0; k < m->sub_count; k++) {
            const adapter_row_t *a = registry_adapter(&b->registry, m->subs[k].adapter);
            uint64_t lag = a ? active_lag(a, m, &m->subs[k]) : 0;
            is_current &= active_is_served(a, m, &m->subs[k]);
            if (lag > max_lag) max_lag = lag;
        }
        current += is_current && m->state == MEMBER_READY;
        if (silent_ms > max_silent_ms) max_silent_ms = silent_ms;
    }
    for (int state = MEMBER_READY; state <= MEMBER_LOST; state++)
        samples_add(to, &METRICS[WORKERS], member_state_name((member_state_t)state), (double)in_state[state]);
    put(to, CURRENT, (double)current);
    put(to, LAG, (double)max_lag);
    put(to, SILENCE, (double)max_silent_ms / 1e3);
    put_counted(to, SESSIONS, &b->events);
    samples_add_histogram(to, &METRICS[JOINS], NULL, &b->rollout.costs.joins);
    for (int phase = 0; phase < COST_PHASE_COUNT; phase++)
        samples_add_histogram(to, &METRICS[PHASES], cost_phase_name((cost_phase_t)phase),
                              &b->rollout.costs.phases[phase]);
    for (int way = 0; way < COST_WAY_COUNT; way++)
        samples_add(to, &METRICS[BYTES], cost_way_name((cost_way_t)way), (double)b->rollout.costs.bytes[way]);
    put_counted(to, STAGES, &b->events);
    put_counted(to, SWITCHES, &b->events);
    put_counted(to, SOURCES, &b->events);
    put_counted(to, VERIFICATIONS, &b->events);
}

/* Types that there are, whether one came or not. */
static void put_types(samples_t *to, int metric, const uint64_t counts[32])
{
    for (int type = 1; type < 32; type++)
        if (msg_table(type)) samples_add(to, &METRICS[metric], msg_name(type), (double)counts[type]);
}

static void put_messages(const broker_t *b, samples_t *to)
{
    put(to, CONNECTIONS, (double)b->peer_count);
    put(to, QUESTIONS, (double)b->pending.count);
    put(to, WAITING, (double)b->waiting_count);
    put_types(to, RECEIVED, b->received);
    put_types(to, SENT, b->sent);
    put(to, BAD_FRAMES, (double)b->bad_frames);
    put(to, DROPPED, (double)b->dropped_sends);
    put(to, DENIED, (double)b->denied);
}

void main_metrics_gather(const broker_t *b, const main_store_t *store, const histogram_t *commits,
                         instant_t now, samples_t *to)
{
    put_broker(b, store, commits, now, to);
    put_versions(b, to);
    put_workers(b, now, to);
    put_messages(b, to);
}

void main_metrics_of_standby(const standby_t *s, samples_t *to)
{
    samples_add(to, &METRICS[BUILD], heddle_version(), 1);
    put(to, LEADS, 0);
    put(to, FOLLOWS, s->is_following);
    put(to, BEHIND, (double)s->behind);
    put(to, ANSWERED, s->is_answered);
}
