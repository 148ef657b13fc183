/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/import.h"

#include "broker/broker.h"
#include "broker/datadir.h"
#include "broker/outbox.h"
#include "broker/store/rows_file.h"
#include "broker/store/store.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/names.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what a broker would start with ---- */

typedef struct {
    broker_t *broker;
    heddle_error_t *error;
} restore_t;

static void name_row(const record_t *r, heddle_error_t *error)
{
    static const char *const KINDS[] = {
        [RECORD_ADAPTER] = "the name", [RECORD_VERSION] = "version",   [RECORD_DECISION] = "decision",
        [RECORD_STATE] = "the state",  [RECORD_WRITER] = "the writer", [RECORD_FLOOR] = "the floor",
        [RECORD_LOSS] = "the loss",    [RECORD_STAGED] = "the staging"};
    uint64_t number = r->kind == RECORD_DECISION ? r->decision : r->version;
    if (r->kind == RECORD_KEY) error_found(error, "the key %.60s (%.50s)", r->name, r->public_key);
    else if (r->kind == RECORD_WORKER) error_found(error, "the worker %.100s", r->worker);
    else if (r->kind > RECORD_STAGED || !KINDS[r->kind]) error_found(error, "a row of kind %d", (int)r->kind);
    else error_found(error, "%s %llu of %.100s", KINDS[r->kind], (unsigned long long)number, r->adapter);
}

static int restore(void *self, const record_t *record)
{
    restore_t *r = self;
    int rc = broker_apply(r->broker, record);
    if (!rc) return rc;
    if (rc == HEDDLE_ERR_NO_MEMORY) return error_fail(r->error, rc, "no memory to check the rows");
    rc = error_fail(r->error, HEDDLE_ERR_DATA_DIR, "the file has a row that no broker starts with");
    error_expected(r->error, "rows as a broker writes them");
    name_row(record, r->error);
    error_hint(r->error, "export the registry again from the store that it is in; nothing was written");
    return rc;
}

/* Into the memory of a broker, as at its start: what that would refuse is named before the first write. */
static int check_rows(store_rows_t *rows, heddle_error_t *error)
{
    static const broker_opts_t OPTS = {0};
    static const broker_io_t IO = {0};
    restore_t r = {.error = error};
    int rc = broker_new(&OPTS, &IO, &r.broker, error);
    if (!rc) rc = rows_walk(rows, restore, &r, error);
    broker_destroy(&r.broker);
    return rc;
}

/* ---- records as transactions ---- */

typedef int (*write_fn)(void *store, const record_t *records, int count, heddle_error_t *error);

typedef struct {
    write_fn write;
    void *store;
    record_t records[OUTBOX_RECORDS];
    int count;
    heddle_error_t *error;
} batch_t;

/* What is too large for one transaction goes in halves; nothing of it happened. */
static int write_all(batch_t *b, const record_t *records, int count)
{
    int rc = b->write(b->store, records, count, b->error), half = count / 2;
    if (rc != HEDDLE_ERR_LIMIT || !half) return rc;
    rc = write_all(b, records, half);
    return rc ? rc : write_all(b, records + half, count - half);
}

static int write_batch(batch_t *b)
{
    int count = b->count;
    b->count = 0;
    return count ? write_all(b, b->records, count) : HEDDLE_OK;
}

/* The store has the epoch of its own row, and a writer without a token is what an adapter has that was
 * forgotten. */
static int add(void *self, const record_t *r)
{
    batch_t *b = self;
    record_t *to = &b->records[b->count];
    if (r->kind == RECORD_EPOCH) return HEDDLE_OK;
    *to = *r;
    if (r->kind == RECORD_WRITER && !r->token)
        *to = (record_t){.kind = RECORD_ADAPTER_FORGET, .adapter = r->adapter};
    return ++b->count == OUTBOX_RECORDS ? write_batch(b) : HEDDLE_OK;
}

