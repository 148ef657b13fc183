/* SPDX-License-Identifier: Apache-2.0 */
/* The registry's two files: what was acknowledged is not lost without a word when one of them is. */
#include "broker/store/store.h"
#include "broker/store/store_files.h"
#include "core/failpoint.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VERSIONS = 12 };
static char dir[64];

static void shell(const char *what)
{
    char command[256];
    snprintf(command, sizeof command, "cd %s && %s", dir, what);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "%s/heddle-files-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    cr_assert_not_null(mkdtemp(dir));
    shell("mkdir data");
}
static void remove_dir(void) { shell("rm -rf data data.end other backup x && rmdir $PWD"); }

TestSuite(files, .init = make_dir, .fini = remove_dir);

static const char *data(void)
{
    static char path[80];
    snprintf(path, sizeof path, "%s/data", dir);
    return path;
}

static store_t *open_store(void)
{
    store_t *s = NULL;
    heddle_error_t e = {0};
    cr_assert_eq(store_open(data(), &s, &e), HEDDLE_OK, "%s", e.message);
    return s;
}

static heddle_error_t refused(const char *what)
{
    store_t *s = NULL;
    heddle_error_t e = {0};
    cr_assert_eq(store_open(data(), &s, &e), HEDDLE_ERR_DATA_DIR, "%s", e.message);
    cr_assert(!s && strstr(e.message, what) && e.expected[0] && e.found[0] && e.hint[0], "%s", e.message);
    return e;
}

static int commit_key(store_t *s, unsigned i, heddle_error_t *e)
{
    char key[41];
    snprintf(key, sizeof key, "%040u", i);
    record_t r[] = {{.kind = RECORD_KEY, .public_key = key, .name = "n", .roles = "reader", .at_ms = 7},
                    {.kind = RECORD_ADAPTER, .adapter = key, .at_ms = 7}};
    return store_commit(s, r, 2, e);
}
static void commit_keys(store_t *s, unsigned from, unsigned to)
{
    heddle_error_t e;
    for (unsigned i = from; i < to; i++) cr_assert_eq(commit_key(s, i, &e), HEDDLE_OK, "%s", e.message);
}

static int count_key(void *self, const record_t *r)
{
    *(unsigned *)self += r->kind == RECORD_KEY;
    return HEDDLE_OK;
}
static unsigned keys_of(store_t *s)
{
    unsigned count = 0;
    cr_assert_eq(store_load(s, count_key, &count, NULL), HEDDLE_OK);
    return count;
}
/* Opens, and closes again. */
static unsigned keys_there(void)
{
    store_t *s = open_store();
    unsigned count = keys_of(s);
    store_close(&s);
    return count;
}

