/* SPDX-License-Identifier: Apache-2.0 */
/* The stamp begins with the wall clock, so that no two runs publish the same bytes; see model_change. */
#include "bench/model.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>

static bool make_data(model_t *m)
{
    uint64_t state = shape_seed(1);
    m->data = calloc(m->table.count, sizeof *m->data);
    for (uint32_t i = 0; m->data && i < m->table.count; i++) {
        m->data[i] = malloc(m->table.rows[i].data_bytes);
        if (!m->data[i]) return false;
        shape_fill(m->data[i], m->table.rows[i].data_bytes, &state);
    }
    return m->data;
}

int model_new(const char *shape, uint32_t rank, model_t **ret_model, heddle_error_t *error)
{
    model_t *m = calloc(1, sizeof *m);
    int index = shape_find(shape);
    if (!m || shape_table(index, rank, 1, &m->table)) goto fail;
    shape_config(index, rank, &m->config);
    if (m->config.failed || !make_data(m)) goto fail;
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
