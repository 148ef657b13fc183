/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/brokers.h"

#include "core/errors.h"
#include "core/limits.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void brokers_write(const brokers_row_t *row, buf_t *out)
{
    json_t *object = json_pack("{s:s, s:s, s:s, s:I, s:b, s:I}", "endpoint", row->endpoint, "heddle",
                               row->release, "key", row->key, "pid", (json_int_t)row->pid, "following",
                               (int)row->is_following, "behind", (json_int_t)row->behind);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    if (text) buf_add_text(out, text);
    else out->failed = true;
    free(text);
    json_decref(object);
}

static uint64_t take_number(const json_t *object, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(object, name));
    return n > 0 ? (uint64_t)n : 0;
}

bool brokers_add(brokers_t *to, bytes_t row)
{
    json_t *object =
        row.bytes && row.bytes <= BROKERS_ROW_BYTES ? json_loadb(row.data, row.bytes, 0, NULL) : NULL;
    const char *endpoint = json_string_value(json_object_get(object, "endpoint")),
               *release = json_string_value(json_object_get(object, "heddle")),
               *key = json_string_value(json_object_get(object, "key"));
    bool is_good = endpoint && *endpoint && to->count < BROKERS_MAX;
    if (is_good) {
        brokers_row_t new = {.pid = take_number(object, "pid"),
                             .is_following = json_is_true(json_object_get(object, "following")),
                             .behind = take_number(object, "behind")};
        error_text(new.endpoint, sizeof new.endpoint, endpoint);
        error_text(new.release, sizeof new.release, release ? release : "");
        if (key && strlen(key) < sizeof new.key) error_text(new.key, sizeof new.key, key);
        size_t at = to->count++;
        for (; at && strcmp(to->rows[at - 1].endpoint, new.endpoint) > 0; at--)
            to->rows[at] = to->rows[at - 1];
        to->rows[at] = new;
    }
    json_decref(object);
    return is_good;
}

uint32_t brokers_tell(const brokers_t *b, msg_broker_t to[LIMIT_BROKERS])
{
    uint32_t count = 0;
    if (!b || !b->seen_us) return 0;
    to[count++] = (msg_broker_t){b->own.endpoint, b->own.key};
    for (size_t i = 0; i < b->count; i++) to[count++] = (msg_broker_t){b->rows[i].endpoint, b->rows[i].key};
    return count;
}

/* FNV-1a over the texts with their ends. */
uint64_t brokers_mark(const brokers_t *b)
{
    msg_broker_t rows[LIMIT_BROKERS];
    uint32_t count = brokers_tell(b, rows);
    uint64_t mark = 0xcbf29ce484222325ull;
    for (uint32_t i = 0; i < 2 * count; i++) {
        const char *text = i % 2 ? rows[i / 2].key : rows[i / 2].endpoint;
        for (const char *at = text; at == text || at[-1]; at++)
            mark = (mark ^ (uint8_t)*at) * 0x100000001b3ull;
    }
    return count ? mark : 0;
}
