/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that a source offers: mapped in advance, held, let go. The source is in this process and has its turns
 * from the test, which sets the time. */
#include "memory/mappings.h"

#include "tests/unit/memory_rig.h"

#include <stddef.h>
#include <sys/un.h>

enum { REGIONS = 12 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* have pages for those that are read */
enum { COUNTS_FAULTS = false };
#else
enum { COUNTS_FAULTS = true };
#endif

static memory_region_t *regions[REGIONS];
static handover_t *source;
static mappings_t *m;
static char name[32], second_name[32];
static uint64_t now_us = 5000000;
static int notes, gone;

static int find_region(void *self, const content_id_t *id)
{
    (void)self;
    for (int i = 0; i < REGIONS; i++) {
        int fd = regions[i] ? rig_find(regions[i], id) : -1;
        if (fd >= 0) return fd;
    }
    return -1;
}

static void hear(void *self, const char *from, note_t note, const content_id_t *id)
{
    bool is_known = !strcmp(from, name) || !strcmp(from, second_name);
    cr_assert(self == regions && !id == (note == NOTE_GONE));
    if (!is_known) return;
    if (note == NOTE_GONE) gone++;
    else notes++;
}

static void listen_again(void)
{
    heddle_error_t e;
    cr_assert_eq(handover_listen(NULL, name, find_region, NULL, &source, &e), HEDDLE_OK, "%s", e.message);
}

static void set_up(void)
{
    heddle_error_t e;
    snprintf(name, sizeof name, "maps-%d", getpid());
    listen_again();
    cr_assert_eq(mappings_new(NULL, hear, regions, &m, &e), HEDDLE_OK);
    cr_assert_eq(mappings_watch(m, name, now_us, &e), HEDDLE_OK, "%s", e.message);
}

static void tear_down(void)
{
    mappings_destroy(&m);
    handover_destroy(&source);
    for (int i = 0; i < REGIONS; i++) memory_region_destroy(&regions[i]);
}

TestSuite(memory_mappings, .init = set_up, .fini = tear_down);

/* Until nothing is left to do at this time. */
static void settle(void)
{
    for (int i = 0; i < 2000; i++) {
        if (source) handover_turn(source, now_us);
        uint64_t due_us = mappings_turn(m, now_us);
        struct pollfd p[2] = {{mappings_fd(m), POLLIN, 0}, {source ? handover_fd(source) : -1, POLLIN, 0}};
        if (due_us > now_us && poll(p, 2, 0) == 0) return;
    }
    cr_assert(false, "there is always more to do");
}

/* The first `count` regions are made, where they are not, and offered. */
static void offer(int count)
{
    region_name_t names[REGIONS];
    for (int i = 0; i < count; i++) {
        if (!regions[i]) regions[i] = rig_region(2 * MEMORY_STEP_BYTES + RIG_BYTES);
        names[i] = rig_name(regions[i]);
    }
    handover_offer(source, names, (uint32_t)count);
    settle();
}

static content_id_t publish(int i, uint64_t version)
{
    memory_region_drop(regions[i]);
    return rig_publish(regions[i], version);
}

static hold_t *take(const content_id_t *id)
{
    hold_t *h = NULL;
    heddle_error_t e;
    int rc;
    while ((rc = mappings_take(m, name, id, now_us, &h, &e)) == HEDDLE_ERR_AGAIN) settle();
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    return h;
}

static long faults(void)
{
    struct rusage usage;
    cr_assert_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_minflt;
}

static uint64_t sum(const void *at, size_t bytes)
{
    uint64_t s = 0;
    for (size_t i = 0; i < bytes; i += 64) s += ((const uint8_t *)at)[i];
    return s;
}

/* ---- mapped in advance ---- */

/* The first version too costs a lock and a look at the header. */
Test(memory_mappings, what_is_offered_is_mapped_before_it_is_used_and_without_a_lock)
{
    offer(2);
    cr_assert_eq(mappings_count(m).mapped_bytes, regions[0]->mapped_bytes + regions[1]->mapped_bytes);
    cr_assert(memory_region_is_free(regions[0]) && memory_region_is_free(regions[1]));
    content_id_t other = publish(1, 2), id = publish(0, 3);
    hold_t *h = take(&other); /* the code is there from now on */
    (void)sum(h->base, h->header.bytes);
    mappings_give(m, &h);
    heddle_error_t e;
    long before = faults();
    int rc = mappings_take(m, name, &id, now_us, &h, &e);
    uint64_t found = rc ? 0 : sum(h->base, h->header.bytes);
    long after = faults();
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    cr_assert_eq(found, 3 * h->header.bytes / 64);
    cr_assert(!COUNTS_FAULTS || after == before, "%ld page faults", after - before);
    cr_assert_eq(mappings_count(m).held_bytes, h->header.bytes);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_USAGE);
    mappings_give(m, &h);
    cr_assert(h == NULL && mappings_count(m).held == 0);
    memory_region_drop(regions[0]);
    cr_assert(memory_region_is_free(regions[0]));
}

