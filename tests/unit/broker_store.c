/* SPDX-License-Identifier: Apache-2.0 */
/* The registry on disk: what is committed comes back, what failed never happened, what is not ours is left alone. */
#include "broker/datadir.h"
#include "broker/registry/decision.h"
#include "broker/registry/registry.h"
#include "broker/store/store.h"
#include "core/limits.h"
#include "tests/lib/record_sample.h"
#include "tests/lib/registry_equal.h"
#include "tests/lib/temp_dir.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(store, .init = make_dir, .fini = remove_dir);

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static store_t *open_store(void)
{
    store_t *s = NULL;
    heddle_error_t e;
    cr_assert_eq(store_open(dir, &s, &e), HEDDLE_OK, "%s", e.message);
    return s;
}

/* What a load gave, as copies. */
typedef struct {
    record_t r;
    char adapter[32], text[8][64];
    uint8_t config[64];
} seen_t;
typedef struct {
    seen_t rows[64];
    int count, stop_after;
} seen_all_t;

static const char *copy(seen_t *s, int i, const char *text)
{
    snprintf(s->text[i], sizeof s->text[i], "%s", text ? text : "(null)");
    return s->text[i];
}

static int remember(void *self, const record_t *r)
{
    seen_all_t *all = self;
    cr_assert_lt(all->count, 64);
    seen_t *s = &all->rows[all->count++];
    s->r = *r;
    snprintf(s->adapter, sizeof s->adapter, "%s", r->adapter ? r->adapter : "");
    s->r.adapter = s->adapter;
    const char **texts[] = {&s->r.request_id, &s->r.writer,  &s->r.base_model, &s->r.features,
                            &s->r.meta,       &s->r.message, &s->r.by,         &s->r.host};
    for (int i = 0; i < 8; i++) *texts[i] = copy(s, i, *texts[i]);
    cr_assert_leq(r->config.bytes, sizeof s->config);
    if (r->config.bytes) memcpy(s->config, r->config.data, r->config.bytes);
    return all->stop_after && all->count == all->stop_after ? HEDDLE_ERR_NO_MEMORY : HEDDLE_OK;
}

static seen_all_t *load(store_t *s)
{
    static seen_all_t all;
    memset(&all, 0, sizeof all);
    heddle_error_t e;
    cr_assert_eq(store_load(s, remember, &all, &e), HEDDLE_OK, "%s", e.message);
    return &all;
}

static void commit(store_t *s, const record_t *records, int count)
{
    heddle_error_t e;
    cr_assert_eq(store_commit(s, records, count, &e), HEDDLE_OK, "%s", e.message);
}

Test(store, a_new_directory_is_private)
{
    snprintf(dir + strlen(dir), 8, "/a/b");
    umask(0);
    store_t *s = open_store();
    struct stat st;
    cr_assert_eq(stat(dir, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700);
    const char *files[] = {"registry.db", "registry.db-wal", "lock"};
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(stat(path_of(files[i]), &st), 0, "%s", files[i]);
        cr_assert_eq(st.st_mode & 0777, 0600, "%s %o", files[i], st.st_mode);
    }
    cr_assert_str_eq(store_dir(s), dir);
    cr_assert_gt(store_bytes(s), 4096);
    store_close(&s);
    cr_assert_null(s);
    dir[strlen(dir) - 4] = 0;
}

Test(store, epoch_rises_and_cluster_stays)
{
    char cluster[64] = "";
    for (uint64_t epoch = 1; epoch <= 3; epoch++) {
        store_t *s = open_store();
        cr_assert_eq(store_epoch(s), epoch);
        cr_assert_eq(strlen(store_cluster(s)), 16);
        cr_assert_eq(strspn(store_cluster(s), "0123456789abcdef"), 16);
        if (epoch > 1) cr_assert_str_eq(store_cluster(s), cluster);
        snprintf(cluster, sizeof cluster, "%s", store_cluster(s));
        seen_all_t *all = load(s);
        cr_assert(all->count == 1 && all->rows[0].r.kind == RECORD_EPOCH && all->rows[0].r.epoch == epoch);
        store_close(&s);
    }
}

Test(store, every_field_comes_back)
{
    record_t in[] = {adapter_record("policy"),
                     version_record("policy", 1),
                     decision_record("policy", 1, 1),
                     {.kind = RECORD_STATE,
                      .adapter = "policy",
                      .version = 1,
                      .state = VERSION_FAILED,
                      .code = HEDDLE_ERR_DEADLINE,
                      .message = "w2 missing",
                      .worker = "w2",
                      .phase = "fetch",
                      .at_ms = 77},
                     {.kind = RECORD_WRITER,
                      .adapter = "policy",
                      .token = UINT64_MAX - 5,
                      .pid = 4711,
                      .host = "gpu-1",
                      .writer = "trainer-0",
                      .life = {{1, 2, 3}},
                      .at_ms = 99}};
    store_t *s = open_store();
    commit(s, in, 5);
    store_close(&s);
    s = open_store();
    seen_all_t *all = load(s);
    cr_assert_eq(all->count, 6);
    cr_assert(all->rows[1].r.kind == RECORD_ADAPTER && !strcmp(all->rows[1].adapter, "policy") &&
              all->rows[1].r.at_ms == 1000);
    const record_t *v = &all->rows[2].r, *w = &in[1];
    cr_assert(v->kind == RECORD_VERSION && v->version == 1 && v->at_ms == w->at_ms &&
              !strcmp(v->adapter, "policy"));
    cr_assert(digest_equal(&v->digest, &w->digest) &&
              digest_equal(&v->parts.part[0].manifest_digest, &w->parts.part[0].manifest_digest));
    cr_assert(v->parts.count == w->parts.count &&
              v->parts.part[0].payload_bytes == w->parts.part[0].payload_bytes &&
              v->parts.part[0].manifest_bytes == w->parts.part[0].manifest_bytes);
    cr_assert_eq(memcmp(&v->share_key, &w->share_key, 16), 0);
    cr_assert(!strcmp(v->request_id, w->request_id) && !strcmp(v->writer, w->writer) &&
              !strcmp(v->base_model, w->base_model));
    cr_assert(!strcmp(v->features, w->features) && !strcmp(v->meta, w->meta));
    cr_assert(v->step == -1 && v->data_bytes == 17596416 && v->tensor_count == 336 && v->chunk_count == 269);
    cr_assert(v->activation == 2 && v->deadline_ms == 60000 && v->asked_ms == 61000 &&
              v->config.bytes == w->config.bytes);
    cr_assert_eq(memcmp(all->rows[2].config, w->config.data, w->config.bytes), 0);
    const record_t *d = &all->rows[3].r;
    cr_assert(d->kind == RECORD_DECISION && d->decision == 1 && d->version == 1 && !d->held &&
              !strcmp(d->by, "ann@host") && d->at_ms == 1700000000500);
    const record_t *t = &all->rows[4].r;
    cr_assert(t->kind == RECORD_STATE && t->version == 1 && t->state == VERSION_FAILED &&
              t->code == HEDDLE_ERR_DEADLINE);
    cr_assert(!strcmp(t->message, "w2 missing") && t->at_ms == 77 && !strcmp(t->adapter, "policy"));
    const record_t *x = &all->rows[5].r;
    cr_assert(x->kind == RECORD_WRITER && x->token == UINT64_MAX - 5 && x->pid == 4711 &&
              !strcmp(x->host, "gpu-1") && x->at_ms == 99);
    cr_assert(!strcmp(x->writer, "trainer-0") && x->life.b[2] == 3);
    store_close(&s);
}

