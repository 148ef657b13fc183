/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults and variables first, then the command line over them; and the text of --help. */
#include "core/option.h"

#include "core/bytes.h"
#include "core/errors.h"
#include "core/option_guess.h"
#include "core/units.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_LONG = 256, HELP = 1000, VERSION, MAX_OPTIONS = 64 };
enum { HELP_WIDTH = 100, DOC_COLUMN = 32 };

/* The place of a word in "a|b|c", which is the value of the enum behind the option; -1: it is not there. */
static int choice_index(const char *choices, const char *text)
{
    size_t n = strlen(text);
    int index = 0;
    for (const char *at = choices; at; at = strchr(at, '|'), at = at ? at + 1 : NULL, index++)
        if (n > 0 && !strncmp(at, text, n) && (at[n] == '|' || at[n] == 0)) return index;
    return -1;
}

static bool list_add(const char ***list, const char *text)
{
    size_t n = 0;
    while (*list && (*list)[n]) n++;
    const char **grown = realloc(*list, (n + 2) * sizeof *grown);
    if (!grown) return false;
    grown[n] = text;
    grown[n + 1] = NULL;
    *list = grown;
    return true;
}

/* strtoll alone would accept leading blanks and a plus sign; 18 digits cannot overflow. */
static bool parse_integer(const char *text, int64_t *ret)
{
    char *end;
    if (!*text || strlen(text) > 18) return false;
    long long v = strtoll(text, &end, 10);
    if (*end || (*text != '-' && (*text < '0' || *text > '9'))) return false;
    *ret = v;
    return true;
}

static bool store(const option_t *o, const char *text, void *into)
{
    void *at = (char *)into + o->offset;
    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)at = !text || (strcmp(text, "0") != 0 && strcmp(text, "false") != 0 && *text);
        return true;
    case OPTION_TEXT: *(const char **)at = text; return *text != 0;
    case OPTION_DURATION: return units_parse_duration(text, at);
    case OPTION_DEADLINE:
        if (!units_parse_duration(text, at)) return false;
        if (!*(uint32_t *)at) *(uint32_t *)at = 1;
        return true;
    case OPTION_PERIOD: return units_parse_duration(text ? text : o->fallback, at) && *(uint32_t *)at;
    case OPTION_SIZE: return units_parse_size(text, at);
    case OPTION_INTEGER: return parse_integer(text, at);
    case OPTION_QUORUM:
        return units_parse_quorum(text, at) && (strcmp(text, "none") || strstr(o->value, "none"));
    case OPTION_LIST: return list_add(at, text);
    case OPTION_CHOICE: *(int *)at = choice_index(o->value, text); return *(int *)at >= 0;
    }
    return false;
}

static int refuse(const option_set_t *set, const option_t *o, const char *text, const char *where,
                  heddle_error_t *error)
{
    static const char *const EXPECTED[] = {[OPTION_FLAG] = "no value",
                                           [OPTION_TEXT] = "a text that is not empty",
                                           [OPTION_DURATION] = "a duration: 500ms, 30s, 5m, or seconds",
                                           [OPTION_DEADLINE] = "a duration: 500ms, 30s, 5m, or seconds",
                                           [OPTION_PERIOD] = "a duration above 0: 500ms, 30s, 5m, or seconds",
                                           [OPTION_SIZE] =
                                               "bytes, or with k M G Ki Mi Gi: 2M, 2MB, 2MB/s; or 16Mbit",
                                           [OPTION_INTEGER] = "a whole number",
                                           [OPTION_QUORUM] = "all, a number, or a share such as 50%",
                                           [OPTION_LIST] = "a text"};
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s: %s\"%.200s\" is not a value for --%s", set->program,
                        where, text, o->name);
    bool has_none = o->kind == OPTION_QUORUM && strstr(o->value, "none");
    error_contrast(error,
                   o->kind == OPTION_CHOICE ? o->value
                   : has_none               ? "all, none, a number, or a share such as 50%"
                                            : EXPECTED[o->kind],
                   text);
    error_hint(error, "see %s --help", set->program);
    return rc;
}

