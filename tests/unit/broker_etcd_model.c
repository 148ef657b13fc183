/* SPDX-License-Identifier: Apache-2.0 */
/* All interleavings of two brokers at one etcd: one leads, the other follows.  Every world that can be reached
 * within some decisions, faults and leases (limits_t) is looked at.  The brokers are those of
 * broker/store/etcd_leader.h, the etcd is that of tests/lib/fake_etcd.h.  Between any two acts of a broker the
 * other one may act, and time may pass: a leader that stands still, and wakes with a decision in hand, is
 * among the worlds.  An answer comes at any time after its request.  The faults of a commit:
 *
 *   its answer is lost · it is given up, and arrives later · it does not reach etcd · etcd refuses it, as it
 *   has no room · the same, and it is done: it is the one that fills etcd · it is done, and is called unsent,
 *   which a library below must not do: then it may be taken for refused, but nothing after it is lost
 *
 * A snapshot of the beginning may be restored while the revisions of etcd go on, the first broker may end, and
 * a third one may lead for a moment.  Then a broker that leads looks for its key once a second.
 *
 * The rules:
 *   - a commit happens while the key of its broker is there, and begins while its lease is;
 *   - its decision has the number after the last one: none is given twice, and none is overwritten;
 *   - what a broker takes for refused never happens, and what it takes for recorded has happened;
 *   - a broker that takes the lead has a greater epoch than the one before, and all that has happened;
 *   - a broker that has looked for its key, and leads on, has it. */
#include "broker/store/etcd_leader.h"
#include "tests/lib/fake_etcd.h"

#include <criterion/criterion.h>

enum { BROKERS = 2, LANES = 2, TTL_S = 3, HALF_LEASE_US = TTL_S * 500000 };

/* At most so many, so that the worlds are finite. */
typedef struct {
    int decisions, halves, faults, restores, ends, others;
    unsigned without; /* a bit for each act that there is not */
    bool is_alone;    /* only the first broker acts */
    bool
        is_listed; /* brokers write rows of their own, so that a standby has a lease; the leader reads them */
} limits_t;
static limits_t most;

typedef struct {
    bool is_there;
    etcd_call_t call;
    int attempt; /* of its broker's decisions; 0: of none */
    uint64_t number;
    buf_t body, answer;
} request_t;

static struct {
    fake_etcd_t etcd;
    etcd_leader_t brokers[BROKERS];
    request_t sent[BROKERS][LANES];
    request_t late; /* given up, and on its way */
    int late_of;
    uint64_t now_us, watched; /* as far as the follower was answered */
    int halves, faults, restores, ends, others, attempts[BROKERS];
    uint64_t tried[BROKERS];                            /* the number of the last attempt */
    unsigned happened_of[BROKERS], refused_of[BROKERS]; /* a bit for each attempt */
    unsigned excused_of[BROKERS];                       /* it was called unsent, or undone by a restore */
    uint64_t happened, epoch;
    bool was_too_late, was_mistaken;
} W;

static fake_keys_t snapshot; /* of the beginning */
static const char *const NAMES[BROKERS] = {"a", "b"};
static const brokers_row_t OWN = {.endpoint = "o", .release = "1"};
static const record_t FLOOR = {.kind = RECORD_FLOOR, .adapter = "a", .decision = 1};

/* ---- what the etcd has ---- */

static const fake_key_t *key_of(const char *name)
{
    char expected[64], found[512];
    snprintf(expected, sizeof expected, "p/%s", name);
    for (int i = 0; i < W.etcd.count; i++) {
        fake_decode(W.etcd.keys[i].key, found);
        if (!strcmp(found, expected)) return &W.etcd.keys[i];
    }
    return NULL;
}

static uint64_t changed(const char *name)
{
    const fake_key_t *k = key_of(name);
    return k ? k->changed : 0;
}

static bool has_key(int i)
{
    const fake_key_t *k = key_of(ETCD_KEY_LEADER);
    return k && k->created == W.brokers[i].created_revision;
}