/* A refusal wakes no descriptor a second time, and what is refused for good is not asked for again. */
Test(memory_mappings, what_is_refused_keeps_nothing_else_from_being_mapped)
{
    region_name_t names[3] = {{{1}}, {{0}}, {{2}}};
    regions[0] = rig_region(RIG_BYTES);
    names[1] = rig_name(regions[0]);
    handover_offer(source, names, 3);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 1);
    cr_assert_eq(mappings_turn(m, now_us), CLOCK_NEVER);
}

Test(memory_mappings, a_mapping_stays_between_the_contents_of_its_region)
{
    const void *base = NULL;
    offer(2);
    for (uint64_t version = 1; version <= 6; version++) {
        content_id_t id = publish((int)(version % 2), version);
        hold_t *h = take(&id);
        cr_assert(rig_is_whole(h->base, version, h->header.bytes));
        if (version == 1) base = h->base;
        if (version % 2) cr_assert_eq(h->base, base);
        content_id_t old = id;
        old.generation--;
        mappings_give(m, &h);
        cr_assert_eq(mappings_take(m, name, &old, now_us, &h, NULL), HEDDLE_ERR_NOT_FOUND,
                     "not what is there");
    }
}

Test(memory_mappings, notes_come_and_go)
{
    content_id_t id = {.generation = 1};
    settle();
    handover_tell(source, 0, NOTE_VERIFIED, &id);
    settle();
    cr_assert_eq(notes, 1);
    cr_assert_eq(mappings_tell(m, name, NOTE_HELD, &id, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_tell(m, "another", NOTE_HELD, &id, NULL), HEDDLE_ERR_GONE);
}

/* ---- let go ---- */

Test(memory_mappings, what_is_withdrawn_is_let_go_and_what_is_held_stays_until_it_is_given)
{
    offer(3);
    content_id_t id = publish(2, 7);
    hold_t *h = take(&id);
    int before = rig_descriptors();
    offer(1);
    cr_assert_eq(mappings_count(m).mapped, 2);
    cr_assert_eq(rig_descriptors(), before - 1);
    cr_assert(rig_is_whole(h->base, 7, h->header.bytes));
    mappings_give(m, &h);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 1);
    cr_assert_eq(mappings_count(m).mapped_bytes, regions[0]->mapped_bytes);
}

Test(memory_mappings, what_is_offered_again_while_it_goes_is_mapped_again)
{
    offer(1);
    handover_offer(source, NULL, 0);
    while (mappings_count(m).mapped_bytes == regions[0]->mapped_bytes) (void)mappings_turn(m, now_us);
    cr_assert_gt(mappings_count(m).mapped, 0);
    offer(1);
    cr_assert_eq(mappings_count(m).mapped_bytes, regions[0]->mapped_bytes);
    content_id_t id = publish(0, 2);
    hold_t *h = take(&id);
    cr_assert(rig_is_whole(h->base, 2, h->header.bytes));
    mappings_give(m, &h);
}

Test(memory_mappings, a_source_that_comes_back_in_time_finds_its_regions_mapped)
{
    offer(1);
    content_id_t id = publish(0, 1);
    hold_t *h = take(&id);
    const void *base = h->base;
    mappings_give(m, &h);
    now_us += MAPPINGS_GONE_US; /* what counts is the time since it was lost, not since it was found */
    settle();
    handover_destroy(&source);
    settle();
    cr_assert_eq(gone, 1);
    now_us += MAPPINGS_GONE_US - 1;
    settle();
    cr_assert_eq(mappings_count(m).mapped_bytes, regions[0]->mapped_bytes);
    listen_again();
    offer(1);
    now_us += MAPPINGS_GONE_US;
    offer(1);
    h = take(&id);
    cr_assert_eq(h->base, base);
    mappings_give(m, &h);
}

