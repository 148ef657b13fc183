/* SPDX-License-Identifier: Apache-2.0 */
/* The Nth allocation fails, for every N: a life of the broker with joins, versions, questions and a crash
 * of memory in the middle of anything.  Nothing may crash, leak or say what is not on disk; afterwards it
 * goes on as if nothing was. */
#include "../unit/broker_rig.h"
#include "tests/lib/registry_equal.h"

static struct {
    bool is_on;
    uint64_t count, fail_at;
} alloc;

static bool refuse(void) { return alloc.is_on && ++alloc.count == alloc.fail_at; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return refuse() ? NULL : __real_calloc(count, bytes); }
void *__wrap_realloc(void *old, size_t bytes) { return refuse() ? NULL : __real_realloc(old, bytes); }
char *__wrap_strdup(const char *text) { return refuse() ? NULL : __real_strdup(text); }

/* Only the broker's own allocations are counted, not the rig's. */
static void on_off(bool on) { alloc.is_on = on; }

static int send_quietly(void *self, uint64_t peer, bytes_t frame)
{
    on_off(false);
    int rc = rig_send(self, peer, frame);
    on_off(true);
    return rc;
}

static int commit_quietly(void *self, const record_t *records, int count, heddle_error_t *error)
{
    on_off(false);
    int rc = rig_commit(self, records, count, error);
    on_off(true);
    return rc;
}

/* What is under way is confirmed before the next message. */
static void confirm(void)
{
    while (R.committing) {
        rig_take();
        R.committing = NULL;
        on_off(true);
        broker_committed(R.b, HEDDLE_OK, NULL, R.now);
        broker_flush(R.b, R.now);
        on_off(false);
    }
}

static void hand_in(uint64_t peer, const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    on_off(true);
    broker_tick(R.b, R.now);
    broker_frame(R.b, peer, buf_view(&frame), R.now);
    broker_flush(R.b, R.now);
    on_off(false);
    buf_fini(&frame);
    confirm();
}

/* ---- a life ---- */

static void say_hello(uint64_t peer, role_t role)
{
    msg_t m = {.type = MSG_HELLO};
    m.hello = (msg_hello_t){.wire_min = 1,
                            .wire_max = 1,
                            .role = role,
                            .pid = 7,
                            .life = rig_life(peer),
                            .host = "host"};
    hand_in(peer, &m);
}

static void join(uint64_t peer, const char *name, uint64_t held_version)
{
    const char *labels[] = {"zone=a"}, *devices[] = {"eth0"};
    msg_subscription_t sub = {.adapter = "policy"};
    msg_held_t held = {.adapter = "policy",
                       .version = held_version,
                       .state = HELD_STAGED,
                       .digest = rig_digest(held_version)};
    msg_t m = {.type = MSG_JOIN};
    say_hello(peer, ROLE_WORKER);
    m.join = (msg_join_t){.req = ++R.req,
                          .name = name,
                          .adapters = &sub,
                          .adapter_count = 1,
                          .labels = labels,
                          .label_count = 1,
                          .devices = devices,
                          .device_count = 1,
                          .held = &held,
                          .held_count = held_version != 0,
                          .address = bytes_of("a", 1),
                          .backend = "mem",
                          .ucx = "",
                          .export_dir = "/x"};
    hand_in(peer, &m);
}

static void publish(uint64_t digest)
{
    const char *features[] = {"dora", "bias"};
    msg_pair_t meta = {"run", "7"};
    msg_part_t part = {.payload_bytes = 4096, .manifest_bytes = 9};
    msg_t m = {.type = MSG_PUBLISH};
    static char id[16];
    snprintf(id, sizeof id, "p%llu", (unsigned long long)digest);
    m.publish = (msg_publish_t){.token = R.tokens[T],
                                .req = ++R.req,
                                .deadline_ms = 5000,
                                .adapter = "policy",
                                .request_id = id,
                                .digest = rig_digest(digest),
                                .parts = &part,
                                .part_count = 1,
                                .step = -1,
                                .kind = "lora",
                                .base_model = "b",
                                .features = features,
                                .feature_count = 2,
                                .meta = &meta,
                                .meta_count = 1,
                                .config = bytes_of("{}", 2),
                                .if_unchanged = HEDDLE_UNCHANGED_PUBLISH};
    hand_in(T, &m);
}

static void staged(uint64_t peer, uint64_t version)
{
    msg_served_t from = {.token = 1, .kind = SOURCE_PUBLISHER, .bytes = 10, .name = "trainer"};
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[peer],
                              .version = version,
                              .adapter = "policy",
                              .digest = rig_digest(version),
                              .sources = &from,
                              .source_count = 1};
    hand_in(peer, &m);
}

static void active(uint64_t peer, uint64_t version)
{
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = R.tokens[peer],
                              .version = version,
                              .decision = version,
                              .adapter = "policy",
                              .digest = rig_digest(version)};
    hand_in(peer, &m);
}

