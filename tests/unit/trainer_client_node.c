/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node between a broker made of hand-written frames and a worker that is a mem
 * transfer, in virtual time: what it says, serves, reports and refuses. */
#include "core/errors.h"
#include "proto/value.h"
#include "trainer_client/node.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define MS 1000ull
#define SECOND 1000000ull
#define LEASE_MS 4000u
#define PUBLISHED_US (50 * SECOND)
enum { TOKEN = 900, WORKER = 77, FRAMES = 64, EVENTS = 128 };

static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":4,\"use_rslora\":true,"
                             "\"base_model_name_or_path\":\"base\"}";

typedef struct {
    uint64_t now, token, changes;
    bool line_is_full, line_is_down, redialled;
    transfer_t *t, *worker_t;
    region_t *worker_region;
    node_io_t io;
    publisher_node_t *node;
    buf_t frames[FRAMES];
    msg_t sent[FRAMES];
    int sent_count;
    heddle_event_t events[EVENTS];
    int event_count;
} world_t;
static world_t w;

/* -- the shell's side ------------------------------------------------------------------------- */

static uint64_t virtual_now(void *self) { return ((world_t *)self)->now; }
static const clock_ops_t CLOCK = {virtual_now, virtual_now, &w};

static int take_frame(void *self, bytes_t frame)
{
    (void)self;
    if (w.line_is_down) return HEDDLE_ERR_GONE;
    if (w.line_is_full) return HEDDLE_ERR_SLOW;
    cr_assert_lt(w.sent_count, FRAMES);
    heddle_error_t error;
    buf_add(&w.frames[w.sent_count], frame.data, frame.bytes);
    cr_assert_eq(msg_decode(buf_view(&w.frames[w.sent_count]), &w.sent[w.sent_count], &error),
                 HEDDLE_OK, "%s", error.message);
    w.sent_count++;
    return HEDDLE_OK;
}
static void note_redial(void *self) { ((world_t *)self)->redialled = true; }
static void note_event(void *self, const heddle_event_t *e)
{
    (void)self;
    cr_assert_lt(w.event_count, EVENTS);
    w.events[w.event_count++] = *e;
}
static void note_change(void *self) { ((world_t *)self)->changes++; }

static void forget_sent(void)
{
    for (int i = 0; i < w.sent_count; i++) {
        msg_fini(&w.sent[i]);
        buf_fini(&w.frames[i]);
    }
    w.sent_count = 0;
}

static transfer_t *open_transfer(uint64_t token)
{
    transfer_opts_t opts = {.clock = &CLOCK};
    heddle_error_t error;
    transfer_t *t;
    cr_assert_eq(transfer_mem_ops.open(&opts, &t, &error), HEDDLE_OK);
    transfer_mem_ops.set_token(t, token);
    return t;
}

static void open_world_as(bool takeover)
{
    w = (world_t){.now = PUBLISHED_US, .token = TOKEN};
    w.t = open_transfer(1);
    w.worker_t = open_transfer(WORKER);
    w.io = (node_io_t){.self = &w, .send = take_frame, .redial = note_redial, .event = note_event,
                       .tr = &transfer_mem_ops, .t = w.t, .clock = &CLOCK};
    publisher_node_opts_t opts = {.adapter = "policy", .writer = "trainer-1", .host = "host-1",
                                  .takeover = takeover, .life = {{7}}, .pid = 5, .seed = 3,
                                  .changed = note_change, .self = &w};
    cr_assert_eq(publisher_node_new(&opts, &w.io, &w.node), HEDDLE_OK);
}
static void open_world(void) { open_world_as(false); }

static void close_world(void)
{
    publisher_node_destroy(&w.node);
    if (w.worker_region) transfer_mem_ops.unmap(w.worker_t, w.worker_region);
    transfer_mem_ops.close(&w.worker_t);
    transfer_mem_ops.close(&w.t);
    region_unref(&w.worker_region);
    forget_sent();
}

/* -- the broker's side ------------------------------------------------------------------------ */

static void say(const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    publisher_node_ops.frame(w.node, buf_view(&frame), w.now);
    buf_fini(&frame);
}
static void line(bool up) { w.line_is_down = !up; publisher_node_ops.line(w.node, up, w.now); }
static uint64_t tick(void) { return publisher_node_ops.tick(w.node, w.now); }

static const msg_t *sent(msg_type_t type)
{
    for (int i = w.sent_count; i-- > 0;)
        if (w.sent[i].type == type) return &w.sent[i];
    return NULL;
}
static int count_sent(msg_type_t type)
{
    int n = 0;
    for (int i = 0; i < w.sent_count; i++) n += w.sent[i].type == type;
    return n;
}
static const heddle_event_t *event(heddle_event_type_t type)
{
    for (int i = w.event_count; i-- > 0;)
        if (w.events[i].type == (int)type) return &w.events[i];
    return NULL;
}
static int count_events(heddle_event_type_t type)
{
    int n = 0;
    for (int i = 0; i < w.event_count; i++) n += w.events[i].type == (int)type;
    return n;
}

