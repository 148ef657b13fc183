/* SPDX-License-Identifier: Apache-2.0 */
#include <heddle/adapter.h>

#include "core/errors.h"
#include "core/sized.h"
#include "formats/peft.h"

static int misuse(const char *call, const char *needed)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "%s needs %s and an info", call, needed);
    error_hint(&error, "set info.size = sizeof info before the call");
    error_where(&error, NULL, 0, NULL, "pack");
    return error_publish(&error);
}

static int give(int rc, const heddle_adapter_info_t *info, heddle_error_t *error,
                heddle_adapter_info_t *ret_info)
{
    if (rc) {
        error_where(error, NULL, 0, NULL, "pack");
        return error_publish(error);
    }
    sized_give(ret_info, info, sizeof *info);
    return HEDDLE_OK;
}

/* Reads a directory without a broker, so that a trainer can check its output before it opens a publisher. */
int heddle_adapter_check(const char *dir, heddle_adapter_info_t *ret_info)
{
    heddle_error_t error;
    heddle_adapter_info_t info;
    if (!dir || !ret_info) return misuse("heddle_adapter_check", "a directory");
    return give(peft_digest(dir, &info, &error), &info, &error, ret_info);
}

int heddle_adapter_check_files(const char *const *files, heddle_adapter_info_t *ret_info)
{
    heddle_error_t error;
    heddle_adapter_info_t info;
    if (!files || !ret_info) return misuse("heddle_adapter_check_files", "a list of files");
    return give(peft_digest_files(files, &info, &error), &info, &error, ret_info);
}
