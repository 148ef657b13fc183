/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/value.h"

int heddle_error_json(const heddle_error_t *error, char **ret_json)
{
    json_t *value = value_from_error(error);
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (!text) return HEDDLE_ERR_NO_MEMORY;
    *ret_json = text;
    return HEDDLE_OK;
}
