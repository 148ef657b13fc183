/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher process: its node, and an application that writes a content into the region and publishes
 * it, as trainer_client/publisher.c does. */
#include "tests/contract/region_new.h"
#include "tests/scenario/world.h"

#include "core/errors.h"
#include "trainer_client/publisher_node.h"

#include <stdio.h>
#include <stdlib.h>

typedef enum { WANT_NOTHING, WANT_REGION, WANT_ANSWER } want_t;

typedef struct {
    publisher_node_t *node;
    node_io_t io;
    want_t want;
    publish_t what;
    char request_id[64];
    uint64_t request_count;
    pack_t *pack;
    sealed_t sealed;
    region_t *region; /* borrowed, of the slot */
    int slot;
    publish_request_t request;
    heddle_report_t report;
} trainer_t;

static int command(publisher_node_t *node, command_t c, uint64_t now_us)
{
    publisher_node_do(node, &c, now_us);
    return c.rc;
}

static key16_t life_of(actor_t *a)
{
    key16_t life;
    for (size_t i = 0; i < sizeof life.b; i++) life.b[i] = (uint8_t)world_random(a->w, 256);
    return life;
}

static void changed(void *self)
{
    actor_t *a = self;
    a->due_us = a->w->now_us;
}

void trainer_boot(actor_t *a)
{
    world_t *w = a->w;
    trainer_t *t = calloc(1, sizeof *t);
    actor_open_transfer(a, a->trainer.max_rate_bytes, a->trainer.link);
    t->io = (node_io_t){.self = a,
                        .send = actor_send,
                        .redial = actor_redial,
                        .event = actor_event,
                        .tr = &transfer_mem_ops,
                        .t = a->t,
                        .clock = &w->clock};
    content_shape_t shape = {.is_weights = a->trainer.is_of_weights};
    publisher_node_opts_t opts = {.kind = content_kind(shape),
                                  .adapter = a->trainer.adapter ? a->trainer.adapter : ADAPTER,
                                  .writer = a->name,
                                  .max_rate_bytes = a->trainer.max_rate_bytes,
                                  .host = a->trainer.host ? a->trainer.host : "host",
                                  .is_sharing = a->trainer.host != NULL,
                                  .host_share = world_directory(w, a->trainer.host),
                                  .takeover = a->trainer.takeover,
                                  .life = life_of(a),
                                  .pid = 500 + a->incarnation,
                                  .seed = world_random(w, UINT32_MAX),
                                  .changed = changed,
                                  .self = a};
    int rc;
    do PRODUCT(rc = publisher_node_new(&opts, &t->io, &t->node, NULL));
    while (rc == HEDDLE_ERR_NO_MEMORY); /* it is started again */
    cr_assert_eq(rc, HEDDLE_OK);
    a->trainer_state = t;
    a->node = t->node;
    a->ops = &publisher_node_ops;
    int fds[PUBLISHER_FDS];
    actor_poll(a, fds, publisher_node_fds(t->node, fds));
    a->published = (published_t){0};
}

void trainer_end(actor_t *a)
{
    trainer_t *t = a->trainer_state;
    if (!t) return;
    a->trainer_state = NULL;
    publisher_node_destroy(&t->node);
    pack_destroy(&t->pack);
    free(t);
}

static void finish(actor_t *a, int code, const char *message)
{
    trainer_t *t = a->trainer_state;
    t->want = WANT_NOTHING;
    pack_destroy(&t->pack);
    a->published.is_answered = true;
    a->published.code = code;
    error_text(a->published.message, sizeof a->published.message, message);
    world_note(a->w, "%s: publish ends: %s v%llu %s", a->name, code ? heddle_err_name(code) : "ok",
               (unsigned long long)a->published.version, message);
}

/* A region that is large enough, of a slot that was taken. Making it takes no time of the world. */
static int make_room(trainer_t *t, uint64_t now_us)
{
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(t->pack)}};
    do {
        while (command_is_making(&c) && publisher_node_ops.work(t->node, now_us)) {}
        publisher_node_do(t->node, &c, now_us);
    } while (command_is_making(&c));
    if (c.rc) return c.rc;
    t->slot = c.take.slot;
    t->region = c.take.region;
    return HEDDLE_OK;
}

static int write_and_seal(trainer_t *t, const content_t *c, uint64_t now_us)
{
    pack_lay(t->pack, t->region->base);
    for (uint32_t i = 0; i < c->shape.count; i++)
        memcpy(pack_tensor(t->pack, i), c->payload + c->layout.places[i], c->layout.sizes[i]);
    int rc = pack_seal(t->pack, &t->sealed, NULL);
    if (rc) command(t->node, (command_t){.kind = COMMAND_GIVE_BACK, .slot = t->slot}, now_us);
    return rc;
}

/* Writes where Heddle says, digests, publishes. */
static void write_and_publish(actor_t *a)
{
    trainer_t *t = a->trainer_state;
    int rc;
    PRODUCT(rc = make_room(t, a->w->now_us));
    if (rc == HEDDLE_ERR_AGAIN) return;
    if (!rc) PRODUCT(rc = write_and_seal(t, a->published.content, a->w->now_us));
    if (rc) {
        finish(a, rc, "no region");
        return;
    }
    MUST(a->w, digest_equal(&t->sealed.digest, &a->published.content->h1));
    t->request = (publish_request_t){.slot = t->slot,
                                     .pack = t->pack,
                                     .sealed = &t->sealed,
                                     .start_us = a->w->now_us,
                                     .until_us = a->w->now_us + t->what.deadline_ms * 1000ull,
                                     .is_random_id = !t->what.request_id};
    t->request.opts = (heddle_publish_opts_t){.size = sizeof t->request.opts,
                                              .step = -1,
                                              .request_id = t->request_id,
                                              .activation = t->what.activation,
                                              .if_unchanged = t->what.if_unchanged,
                                              .deadline_ms = t->what.deadline_ms};
    t->want = WANT_ANSWER;
    command_t publish = {.kind = COMMAND_PUBLISH, .request = &t->request};
    PRODUCT(publisher_node_do(t->node, &publish, a->w->now_us));
}

