/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher, and workers of its host: offered, held, verified by one, handed on. All have their turns from the
 * test, which sets the time. */
#include "memory/offer.h"

#include "core/log.h"
#include "memory/mappings.h"
#include "tests/unit/memory_rig.h"

enum { WORKERS = 3, OWNER = WORKERS };

static offer_t *offers[WORKERS + 1]; /* the workers', and the owner's */
static pool_t *pools[WORKERS + 1];
static char names[WORKERS + 1][32];
static mappings_t *workers[WORKERS];
static note_t told[WORKERS]; /* the last note; NOTE_GONE: none */
static content_id_t told_about[WORKERS];
static uint64_t now_us = 7000000;
static char said[1024]; /* the last text of the log */

static void keep_line(char *line) { snprintf(said, sizeof said, "%s", line); }

static void hear(void *self, const char *from, note_t note, const content_id_t *id)
{
    int i = (int)((mappings_t **)self - workers);
    (void)from;
    told[i] = note;
    if (id) told_about[i] = *id;
}

static offer_t *listen_as(int i)
{
    offer_t *s = NULL;
    heddle_error_t e;
    snprintf(names[i], sizeof names[i], "offer-%d-%d", getpid(), i);
    pool_opts_t pool = {.most = 16, .is_guarded = true};
    cr_assert_eq(pool_new(&pool, &pools[i], &e), HEDDLE_OK);
    offer_opts_t opts = {.name = names[i], .pool = pools[i]};
    cr_assert_eq(offer_new(&opts, &s, &e), HEDDLE_OK, "%s", e.message);
    return s;
}

static void set_up(void)
{
    log_set_words(keep_line);
    offers[OWNER] = listen_as(OWNER);
    for (int i = 0; i < WORKERS; i++) {
        told[i] = NOTE_GONE;
        cr_assert_eq(mappings_new(NULL, hear, &workers[i], &workers[i], NULL), HEDDLE_OK);
        cr_assert_eq(mappings_watch(workers[i], names[OWNER], now_us, NULL), HEDDLE_OK);
    }
}

static void tear_down(void)
{
    for (int i = 0; i < WORKERS; i++) mappings_destroy(&workers[i]);
    for (int i = 0; i <= WORKERS; i++) offer_destroy(&offers[i]), pool_destroy(&pools[i]);
}

TestSuite(memory_offer, .init = set_up, .fini = tear_down);

/* Until no process has anything left to do at this time. */
static void settle(void)
{
    struct pollfd p[2 * WORKERS + 1];
    bool has_more = true;
    for (int round = 0; has_more; round++) {
        cr_assert_lt(round, 5000);
        has_more = false;
        for (int i = 0; i <= WORKERS; i++) {
            if (offers[i]) has_more |= offer_turn(offers[i], now_us) <= now_us;
            p[i] = (struct pollfd){offers[i] ? offer_fd(offers[i]) : -1, POLLIN, 0};
        }
        for (int i = 0; i < WORKERS; i++) {
            if (workers[i]) has_more |= mappings_turn(workers[i], now_us) <= now_us;
            p[WORKERS + 1 + i] = (struct pollfd){workers[i] ? mappings_fd(workers[i]) : -1, POLLIN, 0};
        }
        has_more |= poll(p, 2 * WORKERS + 1, 0) > 0;
    }
}

