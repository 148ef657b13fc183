/* SPDX-License-Identifier: Apache-2.0 */
/* Receives that are still open when nobody wants their bytes any more (rendezvous): what lands then must not be served. */
#include "tests/unit/worker_world.h"

#include "core/digest.h"
#include "transfer/exchange_state.h"

enum { LAND_US = 300000 };
#define FOR_EVER_US 3600000000u

TestSuite(late, .fini = world_end);

static test_content_t content(uint64_t seed) { return content_make(seed, 6, 3000); }

static worker_t *worker_of_one_slot(void)
{
    worker_t *w = worker_start(0, TR_MODE_RENDEZVOUS, NULL);
    w->slots = 1;
    node_line(w->node, true);
    run_for(1000);
    return w;
}

/* Announces version 1 and leaves its chunks' receives open for `us`. */
static void open_receives_for(worker_t *w, origin_t *o, const test_content_t *a, uint64_t us)
{
    msg_source_t source = source_of(o);
    uint64_t due = 0;
    announce_to(w, a, 1, &source, 1);
    while (!adapter_of(w)->intake.download || adapter_of(w)->intake.download->state != DOWNLOAD_CHUNKS)
        world_turn(&due);
    mem_hold(o->t, world_now_us + us);
    run_for(1000);
    cr_assert(!w->io.tr->idle(w->io.t, slots_at(worker_node_slots(w->node), 0, 0)->parts[0].region),
              "nothing is under way");
}

Test(late, a_slot_is_not_reused_before_they_have_landed)
{
    worker_t *w = worker_of_one_slot();
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS), *p = origin_start(1, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1), b = content_make(2, 6, 6000); /* needs a larger region: the old one goes */
    origin_serve(o, &a, 1);
    open_receives_for(w, o, &a, LAND_US);
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, 1, "policy", "deadline", "over"}});
    bring_version(w, p, &b, 2, 1); /* wants the only slot */
    cr_assert_eq(count_said(w, MSG_STAGED), 0);
    run_for(2000000);
    cr_assert(serves(w, &b, 2));
    free(a.bytes);
    free(b.bytes);
}

/* The events of one turn: the source of the chunks refuses, then the connection to the next source ends.
 * What is asked of that one in between would be asked for elsewhere with its end, and its answer would come
 * to memory that the version has given back. */
Test(late, nothing_is_asked_of_a_peer_whose_end_is_among_the_events)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *o = origin_start(0, TR_MODE_EAGER), *p = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content_make(1, 3, 3000); /* of fewer chunks than a turn takes events */
    origin_serve(p, &a, 1);
    cr_assert_eq(region_new(a.content_bytes, &o->region, NULL), HEDDLE_OK);
    memcpy(o->region->base, a.bytes, a.content_bytes);
    transfer_mem_ops.map(o->t, o->region);
    cr_assert_eq(transfer_mem_ops.share(o->t, o->region, key_of(1)), HEDDLE_OK);
    transfer_mem_ops.extend(o->t, key_of(1), manifest_offset(a.payload_bytes), a.manifest_bytes);
    msg_source_t both[] = {source_of(o), source_of(p)};
    announce_to(w, &a, 1, both, 2);
    run_for(1000);
    cr_assert_eq(adapter_of(w)->intake.download->state, DOWNLOAD_CHUNKS);

    tr_event_t events[16];
    tr_counters_t c;
    transfer_mem_ops.unshare(o->t, key_of(1));
    transfer_mem_ops.events(o->t, world_now_us, events, 16);
    transfer_mem_ops.drop_peer(p->t, w->token);
    mem_delay(p->t, world_now_us + LAND_US);
    run_for(1000);
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, 1, "policy", "deadline", "over"}});
    run_for(2 * LAND_US);
    cr_assert_eq(adapter_of(w)->intake.state, INTAKE_NONE);
    transfer_mem_ops.counters(p->t, &c);
    cr_assert_eq(c.asks_in, 0);
    transfer_mem_ops.counters(w->io.t, &c);
    cr_assert_eq(c.bytes_in, a.manifest_bytes, "chunks came to memory that was given back");
    free(a.bytes);
}

