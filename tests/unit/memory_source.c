/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher, and workers of its host: offered, held, verified by one, handed on. All have their turns from the
 * test, which sets the time. */
#include "memory/source.h"

#include "memory/mappings.h"
#include "tests/unit/memory_rig.h"

enum { WORKERS = 3, OWNER = WORKERS };

static source_t *sources[WORKERS + 1]; /* the workers', and the owner's */
static pool_t *pools[WORKERS + 1];
static char names[WORKERS + 1][32];
static mappings_t *workers[WORKERS];
static note_t told[WORKERS]; /* the last note; NOTE_GONE: none */
static content_id_t told_about[WORKERS];
static uint64_t now_us = 7000000;

static void hear(void *self, const char *from, note_t note, const content_id_t *id)
{
    int i = (int)((mappings_t **)self - workers);
    (void)from;
    told[i] = note;
    if (id) told_about[i] = *id;
}

static source_t *listen_as(int i)
{
    source_t *s = NULL;
    heddle_error_t e;
    snprintf(names[i], sizeof names[i], "source-%d-%d", getpid(), i);
    pool_opts_t pool = {.versions = 2, .is_guarded = true};
    cr_assert_eq(pool_new(&pool, &pools[i], &e), HEDDLE_OK);
    source_opts_t opts = {.name = names[i], .pool = pools[i]};
    cr_assert_eq(source_new(&opts, &s, &e), HEDDLE_OK, "%s", e.message);
    return s;
}

static void set_up(void)
{
    sources[OWNER] = listen_as(OWNER);
    for (int i = 0; i < WORKERS; i++) {
        told[i] = NOTE_GONE;
        cr_assert_eq(mappings_new(NULL, hear, &workers[i], &workers[i], NULL), HEDDLE_OK);
        cr_assert_eq(mappings_watch(workers[i], names[OWNER], now_us, NULL), HEDDLE_OK);
    }
}

static void tear_down(void)
{
    for (int i = 0; i < WORKERS; i++) mappings_destroy(&workers[i]);
    for (int i = 0; i <= WORKERS; i++) source_destroy(&sources[i]), pool_destroy(&pools[i]);
}

TestSuite(memory_source, .init = set_up, .fini = tear_down);

