/* SPDX-License-Identifier: Apache-2.0 */
/* The content (payload, then manifest) of a small adapter, for the worker's tests: its bytes follow from
 * `seed`. */
#ifndef TESTS_WORKER_CONTENT_H
#define TESTS_WORKER_CONTENT_H

#include "formats/manifest.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define CONTENT_CONFIG                                                                                       \
    "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"]}"

typedef struct {
    uint8_t *bytes; /* owned */
    uint64_t payload_bytes, manifest_bytes, content_bytes;
    digest_t h1, manifest_digest;
    uint64_t data_bytes;
    uint32_t tensor_count, chunk_count;
} test_content_t;

static inline uint8_t content_byte(uint64_t seed, uint64_t at)
{
    return (uint8_t)(seed * 31 + at * 7 + (at >> 9) + 1);
}

/* Of these tensors. */
static inline test_content_t content_of(uint64_t seed, const heddle_tensor_t *tensors, uint32_t count)
{
    layout_t layout;
    int rc = layout_make(tensors, count, &layout, NULL);
    assert(rc == 0);
    uint8_t *payload = calloc(1, manifest_offset(layout.payload_bytes));
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t b = 0; b < layout.sizes[i]; b++)
            payload[layout.places[i] + b] = content_byte(seed, layout.places[i] + b);
    buf_t manifest = {0};
    test_content_t a = {.payload_bytes = layout.payload_bytes,
                        .data_bytes = layout.data_bytes,
                        .tensor_count = count};
    rc = manifest_build(&(manifest_input_t){.tensors = tensors,
                                            .layout = &layout,
                                            .kind = "lora",
                                            .features = "",
                                            .payload = payload,
                                            .config = bytes_of(CONTENT_CONFIG, strlen(CONTENT_CONFIG)),
                                            .metadata = bytes_of("{\"format\":\"pt\"}", 15)},
                        &manifest, &a.h1);
    assert(rc == 0);
    (void)rc;
    a.manifest_bytes = manifest.bytes;
    a.manifest_digest = digest_blake2b(manifest.data, manifest.bytes);
    a.content_bytes = manifest_offset(a.payload_bytes) + a.manifest_bytes;
    a.chunk_count = (uint32_t)((a.payload_bytes + manifest_chunk_bytes(a.payload_bytes) - 1) /
                               manifest_chunk_bytes(a.payload_bytes));
    a.bytes = realloc(payload, a.content_bytes);
    memcpy(a.bytes + manifest_offset(a.payload_bytes), manifest.data, manifest.bytes);
    buf_fini(&manifest);
    layout_fini(&layout);
    return a;
}

/* `count` F32 tensors of `rows` x 16. */
static inline test_content_t content_make(uint64_t seed, uint32_t count, uint64_t rows)
{
    heddle_tensor_t *tensors = calloc(count, sizeof *tensors);
    char(*names)[80] = calloc(count, sizeof *names);
    const uint64_t dims[2] = {rows, 16};
    for (uint32_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "base_model.model.layers.%u.self_attn.q_proj.lora_%c.weight",
                 i / 2, i % 2 ? 'B' : 'A');
        tensors[i] = (heddle_tensor_t){.size = sizeof tensors[i],
                                       .name = names[i],
                                       .dtype = HEDDLE_DTYPE_F32,
                                       .ndim = 2,
                                       .dims = dims};
    }
    test_content_t a = content_of(seed, tensors, count);
    free(tensors);
    free(names);
    return a;
}

#endif
