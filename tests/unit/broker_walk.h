/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over the broker's messages, with crashes, refusing disks, stale tokens, wrong digests, requests
 * said again, revoked keys and time; what must hold is checked after each step. Who includes this says
 * where the numbers come from: a seed (broker_random.c) or a fuzzer's bytes (tests/fuzz/broker_core.c).
 *
 * The invariants, by their names in docs/architecture.md: I1 what is said was on disk before, a request
 * said again is the same version, who counts as a holder said its digest, and disk alone makes the same
 * registry; I2 one digest a version, and no number twice; I4 stale tokens change nothing, and a revoked
 * key has no session; I9 bounds; I11 one session a name; I13 decisions grow by one, and only what the
 * policy of the version allows is decided. */
#ifndef TESTS_UNIT_BROKER_WALK_H
#define TESTS_UNIT_BROKER_WALK_H

#include "broker_rig.h"
#include "tests/lib/registry_equal.h"
#include "tests/lib/rollout_sound.h"

/* 0 .. below-1 */
static uint64_t draw(uint64_t below);

enum { WORKERS = 5, VERSIONS = 1024, STALE = 32, HELD = 8 };

#define DAMAGED (1ull << 32) /* added to what rig_digest makes a digest of: other bytes */

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
    uint64_t settle_end_us;
    uint64_t last_request, version_of[VERSIONS]; /* of the trainer's requests; 0: refused */
    uint64_t stale[STALE];
    size_t stale_count; /* tokens that were replaced, ended or lapsed */
    uint64_t last_decision, last_version;
    uint64_t digest[VERSIONS], activation[VERSIONS];
    bool eligible[VERSIONS][WORKERS];
    bool is_revoked[WORKERS];
    bool by_hand; /* an operator asked in this step, or a question of his is open */
    size_t seen_records, seen_letters;
} M;

#define CHECK(what, ...) cr_assert(what, "seed %llu step %d: " #what, (unsigned long long)M.seed, M.step)

/* Two connections a worker: a new process, or a new session, comes over the other one. */
static uint64_t peer_of(int i) { return 10 + (uint64_t)i + 10 * (uint64_t)M.w[i].line; }

static void name_of(int i, char name[16]) { snprintf(name, 16, "w%d", i); }

/* w0 and w1 share memory, w2 and w3 do; the trainer is with the ones, or the others, or by itself. */
static void make_places(void)
{
    for (uint64_t peer = 10; peer < 30; peer++) {
        R.places[peer] = peer % 10 < 4 ? 1 + peer % 10 / 2 : 0;
        R.generations[peer] = R.places[peer];
    }
    R.places[T] = M.seed % 4;
    R.generations[T] = R.places[T];
}

/* Each worker has a key of its own, which may be revoked; all others have one that may do everything. */
static char keys[WORKERS + 1][HEDDLE_KEY_TEXT];

static void make_keys(void)
{
    for (int k = 0; k <= WORKERS; k++) {
        char name[16];
        name_of(k, name);
        snprintf(keys[k], sizeof keys[k], "%0*d", HEDDLE_KEY_TEXT - 1, k);
        record_t rec = {.kind = RECORD_KEY, .public_key = keys[k], .name = name, .roles = "worker:policy"};
        if (k == WORKERS) rec.roles = "admin,publisher:*,worker:*";
        rig_commit(NULL, &rec, 1, NULL);
    }
    for (uint64_t peer = 0; peer < PEERS; peer++)
        R.keys[peer] = keys[peer >= 10 && peer < 30 && peer % 10 < WORKERS ? peer % 10 : WORKERS];
    R.has_keys = true;
}

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

static uint64_t some_version(void)
{
    return M.last_version ? M.last_version - draw(M.last_version < 3 ? M.last_version : 3) : 0;
}

/* What it holds, the newest; one of them may have other bytes, and is held no longer. */
static uint32_t restate(actor_t *w, msg_held_t held[HELD])
{
    uint64_t damaged = draw(4) ? 0 : some_version();
    uint32_t count = 0;
    for (uint64_t v = M.last_version; v && count < HELD; v--)
        if (w->held[v] || v == damaged)
            held[count++] = (msg_held_t){.adapter = "policy",
                                         .version = v,
                                         .digest = rig_digest(M.digest[v] + (v == damaged ? DAMAGED : 0)),
                                         .state = w->version == v ? HELD_ACTIVE : HELD_STAGED};
    w->held[damaged] = 0;
    return count;
}

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
    msg_held_t held[HELD];
    uint32_t count = restate(w, held);
    msg_subscription_t sub = {.adapter = "policy", .decision = w->decision, .version = w->version};
    R.is_gone[peer_of(i)] = false;
    rig_hello_as(peer_of(i), ROLE_WORKER, w->life);
    rig_join_with(peer_of(i), name, &sub, 1, held, count);
    CHECK(!R.tokens[peer_of(i)] == M.is_revoked[i]);
    make_stale(former);
    w->is_here = !M.is_revoked[i];
    w->before_settled = !R.b->rollout.is_settled;
}