Test(store, a_config_can_be_read_alone)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    buf_t out = {0};
    buf_add_text(&out, ">");
    cr_assert_eq(store_config(s, "policy", 1, &out, NULL), HEDDLE_OK);
    cr_assert_str_eq(buf_text(&out), ">{\"r\":16}");
    cr_assert_eq(store_config(s, "policy", 2, &out, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(out.bytes, 11, "and what is behind its NUL");
    buf_fini(&out);
    store_close(&s);
}

Test(store, load_goes_by_kind_then_adapter_then_number)
{
    record_t in[] = {adapter_record("b"),        adapter_record("a"),        version_record("b", 1),
                     version_record("a", 2),     version_record("a", 10),    version_record("a", 1),
                     decision_record("a", 2, 1), decision_record("b", 1, 1), decision_record("a", 10, 2),
                     decision_record("a", 1, 2)};
    static const char *const WANT[] = {"1  0",  "2 a 0", "2 b 0", "3 a 1",  "3 a 2", "3 a 10",
                                       "3 b 1", "4 a 1", "4 a 2", "4 a 10", "4 b 1"};
    store_t *s = open_store();
    commit(s, in, 10);
    seen_all_t *all = load(s);
    cr_assert_eq(all->count, 11);
    for (int i = 0; i < 11; i++) {
        char line[64];
        const record_t *r = &all->rows[i].r;
        snprintf(line, sizeof line, "%d %s %llu", r->kind, r->adapter,
                 (unsigned long long)(r->kind == RECORD_DECISION ? r->decision : r->version));
        cr_assert_str_eq(line, WANT[i]);
    }
    cr_assert(all->rows[8].r.held && !all->rows[9].r.held);
    store_close(&s);
}

Test(store, load_ends_with_the_callers_error)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("a"), adapter_record("b")}, 2);
    seen_all_t all = {.stop_after = 2};
    cr_assert_eq(store_load(s, remember, &all, NULL), HEDDLE_ERR_NO_MEMORY);
    cr_assert_eq(all.count, 2);
    cr_assert_eq(load(s)->count, 3);
    store_close(&s);
}

Test(store, a_turn_is_whole_or_never_happened)
{
    store_t *s = open_store();
    heddle_error_t e;
    record_t twice[] = {adapter_record("policy"), version_record("policy", 1), version_record("policy", 1)};
    cr_assert_eq(store_commit(s, twice, 3, &e), HEDDLE_ERR_INTERNAL);
    cr_assert(strstr(e.message, "3 records"), "%s", e.message);
    cr_assert_eq(load(s)->count, 1);
    commit(s, twice, 2);
    cr_assert_eq(load(s)->count, 3);
    cr_assert_eq(store_commit(s, twice, 0, &e), HEDDLE_OK);
    store_close(&s);
}

Test(store, records_must_fit_what_is_stored)
{
    store_t *s = open_store();
    commit(
        s,
        (record_t[]){adapter_record("policy"), version_record("policy", 1), decision_record("policy", 1, 1)},
        3);
    record_t wrong[] = {version_record("policy", 1),
                        version_record("critic", 1),
                        decision_record("policy", 2, 7),
                        decision_record("policy", 1, 1),
                        adapter_record("policy"),
                        {.kind = RECORD_STATE, .adapter = "policy", .version = 9, .state = VERSION_FAILED},
                        {.kind = 99, .adapter = "policy"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(store_commit(s, &wrong[i], 1, NULL), HEDDLE_ERR_INTERNAL, "row %zu", i);
        cr_assert_eq(load(s)->count, 4, "row %zu", i);
    }
    store_close(&s);
}

static int64_t count_rows(const char *table)
{
    sqlite3 *db;
    sqlite3_stmt *sql;
    char query[64];
    snprintf(query, sizeof query, "SELECT count(*) FROM %s", table);
    cr_assert_eq(sqlite3_open_v2(path_of("registry.db"), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    cr_assert_eq(sqlite3_prepare_v2(db, query, -1, &sql, NULL), SQLITE_OK);
    cr_assert_eq(sqlite3_step(sql), SQLITE_ROW);
    int64_t count = sqlite3_column_int64(sql, 0);
    sqlite3_finalize(sql);
    sqlite3_close(db);
    return count;
}

static int take_in(void *self, const record_t *r) { return registry_apply(self, r); }

/* The records of a turn happen, on disk and in memory. */
static void happen(store_t *s, registry_t *r, outbox_t *out)
{
    commit(s, out->records, out->record_count);
    for (int i = 0; i < out->record_count; i++) cr_assert_eq(registry_apply(r, &out->records[i]), HEDDLE_OK);
    outbox_clear(out);
}

enum { AT_ONCE = 20, VERSIONS = 54 * AT_ONCE };

/* The first of each AT_ONCE versions is decided, and puts the one before away; the others never are. */
static void live_through(store_t *s, registry_t *r)
{
    outbox_t out = {0};
    instant_t now = {.wall_ms = 1700000000000};
    *outbox_record(&out, RECORD_ADAPTER, "policy", now) = adapter_record("policy");
    happen(s, r, &out);
    const adapter_row_t *a = registry_adapter(r, "policy");
    for (uint64_t first = 1; first <= VERSIONS; first += AT_ONCE) {
        const version_row_t *before = registry_active(a);
        for (uint64_t v = first; v < first + AT_ONCE; v++)
            *outbox_record(&out, RECORD_VERSION, "policy", now) = version_record("policy", v);
        happen(s, r, &out);
        decision_by_rule(a, registry_version(a, first), SCOPE_EVERYONE, now, &out);
        happen(s, r, &out);
        for (uint64_t v = first + 1; v < first + AT_ONCE; v++)
            decision_end_version(a, registry_version(a, v), VERSION_SUPERSEDED, NULL, now, &out);
        if (before) decision_end_version(a, before, VERSION_RETIRED, NULL, now, &out);
        happen(s, r, &out);
    }
    outbox_fini(&out);
}

Test(store, history_is_bounded_and_no_number_comes_again)
{
    registry_t before, after;
    registry_init(&before);
    registry_init(&after);
    store_t *s = open_store();
    cr_assert_eq(store_load(s, take_in, &before, NULL), HEDDLE_OK);
    live_through(s, &before);
    cr_assert_eq(store_load(s, take_in, &after, NULL), HEDDLE_OK);
    cr_assert(registry_equal(&before, &after));
    store_close(&s);
    uint64_t forgotten = VERSIONS - 1 - LIMIT_HISTORY; /* one is live */
    cr_assert_eq(count_rows("versions"), LIMIT_HISTORY + 1);
    cr_assert_eq(count_rows("decisions"), VERSIONS / AT_ONCE - (forgotten / AT_ONCE + 1));
    const adapter_row_t *a = registry_adapter(&after, "policy");
    cr_assert_eq(a->last_version, VERSIONS);
    cr_assert_eq(a->decision, VERSIONS / AT_ONCE);
    cr_assert_null(registry_version(a, forgotten));
    cr_assert_not_null(registry_version(a, forgotten + 1));
    registry_fini(&before);
    registry_fini(&after);
}

/* Back and forth between two versions, by hand: the first and the latest decision for each count. */
Test(store, a_version_has_its_first_and_its_latest_decision)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("a"), version_record("a", 1), version_record("a", 2)}, 3);
    for (uint64_t d = 1; d <= 101; d++) {
        record_t r = decision_record("a", d, 1 + d % 2);
        commit(s, &r, 1);
    }
    seen_all_t *all = load(s);
    static const uint64_t LEFT[] = {1, 2, 100, 101};
    cr_assert_eq(all->count, 8);
    for (size_t i = 0; i < 4; i++) cr_assert_eq(all->rows[4 + i].r.decision, LEFT[i]);
    store_close(&s);
}

