/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of reports, and the error object of every command. */
#include "tests/lib/bytes_equal.h"
#include "core/errors.h"
#include "core/limits.h"
#include "proto/value.h"

#include <criterion/criterion.h>

static json_t *round_trip(const json_t *value)
{
    buf_t b = {0};
    json_t *back = NULL;
    heddle_error_t e = {0};
    cr_assert_eq(value_encode(value, &b), HEDDLE_OK);
    cr_assert_eq(value_decode(buf_view(&b), &back, &e), HEDDLE_OK, "%s", e.message);
    buf_fini(&b);
    return back;
}

Test(value, every_kind_comes_back_in_order)
{
    const char *text = "{\"z\":[1,-1,0,9223372036854775807,-9223372036854775808,1.5,-0.25,true,false,null,"
                       "\"\",\"caf\xc3\xa9\"],"
                       "\"a\":{\"b\":{},\"c\":[]},\"\":[[[]]]}";
    json_t *value = json_loads(text, 0, NULL);
    json_t *back = round_trip(value);
    cr_assert(json_equal(value, back));
    char *out = json_dumps(back, JSON_COMPACT);
    cr_assert_str_eq(out, text);
    free(out);
    json_decref(value);
    json_decref(back);
}

Test(value, an_empty_text_that_nothing_comes_before)
{
    json_t *text = json_string(""), *object = json_pack("{sn}", ""), *back = round_trip(text);
    cr_assert(json_equal(text, back));
    json_decref(back);
    back = round_trip(object);
    cr_assert(json_equal(object, back));
    json_decref(text);
    json_decref(object);
    json_decref(back);
}

Test(value, reals_are_exact)
{
    static const double REALS[] = {0.1, 1e300, -5e-324, 123456789.123456789};
    for (size_t i = 0; i < sizeof REALS / sizeof *REALS; i++) {
        json_t *value = json_real(REALS[i]), *back = round_trip(value);
        cr_assert(json_is_real(back) && json_real_value(back) == REALS[i]);
        json_decref(value);
        json_decref(back);
    }
}

Test(value, bytes_by_hand)
{
    json_t *value = json_pack("{si, s[b, n], sf}", "n", 300, "l", 1, "r", 1.5);
    buf_t b = {0};
    cr_assert_eq(value_encode(value, &b), HEDDLE_OK);
    static const char WANT[] = "\x83\xa1n\xcd\x01\x2c\xa1l\x92\xc3\xc0\xa1r\xcb\x3f\xf8\0\0\0\0\0\0";
    cr_assert(bytes_equal(buf_view(&b), bytes_of(WANT, sizeof WANT - 1)));
    buf_fini(&b);
    json_decref(value);
}

static json_t *nested(uint32_t depth)
{
    json_t *value = json_array();
    for (uint32_t i = 1; i < depth; i++) value = json_pack("[o]", value);
    return value;
}

static void assert_not_encoded(json_t *value, int code)
{
    buf_t b = {0};
    buf_add_text(&b, "before");
    cr_assert_eq(value_encode(value, &b), code);
    cr_assert_str_eq(buf_text(&b), "before");
    buf_fini(&b);
    json_decref(value);
}

Test(value, limits_of_depth_and_number_are_the_same_both_ways)
{
    json_t *deepest = nested(LIMIT_REPORT_DEPTH), *back = round_trip(deepest);
    cr_assert(json_equal(deepest, back));
    json_decref(deepest);
    json_decref(back);
    assert_not_encoded(nested(LIMIT_REPORT_DEPTH + 1), HEDDLE_ERR_LIMIT);
    assert_not_encoded(NULL, HEDDLE_ERR_NO_MEMORY);

    json_t *many = json_array();
    for (uint32_t i = 0; i < LIMIT_REPORT_NODES - 1; i++) json_array_append_new(many, json_null());
    back = round_trip(many);
    cr_assert_eq(json_array_size(back), LIMIT_REPORT_NODES - 1);
    json_decref(back);
    json_array_append_new(many, json_null());
    assert_not_encoded(many, HEDDLE_ERR_LIMIT);

    json_t *keys = json_object();
    for (uint32_t i = 0; i < 1000; i++) {
        char key[16];
        snprintf(key, sizeof key, "%u", i);
        json_object_set_new(keys, key, json_integer(i));
    }
    back = round_trip(keys);
    cr_assert(json_equal(keys, back));
    json_decref(back);
    json_decref(keys);
}

