/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/scenario/world.h"

#include "core/errors.h"
#include "core/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

enum {
    TURN_FRAMES = 64,
    TURN_EVENTS = 64,
    LATENCY_MIN_US = 40,
    LATENCY_SPREAD_US = 160,
    DIAL_US = 20000,
    INSTANT_STEPS_MAX = 200000
};

struct mail {
    enum { MAIL_FRAME, MAIL_UP, MAIL_DOWN } kind;
    uint64_t at_us, peer;
    size_t bytes;
    struct mail *prev, *next;
    uint8_t data[];
};

static volatile bool is_product; /* compilers think that malloc reads nothing of ours */

bool world_product(bool now)
{
    bool was = is_product;
    is_product = now;
    return was;
}

bool world_is_product(void) { return is_product; }

/* ---- what a failure shows
 * --------------------------------------------------------------------------------------- */

uint64_t world_random(world_t *w, uint64_t below)
{
    w->rng = w->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (w->rng >> 33) % below;
}

void world_note(world_t *w, const char *format, ...)
{
    char *to = w->recent[w->recent_count++ % RECENT_MAX];
    int at = snprintf(to, sizeof w->recent[0], "%10.6f ", (double)w->now_us / 1e6);
    va_list args;
    va_start(args, format);
    vsnprintf(to + at, sizeof w->recent[0] - (size_t)at, format, args);
    va_end(args);
}

static void picture_worker(const actor_t *a)
{
    const versions_t *s = &worker_node_adapter(a->worker, 0)->versions;
    fprintf(stderr,
            "    session %d token %" PRIx64 " applied d%" PRIu64 "=v%" PRIu64 " decided d%" PRIu64
            "=v%" PRIu64 " slots %u:",
            (int)worker_node_core(a->worker)->member.session.state,
            worker_node_core(a->worker)->member.session.token, s->applied.decision, s->applied.version,
            s->decided.decision, s->decided.version, s->slot_count);
    for (uint32_t i = 0; i < VERSIONS_ENTRIES; i++)
        if (s->entries[i].state)
            fprintf(stderr, " v%" PRIu64 "/%d@%d", s->entries[i].version, (int)s->entries[i].state,
                    s->entries[i].slot);
    fprintf(stderr, "\n");
}

static void picture(world_t *w)
{
    fprintf(stderr, "seed %" PRIu64 ", %.6f s, step %" PRIu64 ", broker %s, epoch %" PRIu64 "\n",
            w->opts.seed, (double)w->now_us / 1e6, w->steps, w->broker ? "up" : "down", w->epoch);
    for (uint32_t i = 0; i < w->actor_count; i++) {
        const actor_t *a = w->actors[i];
        fprintf(stderr, "  %-8s %s%s%s inbox %u due %.6f\n", a->name, a->alive ? "" : "dead ",
                a->stopped ? "stopped " : "", a->cut ? "cut " : "", a->inbox_count, (double)a->due_us / 1e6);
        if (a->worker) picture_worker(a);
    }
    const adapter_row_t *row = world_adapter(w);
    for (size_t i = 0; row && i < row->version_count; i++)
        fprintf(stderr, "  v%" PRIu64 " state %d d%" PRIu64 " %s %s\n", row->versions[i]->version,
                (int)row->versions[i]->state, row->versions[i]->decision,
                w->broker ? world_state(w, row->versions[i]->version) : "", row->versions[i]->message);
    uint64_t first = w->recent_count > RECENT_MAX ? w->recent_count - RECENT_MAX : 0;
    for (uint64_t i = first; i < w->recent_count; i++) fprintf(stderr, "  %s\n", w->recent[i % RECENT_MAX]);
}

void world_fail(world_t *w, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    picture(w);
    cr_assert_fail("seed %" PRIu64 ": %s", w->opts.seed, text);
    abort();
}

/* ---- actors
 * -----------------------------------------------------------------------------------------------------
 */

actor_t *actor_new(world_t *w, actor_kind_t kind, const char *name)
{
    cr_assert_lt(w->actor_count, ACTORS_MAX);
    actor_t *a = calloc(1, sizeof *a);
    a->w = w;
    a->kind = kind;
    a->due_us = a->dial_us = CLOCK_NEVER;
    error_text(a->name, sizeof a->name, name);
    w->actors[w->actor_count++] = a;
    return a;
}

