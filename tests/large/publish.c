/* SPDX-License-Identifier: Apache-2.0 */
/* large-publish: a trainer that publishes many versions, or to many adapters, for tests/large/run.
 *
 *   --count N       versions of the adapter; with --adapters, versions of each
 *   --adapters M    one after the other: NAME-0000, NAME-0001, ...; each with a handle of its own, closed when it is active
 *   --interval MS   one version every MS milliseconds, whatever becomes of those before; without it each is waited for
 *   --every K       after K versions says where it is, and waits for a line: somebody looks at us
 *
 * Tensors are made up here; each version differs from all others in its first bytes.  One JSON line for each stop, and one
 * at the end:
 *   {"kind":"published","count":N,"created":N,"refused":N,"version":V,"digest":"h1:..","begun_at":AT,"seconds":S,"commit_ms":P50,"commit_worst_ms":W,"active_ms":P50,"active_worst_ms":W}
 * begun_at: when the publication of the last version began.
 * After the last one it serves on until its input ends. */
#include <heddle/heddle.h>
#include "core/clock.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const char *broker, *adapter;
    int count, adapters, interval_ms, every, activation;
    unsigned tensors;
    uint64_t tensor_bytes;
} args_t;

typedef struct {
    double *at;
    size_t count, capacity;
} times_t;

typedef struct {
    args_t args;
    heddle_tensor_t *rows;
    uint64_t dims[1];
    uint64_t stamp;
    uint8_t *fill;
    uint64_t count, created, refused;
    heddle_published_t last;
    times_t commit, active;
    double start_ms;
    char begun_at[25];
} run_t;

static double now_ms(void) { return (double)clock_now(clock_system()) / 1000.0; }

static int fail(const char *what)
{
    const heddle_error_t *e = heddle_last_error();
    fprintf(stderr, "large-publish: %s: %s: %s (%s)\n", what, heddle_err_name(e->code), e->message, e->hint);
    return 1;
}

static void note(times_t *t, double ms)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 1024;
        t->at = realloc(t->at, t->capacity * sizeof *t->at);
        if (!t->at) abort();
    }
    t->at[t->count++] = ms;
}

static int by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void print_times(const char *name, times_t *t)
{
    if (t->count == 0) return;
    qsort(t->at, t->count, sizeof *t->at, by_value);
    printf(",\"%s_ms\":%.2f,\"%s_worst_ms\":%.2f", name, t->at[t->count / 2], name, t->at[t->count - 1]);
    t->count = 0; /* of the next stretch */
}

static void say(run_t *r)
{
    printf("{\"kind\":\"published\",\"count\":%llu,\"created\":%llu,\"refused\":%llu,\"version\":%llu,"
           "\"digest\":\"%s\",\"begun_at\":\"%s\",\"seconds\":%.2f",
           (unsigned long long)r->count, (unsigned long long)r->created, (unsigned long long)r->refused,
           (unsigned long long)r->last.version, r->last.digest, r->begun_at, (now_ms() - r->start_ms) / 1000);
    print_times("commit", &r->commit);
    print_times("active", &r->active);
    puts("}");
    fflush(stdout);
}

static void wait_for_a_line(void)
{
    for (int c; (c = getchar()) != EOF && c != '\n';) continue;
}

static void make_tensors(run_t *r)
{
    r->rows = calloc(r->args.tensors, sizeof *r->rows);
    r->fill = malloc(r->args.tensor_bytes);
    if (!r->rows || !r->fill) abort();
    r->dims[0] = r->args.tensor_bytes;
    memset(r->fill, 0x5a, r->args.tensor_bytes);
    for (unsigned i = 0; i < r->args.tensors; i++) {
        char *name = malloc(64);
        if (!name) abort();
        snprintf(name, 64, "base_model.model.layers.%u.lora_A.weight", i);
        r->rows[i] = (heddle_tensor_t){.size = sizeof *r->rows,
                                       .name = name,
                                       .dtype = HEDDLE_DTYPE_U8,
                                       .ndim = 1,
                                       .dims = r->dims};
    }
    r->stamp = clock_now(clock_system());
}

static void fill(run_t *r, heddle_publication_t *pub)
{
    r->stamp++;
    memcpy(r->fill, &r->stamp, sizeof r->stamp);
    for (unsigned i = 0; i < r->args.tensors; i++)
        memcpy(heddle_publication_tensor(pub, i), r->fill, r->args.tensor_bytes);
}

