/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher and a worker of one host: where their sockets are, what is mapped in advance, and how long. Both
 * have their turns from the test, which sets the time. */
#include "client/sharing.h"

#include "core/errors.h"
#include "tests/unit/memory_rig.h"

#include <stdlib.h>

enum { PUBLISHER, WORKER, MEMBERS };

static pool_t *pools[MEMBERS];
static sharing_t *members[MEMBERS];
static uint64_t now_us;
static int gone; /* notes that a source has ended */

static void hear(void *self, const char *source, note_t note, const content_id_t *id)
{
    (void)self, (void)source, (void)id;
    gone += note == NOTE_GONE;
}

/* Of this run of the test alone. */
static key16_t life_of(int i)
{
    key16_t life = {{(uint8_t)i, 0xab}};
    int pid = getpid();
    memcpy(life.b + 4, &pid, sizeof pid);
    return life;
}

static int open_member(int i, const char *directory, heddle_error_t *ret_error)
{
    sharing_opts_t opts = {.directory = directory, .life = life_of(i), .pool = pools[i], .received = hear};
    return sharing_new(&opts, &members[i], ret_error);
}

static void start(void)
{
    heddle_error_t e;
    now_us = 5000000;
    for (int i = 0; i < MEMBERS; i++) {
        pool_opts_t pool = {.most = 16};
        cr_assert_eq(pool_new(&pool, &pools[i], &e), HEDDLE_OK);
        cr_assert_eq(open_member(i, NULL, &e), HEDDLE_OK, "%s", e.message);
    }
}

static void finish(void)
{
    for (int i = 0; i < MEMBERS; i++) sharing_close(&members[i]), pool_destroy(&pools[i]);
}

TestSuite(sharing, .init = start, .fini = finish);

/* Until neither has anything to do at this time. */
static void settle(void)
{
    struct pollfd p[MEMBERS * SHARING_FDS];
    bool has_more = true;
    for (int round = 0; has_more; round++) {
        cr_assert_lt(round, 5000);
        has_more = false;
        for (int i = 0; i < MEMBERS; i++) {
            int fds[SHARING_FDS] = {-1, -1};
            if (members[i]) has_more |= sharing_turn(members[i], now_us) <= now_us;
            if (members[i]) sharing_fds(members[i], fds);
            for (int k = 0; k < SHARING_FDS; k++) p[i * SHARING_FDS + k] = (struct pollfd){fds[k], POLLIN, 0};
        }
        has_more |= poll(p, MEMBERS * SHARING_FDS, 0) > 0;
        for (int i = 0; i < MEMBERS * SHARING_FDS; i++)
            if (p[i].revents) sharing_readable(members[i / SHARING_FDS]);
    }
}

static void pass(uint64_t us)
{
    for (uint64_t end_us = now_us + us; now_us < end_us; now_us += 50000) settle();
}

