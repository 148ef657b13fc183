/* SPDX-License-Identifier: Apache-2.0 */
/* Versions that are held in the memory of another worker of the host: what is held, what is fetched after
 * all, and how long it lasts. */
#include "captured.h"
#include "client/sharing.h"
#include "core/failpoint.h"
#include "tests/unit/worker_world.h"

#include <poll.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static test_content_t content(uint64_t seed) { return content_make(seed, 6, 3000); } /* 1.1 MB */

TestSuite(holding, .fini = world_end);

/* Its socket is named by its life. */
static worker_t *sharing_worker(uint32_t index)
{
    worker_opts_t opts = {.is_sharing = true, .life = {{(uint8_t)getpid(), (uint8_t)(getpid() >> 8), 7}}};
    opts.life.b[15] = (uint8_t)index;
    return worker_joined(index, &opts);
}

static uint64_t bytes_in(const worker_t *w)
{
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    return c.bytes_in;
}

/* A row of the worker, as the broker makes it from its STAGED. */
static msg_source_t row_of(const worker_t *w)
{
    const msg_staged_t *staged = &last_said(w, MSG_STAGED)->staged;
    msg_source_t row = {.token = w->token, .kind = SOURCE_WORKER, .name = "w1", .region = staged->region};
    transfer_mem_ops.address(w->io.t, &row.address);
    row.life = worker_node_core(w->node)->opts.life;
    return row;
}

/* Real sockets carry the regions. */
static void until_staged(const worker_t *w)
{
    for (int i = 0; !count_said(w, MSG_STAGED); i++) {
        struct pollfd p[NODES_MAX * WORKER_FDS];
        int fds[WORKER_FDS];
        nfds_t count = 0;
        cr_assert_lt(i, 5000);
        run_for(1000);
        for (int k = 0; k < NODES_MAX; k++) {
            if (workers[k]) worker_node_fds(workers[k]->node, fds);
            for (int f = 0; workers[k] && f < WORKER_FDS; f++)
                p[count++] = (struct pollfd){fds[f], POLLIN, 0};
        }
        (void)poll(p, count, 1);
    }
}

/* Version 1 is decided when it is there. */
static void until_serves(worker_t *w, const test_content_t *a)
{
    until_staged(w);
    commit_to(w, a, 1, 1);
    run_for(1000);
    cr_assert(serves(w, a, 1));
}

/* An origin that has the version, and sends `bytes` of it. */
static msg_source_t slow_origin(const test_content_t *a, uint64_t bytes)
{
    origin_t *o = origin_start(1, TR_MODE_EAGER);
    cr_assert_eq(region_new(a->content_bytes, &o->region, NULL), HEDDLE_OK);
    memcpy(o->region->base, a->bytes, a->content_bytes);
    transfer_mem_ops.map(o->t, o->region);
    cr_assert_eq(transfer_mem_ops.share(o->t, o->region, key_of(1)), HEDDLE_OK);
    if (bytes) {
        uint64_t offset = manifest_offset(a->payload_bytes);
        cr_assert_eq(transfer_mem_ops.extend(o->t, key_of(1), offset, a->manifest_bytes), HEDDLE_OK);
        cr_assert_eq(transfer_mem_ops.extend(o->t, key_of(1), 0, bytes), HEDDLE_OK);
    }
    return source_of(o);
}

/* Version 1 is fetched by the first worker. */
static worker_t *first_worker(const test_content_t *a)
{
    worker_t *w = sharing_worker(0);
    bring_version(w, origin_start(0, TR_MODE_EAGER), a, 1, 1);
    cr_assert(serves(w, a, 1));
    cr_assert_neq(last_said(w, MSG_STAGED)->staged.region.generation, 0);
    cr_assert_not(last_said(w, MSG_STAGED)->staged.held);
    return w;
}

Test(holding, what_a_worker_of_the_host_has_is_not_copied)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    cr_assert_neq(find_said(second, MSG_JOIN, 0)->join.place, 0);
    cr_assert_eq(find_said(second, MSG_JOIN, 0)->join.place, find_said(first, MSG_JOIN, 0)->join.place);
    msg_source_t row = row_of(first);
    announce_to(second, &a, 1, &row, 1);
    until_serves(second, &a);
    cr_assert_eq(bytes_in(second), 0);
    const msg_staged_t *staged = &last_said(second, MSG_STAGED)->staged;
    cr_assert(staged->held && staged->verified == VERIFIED_ON_HOST, "the first one compared all bytes");
    cr_assert(staged->source_count == 1 && staged->sources[0].token == first->token &&
              staged->sources[0].kind == SOURCE_WORKER && staged->sources[0].bytes == 0);
    cr_assert(!memcmp(&staged->region, &row.region, sizeof row.region), "it is handed on");
    cr_assert_not_null(last_event(second, HEDDLE_EVENT_FETCHING));
    cr_assert_geq(worker_node_counts(second->node).held_bytes, a.payload_bytes);
    free(a.bytes);
}

/* A worker of another host asks before it is held. */
Test(holding, what_is_held_is_served_to_those_that_asked_before)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1), *other = worker_joined(2, NULL);
    msg_source_t row = row_of(first), from_second = source_worker(second);
    second->busy_us = world_now_us + 5000000;
    announce_to(second, &a, 1, &row, 1);
    announce_to(other, &a, 1, &from_second, 1);
    run_for(4000000);
    cr_assert_eq(adapter_of(second)->intake.state, INTAKE_HOLDING);
    second->busy_us = 0;
    until_staged(other);
    const msg_staged_t *staged = &last_said(other, MSG_STAGED)->staged;
    cr_assert(staged->sources[0].token == second->token && staged->sources[0].bytes == a.payload_bytes);
    tr_counters_t c;
    transfer_mem_ops.counters(other->io.t, &c);
    cr_assert_eq(c.refused_in, 0);
    cr_assert(last_said(second, MSG_STAGED)->staged.held && bytes_in(second) == 0);
    free(a.bytes);
}

