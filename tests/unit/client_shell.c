/* SPDX-License-Identifier: Apache-2.0 */
/* The shell with a node that only notes what it hears, against a listener on loopback; and the queue
 * of events. */
#include "client/broker_address.h"
#include "client/event_queue.h"
#include "client/shell.h"
#include "core/failpoint.h"
#include "wire/wire.h"
#include "tests/unit/other_thread.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { PATIENCE_MS = 8000 };

/* ---- a broker that answers every frame with itself ---- */

typedef struct {
    loop_t *loop;
    wire_t *wire;
    pthread_t thread;
    char endpoint[128];
    int frames;
} broker_t;

static void echo(void *self, peer_t from, bytes_t frame)
{
    broker_t *b = self;
    b->frames++;
    wire_send(b->wire, from, frame);
}
static const wire_sink_t ECHO = {.on_frame = echo};

static void *run_broker(void *self)
{
    loop_run(((broker_t *)self)->loop);
    return NULL;
}
static void start_broker(broker_t *b, const char *endpoint)
{
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_MS * 1000;
    cr_assert_eq(loop_new(clock_system(), &b->loop), 0);
    int rc;
    do rc = wire_listen(b->loop, endpoint, NULL, &ECHO, b, &b->wire, NULL);
    while (rc == HEDDLE_ERR_ADDRESS_IN_USE && clock_now(clock_system()) < end_us);
    cr_assert_eq(rc, 0);
    snprintf(b->endpoint, sizeof b->endpoint, "%s", wire_endpoint(b->wire));
    loop_hand_over(b->loop);
    cr_assert_eq(pthread_create(&b->thread, NULL, run_broker, b), 0);
}
static void stop_broker(broker_t *b)
{
    loop_stop(b->loop);
    pthread_join(b->thread, NULL);
    wire_close(&b->wire);
    loop_destroy(&b->loop);
}

/* ---- a node: says "hello" when the line comes up, tells of each line and frame by an event ---- */

typedef struct {
    const node_io_t *io;
    pthread_t thread;
    uint64_t deadline_us, calls;
    int fd; /* that its tick reads when it is readable */
    bool is_readable;
    atomic_int ticks;
    int works;
    sigset_t mask;
} probe_t;

static void tell(probe_t *p, int type, const char *text)
{
    heddle_event_t e = {.size = sizeof e, .type = type};
    snprintf(e.message, sizeof e.message, "%s", text);
    p->io->event(p->io->self, &e);
}
static void on_session(void *node, const node_event_t *event, uint64_t now_us)
{
    probe_t *p = node;
    char text[64];
    (void)now_us;
    if (event->kind == SE_FRAME) {
        snprintf(text, sizeof text, "%.*s", (int)event->frame.bytes, (const char *)event->frame.data);
        tell(p, HEDDLE_EVENT_ARRIVED, text);
        return;
    }
    bool up = event->kind == SE_CONNECTED;
    tell(p, up ? HEDDLE_EVENT_JOINED : HEDDLE_EVENT_LOST_BROKER, "");
    if (up) p->io->send(p->io->self, bytes_of("hello", 5));
}
static void on_transfer(void *node, const tr_event_t *event, uint64_t now_us)
{
    (void)node, (void)event, (void)now_us;
    cr_assert_fail("there is no transfer");
}
static uint64_t on_tick(void *node, uint64_t now_us)
{
    probe_t *p = node;
    (void)now_us;
    p->ticks++;
    eventfd_t value;
    if (p->is_readable && eventfd_read(p->fd, &value) == 0) tell(p, HEDDLE_EVENT_ARRIVED, "read");
    p->is_readable = false;
    return p->deadline_us ? p->deadline_us : CLOCK_NEVER;
}
static void on_readable(void *node) { ((probe_t *)node)->is_readable = true; }
static bool on_work(void *node, uint64_t now_us)
{
    probe_t *p = node;
    (void)now_us;
    if (p->works == 0) return false;
    if (--p->works == 0) tell(p, HEDDLE_EVENT_STAGED, "worked");
    return p->works > 0;
}
static void give_work(void *node, void *arg, uint64_t now_us)
{
    (void)now_us;
    ((probe_t *)node)->works = *(int *)arg;
}
static const node_ops_t OPS = {.session = on_session,
                               .transfer = on_transfer,
                               .tick = on_tick,
                               .work = on_work,
                               .readable = on_readable};

