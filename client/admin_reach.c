/* SPDX-License-Identifier: Apache-2.0 */
/* heddle_admin_reach: which workers a process of this host reaches.
 *
 *   ask the broker -> open the bulk plane -> each worker: ask -> a word, or none -> close
 *
 * A worker is asked for a version that does not exist.  It may be one that is not announced to it yet, so the
 * worker says BEAT at once, and refuses after two seconds: each of these is a word.  As the worker connects
 * back to say it, both directions are open then.
 *
 * The admin handle's loop carries all of it on the caller's thread, as it does for a pull. */
#include "client/admin.h"

#include "client/shell.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/sized.h"
#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A connection that ends sooner was not taken. */
#define AT_ONCE_US 1000000u

enum {
    PATIENCE_MS = 5000,
    TURN_EVENTS = 64,
    AT_ONCE = 64, /* workers that are asked at a time: each takes up to four descriptors */
    CLOSE_MS = 200
};

typedef enum { TARGET_WAITS, TARGET_ASKED, TARGET_LEFT_OUT, TARGET_REACHED, TARGET_UNREACHED } target_state_t;
typedef struct {
    target_state_t state;
    uint64_t token, asked_us, took_us;
    uint8_t address[LIMIT_ADDRESS_BYTES];
    size_t address_bytes;
    int why; /* UNREACHED: DEADLINE, or what the transfer says */
} target_t;

typedef struct {
    heddle_admin_t *admin;
    heddle_reach_opts_t opts;
    target_t *targets; /* as the rows of `body` */
    size_t count, asked_count, ended_count;
    bool has_failed; /* no memory for the targets */
    json_t *body;
    node_io_t io;
    region_t page; /* where bytes would go that never come */
    sink_t sink;
} reach_t;

static uint64_t now_of(void) { return clock_now(clock_system()); }

/* ---- whom to ask ---- */

static void on_report(void *self, const msg_report_t *m)
{
    reach_t *r = self;
    target_t *grown = realloc(r->targets, (r->count + m->source_count) * sizeof *grown + 1);
    r->has_failed |= !grown;
    if (!grown) return;
    r->targets = grown;
    for (uint32_t i = 0; i < m->source_count; i++) {
        target_t *t = &r->targets[r->count++];
        const msg_source_t *s = &m->sources[i];
        *t = (target_t){.token = s->token, .address_bytes = s->address.bytes};
        if (t->address_bytes > sizeof t->address) t->address_bytes = 0;
        memcpy(t->address, s->address.data, t->address_bytes);
    }
}

static int ask_broker(reach_t *r, heddle_error_t *error)
{
    query_on_report(r->admin->query, on_report, r);
    int rc = query_ask(r->admin->query, &(msg_query_t){.op = "reach"}, &r->body, error);
    query_on_report(r->admin->query, NULL, NULL);
    if (rc) return rc;
    if (r->has_failed) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the workers");
    if (json_array_size(json_object_get(r->body, "workers")) == r->count) return HEDDLE_OK;
    rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "the broker's answer does not say where its workers are");
    error_hint(error, "compare `heddle --version` with the broker's in `heddle status`");
    return rc;
}

/* ---- the answers of workers ---- */

static target_t *find(reach_t *r, uint64_t token)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->targets[i].token == token) return &r->targets[i];
    return NULL;
}

static void end_target(reach_t *r, target_t *t, target_state_t state, int why)
{
    if (t->state > TARGET_ASKED) return;
    t->state = state;
    t->why = why;
    t->took_us = now_of() - t->asked_us;
    r->ended_count++;
    r->io.tr->drop_peer(r->io.t, t->token);
}

static void take(reach_t *r, const tr_event_t *e)
{
    bool is_of_ask = e->kind == TR_ARRIVED || e->kind == TR_REFUSED;
    target_t *t = is_of_ask && e->cookie < r->count ? &r->targets[e->cookie] : find(r, e->token);
    if (!t) return;
    bool is_gone = e->kind == TR_PEER_GONE || (e->kind == TR_REFUSED && e->err == HEDDLE_ERR_GONE);
    end_target(r, t, is_gone ? TARGET_UNREACHED : TARGET_REACHED, is_gone ? HEDDLE_ERR_GONE : HEDDLE_OK);
}