static uint64_t epoch_there(void)
{
    char text[512];
    const fake_key_t *k = key_of(ETCD_KEY_META);
    cr_assert_not_null(k);
    fake_decode(k->value, text);
    return strtoull(strrchr(text, ' '), NULL, 10);
}

static int take_floor(void *self, const record_t *r)
{
    if (r->kind == RECORD_FLOOR) *(uint64_t *)self = r->version;
    return HEDDLE_OK;
}

static uint64_t number_of(int i)
{
    uint64_t found = 0;
    rows_walk(W.brokers[i].rows, take_floor, &found, NULL);
    return found;
}

/* ---- one act ---- */

/* Why a rule does not hold; NULL: all do. */
static const char *broken;
static void rule(bool holds, const char *what)
{
    if (!holds && !broken) broken = what;
}

/* The etcd does it: the rules of what happens there. */
static void arrive(int i, request_t *r)
{
    uint64_t last = changed(ETCD_KEY_LAST);
    bool had_key = has_key(i);
    bytes_t answer = fake_etcd_do(&W.etcd, r->call, buf_view(&r->body));
    buf_clear(&r->answer);
    buf_add(&r->answer, answer.data, answer.bytes);
    if (r->call != ETCD_TXN || changed(ETCD_KEY_LAST) == last) return;
    if (r->attempt) {
        rule(had_key, "a commit of a broker whose key is gone has happened");
        rule(r->number == W.happened + 1, "a number was given twice, or one was overwritten");
        rule(!(W.refused_of[i] & 1u << r->attempt), "a commit has happened that was refused");
        W.happened = r->number;
        W.happened_of[i] |= 1u << r->attempt;
    } else {
        rule(epoch_there() > W.epoch, "a broker leads in the epoch of another one");
        W.epoch = epoch_there();
    }
}

static void take_outcome(int i)
{
    int rc;
    heddle_error_t error;
    if (!etcd_leader_take_outcome(&W.brokers[i], &rc, &error)) return;
    bool has_happened = W.happened_of[i] & 1u << W.attempts[i];
    bool is_excused = W.excused_of[i] & 1u << W.attempts[i];
    rule(rc ? !has_happened || is_excused : has_happened,
         rc ? "a commit was refused that has happened" : "a commit was confirmed that has not happened");
    if (rc && !is_excused) W.refused_of[i] |= 1u << W.attempts[i];
    W.was_mistaken = W.was_mistaken || (rc && has_happened);
}

static void answer(int i, etcd_lane_t lane, etcd_outcome_t outcome, bytes_t body)
{
    etcd_leader_t *l = &W.brokers[i];
    bool led = l->state == ETCD_LEADING;
    etcd_leader_answer(l, lane, outcome, body, W.now_us);
    if (!led && l->state == ETCD_LEADING && has_key(i))
        rule(number_of(i) == W.happened, "a broker leads without all that has happened");
    take_outcome(i);
}

static bool decide(int i)
{
    record_t r = FLOOR;
    heddle_error_t error;
    etcd_leader_t *l = &W.brokers[i];
    if (l->state != ETCD_LEADING || l->is_committing || W.attempts[0] + W.attempts[1] == most.decisions)
        return false;
    W.attempts[i]++;
    r.version = W.tried[i] = number_of(i) + 1;
    int rc = etcd_leader_commit(l, &r, 1, W.now_us, &error);
    if (rc == HEDDLE_ERR_AGAIN) {
        rule(has_key(i) || W.restores, "a commit began after the lease can have ended");
    } else {
        W.was_too_late = true;
        W.refused_of[i] |= 1u << W.attempts[i];
    }
    return true;
}