static void hello_ok(void)
{
    msg_t m = {.type = MSG_HELLO_OK, .hello_ok = {.wire = 1, .epoch = 2, .lease_ms = LEASE_MS,
                                                  .keep = 1, .cluster = "lab", .heddle = "0"}};
    say(&m);
}
static void welcome(uint64_t keep_version)
{
    msg_keep_t keep = {"policy", keep_version, {{1}}};
    msg_t m = {.type = MSG_WELCOME};
    m.welcome = (msg_welcome_t){.req = sent(MSG_OPEN)->open.req, .token = w.token, .epoch = 2,
                                .lease_ms = LEASE_MS, .keep = &keep, .keep_count = keep_version != 0};
    say(&m);
}
static void refuse(msg_type_t of, uint64_t req, int code, bool retriable)
{
    msg_t m = {.type = MSG_ERROR, .error = {.of = of, .req = req, .code = heddle_err_name(code),
                                            .message = "policy has a writer: ann on h2, pid 9",
                                            .retriable = retriable}};
    say(&m);
}
static void join(void)
{
    line(true);
    cr_assert_not_null(sent(MSG_HELLO));
    hello_ok();
    cr_assert_not_null(sent(MSG_OPEN));
    welcome(0);
    cr_assert_not_null(event(HEDDLE_EVENT_JOINED));
}
/* A new connection, up to the next WELCOME. */
static void rejoin(uint64_t keep_version)
{
    line(false);
    line(true);
    hello_ok();
    w.token++;
    welcome(keep_version);
}
static msg_published_t answer(uint64_t version, const char *reason)
{
    const msg_publish_t *p = &sent(MSG_PUBLISH)->publish;
    return (msg_published_t){.req = p->req, .version = version, .created = !*reason,
                             .adapter = "policy", .reason = reason, .digest = p->digest,
                             .key = {{(uint8_t)version, 9}}};
}
static void published_as(uint64_t version, const char *reason)
{
    msg_t m = {.type = MSG_PUBLISHED, .published = answer(version, reason)};
    say(&m);
}
static void rollout(uint64_t version, const char *state, int code, uint32_t eligible,
                    uint32_t staged, uint32_t active)
{
    msg_missing_t missing = {"w2", "fetch", "gone", "the source went"};
    msg_t m = {.type = MSG_ROLLOUT};
    m.rollout = (msg_rollout_t){.token = w.token, .version = version, .decision = active ? 1 : 0,
                                .deadline_ms = 60000, .eligible_count = eligible,
                                .staged_count = staged, .active_count = active, .adapter = "policy",
                                .state = state, .code = code ? heddle_err_name(code) : "",
                                .message = code ? "because" : "", .missing = &missing,
                                .missing_count = staged < eligible};
    say(&m);
}

/* -- the application's side ------------------------------------------------------------------- */

typedef struct { pack_t *pack; sealed_t sealed; int slot; region_t *region; char id[40]; } item_t;

static int take(item_t *it)
{
    return publisher_node_take(w.node, pack_bytes(it->pack), &it->slot, &it->region);
}

static void make(item_t *it, uint64_t elements)
{
    static uint64_t dims[2];
    dims[0] = 4;
    dims[1] = elements;
    heddle_tensor_t tensors[] = {{.size = sizeof *tensors, .name = "m.lora_B.weight",
                                  .dtype = HEDDLE_DTYPE_F32, .ndim = 2, .dims = dims},
                                 {.size = sizeof *tensors, .name = "m.lora_A.weight",
                                  .dtype = HEDDLE_DTYPE_BF16, .ndim = 2, .dims = dims}};
    pack_input_t in = {.tensors = tensors, .count = 2, .config = bytes_of(CONFIG,
            sizeof CONFIG - 1), .metadata = bytes_of("{\"format\":\"pt\"}", 15)};
    heddle_error_t error;
    cr_assert_eq(pack_new(&in, &it->pack, &error), HEDDLE_OK, "%s", error.message);
}

static void fill(item_t *it, uint8_t value)
{
    heddle_error_t error;
    if (!it->region || it->region->bytes < pack_bytes(it->pack)) {
        cr_assert_eq(region_new(pack_bytes(it->pack), &it->region, &error), HEDDLE_OK);
        cr_assert_eq(publisher_node_fit(w.node, it->slot, it->region), HEDDLE_OK);
    }
    pack_lay(it->pack, it->region->base);
    for (uint32_t i = 0; i < 2; i++)
        memset(pack_tensor(it->pack, i), value + (int)i, it->pack->layout.sizes[i]);
    cr_assert_eq(pack_seal(it->pack, &it->sealed, &error), HEDDLE_OK);
}

static void publish(item_t *it, const char *id)
{
    snprintf(it->id, sizeof it->id, "%s", id ? id : "r-1");
    static const char *const META[] = {"lr=3e-4", "run=a", NULL};
    publish_request_t r = {.slot = it->slot, .pack = it->pack, .sealed = &it->sealed,
                           .is_random_id = !id, .start_us = w.now,
                           .opts = {.step = 12, .request_id = it->id, .deadline_ms = 60000,
                                    .meta = META}};
    publisher_node_publish(w.node, &r, w.now);
}

static int result(publish_result_t *ret)
{
    heddle_error_t error = {0};
    int rc = publisher_node_result(w.node, ret, &error);
    if (rc && rc != HEDDLE_ERR_AGAIN) cr_assert_eq(rc, error.code);
    return rc;
}

/* A version of `value` bytes, published, recorded and served. */
static void serve(item_t *it, uint64_t version, uint8_t value)
{
    publish_result_t r;
    make(it, 3000);
    cr_assert_eq(take(it), HEDDLE_OK);
    fill(it, value);
    publish(it, "id-1");
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN);
    published_as(version, "");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_eq(r.version, version);
}

static int judge(uint64_t version, heddle_phase_t phase, int kind, uint32_t n, heddle_error_t *ret_error)
{
    wait_for_t want = {phase, {.kind = kind, .n = n}};
    *ret_error = (heddle_error_t){0};
    return publisher_node_judge(w.node, version, &want, ret_error);
}
static const heddle_report_t *report(uint64_t version)
{
    return &reports_find(publisher_node_reports(w.node), version)->report;
}

/* -- the worker's side ------------------------------------------------------------------------ */

/* Moves mail both ways until nobody has any; gives the node its events, and returns the kind of the
 * worker's last. */