Test(store, what_must_stay_is_not_forgotten)
{
    store_t *s = open_store();
    record_t ended = {.kind = RECORD_STATE, .adapter = "a", .state = VERSION_RETIRED, .version = 1};
    commit(s,
           (record_t[]){adapter_record("a"), version_record("a", 1), version_record("a", 2),
                        decision_record("a", 1, 1)},
           4);
    record_t forget = {.kind = RECORD_FORGET, .adapter = "a", .version = 1};
    cr_assert_eq(store_commit(s, &forget, 1, NULL), HEDDLE_ERR_INTERNAL, "it has not ended");
    commit(s, &ended, 1);
    cr_assert_eq(store_commit(s, &forget, 1, NULL), HEDDLE_ERR_INTERNAL, "the last decision names it");
    ended.version = forget.version = 2;
    commit(s, &ended, 1);
    cr_assert_eq(store_commit(s, &forget, 1, NULL), HEDDLE_ERR_INTERNAL, "the greatest number");
    record_t later[] = {version_record("a", 3), decision_record("a", 2, 3)};
    commit(s, later, 2);
    commit(s, &forget, 1);
    forget.version = 1;
    commit(s, &forget, 1);
    cr_assert_eq(store_commit(s, &forget, 1, NULL), HEDDLE_ERR_INTERNAL, "it is gone");
    cr_assert_eq(load(s)->count, 4);
    store_close(&s);
}

Test(store, a_floor_only_rises)
{
    store_t *s = open_store();
    commit(s,
           (record_t[]){adapter_record("a"),
                        {.kind = RECORD_FLOOR, .adapter = "a", .version = 7, .decision = 3}},
           2);
    commit(s, &(record_t){.kind = RECORD_FLOOR, .adapter = "a", .version = 5, .decision = 9}, 1);
    store_close(&s);
    s = open_store();
    const record_t *r = &load(s)->rows[2].r;
    cr_assert(r->kind == RECORD_FLOOR && r->version == 7 && r->decision == 9);
    store_close(&s);
}

Test(store, a_closed_writer_is_gone)
{
    store_t *s = open_store();
    record_t w = {.kind = RECORD_WRITER, .adapter = "policy", .token = 5, .host = "h", .writer = "t"};
    commit(s, &w, 1);
    w.token = 6;
    commit(s, &w, 1);
    seen_all_t *all = load(s);
    cr_assert(all->count == 2 && all->rows[1].r.token == 6);
    w.token = 0;
    commit(s, &w, 1);
    cr_assert_eq(load(s)->count, 1);
    store_close(&s);
}

Test(store, a_file_put_aside_is_not_written_to)
{
    store_t *s = open_store();
    record_t w = {.kind = RECORD_WRITER, .adapter = "policy", .token = 5, .host = "h", .writer = "t"};
    heddle_error_t e = {0};
    char from[128], to[160];
    commit(s, &w, 1);
    snprintf(from, sizeof from, "%s", path_of("registry.db"));
    snprintf(to, sizeof to, "%s.aside", from);
    cr_assert_eq(rename(from, to), 0);
    w.token = 6;
    cr_assert_eq(store_commit(s, &w, 1, &e), HEDDLE_ERR_DATA_DIR);
    cr_assert(e.expected[0] && e.found[0] && e.hint[0]);
    cr_assert_eq(rename(to, from), 0);
    cr_assert_eq(store_commit(s, &w, 1, &e), HEDDLE_OK);
    store_close(&s);
}

Test(store, one_broker_a_directory)
{
    store_t *s = open_store(), *second = NULL;
    heddle_error_t e;
    cr_assert_eq(store_open(dir, &second, &e), HEDDLE_ERR_DATA_LOCKED);
    char pid[32];
    snprintf(pid, sizeof pid, "pid %d", getpid());
    cr_assert(strstr(e.message, pid) && strstr(e.message, dir) && e.expected[0] && strstr(e.found, pid) &&
                  e.hint[0],
              "%s", e.message);
    cr_assert_null(second);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_epoch(s), 2);
    store_close(&s);
}

/* ---- what SQLite asks of the system ---- */

/* The system's own VFS, looked over the shoulder: what is written to the log and not yet synced, and a pragma
 * that has another answer than was asked for. */
static struct {
    sqlite3_vfs own;
    const sqlite3_vfs *below;
    const sqlite3_io_methods *database_below, *log_below;
    sqlite3_io_methods database, log;
    bool is_unsynced, is_cut_unsynced;
    int syncs;
    const char *pragma, *answer;
} system_below;

static int write_log(sqlite3_file *f, const void *data, int bytes, sqlite3_int64 at)
{
    system_below.is_unsynced = true;
    return system_below.log_below->xWrite(f, data, bytes, at);
}

static bool is_closed(void)
{
    char words[64] = "", path[sizeof dir + 8];
    snprintf(path, sizeof path, "%s/lock", dir);
    FILE *f = fopen(path, "re");
    bool found = f && fgets(words, sizeof words, f) && strstr(words, "closed");
    if (f) fclose(f);
    return found;
}

static int sync_log(sqlite3_file *f, int flags)
{
    cr_assert_not(is_closed() && system_below.is_cut_unsynced, "said before it was on disk");
    int code = system_below.log_below->xSync(f, flags);
    if (code) return code;
    system_below.is_unsynced = system_below.is_cut_unsynced = false;
    system_below.syncs++;
    return code;
}