/* Others of the host need not wait for an application that loads it. */
Test(holding, what_is_loaded_is_offered_already)
{
    test_content_t a = content(1);
    worker_opts_t opts = {.is_sharing = true, .app = true, .life = {{(uint8_t)getpid(), 8}}};
    worker_t *w = worker_joined(0, &opts);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    origin_serve(o, &a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, &a, 1, &source, 1);
    run_for(100000);
    cr_assert_not_null(last_event(w, HEDDLE_EVENT_ARRIVED));
    cr_assert_eq(count_said(w, MSG_STAGED), 0);
    const msg_progress_t *p = &last_said(w, MSG_HEARTBEAT)->heartbeat.adapters[0];
    cr_assert(p->fetching == 1 && p->bytes_done == a.payload_bytes && p->region.generation);
    free(a.bytes);
}

/* The first one ends: the version stays with the second one, which hands it on to a third. */
Test(holding, it_outlives_its_owner_and_is_handed_on)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t row = row_of(first);
    announce_to(second, &a, 1, &row, 1);
    until_staged(second);
    commit_to(second, &a, 1, 1);
    run_for(1000);
    worker_stop(0);
    cr_assert(serves(second, &a, 1));
    worker_t *third = sharing_worker(2);
    row = row_of(second);
    announce_to(third, &a, 1, &row, 1);
    until_serves(third, &a);
    cr_assert_eq(bytes_in(third), 0);
    cr_assert_eq(last_said(third, MSG_STAGED)->staged.verified, VERIFIED_ON_HOST);
    free(a.bytes);
}

Test(holding, what_is_not_there_any_more_is_fetched)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t rows[2] = {row_of(first), source_of(origins[0])};
    rows[0].region.generation++;
    announce_to(second, &a, 1, rows, 2);
    until_serves(second, &a);
    cr_assert_geq(bytes_in(second), a.payload_bytes);
    cr_assert_not(last_said(second, MSG_STAGED)->staged.held);
    free(a.bytes);
}

/* Its owner changed the bytes after it had compared and sealed them. */
Test(holding, other_bytes_than_the_announced_ones_are_fetched)
{
    test_content_t a = content(1);
    worker_opts_t opts = {.is_sharing = true, .verifies_each = true, .life = {{(uint8_t)getpid(), 11}}};
    worker_t *first = first_worker(&a), *second = worker_joined(1, &opts);
    slot_t *slot = slots_active(worker_node_slots(first->node), 0);
    ((uint8_t *)slot->parts[0].region->base)[77777] ^= 1;
    msg_source_t rows[2] = {row_of(first), source_of(origins[0])};
    announce_to(second, &a, 1, rows, 2);
    until_serves(second, &a);
    cr_assert_geq(bytes_in(second), a.payload_bytes, "from the origin");
    free(a.bytes);
}

static void verify(worker_t *w, uint64_t version)
{
    tell_worker(w, &(msg_t){.type = MSG_VERIFY, .verify = {w->token, 77, version, "policy"}});
    run_for(1000);
}

static content_id_t offered_of(const worker_t *w)
{
    return regions_offered(slots_active(worker_node_slots(w->node), 0)->parts[0].region);
}

/* Memory went bad after it had been verified: `how` it becomes known, and a later process takes it from
 * elsewhere. */
static void damage_ends_the_offer(void (*how)(worker_t *w, const test_content_t *a), uint64_t offset)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t rows[2] = {row_of(first), source_of(origins[0])};
    ((uint8_t *)slots_active(worker_node_slots(first->node), 0)->parts[0].region->base)[offset] ^= 1;
    how(first, &a);
    cr_assert_eq(offered_of(first).generation, 0);
    announce_to(second, &a, 1, rows, 2);
    until_serves(second, &a);
    cr_assert_not(last_said(second, MSG_STAGED)->staged.held);
    free(a.bytes);
}

static void by_verify(worker_t *w, const test_content_t *a)
{
    (void)a;
    verify(w, 1);
}

/* A hash that matches later, as of a bit that is unstable, does not make the memory good. */
static void by_the_first_of_two(worker_t *w, const test_content_t *a)
{
    verify(w, 1);
    memcpy(slots_active(worker_node_slots(w->node), 0)->parts[0].region->base, a->bytes, a->payload_bytes);
    verify(w, 1);
    size_t staged = count_said(w, MSG_STAGED);
    msg_source_t from = slow_origin(a, 0);
    announce_to(w, a, 2, &from, 1);
    run_for(10000);
    cr_assert_eq(count_said(w, MSG_STAGED), staged, "it is fetched");
    origin_stop(1);
}

static void by_the_same_content(worker_t *w, const test_content_t *a)
{
    msg_source_t from = source_of(origins[0]);
    announce_to(w, a, 2, &from, 1);
    run_for(10000);
}

Test(holding, what_verify_finds_damaged_is_not_handed_on) { damage_ends_the_offer(by_verify, 77777); }
Test(holding, what_was_found_damaged_once_stays_so) { damage_ends_the_offer(by_the_first_of_two, 77777); }
Test(holding, what_is_damaged_when_it_is_used_again_is_not_handed_on)
{
    damage_ends_the_offer(by_the_same_content, 77777);
}
Test(holding, what_has_a_damaged_manifest_is_not_handed_on)
{
    test_content_t a = content(1);
    damage_ends_the_offer(by_the_same_content, manifest_offset(a.payload_bytes) + 3);
    free(a.bytes);
}

/* A reader of the second worker keeps the bytes; the first one writes its next version elsewhere. */
Test(holding, what_is_read_is_not_written_again)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t row = row_of(first);
    announce_to(second, &a, 1, &row, 1);
    until_staged(second);
    commit_to(second, &a, 1, 1);
    run_for(1000);
    slot_t *held = NULL;
    cr_assert_eq(slots_acquire(worker_node_slots(second->node), 0, 0, &held), HEDDLE_OK);
    for (uint64_t v = 2; v < 8; v++) {
        test_content_t b = content(v);
        bring_version(first, origins[0], &b, v, v);
        if (v > 2)
            tell_worker(first, &(msg_t){.type = MSG_RETIRE, .retire = {first->token, v - 1, "policy"}});
        if (v == 2) tell_worker(first, &(msg_t){.type = MSG_RETIRE, .retire = {first->token, 1, "policy"}});
        run_for(1000);
        cr_assert(serves(first, &b, v));
        free(b.bytes);
    }
    cr_assert_eq(memcmp(held->parts[0].region->view, a.bytes, a.content_bytes), 0);
    worker_stop(1);
    cr_assert_eq(memcmp(held->parts[0].region->view, a.bytes, a.content_bytes), 0,
                 "after the end of its worker, too");
    slot_release(&held);
    free(a.bytes);
}

