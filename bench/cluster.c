/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the processes, reading their reports, and the two operations that are measured.
 *
 * Every process is as a user runs it: the broker is the installed program, the workers and the publisher use
 * the public library alone. The times of the workers are their own clock readings, taken when it happened;
 * when this process reads them makes no difference. */
#include "bench/cluster.h"

#include "bench/member.h"
#include "bench/moment.h"
#include "core/errors.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SELF "/proc/self/exe"
#define TEXT 512

/* The publisher whose wait a signal has to end.  With two clusters it is the one that was opened last; a wait
 * of the other one ends at its deadline. */
static heddle_publisher_t *volatile interruptible;

void cluster_interrupt(void)
{
    child_interrupt();
    heddle_publisher_t *p = interruptible;
    if (p) heddle_publisher_interrupt(p);
}

/* The library's last error, as the result of this call. */
static int library_error(heddle_error_t *error)
{
    *error = *heddle_last_error();
    return error->code;
}

static const char *text_in(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* ---- the broker ------------------------------------------------------------------------------ */

static int start_broker(cluster_t *c, heddle_error_t *error)
{
    const cluster_opts_t *o = &c->opts;
    cluster_address_t *a = &c->address;
    char program[4096], data[TEXT], keep[16];
    child_beside("heddle-broker", program, sizeof program);
    snprintf(data, sizeof data, "%s/%s-%u", o->scratch, o->name, ++c->registry_count);
    snprintf(keep, sizeof keep, "%u", o->keep);
    const char *insecure = o->insecure ? "--insecure" : NULL;
    /* Only messages of a version count: on a slow machine, heartbeats of the default lease come between. */
    const char *lease = o->is_tapped ? "60s" : "4s";
    const char *const argv[] = {SELF,     "--as", "program", program, "--listen",    "tcp://127.0.0.1:*",
                                "--data", data,   "--keep",  keep,    "--log-level", "warn",
                                "-o",     "json", "--lease", lease,   insecure,      NULL};
    /* The ready line has the address and the key, so nothing has to be agreed on before. */
    char line[8192];
    int rc = child_start(argv, c->log, &c->broker, error);
    if (!rc) rc = child_line(&c->broker, c->log, CLUSTER_DEADLINE_MS, line, sizeof line, error);
    if (rc) return rc;
    json_t *ready = json_loads(line, 0, NULL);
    const char *endpoint = text_in(ready, "endpoint");
    if (*endpoint) {
        snprintf(a->endpoint, sizeof a->endpoint, "%s", endpoint);
        snprintf(a->dialled, sizeof a->dialled, "%s", endpoint);
        snprintf(a->key, sizeof a->key, "%s", text_in(ready, "public_key"));
    } else {
        /* A broker that cannot start prints its error as JSON; it becomes the error of the measurement. */
        const json_t *why = json_object_get(ready, "error");
        int code = heddle_err_from_name(text_in(why, "code"));
        rc = code ? error_fail(error, code, "the broker: %s", text_in(why, "message"))
                  : error_fail(error, HEDDLE_ERR_INTERNAL, "the broker did not get ready: %.300s", line);
        if (code) error_contrast(error, text_in(why, "expected"), text_in(why, "found"));
        if (code) error_hint(error, "%s", text_in(why, "hint"));
    }
    json_decref(ready);
    return rc;
}

/* ---- workers --------------------------------------------------------------------------------- */

/* What a wait for all workers waits for. */
typedef bool done_t(const cluster_worker_t *w, uint64_t version);
static bool is_joined(const cluster_worker_t *w, uint64_t version)
{
    (void)version;
    return w->is_joined;
}
static bool is_active(const cluster_worker_t *w, uint64_t version) { return w->active == version; }
static bool is_staged(const cluster_worker_t *w, uint64_t version) { return w->staged == version; }
static bool is_retired(const cluster_worker_t *w, uint64_t version) { return w->retired >= version; }
static bool is_counted(const cluster_worker_t *w, uint64_t version)
{
    (void)version;
    return w->is_counted;
}

/* The times are in the reports, so the order in which the workers are read does not matter. */
static int wait_workers(cluster_t *c, done_t *done, uint64_t version, heddle_error_t *error)
{
    for (uint32_t i = 0; i < c->worker_count; i++)
        while (!done(&c->workers[i], version)) {
            char line[MEMBER_LINE];
            int rc = child_line(&c->workers[i].child, c->log, CLUSTER_DEADLINE_MS, line, sizeof line, error);
            if (rc) return rc;
            cluster_worker_t *w = &c->workers[i];
            if (!strncmp(line, "joined ", 7)) {
                snprintf(c->transport, sizeof c->transport, "%s", line + 7);
                w->is_joined = true;
            } else if (sscanf(line, "counted %" SCNu64 " %" SCNu64, &w->bytes_in, &w->bytes_out) == 2)
                w->is_counted = true;
            else { /* the first word decides which of them takes the line; bench/member.h lists them */
                sscanf(line, "active %" SCNu64 " %" SCNu64 " %" SCNu64, &w->active, &w->active_ns,
                       &w->switch_ns);
                sscanf(line, "staged %" SCNu64 " %" SCNu64, &w->staged, &w->staged_ns);
                sscanf(line, "retired %" SCNu64, &w->retired);
            }
        }
    return HEDDLE_OK;
}

/* Asked for, not reported all the time: a report in the middle of a measurement would cost CPU. */
static int fetched_bytes(cluster_t *c, uint64_t *ret_bytes, heddle_error_t *error)
{
    for (uint32_t i = 0; i < c->worker_count; i++) {
        c->workers[i].is_counted = false;
        if (write(c->workers[i].child.fd, "count\n", 6) != 6)
            return error_fail(error, HEDDLE_ERR_GONE, "a worker of the measurement ended");
    }
    int rc = wait_workers(c, is_counted, 0, error);
    uint64_t bytes = 0;
    for (uint32_t i = 0; !rc && i < c->worker_count; i++) bytes += c->workers[i].bytes_in;
    if (!rc) *ret_bytes = bytes;
    return rc;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int start_workers(cluster_t *c, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; !rc && i < c->worker_count; i++) {
        char name[32];
        snprintf(name, sizeof name, "bench-%u", i);
        const char *const argv[] = {SELF,
                                    "--as",
                                    "worker",
                                    c->address.dialled,
                                    c->address.key,
                                    name,
                                    c->opts.is_app ? "app" : "auto",
                                    c->opts.owns_memory ? "own" : "shared",
                                    NULL};
        c->workers[i] = (cluster_worker_t){0};
        rc = child_start(argv, c->log, &c->workers[i].child, error);
    }
    /* A version that is published before a worker joined would be measured without it. */
    return rc ? rc : wait_workers(c, is_joined, 0, error);
}

static void end_workers(cluster_t *c)
{
    for (uint32_t i = 0; i < c->worker_count; i++)
        if (c->workers[i].child.pid)
            kill(c->workers[i].child.pid, SIGTERM); /* so that they end side by side */
    for (uint32_t i = 0; i < c->worker_count; i++) child_end(&c->workers[i].child);
}

static int open_publisher(cluster_t *c, heddle_error_t *error)
{
    heddle_publisher_opts_t p = {.size = sizeof p,
                                 .broker = c->address.dialled,
                                 .broker_key = c->address.key[0] ? c->address.key : NULL,
                                 .adapter = MEMBER_ADAPTER,
                                 .writer = "bench"};
    if (heddle_publisher_open(&p, &c->publisher)) return library_error(error);
    interruptible = c->publisher;
    return HEDDLE_OK;
}

/* What was started before a failure is ended by the caller. */
static int start_all(cluster_t *c, heddle_error_t *error)
{
    int rc = start_broker(c, error);
    if (!rc && c->opts.is_tapped) {
        char port[8];
        const char *const argv[] = {SELF, "--as", "tap", c->address.endpoint + strlen("tcp://"), NULL};
        rc = child_start(argv, c->log, &c->tap, error);
        if (!rc) rc = child_line(&c->tap, c->log, CLUSTER_DEADLINE_MS, port, sizeof port, error);
        if (!rc) snprintf(c->address.dialled, sizeof c->address.dialled, "tcp://127.0.0.1:%s", port);
    }
    if (!rc) rc = start_workers(c, error);
    if (!rc) rc = open_publisher(c, error);
    heddle_admin_opts_t m = {.size = sizeof m,
                             .broker = c->address.endpoint,
                             .broker_key = c->address.key[0] ? c->address.key : NULL};
    if (!rc && heddle_admin_open(&m, &c->admin)) rc = library_error(error);
    return rc;
}

static void end_all(cluster_t *c)
{
    interruptible = NULL;
    heddle_admin_close(&c->admin);
    if (c->publisher)
        heddle_publisher_interrupt(c->publisher); /* the workers end, so no wait would succeed */
    heddle_publisher_close(&c->publisher);
    end_workers(c);
    child_end(&c->tap);
    child_end(&c->broker);
}

int cluster_open(const cluster_opts_t *o, cluster_t **ret_cluster, heddle_error_t *error)
{
    cluster_t *c = calloc(1, sizeof *c);
    if (c) c->workers = calloc(o->workers, sizeof *c->workers);
    int rc = c && c->workers ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a cluster");
    if (!rc) {
        c->opts = *o;
        c->worker_count = o->workers;
        snprintf(c->log, sizeof c->log, "%s/%s.log", o->scratch, o->name);
        rc = start_all(c, error);
    }
    if (!rc) *ret_cluster = c;
    else cluster_close(&c);
    return rc;
}

int cluster_rest(heddle_error_t *error)
{
    struct timespec t = {CLUSTER_REST_MS / 1000, CLUSTER_REST_MS % 1000 * 1000000};
    return nanosleep(&t, NULL) == 0 ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted");
}

int cluster_renew_workers(cluster_t *c, heddle_error_t *error)
{
    end_workers(c);
    c->version_count = 1; /* they join with the active one alone, so no older one retires */
    int rc = start_workers(c, error);
    return rc ? rc : cluster_rest(error);
}

int cluster_renew_publisher(cluster_t *c, heddle_error_t *error)
{
    interruptible = NULL;
    heddle_publisher_close(&c->publisher);
    int rc = open_publisher(c, error);
    return rc ? rc : cluster_rest(error);
}

int cluster_renew(cluster_t *c, heddle_error_t *error)
{
    end_all(c);
    c->version_count = 0;
    int rc = start_all(c, error);
    return rc ? rc : cluster_rest(error);
}

void cluster_close(cluster_t **cluster)
{
    cluster_t *c = *cluster;
    if (!c) return;
    if (c->workers) end_all(c);
    free(c->workers);
    free(c);
    *cluster = NULL;
}

cluster_cpu_t cluster_cpu(const cluster_t *c)
{
    cluster_cpu_t cpu = {.broker = child_cpu_s(c->broker.pid), .publisher = child_cpu_s(0)};
    for (uint32_t i = 0; i < c->worker_count; i++) cpu.workers += child_cpu_s(c->workers[i].child.pid);
    return cpu;
}

static uint64_t shared_bytes_of(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    if (pid) snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    else snprintf(path, sizeof path, "/proc/self/smaps_rollup");
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Pss_Shmem: %llu", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

uint64_t cluster_shared_bytes(const cluster_t *c)
{
    uint64_t bytes = shared_bytes_of(0);
    for (uint32_t i = 0; i < c->worker_count; i++) bytes += shared_bytes_of(c->workers[i].child.pid);
    return bytes;
}

/* ---- publishing ------------------------------------------------------------------------------ */

/* The workers' own timings of the version, which reach us through the broker. */
static int ask_workers(cluster_t *c, uint64_t version, cluster_times_t *t, heddle_error_t *error)
{
    char ref[64], *text = NULL;
    snprintf(ref, sizeof ref, MEMBER_ADAPTER "@%" PRIu64, version);
    if (heddle_admin_versions(c->admin, ref, &text)) return library_error(error);
    json_t *answer = json_loads(text, 0, NULL);
    const json_t *row = json_array_get(json_object_get(answer, "versions"), 0),
                 *workers = json_object_get(row, "workers");
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const json_t *w = json_array_get(workers, i), *timing = json_object_get(w, "timing"),
                     *sources = json_object_get(w, "sources");
        /* A version took as long as its slowest worker; null is 0. */
        t->connect = fmax(t->connect, json_number_value(json_object_get(timing, "connect_ms")));
        t->fetch = fmax(t->fetch, json_number_value(json_object_get(timing, "fetch_ms")));
        t->verify = fmax(t->verify, json_number_value(json_object_get(timing, "verify_ms")));
        for (size_t k = 0; k < json_array_size(sources); k++) {
            const json_t *source = json_array_get(sources, k);
            if (!strcmp(text_in(source, "kind"), "publisher"))
                t->publisher_bytes += (uint64_t)json_integer_value(json_object_get(source, "bytes"));
        }
    }
    json_decref(answer);
    heddle_free(text);
    return HEDDLE_OK;
}

/* Waits until the replaced version is gone everywhere: that work would otherwise fall into the next
 * measurement. */
static int finish_round(cluster_t *c, bool is_decided, heddle_error_t *error)
{
    heddle_event_t e = {.size = sizeof e};
    int rc = HEDDLE_OK;
    do {
        if (heddle_publisher_next_event(c->publisher, CLUSTER_DEADLINE_MS, &e)) return library_error(error);
    } while (e.type != HEDDLE_EVENT_RELEASED || e.version < c->newest);
    if (is_decided && c->version_count > c->opts.keep + 1)
        rc = wait_workers(c, is_retired, c->newest - c->opts.keep - 1, error);
    return rc;
}

/* The time of the last worker in ms; `stamp` is the offset of the field in cluster_worker_t. */
static double last_ms(const cluster_t *c, uint64_t start_ns, size_t stamp)
{
    double last = 0;
    for (uint32_t i = 0; i < c->worker_count; i++) {
        double at = moment_ms(start_ns, *(const uint64_t *)((const char *)&c->workers[i] + stamp));
        if (at > last) last = at;
    }
    return last;
}

int cluster_publish(cluster_t *c, const model_t *m, int activation, cluster_times_t *ret_times,
                    heddle_error_t *error)
{
    /* Not on the stack: it has room for many workers that are missing, with their texts. */
    static heddle_report_t report;
    heddle_publication_t *p = NULL;
    heddle_published_t done = {.size = sizeof done};
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = -1, .activation = activation};
    bool is_manual = activation == HEDDLE_ACTIVATION_MANUAL;
    cluster_times_t t = {0};
    cluster_cpu_t cpu = cluster_cpu(c);
    uint64_t start = moment_ns();
    if (heddle_publication_begin(c->publisher, m->table.rows, m->table.count, m->config.data, m->config.bytes,
                                 NULL, &p))
        return library_error(error);
    if (heddle_publication_write(p, (const void *const *)m->data)) {
        int rc = library_error(error);
        heddle_publication_abort(&p);
        return rc;
    }
    t.fill = moment_ms(start, moment_ns());
    if (heddle_publication_commit(&p, &opts, &done)) return library_error(error);
    report = (heddle_report_t){.size = sizeof report};
    if (heddle_publisher_wait(c->publisher, done.version,
                              is_manual ? HEDDLE_PHASE_STAGED : HEDDLE_PHASE_ACTIVE,
                              (heddle_quorum_t){HEDDLE_QUORUM_ALL, 0}, CLUSTER_DEADLINE_MS, &report))
        return library_error(error);
    t.heard = is_manual ? 0 : moment_ms(start, moment_ns());
    t.sealed = t.fill + done.pack_ms;
    t.durable = t.fill + done.commit_ms;
    c->newest = done.version;
    c->version_count++;
    int rc = wait_workers(c, is_staged, done.version, error);
    if (!rc) t.staged = last_ms(c, start, offsetof(cluster_worker_t, staged_ns));
    if (!rc && !is_manual) rc = wait_workers(c, is_active, done.version, error);
    if (!rc && !is_manual) t.active = last_ms(c, start, offsetof(cluster_worker_t, active_ns));
    if (!rc) rc = finish_round(c, !is_manual, error);
    cluster_cpu_t to = cluster_cpu(c);
    t.cpu_s = to.broker - cpu.broker + to.workers - cpu.workers + to.publisher - cpu.publisher;
    if (!rc) rc = ask_workers(c, done.version, &t, error);
    if (!rc) *ret_times = t;
    return rc;
}

