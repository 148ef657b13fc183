/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_daemon.h"

#include "broker/broker.h"
#include "broker/main_http.h"
#include "broker/main_keys.h"
#include "broker/store/store.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/others.h"
#include "core/repeat.h"
#include "wire/wire.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { SLOW_US = 1000000 }; /* a write of the registry that is worth a line: nothing else goes on in it */

struct daemon {
    const clock_ops_t *clock;
    store_t *store;
    loop_t *loop;
    wire_t *wire;
    broker_t *broker;
    main_http_t *http; /* NULL: not asked for */
    int signal_fd;
    main_keys_t keys;
    char *endpoint;          /* as bound */
    uint64_t next_us;        /* when the broker wants its next tick, as its last flush said */
    uint64_t logged_seq;     /* events up to here are in the log */
    histogram_t commits;     /* how long each took */
    repeat_t slow, refusals; /* of commits */
    repeat_t warnings;       /* of the broker, by text */
    heddle_error_t end;      /* why it ended; code 0: a signal */
};

/* Not the time at which the turn began: a frame is handled after others of the same turn, and perhaps
 * after a sync of the disk. */
static instant_t now_of(const daemon_t *d)
{
    return (instant_t){.us = clock_now(d->clock), .wall_ms = clock_wall(d->clock)};
}

/* ---- what the broker asks for ---------------------------------------------------------------- */

static int io_send(void *self, uint64_t peer, bytes_t frame)
{
    return wire_send(((daemon_t *)self)->wire, peer, frame);
}
static void io_forget(void *self, uint64_t peer) { wire_forget(((daemon_t *)self)->wire, peer); }

/* Slow and refused commits are logged, each kind once for a while, however often they repeat. */
static int io_commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    daemon_t *d = self;
    heddle_error_t why;
    uint64_t began_us = clock_now(d->clock);
    int rc = store_commit(d->store, records, count, &why);
    uint64_t took_us = clock_now(d->clock) - began_us;
    if (rc && error) *error = why;
    histogram_note(&d->commits, (double)took_us / 1e6);
    char scratch[REPEAT_TEXT];
    uint64_t now_us = began_us + took_us, times = took_us >= SLOW_US ? repeat_note(&d->slow, 0, now_us) : 0;
    if (times)
        log_emit(LOG_WARN, "store.slow", "%s took %.1f s to take %d records; all requests waited for it%s",
                 store_dir(d->store), (double)took_us / 1e6, count, repeat_text(times, scratch));
    times = rc ? repeat_note(&d->refusals, (uint32_t)-rc, now_us) : 0;
    if (times)
        log_emit(LOG_ERROR, "store.refused", "%s: %s%s", heddle_err_name(rc), why.message,
                 repeat_text(times, scratch));
    if (!rc && repeat_over(&d->refusals))
        log_emit(LOG_WARN, "store.recovered", "%s takes records again", store_dir(d->store));
    return rc;
}

/* Only the first failure is kept: later ones follow from it. */
static void io_fatal(void *self, const heddle_error_t *error)
{
    daemon_t *d = self;
    log_emit(LOG_ERROR, "broker.fatal", "%s: %s", heddle_err_name(error->code), error->message);
    if (!d->end.code) d->end = *error;
    loop_stop(d->loop);
}

static void io_random(void *self, void *data, size_t bytes)
{
    (void)self;
    random_bytes(data, bytes);
}

/* The same text is logged once for a while. */
static void io_warn(void *self, const char *id, const char *text)
{
    daemon_t *d = self;
    char scratch[REPEAT_TEXT];
    uint64_t times = repeat_note(&d->warnings, repeat_key(text), clock_now(d->clock));
    if (times) log_emit(LOG_WARN, id, "%s%s", text, repeat_text(times, scratch));
}

static uint64_t io_registry_bytes(void *self) { return store_bytes(((daemon_t *)self)->store); }

static int io_config(void *self, const char *adapter, uint64_t version, buf_t *out)
{
    return store_config(((daemon_t *)self)->store, adapter, version, out, NULL);
}

static const char *io_key(void *self, uint64_t peer) { return wire_peer_key(((daemon_t *)self)->wire, peer); }

/* ---- a turn of the loop ---------------------------------------------------------------------- */

static void on_client_frame(void *self, peer_t from, bytes_t frame)
{
    daemon_t *d = self;
    broker_frame(d->broker, from, frame, now_of(d));
}

static void on_bad_frame(void *self, peer_t from, const char *why)
{
    daemon_t *d = self;
    broker_bad_frame(d->broker, from, why);
}

static uint64_t tick(void *self, uint64_t now_us)
{
    daemon_t *d = self;
    (void)now_us;
    broker_tick(d->broker, now_of(d));
    return d->next_us;
}

