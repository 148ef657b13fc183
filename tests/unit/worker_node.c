/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's node against a broker of a few lines, with real encoding, real digests and the memory
 * backend. */
#include "core/log.h"
#include "captured.h"
#include "tests/unit/other_thread.h"
#include "tests/unit/worker_world.h"

/* What its application answers, about the first adapter. */
static int answer(worker_t *w, app_answer_kind_t kind, uint64_t version)
{
    return worker_node_answer(w->node, &(app_answer_t){.kind = kind, .version = version}, world_now_us);
}

static int reject_error(worker_t *w, uint64_t version, const heddle_error_t *why)
{
    app_answer_t it = {.kind = APP_REJECT, .version = version, .why = why};
    return worker_node_answer(w->node, &it, world_now_us);
}

static int reject(worker_t *w, uint64_t version, const char *reason)
{
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_VERSION_FAILED, "%s", reason);
    return reject_error(w, version, &why);
}

static int verified(worker_t *w, const digest_t *digest)
{
    app_answer_t it = {.kind = APP_VERIFIED, .version = 1, .digest = digest};
    return worker_node_answer(w->node, &it, world_now_us);
}

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

TestSuite(node, .fini = world_end);

static test_content_t content(uint64_t seed) { return content_make(seed, 6, 3000); } /* 1.1 MB, 18 chunks */

Test(node, joins_and_says_who_it_is)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.slots = 4, .export_dir = "/x"});
    const msg_t *m = find_said(w, MSG_HELLO, 0);
    cr_assert(m && m->hello.role == ROLE_WORKER);
    m = find_said(w, MSG_JOIN, 0);
    cr_assert_not_null(m);
    cr_assert_str_eq(m->join.name, "w1");
    cr_assert(m->join.adapter_count == 2 && !strcmp(m->join.adapters[1].adapter, "critic"));
    cr_assert(m->join.label_count == 1 && !strcmp(m->join.labels[0], "zone=a"));
    cr_assert(m->join.slots == 4 && m->join.held_count == 0 && m->join.address.bytes > 0);
    cr_assert(!strcmp(m->join.backend, "mem") && !strcmp(m->join.export_dir, "/x") &&
              m->join.device_count == 1);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_JOINED);
    cr_assert(e->token == w->token && e->epoch == 1);
}

Test(node, fetches_stages_and_activates)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    const msg_t *staged = last_said(w, MSG_STAGED);
    cr_assert_not_null(staged);
    cr_assert(staged->staged.version == 1 && digest_equal(&staged->staged.digest, &a.h1));
    cr_assert(staged->staged.connect_us && staged->staged.fetch_us && staged->staged.verify_us &&
                  staged->staged.stage_us,
              "0 is not known; all of it was done, in one turn or in many");
    cr_assert(staged->staged.verified == VERIFIED_HERE && !staged->staged.held);
    cr_assert(staged->staged.source_count == 1 && staged->staged.sources[0].bytes == a.payload_bytes);
    cr_assert(staged->staged.sources[0].kind == SOURCE_PUBLISHER &&
              !strcmp(staged->staged.sources[0].name, "trainer"));
    const msg_t *active = last_said(w, MSG_ACTIVE);
    cr_assert(active && active->active.decision == 1 && digest_equal(&active->active.digest, &a.h1));
    cr_assert(serves(w, &a, 1));
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_ACTIVE);
    cr_assert(e && e->version == 1 && e->step == 10 && e->decision == 1 && !strncmp(e->tag, "policy@1:", 9));
    cr_assert(count_events(w, HEDDLE_EVENT_FETCHING) == 1 && count_events(w, HEDDLE_EVENT_STAGED) == 1);
    free(a.bytes);
}

Test(node, who_wants_no_staging_hears_of_what_is_served)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.omits_staging = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    cr_assert_eq(count_said(w, MSG_STAGED), 1, "the broker hears of it");
    cr_assert_eq(count_events(w, HEDDLE_EVENT_FETCHING) + count_events(w, HEDDLE_EVENT_STAGED), 0);
    cr_assert_eq(count_events(w, HEDDLE_EVENT_ACTIVE), 1);
    free(a.bytes);
}

Test(node, old_version_serves_while_the_new_one_comes)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    bring_version(w, o, &a, 1, 1);
    origin_serve(o, &b, 2);
    msg_source_t source = source_of(o);
    announce_to(w, &b, 2, &source, 1);
    uint64_t due = 0;
    while (count_said(w, MSG_STAGED) < 2) {
        world_turn(&due);
        cr_assert(serves(w, &a, 1));
    }
    run_for(1000000);
    cr_assert(serves(w, &a, 1), "staged is not active");
    commit_to(w, &b, 2, 2);
    cr_assert(serves(w, &b, 2));
    free(a.bytes);
    free(b.bytes);
}

Test(node, memory_is_warm_after_the_first_versions)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    for (uint64_t v = 1; v <= 20; v++) {
        test_content_t a = content(v);
        bring_version(w, o, &a, v, v);
        cr_assert(serves(w, &a, v), "%d", (int)v);
        if (v > 1) tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, v - 1, "policy"}});
        run_for(1000);
        free(a.bytes);
    }
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    cr_assert_leq(c.maps, 3);
    cr_assert_eq(c.bytes_in > 20 * 1100000u, true);
}

static uint64_t memory_of(const worker_t *w) { return slots_memory(worker_node_slots(w->node)).bytes; }

Test(node, memory_of_a_failed_version_is_given_back)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), large = content_make(2, 6, 60000); /* 23 MB */
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    answer(w, APP_STAGED, 1);
    commit_to(w, &a, 1, 1);
    answer(w, APP_ACTIVATE, 1);
    uint64_t before = memory_of(w);
    origin_serve(o, &large, 2);
    announce_to(w, &large, 2, &source, 1);
    run_for(1000000);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_ARRIVED));
    cr_assert_geq(memory_of(w), before + large.payload_bytes);
    cr_assert_eq(reject(w, 2, "it does not fit the engine"), HEDDLE_OK);
    run_for(100000);
    cr_assert_eq(memory_of(w), before);
    free(a.bytes);
    free(large.bytes);
}

/* A step of it would take the core from the version that comes. */
Test(node, memory_is_not_given_back_while_a_version_is_fetched)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t large = content_make(1, 6, 60000), b = content(2);
    msg_source_t source = source_of(o);
    origin_serve(o, &large, 1);
    announce_to(w, &large, 1, &source, 1);
    run_for(1000000);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_ARRIVED));
    announce_to(w, &b, 2, &source, 1); /* not served yet */
    cr_assert_eq(reject(w, 1, "it does not fit the engine"), HEDDLE_OK);
    run_for(500000);
    cr_assert_geq(memory_of(w), large.payload_bytes + b.payload_bytes);
    origin_serve(o, &b, 2);
    run_for(300000);
    cr_assert_lt(memory_of(w), large.payload_bytes);
    free(large.bytes);
    free(b.bytes);
}

static int no_descriptors(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "too few descriptors");
}

Test(node, a_process_without_means_refuses_and_recovers)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.check = no_descriptors});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    const msg_nack_t *nack = &last_said(w, MSG_NACK)->nack;
    cr_assert(!strcmp(nack->code, "no_memory") && !strcmp(nack->phase, "announce") && nack->version == 1);
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    cr_assert(c.maps == 0 && c.bytes_in == 0, "nothing was begun");
    worker_node_core(w->node)->bulk.check = NULL;
    bring_version(w, o, &a, 2, 1);
    cr_assert(serves(w, &a, 2));
    free(a.bytes);
}

Test(node, large_memory_is_made_piece_by_piece_and_the_lease_lives_on)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    a.payload_bytes = 32u << 20;
    uint32_t beats = count_said(w, MSG_HEARTBEAT), turns = 0;
    announce_to(w, &a, 1, NULL, 0);
    for (uint64_t due = CLOCK_NEVER; !last_event(w, HEDDLE_EVENT_FETCHING); turns++) {
        cr_assert_lt(turns, 100);
        world_now_us += LEASE_MS * 1000 / 4; /* as if a piece took so long */
        world_turn(&due);
    }
    cr_assert_geq(turns, a.payload_bytes / MEMORY_STEP_BYTES - 1);
    cr_assert_geq(count_said(w, MSG_HEARTBEAT), beats + turns / 2);
    cr_assert_null(last_event(w, HEDDLE_EVENT_LOST_BROKER));
    free(a.bytes);
}

Test(node, memory_in_the_making_is_given_back_and_used_on)
{
    worker_t *w = worker_start(0, TR_MODE_EAGER, NULL);
    w->slots = 1;
    node_line(w->node, true);
    run_for(1000);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    uint64_t due = CLOCK_NEVER;
    a.payload_bytes = 32u << 20;
    announce_to(w, &a, 1, NULL, 0);
    world_turn(&due);
    cr_assert_null(last_event(w, HEDDLE_EVENT_FETCHING));
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, 1, "policy", "deadline", "over"}});
    bring_version(w, o, &b, 2, 1); /* takes the only slot */
    cr_assert(serves(w, &b, 2));
    cr_assert_eq(count_events(w, HEDDLE_EVENT_FETCHING), 1, "of the second alone");
    free(a.bytes);
    free(b.bytes);
}

Test(node, second_worker_fetches_from_the_first)
{
    worker_t *w1 = worker_joined(0, NULL), *w2 = worker_joined(1, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w1, o, &a, 1, 1);
    mem_kill(o->t); /* the publisher is gone */
    msg_source_t source = source_worker(w1);
    announce_to(w2, &a, 1, &source, 1);
    run_for(100000);
    commit_to(w2, &a, 1, 1);
    cr_assert(serves(w2, &a, 1));
    const msg_t *staged = last_said(w2, MSG_STAGED);
    cr_assert(staged->staged.source_count == 1 && staged->staged.sources[0].kind == SOURCE_WORKER);
    cr_assert_eq(staged->staged.sources[0].bytes, a.payload_bytes);
    free(a.bytes);
}

