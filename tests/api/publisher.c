/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/publisher.h as a trainer uses it: a real broker, real workers, UCX between them. */
#include "tests/api/broker.h"
#include "tests/lib/machine_time.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

static child_t workers[2];
static int worker_count;

/* -- daemons ---------------------------------------------------------------------------------- */

static void kill_broker(void)
{
    child_signal(&broker, SIGKILL);
    child_end(&broker, PATIENCE_MS);
}

static void start_worker_with(const char *name, const char *option)
{
    char line[4096];
    child_t *w = &workers[worker_count++];
    const char *argv[] = {"heddle-worker", "--broker", endpoint, "--adapter", "policy",
                          "--name",        name,       option,   NULL};
    child_start(w, argv, NULL);
    cr_assert(child_line(w, line, sizeof line, PATIENCE_MS), "no ready line of %s", name);
}

static void start_worker(const char *name) { start_worker_with(name, NULL); }
/* One that fetches, although it is on the host of its source. */
static void start_fetching_worker(const char *name) { start_worker_with(name, "--own-memory"); }

static void start(void)
{
    make_dir();
    start_broker("tcp://127.0.0.1:*");
}

static void stop(void)
{
    for (int i = 0; i < worker_count; i++) {
        child_signal(&workers[i], SIGTERM);
        int status = child_end(&workers[i], PATIENCE_MS);
        cr_assert_eq(status, 0, "a worker ended with %d: %s", status, workers[i].err);
    }
    end_broker();
}

TestSuite(publisher, .init = start, .timeout = 120);

/* -- a trainer -------------------------------------------------------------------------------- */

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int open_as(const char *writer, int takeover, uint32_t timeout_ms, heddle_publisher_t **ret)
{
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .writer = writer,
                                    .takeover = takeover,
                                    .timeout_ms = timeout_ms};
    return heddle_publisher_open(&opts, ret);
}

static int publish(heddle_publisher_t *p, int value, uint32_t deadline_ms, heddle_published_t *ret)
{
    heddle_publish_opts_t opts = {.size = sizeof opts,
                                  .step = value,
                                  .allow_step_back = 1,
                                  .deadline_ms = deadline_ms,
                                  .if_unchanged = HEDDLE_UNCHANGED_PUBLISH};
    return publish_values(p, (int[]){value, value + 1}, &opts, ret);
}

/* The next event of a type; what comes before is dropped. */
static void wait_event(heddle_publisher_t *p, int type, heddle_event_t *ret)
{
    do {
        *ret = (heddle_event_t){.size = sizeof *ret};
        OK(heddle_publisher_next_event(p, PATIENCE_MS, ret));
    } while (ret->type != type);
}

static int count_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* -- the main job ----------------------------------------------------------------------------- */

Test(publisher, from_tensors_to_active)
{
    static heddle_report_t report;
    heddle_publisher_t *p;
    heddle_published_t v;
    heddle_event_t e;
    start_worker("w1");
    start_worker("w2");
    OK(open_as("trainer", 0, 0, &p));
    for (uint64_t n = 1; n <= 5; n++) {
        OK(publish(p, (int)n, 0, &v));
        cr_assert_eq(v.version, n);
        cr_assert(v.created && !v.replayed && !v.unchanged);
        cr_assert_eq(v.data_bytes, 2 * 8 * 4096 * 4);
        OK(wait_active(p, n, PATIENCE_MS, &report));
        cr_assert_eq(report.active_count, 2);
        cr_assert_eq(report.eligible_count, 2);
        cr_assert_str_eq(report.state, "active");
        cr_assert(v.pack_ms >= 0 && v.pack_ms <= v.commit_ms && v.commit_ms <= report.staged_ms &&
                  report.staged_ms <= report.active_ms);
    }
    wait_event(p, HEDDLE_EVENT_JOINED, &e);
    cr_assert_gt(e.token, 0);
    wait_event(p, HEDDLE_EVENT_ROLLOUT, &e);
    cr_assert_str_eq(e.adapter, "policy");
    OK(heddle_publisher_report(p, 1, &report));
    FAILS(HEDDLE_ERR_NOT_FOUND, heddle_publisher_report(p, 6, &report));
    heddle_publisher_close(&p);
    cr_assert_null(p);
    stop();
}