Test(memory_mappings, a_source_that_stays_away_leaves_nothing)
{
    offer(2);
    content_id_t id = publish(0, 1);
    hold_t *h = take(&id);
    handover_destroy(&source);
    settle();
    now_us += MAPPINGS_GONE_US - 1;
    settle();
    cr_assert_eq(mappings_count(m).mapped, 2);
    now_us += 1;
    settle();
    cr_assert_eq(mappings_count(m).mapped, 1, "what is held");
    cr_assert(rig_is_whole(h->base, 1, h->header.bytes));
    mappings_give(m, &h);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 0);
}

/* As a source does that has too many watchers. */
Test(memory_mappings, a_source_that_only_hangs_up_is_gone_as_well)
{
    offer(2);
    handover_destroy(&source);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "heddle-%s", name);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), calls = 0;
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, bytes), 0);
    cr_assert_eq(listen(listener, 4), 0);
    settle();
    for (uint64_t end_us = now_us + MAPPINGS_GONE_US + MAPPINGS_RETRY_US; now_us < end_us;
         now_us += MAPPINGS_RETRY_US) {
        settle();
        for (int fd; (fd = accept(listener, NULL, NULL)) >= 0; calls++) close(fd);
        settle();
    }
    close(listener);
    cr_assert_gt(calls, 5);
    cr_assert_eq(mappings_count(m).mapped, 0);
}

/* The test is the source, which is connected to. */
static int be_the_source(int *ret_listener)
{
    handover_destroy(&source);
    now_us += MAPPINGS_GONE_US;
    settle();
    int peer = -1;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "heddle-%s", name);
    cr_assert_eq(
        bind(listener, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)),
        0);
    cr_assert_eq(listen(listener, 8), 0);
    for (int i = 0; peer < 0; i++, now_us += MAPPINGS_RETRY_US) {
        cr_assert_lt(i, 100);
        settle();
        peer = accept(listener, NULL, NULL);
    }
    *ret_listener = listener;
    return peer;
}

/* Bytes that make no sense, though a list came before. */
Test(memory_mappings, a_source_that_says_something_malformed_is_gone)
{
    int listener, peer = be_the_source(&listener), before = gone;
    cr_assert_eq(send(peer, "nonsense", 8, MSG_NOSIGNAL), 8);
    settle();
    cr_assert_eq(gone, before + 1);
    char end;
    while (recv(peer, &end, 1, MSG_DONTWAIT) > 0) continue;
    cr_assert_eq(recv(peer, &end, 1, MSG_DONTWAIT), 0, "it is not listened to any more");
    close(peer);
    close(listener);
}

Test(memory_mappings, a_source_that_restarts_fifty_times_leaves_nothing_behind)
{
    int descriptors = 0;
    for (int i = 0; i < 50; i++) {
        offer(2);
        content_id_t id = publish(0, 1);
        hold_t *h = take(&id);
        mappings_give(m, &h);
        if (i == 2) descriptors = rig_descriptors();
        cr_assert(i <= 2 || rig_descriptors() == descriptors, "%d", i);
        cr_assert_eq(mappings_count(m).mapped, 2);
        handover_destroy(&source);
        for (int k = 0; k < 2; k++) memory_region_destroy(&regions[k]);
        settle();
        now_us += MAPPINGS_GONE_US;
        settle();
        cr_assert_eq(mappings_count(m).mapped, 0);
        listen_again();
        now_us += MAPPINGS_RETRY_US;
        settle();
    }
}

Test(memory_mappings, what_ten_contents_did_not_use_goes_and_comes_back_when_it_is_taken)
{
    offer(2);
    for (uint64_t i = 0; i < MAPPINGS_UNUSED; i++) {
        cr_assert_eq(mappings_count(m).mapped, 2, "%d", (int)i);
        content_id_t id = publish(0, i + 1);
        hold_t *h = take(&id);
        mappings_give(m, &h);
        settle();
    }
    cr_assert_eq(mappings_count(m).mapped, 1);
    offer(2);
    cr_assert_eq(mappings_count(m).mapped, 1, "a list alone does not bring it back");
    content_id_t id = publish(1, 99);
    hold_t *h = NULL;
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_ERR_AGAIN);
    h = take(&id);
    cr_assert(rig_is_whole(h->base, 99, h->header.bytes));
    mappings_give(m, &h);
}

