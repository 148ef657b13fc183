/* SPDX-License-Identifier: Apache-2.0 */
/* The state table of worker/fetch.h cell by cell, then whole fetches from lossy, bad, slow and
 * dying sources in virtual time.  HEDDLE_TEST_SEED sets the first seed of the random runs; a
 * failure prints the one that failed. */
#include "fetch_walk.h"

#include <stdio.h>

enum { A = 101, B = 102, C = 103 };

static void start(uint32_t count) { start_with((fetch_plan_t){.count = count}); }
#define SOURCES(...) sources((int)(sizeof((uint64_t[]){__VA_ARGS__}) / 8), (uint64_t[]){__VA_ARGS__})

/* The actions as one line: "ask 0@101 ask 1@101 need done". */
static const char *said(void)
{
    static char text[8192];
    static const char *const words[] = {"ask", "drop", "need", "done", "failed"};
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < act_count; i++) {
        const action_t *a = &acts[i];
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? " " : "", words[a->kind]);
        if (a->kind <= FA_DROP_ASK)
            n += (size_t)snprintf(text + n, sizeof text - n, " %u@%llu", a->piece,
                                  (unsigned long long)a->token);
    }
    return text;
}
#define SAID(expected) cr_assert_str_eq(said(), expected)

/* -- SOURCES ---------------------------------------------------------------------------------- */

Test(fetch, sources_ask_the_first_one_up_to_its_window, .fini = stop)
{
    start(6);
    SOURCES(A, B);
    SAID("ask 0@101 ask 1@101 ask 2@101 ask 3@101");
    tick();
    SAID("");
}

Test(fetch, a_list_without_the_source_drops_what_was_open_there, .fini = stop)
{
    start(2);
    SOURCES(A);
    SOURCES(B);
    SAID("drop 0@101 drop 1@101 ask 0@102 ask 1@102");
}

Test(fetch, a_list_that_keeps_the_source_leaves_its_asks_alone, .fini = stop)
{
    start(2);
    SOURCES(A);
    SOURCES(B, A, A);
    SAID("");
    good(0, A);
    good(1, A);
    SAID("done");
}

Test(fetch, an_empty_list_needs_sources, .fini = stop)
{
    start(2);
    SOURCES(A);
    step((event_t){.kind = FE_SOURCES});
    SAID("drop 0@101 drop 1@101 need");
}

