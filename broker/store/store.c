/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/store.h"

#include "broker/datadir.h"
#include "broker/store/store_files.h"
#include "broker/store/store_row.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_OF(x) #x
#define NUMBER(x) TEXT_OF(x)

/* References are checked at the commit: the records of one turn may come in any order. */
/* clang-format off */
static const char SCHEMA[] =
    "BEGIN IMMEDIATE;"
    "CREATE TABLE meta ("
    " id INTEGER PRIMARY KEY CHECK (id = 1), cluster TEXT NOT NULL, epoch INTEGER NOT NULL) STRICT;"
    "CREATE TABLE adapters ("
    " name TEXT PRIMARY KEY, created_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE versions ("
    " adapter TEXT NOT NULL REFERENCES adapters (name) DEFERRABLE INITIALLY DEFERRED,"
    " version INTEGER NOT NULL, created_at INTEGER NOT NULL, digest BLOB NOT NULL,"
    " payload_bytes INTEGER NOT NULL, manifest_bytes INTEGER NOT NULL, manifest_digest BLOB NOT NULL,"
    " share_key BLOB NOT NULL, request_id TEXT NOT NULL, writer TEXT NOT NULL,"
    " base_model TEXT NOT NULL, kind TEXT NOT NULL, features TEXT NOT NULL, step INTEGER NOT NULL,"
    " data_bytes INTEGER NOT NULL, tensor_count INTEGER NOT NULL, chunk_count INTEGER NOT NULL,"
    " activation INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, config BLOB NOT NULL,"
    " meta TEXT NOT NULL, asked_ms INTEGER NOT NULL DEFAULT 0,"
    " state INTEGER, state_at INTEGER, code INTEGER, message TEXT, worker TEXT, phase TEXT,"
    " PRIMARY KEY (adapter, version)) STRICT;"
    "CREATE TABLE decisions ("
    " adapter TEXT NOT NULL, decision INTEGER NOT NULL, version INTEGER NOT NULL,"
    " held INTEGER NOT NULL, decided_by TEXT NOT NULL, decided_at INTEGER NOT NULL,"
    " scope INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (adapter, decision),"
    " FOREIGN KEY (adapter, version) REFERENCES versions DEFERRABLE INITIALLY DEFERRED)"
    " STRICT, WITHOUT ROWID;"
    "CREATE TABLE writers ("
    " adapter TEXT PRIMARY KEY, token INTEGER NOT NULL, name TEXT NOT NULL, host TEXT NOT NULL,"
    " pid INTEGER NOT NULL, life BLOB NOT NULL, since_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "PRAGMA application_id = " NUMBER(STORE_APPLICATION_ID) ";"
    "PRAGMA user_version = " NUMBER(STORE_SCHEMA) ";"
    "INSERT INTO meta VALUES (1, lower(hex(randomblob(8))), 0);"
    "COMMIT";
/* clang-format on */

/* What files of schema 1 may be without: which decisions name a version; keys; numbers that are taken.  Of
 * schemas 1 and 2: the deadline that was asked for.  Of schemas 1 to 3: the workers that a decision is for,
 * all of them at that time.  In schemas 1 to 6 payload_bytes has another name.  Of schemas 2 to 7: that a key
 * is an invitation.  Of schemas 2 to 8: which invitation entered a key. */
static const char SCOPED[] = "ALTER TABLE decisions ADD COLUMN scope INTEGER NOT NULL DEFAULT 0";
static const char ASKED[] = "ALTER TABLE versions ADD COLUMN asked_ms INTEGER NOT NULL DEFAULT 0";
static const char LOSABLE[] = "ALTER TABLE versions ADD COLUMN lost_at INTEGER;"
                              "ALTER TABLE versions ADD COLUMN lost_why TEXT";
static const char RENAMED[] = "ALTER TABLE versions RENAME COLUMN region_bytes TO payload_bytes";
static const char STAGEABLE[] = "ALTER TABLE versions ADD COLUMN staged_at INTEGER";
static const char INVITING[] = "ALTER TABLE keys ADD COLUMN uses INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE keys ADD COLUMN used INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE keys ADD COLUMN ends_at INTEGER NOT NULL DEFAULT 0";
static const char ENTERED[] = "ALTER TABLE keys ADD COLUMN entered_by TEXT NOT NULL DEFAULT ''";
static const char LATER[] =
    "CREATE INDEX IF NOT EXISTS decisions_by_version ON decisions (adapter, version);"
    "CREATE TABLE IF NOT EXISTS keys ("
    " public_key TEXT PRIMARY KEY, name TEXT NOT NULL, roles TEXT NOT NULL, added_at INTEGER NOT NULL,"
    " revoked_at INTEGER NOT NULL, uses INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL DEFAULT 0,"
    " ends_at INTEGER NOT NULL DEFAULT 0, entered_by TEXT NOT NULL DEFAULT '') STRICT, WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS workers ("
    " name TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, joined_at INTEGER NOT NULL,"
    " serves TEXT NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS floors ("
    " adapter TEXT PRIMARY KEY, version INTEGER NOT NULL, decision INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "DELETE FROM adapters WHERE NOT EXISTS (SELECT 1 FROM versions WHERE adapter = adapters.name)"
    " AND NOT EXISTS (SELECT 1 FROM floors WHERE adapter = adapters.name)"
    " AND NOT EXISTS (SELECT 1 FROM writers WHERE adapter = adapters.name);"
    "PRAGMA user_version = " NUMBER(STORE_SCHEMA) ";"
                                                  "COMMIT";