static int truncate_log(sqlite3_file *f, sqlite3_int64 bytes)
{
    system_below.is_cut_unsynced = true;
    return system_below.log_below->xTruncate(f, bytes);
}

static int control_database(sqlite3_file *f, int op, void *arg)
{
    char **words = arg; /* of a pragma: the answer, its name, a value to set */
    if (op != SQLITE_FCNTL_PRAGMA || !system_below.pragma || words[2] ||
        strcmp(words[1], system_below.pragma))
        return system_below.database_below->xFileControl(f, op, arg);
    words[0] = sqlite3_mprintf("%s", system_below.answer);
    return SQLITE_OK;
}

static int open_below(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *f, int flags, int *ret_flags)
{
    int code = system_below.below->xOpen(vfs, name, f, flags, ret_flags);
    if (code) return code;
    if (flags & SQLITE_OPEN_WAL) {
        system_below.log = *(system_below.log_below = f->pMethods);
        system_below.log.xWrite = write_log;
        system_below.log.xSync = sync_log;
        system_below.log.xTruncate = truncate_log;
        f->pMethods = &system_below.log;
    } else if (flags & SQLITE_OPEN_MAIN_DB) {
        system_below.database = *(system_below.database_below = f->pMethods);
        system_below.database.xFileControl = control_database;
        f->pMethods = &system_below.database;
    }
    return SQLITE_OK;
}

/* Each test is a process of its own: nothing else sees it. */
static void look_below(void)
{
    cr_assert_eq(sqlite3_initialize(), SQLITE_OK);
    system_below.below = sqlite3_vfs_find(NULL);
    system_below.own = *system_below.below;
    system_below.own.zName = "looked-over";
    system_below.own.pNext = NULL;
    system_below.own.xOpen = open_below;
    cr_assert_eq(sqlite3_vfs_register(&system_below.own, 1), SQLITE_OK);
}

Test(store, what_is_committed_is_synced_before_it_is_said)
{
    look_below();
    store_t *s = open_store();
    cr_assert(system_below.syncs > 0 && !system_below.is_unsynced, "the epoch");
    record_t adapter = adapter_record("policy");
    commit(s, &adapter, 1);
    for (uint64_t v = 1; v <= 50; v++) {
        int before = system_below.syncs;
        record_t r = version_record("policy", v);
        commit(s, &r, 1);
        cr_assert_gt(system_below.syncs, before);
        cr_assert(!system_below.is_unsynced);
    }
    store_close(&s);
    cr_assert(!system_below.is_cut_unsynced, "a power cut would bring back a log of what was closed");
}

/* SQLite does not say so when it cannot do as it is told: it answers what holds instead. */
Test(store, a_system_that_does_not_keep_what_it_is_given)
{
    static const char *const OTHER[][3] = {{"journal_mode", "delete", "wal"},
                                           {"synchronous", "1", "2"},
                                           {"synchronous", "0", "2"},
                                           {"foreign_keys", "0", "1"}};
    look_below();
    for (size_t i = 0; i < sizeof OTHER / sizeof *OTHER; i++) {
        store_t *s = NULL;
        heddle_error_t e;
        system_below.pragma = OTHER[i][0];
        system_below.answer = OTHER[i][1];
        cr_assert_eq(store_open(dir, &s, &e), HEDDLE_ERR_DATA_DIR, "%s", OTHER[i][0]);
        cr_assert_null(s);
        cr_assert(strstr(e.message, OTHER[i][0]) && strstr(e.found, OTHER[i][1]) &&
                      strstr(e.expected, OTHER[i][2]) && e.hint[0],
                  "%s, expected %s, found %s", e.message, e.expected, e.found);
    }
    system_below.pragma = NULL;
    store_t *s = open_store();
    store_close(&s);
}

