/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_daemon.h"

#include "broker/broker.h"
#include "broker/main_http.h"
#include "broker/keys/own_keys.h"
#include "broker/standby.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/names.h"
#include "core/notify.h"
#include "core/permissions.h"
#include "core/repeat.h"
#include "wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    SLOW_US = 1000000,   /* a write of the registry that is worth a line */
    STORE_POLL_MS = 100, /* outside of the loop */
    STORE_AGAIN_US = 1000000,
    STORE_END_US = 2000000
};

/* What turns of the store outside of the loop are for: a commit is confirmed · the same, and the process ends
 * · the time passes. */
typedef enum { STORE_CONFIRMS, STORE_ENDS, STORE_PAUSES } store_wait_t;

struct daemon {
    const clock_ops_t *clock;
    main_store_t store;
    loop_t *loop;
    wire_t *wire;
    broker_t *broker;        /* NULL: it is starting, or stands by */
    main_http_t *http;       /* NULL: not asked for */
    int signal_fd, store_fd; /* in the loop; -1: not yet, or none */
    bool is_ending;          /* by a signal */
    bool was_standby;
    own_keys_t keys;
    char *endpoint;            /* as bound */
    const daemon_opts_t *opts; /* within daemon_open */
    standby_t standby;         /* before it leads */
    uint64_t anew_count;       /* of it: etcd_standing_t */
    /* the broker that led last before it; "": not known */
    char former[STANDBY_ADDRESS_BYTES];
    buf_t answer;            /* a standby's */
    uint64_t turned_away;    /* messages of members, to the standbys in turn */
    bool has_yielded;        /* and the log says so */
    standby_sent_t sent;     /* since then */
    uint64_t next_us;        /* when the broker wants its next tick, as its last flush said */
    uint64_t commit_us;      /* when the commit that is under way began */
    int commit_count;        /* and its records */
    bool is_committing;      /* an etcd has not confirmed it */
    int commit_rc;           /* how the last one ended that was confirmed later */
    uint64_t logged_seq;     /* events up to here are in the log */
    histogram_t commits;     /* how long each took */
    repeat_t slow, refusals; /* of commits */
    repeat_t silence;        /* of an etcd */
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
static void note_commit(daemon_t *d, int rc, const heddle_error_t *why)
{
    uint64_t now_us = clock_now(d->clock), took_us = now_us - d->commit_us;
    const char *place = main_store_place(&d->store);
    histogram_note(&d->commits, (double)took_us / 1e6);
    char scratch[REPEAT_TEXT];
    uint64_t times = took_us >= SLOW_US ? repeat_note(&d->slow, 0, now_us) : 0;
    if (times)
        log_emit(LOG_WARN, "store.slow", "%s took %.1f s to take %d records; all requests waited for it%s",
                 place, (double)took_us / 1e6, d->commit_count, repeat_text(times, scratch));
    times = rc ? repeat_note(&d->refusals, (uint32_t)-rc, now_us) : 0;
    if (times)
        log_emit(LOG_ERROR, "store.refused", "%s: %s%s", heddle_err_name(rc), why->message,
                 repeat_text(times, scratch));
    if (!rc && repeat_over(&d->refusals))
        log_emit(LOG_WARN, "store.recovered", "%s takes records again", place);
}

static int io_commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    daemon_t *d = self;
    heddle_error_t why;
    d->commit_us = clock_now(d->clock);
    d->commit_count = count;
    int rc = main_store_commit(&d->store, records, count, &why);
    d->is_committing = rc == HEDDLE_ERR_AGAIN;
    if (d->is_committing) return rc;
    if (rc && error) *error = why;
    note_commit(d, rc, &why);
    return rc;
}

/* Only the first failure is logged and kept: later ones follow from it, or are the same, as of a store that
 * is turned once more before the loop ends. */
