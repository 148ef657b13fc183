/* SPDX-License-Identifier: Apache-2.0 */
/* The join string: what is written is read again, and no other text is. */
#include "captured.h"
#include "tests/lib/temp_dir.h"
#include "wire/join_string.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static join_string_t whole;
static char text[JOIN_STRING_TEXT];
static heddle_error_t e;

static void init(void)
{
    key_pair_t broker;
    make_dir();
    cr_assert_eq(key_make(&broker, &e), HEDDLE_OK);
    cr_assert_eq(key_make(&whole.pair, &e), HEDDLE_OK);
    memcpy(whole.broker_key, broker.public_key, KEY_TEXT);
    strcpy(whole.endpoints, "tcp://10.0.0.5:7700,tcp://[fd00::5]:7700");
    cr_assert_eq(join_string_write(&whole, text, &e), HEDDLE_OK, "%s", e.message);
}
static void fini(void) { remove_dir(); }
TestSuite(join_string, .init = init, .fini = fini);

static const char *file_with(const char *content, mode_t mode)
{
    static char name[96];
    snprintf(name, sizeof name, "@%s/join", dir);
    FILE *f = fopen(name + 1, "w");
    cr_assert(f && fputs(content, f) >= 0 && !fclose(f) && !chmod(name + 1, mode));
    return name;
}

Test(join_string, is_the_first_line_of_a_file)
{
    join_string_t back;
    char line[JOIN_STRING_TEXT + 64];
    snprintf(line, sizeof line, "%s\r\nhere is your invitation\n", text);
    captured_t log = captured_begin();
    int rc = join_string_take(file_with(line, 0600), &back, &e);
    cr_assert_str_eq(captured_end(&log), "");
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(back.pair.secret_key, whole.pair.secret_key);
    log = captured_begin();
    rc = join_string_take(file_with(line, 0644), &back, &e);
    cr_assert(strstr(captured_end(&log), "keys.others"), "as a key file that others can read");
    cr_assert_eq(rc, HEDDLE_OK);
    log = captured_begin();
    rc = join_string_read(file_with(line, 0644), &back, &e);
    cr_assert_str_eq(captured_end(&log), "", "it is not used");
    cr_assert_eq(rc, HEDDLE_OK);
    cr_assert_eq(join_string_take("@/nowhere/join", &back, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(join_string_take(file_with("", 0600), &back, &e), HEDDLE_ERR_USAGE);
}

Test(join_string, of_another_user_is_refused_with_the_name_of_this_one)
{
    static const struct {
        uid_t uid;
        const char *hint;
    } CASES[] = {{65534, "runs as the user nobody, "}, {54321, "runs as the user 54321, "}};
    join_string_t back;
    const char *file = file_with(text, 0600);
    if (geteuid() != 0) cr_skip_test("only root can be another user");
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        cr_assert_eq(seteuid(CASES[i].uid), 0);
        int rc = join_string_take(file, &back, &e);
        cr_assert_eq(seteuid(0), 0);
        cr_assert_eq(rc, HEDDLE_ERR_DATA_DIR);
        cr_assert(strstr(e.hint, CASES[i].hint) && strstr(e.hint, file + 1), "%s", e.hint);
    }
}

Test(join_string, is_read_as_it_was_written)
{
    join_string_t back;
    cr_assert_eq(join_string_parse(text, &back, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(back.endpoints, whole.endpoints);
    cr_assert_str_eq(back.broker_key, whole.broker_key);
    cr_assert_str_eq(back.pair.secret_key, whole.pair.secret_key);
    cr_assert_str_eq(back.pair.public_key, whole.pair.public_key, "derived, and not in the text");
    cr_assert(strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_:") ==
                  strlen(text),
              "a shell takes it without quotes: %s", text);
}

/* As a variable of a pod has it, whose Secret was made from a file. */
Test(join_string, may_end_with_a_newline)
{
    join_string_t back;
    char line[JOIN_STRING_TEXT + 4];
    for (const char *end = "\n\0\r\n\0"; *end; end += strlen(end) + 1) {
        snprintf(line, sizeof line, "%s%s", text, end);
        cr_assert_eq(join_string_take(line, &back, &e), HEDDLE_OK, "%s", e.message);
        cr_assert_str_eq(back.pair.secret_key, whole.pair.secret_key);
    }
}

/* No error has a part of the secret. */
static void expect_refused(const char *bad)
{
    join_string_t back = {.endpoints = "as before"};
    cr_assert_eq(join_string_parse(bad, &back, &e), HEDDLE_ERR_USAGE, "%s", bad);
    cr_assert_str_eq(back.endpoints, "as before");
    cr_assert(!strstr(e.message, bad + strlen(bad) / 2) && !strstr(e.found, bad + strlen(bad) / 2) &&
              strstr(e.found, "characters") && e.hint[0]);
}

Test(join_string, that_is_torn_or_mistyped_is_refused)
{
    char bad[JOIN_STRING_TEXT + 8];
    for (size_t n = strlen(text) - 1; n > sizeof JOIN_STRING_PREFIX; n--) {
        snprintf(bad, sizeof bad, "%.*s", (int)n, text);
        expect_refused(bad);
    }
    for (size_t i = sizeof JOIN_STRING_PREFIX - 1; i < strlen(text); i++) {
        strcpy(bad, text);
        bad[i] = bad[i] == 'A' ? 'B' : 'A';
        expect_refused(bad);
        bad[i] = '%';
        expect_refused(bad);
    }
    snprintf(bad, sizeof bad, "%sAAAA", text);
    expect_refused(bad);
}

Test(join_string, of_another_release_says_so)
{
    char other[JOIN_STRING_TEXT];
    strcpy(other, text);
    other[12] = '2';
    expect_refused(other);
    cr_assert(strstr(e.message, "another release"), "%s", e.message);
    expect_refused("XcFKr2aaaaaaaaaabbbbbbbbbbccccccccccdddd");
    cr_assert(strstr(e.message, "not a join string"), "%s", e.message);
}

Test(join_string, of_an_address_that_leads_nowhere_is_not_written)
{
    strcpy(whole.endpoints, "10.0.0.5");
    cr_assert_eq(join_string_write(&whole, text, &e), HEDDLE_ERR_USAGE);
}
