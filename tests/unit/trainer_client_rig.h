/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node between a broker made of hand-written frames and a worker that is a mem transfer,
 * in virtual time. */
#ifndef TESTS_UNIT_TRAINER_CLIENT_RIG_H
#define TESTS_UNIT_TRAINER_CLIENT_RIG_H

#include "tests/contract/region_new.h"
#include "tests/contract/ask.h"
#include "tests/lib/mem.h"
#include "core/digest.h"
#include "core/errors.h"
#include "proto/value.h"
#include "trainer_client/publisher_node.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#define MS 1000ull
#define SECOND 1000000ull
#define LEASE_MS 4000u
#define PUBLISHED_US (50 * SECOND)
#define UNUSED __attribute__((unused))
enum { TOKEN = 900, WORKER = 77, FRAMES = 512, EVENTS = 512, ITEMS = 80 };

/* A pack on its way through a slot; the world destroys it. */
typedef struct {
    pack_t *pack;
    sealed_t sealed;
    int slot;
    region_t *region;
    char id[40];
    publish_request_t request;
} item_t;

static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":4,\"use_rslora\":true,"
                             "\"base_model_name_or_path\":\"base\"}";

typedef struct {
    uint64_t now, token, changes;
    key16_t life;
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
    item_t items[ITEMS];
    int item_count;
    publish_request_t *request; /* the last one */
} world_t;
static world_t w;

/* -- the shell's side ------------------------------------------------------------------------- */

UNUSED static uint64_t virtual_now(void *self) { return ((world_t *)self)->now; }
static const clock_ops_t CLOCK = {virtual_now, virtual_now, &w};

UNUSED static int take_frame(void *self, bytes_t frame)
{
    (void)self;
    if (w.line_is_down) return HEDDLE_ERR_GONE;
    if (w.line_is_full) return HEDDLE_ERR_SLOW;
    cr_assert_lt(w.sent_count, FRAMES);
    heddle_error_t error;
    buf_add(&w.frames[w.sent_count], frame.data, frame.bytes);
    cr_assert_eq(msg_decode(buf_view(&w.frames[w.sent_count]), &w.sent[w.sent_count], &error), HEDDLE_OK,
                 "%s", error.message);
    w.sent_count++;
    return HEDDLE_OK;
}
UNUSED static void note_redial(void *self, const char *to, const char *key)
{
    (void)to, (void)key;
    ((world_t *)self)->redialled = true;
}
UNUSED static void note_event(void *self, const heddle_event_t *e)
{
    (void)self;
    cr_assert_lt(w.event_count, EVENTS);
    w.events[w.event_count++] = *e;
}
UNUSED static void note_change(void *self) { ((world_t *)self)->changes++; }

UNUSED static void forget_sent(void)
{
    for (int i = 0; i < w.sent_count; i++) {
        msg_fini(&w.sent[i]);
        buf_fini(&w.frames[i]);
    }
    w.sent_count = 0;
}

UNUSED static transfer_t *open_transfer(uint64_t token)
{
    transfer_opts_t opts = {.clock = &CLOCK};
    heddle_error_t error;
    transfer_t *t;
    cr_assert_eq(transfer_mem_ops.open(&opts, &t, &error), HEDDLE_OK);
    transfer_mem_ops.set_token(t, token);
    return t;
}

typedef struct {
    bool takeover, is_unread, is_sharing, is_guarded;
} how_t;
UNUSED static void open_world_as(how_t how)
{
    w = (world_t){.now = PUBLISHED_US, .token = TOKEN};
    w.t = open_transfer(1);
    w.worker_t = open_transfer(WORKER);
    w.life = (key16_t){{7}};
    if (how.is_sharing)
        random_bytes(&w.life, sizeof w.life); /* of the socket, of all processes of this host */
    w.io = (node_io_t){.self = &w,
                       .send = take_frame,
                       .redial = note_redial,
                       .event = note_event,
                       .tr = &transfer_mem_ops,
                       .t = w.t,
                       .clock = &CLOCK};
    publisher_node_opts_t opts = {.kind = &KIND_LORA,
                                  .adapter = "policy",
                                  .writer = "trainer-1",
                                  .host = "host-1",
                                  .broker = "tcp://10.0.0.1:7700",
                                  .takeover = how.takeover,
                                  .is_unread = how.is_unread,
                                  .life = w.life,
                                  .is_sharing = how.is_sharing,
                                  .is_guarded = how.is_guarded,
                                  .pid = 5,
                                  .seed = 3,
                                  .changed = note_change,
                                  .self = &w};
    cr_assert_eq(publisher_node_new(&opts, &w.io, &w.node, NULL), HEDDLE_OK);
}
UNUSED static void open_world(void) { open_world_as((how_t){0}); }

