/* SPDX-License-Identifier: Apache-2.0 */
/* The memory backend's fault knobs, times that are exact on a virtual clock, and peers that send whatever
 * they like. */
#include "tests/contract/region_new.h"
#include "tests/contract/ask.h"
#include "tests/unit/other_thread.h"
#include "transfer/exchange_state.h"
#include "tests/lib/mem.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define PIECE 65536u
#define MS 1000u

static const transfer_ops_t *const ops = &transfer_mem_ops;
static const share_key_t KEY = {{1}}, OTHER = {{2}};
static uint64_t now_us;
static transfer_t *source, *receiver;
static region_t *from, *into;
static peer_ref_t source_ref;
static tr_event_t events[64];

static uint64_t virtual_now(void *self)
{
    (void)self;
    return now_us;
}
static const clock_ops_t CLOCK = {virtual_now, virtual_now, NULL};

static transfer_t *open_one(uint64_t token, region_t **ret_region, const transfer_opts_t *opts)
{
    transfer_opts_t own = *opts;
    own.clock = &CLOCK;
    transfer_t *t;
    cr_assert_eq(ops->open(&own, &t, NULL), HEDDLE_OK);
    cr_assert_eq(region_new(16 * PIECE, ret_region, NULL), HEDDLE_OK);
    cr_assert_eq(ops->map(t, *ret_region), HEDDLE_OK);
    ops->set_token(t, token);
    return t;
}

static void set_up_with(const transfer_opts_t *opts)
{
    now_us = 1000000;
    source = open_one(11, &from, opts);
    receiver = open_one(22, &into, opts);
    for (size_t i = 0; i < from->bytes; i++) ((uint8_t *)from->base)[i] = (uint8_t)(i * 7 + i / 251);
    source_ref.token = 11;
    ops->address(source, &source_ref.address);
    cr_assert_eq(ops->share(source, from, KEY), HEDDLE_OK);
    cr_assert_eq(ops->extend(source, KEY, 0, 8 * PIECE), HEDDLE_OK);
}

static void set_up(void) { set_up_with(&(transfer_opts_t){.serve_deadline_ms = 1000, .beat_ms = 100}); }

static void set_up_rendezvous(void)
{
    set_up_with(&(transfer_opts_t){.serve_deadline_ms = 1000, .beat_ms = 100, .mode = TR_MODE_RENDEZVOUS});
}

static void tear_down(void)
{
    if (receiver) cr_assert(ops->idle(receiver, into));
    ops->unmap(source, from);
    ops->unmap(receiver, into);
    ops->close(&source);
    ops->close(&receiver);
    region_unref(&from);
    region_unref(&into);
}

TestSuite(mem, .init = set_up, .fini = tear_down);
TestSuite(mem_rendezvous, .init = set_up_rendezvous, .fini = tear_down);

static uint64_t ask(share_key_t key, uint64_t offset, uint32_t bytes)
{
    uint64_t id;
    cr_assert_eq(ask_into(ops, receiver, &source_ref, key, offset, bytes, into, offset, &id), HEDDLE_OK);
    return id;
}

/* Everything that can happen now; the receiver's events (the source's are dropped).  Returns how many. */
static int settle(void)
{
    int n = 0;
    for (int quiet = 0; quiet < 2;) {
        tr_event_t dropped[64];
        int a = ops->events(source, now_us, dropped, 64),
            b = ops->events(receiver, now_us, &events[n], 64 - n);
        n += b;
        quiet =
            a || b || ops->deadline(source) <= now_us || ops->deadline(receiver) <= now_us ? 0 : quiet + 1;
    }
    return n;
}

static uint64_t next_deadline(void)
{
    uint64_t a = ops->deadline(source), b = ops->deadline(receiver);
    return a < b ? a : b;
}

/* Takes the beats out of the first `n` events. */
static int without_beats(int n, int *beats)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (events[i].kind == TR_BEAT) ++*beats;
        else events[kept++] = events[i];
    }
    return kept;
}

/* Moves the clock from deadline to deadline until the receiver has events besides BEAT; 0: none until
 * `limit_us`. */
static int run_until_event(uint64_t limit_us, int *ret_beats)
{
    *ret_beats = 0;
    for (;;) {
        int n = without_beats(settle(), ret_beats);
        if (n > 0) return n;
        if (next_deadline() > limit_us) return 0;
        now_us = next_deadline();
    }
}

