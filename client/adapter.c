/* SPDX-License-Identifier: Apache-2.0 */
#include <heddle/adapter.h>

#include "core/errors.h"
#include "core/sized.h"
#include "formats/peft.h"

/* Reads a directory without a broker, so that a trainer can check its output before it opens a publisher. */
int heddle_adapter_check(const char *dir, heddle_adapter_info_t *ret_info)
{
    heddle_error_t error;
    heddle_adapter_info_t info;
    int rc;
    if (!dir || !ret_info) {
        rc = error_fail(&error, HEDDLE_ERR_USAGE, "heddle_adapter_check needs a directory and an info");
        error_hint(&error, "set info.size = sizeof info before the call");
    } else {
        rc = peft_digest(dir, &info, &error);
    }
    if (rc) {
        error_where(&error, NULL, 0, NULL, "pack");
        return error_publish(&error);
    }
    sized_give(ret_info, &info, sizeof info);
    return HEDDLE_OK;
}
