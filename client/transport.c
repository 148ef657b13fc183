/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/types.h: what the data plane of this process runs on. */
#include <heddle/types.h>

#include "client/opening.h"
#include "core/errors.h"
#include "proto/value.h"
#include "transfer/transfer.h"

int heddle_transport_load(const char *ucx_dir, char **ret_json)
{
    heddle_error_t error;
    const transfer_ops_t *ops = NULL;
    transfer_place_t place;
    if (!ret_json) {
        error_fail(&error, HEDDLE_ERR_USAGE, "heddle_transport_load: a place for the answer is needed");
        return error_publish(&error);
    }
    opening_begin();
    int rc = transfer_ucx_load_from(ucx_dir, &ops, &place, &error);
    opening_end();
    if (rc) return error_publish(&error);
    json_t *body = json_pack("{s:s, s:s, s:s, s:s}", "backend", ops->name, "ucx", ops->version(), "plugin",
                             place.plugin, "library", place.ucx);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory is left for what the data plane says of itself");
        return error_publish(&error);
    }
    *ret_json = text;
    return HEDDLE_OK;
}