static bool is_equal(uint64_t offset, uint64_t bytes)
{
    return !memcmp((uint8_t *)into->base + offset, (uint8_t *)from->base + offset, bytes);
}

/* A carrier may take time to end, and a peer may begin a connection meanwhile: nothing would end that one. */
Test(mem, one_that_ends_accepts_no_connection_any_more)
{
    exchange_shut(source);
    ask(KEY, 0, PIECE);
    settle();
    cr_assert(exchange_quiet(source) && !source->x->conns);
}

Test(mem, nothing_arrives_outside_of_events)
{
    ask(KEY, 0, PIECE);
    for (int i = 0; i < 5; i++) cr_assert_eq(ops->events(receiver, now_us, events, 64), 0);
    cr_assert_not(is_equal(0, PIECE));
    cr_assert_eq(settle(), 1);
    cr_assert(is_equal(0, PIECE));
    cr_assert_eq(ops->fd(source), -1);
    cr_assert_str_eq(ops->version(), "");
}

Test(mem, a_killed_source_ends_every_ask)
{
    for (int i = 0; i < 8; i++) ask(KEY, 8 * PIECE, PIECE);
    cr_assert_eq(settle(), 0);
    mem_kill(source);
    mem_kill(source);
    cr_assert_eq(settle(), 9);
    for (int i = 0; i < 8; i++) cr_assert(events[i].kind == TR_REFUSED && events[i].err == HEDDLE_ERR_GONE);
    cr_assert(events[8].kind == TR_PEER_GONE && events[8].token == 11);
    uint64_t id;
    cr_assert_eq(ask_into(ops, receiver, &source_ref, KEY, 0, PIECE, into, 0, &id), HEDDLE_ERR_GONE);
    cr_assert_eq(ops->events(source, now_us, events, 64), 0);
    cr_assert_eq(ops->deadline(source), CLOCK_NEVER);
}

Test(mem, what_a_killed_source_sent_does_not_arrive)
{
    ask(KEY, 0, PIECE);
    ops->events(receiver, now_us, events, 64);
    ops->events(source, now_us, events, 64); /* DATA are under way */
    mem_kill(source);
    cr_assert_eq(settle(), 2);
    cr_assert(events[0].kind == TR_REFUSED && events[1].kind == TR_PEER_GONE);
    cr_assert_not(is_equal(0, PIECE));
}

Test(mem, a_peer_that_a_send_finds_dead_ends_once)
{
    ops->set_rate(source, 65536);
    for (uint64_t i = 0; i < 4; i++) ask(KEY, i * PIECE, PIECE);
    ops->events(receiver, now_us, events, 64);
    cr_assert_eq(ops->events(source, now_us, events, 64), 0);
    cr_assert_eq(source->x->conns->standing_count, 3, "ready, and held back by the rate");
    mem_kill(receiver);
    now_us += 1000 * MS;
    int n = ops->events(source, now_us, events, 64);
    n += ops->events(source, now_us, events + n, 64 - n);
    cr_assert_eq(n, 1);
    cr_assert(events[0].kind == TR_PEER_GONE && events[0].token == 22);
}

Test(mem, a_stopped_source_says_nothing_and_goes_on_later)
{
    mem_stop(source, true);
    ask(KEY, 0, PIECE);
    int beats;
    cr_assert_eq(run_until_event(now_us + 900 * MS, &beats), 0, "only the caller's deadline tells");
    cr_assert_eq(beats, 0);
    mem_stop(source, false);
    cr_assert_eq(settle(), 1);
    cr_assert(events[0].kind == TR_ARRIVED && is_equal(0, PIECE));
}

Test(mem, dropped_data_never_come)
{
    mem_drop_data(source, 1);
    uint64_t first = ask(KEY, 0, PIECE), second = ask(KEY, PIECE, PIECE);
    int beats;
    cr_assert_eq(run_until_event(now_us + 60000 * MS, &beats), 1);
    cr_assert(events[0].ask == second && is_equal(PIECE, PIECE) && !is_equal(0, PIECE));
    /* Nothing is said of the first one either, so that the connection ends at the serve deadline. */
    cr_assert_eq(run_until_event(now_us + 800 * MS, &beats), 0);
    cr_assert_eq(run_until_event(now_us + 60000 * MS, &beats), 2);
    cr_assert(events[0].kind == TR_REFUSED && events[0].ask == first && events[1].kind == TR_PEER_GONE);
}

