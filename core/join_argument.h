/* SPDX-License-Identifier: Apache-2.0 */
/* core/join_argument.h: the invitation that a program is given, by --join or HEDDLE_JOIN.  It is a
 * secret, and the arguments and the environment of a process can be read while it runs.
 *
 * It names the broker and its key, too.  An option comes before a variable: of another option that names
 * them and HEDDLE_JOIN the option holds, of --join and their variables --join.  Main thread, while it is the
 * only one: the environment changes. */
#ifndef CORE_JOIN_ARGUMENT_H
#define CORE_JOIN_ARGUMENT_H

#include <heddle/types.h>

/* As option_parse has left them; NULL: not given. */
typedef struct {
    const char *join, *broker, *broker_key, *context;
} join_argument_t;

/* Overwrites the secret in `argv` and takes HEDDLE_JOIN out of the environment.  Until then, some
 * milliseconds after the start, it could be read there. values->join is a copy from then on, which stays;
 * NULL where it is not given, or another option holds.  USAGE: --join and another option that names the
 * broker. */
int join_argument_take(join_argument_t *values, int argc, char **argv, heddle_error_t *error);

#endif