Test(node, relays_while_it_receives)
{
    worker_t *w1 = worker_joined(0, NULL), *w2 = worker_joined(1, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    msg_source_t from_w1 = source_worker(w1), from_origin = source_of(o);
    announce_to(w2, &a, 1, &from_w1, 1); /* before w1 has heard of it */
    run_for(100000);
    announce_to(w1, &a, 1, &from_origin, 1);
    run_for(200000);
    cr_assert_not_null(last_said(w1, MSG_STAGED));
    cr_assert_not_null(last_said(w2, MSG_STAGED));
    tr_counters_t c;
    transfer_mem_ops.counters(o->t, &c);
    cr_assert_lt(c.bytes_out, a.content_bytes + 4096, "the publisher sends the bytes once");
    free(a.bytes);
}

static tr_counters_t counters_of(const worker_t *w)
{
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    return c;
}

/* What it staged last from that source; NULL: nothing was asked of it. */
static const msg_served_t *staged_row(const worker_t *w, uint64_t token)
{
    const msg_t *staged = last_said(w, MSG_STAGED);
    for (uint32_t i = 0; staged && i < staged->staged.source_count; i++)
        if (staged->staged.sources[i].token == token) return &staged->staged.sources[i];
    return NULL;
}

/* The source of most bytes of what it staged last; 0: it staged nothing. */
static uint64_t staged_from(const worker_t *w)
{
    const msg_t *staged = last_said(w, MSG_STAGED);
    const msg_served_t *most = NULL;
    for (uint32_t i = 0; staged && i < staged->staged.source_count; i++)
        if (!most || staged->staged.sources[i].bytes > most->bytes) most = &staged->staged.sources[i];
    return most ? most->token : 0;
}

/* 11 MB: its memory is made in a dozen pieces. */
static test_content_t large_content(uint64_t seed) { return content_make(seed, 6, 30000); }

static void stop_work(worker_t *w, uint64_t piece_us)
{
    w->piece_us = piece_us;
    w->busy_us = piece_us ? world_now_us + piece_us : 0;
}

/* A worker that makes memory for version 1 of `origin`, and one that is to fetch it from there, else from
 * there. */
static void ask_before_the_memory_is_there(worker_t *w[2], origin_t *o, const test_content_t *a,
                                           uint64_t piece_us)
{
    w[0] = worker_joined(0, NULL), w[1] = worker_joined(1, NULL);
    origin_serve(o, a, 1);
    msg_source_t from_origin = source_of(o), either[] = {source_worker(w[0]), from_origin};
    stop_work(w[0], piece_us);
    announce_to(w[0], a, 1, &from_origin, 1);
    announce_to(w[1], a, 1, either, 2);
}

static void waits_for_memory(uint64_t piece_us, uint64_t so_long_us)
{
    worker_t *w[2];
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = large_content(1);
    ask_before_the_memory_is_there(w, o, &a, piece_us);
    run_for(so_long_us);
    cr_assert_null(last_event(w[0], HEDDLE_EVENT_FETCHING), "the test needs memory in the making");
    cr_assert_eq(count_said(w[1], MSG_NEED_SOURCES), 0, "its source was not lost");
    tr_counters_t c = counters_of(w[1]);
    cr_assert(c.refused_in == 0 && c.bytes_in == 0 && c.beats_in > so_long_us / 100000);
    stop_work(w[0], 0);
    run_for(1000000);
    cr_assert_eq(count_said(w[0], MSG_STAGED), 1);
    cr_assert_eq(staged_from(w[1]), w[0]->token);
    transfer_mem_ops.counters(o->t, &c);
    cr_assert_lt(c.bytes_out, a.content_bytes + 4096, "the publisher sends the bytes once");
    free(a.bytes);
}

/* Neither the time of an unknown key nor the serve deadline ends the wait. */
Test(node, a_child_waits_while_memory_is_made) { waits_for_memory(5000000, 4900000); }
Test(node, a_child_waits_while_memory_is_made_for_long) { waits_for_memory(2000000, 15000000); }

static void tell_abort(worker_t *w, uint64_t version)
{
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, version, "policy", "deadline", "over"}});
}

Test(node, a_child_of_what_got_no_memory_asks_another_source_at_once)
{
    worker_t *w[2];
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = large_content(1);
    ask_before_the_memory_is_there(w, o, &a, 3000000);
    run_for(3000000);
    tell_abort(w[0], 1);
    run_for(300000);
    cr_assert_eq(staged_from(w[1]), o->token);
    cr_assert_eq(last_said(w[1], MSG_STAGED)->staged.sources[0].token, o->token, "most bytes first");
    const msg_served_t *in_vain = staged_row(w[1], w[0]->token);
    cr_assert(in_vain && in_vain->bytes == 0 && in_vain->moved.refused > 0 && in_vain->moved.late == 0);
    cr_assert(!strcmp(in_vain->name, "w1") && in_vain->kind == SOURCE_WORKER);
    free(a.bytes);
}

/* It makes way to a later one, and begins anew in a while: its children do not wait for that. */
Test(node, a_child_of_what_was_preempted_asks_another_source_at_once)
{
    worker_t *w[2];
    origin_t *o = origin_start(0, TR_MODE_EAGER), *p = origin_start(1, TR_MODE_EAGER);
    test_content_t a = large_content(1), b = large_content(2);
    ask_before_the_memory_is_there(w, o, &a, 3000000);
    run_for(1000000);
    origin_serve(p, &b, 2);
    msg_source_t source = source_of(p);
    announce_to(w[0], &b, 2, &source, 1);
    run_for(300000);
    cr_assert_eq(staged_from(w[1]), o->token);
    stop_work(w[0], 0);
    run_for(1000000);
    cr_assert_eq(count_said(w[0], MSG_STAGED), 2);
    free(a.bytes);
    free(b.bytes);
}

/* Version 2 waits at a worker for version 1, which is decided and goes first; its source stands still. */
static void wait_behind_another(worker_t *w[2], const test_content_t *a, const test_content_t *b)
{
    origin_t *o = origin_start(0, TR_MODE_EAGER), *p = origin_start(1, TR_MODE_EAGER);
    w[0] = worker_joined(0, NULL), w[1] = worker_joined(1, NULL);
    origin_serve(o, a, 1);
    origin_serve(p, b, 2);
    msg_source_t source = source_of(o), either[] = {source_worker(w[0]), source_of(p)};
    mem_stop(o->t, true);
    announce_to(w[0], a, 1, &source, 1);
    commit_to(w[0], a, 1, 1);
    announce_to(w[0], b, 2, &either[1], 1);
    announce_to(w[1], b, 2, either, 2);
    run_for(3000000);
    cr_assert_eq(counters_of(w[1]).bytes_in, 0);
    cr_assert_eq(counters_of(w[1]).refused_in, 0);
}

Test(node, a_child_waits_for_what_waits_for_another_version)
{
    worker_t *w[2];
    test_content_t a = content(1), b = content(2);
    wait_behind_another(w, &a, &b);
    mem_stop(origins[0]->t, false);
    run_for(1000000);
    cr_assert_eq(staged_from(w[1]), w[0]->token);
    free(a.bytes);
    free(b.bytes);
}

Test(node, a_child_of_what_waited_in_vain_asks_another_source_at_once)
{
    worker_t *w[2];
    test_content_t a = content(1), b = content(2);
    wait_behind_another(w, &a, &b);
    tell_abort(w[0], 2);
    run_for(300000);
    cr_assert_eq(staged_from(w[1]), origins[1]->token);
    free(a.bytes);
    free(b.bytes);
}

/* A broker that was restarted announces it anew, by the members that are back. */
Test(node, a_second_announcement_moves_no_transfer)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *first = origin_start(0, TR_MODE_EAGER), *second = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(first, &a, 1);
    origin_serve(second, &a, 1);
    msg_source_t from_first = source_of(first), from_second = source_of(second);
    announce_to(w, &a, 1, &from_first, 1);
    uint64_t due = 0;
    while (!adapter_of(w)->intake.download || adapter_of(w)->intake.download->state != DOWNLOAD_CHUNKS)
        world_turn(&due);
    announce_to(w, &a, 1, &from_second, 1);
    run_for(100000);
    const msg_staged_t *staged = &last_said(w, MSG_STAGED)->staged;
    cr_assert_eq(staged->source_count, 1);
    cr_assert_eq(staged->sources[0].token, first->token);
    free(a.bytes);
}

/* What it adds is there when the first source ends. */
Test(node, a_second_announcement_adds_a_source)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *first = origin_start(0, TR_MODE_EAGER), *second = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(first, &a, 1);
    origin_serve(second, &a, 1);
    msg_source_t sources[] = {source_of(first), source_of(second)};
    announce_to(w, &a, 1, sources, 1);
    uint64_t due = 0;
    while (!adapter_of(w)->intake.download || adapter_of(w)->intake.download->state != DOWNLOAD_CHUNKS)
        world_turn(&due);
    announce_to(w, &a, 1, sources, 2);
    announce_to(w, &a, 1, sources, 2);
    cr_assert_eq(adapter_of(w)->intake.what->source_count, 2);
    origin_stop(0);
    run_for(1000000);
    cr_assert_leq(count_said(w, MSG_NEED_SOURCES), 1, "it says that the first one has gone, and goes on");
    cr_assert_not_null(last_said(w, MSG_STAGED));
    free(a.bytes);
}

Test(node, corrupt_chunk_comes_from_the_next_source)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *bad = origin_start(0, TR_MODE_EAGER), *good = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(bad, &a, 1);
    origin_serve(good, &a, 1);
    mem_corrupt_data(bad->t, 5, 777);
    msg_source_t sources[] = {source_of(bad), source_of(good)};
    announce_to(w, &a, 1, sources, 2);
    run_for(1000000);
    commit_to(w, &a, 1, 1);
    cr_assert(serves(w, &a, 1));
    cr_assert_eq(worker_node_core(w->node)->bulk.chunks_bad, 1);
    const msg_t *staged = last_said(w, MSG_STAGED);
    cr_assert_eq(staged->staged.source_count, 2);
    cr_assert_eq(staged->staged.sources[0].bytes + staged->staged.sources[1].bytes, a.payload_bytes);
    run_for(5000000);
    cr_assert_eq(last_said(w, MSG_HEARTBEAT)->heartbeat.counts.chunks_bad, 1);
    free(a.bytes);
}

/* It is served on when its digest is known, and not when it arrives. */
Test(node, a_corrupt_chunk_is_relayed_to_no_other)
{
    worker_t *w1 = worker_joined(0, NULL), *w2 = worker_joined(1, NULL);
    origin_t *bad = origin_start(0, TR_MODE_EAGER), *good = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(bad, &a, 1);
    origin_serve(good, &a, 1);
    mem_corrupt_data(bad->t, 5, 777);
    msg_source_t sources[] = {source_of(bad), source_of(good)}, from_w1 = source_worker(w1);
    announce_to(w2, &a, 1, &from_w1, 1);
    announce_to(w1, &a, 1, sources, 2);
    run_for(1000000);
    cr_assert_not_null(last_said(w2, MSG_STAGED));
    cr_assert_eq(worker_node_core(w1->node)->bulk.chunks_bad, 1);
    cr_assert_eq(worker_node_core(w2->node)->bulk.chunks_bad, 0);
    free(a.bytes);
}

Test(node, asks_the_broker_when_every_source_is_lost)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *bad = origin_start(0, TR_MODE_EAGER), *good = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1), other = content(1);
    other.bytes[777] ^= 1;
    origin_serve(bad, &other, 1);
    origin_serve(good, &a, 1);
    msg_source_t source = source_of(bad);
    announce_to(w, &a, 1, &source, 1);
    run_for(1000000);
    const msg_t *need = last_said(w, MSG_NEED_SOURCES);
    cr_assert(need && need->need_sources.version == 1 && need->need_sources.lost_count == 1 &&
              need->need_sources.lost[0] == bad->token);
    cr_assert_null(last_said(w, MSG_STAGED));
    source = source_of(good);
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", &source, 1}});
    run_for(1000000);
    cr_assert_not_null(last_said(w, MSG_STAGED));
    free(a.bytes);
    free(other.bytes);
}

enum { AFAR_IS_KNOWN_US = 6000000 };

/* A source that is on another network: it says nothing, and asks to it are lost. */
static origin_t *announce_from_afar(worker_t *w, const test_content_t *a, uint64_t deadline_ms)
{
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    origin_serve(o, a, 1);
    mem_stop(o->t, true);
    msg_source_t source = source_of(o);
    announce_until(w, a, 1, &source, 1, deadline_ms);
    return o;
}

