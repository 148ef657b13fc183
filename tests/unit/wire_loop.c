/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: order within a turn, posts from many threads, descriptors, sources, stopping, sleeping. */
#include "core/clock.h"
#include "tests/lib/machine_time.h"
#include "tests/unit/other_thread.h"
#include "wire/loop.h"

#include <criterion/criterion.h>
#include <heddle/error.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    loop_t *loop;
    char trace[256];
    int count;
    int fd;
    uint64_t deadline_us;
    bool more;
} probe_t;

static void note(probe_t *p, const char *what)
{
    size_t n = strlen(p->trace);
    snprintf(p->trace + n, sizeof p->trace - n, "%s ", what);
}

static uint64_t tick(void *self, uint64_t now_us)
{
    probe_t *p = self;
    note(p, "tick");
    p->count++;
    return p->deadline_us ? p->deadline_us : now_us + 1000000;
}
static void flush(void *self) { note(self, "flush"); }
static void posted(void *self, void *arg, uint64_t at_us)
{
    (void)at_us;
    note(self, arg);
}
static void on_fd(void *self)
{
    probe_t *p = self;
    uint64_t n;
    cr_assert_eq(read(p->fd, &n, sizeof n), sizeof n);
    note(p, "fd");
}
static bool work(void *self)
{
    probe_t *p = self;
    note(p, "work");
    bool more = p->more;
    p->more = false;
    return more;
}

static uint64_t now_us(void) { return clock_now(clock_system()); }

Test(loop, order_of_a_turn, .timeout = 10)
{
    probe_t p = {.fd = eventfd(1, EFD_NONBLOCK)};
    cr_assert_eq(loop_new(clock_system(), &p.loop), 0);
    loop_set_tick(p.loop, tick, &p);
    loop_set_flush(p.loop, flush, &p);
    cr_assert_eq(loop_add_fd(p.loop, p.fd, on_fd, &p), 0);
    cr_assert_eq(loop_add_source(p.loop, -1, work, NULL, &p), 0);
    loop_post_t posts[] = {{.fn = posted, .self = &p, .arg = "a"}, {.fn = posted, .self = &p, .arg = "b"}};
    cr_assert_eq(loop_post(p.loop, &posts[0]), 0);
    cr_assert_eq(loop_post(p.loop, &posts[1]), 0);
    loop_turn(p.loop, 0);
    cr_assert_str_eq(p.trace, "tick a b work flush ");
    p.trace[0] = 0;
    loop_turn(p.loop, 0);
    cr_assert_str_eq(p.trace, "tick fd work flush ");
    loop_destroy(&p.loop);
    cr_assert_null(p.loop);
    loop_destroy(&p.loop);
    close(p.fd);
}

/* A deadline that a post creates is seen before the loop sleeps: a busy turn does not sleep. */
static void set_deadline(void *self, void *arg, uint64_t at_us)
{
    (void)at_us;
    (void)arg;
    ((probe_t *)self)->deadline_us = now_us() + 20000;
}

Test(loop, deadline_made_in_a_turn_is_kept, .timeout = 10)
{
    probe_t p = {.deadline_us = CLOCK_NEVER};
    loop_new(clock_system(), &p.loop);
    loop_set_tick(p.loop, tick, &p);
    loop_post(p.loop, &(loop_post_t){.fn = set_deadline, .self = &p});
    machine_time_t taken;
    machine_time_start(&taken);
    uint64_t start = now_us();
    while (p.deadline_us == CLOCK_NEVER || now_us() < p.deadline_us) loop_turn(p.loop, start + 5000000);
    cr_assert_lt(machine_time_stop(&taken), 2000);
    loop_destroy(&p.loop);
}

Test(loop, sleeps_until_the_deadline_and_not_busily, .timeout = 10)
{
    probe_t p = {0};
    loop_new(clock_system(), &p.loop);
    p.deadline_us = now_us() + 150000;
    loop_set_tick(p.loop, tick, &p);
    while (now_us() < p.deadline_us) loop_turn(p.loop, CLOCK_NEVER);
    cr_assert_leq(p.count, 4, "%d turns for one sleep", p.count);
    loop_destroy(&p.loop);
}

Test(loop, source_that_is_not_armed_keeps_the_loop_awake, .timeout = 10)
{
    probe_t p = {.more = true, .deadline_us = CLOCK_NEVER};
    loop_new(clock_system(), &p.loop);
    loop_set_tick(p.loop, tick, &p);
    loop_add_source(p.loop, -1, work, NULL, &p);
    machine_time_t taken;
    machine_time_start(&taken);
    loop_turn(p.loop, now_us() + 3000000); /* work says "more": no sleep */
    cr_assert_lt(machine_time_stop(&taken), 1000);
    loop_remove_source(p.loop, &p);
    p.trace[0] = 0;
    loop_turn(p.loop, 0);
    cr_assert_str_eq(p.trace, "tick ");
    loop_destroy(&p.loop);
}