UNUSED static void close_world(void)
{
    publisher_node_destroy(&w.node);
    for (int i = 0; i < w.item_count; i++) pack_destroy(&w.items[i].pack);
    if (w.worker_region) transfer_mem_ops.unmap(w.worker_t, w.worker_region);
    transfer_mem_ops.close(&w.worker_t);
    transfer_mem_ops.close(&w.t);
    region_unref(&w.worker_region);
    forget_sent();
}

/* -- the broker's side ------------------------------------------------------------------------ */

UNUSED static void give_frame(bytes_t frame)
{
    publisher_node_ops.session(w.node, &(node_event_t){SE_FRAME, frame}, w.now);
}
UNUSED static void say(const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    give_frame(buf_view(&frame));
    buf_fini(&frame);
}
UNUSED static void line(bool up)
{
    w.line_is_down = !up;
    publisher_node_ops.session(w.node, &(node_event_t){.kind = up ? SE_CONNECTED : SE_DISCONNECTED}, w.now);
}
/* What the loop does until nothing is left to do at this time. */
UNUSED static void work(void)
{
    for (int i = 0; publisher_node_ops.work(w.node, w.now); i++) cr_assert_lt(i, 1000);
}
UNUSED static uint64_t tick(void)
{
    work();
    return publisher_node_ops.tick(w.node, w.now);
}

UNUSED static const msg_t *sent(msg_type_t type)
{
    for (int i = w.sent_count; i-- > 0;)
        if (w.sent[i].type == type) return &w.sent[i];
    return NULL;
}
UNUSED static int count_sent(msg_type_t type)
{
    int n = 0;
    for (int i = 0; i < w.sent_count; i++) n += w.sent[i].type == type;
    return n;
}
UNUSED static const heddle_event_t *event(heddle_event_type_t type)
{
    for (int i = w.event_count; i-- > 0;)
        if (w.events[i].type == (int)type) return &w.events[i];
    return NULL;
}
UNUSED static int count_events(heddle_event_type_t type)
{
    int n = 0;
    for (int i = 0; i < w.event_count; i++) n += w.events[i].type == (int)type;
    return n;
}

UNUSED static void hello_ok(void)
{
    msg_t m = {.type = MSG_HELLO_OK,
               .hello_ok =
                   {.wire = 1, .epoch = 2, .lease_ms = LEASE_MS, .keep = 1, .cluster = "lab", .heddle = "0"}};
    say(&m);
}
UNUSED static void welcome_with(uint64_t keep_version, uint64_t content_bytes)
{
    msg_keep_t keep = {"policy", keep_version, {{1}}};
    msg_t m = {.type = MSG_WELCOME};
    m.welcome = (msg_welcome_t){.req = sent(MSG_OPEN)->open.req,
                                .token = w.token,
                                .epoch = 2,
                                .lease_ms = LEASE_MS,
                                .keep = &keep,
                                .keep_count = keep_version != 0,
                                .content_bytes = content_bytes};
    say(&m);
}
UNUSED static void welcome(uint64_t keep_version) { welcome_with(keep_version, 0); }
UNUSED static void refuse(msg_type_t of, uint64_t req, int code, bool retriable)
{
    msg_t m = {.type = MSG_ERROR,
               .error = {.of = of,
                         .req = req,
                         .code = heddle_err_name(code),
                         .message = "policy has a writer: ann on h2, pid 9",
                         .retriable = retriable}};
    say(&m);
}
UNUSED static void join(void)
{
    line(true);
    cr_assert_not_null(sent(MSG_HELLO));
    hello_ok();
    cr_assert_not_null(sent(MSG_OPEN));
    welcome(0);
    cr_assert_not_null(event(HEDDLE_EVENT_JOINED));
}
UNUSED static void open_and_join(void)
{
    open_world();
    join();
}
/* A new connection, up to the next WELCOME. */
UNUSED static void rejoin(uint64_t keep_version)
{
    line(false);
    line(true);
    hello_ok();
    w.token++;
    welcome(keep_version);
}
UNUSED static msg_published_t answer(uint64_t version, const char *reason)
{
    const msg_publish_t *p = &sent(MSG_PUBLISH)->publish;
    return (msg_published_t){.req = p->req,
                             .version = version,
                             .created = !*reason,
                             .adapter = "policy",
                             .reason = reason,
                             .digest = p->digest,
                             .key = {{(uint8_t)version, 9}}};
}
UNUSED static void published_as(uint64_t version, const char *reason)
{
    msg_t m = {.type = MSG_PUBLISHED, .published = answer(version, reason)};
    say(&m);
}
static uint64_t rollout_done, rollout_all; /* bytes, in each ROLLOUT from then on */
UNUSED static void rollout(uint64_t version, const char *state, int code, uint32_t eligible, uint32_t staged,
                           uint32_t active)
{
    msg_missing_t missing = {"w2", "fetch", "gone", "the source went"};
    msg_t m = {.type = MSG_ROLLOUT};
    m.rollout = (msg_rollout_t){.token = w.token,
                                .version = version,
                                .decision = active ? 1 : 0,
                                .deadline_ms = 60000,
                                .eligible_count = eligible,
                                .staged_count = staged,
                                .active_count = active,
                                .bytes_done = rollout_done,
                                .data_bytes = rollout_all,
                                .adapter = "policy",
                                .state = state,
                                .code = code ? heddle_err_name(code) : "",
                                .message = code ? "because" : "",
                                .missing = &missing,
                                .missing_count = staged < eligible};
    say(&m);
}
UNUSED static void release(uint64_t version)
{
    msg_t m = {.type = MSG_RELEASE, .release = {.token = w.token, .version = version, .adapter = "policy"}};
    say(&m);
}
UNUSED static void fencing_error(msg_type_t of)
{
    msg_t m = {.type = MSG_ERROR,
               .error = {.token = of == MSG_PUBLISH ? 0 : TOKEN,
                         .of = of,
                         .code = "fenced",
                         .message = "taken over by ann",
                         .req = of == MSG_PUBLISH ? sent(MSG_PUBLISH)->publish.req : 0}};
    say(&m);
}