/* The version that the request made: there is a record of it, and of no other; 0: none. */
static uint64_t made_of(const char *id, uint64_t digest, size_t since)
{
    uint64_t made = 0;
    digest_t said = rig_digest(digest);
    for (size_t i = since; i < R.record_count; i++) {
        const record_t *rec = &R.records[i];
        if (rec->kind != RECORD_VERSION) continue;
        CHECK(!made && rec->version > M.last_version); /* never used again */
        CHECK(!strcmp(rec->request_id, id) && digest_equal(&rec->digest, &said));
        made = rec->version;
    }
    return made;
}

/* NULL: refused */
static const msg_published_t *answer_to(uint64_t req)
{
    for (size_t i = R.letter_count; i-- > 0;) {
        const letter_t *l = &R.letters[i];
        if (l->peer == T && l->m.type == MSG_PUBLISHED && l->m.published.req == req) return &l->m.published;
    }
    return NULL;
}

/* Its publisher ended before any worker had it: the request may be made anew. */
static bool is_interrupted(uint64_t v)
{
    const version_row_t *row = v ? registry_version(registry_adapter(&R.b->registry, "policy"), v) : NULL;
    return row && row->state == VERSION_FAILED && row->code == HEDDLE_ERR_VERSION_LOST && !row->worker[0];
}

/* A request that is said again, as by a trainer that heard nothing, is what it was; with other bytes it is
 * refused. */
static void check_said_again(uint64_t v, bool is_damaged, const msg_published_t *answer)
{
    CHECK(is_damaged == !answer);
    if (answer) CHECK(answer->version == v && !answer->created);
}

static void note_made(uint64_t request, uint64_t v, uint64_t digest, uint64_t activation)
{
    M.version_of[request] = M.last_version = v;
    M.digest[v] = digest;
    M.activation[v] = activation;
    for (int k = 0; k < WORKERS; k++) M.eligible[v][k] = M.w[k].is_here;
}

static void publish(void)
{
    if (!M.writer_is_here) {
        rig_open(T, "policy", "trainer", M.last_version, true);
        M.writer_is_here = R.tokens[T] != 0;
        return;
    }
    bool is_again = !draw(4) && M.last_request;
    uint64_t request =
        is_again ? M.last_request - draw(M.last_request < 3 ? M.last_request : 3) : ++M.last_request;
    uint64_t v = M.version_of[request]; /* none: it is new, or was refused */
    bool is_free = is_interrupted(v);
    bool is_damaged = v && !draw(3);
    uint64_t digest = (v ? M.digest[v] : request) + (is_damaged ? DAMAGED : 0);
    uint64_t activation = draw(4) ? HEDDLE_ACTIVATION_ALL : 1 + draw(2);
    size_t records = R.record_count;
    char id[32];
    snprintf(id, sizeof id, "p%llu", (unsigned long long)request);
    rig_publish(T, (rig_publish_t){.digest = digest,
                                   .activation = (heddle_activation_t)activation,
                                   .deadline_ms = 1000 + draw(9000),
                                   .request_id = id});
    uint64_t made = made_of(id, digest, records);
    const msg_published_t *answer = answer_to(R.req);
    bool has_ended = is_interrupted(v); /* maybe with this very frame */
    if (is_free || (has_ended && (made || !answer))) v = 0;
    CHECK(!v || !made);
    if (v) check_said_again(v, is_damaged, answer);
    else CHECK(made ? answer && answer->version == made && answer->created : !answer);
    if (made) note_made(request, made, digest, activation);
}

/* A worker stages a version that it was told of, or other bytes. */
static void stage(int i)
{
    uint64_t v = some_version();
    if (!v || !M.w[i].is_here) return;
    M.w[i].held[v] = draw(8) != 0;
    rig_staged(peer_of(i), v, M.digest[v] + (M.w[i].held[v] ? 0 : DAMAGED));
}

