/* SPDX-License-Identifier: Apache-2.0 */
/* core/option_guess.h: what the user of a command line probably meant, where a word of it is not taken.
 *
 *   "workers --name w2"   did you mean `heddle workers w2`?
 *   "versions policy 4"   did you mean `heddle versions policy@4`?
 *
 * The guess is a hint in the error that option_parse returns; nothing is done by it.  A word with the length
 * of a key is repeated in no hint, as in no message.  Only core/option.c uses it.  Any thread; nothing is
 * kept. */
#ifndef CORE_OPTION_GUESS_H
#define CORE_OPTION_GUESS_H

#include "core/option.h"

enum { LINE_WORDS = 64 };

/* The command line in the order in which it was typed: getopt moves the arguments behind the options. */
typedef struct {
    const option_set_t *set;
    int argc;
    const char *words[LINE_WORDS]; /* [0] is the command; of a longer line nothing is guessed */
} typed_line_t;

typed_line_t typed_line(const option_set_t *set, int argc, char **argv);
/* Fills expected, and the hint, for an option that the command does not have: "--name", "--name=w2", "-n". */
void guess_option(const typed_line_t *line, const char *word, heddle_error_t *error);
/* Fills the hint for a word that is one too many. */
void guess_argument(const typed_line_t *line, const char *word, heddle_error_t *error);
/* `word`, "--version", stands where the command takes a version of an adapter, and its number follows: fills
 * the hint. */
bool guess_is_version(const typed_line_t *line, const char *word, heddle_error_t *error);

#endif