/* -> the request that goes out, NULL: none does. */
static request_t *send(int i, etcd_lane_t lane)
{
    etcd_request_t r;
    request_t *s = &W.sent[i][lane];
    if (!etcd_leader_next(&W.brokers[i], lane, W.now_us, &r)) return NULL;
    buf_clear(&s->body);
    buf_add(&s->body, r.body.data, r.body.bytes);
    s->call = r.call;
    s->is_there = true;
    s->attempt = lane == ETCD_WORK && W.brokers[i].is_committing ? W.attempts[i] : 0;
    s->number = W.tried[i];
    return s;
}

static bool is_awaited(int i, etcd_lane_t lane)
{
    return W.sent[i][lane].is_there && W.brokers[i].lanes[lane].is_wanted;
}

static bool send_and_arrive(int i, etcd_lane_t lane)
{
    request_t *s = send(i, lane);
    if (s) arrive(i, s);
    return s;
}

static bool hand_answer(int i, etcd_lane_t lane)
{
    if (!is_awaited(i, lane)) return false;
    W.sent[i][lane].is_there = false;
    answer(i, lane, ETCD_ANSWERED, buf_view(&W.sent[i][lane].answer));
    return true;
}

/* A look that finds a leader is answered at once: it decides nothing. */
static bool send_work(int i)
{
    if (!send_and_arrive(i, ETCD_WORK)) return false;
    if (W.brokers[i].state == ETCD_STANDBY && key_of(ETCD_KEY_LEADER)) (void)hand_answer(i, ETCD_WORK);
    return true;
}

/* The one that follows is granted a lease without delay: it began later, and ends with no world.  Where the
 * first one may end, it does not renew. */
static bool renew(int i)
{
    if (i == 0) return !most.ends && send_and_arrive(i, ETCD_LEASE);
    return W.brokers[i].state == ETCD_TAKING && send_and_arrive(i, ETCD_LEASE) && hand_answer(i, ETCD_LEASE);
}

static bool lose(int i, etcd_outcome_t outcome)
{
    W.faults++;
    W.sent[i][ETCD_WORK].is_there = false;
    answer(i, ETCD_WORK, outcome, bytes_of("", 0));
    return true;
}

static bool may_fail(int i) { return W.faults < most.faults && W.brokers[i].is_committing; }

/* It is done, and the answer is lost. */
static bool lose_answer(int i)
{
    return W.faults < most.faults && W.sent[i][ETCD_WORK].attempt && is_awaited(i, ETCD_WORK) &&
           lose(i, ETCD_UNKNOWN);
}

/* It is on its way for longer than its broker waits. */
static bool send_late(int i)
{
    if (!may_fail(i) || W.late.is_there) return false;
    request_t *s = send(i, ETCD_WORK), unused = W.late;
    if (!s) return false;
    W.late = *s;
    W.late_of = i;
    *s = unused;
    return lose(i, ETCD_UNKNOWN);
}

/* It does not reach etcd; or it does, and is called unsent all the same. */
static bool call_unsent(int i, bool arrives)
{
    request_t *s = may_fail(i) ? send(i, ETCD_WORK) : NULL;
    if (!s) return false;
    if (arrives) arrive(i, s);
    if (arrives) W.excused_of[i] |= 1u << s->attempt;
    return lose(i, ETCD_UNSENT);
}

/* Etcd has no room; or it has none any more, once it has done this.  There is room again a moment later. */
static bool refuse(int i, bool is_done)
{
    request_t *s = may_fail(i) ? send(i, ETCD_WORK) : NULL;
    if (!s) return false;
    W.faults++;
    W.etcd.fills = is_done;
    W.etcd.error = is_done ? NULL : "etcdserver: mvcc: database space exceeded";
    W.etcd.error_code = 8;
    arrive(i, s);
    W.etcd.fills = false;
    W.etcd.error = NULL;
    return true;
}

static bool arrive_late(void)
{
    if (!W.late.is_there) return false;
    W.late.is_there = false;
    arrive(W.late_of, &W.late);
    return true;
}

