/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of answers: every field of the contract is there, of its type, in every body; lists sorted; pages whole.
 * A broker is driven with real messages, without sockets or time. */
#include "broker/questions/answer_events.h"
#include "broker/questions/answer_pending.h"
#include "broker/questions/cell.h"
#include "broker/questions/query.h"

#include "core/errors.h"
#include "core/limits.h"
#include "proto/value.h"

#include <criterion/criterion.h>
#include <heddle/publisher.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a broker without a process -------------------------------------------------------------------------------- */

static broker_t *broker;
static instant_t now = {.us = 50000000, .wall_ms = 1780000000123};
static uint64_t tokens[16]; /* by peer, as WELCOME said */
static uint64_t report_req; /* of the last REPORT */
static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":16,\"target_modules\":[\"q_proj\"]}";

static int io_send(void *self, uint64_t peer, bytes_t frame)
{
    (void)self;
    msg_t m;
    heddle_error_t e;
    cr_assert_eq(msg_decode(frame, &m, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_neq((int)m.type, MSG_ERROR, "%s %s", m.error.code, m.error.message);
    if (m.type == MSG_WELCOME) tokens[peer] = m.welcome.token;
    if (m.type == MSG_REPORT) report_req = m.report.req;
    msg_fini(&m);
    return HEDDLE_OK;
}
static void io_forget(void *self, uint64_t peer) { (void)self, (void)peer; }
static int io_commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    (void)self, (void)records, (void)count, (void)error;
    return HEDDLE_OK;
}
static void io_fatal(void *self, const heddle_error_t *error)
{
    (void)self;
    cr_assert_fail("fatal: %s", error->message);
}
static void io_random(void *self, void *data, size_t bytes)
{
    static uint8_t next;
    (void)self;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)data)[i] = ++next;
}
static uint64_t io_bytes(void *self) { return (void)self, 12345; }
static const char *stored_config = CONFIG;
static int io_config(void *self, const char *adapter, uint64_t version, buf_t *out)
{
    (void)self, (void)adapter, (void)version;
    buf_add_text(out, stored_config);
    return HEDDLE_OK;
}

static const answer_view_t *view(void)
{
    static answer_view_t v;
    v = query_view(broker, now);
    return &v;
}

static void start(void)
{
    static const broker_io_t IO = {.send = io_send,
                                   .forget = io_forget,
                                   .commit = io_commit,
                                   .fatal = io_fatal,
                                   .random = io_random,
                                   .registry_bytes = io_bytes,
                                   .config = io_config};
    static const broker_opts_t OPTS = {.lease_ms = 4000,
                                       .keep = 1,
                                       .cluster = "0123456789abcdef",
                                       .endpoint = "tcp://127.0.0.1:7700",
                                       .data_dir = "/var/lib/heddle",
                                       .public_key = "XcFKr2",
                                       .pid = 4711,
                                       .seed = 1};
    heddle_error_t e;
    cr_assert_eq(broker_new(&OPTS, &IO, &broker, &e), HEDDLE_OK);
    cr_assert_eq(broker_apply(broker, &(record_t){.kind = RECORD_EPOCH, .epoch = 7}), HEDDLE_OK);
    cr_assert_eq(broker_start(broker, now), HEDDLE_OK);
}

static void stop(void) { broker_destroy(&broker); }

static void say(uint64_t peer, const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    now.us += 1000;
    now.wall_ms += 1;
    broker_tick(broker, now);
    broker_frame(broker, peer, buf_view(&frame), now);
    broker_flush(broker, now);
    buf_fini(&frame);
}

static void hello(uint64_t peer, role_t role)
{
    msg_t m = {.type = MSG_HELLO,
               .hello = {.wire_min = 1,
                         .wire_max = 1,
                         .role = role,
                         .pid = 100 + peer,
                         .heddle = "0.1.0",
                         .host = peer == 2 ? "gpu-2" : "gpu-1",
                         .life = {{(uint8_t)peer}}}};
    say(peer, &m);
}

static void join(uint64_t peer, const char *name, const char *zone)
{
    hello(peer, ROLE_WORKER);
    msg_subscription_t subs[] = {{.adapter = "policy"}, {.adapter = "critic"}};
    msg_t m = {.type = MSG_JOIN,
               .join = {.req = 1,
                        .slots = 3,
                        .name = name,
                        .labels = (const char *[]){zone},
                        .label_count = 1,
                        .adapters = subs,
                        .adapter_count = 2,
                        .backend = "ucx",
                        .ucx = "1.13.1",
                        .devices = (const char *[]){"lo"},
                        .device_count = 1,
                        .max_rate_bytes = 4000000,
                        .group = "tp",
                        .rank = 0,
                        .ranks = 1,
                        .addresses = (const char *[]){"127.0.0.1"},
                        .address_count = 1,
                        .address = {"addr", 4},
                        .export_dir = "/srv/w",
                        .host_share = "/run/share",
                        .no_relay = peer == 1}};
    say(peer, &m);
    cr_assert_neq(tokens[peer], 0);
}

static digest_t digest_of(uint64_t version)
{
    digest_t d = {{0}};
    d.b[0] = (uint8_t)(0xa0 + version);
    return d;
}

static void publish_with(uint64_t peer, uint64_t version, const char *config)
{
    msg_part_t part = {.payload_bytes = 65536, .manifest_bytes = 500};
    msg_pair_t meta = {"run", "7"};
    char id[32];
    snprintf(id, sizeof id, "req-%d", (int)version);
    msg_t m = {.type = MSG_PUBLISH,
               .publish = {.token = tokens[peer],
                           .req = version,
                           .deadline_ms = 60000,
                           .activation = HEDDLE_ACTIVATION_ALL,
                           .adapter = "policy",
                           .request_id = id,
                           .digest = digest_of(version),
                           .parts = &part,
                           .part_count = 1,
                           .step = (int64_t)version * 100,
                           .data_bytes = 60000,
                           .tensor_count = 8,
                           .chunk_count = 1,
                           .kind = "lora",
                           .base_model = "Qwen/Qwen2.5-0.5B",
                           .features = (const char *[]){"dora", "rslora"},
                           .feature_count = 2,
                           .config = {config, strlen(config)},
                           .meta = &meta,
                           .meta_count = 1}};
    say(peer, &m);
}

static void publish(uint64_t peer, uint64_t version) { publish_with(peer, version, CONFIG); }

static void staged(uint64_t peer, uint64_t version)
{
    msg_served_t from = {.token = tokens[9],
                         .kind = SOURCE_PUBLISHER,
                         .bytes = 60000,
                         .name = "trainer-0",
                         .moved = {.late = 3, .bad = 1}};
    msg_t m = {.type = MSG_STAGED,
               .staged = {.token = tokens[peer],
                          .version = version,
                          .adapter = "policy",
                          .digest = digest_of(version),
                          .connect_us = 10,
                          .fetch_us = 2500,
                          .verify_us = 30,
                          .stage_us = 40,
                          .sources = &from,
                          .source_count = 1,
                          .verified = VERIFIED_HERE}};
    say(peer, &m);
}

static void active(uint64_t peer, uint64_t version, uint64_t decision)
{
    msg_t m = {.type = MSG_ACTIVE,
               .active = {.token = tokens[peer],
                          .version = version,
                          .decision = decision,
                          .activate_us = 70,
                          .adapter = "policy",
                          .digest = digest_of(version)}};
    say(peer, &m);
}

static void heartbeat(uint64_t peer, uint64_t seq, uint64_t fetching)
{
    msg_progress_t p = {.adapter = "policy",
                        .fetching = fetching,
                        .bytes_done = 100,
                        .data_bytes = 60000,
                        .source = tokens[9],
                        .held_count = 1};
    msg_t m = {.type = MSG_HEARTBEAT,
               .heartbeat = {.token = tokens[peer],
                             .seq = seq,
                             .adapters = &p,
                             .adapter_count = 1,
                             .counts.slots_total = 6,
                             .counts.slots_free = 3,
                             .counts.slots_held = 1,
                             .counts.bytes_in = LIMIT_EXACT,
                             .counts.bytes_out = 5,
                             .counts.chunks_bad = 1,
                             .counts.retries = 2,
                             .counts.fenced = 3,
                             .counts.own_bytes = 8192,
                             .counts.held_bytes = 4096,
                             .unheld = "no socket"}};
    say(peer, &m);
}

