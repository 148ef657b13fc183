/* SPDX-License-Identifier: Apache-2.0 */
/* Many adapters of one worker come from one process at once, in virtual time. */
#include "tests/unit/worker_world.h"

TestSuite(many, .fini = world_end);

enum { MOST = 64 };

/* Of what it announced to a worker: which sources had what reasons to lose requests, and the most requests
 * that were open at a time. */
typedef struct {
    worker_t *worker;
    origin_t *relay, *publisher; /* in the order in which they are listed */
    test_content_t a;
    uint64_t moved, asks_open;
    uint32_t sources_asked; /* at a time, at most: an event looks through so many rows */
} many_t;

static void origin_serve_all(origin_t *o, const test_content_t *a, uint32_t versions, uint64_t bytes_per_s)
{
    mem_set_link(o->t, (mem_link_t){.bytes_per_s = bytes_per_s});
    origin_serve(o, a, 1);
    for (uint32_t v = 2; v <= versions; v++) {
        cr_assert_eq(transfer_mem_ops.share(o->t, o->region, key_of(v)), HEDDLE_OK);
        cr_assert_eq(transfer_mem_ops.extend(o->t, key_of(v), 0, a->content_bytes), HEDDLE_OK);
    }
}

static tr_counters_t counters(transfer_t *t)
{
    tr_counters_t c;
    transfer_mem_ops.counters(t, &c);
    return c;
}

/* A worker of so many adapters, and two sources of as many versions: version v is for adapter v. */
static many_t begin(uint32_t adapters, uint64_t bytes_per_s)
{
    static char names[MOST][16];
    static const char *list[MOST];
    for (uint32_t i = 0; i < adapters; i++) {
        snprintf(names[i], sizeof names[i], "a%u", i + 1);
        list[i] = names[i];
    }
    many_t m = {.a = content_make(1, 6, 6000)}; /* 2.3 MB, 36 chunks */
    m.worker = worker_joined(0, &(worker_opts_t){.adapters = list, .adapter_count = adapters});
    m.relay = origin_start(0, TR_MODE_EAGER);
    m.publisher = origin_start(1, TR_MODE_EAGER);
    origin_serve_all(m.relay, &m.a, adapters, bytes_per_s);
    origin_serve_all(m.publisher, &m.a, adapters, bytes_per_s);
    return m;
}

static void announce(many_t *m, uint32_t version, origin_t *first, origin_t *second)
{
    char name[16];
    snprintf(name, sizeof name, "a%u", version);
    msg_source_t sources[] = {source_of(first), source_of(second ? second : first)};
    msg_part_t part = {m->a.payload_bytes, m->a.manifest_bytes, m->a.manifest_digest};
    msg_t said = {.type = MSG_ANNOUNCE};
    said.announce = (msg_announce_t){.token = m->worker->token,
                                     .version = version,
                                     .adapter = name,
                                     .digest = m->a.h1,
                                     .parts = &part,
                                     .part_count = 1,
                                     .sources = sources,
                                     .source_count = second ? 2 : 1,
                                     .step = 1,
                                     .data_bytes = m->a.data_bytes};
    share_key_t key = key_of(version);
    memcpy(&said.announce.key, &key, sizeof key);
    tell_worker(m->worker, &said);
}

static void announce_all(many_t *m, uint32_t adapters)
{
    for (uint32_t v = 1; v <= adapters; v++) announce(m, v, m->relay, m->publisher);
}

static uint64_t asks_open(const many_t *m)
{
    tr_counters_t c = counters(m->worker->io.t);
    return c.asks_out - c.data_in - c.refused_in;
}

/* So many of them are staged. */
static void bring_all(many_t *m, uint32_t adapters)
{
    uint64_t end_us = world_now_us + 60000000, due_us;
    while (count_said(m->worker, MSG_STAGED) < adapters && world_now_us < end_us) {
        due_us = CLOCK_NEVER;
        bool has_moved = world_turn(&due_us);
        uint64_t open = asks_open(m);
        if (open > m->asks_open) m->asks_open = open;
        uint32_t asked = worker_node_core(m->worker->node)->bulk.asked_count;
        if (asked > m->sources_asked) m->sources_asked = asked;
        if (!has_moved && due_us > world_now_us) world_now_us = due_us;
    }
    cr_assert_eq(count_said(m->worker, MSG_STAGED), adapters);
    if (adapters == worker_node_core(m->worker->node)->opts.adapter_count)
        cr_assert_eq(worker_node_core(m->worker->node)->bulk.asked_count, 0);
    for (uint32_t i = 0; i < adapters; i++) {
        const msg_staged_t *s = &find_said(m->worker, MSG_STAGED, i)->staged;
        for (uint32_t k = 0; k < s->source_count; k++) {
            const msg_moved_t *moved = &s->sources[k].moved;
            m->moved += moved->refused + moved->late + moved->slow + moved->gone + moved->bad;
        }
    }
}

/* More windows than a source takes requests of one worker, and a slow link, on which a window of each adapter
 * would take longer than a source may be silent: all bytes come from the source that was planned, which is
 * well. */
static void come_from_the_relay(uint32_t adapters, uint64_t bytes_per_s)
{
    many_t m = begin(adapters, bytes_per_s);
    announce_all(&m, adapters);
    bring_all(&m, adapters);
    cr_assert_eq(m.moved, 0, "%llu requests moved", (unsigned long long)m.moved);
    cr_assert_eq(counters(m.publisher->t).bytes_out, 0);
    cr_assert_leq(m.asks_open, adapters, "where all share a window each has one request open: %llu",
                  (unsigned long long)m.asks_open);
    cr_assert_eq(m.sources_asked, 1, "what an event costs does not grow with the adapters");
    free(m.a.bytes);
}

