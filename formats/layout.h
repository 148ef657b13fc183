/* SPDX-License-Identifier: Apache-2.0 */
/* formats/layout.h: where each tensor of a version lies in its payload: sorted by name, each at a page
 * boundary, with zero padding.  It follows from names, types and shapes alone, so two processes with the same
 * table agree on it.  Plain data without a thread; its owner is the caller of layout_make. */
#ifndef FORMATS_LAYOUT_H
#define FORMATS_LAYOUT_H

#include "core/bytes.h"
#include "core/digest.h"

#include <heddle/error.h>
#include <heddle/types.h>

typedef struct layout {
    uint32_t count;
    uint32_t *order;  /* owned: input rows sorted by name (bytes) */
    uint64_t *places; /* owned: offset of each input row in the payload */
    uint64_t *sizes;  /* owned: bytes of each input row */
    uint64_t payload_bytes, data_bytes;
} layout_t;
/* Takes tensors in any order, of which there is at least one, with a byte in one of them.  Checks names,
 * types, shapes, overflow, duplicates and limits: BAD_ADAPTER or LIMIT names the tensor; NO_MEMORY.  On OK
 * the caller calls layout_fini. */
int layout_make(const heddle_tensor_t *tensors, uint32_t count, layout_t *ret_layout, heddle_error_t *error);
void layout_fini(layout_t *l);
/* Zeroes the bytes that no tensor covers.  Needed in memory that held other content before,
 * because padding is digested. */
void layout_zero_padding(const layout_t *l, void *payload);
/* Starts h1 with everything but the leaves, as manifest_h1_begin does for a manifest. */
void layout_h1_begin(const layout_t *l, const heddle_tensor_t *tensors, bytes_t config, h1_t *ret_h1);

#endif
