/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing here judges.  What the library does for a worker it does here, too (heddle_host_probe), so that it
 * fails for the same reasons; the rest are small files of the kernel, and questions to the broker. */
#include "cli/facts.h"

#include "cli/reach.h"
#include "core/clock.h"
#include "core/contexts.h"
#include "core/descriptors.h"
#include "core/errors.h"
#include "core/names.h"
#include "core/option_json.h"
#include "core/utf8.h"

#include <heddle/keys.h>

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

/* NULL, and with it no part at all, where there is no memory: null would say that nothing failed. */
static json_t *failure(const heddle_error_t *error)
{
    json_t *object = cli_error_object("", error);
    return json_is_object(object) ? object : NULL;
}

/* Of the call that just failed. */
static json_t *last_error(void) { return failure(heddle_last_error()); }

static json_t *parsed(char *text)
{
    json_t *value = text ? json_loads(text, 0, NULL) : NULL;
    heddle_free(text);
    return value;
}

static json_t *or_null(json_t *value) { return value ? json_incref(value) : json_null(); }

static json_t *bytes_or_null(bool is_known, uint64_t bytes)
{
    return is_known && bytes < (1ull << 53) ? json_integer((json_int_t)bytes) : json_null();
}

/* ---- the kernel ---- */

/* The first line of a small file, without its end; false: it cannot be read. */
static bool line_of(const char *path, char *ret_line, size_t size)
{
    FILE *f = fopen(path, "re");
    bool is_read = f && fgets(ret_line, (int)size, f);
    if (f) fclose(f);
    if (is_read) ret_line[strcspn(ret_line, "\n")] = 0;
    return is_read;
}

static json_t *file_text(const char *path)
{
    char line[256];
    return line_of(path, line, sizeof line) ? utf8_json(line) : json_null();
}

