/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer says of itself may be anything: in tables it is text, and nothing that a terminal obeys. */
#include "cli/cli.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char HOSTILE[] =
    "{\"adapters\":[{\"name\":\"p\\u001b[2J\\ny\",\"active\":null,\"newest\":{\"version\":1,\"state\":"
    "\"a\\u009b1m\\u007fb\"},\"writer\":{\"name\":\"w\\u001b]0;x\\u0007\"},\"base\":{\"\\u001b[1m\":"
    "\"caf\u00e9\"}}]}";

/* What comes out of `fd` while a call ends so. */
static char *printed_on(int fd, const heddle_error_t *why, render_t *render, const char *answer, int output)
{
    static char text[4096];
    int saved = dup(fd), ends[2];
    common_t c = {.output = output};
    cr_assert(saved >= 0 && pipe(ends) == 0);
    fflush(stdout);
    dup2(ends[1], fd);
    int end = cli_answer(&c, "adapters", why, answer ? strdup(answer) : NULL, render);
    fflush(stdout);
    dup2(saved, fd);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    cr_assert(!end == !why->code && n > 0);
    text[n] = 0;
    close(saved);
    close(ends[0]);
    close(ends[1]);
    return text;
}

static char *printed_by(render_t *render, const char *answer, int output)
{
    return printed_on(STDOUT_FILENO, &(heddle_error_t){0}, render, answer, output);
}

static char *printed(int output) { return printed_by(cli_show_adapters, HOSTILE, output); }

Test(shown, a_table_has_no_escapes_of_others)
{
    const char *text = printed(OUTPUT_TABLE), *line = strchr(text, '\n');
    cr_assert(line && strchr(line + 1, '\n') == text + strlen(text) - 1, "a heading and a row: %s", text);
    for (const char *c = text; *c; c++)
        cr_assert(((unsigned char)*c >= 0x20 && *c != 0x7f) || *c == '\n', "%02x in %s", *c, text);
    cr_assert(strstr(text, "p?[2J?y") && strstr(text, "1 a??1m?b") && strstr(text, "w?]0;x?"), "%s", text);
}

Test(shown, json_says_what_was_said)
{
    const char *text = printed(OUTPUT_JSON);
    cr_assert(strstr(text, "p\\u001B[2J\\ny") && strstr(text, "caf\u00e9"), "%s", text);
}

Test(shown, every_text_at_any_depth_is_settled_and_letters_stay)
{
    json_t *v = json_loads(HOSTILE, 0, NULL);
    cli_clean_texts(v);
    const json_t *a = json_array_get(json_object_get(v, "adapters"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(a, "name")), "p?[2J?y");
    const json_t *deep = json_object_iter_value(json_object_iter(json_object_get(a, "base")));
    cr_assert_str_eq(json_string_value(deep), "caf\u00e9");
    json_decref(v);
}

static void show_table(const common_t *c, json_t *answer)
{
    cli_table_t t;
    (void)c, (void)answer;
    table_fit((int)cli_integer(answer, "columns"));
    table_init(&t, "WORKER", ">LAG", "+WHY");
    table_row(&t, "w1", "12", "unavailable: no route to host 10.0.0.5");
    table_row(&t, "w2", "0", "-");
    table_print(&t);
    table_fit(0);
}