/* A time that no message may carry: a worker that joined again for it would do so at each heartbeat. */
Test(node, what_can_never_be_sent_is_dropped_and_the_session_stays)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    announce_from_afar(w, &a, 9000);
    run_for(100000);
    versions_find(&adapter_of(w)->versions, 1)->what->connect_us = UINT64_MAX;
    run_for(12000000);
    cr_assert_eq(count_said(w, MSG_NACK), 1);
    const msg_nack_t *nack = &last_said(w, MSG_NACK)->nack;
    cr_assert(!strcmp(nack->code, "unavailable") && nack->version == 1 && !nack->connect_us,
              "of it the code");
    origin_t *o = origin_start(1, TR_MODE_EAGER);
    msg_source_t source = source_of(o);
    bring_version(w, o, &a, 2, 1);
    cr_assert_eq(count_said(w, MSG_ACTIVE), 1);
    versions_find(&adapter_of(w)->versions, 2)->what->sealed_us = world_now_us + 1000000;
    announce_to(w, &a, 2, &source, 1); /* asks for ACTIVE once more */
    run_for(900000);
    cr_assert_eq(count_said(w, MSG_ACTIVE), 1);
    cr_assert_eq(w->redials, 0);
    free(a.bytes);
}

Test(node, sources_that_cannot_be_reached_are_named_before_the_deadline)
{
    static const uint64_t DEADLINES_MS[] = {60000, 9000};
    for (int i = 0; i < 2; i++) {
        worker_t *w = worker_joined(0, NULL);
        test_content_t a = content(1);
        announce_from_afar(w, &a, DEADLINES_MS[i]);
        run_for(DEADLINES_MS[i] * 1000 - 1100000);
        cr_assert_null(last_said(w, MSG_NACK), "case %d: ended for all before its time", i);
        run_for(1050000);
        const msg_t *nack = last_said(w, MSG_NACK);
        cr_assert_not_null(nack, "case %d", i);
        cr_assert_str_eq(nack->nack.code, "unavailable");
        cr_assert_str_eq(nack->nack.phase, "fetch");
        cr_assert_not_null(strstr(nack->nack.message, "cannot reach trainer over"), "%s", nack->nack.message);
        cr_assert_eq(nack->nack.connect_us, 0, "no source has answered");
        cr_assert_not_null(strstr(nack->nack.hint, "opts.data_device"));
        cr_assert_eq(last_event(w, HEDDLE_EVENT_FAILED)->code, HEDDLE_ERR_UNAVAILABLE);
        free(a.bytes);
        world_end();
    }
}

/* The broker answers each question with a list, by turns of both and of the other worker alone: one that is
 * named again is asked again, and for a while it is not known that it does not answer. */
Test(node, sources_that_change_and_cannot_be_reached_are_all_named_before_the_deadline)
{
    for (uint64_t deadline_s = 8; deadline_s <= 30; deadline_s++) {
        worker_t *w = worker_joined(0, NULL);
        test_content_t a = content(1);
        origin_t *trainer = announce_from_afar(w, &a, deadline_s * 1000),
                 *peer = origin_start(1, TR_MODE_EAGER);
        origin_serve(peer, &a, 1);
        mem_stop(peer->t, true);
        msg_source_t both[] = {source_of(peer), source_of(trainer)};
        both[0].kind = SOURCE_WORKER, both[0].name = "w2";
        uint32_t answered = 0;
        for (uint64_t ms = 0; ms < deadline_s * 1000 - 50; ms += 50) {
            run_for(50000);
            bool is_early = ms + 1100 < deadline_s * 1000;
            cr_assert(!is_early || !last_said(w, MSG_NACK), "ended for all before its time");
            if (count_said(w, MSG_NEED_SOURCES) == answered) continue;
            answered = count_said(w, MSG_NEED_SOURCES);
            tell_worker(w, &(msg_t){.type = MSG_SOURCES,
                                    .sources = {w->token, 1, "policy", both, answered % 2 ? 1 : 2}});
        }
        const msg_t *nack = last_said(w, MSG_NACK);
        cr_assert_not_null(nack, "deadline of %d s", (int)deadline_s);
        cr_assert_str_eq(nack->nack.code, "unavailable");
        cr_assert_str_eq(nack->nack.phase, "fetch");
        cr_assert_not_null(strstr(nack->nack.message, "cannot reach trainer, w2 over"), "%s",
                           nack->nack.message);
        free(a.bytes);
        world_end();
    }
}

/* The worker that it was told of has joined anew since. */
Test(node, a_source_with_two_sessions_is_named_once)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    origin_t *trainer = announce_from_afar(w, &a, 8000), *peer = origin_start(1, TR_MODE_EAGER);
    mem_stop(peer->t, true);
    msg_source_t all[] = {source_of(trainer), source_of(peer), source_of(peer)};
    all[1].kind = all[2].kind = SOURCE_WORKER;
    all[1].name = all[2].name = "w2";
    all[2].token++;
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", all, 3}});
    run_for(7990000);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert_not_null(nack);
    cr_assert_not_null(strstr(nack->nack.message, "cannot reach trainer, w2 over"), "%s", nack->nack.message);
    free(a.bytes);
}

Test(node, a_source_that_is_reached_late_still_serves)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    origin_t *o = announce_from_afar(w, &a, 60000);
    run_for(40000000);
    mem_stop(o->t, false);
    msg_source_t source = source_of(o);
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", &source, 1}});
    run_for(5000000);
    cr_assert_not_null(last_said(w, MSG_STAGED));
    cr_assert_null(last_said(w, MSG_NACK));
    free(a.bytes);
}

/* A late joiner has no deadline that would end the silence. */
Test(node, heartbeats_tell_why_no_byte_comes)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    origin_t *o = announce_from_afar(w, &a, 0);
    run_for(AFAR_IS_KNOWN_US);
    const msg_progress_t *p = last_said(w, MSG_HEARTBEAT)->heartbeat.adapters;
    cr_assert_eq(p->fetching, 1);
    cr_assert_str_eq(p->message,
                     "cannot reach trainer over memory: no answer there; unless it has ended, all need the "
                     "same network as their data device");
    run_for(60000000);
    cr_assert_neq(last_said(w, MSG_HEARTBEAT)->heartbeat.adapters->message[0], 0, "it lasts");
    mem_stop(o->t, false);
    transfer_mem_ops.unshare(o->t, key_of(1));
    run_for(1000);
    cr_assert_eq(transfer_mem_ops.share(o->t, o->region, key_of(1)), HEDDLE_OK); /* it beats, and no more */
    msg_source_t source = source_of(o);
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", &source, 1}});
    run_for(2000000);
    p = last_said(w, MSG_HEARTBEAT)->heartbeat.adapters;
    cr_assert_eq(p->fetching, 1);
    cr_assert_str_eq(p->message, "", "a source is there");
    cr_assert_eq(transfer_mem_ops.extend(o->t, key_of(1), 0, a.content_bytes), HEDDLE_OK);
    run_for(5000000);
    cr_assert_not_null(last_said(w, MSG_STAGED));
    free(a.bytes);
}

/* What is logged while so much time goes by. */
static const char *log_of(uint64_t for_us)
{
    static char text[65536];
    int real = dup(STDERR_FILENO), log = memfd_create("log", MFD_CLOEXEC);
    cr_assert(real >= 0 && log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    log_set_level(LOG_INFO);
    run_for(for_us);
    log_set_level(LOG_WARN);
    dup2(real, STDERR_FILENO);
    ssize_t n = pread(log, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    close(real);
    close(log);
    return text;
}

/* A version that was just retired is no trouble: the log says so, and does not warn. */
Test(node, sources_that_refuse_are_named_with_what_they_answer)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1); /* not served */
    mem_refuse(o->t, HEDDLE_ERR_NOT_FOUND);
    msg_source_t source = source_of(o);
    announce_until(w, &a, 1, &source, 1, 60000);
    const char *log = log_of(59950000);
    cr_assert(strstr(log, "info  fetch.unreached") && !strstr(log, "warn  fetch.unreached"), "%s", log);
    cr_assert_not_null(last_said(w, MSG_NACK));
    cr_assert_not_null(strstr(last_said(w, MSG_NACK)->nack.message, "trainer answered not_found"));
    free(a.bytes);
}

/* A late worker hears of a publisher that has just ended; the broker answers with a source that is there. */
Test(node, a_source_that_is_gone_is_no_warning_where_another_serves)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    announce_from_afar(w, &a, 60000);
    origin_t *other = origin_start(1, TR_MODE_EAGER);
    origin_serve(other, &a, 1);
    while (!last_said(w, MSG_NEED_SOURCES)) {
        const char *log = log_of(1000);
        cr_assert(!strstr(log, "fetch.unreached"), "%s", log);
    }
    msg_source_t source = source_of(other);
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", &source, 1}});
    const char *log = log_of(5000000);
    cr_assert(!strstr(log, "fetch.unreached"), "%s", log);
    cr_assert_not_null(last_said(w, MSG_STAGED));
    free(a.bytes);
}

Test(node, sources_that_stay_lost_are_reported_once)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    announce_from_afar(w, &a, 60000);
    const char *first = strstr(log_of(20000000), "warn  fetch.unreached");
    cr_assert_not_null(first);
    cr_assert_not_null(
        strstr(first, "cannot reach trainer over memory: no answer there; unless it has ended"));
    cr_assert_null(strstr(first + 1, "warn  fetch.unreached"));
    free(a.bytes);
}

/* It refuses, then has nothing to send yet, then is cut off: what it refused before it beat is no reason any more. */
Test(node, a_beat_of_a_source_ends_what_was_told_of_it)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    transfer_mem_ops.unshare(o->t, key_of(1));
    run_for(1000);
    cr_assert_eq(transfer_mem_ops.share(o->t, o->region, key_of(1)), HEDDLE_OK); /* and no byte yet */
    mem_refuse(o->t, HEDDLE_ERR_NOT_FOUND);
    msg_source_t source = source_of(o);
    announce_until(w, &a, 1, &source, 1, 60000);
    run_for(10000000);
    mem_refuse(o->t, HEDDLE_OK);
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", &source, 1}});
    run_for(5000000);
    mem_stop(o->t, true);
    run_for(44950000);
    cr_assert_not_null(last_said(w, MSG_NACK));
    cr_assert_not_null(strstr(last_said(w, MSG_NACK)->nack.message, "cannot reach trainer over"), "%s",
                       last_said(w, MSG_NACK)->nack.message);
    free(a.bytes);
}

Test(node, a_source_that_was_reached_is_waited_for)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    transfer_mem_ops.unshare(o->t, key_of(1));
    run_for(1000);
    cr_assert_eq(transfer_mem_ops.share(o->t, o->region, key_of(1)), HEDDLE_OK);
    uint64_t manifest = manifest_offset(a.payload_bytes); /* and no chunk yet */
    cr_assert_eq(transfer_mem_ops.extend(o->t, key_of(1), manifest, a.manifest_bytes), HEDDLE_OK);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(1000000);
    mem_stop(o->t, true);
    run_for(40000000);
    cr_assert_not_null(last_said(w, MSG_NEED_SOURCES));
    cr_assert_null(last_said(w, MSG_NACK));
    mem_stop(o->t, false);
    cr_assert_eq(transfer_mem_ops.extend(o->t, key_of(1), 0, a.payload_bytes), HEDDLE_OK);
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {w->token, 1, "policy", &source, 1}});
    run_for(5000000);
    cr_assert_not_null(last_said(w, MSG_STAGED));
    free(a.bytes);
}