/* Without a socket that is said at once, and a region that cannot be held when it is met. */
Test(holding, why_something_is_copied_is_reported)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    worker_t *apart = worker_joined(
        2, &(worker_opts_t){.is_sharing = true, .life = worker_node_core(first->node)->opts.life});
    const msg_join_t *join = &find_said(apart, MSG_JOIN, 0)->join;
    cr_assert(join->place == 0 && strstr(join->unheld, "cannot listen"), "%s", join->unheld);
    cr_assert_str_eq(find_said(second, MSG_JOIN, 0)->join.unheld, "");

    msg_source_t rows[2] = {row_of(first), source_of(origins[0])};
    mappings_t *mappings = sharing_mappings(worker_node_core(second->node)->bulk.sharing);
    content_id_t id = sharing_content(&rows[0].region, &a.manifest_digest);
    char name[SHARING_NAME_BYTES];
    hold_t *hold = NULL;
    for (int i = 0; !hold && i < 5000; i++) {
        (void)mappings_take(mappings, sharing_name(&rows[0].life, name), &id, world_now_us, &hold, NULL);
        run_for(1000);
    }
    cr_assert_not_null(hold, "a region can be held once");
    announce_to(second, &a, 1, rows, 2);
    until_staged(second);
    commit_to(second, &a, 1, 1);
    run_for(2000000);
    cr_assert(serves(second, &a, 1));
    cr_assert_geq(bytes_in(second), a.payload_bytes);
    const char *unheld = last_said(second, MSG_HEARTBEAT)->heartbeat.unheld;
    cr_assert(strstr(unheld, "the memory of w1: "), "%s", unheld);

    mappings_give(mappings, &hold);
    test_content_t b = content(2);
    bring_version(first, origins[0], &b, 2, 2);
    rows[0] = row_of(first);
    size_t before = count_said(second, MSG_STAGED);
    announce_to(second, &b, 2, rows, 1);
    for (int i = 0; count_said(second, MSG_STAGED) == before && i < 5000; i++) run_for(1000);
    run_for(2000000);
    cr_assert(last_said(second, MSG_STAGED)->staged.held);
    cr_assert_str_eq(last_said(second, MSG_HEARTBEAT)->heartbeat.unheld, "");
    free(a.bytes);
    free(b.bytes);
}

/* ---- held after all ---- */

static void send_sources(worker_t *w, msg_source_t *rows, uint32_t count)
{
    msg_t m = {.type = MSG_SOURCES, .sources = {w->token, 1, "policy", rows, count}};
    tell_worker(w, &m);
}

/* A region of a publisher that has ended, and the publisher ends as a source, too. */
Test(holding, what_lost_its_source_is_held_where_another_process_has_it)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t gone = slow_origin(&a, a.payload_bytes / 2), row = row_of(first);
    gone.region = (msg_region_t){.generation = 4};
    gone.life = (key16_t){{1, 2, 3}};
    second->slots = 1;
    announce_to(second, &a, 1, &gone, 1);
    run_for(10000);
    cr_assert_gt(bytes_in(second), a.payload_bytes / 3);
    uint64_t before = bytes_in(second);
    origin_stop(1);
    for (int i = 0; !count_said(second, MSG_NEED_SOURCES); i++) {
        cr_assert_lt(i, 1000);
        run_for(10000);
    }
    send_sources(second, &row, 1);
    until_serves(second, &a);
    cr_assert_eq(bytes_in(second), before);
    cr_assert(last_said(second, MSG_STAGED)->staged.held);
    free(a.bytes);
}

Test(holding, what_has_brought_nothing_is_held_where_another_process_has_it_by_now)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t rows[2] = {row_of(first), slow_origin(&a, 0)};
    announce_to(second, &a, 1, &rows[1], 1);
    run_for(10000);
    cr_assert_not_null(last_event(second, HEDDLE_EVENT_FETCHING));
    announce_to(second, &a, 1, rows, 2);
    until_serves(second, &a);
    cr_assert_eq(bytes_in(second), 0);
    free(a.bytes);
}

Test(holding, a_fetch_that_goes_well_is_not_given_up)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t rows[2] = {row_of(first), slow_origin(&a, a.payload_bytes / 2)};
    announce_to(second, &a, 1, &rows[1], 1);
    run_for(10000);
    announce_to(second, &a, 1, rows, 2);
    run_for(10000);
    transfer_mem_ops.extend(origins[1]->t, key_of(1), 0, a.payload_bytes);
    until_staged(second);
    cr_assert_not(last_said(second, MSG_STAGED)->staged.held);
    cr_assert_eq(count_events(second, HEDDLE_EVENT_FETCHING), 1);
    free(a.bytes);
}

Test(holding, what_was_refused_is_not_asked_for_again)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t rows[2] = {slow_origin(&a, 0), source_of(origins[0])}, row = row_of(first);
    rows[0].life = row.life;
    rows[0].region = row.region;
    rows[0].region.generation++; /* written again since */
    uint8_t address[64];         /* the broker lists it longer than it is there */
    cr_assert_leq(rows[0].address.bytes, sizeof address);
    memcpy(address, rows[0].address.data, rows[0].address.bytes);
    rows[0].address.data = address;
    announce_to(second, &a, 1, rows, 1);
    run_for(10000);
    cr_assert_not_null(last_event(second, HEDDLE_EVENT_FETCHING));
    origin_stop(1);
    for (int i = 0; !count_said(second, MSG_NEED_SOURCES); i++) {
        cr_assert_lt(i, 1000);
        run_for(10000);
    }
    send_sources(second, rows, 2);
    until_staged(second);
    cr_assert_not(last_said(second, MSG_STAGED)->staged.held);
    cr_assert_eq(count_events(second, HEDDLE_EVENT_FETCHING), 1);
    free(a.bytes);
}

