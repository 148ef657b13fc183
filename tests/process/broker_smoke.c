/* SPDX-License-Identifier: Apache-2.0 */
/* The real heddle-broker: how it starts, what it refuses to start with, what survives its death, how it ends. */
#include "tests/lib/temp_dir.h"
#include "tests/process/child.h"
#include "tests/process/caller.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000, TERM_MS = 1000 };

TestSuite(broker, .init = make_dir, .fini = remove_dir, .timeout = 60);

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* ---- a broker -------------------------------------------------------------------------------------------------- */

typedef struct {
    child_t child;
    json_t *ready;
    char endpoint[128];
} running_t;

static void start_with(running_t *r, const char *data, const char *const env[])
{
    char line[4096];
    const char *argv[] = {"heddle-broker",
                          "--listen",
                          "tcp://127.0.0.1:*",
                          "--lease",
                          "4s",
                          data ? "--data" : NULL,
                          data,
                          NULL};
    child_start(&r->child, argv, env);
    if (!child_line(&r->child, line, sizeof line, PATIENCE_MS)) {
        int status = child_end(&r->child, 0);
        cr_assert_fail("no ready line; ended with %d: %s", status, r->child.err);
    }
    r->ready = json_loads(line, 0, NULL);
    cr_assert_not_null(r->ready, "%s", line);
    snprintf(r->endpoint, sizeof r->endpoint, "%s", json_string_value(json_object_get(r->ready, "endpoint")));
}

static void start(running_t *r) { start_with(r, dir, NULL); }

static int end(running_t *r, int number)
{
    json_decref(r->ready);
    child_signal(&r->child, number);
    return child_end(&r->child, TERM_MS);
}

static void dial(caller_t *l, const running_t *r, role_t role)
{
    cr_assert(caller_dial(l, r->endpoint, role, PATIENCE_MS));
}

static int64_t number_at(const json_t *object, const char *key, const char *inner)
{
    const json_t *v = json_object_get(object, key);
    if (inner) v = json_object_get(v, inner);
    cr_assert(json_is_integer(v), "%s", key);
    return json_integer_value(v);
}

static const char *text_at(const json_t *object, const char *key, const char *inner)
{
    const json_t *v = json_object_get(object, key);
    if (inner) v = json_object_get(v, inner);
    return json_is_string(v) ? json_string_value(v) : "";
}

/* How many versions the adapter has; -1 when the broker knows none of that name. */
static int64_t version_count(const running_t *r)
{
    caller_t l;
    dial(&l, r, ROLE_ADMIN);
    json_t *body = caller_ask(&l, &(msg_query_t){.req = 1, .op = "adapters"});
    const json_t *list = json_object_get(body, "adapters");
    int64_t count = json_array_size(list) ? number_at(json_array_get(list, 0), "version_count", NULL) : -1;
    json_decref(body);
    caller_hang_up(&l);
    return count;
}

/* ---- starting and ending --------------------------------------------------------------------------------------- */

Test(broker, ready_line_and_status)
{
    running_t r;
    start(&r);
    static const struct {
        const char *key;
        char type;
    } FIELDS[] = {{"schema", 's'},   {"kind", 's'},     {"ok", 'b'},      {"role", 's'},
                  {"pid", 'i'},      {"endpoint", 's'}, {"cluster", 's'}, {"epoch", 'i'},
                  {"data_dir", 's'}, {"wire", 'o'},     {"heddle", 's'},  {"leads", 'b'}};
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const json_t *v = json_object_get(r.ready, FIELDS[i].key);
        bool fits = FIELDS[i].type == 's'   ? json_is_string(v)
                    : FIELDS[i].type == 'i' ? json_is_integer(v)
                    : FIELDS[i].type == 'b' ? json_is_true(v)
                                            : json_is_object(v);
        cr_assert(fits, "%s", FIELDS[i].key);
    }
    cr_assert_str_eq(text_at(r.ready, "kind", NULL), "ready");
    cr_assert_str_eq(text_at(r.ready, "role", NULL), "broker");
    cr_assert_str_eq(text_at(r.ready, "data_dir", NULL), dir);
    cr_assert_eq(number_at(r.ready, "pid", NULL), r.child.pid);
    cr_assert_eq(number_at(r.ready, "epoch", NULL), 1);
    cr_assert_leq(number_at(r.ready, "wire", "min"), number_at(r.ready, "wire", "max"));
    caller_t l;
    dial(&l, &r, ROLE_ADMIN);
    json_t *body = caller_ask(&l, &(msg_query_t){.req = 1, .op = "status"});
    cr_assert_str_eq(text_at(body, "broker", "endpoint"), r.endpoint);
    cr_assert_str_eq(text_at(body, "broker", "cluster"), text_at(r.ready, "cluster", NULL));
    cr_assert_str_eq(text_at(body, "broker", "state"), "ready");
    cr_assert_eq(number_at(body, "broker", "pid"), r.child.pid);
    cr_assert_gt(number_at(body, "broker", "registry_bytes"), 0);
    json_decref(body);
    caller_hang_up(&l);
    cr_assert_eq(end(&r, SIGTERM), 0, "%s", r.child.err);
}