typedef enum {
    SQL_BEGIN,
    SQL_COMMIT,
    SQL_ROLLBACK,
    PUT_EPOCH,
    PUT_CLUSTER,
    TOUCH,
    PUT_ADAPTER,
    DROP_ADAPTER,
    PUT_VERSION,
    PUT_DECISION,
    PUT_STATE,
    PUT_WRITER,
    DROP_WRITER,
    PUT_FLOOR,
    PUT_WORKER,
    DROP_WORKER,
    PUT_LOSS,
    PUT_STAGED,
    DROP_OLDER_DECISIONS,
    DROP_DECISIONS,
    DROP_VERSION,
    FORGET_VERSIONS,
    FORGET_DECISIONS,
    FORGET_WRITER,
    PUT_KEY,
    DROP_KEY,
    REVOKE_KEYS,
    ALL_META,
    ALL_ADAPTERS,
    ALL_VERSIONS,
    ALL_DECISIONS,
    ALL_STATES,
    ALL_WRITERS,
    ALL_KEYS,
    ALL_FLOORS,
    ALL_WORKERS,
    ALL_LOSSES,
    ALL_STAGED,
    GET_CONFIG,
    SQL_COUNT
} sql_t;

static const char *const SQL[SQL_COUNT] = {
    [SQL_BEGIN] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_ROLLBACK] = "ROLLBACK",
    [PUT_EPOCH] = "UPDATE meta SET epoch = max(epoch, ?)",
    [PUT_CLUSTER] = "UPDATE meta SET cluster = ?",
    [TOUCH] = "PRAGMA user_version = " NUMBER(STORE_SCHEMA),
    [PUT_ADAPTER] = "INSERT INTO adapters (name, created_at) VALUES (?, ?)",
    [DROP_ADAPTER] = "DELETE FROM adapters WHERE name = ?1"
                     " AND NOT EXISTS (SELECT 1 FROM versions WHERE adapter = ?1)"
                     " AND NOT EXISTS (SELECT 1 FROM floors WHERE adapter = ?1)",
    [PUT_VERSION] =
        "INSERT INTO versions (" ROW_VERSION_COLUMNS ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
    [PUT_DECISION] = "INSERT INTO decisions (adapter, decision, version, held, decided_by, decided_at,"
                     " scope) VALUES (?,?,?,?,?,?,?)",
    [PUT_STATE] = "UPDATE versions SET state = ?, state_at = ?, code = ?, message = ?, worker = ?, phase = ?"
                  " WHERE adapter = ? AND version = ?",
    [PUT_WRITER] = "INSERT OR REPLACE INTO writers (adapter, token, name, host, pid, life, since_at) VALUES "
                   "(?,?,?,?,?,?,?)",
    [PUT_FLOOR] = "INSERT INTO floors (adapter, version, decision) VALUES (?,?,?) ON CONFLICT (adapter) DO"
                  " UPDATE SET version = max(version, excluded.version),"
                  " decision = max(decision, excluded.decision)",
    [PUT_WORKER] = "INSERT OR REPLACE INTO workers (name, host, pid, joined_at, serves) VALUES (?,?,?,?,?)",
    [PUT_LOSS] = "UPDATE versions SET lost_at = ?, lost_why = ? WHERE adapter = ? AND version = ?",
    [PUT_STAGED] = "UPDATE versions SET staged_at = ? WHERE adapter = ? AND version = ?",
    [DROP_WORKER] = "DELETE FROM workers WHERE name = ?",
    [DROP_WRITER] = "DELETE FROM writers WHERE adapter = ?",
    [DROP_OLDER_DECISIONS] = "DELETE FROM decisions WHERE adapter = ?1 AND version = ?2 AND decision < ?3"
                             " AND decision > (SELECT min(decision) FROM decisions WHERE adapter = ?1"
                             " AND version = ?2)",
    [DROP_DECISIONS] = "DELETE FROM decisions WHERE adapter = ?1 AND version = ?2 AND decision <"
                       " (SELECT max(decision) FROM decisions WHERE adapter = ?1)",
    [DROP_VERSION] = "DELETE FROM versions WHERE adapter = ?1 AND version = ?2 AND state IS NOT NULL AND"
                     " version < (SELECT max(version) FROM versions WHERE adapter = ?1)",
    [FORGET_VERSIONS] = "DELETE FROM versions WHERE adapter = ?",
    [FORGET_DECISIONS] = "DELETE FROM decisions WHERE adapter = ?",
    [FORGET_WRITER] = "INSERT OR REPLACE INTO writers (adapter, token, name, host, pid, life, since_at)"
                      " VALUES (?, 0, '', '', 0, zeroblob(16), 0)",
    [PUT_KEY] =
        "INSERT OR REPLACE INTO keys (public_key, name, roles, added_at, revoked_at, uses, used, ends_at,"
        " entered_by) VALUES (?,?,?,?,?,?,?,?,?)",
    [DROP_KEY] = "DELETE FROM keys WHERE public_key = ?",
    [REVOKE_KEYS] = "UPDATE keys SET revoked_at = ?2 WHERE revoked_at = 0"
                    " AND (public_key = ?1 OR entered_by = ?1)",
    [ALL_KEYS] = "SELECT public_key, name, roles, added_at, revoked_at, uses, used, ends_at, entered_by"
                 " FROM keys ORDER BY public_key",
    [ALL_META] = "SELECT epoch, cluster FROM meta",
    [ALL_ADAPTERS] = "SELECT name, created_at FROM adapters ORDER BY name",
    [ALL_VERSIONS] = "SELECT " ROW_VERSION_COLUMNS " FROM versions ORDER BY adapter, version",
    [ALL_DECISIONS] = "SELECT adapter, decision, version, held, decided_by, decided_at, scope FROM decisions "
                      "ORDER BY adapter, decision",
    [ALL_STATES] = "SELECT state, state_at, code, message, worker, phase, adapter, version FROM versions"
                   " WHERE state IS NOT NULL ORDER BY adapter, version",
    [ALL_WRITERS] = "SELECT adapter, token, name, host, pid, life, since_at FROM writers ORDER BY adapter",
    [ALL_FLOORS] = "SELECT adapter, version, decision FROM floors ORDER BY adapter",
    [ALL_WORKERS] = "SELECT name, host, pid, joined_at, serves FROM workers ORDER BY name",
    [ALL_LOSSES] = "SELECT lost_at, lost_why, adapter, version FROM versions WHERE lost_why <> ''"
                   " ORDER BY adapter, version",
    [ALL_STAGED] = "SELECT staged_at, adapter, version FROM versions WHERE staged_at IS NOT NULL"
                   " AND state IS NULL ORDER BY adapter, version",
    [GET_CONFIG] = "SELECT config FROM versions WHERE adapter = ? AND version = ?",
};

