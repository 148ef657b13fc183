/* SPDX-License-Identifier: Apache-2.0 */
/* The regions of an owner: written in turn, kept ahead, bounded, given back. */
#include "memory/pool.h"

#include "core/errors.h"
#include "tests/unit/memory_rig.h"

enum { MOST = 6 };
static pool_t *p;
static uint64_t now_us = 1000000;
static bool has_memory = true;
static size_t asked_for;
static size_t room = SIZE_MAX; /* for what the pool has and what is asked for */
static const memory_region_t *used;
static int left;
static int others[2]; /* takers */

static void leaving(void *self, memory_region_t *region)
{
    cr_assert(self == &has_memory && region->mapped_bytes > region->bytes, "it is whole still");
    cr_assert_neq(region, used);
    left++;
}

static int may_make(void *self, size_t bytes, heddle_error_t *error)
{
    cr_assert_eq(self, &has_memory);
    asked_for = bytes;
    if (has_memory && pool_count(p).bytes + bytes <= room) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
}

/* A holder that comes while the pool looks whether its region is free. */
static struct {
    const memory_region_t *region;
    int looks; /* until it comes */
    hold_t *hold;
    content_id_t id;
} comer;

static uint32_t asked_count;
static bool is_unused(void *self, const memory_region_t *region)
{
    asked_count++;
    cr_assert_eq(self, &has_memory);
    if (region == comer.region && --comer.looks == 0)
        cr_assert_eq(hold_take(comer.hold, &comer.id, NULL), HEDDLE_OK);
    return region != used;
}

static bool is_quiet = true;
static bool may_guard(void *self, const memory_region_t *region)
{
    cr_assert(self == &has_memory && region->state == REGION_SEALED);
    return is_quiet;
}

static void set_up(void)
{
    pool_opts_t opts = {.most = MOST,
                        .has_views = true,
                        .is_guarded = true,
                        .may_make = may_make,
                        .is_unused = is_unused,
                        .may_guard = may_guard,
                        .leaving = leaving,
                        .self = &has_memory};
    cr_assert_eq(pool_new(&opts, &p, NULL), HEDDLE_OK);
}

static void tear_down(void) { pool_destroy(&p); }

TestSuite(memory_pool, .init = set_up, .fini = tear_down);

/* In the background, until nothing is left to do at this time. */
static uint64_t settle(void)
{
    uint64_t due_us;
    for (int i = 0; (due_us = pool_work(p, now_us)) <= now_us; i++) cr_assert_lt(i, 10000);
    return due_us;
}

static memory_region_t *take(size_t bytes)
{
    memory_region_t *r = NULL;
    heddle_error_t e;
    int rc;
    while ((rc = pool_take(p, &now_us, bytes, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    cr_assert(r->state == REGION_WRITING && r->made_bytes >= bytes);
    return r;
}

/* Not the first one: there is a next one, too. */
static memory_region_t *take_in_turn(size_t bytes)
{
    pool_drop(p, take(bytes));
    return take(bytes);
}

/* What it says in the end. */
static int try_to_take(size_t bytes)
{
    memory_region_t *r = NULL;
    int rc;
    while ((rc = pool_take(p, &now_us, bytes, &r, NULL)) == HEDDLE_ERR_AGAIN) {}
    return rc;
}

static content_id_t seal(memory_region_t *r, uint64_t version)
{
    digest_t manifest = rig_manifest(version);
    memset(r->base, (int)version, r->bytes);
    cr_assert_eq(memory_region_seal(r, &manifest, r->bytes, NULL), HEDDLE_OK);
    return memory_region_content(r);
}

Test(memory_pool, one_region_is_kept_ahead)
{
    memory_region_t *first = take_in_turn(RIG_BYTES), *second = NULL;
    settle();
    cr_assert_eq(pool_count(p).regions, 2);
    seal(first, 1);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &second, NULL), HEDDLE_OK, "at once");
    settle();
    seal(second, 2);
    pool_drop(p, first);
    settle();
    for (uint64_t version = 3; version < 20; version++) {
        memory_region_t *r = NULL;
        cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &r, NULL), HEDDLE_OK);
        seal(r, version);
        pool_drop(p, second);
        second = r;
        settle();
    }
    cr_assert_leq(pool_count(p).regions, 3);
    cr_assert_eq(pool_count(p).in_use, 1);
}

/* Each look is two system calls, in a loop that heartbeats wait for. */
Test(memory_pool, a_step_asks_once_of_each_region_whether_it_is_free)
{
    uint64_t due_us = now_us;
    memory_region_t *wanted = take(RIG_BYTES), *free_ones[3];
    for (int i = 0; i < 3; i++) free_ones[i] = take(RIG_BYTES);
    seal(wanted, 1);
    for (int i = 0; i < 3; i++) pool_drop(p, free_ones[i]);
    for (int step = 0; due_us <= now_us || step == 0; step++) {
        uint32_t regions = pool_count(p).regions;
        asked_count = 0;
        due_us = pool_work(p, now_us);
        cr_assert_leq(asked_count, regions, "step %d", step);
    }
    cr_assert_eq(asked_count, 3, "and it does ask");
}

/* So the second version costs its caller no memory that is made. */
Test(memory_pool, after_the_first_version_there_is_one_for_the_second)
{
    memory_region_t *first = take(RIG_BYTES), *second = NULL;
    seal(first, 1);
    settle();
    cr_assert_eq(pool_count(p).regions, 2);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &second, NULL), HEDDLE_OK, "at once");
    cr_assert_neq(second, first);
    seal(second, 2);
    settle();
    cr_assert_eq(pool_count(p).regions, 3);
}

/* A command reads one directory into memory of its own, and ends, or stays to serve that version. The memory of
 * two would be missing for others of the host. */