/* In a frame the last column has the rest, and goes on below it; it is never cut. */
Test(shown, a_reason_goes_on_where_the_table_is_too_wide)
{
    cr_assert_str_eq(
        printed_by(show_table, "{\"columns\":0}", OUTPUT_TABLE),
        "WORKER  LAG  WHY\nw1       12  unavailable: no route to host 10.0.0.5\nw2        0  -\n");
    cr_assert_str_eq(
        printed_by(show_table, "{\"columns\":80}", OUTPUT_TABLE),
        "WORKER  LAG  WHY\nw1       12  unavailable: no route to host 10.0.0.5\nw2        0  -\n");
    cr_assert_str_eq(printed_by(show_table, "{\"columns\":34}", OUTPUT_TABLE),
                     "WORKER  LAG  WHY\nw1       12  unavailable: no route\n"
                     "             to host 10.0.0.5\nw2        0  -\n");
    cr_assert_str_eq(printed_by(show_table, "{\"columns\":24}", OUTPUT_TABLE),
                     "WORKER  LAG  \nw1       12  \n    WHY  unavailable: no\n         route to host\n"
                     "         10.0.0.5\nw2        0  \n");
    cr_assert_str_eq(printed_by(show_table, "{\"columns\":9}", OUTPUT_TABLE),
                     "WORKER  L\nw1       \nunavailab\nle: no\nroute to\nhost\n10.0.0.5\nw2       \n");
}

static void show_wide(const common_t *c, json_t *answer)
{
    cli_table_t t;
    (void)c;
    table_fit((int)cli_integer(answer, "columns"));
    table_init(&t, "WORKER", "~DIGEST", "~>BYTES", ">LAG");
    table_row(&t, "w1", "5c3918bf392e", "65.5 kB", "12");
    table_print(&t);
    table_fit(0);
}

/* Whole ones, from the right, and no more than needed. */
Test(shown, columns_that_give_way_are_left_out)
{
    static const char WHOLE[] = "WORKER  DIGEST          BYTES  LAG\nw1      5c3918bf392e  65.5 kB   12\n";
    cr_assert_str_eq(printed_by(show_wide, "{\"columns\":0}", OUTPUT_TABLE), WHOLE);
    cr_assert_str_eq(printed_by(show_wide, "{\"columns\":34}", OUTPUT_TABLE), WHOLE);
    cr_assert_str_eq(printed_by(show_wide, "{\"columns\":33}", OUTPUT_TABLE),
                     "WORKER  DIGEST        LAG\nw1      5c3918bf392e   12\n");
    cr_assert_str_eq(printed_by(show_wide, "{\"columns\":20}", OUTPUT_TABLE), "WORKER  LAG\nw1       12\n");
}

static void show_names(const common_t *c, json_t *answer)
{
    cli_table_t t;
    (void)c;
    table_fit((int)cli_integer(answer, "columns"));
    table_init(&t, "<WORKER", "<ADAPTER", "STATE", "~DIGEST", "+WHY");
    table_row(&t, "rollout-7d9f8b6c54-ccccc", "policy-adapter", "draining", "5c39", "-");
    table_row(&t, "w1", "p", "active", "18bf", "-");
    table_print(&t);
    table_fit(0);
}

/* After the columns that may be left out, and the longest first: what they are now is whole. */
Test(shown, names_give_way_to_states)
{
    cr_assert_str_eq(printed_by(show_names, "{\"columns\":0}", OUTPUT_TABLE),
                     "WORKER                    ADAPTER         STATE     DIGEST  WHY\n"
                     "rollout-7d9f8b6c54-ccccc  policy-adapter  draining  5c39    -\n"
                     "w1                        p               active    18bf    -\n");
    cr_assert_str_eq(printed_by(show_names, "{\"columns\":50}", OUTPUT_TABLE),
                     "WORKER                    ADAPTER         STATE   \n"
                     "rollout-7d9f8b6c54-ccccc  policy-adapter  draining\n"
                     "w1                        p               active  \n");
    cr_assert_str_eq(printed_by(show_names, "{\"columns\":40}", OUTPUT_TABLE),
                     "WORKER          ADAPTER         STATE   \n"
                     "..8b6c54-ccccc  policy-adapter  draining\n"
                     "w1              p               active  \n");
    cr_assert_str_eq(printed_by(show_names, "{\"columns\":26}", OUTPUT_TABLE),
                     "WORKER    ADAPTER   STATE \n"
                     "..-ccccc  ..dapter  draini\n"
                     "w1        p         active\n");
}

