/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/layout.h"

#include "core/errors.h"
#include "core/limits.h"
#include "formats/manifest.h" /* the manifest of this table must be within its limit */
#include "formats/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static bytes_t name_of(const heddle_tensor_t *t) { return bytes_of(t->name, t->name ? strlen(t->name) : 0); }

/* Names are shown shortened and printable: they come from files of any writer. */
static int refuse_tensor(const heddle_tensor_t *t, int code, const char *why, heddle_error_t *error)
{
    return error_fail(error, code, "tensor '%s' %s", tensor_shown(name_of(t)).text, why);
}

/* A name without bytes or with invalid UTF-8 would make a file that no reader opens. The size in bytes
 * follows from type and shape, and is computed here once, with limits that exclude overflow. */
static int check_tensor(const heddle_tensor_t *t, uint64_t *ret_bytes, heddle_error_t *error)
{
    bytes_t name = name_of(t);
    const char *why = tensor_name_problem(name);
    if (why) {
        bool too_long = name.bytes > LIMIT_TENSOR_NAME_BYTES;
        int rc = error_fail(error, too_long ? HEDDLE_ERR_LIMIT : HEDDLE_ERR_BAD_ADAPTER,
                            "the name of tensor '%s' %s", tensor_shown(name).text, why);
        error_expected(error, "1 to %u bytes of UTF-8", LIMIT_TENSOR_NAME_BYTES);
        error_found(error, "%zu bytes", name.bytes);
        error_hint(error, "name tensors by PEFT's on-disk keys, as base_model.model.<module>.lora_A.weight");
        return rc;
    }
    why = tensor_shape_problem(t->dtype, t->ndim, t->dims, ret_bytes);
    if (!why) return HEDDLE_OK;
    int rc =
        refuse_tensor(t, t->ndim > LIMIT_TENSOR_DIMS ? HEDDLE_ERR_LIMIT : HEDDLE_ERR_BAD_ADAPTER, why, error);
    error_expected(error, "a known dtype, at most %u dimensions, whole bytes, at most 1 TiB",
                   LIMIT_TENSOR_DIMS);
    /* "F32 [16, 896]" */
    char text[192];
    const char *dtype = heddle_dtype_name(t->dtype);
    int n = snprintf(text, sizeof text, "%s [", dtype ? dtype : "no dtype");
    for (uint32_t d = 0; d < t->ndim && d < 4; d++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s%" PRIu64, d ? ", " : "", t->dims[d]);
    error_found(error, "%s%s", text, t->ndim > 4 ? ", ...]" : "]");
    error_hint(error, "the tensor's description is wrong: save the adapter again");
    return rc;
}

/* By bytes, as the manifest orders its rows: a locale would give each host an order of its own. */
static int by_name(const void *a, const void *b, void *tensors)
{
    const heddle_tensor_t *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* Sorts indexes and leaves the caller's table as it is, because the caller's index is the handle of a
 * tensor. */
static int sort_rows(const heddle_tensor_t *tensors, layout_t *l, heddle_error_t *error)
{
    bool sorted = true;
    for (uint32_t i = 0; i < l->count; i++) {
        l->order[i] = i;
        sorted = sorted && (i == 0 || strcmp(tensors[i - 1].name, tensors[i].name) < 0);
    }
    if (sorted) return HEDDLE_OK; /* what PEFT saves in one dtype is sorted already */
    qsort_r(l->order, l->count, sizeof *l->order, by_name, (void *)tensors);
    for (uint32_t i = 1; i < l->count; i++) {
        if (strcmp(tensors[l->order[i - 1]].name, tensors[l->order[i]].name)) continue;
        int rc = refuse_tensor(&tensors[l->order[i]], HEDDLE_ERR_BAD_ADAPTER, "occurs twice", error);
        error_contrast(error, "each name once", "two tensors of one name");
        error_hint(error, "readers would take one or the other: save the adapter again");
        return rc;
    }
    return HEDDLE_OK;
}

/* The limits of the whole, after each tensor has been checked. */
static int check_sum(const heddle_tensor_t *tensors, const layout_t *l, heddle_error_t *error)
{
    if (l->data_bytes == 0) {
        int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "all tensors are empty");
        error_contrast(error, "at least one element in one tensor", "0 bytes");
        error_hint(error, "tensors sharded by ZeRO or FSDP are saved empty unless they are gathered first");
        return rc;
    }
    if (l->payload_bytes > LIMIT_PAYLOAD_BYTES) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "the tensors take too much memory");
        error_expected(error, "at most %llu bytes in whole pages", LIMIT_PAYLOAD_BYTES);
        error_found(error, "%" PRIu64 " bytes", l->payload_bytes);
        error_hint(error, "publish it as several adapters");
        return rc;
    }
    uint64_t bytes = manifest_bound(l, tensors, LIMIT_CONFIG_BYTES, LIMIT_METADATA_BYTES);
    if (bytes > LIMIT_MANIFEST_BYTES) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "the table of the tensors is too long");
        error_expected(error, "names and shapes that fit a manifest of %u bytes", LIMIT_MANIFEST_BYTES);
        error_found(error, "up to %" PRIu64 " bytes", bytes);
        error_hint(error, "publish it as several adapters");
        return rc;
    }
    return HEDDLE_OK;
}