/* The child dies without closing, right after OK. */
Test(store, what_was_committed_survives_a_kill)
{
    pid_t child = fork();
    if (child == 0) {
        store_t *s = open_store();
        commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
        kill(getpid(), SIGKILL);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    store_t *s = open_store();
    cr_assert_eq(store_epoch(s), 2);
    cr_assert_eq(load(s)->count, 3);
    store_close(&s);
}

/* Opens, expects a refusal, and the file as it was. */
static void expect_refusal(int code, heddle_error_t *ret_error)
{
    char before[1 << 16], after[sizeof before];
    FILE *f = fopen(path_of("registry.db"), "rb");
    size_t n = fread(before, 1, sizeof before, f);
    fclose(f);
    store_t *s = NULL;
    cr_assert_eq(store_open(dir, &s, ret_error), code, "%s", ret_error->message);
    cr_assert_null(s);
    cr_assert(strstr(ret_error->message, dir) && ret_error->found[0] && ret_error->hint[0]);
    f = fopen(path_of("registry.db"), "rb");
    cr_assert_eq(fread(after, 1, sizeof after, f), n);
    fclose(f);
    cr_assert_eq(memcmp(before, after, n), 0, "the file was touched");
}

static void run_sql(const char *sql)
{
    sqlite3 *db;
    cr_assert_eq(sqlite3_open(path_of("registry.db"), &db), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

Test(store, epochs_that_are_used_up_are_refused)
{
    heddle_error_t e;
    store_t *s = open_store();
    store_close(&s);
    run_sql("UPDATE meta SET epoch = 4294967294");
    s = open_store();
    cr_assert_eq(store_epoch(s), EPOCH_MAX);
    store_close(&s);
    cr_assert_eq(store_open(dir, &s, &e), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(e.message, "used up") && strstr(e.found, "4294967296") && e.hint[0]);
}

/* However often a service manager tries. */
Test(store, one_that_was_moved_is_refused_as_it_is)
{
    heddle_error_t e;
    store_t *s = open_store();
    uint64_t epoch = store_epoch(s);
    cr_assert_eq(store_mark_moved(s, &e), HEDDLE_OK);
    store_close(&s);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(store_open(dir, &s, &e), HEDDLE_ERR_DATA_DIR);
        cr_assert(strstr(e.message, "was moved to another store") && strstr(e.hint, "/moved"), "%s", e.hint);
    }
    cr_assert_eq(store_open_moved(dir, &s, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(store_epoch(s), epoch + 1);
    store_close(&s);
}

Test(store, newer_data_are_refused_with_both_numbers)
{
    store_t *s = open_store();
    store_close(&s);
    run_sql("PRAGMA user_version = 1234");
    heddle_error_t e;
    expect_refusal(HEDDLE_ERR_DATA_NEWER, &e);
    cr_assert(strstr(e.message, "1234") && strstr(e.expected, "schema 9") && strstr(e.found, "1234"));
}

/* Before they are brought up to our schema. */
Test(store, data_without_their_epoch_are_left_as_they_were)
{
    store_t *s = open_store();
    store_close(&s);
    run_sql("ALTER TABLE versions DROP COLUMN asked_ms; PRAGMA user_version = 2; DELETE FROM meta");
    heddle_error_t e;
    expect_refusal(HEDDLE_ERR_DATA_DIR, &e);
    cr_assert(strstr(e.message, "epoch") && strstr(e.found, "malformed"), "%s, %s", e.message, e.found);
    struct stat log;
    cr_assert(stat(path_of("registry.db-wal"), &log) == 0 && log.st_size == 0);
}

Test(store, another_programs_database_is_refused)
{
    run_sql("CREATE TABLE t (x); INSERT INTO t VALUES (1)");
    heddle_error_t e;
    expect_refusal(HEDDLE_ERR_DATA_DIR, &e);
}

Test(store, a_file_that_is_no_database_is_refused)
{
    FILE *f = fopen(path_of("registry.db"), "wb");
    for (int i = 0; i < 3000; i++) fputs("not a database ", f);
    fclose(f);
    heddle_error_t e;
    expect_refusal(HEDDLE_ERR_DATA_DIR, &e);
    cr_assert(strstr(e.hint, "copy"));
}

static void overwrite(off_t at, const char *text)
{
    int fd = open(path_of("registry.db"), O_WRONLY);
    cr_assert_eq(pwrite(fd, text, strlen(text), at), (ssize_t)strlen(text));
    close(fd);
}

/* Every page after the first, one at a time, gets its header overwritten: refused at open or at load, nothing deleted. */
Test(store, a_damaged_page_is_found)
{
    store_t *s = open_store();
    commit(
        s,
        (record_t[]){adapter_record("policy"), version_record("policy", 1), decision_record("policy", 1, 1)},
        3);
    store_close(&s);
    struct stat st;
    cr_assert_eq(stat(path_of("registry.db"), &st), 0);
    char page[4096];
    for (off_t at = 4096; at < st.st_size; at += 4096) {
        int fd = open(path_of("registry.db"), O_RDWR);
        cr_assert_eq(pread(fd, page, sizeof page, at), (ssize_t)sizeof page);
        overwrite(at, "\xff\xff\xff\xff\xff\xff\xff\xff");
        heddle_error_t e;
        expect_refusal(HEDDLE_ERR_DATA_DIR, &e);
        cr_assert_eq(pwrite(fd, page, sizeof page, at), (ssize_t)sizeof page);
        close(fd);
    }
    s = open_store();
    cr_assert_eq(load(s)->count, 4);
    store_close(&s);
}

Test(store, a_row_that_cannot_be_is_found_at_load)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    store_close(&s);
    run_sql("UPDATE versions SET digest = x'00'");
    s = open_store();
    heddle_error_t e;
    cr_assert_eq(store_load(s, remember, &(seen_all_t){0}, &e), HEDDLE_ERR_DATA_DIR);
    store_close(&s);
    run_sql("UPDATE versions SET digest = zeroblob(32), state = 77, message = '', worker = '', phase = ''");
    s = open_store();
    cr_assert_eq(store_load(s, remember, &(seen_all_t){0}, &e), HEDDLE_ERR_DATA_DIR);
    store_close(&s);
}

/* As another program may have left it. */
Test(store, a_text_that_is_null_is_empty)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    store_close(&s);
    run_sql("UPDATE versions SET state = 3, message = NULL, worker = '', phase = ''");
    s = open_store();
    heddle_error_t e;
    cr_assert_eq(store_load(s, remember, &(seen_all_t){0}, &e), HEDDLE_OK, "%s", e.message);
    store_close(&s);
}

/* ---- keys ---- */

static record_t key_record(const char *key, const char *roles, uint64_t revoked_ms)
{
    return (record_t){.kind = RECORD_KEY,
                      .public_key = key,
                      .name = "n",
                      .roles = roles,
                      .at_ms = 7,
                      .revoked_ms = revoked_ms};
}
typedef struct {
    int count;
    char text[4][128];
} keys_seen_t;
static int see_key(void *self, const record_t *r)
{
    keys_seen_t *seen = self;
    if (r->kind != RECORD_KEY) return HEDDLE_OK;
    snprintf(seen->text[seen->count++], sizeof seen->text[0], "%s %s %s %d %d", r->public_key, r->name,
             r->roles, (int)r->at_ms, (int)r->revoked_ms);
    return HEDDLE_OK;
}

Test(store, keys_come_back_as_they_were_left)
{
    store_t *s = open_store();
    heddle_error_t e;
    keys_seen_t seen = {0};
    commit(s, (record_t[]){key_record("b", "admin", 0), key_record("a", "reader,worker:*", 0)}, 2);
    commit(s, (record_t[]){key_record("b", "admin", 9)}, 1);
    commit(s, (record_t[]){{.kind = RECORD_KEY_DROP, .public_key = "a"}, key_record("c", "reader", 0)}, 2);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_key, &seen, &e), HEDDLE_OK);
    cr_assert_eq(seen.count, 2);
    cr_assert_str_eq(seen.text[0], "b n admin 7 9");
    cr_assert_str_eq(seen.text[1], "c n reader 7 0");
    store_close(&s);
}

Test(store, a_file_of_schema_1_gets_a_table_for_keys)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    store_close(&s);
    run_sql("DROP TABLE keys; PRAGMA user_version = 1");
    s = open_store();
    commit(s, (record_t[]){key_record("b", "admin", 0)}, 1);
    cr_assert_eq(load(s)->count, 4);
    store_close(&s);
}

static int see_invitation(void *self, const record_t *r)
{
    if (r->kind == RECORD_KEY && r->uses) *(record_t *)self = *r;
    return HEDDLE_OK;
}

/* Also in a file that a broker of schema 7 has left. */
Test(store, keeps_how_often_an_invitation_was_used)
{
    store_t *s = open_store();
    heddle_error_t e;
    record_t r = key_record("i", "reader", 0), seen = {0};
    commit(s, (record_t[]){key_record("a", "admin", 0)}, 1);
    store_close(&s);
    run_sql("ALTER TABLE keys DROP COLUMN uses; ALTER TABLE keys DROP COLUMN used;"
            " ALTER TABLE keys DROP COLUMN ends_at; PRAGMA user_version = 7");
    s = open_store();
    r.uses = 20;
    r.ends_ms = 99000;
    commit(s, &r, 1);
    r.used = 3;
    commit(s, &r, 1);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_invitation, &seen, &e), HEDDLE_OK);
    cr_assert(seen.uses == 20 && seen.used == 3 && seen.ends_ms == 99000);
    store_close(&s);
}

static int see_entered(void *self, const record_t *r)
{
    keys_seen_t *seen = self;
    if (r->kind != RECORD_KEY) return HEDDLE_OK;
    snprintf(seen->text[seen->count++], sizeof seen->text[0], "%s %s %d", r->public_key, r->entered_by,
             (int)r->revoked_ms);
    return HEDDLE_OK;
}

