/* SPDX-License-Identifier: Apache-2.0 */
/* One character at a time, by its first byte; ASCII eight bytes at a time. */
#include "core/utf8.h"

#include <string.h>

/* Bytes of the character at `p`, 0 when it is none.  Unicode 15, table 3-7: the second byte's range varies.
 */
static size_t character(const uint8_t *p, size_t left)
{
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    size_t n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (left < n) return 0;
    uint8_t low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high) return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return n;
}

/* Names and configs are ASCII nearly always, and long: eight such bytes are one step. */
static size_t ascii(const uint8_t *p, size_t bytes)
{
    size_t at = 0;
    for (uint64_t word; bytes - at >= sizeof word; at += sizeof word) {
        memcpy(&word, p + at, sizeof word);
        if (word & 0x8080808080808080u) break;
    }
    return at;
}

/* It gives the place of the first bad byte, which serves checks, shortening and cleaning alike. */
size_t utf8_prefix(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t at = ascii(p, bytes);
    for (size_t n; at < bytes && (n = character(p + at, bytes - at)) > 0;) {
        at += n;
        if (n > 1) at += ascii(p + at, bytes - at);
    }
    return at;
}

/* One byte for each bad one: the length stays within a limit that was checked before. */
void utf8_add_clean(buf_t *out, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (size_t at = 0; at < bytes;) {
        size_t n = utf8_prefix(p + at, bytes - at);
        buf_add(out, p + at, n);
        at += n;
        if (at < bytes) buf_add(out, "?", 1), at++;
    }
}

json_t *utf8_json(const char *text)
{
    buf_t clean = {0};
    utf8_add_clean(&clean, text, strlen(text));
    const char *whole = buf_text(&clean);
    json_t *value = clean.failed ? NULL : json_string_nocheck(whole);
    buf_fini(&clean);
    return value;
}

json_t *utf8_json_or_null(const char *text) { return text && *text ? utf8_json(text) : json_null(); }
