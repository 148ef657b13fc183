/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over the broker's messages, with crashes, refusing disks, stale tokens and time; what must hold
 * is checked after each step. Who includes this says where the numbers come from: a seed
 * (broker_random.c) or a fuzzer's bytes (tests/fuzz/broker_core.c).
 *
 * The invariants, by their names in docs/architecture.md: I1 what is said is on disk, and disk alone
 * makes the same registry; I2 one digest a version, and no number twice; I4 stale tokens change nothing;
 * I9 bounds; I11 one session a name; I13 decisions grow by one, and only what the policy of the version
 * allows is decided. */
#ifndef TESTS_UNIT_BROKER_WALK_H
#define TESTS_UNIT_BROKER_WALK_H

#include "broker_rig.h"

/* 0 .. below-1 */
static uint64_t draw(uint64_t below);

enum { WORKERS = 5, VERSIONS = 1024, STALE = 32 };

/* What the test knows by itself of one worker. */
typedef struct {
    bool is_here;
    int line;
    uint64_t life, decision, version;
    uint64_t held[VERSIONS];
    bool before_settled;
} actor_t;

static struct {
    uint64_t seed;
    int step;
    actor_t w[WORKERS];
    bool writer_is_here;
    uint64_t next_digest, settle_end_us;
    uint64_t stale[STALE];
    size_t stale_count; /* tokens that were replaced, ended or lapsed */
    uint64_t last_decision, last_version;
    uint64_t digest[VERSIONS], activation[VERSIONS];
    bool eligible[VERSIONS][WORKERS];
    bool by_hand; /* an operator asked in this step, or a question of his is open */
    size_t seen_records, seen_letters;
} M;

#define CHECK(what, ...) cr_assert(what, "seed %llu step %d: " #what, (unsigned long long)M.seed, M.step)

/* Two connections a worker: a new process, or a new session, comes over the other one. */
static uint64_t peer_of(int i) { return 10 + (uint64_t)i + 10 * (uint64_t)M.w[i].line; }

static void name_of(int i, char name[16]) { snprintf(name, 16, "w%d", i); }

static void make_stale(uint64_t peer)
{
    if (R.tokens[peer]) M.stale[M.stale_count++ % STALE] = R.tokens[peer];
    R.tokens[peer] = 0;
}

static void gone(int i)
{
    make_stale(peer_of(i));
    M.w[i].is_here = false;
    for (int v = 0; v < VERSIONS; v++) M.eligible[v][i] = false;
}

/* ---- steps ---- */

static void join(int i, bool same_life)
{
    char name[16];
    name_of(i, name);
    actor_t *w = &M.w[i];
    uint64_t former = peer_of(i);
    if (!same_life) { /* a new process: what it held is gone, and so is what the broker waited for */
        gone(i);
        R.is_gone[former] = true;
        *w = (actor_t){.life = draw(1u << 30) + 1, .line = w->line};
    }
    w->line = !w->line;
    msg_held_t held[8];
    uint32_t count = 0;
    for (uint64_t v = 1; v <= M.last_version && count < 8; v++)
        if (w->held[v])
            held[count++] = (msg_held_t){.adapter = "policy",
                                         .version = v,
                                         .digest = rig_digest(M.digest[v]),
                                         .state = w->version == v ? HELD_ACTIVE : HELD_STAGED};
    msg_subscription_t sub = {.adapter = "policy", .decision = w->decision, .version = w->version};
    R.is_gone[peer_of(i)] = false;
    rig_hello_as(peer_of(i), ROLE_WORKER, w->life);
    rig_join_with(peer_of(i), name, &sub, 1, held, count);
    CHECK(R.tokens[peer_of(i)]);
    make_stale(former);
    w->is_here = true;
    w->before_settled = broker_is_settling(R.b, R.now.us);
}

