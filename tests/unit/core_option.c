/* SPDX-License-Identifier: Apache-2.0 */
/* The table as it is dumped for other programs. */
#include "captured.h"
#include "core/errors.h"
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

Test(option, one_that_is_given_is_told_from_its_value)
{
    static const struct {
        const char *words[4];
        bool has_mode;
    } ROWS[] = {{{"sample", ".", "--mode=two"}, true},    {{"sample", "-m", "two", "."}, true},
                {{"sample", "--mo", "two", "."}, true},   {{"sample", ".", "--flag"}, false},
                {{"sample", ".", "--name", "-m"}, false}, {{"sample", "--", "--mode=two"}, false}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char *argv[5] = {NULL};
        int argc = 0;
        for (; argc < 4 && ROWS[i].words[argc]; argc++) argv[argc] = (char *)ROWS[i].words[argc];
        cr_assert_eq(option_is_given(&SET, argc, argv, "mode"), ROWS[i].has_mode, "row %zu", i);
    }
    args_t args = {0};
    heddle_error_t error;
    cr_assert(!option_store(&SET, "mode", "two", &args, &error) && args.mode == 1);
    cr_assert(!option_store(&SET, "name", "x", &args, &error) && !strcmp(args.name, "x"));
    cr_assert_eq(option_store(&SET, "mode", "three", &args, &error), HEDDLE_ERR_USAGE);
    cr_assert(strstr(error.message, "--mode") && !strcmp(error.found, "three"), "%s", error.message);
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

/* ---- what a command does not take, and how it is asked for instead ---- */

typedef struct {
    const char *adapter, *to, *worker;
    int64_t last;
} guess_t;
static const option_t TO[] = {{"to", 0, OPTION_TEXT, "V", NULL, NULL, "that version", offsetof(guess_t, to)},
                              {0}};
static const option_t ADAPTER[] = {
    {"adapter", 0, OPTION_TEXT, "NAME", NULL, NULL, "of it", offsetof(guess_t, adapter)}, {0}};
static const option_t FILTERS[] = {
    {"adapter", 0, OPTION_TEXT, "NAME", NULL, NULL, "of it", offsetof(guess_t, adapter)},
    {"worker", 0, OPTION_TEXT, "NAME", NULL, NULL, "of it", offsetof(guess_t, worker)},
    {"last", 0, OPTION_INTEGER, "N", NULL, "0", "the newest", offsetof(guess_t, last)},
    {0}};
static const char *const REF[] = {"REF", NULL}, *const REF_DIR[] = {"REF", "DIR", NULL},
                         *const NAME[] = {"NAME", NULL}, *const WORKER[] = {"WORKER", NULL};
static const option_set_t LIST = {
    "heddle versions", "NAME|NAME@V|TAG [OPTION...]", "", NULL, NULL, NULL, REF, 1, NULL};
static const option_set_t BACK = {
    "heddle rollback", "NAME|NAME@V|TAG [OPTION...]", "", NULL, TO, NULL, NAME, 1, NULL};
static const option_set_t PULL = {
    "heddle pull", "NAME|NAME@V|TAG DIR [OPTION...]", "", NULL, NULL, NULL, REF_DIR, 2, NULL};
static const option_set_t PUBLISH = {
    "heddle publish", "DIR --adapter NAME [OPTION...]", "", NULL, ADAPTER, NULL, ARGS, 1, NULL};
static const option_set_t WORKERS = {
    "heddle workers", "[NAME] [OPTION...]", "", NULL, NULL, NULL, WORKER, 0, NULL};
static const option_set_t EVENTS = {"heddle events", "[OPTION...]", "", NULL, FILTERS, NULL, NULL, 0, NULL};

static heddle_error_t refused(const option_set_t *set, const char *line)
{
    char words[200], *argv[12] = {"heddle"}, *state = NULL;
    int argc = 1;
    union {
        guess_t guess;
        args_t sample;
    } into = {{0}};
    const char *args[2];
    heddle_error_t e = {0};
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok_r(words, " ", &state); w; w = strtok_r(NULL, " ", &state)) argv[argc++] = w;
    cr_assert_eq(option_parse(set, argc, argv, &into, args, &e), HEDDLE_ERR_USAGE, "%s", line);
    return e;
}

/* getopt goes on within the word, which is not behind it yet. */
Test(option, a_letter_that_is_no_option_is_named)
{
    static const char OPTIONS_THERE[] = "--mode, --flag, --name, --help, --version";
    static const struct {
        const char *line, *message, *expected, *found;
    } ROWS[] = {
        {"-w2", "heddle sample: unknown option -w", OPTIONS_THERE, "-w"},
        {"dir -w", "heddle sample: unknown option -w", OPTIONS_THERE, "-w"},
        {"dir --port=1", "heddle sample: unknown option --port=1", OPTIONS_THERE, "--port=1"},
        {"dir -m", "heddle sample: -m needs a value", "-m one|two", "no value"},
        {"dir --mode", "heddle sample: --mode needs a value", "--mode one|two", "no value"},
        {"--flag", "heddle sample: DIR is missing", "heddle sample DIR [OPTION...]", "no DIR"},
        {"dir more", "heddle sample: unexpected argument \"more\"", "heddle sample DIR [OPTION...]", "more"}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        heddle_error_t e = refused(&SET, ROWS[i].line);
        cr_assert_str_eq(e.message, ROWS[i].message, "%s: %s", ROWS[i].line, e.message);
        cr_assert_str_eq(e.expected, ROWS[i].expected, "%s: %s", ROWS[i].line, e.expected);
        cr_assert_str_eq(e.found, ROWS[i].found, "%s: %s", ROWS[i].line, e.found);
    }
}

