/* SPDX-License-Identifier: Apache-2.0 */
/* A whole region at once, without the pool that makes the product's regions piece by piece
 * (client/regions.h). */
#ifndef TESTS_CONTRACT_REGION_NEW_H
#define TESTS_CONTRACT_REGION_NEW_H

#include "core/errors.h"
#include "memory/region.h"
#include "transfer/region.h"

#include <stdlib.h>

static void region_new_end(region_t *r)
{
    memory_region_destroy(&r->own);
    free(r);
}

/* A region has at least one page, so that its base can be used. */
static inline int region_new(size_t bytes, region_t **ret_region, heddle_error_t *error)
{
    region_t *r = calloc(1, sizeof *r);
    if (!r) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    atomic_init(&r->refs, 1);
    r->end = region_new_end;
    int rc = memory_region_new(bytes ? bytes : 1, &r->own, error);
    if (!rc) rc = memory_region_begin(r->own, error);
    while (!rc && (rc = memory_region_grow(r->own, error)) == HEDDLE_ERR_AGAIN) rc = HEDDLE_OK;
    if (rc) {
        region_unref(&r);
        return rc;
    }
    r->base = r->own->base;
    r->bytes = r->own->bytes;
    *ret_region = r;
    return HEDDLE_OK;
}

#endif
