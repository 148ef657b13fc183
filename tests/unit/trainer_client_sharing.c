/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node as a source of its host: what another process may hold, from when on, and for how long. */
#include "trainer_client_rig.h"

#include "client/sharing.h"
#include "core/digest.h"
#include "core/failpoint.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>

static mappings_t *mappings; /* of the other process */
static char name[SHARING_NAME_BYTES];

static note_t heard; /* the last note of the publisher */

static void on_note(void *self, const char *source, note_t note, const content_id_t *id)
{
    (void)self, (void)source, (void)id;
    heard = note;
}

static void open_sharing(void)
{
    open_world_as((how_t){.is_sharing = true});
    join();
    sharing_name(&w.life, name);
    cr_assert_eq(mappings_new(NULL, on_note, NULL, &mappings, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_watch(mappings, name, w.now, NULL), HEDDLE_OK);
}

static void close_sharing(void)
{
    mappings_destroy(&mappings);
    close_world();
}

TestSuite(sharing, .init = open_sharing, .fini = close_sharing);

/* What the last PUBLISH names. */
static content_id_t named(void)
{
    const msg_publish_t *p = &sent(MSG_PUBLISH)->publish;
    return sharing_content(&p->region, &p->parts[0].manifest_digest);
}

static void settle(void)
{
    for (int i = 0; i < 200; i++) {
        publisher_node_ops.readable(w.node);
        bool has_more = tick() <= w.now;
        has_more |= publisher_node_ops.work(w.node, w.now);
        if (!(mappings_turn(mappings, w.now) <= w.now) && !has_more && i > 20) return;
    }
}

/* As the shell polls: the node's descriptors are readable when there is something to do. */
static int take_hold(const content_id_t *id, hold_t **ret_hold)
{
    int rc;
    for (int i = 0; (rc = mappings_take(mappings, name, id, w.now, ret_hold, NULL)) == HEDDLE_ERR_AGAIN;
         i++) {
        cr_assert_lt(i, 1000);
        settle();
    }
    return rc;
}

static hold_t *hold(const content_id_t *id)
{
    hold_t *h = NULL;
    cr_assert_eq(take_hold(id, &h), HEDDLE_OK);
    return h;
}

static note_t answer_to_held(const content_id_t *id)
{
    heard = 0;
    cr_assert_eq(mappings_tell(mappings, name, NOTE_HELD, id, NULL), HEDDLE_OK);
    settle();
    return heard;
}

Test(sharing, what_is_sent_to_the_broker_may_be_held)
{
    publish_result_t r;
    int fds[PUBLISHER_FDS];
    cr_assert_eq(publisher_node_fds(w.node, fds), PUBLISHER_FDS);
    cr_assert_neq(sent(MSG_OPEN)->open.place, 0);
    cr_assert_eq(sent(MSG_OPEN)->open.offered_count, 0);
    item_t *it = publish_one("id-1");
    content_id_t id = named();
    cr_assert_neq(id.generation, 0);
    hold_t *h = hold(&id);
    cr_assert_eq(h->header.bytes, it->sealed.content_bytes, "before the broker has recorded it");
    cr_assert_arr_eq(h->base, it->region->base, it->sealed.content_bytes);
    published_as(3, "");
    cr_assert_eq(result(&r), HEDDLE_OK);
    rejoin(3);
    const msg_open_t *open = &sent(MSG_OPEN)->open;
    cr_assert(open->offered_count == 1 && open->offered[0].version == 3);
    content_id_t again = sharing_content(&open->offered[0].region, &id.manifest);
    cr_assert(content_is(&again, &id));
    cr_assert_eq(fetch(3, 4096), TR_ARRIVED, "and it is served to other hosts");
    mappings_give(mappings, &h);
}

/* A publication waits for no reader, and no reader sees what is written. */
Test(sharing, what_is_held_is_not_written_again)
{
    serve(1, 1);
    content_id_t id = named();
    hold_t *h = hold(&id);
    uint8_t first = *(const uint8_t *)h->base;
    const region_t *region = w.items[0].region;
    for (uint64_t v = 2; v <= 9; v++) {
        item_t *it = serve(v, (uint8_t)(v * 3));
        cr_assert_neq(it->region, region);
        release(v - 1);
        settle();
    }
    cr_assert_eq(*(const uint8_t *)h->base, first);
    mappings_give(mappings, &h);
    bool is_used = false;
    for (uint64_t v = 10; v <= 14 && !is_used; v++) {
        is_used = serve(v, (uint8_t)v)->region == region;
        release(v - 1);
    }
    cr_assert(is_used, "it is one of those that take turns again");
}

/* The process that holds is this one, which does not name itself. */
Test(sharing, where_all_regions_are_held_a_take_fails_at_once)
{
    hold_t *held[LIMIT_OFFERED];
    heddle_error_t error = {0};
    uint64_t v = 1;
    item_t *it = make(3000);
    command_t c = {.kind = COMMAND_TAKE, .take = {.bytes = pack_bytes(it->pack)}, .error = &error};
    for (; v <= LIMIT_OFFERED; v++) {
        serve(v, (uint8_t)v);
        content_id_t id = named();
        held[v - 1] = hold(&id);
        release(v);
    }
    cr_assert_eq(command(c), HEDDLE_ERR_NO_SLOT);
    cr_assert_not_null(strstr(error.message, "all 64 regions of shared memory are in use"), "%s",
                       error.message);
    cr_assert_not_null(strstr(error.found, "the oldest one is held by"), "%s", error.found);
    mappings_give(mappings, &held[0]);
    cr_assert_eq(take(it), HEDDLE_OK);
    for (uint32_t i = 1; i < LIMIT_OFFERED; i++) mappings_give(mappings, &held[i]);
}

/* What is not wanted any more is handed over to no process. */
Test(sharing, what_ended_is_not_handed_over)
{
    hold_t *h = NULL;
    publish_one("id-1");
    content_id_t refused = named();
    refuse(MSG_PUBLISH, sent(MSG_PUBLISH)->publish.req, HEDDLE_ERR_UNCHANGED, false);
    cr_assert_eq(take_hold(&refused, &h), HEDDLE_ERR_NOT_FOUND);
    serve(1, 1);
    content_id_t id = named();
    rejoin(0);
    cr_assert_eq(take_hold(&id, &h), HEDDLE_ERR_NOT_FOUND, "the broker keeps it no longer");
}

/* One that asks about it is sent to verify for itself: no process does it for all. A send that is open keeps its
 * memory, and not its offer. */
Test(sharing, a_version_that_was_given_up_is_offered_no_longer)
{
    region_t *sent_from = region_ref(serve(1, 1)->region);
    content_id_t id = named();
    hold_t *h = hold(&id);
    cr_assert_eq(answer_to_held(&id), NOTE_VERIFY, "the first one");
    cr_assert_eq(mappings_tell(mappings, name, NOTE_GOOD, &id, NULL), HEDDLE_OK);
    cr_assert_eq(answer_to_held(&id), NOTE_VERIFIED);
    serve(2, 2);
    release(1);
    serve(3, 3);
    cr_assert_eq(answer_to_held(&id), NOTE_VERIFY);
    mappings_give(mappings, &h);
    region_unref(&sent_from);
}

/* A region of a version that is not held is mapped by others before it is written. */
Test(sharing, regions_are_offered_in_advance)
{
    serve(1, 1);
    serve(2, 2);
    w.now += REGIONS_REST_US;
    settle();
    cr_assert_eq(mappings_count(mappings).mapped, 3, "two, and the one ahead");
}

static uint32_t offered_after(uint64_t us)
{
    settle();
    for (uint64_t end = w.now + us; w.now < end; w.now += REGIONS_REST_US / 2) settle();
    settle();
    return mappings_count(mappings).mapped;
}

/* A program that publishes for the second time finds memory that its host has mapped. */
Test(sharing, the_region_of_the_second_version_is_there_before_it)
{
    serve(1, 1);
    cr_assert_eq(offered_after(2 * REGIONS_REST_US), 2);
}

/* Publications that come faster than workers fetch: the host holds what is kept, what serves and what is being
 * fetched, the newest one waits, and one more is written without waiting for any of them. */
Test(sharing, where_publications_do_not_wait_there_are_four_regions_more_than_are_kept)
{
    enum { KEEP = 3, HELD = KEEP + 2 };
    hold_t *held[HELD];
    for (uint64_t v = 1; v <= HELD; v++) {
        serve(v, (uint8_t)v);
        content_id_t id = named();
        held[v - 1] = hold(&id);
        if (v < HELD) release(v);
    }
    serve(HELD + 1, HELD + 1);
    cr_assert_eq(take(make(3000)), HEDDLE_OK);
    settle();
    cr_assert_eq(mappings_count(mappings).mapped, KEEP + 4);
    for (int i = 0; i < HELD; i++) mappings_give(mappings, &held[i]);
}

/* The broker of this world keeps one version: four regions are usual. */
Test(sharing, what_may_be_let_go_in_a_moment_is_counted_on_beyond_the_usual_number)
{
    hold_t *held[2];
    for (uint64_t v = 1; v <= 2; v++) {
        serve(v, (uint8_t)v);
        content_id_t id = named();
        held[v - 1] = hold(&id);
        release(v);
    }
    cr_assert_eq(take(make(3000)), HEDDLE_OK);
    cr_assert_eq(offered_after(SECOND + REGIONS_REST_US), 4);
    for (int i = 0; i < 2; i++) mappings_give(mappings, &held[i]);
}

/* The memory and the core that a region ahead takes are missing where a version is written. */
Test(sharing, no_region_is_made_while_one_is_written)
{
    item_t *it = make(3000);
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(offered_after(SECOND / 2), 1, "which is mapped meanwhile");
    cr_assert_eq(offered_after(SECOND), 2, "the next one cannot wait for as long as that may take");
}

/* The rest that came with the version before has ended long ago. */
Test(sharing, nor_at_the_begin_of_one_that_comes_late)
{
    item_t *it = make(3000);
    serve(1, 1);
    settle();
    w.now += REGIONS_REST_US;
    rollout(1, "staging", 0, 4, 1, 0);
    settle();
    rollout(1, "active", 0, 4, 4, 4);
    cr_assert_eq(offered_after(4 * SECOND), 2);
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(offered_after(REGIONS_REST_US / 2), 2);
}

/* Nor where workers fetch or activate. */
Test(sharing, no_region_is_made_while_a_version_is_on_its_way)
{
    serve(1, 1);
    serve(2, 2);
    for (int i = 0; i < 4; i++) {
        rollout(2, i < 2 ? "staging" : "active", 0, 4, i, 0);
        cr_assert_eq(offered_after(SECOND / 4 - REGIONS_REST_US), 2, "%d", i);
    }
    rollout(2, "active", 0, 4, 4, 4);
    cr_assert_eq(offered_after(2 * REGIONS_REST_US), 3);
}

/* Its region and its guard cannot wait for as long as a rollout may take. */
Test(sharing, a_rollout_that_lasts_does_not_keep_it_from_being_made)
{
    serve(1, 1);
    serve(2, 2);
    for (int i = 0; i < 4; i++) {
        rollout(2, "staging", 0, 40, i, 0);
        cr_assert_eq(offered_after(SECOND / 2 - REGIONS_REST_US), i < 2 ? 2 : 3, "%d", i);
    }
}

Test(sharing, a_rollout_of_which_nothing_is_heard_is_not_waited_for)
{
    serve(1, 1);
    serve(2, 2);
    rollout(2, "staging", 0, 4, 1, 0);
    cr_assert_eq(offered_after(SECOND + 3 * REGIONS_REST_US), 3);
}

Test(sharing, no_region_is_made_while_bytes_are_sent)
{
    serve(1, 1);
    serve(2, 2);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(fetch(2, 4096), TR_ARRIVED);
        cr_assert_eq(offered_after(REGIONS_REST_US / 2), 2, "%d", i);
    }
    cr_assert_eq(offered_after(2 * REGIONS_REST_US), 3);
}

