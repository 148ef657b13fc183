/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's data directory and its registry, opened and closed where the Nth call of ours to the file system fails
 * (those of SQLite: torture_disk).  Whatever failed was said; what was acknowledged is found by the next start; files
 * that were refused stay as they were; a log and a registry that do not belong together are never taken for a pair. */
#include "broker/store/store.h"
#include "tests/torture/files.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

/* Shared with the process that acts. */
static struct {
    unsigned asked, acknowledged; /* keys */
    bool was_swapped;             /* somebody put another file into the place of one of the two */
} * seen;

static void shell(const char *what)
{
    char command[600];
    snprintf(command, sizeof command, "cd %s && { %s; }", files_root, what);
    cr_assert_eq(system(command), 0);
}

static bool is_true(const char *what)
{
    char command[600];
    snprintf(command, sizeof command, "cd %s && { %s; }", files_root, what);
    return system(command) == 0;
}

static const char *data(void)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/broker/data", files_root);
    return path;
}

/* ---- a store ---- */

static int open_store(store_t **ret_store)
{
    heddle_error_t e = {0};
    int rc = store_open(data(), ret_store, &e);
    cr_assert(!rc || (e.message[0] && e.hint[0]));
    return rc;
}

static int put_key(store_t *s)
{
    char key[41];
    heddle_error_t e = {0};
    snprintf(key, sizeof key, "%040u", seen->asked++);
    record_t r = {.kind = RECORD_KEY, .public_key = key, .name = "n", .roles = "reader", .at_ms = 7};
    int rc = store_commit(s, &r, 1, &e);
    cr_assert(!rc || e.message[0]);
    seen->acknowledged += !rc;
    return rc;
}

static int put_keys(store_t *s, int count)
{
    int rc = 0;
    for (int i = 0; i < count && !rc; i++) rc = put_key(s);
    return rc;
}

static int count_key(void *self, const record_t *r)
{
    *(unsigned *)self += r->kind == RECORD_KEY;
    return HEDDLE_OK;
}

/* Opens, which must do, and closes again. */
static unsigned keys_there(void)
{
    store_t *s = NULL;
    unsigned count = 0;
    cr_assert_eq(open_store(&s), HEDDLE_OK);
    cr_assert_eq(store_load(s, count_key, &count, NULL), HEDDLE_OK);
    store_close(&s);
    return count;
}

static bool is_refused(const char *words)
{
    store_t *s = NULL;
    heddle_error_t e = {0};
    int rc = store_open(data(), &s, &e);
    store_close(&s);
    return rc == HEDDLE_ERR_DATA_DIR && strstr(e.message, words);
}

/* ---- before ---- */

