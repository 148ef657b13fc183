/* SPDX-License-Identifier: Apache-2.0 */
/* heddle-worker: receives adapters for a process that does not speak Heddle: as directories, with commands
 * run at the right moments.  Written against include/heddle alone. */
#include "core/clock.h"
#include "core/contexts.h"
#include "core/descriptors.h"
#include "core/errors.h"
#include "core/join_argument.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/names.h"
#include "core/notify.h"
#include "core/option.h"
#include "core/permissions.h"
#include "core/process.h"
#include "core/repeat.h"
#include "sidecar/http.h"
#include "sidecar/jobs.h"
#include "sidecar/print.h"

#include <errno.h>
#include <heddle/worker.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

typedef enum { OUTPUT_TABLE, OUTPUT_JSON } output_t;
typedef enum { VERIFY_HOST, VERIFY_EACH } verify_t;
typedef enum { KINDS_LORA, KINDS_TENSORS, KINDS_ALL } kinds_t;

typedef struct {
    const char **adapters, **labels;
    const char *context, *broker_key, *key, *join;
    const char *broker, *name, *export_dir, *on_stage, *on_activate, *data_device, *host_share;
    int64_t slots, export_keep, ready_lag;
    service_opts_t http;
    uint32_t timeout_ms, hook_timeout_ms, join_timeout_ms, drain_ms, idle_ms;
    uint64_t max_rate_bytes;
    bool own_memory, no_relay, insecure, quiet;
    int kinds, verify, output, log_level, log_format;
} args_t;

#define AT(field) offsetof(args_t, field)
static const option_t OPTIONS[] = {
    {"adapter", 0, OPTION_LIST, "NAME", NULL, NULL, "subscribe to this adapter; may be given again",
     AT(adapters)},
    {"name", 0, OPTION_TEXT, "NAME", NULL, NULL, "of this worker; default <host>-<pid>", AT(name)},
    {"label", 0, OPTION_LIST, "K=V", NULL, NULL, "shown by heddle workers; may be given again", AT(labels)},
    {"kinds", 0, OPTION_CHOICE, "lora|tensors|all", NULL, "lora",
     "versions that are taken: LoRA adapters, full weights, or both; others are refused", AT(kinds)},
    {"slots", 0, OPTION_INTEGER, "N", NULL, "0",
     "versions in memory for each adapter; 0: 2 + the broker's keep", AT(slots)},
    {"export", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "write each version as DIR/<adapter>@<version>/, link DIR/<adapter>; one worker for each link",
     AT(export_dir)},
    {"export-keep", 0, OPTION_INTEGER, "N", NULL, "2",
     "old directories that stay; so does that of any version still in memory", AT(export_keep)},
    {"on-stage", 0, OPTION_TEXT, "CMD", NULL, NULL, "run when a version is here: load it beside the old one",
     AT(on_stage)},
    {"on-activate", 0, OPTION_TEXT, "CMD", NULL, NULL, "run when it is decided: switch to it",
     AT(on_activate)},
    {"hook-timeout", 0, OPTION_DURATION, "DUR", NULL, "60s", "a command is killed after so long",
     AT(hook_timeout_ms)},
    {"data-device", 0, OPTION_TEXT, "IF", NULL, NULL,
     "network interface of the tensor bytes; default: the one that reaches the broker, if it is private",
     AT(data_device)},
    {"max-rate", 0, OPTION_SIZE, "SIZE", NULL, NULL, "bytes per second, each way by itself; default no limit",
     AT(max_rate_bytes)},
    {"host-share", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "directory, mode 0700, in which processes of this host share memory; default: in a network namespace",
     AT(host_share)},
    {"own-memory", 0, OPTION_FLAG, NULL, NULL, NULL,
     "copy every version, also one that another process of this host has in memory", AT(own_memory)},
    {"no-relay", 0, OPTION_FLAG, NULL, NULL, NULL,
     "other workers fetch from this one only where no other process has the version", AT(no_relay)},
    {"verify", 0, OPTION_CHOICE, "host|each", NULL, "host",
     "what is not copied: digested by one process of this host for all, or by this worker itself",
     AT(verify)},
    {"join-timeout", 0, OPTION_DURATION, "DUR", NULL, NULL,
     "give up while another worker has the name, or exports into DIR, or IF is not up; default never",
     AT(join_timeout_ms)},
    {"join", 0, OPTION_TEXT, "STRING|@FILE", "HEDDLE_JOIN", NULL,
     "what heddle invite printed, or a file with it: names the broker, and enters this worker's own key",
     AT(join)},
    {"drain", 0, OPTION_DURATION, "DUR", NULL, "0",
     "at SIGTERM: others fetch first, for so long at most, what only this one has; a second one ends at once",
     AT(drain_ms)},
    {"exit-when-idle", 0, OPTION_DURATION, "DUR", NULL, "0",
     "end as at SIGTERM when no version has come or changed for so long; 0: never", AT(idle_ms)},
    SERVICE_OPTIONS(AT(http),
                    "answer over HTTP there, reads only: /livez, /readyz, /metrics; HOST: 127.0.0.1"),
    {"ready-lag", 0, OPTION_INTEGER, "N", NULL, "0",
     "/readyz answers 200 up to so many versions behind the latest decision", AT(ready_lag)},
    {"insecure", 0, OPTION_FLAG, NULL, NULL, NULL, "allow addresses that are not loopback", AT(insecure)},
    {0}};
