/* SPDX-License-Identifier: Apache-2.0 */
#include "client/shell.h"

#include "client/broker_address.h"
#include "client/data_device.h"
#include "client/descriptors.h"
#include "client/entering.h"
#include "client/event_queue.h"
#include "client/opening.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/thread.h"
#include "wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TURN_EVENTS 64   /* transfer events handed over in one turn */
#define LOOK_US 1000000u /* between two looks at the interface's addresses */

struct shell {
    loop_t *loop;
    wire_t *wire;
    node_io_t io;
    const node_ops_t *ops;
    void *node;
    uint64_t transfer_due_us; /* what the last tick knew of the transfer's deadline */
    pthread_t thread;
    pid_t process; /* that has the thread: a forked child has not */
    bool running;
    int fds[SHELL_FDS]; /* of the node */
    uint32_t fd_count;
    event_queue_t events;
    descriptors_keep_t keep;
    int interrupt_fd;
    char device[DATA_DEVICE_BYTES];
    device_reach_t reach;
    uint64_t look_us;     /* the next look at the interface; CLOCK_NEVER: loopback, or none */
    char look_error[256]; /* why the last one could not be obeyed; "" */
    /* While the own key is being entered, what the connection does is not the node's. */
    entering_t entering;
    key_pair_t own;           /* erased when it is presented */
    char enter_refusal[256];  /* why the invitation did not enter the key; "" */
    keyring_t ring;           /* keeps the broker that the invitation names */
    join_string_t invited_to; /* its addresses and key alone */
};

/* ---- what the node asks for ---- */

static int send_frame(void *self, bytes_t frame) { return wire_send(((shell_t *)self)->wire, 0, frame); }
static void redial(void *self, const char *to, const char *key)
{
    wire_redial_to(((shell_t *)self)->wire, to, key);
}

static void take_told(void *self, const msg_t *m) { broker_address_told(((shell_t *)self)->wire, m); }
static void tell(void *self, const heddle_event_t *event)
{
    event_queue_push(&((shell_t *)self)->events, event);
}

/* ---- what the loop says ---- */

/* The broker has shown that it has the key that the invitation names, and has entered ours: from then on the
 * key ring knows it, so that a start without the string finds it.  What the ring knows of an address already
 * stays: an invitation does not change that. */
