/* SPDX-License-Identifier: Apache-2.0 */
/* The rules for adapter_config.json, and the features that follow from it and from the names of the tensors.
 */
#include "core/errors.h"
#include "core/limits.h"
#include "proto/json_text.h"
#include "proto/peft.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define WHAT "the config"

/* The error of a field with a wrong value. */
static int refuse(const char *field, const char *expected, const json_t *found, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "'%s' in the config must be %s", field, expected);
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    error_contrast(error, expected, text ? text : "nothing");
    free(text);
    error_hint(error, "correct the field, or save the adapter again with PEFT");
    return rc;
}

static bool is_texts(const json_t *value)
{
    size_t i;
    json_t *item;
    if (json_is_string(value)) return true;
    json_array_foreach(value, i, item)
        if (!json_is_string(item)) return false;
    return json_is_array(value);
}

/* The type, and the fields that engines compute with. PEFT writes null for a field that was not given. */
static int check_fields(const json_t *config, heddle_error_t *error)
{
    const json_t *r = json_object_get(config, "r"), *alpha = json_object_get(config, "lora_alpha");
    const json_t *targets = json_object_get(config, "target_modules");
    const json_t *type = json_object_get(config, "peft_type");
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0) {
        int rc = error_fail(error, HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE, "peft_type in the config must be LORA");
        error_expected(error, "\"LORA\"");
        if (json_is_string(type)) error_found(error, "\"%s\"", json_string_value(type));
        else error_found(error, type ? "no text" : "no peft_type");
        error_hint(error, type ? "Heddle carries LoRA adapters: train with LoraConfig"
                               : "is this PEFT's adapter_config.json?");
        return rc;
    }
    if (r && !(json_is_integer(r) && json_integer_value(r) > 0))
        return refuse("r", "a positive integer", r, error);
    if (alpha && !json_is_number(alpha)) return refuse("lora_alpha", "a number", alpha, error);
    if (targets && !json_is_null(targets) && !is_texts(targets))
        return refuse("target_modules", "a text or a list of texts", targets, error);
    static const char *const PATTERNS[] = {"rank_pattern", "alpha_pattern"};
    for (int i = 0; i < 2; i++) {
        const json_t *pattern = json_object_get(config, PATTERNS[i]);
        if (pattern && !json_is_null(pattern) && !json_is_object(pattern))
            return refuse(PATTERNS[i], "an object", pattern, error);
    }
    return HEDDLE_OK;
}

/* Which kinds of tensors the names show. */
typedef struct { bool lora, magnitude, embeddings; } named_t;

static bool is_true(const json_t *config, const char *field)
{
    return json_is_true(json_object_get(config, field));
}

/* Whether the field is a list, an object or a text that is not empty. */
static bool is_filled(const json_t *config, const char *field)
{
    const json_t *value = json_object_get(config, field);
    return json_array_size(value) > 0 || json_object_size(value) > 0 || json_string_length(value) > 0;
}

/* Whether init_lora_weights names a method that subtracts the adapter's first product from the base's
 * weights, or quantises them (PEFT 0.21). Such an adapter computes something else over the base as it was
 * downloaded. Where PEFT converted it on saving, the field is true. */
static bool is_init_of_base(const json_t *config)
{
    static const char *const METHODS[] = {"pissa", "olora", "corda", "loftq"};    /* pissa_niter_16, too */
    const char *init = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; init && i < sizeof METHODS / sizeof *METHODS; i++)
        if (!strncasecmp(init, METHODS[i], strlen(METHODS[i]))) return true;
    return false;
}

static void list_features(const json_t *config, const named_t *named, char ret_features[192])
{
    const char *bias = json_string_value(json_object_get(config, "bias"));
    const struct { const char *name; bool there; } FEATURES[] = {   /* sorted */
        {"alora", is_filled(config, "alora_invocation_tokens")},
        {"bdlora", is_filled(config, "use_bdlora") || is_true(config, "use_bdlora")},
        {"bias", (bias && strcmp(bias, "none") != 0) || is_true(config, "lora_bias")},
        {"dora", is_true(config, "use_dora") || named->magnitude},
        {"embeddings", named->embeddings},
        {"init_base", is_init_of_base(config)},
        {"layer_replication", is_filled(config, "layer_replication")},
        {"modules_to_save", is_filled(config, "modules_to_save")},
        {"qalora", is_true(config, "use_qalora")},
        {"rank_pattern", is_filled(config, "rank_pattern") || is_filled(config, "alpha_pattern")},
        {"rslora", is_true(config, "use_rslora")},
        {"target_parameters", is_filled(config, "target_parameters")},
    };
    size_t used = 0;
    ret_features[0] = 0;
    for (size_t i = 0; i < sizeof FEATURES / sizeof *FEATURES; i++)
        if (FEATURES[i].there)
            used +=
                (size_t)snprintf(ret_features + used, 192 - used, "%s%s", used ? "," : "", FEATURES[i].name);
}

static int load_config(bytes_t bytes, json_t **ret_config, heddle_error_t *error)
{
    json_t *config = NULL;
    if (bytes.bytes > LIMIT_CONFIG_BYTES) {
        int too_long = error_fail(error, HEDDLE_ERR_LIMIT, WHAT " is too long");
        error_expected(error, "at most %u bytes", LIMIT_CONFIG_BYTES);
        error_found(error, "%zu bytes", bytes.bytes);
        error_hint(error, "is this PEFT's adapter_config.json?");
        return too_long;
    }
    int rc = json_text_load(bytes, WHAT, &config, error);
    if (!rc && !json_is_object(config)) {
        rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, WHAT " is no JSON object");
        error_contrast(error, "{\"peft_type\": \"LORA\", ...}",
                       json_is_array(config) ? "a list" : "a single value");
        error_hint(error, "is this PEFT's adapter_config.json?");
    }
    if (rc) json_decref(config);
    else *ret_config = config;
    return rc;
}

int peft_check(bytes_t config, const heddle_tensor_t *tensors, uint32_t count, char ret_features[192],
               char ret_base_model[256], heddle_error_t *error)
{
    json_t *root = NULL;
    named_t named = {0};
    for (uint32_t i = 0; i < count; i++) {
        const char *name = tensors[i].name, *lora = strstr(name, "lora_");
        named.lora |= lora != NULL;
        named.magnitude |= lora && strstr(lora, "lora_magnitude_vector");
        named.embeddings |= (lora && strstr(lora, "lora_embedding_")) || strstr(name, "embed_tokens") ||
                            strstr(name, "trainable_tokens");
    }
    int rc = load_config(config, &root, error);
    if (!rc) rc = check_fields(root, error);
    if (!rc && !named.lora) {
        rc = error_fail(error, HEDDLE_ERR_NO_LORA, "there is no LoRA tensor among %u", count);
        error_expected(error, "names with lora_A and lora_B in them");
        error_found(error, count ? "'%.100s' and others" : "no tensor", count ? tensors[0].name : "");
        error_hint(error, "save the adapter (PeftModel.save_pretrained), not the base model nor one that was "
                          "merged into it");
    }
    if (!rc) {
        const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
        list_features(root, &named, ret_features);
        error_text(ret_base_model, 256, base ? base : "");
    }
    json_decref(root);
    return rc;
}