Test(fetch, a_list_longer_than_the_table_is_cut, .fini = stop)
{
    start(1);
    sources(10, (uint64_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
    for (uint64_t t = 1; t < 8; t++) {
        gone(t);
        cr_assert_eq(acts[0].token, t + 1);
    }
    gone(8);
    SAID("need");
}

/* -- GOOD ------------------------------------------------------------------------------------- */

Test(fetch, good_asks_more_and_the_last_one_is_done, .fini = stop)
{
    start(5);
    SOURCES(A);
    good(0, A);
    SAID("ask 4@101");
    for (uint32_t p = 1; p < 4; p++) cr_assert_eq(good(p, A), 0);
    cr_assert_eq(count_good(5), 4);
    cr_assert(is_good(3) && !is_good(4) && !is_good(5));
    good(4, A);
    SAID("done");
    cr_assert_eq(fetch_from(f, A), 5);
    cr_assert_eq(fetch_from(f, B), 0);
}

Test(fetch, what_lands_of_an_ask_that_was_given_up_counts_for_nothing, .fini = stop)
{
    start(3);
    SOURCES(A, B);
    uint64_t given_up = ask_of[1];
    gone(A);
    SAID("ask 0@102 ask 1@102 ask 2@102");
    cr_assert_not(fetch_land(f, 1, given_up, now));
    cr_assert_eq(fetch_piece(f, 1, NULL), PIECE_ASKED);
    cr_assert(land(1, B));
    cr_assert_not(fetch_land(f, 1, ask_of[1], now), "an ask ends once");
    cr_assert_not(fetch_land(f, UINT32_MAX, 1, now));
}

Test(fetch, a_piece_goes_from_state_to_state_and_keeps_its_source, .fini = stop)
{
    uint64_t token = 7;
    start(6);
    cr_assert_eq(fetch_piece(f, 0, &token), PIECE_TODO);
    cr_assert_eq(token, 0);
    SOURCES(A);
    cr_assert_eq(fetch_piece(f, 0, &token), PIECE_ASKED);
    cr_assert_eq(token, A);
    cr_assert(land(0, A));
    cr_assert_eq(fetch_piece(f, 0, &token), PIECE_LANDED);
    cr_assert_eq(token, A);
    good(0, A);
    cr_assert_eq(fetch_piece(f, 0, &token), PIECE_GOOD);
    cr_assert_eq(fetch_piece(f, 6, &token), PIECE_TODO, "there is no such piece");
}

Test(fetch, what_has_landed_is_not_asked_again_while_its_digest_is_pending, .fini = stop)
{
    start(3);
    SOURCES(A, B);
    cr_assert(land(1, A));
    gone(A);
    SAID("ask 0@102 ask 2@102 need");
    step((event_t){.kind = FE_GOOD, .piece = 1});
    SAID("");
    cr_assert_eq(fetch_from(f, A), 1);
    good(0, B);
    good(2, B);
    SAID("done");
}

Test(fetch, what_has_landed_counts_in_its_sources_window, .fini = stop)
{
    start(6);
    SOURCES(A);
    for (uint32_t p = 0; p < 4; p++) cr_assert(land(p, A));
    tick();
    SAID("");
    cr_assert_eq(fetch_deadline(f), CLOCK_NEVER, "nothing is expected of the source");
    step((event_t){.kind = FE_GOOD, .piece = 2});
    SAID("ask 4@101");
}

Test(fetch, good_of_a_piece_that_has_not_landed_or_does_not_exist_is_ignored, .fini = stop)
{
    start(6);
    SOURCES(A);
    for (uint32_t p = 0; p < 7; p++) step((event_t){.kind = FE_GOOD, .piece = p});
    step((event_t){.kind = FE_GOOD, .piece = UINT32_MAX});
    SAID("");
    cr_assert_eq(count_good(6), 0);
}

/* -- an ask that cannot be made --------------------------------------------------------------- */

static int refused_with;
static uint64_t refused_at;
static int refuse_second(uint32_t piece, uint64_t token)
{
    return token == refused_at && piece == 1 ? refused_with : HEDDLE_OK;
}

static void start_refusing(uint32_t count, uint64_t token, int err)
{
    refused_at = token;
    refused_with = err;
    try_ask = refuse_second;
    start(count);
}

Test(fetch, an_ask_that_cannot_be_made_is_refused_by_its_source, .fini = stop)
{
    start_refusing(3, A, HEDDLE_ERR_AGAIN);
    SOURCES(A, B);
    SAID("ask 0@101 drop 0@101 ask 1@102 ask 0@102 ask 2@102");
    cr_assert_eq(acts[0].ask, acts[1].ask);
    try_ask = NULL;
    now += 500 * MS;
    refused(1, B, HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(acts[act_count - 1].token, A);
}

/* SLOW: as many requests of this process are open as may be. */
Test(fetch, what_this_process_may_not_ask_for_is_no_fault_of_the_source, .fini = stop)
{
    start_refusing(4, A, HEDDLE_ERR_SLOW);
    SOURCES(A, B);
    SAID("ask 0@101");
    cr_assert_eq(fetch_deadline(f), now + 10 * MS);
    now += 10 * MS;
    tick();
    SAID("");
    good(0, A);
    SAID("");
    try_ask = NULL;
    cr_assert_eq(fetch_deadline(f), now + 10 * MS, "it is tried again, also where nothing is open");
    now += 10 * MS;
    tick();
    SAID("ask 1@101 ask 2@101 ask 3@101");
    cr_assert(moved_count() == 0 && fetch_lost(f, (uint64_t[1]){0}, 1) == 0);
    cr_assert_gt(fetch_deadline(f), now + 10 * MS);
}

Test(fetch, siblings_share_the_window, .fini = stop)
{
    start(8);
    sharer_count = 2;
    SOURCES(A, B);
    SAID("ask 0@101 ask 1@101");
    sharer_count = 1000;
    good(0, A);
    SAID("");
    good(1, A);
    SAID("ask 2@101");
    sharer_count = 1;
    good(2, A);
    SAID("ask 3@101 ask 4@101 ask 5@101 ask 6@101");
}

Test(fetch, siblings_at_another_source_have_no_part_of_this_ones_window, .fini = stop)
{
    start(8);
    sharer_count = 2;
    shared = B;
    SOURCES(A, B);
    SAID("ask 0@101 ask 1@101 ask 2@101 ask 3@101");
    gone(A);
    SAID("ask 0@102 ask 1@102");
    shared = 0;
    sharer_count = 1;
}

/* Siblings see by it which window they share. */
Test(fetch, what_it_asks_is_known_as_long_as_it_can, .fini = stop)
{
    start(8);
    cr_assert_eq(asks_now, 0);
    SOURCES(A, B);
    cr_assert_eq(asks_now, A);
    gone(A);
    cr_assert_eq(asks_now, B);
    refused(0, B, HEDDLE_ERR_AGAIN);
    cr_assert_eq(asks_now, 0, "it rests");
    now += 500 * MS;
    tick();
    cr_assert_eq(asks_now, B);
    fetch_cancel(f);
    cr_assert_eq(asks_now, 0);
}

Test(fetch, a_source_that_cannot_be_reached_keeps_nothing_open, .fini = stop)
{
    start_refusing(2, A, HEDDLE_ERR_GONE);
    SOURCES(A, B);
    SAID("ask 0@101 drop 0@101 ask 1@102 ask 0@102");
    cr_assert_not(fetch_land(f, 0, acts[0].ask, now), "it ended with its source");
    cr_assert(land(0, B));
}

Test(fetch, no_source_that_can_be_asked_is_no_source, .fini = stop)
{
    start_refusing(2, A, HEDDLE_ERR_GONE);
    SOURCES(A);
    SAID("ask 0@101 drop 0@101 need");
    cr_assert_eq(fetch_piece(f, 0, NULL), PIECE_TODO);
    cr_assert_eq(fetch_lost(f, (uint64_t[1]){0}, 1), 1);
}

/* A NEED_SOURCES has room for a few: those that the broker would name again, and no old ones in their place. */
Test(fetch, of_many_that_were_lost_those_of_the_list_come_first, .fini = stop)
{
    uint64_t lost[4];
    start(1);
    for (uint64_t t = 1; t <= 20; t++) {
        SOURCES(t);
        gone(t);
    }
    SOURCES(3, 21);
    gone(3);
    gone(21);
    cr_assert_eq(fetch_lost(f, lost, 4), 4);
    cr_assert(lost[0] == 3 && lost[1] == 21 && lost[2] == 20 && lost[3] == 19);
}

/* -- BAD -------------------------------------------------------------------------------------- */

Test(fetch, bad_twice_quarantines_the_source_for_ever, .fini = stop)
{
    start(3);
    SOURCES(A, B);
    bad(1, A);
    SAID("drop 0@101 drop 2@101 ask 1@102 ask 0@102 ask 2@102");
    gone(B);
    SOURCES(A);
    SAID("ask 1@101 ask 0@101 ask 2@101");
    bad(0, A);
    SAID("drop 1@101 drop 2@101");
    SOURCES(A);
    SAID("");
    now += SECOND;
    tick();
    SAID("need");
    SOURCES(C);
    SAID("ask 0@103 ask 1@103 ask 2@103");
    gone(A); /* stays quarantined, not merely lost */
    gone(C);
    SOURCES(A);
    now += SECOND;
    tick();
    SAID("need");
    uint64_t lost[4];
    cr_assert_eq(fetch_lost(f, lost, 4), 3);
    cr_assert_eq(lost[0], A);
    cr_assert_eq(fetch_lost(f, lost, 1), 1);
}

Test(fetch, one_piece_bad_from_three_sources_fails, .fini = stop)
{
    start(2);
    SOURCES(A, B, C);
    bad(0, A);
    bad(0, A); /* the same source does not count twice */
    SAID("");
    bad(0, B);
    SAID("drop 1@102 ask 0@103 ask 1@103");
    bad(0, C);
    SAID("drop 1@103 failed");
}

Test(fetch, bad_pieces_of_different_numbers_do_not_add_up, .fini = stop)
{
    start(3);
    SOURCES(A, B, C);
    bad(0, A);
    bad(1, B);
    bad(2, C);
    SAID("drop 1@103 drop 0@103 ask 2@101 ask 1@101 ask 0@101");
}

Test(fetch, a_bad_piece_quarantines_a_source_that_is_gone, .fini = stop)
{
    start(2);
    SOURCES(A, B);
    cr_assert(land(0, A));
    gone(A);
    SAID("ask 1@102 need");
    bad(0, A);
    SAID("ask 0@102");
    SOURCES(A, B);
    SAID("");
}

Test(fetch, bad_of_nobody_and_of_no_piece_is_ignored, .fini = stop)
{
    start(2);
    SOURCES(A);
    bad(0, C);
    bad(2, A);
    SAID("");
    good(0, A);
    good(1, A);
    SAID("done");
}

/* A bit that changed once on its way does not fail the version. */
Test(fetch, bad_once_from_the_only_source_is_asked_for_once_more, .fini = stop)
{
    start(2);
    SOURCES(A);
    bad(0, A);
    SAID("drop 1@101 ask 0@101 ask 1@101");
    uint64_t blamed[4];
    cr_assert_eq(fetch_blamed(f, BLAME_BAD, blamed, 4), 1, "it is said all the same");
    SOURCES(A, B); /* another one comes first */
    good(0, A);
    good(1, A);
    SAID("done");
}

Test(fetch, bad_once_is_asked_where_there_is_no_other_one, .fini = stop)
{
    start(2);
    SOURCES(A, B);
    bad(0, A);
    SAID("drop 1@101 ask 0@102 ask 1@102");
    gone(B);
    SAID("need"); /* it may come back */
    SOURCES(A, B);
    SAID("ask 0@102 ask 1@102");
}

/* -- why asks move ---------------------------------------------------------------------------- */

/* "101 late 4, 102 gone 2": of the sources A, B and C */
static const char *moves(void)
{
    static char text[256];
    static const char *const WHY[MOVED_REASONS] = {"late", "gone", "refused", "bad", "slow"};
    size_t n = 0;
    text[0] = 0;
    for (uint64_t token = A; token <= C; token++)
        for (int why = 0; why < MOVED_REASONS; why++)
            if (moved_from[token & 7][why])
                n += (size_t)snprintf(text + n, sizeof text - n, "%s%llu %s %llu", n ? ", " : "",
                                      (unsigned long long)token, WHY[why],
                                      (unsigned long long)moved_from[token & 7][why]);
    return text;
}

Test(fetch, asks_that_move_are_counted_for_the_source_that_they_left, .fini = stop)
{
    start(6);
    SOURCES(A, B, C);
    refused(0, A, HEDDLE_ERR_NOT_FOUND);
    cr_assert_str_eq(moves(), "101 refused 4");
    gone(B);
    cr_assert_str_eq(moves(), "101 refused 4, 102 gone 4");
    bad(0, C);
    cr_assert_str_eq(moves(), "101 refused 4, 102 gone 4, 103 bad 4");
}

Test(fetch, asks_that_move_from_a_late_source_are_late_whatever_the_list, .fini = stop)
{
    start(4);
    SOURCES(A, B);
    now += 800 * MS;
    tick();
    cr_assert_str_eq(moves(), "101 late 4");
    stop();
    start(4);
    SOURCES(A);
    now += 800 * MS;
    tick();
    cr_assert_str_eq(moves(), "", "no other source");
    SOURCES(B);
    cr_assert_str_eq(moves(), "101 late 4");
    SOURCES(C); /* it is not late: the broker found out before */
    cr_assert_str_eq(moves(), "101 late 4, 102 gone 4");
}

Test(fetch, what_was_never_asked_or_needs_no_other_source_does_not_move, .fini = stop)
{
    start_refusing(3, A, HEDDLE_ERR_AGAIN);
    SOURCES(A, B);
    cr_assert_str_eq(moves(), "101 refused 1", "the second piece was not asked");
    try_ask = NULL;
    fetch_cancel(f);
    cr_assert_str_eq(moves(), "101 refused 1");
}

/* -- REFUSED ---------------------------------------------------------------------------------- */

Test(fetch, refused_loses_the_source_until_a_list_names_it_again, .fini = stop)
{
    start(3);
    SOURCES(A, B);
    refused(0, A, HEDDLE_ERR_NOT_FOUND);
    SAID("drop 1@101 drop 2@101 ask 0@102 ask 1@102 ask 2@102");
    now += 60 * SECOND;
    beat(B);
    gone(B);
    SAID("need");
    SOURCES(A);
    SAID("ask 0@101 ask 1@101 ask 2@101");
}

Test(fetch, refused_for_now_rests_the_source, .fini = stop)
{
    start(2);
    SOURCES(A);
    refused(1, A, HEDDLE_ERR_AGAIN);
    SAID("drop 0@101 need");
    cr_assert_eq(fetch_lost(f, (uint64_t[1]){0}, 1), 0);
    SOURCES(A); /* named again: rests on */
    SAID("");
    cr_assert_eq(fetch_deadline(f), now + 500 * MS);
    now += 500 * MS;
    tick();
    SAID("ask 1@101 ask 0@101");
}

Test(fetch, a_resting_source_behind_the_one_that_is_asked_wakes_nobody, .fini = stop)
{
    start(8);
    SOURCES(A);
    refused(0, A, HEDDLE_ERR_AGAIN);
    SOURCES(B, A);
    now += SECOND;
    tick();
    cr_assert_gt(fetch_deadline(f), now);
}

Test(fetch, a_rested_source_is_asked_again_before_those_behind_it, .fini = stop)
{
    start(6);
    SOURCES(A, B);
    refused(0, A, HEDDLE_ERR_AGAIN);
    now += 500 * MS;
    good(0, B);
    SAID("ask 4@101 ask 5@101");
}

/* One receive may fail on a connection that stays: the others would be placed later. */
Test(fetch, refused_with_gone_drops_all_asks_at_once_and_its_echoes_are_ignored, .fini = stop)
{
    start(3);
    SOURCES(A, B);
    refused(0, A, HEDDLE_ERR_GONE);
    SAID("drop 1@101 drop 2@101 ask 0@102 ask 1@102 ask 2@102");
    refused(1, A, HEDDLE_ERR_GONE);
    SAID("");
    gone(A);
    SAID("");
}

Test(fetch, refused_of_nobody_and_of_no_piece_is_ignored, .fini = stop)
{
    start(2);
    SOURCES(A);
    refused(0, C, HEDDLE_ERR_NOT_FOUND);
    refused(9, A, HEDDLE_ERR_NOT_FOUND);
    SAID("");
}

/* -- GONE, BEAT, TICK ------------------------------------------------------------------------- */

Test(fetch, gone_resumes_at_the_next_source_where_it_was_lost, .fini = stop)
{
    start(8);
    SOURCES(A, B);
    good(0, A);
    good(1, A);
    gone(A);
    SAID("ask 2@102 ask 3@102 ask 4@102 ask 5@102 need");
    gone(A);
    gone(C);
    SAID("");
}

/* The broker has no other one, and names it until its lease ends. */
Test(fetch, one_that_has_gone_and_is_named_again_is_reported_at_the_same_pace, .fini = stop)
{
    start(4);
    SOURCES(A);
    good(0, A);
    gone(A);
    SAID("need need");
    for (int half = 0; half < 4; half++) {
        for (int i = 0; i < 50; i++) {
            SOURCES(A);
            SAID("ask 1@101 ask 2@101 ask 3@101");
            if (i % 2) gone(A);
            else refused(1, A, HEDDLE_ERR_GONE);
            SAID(i % 2 ? "" : "drop 2@101 drop 3@101");
        }
        cr_assert_eq(fetch_deadline(f), now + 500 * MS);
        now += 500 * MS;
        tick();
        SAID("need");
    }
    SOURCES(A);
    good(1, A);
    gone(A); /* it was back */
    SAID("need");
}

Test(fetch, a_late_source_gives_its_asks_to_the_next_and_keeps_its_connection, .fini = stop)
{
    start(2);
    SOURCES(A, B);
    cr_assert_eq(fetch_deadline(f), now + 800 * MS);
    now = fetch_deadline(f) - 1;
    tick();
    SAID("");
    now++;
    tick();
    SAID("drop 0@101 ask 0@102 drop 1@101 ask 1@102");
    cr_assert(fetch_is_late(f, A) && !fetch_is_late(f, B) && !fetch_is_late(f, C));
    gone(A); /* it was dead after all */
    SAID("");
    cr_assert_not(fetch_is_late(f, A));
}

Test(fetch, without_another_one_the_asks_of_a_late_source_stand, .fini = stop)
{
    uint64_t lost[4];
    start(6);
    SOURCES(A);
    now += 800 * MS;
    tick();
    SAID("need");
    cr_assert_eq(fetch_lost(f, lost, 4), 1);
    cr_assert_eq(lost[0], A);
    good(0, A);
    SAID("ask 4@101");
    cr_assert_not(fetch_is_late(f, A), "it has spoken");
    cr_assert_eq(fetch_lost(f, lost, 4), 0);
}

Test(fetch, a_list_with_another_one_takes_the_asks_of_a_late_source, .fini = stop)
{
    start(2);
    SOURCES(A);
    now += 800 * MS;
    tick();
    SOURCES(A, B);
    SAID("drop 0@101 ask 0@102 drop 1@101 ask 1@102");
}

/* A source that has been asked nothing says nothing: without that ask no one would know that it is back. */
Test(fetch, a_late_source_keeps_one_ask_while_there_is_more_to_ask_for, .fini = stop)
{
    start(6);
    SOURCES(A, B);
    now += 800 * MS;
    tick();
    SAID("drop 0@101 drop 1@101 drop 2@101 ask 0@102 ask 1@102 ask 2@102 ask 4@102");
    good(0, B);
    SAID("ask 5@102 drop 3@101");
    good(1, B);
    SAID("ask 3@102");
}

Test(fetch, a_late_source_that_beats_has_its_place_again, .fini = stop)
{
    start(9);
    SOURCES(A, B);
    now += 800 * MS;
    tick();
    beat(A);
    SAID("ask 5@101 ask 6@101 ask 7@101");
    cr_assert_not(fetch_is_late(f, A));
    good(0, B);
    SAID("");
    good(3, A);
    SAID("ask 8@101");
}

Test(fetch, a_late_source_that_delivers_has_its_place_again, .fini = stop)
{
    start(9);
    SOURCES(A, B);
    now += 800 * MS;
    tick();
    good(3, A);
    SAID("ask 5@101 ask 6@101 ask 7@101 ask 8@101");
    good(0, B);
    SAID("");
}

Test(fetch, a_source_that_speaks_for_its_deadline_counts_as_never_late, .fini = stop)
{
    start(4);
    SOURCES(A, B);
    now += 800 * MS;
    tick();
    beat(A);
    gone(B);
    now += 1600 * MS - 1;
    beat(A);
    cr_assert_eq(fetch_deadline(f), now + 1600 * MS);
    now++;
    beat(A);
    cr_assert_eq(fetch_deadline(f), now + 800 * MS);
}

/* Asks that moved on each 0.8 s would never bring anything over a link that needs a second. */
Test(fetch, late_sources_are_asked_in_turns_for_longer_each_time, .fini = stop)
{
    start(1);
    SOURCES(A, B);
    now += 800 * MS;
    tick();
    SAID("drop 0@101 ask 0@102");
    now += 800 * MS;
    tick();
    SAID("drop 0@102 ask 0@101 need");
    now += 1600 * MS - 1;
    tick();
    SAID("need");
    now++;
    tick();
    SAID("drop 0@101 ask 0@102");
    good(0, B);
    SAID("done");
}

/* Memory for a large version takes long to make, and not so long. */
Test(fetch, one_that_beats_for_an_hour_and_sends_nothing_is_late, .fini = stop)
{
    start(9);
    SOURCES(A, B);
    uint64_t began = now, moved_us = 0;
    while (now < began + 3600 * SECOND) {
        now += 250 * MS;
        beat(A);
        if (!moved_us && act_count) {
            SAID("");
            cr_assert_fail("a BEAT moves nothing");
        }
        tick();
        if (!moved_us && act_count) {
            SAID("drop 0@101 drop 1@101 drop 2@101 ask 0@102 ask 1@102 ask 2@102 ask 4@102");
            moved_us = now - began;
        }
        if (moved_us) beat(B);
        if (now - began == 40 * SECOND) good(0, B);
    }
    cr_assert_eq(moved_us, 30 * SECOND);
}

Test(fetch, one_that_only_beat_has_its_place_again_when_it_sends, .fini = stop)
{
    start(10);
    SOURCES(A, B);
    good(0, A);
    for (int i = 0; i < 12; i++) {
        cr_assert_not(fetch_is_late(f, A), "after %d s", i);
        now += SECOND / 2;
        beat(A);
        now += SECOND / 2;
        beat(A);
        tick();
    }
    cr_assert(fetch_is_late(f, A));
    beat(A);
    cr_assert(fetch_is_late(f, A), "that says nothing new");
    good(4, A);
    cr_assert_not(fetch_is_late(f, A));
    SAID("ask 6@101 ask 7@101 ask 8@101 ask 9@101");
}

/* Where none sends anything they are asked in turns. */
Test(fetch, those_that_only_beat_are_asked_in_turns, .fini = stop)
{
    start(1);
    SOURCES(A, B);
    uint64_t last = A;
    int turns = 0;
    for (int i = 0; i < 600; i++) {
        now += SECOND / 2;
        beat(last);
        tick();
        uint64_t asked = 0;
        fetch_piece(f, 0, &asked);
        cr_assert(asked, "it is asked of one");
        turns += asked != last;
        last = asked;
    }
    cr_assert(turns >= 5, "%d", turns);
}

Test(fetch, a_source_with_nothing_open_has_no_deadline, .fini = stop)
{
    start(1);
    SOURCES(A, B);
    gone(A);
    good(0, B);
    SAID("done");
    cr_assert_eq(fetch_deadline(f), CLOCK_NEVER);
}

Test(fetch, beat_moves_the_deadline, .fini = stop)
{
    start(2);
    SOURCES(A);
    now += 700 * MS;
    beat(A);
    SAID("");
    cr_assert_eq(fetch_deadline(f), now + 800 * MS);
    beat(C);
    now += 700 * MS;
    tick();
    SAID("");
}

Test(fetch, a_beat_of_a_lost_source_does_not_revive_it, .fini = stop)
{
    start(2);
    SOURCES(A);
    gone(A);
    beat(A);
    now += 500 * MS;
    tick();
    SAID("need");
}

/* One piece every `gap_us` from A until 60 came; the deadline then. */
static uint64_t allowance_at(uint64_t gap_us)
{
    start_with((fetch_plan_t){.count = 200, .piece_bytes = PIECE});
    SOURCES(A);
    for (uint32_t p = 0; p < 60; p++) {
        now += gap_us;
        good(p, A);
    }
    uint64_t us = fetch_deadline(f) - now;
    stop();
    return us;
}

Test(fetch, the_deadline_follows_the_observed_rate)
{
    uint64_t us = allowance_at(100 * MS); /* a window takes 3.2 s */
    cr_assert(us > 3 * SECOND && us < 4 * SECOND, "%llu", (unsigned long long)us);
    cr_assert_eq(allowance_at(1 * MS), 200 * MS);        /* not below the least */
    cr_assert_eq(allowance_at(2 * SECOND), 30 * SECOND); /* not above the greatest */
}

Test(fetch, waiting_for_a_source_that_beats_is_no_slow_link, .fini = stop)
{
    start_with((fetch_plan_t){.count = 200, .piece_bytes = PIECE});
    SOURCES(A);
    for (uint32_t p = 0; p < 100; p++) {
        now += 900 * MS;
        beat(A);
        now += p % 2 ? 11 * MS : 1 * MS;
        good(p, A);
    }
    uint64_t us = fetch_deadline(f) - now;
    cr_assert(us < 2 * SECOND, "%llu", (unsigned long long)us);
}

Test(fetch, need_sources_is_said_once_and_again_after_a_while, .fini = stop)
{
    start(2);
    cr_assert_leq(fetch_deadline(f), now);
    tick();
    SAID("need");
    tick();
    SAID("");
    cr_assert_eq(fetch_deadline(f), now + 500 * MS);
    now += 500 * MS;
    tick();
    SAID("need");
    SOURCES(A);
    gone(A); /* at once: the pace stays */
    SAID("");
}

/* -- CANCEL, ended, small room ---------------------------------------------------------------- */

/* -- all are wrong ---------------------------------------------------------------------------- */

Test(fetch, fails_when_all_that_are_listed_stay_quarantined, .fini = stop)
{
    start(2);
    SOURCES(A, B);
    bad(0, A);
    SAID("drop 1@101 ask 0@102 ask 1@102");
    bad(1, B);
    SAID("drop 0@102 ask 1@101 ask 0@101");
    bad(0, A);
    SAID("drop 1@101 ask 0@102 ask 1@102");
    bad(1, B);
    SAID("drop 0@102 need");
    cr_assert_eq(fetch_deadline(f), now + 500 * MS);
    now += 5 * SECOND - 1;
    SOURCES(A, B);
    SAID("need");
    cr_assert_eq(fetch_deadline(f), now + 1);
    now += 1;
    tick();
    SAID("failed");
}

Test(fetch, somebody_else_in_time_is_asked, .fini = stop)
{
    start(1);
    SOURCES(A);
    bad(0, A);
    SAID("ask 0@101");
    bad(0, A);
    SAID("need");
    now += 4 * SECOND;
    SOURCES(A, B);
    SAID("ask 0@102");
    now += 1500 * MS;
    gone(B); /* lost, not wrong: it may come back */
    SAID("need");
    now += 6 * SECOND;
    tick();
    SAID("need");
    SOURCES(A);
    now += 5 * SECOND;
    tick();
    SAID("failed");
}

Test(fetch, quarantined_from_the_start, .fini = stop)
{
    static const uint64_t BAD[] = {A};
    start_with((fetch_plan_t){.count = 1, .bad = BAD, .bad_count = 1});
    SOURCES(A, B);
    SAID("ask 0@102");
    uint64_t lost[4];
    cr_assert_eq(fetch_lost(f, lost, 4), 1);
    cr_assert_eq(lost[0], A);
}

Test(fetch, cancel_drops_what_is_open, .fini = stop)
{
    start(3);
    SOURCES(A);
    good(0, A);
    step((event_t){.kind = FE_CANCEL});
    SAID("drop 1@101 drop 2@101");
}

static void ends_quietly(void)
{
    for (int kind = FE_SOURCES; kind <= FE_CANCEL; kind++)
        for (uint32_t piece = 0; piece < 2; piece++) {
            uint64_t list = B;
            step((event_t){.kind = (event_kind_t)kind,
                           .piece = piece,
                           .token = A,
                           .sources = &list,
                           .source_count = 1});
            SAID("");
        }
    cr_assert_eq(fetch_deadline(f), CLOCK_NEVER);
    stop();
}

Test(fetch, after_the_end_nothing_does_anything)
{
    start(2);
    SOURCES(A);
    step((event_t){.kind = FE_CANCEL});
    ends_quietly();
    start(1);
    SOURCES(A);
    good(0, A);
    ends_quietly();
    start(2);
    SOURCES(A, B, C);
    bad(0, A);
    bad(0, B);
    bad(0, C);
    SAID("drop 1@103 failed");
    ends_quietly();
}

/* -- plans ------------------------------------------------------------------------------------ */

Test(fetch, a_fetch_of_nothing_is_done_at_its_first_event)
{
    start(0);
    tick();
    SAID("done");
    stop();
    start(0);
    step((event_t){.kind = FE_CANCEL});
    SAID("");
    stop();
}

Test(fetch, a_window_smaller_than_a_piece_lets_one_through)
{
    start_with((fetch_plan_t){.count = 3, .piece_bytes = LIMIT_WINDOW_BYTES + 1});
    SOURCES(A);
    SAID("ask 0@101");
    stop();
    start_with((fetch_plan_t){.count = 40, .piece_bytes = PIECE});
    cr_assert_eq(SOURCES(A), 32);
    stop();
    start_with((fetch_plan_t){.count = 40, .piece_bytes = 1});
    cr_assert_eq(SOURCES(A), 40);
    stop();
    fetch_destroy(NULL);
}

Test(fetch, sources_without_number_are_bounded_and_quarantine_outlives_them, .fini = stop)
{
    start(400);
    SOURCES(A);
    good(0, A);
    bad(1, A);
    bad(1, A);
    for (uint64_t t = 1000; t < 1200; t++) { /* come and go */
        SOURCES(t);
        cr_assert_eq(acts[act_count - 1].token, t);
        if (t % 3 == 0) good(acts[act_count - 1].piece, t);
    }
    SOURCES(A);
    for (int i = 0; i < act_count; i++) cr_assert_neq(acts[i].kind, FA_ASK);
    cr_assert_eq(fetch_from(f, A), 1);
    for (uint64_t t = 2000; t < 2062; t++) { /* all places taken by bad ones */
        SOURCES(t);
        uint32_t first = acts[act_count - 2].piece, last = acts[act_count - 1].piece;
        cr_assert_eq(acts[act_count - 1].token, t);
        bad(last, t);
        SOURCES(3000);
        good(last, 3000); /* no piece is bad from three */
        good(first, 3000);
    }
    SOURCES(3000);
    for (uint32_t p = 0; p < 400; p++)
        if (fetch_piece(f, p, NULL) == PIECE_ASKED) {
            bad(p, 3000);
            break;
        }
    SOURCES(B);
    for (int i = 0; i < act_count; i++) cr_assert_neq(acts[i].kind, FA_ASK);
}

/* What came meanwhile waits to be read: its sources have their time again. */
Test(fetch, a_source_is_not_late_for_the_time_in_which_this_process_stood_still, .fini = stop)
{
    start_with((fetch_plan_t){.count = 8});
    sources(2, (uint64_t[]){1, 2});
    now += 20 * SECOND;
    cr_assert_eq(tick(), 1);
    cr_assert_eq(acts[0].kind, FA_NEED_SOURCES, "others may be better by now");
    cr_assert_not(fetch_is_late(f, 1));
    good(0, 1);
    now = fetch_deadline(f);
    tick();
    cr_assert(fetch_is_late(f, 1), "and is late when it says nothing after that");
}

/* As where the machine is overloaded: the broker has named other sources a moment ago. */
Test(fetch, one_that_stands_still_again_needs_no_sources_at_once, .fini = stop)
{
    start_with((fetch_plan_t){.count = 40});
    sources(2, (uint64_t[]){1, 2});
    for (uint32_t p = 0; p < 4; p++) {
        now += 10 * MS;
        good(p, 1);
    }
    for (int i = 0; i < 3; i++) {
        now = fetch_deadline(f) + 30 * MS;
        tick();
        cr_assert_not(fetch_is_late(f, 1));
        SAID(i == 1 ? "" : "need");
        now += 50 * MS;
        beat(1);
    }
}

/* -- a fetch that follows another one ---------------------------------------------------------- */

/* A manifest came from 2, as 1 says BEAT alone; then the chunks. */
static void begin_after_late(void)
{
    start(1);
    SOURCES(A, B);
    for (uint64_t end = now + 30 * SECOND; now < end;) {
        now += 250 * MS;
        beat(A);
        tick();
    }
    cr_assert(fetch_is_late(f, A));
    good(0, B);
    fetch_t *before = f;
    uint64_t at_us = now;
    start_with((fetch_plan_t){.count = 40, .before = before});
    now = at_us;
    fetch_destroy(&before);
    SOURCES(A, B);
}

Test(fetch, a_source_that_was_late_is_not_waited_for_as_long_again, .fini = stop)
{
    begin_after_late();
    SAID("ask 3@101 ask 0@102 ask 1@102 ask 2@102 ask 4@102");
    cr_assert(fetch_is_late(f, A));
    beat(A);
    cr_assert(fetch_is_late(f, A), "that says nothing new");
    cr_assert_eq(fetch_from(f, B), 0, "what came before was of another fetch");
}

Test(fetch, one_that_was_late_in_the_fetch_before_has_its_place_again_when_it_sends, .fini = stop)
{
    begin_after_late();
    good(3, A);
    cr_assert_not(fetch_is_late(f, A));
    SAID("ask 5@101 ask 6@101 ask 7@101 ask 8@101");
}

/* -- a slow source ---------------------------------------------------------------------------- */

/* Source 1 sends a piece each 20 ms; 2 and 3 may still be fetching themselves, unless a case says other. */
static void begin_slow(uint64_t partial)
{
    start_with((fetch_plan_t){.count = 400, .piece_bytes = piece_of(16)});
    partials = partial;
    sources(3, (uint64_t[]){1, 2, 3});
    cr_assert(acts[0].token == 1 && act_count == 16);
}

static uint32_t next_piece; /* of source 1 */

static void good_of_first(void)
{
    uint64_t from = 0;
    while (fetch_piece(f, next_piece, &from) != PIECE_ASKED || from != 1) next_piece++;
    now += 20 * MS;
    good(next_piece, 1);
}

/* The piece that the last step lent to that source; NO: none. */
#define NO UINT32_MAX
static uint32_t lent_to(uint64_t token)
{
    for (int i = 0; i + 1 < act_count; i++)
        if (acts[i].kind == FA_DROP_ASK && acts[i].token == 1 && acts[i + 1].kind == FA_ASK &&
            acts[i + 1].token == token && acts[i].piece == acts[i + 1].piece)
            return acts[i].piece;
    return NO;
}

static uint32_t lends(void)
{
    next_piece = 0;
    for (int i = 0; i < 3; i++) {
        good_of_first();
        cr_assert_eq(lent_to(2), NO, "not yet");
    }
    good_of_first();
    uint32_t piece = lent_to(2);
    cr_assert(piece != NO && piece >= next_piece + 8 && piece < next_piece + 16);
    return piece;
}

static uint32_t blamed_slow(uint64_t token)
{
    uint64_t slow[4] = {0};
    int count = fetch_blamed(f, BLAME_SLOW, slow, 4);
    cr_assert(count == 0 || (count == 1 && slow[0] == token));
    return (uint32_t)count;
}

/* The pieces that the last step lent to that source: the last ones of the first one's window. */
static uint32_t lent_some(uint64_t token, uint32_t ret[16])
{
    uint32_t count = 0;
    for (int i = 0; i + 1 < act_count; i++)
        if (acts[i].kind == FA_DROP_ASK && acts[i].token == 1 && acts[i + 1].kind == FA_ASK &&
            acts[i + 1].token == token && acts[i].piece == acts[i + 1].piece)
            ret[count++] = acts[i].piece;
    return count;
}

/* The first one comes at once, and some more do, while the first source sends nothing. */
static void leaves_the_first(void)
{
    good(lends(), 2);
    uint32_t some[16], count = lent_some(2, some);
    cr_assert_eq(count, 4);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_not(was_left(1));
        good(some[i], 2);
    }
    cr_assert(was_left(1));
    uint64_t drops = 0;
    for (int i = 0; i < act_count; i++) {
        drops += acts[i].kind == FA_DROP_ASK;
        cr_assert_eq(acts[i].token, acts[i].kind == FA_DROP_ASK ? 1 : 2, "all asks move");
    }
    cr_assert_eq(moved_from[1][MOVED_SLOW], drops);
}

static void stop_slow(void)
{
    partials = wholes = 0;
    stop();
}

Test(fetch, a_lent_piece_that_does_not_come_at_once_goes_back, .fini = stop_slow)
{
    begin_slow(1 << 2);
    uint32_t lent = lends();
    for (int i = 0; i < 3; i++) {
        good_of_first();
        for (int k = 0; k < act_count; k++) cr_assert_neq(acts[k].kind, FA_DROP_ASK);
    }
    good_of_first();
    cr_assert(acts[0].kind == FA_DROP_ASK && acts[0].piece == lent && acts[0].token == 2);
    cr_assert(acts[1].kind == FA_ASK && acts[1].piece == lent && acts[1].token == 1);
    cr_assert_eq(moved_count(), 0, "what is lent has not moved");
    for (int i = 0; i < 8; i++) {
        good_of_first();
        cr_assert_eq(lent_to(2), NO, "the next one is lent later than the first");
    }
}

/* It goes back as any that does not come, and that source has not answered in time. */
Test(fetch, a_lent_piece_that_a_late_source_has_is_reported, .fini = stop_slow)
{
    begin_slow(1 << 2);
    uint32_t lent = lends(), gone_back = NO;
    beat(1);
    now += 790 * MS;
    beat(1);
    now += 10 * MS;
    tick();
    cr_assert(fetch_is_late(f, 2) && !fetch_is_late(f, 1));
    for (int i = 0; i < 4; i++) {
        good_of_first();
        if (acts[0].kind == FA_DROP_ASK) gone_back = acts[0].piece;
    }
    cr_assert_eq(gone_back, lent);
    cr_assert_eq(moved_from[2][MOVED_LATE], 1);
    cr_assert_eq(moved_count(), 1);
}

Test(fetch, nothing_is_lent_to_a_source_that_sent_wrong_bytes, .fini = stop_slow)
{
    start_with((fetch_plan_t){.count = 400, .piece_bytes = piece_of(16)});
    partials = 1 << 2;
    sources(1, (uint64_t[]){2});
    bad(0, 2);
    cr_assert(acts[act_count - 1].kind == FA_ASK && acts[act_count - 1].token == 2, "there is no other one");
    sources(2, (uint64_t[]){1, 2});
    for (uint32_t p = 0; p < 16; p++) good(p, 2);
    next_piece = 0;
    for (int i = 0; i < 20; i++) {
        good_of_first();
        for (int k = 0; k < act_count; k++) cr_assert_eq(acts[k].token, 1);
    }
}

Test(fetch, nothing_is_lent_to_a_source_that_is_to_be_lent_none, .fini = stop_slow)
{
    begin_slow(1 << 3);
    next_piece = 0;
    uint32_t lent = 0;
    for (int i = 0; i < 8; i++) {
        good_of_first();
        cr_assert_eq(lent_to(2), NO);
        lent += lent_to(3) != NO;
    }
    cr_assert_eq(lent, 1, "the next one that may lack bytes");
}

Test(fetch, a_slow_source_is_left_for_a_faster_one, .fini = stop_slow)
{
    begin_slow(1 << 2);
    leaves_the_first();
    cr_assert_eq(blamed_slow(1), 1);
    sources(3, (uint64_t[]){1, 2, 3});
    gone(2);
    for (int i = 0; i < act_count; i++)
        cr_assert(acts[i].kind == FA_NEED_SOURCES || acts[i].token == 3,
                  "it is asked where no other is there");
}

/* A new list puts the one that was lent the pieces in front: there is nothing to leave. */
Test(fetch, the_one_that_answered_is_not_left, .fini = stop_slow)
{
    begin_slow(1 << 2);
    good(lends(), 2);
    uint32_t some[16], count = lent_some(2, some);
    cr_assert_gt(count, 0);
    sources(2, (uint64_t[]){2, 1});
    for (uint32_t i = 0; i < count; i++) good(some[i], 2);
    cr_assert(!was_left(1) && !was_left(2));
    cr_assert_eq(moved_count(), 0);
}

/* Two that are asked one after the other are not one that is slow. */
Test(fetch, a_source_is_left_for_what_was_lent_in_its_place, .fini = stop_slow)
{
    begin_slow(1 << 2);
    good(lends(), 2);
    uint32_t some[16], count = lent_some(2, some);
    cr_assert_gt(count, 0);
    sources(3, (uint64_t[]){3, 1, 2});
    for (uint32_t i = 0; i < count; i++) good(some[i], 2);
    cr_assert(!was_left(1) && !was_left(3), "they were lent in place of 1, not of 3");
}

/* It has a piece earlier, and sends no more of them than the first one does: the link of one of the two, or of
 * this process, carries no more. */
Test(fetch, one_that_has_pieces_earlier_and_is_no_faster_is_not_turned_to, .fini = stop_slow)
{
    begin_slow(1 << 2);
    good(lends(), 2);
    uint32_t some[16];
    cr_assert_eq(lent_some(2, some), 4);
    good(some[0], 2);
    good_of_first();
    good(some[1], 2);
    good_of_first();
    for (int i = 0; i < 2; i++) {
        cr_assert(acts[i].kind == FA_DROP_ASK && acts[i].token == 2, "what has not come goes back");
        cr_assert_eq(acts[i].piece, some[2 + i]);
    }
    cr_assert(!was_left(1) && !blamed_slow(1));
    cr_assert_eq(moved_count(), 0);
    for (int i = 0; i < 20; i++) {
        good_of_first();
        cr_assert_eq(lent_to(2), NO, "not again for a while");
    }
}

/* On a slow link of this process a new connection may take what an old one had. */
Test(fetch, one_that_takes_the_own_link_for_itself_is_no_faster, .fini = stop_slow)
{
    begin_slow(1 << 2);
    good(lends(), 2);
    uint32_t some[16], count = lent_some(2, some);
    cr_assert_eq(count, 4);
    for (uint32_t i = 0; i < count; i++) {
        now += 8 * MS;
        good(some[i], 2);
    }
    cr_assert(!was_left(1) && !blamed_slow(1));
}

/* A piece beyond the window, as the pieces of the window say nothing: a good chain has as many between two of
 * its members. */
Test(fetch, where_pieces_are_large_one_is_lent_from_beyond_the_window, .fini = stop_slow)
{
    start_with((fetch_plan_t){.count = 400, .piece_bytes = piece_of(8)});
    partials = 1 << 2;
    sources(2, (uint64_t[]){1, 2});
    next_piece = 0;
    uint32_t lent = NO, some[16];
    for (int i = 0; i < 5 && lent == NO; i++) {
        good_of_first();
        for (int k = 0; k < act_count; k++)
            if (acts[k].token == 2) lent = acts[k].piece;
    }
    cr_assert(lent != NO && lent >= next_piece + 8 && lent < next_piece + 16);
    good(lent, 2);
    cr_assert_eq(lent_some(2, some), 2);
    good(some[0], 2);
    cr_assert_not(was_left(1));
    good(some[1], 2);
    cr_assert(was_left(1));
    uint64_t asks = ask_count;
    for (uint32_t p = 0; p < 400; p++)
        if (!is_good(p)) good(p, 2);
    cr_assert_eq(acts[act_count - 1].kind, FA_DONE);
    cr_assert(ask_count - asks < 400, "each is asked for once");
    cr_assert_eq(blamed_slow(1), 1);
}

/* Source 1 sends a piece each 20 ms, and 2 has all of them. */
static void begin_whole(uint32_t count)
{
    start_with((fetch_plan_t){.count = count, .piece_bytes = piece_of(16)});
    wholes = 1 << 2;
    sources(2, (uint64_t[]){1, 2});
    next_piece = 0;
}

/* The piece that was lent within so many of the first one's. */
static uint32_t lends_whole(int count)
{
    for (int i = 0; i < count; i++) {
        uint64_t from = 0;
        uint32_t last = 0;
        for (uint32_t p = 0; p < 400; p++)
            if (fetch_piece(f, p, &from) == PIECE_ASKED && from == 1) last = p;
        good_of_first();
        uint32_t lent = lent_to(2);
        if (lent == NO) continue;
        cr_assert(lent == last || lent == last + 1, "it would come last");
        return lent;
    }
    return NO;
}

Test(fetch, a_slow_source_is_left_for_one_that_has_all, .fini = stop_slow)
{
    begin_whole(400);
    uint32_t lent = lends_whole(5), some[16];
    cr_assert_neq(lent, NO);
    now += 4 * MS;
    good(lent, 2);
    uint32_t count = lent_some(2, some);
    cr_assert_eq(count, 4);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_not(was_left(1));
        now += 4 * MS;
        good(some[i], 2);
    }
    cr_assert_eq(blamed_slow(1), 1);
}

/* It sends to three siblings as often. */
Test(fetch, a_source_that_siblings_load_is_not_left, .fini = stop_slow)
{
    uint32_t some[16];
    sharer_count = 4;
    begin_whole(400);
    uint32_t lent = lends_whole(5);
    cr_assert_neq(lent, NO);
    now += 4 * MS;
    good(lent, 2);
    cr_assert_eq(lent_some(2, some), 0);
    cr_assert_eq(moved_count(), 0);
}

/* They load another one. */
Test(fetch, siblings_elsewhere_are_no_reason_to_stay, .fini = stop_slow)
{
    uint32_t some[16];
    sharer_count = 8;
    shared = 3;
    begin_whole(400);
    uint32_t lent = lends_whole(5);
    cr_assert_neq(lent, NO);
    now += 4 * MS;
    good(lent, 2);
    uint32_t count = lent_some(2, some);
    cr_assert_eq(count, 4);
    for (uint32_t i = 0; i < count; i++) {
        now += 4 * MS;
        good(some[i], 2);
    }
    cr_assert_eq(blamed_slow(1), 1);
    sharer_count = 1;
    shared = 0;
}

/* The pieces that the last step asked of that source, lent to it or not. */
static uint32_t asked_of(uint64_t token, uint32_t ret[16])
{
    uint32_t count = 0;
    for (int i = 0; i < act_count && count < 16; i++)
        if (acts[i].kind == FA_ASK && acts[i].token == token) ret[count++] = acts[i].piece;
    return count;
}

static uint32_t open_at_first(void)
{
    uint32_t open = 0;
    for (uint32_t p = 0; p < 64; p++) {
        uint64_t from = 0;
        open += fetch_piece(f, p, &from) == PIECE_ASKED && from == 1;
    }
    return open;
}

/* Siblings leave this fetch a part of one or two pieces of the window of a source: it has one of them open at
 * least, and is left all the same where another one sends in a fraction of the time that all of them get a
 * piece in. */
static void leaves_with_a_part_of(uint32_t part)
{
    uint32_t some[16], count = 0;
    sharer_count = 16 / part;
    shared = 1;
    start_with((fetch_plan_t){.count = 4000, .piece_bytes = piece_of(16)});
    wholes = 1 << 2;
    sources(2, (uint64_t[]){1, 2});
    next_piece = 0;
    for (int i = 0; i < 5 && count == 0; i++) {
        good_of_first();
        count = asked_of(2, some);
    }
    cr_assert_eq(count, 1, "one is lent");
    cr_assert(open_at_first() >= 1);
    now += 100;
    good(some[0], 2);
    count = asked_of(2, some);
    cr_assert_eq(count, 2, "and then some");
    cr_assert(open_at_first() >= 1 && open_at_first() <= part, "while the first one goes on");
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_not(was_left(1));
        now += 100;
        good(some[i], 2);
    }
    cr_assert(was_left(1));
    sharer_count = 1;
    shared = 0;
}

