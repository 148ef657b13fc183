/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_registry.h"

#include "broker/main_store.h"
#include "broker/store/import.h"
#include "broker/store/rows_file.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/process.h"
#include "proto/value.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A host with much else to do takes long for a transaction, and an import that lost the lead begins anew. */
enum { LEASE_MS = 30000 };
/* What takes longer is said to take long. */
enum { LONG_MS = 5000 };

typedef struct {
    const char *data, *store;
    main_store_access_t access;
    uint32_t timeout_ms;
    bool moves;
    int output;
    const char *words[2]; /* the action, its file */
} args_t;

typedef struct {
    char place[512], cluster[HEDDLE_NAME_MAX + 1], digest[80];
    uint64_t epoch, row_count;
} facts_t;

#define AT(field) offsetof(args_t, field)
static const option_t OPTIONS[] = {
    {"data", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "the registry of the broker with this --data; default $XDG_STATE_HOME/heddle", AT(data)},
    {"store", 0, OPTION_TEXT, "URL", NULL, NULL,
     "the registry of the brokers with this --store: etcd://HOST:PORT[,HOST:PORT...]/PREFIX, or etcds://",
     AT(store)},
    MAIN_STORE_OPTIONS(AT(access)),
    {"move", 0, OPTION_FLAG, NULL, NULL, NULL,
     "export: then mark the registry as moved, so that no broker starts with it", AT(moves)},
    {"timeout", 0, OPTION_DURATION, "DUR", NULL, "60s", "give up when the etcd has not answered for so long",
     AT(timeout_ms)},
    {0}};
static const option_t COMMON[] = {
    {"output", 'o', OPTION_CHOICE, "table|json", NULL, "table", "what is printed", AT(output)}, {0}};
static const char *const ARGS[] = {"ACTION", "FILE", NULL};
static const option_set_t SET = {
    "heddle registry",
    "export FILE | import FILE [OPTION...]",
    "A registry as one file: from one store into another, a directory or an etcd.",
    "Stop its brokers first, the standbys too: a command refuses where it finds one.  In an etcd it finds "
    "none\n"
    "that stands still, or is cut off, for longer than its --store-lease.  What that one has in hand then "
    "fails,\n"
    "but afterwards it leads again.\n"
    "export: makes FILE, for its owner alone, since it has the keys that versions are shared with.\n"
    "import: checks all of FILE before the first write, and takes all of it or nothing.  It replaces no "
    "data:\n"
    "the directory has no registry yet, or the prefix in the etcd is empty.\n"
    "While an etcd does not answer, the command waits, and says so after 5 s.\n"
    "Both registries are of the same cluster: start the brokers of one of them only.  --move sees to that.",
    OPTIONS,
    COMMON,
    ARGS,
    2,
    "Exit status: 0 ok; 2 usage; 3 there is no registry or file; 4 a broker has the registry; 6 etcd refuses "
    "the\n"
    "user, or a certificate is not taken; 7 no etcd answers; 8 the file is too large; 9 the file is not a "
    "whole\n"
    "export, the store has data, or this machine: the directory, no room, data of a newer release.\n\n"
    "Examples:\n"
    "  heddle registry export move.heddle --move\n"
    "  heddle registry import move.heddle --store etcd://e0:2379,e1:2379,e2:2379/heddle/prod"};

/* ---- the file ---- */

static int refuse_file(const char *path, const char *what, int number, heddle_error_t *error)
{
    bool is_room = number == ENOSPC || number == EDQUOT;
    int code = number == ENOENT ? HEDDLE_ERR_NOT_FOUND : is_room ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_DATA_DIR;
    error_fail(error, code, "%.300s: cannot %s: %s", path, what, strerror(number));
    if (number == EEXIST) error_hint(error, "a file that is there is not replaced: name another one");
    else if (is_room) error_hint(error, "make room on its file system, or name a file on another one");
    else
        error_hint(error, "name a regular file that uid %u may %s", (unsigned)geteuid(),
                   strcmp(what, "read it") ? "make" : "read");
    return code;
}

