/* SPDX-License-Identifier: Apache-2.0 */
/* bench/shape.h: adapters in the shape of real LoRAs on all linear layers, filled from a seed. A shape is a
 * model and a rank; its table of tensors has PEFT's names and bf16. The same shape and seed give the same
 * bytes. The caller owns a table. One thread; running out of memory is an error return. */
#ifndef BENCH_SHAPE_H
#define BENCH_SHAPE_H

#include "core/bytes.h"
#include <heddle/types.h>

/* One of the models, for an option table. */
#define SHAPE_NAMES "tiny|qwen2.5-0.5b|qwen3-8b|llama-3.1-8b|llama-3.1-70b|qwen3-30b-a3b|deepseek-v3"

/* Zeroed: empty. */
typedef struct {
    heddle_tensor_t *rows; /* data_bytes set */
    uint32_t count, capacity;
    uint64_t data_bytes;
    arena_t arena; /* names and dims */
} shape_table_t;

/* Index of a model's name in SHAPE_NAMES; -1 where there is none. */
int shape_find(const char *name);
/* narrow: divides every width of the model, for as many tensors with fewer bytes; 1: as it is.  NO_MEMORY. */
int shape_table(int shape, uint32_t rank, uint32_t narrow, shape_table_t *ret_table);
/* `count` (even) tensors of 16 bytes instead. */
int shape_tiny_table(uint32_t count, shape_table_t *ret_table);
void shape_table_fini(shape_table_t *t);
/* adapter_config.json of it. */
void shape_config(int shape, uint32_t rank, buf_t *out);
/* The first *state for a seed. */
uint64_t shape_seed(uint64_t seed);
/* Fills memory with small bf16 numbers around zero, like weights; goes on from *state. */
void shape_fill(void *at, uint64_t bytes, uint64_t *state);

#endif