/* Before the command line, which is stored over them: its options have precedence. */
static int apply_defaults(const option_set_t *set, const option_t *table, void *into, heddle_error_t *error)
{
    for (const option_t *o = table; o && o->name; o++) {
        const char *env = o->env ? getenv(o->env) : NULL;
        if (env && *env) {
            char where[80];
            snprintf(where, sizeof where, "%s=", o->env);
            if (!store(o, env, into)) return refuse(set, o, env, where, error);
        } else if (o->fallback && o->kind != OPTION_PERIOD && !store(o, o->fallback, into)) {
            return error_fail(error, HEDDLE_ERR_INTERNAL, "%s: the default of --%s is wrong", set->program,
                              o->name);
        }
    }
    return HEDDLE_OK;
}

bool option_takes_next(const option_t *o) { return o->kind != OPTION_FLAG && o->kind != OPTION_PERIOD; }

/* The words of a doc in lines of HELP_WIDTH, each from column DOC_COLUMN on. */
static void add_wrapped(buf_t *b, const char *text)
{
    size_t column = DOC_COLUMN;
    for (const char *at = text; *at;) {
        size_t blanks = strspn(at, " "), n = strcspn(at + blanks, " ");
        if (at > text && column + blanks + n > HELP_WIDTH) {
            buf_printf(b, "\n%*s", DOC_COLUMN, "");
            at += blanks;
            column = DOC_COLUMN;
            blanks = 0;
        }
        buf_printf(b, "%.*s", (int)(blanks + n), at);
        at += blanks + n;
        column += blanks + n;
    }
}

/* One row: the option to the left, its doc from DOC_COLUMN on; a long option has its doc on the next line. */
static void help_row(buf_t *b, char letter, const char *name, const char *value, const char *doc,
                     const option_t *o)
{
    buf_t text = {0};
    char left[160], dash[4] = "  ";
    if (letter) snprintf(dash, sizeof dash, "-%c", letter);
    snprintf(left, sizeof left, "  %s%c --%s%s%s", dash, letter ? ',' : ' ', name, value ? " " : "",
             value ? value : "");
    int bytes = (int)strlen(left);
    bool is_long = bytes > DOC_COLUMN - 2;
    buf_printf(b, "%s%s%*s", left, is_long ? "\n" : "", DOC_COLUMN - (is_long ? 0 : bytes), "");
    buf_add_text(&text, doc);
    if (o && o->fallback) buf_printf(&text, " [%s]", o->fallback);
    if (o && o->env) buf_printf(&text, " ($%s)", o->env);
    add_wrapped(b, buf_text(&text));
    buf_fini(&text);
    buf_add_text(b, "\n");
}

/* From the same rows as the parser, so that no option lacks its line. */
char *option_help(const option_set_t *set)
{
    buf_t b = {0};
    buf_printf(&b, "Usage: %s %s\n\n%s\n", set->program, set->usage, set->summary);
    const option_t *tables[] = {set->options, set->common};
    for (int t = 0; t < 2; t++) {
        if (t == 1 || (tables[0] && tables[0]->name))
            buf_add_text(&b, t ? "\nCommon options:\n" : "\nOptions:\n");
        for (const option_t *o = tables[t]; o && o->name; o++) {
            char period[64];
            snprintf(period, sizeof period, "%s[=%s]", o->name, o->value ? o->value : "");
            bool is_period = o->kind == OPTION_PERIOD;
            help_row(&b, o->letter, is_period ? period : o->name, option_takes_next(o) ? o->value : NULL,
                     o->doc, o);
        }
    }
    help_row(&b, 'h', "help", NULL, "show this text and exit", NULL);
    help_row(&b, 0, "version", NULL, "show the version and exit", NULL);
    if (set->epilog) buf_printf(&b, "\n%s\n", set->epilog);
    if (set->notes) buf_printf(&b, "\n%s\n", set->notes);
    buf_text(&b);
    return (char *)b.data;
}

/* One table for getopt from the two of the program; codes above every letter tell the long options apart. */
static int build_getopt(const option_set_t *set, struct option *longs, const option_t **rows, char *shorts)
{
    int n = 0;
    char *s = shorts;
    *s++ = ':';
    *s++ = 'h';
    const option_t *tables[] = {set->options, set->common};
    for (int t = 0; t < 2; t++)
        for (const option_t *o = tables[t]; o && o->name && n < MAX_OPTIONS; o++, n++) {
            longs[n] = (struct option){o->name,
                                       option_takes_next(o)       ? required_argument
                                       : o->kind == OPTION_PERIOD ? optional_argument
                                                                  : no_argument,
                                       NULL, FIRST_LONG + n};
            rows[n] = o;
            if (o->letter) {
                *s++ = o->letter;
                if (option_takes_next(o)) *s++ = ':';
            }
        }
    *s = 0;
    longs[n] = (struct option){"help", no_argument, NULL, HELP};
    longs[n + 1] = (struct option){"version", no_argument, NULL, VERSION};
    longs[n + 2] = (struct option){0};
    return n;
}

