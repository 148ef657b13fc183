/* SPDX-License-Identifier: Apache-2.0 */
/* A small adapter as an arena (region, then manifest), for the worker's tests: its bytes follow from
 * `seed`. */
#ifndef TESTS_WORKER_ARENA_H
#define TESTS_WORKER_ARENA_H

#include "proto/manifest.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#define ARENA_CONFIG                                                                                         \
    "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 16, \"target_modules\": [\"q_proj\"]}"

typedef struct {
    uint8_t *bytes; /* owned */
    uint64_t region_bytes, manifest_bytes, arena_bytes;
    digest_t h1, manifest_digest;
    uint64_t data_bytes;
    uint32_t tensor_count, chunk_count;
} test_arena_t;

static inline uint8_t arena_byte(uint64_t seed, uint64_t at)
{
    return (uint8_t)(seed * 31 + at * 7 + (at >> 9) + 1);
}

/* Of these tensors. */
static inline test_arena_t arena_of(uint64_t seed, const heddle_tensor_t *tensors, uint32_t count)
{
    layout_t layout;
    int rc = layout_make(tensors, count, &layout, NULL);
    assert(rc == 0);
    uint8_t *region = calloc(1, manifest_offset(layout.region_bytes));
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t b = 0; b < layout.sizes[i]; b++)
            region[layout.places[i] + b] = arena_byte(seed, layout.places[i] + b);
    buf_t manifest = {0};
    test_arena_t a = {.region_bytes = layout.region_bytes,
                      .data_bytes = layout.data_bytes,
                      .tensor_count = count};
    rc = manifest_build(&(manifest_input_t){.tensors = tensors,
                                            .layout = &layout,
                                            .kind = "lora",
                                            .features = "",
                                            .region = region,
                                            .config = bytes_of(ARENA_CONFIG, strlen(ARENA_CONFIG)),
                                            .metadata = bytes_of("{\"format\":\"pt\"}", 15)},
                        &manifest, &a.h1);
    assert(rc == 0);
    (void)rc;
    a.manifest_bytes = manifest.bytes;
    a.manifest_digest = digest_blake2b(manifest.data, manifest.bytes);
    a.arena_bytes = manifest_offset(a.region_bytes) + a.manifest_bytes;
    a.chunk_count = (uint32_t)((a.region_bytes + manifest_chunk_bytes(a.region_bytes) - 1) /
                               manifest_chunk_bytes(a.region_bytes));
    a.bytes = realloc(region, a.arena_bytes);
    memcpy(a.bytes + manifest_offset(a.region_bytes), manifest.data, manifest.bytes);
    buf_fini(&manifest);
    layout_fini(&layout);
    return a;
}

/* `count` F32 tensors of `rows` x 16. */
static inline test_arena_t arena_make(uint64_t seed, uint32_t count, uint64_t rows)
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
    test_arena_t a = arena_of(seed, tensors, count);
    free(tensors);
    free(names);
    return a;
}

#endif