static int drive(tr_event_t *ret_event)
{
    int last = -1;
    for (bool more = true; more;) {
        tr_event_t e[16];
        int n = transfer_mem_ops.events(w.t, w.now, e, 16), k = 0;
        for (int i = 0; i < n; i++) publisher_node_ops.transfer(w.node, &e[i], w.now);
        k = transfer_mem_ops.events(w.worker_t, w.now, e, 16);
        for (int i = 0; i < k; i++) {
            last = (int)e[i].kind;
            *ret_event = e[i];
        }
        more = n || k || transfer_mem_ops.deadline(w.t) <= w.now
            || transfer_mem_ops.deadline(w.worker_t) <= w.now;
    }
    return last;
}

static void ask(uint64_t version, uint64_t bytes)
{
    heddle_error_t error;
    bytes_t address;
    uint64_t ask_id;
    if (!w.worker_region) {
        cr_assert_eq(region_new(1 << 20, &w.worker_region, &error), HEDDLE_OK);
        cr_assert_eq(transfer_mem_ops.map(w.worker_t, w.worker_region), HEDDLE_OK);
    }
    transfer_mem_ops.address(w.t, &address);
    peer_ref_t from = {w.token, address};
    share_key_t key = {{(uint8_t)version, 9}};
    cr_assert_eq(transfer_mem_ops.ask(w.worker_t, &from, key, 0, (uint32_t)bytes, w.worker_region,
                                      0, &ask_id), HEDDLE_OK);
}

/* The whole arena of a version, as a worker gets it. */
static int fetch(uint64_t version, uint64_t bytes)
{
    tr_event_t e = {0};
    ask(version, bytes);
    return drive(&e);
}

/* -- opening ---------------------------------------------------------------------------------- */

Test(node, hello_open_welcome, .init = open_world, .fini = close_world)
{
    heddle_error_t error;
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_ERR_AGAIN);
    cr_assert_eq(error.code, 0);
    join();
    const msg_t *hello = sent(MSG_HELLO), *open = sent(MSG_OPEN);
    cr_assert_eq(hello->hello.role, ROLE_PUBLISHER);
    cr_assert_str_eq(hello->hello.host, "host-1");
    cr_assert_str_eq(open->open.adapter, "policy");
    cr_assert_str_eq(open->open.writer, "trainer-1");
    cr_assert_str_eq(open->open.backend, "mem");
    cr_assert_gt(open->open.address.bytes, 0);
    cr_assert_eq(open->open.serving, 0);
    cr_assert_eq(open->open.prev_token, 0);
    cr_assert_not(open->open.takeover);
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_OK);
    cr_assert_eq(event(HEDDLE_EVENT_JOINED)->token, TOKEN);
    cr_assert_gt(w.changes, 0);
}

Test(node, another_writer_is_named_and_takeover_is_said_once, .fini = close_world)
{
    open_world_as(true);
    heddle_error_t error;
    line(true);
    hello_ok();
    cr_assert(sent(MSG_OPEN)->open.takeover);
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_WRITER_HELD, true);
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_ERR_WRITER_HELD);
    cr_assert(strstr(error.message, "ann"));
    cr_assert_eq(event(HEDDLE_EVENT_REFUSED)->code, HEDDLE_ERR_WRITER_HELD);
    w.now += 2 * SECOND;
    tick();
    hello_ok();
    welcome(0);
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_OK);
    rejoin(0);
    cr_assert_not(sent(MSG_OPEN)->open.takeover);
    cr_assert_eq(sent(MSG_OPEN)->open.prev_token, TOKEN);
}

Test(node, a_refusal_that_may_pass_is_told_and_tried_again, .init = open_world, .fini = close_world)
{
    heddle_error_t error;
    line(true);
    hello_ok();
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_NO_SPACE, true);
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_ERR_AGAIN);
    cr_assert_eq(error.code, HEDDLE_ERR_NO_SPACE);
    refuse(MSG_OPEN, 99, HEDDLE_ERR_DENIED, false);
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_ERR_AGAIN, "not of our OPEN");
}

Test(node, nobody_answers_leads_to_a_redial, .init = open_world, .fini = close_world)
{
    line(true);
    for (int i = 0; i < 10 && !w.redialled; i++) {
        w.now = tick();
        tick();
    }
    cr_assert(w.redialled);
    cr_assert_eq(count_sent(MSG_HELLO), SESSION_HELLOS);
}

Test(node, garbage_changes_nothing, .init = open_world, .fini = close_world)
{
    join();
    publisher_node_ops.frame(w.node, bytes_of("\xc1garbage", 8), w.now);
    publisher_node_ops.frame(w.node, bytes_of("", 0), w.now);
    msg_t commit = {.type = MSG_COMMIT, .commit = {.token = w.token, .version = 1, .decision = 1,
                                                   .adapter = "policy"}};
    say(&commit);
    heddle_error_t error;
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_OK);
}

/* -- publishing ------------------------------------------------------------------------------- */

Test(node, publish_says_all_of_it, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    join();
    serve(&it, 3, 1);
    const msg_publish_t *p = &sent(MSG_PUBLISH)->publish;
    cr_assert_eq(p->token, TOKEN);
    cr_assert_str_eq(p->request_id, "id-1");
    cr_assert_str_eq(p->adapter, "policy");
    cr_assert_str_eq(p->kind, "lora");
    cr_assert_str_eq(p->base_model, "base");
    cr_assert_eq(p->step, 12);
    cr_assert_eq(p->deadline_ms, 60000);
    cr_assert_eq(p->feature_count, 1);
    cr_assert_str_eq(p->features[0], "rslora");
    cr_assert_eq(p->meta_count, 2);
    cr_assert_str_eq(p->meta[0].key, "lr");
    cr_assert_str_eq(p->meta[0].value, "3e-4");
    cr_assert_eq(p->tensor_count, 2);
    cr_assert_eq(p->data_bytes, 4 * 3000 * 6);
    cr_assert_eq(p->chunk_count, it.sealed.chunk_count);
    cr_assert_eq(p->config.bytes, sizeof CONFIG - 1);
    cr_assert_eq(p->part_count, 1);
    cr_assert(digest_equal(&p->digest, &it.sealed.digest));
    pack_destroy(&it.pack);
}