Test(mem, the_nth_data_arrive_corrupt)
{
    mem_corrupt_data(source, 2, PIECE + 5);
    for (uint64_t i = 0; i < 3; i++) ask(KEY, i * PIECE, PIECE);
    cr_assert_eq(settle(), 3);
    cr_assert(is_equal(0, PIECE) && is_equal(2 * PIECE, PIECE));
    cr_assert(is_equal(PIECE, 5) && !is_equal(PIECE + 5, 1) && is_equal(PIECE + 6, PIECE - 6));
}

/* The connection stays: what else stands there comes, unless it is dropped. */
Test(mem_rendezvous, a_failed_receive_ends_its_ask_alone)
{
    for (uint64_t k = 0; k < 2; k++) {
        uint64_t at = (8 + k) * PIECE;
        mem_fail_receive(source);
        uint64_t failed = ask(KEY, k * PIECE, PIECE), stands = ask(KEY, at, PIECE);
        cr_assert_eq(settle(), 1);
        cr_assert(events[0].ask == failed && events[0].kind == TR_REFUSED);
        cr_assert_eq(events[0].err, HEDDLE_ERR_GONE);
        if (k == 1) ops->drop_ask(receiver, stands);
        cr_assert_eq(ops->extend(source, KEY, at, PIECE), HEDDLE_OK);
        cr_assert_eq(settle(), k == 0);
        cr_assert_eq(is_equal(at, PIECE), k == 0);
    }
}

Test(mem, delayed_data_come_at_their_time)
{
    mem_delay(source, now_us + 70 * MS);
    ask(KEY, 0, PIECE);
    uint64_t at = now_us + 70 * MS;
    mem_delay(source, 0);
    ask(KEY, PIECE, PIECE);
    cr_assert_eq(settle(), 2);
    mem_delay(source, at);
    ask(KEY, 2 * PIECE, PIECE);
    cr_assert_eq(settle(), 0);
    mem_delay(source, 0);
    ask(KEY, 3 * PIECE, PIECE);
    cr_assert_eq(settle(), 0, "order is kept");
    int beats;
    cr_assert_eq(run_until_event(at + MS, &beats), 2);
    cr_assert_eq(now_us, at);
}

Test(mem, a_source_may_refuse_everything)
{
    const int errs[] = {HEDDLE_ERR_NOT_FOUND, HEDDLE_ERR_LIMIT, HEDDLE_ERR_AGAIN};
    for (int i = 0; i < 3; i++) {
        mem_refuse(source, errs[i]);
        uint64_t id = ask(KEY, 0, PIECE);
        cr_assert_eq(settle(), 1);
        cr_assert(events[0].kind == TR_REFUSED && events[0].ask == id && events[0].err == errs[i]);
    }
    mem_refuse(source, 0);
    ask(KEY, 0, PIECE);
    cr_assert_eq(settle(), 1);
    cr_assert_eq(events[0].kind, TR_ARRIVED);
}

Test(mem, beats_come_when_they_are_due)
{
    ask(KEY, 8 * PIECE, PIECE);
    cr_assert_eq(settle(), 0);
    uint64_t begun = now_us;
    for (int i = 1; i <= 5; i++) {
        now_us = next_deadline();
        cr_assert_eq(settle(), 1);
        cr_assert(events[0].kind == TR_BEAT && events[0].token == 11);
        cr_assert_eq(now_us, begun + (uint64_t)i * 100 * MS);
    }
}