/* Beside a descriptor of a source no sleep is longer than the bound; readable, it does not make a
 * turn busy. */
static bool armed(void *self)
{
    ((probe_t *)self)->count++;
    return true;
}

Test(loop, source_with_a_descriptor_bounds_the_sleep, .timeout = 10)
{
    probe_t p = {.fd = eventfd(0, EFD_NONBLOCK)};
    loop_new(clock_system(), &p.loop);
    loop_add_source(p.loop, p.fd, work, armed, &p);
    machine_time_t taken;
    machine_time_start(&taken);
    uint64_t start = now_us();
    loop_turn(p.loop, start + 5000000);
    cr_assert_lt(machine_time_stop(&taken), 3000);
    uint64_t one = 1;
    cr_assert_eq(write(p.fd, &one, sizeof one), sizeof one);
    for (int i = 0; i < 3; i++) loop_turn(p.loop, start + 5000000);
    cr_assert_eq(p.count, 4, "arm is asked though the descriptor stays readable");
    loop_destroy(&p.loop);
    close(p.fd);
}

static void remove_other(void *self)
{
    probe_t *p = self;
    note(p, "first");
    loop_remove_fd(p->loop, p->fd);
}

Test(loop, descriptor_removed_in_the_same_turn_is_not_called, .timeout = 10)
{
    probe_t p = {.fd = eventfd(1, EFD_NONBLOCK)};
    int first = eventfd(1, EFD_NONBLOCK);
    loop_new(clock_system(), &p.loop);
    loop_add_fd(p.loop, first, remove_other, &p);
    loop_add_fd(p.loop, p.fd, on_fd, &p);
    loop_turn(p.loop, 0);
    loop_turn(p.loop, 0);
    loop_turn(p.loop, 0);
    cr_assert_str_eq(p.trace, "first first ");
    loop_destroy(&p.loop);
    close(first);
    close(p.fd);
}

static void add_many(void *self)
{
    probe_t *p = self;
    loop_remove_fd(p->loop, p->fd);
    for (int i = 0; i < 64; i++) cr_assert_eq(loop_add_fd(p->loop, p->fd + 1000, on_fd, p), 0);
    loop_remove_fd(p->loop, p->fd + 1000);
    note(p, "added");
}

Test(loop, table_may_grow_in_a_callback, .timeout = 10)
{
    probe_t p = {.fd = eventfd(1, EFD_NONBLOCK)};
    loop_new(clock_system(), &p.loop);
    loop_add_fd(p.loop, p.fd, add_many, &p);
    for (int i = 0; i < 3; i++) loop_turn(p.loop, 0);
    cr_assert_str_eq(p.trace, "added ");
    loop_destroy(&p.loop);
    close(p.fd);
}

/* ---- threads ---- */

enum { POSTERS = 4, POSTS = 5000 };
typedef struct {
    loop_t *loop;
    int id;
    loop_post_t posts[POSTS];
} poster_t;
static int last_of[POSTERS], total;

static void check_order(void *self, void *arg, uint64_t at_us)
{
    (void)at_us;
    poster_t *poster = self;
    int number = (int)(intptr_t)arg;
    cr_assert_eq(number, last_of[poster->id] + 1);
    last_of[poster->id] = number;
    if (++total == POSTERS * POSTS) loop_stop(poster->loop);
}

static void *post_all(void *arg)
{
    poster_t *poster = arg;
    for (int i = 1; i <= POSTS; i++) {
        loop_post_t *post = &poster->posts[i - 1];
        *post = (loop_post_t){.fn = check_order, .self = poster, .arg = (void *)(intptr_t)i};
        cr_assert_eq(loop_post(poster->loop, post), 0);
    }
    return NULL;
}

Test(loop, posts_of_each_thread_run_in_order, .timeout = 20)
{
    loop_t *loop;
    pthread_t threads[POSTERS];
    static poster_t posters[POSTERS];
    loop_new(clock_system(), &loop);
    for (int i = 0; i < POSTERS; i++) {
        posters[i].loop = loop;
        posters[i].id = i;
        pthread_create(&threads[i], NULL, post_all, &posters[i]);
    }
    loop_run(loop);
    for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
    cr_assert_eq(total, POSTERS * POSTS);
    loop_destroy(&loop);
}