struct store {
    owner_t owner; /* SQLite serves one thread, and that is ours */
    datadir_t dir;
    store_files_t files;
    sqlite3 *db;
    sqlite3_stmt *sql[SQL_COUNT];
    char cluster[HEDDLE_NAME_MAX + 1];
    uint64_t epoch, said_epoch; /* the latter in the lock, and in the registry without its log */
    int number;                 /* errno of the last statement, 0 when it went well */
    bool is_ready;              /* opened, to the end */
    bool has_complained;        /* that the epoch is in the log alone */
};

/* ---- errors ---------------------------------------------------------------------------------- */

int store_code(int sqlite_code, int number)
{
    /* What could not be synced is in the log all the same, and would be applied after a crash.  So it is
     * unknown whether the commit holds, and the broker must end. */
    bool is_sync = sqlite_code == SQLITE_IOERR_FSYNC || sqlite_code == SQLITE_IOERR_DIR_FSYNC;
    if (is_sync) return HEDDLE_ERR_DATA_DIR;
    if (number == ENOSPC || number == EDQUOT || number == EFBIG) return HEDDLE_ERR_NO_SPACE;
    if (sqlite_code == SQLITE_IOERR_NOMEM) return HEDDLE_ERR_NO_MEMORY;
    switch (sqlite_code & 0xff) { /* the primary code is the low byte of an extended one */
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE: return HEDDLE_OK;
    case SQLITE_FULL: return HEDDLE_ERR_NO_SPACE;
    case SQLITE_NOMEM: return HEDDLE_ERR_NO_MEMORY;
    case SQLITE_TOOBIG: return HEDDLE_ERR_LIMIT;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return HEDDLE_ERR_DATA_LOCKED;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_NOLFS: return HEDDLE_ERR_DATA_DIR;
    default: return HEDDLE_ERR_INTERNAL;
    }
}

/* `what`: "read a row".  SQLite keeps its message only until its next call, so this comes before any
 * other. */
static int refuse(const store_t *s, int sqlite_code, const char *what, heddle_error_t *error)
{
    bool io = (sqlite_code & 0xff) == SQLITE_IOERR || (sqlite_code & 0xff) == SQLITE_CANTOPEN;
    int number = 0; /* means something for these only: it may be that of an older failure */
    if (io) number = s->number ? s->number : s->db ? sqlite3_system_errno(s->db) : 0;
    int code = store_code(sqlite_code, number);
    bool own_words = s->db && (sqlite3_errcode(s->db) & 0xff) == (sqlite_code & 0xff);
    error_fail(error, code, "%.300s: cannot %s: %.200s", s->files.main, what,
               own_words ? sqlite3_errmsg(s->db) : sqlite3_errstr(sqlite_code));
    if (number) error_found(error, "%s (sqlite %d)", strerror(number), sqlite_code);
    else error_found(error, "sqlite %d: %s", sqlite_code, sqlite3_errstr(sqlite_code));
    /* Most failures are the environment's: a full disk, rights, another program.  So the hint says what to do
     * about it. */
    int primary = sqlite_code & 0xff;
    if (code == HEDDLE_ERR_NO_SPACE)
        error_hint(error,
                   "make room on the file system of %.120s; nothing was lost, and the same call works again",
                   s->dir.path);
    else if (primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB)
        error_hint(
            error,
            "nothing was changed: copy %.100s away, then restore a copy of it or choose another --data",
            s->dir.path);
    else if (code == HEDDLE_ERR_DATA_LOCKED)
        error_hint(error, "another program has the file open, perhaps sqlite3: close it");
    else if (code == HEDDLE_ERR_DATA_DIR)
        error_hint(error,
                   "the disk below refused: see that it has room, that uid %u may write there and that it is "
                   "healthy",
                   (unsigned)geteuid());
    return code;
}