static const option_t COMMON[] = {
    {"broker", 0, OPTION_TEXT, "EP[,EP]", "HEDDLE_BROKER", NULL,
     "where the broker listens; default that of the context, else " CONTEXTS_BROKER, AT(broker)},
    {"context", 0, OPTION_TEXT, "NAME", "HEDDLE_CONTEXT", NULL,
     "connect as this context has it; default the one in use (heddle context)", AT(context)},
    {"broker-key", 0, OPTION_TEXT, "KEY|FILE", "HEDDLE_BROKER_KEY", NULL,
     "the broker's public key; default what the key ring knows of it", AT(broker_key)},
    {"key", 0, OPTION_TEXT, "FILE", "HEDDLE_KEY", NULL,
     "this worker's own key; default client.key of the key ring", AT(key)},
    {"timeout", 0, OPTION_DURATION, "DUR", NULL, "5s",
     "say that no broker answers after so long, and wait on", AT(timeout_ms)},
    {"output", 'o', OPTION_CHOICE, "table|json", NULL, "table", "json: a failure is an object on stdout too",
     AT(output)},
    {"quiet", 'q', OPTION_FLAG, NULL, NULL, NULL, "log only what is wrong", AT(quiet)},
    {"log-level", 0, OPTION_CHOICE, "error|warn|info|debug", NULL, "info", "what is logged on stderr",
     AT(log_level)},
    {"log-format", 0, OPTION_CHOICE, LOG_FORMATS, NULL, "text",
     "how: for people, as an object on each line, or with the priority in front for systemd's journal",
     AT(log_format)},
    {0}};
static option_set_t SET =
    {/* program: as it was typed */
     "heddle-worker",
     "--adapter NAME [OPTION...]",
     "Receives versions of adapters, verifies them, and serves them to other workers.",
     "Prints one line of JSON on stdout when it has joined, then one for each event.  Commands get "
     "HEDDLE_ADAPTER,\n"
     "HEDDLE_VERSION, HEDDLE_DIGEST, HEDDLE_TAG and HEDDLE_PATH; one that fails rejects the version on this "
     "worker.\n"
     "Ends with 0 on SIGTERM and SIGINT, and when it has left after `heddle drain`.\n"
     "DUR: 500ms, 30s, 5m; a bare number is seconds.  SIZE: bytes, or with k M G Ki Mi Gi (2M, 2MB/s), or "
     "16Mbit.",
     OPTIONS,
     COMMON,
     NULL,
     0,
     "Exit status: 0 ok, ended by SIGTERM or SIGINT, idle or drained;\n"
     "2 usage, or an address that others could reach without keys;\n"
     "4 too few --slots, another release of Heddle or UCX, or past --join-timeout another worker with the "
     "name or\n"
     "DIR; 6 denied, and not tried again; 9 this machine.  Without a broker it waits, and while its key is "
     "not\n"
     "admitted or lacks the role it logs `denied` and tries again.\n\n"
     "Environment:\n"
     "  HEDDLE_TRANSFER_MODE  how tensor bytes are sent: eager or rendezvous [eager]\n"
     "  HEDDLE_GUARD          0: the memory of a complete version is not protected from stray writes [1]\n"
     "  HEDDLE_LABEL_KEY      the label key=..., unless --label has that key; any number of them\n"
     "  HEDDLE_PLUGIN_DIR     where transfer_ucx.so is [beside the program, else where it was installed]\n"
     "  UCX_...               UCX's own settings; those that are set are left as they are\n"
     "  NOTIFY_SOCKET         a service manager, notified when it serves and when it ends\n\n"
     "Examples:\n"
     "  heddle worker --adapter policy\n"
     "  heddle worker --join @join.txt --adapter policy    join.txt: what heddle invite printed\n"
     "  heddle worker --adapter policy --export ./w1    ./w1/policy is always the active version\n"
     "  heddle worker --adapter policy --export ./w1 --on-stage './load \"$HEDDLE_PATH\"' --on-activate "
     "./use\n"
     "                                  for an engine that loads a version beside the old one, then "
     "switches"};

