/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/scenario/content.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static content_t *all;

static void name_tensors(content_t *c)
{
    c->tensors = calloc(c->shape.count, sizeof *c->tensors);
    c->names = calloc(c->shape.count, sizeof *c->names);
    c->dims[0] = c->shape.rows;
    c->dims[1] = 16;
    for (uint32_t i = 0; i < c->shape.count; i++) {
        snprintf(c->names[i], sizeof c->names[i],
                 "base_model.model.layers.%u.self_attn.q_proj.lora_%c.weight", i / 2, i % 2 ? 'B' : 'A');
        c->tensors[i] = (heddle_tensor_t){.size = sizeof *c->tensors,
                                          .name = c->names[i],
                                          .dtype = HEDDLE_DTYPE_F32,
                                          .ndim = 2,
                                          .dims = c->dims};
    }
}

/* Every page of every seed is another one: a chunk in the wrong place, or of another version, is seen. */
static void fill(uint8_t *to, uint64_t bytes, uint64_t seed, uint64_t at)
{
    for (uint64_t i = 0; i + 8 <= bytes; i += 8)
        le64_put(to + i, (seed * 0x9e3779b97f4a7c15u) ^ ((at + i) * 0xff51afd7ed558ccdu));
}

static content_t *make(content_shape_t shape)
{
    content_t *c = calloc(1, sizeof *c);
    c->shape = shape;
    name_tensors(c);
    cr_assert_eq(layout_make(c->tensors, shape.count, &c->layout, NULL), HEDDLE_OK);
    c->payload = calloc(1, c->layout.payload_bytes);
    for (uint32_t i = 0; i < shape.count; i++)
        fill(c->payload + c->layout.places[i], c->layout.sizes[i], shape.seed, c->layout.places[i]);
    manifest_input_t in = {.tensors = c->tensors,
                           .layout = &c->layout,
                           .kind = content_kind(shape)->name,
                           .features = "",
                           .payload = c->payload,
                           .config = content_config(shape),
                           .metadata = bytes_of(CONTENT_METADATA, strlen(CONTENT_METADATA))};
    cr_assert_eq(manifest_build(&in, &c->manifest, &c->h1), HEDDLE_OK);
    uint32_t chunk = manifest_chunk_bytes(c->layout.payload_bytes);
    c->chunk_count = (uint32_t)((c->layout.payload_bytes + chunk - 1) / chunk);
    return c;
}

const content_t *content_get(content_shape_t shape)
{
    for (content_t *c = all; c; c = c->next)
        if (c->shape.seed == shape.seed && c->shape.count == shape.count && c->shape.rows == shape.rows &&
            c->shape.is_weights == shape.is_weights)
            return c;
    content_t *c = make(shape);
    c->next = all;
    all = c;
    return c;
}

const content_t *content_of_digest(const digest_t *h1)
{
    content_t *c = all;
    while (c && !digest_equal(&c->h1, h1)) c = c->next;
    return c;
}

void content_forget_all(void)
{
    while (all) {
        content_t *c = all;
        all = c->next;
        buf_fini(&c->manifest);
        layout_fini(&c->layout);
        free(c->payload);
        free(c->names);
        free(c->tensors);
        free(c);
    }
}