Test(option, an_unknown_name_shows_those_that_there_are)
{
    static const char *const NAMES[] = {"critic", "policy", "reward", NULL}, *const NONE[] = {NULL};
    char text[40][8];
    const char *many[41] = {NULL};
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_NOT_FOUND, "there is no adapter");
    option_unknown_name("polcy", NAMES, "`heddle adapters` lists them", &e);
    cr_assert_str_eq(e.expected, "critic, policy, reward");
    cr_assert_str_eq(e.found, "polcy");
    cr_assert_str_eq(e.hint, "did you mean policy? `heddle adapters` lists them");
    option_unknown_name("x", NONE, "`heddle adapters` lists them", &e);
    cr_assert_str_eq(e.expected, "nothing: there is none");
    cr_assert_str_eq(e.hint, "`heddle adapters` lists them");
    for (int i = 0; i < 40; i++) {
        snprintf(text[i], sizeof text[i], "name-%02u", (unsigned)i % 100u);
        many[i] = text[i];
    }
    option_unknown_name("x", many, "", &e);
    cr_assert(!strncmp(e.expected, "name-00, name-01, ", 18), "%s", e.expected);
    cr_assert_not_null(strstr(e.expected, " and 21 others"), "%s", e.expected);
    cr_assert_null(strstr(e.expected, "name-39"), "%s", e.expected);
}

Test(option, a_word_that_is_not_taken_names_what_is)
{
    static const struct {
        const option_set_t *set;
        const char *line, *expected, *hint;
    } ROWS[] = {
        {&LIST, "policy 4", "heddle versions NAME|NAME@V|TAG [OPTION...]",
         "did you mean `heddle versions policy@4`?"},
        {&LIST, "policy v4", "heddle versions NAME|NAME@V|TAG [OPTION...]",
         "did you mean `heddle versions policy@4`?"},
        {&LIST, "policy@3 4", "heddle versions NAME|NAME@V|TAG [OPTION...]", "see heddle versions --help"},
        {&LIST, "policy critic", "heddle versions NAME|NAME@V|TAG [OPTION...]", "see heddle versions --help"},
        {&BACK, "policy 4", "heddle rollback NAME|NAME@V|TAG [OPTION...]",
         "did you mean `heddle rollback policy --to 4`?"},
        {&PULL, "policy 4 ./out", "heddle pull NAME|NAME@V|TAG DIR [OPTION...]",
         "did you mean `heddle pull policy@4 ./out`?"},
        {&PUBLISH, "./dir policy", "heddle publish DIR --adapter NAME [OPTION...]",
         "did you mean --adapter policy? see heddle publish --help"},
        {&PUBLISH, "policy ./dir", "heddle publish DIR --adapter NAME [OPTION...]",
         "see heddle publish --help"},
        {&EVENTS, "policy", "heddle events [OPTION...]",
         "did you mean --adapter policy? see heddle events --help"},
        {&EVENTS, "policy@4", "heddle events [OPTION...]", "see heddle events --help"}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        heddle_error_t e = refused(ROWS[i].set, ROWS[i].line);
        cr_assert_str_eq(e.expected, ROWS[i].expected, "%s: %s", ROWS[i].line, e.expected);
        cr_assert_str_eq(e.hint, ROWS[i].hint, "%s: %s", ROWS[i].line, e.hint);
    }
}

Test(option, an_option_that_is_an_argument_here_or_has_another_name)
{
    static const struct {
        const option_set_t *set;
        const char *line, *hint;
    } ROWS[] = {
        {&WORKERS, "--name w2", "did you mean `heddle workers w2`?"},
        {&WORKERS, "--name=w2 -q", "did you mean `heddle workers w2 -q`?"},
        {&WORKERS, "--worker w2", "did you mean `heddle workers w2`?"},
        {&WORKERS, "--name", "see heddle workers --help"},
        {&WORKERS, "w1 --name w2", "see heddle workers --help"},
        {&WORKERS, "--adapter policy", "see heddle workers --help"},
        {&LIST, "--adapter policy", "did you mean `heddle versions policy`?"},
        {&PULL, "policy --dir ./out", "did you mean `heddle pull policy ./out`?"},
        {&PUBLISH, "--dir ./a --adapter policy", "did you mean `heddle publish ./a --adapter policy`?"},
        {&PUBLISH, "./a --name policy", "did you mean --adapter? see heddle publish --help"},
        {&EVENTS, "--name w2", "did you mean --adapter or --worker? see heddle events --help"},
        {&EVENTS, "--tail 5", "did you mean --last? see heddle events --help"},
        {&LIST, "policy --to 4", "did you mean `heddle versions policy@4`?"}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        heddle_error_t e = refused(ROWS[i].set, ROWS[i].line);
        cr_assert_str_eq(e.hint, ROWS[i].hint, "%s: %s", ROWS[i].line, e.hint);
    }
}

