/* SPDX-License-Identifier: Apache-2.0 */
/* Every failpoint fails, at each of its first passes and at the last one of each play, and all comes right afterwards.
 *
 *   torture_failpoints [--only NAME] [--nth N] [--seed S] [--list]
 *
 * --list prints the plays; --only takes a play's name.  Without arguments it prints the table of who hit what, and fails
 * when a play passes one that failpoints.list does not name (tests/style/failpoints.py compares it with the
 * sources), or one is hit by nobody: by no play, and not by the test of other processes that the list has for
 * it, which is run here, and must tell the hit (HEDDLE_FAILPOINTS_HIT) and pass.  What the list has a test
 * for is not made to fail in plays. */
#include "core/failpoint.h"
#include "tests/torture/batch.h"
#include "tests/torture/plays.h"

#include <errno.h>
#include <unistd.h>

enum { NAMES_MAX = 160, PASSES = 4, PLAYS_MAX = 16 };

typedef struct {
    char name[64], elsewhere[200];
    unsigned hits[PLAYS_MAX];
} point_row_t;

static point_row_t points[NAMES_MAX];
static size_t point_count;
static char root[512];

typedef struct {
    const play_row_t *row;
    uint64_t seed;
    const char *name;
} job_t;

/* ---- the list ---- */

static point_row_t *find(const char *name)
{
    for (size_t i = 0; i < point_count; i++)
        if (!strcmp(points[i].name, name)) return &points[i];
    return NULL;
}

static void read_list(void)
{
    char path[600], line[256];
    const char *given = getenv("HEDDLE_SOURCE_DIR");
    snprintf(root, sizeof root, "%s", given ? given : ".");
    snprintf(path, sizeof path, "%s/tests/torture/failpoints.list", root);
    FILE *f = fopen(path, "r");
    if (!f) {
        fprintf(stderr, "%s: %s (run it in the source tree, or set HEDDLE_SOURCE_DIR)\n", path,
                strerror(errno));
        exit(2);
    }
    while (fgets(line, sizeof line, f) && point_count < NAMES_MAX)
        if (line[0] != '#' &&
            sscanf(line, "%63s %199[^\n]", points[point_count].name, points[point_count].elsewhere) >= 1)
            point_count++;
    fclose(f);
}

/* Runs the test of another program, in the source tree. */
static bool is_hit_elsewhere(const point_row_t *row)
{
    char hits[] = "/tmp/heddle-hits-XXXXXX", command[1024], line[128];
    bool is_hit = false;
    int fd = mkstemp(hits);
    cr_assert(fd >= 0 && close(fd) == 0);
    setenv("HEDDLE_FAILPOINTS_HIT", hits, 1);
    snprintf(command, sizeof command, "cd '%s' && { %s; } >/dev/null 2>&1", root, row->elsewhere);
    fflush(stdout);
    bool has_passed = system(command) == 0;
    unsetenv("HEDDLE_FAILPOINTS_HIT");
    FILE *f = fopen(hits, "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        is_hit |= !strcmp(line, row->name);
    }
    if (f) fclose(f);
    unlink(hits);
    if (!has_passed) printf("%s: its test fails: %s\n", row->name, row->elsewhere);
    return is_hit && has_passed;
}

/* ---- runs ---- */

static void run(void *self, uint64_t nth)
{
    const job_t *job = self;
    play_t p;
    play_begin(&p, job->row, job->seed);
    failpoint_arm(job->name, (unsigned)nth);
    job->row->act(&p);
    failpoint_disarm();
    cr_assert(failpoint_has_failed());
    play_converge(&p);
    batch_note(p.restarts ? NOTE_RESTARTED : p.first_code ? NOTE_REFUSED : NOTE_FINE);
    play_end(&p);
}

static size_t passes_of(unsigned count, uint64_t list[PASSES + 1])
{
    size_t n = 0;
    for (unsigned i = 1; i <= count && i <= PASSES; i++) list[n++] = i;
    if (count > PASSES) list[n++] = count;
    return n;
}

