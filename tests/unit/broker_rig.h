/* SPDX-License-Identifier: Apache-2.0 */
/* A broker without process, sockets, disk or time, for the broker's tests: messages go through the real
 * encoder and decoder, records into a list that survives a restart, and every letter that the broker
 * sends is kept until it is taken. */
#ifndef TESTS_UNIT_BROKER_RIG_H
#define TESTS_UNIT_BROKER_RIG_H

#include "broker/state.h"
#include "core/errors.h"
#include "core/limits.h"
#include "proto/value.h"

#include <criterion/criterion.h>
#include <heddle/publisher.h>
#include <stdio.h>
#include <stdlib.h>

#define LEASE_MS 4000
#define S 1000u
#ifndef PEERS
#define PEERS 128
#endif
#define UNUSED __attribute__((unused))

typedef struct {
    uint64_t peer;
    msg_t m;
    uint8_t *frame;
    size_t records; /* that were on disk when it left */
} letter_t;

/* A decoded message holds pointers into itself: letters never move.  Pages that none uses cost nothing. */
#define LETTERS_MAX (1 << 16)
static letter_t letters[LETTERS_MAX];

static struct rig {
    broker_t *b;
    instant_t now;
    letter_t *letters;
    size_t letter_count;
    record_t *records;
    size_t record_count, record_capacity;
    arena_t texts;
    uint64_t tokens[PEERS]; /* as WELCOME said */
    /* quiet: sends no heartbeats while time passes */
    bool is_gone[PEERS], is_slow[PEERS], is_quiet[PEERS], no_relay[PEERS];
    uint64_t older_tokens[PEERS]; /* of a start before the last one, as in JOIN; 0: none */
    uint64_t places[PEERS];       /* of its host, as in JOIN and OPEN; 0: none */
    uint64_t max_rates[PEERS];    /* of workers; 0: none */
    const char *zones[PEERS];     /* of workers, "zone=a"; NULL: none */
    uint64_t generations[PEERS];  /* of the region that it has versions in; 0: in none */
    int commit_error;             /* the disk refuses with this */
    bool is_late;                 /* the store confirms when rig_confirm says so */
    bool is_in_turn;              /* frames are of one turn, until rig_end_turn */
    bool confirms;                /* and that is after each event, well or with commit_error */
    const record_t *committing;   /* of the broker; NULL: nothing is under way */
    int committing_count;
    int commits, fatals, forgotten;
    uint64_t keep, req;
    plan_shape_t shape;      /* of plans: AUTO, and versions are shorter than a hop */
    const char *former;      /* the leader before */
    const char *keys[PEERS]; /* that each connection has proved */
    bool has_keys;
    char warned[512]; /* the last line of its log */
    uint64_t sent[32];
    uint8_t random;
} R;

/* ---- the shell's side ---- */

static int rig_send(void *self, uint64_t peer, bytes_t frame)
{
    (void)self;
    cr_assert_lt(peer, PEERS);
    if (R.is_gone[peer]) return HEDDLE_ERR_GONE;
    if (R.is_slow[peer]) return HEDDLE_ERR_SLOW;
    R.letters = letters;
    cr_assert_lt(R.letter_count, LETTERS_MAX, "letters are to be dropped at times");
    letter_t *l = &R.letters[R.letter_count++];
    *l = (letter_t){.peer = peer, .frame = malloc(frame.bytes), .records = R.record_count};
    memcpy(l->frame, frame.data, frame.bytes);
    heddle_error_t e;
    cr_assert_eq(msg_decode(bytes_of(l->frame, frame.bytes), &l->m, &e), HEDDLE_OK, "%s", e.message);
    R.sent[l->m.type]++;
    if (l->m.type == MSG_WELCOME) R.tokens[peer] = l->m.welcome.token;
    return HEDDLE_OK;
}

static void rig_forget(void *self, uint64_t peer) { (void)self, (void)peer, R.forgotten++; }

static const char *rig_key(void *self, uint64_t peer) { return (void)self, R.keys[peer]; }

static const char *rig_copy(const char *text) { return text ? arena_text(&R.texts, text, strlen(text)) : ""; }

