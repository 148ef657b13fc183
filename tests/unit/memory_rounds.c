/* SPDX-License-Identifier: Apache-2.0 */
/* Verified once a host: all interleavings of three holders at a source, and each cell of a holder's table. */
#include "memory/rounds.h"

#include "core/clock.h"

#include <criterion/criterion.h>
#include <string.h>

/* PASS: so much time passes that a good verdict is not believed any more. */
enum { MEMBERS = 3, BYTES = 80000000, PASS = ROUND_TIME + 1, EVENTS = PASS + 1, HELD_MOST = 3 };

static const content_id_t ID = {.identity = {1}, .generation = 7, .manifest = {{9}}};

static round_t begun(void)
{
    round_t r;
    round_begin(&r, &ID, BYTES, false);
    return r;
}

static bool says(round_act_t act, note_t note, uint32_t watcher)
{
    return act.is_any && act.note == note && act.watcher == watcher;
}

/* ---- at the source ---- */

Test(rounds, patience_is_50_ms_and_4_times_what_1_GB_per_second_takes)
{
    cr_assert_eq(round_patience_us(0), 50000);
    cr_assert_eq(round_patience_us(1000000000), 4050000);
}

Test(rounds, the_first_holder_verifies_for_all)
{
    round_t r = begun();
    cr_assert(says(round_step(&r, ROUND_HELD, 5, 100), NOTE_VERIFY, 5));
    cr_assert_eq(r.due_us, 100 + round_patience_us(BYTES));
    cr_assert_not(round_step(&r, ROUND_HELD, 6, 100).is_any);
    cr_assert(round_has(&r, 5) && round_has(&r, 6) && !round_has(&r, 7));
    cr_assert(says(round_step(&r, ROUND_GOOD, 5, 100), NOTE_VERIFIED, ROUND_ALL));
    cr_assert(says(round_step(&r, ROUND_HELD, 7, 100), NOTE_VERIFIED, 7), "a late one learns it at once");
    cr_assert_eq(r.due_us, CLOCK_NEVER);
    cr_assert_not(round_step(&r, ROUND_GONE, 5, 100).is_any);
}

/* Bytes may change after they were verified, and one that comes later has the time to look. */
Test(rounds, one_that_comes_much_later_verifies_anew_for_those_that_come_with_it)
{
    round_t r = begun();
    uint64_t later = 100 + ROUND_FRESH_US;
    (void)round_step(&r, ROUND_HELD, 5, 100);
    (void)round_step(&r, ROUND_HELD, 6, 100);
    (void)round_step(&r, ROUND_GOOD, 5, 100);
    cr_assert(says(round_step(&r, ROUND_HELD, 7, later - 1), NOTE_VERIFIED, 7));
    cr_assert(says(round_step(&r, ROUND_HELD, 8, later), NOTE_VERIFY, 8), "and none of those that use it");
    cr_assert_not(round_step(&r, ROUND_HELD, 9, later).is_any);
    cr_assert(says(round_step(&r, ROUND_GOOD, 8, later + 5), NOTE_VERIFIED, ROUND_ALL));
    cr_assert(says(round_step(&r, ROUND_HELD, 4, later + 5), NOTE_VERIFIED, 4));
    cr_assert(says(round_step(&r, ROUND_HELD, 3, 2 * later + 5), NOTE_VERIFY, 3));
    cr_assert(says(round_step(&r, ROUND_BAD, 3, 2 * later + 6), NOTE_DOUBTED, ROUND_ALL),
              "damaged meanwhile");
}