Test(memory_pool, a_process_that_publishes_once_needs_no_region_ahead)
{
    memory_region_t *own = rig_region(RIG_BYTES), *next = rig_region(RIG_BYTES);
    rig_publish(own, 3);
    cr_assert_eq(pool_adopt(p, own, NULL), HEDDLE_OK);
    cr_assert_eq(settle(), CLOCK_NEVER);
    cr_assert_eq(pool_count(p).regions, 1);
    rig_publish(next, 4);
    cr_assert_eq(pool_adopt(p, next, NULL), HEDDLE_OK);
    settle();
    cr_assert_eq(pool_count(p).regions, 3, "it publishes again");
}

/* A publisher that was restarted: the broker knows how large its versions are. */
Test(memory_pool, a_version_that_is_expected_finds_its_region)
{
    memory_region_t *r = NULL;
    pool_expect(p, RIG_BYTES);
    settle();
    cr_assert_eq(pool_count(p).regions, 2);
    now_us += 2 * POOL_SURPLUS_US;
    settle();
    cr_assert_eq(pool_count(p).regions, 2, "however long it takes to come");
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &r, NULL), HEDDLE_OK, "at once");
    seal(r, 1);
    settle();
    cr_assert_eq(pool_count(p).regions, 2, "with the one for the next version already there");
    pool_drop(p, r);
    pool_expect(p, 8 * RIG_BYTES);
    settle();
    cr_assert_eq(pool_count(p).regions, 2, "later nothing is expected");
}

Test(memory_pool, memory_that_was_made_elsewhere_is_not_expected_any_more)
{
    pool_expect(p, RIG_BYTES);
    memory_region_t *own = rig_region(RIG_BYTES);
    rig_publish(own, 3);
    cr_assert_eq(pool_adopt(p, own, NULL), HEDDLE_OK);
    settle();
    cr_assert_eq(pool_count(p).regions, 1);
}

/* A reader that keeps an old version costs a region and no time. */
Test(memory_pool, a_reader_of_an_old_version_is_not_waited_for)
{
    memory_region_t *r = take_in_turn(RIG_BYTES), *next;
    content_id_t id = seal(r, 1);
    hold_t *h = rig_hold(r, &id);
    settle();
    pool_drop(p, r);
    cr_assert_eq(pool_count(p).lingering, 1);
    for (uint64_t version = 2; version < 9; version++) {
        cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &next, NULL), HEDDLE_OK);
        cr_assert_neq(next, r);
        seal(next, version);
        settle();
        pool_drop(p, next);
    }
    cr_assert(rig_is_whole(h->base, 1, h->header.bytes));
    hold_release(h);
    cr_assert_eq(pool_count(p).lingering, 0);
    hold_destroy(&h);
}

/* A region that was held once, and is free; another free one is behind it. */
static memory_region_t *held_once(hold_t **ret_hold, content_id_t *ret_id)
{
    memory_region_t *r = take(RIG_BYTES);
    *ret_id = seal(r, 1);
    *ret_hold = rig_hold(r, ret_id);
    hold_release(*ret_hold);
    settle();
    cr_assert_eq(pool_count(p).regions, 2);
    pool_drop(p, r);
    settle();
    return r;
}

/* In the other order the holder is refused (memory_faults.c). */
Test(memory_pool, a_holder_that_comes_between_the_look_and_the_lock_is_first)
{
    memory_region_t *got = NULL, *r = held_once(&comer.hold, &comer.id);
    comer.looks = 2; /* one for the guard, one for the taker */
    comer.region = r;
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &got, NULL), HEDDLE_OK);
    cr_assert(comer.looks <= 0 && got != r && memory_region_is_held(r));
    memset(got->base, 2, got->bytes);
    cr_assert(rig_is_whole(comer.hold->base, 1, comer.hold->header.bytes));
    hold_destroy(&comer.hold);
}

/* Nor does it get anything: whatever it writes, no version has it. */
Test(memory_pool, a_foreign_process_that_keeps_the_lock_costs_a_region_and_no_time)
{
    hold_t *h = NULL;
    content_id_t id;
    memory_region_t *got = NULL, *r = held_once(&h, &id);
    int foreign = rig_open(r->file.fd, O_RDWR);
    cr_assert_eq(file_lock(foreign, F_WRLCK), 0);
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_ERR_NOT_FOUND, "and is fetched");
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &got, NULL), HEDDLE_OK);
    cr_assert_neq(got, r);
    pool_drop(p, got);
    close(foreign);
    cr_assert_eq(take(RIG_BYTES), r);
    hold_destroy(&h);
}

Test(memory_pool, beyond_its_limit_it_fails_at_once_and_names_the_holder)
{
    heddle_error_t e;
    memory_region_t *r, *written[MOST];
    int ready[2], fd, own = -1;
    char byte;
    cr_assert_eq(pipe(ready), 0);
    for (uint32_t i = 0; i < MOST; i++) seal(written[i] = take(RIG_BYTES), i + 1);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &r, &e), HEDDLE_ERR_NO_SLOT);
    cr_assert(strstr(e.message, "all 6 regions of shared memory are in use"), "%s", e.message);
    cr_assert(strstr(e.found, "each is being written, or has a version that is wanted"), "%s", e.found);
    cr_assert(e.expected[0] && e.hint[0]);
    content_id_t id = memory_region_content(written[3]);
    cr_assert_eq(memory_region_hand_over(written[3], &fd, NULL), HEDDLE_OK);
    cr_assert_eq(hold_open(fd, &id, &own, NULL), HEDDLE_OK);
    pid_t reader = fork();
    if (reader == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, "engine");
        (void)!write(ready[1], "x", 1);
        for (;;) pause();
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(own);
    pool_drop(p, written[3]);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &r, &e), HEDDLE_ERR_NO_SLOT);
    cr_assert(strstr(e.found, "held by engine (pid ") && e.hint[0], "%s", e.found);
    cr_assert(settle() > now_us, "and no more are made in the background");
    cr_assert_eq(pool_count(p).regions, MOST);
    rig_reap(reader, SIGKILL);
    cr_assert_eq(take(RIG_BYTES), written[3]);
}

