/* SPDX-License-Identifier: Apache-2.0 */
#include <heddle/adapter.h>

#include "core/errors.h"
#include "proto/peft.h"

int heddle_adapter_check(const char *dir, heddle_adapter_info_t *ret_info)
{
    heddle_error_t error;
    heddle_adapter_info_t info;
    int rc;
    if (!dir || !ret_info || ret_info->size > sizeof info) {
        rc = error_fail(&error, HEDDLE_ERR_USAGE,
                        "heddle_adapter_check needs a directory and an info of its own size");
        error_hint(&error, "set info.size = sizeof info before the call");
    } else {
        rc = peft_digest(dir, &info, &error);
    }
    if (rc) {
        error_where(&error, NULL, 0, NULL, "pack");
        return error_publish(&error);
    }
    info.size = ret_info->size ? ret_info->size : sizeof info;
    memcpy(ret_info, &info, info.size);
    return HEDDLE_OK;
}