/* Until no process has anything left to do at this time. */
static void settle(void)
{
    struct pollfd p[2 * WORKERS + 1];
    bool has_more = true;
    for (int round = 0; has_more; round++) {
        cr_assert_lt(round, 5000);
        has_more = false;
        for (int i = 0; i <= WORKERS; i++) {
            if (sources[i]) has_more |= source_turn(sources[i], now_us) <= now_us;
            p[i] = (struct pollfd){sources[i] ? source_fd(sources[i]) : -1, POLLIN, 0};
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
    while ((rc = pool_take(pools[OWNER], RIG_BYTES, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    memset(r->base, (int)version, r->bytes);
    cr_assert_eq(memory_region_seal(r, version, &manifest, RIG_BYTES, NULL), HEDDLE_OK);
    *ret_id = memory_region_content(r);
    return r;
}

static void add(const content_id_t *id)
{
    source_content_t content = {.id = *id, .bytes = RIG_BYTES};
    cr_assert_eq(source_add(sources[OWNER], &content, now_us, NULL), HEDDLE_OK);
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

Test(memory_source, one_holder_verifies_for_all)
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
    cr_assert_eq(source_state(sources[OWNER], &id), ROUND_VERIFYING);
    say(0, OWNER, NOTE_GOOD, &id);
    for (int i = 0; i < WORKERS; i++) cr_assert(was_told(i, NOTE_VERIFIED, &id), "%d", i);
    cr_assert_eq(source_state(sources[OWNER], &id), ROUND_VERIFIED);
    source_remove(sources[OWNER], &id);
    pool_drop(pools[OWNER], r);
    cr_assert_eq(source_state(sources[OWNER], &id), ROUND_SPOILED, "unknown");
}

Test(memory_source, a_late_verdict_about_an_older_content_changes_nothing)
{
    content_id_t first, second;
    memory_region_t *r = publish(1, &first);
    add(&first);
    settle();
    say(0, OWNER, NOTE_HELD, &first);
    source_remove(sources[OWNER], &first);
    pool_drop(pools[OWNER], r);
    (void)publish(2, &second);
    add(&second);
    say(1, OWNER, NOTE_HELD, &second);
    say(0, OWNER, NOTE_GOOD, &first);
    cr_assert_eq(source_state(sources[OWNER], &second), ROUND_VERIFYING);
    cr_assert(was_told(1, NOTE_VERIFY, &second));
}

Test(memory_source, a_verifier_that_ends_or_is_silent_gives_way)
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

Test(memory_source, content_is_handed_over_only_while_it_is_added_and_not_known_to_be_bad)
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
    cr_assert_eq(source_state(sources[OWNER], &id), ROUND_SPOILED);
    handover_ask_t *a = NULL;
    heddle_error_t e;
    int rc;
    cr_assert_eq(handover_ask(NULL, names[OWNER], &id, now_us + 1000, &a, &e), HEDDLE_OK);
    while ((rc = handover_ask_take(a, now_us, &h, &e)) == HEDDLE_ERR_AGAIN) settle();
    cr_assert_eq(rc, HEDDLE_ERR_NOT_FOUND);
    handover_ask_destroy(&a);
}

/* The publisher is gone, and a worker hands on what it has verified. */
Test(memory_source, a_holder_hands_on_and_says_that_it_is_verified)
{
    content_id_t id;
    (void)publish(1, &id);
    add(&id);
    hold_t *first = take(0, OWNER, &id);
    source_destroy(&sources[OWNER]);
    pool_destroy(&pools[OWNER]);
    sources[0] = listen_as(0);
    source_content_t content = {.id = id, .bytes = RIG_BYTES, .hold = first, .is_verified = true};
    cr_assert_eq(source_add(sources[0], &content, now_us, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_watch(workers[1], names[0], now_us, NULL), HEDDLE_OK);
    hold_t *second = take(1, 0, &id);
    cr_assert(rig_is_whole(second->base, 1, second->header.bytes));
    say(1, 0, NOTE_HELD, &id);
    cr_assert(was_told(1, NOTE_VERIFIED, &id));
    source_remove(sources[0], &id);
    mappings_give(workers[0], &first);
    hold_t *third = NULL;
    mappings_unwatch(workers[2], names[OWNER]);
    settle(); /* what it had mapped is gone */
    cr_assert_eq(try_take(2, 0, &id, &third), HEDDLE_ERR_NOT_FOUND, "it holds nothing any more");
    cr_assert(rig_is_whole(second->base, 1, second->header.bytes));
}

/* A step of the guard would delay those that wait for the version. */
Test(memory_source, the_background_waits_until_the_version_is_held)
{
    content_id_t id;
    memory_region_t *r = publish(1, &id);
    add(&id);
    settle();
    cr_assert_eq(r->guarded_bytes, 0);
    now_us += SOURCE_QUIET_US - 1;
    say(0, OWNER, NOTE_HELD, &id);
    now_us += SOURCE_QUIET_US - 1;
    settle();
    cr_assert_eq(r->guarded_bytes, 0);
    now_us++;
    settle();
    cr_assert_eq(r->guarded_bytes, r->mapped_bytes);
}

Test(memory_source, contents_are_bounded)
{
    source_content_t content = {.bytes = 1};
    for (uint32_t i = 0; i < LIMIT_OFFERED; i++) {
        content.id.epoch = i + 1;
        cr_assert_eq(source_add(sources[OWNER], &content, now_us, NULL), HEDDLE_OK);
        cr_assert_eq(source_add(sources[OWNER], &content, now_us, NULL), HEDDLE_OK, "again");
    }
    content.id.epoch++;
    cr_assert_eq(source_add(sources[OWNER], &content, now_us, NULL), HEDDLE_ERR_LIMIT);
}

Test(memory_source, a_name_that_is_taken_is_an_error_and_leaves_nothing)
{
    source_t *s = NULL;
    heddle_error_t e;
    int before = rig_descriptors();
    source_opts_t opts = {.name = names[OWNER], .pool = pools[OWNER]};
    cr_assert_eq(source_new(&opts, &s, &e), HEDDLE_ERR_ADDRESS_IN_USE);
    cr_assert(!s && rig_descriptors() == before);
}