Test(memory_pool, what_is_too_much_goes_after_a_minute)
{
    memory_region_t *r[3];
    for (int i = 0; i < 3; i++) seal(r[i] = take(RIG_BYTES), 1);
    settle();
    cr_assert_eq(pool_count(p).regions, 4);
    for (int i = 0; i < 2; i++) pool_drop(p, r[i]);
    cr_assert_eq(settle(), now_us + POOL_SURPLUS_US);
    now_us += POOL_SURPLUS_US - 1;
    settle();
    cr_assert_eq(pool_count(p).regions, 4);
    for (int i = 0; i < 4; i++) {
        now_us += POOL_SURPLUS_US;
        settle();
    }
    cr_assert_eq(pool_count(p).regions, 2, "one is in use, and one is kept ahead of it");
    cr_assert_eq(left, 2);
    cr_assert_eq(settle(), CLOCK_NEVER);
}

Test(memory_pool, where_nothing_is_in_use_nothing_is_kept_ahead)
{
    memory_region_t *r[2];
    for (int i = 0; i < 2; i++) seal(r[i] = take(RIG_BYTES), 1);
    settle();
    for (int i = 0; i < 2; i++) pool_drop(p, r[i]);
    cr_assert_eq(settle(), now_us + POOL_SURPLUS_US);
    now_us += POOL_SURPLUS_US;
    cr_assert_eq(settle(), CLOCK_NEVER);
    cr_assert_eq(pool_count(p).regions, 0);
    cr_assert_eq(left, 3);
}

Test(memory_pool, sizes_change)
{
    memory_region_t *small = take(RIG_BYTES), *large;
    seal(small, 1);
    settle();
    large = take(4 * MEMORY_STEP_BYTES);
    cr_assert_geq(large->bytes, 4 * MEMORY_STEP_BYTES);
    seal(large, 2);
    settle();
    pool_drop(p, small);
    for (int i = 0; i < 8; i++) {
        now_us += POOL_SURPLUS_US;
        settle();
    }
    cr_assert_eq(pool_count(p).regions, 2, "one in use, and one ahead of its size");
    pool_drop(p, large);
    memory_region_t *next = take(RIG_BYTES);
    seal(next, 3);
    for (int i = 0; i < 8; i++) {
        now_us += POOL_SURPLUS_US;
        settle();
    }
    cr_assert_leq(pool_count(p).bytes, next->bytes + 2 * RIG_BYTES, "those that are far too large went");
}

Test(memory_pool, without_memory_nothing_is_made_and_one_ahead_is_tried_again)
{
    heddle_error_t e;
    memory_region_t *r = NULL;
    has_memory = false;
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &r, &e), HEDDLE_ERR_NO_MEMORY);
    cr_assert(asked_for == RIG_BYTES && strstr(e.message, "no memory for 65536 bytes"), "%s", e.message);
    has_memory = true;
    r = take_in_turn(RIG_BYTES);
    has_memory = false;
    cr_assert_eq(settle(), now_us + POOL_RETRY_US);
    cr_assert_eq(pool_count(p).regions, 1);
    has_memory = true;
    now_us += POOL_RETRY_US;
    settle();
    cr_assert_eq(pool_count(p).regions, 2);
}

Test(memory_pool, of_a_large_region_it_is_asked_again_whether_there_is_memory)
{
    memory_region_t *r = NULL;
    heddle_error_t e;
    const size_t bytes = POOL_ASK_BYTES + MEMORY_STEP_BYTES;
    size_t steps = 0;
    int rc;
    while ((rc = pool_take(p, &now_us, bytes, &r, &e)) == HEDDLE_ERR_AGAIN &&
           ++steps < POOL_ASK_BYTES / MEMORY_STEP_BYTES) {}
    cr_assert_eq(rc, HEDDLE_ERR_AGAIN);
    has_memory = false;
    cr_assert_eq(pool_take(p, &now_us, bytes, &r, &e), HEDDLE_ERR_NO_MEMORY);
    cr_assert_eq(pool_count(p).bytes, POOL_ASK_BYTES + asked_for + LIMIT_PAGE_BYTES, "it is to go");
    has_memory = true;
    settle();
    cr_assert_eq(pool_count(p).bytes, 0);
}

Test(memory_pool, a_region_has_a_mapping_for_readers)
{
    memory_region_t *r = take(RIG_BYTES);
    seal(r, 6);
    cr_assert(r->view && rig_is_whole(r->view, 6, r->bytes));
}

Test(memory_pool, what_is_wanted_is_guarded_and_what_is_free_may_be_written)
{
    memory_region_t *r = take(RIG_BYTES);
    settle();
    cr_assert_eq(r->guarded_bytes, 0, "it is being written");
    seal(r, 1);
    settle();
    cr_assert_eq(r->guarded_bytes, r->mapped_bytes);
    pool_drop(p, r);
    settle();
    cr_assert_eq(r->guarded_bytes, 0);
}

/* A write that is under way would fault. */
Test(memory_pool, the_guard_waits_for_the_last_write)
{
    memory_region_t *r = take(RIG_BYTES);
    is_quiet = false;
    seal(r, 1);
    cr_assert_leq(settle(), now_us + POOL_RETRY_US);
    cr_assert_eq(r->guarded_bytes, 0);
    is_quiet = true;
    now_us += POOL_RETRY_US;
    settle();
    cr_assert_eq(r->guarded_bytes, r->mapped_bytes);
}