static record_t rig_keep_record(const record_t *rec)
{
    record_t r = *rec;
    const char **texts[] = {&r.adapter, &r.request_id, &r.writer, &r.base_model, &r.kind_text, &r.features,
                            &r.meta,    &r.message,    &r.worker, &r.phase,      &r.by,        &r.host,
                            &r.name,    &r.public_key, &r.roles,  &r.serves,     &r.entered_by};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) *texts[i] = rig_copy(*texts[i]);
    r.config.data = arena_copy(&R.texts, rec->config.data, rec->config.bytes);
    return r;
}

/* As the store: the rows of the name go; of one that is forgotten, those of its versions. */
static void rig_drop_adapter(const char *name, bool is_forgotten)
{
    size_t count = 0;
    for (size_t i = 0; i < R.record_count; i++) {
        const record_t *r = &R.records[i];
        bool is_of_name = r->kind == RECORD_ADAPTER || r->kind == RECORD_WRITER;
        bool is_meant = is_forgotten ? !is_of_name && r->kind != RECORD_FLOOR : is_of_name;
        bool goes = is_meant && r->adapter && !strcmp(r->adapter, name);
        if (!goes) R.records[count++] = *r;
    }
    R.record_count = count;
}

static void rig_keep(const record_t *records, int count)
{
    for (int i = 0; i < count; i++) {
        bool is_forgotten = records[i].kind == RECORD_ADAPTER_FORGET;
        if (is_forgotten || records[i].kind == RECORD_ADAPTER_DROP) {
            rig_drop_adapter(records[i].adapter, is_forgotten);
            continue;
        }
        if (R.record_count == R.record_capacity) {
            R.record_capacity = R.record_capacity ? R.record_capacity * 2 : 64;
            R.records = realloc(R.records, R.record_capacity * sizeof *R.records);
        }
        R.records[R.record_count++] = rig_keep_record(&records[i]);
    }
}

static int rig_commit(void *self, const record_t *records, int count, heddle_error_t *error)
{
    (void)self;
    cr_assert_gt(count, 0);
    cr_assert_leq(count, OUTBOX_RECORDS);
    cr_assert(!R.committing, "one at a time");
    if (R.is_late) {
        R.committing = records;
        R.committing_count = count;
        return HEDDLE_ERR_AGAIN;
    }
    if (R.commit_error) return error_fail(error, R.commit_error, "the disk says no");
    R.commits++;
    rig_keep(records, count);
    return HEDDLE_OK;
}

static void rig_fatal(void *self, const heddle_error_t *error) { (void)self, (void)error, R.fatals++; }

static void rig_warn(void *self, const char *id, const char *text)
{
    (void)self;
    snprintf(R.warned, sizeof R.warned, "%s %s", id, text);
}

static void rig_random(void *self, void *data, size_t bytes)
{
    (void)self;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)data)[i] = ++R.random;
}

/* ---- start, restart, end ---- */

UNUSED static void rig_drop_letters(void)
{
    for (size_t i = 0; i < R.letter_count; i++) {
        msg_fini(&R.letters[i].m);
        free(R.letters[i].frame);
    }
    R.letter_count = 0;
}

/* The records as the store gives them back: by kind, within a kind as they came; of a writer only the
 * last. */
static void rig_load(void)
{
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = 1};
    for (size_t i = 0; i < R.record_count; i++)
        if (R.records[i].kind == RECORD_EPOCH && R.records[i].epoch >= epoch.epoch)
            epoch.epoch = R.records[i].epoch + 1;
    rig_keep(&epoch, 1); /* a broker whose epoch is not on disk does not start */
    R.commits++;
    for (int kind = RECORD_EPOCH; kind <= RECORD_KEYS_REVOKE; kind++)
        for (size_t i = 0; i < R.record_count; i++)
            if ((int)R.records[i].kind == kind) cr_assert_eq(broker_apply(R.b, &R.records[i]), HEDDLE_OK);
}

static void rig_boot(void)
{
    broker_io_t io = {.send = rig_send,
                      .forget = rig_forget,
                      .commit = rig_commit,
                      .fatal = rig_fatal,
                      .random = rig_random,
                      .warn = rig_warn,
                      .key = R.has_keys ? rig_key : NULL};
    broker_opts_t opts = {.lease_ms = LEASE_MS,
                          .keep = R.keep,
                          .shape = R.shape,
                          .cluster = "test",
                          .former = R.former,
                          .endpoint = "tcp://127.0.0.1:1",
                          .data_dir = "/d",
                          .pid = 1,
                          .seed = 42};
    heddle_error_t e;
    cr_assert_eq(broker_new(&opts, &io, &R.b, &e), HEDDLE_OK);
    rig_load();
    cr_assert_eq(broker_start(R.b, R.now), HEDDLE_OK);
}

