/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's pure core under any sequence of events (tests/unit/broker_walk.h), and under guests:
 * connections that say anything at all, in any order, with any token.  They may have sessions of their
 * own, on adapters of their own; what they say must change nothing for the adapter "policy", its workers
 * and its writer.  Every invariant of the walk is checked after each event. */
#include "../unit/broker_walk.h"
#include "tests/fuzz/fields.h"

enum { GUESTS = 3, FIRST_GUEST = 110, STRANGER = 120 };

static const char *const NAMES[] = {"other", "g1", "g2", "policy", "w0", "third"};
static const char *const OWN_NAMES[] = {"other", "g1", "g2", "third"};
static const char *const TEXTS[] = {
    "activate", "wait",     "verify",          "events", "versions", "status", "workers", "adapters",
    "no_slot",  "deadline", "digest_mismatch", "fetch",  "stage",    "x=y",    "",        "\xff"};
static const words_t WORDS = {NAMES, TEXTS, sizeof NAMES / sizeof *NAMES, sizeof TEXTS / sizeof *TEXTS};
static const words_t OWN_WORDS = {OWN_NAMES, TEXTS, sizeof OWN_NAMES / sizeof *OWN_NAMES,
                                  sizeof TEXTS / sizeof *TEXTS};

static input_t bytes;

static uint64_t draw(uint64_t below) { return input_below(&bytes, below); }

/* All messages of members begin with their token. */
static bool has_token(msg_type_t type)
{
    const field_t *first = msg_table((int)type)->fields;
    return !strcmp(first->key, "token");
}

static const char *own_name(const char *name)
{
    return !strcmp(name, "policy") || name[0] == 'w' ? "other" : name;
}

/* A session of its own, never one of those that the walk knows, nor a word about their keys; and it runs the
 * UCX that they run. */
static void make_own(msg_t *m)
{
    if (m->type == MSG_QUERY && m->query.op && !strncmp(m->query.op, "key_", 4)) m->query.op = "keys";
    if (m->type == MSG_JOIN) {
        m->join.name = own_name(m->join.name);
        for (uint32_t i = 0; i < m->join.adapter_count; i++)
            m->join.adapters[i].adapter = own_name(m->join.adapters[i].adapter);
        m->join.backend = "ucx";
        m->join.ucx = "1.13.1";
    }
    if (m->type == MSG_OPEN) {
        m->open.adapter = own_name(m->open.adapter);
        m->open.backend = "ucx";
        m->open.ucx = "1.13.1";
    }
}

static void say(uint64_t peer, const msg_t *m)
{
    buf_t frame = {0};
    if (msg_encode(m, &frame) == HEDDLE_OK) {
        broker_tick(R.b, R.now);
        broker_frame(R.b, peer, buf_view(&frame), R.now);
        rig_flush();
    }
    buf_fini(&frame);
}

static void guest(void)
{
    uint64_t peer = FIRST_GUEST + draw(GUESTS), mine = R.tokens[peer];
    if (draw(8) == 0) rig_hello(peer, (role_t)(1 + draw(3)));
    msg_t m = fields_message(&bytes, draw(2) ? &WORDS : &OWN_WORDS);
    uint64_t any = R.tokens[draw(PEERS)];
    make_own(&m);
    if (has_token(m.type)) m.heartbeat.token = draw(4) ? mine : any;
    if (m.type == MSG_QUERY) M.by_hand = true; /* whoever may ask may activate */
    say(peer, &m);
    if (R.tokens[peer] != mine && mine) M.stale[M.stale_count++ % STALE] = mine;
    if (!membership_by_token(&R.b->members, R.tokens[peer])) make_stale(peer);
    msg_fini(&m);
}

/* Bytes that are no message, or any message of one who did not say HELLO. */
static void stranger(void)
{
    broker_tick(R.b, R.now);
    rig_flush();
    uint64_t before = state_hash(), records = R.record_count;
    if (draw(2)) {
        broker_frame(R.b, STRANGER, input_bytes(&bytes, draw(64)), R.now);
        rig_flush();
    } else {
        msg_t m = fields_message(&bytes, &WORDS);
        if (has_token(m.type)) m.heartbeat.token = R.tokens[draw(PEERS)];
        if (m.type != MSG_HELLO) say(STRANGER, &m);
        msg_fini(&m);
    }
    CHECK(before == state_hash() && records == R.record_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes = (input_t){data, size};
    walk_begin(size, draw(3)); /* an odd size: the store confirms late */
    for (M.step = 0; bytes.left; M.step++) {
        count_steps(1);
        switch (draw(16)) {
        case 0: guest(); break;
        case 1: stranger(); break;
        default: one_step(); break;
        }
        check();
    }
    walk_end();
    return 0;
}