Test(node, what_is_served_is_the_arena_that_was_published, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    heddle_error_t error;
    manifest_t m;
    join();
    serve(&it, 3, 1);
    cr_assert_eq(fetch(3, it.sealed.arena_bytes), TR_ARRIVED);
    const uint8_t *got = w.worker_region->base;
    bytes_t encoded = bytes_of(got + manifest_offset(it.sealed.part.region_bytes),
                               it.sealed.part.manifest_bytes);
    digest_t digest = digest_blake2b(encoded.data, encoded.bytes);
    cr_assert(digest_equal(&digest, &it.sealed.part.manifest_digest));
    cr_assert_eq(manifest_decode(encoded, &m, &error), HEDDLE_OK, "%s", error.message);
    cr_assert_eq(m.tensor_count, 2);
    cr_assert_eq(m.chunk_count, it.sealed.chunk_count);
    h1_t h1;
    manifest_h1_begin(&m, &h1);
    for (uint64_t at = 0; at < m.region_bytes; at += 4096) {
        uint64_t leaf;
        digest_leaves(got + at, 4096, &leaf);
        h1_add_leaves(&h1, &leaf, 1);
    }
    digest_t h = h1_final(&h1);
    cr_assert(digest_equal(&h, &it.sealed.digest));
    manifest_fini(&m);
    pack_destroy(&it.pack);
}

Test(node, an_ask_that_comes_before_published_stands, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    tr_event_t e;
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    ask(3, 4096);
    cr_assert_neq(drive(&e), TR_ARRIVED);
    published_as(3, "");
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_eq(result(&r), HEDDLE_OK);
    pack_destroy(&it.pack);
}

Test(node, publish_waits_for_the_broker_and_is_said_again_until_it_is_answered, .init = open_world,
     .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    cr_assert_null(sent(MSG_PUBLISH));
    join();
    cr_assert_eq(count_sent(MSG_PUBLISH), 1);
    uint64_t first = sent(MSG_PUBLISH)->publish.req;
    rejoin(0);
    cr_assert_eq(count_sent(MSG_PUBLISH), 2);
    const msg_publish_t *again = &sent(MSG_PUBLISH)->publish;
    cr_assert_str_eq(again->request_id, "id-1");
    cr_assert_eq(again->token, w.token);
    msg_t late = {.type = MSG_PUBLISHED, .published = answer(3, "")};
    late.published.req = first;
    say(&late);
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN, "an answer to a request that is over");
    published_as(3, "replayed");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert(r.replayed && !r.unchanged);
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED, "the broker may still be staging it");
    rejoin(3);
    cr_assert_eq(count_sent(MSG_PUBLISH), 2, "what was answered is not said again");
    pack_destroy(&it.pack);
}

Test(node, a_replay_of_our_own_random_id_is_a_creation, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, NULL);
    rejoin(0);
    published_as(3, "replayed");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_not(r.replayed);
    pack_destroy(&it.pack);
}

Test(node, unchanged_is_served_where_the_broker_gives_its_key, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    msg_t m = {.type = MSG_PUBLISHED, .published = answer(2, "unchanged")};
    m.published.key = (key16_t){{0}};
    say(&m);
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert(r.unchanged && !r.replayed);
    cr_assert_eq(r.version, 2);
    rejoin(0);
    cr_assert_eq(sent(MSG_OPEN)->open.serving, 0);
    region_t *before = it.region;
    cr_assert_eq(take(&it), HEDDLE_OK);
    cr_assert_eq(it.region, before, "warm");
    fill(&it, 1);
    publish(&it, "id-2");
    published_as(2, "unchanged");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED, "its publisher may have died before anybody had it");
    pack_destroy(&it.pack);
}

Test(node, a_version_that_is_served_already_keeps_its_region, .init = open_world, .fini = close_world)
{
    item_t a = {0}, b = {0};
    publish_result_t r;
    join();
    serve(&a, 3, 1);
    make(&b, 3000);
    take(&b);
    fill(&b, 1);
    publish(&b, "id-1");
    published_as(3, "replayed");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED);
    cr_assert_eq(take(&b), HEDDLE_OK, "the second region is free");
    pack_destroy(&a.pack);
    pack_destroy(&b.pack);
}

Test(node, a_full_queue_is_tried_again_soon, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    w.line_is_full = true;
    publish(&it, "id-1");
    cr_assert_null(sent(MSG_PUBLISH));
    uint64_t due = tick();
    cr_assert_leq(due, w.now + 20 * MS);
    w.line_is_full = false;
    w.now = due;
    tick();
    cr_assert_eq(count_sent(MSG_PUBLISH), 1);
    published_as(3, "");
    cr_assert_eq(result(&r), HEDDLE_OK);
    pack_destroy(&it.pack);
}

Test(node, an_error_of_the_broker_ends_the_request, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    refuse(MSG_PUBLISH, sent(MSG_PUBLISH)->publish.req + 1, HEDDLE_ERR_UNCHANGED, false);
    refuse(MSG_HEARTBEAT, sent(MSG_PUBLISH)->publish.req, HEDDLE_ERR_UNCHANGED, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN);
    refuse(MSG_PUBLISH, sent(MSG_PUBLISH)->publish.req, HEDDLE_ERR_UNCHANGED, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_UNCHANGED);
    region_t *before = it.region;
    cr_assert_eq(take(&it), HEDDLE_OK);
    cr_assert_eq(it.region, before);
    fill(&it, 2);
    publish(&it, "id-2");
    refuse(MSG_PUBLISH, 0, HEDDLE_ERR_LIMIT, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_LIMIT, "the broker could not read our req");
    pack_destroy(&it.pack);
}

