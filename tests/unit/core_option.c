/* SPDX-License-Identifier: Apache-2.0 */
/* The table as it is dumped for other programs. */
#include "captured.h"
#include "core/log.h"
#include "core/option.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    bool flag;
    const char *name;
    int mode;
} args_t;
static const option_t OPTIONS[] = {
    {"mode", 'm', OPTION_CHOICE, "one|two", "HEDDLE_MODE", "one", "which\tof\nthem", offsetof(args_t, mode)},
    {"flag", 0, OPTION_FLAG, NULL, NULL, NULL, "is it so", offsetof(args_t, flag)},
    {0}};
static const option_t COMMON[] = {
    {"name", 0, OPTION_TEXT, "NAME", NULL, NULL, "whose", offsetof(args_t, name)}, {0}};
static const char *const ARGS[] = {"DIR", NULL};
static const option_set_t SET = {"heddle sample",
                                 "DIR [OPTION...]",
                                 "Does\nnothing.",
                                 NULL,
                                 OPTIONS,
                                 COMMON,
                                 ARGS,
                                 1,
                                 "Exit status: 0 ok.\n\nExamples:\n  heddle sample ."};

static const char EXPECTED[] = "program\theddle sample\n"
                               "usage\tDIR [OPTION...]\n"
                               "summary\tDoes nothing.\n"
                               "epilog\t\n"
                               "argument\tDIR\n"
                               "option\town\tmode\tm\tchoice\tone|two\tHEDDLE_MODE\tone\twhich of them\n"
                               "option\town\tflag\t\tflag\t\t\t\tis it so\n"
                               "option\tcommon\tname\t\ttext\tNAME\t\t\twhose\n"
                               "option\tcommon\thelp\th\tflag\t\t\t\tshow this text and exit\n"
                               "option\tcommon\tversion\t\tflag\t\t\t\tshow the version and exit\n"
                               "note\tExit status: 0 ok.\n"
                               "note\t\n"
                               "note\tExamples:\n"
                               "note\t  heddle sample .\n";

Test(option, a_mistyped_word_is_near_what_it_means)
{
    static const char *const WORDS[] = {"status", "versions", "verify", "activate", "wait", NULL};
    static const struct {
        const char *typed, *meant;
    } ROWS[] = {{"stauts", "status"}, {"statsu", "status"},    {"staus", "status"}, {"sttatus", "status"},
                {"vers", "versions"}, {"version", "versions"}, {"verfy", "verify"}, {"actviate", "activate"},
                {"wiat", "wait"},     {"activat", "activate"}, {"wa", NULL},        {"x", NULL},
                {"", NULL},           {"publish", NULL},       {"wxyz", NULL}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const char *found = option_nearest(ROWS[i].typed, WORDS);
        cr_assert_eq(!found, !ROWS[i].meant, "%s: %s", ROWS[i].typed, found ? found : "none");
        if (found) cr_assert_str_eq(found, ROWS[i].meant, "%s", ROWS[i].typed);
    }
    char word[400];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = 0;
    cr_assert_null(option_nearest(word, WORDS), "what is longer than any word is near none");
}

Test(option, an_unknown_option_names_the_near_one)
{
    static const struct {
        const char *typed, *hint;
    } ROWS[] = {{"--flga", "did you mean --flag? see heddle sample --help"},
                {"--nmae=x", "did you mean --name? see heddle sample --help"},
                {"--other", "see heddle sample --help"},
                {"-x", "see heddle sample --help"}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char typed[32], *argv[] = {"heddle", typed, "dir", NULL};
        const char *args[1];
        args_t into = {0};
        heddle_error_t error;
        snprintf(typed, sizeof typed, "%s", ROWS[i].typed);
        cr_assert_eq(option_parse(&SET, 3, argv, &into, args, &error), HEDDLE_ERR_USAGE);
        cr_assert_str_eq(error.hint, ROWS[i].hint);
    }
}

/* "--name $(tail -1 own.key)" without quotes leaves the secret as a word of its own, which may begin with "-". */
Test(option, a_surplus_word_that_may_be_a_key_is_not_repeated)
{
    static const char *const KEYS[] = {"pZy!Xq)7<0123456789abcdefghijklmnopqrst-",
                                       "--y!Xq)7<0123456789abcdefghijklmnopqrst-"};
    for (int i = 0; i < 2; i++) {
        args_t args = {0};
        const char *words[1];
        heddle_error_t e;
        char *argv[] = {"sample", ".", "--name", "secret", (char *)(uintptr_t)KEYS[i], NULL};
        cr_assert_eq(option_parse(&SET, 5, argv, &args, words, &e), HEDDLE_ERR_USAGE);
        cr_assert(strstr(e.message, "a word of 40 characters"), "%s", e.message);
        cr_assert_null(strstr(e.message, "y!Xq"), "%s", e.message);
        cr_assert_null(strstr(e.hint, "y!Xq"), "%s", e.hint);
    }
}

Test(option, dump_has_every_row_and_no_field_breaks_a_line)
{
    char *text = option_dump(&SET);
    cr_assert_str_eq(text, EXPECTED);
    free(text);
}

Test(option, dump_is_printed_without_the_arguments_that_are_required, .init = cr_redirect_stdout)
{
    char *argv[] = {"sample", "--dump-options", NULL};
    args_t args = {0};
    const char *positional[1];
    heddle_error_t error;
    cr_assert_eq(option_parse(&SET, 2, argv, &args, positional, &error), 1);
    fflush(stdout);
    cr_assert_stdout_eq_str(EXPECTED);
}

Test(option, dump_beside_others_is_an_unknown_option)
{
    char *argv[] = {"sample", "dir", "--dump-options", NULL};
    args_t args = {0};
    const char *positional[1];
    heddle_error_t error;
    cr_assert_eq(option_parse(&SET, 3, argv, &args, positional, &error), HEDDLE_ERR_USAGE);
}

Test(option, fields_of_the_library_are_options_of_a_command)
{
    char hint[] = "name it with opts.broker or HEDDLE_BROKER, opts.broker_key; or longer opts.timeout_ms";
    option_words(hint);
    cr_assert_str_eq(hint, "name it with --broker or HEDDLE_BROKER, --broker-key; or longer --timeout");
}

/* A line of the log as a program prints it. */
static const char *logged(void)
{
    captured_t stderr_now = captured_begin();
    log_emit(LOG_ERROR, "data.device", "%s names another", "opts.data_device");
    return captured_end(&stderr_now);
}

Test(option, a_program_logs_its_own_options)
{
    cr_assert(strstr(logged(), "data.device: opts.data_device names another\n"), "the library's words: %s",
              logged());
    log_set_words(option_words);
    cr_assert(strstr(logged(), "data.device: --data-device names another\n"), "%s", logged());
    log_set_words(NULL);
}