/* "always within_size [advise] never": the one in brackets. */
static json_t *huge_pages(void)
{
    char line[256];
    if (!line_of("/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof line)) return json_null();
    char *from = strchr(line, '['), *to = from ? strchr(from, ']') : NULL;
    return to ? json_stringn(from + 1, (size_t)(to - from - 1)) : json_null();
}

static json_t *limits(void)
{
    struct rlimit size;
    bool is_limited = getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY;
    return json_pack("{s:o, s:o}", "descriptors", bytes_or_null(true, descriptors_limit()), "file_bytes",
                     bytes_or_null(is_limited, size.rlim_cur));
}

static json_t *network(void)
{
    return json_pack("{s:o}", "congestion", file_text("/proc/sys/net/ipv4/tcp_congestion_control"));
}

/* ---- this host ---- */

/* A file that is not there is made when it is needed first. */
static json_t *own_key(const common_t *c)
{
    char key[HEDDLE_KEY_TEXT] = "", *file = NULL;
    int rc = heddle_key_public(c->key, key, &file);
    bool is_made_later = rc == HEDDLE_ERR_NOT_FOUND && !c->key;
    json_t *part = json_pack("{s:o, s:o, s:o}", "file", utf8_json_or_null(file), "public_key",
                             key[0] && !rc ? json_string(key) : json_null(), "error",
                             rc && !is_made_later ? last_error() : json_null());
    heddle_free(file);
    return part;
}

/* The three parts of the library, and what it does not look at. */
static int add_probe(const facts_opts_t *opts, json_t *facts)
{
    char *text = NULL;
    struct statvfs shm;
    bool has_shm = statvfs("/dev/shm", &shm) == 0;
    heddle_host_opts_t with = {.size = sizeof with,
                               .broker = opts->common.broker,
                               .broker_key = opts->common.broker_key,
                               .key = opts->common.key,
                               .data_device = opts->data_device,
                               .host_share = opts->host_share,
                               .insecure = opts->insecure};
    int rc = heddle_host_probe(&with, &text);
    if (rc) return rc;
    json_t *probe = parsed(text), *memory = json_object_get(probe, "memory");
    json_object_set_new(memory, "huge_pages", huge_pages());
    json_object_set_new(memory, "shm_bytes", bytes_or_null(has_shm, (uint64_t)shm.f_blocks * shm.f_frsize));
    json_object_update(facts, probe);
    json_decref(probe);
    return HEDDLE_OK;
}

/* ---- what was asked about ---- */

/* What to do about one that is taken is in the table of findings. */
static json_t *listen_part(const char *endpoint)
{
    if (!endpoint) return json_null();
    int rc = heddle_host_listen(endpoint);
    heddle_error_t error = *cli_error(rc);
    if (rc == HEDDLE_ERR_ADDRESS_IN_USE) error.hint[0] = 0;
    else if (rc == HEDDLE_ERR_USAGE)
        error_hint(&error, "--listen names one: tcp://127.0.0.1:7700, or tcp://*:7700 for other hosts, too");
    else error_hint(&error, "name an address of this host, and a port that this user may take: `ip addr`");
    return json_pack("{s:o, s:o}", "endpoint", utf8_json(endpoint), "error",
                     rc ? failure(&error) : json_null());
}

/* Of /proc, /sys and the like, where a superuser may write by the mode of the directory. */
static bool is_of_kernel(const char *at)
{
    static const unsigned KINDS[] = {PROC_SUPER_MAGIC,    SYSFS_MAGIC,   CGROUP_SUPER_MAGIC,
                                     CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, DEVPTS_SUPER_MAGIC};
    struct statfs disk;
    for (size_t i = 0; statfs(at, &disk) == 0 && i < sizeof KINDS / sizeof *KINDS; i++)
        if ((unsigned)disk.f_type == KINDS[i]) return true;
    return false;
}

/* 0: a directory in which this user may make files.  ENOSPC: there is no place for another one, whatever room
 * there is for bytes.  ENOTSUP: none can be there at all. */
static int why_no_file(const char *at, const struct statvfs *disk)
{
    struct stat st;
    if (stat(at, &st) || access(at, W_OK | X_OK)) return errno;
    if (!S_ISDIR(st.st_mode)) return ENOTDIR;
    if (is_of_kernel(at)) return ENOTSUP;
    return disk->f_files && !disk->f_favail ? ENOSPC : 0;
}

static json_t *disk_row(const char *option, const char *path)
{
    struct statvfs disk = {0};
    char at[4096], message[sizeof at + 64];
    snprintf(at, sizeof at, "%s", path);
    /* What is not there yet is made in the folder above. */
    for (char *slash; access(at, F_OK) != 0 && (slash = strrchr(at, '/')); *slash = 0)
        if (slash == at) slash++;
    bool is_relative = access(at, F_OK) != 0;
    if (is_relative) snprintf(at, sizeof at, ".");
    bool is_known = statvfs(at, &disk) == 0 && disk.f_blocks; /* else without a limit, or not said */
    heddle_error_t error;
    json_t *why = json_null();
    int number = why_no_file(at, &disk);
    if (number) {
        snprintf(message, sizeof message, "%s: %s", at,
                 number == ENOSPC    ? "no room for another file (inodes)"
                 : number == ENOTSUP ? "it is of the kernel, and holds no files of programs"
                                     : strerror(number));
        error_fail(&error, HEDDLE_ERR_DATA_DIR, "cannot write to %.300s", message);
        if (number == ENOSPC)
            error_hint(&error, "remove files of that disk; `df -i` shows how many it may have");
        else error_hint(&error, "name a directory that this user may write with %s", option);
        why = failure(&error);
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "option", option, "path", utf8_json(path), "free_bytes",
                     bytes_or_null(is_known, (uint64_t)disk.f_bavail * disk.f_frsize), "error", why);
}

static json_t *disks(const facts_opts_t *opts)
{
    json_t *list = json_array();
    int lost = opts->data && json_array_append_new(list, disk_row("--data", opts->data));
    lost |= opts->export_dir && json_array_append_new(list, disk_row("--export", opts->export_dir));
    if (!lost) return list;
    json_decref(list);
    return NULL;
}

/* Whether a worker that is started with it would start is in the part `invitation`: one that cannot be read
 * names no broker, and the default address is tried as without. */
static json_t *take_join(common_t *c)
{
    char *text = NULL;
    int rc = c->join ? heddle_join_read(c->join, &text) : HEDDLE_OK;
    json_t *named = c->join && !rc ? parsed(text) : NULL;
    if (c->join) c->broker = CONTEXTS_BROKER;
    if (!named) return NULL;
    c->broker = cli_string(named, "broker");
    c->broker_key = cli_string(named, "broker_key");
    return named;
}

/* No use of it is counted. */
static json_t *invitation(const facts_opts_t *opts)
{
    char *text = NULL;
    if (!opts->common.join) return json_null();
    int rc = heddle_join_check(opts->common.join, opts->common.timeout_ms, &text);
    json_t *answer = rc ? NULL : parsed(text), *key = json_object_get(answer, "key"),
           *state = json_object_get(key, "invitation");
    json_t *part = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", or_null(json_object_get(key, "name")), "roles",
        or_null(json_object_get(key, "roles")), "state", or_null(json_object_get(state, "state")),
        "use_count", or_null(json_object_get(state, "use_count")), "used_count",
        or_null(json_object_get(state, "used_count")), "ends_at", or_null(json_object_get(state, "ends_at")),
        "error", rc ? last_error() : json_null());
    json_decref(answer);
    return part;
}

/* ---- the broker ---- */

static void interrupt_admin(void *admin) { heddle_admin_interrupt(admin); }

/* Where none is named, the default address is only tried. */
static bool is_named(const common_t *c)
{
    return c->context || c->broker_key || strcmp(c->broker, CONTEXTS_BROKER) != 0;
}

static json_t *broker_part(const common_t *c, const json_t *status, json_t *error)
{
    const json_t *b = json_object_get(status, "broker");
    json_t *part =
        json_pack("{s:o, s:b, s:o}", "endpoint", utf8_json(c->broker), "named", is_named(c), "error", error);
    static const char *const FIELDS[] = {"heddle", "wire", "cluster", "state", "data_dir"};
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        json_t *field = json_object_get(b, FIELDS[i]);
        json_object_set(part, FIELDS[i], field ? field : json_null());
    }
    return part;
}