typedef struct {
    args_t args;
    heddle_worker_t *worker;
    http_t *http; /* NULL: not asked for */
    jobs_t jobs;
    int signal_fd;
    bool is_ready, is_ending;
    bool is_draining;      /* it is about to leave, by a signal, idleness or an operator */
    uint64_t drain_end_us; /* when it ends whatever only it has; CLOCK_NEVER: it was not asked to here */
    uint64_t idle_us;      /* when it counts as idle; CLOCK_NEVER: never, or not admitted yet */
    uint64_t end_us;       /* of --join-timeout; CLOCK_NEVER: without */
    uint64_t patience_us;  /* when to log that no broker answers; CLOCK_NEVER: logged, or one did */
    bool is_refused;       /* logged, and not admitted since */
    char name[HEDDLE_NAME_MAX + 1];
    heddle_error_t end; /* why it ends; code 0: a signal */
} sidecar_t;

/* --- arguments -------------------------------------------------------------------------------- */

/* It names the broker, too. */
static int take_join(args_t *a, int argc, char **argv, heddle_error_t *error)
{
    join_argument_t values = {a->join, a->broker, a->broker_key, a->context};
    int rc = join_argument_take(&values, argc, argv, error);
    if (rc) error_hint(error, "see %s --help", SET.program);
    a->join = values.join;
    if (a->join) a->broker = "the address of the join string"; /* for the log alone */
    return rc;
}

/* The rules that a single option's type cannot express. */
static int check(const args_t *a, heddle_error_t *error)
{
    char range[32];
    snprintf(range, sizeof range, "0 to %u", LIMIT_SLOTS);
    if (a->slots < 0 || a->slots > LIMIT_SLOTS) return option_refuse(&SET, "--slots", range, a->slots, error);
    if (a->export_keep < 0 || a->export_keep > 1000000)
        return option_refuse(&SET, "--export-keep", "0 to 1000000", a->export_keep, error);
    if (a->timeout_ms == 0) return option_refuse(&SET, "--timeout", "more than 0", 0, error);
    if (a->hook_timeout_ms == 0) return option_refuse(&SET, "--hook-timeout", "more than 0", 0, error);
    if (a->ready_lag < 0 || a->ready_lag > 1000000)
        return option_refuse(&SET, "--ready-lag", "0 to 1000000", a->ready_lag, error);
    if (a->adapters) return service_check(&a->http, error);
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "--adapter is missing");
    error_expected(error, "--adapter NAME, once or more");
    error_hint(error, "see %s --help", SET.program);
    return rc;
}

/* --- events ----------------------------------------------------------------------------------- */

/* The first reason to end is the one that is reported. */
static void end_with_error(sidecar_t *s, const heddle_error_t *why)
{
    if (s->is_ending) return;
    s->end = *why;
    s->is_ending = true;
}

/* For reasons that are found here, and not reported by the library. */
static void end_with(sidecar_t *s, int code, const char *text)
{
    heddle_error_t why;
    error_fail(&why, code, "%s", text);
    end_with_error(s, &why);
}

