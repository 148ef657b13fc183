/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/contract/region_new.h"
#include "tests/contract/rig.h"
#include "tests/lib/mem.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define FIRST_TOKEN 101u
#define VIRTUAL_STEP_US 1000u /* when no node waits for anything */

bool rig_in_child;

void rig_fail(const char *file, int line, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!rig_in_child) cr_assert_fail("%s:%d: %s", file, line, text);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    _exit(9);
}

static bool named(const char *text)
{
    return !strcmp(getenv("HEDDLE_CONTRACT") ? getenv("HEDDLE_CONTRACT") : "mem", text);
}

bool rig_is_rendezvous(void) { return named("mem-rendezvous") || named("ucx-rendezvous"); }

static void choose(rig_t *r, transfer_opts_t *opts)
{
    r->is_mem = named("mem") || named("mem-rendezvous");
    if (rig_is_rendezvous()) opts->mode = TR_MODE_RENDEZVOUS;
    heddle_error_t error;
    if (r->is_mem) r->ops = &transfer_mem_ops;
    else RIG_CHECK(transfer_ucx_load(NULL, &r->ops, &error) == HEDDLE_OK, "%s", error.message);
}

static uint64_t virtual_now(void *self) { return ((rig_t *)self)->now_us; }

uint8_t rig_byte(uint64_t offset) { return (uint8_t)(1u + (offset * 2654435761u >> 11) % 251u); }

static void open_node(rig_t *r, int i, size_t region_bytes, const transfer_opts_t *opts)
{
    node_t *n = &r->nodes[i];
    heddle_error_t error;
    RIG_CHECK(r->ops->open(opts, &n->t, &error) == HEDDLE_OK, "%s", error.message);
    RIG_CHECK(region_new(region_bytes, &n->region, &error) == HEDDLE_OK, "%s", error.message);
    RIG_CHECK(r->ops->map(n->t, n->region) == HEDDLE_OK, "map");
    n->ref.token = FIRST_TOKEN + (uint64_t)i;
    r->ops->set_token(n->t, n->ref.token);
    r->ops->address(n->t, &n->ref.address);
}

rig_t *rig_open(int nodes, size_t region_bytes, const transfer_opts_t *opts)
{
    rig_t *r = calloc(1, sizeof *r);
    transfer_opts_t own = opts ? *opts : (transfer_opts_t){0};
    choose(r, &own);
    r->now_us = 1000000;
    r->clock = (clock_ops_t){virtual_now, virtual_now, r};
    own.clock = r->is_mem ? &r->clock : clock_system();
    r->count = nodes;
    for (int i = 0; i < nodes; i++) open_node(r, i, region_bytes, &own);
    uint8_t *at = r->nodes[0].region->base;
    for (size_t i = 0; i < region_bytes; i++) at[i] = rig_byte(i);
    return r;
}

void rig_close_node(rig_t *r, int node)
{
    node_t *n = &r->nodes[node];
    if (!n->t) return;
    RIG_CHECK(r->ops->idle(n->t, n->region), "node %d is not idle", node);
    r->ops->unmap(n->t, n->region);
    r->ops->close(&n->t);
    RIG_CHECK(!n->t, "close() clears the pointer");
}

void rig_close(rig_t *r)
{
    for (int i = 0; i < r->count; i++) {
        rig_close_node(r, i);
        region_unref(&r->nodes[i].region);
    }
    free(r);
}

static uint64_t now(const rig_t *r) { return r->is_mem ? r->now_us : clock_now(clock_system()); }

static bool drive(rig_t *r, node_t *n)
{
    int room = RIG_EVENTS - n->count < 64 ? RIG_EVENTS - n->count : 64;
    RIG_CHECK(room > 0, "too many events");
    int got = r->ops->events(n->t, now(r), &n->events[n->count], room);
    n->count += got;
    return got > 0;
}

static uint64_t next_deadline(const rig_t *r)
{
    uint64_t next = CLOCK_NEVER;
    for (int i = 0; i < r->count; i++) {
        if (!r->nodes[i].t || r->nodes[i].still) continue;
        uint64_t due = r->ops->deadline(r->nodes[i].t);
        if (due < next) next = due;
    }
    return next;
}

static void sleep_on_fds(rig_t *r, uint64_t until_us)
{
    struct pollfd fds[RIG_NODES];
    nfds_t count = 0;
    for (int i = 0; i < r->count; i++) {
        if (!r->nodes[i].t || r->nodes[i].still) continue;
        if (!r->ops->arm(r->nodes[i].t)) return;
        fds[count++] = (struct pollfd){.fd = r->ops->fd(r->nodes[i].t), .events = POLLIN};
    }
    uint64_t at = now(r), wait_ms = until_us > at ? (until_us - at + 999) / 1000 : 0;
    poll(fds, count, wait_ms < 10 ? (int)wait_ms : 10);
}

