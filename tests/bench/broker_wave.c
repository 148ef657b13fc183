/* SPDX-License-Identifier: Apache-2.0 */
/* One version's wave through the broker's core: N workers join, a trainer publishes, every worker stages the
 * version and switches to it, one is lost and one joins late.  Sockets, disk and time are stand-ins; messages
 * go through the real decoder and encoder.
 *
 * Prints the processor time that the broker's thread takes for each part.  Asserted is what must be sent,
 * never how long it took.
 *
 *   tests/broker_wave [WORKERS]          default 10000 */
#include "broker/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FRAMES_A_TURN 64 /* as the broker's loop takes from its socket */
#define TRAINER 1u
#define FIRST_WORKER 2u

static struct {
    broker_t *b;
    instant_t now;
    uint64_t *tokens; /* by connection, as WELCOME gave them */
    size_t peers;
    uint64_t sent[32];
    uint64_t spent_ns; /* in the broker, since the last mark */
} W;

#define MUST(what)                                                                                           \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "broker_wave: line %d: not so: %s\n", __LINE__, #what);                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- the stand-ins ---- */

static int on_send(void *self, uint64_t peer, bytes_t frame)
{
    (void)self;
    msg_t m;
    heddle_error_t e;
    uint64_t begin = cpu_ns();
    MUST(msg_decode(frame, &m, &e) == HEDDLE_OK);
    W.sent[m.type]++;
    if (m.type == MSG_WELCOME) W.tokens[peer] = m.welcome.token;
    msg_fini(&m);
    W.spent_ns -= cpu_ns() - begin; /* the receiver's work, not the broker's */
    return HEDDLE_OK;
}

static void on_forget(void *self, uint64_t peer) { (void)self, (void)peer; }

static int on_commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    (void)self, (void)records, (void)count, (void)error;
    return HEDDLE_OK;
}

static void on_fatal(void *self, const heddle_error_t *error)
{
    (void)self;
    fprintf(stderr, "broker_wave: %s\n", error->message);
    exit(1);
}

static void on_random(void *self, void *data, size_t bytes)
{
    static uint8_t next;
    (void)self;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)data)[i] = ++next;
}

/* ---- turns ---- */

static size_t frames_in_turn;

static void end_turn(void)
{
    uint64_t begin = cpu_ns();
    broker_flush(W.b, W.now);
    W.spent_ns += cpu_ns() - begin;
    W.now.us += 100;
    frames_in_turn = 0;
}

static void say(uint64_t peer, const msg_t *m)
{
    buf_t frame = {0};
    MUST(msg_encode(m, &frame) == HEDDLE_OK);
    uint64_t begin = cpu_ns();
    if (!frames_in_turn) broker_tick(W.b, W.now);
    broker_frame(W.b, peer, buf_view(&frame), W.now);
    W.spent_ns += cpu_ns() - begin;
    buf_fini(&frame);
    if (++frames_in_turn == FRAMES_A_TURN) end_turn();
}

static void report(const char *what, size_t count)
{
    if (frames_in_turn) end_turn();
    printf("broker_wave: %-24s %6zu messages %9.3f ms\n", what, count, (double)W.spent_ns / 1e6);
    W.spent_ns = 0;
}

/* ---- the cast ---- */

static digest_t some_digest(uint64_t n) { return (digest_t){{(uint8_t)n, 1}}; }

static void hello(uint64_t peer, role_t role)
{
    msg_t m = {.type = MSG_HELLO};
    m.hello = (msg_hello_t){.wire_min = WIRE_VERSION_MIN,
                            .wire_max = WIRE_VERSION_MAX,
                            .role = role,
                            .pid = peer,
                            .heddle = "t",
                            .host = "host"};
    memcpy(m.hello.life.b, &peer, sizeof peer);
    say(peer, &m);
}

static void join(uint64_t peer)
{
    char name[32];
    /* not in the order of their names */
    snprintf(name, sizeof name, "w%07llu", (unsigned long long)(peer * 7919 % 9999991));
    msg_subscription_t sub = {.adapter = "policy"};
    msg_t m = {.type = MSG_JOIN};
    hello(peer, ROLE_WORKER);
    m.join = (msg_join_t){.req = peer,
                          .name = name,
                          .adapters = &sub,
                          .adapter_count = 1,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("addr", 4),
                          .export_dir = ""};
    say(peer, &m);
    MUST(W.tokens[peer]);
}

static void open_writer(void)
{
    msg_t m = {.type = MSG_OPEN};
    hello(TRAINER, ROLE_PUBLISHER);
    m.open = (msg_open_t){.req = 1,
                          .adapter = "policy",
                          .writer = "trainer",
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("pub", 3)};
    say(TRAINER, &m);
    MUST(W.tokens[TRAINER]);
}