actor_t *world_find(world_t *w, const char *name)
{
    for (uint32_t i = 0; i < w->actor_count; i++)
        if (!strcmp(w->actors[i]->name, name)) return w->actors[i];
    return NULL;
}

void actor_forget_mail(actor_t *a)
{
    mail_t *m, *next;
    DL_FOREACH_SAFE(a->inbox, m, next)
    {
        DL_DELETE(a->inbox, m);
        free(m);
    }
    a->inbox_count = 0;
}

void actor_open_transfer(actor_t *a, uint64_t max_rate_bytes, mem_link_t link)
{
    transfer_opts_t opts = {.max_rate_bytes = max_rate_bytes, .mode = a->w->opts.mode, .clock = &a->w->clock};
    cr_assert_eq(transfer_mem_ops.open(&opts, &a->t, NULL), HEDDLE_OK);
    mem_set_link(a->t, link);
}

static void boot(actor_t *a)
{
    a->alive = true;
    a->stopped = false;
    a->incarnation++;
    a->is_up = false;
    a->event_count = a->event_done = 0;
    a->due_us = a->w->now_us;
    a->dial_us = a->w->now_us;
    switch (a->kind) {
    case ACTOR_WORKER: worker_boot(a); break;
    case ACTOR_TRAINER: trainer_boot(a); break;
    case ACTOR_ADMIN: admin_boot(a); break;
    case ACTOR_BROKER: break;
    }
}

actor_t *world_worker(world_t *w, const char *name, worker_conf_t conf)
{
    actor_t *a = actor_new(w, ACTOR_WORKER, name);
    a->conf = conf;
    a->adapters[0] = conf.adapter ? conf.adapter : ADAPTER;
    boot(a);
    return a;
}

void world_workers(world_t *w, uint32_t count, worker_conf_t conf, actor_t *ret_workers[])
{
    for (uint32_t i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%u", i + 1);
        ret_workers[i] = world_worker(w, name, conf);
    }
    UNTIL(w, 5 * SECOND, world_all_ready(w, count));
}

actor_t *world_trainer(world_t *w, const char *name, trainer_conf_t conf)
{
    actor_t *a = actor_new(w, ACTOR_TRAINER, name);
    a->trainer = conf;
    boot(a);
    return a;
}

actor_t *world_admin(world_t *w)
{
    actor_t *a = actor_new(w, ACTOR_ADMIN, "admin");
    boot(a);
    return a;
}

tr_counters_t actor_counters(const actor_t *a)
{
    tr_counters_t c = {0};
    if (a->t) transfer_mem_ops.counters(a->t, &c);
    return c;
}

/* Readers of a killed worker die with it. */
static void unhold_all(actor_t *a)
{
    for (int i = 0; i < HOLDS_MAX; i++)
        if (a->holds[i]) slot_release(&a->holds[i]);
}

/* The memory goes at once: nothing of it may be said to anybody any more. */
static void bury(actor_t *a)
{
    if (a->t) mem_kill(a->t);
    unhold_all(a);
    if (a->worker) worker_node_destroy(&a->worker);
    if (a->kind == ACTOR_TRAINER) trainer_end(a);
    if (a->reply) json_decref(a->reply);
    a->reply = NULL;
    a->node = NULL;
    if (a->t) transfer_mem_ops.close(&a->t);
    actor_forget_mail(a);
}

void actor_kill(actor_t *a)
{
    if (a->kind == ACTOR_BROKER) {
        world_broker_kill(a->w);
        return;
    }
    if (!a->alive) return;
    world_note(a->w, "%s is killed", a->name);
    a->alive = a->stopped = false;
    a->peer = 0;
    a->due_us = a->dial_us = CLOCK_NEVER;
    bury(a);
}

void actor_start(actor_t *a)
{
    MUST(a->w, !a->alive);
    world_note(a->w, "%s starts again", a->name);
    boot(a);
}