Test(mem, an_unknown_key_is_held_for_two_seconds)
{
    uint64_t id = ask(OTHER, 0, PIECE), begun = now_us;
    int beats;
    cr_assert_eq(run_until_event(CLOCK_NEVER - 1, &beats), 1);
    cr_assert(events[0].kind == TR_REFUSED && events[0].ask == id && events[0].err == HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(now_us, begun + 2000 * MS);
    cr_assert_geq(beats, 19, "and said to be alive meanwhile");
}

Test(mem, an_ask_that_stands_is_refused_when_its_share_stands_still)
{
    ask(KEY, 8 * PIECE, PIECE);
    int beats;
    cr_assert_eq(run_until_event(now_us + 600 * MS, &beats), 0);
    ops->extend(source, KEY, 9 * PIECE, PIECE);
    uint64_t grown = now_us;
    cr_assert_eq(run_until_event(CLOCK_NEVER - 1, &beats), 1);
    cr_assert(events[0].kind == TR_REFUSED && events[0].err == HEDDLE_ERR_AGAIN);
    cr_assert(now_us >= grown + 1000 * MS && now_us <= grown + 1100 * MS);
}

Test(mem, a_stopped_receiver_is_given_up_at_the_deadline)
{
    for (uint64_t i = 0; i < 4; i++) ask(KEY, i * PIECE, PIECE);
    ops->events(receiver, now_us, events, 64);
    cr_assert_eq(ops->events(source, now_us, events, 64), 0);
    mem_stop(receiver, true);
    ops->unshare(source, KEY);
    uint64_t sent = now_us;
    int n;
    do {
        now_us = ops->deadline(source);
        n = ops->events(source, now_us, events, 64);
    } while (n == 0);
    cr_assert_eq(now_us, sent + 1000 * MS);
    n += ops->events(source, now_us, events + n, 64 - n);
    cr_assert_eq(n, 1);
    cr_assert(events[0].kind == TR_PEER_GONE && events[0].token == 22);
    mem_stop(receiver, false);
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 4);
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 1);
    cr_assert_eq(events[0].kind, TR_PEER_GONE);
}

Test(mem, sources_slots_and_peers_outlive_each_other_in_any_order)
{
    ask(KEY, 0, PIECE);
    ops->events(receiver, now_us, events, 64);
    ops->events(source, now_us, events, 64);
    ops->unmap(receiver, into);
    ops->close(&receiver);
    cr_assert_eq(ops->events(source, now_us, events, 64), 1);
    cr_assert_eq(events[0].kind, TR_PEER_GONE);
    ops->close(&receiver);
}

/* A hostile peer: frames of our own making, on a line that HI introduced. */

static frame_t hi_of(uint64_t token, uint64_t line, const transfer_t *back)
{
    frame_t f = {.kind = FRAME_HI, .line = line};
    f.hi.token = token;
    ops->address((transfer_t *)(uintptr_t)back, &f.hi.address);
    return f;
}

static frame_t ask_of(uint64_t line, uint32_t count, uint64_t first)
{
    frame_t f = {.kind = FRAME_ASK, .line = line, .count = count};
    f.ask.key = KEY;
    for (uint32_t i = 0; i < count; i++) f.ask.ranges[i] = (frame_range_t){first + i, 8 * PIECE, PIECE};
    return f;
}

Test(mem, asks_beyond_the_limit_are_refused_and_beyond_that_ignored)
{
    frame_t hi = hi_of(77, 1000, receiver);
    exchange_frame(source, &hi);
    for (uint32_t i = 0; i < 200; i++) {
        frame_t f = ask_of(1000, 16, 1 + 16 * i);
        exchange_frame(source, &f);
    }
    cr_assert_eq(source->x->by_line->standing_count, LIMIT_ASKS_PER_PEER + 64);
    for (int i = 0; i < 20; i++) ops->events(source, now_us, events, 64);
    tr_counters_t c;
    ops->counters(source, &c);
    cr_assert_eq(c.refused_out, 64);
    cr_assert_eq(c.asks_in, 3200);
    cr_assert_eq(source->x->by_line->standing_count, LIMIT_ASKS_PER_PEER);
}

Test(mem, peers_are_limited)
{
    for (uint64_t i = 0; i < 2000; i++) {
        frame_t hi = hi_of(100 + i, 5000 + i, receiver);
        exchange_frame(source, &hi);
    }
    cr_assert_eq(source->x->conn_count, EXCHANGE_PEERS_MAX);
    uint64_t id;
    peer_ref_t one_more = {4, source_ref.address};
    cr_assert_eq(ask_into(ops, source, &one_more, KEY, 0, PIECE, from, 0, &id), HEDDLE_ERR_AGAIN);
}

