/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/worker.h over a shell: checks of arguments, and calls into the loop's thread. */
#include "client/broker_address.h"
#include "client/descriptors.h"
#include "client/opening.h"
#include "client/session.h"
#include "client/shell.h"
#include "core/errors.h"
#include "core/sized.h"
#include "formats/kind.h"
#include "worker/labels.h"
#include "worker/worker_node.h"

#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

struct heddle_worker {
    shell_t *shell;
    worker_node_t *node;
    slots_t *slots; /* the node's: for threads that acquire */
    hashing_t *hashing;
    worker_opts_t opts;
    char name[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
    char **adapters, **labels, **kinds;    /* copies, NULL-terminated; kinds NULL: the default */
    char *export_dir, *group, *host_share; /* NULL: none */
    char broker[512];                      /* as it is named on stderr */
    bool left;
};

/* --- open ------------------------------------------------------------------------------------- */

/* Lists of the public options end with NULL; NULL in place of a list is an empty one. */
static uint32_t list_length(const char *const *list)
{
    uint32_t n = 0;
    while (list && list[n]) n++;
    return n;
}

/* A name that is listed twice would get two sets of slots for one subscription. */
static int check_adapters(const char *const *adapters, heddle_error_t *error)
{
    uint32_t count = list_length(adapters);
    if (count == 0 || count > LIMIT_ADAPTERS_PER_WORKER) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "a worker subscribes to 1 to %u adapters",
                            LIMIT_ADAPTERS_PER_WORKER);
        error_found(error, "%u", count);
        return rc;
    }
    for (uint32_t i = 0; i < count; i++) {
        int rc = name_check("adapter", adapters[i], error);
        if (rc) return rc;
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(adapters[i], adapters[k]))
                return error_fail(error, HEDDLE_ERR_USAGE, "the adapter %s is named twice", adapters[i]);
    }
    return HEDDLE_OK;
}

/* All options are checked before anything is made, so that a mistake costs no connection. */
static int check_opts(const heddle_worker_opts_t *o, heddle_error_t *error)
{
    int rc = check_adapters(o->adapters, error);
    for (uint32_t i = 0; !rc && o->kinds && o->kinds[i]; i++)
        if (!o->kinds[i][0] || !kind_find(o->kinds[i])) rc = kind_refuse(o->kinds[i], error);
    if (!rc && o->kinds && !o->kinds[0])
        rc = error_fail(error, HEDDLE_ERR_USAGE, "a worker takes at least one kind");
    if (!rc && o->name) rc = name_check("worker", o->name, error);
    if (!rc) rc = group_check(o->group, o->rank, o->ranks, error);
    if (rc) return rc;
    if (o->apply != HEDDLE_APPLY_AUTO && o->apply != HEDDLE_APPLY_APP)
        return error_fail(error, HEDDLE_ERR_USAGE, "apply is neither AUTO nor APP");
    if (o->slots > LIMIT_SLOTS)
        return error_fail(error, HEDDLE_ERR_USAGE, "a worker has at most %u slots for an adapter",
                          LIMIT_SLOTS);
    if (o->join_timeout_ms < 0) return error_fail(error, HEDDLE_ERR_USAGE, "the join time-out is negative");
    if (o->join && (o->broker || o->broker_key))
        return error_fail(error, HEDDLE_ERR_USAGE,
                          "the join string names the broker: opts.broker and opts.broker_key exclude it");
    if (o->own_memory && o->host_share)
        return error_fail(error, HEDDLE_ERR_USAGE, "own_memory and host_share exclude one another");
    return HEDDLE_OK;
}

/* The options are borrowed for the call only, and the node needs the lists for its life. NULL: no memory. */
static char **copy_list(const char *const *list)
{
    uint32_t count = list_length(list);
    char **copy = calloc(count + 1u, sizeof *copy);
    for (uint32_t i = 0; copy && i < count; i++) {
        copy[i] = strdup(list[i]);
        if (copy[i]) continue;
        while (i-- > 0) free(copy[i]);
        free(copy);
        return NULL;
    }
    return copy;
}

/* Accepts NULL, for a half-built worker. */
static void free_list(char **list)
{
    for (char **at = list; at && *at; at++) free(*at);
    free(list);
}

