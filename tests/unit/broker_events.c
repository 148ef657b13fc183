/* SPDX-License-Identifier: Apache-2.0 */
/* The log of events, and the outbox. */
#include "broker/events.h"

#include "core/limits.h"

#include <criterion/criterion.h>
#include <stdio.h>

static const instant_t NOW = {.us = 1, .wall_ms = 1780000000000};
static events_t log_;

static void start(void) { cr_assert_eq(events_init(&log_, 3), HEDDLE_OK); }
static void stop(void) { events_fini(&log_); }
TestSuite(events, .init = start, .fini = stop);

Test(events, empty)
{
    bool gap;
    events_filter_t f = {0};
    cr_assert_eq(events_first(&log_), 1);
    cr_assert_null(events_at(&log_, 1));
    cr_assert_null(events_at(&log_, 0));
    cr_assert_eq(events_begin(&log_, &f, &gap), 1);
    cr_assert(!gap && !events_ready(&log_, &f));
}

Test(events, seq_counts_from_one_and_names_are_those_of_the_contract)
{
    event_row_t *e = events_add(&log_, EVENT_WORKER_JOINED, NULL, 0, "w1", NOW);
    cr_assert_eq(e->seq, 1);
    cr_assert_eq(e->bytes, -1);
    cr_assert_str_eq(e->adapter, "");
    cr_assert_eq(events_add(&log_, EVENT_GAP, "policy", 7, NULL, NOW)->seq, 2);
    events_message(e, HEDDLE_ERR_FENCED, "%s\n%d", "line", 2);
    cr_assert_str_eq(events_at(&log_, 1)->message, "line?2");
    cr_assert_eq(events_at(&log_, 1)->code, HEDDLE_ERR_FENCED);
    cr_assert_str_eq(events_name(EVENT_WORKER_JOINED), "worker.joined");
    cr_assert_str_eq(events_name(EVENT_GAP), "gap");
    cr_assert_str_eq(events_name(EVENT_NONE), "unknown");
    cr_assert_str_eq(events_name((event_type_t)99), "unknown");
}

Test(events, a_long_message_is_cut_at_a_word)
{
    event_row_t *e = events_add(&log_, EVENT_WORKER_JOINED, NULL, 0, "w1", NOW);
    char words[300] = "";
    while (strlen(words) < 200) strcat(words, "slots ");
    events_message(e, HEDDLE_ERR_NO_SLOT, "%s", words);
    const char *cut = events_at(&log_, 1)->message;
    cr_assert(strlen(cut) > 140 && !strcmp(cut + strlen(cut) - 9, "slots ..."), "no half of a word: %s", cut);
    for (char *c = words; *c; c++) *c = 'x';
    events_message(e, HEDDLE_ERR_NO_SLOT, "%s", words);
    cr_assert_eq(strlen(events_at(&log_, 1)->message), sizeof e->message - 1,
                 "one word is cut where it must");
}

Test(events, the_oldest_go_first)
{
    for (unsigned i = 0; i < LIMIT_EVENTS + 5; i++)
        events_add(&log_, EVENT_STAGE_DONE, "policy", i, NULL, NOW);
    cr_assert_eq(events_first(&log_), 6);
    cr_assert_null(events_at(&log_, 5));
    cr_assert_eq(events_at(&log_, 6)->version, 5);
    cr_assert_eq(events_at(&log_, LIMIT_EVENTS + 5)->version, LIMIT_EVENTS + 4);
    cr_assert_null(events_at(&log_, LIMIT_EVENTS + 6));
}