Test(mem, frames_of_unknown_and_of_older_lines_change_nothing)
{
    frame_t f = ask_of(4242, 16, 1);
    exchange_frame(source, &f);
    cr_assert_null(source->x->conns);
    frame_t hi = hi_of(77, 1000, receiver), older = hi_of(77, 999, receiver),
            newer = hi_of(77, 1001, receiver);
    exchange_frame(source, &hi);
    exchange_frame(source, &older);
    cr_assert_eq(source->x->conns->end.remote_line, 1000);
    exchange_frame(source, &newer);
    cr_assert_eq(source->x->conns->end.remote_line, 1001);
    cr_assert_eq(source->x->conn_count, 2, "the old one is being closed");
    cr_assert_eq(ops->events(source, now_us, events, 64), 1);
    cr_assert(events[0].kind == TR_PEER_GONE && events[0].token == 77);
    cr_assert_eq(source->x->conn_count, 1);
}

static int try_ask(void)
{
    uint64_t id;
    return ask_into(ops, receiver, &source_ref, KEY, 0, PIECE, into, 0, &id);
}

/* Its caller takes many events at a time, and asks while it goes through them: what it asked of the peer then
 * would end for it with the event behind. */
Test(mem, a_peer_is_asked_again_after_the_events_that_its_end_came_with)
{
    ask(KEY, 8 * PIECE, PIECE);
    cr_assert_eq(settle(), 0);
    ops->drop_peer(receiver, 11);
    cr_assert_eq(try_ask(), HEDDLE_ERR_GONE);
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 1, "the end of the ask, and no more");
    cr_assert_eq(try_ask(), HEDDLE_ERR_GONE, "the caller has not come to it");
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 1);
    cr_assert(events[0].kind == TR_PEER_GONE && events[0].token == 11);
    cr_assert_eq(try_ask(), HEDDLE_OK);
    cr_assert_eq(settle(), 1);
    cr_assert_eq(events[0].kind, TR_ARRIVED);
}

Test(mem, a_peer_that_came_back_is_asked_when_its_end_was_seen)
{
    ask(KEY, 8 * PIECE, PIECE);
    cr_assert_eq(settle(), 0);
    frame_t again = hi_of(11, receiver->x->conns->end.remote_line + 1, source);
    exchange_frame(receiver, &again);
    cr_assert(receiver->x->conns && receiver->x->conns->state == CONN_ACCEPTED);
    cr_assert_eq(try_ask(), HEDDLE_ERR_GONE);
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 1);
    cr_assert_eq(try_ask(), HEDDLE_ERR_GONE);
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 1);
    cr_assert(events[0].kind == TR_PEER_GONE && events[0].token == 11);
    cr_assert_eq(try_ask(), HEDDLE_OK);
}

Test(mem, data_of_another_shape_end_the_ask)
{
    ask(KEY, 8 * PIECE, PIECE);
    settle();
    conn_t *p = receiver->x->conns;
    frame_t f = {.kind = FRAME_DATA, .line = p->end.remote_line};
    f.data.ask = receiver->x->asks[0].id;
    f.data.offset = 8 * PIECE;
    f.data.bytes = PIECE - 1;
    frame_t stale = f, stranger = f;
    stale.data.ask += 1u << 16;
    stranger.line++;
    cr_assert_null(exchange_place(receiver, &stale, PIECE, BY_COPY));
    cr_assert_null(exchange_place(receiver, &stranger, PIECE, BY_COPY));
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 0, "neither is ours");
    cr_assert_null(exchange_place(receiver, &f, PIECE - 1, BY_COPY));
    cr_assert_eq(ops->events(receiver, now_us, events, 64), 1);
    cr_assert(events[0].kind == TR_REFUSED && events[0].err == HEDDLE_ERR_PROTOCOL);
}

/* Another peer knows or guesses the number of an ask. */
Test(mem, one_peer_does_not_refuse_what_another_one_was_asked_for)
{
    uint64_t id = ask(KEY, 8 * PIECE, PIECE);
    settle();
    frame_t hi = hi_of(77, 1000, source), refusal = {.kind = FRAME_REFUSED, .count = 1};
    exchange_frame(receiver, &hi);
    refusal.refused.rows[0] = (frame_refusal_t){id, HEDDLE_ERR_NOT_FOUND};
    refusal.line = 1000;
    exchange_frame(receiver, &refusal);
    cr_assert_eq(receiver->counters.refused_in, 0);
    cr_assert_eq(receiver->x->asks[0].state, ASK_SENT);
    refusal.line = conn_of_token(receiver, 11)->end.remote_line;
    exchange_frame(receiver, &refusal);
    cr_assert_eq(receiver->counters.refused_in, 1);
}

