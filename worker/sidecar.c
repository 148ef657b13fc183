/* SPDX-License-Identifier: Apache-2.0 */
/* heddle-worker: options, the ready line, and the loop over the library's events. */
#include "worker/sidecar.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/names.h"
#include "core/option.h"

#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field) offsetof(sidecar_args_t, field)
static const option_t OPTIONS[] = {
    {"adapter", 0, OPTION_LIST, "NAME", NULL, NULL, "an adapter to receive (required; may be given again)", AT(adapters)},
    {"name", 0, OPTION_TEXT, "NAME", NULL, NULL, "of this worker (default: HOST-PID)", AT(name)},
    {"label", 0, OPTION_LIST, "K=V", NULL, NULL, "shown in heddle workers; may be given again", AT(labels)},
    {"slots", 0, OPTION_INTEGER, "N", NULL, "0", "for each adapter; 0: 2 + the broker's --keep", AT(slots)},
    {"export", 0, OPTION_TEXT, "DIR", NULL, NULL, "write each version to DIR/ADAPTER@VERSION, and move the link DIR/ADAPTER", AT(export_dir)},
    {"export-keep", 0, OPTION_INTEGER, "N", NULL, "2", "directories kept besides the active one", AT(export_keep)},
    {"on-stage", 0, OPTION_TEXT, "CMD", NULL, NULL, "run when a version has arrived; a failure rejects it", AT(on_stage)},
    {"on-activate", 0, OPTION_TEXT, "CMD", NULL, NULL, "run when it was decided, before the link moves", AT(on_activate)},
    {"hook-timeout", 0, OPTION_DURATION, "DUR", NULL, "60s", "then a command is killed and has failed", AT(hook_timeout_ms)},
    {"data-device", 0, OPTION_TEXT, "IF", NULL, "lo", "network interface of the tensor bytes", AT(data_device)},
    {"max-rate", 0, OPTION_SIZE, "SIZE", NULL, "0", "bytes a second, served and fetched; 0: no limit", AT(max_rate_bytes)},
    {"join-timeout", 0, OPTION_DURATION, "DUR", NULL, "0", "give up when the name is alive for so long; 0: never", AT(join_timeout_ms)},
    {"insecure", 0, OPTION_FLAG, NULL, NULL, NULL, "allow other addresses than loopback", AT(insecure)},
    {"broker", 0, OPTION_TEXT, "EP[,EP]", "HEDDLE_BROKER", "tcp://127.0.0.1:7700", "where the broker listens", AT(broker)},
    {"output", 'o', OPTION_CHOICE, "table|json", NULL, "table", "json: a failure is an object on stdout too", AT(output)},
    {"quiet", 'q', OPTION_FLAG, NULL, NULL, NULL, "no talk on stderr", AT(quiet)},
    {"log-level", 0, OPTION_CHOICE, "error|warn|info|debug", NULL, "warn", "what is logged on stderr", AT(log_level)},
    {0}};
static const option_set_t SET = {"heddle-worker", "--adapter NAME [OPTION...]",
    "Receives versions of adapters beside an engine.  Without a broker it waits.  On stdout: a line of JSON when it is ready, then one an event.",
    "Commands get HEDDLE_ADAPTER, HEDDLE_VERSION, HEDDLE_DIGEST, HEDDLE_TAG, HEDDLE_PATH (the exported directory).", OPTIONS, NULL, NULL, 0};

typedef struct { sidecar_args_t args; heddle_worker_t *worker; char name[HEDDLE_NAME_MAX + 1], export_dir[PATH_MAX]; bool ready; uint64_t seq, epoch; heddle_error_t refusal; } sidecar_t;

static heddle_worker_t *interruptible;
static volatile int stopped;

static void on_signal(int number)
{
    stopped = number;
    if (interruptible) heddle_worker_interrupt(interruptible);
}

static void print_line(json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (text) puts(text);
    fflush(stdout);
    free(text);
    json_decref(object);
}

static json_t *text_or_null(const char *text) { return text && text[0] ? json_string(text) : json_null(); }
static json_t *number_or_null(uint64_t n) { return n ? json_integer((json_int_t)n) : json_null(); }

static int fail(const sidecar_args_t *args, const heddle_error_t *e)
{
    if (args->output) {
        char *text = NULL;
        json_t *reason = heddle_error_json(e, &text) == HEDDLE_OK ? json_loads(text, 0, NULL) : NULL;
        heddle_free(text);
        print_line(json_pack("{s:s, s:s, s:b, s:o}", "schema", "heddle/1", "kind", "worker", "ok", 0, "error", reason ? reason : json_null()));
    }
    fprintf(stderr, "heddle-worker: %s: %s\n", heddle_err_name(e->code), e->message);
    if (e->expected[0]) fprintf(stderr, "  expected: %s\n", e->expected);
    if (e->found[0]) fprintf(stderr, "  found:    %s\n", e->found);
    if (e->hint[0]) fprintf(stderr, "  hint:     %s\n", e->hint);
    return heddle_err_exit(e->code);
}