Test(broker, ends_on_both_signals_with_clients_connected)
{
    static const int SIGNALS[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        running_t r;
        caller_t l;
        start(&r);
        dial(&l, &r, ROLE_PUBLISHER);
        caller_open(&l, "policy");
        cr_assert_eq(end(&r, SIGNALS[i]), 0, "signal %d: %s", SIGNALS[i], r.child.err);
        caller_hang_up(&l);
    }
}

Test(broker, data_go_where_the_standard_says)
{
    char env[3][128], want[128];
    running_t r;
    snprintf(env[0], sizeof env[0], "XDG_STATE_HOME=%s/state", dir);
    start_with(&r, NULL, (const char *const[]){env[0], NULL});
    snprintf(want, sizeof want, "%s/state/heddle", dir);
    cr_assert_str_eq(text_at(r.ready, "data_dir", NULL), want);
    cr_assert_eq(end(&r, SIGTERM), 0);
    struct stat st;
    cr_assert(stat(want, &st) == 0 && (st.st_mode & 0777) == 0700);
    snprintf(env[1], sizeof env[1], "HOME=%s", dir);
    start_with(&r, NULL, (const char *const[]){"XDG_STATE_HOME", env[1], NULL});
    snprintf(want, sizeof want, "%s/.local/state/heddle", dir);
    cr_assert_str_eq(text_at(r.ready, "data_dir", NULL), want);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

/* ---- refusals: exit status, text on stderr, object on stdout with -o json -------------------------------------- */

static json_t *refused(const char *const argv[], const char *const env[], int status, const char *code)
{
    child_t c;
    char line[4096];
    child_start(&c, argv, env);
    bool said = child_line(&c, line, sizeof line, PATIENCE_MS);
    cr_assert_eq(child_end(&c, PATIENCE_MS), status, "%s: %s", code, c.err);
    cr_assert(strstr(c.err, code) && strstr(c.err, "hint:"), "%s: %s", code, c.err);
    cr_assert(said, "nothing on stdout");
    json_t *object = json_loads(line, 0, NULL);
    cr_assert_str_eq(text_at(object, "kind", NULL), "broker");
    cr_assert(json_is_false(json_object_get(object, "ok")));
    cr_assert_str_eq(text_at(object, "error", "code"), code);
    cr_assert_eq(number_at(object, "error", "exit"), status);
    return object;
}

static json_t *refused_data(const char *data, int status, const char *code)
{
    return refused((const char *const[]){"heddle-broker", "-o", "json", "--listen", "tcp://127.0.0.1:*",
                                         "--data", data, NULL},
                   NULL, status, code);
}

Test(broker, one_broker_a_directory)
{
    running_t r;
    start(&r);
    json_t *object = refused_data(dir, 4, "data_locked");
    char pid[32];
    snprintf(pid, sizeof pid, "pid %d", r.child.pid);
    cr_assert(strstr(text_at(object, "error", "message"), pid), "%s", text_at(object, "error", "message"));
    json_decref(object);
    cr_assert_eq(version_count(&r), -1);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

Test(broker, a_port_that_is_taken)
{
    running_t r;
    start(&r);
    json_t *object = refused((const char *const[]){"heddle-broker", "-o", "json", "--listen", r.endpoint,
                                                   "--data", path_of("other"), NULL},
                             NULL, 9, "address_in_use");
    cr_assert(strstr(text_at(object, "error", "message"), strrchr(r.endpoint, ':')), "%s",
              text_at(object, "error", "message"));
    json_decref(object);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

static void serves_and_ends(const char *const argv[])
{
    child_t c;
    char line[4096];
    child_start(&c, argv, NULL);
    cr_assert(child_line(&c, line, sizeof line, PATIENCE_MS));
    child_signal(&c, SIGTERM);
    cr_assert_eq(child_end(&c, TERM_MS), 0, "%s", c.err);
}

Test(broker, an_address_that_others_can_reach)
{
    const char *argv[] = {"heddle-broker", "-o", "json", "--listen", "tcp://0.0.0.0:*",
                          "--data",        dir,  NULL,   NULL};
    char ring[4096], house[4096];
    snprintf(ring, sizeof ring, "%s", getenv("HEDDLE_KEYS"));
    snprintf(house, sizeof house, "%s", getenv("HOME"));
    unsetenv("HEDDLE_KEYS");
    unsetenv("XDG_CONFIG_HOME");
    setenv("HOME", "/dev/null", 1); /* no place for keys, and nobody named one */
    json_decref(refused(argv, NULL, 2, "insecure_address"));
    cr_assert_neq(access(path_of("registry.db"), F_OK), 0, "refused before anything was made");
    setenv("HEDDLE_KEYS", "/dev/null/keys", 1);
    json_decref(refused(argv, NULL, 9, "data_dir"));
    setenv("HEDDLE_KEYS", ring, 1);
    setenv("HOME", house, 1);
    serves_and_ends(argv); /* with keys */
    argv[7] = "--insecure";
    serves_and_ends(argv);
}

/* Nobody named a ring: it is made in the user's configuration, and only where that cannot be there is none. */
static void own_ring(char *ret_ring, size_t size)
{
    unsetenv("HEDDLE_KEYS");
    setenv("XDG_CONFIG_HOME", dir, 1);
    snprintf(ret_ring, size, "%s/heddle/keys", dir);
}

static void overwrite(const char *ring, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", ring, name);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

Test(broker, a_damaged_key_is_no_leave_to_go_without)
{
    const char *argv[] = {"heddle-broker", "-o", "json", "--listen", "tcp://127.0.0.1:*",
                          "--data",        dir,  NULL,   NULL};
    static const char *const NAMES[] = {"broker.key", "client.key"};
    char ring[256], fresh[512];
    snprintf(fresh, sizeof fresh, "%s/fresh", dir); /* a registry that nobody was given a key for */
    own_ring(ring, sizeof ring);
    for (int i = 0; i < 2; i++) {
        argv[6] = dir;
        serves_and_ends(argv);
        overwrite(ring, NAMES[i], "");
        argv[6] = fresh;
        json_t *object = refused(argv, NULL, 9, "data_dir");
        cr_assert(strstr(text_at(object, "error", "message"), NAMES[i]) && *text_at(object, "error", "hint"));
        json_decref(object);
        argv[7] = "--insecure";
        serves_and_ends(argv);
        argv[7] = NULL;
        char path[512];
        snprintf(path, sizeof path, "%s/%s", ring, NAMES[i]);
        cr_assert_eq(unlink(path), 0);
    }
}

Test(broker, a_registry_with_keys_is_not_served_without)
{
    const char *plain[] = {"heddle-broker", "-o",           "json", "--listen", "tcp://127.0.0.1:*",
                           "--data",        path_of("new"), NULL,   NULL,       NULL};
    char data[512], ring[256];
    snprintf(data, sizeof data, "%s", plain[6]);
    plain[6] = data;
    own_ring(ring, sizeof ring);
    setenv("XDG_CONFIG_HOME", "/dev/null", 1);
    serves_and_ends(plain); /* nothing to betray yet */
    plain[7] = "--admin-key", plain[8] = "QGid9dddddaaaaaaaaaabbbbbbbbbbcccccccccc";
    json_decref(refused(plain, NULL, 9, "data_dir"));
    plain[7] = plain[8] = NULL;
    setenv("XDG_CONFIG_HOME", dir, 1);
    serves_and_ends(plain); /* its first admin */
    setenv("XDG_CONFIG_HOME", "/dev/null", 1);
    json_t *object = refused(plain, NULL, 9, "data_dir");
    cr_assert_not_null(strstr(text_at(object, "error", "hint"), "--insecure"));
    json_decref(object);
    plain[7] = "--insecure";
    serves_and_ends(plain);
}

Test(broker, arguments_that_are_wrong)
{
    static const char *const ROWS[][4] = {{"--lease", "1ms"},
                                          {"--lease", "2h"},
                                          {"--keep", "62"},
                                          {"--keep", "-1"},
                                          {"--keep", "x"},
                                          {"--listen", "nonsense"},
                                          {"--listen", "tcp://127.0.0.1:99999"},
                                          {"--what", "x"},
                                          {"surplus", NULL},
                                          {"--data", ""}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const char *argv[] = {"heddle-broker", "--data", dir, "-o", "json", ROWS[i][0], ROWS[i][1], NULL};
        json_decref(refused(argv, NULL, 2, "usage"));
    }
    json_decref(refused((const char *const[]){"heddle-broker", "--output=json", NULL},
                        (const char *const[]){"HOME=relative", "XDG_STATE_HOME=also/relative", NULL}, 2,
                        "usage"));
}

/* As root a directory of mode 0555 can be written all the same: there it is a read-only mount. */
Test(broker, a_directory_that_cannot_be_written)
{
    if (geteuid() == 0) {
        if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
            mount("none", dir, "tmpfs", 0, "size=1m") ||
            mount("none", dir, NULL, MS_REMOUNT | MS_RDONLY, "size=1m"))
            skip("no mount namespace here");
    } else {
        cr_assert_eq(chmod(dir, 0555), 0);
    }
    char uid[32];
    snprintf(uid, sizeof uid, "uid %u", geteuid());
    json_t *object = refused_data(dir, 9, "data_dir");
    cr_assert(strstr(text_at(object, "error", "message"), dir) &&
              strstr(text_at(object, "error", "found"), uid));
    json_decref(object);
    if (geteuid() == 0) umount(dir);
    else chmod(dir, 0700);
    object = refused_data("/dev/null", 9, "data_dir");
    cr_assert(strstr(text_at(object, "error", "message"), "/dev/null"));
    json_decref(object);
}

/* ---- what survives --------------------------------------------------------------------------------------------- */

Test(broker, killed_and_started_again)
{
    running_t r;
    caller_t l;
    uint64_t version = 0;
    start(&r);
    dial(&l, &r, ROLE_PUBLISHER);
    caller_open(&l, "policy");
    for (uint8_t content = 1; content <= 3; content++)
        cr_assert_eq(caller_publish(&l, "policy", content, &version), HEDDLE_OK);
    cr_assert_eq(version, 3);
    char cluster[64];
    snprintf(cluster, sizeof cluster, "%s", text_at(r.ready, "cluster", NULL));
    cr_assert_eq(end(&r, SIGKILL), 128 + SIGKILL);
    caller_hang_up(&l);
    start(&r);
    cr_assert_eq(number_at(r.ready, "epoch", NULL), 2);
    cr_assert_str_eq(text_at(r.ready, "cluster", NULL), cluster);
    dial(&l, &r, ROLE_ADMIN);
    json_t *body = caller_ask(&l, &(msg_query_t){.req = 1, .op = "versions", .name = "policy", .version = 3});
    const json_t *row = json_array_get(json_object_get(body, "versions"), 0);
    digest_t digest = {{3}};
    char text[HEDDLE_DIGEST_TEXT];
    digest_text(&digest, text);
    cr_assert_str_eq(text_at(row, "digest", NULL), text);
    json_decref(body);
    caller_hang_up(&l);
    cr_assert_eq(version_count(&r), 3);
    dial(&l, &r, ROLE_PUBLISHER);
    caller_open(&l, "policy");
    cr_assert_eq(caller_publish(&l, "policy", 4, &version), HEDDLE_OK);
    cr_assert_eq(version, 4, "numbers go on");
    caller_hang_up(&l);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

Test(broker, garbage_harms_nobody)
{
    running_t r;
    caller_t bad, good;
    start(&r);
    dial(&good, &r, ROLE_ADMIN);
    static const struct {
        const char *bytes;
        size_t count;
        const char *code;
    } FRAMES[] = {{"\xc1", 1, "protocol"},
                  {"\x92\x01", 2, "protocol"},
                  {"GET / HTTP/1.1\r\n\r\n", 18, "protocol"},
                  {"\x92\x17\xdf\xff\xff\xff\xff", 7, "limit"}, /* a map of 2^32 - 1 keys */
                  {"\x92\xcd\x03\xe7\x80", 5, "protocol"}};
    for (size_t i = 0; i < sizeof FRAMES / sizeof *FRAMES; i++) {
        msg_t m;
        dial(&bad, &r, ROLE_ADMIN);
        caller_send_raw(&bad, bytes_of(FRAMES[i].bytes, FRAMES[i].count));
        cr_assert(caller_read(&bad, MSG_ERROR, MSG_ERROR, &m), "frame %zu was not answered", i);
        cr_assert_str_eq(m.error.code, FRAMES[i].code);
        msg_fini(&m);
        caller_hang_up(&bad);
        json_decref(caller_ask(&good, &(msg_query_t){.req = 1, .op = "status"}));
    }
    caller_hang_up(&good);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

#ifdef HEDDLE_TEST_BUILD
/* The fourth commit is the publication: before it come the epoch, the first admin's key and the writer. */
static uint64_t publish_at(const char *failpoint, int *ret_code, running_t *r)
{
    caller_t l;
    char env[96];
    uint64_t version = 0;
    snprintf(env, sizeof env, "HEDDLE_FAILPOINTS=%s", failpoint);
    start_with(r, dir, (const char *const[]){env, NULL});
    dial(&l, r, ROLE_PUBLISHER);
    caller_open(&l, "policy");
    *ret_code = caller_publish(&l, "policy", 1, &version);
    caller_hang_up(&l);
    return version;
}

Test(broker, killed_before_the_commit_nothing_happened)
{
    running_t r;
    int code;
    publish_at("store.before_commit=kill:4", &code, &r);
    cr_assert_neq(code, HEDDLE_OK);
    json_decref(r.ready);
    cr_assert_eq(child_end(&r.child, PATIENCE_MS), 128 + SIGKILL);
    start(&r);
    cr_assert_leq(version_count(&r), 0);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

Test(broker, killed_after_the_commit_it_did)
{
    running_t r;
    int code;
    publish_at("store.after_commit=kill:4", &code, &r);
    cr_assert_neq(code, HEDDLE_OK, "nobody was told");
    json_decref(r.ready);
    cr_assert_eq(child_end(&r.child, PATIENCE_MS), 128 + SIGKILL);
    start(&r);
    cr_assert_eq(version_count(&r), 1);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

Test(broker, a_commit_that_fails_is_an_answer)
{
    running_t r;
    caller_t l;
    int code;
    publish_at("store.before_commit=error:4", &code, &r);
    cr_assert_eq(code, HEDDLE_ERR_NO_SPACE);
    cr_assert_leq(version_count(&r), 0);
    uint64_t version = 0;
    dial(&l, &r, ROLE_PUBLISHER);
    caller_open(&l, "policy");
    cr_assert_eq(caller_publish(&l, "policy", 1, &version), HEDDLE_OK);
    cr_assert_eq(version, 1);
    caller_hang_up(&l);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

/* Whether a failed sync left the record on disk is unknown: the broker ends rather than guess. */
Test(broker, a_sync_that_fails_ends_it)
{
    running_t r;
    int code;
    publish_at("store.after_commit=error:4", &code, &r);
    cr_assert_neq(code, HEDDLE_OK, "nobody was told yes");
    json_decref(r.ready);
    cr_assert_eq(child_end(&r.child, PATIENCE_MS), 9);
    cr_assert(strstr(r.child.err, "data_dir") && strstr(r.child.err, dir), "%s", r.child.err);
    start(&r);
    cr_assert_eq(version_count(&r), 1);
    cr_assert_eq(end(&r, SIGTERM), 0);
}
#endif

/* Needs no privileges: a limit of file sizes below what the registry has now. */
Test(broker, a_limit_of_file_sizes_is_a_full_disk)
{
    running_t r;
    caller_t l;
    uint64_t version = 0;
    start(&r);
    dial(&l, &r, ROLE_PUBLISHER);
    caller_open(&l, "policy");
    cr_assert_eq(caller_publish(&l, "policy", 1, &version), HEDDLE_OK);
    struct rlimit before, none = {.rlim_cur = 4096};
    cr_assert_eq(prlimit(r.child.pid, RLIMIT_FSIZE, NULL, &before), 0);
    none.rlim_max = before.rlim_max;
    cr_assert_eq(prlimit(r.child.pid, RLIMIT_FSIZE, &none, NULL), 0);
    cr_assert_eq(caller_publish(&l, "policy", 2, &version), HEDDLE_ERR_NO_SPACE);
    cr_assert_eq(prlimit(r.child.pid, RLIMIT_FSIZE, &before, NULL), 0);
    cr_assert_eq(caller_publish(&l, "policy", 2, &version), HEDDLE_OK);
    cr_assert_eq(version, 2);
    caller_hang_up(&l);
    cr_assert_eq(end(&r, SIGTERM), 0);
}

/* ---- a full disk ----------------------------------------------------------------------------------------------- */

static void fill(void)
{
    static const char page[4096];
    int fd = open(path_of("ballast"), O_WRONLY | O_CREAT, 0600);
    while (write(fd, page, sizeof page) > 0) continue;
    cr_assert_eq(errno, ENOSPC);
    close(fd);
}

static bool has_state(const running_t *r, const char *state)
{
    caller_t l;
    dial(&l, r, ROLE_ADMIN);
    json_t *body = caller_ask(&l, &(msg_query_t){.req = 1, .op = "status"});
    bool has = !strcmp(text_at(body, "broker", "state"), state);
    json_decref(body);
    caller_hang_up(&l);
    return has;
}

static void expect_state(const running_t *r, const char *state)
{
    cr_assert(has_state(r, state), "%s", state);
}

static void await_state(const running_t *r, const char *state)
{
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_MS * 1000ull;
    while (!has_state(r, state)) cr_assert_lt(clock_now(clock_system()), end_us, "it never was %s", state);
}

/* The tmpfs is in a mount namespace of this test's own, which the broker inherits. */
Test(broker, a_full_disk_stops_publishing_and_nothing_else)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", dir, "tmpfs", 0, "size=1m"))
        skip("needs root and a mount namespace");
    running_t r;
    caller_t l;
    uint64_t version = 0;
    start(&r);
    dial(&l, &r, ROLE_PUBLISHER);
    caller_open(&l, "policy");
    cr_assert_eq(caller_publish(&l, "policy", 1, &version), HEDDLE_OK);
    fill();
    int code = HEDDLE_OK;
    uint8_t content = 2;
    for (; code == HEDDLE_OK && content < 250; content++)
        code = caller_publish(&l, "policy", content, &version);
    cr_assert_eq(code, HEDDLE_ERR_NO_SPACE);
    expect_state(&r, "read_only");
    cr_assert_eq(unlink(path_of("ballast")), 0);
    await_state(&r, "ready"); /* by itself: nobody publishes */
    uint64_t next = 0;
    cr_assert_eq(caller_publish(&l, "policy", content, &next), HEDDLE_OK);
    cr_assert_eq(next, version + 1, "no number was used up");
    expect_state(&r, "ready");
    caller_hang_up(&l);
    cr_assert_eq(end(&r, SIGTERM), 0);
    umount(dir);
}

Test(broker, a_full_disk_at_the_start)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", dir, "tmpfs", 0, "size=1m"))
        skip("needs root and a mount namespace");
    fill();
    json_t *object = refused_data(dir, 9, "no_space");
    cr_assert(strstr(text_at(object, "error", "message"), dir), "%s", text_at(object, "error", "message"));
    cr_assert(strstr(text_at(object, "error", "hint"), "make room"), "%s", text_at(object, "error", "hint"));
    json_decref(object);
    umount(dir);
}