static sigjmp_buf fault;
static void on_fault(int number)
{
    (void)number;
    siglongjmp(fault, 1);
}

/* The byte stays what it is. */
static bool stray_write_faults(void *at)
{
    struct sigaction action = {.sa_handler = on_fault}, old;
    bool is_fault = true;
    sigaction(SIGSEGV, &action, &old);
    if (sigsetjmp(fault, 1) == 0) {
        volatile uint8_t *byte = at;
        *byte = *byte;
        is_fault = false;
    }
    sigaction(SIGSEGV, &old, NULL);
    return is_fault;
}

/* What a trainer writes after the commit changes no version, and the next version is written as ever. */
Test(publisher, a_stray_write_after_the_commit_faults)
{
    static float values[8 * 4096];
    const char *config = "{\"peft_type\":\"LORA\",\"r\":8}";
    heddle_tensor_t row = {.size = sizeof row,
                           .name = "a.lora_A.weight",
                           .dtype = HEDDLE_DTYPE_F32,
                           .ndim = 2,
                           .dims = DIMS,
                           .data_bytes = sizeof values};
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = -1};
    heddle_publisher_t *p;
    start_worker("w1");
    OK(open_as("trainer", 0, 0, &p));
    for (int n = 1; n <= 3; n++) {
        heddle_publication_t *pub;
        heddle_published_t v = {.size = sizeof v};
        OK(heddle_publication_begin(p, &row, 1, config, strlen(config), NULL, &pub));
        values[0] = (float)n;
        void *at = heddle_publication_tensor(pub, 0);
        memcpy(at, values, sizeof values);
        OK(heddle_publication_commit(&pub, &opts, &v));
        double end_ms = now_ms() + PATIENCE_MS;
        while (!stray_write_faults(at)) {
            cr_assert_lt(now_ms(), end_ms, "version %d can be written for ever", n);
            usleep(1000);
        }
    }
    heddle_publisher_close(&p);
    stop();
}

Test(publisher, a_hundred_versions_take_no_more_of_anything)
{
    static heddle_report_t report;
    heddle_publisher_t *p;
    heddle_published_t v;
    start_worker("w1");
    OK(open_as("trainer", 0, 0, &p));
    int descriptors = 0;
    char line[4096];
    for (int n = 1; n <= 100; n++) {
        OK(publish(p, n, 0, &v));
        OK(wait_active(p, v.version, PATIENCE_MS, &report));
        while (child_line(&workers[0], line, sizeof line, 0)) {} /* its events: else its pipe is full */
        if (n == 10) descriptors = count_descriptors();
    }
    /* A region more or less: whether the worker has let go of one in time decides it. */
    cr_assert_leq(abs(count_descriptors() - descriptors), 2);
    heddle_publisher_close(&p);
    stop();
}

Test(publisher, a_late_worker_gets_the_bytes_of_a_publisher_that_stays)
{
    static heddle_report_t report;
    heddle_publisher_t *p;
    heddle_published_t v;
    OK(open_as("trainer", 0, 0, &p));
    OK(publish(p, 1, 0, &v));
    int rc = HEDDLE_ERR_DEADLINE; /* until the broker has said that nobody is there */
    for (int i = 0; i < 1000 && rc == HEDDLE_ERR_DEADLINE; i++) rc = wait_active(p, v.version, 20, &report);
    cr_assert_eq(rc, HEDDLE_ERR_NO_WORKERS);
    cr_assert_str_eq(report.state, "staging");
    start_worker("w1");
    OK(wait_active(p, v.version, PATIENCE_MS, &report));
    heddle_publisher_close(&p);
    stop();
}

Test(publisher, nobody_takes_it_until_the_deadline)
{
    static heddle_report_t report;
    heddle_publisher_t *p;
    heddle_published_t v;
    OK(open_as("trainer", 0, 0, &p));
    OK(publish(p, 1, 300, &v));
    FAILS(HEDDLE_ERR_NO_WORKERS, wait_active(p, v.version, PATIENCE_MS, &report));
    cr_assert_str_eq(report.state, "failed");
    heddle_publisher_close(&p);
    stop();
}

