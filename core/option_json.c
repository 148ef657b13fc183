/* SPDX-License-Identifier: Apache-2.0 */
#include "core/option_json.h"

#include "core/option.h"

#include <stdlib.h>
#include <string.h>

/* What a worker or publisher says of a failure comes through the broker in the library's words. */
static bool is_of_failure(const char *key)
{
    static const char *const KEYS[] = {"hint", "why", "message", "reason"};
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        if (!strcmp(key, KEYS[i])) return true;
    return false;
}

void option_json_words(json_t *value)
{
    const char *key;
    json_t *part;
    size_t i;
    json_array_foreach(value, i, part) option_json_words(part);
    json_object_foreach(value, key, part)
    {
        char *text = is_of_failure(key) && json_is_string(part) ? strdup(json_string_value(part)) : NULL;
        if (text) option_words(text);
        if (text) json_string_set(part, text);
        free(text);
        option_json_words(part);
    }
}