UNUSED static void rig_start(void)
{
    R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}, .keep = 1};
    rig_boot();
}

UNUSED static void rig_stop(void)
{
    broker_destroy(&R.b);
    rig_drop_letters();
    free(R.records);
    arena_fini(&R.texts);
}

/* SIGKILL and a new start: only records are left.  Connections are new to it. */
UNUSED static void rig_restart(void)
{
    broker_destroy(&R.b);
    rig_drop_letters();
    memset(R.tokens, 0, sizeof R.tokens);
    R.committing = NULL;
    rig_boot();
}

/* ---- messages in ---- */

static void rig_confirm(int rc);

static void rig_flush(void)
{
    broker_flush(R.b, R.now);
    if (R.confirms && R.committing) rig_confirm(R.commit_error); /* and flushes again */
}

UNUSED static void rig_end_turn(void)
{
    R.is_in_turn = false;
    rig_flush();
}

/* ---- a store that confirms late ---- */

UNUSED static bool rig_is_committing(void) { return R.committing != NULL; }

/* The store has the records, and has not said so yet. */
UNUSED static void rig_take(void) { rig_keep(R.committing, R.committing_count); }

static void rig_confirm(int rc)
{
    heddle_error_t e;
    cr_assert(R.committing != NULL);
    if (!rc) rig_take();
    R.committing = NULL;
    if (rc) error_fail(&e, rc, "the store says no");
    if (rc) error_hint(&e, "make room");
    broker_committed(R.b, rc, rc ? &e : NULL, R.now);
    rig_flush();
}

static void rig_frame(uint64_t peer, const msg_t *m)
{
    buf_t frame = {0};
    cr_assert_eq(msg_encode(m, &frame), HEDDLE_OK);
    broker_tick(R.b, R.now);
    broker_frame(R.b, peer, buf_view(&frame), R.now);
    if (!R.is_in_turn) rig_flush();
    buf_fini(&frame);
}

static key16_t rig_life(uint64_t n)
{
    key16_t k = {{0}};
    memcpy(k.b, &n, sizeof n);
    return k;
}

UNUSED static digest_t rig_digest(uint64_t n)
{
    digest_t d = {{1}};
    memcpy(d.b + 8, &n, sizeof n);
    return d;
}

static void rig_hello_as(uint64_t peer, role_t role, uint64_t life)
{
    msg_t m = {.type = MSG_HELLO};
    m.hello = (msg_hello_t){.wire_min = WIRE_VERSION_MIN,
                            .wire_max = WIRE_VERSION_MAX,
                            .role = role,
                            .pid = 100 + life,
                            .life = rig_life(life),
                            .heddle = "t",
                            .host = "host"};
    rig_frame(peer, &m);
}
static void rig_hello(uint64_t peer, role_t role) { rig_hello_as(peer, role, peer); }

/* A region of that connection's process. */
static msg_region_t rig_region(uint64_t peer)
{
    return R.generations[peer] ? (msg_region_t){rig_life(peer + 7000), R.generations[peer]}
                               : (msg_region_t){.generation = 0};
}

/* JOIN of adapter "policy" without anything held. */
static void rig_join_with(uint64_t peer, const char *name, msg_subscription_t *subs, uint32_t sub_count,
                          msg_held_t *held, uint32_t held_count)
{
    msg_t m = {.type = MSG_JOIN};
    m.join = (msg_join_t){.req = ++R.req,
                          .name = name,
                          .adapters = subs,
                          .adapter_count = sub_count,
                          .held = held,
                          .held_count = held_count,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("addr", 4),
                          .export_dir = "",
                          .max_rate_bytes = R.max_rates[peer],
                          .place = R.places[peer],
                          .labels = &R.zones[peer],
                          .label_count = R.zones[peer] != NULL,
                          .no_relay = R.no_relay[peer]};
    rig_frame(peer, &m);
}