static void nothing_is_there(void)
{
    if (seen) munmap(seen, sizeof *seen); /* it may be another run's as well */
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void a_registry_is_there(void)
{
    store_t *s = NULL;
    nothing_is_there();
    cr_assert_eq(open_store(&s), HEDDLE_OK);
    cr_assert_eq(put_keys(s, 3), HEDDLE_OK);
    store_close(&s);
}

static void a_broker_was_killed(void)
{
    int status;
    a_registry_is_there();
    pid_t child = fork();
    if (child == 0) {
        store_t *s = NULL;
        cr_assert_eq(open_store(&s), HEDDLE_OK);
        cr_assert_eq(put_keys(s, 6), HEDDLE_OK);
        kill(getpid(), SIGKILL);
    }
    cr_assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    cr_assert_eq(seen->acknowledged, 9u);
}

static const char *refusal; /* words of it */

/* A bit in the first page of the log, with whole transactions behind it. */
static void its_log_is_damaged(void)
{
    a_broker_was_killed();
    refusal = "damaged before byte";
    shell("printf '\\125' | dd of=broker/data/registry.db-wal bs=1 seek=100 conv=notrunc status=none && cp "
          "-r broker kept");
}

static void its_log_is_gone(void)
{
    a_broker_was_killed();
    refusal = "registry.db-wal is not there";
    shell("rm broker/data/registry.db-wal && cp -r broker kept");
}

/* For who restores a file of it under a running broker. */
static void a_backup_is_there(void)
{
    a_registry_is_there();
    shell("cp -r broker/data backup");
}

/* ---- act ---- */

static int live(void)
{
    store_t *s = NULL;
    int rc = open_store(&s);
    if (!rc) rc = put_keys(s, 2);
    store_close(&s);
    return rc;
}

/* OK: as it should. */
static int be_refused(void)
{
    store_t *s = NULL;
    heddle_error_t e = {0};
    int rc = store_open(data(), &s, &e);
    cr_assert(rc && !s && e.message[0] && e.hint[0]);
    return rc == HEDDLE_ERR_DATA_DIR && strstr(e.message, refusal) ? HEDDLE_OK : rc;
}

static int live_while(const char *somebody_does)
{
    store_t *s = NULL;
    int rc = open_store(&s);
    if (!rc) rc = put_keys(s, 2);
    if (!rc) {
        bool was_armed = files_arm(false);
        shell(somebody_does);
        seen->was_swapped = true;
        files_arm(was_armed);
        cr_assert(put_key(s) != HEDDLE_OK);
    }
    store_close(&s);
    return rc;
}

static int live_while_the_registry_is_copied_over(void)
{
    return live_while("cp backup/registry.db broker/data/registry.db");
}

static int live_while_the_log_is_replaced(void)
{
    return live_while("head -c 5000 /dev/urandom >x && mv x broker/data/registry.db-wal");
}

/* ---- after ---- */

static void all_is_there(void)
{
    store_t *s = NULL;
    unsigned count = keys_there();
    cr_assert(count >= seen->acknowledged && count <= seen->asked);
    cr_assert_eq(open_store(&s), HEDDLE_OK);
    cr_assert_eq(put_keys(s, 2), HEDDLE_OK);
    store_close(&s);
    cr_assert_eq(keys_there(), count + 2);
    cr_assert(is_true("test \"$(ls broker/data | tr '\\n' ' ')\" = 'lock registry.db '"));
}

static void nothing_was_changed(void)
{
    cr_assert(is_true("rm kept/data/lock && diff -r -x lock kept/data broker/data"));
    cr_assert(is_refused(refusal));
}

/* What the hints tell somebody to do who goes on with the registry.db that is there. */
static void say_so(void)
{
    shell("cd broker/data && rm lock && { test ! -e registry.db-wal || mv registry.db-wal registry.db-wal.2; "
          "}");
    cr_assert(is_true("test -s broker/data/registry.db-wal.2"));
}

/* Never mixed: refused, until somebody has said that he wants it; then it is the backup as it was. */
static void the_backup_is_whole(void)
{
    if (!seen->was_swapped) return all_is_there();
    cr_assert(is_true("cmp backup/registry.db broker/data/registry.db"));
    cr_assert(is_refused("registry.db-wal") && is_refused("registry.db-wal"));
    say_so();
    cr_assert_eq(keys_there(), 3u);
}

/* Ours has no name any more, and was put into the registry. */
static void no_foreign_log_is_read(void)
{
    if (!seen->was_swapped) return all_is_there();
    if (is_refused("registry.db-wal")) say_so();
    cr_assert(is_true("test $(wc -c <broker/data/registry.db-wal.2) = 5000"));
    cr_assert_eq(keys_there(), seen->acknowledged);
}

const files_row_t DATADIR[DATADIR_ROWS] = {
    {"data_new", nothing_is_there, live, all_is_there},
    {"data", a_registry_is_there, live, all_is_there},
    {"data_killed", a_broker_was_killed, live, all_is_there},
    {"data_damaged", its_log_is_damaged, be_refused, nothing_was_changed},
    {"data_log_gone", its_log_is_gone, be_refused, nothing_was_changed},
    {"data_copied_over", a_backup_is_there, live_while_the_registry_is_copied_over, the_backup_is_whole,
     true},
    {"data_other_log", a_backup_is_there, live_while_the_log_is_replaced, no_foreign_log_is_read, true},
};
