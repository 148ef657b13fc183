/* SPDX-License-Identifier: Apache-2.0 */
/* warm-calls BROKER ADAPTER [SHAPE [VERSIONS [MEMORY [BROKER-PID]]]]: what the kernel, the allocator and UCX
 * are asked for while a version is published and becomes active, warm: its publisher has a region ahead, and
 * one worker of the same host has it mapped (MEMORY `shared`), or fetches it over TCP into a slot of its own
 * (`own`). A row for each process, the median and the most of the versions: page faults, mmap, munmap, mprotect
 * and madvise of the process's own libraries, allocations, regions registered with UCX. Before them the same of
 * the first version of the adapter, whose publication began before it was written, and of the second one.
 *
 * The functions are counted because this program defines them: the dynamic linker takes its definitions for
 * all libraries but the C library itself, whose own calls of mmap (for large allocations) show as page
 * faults. Faults are those of /proc/PID/stat, of all threads, and of the broker too where its pid is given.
 * After them `shared`: the shared memory of both, each page counted once, and `adapter`, the bytes of a
 * version. The last line is the worker's: its counters, of which bytes_in is 0 where all versions were held. */
#include "bench/model.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <heddle/heddle.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PUBLISHER, WORKER, BROKER, PROCESSES };
enum { FAULTS, MMAP, MUNMAP, MPROTECT, MADVISE, ALLOCATIONS, REGISTRATIONS, KINDS };
enum { MOST_VERSIONS = 201, WARM_UP = 20 };

/* Shared with the worker, which is a child. */
typedef struct {
    atomic_ulong calls[PROCESSES][KINDS];
} counters_t;
static counters_t before_main;
static counters_t *counters = &before_main;
static int self = PUBLISHER;

static void count(int kind)
{
    atomic_fetch_add_explicit(&counters->calls[self][kind], 1, memory_order_relaxed);
}

/* ---- what is counted ---- */

#define COUNTED __attribute__((visibility("default")))

COUNTED void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    count(MMAP);
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

COUNTED int munmap(void *at, size_t bytes)
{
    count(MUNMAP);
    return (int)syscall(SYS_munmap, at, bytes);
}

COUNTED int mprotect(void *at, size_t bytes, int prot)
{
    count(MPROTECT);
    return (int)syscall(SYS_mprotect, at, bytes, prot);
}

COUNTED int madvise(void *at, size_t bytes, int advice)
{
    count(MADVISE);
    return (int)syscall(SYS_madvise, at, bytes, advice);
}

#ifndef __SANITIZE_ADDRESS__
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);

COUNTED void *malloc(size_t bytes)
{
    count(ALLOCATIONS);
    return __libc_malloc(bytes);
}

COUNTED void *calloc(size_t n, size_t bytes)
{
    count(ALLOCATIONS);
    return __libc_calloc(n, bytes);
}

COUNTED void *realloc(void *old, size_t bytes)
{
    count(ALLOCATIONS);
    return __libc_realloc(old, bytes);
}
#endif

/* UCX is loaded by the library's plugin, so that its own function has to be looked for. */
COUNTED int ucp_mem_map(void *context, const void *params, void **ret_handle);
COUNTED int ucp_mem_map(void *context, const void *params, void **ret_handle)
{
    static int (*its)(void *, const void *, void **);
    if (!its) *(void **)&its = dlsym(dlopen("libucp.so.0", RTLD_NOW | RTLD_NOLOAD), "ucp_mem_map");
    count(REGISTRATIONS);
    return its(context, params, ret_handle);
}

/* ---- looked at ---- */

static pid_t pids[PROCESSES];

/* The tenth field; nothing is allocated. */
static unsigned long faults_of(pid_t pid)
{
    char path[32], text[512];
    if (!pid) return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0) return 0;
    text[bytes] = 0;
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < 10; field++) at = strchr(at + 1, ' ');
    return at ? strtoul(at, NULL, 10) : 0;
}

typedef struct {
    unsigned long calls[PROCESSES][KINDS];
} sample_t;

static sample_t look(void)
{
    sample_t s;
    for (int p = 0; p < PROCESSES; p++) {
        for (int k = 0; k < KINDS; k++) s.calls[p][k] = atomic_load(&counters->calls[p][k]);
        s.calls[p][FAULTS] = faults_of(pids[p]);
    }
    return s;
}

static unsigned long shared_bytes(pid_t pid)
{
    char path[48], line[128];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f) && sscanf(line, "Pss_Shmem: %lu", &kib) != 1) {}
    if (f) fclose(f);
    return kib * 1024;
}

static int compare(const void *a, const void *b)
{
    unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return (x > y) - (x < y);
}

static void print(const char *which, const sample_t *samples, int n)
{
    static const char *const NAMES[] = {"publisher", "worker", "broker"};
    static const char *const KIND[] = {"page faults", "mmap",        "munmap",       "mprotect",
                                       "madvise",     "allocations", "registrations"};
    for (int p = 0; p < PROCESSES; p++) {
        if (!pids[p]) continue;
        printf("%s%s", which, NAMES[p]);
        for (int k = 0; k < (p == BROKER ? 1 : KINDS); k++) {
            unsigned long values[MOST_VERSIONS];
            for (int i = 0; i < n; i++) values[i] = samples[i].calls[p][k];
            qsort(values, (size_t)n, sizeof *values, compare);
            printf("  %s %lu (most %lu)", KIND[k], values[n / 2], values[n - 1]);
        }
        printf("\n");
    }
}