void actor_stop(actor_t *a, bool stopped)
{
    if (!a->alive || a->stopped == stopped) return;
    world_note(a->w, "%s is %s", a->name, stopped ? "stopped" : "resumed");
    a->stopped = stopped;
    if (a->t) mem_stop(a->t, stopped);
    if (!stopped) a->due_us = a->w->now_us;
}

void actor_cut(actor_t *a, bool cut)
{
    if (a->cut == cut) return;
    world_note(a->w, "%s is %s", a->name, cut ? "cut off" : "healed");
    a->cut = cut;
    if (cut) line_break(a);
}

void actor_break(actor_t *a)
{
    if (!a->peer) return;
    world_note(a->w, "%s loses its connection", a->name);
    line_break(a);
}

/* ---- connections
 * ------------------------------------------------------------------------------------------------ */

static mail_t *post(actor_t *to, int kind, uint64_t at_us, bytes_t data)
{
    mail_t *m = malloc(sizeof *m + data.bytes);
    *m = (mail_t){.kind = kind, .at_us = at_us, .bytes = data.bytes};
    if (data.bytes) memcpy(m->data, data.data, data.bytes);
    DL_APPEND(to->inbox, m);
    to->inbox_count++;
    return m;
}

static void unpost(actor_t *a, mail_t *m)
{
    DL_DELETE(a->inbox, m);
    a->inbox_count--;
    free(m);
}

void actor_deliver(actor_t *to, uint64_t peer, bytes_t frame, uint64_t *last_us)
{
    world_t *w = to->w;
    uint64_t at_us = w->now_us + LATENCY_MIN_US + world_random(w, LATENCY_SPREAD_US);
    if (at_us < *last_us) at_us = *last_us;
    *last_us = at_us;
    mail_t *m = post(to, MAIL_FRAME, at_us, frame);
    m->peer = peer;
    msg_t decoded;
    heddle_error_t error;
    if (msg_decode(frame, &decoded, &error))
        world_fail(w, "a frame to %s cannot be decoded: %s", to->name, error.message);
    w->sent_total++;
    w->sent[decoded.type]++;
    msg_fini(&decoded);
}

int actor_send(void *self, bytes_t frame)
{
    actor_t *a = self;
    if (!a->is_up) return HEDDLE_ERR_GONE;
    if (!a->peer) return HEDDLE_OK; /* into a connection that is dead, and nobody knows it yet */
    if (a->w->host->inbox_count >= LIMIT_QUEUE_FRAMES) return HEDDLE_ERR_SLOW;
    bool was = world_product(false);
    actor_deliver(a->w->host, a->peer, frame, &a->out_us);
    world_product(was);
    return HEDDLE_OK;
}

/* What was on its way to the client is lost; what it said itself may still arrive at the broker. */
void line_break(actor_t *a)
{
    if (!a->peer) return;
    mail_t *m, *next;
    DL_FOREACH_SAFE(a->inbox, m, next)
    if (m->kind == MAIL_FRAME && m->at_us > a->w->now_us) unpost(a, m);
    a->peer = 0;
    post(a, MAIL_DOWN, a->w->now_us, bytes_of(NULL, 0));
}

void actor_redial(void *self, const char *to, const char *key)
{
    actor_t *a = self;
    (void)to, (void)key; /* there is one broker */
    world_note(a->w, "%s dials anew", a->name);
    bool was = world_product(false);
    mail_t *m, *next;
    DL_FOREACH_SAFE(a->inbox, m, next)
    if (m->kind == MAIL_FRAME) unpost(a, m);
    line_break(a);
    world_product(was);
}

static void dial(actor_t *a)
{
    world_t *w = a->w;
    bool answers = w->broker && !w->host->stopped && !a->cut;
    a->dial_us = answers ? CLOCK_NEVER : w->now_us + DIAL_US;
    if (!answers) return;
    a->peer = ++w->peers;
    a->in_us = a->out_us = w->now_us;
    post(a, MAIL_UP, w->now_us + LATENCY_MIN_US, bytes_of(NULL, 0));
}

void actor_event(void *self, const heddle_event_t *event)
{
    actor_t *a = self;
    a->events[a->event_count++ % EVENTS_KEPT] = *event;
    a->events_by_type[event->type]++;
    world_note(a->w, "%s: event %s v%" PRIu64 " d%" PRIu64 " %s %s", a->name, heddle_event_name(event->type),
               event->version, event->decision, event->code ? heddle_err_name(event->code) : "",
               event->message);
}

