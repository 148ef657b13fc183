/* SPDX-License-Identifier: Apache-2.0 */
/* Layout, manifest, h1: what they give, and what they refuse. */
#include "tests/lib/bytes_equal.h"
#include "core/limits.h"
#include "formats/manifest.h"
#include "formats/tensor.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static const uint64_t ROW[] = {1, 2}, COLUMN[] = {3, 1}, NONE[] = {0, 7}, ONE[] = {1}, PAGE[] = {4096},
                      OVER[] = {4097};

static heddle_tensor_t tensor(const char *name, int dtype, uint32_t ndim, const uint64_t *dims)
{
    return (heddle_tensor_t){.size = sizeof(heddle_tensor_t),
                             .name = name,
                             .dtype = dtype,
                             .ndim = ndim,
                             .dims = dims};
}

/* A filled payload with all that goes with it. */
typedef struct {
    heddle_tensor_t *tensors;
    layout_t layout;
    uint8_t *payload;
    buf_t encoded;
    digest_t h1;
    bytes_t config;
} made_t;

static made_t make(heddle_tensor_t *tensors, uint32_t count)
{
    made_t a = {.tensors = tensors, .config = bytes_of("{\"peft_type\": \"LORA\", \"r\": 1}", 29)};
    heddle_error_t e;
    cr_assert_eq(layout_make(tensors, count, &a.layout, &e), HEDDLE_OK, "%s", e.message);
    a.payload = malloc(a.layout.payload_bytes);
    memset(a.payload, 0xee, a.layout.payload_bytes);
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t b = 0; b < a.layout.sizes[i]; b++)
            a.payload[a.layout.places[i] + b] = (uint8_t)(b * 7 + i);
    layout_zero_padding(&a.layout, a.payload);
    return a;
}

static void build(made_t *a, const char *features)
{
    manifest_input_t in = {a->tensors, &a->layout, a->config, bytes_of("{\"format\":\"pt\"}", 15),
                           "lora",     features,   a->payload};
    cr_assert_eq(manifest_build(&in, &a->encoded, &a->h1), HEDDLE_OK);
    cr_assert_leq(a->encoded.bytes, manifest_bound(&a->layout, a->tensors, a->config.bytes, 15));
}

static void drop(made_t *a)
{
    layout_fini(&a->layout);
    buf_fini(&a->encoded);
    free(a->payload);
}

static heddle_tensor_t EXAMPLE[2];

/* The example of docs/protocol.md. */
static made_t example(void)
{
    EXAMPLE[0] = tensor("q.lora_B.weight", HEDDLE_DTYPE_F16, 2, COLUMN);
    EXAMPLE[1] = tensor("q.lora_A.weight", HEDDLE_DTYPE_F32, 2, ROW);
    made_t a = make(EXAMPLE, 2);
    memcpy(a.payload + a.layout.places[1], "\0\0\x80\x3f\0\0\0\x40", 8);
    memcpy(a.payload + a.layout.places[0], "\0\x38\0\0\0\xbc", 6);
    build(&a, "");
    return a;
}

static heddle_tensor_t ODD[6];

/* A scalar, nothing, a byte, a page, a page and a byte, and half-byte elements; not in order. */
static made_t odd(void)
{
    ODD[0] = tensor("page+1", HEDDLE_DTYPE_U8, 1, OVER);
    ODD[1] = tensor("scalar", HEDDLE_DTYPE_F64, 0, NULL);
    ODD[2] = tensor("page", HEDDLE_DTYPE_BOOL, 1, PAGE);
    ODD[3] = tensor("byte", HEDDLE_DTYPE_I8, 1, ONE);
    ODD[4] = tensor("none", HEDDLE_DTYPE_BF16, 2, NONE);
    ODD[5] = tensor("half", HEDDLE_DTYPE_F4, 2, ROW);
    made_t a = make(ODD, 6);
    build(&a, "bias,dora");
    return a;
}

/* ---- layout */