/* Also in a file that a broker of schema 8 has left. */
Test(store, revokes_all_keys_of_an_invitation_at_once)
{
    store_t *s = open_store();
    heddle_error_t e;
    keys_seen_t seen = {0};
    commit(s, (record_t[]){key_record("a", "admin", 0)}, 1);
    store_close(&s);
    run_sql("ALTER TABLE keys DROP COLUMN entered_by; PRAGMA user_version = 8");
    s = open_store();
    record_t r[] = {key_record("b", "reader", 0), key_record("c", "reader", 3), key_record("i", "reader", 0)};
    r[0].entered_by = r[1].entered_by = "i";
    r[2].uses = 2;
    commit(s, r, 3);
    commit(s, (record_t[]){{.kind = RECORD_KEYS_REVOKE, .public_key = "i", .revoked_ms = 9}}, 1);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_entered, &seen, &e), HEDDLE_OK);
    cr_assert_eq(seen.count, 4);
    cr_assert_str_eq(seen.text[0], "a  0", "no other key");
    cr_assert_str_eq(seen.text[1], "b i 9");
    cr_assert_str_eq(seen.text[2], "c i 3", "one that was revoked before stays so");
    cr_assert_str_eq(seen.text[3], "i  9");
    store_close(&s);
}

/* ---- workers ---- */

static record_t worker_record(const char *name, const char *serves)
{
    return (
        record_t){.kind = RECORD_WORKER, .worker = name, .host = "h", .pid = 5, .at_ms = 7, .serves = serves};
}

enum { SEEN_MAX = 5 };
typedef struct {
    record_kind_t kind;
    uint32_t count;
    char text[SEEN_MAX][64];
} rows_seen_t;

/* The rows of one kind, as texts. */
static int see_rows(void *self, const record_t *r)
{
    rows_seen_t *seen = self;
    if (r->kind != seen->kind || seen->count == 4) return HEDDLE_OK;
    char *text = seen->text[seen->count++];
    size_t size = sizeof *seen->text;
    unsigned long long at_ms = r->at_ms, version = r->version;
    if (r->kind == RECORD_WORKER)
        snprintf(text, size, "%s %s %llu %llu %s", r->worker, r->host, (unsigned long long)r->pid, at_ms,
                 r->serves);
    else if (r->kind == RECORD_ADAPTER) snprintf(text, size, "%s", r->adapter);
    else if (r->kind == RECORD_STAGED) snprintf(text, size, "%s %llu %llu", r->adapter, version, at_ms);
    else snprintf(text, size, "%s %llu %llu %s", r->adapter, version, at_ms, r->message);
    return HEDDLE_OK;
}

/* Also of a file that a broker of schema 4 has left. */
Test(store, the_last_record_of_a_worker_counts_and_one_that_serves_nothing_goes)
{
    store_t *s = open_store();
    heddle_error_t e;
    rows_seen_t seen = {.kind = RECORD_WORKER};
    store_close(&s);
    run_sql("DROP TABLE workers; PRAGMA user_version = 4");
    s = open_store();
    commit(s, (record_t[]){worker_record("w2", "a@1"), worker_record("w1", "a@1,b@0")}, 2);
    commit(s, (record_t[]){worker_record("w2", ""), worker_record("w3", "a@3")}, 2);
    commit(s, (record_t[]){worker_record("w1", "a@2,b@0"), worker_record("w4", "")}, 2);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_rows, &seen, &e), HEDDLE_OK);
    cr_assert_eq(seen.count, 2);
    cr_assert_str_eq(seen.text[0], "w1 h 5 7 a@2,b@0");
    cr_assert_str_eq(seen.text[1], "w3 h 5 7 a@3");
    store_close(&s);
}

/* Also in a file that has no columns for it yet. */
Test(store, the_last_record_of_a_loss_counts_and_one_without_a_reason_ends_it)
{
    store_t *s = open_store();
    rows_seen_t seen = {.kind = RECORD_LOSS};
    record_t loss[] = {
        {.kind = RECORD_LOSS, .adapter = "a", .version = 1, .at_ms = 7, .message = "w1 had it"},
        {.kind = RECORD_LOSS, .adapter = "a", .version = 2, .at_ms = 8, .message = "w2 had it"},
        {.kind = RECORD_LOSS, .adapter = "a", .version = 2, .at_ms = 9, .message = ""}};
    store_close(&s);
    run_sql("ALTER TABLE versions DROP COLUMN lost_at; ALTER TABLE versions DROP COLUMN lost_why;"
            " PRAGMA user_version = 4");
    s = open_store();
    commit(s, (record_t[]){adapter_record("a"), version_record("a", 1), version_record("a", 2)}, 3);
    commit(s, loss, 3);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_rows, &seen, NULL), HEDDLE_OK);
    cr_assert_eq(seen.count, 1);
    cr_assert_str_eq(seen.text[0], "a 1 7 w1 had it");
    store_close(&s);
}

/* Brokers before schema 6 left such names behind. */
Test(store, names_without_versions_and_writer_go_at_the_start)
{
    store_t *s = open_store();
    rows_seen_t seen = {.kind = RECORD_ADAPTER};
    record_t writer = {.kind = RECORD_WRITER,
                       .adapter = "b",
                       .token = 1ull << 32 | 1,
                       .writer = "w",
                       .host = "h"};
    record_t floor = {.kind = RECORD_FLOOR, .adapter = "c", .version = 3};
    commit(s, (record_t[]){adapter_record("a"), adapter_record("b"), adapter_record("c"), writer, floor}, 5);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_rows, &seen, NULL), HEDDLE_OK);
    cr_assert_eq(seen.count, 2);
    cr_assert_str_eq(seen.text[0], "b");
    cr_assert_str_eq(seen.text[1], "c");
    store_close(&s);
}

Test(store, a_name_goes_only_while_nothing_was_published_to_it)
{
    store_t *s = open_store();
    rows_seen_t seen = {.kind = RECORD_ADAPTER};
    record_t drop = {.kind = RECORD_ADAPTER_DROP, .adapter = "a"};
    heddle_error_t e;
    commit(s, (record_t[]){adapter_record("a"), adapter_record("b")}, 2);
    commit(s, &drop, 1);
    cr_assert_eq(store_commit(s, &drop, 1, &e), HEDDLE_ERR_INTERNAL, "it is gone");
    drop.adapter = "b";
    commit(s, (record_t[]){version_record("b", 1)}, 1);
    cr_assert_eq(store_commit(s, &drop, 1, &e), HEDDLE_ERR_INTERNAL, "it has a version");
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_rows, &seen, NULL), HEDDLE_OK);
    cr_assert_eq(seen.count, 1);
    cr_assert_str_eq(seen.text[0], "b");
    store_close(&s);
}