/* A broker that was killed right after it had acknowledged these. */
static void killed_after(unsigned from, unsigned to)
{
    pid_t child = fork();
    if (child == 0) {
        commit_keys(open_store(), from, to);
        kill(getpid(), SIGKILL);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* ---- one of the two is gone ---- */

Test(files, a_log_that_is_gone_after_a_kill_is_missed)
{
    store_t *s = open_store();
    commit_keys(s, 0, 1);
    store_close(&s);
    killed_after(1, 3);
    shell("mv data/registry.db-wal log");
    refused("registry.db-wal is not there");
    refused("registry.db-wal is not there");
    shell("mv log data/registry.db-wal");
    cr_assert_eq(keys_there(), 3);
    shell("test ! -e data/registry.db-wal"); /* an end that was one takes nothing for missed */
    cr_assert_eq(keys_there(), 3);
    killed_after(3, 4);
    shell("rm data/registry.db-wal data/lock"); /* as the hint says */
    cr_assert_eq(keys_there(), 3, "what was there at the last start");
}

Test(files, a_registry_that_is_gone_after_a_kill_is_missed)
{
    killed_after(0, 1);
    shell("mv data/registry.db main");
    refused("registry.db is not there");
    shell("test ! -e data/registry.db && test -s data/registry.db-wal && mv main data/registry.db");
    cr_assert_eq(keys_there(), 1);
}

Test(files, a_backup_of_the_registry_alone_is_the_same_cluster)
{
    store_t *s = open_store();
    char cluster[32];
    snprintf(cluster, sizeof cluster, "%s", store_cluster(s));
    shell("mkdir other && cp data/registry.db other && mv data backup && mv other data");
    store_close(&s);
    s = open_store();
    cr_assert_str_eq(store_cluster(s), cluster);
    cr_assert_eq(store_epoch(s), 2);
    store_close(&s);
}

Test(files, who_starts_and_is_killed_at_once_misses_nothing)
{
    keys_there();
    for (int i = 0; i < 3; i++) {
        shell("tr -d '\\n' <data/lock | grep -qx '[0-9]* closed'");
        killed_after(0, 0);
        shell("grep -q open data/lock");
        keys_there();
    }
}

/* SQLite puts the log into the registry as a broker ends, and that is no other program. */
Test(files, a_broker_that_ends_well_blames_no_program)
{
    store_t *s = open_store();
    commit_keys(s, 0, 5);
    int told = open(strcat(strcpy((char[128]){0}, dir), "/backup"), O_WRONLY | O_CREAT, 0600),
        before = dup(STDERR_FILENO);
    cr_assert(told >= 0 && dup2(told, STDERR_FILENO) >= 0);
    store_close(&s);
    cr_assert(dup2(before, STDERR_FILENO) >= 0 && close(told) == 0 && close(before) == 0);
    shell("test ! -s backup || { cat backup >&2; false; }");
}

/* ---- under a running broker ---- */

Test(files, a_log_that_is_removed_under_a_broker_ends_it_and_loses_nothing)
{
    store_t *s = open_store();
    heddle_error_t e = {0};
    commit_keys(s, 0, 5);
    shell("rm data/registry.db-wal");
    cr_assert_eq(commit_key(s, 5, &e), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(e.message, "registry.db-wal") && e.hint[0], "%s", e.message);
    store_close(&s);
    cr_assert_eq(keys_there(), 5);
}

Test(files, another_log_in_its_place_is_put_aside)
{
    store_t *s = open_store();
    heddle_error_t e = {0};
    commit_keys(s, 0, 5);
    shell("cp data/registry.db-wal x && mv x data/registry.db-wal");
    cr_assert_eq(commit_key(s, 5, &e), HEDDLE_ERR_DATA_DIR);
    store_close(&s);
    shell("test -s data/registry.db-wal.1 && test ! -e data/registry.db-wal");
    cr_assert_eq(keys_there(), 5);
}

Test(files, nothing_that_was_put_aside_is_lost_to_the_next)
{
    for (unsigned i = 0; i < 4; i++) { /* also on a file system that cannot be told so in one call */
        shell("rm -rf data && mkdir data");
        store_t *s = open_store();
        shell("echo before >data/registry.db-wal.1 && echo two >data/registry.db-wal.1.2");
        shell("cp data/registry.db-wal x && mv x data/registry.db-wal");
        failpoint_arm("store.rename", i);
        store_close(&s);
        cr_assert(failpoint_has_failed() || !i);
        shell("grep -qx before data/registry.db-wal.1 && grep -qx two data/registry.db-wal.1.2");
        shell("test -e data/registry.db-wal.1.3 && test ! -e data/registry.db-wal");
    }
}

/* One of another run would undo what came after it. */
Test(files, a_log_that_was_put_aside_is_named_where_it_is_of_the_run_that_was_killed)
{
    killed_after(0, 1);
    killed_after(1, 2);
    shell("mv data/registry.db-wal data/registry.db-wal.1");
    heddle_error_t e = refused("registry.db-wal is not there");
    cr_assert(!strstr(e.hint, "registry.db-wal.1"), "%s", e.hint);
    shell("mv data/registry.db-wal.1 data/registry.db-wal.2");
    e = refused("registry.db-wal is not there");
    cr_assert(strstr(e.hint, "registry.db-wal.2 is a log that was put aside"), "%s", e.hint);
    shell("cp data/registry.db-wal.2 data/registry.db-wal.2.2");
    e = refused("registry.db-wal is not there");
    cr_assert(strstr(e.hint, "registry.db-wal.2.2 is a log that was put aside"), "%s", e.hint);
    shell("mv data/registry.db-wal.2.2 data/registry.db-wal");
    cr_assert_eq(keys_there(), 2);
}

/* What the end logs goes to stderr. */
static void close_into(store_t **s, const char *file)
{
    fflush(stderr);
    int old = dup(2), fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert(old >= 0 && fd >= 0 && dup2(fd, 2) == 2);
    store_close(s);
    fflush(stderr);
    cr_assert(dup2(old, 2) == 2);
    close(old);
    close(fd);
}

Test(files, an_end_in_order_has_nothing_to_tell)
{
    char file[160];
    snprintf(file, sizeof file, "%s.end", data());
    for (int i = 0; i < 2; i++) {
        store_t *s = open_store();
        commit_keys(s, i, i + 1);
        close_into(&s, file);
        shell("test ! -s data.end && test ! -e data/registry.db-wal");
    }
    store_t *s = open_store();
    shell("cp data/registry.db x && cp x data/registry.db"); /* as it was, but not by us */
    close_into(&s, file);
    shell("grep -q 'registry.foreign.*written to by another program' data.end");
}

/* As a backup is unpacked over the directory of a broker that was killed: the log stays, whose records would
 * be taken for newer ones of the older registry. */
Test(files, a_log_beside_a_registry_that_was_closed_is_not_its_own)
{
    store_t *s = open_store();
    commit_keys(s, 0, 2);
    store_close(&s);
    shell("cp -rp data backup");
    cr_assert_eq(keys_there(), 2);
    killed_after(2, 5);
    shell("cp -p backup/* data");
    refused("was not there when");
    refused("was not there when"); /* nothing was changed by that */
    shell("mv data/registry.db-wal log");
    cr_assert_eq(keys_there(), 2);
    killed_after(2, 5); /* a start after an end in order, and no end: the log is its own */
    cr_assert_eq(keys_there(), 5);
    shell("rm -r backup log");
}

Test(files, a_registry_that_is_copied_over_ends_the_broker_and_mixes_with_nothing)
{
    store_t *s = open_store();
    heddle_error_t e = {0};
    commit_keys(s, 0, 2);
    store_close(&s);
    shell("mkdir backup && cp data/registry.db backup");
    s = open_store();
    commit_keys(s, 2, 2000); /* SQLite puts the log into the registry meanwhile */
    shell("cp -p backup/registry.db data/registry.db");
    cr_assert_eq(commit_key(s, 2000, &e), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(e.message, "written to") && e.hint[0], "%s", e.message);
    store_close(&s);
    shell("cmp backup/registry.db data/registry.db && test -s data/registry.db-wal.2");
    refused("registry.db-wal is not there"); /* nor is the backup served before somebody says so */
    shell("rm data/lock");
    cr_assert_eq(keys_there(), 2);
}

/* Their epochs would be given out again, and with them tokens. */
Test(files, files_of_an_earlier_run_are_refused_after_a_kill)
{
    cr_assert_eq(keys_there(), 0);
    shell("cp data/registry.db backup");
    killed_after(0, 1);
    killed_after(1, 2);
    shell("mv data/registry.db-wal other && cp data/registry.db now && cp backup data/registry.db && : "
          ">data/registry.db-wal");
    refused("older than the broker that ran here last");
    refused("older than the broker that ran here last");
    shell(
        "cmp backup data/registry.db && test ! -s data/registry.db-wal"); /* nothing was written to either */
    shell("mv now data/registry.db && mv other data/registry.db-wal");
    cr_assert_eq(keys_there(), 2);
    shell("cp backup data/registry.db");
    cr_assert_eq(keys_there(), 0, "after a clean end it is a backup that was restored");
}

/* A member that was in a lost run raises the epoch of the one that goes on: not in the log alone, which would
 * tell it of any registry that is put in place. */
static void killed_after_an_epoch(uint64_t by, bool is_first_try)
{
    pid_t child = fork();
    if (child == 0) {
        store_t *s = open_store();
        if (!is_first_try) failpoint_arm("store.begin_log", 1);
        heddle_error_t e;
        record_t r = {.kind = RECORD_EPOCH, .epoch = store_epoch(s) + by};
        commit_keys(s, 2, 4);
        cr_assert_eq(store_commit(s, &r, 1, &e), HEDDLE_OK, "%s", e.message);
        cr_assert(is_first_try || failpoint_has_failed());
        commit_keys(s, 4, 5);
        kill(getpid(), SIGKILL);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void hides_no_older(bool is_first_try)
{
    store_t *s = open_store();
    commit_keys(s, 0, 2);
    store_close(&s);
    shell("cp data/registry.db backup");
    killed_after_an_epoch(5, is_first_try);
    shell("cp data/registry.db now && cp backup data/registry.db");
    refused("older than the broker that ran here last");
    shell("mv now data/registry.db");
    s = open_store();
    cr_assert(keys_of(s) == 5 && store_epoch(s) == 8, "epoch %llu", (unsigned long long)store_epoch(s));
    store_close(&s);
    shell("rm backup");
}
Test(files, an_epoch_that_was_raised_in_the_midst_hides_no_older_registry) { hides_no_older(true); }
Test(files, an_epoch_that_was_raised_is_put_there_with_the_next_commit_else) { hides_no_older(false); }

/* A start that is refused says nothing of whether the files are in order. */
Test(files, who_was_refused_has_not_begun)
{
    store_t *s = open_store();
    commit_keys(s, 0, 2);
    store_close(&s);
    sqlite3 *db = NULL;
    char file[160];
    snprintf(file, sizeof file, "%s/registry.db", data());
    cr_assert_eq(sqlite3_open(file, &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, "PRAGMA user_version = 99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    heddle_error_t e = {0};
    shell("grep -q closed data/lock");
    cr_assert_eq(store_open(data(), &s, &e), HEDDLE_ERR_DATA_NEWER, "%s", e.message);
    shell("grep -q closed data/lock");
}

Test(files, what_harms_nobody_ends_nobody)
{
    store_t *s = open_store();
    commit_keys(s, 0, 1);
    shell("ln data/registry.db x && chmod 0640 data/registry.db && cat data/registry.db >y && rm x y");
    commit_keys(s, 1, 3000);
    store_close(&s);
    cr_assert_eq(keys_there(), 3000);
}

/* ---- a log that is damaged ---- */

static uint8_t log_bytes[1 << 20];
static size_t log_size;

/* Of a broker that was killed: VERSIONS transactions, each of more than one frame. */
static void take_log(void)
{
    killed_after(0, VERSIONS);
    shell("cp -r data backup");
    FILE *f = fopen(strcat(strcpy((char[128]){0}, data()), "/registry.db-wal"), "rb");
    log_size = fread(log_bytes, 1, sizeof log_bytes, f);
    fclose(f);
    cr_assert(log_size > (size_t)VERSIONS * 4120 && log_size < sizeof log_bytes);
}

static void put_log(size_t size)
{
    shell("rm -r data && cp -r backup data");
    FILE *f = fopen(strcat(strcpy((char[128]){0}, data()), "/registry.db-wal"), "wb");
    cr_assert_eq(fwrite(log_bytes, 1, size, f), size);
    fclose(f);
}

/* Whose size of the database is there: the last of its transaction. */
static bool is_commit(size_t frame)
{
    const uint8_t *p = log_bytes + 32 + frame * 4120 + 4;
    return p[0] || p[1] || p[2] || p[3];
}

/* One bit, in the header, and in each frame: refused, unless nothing was acknowledged after it. */
Test(files, a_bit_that_changed_in_the_log_is_found)
{
    take_log();
    size_t frames = (log_size - 32) / 4120, last = frames - 1;
    cr_assert(is_commit(last));
    while (!is_commit(last - 1)) last--; /* the last transaction begins there */
    static const size_t AT[] = {3, 10, 20, 24 + 8, 24 + 4000};
    for (size_t frame = 0; frame < frames; frame++)
        for (size_t i = 0; i < sizeof AT / sizeof *AT; i++) {
            bool is_word = AT[i] < 16 && is_commit(frame); /* a commit that says it is none, or another's */
            if (is_word) continue;
            uint8_t *p = &log_bytes[32 + frame * 4120 + AT[i]];
            *p ^= 0x10;
            put_log(log_size);
            if (frame < last) refused("damaged");
            else cr_assert_geq(keys_there(), VERSIONS - 1, "frame %zu", frame);
            *p ^= 0x10;
        }
    for (size_t at = 0; at < 32; at++) {
        log_bytes[at] ^= 1;
        put_log(log_size);
        refused("damaged");
        log_bytes[at] ^= 1;
    }
    put_log(log_size);
    cr_assert_eq(keys_there(), VERSIONS);
}

/* The end of the log as the power leaves it: cut anywhere, or with holes in the last transaction. */
Test(files, a_log_that_the_power_cut_is_taken_up_to_there)
{
    take_log();
    unsigned before = 0;
    for (size_t size = 0; size <= log_size; size += 1030) {
        put_log(size);
        unsigned count = keys_there();
        cr_assert_geq(count, before);
        before = count;
    }
    size_t frames = (log_size - 32) / 4120, last = frames - 1;
    while (!is_commit(last - 1)) last--;
    cr_assert_lt(last, frames - 1, "of more than one frame");
    for (size_t hole = last; hole < frames; hole++) {
        memset(log_bytes + 32 + hole * 4120, 0, 4120);
        put_log(log_size);
        cr_assert_eq(keys_there(), VERSIONS - 1);
    }
}

/* What an earlier log left behind its end belongs to nobody. */
Test(files, the_log_goes_round)
{
    store_t *s = open_store();
    commit_keys(s, 0, 1000);
    store_close(&s);
    for (unsigned i = 0; i < 3; i++) {
        killed_after(1000 + i * 900, 1000 + (i + 1) * 900);
        cr_assert_eq(keys_there(), 1000 + (i + 1) * 900);
    }
}