/* ---- hosts
 * ------------------------------------------------------------------------------------------------------
 *
 * Processes share memory where they meet in one directory (memory/handover.h), so a directory is a host. */

const char *world_directory(world_t *w, const char *host)
{
    if (!host) return NULL;
    /* All hosts are this one, and each would say that the others are out of reach. */
    log_set_level(LOG_ERROR);
    if (!w->directory[0]) {
        snprintf(w->directory, sizeof w->directory, "/tmp/heddle-scenario-XXXXXX");
        cr_assert(mkdtemp(w->directory));
        w->poll_fd = epoll_create1(EPOLL_CLOEXEC);
        cr_assert(w->poll_fd >= 0);
    }
    char path[sizeof w->hosts[0]];
    snprintf(path, sizeof path, "%s/%s", w->directory, host);
    for (uint32_t i = 0; i < w->host_count; i++)
        if (!strcmp(w->hosts[i], path)) return w->hosts[i];
    cr_assert_lt(w->host_count, HOSTS_MAX);
    cr_assert_eq(mkdir(path, 0700), 0);
    return strcpy(w->hosts[w->host_count++], path);
}

void actor_poll(actor_t *a, const int *fds, uint32_t count)
{
    a->is_readable = false;
    for (uint32_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = a};
        if (fds[i] >= 0) cr_assert_eq(epoll_ctl(a->w->poll_fd, EPOLL_CTL_ADD, fds[i], &event), 0);
    }
}

/* What became readable: its actor has a turn at once. */
static void look_at_hosts(world_t *w)
{
    struct epoll_event ready[64];
    int count = w->host_count ? epoll_wait(w->poll_fd, ready, 64, 0) : 0;
    for (int i = 0; i < count; i++) {
        actor_t *a = ready[i].data.ptr;
        a->is_readable = true;
        a->due_us = w->now_us;
    }
}

static void forget_hosts(world_t *w)
{
    if (!w->directory[0]) return;
    for (uint32_t i = 0; i < w->host_count; i++) rmdir(w->hosts[i]);
    rmdir(w->directory);
    close(w->poll_fd);
}

/* ---- turns
 * ------------------------------------------------------------------------------------------------------
 */

static mail_t *arrived(const actor_t *a)
{
    return a->inbox && a->inbox->at_us <= a->w->now_us ? a->inbox : NULL;
}

/* A worker under another token than the message's, or past its lease, may not come to serve anything else
 * by it. */
static void give_frame(actor_t *a, const mail_t *m)
{
    world_t *w = a->w;
    uint64_t decision = 0;
    bool is_stale = false;
    if (a->worker) {
        msg_t msg;
        cr_assert_eq(msg_decode(bytes_of(m->data, m->bytes), &msg, NULL), HEDDLE_OK);
        const session_t *s = &worker_node_core(a->worker)->member.session;
        bool is_welcome = msg.type == MSG_WELCOME;
        is_stale =
            !is_welcome && ((msg_token(&msg) && msg_token(&msg) != s->token) || w->now_us >= s->lease_end_us);
        decision = worker_node_adapter(a->worker, 0)->versions.applied.decision;
        if (msg.type != MSG_HEARTBEAT_OK || is_stale)
            world_note(w, "  %s <- %s%s", a->name, msg_name(msg.type), is_stale ? " (stale)" : "");
        msg_fini(&msg);
    }
    node_event_t event = {SE_FRAME, bytes_of(m->data, m->bytes)};
    PRODUCT(a->ops->session(a->node, &event, w->now_us));
    if (is_stale && worker_node_adapter(a->worker, 0)->versions.applied.decision != decision)
        world_fail(w, "%s applied what came under a stale token", a->name);
}