/* What a follower gets comes at once: a page of rows, or what its watch says. */
static bool hear(int i)
{
    etcd_request_t r;
    etcd_leader_t *l = &W.brokers[i];
    const etcd_lane_state_t *s = &l->lanes[ETCD_FOLLOW];
    bool is_new = etcd_leader_next(l, ETCD_FOLLOW, W.now_us, &r);
    if (is_new && r.call == ETCD_RANGE) {
        answer(i, ETCD_FOLLOW, ETCD_ANSWERED, fake_etcd_do(&W.etcd, r.call, r.body));
        return true;
    }
    if (is_new) W.watched = 0;
    if (!s->is_wanted || !s->is_sent || W.watched >= W.etcd.revision) return is_new;
    bytes_t piece = fake_etcd_go_on(&W.etcd, buf_view(&s->body), W.watched ? W.watched + 1 : 0);
    W.watched = W.etcd.revision;
    answer(i, ETCD_FOLLOW, ETCD_PIECE, piece);
    return true;
}

static void begin(etcd_leader_t *l, const char *name)
{
    etcd_leader_opts_t opts = {.prefix = "p",
                               .run = name,
                               .holder = name,
                               .fresh = "aaaaaaaaaaaaaaaa",
                               .own = most.is_listed ? &OWN : NULL,
                               .endpoints = 1,
                               .ttl_s = TTL_S};
    cr_assert_eq(etcd_leader_init(l, &opts, W.now_us, NULL), HEDDLE_OK);
}

/* It is answered at once: what it may miss, it sees a second later.  A standby writes its row. */
static bool look(int i)
{
    etcd_request_t r;
    etcd_leader_t *l = &W.brokers[i];
    if (!etcd_leader_next(l, ETCD_BROKERS, W.now_us, &r)) return false;
    answer(i, ETCD_BROKERS, ETCD_ANSWERED, fake_etcd_do(&W.etcd, r.call, r.body));
    rule(l->state != ETCD_LEADING || has_key(i), "a broker leads on that has looked for its key");
    return true;
}

/* The first broker, for good: its key goes with it. */
static bool end(void)
{
    if (W.ends == most.ends) return false;
    W.ends++;
    W.sent[0][ETCD_WORK].is_there = W.sent[0][ETCD_LEASE].is_there = false;
    etcd_leader_end(&W.brokers[0], W.now_us);
    (void)send_and_arrive(0, ETCD_LEASE);
    (void)hand_answer(0, ETCD_LEASE);
    return true;
}

/* A third broker leads for a moment. */
static bool another_leads(void)
{
    etcd_leader_t c;
    etcd_request_t r;
    if (W.others == most.others || key_of(ETCD_KEY_LEADER)) return false;
    W.others++;
    begin(&c, "c");
    for (bool more = true; more;)
        for (int lane = more = false; lane <= ETCD_FOLLOW; lane++)
            if (etcd_leader_next(&c, (etcd_lane_t)lane, W.now_us, &r) && r.call != ETCD_STREAM) {
                etcd_leader_answer(&c, (etcd_lane_t)lane, ETCD_ANSWERED,
                                   fake_etcd_do(&W.etcd, r.call, r.body), W.now_us);
                more = true;
            }
    rule(c.state == ETCD_LEADING && epoch_there() > W.epoch,
         "a third broker does not lead in an epoch of its own");
    W.epoch = epoch_there();
    etcd_leader_end(&c, W.now_us);
    if (etcd_leader_next(&c, ETCD_LEASE, W.now_us, &r)) (void)fake_etcd_do(&W.etcd, r.call, r.body);
    etcd_leader_fini(&c);
    return true;
}

/* Watches end with the nodes.  Other keys of that etcd have moved its revision on by then. */
static bool restore(void)
{
    if (W.restores == most.restores) return false;
    W.restores++;
    uint64_t revision = W.etcd.revision;
    fake_etcd_restore(&W.etcd, &snapshot);
    W.etcd.revision = revision;
    W.happened = 0;
    W.epoch = epoch_there();
    for (int i = 0; i < BROKERS; i++) {
        W.excused_of[i] |= W.happened_of[i];
        etcd_leader_answer(&W.brokers[i], ETCD_FOLLOW, ETCD_UNKNOWN, bytes_of("", 0), W.now_us);
    }
    return true;
}