/* The ready line is printed once, at the first WELCOME, since a program that starts a worker waits for that
 * line. A later join is only logged. */
static void on_joined(sidecar_t *s, const heddle_event_t *e)
{
    s->patience_us = CLOCK_NEVER;
    if (s->is_ready || s->is_refused)
        log_emit(s->is_refused ? LOG_WARN : LOG_INFO, "worker.joined", "%s",
                 s->is_refused ? "the broker has admitted this worker" : "joined again");
    s->is_refused = false;
    if (s->is_ready) return;
    s->is_ready = true;
    print_ready(s->worker, e, s->name, s->args.adapters,
                s->jobs.exports.root >= 0 ? s->jobs.exports.path : NULL, http_url(s->http));
    notify_ready(s->name);
}

/* A refusal that will not change ends the process, so that a service manager shows it. Any other one is
 * logged, and the library tries again. */
static void on_refused(sidecar_t *s, const heddle_event_t *e)
{
    const heddle_error_t *why = heddle_last_error();
    s->patience_us = CLOCK_NEVER;
    if (!e->retriable) {
        end_with_error(s, why);
        return;
    }
    char then[32 + REPEAT_TEXT], scratch[REPEAT_TEXT];
    snprintf(then, sizeof then, "it is tried again%s", repeat_text(e->repeat_count, scratch));
    print_log_error("worker.refused", why, then);
    s->is_refused = true;
}

/* It ends: at once, or when what only it has is elsewhere, for --drain at most. */
static void begin_to_end(sidecar_t *s, const char *why)
{
    bool drains = s->args.drain_ms && s->worker && s->drain_end_us == CLOCK_NEVER;
    if (!drains || heddle_worker_drain(s->worker) != HEDDLE_OK) {
        s->is_ending = true;
        log_emit(LOG_INFO, "worker.ending", "%s", why);
        return;
    }
    s->is_draining = true;
    s->idle_us = CLOCK_NEVER;
    s->drain_end_us = clock_now(clock_system()) + s->args.drain_ms * 1000ull;
    log_emit(LOG_INFO, "worker.draining",
             "%s: it leaves when others have what only it has, in %.1f s at most", why,
             s->args.drain_ms / 1000.0);
    notify_status("draining");
}

/* SIGCHLD needs no answer here: it only ends the poll. */
static void take_signals(sidecar_t *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            begin_to_end(s, "a signal came"); /* a child's end is noted by jobs_run */
}

/* Ends what is over by time alone; returns when the next one is. */
static uint64_t look_at_time(sidecar_t *s, uint64_t now_us)
{
    if (now_us >= s->idle_us) begin_to_end(s, "no version came or changed for the time of --exit-when-idle");
    if (now_us >= s->drain_end_us && !s->is_ending) {
        log_emit(LOG_WARN, "worker.draining",
                 "--drain is over: this worker ends, and with it what only it has");
        s->is_ending = true;
    }
    return clock_earlier(s->idle_us, s->drain_end_us);
}

enum { FDS = 2, HOOKS = LIMIT_ADAPTERS_PER_WORKER, SLEEP_MAX_MS = 60000 };

/* The main loop: events of the library, jobs, signals. The order matters: all queued events are taken
 * before the end of a command is looked at, because a COMMIT that came again may be answered by that
 * command. */