static void publish(void)
{
    if (!M.writer_is_here) {
        rig_open(T, "policy", "trainer", M.last_version, true);
        M.writer_is_here = R.tokens[T] != 0;
        return;
    }
    uint64_t activation = draw(4) ? HEDDLE_ACTIVATION_ALL : 1 + draw(2);
    uint64_t before = M.last_version;
    size_t records = R.record_count;
    rig_publish(T, (rig_publish_t){.digest = ++M.next_digest,
                                   .activation = (heddle_activation_t)activation,
                                   .deadline_ms = 1000 + draw(9000)});
    for (size_t i = records; i < R.record_count; i++) {
        if (R.records[i].kind != RECORD_VERSION) continue;
        uint64_t v = R.records[i].version;
        CHECK(v > before); /* never used again */
        M.last_version = v;
        M.digest[v] = M.next_digest;
        M.activation[v] = activation;
        for (int k = 0; k < WORKERS; k++) M.eligible[v][k] = M.w[k].is_here;
    }
}

static uint64_t some_version(void)
{
    return M.last_version ? M.last_version - draw(M.last_version < 3 ? M.last_version : 3) : 0;
}

/* A worker stages a version that it was told of. */
static void stage(int i)
{
    uint64_t v = some_version();
    if (!v || !M.w[i].is_here) return;
    M.w[i].held[v] = 1;
    rig_staged(peer_of(i), v, M.digest[v]);
}

/* It follows the last COMMIT that came. */
static void activate(int i)
{
    actor_t *w = &M.w[i];
    for (size_t k = R.letter_count; w->is_here && k-- > 0;) {
        const letter_t *l = &R.letters[k];
        if (l->peer != peer_of(i) || l->m.type != MSG_COMMIT ||
            l->m.commit.token != R.tokens[peer_of(i)])
            continue;
        if (l->m.commit.decision <= w->decision) return;
        w->decision = l->m.commit.decision;
        w->version = l->m.commit.version;
        rig_active(peer_of(i), w->version, w->decision, M.digest[w->version]);
        return;
    }
}

static void reject(int i)
{
    uint64_t v = some_version();
    const char *CODES[] = {"no_slot", "version_failed", "digest_mismatch", "deadline"};
    if (v && M.w[i].is_here)
        rig_nack(peer_of(i), v, draw(3) ? 0 : M.w[i].decision, "stage", CODES[draw(4)]);
    if (v) M.w[i].held[v] = 0;
}

static void check_records(void);

/* Whose lease ended is gone before anything is decided at the same moment: time before frames. */
static void see_who_is_gone(void)
{
    for (int i = 0; i < WORKERS; i++) {
        char name[16];
        name_of(i, name);
        if (M.w[i].is_here && !member_is_ready(membership_worker(&R.b->members, name))) gone(i);
    }
    if (!M.writer_is_here || membership_publisher(&R.b->members, "policy")) return;
    make_stale(T);
    M.writer_is_here = false;
}

static void time_passes(uint64_t ms)
{
    for (uint64_t left = ms; left; left -= left < 250 ? left : 250) {
        R.now.us += (left < 250 ? left : 250) * 1000;
        R.now.wall_ms += left < 250 ? left : 250;
        broker_tick(R.b, R.now);
        rig_flush();
        see_who_is_gone();
        check_records();
        for (uint64_t p = 0; p < PEERS; p++)
            if (R.tokens[p] && !R.is_quiet[p]) rig_beat(p);
        check_records();
    }
}

static void crash(void)
{
    for (uint64_t p = 0; p < PEERS; p++) make_stale(p);
    rig_restart();
    M.seen_letters = 0;
    M.writer_is_here = M.by_hand = false;
    M.settle_end_us = R.now.us + (R.b->registry.adapter_count ? LEASE_MS * 1000ull : 0);
    for (int i = 0; i < WORKERS; i++) {
        M.w[i].is_here = false;
        for (int v = 0; v < VERSIONS; v++) M.eligible[v][i] = false;
    }
}

/* Everything that a change would show in. */
static uint64_t state_hash(void)
{
    uint64_t h = R.b->registry.epoch * 31 + R.record_count;
    for (size_t i = 0; i < R.b->rollout.track_count; i++) {
        const track_t *t = R.b->rollout.tracks[i];
        h = h * 1000003 + t->version * 8 + t->is_served * 4 + t->is_ended * 2 + t->is_lost;
        for (size_t k = 0; k < t->copy_count; k++)
            h = h * 1000003 + t->copies[k]->token * 16 + (uint64_t)t->copies[k]->state;
    }
    for (size_t i = 0; i < R.b->members.worker_count; i++) {
        const member_t *m = R.b->members.workers[i];
        h = h * 1000003 + m->token * 8 + (uint64_t)m->state + m->lease_end_us +
            (m->sub_count ? m->subs[0].decision : 0);
    }
    return h;
}