/* All that the play passes.  How many were wrong. */
static size_t torture(size_t play, uint64_t seed)
{
    static struct {
        char name[64];
        unsigned count;
    } passed[NAMES_MAX];
    play_t p;
    size_t bad = 0;
    int count = 0;
    play_begin(&p, &PLAYS[play], seed);
    failpoint_arm("", 0);
    PLAYS[play].act(&p);
    failpoint_disarm();
    for (const char *name; count < NAMES_MAX && (name = failpoint_passed(count, &passed[count].count));
         count++)
        snprintf(passed[count].name, sizeof passed[count].name, "%.63s", name);
    play_converge(&p);
    play_end(&p);
    for (int i = 0; i < count; i++) {
        job_t job = {&PLAYS[play], seed, passed[i].name};
        uint64_t list[PASSES + 1];
        size_t n = passes_of(passed[i].count, list);
        char repeat[160];
        snprintf(repeat, sizeof repeat, "torture_failpoints --only %s --seed %llu --point %.63s --nth",
                 PLAYS[play].name, (unsigned long long)seed, passed[i].name);
        point_row_t *row = find(passed[i].name);
        if (row && row->elsewhere[0]) continue; /* a place to die at: nothing fails there */
        bad += batch_run(run, &job, list, n, repeat).bad;
        if (row) row->hits[play] += (unsigned)n;
        else {
            printf("%s is not in tests/torture/failpoints.list\n", passed[i].name);
            bad++;
        }
    }
    return bad;
}

/* ---- the table ---- */

static unsigned total(const point_row_t *row)
{
    unsigned sum = 0;
    for (size_t i = 0; i < PLAY_COUNT; i++) sum += row->hits[i];
    return sum;
}

static size_t print_table(void)
{
    size_t lonely = 0, elsewhere = 0;
    unsigned sum = 0;
    printf("%-32s", "failpoint");
    for (size_t i = 0; i < PLAY_COUNT; i++) printf(" %.9s", PLAYS[i].name);
    printf("\n");
    for (size_t p = 0; p < point_count; p++) {
        const point_row_t *row = &points[p];
        printf("%-32s", row->name);
        for (size_t i = 0; i < PLAY_COUNT; i++) {
            int width = (int)strlen(PLAYS[i].name) > 9 ? 9 : (int)strlen(PLAYS[i].name);
            if (row->hits[i]) printf(" %*u", width, row->hits[i]);
            else printf(" %*s", width, ".");
        }
        printf("  %s\n", row->elsewhere);
        bool is_hit = total(row), is_other = !is_hit && row->elsewhere[0] && is_hit_elsewhere(row);
        if (!is_hit && !is_other) printf("^ hit by no test\n");
        lonely += !is_hit && !is_other;
        elsewhere += is_other;
        sum += total(row);
    }
    printf("%zu failpoints: %zu hit by plays in %u runs, %zu by tests of other processes, %zu by none\n",
           point_count, point_count - elsewhere - lonely, sum, elsewhere, lonely);
    return lonely;
}

/* $TESTS of the list: where this program lies. */
static void name_tests(void)
{
    char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    cr_assert(n > 0);
    path[n] = 0;
    *strrchr(path, '/') = 0;
    setenv("TESTS", path, 1);
}

int main(int argc, char **argv)
{
    const char *only = batch_only(), *point = NULL;
    uint64_t nth = 0, seed = 1;
    size_t bad = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) return batch_list(&PLAYS[0].name, PLAY_COUNT, sizeof *PLAYS);
        else if (i + 1 == argc) return batch_usage(argv[0]);
        else if (!strcmp(argv[i], "--only")) only = argv[++i];
        else if (!strcmp(argv[i], "--point")) point = argv[++i];
        else if (!strcmp(argv[i], "--nth")) nth = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 10);
        else return batch_usage(argv[0]);
    }
    read_list();
    name_tests();
    for (size_t i = 0; i < PLAY_COUNT; i++) {
        if (only && strcmp(only, PLAYS[i].name) != 0) continue;
        if (nth && point) run(&(job_t){&PLAYS[i], seed, point}, nth);
        else bad += torture(i, seed);
    }
    if (nth) return 0;
    return (only ? 0 : print_table()) + bad ? 1 : 0;
}
