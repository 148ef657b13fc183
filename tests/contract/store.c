/* SPDX-License-Identifier: Apache-2.0 */
/* What every store of the registry does, whatever it keeps its rows in.  HEDDLE_CONTRACT names it:
 *
 *   sqlite  broker/store/store.h, in a directory
 *   late    broker/store/etcd_leader.h and an etcd of this process, which answers some turns later
 *   etcd    broker/store/etcd.h and a real etcd of one node, which the test starts (tests/contract/store_etcd) */
#include "broker/registry/decision.h"
#include "broker/registry/registry.h"
#include "broker/store/etcd.h"
#include "broker/store/store.h"
#include "core/clock.h"
#include "core/limits.h"
#include "tests/lib/fake_etcd.h"
#include "tests/lib/record_sample.h"
#include "tests/lib/registry_equal.h"
#include "tests/lib/temp_dir.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- the store ---- */

enum { TURNS_MAX = 2000, PATIENCE_US = 60000000 };

static struct {
    store_t *sqlite;
    fake_etcd_t fake;
    etcd_leader_t late;
    bool has_late;
    uint64_t now_us;
    int runs;
    char run[16], url[160];
    etcd_t *etcd;
} S;

static const char *backend(void)
{
    const char *name = getenv("HEDDLE_CONTRACT");
    return name ? name : "sqlite";
}
static bool is_sqlite(void) { return !strcmp(backend(), "sqlite"); }
static bool is_late(void) { return !strcmp(backend(), "late"); }

/* One request of each lane, and its answer. */
static void late_turn(void)
{
    S.now_us += 1000;
    fake_etcd_pass(&S.fake, S.now_us);
    for (int lane = 0; lane < ETCD_LANES; lane++) {
        etcd_request_t r;
        if (!etcd_leader_next(&S.late, (etcd_lane_t)lane, S.now_us, &r)) continue;
        bytes_t answer = fake_etcd_do(&S.fake, r.call, r.body);
        etcd_leader_answer(&S.late, (etcd_lane_t)lane, ETCD_ANSWERED, answer, S.now_us);
    }
}

static const brokers_row_t OWN = {.endpoint = "contract", .release = "1"};

static void open_late(void)
{
    heddle_error_t e;
    snprintf(S.run, sizeof S.run, "run%d", ++S.runs);
    etcd_leader_opts_t opts = {.prefix = "heddle/contract",
                               .run = S.run,
                               .holder = "contract",
                               .fresh = "0123456789abcdef",
                               .own = &OWN,
                               .endpoints = 1,
                               .ttl_s = 5};
    cr_assert_eq(etcd_leader_init(&S.late, &opts, S.now_us, &e), HEDDLE_OK);
    S.has_late = true;
    for (int i = 0; i < TURNS_MAX && S.late.state != ETCD_LEADING; i++) {
        cr_assert(S.late.state != ETCD_REFUSED && S.late.state != ETCD_LOST, "%s", S.late.why.message);
        late_turn();
    }
    cr_assert_eq(S.late.state, ETCD_LEADING);
}

static void open_store(void)
{
    heddle_error_t e = {0};
    if (is_sqlite()) {
        cr_assert_eq(store_open(dir, &S.sqlite, &e), HEDDLE_OK, "%s", e.message);
    } else if (is_late()) {
        open_late();
    } else {
        const char *endpoints = getenv("HEDDLE_ETCD");
        cr_assert_not_null(endpoints, "HEDDLE_ETCD: HOST:PORT of an etcd");
        snprintf(S.url, sizeof S.url, "etcd://%s/contract%s", endpoints, strrchr(dir, '/'));
        etcd_opts_t opts = {.url = S.url, .endpoint = "contract", .lease_ms = 5000};
        cr_assert_eq(etcd_open(&opts, &S.etcd, &e), HEDDLE_OK, "%s", e.message);
    }
}

static void close_store(void)
{
    store_close(&S.sqlite);
    etcd_close(&S.etcd);
    if (!S.has_late) return;
    etcd_leader_end(&S.late, S.now_us);
    for (int i = 0; i < TURNS_MAX && S.late.state != ETCD_ENDED; i++) late_turn();
    etcd_leader_fini(&S.late);
    S.has_late = false;
}

static void reopen(void)
{
    close_store();
    open_store();
}

static void start(void)
{
    make_dir();
    open_store();
}

static void stop(void)
{
    close_store();
    fake_etcd_fini(&S.fake);
    remove_dir();
}

