/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/rounds.h"

#include "core/clock.h"

/* 1 GB/s is what a slow core digests that is shared with others. */
uint64_t round_patience_us(uint64_t bytes) { return 50000 + bytes / 1000 * 4; }

/* ---- the source ---- */

void round_begin(round_t *r, const content_id_t *id, uint64_t bytes, bool is_verified)
{
    round_state_t state = is_verified ? ROUND_VERIFIED : ROUND_VERIFYING;
    *r = (round_t){.id = *id, .bytes = bytes, .state = state, .due_us = CLOCK_NEVER};
}

bool round_has(const round_t *r, uint32_t watcher) { return r->members[watcher].state != MEMBER_NONE; }

bool round_waits(const round_t *r, uint32_t watcher)
{
    return r->state == ROUND_VERIFYING && r->members[watcher].state == MEMBER_WAITING;
}

/* The one that waits longest, unless one is asked already. */
static round_act_t ask_next(round_t *r, uint64_t now_us)
{
    uint32_t first = ROUND_ALL;
    for (uint32_t i = 0; i < LIMIT_WATCHERS; i++) {
        if (r->members[i].state == MEMBER_ASKED) return (round_act_t){.is_any = false};
        if (r->members[i].state == MEMBER_WAITING &&
            (first == ROUND_ALL || r->members[i].order < r->members[first].order))
            first = i;
    }
    r->due_us = first == ROUND_ALL ? CLOCK_NEVER : now_us + round_patience_us(r->bytes);
    if (first == ROUND_ALL) return (round_act_t){.is_any = false};
    r->members[first].state = MEMBER_ASKED;
    return (round_act_t){true, NOTE_VERIFY, first};
}

/* What a process that holds the content is sent once the round has left `verifying`. */
static note_t note_of(round_state_t state)
{
    if (state == ROUND_VERIFIED) return NOTE_VERIFIED;
    return state == ROUND_SPOILED ? NOTE_SPOILED : NOTE_DOUBTED;
}

static round_act_t decide(round_t *r, round_state_t state)
{
    r->state = state;
    r->due_us = CLOCK_NEVER;
    return (round_act_t){true, note_of(state), ROUND_ALL};
}

round_act_t round_doubt(round_t *r)
{
    return r->state < ROUND_DOUBTED ? decide(r, ROUND_DOUBTED) : (round_act_t){.is_any = false};
}

static bool has_bad(const round_t *r)
{
    for (uint32_t i = 0; i < LIMIT_WATCHERS; i++)
        if (r->members[i].state == MEMBER_BAD) return true;
    return false;
}

/* Those that use the content would not answer when they are asked. */
static void begin_anew(round_t *r, uint32_t watcher)
{
    r->state = ROUND_VERIFYING;
    for (uint32_t i = 0; i < LIMIT_WATCHERS; i++) {
        bool is_sent = r->members[i].state >= MEMBER_WAITING && r->members[i].state <= MEMBER_LATE;
        if (i != watcher && is_sent) r->members[i].state = MEMBER_GOOD;
    }
}

round_act_t round_step(round_t *r, round_event_t event, uint32_t watcher, uint64_t now_us)
{
    round_member_t *member = event == ROUND_TIME ? NULL : &r->members[watcher].state;
    bool is_second = event == ROUND_BAD && has_bad(r);
    switch (event) {
    case ROUND_HELD:
        /* Also one that gave the content up and holds it again: what it was sent went with its claim. */
        if (*member != MEMBER_WAITING && *member != MEMBER_BAD) {
            *member = MEMBER_WAITING;
            r->members[watcher].order = r->next++;
        }
        if (r->state == ROUND_VERIFIED && now_us - r->verified_us >= ROUND_FRESH_US) begin_anew(r, watcher);
        if (r->state != ROUND_VERIFYING) return (round_act_t){true, note_of(r->state), watcher};
        break;
    case ROUND_GOOD:
        /* One that waits verified them for itself: it would not answer when it is asked. */
        if (*member < MEMBER_WAITING || *member > MEMBER_LATE) return (round_act_t){.is_any = false};
        *member = MEMBER_GOOD;
        r->verified_us = now_us;
        if (r->state == ROUND_VERIFYING) return decide(r, ROUND_VERIFIED);
        break;
    case ROUND_BAD:
        if (*member == MEMBER_NONE || *member == MEMBER_BAD) return (round_act_t){.is_any = false};
        *member = MEMBER_BAD;
        if (is_second && r->state == ROUND_DOUBTED) return decide(r, ROUND_SPOILED);
        return round_doubt(r);
    case ROUND_GONE: *member = MEMBER_NONE; break;
    case ROUND_TIME:
        if (now_us < r->due_us) return (round_act_t){.is_any = false};
        for (uint32_t i = 0; i < LIMIT_WATCHERS; i++)
            if (r->members[i].state == MEMBER_ASKED) r->members[i].state = MEMBER_LATE;
        break;
    }
    return r->state == ROUND_VERIFYING ? ask_next(r, now_us) : (round_act_t){.is_any = false};
}

/* ---- a holder ---- */

void claim_begin(claim_t *c, const content_id_t *id, uint64_t bytes, bool is_own, uint64_t now_us)
{
    *c = (claim_t){.id = *id,
                   .state = is_own ? CLAIM_VERIFYING : CLAIM_WAITING,
                   .is_own = is_own,
                   .due_us = now_us + 2 * round_patience_us(bytes)};
}

bool claim_receive(claim_t *c, note_t note, const content_id_t *id)
{
    if (!content_is(&c->id, id)) return false;
    if (c->state > CLAIM_VERIFYING) return true;
    if (note == NOTE_VERIFY || note == NOTE_DOUBTED) c->state = CLAIM_VERIFYING;
    if (note == NOTE_VERIFIED && !c->is_own) c->state = CLAIM_USABLE;
    if (note == NOTE_SPOILED) c->state = CLAIM_BAD;
    return true;
}

void claim_lose(claim_t *c)
{
    if (c->state == CLAIM_WAITING) c->state = CLAIM_VERIFYING;
}

void claim_tick(claim_t *c, uint64_t now_us)
{
    if (now_us >= c->due_us) claim_lose(c);
}

bool claim_found(claim_t *c, bool is_good, note_t *ret_note)
{
    if (c->state != CLAIM_VERIFYING) return false;
    c->state = is_good ? CLAIM_USABLE : CLAIM_BAD;
    *ret_note = is_good ? NOTE_GOOD : NOTE_BAD;
    return true;
}