/* Two workers; versions 1 and 2 were active, 1 is active again by hand (held); 3 failed; 4 is on its way. */
static void scene(void)
{
    start();
    join(2, "w2", "zone=b");
    join(1, "w1", "zone=a");
    hello(9, ROLE_PUBLISHER);
    msg_t open = {.type = MSG_OPEN,
                  .open = {.req = 1,
                           .adapter = "policy",
                           .writer = "trainer-0",
                           .backend = "ucx",
                           .ucx = "1.13.1",
                           .address = {"addr", 4}}};
    say(9, &open);
    for (uint64_t version = 1; version <= 2; version++) {
        publish(9, version);
        for (uint64_t peer = 1; peer <= 2; peer++) staged(peer, version);
        for (uint64_t peer = 1; peer <= 2; peer++) active(peer, version, version);
    }
    hello(8, ROLE_ADMIN);
    msg_t activate = {.type = MSG_QUERY,
                      .query = {.req = 5,
                                .op = "activate",
                                .name = "policy",
                                .version = 1,
                                .by = "ann@host",
                                .deadline_ms = 5000}};
    say(8, &activate);
    for (uint64_t peer = 1; peer <= 2; peer++) active(peer, 1, 3);
    cr_assert_eq(report_req, 5);
    publish(9, 3);
    msg_t nack = {.type = MSG_NACK,
                  .nack = {.token = tokens[2],
                           .version = 3,
                           .adapter = "policy",
                           .phase = "verify",
                           .code = "digest_mismatch",
                           .message = "chunk 0 differs"}};
    say(2, &nack);
    publish(9, 4);
    staged(1, 4);
    heartbeat(1, 1, 0);
    heartbeat(2, 1, 4);
}

TestSuite(answer, .init = scene, .fini = stop);

static json_t *page_of(msg_query_t q, answer_page_t *ret_page)
{
    heddle_error_t e;
    memset(ret_page, 0, sizeof *ret_page);
    cr_assert_eq(answer_page(view(), &q, ret_page, &e), HEDDLE_OK, "%s", e.message);
    buf_t encoded = {0};
    cr_assert_eq(value_encode(ret_page->body, &encoded), HEDDLE_OK);
    cr_assert_leq(encoded.bytes, LIMIT_FRAME_BYTES);
    json_t *again = NULL;
    cr_assert_eq(value_decode(buf_view(&encoded), &again, &e), HEDDLE_OK, "%s", e.message);
    cr_assert(json_equal(again, ret_page->body));
    json_decref(again);
    buf_fini(&encoded);
    return ret_page->body;
}

static json_t *body_of(msg_query_t q)
{
    answer_page_t page;
    return page_of(q, &page);
}

static json_t *answered(pending_kind_t kind, uint64_t version, int code, bool dry_run)
{
    pending_row_t row = {.kind = kind,
                         .dry_run = dry_run,
                         .adapter = "policy",
                         .version = version,
                         .phase = HEDDLE_PHASE_STAGED,
                         .min = 1,
                         .asked_us = now.us - 2000,
                         .is_decided = true,
                         .activated = {.from = 2, .decision = 3, .changed = true, .held = true}};
    heddle_error_t verdict = {0};
    if (code) error_fail(&verdict, code, "no");
    json_t *body = NULL;
    cr_assert_eq(answer_wait(view(), &row, &verdict, &body), HEDDLE_OK);
    return body;
}

static json_t *waited(pending_kind_t kind, uint64_t version, int code)
{
    return answered(kind, version, code, false);
}

static json_t *verified(void)
{
    verify_row_t rows[] = {{.worker = "w1",
                            .token = 1,
                            .is_answered = true,
                            .is_match = true,
                            .digest = digest_of(1),
                            .hash_us = 1500,
                            .exported = EXPORTED_MATCH},
                           {.worker = "w2",
                            .token = 2,
                            .is_answered = true,
                            .digest = digest_of(2),
                            .hash_us = 1600,
                            .exported = EXPORTED_DIFFERS},
                           {.worker = "w3", .token = 3}};
    pending_row_t row = {.kind = PENDING_VERIFY,
                         .adapter = "policy",
                         .version = 1,
                         .expected = digest_of(1),
                         .rows = rows,
                         .row_count = 3,
                         .asked_us = now.us};
    heddle_error_t verdict;
    error_fail(&verdict, HEDDLE_ERR_DIGEST_MISMATCH, "w2 differs");
    json_t *body = NULL;
    cr_assert_eq(answer_verify(view(), &row, &verdict, &body), HEDDLE_OK);
    return body;
}

