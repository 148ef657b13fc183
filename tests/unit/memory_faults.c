/* SPDX-License-Identifier: Apache-2.0 */
/* An owner in a process of its own that dies at any moment, and holders that do not notice. */
#include "tests/unit/memory_rig.h"

#include <stdlib.h>

static void is_refused(hold_t *h, const content_id_t *id, const char *text)
{
    heddle_error_t e;
    cr_assert_eq(hold_take(h, id, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, text), "%s", e.message);
}

/* A holder's mapping and description, without a hold. */
static hold_t *cached(rig_owner_t *o, const content_id_t *id)
{
    hold_t *h = rig_held(o, id);
    hold_release(h);
    return h;
}

/* The owner writes the region with version 2: all of it, or a half; it does not seal it. */
static void write_again(rig_owner_t *o, rig_order_t how)
{
    rig_order(o, RIG_DROP, 0);
    cr_assert_eq(rig_order(o, RIG_BEGIN, 0).rc, HEDDLE_OK);
    rig_order(o, how, 2);
}

Test(memory_faults, what_was_sealed_outlives_its_owner)
{
    rig_owner_t o = rig_owner();
    content_id_t id = rig_owner_publishes(&o, 1);
    hold_t *held = rig_held(&o, &id), *late = cached(&o, &id);
    rig_kill(&o);
    cr_assert(rig_is_whole(held->base, 1, held->header.bytes));
    cr_assert_eq(hold_take(late, &id, NULL), HEDDLE_OK);
    cr_assert(rig_is_whole(late->base, 1, late->header.bytes));
    hold_destroy(&held);
    hold_destroy(&late);
}

Test(memory_faults, an_owner_killed_before_the_seal_leaves_nothing_to_hold)
{
    rig_owner_t o = rig_owner();
    content_id_t first = rig_owner_publishes(&o, 1);
    hold_t *h = cached(&o, &first);
    write_again(&o, RIG_FILL);
    content_id_t second = o.id;
    second.manifest = rig_manifest(2);
    rig_kill(&o);
    is_refused(h, &first, "the memory has been written again");
    is_refused(h, &second, "it was not written to its end");
    hold_destroy(&h);
}

/* Between the two acts of a seal: the content is whole, and is not announced yet. */
Test(memory_faults, an_owner_killed_at_the_seal_leaves_a_whole_version)
{
    rig_owner_t o = rig_owner();
    content_id_t id = rig_owner_publishes(&o, 1);
    hold_t *h = cached(&o, &id);
    write_again(&o, RIG_FILL);
    rig_order(&o, RIG_SEAL_AND_KEEP_THE_LOCK, 2);
    is_refused(h, &o.id, "its owner is writing the memory");
    rig_kill(&o);
    is_refused(h, &id, "the memory has been written again");
    cr_assert_eq(hold_take(h, &o.id, NULL), HEDDLE_OK);
    cr_assert(rig_is_whole(h->base, 2, h->header.bytes));
    hold_destroy(&h);
}

/* Lock granted, seals and size right, the old manifest whole, and bytes of two versions. */
Test(memory_faults, a_late_holder_is_refused_after_a_death_in_mid_rewrite)
{
    rig_owner_t o = rig_owner();
    content_id_t id = rig_owner_publishes(&o, 1);
    hold_t *h = cached(&o, &id), *late;
    write_again(&o, RIG_HALF);
    rig_kill(&o);
    const uint8_t *bytes = h->base;
    cr_assert(bytes[0] == 2 && bytes[RIG_BYTES - 1] == 1, "torn");
    late = rig_hold_new(rig_open(h->file.fd, O_RDONLY));
    is_refused(h, &id, "the memory has been written again");
    is_refused(late, &id, "the memory has been written again");
    hold_destroy(&h);
    hold_destroy(&late);
}

Test(memory_faults, an_abort_is_as_good_as_a_death)
{
    rig_owner_t o = rig_owner();
    content_id_t id = rig_owner_publishes(&o, 1);
    hold_t *h = cached(&o, &id);
    write_again(&o, RIG_HALF);
    rig_order(&o, RIG_ABORT, 0);
    is_refused(h, &id, "the memory has been written again");
    is_refused(h, &o.id, "it was not written to its end");
    id = rig_owner_publishes(&o, 3);
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK, "and the next version is one");
    cr_assert(rig_is_whole(h->base, 3, h->header.bytes));
    hold_destroy(&h);
    rig_kill(&o);
}

