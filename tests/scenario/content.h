/* SPDX-License-Identifier: Apache-2.0 */
/* scenario/content.h: adapters whose bytes follow from a seed, with the digest that everybody must come
 * to.
 *
 * Made once and kept until content_forget_all: a world compares what workers serve with them, byte by
 * byte. */
#ifndef SCENARIO_CONTENT_H
#define SCENARIO_CONTENT_H

#include "formats/kind.h"
#include "formats/manifest.h"

#define CONTENT_CONFIG                                                                                       \
    "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"]}"
#define CONTENT_METADATA "{\"format\":\"pt\"}"

/* `count` F32 tensors of `rows` x 16: 64 bytes a row. */
typedef struct {
    uint64_t seed;
    uint32_t count;
    uint64_t rows;
    bool is_weights; /* the same tensors as full weights: kind tensors */
} content_shape_t;

/* What goes with the tensors. */
static inline const content_kind_t *content_kind(content_shape_t shape)
{
    return shape.is_weights ? &KIND_TENSORS : &KIND_LORA;
}
static inline bytes_t content_config(content_shape_t shape)
{
    const char *config = shape.is_weights ? KIND_TENSORS.config : CONTENT_CONFIG;
    return bytes_of(config, strlen(config));
}

typedef struct content {
    struct content *next;
    content_shape_t shape;
    heddle_tensor_t *tensors;
    char (*names)[88];
    uint64_t dims[2];
    layout_t layout;
    uint8_t *payload; /* owned; layout.payload_bytes */
    buf_t manifest;
    digest_t h1;
    uint32_t chunk_count;
} content_t;

const content_t *content_get(content_shape_t shape);
/* NULL: no content made so far has it. */
const content_t *content_of_digest(const digest_t *h1);
static inline uint64_t content_bytes(const content_t *c)
{
    return manifest_offset(c->layout.payload_bytes) + c->manifest.bytes;
}
void content_forget_all(void);

#endif