static bool give_mail(actor_t *a, mail_t *m)
{
    world_t *w = a->w;
    DL_DELETE(a->inbox, m);
    a->inbox_count--;
    if (m->kind == MAIL_FRAME) {
        give_frame(a, m);
    } else {
        a->is_up = m->kind == MAIL_UP;
        if (!a->is_up) a->dial_us = w->now_us + DIAL_US;
        node_event_t event = {.kind = a->is_up ? SE_CONNECTED : SE_DISCONNECTED};
        PRODUCT(a->ops->session(a->node, &event, w->now_us));
    }
    free(m);
    check_actor(w, a);
    return true;
}

static bool give_transfer(actor_t *a)
{
    if (!a->t) return false;
    tr_event_t events[TURN_EVENTS];
    int count;
    PRODUCT(count = transfer_mem_ops.events(a->t, a->w->now_us, events, TURN_EVENTS));
    for (int i = 0; i < count; i++) {
        PRODUCT(a->ops->transfer(a->node, &events[i], a->w->now_us));
        check_actor(a->w, a);
    }
    return count > 0;
}

/* Bytes travel as long as frames do. */
static void delay_bytes(actor_t *a)
{
    if (a->t) mem_delay(a->t, a->w->now_us + LATENCY_MIN_US + world_random(a->w, LATENCY_SPREAD_US));
}

/* One piece of work. Memory may take its time, as where the kernel has to find it. */
static bool work(actor_t *a)
{
    const world_t *w = a->w;
    bool is_busy;
    if (!a->ops->work || w->now_us < a->making_us) return false;
    PRODUCT(is_busy = a->ops->work(a->node, w->now_us));
    bool is_making =
        a->conf.piece_us && a->worker && worker_node_adapter(a->worker, 0)->intake.state == INTAKE_RESERVING;
    if (is_making) a->making_us = w->now_us + a->conf.piece_us;
    return is_busy && !is_making;
}

static void client_turn(actor_t *a)
{
    world_t *w = a->w;
    delay_bytes(a);
    uint64_t due_us;
    if (a->is_readable) PRODUCT(a->ops->readable(a->node));
    a->is_readable = false;
    PRODUCT(due_us = a->ops->tick(a->node, w->now_us));
    check_actor(w, a);
    bool busy = false;
    mail_t *m;
    for (int i = 0; i < TURN_FRAMES && (m = arrived(a)); i++) busy |= give_mail(a, m);
    busy |= give_transfer(a);
    busy |= work(a);
    check_actor(w, a);
    uint64_t done = a->event_done;
    if (a->kind == ACTOR_WORKER) worker_app(a);
    if (a->kind == ACTOR_TRAINER) trainer_turn(a);
    busy |= done != a->event_done;
    if (w->now_us < a->making_us && (due_us <= w->now_us || due_us > a->making_us)) due_us = a->making_us;
    a->due_us = busy ? w->now_us : due_us;
}

static bool give_to_broker(world_t *w, mail_t *m)
{
    actor_t *host = w->host;
    instant_t now = {w->now_us, clock_wall(&w->clock)};
    DL_DELETE(host->inbox, m);
    host->inbox_count--;
    msg_t msg;
    cr_assert_eq(msg_decode(bytes_of(m->data, m->bytes), &msg, NULL), HEDDLE_OK);
    uint64_t token = msg_token(&msg);
    if (msg.type != MSG_HEARTBEAT) world_note(w, "  broker <- %s of %" PRIu64, msg_name(msg.type), m->peer);
    msg_fini(&msg);
    bool is_stale = token && !membership_by_token(&w->broker->members, token);
    uint64_t before = is_stale ? check_signature(w->broker) : 0;
    PRODUCT(broker_frame(w->broker, m->peer, bytes_of(m->data, m->bytes), now));
    free(m);
    w->stale_frames += is_stale;
    if (w->is_dying) return true;
    if (is_stale && check_signature(w->broker) != before)
        world_fail(w, "a stale token (%" PRIx64 ") changed the broker's state", token);
    check_all(w);
    return true;
}

void broker_turn(world_t *w)
{
    instant_t now = {w->now_us, clock_wall(&w->clock)};
    bool busy = false;
    if (store_is_given_up(w)) {
        world_broker_kill(w);
        world_broker_start(w);
        return;
    }
    store_confirm(w);
    if (!w->is_dying) PRODUCT(broker_tick(w->broker, now));
    mail_t *m;
    for (int i = 0; !w->is_dying && i < TURN_FRAMES && (m = arrived(w->host)); i++)
        busy |= give_to_broker(w, m);
    uint64_t due_us = 0;
    if (!w->is_dying) PRODUCT(due_us = broker_flush(w->broker, now));
    if (w->is_dying) {
        world_broker_kill(w);
        return;
    }
    check_all(w);
    w->host->due_us = busy ? w->now_us : due_us;
}

