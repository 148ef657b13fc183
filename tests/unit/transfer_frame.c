/* SPDX-License-Identifier: Apache-2.0 */
/* The seven frames: bytes as the protocol's page has them, and every way to be out of shape. */
#include "transfer/frame.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <heddle/error.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TOKEN 30064771074u

static frame_t sample(frame_kind_t kind)
{
    frame_t f = {.kind = kind,
                 .line = kind == FRAME_HI || kind == FRAME_ASK || kind == FRAME_UNASK ? 11 : 22};
    switch (kind) {
    case FRAME_HI:
        f.hi.token = TOKEN;
        f.hi.address = bytes_of("abc", 3);
        f.count = 3;
        break;
    case FRAME_ASK:
        for (int i = 0; i < 16; i++) f.ask.key.b[i] = (uint8_t)i;
        f.ask.ranges[0] = (frame_range_t){65536, 0, 65536};
        f.ask.ranges[1] = (frame_range_t){131073, 65536, 4096};
        f.count = 2;
        break;
    case FRAME_UNASK:
        f.unask.asks[0] = 131073;
        f.count = 1;
        break;
    case FRAME_DATA:
        f.data.ask = 65536;
        f.data.bytes = 65536;
        break;
    case FRAME_BEAT:
    case FRAME_BYE: break;
    case FRAME_REFUSED:
        f.refused.rows[0] = (frame_refusal_t){65536, HEDDLE_ERR_NOT_FOUND};
        f.refused.rows[1] = (frame_refusal_t){131073, HEDDLE_ERR_AGAIN};
        f.count = 2;
        break;
    }
    return f;
}

static const char *const NAMES[] = {NULL, "HI", "ASK", "UNASK", "DATA", "BEAT", "REFUSED", "BYE"};

static char *load_doc(void)
{
    char path[600], *text = calloc(1, 1 << 20);
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/docs/protocol.md", root ? root : ".");
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    cr_assert_gt(fread(text, 1, (1 << 20) - 1, f), 0);
    fclose(f);
    return text;
}

/* Bytes of the indented lines under "### NAME": pairs of hex digits up to the first word that is none. */
static size_t bytes_in_doc(const char *doc, const char *name, uint8_t *ret_bytes, size_t cap)
{
    char heading[40];
    snprintf(heading, sizeof heading, "\n### %s\n", name);
    const char *at = strstr(doc, heading);
    cr_assert_not_null(at, "no heading %s", name);
    const char *end = strstr(at + 5, "\n### ");
    size_t n = 0;
    for (at = strstr(at, "\n    "); at && (!end || at < end); at = strstr(at + 1, "\n    ")) {
        unsigned byte;
        for (const char *p = at + 5; isxdigit((unsigned char)p[0]) && isxdigit((unsigned char)p[1]) &&
                                     (p[2] == ' ' || p[2] == '\n');) {
            cr_assert_eq(sscanf(p, "%2x", &byte), 1);
            cr_assert_lt(n, cap);
            ret_bytes[n++] = (uint8_t)byte;
            p += 2;
            size_t blanks = strspn(p, " ");
            if (blanks > 2) break;
            p += blanks;
        }
    }
    return n;
}

Test(frame, bytes_are_those_of_the_page)
{
    char *doc = load_doc();
    for (int kind = FRAME_HI; kind <= FRAME_BYE; kind++) {
        uint8_t want[FRAME_MAX], got[FRAME_MAX];
        frame_t f = sample((frame_kind_t)kind);
        size_t n = frame_encode(&f, got);
        cr_assert_eq(bytes_in_doc(doc, NAMES[kind], want, sizeof want), n, "%s", NAMES[kind]);
        cr_assert_eq(memcmp(want, got, n), 0, "%s", NAMES[kind]);
    }
    free(doc);
}

/* ---- wire version 1 ---- */

static size_t put_hex(char *out, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) sprintf(out + 2 * i, "%02x", bytes[i]);
    return 2 * count;
}

