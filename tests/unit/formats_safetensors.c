/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors files: what upstream writes is read and written back byte by byte; what is wrong is refused. */
#include "tests/lib/bytes_equal.h"
#include "core/limits.h"
#include "formats/safetensors.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static int parse(const char *header, uint64_t data_bytes, safetensors_t *ret_table, heddle_error_t *error)
{
    char *copy = malloc(strlen(header)); /* no NUL behind it: one byte too many is seen */
    memcpy(copy, header, strlen(header));
    int rc = safetensors_parse(bytes_of(copy, strlen(header)), data_bytes, ret_table, error);
    free(copy); /* the table has its own copies */
    return rc;
}

/* Written by safetensors 0.8.0 (Python): every width, a scalar, an empty tensor, names and metadata that need escapes. */
#define META "{\"zz\":\"1\",\"a\303\251\":\"x\\\"y\\n\\u0001\x7f/\342\200\250\",\"format\":\"pt\"}"
static const char UPSTREAM[] = "{\"__metadata__\":" META ","
                               "\"w\":{\"dtype\":\"U64\",\"shape\":[2],\"data_offsets\":[0,16]},\"z\":{"
                               "\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[16,32]},"
                               "\"v\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[32,48]},\"b\":{"
                               "\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[48,52]},"
                               "\"u\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[52,60]},\"a\":{"
                               "\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[60,60]},"
                               "\"c\303\251\\\"\\\\\\n\x7f/"
                               "\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[60,63]},\"x\":{"
                               "\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[63,65]},"
                               "\"y\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[65,67]}}     ";

/* A manifest of a table, whose payload is all zeros; it borrows from *ret_encoded. */
static manifest_t manifest_of(const safetensors_t *table, buf_t *ret_encoded)
{
    heddle_error_t e;
    layout_t layout;
    digest_t h1;
    manifest_t m;
    cr_assert_eq(layout_make(table->tensors, table->count, &layout, &e), HEDDLE_OK, "%s", e.message);
    void *payload = calloc(1, layout.payload_bytes);
    manifest_input_t in = {table->tensors, &layout, bytes_of("{}", 2), table->metadata, "tensors", "",
                           payload};
    cr_assert_eq(manifest_build(&in, ret_encoded, &h1), HEDDLE_OK);
    cr_assert_eq(manifest_decode(buf_view(ret_encoded), &m, &e), HEDDLE_OK, "%s", e.message);
    free(payload);
    layout_fini(&layout);
    return m;
}