/* Limits come first, then memory, then what needs a pass over the rows.  Sizes are summed before the sort,
 * so that an adapter that is too large is refused before the work on it begins. */
int layout_make(const heddle_tensor_t *tensors, uint32_t count, layout_t *ret_layout, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    if (count < 1 || count > LIMIT_TENSORS) {
        rc = error_fail(error, count ? HEDDLE_ERR_LIMIT : HEDDLE_ERR_BAD_ADAPTER,
                        count ? "there are too many tensors" : "there is no tensor");
        error_expected(error, "1 to %u tensors", LIMIT_TENSORS);
        error_found(error, "%" PRIu32, count);
        error_hint(error, count ? "publish it as several adapters" : "is this a trained adapter?");
        return rc;
    }
    layout_t l = {.count = count,
                  .order = calloc(count, sizeof *l.order),
                  .places = calloc(count, sizeof *l.places),
                  .sizes = calloc(count, sizeof *l.sizes)};
    if (!l.order || !l.places || !l.sizes)
        rc =
            error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the layout of %" PRIu32 " tensors", count);
    for (uint32_t i = 0; !rc && i < count; i++) {
        rc = check_tensor(&tensors[i], &l.sizes[i], error);
        l.data_bytes += l.sizes[i]; /* cannot overflow: 10^6 tensors of 2^40 bytes */
        l.payload_bytes += tensor_room(l.sizes[i]);
    }
    if (!rc) rc = check_sum(tensors, &l, error);
    if (!rc) rc = sort_rows(tensors, &l, error);
    if (rc) {
        layout_fini(&l);
        return rc;
    }
    uint64_t offset = 0;
    for (uint32_t i = 0; i < l.count; i++) {
        l.places[l.order[i]] = offset;
        offset += tensor_room(l.sizes[l.order[i]]);
    }
    *ret_layout = l;
    return HEDDLE_OK;
}

/* It may be called on a layout of zeros. */
void layout_fini(layout_t *l)
{
    free(l->order);
    free(l->places);
    free(l->sizes);
    *l = (layout_t){0};
}

/* The digest covers whole pages. Padding of an earlier version in a reused region would change it. */
void layout_zero_padding(const layout_t *l, void *payload)
{
    for (uint32_t i = 0; i < l->count; i++) {
        uint8_t *end = (uint8_t *)payload + l->places[i] + l->sizes[i];
        memset(end, 0, tensor_room(l->sizes[i]) - l->sizes[i]);
    }
}
