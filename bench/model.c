/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of an adapter, and how they change from version to version.
 *
 * The stamp begins with the wall clock, so that no two runs publish the same bytes: a broker recognizes a
 * version by its digest, and would answer "unchanged" instead of moving bytes. */
#include "bench/model.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>

int model_new(const char *shape, uint32_t rank, model_t **ret_model, heddle_error_t *error)
{
    model_t *m = calloc(1, sizeof *m);
    int index = shape_find(shape);
    if (!m || shape_table(index, rank, 1, &m->table)) goto fail;
    shape_config(index, rank, &m->config);
    m->data = calloc(m->table.count, sizeof *m->data);
    if (m->config.failed || !m->data) goto fail;
    uint64_t state = shape_seed(1);
    for (uint32_t i = 0; i < m->table.count; i++) {
        uint64_t bytes = m->table.rows[i].data_bytes;
        m->data[i] = malloc(bytes);
        if (!m->data[i]) goto fail;
        shape_fill(m->data[i], bytes, &state);
    }
    m->stamp = clock_wall(clock_system()) << 20;
    *ret_model = m;
    return HEDDLE_OK;
fail:
    model_destroy(&m);
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for an adapter in the shape of %s, rank %u",
                      shape, rank);
}

void model_destroy(model_t **m)
{
    if (!*m) return;
    for (uint32_t i = 0; (*m)->data && i < (*m)->table.count; i++) free((*m)->data[i]);
    free((*m)->data);
    buf_fini(&(*m)->config);
    shape_table_fini(&(*m)->table);
    free(*m);
    *m = NULL;
}

void model_change(model_t *m)
{
    m->stamp++;
    for (uint32_t i = 0; i < m->table.count; i++) {
        uint8_t *at = m->data[i];
        uint64_t left = m->table.rows[i].data_bytes;
        /* One word in every page is enough: a page is what a leaf digest covers, so every leaf changes. */
        for (; left; at += LIMIT_PAGE_BYTES, left -= left < LIMIT_PAGE_BYTES ? left : LIMIT_PAGE_BYTES)
            memcpy(at, &m->stamp, left < sizeof m->stamp ? left : sizeof m->stamp);
    }
}

void model_copy(const model_t *m, void *to)
{
    uint8_t *at = to;
    for (uint32_t i = 0; i < m->table.count; at += m->table.rows[i].data_bytes, i++)
        memcpy(at, m->data[i], m->table.rows[i].data_bytes);
}