/* ---- load and commit ------------------------------------------------------------------------- */

/* One line for each kind of record, in the order of loading: a row may refer to one that was loaded before
 * it. */
static const struct kind {
    record_kind_t kind;
    sql_t put, all;
} KINDS[] = {
    {RECORD_EPOCH, PUT_EPOCH, ALL_META},         {RECORD_ADAPTER, PUT_ADAPTER, ALL_ADAPTERS},
    {RECORD_VERSION, PUT_VERSION, ALL_VERSIONS}, {RECORD_DECISION, PUT_DECISION, ALL_DECISIONS},
    {RECORD_STATE, PUT_STATE, ALL_STATES},       {RECORD_WRITER, PUT_WRITER, ALL_WRITERS},
    {RECORD_FLOOR, PUT_FLOOR, ALL_FLOORS},       {RECORD_KEY, PUT_KEY, ALL_KEYS},
    {RECORD_WORKER, PUT_WORKER, ALL_WORKERS},    {RECORD_LOSS, PUT_LOSS, ALL_LOSSES},
    {RECORD_STAGED, PUT_STAGED, ALL_STAGED},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };

int store_load(store_t *s, int (*each)(void *self, const record_t *record), void *self, heddle_error_t *error)
{
    owner_check(&s->owner);
    int rc = HEDDLE_OK;
    for (int i = 0; i < KIND_COUNT && !rc; i++) {
        store_row_t row = {.sql = s->sql[KINDS[i].all]};
        int code = SQLITE_DONE;
        while (!rc && (code = sqlite3_step(row.sql)) == SQLITE_ROW) {
            record_t record = {.kind = KINDS[i].kind};
            row.at = 0;
            row_take(&row, &record);
            rc = row.code ? refuse(s, row.code, "read a row", error) : each(self, &record);
        }
        if (!rc && code != SQLITE_DONE) rc = refuse(s, code, "read a row", error);
        sqlite3_reset(row.sql); /* a read that stays open would keep the log from being emptied */
    }
    return rc;
}

/* Configs are large and rarely read, so they are read from the file and not kept in memory. */
int store_config(store_t *s, const char *adapter, uint64_t version, buf_t *out, heddle_error_t *error)
{
    owner_check(&s->owner);
    store_row_t row = {.sql = s->sql[GET_CONFIG]};
    row_put_text(&row, adapter);
    row_put_u64(&row, version);
    if (!row.code) row.code = sqlite3_step(row.sql);
    int rc = HEDDLE_OK;
    if (row.code == SQLITE_ROW) {
        bytes_t config = row_take_blob(&(store_row_t){.sql = row.sql});
        buf_add(out, config.data, config.bytes);
        if (out->failed) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a config");
    } else if (row.code == SQLITE_DONE) {
        rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%.300s: no %.128s@%llu", s->files.main, adapter,
                        (unsigned long long)version);
    } else {
        rc = refuse(s, row.code, "read a config", error);
    }
    sqlite3_reset(row.sql);
    sqlite3_clear_bindings(row.sql);
    return rc;
}

