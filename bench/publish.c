/* SPDX-License-Identifier: Apache-2.0 */
/* bench-publish --broker EP [--workers N] [--reps R] [--every K] DIR: from tensors in this process's memory to active in N worker
 * processes of its own (0: in those that are there).
 *
 * Each repetition changes one tensor, then takes the time of: begin + copy of all tensors into the region (fill), digest and
 * seal (pack), record durable (commit), staged by all, active on all, as the publisher hears it.  The first two are warm-up.
 * One JSON line: medians and worst, ms.  With --every it stops after every K repetitions, says how many, and waits for a line. */
#include <heddle/heddle.h>
#include "core/clock.h"
#include "proto/peft.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WARM_UP = 2, REPS_MAX = 5000 };
typedef struct { double fill, pack, commit, staged, active; } times_t;
typedef struct {
    const heddle_tensor_t *rows;
    uint32_t count;
    void **data;
    bytes_t config;
    uint64_t stamp;   /* of this run: no two runs publish the same bytes */
} model_t;

static double now_ms(void) { return (double)clock_now(clock_system()) / 1000.0; }

static int fail(const char *what)
{
    fprintf(stderr, "bench-publish: %s: %s (%s)\n", what, heddle_last_error()->message, heddle_last_error()->hint);
    return 1;
}

/* A worker process: takes what comes, until it is killed with its parent. */
static int serve(const char *broker, int number)
{
    char name[32];
    snprintf(name, sizeof name, "bench-%d", number);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    heddle_worker_t *w = NULL;
    heddle_worker_opts_t opts = {.size = sizeof opts, .broker = broker, .name = name, .adapters = (const char *const[]){"bench", NULL}};
    if (heddle_worker_open(&opts, &w)) return fail("worker");
    for (heddle_event_t e = {.size = sizeof e};;)
        if (heddle_worker_next_event(w, -1, &e) == HEDDLE_OK && e.type == HEDDLE_EVENT_JOINED && write(STDOUT_FILENO, "+", 1) != 1) return 1;
}

/* Workers are started by exec, and before this process loads UCX; each writes one byte when it has joined. */
static int start_workers(const char *self, const char *broker, int count)
{
    int ready[2];
    if (pipe(ready)) return 1;
    for (int i = 0; i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        if (fork() == 0) {
            dup2(ready[1], STDOUT_FILENO);
            close(ready[0]);
            execl(self, self, "--broker", broker, "--serve", number, (char *)NULL);
            _exit(127);
        }
    }
    close(ready[1]);
    for (int i = 0; i < count; i++) {
        char byte;
        if (read(ready[0], &byte, 1) != 1) return 1;
    }
    return 0;
}

static int load_model(const char *dir, model_t *ret_model)
{
    peft_dir_t *d = NULL;
    heddle_error_t error;
    layout_t layout = {0};
    if (peft_open(dir, &d, &error)) { fprintf(stderr, "bench-publish: %s\n", error.message); return 1; }
    ret_model->rows = peft_tensors(d, &ret_model->count);
    ret_model->config = peft_config(d);
    if (layout_make(ret_model->rows, ret_model->count, &layout, &error)) return 1;
    char *region = calloc(1, layout.region_bytes);
    ret_model->data = calloc(ret_model->count, sizeof *ret_model->data);
    if (!region || !ret_model->data || peft_read(d, region, layout.places, &error)) return 1;
    for (uint32_t i = 0; i < ret_model->count; i++) { /* each tensor in memory of its own, as a trainer has them */
        ret_model->data[i] = malloc(layout.sizes[i] ? layout.sizes[i] : 1);
        if (!ret_model->data[i]) return 1;
        memcpy(ret_model->data[i], region + layout.places[i], layout.sizes[i]);
    }
    free(region);
    ret_model->stamp = clock_now(clock_system());
    return 0; /* the tables stay open for the life of the process */
}

static uint64_t bytes_of_row(const heddle_tensor_t *t)
{
    uint64_t n = heddle_dtype_bits(t->dtype);
    for (uint32_t d = 0; d < t->ndim; d++) n *= t->dims[d];
    return n / 8;
}

