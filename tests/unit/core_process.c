/* SPDX-License-Identifier: Apache-2.0 */
/* How a program says that it failed: for people, or as a line of its log. */
#include "captured.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/process.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

static void fini(void) { log_set_format(LOG_TEXT); }
TestSuite(process, .fini = fini);

static heddle_error_t failure(void)
{
    heddle_error_t e;
    error_fail(&e, HEDDLE_ERR_ADDRESS_IN_USE, "another program listens on \"%s\"", "tcp://h:1");
    error_contrast(&e, "a free address", "tcp://h:1");
    error_hint(&e, "take another port");
    return e;
}

static const char *said(log_format_t format, const heddle_error_t *e)
{
    log_set_format(format);
    captured_t to = captured_begin();
    int end = process_fail("heddle broker", e);
    const char *text = captured_end(&to);
    cr_assert_eq(end, 9);
    return text;
}

Test(process, a_failure_is_a_line_of_the_log_in_its_format)
{
    heddle_error_t e = failure();
    cr_assert_str_eq(said(LOG_TEXT, &e),
                     "heddle broker: address_in_use: another program listens on \"tcp://h:1\"\n"
                     "  expected: a free address\n  found:    tcp://h:1\n  hint:     take another port\n");
    cr_assert_str_eq(said(LOG_JOURNAL, &e),
                     "<3>process.failed: heddle broker: address_in_use: another program listens on "
                     "\"tcp://h:1\"; expected: a free address; found: tcp://h:1; hint: take another port\n");
    const char *line = said(LOG_JSON, &e);
    json_t *o = json_loads(line, 0, NULL);
    cr_assert(o && strchr(line, '\n') == line + strlen(line) - 1, "%s", line);
    cr_assert_str_eq(json_string_value(json_object_get(o, "event")), "process.failed");
    cr_assert_str_eq(json_string_value(json_object_get(o, "level")), "error");
    json_decref(o);
    error_fail(&e, HEDDLE_ERR_ADDRESS_IN_USE, "%s", "");
    cr_assert(strstr(said(LOG_JOURNAL, &e), ": address_in_use: ") && !strstr(said(LOG_JOURNAL, &e), "hint"),
              "as much as there is");
}

/* The parser may end before the option, and its own errors go to the log. */
Test(process, the_format_is_known_before_the_options_are)
{
    static const struct {
        const char *words[4];
        log_format_t format;
    } ROWS[] = {{{"p", "--nosuch", "--log-format", "json"}, LOG_JSON},
                {{"p", "--log-format=journal", "--nosuch"}, LOG_JOURNAL},
                {{"p", "--log-format=json", "--log-format=text"}, LOG_TEXT},
                {{"p", "--log-format", "jsn"}, LOG_TEXT},
                {{"p", "--log-format"}, LOG_TEXT},
                {{"p", "--log-formats=json", "--log=json"}, LOG_TEXT}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        int argc = 0;
        while (argc < 4 && ROWS[i].words[argc]) argc++;
        log_set_format(LOG_TEXT);
        process_take_log_format(argc, (char **)(uintptr_t)ROWS[i].words);
        cr_assert_eq(log_format(), ROWS[i].format, "%zu", i);
    }
}
