/* SPDX-License-Identifier: Apache-2.0 */
#include "core/errors.h"
#include "core/limits.h"
#include "proto/safetensors.h"

#include <inttypes.h>

/* Escapes of serde_json, which upstream writes with: short forms where JSON has them, else \u00xx for
 * control characters;
 * everything else as it is. */
static void add_string(buf_t *out, bytes_t text)
{
    static const char SHORT[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    const uint8_t *at = text.data, *end = at + text.bytes;
    buf_add_text(out, "\"");
    while (at < end) {
        const uint8_t *plain = at;
        while (at < end && *at >= 0x20 && *at != '"' && *at != '\\') at++;
        buf_add(out, plain, (size_t)(at - plain));
        if (at == end) break;
        if (*at >= 0x20) buf_add(out, (char[]){'\\', (char)*at}, 2);
        else if (SHORT[*at]) buf_add(out, (char[]){'\\', SHORT[*at]}, 2);
        else buf_printf(out, "\\u%04x", *at);
        at++;
    }
    buf_add_text(out, "\"");
}

/* The manifest is sorted by name: what is left is to deal the rows out by dtype, the last of the list first.
 */
static void sort_rows(const manifest_t *m, uint32_t *ret_order)
{
    const uint8_t *dtypes = m->dtypes.data;
    uint32_t next[HEDDLE_DTYPE_COUNT + 1] = {0};
    for (uint32_t i = 0; i < m->tensor_count; i++) next[dtypes[i]]++;
    uint32_t place = 0;
    for (int dtype = HEDDLE_DTYPE_COUNT; dtype-- > 0;) {
        uint32_t count = next[dtype];
        next[dtype] = place;
        place += count;
    }
    for (uint32_t i = 0; i < m->tensor_count; i++) ret_order[next[dtypes[i]]++] = i;
}

int safetensors_write(const manifest_t *m, buf_t *out, uint32_t *ret_order, heddle_error_t *error)
{
    int rc = safetensors_check_metadata(m->metadata, error);
    if (rc) return rc;
    sort_rows(m, ret_order);
    uint8_t *prefix = buf_grow(out, SAFETENSORS_PREFIX_BYTES);
    if (!prefix)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the header of a safetensors file");
    size_t start = out->bytes;
    buf_add_text(out, "{");
    if (m->metadata.bytes) {
        buf_add_text(out, "\"__metadata__\":");
        buf_add(out, m->metadata.data, m->metadata.bytes);
    }
    uint64_t offset = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        if (i > 0 || m->metadata.bytes) buf_add_text(out, ",");
        uint32_t index = ret_order[i];
        manifest_row_t row;
        manifest_row(m, index, &row);
        add_string(out, row.name);
        buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", heddle_dtype_name(row.dtype));
        for (uint32_t d = 0; d < row.ndim; d++)
            buf_printf(out, d ? ",%" PRIu64 : "%" PRIu64, manifest_dim(m, index, d));
        buf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + row.bytes);
        offset += row.bytes;
    }
    buf_add_text(out, "}");
    while ((out->bytes - start) % 8 && !out->failed) buf_add_text(out, " ");
    if (out->failed)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the header of a safetensors file");
    le64_put(out->data + start - SAFETENSORS_PREFIX_BYTES, out->bytes - start);
    if (out->bytes - start <= LIMIT_SAFETENSORS_HEADER) return HEDDLE_OK;
    rc = error_fail(error, HEDDLE_ERR_LIMIT, "the safetensors header is longer than its readers accept");
    error_expected(error, "at most %u bytes", LIMIT_SAFETENSORS_HEADER);
    error_found(error, "%zu bytes", out->bytes - start);
    error_hint(error, "publish the adapter as several adapters");
    return rc;
}