/* It follows the last COMMIT that came. */
static void activate(int i)
{
    actor_t *w = &M.w[i];
    for (size_t k = R.letter_count; w->is_here && k-- > 0;) {
        const letter_t *l = &R.letters[k];
        if (l->peer != peer_of(i) || l->m.type != MSG_COMMIT || l->m.commit.token != R.tokens[peer_of(i)])
            continue;
        if (l->m.commit.decision <= w->decision) return;
        w->decision = l->m.commit.decision;
        w->version = l->m.commit.version;
        w->held[w->version] = 1; /* ACTIVE names the digest as STAGED does */
        rig_active(peer_of(i), w->version, w->decision, M.digest[w->version]);
        return;
    }
}

static void reject(int i)
{
    uint64_t v = some_version();
    const char *CODES[] = {"no_slot", "version_failed", "digest_mismatch", "deadline"};
    if (!v || !M.w[i].is_here) return;
    uint64_t decision = draw(3) ? 0 : M.w[i].decision;
    rig_nack(peer_of(i), v, decision, "stage", CODES[draw(4)]);
    if (!decision) M.w[i].held[v] = 0; /* else it has the bytes, and could not switch to them */
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

static uint64_t track_hash(uint64_t h, const track_t *t)
{
    h = h * 1000003 + t->version * 256 + t->plan.publisher.state * 32 + track_is_ended(t) * 16 + t->bytes;
    for (size_t k = 0; k < t->copy_count; k++)
        h = h * 1000003 + t->copies[k]->token * 16 + (uint64_t)t->copies[k]->state;
    return h;
}

/* Everything that a change would show in. */
static uint64_t state_hash(void)
{
    uint64_t h = R.b->registry.epoch * 31 + R.record_count;
    for (size_t i = 0; i < R.b->rollout.adapter_count; i++) {
        const adapter_rollout_t *a = R.b->rollout.adapters[i];
        for (size_t k = 0; k < a->track_count; k++) h = track_hash(h, a->tracks[k]);
    }
    for (size_t i = 0; i < R.b->members.worker_count; i++) {
        const member_t *m = R.b->members.workers[i];
        h = h * 1000003 + m->token * 8 + (uint64_t)m->state + m->lease_end_us +
            (m->sub_count ? m->subs[0].serving.decision : 0);
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
    bool is_known = broker_peer(R.b, peer) != NULL;
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
    const char *const ops[] = {"wait", "activate", v % 2 ? "rollback" : "resume"};
    rig_query(ADMIN, (msg_query_t){.op = ops[draw(3)],
                                   .name = "policy",
                                   .version = v,
                                   .by = "ann",
                                   .deadline_ms = 500 + draw(5000)});
}

/* The key of a worker is revoked, or added again. */
static void turn_key(int i)
{
    char name[16];
    const char *roles[] = {"worker:policy"};
    uint64_t token = R.tokens[peer_of(i)];
    name_of(i, name);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = M.is_revoked[i] ? "key_add" : "key_revoke",
                                   .key = keys[i],
                                   .name = name,
                                   .roles = roles,
                                   .role_count = M.is_revoked[i]});
    M.is_revoked[i] ^= !R.commit_error;
    CHECK(broker_lets_in(R.b, keys[i], R.now) == !M.is_revoked[i]);
    if (!M.is_revoked[i]) return;
    CHECK(!membership_by_token(&R.b->members, token));
    gone(i);
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
        bool decides =
            rec->kind == RECORD_DECISION || (rec->kind == RECORD_STATE && rec->state != VERSION_SUPERSEDED);
        CHECK(!decides || !settling);
        if (rec->kind == RECORD_DECISION) check_decision(rec);
    }
}

/* The record of that version, or decision, among the first so many; NULL: none. */
static const record_t *recorded(record_kind_t kind, const char *adapter, uint64_t number, size_t count)
{
    while (count-- > 0) {
        const record_t *rec = &R.records[count];
        if (rec->kind == kind && number == (kind == RECORD_DECISION ? rec->decision : rec->version) &&
            !strcmp(rec->adapter, adapter))
            return rec;
    }
    return NULL;
}

static void check_named(const letter_t *l, const char *adapter, uint64_t version, const digest_t *digest)
{
    const record_t *rec = recorded(RECORD_VERSION, adapter, version, l->records);
    CHECK(rec);
    CHECK(digest_equal(&rec->digest, digest));
}

static void check_decided(const letter_t *l, const char *adapter, uint64_t decision, uint64_t version)
{
    const record_t *rec = recorded(RECORD_DECISION, adapter, decision, l->records);
    CHECK(rec && rec->version == version);
}

static void check_welcome(const letter_t *l)
{
    for (uint32_t i = 0; i < l->m.welcome.adapter_count; i++) {
        const msg_decision_t *d = &l->m.welcome.adapters[i];
        if (!d->decision) continue;
        check_named(l, d->adapter, d->version, &d->digest);
        check_decided(l, d->adapter, d->decision, d->version);
    }
}