static void open_probe(const char *endpoint, shell_t **ret_shell, probe_t *p)
{
    heddle_error_t error;
    cr_assert_eq(shell_open(&(shell_opts_t){.broker = endpoint}, ret_shell, &error), 0, "%s", error.message);
    p->io = shell_io(*ret_shell);
    cr_assert_eq(p->io->send(p->io->self, bytes_of("early", 5)), HEDDLE_ERR_GONE);
    cr_assert_eq(shell_start(*ret_shell, &OPS, p, &error), 0);
}
static void expect(shell_t *s, int type, const char *text)
{
    heddle_event_t e;
    cr_assert_eq(shell_next_event(s, PATIENCE_MS, &e), 0);
    cr_assert_eq(e.type, type, "%s", heddle_event_name(e.type));
    cr_assert_str_eq(e.message, text);
}

TestSuite(shell, .timeout = 30);

Test(shell, line_frames_and_events)
{
    broker_t broker = {0};
    shell_t *s;
    probe_t p = {0};
    start_broker(&broker, "tcp://127.0.0.1:*");
    open_probe(broker.endpoint, &s, &p);
    expect(s, HEDDLE_EVENT_JOINED, "");
    cr_assert_eq(poll(&(struct pollfd){.fd = shell_fd(s), .events = POLLIN}, 1, PATIENCE_MS), 1);
    expect(s, HEDDLE_EVENT_ARRIVED, "hello");
    cr_assert_eq(poll(&(struct pollfd){.fd = shell_fd(s), .events = POLLIN}, 1, 0), 0);
    cr_assert_eq(shell_call(s, give_work, &(int){3}), 0);
    expect(s, HEDDLE_EVENT_STAGED, "worked");
    heddle_event_t e;
    cr_assert_eq(shell_next_event(s, 0, &e), HEDDLE_ERR_AGAIN);
    cr_assert_eq(shell_next_event(s, 10, &e), HEDDLE_ERR_AGAIN);
    shell_close(&s);
    cr_assert_null(s);
    shell_close(&s);
    stop_broker(&broker);
}

/* A listener that was just closed may take one more connection: what comes in between is passed over. */
static void await(shell_t *s, int type)
{
    heddle_event_t e = {0};
    while (e.type != type) cr_assert_eq(shell_next_event(s, PATIENCE_MS, &e), 0);
}

Test(shell, broker_away_at_start_and_again_later)
{
    broker_t broker = {0};
    shell_t *s;
    probe_t p = {0};
    start_broker(&broker, "tcp://127.0.0.1:*");
    stop_broker(&broker);
    open_probe(broker.endpoint, &s, &p);
    start_broker(&broker, broker.endpoint);
    await(s, HEDDLE_EVENT_ARRIVED);
    stop_broker(&broker);
    await(s, HEDDLE_EVENT_LOST_BROKER);
    start_broker(&broker, broker.endpoint);
    await(s, HEDDLE_EVENT_ARRIVED);
    shell_close(&s);
    stop_broker(&broker);
}

static void on_call(void *node, void *arg, uint64_t now_us)
{
    probe_t *p = node;
    cr_assert_neq(now_us, 0u);
    p->calls += *(uint64_t *)arg;
    p->thread = pthread_self();
    pthread_sigmask(SIG_SETMASK, NULL, &p->mask);
}

Test(shell, calls_run_on_the_loops_thread_with_signals_blocked)
{
    shell_t *s;
    probe_t p = {0};
    open_probe("tcp://127.0.0.1:9", &s, &p);
    for (uint64_t i = 1; i <= 100; i++) cr_assert_eq(shell_call(s, on_call, &i), 0);
    cr_assert_eq(p.calls, 5050u);
    cr_assert_not(pthread_equal(p.thread, pthread_self()));
    cr_assert(sigismember(&p.mask, SIGINT) && sigismember(&p.mask, SIGTERM) && sigismember(&p.mask, SIGALRM));
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    cr_assert_not(sigismember(&mine, SIGINT));
    shell_stop(s);
    shell_stop(s);
    cr_assert_eq(shell_call(s, on_call, &(uint64_t){1}), HEDDLE_ERR_CLOSED);
    shell_close(&s);
}