static int put_all(store_rows_t *rows, write_fn write, void *store, heddle_error_t *error)
{
    batch_t b = {.write = write, .store = store, .error = error};
    int rc = rows_walk(rows, add, &b, error);
    return rc ? rc : write_batch(&b);
}

/* ---- what is there then ---- */

static int adopt(void *rows, const record_t *r)
{
    heddle_error_t error;
    return rows_adopt(rows, r, &error);
}

typedef int (*load_fn)(void *store, int (*each)(void *self, const record_t *record), void *self,
                       heddle_error_t *error);

/* `meta`: of the store. */
static int read_back(load_fn load, void *store, const char *meta, store_rows_t **ret_rows,
                     heddle_error_t *error)
{
    int rc = rows_new(ret_rows, error);
    if (!rc) rc = rows_read(*ret_rows, bytes_of("meta", 4), bytes_of(meta, strlen(meta)), error);
    if (!rc) rc = load(store, adopt, *ret_rows, error);
    return rc ? rc : rows_end_read(*ret_rows, error);
}

/* Whatever the store did with what it was given: the same rows, of the same cluster and epoch. */
static int compare(load_fn load, void *store, const char *meta, store_rows_t *rows, heddle_error_t *error)
{
    store_rows_t *found = NULL;
    rows_file_t put, got = {0};
    int rc = rows_file_sum(rows, &put, error);
    if (rc) return rc;
    rc = read_back(load, store, meta, &found, error);
    if (!rc) rc = rows_file_sum(found, &got, error);
    rows_destroy(&found);
    if (rc && rc != HEDDLE_ERR_INTERNAL) return rc;
    if (!rc && put.rows == got.rows && digest_equal(&put.digest, &got.digest)) return HEDDLE_OK;
    rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "what was read back is not what was written");
    error_expected(error, "%llu rows of the file", (unsigned long long)put.rows);
    if (got.rows == put.rows) error_found(error, "as many, and another digest of them");
    else if (got.rows) error_found(error, "%llu rows", (unsigned long long)got.rows);
    else error_found(error, "rows that contradict each other, or none");
    error_hint(error, "see that no other program writes there");
    return rc;
}

/* ---- into an etcd ---- */

static int write_etcd(void *store, const record_t *records, int count, heddle_error_t *error)
{
    return etcd_write(store, records, count, error);
}

static int load_etcd(void *store, int (*each)(void *self, const record_t *record), void *self,
                     heddle_error_t *error)
{
    return etcd_load(store, each, self, error);
}

static int check_etcd(etcd_t *e, store_rows_t *rows, heddle_error_t *error)
{
    char meta[ROWS_META_BYTES];
    int rc = etcd_read_again(e, error);
    if (rc) return rc;
    rows_meta(etcd_cluster(e), etcd_epoch(e), meta);
    return compare(load_etcd, e, meta, rows, error);
}

/* Beside what the failure itself says.  Another process that leads has written over the marker which says
 * whether the last transaction happened. */
static void say_unfinished(bool is_at_its_end, heddle_error_t *error)
{
    char text[sizeof error->message + 128];
    bool is_unknown =
        is_at_its_end && (error->code == HEDDLE_ERR_UNAVAILABLE || error->code == HEDDLE_ERR_FENCED);
    text_printf(text, sizeof text, "%s; %s", error->message,
                is_unknown ? "whether the import is whole is not known"
                           : "the import is not whole, and no broker starts there");
    error_text(error->message, sizeof error->message, text);
    text_printf(text, sizeof text, "%s%srun the import again: it begins anew%s", error->hint,
                *error->hint ? "; then " : "", is_unknown ? ", or finds the data there" : "");
    error_text(error->hint, sizeof error->hint, text);
}