static void serve(sidecar_t *s)
{
    const clock_ops_t *clock = clock_system();
    s->patience_us = clock_now(clock) + s->args.timeout_ms * 1000ull;
    for (;;) {
        heddle_event_t event = {.size = sizeof event};
        while (!s->is_ending && heddle_worker_next_event(s->worker, 0, &event) == HEDDLE_OK) {
            if (event.type == HEDDLE_EVENT_JOINED) on_joined(s, &event);
            if (event.type == HEDDLE_EVENT_REFUSED) on_refused(s, &event);
            if (event.type == HEDDLE_EVENT_LOST_BROKER)
                log_emit(LOG_WARN, "broker.lost", "%s", event.message);
            if (event.type == HEDDLE_EVENT_FENCED) log_emit(LOG_WARN, "worker.fenced", "%s", event.message);
            if (event.type == HEDDLE_EVENT_DRAINING) {
                if (!s->is_draining)
                    log_emit(LOG_INFO, "worker.draining", "the broker was asked to have this worker leave");
                s->is_draining = true;
            }
            if (event.type == HEDDLE_EVENT_STAYING) {
                /* This process did not ask for the drain: of its own wish it ends, whatever others say. */
                log_emit(LOG_INFO, "worker.staying", "the broker was asked to have this worker stay");
                s->is_draining = false;
            }
            /* What a version of an adapter does is work, and begins the time of --exit-when-idle anew. */
            bool is_work =
                event.adapter[0] || event.type == HEDDLE_EVENT_JOINED || event.type == HEDDLE_EVENT_STAYING;
            if (is_work && s->args.idle_ms && !s->is_draining)
                s->idle_us = clock_now(clock_system()) + s->args.idle_ms * 1000ull;
            if (s->is_ready) print_event(&event, s->name);
            if (event.type == HEDDLE_EVENT_LEFT) {
                /* It has left: as it was to, or not. */
                if (s->is_draining) s->is_ending = true;
                else end_with(s, HEDDLE_ERR_UNAVAILABLE, "the worker left its broker");
            }
            if (jobs_add(&s->jobs, &event) != HEDDLE_OK)
                end_with(s, HEDDLE_ERR_NO_MEMORY, "no memory for an event");
        }
        if (s->is_ending) return;
        uint64_t now_us = clock_now(clock), due_us = jobs_run(&s->jobs, now_us);
        due_us = clock_earlier(due_us, look_at_time(s, now_us));
        if (s->is_ending) return;
        /* Logged once: a worker may be started before its broker, and waits for it. */
        if (now_us >= s->patience_us) {
            s->patience_us = CLOCK_NEVER;
            log_emit(LOG_WARN, "worker.waiting", "no broker answers at %s within %.1f s; waiting for one",
                     s->args.broker, s->args.timeout_ms / 1000.0);
            notify_status("no broker answers; waiting for one");
        }
        if (s->patience_us < due_us) due_us = s->patience_us;
        struct pollfd fds[FDS + HOOKS] = {{.fd = heddle_worker_fd(s->worker), .events = POLLIN},
                                          {.fd = s->signal_fd, .events = POLLIN}};
        int hooks = jobs_poll(&s->jobs, fds + FDS, HOOKS), timeout_ms = -1;
        if (due_us != UINT64_MAX) {
            now_us = clock_now(clock);
            uint64_t ms = due_us > now_us ? (due_us - now_us) / 1000 + 1 : 0;
            timeout_ms = ms < SLEEP_MAX_MS ? (int)ms : SLEEP_MAX_MS;
        }
        if (poll(fds, FDS + (nfds_t)hooks, timeout_ms) < 0 && errno != EINTR)
            end_with(s, HEDDLE_ERR_INTERNAL, strerror(errno));
        jobs_polled(&s->jobs, fds + FDS, hooks);
        take_signals(s);
    }
}

/* --- the process ------------------------------------------------------------------------------ */

/* The rest of --join-timeout in ms, at least 1, because 0 means no limit. */
static int patience_left(const sidecar_t *s)
{
    uint64_t now_us = clock_now(clock_system());
    if (s->end_us == CLOCK_NEVER) return 0;
    return s->end_us > now_us + 1000 ? (int)((s->end_us - now_us) / 1000) : 1;
}

enum { LOCK_RETRY_MS = 250, DEVICE_RETRY_MS = 1000 };

/* The same reason is logged once and then counted, since a wait may take days. */
static void report_retry(const sidecar_t *s, repeat_t *repeated, const char *event, const heddle_error_t *why,
                         const char *status)
{
    char then[64 + REPEAT_TEXT], scratch[REPEAT_TEXT];
    uint64_t times = repeat_note(repeated, repeat_key(why->message), clock_now(clock_system()));
    if (!times) return;
    snprintf(then, sizeof then, "%s%s",
             s->args.join_timeout_ms ? "it is tried again for --join-timeout"
                                     : "it is tried again without end: there is no --join-timeout",
             repeat_text(times, scratch));
    print_log_error(event, why, then);
    notify_status(status);
}