/* errno is kept, because sqlite3_system_errno() does not have that of every failure. */
static int run(store_t *s, sql_t which)
{
    errno = 0;
    int code = sqlite3_step(s->sql[which]);
    s->number = code == SQLITE_DONE ? 0 : errno; /* sqlite3_system_errno() does not tell of all */
    sqlite3_reset(s->sql[which]);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

/* One statement with the columns of a record. */
static int put_with(store_t *s, sql_t which, const record_t *r)
{
    store_row_t row = {.sql = s->sql[which]};
    row_put(&row, r);
    if (!row.code) row.code = run(s, which);
    sqlite3_clear_bindings(row.sql); /* they borrow from the record */
    return row.code;
}

/* A change of state must touch exactly one row, and so must forgetting a version or a name.  Otherwise the
 * store does not have what the registry in memory has, and the commit fails. */
static int put(store_t *s, const record_t *r)
{
    const struct kind *k = KINDS;
    bool is_forget = r->kind == RECORD_FORGET, is_drop = r->kind == RECORD_ADAPTER_DROP;
    while (k < KINDS + KIND_COUNT && k->kind != r->kind) k++;
    if (r->kind == RECORD_KEY_DROP) return put_with(s, DROP_KEY, r);
    if (r->kind == RECORD_KEYS_REVOKE) return put_with(s, REVOKE_KEYS, r);
    if (r->kind == RECORD_ADAPTER_FORGET) {
        int rc = put_with(s, FORGET_DECISIONS, r);
        if (!rc) rc = put_with(s, FORGET_VERSIONS, r);
        return rc ? rc : put_with(s, FORGET_WRITER, r);
    }
    if (k == KINDS + KIND_COUNT && !is_forget && !is_drop) return SQLITE_MISUSE;
    sql_t which = is_forget ? DROP_VERSION : is_drop ? DROP_ADAPTER : k->put;
    if (r->kind == RECORD_WRITER && !r->token) which = DROP_WRITER;
    if (r->kind == RECORD_WORKER && !*r->serves) which = DROP_WORKER;
    int code = is_forget ? put_with(s, DROP_DECISIONS, r) : SQLITE_OK;
    if (!code) code = put_with(s, which, r);
    if (!code && which == PUT_EPOCH) code = run(s, TOUCH); /* the same number again would write nothing */
    bool must_hit = which == PUT_STATE || which == DROP_VERSION || which == DROP_ADAPTER;
    if (!code && must_hit && sqlite3_changes(s->db) != 1) return SQLITE_CONSTRAINT;
    if (code || which != PUT_DECISION) return code;
    /* Only the first and the latest decision of a version are ever read again.  Those between are deleted, so
     * that the table does not grow with each rollback. */
    store_row_t row = {.sql = s->sql[DROP_OLDER_DECISIONS]};
    row_put_text(&row, r->adapter);
    row_put_u64(&row, r->version);
    row_put_u64(&row, r->decision);
    if (!row.code) row.code = run(s, DROP_OLDER_DECISIONS);
    sqlite3_clear_bindings(row.sql);
    return row.code;
}

/* Moves everything from the log to the registry's file, and syncs that.  SQLite calls this a checkpoint. */
static int empty_log(store_t *s)
{
    errno = 0;
    int left = 0, code = sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, &left, NULL);
    s->number = code ? errno : 0;
    return code || !left ? code : SQLITE_BUSY;
}

/* Empties the log at each start, and with each new epoch.  So a registry file without its log has at least
 * the last epoch, and a log that lies beside an older registry file adds no epoch to it. */
static int begin_log(store_t *s, heddle_error_t *error)
{
    int code = FAILPOINT("store.begin_log") ? SQLITE_FULL : empty_log(s);
    store_files_note(&s->files);
    if (code) return refuse(s, code, "put its log into it", error);
    int rc = datadir_sync(&s->dir, error); /* the log is a new entry too */
    if (!rc) rc = datadir_mark_open(&s->dir, s->epoch, error);
    if (!rc) s->said_epoch = s->epoch;
    return rc;
}

/* The epoch was raised since the start.  If the log cannot be emptied, the commit holds all the same, and
 * the next commit tries again. */
static void take_epoch(store_t *s, const record_t *records, int count)
{
    heddle_error_t why;
    for (int i = 0; i < count; i++)
        if (records[i].kind == RECORD_EPOCH && records[i].epoch > s->epoch) s->epoch = records[i].epoch;
    if (s->epoch == s->said_epoch) return;
    int rc = begin_log(s, &why);
    if (rc && !s->has_complained) log_emit(LOG_ERROR, "registry.log", "%s: %s", why.message, why.found);
    s->has_complained = rc;
}

/* All records or none.  A failure after COMMIT leaves unknown what is on disk: store_code says so, and the
 * broker ends. */
int store_commit(store_t *s, const record_t *records, int count, heddle_error_t *error)
{
    owner_check(&s->owner);
    if (count == 0) return HEDDLE_OK;
    int moved = store_files_in_place(&s->files, error);
    if (moved) return moved;
    int code = run(s, SQL_BEGIN);
    for (int i = 0; i < count && !code; i++) code = put(s, &records[i]);
    if (!code && FAILPOINT("store.before_commit")) code = SQLITE_FULL;
    if (!code) code = run(s, SQL_COMMIT);
    if (!code && FAILPOINT("store.after_commit")) code = SQLITE_IOERR_FSYNC;
    char what[48];
    snprintf(what, sizeof what, "write %d record%s", count, count == 1 ? "" : "s");
    int rc = code ? refuse(s, code, what, error) : HEDDLE_OK;
    if (!sqlite3_get_autocommit(s->db))
        run(s, SQL_ROLLBACK);    /* some failures have rolled back by themselves */
    store_files_note(&s->files); /* SQLite has put the log into the registry, now and then */
    if (!rc) take_epoch(s, records, count);
    return rc;
}