static void publish(uint64_t version)
{
    char id[16];
    snprintf(id, sizeof id, "r%llu", (unsigned long long)version);
    msg_part_t part = {.payload_bytes = 8192, .manifest_bytes = 100, .manifest_digest = some_digest(version)};
    msg_t m = {.type = MSG_PUBLISH};
    m.publish = (msg_publish_t){.token = W.tokens[TRAINER],
                                .req = version,
                                .deadline_ms = 60000,
                                .adapter = "policy",
                                .request_id = id,
                                .digest = some_digest(version),
                                .parts = &part,
                                .part_count = 1,
                                .step = -1,
                                .data_bytes = 5000,
                                .tensor_count = 2,
                                .chunk_count = 1,
                                .kind = "lora",
                                .base_model = "base",
                                .config = bytes_of("{}", 2)};
    say(TRAINER, &m);
}

static void staged(uint64_t peer, uint64_t version)
{
    msg_served_t from = {.token = W.tokens[TRAINER],
                         .kind = SOURCE_PUBLISHER,
                         .bytes = 5000,
                         .name = "trainer"};
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = W.tokens[peer],
                              .version = version,
                              .adapter = "policy",
                              .digest = some_digest(version),
                              .fetch_us = 1000,
                              .sources = &from,
                              .source_count = 1};
    say(peer, &m);
}

static void active(uint64_t peer, uint64_t version)
{
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = W.tokens[peer],
                              .version = version,
                              .decision = version,
                              .adapter = "policy",
                              .digest = some_digest(version)};
    say(peer, &m);
}

static void need_sources(uint64_t peer, uint64_t version)
{
    msg_t m = {.type = MSG_NEED_SOURCES};
    m.need_sources = (msg_need_sources_t){.token = W.tokens[peer],
                                          .version = version,
                                          .adapter = "policy",
                                          .lost = &W.tokens[TRAINER],
                                          .lost_count = 1};
    say(peer, &m);
}

/* All but the last quarter stage it from the trainer; those lose the trainer and are given holders. */
static void wave(size_t workers, uint64_t version)
{
    uint64_t end = FIRST_WORKER + workers, late = end - workers / 4;
    uint64_t announced = W.sent[MSG_ANNOUNCE], given = W.sent[MSG_SOURCES], commits = W.sent[MSG_COMMIT];
    printf("broker_wave: version %llu\n", (unsigned long long)version);
    publish(version);
    report("PUBLISH, ANNOUNCE to all", 1);
    MUST(W.sent[MSG_ANNOUNCE] - announced == workers);
    for (uint64_t peer = FIRST_WORKER; peer < late; peer++) staged(peer, version);
    report("STAGED, three quarters", late - FIRST_WORKER);
    for (uint64_t peer = late; peer < end; peer++) need_sources(peer, version);
    report("NEED_SOURCES, a quarter", end - late);
    MUST(W.sent[MSG_SOURCES] - given == end - late && W.sent[MSG_COMMIT] == commits);
    for (uint64_t peer = late; peer < end; peer++) staged(peer, version);
    report("STAGED, the last quarter", end - late);
    MUST(W.sent[MSG_COMMIT] - commits == workers);
    for (uint64_t peer = FIRST_WORKER; peer < end; peer++) active(peer, version);
    report("ACTIVE, all", workers);
    const adapter_row_t *a = registry_adapter(&W.b->registry, "policy");
    MUST(a->active == version && track_active_count(track_find(&W.b->rollout, "policy", version)) == workers);
}

int main(int argc, char **argv)
{
    size_t workers = argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
    broker_io_t io = {.send = on_send,
                      .forget = on_forget,
                      .commit = on_commit,
                      .fatal = on_fatal,
                      .random = on_random};
    broker_opts_t opts = {.lease_ms = 4000,
                          .keep = 1,
                          .cluster = "wave",
                          .endpoint = "tcp://127.0.0.1:1",
                          .data_dir = "/d",
                          .pid = 1,
                          .seed = 42};
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = 1};
    heddle_error_t e;
    W.now = (instant_t){.us = 1000000000, .wall_ms = 1780000000000};
    W.tokens = calloc(workers + FIRST_WORKER, sizeof *W.tokens);
    MUST(workers >= 4 && W.tokens);
    MUST(broker_new(&opts, &io, &W.b, &e) == HEDDLE_OK);
    MUST(broker_apply(W.b, &epoch) == HEDDLE_OK && broker_start(W.b, W.now) == HEDDLE_OK);
    for (uint64_t peer = FIRST_WORKER; peer < FIRST_WORKER + workers; peer++) join(peer);
    open_writer();
    report("HELLO, JOIN", 2 * workers);
    for (uint64_t version = 1; version <= 3; version++) wave(workers, version);
    broker_destroy(&W.b);
    free(W.tokens);
    return 0;
}