static int once(heddle_publisher_t *p, const model_t *m, int rep, times_t *ret_times)
{
    static heddle_report_t report;
    heddle_publication_t *pub = NULL;
    heddle_published_t done = {.size = sizeof done};
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = -1};
    uint64_t stamp = m->stamp + (uint64_t)rep, first = bytes_of_row(&m->rows[0]);
    memcpy(m->data[0], &stamp, first < sizeof stamp ? first : sizeof stamp);
    double start = now_ms();
    if (heddle_publication_begin(p, m->rows, m->count, m->config.data, m->config.bytes, NULL, &pub)) return fail("begin");
    for (uint32_t i = 0; i < m->count; i++) memcpy(heddle_publication_tensor(pub, i), m->data[i], bytes_of_row(&m->rows[i]));
    double filled = now_ms() - start;
    if (heddle_publication_commit(&pub, &opts, &done)) return fail("commit");
    report = (heddle_report_t){.size = sizeof report};
    if (heddle_publisher_wait(p, done.version, HEDDLE_PHASE_ACTIVE, (heddle_quorum_t){HEDDLE_QUORUM_ALL, 0}, 30000, &report)) return fail("wait");
    double active = now_ms() - start;
    *ret_times = (times_t){filled, filled + done.pack_ms, filled + done.commit_ms, filled + report.staged_ms, active};
    return 0;
}

/* Time for somebody to look at us. */
static void pause_here(int reps)
{
    printf("%d\n", reps);
    fflush(stdout);
    for (int c; (c = getchar()) != EOF && c != '\n';) continue;
}

static int by_value(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void print_column(const char *name, const times_t *t, int reps, size_t offset)
{
    double v[REPS_MAX];
    for (int i = 0; i < reps; i++) v[i] = *(const double *)(const void *)((const char *)&t[i] + offset);
    qsort(v, (size_t)reps, sizeof *v, by_value);
    printf(",\"%s_ms\":%.2f,\"%s_worst_ms\":%.2f", name, v[reps / 2], name, v[reps - 1]);
}

int main(int argc, char **argv)
{
    static const struct option LONGS[] = {{"broker", 1, NULL, 'b'}, {"workers", 1, NULL, 'w'}, {"reps", 1, NULL, 'r'}, {"serve", 1, NULL, 's'},
                                          {"every", 1, NULL, 'e'}, {0}};
    const char *broker = NULL;
    int workers = 1, reps = 7, every = 0;
    for (int c; (c = getopt_long(argc, argv, "", LONGS, NULL)) != -1;) {
        if (c == 'b') broker = optarg;
        else if (c == 'w') workers = atoi(optarg);
        else if (c == 'r') reps = atoi(optarg);
        else if (c == 'e') every = atoi(optarg);
        else if (c == 's') return serve(broker, atoi(optarg));
        else return 2;
    }
    if (optind != argc - 1 || workers < 0 || reps < 1 || reps > REPS_MAX) { fprintf(stderr, "usage: bench-publish --broker EP [--workers N] [--reps N] [--every N] DIR\n"); return 2; }
    model_t model = {0};
    heddle_publisher_t *p = NULL;
    heddle_publisher_opts_t opts = {.size = sizeof opts, .broker = broker, .adapter = "bench", .takeover = 1};
    times_t times[REPS_MAX];
    if (start_workers("/proc/self/exe", broker, workers) || load_model(argv[optind], &model)) return 1;
    if (heddle_publisher_open(&opts, &p)) return fail("open");
    for (int i = -WARM_UP; i < reps; i++) {
        if (once(p, &model, i + WARM_UP, &times[i < 0 ? 0 : i])) return 1;
        if (every > 0 && i >= 0 && (i + 1) % every == 0) pause_here(i + 1);
    }
    printf("{\"kind\":\"bench\",\"workers\":%d,\"reps\":%d,\"tensors\":%u", workers, reps, model.count);
    print_column("fill", times, reps, offsetof(times_t, fill));
    print_column("pack", times, reps, offsetof(times_t, pack));
    print_column("commit", times, reps, offsetof(times_t, commit));
    print_column("staged", times, reps, offsetof(times_t, staged));
    print_column("active", times, reps, offsetof(times_t, active));
    puts("}");
    heddle_publisher_close(&p);
    return 0;
}
