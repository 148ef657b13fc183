/* SPDX-License-Identifier: Apache-2.0 */
/* The Nth call to the disk under the registry fails, for every N: the broker of the plays keeps its records
 * in the real store, over a VFS that fails (vfs.h), and all comes right afterwards.
 *
 *   torture_disk [--only FAULT] [--nth N] [--burst K] [--seed S] [--all] [--list]
 *
 * What was acknowledged before the power went is there after it came back; a disk that is full refuses, and
 * takes again; one that is broken ends the broker, and the next finds all that was said. */
#include "broker/store/store.h"
#include "tests/torture/batch.h"
#include "tests/torture/plays.h"
#include "tests/torture/vfs.h"

#include <core/errors.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FOR_LONG = 1000000 };

static const struct row {
    const char *name;
    fault_t fault;
    uint64_t length;
} FAULTS[] = {
    {"full", FAULT_FULL, 1}, {"full_for_long", FAULT_FULL, FOR_LONG}, {"torn", FAULT_TORN, 1},
    {"sync", FAULT_SYNC, 1}, {"truncate", FAULT_TRUNCATE, 1},         {"open", FAULT_OPEN, 1},
    {"read", FAULT_READ, 1}, {"broken", FAULT_SYNC, FOR_LONG},        {"power", FAULT_POWER, 1},
    {"kill", FAULT_KILL, 1},
};
enum { FAULT_ROWS = sizeof FAULTS / sizeof *FAULTS };

typedef struct {
    const struct row *row;
    uint64_t seed;
} job_t;

static struct {
    store_t *store;
    char dir[64];
    uint32_t refused_starts;
    struct stored *loading;
} shell;

/* ---- the store behind the broker ---- */

static void make_dir(void)
{
    snprintf(shell.dir, sizeof shell.dir, "%s/heddle-disk-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    cr_assert_not_null(mkdtemp(shell.dir));
}

static void remove_dir(const char *dir)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

static int commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    (void)self;
    return store_commit(shell.store, records, count, error);
}

static int load_one(void *self, const record_t *record)
{
    (void)self;
    world_records_add(&shell.loading, record);
    return HEDDLE_OK;
}

/* What the machine finds when it comes back takes the place of what was there. */
static void come_back(void)
{
    char old[64];
    if (!vfs_is_dead()) return;
    memcpy(old, shell.dir, sizeof old);
    make_dir();
    vfs_image(shell.dir);
    vfs_disarm();
    remove_dir(old);
}

static int open_store(void)
{
    heddle_error_t e;
    int rc = store_open(shell.dir, &shell.store, &e);
    if (!rc) rc = store_load(shell.store, load_one, NULL, &e);
    if (!rc) return rc;
    cr_assert(e.message[0]);
    if (rc != HEDDLE_ERR_DATA_DIR && rc != HEDDLE_ERR_NO_SPACE)
        fprintf(stderr, "start: %s: %s\n", heddle_err_name(rc), e.message);
    cr_assert(rc == HEDDLE_ERR_DATA_DIR || rc == HEDDLE_ERR_NO_SPACE);
    store_close(&shell.store);
    world_records_forget(&shell.loading);
    return rc;
}

/* A start may fail; when the disk is mended the next one does not. */
static void start(world_t *w)
{
    store_close(&shell.store);
    come_back();
    if (open_store()) {
        shell.refused_starts++;
        come_back();
        if (open_store()) {
            vfs_disarm();
            if (open_store()) world_fail(w, "the broker does not start on a disk that is well");
        }
    }
    struct stored *records = shell.loading;
    shell.loading = NULL;
    world_load(w, records);
    w->commit = commit;
    world_broker_start(w);
}

/* ---- the play ---- */

static void prepare(play_t *p, const job_t *job, uint64_t first)
{
    make_dir();
    play_begin_with(p, start, job->seed);
    vfs_arm(job->row->fault, first, job->row->length);
}

/* A fresh broker's life: what the daemon does at its end is part of it. */
static void live(play_t *p)
{
    play_open(p);
    play_publish(p);
    play_publish(p);
    play_rollback(p);
    world_broker_kill(p->w);
    play_publish(p);
    play_publish(p);
}

static void end(play_t *p)
{
    vfs_disarm();
    play_converge(p);
    world_broker_kill(p->w);
    start(p->w); /* and all of it is there after one more start */
    check_restart(p->w);
    play_end(p);
    store_close(&shell.store);
    remove_dir(shell.dir);
}

static void run(void *self, uint64_t nth)
{
    const job_t *job = self;
    play_t p;
    shell.refused_starts = 0;
    prepare(&p, job, nth);
    live(&p);
    cr_assert(vfs_failed() > 0);
    bool has_ended = p.restarts > 2 || shell.refused_starts; /* one at the beginning, one in the middle */
    end(&p);
    batch_note(has_ended ? NOTE_RESTARTED : p.first_code ? NOTE_REFUSED : NOTE_FINE);
}

static uint64_t count_of(const job_t *job)
{
    play_t p;
    prepare(&p, job, 0);
    live(&p);
    uint64_t count = vfs_disarm();
    end(&p);
    return count;
}

static bool torture(const struct row *row, uint64_t seed, bool all)
{
    enum { AT_MOST = 150 };
    job_t job = {row, seed};
    uint64_t count = count_of(&job), step = all || count <= AT_MOST ? 1 : (count + AT_MOST - 1) / AT_MOST;
    uint64_t *list = malloc((size_t)(count + 1) * sizeof *list);
    size_t n = 0;
    for (uint64_t i = 1 + seed % step; i <= count; i += step) list[n++] = i;
    char repeat[128];
    snprintf(repeat, sizeof repeat, "torture_disk --only %s --seed %llu --nth", row->name,
             (unsigned long long)seed);
    batch_result_t r = batch_run(run, &job, list, n, repeat);
    printf("%-14s %5llu calls, %4zu made to fail, %4zu ended the broker, %zu wrong\n", row->name,
           (unsigned long long)count, n, r.notes[NOTE_RESTARTED], r.bad);
    fflush(stdout);
    free(list);
    return r.bad == 0 && n > 0;
}

int main(int argc, char **argv)
{
    const char *only = batch_only();
    uint64_t nth = 0, seed = 1;
    bool all = false, good = true, any = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--all")) all = true;
        else if (!strcmp(argv[i], "--list")) return batch_list(&FAULTS[0].name, FAULT_ROWS, sizeof *FAULTS);
        else if (i + 1 == argc) return batch_usage(argv[0]);
        else if (!strcmp(argv[i], "--only")) only = argv[++i];
        else if (!strcmp(argv[i], "--nth")) nth = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 10);
        else return batch_usage(argv[0]);
    }
    vfs_install();
    for (int i = 0; i < FAULT_ROWS; i++) {
        if (only && strcmp(only, FAULTS[i].name) != 0) continue;
        any = true;
        if (nth) run(&(job_t){&FAULTS[i], seed}, nth);
        else good &= torture(&FAULTS[i], seed, all);
    }
    return good && any ? 0 : 1;
}