/* Each field by its name, as tests/golden/frames-v1.txt has them. */
static void put_fields(const frame_t *f, char *out)
{
    char *at = out + sprintf(out, "line=%" PRIu64, f->line);
    switch (f->kind) {
    case FRAME_HI:
        at += sprintf(at, " token=%" PRIu64 " answer=%" PRIu64 " address=", f->hi.token, f->hi.answer);
        put_hex(at, f->hi.address.data, f->hi.address.bytes);
        break;
    case FRAME_ASK:
        at += sprintf(at, " key=");
        at += put_hex(at, f->ask.key.b, sizeof f->ask.key.b);
        for (const frame_range_t *r = f->ask.ranges; r < f->ask.ranges + f->count; r++)
            at += sprintf(at, " ask=%" PRIu64 " offset=%" PRIu64 " bytes=%u", r->ask, r->offset, r->bytes);
        break;
    case FRAME_UNASK:
        for (uint32_t i = 0; i < f->count; i++) at += sprintf(at, " ask=%" PRIu64, f->unask.asks[i]);
        break;
    case FRAME_DATA:
        sprintf(at, " ask=%" PRIu64 " offset=%" PRIu64 " bytes=%u", f->data.ask, f->data.offset,
                f->data.bytes);
        break;
    case FRAME_REFUSED:
        for (const frame_refusal_t *r = f->refused.rows; r < f->refused.rows + f->count; r++)
            at += sprintf(at, " ask=%" PRIu64 " reason=%s", r->ask, heddle_err_name(r->err));
        break;
    case FRAME_BEAT:
    case FRAME_BYE: break;
    }
}

/* What processes of then say is understood, and they understand what we say: whatever becomes of page and code together. */
Test(frame, those_of_wire_version_1_are_what_they_were)
{
    char path[600], format[32], name[16], hex[2 * FRAME_SMALL_MAX + 1], want[2048], got[2048];
    const char *root = getenv("HEDDLE_SOURCE_DIR");
    unsigned kinds = 0;
    snprintf(path, sizeof path, "%s/tests/golden/frames-v1.txt", root ? root : ".");
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    snprintf(format, sizeof format, "%%15s %%%zus %%2047[^\n]", sizeof hex - 1);
    while (fscanf(file, format, name, hex, want) == 3) {
        uint8_t bytes[FRAME_SMALL_MAX], again[FRAME_MAX];
        size_t count = strlen(hex) / 2;
        frame_t f;
        for (size_t i = 0; i < count; i++) cr_assert_eq(sscanf(hex + 2 * i, "%2hhx", &bytes[i]), 1);
        cr_assert(frame_decode(bytes_of(bytes, count), &f), "%s", name);
        cr_assert_str_eq(name, NAMES[f.kind]);
        put_fields(&f, got);
        cr_assert_str_eq(got, want, "%s", name);
        cr_assert_eq(frame_encode(&f, again), count, "%s", name);
        cr_assert_eq(memcmp(bytes, again, count), 0, "%s", name);
        kinds |= 1u << f.kind;
    }
    cr_assert(feof(file));
    fclose(file);
    cr_assert_eq(kinds, (2u << FRAME_BYE) - 2, "each kind is there");
}

/* No decoder of ours: positions written by hand. */
Test(frame, an_ask_by_hand)
{
    uint8_t b[FRAME_MAX];
    frame_t f = sample(FRAME_ASK);
    cr_assert_eq(frame_encode(&f, b), 16 + 16 + 2 * 20);
    cr_assert(b[0] == 2 && b[1] == 1 && b[2] == 2 && b[3] == 0 && b[8] == 11);
    cr_assert(b[16] == 0 && b[31] == 15);
    cr_assert(b[32 + 2] == 1 && b[32 + 16 + 2] == 1);
    cr_assert(b[52] == 1 && b[54] == 2 && b[52 + 8 + 2] == 1 && b[52 + 16 + 1] == 0x10);
}

static void assert_same(const frame_t *a, const frame_t *b)
{
    uint8_t x[FRAME_MAX], y[FRAME_MAX];
    size_t n = frame_encode(a, x);
    cr_assert_eq(frame_encode(b, y), n);
    cr_assert_eq(memcmp(x, y, n), 0);
}

Test(frame, what_is_encoded_is_decoded)
{
    for (int kind = FRAME_HI; kind <= FRAME_BYE; kind++) {
        uint8_t b[FRAME_MAX];
        frame_t f = sample((frame_kind_t)kind), g;
        size_t n = frame_encode(&f, b);
        cr_assert(frame_decode(bytes_of(b, n), &g), "%s", NAMES[kind]);
        cr_assert(g.kind == f.kind && g.line == f.line && g.count == f.count);
        assert_same(&f, &g);
    }
    uint8_t b[FRAME_MAX];
    frame_t f = sample(FRAME_REFUSED), g;
    frame_decode(bytes_of(b, frame_encode(&f, b)), &g);
    cr_assert_eq(g.refused.rows[1].err, HEDDLE_ERR_AGAIN);
    cr_assert_eq(g.refused.rows[1].ask, 131073);
}