Test(layout, whole_pages_in_order_of_name)
{
    made_t a = odd();
    static const uint32_t ORDER[] = {3, 5, 4, 2, 0, 1}; /* byte half none page page+1 scalar */
    static const uint64_t PLACES[] = {12288, 20480, 8192, 0, 8192, 4096}, SIZES[] = {4097, 8, 4096, 1, 0, 1};
    cr_assert_arr_eq(a.layout.order, ORDER, sizeof ORDER);
    cr_assert_arr_eq(a.layout.places, PLACES, sizeof PLACES);
    cr_assert_arr_eq(a.layout.sizes, SIZES, sizeof SIZES);
    cr_assert_eq(a.layout.payload_bytes, 24576);
    cr_assert_eq(a.layout.data_bytes, 8203);
    drop(&a);
}

Test(layout, padding_is_zeroed_and_nothing_else)
{
    made_t a = odd(); /* the payload was full of 0xee before */
    uint64_t zeros = 0;
    for (uint64_t i = 0; i < a.layout.payload_bytes; i++) zeros += a.payload[i] == 0;
    for (int i = 0; i < 6; i++)
        for (uint64_t b = 0; b < a.layout.sizes[i]; b++) {
            cr_assert_eq(a.payload[a.layout.places[i] + b], (uint8_t)(b * 7 + (unsigned)i));
            zeros -= a.payload[a.layout.places[i] + b] == 0;
        }
    cr_assert_eq(zeros, a.layout.payload_bytes - a.layout.data_bytes);
    drop(&a);
}

static void refused(const heddle_tensor_t *tensors, uint32_t count, int code, const char *why)
{
    layout_t l;
    heddle_error_t e = {0};
    cr_assert_eq(layout_make(tensors, count, &l, &e), code, "%s: %s", why, e.message);
    cr_assert(strstr(e.message, why), "'%s' in '%s'", why, e.message);
    cr_assert(e.expected[0] && e.found[0] && e.hint[0], "%s", why);
}

Test(layout, refuses_bad_names)
{
    char name[1030];
    memset(name, 'n', sizeof name);
    name[1025] = 0;
    heddle_tensor_t t[2] = {tensor(name, HEDDLE_DTYPE_F32, 1, ONE), tensor("b", HEDDLE_DTYPE_F32, 1, ONE)};
    refused(t, 2, HEDDLE_ERR_LIMIT, "is too long");
    static const struct {
        const char *name, *why;
    } NAMES[] = {{"", "is empty"},
                 {NULL, "is empty"},
                 {"a\xff", "is not UTF-8"},
                 {"\xed\xa0\x80", "is not UTF-8"},
                 {"__metadata__", "is reserved"}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        t[0].name = NAMES[i].name;
        refused(t, 2, HEDDLE_ERR_BAD_ADAPTER, NAMES[i].why);
    }
    t[0].name = "b";
    refused(t, 2, HEDDLE_ERR_BAD_ADAPTER, "occurs twice");
    name[1024] = 0;
    t[0].name = name;
    layout_t l;
    cr_assert_eq(layout_make(t, 2, &l, NULL), HEDDLE_OK);
    layout_fini(&l);
}

