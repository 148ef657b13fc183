/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/rules.h"

#include "core/bytes.h"

#include <stdatomic.h>
#include <string.h>

/* Kept in program order by the compiler. More is not needed: a process dies between two instructions, and its
 * lock changes hands inside the kernel. */
#define THEN() atomic_signal_fence(memory_order_seq_cst)

void header_put(header_t *h, region_act_t act, const header_t *content)
{
    if (act == REGION_PUT_WRITING) h->state = HEADER_WRITING;
    if (act == REGION_PUT_GENERATION) h->generation++;
    if (act == REGION_PUT_CONTENT) {
        h->manifest = content->manifest;
        h->bytes = content->bytes;
    }
    if (act == REGION_PUT_SEALED) h->state = HEADER_SEALED;
    THEN();
}

bool content_is(const content_id_t *a, const content_id_t *b)
{
    return a->generation == b->generation && !memcmp(a->identity, b->identity, sizeof a->identity) &&
           !memcmp(&a->manifest, &b->manifest, sizeof a->manifest);
}

const char *content_text(const content_id_t *id, char scratch[CONTENT_TEXT])
{
    const uint8_t *b = id->identity;
    text_printf(scratch, CONTENT_TEXT, "region %02x%02x%02x%02x%02x%02x%02x%02x generation %llu", b[0], b[1],
                b[2], b[3], b[4], b[5], b[6], b[7], (unsigned long long)id->generation);
    return scratch;
}

header_verdict_t header_check(const header_t *h, const content_id_t *id, size_t capacity)
{
    if (h->layout != HEADER_LAYOUT) return HEADER_UNKNOWN;
    if (memcmp(h->identity, id->identity, sizeof h->identity) != 0) return HEADER_OTHER_REGION;
    if (h->generation != id->generation) return HEADER_OTHER_GENERATION;
    if (h->state != HEADER_SEALED) return HEADER_UNSEALED;
    if (memcmp(&h->manifest, &id->manifest, sizeof h->manifest) != 0) return HEADER_OTHER_MANIFEST;
    return h->bytes <= capacity ? HEADER_MATCHES : HEADER_TOO_LARGE;
}

/* ---- the owner ---- */

typedef struct {
    bool is_allowed;
    region_state_t next;
    region_act_t acts[REGION_ACTS];
} region_rule_t;

static const region_rule_t REGION[REGION_STATES][REGION_EVENTS] = {
    [REGION_IDLE] =
        {
            [REGION_BEGIN] = {true, REGION_LOCKING, {REGION_TRY_LOCK}},
            [REGION_DROP] = {true, REGION_IDLE},
            [REGION_OFFER] = {true, REGION_IDLE},
            [REGION_SHRINK] = {true, REGION_GONE},
        },
    [REGION_LOCKING] =
        {
            [REGION_GRANTED] = {true, REGION_WRITING, {REGION_PUT_WRITING, REGION_PUT_GENERATION}},
            [REGION_REFUSED] = {true, REGION_IDLE},
        },
    [REGION_WRITING] =
        {
            [REGION_SEAL] = {true, REGION_SEALED, {REGION_PUT_CONTENT, REGION_PUT_SEALED, REGION_UNLOCK}},
            [REGION_ABORT] = {true, REGION_IDLE, {REGION_UNLOCK}},
            [REGION_OFFER] = {true, REGION_WRITING},
            [REGION_SHRINK] = {true, REGION_GONE},
        },
    [REGION_SEALED] =
        {
            [REGION_HAND_OVER] = {true, REGION_SEALED},
            [REGION_OFFER] = {true, REGION_SEALED},
            [REGION_DROP] = {true, REGION_IDLE},
            [REGION_SHRINK] = {true, REGION_GONE},
        },
};

bool region_step(region_state_t *state, region_event_t event, region_act_t ret_acts[REGION_ACTS])
{
    const region_rule_t *rule = &REGION[*state][event];
    if (!rule->is_allowed) return false;
    *state = rule->next;
    memcpy(ret_acts, rule->acts, sizeof rule->acts);
    return true;
}

/* ---- a holder ---- */

typedef struct {
    bool is_allowed;
    hold_state_t next;
    hold_act_t act;
} hold_rule_t;

static const hold_rule_t HOLD[HOLD_STATES][HOLD_EVENTS] = {
    [HOLD_NONE] =
        {
            [HOLD_ASK] = {true, HOLD_ASKED, HOLD_TRY_LOCK},
            [HOLD_RELEASE] = {true, HOLD_NONE, HOLD_UNLOCK}, /* of a lock that came with the description */
        },
    [HOLD_ASKED] =
        {
            [HOLD_GRANTED] = {true, HOLD_LOCKED, HOLD_READ_HEADER},
            [HOLD_REFUSED] = {true, HOLD_NONE, HOLD_DO_NOTHING},
        },
    [HOLD_LOCKED] =
        {
            [HOLD_FOUND] = {true, HOLD_CHECKED, HOLD_DO_NOTHING},
            [HOLD_FOUND_OTHER] = {true, HOLD_NONE, HOLD_UNLOCK},
        },
    [HOLD_CHECKED] =
        {
            [HOLD_MAP] = {true, HOLD_MAPPED, HOLD_DO_NOTHING},
            [HOLD_MAP_FAILED] = {true, HOLD_NONE, HOLD_UNLOCK},
            [HOLD_SEND] = {true, HOLD_NONE, HOLD_GIVE},
            [HOLD_RELEASE] = {true, HOLD_NONE, HOLD_UNLOCK},
        },
    [HOLD_MAPPED] =
        {
            [HOLD_HAND_ON] = {true, HOLD_MAPPED, HOLD_DO_NOTHING},
            [HOLD_RELEASE] = {true, HOLD_NONE, HOLD_UNLOCK},
        },
};

bool hold_step(hold_state_t *state, hold_event_t event, hold_act_t *ret_act)
{
    const hold_rule_t *rule = &HOLD[*state][event];
    if (!rule->is_allowed) return false;
    *state = rule->next;
    *ret_act = rule->act;
    return true;
}