/* [any thread] The last reader of a dropped slot wakes the loop, which frees the slot. */
static void wake(void *self) { shell_wake(((heddle_worker_t *)self)->shell); }

/* A version needs descriptors: its memory file and connections to its sources. */
static int check_descriptors(heddle_error_t *error) { return descriptors_check(DESCRIPTORS_VERSION, error); }

/* False: no memory; destroy frees what was copied so far.  The labels are there already. */
static bool copy_opts(heddle_worker_t *w, const heddle_worker_opts_t *o, const char *endpoints)
{
    if (o->name) error_text(w->name, sizeof w->name, o->name);
    else name_default(w->name);
    name_host(w->host);
    opening_begin(); /* HEDDLE_BROKER is read */
    error_text(w->broker, sizeof w->broker, endpoints ? endpoints : broker_address(o->broker));
    bool is_guarded = regions_are_guarded();
    opening_end();
    w->adapters = copy_list(o->adapters);
    w->kinds = o->kinds ? copy_list(o->kinds) : NULL;
    w->export_dir = o->export_dir ? strdup(o->export_dir) : NULL;
    w->group = o->group ? strdup(o->group) : NULL;
    w->host_share = o->host_share ? strdup(o->host_share) : NULL;
    if (!w->adapters || (o->kinds && !w->kinds) || (o->export_dir && !w->export_dir)) return false;
    if ((o->group && !w->group) || (o->host_share && !w->host_share)) return false;
    w->opts = (worker_opts_t){.name = w->name,
                              .host = w->host,
                              .export_dir = w->export_dir,
                              .broker = o->quiet ? NULL : w->broker,
                              .max_rate_bytes = o->max_rate_bytes,
                              .adapters = (const char *const *)w->adapters,
                              .adapter_count = list_length(o->adapters),
                              .labels = (const char *const *)w->labels,
                              .label_count = list_length((const char *const *)w->labels),
                              .kinds = (const char *const *)w->kinds,
                              .slots = o->slots,
                              .group = w->group,
                              .rank = o->rank,
                              .ranks = o->ranks,
                              .app = o->apply == HEDDLE_APPLY_APP,
                              .answers_verify = o->answers_verify,
                              .omits_staging = o->omits_staging,
                              .is_sharing = !o->own_memory,
                              .verifies_each = o->verify_each,
                              .no_relay = o->no_relay,
                              .host_share = w->host_share,
                              .is_guarded = is_guarded,
                              .join_timeout_us = (uint64_t)o->join_timeout_ms * 1000,
                              .pid = (uint64_t)getpid(),
                              .wake = wake,
                              .check = check_descriptors,
                              .wake_self = w};
    random_bytes(&w->opts.seed, sizeof w->opts.seed);
    random_bytes(&w->opts.life, sizeof w->opts.life);
    return true;
}

/* The thread ends first, then the node that ran on it, then the shell that the node borrows. Also for a
 * half-built worker. */
static void destroy(heddle_worker_t *w)
{
    if (w->shell) shell_stop(w->shell);
    worker_node_destroy(&w->node);
    hashing_destroy(&w->hashing);
    shell_close(&w->shell);
    free_list(w->adapters);
    labels_free(w->labels);
    free_list(w->kinds);
    free(w->export_dir);
    free(w->group);
    free(w->host_share);
    free(w);
}

/* The shell opens the connection and the data plane, the node is built on both, and only then the thread
 * starts. */
static int start(heddle_worker_t *w, const heddle_worker_opts_t *o, heddle_error_t *error)
{
    join_string_t join;
    opening_begin();
    int rc = labels_gather(o->labels, environ, &w->labels, error);
    opening_end();
    if (!rc && o->join) rc = join_string_take(o->join, &join, error);
    if (!rc && !copy_opts(w, o, o->join ? join.endpoints : NULL))
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a worker");
    char roles[112];
    credentials_roles("worker", o->adapters, roles);
    shell_opts_t shell = {
        .broker = o->broker,
        .transfer = true,
        .data_device = o->data_device,
        .insecure = o->insecure,
        .keys = {.broker_key = o->broker_key, .key = o->key, .roles = roles, .join = o->join ? &join : NULL},
        .max_rate_bytes = o->max_rate_bytes};
    if (!rc) rc = shell_open(&shell, &w->shell, error);
    explicit_bzero(&join, sizeof join);
    if (rc) return rc;
    w->opts.hashing = w->hashing = hashing_new();
    rc = worker_node_new(&w->opts, shell_io(w->shell), &w->node, error);
    if (rc) return rc;
    w->slots = worker_node_slots(w->node);
    int fds[WORKER_FDS];
    worker_node_fds(w->node, fds);
    for (int i = 0; i < WORKER_FDS && !rc; i++)
        if (fds[i] >= 0) rc = shell_poll(w->shell, fds[i], error);
    if (rc) return rc;
    return shell_start(w->shell, &worker_node_ops, w->node, error);
}