static void io_fatal(void *self, const heddle_error_t *error)
{
    daemon_t *d = self;
    loop_stop(d->loop);
    if (d->end.code) return;
    d->end = *error;
    log_emit(LOG_ERROR, "broker.fatal", "%s: %s", heddle_err_name(error->code), error->message);
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

static uint64_t io_registry_bytes(void *self) { return main_store_bytes(&((daemon_t *)self)->store); }

static const brokers_t *io_brokers(void *self) { return main_store_brokers(&((daemon_t *)self)->store); }

static int io_config(void *self, const char *adapter, uint64_t version, buf_t *out)
{
    return main_store_config(&((daemon_t *)self)->store, adapter, version, out);
}

static const char *io_key(void *self, uint64_t peer) { return wire_peer_key(((daemon_t *)self)->wire, peer); }

/* ---- a turn of the loop ---------------------------------------------------------------------- */

/* Of a broker that etcd does not answer: another one may lead by now.  False: it has not yielded. */
static bool find_way(daemon_t *d, peer_t from, standby_way_t *ret_way)
{
    const brokers_t *b = main_store_brokers(&d->store);
    if (!b || !b->has_yielded) return false;
    buf_clear(&d->answer);
    *ret_way = (standby_way_t){.admin = broker_admin(d->broker, from),
                               .to = b->count ? &b->rows[d->turned_away % b->count] : NULL,
                               .now_us = clock_now(d->clock)};
    return true;
}

static void send_away(daemon_t *d, peer_t from)
{
    d->turned_away++;
    if (d->answer.bytes) (void)wire_send(d->wire, from, buf_view(&d->answer));
}

static bool turn_away(daemon_t *d, peer_t from, bytes_t frame)
{
    standby_way_t way;
    if (!find_way(d, from, &way) || !standby_turn_away(frame, &way, &d->sent, &d->answer)) return false;
    send_away(d, from);
    return true;
}

static bool turn_question_away(void *self, uint64_t from, uint64_t req)
{
    daemon_t *d = self;
    standby_way_t way;
    if (!find_way(d, from, &way) || !standby_send_on(req, &way, &d->sent, &d->answer)) return false;
    send_away(d, from);
    return true;
}

static void on_client_frame(void *self, peer_t from, bytes_t frame)
{
    daemon_t *d = self;
    if (d->broker) {
        if (!turn_away(d, from, frame)) broker_frame(d->broker, from, frame, now_of(d));
        return;
    }
    buf_clear(&d->answer); /* one that is lost is asked for again */
    if (standby_answer(frame, &d->standby, &d->answer)) (void)wire_send(d->wire, from, buf_view(&d->answer));
}

static void on_bad_frame(void *self, peer_t from, const char *why)
{
    daemon_t *d = self;
    if (d->broker) broker_bad_frame(d->broker, from, why);
}

static void note_silence(daemon_t *d)
{
    const char *place = main_store_place(&d->store), *why = main_store_trouble(&d->store);
    if (main_store_is_answered(&d->store)) {
        if (repeat_over(&d->silence)) log_emit(LOG_WARN, "store.answered", "%s answers again", place);
    } else if (!d->silence.is_said && repeat_note(&d->silence, 0, clock_now(d->clock))) {
        log_emit(LOG_WARN, "store.unanswered", "%s: no endpoint answers and has a majority%s%s", place,
                 *why ? ": " : "", why);
    }
}

/* A commit that waits, because etcd refuses to say whether it happened, or one that would be refused: the end
 * of a commit says that it is over. */
static void note_refusal(daemon_t *d)
{
    const brokers_t *b = main_store_brokers(&d->store);
    char scratch[REPEAT_TEXT];
    if (!b || !b->refusal) return;
    uint64_t times = repeat_note(&d->refusals, (uint32_t)-b->refusal->code, clock_now(d->clock));
    if (times)
        log_emit(LOG_ERROR, "store.refused", "%s: %s; %s%s", heddle_err_name(b->refusal->code),
                 b->refusal->message,
                 d->is_committing ? "whether it was recorded is not known yet" : b->refusal->hint,
                 repeat_text(times, scratch));
}

static void note_yield(daemon_t *d)
{
    const brokers_t *b = main_store_brokers(&d->store);
    if (!b || !b->has_yielded) return;
    broker_offer_questions(d->broker, clock_now(d->clock) + STANDBY_AWAY_US, turn_question_away, d);
    if (d->has_yielded) return;
    d->has_yielded = true;
    log_emit(LOG_WARN, "broker.yielded",
             "%s has not answered, the lease of this broker there is over, and another one may lead: members "
             "are sent to those that stood by; questions are answered where none leads",
             main_store_place(&d->store));
}

/* What the store has to say: how a commit ended, or that another broker may lead. */
static void turn_store(void *self)
{
    daemon_t *d = self;
    heddle_error_t why = {0};
    int rc;
    if (!d->broker) return; /* it stands by: etcd_open turns it */
    main_store_turn(&d->store);
    note_silence(d);
    note_refusal(d);
    note_yield(d);
    if (main_store_committed(&d->store, &rc, &why)) {
        d->is_committing = false;
        d->commit_rc = rc;
        note_commit(d, rc, &why);
        broker_committed(d->broker, rc, rc ? &why : NULL, now_of(d));
    }
    if (main_store_lost(&d->store, &why)) io_fatal(d, &why);
}

static uint64_t tick(void *self, uint64_t now_us)
{
    daemon_t *d = self;
    if (now_us >= main_store_due(&d->store)) turn_store(d);
    broker_tick(d->broker, now_of(d));
    return clock_earlier(d->next_us, main_store_due(&d->store));
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
    d->is_ending = true;
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
    int rc = main_store_key_count(&d->store, &count, error);
    if (!rc) rc = own_keys_check(&d->keys, main_store_place(&d->store), count || is_named, error);
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
    if (!d->broker) return true; /* a standby names the leader, and that looks the key up */
    bool is_in = broker_lets_in(d->broker, public_key, now_of(d));
    if (!is_in) broker_refused_key(d->broker, public_key, now_of(d));
    return is_in;
}

/* From here on clients can connect.  A standby answers them; else no frame of theirs is handled before the
 * loop runs. */
static int listen_on(daemon_t *d, const char *endpoint, uint32_t timeout_ms, heddle_error_t *error)
{
    static const wire_sink_t SINK = {.on_frame = on_client_frame, .on_bad_frame = on_bad_frame};
    int rc = HEDDLE_OK;
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
                      .brokers = io_brokers,
                      .config = io_config,
                      .key = d->keys.has_keys ? io_key : NULL};
    broker_opts_t with = {.lease_ms = opts->lease_ms,
                          .keep = opts->keep,
                          .shape = (plan_shape_t)opts->plan,
                          .cluster = main_store_cluster(&d->store),
                          .endpoint = d->endpoint,
                          .data_dir = main_store_place(&d->store),
                          .former = d->former,
                          .public_key = d->keys.has_keys ? d->keys.broker.public_key : NULL,
                          .pid = (uint64_t)getpid()};
    random_bytes(&with.seed, sizeof with.seed);
    int rc = broker_new(&with, &io, &d->broker, error);
    if (rc) return rc;
    heddle_error_t why = {0};
    rc = main_store_load(&d->store, load_record, d->broker, &why);
    if (!rc) rc = broker_start(d->broker, now_of(d));
    if (rc && why.code) *error = why;
    else if (rc)
        error_fail(error, rc, "%.300s: the registry cannot be restored: %s", main_store_place(&d->store),
                   heddle_err_text(rc));
    return rc;
}

