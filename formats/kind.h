/* SPDX-License-Identifier: Apache-2.0 */
/* formats/kind.h: what the content of a version is, and the rules that follow from it.
 *
 *   kind      what                          config                     written as
 *   lora      a LoRA adapter, as PEFT's     adapter_config.json        adapter_config.json,
 *                                                                      adapter_model.safetensors
 *   tensors   weights: names, types and     always {}                  model.safetensors
 *             shapes, and no rules beyond
 *
 * The digest h1 covers the kind through the config: that of a LoRA always has a peft_type, and {} has none.
 * An adapter has one kind, which its first version decides (broker/registry/).  Constant data; any thread. */
#ifndef FORMATS_KIND_H
#define FORMATS_KIND_H

#include "core/bytes.h"
#include <heddle/types.h>
#include <stdbool.h>

typedef struct content_kind {
    const char *name;                     /* in manifests, messages and options */
    const char *config;                   /* the only one that there is; NULL: each version has its own */
    const char *model_file, *config_file; /* of a directory; config_file NULL: it has none */
    /* The rules for a config and a table that were checked one by one already.  Gives the features
     * (comma-separated, sorted) and the base model. */
    int (*check)(bytes_t config, const heddle_tensor_t *tensors, uint32_t count, char ret_features[192],
                 char ret_base_model[256], heddle_error_t *error);
    /* Logs what does not keep it from being published, and is wrong as a rule. */
    void (*warn)(const heddle_tensor_t *tensors, uint32_t count);
} content_kind_t;

extern const content_kind_t KIND_LORA, KIND_TENSORS;

/* The kind of that name; NULL and "" are lora, as in messages.  NULL: there is no such kind. */
const content_kind_t *kind_find(const char *name);
/* USAGE, with the names that there are. */
int kind_refuse(const char *name, heddle_error_t *error);
/* "" of a message is "lora". */
static inline const char *kind_name(const char *said) { return said && said[0] ? said : "lora"; }
/* The reverse: lora is left out of messages. */
const char *kind_said(const char *name);
/* Whether a version with that config is of the kind. */
bool kind_has_config(const char *name, bytes_t config);

#endif