/* -- the broker goes, comes, stands still ----------------------------------------------------- */

Test(publisher, no_broker_is_said_in_time)
{
    heddle_publisher_t *p = NULL;
    kill_broker();
    machine_time_t taken;
    machine_time_start(&taken);
    FAILS(HEDDLE_ERR_UNAVAILABLE, open_as("trainer", 0, 400, &p));
    cr_assert(strstr(heddle_last_error()->hint, "opts.broker or HEDDLE_BROKER") &&
                  !strstr(heddle_last_error()->hint, "--broker"),
              "in the words of the API: %s", heddle_last_error()->hint);
    cr_assert_lt(machine_time_stop(&taken), 2500);
    cr_assert_null(p);
    cr_assert(strstr(heddle_last_error()->message, endpoint), "%s", heddle_last_error()->message);
    start_broker(endpoint);
    stop();
}

typedef struct {
    heddle_publisher_t *p;
    heddle_published_t v;
    int rc;
    heddle_error_t error;
} job_t;
static void *run_publish(void *arg)
{
    job_t *job = arg;
    job->rc = publish(job->p, 9, PATIENCE_MS, &job->v);
    job->error = *heddle_last_error();
    return NULL;
}

Test(publisher, a_commit_outlives_the_death_of_the_broker)
{
    static heddle_report_t report;
    job_t job = {0};
    pthread_t thread;
    heddle_event_t e;
    heddle_published_t v;
    start_worker("w1");
    OK(open_as("trainer", 0, 0, &job.p));
    OK(publish(job.p, 1, 0, &v));
    OK(wait_active(job.p, 1, PATIENCE_MS, &report));
    kill_broker();
    pthread_create(&thread, NULL, run_publish, &job);
    start_broker(endpoint);
    pthread_join(thread, NULL);
    cr_assert_eq(job.rc, HEDDLE_OK, "%s", job.error.message);
    cr_assert_eq(job.v.version, 2);
    cr_assert(job.v.created);
    OK(wait_active(job.p, 2, PATIENCE_MS, &report));
    wait_event(job.p, HEDDLE_EVENT_JOINED, &e);
    wait_event(job.p, HEDDLE_EVENT_JOINED, &e);
    heddle_publisher_close(&job.p);
    stop();
}

Test(publisher, a_broker_that_is_away_ends_a_commit_at_its_deadline)
{
    heddle_publisher_t *p;
    heddle_published_t v;
    OK(open_as("trainer", 0, 0, &p));
    kill_broker();
    machine_time_t taken;
    machine_time_start(&taken);
    FAILS(HEDDLE_ERR_UNAVAILABLE, publish(p, 1, 500, &v));
    cr_assert_lt(machine_time_stop(&taken), 2500);
    start_broker(endpoint);
    OK(publish(p, 1, PATIENCE_MS, &v));
    heddle_publisher_close(&p);
    stop();
}

/* It is not recorded when the broker goes on, and no key is to blame. */
Test(publisher, a_commit_that_failed_while_the_broker_stood_still_publishes_nothing)
{
    heddle_publisher_t *p;
    heddle_published_t v;
    OK(open_as("trainer", 0, 0, &p));
    OK(publish(p, 1, 0, &v));
    child_signal(&broker, SIGSTOP);
    FAILS(HEDDLE_ERR_UNAVAILABLE, publish(p, 2, 5000, &v));
    cr_assert_str_eq(heddle_last_error()->found, "a connection, but no answer");
    child_signal(&broker, SIGCONT);
    OK(publish(p, 3, PATIENCE_MS, &v));
    cr_assert_eq(v.version, 2);
    heddle_publisher_close(&p);
    stop();
}

Test(publisher, closing_does_not_wait_for_a_broker_that_stands_still)
{
    heddle_publisher_t *p;
    heddle_published_t v;
    OK(open_as("trainer", 0, 0, &p));
    OK(publish(p, 1, 0, &v));
    child_signal(&broker, SIGSTOP);
    machine_time_t taken;
    machine_time_start(&taken);
    heddle_publisher_close(&p);
    cr_assert_lt(machine_time_stop(&taken), 2500);
    child_signal(&broker, SIGCONT);
    stop();
}