Test(fetch, one_that_siblings_load_and_is_slow_is_left, .fini = stop_slow) { leaves_with_a_part_of(2); }
Test(fetch, one_that_many_load_and_is_slow_is_left, .fini = stop_slow) { leaves_with_a_part_of(1); }

/* The part of the window that this fetch has is no larger than what was lent. */
Test(fetch, what_was_lent_to_one_that_has_gone_takes_no_room, .fini = stop_slow)
{
    begin_slow(1 << 2);
    good(lends(), 2);
    uint32_t some[16];
    cr_assert_eq(lent_some(2, some), 4);
    sharer_count = 4;
    gone(2);
    gone(3);
    uint64_t from = 0;
    for (next_piece = 0; fetch_piece(f, next_piece, &from) != PIECE_ASKED || from != 1;) next_piece++;
    refused(next_piece, 1, HEDDLE_ERR_AGAIN);
    now += 500 * MS;
    tick();
    cr_assert_eq(act_count, 4, "%s", said());
    for (int i = 0; i < act_count; i++) cr_assert(acts[i].kind == FA_ASK && acts[i].token == 1);
}

/* Half of the time of a piece: that is what a single one takes on a link that two sources' pieces share. */
Test(fetch, a_source_that_has_all_and_is_no_faster_is_lent_few_pieces, .fini = stop_slow)
{
    begin_whole(400);
    uint32_t lent_count = 0;
    for (int i = 0; i < 150; i++) {
        uint32_t lent = lends_whole(1);
        if (lent == NO) continue;
        lent_count++;
        now += 9 * MS;
        good(lent, 2);
        cr_assert_eq(lent_to(2), NO);
    }
    cr_assert(lent_count >= 2 && lent_count <= 3, "%u of 150", lent_count);
    cr_assert_not(was_left(1));
    cr_assert_eq(moved_count(), 0);
}

