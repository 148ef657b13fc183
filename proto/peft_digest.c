/* SPDX-License-Identifier: Apache-2.0 */
/* h1 of a directory, in constant memory: the digest needs each tensor's leaves, never the whole region. */
#include "core/errors.h"
#include "core/limits.h"
#include "proto/peft_dir.h"
#include "proto/tensor.h"

#include <stdlib.h>

static int add_tensor(const peft_dir_t *d, uint32_t row, uint8_t *piece, h1_t *h1, heddle_error_t *error)
{
    uint64_t offset = d->data_start + d->table.starts[row], left = d->layout.sizes[row];
    while (left > 0) {
        uint64_t leaves[PEFT_PIECE_LEAVES];
        size_t bytes = left < PEFT_PIECE_BYTES ? (size_t)left : PEFT_PIECE_BYTES;
        int rc = input_file_read(&d->model_file, offset, piece, bytes, error);
        if (rc) return rc;
        digest_leaves(piece, bytes, leaves);
        h1_add_leaves(h1, leaves, tensor_room(bytes) / LIMIT_PAGE_BYTES);
        offset += bytes;
        left -= bytes;
    }
    return HEDDLE_OK;
}

static int digest_once(const peft_dir_t *d, digest_t *ret_digest, heddle_error_t *error)
{
    uint8_t *piece = malloc(PEFT_PIECE_BYTES);
    if (!piece) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to digest an adapter");
    h1_t h1;
    layout_h1_begin(&d->layout, d->table.tensors, peft_config(d), &h1);
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; i < d->layout.count && !rc; i++)
        rc = add_tensor(d, d->layout.order[i], piece, &h1, error);
    free(piece);
    if (!rc) *ret_digest = h1_final(&h1);
    return rc;
}

/* The files are digested twice if it is not certain otherwise that no process wrote to them meanwhile. */
static int digest_dir(const peft_dir_t *d, digest_t *ret_digest, heddle_error_t *error)
{
    bool is_sure = false;
    digest_t again;
    int rc = digest_once(d, ret_digest, error);
    if (!rc) rc = peft_check_unchanged(d, &is_sure, error);
    if (rc || is_sure) return rc;
    rc = digest_once(d, &again, error);
    if (rc || digest_equal(&again, ret_digest)) return rc;
    return input_file_refuse_changed(&d->model_file, "other bytes when it was read again", error);
}

int peft_digest(const char *dir, heddle_adapter_info_t *ret_info, heddle_error_t *error)
{
    peft_dir_t *d = NULL;
    digest_t digest;
    int rc = peft_open(dir, &d, error);
    if (rc) return rc;
    rc = digest_dir(d, &digest, error);
    if (!rc) {
        uint32_t chunk_bytes = manifest_chunk_bytes(d->layout.region_bytes);
        *ret_info = (heddle_adapter_info_t){
            .size = sizeof *ret_info,
            .kind = "lora",
            .data_bytes = d->layout.data_bytes,
            .tensor_count = d->layout.count,
            .chunk_count = (uint32_t)((d->layout.region_bytes + chunk_bytes - 1) / chunk_bytes),
            .chunk_bytes = chunk_bytes,
        };
        digest_text(&digest, ret_info->digest);
        memcpy(ret_info->features, d->features, sizeof ret_info->features);
        memcpy(ret_info->base_model, d->base_model, sizeof ret_info->base_model);
    }
    peft_close(&d);
    return rc;
}
