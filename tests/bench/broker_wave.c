/* SPDX-License-Identifier: Apache-2.0 */
/* broker-wave [MEMBERS [ON_A_HOST [FAILED [LIMITED]]]]: the processor time that the broker's thread takes for
 * one version and so many workers (default 10000 workers, 8 on a host, none failed, none limited).  It drives
 * the broker's own parts in one thread: encoded messages go in, the registry, rollout, rule and plan decide,
 * encoded messages come out.  No socket, no disk.
 *
 *   join        HELLO and JOIN of each worker
 *   publish     OPEN and PUBLISH: the plan is made, each worker gets ANNOUNCE
 *   heartbeats  one of each worker, that has half of the version
 *   sources     NEED_SOURCES of the last quarter, which has lost the publisher, when the others have staged it
 *   staged      STAGED of each worker; with the last one the decision is made, each gets COMMIT
 *   active      ACTIVE of each worker
 *   roster      the second in which all workers are recorded, with a heartbeat of each
 *
 * FAILED workers answer each COMMIT with NACK: they have a copy of the active version that failed, beside which
 * the next one is decided.  The workers of LIMITED hosts of 100 have a --max-rate.  Three versions are
 * published; times are of the last one, in ms. */
#include "broker/state.h"
#include "core/clock.h"
#include "core/errors.h"
#include "proto/msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VERSIONS = 3, MOST = 100000, FRAMES_A_TURN = 64 /* as the broker's loop takes from its socket */ };
#define PAYLOAD_BYTES (87ull << 20)

static broker_t *broker;
static instant_t now = {.us = 1000000000, .wall_ms = 1780000000000};
static uint64_t *tokens;   /* by connection: 0 is the publisher, 1 the first worker */
static bool *is_announced; /* by connection: the present version, and STAGED was not sent */
static uint64_t decision, commits, announces;
static uint64_t spent_ns, roster_ns;

static void fail(const char *what)
{
    fprintf(stderr, "broker-wave: %s\n", what);
    exit(9);
}

static uint64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What a receiver does with the frame is no time of the broker's. */
static int take_letter(void *self, uint64_t peer, bytes_t frame)
{
    (void)self;
    msg_t m;
    heddle_error_t e;
    uint64_t from = thread_ns();
    if (msg_decode(frame, &m, &e)) fail(e.message);
    if (m.type == MSG_WELCOME) tokens[peer] = m.welcome.token;
    if (m.type == MSG_ANNOUNCE) announces++, is_announced[peer] = true;
    if (m.type == MSG_COMMIT) decision = m.commit.decision, commits++;
    if (m.type == MSG_ERROR) fail(m.error.message);
    msg_fini(&m);
    spent_ns -= thread_ns() - from;
    return HEDDLE_OK;
}
static void forget(void *self, uint64_t peer) { (void)self, (void)peer; }
static int commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    (void)self, (void)records, (void)count, (void)error;
    return HEDDLE_OK;
}
static void fatal(void *self, const heddle_error_t *error)
{
    (void)self;
    fail(error->message);
}
static void random_bytes(void *self, void *data, size_t bytes)
{
    static uint8_t last;
    (void)self;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)data)[i] = ++last;
}

static size_t frames_in_turn;

static void end_turn(void)
{
    uint64_t from = thread_ns();
    broker_flush(broker, now);
    spent_ns += thread_ns() - from;
    frames_in_turn = 0;
}

/* Frames of a turn are handled together, as by the broker's loop. */
static void give(uint64_t peer, const msg_t *m)
{
    buf_t frame = {0};
    if (msg_encode(m, &frame)) fail("a message cannot be encoded");
    uint64_t from = thread_ns();
    if (!frames_in_turn) broker_tick(broker, now);
    broker_frame(broker, peer, buf_view(&frame), now);
    spent_ns += thread_ns() - from;
    buf_fini(&frame);
    if (++frames_in_turn == FRAMES_A_TURN) end_turn();
}

static double ms_since_last(void)
{
    if (frames_in_turn) end_turn();
    double ms = (double)spent_ns / 1e6;
    spent_ns = 0;
    return ms;
}

static void hello(uint64_t peer, role_t role)
{
    msg_t m = {.type = MSG_HELLO};
    m.hello = (msg_hello_t){.wire_min = WIRE_VERSION_MIN,
                            .wire_max = WIRE_VERSION_MAX,
                            .role = role,
                            .pid = 100 + peer,
                            .heddle = "wave",
                            .host = "host"};
    memcpy(m.hello.life.b, &peer, sizeof peer);
    give(peer, &m);
}