/* It gave the content up, and with it what it was told: whatever it is to the round, it has to be told anew. */
Test(rounds, one_that_holds_the_content_again_is_told_again)
{
    round_t r = begun();
    uint64_t later = 100 + ROUND_FRESH_US;
    cr_assert(says(round_step(&r, ROUND_HELD, 5, 100), NOTE_VERIFY, 5));
    cr_assert(says(round_step(&r, ROUND_HELD, 5, 200), NOTE_VERIFY, 5), "asked, and no answer can come");
    cr_assert_eq(r.due_us, 200 + round_patience_us(BYTES));
    cr_assert_not(round_step(&r, ROUND_HELD, 6, 200).is_any);
    cr_assert(says(round_step(&r, ROUND_HELD, 5, 200), NOTE_VERIFY, 6), "the other has waited longer");
    cr_assert(says(round_step(&r, ROUND_GONE, 6, 200), NOTE_VERIFY, 5));
    cr_assert(says(round_step(&r, ROUND_GOOD, 5, 200), NOTE_VERIFIED, ROUND_ALL));
    cr_assert(says(round_step(&r, ROUND_HELD, 5, 300), NOTE_VERIFIED, 5), "the verifier itself");
    cr_assert(says(round_step(&r, ROUND_HELD, 5, 2 * later), NOTE_VERIFY, 5), "and much later");
    (void)round_step(&r, ROUND_TIME, 0, r.due_us);
    cr_assert(says(round_step(&r, ROUND_HELD, 5, 4 * later), NOTE_VERIFY, 5), "after its silence");
}

Test(rounds, a_verifier_that_is_gone_or_silent_gives_way_in_order)
{
    round_t r = begun();
    for (uint32_t i = 9; i > 5; i--) (void)round_step(&r, ROUND_HELD, i, 0);
    cr_assert(says(round_step(&r, ROUND_GONE, 9, 0), NOTE_VERIFY, 8), "the second that asked");
    uint64_t due_us = r.due_us;
    cr_assert_not(round_step(&r, ROUND_TIME, 0, due_us - 1).is_any);
    cr_assert(says(round_step(&r, ROUND_TIME, 0, due_us), NOTE_VERIFY, 7));
    cr_assert_eq(r.due_us, due_us + round_patience_us(BYTES));
    cr_assert(says(round_step(&r, ROUND_GOOD, 8, due_us), NOTE_VERIFIED, ROUND_ALL), "late, and good still");
    cr_assert_not(round_step(&r, ROUND_GOOD, 7, due_us).is_any, "told already");
}

Test(rounds, a_verdict_counts_once_and_only_from_a_process_that_has_to_give_one)
{
    round_t r = begun();
    cr_assert_not(round_step(&r, ROUND_GOOD, 4, 0).is_any, "it holds nothing");
    cr_assert_not(round_step(&r, ROUND_BAD, 4, 0).is_any);
    cr_assert_eq(r.state, ROUND_VERIFYING);
    (void)round_step(&r, ROUND_HELD, 1, 0);
    cr_assert(says(round_step(&r, ROUND_BAD, 1, 0), NOTE_DOUBTED, ROUND_ALL));
    cr_assert_not(round_step(&r, ROUND_BAD, 1, 0).is_any, "the same one again");
    cr_assert_not(round_step(&r, ROUND_GOOD, 1, 0).is_any, "it has said the opposite");
    cr_assert(r.state == ROUND_DOUBTED && r.members[1].state == MEMBER_BAD);
}

Test(rounds, one_that_waits_may_be_the_first_to_find_the_bytes_good)
{
    round_t r = begun();
    for (uint32_t i = 0; i < 3; i++) (void)round_step(&r, ROUND_HELD, i, 0);
    cr_assert(says(round_step(&r, ROUND_GOOD, 2, 100), NOTE_VERIFIED, ROUND_ALL));
    cr_assert(r.state == ROUND_VERIFIED && r.due_us == CLOCK_NEVER);
    cr_assert_not(round_step(&r, ROUND_TIME, 0, round_patience_us(BYTES)).is_any, "no other one is asked");
    cr_assert(says(round_step(&r, ROUND_HELD, 3, 100), NOTE_VERIFIED, 3));
}