/* Turns of the store outside of the loop, until `until_us`; but for a pause they end when it has confirmed
 * what is under way.  INTERRUPTED: a signal that ends it came first. */
static int wait_for_store(daemon_t *d, store_wait_t what, uint64_t until_us, heddle_error_t *error)
{
    bool is_ending = what == STORE_ENDS;
    while ((d->is_committing || what == STORE_PAUSES) && !d->end.code && clock_now(d->clock) < until_us) {
        struct pollfd fds[] = {{.fd = main_store_fd(&d->store), .events = POLLIN},
                               {.fd = is_ending ? -1 : d->signal_fd, .events = POLLIN}};
        if (poll(fds, 2, STORE_POLL_MS) > 0 && fds[1].revents)
            return error_fail(error, HEDDLE_ERR_INTERRUPTED, "a signal came before the broker served");
        turn_store(d);
    }
    if (d->end.code) *error = d->end;
    return d->end.code;
}

/* An etcd that does not answer, or has no room, may take the record later, as those of members. */
static bool may_take_it_later(const daemon_t *d, int rc)
{
    return d->store.etcd && (rc == HEDDLE_ERR_UNAVAILABLE || rc == HEDDLE_ERR_NO_SPACE);
}

/* broker_admit_admin, again after a pause while an etcd takes no record, and once more when it has confirmed
 * what was written.  A broker that does not lead any more has the end for it, FENCED. */