Test(node, dead_source_costs_no_more_than_a_window)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *first = origin_start(0, TR_MODE_EAGER), *second = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content_make(1, 24, 3000); /* 4.6 MB */
    origin_serve(first, &a, 1);
    origin_serve(second, &a, 1);
    msg_source_t sources[] = {source_of(first), source_of(second)};
    announce_to(w, &a, 1, sources, 2);
    uint64_t due = 0;
    while (!adapter_of(w)->intake.download ||
           adapter_of(w)->intake.download->bytes_done < a.payload_bytes / 2)
        world_turn(&due);
    mem_kill(first->t);
    run_for(1000000);
    cr_assert_not_null(last_said(w, MSG_STAGED));
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    cr_assert_lt(c.bytes_in, a.content_bytes + LIMIT_WINDOW_BYTES);
    cr_assert_gt(worker_node_core(w->node)->bulk.retries, 0);
    free(a.bytes);
}

/* A version whose manifest has two pieces or more, from three sources.  Of the first one `lost_count` pieces do
 * not come, which the second one sends; that one's manifest is wrong, and the first one's where it sends all. */
static uint32_t blamed_for_a_manifest(uint32_t lost_count)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o[3];
    msg_source_t sources[3];
    test_content_t a = content_make(1, 2000, 16);
    cr_assert_gt(a.manifest_bytes, DOWNLOAD_PIECE_BYTES);
    for (uint32_t i = 0; i < 3; i++) {
        o[i] = origin_start(i, TR_MODE_EAGER);
        origin_serve(o[i], &a, 1);
        sources[i] = source_of(o[i]);
    }
    ((uint8_t *)o[lost_count ? 1 : 0]->region->base)[manifest_offset(a.payload_bytes) + 3] ^= 1;
    mem_drop_data(o[0]->t, lost_count);
    announce_to(w, &a, 1, sources, 3);
    run_for(5000000);
    cr_assert_eq(count_said(w, MSG_STAGED), 1);
    cr_assert_eq(worker_node_core(w->node)->bulk.chunks_bad, 1);
    const msg_t *need = last_said(w, MSG_NEED_SOURCES);
    uint32_t count = need ? need->need_sources.bad_count : 0;
    cr_assert(!count || need->need_sources.bad[0] == sources[0].token);
    free(a.bytes);
    return count;
}

Test(node, one_that_sent_all_of_a_wrong_manifest_is_blamed) { cr_assert_eq(blamed_for_a_manifest(0), 1); }

/* Which of the two sent the wrong piece cannot be found. */
Test(node, of_two_that_sent_a_wrong_manifest_none_is_blamed) { cr_assert_eq(blamed_for_a_manifest(1), 0); }

Test(node, wrong_manifest_is_refused_before_it_is_decoded)
{
    worker_t *w = worker_joined(0, NULL);
    test_content_t a = content(1);
    msg_source_t sources[2];
    for (uint32_t i = 0; i < 2; i++) {
        origin_t *o = origin_start(i, TR_MODE_EAGER);
        origin_serve(o, &a, 1);
        sources[i] = source_of(o);
    }
    a.manifest_digest.b[0] ^= 1;
    for (uint32_t i = 0; i < 2; i++) { /* the first one is asked twice */
        announce_to(w, &a, 1, &sources[i], 1);
        run_for(1000000);
    }
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack && !strcmp(nack->nack.code, "digest_mismatch") && !strcmp(nack->nack.phase, "verify"));
    cr_assert_eq(slots_count(worker_node_slots(w->node), 0).used, 0);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_FAILED);
    cr_assert(e && e->code == HEDDLE_ERR_DIGEST_MISMATCH && e->message[0]);
    free(a.bytes);
}

Test(node, manifest_that_is_none_is_refused)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    uint8_t *manifest = a.bytes + manifest_offset(a.payload_bytes);
    memset(manifest, 0xc1, 64);
    a.manifest_digest = digest_blake2b(manifest, a.manifest_bytes); /* as announced, and still no manifest */
    bring_version(w, o, &a, 1, 1);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack && !strcmp(nack->nack.code, "protocol") && !strcmp(nack->nack.phase, "verify"));
    free(a.bytes);
}

Test(node, region_of_another_size_is_refused)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    a.payload_bytes -= 100; /* same place for the manifest */
    bring_version(w, o, &a, 1, 1);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack && !strcmp(nack->nack.code, "protocol"));
    free(a.bytes);
}

Test(node, wrong_digest_of_the_whole_is_refused)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    a.h1.b[3] ^= 1;
    bring_version(w, o, &a, 1, 0);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack && !strcmp(nack->nack.code, "digest_mismatch") && !strcmp(nack->nack.phase, "verify"));
    cr_assert(nack->nack.expected[0] && nack->nack.found[0]);
    cr_assert_null(last_said(w, MSG_STAGED));
    run_for(1000000);
    cr_assert_eq(slots_count(worker_node_slots(w->node), 0).used, 0);
    free(a.bytes);
}

Test(node, abort_frees_the_slot_and_late_bytes_do_no_harm)
{
    worker_t *w = worker_start(0, TR_MODE_EAGER, NULL);
    w->slots = 1;
    node_line(w->node, true);
    run_for(1000);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content_make(1, 24, 3000), b = content_make(2, 24, 3000); /* more than a window */
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    uint64_t due = 0;
    while (!adapter_of(w)->intake.download || adapter_of(w)->intake.download->state != DOWNLOAD_CHUNKS)
        world_turn(&due);
    mem_delay(o->t, world_now_us + 300000); /* the rest is asked for, sent, and comes late */
    run_for(50000);
    cr_assert_lt(adapter_of(w)->intake.download->bytes_done, a.payload_bytes / 2);
    tell_worker(
        w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, 1, "policy", "deadline", "the deadline ran out"}});
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_FAILED);
    cr_assert(e && e->code == HEDDLE_ERR_DEADLINE);
    cr_assert_str_eq(e->message, "the deadline ran out");
    origin_t *p = origin_start(1, TR_MODE_EAGER);
    bring_version(w, p, &b, 2, 1); /* takes the only slot */
    cr_assert(serves(w, &b, 2));
    run_for(1000000);
    cr_assert(serves(w, &b, 2));
    free(a.bytes);
    free(b.bytes);
}

Test(node, late_bytes_do_no_harm_with_rendezvous_either)
{
    worker_t *w = worker_start(0, TR_MODE_RENDEZVOUS, NULL);
    node_line(w->node, true);
    run_for(1000);
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS), *p = origin_start(1, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1), b = content(2);
    for (int turns = 1; turns < 12; turns++) {
        origin_serve(o, &a, (uint64_t)turns * 2 + 1);
        msg_source_t source = source_of(o);
        announce_to(w, &a, (uint64_t)turns * 2 + 1, &source, 1);
        uint64_t due = 0;
        for (int i = 0; i < turns; i++) world_turn(&due); /* somewhere on the way */
        tell_worker(w, &(msg_t){.type = MSG_ABORT,
                                .abort = {w->token, (uint64_t)turns * 2 + 1, "policy", "deadline", "over"}});
        bring_version(w, p, &b, (uint64_t)turns * 2 + 2, (uint64_t)turns);
        cr_assert(serves(w, &b, (uint64_t)turns * 2 + 2), "%d", turns);
        tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, (uint64_t)turns * 2, "policy"}});
        run_for(1000);
    }
    free(a.bytes);
    free(b.bytes);
}

Test(node, no_slot_names_who_holds_what)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    slot_t *held[3] = {NULL};
    test_content_t a;
    for (uint64_t v = 1; v <= 3; v++) {
        a = content(v);
        bring_version(w, o, &a, v, v);
        cr_assert_eq(slots_acquire(worker_node_slots(w->node), 0, 0, &held[v - 1]), HEDDLE_OK);
        free(a.bytes);
    }
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 1, "policy"}});
    run_for(2000000);
    a = content(4);
    origin_serve(o, &a, 4);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 4, &source, 1);
    run_for(500000);
    cr_assert_null(last_said(w, MSG_NACK), "a reader may be about to finish");
    run_for(1000000);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack && !strcmp(nack->nack.code, "no_slot") && !strcmp(nack->nack.phase, "announce"));
    cr_assert(strstr(nack->nack.message, "version 1 held by 1 reader for 3.0 s"), "%s", nack->nack.message);
    cr_assert(strstr(nack->nack.message, "all 3 slots") && strstr(nack->nack.hint, "opts.slots"));
    slot_release(&held[0]);
    run_for(1000);
    announce_to(w, &a, 4, &source, 1);
    run_for(100000);
    cr_assert_eq(last_said(w, MSG_STAGED)->staged.version, 4);
    for (int i = 1; i < 3; i++) slot_release(&held[i]);
    free(a.bytes);
}

/* The broker counts a version that was decided and refused as one that this worker holds: it learns why that
 * is not so any more. */
Test(node, a_refused_version_that_makes_room_says_for_which)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    msg_source_t source = source_of(o);
    for (uint64_t v = 1; v <= 4; v++) {
        test_content_t a = content(v);
        origin_serve(o, &a, v);
        announce_to(w, &a, v, &source, 1);
        run_for(100000);
        if (v <= 3) answer(w, APP_STAGED, v);
        if (v <= 3) commit_to(w, &a, v, v);
        if (v <= 2) answer(w, APP_ACTIVATE, v);
        if (v == 3) cr_assert_eq(reject(w, v, "it does not fit the engine"), HEDDLE_OK);
        free(a.bytes);
    }
    run_for(1500000);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack->nack.version == 3 && nack->nack.decision == 0);
    cr_assert_str_eq(nack->nack.code, "no_slot");
    cr_assert_str_eq(nack->nack.phase, "activate");
    cr_assert_str_eq(nack->nack.message, "its slot was needed for version 4");
    cr_assert_str_eq(last_event(w, HEDDLE_EVENT_FAILED)->message, nack->nack.message);
}

/* --- content that is here under another number --- */

static const slot_t *slot_of_version(worker_t *w, uint64_t version)
{
    slot_t *held = NULL;
    cr_assert_eq(slots_acquire(worker_node_slots(w->node), 0, version, &held), HEDDLE_OK);
    const slot_t *slot = held;
    slot_release(&held);
    return slot;
}

/* `a` came as version 1, `b` as version 2; `a` is announced as version 3, and its source has nothing. */
static worker_t *announced_again(origin_t *o, const test_content_t *a, const test_content_t *b)
{
    worker_t *w = worker_joined(0, NULL);
    bring_version(w, o, a, 1, 1);
    bring_version(w, o, b, 2, 2);
    msg_source_t source = source_of(o);
    tr_counters_t before = counters_of(w);
    announce_to(w, a, 3, &source, 1);
    run_for(1000);
    cr_assert(counters_of(w).bytes_in == before.bytes_in && counters_of(w).asks_out == before.asks_out);
    cr_assert_eq(counters_of(w).maps, before.maps);
    return w;
}