/* A step would stop the threads that fill memory. */
Test(memory_pool, while_one_is_written_no_guard_changes)
{
    memory_region_t *a = take(RIG_BYTES), *b = take(RIG_BYTES);
    seal(a, 1);
    cr_assert_leq(settle(), now_us + POOL_RETRY_US);
    cr_assert_eq(a->guarded_bytes, 0);
    seal(b, 2);
    now_us += POOL_RETRY_US;
    settle();
    cr_assert(a->guarded_bytes == a->mapped_bytes && b->guarded_bytes == b->mapped_bytes);
    memory_region_t *c = take(RIG_BYTES);
    pool_drop(p, a);
    settle();
    cr_assert_neq(a->guarded_bytes, 0);
    pool_drop(p, c);
    now_us += POOL_RETRY_US;
    settle();
    cr_assert_eq(a->guarded_bytes, 0);
}

/* A publication may stay open for minutes, and a stray write is then a fault all the same. */
Test(memory_pool, a_guard_waits_for_what_is_written_for_a_second_at_most)
{
    memory_region_t *a = take(RIG_BYTES), *b = take(RIG_BYTES);
    seal(a, 1);
    uint64_t due_us = now_us + POOL_RETRY_US;
    cr_assert_eq(settle(), due_us);
    now_us += POOL_RETRY_US / 2;
    cr_assert_eq(settle(), due_us, "a look between does not put it off");
    cr_assert_eq(a->guarded_bytes, 0);
    now_us = due_us;
    settle();
    cr_assert_eq(a->guarded_bytes, a->mapped_bytes);
    cr_assert(b->state == REGION_WRITING && b->guarded_bytes == 0);
    seal(b, 2);
    take(RIG_BYTES);
    cr_assert_eq(settle(), now_us + POOL_RETRY_US, "the next one waits as long");
    cr_assert_eq(b->guarded_bytes, 0);
    now_us += POOL_RETRY_US;
    settle();
    cr_assert_eq(b->guarded_bytes, b->mapped_bytes);
}

/* To take a guard back costs a millisecond, which a version would wait for. */
Test(memory_pool, of_two_free_ones_that_without_a_guard_is_taken)
{
    memory_region_t *a = take(RIG_BYTES), *b = take(RIG_BYTES);
    seal(a, 1);
    pool_drop(p, b);
    settle();
    pool_drop(p, a);
    cr_assert_eq(a->guarded_bytes, a->mapped_bytes, "it is taken back in the background");
    cr_assert_eq(take(RIG_BYTES)->guarded_bytes, 0);
    cr_assert_eq(a->guarded_bytes, a->mapped_bytes);
    while (take(RIG_BYTES) != a) {}
    cr_assert_eq(a->guarded_bytes, 0, "and where it is the last one, at once");
}

Test(memory_pool, lists_and_finds_what_it_has)
{
    region_name_t names[LIMIT_OFFERED];
    uint32_t count = 9;
    content_id_t id, none = {.generation = 0};
    cr_assert(pool_list(p, names, &count) && count == 0);
    memory_region_t *r = take(RIG_BYTES);
    cr_assert(pool_list(p, names, &count) && count == 1);
    region_name_t name = rig_name(r);
    cr_assert(!memcmp(&names[0], &name, sizeof name));
    cr_assert(!pool_list(p, names, &count) && count == 1, "told already");
    memcpy(none.identity, name.identity, sizeof name.identity);
    cr_assert_eq(pool_find(p, &none), r->file.fd, "to be mapped in advance, while it is written");
    none.identity[0] ^= 1;
    cr_assert_eq(pool_find(p, &none), HEDDLE_ERR_NOT_FOUND);
    id = memory_region_content(r);
    cr_assert_eq(pool_find(p, &id), HEDDLE_ERR_NOT_FOUND, "not sealed");
    id = seal(r, 1);
    cr_assert_eq(pool_find(p, &id), r->file.fd);
    pool_drop(p, r);
    cr_assert_eq(pool_find(p, &id), HEDDLE_ERR_NOT_FOUND, "not wanted any more");
}