void rig_turn(rig_t *r)
{
    bool moved = false;
    for (int i = 0; i < r->count; i++)
        if (r->nodes[i].t && !r->nodes[i].still) moved |= drive(r, &r->nodes[i]);
    if (moved) return;
    uint64_t due = next_deadline(r);
    if (!r->is_mem) sleep_on_fds(r, due);
    else if (due > r->now_us)
        r->now_us =
            due == CLOCK_NEVER || due > r->now_us + VIRTUAL_STEP_US ? r->now_us + VIRTUAL_STEP_US : due;
}

bool rig_until(rig_t *r, bool (*done)(rig_t *r, int a, int b), int a, int b, uint64_t limit_us)
{
    uint64_t end = now(r) + limit_us;
    while (!done(r, a, b)) {
        if (now(r) > end) return false;
        rig_turn(r);
    }
    return true;
}

void rig_pass(rig_t *r, uint64_t us)
{
    uint64_t end = now(r) + us;
    while (now(r) < end) rig_turn(r);
}

void rig_stand_still(rig_t *r, uint64_t us)
{
    if (r->is_mem) r->now_us += us;
    else nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

int rig_events(const rig_t *r, int node, tr_kind_t kind)
{
    int n = 0;
    for (int i = 0; i < r->nodes[node].count; i++) n += r->nodes[node].events[i].kind == kind;
    return n;
}

const tr_event_t *rig_ended(const rig_t *r, int node, uint64_t ask)
{
    for (int i = 0; i < r->nodes[node].count; i++)
        if (r->nodes[node].events[i].ask == ask) return &r->nodes[node].events[i];
    return NULL;
}

uint64_t rig_ask(rig_t *r, int by, int from, share_key_t key, uint64_t offset, uint32_t bytes)
{
    uint64_t ask = 0;
    node_t *n = &r->nodes[by];
    sink_t sink = sink_of(n->region, n->leaves);
    tr_read_t read =
        {.key = key, .offset = offset, .bytes = bytes, .sink = &sink, .at = offset, .cookie = ~offset};
    int rc = r->ops->ask(n->t, &r->nodes[from].ref, &read, &ask);
    RIG_CHECK(rc == HEDDLE_OK, "ask: %s", heddle_err_name(rc));
    return ask;
}

void rig_share_all(rig_t *r, int node, share_key_t key)
{
    node_t *n = &r->nodes[node];
    RIG_CHECK(r->ops->share(n->t, n->region, key) == HEDDLE_OK, "share");
    RIG_CHECK(r->ops->extend(n->t, key, 0, n->region->bytes) == HEDDLE_OK, "extend");
}

#define CONNECT_US 20000000u

void rig_connect(rig_t *r, share_key_t key)
{
    rig_share_all(r, 0, key);
    rig_ask(r, 1, 0, key, 0, 1);
    RIG_CHECK(rig_until(r, rig_has_arrived, 1, 1, CONNECT_US), "they do not connect");
    r->nodes[1].count = 0;
}

tr_counters_t rig_counters(const rig_t *r, int node)
{
    tr_counters_t c;
    r->ops->counters(r->nodes[node].t, &c);
    return c;
}

bool rig_is_pattern(const rig_t *r, int node, uint64_t offset, uint64_t bytes)
{
    const uint8_t *at = r->nodes[node].region->base;
    for (uint64_t i = offset; i < offset + bytes; i++)
        if (at[i] != rig_byte(i)) return false;
    return true;
}

bool rig_is_all(const rig_t *r, int node, uint8_t value, uint64_t offset, uint64_t bytes)
{
    const uint8_t *at = r->nodes[node].region->base;
    for (uint64_t i = offset; i < offset + bytes; i++)
        if (at[i] != value) return false;
    return true;
}

bool rig_has_events(rig_t *r, int node, int count)
{
    return r->nodes[node].count - rig_events(r, node, TR_BEAT) >= count;
}

bool rig_has_arrived(rig_t *r, int node, int count) { return rig_events(r, node, TR_ARRIVED) >= count; }
bool rig_has_gone(rig_t *r, int node, int count) { return rig_events(r, node, TR_PEER_GONE) >= count; }

bool rig_was_asked(rig_t *r, int node, int count) { return rig_counters(r, node).asks_in >= (uint64_t)count; }
bool rig_has_sent(rig_t *r, int node, int count) { return rig_counters(r, node).data_out >= (uint64_t)count; }