static void take_answer(actor_t *a)
{
    trainer_t *t = a->trainer_state;
    const publish_request_t *r = &t->request;
    if (!r->is_done) return;
    a->published.version = r->error.code ? 0 : r->result.version;
    a->published.created = !r->result.replayed && !r->result.unchanged;
    if (!r->error.code) MUST(a->w, digest_equal(&r->result.digest, &a->published.content->h1));
    finish(a, r->error.code, r->error.message);
}

void trainer_gives_up(actor_t *a)
{
    trainer_t *t = a->trainer_state;
    if (!t || t->want == WANT_NOTHING) return;
    if (t->want == WANT_ANSWER) {
        command(t->node, (command_t){.kind = COMMAND_ABANDON}, a->w->now_us);
        take_answer(a);
    } else {
        a->published.version = 0;
        finish(a, HEDDLE_ERR_DEADLINE, "");
    }
}

static void take_report(actor_t *a)
{
    trainer_t *t = a->trainer_state;
    const heddle_report_t *r = &t->report;
    heddle_error_t error;
    command_t c = {.kind = COMMAND_REPORT,
                   .look = {.version = a->published.version, .report = &t->report},
                   .error = &error};
    if (!c.look.version || command(t->node, c, a->w->now_us)) return;
    a->rolled = (rolled_t){.version = r->version,
                           .decision = r->decision,
                           .eligible = r->eligible_count,
                           .staged = r->staged_count,
                           .active = r->active_count};
    error_text(a->rolled.state, sizeof a->rolled.state, r->state);
    error_text(a->rolled.code, sizeof a->rolled.code, r->code ? heddle_err_name(r->code) : "");
    error_text(a->rolled.message, sizeof a->rolled.message, r->message);
    if (!r->missing_count) return;
    error_text(a->rolled.missing, sizeof a->rolled.missing, r->missing[0].worker);
    error_text(a->rolled.missing_code, sizeof a->rolled.missing_code, heddle_err_name(r->missing[0].code));
}

void trainer_turn(actor_t *a)
{
    trainer_t *t = a->trainer_state;
    if (t->want == WANT_REGION) write_and_publish(a);
    if (t->want == WANT_ANSWER) take_answer(a);
    take_report(a);
    a->event_done = a->event_count;
}

void trainer_publish(actor_t *a, publish_t what)
{
    trainer_t *t = a->trainer_state;
    MUST(a->w, a->alive && t->want == WANT_NOTHING);
    if (!what.shape.count) what.shape.count = 8;
    if (!what.shape.rows) what.shape.rows = 1024;
    if (!what.deadline_ms) what.deadline_ms = 60000;
    t->what = what;
    if (what.request_id) snprintf(t->request_id, sizeof t->request_id, "%s", what.request_id);
    else
        snprintf(t->request_id, sizeof t->request_id, "r-%.20s-%u-%llu", a->name, a->incarnation,
                 (unsigned long long)++t->request_count);
    a->published = (published_t){.content = content_get(what.shape)};
    a->rolled = (rolled_t){0};
    const content_t *c = a->published.content;
    pack_input_t in = {c->tensors, c->shape.count, content_config(c->shape),
                       bytes_of(CONTENT_METADATA, strlen(CONTENT_METADATA)), content_kind(c->shape)};
    heddle_error_t error;
    int rc;
    PRODUCT(rc = pack_new(&in, &t->pack, &error));
    if (rc) {
        if (rc != HEDDLE_ERR_NO_MEMORY) world_fail(a->w, "pack: %s", error.message);
        finish(a, rc, error.message);
        return;
    }
    t->want = WANT_REGION;
    a->due_us = a->w->now_us;
}

uint64_t trainer_publishes(actor_t *a, publish_t what)
{
    trainer_publish(a, what);
    UNTIL(a->w, 30 * SECOND, a->published.is_answered);
    if (a->published.code)
        world_fail(a->w, "publish: %s: %s", heddle_err_name(a->published.code), a->published.message);
    return a->published.version;
}

void trainer_leave(actor_t *a)
{
    command_t c = {.kind = COMMAND_LEAVE};
    PRODUCT(publisher_node_do(((trainer_t *)a->trainer_state)->node, &c, a->w->now_us));
}
bool trainer_has_left(const actor_t *a)
{
    const trainer_t *t = a->trainer_state;
    return command(t->node, (command_t){.kind = COMMAND_HAS_LEFT}, a->w->now_us) == HEDDLE_OK;
}
bool trainer_is_busy(const actor_t *a) { return ((const trainer_t *)a->trainer_state)->want != WANT_NOTHING; }

int trainer_standing(const actor_t *a)
{
    heddle_error_t error;
    const trainer_t *t = a->trainer_state;
    command_t c = {.kind = COMMAND_OPENED, .error = &error};
    return a->alive ? command(t->node, c, a->w->now_us) : HEDDLE_ERR_GONE;
}

bool trainer_is_ready(const actor_t *a) { return trainer_standing(a) == HEDDLE_OK; }