UNUSED static void rig_worker(uint64_t peer, const char *name)
{
    msg_subscription_t sub = {.adapter = "policy"};
    rig_hello(peer, ROLE_WORKER);
    rig_join_with(peer, name, &sub, 1, NULL, 0);
    cr_assert_neq(R.tokens[peer], 0, "%s was not admitted", name);
}

/* A worker that another broker admitted before.  fetched NULL: it fetches nothing. */
UNUSED static void rig_worker_fetches(uint64_t peer, const char *name, uint64_t former_token,
                                      msg_fetched_t *fetched)
{
    msg_subscription_t sub = {.adapter = "policy"};
    msg_t m = {.type = MSG_JOIN};
    m.join = (msg_join_t){.req = ++R.req,
                          .name = name,
                          .adapters = &sub,
                          .adapter_count = 1,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("addr", 4),
                          .export_dir = "",
                          .prev_token = former_token,
                          .epoch = former_token >> 32,
                          .former_tokens = &R.older_tokens[peer],
                          .former_count = R.older_tokens[peer] != 0,
                          .place = R.places[peer],
                          .fetched = fetched,
                          .fetched_count = fetched != NULL};
    rig_hello(peer, ROLE_WORKER);
    rig_frame(peer, &m);
    cr_assert_neq(R.tokens[peer], 0, "%s was not admitted", name);
}

UNUSED static void rig_worker_again(uint64_t peer, const char *name, uint64_t former_token)
{
    rig_worker_fetches(peer, name, former_token, NULL);
}

UNUSED static void rig_open(uint64_t peer, const char *adapter, const char *writer, uint64_t serving,
                            bool takeover)
{
    msg_t m = {.type = MSG_OPEN};
    msg_offered_t offered = {.version = serving, .region = rig_region(peer)};
    rig_hello(peer, ROLE_PUBLISHER);
    m.open = (msg_open_t){.req = ++R.req,
                          .place = R.places[peer],
                          .offered = &offered,
                          .offered_count = serving && R.generations[peer],
                          .max_rate_bytes = R.max_rates[peer],
                          .adapter = adapter,
                          .writer = writer,
                          .serving = serving,
                          .takeover = takeover,
                          .backend = "ucx",
                          .ucx = "1.13.1",
                          .address = bytes_of("pub", 3)};
    rig_frame(peer, &m);
}

typedef struct {
    uint64_t digest, deadline_ms, asked_ms, payload_bytes;
    heddle_activation_t activation;
    heddle_unchanged_t if_unchanged;
    int64_t step;
    bool allow_step_back;
    const char *adapter, *request_id;
} rig_publish_t;

UNUSED static void rig_publish(uint64_t peer, rig_publish_t o)
{
    static char id[32];
    snprintf(id, sizeof id, "r%llu", (unsigned long long)++R.req);
    msg_part_t part = {.payload_bytes = o.payload_bytes ? o.payload_bytes : 8192,
                       .manifest_bytes = 100,
                       .manifest_digest = rig_digest(o.digest + 1000)};
    msg_t m = {.type = MSG_PUBLISH};
    m.publish = (msg_publish_t){.token = R.tokens[peer],
                                .req = R.req,
                                .deadline_ms = o.deadline_ms ? o.deadline_ms : 60000,
                                .asked_ms = o.asked_ms,
                                .activation = (uint64_t)o.activation,
                                .if_unchanged = (uint64_t)o.if_unchanged,
                                .allow_step_back = o.allow_step_back,
                                .adapter = o.adapter ? o.adapter : "policy",
                                .request_id = o.request_id ? o.request_id : id,
                                .digest = rig_digest(o.digest),
                                .parts = &part,
                                .part_count = 1,
                                .step = o.step ? o.step : -1,
                                .data_bytes = 5000,
                                .tensor_count = 2,
                                .chunk_count = 1,
                                .kind = "lora",
                                .base_model = "base",
                                .config = bytes_of("{}", 2),
                                .region = rig_region(peer)};
    rig_frame(peer, &m);
}

UNUSED static void rig_staged(uint64_t peer, uint64_t version, uint64_t digest)
{
    msg_served_t from = {.token = 1, .kind = SOURCE_PUBLISHER, .bytes = 5000, .name = "trainer"};
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[peer],
                              .version = version,
                              .adapter = "policy",
                              .digest = rig_digest(digest),
                              .fetch_us = 1000,
                              .sources = &from,
                              .source_count = 1,
                              .region = rig_region(peer),
                              .verified = R.generations[peer] ? VERIFIED_HERE : VERIFIED_UNKNOWN};
    rig_frame(peer, &m);
}