static bool let_time_pass(void)
{
    if (W.halves == most.halves) return false;
    W.halves++;
    W.now_us += HALF_LEASE_US;
    fake_etcd_pass(&W.etcd, W.now_us);
    return true;
}

/* ---- all of them ---- */

typedef enum {
    DECIDE,
    SEND,
    SEND_LATE,
    UNSENT,
    CALLED_UNSENT,
    REFUSED,
    DONE_AND_REFUSED,
    ANSWER,
    LOSE_ANSWER,
    RENEW,
    ANSWER_LEASE,
    HEAR,
    LOOK,
    ACTS
} act_t;
static const char *const ACT_NAMES[ACTS] = {"decides",
                                            "sends",
                                            "sends and gives up",
                                            "reaches no etcd",
                                            "reaches etcd, which is called unsent",
                                            "is refused for want of room",
                                            "fills etcd",
                                            "is answered",
                                            "is not answered",
                                            "has its lease renewed",
                                            "hears of its lease",
                                            "hears of rows",
                                            "looks for its key"};
enum { ARRIVE_LATE = BROKERS * ACTS, TIME_PASSES, RESTORE, END, ANOTHER, MOVES };

static bool act(int i, act_t what)
{
    if (most.without & 1u << what || (i && most.is_alone)) return false;
    switch (what) {
    case DECIDE: return decide(i);
    case SEND: return send_work(i);
    case SEND_LATE: return send_late(i);
    case UNSENT: return call_unsent(i, false);
    case CALLED_UNSENT: return call_unsent(i, true);
    case REFUSED: return refuse(i, false);
    case DONE_AND_REFUSED: return refuse(i, true);
    case ANSWER: return hand_answer(i, ETCD_WORK);
    case LOSE_ANSWER: return lose_answer(i);
    case RENEW: return renew(i);
    case ANSWER_LEASE: return hand_answer(i, ETCD_LEASE);
    case LOOK: return look(i);
    default: return hear(i);
    }
}

static bool move(int number)
{
    if (number == ARRIVE_LATE) return arrive_late();
    if (number == TIME_PASSES) return let_time_pass();
    if (number == RESTORE) return restore();
    if (number == END) return end();
    if (number == ANOTHER) return another_leads();
    return act(number / ACTS, (act_t)(number % ACTS));
}

static void close_world(void)
{
    for (int i = 0; i < BROKERS; i++) {
        etcd_leader_fini(&W.brokers[i]);
        for (int k = 0; k < LANES; k++) {
            buf_fini(&W.sent[i][k].body);
            buf_fini(&W.sent[i][k].answer);
        }
    }
    buf_fini(&W.late.body);
    buf_fini(&W.late.answer);
    fake_etcd_fini(&W.etcd);
    fake_etcd_forget(&snapshot);
    memset(&W, 0, sizeof W);
}

static void settle(int i)
{
    for (bool more = true; more;) {
        more = hear(i) || look(i);
        for (int lane = 0; lane < LANES; lane++)
            if (send_and_arrive(i, (etcd_lane_t)lane)) more = hand_answer(i, (etcd_lane_t)lane);
    }
}

/* The first broker leads, and the second one follows it. */
static void open_world(void)
{
    broken = NULL;
    for (int i = 0; i < BROKERS; i++) {
        begin(&W.brokers[i], NAMES[i]);
        settle(i);
    }
    cr_assert_eq(W.brokers[0].state, ETCD_LEADING);
    cr_assert(etcd_leader_is_following(&W.brokers[1]));
    if (most.restores) fake_etcd_save(&W.etcd, &snapshot);
}

/* ---- which world it is ---- */

