/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a member: registered once, parked with its last reference, and what outlives the end. */
#include "client/regions.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "memory/mappings.h"
#include "memory/offer.h"
#include "tests/unit/captured.h"
#include "tests/unit/other_thread.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 1 << 16 };

/* A transfer that counts what it was given. */
static int maps, unmaps, map_rc;
static const region_t *open_in; /* a receive is open in it */

static int map(transfer_t *t, region_t *r)
{
    (void)t;
    cr_assert_null(r->backend, "once");
    if (map_rc) return map_rc;
    r->backend = &maps;
    maps++;
    return HEDDLE_OK;
}

static void unmap(transfer_t *t, region_t *r)
{
    (void)t;
    cr_assert(r->backend == &maps && r != open_in);
    r->backend = NULL;
    unmaps++;
}

static bool idle(transfer_t *t, const region_t *r)
{
    (void)t;
    return r != open_in;
}

static const transfer_ops_t TRANSFER = {.map = map, .unmap = unmap, .idle = idle};
static uint64_t now_us = 1;
static uint64_t at(void *self)
{
    (void)self;
    return now_us;
}
static const clock_ops_t CLOCK = {.now_us = at};
static const node_io_t IO = {.tr = &TRANSFER, .clock = &CLOCK};
static regions_t *m;

static void set_up(void)
{
    cr_assert_eq(regions_new(&IO, &(regions_opts_t){.has_views = true}, &m), HEDDLE_OK);
}
static void tear_down(void) { regions_close(&m); }

TestSuite(regions, .init = set_up, .fini = tear_down);