/* The broker read its clock between the question and its answer: it is taken to be half-way. */
static json_t *clock_part(const json_t *status, uint64_t asked_ms, uint64_t answered_ms)
{
    uint64_t theirs_ms;
    const char *now = cli_string(json_object_get(status, "broker"), "now_at");
    if (!now || !clock_parse(now, &theirs_ms) || answered_ms < asked_ms) return json_null();
    int64_t ours_ms = (int64_t)(asked_ms + (answered_ms - asked_ms) / 2);
    return json_pack("{s:I, s:I}", "ahead_ms", (json_int_t)(ours_ms - (int64_t)theirs_ms), "round_trip_ms",
                     (json_int_t)(answered_ms - asked_ms));
}

/* Those that have not ended; nothing is known of their reach yet. */
static json_t *worker_rows(const json_t *workers)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const json_t *w = json_array_get(workers, i), *transport = json_object_get(w, "transport");
        const char *state = cli_string(w, "state");
        if (!state || (strcmp(state, "ready") != 0 && strcmp(state, "draining") != 0)) continue;
        json_array_append_new(rows, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:n, s:n}", "name",
                                              or_null(json_object_get(w, "name")), "host",
                                              or_null(json_object_get(w, "host")), "ucx",
                                              or_null(json_object_get(transport, "ucx")), "addresses",
                                              or_null(json_object_get(transport, "addresses")), "memory",
                                              or_null(json_object_get(transport, "memory")), "memory_why",
                                              or_null(json_object_get(transport, "memory_why")), "relay_why",
                                              or_null(json_object_get(w, "relay_why")), "reach", "untested",
                                              "reach_ms", "reach_why"));
    }
    return rows;
}