/* A transfer whose receives stay open as long as the test wants, and what it is asked for the first chunk. */
static transfer_ops_t spied;
static uint64_t first_chunk, first_cookie, *region_leaves;
static bool has_open_receives;

static int spied_ask(transfer_t *t, const peer_ref_t *from, const tr_read_t *read, uint64_t *ret_ask)
{
    int rc = transfer_mem_ops.ask(t, from, read, ret_ask);
    if (rc || read->at) return rc;
    first_chunk = *ret_ask;
    first_cookie = read->cookie;
    region_leaves = read->sink->leaves;
    return rc;
}

static bool spied_idle(transfer_t *t, const region_t *r)
{
    return !has_open_receives && transfer_mem_ops.idle(t, r);
}

/* Announces version 1; its manifest is here, and its chunks are asked for. */
static download_t *spy_on_chunks(worker_t *w, origin_t *o, const test_content_t *a)
{
    spied = transfer_mem_ops;
    spied.ask = spied_ask, spied.idle = spied_idle;
    has_open_receives = false;
    w->io.tr = &spied;
    origin_serve(o, a, 1);
    msg_source_t source = source_of(o);
    announce_to(w, a, 1, &source, 1);
    uint64_t due = 0;
    while (!adapter_of(w)->intake.download || adapter_of(w)->intake.download->state != DOWNLOAD_CHUNKS)
        world_turn(&due);
    return adapter_of(w)->intake.download;
}

/* The leaves of a copy were right when it was made; since then a receive of an ask that ended may have written over it. */
Test(late, leaves_of_a_copy_are_not_believed_where_receives_are_open)
{
    worker_t *w = worker_of_one_slot();
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1);
    download_t *pull = spy_on_chunks(w, o, &a);
    mem_hold(o->t, world_now_us + FOR_EVER_US);
    has_open_receives = true;
    uint64_t ended = first_chunk;
    tr_event_t refused = {.kind = TR_REFUSED,
                          .ask = ended,
                          .cookie = first_cookie,
                          .token = o->token,
                          .err = HEDDLE_ERR_AGAIN};
    worker_node_ops.transfer(w->node, &refused, world_now_us);
    run_for(600000);
    cr_assert_neq(first_chunk, ended, "not asked again");
    cr_assert_not_null(region_leaves);
    digest_leaves(a.bytes, a.payload_bytes, region_leaves);
    tr_event_t copied = {.kind = TR_ARRIVED,
                         .is_digested = true,
                         .ask = first_chunk,
                         .cookie = first_cookie,
                         .token = o->token};
    worker_node_ops.transfer(w->node, &copied, world_now_us);
    run_for(1000);
    cr_assert_eq(pull->bytes_done, 0, "what lies there is something else");
    cr_assert_eq(worker_node_core(w->node)->bulk.chunks_bad, 1);
    has_open_receives = false; /* or the worker's end would leave the memory to them */
    free(a.bytes);
}

/* An ask that ended with its connection, whose receive is still open, writes when the chunk has come from elsewhere. */
Test(late, what_a_lost_source_writes_is_found_before_sealing)
{
    worker_t *w = worker_of_one_slot();
    origin_t *o = origin_start(0, TR_MODE_EAGER);
    test_content_t a = content_make(1, 1, 300); /* one chunk: no other ask is taken back */
    download_t *pull = spy_on_chunks(w, o, &a);
    has_open_receives = true;
    tr_event_t refused = {.kind = TR_REFUSED,
                          .ask = first_chunk,
                          .cookie = first_cookie,
                          .token = o->token,
                          .err = HEDDLE_ERR_AGAIN};
    worker_node_ops.transfer(w->node, &refused, world_now_us);
    run_for(2000000);
    cr_assert_eq(pull->state, DOWNLOAD_CLOSING);
    ((uint8_t *)slots_at(worker_node_slots(w->node), 0, 0)->parts[0].region->base)[0] ^= 1;
    has_open_receives = false;
    run_for(100000);
    cr_assert_eq(count_said(w, MSG_STAGED), 0);
    cr_assert_str_eq(last_said(w, MSG_NACK)->nack.code, "digest_mismatch");
    free(a.bytes);
}