/* To give it up would bring no memory: this host holds it. */
Test(sharing, a_version_that_is_held_does_not_go_without_memory_for_the_next)
{
    hold_t *held[3];
    item_t *it = make(3000);
    for (uint64_t v = 1; v <= 3; v++) {
        serve(v, (uint8_t)v);
        content_id_t id = named();
        held[v - 1] = hold(&id);
    }
    rollout(1, "active", 0, 2, 2, 2);
    failpoint_arm("region.memory", 1);
    cr_assert_eq(take(it), HEDDLE_ERR_NO_MEMORY);
    failpoint_disarm();
    cr_assert_eq(fetch(1, 4096), TR_ARRIVED);
    cr_assert_eq(take(it), HEDDLE_OK);
    cr_assert_eq(fetch(1, 4096), TR_REFUSED);
    for (int i = 0; i < 3; i++) mappings_give(mappings, &held[i]);
}

static void open_alone(void)
{
    open_world();
    join();
}

Test(alone, without_it_nothing_is_offered, .init = open_alone, .fini = close_world)
{
    int fds[PUBLISHER_FDS];
    serve(1, 1);
    cr_assert_eq(publisher_node_fds(w.node, fds), 0);
    cr_assert_eq(sent(MSG_PUBLISH)->publish.region.generation, 0);
    cr_assert_eq(sent(MSG_OPEN)->open.place, 0);
}