static int admit_one(daemon_t *d, const char *public_key, const char *name, heddle_error_t *error)
{
    for (;;) {
        int rc = broker_admit_admin(d->broker, public_key, name, now_of(d), error);
        if (rc == HEDDLE_ERR_AGAIN) {
            rc = wait_for_store(d, STORE_CONFIRMS, CLOCK_NEVER, error);
            if (rc) return rc;
            if (!d->commit_rc) continue;
            rc = error_fail(error, d->commit_rc, "%.300s takes no records: the log says why",
                            main_store_place(&d->store));
        }
        if (!may_take_it_later(d, rc)) return rc;
        rc = wait_for_store(d, STORE_PAUSES, clock_now(d->clock) + STORE_AGAIN_US, error);
        if (rc) return rc;
    }
}

/* Without any key in the table this is the first start: the user that starts the broker becomes its admin. */
static int admit(daemon_t *d, const daemon_opts_t *opts, heddle_error_t *error)
{
    bool is_first = !broker_knows_keys(d->broker);
    int rc = HEDDLE_OK;
    if (!d->keys.has_keys) return rc;
    if (is_first) rc = admit_one(d, d->keys.client.public_key, "local", error);
    for (const char **key = opts->admin_keys; !rc && key && *key; key++) {
        char public_key[KEY_TEXT];
        rc = key_take(*key, public_key, error);
        if (!rc) rc = admit_one(d, public_key, "", error);
    }
    if (!rc) log_emit(LOG_INFO, "broker.key", "public key %s", d->keys.broker.public_key);
    return rc;
}

/* Signals are read from a descriptor, so no handler interrupts a turn. */
static int open_loop(daemon_t *d, heddle_error_t *error)
{
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGTERM);
    sigaddset(&mine, SIGINT);
    if (loop_new(d->clock, &d->loop)) return out_of_memory(error);
    d->signal_fd = signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK);
    if (d->signal_fd < 0)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "no descriptor for signals: %s", strerror(errno));
    return loop_add_fd(d->loop, d->signal_fd, on_signal, d) ? out_of_memory(error) : HEDDLE_OK;
}

static int add_store(daemon_t *d, int fd)
{
    if (fd < 0 || fd == d->store_fd) return HEDDLE_OK;
    if (d->store_fd >= 0) loop_remove_fd(d->loop, d->store_fd);
    d->store_fd = -1;
    int rc = loop_add_fd(d->loop, fd, turn_store, d);
    if (!rc) d->store_fd = fd;
    return rc;
}

/* Before it leads, a broker answers clients and signals in the turns between those of its store.  Without a
 * place for the store's descriptor each turn is short. */
static bool wait_to_lead(void *self, int fd, uint64_t until_us)
{
    daemon_t *d = self;
    if (add_store(d, fd)) until_us = clock_earlier(until_us, clock_now(d->clock) + STORE_POLL_MS * 1000ull);
    loop_turn(d->loop, until_us);
    return !d->is_ending;
}

/* A service manager waits for the start: for now this is all. */
static void on_standby(void *self, const char *leader)
{
    daemon_t *d = self;
    char text[500];
    standby_leader(leader, d->standby.leader, d->standby.leader_key);
    if (*d->standby.leader) memcpy(d->former, d->standby.leader, sizeof d->former);
    if (*leader) snprintf(text, sizeof text, "stands by: the broker at %s leads", leader);
    else if (d->standby.is_full) snprintf(text, sizeof text, "stands by: none leads until etcd has room");
    else snprintf(text, sizeof text, "stands by: the broker that led has ended, and none leads");
    log_emit(LOG_INFO, "broker.standby", "%s", text);
    notify_ready(text);
    daemon_facts_t facts;
    daemon_facts(d, &facts);
    if (d->opts->on_standby && !d->was_standby) d->opts->on_standby(&facts);
    d->was_standby = true;
}