static const char *text_at(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* ---- the contract ---------------------------------------------------------------------------------------------- */

/* Types: s text, i integer < 2^53, n number, b true or false, o object, a list, t RFC 3339 time, d digest, g tag; N: or null.
 * A path goes through every element of a list; what is null ends it.  x: an object of free content. */
typedef struct {
    const char *body, *path, *types;
} field_row_t;

static const field_row_t FIELDS[] = {
    {"status", "broker.endpoint", "s"},
    {"status", "broker.public_key", "sN"},
    {"status", "broker.cluster", "s"},
    {"status", "broker.epoch", "i"},
    {"status", "broker.pid", "i"},
    {"status", "broker.heddle", "s"},
    {"status", "broker.wire", "x"},
    {"status", "broker.uptime_ms", "n"},
    {"status", "broker.now_at", "s"},
    {"status", "broker.state", "s"},
    {"status", "broker.data_dir", "s"},
    {"status", "broker.registry_bytes", "i"},
    {"status", "broker.settling_ms", "i"},
    {"status", "broker.restored", "oN"},
    {"status", "broker.restored.from", "s"},
    {"status", "broker.restored.at", "t"},
    {"status", "broker.restored.message", "s"},
    {"status", "broker", "o"},
    {"status", "reasons", "a"},
    {"status", "reasons[].name", "s"},
    {"status", "reasons[].adapter", "sN"},
    {"status", "reasons[].worker", "sN"},
    {"status", "reasons[].since_at", "tN"},
    {"status", "reasons[].message", "s"},
    {"status", "warnings", "a"},
    {"status", "warnings[].at", "t"},
    {"status", "warnings[].name", "s"},
    {"status", "warnings[].message", "s"},
    {"status", "count", "o"},
    {"status", "adapters", "a"},
    {"status", "count.adapters", "i"},
    {"status", "count.versions", "i"},
    {"status", "count.workers_ready", "i"},
    {"status", "count.workers_lost", "i"},
    {"status", "count.writers", "i"},
#define ADAPTER(body)                                                                                        \
    {body, "adapters[].name", "s"}, {body, "adapters[].active", "oN"},                                       \
        {body, "adapters[].active.version", "i"}, {body, "adapters[].active.decision", "i"},                 \
        {body, "adapters[].active.state", "s"}, {body, "adapters[].active.tag", "g"},                        \
        {body, "adapters[].active.digest", "d"}, {body, "adapters[].active.since_at", "t"},                  \
        {body, "adapters[].newest", "oN"}, {body, "adapters[].newest.version", "i"},                         \
        {body, "adapters[].newest.state", "s"}, {body, "adapters[].newest.digest", "d"},                     \
        {body, "adapters[].held", "oN"}, {body, "adapters[].held.by", "s"},                                  \
        {body, "adapters[].held.at", "t"}, {body, "adapters[].held.version", "i"},                           \
        {body, "adapters[].writer", "oN"}, {body, "adapters[].writer.name", "s"},                            \
        {body, "adapters[].writer.host", "s"}, {body, "adapters[].writer.pid", "i"},                         \
        {body, "adapters[].writer.since_at", "t"}, {body, "adapters[].base_model", "sN"},                    \
        {body, "adapters[].version_count", "i"}, {body, "adapters[].subscriber_count", "i"},                 \
        {body, "adapters[].current_count", "i"},                                                             \
    {                                                                                                        \
        body, "adapters[].max_lag", "i"                                                                      \
    }
    ADAPTER("status"),
    ADAPTER("adapters"),
    {"adapters", "adapters", "a"},
#define VERSION(body)                                                                                        \
    {body, "adapter", "s"}, {body, "versions", "a"}, {body, "versions[].version", "i"},                      \
        {body, "versions[].tag", "g"}, {body, "versions[].digest", "d"}, {body, "versions[].state", "s"},    \
        {body, "versions[].reason", "xN"}, {body, "versions[].note", "sN"}, {body, "versions[].step", "iN"}, \
        {body, "versions[].created_at", "t"}, {body, "versions[].activated_at", "tN"},                       \
        {body, "versions[].took_ms", "nN"}, {body, "versions[].data_bytes", "i"},                            \
        {body, "versions[].payload_bytes", "i"}, {body, "versions[].tensor_count", "i"},                     \
        {body, "versions[].kind", "s"}, {body, "versions[].features", "a"},                                  \
        {body, "versions[].features[]", "s"}, {body, "versions[].holder_count", "i"},                        \
        {body, "versions[].holder_host_count", "i"}, {body, "versions[].holder_host", "sN"},                 \
        {body, "versions[].active_count", "i"},                                                              \
    {                                                                                                        \
        body, "versions[].meta", "x"                                                                         \
    }
    VERSION("versions"),
    VERSION("version"),
    {"version", "versions[].config", "xN"},
    {"version", "versions[].request_id", "s"},
    {"version", "versions[].writer", "s"},
    {"version", "versions[].rollout", "o"},
    {"version", "versions[].rollout.activation", "s"},
    {"version", "versions[].rollout.deadline_ms", "i"},
    {"version", "versions[].rollout.eligible_count", "i"},
    {"version", "versions[].rollout.staged_count", "i"},
    {"version", "versions[].rollout.active_count", "i"},
    {"version", "versions[].rollout.missing", "a"},
    {"version", "versions[].rollout.missing[].worker", "s"},
    {"version", "versions[].rollout.missing[].phase", "sN"},
    {"version", "versions[].rollout.missing[].code", "sN"},
    {"version", "versions[].rollout.missing[].message", "sN"},
    {"version", "versions[].progress", "oN"},
    {"version", "versions[].progress.bytes_done", "i"},
    {"version", "versions[].progress.all_bytes", "i"},
    {"version", "versions[].progress.worker_count", "i"},
    {"version", "versions[].progress.rate_bytes", "iN"},
    {"version", "versions[].former", "a"},
    {"version", "versions[].former_count", "i"},
    {"version", "versions[].workers", "a"},
    {"version", "versions[].workers[].worker", "s"},
    {"version", "versions[].workers[].state", "sN"},
    {"version", "versions[].workers[].code", "sN"},
    {"version", "versions[].workers[].message", "sN"},
    {"version", "versions[].workers[].since_at", "tN"},
    {"version", "versions[].workers[].bytes_done", "i"},
    {"version", "versions[].workers[].verified", "sN"},
    {"version", "versions[].workers[].verified_by", "sN"},
    {"version", "versions[].workers[].held", "bN"},
    {"version", "versions[].workers[].sources", "a"},
    {"version", "versions[].workers[].sources[].name", "s"},
    {"version", "versions[].workers[].sources[].kind", "s"},
    {"version", "versions[].workers[].sources[].way", "s"},
    {"version", "versions[].workers[].sources[].bytes", "i"},
    {"version", "versions[].workers[].sources[].moved", "o"},
    {"version", "versions[].workers[].sources[].moved.late", "i"},
    {"version", "versions[].workers[].sources[].moved.gone", "i"},
    {"version", "versions[].workers[].sources[].moved.refused", "i"},
    {"version", "versions[].workers[].sources[].moved.bad", "i"},
    {"version", "versions[].workers[].sources[].moved.slow", "i"},
    {"version", "versions[].workers[].max_rate_bytes", "iN"},
    {"version", "versions[].workers[].rate_bytes", "iN"},
    {"version", "versions[].workers[].source", "sN"},
    {"version", "versions[].workers[].waits_for", "sN"},
    {"version", "versions[].workers[].note", "sN"},
    {"version", "versions[].workers[].queued_behind", "iN"},
    {"version", "versions[].workers[].awaited", "bN"},
    {"version", "versions[].so_far_ms", "nN"},
    {"version", "versions[].ended_after_ms", "nN"},
    {"version", "versions[].slowest", "oN"},
    {"version", "versions[].slowest.worker", "s"},
    {"version", "versions[].slowest.phase", "s"},
    {"version", "versions[].slowest.ms", "n"},
    {"version", "versions[].slowest.rate_bytes", "iN"},
    {"version", "versions[].slowest.max_rate_bytes", "iN"},
    {"version", "versions[].unfinished", "oN"},
    {"version", "versions[].unfinished.worker", "s"},
    {"version", "versions[].unfinished.phase", "s"},
    {"version", "versions[].unfinished.ms", "n"},
    {"version", "versions[].unfinished.count", "i"},
    {"version", "versions[].switch", "oN"},
    {"version", "versions[].switch.worker", "s"},
    {"version", "versions[].switch.ms", "n"},
    {"version", "versions[].rest", "oN"},
    {"version", "versions[].rest.ms", "n"},
    {"version", "versions[].rest.message", "sN"},
    {"version", "versions[].workers[].timing", "o"},
    {"version", "versions[].workers[].timing.announce_ms", "nN"},
    {"version", "versions[].workers[].timing.queued_ms", "nN"},
    {"version", "versions[].workers[].timing.waiting_ms", "nN"},
    {"version", "versions[].workers[].timing.connect_ms", "nN"},
    {"version", "versions[].workers[].timing.fetch_ms", "nN"},
    {"version", "versions[].workers[].timing.verify_ms", "nN"},
    {"version", "versions[].workers[].timing.stage_ms", "nN"},
    {"version", "versions[].workers[].timing.activate_ms", "nN"},
    {"workers", "settling_ms", "i"},
    {"workers", "workers", "a"},
    {"workers", "workers[].name", "s"},
    {"workers", "workers[].token", "i"},
    {"workers", "workers[].state", "s"},
    {"workers", "workers[].drain", "oN"},
    {"workers", "workers[].drain.since_at", "t"},
    {"workers", "workers[].drain.only_here_count", "i"},
    {"workers", "workers[].drain.only_here", "a"},
    {"workers", "workers[].drain.only_here[]", "s"},
    {"workers", "workers[].current", "b"},
    {"workers", "workers[].host", "s"},
    {"workers", "workers[].pid", "i"},
    {"workers", "workers[].labels", "x"},
    {"workers", "workers[].group", "oN"},
    {"workers", "workers[].group.name", "s"},
    {"workers", "workers[].group.rank", "i"},
    {"workers", "workers[].group.ranks", "i"},
    {"workers", "workers[].joined_at", "t"},
    {"workers", "workers[].heartbeat_age_ms", "n"},
    {"workers", "workers[].transport", "o"},
    {"workers", "workers[].transport.backend", "sN"},
    {"workers", "workers[].transport.ucx", "sN"},
    {"workers", "workers[].transport.devices", "a"},
    {"workers", "workers[].transport.devices[]", "s"},
    {"workers", "workers[].transport.addresses", "a"},
    {"workers", "workers[].transport.addresses[]", "s"},
    {"workers", "workers[].transport.memory", "s"},
    {"workers", "workers[].transport.memory_why", "sN"},
    {"workers", "workers[].relay_why", "sN"},
    {"workers", "workers[].transport.host_share", "sN"},
    {"workers", "workers[].slots", "o"},
    {"workers", "workers[].slots.total", "i"},
    {"workers", "workers[].slots.free", "iN"},
    {"workers", "workers[].slots.held", "iN"},
    {"workers", "workers[].memory", "o"},
    {"workers", "workers[].memory.own_bytes", "iN"},
    {"workers", "workers[].memory.held_bytes", "iN"},
    {"workers", "workers[].adapters", "a"},
    {"workers", "workers[].adapters[].name", "s"},
    {"workers", "workers[].adapters[].version", "iN"},
    {"workers", "workers[].adapters[].decision", "iN"},
    {"workers", "workers[].adapters[].tag", "gN"},
    {"workers", "workers[].adapters[].digest", "dN"},
    {"workers", "workers[].adapters[].state", "sN"},
    {"workers", "workers[].adapters[].code", "sN"},
    {"workers", "workers[].adapters[].message", "sN"},
    {"workers", "workers[].adapters[].lag", "i"},
    {"workers", "workers[].adapters[].since_at", "tN"},
    {"workers", "workers[].adapters[].held_count", "i"},
    {"workers", "workers[].adapters[].fetching", "oN"},
    {"workers", "workers[].adapters[].fetching.version", "i"},
    {"workers", "workers[].adapters[].fetching.bytes_done", "i"},
    {"workers", "workers[].adapters[].fetching.data_bytes", "i"},
    {"workers", "workers[].adapters[].fetching.source", "sN"},
    {"workers", "workers[].adapters[].fetching.rate_bytes", "iN"},
    {"workers", "workers[].adapters[].note", "sN"},
    {"workers", "workers[].adapters[].kept", "a"},
    {"workers", "workers[].adapters[].kept[]", "i"},
    {"workers", "workers[].counters", "o"},
    {"workers", "workers[].counters.bytes_in", "i"},
    {"workers", "workers[].counters.bytes_out", "i"},
    {"workers", "workers[].counters.chunks_bad", "i"},
    {"workers", "workers[].counters.retries", "i"},
    {"workers", "workers[].counters.fenced", "i"},
    {"events", "events", "a"},
    {"events", "events[].schema", "s"},
    {"events", "events[].kind", "s"},
    {"events", "events[].ok", "b"},
    {"events", "events[].seq", "i"},
    {"events", "events[].epoch", "i"},
    {"events", "events[].at", "t"},
    {"events", "events[].type", "s"},
    {"events", "events[].adapter", "sN"},
    {"events", "events[].version", "iN"},
    {"events", "events[].worker", "sN"},
    {"events", "events[].code", "sN"},
    {"events", "events[].message", "sN"},
    {"events", "events[].data", "x"},
    {"events", "first_seq", "i"},
    {"events", "first_at", "tN"},
    {"events", "last_seq", "i"},
    {"events", "next", "i"},
    {"events", "epoch", "i"},
    {"events", "more", "b"},
#define WAIT(body)                                                                                           \
    {body, "adapter", "s"}, {body, "version", "i"}, {body, "digest", "d"}, {body, "decision", "iN"},         \
        {body, "phase", "s"}, {body, "need_count", "i"}, {body, "have_count", "i"},                          \
        {body, "eligible_count", "i"}, {body, "elapsed_ms", "n"}, {body, "workers", "a"},                    \
        {body, "workers[].worker", "s"}, {body, "workers[].version", "iN"},                                  \
        {body, "workers[].digest", "dN"}, {body, "workers[].state", "sN"},                                   \
        {body, "workers[].since_at", "tN"}, {body, "missing", "a"}, {body, "missing[].worker", "s"},         \
        {body, "missing[].phase", "sN"}, {body, "missing[].code", "sN"},                                     \
        {body, "missing[].heartbeat_age_ms", "nN"},                                                          \
    {                                                                                                        \
        body, "missing[].note", "sN"                                                                         \
    }
    WAIT("wait"),
    WAIT("activate"),
    {"activate", "from", "iN"},
    {"activate", "to", "i"},
    {"activate", "changed", "b"},
    {"activate", "same_bytes", "b"},
    {"activate", "held", "b"},
    {"activate", "bytes_moved", "i"},
    {"activate", "dry_run", "b"},
    {"activate", "would_fetch", "a"},
    {"activate", "would_fetch[].worker", "s"},
    {"activate", "would_fetch[].bytes", "i"},
    {"activate", "would_fetch[].version", "iN"},
    {"activate", "would_fetch_bytes", "iN"},
    {"activate", "error", "xN"},
    {"wait", "error", "xN"},
    {"verify", "adapter", "s"},
    {"verify", "version", "i"},
    {"verify", "expected", "d"},
    {"verify", "elapsed_ms", "n"},
    {"verify", "workers", "a"},
    {"verify", "workers[].worker", "s"},
    {"verify", "workers[].version", "i"},
    {"verify", "workers[].digest", "dN"},
    {"verify", "workers[].match", "b"},
    {"verify", "workers[].exported_match", "bN"},
    {"verify", "workers[].hash_ms", "nN"},
    {"verify", "workers[].code", "sN"},
    {"verify", "error", "x"},
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

static bool is_text_like(const json_t *v, char type)
{
    const char *s = json_string_value(v);
    digest_t d;
    if (!s || !*s) return false;
    if (type == 't') return strlen(s) == 24 && s[10] == 'T' && s[19] == '.' && s[23] == 'Z';
    if (type == 'd') return digest_parse(s, &d);
    if (type == 'g') return strchr(s, '@') && strlen(strchr(s, ':')) == 13;
    return type == 's';
}

static bool is_of_type(const json_t *v, char type)
{
    switch (type) {
    case 'i':
        return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < INT64_C(1) << 53;
    case 'n': return json_is_number(v) && json_number_value(v) >= 0;
    case 'b': return json_is_boolean(v);
    case 'o':
    case 'x': return json_is_object(v);
    case 'a': return json_is_array(v);
    case 'N': return json_is_null(v);
    default: return is_text_like(v, type);
    }
}

/* Follows `path` from `at`; counts the values that are there and not null. */
static int walk(const json_t *at, const char *path, const field_row_t *row)
{
    if (!*path) {
        bool fits = false;
        for (const char *t = row->types; *t; t++) fits |= is_of_type(at, *t);
        cr_assert(fits, "%s: %s is not of type %s", row->body, row->path, row->types);
        return !json_is_null(at);
    }
    if (json_is_null(at)) return 0;
    if (!strncmp(path, "[]", 2)) {
        int seen = 0;
        cr_assert(json_is_array(at), "%s: %s", row->body, row->path);
        for (size_t i = 0; i < json_array_size(at); i++)
            seen += walk(json_array_get(at, i), path + 2 + (path[2] == '.'), row);
        return seen;
    }
    char key[64];
    size_t n = strcspn(path, ".[");
    snprintf(key, sizeof key, "%.*s", (int)n, path);
    const json_t *next = json_object_get(at, key);
    if (!next && !strcmp(row->path, "error")) return 0; /* only where the answer is no */
    cr_assert_not_null(next, "%s: %s: no \"%s\"", row->body, row->path, key);
    return walk(next, path + n + (path[n] == '.'), row);
}

static const field_row_t *field_row(const char *body, const char *path)
{
    for (int i = 0; i < FIELD_COUNT; i++)
        if (!strcmp(FIELDS[i].body, body) && !strcmp(FIELDS[i].path, path)) return &FIELDS[i];
    return NULL;
}

/* The other way: whatever is in the body is in the table. */
static void expect_known(const json_t *at, const char *body, const char *path)
{
    char below[256];
    if (json_is_array(at))
        for (size_t i = 0; i < json_array_size(at); i++) {
            snprintf(below, sizeof below, "%s[]", path);
            expect_known(json_array_get(at, i), body, below);
        }
    if (!json_is_object(at)) return;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)at, key, value)
    {
        snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", key);
        bool head = !*path && (!strcmp(key, "schema") || !strcmp(key, "kind") || !strcmp(key, "ok"));
        const field_row_t *row = head ? NULL : field_row(body, below);
        cr_assert(head || row, "%s: \"%s\" is not in the table", body, below);
        if (row && row->types[0] != 'x') expect_known(value, body, below);
    }
}

