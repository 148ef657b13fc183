/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/labels.h"

#include "core/bytes.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/names.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void labels_free(char **labels)
{
    for (char **at = labels; at && *at; at++) free(*at);
    free(labels);
}

static bool has_key(char *const *labels, const char *label)
{
    size_t bytes = strcspn(label, "=") + 1;
    for (; *labels; labels++)
        if (!strncmp(*labels, label, bytes)) return true;
    return false;
}

static int add(char **labels, const char *label, heddle_error_t *error)
{
    uint32_t count = 0;
    while (labels[count]) count++;
    int rc = label_check(label, error);
    if (rc) return rc;
    if (count == LIMIT_LABELS)
        return error_fail(error, HEDDLE_ERR_USAGE, "a worker has at most %u labels", LIMIT_LABELS);
    labels[count] = strdup(label);
    return labels[count] ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a worker");
}

/* Variables have upper case by custom, and keys of labels lower case. */
static int add_variable(char **labels, const char *variable, heddle_error_t *error)
{
    char label[2 * HEDDLE_NAME_MAX + 2];
    const char *text = variable + strlen(LABELS_VARIABLE), *equals = strchr(text, '=');
    if (!equals || !equals[1]) return HEDDLE_OK;
    text_printf(label, sizeof label, "%s", text);
    for (char *c = label; *c && *c != '='; c++) *c = (char)tolower((unsigned char)*c);
    if (has_key(labels, label)) return HEDDLE_OK;
    int rc = strlen(text) < sizeof label ? add(labels, label, error)
                                         : error_fail(error, HEDDLE_ERR_BAD_NAME, "the label is too long");
    if (rc) error_hint(error, "it is of the variable %.*s", (int)(equals - variable), variable);
    return rc;
}

int labels_gather(const char *const *options, char *const *environment, char ***ret_labels,
                  heddle_error_t *error)
{
    char **labels = calloc(LIMIT_LABELS + 1, sizeof *labels);
    int rc = labels ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a worker");
    for (; !rc && options && *options; options++) rc = add(labels, *options, error);
    for (; !rc && environment && *environment; environment++)
        if (!strncmp(*environment, LABELS_VARIABLE, strlen(LABELS_VARIABLE)))
            rc = add_variable(labels, *environment, error);
    if (rc) labels_free(labels);
    else *ret_labels = labels;
    return rc;
}