static void zombie(void)
{
    if (!M.stale_count || R.commit_error) return;
    broker_tick(R.b, R.now); /* what time does is not the zombie's doing */
    rig_flush();
    uint64_t peer = peer_of((int)draw(WORKERS)), mine = R.tokens[peer], v = some_version();
    uint64_t before = state_hash(), fenced = R.b->members.fenced_count;
    const broker_peer_t *known = NULL;
    HASH_FIND(hh, R.b->peers, &peer, sizeof peer, known);
    bool is_known = known != NULL;
    R.tokens[peer] = M.stale[draw(M.stale_count < STALE ? M.stale_count : STALE)];
    CHECK(R.tokens[peer] != mine);
    if (v) {
        rig_staged(peer, v, M.digest[v]);
        rig_active(peer, v, 1 + draw(M.last_decision + 1), M.digest[v]);
        rig_nack(peer, v, 0, "fetch", "gone");
    }
    rig_beat(peer);
    rig_leave(peer);
    R.tokens[peer] = mine;
    CHECK(before == state_hash());                          /* I4 */
    CHECK(!is_known || R.b->members.fenced_count > fenced); /* and is counted */
}

static void operate(void)
{
    uint64_t v = some_version();
    if (!v) return;
    M.by_hand = true;
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = draw(3) ? "activate" : "wait",
                                   .name = "policy",
                                   .version = v,
                                   .by = "ann",
                                   .deadline_ms = 500 + draw(5000)});
}

/* ---- invariants ---- */

static void check_decision(const record_t *rec)
{
    uint64_t v = rec->version;
    CHECK(rec->decision == M.last_decision + 1);
    M.last_decision = rec->decision;
    if (M.by_hand) return;
    CHECK(!rec->held);
    CHECK(M.activation[v] != HEDDLE_ACTIVATION_MANUAL);
    bool somebody = false;
    for (int i = 0; i < WORKERS; i++) {
        bool counts = M.eligible[v][i] || (M.w[i].is_here && M.w[i].before_settled);
        somebody |= M.w[i].is_here && M.w[i].held[v];
        if (M.activation[v] == HEDDLE_ACTIVATION_ALL && counts && M.w[i].is_here) CHECK(M.w[i].held[v]);
    }
    CHECK(somebody);
}

static void check_records(void)
{
    bool settling = R.now.us < M.settle_end_us;
    for (; M.seen_records < R.record_count; M.seen_records++) {
        const record_t *rec = &R.records[M.seen_records];
        if (rec->kind == RECORD_EPOCH || strcmp(rec->adapter, "policy") != 0) continue;
        bool decides = rec->kind == RECORD_DECISION ||
                       (rec->kind == RECORD_STATE && rec->state != VERSION_SUPERSEDED);
        CHECK(!decides || !settling);
        if (rec->kind == RECORD_DECISION) check_decision(rec);
    }
}

/* I2: whatever is said of a version names its one digest; I1: and only what is on disk is said. */
static void check_letters(void)
{
    for (; M.seen_letters < R.letter_count; M.seen_letters++) {
        const msg_t *m = &R.letters[M.seen_letters].m;
        const digest_t *d = m->type == MSG_ANNOUNCE ? &m->announce.digest
                            : m->type == MSG_COMMIT ? &m->commit.digest
                                                    : NULL;
        const char *adapter = m->type == MSG_ANNOUNCE ? m->announce.adapter : m->commit.adapter;
        if (!d || strcmp(adapter, "policy") != 0) continue;
        uint64_t v = m->type == MSG_ANNOUNCE ? m->announce.version : m->commit.version;
        digest_t expected = rig_digest(M.digest[v]);
        CHECK(digest_equal(d, &expected));
        CHECK(m->type != MSG_COMMIT || m->commit.decision <= M.last_decision);
    }
}