/* False: it is `end_us`. */
static bool etcd_wait(uint64_t end_us)
{
    uint64_t now_us = clock_now(clock_system()), due_us = clock_earlier(etcd_due(S.etcd), end_us);
    struct pollfd fd = {.fd = etcd_fd(S.etcd), .events = POLLIN};
    if (now_us >= end_us) return false;
    poll(&fd, 1, due_us > now_us ? (int)((due_us - now_us + 999) / 1000) : 0);
    etcd_turn(S.etcd);
    return true;
}

static int wait_for_commit(heddle_error_t *e)
{
    int rc = HEDDLE_ERR_AGAIN;
    if (is_late()) {
        for (int i = 0; i < TURNS_MAX && !etcd_leader_take_outcome(&S.late, &rc, e); i++) late_turn();
        return rc;
    }
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_US;
    while (!etcd_committed(S.etcd, &rc, e) && etcd_wait(end_us)) {}
    return rc;
}

static int try_commit(const record_t *records, int count)
{
    heddle_error_t e = {0};
    if (is_sqlite()) return store_commit(S.sqlite, records, count, &e);
    if (is_late() && !count) return HEDDLE_OK;
    int rc = is_late() ? etcd_leader_commit(&S.late, records, count, S.now_us, &e)
                       : etcd_commit(S.etcd, records, count, &e);
    return rc == HEDDLE_ERR_AGAIN ? wait_for_commit(&e) : rc;
}

static void commit(const record_t *records, int count)
{
    int rc = try_commit(records, count);
    cr_assert_eq(rc, HEDDLE_OK, "%s", heddle_err_name(rc));
}
#define COMMIT(...)                                                                                          \
    commit((record_t[]){__VA_ARGS__}, (int)(sizeof((record_t[]){__VA_ARGS__}) / sizeof(record_t)))

static int load(int (*each)(void *self, const record_t *r), void *self)
{
    heddle_error_t e = {0};
    if (is_sqlite()) return store_load(S.sqlite, each, self, &e);
    return is_late() ? rows_walk(S.late.rows, each, self, &e) : etcd_load(S.etcd, each, self, &e);
}

static uint64_t live_keys(void)
{
    uint64_t count = 0;
    if (is_late()) return rows_live_keys(S.late.rows);
    if (is_sqlite()) cr_assert_eq(store_key_count(S.sqlite, &count, NULL), HEDDLE_OK);
    return is_sqlite() ? count : etcd_key_count(S.etcd);
}

static uint64_t epoch(void)
{
    return is_sqlite() ? store_epoch(S.sqlite) : is_late() ? rows_epoch(S.late.rows) : etcd_epoch(S.etcd);
}

static const char *cluster(void)
{
    return is_sqlite() ? store_cluster(S.sqlite)
           : is_late() ? rows_cluster(S.late.rows)
                       : etcd_cluster(S.etcd);
}

static int config(const char *adapter, uint64_t version, buf_t *out)
{
    if (is_sqlite()) return store_config(S.sqlite, adapter, version, out, NULL);
    return is_late() ? rows_config(S.late.rows, adapter, version, out, NULL)
                     : etcd_config(S.etcd, adapter, version, out, NULL);
}

TestSuite(contract_store, .init = start, .fini = stop);

static long ahead_ms;

/* Instead of libc's: a test may let time pass. */
int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, ret_now);
    if (clock != CLOCK_BOOTTIME) return rc;
    ret_now->tv_nsec += ahead_ms % 1000 * 1000000;
    ret_now->tv_sec += ahead_ms / 1000 + ret_now->tv_nsec / 1000000000;
    ret_now->tv_nsec %= 1000000000;
    return rc;
}

/* ---- records ---- */

/* A line for each row: kind, names and numbers. */
typedef struct {
    char line[128][96];
    int count, stop_after;
} lines_t;

static int note(void *self, const record_t *r)
{
    lines_t *lines = self;
    unsigned long long version = r->version, decision = r->decision, at = r->at_ms;
    const char *name = r->kind == RECORD_WORKER ? r->worker
                       : r->kind == RECORD_KEY  ? r->public_key
                                                : r->adapter;
    cr_assert_lt(lines->count, 128);
    snprintf(lines->line[lines->count++], sizeof *lines->line, "%d %s v%llu d%llu t%llu s%d %s%s",
             (int)r->kind, name ? name : "", version, decision, r->token ? (unsigned long long)r->token : at,
             (int)r->state, r->message ? r->message : "", r->serves ? r->serves : "");
    return lines->stop_after == lines->count ? HEDDLE_ERR_NO_MEMORY : HEDDLE_OK;
}

