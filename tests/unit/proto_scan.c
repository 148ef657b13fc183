/* SPDX-License-Identifier: Apache-2.0 */
/* What must be refused before anything is decoded, and costs no memory: the list of hazards of msgpack
 * decoders. */
#include "core/limits.h"
#include "core/utf8.h"
#include "proto/scan.h"

#include <criterion/criterion.h>

static const scan_limits_t LIMITS = {LIMIT_FRAME_DEPTH, LIMIT_FRAME_NODES, LIMIT_MAP_KEYS};

static int scan(const void *data, size_t bytes, heddle_error_t *error)
{
    return scan_check(bytes_of(data, bytes), &LIMITS, "frame", error);
}

typedef struct {
    const char *bytes;
    size_t n;
    int code;
    const char *why;
} case_t;
#define WHOLE(bytes)                                                                                         \
    {                                                                                                        \
        bytes, sizeof bytes - 1, HEDDLE_OK, ""                                                               \
    }
#define BAD(bytes, code, why)                                                                                \
    {                                                                                                        \
        bytes, sizeof bytes - 1, HEDDLE_ERR_##code, why                                                      \
    }

static void check_cases(const case_t *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        heddle_error_t e = {0};
        cr_assert_eq(scan(cases[i].bytes, cases[i].n, &e), cases[i].code, "case %zu: %s", i, e.message);
        if (cases[i].code == HEDDLE_OK) continue;
        cr_assert(strstr(e.message, cases[i].why), "case %zu: %s", i, e.message);
        cr_assert(strstr(e.message, "frame") && e.found[0]);
    }
}
#define CHECK(cases) check_cases(cases, sizeof cases / sizeof *cases)

Test(scan, whole_objects)
{
    static const case_t GOOD[] = {
        WHOLE("\xc0"),
        WHOLE("\xc2"),
        WHOLE("\xc3"),
        WHOLE("\x7f"),
        WHOLE("\xe0"),
        WHOLE("\xcc\xff"),
        WHOLE("\xcd\xff\xff"),
        WHOLE("\xce\1\2\3\4"),
        WHOLE("\xcf\1\2\3\4\5\6\7\x08"),
        WHOLE("\xd0\x80"),
        WHOLE("\xd1\x80\0"),
        WHOLE("\xd2\x80\0\0\0"),
        WHOLE("\xd3\x80\0\0\0\0\0\0\0"),
        WHOLE("\xca\0\0\0\0"),
        WHOLE("\xcb\0\0\0\0\0\0\0\0"),
        WHOLE("\xa0"),
        WHOLE("\xa2xy"),
        WHOLE("\xd9\x01x"),
        WHOLE("\xda\0\x01x"),
        WHOLE("\xdb\0\0\0\x01x"),
        WHOLE("\xc4\x01\xff"),
        WHOLE("\xc5\0\x01\xff"),
        WHOLE("\xc6\0\0\0\x01\xff"),
        WHOLE("\x90"),
        WHOLE("\x92\x01\x90"),
        WHOLE("\xdc\0\x01\xc0"),
        WHOLE("\xdd\0\0\0\x01\xc0"),
        WHOLE("\x80"),
        WHOLE("\x82\xa1x\x01\xa1y\x81\xa1x\xc0"),
        WHOLE("\xde\0\x01\xa0\xc0"),
        WHOLE("\xdf\0\0\0\x01\xa0\xc0"),
    };
    CHECK(GOOD);
}

Test(scan, bombs)
{
    static const case_t BOMBS[] = {
        BAD("\xdd\x08\0\0\0", PROTOCOL, "more elements"), /* 4.3 GB from five bytes */
        BAD("\xdd\xff\xff\xff\xff", PROTOCOL, "more elements"),
        BAD("\xdf\xff\xff\xff\xff", LIMIT, "too many keys"),
        BAD("\xdf\0\0\0\x02\xa1x\xc0", PROTOCOL, "more elements"),
        BAD("\x93\x01\x02", PROTOCOL, "more elements"),
        BAD("\x93\x01\x93\x01\x02\x03", PROTOCOL, "more elements"), /* each fits alone, both do not */
        BAD("\xc6\xff\xff\xff\xff", PROTOCOL, "longer than what is left"),
        BAD("\xdb\xff\xff\xff\xff"
            "abc",
            PROTOCOL, "longer than what is left"),
        BAD("\xa2x", PROTOCOL, "longer than what is left"),
    };
    CHECK(BOMBS);
}