Test(node, published_for_other_bytes_is_refused, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    msg_t m = {.type = MSG_PUBLISHED, .published = answer(3, "")};
    m.published.digest.b[0] ^= 1;
    say(&m);
    cr_assert_eq(result(&r), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(fetch(3, 4096), -1, "nothing is served under that key");
    cr_assert_eq(take(&it), HEDDLE_OK);
    pack_destroy(&it.pack);
}

Test(node, a_refusal_for_good_ends_the_request, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    line(false);
    publish(&it, "id-1");
    line(true);
    refuse(MSG_HELLO, 0, HEDDLE_ERR_WIRE_VERSION, false);
    cr_assert_eq(result(&r), HEDDLE_ERR_WIRE_VERSION);
    pack_destroy(&it.pack);
}

Test(node, abandoning_tells_what_it_waited_for, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    heddle_error_t error;
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    cr_assert_eq(publisher_node_abandon(w.node, &r, &error), HEDDLE_ERR_UNAVAILABLE);
    cr_assert_str_eq(error.phase, "commit");
    join();
    cr_assert_null(sent(MSG_PUBLISH), "given up");
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    cr_assert_eq(publisher_node_abandon(w.node, &r, &error), HEDDLE_ERR_DEADLINE);
    published_as(3, "");
    cr_assert_null(reports_find(publisher_node_reports(w.node), 3), "too late");
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    published_as(3, "replayed");
    cr_assert_eq(publisher_node_abandon(w.node, &r, &error), HEDDLE_OK, "just in time");
    cr_assert_eq(r.version, 3);
    pack_destroy(&it.pack);
}

/* -- regions ---------------------------------------------------------------------------------- */

static void release(uint64_t version)
{
    msg_t m = {.type = MSG_RELEASE, .release = {.token = w.token, .version = version, .adapter = "policy"}};
    say(&m);
}

Test(node, two_regions_take_turns_and_stay_warm, .init = open_world, .fini = close_world)
{
    item_t it[5] = {{0}};
    tr_counters_t c;
    tr_event_t e;
    join();
    for (uint64_t v = 1; v <= 5; v++) {
        item_t *i = &it[v - 1];
        publish_result_t r;
        make(i, 3000);
        int rc = take(i);
        if (rc == HEDDLE_ERR_AGAIN) {
            cr_assert_geq(v, 3);
            drive(&e);
            rc = take(i);
        }
        cr_assert_eq(rc, HEDDLE_OK);
        fill(i, (uint8_t)v);
        publish(i, "id");
        published_as(v, "");
        cr_assert_eq(result(&r), HEDDLE_OK);
        if (v > 1) cr_assert_eq(fetch(v - 1, 4096), TR_ARRIVED, "the one before is served on");
        if (v > 2) cr_assert_eq(fetch(v - 2, 4096), TR_REFUSED);
        if (v > 2) cr_assert_eq(i->region, it[v - 3].region);
        if (v > 1) release(v - 1);
        pack_destroy(&i->pack);
    }
    transfer_mem_ops.counters(w.t, &c);
    cr_assert_eq(c.maps, 2);
}

Test(node, a_region_is_not_reused_while_its_bytes_are_on_their_way, .init = open_world,
     .fini = close_world)
{
    item_t a = {0}, b = {0}, c = {0};
    tr_event_t e;
    join();
    serve(&a, 1, 1);
    serve(&b, 2, 2);
    release(1);
    ask(1, 4096);
    tr_event_t none[4];
    transfer_mem_ops.events(w.worker_t, w.now, none, 4); /* the ask leaves */
    transfer_mem_ops.events(w.t, w.now, none, 4);        /* the bytes leave: not there yet */
    make(&c, 3000);
    cr_assert_eq(take(&c), HEDDLE_ERR_AGAIN);
    uint64_t changes = w.changes;
    cr_assert_eq(drive(&e), TR_ARRIVED);
    cr_assert_gt(w.changes, changes, "who waits is woken");
    cr_assert_eq(take(&c), HEDDLE_OK);
    cr_assert_eq(c.region, a.region);
    item_t third = {.pack = c.pack}, more = {.pack = c.pack};
    cr_assert_eq(take(&third), HEDDLE_OK);
    cr_assert_null(third.region, "the other is needed: memory for one more");
    cr_assert_eq(take(&more), HEDDLE_ERR_AGAIN, "the other is served");
    drive(&e);
    cr_assert_eq(take(&more), HEDDLE_OK);
    cr_assert_eq(take(&more), HEDDLE_ERR_NO_SLOT);
    pack_destroy(&a.pack);
    pack_destroy(&b.pack);
    pack_destroy(&c.pack);
}

Test(node, a_released_region_goes_before_one_that_is_needed, .init = open_world, .fini = close_world)
{
    item_t a = {0}, b = {0}, c = {0};
    tr_event_t e;
    join();
    serve(&a, 1, 1);
    serve(&b, 2, 2);
    release(2);
    release(8);
    cr_assert_eq(count_events(HEDDLE_EVENT_RELEASED), 1);
    cr_assert_eq(event(HEDDLE_EVENT_RELEASED)->version, 2);
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED, "its memory stays, so it is served on");
    make(&c, 3000);
    cr_assert_eq(take(&c), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(take(&c), HEDDLE_OK);
    cr_assert_eq(c.region, b.region);
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    pack_destroy(&a.pack);
    pack_destroy(&b.pack);
    pack_destroy(&c.pack);
}

/* The first is on its way to workers, the last comes next: what lies between will be superseded. */
Test(node, a_third_region_where_both_are_needed_and_no_fourth, .init = open_world, .fini = close_world)
{
    item_t it[3] = {{0}}, next = {0};
    tr_event_t e;
    tr_counters_t c;
    join();
    for (uint64_t v = 1; v <= 3; v++) serve(&it[v - 1], v, (uint8_t)v);
    for (uint64_t v = 4; v <= 9; v++) {
        pack_destroy(&next.pack);
        make(&next, 3000);
        cr_assert_eq(take(&next), HEDDLE_ERR_AGAIN);
        drive(&e);
        cr_assert_eq(fetch(1, 4096), TR_ARRIVED, "version 1 is on its way still");
        cr_assert_eq(fetch(v - 2, 4096), TR_REFUSED);
        cr_assert_eq(fetch(v - 1, 4096), TR_ARRIVED);
        pack_destroy(&next.pack);
        serve(&next, v, (uint8_t)v);
    }
    transfer_mem_ops.counters(w.t, &c);
    cr_assert_eq(c.maps, 3);
    for (int i = 0; i < 3; i++) pack_destroy(&it[i].pack);
    pack_destroy(&next.pack);
}

Test(node, a_decided_version_goes_before_one_that_is_on_its_way, .init = open_world, .fini = close_world)
{
    item_t it[3] = {{0}}, next = {0};
    tr_event_t e;
    join();
    for (uint64_t v = 1; v <= 3; v++) serve(&it[v - 1], v, (uint8_t)v);
    msg_t m = {.type = MSG_ROLLOUT};
    m.rollout = (msg_rollout_t){.token = w.token, .adapter = "policy", .version = 1, .state = "active",
                                .decision = 1, .eligible_count = 2, .staged_count = 1};
    say(&m);
    make(&next, 3000);
    cr_assert_eq(take(&next), HEDDLE_ERR_AGAIN);
    drive(&e);
    cr_assert_eq(fetch(1, 4096), TR_REFUSED, "as-ready: others have it");
    cr_assert_eq(fetch(2, 4096), TR_ARRIVED);
    for (int i = 0; i < 3; i++) pack_destroy(&it[i].pack);
    pack_destroy(&next.pack);
}

Test(node, a_larger_adapter_gets_a_larger_region, .init = open_world, .fini = close_world)
{
    item_t a = {0}, b = {0};
    tr_event_t e;
    join();
    serve(&a, 1, 1);
    make(&b, 30000);
    cr_assert_eq(take(&b), HEDDLE_OK);
    cr_assert_null(b.region);
    fill(&b, 2);
    publisher_node_give_back(w.node, b.slot);
    pack_destroy(&b.pack);
    make(&b, 60000);
    cr_assert_eq(take(&b), HEDDLE_OK);
    cr_assert_null(b.region, "the smaller one is gone before the larger one is made");
    fill(&b, 3);
    publisher_node_give_back(w.node, b.slot);
    pack_destroy(&b.pack);
    make(&b, 100);
    cr_assert_eq(take(&b), HEDDLE_OK);
    cr_assert_geq(b.region->bytes, 4 * 60000 * 6, "a smaller adapter uses what is there");
    fill(&b, 9);
    const uint8_t *at = b.region->base;
    for (uint32_t i = 0; i < 2; i++)
        for (uint64_t k = b.pack->layout.sizes[i]; k % 4096; k++)
            cr_assert_eq(at[b.pack->layout.places[i] + k], 0, "padding is zero again");
    drive(&e);
    pack_destroy(&a.pack);
    pack_destroy(&b.pack);
}

/* -- sessions --------------------------------------------------------------------------------- */

Test(node, heartbeats_hold_the_lease, .init = open_world, .fini = close_world)
{
    join();
    for (int i = 1; i <= 20; i++) {
        w.now = tick();
        tick();
        cr_assert_eq(count_sent(MSG_HEARTBEAT), i);
        const msg_heartbeat_t *hb = &sent(MSG_HEARTBEAT)->heartbeat;
        cr_assert_eq(hb->token, TOKEN);
        msg_t ok = {.type = MSG_HEARTBEAT_OK, .heartbeat_ok = {hb->token, hb->seq}};
        say(&ok);
    }
    cr_assert_null(event(HEDDLE_EVENT_LOST_BROKER));
}

Test(node, a_lapsed_session_rejoins_and_restates_what_it_serves, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    join();
    serve(&it, 3, 1);
    w.now += LEASE_MS * MS;
    tick();
    cr_assert_not_null(event(HEDDLE_EVENT_LOST_BROKER));
    hello_ok();
    const msg_open_t *open = &sent(MSG_OPEN)->open;
    cr_assert_eq(open->prev_token, TOKEN);
    cr_assert_eq(open->epoch, 2);
    cr_assert_eq(open->serving, 3);
    w.token++;
    welcome(3);
    cr_assert_eq(count_events(HEDDLE_EVENT_JOINED), 2);
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED);
    rollout(3, "active", 0, 1, 1, 1);
    cr_assert_eq(report(3)->active_count, 1);
    pack_destroy(&it.pack);
}