Test(memory_pool, a_region_that_the_kernel_does_not_seal_is_there)
{
    memory_region_t *r = take(RIG_BYTES);
    cr_assert_eq(fcntl(r->file.fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
    content_id_t id = seal(r, 1);
    cr_assert_eq(pool_find(p, &id), HEDDLE_ERR_INTERNAL);
    pool_drop(p, r);
}

/* Its owner bounds its versions itself. */
Test(memory_pool, without_a_number_of_versions_there_are_as_many_as_are_taken)
{
    region_name_t names[LIMIT_OFFERED];
    uint32_t count = 0;
    pool_destroy(&p);
    cr_assert_eq(pool_new(&(pool_opts_t){.most = 0}, &p, NULL), HEDDLE_OK);
    for (uint32_t i = 0; i < LIMIT_OFFERED; i++) take(RIG_BYTES);
    memory_region_t *last = take(RIG_BYTES);
    content_id_t id = seal(last, 1);
    cr_assert_eq(settle(), CLOCK_NEVER, "none is made ahead");
    cr_assert_eq(pool_count(p).regions, LIMIT_OFFERED + 1);
    cr_assert(pool_list(p, names, &count) && count == LIMIT_OFFERED);
    cr_assert_eq(pool_find(p, &id), last->file.fd, "it can be held all the same");
}

static bool is_listed(const memory_region_t *r, const region_name_t names[LIMIT_OFFERED])
{
    region_name_t name = rig_name(r);
    for (uint32_t i = 0; i < LIMIT_OFFERED; i++)
        if (!memcmp(&names[i], &name, sizeof name)) return true;
    return false;
}

/* What is written now is what others will hold next. */
Test(memory_pool, of_many_regions_those_that_were_taken_last_are_listed)
{
    region_name_t names[LIMIT_OFFERED];
    memory_region_t *regions[LIMIT_OFFERED + 1];
    uint32_t count = 0;
    pool_destroy(&p);
    cr_assert_eq(pool_new(&(pool_opts_t){.most = 0}, &p, NULL), HEDDLE_OK);
    for (uint32_t i = 0; i <= LIMIT_OFFERED; i++) regions[i] = take(RIG_BYTES);
    cr_assert(pool_list(p, names, &count) && count == LIMIT_OFFERED);
    cr_assert(!is_listed(regions[0], names) && is_listed(regions[LIMIT_OFFERED], names));
    pool_drop(p, regions[0]);
    cr_assert_eq(take(RIG_BYTES), regions[0]);
    cr_assert(pool_list_is_new(p) && pool_list(p, names, &count) && count == LIMIT_OFFERED);
    cr_assert(is_listed(regions[0], names) && !is_listed(regions[1], names));
    pool_drop(p, regions[2]);
    cr_assert_eq(take(RIG_BYTES), regions[2]);
    cr_assert_not(pool_list_is_new(p), "it was listed already");
}

Test(memory_pool, a_small_version_does_not_take_the_memory_of_a_large_one)
{
    memory_region_t *large = take(4 * MEMORY_STEP_BYTES);
    pool_drop(p, large);
    cr_assert_neq(take(RIG_BYTES), large);
    cr_assert_eq(take(2 * MEMORY_STEP_BYTES), large);
}

/* Half of what it has beyond a step. */
Test(memory_pool, a_region_fits_from_half_of_its_bytes_less_a_step_on)
{
    memory_region_t *r = take(4 * MEMORY_STEP_BYTES);
    cr_assert_eq(r->bytes, 4 * MEMORY_STEP_BYTES);
    pool_drop(p, r);
    cr_assert_neq(take(3 * MEMORY_STEP_BYTES / 2 - 1), r, "too large by two bytes");
    cr_assert_eq(take(3 * MEMORY_STEP_BYTES / 2), r);
}

Test(memory_pool, a_large_version_that_failed_leaves_no_memory)
{
    seal(take(RIG_BYTES), 1);
    pool_drop(p, take(8 * MEMORY_STEP_BYTES));
    settle();
    cr_assert_leq(pool_count(p).bytes, 2 * RIG_BYTES, "one in use, and one ahead of its size");
}

/* As one that a thread has read a directory into, while no broker was there yet. */
Test(memory_pool, a_region_made_elsewhere_is_taken_over)
{
    heddle_error_t e;
    memory_region_t *own = rig_region(RIG_BYTES), *more = rig_region(RIG_BYTES);
    content_id_t id = rig_publish(own, 3);
    cr_assert_eq(pool_adopt(p, own, &e), HEDDLE_OK);
    cr_assert_eq(pool_find(p, &id), own->file.fd);
    cr_assert_eq(settle(), CLOCK_NEVER, "no more than one is in turn");
    rig_publish(more, 4);
    cr_assert_eq(pool_adopt(p, more, &e), HEDDLE_OK);
    settle();
    cr_assert_eq(pool_count(p).bytes, 3 * RIG_BYTES, "one ahead of their size");
    pool_drop(p, more);
    for (uint32_t i = 1; i < MOST; i++) seal(take(RIG_BYTES), i);
    more = rig_region(RIG_BYTES);
    cr_assert_eq(pool_adopt(p, more, &e), HEDDLE_ERR_NO_SLOT);
    memory_region_destroy(&more);
    pool_drop(p, own);
    cr_assert_eq(take(RIG_BYTES), own);
}

/* One that is made larger than was asked for first takes the place of a smaller one that is free. */
Test(memory_pool, a_small_one_gives_way_at_the_limit)
{
    memory_region_t *r[MOST];
    for (uint32_t i = 0; i < MOST; i++) seal(r[i] = take(RIG_BYTES), 1);
    pool_drop(p, r[2]);
    memory_region_t *large = take(2 * RIG_BYTES);
    cr_assert_eq(large->bytes, 2 * RIG_BYTES);
    cr_assert_eq(pool_count(p).regions, MOST);
}

/* A receive that was given up may still be open in a region that is not wanted any more: it would write into
 * the next version, or where nothing is mapped. */
Test(memory_pool, a_region_in_which_something_is_open_is_neither_written_nor_given_back)
{
    heddle_error_t e;
    memory_region_t *r[MOST], *next = NULL;
    for (uint32_t i = 0; i < MOST; i++) seal(r[i] = take(RIG_BYTES), 1);
    used = r[0];
    pool_drop(p, r[0]);
    cr_assert_eq(pool_count(p).lingering, 1);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &next, &e), HEDDLE_ERR_NO_SLOT);
    cr_assert(strstr(e.found, "still on their way to a worker"), "%s", e.found);
    cr_assert_eq(pool_take(p, &now_us, 2 * RIG_BYTES, &next, &e), HEDDLE_ERR_NO_SLOT,
                 "not in the way of a larger one");
    for (uint32_t i = 1; i < MOST; i++) pool_drop(p, r[i]);
    for (uint32_t i = 0; i < MOST + 2; i++) {
        now_us += POOL_SURPLUS_US;
        settle();
    }
    cr_assert(pool_count(p).regions == 2 && left == MOST - 2, "it, and one ahead");
    pool_destroy(&p);
    cr_assert_eq(left, MOST - 1);
    cr_assert_eq(r[0]->mapped_bytes, r[0]->bytes + LIMIT_PAGE_BYTES, "it outlives its pool");
    memset(r[0]->base, 2, RIG_BYTES); /* as a late receive does */
    memory_region_destroy(&r[0]);
}

Test(memory_pool, what_is_not_open_any_more_is_written_again)
{
    memory_region_t *r = take(RIG_BYTES);
    seal(r, 1);
    used = r;
    pool_drop(p, r);
    cr_assert_neq(take(RIG_BYTES), r);
    used = NULL;
    cr_assert_eq(take(RIG_BYTES), r);
}