Test(frame, the_largest_fit)
{
    static uint8_t b[FRAME_MAX], address[LIMIT_ADDRESS_BYTES];
    frame_t f = {.kind = FRAME_HI, .line = UINT64_MAX}, g;
    f.hi.token = UINT64_MAX;
    f.hi.address = bytes_of(address, sizeof address);
    cr_assert_eq(frame_encode(&f, b), FRAME_MAX);
    cr_assert(frame_decode(bytes_of(b, FRAME_MAX), &g));
    f = (frame_t){.kind = FRAME_ASK, .line = 1, .count = LIMIT_ASK_RANGES};
    cr_assert_eq(frame_encode(&f, b), FRAME_SMALL_MAX);
    cr_assert(frame_decode(bytes_of(b, FRAME_SMALL_MAX), &g));
    cr_assert_lt(FRAME_DATA_BYTES, 64);
}

Test(frame, every_other_length_is_refused)
{
    for (int kind = FRAME_HI; kind <= FRAME_BYE; kind++) {
        frame_t f = sample((frame_kind_t)kind), g;
        uint8_t b[FRAME_MAX + 1] = {0};
        size_t n = frame_encode(&f, b);
        for (size_t k = 0; k <= n + 1; k++) {
            uint8_t *copy = malloc(k ? k : 1); /* an overread is an error of the sanitizer */
            memcpy(copy, b, k);
            cr_assert_eq(frame_decode(bytes_of(copy, k), &g), k == n, "%s, %zu of %zu bytes", NAMES[kind], k,
                         n);
            free(copy);
        }
    }
}

static bool decodes_with(frame_kind_t kind, size_t at, uint8_t value)
{
    uint8_t b[FRAME_MAX];
    frame_t f = sample(kind), g;
    size_t n = frame_encode(&f, b);
    b[at] = value;
    return frame_decode(bytes_of(b, n), &g);
}

Test(frame, each_field_out_of_range_is_refused)
{
    cr_assert(decodes_with(FRAME_BEAT, 0, FRAME_BEAT));
    cr_assert_not(decodes_with(FRAME_BEAT, 0, 0), "kind");
    cr_assert_not(decodes_with(FRAME_BEAT, 0, 8), "kind");
    cr_assert_not(decodes_with(FRAME_BYE, 2, 1), "count");
    cr_assert_not(decodes_with(FRAME_BEAT, 1, 2), "version");
    cr_assert_not(decodes_with(FRAME_BEAT, 2, 1), "count");
    cr_assert_not(decodes_with(FRAME_BEAT, 4, 1), "zero");
    cr_assert_not(decodes_with(FRAME_BEAT, 8, 0), "line 0");
    cr_assert_not(decodes_with(FRAME_DATA, 2, 1), "count");
    cr_assert_not(decodes_with(FRAME_REFUSED, 16 + 8, 0), "reason");
    cr_assert_not(decodes_with(FRAME_REFUSED, 16 + 8, 4), "reason");
    frame_t f = sample(FRAME_HI), g;
    uint8_t b[FRAME_MAX + 64];
    f.hi.token = 0;
    cr_assert_not(frame_decode(bytes_of(b, frame_encode(&f, b)), &g), "token 0");
    for (uint32_t rows = 0; rows <= 20; rows += 17) { /* 0 and 17 rows, with the length that would fit */
        memset(b, 0, sizeof b);
        b[0] = FRAME_UNASK, b[1] = 1, b[2] = (uint8_t)rows, b[8] = 1;
        cr_assert_not(frame_decode(bytes_of(b, FRAME_UNASK_BYTES(rows)), &g), "%u rows", rows);
    }
    static uint8_t big[FRAME_HI_BYTES + LIMIT_ADDRESS_BYTES + 1];
    big[0] = FRAME_HI, big[1] = 1, big[8] = 1, big[16] = 1;
    le16_put(big + 2, LIMIT_ADDRESS_BYTES + 1);
    cr_assert_not(frame_decode(bytes_of(big, sizeof big), &g), "address too long");
}

Test(frame, random_bytes_decode_to_what_they_say_or_not_at_all)
{
    unsigned seed = getenv("HEDDLE_SEED") ? (unsigned)atoi(getenv("HEDDLE_SEED")) : 20261121u;
    printf("seed %u\n", seed);
    srand(seed);
    int decoded = 0;
    for (int round = 0; round < 200000; round++) {
        frame_t f = sample((frame_kind_t)(1 + rand() % FRAME_BYE)), g;
        uint8_t b[FRAME_MAX], again[FRAME_MAX];
        size_t n = frame_encode(&f, b);
        for (int flips = rand() % 4; flips >= 0; flips--) b[(size_t)rand() % n] = (uint8_t)rand();
        if (rand() % 8 == 0) n = (size_t)rand() % (n + 1);
        if (!frame_decode(bytes_of(b, n), &g)) continue;
        decoded++;
        cr_assert_eq(frame_encode(&g, again), n);
        cr_assert_eq(memcmp(b, again, n), 0, "two encodings of one frame");
    }
    cr_assert_gt(decoded, 1000);
}
