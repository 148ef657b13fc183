/* SPDX-License-Identifier: Apache-2.0 */
/* What bindings of other languages need of the library beside what C programs use: opening that can be given
 * up, a descriptor to poll, all bytes in one call, and what the data plane runs on. */
#include "tests/api/broker.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static void start(void)
{
    make_dir();
    snprintf(endpoint, sizeof endpoint, "ipc://%s/broker", dir);
}

TestSuite(binding, .init = start, .timeout = 60);

static heddle_publisher_t *begin_open(uint32_t timeout_ms)
{
    heddle_publisher_t *p = NULL;
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .timeout_ms = timeout_ms};
    OK(heddle_publisher_start(&opts, &p));
    return p;
}

static void *interrupt_soon(void *p)
{
    heddle_publisher_interrupt(p);
    return NULL;
}

Test(binding, opening_can_be_given_up_and_taken_up_again)
{
    pthread_t thread;
    heddle_publisher_t *p = begin_open(PATIENCE_MS);
    pthread_create(&thread, NULL, interrupt_soon, p);
    FAILS(HEDDLE_ERR_INTERRUPTED, heddle_publisher_opened(p));
    pthread_join(thread, NULL);
    cr_assert_str_eq(heddle_last_error()->adapter, "policy");
    start_broker(endpoint);
    OK(heddle_publisher_opened(p));
    OK(heddle_publisher_opened(p));
    heddle_publisher_close(&p);
    end_broker();
}

Test(binding, opening_ends_in_time_and_says_where_it_looked)
{
    heddle_publisher_t *p = begin_open(200);
    FAILS(HEDDLE_ERR_UNAVAILABLE, heddle_publisher_opened(p));
    cr_assert(strstr(heddle_last_error()->message, endpoint), "%s", heddle_last_error()->message);
    heddle_publisher_close(&p);
    FAILS(HEDDLE_ERR_USAGE, heddle_publisher_opened(NULL));
    FAILS(HEDDLE_ERR_USAGE, heddle_publisher_start(NULL, &p));
    heddle_publisher_opts_t bad = {.size = sizeof bad, .adapter = "no spaces"};
    FAILS(HEDDLE_ERR_BAD_NAME, heddle_publisher_start(&bad, &p));
    cr_assert_null(p);
    cr_assert_eq(rmdir(dir), 0);
}

Test(binding, the_descriptor_is_readable_while_there_are_events)
{
    start_broker(endpoint);
    heddle_publisher_t *p = begin_open(0);
    OK(heddle_publisher_opened(p));
    struct pollfd fd = {.fd = heddle_publisher_fd(p), .events = POLLIN};
    cr_assert_eq(heddle_publisher_fd(NULL), -1);
    cr_assert_eq(poll(&fd, 1, PATIENCE_MS), 1);
    heddle_event_t e = {.size = sizeof e};
    OK(heddle_publisher_next_event(p, 0, &e));
    cr_assert_eq(e.type, HEDDLE_EVENT_JOINED);
    while (heddle_publisher_next_event(p, 0, &e) == HEDDLE_OK) {}
    cr_assert_eq(poll(&fd, 1, 0), 0);
    heddle_publisher_close(&p);
    end_broker();
}

static void publish_pair(heddle_publisher_t *p, bool in_one_call, heddle_published_t *ret)
{
    static const char PAIR[] = "{\"peft_type\":\"LORA\",\"r\":2}";
    static const uint64_t SHAPE[] = {2, 100}, NONE[] = {0, 4};
    static unsigned char a[800], b[800];
    for (int i = 0; i < 800; i++) a[i] = (unsigned char)(i * 7), b[i] = (unsigned char)(i * 11);
    const void *sources[] = {a, NULL, b};
    heddle_tensor_t rows[] = {
        {.size = sizeof *rows,
         .name = "z.lora_A.weight",
         .dtype = HEDDLE_DTYPE_F32,
         .ndim = 2,
         .dims = SHAPE},
        {.size = sizeof *rows, .name = "m.empty", .dtype = HEDDLE_DTYPE_F32, .ndim = 2, .dims = NONE},
        {.size = sizeof *rows,
         .name = "b.lora_B.weight",
         .dtype = HEDDLE_DTYPE_F32,
         .ndim = 2,
         .dims = SHAPE}};
    heddle_publication_t *pub;
    OK(heddle_publication_begin(p, rows, 3, PAIR, sizeof PAIR - 1, NULL, &pub));
    FAILS(HEDDLE_ERR_USAGE, heddle_publication_write(pub, NULL));
    if (in_one_call) OK(heddle_publication_write(pub, sources));
    else
        for (uint32_t i = 0; i < 3; i += 2) memcpy(heddle_publication_tensor(pub, i), sources[i], 800);
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = -1, .if_unchanged = HEDDLE_UNCHANGED_SKIP};
    *ret = (heddle_published_t){.size = sizeof *ret};
    OK(heddle_publication_commit(&pub, &opts, ret));
}

