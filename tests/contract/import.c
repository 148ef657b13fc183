/* SPDX-License-Identifier: Apache-2.0 */
/* What is imported into a store is what the rows have: all of them, or none, and over no other data.
 * HEDDLE_CONTRACT names the store, as in store.c: sqlite, or etcd. */
#include "broker/store/import.h"
#include "broker/store/store.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "tests/lib/rows_rig.h"
#include "tests/lib/temp_dir.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EPOCH = 7, LARGE_COUNT = 6, MANY = 200 };

static struct {
    store_rows_t *rows;
    buf_t config, file, after;
    char url[160], home[160];
    store_t *sqlite;
    etcd_t *etcd;
} T;

static bool is_sqlite(void)
{
    const char *name = getenv("HEDDLE_CONTRACT");
    return !name || !strcmp(name, "sqlite");
}

static etcd_opts_t etcd_opts(void)
{
    return (etcd_opts_t){.url = T.url, .endpoint = "contract", .lease_ms = 30000};
}

static void open_store(void)
{
    heddle_error_t e = {0};
    etcd_opts_t opts = etcd_opts();
    int rc = is_sqlite() ? store_open(T.home, &T.sqlite, &e) : etcd_open(&opts, &T.etcd, &e);
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
}

static void close_store(void)
{
    store_close(&T.sqlite);
    etcd_close(&T.etcd);
}

static int import(heddle_error_t *e)
{
    etcd_opts_t opts = etcd_opts();
    return is_sqlite() ? import_to_dir(T.rows, T.home, e) : import_to_etcd(T.rows, &opts, e);
}

static void imported(void)
{
    heddle_error_t e = {0};
    int rc = import(&e);
    cr_assert_eq(rc, HEDDLE_OK, "%s: %s", e.message, e.hint);
}

/* Configs as large as they can be, of which a transaction of etcd takes some and not all, and more rows than
 * one takes. */
static void fill(store_rows_t *rows)
{
    char name[16];
    void *room = buf_grow(&T.config, LIMIT_CONFIG_BYTES);
    cr_assert_not_null(room);
    memset(room, 'x', LIMIT_CONFIG_BYTES);
    rows_rig_fill(rows, false);
    for (uint64_t i = 3; i < 3 + LARGE_COUNT; i++)
        rows_rig_add(
            rows,
            &(record_t){.kind = RECORD_VERSION, .adapter = "a", .version = i, .config = buf_view(&T.config)},
            1);
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "many%d", i);
        rows_rig_add(rows, &(record_t){.kind = RECORD_WORKER, .worker = name, .host = "h", .serves = "a"}, 1);
        rows_rig_add(rows, &(record_t){.kind = RECORD_WRITER, .adapter = name}, 1);
    }
}

/* As a file: it has what the records say, one row behind the other. */
static void put_file(store_rows_t *rows, buf_t *to)
{
    rows_file_t said;
    cr_assert_eq(rows_file_put(rows, SIZE_MAX, to, &said, NULL), HEDDLE_OK);
}

static void start(void)
{
    make_dir();
    snprintf(T.home, sizeof T.home, "%s/home", dir);
    const char *endpoints = getenv("HEDDLE_ETCD");
    snprintf(T.url, sizeof T.url, "etcd://%s/import%s", endpoints ? endpoints : "", strrchr(dir, '/'));
    T.rows = rows_rig_new(EPOCH);
    fill(T.rows);
}
static void stop(void)
{
    close_store();
    rows_destroy(&T.rows);
    buf_fini(&T.config);
    buf_fini(&T.file);
    buf_fini(&T.after);
    remove_dir();
}
TestSuite(contract_import, .init = start, .fini = stop);

static bool is_in_home(const char *name)
{
    char path[200];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", T.home, name);
    return stat(path, &st) == 0;
}