UNUSED static void rig_active(uint64_t peer, uint64_t version, uint64_t decision, uint64_t digest)
{
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = R.tokens[peer],
                              .version = version,
                              .decision = decision,
                              .adapter = "policy",
                              .digest = rig_digest(digest),
                              .activate_us = 5};
    rig_frame(peer, &m);
}

UNUSED static void rig_nack(uint64_t peer, uint64_t version, uint64_t decision, const char *phase,
                            const char *code)
{
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = R.tokens[peer],
                          .version = version,
                          .decision = decision,
                          .adapter = "policy",
                          .phase = phase,
                          .code = code,
                          .message = "exit status 3",
                          .found = "3"};
    rig_frame(peer, &m);
}

UNUSED static void rig_leave(uint64_t peer)
{
    msg_t m = {.type = MSG_LEAVE};
    m.leave = (msg_leave_t){.token = R.tokens[peer], .req = ++R.req};
    rig_frame(peer, &m);
}

static void rig_beat(uint64_t peer)
{
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1};
    rig_frame(peer, &m);
}

UNUSED static void rig_need_sources(uint64_t peer, uint64_t version, msg_need_sources_t what)
{
    what.token = R.tokens[peer];
    what.version = version;
    what.adapter = "policy";
    rig_frame(peer, &(msg_t){.type = MSG_NEED_SOURCES, .need_sources = what});
}

UNUSED static void rig_query(uint64_t peer, msg_query_t q)
{
    msg_t m = {.type = MSG_QUERY};
    const char **texts[] = {&q.name, &q.after_name, &q.worker, &q.by, &q.expected, &q.key};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!*texts[i]) *texts[i] = "";
    q.req = ++R.req;
    m.query = q;
    rig_frame(peer, &m);
}

/* Time goes by in small steps; those who joined and are not quiet send heartbeats. */
UNUSED static void rig_pass(uint64_t ms)
{
    for (uint64_t end = R.now.us + ms * 1000; R.now.us < end;) {
        uint64_t step = end - R.now.us < 250000 ? end - R.now.us : 250000;
        R.now.us += step;
        R.now.wall_ms += step / 1000;
        broker_tick(R.b, R.now);
        rig_flush();
        for (uint64_t p = 0; p < PEERS; p++)
            if (R.tokens[p] && !R.is_quiet[p]) rig_beat(p);
    }
}

/* ---- letters out ---- */

static letter_t *rig_find(uint64_t peer, msg_type_t type)
{
    for (size_t i = 0; i < R.letter_count; i++)
        if (R.letters[i].peer == peer && R.letters[i].m.type == type) return &R.letters[i];
    return NULL;
}

UNUSED static bool rig_has(uint64_t peer, msg_type_t type) { return rig_find(peer, type) != NULL; }

UNUSED static size_t rig_count(msg_type_t type)
{
    size_t count = 0;
    for (size_t i = 0; i < R.letter_count; i++) count += R.letters[i].m.type == type;
    return count;
}

/* The last letter of the type to that peer; it must be there. */
UNUSED static const msg_t *rig_last(uint64_t peer, msg_type_t type)
{
    for (size_t i = R.letter_count; i-- > 0;)
        if (R.letters[i].peer == peer && R.letters[i].m.type == type) return &R.letters[i].m;
    cr_assert_fail("no %s to peer %llu", msg_name((int)type), (unsigned long long)peer);
    return NULL;
}

UNUSED static const msg_error_t *rig_error(uint64_t peer, const char *code)
{
    const msg_error_t *e = &rig_last(peer, MSG_ERROR)->error;
    cr_assert_str_eq(e->code, code, "%s: %s", e->code, e->message);
    cr_assert_neq(e->message[0], 0);
    return e;
}

UNUSED static size_t rig_event_count(event_type_t type)
{
    size_t count = 0;
    const events_t *ev = &R.b->events;
    for (uint64_t seq = events_first(ev); seq <= ev->last_seq; seq++)
        count += events_at(ev, seq)->type == type;
    return count;
}