static int publish(run_t *r, heddle_publisher_t *p)
{
    static const char CONFIG[] =
        "{\"peft_type\":\"LORA\",\"r\":1,\"base_model_name_or_path\":\"example/large\"}";
    heddle_publication_t *pub = NULL;
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = -1, .activation = r->args.activation};
    heddle_published_t done = {.size = sizeof done};
    double start = now_ms();
    clock_text(clock_wall(clock_system()), r->begun_at);
    r->count++;
    int rc = heddle_publication_begin(p, r->rows, r->args.tensors, CONFIG, sizeof CONFIG - 1, NULL, &pub);
    if (rc == HEDDLE_ERR_NO_SLOT) {
        r->refused++;
        return 0;
    }
    if (rc) return fail("begin");
    fill(r, pub);
    if (heddle_publication_commit(&pub, &opts, &done)) return fail("commit");
    note(&r->commit, now_ms() - start);
    r->last = done;
    r->created += done.created ? 1 : 0;
    return 0;
}

static int wait_active(run_t *r, heddle_publisher_t *p)
{
    static heddle_report_t report;
    report = (heddle_report_t){.size = sizeof report};
    double start = now_ms();
    if (heddle_publisher_wait(p, r->last.version, HEDDLE_PHASE_ACTIVE,
                              (heddle_quorum_t){HEDDLE_QUORUM_ALL, 0}, 60000, &report))
        return fail("wait");
    note(&r->active, now_ms() - start);
    return 0;
}

/* The next version is due so long after the first, whatever the one before took. */
static void wait_until(double due_ms)
{
    double left = due_ms - now_ms();
    if (left <= 0) return;
    struct timespec rest = {.tv_sec = (time_t)(left / 1000), .tv_nsec = (long)(left * 1e6) % 1000000000};
    nanosleep(&rest, NULL);
}

static int publish_versions(run_t *r, heddle_publisher_t *p)
{
    double start = now_ms();
    for (int i = 0; i < r->args.count; i++) {
        if (r->args.interval_ms) wait_until(start + (double)i * r->args.interval_ms);
        if (publish(r, p) || (!r->args.interval_ms && wait_active(r, p))) return 1;
        if (r->args.every && r->count % (uint64_t)r->args.every == 0) {
            say(r);
            wait_for_a_line();
        }
    }
    return 0;
}

static int publish_to(run_t *r, const char *adapter, bool is_last)
{
    heddle_publisher_t *p = NULL;
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = r->args.broker,
                                    .adapter = adapter,
                                    .takeover = 1};
    if (heddle_publisher_open(&opts, &p)) return fail("open");
    int rc = publish_versions(r, p);
    if (!rc && is_last) {
        say(r);
        wait_for_a_line();
    }
    heddle_publisher_close(&p);
    return rc;
}

static int parse(int argc, char **argv, args_t *ret_args)
{
    static const struct option LONGS[] = {{"broker", 1, NULL, 'b'},   {"adapter", 1, NULL, 'n'},
                                          {"adapters", 1, NULL, 'm'}, {"count", 1, NULL, 'c'},
                                          {"interval", 1, NULL, 'i'}, {"every", 1, NULL, 'e'},
                                          {"tensors", 1, NULL, 't'},  {"tensor-bytes", 1, NULL, 's'},
                                          {"as-ready", 0, NULL, 'a'}, {0}};
    *ret_args = (args_t){.adapter = "policy", .count = 1, .tensors = 4, .tensor_bytes = 4096};
    for (int c; (c = getopt_long(argc, argv, "", LONGS, NULL)) != -1;) {
        if (c == 'b') ret_args->broker = optarg;
        else if (c == 'n') ret_args->adapter = optarg;
        else if (c == 'm') ret_args->adapters = atoi(optarg);
        else if (c == 'c') ret_args->count = atoi(optarg);
        else if (c == 'i') ret_args->interval_ms = atoi(optarg);
        else if (c == 'e') ret_args->every = atoi(optarg);
        else if (c == 't') ret_args->tensors = (unsigned)atoi(optarg);
        else if (c == 's') ret_args->tensor_bytes = strtoull(optarg, NULL, 10);
        else if (c == 'a') ret_args->activation = HEDDLE_ACTIVATION_AS_READY;
        else return 2;
    }
    return ret_args->tensors > 0 && ret_args->tensor_bytes >= sizeof(uint64_t) && optind == argc ? 0 : 2;
}

int main(int argc, char **argv)
{
    run_t r = {.start_ms = now_ms()};
    if (parse(argc, argv, &r.args)) {
        fprintf(stderr, "usage: large-publish --broker EP [--adapter NAME] [--adapters M] [--count N] "
                        "[--interval MS] [--every K] [--as-ready]\n"
                        "                     [--tensors N] [--tensor-bytes N]\n");
        return 2;
    }
    make_tensors(&r);
    int rc = r.args.adapters ? 0 : publish_to(&r, r.args.adapter, true);
    for (int i = 0; i < r.args.adapters && !rc; i++) {
        char name[HEDDLE_NAME_MAX + 1];
        snprintf(name, sizeof name, "%.100s-%04d", r.args.adapter, i);
        rc = publish_to(&r, name, i + 1 == r.args.adapters);
    }
    return rc;
}