/* Of an etcd that has no room while none leads; one that was started there has not said that it stands by. */
static void note_full(daemon_t *d, bool is_full)
{
    heddle_error_t why;
    if (is_full == d->standby.is_full) return;
    d->standby.is_full = is_full;
    if (!is_full) return;
    int rc = standby_check_ready(&d->standby, &why);
    log_emit(LOG_ERROR, "store.refused", "%s: %s: %s", heddle_err_name(rc), why.message, why.hint);
    if (!d->was_standby) on_standby(d, "");
}

static void on_follow(void *self, const etcd_standing_t *now)
{
    daemon_t *d = self;
    note_full(d, now->is_full);
    if (now->anew_count != d->anew_count)
        log_emit(LOG_WARN, "broker.reads_again", "reads all rows of the registry again: %s", now->why_anew);
    d->anew_count = now->anew_count;
    if (now->is_following != d->standby.is_following)
        log_emit(now->is_following ? LOG_INFO : LOG_WARN, "broker.following", "%s",
                 now->is_following  ? "follows the registry, and could take over"
                 : now->refusal     ? "does not follow the registry any more, and could not take over"
                 : now->is_answered ? "does not follow the registry any more: it is read again"
                                    : "etcd does not answer: it could not take over");
    if (now->refusal && !d->standby.refusal.code)
        log_emit(LOG_ERROR, "store.refused", "%s: %s; %s", heddle_err_name(now->refusal->code),
                 now->refusal->message, now->refusal->hint);
    d->standby.refusal = now->refusal ? *now->refusal : (heddle_error_t){0};
    d->standby.is_following = now->is_following;
    d->standby.is_answered = now->is_answered;
    d->standby.behind = now->behind;
}

static void on_stuck(void *self, const heddle_error_t *why)
{
    char text[sizeof why->message + sizeof why->hint + 2];
    snprintf(text, sizeof text, "%s; %s", why->message, why->hint);
    io_warn(self, "store.unread", text);
}

static int open_http(daemon_t *d, const daemon_opts_t *opts, heddle_error_t *error)
{
    main_http_opts_t http = {.service = opts->http,
                             .loop = d->loop,
                             .broker = d->broker,
                             .standby = &d->standby,
                             .store = &d->store,
                             .commits = &d->commits};
    return opts->http.listen ? main_http_open(&http, &d->http, error) : HEDDLE_OK;
}

static int open_store(daemon_t *d, const daemon_opts_t *opts, heddle_error_t *error)
{
    char host[HEDDLE_NAME_MAX + 1], endpoint[STANDBY_ADDRESS_BYTES];
    name_host(host);
    standby_reachable(opts->advertise ? opts->advertise : d->endpoint ? d->endpoint : "", host, endpoint);
    etcd_opts_t etcd = {.url = opts->store,
                        .cluster = opts->store_cluster,
                        .led = opts->store_led,
                        .endpoint = endpoint,
                        .public_key = d->keys.has_keys ? d->keys.broker.public_key : NULL,
                        .lease_ms = opts->store_lease_ms,
                        .member_lease_ms = opts->lease_ms,
                        .wait = wait_to_lead,
                        .on_standby = on_standby,
                        .on_follow = on_follow,
                        .on_stuck = on_stuck,
                        .self = d};
    char scratch[MAIN_STORE_SCRATCH];
    int rc = opts->store ? main_store_access(&opts->store_access, scratch, &etcd, error) : HEDDLE_OK;
    if (!rc && opts->store && etcd_is_exposed(opts->store))
        log_emit(LOG_WARN, "store.plain",
                 "%.300s: the keys that versions are shared with%s go over the network in the clear: use "
                 "etcds://, "
                 "or a network that nothing else is on",
                 opts->store, etcd.user ? ", and the password of etcd," : "");
    if (!rc) rc = main_store_open(&d->store, opts->data, &etcd, error);
    explicit_bzero(scratch, sizeof scratch);
    if (!rc && !opts->store) permissions_warn("broker.others", opts->data, "the registry there");
    if (!rc && opts->store)
        log_emit(LOG_INFO, "broker.leader", "this broker leads, by %s, in epoch %llu, with the registry %s",
                 opts->store, (unsigned long long)main_store_epoch(&d->store),
                 etcd_has_followed(d->store.etcd) ? "that it followed" : "as it was read");
    return rc;
}