/* Every field must be there in each body, and not null in one of them: the scene has to fill it. */
static void expect_shape(const char *name, const char *kind, json_t *const *bodies, int count)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        if (strcmp(FIELDS[i].body, name) != 0) continue;
        int seen = 0;
        for (int k = 0; k < count; k++) seen += walk(bodies[k], FIELDS[i].path, &FIELDS[i]);
        cr_assert_gt(seen, 0, "%s: %s was null everywhere", name, FIELDS[i].path);
    }
    for (int k = 0; k < count; k++) {
        cr_assert_str_eq(text_at(bodies[k], "schema"), "heddle/1");
        cr_assert_str_eq(text_at(bodies[k], "kind"), kind);
        cr_assert_eq(json_is_true(json_object_get(bodies[k], "ok")),
                     json_object_get(bodies[k], "error") == NULL);
        expect_known(bodies[k], name, "");
        json_decref(bodies[k]);
    }
}

/* Decision 4 names version 2; w1 switches, w2 cannot. */
static void one_cannot_switch(void)
{
    msg_t activate = {
        .type = MSG_QUERY,
        .query =
            {.req = 6, .op = "activate", .name = "policy", .version = 2, .by = "ann", .deadline_ms = 5000}};
    say(8, &activate);
    active(1, 2, 4);
    msg_t nack = {.type = MSG_NACK,
                  .nack = {.token = tokens[2],
                           .version = 2,
                           .decision = 4,
                           .adapter = "policy",
                           .phase = "activate",
                           .code = "version_failed",
                           .message = "the hook ended with 3"}};
    say(2, &nack);
}

/* Thirty-three lives in turn find no row of theirs: the log gets a line a second, and the count of the others. */
Test(answer, strangers_write_a_line_a_second)
{
    strangers_t s = {0};
    uint64_t lines = 0, counted = 0;
    for (uint64_t n = 0; n < 1000; n++) {
        msg_hello_t m = {.role = ROLE_WORKER, .host = "away", .cluster = "other"};
        m.life.b[0] = (uint8_t)(n % (STRANGERS_MAX + 1)) + 1;
        const char *line = strangers_hello(&s, &m, "here", (instant_t){.us = 1000000000 + n * 10000});
        const char *more = line ? strstr(line, "(and ") : NULL;
        lines += line != NULL;
        if (more) counted += strtoull(more + 5, NULL, 10);
    }
    cr_assert_eq(lines, 10);
    cr_assert_eq(counted + s.unlogged_count + lines, 1000);
    cr_assert_null(strstr(s.rows[0].text, "more"), "what `status` shows has no count");
}