/* As the regions of a publisher are: ten uses of others in all, and not one after the other. */
Test(memory_mappings, what_is_used_in_turn_stays_mapped)
{
    offer(3);
    for (uint64_t i = 0; i < 6 * MAPPINGS_UNUSED; i++) {
        content_id_t id = publish((int)(i % 3), i + 1);
        hold_t *h = NULL;
        cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_OK, "at once: %d", (int)i);
        mappings_give(m, &h);
        settle();
        cr_assert_eq(mappings_count(m).mapped, 3, "%d", (int)i);
    }
}

Test(memory_mappings, what_goes_because_it_was_not_used_is_not_brought_back_by_a_list)
{
    region_name_t names[2];
    offer(2);
    for (int i = 0; i < 2; i++) names[i] = rig_name(regions[i]);
    for (uint64_t i = 0; i < MAPPINGS_UNUSED; i++) {
        settle();
        content_id_t id = publish(0, i + 1);
        hold_t *h = NULL;
        cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_OK);
        mappings_give(m, &h);
    }
    cr_assert_eq(mappings_count(m).mapped, 2, "it is about to go");
    handover_offer(source, names, 2);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 1);
}

static handover_t *listen_second(void)
{
    handover_t *second = NULL;
    heddle_error_t e;
    snprintf(second_name, sizeof second_name, "more-%d", getpid());
    cr_assert_eq(handover_listen(NULL, second_name, find_region, NULL, &second, &e), HEDDLE_OK);
    if (!regions[1]) regions[1] = rig_region(RIG_BYTES);
    region_name_t theirs = rig_name(regions[1]);
    handover_offer(second, &theirs, 1);
    return second;
}

static void settle_with(handover_t *second)
{
    for (int i = 0; i < 4; i++) {
        handover_turn(second, now_us);
        settle();
    }
}

/* As of two publishers: what one of them does ends nothing of the other's. */
Test(memory_mappings, two_sources_are_apart)
{
    handover_t *second = listen_second();
    heddle_error_t e;
    cr_assert_eq(mappings_watch(m, second_name, now_us, &e), HEDDLE_OK, "%s", e.message);
    offer(1);
    settle_with(second);
    content_id_t id = {.generation = 0};
    hold_t *h = NULL;
    for (uint64_t i = 1; i <= MAPPINGS_UNUSED + 1; i++) {
        if (h) mappings_give(m, &h);
        id = publish(0, i);
        h = take(&id);
        settle();
    }
    cr_assert_eq(mappings_count(m).mapped, 2, "what one publishes makes nothing of the other's old");
    handover_destroy(&second);
    settle();
    now_us += MAPPINGS_GONE_US;
    settle();
    cr_assert_eq(mappings_count(m).mapped, 1);
    cr_assert(rig_is_whole(h->base, MAPPINGS_UNUSED + 1, h->header.bytes));
    mappings_give(m, &h);
    settle();
    cr_assert_eq(mappings_count(m).mapped_bytes, regions[0]->mapped_bytes, "it is offered still");
    handover_destroy(&source);
    settle();
    now_us += MAPPINGS_GONE_US;
    settle();
    cr_assert_eq(mappings_count(m).mapped, 0);
}

/* As a worker of which something is held: it is not tried again when it has ended, and one that is watched
 * anyway is. */
Test(memory_mappings, one_that_is_met_is_watched_while_it_is_there)
{
    offer(1);
    cr_assert(mappings_meet(m, name, now_us));
    cr_assert_not(mappings_meet(m, "no-such-name", now_us));
    handover_t *second = listen_second();
    cr_assert(mappings_meet(m, second_name, now_us));
    settle_with(second);
    cr_assert(mappings_meet(m, second_name, now_us));
    cr_assert_eq(mappings_count(m).mapped, 2);
    for (int i = 0; i < 2; i++) {
        handover_destroy(&second);
        handover_destroy(&source);
        settle();
        now_us += MAPPINGS_GONE_US;
        settle();
        cr_assert_eq(mappings_count(m).mapped, 0);
        second = listen_second();
        listen_again();
        now_us += MAPPINGS_RETRY_US;
        offer(1);
        settle_with(second);
        cr_assert_eq(mappings_count(m).mapped, 1, "of the one that is watched");
    }
    cr_assert(mappings_meet(m, second_name, now_us));
    settle_with(second);
    cr_assert_eq(mappings_count(m).mapped, 2, "met again");
    handover_destroy(&second);
}

/* ---- not offered ---- */

