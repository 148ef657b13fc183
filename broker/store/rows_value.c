/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/rows_value.h"

/* ---- put ---- */

static void put_number(void *self, uint64_t value)
{
    uint8_t *to = buf_grow(self, 8);
    if (to) le64_put(to, value);
}

static void put_length(buf_t *to, size_t bytes)
{
    uint8_t *length = buf_grow(to, 4);
    if (length) le32_put(length, (uint32_t)bytes);
}

static void put_blob(void *self, bytes_t blob)
{
    put_length(self, blob.bytes);
    if (blob.bytes) buf_add(self, blob.data, blob.bytes);
}

static void put_text(void *self, const char *text)
{
    if (!text) text = "";
    put_length(self, strlen(text));
    buf_add(self, text, strlen(text) + 1);
}

void rows_value_put(buf_t *to, const record_t *r)
{
    static const columns_put_t PUT = {put_number, put_text, put_blob};
    columns_put(r, &PUT, to);
}

/* ---- take ---- */

typedef struct {
    const uint8_t *at;
    size_t left;
    bool is_bad;
} reader_t;

/* NULL: there are not so many any more, or the row ended before. */
static const uint8_t *take(reader_t *r, size_t bytes)
{
    if (r->is_bad || r->left == 0) return NULL;
    if (bytes > r->left) {
        r->is_bad = true;
        return NULL;
    }
    const uint8_t *at = r->at;
    r->at += bytes;
    r->left -= bytes;
    return at;
}

static uint64_t take_number(void *self)
{
    const uint8_t *at = take(self, 8);
    return at ? le64_get(at) : 0;
}

static bytes_t take_blob(void *self)
{
    reader_t *r = self;
    const uint8_t *length = take(r, 4);
    size_t bytes = length ? le32_get(length) : 0;
    const uint8_t *at = bytes ? take(r, bytes) : NULL;
    if (bytes && !at) r->is_bad = true; /* it ends with the length */
    return at ? bytes_of(at, bytes) : bytes_of("", 0);
}

/* A NUL within a text would hide the rest of it. */
static const char *take_text(void *self)
{
    reader_t *r = self;
    const uint8_t *length = take(r, 4);
    if (!length) return "";
    size_t bytes = le32_get(length);
    const uint8_t *at = take(r, bytes + 1);
    if (at && !at[bytes] && !memchr(at, 0, bytes)) return (const char *)at;
    r->is_bad = true;
    return "";
}

bool rows_value_take(bytes_t value, record_t *r)
{
    static const columns_take_t TAKE = {take_number, take_text, take_blob};
    reader_t from = {.at = value.data, .left = value.bytes};
    bool is_good = value.bytes > 0 && columns_take(r, &TAKE, &from);
    return is_good && !from.is_bad && !from.left;
}