static memory_region_t *publish(uint64_t version, content_id_t *ret_id)
{
    memory_region_t *r = NULL;
    digest_t manifest = rig_manifest(version);
    heddle_error_t e;
    int rc;
    while ((rc = pool_take(pools[OWNER], &now_us, RIG_BYTES, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    memset(r->base, (int)version, r->bytes);
    cr_assert_eq(memory_region_seal(r, &manifest, RIG_BYTES, NULL), HEDDLE_OK);
    *ret_id = memory_region_content(r);
    return r;
}

static void add(const content_id_t *id)
{
    offer_content_t content = {.id = *id, .bytes = RIG_BYTES};
    cr_assert_eq(offer_add(offers[OWNER], &content, NULL), HEDDLE_OK);
}

static int try_take(int worker, int from, const content_id_t *id, hold_t **ret_hold)
{
    heddle_error_t e;
    int rc;
    while ((rc = mappings_take(workers[worker], names[from], id, now_us, ret_hold, &e)) == HEDDLE_ERR_AGAIN)
        settle();
    return rc;
}

static hold_t *take(int worker, int from, const content_id_t *id)
{
    hold_t *h = NULL;
    cr_assert_eq(try_take(worker, from, id, &h), HEDDLE_OK);
    return h;
}

static void say(int worker, int to, note_t note, const content_id_t *id)
{
    cr_assert_eq(mappings_tell(workers[worker], names[to], note, id, NULL), HEDDLE_OK);
    settle();
}

static bool was_told(int worker, note_t note, const content_id_t *id)
{
    return told[worker] == note && content_is(&told_about[worker], id);
}

Test(memory_offer, one_holder_verifies_for_all)
{
    content_id_t id;
    memory_region_t *r = publish(1, &id);
    settle();
    add(&id);
    for (int i = 0; i < WORKERS; i++) {
        hold_t *h = take(i, OWNER, &id);
        cr_assert(rig_is_whole(h->base, 1, h->header.bytes));
        say(i, OWNER, NOTE_HELD, &id);
    }
    cr_assert(was_told(0, NOTE_VERIFY, &id));
    cr_assert(told[1] == NOTE_GONE && told[2] == NOTE_GONE);
    say(0, OWNER, NOTE_GOOD, &id);
    for (int i = 0; i < WORKERS; i++) cr_assert(was_told(i, NOTE_VERIFIED, &id), "%d", i);
    offer_remove(offers[OWNER], &id);
    pool_drop(pools[OWNER], r);
    say(1, OWNER, NOTE_HELD, &id);
    cr_assert(was_told(1, NOTE_VERIFY, &id), "unknown");
}

Test(memory_offer, a_late_verdict_about_an_older_content_changes_nothing)
{
    content_id_t first, second;
    memory_region_t *r = publish(1, &first);
    add(&first);
    settle();
    say(0, OWNER, NOTE_HELD, &first);
    offer_remove(offers[OWNER], &first);
    pool_drop(pools[OWNER], r);
    (void)publish(2, &second);
    add(&second);
    say(1, OWNER, NOTE_HELD, &second);
    say(0, OWNER, NOTE_GOOD, &first);
    cr_assert(was_told(1, NOTE_VERIFY, &second));
    say(2, OWNER, NOTE_HELD, &second);
    cr_assert_eq(told[2], NOTE_GONE, "it waits: nothing is verified");
}

/* Else it would wait for the source to be silent. */
Test(memory_offer, a_holder_of_what_is_no_longer_offered_verifies_it_itself)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    settle();
    for (int i = 0; i < 2; i++) say(i, OWNER, NOTE_HELD, &id);
    cr_assert(was_told(0, NOTE_VERIFY, &id) && told[1] == NOTE_GONE);
    told[0] = NOTE_GONE;
    offer_remove(offers[OWNER], &id);
    settle();
    cr_assert(was_told(1, NOTE_VERIFY, &id), "it waited");
    cr_assert_eq(told[0], NOTE_GONE, "asked already");
    say(2, OWNER, NOTE_HELD, &id);
    cr_assert(was_told(2, NOTE_VERIFY, &id), "it was late");
}

Test(memory_offer, a_holder_that_was_answered_hears_nothing_more_when_the_content_goes)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    settle();
    for (int i = 0; i < 2; i++) say(i, OWNER, NOTE_HELD, &id);
    say(0, OWNER, NOTE_GOOD, &id);
    for (int i = 0; i < 2; i++) cr_assert(was_told(i, NOTE_VERIFIED, &id));
    offer_remove(offers[OWNER], &id);
    settle();
    for (int i = 0; i < 2; i++) cr_assert(was_told(i, NOTE_VERIFIED, &id));
}

Test(memory_offer, a_verifier_that_ends_or_is_silent_gives_way)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    settle();
    for (int i = 0; i < WORKERS; i++) say(i, OWNER, NOTE_HELD, &id);
    mappings_destroy(&workers[0]);
    settle();
    cr_assert(was_told(1, NOTE_VERIFY, &id));
    now_us += round_patience_us(RIG_BYTES);
    settle();
    cr_assert(was_told(2, NOTE_VERIFY, &id));
    say(2, OWNER, NOTE_GOOD, &id);
    cr_assert(was_told(1, NOTE_VERIFIED, &id));
}