static void *run(void *arg)
{
    loop_run(arg);
    return NULL;
}
static void count_up(void *self, void *arg, uint64_t at_us)
{
    (void)at_us;
    (void)arg;
    (*(int *)self)++;
}

/* Its memory goes in its own call: the loop does not look at it any more. */
typedef struct {
    loop_post_t post;
    int *ran;
} own_post_t;
static void count_and_free(void *self, void *arg, uint64_t at_us)
{
    (void)at_us;
    own_post_t *own = self;
    (void)arg;
    (*own->ran)++;
    free(own);
}
static int post_own(loop_t *loop, int *ran)
{
    own_post_t *own = malloc(sizeof *own);
    *own = (own_post_t){.post = {.fn = count_and_free, .self = own}, .ran = ran};
    int rc = loop_post(loop, &own->post);
    if (rc) free(own);
    return rc;
}

/* Posting races with stopping: a post either ran or was refused. */
Test(loop, accepted_posts_run_and_later_ones_are_refused, .timeout = 20)
{
    for (int round = 0; round < 200; round++) {
        loop_t *loop;
        pthread_t thread;
        int ran = 0, taken = 0;
        loop_new(clock_system(), &loop);
        loop_hand_over(loop);
        pthread_create(&thread, NULL, run, loop);
        for (int i = 0; i < round % 20; i++) taken += post_own(loop, &ran) == 0;
        loop_stop(loop);
        int rc;
        while ((rc = post_own(loop, &ran)) == 0) taken++;
        cr_assert_eq(rc, HEDDLE_ERR_CLOSED);
        pthread_join(thread, NULL);
        cr_assert_eq(ran, taken);
        loop_destroy(&loop);
    }
}

static loop_t *stopped_by_signal;
static void on_alarm(int number)
{
    (void)number;
    loop_stop(stopped_by_signal);
}

Test(loop, stops_from_a_signal_handler, .timeout = 10)
{
    loop_new(clock_system(), &stopped_by_signal);
    signal(SIGALRM, on_alarm);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    cr_assert_eq(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
    timer_settime(timer, 0, &(struct itimerspec){.it_value.tv_nsec = 20000000}, NULL);
    loop_run(stopped_by_signal);
    loop_destroy(&stopped_by_signal);
}

Test(loop, posting_takes_no_memory, .timeout = 10)
{
    enum { POSTED = 100 };
    loop_t *loop;
    loop_post_t posts[POSTED];
    int ran = 0;
    loop_new(clock_system(), &loop);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < POSTED; i++) {
        posts[i] = (loop_post_t){.fn = count_up, .self = &ran};
        cr_assert_eq(loop_post(loop, &posts[i]), 0);
    }
    cr_assert_eq(mallinfo2().uordblks, before);
    loop_turn(loop, 0);
    cr_assert_eq(ran, POSTED);
    cr_assert_eq(loop_post(loop, &posts[0]), 0);
    loop_destroy(&loop);
    cr_assert_eq(ran, POSTED, "a loop that ends without loop_run drops what was not run");
}

static void *wake_later(void *arg)
{
    loop_wake(arg);
    return NULL;
}

Test(loop, wake_ends_a_sleep, .timeout = 10)
{
    probe_t p = {.deadline_us = CLOCK_NEVER};
    loop_new(clock_system(), &p.loop);
    loop_set_tick(p.loop, tick, &p);
    pthread_t thread;
    pthread_create(&thread, NULL, wake_later, p.loop);
    loop_turn(p.loop, CLOCK_NEVER); /* would sleep for ever */
    pthread_join(thread, NULL);
    loop_destroy(&p.loop);
}

/* ---- whose it is ---- */

static void turn_once(void *loop) { loop_turn(loop, 0); }
static void run_to_its_end(void *loop) { loop_run(loop); }
static void set_no_tick(void *loop) { loop_set_tick(loop, NULL, NULL); }

Test(loop, another_thread_may_not_turn_it, ENDS_THE_PROCESS)
{
    loop_t *loop;
    loop_new(clock_system(), &loop);
    on_another_thread(turn_once, loop);
}

Test(loop, another_thread_may_not_change_it, ENDS_THE_PROCESS)
{
    loop_t *loop;
    loop_new(clock_system(), &loop);
    on_another_thread(set_no_tick, loop);
}

Test(loop, another_thread_may_turn_it_once_it_was_handed_over)
{
    loop_t *loop;
    loop_new(clock_system(), &loop);
    loop_hand_over(loop);
    loop_stop(loop);
    on_another_thread(run_to_its_end, loop);
    loop_destroy(&loop); /* loop_run has handed it back */
}