static bool work(void *self)
{
    reach_t *r = self;
    tr_event_t events[TURN_EVENTS];
    int count = r->io.tr->events(r->io.t, now_of(), events, TURN_EVENTS);
    for (int i = 0; i < count; i++) take(r, &events[i]);
    return count > 0;
}

static bool arm(void *self)
{
    reach_t *r = self;
    return r->io.tr->deadline(r->io.t) > now_of() && r->io.tr->arm(r->io.t);
}

/* ---- the bulk plane ---- */

static void keep_page(region_t *page) { (void)page; } /* its owner frees it */

static int open_transfer(reach_t *r, heddle_error_t *error)
{
    const heddle_admin_t *a = r->admin;
    loop_t *loop = query_loop(a->query);
    shell_opts_t opts = {.broker = a->broker,
                         .transfer = true,
                         .data_device = r->opts.data_device,
                         .insecure = r->opts.insecure != 0,
                         .close_ms = CLOSE_MS,
                         .keys = {.broker_key = a->broker_key, .key = a->key, .makes_no_file = true}};
    r->io.clock = clock_system();
    r->io.owner = loop_owner(loop);
    int rc = shell_open_transfer(&opts, &r->io, error);
    if (rc) return rc;
    uint64_t token;
    random_bytes(&token, sizeof token);
    r->io.tr->set_token(r->io.t, token | ADMIN_TOKEN_BIT);
    r->page = (region_t){.base = aligned_alloc(LIMIT_PAGE_BYTES, LIMIT_PAGE_BYTES),
                         .bytes = LIMIT_PAGE_BYTES,
                         .refs = 1,
                         .end = keep_page};
    if (!r->page.base || r->io.tr->map(r->io.t, &r->page) ||
        loop_add_source(loop, r->io.tr->fd(r->io.t), work, arm, r))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to ask workers");
    r->sink = sink_of(&r->page, NULL);
    return HEDDLE_OK;
}

static void close_transfer(reach_t *r)
{
    loop_remove_source(query_loop(r->admin->query), r);
    if (r->io.t) {
        for (size_t i = 0; i < r->count; i++) r->io.tr->drop_peer(r->io.t, r->targets[i].token);
        if (r->page.backend) r->io.tr->unmap(r->io.t, &r->page);
        r->io.tr->close(&r->io.t);
    }
    free(r->page.base);
}

/* ---- asking ---- */

/* An address of another version of UCX cannot be read here; the row of the worker says which it has. */
static bool is_readable(const reach_t *r, size_t i)
{
    const json_t *row = json_array_get(json_object_get(r->body, "workers"), i);
    const char *ucx = json_string_value(json_object_get(row, "ucx"));
    return !ucx || !strcmp(ucx, r->io.tr->version());
}

static bool is_left_out(const reach_t *r, const char *name)
{
    for (const char *const *at = r->opts.left_out; at && *at; at++)
        if (!strcmp(*at, name)) return true;
    return false;
}

static const char *name_of(const reach_t *r, size_t i)
{
    const char *name =
        json_string_value(json_object_get(json_array_get(json_object_get(r->body, "workers"), i), "name"));
    return name ? name : "";
}

static void ask_next(reach_t *r)
{
    target_t *t = &r->targets[r->asked_count];
    size_t at = r->asked_count++;
    const char *name = name_of(r, at);
    peer_ref_t peer = {t->token, bytes_of(t->address, t->address_bytes)};
    tr_read_t read = {.bytes = LIMIT_PAGE_BYTES, .sink = &r->sink, .cookie = at};
    uint64_t ask;
    int rc = is_readable(r, at) ? HEDDLE_OK : HEDDLE_ERR_UCX_VERSION;
    random_bytes(&read.key, sizeof read.key);
    t->asked_us = now_of();
    t->state = TARGET_ASKED;
    if (is_left_out(r, name)) {
        end_target(r, t, TARGET_LEFT_OUT, HEDDLE_OK);
        return;
    }
    if (!rc && r->opts.on_ask) r->opts.on_ask(r->opts.self, name);
    if (!rc) rc = r->io.tr->ask(r->io.t, &peer, &read, &ask);
    if (rc) end_target(r, t, TARGET_UNREACHED, rc);
}

static uint64_t end_late(reach_t *r, uint64_t now_us)
{
    uint64_t due_us = CLOCK_NEVER, patience_us = (uint64_t)r->opts.patience_ms * 1000;
    for (size_t i = 0; i < r->asked_count; i++) {
        target_t *t = &r->targets[i];
        if (t->state != TARGET_ASKED) continue;
        uint64_t end_us = t->asked_us + patience_us;
        if (now_us >= end_us) end_target(r, t, TARGET_UNREACHED, HEDDLE_ERR_DEADLINE);
        else due_us = clock_earlier(due_us, end_us);
    }
    return due_us;
}

