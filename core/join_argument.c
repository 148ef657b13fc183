/* SPDX-License-Identifier: Apache-2.0 */
#include "core/join_argument.h"

#include "core/bytes.h"
#include "core/errors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Given on the command line, and not by the variable. */
static bool is_typed(const char *value, const char *variable)
{
    const char *set = getenv(variable);
    return value && !(set && !strcmp(value, set));
}

/* Children inherit the environment, and /proc shows what it was at the start.  `value`: where it still
 * lies. */
static void wipe_variable(const char *variable)
{
    char *value = getenv(variable);
    if (value) memset(value, 'x', strlen(value));
    unsetenv(variable);
}

/* @FILE names a file, and is no secret. */
static void overwrite(const char *join, int argc, char **argv)
{
    for (int i = 1; i < argc && join[0] != '@'; i++)
        if (argv[i] <= join && join <= argv[i] + strlen(argv[i]))
            memset(argv[i] + (join - argv[i]), 'x', strlen(join));
}

int join_argument_take(join_argument_t *values, int argc, char **argv, heddle_error_t *error)
{
    static char copy[4096];
    if (!values->join) return HEDDLE_OK;
    bool is_typed_too = is_typed(values->join, "HEDDLE_JOIN");
    bool names_another = is_typed(values->broker, "HEDDLE_BROKER") ||
                         is_typed(values->context, "HEDDLE_CONTEXT") ||
                         is_typed(values->broker_key, "HEDDLE_BROKER_KEY");
    text_printf(copy, sizeof copy, "%s", values->join);
    overwrite(values->join, argc, argv);
    wipe_variable("HEDDLE_JOIN");
    values->join = names_another && !is_typed_too ? NULL : copy;
    if (!values->join || !names_another) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE,
                        "--join names the broker and its key, and so does another option");
    error_expected(error, "--join alone, or --broker and --broker-key, or --context");
    return rc;
}
