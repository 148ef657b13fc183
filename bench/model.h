/* SPDX-License-Identifier: Apache-2.0 */
/* bench/model.h: an adapter in a trainer's memory: each tensor in an allocation of its own, as frameworks
 * have them. The caller of model_new owns it. One thread. */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include "bench/shape.h"

typedef struct {
    shape_table_t table;
    void **data; /* one a row */
    buf_t config;
    uint64_t stamp; /* written into the bytes last; no two runs begin with the same one */
} model_t;

/* NO_MEMORY. */
int model_new(const char *shape, uint32_t rank, model_t **ret_model, heddle_error_t *error);
void model_destroy(model_t **m);
/* Makes another version: every page of every tensor gets other bytes, so that no part can be recognized as
 * unchanged. */
void model_change(model_t *m);
/* All tensors, one after the other, into `to` (data_bytes). */
void model_copy(const model_t *m, void *to);

#endif