Test(answer, every_field_of_the_pages)
{
    static const char *const OPS[] = {"adapters", "events"};
    for (int i = 0; i < 2; i++)
        expect_shape(OPS[i], OPS[i], (json_t *[]){body_of((msg_query_t){.op = OPS[i]})}, 1);
    broker->restored.at_ms = now.wall_ms;
    snprintf(broker->restored.from, sizeof broker->restored.from, "w1");
    snprintf(broker->restored.message, sizeof broker->restored.message, "it knows more");
    msg_hello_t stranger = {.role = ROLE_WORKER,
                            .host = "h2",
                            .pid = 9,
                            .life = {{1}},
                            .cluster = "elsewhere"};
    cr_assert_not_null(strangers_hello(&broker->foreign, &stranger, "here", now), "said");
    cr_assert_null(strangers_hello(&broker->foreign, &stranger, "here", now), "once");
    cr_assert_null(strangers_hello(&broker->foreign, &stranger, "elsewhere", now), "at home");
    member_t *lost = membership_worker(&broker->members, "w1"); /* for one of two answers */
    json_t *statuses[] = {body_of((msg_query_t){.op = "status"}), NULL};
    member_state_t was = lost->state;
    lost->state = MEMBER_LOST;
    statuses[1] = body_of((msg_query_t){.op = "status"});
    lost->state = was;
    expect_shape("status", "status", statuses, 2);
    json_t *before = body_of((msg_query_t){.op = "workers"});
    one_cannot_switch();
    member_t *const *members = broker->members.workers;
    for (size_t i = 0; i < broker->members.worker_count; i++) membership_drain(members[i], now);
    expect_shape("workers", "workers", (json_t *[]){before, body_of((msg_query_t){.op = "workers"})}, 2);
    for (size_t i = 0; i < broker->members.worker_count; i++) members[i]->state = MEMBER_READY;
    publish(9, 5); /* waits for version 4 */
    expect_shape("versions", "versions",
                 (json_t *[]){body_of((msg_query_t){.op = "versions", .name = "policy"})}, 1);
    json_t *bodies[7];
    version_row_t *second = registry_version(registry_adapter(&broker->registry, "policy"), 2);
    second->activation = HEDDLE_ACTIVATION_MANUAL; /* and an operator took a minute */
    second->first_ms += 60000;
    copy_row_t *late = copy_find(track_find(&broker->rollout, "policy", 2), "w2");
    late->behind = 1; /* w2 fetched version 1 first */
    late->queued_us = 1000;
    late->wait_us = 1000;
    for (uint64_t v = 1; v <= 5; v++)
        bodies[v - 1] = body_of((msg_query_t){.op = "versions", .name = "policy", .version = v});
    /* w1 fetches version 4 too, and w2 from w1 */
    copy_row_t *source = copy_find(track_find(&broker->rollout, "policy", 4), "w1");
    copy_state_t state = source->state;
    member_sub_t *sub = member_sub(membership_worker(&broker->members, "w2"), "policy");
    source->state = COPY_FETCHING;
    source->bytes_done = 100;
    sub->source = tokens[1];
    bodies[5] = body_of((msg_query_t){.op = "versions", .name = "policy", .version = 4});
    source->state = state;
    /* 5 takes the place of 4, and is decided when the hold ends: w1 and w2 have not switched yet. */
    staged(2, 4);
    for (uint64_t peer = 1; peer <= 2; peer++) staged(peer, 5);
    say(8, &(msg_t){.type = MSG_QUERY,
                    .query = {.req = 7, .op = "resume", .name = "policy", .by = "ann", .deadline_ms = 5000}});
    bodies[6] = body_of((msg_query_t){.op = "versions", .name = "policy", .version = 5});
    expect_shape("version", "versions", bodies, 7);
}

Test(answer, every_field_of_the_answers)
{
    json_t *waits[] = {waited(PENDING_WAIT, 1, HEDDLE_OK), waited(PENDING_WAIT, 4, HEDDLE_ERR_DEADLINE)};
    json_t *activations[] = {waited(PENDING_ACTIVATE, 1, HEDDLE_OK),
                             waited(PENDING_ACTIVATE, 4, HEDDLE_ERR_DEADLINE),
                             answered(PENDING_ACTIVATE, 4, HEDDLE_OK, true)};
    cr_assert_not_null(json_object_get(activations[1], "error"));
    expect_shape("wait", "wait", waits, 2);
    expect_shape("activate", "activate", activations, 3);
    expect_shape("verify", "verify", (json_t *[]){verified()}, 1);
}

/* ---- what they say --------------------------------------------------------------------------------------------- */

/* "versions[2].state" */
static const json_t *at(const json_t *body, const char *path)
{
    while (body && *path) {
        char key[64];
        size_t n = strcspn(path, ".["), index;
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        if (*key) body = json_object_get(body, key);
        path += n;
        if (sscanf(path, "[%zu]", &index) == 1) {
            body = json_array_get(body, index);
            path = strchr(path, ']') + 1;
        }
        path += *path == '.';
    }
    return body;
}

static void expect(const json_t *body, const char *path, const char *want)
{
    const json_t *value = at(body, path);
    cr_assert_not_null(value, "%s", path);
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    cr_assert_str_eq(text, want, "%s", path);
    free(text);
}

Test(answer, status_tells_of_the_broker)
{
    json_t *b = body_of((msg_query_t){.op = "status"});
    expect(b, "broker.endpoint", "\"tcp://127.0.0.1:7700\"");
    expect(b, "broker.public_key", "\"XcFKr2\"");
    expect(b, "broker.epoch", "7");
    expect(b, "broker.pid", "4711");
    expect(b, "broker.registry_bytes", "12345");
    expect(b, "broker.wire", "{\"min\":1,\"max\":1}");
    expect(b, "broker.state", "\"ready\"");
    expect(b, "broker.restored", "null");
    expect(b, "count",
           "{\"adapters\":1,\"versions\":4,\"workers_ready\":2,\"workers_lost\":0,\"writers\":1}");
    json_decref(b);
    broker->state = BROKER_READ_ONLY;
    broker->read_only_ms = 1780000000000;
    snprintf(broker->read_only_why, sizeof broker->read_only_why, "the disk is full");
    broker->opts.public_key = NULL;
    b = body_of((msg_query_t){.op = "status"});
    expect(b, "broker.public_key", "null");
    expect(b, "broker.state", "\"read_only\"");
    expect(b, "warnings[0].name", "\"broker.read_only\"");
    expect(b, "warnings[0].message", "\"the broker takes no records: the disk is full\"");
    json_decref(b);
}

static brokers_t told_brokers;
static const brokers_t *io_list(void *self) { return (void)self, &told_brokers; }

Test(answer, the_one_broker_of_a_registry_on_disk)
{
    json_t *b = body_of((msg_query_t){.op = "brokers"});
    expect(b, "cluster", "\"0123456789abcdef\"");
    expect(b, "epoch", "7");
    cr_assert_eq(json_array_size(json_object_get(b, "brokers")), 1);
    expect(b, "brokers[0].endpoint", "\"tcp://127.0.0.1:7700\"");
    expect(b, "brokers[0].role", "\"leader\"");
    expect(b, "brokers[0].following", "null");
    expect(b, "brokers[0].behind", "null");
    expect(b, "brokers[0].pid", "4711");
    expect(b, "store",
           "{\"kind\":\"sqlite\",\"place\":\"/var/lib/heddle\",\"state\":\"ready\",\"message\":null,"
           "\"revision\":null,\"seen_age_ms\":null,\"registry_bytes\":12345}");
    json_decref(b);
    broker->state = BROKER_READ_ONLY;
    snprintf(broker->read_only_why, sizeof broker->read_only_why, "the disk is full");
    b = body_of((msg_query_t){.op = "brokers"});
    expect(b, "store.state", "\"read_only\"");
    expect(b, "store.message", "\"the disk is full\"");
    json_decref(b);
}

Test(answer, the_brokers_of_a_registry_in_an_etcd)
{
    told_brokers = (brokers_t){
        .own = {.endpoint = "tcp://a:7700"},
        .rows = {{.endpoint = "tcp://b:7700", .release = "9.8", .pid = 5, .is_following = true, .behind = 3},
                 {.endpoint = "tcp://c:7700", .behind = 4}},
        .count = 2,
        .is_answered = true,
        .seen_us = now.us - 1500,
        .revision = 42};
    broker->io.brokers = io_list;
    json_t *b = body_of((msg_query_t){.op = "brokers"});
    cr_assert_eq(json_array_size(json_object_get(b, "brokers")), 3);
    expect(b, "brokers[0].endpoint", "\"tcp://a:7700\"");
    expect(b, "brokers[0].role", "\"leader\"");
    expect(b, "brokers[1]",
           "{\"endpoint\":\"tcp://b:7700\",\"role\":\"standby\",\"following\":true,"
           "\"behind\":3,\"pid\":5,\"heddle\":\"9.8\"}");
    expect(b, "brokers[2].following", "false");
    expect(b, "brokers[2].behind", "null");
    expect(b, "brokers[2].heddle", "null");
    expect(b, "store.kind", "\"etcd\"");
    expect(b, "store.state", "\"ready\"");
    expect(b, "store.revision", "42");
    expect(b, "store.seen_age_ms", "1.5");
    json_decref(b);
    told_brokers.is_answered = false;
    told_brokers.seen_us = 0;
    b = body_of((msg_query_t){.op = "brokers"});
    expect(b, "store.state", "\"unanswered\"");
    expect(b, "store.seen_age_ms", "null");
    json_decref(b);
}

static const char *unready(int code)
{
    static heddle_error_t error;
    static char said[1200];
    error = (heddle_error_t){0};
    cr_assert_eq(answer_check_ready(view(), &error), code, "%s", error.message);
    snprintf(said, sizeof said, "%s | %s", error.message, error.hint);
    return said;
}

Test(answer, ready_is_a_broker_that_decides)
{
    unready(HEDDLE_OK);
    broker->rollout.is_settled = false;
    broker->members.grace_end_us = now.us + 3000000;
    const char *said = unready(HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(said, "has just started") && strstr(said, "3.0 s | members come back"), "%s", said);
}

