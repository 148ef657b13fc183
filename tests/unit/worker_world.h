/* SPDX-License-Identifier: Apache-2.0 */
/* One or more worker nodes, sources, and a broker of a few lines, in one process with a virtual clock: what
 * the node's tests play on. */
#ifndef TESTS_WORKER_WORLD_H
#define TESTS_WORKER_WORLD_H

#include "tests/contract/region_new.h"
#include "core/errors.h"
#include "tests/unit/worker_content.h"
#include "tests/lib/mem.h"
#include "worker/adapter.h"

#include <criterion/criterion.h>

enum { FRAMES_MAX = 4096, EVENTS_MAX = 4096, NODES_MAX = 4, SOURCES_MAX = 6, LEASE_MS = 4000 };

static uint64_t world_now_us = 1000000;
static uint64_t world_now(void *self)
{
    (void)self;
    return world_now_us;
}
static uint64_t world_wall(void *self)
{
    (void)self;
    return 1700000000000ull + world_now_us / 1000;
}
static const clock_ops_t WORLD_CLOCK = {world_now, world_wall, NULL};

/* A worker and what it said. */
typedef struct {
    worker_node_t *node;
    node_io_t io;
    uint64_t token, next_token;
    msg_t said[FRAMES_MAX]; /* decoded; `frames` keeps what they borrow */
    buf_t frames[FRAMES_MAX];
    uint32_t said_count, seen;
    heddle_event_t events[EVENTS_MAX];
    uint32_t event_count;
    uint32_t redials;
    bool deaf;                  /* the broker answers nothing */
    bool cut;                   /* send says GONE */
    uint64_t piece_us, busy_us; /* so long a piece of its work takes, as memory in the making; until then */
    const char *cluster;
    /* The WELCOME to come. */
    uint64_t slots;
    msg_decision_t decision; /* of "policy"; decision 0: none */
    msg_keep_t keep[16];
    uint32_t keep_count;
    const char *refuse; /* JOIN is answered with this code */
} worker_t;

/* A publisher's end: a content, shared. */
typedef struct {
    transfer_t *t;
    region_t *region;
    uint64_t token;
    bytes_t address;
} origin_t;

static worker_t *workers[NODES_MAX];
static origin_t *origins[SOURCES_MAX];

static int world_send(void *self, bytes_t frame)
{
    worker_t *w = self;
    if (w->cut) return HEDDLE_ERR_GONE;
    cr_assert_lt(w->said_count, FRAMES_MAX);
    buf_t *copy = &w->frames[w->said_count];
    buf_add(copy, frame.data, frame.bytes);
    cr_assert_eq(msg_decode(buf_view(copy), &w->said[w->said_count], NULL), HEDDLE_OK);
    w->said_count++;
    return HEDDLE_OK;
}

static void world_redial(void *self, const char *to, const char *key)
{
    (void)to, (void)key;
    ((worker_t *)self)->redials++;
}

static void world_event(void *self, const heddle_event_t *event)
{
    worker_t *w = self;
    cr_assert_lt(w->event_count, EVENTS_MAX);
    w->events[w->event_count++] = *event;
}

static void world_wake(void *self) { (void)self; }

static void node_line(worker_node_t *node, bool up)
{
    worker_node_ops.session(node, &(node_event_t){.kind = up ? SE_CONNECTED : SE_DISCONNECTED}, world_now_us);
}

static void node_frame(worker_node_t *node, bytes_t frame)
{
    worker_node_ops.session(node, &(node_event_t){SE_FRAME, frame}, world_now_us);
}

static void tell_worker(worker_t *w, const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    node_frame(w->node, buf_view(&frame));
    buf_fini(&frame);
}

static void welcome(worker_t *w, uint64_t req)
{
    msg_t m = {.type = MSG_WELCOME};
    w->token = ++w->next_token;
    m.welcome = (msg_welcome_t){.req = req,
                                .token = w->token,
                                .epoch = 1,
                                .lease_ms = LEASE_MS,
                                .slots = w->slots ? w->slots : 3,
                                .keep = w->keep,
                                .keep_count = w->keep_count};
    if (w->decision.decision) m.welcome.adapters = &w->decision, m.welcome.adapter_count = 1;
    tell_worker(w, &m);
}

