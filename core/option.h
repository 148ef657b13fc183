/* SPDX-License-Identifier: Apache-2.0 */
/* core/option.h: the options of a program as one table, from which the command line, HEDDLE_* variables,
 * --help and the manual pages follow.
 *
 *   static const option_t OPTIONS[] = {
 *       {"broker", 0, OPTION_TEXT, "EP[,EP]", "HEDDLE_BROKER", "tcp://127.0.0.1:7700", "where the broker
 *       listens", offsetof(my_t, broker)},
 *       {0}};
 *
 * A value lands at `offset` of the caller's struct:
 *   FLAG bool · TEXT const char * · DURATION uint32_t ms · SIZE uint64_t · INTEGER int64_t
 *   PERIOD uint32_t ms, which may be left out: `fallback` for --watch, 500 for --watch=500ms; 0: not given
 *   QUORUM heddle_quorum_t (`none` only where `value` names it)
 *   LIST const char ** (NULL-terminated, owned by the parse, freed by option_fini) · CHOICE int (index into
 *   `choices`)
 *
 * The tables are constant; the caller owns the struct and ends it with option_fini.  Main thread: getopt has
 * process-wide state. */
#ifndef CORE_OPTION_H
#define CORE_OPTION_H

#include <heddle/types.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum {
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_DURATION,
    OPTION_DEADLINE, /* a duration in which 0 means "now": it becomes 1 ms, because 0 selects a default
                      * further down */
    OPTION_PERIOD,
    OPTION_SIZE,
    OPTION_INTEGER,
    OPTION_QUORUM,
    OPTION_LIST,
    OPTION_CHOICE
} option_kind_t;

typedef struct option_row {
    const char *name; /* "max-rate"; NULL ends the table */
    char letter;      /* 'o' for -o; 0: none */
    option_kind_t kind;
    const char *value;    /* shown in help: "SIZE"; for CHOICE also the choices, "all|as-ready|manual" */
    const char *env;      /* variable that gives the default; NULL: none */
    const char *fallback; /* default as text; NULL: the zero value */
    const char *doc;      /* one line */
    size_t offset;
} option_t;

typedef struct {
    const char *program;     /* "heddle publish" */
    const char *usage;       /* "DIR --adapter NAME [OPTION...]" */
    const char *summary;     /* one or two sentences */
    const char *epilog;      /* shown after the options; NULL: none */
    const option_t *options; /* the command's own */
    const option_t *common;  /* shared by all commands, shown apart; NULL: none */
    /* names of positional arguments, NULL-terminated.  One that ends with "..." is the last one, and takes
     * one argument or more: all that follow it at the end of argv */
    const char *const *args;
    int args_required; /* how many of them must be there */
    const char *notes; /* shown last: "Exit status: ...", "Environment:", "Examples:", with a blank
                        * line between, as tools/surfaces reads them for the manual page */
} option_set_t;

/* Parses argv[1..].  Positional arguments land in ret_args (as many entries as names in set->args, NULL
 * where absent; of "..." the first one).  Options come before them in argv then.
 * Returns 0 · USAGE (error filled: names the option, expected, found) · 1 when --help, --version or
 * --dump-options was asked for and printed on stdout: the caller exits with 0. */
int option_parse(const option_set_t *set, int argc, char **argv, void *into, const char **ret_args,
                 heddle_error_t *error);
/* Whether the option `name` is on the command line, which was parsed before without an error. */
bool option_is_given(const option_set_t *set, int argc, char **argv, const char *name);
/* Stores `text`, of a file for example, as the value of the option `name`.  USAGE: it is none. */
int option_store(const option_set_t *set, const char *name, const char *text, void *into,
                 heddle_error_t *error);
/* Whether -o json is among the arguments.  Needed for errors of option_parse, which may stop before that
 * option. */
bool option_wants_json(int argc, char **argv);
/* The next word is its value, where it is not in the same one: "--timeout", and neither "--quiet" nor
 * "--watch". */
bool option_takes_next(const option_t *o);
/* The one of `words` (NULL-terminated) that a mistyped `word` probably means; NULL: none is similar. */
const char *option_nearest(const char *word, const char *const *words);
/* Fills the error of a name that is not among `names` (NULL-terminated; NULL: they are not shown). `expected`
 * has as many of them as fit, and `found` the name.  The hint has the one that was probably meant, and then
 * `where`, which says what lists them all. */
void option_unknown_name(const char *name, const char *const *names, const char *where,
                         heddle_error_t *error);

/* Hints of the library name fields of its options: makes "opts.timeout_ms" the option "--timeout", in
 * place. */
void option_words(char *hint);
/* The same in every text of an error: a message may repeat the hint of its cause. */
void option_error_words(heddle_error_t *error);
/* Fills the error of a value that the program does not accept, "--keep is out of range", with expected, found
 * and hint.  Returns USAGE. */
int option_refuse(const option_set_t *set, const char *option, const char *expected, long long found,
                  heddle_error_t *error);
/* Frees lists that the parse allocated. */
void option_fini(const option_set_t *set, void *into);
/* The text that --help prints; owned by the caller (free). */
char *option_help(const option_set_t *set);
/* The table as text for generators of manual pages, completion and the sample environment (tools/surfaces):
 * one row on each line, with tabs between the fields.  `--dump-options` alone prints it.  Owned by the caller
 * (free). program, usage, summary, epilog, argument: TEXT · option: own|common, name, letter, kind, value,
 * env, default, doc · note: TEXT, a line of the notes */
char *option_dump(const option_set_t *set);

#endif