Test(node, what_welcome_does_not_list_is_served_no_longer, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    join();
    serve(&it, 3, 1);
    rejoin(0);
    cr_assert_eq(fetch(3, 4096), TR_REFUSED);
    rejoin(0);
    cr_assert_eq(sent(MSG_OPEN)->open.serving, 0);
    pack_destroy(&it.pack);
}

Test(node, a_token_that_the_broker_forgot_is_rejoined, .init = open_world, .fini = close_world)
{
    heddle_error_t error;
    join();
    msg_t m = {.type = MSG_ERROR, .error = {.token = TOKEN, .of = MSG_HEARTBEAT,
                                            .code = "not_found", .message = "unknown"}};
    say(&m);
    hello_ok();
    w.token++;
    welcome(0);
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_OK);
    cr_assert_null(event(HEDDLE_EVENT_FENCED));
}

/* Every way to be fenced ends the same. */
static void is_fenced(void)
{
    heddle_error_t error;
    publish_result_t r;
    item_t it = {0};
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_ERR_FENCED);
    cr_assert_eq(count_events(HEDDLE_EVENT_FENCED), 1);
    cr_assert(strstr(error.message, "ann"), "%s", error.message);
    forget_sent();
    line(false);
    line(true);
    w.now += 60 * SECOND;
    tick();
    cr_assert_eq(w.sent_count, 0, "it does not come back");
    make(&it, 3000);
    int rc = take(&it);
    if (rc == HEDDLE_ERR_AGAIN) {
        tr_event_t e;
        drive(&e);
        rc = take(&it);
    }
    cr_assert_eq(rc, HEDDLE_OK);
    fill(&it, 1);
    publish(&it, "id-9");
    cr_assert_eq(result(&r), HEDDLE_ERR_FENCED);
    pack_destroy(&it.pack);
}

