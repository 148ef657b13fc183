/* SPDX-License-Identifier: Apache-2.0 */
/* Cleans texts of peers before they reach the user's terminal. */
#include "cli/cli.h"

#include "core/errors.h"

#include <stdlib.h>
#include <string.h>

void cli_settle_texts(json_t *value)
{
    const char *key;
    json_t *part;
    size_t i;
    if (json_is_string(value)) {
        char *text = strdup(json_string_value(value));
        if (text) error_text(text, strlen(text) + 1, text);
        json_string_set(value, text ? text : "");
        free(text);
    }
    json_array_foreach(value, i, part) cli_settle_texts(part);
    json_object_foreach(value, key, part) cli_settle_texts(part);
}