/* Waits before the next try; false when --join-timeout is over.  A signal ends the wait, and the process. */
static bool may_try_again(sidecar_t *s, int after_ms)
{
    int left_ms = patience_left(s);
    if (clock_now(clock_system()) >= s->end_us) return false;
    if (left_ms && left_ms < after_ms) after_ms = left_ms;
    poll(&(struct pollfd){.fd = s->signal_fd, .events = POLLIN}, 1, after_ms);
    take_signals(s);
    return !s->is_ending;
}

/* The process that exports there may be the one that this worker replaces, and may be about to end. So the
 * lock gets as much time as a name that is still in use; both together have no more than --join-timeout. */
static int lock_exports(sidecar_t *s, heddle_error_t *error)
{
    repeat_t repeated = {0};
    for (;;) {
        int rc = exports_lock(&s->jobs.exports, s->args.adapters, error);
        if (rc != HEDDLE_ERR_DATA_LOCKED) {
            if (!rc && repeat_over(&repeated))
                log_emit(LOG_WARN, "export.free", "%s is free: this worker exports there",
                         s->jobs.exports.path);
            if (!rc) permissions_warn("export.others", s->jobs.exports.path, "what an engine loads");
            return rc;
        }
        report_retry(s, &repeated, "export.locked", error,
                     "another worker exports there; waiting for its end");
        if (!may_try_again(s, LOCK_RETRY_MS)) return s->is_ending ? HEDDLE_OK : rc;
    }
}

/* The texts are in use until the process ends. */
static int choose_broker(args_t *a, heddle_error_t *error)
{
    static contexts_t contexts;
    context_t values = {a->context, a->broker, a->broker_key, a->key};
    int rc = contexts_choose(&values, &contexts, error);
    a->broker = values.broker;
    a->broker_key = values.broker_key;
    a->key = values.key;
    return rc;
}

/* At boot, the interface of the data plane may come up later than this process. */
static int open_in_time(sidecar_t *s, heddle_error_t *error)
{
    repeat_t repeated = {0};
    for (;;) {
        const args_t *a = &s->args;
        bool acts = a->export_dir || a->on_stage || a->on_activate;
        static const char *const KINDS[][3] =
            {[KINDS_LORA] = {"lora"}, [KINDS_TENSORS] = {"tensors"}, [KINDS_ALL] = {"lora", "tensors"}};
        heddle_worker_opts_t opts = {.size = sizeof opts,
                                     .broker = a->join ? NULL : a->broker,
                                     .broker_key = a->join ? NULL : a->broker_key,
                                     .join = a->join,
                                     .key = a->key,
                                     .name = s->name,
                                     .adapters = a->adapters,
                                     .labels = a->labels,
                                     .kinds = KINDS[a->kinds],
                                     .slots = (uint32_t)a->slots,
                                     .apply = acts ? HEDDLE_APPLY_APP : HEDDLE_APPLY_AUTO,
                                     .max_rate_bytes = a->max_rate_bytes,
                                     .data_device = a->data_device,
                                     .insecure = a->insecure,
                                     .host_share = a->host_share,
                                     .own_memory = a->own_memory,
                                     .no_relay = a->no_relay,
                                     .verify_each = a->verify == VERIFY_EACH,
                                     .join_timeout_ms = patience_left(s),
                                     .export_dir = s->jobs.exports.root >= 0 ? s->jobs.exports.path : NULL,
                                     .answers_verify = a->export_dir != NULL,
                                     .quiet = 1};
        int rc = heddle_worker_open(&opts, &s->worker);
        if (rc) *error = *heddle_last_error();
        s->jobs.worker = s->worker;
        http_set_worker(s->http, s->worker);
        /* Other failures do not pass by themselves: a wrong option, a key, a cluster of another release. */
        bool is_network = rc == HEDDLE_ERR_INTERNAL || rc == HEDDLE_ERR_UNAVAILABLE;
        if (!rc && repeat_over(&repeated)) log_emit(LOG_WARN, "device.up", "the network interface is up");
        if (!is_network || !error->retriable) return rc;
        report_retry(s, &repeated, "device.waiting", error,
                     "the network interface is not up; waiting for it");
        if (!may_try_again(s, DEVICE_RETRY_MS)) return s->is_ending ? HEDDLE_OK : rc;
    }
}