/* --version prints the release and ends well: a script would take that for the roll-back. */
Test(option, a_version_behind_a_name_is_not_the_option_version)
{
    cr_assert_str_eq(refused(&BACK, "policy --version 4").hint,
                     "did you mean `heddle rollback policy --to 4`?");
    cr_assert_str_eq(refused(&LIST, "policy --version 4").hint, "did you mean `heddle versions policy@4`?");
    cr_assert_str_eq(refused(&LIST, "policy --version=4").hint, "did you mean `heddle versions policy@4`?");
    cr_assert_str_eq(refused(&LIST, "--version 4 policy").hint, "did you mean `heddle versions policy@4`?");
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
        cr_assert_null(strstr(e.found, "y!Xq"), "%s", e.found);
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

typedef struct {
    uint32_t watch_ms;
} watched_t;
static const option_t WATCH[] = {
    {"watch", 'w', OPTION_PERIOD, "DUR", NULL, "2s", "again", offsetof(watched_t, watch_ms)}, {0}};
static const option_set_t WATCHED = {"sample", "[NAME]", "Nothing.", NULL, WATCH, NULL, ARGS, 0, NULL};

/* What it is, and what is left as an argument. */
static int watched(const char *word, const char *next, uint32_t *ret_ms, const char **ret_argument)
{
    char *argv[] = {"sample", (char *)(uintptr_t)word, (char *)(uintptr_t)next, NULL};
    watched_t args = {0};
    heddle_error_t error;
    int rc = option_parse(&WATCHED, next ? 3 : word ? 2 : 1, argv, &args, ret_argument, &error);
    *ret_ms = args.watch_ms;
    return rc;
}

Test(option, a_period_may_be_left_out)
{
    uint32_t ms;
    const char *argument;
    cr_assert(!watched(NULL, NULL, &ms, &argument) && ms == 0, "it is not given: %u", ms);
    cr_assert(!watched("--watch", NULL, &ms, &argument) && ms == 2000, "%u", ms);
    cr_assert(!watched("--watch=500ms", NULL, &ms, &argument) && ms == 500, "%u", ms);
    cr_assert(!watched("-w", "3", &ms, &argument) && ms == 2000 && !strcmp(argument, "3"),
              "the next word is an argument");
    cr_assert_eq(watched("--watch", "1s", &ms, &argument), HEDDLE_ERR_USAGE, "it would be a name");
    cr_assert_eq(watched("-w", "500ms", &ms, &argument), HEDDLE_ERR_USAGE);
    cr_assert(!watched("--watch", "1st", &ms, &argument) && ms == 2000 && !strcmp(argument, "1st"));
    cr_assert(!watched("1s", "--watch", &ms, &argument) && ms == 2000 && !strcmp(argument, "1s"),
              "before it a name may be like a duration");
    cr_assert_eq(watched("--watch=0", NULL, &ms, &argument), HEDDLE_ERR_USAGE, "it would never wait");
    cr_assert_eq(watched("--watch=often", NULL, &ms, &argument), HEDDLE_ERR_USAGE);
    char *text = option_help(&WATCHED);
    cr_assert(strstr(text, "  -w, --watch[=DUR]             again [2s]\n"), "%s", text);
    free(text);
}

/* At most 100 columns, with the default and the variable. */
Test(option, help_wraps_what_it_says_of_an_option)
{
    static const option_t LONG[] = {{"flag", 'f', OPTION_FLAG, NULL, NULL, NULL,
                                     "one two three four five six seven eight nine ten eleven twelve 13; "
                                     "fourteen fifteen sixteen",
                                     0},
                                    {"a-long-name-of-an-option", 0, OPTION_TEXT, "VALUE", "HEDDLE_LONG",
                                     "none", "one two three four five six seven eight nine ten eleven twelve",
                                     0},
                                    {0}};
    static const option_set_t WRAPPED = {"sample", "", "Nothing.", NULL, LONG, NULL, NULL, 0, NULL};
    static const char ROWS[] =
        "Options:\n"
        "  -f, --flag                    one two three four five six seven eight nine ten eleven twelve 13;\n"
        "                                fourteen fifteen sixteen\n"
        "      --a-long-name-of-an-option VALUE\n"
        "                                one two three four five six seven eight nine ten eleven twelve\n"
        "                                [none] ($HEDDLE_LONG)\n"
        "\nCommon options:\n";
    char *text = option_help(&WRAPPED);
    cr_assert(text && strstr(text, ROWS), "%s", text);
    free(text);
}
