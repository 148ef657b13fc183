/* SPDX-License-Identifier: Apache-2.0 */
#include "core/option_guess.h"

#include "core/errors.h"
#include "core/listing.h"
#include "core/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_CHARS = 40 };

/* ---- similar words ---- */

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

/* As many of the words as fit into the field, each behind `prefix`, and how many there are in all. */
static void expect_one_of(const char *prefix, const char *const *words, heddle_error_t *error)
{
    char text[sizeof error->expected];
    listing_t list = {.text = text, .size = sizeof text};
    for (size_t i = 0; words[i]; i++) listing_add(&list, "%s%s", prefix, words[i]);
    error_expected(error, "%s", words[0] ? listing_text(&list) : "nothing: there is none");
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

void option_unknown_name(const char *name, const char *const *names, const char *where, heddle_error_t *error)
{
    const char *nearest = names ? option_nearest(name, names) : NULL;
    if (names) expect_one_of("", names, error);
    error_found(error, "%s", name);
    error_hint(error, "%s%.64s%s%s", nearest ? "did you mean " : "", nearest ? nearest : "",
               nearest ? "? " : "", where);
}

/* ---- the line as it was typed ---- */

typed_line_t typed_line(const option_set_t *set, int argc, char **argv)
{
    typed_line_t line = {.set = set, .argc = argc};
    for (int i = 0; i < argc && argc <= LINE_WORDS; i++) line.words[i] = argv[i];
    return line;
}

static const option_t *option_row(const option_set_t *set, const char *name)
{
    const option_t *tables[] = {set->options, set->common};
    for (int t = 0; t < 2; t++)
        for (const option_t *o = tables[t]; o && o->name; o++)
            if (!strcmp(o->name, name)) return o;
    return NULL;
}

/* The next word is its value: "--timeout", "-o". */
static bool takes_next(const option_set_t *set, const char *word)
{
    const option_t *tables[] = {set->options, set->common}, *found = NULL;
    if (!strncmp(word, "--", 2)) found = option_row(set, word + 2);
    for (int t = 0; t < 2 && !found && strlen(word) == 2; t++)
        for (const option_t *o = tables[t]; o && o->name; o++)
            if (o->letter == word[1]) found = o;
    return found && option_takes_next(found);
}

/* The place of a word; 0: the line is too long to be looked at. */
static int place_of(const typed_line_t *line, const char *word)
{
    for (int i = 1; i < line->argc && line->argc <= LINE_WORDS; i++)
        if (line->words[i] == word) return i;
    return 0;
}

static bool is_option(const char *word) { return word[0] == '-' && word[1]; }

/* The place of an argument, counted from 0; 0: there are not so many.  `unknown`: the place of an option that
 * is in no table, and takes the next word; 0: none. */
static int argument_at(const typed_line_t *line, int n, int unknown)
{
    for (int i = 1; i < line->argc && line->argc <= LINE_WORDS; i++) {
        const char *word = line->words[i];
        if (is_option(word)) i += takes_next(line->set, word) || (i == unknown && !strchr(word, '='));
        else if (n-- == 0) return i;
    }
    return 0;
}

/* ---- the line as it may have been meant ---- */

typedef struct {
    int at; /* this word becomes `with` */
    char with[160];
    int without[2]; /* these are left out; 0: none */
} edit_t;

/* False: it does not fit into a hint, or may contain a key. */
static bool suggest(const typed_line_t *line, const edit_t *edit, heddle_error_t *error)
{
    char text[sizeof error->hint - 32];
    size_t n = (size_t)snprintf(text, sizeof text, "%s", line->set->program);
    for (int i = 1; i < line->argc && n < sizeof text; i++) {
        const char *word = i == edit->at ? edit->with : line->words[i];
        if (i == edit->without[0] || i == edit->without[1]) continue;
        if (strlen(word) == KEY_CHARS) return false;
        n += (size_t)snprintf(text + n, sizeof text - n, " %s", word);
    }
    if (n >= sizeof text) return false;
    error_hint(error, "did you mean `%s`?", text);
    return true;
}

/* "4" and "v4" as "4"; NULL: not a number of a version. */
static const char *version_of(const char *word)
{
    const char *digits = *word == 'v' ? word + 1 : word;
    size_t n = strspn(digits, "0123456789");
    return n > 0 && n <= 18 && !digits[n] ? digits : NULL;
}

/* The first argument is NAME, and the number of its version is the word at `at`, behind the option at
 * `option` (0: none; the same place: "--to=4"). */
static bool suggest_version(const typed_line_t *line, const char *version, int at, int option,
                            heddle_error_t *error)
{
    edit_t edit = {.without = {at, option}};
    edit.at = argument_at(line, 0, option);
    const char *name = edit.at && edit.at != at ? line->words[edit.at] : NULL;
    if (!name || !name_is_valid(name) || !strstr(line->set->usage, "NAME@V")) return false;
    snprintf(edit.with, sizeof edit.with, "%s@%s", name, version);
    if (option_row(line->set, "to")) {
        edit = (edit_t){.at = at, .without = {option == at ? 0 : option}};
        snprintf(edit.with, sizeof edit.with, "--to %s", version);
    }
    return suggest(line, &edit, error);
}

bool guess_is_version(const typed_line_t *line, const char *word, heddle_error_t *error)
{
    int at = place_of(line, word);
    const char *version = at && at + 1 < line->argc ? version_of(line->words[at + 1]) : NULL;
    return version && suggest_version(line, version, at + 1, at, error);
}

void guess_argument(const typed_line_t *line, const char *word, heddle_error_t *error)
{
    const option_set_t *set = line->set;
    int second = argument_at(line, 1, 0);
    const char *version = second ? version_of(line->words[second]) : NULL;
    if (version && suggest_version(line, version, second, 0, error)) return;
    if (option_row(set, "adapter") && name_is_valid(word) && strlen(word) != KEY_CHARS)
        error_hint(error, "did you mean --adapter %.128s? see %s --help", word, set->program);
    else error_hint(error, "see %s --help", set->program);
}

/* Options that users try for what is an argument. */
static const struct {
    const char *option, *argument;
} ARGUMENTS[] = {{"name", "NAME"},    {"name", "NAME@V"},    {"name", "REF"},       {"name", "WORKER"},
                 {"adapter", "NAME"}, {"adapter", "NAME@V"}, {"adapter", "REF"},    {"ref", "NAME@V"},
                 {"ref", "REF"},      {"worker", "WORKER"},  {"dir", "DIR"},        {"path", "DIR"},
                 {"export", "DIR"},   {"to", "DIR"},         {"adapter-dir", "DIR"}};

/* Options that have another name here. */
static const struct {
    const char *typed, *option;
} SYNONYMS[] = {{"name", "adapter"}, {"name", "worker"}, {"tail", "last"}, {"lines", "last"}, {"n", "last"}};

/* "--name w2" without the option, where that leaves the argument in its place. */
static bool suggest_argument(const typed_line_t *line, const char *typed, int at, heddle_error_t *error)
{
    const char *value = strchr(line->words[at], '=');
    bool has_value = value || (at + 1 < line->argc && !is_option(line->words[at + 1]));
    int n = 0;
    while (argument_at(line, n, at)) n++;
    for (size_t i = 0; has_value && i < sizeof ARGUMENTS / sizeof *ARGUMENTS; i++) {
        if (strcmp(ARGUMENTS[i].option, typed) != 0) continue;
        int wanted = 0;
        const char *const *args = line->set->args;
        while (args && args[wanted] && strcmp(args[wanted], ARGUMENTS[i].argument)) wanted++;
        if (!args || !args[wanted] || wanted != n) continue;
        edit_t edit = {.without = {value ? 0 : at}, .at = value ? at : 0};
        if (value) snprintf(edit.with, sizeof edit.with, "%s", value + 1);
        return suggest(line, &edit, error);
    }
    return false;
}

/* The option that was probably meant, mistyped or by another name. */
static void hint_at_option(const option_set_t *set, const char *const *names, const char *typed, bool is_long,
                           heddle_error_t *error)
{
    const char *meant[2] = {NULL, NULL};
    int count = 0;
    for (size_t i = 0; count < 2 && i < sizeof SYNONYMS / sizeof *SYNONYMS; i++)
        if (!strcmp(SYNONYMS[i].typed, typed) && option_row(set, SYNONYMS[i].option))
            meant[count++] = SYNONYMS[i].option;
    if (!count && is_long) meant[0] = option_nearest(typed, names);
    if (meant[1])
        error_hint(error, "did you mean --%s or --%s? see %s --help", meant[0], meant[1], set->program);
    else if (meant[0]) error_hint(error, "did you mean --%s? see %s --help", meant[0], set->program);
    else error_hint(error, "see %s --help", set->program);
}

void guess_option(const typed_line_t *line, const char *word, heddle_error_t *error)
{
    enum { NAMES = 80 };
    char typed[64];
    const char *names[NAMES + 3];
    const option_t *tables[] = {line->set->options, line->set->common};
    int n = 0;
    for (int t = 0; t < 2; t++)
        for (const option_t *o = tables[t]; o && o->name && n < NAMES; o++) names[n++] = o->name;
    names[n++] = "help";
    names[n++] = "version";
    names[n] = NULL;
    expect_one_of("--", names, error);
    bool is_long = !strncmp(word, "--", 2);
    int at = place_of(line, word);
    const char *name = word + strspn(word, "-"), *value = strchr(word, '=');
    snprintf(typed, sizeof typed, "%.*s", (int)strcspn(name, "="), name);
    if (at && is_long) {
        int value_at = value ? at : at + 1;
        const char *number = value                   ? version_of(value + 1)
                             : value_at < line->argc ? version_of(line->words[value_at])
                                                     : NULL;
        bool is_version = number && (!strcmp(typed, "to") || !strcmp(typed, "version"));
        if (is_version && suggest_version(line, number, value_at, at, error)) return;
        if (suggest_argument(line, typed, at, error)) return;
    }
    hint_at_option(line->set, names, typed, is_long, error);
}
