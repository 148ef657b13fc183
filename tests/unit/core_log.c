/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of the log, as people, programs and a service manager read them. */
#include "captured.h"
#include "core/log.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void fini(void)
{
    log_set_format(LOG_TEXT);
    log_set_level(LOG_WARN);
}
TestSuite(log, .fini = fini);

static const char *said(log_format_t format, log_level_t level, const char *text)
{
    log_set_format(format);
    captured_t log = captured_begin();
    log_emit(level, "data.device", "%s", text);
    return captured_end(&log);
}

Test(log, for_people_has_time_level_and_event)
{
    const char *line = said(LOG_TEXT, LOG_WARN, "eth0 has \"no\" address");
    cr_assert_eq(line[10], 'T', "%s", line);
    cr_assert_str_eq(line + 24, " warn  data.device: eth0 has \"no\" address\n");
    cr_assert_str_eq(said(LOG_TEXT, LOG_INFO, "less than the level"), "");
}

Test(log, for_the_journal_has_the_priority_and_no_time)
{
    log_set_level(LOG_DEBUG);
    cr_assert_str_eq(said(LOG_JOURNAL, LOG_ERROR, "a"), "<3>data.device: a\n");
    cr_assert_str_eq(said(LOG_JOURNAL, LOG_WARN, "a"), "<4>data.device: a\n");
    cr_assert_str_eq(said(LOG_JOURNAL, LOG_INFO, "a"), "<6>data.device: a\n");
    cr_assert_str_eq(said(LOG_JOURNAL, LOG_DEBUG, "a\nb"), "<7>data.device: a?b\n",
                     "one line, whatever it has");
}

Test(log, as_json_is_an_object_on_a_line)
{
    static const char TEXT[] = "a \"b\" \\ \xc3\xa4\n\x1b[0m";
    const char *line = said(LOG_JSON, LOG_WARN, TEXT);
    json_t *o = json_loads(line, 0, NULL);
    cr_assert(o && strchr(line, '\n') == line + strlen(line) - 1, "%s", line);
    cr_assert_str_eq(json_string_value(json_object_get(o, "level")), "warn");
    cr_assert_str_eq(json_string_value(json_object_get(o, "event")), "data.device");
    cr_assert_str_eq(json_string_value(json_object_get(o, "text")), "a \"b\" \\ \xc3\xa4??[0m");
    cr_assert_eq(strlen(json_string_value(json_object_get(o, "at"))), 24);
    json_decref(o);
}

/* The longest text that there is, of characters that JSON has twice. */
Test(log, that_is_too_long_is_cut_and_stays_whole)
{
    char text[4096], line[8192];
    int ends[2];
    memset(text, '"', sizeof text - 1);
    text[sizeof text - 1] = 0;
    log_set_format(LOG_JSON);
    int saved = dup(STDERR_FILENO);
    cr_assert(saved >= 0 && !pipe(ends) && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    log_emit(LOG_ERROR, "x", "%s", text);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t n = read(ends[0], line, sizeof line - 1);
    close(ends[0]);
    cr_assert_gt(n, 0);
    line[n] = 0;
    json_t *o = json_loads(line, 0, NULL);
    cr_assert(o, "%.80s", line);
    cr_assert_eq(json_string_length(json_object_get(o, "text")), 2047);
    json_decref(o);
}