/* What can be refused is refused in order of cost: the directory first, then the network. What was opened is
 * closed in the reverse order, also after a failure. */
static int run(sidecar_t *s, heddle_error_t *error)
{
    s->jobs = (jobs_t){.name = s->name,
                       .exports.root = -1,
                       .on_stage = s->args.on_stage,
                       .on_activate = s->args.on_activate,
                       .hook_timeout_ms = s->args.hook_timeout_ms};
    uint64_t patience_us = s->args.join_timeout_ms * 1000ull;
    s->end_us = patience_us ? clock_now(clock_system()) + patience_us : CLOCK_NEVER;
    s->drain_end_us = s->idle_us = CLOCK_NEVER;
    /* Before any thread is created, since threads inherit the mask; signals are read from a descriptor. */
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGTERM);
    sigaddset(&mine, SIGINT);
    sigaddset(&mine, SIGCHLD);
    sigprocmask(SIG_BLOCK, &mine, NULL);
    int fd = signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK);
    s->signal_fd =
        fd >= 0 ? fd
                : error_fail(error, HEDDLE_ERR_INTERNAL, "no descriptor for signals: %s", strerror(errno));
    int rc = s->signal_fd < 0 ? s->signal_fd : HEDDLE_OK;
    /* Probes are answered while this process waits for the directory or the network. */
    if (!rc && s->args.http.listen)
        rc = http_open(&(http_opts_t){.service = s->args.http,
                                      .adapters = s->args.adapters,
                                      .ready_lag = (uint64_t)s->args.ready_lag},
                       &s->http, error);
    /* Problems with the directory are reported before anything is fetched. */
    exports_t *x = &s->jobs.exports;
    if (!rc && s->args.export_dir) {
        rc = exports_open(x, s->args.export_dir, (uint32_t)s->args.export_keep, error);
        for (const char **name = s->args.adapters; !rc && *name; name++) {
            rc = name_check("adapter", *name, error);
            if (!rc) rc = exports_check_link(x, *name, error);
        }
        if (!rc) rc = lock_exports(s, error);
    }
    if (!rc && !s->is_ending) rc = open_in_time(s, error);
    if (!rc) serve(s);
    /* Before the library is closed, which may take as long as a transfer. */
    notify_stopping();
    if (!rc && s->end.code) *error = s->end;
    if (!rc) rc = s->end.code;
    http_close(&s->http);
    jobs_fini(&s->jobs);
    heddle_worker_close(&s->worker);
    exports_close(&s->jobs.exports);
    if (s->signal_fd >= 0) close(s->signal_fd);
    return rc;
}

/* A failure is printed on stderr always, and as an object on stdout where JSON was asked for, even if the
 * options themselves are wrong. */
int main(int argc, char **argv)
{
    static sidecar_t s;
    heddle_error_t error = {0};
    process_take_log_format(argc, argv);
    int rc = process_begin(&error);
    SET.program = process_name(argv[0], "heddle-worker");
    s.args.http.program = "worker";
    if (!rc) rc = option_parse(&SET, argc, argv, &s.args, NULL, &error);
    if (rc == 1) return process_end(0);
    if (rc) s.args.output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE;
    else rc = check(&s.args, &error);
    if (!rc) rc = take_join(&s.args, argc, argv, &error);
    if (!rc && !s.args.join) rc = choose_broker(&s.args, &error);
    if (!rc) {
        log_set_format((log_format_t)s.args.log_format);
        log_set_level(s.args.quiet && s.args.log_level > LOG_WARN ? LOG_WARN : (log_level_t)s.args.log_level);
        if (s.args.name) error_text(s.name, sizeof s.name, s.args.name);
        else name_default(s.name);
        if (s.args.name && strlen(s.args.name) >= sizeof s.name)
            rc = name_check("worker", s.args.name, &error);
    }
    /* Each version and each connection takes descriptors; the soft limit of a shell is low. */
    descriptors_raise_limit();
    if (!rc) rc = run(&s, &error);
    option_fini(&SET, &s.args);
    return rc ? print_failure(SET.program, &error, s.args.output == OUTPUT_JSON) : 0;
}