/* -- the last version ------------------------------------------------------------------------- */

static void open_slow(uint32_t close_ms, heddle_publisher_t **ret)
{
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .max_rate_bytes = 400000,
                                    .close_ms = close_ms};
    OK(heddle_publisher_open(&opts, ret));
}

static bool answer_has(const char *ref, const char *text)
{
    heddle_admin_opts_t opts = {.size = sizeof opts, .broker = endpoint};
    heddle_admin_t *admin;
    char *json = NULL;
    OK(heddle_admin_open(&opts, &admin));
    OK(heddle_admin_versions(admin, ref, &json));
    bool has = strstr(json, text) != NULL;
    heddle_free(json);
    heddle_admin_close(&admin);
    return has;
}

Test(publisher, closing_waits_until_a_worker_has_the_last_version)
{
    heddle_publisher_t *p;
    heddle_published_t v;
    start_fetching_worker("w1");
    open_slow(0, &p);
    OK(publish(p, 1, 0, &v));
    heddle_publisher_close(&p);
    cr_assert_not(answer_has("policy@1", "\"failed\""));
    cr_assert(answer_has("policy@1", "\"holder_count\":1"));
    stop();
}

/* Closes; what the library says on stderr meanwhile. */
static void close_and_listen(heddle_publisher_t **p, char *said, size_t size)
{
    int kept = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    cr_assert(kept >= 0 && file && dup2(fileno(file), STDERR_FILENO) >= 0);
    heddle_publisher_close(p);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    said[fread(said, 1, size - 1, file)] = 0;
    fclose(file);
}

Test(publisher, closing_waits_no_longer_than_it_may_and_tells_what_is_lost)
{
    heddle_publisher_t *p;
    heddle_published_t v;
    char said[4096];
    start_fetching_worker("w1");
    open_slow(150, &p);
    OK(publish(p, 1, 0, &v));
    close_and_listen(&p, said, sizeof said);
    cr_assert(strstr(said, "publisher.unheld: policy@1 "), "%s", said);
    stop();
}

Test(publisher, who_is_interrupted_closes_at_once)
{
    heddle_publisher_t *p;
    heddle_published_t v;
    start_fetching_worker("w1");
    open_slow(0, &p);
    OK(publish(p, 1, 0, &v));
    heddle_publisher_interrupt(p);
    heddle_publisher_close(&p);
    cr_assert_not(answer_has("policy@1", "\"holder_count\":1"), "it did not wait for one");
    stop();
}

/* -- two writers ------------------------------------------------------------------------------ */

Test(publisher, one_writer_and_takeover)
{
    heddle_publisher_t *first, *second = NULL;
    heddle_published_t v;
    heddle_event_t e;
    OK(open_as("ann", 0, 0, &first));
    FAILS(HEDDLE_ERR_WRITER_HELD, open_as("ben", 0, 0, &second));
    cr_assert(strstr(heddle_last_error()->message, "ann"), "%s", heddle_last_error()->message);
    cr_assert_null(second);
    OK(open_as("ben", 1, 0, &second));
    wait_event(first, HEDDLE_EVENT_FENCED, &e);
    cr_assert_eq(e.code, HEDDLE_ERR_FENCED);
    for (int i = 0; i < 2; i++) FAILS(HEDDLE_ERR_FENCED, publish(first, 1, 0, &v));
    OK(publish(second, 2, 0, &v));
    heddle_publisher_close(&first);
    OK(publish(second, 3, 0, &v));
    heddle_publisher_close(&second);
    OK(open_as("ann", 0, 0, &first));
    heddle_publisher_close(&first);
    stop();
}

/* -- interrupts and misuse -------------------------------------------------------------------- */

static void *interrupt_soon(void *arg)
{
    heddle_publisher_interrupt(arg); /* before the call begins or while it waits: either order is right */
    return NULL;
}

static atomic_bool is_over;

static void *interrupt_often(void *arg)
{
    for (; !atomic_load(&is_over); usleep(10000)) heddle_publisher_interrupt(arg);
    return NULL;
}