/* -- the application's side ------------------------------------------------------------------- */

UNUSED static int command(command_t c)
{
    publisher_node_do(w.node, &c, w.now);
    return c.rc;
}
UNUSED static int opened(heddle_error_t *ret_error)
{
    return command((command_t){.kind = COMMAND_OPENED, .error = ret_error});
}
UNUSED static void give_back(const item_t *it)
{
    command((command_t){.kind = COMMAND_GIVE_BACK, .slot = it->slot});
}
UNUSED static void leave(void) { command((command_t){.kind = COMMAND_LEAVE}); }
UNUSED static bool has_left(void) { return command((command_t){.kind = COMMAND_HAS_LEFT}) == HEDDLE_OK; }

UNUSED static int take(item_t *it)
{
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(it->pack)}};
    do {
        if (command_is_making(&c)) work();
        publisher_node_do(w.node, &c, w.now);
    } while (command_is_making(&c));
    if (c.rc) return c.rc;
    it->slot = c.take.slot;
    it->region = c.take.region;
    return HEDDLE_OK;
}

UNUSED static item_t *make(uint64_t elements)
{
    static uint64_t dims[2];
    dims[0] = 4;
    dims[1] = elements;
    heddle_tensor_t tensors[] = {{.size = sizeof *tensors,
                                  .name = "m.lora_B.weight",
                                  .dtype = HEDDLE_DTYPE_F32,
                                  .ndim = 2,
                                  .dims = dims},
                                 {.size = sizeof *tensors,
                                  .name = "m.lora_A.weight",
                                  .dtype = HEDDLE_DTYPE_BF16,
                                  .ndim = 2,
                                  .dims = dims}};
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = tensors,
                       .count = 2,
                       .config = bytes_of(CONFIG, sizeof CONFIG - 1),
                       .metadata = bytes_of("{\"format\":\"pt\"}", 15)};
    heddle_error_t error;
    cr_assert_lt(w.item_count, ITEMS);
    item_t *it = &w.items[w.item_count++];
    cr_assert_eq(pack_new(&in, &it->pack, &error), HEDDLE_OK, "%s", error.message);
    return it;
}

UNUSED static void fill(item_t *it, uint8_t value)
{
    heddle_error_t error;
    cr_assert_geq(it->region->bytes, pack_bytes(it->pack));
    pack_lay(it->pack, it->region->base);
    for (uint32_t i = 0; i < 2; i++)
        memset(pack_tensor(it->pack, i), value + (int)i, it->pack->layout.sizes[i]);
    cr_assert_eq(pack_seal(it->pack, &it->sealed, &error), HEDDLE_OK);
}