static void join(uint64_t peer, uint64_t on_a_host, uint64_t limited)
{
    char name[32];
    msg_subscription_t sub = {.adapter = "policy"};
    msg_t m = {.type = MSG_JOIN};
    snprintf(name, sizeof name, "w%llu", (unsigned long long)peer);
    m.join = (msg_join_t){.req = peer,
                          .name = name,
                          .adapters = &sub,
                          .adapter_count = 1,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("address", 7),
                          .export_dir = "",
                          .max_rate_bytes = peer / on_a_host % 100 < limited ? 1000000 : 0,
                          .place = 1 + peer / on_a_host};
    hello(peer, ROLE_WORKER);
    give(peer, &m);
    if (!tokens[peer]) fail("a worker was not admitted");
}

static void open_writer(void)
{
    msg_t m = {.type = MSG_OPEN};
    m.open = (msg_open_t){.req = 1,
                          .adapter = "policy",
                          .writer = "trainer",
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("address", 7)};
    hello(0, ROLE_PUBLISHER);
    give(0, &m);
    if (!tokens[0]) fail("the publisher was not admitted");
}

static digest_t digest_of(uint64_t version)
{
    digest_t d = {{1}};
    memcpy(d.b + 8, &version, sizeof version);
    return d;
}

static void publish(uint64_t version)
{
    char id[32];
    snprintf(id, sizeof id, "r%llu", (unsigned long long)version);
    msg_part_t part = {.payload_bytes = PAYLOAD_BYTES,
                       .manifest_bytes = 100000,
                       .manifest_digest = digest_of(version + 1000)};
    msg_t m = {.type = MSG_PUBLISH};
    m.publish = (msg_publish_t){.token = tokens[0],
                                .req = 100 + version,
                                .deadline_ms = 60000,
                                .adapter = "policy",
                                .request_id = id,
                                .digest = digest_of(version),
                                .parts = &part,
                                .part_count = 1,
                                .step = -1,
                                .data_bytes = PAYLOAD_BYTES,
                                .tensor_count = 336,
                                .chunk_count = 87,
                                .kind = "lora",
                                .base_model = "base",
                                .config = bytes_of("{}", 2)};
    give(0, &m);
}

/* The first worker of a host has fetched it; the others hold its region. */
static void staged(uint64_t peer, uint64_t version, uint64_t on_a_host)
{
    uint64_t first = peer / on_a_host * on_a_host;
    bool is_first = peer == first || peer == 1;
    msg_served_t from = {.token = tokens[0],
                         .kind = SOURCE_PUBLISHER,
                         .bytes = PAYLOAD_BYTES,
                         .name = "trainer"};
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = tokens[peer],
                              .version = version,
                              .adapter = "policy",
                              .digest = digest_of(version),
                              .fetch_us = 1000,
                              .sources = &from,
                              .source_count = is_first ? 1 : 0,
                              .region = {.generation = version},
                              .verified = is_first ? VERIFIED_HERE : VERIFIED_ON_HOST,
                              .held = !is_first};
    memcpy(m.staged.region.identity.b, &first, sizeof first);
    give(peer, &m);
}

static void need_sources(uint64_t peer, uint64_t version)
{
    msg_t m = {.type = MSG_NEED_SOURCES};
    m.need_sources = (msg_need_sources_t){.token = tokens[peer],
                                          .version = version,
                                          .adapter = "policy",
                                          .lost = &tokens[0],
                                          .lost_count = 1};
    give(peer, &m);
}

static void refused(uint64_t peer, uint64_t version)
{
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = tokens[peer],
                          .version = version,
                          .decision = decision,
                          .adapter = "policy",
                          .phase = "activate",
                          .code = "REJECTED",
                          .message = "the engine refused it"};
    give(peer, &m);
}

static void active(uint64_t peer, uint64_t version)
{
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = tokens[peer],
                              .version = version,
                              .decision = decision,
                              .adapter = "policy",
                              .digest = digest_of(version),
                              .activate_us = 5};
    give(peer, &m);
}

/* Half of the bytes of `version` have come, or all is quiet (version 0). */
static void heartbeat(uint64_t peer, uint64_t version)
{
    static uint64_t seq;
    msg_progress_t progress = {.adapter = "policy",
                               .fetching = version,
                               .bytes_done = version ? PAYLOAD_BYTES / 2 : 0,
                               .data_bytes = version ? PAYLOAD_BYTES : 0,
                               .source = version ? tokens[0] : 0,
                               .message = ""};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = tokens[peer],
                                    .seq = ++seq,
                                    .adapters = &progress,
                                    .adapter_count = peer ? 1 : 0,
                                    .unheld = ""};
    give(peer, &m);
}