static void question(const char *op, uint64_t version)
{
    const char *names[] = {"w1"};
    msg_t m = {.type = MSG_QUERY};
    m.query = (msg_query_t){.req = ++R.req,
                            .op = op,
                            .name = "policy",
                            .version = version,
                            .workers = names,
                            .by = "",
                            .worker = "",
                            .expected = "",
                            .after_name = "",
                            .worker_count = !strcmp(op, "wait"),
                            .deadline_ms = 1000};
    hand_in(ADMIN, &m);
}

static void live(void)
{
    msg_t open = {.type = MSG_OPEN};
    say_hello(ADMIN, ROLE_ADMIN);
    join(W1, "w1", 0);
    say_hello(T, ROLE_PUBLISHER);
    open.open = (msg_open_t){.req = ++R.req,
                             .adapter = "policy",
                             .writer = "trainer",
                             .backend = "mem",
                             .ucx = "",
                             .address = bytes_of("p", 1)};
    hand_in(T, &open);
    for (uint64_t v = 1; v <= 3; v++) {
        publish(v);
        staged(W1, v);
        active(W1, v);
        if (v == 1) join(W2, "w2", 1);
    }
    publish(4);
    msg_t nack = {.type = MSG_NACK};
    nack.nack = (msg_nack_t){.token = R.tokens[W1],
                             .version = 4,
                             .adapter = "policy",
                             .phase = "stage",
                             .code = "no_slot"};
    hand_in(W1, &nack);
    question("wait", 3);
    question("verify", 3);
    question("activate", 2);
    question("versions", 0);
    join(W1, "w1", 2);
    msg_t leave = {.type = MSG_LEAVE};
    leave.leave.token = R.tokens[W2];
    hand_in(W2, &leave);
}

static void start(void)
{
    rig_start();
    R.b->io.send = send_quietly;
    R.b->io.commit = commit_quietly;
}

/* What is in memory is what is on disk. */
static bool is_same_as_disk(void)
{
    registry_t r;
    registry_init(&r);
    for (size_t i = 0; i < R.record_count; i++) cr_assert_eq(registry_apply(&r, &R.records[i]), HEDDLE_OK);
    bool same = registry_equal(&r, &R.b->registry);
    registry_fini(&r);
    return same;
}

static void every_allocation_fails(bool store_is_late)
{
    alloc.count = 0;
    alloc.fail_at = 0;
    start();
    R.is_late = store_is_late;
    live();
    uint64_t total = alloc.count;
    rig_stop();
    cr_assert_gt(total, 100u, "%llu", (unsigned long long)total);
    unsigned fatal = 0;
    for (uint64_t n = 1; n <= total; n++) {
        start();
        R.is_late = store_is_late;
        alloc.count = 0;
        alloc.fail_at = n;
        live();
        alloc.fail_at = 0;
        R.is_late = false;
        if (R.fatals) { /* it was on disk, and memory could not follow: the process ends, a restart knows
                           it */
            fatal++;
            rig_restart();
        }
        cr_assert(is_same_as_disk(), "allocation %llu", (unsigned long long)n);
        rig_pass(9000);
        rig_worker(W3, "w3"); /* it goes on as if nothing was */
        rig_stop();
    }
    cr_assert_gt(fatal, 0u);
    cr_assert_lt(fatal, total / 2);
}

Test(memory, every_allocation_of_a_life_may_fail) { every_allocation_fails(false); }

Test(memory, every_allocation_of_a_life_with_a_store_that_confirms_late_may_fail)
{
    every_allocation_fails(true);
}

Test(memory, a_broker_that_cannot_be_made)
{
    for (uint64_t n = 1; n < 40; n++) {
        R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}, .keep = 1};
        broker_io_t io = {.send = rig_send,
                          .forget = rig_forget,
                          .commit = rig_commit,
                          .fatal = rig_fatal,
                          .random = rig_random};
        broker_opts_t opts = {.cluster = "t", .endpoint = "e", .data_dir = "d"};
        record_t epoch = {.kind = RECORD_EPOCH, .epoch = 1},
                 adapter = {.kind = RECORD_ADAPTER, .adapter = "policy"};
        record_t version = {.kind = RECORD_VERSION, .adapter = "policy", .version = 1, .step = -1};
        heddle_error_t e;
        alloc.count = 0;
        alloc.fail_at = n;
        on_off(true);
        int rc = broker_new(&opts, &io, &R.b, &e);
        if (!rc) rc = broker_apply(R.b, &epoch);
        if (!rc) rc = broker_apply(R.b, &adapter);
        if (!rc) rc = broker_apply(R.b, &version);
        if (!rc) rc = broker_start(R.b, R.now);
        on_off(false);
        alloc.fail_at = 0;
        cr_assert(rc == HEDDLE_OK || rc == HEDDLE_ERR_NO_MEMORY, "allocation %llu: %d", (unsigned long long)n,
                  rc);
        rig_stop();
    }
}
