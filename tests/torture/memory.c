/* SPDX-License-Identifier: Apache-2.0 */
/* The Nth allocation fails, for every N: in each play (plays.c), and all comes right afterwards.
 *
 *   torture_memory [--only PLAY] [--nth N] [--burst K] [--seed S] [--all] [--list]
 *
 * A play is run once to count its allocations, and then once for each of them: the Nth fails; with --burst
 * the K from the Nth on.  Above 2000 every N up to there, then steps whose lengths the seed draws; --all
 * leaves none out, and adds bursts of 2, 5 and 50.  Runs are children of this process in batches; a batch
 * that ends badly is repeated one by one, and each N that fails is printed with its command. */
#include "tests/torture/alloc.h"
#include "tests/torture/batch.h"
#include "tests/torture/plays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVERY_UP_TO = 2000, BEYOND = 300 };

typedef struct {
    const play_row_t *row;
    uint64_t seed, burst;
} job_t;

static uint64_t count_of(const play_row_t *row, uint64_t seed)
{
    play_t p;
    play_begin(&p, row, seed);
    alloc_arm(0, 0);
    row->act(&p);
    uint64_t count = alloc_disarm();
    play_converge(&p);
    play_end(&p);
    return count;
}

/* One run, in a child. */
static void run(void *self, uint64_t nth)
{
    const job_t *job = self;
    play_t p;
    play_begin(&p, job->row, job->seed);
    alloc_arm(nth, job->burst);
    job->row->act(&p);
    alloc_disarm();
    cr_assert(alloc_failed() > 0);
    play_converge(&p);
    batch_note(p.restarts ? NOTE_RESTARTED : p.first_code ? NOTE_REFUSED : NOTE_FINE);
    play_end(&p);
}

static size_t choose(uint64_t count, uint64_t seed, bool all, uint64_t **ret_list)
{
    uint64_t *list = malloc((size_t)(count + 1) * sizeof *list),
             step = count > EVERY_UP_TO ? (count - EVERY_UP_TO) / BEYOND + 1 : 1;
    size_t n = 0;
    for (uint64_t i = 1; i <= count;
         i += i < EVERY_UP_TO || all
                  ? 1
                  : 1 + (seed = seed * 6364136223846793005u + 1442695040888963407u) / 65536 % (2 * step))
        list[n++] = i;
    *ret_list = list;
    return n;
}

static bool torture(const play_row_t *row, uint64_t seed, uint64_t burst, bool all)
{
    job_t job = {row, seed, burst};
    uint64_t count = count_of(row, seed), *list;
    size_t n = choose(count, seed, all, &list);
    char repeat[128];
    snprintf(repeat, sizeof repeat, "torture_memory --only %s --seed %llu --burst %llu --nth", row->name,
             (unsigned long long)seed, (unsigned long long)burst);
    batch_result_t r = batch_run(run, &job, list, n, repeat);
    printf("%-12s burst %2llu: %5llu allocations, %5zu made to fail, %4zu ended the broker, %zu wrong\n",
           row->name, (unsigned long long)burst, (unsigned long long)count, n, r.notes[NOTE_RESTARTED],
           r.bad);
    fflush(stdout);
    free(list);
    return r.bad == 0 && n > 0;
}

int main(int argc, char **argv)
{
    const char *only = batch_only();
    uint64_t nth = 0, burst = 0, seed = 1;
    bool all = false, good = true, any = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--all")) all = true;
        else if (!strcmp(argv[i], "--list")) return batch_list(&PLAYS[0].name, PLAY_COUNT, sizeof *PLAYS);
        else if (i + 1 == argc) return batch_usage(argv[0]);
        else if (!strcmp(argv[i], "--only")) only = argv[++i];
        else if (!strcmp(argv[i], "--nth")) nth = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--burst")) burst = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 10);
        else return batch_usage(argv[0]);
    }
    alloc_hook = world_is_product;
    for (size_t i = 0; i < PLAY_COUNT; i++) {
        if (only && strcmp(only, PLAYS[i].name) != 0) continue;
        any = true;
        job_t job = {&PLAYS[i], seed, burst ? burst : 1};
        alloc_is_shown = nth != 0;
        if (nth) run(&job, nth);
        else good &= torture(&PLAYS[i], seed, burst ? burst : 1, all);
        static const uint64_t BURSTS[] = {2, 5, 50};
        for (int b = 0; !nth && !burst && all && b < 3; b++) good &= torture(&PLAYS[i], seed, BURSTS[b], all);
    }
    return good && any ? 0 : 1;
}