/* As when an adapter has grown: what it had is as much as the machine can give. */
Test(memory_pool, where_there_is_no_memory_for_both_the_smaller_one_goes_first)
{
    const size_t small = 4 * MEMORY_STEP_BYTES, large = 6 * MEMORY_STEP_BYTES;
    memory_region_t *wanted = take_in_turn(small), *r;
    seal(wanted, 1);
    settle();
    cr_assert_eq(pool_count(p).regions, 2, "and one ahead");
    room = small + large;
    r = take(large);
    cr_assert_eq(left, 1, "the one ahead");
    cr_assert(wanted->state == REGION_SEALED && rig_is_whole(wanted->base, 1, small));
    cr_assert(pool_count(p).bytes <= room && r->bytes == large);
    cr_assert_eq(try_to_take(large), HEDDLE_ERR_NO_MEMORY, "what is wanted stays");
    cr_assert_eq(left, 1);
}

/* Memory that runs out while the large one is made: no step of it is lost. */
Test(memory_pool, a_smaller_one_goes_also_when_the_larger_one_is_half_made)
{
    const size_t small = 4 * MEMORY_STEP_BYTES, large = POOL_ASK_BYTES + small;
    memory_region_t *r = take(small), *next = NULL;
    pool_drop(p, r);
    for (size_t i = 0; i < POOL_ASK_BYTES / MEMORY_STEP_BYTES; i++)
        cr_assert_eq(pool_take(p, &now_us, large, &next, NULL), HEDDLE_ERR_AGAIN);
    cr_assert_eq(pool_count(p).bytes, POOL_ASK_BYTES + small);
    room = pool_count(p).bytes;
    for (size_t i = 0; left == 0; i++) {
        cr_assert_lt(i, 3);
        cr_assert_eq(pool_take(p, &now_us, large, &next, NULL), HEDDLE_ERR_AGAIN);
        cr_assert_geq(pool_count(p).bytes, POOL_ASK_BYTES, "it is not begun anew");
    }
    cr_assert_eq(take(large)->bytes, large);
}

/* What cannot be finished is given back step by step, as all that leaves. */
Test(memory_pool, what_was_made_in_vain_goes_in_the_background)
{
    memory_region_t *r = NULL;
    const size_t bytes = POOL_ASK_BYTES + MEMORY_STEP_BYTES;
    for (size_t i = 0; i < POOL_ASK_BYTES / MEMORY_STEP_BYTES; i++)
        cr_assert_eq(pool_take(p, &now_us, bytes, &r, NULL), HEDDLE_ERR_AGAIN);
    has_memory = false;
    cr_assert_eq(pool_take(p, &now_us, bytes, &r, NULL), HEDDLE_ERR_NO_MEMORY);
    cr_assert_eq(pool_work(p, now_us), now_us, "there is more to do");
    has_memory = true;
    cr_assert_eq(take(RIG_BYTES)->bytes, RIG_BYTES, "meanwhile others are made");
    settle();
}

Test(memory_pool, a_region_has_room_for_a_version_that_is_a_little_larger)
{
    const size_t sizes[] = {1, RIG_BYTES + 1, (5 << 20) + 1, (80 << 20) + 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memory_region_t *r = take(sizes[i]);
        size_t more = r->bytes - sizes[i];
        cr_assert(more < sizes[i] / 16 || more < POOL_ROUND_BYTES, "%zu: %zu", sizes[i], more);
        pool_drop(p, r);
        cr_assert_eq(take(sizes[i] + LIMIT_PAGE_BYTES), r);
        pool_drop(p, r);
    }
    memory_region_t *r = NULL;
    cr_assert_eq(pool_take(p, &now_us, SIZE_MAX, &r, NULL), HEDDLE_ERR_NO_MEMORY);
}

/* One that was given up is large: a small one does not wait for it. */
Test(memory_pool, a_small_one_does_not_wait_for_a_large_one_that_is_made)
{
    memory_region_t *r = NULL;
    for (int i = 0; i < 3; i++)
        cr_assert_eq(pool_take(p, &now_us, 100 * MEMORY_STEP_BYTES, &r, NULL), HEDDLE_ERR_AGAIN);
    int steps = 0;
    while (pool_take(p, &now_us, RIG_BYTES, &r, NULL) == HEDDLE_ERR_AGAIN) cr_assert_lt(++steps, 3);
    cr_assert_eq(r->bytes, RIG_BYTES);
    settle();
    cr_assert_eq(pool_count(p).bytes, 2 * RIG_BYTES, "with one ahead of its size");
}

/* A larger one is asked for while a smaller one is made, and again before that one is gone. */
Test(memory_pool, a_size_that_grows_while_it_is_made)
{
    memory_region_t *r = NULL;
    for (size_t steps = 3; steps < 6; steps++)
        for (int i = 0; i < 2; i++)
            cr_assert_eq(pool_take(p, &now_us, steps * MEMORY_STEP_BYTES, &r, NULL), HEDDLE_ERR_AGAIN);
    cr_assert_eq(take(6 * MEMORY_STEP_BYTES)->bytes, 6 * MEMORY_STEP_BYTES);
    settle();
    cr_assert_leq(pool_count(p).regions, 2);
}

/* Two adapters of a worker, by turns: neither gives up what is made for the other one. */
Test(memory_pool, takers_of_very_different_sizes_are_both_served)
{
    const size_t sizes[2] = {40 * MEMORY_STEP_BYTES, 4 * MEMORY_STEP_BYTES};
    memory_region_t *got[2] = {NULL};
    for (int turn = 0; !got[0]; turn++) {
        cr_assert_lt(turn, 41, "each has a step a turn");
        for (int i = 0; i < 2; i++) {
            if (got[i]) continue;
            int rc = pool_take(p, &others[i], sizes[i], &got[i], NULL);
            cr_assert(rc == HEDDLE_OK || rc == HEDDLE_ERR_AGAIN);
        }
        cr_assert(turn < 4 || got[1], "the small one does not wait for the large one");
    }
    cr_assert(got[0]->bytes >= sizes[0] && got[1]->bytes == sizes[1]);
    cr_assert_eq(pool_count(p).regions, 2);
}

