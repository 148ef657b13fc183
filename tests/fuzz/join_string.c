/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 which | text, or the bytes of one without its check |: join strings.  What is read has one form: written
 * again it is the same text, but for what follows its first line.  Of bytes the check is made here, because no
 * fuzzer guesses it. */
#include "core/digest.h"
#include "core/errors.h"
#include "tests/fuzz/fuzz.h"
#include "wire/join_string.h"

#include <string.h>

/* Bytes and their check, in base64url. */
static char *checked_text(const uint8_t *raw, size_t bytes)
{
    static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    digest_t check = digest_blake2b(raw, bytes);
    char *text = malloc(sizeof JOIN_STRING_PREFIX + (bytes + 4) * 2), *at = text;
    MUST(text);
    strcpy(text, JOIN_STRING_PREFIX);
    at += strlen(text);
    uint32_t bits = 0;
    int count = 0;
    for (size_t i = 0; i < bytes + 4; i++) {
        bits = bits << 8 | (i < bytes ? raw[i] : check.b[i - bytes]);
        for (count += 8; count >= 6; count -= 6) *at++ = ALPHABET[bits >> (count - 6) & 63];
    }
    if (count) *at++ = ALPHABET[bits << (6 - count) & 63];
    *at = 0;
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    bool is_text = input_byte(&in) % 2 == 0;
    char *text = is_text ? input_text(&in, in.left) : checked_text(in.at, in.left), again[JOIN_STRING_TEXT];
    join_string_t string;
    heddle_error_t error;
    int rc = join_string_parse(text, &string, &error);
    if (rc) MUST(rc == HEDDLE_ERR_USAGE && error.code == rc && error.hint[0]);
    else {
        MUST(key_is_valid(string.broker_key) && key_is_valid(string.pair.public_key));
        text[strcspn(text, "\r\n")] = 0;
        MUST(join_string_write(&string, again, &error) == HEDDLE_OK && !strcmp(again, text));
    }
    free(text);
    return 0;
}