static int add_workers(const facts_opts_t *opts, heddle_admin_t *admin, json_t *facts)
{
    char *text = NULL;
    int rc = heddle_admin_workers(admin, NULL, &text);
    if (rc) return rc;
    json_t *answer = parsed(text), *rows = worker_rows(json_object_get(answer, "workers"));
    json_object_set_new(facts, "workers", rows);
    json_decref(answer);
    if (json_array_size(rows)) rc = reach_ask(opts, rows);
    cli_on_signal(interrupt_admin, admin);
    return rc == HEDDLE_ERR_INTERRUPTED ? rc : HEDDLE_OK;
}

static int ask_broker(const facts_opts_t *opts, heddle_admin_t *admin, json_t *facts)
{
    char *text = NULL;
    const common_t *c = &opts->common;
    uint64_t asked_ms = clock_wall(clock_system());
    int rc = heddle_admin_status(admin, &text);
    json_t *status = rc ? NULL : parsed(text);
    json_object_set_new(facts, "broker", broker_part(c, status, rc ? last_error() : json_null()));
    json_object_set_new(facts, "clock", clock_part(status, asked_ms, clock_wall(clock_system())));
    json_decref(status);
    if (rc) return rc == HEDDLE_ERR_INTERRUPTED ? rc : HEDDLE_OK;
    rc = add_workers(opts, admin, facts);
    return rc == HEDDLE_ERR_INTERRUPTED ? rc : HEDDLE_OK;
}

static int add_broker(const facts_opts_t *opts, json_t *facts)
{
    const common_t *c = &opts->common;
    heddle_admin_t *admin = NULL;
    heddle_admin_opts_t with = {.size = sizeof with,
                                .broker = c->broker,
                                .broker_key = c->broker_key,
                                .key = c->key,
                                .timeout_ms = c->timeout_ms,
                                .makes_no_file = true};
    json_object_set_new(facts, "clock", json_null());
    json_object_set_new(facts, "workers", json_array());
    if (heddle_admin_open(&with, &admin)) {
        json_object_set_new(facts, "broker", broker_part(c, NULL, last_error()));
        return HEDDLE_OK;
    }
    cli_on_signal(interrupt_admin, admin);
    int rc = ask_broker(opts, admin, facts);
    cli_admin_close(&admin);
    return rc;
}

/* ---- all of it ---- */

/* A part that could not be made is not there.  null would say that it was not examined. */
static bool is_whole(const json_t *facts)
{
    static const char *const PARTS[] = {"ucx",    "data",  "memory",     "broker", "clock",   "workers",
                                        "listen", "disks", "invitation", "limits", "network", "key"};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (!json_object_get(facts, PARTS[i])) return false;
    return true;
}

static json_t *gather(const facts_opts_t *opts)
{
    char host[HEDDLE_NAME_MAX + 1];
    name_host(host);
    json_t *facts = json_pack("{s:s, s:s}", "host", host, "heddle", heddle_version());
    int rc = add_probe(opts, facts);
    if (!rc) rc = add_broker(opts, facts);
    if (rc) { /* before another call of the library has an error of its own */
        json_decref(facts);
        return NULL;
    }
    json_object_set_new(facts, "listen", listen_part(opts->listen));
    json_object_set_new(facts, "disks", disks(opts));
    json_object_set_new(facts, "invitation", invitation(opts));
    json_object_set_new(facts, "limits", limits());
    json_object_set_new(facts, "network", network());
    json_object_set_new(facts, "key", own_key(&opts->common));
    option_json_words(facts);
    if (is_whole(facts)) return facts;
    error_fail(error_last(), HEDDLE_ERR_NO_MEMORY, "no memory is left for the facts of this host");
    json_decref(facts);
    return NULL;
}

json_t *facts_gather(const facts_opts_t *given)
{
    facts_opts_t opts = *given;
    json_t *named = take_join(&opts.common), *facts = gather(&opts);
    json_decref(named); /* its texts were the broker's */
    return facts;
}