/* I1: what is said was on disk when it was said; I2: and names the version's one digest. */
static void check_letter(const letter_t *l)
{
    const msg_published_t *p = &l->m.published;
    const msg_announce_t *a = &l->m.announce;
    const msg_commit_t *c = &l->m.commit;
    switch (l->m.type) {
    case MSG_WELCOME: check_welcome(l); break;
    case MSG_PUBLISHED: check_named(l, p->adapter, p->version, &p->digest); break;
    case MSG_ANNOUNCE: check_named(l, a->adapter, a->version, &a->digest); break;
    case MSG_COMMIT:
        check_named(l, c->adapter, c->version, &c->digest);
        check_decided(l, c->adapter, c->decision, c->version);
        break;
    default: break;
    }
}

static void check_letters(void)
{
    for (; M.seen_letters < R.letter_count; M.seen_letters++) check_letter(&R.letters[M.seen_letters]);
}

/* The records alone make the same registry, in the order of the store and in the order they came. */
static void check_replay(void)
{
    registry_t by_kind, by_time;
    registry_init(&by_kind);
    registry_init(&by_time);
    for (int kind = RECORD_EPOCH; kind <= RECORD_FORGET; kind++)
        for (size_t i = 0; i < R.record_count; i++)
            if ((int)R.records[i].kind == kind) CHECK(registry_apply(&by_kind, &R.records[i]) == HEDDLE_OK);
    for (size_t i = 0; i < R.record_count; i++)
        if (R.records[i].kind <= RECORD_FORGET) /* else of keys */
            CHECK(registry_apply(&by_time, &R.records[i]) == HEDDLE_OK);
    CHECK(registry_equal(&by_kind, &R.b->registry));
    CHECK(registry_equal(&by_time, &R.b->registry));
    registry_fini(&by_kind);
    registry_fini(&by_time);
}

/* Those of sessions that are over hold nothing, and nobody holds what he did not say the digest of. */
static void check_copies(const track_t *t)
{
    bool is_known = !strcmp(t->adapter, "policy");
    for (size_t k = 0; !track_is_ended(t) && k < t->copy_count; k++) {
        const copy_row_t *c = t->copies[k];
        CHECK(!c->token || membership_by_token(&R.b->members, c->token));
        if (is_known && copy_holds(c)) CHECK(M.w[c->worker[1] - '0'].held[t->version]);
    }
}

/* I9: of what has ended the last few, once it was told; of what has not, what is kept, and what somebody is at,
 * fetches or loads, and has time for still.  While the broker settles it decides nothing, and knows of no copy. */
static void check_tracks(void)
{
    const rollout_t *ro = &R.b->rollout;
    size_t told = 0, live = 0;
    CHECK(rollout_is_sound(ro)); /* tallies and plans are what counting everything again gives */
    for (size_t i = 0; i < ro->adapter_count; i++) {
        const adapter_rollout_t *a = ro->adapters[i];
        for (size_t k = 0; k < a->track_count; k++) {
            const track_t *t = a->tracks[k];
            check_copies(t);
            told += track_is_ended(t) && !a->is_touched;
            bool is_needed = t->fetched_until_us > R.now.us || t->loaded_until_us > R.now.us;
            live += !track_is_ended(t) && !a->is_touched && !is_needed;
        }
    }
    CHECK(told <= R.b->registry.adapter_count * ROLLOUT_ENDED_TRACKS);
    bool is_bound = R.b->rollout.is_settled;
    CHECK(!is_bound || live <= R.b->registry.adapter_count * (R.b->opts.keep + WORKERS + 3));
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
    check_tracks();
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
    switch (draw(21)) {
    case 0:
    case 1:
        if (!M.w[i].is_here) join(i, draw(3) != 0);
        else if (!draw(4)) join(i, true);
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
    case 20:
        if (!draw(3)) turn_key(i);
        break;
    }
}

static void walk_begin(uint64_t seed, uint64_t keep)
{
    memset(&M, 0, sizeof M);
    M.seed = seed;
    rig_start();
    R.keep = keep;
    R.shape = (plan_shape_t)(PLAN_STAR + seed / 2 % 3);
    make_places();
    make_keys();
    rig_restart();
    R.is_late = R.confirms = seed % 2; /* each second walk has a store that confirms after the event */
    for (int i = 0; i < WORKERS; i++) M.w[i].life = draw(1u << 30) + 1;
}

static void walk_end(void)
{
    check_replay();
    rig_stop();
}

#endif
