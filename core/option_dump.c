/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options as text for generators. */
#include "core/option.h"

#include "core/bytes.h"

#include <string.h>

/* A tab or a line feed in a field would end it, so each becomes a space. */
static void add_field(buf_t *b, const char *text)
{
    buf_add_text(b, "\t");
    for (const char *c = text ? text : ""; *c; c++) buf_add(b, *c == '\t' || *c == '\n' ? " " : c, 1);
}

static void add_line(buf_t *b, const char *key, const char *text)
{
    buf_add_text(b, key);
    add_field(b, text);
    buf_add_text(b, "\n");
}

static void add_option(buf_t *b, const option_t *o, const char *table)
{
    static const char *const KINDS[] = {
        [OPTION_FLAG] = "flag",         [OPTION_TEXT] = "text",     [OPTION_DURATION] = "duration",
        [OPTION_DEADLINE] = "duration", [OPTION_PERIOD] = "period", [OPTION_SIZE] = "size",
        [OPTION_INTEGER] = "integer",   [OPTION_QUORUM] = "quorum", [OPTION_LIST] = "list",
        [OPTION_CHOICE] = "choice"};
    char letter[2] = {o->letter, 0};
    const char *const fields[] = {
        table,  o->name,     letter, KINDS[o->kind], o->kind == OPTION_FLAG ? NULL : o->value,
        o->env, o->fallback, o->doc};
    buf_add_text(b, "option");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) add_field(b, fields[i]);
    buf_add_text(b, "\n");
}

char *option_dump(const option_set_t *set)
{
    static const option_t ALWAYS[] = {
        {"help", 'h', OPTION_FLAG, NULL, NULL, NULL, "show this text and exit", 0},
        {"version", 0, OPTION_FLAG, NULL, NULL, NULL, "show the version and exit", 0},
        {0}};
    buf_t b = {0};
    add_line(&b, "program", set->program);
    add_line(&b, "usage", set->usage);
    add_line(&b, "summary", set->summary);
    add_line(&b, "epilog", set->epilog);
    for (int i = 0; set->args && set->args[i]; i++) add_line(&b, "argument", set->args[i]);
    for (const option_t *o = set->options; o && o->name; o++) add_option(&b, o, "own");
    for (const option_t *o = set->common; o && o->name; o++) add_option(&b, o, "common");
    for (const option_t *o = ALWAYS; o->name; o++) add_option(&b, o, "common");
    /* Line by line, blank ones too: generators keep the paragraphs. */
    for (const char *at = set->notes; at && *at;) {
        size_t n = strcspn(at, "\n");
        buf_printf(&b, "note\t%.*s\n", (int)n, at);
        at += at[n] ? n + 1 : n;
    }
    buf_text(&b);
    return (char *)b.data;
}
