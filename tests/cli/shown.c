/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer says of itself may be anything: in tables it is text, and nothing that a terminal obeys. */
#include "cli/cli.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char HOSTILE[] =
    "{\"adapters\":[{\"name\":\"p\\u001b[2J\\ny\",\"active\":null,\"newest\":{\"version\":1,\"state\":"
    "\"a\\u009b1m\\u007fb\"},\"writer\":{\"name\":\"w\\u001b]0;x\\u0007\"},\"base\":{\"\\u001b[1m\":"
    "\"caf\u00e9\"}}]}";

static char *printed(int output)
{
    static char text[4096];
    int saved = dup(STDOUT_FILENO), ends[2];
    common_t c = {.output = output};
    const heddle_error_t none = {0};
    cr_assert(saved >= 0 && pipe(ends) == 0);
    fflush(stdout);
    dup2(ends[1], STDOUT_FILENO);
    int end = cli_answer(&c, "adapters", &none, strdup(HOSTILE), cli_show_adapters);
    dup2(saved, STDOUT_FILENO);
    ssize_t n = read(ends[0], text, sizeof text - 1);
    cr_assert(end == 0 && n > 0);
    text[n] = 0;
    close(saved);
    close(ends[0]);
    close(ends[1]);
    return text;
}

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
    cli_settle_texts(v);
    const json_t *a = json_array_get(json_object_get(v, "adapters"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(a, "name")), "p?[2J?y");
    const json_t *deep = json_object_iter_value(json_object_iter(json_object_get(a, "base")));
    cr_assert_str_eq(json_string_value(deep), "caf\u00e9");
    json_decref(v);
}