/* One source's bytes are copied, and digested on the way; the next one's are placed, and nobody has. */
Test(late, what_is_placed_after_what_was_copied_is_digested_too)
{
    worker_t *w = worker_joined(0, NULL);
    origin_t *copied = origin_start(0, TR_MODE_EAGER), *placed = origin_start(1, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1), b = content(2);
    bring_version(w, copied, &a, 1, 1);
    cr_assert(serves(w, &a, 1));
    bring_version(w, placed, &b, 2, 2);
    cr_assert(serves(w, &b, 2));
    cr_assert_eq(worker_node_core(w->node)->bulk.chunks_bad, 0);
    free(a.bytes);
    free(b.bytes);
}

/* Without the sources before: their asks are taken back, their receives stay open. */
static void list_alone(worker_t *w, const msg_source_t *source)
{
    msg_source_t one = *source;
    tell_worker(w, &(msg_t){.type = MSG_SOURCES,
                            .sources = {.token = w->token,
                                        .version = 1,
                                        .adapter = "policy",
                                        .sources = &one,
                                        .source_count = 1}});
}

/* The source that was given up has other bytes than it said, and they land when the right ones have been digested. */
Test(late, wrong_bytes_over_good_ones_are_found_before_sealing)
{
    worker_t *w = worker_of_one_slot(), *holder = worker_joined(1, NULL);
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS), *p = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1);
    bring_version(holder, p, &a, 1, 1);
    origin_serve(o, &a, 1);
    memset(o->region->base, 0x5a, a.payload_bytes);
    open_receives_for(w, o, &a, LAND_US);
    msg_source_t other = source_worker(holder);
    list_alone(w, &other);
    run_for(LAND_US / 2);
    cr_assert_eq(count_said(w, MSG_STAGED), 0, "sealed with receives open");
    run_for(LAND_US);
    cr_assert_eq(count_events(w, HEDDLE_EVENT_STAGED), 0, "sealed with wrong bytes");
    cr_assert_str_eq(last_said(w, MSG_NACK)->nack.code, "digest_mismatch");
    free(a.bytes);
}

static tr_counters_t counters_of(const worker_t *w)
{
    tr_counters_t c;
    transfer_mem_ops.counters(w->io.t, &c);
    return c;
}

/* Wrong bytes of a source that was given up land over verified ones before all of them have come.  Another
 * worker that asked for these would blame this one. */
Test(late, what_may_be_written_over_is_not_served_on)
{
    worker_t *w = worker_of_one_slot(), *child = worker_joined(1, NULL);
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS), *p = origin_start(1, TR_MODE_EAGER);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    origin_serve(p, &a, 1);
    memset(o->region->base, 0x5a, a.payload_bytes);
    open_receives_for(w, o, &a, LAND_US);
    mem_drop_data(p->t, 1); /* all chunks but one come */
    msg_source_t other = source_of(p), relay = source_worker(w);
    list_alone(w, &other);
    run_for(1000);
    const download_t *pull = adapter_of(w)->intake.download;
    cr_assert(pull->state == DOWNLOAD_CHUNKS && pull->bytes_done > a.payload_bytes / 2);
    run_for(LAND_US);
    announce_to(child, &a, 1, &relay, 1);
    run_for(200000);
    cr_assert_eq(pull->state, DOWNLOAD_CHUNKS);
    cr_assert_eq(counters_of(w).bytes_out, a.manifest_bytes, "bytes that may have changed were served");
    origin_t *last = origin_start(2, TR_MODE_EAGER);
    origin_serve(last, &a, 1);
    other = source_of(last);
    list_alone(w, &other);
    run_for(200000);
    cr_assert_eq(count_said(w, MSG_NACK), 1);
    cr_assert_str_eq(last_said(w, MSG_NACK)->nack.code, "digest_mismatch");
    cr_assert_eq(worker_node_core(child->node)->bulk.chunks_bad, 0, "an honest source is blamed");
    free(a.bytes);
}