/* The data directory is opened before the address.  So a second broker of the same directory fails with
 * that error, whatever its port is.  With an etcd it is the other way round, as a standby has an address. */
int daemon_open(const daemon_opts_t *opts, daemon_t **ret_daemon, heddle_error_t *error)
{
    daemon_t *d = calloc(1, sizeof *d);
    if (!d) return out_of_memory(error);
    d->clock = clock_system();
    d->opts = opts;
    d->signal_fd = d->store_fd = -1;
    int rc = wire_check_endpoint(opts->listen, true, NULL, error); /* before a file is made */
    if (!rc && opts->advertise) rc = wire_check_endpoint(opts->advertise, false, NULL, error);
    if (!rc && opts->store) rc = main_store_check(opts->store, &opts->store_access, error);
    if (!rc) rc = open_loop(d, error);
    if (!rc) rc = service_check(&opts->http, error);
    if (!rc) rc = own_keys_open(opts->keys, opts->insecure, &d->keys, error);
    if (!rc) rc = check_endpoint(opts, d->keys.has_keys, error);
    if (!rc && opts->store) rc = listen_on(d, opts->listen, opts->timeout_ms, error);
    if (!rc && opts->store) rc = own_keys_register(&d->keys, d->endpoint, error);
    if (!rc && opts->store) rc = open_http(d, opts, error);
    if (!rc) rc = open_store(d, opts, error);
    if (!rc) rc = check_keys(d, opts, error);
    if (!rc && !opts->store) rc = listen_on(d, opts->listen, opts->timeout_ms, error);
    if (!rc) rc = restore(d, opts, error);
    if (!rc) rc = admit(d, opts, error);
    if (!rc && !opts->store) rc = own_keys_register(&d->keys, d->endpoint, error);
    if (!rc) {
        loop_set_tick(d->loop, tick, d);
        loop_set_flush(d->loop, flush, d);
        rc = add_store(d, main_store_fd(&d->store)) ? out_of_memory(error) : HEDDLE_OK;
    }
    if (!rc && !opts->store) rc = open_http(d, opts, error);
    if (!rc) main_http_lead(d->http, d->broker);
    d->opts = NULL;
    if (rc) daemon_close(&d);
    else *ret_daemon = d;
    return rc;
}

void daemon_facts(const daemon_t *d, daemon_facts_t *ret_facts)
{
    bool leads = d->broker != NULL;
    *ret_facts = (daemon_facts_t){.endpoint = d->endpoint,
                                  .data_dir = leads ? main_store_place(&d->store) : d->opts->store,
                                  .http = main_http_url(d->http),
                                  .leads = leads,
                                  .leader = leads ? NULL : d->standby.leader,
                                  .public_key = d->keys.has_keys ? d->keys.broker.public_key : NULL};
    if (!leads) return;
    ret_facts->cluster = main_store_cluster(&d->store);
    ret_facts->epoch = main_store_epoch(&d->store);
}

int daemon_run(daemon_t *d, heddle_error_t *error)
{
    loop_run(d->loop);
    uint64_t until_us = clock_now(d->clock) + STORE_END_US;
    wait_for_store(d, STORE_ENDS, until_us, error);
    if (!d->end.code) broker_end(d->broker, now_of(d));
    wait_for_store(d, STORE_ENDS, until_us, error);
    if (d->end.code) *error = d->end;
    return d->end.code;
}

void daemon_close(daemon_t **daemon)
{
    daemon_t *d = *daemon;
    if (!d) return;
    *daemon = NULL;
    /* The lead is given up first: members that lose their connection find the next leader then. */
    if (d->store_fd >= 0) loop_remove_fd(d->loop, d->store_fd);
    etcd_close(&d->store.etcd);
    main_http_close(&d->http);
    if (d->signal_fd >= 0) {
        loop_remove_fd(d->loop, d->signal_fd);
        close(d->signal_fd);
    }
    wire_close(&d->wire);
    broker_destroy(&d->broker);
    loop_destroy(&d->loop);
    main_store_close(&d->store);
    free(d->endpoint);
    buf_fini(&d->answer);
    explicit_bzero(&d->keys, sizeof d->keys);
    free(d);
}