/* The row of a code of getopt's: a letter, or the place of a long option.  NULL: there is none. */
static const option_t *row_of(const option_t *const *rows, int n, int code)
{
    for (int i = 0; i < n; i++)
        if (code == FIRST_LONG + i || (rows[i]->letter && rows[i]->letter == code)) return rows[i];
    return NULL;
}

/* A word that is not expected, for an error.  One with the length of a key may be the secret of a line that
 * was given without quotes, so it is not repeated. */
static const char *word_of(const char *word)
{
    enum { KEY_BYTES = 40 };
    return strlen(word) == KEY_BYTES ? "(a word of 40 characters)" : word;
}

static int parse_arguments(const typed_line_t *line, char **argv, const char **ret_args,
                           heddle_error_t *error)
{
    const option_set_t *set = line->set;
    int n = 0, max = 0;
    while (set->args && set->args[max]) ret_args[max++] = NULL;
    bool has_more = max > 0 && strstr(set->args[max - 1], "...") != NULL;
    for (; optind < line->argc; optind++, n++) {
        if (n < max) ret_args[n] = argv[optind];
        if (n < max || has_more) continue;
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s: unexpected argument \"%.200s\"", set->program,
                            word_of(argv[optind]));
        error_expected(error, "%s %s", set->program, set->usage);
        error_found(error, "%.100s", word_of(argv[optind]));
        guess_argument(line, argv[optind], error);
        return rc;
    }
    if (n >= set->args_required) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s: %s is missing", set->program, set->args[n]);
    error_expected(error, "%s %s", set->program, set->usage);
    error_found(error, "no %s", set->args[n]);
    error_hint(error, "see %s --help", set->program);
    return rc;
}

/* "1s": with a unit, since a bare number may well be a name. */
static bool is_duration(const char *word)
{
    uint32_t ms;
    return word[strspn(word, "0123456789.")] && units_parse_duration(word, &ms);
}

/* It would be taken for an argument: `heddle workers --watch 1s` would look for a worker. */
static int refuse_apart(const option_t *o, const char *word, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "the value of --%s stands apart from it", o->name);
    error_expected(error, "--%s=%.20s", o->name, word);
    error_found(error, "--%s %.20s", o->name, word);
    error_hint(error, "--%s alone is every %s", o->name, o->fallback);
    return rc;
}

static int print_and_end(char *text)
{
    if (text) fputs(text, stdout);
    free(text);
    return 1;
}