Test(late, what_was_not_written_over_is_served_on_when_that_is_sure)
{
    worker_t *w = worker_of_one_slot(), *child = worker_joined(1, NULL);
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS), *p = origin_start(1, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    origin_serve(p, &a, 1);
    open_receives_for(w, o, &a, FOR_EVER_US);
    msg_source_t other = source_of(p), relay = source_worker(w);
    announce_to(child, &a, 1, &relay, 1);
    list_alone(w, &other);
    run_for(EXCHANGE_DRAIN_US / 2);
    cr_assert_eq(counters_of(w).bytes_out, a.manifest_bytes);
    run_for(EXCHANGE_DRAIN_US);
    cr_assert_eq(count_said(w, MSG_STAGED), 1);
    cr_assert_eq(count_said(child, MSG_STAGED), 1);
    cr_assert_eq(last_said(child, MSG_STAGED)->staged.sources[0].bytes, a.payload_bytes);
    free(a.bytes);
}

Test(late, a_source_that_stands_still_does_not_hold_up_a_version_that_is_here)
{
    worker_t *w = worker_of_one_slot();
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS), *p = origin_start(1, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    origin_serve(p, &a, 1);
    open_receives_for(w, o, &a, FOR_EVER_US);
    msg_source_t other = source_of(p);
    announce_to(w, &a, 1, &other, 1);
    run_for(EXCHANGE_DRAIN_US / 2);
    cr_assert_eq(count_said(w, MSG_STAGED), 0, "sealed with receives open");
    run_for(EXCHANGE_DRAIN_US);
    cr_assert_eq(count_said(w, MSG_STAGED), 1);
    commit_to(w, &a, 1, 1);
    cr_assert(serves(w, &a, 1));
    free(a.bytes);
}

Test(late, a_source_that_stands_still_does_not_keep_a_slot)
{
    worker_t *w = worker_of_one_slot();
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS), *p = origin_start(1, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1), b = content(2);
    origin_serve(o, &a, 1);
    open_receives_for(w, o, &a, FOR_EVER_US);
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, 1, "policy", "deadline", "over"}});
    run_for(EXCHANGE_DRAIN_US + 100000);
    bring_version(w, p, &b, 2, 1);
    cr_assert(serves(w, &b, 2));
    free(a.bytes);
    free(b.bytes);
}

Test(late, a_worker_that_ends_lets_nothing_land_in_memory_it_gave_back)
{
    worker_t *w = worker_of_one_slot();
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    open_receives_for(w, o, &a, FOR_EVER_US);
    region_t *r = region_ref(slots_at(worker_node_slots(w->node), 0, 0)->parts[0].region);
    worker_node_destroy(&w->node);
    cr_assert_eq(atomic_load(&r->refs), 1, "its peer was dropped, and then it was free");
    cr_assert_null(r->backend);
    transfer_mem_ops.close(&w->io.t);
    region_unref(&r);
    free(a.bytes);
}

Test(late, memory_that_may_still_be_written_to_outlives_the_worker)
{
    worker_t *w = worker_of_one_slot();
    origin_t *o = origin_start(0, TR_MODE_RENDEZVOUS);
    test_content_t a = content(1);
    origin_serve(o, &a, 1);
    open_receives_for(w, o, &a, FOR_EVER_US);
    region_t *r = region_ref(slots_at(worker_node_slots(w->node), 0, 0)->parts[0].region);
    tell_worker(w, &(msg_t){.type = MSG_ABORT, .abort = {w->token, 1, "policy", "deadline", "over"}});
    worker_node_destroy(&w->node); /* nobody knows its sources any more */
    cr_assert_eq(atomic_load(&r->refs), 2);
    cr_assert(!transfer_mem_ops.idle(w->io.t, r));
    transfer_t *t = w->io.t;
    transfer_mem_ops.close(&w->io.t); /* ends the receives: they find their mapping */
    transfer_mem_ops.unmap(t, r);
    region_t *kept = r;
    region_unref(&kept);
    region_unref(&r);
    free(a.bytes);
}