/* Its socket is another process's: workers copy, as those of other hosts do. */
Test(alone, where_it_cannot_be_opened_versions_are_copied, .fini = close_world)
{
    open_world_as((how_t){.is_sharing = true});
    publisher_node_t *second = NULL;
    publisher_node_opts_t opts = {.kind = &KIND_LORA,
                                  .adapter = "policy",
                                  .writer = "trainer-2",
                                  .host = "host-1",
                                  .is_sharing = true,
                                  .life = w.life,
                                  .changed = note_change,
                                  .self = &w};
    int fds[PUBLISHER_FDS];
    cr_assert_eq(publisher_node_new(&opts, &w.io, &second, NULL), HEDDLE_OK);
    cr_assert_eq(publisher_node_fds(second, fds), 0);
    publisher_node_destroy(&second);
}

/* A directory that the operator named is an error where it cannot be used. */
Test(alone, a_directory_that_was_named_has_to_be_usable, .init = open_alone, .fini = close_world)
{
    publisher_node_t *second = NULL;
    heddle_error_t e = {0};
    char directory[] = "/tmp/heddle-share.XXXXXX";
    publisher_node_opts_t opts = {.kind = &KIND_LORA,
                                  .adapter = "policy",
                                  .writer = "trainer-2",
                                  .host = "host-1",
                                  .is_sharing = true,
                                  .host_share = directory,
                                  .changed = note_change,
                                  .self = &w};
    cr_assert_not_null(mkdtemp(directory));
    random_bytes(&opts.life, sizeof opts.life);
    cr_assert_eq(chmod(directory, 0777), 0);
    cr_assert_eq(publisher_node_new(&opts, &w.io, &second, &e), HEDDLE_ERR_DENIED);
    cr_assert(!second && strstr(e.message, directory) && strstr(e.found, "mode 0777"), "%s", e.message);
    cr_assert_eq(chmod(directory, 0700), 0);
    cr_assert_eq(publisher_node_new(&opts, &w.io, &second, &e), HEDDLE_OK, "%s", e.message);
    publisher_node_destroy(&second);
    cr_assert_eq(rmdir(directory), 0, "and no socket stays there");
}