static void fencing_error(msg_type_t of)
{
    msg_t m = {.type = MSG_ERROR, .error = {.token = of == MSG_PUBLISH ? 0 : TOKEN, .of = of,
                                            .code = "fenced", .message = "taken over by ann",
                                            .req = of == MSG_PUBLISH
                                            ? sent(MSG_PUBLISH)->publish.req : 0}};
    say(&m);
}

Test(node, a_takeover_fences, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    heddle_error_t error;
    join();
    serve(&it, 3, 1);
    rollout(3, "staging", 0, 2, 1, 0);
    fencing_error((msg_type_t)0);
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_COUNT, 1, &error), HEDDLE_OK,
                 "what was reached stays so");
    cr_assert_eq(sent(MSG_QUERY)->query.version, 3, "and the rest is asked");
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    w.now += INQUIRY_US;
    tick();
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_FENCED);
    is_fenced();
    pack_destroy(&it.pack);
}

Test(node, a_publish_that_is_told_fenced_fences, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    publish(&it, "id-1");
    fencing_error(MSG_PUBLISH);
    cr_assert_eq(result(&r), HEDDLE_ERR_FENCED);
    is_fenced();
    pack_destroy(&it.pack);
}

Test(node, a_rejoin_that_finds_another_writer_fences, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    publish_result_t r;
    join();
    make(&it, 3000);
    take(&it);
    fill(&it, 1);
    line(false);
    publish(&it, "id-1");
    w.now += 2 * LEASE_MS * MS;
    line(true);
    hello_ok();
    refuse(MSG_OPEN, sent(MSG_OPEN)->open.req, HEDDLE_ERR_WRITER_HELD, true);
    cr_assert_eq(result(&r), HEDDLE_ERR_FENCED);
    is_fenced();
    pack_destroy(&it.pack);
}

Test(node, fenced_said_after_our_own_lease_is_only_old_news, .init = open_world, .fini = close_world)
{
    heddle_error_t error;
    join();
    w.now += LEASE_MS * MS;
    fencing_error(MSG_HEARTBEAT);
    cr_assert_null(event(HEDDLE_EVENT_FENCED));
    hello_ok();
    w.token++;
    welcome(0);
    cr_assert_eq(publisher_node_opened(w.node, &error), HEDDLE_OK);
}

/* -- what it was not told --------------------------------------------------------------------- */

static void tell_version(const char *row)
{
    char text[512];
    buf_t body = {0};
    snprintf(text, sizeof text, "{\"versions\":[%s]}", row);
    json_t *value = json_loads(text, 0, NULL);
    cr_assert_not_null(value, "%s", text);
    cr_assert_eq(value_encode(value, &body), HEDDLE_OK);
    json_decref(value);
    msg_t m = {.type = MSG_REPORT, .report = {.req = sent(MSG_QUERY)->query.req, .next_name = "",
                                              .code = "", .body = buf_view(&body)}};
    say(&m);
    buf_fini(&body);
}
static const char ACTIVE_3[] = "{\"version\":3,\"state\":\"active\",\"rollout\":{\"eligible_count\":2,"
                               "\"staged_count\":2,\"active_count\":2,\"missing\":[]}}";

Test(node, who_comes_back_asks_what_became_of_its_version, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    heddle_error_t error;
    join();
    serve(&it, 3, 1);
    cr_assert_null(sent(MSG_QUERY), "a first WELCOME leaves nothing to ask");
    rejoin(3);
    const msg_query_t *q = &sent(MSG_QUERY)->query;
    cr_assert_str_eq(q->op, "versions");
    cr_assert_str_eq(q->name, "policy");
    cr_assert_eq(q->version, 3);
    tell_version("{\"version\":3,\"state\":\"failed\",\"reason\":{\"code\":\"no_slot\",\"message\":\"held\"},"
                 "\"rollout\":{\"eligible_count\":1,\"missing\":[{\"worker\":\"w1\",\"phase\":\"fetch\","
                 "\"code\":\"no_slot\",\"message\":\"held\"}]}}");
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_VERSION_FAILED);
    cr_assert_str_eq(error.message, "policy@3 failed: held");
    cr_assert_str_eq(error.worker, "w1");
    cr_assert_not_null(event(HEDDLE_EVENT_ROLLOUT));
    rejoin(3);
    cr_assert_eq(count_sent(MSG_QUERY), 1, "what is over is not asked for");
    pack_destroy(&it.pack);
}

Test(node, a_version_that_is_served_no_longer_is_asked_for_until_it_is_over, .init = open_world,
     .fini = close_world)
{
    item_t it = {0};
    heddle_error_t error;
    join();
    serve(&it, 3, 1);
    rejoin(0);
    tell_version("{\"version\":4,\"state\":\"active\"}");
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN,
                 "of another version");
    tell_version("{\"version\":3,\"state\":\"staging\",\"rollout\":{\"eligible_count\":2}}");
    for (int i = 2; i < 4; i++) {
        w.now += INQUIRY_US;
        cr_assert_leq(tick(), w.now + INQUIRY_US);
        cr_assert_eq(count_sent(MSG_QUERY), i);
    }
    tell_version(ACTIVE_3);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 3, "and then no more");
    pack_destroy(&it.pack);
}