/* What the store says of its refusal is said of readiness: an etcd has no disk to make room on. */
Test(answer, ready_is_no_broker_whose_store_refuses_records)
{
    broker->state = BROKER_READ_ONLY;
    broker->read_only_code = HEDDLE_ERR_NO_SPACE;
    snprintf(broker->read_only_why, sizeof broker->read_only_why, "the disk is full");
    snprintf(broker->read_only_hint, sizeof broker->read_only_hint, "make room");
    const char *said = unready(HEDDLE_ERR_NO_SPACE);
    cr_assert_str_eq(said,
                     "the broker takes no records: the disk is full | make room; the broker tries again "
                     "each second");
    told_brokers = (brokers_t){.is_answered = true};
    broker->io.brokers = io_list;
    broker->read_only_code = HEDDLE_ERR_UNAVAILABLE;
    snprintf(broker->read_only_why, sizeof broker->read_only_why, "etcd has no majority");
    broker->read_only_hint[0] = 0;
    said = unready(HEDDLE_ERR_UNAVAILABLE);
    cr_assert_str_eq(said, "the broker takes no records: etcd has no majority | the broker tries again each "
                           "second");
}

/* It cannot end the commit, which may have happened, and takes no other one meanwhile. */
Test(answer, ready_is_no_broker_whose_etcd_refuses_a_commit_that_waits)
{
    heddle_error_t why = {.code = HEDDLE_ERR_NO_SPACE};
    snprintf(why.message, sizeof why.message, "etcd refuses a transaction: no room");
    snprintf(why.hint, sizeof why.hint, "raise its quota");
    told_brokers = (brokers_t){.is_answered = true, .refusal = &why};
    broker->txn.is_open = true;
    broker->txn.began_us = now.us - 2000000;
    broker->io.brokers = io_list;
    cr_assert_str_eq(unready(HEDDLE_ERR_NO_SPACE),
                     "the broker takes no records: etcd refuses a transaction: no room | raise its quota; "
                     "the broker tries again each second");
    json_t *b = body_of((msg_query_t){.op = "status"});
    expect(b, "broker.state", "\"read_only\"");
    expect(b, "warnings[0].name", "\"broker.read_only\"");
    cr_assert_eq(view()->read_only_ms, now.wall_ms - 2000);
    json_decref(b);
    b = body_of((msg_query_t){.op = "brokers"});
    expect(b, "store.state", "\"read_only\"");
    expect(b, "store.message", "\"etcd refuses a transaction: no room\"");
    json_decref(b);
}

/* Its next commit would be refused, though none is under way. */
Test(answer, ready_is_no_broker_whose_rights_were_taken_away)
{
    heddle_error_t why = {.code = HEDDLE_ERR_DENIED};
    snprintf(why.message, sizeof why.message, "etcd refuses it: permission denied");
    told_brokers = (brokers_t){.is_answered = true, .refusal = &why, .seen_us = now.us - 1000000};
    broker->io.brokers = io_list;
    const char *said = unready(HEDDLE_ERR_DENIED);
    cr_assert(strstr(said, "takes no records: etcd refuses it: permission denied"), "%s", said);
    cr_assert_eq(view()->read_only_ms, now.wall_ms - 1000);
}

Test(answer, ready_is_no_broker_whose_etcd_does_not_answer)
{
    told_brokers = (brokers_t){.is_answered = true};
    broker->io.brokers = io_list;
    unready(HEDDLE_OK);
    told_brokers.is_answered = false;
    told_brokers.seen_us = now.us - 3000000;
    const char *said = unready(HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(said, "no endpoint of the etcd in --store answers and has a majority"), "%s", said);
    json_t *b = body_of((msg_query_t){.op = "status"}); /* also where there is nothing to record */
    expect(b, "broker.state", "\"read_only\"");
    expect(b, "warnings[0].name", "\"broker.read_only\"");
    expect(b, "reasons[0].name", "\"store.unanswered\"");
    cr_assert_eq(view()->read_only_ms, now.wall_ms - 3000, "since its last answer");
    json_decref(b);
    told_brokers.has_yielded = true;
    b = body_of((msg_query_t){.op = "status"});
    const char *text =
        json_string_value(json_object_get(json_array_get(json_object_get(b, "warnings"), 0), "message"));
    cr_assert(text && strstr(text, "another one may lead"), "%s", text);
    json_decref(b);
    broker->state = BROKER_READ_ONLY;
    broker->read_only_code = HEDDLE_ERR_NO_SPACE;
    cr_assert(strstr(unready(HEDDLE_ERR_UNAVAILABLE), "no endpoint"), "it comes first");
}

/* Hosts of holders, names of adapters: also where others come between two of a kind. */
Test(answer, texts_are_there_once)
{
    static const char *const ADDED[] = {"b", "b", "a", "c", "a", "b"};
    texts_t texts = {0};
    for (size_t i = 0; i < sizeof ADDED / sizeof *ADDED; i++) texts_add(&texts, ADDED[i]);
    texts_sort(&texts);
    cr_assert(texts.count == 3 && !texts.failed, "%zu", texts.count);
    for (size_t i = 0; i < texts.count; i++)
        cr_expect_eq(texts.list[i][0], "abc"[i], "%zu: %s", i, texts.list[i]);
    texts_fini(&texts);
    texts_sort(&texts); /* of none */
    cr_expect_eq(texts.count, 0);
}

Test(answer, an_adapter_that_is_held)
{
    json_t *b = body_of((msg_query_t){.op = "adapters"});
    expect(b, "adapters[1].active.version", "1");
    expect(b, "adapters[1].active.decision", "3");
    expect(b, "adapters[1].held.by", "\"ann@host\"");
    expect(b, "adapters[1].held.version", "1");
    expect(b, "adapters[1].newest.version", "4");
    expect(b, "adapters[1].newest.state", "\"staging\"");
    expect(b, "adapters[1].writer.name", "\"trainer-0\"");
    expect(b, "adapters[1].subscriber_count", "2");
    expect(b, "adapters[1].current_count", "2");
    expect(b, "adapters[1].max_lag", "0");
    json_decref(b);
}

Test(answer, versions_and_why_they_ended)
{
    json_t *b = body_of((msg_query_t){.op = "versions", .name = "policy"});
    cr_assert_eq(json_array_size(at(b, "versions")), 4);
    static const char *const STATES[] = {"\"active\"", "\"kept\"", "\"failed\"", "\"staging\""};
    for (int i = 0; i < 4; i++) {
        char path[32];
        snprintf(path, sizeof path, "versions[%d].state", i);
        expect(b, path, STATES[i]);
    }
    expect(b, "versions[0].features", "[\"dora\",\"rslora\"]");
    expect(b, "versions[0].meta", "{\"run\":\"7\"}");
    expect(b, "versions[0].step", "100");
    expect(b, "versions[0].holder_count", "2");
    expect(b, "versions[0].holder_host_count", "2");
    expect(b, "versions[0].holder_host", "null");
    expect(b, "versions[0].active_count", "2");
    expect(b, "versions[2].holder_host_count", "0");
    expect(b, "versions[2].holder_host", "null");
    expect(b, "versions[3].holder_host_count", "1");
    expect(b, "versions[3].holder_host", "\"gpu-1\"");
    expect(b, "versions[0].reason", "null");
    expect(b, "versions[2].reason.worker", "\"w2\"");
    expect(b, "versions[2].reason.phase", "\"verify\"");
    expect(b, "versions[2].activated_at", "null");
    json_decref(b);
}

Test(answer, a_version_and_who_has_it)
{
    json_t *b = body_of((msg_query_t){.op = "versions", .name = "policy", .version = 4});
    expect(b, "versions[0].config.r", "16");
    expect(b, "versions[0].writer", "\"trainer-0\"");
    expect(b, "versions[0].request_id", "\"req-4\"");
    expect(b, "versions[0].rollout.activation", "\"all\"");
    expect(b, "versions[0].rollout.eligible_count", "2");
    expect(b, "versions[0].rollout.staged_count", "1");
    expect(b, "versions[0].rollout.missing[0].worker", "\"w2\"");
    expect(b, "versions[0].rollout.missing[0].phase", "\"fetch\"");
    expect(b, "versions[0].workers[0].state", "\"staged\"");
    expect(b, "versions[0].workers[0].sources",
           "[{\"name\":\"trainer-0\",\"kind\":\"publisher\",\"way\":\"network\",\"bytes\":60000,\"moved\":{"
           "\"late\":3,\"gone\":0,\"refused\":0,\"bad\":1,\"slow\":0}}]");
    expect(b, "versions[0].workers[0].timing.fetch_ms", "2.5");
    expect(b, "versions[0].workers[0].timing.activate_ms", "null");
    expect(b, "versions[0].workers[1].state", "\"fetching\"");
    expect(b, "versions[0].workers[1].bytes_done", "100");
    json_decref(b);
}