Test(value, refused)
{
    static const struct {
        const char *bytes;
        size_t n;
        int code;
    } BAD[] = {
#define CASE(bytes, code) {bytes, sizeof bytes - 1, HEDDLE_ERR_##code}
        CASE("", PROTOCOL),
        CASE("\xc1", PROTOCOL),
        CASE("\xc4\x01x", PROTOCOL),
        CASE("\x91\xc4\x01x", PROTOCOL),
        CASE("\xd4\x05x", PROTOCOL),
        CASE("\xdd\x08\0\0\0", PROTOCOL),
        CASE("\xdf\x08\0\0\0", PROTOCOL),
        CASE("\xc0\xc0", PROTOCOL),
        CASE("\x82\xa1x\x01\xa1x\x02", PROTOCOL),
        CASE("\x81\x01\x02", PROTOCOL),
        CASE("\x81\xa2x\0\x02", PROTOCOL),
        CASE("\xa1\xff", PROTOCOL),
        CASE("\xcf\x80\0\0\0\0\0\0\0", PROTOCOL),
        CASE("\xcb\x7f\xf0\0\0\0\0\0\0", PROTOCOL),
        CASE("\xca\x7f\xc0\0\0", PROTOCOL),
        CASE("\x81\xa1x\x92\x01\xcb\x7f\xf8\0\0\0\0\0\0", PROTOCOL),
        CASE("\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x90", LIMIT),
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        json_t *value = NULL;
        heddle_error_t e = {0};
        cr_assert_eq(value_decode(bytes_of(BAD[i].bytes, BAD[i].n), &value, &e), BAD[i].code, "case %zu: %s",
                     i, e.message);
        cr_assert(!value && e.message[0], "case %zu", i);
    }
}

Test(value, any_one_byte_changed_or_cut)
{
    json_t *value =
        json_loads("{\"name\":\"policy\",\"list\":[1,2.5,{\"deep\":[null,true]}],\"n\":-70000}", 0, NULL);
    buf_t b = {0};
    cr_assert_eq(value_encode(value, &b), HEDDLE_OK);
    for (size_t at = 0; at < b.bytes; at++) {
        uint8_t was = b.data[at];
        for (int v = 0; v < 256; v++) {
            b.data[at] = (uint8_t)v;
            json_t *got = NULL;
            if (value_decode(buf_view(&b), &got, NULL) == HEDDLE_OK) json_decref(round_trip(got));
            json_decref(got);
        }
        b.data[at] = was;
        json_t *none = NULL;
        cr_assert_eq(value_decode(bytes_of(b.data, at), &none, NULL), HEDDLE_ERR_PROTOCOL);
    }
    buf_fini(&b);
    json_decref(value);
}

Test(error_object, all_fields)
{
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_NO_SLOT, "policy@4: every slot is held");
    error_where(&e, "policy", 4, "w2", "fetch");
    error_contrast(&e, "a free slot", "3 slots held by readers");
    error_hint(&e, "release policy@2");
    json_t *value = value_from_error(&e);
    char *text = json_dumps(value, JSON_COMPACT);
    cr_assert_str_eq(
        text, "{\"code\":\"no_slot\",\"exit\":9,\"message\":\"policy@4: every slot is held\","
              "\"adapter\":\"policy\","
              "\"version\":4,\"worker\":\"w2\",\"phase\":\"fetch\",\"expected\":\"a free slot\","
              "\"found\":\"3 slots held by readers\",\"hint\":\"release policy@2\",\"retriable\":true}");
    free(text);
    json_decref(value);
}

Test(error_object, unknown_is_null)
{
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_NOT_FOUND, "%s", "");
    json_t *value = value_from_error(&e);
    char *text = json_dumps(value, JSON_COMPACT);
    cr_assert_str_eq(text,
                     "{\"code\":\"not_found\",\"exit\":3,\"message\":null,\"adapter\":null,\"version\":null,"
                     "\"worker\":null,\"phase\":null,\"expected\":null,\"found\":null,\"hint\":null,"
                     "\"retriable\":false}");
    free(text);
    json_decref(value);
}

Test(error_object, text_that_is_not_utf8)
{
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_INTERNAL, "hook said caf\xe9");
    json_t *value = value_from_error(&e);
    cr_assert_str_eq(json_string_value(json_object_get(value, "message")), "hook said caf?");
    json_decref(value);
}