int import_to_etcd(store_rows_t *rows, const etcd_opts_t *opts, heddle_error_t *error)
{
    etcd_opts_t own = *opts;
    etcd_t *e = NULL;
    own.purpose = ETCD_IMPORT;
    own.cluster = rows_cluster(rows);
    own.import_epoch = rows_epoch(rows);
    int rc = check_rows(rows, error);
    if (!rc) rc = etcd_open(&own, &e, error);
    if (rc) return rc;
    rc = put_all(rows, write_etcd, e, error);
    if (!rc) rc = check_etcd(e, rows, error);
    bool is_at_its_end = !rc;
    if (!rc) rc = etcd_finish(e, error);
    if (rc) say_unfinished(is_at_its_end, error);
    etcd_close(&e);
    return rc;
}

/* ---- into a directory ---- */

static const char REGISTRY[] = "registry.db", LOG[] = "registry.db-wal", WORK[] = ".import",
                  MARK[] = "unfinished";

static int write_sqlite(void *store, const record_t *records, int count, heddle_error_t *error)
{
    return store_commit(store, records, count, error);
}

static bool is_there(const datadir_t *dir, const char *name)
{
    struct stat st;
    return fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* A lock that says "open" is of a broker that was killed, and whose registry is elsewhere now. */
static int check_empty(const datadir_t *dir, heddle_error_t *error)
{
    const char *found = is_there(dir, REGISTRY)             ? REGISTRY
                        : is_there(dir, LOG)                ? LOG
                        : is_there(dir, "moved")            ? "the mark of one that was moved"
                        : dir->was_open || dir->is_unparted ? "the lock of a broker that was killed"
                                                            : NULL;
    if (!found) return HEDDLE_OK;
    int rc =
        error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s has data, and an import replaces none", dir->path);
    error_contrast(error, "a directory without a registry", found);
    error_hint(error, "choose another directory with --data; this one was left as it was");
    return rc;
}

static int refuse_work(const datadir_t *dir, const char *what, int number, heddle_error_t *error)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir->path, WORK);
    return datadir_refuse(path, what, number, error);
}

/* Only a directory that an import made, by the mark that it makes first and deletes last, and only what an
 * import makes there: what else there is may be a registry of somebody else, and stays. */
static int clear_work(const datadir_t *dir, heddle_error_t *error)
{
    static const char *const NAMES[] = {
        "registry.db", "registry.db-wal", "registry.db-shm", "registry.db-journal", "lock", MARK};
    if (unlinkat(dir->fd, WORK, AT_REMOVEDIR) == 0 || errno == ENOENT) return HEDDLE_OK;
    int fd = openat(dir->fd, WORK, O_DIRECTORY | O_NOFOLLOW | O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstatat(fd, MARK, &st, AT_SYMLINK_NOFOLLOW)) {
        if (fd >= 0) close(fd);
        int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s/%s was made by no import", dir->path, WORK);
        error_contrast(error, "nothing of this name, or what an import that was killed left",
                       fd < 0 ? "no directory" : "a directory without the mark of an import");
        error_hint(error,
                   "move it elsewhere, or choose another directory with --data; it was left as it was");
        return rc;
    }
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) unlinkat(fd, NAMES[i], 0);
    close(fd);
    if (unlinkat(dir->fd, WORK, AT_REMOVEDIR) == 0) return HEDDLE_OK;
    return refuse_work(dir, "remove it", errno, error);
}