/* Requests of all peers are in one table. */
Test(mem, the_end_of_one_connection_ends_no_request_of_another)
{
    uint64_t stays = ask(KEY, 8 * PIECE, PIECE), ends;
    cr_assert_eq(settle(), 0);
    frame_t hi = hi_of(77, 1000, source), bye = {.kind = FRAME_BYE, .line = 1000};
    exchange_frame(receiver, &hi);
    peer_ref_t another = {77, source_ref.address};
    cr_assert_eq(ask_into(ops, receiver, &another, KEY, 9 * PIECE, PIECE, into, 9 * PIECE, &ends), HEDDLE_OK);
    exchange_frame(receiver, &bye);
    cr_assert_eq(settle(), 2);
    cr_assert(events[0].kind == TR_REFUSED && events[0].ask == ends && events[1].kind == TR_PEER_GONE);
    cr_assert_eq(ops->extend(source, KEY, 8 * PIECE, PIECE), HEDDLE_OK);
    cr_assert_eq(settle(), 1);
    cr_assert(events[0].kind == TR_ARRIVED && events[0].ask == stays);
}

/* ---- a carrier that takes nothing for a while ---- */

static const carrier_ops_t *carrier;
static carrier_ops_t full;

static bool takes_nothing(transfer_t *t, endpoint_t *e, send_t *s)
{
    (void)t;
    (void)e;
    (void)s;
    return false;
}

static void fill(transfer_t *t)
{
    carrier = t->carrier;
    full = *carrier;
    full.send = takes_nothing;
    t->carrier = &full;
}

/* Not even what says that the source is alive, as its requests wait for bytes. */
Test(mem, a_receiver_that_takes_no_beat_is_given_up_at_the_deadline)
{
    ask(KEY, 8 * PIECE, PIECE);
    cr_assert_eq(settle(), 0);
    fill(source);
    uint64_t begun = now_us;
    int n = 0;
    for (uint64_t turn = 0; n == 0 && now_us < begun + 3000 * MS; turn++) {
        if (turn % 4 == 0) ops->extend(source, KEY, (9 + turn / 4 % 7) * PIECE, PIECE); /* it gets on */
        now_us = ops->deadline(source);
        n = ops->events(source, now_us, events, 64);
    }
    cr_assert(n == 1 && events[0].kind == TR_PEER_GONE && events[0].token == 22);
    cr_assert_leq(now_us, begun + 1100 * MS, "a beat, and the deadline");
}

/* Links stay for a while after their connections, as those of UCX do. */
static carrier_ops_t lingering;
static void let_linger(transfer_t *t)
{
    lingering = *t->carrier;
    lingering.linger_us = 10000 * MS;
    t->carrier = &lingering;
}

static void connect_both(void)
{
    cr_assert_eq(ops->greet(receiver, &source_ref), HEDDLE_OK);
    settle();
}

/* One chunk costs all of the credit. */
Test(mem, what_was_not_sent_is_not_paid_for)
{
    connect_both();
    ops->set_rate(receiver, PIECE);
    fill(receiver);
    ask(KEY, 0, PIECE);
    cr_assert_eq(settle(), 0);
    receiver->carrier = carrier;
    cr_assert_eq(settle(), 1);
    cr_assert_eq(events[0].kind, TR_ARRIVED);
    ask(KEY, PIECE, PIECE);
    cr_assert_eq(settle(), 0, "its rate");
}

Test(mem, what_is_refused_is_not_paid_for)
{
    connect_both();
    ops->set_rate(receiver, PIECE);
    mem_refuse(source, HEDDLE_ERR_NOT_FOUND);
    ask(KEY, 0, PIECE);
    cr_assert_eq(settle(), 1);
    cr_assert_eq(events[0].kind, TR_REFUSED);
    mem_refuse(source, 0);
    ask(KEY, 0, PIECE);
    cr_assert_eq(settle(), 1);
    cr_assert_eq(events[0].kind, TR_ARRIVED);
}

/* Its rate held it back until its connection ended. */
Test(mem, what_was_not_paid_for_is_not_paid_back)
{
    connect_both();
    ops->set_rate(receiver, PIECE);
    ask(KEY, 0, PIECE);
    ask(KEY, PIECE, PIECE);
    cr_assert_eq(settle(), 1);
    ops->drop_peer(receiver, 11);
    cr_assert_eq(settle(), 2);
    cr_assert(events[0].kind == TR_REFUSED && events[1].kind == TR_PEER_GONE);
    ask(KEY, PIECE, PIECE);
    cr_assert_eq(settle(), 0, "its rate");
}