Test(scan, nested_array_bombs)
{
    /* 31 times "array of 2^27": 65 GB of a decoder that believes it. */
    uint8_t nested[31 * 5];
    for (size_t i = 0; i < 31; i++) memcpy(nested + 5 * i, "\xdd\x08\0\0\0", 5);
    heddle_error_t e;
    cr_assert_eq(scan(nested, sizeof nested, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert(strstr(e.message, "byte 0"), "%s", e.message);
}

Test(scan, depth)
{
    static uint8_t arrays[1 << 20];
    memset(arrays, 0x91, sizeof arrays);
    heddle_error_t e;
    arrays[LIMIT_FRAME_DEPTH] = 0xc0;
    cr_assert_eq(scan(arrays, LIMIT_FRAME_DEPTH + 1, &e), HEDDLE_OK, "%s", e.message);
    arrays[LIMIT_FRAME_DEPTH] = 0x90; /* an empty container is a level too */
    cr_assert_eq(scan(arrays, LIMIT_FRAME_DEPTH + 1, &e), HEDDLE_ERR_LIMIT);
    arrays[LIMIT_FRAME_DEPTH] = 0x91;
    cr_assert_eq(scan(arrays, sizeof arrays, &e), HEDDLE_ERR_LIMIT);
    cr_assert(strstr(e.message, "in each other"), "%s", e.message);
}

Test(scan, number_of_objects)
{
    static uint8_t nils[3 + LIMIT_FRAME_NODES];
    memset(nils, 0xc0, sizeof nils);
    memcpy(nils, "\xdc\xff\xff", 3);
    heddle_error_t e;
    cr_assert_eq(scan(nils, 3 + 0xffff, &e), HEDDLE_OK, "%s", e.message); /* with the array: the limit */
    static uint8_t more[5 + LIMIT_FRAME_NODES];
    memset(more, 0xc0, sizeof more);
    memcpy(more, "\xdd\0\x01\0\0", 5);
    cr_assert_eq(scan(more, sizeof more, &e), HEDDLE_ERR_LIMIT);
    cr_assert(strstr(e.message, "too many objects"), "%s", e.message);
}

/* {"00": nil, "01": nil, ...} */
static buf_t map_of(uint32_t count)
{
    buf_t b = {0};
    buf_add(&b, (uint8_t[]){0xde, 0, (uint8_t)count}, 3);
    for (uint32_t i = 0; i < count; i++) buf_printf(&b, "\xa2%02u\xc0", i);
    return b;
}

Test(scan, number_of_keys)
{
    heddle_error_t e;
    buf_t most = map_of(LIMIT_MAP_KEYS), over = map_of(LIMIT_MAP_KEYS + 1);
    cr_assert_eq(scan(most.data, most.bytes, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(scan(over.data, over.bytes, &e), HEDDLE_ERR_LIMIT);
    static const scan_limits_t ANY_KEYS = {4, 1000, 0};
    cr_assert_eq(scan_check(buf_view(&over), &ANY_KEYS, "report", &e), HEDDLE_OK, "%s", e.message);
    buf_fini(&most);
    buf_fini(&over);
}

Test(scan, keys)
{
    static const case_t KEYS[] = {
        BAD("\x82\xa1x\x01\xa1x\x02", PROTOCOL, "twice"),
        BAD("\x83\xa1x\x91\x01\xa1y\x81\xa1x\xc0\xa1x\x02", PROTOCOL, "twice"), /* containers between them */
        BAD("\x82\xa1x\x01\xd9\x01x\x02", PROTOCOL, "twice"), /* another header, the same key */
        BAD("\x82\xa0\x01\xa0\x02", PROTOCOL, "twice"),
        BAD("\x81\x01\x01", PROTOCOL, "not a text"),
        BAD("\x81\xc4\x01x\x01", PROTOCOL, "not a text"),
        BAD("\x81\x90\x01", PROTOCOL, "not a text"),
        WHOLE("\x82\xa1x\xa1x\xa1y\xa1x"), /* values may be equal */
    };
    CHECK(KEYS);
}

Test(scan, types_that_are_not_used)
{
    static const case_t TYPES[] = {
        BAD("\xc1", PROTOCOL, "reserved"),
        BAD("\x91\xc1", PROTOCOL, "reserved"),
        BAD("\xc7\x01\x05x", PROTOCOL, "ext"),
        BAD("\xc8\0\x01\x05x", PROTOCOL, "ext"),
        BAD("\xc9\0\0\0\x01\x05x", PROTOCOL, "ext"),
        BAD("\xd4\x05x", PROTOCOL, "ext"),
        BAD("\xd5\x05xx", PROTOCOL, "ext"),
        BAD("\xd6\xff\0\0\0\0", PROTOCOL, "ext"),
        BAD("\xd7\xff\0\0\0\0\0\0\0\0", PROTOCOL, "ext"),
        BAD("\xd8\x05"
            "0123456789abcdef",
            PROTOCOL, "ext"),
    };
    CHECK(TYPES);
}

Test(scan, ends)
{
    static const case_t ENDS[] = {
        BAD("", PROTOCOL, "cut off"),
        BAD("\xcd\x01", PROTOCOL, "cut off"),
        BAD("\xdd\0\0", PROTOCOL, "cut off"),
        BAD("\xd9", PROTOCOL, "cut off"),
        BAD("\xc0\xc0", PROTOCOL, "follow the end"),
        BAD("\x90\x90", PROTOCOL, "follow the end"),
        BAD("\xa1xy", PROTOCOL, "follow the end"),
    };
    CHECK(ENDS);
}

Test(scan, texts_are_utf8)
{
    static const case_t TEXTS[] = {
        BAD("\xa1\xff", PROTOCOL, "not UTF-8"),
        BAD("\x81\xa1\x80\x01", PROTOCOL, "not UTF-8"),
        BAD("\x91\xa2\xc3x", PROTOCOL, "not UTF-8"),
        WHOLE("\xa2\xc3\xa9"),
        WHOLE("\xc4\x01\xff"),
    };
    CHECK(TEXTS);
}

/* Unicode 15 table 3-7, each row's corners and what lies beyond them. */
Test(utf8, corners)
{
    static const char *const GOOD[] = {
        "",
        "a",
        "\x7f",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xec\xbf\xbf",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xef\xbf\xbf",
        "\xf0\x90\x80\x80",
        "\xf3\xbf\xbf\xbf",
        "\xf4\x8f\xbf\xbf",
    };
    static const char *const BAD[] = {
        "\x80",
        "\xbf",
        "\xc0\xaf",
        "\xc1\xbf",
        "\xc2",
        "\xc2\x7f",
        "\xc2\xc0",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xe1\x80",
        "\xe1\x80\x7f",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xf1\x80\x80",
        "\xf1\x80\x80\xc0",
        "\xf8\x88\x80\x80\x80",
        "\xfe",
        "\xff",
    };
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++)
        cr_assert(utf8_is_valid(GOOD[i], strlen(GOOD[i])), "good %zu", i);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        cr_assert_not(utf8_is_valid(BAD[i], strlen(BAD[i])), "bad %zu", i);
    cr_assert(utf8_is_valid("\0", 1));
    cr_assert_eq(utf8_prefix("ab\xff"
                             "c",
                             4),
                 2);
}

/* Eight bytes are looked at together where they are ASCII. */
Test(utf8, the_first_bad_byte_is_found_wherever_it_is)
{
    for (size_t at = 0; at < 20; at++) {
        char text[] = "abcdefgh\0ijklmnopqrs", good[] = "abcdefgh\0ijklmnopqr\xc3\xa9stuvwxyz";
        text[at] = (char)0x80;
        cr_assert_eq(utf8_prefix(text, 20), at);
        cr_assert_eq(utf8_prefix(good + at, sizeof good - 1 - at), sizeof good - 1 - at);
        good[sizeof good - 2] = (char)0xff;
        cr_assert_eq(utf8_prefix(good + at, sizeof good - 1 - at), sizeof good - 2 - at);
    }
}

Test(utf8, cleaning_keeps_what_is_good)
{
    buf_t b = {0};
    utf8_add_clean(&b, "a\xff\xc3\xa9\xed\xa0\x80z\xc3", 9);
    cr_assert_str_eq(buf_text(&b), "a?\xc3\xa9???z?");
    cr_assert_eq(b.bytes, 9);
    buf_fini(&b);
}

/* A tree lies on the stack of its reader as far as it fits. */
Test(scan, a_small_tree_takes_no_memory_of_the_heap)
{
    enum { MANY = 1000 };
    uint8_t bytes[3 + MANY] = {0xdc, MANY >> 8, MANY & 255};
    scan_tree_t tree;
    for (int i = 0; i < MANY; i++) bytes[3 + i] = (uint8_t)(i & 127);
    cr_assert_eq(scan_decode(bytes_of("\x92\x01\x81\xa1k\xa1v", 7), &LIMITS, "frame", &tree, NULL),
                 HEDDLE_OK);
    const msgpack_object *item = tree.root.via.array.ptr;
    cr_assert(!tree.zone.chunk_list.head && (const char *)item == tree.first);
    cr_assert(tree.root.via.array.size == 2 && item[1].via.map.ptr[0].val.via.str.ptr[0] == 'v');
    scan_end(&tree);
    cr_assert_eq(scan_decode(bytes_of(bytes, sizeof bytes), &LIMITS, "frame", &tree, NULL), HEDDLE_OK);
    cr_assert_not_null(tree.zone.chunk_list.head);
    for (int i = 0; i < MANY; i++) cr_assert_eq(tree.root.via.array.ptr[i].via.u64, (uint64_t)(i & 127));
    scan_end(&tree);
    scan_end(&tree);
    cr_assert_neq(scan_decode(bytes_of("\xc1", 1), &LIMITS, "frame", &tree, NULL), HEDDLE_OK);
    scan_end(&tree);
}