static int make_work(const datadir_t *dir, heddle_error_t *error)
{
    char mark[sizeof WORK + sizeof MARK + 1];
    snprintf(mark, sizeof mark, "%s/%s", WORK, MARK);
    if (mkdirat(dir->fd, WORK, 0700)) return refuse_work(dir, "make it", errno, error);
    int fd = openat(dir->fd, mark, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return refuse_work(dir, "make a file in it", errno, error);
    close(fd);
    return HEDDLE_OK;
}

static int load_sqlite(void *store, int (*each)(void *self, const record_t *record), void *self,
                       heddle_error_t *error)
{
    return store_load(store, each, self, error);
}

/* Closed, it is one file: what its log had is in it, and synced. */
static int make_registry(store_rows_t *rows, const char *path, heddle_error_t *error)
{
    store_t *s = NULL;
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = rows_epoch(rows)};
    int rc = store_open(path, &s, error);
    if (!rc) rc = store_rename(s, rows_cluster(rows), error);
    if (!rc) rc = put_all(rows, write_sqlite, s, error);
    if (!rc) rc = store_commit(s, &epoch, 1, error);
    if (!rc) {
        char meta[ROWS_META_BYTES];
        rows_meta(store_cluster(s), store_epoch(s), meta);
        rc = compare(load_sqlite, s, meta, rows, error);
    }
    store_close(&s);
    return rc;
}

/* By a second name where it has no call for that, and by the lock alone where it has no second names. */
static int move_here(const datadir_t *dir, const char *made)
{
    bool has_call = !FAILPOINT("import.rename");
    if (has_call && renameat2(dir->fd, made, dir->fd, REGISTRY, RENAME_NOREPLACE) == 0) return 0;
    if (has_call && errno != EINVAL && errno != ENOSYS) return errno;
    if (linkat(dir->fd, made, dir->fd, REGISTRY, 0) == 0) return unlinkat(dir->fd, made, 0) ? errno : 0;
    if (errno == EEXIST) return EEXIST;
    return renameat(dir->fd, made, dir->fd, REGISTRY) ? errno : 0;
}

/* Nothing is replaced. */
static int put_in_place(const datadir_t *dir, heddle_error_t *error)
{
    char made[sizeof WORK + 32];
    snprintf(made, sizeof made, "%s/%s", WORK, LOG);
    int number = is_there(dir, made) ? EIO : 0;
    snprintf(made, sizeof made, "%s/%s", WORK, REGISTRY);
    if (!number) number = move_here(dir, made);
    return number ? datadir_refuse(dir->path, "put the registry in its place", number, error)
                  : datadir_sync(dir, error);
}

/* Of the directory, or of what it would be made in. */
static uid_t owner_of(const char *path)
{
    char at[PATH_MAX];
    struct stat st = {.st_uid = geteuid()};
    snprintf(at, sizeof at, "%s", path);
    while (stat(at, &st)) {
        char *slash = strrchr(at, '/');
        if (!slash) return stat(".", &st) ? geteuid() : st.st_uid;
        slash[slash == at] = 0;
        if (slash == at) return stat(at, &st) ? geteuid() : st.st_uid;
    }
    return st.st_uid;
}

/* As root it would leave files that the broker of another user may not open. */
static int check_user(const char *path, heddle_error_t *error)
{
    unsigned uid = owner_of(path);
    if (geteuid() || !uid) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s belongs to uid %u, and this is root", path, uid);
    error_expected(error, "the user that the broker runs as");
    error_found(error, "uid 0");
    error_hint(error,
               "run it as that user, as by `sudo -u '#%u'`, or `chown` the directory; it was left as it was",
               uid);
    return rc;
}

int import_to_dir(store_rows_t *rows, const char *path, heddle_error_t *error)
{
    datadir_t dir = {0};
    char work[PATH_MAX];
    heddle_error_t ignored;
    int rc = check_rows(rows, error);
    if (!rc) rc = check_user(path, error);
    if (!rc) rc = datadir_open(path, &dir, error);
    if (rc) return rc;
    snprintf(work, sizeof work, "%s/%s", dir.path, WORK);
    rc = check_empty(&dir, error);
    if (!rc) {
        rc = clear_work(&dir, error);
        if (!rc) rc = make_work(&dir, error);
        if (!rc) rc = make_registry(rows, work, error);
        if (!rc) rc = put_in_place(&dir, error);
    }
    /* Also of an import that was killed after the move; what is no import's stays. */
    (void)clear_work(&dir, &ignored);
    datadir_close(&dir);
    return rc;
}