/* The caller's struct may be of an older release: sized_take fills what it does not have. */
int heddle_worker_open(const heddle_worker_opts_t *opts, heddle_worker_t **ret_worker)
{
    heddle_error_t error;
    if (!opts || !ret_worker) {
        error_fail(&error, HEDDLE_ERR_USAGE, "heddle_worker_open needs options, and a place for the worker");
        return error_publish(&error);
    }
    heddle_worker_opts_t o;
    if (sized_take(&o, sizeof o, opts, "heddle_worker_opts_t", &error)) return error_publish(&error);
    if (check_opts(&o, &error)) return error_publish(&error);
    heddle_worker_t *w = calloc(1, sizeof *w);
    contexts_t contexts;
    /* What the application names comes before the environment, and that before the user's contexts. */
    opening_begin();
    const char *set = o.join || o.broker || o.broker_key ? NULL : getenv("HEDDLE_JOIN");
    opening_end();
    if (set && set[0]) o.join = set;
    int rc = HEDDLE_OK;
    if (o.join) contexts = (contexts_t){0};
    else rc = opening_context(&o.broker, &o.broker_key, &o.key, &contexts, &error);
    if (!rc)
        rc = w ? start(w, &o, &error) : error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for a worker");
    contexts_fini(&contexts);
    if (rc == HEDDLE_OK) {
        *ret_worker = w;
        return HEDDLE_OK;
    }
    if (w) destroy(w);
    return error_publish(&error);
}

/* --- events ----------------------------------------------------------------------------------- */

int heddle_worker_fd(const heddle_worker_t *w) { return shell_fd(w->shell); }
void heddle_worker_interrupt(heddle_worker_t *w) { shell_interrupt(w->shell); }

/* On the loop's thread: the refusal may change at any time. */
static void run_refusal(void *node, void *arg, uint64_t now_us)
{
    (void)now_us;
    *(heddle_error_t *)arg = *worker_node_refusal(node);
}

/* An event has room for a message alone. The whole error of a refusal is fetched from the node, unless
 * another refusal has replaced it meanwhile. */
int heddle_worker_next_event(heddle_worker_t *w, int timeout_ms, heddle_event_t *ret_event)
{
    heddle_event_t event;
    if (w->left) return HEDDLE_ERR_CLOSED;
    int rc = shell_next_event(w->shell, timeout_ms, &event);
    if (rc) return rc;
    w->left = event.type == HEDDLE_EVENT_LEFT;
    if (event.type == HEDDLE_EVENT_REFUSED) { /* it has room for the message alone */
        heddle_error_t why;
        if (shell_call(w->shell, run_refusal, &why) || why.code != event.code)
            error_fail(&why, event.code, "%s", event.message); /* another one came since */
        why.retriable = event.retriable;
        error_publish(&why);
    }
    sized_give(ret_event, &event, sizeof event);
    return HEDDLE_OK;
}

/* --- calls into the loop ---------------------------------------------------------------------- */

typedef struct {
    app_answer_t answer;
    int rc;
} loop_call_t;

/* On the loop's thread. */
static void run_answer(void *node, void *arg, uint64_t now_us)
{
    loop_call_t *call = arg;
    call->rc = worker_node_answer(node, &call->answer, now_us);
}

/* Publishes an error about one version as the thread's last error. */
static int fail_version(int code, const char *adapter, uint64_t version, const char *text)
{
    heddle_error_t error;
    error_fail(&error, code, "%s", text);
    error_where(&error, adapter, version, NULL, NULL);
    return error_publish(&error);
}