int option_parse(const option_set_t *set, int argc, char **argv, void *into, const char **ret_args,
                 heddle_error_t *error)
{
    if (argc == 2 && !strcmp(argv[1], "--dump-options")) return print_and_end(option_dump(set));
    typed_line_t line = typed_line(set, argc, argv);
    struct option longs[MAX_OPTIONS + 3];
    const option_t *rows[MAX_OPTIONS];
    char shorts[2 * MAX_OPTIONS + 4];
    int n = build_getopt(set, longs, rows, shorts);
    int rc = apply_defaults(set, set->options, into, error);
    if (!rc) rc = apply_defaults(set, set->common, into, error);
    optind = 0; /* 0, not 1, makes GNU getopt reset its internal state */
    opterr = 0;
    for (int c; !rc && (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (c == 'h' || c == HELP) return print_and_end(option_help(set));
        if (c == VERSION) {
            /* A script would take the end with 0 for that of its roll-back. */
            int wrong = error_fail(error, HEDDLE_ERR_USAGE, "%s: --version takes no value", set->program);
            if (guess_is_version(&line, argv[optind - 1], error)) return wrong;
            printf("%s %s\n", set->program, heddle_version());
            return 1;
        }
        if (c == '?' || c == ':') {
            /* optopt: the letter, the code of a long option that lacks its value or may not have one, or 0 */
            bool is_named = optopt >= FIRST_LONG && optopt < FIRST_LONG + n;
            char letter[3] = {'-', optopt > 0 && optopt < FIRST_LONG ? (char)optopt : 0, 0}, typed[100];
            const char *word = letter[1] ? letter : argv[optind - 1];
            snprintf(typed, sizeof typed, "%s%.90s", c == ':' && is_named ? "--" : "",
                     c == ':' && is_named ? rows[optopt - FIRST_LONG]->name : word_of(word));
            rc = error_fail(error, HEDDLE_ERR_USAGE,
                            c == ':' ? "%s: %s needs a value" : "%s: unknown option %s", set->program, typed);
            if (c == ':') {
                const option_t *o = row_of(rows, n, optopt);
                error_expected(error, "%s %s", typed, o ? o->value : "VALUE");
                error_found(error, "no value");
                error_hint(error, "see %s --help", set->program);
            } else {
                error_found(error, "%s", typed);
                guess_option(&line, word, error);
            }
            break;
        }
        const option_t *o = row_of(rows, n, c);
        if (o && o->kind == OPTION_PERIOD && !optarg && optind < argc && is_duration(argv[optind]))
            rc = refuse_apart(o, argv[optind], error);
        else if (o && !store(o, optarg, into)) rc = refuse(set, o, optarg ? optarg : "", "", error);
    }
    return rc ? rc : parse_arguments(&line, argv, ret_args, error);
}

/* By getopt, as the parse: it takes a part of a name, and tells a value from an option. */
bool option_is_given(const option_set_t *set, int argc, char **argv, const char *name)
{
    struct option longs[MAX_OPTIONS + 3];
    const option_t *rows[MAX_OPTIONS];
    char shorts[2 * MAX_OPTIONS + 4];
    int n = build_getopt(set, longs, rows, shorts);
    optind = 0;
    for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        const option_t *o = row_of(rows, n, c);
        if (o && !strcmp(o->name, name)) return true;
    }
    return false;
}

int option_store(const option_set_t *set, const char *name, const char *text, void *into,
                 heddle_error_t *error)
{
    const option_t *tables[] = {set->options, set->common};
    for (int t = 0; t < 2; t++)
        for (const option_t *o = tables[t]; o && o->name; o++)
            if (!strcmp(o->name, name))
                return store(o, text, into) ? HEDDLE_OK : refuse(set, o, text, "", error);
    return HEDDLE_OK;
}

bool option_wants_json(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "-ojson") || !strcmp(argv[i], "--output=json")) return true;
        if ((!strcmp(argv[i], "-o") || !strcmp(argv[i], "--output")) && !strcmp(next, "json")) return true;
    }
    return false;
}

int option_refuse(const option_set_t *set, const char *option, const char *expected, long long found,
                  heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s is out of range", option);
    error_expected(error, "%s", expected);
    error_found(error, "%lld", found);
    error_hint(error, "see %s --help", set->program);
    return rc;
}

void option_fini(const option_set_t *set, void *into)
{
    const option_t *tables[] = {set->options, set->common};
    for (int t = 0; t < 2; t++)
        for (const option_t *o = tables[t]; o && o->name; o++)
            if (o->kind == OPTION_LIST) {
                const char ***list = (const char ***)((char *)into + o->offset);
                free(*list);
                *list = NULL;
            }
}

/* In place, since a field of the options is never shorter than the option of the command that it becomes. */
void option_words(char *hint)
{
    static const char FIELD[] = "opts.", UNIT[] = "_ms";
    size_t n = sizeof FIELD - 1, unit = sizeof UNIT - 1;
    for (char *at = hint; (at = strstr(at, FIELD)) != NULL;) {
        size_t bytes = strspn(at + n, "abcdefghijklmnopqrstuvwxyz_");
        bool has_unit = bytes > unit && !strncmp(at + n + bytes - unit, UNIT, unit);
        size_t word = has_unit ? bytes - unit : bytes;
        char *rest = at + n + bytes;
        memcpy(at, "--", 2);
        for (size_t i = 0; i < word; i++) at[2 + i] = at[n + i] == '_' ? '-' : at[n + i];
        memmove(at + 2 + word, rest, strlen(rest) + 1);
        at += 2 + word;
    }
}

void option_error_words(heddle_error_t *error)
{
    char *const texts[] = {error->message, error->expected, error->found, error->hint};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) option_words(texts[i]);
}