/* ---- the guard ---- */

static sigjmp_buf fault;
static void on_fault(int number)
{
    (void)number;
    siglongjmp(fault, 1);
}

/* The byte stays what it is. */
static bool stray_write_faults(region_t *r)
{
    struct sigaction action = {.sa_handler = on_fault}, old;
    bool is_fault = true;
    sigaction(SIGSEGV, &action, &old);
    if (sigsetjmp(fault, 1) == 0) {
        volatile uint8_t *byte = (volatile uint8_t *)r->base;
        *byte = *byte;
        is_fault = false;
    }
    sigaction(SIGSEGV, &old, NULL);
    return is_fault;
}

/* The background rests after each version. */
static void pass_rest(void)
{
    for (int i = 0; i < 4; i++) {
        w.now += REGIONS_REST_US;
        for (int k = 0; k < 200 && tick() <= w.now; k++) {}
        while (publisher_node_ops.work(w.node, w.now)) {}
    }
}

static void assert_guard(bool is_guarded, bool is_sharing)
{
    open_world_as((how_t){.is_guarded = is_guarded, .is_sharing = is_sharing});
    join();
    region_t *r = serve(1, 1)->region;
    cr_assert_not(stray_write_faults(r), "not while the version is on its way");
    pass_rest();
    cr_assert_eq(stray_write_faults(r), is_guarded && is_sharing);
    release(1);
    for (uint64_t v = 2; v <= 12; v++) { /* its memory is written again, with and without a pause */
        serve(v, (uint8_t)v);
        release(v - 1);
        if (v % 3 == 0) pass_rest();
    }
}

Test(alone, a_stray_write_into_a_sealed_version_faults, .fini = close_world) { assert_guard(true, true); }
Test(alone, and_without_the_guard_it_does_not, .fini = close_world) { assert_guard(false, true); }

/* A trainer may take minutes to write the next version. */
Test(alone, a_publication_that_stays_open_keeps_no_version_unguarded, .fini = close_world)
{
    open_world_as((how_t){.is_guarded = true, .is_sharing = true});
    join();
    region_t *r = serve(1, 1)->region;
    item_t *it = make(3000);
    cr_assert_eq(take(it), HEDDLE_OK);
    uint64_t end_us = w.now + REGIONS_REST_MOST_US + POOL_RETRY_US + SECOND / 2;
    pass_rest();
    cr_assert_not(stray_write_faults(r), "not at once: it would delay the threads that write");
    while (!stray_write_faults(r) && w.now < end_us) pass_rest();
    cr_assert(stray_write_faults(r));
}