/* One bad core must not make a good version fail on the host, and one good one must not make a bad version pass. */
Test(rounds, one_that_finds_bad_bytes_ends_the_trust_of_all)
{
    enum {
        WHILE_ASKED,
        WHILE_WAITING,
        WHILE_LATE,
        AFTER_ANOTHERS_GOOD,
        AFTER_ITS_OWN_GOOD,
        OF_THE_VERIFIED,
        CASES
    };
    for (int i = 0; i < CASES; i++) {
        round_t r = begun();
        uint32_t finder = i == WHILE_WAITING || i == AFTER_ANOTHERS_GOOD ? 2 : 1;
        if (i == OF_THE_VERIFIED) round_begin(&r, &ID, BYTES, true);
        for (uint32_t k = 1; k <= 3; k++) (void)round_step(&r, ROUND_HELD, k, 0);
        if (i == WHILE_LATE) (void)round_step(&r, ROUND_TIME, 0, r.due_us);
        if (i == AFTER_ANOTHERS_GOOD || i == AFTER_ITS_OWN_GOOD) (void)round_step(&r, ROUND_GOOD, 1, 0);
        cr_assert(says(round_step(&r, ROUND_BAD, finder, 0), NOTE_DOUBTED, ROUND_ALL), "%d", i);
        cr_assert(r.state == ROUND_DOUBTED && r.due_us == CLOCK_NEVER, "%d", i);
        cr_assert_not(round_step(&r, ROUND_GOOD, 3, 0).is_any, "%d: others find them good", i);
        cr_assert(says(round_step(&r, ROUND_HELD, 4, 0), NOTE_DOUBTED, 4), "%d: a late one", i);
        cr_assert(says(round_step(&r, ROUND_BAD, 4, 0), NOTE_SPOILED, ROUND_ALL), "%d: a second one", i);
        cr_assert(says(round_step(&r, ROUND_HELD, 5, 0), NOTE_SPOILED, 5), "%d", i);
        cr_assert_not(round_step(&r, ROUND_BAD, 5, 0).is_any, "%d: nothing is left to say", i);
    }
}

/* Its connection has ended, and with it its verdict: the doubt stays, and one process is not two. */
Test(rounds, a_process_that_comes_back_is_no_second_one)
{
    round_t r = begun();
    (void)round_step(&r, ROUND_HELD, 1, 0);
    (void)round_step(&r, ROUND_BAD, 1, 0);
    cr_assert_not(round_step(&r, ROUND_GONE, 1, 0).is_any);
    cr_assert(says(round_step(&r, ROUND_HELD, 2, 0), NOTE_DOUBTED, 2));
    cr_assert_not(round_step(&r, ROUND_BAD, 2, 0).is_any);
    cr_assert_eq(r.state, ROUND_DOUBTED);
    cr_assert(says(round_step(&r, ROUND_HELD, 3, 0), NOTE_DOUBTED, 3));
    cr_assert(says(round_step(&r, ROUND_BAD, 3, 0), NOTE_SPOILED, ROUND_ALL));
}

/* What a world is, besides its round: the verdicts that count. Bad ones only of members that did not end since:
 * a number that comes back after ROUND_GONE may be of the same process. */
typedef struct {
    round_t round;
    uint8_t good, bad, held; /* verdicts that count, and how often one was held */
    bool is_doubted;         /* a bad one was ever given */
    uint64_t now_us;
} world_t;
typedef struct {
    uint8_t state, states[MEMBERS], orders[MEMBERS], next, good, bad, held, is_doubted, is_due, is_later,
        is_old;
} seen_t;

/* The good verdict is too old for one that comes now. */
static bool is_old(const world_t *w)
{
    return w->round.state == ROUND_VERIFIED && w->now_us - w->round.verified_us >= ROUND_FRESH_US;
}

static seen_t key_of(const world_t *w)
{
    seen_t k = {.state = (uint8_t)w->round.state,
                .next = (uint8_t)w->round.next,
                .good = w->good,
                .bad = w->bad,
                .held = w->held,
                .is_doubted = w->is_doubted,
                .is_due = w->round.due_us != CLOCK_NEVER,
                .is_later = w->now_us > 0,
                .is_old = is_old(w)};
    for (int i = 0; i < MEMBERS; i++) {
        k.states[i] = (uint8_t)w->round.members[i].state;
        k.orders[i] = (uint8_t)w->round.members[i].order;
    }
    return k;
}