/* 50 pieces are all there within a second. */
Test(fetch, what_is_done_in_a_second_costs_a_source_that_has_all_nothing, .fini = stop_slow)
{
    begin_whole(50);
    for (int i = 0; i < 50; i++) {
        good_of_first();
        for (int k = 0; k < act_count && i < 49; k++) cr_assert_eq(acts[k].token, 1);
    }
    cr_assert_eq(acts[0].kind, FA_DONE);
}

/* One a second each: though it says BEAT meanwhile, and few pieces are left. */
Test(fetch, one_that_sends_now_and_then_is_left_for_one_that_has_all, .fini = stop_slow)
{
    begin_whole(24);
    uint32_t left = 24;
    for (uint32_t p = 0; !was_left(1) && p < 6; p++, left--) {
        for (int i = 0; i < 20; i++) {
            now += 49 * MS;
            beat(1);
        }
        now += 20 * MS;
        good(p, 1);
        for (uint32_t lent = 0; lent < 24 && !was_left(1); lent++) {
            uint64_t from = 0;
            if (fetch_piece(f, lent, &from) != PIECE_ASKED || from != 2) continue;
            now += MS;
            good(lent, 2);
            left--;
            lent = 0;
        }
    }
    cr_assert(was_left(1));
    cr_assert_geq(left, 16);
}