static void keep_broker(const shell_t *s)
{
    heddle_error_t why;
    char one[KEYRING_ENDPOINT], known[KEY_TEXT];
    const char *key = s->invited_to.broker_key;
    for (const char *at = s->invited_to.endpoints; at && s->ring.dir[0];) {
        size_t bytes = strcspn(at, ",");
        bool is_other = false;
        text_printf(one, sizeof one, "%.*s", (int)bytes, at);
        int rc = keyring_known_broker(&s->ring, one, known, &why);
        if (rc == HEDDLE_ERR_NOT_FOUND) rc = keyring_register_broker(&s->ring, one, key, &why);
        else is_other = !rc && strcmp(known, key) != 0;
        if (rc) log_emit(LOG_WARN, "keys.unkept", "the key of the broker at %s: %s", one, why.message);
        else if (is_other)
            log_emit(LOG_WARN, "keys.unkept",
                     "the key ring has another key of the broker at %s, and keeps that: %.300s", one,
                     s->ring.dir);
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
}

/* The key is entered, or the invitation does not enter it.  The connection is made anew with the own key in
 * either case: a key that is in the table needs no invitation. */
static void end_entering(shell_t *s)
{
    s->entering.state = ENTERING_OVER;
    wire_present(s->wire, &s->own);
    explicit_bzero(&s->own, sizeof s->own);
    wire_redial(s->wire);
}

static void refuse_node(shell_t *s, const heddle_error_t *why)
{
    if (s->ops->refused) s->ops->refused(s->node, why, loop_now(s->loop));
}

static void enter(shell_t *s, session_event_kind_t kind, const msg_t *msg, uint64_t now_us)
{
    msg_t answer;
    heddle_error_t why;
    unsigned out = entering_step(&s->entering, kind, msg, now_us, &answer, &why);
    if (out & EN_SEND) {
        buf_t frame = {0};
        if (!msg_encode(&answer, &frame)) (void)wire_send(s->wire, 0, buf_view(&frame));
        buf_fini(&frame);
    }
    if (out & EN_REDIAL) wire_redial_to(s->wire, s->entering.session.leader, s->entering.session.leader_key);
    /* Where that is final, the refusal of the own key that follows has the reason. */
    if (out & EN_AGAIN) refuse_node(s, &why);
    else if (out & EN_REFUSED) error_text(s->enter_refusal, sizeof s->enter_refusal, why.message);
    if (out & EN_ENTERED) {
        log_emit(LOG_INFO, "keys.entered", "the broker has entered the key of this client");
        keep_broker(s);
    }
    if (entering_is_over(&s->entering)) end_entering(s);
}

static void on_entering_frame(shell_t *s, bytes_t frame)
{
    msg_t m;
    heddle_error_t error;
    if (msg_decode(frame, &m, &error)) return; /* the question is asked again */
    enter(s, SE_FRAME, &m, loop_now(s->loop));
    msg_fini(&m);
}

static void on_broker_frame(void *self, peer_t from, bytes_t frame)
{
    shell_t *s = self;
    (void)from;
    if (!entering_is_over(&s->entering)) {
        on_entering_frame(s, frame);
        return;
    }
    s->ops->session(s->node, &(node_event_t){SE_FRAME, frame}, loop_now(s->loop));
}

/* Polled, and not listened for: a netlink socket would be one more descriptor and source for an event
 * that happens once a day, and DHCP itself takes longer than a second. True: the data plane has other
 * addresses since. */
static bool look_at_device(shell_t *s, uint64_t now_us)
{
    heddle_error_t error;
    tr_where_t before, after;
    if (s->look_us == CLOCK_NEVER) return false;
    s->look_us = now_us + LOOK_US;
    if (!s->io.tr->moved(s->io.t)) return false;
    s->io.tr->where(s->io.t, &before);
    int rc = device_check(s->device, s->reach, &error);
    if (!rc) rc = descriptors_check(DESCRIPTORS_VERSION, &error); /* UCX ends the process without */
    if (!rc) rc = s->io.tr->reopen(s->io.t, &error);
    if (rc && strcmp(s->look_error, error.message) != 0)
        log_emit(LOG_WARN, "data.unmoved",
                 "the addresses of %s changed, and the data plane cannot take the "
                 "new ones: %s; it is tried again",
                 s->device, error.message);
    error_text(s->look_error, sizeof s->look_error, rc ? error.message : "");
    s->io.tr->where(s->io.t, &after);
    if (!strcmp(before.addresses, after.addresses)) return false;
    log_emit(LOG_WARN, "data.moved",
             "the addresses of %s changed from %s to %s: the data plane was opened "
             "anew",
             s->device, before.addresses, after.addresses);
    return true;
}

/* The addresses are checked before the node joins, because its JOIN names them. */
static void on_connection(void *self, bool up)
{
    shell_t *s = self;
    if (!entering_is_over(&s->entering)) {
        enter(s, up ? SE_CONNECTED : SE_DISCONNECTED, NULL, loop_now(s->loop));
        return;
    }
    (void)look_at_device(s, loop_now(s->loop)); /* the node sends it in what follows */
    node_event_t event = {.kind = up ? SE_CONNECTED : SE_DISCONNECTED};
    s->ops->session(s->node, &event, loop_now(s->loop));
}

static void on_refused(void *self, const heddle_error_t *why)
{
    shell_t *s = self;
    heddle_error_t all = *why;
    bool is_unknown = why->code == HEDDLE_ERR_DENIED && !why->retriable;
    if (!entering_is_over(&s->entering) && is_unknown) {
        /* An invitation that has ended or was revoked is refused in the handshake.  The own key may be in
         * the table. */
        error_text(s->enter_refusal, sizeof s->enter_refusal,
                   "it has ended or was revoked, or the broker does not know it");
        end_entering(s);
        return;
    }
    if (is_unknown && s->enter_refusal[0])
        text_printf(all.message + strlen(all.message), sizeof all.message - strlen(all.message),
                    "; the invitation did not enter it: %s", s->enter_refusal);
    refuse_node(s, &all);
}

/* Logged for developers alone: another program may use the port. */
static void on_bad_frame(void *self, peer_t from, const char *why)
{
    shell_t *s = self;
    (void)from;
    log_emit(LOG_DEBUG, "wire.bad_frame", "%s sent %s", wire_endpoint(s->wire), why);
}

static uint64_t transfer_deadline(const shell_t *s)
{
    return s->io.t ? s->io.tr->deadline(s->io.t) : CLOCK_NEVER;
}

/* The shell's own timers and the node's are one deadline of the loop. */
static uint64_t tick(void *self, uint64_t now_us)
{
    shell_t *s = self;
    if (s->io.t) descriptors_look(&s->keep, now_us);
    if (now_us >= s->look_us && look_at_device(s, now_us)) wire_redial(s->wire);
    uint64_t node_us = s->ops->tick(s->node, now_us);
    s->transfer_due_us = transfer_deadline(s);
    if (!entering_is_over(&s->entering)) {
        enter(s, SE_TICK, NULL, now_us);
        node_us = clock_earlier(node_us, entering_deadline(&s->entering));
    }
    uint64_t due_us = node_us < s->transfer_due_us ? node_us : s->transfer_due_us;
    return due_us < s->look_us ? due_us : s->look_us;
}

/* Bounded, so that heartbeats stay in time: a batch of transfer events, then one piece of the node's own
 * work. */
static bool work_a_turn(void *self)
{
    shell_t *s = self;
    uint64_t now_us = loop_now(s->loop);
    tr_event_t events[TURN_EVENTS];
    int count = s->io.t ? s->io.tr->events(s->io.t, now_us, events, TURN_EVENTS) : 0;
    for (int i = 0; i < count; i++) s->ops->transfer(s->node, &events[i], now_us);
    bool more = s->ops->work && s->ops->work(s->node, now_us);
    return more || count > 0;
}

/* Progress may have brought the transfer's deadline forward without an event. The loop must not sleep
 * then, until a tick has seen the new deadline. */
static bool arm(void *self)
{
    shell_t *s = self;
    return !s->io.t || (transfer_deadline(s) >= s->transfer_due_us && s->io.tr->arm(s->io.t));
}

/* ---- open ---- */

/* Memory, descriptors and threads run out for the same reasons, and have one hint. */
static int out_of(heddle_error_t *error, const char *words)
{
    error_fail(error, HEDDLE_ERR_NO_MEMORY, "%s", words);
    error_hint(error, "free some, or raise this program's limits (ulimit -a: -n, -u, -v)");
    return HEDDLE_ERR_NO_MEMORY;
}

static const char *address_of(const shell_opts_t *opts)
{
    return opts->keys.join ? opts->keys.join->endpoints : broker_address(opts->broker);
}

/* Over a network keys are required, or --insecure. The check comes before anything is opened. */
static int take_keys(shell_t *s, const shell_opts_t *opts, wire_keys_t *ret_keys, heddle_error_t *error)
{
    bool is_loopback = false, is_secure = false;
    const char *broker = address_of(opts);
    int rc = wire_check_endpoints(broker, &is_loopback, error);
    if (!rc) rc = credentials_take(&opts->keys, broker, ret_keys, &is_secure, error);
    if (!rc && !is_loopback && !is_secure && !opts->insecure) {
        rc = error_fail(
            error, HEDDLE_ERR_INSECURE_ADDRESS,
            "the broker's address %s is reached over a network, and the broker's key is not known", broker);
        error_contrast(error, "a loopback address, or the broker's key", broker);
        error_hint(
            error,
            "opts.broker_key names it (public_key in the broker's ready line); opts.insecure goes without, "
            "on a network that you trust");
    }
    if (rc || !opts->transfer) return rc;
    /* A peer that reaches the data plane's address can write memory.  Keys that programs of one host made
     * for themselves say nothing of its network: some must have been named, or the broker be of another
     * host. */
    bool has_keys = is_secure && (!is_loopback || credentials_are_named(&opts->keys));
    s->reach = opts->insecure ? DEVICE_ANY : has_keys ? DEVICE_PRIVATE : DEVICE_LOOPBACK;
    rc = data_device_choose(opts->data_device, broker, s->reach, s->device, error);
    if (!rc && !device_is_loopback(s->device)) s->look_us = 0;
    return rc;
}

/* UCX is loaded only by clients that move bulk data. */
static int open_transfer(shell_t *s, const shell_opts_t *opts, heddle_error_t *error)
{
    transfer_opts_t transfer = {.device = s->device,
                                .max_rate_bytes = opts->max_rate_bytes,
                                .close_ms = opts->close_ms,
                                .clock = s->io.clock,
                                .owner = s->io.owner};
    /* Sources decide how bytes are sent, so both sides of a transfer may differ. */
    const char *wanted = getenv("HEDDLE_TRANSFER_MODE");
    if (wanted && !strcmp(wanted, "rendezvous")) transfer.mode = TR_MODE_RENDEZVOUS;
    else if (wanted && *wanted && strcmp(wanted, "eager") != 0) {
        error_fail(error, HEDDLE_ERR_USAGE, "HEDDLE_TRANSFER_MODE is \"%.40s\"", wanted);
        error_contrast(error, "eager or rendezvous", wanted);
        error_hint(error, "leave it unset: eager serves TCP and shared memory");
        return HEDDLE_ERR_USAGE;
    }
    int rc = transfer_ucx_load(s->device, &s->io.tr, error);
    return rc ? rc : s->io.tr->open(&transfer, &s->io.t, error);
}

/* The connection comes last: from then on the broker may send. */
static int open_parts(shell_t *s, const shell_opts_t *opts, heddle_error_t *error)
{
    static const wire_sink_t SINK = {on_broker_frame, on_connection, on_bad_frame, on_refused};
    wire_keys_t keys;
    int rc = take_keys(s, opts, &keys, error);
    if (!rc && (event_queue_init(&s->events) || loop_new(s->io.clock, &s->loop)))
        rc = out_of(error, "no memory or descriptor is left for a loop");
    s->events.is_quiet = opts->quiet_events;
    if (!rc) s->io.owner = loop_owner(s->loop);
    if (!rc && opts->transfer) rc = open_transfer(s, opts, error);
    if (!rc && opts->keys.join) {
        uint64_t seed;
        random_bytes(&seed, sizeof seed);
        entering_init(&s->entering, keys.own.public_key, (uint64_t)getpid(), seed);
        s->own = keys.own;
        s->ring = keys.ring;
        s->invited_to = *opts->keys.join;
        explicit_bzero(&s->invited_to.pair, sizeof s->invited_to.pair);
        keys.own = opts->keys.join->pair;
    }
    if (!rc) rc = wire_dial(s->loop, address_of(opts), &keys, &SINK, s, &s->wire, error);
    explicit_bzero(&keys, sizeof keys);
    if (!rc && opts->timeout_ms) wire_share(s->wire, opts->timeout_ms);
    if (!rc && loop_add_source(s->loop, s->io.t ? s->io.tr->fd(s->io.t) : -1, work_a_turn, arm, s))
        rc = out_of(error, "no memory for the event loop");
    return rc;
}

/* Threads inherit the mask: signals are the application's, on its own threads. */
static void block_signals(sigset_t *ret_old)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, ret_old);
}