static uint64_t hash;
static void mix(const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
}
static void mix_number(uint64_t n)
{
    for (; n > 0x7f; n >>= 7) mix(&(uint8_t){(uint8_t)(n | 0x80)}, 1);
    mix(&(uint8_t){(uint8_t)n}, 1);
}
static void mix_buf(const buf_t *b)
{
    mix_number(b->bytes);
    mix(b->data, b->bytes);
}
static void mix_text(const char *text) { mix(text, strlen(text) + 1); }

static void mix_request(const request_t *r, const buf_t *what)
{
    mix_number((uint64_t)r->attempt);
    mix_buf(what);
}

/* When it was sent counts for a lease alone. */
static void mix_lane(const etcd_lane_state_t *s, bool is_lease)
{
    mix_number(s->is_wanted);
    if (!s->is_wanted) return;
    mix_number(s->is_sent | s->is_unknown << 1);
    if (!s->is_sent) mix_number(s->due_us > W.now_us ? s->due_us : W.now_us);
    else if (is_lease) mix_number(s->sent_us);
    mix_buf(&s->body);
}

static void mix_broker(int i)
{
    const etcd_leader_t *l = &W.brokers[i];
    mix_number(l->state);
    for (int k = 0; k < LANES; k++)
        if (is_awaited(i, (etcd_lane_t)k)) mix_request(&W.sent[i][k], &W.sent[i][k].answer);
    mix_number(W.refused_of[i]);
    mix_number(W.excused_of[i]);
    if (l->state == ETCD_LOST) return;
    const uint64_t numbers[] = {l->lease,           l->lease_us,         l->created_revision,
                                l->meta_revision,   l->last_revision,    l->took_revision,
                                l->behind_us,       l->page_revision,    l->tries,
                                l->is_committing,   l->is_gone,          (uint64_t)l->refused,
                                l->failures,        l->follow.state,     l->follow.last_revision,
                                l->follow.revision, rows_epoch(l->rows), number_of(i),
                                l->asked_number,    l->shown.with,       l->shown.lease};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) mix_number(numbers[k]);
    mix_text(l->last_marker);
    mix_text(l->marker);
    for (int k = 0; k < ETCD_LANES; k++) mix_lane(&l->lanes[k], k == ETCD_LEASE);
    mix_number(W.happened_of[i]);
    if (l->lanes[ETCD_FOLLOW].is_wanted) mix_number(W.watched);
}

static uint64_t fingerprint(void)
{
    hash = 1469598103934665603u;
    for (int i = 0; i < BROKERS; i++) mix_broker(i);
    if (W.late.is_there) mix_request(&W.late, &W.late.body);
    for (int i = 0; i < W.etcd.count; i++) {
        mix_text(W.etcd.keys[i].key);
        mix_text(W.etcd.keys[i].value);
        mix_number(W.etcd.keys[i].created);
        mix_number(W.etcd.keys[i].changed);
    }
    for (int i = 1; i <= W.etcd.leases; i++) mix_number(W.etcd.lease_ends_us[i]);
    const uint64_t numbers[] = {
        W.etcd.revision,      W.now_us,         (uint64_t)W.faults,
        (uint64_t)W.restores, (uint64_t)W.ends, (uint64_t)W.others,
        W.happened,           W.epoch,          (uint64_t)(W.attempts[0] + W.attempts[1])};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) mix_number(numbers[k]);
    return hash;
}