/* A piece each 5 s, and BEAT meanwhile, from the first one on. */
Test(fetch, one_that_drips_from_the_start_is_left, .fini = stop_slow)
{
    begin_whole(400);
    for (uint32_t p = 0; p < 3 && !was_left(1); p++) {
        for (int i = 0; i < 100; i++) {
            now += 50 * MS;
            beat(1);
        }
        good(p, 1);
        for (uint32_t lent = 0; lent < 400 && !was_left(1); lent++) {
            uint64_t from = 0;
            if (fetch_piece(f, lent, &from) != PIECE_ASKED || from != 2) continue;
            now += MS;
            good(lent, 2);
        }
    }
    cr_assert(was_left(1));
    cr_assert_eq(blamed_slow(1), 1);
}

/* All that 1 is asked for comes from it, and nothing from 2. */
static uint32_t first_sends_all(void)
{
    uint32_t open = 0;
    for (uint32_t p = 0; p < 40; p++) {
        uint64_t from = 0;
        if (fetch_piece(f, p, &from) != PIECE_ASKED) continue;
        if (from == 1) now += 20 * MS, good(p, 1), p = 0;
    }
    for (uint32_t p = 0; p < 40; p++) open += fetch_piece(f, p, NULL) == PIECE_ASKED;
    return open;
}