int store_rename(store_t *s, const char *cluster, heddle_error_t *error)
{
    owner_check(&s->owner);
    store_row_t row = {.sql = s->sql[PUT_CLUSTER]};
    row_put_text(&row, cluster);
    if (!row.code) row.code = run(s, PUT_CLUSTER);
    sqlite3_clear_bindings(row.sql);
    store_files_note(&s->files);
    if (row.code) return refuse(s, row.code, "write its cluster", error);
    snprintf(s->cluster, sizeof s->cluster, "%s", cluster);
    return HEDDLE_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* One number of "PRAGMA name" or of a query with one cell. */
static int ask_number(store_t *s, const char *query, int64_t *ret_value)
{
    sqlite3_stmt *sql = NULL;
    int code = sqlite3_prepare_v2(s->db, query, -1, &sql, NULL);
    if (!code) code = sqlite3_step(sql);
    if (code == SQLITE_ROW) *ret_value = sqlite3_column_int64(sql, 0);
    sqlite3_finalize(sql);
    return code == SQLITE_ROW ? SQLITE_OK : code ? code : SQLITE_ERROR;
}

static int open_database(store_t *s, heddle_error_t *error)
{
    /* The file is made here and not by SQLite, so that only its owner may read it, whatever the umask is.
     * SQLite gives -wal the same mode. */
    int fd = open(s->files.main, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return datadir_refuse(s->files.main, "open it for writing", errno, error);
    close(fd);
    int rc = datadir_sync(&s->dir, error);
    if (rc) return rc;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
    int code = sqlite3_open_v2(s->files.main, &s->db, flags, NULL);
    if (code) return refuse(s, code, "open it", error);
    /* Exclusive: we have the directory's lock anyway, and WAL then needs no shared memory in a file. */
    code =
        sqlite3_exec(s->db,
                     "PRAGMA locking_mode = EXCLUSIVE; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
                     "PRAGMA cell_size_check = ON; PRAGMA cache_size = -256",
                     NULL, NULL, NULL);
    return code ? refuse(s, code, "set it up", error) : HEDDLE_OK;
}

/* Checks the file before anything is written, so that a file of another program or of a newer Heddle stays
 * as it is.  *ret_fresh: the file is empty. */
static int check_schema(store_t *s, bool *ret_fresh, heddle_error_t *error)
{
    int64_t tables = 0, application = 0, schema = 0, sound = 0;
    int code = ask_number(s, "SELECT count(*) FROM sqlite_schema", &tables);
    if (!code) code = ask_number(s, "PRAGMA application_id", &application);
    if (!code) code = ask_number(s, "PRAGMA user_version", &schema);
    if (code) return refuse(s, code, "read it", error);
    *ret_fresh = tables == 0 && application == 0 && schema == 0;
    if (*ret_fresh) return HEDDLE_OK;
    if (application != STORE_APPLICATION_ID || schema < 1) {
        int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s: is not a registry of Heddle", s->files.main);
        error_contrast(error, "a file that heddle-broker made", "a database of another program");
        error_hint(error, "choose another directory with --data; this one was left as it is");
        return rc;
    }
    if (schema > STORE_SCHEMA) {
        int rc = error_fail(error, HEDDLE_ERR_DATA_NEWER,
                            "%.300s: written by a newer Heddle: schema %lld, this one knows up to %d",
                            s->files.main, (long long)schema, STORE_SCHEMA);
        error_expected(error, "schema %d or lower", STORE_SCHEMA);
        error_found(error, "schema %lld", (long long)schema);
        error_hint(error, "run the Heddle that wrote it, or a newer one; the data were left as they are");
        return rc;
    }
    code = ask_number(s, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'", &sound);
    if (code || !sound) return refuse(s, code ? code : SQLITE_CORRUPT, "trust it", error);
    return HEDDLE_OK;
}

/* Checks the epoch before anything is written: a registry that is refused stays as it was, with its log. */
static int check_epoch(store_t *s, bool fresh, heddle_error_t *error)
{
    int64_t epoch = 0;
    int code = fresh ? SQLITE_OK : ask_number(s, "SELECT epoch FROM meta", &epoch);
    if (code == SQLITE_DONE) code = SQLITE_CORRUPT; /* no row */
    if (code) return refuse(s, code, "read its epoch", error);
    s->epoch = s->said_epoch = (uint64_t)epoch + 1; /* which it is, when the start is over */
    if (s->epoch > EPOCH_MAX) {
        int rc = error_fail(error, HEDDLE_ERR_DATA_DIR,
                            "%.300s: its epochs are used up: no token could be new", s->files.main);
        error_expected(error, "an epoch up to %u", EPOCH_MAX);
        error_found(error, "%llu", (unsigned long long)s->epoch);
        error_hint(error,
                   "begin a new cluster with another --data; workers and publishers are to be started again");
        return rc;
    }
    if (s->epoch > s->dir.open_epoch) return HEDDLE_OK;
    /* The files are older than the run that was killed here, at least in part.  Their epoch would be used
     * twice, so tokens of that run would be valid again. */
    int rc =
        error_fail(error, HEDDLE_ERR_DATA_DIR,
                   "%.300s is older than the broker that ran here last, which was killed", s->files.main);
    error_expected(error, "epoch %llu or later", (unsigned long long)s->dir.open_epoch);
    error_found(error, "epoch %llu", (unsigned long long)s->epoch - 1);
    error_hint(error,
               "put the file back that was here, or restore a backup into an empty directory "
               "(docs/operations.md, Backup and restore); to go on with what is there, put registry.db-wal "
               "aside and remove %.150s/lock",
               s->dir.path);
    return rc;
}

/* Each start takes the next epoch.  So no token of an earlier run can be valid in this one. */
static int raise_epoch(store_t *s, heddle_error_t *error)
{
    /* Statements are prepared once, and only now that their tables are there: a commit then only binds and
     * steps. */
    for (int i = 0; i < SQL_COUNT; i++) {
        int bad = sqlite3_prepare_v3(s->db, SQL[i], -1, SQLITE_PREPARE_PERSISTENT, &s->sql[i], NULL);
        if (bad) return refuse(s, bad, "prepare its statements", error);
    }
    store_files_note(&s->files);
    store_row_t row = {.sql = s->sql[ALL_META]};
    int code = sqlite3_step(row.sql);
    if (code == SQLITE_ROW) {
        s->epoch = row_take_u64(&row) + 1;
        snprintf(s->cluster, sizeof s->cluster, "%s", row_take_text(&row));
    }
    sqlite3_reset(row.sql);
    if (code != SQLITE_ROW || row.code)
        return refuse(s, row.code ? row.code : SQLITE_CORRUPT, "read its epoch", error);
    return store_commit(s, &(record_t){.kind = RECORD_EPOCH, .epoch = s->epoch}, 1, error);
}

/* Brings an older schema up to date, all of it or nothing: a transaction that is left open ends with the
 * connection. */
static int make_schema(store_t *s, bool fresh, heddle_error_t *error)
{
    int64_t has_asked = 0, has_scope = 0, has_loss = 0, has_staged = 0, has_payload = 0;
    int64_t lacks_uses = 0, lacks_entered = 0;
    int code = sqlite3_exec(
        s->db, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 4194304",
        NULL, NULL, NULL);
    if (!code && fresh) code = sqlite3_exec(s->db, SCHEMA, NULL, NULL, NULL);
    if (!code) code = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (!code)
        code = ask_number(s, "SELECT count(*) FROM pragma_table_info('versions') WHERE name = 'asked_ms'",
                          &has_asked);
    if (!code)
        code = ask_number(s, "SELECT count(*) FROM pragma_table_info('decisions') WHERE name = 'scope'",
                          &has_scope);
    if (!code)
        code = ask_number(s, "SELECT count(*) FROM pragma_table_info('versions') WHERE name = 'lost_at'",
                          &has_loss);
    if (!code)
        code = ask_number(s, "SELECT count(*) FROM pragma_table_info('versions') WHERE name = 'staged_at'",
                          &has_staged);
    if (!code)
        code =
            ask_number(s, "SELECT count(*) FROM pragma_table_info('versions') WHERE name = 'payload_bytes'",
                       &has_payload);
    if (!code) /* no row: there is no table yet */
        code = ask_number(s,
                          "SELECT count(*) = 1 FROM pragma_table_info('keys') WHERE name IN ('public_key', "
                          "'uses')",
                          &lacks_uses);
    if (!code)
        code = ask_number(s,
                          "SELECT count(*) = 1 FROM pragma_table_info('keys') WHERE name IN ('public_key', "
                          "'entered_by')",
                          &lacks_entered);
    if (!code && lacks_entered) code = sqlite3_exec(s->db, ENTERED, NULL, NULL, NULL);
    if (!code && lacks_uses) code = sqlite3_exec(s->db, INVITING, NULL, NULL, NULL);
    if (!code && !has_payload) code = sqlite3_exec(s->db, RENAMED, NULL, NULL, NULL);
    if (!code && !has_staged) code = sqlite3_exec(s->db, STAGEABLE, NULL, NULL, NULL);
    if (!code && !has_loss) code = sqlite3_exec(s->db, LOSABLE, NULL, NULL, NULL);
    if (!code && !has_asked) code = sqlite3_exec(s->db, ASKED, NULL, NULL, NULL);
    if (!code && !has_scope) code = sqlite3_exec(s->db, SCOPED, NULL, NULL, NULL);
    if (!code) code = sqlite3_exec(s->db, LATER, NULL, NULL, NULL);
    return code ? refuse(s, code, fresh ? "make its tables" : "open its log", error) : HEDDLE_OK;
}

/* SQLite accepts a setting that it cannot do, without an error.  So each one is read back. */
static int check_setting(store_t *s, const char *name, const char *wanted, heddle_error_t *error)
{
    char query[64];
    sqlite3_stmt *sql = NULL;
    snprintf(query, sizeof query, "PRAGMA %s", name);
    int code = sqlite3_prepare_v2(s->db, query, -1, &sql, NULL);
    if (!code) code = sqlite3_step(sql);
    const char *found = code == SQLITE_ROW ? (const char *)sqlite3_column_text(sql, 0) : NULL;
    int rc = HEDDLE_OK;
    if (!found) {
        rc = refuse(s, code == SQLITE_ROW ? SQLITE_NOMEM : code, "read its settings", error);
    } else if (strcmp(found, wanted) != 0) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s: cannot be kept safe: %s is %.20s", s->files.main,
                        name, found);
        error_contrast(error, wanted, found);
        error_hint(error, "choose a --data on a local file system");
    }
    sqlite3_finalize(sql);
    return rc;
}

/* Each step needs those before it.  The first that fails ends the start, and store_close accepts a store
 * that is half open. */
static int open_at(const char *dir, bool may_be_moved, store_t **ret_store, heddle_error_t *error)
{
    store_t *s = calloc(1, sizeof *s);
    if (!s) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "%.300s: no memory to open it", dir);
    owner_check(&s->owner);
    bool fresh = false;
    int rc = datadir_open(dir, &s->dir, error);
    if (!rc && !may_be_moved) rc = datadir_check_moved(&s->dir, error);
    if (!rc) rc = store_files_init(&s->files, &s->dir, error);
    if (!rc) rc = store_files_check(&s->files, &s->dir, error);
    if (!rc) rc = open_database(s, error);
    if (!rc) rc = check_schema(s, &fresh, error);
    if (!rc) rc = check_epoch(s, fresh, error);
    if (!rc) rc = datadir_mark_begun(&s->dir, error);
    if (!rc) rc = make_schema(s, fresh, error);
    if (!rc) rc = check_setting(s, "journal_mode", "wal", error); /* a commit is durable only with these */
    if (!rc) rc = check_setting(s, "synchronous", "2", error);    /* FULL */
    if (!rc) rc = check_setting(s, "foreign_keys", "1", error);
    if (!rc) rc = raise_epoch(s, error);
    if (!rc) rc = begin_log(s, error);
    s->is_ready = !rc;
    if (rc) store_close(&s);
    else *ret_store = s;
    return rc;
}