/* A peer that was not told waits for its own deadline. */
Test(mem, a_goodbye_that_could_not_be_sent_is_sent_when_there_is_room)
{
    connect_both();
    let_linger(receiver);
    fill(receiver);
    ops->drop_peer(receiver, 11);
    for (int i = 0; i < 4; i++) ops->events(receiver, now_us, events, 64);
    cr_assert_eq(ops->events(source, now_us, events, 64), 0);
    receiver->carrier = carrier;
    settle();
    cr_assert_null(source->x->conns);
}

/* What is in flight says more. */
Test(mem, a_source_whose_bytes_are_in_flight_says_no_beat)
{
    ask(KEY, 0, PIECE);
    ask(KEY, 8 * PIECE, PIECE);
    ops->events(receiver, now_us, events, 64);
    mem_stop(receiver, true);
    tr_counters_t c;
    for (uint64_t end_us = now_us + 900 * MS; now_us < end_us; now_us = ops->deadline(source)) {
        while (ops->deadline(source) <= now_us) ops->events(source, now_us, events, 64);
        ops->counters(source, &c);
        cr_assert(c.asks_in == 2 && c.beats_out == 0);
    }
    mem_stop(receiver, false);
}

/* Its peer takes it later than a second, and sooner than the serve deadline. */
Test(mem_late, a_connection_of_an_older_token_ends_after_its_bytes)
{
    set_up_with(&(transfer_opts_t){.serve_deadline_ms = 5000, .beat_ms = 100});
    connect_both();
    ask(KEY, 0, PIECE);
    ops->events(receiver, now_us, events, 64);
    mem_stop(receiver, true);
    ops->events(source, now_us, events, 64);
    ops->set_token(source, 12);
    for (uint64_t end_us = now_us + 4000 * MS; now_us < end_us; now_us += 100 * MS)
        while (ops->deadline(source) <= now_us) ops->events(source, now_us, events, 64);
    mem_stop(receiver, false);
    cr_assert_eq(settle(), 1);
    cr_assert(events[0].kind == TR_ARRIVED && is_equal(0, PIECE));
    for (int i = 0; i < 3; i++, now_us += 2000 * MS) settle();
    cr_assert_null(conn_of_token(source, 22));
    tear_down();
}

/* The memory is the caller's again at once, whether or not the peer takes the goodbye. */
Test(mem_rendezvous, a_connection_that_ends_with_a_receive_open_is_cut)
{
    mem_hold(source, now_us + 60000 * MS);
    ask(KEY, 0, PIECE);
    settle();
    cr_assert_not(ops->idle(receiver, into));
    let_linger(receiver);
    mem_stop(source, true);
    ops->drop_peer(receiver, 11);
    ops->events(receiver, now_us, events, 64);
    cr_assert(ops->idle(receiver, into));
    mem_stop(source, false);
}

static uint64_t random_u64(void)
{
    return (uint64_t)rand() << 42 ^ (uint64_t)rand() << 21 ^ (uint64_t)rand();
}

/* Numbers near what is in use, so that they often mean something. */
static uint64_t likely(uint64_t about)
{
    return rand() % 4 ? about + (uint64_t)(rand() % 5) - 2 : random_u64();
}