/* As from a holder that hands on. */
Test(memory_mappings, what_is_not_offered_is_asked_for)
{
    hold_t *h = NULL;
    heddle_error_t e;
    regions[0] = rig_region(RIG_BYTES);
    content_id_t id = publish(0, 8), other = id;
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN);
    settle();
    cr_assert_not(memory_region_is_free(regions[0]), "it came with its lock");
    h = take(&id);
    cr_assert(rig_is_whole(h->base, 8, h->header.bytes));
    mappings_give(m, &h);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 0, "no source would ever withdraw it");
    other.identity[0] ^= 1;
    cr_assert_eq(mappings_take(m, name, &other, now_us, &h, &e), HEDDLE_ERR_AGAIN);
    settle();
    cr_assert_eq(mappings_take(m, name, &other, now_us, &h, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, "its source does not have it any more"), "%s", e.message);
    cr_assert_eq(mappings_take(m, "no-such-name", &other, now_us, &h, &e), HEDDLE_ERR_NOT_FOUND);
}

/* Its source would not withdraw it: only its taker's end lets it go. */
Test(memory_mappings, what_is_held_and_not_offered_is_not_taken_again_and_stays_mapped)
{
    hold_t *h = NULL, *again = NULL;
    heddle_error_t e;
    regions[0] = rig_region(2 * MEMORY_STEP_BYTES);
    content_id_t id = publish(0, 8);
    h = take(&id);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(mappings_take(m, name, &id, now_us, &again, &e), HEDDLE_ERR_USAGE);
        settle();
        cr_assert_eq(mappings_count(m).held, 1);
        cr_assert_eq(h->mapped_bytes, h->file_bytes);
        cr_assert(rig_is_whole(h->base, 8, h->header.bytes));
    }
    mappings_give(m, &h);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 0);
}

/* The region was written again, before its last content was refused or after that. */
Test(memory_mappings, a_refusal_is_of_the_content_that_was_asked_for)
{
    hold_t *h = NULL;
    heddle_error_t e;
    regions[0] = rig_region(RIG_BYTES);
    content_id_t next = publish(0, 1);
    for (uint64_t version = 2; version <= 3; version++) {
        content_id_t id = next;
        cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN);
        memory_region_drop(regions[0]);
        if (version == 2) settle();
        next = publish(0, version);
        cr_assert_eq(mappings_take(m, name, &next, now_us, &h, &e), HEDDLE_ERR_AGAIN, "%s", e.message);
        if (version == 3) settle();
        h = take(&next);
        cr_assert(rig_is_whole(h->base, version, h->header.bytes));
        mappings_give(m, &h);
        settle();
    }
}

/* Two sources have the same region, and the one that is asked first stands still: the other one is asked when it
 * is named, before that question ends or after it. */
Test(memory_mappings, an_answer_is_of_the_source_that_was_asked)
{
    handover_t *second = listen_second();
    hold_t *h = NULL;
    heddle_error_t e;
    regions[0] = rig_region(RIG_BYTES);
    content_id_t id = publish(0, 8);
    for (int has_ended = 0; has_ended < 2; has_ended++) {
        cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN);
        now_us += has_ended ? MAPPINGS_ASK_US : 0;
        (void)mappings_turn(m, now_us);
        cr_assert_eq(mappings_take(m, second_name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN, "%s", e.message);
        handover_turn(second, now_us);
        (void)mappings_turn(m, now_us);
        cr_assert_eq(mappings_take(m, second_name, &id, now_us, &h, &e), HEDDLE_OK, "%s", e.message);
        mappings_give(m, &h);
        settle();
    }
    handover_destroy(&second);
}

/* Two adapters: the one that is late does not end what the other has asked for. */
Test(memory_mappings, what_was_written_again_is_not_asked_for)
{
    hold_t *h = NULL;
    heddle_error_t e;
    regions[0] = rig_region(RIG_BYTES);
    content_id_t old = publish(0, 1), id = publish(0, 2);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN);
    cr_assert_eq(mappings_take(m, name, &old, now_us, &h, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, "generation 2 of its region was asked for"), "%s", e.message);
    settle();
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_OK, "%s", e.message);
    mappings_give(m, &h);
}