/* Every thread that is started here, by us or by a library, inherits the mask of blocked signals. */
static int open_shell(const shell_opts_t *opts, shell_t **ret_shell, heddle_error_t *error)
{
    int rc = opts->transfer ? descriptors_check(DESCRIPTORS_START, error) : HEDDLE_OK;
    if (!rc) rc = wire_check_endpoints(address_of(opts), NULL, error);
    if (rc) return rc;
    shell_t *s = calloc(1, sizeof *s);
    if (!s) return out_of(error, "no memory is left for a client");
    s->io = (node_io_t){.self = s,
                        .send = send_frame,
                        .redial = redial,
                        .told = take_told,
                        .event = tell,
                        .clock = clock_system()};
    s->look_us = CLOCK_NEVER;
    s->process = getpid();
    s->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->interrupt_fd < 0) rc = out_of(error, "no descriptor is left for a client");
    sigset_t old;
    block_signals(&old);
    if (!rc) rc = open_parts(s, opts, error);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) shell_close(&s);
    else *ret_shell = s;
    return rc;
}

int shell_open(const shell_opts_t *opts, shell_t **ret_shell, heddle_error_t *error)
{
    opening_begin();
    int rc = open_shell(opts, ret_shell, error);
    opening_end();
    return rc;
}

/* For a call that runs a data plane on its own thread, without a shell. */
int shell_open_transfer(const shell_opts_t *opts, node_io_t *io, heddle_error_t *error)
{
    int rc = descriptors_check(DESCRIPTORS_START, error);
    if (rc) return rc;
    shell_t s = {.io = *io};
    wire_keys_t keys;
    sigset_t old;
    opening_begin();
    block_signals(&old);
    rc = take_keys(&s, opts, &keys, error);
    explicit_bzero(&keys, sizeof keys);
    if (!rc) rc = open_transfer(&s, opts, error);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    opening_end();
    if (!rc) *io = s.io;
    return rc;
}

