/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/torture/batch.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 40, AT_ONCE = 2, RUN_S = 10, BAD_SHOWN = 12, WORDS = 60 };

typedef struct {
    void (*run)(void *self, uint64_t nth);
    void *self;
    const char *repeat;
    size_t shown;
} runner_t;

#ifdef __SANITIZE_ADDRESS__
/* What a run frees is less than that.  With the 256 MB that are usual each fork of a child that has run a few
 * copies the page tables of what those have freed, which was most of the time that the runs took. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "quarantine_size_mb=16"; }
#endif

static size_t *notes; /* shared with the children */

void batch_note(batch_note_t note)
{
    if (notes) __atomic_add_fetch(&notes[note], 1, __ATOMIC_RELAXED);
}

static pid_t start(const runner_t *r, const uint64_t *list, size_t count, const char *log)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || dup2(fd, 2) < 0) _exit(2);
    alarm((unsigned)(RUN_S + count));
    for (size_t i = 0; i < count; i++) r->run(r->self, list[i]);
    exit(0); /* with the leak check */
}

static bool ended_well(pid_t pid)
{
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The picture is long: what was found is last, and what a sanitizer says are its lines with numbers. */
static void show(runner_t *r, uint64_t nth, const char *log)
{
    if (r->shown++ >= BAD_SHOWN) return;
    printf("BAD: %s %llu\n", r->repeat, (unsigned long long)nth);
    FILE *f = fopen(log, "r");
    char line[512], last[512] = "";
    int shown = 0;
    while (f && fgets(line, sizeof line, f)) {
        memcpy(last, line, sizeof last);
        bool is_word = strstr(line, "ERROR: ") || strstr(line, "runtime error") || strstr(line, "leak of") ||
                       strstr(line, "    #");
        if (is_word && shown++ < WORDS) printf("  %s", line);
    }
    if (f) fclose(f);
    printf("  %s", last);
}

static void one_by_one(runner_t *r, const uint64_t *list, size_t count, batch_result_t *result)
{
    char log[] = "/tmp/heddle-torture-XXXXXX";
    int fd = mkstemp(log);
    if (fd >= 0) close(fd);
    for (size_t i = 0; i < count; i++) {
        if (ended_well(start(r, &list[i], 1, log))) continue;
        result->bad++;
        show(r, list[i], log);
    }
    unlink(log);
}

batch_result_t batch_run(void (*run)(void *self, uint64_t nth), void *self, const uint64_t *list,
                         size_t count, const char *repeat)
{
    runner_t r = {run, self, repeat, 0};
    batch_result_t result = {0};
    notes = mmap(NULL, NOTE_COUNT * sizeof *notes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < count; at += BATCH * AT_ONCE) {
        pid_t pids[AT_ONCE];
        size_t sizes[AT_ONCE] = {0};
        for (size_t i = 0; i < AT_ONCE && at + i * BATCH < count; i++) {
            size_t left = count - at - i * BATCH;
            sizes[i] = left < BATCH ? left : BATCH;
            pids[i] = start(&r, &list[at + i * BATCH], sizes[i], "/dev/null");
        }
        for (size_t i = 0; i < AT_ONCE; i++)
            if (sizes[i] && !ended_well(pids[i])) one_by_one(&r, &list[at + i * BATCH], sizes[i], &result);
    }
    memcpy(result.notes, notes, sizeof result.notes);
    munmap(notes, NOTE_COUNT * sizeof *notes);
    notes = NULL;
    return result;
}

const char *batch_only(void)
{
    const char *pattern = getenv("CRITERION_TEST_PATTERN");
    return pattern && strcmp(pattern, "*") != 0 ? pattern : NULL;
}

int batch_usage(const char *program)
{
    fprintf(stderr, "usage: %s [--only NAME] [--nth N] [--burst K] [--seed S] [--all] [--list]\n", program);
    return 2;
}

int batch_list(const char *const *first, size_t count, size_t stride)
{
    for (size_t i = 0; i < count; i++) puts(*(const char *const *)((const char *)first + i * stride));
    return 0;
}