Test(memory_offer, content_is_handed_over_only_while_it_is_added_and_not_known_to_be_bad)
{
    content_id_t id;
    hold_t *h = NULL;
    (void)publish(1, &id); /* not offered yet, so nothing is mapped: each take asks */
    cr_assert_eq(try_take(0, OWNER, &id, &h), HEDDLE_ERR_NOT_FOUND, "not added");
    add(&id);
    say(0, OWNER, NOTE_HELD, &id);
    say(1, OWNER, NOTE_HELD, &id);
    say(0, OWNER, NOTE_BAD, &id);
    say(1, OWNER, NOTE_BAD, &id);
    cr_assert(was_told(0, NOTE_SPOILED, &id));
    handover_ask_t *a = NULL;
    heddle_error_t e;
    int rc;
    cr_assert_eq(handover_ask(NULL, names[OWNER], &id, now_us + 1000, &a, &e), HEDDLE_OK);
    while ((rc = handover_ask_take(a, now_us, &h, &e)) == HEDDLE_ERR_AGAIN) settle();
    cr_assert_eq(rc, HEDDLE_ERR_NOT_FOUND);
    handover_ask_destroy(&a);
}

/* One that waited too long, or relies on no other, verifies for itself: its finding is as good as the first one's. */
Test(memory_offer, a_holder_that_waited_and_found_damage_ends_the_trust_of_all)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    settle();
    for (int i = 0; i < 2; i++) say(i, OWNER, NOTE_HELD, &id);
    cr_assert(was_told(0, NOTE_VERIFY, &id) && told[1] == NOTE_GONE, "it waits");
    said[0] = 0;
    say(1, OWNER, NOTE_BAD, &id);
    cr_assert(strstr(said, "verifies it for itself") && !strstr(said, "after another one"), "%s", said);
    cr_assert(was_told(1, NOTE_DOUBTED, &id));
    say(0, OWNER, NOTE_GOOD, &id);
    cr_assert(was_told(0, NOTE_DOUBTED, &id), "its bytes are its own affair");
    say(2, OWNER, NOTE_HELD, &id);
    cr_assert(was_told(2, NOTE_DOUBTED, &id), "and a later one is not told that they are good");
    say(2, OWNER, NOTE_BAD, &id);
    cr_assert(strstr(said, "no longer handed over"), "%s", said);
    for (int i = 0; i < WORKERS; i++) cr_assert(was_told(i, NOTE_SPOILED, &id), "%d", i);
}

Test(memory_offer, damage_after_a_good_verdict_is_logged_and_ends_the_trust)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    settle();
    for (int i = 0; i < 2; i++) say(i, OWNER, NOTE_HELD, &id);
    say(0, OWNER, NOTE_GOOD, &id);
    cr_assert(was_told(1, NOTE_VERIFIED, &id));
    said[0] = 0;
    say(1, OWNER, NOTE_BAD, &id);
    cr_assert(strstr(said, "verifies it for itself") && strstr(said, "after another one"), "%s", said);
    say(2, OWNER, NOTE_HELD, &id);
    cr_assert(was_told(2, NOTE_DOUBTED, &id));
}

/* It has said that the content is verified, on the word of another process. */
Test(memory_offer, a_holder_that_hands_on_passes_on_the_doubt)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    hold_t *first = take(0, OWNER, &id);
    offers[0] = listen_as(0);
    offer_content_t content = {.id = id,
                               .bytes = RIG_BYTES,
                               .hold = first,
                               .is_verified = true,
                               .verified_us = now_us};
    cr_assert_eq(offer_add(offers[0], &content, NULL), HEDDLE_OK);
    for (int i = 1; i < WORKERS; i++)
        cr_assert_eq(mappings_watch(workers[i], names[0], now_us, NULL), HEDDLE_OK);
    settle();
    say(1, 0, NOTE_HELD, &id);
    cr_assert(was_told(1, NOTE_VERIFIED, &id));
    offer_doubt(offers[0], &(content_id_t){.generation = 77});
    offer_doubt(offers[0], &id);
    settle();
    cr_assert(was_told(1, NOTE_DOUBTED, &id));
    say(2, 0, NOTE_HELD, &id);
    cr_assert(was_told(2, NOTE_DOUBTED, &id));
    offer_remove(offers[0], &id);
    mappings_give(workers[0], &first);
}