/* The next run has the cluster, the next epoch, and each row. */
static void has_all(void)
{
    heddle_error_t e = {0};
    open_store();
    cr_assert_str_eq(is_sqlite() ? store_cluster(T.sqlite) : etcd_cluster(T.etcd), ROWS_RIG_CLUSTER);
    cr_assert_eq(is_sqlite() ? store_epoch(T.sqlite) : etcd_epoch(T.etcd), EPOCH + 1);
    store_rows_t *after = rows_rig_new(EPOCH);
    int rc = is_sqlite() ? store_load(T.sqlite, rows_rig_adopt, after, &e)
                         : etcd_load(T.etcd, rows_rig_adopt, after, &e);
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    store_rows_t *before = rows_rig_new(EPOCH + 1);
    cr_assert_eq(rows_walk(T.rows, rows_rig_adopt, before, &e), HEDDLE_OK);
    put_file(before, &T.file);
    put_file(after, &T.after);
    rows_destroy(&before);
    rows_destroy(&after);
    cr_assert_eq(T.file.bytes, T.after.bytes);
    cr_assert(!memcmp(T.file.data, T.after.data, T.file.bytes));
}

Test(contract_import, all_rows_come_with_the_cluster_and_the_epoch)
{
    imported();
    cr_assert(!is_in_home(".import"), "nothing else is left");
    has_all();
}

Test(contract_import, data_that_are_there_are_not_replaced)
{
    heddle_error_t e = {0};
    char was[32];
    open_store();
    snprintf(was, sizeof was, "%s", is_sqlite() ? store_cluster(T.sqlite) : etcd_cluster(T.etcd));
    if (is_sqlite()) cr_assert_eq(import(&e), HEDDLE_ERR_DATA_LOCKED, "a broker has it");
    close_store();
    cr_assert_eq(import(&e), HEDDLE_ERR_DATA_DIR, "%s", e.message);
    cr_assert_not_null(strstr(e.message, "has data"), "%s", e.message);
    open_store();
    cr_assert_str_eq(is_sqlite() ? store_cluster(T.sqlite) : etcd_cluster(T.etcd), was);
}

/* Of a file that no export wrote: a broker that started there would end. */
Test(contract_import, rows_that_no_broker_starts_with_are_refused_by_name)
{
    record_t key = {.kind = RECORD_KEY, .public_key = ROWS_RIG_ENTERED, .name = "x", .roles = "worker:*"},
             decision = {.kind = RECORD_DECISION, .adapter = "a", .version = 1, .decision = 4, .by = "ann"};
    struct {
        record_t row;
        const char *found;
    } bad[] = {{key, "the key x"}, {key, "the key x y"}, {key, "the key x"},
               {key, "the key x"}, {key, "the key x"},   {decision, "decision 4 of a"}};
    bad[0].row.public_key = "short";
    bad[1].row.name = "x y";
    bad[2].row.roles = "king";
    bad[3].row.entered_by = "nothing";
    bad[4].row.uses = UINT32_MAX;
    bad[5].row.scope = (scope_t)7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        heddle_error_t e = {0};
        rows_destroy(&T.rows);
        T.rows = rows_rig_new(EPOCH);
        rows_rig_fill(T.rows, false);
        rows_rig_add(T.rows, &bad[i].row, 1);
        cr_assert_eq(import(&e), HEDDLE_ERR_DATA_DIR, "row %zu: %s", i, e.message);
        cr_assert_not_null(strstr(e.message, "no broker starts with"), "%s", e.message);
        cr_assert_not_null(strstr(e.found, bad[i].found), "row %zu: %s", i, e.found);
        cr_assert(*e.hint && !is_in_home("registry.db") && !is_in_home(".import"));
    }
    rows_destroy(&T.rows);
    T.rows = rows_rig_new(EPOCH);
    fill(T.rows);
    imported();
    has_all();
}

/* The registry of somebody else, by chance of that name, also behind a link. */
Test(contract_import, what_no_import_made_stays)
{
    heddle_error_t e = {0};
    char work[200], file[220], other[200];
    struct stat was, now;
    if (!is_sqlite()) return;
    snprintf(work, sizeof work, "%s/.import", T.home);
    snprintf(other, sizeof other, "%s/other", dir);
    snprintf(file, sizeof file, "%s/registry.db", work);
    for (int is_link = 0; is_link < 2; is_link++) {
        cr_assert_eq(store_open(is_link ? other : work, &T.sqlite, &e), HEDDLE_OK, "%s", e.message);
        close_store();
        if (is_link) cr_assert_eq(symlink(other, work), 0);
        cr_assert_eq(stat(file, &was), 0);
        cr_assert_eq(import(&e), HEDDLE_ERR_DATA_DIR, "%s", e.message);
        cr_assert_not_null(strstr(e.message, "was made by no import"), "%s", e.message);
        cr_assert_eq(stat(file, &now), 0);
        cr_assert(was.st_ino == now.st_ino && was.st_size == now.st_size);
        cr_assert(!is_in_home("registry.db"));
        snprintf(other, sizeof other, "%s/moved%d", dir, is_link);
        cr_assert_eq(rename(work, other), 0);
    }
    imported();
    has_all();
}