static int see_any(void *self, const record_t *r)
{
    rows_seen_t *seen = self;
    bool is_of_adapter = r->adapter && *r->adapter;
    if (is_of_adapter && seen->count < SEEN_MAX)
        snprintf(seen->text[seen->count++], sizeof *seen->text, "%s %d", r->adapter, (int)r->kind);
    return HEDDLE_OK;
}

Test(store, of_an_adapter_that_is_forgotten_the_name_and_its_numbers_stay)
{
    store_t *s = open_store();
    rows_seen_t seen = {0};
    char name[8], floor[8], other[8], closed[8];
    snprintf(name, sizeof name, "a %d", RECORD_ADAPTER);
    snprintf(closed, sizeof closed, "a %d", RECORD_WRITER);
    snprintf(floor, sizeof floor, "a %d", RECORD_FLOOR);
    snprintf(other, sizeof other, "b %d", RECORD_VERSION);
    commit(s, (record_t[]){adapter_record("a"), adapter_record("b"), version_record("b", 1)}, 3);
    commit(s, (record_t[]){version_record("a", 1), version_record("a", 2)}, 2);
    commit(s,
           (record_t[]){{.kind = RECORD_DECISION, .adapter = "a", .decision = 1, .version = 1},
                        {.kind = RECORD_LOSS, .adapter = "a", .version = 1, .message = "w1 had it"},
                        {.kind = RECORD_STATE, .adapter = "a", .version = 2, .state = VERSION_FAILED}},
           3);
    commit(s,
           (record_t[]){{.kind = RECORD_FLOOR, .adapter = "a", .version = 2, .decision = 1},
                        {.kind = RECORD_ADAPTER_FORGET, .adapter = "a", .by = "ann"}},
           2);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_any, &seen, NULL), HEDDLE_OK);
    cr_assert_eq(seen.count, 5, "%s, %s, %s, %s, %s", seen.text[0], seen.text[1], seen.text[2], seen.text[3],
                 seen.text[4]);
    cr_assert_str_eq(seen.text[0], name);
    cr_assert_str_eq(seen.text[2], other);
    cr_assert_str_eq(seen.text[3], closed, "members alone know of others that have numbers alone");
    cr_assert_str_eq(seen.text[4], floor);
    store_close(&s);
}

/* Also in a file that has no column for it yet. */
Test(store, a_version_that_was_staged_stays_so_until_it_ends)
{
    store_t *s = open_store();
    rows_seen_t seen = {.kind = RECORD_STAGED};
    store_close(&s);
    run_sql("ALTER TABLE versions DROP COLUMN staged_at; PRAGMA user_version = 5");
    s = open_store();
    commit(s, (record_t[]){adapter_record("a"), version_record("a", 1), version_record("a", 2)}, 3);
    commit(s,
           (record_t[]){{.kind = RECORD_STAGED, .adapter = "a", .version = 1, .at_ms = 7},
                        {.kind = RECORD_STAGED, .adapter = "a", .version = 2, .at_ms = 8},
                        {.kind = RECORD_STATE, .adapter = "a", .version = 2, .state = VERSION_SUPERSEDED}},
           3);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_rows, &seen, NULL), HEDDLE_OK);
    cr_assert_eq(seen.count, 1);
    cr_assert_str_eq(seen.text[0], "a 1 7");
    store_close(&s);
}

static int see_asked(void *self, const record_t *r)
{
    uint64_t *asked = self;
    if (r->kind == RECORD_VERSION) asked[r->version] = r->asked_ms;
    return HEDDLE_OK;
}

/* Twice: what was brought up is as any other file. */
Test(store, a_file_of_schema_2_has_versions_without_the_deadline_that_was_asked_for)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    store_close(&s);
    run_sql("ALTER TABLE versions DROP COLUMN asked_ms; PRAGMA user_version = 2");
    for (uint64_t version = 2; version < 4; version++) {
        uint64_t asked[4] = {9, 9, 9, 9};
        s = open_store();
        commit(s, (record_t[]){version_record("policy", version)}, 1);
        cr_assert_eq(store_load(s, see_asked, asked, NULL), HEDDLE_OK);
        cr_assert_eq(asked[1], 0);
        cr_assert_eq(asked[version], 61000);
        store_close(&s);
    }
}

static int see_payload(void *self, const record_t *r)
{
    uint64_t *bytes = self;
    if (r->kind == RECORD_VERSION) bytes[r->version] = r->parts.part[0].payload_bytes;
    return HEDDLE_OK;
}

/* Twice: what was brought up is as any other file. */
Test(store, a_file_of_schema_6_has_another_name_for_the_bytes_of_the_payload)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    store_close(&s);
    run_sql("ALTER TABLE versions RENAME COLUMN payload_bytes TO region_bytes; PRAGMA user_version = 6");
    for (uint64_t version = 2; version < 4; version++) {
        uint64_t bytes[4] = {0};
        s = open_store();
        commit(s, (record_t[]){version_record("policy", version)}, 1);
        cr_assert_eq(store_load(s, see_payload, bytes, NULL), HEDDLE_OK);
        cr_assert(bytes[1] == 18000000 && bytes[version] == 18000000);
        store_close(&s);
    }
}

typedef struct {
    uint32_t count;
    scope_t scope;
} scopes_t;

static int see_scope(void *self, const record_t *r)
{
    scopes_t *seen = self;
    if (r->kind != RECORD_DECISION) return HEDDLE_OK;
    seen->count++;
    seen->scope = r->scope;
    return HEDDLE_OK;
}

/* Its decisions were for all workers. */
Test(store, a_file_of_schema_3_has_decisions_without_a_scope)
{
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    commit(s, (record_t[]){decision_record("policy", 1, 1)}, 1);
    store_close(&s);
    run_sql("ALTER TABLE decisions DROP COLUMN scope; PRAGMA user_version = 3");
    for (uint64_t decision = 2; decision < 4; decision++) {
        scopes_t seen = {.scope = (scope_t)9};
        s = open_store();
        cr_assert_eq(store_load(s, see_scope, &seen, NULL), HEDDLE_OK);
        cr_assert(seen.count == decision - 1 && seen.scope == SCOPE_EVERYONE);
        commit(s, (record_t[]){decision_record("policy", decision, 1)},
               1); /* of three the one between goes */
        store_close(&s);
    }
}

/* A later rule may decide for some workers only: the column is kept as it is. */
Test(store, a_scope_comes_back_as_it_was)
{
    scopes_t seen = {0};
    store_t *s = open_store();
    record_t decision = decision_record("policy", 1, 1);
    decision.scope = (scope_t)7;
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1), decision}, 3);
    store_close(&s);
    s = open_store();
    cr_assert_eq(store_load(s, see_scope, &seen, NULL), HEDDLE_OK);
    cr_assert(seen.count == 1 && seen.scope == (scope_t)7);
    store_close(&s);
}