/* The records alone make the same registry, in the order of the store and in the order they came. */
static void check_replay(void)
{
    registry_t by_kind, by_time;
    registry_init(&by_kind);
    registry_init(&by_time);
    for (int kind = RECORD_EPOCH; kind <= RECORD_FORGET; kind++)
        for (size_t i = 0; i < R.record_count; i++)
            if ((int)R.records[i].kind == kind)
                CHECK(registry_apply(&by_kind, &R.records[i]) == HEDDLE_OK);
    for (size_t i = 0; i < R.record_count; i++)
        CHECK(registry_apply(&by_time, &R.records[i]) == HEDDLE_OK);
    CHECK(registry_equal(&by_kind, &R.b->registry));
    CHECK(registry_equal(&by_time, &R.b->registry));
    registry_fini(&by_kind);
    registry_fini(&by_time);
}

static void check_members(void)
{
    size_t ready = 0;
    for (size_t i = 0; i < R.b->members.worker_count; i++) {
        const member_t *m = R.b->members.workers[i];
        if (i) CHECK(strcmp(R.b->members.workers[i - 1]->name, m->name) < 0); /* I11: one row a name */
        ready += member_is_ready(m);
        CHECK(member_is_ready(m) == (membership_by_token(&R.b->members, m->token) == m));
    }
    CHECK(R.b->members.token_count == ready + R.b->members.publisher_count);
    for (size_t i = 0; i < R.b->rollout.track_count; i++)
        for (size_t k = 0; !R.b->rollout.tracks[i]->is_ended && k < R.b->rollout.tracks[i]->copy_count;
             k++) {
            const copy_row_t *c = R.b->rollout.tracks[i]->copies[k];
            CHECK(!c->token ||
                  membership_by_token(&R.b->members,
                                      c->token)); /* copies of sessions that are over hold nothing */
        }
    size_t tracks_max = ROLLOUT_ENDED_TRACKS + R.b->opts.keep + WORKERS + 3;     /* of an adapter */
    CHECK(R.b->rollout.track_count <= R.b->registry.adapter_count * tracks_max); /* I9 */
    size_t asked[PEERS] = {0};
    for (const pending_row_t *row = R.b->pending.rows; row; row = row->next)
        CHECK(++asked[row->peer] <= PENDING_PER_PEER);
    CHECK(R.fatals == 0);
}

static void check(void)
{
    check_records();
    check_letters();
    check_members();
    if (M.step % 8 == 0) check_replay();
    if (!R.b->pending.count) M.by_hand = false;
    if (R.letter_count > 4000) {
        rig_drop_letters();
        M.seen_letters = 0;
    }
}

static void one_step(void)
{
    int i = (int)draw(WORKERS);
    switch (draw(20)) {
    case 0:
    case 1:
        if (!M.w[i].is_here)
            join(i, draw(3) != 0);
        else if (!draw(4))
            join(i, true);
        break;
    case 2:
        if (M.w[i].is_here && !draw(3)) {
            rig_leave(peer_of(i));
            gone(i);
        }
        break;
    case 3: R.is_quiet[peer_of(i)] = !draw(3); break;
    case 4:
    case 5: publish(); break;
    case 6:
    case 7:
    case 8:
    case 9: stage(i); break;
    case 10:
    case 11:
    case 12: activate(i); break;
    case 13:
        if (!draw(3)) reject(i);
        break;
    case 14: operate(); break;
    case 15: time_passes(draw(2) ? draw(400) : draw(6000)); break;
    case 16:
        if (!draw(5)) crash();
        break;
    case 17: zombie(); break;
    case 18: R.commit_error = draw(3) ? 0 : HEDDLE_ERR_NO_SPACE; break;
    case 19:
        if (M.writer_is_here && !draw(4)) {
            rig_leave(T);
            make_stale(T);
            M.writer_is_here = false;
        }
        break;
    }
}

static void walk_begin(uint64_t seed, uint64_t keep)
{
    memset(&M, 0, sizeof M);
    M.seed = seed;
    rig_start();
    R.keep = keep;
    rig_restart();
    for (int i = 0; i < WORKERS; i++) M.w[i].life = draw(1u << 30) + 1;
}

static void walk_end(void)
{
    check_replay();
    rig_stop();
}

#endif