/* The last of that type; it must be there. */
UNUSED static const event_row_t *rig_event(event_type_t type)
{
    const events_t *ev = &R.b->events;
    for (uint64_t seq = ev->last_seq; seq >= events_first(ev); seq--)
        if (events_at(ev, seq)->type == type) return events_at(ev, seq);
    cr_assert_fail("no event %s", events_name(type));
    return NULL;
}

/* ---- the usual cast: a trainer, an operator, workers w1 to w4 of "policy" ---- */

enum { T = 1, ADMIN = 2, W1 = 11, W2 = 12, W3 = 13, W4 = 14 };

UNUSED static void workers(int count)
{
    const char *NAMES[] = {"w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8"};
    for (int i = 0; i < count; i++) rig_worker((uint64_t)(W1 + i), NAMES[i]);
}

/* Workers and a writer, and version 1 published. */
UNUSED static void publish_to(int count, rig_publish_t o)
{
    workers(count);
    rig_open(T, "policy", "trainer", 0, false);
    if (!o.digest) o.digest = 1;
    rig_publish(T, o);
}

/* Everybody stages and activates: version `v` is the active one, by decision `d`. */
UNUSED static void roll_out(int count, uint64_t v, uint64_t d, uint64_t digest)
{
    for (int i = 0; i < count; i++) rig_staged((uint64_t)(W1 + i), v, digest);
    for (int i = 0; i < count; i++) rig_active((uint64_t)(W1 + i), v, d, digest);
}

/* Version 2 is decided and staged on both workers, and the first one serves it. */
UNUSED static void one_of_two_switches(void)
{
    publish_to(2, (rig_publish_t){0});
    roll_out(2, 1, 1, 1);
    rig_publish(T, (rig_publish_t){.digest = 2});
    rig_staged(W1, 2, 2);
    rig_staged(W2, 2, 2);
    rig_active(W1, 2, 2, 2);
}

UNUSED static const msg_rollout_t *told(void)
{
    rig_pass(50);
    return &rig_last(T, MSG_ROLLOUT)->rollout;
}

/* ---- state ---- */

UNUSED static const adapter_row_t *rig_adapter(void) { return registry_adapter(&R.b->registry, "policy"); }

/* Of its writer, on disk; 0: none, or nothing was published under the name and it is gone. */
UNUSED static uint64_t rig_writer(void)
{
    const adapter_row_t *a = rig_adapter();
    return a ? a->writer.token : 0;
}
UNUSED static const version_row_t *rig_version(uint64_t v) { return registry_version(rig_adapter(), v); }
/* Of all adapters. */
UNUSED static size_t rig_track_count(void)
{
    size_t count = 0;
    for (size_t i = 0; i < R.b->rollout.adapter_count; i++) count += R.b->rollout.adapters[i]->track_count;
    return count;
}
UNUSED static const char *rig_state(uint64_t v)
{
    return summary_state(&R.b->rollout, rig_adapter(), rig_version(v));
}
UNUSED static const char *rig_copy_state(uint64_t v, const char *worker)
{
    const track_t *t = track_find(&R.b->rollout, "policy", v);
    const copy_row_t *c = t ? copy_find(t, worker) : NULL;
    return c ? copy_state_name(summary_copy_state(c, rig_adapter()->active, v)) : "";
}

/* ---- a slow one among them ---- */

UNUSED static void says_it_fetches(uint64_t peer, uint64_t v, uint64_t done)
{
    msg_progress_t p = {.adapter = "policy", .fetching = v, .bytes_done = done, .data_bytes = 5000};
    msg_t hb = {.type = MSG_HEARTBEAT};
    hb.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &hb);
}

UNUSED static void as_ready(uint64_t v)
{
    rig_publish(T, (rig_publish_t){.digest = (uint8_t)v, .activation = HEDDLE_ACTIVATION_AS_READY});
}

/* As-ready: w1 alone stages version v, and is the first and the last to be active. */
UNUSED static void w1_goes_on_to(uint64_t v)
{
    as_ready(v);
    rig_staged(W1, v, v);
    cr_assert_eq(rig_adapter()->active, v);
    rig_active(W1, v, v, v);
}

UNUSED static void w2_is_slower_from_2_on(void)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    roll_out(2, 1, 1, 1);
    w1_goes_on_to(2);
    w1_goes_on_to(3);
}

#endif