/* The error lists what the worker subscribed to: the usual cause is a misspelled name. */
static int find_adapter(const heddle_worker_t *w, const char *adapter, uint32_t *ret_index)
{
    int index = adapter ? slots_find(w->slots, adapter) : -1;
    if (index < 0) {
        char names[sizeof((heddle_error_t *)0)->expected] = "";
        size_t used = 0;
        for (char **name = w->adapters; *name && used < sizeof names; name++)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? " " : "", *name);
        heddle_error_t error;
        error_fail(&error, HEDDLE_ERR_NOT_FOUND, "this worker did not subscribe to %.128s",
                   adapter ? adapter : "an adapter without a name");
        error_where(&error, adapter, 0, NULL, NULL);
        error_contrast(&error, names, adapter ? adapter : "NULL");
        error_hint(&error, "name it when the worker is opened");
        return error_publish(&error);
    }
    *ret_index = (uint32_t)index;
    return HEDDLE_OK;
}

/* Runs an answer of the application on the loop's thread. `answer` has no adapter's number yet: it is
 * looked up here. */
static int tell_node(heddle_worker_t *w, const char *adapter, const app_answer_t *answer)
{
    loop_call_t call = {.answer = *answer};
    int rc = find_adapter(w, adapter, &call.answer.adapter);
    if (rc) return rc;
    rc = shell_call(w->shell, run_answer, &call);
    if (!rc) rc = call.rc;
    if (!rc) return HEDDLE_OK;
    const char *text = heddle_err_text(rc);
    if (rc == HEDDLE_ERR_NOT_FOUND) text = "the version is not wanted here any more";
    if (rc == HEDDLE_ERR_FENCED) text = "the lease ran out after the commit; another one follows";
    return fail_version(rc, adapter, answer->version, text);
}

int heddle_worker_staged(heddle_worker_t *w, const char *adapter, uint64_t version)
{
    return tell_node(w, adapter, &(app_answer_t){.kind = APP_STAGED, .version = version});
}

int heddle_worker_activate(heddle_worker_t *w, const char *adapter, uint64_t version)
{
    return tell_node(w, adapter, &(app_answer_t){.kind = APP_ACTIVATE, .version = version});
}

/* The application's code and phase are checked here: an unknown one would mean nothing to the broker and
 * to operators. */
int heddle_worker_reject_error(heddle_worker_t *w, const char *adapter, uint64_t version,
                               const heddle_error_t *why)
{
    static const char *const PHASES[] = {"",       "pack",  "commit",   "announce", "fetch",
                                         "verify", "stage", "activate", "export"};
    heddle_error_t sent;
    /* The application's texts, made fit to be sent: cut, and without control characters. */
    const heddle_error_t *from = why ? why : &(heddle_error_t){0};
    char text[641], phase[sizeof from->phase];
    error_text(text, sizeof text, from->message[0] ? from->message : "the application rejected the version");
    error_text(phase, sizeof phase, from->phase);
    error_fail(&sent, from->code ? from->code : HEDDLE_ERR_VERSION_FAILED, "%s", text);
    error_where(&sent, NULL, 0, NULL, phase);
    error_text(sent.expected, sizeof sent.expected, from->expected);
    error_text(sent.found, sizeof sent.found, from->found);
    error_text(sent.hint, sizeof sent.hint, from->hint);
    if (!strcmp(heddle_err_name(sent.code), "unknown"))
        return fail_version(HEDDLE_ERR_USAGE, adapter, version,
                            "a version is rejected with a code of heddle/error.h, or 0");
    bool is_phase = false;
    for (size_t i = 0; i < sizeof PHASES / sizeof *PHASES; i++) is_phase |= !strcmp(sent.phase, PHASES[i]);
    if (!is_phase)
        return fail_version(HEDDLE_ERR_USAGE, adapter, version,
                            "a version is rejected in a phase of heddle/error.h, or \"\"");
    return tell_node(w, adapter, &(app_answer_t){.kind = APP_REJECT, .version = version, .why = &sent});
}

int heddle_worker_reject(heddle_worker_t *w, const char *adapter, uint64_t version, const char *reason)
{
    heddle_error_t why = {0};
    if (reason) error_text(why.message, sizeof why.message, reason);
    return heddle_worker_reject_error(w, adapter, version, &why);
}