Test(node, content_that_is_here_is_not_fetched_again)
{
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2), c = content(3);
    worker_t *w = announced_again(o, &a, &b);
    const msg_t *staged = last_said(w, MSG_STAGED);
    cr_assert(staged->staged.version == 3 && digest_equal(&staged->staged.digest, &a.h1));
    cr_assert_eq(staged->staged.source_count, 0);
    cr_assert_eq(count_events(w, HEDDLE_EVENT_FETCHING), 2);
    commit_to(w, &a, 3, 3);
    cr_assert(serves(w, &a, 3));
    cr_assert_eq(slot_of_version(w, 1)->parts[0].region, slot_of_version(w, 3)->parts[0].region);
    cr_assert_str_eq(slot_of_version(w, 1)->tag + 8, slot_of_version(w, 3)->tag + 8, "the same digest");

    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 1, "policy"}});
    run_for(1000);
    cr_assert_eq(slots_count(worker_node_slots(w->node), 0).used, 2);
    cr_assert(serves(w, &a, 3), "1 went, and left its bytes");
    bring_version(w, o, &c, 4, 4);
    commit_to(w, &a, 3, 5);
    cr_assert(serves(w, &a, 3), "what came since lies elsewhere");
    free(a.bytes);
    free(b.bytes);
    free(c.bytes);
}

/* `in_manifest`: else in a tensor.  `is_known`: VERIFY has found it before. */
static void fetches_what_was_damaged(bool in_manifest, bool is_known)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    const region_t *bad = slot_of_version(w, 1)->parts[0].region;
    ((uint8_t *)bad->base)[in_manifest ? manifest_offset(a.payload_bytes) + 3 : 4097] ^=
        1; /* memory goes bad */
    if (is_known) {
        tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 77, 1, "policy"}});
        run_for(1000);
    }
    bring_version(w, o, &a, 2, 2);
    cr_assert_neq(slot_of_version(w, 2)->parts[0].region, bad);
    cr_assert(serves(w, &a, 2), "%d %d", in_manifest, is_known);
    cr_assert_null(versions_find(&adapter_of(w)->versions, 1), "it is not kept");
    cr_assert_str_eq(last_said(w, MSG_NACK)->nack.code, "digest_mismatch");
    bring_version(w, o, &a, 3, 3);
    cr_assert_eq(slot_of_version(w, 2)->parts[0].region, slot_of_version(w, 3)->parts[0].region,
                 "the good one is shared");
    free(a.bytes);
}

Test(node, content_that_went_bad_here_is_fetched) { fetches_what_was_damaged(false, false); }
Test(node, content_that_is_known_to_be_bad_is_fetched) { fetches_what_was_damaged(false, true); }
Test(node, content_whose_manifest_went_bad_is_fetched) { fetches_what_was_damaged(true, false); }

Test(node, content_that_is_here_is_served_under_each_key)
{
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    worker_t *w = announced_again(o, &a, &b);
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 1, "policy"}});
    run_for(1000);
    worker_t *other = worker_joined(1, NULL);
    bytes_t address;
    transfer_mem_ops.address(w->io.t, &address);
    msg_source_t from = {.token = w->token, .kind = SOURCE_WORKER, .name = "w1", .address = address};
    announce_to(other, &a, 3, &from, 1);
    run_for(100000);
    cr_assert(last_said(other, MSG_STAGED) && last_said(other, MSG_STAGED)->staged.version == 3);
    cr_assert_eq(last_said(other, MSG_STAGED)->staged.sources[0].bytes, a.payload_bytes);
    commit_to(other, &a, 3, 1);
    cr_assert(serves(other, &a, 3));
    free(a.bytes);
    free(b.bytes);
}

/* It is hashed again before it is relied on, which takes a while. */
Test(node, content_that_is_here_is_served_to_those_that_asked_before)
{
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = large_content(1);
    worker_t *w = worker_joined(0, NULL), *other = worker_joined(1, NULL);
    bring_version(w, o, &a, 1, 1);
    msg_source_t from_origin = source_of(o), from = source_worker(w);
    stop_work(w, 3000000);
    announce_to(w, &a, 2, &from_origin, 1);
    announce_to(other, &a, 2, &from, 1);
    run_for(5000000);
    cr_assert_eq(adapter_of(w)->intake.state, INTAKE_COMPARING);
    stop_work(w, 0);
    run_for(1000000);
    cr_assert_eq(slot_of_version(w, 1)->parts[0].region, slot_of_version(w, 2)->parts[0].region);
    cr_assert_eq(staged_from(other), w->token);
    cr_assert_eq(counters_of(other).refused_in, 0);
    free(a.bytes);
}

/* The digest does not cover all of the manifest (metadata, say). */
Test(node, content_with_another_manifest_is_fetched)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), other = a;
    bring_version(w, o, &a, 1, 1);
    other.manifest_digest.b[0] ^= 1;
    msg_source_t source = source_of(o);
    uint64_t asks = counters_of(w).asks_out;
    announce_to(w, &other, 2, &source, 1);
    run_for(1000);
    cr_assert_gt(counters_of(w).asks_out, asks);
    cr_assert_eq(count_said(w, MSG_STAGED), 1);
    free(a.bytes);
}

Test(node, content_that_is_here_outlives_its_worker)
{
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    worker_t *w = announced_again(o, &a, &b);
    slot_t *held[2];
    cr_assert_eq(slots_acquire(worker_node_slots(w->node), 0, 1, &held[0]), HEDDLE_OK);
    cr_assert_eq(slots_acquire(worker_node_slots(w->node), 0, 3, &held[1]), HEDDLE_OK);
    worker_stop(0);
    slot_release(&held[0]);
    cr_assert_eq(memcmp(held[1]->parts[0].region->view, a.bytes, a.content_bytes), 0);
    slot_release(&held[1]);
    free(a.bytes);
    free(b.bytes);
}

static const msg_progress_t *policy_progress(const worker_t *w)
{
    const msg_t *m = last_said(w, MSG_HEARTBEAT);
    cr_assert(m && !strcmp(m->heartbeat.adapters[0].adapter, "policy"));
    return &m->heartbeat.adapters[0];
}

/* Three slots: 1 is read, 2 is kept, 3 is active. */
Test(node, who_lacks_a_slot_says_which_versions_may_go)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    slot_t *held[2] = {NULL};
    test_content_t a;
    for (uint64_t v = 1; v <= 3; v++) {
        a = content(v);
        bring_version(w, o, &a, v, v);
        if (v < 3) cr_assert_eq(slots_acquire(worker_node_slots(w->node), 0, 0, &held[v - 1]), HEDDLE_OK);
        free(a.bytes);
    }
    run_for(LEASE_MS * 1000 / 4);
    cr_assert_eq(policy_progress(w)->spare_count, 0, "nothing waits");
    a = content(4);
    origin_serve(o, &a, 4);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 4, &source, 1);
    run_for(500000);
    cr_assert_eq(policy_progress(w)->spare_count, 0, "readers hold both");
    slot_release(&held[1]);
    run_for(ROOM_AGAIN_US);
    cr_assert_eq(policy_progress(w)->spare_count, 1);
    cr_assert_eq(policy_progress(w)->spare[0], 2);
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 2, "policy"}});
    run_for(100000);
    cr_assert_eq(last_said(w, MSG_STAGED)->staged.version, 4);
    cr_assert_eq(count_said(w, MSG_NACK), 0);
    slot_release(&held[0]);
    free(a.bytes);
}

Test(node, slot_with_a_reader_is_not_reused)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t first = content(1);
    bring_version(w, o, &first, 1, 1);
    slot_t *held = NULL;
    slots_acquire(worker_node_slots(w->node), 0, 0, &held);
    for (uint64_t v = 2; v <= 9; v++) {
        test_content_t a = content(v);
        bring_version(w, o, &a, v, v);
        tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, v - 1, "policy"}});
        run_for(1000);
        cr_assert(serves(w, &a, v));
        cr_assert_eq(memcmp(held->parts[0].region->view, first.bytes, first.content_bytes), 0);
        free(a.bytes);
    }
    slot_release(&held);
    free(first.bytes);
}

/* Version 1 was put away here, and the cluster goes back to it while a reader holds its memory. */
Test(node, a_version_whose_former_slot_is_in_use_says_so_and_starts_when_it_is_free)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER), *other = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    slot_t *held = NULL;
    bring_version(w, o, &a, 1, 1);
    slots_acquire(worker_node_slots(w->node), 0, 0, &held);
    bring_version(w, other, &b, 2, 2);
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {w->token, 1, "policy"}});
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(LEASE_MS * 1000);
    const msg_progress_t *p = policy_progress(w);
    cr_assert_eq(p->fetching, 1);
    cr_assert_str_eq(p->message, "its former slot here is not free yet (readers: 1)");
    cr_assert_eq(p->data_bytes, 0, "it has not begun");
    cr_assert_eq(count_said(w, MSG_NACK), 0);
    slot_release(&held);
    run_for(LEASE_MS * 1000);
    cr_assert_eq(last_said(w, MSG_STAGED)->staged.version, 1);
    cr_assert_eq(policy_progress(w)->fetching, 0);
    cr_assert_eq(policy_progress(w)->message[0], 0);
    free(a.bytes);
    free(b.bytes);
}

/* A retired version gives its memory up at once; the bytes of it that are still on their way stay what they
 * were. */
Test(node, slot_is_reused_while_it_is_being_sent)
{
    worker_t *w1 = worker_joined(0, NULL), *w2 = worker_joined(1, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    w1->slots = 1;
    node_line(w1->node, true); /* joins again, with one slot */
    run_for(1000);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o), from_w1 = source_worker(w1);
    announce_to(w1, &a, 1, &source, 1);
    run_for(100000);
    uint64_t due = 0;
    announce_to(w2, &a, 1, &from_w1, 1);
    while (!adapter_of(w2)->intake.download || adapter_of(w2)->intake.download->state != DOWNLOAD_CHUNKS)
        world_turn(&due);
    mem_delay(w1->io.t, world_now_us + 300000);
    run_for(50000);
    tell_worker(w1, &(msg_t){.type = MSG_RETIRE, .retire = {w1->token, 1, "policy"}});
    origin_serve(o, &b, 2);
    announce_to(w1, &b, 2, &source, 1);
    run_for(100000);
    cr_assert_eq(slots_at(worker_node_slots(w1->node), 0, 0)->taken_for, 2);
    cr_assert_eq(count_said(w2, MSG_STAGED), 0, "they are on their way still");
    run_for(2000000);
    cr_assert_eq(last_said(w1, MSG_STAGED)->staged.version, 2);
    cr_assert_eq(worker_node_core(w2->node)->bulk.chunks_bad, 0, "what was sent was written over");
    free(a.bytes);
    free(b.bytes);
}

