/* SPDX-License-Identifier: Apache-2.0 */
/* Names, units and error texts. */
#include "core/bytes.h"
#include "core/errors.h"
#include "core/names.h"
#include "core/units.h"
#include "core/utf8.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

Test(names, allowed_and_refused)
{
    const char *good[] = {"a", "policy", "tenant-42", "A.b_c-d", "0"};
    const char *bad[] = {"", ".", "..", "../x", "-a", "a/b", "a b", "a@1", "\xc3\xa9", "_x"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) cr_assert(name_is_valid(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) cr_assert_not(name_is_valid(bad[i]), "%s", bad[i]);
    char longest[130];
    memset(longest, 'x', 129);
    longest[129] = 0;
    cr_assert_not(name_is_valid(longest));
    longest[128] = 0;
    cr_assert(name_is_valid(longest));
}

Test(names, refusal_tells_all)
{
    heddle_error_t e;
    cr_assert_eq(name_check("adapter", "..", &e), HEDDLE_ERR_BAD_NAME);
    cr_assert(strstr(e.message, "..") && e.expected[0] && e.found[0] && e.hint[0]);
}

/* All bytes are right, and there are too many: an example of a short name would not tell that. */
Test(names, one_that_is_too_long_is_told_its_length)
{
    char name[2 * HEDDLE_NAME_MAX + 64], label[sizeof name + 8];
    heddle_error_t e;
    ref_t r;
    memset(name, 'a', sizeof name);
    name[HEDDLE_NAME_MAX] = 0;
    cr_assert_eq(name_check("worker", name, &e), HEDDLE_OK, "the longest");
    text_printf(label, sizeof label, "%s=%s", name, name);
    cr_assert_eq(label_check(label, &e), HEDDLE_OK);

    name[HEDDLE_NAME_MAX] = 'a', name[HEDDLE_NAME_MAX + 1] = 0;
    cr_assert_eq(name_check("worker", name, &e), HEDDLE_ERR_BAD_NAME);
    cr_assert(strstr(e.message, "worker name \"aaaa") &&
                  strstr(e.message, "...\" is not allowed: it has 129 bytes"),
              "%s", e.message);
    cr_assert_str_eq(e.expected, "at most 128 bytes");
    cr_assert_str_eq(e.found, "129 bytes");
    cr_assert_str_eq(e.hint, "make it shorter by 1");
    text_printf(label, sizeof label, "%s=7", name);
    cr_assert_eq(label_check(label, &e), HEDDLE_ERR_BAD_NAME);
    cr_assert(strstr(e.message, "key of label \"aaaa") && !strcmp(e.found, "129 bytes"), "%s", e.message);
    text_printf(label, sizeof label, "run=%s", name);
    cr_assert_eq(label_check(label, &e), HEDDLE_ERR_BAD_NAME);
    cr_assert(strstr(e.message, "value of label \"aaaa") && !strcmp(e.found, "129 bytes"), "%s", e.message);

    memset(name, 'a', 200);
    text_printf(name + 200, 8, "@3");
    cr_assert_eq(ref_parse(name, &r, &e), HEDDLE_ERR_BAD_NAME);
    cr_assert_str_eq(e.hint, "make it shorter by 72");
    name[HEDDLE_NAME_MAX] = '/'; /* too long, and odd */
    cr_assert_eq(name_check("worker", name, &e), HEDDLE_ERR_BAD_NAME);
    cr_assert(strstr(e.hint, "use a name such as"), "%s", e.hint);
    name_check("request id", "run 7/1", &e);
    cr_assert_str_eq(e.hint, "use an id such as \"run-7.1\"");
}

Test(names, a_place_in_a_group_that_cannot_be_is_refused_with_a_hint)
{
    heddle_error_t e;
    cr_assert_eq(group_check("tp", 4, 4, &e), HEDDLE_ERR_USAGE);
    cr_assert(!strcmp(e.found, "rank 4 of 4") && strstr(e.hint, "count from 0"), "%s", e.hint);
    cr_assert_eq(group_check("", 0, 4, &e), HEDDLE_ERR_USAGE);
    cr_assert(strstr(e.hint, "name the group"), "%s", e.hint);
}

Test(names, references)
{
    ref_t r;
    cr_assert_eq(ref_parse("policy", &r, NULL), 0);
    cr_assert(r.version == 0 && !strcmp(r.name, "policy"));
    cr_assert_eq(ref_parse("policy@57", &r, NULL), 0);
    cr_assert(r.version == 57 && !r.head[0]);
    cr_assert_eq(ref_parse("policy@57:3f9a1c20d4e1", &r, NULL), 0);
    cr_assert(r.version == 57 && !strcmp(r.name, "policy") && !strcmp(r.head, "3f9a1c20d4e1"));
    const char *bad[] = {"policy@",
                         "policy@0",
                         "policy@-1",
                         "policy@1x",
                         "policy@99999999999999999999",
                         "@3",
                         "p@1@2",
                         "policy@3:",
                         "policy@3:3f9a1c20d4e",
                         "policy@3:3f9a1c20d4e11",
                         "policy@3:3F9A1C20D4E1",
                         "policy@3:3f9a1c20d4eg",
                         "policy:3f9a1c20d4e1",
                         "policy@:3f9a1c20d4e1",
                         "policy@3:3f9a1c20d4e1 ",
                         "policy@0:3f9a1c20d4e1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert(ref_parse(bad[i], &r, NULL) < 0, "%s", bad[i]);
}

/* The one that every sample carries. */
Test(names, a_tag_is_a_reference)
{
    digest_t d;
    ref_t r;
    char tag[HEDDLE_TAG_TEXT], head[DIGEST_HEAD + 1], longest[HEDDLE_NAME_MAX + 1];
    for (int i = 0; i < 32; i++) d.b[i] = (uint8_t)(i * 37);
    memset(longest, 'x', HEDDLE_NAME_MAX);
    longest[HEDDLE_NAME_MAX] = 0;
    tag_text(longest, 1234567890123456789, &d, tag);
    digest_head(&d, head);
    cr_assert_eq(ref_parse(tag, &r, NULL), 0);
    cr_assert_str_eq(head, "00254a6f94b9");
    cr_assert(r.version == 1234567890123456789 && !strcmp(r.name, longest) && !strcmp(r.head, head));
}

Test(names, digests_round_trip)
{
    digest_t d, e;
    for (int i = 0; i < 32; i++) d.b[i] = (uint8_t)(i * 37);
    char text[HEDDLE_DIGEST_TEXT];
    digest_text(&d, text);
    cr_assert(digest_parse(text, &e) && digest_equal(&d, &e));
    text[10] = 'G';
    cr_assert_not(digest_parse(text, &e));
    cr_assert_not(digest_parse("h1:00", &e));
}

Test(units, durations)
{
    uint32_t ms;
    cr_assert(units_parse_duration("500ms", &ms) && ms == 500);
    cr_assert(units_parse_duration("30s", &ms) && ms == 30000);
    cr_assert(units_parse_duration("5m", &ms) && ms == 300000);
    cr_assert(units_parse_duration("1d", &ms) && ms == 86400000);
    cr_assert(units_parse_duration("4", &ms) && ms == 4000);
    cr_assert(units_parse_duration("0.5", &ms) && ms == 500);
    cr_assert(units_parse_duration("0", &ms) && ms == 0);
    cr_assert(units_parse_duration("0.0001s", &ms) && ms == 1);
    const char *bad[] = {"", "s", "-1s", "1x", "inf", "1e9", "99999999999h", " 1", "0x10"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_not(units_parse_duration(bad[i], &ms), "%s", bad[i]);
}

Test(units, sizes)
{
    uint64_t n;
    cr_assert(units_parse_size("20M", &n) && n == 20000000);
    cr_assert(units_parse_size("64Ki", &n) && n == 65536);
    cr_assert(units_parse_size("123", &n) && n == 123);
    static const struct {
        const char *text;
        uint64_t bytes;
    } RATES[] = {{"20MB", 20000000},    {"2MB/s", 2000000}, {"2M/s", 2000000},
                 {"1.5MiB", 1572864},   {"7B", 7},          {"7/s", 7},
                 {"64KiB/s", 65536},    {"9kB", 9000},      {"16Mbit", 2000000},
                 {"16Mbit/s", 2000000}, {"8kbit", 1000},    {"1Gbit/s", 125000000}};
    for (size_t i = 0; i < sizeof RATES / sizeof *RATES; i++)
        cr_assert(units_parse_size(RATES[i].text, &n) && n == RATES[i].bytes, "%s", RATES[i].text);
    static const char *const BAD[] = {
        "",         "/s",     "MB",    "20mb", "20MB/",
        "20MB/s/s", "20Mbps", "20 MB", "-1MB", "1000000000000000000000000000000000000000MB"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        cr_assert_not(units_parse_size(BAD[i], &n), "%s", BAD[i]);
    cr_assert_not(units_parse_size("99999999999999G", &n));
}

Test(units, quorums)
{
    heddle_quorum_t q;
    cr_assert(units_parse_quorum("all", &q) && units_quorum_need(q, 4, 1) == 4);
    cr_assert_eq(units_quorum_need(q, 0, 1), 1);
    cr_assert(units_parse_quorum("50%", &q) && units_quorum_need(q, 3, 1) == 2);
    cr_assert(units_parse_quorum("2", &q) && units_quorum_need(q, 9, 1) == 2);
    cr_assert_not(units_parse_quorum("0", &q));
    cr_assert_not(units_parse_quorum("101%", &q));
    cr_assert_not(units_parse_quorum("two", &q));
}

Test(errors, every_code_has_one_name)
{
    for (int code = -41; code < 0; code++) {
        cr_assert_neq(strcmp(heddle_err_name(code), "unknown"), 0, "%d", code);
        cr_assert_eq(heddle_err_from_name(heddle_err_name(code)), code);
    }
    cr_assert_eq(heddle_err_exit(HEDDLE_ERR_NO_SLOT), 9);
    cr_assert_eq(heddle_err_exit(HEDDLE_ERR_HELD), 4);
}

Test(errors, texts_are_cut_on_a_character)
{
    char to[6];
    error_text(to, sizeof to, "abcd\xc3\xa9");
    cr_assert_str_eq(to, "abcd");
    error_text(to, sizeof to, "a\nb\x01");
    cr_assert_str_eq(to, "a?b?");
}

/* The line of a key file that was given in place of a file or a public key. */
Test(errors, the_line_of_a_secret_key_is_masked)
{
    static const char SECRET[] = "pZy{!Xq)7<0123456789abcdefghijklmnopqrst";
    heddle_error_t error;
    char line[128];
    snprintf(line, sizeof line, "public of another\nsecret %s", SECRET);
    error_fail(&error, HEDDLE_ERR_USAGE, "\"%s\" is no endpoint", line);
    error_contrast(&error, line, line);
    error_hint(&error, "not %s", line);
    const char *const FIELDS[] = {error.message, error.expected, error.found, error.hint};
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        cr_assert(strstr(FIELDS[i], "secret ****"), "%s", FIELDS[i]);
        cr_assert_null(strstr(FIELDS[i], "pZy"), "%s", FIELDS[i]);
        cr_assert_null(strstr(FIELDS[i], "rst"), "%s", FIELDS[i]);
    }
    error_text(line, sizeof line, "has no secret line; the secret is in /home/ann/.config/heddle/keys");
    cr_assert_str_eq(line, "has no secret line; the secret is in /home/ann/.config/heddle/keys");
}

/* A join string is a secret, and comes into errors by a mistyped command line. */
Test(errors, a_join_string_is_masked)
{
    heddle_error_t error;
    char text[64];
    error_fail(&error, HEDDLE_ERR_USAGE, "\"%s\" is not an option", "--jion=heddle-join-1:AbC-_9xyz");
    error_found(&error, "%s and %s", "heddle-join-1:AbC-_9xyz", "heddle-join-23:Abcd");
    cr_assert_str_eq(error.message, "\"--jion=heddle-join-1:*********\" is not an option");
    cr_assert_str_eq(error.found, "heddle-join-1:********* and heddle-join-23:****");
    error_contrast(&error, "heddle-join-1: or heddle-join-1:... or heddle-join-", "heddle-join-1:AbC");
    cr_assert_str_eq(error.expected, "heddle-join-1: or heddle-join-1:... or heddle-join-");
    cr_assert_str_eq(error.found, "heddle-join-1:***");
    error_where(&error, "heddle-join-1:AbC", 0, "heddle-join-1:AbC", NULL);
    cr_assert_str_eq(error.adapter, "heddle-join-1:***");
    cr_assert_str_eq(error.worker, "heddle-join-1:***");
    error_text(text, sizeof text, "heddle-join-1:AbC");
    cr_assert_str_eq(text, "heddle-join-1:AbC", "as `heddle invite` shows it");
}

Test(errors, what_a_terminal_obeys_is_a_question_mark)
{
    char to[64];
    error_text(to, sizeof to,
               "a\x1b[2Jb\xc2\x9b"
               "c\x7f");
    cr_assert_str_eq(to, "a?[2Jb??c?");
    error_text(to, sizeof to,
               "a\xe2\x80\x8e\xe2\x80\xae"
               "b\xe2\x81\xa6\xe2\x81\xa9"
               "c");
    cr_assert_str_eq(to, "a??????b??????c", "what turns the direction of a line");
    error_text(to, sizeof to, "\xe2\x80\xa6 \xe2\x81\xaa \xe2\x82\xac \xc3\xa9");
    cr_assert_str_eq(to, "\xe2\x80\xa6 \xe2\x81\xaa \xe2\x82\xac \xc3\xa9", "and nothing else");
}

/* A file's name may have any bytes, and a text that was cut ends inside a character. */
Test(utf8, any_text_becomes_json)
{
    static const struct {
        const char *text, *json;
    } ROWS[] = {{"a\xc3\xa9", "a\xc3\xa9"}, {"\xe9t\xe9", "?t?"}, {"a\xc3", "a?"}, {"", ""}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        json_t *value = utf8_json(ROWS[i].text);
        cr_assert_str_eq(json_string_value(value), ROWS[i].json);
        json_decref(value);
    }
    json_t *value = utf8_json_or_null("\xff");
    cr_assert_str_eq(json_string_value(value), "?");
    json_decref(value);
    cr_assert(json_is_null(utf8_json_or_null(NULL)) && json_is_null(utf8_json_or_null("")));
}