/* Of another network namespace, say: it is fetched from, and the operator learns why. */
Test(holding, a_source_of_the_host_out_of_reach_is_named)
{
    test_content_t a = content(1);
    worker_t *w = sharing_worker(0);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    origin_serve(o, &a, 1);
    msg_source_t row = source_of(o);
    row.name = "trainer-7";
    row.apart = true;
    announce_to(w, &a, 1, &row, 1);
    until_staged(w);
    commit_to(w, &a, 1, 1);
    run_for(2000000);
    cr_assert(serves(w, &a, 1));
    const char *unheld = last_said(w, MSG_HEARTBEAT)->heartbeat.unheld;
    cr_assert(
        strstr(unheld, "trainer-7 has another --host-share (or it was made anew), network namespace or user"),
        "%s", unheld);
    free(a.bytes);
}

/* A trainer that is started again and again is another source each time, and the reason is the same. */
Test(holding, a_reason_is_in_the_log_once_whichever_source_has_it)
{
    worker_t *w = sharing_worker(0);
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    captured_t log = captured_begin();
    test_content_t a[2];
    for (uint64_t v = 1; v <= 2; v++) {
        a[v - 1] = content(v);
        origin_serve(o, &a[v - 1], v);
        msg_source_t row = source_of(o);
        row.name = v == 1 ? "trainer-7" : "trainer-8";
        row.apart = true;
        announce_to(w, &a[v - 1], v, &row, 1);
        run_for(2000000);
        commit_to(w, &a[v - 1], v, v);
        run_for(2000000);
    }
    const char *text = captured_end(&log), *first = strstr(text, "memory.unheld");
    cr_assert(serves(w, &a[1], 2));
    cr_assert(first && strstr(first, "trainer-7 has another --host-share") && strstr(first, "; this works"),
              "%s", text);
    cr_assert_null(strstr(first + 1, "memory.unheld"), "%s", text);
    cr_assert(strstr(last_said(w, MSG_HEARTBEAT)->heartbeat.unheld, "trainer-8 has another"));
    free(a[0].bytes);
    free(a[1].bytes);
}

/* A directory that the operator named is an error where it cannot be used. */
Test(holding, a_directory_that_was_named_has_to_be_usable)
{
    const char *const adapters[] = {"policy"};
    worker_t *w = sharing_worker(0);
    worker_node_t *second = NULL;
    heddle_error_t e = {0};
    worker_opts_t opts = worker_node_core(w->node)->opts;
    opts.adapters = adapters;
    opts.adapter_count = 1;
    opts.host_share = "/proc/nonexistent";
    cr_assert_eq(worker_node_new(&opts, &w->io, &second, &e), HEDDLE_ERR_USAGE);
    cr_assert(!second && strstr(e.message, "/proc/nonexistent") && e.hint[0], "%s", e.message);
}

/* ---- verified once ---- */

/* A publisher of this host, as far as its memory goes. */
static struct {
    pool_t *pool;
    sharing_t *sharing;
    msg_source_t row;
} publisher;