static region_t *take(size_t bytes)
{
    region_t *r = NULL;
    heddle_error_t e;
    int rc;
    while ((rc = regions_take(m, &m, bytes, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    cr_assert(r->base == r->own->base && r->view == r->own->view && r->bytes >= bytes);
    cr_assert_eq(atomic_load(&r->refs), 1);
    return r;
}

/* Until nothing is left to do at this time. */
static void settle(void)
{
    for (int i = 0; regions_work(m, now_us); i++) cr_assert_lt(i, 1000);
}

Test(regions, the_environment_ends_the_guard)
{
    unsetenv("HEDDLE_GUARD");
    cr_assert(regions_are_guarded());
    setenv("HEDDLE_GUARD", "1", 1);
    cr_assert(regions_are_guarded());
    setenv("HEDDLE_GUARD", "0", 1);
    cr_assert_not(regions_are_guarded());
}

/* The write would end this process. */
Test(regions, where_a_receive_is_open_there_is_no_guard)
{
    digest_t manifest = {{1}};
    regions_close(&m);
    cr_assert_eq(regions_new(&IO, &(regions_opts_t){.has_views = true, .is_guarded = true}, &m), HEDDLE_OK);
    region_t *r = take(BYTES);
    cr_assert_eq(memory_region_seal(r->own, &manifest, BYTES, NULL), HEDDLE_OK);
    open_in = r;
    settle();
    cr_assert_eq(r->own->guarded_bytes, 0);
    open_in = NULL;
    now_us += POOL_RETRY_US;
    settle();
    cr_assert_eq(r->own->guarded_bytes, r->own->mapped_bytes);
    region_unref(&r);
    settle();
}

/* A reader may keep its version for long, and no step of the background comes any more. */
static void close_with_a_reader(bool is_guarded, bool is_sealed, bool is_open)
{
    digest_t manifest = {{1}};
    regions_close(&m);
    cr_assert_eq(regions_new(&IO, &(regions_opts_t){.has_views = true, .is_guarded = is_guarded}, &m),
                 HEDDLE_OK);
    region_t *r = take(BYTES), *late = r;
    if (is_sealed) cr_assert_eq(memory_region_seal(r->own, &manifest, BYTES, NULL), HEDDLE_OK);
    open_in = is_open ? r : NULL;
    regions_close(&m);
    bool is_to_be = is_guarded && is_sealed && !is_open;
    cr_assert_eq(r->own->guarded_bytes, is_to_be ? r->own->mapped_bytes : 0);
    region_unref(&r);
    if (!is_open) return;
    memory_region_destroy(&late->own); /* the leak is looked for otherwise */
    free(late);
}

Test(regions, what_is_read_after_the_end_is_guarded) { close_with_a_reader(true, true, false); }
Test(regions, nothing_is_guarded_at_the_end_that_was_not_before) { close_with_a_reader(false, true, false); }
Test(regions, what_is_not_complete_is_not_guarded_at_the_end) { close_with_a_reader(true, false, false); }
Test(regions, what_is_received_into_is_not_guarded_at_the_end) { close_with_a_reader(true, true, true); }

Test(regions, memory_is_registered_once_and_used_again)
{
    region_t *r = take(BYTES), *first = r;
    for (int i = 0; i < 20; i++) {
        region_unref(&r);
        r = take(BYTES);
        cr_assert_eq(r, first);
    }
    cr_assert(maps == 1 && unmaps == 0 && regions_count(m).regions == 1);
    region_unref(&r);
}

Test(regions, what_still_has_a_reference_is_not_written)
{
    region_t *r = take(BYTES), *share = region_ref(r), *sent = r;
    region_unref(&r);
    r = take(BYTES);
    cr_assert_neq(r, sent);
    region_unref(&share);
    share = take(BYTES);
    cr_assert_eq(share, sent);
    region_unref(&share);
    region_unref(&r);
}

Test(regions, memory_with_an_open_receive_is_not_written)
{
    region_t *r = take(BYTES), *next;
    open_in = r;
    const region_t *late = r;
    region_unref(&r);
    next = take(BYTES);
    cr_assert_neq(next, late);
    for (int i = 0; i < 3; i++, now_us += POOL_SURPLUS_US) settle();
    cr_assert_eq(unmaps, 0, "nor given back");
    open_in = NULL;
    r = take(BYTES);
    cr_assert_eq(r, late);
    region_unref(&r);
    region_unref(&next);
}

Test(regions, what_is_too_much_is_no_longer_registered)
{
    region_t *r[3];
    for (int i = 0; i < 3; i++) r[i] = take(BYTES);
    for (int i = 0; i < 3; i++) region_unref(&r[i]);
    cr_assert_eq(regions_deadline(m), 0, "there is something to look at");
    settle();
    cr_assert_eq(regions_deadline(m), now_us + POOL_SURPLUS_US);
    for (int i = 0; i < 3; i++) {
        now_us += POOL_SURPLUS_US;
        settle();
    }
    cr_assert(unmaps == 3 && regions_count(m).regions == 0);
    cr_assert_eq(regions_deadline(m), CLOCK_NEVER);
}

Test(regions, what_cannot_be_registered_is_an_error_and_stays_free)
{
    region_t *r = NULL;
    heddle_error_t e;
    int rc;
    map_rc = HEDDLE_ERR_NO_MEMORY;
    while ((rc = regions_take(m, &m, BYTES, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(rc, HEDDLE_ERR_NO_MEMORY);
    cr_assert(strstr(e.message, "a region of 65536 bytes cannot be registered"), "%s", e.message);
    cr_assert_eq(regions_count(m).in_use, 0);
    map_rc = 0;
    r = take(BYTES);
    cr_assert(maps == 1 && regions_count(m).regions == 1);
    region_unref(&r);
}

/* Without a place for it in the pool: it is registered no longer, and may be adopted later. */
Test(regions, what_is_not_adopted_stays_the_callers)
{
    regions_close(&m);
    cr_assert_eq(regions_new(&IO, &(regions_opts_t){.most = 1, .has_views = true}, &m), HEDDLE_OK);
    region_t *r = take(BYTES), *adopted = NULL;
    memory_region_t *own = NULL;
    cr_assert_eq(memory_region_new(BYTES, &own, NULL), HEDDLE_OK);
    while (memory_region_grow(own, NULL) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(memory_region_begin(own, NULL), HEDDLE_OK);
    cr_assert_eq(regions_adopt(m, own, &adopted, NULL), HEDDLE_ERR_NO_SLOT);
    cr_assert(!adopted && maps == 2 && unmaps == 1);
    region_unref(&r);
    cr_assert_eq(regions_adopt(m, own, &adopted, NULL), HEDDLE_OK);
    cr_assert(adopted->own == own && maps == 3);
    region_unref(&adopted);
    regions_close(&m);
    cr_assert_eq(maps, unmaps);
}

/* Its memory is for the version that is on its way, whether regions are offered to others or not. */
static void check_rest(void)
{
    region_t *r[2] = {take(BYTES), take(BYTES)};
    for (int i = 0; i < 2; i++) region_unref(&r[i]);
    settle();
    now_us = regions_deadline(m);
    regions_busy(m, now_us);
    cr_assert_eq(regions_deadline(m), now_us + REGIONS_REST_US);
    now_us += REGIONS_REST_US - 1;
    settle();
    cr_assert_eq(regions_count(m).regions, 2);
    regions_busy(m, now_us);
    now_us += REGIONS_REST_US - 1;
    settle();
    cr_assert_eq(regions_count(m).regions, 2);
    now_us++;
    settle();
    cr_assert_eq(regions_count(m).regions, 0);
}

/* Regions are offered under a name of this process; ended by end_sharing. */
static offer_t *begin_sharing(const char *what, char ret_name[32])
{
    offer_t *offer = NULL;
    snprintf(ret_name, 32, "%s-%d", what, getpid());
    offer_opts_t opts = {.name = ret_name, .pool = regions_pool(m)};
    cr_assert_eq(offer_new(&opts, &offer, NULL), HEDDLE_OK);
    regions_share(m, offer);
    return offer;
}

static void end_sharing(offer_t *offer)
{
    regions_share(m, NULL);
    offer_destroy(&offer);
}

Test(regions, the_background_waits_while_a_version_is_on_its_way) { check_rest(); }
Test(regions, so_it_does_where_regions_are_offered)
{
    char name[32];
    offer_t *offer = begin_sharing("regions", name);
    check_rest();
    end_sharing(offer);
}

/* As of a worker that waits for sources which are gone, and has nothing else to do. */
Test(regions, the_background_waits_no_longer_than_a_second)
{
    region_t *r[3];
    for (int i = 0; i < 3; i++) r[i] = take(BYTES);
    int wakes = 0;
    uint64_t end_us;
    for (int round = 0; round < 2; round++) {
        region_unref(&r[round]);
        end_us = now_us + 3 * POOL_SURPLUS_US + 3 * REGIONS_REST_MOST_US;
        for (wakes = 0; now_us < end_us; wakes++) {
            regions_busy(m, now_us);
            settle();
            uint64_t due_us = regions_deadline(m);
            cr_assert_gt(due_us, now_us);
            now_us = clock_earlier(due_us, end_us);
        }
        cr_assert_lt(wakes, 60, "%d: %d", round, wakes);
    }
    region_unref(&r[2]);
    end_us = now_us;
    regions_busy(m, now_us);
    settle();
    cr_assert_eq(regions_count(m).regions, 2, "a change of the pool begins another rest");
    while (regions_count(m).regions > 1) {
        regions_busy(m, now_us);
        now_us = regions_deadline(m);
        settle();
        cr_assert_leq(now_us, end_us + REGIONS_REST_MOST_US + POOL_SURPLUS_US);
    }
}

static void hear(void *ret_note, const char *from, note_t note, const content_id_t *id)
{
    (void)from, (void)id;
    *(note_t *)ret_note = note;
}

/* What another process is told that holds this content. */
static note_t answer_to_held(offer_t *offer, const char *name, const content_id_t *id)
{
    mappings_t *other = NULL;
    note_t told = NOTE_GONE;
    cr_assert_eq(mappings_new(NULL, hear, &told, &other, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_watch(other, name, now_us, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_tell(other, name, NOTE_HELD, id, NULL), HEDDLE_OK);
    for (int i = 0; i < 10; i++) {
        (void)offer_turn(offer, now_us);
        (void)mappings_turn(other, now_us);
    }
    mappings_destroy(&other);
    return told;
}

/* Where it is taken again, it gets other bytes. */
Test(regions, what_was_withdrawn_is_offered_again_with_another_content)
{
    char name[32];
    offer_t *offer = begin_sharing("withdrawn", name);
    region_t *r = take(BYTES), *first = r;
    regions_content_t content = {.bytes = BYTES, .manifest = {{1}}};
    regions_offer(m, r, &content);
    content_id_t id = regions_offered(r);
    cr_assert(id.generation && answer_to_held(offer, name, &id) == NOTE_VERIFIED);
    regions_withdraw(r);
    cr_assert(regions_is_withdrawn(r) && !regions_offered(r).generation);
    cr_assert_eq(answer_to_held(offer, name, &id), NOTE_VERIFY, "unknown");
    regions_offer(m, r, &content);
    cr_assert_eq(regions_offered(r).generation, 0);
    region_unref(&r);
    r = take(BYTES);
    cr_assert_eq(r, first);
    cr_assert_not(regions_is_withdrawn(r));
    regions_offer(m, r, &content);
    cr_assert_gt(regions_offered(r).generation, id.generation);
    content.is_to_be_verified = true;
    region_unref(&r);
    r = take(BYTES);
    regions_offer(m, r, &content);
    id = regions_offered(r);
    cr_assert_eq(answer_to_held(offer, name, &id), NOTE_VERIFY, "the first one verifies it");
    region_unref(&r);
    end_sharing(offer);
}

/* What it is to do with the version goes on without it: so the log is the only trace. */
Test(regions, what_cannot_be_sealed_is_logged_and_is_not_offered)
{
    char name[32];
    offer_t *offer = begin_sharing("unsealed", name);
    region_t *r = take(BYTES);
    regions_content_t content = {.bytes = BYTES, .manifest = {{1}}};
    captured_t c = captured_begin();
    failpoint_arm("region.seal", 1);
    regions_offer(m, r, &content);
    failpoint_disarm();
    const char *log = captured_end(&c);
    cr_assert(strstr(log, "memory.unoffered") && strstr(log, "cannot be sealed"), "%s", log);
    cr_assert(r->own->state == REGION_WRITING && !regions_offered(r).generation);
    regions_offer(m, r, &content);
    content_id_t id = regions_offered(r);
    cr_assert_eq(answer_to_held(offer, name, &id), NOTE_VERIFIED, "the next call does it");
    region_unref(&r);
    end_sharing(offer);
}

Test(regions, what_was_sealed_without_a_socket_is_offered_once_there_is_one)
{
    char name[32];
    region_t *r = take(BYTES);
    regions_content_t content = {.bytes = BYTES, .manifest = {{1}}};
    regions_offer(m, r, &content);
    cr_assert(r->own->state == REGION_SEALED && !regions_offered(r).generation);
    offer_t *offer = begin_sharing("later", name);
    regions_offer(m, r, &content);
    content_id_t id = regions_offered(r);
    cr_assert(id.generation && answer_to_held(offer, name, &id) == NOTE_VERIFIED);
    region_unref(&r);
    end_sharing(offer);
}

/* What the regions of this process offer, held through another socket. */
static hold_t *hold_from(offer_t *offer, const char *name, const content_id_t *id, mappings_t *mappings)
{
    heddle_error_t e = {0};
    hold_t *hold = NULL;
    int rc = HEDDLE_ERR_AGAIN;
    for (int i = 0; i < 100 && rc == HEDDLE_ERR_AGAIN; i++) {
        rc = mappings_take(mappings, name, id, now_us, &hold, &e);
        (void)offer_turn(offer, now_us);
        (void)mappings_turn(mappings, now_us);
    }
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    return hold;
}

/* The offer refers to the hold, which ends with the mapping. */
Test(regions, what_is_held_and_let_go_is_neither_offered_nor_registered_any_longer)
{
    regions_t *second = NULL;
    offer_t *offers[2] = {NULL};
    mappings_t *mappings = NULL;
    char names[2][32];
    cr_assert_eq(regions_new(&IO, &(regions_opts_t){.has_views = true}, &second), HEDDLE_OK);
    regions_t *members[2] = {m, second};
    for (int i = 0; i < 2; i++) {
        snprintf(names[i], sizeof names[i], "let-go-%d-%d", getpid(), i);
        offer_opts_t opts = {.name = names[i], .pool = regions_pool(members[i])};
        cr_assert_eq(offer_new(&opts, &offers[i], NULL), HEDDLE_OK);
        regions_share(members[i], offers[i]);
    }
    region_t *own = take(BYTES), *held = NULL;
    regions_content_t content = {.bytes = BYTES, .manifest = {{1}}};
    regions_offer(m, own, &content);
    content_id_t id = regions_offered(own);
    cr_assert_eq(mappings_new(NULL, NULL, NULL, &mappings, NULL), HEDDLE_OK);
    hold_t *hold = hold_from(offers[0], names[0], &id, mappings);
    cr_assert_eq(regions_hold(second, mappings, hold, &held, NULL), HEDDLE_OK);
    regions_offer(second, held, &content);
    cr_assert_eq(answer_to_held(offers[1], names[1], &id), NOTE_VERIFIED);
    region_unref(&held);
    cr_assert_eq(answer_to_held(offers[1], names[1], &id), NOTE_VERIFY, "unknown");
    cr_assert(maps == 2 && unmaps == 1, "registered no longer: %d of %d", unmaps, maps);
    cr_assert_eq(mappings_count(mappings).held, 0);
    region_unref(&own);
    for (int i = 0; i < 2; i++) {
        regions_share(members[i], NULL);
        offer_destroy(&offers[i]);
    }
    regions_close(&second);
    mappings_destroy(&mappings);
}

static void unref(void *r) { region_unref((region_t **)r); }

Test(regions, what_is_used_at_the_end_goes_with_its_last_reference_on_any_thread)
{
    region_t *r = take(BYTES), *parked = take(BYTES);
    region_unref(&parked);
    memset(r->base, 7, BYTES);
    regions_close(&m);
    cr_assert_null(m);
    cr_assert_eq(unmaps, 2);
    cr_assert_eq(((const uint8_t *)r->view)[BYTES - 1], 7);
    void *base = r->base;
    unsigned char resident;
    on_another_thread(unref, &r);
    cr_assert_null(r);
    cr_assert(mincore(base, LIMIT_PAGE_BYTES, &resident) < 0 && errno == ENOMEM, "it is not mapped any more");
}

/* As a late receive does. */
Test(regions, what_a_receive_is_open_in_at_the_end_stays_mapped)
{
    region_t *r = take(BYTES);
    region_t *late = r;
    open_in = late;
    captured_t log = captured_begin();
    regions_close(&m);
    region_unref(&r); /* a reader that outlives the member */
    const char *text = captured_end(&log);
    cr_assert(strstr(text, "65536 bytes are not given back: a receive into them is open"), "%s", text);
    memset(late->base, 2, BYTES);
    cr_assert_eq(unmaps, 0);
    memory_region_destroy(&late->own); /* the leak is looked for otherwise */
    free(late);
}

#ifdef HEDDLE_TEST_BUILD
Test(regions, the_machine_is_asked_whether_there_is_memory)
{
    region_t *r = NULL;
    heddle_error_t e;
    int rc;
    failpoint_arm("region.memory", 1);
    while ((rc = regions_take(m, &m, BYTES, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    failpoint_disarm();
    cr_assert_eq(rc, HEDDLE_ERR_NO_MEMORY);
    cr_assert(strstr(e.message, "control group") && e.expected[0] && e.found[0] && e.hint[0], "%s",
              e.message);
}
#endif
