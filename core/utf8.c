/* SPDX-License-Identifier: Apache-2.0 */
#include "core/utf8.h"

#include <stdint.h>
#include <string.h>

/* Length of the sequence at `at`, 0 when it is malformed or cut.  The second byte's range tells overlong forms,
 * surrogates and code points past the last one apart (Unicode, table 3-7). */
static size_t sequence_bytes(const uint8_t *at, size_t left)
{
    uint8_t first = at[0], low = 0x80, high = 0xbf;
    size_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first < 0xc2 || first > 0xf4 || left < bytes) return 0;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
    if (at[1] < low || at[1] > high) return 0;
    for (size_t i = 2; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    return bytes;
}

bool utf8_valid(const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes) {
        uint64_t word;
        if (bytes >= sizeof word && (memcpy(&word, at, sizeof word), !(word & 0x8080808080808080u))) {
            at += sizeof word;
            bytes -= sizeof word;
            continue;
        }
        size_t n = *at < 0x80 ? 1 : sequence_bytes(at, bytes);
        if (n == 0) return false;
        at += n;
        bytes -= n;
    }
    return true;
}
