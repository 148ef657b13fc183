/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 which names | adapter_config.json |.  What is accepted has features of our list, sorted, and is
 * accepted the same when another writer saved the same JSON. */
#include "core/utf8.h"
#include "formats/peft.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>

static const heddle_tensor_t TENSORS[] = {
    {.name = "base_model.model.q_proj.lora_A.weight"},
    {.name = "base_model.model.q_proj.lora_B.weight"},
    {.name = "base_model.model.q_proj.lora_magnitude_vector"},
    {.name = "base_model.model.embed_tokens.lora_embedding_A"},
};
enum { TENSOR_COUNT = sizeof TENSORS / sizeof *TENSORS };

static void check_features(char *features)
{
    static const char *const KNOWN =
        ",alora,bdlora,bias,dora,embeddings,init_base,layer_replication,modules_to_save,qalora,rank_pattern,"
        "rslora,target_parameters,";
    const char *last = "";
    for (char *rest = features, *word; (word = strsep(&rest, ",")) && *features;) {
        char bounded[64];
        snprintf(bounded, sizeof bounded, ",%s,", word);
        MUST(strstr(KNOWN, bounded) && strcmp(last, word) < 0);
        last = word;
    }
}

static void check_again(bytes_t config, uint32_t count, const char *features, const char *base)
{
    char again[192], base_again[256];
    heddle_error_t error;
    json_t *value = json_loadb(config.data, config.bytes, 0, NULL);
    char *text = json_dumps(value, JSON_COMPACT);
    MUST(value && text);
    MUST(peft_check(bytes_of(text, strlen(text)), TENSORS, count, again, base_again, &error) == HEDDLE_OK);
    MUST(!strcmp(features, again) && !strcmp(base, base_again));
    free(text);
    json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    uint32_t count = input_byte(&in) % (TENSOR_COUNT + 1);
    bytes_t config = bytes_of(in.at, in.left);
    heddle_error_t error = {0};
    char features[192], base[256];
    int rc = peft_check(config, TENSORS, count, features, base, &error);
    if (rc) {
        MUST(heddle_err_exit(rc) == 8 && error.code == rc && error.message[0] && error.hint[0]);
        return 0;
    }
    MUST(count > 0 && utf8_is_valid(base, strlen(base)));
    check_again(config, count, features, base);
    check_features(features);
    return 0;
}