Test(memory_pool, what_a_taker_gave_up_serves_another_one)
{
    memory_region_t *r = NULL;
    const size_t bytes = 10 * MEMORY_STEP_BYTES;
    for (int i = 0; i < 9; i++) cr_assert_eq(pool_take(p, &others[0], bytes, &r, NULL), HEDDLE_ERR_AGAIN);
    cr_assert_eq(pool_take(p, &others[1], bytes, &r, NULL), HEDDLE_ERR_AGAIN, "one of its own");
    cr_assert_eq(pool_count(p).bytes, bytes);
    pool_give_up(p, &others[0]);
    pool_give_up(p, &others[1]);
    cr_assert_eq(pool_take(p, &others[1], 9 * MEMORY_STEP_BYTES, &r, NULL), HEDDLE_ERR_AGAIN);
    settle();
    cr_assert_eq(pool_take(p, &others[0], bytes, &r, NULL), HEDDLE_OK);
    cr_assert_eq(pool_count(p).bytes, bytes + 2 * MEMORY_STEP_BYTES, "the other one is not done yet");
}

Test(memory_pool, what_is_half_made_and_what_is_half_given_back_goes_with_the_pool)
{
    memory_region_t *r = NULL;
    const size_t bytes = 10 * MEMORY_STEP_BYTES;
    int before = rig_descriptors();
    take(RIG_BYTES);
    for (int i = 0; i < 3; i++) cr_assert_eq(pool_take(p, &others[0], bytes, &r, NULL), HEDDLE_ERR_AGAIN);
    pool_give_up(p, &others[0]);
    cr_assert_eq(pool_work(p, now_us), now_us, "it is far too large for what is in use, and leaves");
    cr_assert_eq(pool_take(p, &others[1], bytes, &r, NULL), HEDDLE_ERR_AGAIN);
    cr_assert_geq(rig_descriptors(), before + 3);
    pool_destroy(&p);
    cr_assert_eq(rig_descriptors(), before);
}

/* It waits for the memory that is made for it, and gets what another one has given back meanwhile. */
Test(memory_pool, what_was_half_made_does_not_stay_with_a_taker_that_has_another_one)
{
    const size_t bytes = 10 * MEMORY_STEP_BYTES;
    memory_region_t *r = take(bytes), *got = NULL;
    for (int i = 0; i < 3; i++) cr_assert_eq(pool_take(p, &others[0], bytes, &got, NULL), HEDDLE_ERR_AGAIN);
    pool_drop(p, r);
    cr_assert_eq(pool_take(p, &others[0], bytes, &got, NULL), HEDDLE_OK);
    cr_assert_eq(got, r);
    settle();
    cr_assert_eq(pool_count(p).bytes, 2 * bytes, "it is the one ahead now");
}

/* The limit counts what is made for each. What one gave up gives way. */
Test(memory_pool, what_is_made_counts_for_the_limit)
{
    memory_region_t *r = NULL;
    for (uint32_t i = 2; i < MOST; i++) seal(take(RIG_BYTES), i);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pool_take(p, &others[i], (40 >> i * 3) * MEMORY_STEP_BYTES, &r, NULL), HEDDLE_ERR_AGAIN);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &r, NULL), HEDDLE_ERR_NO_SLOT);
    pool_give_up(p, &others[0]);
    cr_assert_eq(try_to_take(RIG_BYTES), HEDDLE_OK);
    cr_assert_eq(pool_count(p).regions, MOST - 1);
}

/* No event says that another process has let go. */
Test(memory_pool, what_lingers_is_looked_at_again)
{
    memory_region_t *r[3];
    for (int i = 0; i < 3; i++) seal(r[i] = take(RIG_BYTES), 1);
    content_id_t id = memory_region_content(r[0]);
    hold_t *h = rig_hold(r[0], &id);
    settle();
    now_us += POOL_SURPLUS_US;
    for (int i = 0; i < 3; i++) pool_drop(p, r[i]);
    for (int i = 0; i < 4; i++, now_us += POOL_SURPLUS_US) settle();
    cr_assert(pool_count(p).lingering == 1 && pool_count(p).regions == 2);
    cr_assert_eq(settle(), now_us + POOL_RETRY_US);
    hold_release(h);
    uint64_t due_us = settle();
    cr_assert_eq(due_us, now_us + POOL_SURPLUS_US, "it is too much from now on");
    now_us = due_us;
    settle();
    cr_assert_eq(pool_count(p).regions, 0);
    cr_assert_eq(settle(), CLOCK_NEVER);
    hold_destroy(&h);
}

/* As of workers that let go of a version while the next one is written. */
Test(memory_pool, what_lingers_may_be_the_region_ahead_in_a_moment)
{
    memory_region_t *r = take_in_turn(RIG_BYTES), *next;
    content_id_t id = seal(r, 1);
    settle();
    hold_t *h = rig_hold(r, &id);
    pool_drop(p, r);
    seal(next = take(RIG_BYTES), 2);
    cr_assert_eq(settle(), now_us + POOL_LET_GO_US);
    now_us += POOL_LET_GO_US - 1;
    settle();
    cr_assert_eq(pool_count(p).regions, 2);
    hold_release(h);
    now_us++;
    settle();
    cr_assert_eq(pool_count(p).regions, 2, "it was let go");
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    settle();
    now_us += POOL_LET_GO_US - 1;
    settle();
    pool_drop(p, next);
    cr_assert_eq(take(RIG_BYTES), next);
    settle();
    now_us++;
    settle();
    cr_assert_eq(pool_count(p).regions, 2, "since one was taken");
    now_us += POOL_LET_GO_US;
    settle();
    cr_assert_eq(pool_count(p).regions, 3, "it is not let go");
    hold_release(h);
    hold_destroy(&h);
}