static void check_rewrite(const char *header, uint64_t data_bytes, const char *unpadded)
{
    char expected[sizeof UPSTREAM + 8];
    snprintf(expected, sizeof expected, "%s%.*s", unpadded, (int)(-strlen(unpadded) % 8), "       ");

    safetensors_t table;
    heddle_error_t e;
    cr_assert_eq(parse(header, data_bytes, &table, &e), HEDDLE_OK, "%s: %s", header, e.message);
    buf_t encoded = {0}, out = {0};
    manifest_t m = manifest_of(&table, &encoded);
    uint32_t *order = calloc(m.tensor_count, sizeof *order);
    cr_assert_eq(safetensors_write(&m, &out, order, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(le64_get(out.data), strlen(expected));
    cr_assert_eq(out.bytes, 8 + strlen(expected));
    cr_assert_arr_eq(out.data + 8, expected, strlen(expected), "%.*s", (int)(out.bytes - 8),
                     (char *)out.data + 8);
    free(order);
    manifest_fini(&m);
    buf_fini(&encoded);
    buf_fini(&out);
    safetensors_fini(&table);
}

Test(safetensors, upstreams_header_comes_out_identical) { check_rewrite(UPSTREAM, 67, UPSTREAM); }

Test(safetensors, upstreams_header_is_read)
{
    static const struct {
        const char *name;
        int dtype;
        uint32_t ndim;
        uint64_t start, bytes;
    } ROWS[] = {{"w", HEDDLE_DTYPE_U64, 1, 0, 16},
                {"z", HEDDLE_DTYPE_I64, 1, 16, 16},
                {"v", HEDDLE_DTYPE_F64, 1, 32, 16},
                {"b", HEDDLE_DTYPE_F32, 0, 48, 4},
                {"u", HEDDLE_DTYPE_F32, 1, 52, 8},
                {"a", HEDDLE_DTYPE_F16, 2, 60, 0},
                {"c\303\251\"\\\n\x7f/", HEDDLE_DTYPE_I8, 1, 60, 3},
                {"x", HEDDLE_DTYPE_U8, 1, 63, 2},
                {"y", HEDDLE_DTYPE_BOOL, 1, 65, 2}};
    safetensors_t t;
    cr_assert_eq(parse(UPSTREAM, 67, &t, NULL), HEDDLE_OK);
    cr_assert_eq(t.count, sizeof ROWS / sizeof *ROWS);
    cr_assert(bytes_equal(t.metadata, bytes_of(META, sizeof META - 1)));
    for (uint32_t i = 0; i < t.count; i++) {
        cr_assert_str_eq(t.tensors[i].name, ROWS[i].name);
        cr_assert_eq(t.tensors[i].dtype, ROWS[i].dtype);
        cr_assert_eq(t.tensors[i].ndim, ROWS[i].ndim);
        cr_assert_eq(t.tensors[i].data_bytes, ROWS[i].bytes);
        cr_assert_eq(t.starts[i], ROWS[i].start);
    }
    cr_assert_eq(t.tensors[5].dims[0], 0);
    cr_assert_eq(t.tensors[5].dims[1], 4);
    safetensors_fini(&t);
}

Test(safetensors, foreign_layouts_are_read_and_written_as_upstream_would)
{
    /* other order, blanks, escaped letters, no metadata, no padding */
    check_rewrite("{\n\t\"\\u0062\" : { \"shape\":[ 2 ] , \"data_offsets\":[1,3],\"dtype\":\"U8\"} ,\r\n"
                  "\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},\"f\":{\"dtype\":\"F4\","
                  "\"shape\":[2],\"data_offsets\":[3,4]}}\n",
                  4,
                  "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\","
                  "\"shape\":[2],\"data_offsets\":[1,3]},"
                  "\"f\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[3,4]}}");
    check_rewrite("{\"__metadata__\":{},\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                  "{\"__metadata__\":{},\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
}

Test(safetensors, all_dtypes_pass_through)
{
    for (int dtype = 0; dtype < HEDDLE_DTYPE_COUNT; dtype++) {
        char header[200];
        uint64_t bytes = heddle_dtype_bits(dtype); /* of 8 elements */
        snprintf(header, sizeof header, "{\"x\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%d]}}",
                 heddle_dtype_name(dtype), (int)bytes);
        safetensors_t t;
        heddle_error_t e;
        cr_assert_eq(parse(header, bytes, &t, &e), HEDDLE_OK, "%s: %s", header, e.message);
        cr_assert_eq(t.tensors[0].dtype, dtype);
        cr_assert_eq(t.tensors[0].data_bytes, bytes);
        safetensors_fini(&t);
    }
}

typedef struct {
    const char *header;
    uint64_t data_bytes;
    int code;
    const char *why;
} refusal_t;

static void check_refusals(const refusal_t *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        safetensors_t t;
        heddle_error_t e = {0};
        int rc = parse(cases[i].header, cases[i].data_bytes, &t, &e);
        cr_assert_eq(rc, cases[i].code, "%s -> %s: %s", cases[i].header, heddle_err_name(rc), e.message);
        cr_assert(strstr(e.message, cases[i].why), "%s -> %s", cases[i].header, e.message);
        cr_assert(e.expected[0] && e.found[0] && e.hint[0], "%s -> %s | %s | %s | %s", cases[i].header,
                  e.message, e.expected, e.found, e.hint);
    }
}
#define REFUSED(cases) check_refusals(cases, sizeof cases / sizeof *cases)
#define A(dtype, shape, offsets)                                                                             \
    "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

Test(safetensors, refuses_what_is_not_json)
{
    static const refusal_t CASES[] = {
        {" {}", 0, HEDDLE_ERR_BAD_ADAPTER, "the header is not JSON at byte 0"},
        {"[]", 0, HEDDLE_ERR_BAD_ADAPTER, "the header is not JSON at byte 0"},
        {"\200\002}q", 0, HEDDLE_ERR_BAD_ADAPTER, "the header is not JSON at byte 0"},
        {"{", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 1"},
        {"{a:1}", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 1"},
        {"{\"a", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 1"},
        {"{\"a\\\"", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 1"},
        {"{\"a\\", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 1"},
        {"{\"a\"}", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 4"},
        {"{\"a\":", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 5"},
        {"{\"a\":}", 0, HEDDLE_ERR_BAD_ADAPTER, "at byte 5"},
        {"{\"a\":{\"b\":1}", 0, HEDDLE_ERR_BAD_ADAPTER, "in the header is not described"},
        {"{\"a\":{]}}", 0, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{\"a\":[}]}", 0, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{" A("U8", "[1]", "[0,1]") ",}", 1, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{" A("U8", "[1]", "[0,1]") " \"b\":1}", 1, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{" A("U8", "[1]", "[0,1]") "", 1, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{" A("U8", "[1]", "[0,1]") "} {}", 1, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{" A("U8", "[1]", "[0,1]") "}x", 1, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{" A("U8", "[1,]", "[0,1]") "}", 1, HEDDLE_ERR_BAD_ADAPTER, "not JSON at byte"},
        {"{\"a\xff\":1}", 0, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{\"\\u0000a\":1}", 0, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{\"\\ud800\":1}", 0, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{\"a\":nul}", 0, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
    };
    REFUSED(CASES);
}

Test(safetensors, refuses_wrong_entries)
{
    static const refusal_t CASES[] = {
        {"{\"a\":1}", 0, HEDDLE_ERR_BAD_ADAPTER, "'a' in the header is not described"},
        {"{\"a\":[1]}", 0, HEDDLE_ERR_BAD_ADAPTER, "is not described"},
        {"{\"a\":{}}", 0, HEDDLE_ERR_BAD_ADAPTER, "is not described"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1, HEDDLE_ERR_BAD_ADAPTER,
         "is not described"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"offsets\":[0,1]}}", 1, HEDDLE_ERR_BAD_ADAPTER,
         "has no valid data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         HEDDLE_ERR_BAD_ADAPTER, "a name twice"},
        {"{" A("F128", "[1]", "[0,16]") "}", 16, HEDDLE_ERR_BAD_ADAPTER, "unknown dtype"},
        {"{" A("f32", "[1]", "[0,4]") "}", 4, HEDDLE_ERR_BAD_ADAPTER, "unknown dtype"},
        {"{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, HEDDLE_ERR_BAD_ADAPTER,
         "unknown dtype"},
        {"{" A("U8", "[-1]", "[0,1]") "}", 1, HEDDLE_ERR_BAD_ADAPTER, "has no valid shape"},
        {"{" A("U8", "[1.0]", "[0,1]") "}", 1, HEDDLE_ERR_BAD_ADAPTER, "has no valid shape"},
        {"{" A("U8", "{}", "[0,1]") "}", 1, HEDDLE_ERR_BAD_ADAPTER, "has no valid shape"},
        {"{" A("U8", "[[1]]", "[0,1]") "}", 1, HEDDLE_ERR_BAD_ADAPTER, "has no valid shape"},
        {"{" A("U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, HEDDLE_ERR_LIMIT,
         "too many dimensions"},
        {"{" A("U8", "[18446744073709551616]", "[0,0]") "}", 0, HEDDLE_ERR_BAD_ADAPTER, "not JSON"},
        {"{" A("F32", "[4611686018427387904]", "[0,0]") "}", 0, HEDDLE_ERR_BAD_ADAPTER, "overflows"},
        {"{" A("F32", "[2147483648,2147483648,4]", "[0,0]") "}", 0, HEDDLE_ERR_BAD_ADAPTER, "overflows"},
        {"{" A("U8", "[1099511627777]", "[0,1099511627777]") "}", 0, HEDDLE_ERR_BAD_ADAPTER,
         "larger than any payload"},
        {"{" A("F4", "[3]", "[0,2]") "}", 2, HEDDLE_ERR_BAD_ADAPTER, "whole bytes"},
        {"{" A("F6_E3M2", "[2]", "[0,2]") "}", 2, HEDDLE_ERR_BAD_ADAPTER, "whole bytes"},
    };
    REFUSED(CASES);
}

Test(safetensors, refuses_wrong_places)
{
#define B(offsets) ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" offsets "}"
    static const refusal_t CASES[] = {
        {"{" A("F32", "[1]", "[0,3]") "}", 3, HEDDLE_ERR_BAD_ADAPTER, "another size than its shape"},
        {"{" A("F32", "[1]", "[4,0]") "}", 4, HEDDLE_ERR_BAD_ADAPTER, "another size than its shape"},
        {"{" A("F32", "[1]", "[0]") "}", 4, HEDDLE_ERR_BAD_ADAPTER, "has no valid data_offsets"},
        {"{" A("F32", "[1]", "[-4,0]") "}", 4, HEDDLE_ERR_BAD_ADAPTER, "has no valid data_offsets"},
        {"{" A("F32", "[1]", "[0,4,8]") "}", 8, HEDDLE_ERR_BAD_ADAPTER, "has no valid data_offsets"},
        {"{" A("U8", "[1]", "[0,1]") B("[2,4]") "}", 4, HEDDLE_ERR_BAD_ADAPTER,
         "'b' in the header leaves a gap before it"},
        {"{" A("U8", "[1]", "[1,2]") "}", 2, HEDDLE_ERR_BAD_ADAPTER, "leaves a gap before it"},
        {"{" A("U8", "[2]", "[0,2]") B("[1,3]") "}", 3, HEDDLE_ERR_BAD_ADAPTER,
         "'b' in the header overlaps the one before it"},
        {"{" A("U8", "[2]", "[0,2]") B("[0,2]") "}", 2, HEDDLE_ERR_BAD_ADAPTER, "overlaps the one before it"},
        {"{" A("U8", "[2]", "[0,2]") B("[2,4]") "}", 3, HEDDLE_ERR_BAD_ADAPTER, "the file is truncated"},
        {"{" A("U8", "[2]", "[0,2]") B("[2,4]") "}", 5, HEDDLE_ERR_BAD_ADAPTER,
         "the file has bytes after the last tensor"},
        {"{" A("U8", "[2]", "[9223372036854775805,9223372036854775807]") "}", 2, HEDDLE_ERR_BAD_ADAPTER,
         "leaves a gap"},
        {"{}", 1, HEDDLE_ERR_BAD_ADAPTER, "the file has bytes after the last tensor"},
    };
    REFUSED(CASES);
}

Test(safetensors, refuses_wrong_metadata)
{
    static const refusal_t CASES[] = {
        {"{\"__metadata__\":1}", 0, HEDDLE_ERR_BAD_ADAPTER, "is not a map from text to text"},
        {"{\"__metadata__\":null}", 0, HEDDLE_ERR_BAD_ADAPTER, "is not a map from text to text"},
        {"{\"__metadata__\":{\"a\":\"b\",\"step\":3}}", 0, HEDDLE_ERR_BAD_ADAPTER,
         "is not a map from text to text"},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, HEDDLE_ERR_BAD_ADAPTER, "a name twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, HEDDLE_ERR_BAD_ADAPTER, "occurs twice"},
        {"{\"__metadata__\":{},\"\\u005f_metadata__\":{}}", 0, HEDDLE_ERR_BAD_ADAPTER, "occurs twice"},
    };
    REFUSED(CASES);
    heddle_error_t e;
    cr_assert_eq(safetensors_check_metadata((bytes_t){0}, &e), HEDDLE_OK);
    cr_assert_eq(safetensors_check_metadata(bytes_of("{\"a\":\"b\"}", 9), &e), HEDDLE_OK);
    cr_assert_eq(safetensors_check_metadata(bytes_of("{\"a\":\"b\"},\"x\":{", 15), &e),
                 HEDDLE_ERR_BAD_ADAPTER);
    cr_assert_eq(safetensors_check_metadata(bytes_of("[]", 2), &e), HEDDLE_ERR_BAD_ADAPTER);
}

/* A name twice among tensors is seen where they are laid out: there they are sorted anyway. */
Test(safetensors, a_name_twice_is_seen_by_the_layout)
{
    safetensors_t t;
    layout_t l;
    heddle_error_t e;
    cr_assert_eq(parse("{" A("U8", "[1]",
                             "[0,1]") ",\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                       2, &t, &e),
                 HEDDLE_OK);
    cr_assert_eq(layout_make(t.tensors, t.count, &l, &e), HEDDLE_ERR_BAD_ADAPTER);
    cr_assert(strstr(e.message, "'a' occurs twice"));
    safetensors_fini(&t);
}

static char *nested(uint32_t depth, const char *before, const char *after)
{
    buf_t b = {0};
    buf_add_text(&b, before);
    for (uint32_t i = 0; i < depth; i++) buf_add_text(&b, i % 2 ? "[" : "{\"a\":");
    buf_add_text(&b, "1");
    for (uint32_t i = depth; i-- > 0;) buf_add_text(&b, i % 2 ? "]" : "}");
    buf_add_text(&b, after);
    char *text = strdup(buf_text(&b));
    buf_fini(&b);
    return text;
}

Test(safetensors, refuses_deep_nesting_before_it_is_parsed)
{
    static const uint32_t DEPTHS[] = {LIMIT_JSON_DEPTH, 5000, 3000000};
    for (size_t i = 0; i < sizeof DEPTHS / sizeof *DEPTHS; i++) {
        char *header = nested(DEPTHS[i], "{\"x\":", "}");
        check_refusals(&(refusal_t){header, 0, HEDDLE_ERR_LIMIT, "nested too deep at byte 5"}, 1);
        free(header);
    }
    char *header = nested(LIMIT_JSON_DEPTH - 1, "{\"x\":", "}");
    check_refusals(&(refusal_t){header, 0, HEDDLE_ERR_BAD_ADAPTER, "is not described"}, 1);
    free(header);
}

Test(safetensors, metadata_has_a_limit)
{
    for (int over = 0; over < 2; over++) {
        buf_t b = {0};
        buf_add_text(&b, "{\"__metadata__\":{\"a\":\"");
        memset(buf_grow(&b, LIMIT_METADATA_BYTES - 8 + (size_t)over), 'x',
               LIMIT_METADATA_BYTES - 8 + (size_t)over);
        buf_add_text(&b, "\"}," A("U8", "[1]", "[0,1]") "}");
        safetensors_t t;
        heddle_error_t e;
        cr_assert_eq(parse(buf_text(&b), 1, &t, &e), over ? HEDDLE_ERR_LIMIT : HEDDLE_OK, "%d", over);
        if (over) cr_assert(strstr(e.message, "too long") && e.expected[0] && e.found[0] && e.hint[0]);
        else safetensors_fini(&t);
        buf_fini(&b);
    }
}

/* 90,064 tensors are a few hundred milliseconds; were it quadratic, minutes. */
Test(safetensors, many_tensors_in_any_order, .timeout = 60)
{
    enum { COUNT = 90064 };
    buf_t b = {0};
    buf_add_text(&b, "{");
    for (int i = 0; i < COUNT; i++) {
        int at = COUNT - 1 - i;
        buf_printf(&b, "%s\"m.%06d.lora_A\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                   i ? "," : "", (i * 7919) % COUNT, at, at + 1);
    }
    buf_add_text(&b, "}");
    safetensors_t t;
    layout_t l;
    heddle_error_t e;
    cr_assert_eq(parse(buf_text(&b), COUNT, &t, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(t.count, COUNT);
    for (uint32_t i = 0; i < t.count; i++) cr_assert_eq(t.starts[i], i);
    cr_assert_eq(layout_make(t.tensors, t.count, &l, &e), HEDDLE_OK, "%s", e.message);
    for (uint32_t i = 1; i < l.count; i++)
        cr_assert_lt(strcmp(t.tensors[l.order[i - 1]].name, t.tensors[l.order[i]].name), 0);
    layout_fini(&l);
    safetensors_fini(&t);
    buf_fini(&b);
}

Test(safetensors, mutations_are_refused_or_harmless)
{
    unsigned seed = 20260102;
    const char *given = getenv("HEDDLE_TEST_SEED");
    if (given) seed = (unsigned)strtoul(given, NULL, 10);
    cr_log_info("seed %u", seed);
    srand(seed);
    unsigned refusals = 0;
    for (int round = 0; round < 10000; round++) {
        char copy[sizeof UPSTREAM];
        size_t bytes = sizeof UPSTREAM - 1 - (round % 4 ? 0 : (size_t)rand() % sizeof UPSTREAM);
        memcpy(copy, UPSTREAM, sizeof copy);
        for (int edits = 1 + rand() % 3; edits > 0; edits--)
            copy[(size_t)rand() % sizeof copy] = "{}[]\",:\\ 019a\xff"[rand() % 14];
        safetensors_t t;
        heddle_error_t e;
        char *exact = malloc(bytes + 1);
        memcpy(exact, copy, bytes);
        if (safetensors_parse(bytes_of(exact, bytes), 67, &t, &e)) {
            refusals++;
        } else {
            uint64_t end = 0;
            for (uint32_t i = 0; i < t.count; i++) {
                cr_assert_eq(t.starts[i], end);
                end += t.tensors[i].data_bytes;
            }
            cr_assert_eq(end, 67);
            safetensors_fini(&t);
        }
        free(exact);
    }
    cr_assert_gt(refusals, 5000);
}