int store_open(const char *dir, store_t **ret_store, heddle_error_t *error)
{
    return open_at(dir, false, ret_store, error);
}

int store_open_moved(const char *dir, store_t **ret_store, heddle_error_t *error)
{
    return open_at(dir, true, ret_store, error);
}

int store_key_count(store_t *s, uint64_t *ret_count, heddle_error_t *error)
{
    owner_check(&s->owner);
    int64_t count = 0;
    int code = ask_number(s, "SELECT count(*) FROM keys WHERE revoked_at = 0", &count);
    if (code) return refuse(s, code, "count its keys", error);
    *ret_count = (uint64_t)count;
    return HEDDLE_OK;
}

/* The lock says "closed" before SQLite removes the log: a start that finds no log then knows that none is
 * missing.  A log that could not be emptied, or that is not ours any more, is left as it is. */
static void end_log(store_t *s)
{
    heddle_error_t why;
    if (s->is_ready && store_files_in_place(&s->files, &why)) /* before our own last write */
        log_emit(LOG_ERROR, "registry.foreign", "%s; %s", why.message, why.hint);
    bool is_ours = s->is_ready && store_files_own_main(&s->files), is_whole = is_ours && !empty_log(s);
    if (is_ours) store_files_note(&s->files);
    if (is_whole) { /* SQLite syncs what it writes to the log, and not that it emptied it */
        sqlite3_file *log = NULL;
        int code = sqlite3_file_control(s->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
        if (!code && log && log->pMethods) code = log->pMethods->xSync(log, SQLITE_SYNC_NORMAL);
        is_whole = code == SQLITE_OK;
    }
    if (is_whole) is_whole = datadir_mark_closed(&s->dir, NULL) == HEDDLE_OK;
    /* A log that could not be emptied is put aside.  If that fails too, log and registry still lie side by
     * side, and the lock says so to the next start. */
    int number = store_files_part(&s->files, s->said_epoch);
    if (number) {
        log_emit(LOG_ERROR, "registry.foreign", "%s: cannot put it aside: %s", s->files.log,
                 strerror(number));
        if (datadir_mark_unparted(&s->dir, !is_whole, s->said_epoch, &why))
            log_emit(LOG_ERROR, "registry.foreign", "%s; rename the log before the next start", why.message);
    }
    if (!is_whole || number) sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
}

void store_close(store_t **store)
{
    store_t *s = *store;
    if (!s) return;
    *store = NULL;
    owner_check(&s->owner);
    for (int i = 0; i < SQL_COUNT; i++) sqlite3_finalize(s->sql[i]);
    if (s->db) end_log(s);
    sqlite3_close(s->db);
    datadir_close(&s->dir);
    store_files_fini(&s->files);
    free(s);
}

/* ---- what it is ------------------------------------------------------------------------------ */

int store_mark_moved(const store_t *s, heddle_error_t *error) { return datadir_mark_moved(&s->dir, error); }
const char *store_dir(const store_t *s) { return s->dir.path; }
const char *store_cluster(const store_t *s) { return s->cluster; }
uint64_t store_epoch(const store_t *s) { return s->epoch; }

uint64_t store_bytes(const store_t *s)
{
    static const char *const FILES[] = {"registry.db", "registry.db-wal"};
    uint64_t bytes = 0;
    struct stat st;
    for (int i = 0; i < 2; i++)
        if (fstatat(s->dir.fd, FILES[i], &st, 0) == 0) bytes += (uint64_t)st.st_size;
    return bytes;
}