static void step(world_t *w, round_event_t event, uint32_t member)
{
    round_member_t was = w->round.members[member].state;
    bool has_no_verdict = was == MEMBER_WAITING || was == MEMBER_ASKED || was == MEMBER_LATE;
    w->held += event == ROUND_HELD;
    w->bad -= event == ROUND_GONE && was == MEMBER_BAD && w->round.state != ROUND_SPOILED;
    w->good += event == ROUND_GOOD && has_no_verdict;
    w->bad += event == ROUND_BAD && (has_no_verdict || was == MEMBER_GOOD);
    w->is_doubted |= w->bad > 0;
    bool was_old = is_old(w);
    bool was_verified = w->round.state == ROUND_VERIFIED;
    uint64_t now_us = event == ROUND_TIME && w->round.due_us > w->now_us ? w->round.due_us : w->now_us;
    round_act_t act = round_step(&w->round, event, member, now_us);
    bool is_anew = was_verified && w->round.state == ROUND_VERIFYING;
    cr_assert_eq(is_anew, event == ROUND_HELD && was_old);
    if (is_anew) w->good = 0; /* it says nothing about the bytes of now */
    if (is_anew)
        for (uint32_t i = 0; i < MEMBERS; i++) {
            round_member_t state = w->round.members[i].state;
            cr_assert(state == MEMBER_ASKED || state == MEMBER_NONE || state == MEMBER_GOOD,
                      "those that use it are not waited for");
        }
    if (act.is_any && act.note == NOTE_VERIFY)
        cr_assert_eq(w->round.members[act.watcher].state, MEMBER_ASKED);
    if (act.is_any && act.note == NOTE_DOUBTED) cr_assert(w->is_doubted);
    if (act.is_any && act.note == NOTE_VERIFIED) cr_assert(w->good && !w->is_doubted);
    if (act.is_any && act.note == NOTE_SPOILED) cr_assert_geq(w->bad, 2, "two processes");
}

static void check(const world_t *w)
{
    int asked = 0, waiting = 0;
    for (int i = 0; i < MEMBERS; i++) {
        asked += w->round.members[i].state == MEMBER_ASKED;
        waiting += w->round.members[i].state == MEMBER_WAITING;
    }
    cr_assert_leq(asked, 1);
    if (w->round.state == ROUND_VERIFYING) cr_assert(asked || !waiting, "one waits, and none is asked");
    cr_assert_eq(w->round.due_us != CLOCK_NEVER, w->round.state == ROUND_VERIFYING && asked == 1);
    cr_assert(w->round.state != ROUND_VERIFIED || w->good);
    cr_assert_eq(w->round.state == ROUND_DOUBTED || w->round.state == ROUND_SPOILED, w->is_doubted);
    cr_assert(w->round.state != ROUND_SPOILED || w->bad >= 2);
}

Test(rounds, all_interleavings_of_three_holders)
{
    enum { MOST = 40000 };
    static world_t worlds[MOST];
    static seen_t keys[MOST];
    uint32_t count = 1;
    unsigned verified = 0, spoiled = 0, later = 0;
    worlds[0].round = begun();
    keys[0] = key_of(&worlds[0]);
    for (uint32_t at = 0; at < count; at++) {
        for (int e = 0; e < EVENTS; e++)
            for (uint32_t m = 0; m < MEMBERS; m++) {
                world_t w = worlds[at];
                if (e == ROUND_HELD && w.held == HELD_MOST) continue;
                if (e == ROUND_TIME && (m || w.round.due_us == CLOCK_NEVER)) continue;
                if (e == PASS && (m || w.now_us)) continue;
                if (e == PASS) w.now_us = ROUND_FRESH_US;
                else step(&w, (round_event_t)e, m);
                check(&w);
                seen_t key = key_of(&w);
                uint32_t i = 0;
                while (i < count && memcmp(&keys[i], &key, sizeof key) != 0) i++;
                if (i < count) continue;
                cr_assert_lt(count, MOST);
                keys[count] = key;
                worlds[count++] = w;
                verified += w.round.state == ROUND_VERIFIED;
                spoiled += w.round.state == ROUND_SPOILED;
                later += w.now_us && w.round.state == ROUND_VERIFYING && w.round.next > 1;
            }
    }
    cr_log_info("%u worlds", count);
    cr_assert(verified > 10 && spoiled > 10 && later > 10, "%u verified, %u spoiled, %u later", verified,
              spoiled, later);
}