Test(store, a_path_that_is_no_directory)
{
    FILE *f = fopen(path_of("file"), "w");
    fclose(f);
    const char *names[] = {"file", "file/below"};
    for (int i = 0; i < 2; i++) {
        store_t *s = NULL;
        heddle_error_t e;
        cr_assert_eq(store_open(path_of(names[i]), &s, &e), HEDDLE_ERR_DATA_DIR);
        cr_assert(strstr(e.message, "/file") && strstr(e.found, "not a directory") && e.hint[0], "%s: %s",
                  e.message, e.found);
    }
    heddle_error_t e;
    store_t *s = NULL;
    cr_assert_eq(store_open("", &s, &e), HEDDLE_ERR_DATA_DIR);
}

/* As an ordinary user, in a directory of somebody else. */
Test(store, a_directory_that_may_not_be_written)
{
    cr_assert_eq(chmod(dir, 0555), 0);
    if (geteuid() == 0) cr_assert_eq(seteuid(65534), 0);
    const char *paths[] = {dir, path_of("below")};
    for (int i = 0; i < 2; i++) {
        store_t *s = NULL;
        heddle_error_t e;
        cr_assert_eq(store_open(paths[i], &s, &e), HEDDLE_ERR_DATA_DIR);
        char uid[32];
        snprintf(uid, sizeof uid, "uid %u", geteuid());
        cr_assert(strstr(e.message, paths[i]) && strstr(e.found, uid) && strstr(e.hint, "--data"), "%s: %s",
                  e.message, e.found);
        if (i == 0) cr_assert(strstr(e.found, "0555") && strstr(e.hint, "chown"), "%s: %s", e.found, e.hint);
    }
    if (getuid() == 0) cr_assert_eq(seteuid(0), 0);
    cr_assert_eq(chmod(dir, 0700), 0);
}

/* A tmpfs of 1 MiB in a mount namespace of this test's own. */
static bool mount_small(void)
{
    bool own = geteuid() == 0 ? unshare(CLONE_NEWNS) == 0 : unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    return own && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", dir, "tmpfs", 0, "size=1m") == 0;
}

static void fill(const char *name)
{
    static const char page[4096];
    int fd = open(path_of(name), O_WRONLY | O_CREAT, 0600);
    while (write(fd, page, sizeof page) > 0) continue;
    cr_assert_eq(errno, ENOSPC);
    close(fd);
}

Test(store, a_full_disk_refuses_and_recovers)
{
    if (!mount_small()) skip("no mount namespace here");
    store_t *s = open_store();
    commit(s, (record_t[]){adapter_record("policy"), version_record("policy", 1)}, 2);
    fill("ballast");
    uint64_t version = 1;
    int rc = HEDDLE_OK;
    heddle_error_t e;
    while (!rc && version < 10000) {
        record_t r = version_record("policy", version + 1);
        rc = store_commit(s, &r, 1, &e);
        if (!rc) version++;
    }
    cr_assert_eq(rc, HEDDLE_ERR_NO_SPACE, "%s", e.message);
    cr_assert(e.retriable && strstr(e.hint, dir) && strstr(e.message, "registry.db"));
    record_t probe = {.kind = RECORD_EPOCH, .epoch = store_epoch(s)};
    cr_assert_eq(store_commit(s, &probe, 1, &e), HEDDLE_ERR_NO_SPACE, "a number again tries the disk");
    cr_assert_eq(unlink(path_of("ballast")), 0);
    commit(s, &probe, 1);
    record_t r = version_record("policy", version + 1);
    commit(s, &r, 1);
    store_close(&s);
    s = open_store();
    cr_assert_eq((uint64_t)load(s)->count, version + 3);
    store_close(&s);
    umount(dir);
}

Test(store, a_full_disk_at_the_start)
{
    if (!mount_small()) skip("no mount namespace here");
    fill("ballast");
    store_t *s = NULL;
    heddle_error_t e;
    cr_assert_eq(store_open(dir, &s, &e), HEDDLE_ERR_NO_SPACE, "%s", e.message);
    cr_assert_null(s);
    cr_assert_eq(unlink(path_of("ballast")), 0);
    s = open_store();
    cr_assert_eq(store_epoch(s), 1);
    store_close(&s);
    umount(dir);
}

Test(store_code, each_code_of_sqlite_has_one_of_ours)
{
    static const struct {
        int sqlite, number, want;
    } ROWS[] = {{SQLITE_OK, 0, HEDDLE_OK},
                {SQLITE_ROW, 0, HEDDLE_OK},
                {SQLITE_DONE, 0, HEDDLE_OK},
                {SQLITE_FULL, 0, HEDDLE_ERR_NO_SPACE},
                {SQLITE_IOERR_WRITE, ENOSPC, HEDDLE_ERR_NO_SPACE},
                {SQLITE_IOERR_FSYNC, EDQUOT, HEDDLE_ERR_DATA_DIR},
                {SQLITE_CANTOPEN, ENOSPC, HEDDLE_ERR_NO_SPACE},
                {SQLITE_IOERR_WRITE, EFBIG, HEDDLE_ERR_NO_SPACE},
                {SQLITE_NOMEM, 0, HEDDLE_ERR_NO_MEMORY},
                {SQLITE_IOERR_NOMEM, 0, HEDDLE_ERR_NO_MEMORY},
                {SQLITE_TOOBIG, 0, HEDDLE_ERR_LIMIT},
                {SQLITE_BUSY, 0, HEDDLE_ERR_DATA_LOCKED},
                {SQLITE_BUSY_RECOVERY, 0, HEDDLE_ERR_DATA_LOCKED},
                {SQLITE_LOCKED, 0, HEDDLE_ERR_DATA_LOCKED},
                {SQLITE_PERM, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_READONLY, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_READONLY_DIRECTORY, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_CANTOPEN, EACCES, HEDDLE_ERR_DATA_DIR},
                {SQLITE_IOERR, EIO, HEDDLE_ERR_DATA_DIR},
                {SQLITE_IOERR_FSYNC, EIO, HEDDLE_ERR_DATA_DIR},
                {SQLITE_IOERR_READ, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_CORRUPT, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_CORRUPT_INDEX, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_NOTADB, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_NOLFS, 0, HEDDLE_ERR_DATA_DIR},
                {SQLITE_ERROR, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_INTERNAL, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_CONSTRAINT, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_CONSTRAINT_PRIMARYKEY, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_CONSTRAINT_FOREIGNKEY, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_MISMATCH, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_MISUSE, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_RANGE, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_PROTOCOL, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_SCHEMA, 0, HEDDLE_ERR_INTERNAL},
                {SQLITE_ABORT, 0, HEDDLE_ERR_INTERNAL}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
        cr_assert_eq(store_code(ROWS[i].sqlite, ROWS[i].number), ROWS[i].want, "sqlite %d, errno %d",
                     ROWS[i].sqlite, ROWS[i].number);
}