/* As of a process that was killed: a part of the rows is there, and no broker takes them for the registry. */
Test(contract_import, one_that_was_not_finished_begins_anew)
{
    heddle_error_t e = {0};
    record_t other[] = {{.kind = RECORD_ADAPTER, .adapter = "left"},
                        {.kind = RECORD_FLOOR, .adapter = "left", .version = 3}};
    if (is_sqlite()) {
        char work[200], mark[220];
        snprintf(work, sizeof work, "%s/.import", T.home);
        snprintf(mark, sizeof mark, "%s/unfinished", work);
        cr_assert_eq(store_open(work, &T.sqlite, &e), HEDDLE_OK, "%s", e.message);
        cr_assert_eq(store_commit(T.sqlite, other, 2, &e), HEDDLE_OK);
        close_store();
        int fd = open(mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        cr_assert(fd >= 0);
        close(fd);
    } else {
        etcd_opts_t opts = etcd_opts();
        opts.purpose = ETCD_IMPORT;
        opts.cluster = "ffffffffffffffff";
        opts.import_epoch = 99;
        cr_assert_eq(etcd_open(&opts, &T.etcd, &e), HEDDLE_OK, "%s", e.message);
        cr_assert_eq(etcd_write(T.etcd, other, 2, &e), HEDDLE_OK, "%s", e.message);
        cr_assert_eq(import(&e), HEDDLE_ERR_DATA_LOCKED, "it is under way");
        close_store();
        opts = etcd_opts();
        cr_assert_eq(etcd_open(&opts, &T.etcd, &e), HEDDLE_ERR_DATA_DIR);
        cr_assert_not_null(strstr(e.message, "not finished"), "%s", e.message);
    }
    imported();
    has_all();
}

/* As of a process that was killed after the move. */
Test(contract_import, what_one_left_goes_though_the_next_one_is_refused)
{
    heddle_error_t e = {0};
    char work[200], mark[220];
    if (!is_sqlite()) return;
    imported();
    snprintf(work, sizeof work, "%s/.import", T.home);
    snprintf(mark, sizeof mark, "%s/unfinished", work);
    cr_assert_eq(mkdir(work, 0700), 0);
    int fd = open(mark, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    cr_assert(fd >= 0);
    close(fd);
    cr_assert_eq(import(&e), HEDDLE_ERR_DATA_DIR, "%s", e.message);
    cr_assert_not_null(strstr(e.message, "has data"), "%s", e.message);
    cr_assert(!is_in_home(".import"));
    has_all();
}

/* Made by root, its files would be of no use to the broker of that user. */
Test(contract_import, root_imports_into_no_directory_of_another_user)
{
    enum { OTHER = 12345 };
    heddle_error_t e = {0};
    char below[200];
    if (!is_sqlite() || geteuid()) return; /* only root could do it */
    snprintf(below, sizeof below, "%s/a/b", T.home);
    cr_assert(mkdir(T.home, 0700) == 0 && chown(T.home, OTHER, OTHER) == 0);
    cr_assert_eq(import(&e), HEDDLE_ERR_DATA_DIR, "%s", e.message);
    cr_assert(strstr(e.message, "uid 12345") && strstr(e.hint, "sudo -u"), "%s: %s", e.message, e.hint);
    cr_assert_eq(import_to_dir(T.rows, below, &e), HEDDLE_ERR_DATA_DIR,
                 "nor into one that would be made there");
    cr_assert(!is_in_home("lock") && !is_in_home("a") && !is_in_home(".import"));
    cr_assert_eq(chown(T.home, 0, 0), 0);
    imported();
    has_all();
}

Test(contract_import, a_file_system_may_have_no_call_that_replaces_nothing)
{
    if (!is_sqlite()) return;
#ifdef HEDDLE_TEST_BUILD
    failpoint_arm("import.rename", 1);
#endif
    imported();
    cr_assert(is_in_home("registry.db") && !is_in_home(".import"));
    has_all();
}

static int call_of(const char *endpoint)
{
    char host[64] = "";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const char *colon = strchr(endpoint, ':');
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    memcpy(host, endpoint, (size_t)(colon - endpoint));
    cr_assert_eq(inet_pton(AF_INET, host, &to.sin_addr), 1);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* By another program: once all rows are written, or on their way, one of an earlier transaction goes. */
static void delete_key(void *self, const etcd_wait_t *now)
{
    bool *is_gone = self;
    etcd_txn_t t;
    buf_t body = {0}, request = {0};
    char answer[512];
    if (*is_gone || now->rows + 1 < rows_count(T.rows)) return; /* the keys say what its row r/i says */
    *is_gone = true;
    etcd_txn_begin(&t, &body, strstr(T.url, "import/"));
    etcd_txn_delete(&t, "k/" ROWS_RIG_INVITATION);
    etcd_txn_end(&t);
    buf_printf(&request, "POST /v3/kv/txn HTTP/1.1\r\nHost: e\r\nContent-Length: %zu\r\n\r\n%.*s", body.bytes,
               (int)body.bytes, (const char *)body.data);
    int fd = call_of(getenv("HEDDLE_ETCD"));
    cr_assert_eq(write(fd, request.data, request.bytes), (ssize_t)request.bytes);
    cr_assert(read(fd, answer, sizeof answer) > 0);
    close(fd);
    buf_fini(&body);
    buf_fini(&request);
}

Test(contract_import, what_is_read_back_is_what_was_written)
{
    heddle_error_t e = {0};
    bool is_gone = false;
    etcd_opts_t opts = etcd_opts();
    if (is_sqlite()) return; /* its directory is locked, and its place is made by the import alone */
    opts.on_wait = delete_key;
    opts.self = &is_gone;
    cr_assert_eq(import_to_etcd(T.rows, &opts, &e), HEDDLE_ERR_DATA_DIR, "%s", e.message);
    cr_assert(is_gone && strstr(e.message, "read back") && strstr(e.message, "not whole"), "%s", e.message);
    cr_assert(strstr(e.hint, "no other program") && strstr(e.hint, "run the import again"), "%s", e.hint);
    opts = etcd_opts();
    cr_assert_eq(etcd_open(&opts, &T.etcd, &e), HEDDLE_ERR_DATA_DIR, "no broker starts there");
    imported();
    has_all();
}

/* Its connections are made, and nothing comes over them. */
Test(contract_import, an_etcd_that_is_silent_is_given_up)
{
    heddle_error_t e = {0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;
    etcd_opts_t opts = etcd_opts();
    char url[64];
    if (is_sqlite()) return;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(bind(fd, (struct sockaddr *)&at, bytes) == 0 && listen(fd, 9) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    snprintf(url, sizeof url, "etcd://127.0.0.1:%u/x", ntohs(at.sin_port));
    opts.url = url;
    opts.patience_ms = 1;
    cr_assert_eq(import_to_etcd(T.rows, &opts, &e), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(e.message, "etcd has not answered for"), "%s", e.message);
    close(fd);
}

Test(contract_import, what_is_not_there_is_not_exported)
{
    heddle_error_t e = {0};
    etcd_opts_t opts = etcd_opts();
    if (is_sqlite()) return; /* the command looks whether the file is there */
    opts.purpose = ETCD_EXPORT;
    cr_assert_eq(etcd_open(&opts, &T.etcd, &e), HEDDLE_ERR_NOT_FOUND, "%s", e.message);
    imported(); /* it has left nothing */
    open_store();
    etcd_t *second = NULL;
    cr_assert_eq(etcd_open(&opts, &second, &e), HEDDLE_ERR_DATA_LOCKED, "%s", e.message);
    cr_assert_null(second);
}