/* A pipe without a writer would be waited for, so it is not opened as one. */
static int read_file(const char *path, buf_t *to, heddle_error_t *error)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int number = fd < 0 || fstat(fd, &st) ? errno : S_ISREG(st.st_mode) ? 0 : EINVAL;
    bool is_large = !number && st.st_size > (off_t)LIMIT_EXPORT_BYTES;
    for (ssize_t n = 1; !number && !is_large && n && !to->failed;) {
        char piece[65536];
        n = read(fd, piece, sizeof piece);
        if (n < 0) number = errno;
        else buf_add(to, piece, (size_t)n);
        is_large = to->bytes > LIMIT_EXPORT_BYTES;
    }
    if (fd >= 0) close(fd);
    if (number) return refuse_file(path, "read it", number, error);
    if (to->failed) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to read %.300s", path);
    if (!is_large) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_LIMIT, "%.300s is larger than an export can be", path);
    error_expected(error, "at most %llu bytes", LIMIT_EXPORT_BYTES);
    error_hint(error, "see that it is a file of `heddle registry export`");
    return rc;
}

static int write_all(int fd, bytes_t bytes)
{
    const char *at = bytes.data;
    for (size_t left = bytes.bytes; left;) {
        ssize_t n = write(fd, at, left);
        if (n < 0 && errno != EINTR) return errno;
        if (n < 0) continue;
        at += n;
        left -= (size_t)n;
    }
    return fsync(fd) && errno != EINVAL ? errno : 0;
}

/* A file without a name, so that nothing is left of an export that is killed; else one that has `made`. */
static int make_file(int dir, const char *path, char made[PATH_MAX])
{
    *made = 0;
    int fd = openat(dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    bool has_call = fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL);
    if (has_call || snprintf(made, PATH_MAX, "%s.XXXXXX", path) >= PATH_MAX) return fd;
    return mkostemp(made, O_CLOEXEC);
}

static int name_it(int fd, int dir, const char *name, const char *made)
{
    char open_file[40];
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", fd);
    int rc = *made ? linkat(AT_FDCWD, made, dir, name, 0)
                   : linkat(AT_FDCWD, open_file, dir, name, AT_SYMLINK_FOLLOW);
    return rc ? errno : 0;
}