Test(node, nor_for_ever, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    join();
    serve(&it, 3, 1);
    rejoin(0);
    refuse(MSG_QUERY, sent(MSG_QUERY)->query.req, HEDDLE_ERR_NOT_FOUND, false);
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 1, "the broker knows nothing of it");
    rejoin(0);
    cr_assert_eq(count_sent(MSG_QUERY), 2);
    w.now += 61 * SECOND;
    tell_version("{\"version\":3,\"state\":\"active\",\"rollout\":{\"eligible_count\":2,\"active_count\":1}}");
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 2, "its deadline is over");
    pack_destroy(&it.pack);
}

Test(node, who_was_replaced_hears_what_became_of_its_version, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    heddle_error_t error;
    join();
    serve(&it, 3, 1);
    fencing_error((msg_type_t)0);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    tell_version(ACTIVE_3);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_COUNT, 3, &error), HEDDLE_ERR_FENCED);
    w.now += 2 * INQUIRY_US;
    tick();
    cr_assert_eq(count_sent(MSG_QUERY), 1, "it asks once");
    pack_destroy(&it.pack);
}

Test(node, a_version_that_was_active_and_put_away_was_active, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    heddle_error_t error;
    join();
    serve(&it, 3, 1);
    rejoin(0);
    tell_version("{\"version\":3,\"state\":\"retired\",\"activated_at\":\"2026-01-01T00:00:00.000Z\"}");
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    pack_destroy(&it.pack);
}

/* -- reports, progress, leaving --------------------------------------------------------------- */

Test(node, rollout_fills_the_report_and_its_times, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    heddle_error_t error;
    join();
    serve(&it, 3, 1);
    cr_assert_str_eq(report(3)->state, "staging");
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    w.now += 7 * MS;
    rollout(3, "staging", 0, 2, 1, 0);
    cr_assert_eq(report(3)->missing_count, 1);
    cr_assert_str_eq(report(3)->missing[0].worker, "w2");
    cr_assert_eq(report(3)->missing[0].code, HEDDLE_ERR_GONE);
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    cr_assert_eq(report(3)->staged_ms, -1);
    w.now += 5 * MS;
    rollout(3, "staged", 0, 2, 2, 0);
    cr_assert_float_eq(report(3)->staged_ms, 12.0, 1e-6);
    cr_assert_eq(judge(3, HEDDLE_PHASE_STAGED, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_AGAIN);
    w.now += 1 * MS;
    rollout(3, "active", 0, 2, 2, 2);
    w.now += SECOND;
    rollout(3, "kept", 0, 2, 2, 2);
    cr_assert_float_eq(report(3)->active_ms, 13.0, 1e-6);
    cr_assert_eq(judge(3, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_OK);
    cr_assert_eq(count_events(HEDDLE_EVENT_ROLLOUT), 4);
    rollout(99, "active", 0, 1, 1, 1);
    cr_assert_eq(count_events(HEDDLE_EVENT_ROLLOUT), 4, "of a version that is not ours");
    cr_assert_eq(judge(99, HEDDLE_PHASE_ACTIVE, HEDDLE_QUORUM_ALL, 0, &error), HEDDLE_ERR_NOT_FOUND);
    pack_destroy(&it.pack);
}

Test(node, progress_is_told_while_somebody_is_staged, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    join();
    serve(&it, 3, 1);
    rollout(3, "staging", 0, 2, 0, 0);
    w.now += 50 * MS;
    tick();
    cr_assert_null(event(HEDDLE_EVENT_PROGRESS), "no byte has moved");
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(fetch(3, 4096), TR_ARRIVED);
        w.now += 10 * MS;
        tick();
    }
    cr_assert_eq(count_events(HEDDLE_EVENT_PROGRESS), 2, "at most 20 a second: %d",
                 count_events(HEDDLE_EVENT_PROGRESS));
    const heddle_event_t *e = event(HEDDLE_EVENT_PROGRESS);
    cr_assert_eq(e->bytes_done, 10 * 4096);
    cr_assert_eq(e->data_bytes, 2 * it.sealed.arena_bytes);
    cr_assert_eq(e->version, 3);
    rollout(3, "staged", 0, 2, 2, 0);
    fetch(3, 4096);
    w.now += 50 * MS;
    cr_assert_gt(tick(), w.now + 100 * MS, "and the clock is left alone afterwards");
    cr_assert_eq(count_events(HEDDLE_EVENT_PROGRESS), 3);
    pack_destroy(&it.pack);
}

Test(node, leaving_says_so_and_ends_serving, .init = open_world, .fini = close_world)
{
    item_t it = {0};
    tr_event_t e;
    join();
    serve(&it, 3, 1);
    publisher_node_leave(w.node, w.now);
    cr_assert_eq(sent(MSG_LEAVE)->leave.token, TOKEN);
    cr_assert_not(publisher_node_has_left(w.node));
    msg_t bye = {.type = MSG_BYE, .bye = {.token = TOKEN, .req = sent(MSG_LEAVE)->leave.req}};
    say(&bye);
    cr_assert_not(publisher_node_has_left(w.node), "the region is not free yet");
    drive(&e);
    cr_assert(publisher_node_has_left(w.node));
    cr_assert_eq(fetch(3, 4096), TR_REFUSED);
    pack_destroy(&it.pack);
}

Test(node, leaving_without_a_broker_is_at_once, .init = open_world, .fini = close_world)
{
    publisher_node_leave(w.node, w.now);
    cr_assert(publisher_node_has_left(w.node));
}

Test(node, leaving_is_bounded, .init = open_world, .fini = close_world)
{
    join();
    publisher_node_leave(w.node, w.now);
    w.now += SECOND;
    tick();
    cr_assert(publisher_node_has_left(w.node));
}