/* What must be among the worlds: a model that cannot move proves nothing. */
static bool leads(int i) { return W.brokers[i].state == ETCD_LEADING; }
static bool has_in_hand(int i) { return W.brokers[i].is_committing && !W.sent[i][ETCD_WORK].is_there; }
static bool both_lead(void) { return leads(0) && leads(1); }
static bool in_hand_while_the_other_leads(void) { return has_in_hand(0) && leads(1) && has_key(1); }
static bool in_hand_after_the_other_decided(void) { return has_in_hand(0) && W.happened_of[1]; }
static bool in_hand_while_none_leads(void) { return has_in_hand(0) && !key_of(ETCD_KEY_LEADER); }
static bool happened_and_not_heard_while_the_other_leads(void)
{
    const request_t *s = &W.sent[0][ETCD_WORK];
    return is_awaited(0, ETCD_WORK) && s->attempt && W.happened_of[0] & 1u << s->attempt && leads(1);
}
static bool given_up_and_on_its_way_while_the_other_leads(void) { return W.late.is_there && leads(1); }
static bool overtaken_by_the_next_one(void) { return W.late.is_there && W.happened > W.late.number; }
static bool both_have_decided(void) { return W.happened_of[0] && W.happened_of[1]; }
static bool lost_at(int i) { return W.brokers[i].state == ETCD_LOST; }
static bool lost(void) { return lost_at(0); }
static bool too_late(void) { return W.was_too_late; }
static bool filled(void) { return W.brokers[0].refused && W.happened_of[0] & 1u << W.attempts[0]; }
static bool mistaken(void) { return W.was_mistaken && lost(); }
static bool led_anew(void) { return W.restores && W.others && leads(1) && W.brokers[1].follow.anew_count; }
static bool looked(void) { return W.restores && lost_at(1) && !W.attempts[1]; }
static bool decided_anew(void) { return W.restores && W.happened && W.happened_of[1]; }
static bool renewed(void) { return W.now_us >= TTL_S * 1000000 && leads(0) && has_key(0); }

enum { IN_TURNS = 1, WITH_FAULTS = 2, CALLED = 4, RESTORED = 8 };
enum { UNSENTS = 1 << UNSENT | 1 << CALLED_UNSENT, REFUSALS = 1 << REFUSED | 1 << DONE_AND_REFUSED };
enum { LOSSES = 1 << SEND_LATE | 1 << LOSE_ANSWER };
static const struct {
    unsigned in; /* which of the tests */
    const char *name;
    bool (*is)(void);
} REACHED[] = {
    {IN_TURNS, "both say that they lead", both_lead},
    {IN_TURNS, "a decision in hand, and the other one leads", in_hand_while_the_other_leads},
    {IN_TURNS, "a decision in hand, and the other one has decided", in_hand_after_the_other_decided},
    {IN_TURNS, "a decision in hand, and none leads", in_hand_while_none_leads},
    {IN_TURNS, "a commit has happened unheard, and the other one leads",
     happened_and_not_heard_while_the_other_leads},
    {IN_TURNS, "a commit given up and on its way, and the other one leads",
     given_up_and_on_its_way_while_the_other_leads},
    {IN_TURNS, "a commit given up and on its way, and the next one has happened", overtaken_by_the_next_one},
    {IN_TURNS, "both have decided", both_have_decided},
    {IN_TURNS, "the first one is lost", lost},
    {IN_TURNS, "a decision is refused, as it is too late", too_late},
    {IN_TURNS, "the first one has renewed its lease", renewed},
    {WITH_FAULTS, "a commit has filled etcd, and that is not known", filled},
    {CALLED, "a commit that was called unsent has happened, and the next one is not taken", mistaken},
    {RESTORED, "a snapshot was restored, and the second one leads by it", led_anew},
    {RESTORED, "the second one decides by it", decided_anew},
    {RESTORED, "the second one is lost, as its key was restored away", looked},
};
enum { REACHED_COUNT = sizeof REACHED / sizeof *REACHED };

/* Every world once: by its fingerprint, and the moves that led to it. */
enum { SLOTS = 1 << 22, DEPTH = 200 };
typedef struct {
    uint32_t from;
    uint8_t move;
} world_t;

static struct {
    uint64_t *slots;
    world_t *worlds;
    uint32_t count, room;
    unsigned reached[REACHED_COUNT];
} seen;

static bool is_new_world(void)
{
    uint64_t print = fingerprint() | 1;
    uint32_t at = (uint32_t)(print >> 20) % SLOTS;
    for (; seen.slots[at]; at = (at + 1) % SLOTS)
        if (seen.slots[at] == print) return false;
    cr_assert(seen.count < SLOTS / 2, "more worlds than the table has room for");
    seen.slots[at] = print;
    return true;
}