static void flush(void *self)
{
    daemon_t *d = self;
    d->next_us = broker_flush(d->broker, now_of(d));
    const events_t *events = broker_events(d->broker);
    uint64_t first = events_first(events);
    main_http_note(d->http, events->last_seq);
    if (d->logged_seq + 1 < first) d->logged_seq = first - 1;
    while (d->logged_seq < events->last_seq) {
        /* "policy@3 w1: chunk 0 differs (digest_mismatch)", of which any part may be missing. */
        const event_row_t *e = events_at(events, ++d->logged_seq);
        char text[2 * HEDDLE_NAME_MAX + sizeof e->message + 64] = "";
        size_t n = 0, size = sizeof text;
        if (e->adapter[0]) n += (size_t)snprintf(text + n, size - n, " %s", e->adapter);
        if (e->version) n += (size_t)snprintf(text + n, size - n, "@%llu", (unsigned long long)e->version);
        if (e->worker[0]) n += (size_t)snprintf(text + n, size - n, " %s", e->worker);
        if (e->message[0]) n += (size_t)snprintf(text + n, size - n, "%s %s", n ? ":" : "", e->message);
        if (e->code) snprintf(text + n, size - n, " (%s)", heddle_err_name(e->code));
        log_emit(e->code ? LOG_WARN : LOG_INFO, events_name(e->type), "%s", text[0] ? text + 1 : "");
    }
}

/* The loop ends after this turn; daemon_close does the rest. */
static void on_signal(void *self)
{
    daemon_t *d = self;
    struct signalfd_siginfo info;
    if (read(d->signal_fd, &info, sizeof info) != (ssize_t)sizeof info) return;
    log_emit(LOG_INFO, "broker.ending", "signal %s from pid %d", info.ssi_signo == SIGTERM ? "TERM" : "INT",
             (int)info.ssi_pid);
    loop_stop(d->loop);
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Without keys any process that reaches the address may do everything, so only loopback is allowed. */
static int check_endpoint(const daemon_opts_t *opts, bool has_keys, heddle_error_t *error)
{
    bool is_loopback = false;
    int rc = wire_check_endpoint(opts->listen, true, &is_loopback, error);
    if (rc || is_loopback || opts->insecure || has_keys) return rc;
    rc = error_fail(error, HEDDLE_ERR_INSECURE_ADDRESS,
                    "%.200s can be reached from other hosts, and no keys are registered for them",
                    opts->listen);
    error_contrast(error, "a loopback address: tcp://127.0.0.1:PORT, tcp://[::1]:PORT or ipc://PATH",
                   opts->listen);
    error_hint(error,
               "register their keys with `heddle keys add` while the broker listens on loopback, or name "
               "a directory of keys with --keys; where only your own machines are, use --insecure");
    return rc;
}

/* Keys that were generated automatically are enough for one host.  An address that other hosts reach needs
 * keys that an operator chose: a directory with --keys, an --admin-key, or a second key in the table. */
static int check_keys(const daemon_t *d, const daemon_opts_t *opts, heddle_error_t *error)
{
    uint64_t count = 0;
    bool is_named = opts->admin_keys && *opts->admin_keys;
    int rc = store_key_count(d->store, &count, error);
    if (!rc) rc = main_keys_check(&d->keys, store_dir(d->store), count || is_named, error);
    if (rc || d->keys.is_chosen || is_named) return rc;
    return check_endpoint(opts, count > 1, error);
}

static int out_of_memory(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to start the broker");
}

static bool lets_in(void *self, const char *public_key)
{
    daemon_t *d = self;
    bool is_in = broker_lets_in(d->broker, public_key);
    if (!is_in) broker_refused_key(d->broker, public_key, now_of(d));
    return is_in;
}

/* From here on clients can connect, but no frame of theirs is handled before the loop runs. */
static int listen_on(daemon_t *d, const char *endpoint, uint32_t timeout_ms, heddle_error_t *error)
{
    static const wire_sink_t SINK = {.on_frame = on_client_frame, .on_bad_frame = on_bad_frame};
    int rc = loop_new(d->clock, &d->loop);
    if (rc) return out_of_memory(error);
    if (timeout_ms) wire_set_handshake(timeout_ms);
    wire_keys_t keys = {.own = d->keys.broker, .allow = lets_in};
    rc = wire_listen(d->loop, endpoint, d->keys.has_keys ? &keys : NULL, &SINK, d, &d->wire, error);
    explicit_bzero(&keys, sizeof keys);
    if (rc) return rc;
    d->endpoint = strdup(wire_endpoint(d->wire));
    return d->endpoint ? HEDDLE_OK : out_of_memory(error);
}

static int load_record(void *self, const record_t *record) { return broker_apply(self, record); }

/* Everything that was recorded is applied before the first connection is served. */
static int restore(daemon_t *d, const daemon_opts_t *opts, heddle_error_t *error)
{
    broker_io_t io = {.self = d,
                      .send = io_send,
                      .forget = io_forget,
                      .commit = io_commit,
                      .fatal = io_fatal,
                      .random = io_random,
                      .warn = io_warn,
                      .registry_bytes = io_registry_bytes,
                      .config = io_config,
                      .key = d->keys.has_keys ? io_key : NULL};
    broker_opts_t with = {.lease_ms = opts->lease_ms,
                          .keep = opts->keep,
                          .shape = (plan_shape_t)opts->plan,
                          .cluster = store_cluster(d->store),
                          .endpoint = d->endpoint,
                          .data_dir = store_dir(d->store),
                          .public_key = d->keys.has_keys ? d->keys.broker.public_key : NULL,
                          .pid = (uint64_t)getpid()};
    random_bytes(&with.seed, sizeof with.seed);
    int rc = broker_new(&with, &io, &d->broker, error);
    if (rc) return rc;
    heddle_error_t why = {0};
    rc = store_load(d->store, load_record, d->broker, &why);
    if (!rc) rc = broker_start(d->broker, now_of(d));
    if (rc && why.code) *error = why;
    else if (rc)
        error_fail(error, rc, "%.300s: the registry cannot be restored: %s", store_dir(d->store),
                   heddle_err_text(rc));
    return rc;
}

/* Without any key in the table this is the first start: the user that starts the broker becomes its admin.
 * SQLite confirms at once, so broker_admit_admin has no AGAIN here. */
static int admit(daemon_t *d, const daemon_opts_t *opts, heddle_error_t *error)
{
    bool is_first = !broker_knows_keys(d->broker);
    int rc = HEDDLE_OK;
    if (!d->keys.has_keys) return rc;
    if (is_first) rc = broker_admit_admin(d->broker, d->keys.client.public_key, "local", now_of(d), error);
    for (const char **key = opts->admin_keys; !rc && key && *key; key++) {
        char public_key[KEY_TEXT];
        rc = key_take(*key, public_key, error);
        if (!rc) rc = broker_admit_admin(d->broker, public_key, "", now_of(d), error);
    }
    if (!rc) log_emit(LOG_INFO, "broker.key", "public key %s", d->keys.broker.public_key);
    return rc;
}

/* Signals are read in the loop, so no handler interrupts a turn. */
static int set_up_loop(daemon_t *d, heddle_error_t *error)
{
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGTERM);
    sigaddset(&mine, SIGINT);
    d->signal_fd = signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK);
    if (d->signal_fd < 0)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "no descriptor for signals: %s", strerror(errno));
    loop_set_tick(d->loop, tick, d);
    loop_set_flush(d->loop, flush, d);
    return loop_add_fd(d->loop, d->signal_fd, on_signal, d) ? out_of_memory(error) : HEDDLE_OK;
}