/* A description that comes without a lock could be of the next content before it is locked. */
Test(memory_mappings, a_content_does_not_wait_for_the_region_alone)
{
    hold_t *h = NULL;
    heddle_error_t e;
    regions[0] = rig_region(RIG_BYTES);
    region_name_t offered = rig_name(regions[0]);
    settle();
    handover_offer(source, &offered, 1);
    (void)mappings_turn(m, now_us);
    content_id_t id = publish(0, 1);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN);
    settle();
    memory_region_drop(regions[0]);
    cr_assert_not(memory_region_is_free(regions[0]), "it came with its lock");
    h = take(&id);
    mappings_give(m, &h);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 1);
}

/* It has the content already; only its mapping would go. */
Test(memory_mappings, what_came_for_a_taker_stays_though_it_is_withdrawn)
{
    hold_t *h = NULL;
    heddle_error_t e;
    regions[0] = rig_region(RIG_BYTES);
    content_id_t id = publish(0, 8);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN);
    settle();
    offer(1);
    offer(0);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_OK, "%s", e.message);
    cr_assert(rig_is_whole(h->base, 8, h->header.bytes));
    mappings_give(m, &h);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 0);
}

Test(memory_mappings, what_is_taken_and_is_another_content_by_now_goes_as_well)
{
    hold_t *h = NULL;
    regions[0] = rig_region(RIG_BYTES);
    content_id_t id = publish(0, 8), other = id;
    other.generation++;
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_ERR_AGAIN);
    settle();
    cr_assert_eq(mappings_take(m, name, &other, now_us, &h, NULL), HEDDLE_ERR_NOT_FOUND);
    settle();
    cr_assert_eq(mappings_count(m).mapped, 0);
    memory_region_drop(regions[0]);
    cr_assert(memory_region_is_free(regions[0]));
}

Test(memory_mappings, a_lock_that_came_and_is_not_taken_ends)
{
    hold_t *h = NULL;
    regions[0] = rig_region(RIG_BYTES);
    content_id_t id = publish(0, 8);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_ERR_AGAIN);
    offer(1);
    settle();
    memory_region_drop(regions[0]);
    cr_assert_not(memory_region_is_free(regions[0]));
    now_us += MAPPINGS_ASK_US;
    settle();
    cr_assert(memory_region_is_free(regions[0]), "and its source lists it still, so that it stays mapped");
}

/* No descriptor is readable then, and an answer may never come. */
Test(memory_mappings, a_turn_is_due_after_each_call_that_changes_what_is_to_do)
{
    hold_t *h = NULL;
    offer(1);
    content_id_t id = publish(0, 8);
    cr_assert_eq(mappings_deadline(m), CLOCK_NEVER);
    cr_assert_eq(mappings_watch(m, "another", now_us, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_deadline(m), 0);
    settle();
    mappings_forgo(m, "another");
    cr_assert_eq(mappings_deadline(m), 0);
    now_us += MAPPINGS_GONE_US;
    settle();
    cr_assert_eq(mappings_deadline(m), CLOCK_NEVER);
    h = take(&id);
    cr_assert_eq(mappings_deadline(m), 0);
    settle();
    mappings_give(m, &h);
    cr_assert_eq(mappings_deadline(m), 0);
    settle();
    regions[1] = rig_region(RIG_BYTES);
    id = publish(1, 9);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_ERR_AGAIN);
    cr_assert_eq(mappings_turn(m, now_us), now_us + MAPPINGS_ASK_US);
    cr_assert_eq(mappings_turn(m, now_us + MAPPINGS_ASK_US), now_us + 2 * MAPPINGS_ASK_US, "it is refused");
}

/* ---- ends ---- */

Test(memory_mappings, what_is_held_outlives_the_table)
{
    int before = rig_descriptors();
    offer(2);
    content_id_t id = publish(0, 5);
    hold_t *h = take(&id);
    mappings_destroy(&m);
    cr_assert(rig_is_whole(h->base, 5, h->header.bytes));
    hold_destroy(&h);
    memory_region_drop(regions[0]);
    cr_assert(memory_region_is_free(regions[0]));
    handover_turn(source, now_us);
    cr_assert_eq(rig_descriptors(), before - 2 + 2, "its poll set and its connection, and two regions");
}

static int child_has_nothing(void *hold)
{
    hold_t *h = hold, *other = NULL;
    content_id_t id = {.generation = 1};
    heddle_error_t e;
    if (mappings_turn(m, now_us) != CLOCK_NEVER || mappings_fd(m) != -1) return 1;
    if (mappings_take(m, name, &id, now_us, &other, &e) != HEDDLE_ERR_USAGE) return 2;
    mappings_give(m, &h);
    mappings_destroy(&m);
    return 0;
}

