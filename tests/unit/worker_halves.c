/* SPDX-License-Identifier: Apache-2.0 */
/* Each half of the chunks from sources of its own, as the broker names them where versions go down two
 * trees. */
#include "worker_world.h"

TestSuite(halves, .fini = world_end);

static test_content_t A;
static worker_t *w;
static origin_t *o[3];

/* A worker, and three sources that have the version: 1.1 MB, 18 chunks. */
static void open_halves(void)
{
    A = content_make(1, 6, 3000);
    w = worker_joined(0, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        o[i] = origin_start(i, TR_MODE_EAGER);
        origin_serve(o[i], &A, 1);
    }
}

static msg_source_t row(const origin_t *from, uint64_t half)
{
    msg_source_t s = source_of(from);
    s.half = half;
    return s;
}

static uint64_t sent_by(const origin_t *from)
{
    tr_counters_t c;
    transfer_mem_ops.counters(from->t, &c);
    return c.bytes_out;
}

static void tell_sources(msg_source_t *sources, uint32_t count)
{
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", sources, count}});
}

static bool is_staged(void)
{
    const msg_t *staged = last_said(w, MSG_STAGED);
    return staged && digest_equal(&staged->staged.digest, &A.h1);
}

static bool is_half(uint64_t bytes)
{
    uint64_t half = A.payload_bytes / 2;
    return bytes > half - LIMIT_CHUNK_MIN_BYTES && bytes < half + LIMIT_CHUNK_MIN_BYTES;
}

Test(halves, come_at_the_same_time_and_each_from_its_sources)
{
    open_halves();
    msg_source_t sources[] = {row(o[0], 2), row(o[1], 1), row(o[2], 1)};
    announce_to(w, &A, 1, sources, 3);
    run_for(100000);
    cr_assert(is_staged());
    cr_assert(is_half(sent_by(o[0]) - A.manifest_bytes), "the manifest comes with the half of the first row");
    cr_assert(is_half(sent_by(o[1])) && !sent_by(o[2]));
    cr_assert_eq(sent_by(o[0]) + sent_by(o[1]), A.payload_bytes + A.manifest_bytes, "nothing comes twice");
    free(A.bytes);
}

Test(halves, a_source_for_both_serves_both)
{
    open_halves();
    msg_source_t sources[] = {row(o[0], 1), row(o[1], 2), row(o[0], 2)};
    announce_to(w, &A, 1, sources, 3);
    origin_stop(1);
    run_for(3000000);
    cr_assert(is_staged());
    cr_assert_eq(sent_by(o[0]), A.payload_bytes + A.manifest_bytes);
    free(A.bytes);
}

/* A broker that was started again plans by that.  One that has the version fetches it no more. */
Test(halves, one_that_joins_again_says_from_where_it_fetches)
{
    open_halves();
    msg_source_t sources[] = {row(o[0], 1), row(o[1], 2), row(o[2], 2)};
    announce_to(w, &A, 1, sources, 3);
    uint64_t due = 0;
    while (!adapter_of(w)->intake.download || adapter_of(w)->intake.download->state != DOWNLOAD_CHUNKS)
        world_turn(&due);
    mem_stop(o[0]->t, true);
    mem_stop(o[2]->t, true);
    uint64_t gone = o[1]->token;
    origin_stop(1);
    run_for(50000);
    node_line(w->node, false);
    node_line(w->node, true);
    while (count_said(w, MSG_JOIN) < 2) run_for(1000);
    const msg_join_t *join = &last_said(w, MSG_JOIN)->join;
    cr_assert(join->fetched_count == 1 && join->fetched[0].version == 1 && join->fetched[0].half == 1);
    const msg_fetched_t *f = join->fetched;
    cr_assert_str_eq(f->adapter, "policy");
    cr_assert(f->source_count == 1 && f->sources[0] == o[0]->token);
    cr_assert(f->other_count == 2 && f->others[0] == o[2]->token && f->others[1] == gone,
              "what it asks comes first");
    mem_stop(o[0]->t, false);
    mem_stop(o[2]->t, false);
    run_for(3000000);
    cr_assert(is_staged());
    node_line(w->node, false);
    node_line(w->node, true);
    while (count_said(w, MSG_JOIN) < 3) run_for(1000);
    cr_assert_eq(last_said(w, MSG_JOIN)->join.fetched_count, 0);
    free(A.bytes);
}

/* What is below the worker in the tree of one half may be above it in that of the other. */
Test(halves, what_one_half_lacks_is_not_asked_of_the_sources_of_the_other)
{
    open_halves();
    msg_source_t sources[] = {row(o[0], 1), row(o[1], 2)}, all = source_of(o[2]);
    announce_to(w, &A, 1, sources, 2);
    origin_stop(1);
    run_for(3000000);
    cr_assert(!is_staged() && is_half(sent_by(o[0]) - A.manifest_bytes));
    const msg_t *m = last_said(w, MSG_NEED_SOURCES);
    cr_assert(m && m->need_sources.lost_count == 1 && m->need_sources.lost[0] == sources[1].token);
    tell_sources(&all, 1);
    run_for(1000000);
    cr_assert(is_staged() && is_half(sent_by(o[2])), "a source for all is one for each half");
    free(A.bytes);
}

Test(halves, a_list_for_all_that_comes_first_is_fetched_as_one)
{
    open_halves();
    msg_source_t sources[] = {source_of(o[0]), source_of(o[1])};
    announce_to(w, &A, 1, sources, 2);
    run_for(100000);
    cr_assert(is_staged() && !sent_by(o[1]));
    free(A.bytes);
}

/* An odd count: the first half has one more.  One chunk has no halves. */
Test(halves, of_few_chunks)
{
    for (uint32_t tensors = 1; tensors <= 3; tensors++) {
        A = content_make(tensors, tensors, 1024);
        w = worker_joined(0, NULL);
        msg_source_t sources[2];
        for (uint32_t i = 0; i < 2; i++) {
            o[i] = origin_start(i, TR_MODE_EAGER);
            origin_serve(o[i], &A, 1);
            sources[i] = row(o[i], i + 1);
        }
        announce_to(w, &A, 1, sources, 2);
        run_for(100000);
        cr_assert(is_staged(), "%u tensors", tensors);
        free(A.bytes);
        world_end();
    }
}