/* The data directory is opened before the address.  So a second broker of the same directory fails with
 * that error, whatever its port is. */
int daemon_open(const daemon_opts_t *opts, daemon_t **ret_daemon, heddle_error_t *error)
{
    daemon_t *d = calloc(1, sizeof *d);
    if (!d) return out_of_memory(error);
    d->clock = clock_system();
    d->signal_fd = -1;
    int rc = wire_check_endpoint(opts->listen, true, NULL, error); /* before a file is made */
    if (!rc) rc = service_check(&opts->http, error);
    if (!rc) rc = main_keys_open(opts->keys, opts->insecure, &d->keys, error);
    if (!rc) rc = check_endpoint(opts, d->keys.has_keys, error);
    if (!rc) rc = store_open(opts->data, &d->store, error);
    if (!rc) others_warn("broker.others", store_dir(d->store), "the registry there");
    if (!rc) rc = check_keys(d, opts, error);
    if (!rc) rc = listen_on(d, opts->listen, opts->timeout_ms, error);
    if (!rc) rc = restore(d, opts, error);
    if (!rc) rc = admit(d, opts, error);
    if (!rc) rc = main_keys_register(&d->keys, d->endpoint, error);
    if (!rc) rc = set_up_loop(d, error);
    if (!rc && opts->http.listen)
        rc = main_http_open(&(main_http_opts_t){.service = opts->http,
                                                .loop = d->loop,
                                                .broker = d->broker,
                                                .commits = &d->commits},
                            &d->http, error);
    if (rc) daemon_close(&d);
    else *ret_daemon = d;
    return rc;
}

void daemon_facts(const daemon_t *d, daemon_facts_t *ret_facts)
{
    *ret_facts = (daemon_facts_t){.endpoint = d->endpoint,
                                  .cluster = store_cluster(d->store),
                                  .data_dir = store_dir(d->store),
                                  .epoch = store_epoch(d->store),
                                  .http = main_http_url(d->http),
                                  .public_key = d->keys.has_keys ? d->keys.broker.public_key : NULL};
}

int daemon_run(daemon_t *d, heddle_error_t *error)
{
    loop_run(d->loop);
    if (!d->end.code) broker_end(d->broker, now_of(d));
    if (d->end.code) *error = d->end;
    return d->end.code;
}

void daemon_close(daemon_t **daemon)
{
    daemon_t *d = *daemon;
    if (!d) return;
    *daemon = NULL;
    main_http_close(&d->http);
    if (d->loop && d->signal_fd >= 0) loop_remove_fd(d->loop, d->signal_fd);
    if (d->signal_fd >= 0) close(d->signal_fd);
    wire_close(&d->wire);
    broker_destroy(&d->broker);
    loop_destroy(&d->loop);
    store_close(&d->store);
    free(d->endpoint);
    explicit_bzero(&d->keys, sizeof d->keys);
    free(d);
}
