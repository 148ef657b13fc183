/* SPDX-License-Identifier: Apache-2.0 */
/* A whole region at once: the product makes regions piece by piece (transfer/region.h). */
#ifndef TESTS_CONTRACT_REGION_NEW_H
#define TESTS_CONTRACT_REGION_NEW_H

#include "transfer/region.h"

static inline int region_new(size_t bytes, region_t **ret_region, heddle_error_t *error)
{
    region_t *r = NULL;
    int rc = region_begin(bytes, &r, error);
    if (rc) return rc;
    do rc = region_grow(r, error);
    while (rc == HEDDLE_ERR_AGAIN);
    if (rc) region_unref(&r);
    else *ret_region = r;
    return rc;
}

#endif