static uint64_t next_of(const actor_t *a)
{
    if (!a->alive || a->stopped) return CLOCK_NEVER;
    uint64_t due_us = clock_earlier(a->due_us, a->dial_us);
    if (a->inbox) due_us = clock_earlier(due_us, a->inbox->at_us);
    if (a == a->w->host && a->w->committing && !a->w->store_never)
        due_us = clock_earlier(due_us, a->w->commit_due_us);
    return a->t ? clock_earlier(due_us, transfer_mem_ops.deadline(a->t)) : due_us;
}

static actor_t *next_actor(world_t *w, uint64_t *ret_due_us)
{
    actor_t *best = NULL;
    *ret_due_us = CLOCK_NEVER;
    for (uint32_t i = 0; i < w->actor_count; i++) {
        actor_t *a = w->actors[(w->turn + i) % w->actor_count];
        uint64_t due_us = next_of(a);
        if (due_us >= *ret_due_us) continue;
        *ret_due_us = due_us;
        best = a;
    }
    return best;
}

bool world_step(world_t *w, uint64_t end_us)
{
    uint64_t due_us;
    look_at_hosts(w);
    actor_t *a = next_actor(w, &due_us);
    if (!a || due_us > end_us) {
        if (end_us > w->now_us) w->now_us = end_us;
        return false;
    }
    if (due_us > w->now_us) {
        w->now_us = due_us;
        w->same_instant = 0;
    } else if (++w->same_instant > INSTANT_STEPS_MAX) {
        world_fail(w, "%s never goes to sleep", a->name);
    }
    w->steps++;
    w->turn++;
    if (a->dial_us <= w->now_us) dial(a);
    if (a->kind == ACTOR_BROKER) broker_turn(w);
    else client_turn(a);
    return true;
}

void world_run(world_t *w, uint64_t for_us)
{
    uint64_t end_us = w->now_us + for_us;
    while (world_step(w, end_us)) continue;
}

/* ---- life
 * -------------------------------------------------------------------------------------------------------
 */

static uint64_t virtual_now(void *self) { return ((world_t *)self)->now_us; }
static uint64_t virtual_wall(void *self) { return 1790000000000ull + ((world_t *)self)->now_us / 1000; }

world_t *world_new_down(world_opts_t opts)
{
    world_t *w = calloc(1, sizeof *w);
    w->opts = opts;
    if (!w->opts.seed) w->opts.seed = 1;
    if (!w->opts.lease_ms) w->opts.lease_ms = 4000;
    w->rng = w->opts.seed * 0x9e3779b97f4a7c15u + 1;
    w->now_us = 100 * SECOND;
    w->clock = (clock_ops_t){virtual_now, virtual_wall, w};
    w->die_kind = -1;
    const char *store = getenv("HEDDLE_TEST_STORE");
    w->store_fails_to_confirm = store && !strcmp(store, "never");
    w->store_is_late = store && (w->store_fails_to_confirm || !strcmp(store, "late"));
    w->cluster = "scenario";
    registry_init(&w->shadow);
    w->host = actor_new(w, ACTOR_BROKER, "broker");
    return w;
}

world_t *world_new(world_opts_t opts)
{
    world_t *w = world_new_down(opts);
    world_broker_start(w);
    return w;
}

void world_destroy(world_t **world)
{
    world_t *w = *world;
    *world = NULL;
    for (uint32_t i = 0; i < w->actor_count; i++) actor_kill(w->actors[i]);
    world_broker_kill(w);
    for (uint32_t i = 0; i < w->actor_count; i++) {
        actor_forget_mail(w->actors[i]);
        free(w->actors[i]);
    }
    store_forget(w);
    forget_hosts(w);
    registry_fini(&w->shadow);
    free(w->fatal);
    free(w);
}