/* What a broker says by itself. */
static void world_broker(worker_t *w)
{
    for (; w->seen < w->said_count; w->seen++) {
        const msg_t *m = &w->said[w->seen];
        if (w->deaf) continue;
        if (m->type == MSG_HELLO)
            tell_worker(w, &(msg_t){.type = MSG_HELLO_OK,
                                    .hello_ok = {.wire = 1,
                                                 .epoch = 1,
                                                 .lease_ms = LEASE_MS,
                                                 .keep = 1,
                                                 .cluster = w->cluster,
                                                 .heddle = "0"}});
        if (m->type == MSG_JOIN && w->refuse)
            tell_worker(w, &(msg_t){.type = MSG_ERROR,
                                    .error = {.req = m->join.req,
                                              .of = MSG_JOIN,
                                              .retriable = true,
                                              .retry_ms = 500,
                                              .code = w->refuse,
                                              .message = "no"}});
        else if (m->type == MSG_JOIN) welcome(w, m->join.req);
        if (m->type == MSG_HEARTBEAT)
            tell_worker(w, &(msg_t){.type = MSG_HEARTBEAT_OK,
                                    .heartbeat_ok = {m->heartbeat.token, m->heartbeat.seq}});
        if (m->type == MSG_LEAVE)
            tell_worker(w, &(msg_t){.type = MSG_BYE, .bye = {m->leave.token, m->leave.req}});
    }
}

static bool turn_worker(worker_t *w, uint64_t *due_us)
{
    uint32_t before = w->said_count;
    worker_node_ops.readable(w->node); /* whether or not it is */
    uint64_t next = worker_node_ops.tick(w->node, world_now_us);
    world_broker(w);
    tr_event_t events[16];
    int n = w->io.tr->events(w->io.t, world_now_us, events, 16);
    for (int i = 0; i < n; i++) worker_node_ops.transfer(w->node, &events[i], world_now_us);
    bool more = world_now_us >= w->busy_us && worker_node_ops.work(w->node, world_now_us);
    if (more) w->busy_us = world_now_us + w->piece_us;
    world_broker(w);
    if (world_now_us < w->busy_us && next <= world_now_us) next = w->busy_us; /* it is due for its work */
    if (next < *due_us) *due_us = next;
    if (world_now_us < w->busy_us && w->busy_us < *due_us) *due_us = w->busy_us;
    return n > 0 || more || w->said_count > before;
}

/* After everybody's turn: mail that came late in it is due now. */
static void mail_due(transfer_t *t, uint64_t *due_us)
{
    uint64_t due = t ? transfer_mem_ops.deadline(t) : CLOCK_NEVER;
    if (due < *due_us) *due_us = due;
}

/* One turn of everybody; true while something moved. */
static bool world_turn(uint64_t *due_us)
{
    bool moved = false;
    for (int i = 0; i < NODES_MAX; i++)
        if (workers[i] && turn_worker(workers[i], due_us)) moved = true;
    for (int i = 0; i < SOURCES_MAX; i++) {
        if (!origins[i]) continue;
        tr_event_t events[16];
        moved = transfer_mem_ops.events(origins[i]->t, world_now_us, events, 16) > 0 || moved;
    }
    for (int i = 0; i < NODES_MAX; i++) mail_due(workers[i] ? workers[i]->io.t : NULL, due_us);
    for (int i = 0; i < SOURCES_MAX; i++) mail_due(origins[i] ? origins[i]->t : NULL, due_us);
    return moved;
}

/* Until nothing is left to do before `us` from now have passed. */
static void run_for(uint64_t us)
{
    uint64_t end = world_now_us + us;
    for (int turns = 0; turns < 200000; turns++) {
        uint64_t due = CLOCK_NEVER;
        if (world_turn(&due) || due <= world_now_us) continue;
        if (due > end) {
            world_now_us = end;
            return;
        }
        world_now_us = due;
    }
    cr_assert_fail("the world does not come to rest");
}