static int open_parent(const char *path, const char **ret_name)
{
    char parent[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int bytes = slash ? (int)(slash - path) : 0;
    *ret_name = slash ? slash + 1 : path;
    snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : bytes, path);
    return open(bytes || slash ? parent : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Under its name when it is whole and on disk; what has the name by then is not replaced. */
static int write_file(const char *path, bytes_t bytes, heddle_error_t *error)
{
    char made[PATH_MAX];
    const char *name;
    int dir = open_parent(path, &name), fd = dir < 0 ? -1 : make_file(dir, path, made);
    int number = fd < 0 ? errno : write_all(fd, bytes);
    if (!number && FAILPOINT("registry.before_link")) number = EIO;
    if (!number) number = name_it(fd, dir, name, made);
    if (!number && fsync(dir) && errno != EINVAL) {
        number = errno;
        unlinkat(dir, name, 0);
    }
    if (fd >= 0 && *made) unlink(made);
    if (fd >= 0) close(fd);
    if (dir >= 0) close(dir);
    return number ? refuse_file(path, fd < 0 ? "make it" : "write it", number, error) : HEDDLE_OK;
}

static void note_facts(const store_rows_t *rows, const rows_file_t *file, facts_t *facts)
{
    char *to = facts->digest;
    to += snprintf(to, sizeof facts->digest, "blake2b:");
    for (size_t i = 0; i < sizeof file->digest.b; i++, to += 2) snprintf(to, 3, "%02x", file->digest.b[i]);
    snprintf(facts->cluster, sizeof facts->cluster, "%s", rows_cluster(rows));
    facts->epoch = rows_epoch(rows);
    facts->row_count = file->rows;
}

/* ---- a long time ---- */

typedef struct {
    const char *action;
    uint64_t next_us;
    bool is_silent;
} long_wait_t;

static void on_wait(void *self, const etcd_wait_t *now)
{
    long_wait_t *w = self;
    uint64_t now_us = clock_now(clock_system());
    bool was_silent = w->is_silent;
    w->is_silent = now->silent_ms >= LONG_MS;
    if (w->is_silent && !was_silent)
        fprintf(stderr, "the etcd does not answer (for %u s%s%s); waiting for it\n", now->silent_ms / 1000,
                *now->trouble ? ": " : "", now->trouble);
    if (w->is_silent || now_us < w->next_us) return;
    if (w->next_us) fprintf(stderr, "%s: %llu rows so far\n", w->action, (unsigned long long)now->rows);
    w->next_us = now_us + LONG_MS * 1000ull;
}

/* ---- export ---- */

static int adopt(void *rows, const record_t *r)
{
    heddle_error_t error;
    return rows_adopt(rows, r, &error);
}

static int read_rows(main_store_t *s, store_rows_t **ret_rows, heddle_error_t *error)
{
    static const char META[] = "meta";
    char meta[ROWS_META_BYTES];
    store_rows_t *rows = NULL;
    rows_meta(main_store_cluster(s), main_store_epoch(s), meta);
    int rc = rows_new(&rows, error);
    if (!rc) rc = rows_read(rows, bytes_of(META, strlen(META)), bytes_of(meta, strlen(meta)), error);
    if (!rc) {
        error->code = HEDDLE_OK;
        rc = main_store_load(s, adopt, rows, error);
        if (rc && !error->code)
            error_fail(error, rc, "%.300s: its rows contradict each other", main_store_place(s));
    }
    if (!rc) rc = rows_end_read(rows, error);
    if (rc) rows_destroy(&rows);
    else *ret_rows = rows;
    return rc;
}

static int check_data(const char *dir, heddle_error_t *error)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/registry.db", dir);
    if (stat(path, &st) == 0) return HEDDLE_OK;
    if (errno != ENOENT && errno != ENOTDIR) return refuse_file(path, "read it", errno, error);
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%.300s: there is no registry", dir);
    error_contrast(error, "the directory that a broker has as --data", "none with the file registry.db");
    error_hint(error, "name it with --data, or the etcd of the brokers with --store");
    return rc;
}

/* Beside what the failure itself says.  What an etcd was asked for, and has not answered, may have happened;
 * so may what was written to a directory, and not synced. */
static void say_unmarked(const main_store_t *s, const char *path, heddle_error_t *error)
{
    char text[sizeof error->message + 384], mark[sizeof error->hint];
    bool is_refused = s->etcd && error->code != HEDDLE_ERR_UNAVAILABLE && error->code != HEDDLE_ERR_FENCED;
    text_printf(text, sizeof text, "%.300s is whole, but %s: %s", path,
                is_refused ? "the registry is not marked as moved"
                           : "whether the registry is marked as moved is not certain",
                error->message);
    error_text(error->message, sizeof error->message, text);
    if (is_refused) return;
    main_store_name_mark(s, mark, sizeof mark);
    text_printf(text, sizeof text,
                "%s%slook for the mark, %s: no broker starts with it; if it is missing, export again, to "
                "another file",
                error->hint, *error->hint ? "; then " : "", mark);
    error_text(error->hint, sizeof error->hint, text);
}

static int export_file(const args_t *args, etcd_opts_t *etcd, facts_t *facts, heddle_error_t *error)
{
    const char *path = args->words[1];
    struct stat st;
    main_store_t s = {0};
    store_rows_t *rows = NULL;
    rows_file_t file;
    buf_t bytes = {0};
    if (lstat(path, &st) == 0) return refuse_file(path, "write it", EEXIST, error);
    int rc = args->store ? HEDDLE_OK : check_data(args->data, error);
    if (rc) return rc;
    etcd->purpose = ETCD_EXPORT;
    rc = main_store_open(&s, args->data, etcd, error);
    if (!rc) rc = read_rows(&s, &rows, error);
    if (!rc) snprintf(facts->place, sizeof facts->place, "%s", main_store_place(&s));
    if (!rc) rc = rows_file_put(rows, LIMIT_EXPORT_BYTES, &bytes, &file, error);
    if (!rc) rc = write_file(path, buf_view(&bytes), error);
    buf_fini(&bytes);
    if (!rc && args->moves) {
        rc = main_store_mark_moved(&s, error);
        if (rc) say_unmarked(&s, path, error);
    }
    main_store_close(&s);
    if (!rc) note_facts(rows, &file, facts);
    rows_destroy(&rows);
    return rc;
}

/* ---- import ---- */

static void name_file(const char *path, heddle_error_t *error)
{
    char text[sizeof error->message + 304];
    snprintf(text, sizeof text, "%.300s: %s", path, error->message);
    error_text(error->message, sizeof error->message, text);
}

static int import_file(const args_t *args, etcd_opts_t *etcd, facts_t *facts, heddle_error_t *error)
{
    store_rows_t *rows = NULL;
    rows_file_t file;
    buf_t bytes = {0};
    int rc = read_file(args->words[1], &bytes, error);
    if (!rc) {
        rc = rows_file_take(buf_view(&bytes), &rows, &file, error);
        if (rc) name_file(args->words[1], error);
    }
    buf_fini(&bytes);
    if (!rc) rc = args->store ? import_to_etcd(rows, etcd, error) : import_to_dir(rows, args->data, error);
    if (!rc) snprintf(facts->place, sizeof facts->place, "%s", args->store ? args->store : args->data);
    if (!rc) note_facts(rows, &file, facts);
    rows_destroy(&rows);
    return rc;
}

/* ---- the command ---- */

typedef int (*action_fn)(const args_t *args, etcd_opts_t *etcd, facts_t *facts, heddle_error_t *error);
static const struct {
    const char *name, *done;
    action_fn run;
} ACTIONS[] = {{"export", "exported from", export_file}, {"import", "imported into", import_file}};
enum { ACTION_COUNT = sizeof ACTIONS / sizeof *ACTIONS };

/* -1: there is none of that name. */
static int find_action(const char *name)
{
    for (int i = 0; i < ACTION_COUNT; i++)
        if (!strcmp(ACTIONS[i].name, name)) return i;
    return -1;
}

static int refuse_action(const char *name, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "there is no action \"%.100s\"", name);
    error_contrast(error, "export or import", name);
    error_hint(error, "see heddle registry --help");
    return rc;
}