/* A second of quiet, in which no lease ends.  In one of them the workers are recorded. */
static void pass_a_second(uint64_t members)
{
    now.us += 1000000;
    now.wall_ms += 1000;
    for (uint64_t peer = tokens[0] ? 0 : 1; peer <= members; peer++) heartbeat(peer, 0);
    end_turn();
    if (spent_ns > roster_ns) roster_ns = spent_ns;
    spent_ns = 0;
}

static uint64_t number(const char *text, uint64_t least, uint64_t most, const char *name)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*end || n < least || n > most) {
        fprintf(stderr, "broker-wave: %s: a number from %llu to %llu is expected, not \"%s\"\n", name,
                (unsigned long long)least, (unsigned long long)most, text);
        exit(2);
    }
    return n;
}

/* Those that wait for a worker of their host get ANNOUNCE when it has the version. */
static void stage(uint64_t from, uint64_t to, uint64_t version, uint64_t on_a_host)
{
    for (bool goes_on = true; goes_on;) {
        goes_on = false;
        for (uint64_t peer = from; peer <= to; peer++) {
            if (!is_announced[peer]) continue;
            is_announced[peer] = false;
            goes_on = true;
            staged(peer, version, on_a_host);
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t members = argc > 1 ? number(argv[1], 1, MOST, "MEMBERS") : 10000;
    uint64_t on_a_host = argc > 2 ? number(argv[2], 1, MOST, "ON_A_HOST") : 8;
    uint64_t failed = argc > 3 ? number(argv[3], 0, members - 1, "FAILED") : 0;
    uint64_t limited = argc > 4 ? number(argv[4], 0, 100, "LIMITED") : 0;
    broker_io_t io = {.send = take_letter,
                      .forget = forget,
                      .commit = commit,
                      .fatal = fatal,
                      .random = random_bytes};
    broker_opts_t opts = {.lease_ms = 4000,
                          .keep = 3,
                          .cluster = "wave",
                          .endpoint = "tcp://127.0.0.1:1",
                          .data_dir = "/",
                          .pid = 1,
                          .seed = 42};
    heddle_error_t e;
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = 1};
    tokens = calloc(members + 1, sizeof *tokens);
    is_announced = calloc(members + 1, sizeof *is_announced);
    if (!tokens || !is_announced || broker_new(&opts, &io, &broker, &e) || broker_apply(broker, &epoch) ||
        broker_start(broker, now))
        fail("no broker");
    for (uint64_t peer = 1; peer <= members; peer++) join(peer, on_a_host, limited);
    printf("join %.1f\n", ms_since_last());
    for (uint64_t v = 1; v <= VERSIONS; v++) {
        pass_a_second(members);
        if (v == 1) open_writer();
        announces = commits = 0;
        publish(v);
        double published = ms_since_last();
        for (uint64_t peer = 1; peer <= members; peer++) heartbeat(peer, is_announced[peer] ? v : 0);
        double beaten = ms_since_last();
        uint64_t late = members - members / 4 + 1;
        stage(1, late - 1, v, on_a_host);
        double most_staged = ms_since_last();
        for (uint64_t peer = late; peer <= members; peer++)
            if (is_announced[peer]) need_sources(peer, v);
        double sourced = ms_since_last();
        stage(late, members, v, on_a_host);
        double all_staged = most_staged + ms_since_last();
        if (commits < members) {
            fprintf(stderr, "broker-wave: version %llu: %llu workers got ANNOUNCE, %llu of %llu COMMIT\n",
                    (unsigned long long)v, (unsigned long long)announces, (unsigned long long)commits,
                    (unsigned long long)members);
            return 1;
        }
        for (uint64_t peer = 1; peer <= members - failed; peer++) active(peer, v);
        for (uint64_t peer = members - failed + 1; peer <= members; peer++) refused(peer, v);
        double all_active = ms_since_last();
        if (v == VERSIONS)
            printf("publish %.1f\nheartbeats %.1f\nsources %.1f\nstaged %.1f\nactive %.1f\nversion %.1f\n"
                   "roster %.1f\n",
                   published, beaten, sourced, all_staged, all_active,
                   published + sourced + all_staged + all_active, (double)roster_ns / 1e6);
    }
    broker_destroy(&broker);
    free(tokens);
    free(is_announced);
    return 0;
}
