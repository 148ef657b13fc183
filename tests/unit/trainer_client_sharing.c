/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher's node as a source of its host: what another process may hold, from when on, and for how long. */
#include "trainer_client_rig.h"

#include "client/sharing.h"
#include "core/digest.h"

static mappings_t *mappings; /* of the other process */
static char name[SHARING_NAME_BYTES];

static void open_sharing(void)
{
    open_world_as((how_t){.is_sharing = true});
    join();
    sharing_name(&w.life, name);
    cr_assert_eq(mappings_new(NULL, NULL, NULL, &mappings, NULL), HEDDLE_OK);
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
        bool has_more = tick() <= w.now;
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

Test(sharing, what_is_sent_to_the_broker_may_be_held)
{
    publish_result_t r;
    int fds[PUBLISHER_FDS];
    cr_assert_eq(publisher_node_fds(w.node, fds), PUBLISHER_FDS);
    cr_assert_neq(sent(MSG_OPEN)->open.place, 0);
    cr_assert_eq(sent(MSG_OPEN)->open.offered_count, 0);
    item_t *it = publish_one("id-1");
    content_id_t id = named();
    cr_assert_neq(id.epoch, 0);
    hold_t *h = hold(&id);
    cr_assert_eq(h->header.bytes, it->sealed.arena_bytes, "before the broker has recorded it");
    cr_assert_arr_eq(h->base, it->region->base, it->sealed.arena_bytes);
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
    hold_t *held[6];
    heddle_error_t error = {0};
    uint64_t v = 1;
    item_t *it = make(3000);
    command_t c = {.kind = COMMAND_TAKE, .bytes = pack_bytes(it->pack), .error = &error};
    for (; v <= 6; v++) {
        serve(v, (uint8_t)v);
        content_id_t id = named();
        held[v - 1] = hold(&id);
        release(v);
    }
    cr_assert_eq(command(c), HEDDLE_ERR_NO_SLOT);
    cr_assert_not_null(strstr(error.message, "all 6 regions of shared memory are in use"), "%s",
                       error.message);
    cr_assert_not_null(strstr(error.found, "the oldest one is held by"), "%s", error.found);
    mappings_give(mappings, &held[0]);
    cr_assert_eq(take(it), HEDDLE_OK);
    for (int i = 1; i < 6; i++) mappings_give(mappings, &held[i]);
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

/* There is a limit of what is offered at a time. */
Test(sharing, versions_that_ended_do_not_count)
{
    publish_result_t r;
    item_t *it = make(3000);
    for (uint64_t v = 1; v <= LIMIT_OFFERED + 2; v++) {
        publish_again(it, (uint8_t)v, "id-1");
        published_as(v, "");
        cr_assert_eq(result(&r), HEDDLE_OK);
        cr_assert_neq(sent(MSG_PUBLISH)->publish.region.epoch, 0, "version %d", (int)v);
        release(v);
        forget_sent();
    }
}

/* A region of a version that is not held is mapped by others before it is written. */
Test(sharing, regions_are_offered_in_advance)
{
    serve(1, 1);
    serve(2, 2);
    w.now += SOURCE_QUIET_US;
    settle();
    cr_assert_eq(mappings_count(mappings).mapped, 3, "two, and the one ahead");
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
    cr_assert_eq(sent(MSG_PUBLISH)->publish.region.epoch, 0);
    cr_assert_eq(sent(MSG_OPEN)->open.place, 0);
}

/* Its socket is another process's: workers copy, as those of other hosts do. */
Test(alone, where_it_cannot_be_opened_versions_are_copied, .fini = close_world)
{
    open_world_as((how_t){.is_sharing = true});
    publisher_node_t *second = NULL;
    publisher_node_opts_t opts = {.adapter = "policy",
                                  .writer = "trainer-2",
                                  .host = "host-1",
                                  .is_sharing = true,
                                  .life = w.life,
                                  .changed = note_change,
                                  .self = &w};
    int fds[PUBLISHER_FDS];
    cr_assert_eq(publisher_node_new(&opts, &w.io, &second), HEDDLE_OK);
    cr_assert_eq(publisher_node_fds(second, fds), 0);
    publisher_node_destroy(&second);
}