Test(layout, refuses_bad_shapes)
{
    static const uint64_t HUGE[] = {1ull << 40, 1ull << 30}, WIDE[] = {(1ull << 40) + 1}, THREE[] = {3},
                          MANY[17] = {0};
    static const uint64_t FULL[] = {1ull << 39}, EMPTY[] = {0, 1ull << 53};
    const struct {
        heddle_tensor_t t;
        int code;
        const char *why;
    } CASES[] = {
        {tensor("a", HEDDLE_DTYPE_F32, 2, HUGE), HEDDLE_ERR_BAD_ADAPTER, "overflows"},
        {tensor("a", HEDDLE_DTYPE_U8, 1, WIDE), HEDDLE_ERR_BAD_ADAPTER, "larger than any payload"},
        {tensor("a", HEDDLE_DTYPE_U8, 2, EMPTY), HEDDLE_ERR_BAD_ADAPTER, "has a dimension that is too large"},
        {tensor("a", HEDDLE_DTYPE_F4, 1, THREE), HEDDLE_ERR_BAD_ADAPTER, "whole bytes"},
        {tensor("a", HEDDLE_DTYPE_F6_E2M3, 1, THREE), HEDDLE_ERR_BAD_ADAPTER, "whole bytes"},
        {tensor("a", HEDDLE_DTYPE_COUNT, 1, ONE), HEDDLE_ERR_BAD_ADAPTER, "unknown dtype"},
        {tensor("a", -1, 1, ONE), HEDDLE_ERR_BAD_ADAPTER, "unknown dtype"},
        {tensor("a", HEDDLE_DTYPE_U8, 17, MANY), HEDDLE_ERR_LIMIT, "too many dimensions"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        refused(&CASES[i].t, 1, CASES[i].code, CASES[i].why);
    heddle_tensor_t three[3];
    for (int i = 0; i < 3; i++)
        three[i] = tensor((const char *[]){"a", "b", "c"}[i], HEDDLE_DTYPE_U8, 1, FULL);
    refused(three, 3, HEDDLE_ERR_LIMIT, "too much memory");
    heddle_tensor_t none = tensor("a", HEDDLE_DTYPE_BF16, 2, NONE);
    refused(&none, 1, HEDDLE_ERR_BAD_ADAPTER, "all tensors are empty");
    refused(&none, 0, HEDDLE_ERR_BAD_ADAPTER, "there is no tensor");
    refused(&none, LIMIT_TENSORS + 1, HEDDLE_ERR_LIMIT, "too many tensors");
}

Test(layout, the_table_must_fit_a_manifest)
{
    enum { COUNT = 80000 };
    heddle_tensor_t *t = calloc(COUNT, sizeof *t);
    char(*names)[901] = calloc(COUNT, sizeof *names);
    for (int i = 0; i < COUNT; i++) {
        memset(names[i], 'x', 890);
        snprintf(names[i] + 890, 11, "%010u", (unsigned)i);
        t[i] = tensor(names[i], HEDDLE_DTYPE_U8, 1, ONE);
    }
    refused(t, COUNT, HEDDLE_ERR_LIMIT, "table of the tensors is too long");
    layout_t l;
    cr_assert_eq(layout_make(t, COUNT / 2, &l, NULL), HEDDLE_OK);
    layout_fini(&l);
    free(t);
    free(names);
}

Test(layout, chunk_sizes)
{
    static const struct {
        uint64_t payload;
        uint32_t chunk;
    } SIZES[] = {{4096, 65536},        {1ull << 26, 65536},           {(1ull << 27) - 4096, 65536},
                 {1ull << 27, 131072}, {(1ull << 28) - 4096, 131072}, {1ull << 28, 262144},
                 {1ull << 40, 262144}};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        cr_assert_eq(manifest_chunk_bytes(SIZES[i].payload), SIZES[i].chunk);
}

/* ---- manifest */

Test(manifest, the_example_of_the_protocol_page)
{
    static const char BYTES[] =
        "\xde\0\x11\xa1v\1\xa4kind\xa4lora\xa8"
        "features\x90\xab"
        "chunk_bytes\xce\0\1\0\0\xad"
        "payload_bytes\xcd\x20\0\xaa"
        "data_bytes\x0e"
        "\xa5"
        "count\2\xa6"
        "config\xc4\x1d{\"peft_type\": \"LORA\", \"r\": 1}\xa8metadata\xc4\x0f{\"format\":\"pt\"}"
        "\xa5names\xc4\x1eq.lora_A.weightq.lora_B.weight\xa9name_ends\xc4\x08\x0f\0\0\0\x1e\0\0\0\xa6"
        "dtypes\xc4\2\x11\x0d\xa5ndims\xc4\2\2\2"
        "\xa4"
        "dims\xc4\x20\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
        "\xa7offsets\xc4\x10\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\xa5sizes\xc4\x10\x08\0\0\0\0\0\0\0\6\0\0\0\0\0"
        "\0\0"
        "\xa6"
        "chunks\xc4\x10\x77\x22\x65\xfe\xa8\x2c\xa9\x1a\xa1\xda\x11\xd8\xb1\xfd\x02\x85";
    made_t a = example();
    char text[HEDDLE_DIGEST_TEXT];
    digest_text(&a.h1, text);
    cr_assert_str_eq(text, "h1:277ae4c4cccdb03b9c7775ed2a667ef9d5c2dfba2dbc9f8044d93da5acd71e5c");
    cr_assert_eq(a.encoded.bytes, sizeof BYTES - 1);
    cr_assert_arr_eq(a.encoded.data, BYTES, sizeof BYTES - 1);
    drop(&a);
}

Test(manifest, round_trip)
{
    made_t a = odd();
    manifest_t m;
    heddle_error_t e;
    cr_assert_eq(manifest_decode(buf_view(&a.encoded), &m, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(m.tensor_count, 6);
    cr_assert_eq(m.chunk_count, 1);
    cr_assert_eq(m.chunk_bytes, 65536);
    cr_assert_eq(m.payload_bytes, a.layout.payload_bytes);
    cr_assert_eq(m.data_bytes, a.layout.data_bytes);
    cr_assert_str_eq(m.kind, "lora");
    cr_assert_str_eq(m.features, "bias,dora");
    cr_assert(bytes_equal(m.config, a.config));
    cr_assert(bytes_equal(m.metadata, bytes_of("{\"format\":\"pt\"}", 15)));
    for (uint32_t i = 0; i < 6; i++) {
        const heddle_tensor_t *t = &ODD[a.layout.order[i]];
        manifest_row_t row;
        manifest_row(&m, i, &row);
        cr_assert(bytes_equal(row.name, bytes_of(t->name, strlen(t->name))));
        cr_assert_eq(row.dtype, t->dtype);
        cr_assert_eq(row.ndim, t->ndim);
        cr_assert_eq(row.offset, a.layout.places[a.layout.order[i]]);
        cr_assert_eq(row.bytes, a.layout.sizes[a.layout.order[i]]);
        for (uint32_t d = 0; d < t->ndim; d++) cr_assert_eq(manifest_dim(&m, i, d), t->dims[d]);
    }
    manifest_fini(&m);
    drop(&a);
}

/* All leaves of a payload, behind a record that has been begun. */
static digest_t finish_h1(h1_t *h1, const made_t *a)
{
    size_t count = a->layout.payload_bytes / 4096;
    uint64_t *leaves = calloc(count, sizeof *leaves);
    digest_leaves(a->payload, a->layout.payload_bytes, leaves);
    h1_add_leaves(h1, leaves, count);
    free(leaves);
    return h1_final(h1);
}

Test(manifest, h1_is_the_same_from_table_and_from_manifest)
{
    made_t a = odd();
    manifest_t m;
    cr_assert_eq(manifest_decode(buf_view(&a.encoded), &m, NULL), HEDDLE_OK);
    h1_t h1;
    manifest_h1_begin(&m, &h1);
    digest_t from_manifest = finish_h1(&h1, &a);
    layout_h1_begin(&a.layout, a.tensors, a.config, &h1);
    digest_t from_table = finish_h1(&h1, &a);
    cr_assert(digest_equal(&from_manifest, &a.h1));
    cr_assert(digest_equal(&from_table, &a.h1));
    manifest_fini(&m);
    drop(&a);
}

/* The example with one part of its content changed: of bytes and configuration, and, from CHANGES_OF_TABLE on, of
 * its table. */
enum { CHANGES_OF_TABLE = 2, CHANGES = 5 };
static made_t changed(int change)
{
    static const uint64_t TURNED[] = {2, 1};
    made_t b = example();
    b.encoded.bytes = 0;
    if (change == 0) b.payload[0] ^= 1;
    if (change == 1) b.config = bytes_of("{\"peft_type\": \"LORA\", \"r\": 2}", 29);
    if (change == 2) EXAMPLE[0].name = "q.lora_C.weight";
    if (change == 3) EXAMPLE[0].dtype = HEDDLE_DTYPE_BF16;
    if (change == 4) EXAMPLE[1].dims = TURNED;
    build(&b, "");
    return b;
}

Test(manifest, h1_follows_every_part_of_the_content)
{
    made_t a = example();
    for (int change = 0; change < CHANGES; change++) {
        made_t b = changed(change);
        cr_assert_not(digest_equal(&a.h1, &b.h1), "change %d", change);
        drop(&b);
    }
    drop(&a);
}

static digest_t table_digest(const made_t *a)
{
    manifest_t m;
    cr_assert_eq(manifest_decode(buf_view(&a->encoded), &m, NULL), HEDDLE_OK);
    digest_t d = manifest_table_digest(&m);
    manifest_fini(&m);
    return d;
}

Test(manifest, the_digest_of_a_table_follows_names_types_and_shapes_alone)
{
    made_t a = example();
    digest_t first = table_digest(&a);
    for (int change = 0; change < CHANGES; change++) {
        made_t b = changed(change);
        digest_t d = table_digest(&b);
        cr_assert_eq(digest_equal(&first, &d), change < CHANGES_OF_TABLE, "change %d", change);
        drop(&b);
    }
    drop(&a);
}

static digest_t table_digest_of(heddle_tensor_t one, heddle_tensor_t other)
{
    heddle_tensor_t both[] = {one, other};
    made_t a = make(both, 2);
    build(&a, "");
    digest_t d = table_digest(&a);
    drop(&a);
    return d;
}

Test(manifest, the_digest_of_a_table_knows_where_one_name_or_shape_ends)
{
    static const uint64_t EXTENTS[] = {2, 1, 3};
    const int type = HEDDLE_DTYPE_U8;
    digest_t first = table_digest_of(tensor("a", type, 2, EXTENTS), tensor("bc", type, 1, EXTENTS + 2));
    digest_t name = table_digest_of(tensor("ab", type, 2, EXTENTS), tensor("c", type, 1, EXTENTS + 2));
    digest_t shape = table_digest_of(tensor("a", type, 1, EXTENTS), tensor("bc", type, 2, EXTENTS + 1));
    cr_assert(!digest_equal(&first, &name) && !digest_equal(&first, &shape));
}

Test(manifest, chunks_of_a_large_region)
{
    static const uint64_t LONG[] = {3 * 65536 + 5000};
    heddle_tensor_t t = tensor("x.lora_A", HEDDLE_DTYPE_U8, 1, LONG);
    made_t a = make(&t, 1);
    build(&a, "");
    manifest_t m;
    cr_assert_eq(manifest_decode(buf_view(&a.encoded), &m, NULL), HEDDLE_OK);
    cr_assert_eq(m.chunk_count, 4);
    for (uint32_t c = 0; c < 4; c++) {
        uint64_t offset, leaves[16];
        uint32_t bytes = manifest_chunk(&m, c, &offset);
        cr_assert_eq(offset, c * 65536ull);
        cr_assert_eq(bytes, c < 3 ? 65536 : 8192);
        digest_leaves(a.payload + offset, bytes, leaves);
        chunk_digest_t now = digest_chunk(leaves, bytes / 4096), said;
        manifest_chunk_digest(&m, c, &said);
        cr_assert_arr_eq(now.b, said.b, sizeof now.b);
    }
    manifest_fini(&m);
    drop(&a);
}

Test(manifest, build_refuses_a_config_that_no_reader_takes)
{
    made_t a = example();
    a.config.bytes = LIMIT_CONFIG_BYTES + 1; /* refused before it is read */
    buf_t out = {0};
    digest_t h1;
    manifest_input_t in = {a.tensors, &a.layout, a.config, {0}, "lora", "", a.payload};
    cr_assert_eq(manifest_build(&in, &out, &h1), HEDDLE_ERR_LIMIT);
    cr_assert_eq(out.bytes, 0);
    drop(&a);
}

/* ---- manifests from outside */

/* The bytes after a key and its header; the example's columns have headers of 2 bytes. */
static uint8_t *value_of(made_t *a, const char *key, size_t header)
{
    size_t n = strlen(key);
    for (size_t i = 1; i + n <= a->encoded.bytes; i++)
        if (a->encoded.data[i - 1] == (0xa0 | n) && !memcmp(a->encoded.data + i, key, n))
            return a->encoded.data + i + n + header;
    cr_assert_fail("no key %s", key);
    return NULL;
}

static void decode_refused(made_t *a, int code, const char *why)
{
    heddle_error_t e = {0};
    manifest_t m;
    cr_assert_eq(manifest_decode(buf_view(&a->encoded), &m, &e), code, "%s: %s", why, e.message);
    cr_assert(strstr(e.message, why), "'%s' in '%s'", why, e.message);
    drop(a);
}

typedef struct {
    const char *key;
    size_t header, at;
    const char *bytes;
    size_t n;
    int code;
    const char *why;
} edit_t;
#define EDIT(key, header, at, bytes, code, why)                                                              \
    {                                                                                                        \
        key, header, at, bytes, sizeof bytes - 1, HEDDLE_ERR_##code, why                                     \
    }

Test(manifest, refuses_wrong_values)
{
    static const edit_t EDITS[] = {
        EDIT("v", 0, 0, "\2", PROTOCOL, "the layout's version"),
        EDIT("kind", 1, 0, "LORA", PROTOCOL, "kind is not a word"),
        EDIT("kind", 0, 0, "\xc4\3", PROTOCOL, "'kind' has the wrong type"),
        EDIT("features", 0, 0, "\xc2", PROTOCOL, "'features' has the wrong type"),
        EDIT("chunk_bytes", 1, 0, "\0\2\0\0", PROTOCOL, "chunk_bytes"),
        EDIT("payload_bytes", 1, 0, "\x30\0", PROTOCOL, "payload_bytes"),
        EDIT("payload_bytes", 1, 0, "\0\0", LIMIT, "payload_bytes"),
        EDIT("data_bytes", 0, 0, "\x0f", PROTOCOL, "data_bytes"),
        EDIT("count", 0, 0, "\0", LIMIT, "count"),
        EDIT("count", 0, 0, "\1", PROTOCOL, "name_ends"),
        EDIT("count", 0, 0, "\xff", PROTOCOL, "'count' has the wrong type"),
        EDIT("names", 2, 7, "C", PROTOCOL, "out of order"),
        EDIT("names", 2, 22, "A", PROTOCOL, "out of order"),
        EDIT("names", 2, 3, "\0", PROTOCOL, "contains a NUL"),
        EDIT("names", 2, 3, "\xff", PROTOCOL, "is not UTF-8"),
        EDIT("name_ends", 2, 0, "\0", PROTOCOL, "is empty"),
        EDIT("name_ends", 2, 0, "\x1f", PROTOCOL, "name_ends of row 0"),
        EDIT("name_ends", 2, 4, "\x0e", PROTOCOL, "name_ends of row 1"),
        EDIT("name_ends", 2, 4, "\x1d", PROTOCOL, "bytes of names"),
        EDIT("name_ends", 2, 7, "\xff", PROTOCOL, "name_ends of row 1"),
        EDIT("dtypes", 2, 0, "\x16", PROTOCOL, "unknown dtype"),
        EDIT("dtypes", 2, 0, "\xff", PROTOCOL, "unknown dtype"),
        EDIT("dtypes", 2, 0, "\x0d", PROTOCOL, "sizes of row 0"),
        EDIT("ndims", 2, 0, "\1", PROTOCOL, "sizes of row 0"),
        EDIT("ndims", 2, 1, "\1", PROTOCOL, "bytes of dims"),
        EDIT("ndims", 2, 1, "\3", PROTOCOL, "dims of row 1"),
        EDIT("ndims", 2, 0, "\xff", PROTOCOL, "dims of row 0"),
        EDIT("dims", 2, 0, "\2", PROTOCOL, "sizes of row 0"),
        EDIT("dims", 2, 7, "\x80", PROTOCOL, "overflows"),
        EDIT("dims", 2, 6, "\x01", PROTOCOL, "larger than any payload"),
        EDIT("sizes", 2, 0, "\7", PROTOCOL, "sizes of row 0"),
        EDIT("sizes", 2, 15, "\x80", PROTOCOL, "sizes of row 1"),
        EDIT("offsets", 2, 0, "\1", PROTOCOL, "offsets of row 0"),
        EDIT("offsets", 2, 9, "\x20", PROTOCOL, "offsets of row 1"),
    };
    for (size_t i = 0; i < sizeof EDITS / sizeof *EDITS; i++) {
        const edit_t *edit = &EDITS[i];
        made_t a = example();
        memcpy(value_of(&a, edit->key, edit->header) + edit->at, edit->bytes, edit->n);
        decode_refused(&a, edit->code, edit->why);
    }
}

Test(manifest, each_key_must_be_there_once)
{
    static const char *const KEYS[] = {"v",          "kind",   "features", "chunk_bytes", "payload_bytes",
                                       "data_bytes", "count",  "config",   "metadata",    "names",
                                       "name_ends",  "dtypes", "ndims",    "dims",        "offsets",
                                       "sizes",      "chunks"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        made_t a = example();
        value_of(&a, KEYS[i], 0)[-1] = 'X';
        decode_refused(&a, HEDDLE_ERR_PROTOCOL, "is missing");
    }
    made_t a = example();
    memcpy(value_of(&a, "sizes", 0) - 5, "names", 5);
    decode_refused(&a, HEDDLE_ERR_PROTOCOL, "twice");
}

Test(manifest, features_are_sorted_words)
{
    static const struct {
        const char *features;
        int code;
    } CASES[] = {{"bias", 0},
                 {"bias,dora,rslora", 0},
                 {"dora,bias", HEDDLE_ERR_PROTOCOL},
                 {"dora,dora", HEDDLE_ERR_PROTOCOL},
                 {"Dora", HEDDLE_ERR_PROTOCOL},
                 {"a,,b", HEDDLE_ERR_PROTOCOL},
                 {"a,b c", HEDDLE_ERR_PROTOCOL}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        made_t a = example();
        a.encoded.bytes = 0;
        build(&a, CASES[i].features);
        manifest_t m;
        cr_assert_eq(manifest_decode(buf_view(&a.encoded), &m, NULL), CASES[i].code, "%s", CASES[i].features);
        if (!CASES[i].code) {
            cr_assert_str_eq(m.features, CASES[i].features);
            manifest_fini(&m);
        }
        drop(&a);
    }
}

Test(manifest, keys_of_the_future_are_skipped)
{
    made_t a = example();
    a.encoded.data[2]++;
    buf_add(&a.encoded, "\xa5later\x93\1\2\3", 10);
    manifest_t m;
    heddle_error_t e;
    cr_assert_eq(manifest_decode(buf_view(&a.encoded), &m, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(m.tensor_count, 2);
    manifest_fini(&m);
    drop(&a);
}

/* What lies where it was fetched to may be written again: the manifest keeps what was compared. */
Test(manifest, what_is_read_is_a_copy_that_was_compared)
{
    made_t a = example();
    manifest_t m;
    manifest_row_t before, after;
    heddle_error_t e;
    digest_t digest = digest_blake2b(a.encoded.data, a.encoded.bytes);
    cr_assert_eq(manifest_read(buf_view(&a.encoded), &digest, &m, &e), HEDDLE_OK, "%s", e.message);
    manifest_row(&m, 0, &before);
    char name[64] = {0};
    memcpy(name, before.name.data, before.name.bytes);
    memset(a.encoded.data, 0xff, a.encoded.bytes);
    manifest_row(&m, 0, &after);
    cr_assert(after.name.bytes == before.name.bytes && !memcmp(after.name.data, name, after.name.bytes));
    manifest_fini(&m);
    cr_assert_null(m.encoded);
    cr_assert_eq(manifest_read(buf_view(&a.encoded), &digest, &m, &e), HEDDLE_ERR_DIGEST_MISMATCH);
    digest = digest_blake2b(a.encoded.data, a.encoded.bytes);
    cr_assert_eq(manifest_read(buf_view(&a.encoded), &digest, &m, &e), HEDDLE_ERR_PROTOCOL,
                 "it is no manifest");
    drop(&a);
}

Test(manifest, what_is_no_map_or_has_a_rest_is_refused)
{
    made_t a = example();
    buf_add(&a.encoded, "", 1);
    decode_refused(&a, HEDDLE_ERR_PROTOCOL, "bytes follow the end");
    heddle_error_t e;
    manifest_t m;
    cr_assert_eq(manifest_decode(bytes_of("\x91\xc0", 2), &m, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(manifest_decode(bytes_of("\xdf\x08\0\0\0", 5), &m, &e),
                 HEDDLE_ERR_LIMIT); /* 2^27 keys in 5 bytes */
    cr_assert_eq(manifest_decode(bytes_of("", 0), &m, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(manifest_decode(bytes_of(NULL, LIMIT_MANIFEST_BYTES + 1), &m, &e), HEDDLE_ERR_LIMIT);
}

/* What decode let through: walks every number of it, in memory that ends where the input ends. */
static void use(const manifest_t *m)
{
    uint64_t end = 0, offset, sum = 0;
    manifest_row_t row;
    for (uint32_t i = 0; i < m->tensor_count; i++, end = row.offset + tensor_room(row.bytes)) {
        manifest_row(m, i, &row);
        cr_assert_eq(row.offset, end);
        for (size_t b = 0; b < row.name.bytes; b++) sum += ((const uint8_t *)row.name.data)[b];
        for (uint32_t d = 0; d < row.ndim; d++) sum += manifest_dim(m, i, d);
    }
    cr_assert_eq(end, m->payload_bytes);
    for (uint32_t c = 0; c < m->chunk_count; c++) {
        chunk_digest_t d;
        sum += manifest_chunk(m, c, &offset) + offset;
        manifest_chunk_digest(m, c, &d);
    }
    h1_t h1;
    manifest_h1_begin(m, &h1);
    h1_final(&h1);
    cr_assert_neq(sum, 0);
}

static int decode_copy(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1); /* so that one byte too many is seen */
    if (bytes) memcpy(copy, data, bytes);
    manifest_t m;
    heddle_error_t e;
    int rc = manifest_decode(bytes_of(copy, bytes), &m, &e);
    if (!rc) {
        use(&m);
        manifest_fini(&m);
    }
    free(copy);
    return rc;
}

Test(manifest, every_truncation_is_refused)
{
    made_t a = odd();
    for (size_t n = 0; n < a.encoded.bytes; n++)
        cr_assert_neq(decode_copy(a.encoded.data, n), HEDDLE_OK, "%zu bytes", n);
    cr_assert_eq(decode_copy(a.encoded.data, a.encoded.bytes), HEDDLE_OK);
    drop(&a);
}

Test(manifest, mutations_are_refused_or_harmless)
{
    made_t a = odd();
    unsigned seed = 20260101, refusals = 0;
    const char *given = getenv("HEDDLE_TEST_SEED");
    if (given) seed = (unsigned)strtoul(given, NULL, 10);
    cr_log_info("seed %u", seed);
    srand(seed);
    uint8_t *copy = malloc(a.encoded.bytes);
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, a.encoded.data, a.encoded.bytes);
        for (int edits = 1 + rand() % 3; edits > 0; edits--)
            copy[(size_t)rand() % a.encoded.bytes] = (uint8_t)rand();
        refusals += decode_copy(copy, a.encoded.bytes) != HEDDLE_OK;
    }
    cr_assert_gt(refusals, 5000); /* config, metadata and digests may hold any byte */
    free(copy);
    drop(&a);
}