/* The rows but that of the epoch, which comes first. */
static const lines_t *rows_now(void)
{
    static lines_t lines;
    lines = (lines_t){0};
    cr_assert_eq(load(note, &lines), HEDDLE_OK);
    cr_assert_gt(lines.count, 0);
    cr_assert(!strncmp(lines.line[0], "1 ", 2));
    return &lines;
}

static void check_rows(int count, const char *const *want)
{
    for (int again = 0; again < 2; again++) { /* as they are, and as they are read at a start */
        const lines_t *is = rows_now();
        for (int i = 0; i < count && i + 1 < is->count; i++) cr_assert_str_eq(is->line[i + 1], want[i]);
        cr_assert_eq(is->count, count + 1);
        reopen();
    }
}
#define CHECK_ROWS(...)                                                                                      \
    check_rows((int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

static record_t state_record(const char *name, uint64_t version, version_state_t state)
{
    return (record_t){.kind = RECORD_STATE, .adapter = name, .version = version, .state = state, .at_ms = 77};
}

static record_t worker_record(const char *name, const char *serves)
{
    return (
        record_t){.kind = RECORD_WORKER, .worker = name, .host = "h", .pid = 5, .at_ms = 7, .serves = serves};
}

/* A record that takes 100 ms; etcd answers meanwhile.  A turn may be for another request, or connect. */
static int take_long(void *self, const record_t *r)
{
    (void)self, (void)r;
    ahead_ms += 100;
    poll(&(struct pollfd){.fd = etcd_fd(S.etcd), .events = POLLIN}, 1, 100);
    return HEDDLE_OK;
}

/* Its lease has 5 s, and must not end before the broker leads: what it commits then would be refused. */
Test(contract_store, the_lease_is_renewed_while_it_is_loaded)
{
    char name[16];
    if (is_sqlite() || is_late()) return;
    for (int i = 0; i < 80; i++) {
        snprintf(name, sizeof name, "w%d", i);
        COMMIT(worker_record(name, "a@1"));
    }
    cr_assert_eq(load(take_long, NULL), HEDDLE_OK);
    COMMIT(worker_record(name, "a@2"));
}

/* ---- what it keeps ---- */

Test(contract_store, each_start_has_an_epoch_of_its_own_and_one_cluster)
{
    char first[32];
    snprintf(first, sizeof first, "%s", cluster());
    cr_assert_eq(strlen(first), 16);
    cr_assert_eq(strspn(first, "0123456789abcdef"), 16);
    for (uint64_t n = 1; n <= 3; n++) {
        cr_assert_eq(epoch(), n);
        cr_assert_str_eq(cluster(), first);
        cr_assert_eq(rows_now()->count, 1);
        reopen();
    }
}

/* SQLite has one broker, and no list of them. */
Test(contract_store, the_list_of_standbys_is_read_and_has_none)
{
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_US;
    if (is_late()) {
        for (int i = 0; i < TURNS_MAX && !S.late.brokers.seen_us; i++) late_turn();
        cr_assert_neq(S.late.brokers.seen_us, 0);
        cr_assert_eq(S.late.brokers.count, 0);
    } else if (S.etcd) {
        while (!etcd_brokers(S.etcd)->seen_us && etcd_wait(end_us)) {}
        const brokers_t *list = etcd_brokers(S.etcd);
        cr_assert(list->seen_us && list->is_answered && list->revision);
        cr_assert_eq(list->count, 0);
        cr_assert_str_eq(list->own.endpoint, "contract");
        cr_assert_str_eq(list->own.release, heddle_version());
    }
}

Test(contract_store, an_epoch_that_was_raised_stays_above)
{
    COMMIT({.kind = RECORD_EPOCH, .epoch = 7});
    cr_assert_eq(epoch(), 7);
    COMMIT({.kind = RECORD_EPOCH, .epoch = 3});
    cr_assert_eq(epoch(), 7);
    reopen();
    cr_assert_eq(epoch(), 8);
}

static int take_in(void *self, const record_t *r) { return registry_apply(self, r); }

/* Every field, as far as the registry in memory has it. */
Test(contract_store, every_field_comes_back)
{
    registry_t before, after;
    registry_init(&before);
    registry_init(&after);
    record_t in[] = {{.kind = RECORD_EPOCH, .epoch = 1},
                     adapter_record("policy"),
                     version_record("policy", 1),
                     version_record("policy", 2),
                     decision_record("policy", 1, 1),
                     {.kind = RECORD_STATE,
                      .adapter = "policy",
                      .version = 2,
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
    int count = sizeof in / sizeof *in;
    commit(in, count);
    for (int i = 0; i < count; i++) cr_assert_eq(registry_apply(&before, &in[i]), HEDDLE_OK);
    cr_assert_eq(load(take_in, &after), HEDDLE_OK);
    cr_assert(registry_equal(&before, &after));
    registry_fini(&after);
    registry_init(&after);
    reopen();
    before.epoch = epoch();
    cr_assert_eq(load(take_in, &after), HEDDLE_OK);
    cr_assert(registry_equal(&before, &after));
    registry_fini(&before);
    registry_fini(&after);
}

Test(contract_store, a_config_can_be_read_alone)
{
    buf_t out = {0};
    COMMIT(adapter_record("policy"), version_record("policy", 1));
    buf_add_text(&out, ">");
    cr_assert_eq(config("policy", 1, &out), HEDDLE_OK);
    cr_assert_eq(out.bytes, 11);
    cr_assert_eq(memcmp(out.data, ">{\"r\":16}\0\xff", 11), 0);
    cr_assert_eq(config("policy", 2, &out), HEDDLE_ERR_NOT_FOUND);
    buf_fini(&out);
}

Test(contract_store, load_goes_by_kind_then_name_then_number)
{
    COMMIT(adapter_record("a-b"), adapter_record("a"), version_record("a-b", 1), version_record("a", 2),
           version_record("a", 10), version_record("a", 1));
    COMMIT(decision_record("a", 1, 2), decision_record("a-b", 1, 1), decision_record("a", 2, 1),
           decision_record("a", 10, 2), worker_record("w", "a@1"),
           {.kind = RECORD_KEY, .public_key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", .at_ms = 3});
    CHECK_ROWS("2 a v0 d0 t1000 s0 ", "2 a-b v0 d0 t1000 s0 ", "3 a v1 d0 t1700000000123 s0 ",
               "3 a v2 d0 t1700000000123 s0 ", "3 a v10 d0 t1700000000123 s0 ",
               "3 a-b v1 d0 t1700000000123 s0 ", "4 a v2 d1 t1700000000500 s0 ",
               "4 a v1 d2 t1700000000500 s0 ", "4 a v2 d10 t1700000000500 s0 ",
               "4 a-b v1 d1 t1700000000500 s0 ", "12 rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7 v0 d0 t3 s0 ",
               "8 w v0 d0 t7 s0 a@1");
}

Test(contract_store, load_ends_with_the_callers_error)
{
    lines_t lines = {.stop_after = 2};
    COMMIT(adapter_record("a"), adapter_record("b"));
    cr_assert_eq(load(note, &lines), HEDDLE_ERR_NO_MEMORY);
    cr_assert_eq(lines.count, 2);
}

/* ---- what it refuses ---- */

Test(contract_store, a_turn_is_whole_or_never_happened)
{
    record_t twice[] = {adapter_record("policy"), version_record("policy", 1), version_record("policy", 1)};
    cr_assert_eq(try_commit(twice, 3), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(rows_now()->count, 1);
    commit(twice, 2);
    cr_assert_eq(rows_now()->count, 3);
    cr_assert_eq(try_commit(twice, 0), HEDDLE_OK);
}

Test(contract_store, records_must_fit_what_is_stored)
{
    COMMIT(adapter_record("policy"), version_record("policy", 1), decision_record("policy", 1, 1));
    record_t wrong[] = {version_record("policy", 1),
                        version_record("critic", 1),
                        decision_record("policy", 2, 7),
                        decision_record("policy", 1, 1),
                        adapter_record("policy"),
                        state_record("policy", 9, VERSION_FAILED),
                        {.kind = RECORD_FORGET, .adapter = "policy", .version = 9},
                        {.kind = RECORD_ADAPTER_DROP, .adapter = "critic"},
                        {.kind = 99, .adapter = "policy"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(try_commit(&wrong[i], 1), HEDDLE_ERR_INTERNAL, "row %zu", i);
        cr_assert_eq(rows_now()->count, 4, "row %zu", i);
    }
    reopen();
    cr_assert_eq(rows_now()->count, 4);
}

Test(contract_store, records_of_a_turn_come_in_any_order)
{
    COMMIT(decision_record("a", 1, 1), version_record("a", 1), adapter_record("a"));
    cr_assert_eq(rows_now()->count, 4);
}

/* ---- what takes the place of what ---- */

Test(contract_store, a_version_has_its_first_and_its_latest_decision)
{
    COMMIT(adapter_record("a"), version_record("a", 1), version_record("a", 2));
    for (uint64_t d = 1; d <= 21; d += 2)
        COMMIT(decision_record("a", d, 1 + d % 2 * (d % 4 == 1)), decision_record("a", d + 1, 2));
    const lines_t *is = rows_now();
    int decisions = 0;
    for (int i = 0; i < is->count; i++) decisions += !strncmp(is->line[i], "4 ", 2);
    cr_assert_eq(decisions, 4);
    reopen();
    cr_assert_eq(rows_now()->count, 8);
}

Test(contract_store, what_must_stay_is_not_forgotten)
{
    record_t forget = {.kind = RECORD_FORGET, .adapter = "a", .version = 1};
    COMMIT(adapter_record("a"), version_record("a", 1), version_record("a", 2), decision_record("a", 1, 1));
    cr_assert_eq(try_commit(&forget, 1), HEDDLE_ERR_INTERNAL, "it has not ended");
    COMMIT(state_record("a", 1, VERSION_RETIRED));
    cr_assert_eq(try_commit(&forget, 1), HEDDLE_ERR_INTERNAL, "the last decision names it");
    COMMIT(state_record("a", 2, VERSION_RETIRED));
    forget.version = 2;
    cr_assert_eq(try_commit(&forget, 1), HEDDLE_ERR_INTERNAL, "the greatest number");
    COMMIT(version_record("a", 3), decision_record("a", 2, 3));
    commit(&forget, 1);
    forget.version = 1;
    commit(&forget, 1);
    cr_assert_eq(try_commit(&forget, 1), HEDDLE_ERR_INTERNAL, "it is gone");
    CHECK_ROWS("2 a v0 d0 t1000 s0 ", "3 a v3 d0 t1700000000123 s0 ", "4 a v3 d2 t1700000000500 s0 ");
}

enum { AT_ONCE = 20, VERSIONS = 54 * AT_ONCE };

/* The records of a turn happen, in the store and in memory. */
static void happen(registry_t *r, outbox_t *out)
{
    commit(out->records, out->record_count);
    for (int i = 0; i < out->record_count; i++) cr_assert_eq(registry_apply(r, &out->records[i]), HEDDLE_OK);
    outbox_clear(out);
}

/* The first of each AT_ONCE versions is decided, and puts the one before away; the others never are. */
Test(contract_store, history_is_bounded_and_no_number_comes_again)
{
    registry_t before, after;
    outbox_t out = {0};
    instant_t now = {.wall_ms = 1700000000000};
    registry_init(&before);
    registry_init(&after);
    cr_assert_eq(load(take_in, &before), HEDDLE_OK);
    *outbox_record(&out, RECORD_ADAPTER, "policy", now) = adapter_record("policy");
    happen(&before, &out);
    const adapter_row_t *a = registry_adapter(&before, "policy");
    uint64_t versions = is_sqlite() ? VERSIONS : 4 * AT_ONCE; /* the etcd of this process is small */
    for (uint64_t first = 1; first <= versions; first += AT_ONCE) {
        const version_row_t *active = registry_active(a);
        for (uint64_t v = first; v < first + AT_ONCE; v++)
            *outbox_record(&out, RECORD_VERSION, "policy", now) = version_record("policy", v);
        happen(&before, &out);
        decision_by_rule(a, registry_version(a, first), SCOPE_EVERYONE, now, &out);
        happen(&before, &out);
        for (uint64_t v = first + 1; v < first + AT_ONCE; v++)
            decision_end_version(a, registry_version(a, v), VERSION_SUPERSEDED, NULL, now, &out);
        if (active) decision_end_version(a, active, VERSION_RETIRED, NULL, now, &out);
        happen(&before, &out);
    }
    reopen();
    cr_assert_eq(load(take_in, &after), HEDDLE_OK);
    before.epoch = epoch();
    cr_assert(registry_equal(&before, &after));
    cr_assert_eq(registry_adapter(&after, "policy")->last_version, versions);
    outbox_fini(&out);
    registry_fini(&before);
    registry_fini(&after);
}

Test(contract_store, a_floor_only_rises)
{
    COMMIT(adapter_record("a"), {.kind = RECORD_FLOOR, .adapter = "a", .version = 7, .decision = 3});
    COMMIT({.kind = RECORD_FLOOR, .adapter = "a", .version = 5, .decision = 9});
    CHECK_ROWS("2 a v0 d0 t1000 s0 ", "7 a v7 d9 t0 s0 ");
}

Test(contract_store, a_closed_writer_is_gone)
{
    record_t w = {.kind = RECORD_WRITER, .adapter = "policy", .token = 5, .host = "h", .writer = "t"};
    commit(&w, 1);
    w.token = 6;
    commit(&w, 1);
    CHECK_ROWS("6 policy v0 d0 t6 s0 ");
    w.token = 0;
    commit(&w, 1);
    cr_assert_eq(rows_now()->count, 1);
    commit(&w, 1); /* and there is none to close */
}

Test(contract_store, a_row_that_changes_twice_in_a_turn_is_as_it_was_last)
{
    record_t w = {.kind = RECORD_WRITER, .adapter = "policy", .token = 5, .host = "h", .writer = "t"};
    record_t closed = {.kind = RECORD_WRITER, .adapter = "policy"}, later = w;
    later.token = 6;
    COMMIT(w, closed, later);
    CHECK_ROWS("6 policy v0 d0 t6 s0 ");
    COMMIT(closed, w, closed);
    cr_assert_eq(rows_now()->count, 1);
}

Test(contract_store, the_last_record_of_a_worker_counts_and_one_that_serves_nothing_goes)
{
    COMMIT(worker_record("w2", "a@1"), worker_record("w1", "a@1,b@0"));
    COMMIT(worker_record("w2", ""), worker_record("w3", "a@3"));
    COMMIT(worker_record("w1", "a@2,b@0"), worker_record("w4", ""));
    CHECK_ROWS("8 w1 v0 d0 t7 s0 a@2,b@0", "8 w3 v0 d0 t7 s0 a@3");
}

Test(contract_store, a_loss_ends_without_a_reason_and_what_was_staged_with_its_version)
{
    record_t found = {.kind = RECORD_LOSS, .adapter = "a", .version = 2, .at_ms = 9, .message = ""};
    COMMIT(adapter_record("a"), version_record("a", 1), version_record("a", 2));
    COMMIT({.kind = RECORD_LOSS, .adapter = "a", .version = 1, .at_ms = 7, .message = "w1 had it"},
           {.kind = RECORD_LOSS, .adapter = "a", .version = 2, .at_ms = 8, .message = "w2 had it"}, found);
    COMMIT({.kind = RECORD_STAGED, .adapter = "a", .version = 1, .at_ms = 7},
           {.kind = RECORD_STAGED, .adapter = "a", .version = 2, .at_ms = 8},
           state_record("a", 2, VERSION_SUPERSEDED));
    CHECK_ROWS("2 a v0 d0 t1000 s0 ", "3 a v1 d0 t1700000000123 s0 ", "3 a v2 d0 t1700000000123 s0 ",
               "5 a v2 d0 t77 s3 ", "9 a v1 d0 t7 s0 w1 had it", "10 a v1 d0 t7 s0 ");
}

Test(contract_store, names_without_versions_and_writer_go_at_the_start)
{
    COMMIT(adapter_record("a"), adapter_record("b"), adapter_record("c"),
           {.kind = RECORD_WRITER, .adapter = "b", .token = 9, .writer = "w", .host = "h"},
           {.kind = RECORD_FLOOR, .adapter = "c", .version = 3});
    reopen();
    CHECK_ROWS("2 b v0 d0 t1000 s0 ", "2 c v0 d0 t1000 s0 ", "6 b v0 d0 t9 s0 ", "7 c v3 d0 t0 s0 ");
    COMMIT(adapter_record("a"), version_record("a", 1));
}

Test(contract_store, a_name_goes_only_while_nothing_was_published_to_it)
{
    record_t drop = {.kind = RECORD_ADAPTER_DROP, .adapter = "a"};
    COMMIT(adapter_record("a"), adapter_record("b"));
    commit(&drop, 1);
    cr_assert_eq(try_commit(&drop, 1), HEDDLE_ERR_INTERNAL, "it is gone");
    COMMIT(version_record("b", 1));
    drop.adapter = "b";
    cr_assert_eq(try_commit(&drop, 1), HEDDLE_ERR_INTERNAL, "it has a version");
    CHECK_ROWS("2 b v0 d0 t1000 s0 ", "3 b v1 d0 t1700000000123 s0 ");
}

Test(contract_store, of_an_adapter_that_is_forgotten_the_name_and_its_numbers_stay)
{
    COMMIT(adapter_record("a"), adapter_record("b"), version_record("b", 1));
    COMMIT(version_record("a", 1), version_record("a", 2), decision_record("a", 1, 1),
           {.kind = RECORD_LOSS, .adapter = "a", .version = 1, .message = "w1 had it"},
           state_record("a", 2, VERSION_FAILED));
    COMMIT({.kind = RECORD_FLOOR, .adapter = "a", .version = 2, .decision = 1},
           {.kind = RECORD_ADAPTER_FORGET, .adapter = "a", .by = "ann"});
    CHECK_ROWS("2 a v0 d0 t1000 s0 ", "2 b v0 d0 t1000 s0 ", "3 b v1 d0 t1700000000123 s0 ",
               "6 a v0 d0 t0 s0 ", "7 a v2 d1 t0 s0 ");
    COMMIT(version_record("a", 3), decision_record("a", 2, 3));
    cr_assert_eq(rows_now()->count, 8);
}

Test(contract_store, keys_come_back_as_they_were_left)
{
    record_t key = {.kind = RECORD_KEY, .public_key = "k1", .name = "n", .roles = "admin", .at_ms = 4};
    record_t other = key, drop = {.kind = RECORD_KEY_DROP, .public_key = "k1"};
    other.public_key = "k2";
    COMMIT(key, other);
    key.revoked_ms = 9;
    commit(&key, 1);
    CHECK_ROWS("12 k1 v0 d0 t4 s0 ", "12 k2 v0 d0 t4 s0 ");
    commit(&drop, 1);
    CHECK_ROWS("12 k2 v0 d0 t4 s0 ");
}

/* What a key is, by whom it came, and since when it is revoked. */
typedef struct {
    char line[1100][24];
    int count, live;
} keys_seen_t;

static int note_key(void *self, const record_t *r)
{
    keys_seen_t *seen = self;
    if (r->kind != RECORD_KEY) return HEDDLE_OK;
    cr_assert_lt(seen->count, 1100);
    seen->live += !r->revoked_ms;
    snprintf(seen->line[seen->count++], sizeof *seen->line, "%s %s %d", r->public_key,
             r->entered_by ? r->entered_by : "", (int)r->revoked_ms);
    return HEDDLE_OK;
}

static const keys_seen_t *keys_now(void)
{
    static keys_seen_t seen;
    seen = (keys_seen_t){0};
    cr_assert_eq(load(note_key, &seen), HEDDLE_OK);
    cr_assert_eq(live_keys(), (uint64_t)seen.live, "both say the same");
    return &seen;
}

static void check_keys(int count, const char *const *want)
{
    for (int again = 0; again < 2; again++) {
        const keys_seen_t *is = keys_now();
        for (int i = 0; i < count && i < is->count; i++) cr_assert_str_eq(is->line[i], want[i]);
        cr_assert_eq(is->count, count);
        reopen();
    }
}
#define CHECK_KEYS(...)                                                                                      \
    check_keys((int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *[]){__VA_ARGS__})

static record_t entered_record(const char *key, const char *invitation, uint64_t revoked_ms)
{
    return (record_t){.kind = RECORD_KEY,
                      .public_key = key,
                      .name = "n",
                      .roles = "reader",
                      .at_ms = 4,
                      .entered_by = invitation,
                      .revoked_ms = revoked_ms};
}
static record_t revoke_record(const char *invitation, uint64_t revoked_ms)
{
    return (record_t){.kind = RECORD_KEYS_REVOKE, .public_key = invitation, .revoked_ms = revoked_ms};
}
static record_t drop_record(const char *key)
{
    return (record_t){.kind = RECORD_KEY_DROP, .public_key = key};
}

Test(contract_store, one_record_revokes_all_keys_of_an_invitation)
{
    record_t invitation = entered_record("i", "", 0);
    invitation.uses = 5;
    COMMIT(entered_record("a", "", 0), entered_record("b", "i", 0), entered_record("c", "i", 3),
           entered_record("d", "j", 0), invitation, entered_record("j", "", 0));
    COMMIT(revoke_record("i", 9));
    CHECK_KEYS("a  0", "b i 9", "c i 3", "d j 0", "i  9", "j  0");
    COMMIT(revoke_record("i", 11));
    CHECK_KEYS("a  0", "b i 9", "c i 3", "d j 0", "i  9", "j  0");
    COMMIT(entered_record("b", "", 0), entered_record("c", "j", 0)); /* an admin, another invitation */
    COMMIT(drop_record("i"));
    CHECK_KEYS("a  0", "b  0", "c j 0", "d j 0", "j  0");
    COMMIT(drop_record("j"));
    COMMIT(revoke_record("j", 12)); /* that is known by the keys that name it */
    CHECK_KEYS("a  0", "b  0", "c j 12", "d j 12");
}

/* A key is entered again by an invitation that was made again: what was said of the first is over. */
Test(contract_store, what_revokes_the_keys_of_an_invitation_goes_with_the_last_of_them)
{
    COMMIT(entered_record("a", "i", 0), entered_record("b", "i", 0));
    COMMIT(revoke_record("i", 9));
    COMMIT(drop_record("a"));
    CHECK_KEYS("b i 9");
    COMMIT(drop_record("b"), entered_record("c", "i", 0));
    CHECK_KEYS("c i 0");
    COMMIT(revoke_record("i", 10));
    COMMIT(entered_record("c", "", 0));
    COMMIT(entered_record("d", "i", 0));
    CHECK_KEYS("c  0", "d i 0");
    COMMIT(revoke_record("none", 11));
    COMMIT(entered_record("e", "none", 0));
    CHECK_KEYS("c  0", "d i 0", "e none 0");
}

/* More keys than a transaction of etcd has operations. */
Test(contract_store, a_thousand_keys_are_revoked_at_once)
{
    static char keys[1000][16];
    static record_t some[OUTBOX_RECORDS];
    for (int i = 0, n = 0; i < 1000; i++) {
        snprintf(keys[i], sizeof keys[i], "k%03d", i);
        some[n++] = entered_record(keys[i], "i", 0);
        if (n < OUTBOX_RECORDS && i < 999) continue;
        commit(some, n);
        n = 0;
    }
    cr_assert_eq(keys_now()->live, 1000);
    COMMIT(revoke_record("i", 9));
    cr_assert_eq(keys_now()->live, 0);
    reopen();
    cr_assert(keys_now()->live == 0 && keys_now()->count == 1000);
}

static void commit_adapters_with_a_version(record_t all[OUTBOX_RECORDS], char names[OUTBOX_RECORDS][16])
{
    for (int i = 0; i < OUTBOX_RECORDS; i++) {
        snprintf(names[i], sizeof names[i], "a%d", i);
        all[i] = adapter_record(names[i]);
    }
    commit(all, OUTBOX_RECORDS);
    for (int i = 0; i < OUTBOX_RECORDS; i++) all[i] = version_record(names[i], 1);
    commit(all, OUTBOX_RECORDS);
}

/* As many records as an event has at most. */
Test(contract_store, a_whole_outbox_is_one_transaction)
{
    static record_t all[OUTBOX_RECORDS];
    static char names[OUTBOX_RECORDS][16];
    commit_adapters_with_a_version(all, names);
    for (int i = 0; i < OUTBOX_RECORDS; i++) all[i] = decision_record(names[i], 1, 1);
    commit(all, OUTBOX_RECORDS);
    for (int i = 0; i < OUTBOX_RECORDS; i++) all[i] = version_record(names[i], 2);
    commit(all, OUTBOX_RECORDS);
    for (int i = 0; i < OUTBOX_RECORDS; i++) all[i] = decision_record(names[i], 2, 2);
    commit(all, OUTBOX_RECORDS);
    for (int i = 0; i < OUTBOX_RECORDS; i++) all[i] = state_record(names[i], 1, VERSION_RETIRED);
    commit(all, OUTBOX_RECORDS);
    for (int i = 0; i < OUTBOX_RECORDS; i++)
        all[i] = (record_t){.kind = RECORD_FORGET, .adapter = names[i], .version = 1};
    commit(all, OUTBOX_RECORDS);
    reopen();
    registry_t r;
    registry_init(&r);
    cr_assert_eq(load(take_in, &r), HEDDLE_OK);
    cr_assert_eq(registry_adapter(&r, names[OUTBOX_RECORDS - 1])->version_count, 1);
    cr_assert_eq(registry_adapter(&r, names[OUTBOX_RECORDS - 1])->active, 2);
    registry_fini(&r);
}

/* Each of them ends a range of keys and changes one more: no record has more operations in an etcd. */
Test(contract_store, a_whole_outbox_of_forgotten_adapters_is_one_transaction)
{
    static record_t all[OUTBOX_RECORDS];
    static char names[OUTBOX_RECORDS][16];
    commit_adapters_with_a_version(all, names);
    for (int i = 0; i < OUTBOX_RECORDS; i++)
        all[i] = (record_t){.kind = RECORD_ADAPTER_FORGET, .adapter = names[i]};
    commit(all, OUTBOX_RECORDS);
    reopen();
    registry_t r;
    registry_init(&r);
    cr_assert_eq(load(take_in, &r), HEDDLE_OK);
    for (int i = 0; i < OUTBOX_RECORDS; i++) {
        const adapter_row_t *a = registry_adapter(&r, names[i]);
        cr_assert(!a || !a->version_count, "%s", names[i]);
    }
    registry_fini(&r);
}