/* ---- at a holder ---- */

static claim_t claim(claim_state_t state)
{
    claim_t c;
    claim_begin(&c, &ID, BYTES, false, 1000);
    c.state = state;
    return c;
}

Test(claims, each_cell)
{
    static const struct {
        claim_state_t from, verify, verified, spoiled, lost, good, bad;
    } ROWS[] = {
        {CLAIM_WAITING, CLAIM_VERIFYING, CLAIM_USABLE, CLAIM_BAD, CLAIM_VERIFYING, CLAIM_WAITING,
         CLAIM_WAITING},
        {CLAIM_VERIFYING, CLAIM_VERIFYING, CLAIM_USABLE, CLAIM_BAD, CLAIM_VERIFYING, CLAIM_USABLE, CLAIM_BAD},
        {CLAIM_USABLE, CLAIM_USABLE, CLAIM_USABLE, CLAIM_USABLE, CLAIM_USABLE, CLAIM_USABLE, CLAIM_USABLE},
        {CLAIM_BAD, CLAIM_BAD, CLAIM_BAD, CLAIM_BAD, CLAIM_BAD, CLAIM_BAD, CLAIM_BAD},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const claim_state_t next[] = {ROWS[i].verify, ROWS[i].verify, ROWS[i].verified, ROWS[i].spoiled};
        const note_t notes[] = {NOTE_VERIFY, NOTE_DOUBTED, NOTE_VERIFIED, NOTE_SPOILED};
        note_t told = NOTE_GONE;
        claim_t c;
        for (int k = 0; k < 4; k++) {
            c = claim(ROWS[i].from);
            cr_assert(claim_receive(&c, notes[k], &ID));
            cr_assert_eq(c.state, next[k]);
        }
        c = claim(ROWS[i].from);
        claim_lose(&c);
        cr_assert_eq(c.state, ROWS[i].lost);
        c = claim(ROWS[i].from);
        cr_assert_eq(claim_found(&c, true, &told), ROWS[i].from == CLAIM_VERIFYING);
        cr_assert(c.state == ROWS[i].good &&
                  told == (ROWS[i].from == CLAIM_VERIFYING ? NOTE_GOOD : NOTE_GONE));
        c = claim(ROWS[i].from);
        cr_assert_eq(claim_found(&c, false, &told), ROWS[i].from == CLAIM_VERIFYING);
        cr_assert(c.state == ROWS[i].bad && told == (ROWS[i].from == CLAIM_VERIFYING ? NOTE_BAD : NOTE_GONE));
    }
}

Test(claims, a_note_about_another_content_changes_nothing)
{
    for (int i = 0; i < 3; i++) {
        content_id_t other = ID;
        if (i == 0) other.generation--;
        if (i == 1) other.identity[5] ^= 1;
        if (i == 2) other.manifest.b[31] ^= 1;
        claim_t c = claim(CLAIM_WAITING);
        cr_assert_not(claim_receive(&c, NOTE_VERIFIED, &other));
        cr_assert_eq(c.state, CLAIM_WAITING);
    }
}

Test(claims, a_silent_source_is_not_waited_for)
{
    claim_t c = claim(CLAIM_WAITING);
    uint64_t due_us = 1000 + 2 * round_patience_us(BYTES);
    claim_tick(&c, due_us - 1);
    cr_assert_eq(c.state, CLAIM_WAITING);
    claim_tick(&c, due_us);
    cr_assert_eq(c.state, CLAIM_VERIFYING);
    claim_begin(&c, &ID, BYTES, true, 1000);
    cr_assert_eq(c.state, CLAIM_VERIFYING, "--verify each");
    cr_assert(claim_receive(&c, NOTE_VERIFIED, &ID));
    cr_assert_eq(c.state, CLAIM_VERIFYING, "whatever others have found");
}