static void print_ready(sidecar_t *s, const heddle_event_t *e)
{
    json_t *adapters = json_array();
    for (const char **a = s->args.adapters; *a; a++) json_array_append_new(adapters, json_string(*a));
    char *text = NULL;
    json_t *transport = heddle_worker_transport(s->worker, &text) == HEDDLE_OK ? json_loads(text, 0, NULL) : NULL;
    heddle_free(text);
    print_line(json_pack("{s:s, s:s, s:s, s:i, s:s, s:I, s:o, s:o, s:o, s:o}", "schema", "heddle/1", "kind", "ready", "role", "worker", "pid", (int)getpid(), "name", s->name,
                         "token", (json_int_t)e->token, "cluster", text_or_null(e->cluster), "adapters", adapters, "export_dir", text_or_null(s->export_dir),
                         "transport", transport ? transport : json_null()));
    s->ready = true;
}

static void print_event(sidecar_t *s, const heddle_event_t *e)
{
    char at[25];
    clock_text(e->at_ms, at);
    if (e->epoch) s->epoch = e->epoch;
    json_t *data = json_object();
    if (e->decision) json_object_set_new(data, "decision", json_integer((json_int_t)e->decision));
    if (e->data_bytes) json_object_set_new(data, "data_bytes", json_integer((json_int_t)e->data_bytes));
    if (e->tag[0]) json_object_set_new(data, "tag", json_string(e->tag));
    if (e->digest[0]) json_object_set_new(data, "digest", json_string(e->digest));
    if (e->token) json_object_set_new(data, "token", json_integer((json_int_t)e->token));
    print_line(json_pack("{s:s, s:I, s:o, s:s, s:s, s:o, s:o, s:s, s:o, s:o, s:o}", "kind", "event", "seq", (json_int_t)++s->seq, "epoch", number_or_null(s->epoch), "at", at,
                         "type", heddle_event_name(e->type), "adapter", text_or_null(e->adapter), "version", number_or_null(e->version), "worker", s->name,
                         "code", e->code ? json_string(heddle_err_name(e->code)) : json_null(), "message", text_or_null(e->message), "data", data));
}

/* The directory is there: written at ARRIVED, or again after it was pruned (a roll-back). */
static int ensure_exported(sidecar_t *s, const heddle_event_t *e, heddle_error_t *error)
{
    heddle_snapshot_t *snapshot = NULL;
    if (!s->export_dir[0]) return HEDDLE_OK;
    int rc = heddle_worker_acquire(s->worker, e->adapter, e->version, &snapshot);
    if (rc) return error_fail(error, rc, "%s@%llu is no longer here", e->adapter, (unsigned long long)e->version);
    rc = export_write(s->export_dir, snapshot, error);
    heddle_snapshot_release(&snapshot);
    return rc;
}

static int run(sidecar_t *s, const char *command, const heddle_event_t *e, char reason[768])
{
    char path[4096] = "";
    if (!command) return HEDDLE_OK;
    if (s->export_dir[0]) export_path(s->export_dir, e->adapter, e->version, path);
    hook_t hook = {command, path, e, s->args.hook_timeout_ms, &stopped};
    return hook_run(&hook, reason);
}

static void refuse(sidecar_t *s, const heddle_event_t *e, int rc, const char *reason)
{
    if (rc == HEDDLE_ERR_INTERRUPTED) return; /* we are leaving: nothing is said about the version */
    log_emit(LOG_WARN, "sidecar.reject", "%s: %s", e->tag, reason);
    heddle_worker_reject(s->worker, e->adapter, e->version, reason);
}

static void on_arrived(sidecar_t *s, const heddle_event_t *e)
{
    char reason[768] = "";
    heddle_error_t error = {0};
    int rc = ensure_exported(s, e, &error);
    if (rc) snprintf(reason, sizeof reason, "export: %.700s", error.message);
    else if ((rc = run(s, s->args.on_stage, e, reason)) == HEDDLE_OK) {
        heddle_worker_staged(s->worker, e->adapter, e->version);
        return;
    }
    refuse(s, e, rc, reason);
}

static void on_commit(sidecar_t *s, const heddle_event_t *e)
{
    char reason[768] = "";
    heddle_error_t error = {0};
    int rc = ensure_exported(s, e, &error);
    if (!rc) rc = run(s, s->args.on_activate, e, reason);
    if (!rc && s->export_dir[0]) rc = export_link(s->export_dir, e->adapter, e->version, &error);
    if (rc) {
        refuse(s, e, rc, reason[0] ? reason : error.message);
        return;
    }
    heddle_worker_activate(s->worker, e->adapter, e->version);
    if (s->export_dir[0]) export_prune(s->export_dir, e->adapter, s->args.export_keep);
}

static void on_verify(sidecar_t *s, const heddle_event_t *e)
{
    char path[4096];
    heddle_adapter_info_t info = {.size = sizeof info};
    export_path(s->export_dir, e->adapter, e->version, path);
    bool there = s->export_dir[0] && access(path, F_OK) == 0;
    if (there && heddle_adapter_check(path, &info) != HEDDLE_OK) snprintf(info.digest, sizeof info.digest, "unreadable"); /* equals no digest */
    heddle_worker_verified(s->worker, e->adapter, e->version, there ? info.digest : NULL);
}