static void show_awaited(const common_t *c, json_t *a)
{
    (void)c;
    cli_show_decision(a, true);
}

static void show_unawaited(const common_t *c, json_t *a)
{
    (void)c;
    cli_show_decision(a, false);
}

#define DECIDED "{\"adapter\":\"policy\",\"elapsed_ms\":0.4,\"bytes_moved\":0,\"to\":13,"

Test(shown, what_is_active_already_and_not_waited_for)
{
    static const char AGAIN[] = DECIDED "\"from\":13,\"changed\":false,\"held\":false,\"need_count\":0,"
                                        "\"have_count\":0,\"eligible_count\":1}",
                      EVERYWHERE[] = DECIDED "\"from\":13,\"changed\":false,\"held\":false,"
                                             "\"need_count\":0,\"have_count\":2,\"eligible_count\":2}",
                      HELD[] = DECIDED "\"from\":13,\"changed\":false,\"held\":true,\"need_count\":0,"
                                       "\"have_count\":1,\"eligible_count\":1}";
    cr_assert_str_eq(printed_by(show_unawaited, AGAIN, OUTPUT_TABLE),
                     "policy: 13 is active already; workers that lack it try again (not waited for)\n");
    cr_assert_str_eq(printed_by(show_unawaited, EVERYWHERE, OUTPUT_TABLE),
                     "policy: 13 is active already; at 2 of 2 workers\n");
    const char *text = printed_by(show_unawaited, HELD, OUTPUT_TABLE);
    cr_assert(strstr(text, "13 is active already, the adapter is held; at 1 of 1 worker\n"), "%s", text);
}

Test(shown, a_decision_that_is_waited_for)
{
    static const char AGAIN[] = DECIDED "\"from\":13,\"changed\":false,\"held\":false,\"need_count\":1,"
                                        "\"have_count\":1,\"eligible_count\":1}",
                      OTHER[] = DECIDED "\"from\":12,\"changed\":true,\"held\":false,\"need_count\":0,"
                                        "\"have_count\":0,\"eligible_count\":1}";
    const char *text = printed_by(show_awaited, AGAIN, OUTPUT_TABLE);
    cr_assert(strstr(text, "policy: 13 -> 13, unchanged; active at 1 of 1 worker after 0.4"), "%s", text);
    cr_assert_str_eq(
        printed_by(show_unawaited, OTHER, OUTPUT_TABLE),
        "policy: 12 -> 13, changed; decided, and workers switch as they have it (not waited for)\n");
}

/* The library's texts name fields of its options; the command has other names for them. */
Test(shown, an_error_names_options_of_the_command)
{
    heddle_error_t why = {.code = HEDDLE_ERR_UNHEALTHY,
                          .message = "w1: all 3 slots are held; hint: more opts.slots",
                          .expected = "an address of opts.data_device",
                          .found = "opts.deadline_ms of 5",
                          .hint = "run the worker with more opts.slots"};
    static const char *const WANTED[] = {"are held; hint: more --slots", "an address of --data-device",
                                         "--deadline of 5", "run the worker with more --slots"};
    for (int output = OUTPUT_TABLE; output <= OUTPUT_JSON; output++) {
        const char *text =
            printed_on(output == OUTPUT_JSON ? STDOUT_FILENO : STDERR_FILENO, &why, NULL, NULL, output);
        for (size_t i = 0; i < sizeof WANTED / sizeof *WANTED; i++)
            cr_assert(strstr(text, WANTED[i]), "%s is not in %s", WANTED[i], text);
    }
}

#ifndef NDEBUG /* else nothing is asserted */
Test(shown, a_row_that_lacks_a_cell_is_a_bug, .signal = SIGABRT)
{
    cli_table_t t;
    table_init(&t, "NAME", ">BYTES");
    table_row(&t, "policy", "17");
    table_row(&t, "policy");
}
#endif