/* The publisher is gone, and a worker hands on what it has verified. */
Test(memory_offer, a_holder_hands_on_and_says_that_it_is_verified)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    hold_t *first = take(0, OWNER, &id);
    offer_destroy(&offers[OWNER]);
    pool_destroy(&pools[OWNER]);
    offers[0] = listen_as(0);
    offer_content_t content = {.id = id,
                               .bytes = RIG_BYTES,
                               .hold = first,
                               .is_verified = true,
                               .verified_us = now_us};
    cr_assert_eq(offer_add(offers[0], &content, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_watch(workers[1], names[0], now_us, NULL), HEDDLE_OK);
    hold_t *second = take(1, 0, &id);
    cr_assert(rig_is_whole(second->base, 1, second->header.bytes));
    say(1, 0, NOTE_HELD, &id);
    cr_assert(was_told(1, NOTE_VERIFIED, &id));
    offer_remove(offers[0], &id);
    mappings_give(workers[0], &first);
    hold_t *third = NULL;
    now_us += MAPPINGS_GONE_US;
    settle(); /* what the owner offered is gone */
    cr_assert_eq(try_take(2, 0, &id, &third), HEDDLE_ERR_NOT_FOUND, "it holds nothing any more");
    cr_assert(rig_is_whole(second->base, 1, second->header.bytes));
}

/* When that is done is for the pool's owner to say (client/regions.h): a region that was given up stays whole. */
Test(memory_offer, a_turn_does_nothing_in_the_background)
{
    content_id_t id;
    memory_region_t *r = publish(1, &id), *more = publish(2, &id);
    add(&id);
    pool_drop(pools[OWNER], more);
    for (int i = 0; i < 3; i++, now_us += POOL_SURPLUS_US) settle();
    cr_assert_eq(r->guarded_bytes, 0);
    cr_assert_eq(pool_count(pools[OWNER]).regions, 2);
    (void)pool_work(pools[OWNER], now_us);
    cr_assert_eq(r->guarded_bytes, r->mapped_bytes);
}

/* Their number is bounded where they are made: LIMIT_OFFERED is about what is listed in advance. */
Test(memory_offer, contents_are_more_than_the_regions_in_a_list)
{
    offer_content_t content = {.bytes = 1, .is_verified = true, .verified_us = now_us};
    for (uint32_t i = 0; i < 2 * LIMIT_OFFERED; i++) {
        content.id.generation = i + 1;
        cr_assert_eq(offer_add(offers[OWNER], &content, NULL), HEDDLE_OK, "%u", i);
        cr_assert_eq(offer_add(offers[OWNER], &content, NULL), HEDDLE_OK, "again");
    }
    offer_remove(offers[OWNER], &(content_id_t){.generation = 7});
    settle();
    for (content.id.generation = 1; content.id.generation <= 2 * LIMIT_OFFERED; content.id.generation++) {
        say(0, OWNER, NOTE_HELD, &content.id);
        cr_assert(was_told(0, content.id.generation == 7 ? NOTE_VERIFY : NOTE_VERIFIED, &content.id));
    }
}

Test(memory_offer, a_name_that_is_taken_is_an_error_and_leaves_nothing)
{
    offer_t *s = NULL;
    heddle_error_t e;
    int before = rig_descriptors();
    offer_opts_t opts = {.name = names[OWNER], .pool = pools[OWNER]};
    cr_assert_eq(offer_new(&opts, &s, &e), HEDDLE_ERR_ADDRESS_IN_USE);
    cr_assert(!s && rig_descriptors() == before);
}