/* Of so many the next version may need one before what lingers is let go. */
Test(memory_pool, up_to_the_usual_number_what_lingers_is_not_waited_for)
{
    memory_region_t *r = take_in_turn(RIG_BYTES);
    content_id_t id = seal(r, 1);
    pool_usual(p, 3);
    settle();
    hold_t *h = rig_hold(r, &id);
    pool_drop(p, r);
    seal(take(RIG_BYTES), 2);
    settle();
    cr_assert_eq(pool_count(p).regions, 3);
    seal(take(RIG_BYTES), 3);
    settle();
    cr_assert_eq(pool_count(p).regions, 3);
    hold_release(h);
    hold_destroy(&h);
}

/* As at a worker beside others that hang: it goes on while there is memory, and has it back when they end. */
Test(memory_pool, without_a_number_of_versions_memory_bounds_what_others_hold)
{
    enum { HELD = LIMIT_OFFERED + 8 };
    hold_t *held[HELD];
    memory_region_t *third = NULL, *again;
    pool_destroy(&p);
    cr_assert_eq(pool_new(&(pool_opts_t){.may_make = may_make, .self = &has_memory}, &p, NULL), HEDDLE_OK);
    for (uint32_t i = 0; i < HELD; i++) {
        memory_region_t *r = take(RIG_BYTES);
        content_id_t id = seal(r, i + 1);
        held[i] = rig_hold(r, &id);
        if (i == 2) third = r;
        pool_drop(p, r);
    }
    cr_assert_eq(pool_count(p).lingering, HELD);
    room = pool_count(p).bytes;
    cr_assert_eq(try_to_take(RIG_BYTES), HEDDLE_ERR_NO_MEMORY);
    hold_release(held[2]);
    cr_assert_eq(again = take(RIG_BYTES), third);
    pool_drop(p, again);
    for (uint32_t i = 0; i < HELD; i++) hold_destroy(&held[i]);
    for (int i = 0; i < 2; i++, now_us += POOL_SURPLUS_US) settle();
    cr_assert_eq(pool_count(p).regions, 0);
}

/* A broker that keeps many versions leaves room for readers that keep others, too. */
Test(memory_pool, twice_the_usual_number_is_the_limit_where_that_is_more)
{
    heddle_error_t e;
    memory_region_t *r, *written[2 * MOST];
    pool_usual(p, MOST);
    for (uint32_t i = 0; i < 2 * MOST; i++) seal(written[i] = take(RIG_BYTES), i + 1);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &r, &e), HEDDLE_ERR_NO_SLOT);
    cr_assert(strstr(e.message, "all 12 regions of shared memory are in use"), "%s", e.message);
    for (uint32_t i = 0; i < 2 * MOST; i++) pool_drop(p, written[i]);
    pool_usual(p, 2);
    settle();
    cr_assert_leq(pool_count(p).regions, MOST, "what is too much then goes at once");
}

/* Each is active before the next one begins; its workers let go of the one that is kept no more while that is
 * written, and the background has its turn just then. */
Test(memory_pool, versions_in_turn_have_three_regions_more_than_are_kept)
{
    enum { KEEP = MOST - 4 };
    hold_t *held[KEEP + 2] = {NULL};
    memory_region_t *active = NULL;
    pool_usual(p, KEEP + 3);
    for (uint64_t version = 1; version <= 200; version++) {
        hold_t **h = &held[version % (KEEP + 2)]; /* of the version that is retired */
        memory_region_t *r = take(RIG_BYTES);
        settle();
        if (*h) hold_release(*h);
        hold_destroy(h);
        settle();
        content_id_t id = seal(r, version);
        *h = rig_hold(r, &id);
        if (active) pool_drop(p, active);
        active = r;
        now_us += POOL_LET_GO_US / 4;
        settle();
        cr_assert_leq(pool_count(p).regions, KEEP + 3, "%d", (int)version);
    }
    cr_assert_eq(pool_count(p).regions, KEEP + 3);
    for (int i = 0; i < KEEP + 2; i++) hold_destroy(&held[i]);
}

/* Whatever was given back before. */
Test(memory_pool, the_oldest_one_that_lingers_is_named)
{
    heddle_error_t e;
    memory_region_t *r[MOST + 1], *next = NULL;
    for (uint32_t i = 0; i < MOST; i++) seal(r[i] = take(RIG_BYTES), 1);
    pool_drop(p, r[0]);
    seal(r[MOST] = take(2 * RIG_BYTES), 2); /* in whose way the first one was */
    used = r[1];
    pool_drop(p, r[1]);
    content_id_t id = memory_region_content(r[5]);
    hold_t *h = rig_hold(r[5], &id);
    pool_drop(p, r[5]);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &next, &e), HEDDLE_ERR_NO_SLOT);
    cr_assert(strstr(e.found, "still on their way to a worker"), "%s", e.found);
    used = NULL;
    next = take(RIG_BYTES);
    cr_assert_eq(next, r[1]);
    seal(next, 3);
    used = next; /* taken last, it is the youngest */
    pool_drop(p, next);
    cr_assert_eq(pool_take(p, &now_us, RIG_BYTES, &next, &e), HEDDLE_ERR_NO_SLOT);
    cr_assert(strstr(e.found, "is held by"), "%s", e.found);
    hold_destroy(&h);
}

/* A step a call: milliseconds for a large one would stop the loop. */
Test(memory_pool, a_region_that_is_taken_over_waits_for_nothing_that_leaves)
{
    memory_region_t *r[MOST], *own = rig_region(RIG_BYTES);
    for (uint32_t i = 0; i < MOST; i++) seal(r[i] = take(4 * MEMORY_STEP_BYTES), 1);
    pool_drop(p, r[0]);
    rig_publish(own, 3);
    cr_assert_eq(pool_adopt(p, own, NULL), HEDDLE_OK);
    cr_assert_eq(pool_count(p).bytes, MOST * 4 * MEMORY_STEP_BYTES + RIG_BYTES, "nothing has gone yet");
    settle();
    cr_assert(pool_count(p).regions == MOST && left == 1);
}
