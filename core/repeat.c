/* SPDX-License-Identifier: Apache-2.0 */
/* Counting per key, with a minute between two reports of one. */
#include "core/repeat.h"

#include <stdio.h>

/* Where all places are used, the key that was reported longest ago loses its own: it is the one least likely
 * to come again within the minute. */
uint64_t repeat_note(repeat_t *r, uint32_t key, uint64_t now_us)
{
    int at = 0;
    for (int i = 0; i < REPEAT_KEYS; i++) {
        if (r->seen[i].is_used && r->seen[i].key == key) {
            at = i;
            break;
        }
        if (!r->seen[i].is_used || (r->seen[at].is_used && r->seen[i].said_us < r->seen[at].said_us)) at = i;
    }
    bool is_known = r->seen[at].is_used && r->seen[at].key == key;
    if (is_known && now_us - r->seen[at].said_us < REPEAT_US) {
        r->seen[at].count++;
        return 0;
    }
    uint64_t times = is_known ? r->seen[at].count + 1 : 1;
    r->seen[at].is_used = true;
    r->seen[at].key = key;
    r->seen[at].said_us = now_us;
    r->seen[at].count = 0;
    r->is_said = true;
    return times;
}

bool repeat_over(repeat_t *r)
{
    bool was_said = r->is_said;
    r->is_said = false;
    return was_said;
}

uint32_t repeat_key(const char *text)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash;
}

const char *repeat_text(uint64_t times, char scratch[REPEAT_TEXT])
{
    scratch[0] = 0;
    if (times > 1)
        snprintf(scratch, REPEAT_TEXT, " (%llu times since it was last reported)", (unsigned long long)times);
    return scratch;
}