static content_id_t publish(void)
{
    memory_region_t *r = NULL;
    digest_t manifest = rig_manifest(1);
    heddle_error_t e;
    int rc;
    while ((rc = pool_take(pools[PUBLISHER], pools, RIG_BYTES, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    memset(r->base, 1, r->bytes);
    cr_assert_eq(memory_region_seal(r, &manifest, RIG_BYTES, NULL), HEDDLE_OK);
    offer_content_t content = {.id = memory_region_content(r), .bytes = RIG_BYTES};
    cr_assert_eq(offer_add(sharing_offer(members[PUBLISHER]), &content, NULL), HEDDLE_OK);
    return content.id;
}

static void list_publisher(bool is_listed)
{
    msg_peer_t peer = {life_of(PUBLISHER)};
    sharing_peers(members[WORKER], &peer, is_listed, now_us);
    settle();
}

/* Any: the region that a pool has ahead is mapped too. */
static bool is_mapped(void) { return mappings_count(sharing_mappings(members[WORKER])).mapped > 0; }

Test(sharing, both_are_in_one_place_and_each_has_a_name)
{
    char a[SHARING_NAME_BYTES], b[SHARING_NAME_BYTES];
    key16_t one = life_of(PUBLISHER), two = life_of(WORKER);
    cr_assert(sharing_place(members[PUBLISHER]) &&
              sharing_place(members[PUBLISHER]) == sharing_place(members[WORKER]));
    cr_assert(strlen(sharing_name(&one, a)) == 32 && strcmp(a, sharing_name(&two, b)) != 0);
    cr_assert_str_eq(sharing_name(&(key16_t){{0x01, 0xfe}}, a), "01fe0000000000000000000000000000");
}

Test(sharing, what_a_peer_offers_is_mapped_before_it_is_used)
{
    char name[SHARING_NAME_BYTES];
    key16_t life = life_of(PUBLISHER);
    digest_t manifest = rig_manifest(1);
    content_id_t id = publish();
    msg_region_t region = sharing_region(&id); /* as messages have it */
    content_id_t asked = sharing_content(&region, &manifest);
    hold_t *h = NULL;
    cr_assert(content_is(&asked, &id));
    cr_assert(!is_mapped());
    list_publisher(true);
    cr_assert(is_mapped());
    cr_assert_eq(
        mappings_take(sharing_mappings(members[WORKER]), sharing_name(&life, name), &asked, now_us, &h, NULL),
        HEDDLE_OK, "at once");
    cr_assert(rig_is_whole(h->base, 1, RIG_BYTES));
    mappings_give(sharing_mappings(members[WORKER]), &h);
}

/* A loop that polls a transfer turns thousands of times a second. */
Test(sharing, a_turn_that_is_not_due_does_nothing)
{
    list_publisher(true);
    content_id_t id = publish();
    settle();
    mappings_t *worker = sharing_mappings(members[WORKER]);
    char name[SHARING_NAME_BYTES];
    key16_t life = life_of(PUBLISHER);
    cr_assert_eq(mappings_tell(worker, sharing_name(&life, name), NOTE_HELD, &id, NULL), HEDDLE_OK);
    struct pollfd answer = {mappings_fd(worker), POLLIN, 0};
    cr_assert_gt(sharing_turn(members[PUBLISHER], now_us), now_us);
    cr_assert_eq(poll(&answer, 1, 0), 0, "no descriptor was looked at");
    sharing_readable(members[PUBLISHER]);
    (void)sharing_turn(members[PUBLISHER], now_us);
    cr_assert_eq(poll(&answer, 1, 0), 1);
}

Test(sharing, it_stays_mapped_while_the_process_of_the_peer_is_there)
{
    publish();
    list_publisher(true);
    list_publisher(false); /* its session has ended */
    pass(2 * MAPPINGS_GONE_US);
    cr_assert(is_mapped() && gone == 0);
    list_publisher(true);
    cr_assert(is_mapped());
}

Test(sharing, a_peer_that_has_ended_is_forgotten)
{
    heddle_error_t e;
    publish();
    list_publisher(true);
    list_publisher(false);
    sharing_close(&members[PUBLISHER]);
    pass(MAPPINGS_GONE_US + 100000);
    cr_assert(!is_mapped() && gone == 1);
    cr_assert_eq(open_member(PUBLISHER, NULL, &e), HEDDLE_OK);
    publish();
    pass(2 * MAPPINGS_RETRY_US);
    cr_assert(!is_mapped(), "it is not connected to again");
    list_publisher(true);
    cr_assert(is_mapped());
}

Test(sharing, a_peer_that_is_listed_and_comes_back_is_connected_to_again)
{
    heddle_error_t e;
    list_publisher(true);
    list_publisher(false);
    list_publisher(true); /* listed again: it counts no more that it was not */
    sharing_close(&members[PUBLISHER]);
    pass(MAPPINGS_GONE_US + 100000);
    cr_assert_eq(open_member(PUBLISHER, NULL, &e), HEDDLE_OK);
    publish();
    pass(2 * MAPPINGS_RETRY_US);
    cr_assert(is_mapped());
}

/* A broker that repeats itself: the table of what is watched does not end that list. */
Test(sharing, a_peer_that_is_listed_many_times_is_one)
{
    msg_peer_t rows[4 * MAPPINGS_SOURCES_MAX];
    memset(rows, 0xff, sizeof rows);
    publish();
    sharing_peers(members[WORKER], rows, sizeof rows / sizeof *rows, now_us);
    sharing_close(&members[WORKER]);
    cr_assert_eq(open_member(WORKER, NULL, NULL), HEDDLE_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) rows[i].life = life_of(PUBLISHER);
    sharing_peers(members[WORKER], rows, sizeof rows / sizeof *rows, now_us);
    settle();
    cr_assert(is_mapped());
}

/* ---- directories ---- */

static const char *directory(mode_t mode)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/sharing-XXXXXX");
    cr_assert_not_null(mkdtemp(path));
    cr_assert_eq(chmod(path, mode), 0);
    return path;
}

static void assert_refused(const char *path, int code, const char *found)
{
    heddle_error_t e = {0};
    int before = rig_descriptors();
    sharing_close(&members[WORKER]);
    int open = rig_descriptors();
    cr_assert_eq(open_member(WORKER, path, &e), code, "%s", e.message);
    cr_assert(!members[WORKER] && strstr(e.message, path), "%s", e.message);
    cr_assert(!found || strstr(e.found, found), "%s", e.found);
    cr_assert(rig_descriptors() == open && before > open, "nothing stays open");
}

/* As a pull does. */
Test(sharing, without_a_pool_it_takes_and_offers_nothing)
{
    heddle_error_t e;
    int fds[SHARING_FDS];
    char name[SHARING_NAME_BYTES];
    key16_t life = life_of(PUBLISHER), own = life_of(WORKER);
    handover_watch_t *watch = NULL;
    sharing_close(&members[WORKER]);
    pool_t *none = pools[WORKER];
    pools[WORKER] = NULL;
    cr_assert_eq(open_member(WORKER, NULL, &e), HEDDLE_OK, "%s", e.message);
    pools[WORKER] = none;
    sharing_fds(members[WORKER], fds);
    cr_assert(fds[0] == -1 && fds[1] >= 0 && !sharing_offer(members[WORKER]));
    cr_assert_eq(sharing_place(members[WORKER]), sharing_place(members[PUBLISHER]));
    cr_assert_eq(handover_watch(NULL, sharing_name(&own, name), &watch, &e), HEDDLE_ERR_NOT_FOUND);
    content_id_t id = publish();
    hold_t *hold = NULL;
    mappings_t *mappings = sharing_mappings(members[WORKER]);
    sharing_name(&life, name);
    for (int i = 0; mappings_take(mappings, name, &id, now_us, &hold, &e) == HEDDLE_ERR_AGAIN; i++) {
        cr_assert_lt(i, 1000);
        settle();
    }
    cr_assert(hold && rig_is_whole(hold->base, 1, RIG_BYTES));
    mappings_give(mappings, &hold);
}

Test(sharing, a_directory_that_others_may_enter_is_refused)
{
    const char *path = directory(0777);
    assert_refused(path, HEDDLE_ERR_DENIED, "mode 0777");
    rmdir(path);
}

Test(sharing, a_directory_of_another_user_is_refused)
{
    const char *path = directory(0700);
    if (geteuid() != 0 || chown(path, 65534, 65534) != 0) {
        rmdir(path);
        cr_skip_test("only root can make one");
    }
    assert_refused(path, HEDDLE_ERR_DENIED, "user 65534");
    rmdir(path);
}

Test(sharing, a_directory_that_is_missing_is_refused)
{
    assert_refused("/tmp/sharing-that-is-not-there", HEDDLE_ERR_USAGE, NULL);
}

Test(sharing, in_a_directory_the_socket_is_a_file_and_the_place_another_one)
{
    heddle_error_t e;
    char name[SHARING_NAME_BYTES], file[128];
    key16_t life = life_of(PUBLISHER);
    const char *path = directory(0700);
    uint64_t abstract = sharing_place(members[WORKER]);
    for (int i = 0; i < MEMBERS; i++) {
        sharing_close(&members[i]);
        cr_assert_eq(open_member(i, path, &e), HEDDLE_OK, "%s", e.message);
    }
    snprintf(file, sizeof file, "%s/heddle-%s", path, sharing_name(&life, name));
    cr_assert_eq(access(file, F_OK), 0);
    cr_assert(sharing_place(members[WORKER]) == sharing_place(members[PUBLISHER]) &&
              sharing_place(members[WORKER]) != abstract);
    publish();
    list_publisher(true);
    cr_assert(is_mapped());
    for (int i = 0; i < MEMBERS; i++) sharing_close(&members[i]);
    cr_assert_eq(rmdir(path), 0, "no file stays");
}