Test(node, lapsed_session_applies_nothing_that_was_queued)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    bring_version(w, o, &a, 1, 1);
    origin_serve(o, &b, 2);
    msg_source_t source = source_of(o);
    announce_to(w, &b, 2, &source, 1);
    run_for(100000);
    w->deaf = true;
    uint64_t old = w->token;
    world_now_us += 10000000; /* stopped for ten seconds */
    worker_node_ops.tick(w->node, world_now_us);
    tell_worker(w, &(msg_t){.type = MSG_COMMIT, .commit = {old, 2, 2, "policy", b.h1}});
    cr_assert(serves(w, &a, 1));
    cr_assert_eq(count_events(w, HEDDLE_EVENT_LOST_BROKER), 1);
    w->deaf = false;
    w->decision = (msg_decision_t){"policy", 2, 2, b.h1}; /* and the broker says it again */
    w->keep[0] = (msg_keep_t){.adapter = "policy", .version = 2};
    w->keep_count = 1;
    run_for(2000000);
    cr_assert_neq(w->token, old);
    cr_assert(serves(w, &b, 2));
    const msg_t *join = last_said(w, MSG_JOIN);
    cr_assert(join->join.held_count == 2 && join->join.prev_token == old &&
              join->join.adapters[0].decision == 1);
    cr_assert_geq(last_said(w, MSG_ACTIVE)->active.decision, 2);
    run_for(2000000);
    cr_assert_eq(last_said(w, MSG_HEARTBEAT)->heartbeat.counts.fenced, 1);
    free(a.bytes);
    free(b.bytes);
}

Test(node, broker_restart_fetches_nothing_again)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content_make(2, 24, 3000);
    bring_version(w, o, &a, 1, 1);
    uint64_t active_us = world_now_us;
    origin_serve(o, &b, 2);
    msg_source_t source = source_of(o);
    announce_to(w, &b, 2, &source, 1);
    uint64_t due = 0;
    while (!adapter_of(w)->intake.download ||
           adapter_of(w)->intake.download->bytes_done < b.payload_bytes / 3)
        world_turn(&due);
    node_line(w->node, false);
    w->cut = true;
    run_for(500000); /* the fetch goes on and ends */
    cr_assert_null(adapter_of(w)->intake.download);
    cr_assert_eq(count_said(w, MSG_STAGED), 1);
    w->cut = false;
    w->decision = (msg_decision_t){"policy", 1, 1, a.h1};
    w->keep[0] = (msg_keep_t){.adapter = "policy", .version = 1};
    w->keep[1] = (msg_keep_t){.adapter = "policy", .version = 2};
    w->keep_count = 2;
    node_line(w->node, true);
    run_for(100000);
    const msg_t *join = last_said(w, MSG_JOIN);
    cr_assert_eq(join->join.held_count, 2);
    cr_assert_eq(join->join.former_count, 0, "of the same start");
    cr_assert(join->join.counts.slots_total == 6 && join->join.counts.slots_free == 4 &&
              join->join.counts.slots_held == 0);
    cr_assert_geq(join->join.counts.bytes_in, a.payload_bytes + b.payload_bytes);
    for (uint32_t i = 0; i < 2; i++) {
        const msg_held_t *h = &join->join.held[i];
        cr_assert(h->version == 1 ? h->state == HELD_ACTIVE : h->state == HELD_STAGED);
        cr_assert_eq(h->verified, VERIFIED_HERE);
        uint64_t least_us = h->version == 1 ? 500000 : 1, most_us = world_now_us - active_us;
        cr_assert_geq(h->age_us, least_us, "version %d", (int)h->version);
        cr_assert_leq(h->age_us, h->version == 1 ? most_us + 1000 : most_us - 1);
    }
    uint64_t first = w->token;
    w->next_token += 1ull << 32; /* the broker is started again, twice */
    for (int i = 0; i < 2; i++) {
        node_line(w->node, false);
        node_line(w->node, true);
        run_for(100000);
    }
    join = last_said(w, MSG_JOIN);
    cr_assert(join->join.former_count == 1 && join->join.former_tokens[0] == first);
    announce_to(w, &b, 2, &source, 1); /* the broker says it again: held already */
    commit_to(w, &b, 2, 2);
    cr_assert(serves(w, &b, 2));
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    cr_assert_eq(c.bytes_in, a.payload_bytes + a.manifest_bytes + b.payload_bytes + b.manifest_bytes);
    free(a.bytes);
    free(b.bytes);
}

Test(node, welcome_drops_what_is_not_kept)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    bring_version(w, o, &a, 1, 1);
    bring_version(w, o, &b, 2, 2);
    w->decision = (msg_decision_t){"policy", 2, 2, b.h1};
    node_line(w->node, false);
    node_line(w->node, true);
    run_for(100000);
    slot_t *held = NULL;
    cr_assert_eq(slots_acquire(worker_node_slots(w->node), 0, 1, &held), HEDDLE_ERR_NOT_FOUND);
    cr_assert(serves(w, &b, 2));
    cr_assert_eq(last_event(w, HEDDLE_EVENT_RETIRED)->version, 1);
    cr_assert_eq(slots_count(worker_node_slots(w->node), 0).used, 1);
    free(a.bytes);
    free(b.bytes);
}

/* It loads one version after the other: the time in which it has not begun is not that of loading. */
Test(node, a_version_that_arrives_while_another_is_loaded)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    msg_source_t source = source_of(o);
    origin_serve(o, &a, 1);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    origin_serve(o, &b, 2);
    announce_to(w, &b, 2, &source, 1);
    run_for(100000);
    cr_assert_eq(last_event(w, HEDDLE_EVENT_ARRIVED)->version, 2);
    world_now_us += 6000000;
    cr_assert_eq(answer(w, APP_STAGED, 1), HEDDLE_OK);
    const msg_staged_t *m = &last_said(w, MSG_STAGED)->staged;
    cr_assert(m->version == 1 && m->stage_us >= 6000000 && m->busy_us == 0);
    world_now_us += 300000;
    cr_assert_eq(answer(w, APP_STAGED, 2), HEDDLE_OK);
    m = &last_said(w, MSG_STAGED)->staged;
    cr_assert(m->version == 2 && m->stage_us >= 300000 && m->stage_us < 400000, "%llu",
              (unsigned long long)m->stage_us);
    cr_assert(m->busy_us >= 6000000 && m->busy_us < 6200000, "%llu", (unsigned long long)m->busy_us);
    free(a.bytes);
    free(b.bytes);
}

Test(node, application_loads_and_switches)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_ARRIVED));
    cr_assert_null(last_said(w, MSG_STAGED));
    slot_t *held = NULL;
    cr_assert_eq(slots_acquire(worker_node_slots(w->node), 0, 1, &held), HEDDLE_OK); /* to load it */
    slot_release(&held);
    cr_assert_eq(answer(w, APP_ACTIVATE, 1), HEDDLE_ERR_NOT_FOUND);
    world_now_us += 250000;
    cr_assert_eq(answer(w, APP_STAGED, 1), HEDDLE_OK);
    cr_assert_eq(last_said(w, MSG_STAGED)->staged.stage_us >= 250000, true);
    commit_to(w, &a, 1, 1);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_COMMIT));
    cr_assert_not(serves(w, &a, 1));
    world_now_us += 7000;
    cr_assert_eq(answer(w, APP_ACTIVATE, 1), HEDDLE_OK);
    cr_assert(serves(w, &a, 1));
    cr_assert_eq(last_said(w, MSG_ACTIVE)->active.activate_us, 7000);
    cr_assert_eq(answer(w, APP_STAGED, 9), HEDDLE_ERR_NOT_FOUND);
    free(a.bytes);
}

Test(node, application_rejects)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    cr_assert_eq(reject(w, 1, "rank 64 is more than 32"), HEDDLE_OK);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack->nack.decision == 0 && !strcmp(nack->nack.phase, "stage") &&
              strstr(nack->nack.message, "rank 64"));
    run_for(1000);
    cr_assert_eq(slots_count(worker_node_slots(w->node), 0).used, 0);
    origin_serve(o, &b, 2);
    announce_to(w, &b, 2, &source, 1);
    run_for(100000);
    answer(w, APP_STAGED, 2);
    commit_to(w, &b, 2, 5);
    cr_assert_eq(reject(w, 2, "engine said no"), HEDDLE_OK);
    nack = last_said(w, MSG_NACK);
    cr_assert(nack->nack.decision == 5 && !strcmp(nack->nack.phase, "activate"));
    cr_assert_eq(last_event(w, HEDDLE_EVENT_STALE)->code, HEDDLE_ERR_VERSION_FAILED);
    free(a.bytes);
    free(b.bytes);
}

Test(node, what_is_decided_while_it_is_loaded_is_refused_in_the_phase_stage)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    commit_to(w, &a, 1, 1);
    cr_assert_eq(reject(w, 1, "engine said no"), HEDDLE_OK);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack->nack.decision == 0 && !strcmp(nack->nack.phase, "stage"));
    free(a.bytes);
}

Test(node, application_tells_code_and_phase)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_NO_SPACE, "the disk is full");
    error_where(&why, NULL, 0, NULL, "export");
    error_expected(&why, "room for 5 bytes");
    error_hint(&why, "make room");
    cr_assert_eq(reject_error(w, 1, &why), HEDDLE_OK);
    const msg_nack_t *nack = &last_said(w, MSG_NACK)->nack;
    cr_assert(!strcmp(nack->code, "no_space") && !strcmp(nack->phase, "export") && nack->version == 1);
    cr_assert(!strcmp(nack->message, "the disk is full") && !strcmp(nack->expected, "room for 5 bytes"));
    cr_assert_str_eq(nack->hint, "make room");
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_FAILED);
    cr_assert(e->code == HEDDLE_ERR_NO_SPACE && e->retriable);
    free(a.bytes);
}

/* NULL: none.  One that answers no VERIFY has the number 0. */
static const msg_verified_t *verified_as(const worker_t *w, uint64_t req)
{
    for (uint32_t i = 0; i < count_said(w, MSG_VERIFIED); i++)
        if (find_said(w, MSG_VERIFIED, i)->verified.req == req)
            return &find_said(w, MSG_VERIFIED, i)->verified;
    return NULL;
}

Test(node, verify_hashes_the_slot_again)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 77, 1, "policy"}});
    run_for(1000);
    const msg_t *v = last_said(w, MSG_VERIFIED);
    cr_assert(v && v->verified.req == 77 && v->verified.exported == EXPORTED_UNKNOWN &&
              digest_equal(&v->verified.digest, &a.h1));
    ((uint8_t *)slots_at(worker_node_slots(w->node), 0, 0)->parts[0].region->base)[4097] ^=
        1; /* memory goes bad */
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 78, 1, "policy"}});
    run_for(1000);
    cr_assert(!digest_equal(&verified_as(w, 78)->digest, &a.h1));
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 79, 5, "policy"}});
    v = last_said(w, MSG_VERIFIED);
    cr_assert(v->verified.req == 79 && !strcmp(v->verified.code, "not_found"));
    free(a.bytes);
}

/* The tensors have their digest still. */
Test(node, verify_hashes_the_manifest_too)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    ((uint8_t *)slots_at(worker_node_slots(w->node), 0, 0)->parts[0].region->base)[manifest_offset(
        a.payload_bytes)] ^= 1;
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 77, 1, "policy"}});
    run_for(1000);
    const msg_verified_t *v = verified_as(w, 77);
    cr_assert(digest_equal(&v->digest, &a.h1) && v->exported == EXPORTED_UNKNOWN);
    cr_assert_str_eq(v->code, "digest_mismatch");
    free(a.bytes);
}