static int act(args_t *args, int action, facts_t *facts, heddle_error_t *error)
{
    char data[PATH_MAX], scratch[MAIN_STORE_SCRATCH];
    long_wait_t watch = {.action = ACTIONS[action].name};
    etcd_opts_t etcd = {.url = args->store,
                        .endpoint = "heddle registry",
                        .lease_ms = LEASE_MS,
                        .on_wait = on_wait,
                        .self = &watch,
                        .patience_ms = args->timeout_ms};
    int rc = args->store ? main_store_check(args->store, &args->access, error) : HEDDLE_OK;
    if (!rc && args->moves && ACTIONS[action].run != export_file) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "--move is for an export");
        error_hint(error, "the registry that was exported is the one that no broker is to start with");
    } else if (!rc && args->store && args->data) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "--data and --store name two registries");
        error_hint(error, "name the one that is meant");
    } else if (!rc && !args->store) {
        rc = main_store_no_access(&args->access, error);
        if (!rc && !args->data) rc = main_store_default_dir(data, sizeof data, error);
        if (!args->data) args->data = data;
    }
    if (!rc && args->store) rc = main_store_access(&args->access, scratch, &etcd, error);
    if (!rc) rc = ACTIONS[action].run(args, &etcd, facts, error);
    explicit_bzero(scratch, sizeof scratch);
    return rc;
}

static void print_answer(const args_t *args, int action, const facts_t *f, const heddle_error_t *error)
{
    bool is_ok = !error->code;
    json_t *answer =
        json_pack("{s:s, s:s, s:b, s:s?, s:s?, s:s?, s:s?, s:o, s:o, s:s?}", "schema", "heddle/1", "kind",
                  "registry", "ok", is_ok, "action", action < 0 ? NULL : ACTIONS[action].name, "file",
                  args->words[1], "store", is_ok ? f->place : NULL, "cluster", is_ok ? f->cluster : NULL,
                  "epoch", is_ok ? json_integer((json_int_t)f->epoch) : json_null(), "row_count",
                  is_ok ? json_integer((json_int_t)f->row_count) : json_null(), "file_digest",
                  is_ok ? f->digest : NULL);
    if (answer && !is_ok) json_object_set_new(answer, "error", value_from_error(error));
    char *text = answer ? json_dumps(answer, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    if (text) process_print(text);
    free(text);
    json_decref(answer);
}

int main_registry(int argc, char **argv)
{
    args_t args = {0};
    facts_t facts = {0};
    heddle_error_t error = {0};
    int action = -1, rc = process_begin(&error);
    if (!rc) rc = option_parse(&SET, argc, argv, &args, args.words, &error);
    if (rc == 1) return process_end(0);
    bool is_json = rc ? option_wants_json(argc, argv) : args.output;
    umask(077);
    log_set_level(LOG_WARN);
    if (!rc) action = find_action(args.words[0]);
    if (!rc && action < 0) rc = refuse_action(args.words[0], &error);
    if (!rc) rc = act(&args, action, &facts, &error);
    if (!rc) error.code = HEDDLE_OK;
    if (is_json) print_answer(&args, action, &facts, &error);
    else if (!rc)
        printf("%s %s: %llu rows of cluster %s, epoch %llu\n%s  %s\n", ACTIONS[action].done, facts.place,
               (unsigned long long)facts.row_count, facts.cluster, (unsigned long long)facts.epoch,
               facts.digest, args.words[1]);
    option_fini(&SET, &args);
    return process_end(rc ? process_fail(SET.program, &error) : 0);
}