/* Until `worker` said a message of `type` more than `before` times, at most 30 s. */
static const msg_t *find_said(const worker_t *w, msg_type_t type, uint32_t nth)
{
    for (uint32_t i = 0; i < w->said_count; i++)
        if (w->said[i].type == type && nth-- == 0) return &w->said[i];
    return NULL;
}

static uint32_t count_said(const worker_t *w, msg_type_t type)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->said_count; i++) n += w->said[i].type == type;
    return n;
}

__attribute__((unused)) static const msg_t *last_said(const worker_t *w, msg_type_t type)
{
    uint32_t n = count_said(w, type);
    return n ? find_said(w, type, n - 1) : NULL;
}

static const heddle_event_t *last_event(const worker_t *w, int type)
{
    for (uint32_t i = w->event_count; i-- > 0;)
        if (w->events[i].type == type) return &w->events[i];
    return NULL;
}

__attribute__((unused)) static uint32_t count_events(const worker_t *w, int type)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->event_count; i++) n += w->events[i].type == type;
    return n;
}

static const char *const WORLD_ADAPTERS[] = {"policy", "critic"};
static const char *const WORLD_LABELS[] = {"zone=a"};

static worker_t *worker_start(uint32_t index, tr_mode_t mode, const worker_opts_t *change)
{
    worker_t *w = calloc(1, sizeof *w);
    w->next_token = (index + 1) * 1000;
    w->cluster = "c1";
    w->io = (node_io_t){.self = w,
                        .send = world_send,
                        .redial = world_redial,
                        .event = world_event,
                        .tr = &transfer_mem_ops,
                        .clock = &WORLD_CLOCK};
    cr_assert_eq(
        transfer_mem_ops.open(&(transfer_opts_t){.mode = mode, .clock = &WORLD_CLOCK}, &w->io.t, NULL),
        HEDDLE_OK);
    worker_opts_t opts = change ? *change : (worker_opts_t){0};
    if (!opts.adapters) opts.adapters = WORLD_ADAPTERS, opts.adapter_count = 2;
    opts.name = "w1";
    opts.host = "host";
    opts.labels = WORLD_LABELS;
    opts.label_count = 1;
    opts.seed = index + 1;
    opts.wake = world_wake;
    cr_assert_eq(worker_node_new(&opts, &w->io, &w->node, NULL), HEDDLE_OK);
    workers[index] = w;
    return w;
}

static void worker_stop(uint32_t index)
{
    worker_t *w = workers[index];
    worker_node_destroy(&w->node);
    transfer_mem_ops.close(&w->io.t);
    for (uint32_t i = 0; i < w->said_count; i++) {
        msg_fini(&w->said[i]);
        buf_fini(&w->frames[i]);
    }
    free(w);
    workers[index] = NULL;
}

__attribute__((unused)) static adapter_t *adapter_of(const worker_t *w)
{
    return worker_node_adapter(w->node, 0);
}

static worker_t *worker_joined(uint32_t index, const worker_opts_t *change)
{
    worker_t *w = worker_start(index, TR_MODE_EAGER, change);
    node_line(w->node, true);
    run_for(1000);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_JOINED));
    return w;
}

static share_key_t key_of(uint64_t version)
{
    return (share_key_t){{(uint8_t)version, (uint8_t)(version >> 8), 7}};
}

static origin_t *origin_start(uint32_t index, tr_mode_t mode)
{
    origin_t *o = calloc(1, sizeof *o);
    o->token = 100 + index;
    cr_assert_eq(transfer_mem_ops.open(&(transfer_opts_t){.mode = mode, .clock = &WORLD_CLOCK}, &o->t, NULL),
                 HEDDLE_OK);
    transfer_mem_ops.set_token(o->t, o->token);
    transfer_mem_ops.address(o->t, &o->address);
    origins[index] = o;
    return o;
}