Test(events, a_gap_is_what_was_asked_for_and_is_gone)
{
    bool gap;
    for (unsigned i = 0; i < LIMIT_EVENTS + 5; i++)
        events_add(&log_, EVENT_STAGE_DONE, "policy", 0, NULL, NOW);
    const struct {
        uint64_t epoch, after, begin;
        bool gap;
    } ROWS[] = {{0, 0, 6, false},  {3, 6, 6, false},         {0, 100, 100, false}, {0, 3, 6, true},
                {2, 100, 6, true}, {3, 10006, 10006, false}, {3, 10007, 6, true},  {0, 20000, 20000, false}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        events_filter_t f = {.epoch = ROWS[i].epoch, .after = ROWS[i].after};
        cr_assert_eq(events_begin(&log_, &f, &gap), ROWS[i].begin, "row %zu", i);
        cr_assert_eq(gap, ROWS[i].gap, "row %zu", i);
        cr_assert_eq(events_ready(&log_, &f), ROWS[i].gap || ROWS[i].after < 10006, "row %zu", i);
    }
}

Test(events, filters)
{
    events_add(&log_, EVENT_STAGE_DONE, "policy", 1, "w1", NOW);
    const struct {
        const char *adapter, *worker;
        bool matches;
    } ROWS[] = {{NULL, NULL, true}, {"", "", true},    {"policy", "", true},   {"other", "", false},
                {"", "w1", true},   {"", "w2", false}, {"policy", "w2", false}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        events_filter_t f = {.adapter = ROWS[i].adapter, .worker = ROWS[i].worker};
        cr_assert_eq(events_match(events_at(&log_, 1), &f), ROWS[i].matches, "row %zu", i);
        cr_assert_eq(events_ready(&log_, &f), ROWS[i].matches, "row %zu", i);
    }
}

/* ---- outbox ---- */

Test(outbox, records_are_bounded)
{
    outbox_t o = {0};
    for (int i = 0; i < OUTBOX_RECORDS; i++) {
        cr_assert(outbox_has_room(&o, OUTBOX_RECORDS - i));
        cr_assert_not_null(outbox_record(&o, RECORD_STATE, "policy", NOW));
    }
    cr_assert(!outbox_has_room(&o, 1));
    cr_assert_null(outbox_record(&o, RECORD_STATE, "policy", NOW));
    cr_assert_str_eq(o.records[0].message, "");
    outbox_clear(&o);
    cr_assert(outbox_has_room(&o, OUTBOX_RECORDS));
    outbox_fini(&o);
}

Test(outbox, sends_are_encoded_at_once)
{
    outbox_t o = {0};
    char name[] = "policy";
    for (uint64_t i = 0; i < 200; i++) {
        msg_t m = {.type = MSG_RETIRE};
        m.retire = (msg_retire_t){.token = i, .version = i + 1, .adapter = name};
        outbox_send(&o, i, &m);
    }
    memset(name, 'x', 6);
    cr_assert_eq(o.send_count, 200);
    for (size_t i = 0; i < 200; i++) {
        msg_t m;
        cr_assert_eq(msg_decode(outbox_frame(&o, i), &m, NULL), HEDDLE_OK);
        cr_assert_eq(o.sends[i].peer, i);
        cr_assert_eq(m.retire.version, i + 1);
        cr_assert_str_eq(m.retire.adapter, "policy");
        msg_fini(&m);
    }
    outbox_fini(&o);
}

Test(outbox, a_message_that_cannot_be_encoded_is_named)
{
    outbox_t o = {0};
    msg_t unknown = {.type = (msg_type_t)99}, long_one = {.type = MSG_RETIRE, .retire.version = UINT64_MAX};
    outbox_send(&o, 1, &unknown);
    outbox_send(&o, 1, &long_one);
    cr_assert(o.unsendable == 99 && !o.failed, "the first; memory is no matter of it");
    cr_assert_eq(o.send_count, 0);
    outbox_clear(&o);
    cr_assert(!o.unsendable);
    outbox_fini(&o);
}

Test(outbox, texts_are_copies)
{
    outbox_t o = {0};
    char text[] = "a";
    const char *copy = outbox_text(&o, text);
    text[0] = 'b';
    cr_assert_str_eq(copy, "a");
    outbox_fini(&o);
}
