/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/pages.h"

#include "core/errors.h"

#include <string.h>

static int misfit(heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_PROTOCOL, "the broker's pages of one answer do not fit together");
    error_hint(error, "ask again; compare `heddle --version` with the broker's in `heddle status`");
    return HEDDLE_ERR_PROTOCOL;
}

static int no_memory(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the broker's answer");
}

/* Only the lists grow from page to page; all else is the same in each, and the latest one counts. */
int pages_append(json_t *into, json_t *page, bool inside, heddle_error_t *error)
{
    if (inside) {
        json_t *whole = json_object_get(json_array_get(json_object_get(into, "versions"), 0), "workers");
        json_t *more = json_object_get(json_array_get(json_object_get(page, "versions"), 0), "workers");
        if (!json_is_array(whole) || !json_is_array(more)) return misfit(error);
        return json_array_extend(whole, more) ? no_memory(error) : HEDDLE_OK;
    }
    const char *key;
    json_t *value;
    json_object_foreach(page, key, value)
    {
        json_t *whole = (!strcmp(key, "adapters") || !strcmp(key, "versions") || !strcmp(key, "workers") ||
                         !strcmp(key, "events") || !strcmp(key, "keys"))
                            ? json_object_get(into, key)
                            : NULL;
        if (whole && (!json_is_array(whole) || !json_is_array(value))) return misfit(error);
        if (whole ? json_array_extend(whole, value) : json_object_set(into, key, value))
            return no_memory(error);
    }
    return HEDDLE_OK;
}