Test(node, what_went_bad_is_served_on_and_sent_to_no_other)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    ((uint8_t *)slots_at(worker_node_slots(w->node), 0, 0)->parts[0].region->base)[4097] ^= 1;
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 77, 1, "policy"}});
    run_for(1000);
    worker_t *other = worker_joined(1, NULL);
    announce_to(other, &a, 1, (msg_source_t[]){source_worker(w), source_of(o)}, 2);
    run_for(1000000);
    cr_assert_eq(last_said(other, MSG_STAGED)->staged.version, 1);
    cr_assert_eq(counters_of(w).bytes_out, 0);
    cr_assert_eq(adapter_of(other)->core->bulk.chunks_bad, 0);
    cr_assert_str_eq(verified_as(w, 0)->code, "digest_mismatch",
                     "the broker hears of it, after a check of either kind");
    cr_assert_eq(versions_active(&adapter_of(w)->versions)->version, 1);
    free(a.bytes);
}

Test(node, verify_asks_the_application_for_its_copy)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.answers_verify = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    digest_t other = a.h1;
    other.b[0] ^= 1;
    const struct {
        const digest_t *answer;
        exported_t expected;
    } CASES[] = {{&a.h1, EXPORTED_MATCH}, {&other, EXPORTED_DIFFERS}, {NULL, EXPORTED_UNKNOWN}};
    for (uint64_t i = 0; i < 3; i++) {
        tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, i, 1, "policy"}});
        run_for(1000);
        cr_assert_eq(count_events(w, HEDDLE_EVENT_VERIFY), i + 1);
        cr_assert_eq(count_said(w, MSG_VERIFIED), i);
        cr_assert_eq(verified(w, CASES[i].answer), HEDDLE_OK);
        cr_assert_eq(last_said(w, MSG_VERIFIED)->verified.exported, CASES[i].expected);
    }
    cr_assert_eq(verified(w, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(answer(w, APP_COPY_MISSING, 1), HEDDLE_ERR_NOT_FOUND);
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 3, 1, "policy"}});
    run_for(1000);
    cr_assert_eq(answer(w, APP_COPY_MISSING, 1), HEDDLE_OK);
    const msg_verified_t *missing = &last_said(w, MSG_VERIFIED)->verified;
    cr_assert(missing->exported == EXPORTED_DIFFERS && digest_equal(&missing->digest, &a.h1));
    cr_assert_str_eq(missing->code, "not_found");
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 9, 1, "policy"}});
    run_for(CHECK_ANSWER_US - 1000000);
    cr_assert_eq(count_said(w, MSG_VERIFIED), 4);
    run_for(2000000); /* no answer */
    cr_assert_eq(last_said(w, MSG_VERIFIED)->verified.exported, EXPORTED_UNKNOWN);
    free(a.bytes);
}

Test(node, too_many_verifications_are_refused)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.answers_verify = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 1, 1);
    for (uint64_t i = 0; i <= CHECKS_MAX; i++)
        tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, i, 1, "policy"}});
    cr_assert_str_eq(last_said(w, MSG_VERIFIED)->verified.code, "limit");
    run_for(1000);
    free(a.bytes);
}

Test(node, another_clusters_registry_is_refused)
{
    worker_t *w = worker_joined(0, NULL);
    w->cluster = "c2";
    node_line(w->node, false);
    node_line(w->node, true);
    run_for(1000);
    cr_assert_eq(count_said(w, MSG_JOIN), 1);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_REFUSED);
    cr_assert(e && strstr(e->message, "another cluster"));
    w->cluster = "c1";
    run_for(2000000); /* HELLO is said again */
    cr_assert_eq(count_said(w, MSG_JOIN), 2);
}

Test(node, name_that_is_alive_is_waited_for)
{
    worker_t *w = worker_start(0, TR_MODE_EAGER, NULL);
    w->refuse = "worker_alive";
    node_line(w->node, true);
    run_for(30000000);
    cr_assert_gt(count_said(w, MSG_JOIN), 10);
    cr_assert_eq(count_events(w, HEDDLE_EVENT_REFUSED), 1, "what repeats is counted");
    cr_assert_eq(last_event(w, HEDDLE_EVENT_REFUSED)->repeat_count, 1);
    run_for(REPEAT_US);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_REFUSED);
    cr_assert(e->repeat_count > 10 && e->retriable == 1 && e->code == HEDDLE_ERR_WORKER_ALIVE);
    cr_assert_eq(count_events(w, HEDDLE_EVENT_REFUSED), 2, "and told once a minute");
    w->refuse = "denied";
    run_for(10000000);
    cr_assert_eq(count_events(w, HEDDLE_EVENT_REFUSED), 3, "another reason is told at once");
    w->refuse = NULL;
    run_for(1000000);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_JOINED));
}

/* Two adapters: a key with the role of one of them would be refused again. */
Test(node, a_refusal_names_the_role_of_each_adapter)
{
    worker_t *w = worker_start(0, TR_MODE_EAGER, NULL);
    char each[2 * HEDDLE_NAME_MAX + 64];
    w->deaf = true;
    node_line(w->node, true);
    tell_worker(w, &(msg_t){.type = MSG_ERROR,
                            .error = {.of = MSG_HELLO,
                                      .code = "denied",
                                      .message = "the key K may not be a worker: it needs the role "
                                                 "worker:ADAPTER",
                                      .expected = "worker:ADAPTER"}});
    snprintf(each, sizeof each, "the role worker:%s, worker:%s", WORLD_ADAPTERS[0], WORLD_ADAPTERS[1]);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_REFUSED);
    cr_assert(e && strstr(e->message, each), "%s", e ? e->message : "no event");
}

static int count_in(const char *text, const char *what)
{
    int n = 0;
    while ((text = strstr(text, what))) n++, text++;
    return n;
}

/* It may not blame the broker. */
Test(node, a_worker_that_stood_still_says_so)
{
    worker_t *w = worker_joined(0, NULL);
    run_for(3000000);
    world_now_us += 2000 * LEASE_MS;
    run_for(1000);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_LOST_BROKER);
    cr_assert(e && strstr(e->message, "this process stood still for longer than a lease"), "%s",
              e ? e->message : "no event");
}

/* The broker was stopped, and another was started there with other data: this process stood still at no time. */
Test(node, a_worker_whose_lease_ends_at_another_clusters_broker_says_so)
{
    worker_t *w = worker_joined(0, NULL);
    run_for(1000000);
    node_line(w->node, false);
    w->deaf = true;
    node_line(w->node, true);
    run_for(LEASE_MS * 500);
    msg_t hello = {.type = MSG_HELLO_OK, .hello_ok = {.wire = 1, .epoch = 9, .cluster = "garage"}};
    tell_worker(w, &hello);
    run_for(LEASE_MS * 1000);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_LOST_BROKER);
    cr_assert(e && strstr(e->message, "the broker has the registry of another cluster (garage)"), "%s",
              e ? e->message : "no event");
    cr_assert(strstr(e->message, "; serving goes on") && !strstr(e->message, "stood still"), "%s",
              e->message);
}

/* ---- the version that is decided is lost ---- */

static const char LOST[] =
    "no connected process holds the bytes of policy@4, the active version: publish again";

static const char *log_of_lost(worker_t *w)
{
    captured_t stderr_now = captured_begin();
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, 4, "policy", "version_lost", LOST}});
    return captured_end(&stderr_now);
}

Test(node, a_lost_version_is_reported_once)
{
    worker_t *w = worker_joined(0, NULL);
    const char *text = log_of_lost(w);
    cr_assert(strstr(text, "version.lost: version_lost: no connected process holds") &&
                  count_in(text, "\n") == 1,
              "%s", text);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_STALE);
    cr_assert(e && e->version == 4 && e->code == HEDDLE_ERR_VERSION_LOST);
    cr_assert_str_eq(e->message, LOST);
    cr_assert_null(last_event(w, HEDDLE_EVENT_FAILED), "an export of it would be removed");
    cr_assert_str_eq(log_of_lost(w), "");
    cr_assert_eq(count_events(w, HEDDLE_EVENT_STALE), 1);
}

/* One that the worker holds, or was told of as a part of a rollout, is another matter. */
Test(node, a_version_that_is_held_here_is_not_lost)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(w, o, &a, 4, 1);
    cr_assert_str_eq(log_of_lost(w), "");
    cr_assert(serves(w, &a, 4));
    cr_assert_null(last_event(w, HEDDLE_EVENT_STALE));
    free(a.bytes);
}

Test(node, a_version_that_is_lost_before_its_decision_fails)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 4);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 4, &source, 1);
    cr_assert_str_eq(log_of_lost(w), "");
    cr_assert_eq(last_event(w, HEDDLE_EVENT_FAILED)->code, HEDDLE_ERR_VERSION_LOST);
    cr_assert_null(last_event(w, HEDDLE_EVENT_STALE));
    free(a.bytes);
}

/* It is announced when a holder is back; when it is lost again, that is news. */
Test(node, a_lost_version_that_came_back_may_be_lost_again)
{
    worker_t *w = worker_joined(0, NULL);
    log_of_lost(w);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 4);
    msg_source_t source = source_of(o);
    tell_worker(w, &(msg_t){.type = MSG_COMMIT, .commit = {w->token, 4, 1, "policy", a.h1}});
    announce_to(w, &a, 4, &source, 1);
    cr_assert(strstr(log_of_lost(w), "version.lost"), "it is decided, and still on its way");
    cr_assert_eq(count_events(w, HEDDLE_EVENT_STALE), 2);
    cr_assert_null(last_event(w, HEDDLE_EVENT_FAILED));
    run_for(1000000);
    cr_assert(serves(w, &a, 4), "and it goes on");
    free(a.bytes);
}

Test(node, a_worker_that_is_not_admitted_reports_it_on_stderr_after_5_s_and_once)
{
    worker_t *w = worker_start(0, TR_MODE_EAGER, &(worker_opts_t){.broker = "tcp://127.0.0.1:9"});
    cr_assert_str_eq(log_of(WORKER_UNJOINED_US - 200000), "");
    const char *text = log_of(400000);
    cr_assert(strstr(text, "worker.waiting: no broker answers at tcp://127.0.0.1:9;"), "%s", text);
    cr_assert_str_eq(log_of(2 * REPEAT_US), "", "once");
    w->refuse = "denied";
    node_line(w->node, true);
    text = log_of(2 * REPEAT_US);
    cr_assert(strstr(text, "worker.refused: denied: ") && count_in(text, "\n") == 1, "another reason: %s",
              text);
    w->refuse = NULL;
    text = log_of(10000000);
    cr_assert_eq(count_in(text, "worker.joined: "), 1, "%s", text);

    w->deaf = true; /* the lease ends */
    text = log_of(LEASE_MS * 1000 + 10000000);
    cr_assert(strstr(text, "no broker answers") && strstr(text, "serves on"), "%s", text);
    worker_node_leave(w->node, world_now_us);
    cr_assert_str_eq(log_of(2 * REPEAT_US), "", "after leaving there is nothing to wait for");
}