Test(answer, workers_by_name_and_what_they_serve)
{
    json_t *b = body_of((msg_query_t){.op = "workers"});
    cr_assert_eq(json_array_size(at(b, "workers")), 2);
    expect(b, "workers[0].name", "\"w1\"");
    expect(b, "workers[0].labels", "{\"zone\":\"a\"}");
    expect(b, "workers[0].transport",
           "{\"backend\":\"ucx\",\"ucx\":\"1.13.1\",\"devices\":[\"lo\"],"
           "\"addresses\":[\"127.0.0.1\"],\"memory\":\"own\",\"memory_why\":\"no socket\","
           "\"host_share\":\"/run/share\"}");
    expect(b, "workers[0].relay_why", "\"it was started so\"");
    expect(b, "workers[1].relay_why", "null");
    expect(b, "workers[0].slots", "{\"total\":6,\"free\":3,\"held\":1}");
    expect(b, "workers[0].counters.bytes_in", "9007199254740991");
    expect(b, "workers[0].current", "false"); /* of critic nothing is active */
    expect(b, "workers[0].adapters[0].name", "\"critic\"");
    expect(b, "workers[0].adapters[0].state", "null");
    expect(b, "workers[0].adapters[0].lag", "0");
    expect(b, "workers[0].adapters[1].version", "1");
    expect(b, "workers[0].adapters[1].decision", "3");
    expect(b, "workers[0].adapters[1].state", "\"active\"");
    expect(b, "workers[0].adapters[1].kept", "[2]");
    expect(b, "workers[0].adapters[1].fetching", "null");
    expect(b, "workers[1].adapters[1].fetching",
           "{\"version\":4,\"bytes_done\":100,\"data_bytes\":60000,\"source\":\"trainer-0\","
           "\"rate_bytes\":33333}");
    json_decref(b);
    b = body_of((msg_query_t){.op = "workers", .name = "w2"});
    cr_assert_eq(json_array_size(at(b, "workers")), 1);
    expect(b, "workers[0].name", "\"w2\"");
    json_decref(b);
}

Test(answer, a_worker_that_missed_the_decision_is_stale)
{
    publish(9, 5);
    for (uint64_t peer = 1; peer <= 2; peer++) staged(peer, 5);
    msg_t activate = {
        .type = MSG_QUERY,
        .query =
            {.req = 6, .op = "activate", .name = "policy", .version = 5, .by = "ann", .deadline_ms = 5000}};
    say(8, &activate);
    active(1, 5, 4);
    json_t *b = body_of((msg_query_t){.op = "workers"});
    expect(b, "workers[0].adapters[1].lag", "0");
    expect(b, "workers[1].adapters[1].lag", "1");
    expect(b, "workers[1].adapters[1].state", "\"stale\"");
    json_decref(b);
    b = body_of((msg_query_t){.op = "adapters"});
    expect(b, "adapters[1].current_count", "1");
    expect(b, "adapters[1].max_lag", "1");
    expect(b, "adapters[1].held", "null");
    json_decref(b);
}

Test(answer, a_state_that_is_not_well_says_why)
{
    json_t *b = body_of((msg_query_t){.op = "versions", .name = "policy", .version = 3});
    expect(b, "versions[0].workers[1].state", "\"failed\"");
    expect(b, "versions[0].workers[1].code", "\"digest_mismatch\"");
    expect(b, "versions[0].workers[1].message", "\"chunk 0 differs\"");
    json_decref(b);
    one_cannot_switch();
    b = body_of((msg_query_t){.op = "workers"});
    expect(b, "workers[0].adapters[1].message", "null");
    expect(b, "workers[1].adapters[1].version", "1");
    expect(b, "workers[1].adapters[1].state", "\"stale\"");
    expect(b, "workers[1].adapters[1].code", "\"version_failed\"");
    expect(b, "workers[1].adapters[1].message", "\"the hook ended with 3\"");
    json_decref(b);
    b = body_of((msg_query_t){.op = "versions", .name = "policy", .version = 2});
    expect(b, "versions[0].workers[1].state", "\"stale\"");
    expect(b, "versions[0].workers[1].code", "\"version_failed\"");
    json_decref(b);
}

/* Also between two heartbeats. */
Test(answer, what_is_not_being_fetched_any_more)
{
    heartbeat(1, 2, 4);
    json_t *b = body_of((msg_query_t){.op = "workers"});
    expect(b, "workers[0].adapters[1].fetching.version", "4");
    expect(b, "workers[1].adapters[1].fetching.version", "4");
    json_decref(b);
    staged(1, 4);
    msg_t nack = {.type = MSG_NACK,
                  .nack = {.token = tokens[2], .version = 4, .adapter = "policy", .code = "no_slot"}};
    say(2, &nack);
    b = body_of((msg_query_t){.op = "workers"});
    expect(b, "workers[0].adapters[1].fetching", "null");
    expect(b, "workers[1].adapters[1].fetching", "null");
    json_decref(b);
    heartbeat(2, 2, 4);
    for (int i = 0; i < 5; i++) {
        now.us += 1000000;
        broker_tick(broker, now);
    }
    b = body_of((msg_query_t){.op = "workers"});
    expect(b, "workers[1].state", "\"lost\"");
    expect(b, "workers[1].adapters[1].fetching", "null");
    expect(b, "workers[1].adapters[0].code", "\"unavailable\"");
    expect(b, "workers[1].adapters[1].message", "\"its lease ended: no message for 4000 ms\"");
    json_decref(b);
}

Test(answer, staged_counts_sooner_than_the_next_heartbeat)
{
    publish(9, 5);
    msg_t m = {.type = MSG_STAGED,
               .staged = {.token = tokens[2],
                          .version = 5,
                          .adapter = "policy",
                          .digest = digest_of(5),
                          .bytes_out = 777777777,
                          .chunks_bad = 0,
                          .retries = 88888}};
    say(2, &m);
    json_t *b = body_of((msg_query_t){.op = "workers"});
    expect(b, "workers[1].counters.bytes_out", "777777777");
    expect(b, "workers[1].counters.chunks_bad", "1");
    expect(b, "workers[1].counters.retries", "88888");
    json_decref(b);
}

Test(answer, answers_that_are_no)
{
    json_t *b = waited(PENDING_WAIT, 4, HEDDLE_ERR_DEADLINE);
    expect(b, "ok", "false");
    expect(b, "error.code", "\"deadline\"");
    expect(b, "error.exit", "5");
    expect(b, "have_count", "1");
    expect(b, "missing[0].worker", "\"w2\"");
    expect(b, "missing[0].code", "\"deadline\"");
    json_decref(b);
    b = verified();
    expect(b, "ok", "false");
    expect(b, "workers[0].match", "true");
    expect(b, "workers[0].exported_match", "true");
    expect(b, "workers[0].hash_ms", "1.5");
    expect(b, "workers[1].match", "false");
    expect(b, "workers[1].exported_match", "false");
    expect(b, "workers[1].code", "\"digest_mismatch\"");
    expect(b, "workers[2].match", "false");
    expect(b, "workers[2].digest", "null");
    expect(b, "workers[2].code", "\"deadline\"");
    json_decref(b);
}

/* ---- refusals -------------------------------------------------------------------------------------------------- */

Test(answer, what_is_not_there)
{
    static const struct {
        msg_query_t q;
        int code;
        const char *word;
    } ROWS[] = {{{.op = "versions", .name = "critic"}, HEDDLE_ERR_NOT_FOUND, "critic"},
                {{.op = "versions", .name = ""}, HEDDLE_ERR_NOT_FOUND, "adapter"},
                {{.op = "versions", .name = "policy", .version = 9}, HEDDLE_ERR_NOT_FOUND, "policy@9"},
                {{.op = "workers", .name = "w9"}, HEDDLE_ERR_NOT_FOUND, "w9"},
                {{.op = "wait", .name = "policy"}, HEDDLE_ERR_USAGE, "wait"},
                {{.op = ""}, HEDDLE_ERR_USAGE, ""}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        answer_page_t page = {0};
        heddle_error_t e;
        cr_assert_eq(answer_page(view(), &ROWS[i].q, &page, &e), ROWS[i].code, "row %zu", i);
        cr_assert(strstr(e.message, ROWS[i].word) && (e.hint[0] || e.expected[0]), "row %zu: %s", i,
                  e.message);
        cr_assert_null(page.body);
    }
}

/* ---- configs that no frame or tree can hold -------------------------------------------------------------------- */

static void expect_config(const char *config, bool shown)
{
    static uint64_t version = 4;
    publish_with(9, ++version, config);
    json_t *b = body_of((msg_query_t){.op = "versions", .name = "policy", .version = version});
    cr_assert_eq(json_is_object(at(b, "versions[0].config")), shown, "%.40s", config);
    json_decref(b);
}

static char *nested(size_t depth)
{
    buf_t b = {0};
    buf_add_text(&b, "{\"a\":");
    for (size_t i = 0; i < depth; i++) buf_add_text(&b, "[");
    for (size_t i = 0; i < depth; i++) buf_add_text(&b, "]");
    buf_add_text(&b, "}");
    return (char *)(uintptr_t)buf_text(&b);
}