Test(shell, wake_makes_it_tick)
{
    shell_t *s;
    probe_t p = {0};
    open_probe("tcp://127.0.0.1:9", &s, &p);
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_MS * 1000;
    for (int i = 0; i < 20; i++) {
        int before = p.ticks;
        shell_wake(s);
        while (p.ticks == before && clock_now(clock_system()) < end_us) sched_yield();
        cr_assert_gt(p.ticks, before);
    }
    shell_close(&s);
}

Test(shell, a_descriptor_of_the_node_makes_it_tick)
{
    shell_t *s;
    heddle_error_t error;
    probe_t p = {.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    cr_assert_eq(shell_open(&(shell_opts_t){.broker = "tcp://127.0.0.1:9"}, &s, &error), 0);
    p.io = shell_io(s);
    cr_assert_eq(shell_poll(s, p.fd, &error), HEDDLE_OK);
    cr_assert_eq(shell_start(s, &OPS, &p, &error), 0);
    for (int i = 0; i < 20; i++) {
        eventfd_write(p.fd, 1);
        expect(s, HEDDLE_EVENT_ARRIVED, "read");
    }
    shell_stop(s);
    close(p.fd); /* it is not polled any more */
    shell_close(&s);
}

Test(shell, it_polls_a_few_descriptors)
{
    shell_t *s;
    heddle_error_t error;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_eq(shell_open(&(shell_opts_t){.broker = "tcp://127.0.0.1:9"}, &s, &error), 0);
    for (uint32_t i = 0; i < SHELL_FDS; i++) cr_assert_eq(shell_poll(s, fd, &error), HEDDLE_OK);
    cr_assert_eq(shell_poll(s, fd, &error), HEDDLE_ERR_NO_MEMORY);
    shell_close(&s);
    close(fd);
}

static shell_t *interrupted;
static void on_alarm(int number)
{
    (void)number;
    shell_interrupt(interrupted);
}

Test(shell, interrupt_from_a_signal_handler_once)
{
    probe_t p = {0};
    heddle_event_t e;
    open_probe("tcp://127.0.0.1:9", &interrupted, &p);
    signal(SIGALRM, on_alarm);
    ualarm(20000, 0);
    cr_assert_eq(shell_next_event(interrupted, -1, &e), HEDDLE_ERR_INTERRUPTED);
    cr_assert_eq(shell_next_event(interrupted, 0, &e), HEDDLE_ERR_AGAIN);
    shell_interrupt(interrupted);
    shell_interrupt(interrupted);
    cr_assert_eq(shell_next_event(interrupted, 0, &e), HEDDLE_ERR_INTERRUPTED);
    cr_assert_eq(shell_next_event(interrupted, 0, &e), HEDDLE_ERR_AGAIN);
    shell_close(&interrupted);
}

Test(shell, addresses_are_checked)
{
    static const struct {
        const char *broker;
        bool insecure;
        int code;
    } ROWS[] = {
        {"tcp://10.0.0.1:7700", false, HEDDLE_ERR_INSECURE_ADDRESS},
        {"tcp://127.0.0.1:7700,tcp://broker.example:7700", false, HEDDLE_ERR_INSECURE_ADDRESS},
        {"tcp://10.255.255.1:7700", true, HEDDLE_OK},
        {"ipc:///tmp/heddle-nobody", false, HEDDLE_OK},
        {"127.0.0.1:7700", false, HEDDLE_ERR_USAGE},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        shell_t *s = NULL;
        heddle_error_t error = {0};
        int rc =
            shell_open(&(shell_opts_t){.broker = ROWS[i].broker, .insecure = ROWS[i].insecure}, &s, &error);
        cr_expect_eq(rc, ROWS[i].code, "%s", ROWS[i].broker);
        if (rc) cr_expect(error.message[0] && error.hint[0], "%s", ROWS[i].broker);
        shell_close(&s);
    }
}

Test(shell, broker_address_order)
{
    unsetenv("HEDDLE_BROKER");
    cr_assert_str_eq(broker_address(NULL), "tcp://127.0.0.1:7700");
    setenv("HEDDLE_BROKER", "tcp://127.0.0.1:1", 1);
    cr_assert_str_eq(broker_address(NULL), "tcp://127.0.0.1:1");
    cr_assert_str_eq(broker_address(""), "tcp://127.0.0.1:1");
    cr_assert_str_eq(broker_address("tcp://127.0.0.1:2"), "tcp://127.0.0.1:2");
    setenv("HEDDLE_BROKER", "", 1);
    cr_assert_str_eq(broker_address(NULL), "tcp://127.0.0.1:7700");
}

/* ---- the queue ---- */

static void push(event_queue_t *q, int type, uint64_t version)
{
    event_queue_push(q, &(heddle_event_t){.size = sizeof(heddle_event_t), .type = type, .version = version});
}

Test(event_queue, full_queue_drops_what_is_repeated_first)
{
    event_queue_t q;
    heddle_event_t e;
    cr_assert_eq(event_queue_init(&q), 0);
    for (int round = 0; round < 3; round++) { /* the ring begins elsewhere each time */
        for (uint64_t i = 0; i < EVENT_QUEUE_CAPACITY; i++)
            push(&q, i == 5 || i == 9 ? HEDDLE_EVENT_PROGRESS : HEDDLE_EVENT_STAGED, i);
        push(&q, HEDDLE_EVENT_ACTIVE, 1000);   /* drops 5 */
        push(&q, HEDDLE_EVENT_FETCHING, 1001); /* drops 9 */
        push(&q, HEDDLE_EVENT_ACTIVE, 1002);   /* drops 1001 */
        push(&q, HEDDLE_EVENT_ACTIVE, 1003);   /* nothing is repeated: drops 0 */
        cr_assert_eq(q.dropped_count, (uint64_t)(round + 1) * 4);
        uint64_t expected = 1, seen = 0;
        while (event_queue_pop(&q, &e)) {
            cr_assert_eq(e.version, expected);
            expected += expected == 4 || expected == 8         ? 2
                        : expected == EVENT_QUEUE_CAPACITY - 1 ? 1000 - expected
                        : expected == 1000                     ? 2
                                                               : 1;
            seen++;
        }
        cr_assert_eq(seen, EVENT_QUEUE_CAPACITY);
        for (int i = 0; i < 77; i++) push(&q, HEDDLE_EVENT_LEFT, 0);
        for (int i = 0; i < 77; i++) cr_assert(event_queue_pop(&q, &e));
        cr_assert_not(event_queue_pop(&q, &e));
    }
    event_queue_fini(&q);
    event_queue_fini(&q);
}

/* What 400 events that are told once make the library say. */
static void overfill(event_queue_t *q, char *said, size_t size)
{
    int kept = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    cr_assert(kept >= 0 && file && dup2(fileno(file), STDERR_FILENO) >= 0);
    for (int i = 0; i < 400; i++) push(q, HEDDLE_EVENT_RELEASED, (uint64_t)i);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    said[fread(said, 1, size - 1, file)] = 0;
    fclose(file);
}

Test(event_queue, only_who_reads_is_told_that_events_were_dropped)
{
    event_queue_t q;
    heddle_event_t e;
    char said[2048];
    cr_assert_eq(event_queue_init(&q), 0);
    overfill(&q, said, sizeof said);
    cr_assert_str_empty(said, "%s", said);
    cr_assert_gt(q.dropped_count, 0);
    while (event_queue_pop(&q, &e)) {}
    overfill(&q, said, sizeof said);
    cr_assert(strstr(said, "events.dropped"), "%s", said);
    while (event_queue_pop(&q, &e)) {}
    overfill(&q, said, sizeof said);
    cr_assert_str_empty(said, "what repeats within a minute is counted: %s", said);
    event_queue_fini(&q);
}

Test(event_queue, a_quiet_queue_drops_without_a_log_line)
{
    event_queue_t q;
    heddle_event_t e;
    char said[4096];
    cr_assert_eq(event_queue_init(&q), 0);
    q.is_quiet = true;
    event_queue_pop(&q, &e);
    overfill(&q, said, sizeof said);
    cr_assert_str_empty(said, "%s", said);
    cr_assert_gt(q.dropped_count, 0);
    event_queue_fini(&q);
}

static void push_of(event_queue_t *q, int type, unsigned adapter, uint64_t version)
{
    heddle_event_t e = {.size = sizeof e, .type = type, .version = version};
    snprintf(e.adapter, sizeof e.adapter, "adapter-%u", adapter);
    event_queue_push(q, &e);
}

/* What the application has to act on comes, however late it reads. */
Test(event_queue, nothing_that_is_open_is_lost, .timeout = 30)
{
    static const int OPEN[] = {HEDDLE_EVENT_COMMIT, HEDDLE_EVENT_ARRIVED, HEDDLE_EVENT_VERIFY,
                               HEDDLE_EVENT_ACTIVE};
    static bool seen[4][LIMIT_ADAPTERS_PER_WORKER];
    event_queue_t q;
    heddle_event_t e;
    unsigned adapter = 0, count = 0;
    cr_assert_eq(event_queue_init(&q), 0);
    push(&q, HEDDLE_EVENT_JOINED, 0);
    for (unsigned a = 0; a < LIMIT_ADAPTERS_PER_WORKER; a++)
        for (unsigned type = 0; type < 4; type++) {
            push_of(&q, OPEN[type], a, type == 1 ? 8 : 7);
            push_of(&q, HEDDLE_EVENT_FETCHING, a, 9);
            push_of(&q, HEDDLE_EVENT_STALE, a, 9);
        }
    cr_assert(event_queue_pop(&q, &e));
    cr_assert_eq(e.type, HEDDLE_EVENT_JOINED);
    while (event_queue_pop(&q, &e)) {
        for (unsigned type = 0; type < 4; type++) {
            if (e.type != OPEN[type]) continue;
            cr_assert_eq(sscanf(e.adapter, "adapter-%u", &adapter), 1);
            cr_assert_not(seen[type][adapter], "twice");
            cr_assert_eq(adapter, count / 4, "out of order");
            seen[type][adapter] = true;
            count++;
        }
    }
    cr_assert_eq(count, 4 * LIMIT_ADAPTERS_PER_WORKER);
    event_queue_fini(&q);
}

/* Versions come and go while nobody reads: only the last one is open, and it alone must come. */
Test(event_queue, what_is_over_makes_room)
{
    static const int ENDS[] = {HEDDLE_EVENT_FAILED, HEDDLE_EVENT_RETIRED};
    event_queue_t q;
    heddle_event_t e;
    cr_assert_eq(event_queue_init(&q), 0);
    push_of(&q, HEDDLE_EVENT_ARRIVED, 1, 1);
    for (uint64_t v = 1; v <= 3000; v++) {
        push_of(&q, HEDDLE_EVENT_ARRIVED, 0, v);
        push_of(&q, HEDDLE_EVENT_COMMIT, 0, v);
        push_of(&q, HEDDLE_EVENT_COMMIT, 0, v);
        push_of(&q, HEDDLE_EVENT_VERIFY, 0, v);
        push_of(&q, HEDDLE_EVENT_ACTIVE, 0, v);
        push_of(&q, ENDS[v % 2], 0, v);
    }
    cr_assert_eq(q.capacity, EVENT_QUEUE_CAPACITY, "it grew to %u", q.capacity);
    cr_assert_eq(q.lost_count, 0);
    cr_assert(event_queue_pop(&q, &e));
    cr_assert_str_eq(e.adapter, "adapter-1");
    bool is_last_seen = false;
    while (event_queue_pop(&q, &e)) is_last_seen |= e.type == HEDDLE_EVENT_ACTIVE && e.version == 3000;
    cr_assert(is_last_seen);
    event_queue_fini(&q);
}

Test(event_queue, grows_to_a_bound_and_says_what_is_lost, .timeout = 60)
{
    event_queue_t q;
    heddle_event_t e = {0};
    uint64_t count = 0;
    cr_assert_eq(event_queue_init(&q), 0);
    for (uint64_t v = 1; v <= EVENT_QUEUE_MAX + 3; v++) push_of(&q, HEDDLE_EVENT_STAGED, 0, v);
    cr_assert_eq(q.capacity, EVENT_QUEUE_CAPACITY, "what no one has to act on does not make it grow");
    while (event_queue_pop(&q, &e)) count++;
    cr_assert_eq(count, EVENT_QUEUE_CAPACITY);
    for (uint64_t v = 1; v <= EVENT_QUEUE_MAX + 3; v++) push_of(&q, HEDDLE_EVENT_VERIFY, (unsigned)v, 1);
    cr_assert_eq(q.capacity, EVENT_QUEUE_MAX);
    cr_assert_eq(q.lost_count, 3);
    cr_assert(event_queue_pop(&q, &e));
    cr_assert_str_eq(e.adapter, "adapter-4", "the oldest go");
    event_queue_fini(&q);
}

/* Memory that comes back: what was read gives its place to the next one that finds none. */
Test(event_queue, what_is_needed_is_not_lost_for_want_of_memory)
{
    event_queue_t q;
    heddle_event_t e = {0};
    uint64_t v = 0, seen = 0;
    cr_assert_eq(event_queue_init(&q), 0);
    push(&q, HEDDLE_EVENT_PROGRESS, 1000);
    push(&q, HEDDLE_EVENT_STAGED, 1001);
    for (int round = 0; round < 3; round++) {
        while (v < (round + 1) * (EVENT_QUEUE_RESERVE + 2u)) {
            failpoint_arm("client.event", 1);
            push(&q, v % 2 ? HEDDLE_EVENT_COMMIT : HEDDLE_EVENT_ARRIVED, v + 1);
            cr_assert(failpoint_has_failed());
            v++;
            if (round) cr_assert(event_queue_pop(&q, &e) && e.version == ++seen);
        }
        while (event_queue_pop(&q, &e)) cr_assert_eq(e.version, ++seen);
    }
    cr_assert_eq(seen, v);
    cr_assert_eq(q.lost_count, 0);
    cr_assert_eq(q.dropped_count, 2);
    for (v = 0; v < EVENT_QUEUE_RESERVE + 3; v++) {
        failpoint_arm("client.event", 1);
        push(&q, HEDDLE_EVENT_COMMIT, v);
    }
    cr_assert_eq(q.lost_count, 3, "and no more than that: the error is logged");
    failpoint_disarm();
    event_queue_fini(&q);
}

static void *produce(void *arg)
{
    for (uint64_t i = 1; i <= 20000; i++) push(arg, HEDDLE_EVENT_STAGED, i);
    return NULL;
}

Test(event_queue, two_threads_see_one_order, .timeout = 30)
{
    event_queue_t q;
    pthread_t thread;
    heddle_event_t e = {0};
    uint64_t last = 0;
    cr_assert_eq(event_queue_init(&q), 0);
    pthread_create(&thread, NULL, produce, &q);
    while (last < 20000) {
        cr_assert_eq(poll(&(struct pollfd){.fd = q.fd, .events = POLLIN}, 1, PATIENCE_MS), 1);
        if (!event_queue_pop(&q, &e)) continue;
        cr_assert_gt(e.version, last);
        last = e.version;
    }
    pthread_join(thread, NULL);
    event_queue_fini(&q);
}

/* ---- whose it is ---- */

Test(shell, the_application_may_not_use_the_line_of_the_loops_thread, ENDS_THE_PROCESS)
{
    broker_t b = {0};
    start_broker(&b, "tcp://127.0.0.1:*");
    shell_t *s;
    probe_t p = {0};
    open_probe(b.endpoint, &s, &p);
    expect(s, HEDDLE_EVENT_JOINED, "");
    p.io->send(p.io->self, bytes_of("late", 4));
}