/* NULL is "the copy has no digest", an empty text is "there is no copy". */
int heddle_worker_verified(heddle_worker_t *w, const char *adapter, uint64_t version, const char *digest)
{
    digest_t parsed;
    bool is_missing = digest && !*digest;
    if (digest && !is_missing && !digest_parse(digest, &parsed))
        return fail_version(HEDDLE_ERR_USAGE, adapter, version,
                            "that is not a digest: \"h1:\" and 64 hex digits");
    return tell_node(w, adapter,
                     &(app_answer_t){.kind = is_missing ? APP_COPY_MISSING : APP_VERIFIED,
                                     .version = version,
                                     .digest = digest ? &parsed : NULL});
}

/* --- any thread ------------------------------------------------------------------------------- */

/* The error lists the versions that are here, since an application mostly asks for one too early or too
 * late. */
static int fail_acquire(const heddle_worker_t *w, int rc, uint32_t adapter, uint64_t version)
{
    char here[64];
    slots_tell(w->slots, adapter, here, sizeof here);
    const char *name = slots_adapter(w->slots, adapter);
    heddle_error_t error;
    if (version) {
        error_fail(&error, rc, "%s@%llu is not here", name, (unsigned long long)version);
        error_expected(&error, "version %llu", (unsigned long long)version);
        error_hint(&error, "a version is here from when it arrived until it is retired; without a number, "
                           "the active one is meant");
    } else {
        error_fail(&error, rc, "no version of %s is active here yet", name);
        error_expected(&error, "an active version");
        error_hint(&error, "wait until one is; `heddle versions %s` tells what there is", name);
    }
    error_found(&error, "%s", here);
    error_where(&error, name, version, NULL, NULL);
    return error_publish(&error);
}

/* No lock and no call of the loop: an engine acquires for each request that it serves. */
int heddle_worker_acquire(heddle_worker_t *w, const char *adapter, uint64_t version,
                          heddle_snapshot_t **ret_snapshot)
{
    uint32_t index = 0;
    int rc = find_adapter(w, adapter, &index);
    if (rc) return rc;
    rc = slots_acquire(w->slots, index, version, ret_snapshot);
    return rc ? fail_acquire(w, rc, index, version) : HEDDLE_OK;
}

/* --- for people ------------------------------------------------------------------------------- */

typedef struct {
    heddle_worker_t *worker;
    json_t *(*make)(const heddle_worker_t *w);
    char *text;
} report_t;

/* "a,b" as a list. */
static json_t *list_of(char *words)
{
    json_t *list = json_array();
    char *save = NULL;
    for (char *word = strtok_r(words, ",", &save); word; word = strtok_r(NULL, ",", &save))
        json_array_append_new(list, json_string(word));
    return list;
}

/* On the loop's thread: the transfer's addresses change when a network interface does. */
static json_t *report_transport(const heddle_worker_t *w)
{
    char devices[256] = "";
    tr_where_t where;
    const node_io_t *io = shell_io(w->shell);
    io->tr->devices(io->t, devices, sizeof devices);
    io->tr->where(io->t, &where);
    const char *why;
    bool shares = worker_node_shares(w->node, &why);
    return json_pack("{s:s, s:s, s:o, s:o, s:s, s:s?, s:s?}", "backend", io->tr->name, "ucx",
                     io->tr->version(), "devices", list_of(devices), "addresses", list_of(where.addresses),
                     "memory", shares ? "shared" : "own", "memory_why", *why ? why : NULL, "host_share",
                     w->host_share);
}

static json_t *report_adapter(const heddle_worker_t *w, uint32_t adapter)
{
    static const char *const STATES[VERSIONS_STATE_COUNT] = {
        [VERSIONS_WAITING] = "waiting", [VERSIONS_COMING] = "coming", [VERSIONS_ARRIVED] = "arrived",
        [VERSIONS_STAGED] = "staged",   [VERSIONS_ACTIVE] = "active", [VERSIONS_KEPT] = "kept"};
    const versions_t *v = worker_node_versions(w->node, adapter);
    json_t *versions = json_object();
    for (int state = VERSIONS_WAITING; state < VERSIONS_STATE_COUNT; state++)
        json_object_set_new(versions, STATES[state],
                            json_integer(versions_count(v, (versions_state_t)state)));
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:{s:I, s:I, s:I}}", "name", w->adapters[adapter],
                     "version", (json_int_t)v->applied.version, "decision", (json_int_t)v->applied.decision,
                     "decided_version", (json_int_t)v->decided.version, "lag", (json_int_t)versions_lag(v),
                     "versions", versions, "counts", "staged", (json_int_t)v->staged_count, "activated",
                     (json_int_t)v->activated_count, "failed", (json_int_t)v->failed_count);
}