Test(answer, configs_of_any_kind)
{
    char *flat = nested(8), *deep = nested(60), *large = malloc(ANSWER_CONFIG_BYTES + 100);
    snprintf(large, ANSWER_CONFIG_BYTES + 100, "{\"a\":\"%0*d\"}", (int)ANSWER_CONFIG_BYTES, 0);
    expect_config(CONFIG, true);
    expect_config(flat, true);
    expect_config(deep, false);
    expect_config(large, false);
    expect_config("{\"a\":123456789012345678901234567890}", false);
    expect_config("{", false);
    free(flat);
    free(deep);
    free(large);
}

Test(answer, the_config_of_an_ended_version_comes_from_the_store)
{
    stored_config = "{\"from\":\"store\"}";
    json_t *b = body_of((msg_query_t){.op = "versions", .name = "policy", .version = 3});
    expect(b, "versions[0].config.from", "\"store\"");
    json_decref(b);
}

/* ---- pages ----------------------------------------------------------------------------------------------------- */

Test(answer, pages_of_names_and_numbers)
{
    answer_page_t page;
    json_t *b = page_of((msg_query_t){.op = "workers", .limit = 1}, &page);
    cr_assert(page.more && !strcmp(page.next_name, "w1") && json_array_size(at(b, "workers")) == 1);
    json_decref(b);
    b = page_of((msg_query_t){.op = "workers", .limit = 1, .after_name = "w1"}, &page);
    cr_assert_not(page.more);
    expect(b, "workers[0].name", "\"w2\"");
    json_decref(b);
    b = page_of((msg_query_t){.op = "versions", .name = "policy", .limit = 3}, &page);
    cr_assert(page.more && page.next == 3);
    json_decref(b);
    b = page_of((msg_query_t){.op = "versions", .name = "policy", .limit = 3, .after = 3}, &page);
    cr_assert(!page.more && json_array_size(at(b, "versions")) == 1);
    expect(b, "versions[0].version", "4");
    json_decref(b);
    b = page_of((msg_query_t){.op = "versions", .name = "policy", .version = 1, .limit = 1}, &page);
    cr_assert(page.more && !strcmp(page.next_name, "w1") &&
              json_array_size(at(b, "versions[0].workers")) == 1);
    json_decref(b);
    b = page_of(
        (msg_query_t){.op = "versions", .name = "policy", .version = 1, .limit = 1, .after_name = "w1"},
        &page);
    expect(b, "versions[0].workers[0].worker", "\"w2\"");
    cr_assert_not(page.more);
    json_decref(b);
}

/* Far more than fit a frame, whatever limit was asked for: together the pages have all, in order, once. */
Test(answer, a_page_ends_before_the_frame_does)
{
    enum { MANY = 4000 };
    char name[HEDDLE_NAME_MAX + 1], after[HEDDLE_NAME_MAX + 1] = "", last[HEDDLE_NAME_MAX + 1] = "";
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "a%0*d", (int)HEDDLE_NAME_MAX - 1, i);
        cr_assert_eq(broker_apply(broker, &(record_t){.kind = RECORD_ADAPTER, .adapter = name, .at_ms = 1}),
                     HEDDLE_OK);
    }
    size_t rows = 0, pages = 0;
    answer_page_t page = {.more = true};
    while (page.more) {
        json_t *b = page_of((msg_query_t){.op = "adapters", .limit = 100000, .after_name = after}, &page);
        const json_t *list = at(b, "adapters");
        for (size_t i = 0; i < json_array_size(list); i++, rows++) {
            cr_assert_gt(strcmp(text_at(json_array_get(list, i), "name"), last), 0);
            snprintf(last, sizeof last, "%s", text_at(json_array_get(list, i), "name"));
        }
        snprintf(after, sizeof after, "%s", page.next_name);
        pages++;
        json_decref(b);
    }
    cr_assert_eq(rows, MANY + 2); /* policy, and critic, to which nobody published */
    cr_assert_geq(pages, 2);
}

/* What is remembered is bounded, and comes in pages that fit a frame (page_of looks). */
Test(answer, ten_thousand_versions)
{
    enum { PUBLISHED = 10000 };
    for (uint64_t v = 5; v <= PUBLISHED; v++) publish(9, v);
    answer_page_t page = {.more = true};
    uint64_t rows = 0, last = 0, after = 0;
    for (int pages = 0; page.more; pages++) {
        cr_assert_lt(pages, 50);
        json_t *b =
            page_of((msg_query_t){.op = "versions", .name = "policy", .after = after, .limit = 5000}, &page);
        for (size_t i = 0; i < json_array_size(at(b, "versions")); i++, rows++) {
            uint64_t version = (uint64_t)json_integer_value(
                json_object_get(json_array_get(at(b, "versions"), i), "version"));
            cr_assert_gt(version, last);
            last = version;
        }
        after = page.next;
        json_decref(b);
    }
    cr_assert_eq(last, PUBLISHED);
    cr_assert_leq(rows, LIMIT_HISTORY + 4); /* the active one, a kept one, one staging, one that waits */
    cr_assert_geq(rows, LIMIT_HISTORY);
}

/* A stream has this text as it is. */
Test(answer, an_event_is_one_line_of_json)
{
    buf_t text = {0};
    event_row_t e = {.seq = 12,
                     .at_ms = 1,
                     .type = EVENT_SOURCE_LOST,
                     .version = UINT64_MAX,
                     .bytes = -1,
                     .duration_ms = 0};
    memcpy(e.adapter, "policy", 7);
    memcpy(e.other, "w1", 3);
    memcpy(e.message, "\"a\"\\\n\x01 \xc3\xa4", 10);
    event_text(&text, &e, 7);
    cr_expect_str_eq(
        buf_text(&text),
        "{\"schema\":\"heddle/1\",\"kind\":\"event\",\"ok\":true,\"seq\":12,\"epoch\":7,"
        "\"at\":\"1970-01-01T00:00:00.001Z\",\"type\":\"source.lost\",\"adapter\":\"policy\","
        "\"version\":9007199254740991,\"worker\":null,\"code\":null,"
        "\"message\":\"\\\"a\\\"\\\\\\n\\u0001 \xc3\xa4\",\"data\":{\"source\":\"w1\",\"duration_ms\":0}}");
    buf_clear(&text);
    event_text(&text,
               &(event_row_t){.type = EVENT_GAP, .bytes = -1, .duration_ms = -1, .message = "cut \xc3"}, 1);
    cr_expect(strstr(buf_text(&text), "\"message\":\"cut ?\",\"data\":{}}"), "%s", buf_text(&text));
    buf_fini(&text);
}

Test(answer, events_from_a_cursor)
{
    answer_page_t page;
    json_t *b = page_of((msg_query_t){.op = "events", .limit = 3}, &page);
    cr_assert(page.more && page.next == 4 && json_array_size(at(b, "events")) == 3);
    expect(b, "events[0].type", "\"broker.started\"");
    expect(b, "events[0].seq", "1");
    json_decref(b);
    b = page_of((msg_query_t){.op = "events", .after = 4}, &page);
    expect(b, "events[0].seq", "4");
    cr_assert_not(page.more);
    uint64_t next = page.next;
    json_decref(b);
    b = page_of((msg_query_t){.op = "events", .after = next}, &page);
    cr_assert(json_array_size(at(b, "events")) == 0 && page.next == next);
    json_decref(b);
    b = body_of((msg_query_t){.op = "events", .worker = "w2"});
    for (size_t i = 0; i < json_array_size(at(b, "events")); i++)
        expect(json_array_get(at(b, "events"), i), "worker", "\"w2\"");
    cr_assert_gt(json_array_size(at(b, "events")), 0);
    json_decref(b);
}

Test(answer, a_gap_is_an_event)
{
    json_t *b = body_of((msg_query_t){.op = "events", .epoch = 6, .after = 50});
    expect(b, "events[0].type", "\"gap\"");
    expect(b, "events[0].code", "\"gone\""); /* a filter for failures must not drop it */
    expect(b, "events[0].epoch", "7");
    expect(b, "events[0].seq", "0");
    expect(b, "events[1].seq", "1");
    json_decref(b);
    for (int i = 0; i < (int)LIMIT_EVENTS + 10; i++)
        events_add(&broker->events, EVENT_STAGE_DONE, "policy", 1, "w1", now);
    answer_page_t page;
    b = page_of((msg_query_t){.op = "events", .after = 5, .limit = 100000}, &page);
    expect(b, "events[0].type", "\"gap\"");
    expect(b, "events[0].code", "\"gone\"");
    uint64_t gap = (uint64_t)json_integer_value(at(b, "events[0].seq")),
             first = (uint64_t)json_integer_value(at(b, "events[1].seq"));
    cr_assert(gap + 1 == first && gap >= 5 && page.more);
    json_decref(b);
}