Test(publisher, calls_that_wait_can_be_interrupted)
{
    static heddle_report_t report;
    heddle_publisher_t *p;
    heddle_published_t v;
    heddle_event_t e = {.size = sizeof e};
    pthread_t thread;
    OK(open_as("trainer", 0, 0, &p));
    OK(publish(p, 1, 0, &v));
    while (heddle_publisher_next_event(p, 200, &e) == HEDDLE_OK) {}
    pthread_create(&thread, NULL, interrupt_soon, p);
    FAILS(HEDDLE_ERR_INTERRUPTED, wait_active(p, v.version, -1, &report));
    cr_assert_eq(report.version, v.version, "the report is written in every case");
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, interrupt_soon, p);
    FAILS(HEDDLE_ERR_INTERRUPTED, heddle_publisher_next_event(p, -1, &e));
    pthread_join(thread, NULL);
    FAILS(HEDDLE_ERR_AGAIN, heddle_publisher_next_event(p, 0, &e));
    heddle_publisher_close(&p);
    stop();
}

/* A commit that was interrupted may have been recorded: its hint says how to find out. */
Test(publisher, an_interrupted_commit_says_what_may_have_happened)
{
    heddle_publisher_t *p;
    heddle_published_t v;
    OK(open_as("trainer", 0, 0, &p));
    child_signal(&broker, SIGSTOP);
    pthread_t thread;
    pthread_create(&thread, NULL, interrupt_often, p);
    do { /* an interrupt may come while it still packs */
        FAILS(HEDDLE_ERR_INTERRUPTED, publish(p, 1, 0, &v));
    } while (strcmp(heddle_last_error()->phase, "commit"));
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    cr_assert_str_eq(heddle_last_error()->message, "interrupted");
    cr_assert_not_null(strstr(heddle_last_error()->hint, "heddle versions policy"), "%s",
                       heddle_last_error()->hint);
    child_signal(&broker, SIGCONT);
    heddle_publisher_close(&p);
    stop();
}

/* Half a gigabyte of new memory takes longer than this publisher waits for anything. */
Test(publisher, begin_makes_memory_no_longer_than_its_timeout)
{
    heddle_publisher_t *p;
    heddle_publication_t *pub = NULL;
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .timeout_ms = 10};
    static const uint64_t LARGE[] = {8, 1u << 24}, SMALL[] = {8, 8};
    heddle_tensor_t t = {.size = sizeof t,
                         .name = "l.lora_A.weight",
                         .dtype = HEDDLE_DTYPE_F32,
                         .ndim = 2,
                         .dims = LARGE};
    OK(heddle_publisher_start(&opts, &p));
    FAILS(HEDDLE_ERR_DEADLINE, heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &pub));
    cr_assert_null(pub);
    cr_assert_str_eq(heddle_last_error()->phase, "pack");
    cr_assert_not_null(strstr(heddle_last_error()->hint, "opts.timeout_ms"), "%s", heddle_last_error()->hint);
    heddle_publisher_interrupt(p);
    FAILS(HEDDLE_ERR_INTERRUPTED, heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &pub));
    t.dims = SMALL;
    int rc; /* 10 ms are little on a busy machine */
    do rc = heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &pub);
    while (rc == HEDDLE_ERR_DEADLINE);
    cr_assert_eq(rc, HEDDLE_OK);
    heddle_publication_abort(&pub);
    heddle_publisher_close(&p);
    stop();
}

/* The thread that helps to fill; 0: there is none. There is never more than one here. */
static int helper(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int found = 0, count = 0;
    for (struct dirent *each; (each = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", each->d_name);
        FILE *comm = fopen(path, "r"); /* NULL: . or .., or it has just ended */
        if (comm && fgets(name, sizeof name, comm) && !strcmp(name, "heddle-crew\n"))
            found = atoi(each->d_name), count++;
        if (comm) fclose(comm);
    }
    closedir(tasks);
    cr_assert_leq(count, 1);
    return found;
}

Test(publisher, the_thread_that_helps_to_fill_is_kept)
{
    static const uint64_t MUCH[] = {2, 1 << 20}; /* 8 MiB */
    static float values[2][1 << 20];
    heddle_publisher_t *p;
    heddle_publication_t *pub;
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .fill_threads = 2};
    heddle_tensor_t row = {.size = sizeof row,
                           .name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                           .dtype = HEDDLE_DTYPE_F32,
                           .ndim = 2,
                           .dims = MUCH};
    const void *sources[] = {values};
    int helpers[2];
    OK(heddle_publisher_open(&opts, &p));
    cr_assert_eq(helper(), 0);
    for (int i = 0; i < 2; i++) {
        OK(heddle_publication_begin(p, &row, 1, CONFIG, sizeof CONFIG - 1, NULL, &pub));
        OK(heddle_publication_write(pub, sources));
        helpers[i] = helper();
        heddle_publication_abort(&pub);
    }
    cr_assert_neq(helpers[0], 0);
    cr_assert_eq(helpers[1], helpers[0]);
    heddle_publisher_close(&p);
    cr_assert_eq(helper(), 0);
    stop();
}