Test(binding, one_call_writes_what_many_do)
{
    heddle_published_t many, one;
    start_broker(endpoint);
    heddle_publisher_t *p = begin_open(0);
    OK(heddle_publisher_opened(p));
    publish_pair(p, false, &many);
    publish_pair(p, true, &one);
    cr_assert(many.created && one.unchanged, "the same bytes");
    cr_assert_str_eq(one.digest, many.digest);
    FAILS(HEDDLE_ERR_USAGE, heddle_publication_write(NULL, NULL));
    heddle_report_t *report = calloc(1, sizeof *report);
    report->size = sizeof *report;
    const heddle_quorum_t ALL = {HEDDLE_QUORUM_ALL, 0};
    int rc = HEDDLE_ERR_DEADLINE; /* until the broker has said that nobody is there */
    for (int i = 0; i < 1000 && rc == HEDDLE_ERR_DEADLINE; i++)
        rc = heddle_publisher_wait(p, many.version, HEDDLE_PHASE_ACTIVE, ALL, 20, report);
    cr_assert_eq(rc, HEDDLE_ERR_NO_WORKERS);
    FAILS(HEDDLE_ERR_NO_WORKERS, heddle_publisher_wait(p, many.version, HEDDLE_PHASE_ACTIVE, ALL, 0, report));
    cr_assert(strstr(heddle_last_error()->message, "is not active on enough workers yet"), "%s",
              heddle_last_error()->message);
    free(report);
    heddle_publisher_close(&p);
    end_broker();
}

enum { VARIABLES = 4000, OPENINGS = 200 };
static atomic_bool is_over;

static void *open_workers(void *unused)
{
    (void)unused;
    const char *const adapters[] = {"policy", NULL};
    heddle_worker_opts_t opts = {.size = sizeof opts,
                                 .broker = endpoint,
                                 .adapters = adapters,
                                 .data_device = "nowhere"};
    heddle_worker_t *w = NULL;
    while (!atomic_load(&is_over)) {
        cr_assert(heddle_worker_open(&opts, &w), "there is no such interface");
        usleep(10);
    }
    return NULL;
}

/* UCX finds its settings in the environment while one opens, and the other looks for its keys there: a look at that many variables
 * takes long enough to see setenv free them. */
Test(binding, two_threads_open_at_once)
{
    pthread_t thread;
    char name[32], *told = NULL;
    for (int i = 0; i < VARIABLES; i++) {
        snprintf(name, sizeof name, "HEDDLE_OF_MANY_%d", i);
        cr_assert_eq(setenv(name, "", 1), 0);
    }
    pthread_create(&thread, NULL, open_workers, NULL);
    for (int i = 0; i < OPENINGS; i++) {
        OK(heddle_transport_load(NULL, &told));
        heddle_free(told);
        heddle_publisher_t *p = begin_open(PATIENCE_MS);
        heddle_publisher_close(&p);
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    cr_assert_eq(rmdir(dir), 0);
}

Test(binding, what_the_data_plane_runs_on)
{
    char *told = NULL, *again = NULL;
    OK(heddle_transport_load(NULL, &told));
    cr_assert(strstr(told, "\"backend\":\"ucx\"") && strstr(told, "\"ucx\":\"1.") &&
                  strstr(told, "transfer_ucx.so") && strstr(told, "libucp.so"),
              "%s", told);
    OK(heddle_transport_load("/nowhere", &again));
    cr_assert_str_eq(again, told, "once loaded it stays");
    heddle_free(told);
    heddle_free(again);
    FAILS(HEDDLE_ERR_USAGE, heddle_transport_load(NULL, NULL));
    cr_assert_eq(rmdir(dir), 0);
}
