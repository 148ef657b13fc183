/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of ZMTP are counted whatever the pieces that they come in. */
#include "bench/tap.h"

#include <criterion/criterion.h>
#include <string.h>

typedef struct {
    uint8_t at[4096];
    size_t bytes;
} stream_t;

static void add_frame(stream_t *s, uint8_t flags, size_t body)
{
    s->at[s->bytes++] = flags;
    for (int shift = flags & 2 ? 56 : 0; shift >= 0; shift -= 8)
        s->at[s->bytes++] = (uint8_t)((uint64_t)body >> shift);
    memset(s->at + s->bytes, 0xff, body); /* looks like flags to who loses count */
    s->bytes += body;
}

static stream_t conversation(void)
{
    stream_t s = {.bytes = 64}; /* the greeting */
    add_frame(&s, 4, 30);       /* a command: READY */
    add_frame(&s, 0, 10);
    add_frame(&s, 0, 0);
    add_frame(&s, 1, 5);   /* the first of two parts */
    add_frame(&s, 2, 300); /* the second, with a long length */
    add_frame(&s, 6, 260); /* a long command */
    add_frame(&s, 2, 1000);
    return s;
}

Test(tap, counts_messages_in_any_pieces)
{
    stream_t s = conversation();
    for (size_t piece = 1; piece <= s.bytes; piece++) {
        tap_count_t c = {0};
        for (size_t at = 0; at < s.bytes; at += piece)
            tap_count(&c, s.at + at, s.bytes - at < piece ? s.bytes - at : piece);
        cr_assert_eq(c.messages, 4, "pieces of %zu: %zu messages", piece, (size_t)c.messages);
        cr_assert_eq(c.bytes, s.bytes);
    }
}

Test(tap, a_message_counts_when_its_length_is_known)
{
    stream_t s = conversation();
    tap_count_t c = {0};
    tap_count(&c, s.at, 64 + 32 + 1);
    cr_assert_eq(c.messages, 0);
    tap_count(&c, s.at + 64 + 32 + 1, 1);
    cr_assert_eq(c.messages, 1);
}