/* ---- deciding -------------------------------------------------------------------------------- */

int cluster_activate(cluster_t *c, uint64_t version, cluster_flip_t *ret_flip, heddle_error_t *error)
{
    char ref[64], *answer = NULL;
    heddle_activate_opts_t opts = {.size = sizeof opts, .by = "bench"};
    cluster_flip_t f = {0};
    uint64_t before = 0, after = 0;
    snprintf(ref, sizeof ref, MEMBER_ADAPTER "@%" PRIu64, version);
    int rc = fetched_bytes(c, &before, error);
    if (rc) return rc;
    /* From here to the last worker is what a user waits for; the counts before and after stay outside. */
    uint64_t start = moment_ns();
    if (heddle_admin_activate(c->admin, ref, &opts, &answer))
        return heddle_free(answer), library_error(error);
    f.told = moment_ms(start, moment_ns());
    heddle_free(answer);
    rc = wait_workers(c, is_active, version, error);
    if (!rc) rc = fetched_bytes(c, &after, error);
    if (rc) return rc;
    /* A flip moves no bytes: what was fetched meanwhile is reported, so that a violation is seen. */
    uint64_t first = UINT64_MAX, last = 0, longest = 0;
    for (uint32_t i = 0; i < c->worker_count; i++) {
        const cluster_worker_t *w = &c->workers[i];
        if (w->active_ns < first) first = w->active_ns;
        if (w->active_ns > last) last = w->active_ns;
        if (w->switch_ns > longest) longest = w->switch_ns;
    }
    f.active = moment_ms(start, last);
    f.skew = moment_ms(first, last);
    f.switched = (double)longest / 1e6;
    f.moved_bytes = after - before;
    *ret_flip = f;
    return HEDDLE_OK;
}

int cluster_tally(cluster_t *c, cluster_tally_t *ret_tally, heddle_error_t *error)
{
    char line[MEMBER_LINE];
    cluster_tally_t t = {0};
    if (write(c->tap.fd, "tally\n", 6) != 6)
        return error_fail(error, HEDDLE_ERR_GONE, "the tap of the measurement ended");
    int rc = child_line(&c->tap, c->log, CLUSTER_DEADLINE_MS, line, sizeof line, error);
    if (rc) return rc;
    if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64, &t.to_broker, &t.from_broker, &t.bytes) != 3)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "the tap answer: %s", line);
    *ret_tally = t;
    return HEDDLE_OK;
}
