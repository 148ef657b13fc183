/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/refused.h"

#include "core/bytes.h"

#include <string.h>

bool refused_is_listed(const refused_key_t *row, uint64_t now_us)
{
    return row->heard_us && now_us < row->heard_us + REFUSED_US;
}

const refused_key_t *refused_note(refused_t *r, const char *public_key, instant_t now)
{
    /* The row of that key, else the one that was refused longest ago. */
    refused_key_t *row = NULL, *oldest = r->rows;
    for (refused_key_t *one = r->rows; !row && one < r->rows + REFUSED_MAX; one++) {
        if (one->heard_us && !strcmp(one->public_key, public_key)) row = one;
        else if (one->heard_us < oldest->heard_us) oldest = one;
    }
    if (!row) {
        row = oldest;
        *row = (refused_key_t){0};
        text_printf(row->public_key, sizeof row->public_key, "%s", public_key);
    }
    if (!refused_is_listed(row, now.us)) row->count = 0;
    row->count++;
    row->heard_us = now.us ? now.us : 1;
    row->heard_ms = now.wall_ms;
    if (row->said_us && now.us - row->said_us < REFUSED_US) return NULL;
    if (r->said_us && now.us - r->said_us < REFUSED_PAUSE_US) return NULL;
    r->said_us = row->said_us = row->heard_us;
    return row;
}

void refused_text(const refused_key_t *row, char ret_text[REFUSED_TEXT])
{
    text_printf(ret_text, REFUSED_TEXT,
                "the key %s was refused %llu time%s: it is not in the table of keys, or was revoked; `heddle "
                "keys add '%s' --role ROLE` admits it",
                row->public_key, (unsigned long long)row->count, row->count == 1 ? "" : "s", row->public_key);
}