/* Its lock goes with its last descriptor: a child without our handlers has one. */
Test(memory_faults, a_child_of_an_owner_that_died_while_it_wrote_keeps_holders_out)
{
    rig_owner_t o = rig_owner();
    content_id_t id = rig_owner_publishes(&o, 1);
    hold_t *h = cached(&o, &id);
    write_again(&o, RIG_HALF);
    pid_t child = rig_order(&o, RIG_FORK, 0).child;
    rig_kill(&o);
    is_refused(h, &id, "its owner is writing the memory");
    kill(child, SIGKILL);
    uint64_t end_us = clock_now(clock_system()) + RIG_PATIENCE_US;
    while (file_lock(h->file.fd, F_RDLCK) && clock_now(clock_system()) < end_us) usleep(1000);
    is_refused(h, &id, "the memory has been written again");
    hold_destroy(&h);
}

/* A receiver that stands still while its descriptor is in flight, and is killed. */
Test(memory_faults, a_description_in_flight_to_a_stopped_process_is_a_hold_until_its_death)
{
    rig_owner_t o = rig_owner();
    content_id_t id = rig_owner_publishes(&o, 1);
    int ready[2];
    char byte;
    cr_assert_eq(pipe(ready), 0);
    pid_t receiver = fork();
    if (receiver == 0) {
        handover_ask_t *a = NULL;
        if (handover_ask(NULL, o.name, &id, CLOCK_NEVER, &a, NULL)) _exit(1);
        struct pollfd p = {handover_ask_fd(a), POLLIN, 0};
        (void)poll(&p, 1, -1);
        (void)!write(ready[1], "x", 1);
        for (;;) pause();
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    rig_order(&o, RIG_DROP, 0);
    cr_assert_eq(rig_order(&o, RIG_IS_FREE, 0).rc, 0);
    cr_assert_eq(rig_order(&o, RIG_BEGIN, 0).rc, HEDDLE_ERR_NO_SLOT);
    rig_reap(receiver, SIGKILL);
    cr_assert_eq(rig_order(&o, RIG_IS_FREE, 0).rc, 1);
    cr_assert_eq(rig_order(&o, RIG_BEGIN, 0).rc, HEDDLE_OK);
    rig_kill(&o);
}

Test(memory_faults, a_holder_that_is_killed_holds_nothing)
{
    rig_owner_t o = rig_owner();
    content_id_t id = rig_owner_publishes(&o, 1);
    int ready[2];
    char byte;
    cr_assert_eq(pipe(ready), 0);
    pid_t holder = fork();
    if (holder == 0) {
        hold_t *h = rig_held(&o, &id);
        (void)!write(ready[1], h ? "x" : "", 1);
        for (;;) pause();
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    rig_order(&o, RIG_DROP, 0);
    cr_assert_eq(rig_order(&o, RIG_BEGIN, 0).rc, HEDDLE_ERR_NO_SLOT);
    rig_reap(holder, SIGKILL);
    cr_assert_eq(rig_order(&o, RIG_BEGIN, 0).rc, HEDDLE_OK);
    rig_kill(&o);
}

/* A holder that was handed another region for what it asked. */
Test(memory_faults, another_region_is_refused)
{
    rig_owner_t a = rig_owner(), b = rig_owner();
    content_id_t first = rig_owner_publishes(&a, 1), second = rig_owner_publishes(&b, 1);
    hold_t *h = cached(&a, &first);
    is_refused(h, &second, "the memory is another region");
    hold_destroy(&h);
    rig_kill(&a);
    rig_kill(&b);
}

/* ---- none, one and sixteen holders, whenever the owner is killed ---- */

enum { MANY = 16 };
typedef enum { BEFORE_THE_SEAL, AT_THE_SEAL, AFTER_THE_SEAL, IN_MID_REWRITE, DEATHS } death_t;

typedef struct {
    rig_owner_t owner;
    uint32_t count;
    content_id_t first, last; /* of the region that is held, and of the other one */
    hold_t *held[MANY];       /* version 1 */
    hold_t *mapped[MANY];     /* the other region, in which version 2 was, without a hold */
} host_t;

static host_t host_with(uint32_t count)
{
    host_t s = {.owner = rig_owner(), .count = count};
    s.first = rig_owner_publishes(&s.owner, 1);
    s.last = rig_owner_publishes_in(&s.owner, 1, 2);
    for (uint32_t i = 0; i < count; i++) {
        s.held[i] = rig_held(&s.owner, &s.first);
        s.mapped[i] = cached(&s.owner, &s.last);
    }
    if (count) {
        rig_order(&s.owner, RIG_DROP, 0);
        cr_assert_eq(rig_order(&s.owner, RIG_BEGIN, 0).rc, HEDDLE_ERR_NO_SLOT, "it is held");
    }
    return s;
}

/* In the other region, with version 3. */
static void die(host_t *s, death_t when)
{
    rig_owner_t *o = &s->owner;
    rig_order_in(o, 1, RIG_DROP, 0);
    cr_assert_eq(rig_order_in(o, 1, RIG_BEGIN, 0).rc, HEDDLE_OK);
    rig_order_in(o, 1, when == IN_MID_REWRITE ? RIG_HALF : RIG_FILL, 3);
    if (when == AT_THE_SEAL) rig_order_in(o, 1, RIG_SEAL_AND_KEEP_THE_LOCK, 3);
    if (when == AFTER_THE_SEAL) cr_assert_eq(rig_order_in(o, 1, RIG_SEAL, 3).rc, HEDDLE_OK);
    s->last = o->id;
    s->last.manifest = rig_manifest(3);
    rig_kill(o);
}

static int find_held(void *self, const content_id_t *id)
{
    int fd;
    (void)id;
    return hold_hand_on(self, &fd, NULL) ? HEDDLE_ERR_NOT_FOUND : fd;
}

/* In a process of its own, which asks this one. */
static bool late_joiner_gets(hold_t *from, const content_id_t *id, uint64_t version)
{
    handover_t *source = NULL;
    char name[32];
    int status = 0;
    snprintf(name, sizeof name, "late-%d", getpid());
    cr_assert_eq(handover_listen(NULL, name, find_held, from, &source, NULL), HEDDLE_OK);
    pid_t pid = fork();
    if (pid == 0) {
        hold_t *h = NULL;
        if (rig_ask(NULL, name, id, &h, NULL) || hold_take(h, id, NULL)) _exit(1);
        _exit(!rig_is_whole(h->base, version, h->header.bytes));
    }
    while (waitpid(pid, &status, WNOHANG) == 0) {
        struct pollfd p = {handover_fd(source), POLLIN, 0};
        (void)poll(&p, 1, 10);
        handover_turn(source, clock_now(clock_system()));
    }
    handover_destroy(&source);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int regions_mapped(void)
{
    char line[512];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    while (fgets(line, sizeof line, f)) n += strstr(line, "/memfd:heddle-region") != NULL;
    fclose(f);
    return n;
}

static void assert_it_serves_on(host_t *s, death_t when)
{
    hold_t *h = NULL;
    cr_assert_neq(rig_ask(NULL, s->owner.name, &s->first, &h, NULL), HEDDLE_OK, "the owner is gone");
    for (uint32_t i = 0; i < s->count; i++) {
        cr_assert(rig_is_whole(s->held[i]->base, 1, s->held[i]->header.bytes), "holder %u", i);
        if (when == BEFORE_THE_SEAL || when == IN_MID_REWRITE) {
            is_refused(s->mapped[i], &s->last, "it was not written to its end");
        } else {
            cr_assert_eq(hold_take(s->mapped[i], &s->last, NULL), HEDDLE_OK, "holder %u", i);
            cr_assert(rig_is_whole(s->mapped[i]->base, 3, s->mapped[i]->header.bytes), "holder %u", i);
            cr_assert(late_joiner_gets(s->mapped[i], &s->last, 3), "from holder %u", i);
        }
    }
}

/* Each holder is the last one once it has handed on. */
static void assert_it_goes_with_the_last_one(host_t *s, int descriptors)
{
    for (uint32_t i = 0; i < s->count; i++) {
        cr_assert(late_joiner_gets(s->held[i], &s->first, 1), "from holder %u", i);
        cr_assert_eq(regions_mapped(), 2 * (int)(s->count - i));
        hold_destroy(&s->held[i]);
        hold_destroy(&s->mapped[i]);
    }
    cr_assert_eq(regions_mapped(), 0);
    cr_assert_eq(rig_descriptors(), descriptors);
}

Test(memory_faults, whenever_an_owner_is_killed_none_one_and_sixteen_holders_serve_on)
{
    static const uint32_t COUNTS[] = {0, 1, MANY};
    int descriptors = rig_descriptors();
    for (death_t when = BEFORE_THE_SEAL; when < DEATHS; when++)
        for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
            host_t s = host_with(COUNTS[i]);
            die(&s, when);
            assert_it_serves_on(&s, when);
            assert_it_goes_with_the_last_one(&s, descriptors);
        }
}

/* ---- any order ---- */

enum { ROUNDS = 1000, STEPS = 24, HOLDERS = 2 };

typedef struct {
    uint64_t first, seed;
    rig_owner_t owner;
    bool is_alive, is_writing, is_filled, is_offered;
    uint64_t version;             /* the last that was begun */
    content_id_t contents[STEPS]; /* all that were announced, and their versions */
    uint64_t versions[STEPS];
    int announced;
    hold_t *holds[HOLDERS];
    uint64_t held[HOLDERS]; /* the version that each may read; 0: none */
} play_t;
#define SEED(round) ((unsigned long long)(round)->first)

static uint32_t random_below(play_t *r, uint32_t count)
{
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->seed >> 33) % count;
}

static void step_of_owner(play_t *r)
{
    switch (random_below(r, 6)) {
    case 0:
    case 1:
        if (r->is_writing || r->is_offered) break;
        r->is_filled = false;
        r->is_writing = rig_order(&r->owner, RIG_BEGIN, 0).rc == HEDDLE_OK;
        cr_assert(!r->is_writing || (!r->held[0] && !r->held[1]), "seed %llu: it writes under a holder",
                  SEED(r));
        r->version += r->is_writing;
        break;
    case 2:
        if (r->is_writing) rig_order(&r->owner, RIG_HALF, r->version);
        break;
    case 3:
        if (!r->is_writing) break;
        rig_order(&r->owner, RIG_FILL, r->version);
        cr_assert_eq(rig_order(&r->owner, RIG_SEAL, r->version).rc, HEDDLE_OK);
        r->is_writing = false;
        r->is_offered = true;
        r->contents[r->announced] = r->owner.id;
        r->versions[r->announced++] = r->version;
        break;
    case 4:
        rig_order(&r->owner, r->is_writing ? RIG_ABORT : RIG_DROP, 0);
        r->is_writing = r->is_offered = false;
        break;
    default:
        if (random_below(r, 3)) break;
        rig_kill(&r->owner);
        r->is_alive = r->is_writing = r->is_offered = false;
        break;
    }
}

/* It may hold any content that was ever announced, and asks the owner when it has no descriptor. */
static void step_of_holder(play_t *r, int i)
{
    if (r->held[i]) {
        cr_assert(rig_is_whole(r->holds[i]->base, r->held[i], RIG_BYTES), "seed %llu: torn under a hold",
                  SEED(r));
        hold_release(r->holds[i]);
        r->held[i] = 0;
        return;
    }
    if (!r->announced) return;
    int k = (int)random_below(r, (uint32_t)r->announced);
    if (!r->holds[i] && (!r->is_alive || rig_ask(NULL, r->owner.name, &r->contents[k], &r->holds[i], NULL)))
        return;
    if (hold_take(r->holds[i], &r->contents[k], NULL)) return;
    r->held[i] = r->versions[k];
    cr_assert(rig_is_whole(r->holds[i]->base, r->held[i], RIG_BYTES),
              "seed %llu: another content than was announced", SEED(r));
}

static void run_round(uint64_t seed, unsigned *ret_held, unsigned *ret_killed)
{
    play_t r = {.first = seed, .seed = seed, .owner = rig_owner(), .is_alive = true};
    for (int step = 0; step < STEPS; step++) {
        uint32_t which = random_below(&r, HOLDERS + 1);
        if (which < HOLDERS) step_of_holder(&r, (int)which);
        else if (r.is_alive) step_of_owner(&r);
        *ret_held += r.held[0] || r.held[1];
    }
    if (r.is_alive) rig_kill(&r.owner);
    else ++*ret_killed;
    for (int i = 0; i < HOLDERS; i++) {
        if (r.held[i])
            cr_assert(rig_is_whole(r.holds[i]->base, r.held[i], RIG_BYTES), "seed %llu: torn at the end",
                      SEED(&r));
        hold_destroy(&r.holds[i]);
    }
}

/* HEDDLE_SEED=n repeats one round. */
Test(memory_faults, a_thousand_orders_of_owner_and_holders)
{
    const char *one = getenv("HEDDLE_SEED");
    uint64_t from = one ? strtoull(one, NULL, 10) : 1, to = one ? from : ROUNDS;
    unsigned held = 0, killed = 0;
    int before = rig_descriptors();
    for (uint64_t seed = from; seed <= to; seed++) run_round(seed, &held, &killed);
    cr_log_info("held in %u steps, the owner was killed in %u rounds", held, killed);
    cr_assert(one || (held > ROUNDS && killed > ROUNDS / 20), "held in %u steps, killed in %u rounds", held,
              killed);
    cr_assert_eq(rig_descriptors(), before);
}