const node_io_t *shell_io(shell_t *s) { return &s->io; }

bool shell_is_reached(const shell_t *s) { return wire_is_reached(s->wire); }

const char *shell_untried(const shell_t *s) { return wire_untried(s->wire); }

/* ---- run ---- */

static void *run(void *self)
{
    loop_run(((shell_t *)self)->loop);
    return NULL;
}

/* The tick of the turn does what there is to do. */
static void on_readable(void *self)
{
    shell_t *s = self;
    if (s->ops->readable) s->ops->readable(s->node);
}

int shell_poll(shell_t *s, int fd, heddle_error_t *error)
{
    if (s->fd_count == SHELL_FDS || loop_add_fd(s->loop, fd, on_readable, s))
        return out_of(error, "no memory for the event loop");
    s->fds[s->fd_count++] = fd;
    return HEDDLE_OK;
}

bool shell_is_forked(const shell_t *s) { return s && s->process != getpid(); }

/* From here on the loop's thread owns the wire, the transfer and the node. */
int shell_start(shell_t *s, const node_ops_t *ops, void *node, heddle_error_t *error)
{
    s->ops = ops;
    s->node = node;
    loop_set_tick(s->loop, tick, s);
    loop_hand_over(s->loop); /* and with it wire, transfer and node; run() hands it back */
    s->running = thread_start("heddle", run, s, &s->thread) == 0;
    return s->running ? HEDDLE_OK : out_of(error, "no thread can be started");
}

