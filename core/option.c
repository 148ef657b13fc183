/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults and variables first, then the command line over them; and the text of --help. */
#include "core/option.h"

#include "core/bytes.h"
#include "core/errors.h"
#include "core/units.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_LONG = 256, HELP = 1000, VERSION, MAX_OPTIONS = 64 };

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
                                           [OPTION_SIZE] = "a size: bytes, or with k M G Ki Mi Gi",
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
        } else if (o->fallback && !store(o, o->fallback, into)) {
            return error_fail(error, HEDDLE_ERR_INTERNAL, "%s: the default of --%s is wrong", set->program,
                              o->name);
        }
    }
    return HEDDLE_OK;
}

/* One row: the option to the left, its doc from column 32 on; a long option has its doc on the next line. */
static void help_row(buf_t *b, char letter, const char *name, const char *value, const char *doc,
                     const option_t *o)
{
    char left[160], dash[4] = "  ";
    if (letter) snprintf(dash, sizeof dash, "-%c", letter);
    snprintf(left, sizeof left, "  %s%c --%s%s%s", dash, letter ? ',' : ' ', name, value ? " " : "",
             value ? value : "");
    buf_printf(b, strlen(left) > 30 ? "%s\n%32s%s" : "%-30s  %.0s%s", left, "", doc);
    if (o && o->fallback) buf_printf(b, " [%s]", o->fallback);
    if (o && o->env) buf_printf(b, " ($%s)", o->env);
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
        for (const option_t *o = tables[t]; o && o->name; o++)
            help_row(&b, o->letter, o->name, o->kind == OPTION_FLAG ? NULL : o->value, o->doc, o);
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
            longs[n] = (struct option){o->name, o->kind == OPTION_FLAG ? no_argument : required_argument,
                                       NULL, FIRST_LONG + n};
            rows[n] = o;
            if (o->letter) {
                *s++ = o->letter;
                if (o->kind != OPTION_FLAG) *s++ = ':';
            }
        }
    *s = 0;
    longs[n] = (struct option){"help", no_argument, NULL, HELP};
    longs[n + 1] = (struct option){"version", no_argument, NULL, VERSION};
    longs[n + 2] = (struct option){0};
    return n;
}

/* A word that is not expected, for an error.  One with the length of a key may be the secret of a line that
 * was given without quotes, so it is not repeated. */
static const char *word_of(const char *word)
{
    enum { KEY_BYTES = 40 };
    return strlen(word) == KEY_BYTES ? "(a word of 40 characters)" : word;
}

static int parse_arguments(const option_set_t *set, int argc, char **argv, const char **ret_args,
                           heddle_error_t *error)
{
    int n = 0, max = 0;
    while (set->args && set->args[max]) ret_args[max++] = NULL;
    for (; optind < argc; optind++, n++) {
        if (n < max) {
            ret_args[n] = argv[optind];
            continue;
        }
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s: unexpected argument \"%.200s\"", set->program,
                            word_of(argv[optind]));
        error_expected(error, "at most %d", max);
        error_hint(error, "see %s --help", set->program);
        return rc;
    }
    if (n >= set->args_required) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s: %s is missing", set->program, set->args[n]);
    error_expected(error, "%s %s", set->program, set->usage);
    error_hint(error, "see %s --help", set->program);
    return rc;
}

static int print_and_end(char *text)
{
    if (text) fputs(text, stdout);
    free(text);
    return 1;
}

/* ---- did you mean ---- */

enum { WORD_MAX = 32 };

/* The number of letters that are changed, missing, added, or swapped with the next one (Damerau-Levenshtein).
 */
static size_t distance(const char *a, const char *b)
{
    size_t rows[3][WORD_MAX + 1], n = strlen(b);
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t k = 0; k <= n; k++) last[k] = k;
    for (size_t i = 1; i <= strlen(a); i++) {
        now[0] = i;
        for (size_t k = 1; k <= n; k++) {
            size_t least = last[k - 1] + (a[i - 1] != b[k - 1]);
            if (last[k] + 1 < least) least = last[k] + 1;
            if (now[k - 1] + 1 < least) least = now[k - 1] + 1;
            bool is_swapped = i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1];
            if (is_swapped && before[k - 2] + 1 < least) least = before[k - 2] + 1;
            now[k] = least;
        }
        size_t *next = before;
        before = last;
        last = now;
        now = next;
    }
    return last[n];
}

const char *option_nearest(const char *word, const char *const *words)
{
    const char *nearest = NULL;
    size_t n = strlen(word),
           least = n / 3 + 1; /* with more than a third of the letters wrong, a hint would be a guess */
    for (; n >= 2 && n <= WORD_MAX && *words; words++) {
        if (strlen(*words) > WORD_MAX) continue;
        if (n >= 3 && !strncmp(*words, word, n)) return *words;
        size_t d = distance(word, *words);
        if (d < least) least = d, nearest = *words;
    }
    return nearest;
}

/* Names the option that was probably meant. `word`: as it was typed, "--brokr=tcp://..." */
static void hint_at_option(const option_set_t *set, const char *word, const struct option *longs,
                           heddle_error_t *error)
{
    const char *names[MAX_OPTIONS + 3];
    char typed[64];
    int n = 0;
    for (; longs[n].name; n++) names[n] = longs[n].name;
    names[n] = NULL;
    snprintf(typed, sizeof typed, "%.*s", (int)strcspn(word, "="), word);
    const char *nearest = !strncmp(typed, "--", 2) ? option_nearest(typed + 2, names) : NULL;
    if (nearest) error_hint(error, "did you mean --%s? see %s --help", nearest, set->program);
    else error_hint(error, "see %s --help", set->program);
}

int option_parse(const option_set_t *set, int argc, char **argv, void *into, const char **ret_args,
                 heddle_error_t *error)
{
    if (argc == 2 && !strcmp(argv[1], "--dump-options")) return print_and_end(option_dump(set));
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
            printf("%s %s\n", set->program, heddle_version());
            return 1;
        }
        if (c == '?' || c == ':') {
            /* optopt: the letter, or the code of a long option that lacks its value or may not have one */
            bool named = optopt >= FIRST_LONG && optopt < FIRST_LONG + n;
            const char *word = argv[optind - 1];
            rc =
                error_fail(error, HEDDLE_ERR_USAGE,
                           c == ':' ? "%s: --%.100s needs a value" : "%s: unknown option %.100s",
                           set->program, c == ':' && named ? rows[optopt - FIRST_LONG]->name : word_of(word));
            if (c == '?') hint_at_option(set, word, longs, error);
            else error_hint(error, "see %s --help", set->program);
            break;
        }
        const option_t *o = NULL;
        if (c >= FIRST_LONG && c < FIRST_LONG + n) o = rows[c - FIRST_LONG];
        for (int i = 0; !o && i < n; i++)
            if (rows[i]->letter == c) o = rows[i];
        if (o && !store(o, optarg, into)) rc = refuse(set, o, optarg ? optarg : "", "", error);
    }
    return rc ? rc : parse_arguments(set, argc, argv, ret_args, error);
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