Test(publisher, what_makes_no_sense_is_refused)
{
    heddle_publisher_t *p;
    heddle_publication_t *a, *b;
    heddle_publisher_opts_t opts = {.broker = endpoint, .adapter = "policy"};
    FAILS(HEDDLE_ERR_USAGE, heddle_publisher_open(&opts, &p));
    FAILS(HEDDLE_ERR_USAGE, heddle_publisher_open(NULL, &p));
    opts.size = sizeof opts;
    opts.adapter = "../x";
    FAILS(HEDDLE_ERR_BAD_NAME, heddle_publisher_open(&opts, &p));
    opts.adapter = NULL;
    FAILS(HEDDLE_ERR_BAD_NAME, heddle_publisher_open(&opts, &p));
    opts.adapter = "policy";
    opts.broker = "tcp://192.0.2.1:7700";
    FAILS(HEDDLE_ERR_INSECURE_ADDRESS, heddle_publisher_open(&opts, &p));
    OK(open_as("trainer", 0, 0, &p));
    heddle_tensor_t t = {.size = sizeof t,
                         .name = "l.lora_A.weight",
                         .dtype = HEDDLE_DTYPE_F32,
                         .ndim = 2,
                         .dims = DIMS};
    FAILS(HEDDLE_ERR_BAD_ADAPTER, heddle_publication_begin(p, &t, 0, CONFIG, sizeof CONFIG - 1, NULL, &a));
    OK(heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &a));
    FAILS(HEDDLE_ERR_USAGE, heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &b));
    cr_assert_null(heddle_publication_tensor(a, 1));
    heddle_publication_abort(&a);
    heddle_publication_abort(&a);
    t.size = 0;
    FAILS(HEDDLE_ERR_USAGE, heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &a));
    t.size = sizeof t;
    OK(heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &a));
    static const char *const META[] = {"no equals sign", NULL};
    heddle_publish_opts_t how = {.size = sizeof how, .meta = META};
    FAILS(HEDDLE_ERR_BAD_NAME, heddle_publication_commit(&a, &how, NULL));
    FAILS(HEDDLE_ERR_USAGE, heddle_publication_commit(&a, &how, NULL));
    heddle_publish_opts_t none = {.size = sizeof none};
    FAILS(HEDDLE_ERR_NOT_FOUND, heddle_publisher_publish_dir(p, "/nowhere", &none, NULL));
    OK(heddle_publication_begin(p, &t, 1, CONFIG, sizeof CONFIG - 1, NULL, &a));
    heddle_publisher_close(&p); /* takes what is open with it */
    heddle_publisher_close(&p);
    heddle_publisher_interrupt(NULL);
    stop();
}