/* Waits for the loop's thread, which ends after its current turn. */
void shell_stop(shell_t *s)
{
    if (s->running) {
        loop_stop(s->loop);
        pthread_join(s->thread, NULL);
    }
    s->running = false;
    while (s->fd_count) loop_remove_fd(s->loop, s->fds[--s->fd_count]);
}

/* The transfer goes before the loop that polls its descriptor. */
void shell_close(shell_t **shell)
{
    shell_t *s = shell ? *shell : NULL;
    if (!s) return;
    *shell = NULL;
    shell_stop(s);
    if (s->io.t) s->io.tr->close(&s->io.t);
    wire_close(&s->wire);
    loop_destroy(&s->loop);
    event_queue_fini(&s->events);
    descriptors_fini(&s->keep);
    if (s->interrupt_fd >= 0) close(s->interrupt_fd);
    explicit_bzero(&s->own, sizeof s->own);
    free(s);
}

/* ---- calls in ---- */

/* The call runs between two turns of the loop, and the caller waits for it: the node needs no lock. */
int shell_call(shell_t *s, void (*fn)(void *node, void *arg, uint64_t now_us), void *arg)
{
    if (!s->running || shell_is_forked(s)) return HEDDLE_ERR_CLOSED;
    sem_t done;
    loop_post_t post = {.fn = fn, .self = s->node, .arg = arg, .done = &done};
    sem_init(&done, 0, 0);
    int rc = loop_post(s->loop, &post);
    while (!rc && sem_wait(&done) != 0) {} /* EINTR: the loop has a pointer into this frame */
    sem_destroy(&done);
    return rc;
}

void shell_wake(shell_t *s) { loop_wake(s->loop); }

/* ---- events out ---- */

/* Safe in signal handlers: one write, and errno is as before. */
void shell_interrupt(shell_t *s)
{
    int saved = errno;
    eventfd_write(s->interrupt_fd, 1);
    errno = saved;
}

int shell_fd(const shell_t *s) { return s->events.fd; }

/* An interrupt comes before events that are there, so that a program can always be stopped. */
int shell_next_event(shell_t *s, int timeout_ms, heddle_event_t *ret_event)
{
    if (shell_is_forked(s)) return HEDDLE_ERR_CLOSED; /* to wait would take the parent's events */
    uint64_t end_us = timeout_ms < 0 ? CLOCK_NEVER : clock_now(s->io.clock) + (uint64_t)timeout_ms * 1000;
    for (;;) {
        if (eventfd_read(s->interrupt_fd, &(eventfd_t){0}) == 0) return HEDDLE_ERR_INTERRUPTED;
        if (event_queue_pop(&s->events, ret_event)) return HEDDLE_OK;
        uint64_t now_us = clock_now(s->io.clock);
        if (now_us >= end_us) return HEDDLE_ERR_AGAIN;
        struct pollfd fds[] = {{.fd = s->events.fd, .events = POLLIN},
                               {.fd = s->interrupt_fd, .events = POLLIN}};
        poll(fds, 2, end_us == CLOCK_NEVER ? -1 : (int)((end_us - now_us - 1) / 1000 + 1));
    }
}
