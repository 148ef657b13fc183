/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/kind.h"

#include "core/errors.h"
#include "formats/peft.h"

/* Any tensors are weights. */
static int check_tensors(bytes_t config, const heddle_tensor_t *tensors, uint32_t count,
                         char ret_features[192], char ret_base_model[256], heddle_error_t *error)
{
    (void)tensors, (void)count;
    ret_features[0] = ret_base_model[0] = 0;
    if (kind_has_config(KIND_TENSORS.name, config)) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "versions of kind tensors have no config");
    error_contrast(error, "no config", "a config");
    error_hint(error, "leave the config out, or publish it as kind lora");
    return rc;
}

static void warn_of_nothing(const heddle_tensor_t *tensors, uint32_t count) { (void)tensors, (void)count; }

const content_kind_t KIND_LORA = {.name = "lora",
                                  .model_file = "adapter_model.safetensors",
                                  .config_file = "adapter_config.json",
                                  .check = peft_check,
                                  .warn = peft_warn};
const content_kind_t KIND_TENSORS = {.name = "tensors",
                                     .config = "{}",
                                     .model_file = "model.safetensors",
                                     .check = check_tensors,
                                     .warn = warn_of_nothing};

const content_kind_t *kind_find(const char *name)
{
    static const content_kind_t *const KINDS[] = {&KIND_LORA, &KIND_TENSORS};
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (!strcmp(KINDS[i]->name, kind_name(name))) return KINDS[i];
    return NULL;
}

int kind_refuse(const char *name, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "there is no kind '%.64s'", name);
    error_contrast(error, "lora or tensors", name);
    error_hint(error, "lora is an adapter of PEFT; tensors are full weights");
    return rc;
}

const char *kind_said(const char *name) { return strcmp(name, KIND_LORA.name) ? name : ""; }

bool kind_has_config(const char *name, bytes_t config)
{
    const char *only = KIND_TENSORS.config;
    bool is_empty = config.bytes == strlen(only) && !memcmp(config.data, only, config.bytes);
    return is_empty == !strcmp(name, KIND_TENSORS.name);
}