static void add(uint32_t from, int number)
{
    if (!is_new_world()) return;
    if (seen.count == seen.room) {
        seen.room = seen.room ? 2 * seen.room : 1 << 12;
        seen.worlds = realloc(seen.worlds, seen.room * sizeof *seen.worlds);
        cr_assert_not_null(seen.worlds);
    }
    for (int i = 0; i < REACHED_COUNT; i++) seen.reached[i] += REACHED[i].is();
    seen.worlds[seen.count++] = (world_t){from, (uint8_t)number};
}

static int path_of(uint32_t at, uint8_t path[DEPTH])
{
    int n = 0;
    for (; at; at = seen.worlds[at].from) {
        cr_assert_lt(n, DEPTH);
        path[n++] = seen.worlds[at].move;
    }
    return n;
}

static const char *name_of(int number, char to[40])
{
    static const char *const OTHERS[] = {"what was given up is done", "time passes", "a snapshot is restored",
                                         "a ends", "a third one leads, and ends"};
    if (number >= ARRIVE_LATE) return OTHERS[number - ARRIVE_LATE];
    snprintf(to, 40, "%s %s", NAMES[number / ACTS], ACT_NAMES[number % ACTS]);
    return to;
}

/* With the moves that led there. */
static void fail(uint32_t at, int number)
{
    char text[4096] = "", name[40];
    uint8_t path[DEPTH];
    for (int n = path_of(at, path); n--;) {
        strncat(text, name_of(path[n], name), sizeof text - strlen(text) - 1);
        strncat(text, ", ", sizeof text - strlen(text) - 1);
    }
    cr_assert(false, "%s: %s%s", broken, text, name_of(number, name));
}

static void go_to(uint32_t at)
{
    uint8_t path[DEPTH];
    open_world();
    for (int n = path_of(at, path); n--;) (void)move(path[n]);
}

static void look_at_all(limits_t limits, unsigned in)
{
    most = limits;
    seen.slots = calloc(SLOTS, sizeof *seen.slots);
    cr_assert_not_null(seen.slots);
    open_world();
    add(0, 0);
    for (uint32_t at = 0; at < seen.count; at++) {
        bool is_there = at == 0;
        for (int m = 0; m < MOVES; m++) {
            if (!is_there) {
                close_world();
                go_to(at);
            }
            is_there = !move(m);
            if (is_there) continue;
            if (broken) fail(at, m);
            add(at, m);
        }
    }
    close_world();
    for (int i = 0; i < REACHED_COUNT; i++)
        cr_assert(seen.reached[i] || !(REACHED[i].in & in), "never reached: %s", REACHED[i].name);
    cr_log_info("%u worlds", seen.count);
    free(seen.worlds);
    free(seen.slots);
}

Test(etcd_model, a_leader_that_wakes_with_a_decision_in_hand_changes_nothing, .timeout = 300)
{
    look_at_all((limits_t){.decisions = 2, .halves = 2, .faults = 1, .without = UNSENTS | REFUSALS},
                IN_TURNS);
}

Test(etcd_model, no_two_faults_make_a_commit_that_was_acknowledged_go, .timeout = 300)
{
    look_at_all((limits_t){.decisions = 1, .halves = 1, .faults = 2}, WITH_FAULTS);
}

Test(etcd_model, nothing_is_acknowledged_over_a_commit_that_was_called_unsent, .timeout = 300)
{
    look_at_all((limits_t){.decisions = 2, .halves = 2, .faults = 2, .is_alone = true}, CALLED);
}

Test(etcd_model, nothing_is_led_with_that_a_snapshot_does_not_have, .timeout = 300)
{
    look_at_all(
        (limits_t){.decisions = 1, .halves = 1, .restores = 1, .ends = 1, .others = 1, .is_listed = true},
        RESTORED);
}