/* The same numbers as those of heartbeats, so that both can be compared, and what the worker is at. */
static json_t *report_stats(const heddle_worker_t *w)
{
    static const char *const STATES[] = {
        [SESSION_DOWN] = "down",   [SESSION_GREETING] = "greeting", [SESSION_JOINING] = "joining",
        [SESSION_READY] = "ready", [SESSION_REFUSED] = "refused",   [SESSION_LEAVING] = "leaving",
        [SESSION_LEFT] = "left"};
    msg_counts_t c = worker_node_counts(w->node);
    const session_t *session = worker_node_session(w->node);
    bool is_draining = session->state == SESSION_READY && worker_node_drains(w->node);
    json_t *adapters = json_array();
    for (uint32_t i = 0; i < w->opts.adapter_count; i++)
        json_array_append_new(adapters, report_adapter(w, i));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:{s:s, s:I}, s:o}", "bytes_in",
                     (json_int_t)c.bytes_in, "bytes_out", (json_int_t)c.bytes_out, "chunks_bad",
                     (json_int_t)c.chunks_bad, "retries", (json_int_t)c.retries, "fenced",
                     (json_int_t)c.fenced, "own_bytes", (json_int_t)c.own_bytes, "held_bytes",
                     (json_int_t)c.held_bytes, "slots", "total", (json_int_t)c.slots_total, "free",
                     (json_int_t)c.slots_free, "held", (json_int_t)c.slots_held, "session", "state",
                     is_draining ? "draining" : STATES[session->state], "joined_count",
                     (json_int_t)session->join_count, "adapters", adapters);
}

/* On the loop's thread, which owns the numbers. */
static void run_report(void *node, void *arg, uint64_t now_us)
{
    (void)node;
    (void)now_us;
    report_t *report = arg;
    json_t *value = report->make(report->worker);
    report->text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
}

static int report(heddle_worker_t *w, json_t *(*make)(const heddle_worker_t *w), char **ret_json)
{
    report_t r = {.worker = w, .make = make};
    int rc = shell_call(w->shell, run_report, &r);
    if (!rc && !r.text) rc = HEDDLE_ERR_NO_MEMORY;
    if (rc) return fail_version(rc, NULL, 0, heddle_err_text(rc));
    *ret_json = r.text;
    return HEDDLE_OK;
}

int heddle_worker_transport(heddle_worker_t *w, char **ret_json)
{
    return report(w, report_transport, ret_json);
}
int heddle_worker_stats(heddle_worker_t *w, char **ret_json) { return report(w, report_stats, ret_json); }

/* --- close ------------------------------------------------------------------------------------ */

static void run_drain(void *node, void *arg, uint64_t now_us)
{
    (void)arg;
    worker_node_drain(node, now_us);
}

int heddle_worker_drain(heddle_worker_t *w)
{
    int rc = w->left ? HEDDLE_ERR_CLOSED : shell_call(w->shell, run_drain, NULL);
    return rc ? fail_version(rc, NULL, 0, heddle_err_text(rc)) : HEDDLE_OK;
}

static void run_leave(void *node, void *arg, uint64_t now_us)
{
    (void)arg;
    worker_node_leave(node, now_us);
}

/* The broker gets a LEAVE, so that rollouts do not wait for this worker until its lease ends. */
void heddle_worker_close(heddle_worker_t **worker)
{
    heddle_worker_t *w = worker ? *worker : NULL;
    if (!w) return;
    *worker = NULL;
    if (shell_is_forked(w->shell)) return;
    heddle_event_t event;
    int rc = w->left ? HEDDLE_ERR_CLOSED : shell_call(w->shell, run_leave, NULL);
    while (!rc || rc == HEDDLE_ERR_INTERRUPTED) { /* LEFT comes within SESSION_LEAVE_US */
        rc = shell_next_event(w->shell, 2 * (int)(SESSION_LEAVE_US / 1000), &event);
        if (!rc && event.type == HEDDLE_EVENT_LEFT) break;
    }
    destroy(w);
}