/* 1 is late for a moment: it has its place again, and 2 keeps what it was asked for meanwhile. */
static void ask_both(void)
{
    start_with((fetch_plan_t){.count = 40, .piece_bytes = piece_of(16)});
    sources(2, (uint64_t[]){1, 2});
    for (uint32_t p = 0; p < 4; p++) {
        now += 20 * MS;
        good(p, 1);
    }
    now = fetch_deadline(f);
    tick();
    cr_assert(fetch_is_late(f, 1));
    beat(1);
}

Test(fetch, at_the_end_no_piece_waits_for_a_source_that_sends_now_and_then, .fini = stop_slow)
{
    ask_both();
    uint32_t open = first_sends_all();
    cr_assert_gt(open, 4);
    uint64_t idle_us = now;
    while (now < idle_us + SECOND && !was_left(2)) {
        now += 10 * MS;
        beat(2);
        tick();
        if (now - idle_us < 20 * MS * open) cr_assert_not(was_left(2), "1 would need as long");
    }
    cr_assert(was_left(2));
    cr_assert_eq(moved_from[2][MOVED_SLOW], open);
    cr_assert_eq(blamed_slow(2), 1);
    cr_assert_eq(first_sends_all(), 0);
    cr_assert_eq(acts[act_count - 1].kind, FA_DONE);
}