Test(publisher, a_directory)
{
    static heddle_report_t report;
    char path[256];
    heddle_publisher_t *p;
    heddle_adapter_info_t info = {.size = sizeof info};
    snprintf(path, sizeof path, "%s/tests/fixtures/rslora", getenv("HEDDLE_SOURCE_DIR"));
    OK(heddle_adapter_check(path, &info));
    start_worker("w1");
    OK(open_as("trainer", 0, 0, &p));
    heddle_publish_opts_t how = {.size = sizeof how, .step = -1, .request_id = "req-1"};
    heddle_published_t v = {.size = sizeof v}, again = v;
    OK(heddle_publisher_publish_dir(p, path, &how, &v));
    cr_assert_str_eq(v.digest, info.digest);
    cr_assert_str_eq(v.features, "rslora");
    cr_assert_str_eq(v.request_id, "req-1");
    OK(wait_active(p, v.version, PATIENCE_MS, &report));
    OK(heddle_publisher_publish_dir(p, path, &how, &again));
    cr_assert(again.replayed && !again.created);
    cr_assert_eq(again.version, v.version);
    OK(wait_active(p, v.version, PATIENCE_MS, &report));
    how.request_id = NULL;
    FAILS(HEDDLE_ERR_UNCHANGED, heddle_publisher_publish_dir(p, path, &how, &again));
    how.if_unchanged = HEDDLE_UNCHANGED_SKIP;
    OK(heddle_publisher_publish_dir(p, path, &how, &again));
    cr_assert(again.unchanged && !again.created);
    how.request_id = "req-1";
    snprintf(path, sizeof path, "%s/tests/fixtures/plain", getenv("HEDDLE_SOURCE_DIR"));
    FAILS(HEDDLE_ERR_REQUEST_CONFLICT, heddle_publisher_publish_dir(p, path, &how, &again));
    heddle_publisher_close(&p);
    stop();
}

/* -- a directory that is read while the publisher opens -- */

static void fixture(const char *name, char ret_path[256], heddle_adapter_info_t *ret_info)
{
    snprintf(ret_path, 256, "%s/tests/fixtures/%s", getenv("HEDDLE_SOURCE_DIR"), name);
    *ret_info = (heddle_adapter_info_t){.size = sizeof *ret_info};
    OK(heddle_adapter_check(ret_path, ret_info));
}

static void copy_into(const char *from, const char *to)
{
    char command[600];
    snprintf(command, sizeof command, "cp '%s'/adapter_* '%s'", from, to);
    cr_assert_eq(system(command), 0);
}

/* Whatever was read ahead, what is published is what the directory of the call holds then. */
Test(publisher, a_directory_that_is_read_ahead)
{
    char plain[256], rslora[256], copy[] = "/tmp/heddle-ahead-XXXXXX";
    heddle_adapter_info_t of_plain, of_rslora;
    heddle_publish_opts_t how = {.size = sizeof how, .step = -1, .if_unchanged = HEDDLE_UNCHANGED_PUBLISH};
    heddle_published_t v = {.size = sizeof v};
    heddle_publisher_t *p;
    fixture("plain", plain, &of_plain);
    fixture("rslora", rslora, &of_rslora);
    cr_assert(mkdtemp(copy));
    copy_into(plain, copy);
    start_worker("w1");
    const struct {
        const char *ahead, *given, *after;
        const heddle_adapter_info_t *want;
    } ROWS[] = {{plain, plain, NULL, &of_plain},   /* the same */
                {plain, rslora, NULL, &of_rslora}, /* another one is published */
                {copy, copy, rslora, &of_rslora},  /* it has changed since */
                {"/nowhere", plain, NULL, &of_plain}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        heddle_publisher_opts_t opts = {.size = sizeof opts,
                                        .broker = endpoint,
                                        .adapter = "policy",
                                        .takeover = 1,
                                        .read_dir = ROWS[i].ahead};
        OK(heddle_publisher_open(&opts, &p));
        if (ROWS[i].after) copy_into(ROWS[i].after, copy);
        OK(heddle_publisher_publish_dir(p, ROWS[i].given, &how, &v));
        cr_assert_str_eq(v.digest, ROWS[i].want->digest, "row %zu", i);
        OK(heddle_publisher_publish_dir(p, plain, &how, &v)); /* and the next, read in the call */
        cr_assert_str_eq(v.digest, of_plain.digest, "row %zu", i);
        FAILS(HEDDLE_ERR_NOT_FOUND, heddle_publisher_publish_dir(p, "/nowhere", &how, &v));
        heddle_publisher_close(&p);
    }
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = endpoint,
                                    .adapter = "policy",
                                    .takeover = 1,
                                    .read_dir = plain};
    OK(heddle_publisher_open(&opts, &p));
    heddle_publisher_close(&p); /* unused */
    char command[64];
    snprintf(command, sizeof command, "rm -r '%s'", copy);
    cr_assert_eq(system(command), 0);
    stop();
}