static int ask_workers(reach_t *r, heddle_error_t *error)
{
    while (r->ended_count < r->count) {
        if (query_take_interrupt(r->admin->query))
            return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted while workers were asked");
        while (r->asked_count < r->count && r->asked_count - r->ended_count < r->opts.at_once) ask_next(r);
        uint64_t due_us = end_late(r, now_of());
        if (r->ended_count == r->count) break;
        due_us = clock_earlier(due_us, r->io.tr->deadline(r->io.t));
        loop_turn(query_loop(r->admin->query), due_us);
    }
    return HEDDLE_OK;
}

/* ---- the answer ---- */

static void explain(const reach_t *r, const target_t *t, char *ret_text, size_t size)
{
    r->io.tr->explain(r->io.t, bytes_of(t->address, t->address_bytes), ret_text, size);
    if (t->state == TARGET_LEFT_OUT) text_printf(ret_text, size, "it was left out");
    if (ret_text[0]) return;
    if (t->why == HEDDLE_ERR_DEADLINE) text_printf(ret_text, size, "no answer in %u ms", r->opts.patience_ms);
    else if (t->why == HEDDLE_ERR_GONE && t->took_us >= AT_ONCE_US)
        text_printf(ret_text, size, "the connection ended after %.1f s without an answer",
                    (double)t->took_us / 1e6);
    else if (t->why == HEDDLE_ERR_GONE)
        text_printf(ret_text, size, "the connection was refused, or ended at once");
    else text_printf(ret_text, size, "it cannot be asked: %s", heddle_err_name(t->why));
}

static void tell(const reach_t *r)
{
    char device[64], why[256];
    bool is_ok = true;
    r->io.tr->devices(r->io.t, device, sizeof device);
    for (size_t i = 0; i < r->count; i++) {
        const target_t *t = &r->targets[i];
        json_t *row = json_array_get(json_object_get(r->body, "workers"), i);
        bool is_reached = t->state == TARGET_REACHED,
             is_tested = t->state != TARGET_LEFT_OUT && t->why != HEDDLE_ERR_UCX_VERSION;
        if (!is_reached) explain(r, t, why, sizeof why);
        json_object_set_new(row, "reach", json_string(is_reached ? "yes" : is_tested ? "no" : "untested"));
        json_object_set_new(row, "reach_ms", is_reached ? json_real((double)t->took_us / 1000) : json_null());
        json_object_set_new(row, "reach_why", is_reached ? json_null() : json_string(why));
        is_ok &= is_reached;
    }
    json_object_set_new(r->body, "ok", json_boolean(is_ok));
    json_object_set_new(r->body, "device", utf8_json(device));
}

int heddle_admin_reach(heddle_admin_t *a, const heddle_reach_opts_t *given, char **ret_json)
{
    static const heddle_reach_opts_t none = {.size = sizeof none};
    heddle_error_t error;
    char *text = NULL;
    reach_t r = {.admin = a};
    int rc = HEDDLE_OK;
    if (!a || !ret_json)
        rc = error_fail(&error, HEDDLE_ERR_USAGE, "an admin handle and a place for the answer are needed");
    if (!rc) rc = sized_take(&r.opts, sizeof r.opts, given ? given : &none, "the struct of options", &error);
    if (rc) return error_publish(&error);
    if (!r.opts.patience_ms) r.opts.patience_ms = PATIENCE_MS;
    if (!r.opts.at_once || r.opts.at_once > AT_ONCE) r.opts.at_once = AT_ONCE;
    rc = ask_broker(&r, &error);
    if (!rc) rc = open_transfer(&r, &error);
    if (!rc) rc = ask_workers(&r, &error);
    if (!rc) tell(&r);
    close_transfer(&r);
    loop_hand_over(query_loop(a->query)); /* the next call may be another thread's */
    if (!rc && !(text = json_dumps(r.body, JSON_COMPACT | JSON_REAL_PRECISION(15))))
        rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the answer");
    json_decref(r.body);
    free(r.targets);
    if (rc) return error_publish(&error);
    *ret_json = text;
    return HEDDLE_OK;
}