Test(memory_mappings, a_forked_child_has_nothing_and_ends_nothing)
{
    offer(1);
    content_id_t id = publish(0, 5);
    hold_t *h = take(&id);
    cr_assert_eq(rig_in_child(child_has_nothing, h), 0);
    memory_region_drop(regions[0]);
    cr_assert_not(memory_region_is_free(regions[0]));
    settle();
    cr_assert_eq(gone, 0);
    mappings_give(m, &h);
    cr_assert(memory_region_is_free(regions[0]));
}

static int child_has_no_turn(void *unused) { return (void)unused, mappings_turn(m, now_us) != CLOCK_NEVER; }

/* What the source has sent is there for one process to read. */
Test(memory_mappings, a_child_without_handlers_reads_nothing_of_its_parents)
{
    offer(1);
    regions[1] = rig_region(RIG_BYTES);
    region_name_t names[2] = {rig_name(regions[0]), rig_name(regions[1])};
    handover_offer(source, names, 2);
    handover_turn(source, now_us);
    struct pollfd p = {mappings_fd(m), POLLIN, 0};
    cr_assert_eq(poll(&p, 1, 0), 1);
    cr_assert_eq(rig_in_bare_child(child_has_no_turn, NULL), 0);
    cr_assert_eq(poll(&p, 1, 0), 1);
    settle();
    content_id_t content = publish(1, 5);
    hold_t *h = take(&content);
    mappings_give(m, &h);
}

/* Its copies of what has ended could wake the loop for ever. */
Test(memory_mappings, a_child_without_handlers_keeps_no_source_in_the_poll_set)
{
    int listener, peer = be_the_source(&listener), before = gone;
    struct pollfd p = {mappings_fd(m), POLLIN, 0};
    pid_t child = rig_idle_bare_fork();
    cr_assert_eq(send(peer, "nonsense", 8, MSG_NOSIGNAL), 8);
    settle();
    cr_assert_eq(gone, before + 1);
    cr_assert_eq(send(peer, "more", 4, MSG_NOSIGNAL), 4, "the child has the other end");
    cr_assert_eq(poll(&p, 1, 0), 0);
    close(peer);
    close(listener);
    rig_reap(child, SIGKILL);
}

Test(memory_mappings, a_child_without_handlers_keeps_no_question_in_the_poll_set)
{
    hold_t *h = NULL;
    content_id_t id = {.generation = 1};
    struct pollfd p = {mappings_fd(m), POLLIN, 0};
    settle();
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_ERR_AGAIN);
    pid_t child = rig_idle_bare_fork();
    now_us += MAPPINGS_ASK_US;
    (void)mappings_turn(m, now_us);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, NULL), HEDDLE_ERR_DEADLINE);
    handover_turn(source, now_us); /* the answer comes too late, to the child's copy */
    cr_assert_eq(poll(&p, 1, 0), 0);
    rig_reap(child, SIGKILL);
}

Test(memory_mappings, sources_are_bounded)
{
    heddle_error_t e;
    char other[32];
    cr_assert_eq(mappings_watch(m, "", now_us, &e), HEDDLE_ERR_USAGE);
    for (unsigned i = 1; i < MAPPINGS_SOURCES_MAX; i++) {
        snprintf(other, sizeof other, "none-%u", i);
        cr_assert_eq(mappings_watch(m, other, now_us, &e), HEDDLE_OK);
    }
    cr_assert_eq(mappings_watch(m, name, now_us, &e), HEDDLE_OK, "known");
    cr_assert_eq(mappings_watch(m, "one-more", now_us, &e), HEDDLE_ERR_LIMIT);
    mappings_forgo(m, "none-7");
    mappings_forgo(m, "unknown");
    now_us += MAPPINGS_GONE_US;
    (void)mappings_turn(m, now_us);
    cr_assert_eq(mappings_watch(m, "one-more", now_us, &e), HEDDLE_OK);
}