static void publisher_listen(const key16_t *life, const offer_content_t *content)
{
    heddle_error_t e;
    sharing_opts_t opts = {.life = *life, .pool = publisher.pool};
    cr_assert_eq(sharing_new(&opts, &publisher.sharing, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(offer_add(sharing_offer(publisher.sharing), content, &e), HEDDLE_OK, "%s", e.message);
}

static void publisher_start(const test_content_t *a)
{
    heddle_error_t e;
    memory_region_t *r = NULL;
    key16_t life = {{(uint8_t)getpid(), (uint8_t)(getpid() >> 8), 9}};
    cr_assert_eq(pool_new(&(pool_opts_t){.most = 16}, &publisher.pool, &e), HEDDLE_OK);
    while (pool_take(publisher.pool, &publisher, a->content_bytes, &r, &e) == HEDDLE_ERR_AGAIN) {}
    cr_assert_not_null(r);
    memcpy(r->base, a->bytes, a->content_bytes);
    cr_assert_eq(memory_region_seal(r, &a->manifest_digest, a->content_bytes, NULL), HEDDLE_OK);
    offer_content_t content = {.id = memory_region_content(r), .bytes = a->content_bytes};
    publisher_listen(&life, &content);
    publisher.row = (msg_source_t){.token = 77,
                                   .kind = SOURCE_PUBLISHER,
                                   .name = "trainer",
                                   .life = life,
                                   .address = origins[0]->address,
                                   .region = sharing_region(&content.id)};
}

static void publisher_end(void)
{
    sharing_close(&publisher.sharing);
    pool_destroy(&publisher.pool);
}

/* A connection of each worker to the publisher, as after PEERS. */
static void turn_publisher(void)
{
    sharing_readable(publisher.sharing);
    (void)sharing_turn(publisher.sharing, world_now_us);
}

static void watch_publisher(void)
{
    msg_peer_t peer = {.life = publisher.row.life};
    for (int k = 0; k < NODES_MAX && workers[k]; k++) {
        msg_t m = {.type = MSG_PEERS, .peers = {workers[k]->token, &peer, 1}};
        tell_worker(workers[k], &m);
        mappings_t *mappings = sharing_mappings(worker_node_core(workers[k]->node)->bulk.sharing);
        for (int i = 0; mappings_count(mappings).mapped == 0; i++) {
            cr_assert_lt(i, 5000);
            run_for(1000);
            turn_publisher();
        }
    }
}

static void announce_to_all(const test_content_t *a)
{
    msg_source_t rows[2] = {publisher.row, source_of(origins[0])};
    for (int k = 0; k < NODES_MAX && workers[k]; k++) announce_to(workers[k], a, 1, rows, 2);
}

static uint32_t staged_by(verified_where_t verified, bool is_held)
{
    uint32_t count = 0;
    for (int k = 0; k < NODES_MAX; k++) {
        const msg_t *m = workers[k] ? last_said(workers[k], MSG_STAGED) : NULL;
        count += m && m->staged.verified == (uint64_t)verified && m->staged.held == is_held;
    }
    return count;
}

static void turn_until_staged(uint32_t wanted)
{
    for (int i = 0; staged_by(VERIFIED_HERE, true) + staged_by(VERIFIED_ON_HOST, true) +
                        staged_by(VERIFIED_HERE, false) <
                    wanted;
         i++) {
        cr_assert_lt(i, 5000);
        run_for(1000);
        turn_publisher();
    }
}

/* One worker holds what the publisher offers, and has digested it. */
static void until_held_and_verified(void)
{
    turn_until_staged(1);
    cr_assert_eq(staged_by(VERIFIED_HERE, true), 1);
    cr_assert_eq(bytes_in(workers[0]), 0);
}

/* The worker has found what the publisher offers, which has not said yet whether it is verified. */
static holding_t *until_region(const worker_t *w)
{
    holding_t *h = &worker_node_adapter(w->node, 0)->intake.holding;
    for (int i = 0; !h->region; i++) {
        cr_assert_lt(i, 5000);
        run_for(1000);
        if (!h->region) turn_publisher();
    }
    return h;
}

static origin_t *with_workers(const test_content_t *a, uint32_t count)
{
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    origin_serve(o, a, 1);
    for (uint32_t i = 0; i < count; i++) (void)sharing_worker(i);
    return o;
}

Test(holding, one_worker_of_the_host_digests_for_all)
{
    test_content_t a = content(1);
    (void)with_workers(&a, 3);
    publisher_start(&a);
    watch_publisher();
    announce_to_all(&a);
    turn_until_staged(3);
    cr_assert_eq(staged_by(VERIFIED_HERE, true), 1);
    cr_assert_eq(staged_by(VERIFIED_ON_HOST, true), 2);
    for (int k = 0; k < 3; k++) cr_assert_eq(bytes_in(workers[k]), 0);
    publisher_end();
    free(a.bytes);
}

/* Its source says at once that others have verified the bytes. */
Test(holding, one_that_relies_on_no_other_digests_itself)
{
    test_content_t a = content(1);
    (void)with_workers(&a, 2);
    publisher_start(&a);
    watch_publisher();
    announce_to_all(&a);
    turn_until_staged(2);
    cr_assert_eq(staged_by(VERIFIED_HERE, true), 1);
    worker_opts_t opts = {.is_sharing = true, .verifies_each = true, .life = {{(uint8_t)getpid(), 10}}};
    worker_t *careful = worker_joined(2, &opts);
    watch_publisher();
    msg_source_t rows[2] = {publisher.row, source_of(origins[0])};
    announce_to(careful, &a, 1, rows, 2);
    turn_until_staged(3);
    cr_assert(last_said(careful, MSG_STAGED)->staged.held);
    cr_assert_eq(last_said(careful, MSG_STAGED)->staged.verified, VERIFIED_HERE);
    publisher_end();
    free(a.bytes);
}

/* Two find the same: the version is bad for the host, and a third one digests nothing. */
Test(holding, what_two_workers_find_bad_no_worker_uses)
{
    test_content_t a = content(1), bad = a;
    (void)with_workers(&a, 3);
    bad.bytes = malloc(a.content_bytes);
    memcpy(bad.bytes, a.bytes, a.content_bytes);
    bad.bytes[77777] ^= 1;
    publisher_start(&bad);
    watch_publisher();
    announce_to_all(&a);
    turn_until_staged(3);
    cr_assert_eq(staged_by(VERIFIED_HERE, false), 3, "from the origin");
    for (int k = 0; k < 3; k++) {
        commit_to(workers[k], &a, 1, 1);
        run_for(1000);
        cr_assert(serves(workers[k], &a, 1));
    }
    publisher_end();
    free(bad.bytes);
    free(a.bytes);
}

/* Its header says so: where the manifest would be, there is no memory. */
Test(holding, less_than_was_announced_is_not_read)
{
    test_content_t a = content(1), less = a;
    (void)with_workers(&a, 1);
    less.content_bytes = 65536;
    publisher_start(&less);
    announce_to_all(&a);
    turn_until_staged(1);
    cr_assert_eq(staged_by(VERIFIED_HERE, false), 1, "from the origin");
    run_for(2000000);
    const char *unheld = last_said(workers[0], MSG_HEARTBEAT)->heartbeat.unheld;
    cr_assert(strstr(unheld, "the memory of trainer: it is smaller than what was announced"), "%s", unheld);
    publisher_end();
    free(a.bytes);
}

/* The next source may hand on the same memory, and may have verified it before it went bad. */
Test(holding, after_bad_bytes_no_other_word_is_taken)
{
    test_content_t a = content(1), bad = a;
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    bad.bytes = malloc(a.content_bytes);
    memcpy(bad.bytes, a.bytes, a.content_bytes);
    bad.bytes[77777] ^= 1;
    publisher_start(&bad);
    watch_publisher();
    msg_source_t rows[2] = {publisher.row, row_of(first)};
    announce_to(second, &a, 1, rows, 2);
    turn_until_staged(2);
    cr_assert(last_said(second, MSG_STAGED)->staged.held);
    cr_assert_eq(last_said(second, MSG_STAGED)->staged.verified, VERIFIED_HERE);
    commit_to(second, &a, 1, 1);
    run_for(1000);
    cr_assert(serves(second, &a, 1));
    publisher_end();
    free(bad.bytes);
    free(a.bytes);
}

/* The publisher is gone before it has said which worker is to digest: each does it for itself. */
Test(holding, without_a_source_each_digests_for_itself)
{
    test_content_t a = content(1);
    (void)with_workers(&a, 2);
    publisher_start(&a);
    watch_publisher();
    announce_to_all(&a);
    for (int i = 0; i < 50 && staged_by(VERIFIED_HERE, true) == 0; i++) { /* handed over, and not one note */
        run_for(1000);
        bool all = true;
        for (int k = 0; k < 2; k++)
            all &= worker_node_adapter(workers[k]->node, 0)->intake.holding.region != NULL;
        if (all) break;
        turn_publisher();
    }
    publisher_end();
    uint64_t end_us = world_now_us + round_patience_us(a.content_bytes);
    while (staged_by(VERIFIED_HERE, true) < 2) {
        cr_assert_lt(world_now_us, end_us, "it waits for a source that has ended");
        run_for(1000);
    }
    for (int k = 0; k < 2; k++) cr_assert_eq(bytes_in(workers[k]), 0);
    free(a.bytes);
}

static bool is_readable(const worker_t *w)
{
    struct pollfd p[WORKER_FDS];
    int fds[WORKER_FDS];
    worker_node_fds(w->node, fds);
    for (int f = 0; f < WORKER_FDS; f++) p[f] = (struct pollfd){fds[f], POLLIN, 0};
    return poll(p, WORKER_FDS, 0) > 0;
}

/* Its memory is there, and no process that could say who is to digest it. */
Test(holding, what_came_from_a_source_that_cannot_be_watched_is_digested_at_once)
{
    test_content_t a = content(1);
    worker_t *w = (with_workers(&a, 1), workers[0]);
    publisher_start(&a);
    announce_to_all(&a);
    for (int i = 0; !is_readable(w); i++) {
        cr_assert_lt(i, 5000);
        run_for(1000);
        turn_publisher();
    }
    cr_assert_null(worker_node_adapter(w->node, 0)->intake.holding.region);
    publisher_end();
    uint64_t end_us = world_now_us + round_patience_us(a.content_bytes);
    while (staged_by(VERIFIED_HERE, true) == 0) {
        cr_assert_lt(world_now_us, end_us, "it waits for a word that cannot come");
        run_for(1000);
    }
    cr_assert_eq(bytes_in(w), 0);
    free(a.bytes);
}

/* It has said to others that the content is verified; those that come later are not told so. */
Test(holding, what_its_source_has_come_to_doubt_is_handed_on_unverified)
{
    test_content_t a = content(1);
    worker_t *first = (with_workers(&a, 1), workers[0]);
    publisher_start(&a);
    watch_publisher();
    announce_to_all(&a);
    until_held_and_verified();
    msg_source_t row = row_of(first);
    worker_t *second = sharing_worker(1);
    announce_to(second, &a, 1, &row, 1);
    until_staged(second);
    cr_assert_eq(last_said(second, MSG_STAGED)->staged.verified, VERIFIED_ON_HOST);
    content_id_t id = sharing_content(&publisher.row.region, &a.manifest_digest);
    offer_doubt(sharing_offer(publisher.sharing), &id);
    for (int i = 0; i < 10; i++) {
        turn_publisher();
        run_for(1000);
    }
    worker_t *third = sharing_worker(2);
    announce_to(third, &a, 1, &row, 1);
    until_staged(third);
    cr_assert(last_said(third, MSG_STAGED)->staged.held);
    cr_assert_eq(last_said(third, MSG_STAGED)->staged.verified, VERIFIED_HERE);
    publisher_end();
    free(a.bytes);
}

/* It is connected and says nothing. */
Test(holding, a_silent_source_is_not_waited_for)
{
    test_content_t a = content(1);
    worker_t *w = (with_workers(&a, 1), workers[0]);
    publisher_start(&a);
    watch_publisher();
    announce_to_all(&a);
    holding_t *h = until_region(w);
    cr_assert(holding_waits(h));
    run_for(2 * round_patience_us(a.content_bytes) + 10000);
    cr_assert_eq(staged_by(VERIFIED_HERE, true), 1);
    publisher_end();
    free(a.bytes);
}

/* Its first answer, which asks for the digest that the silence has brought about already, is no doubt. */
Test(holding, a_late_request_of_a_source_that_was_silent_is_no_doubt)
{
    test_content_t a = content(1);
    worker_t *first = (with_workers(&a, 1), workers[0]);
    publisher_start(&a);
    watch_publisher();
    announce_to_all(&a);
    until_region(first);
    until_staged(first);
    cr_assert_eq(staged_by(VERIFIED_HERE, true), 1, "it was not asked yet");
    for (int i = 0; i < 10; i++) {
        turn_publisher();
        run_for(1000);
    }
    msg_source_t row = row_of(first);
    worker_t *second = sharing_worker(1);
    announce_to(second, &a, 1, &row, 1);
    until_staged(second);
    cr_assert(last_said(second, MSG_STAGED)->staged.held);
    cr_assert_eq(last_said(second, MSG_STAGED)->staged.verified, VERIFIED_ON_HOST);
    publisher_end();
    free(a.bytes);
}

static int find_none(void *self, const content_id_t *id)
{
    (void)self, (void)id;
    return HEDDLE_ERR_NOT_FOUND;
}

/* The one that was asked may still say which worker is to digest. */
Test(holding, the_end_of_another_source_ends_no_wait)
{
    test_content_t a = content(1);
    worker_t *w = (with_workers(&a, 1), workers[0]);
    mappings_t *mappings = sharing_mappings(worker_node_core(w->node)->bulk.sharing);
    handover_t *other = NULL;
    char name[32];
    snprintf(name, sizeof name, "other-%d", getpid());
    cr_assert_eq(handover_listen(NULL, name, find_none, NULL, &other, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_watch(mappings, name, world_now_us, NULL), HEDDLE_OK);
    (void)handover_turn(other, world_now_us);
    publisher_start(&a);
    watch_publisher();
    announce_to_all(&a);
    holding_t *h = until_region(w);
    cr_assert(mappings_meet(mappings, name, world_now_us), "the other one is connected");
    handover_destroy(&other);
    run_for(1000);
    cr_assert_not(mappings_meet(mappings, name, world_now_us), "its end was seen");
    cr_assert(h->region && holding_waits(h));
    until_held_and_verified();
    publisher_end();
    free(a.bytes);
}

/* ---- silent ---- */

/* Listens as a process does that stands still: the kernel takes connections, and no answer comes. */
static int listen_and_say_nothing(const key16_t *life)
{
    char name[SHARING_NAME_BYTES];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int n =
        snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "heddle-%s", sharing_name(life, name));
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    cr_assert(bind(silent, (struct sockaddr *)&address, bytes) == 0 && listen(silent, 64) == 0);
    return silent;
}

/* A row for the region of `of`, by a holder that is not there for the network, either. */
static msg_source_t silent_row(const msg_source_t *of, uint64_t token, const msg_source_t *dead,
                               int *ret_silent)
{
    msg_source_t row = *dead;
    row.token = token;
    row.name = "silent";
    row.region = of->region;
    row.life = (key16_t){{(uint8_t)getpid(), (uint8_t)(getpid() >> 8), 30, (uint8_t)token}};
    *ret_silent = listen_and_say_nothing(&row.life);
    return row;
}

/* The first one in the list is another one by then, and its memory is not what does not answer. */
Test(holding, the_silence_of_one_holder_is_not_that_of_another)
{
    test_content_t a = content(1);
    int silent;
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t dead = slow_origin(&a, 0), w1 = row_of(first), w5 = silent_row(&w1, 55, &dead, &silent);
    announce_to(second, &a, 1, (msg_source_t[]){w5}, 1);
    run_for(10000);
    send_sources(second, (msg_source_t[]){w1, w5}, 2);
    run_for(MAPPINGS_ASK_US);
    until_staged(second);
    cr_assert(last_said(second, MSG_STAGED)->staged.held);
    cr_assert_eq(last_said(second, MSG_STAGED)->staged.sources[0].token, first->token);
    cr_assert_eq(bytes_in(second), 0);
    close(silent);
    free(a.bytes);
}

/* A source that left the list is not waited for. */
Test(holding, one_that_is_not_listed_any_more_is_not_waited_for)
{
    test_content_t a = content(1);
    int silent;
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t dead = slow_origin(&a, 0), w1 = row_of(first), w5 = silent_row(&w1, 55, &dead, &silent);
    announce_to(second, &a, 1, (msg_source_t[]){w5}, 1);
    run_for(10000);
    send_sources(second, &w1, 1);
    uint64_t end_us = world_now_us + MAPPINGS_ASK_US / 2;
    until_staged(second);
    cr_assert(last_said(second, MSG_STAGED)->staged.held && bytes_in(second) == 0);
    cr_assert_lt(world_now_us, end_us);
    close(silent);
    free(a.bytes);
}

/* As where workers come and go all the time. */
Test(holding, each_question_has_its_time_whatever_the_order_of_the_lists)
{
    test_content_t a = content(1);
    int silent[2];
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    msg_source_t dead = slow_origin(&a, 0), w1 = row_of(first);
    msg_source_t w5 = silent_row(&w1, 55, &dead, &silent[0]), w6 = silent_row(&w1, 56, &dead, &silent[1]);
    uint64_t end_us = world_now_us + 3 * MAPPINGS_ASK_US;
    announce_to(second, &a, 1, (msg_source_t[]){w5, w6, w1}, 3);
    for (int i = 0; i < 8 && !count_said(second, MSG_STAGED); i++) {
        for (uint64_t us = 0; us < MAPPINGS_ASK_US / 3; us += 10000) run_for(10000);
        send_sources(second, i % 2 ? (msg_source_t[]){w5, w6, w1} : (msg_source_t[]){w6, w5, w1}, 3);
    }
    until_staged(second);
    cr_assert(last_said(second, MSG_STAGED)->staged.held && bytes_in(second) == 0);
    cr_assert_lt(world_now_us, end_us);
    for (int i = 0; i < 2; i++) close(silent[i]);
    free(a.bytes);
}

/* Does not turn the publisher, which stands still. */
static void stand_still(uint64_t for_us)
{
    for (uint64_t end_us = world_now_us + for_us; world_now_us < end_us;) run_for(10000);
}

/* For less than a lease: it is listed all the time. */
Test(holding, a_holder_that_stood_still_is_asked_once_more)
{
    test_content_t a = content(1);
    (void)with_workers(&a, 1);
    publisher_start(&a);
    announce_to_all(&a);
    stand_still(MAPPINGS_ASK_US * 3 / 2);
    until_held_and_verified();
    publisher_end();
    free(a.bytes);
}

Test(holding, one_that_stays_silent_is_not_waited_for)
{
    test_content_t a = content(1);
    (void)with_workers(&a, 1);
    publisher_start(&a);
    announce_to_all(&a);
    stand_still(2 * MAPPINGS_ASK_US + 2 * HOLDING_AGAIN_US);
    cr_assert_eq(staged_by(VERIFIED_HERE, false), 1, "from the origin");
    publisher_end();
    free(a.bytes);
}

/* Others are asked before it is asked again. */
Test(holding, a_silent_holder_does_not_keep_others_waiting)
{
    test_content_t a = content(1);
    worker_t *first = first_worker(&a), *second = sharing_worker(1);
    publisher_start(&a);
    msg_source_t rows[2] = {publisher.row, row_of(first)};
    announce_to(second, &a, 1, rows, 2);
    stand_still(MAPPINGS_ASK_US + HOLDING_AGAIN_US / 2);
    until_staged(second);
    cr_assert(last_said(second, MSG_STAGED)->staged.held);
    cr_assert_eq(last_said(second, MSG_STAGED)->staged.sources[0].token, first->token);
    publisher_end();
    free(a.bytes);
}

/* The broker's answer to each NEED_SOURCES. */
static void list_again(worker_t *w, msg_source_t *rows, uint32_t count, size_t *said)
{
    if (count_said(w, MSG_NEED_SOURCES) == *said) return;
    *said = count_said(w, MSG_NEED_SOURCES);
    send_sources(w, rows, count);
}

/* As in a container with a network of its own, which no source of the version is in. */
Test(holding, where_memory_is_the_only_way_a_holder_that_stood_still_for_long_is_asked_again)
{
    test_content_t a = content(1);
    uint8_t address[LIMIT_ADDRESS_BYTES];
    size_t said = 0;
    (void)with_workers(&a, 1);
    publisher_start(&a);
    msg_source_t dead = slow_origin(&a, 0), row = publisher.row;
    memcpy(address, dead.address.data, dead.address.bytes); /* it goes with the origin */
    row.address = bytes_of(address, dead.address.bytes);
    origin_stop(1);
    announce_to(workers[0], &a, 1, &row, 1);
    for (int i = 0; i < 250; i++) {
        run_for(100000);
        list_again(workers[0], &row, 1, &said);
    }
    cr_assert_gt(said, 10);
    for (uint64_t end_us = world_now_us + 2 * HOLDING_PAUSE_US; staged_by(VERIFIED_HERE, true) == 0;) {
        cr_assert_lt(world_now_us, end_us);
        run_for(1000);
        turn_publisher();
        list_again(workers[0], &row, 1, &said);
    }
    cr_assert_eq(bytes_in(workers[0]), 0);
    publisher_end();
    free(a.bytes);
}

Test(holding, bytes_that_come_are_not_given_up_for_one_that_is_silent)
{
    test_content_t a = content(1);
    (void)with_workers(&a, 1);
    publisher_start(&a);
    msg_source_t rows[2] = {publisher.row, slow_origin(&a, a.payload_bytes / 2)};
    rows[0].address = rows[1].address;
    announce_to(workers[0], &a, 1, rows, 2);
    stand_still(2 * MAPPINGS_ASK_US + 2 * HOLDING_AGAIN_US);
    cr_assert_gt(bytes_in(workers[0]), a.payload_bytes / 3);
    stand_still(HOLDING_PAUSE_US);
    send_sources(workers[0], rows, 2);
    run_for(10000);
    cr_assert_eq(adapter_of(workers[0])->intake.state, INTAKE_DOWNLOADING);
    cr_assert_eq(count_events(workers[0], HEDDLE_EVENT_FETCHING), 1);
    publisher_end();
    free(a.bytes);
}

/* ---- full just now ---- */

static int full, waiting[8];

/* Its loop does something else, and more wait for it than it has room for. */
static void fill_socket(const char *name)
{
    int kind = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, count = 0, rc;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "heddle-%s", name);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    full = socket(AF_UNIX, kind, 0);
    cr_assert(bind(full, (struct sockaddr *)&address, bytes) == 0 && listen(full, 0) == 0);
    memset(waiting, -1, sizeof waiting);
    do {
        cr_assert_lt(count, 8);
        waiting[count] = socket(AF_UNIX, kind, 0);
        rc = connect(waiting[count++], (struct sockaddr *)&address, bytes);
    } while (rc == 0);
}

static void empty_socket(void)
{
    for (int i = 0; i < 8; i++)
        if (waiting[i] >= 0) close(waiting[i]);
    close(full);
}

static offer_content_t publisher_is_full(const test_content_t *a)
{
    char name[SHARING_NAME_BYTES];
    (void)with_workers(a, 1);
    publisher_start(a);
    sharing_close(&publisher.sharing);
    fill_socket(sharing_name(&publisher.row.life, name));
    return (offer_content_t){.id = sharing_content(&publisher.row.region, &a->manifest_digest),
                             .bytes = a->content_bytes};
}

Test(holding, a_source_that_is_full_is_asked_once_more)
{
    test_content_t a = content(1);
    offer_content_t content = publisher_is_full(&a);
    announce_to_all(&a);
    run_for(HOLDING_AGAIN_US / 2);
    const intake_t *in = &worker_node_adapter(workers[0]->node, 0)->intake;
    cr_assert(in->state == INTAKE_HOLDING && !in->holding.region);
    empty_socket();
    publisher_listen(&publisher.row.life, &content);
    until_held_and_verified();
    publisher_end();
    free(a.bytes);
}

Test(holding, one_that_stays_full_is_not_waited_for)
{
    test_content_t a = content(1);
    (void)publisher_is_full(&a);
    announce_to_all(&a);
    for (uint64_t end_us = world_now_us + 2 * HOLDING_AGAIN_US; !count_said(workers[0], MSG_STAGED);) {
        cr_assert_lt(world_now_us, end_us);
        run_for(1000);
    }
    cr_assert_eq(staged_by(VERIFIED_HERE, false), 1, "from the origin");
    empty_socket();
    publisher_end();
    free(a.bytes);
}

Test(holding, a_process_without_a_descriptor_asks_once_more)
{
    test_content_t a = content(1);
    struct rlimit old, few;
    (void)with_workers(&a, 1);
    publisher_start(&a);
    int next = dup(STDIN_FILENO);
    close(next);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){(rlim_t)next, old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    announce_to_all(&a);
    run_for(HOLDING_AGAIN_US / 2);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    until_held_and_verified();
    publisher_end();
    free(a.bytes);
}

Test(holding, what_there_is_no_memory_to_read_is_asked_for_once_more)
{
    test_content_t a = content(1);
    (void)with_workers(&a, 1);
    publisher_start(&a);
    failpoint_arm("worker.manifest", 1);
    announce_to_all(&a);
    for (int i = 0; !failpoint_has_failed(); i++) {
        cr_assert_lt(i, 5000);
        run_for(1000);
        turn_publisher();
    }
    const intake_t *in = &worker_node_adapter(workers[0]->node, 0)->intake;
    cr_assert(in->state == INTAKE_HOLDING && !in->holding.region);
    failpoint_disarm();
    until_held_and_verified();
    publisher_end();
    free(a.bytes);
}

static uint32_t refused;

/* As where the limit of locked memory is reached, the first time. */
static int map_later(transfer_t *t, region_t *r)
{
    if (r->held && !refused++) return HEDDLE_ERR_NO_MEMORY;
    return transfer_mem_ops.map(t, r);
}

/* Its hold would keep the publisher from writing that memory again. */
Test(holding, what_cannot_be_registered_is_given_back_and_asked_for_once_more)
{
    test_content_t a = content(1);
    transfer_ops_t transfer = transfer_mem_ops;
    (void)with_workers(&a, 1);
    mappings_t *mappings = sharing_mappings(worker_node_core(workers[0]->node)->bulk.sharing);
    transfer.map = map_later;
    workers[0]->io.tr = &transfer;
    publisher_start(&a);
    announce_to_all(&a);
    for (int i = 0; !refused; i++) {
        cr_assert_lt(i, 5000);
        run_for(1000);
        turn_publisher();
    }
    cr_assert_eq(mappings_count(mappings).held, 0);
    until_held_and_verified();
    publisher_end();
    workers[0]->io.tr = &transfer_mem_ops;
    free(a.bytes);
}