static void origin_serve(origin_t *o, const test_content_t *a, uint64_t version)
{
    if (o->region) {
        transfer_mem_ops.unmap(o->t, o->region);
        region_unref(&o->region);
    }
    cr_assert_eq(region_new(a->content_bytes, &o->region, NULL), HEDDLE_OK);
    memcpy(o->region->base, a->bytes, a->content_bytes);
    transfer_mem_ops.map(o->t, o->region);
    cr_assert_eq(transfer_mem_ops.share(o->t, o->region, key_of(version)), HEDDLE_OK);
    cr_assert_eq(transfer_mem_ops.extend(o->t, key_of(version), 0, a->content_bytes), HEDDLE_OK);
}

static void origin_stop(uint32_t index)
{
    origin_t *o = origins[index];
    transfer_t *t = o->t;
    transfer_mem_ops.close(&o->t);
    if (o->region) {
        transfer_mem_ops.unmap(t, o->region);
        region_unref(&o->region);
    }
    free(o);
    origins[index] = NULL;
}

static void world_end(void)
{
    for (uint32_t i = 0; i < NODES_MAX; i++)
        if (workers[i]) worker_stop(i);
    for (uint32_t i = 0; i < SOURCES_MAX; i++)
        if (origins[i]) origin_stop(i);
}

static msg_source_t source_of(const origin_t *o)
{
    return (
        msg_source_t){.token = o->token, .kind = SOURCE_PUBLISHER, .name = "trainer", .address = o->address};
}

__attribute__((unused)) static msg_source_t source_worker(worker_t *w)
{
    msg_source_t s = {.token = w->token, .kind = SOURCE_WORKER, .name = "w1"};
    transfer_mem_ops.address(w->io.t, &s.address);
    return s;
}

static void announce_until(worker_t *w, const test_content_t *a, uint64_t version, msg_source_t *sources,
                           uint32_t count, uint64_t deadline_ms)
{
    msg_part_t part = {a->payload_bytes, a->manifest_bytes, a->manifest_digest};
    msg_t m = {.type = MSG_ANNOUNCE};
    m.announce = (msg_announce_t){.token = w->token,
                                  .version = version,
                                  .deadline_ms = deadline_ms,
                                  .adapter = "policy",
                                  .digest = a->h1,
                                  .parts = &part,
                                  .part_count = 1,
                                  .sources = sources,
                                  .source_count = count,
                                  .step = (int64_t)version * 10,
                                  .data_bytes = a->data_bytes};
    share_key_t key = key_of(version);
    memcpy(&m.announce.key, &key, sizeof key);
    tell_worker(w, &m);
}

static void announce_to(worker_t *w, const test_content_t *a, uint64_t version, msg_source_t *sources,
                        uint32_t count)
{
    announce_until(w, a, version, sources, count, 60000);
}

static void commit_to(worker_t *w, const test_content_t *a, uint64_t version, uint64_t decision)
{
    tell_worker(w, &(msg_t){.type = MSG_COMMIT, .commit = {w->token, version, decision, "policy", a->h1}});
}

/* Announces, fetches, commits: the whole way. */
__attribute__((unused)) static void bring_version(worker_t *w, origin_t *o, const test_content_t *a,
                                                  uint64_t version, uint64_t decision)
{
    origin_serve(o, a, version);
    msg_source_t source = source_of(o);
    announce_to(w, a, version, &source, 1);
    run_for(100000);
    commit_to(w, a, version, decision);
    run_for(1000);
}

/* 0 when the slot's bytes are those of the content. */
__attribute__((unused)) static bool serves(worker_t *w, const test_content_t *a, uint64_t version)
{
    slot_t *held = NULL;
    if (slots_acquire(worker_node_slots(w->node), 0, 0, &held)) return false;
    bool same = held->view.version == version && digest_equal(&held->h1, &a->h1) &&
                !memcmp(held->parts[0].region->view, a->bytes, a->content_bytes);
    slot_release(&held);
    return same;
}

#endif