/* `count` sources that offer LIMIT_OFFERED regions each, of which none is there. Their lists are taken. */
enum { MORE = MAPPINGS_REGIONS_MAX / LIMIT_OFFERED };
static void listen_many(handover_t *more[MORE], int count)
{
    region_name_t names[LIMIT_OFFERED] = {{{0}}};
    heddle_error_t e;
    char other[32];
    for (int i = 0; i < count; i++) {
        snprintf(other, sizeof other, "many-%d-%d", getpid(), i);
        cr_assert_eq(handover_listen(NULL, other, find_region, NULL, &more[i], &e), HEDDLE_OK);
        for (uint32_t k = 0; k < LIMIT_OFFERED; k++)
            names[k] = (region_name_t){{0xff, (uint8_t)i, (uint8_t)k}};
        handover_offer(more[i], names, LIMIT_OFFERED);
        cr_assert_eq(mappings_watch(m, other, now_us, &e), HEDDLE_OK, "%s", e.message);
        handover_turn(more[i], now_us);
    }
    (void)mappings_turn(m, now_us); /* all lists, and one request */
}

/* What others offer, and is not used here, makes room for what is. */
Test(memory_mappings, regions_that_are_held_are_bounded_and_no_others)
{
    handover_t *more[MORE];
    hold_t *h = NULL;
    heddle_error_t e;
    offer(1);
    listen_many(more, MORE);
    regions[1] = rig_region(RIG_BYTES);
    content_id_t id = publish(1, 3);
    cr_assert_eq(mappings_take(m, name, &id, now_us, &h, &e), HEDDLE_ERR_AGAIN, "%s", e.message);
    cr_assert_eq(mappings_count(m).mapped, 1, "what is mapped stays while others are there to go");
    h = take(&id);
    cr_assert(rig_is_whole(h->base, 3, h->header.bytes));
    mappings_give(m, &h);
    for (int i = 0; i < MORE; i++) handover_destroy(&more[i]);
}

/* The source stands still, so that no question ends. */
static uint32_t ask_until_a_limit(void)
{
    hold_t *h = NULL;
    heddle_error_t e = {0};
    uint32_t asked = 0;
    for (; asked <= MAPPINGS_REGIONS_MAX; asked++) {
        content_id_t id = {.generation = 1, .identity = {0xfe, (uint8_t)(asked >> 8), (uint8_t)asked}};
        int rc = mappings_take(m, "many", &id, now_us, &h, &e);
        if (rc == HEDDLE_ERR_LIMIT) break;
        cr_assert_eq(rc, HEDDLE_ERR_AGAIN, "%u: %s", asked, e.message);
    }
    cr_assert(strstr(e.message, "can be mapped"), "%s", e.message);
    return asked;
}

/* The lists fill what is left beside it, and add no more; then each content that is asked for takes a place. */
Test(memory_mappings, what_is_held_makes_no_room_and_can_be_given_back)
{
    handover_t *more[MORE], *many = NULL;
    hold_t *held[3];
    heddle_error_t e;
    struct rlimit limit = {4 * MAPPINGS_REGIONS_MAX, 4 * MAPPINGS_REGIONS_MAX};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (int i = 0; i < 3; i++) {
        regions[i] = rig_region(RIG_BYTES);
        content_id_t id = publish(i, (uint64_t)i + 1);
        held[i] = take(&id);
    }
    listen_many(more, MORE);
    cr_assert_eq(handover_listen(NULL, "many", find_region, NULL, &many, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(ask_until_a_limit(), MAPPINGS_REGIONS_MAX - 3);
    cr_assert_eq(mappings_count(m).held, 3);
    for (int i = 0; i < 3; i++) {
        cr_assert(rig_is_whole(held[i]->base, (uint64_t)i + 1, held[i]->header.bytes));
        mappings_give(m, &held[i]);
        memory_region_drop(regions[i]);
        cr_assert(memory_region_is_free(regions[i]), "%d", i);
    }
    for (int i = 0; i < MORE; i++) handover_destroy(&more[i]);
    handover_destroy(&many);
}

Test(memory_mappings, without_a_descriptor_it_is_tried_again)
{
    struct rlimit old, few;
    settle();
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){(rlim_t)rig_descriptors(), old.rlim_max};
    regions[0] = rig_region(RIG_BYTES);
    region_name_t offered = rig_name(regions[0]);
    handover_offer(source, &offered, 1);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    int filler = -1, last = -1;
    while ((filler = dup(STDIN_FILENO)) >= 0) last = filler;
    settle();
    for (; last > 0 && mappings_count(m).mapped == 0; last = -1) close(last);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_eq(mappings_count(m).mapped, 0);
    now_us += MAPPINGS_RETRY_US;
    settle();
    cr_assert_eq(mappings_count(m).mapped, 1);
}