/* False when it is over. */
static bool on_event(sidecar_t *s, const heddle_event_t *e)
{
    if (e->type == HEDDLE_EVENT_JOINED && !s->ready) print_ready(s, e);
    else print_event(s, e);
    switch (e->type) {
    case HEDDLE_EVENT_ARRIVED: on_arrived(s, e); break;
    case HEDDLE_EVENT_COMMIT: on_commit(s, e); break;
    case HEDDLE_EVENT_VERIFY: on_verify(s, e); break;
    case HEDDLE_EVENT_LEFT: return false;
    case HEDDLE_EVENT_REFUSED:
        if (!e->retriable) {
            error_fail(&s->refusal, e->code ? e->code : HEDDLE_ERR_INTERNAL, "%s", e->message);
            return false;
        }
        if (!s->args.quiet) fprintf(stderr, "heddle-worker: refused for now: %s\n", e->message);
        break;
    default: break;
    }
    return true;
}

static int serve(sidecar_t *s)
{
    heddle_event_t event = {.size = sizeof event};
    bool waiting_said = false, more = true;
    while (more && !stopped) {
        int rc = heddle_worker_next_event(s->worker, s->ready || waiting_said ? -1 : 2000, &event);
        if (rc == HEDDLE_OK) more = on_event(s, &event);
        else if (rc == HEDDLE_ERR_CLOSED) break;
        else if (rc == HEDDLE_ERR_AGAIN && !s->ready && !waiting_said) {
            waiting_said = true;
            if (!s->args.quiet) fprintf(stderr, "heddle-worker: waiting for a broker at %s\n", s->args.broker);
        }
    }
    return s->refusal.code ? fail(&s->args, &s->refusal) : 0;
}

static int check_args(sidecar_t *s, heddle_error_t *error)
{
    sidecar_args_t *a = &s->args;
    if (!a->adapters) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "--adapter is missing");
        error_hint(error, "heddle worker --adapter policy");
        return rc;
    }
    int rc = HEDDLE_OK;
    for (const char **n = a->adapters; !rc && *n; n++) rc = name_check("adapter", *n, error);
    for (const char **l = a->labels; !rc && l && *l; l++) rc = label_check(*l, error);
    if (!rc && a->name) rc = name_check("worker", a->name, error);
    if (!rc && (a->slots < 0 || a->slots > 64 || a->export_keep < 0)) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "--slots or --export-keep is out of range");
        error_expected(error, "--slots 0 to 64, --export-keep 0 or more");
        error_found(error, "--slots %lld, --export-keep %lld", (long long)a->slots, (long long)a->export_keep);
    }
    if (!rc && a->export_dir) {
        rc = export_open(a->export_dir, error);
        if (!rc && !realpath(a->export_dir, s->export_dir)) rc = error_fail(error, HEDDLE_ERR_INTERNAL, "--export %s has no path", a->export_dir);
    }
    if (a->name) snprintf(s->name, sizeof s->name, "%s", a->name);
    else name_default(s->name);
    return rc;
}

static int open_worker(sidecar_t *s)
{
    const sidecar_args_t *a = &s->args;
    bool app = a->export_dir || a->on_stage || a->on_activate;
    heddle_worker_opts_t opts = {.size = sizeof opts, .broker = a->broker, .name = s->name, .adapters = a->adapters, .labels = a->labels, .slots = (uint32_t)a->slots,
                                 .apply = app ? HEDDLE_APPLY_APP : HEDDLE_APPLY_AUTO, .max_rate_bytes = a->max_rate_bytes, .data_device = a->data_device, .insecure = a->insecure,
                                 .join_timeout_ms = a->join_timeout_ms > INT_MAX ? INT_MAX : (int)a->join_timeout_ms, .export_dir = a->export_dir ? s->export_dir : NULL,
                                 .answers_verify = a->export_dir != NULL};
    return heddle_worker_open(&opts, &s->worker);
}

int main(int argc, char **argv)
{
    static sidecar_t s;
    heddle_error_t error = {0};
    int rc = option_parse(&SET, argc, argv, &s.args, NULL, &error);
    if (rc == 1) return 0;
    if (rc == HEDDLE_OK) {
        log_set_level((log_level_t)s.args.log_level);
        rc = check_args(&s, &error);
    } else {
        for (int i = 1; i + 1 < argc; i++) s.args.output |= !strcmp(argv[i], "-o") && !strcmp(argv[i + 1], "json");
    }
    if (rc) return fail(&s.args, &error);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (open_worker(&s) != HEDDLE_OK) return fail(&s.args, heddle_last_error());
    interruptible = s.worker;
    int end = serve(&s);
    interruptible = NULL;
    heddle_worker_close(&s.worker);
    option_fini(&SET, &s.args);
    return end;
}