UNUSED static void take_and_fill(item_t *it, uint8_t value)
{
    cr_assert_eq(take(it), HEDDLE_OK);
    fill(it, value);
}

UNUSED static item_t *filled(uint8_t value)
{
    item_t *it = make(3000);
    take_and_fill(it, value);
    return it;
}

UNUSED static void publish(item_t *it, const char *id)
{
    snprintf(it->id, sizeof it->id, "%s", id ? id : "r-1");
    static const char *const META[] = {"lr=3e-4", "run=a", NULL};
    w.request = &it->request;
    *w.request =
        (publish_request_t){.slot = it->slot,
                            .pack = it->pack,
                            .sealed = &it->sealed,
                            .is_random_id = !id,
                            .start_us = w.now,
                            .until_us = w.now + 60000000,
                            .opts = {.step = 12, .request_id = it->id, .deadline_ms = 60000, .meta = META}};
    command((command_t){.kind = COMMAND_PUBLISH, .request = w.request});
}

/* PUBLISH is said, if there is a broker; nobody has answered. */
UNUSED static item_t *publish_one(const char *id)
{
    item_t *it = filled(1);
    publish(it, id);
    return it;
}

UNUSED static void publish_again(item_t *it, uint8_t value, const char *id)
{
    take_and_fill(it, value);
    publish(it, id);
}

/* AGAIN while the request goes on. */
UNUSED static int result(publish_result_t *ret)
{
    if (!w.request->is_done) return HEDDLE_ERR_AGAIN;
    if (!w.request->error.code) *ret = w.request->result;
    return w.request->error.code;
}

UNUSED static int abandon(publish_result_t *ret, heddle_error_t *ret_error)
{
    command((command_t){.kind = COMMAND_ABANDON});
    cr_assert(w.request->is_done);
    *ret_error = w.request->error;
    return result(ret);
}

/* A version of `value` bytes, published, recorded and served. */
UNUSED static item_t *serve(uint64_t version, uint8_t value)
{
    publish_result_t r;
    item_t *it = filled(value);
    publish(it, "id-1");
    cr_assert_eq(result(&r), HEDDLE_ERR_AGAIN);
    published_as(version, "");
    cr_assert_eq(result(&r), HEDDLE_OK);
    cr_assert_eq(r.version, version);
    return it;
}

UNUSED static int judge(uint64_t version, heddle_phase_t phase, int kind, uint32_t n,
                        heddle_error_t *ret_error)
{
    wait_for_t want = {phase, {.kind = kind, .n = n}};
    *ret_error = (heddle_error_t){0};
    return command(
        (command_t){.kind = COMMAND_JUDGE, .look = {.version = version, .want = want}, .error = ret_error});
}
/* As the application sees it; NULL: there is none. */
UNUSED static const heddle_report_t *report(uint64_t version)
{
    static heddle_report_t copy;
    heddle_error_t error;
    command_t c = {.kind = COMMAND_REPORT, .look = {.version = version, .report = &copy}, .error = &error};
    return command(c) == HEDDLE_OK ? &copy : NULL;
}

/* -- the worker's side ------------------------------------------------------------------------ */

/* Moves mail both ways until nobody has any; gives the node its events, and returns the kind of the
 * worker's last. */
UNUSED static int drive(tr_event_t *ret_event)
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
        more = n || k || transfer_mem_ops.deadline(w.t) <= w.now ||
               transfer_mem_ops.deadline(w.worker_t) <= w.now;
    }
    return last;
}

UNUSED static void ask(uint64_t version, uint64_t bytes)
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
    cr_assert_eq(
        ask_into(&transfer_mem_ops, w.worker_t, &from, key, 0, (uint32_t)bytes, w.worker_region, 0, &ask_id),
        HEDDLE_OK);
}

/* The bytes have left, and are not there yet. */
UNUSED static void ask_and_send(uint64_t version, uint64_t bytes)
{
    tr_event_t none[4];
    ask(version, bytes);
    transfer_mem_ops.events(w.worker_t, w.now, none, 4);
    transfer_mem_ops.events(w.t, w.now, none, 4);
}

/* The whole content of a version, as a worker gets it. */
UNUSED static int fetch(uint64_t version, uint64_t bytes)
{
    tr_event_t e = {0};
    ask(version, bytes);
    return drive(&e);
}

#endif