static void send_anything(transfer_t *to, transfer_t *back)
{
    const frame_kind_t KINDS[] = {FRAME_HI,   FRAME_ASK,     FRAME_UNASK, FRAME_DATA,
                                  FRAME_BEAT, FRAME_REFUSED, FRAME_BYE};
    frame_t f = {.kind = KINDS[rand() % 7],
                 .line = likely(7000),
                 .count = 1 + (uint32_t)rand() % LIMIT_ASK_RANGES};
    if (rand() % 2 && to->x->conns) f.line = to->x->conns->end.remote_line;
    if (f.line == 0) return;
    switch (f.kind) {
    case FRAME_HI:
        ops->address(back, &f.hi.address);
        f.hi.token = 1 + likely(70);
        f.hi.answer = rand() % 3 ? 0 : to->x->conns ? likely(to->x->conns->end.line) : random_u64();
        break;
    case FRAME_ASK:
        f.ask.key = rand() % 4 ? KEY : OTHER;
        for (uint32_t i = 0; i < f.count; i++)
            f.ask.ranges[i] =
                (frame_range_t){likely(40), likely(8) * PIECE, rand() % 2 ? PIECE : (uint32_t)random_u64()};
        break;
    case FRAME_UNASK:
        for (uint32_t i = 0; i < f.count; i++) f.unask.asks[i] = likely(40);
        break;
    case FRAME_DATA: {
        const ask_t *a = &to->x->asks[rand() % 64];
        f.data.ask = likely(a->id);
        f.data.offset = rand() % 2 ? a->offset : random_u64();
        f.data.bytes = rand() % 4 ? a->bytes : (uint32_t)random_u64();
        if (exchange_place(to, &f, rand() % 4 ? f.data.bytes : 17, rand() % 2 ? BY_COPY : BY_ITSELF))
            exchange_arrived(to, f.data.ask, rand() % 4 != 0);
        return;
    }
    case FRAME_BEAT:
    case FRAME_BYE: break;
    case FRAME_REFUSED:
        for (uint32_t i = 0; i < f.count; i++)
            f.refused.rows[i] = (frame_refusal_t){likely(to->x->asks[rand() % 64].id), HEDDLE_ERR_AGAIN};
        break;
    }
    exchange_frame(to, &f);
}

Test(mem, whatever_peers_send_the_books_balance, .timeout = 60)
{
    unsigned seed = getenv("HEDDLE_SEED") ? (unsigned)atoi(getenv("HEDDLE_SEED")) : 42u;
    printf("seed %u\n", seed);
    srand(seed);
    uint64_t asked = 0, dropped = 0, ended = 0;
    for (int round = 0; round < 30000; round++) {
        uint64_t id;
        send_anything(source, receiver);
        send_anything(receiver, source);
        if (ask_into(ops, receiver, &source_ref, KEY, (uint64_t)(rand() % 12) * PIECE, PIECE, into, 0, &id) ==
            HEDDLE_OK) {
            asked++;
            if (rand() % 8 == 0) ops->drop_ask(receiver, id), dropped++;
        }
        if (rand() % 50 == 0) ops->drop_peer(receiver, source_ref.token);
        if (rand() % 97 == 0) ops->unshare(source, KEY);
        if (rand() % 31 == 0 && ops->share(source, from, KEY) == HEDDLE_OK)
            ops->extend(source, KEY, 0, (uint64_t)(rand() % 16) * PIECE);
        if (rand() % 13 == 0) now_us += (uint64_t)(rand() % 300) * MS;
        ops->events(source, now_us, events, 64);
        int n = ops->events(receiver, now_us, events, rand() % 64);
        for (int i = 0; i < n; i++) ended += events[i].kind == TR_ARRIVED || events[i].kind == TR_REFUSED;
    }
    for (conn_t *p; (p = receiver->x->conns);) ops->drop_peer(receiver, p->end.token);
    for (int n; (n = ops->events(receiver, now_us, events, 64)) > 0;)
        for (int i = 0; i < n; i++) ended += events[i].kind == TR_ARRIVED || events[i].kind == TR_REFUSED;
    cr_assert_eq(asked, dropped + ended, "asked %llu, dropped %llu, ended %llu", (unsigned long long)asked,
                 (unsigned long long)dropped, (unsigned long long)ended);
    cr_assert_gt(ended, 1000);
    cr_assert(ops->idle(receiver, into));
    cr_assert_eq(receiver->x->ring.reserved, receiver->x->conn_count + receiver->x->share_count,
                 "no reservation is lost");
}

/* ---- whose it is ---- */

static void take_events(void *t) { ops->events(t, now_us, events, 64); }
static void ask_early(void *t) { ask_into(ops, t, &source_ref, KEY, 0, PIECE, into, 0, &(uint64_t){0}); }

/* With and without an owner: only who named one is asked. */
Test(owned, another_thread_may_where_nobody_looks)
{
    set_up();
    on_another_thread(take_events, receiver);
    tear_down();
}

Test(owned, another_thread_may_not_take_events, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    set_up_with(&(transfer_opts_t){.owner = &owner});
    on_another_thread(take_events, receiver);
}

Test(owned, another_thread_may_not_ask, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    set_up_with(&(transfer_opts_t){.owner = &owner});
    on_another_thread(ask_early, receiver);
}