/* It sends them meanwhile. */
Test(fetch, at_the_end_a_source_that_is_well_keeps_its_asks, .fini = stop_slow)
{
    ask_both();
    uint64_t moved = moved_count();
    cr_assert_gt(first_sends_all(), 4);
    for (uint32_t p = 0; p < 40; p++) {
        if (is_good(p)) continue;
        now += 20 * MS;
        tick();
        good(p, 2);
    }
    cr_assert_eq(acts[act_count - 1].kind, FA_DONE);
    cr_assert_eq(moved_count(), moved);
    cr_assert_eq(blamed_slow(2), 0);
}

/* Of three pieces that are left one can be lent beside the first one, which then sends. */
Test(fetch, what_is_lent_at_the_end_goes_back_too, .fini = stop_slow)
{
    sharer_count = 8;
    shared = 1;
    begin_whole(5);
    for (uint32_t p = 0; p < 2; p++) {
        now += 3 * SECOND;
        good(p, 1);
    }
    cr_assert_eq(lent_to(2), 3);
    now += MS;
    good(3, 2);
    cr_assert_eq(fetch_piece(f, 4, NULL), PIECE_ASKED);
    good(2, 1);
    cr_assert(acts[0].kind == FA_DROP_ASK && acts[0].piece == 4 && acts[0].token == 2);
    cr_assert(acts[1].kind == FA_ASK && acts[1].piece == 4 && acts[1].token == 1);
    sharer_count = 1;
    shared = 0;
}

/* -- whole fetches ---------------------------------------------------------------------------- */

static uint64_t rng;

static uint64_t roll(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static void seeded(uint64_t seed, uint32_t count)
{
    rng = seed * 0x9e3779b97f4a7c15ull | 1;
    run_one(seed, count);
}

Test(fetch, whole_fetches_end_good_whatever_the_sources_do)
{
    const char *env = getenv("HEDDLE_TEST_SEED");
    uint64_t first = env ? strtoull(env, NULL, 10) : 1;
    cr_log_info("seeds from %llu", (unsigned long long)first);
    for (uint64_t seed = first; seed < first + 300; seed++) seeded(seed, 1 + (uint32_t)(seed * 37 % 300));
}

Test(fetch, fifty_thousand_pieces) { seeded(7, 50000); }