Test(many, adapters_on_a_fast_link_stay_with_their_source) { come_from_the_relay(60, 1000000000); }
Test(many, adapters_on_a_slow_link_stay_with_their_source) { come_from_the_relay(48, 50000000); }

/* A broker that is started again places each of these fetches. */
Test(many, each_fetch_is_restated)
{
    enum { ADAPTERS = 60 };
    many_t m = begin(ADAPTERS, 50000000);
    announce_all(&m, ADAPTERS);
    run_for(1000);
    node_line(m.worker->node, false);
    node_line(m.worker->node, true);
    run_for(1000);
    const msg_join_t *join = &last_said(m.worker, MSG_JOIN)->join;
    cr_assert_eq(join->fetched_count, ADAPTERS);
    for (uint32_t i = 0; i < ADAPTERS; i++) {
        const msg_fetched_t *f = &join->fetched[i];
        cr_assert_str_eq(f->adapter, worker_node_core(m.worker->node)->opts.adapters[i]);
        cr_assert(f->version == i + 1 && f->source_count == 2);
        cr_assert(f->sources[0] == m.relay->token && f->sources[1] == m.publisher->token);
    }
    free(m.a.bytes);
}

Test(many, one_alone_has_the_whole_window)
{
    many_t m = begin(1, 1000000000);
    announce_all(&m, 1);
    bring_all(&m, 1);
    cr_assert_eq(m.asks_open, LIMIT_WINDOW_BYTES / LIMIT_CHUNK_MIN_BYTES);
    free(m.a.bytes);
}

/* The source has refused them, and they wait for another one. */
Test(many, those_that_ask_nothing_have_no_part_of_the_window)
{
    many_t m = begin(8, 100000000);
    announce(&m, 8, m.relay, NULL);
    bring_all(&m, 1);
    mem_refuse(m.relay->t, HEDDLE_ERR_NOT_FOUND);
    for (uint32_t v = 2; v < 8; v++) announce(&m, v, m.relay, NULL);
    run_for(400000);
    cr_assert_eq(count_said(m.worker, MSG_NEED_SOURCES), 6);
    cr_assert_eq(asks_open(&m), 0);
    mem_refuse(m.relay->t, 0);
    m.asks_open = 0;
    announce(&m, 1, m.relay, NULL);
    bring_all(&m, 2);
    cr_assert_eq(m.asks_open, LIMIT_WINDOW_BYTES / LIMIT_CHUNK_MIN_BYTES);
    free(m.a.bytes);
}

static void aborts(worker_t *w, uint32_t version)
{
    char name[16];
    snprintf(name, sizeof name, "a%u", version);
    msg_t m = {.type = MSG_ABORT};
    m.abort = (msg_abort_t){.token = w->token,
                            .version = version,
                            .adapter = name,
                            .code = "superseded",
                            .message = "a newer version came"};
    tell_worker(w, &m);
}

/* In the middle of its chunks, of either half too: what it asked is another one's again. */
Test(many, those_that_are_aborted_have_no_part_of_the_window)
{
    many_t m = begin(8, 100000000);
    for (uint32_t v = 1; v <= 8; v++) announce(&m, v, v % 2 ? m.relay : m.publisher, NULL);
    run_for(30000);
    cr_assert_eq(worker_node_core(m.worker->node)->bulk.asked_count, 2);
    for (uint32_t v = 1; v < 8; v++) aborts(m.worker, v);
    cr_assert_eq(worker_node_core(m.worker->node)->bulk.asked_count, 1, "of version 8");
    aborts(m.worker, 8);
    cr_assert_eq(worker_node_core(m.worker->node)->bulk.asked_count, 0);
    run_for(1000000);
    cr_assert_eq(count_said(m.worker, MSG_STAGED), 0);
    free(m.a.bytes);
}

Test(many, each_source_has_a_window)
{
    many_t m = begin(8, 1000000000);
    for (uint32_t v = 2; v <= 8; v++) announce(&m, v, m.relay, NULL);
    announce(&m, 1, m.publisher, NULL);
    bring_all(&m, 8);
    cr_assert_gt(m.asks_open, LIMIT_WINDOW_BYTES / LIMIT_CHUNK_MIN_BYTES);
    free(m.a.bytes);
}

/* The other adapters load a source that is as slow, and has none of this one's bytes. */
Test(many, a_slow_source_is_left_whatever_adapters_of_others_do)
{
    uint64_t slow = 0;
    many_t m = begin(8, 500000);
    origin_t *third = origin_start(2, TR_MODE_EAGER);
    origin_serve_all(third, &m.a, 8, 500000);
    mem_set_link(m.publisher->t, (mem_link_t){.bytes_per_s = 5000000});
    for (uint32_t v = 2; v <= 8; v++) announce(&m, v, third, NULL);
    announce(&m, 1, m.relay, m.publisher);
    bring_all(&m, 8);
    for (uint32_t i = 0; i < 8; i++) {
        const msg_staged_t *s = &find_said(m.worker, MSG_STAGED, i)->staged;
        for (uint32_t k = 0; s->version == 1 && k < s->source_count; k++) slow += s->sources[k].moved.slow;
    }
    cr_assert_gt(slow, 0);
    cr_assert_gt(counters(m.publisher->t).bytes_out, m.a.payload_bytes / 2);
    free(m.a.bytes);
}