/* ---- the worker, and the publisher ---- */

static int fail(const char *what)
{
    fprintf(stderr, "warm-calls: %s: %s (%s)\n", what, heddle_last_error()->message,
            heddle_last_error()->hint);
    return 1;
}

static heddle_worker_t *worker; /* for the handler */

static void on_signal(int number)
{
    (void)number;
    heddle_worker_interrupt(worker);
}

static _Noreturn void be_worker(const char *broker, const char *adapter, bool owns_memory)
{
    const char *const adapters[] = {adapter, NULL};
    char *counters_json = NULL;
    int rc = HEDDLE_OK;
    heddle_worker_opts_t opts = {.size = sizeof opts,
                                 .broker = broker,
                                 .adapters = adapters,
                                 .own_memory = owns_memory};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    self = WORKER;
    if (heddle_worker_open(&opts, &worker)) _exit(fail("worker"));
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    while (rc != HEDDLE_ERR_INTERRUPTED) {
        heddle_event_t e = {.size = sizeof e};
        rc = heddle_worker_next_event(worker, -1, &e);
    }
    if (heddle_worker_stats(worker, &counters_json)) _exit(fail("stats"));
    printf("%s\n", counters_json);
    fflush(stdout);
    _exit(0);
}

/* What is done in the background is done: neither process changed its page tables for so long. Where both wait
 * for a processor that takes some of these. */
static void rest(void)
{
    static const struct timespec REST = {.tv_nsec = 300000000};
    bool is_busy = true;
    for (int i = 0; is_busy && i < 20; i++) {
        sample_t before = look();
        nanosleep(&REST, NULL);
        sample_t after = look();
        is_busy = false;
        for (int p = 0; p < BROKER; p++)
            for (int k = MMAP; k <= MADVISE; k++) is_busy |= before.calls[p][k] != after.calls[p][k];
    }
}

/* is_early: its shape is known long before its bytes are. */
static int publish(heddle_publisher_t *p, model_t *m, bool is_early, sample_t *ret_calls)
{
    static heddle_report_t report;
    heddle_publication_t *pub = NULL;
    heddle_published_t done = {.size = sizeof done};
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = -1};
    heddle_quorum_t all = {HEDDLE_QUORUM_ALL, 0};
    model_change(m);
    sample_t before = look();
    if (heddle_publication_begin(p, m->table.rows, m->table.count, m->config.data, m->config.bytes, NULL,
                                 &pub))
        return fail("begin");
    if (is_early) {
        rest();
        before = look();
    }
    for (uint32_t i = 0; i < m->table.count; i++)
        memcpy(heddle_publication_tensor(pub, i), m->data[i], m->table.rows[i].data_bytes);
    if (heddle_publication_commit(&pub, &opts, &done)) return fail("commit");
    report = (heddle_report_t){.size = sizeof report};
    if (heddle_publisher_wait(p, done.version, HEDDLE_PHASE_ACTIVE, all, 30000, &report)) return fail("wait");
    *ret_calls = look();
    for (int i = 0; i < PROCESSES; i++)
        for (int k = 0; k < KINDS; k++) ret_calls->calls[i][k] -= before.calls[i][k];
    return 0;
}

int main(int argc, char **argv)
{
    static sample_t samples[MOST_VERSIONS];
    sample_t first, second;
    int versions = argc > 4 ? atoi(argv[4]) : 21;
    bool owns_memory = argc > 5 && !strcmp(argv[5], "own");
    if (argc < 3 || versions < 1 || versions > MOST_VERSIONS)
        return fputs("usage: warm-calls BROKER ADAPTER [SHAPE [VERSIONS [shared|own [BROKER-PID]]]]\n",
                     stderr),
               2;
    counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counters == MAP_FAILED) return 9;
    memset(counters, 0, sizeof *counters);
    pids[PUBLISHER] = getpid();
    pids[BROKER] = argc > 6 ? atoi(argv[6]) : 0;
    if ((pids[WORKER] = fork()) == 0) be_worker(argv[1], argv[2], owns_memory);
    heddle_error_t error = {0};
    model_t *model = NULL;
    heddle_publisher_t *p = NULL;
    heddle_publisher_opts_t opts = {.size = sizeof opts, .broker = argv[1], .adapter = argv[2]};
    int rc = model_new(argc > 3 ? argv[3] : "tiny", 16, &model, &error) != HEDDLE_OK;
    if (!rc && heddle_publisher_open(&opts, &p)) rc = fail("open");
    if (!rc) rc = publish(p, model, true, &first);
    rest();
    if (!rc) rc = publish(p, model, false, &second);
    for (int i = -WARM_UP; !rc && i < versions; i++) {
        rest();
        rc = publish(p, model, false, &samples[i < 0 ? 0 : i]);
    }
    if (!rc) {
        print("first ", &first, 1);
        print("second ", &second, 1);
        print("", samples, versions);
        printf("shared %lu  adapter %lu\n", shared_bytes(pids[PUBLISHER]) + shared_bytes(pids[WORKER]),
               (unsigned long)model->table.data_bytes);
    }
    fflush(stdout);
    heddle_publisher_close(&p);
    model_destroy(&model);
    kill(pids[WORKER], SIGTERM);
    while (wait(NULL) > 0) {}
    return rc;
}