static const char *log_of_refusals(worker_t *w, const heddle_error_t *why)
{
    static char all[8192];
    all[0] = 0;
    for (int i = 0; i < 200; i++) {
        worker_node_ops.refused(w->node, why, world_now_us);
        strncat(all, log_of(250000), sizeof all - strlen(all) - 1);
    }
    return all;
}

Test(node, a_refusal_is_on_stderr_with_its_hint_unless_the_application_reports_it)
{
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_DENIED, "the broker does not admit the key K");
    error_hint(&why, "heddle keys add K");
    worker_t *quiet = worker_start(1, TR_MODE_EAGER, NULL);
    cr_assert_str_eq(log_of_refusals(quiet, &why), "");
    worker_t *w = worker_start(0, TR_MODE_EAGER, &(worker_opts_t){.broker = "tcp://127.0.0.1:9"});
    const char *text = log_of_refusals(w, &why);
    cr_assert(strstr(text, "worker.refused: denied: the broker does not admit the key K; it is tried again; "
                           "heddle keys add K\n"),
              "%s", text);
    cr_assert_eq(count_in(text, "\n"), 1, "%s", text);
    cr_assert_eq(count_events(w, HEDDLE_EVENT_REFUSED), 1);
}

/* More keys would not bring back the data of before. */
Test(node, a_worker_that_was_admitted_before_names_its_cluster_when_its_key_is_refused)
{
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_DENIED, "the broker does not admit the key K");
    worker_t *w = worker_joined(0, NULL);
    node_line(w->node, false);
    worker_node_ops.refused(w->node, &why, world_now_us);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_REFUSED);
    cr_assert(e && strstr(e->message,
                          "does not admit the key K; this worker was in its cluster c1 before: the key was "
                          "revoked, or the broker was started with other data"),
              "%s", e ? e->message : "no event");
}

Test(node, name_that_is_alive_is_given_up_after_the_timeout)
{
    worker_t *w = worker_start(0, TR_MODE_EAGER, &(worker_opts_t){.join_timeout_us = 3000000});
    w->refuse = "worker_alive";
    node_line(w->node, true);
    run_for(2900000);
    cr_assert_null(last_event(w, HEDDLE_EVENT_LEFT));
    run_for(200000);
    const heddle_event_t *e = last_event(w, HEDDLE_EVENT_REFUSED);
    cr_assert(e->code == HEDDLE_ERR_WORKER_ALIVE && !e->retriable);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_LEFT));
}

Test(node, leaves)
{
    worker_t *w = worker_joined(0, NULL);
    worker_node_leave(w->node, world_now_us);
    run_for(1000);
    cr_assert_not_null(last_said(w, MSG_LEAVE));
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_LEFT));
}

Test(node, heartbeats_carry_progress_and_counters)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    bring_version(w, o, &a, 1, 1);
    slot_t *held = NULL;
    slots_acquire(worker_node_slots(w->node), 0, 0, &held);
    origin_serve(o, &b, 2);
    mem_drop_data(o->t, 1000); /* nothing comes */
    msg_source_t source = source_of(o);
    announce_to(w, &b, 2, &source, 1);
    run_for(1500000);
    const msg_t *m = last_said(w, MSG_HEARTBEAT);
    cr_assert(m && m->heartbeat.adapter_count == 2);
    cr_assert(m->heartbeat.adapters[0].fetching == 2 && m->heartbeat.adapters[0].held_count == 1);
    cr_assert_eq(m->heartbeat.adapters[0].data_bytes, b.payload_bytes);
    cr_assert(m->heartbeat.counts.slots_total == 6 && m->heartbeat.counts.slots_free == 4 &&
              m->heartbeat.counts.slots_held == 1);
    cr_assert(m->heartbeat.counts.own_bytes == memory_of(w) && memory_of(w) >= a.payload_bytes);
    cr_assert_geq(m->heartbeat.counts.bytes_in, a.payload_bytes);
    slot_release(&held);
    free(a.bytes);
    free(b.bytes);
}

/* Later decisions may overtake it: the broker keeps what somebody says he is at. */
Test(node, what_is_fetched_after_its_decision_is_said_at_once)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    origin_serve(o, &a, 1);
    origin_serve(o, &b, 2);
    mem_drop_data(o->t, 1000); /* nothing comes */
    msg_source_t source = source_of(o);
    uint32_t beats = count_said(w, MSG_HEARTBEAT);
    announce_to(w, &a, 1, &source, 1);
    cr_assert_eq(count_said(w, MSG_HEARTBEAT), beats, "not decided: not late");
    w->decision = (msg_decision_t){.adapter = "policy", .version = 2, .decision = 1, .digest = b.h1};
    node_line(w->node, false);
    node_line(w->node, true);
    run_for(100000);
    beats = count_said(w, MSG_HEARTBEAT);
    announce_to(w, &b, 2, &source, 1);
    run_for(10000);
    cr_assert_eq(count_said(w, MSG_HEARTBEAT), beats + 1);
    cr_assert_eq(last_said(w, MSG_HEARTBEAT)->heartbeat.adapters[0].fetching, 2);
    free(a.bytes);
    free(b.bytes);
}

Test(node, odd_messages_change_nothing)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1), b = content(2);
    bring_version(w, o, &a, 1, 1);
    node_frame(w->node, bytes_of("\xc1garbage", 8));
    node_frame(w->node, bytes_of("", 0));
    msg_source_t source = source_of(o);
    uint64_t real = w->token;
    w->token = real - 1; /* stale */
    announce_to(w, &b, 2, &source, 1);
    commit_to(w, &b, 2, 2);
    w->token = real;
    tell_worker(w, &(msg_t){.type = MSG_COMMIT, .commit = {real, 1, 9, "unknown", a.h1}});
    tell_worker(w, &(msg_t){.type = MSG_SOURCES, .sources = {real, 8, "policy", &source, 1}});
    tell_worker(w, &(msg_t){.type = MSG_RETIRE, .retire = {real, 8, "policy"}});
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {real, 8, "policy", "deadline", ""}});
    tell_worker(w, &(msg_t){.type = MSG_PING, .ping = {1}});
    run_for(100000);
    cr_assert(serves(w, &a, 1));
    cr_assert_eq(count_said(w, MSG_NACK), 0);
    const struct {
        uint64_t region, manifest;
        uint32_t parts;
    } BAD[] = {{0, 10, 1}, {10, 0, 1}, {10, 10, 2}, {10, 10, 0}};
    for (uint32_t i = 0; i < 4; i++) {
        msg_part_t parts[2] = {{BAD[i].region, BAD[i].manifest, a.manifest_digest}};
        tell_worker(w, &(msg_t){.type = MSG_ANNOUNCE,
                                .announce = {.token = real,
                                             .version = 5,
                                             .adapter = "policy",
                                             .parts = parts,
                                             .part_count = BAD[i].parts}});
        cr_assert_eq(count_said(w, MSG_NACK), i + 1, "%u", i);
        const msg_nack_t *nack = &last_said(w, MSG_NACK)->nack;
        cr_assert_str_eq(nack->phase, "announce");
        bool names_parts = strstr(nack->message, "parts came, and this release takes 1") != NULL;
        cr_assert_eq(names_parts, BAD[i].parts != 1, "%s", nack->message);
    }
    cr_assert_eq(slots_count(worker_node_slots(w->node), 0).used, 1);
    free(a.bytes);
    free(b.bytes);
}

Test(node, impossible_sizes_are_no_memory_and_not_a_crash)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    msg_source_t source = source_of(o);
    test_content_t a = content(1);
    uint8_t *bytes = a.bytes;
    a.payload_bytes = 1ull << 40;
    announce_to(w, &a, 1, &source, 1);
    const msg_t *nack = last_said(w, MSG_NACK);
    cr_assert(nack && !strcmp(nack->nack.code, "no_memory"));
    free(bytes);
}

Test(node, all_nacks_that_could_not_be_sent_are_sent_with_their_own_reasons)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    msg_source_t source = source_of(o);
    for (uint64_t v = 1; v <= 2; v++) {
        origin_serve(o, &a, v);
        announce_to(w, &a, v, &source, 1);
        run_for(100000);
    }
    w->cut = true; /* the line is up still, as far as anybody knows */
    reject(w, 1, "the first");
    reject(w, 2, "the second");
    node_line(w->node, false);
    w->cut = false;
    node_line(w->node, true);
    run_for(100000);
    cr_assert_eq(count_said(w, MSG_NACK), 2);
    const msg_t *first = find_said(w, MSG_NACK, 0), *second = find_said(w, MSG_NACK, 1);
    cr_assert(first->nack.version == 1 && !strcmp(first->nack.message, "the first"));
    cr_assert(second->nack.version == 2 && !strcmp(second->nack.message, "the second"));
    free(a.bytes);
}

Test(node, nack_that_could_not_be_sent_is_sent_after_the_next_welcome)
{
    worker_t *w = worker_joined(0, &(worker_opts_t){.app = true});
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    node_line(w->node, false);
    w->cut = true;
    reject(w, 1, "no");
    cr_assert_eq(count_said(w, MSG_NACK), 0);
    w->cut = false;
    node_line(w->node, true);
    run_for(100000);
    cr_assert_eq(count_said(w, MSG_NACK), 1);
    cr_assert_eq(last_said(w, MSG_NACK)->nack.token, w->token);
    free(a.bytes);
}

/* --- no memory for the table of what it serves ------------------------------------------------- */

static int fail_at;
static int extend_fails_once(transfer_t *t, share_key_t key, uint64_t offset, uint64_t bytes)
{
    if (fail_at && --fail_at == 0) return HEDDLE_ERR_NO_MEMORY;
    return transfer_mem_ops.extend(t, key, offset, bytes);
}

/* What it says it has staged it serves whole: another worker has no other source. */
static void serves_whole_although_the_call_fails(int nth)
{
    static transfer_ops_t ops;
    test_content_t a = content_make(1, 6, 300000);
    worker_t *first = worker_joined(0, NULL), *second = worker_joined(1, NULL);
    ops = transfer_mem_ops;
    ops.extend = extend_fails_once;
    first->io.tr = &ops;
    fail_at = nth;
    bring_version(first, origin_start(0, TR_MODE_EAGER), &a, 1, 1);
    cr_assert_eq(fail_at, 0);
    msg_source_t row = source_worker(first);
    announce_until(second, &a, 1, &row, 1, 0);
    run_for(10000000);
    cr_assert_eq(count_said(second, MSG_STAGED), 1, "call %d", nth);
    free(a.bytes);
}

Test(node, a_manifest_that_could_not_be_served_at_once_is_served_at_the_end)
{
    serves_whole_although_the_call_fails(1);
}
Test(node, a_chunk_that_could_not_be_served_at_once_is_served_at_the_end)
{
    serves_whole_although_the_call_fails(3);
}

/* --- whose it is ------------------------------------------------------------------------------ */

static void leave_it(void *n) { worker_node_leave(n, 0); }

Test(node, another_thread_may_not_make_it_leave, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    worker_t *w = worker_start(0, TR_MODE_EAGER, NULL);
    w->io.owner = &owner;
    owner_check(&owner);
    on_another_thread(leave_it, w->node);
}
