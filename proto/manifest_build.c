/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding: a table and a filled region become a manifest and h1. */
#include "core/limits.h"
#include "core/stop.h"
#include "proto/manifest.h"

#include <msgpack.h>

#define H1_DOMAIN "heddle/h1\n"
#define LEAVES_MAX (LIMIT_CHUNK_MAX_BYTES / LIMIT_PAGE_BYTES)
#define STOP_CHUNKS 32u     /* between two calls of stop_check: some milliseconds */
#define FIXED_BYTES 1024u   /* the map, its keys, numbers, kind, features and the headers of the columns */

uint32_t manifest_chunk_bytes(uint64_t region_bytes)
{
    uint32_t bytes = LIMIT_CHUNK_MIN_BYTES;
    while (bytes < LIMIT_CHUNK_MAX_BYTES && 2ull * bytes <= region_bytes / 1024) bytes *= 2;
    return bytes;
}

static uint64_t chunk_count(uint64_t region_bytes)
{
    uint32_t chunk_bytes = manifest_chunk_bytes(region_bytes);
    return (region_bytes + chunk_bytes - 1) / chunk_bytes;
}

/* h1's record: the same bytes whether they come from a caller's table or from a manifest's columns. */
static void add_head(h1_t *h1, bytes_t config, uint64_t count)
{
    h1_init(h1);
    h1_add(h1, H1_DOMAIN, sizeof H1_DOMAIN - 1);
    h1_add_u64(h1, config.bytes);
    h1_add(h1, config.data, config.bytes);
    h1_add_u64(h1, count);
}

static void add_row(h1_t *h1, const manifest_row_t *row, const void *dims)
{
    const char *dtype = heddle_dtype_name(row->dtype);
    h1_add_u32(h1, (uint32_t)row->name.bytes);
    h1_add(h1, row->name.data, row->name.bytes);
    h1_add_u32(h1, (uint32_t)strlen(dtype));
    h1_add(h1, dtype, strlen(dtype));
    h1_add_u32(h1, row->ndim);
    h1_add(h1, dims, 8 * (size_t)row->ndim);
    h1_add_u64(h1, row->bytes);
}

void manifest_h1_begin(const manifest_t *m, h1_t *ret_h1)
{
    add_head(ret_h1, m->config, m->tensor_count);
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        manifest_row_t row;
        manifest_row(m, i, &row);
        add_row(ret_h1, &row, (const uint8_t *)m->dims.data + 8 * (size_t)m->dim_starts[i]);
    }
}

void layout_h1_begin(const layout_t *l, const heddle_tensor_t *tensors, bytes_t config, h1_t *ret_h1)
{
    add_head(ret_h1, config, l->count);
    for (uint32_t i = 0; i < l->count; i++) {
        const heddle_tensor_t *t = &tensors[l->order[i]];
        manifest_row_t row = {.name = bytes_of(t->name, strlen(t->name)), .dtype = t->dtype, .ndim = t->ndim,
                              .bytes = l->sizes[l->order[i]]};
        add_row(ret_h1, &row, t->dims);
    }
}

/* One pass over the bytes, where their leaves are not known: leaves, chunks and h1. */
static int digest_region(const manifest_input_t *in, uint8_t *ret_chunks, h1_t *h1)
{
    uint64_t region_bytes = in->layout->region_bytes;
    uint32_t chunk_bytes = manifest_chunk_bytes(region_bytes);
    for (uint64_t offset = 0; offset < region_bytes; offset += chunk_bytes) {
        uint64_t own[LEAVES_MAX], left = region_bytes - offset;
        const uint64_t *leaves = in->leaves ? in->leaves + offset / LIMIT_PAGE_BYTES : own;
        size_t bytes = left < chunk_bytes ? (size_t)left : chunk_bytes, count = bytes / LIMIT_PAGE_BYTES;
        if (!in->leaves) digest_leaves((const uint8_t *)in->region + offset, bytes, own);
        h1_add_leaves(h1, leaves, count);
        chunk_digest_t chunk = digest_chunk(leaves, count);
        memcpy(ret_chunks, chunk.b, sizeof chunk.b);
        ret_chunks += sizeof chunk.b;
        int rc = offset / chunk_bytes % STOP_CHUNKS ? HEDDLE_OK : stop_check(NULL);
        if (rc) return rc;
    }
    return HEDDLE_OK;
}

static int append(void *out, const char *data, size_t bytes)
{
    buf_add(out, data, bytes);
    return ((buf_t *)out)->failed ? -1 : 0;
}

static void pack_key(msgpack_packer *pk, const char *key)
{
    msgpack_pack_str_with_body(pk, key, strlen(key));
}

static void pack_number(msgpack_packer *pk, const char *key, uint64_t value)
{
    pack_key(pk, key);
    msgpack_pack_uint64(pk, value);
}

static void pack_bytes(msgpack_packer *pk, const char *key, bytes_t bytes)
{
    pack_key(pk, key);
    msgpack_pack_bin_with_body(pk, bytes.data, bytes.bytes);
}

/* Begins a column and gives its place, to be filled later: nothing moves once manifest_build has made room.
 */
static uint8_t *pack_column(msgpack_packer *pk, const char *key, uint64_t bytes)
{
    pack_key(pk, key);
    msgpack_pack_bin(pk, (size_t)bytes);
    return buf_grow(pk->data, (size_t)bytes);
}

typedef struct { uint64_t names, dims; } sums_t;

static sums_t sum_columns(const heddle_tensor_t *tensors, uint32_t count)
{
    sums_t sums = {0};
    for (uint32_t i = 0; i < count; i++) {
        sums.names += strlen(tensors[i].name);
        sums.dims += tensors[i].ndim;
    }
    return sums;
}

static void pack_table(msgpack_packer *pk, const layout_t *l, const heddle_tensor_t *tensors)
{
    uint64_t count = l->count;
    sums_t sums = sum_columns(tensors, l->count);
    uint8_t *names = pack_column(pk, "names", sums.names), *ends = pack_column(pk, "name_ends", 4 * count);
    uint8_t *dtypes = pack_column(pk, "dtypes", count), *ndims = pack_column(pk, "ndims", count);
    uint8_t *dims = pack_column(pk, "dims", 8 * sums.dims), *offsets = pack_column(pk, "offsets", 8 * count);
    uint8_t *sizes = pack_column(pk, "sizes", 8 * count);
    const uint8_t *first = names;
    for (uint32_t i = 0; i < l->count; i++) {
        uint32_t row = l->order[i];
        const heddle_tensor_t *t = &tensors[row];
        size_t bytes = strlen(t->name);
        memcpy(names, t->name, bytes);
        names += bytes;
        le32_put(ends + 4 * (size_t)i, (uint32_t)(names - first));
        dtypes[i] = (uint8_t)t->dtype;
        ndims[i] = (uint8_t)t->ndim;
        for (uint32_t d = 0; d < t->ndim; d++, dims += 8) le64_put(dims, t->dims[d]);
        le64_put(offsets + 8 * (size_t)i, l->places[row]);
        le64_put(sizes + 8 * (size_t)i, l->sizes[row]);
    }
}

int manifest_build(const manifest_input_t *in, buf_t *out, digest_t *ret_h1)
{
    const layout_t *l = in->layout;
    if (in->config.bytes > LIMIT_CONFIG_BYTES || in->metadata.bytes > LIMIT_METADATA_BYTES)
        return HEDDLE_ERR_LIMIT;
    size_t start = out->bytes;
    buf_grow(out, (size_t)manifest_bound(l, in->tensors, in->config.bytes, in->metadata.bytes));
    if (out->failed) return HEDDLE_ERR_NO_MEMORY;
    out->bytes = start; /* the buffer has its room, so pointers into it stay valid from here on */

    msgpack_packer pk;
    msgpack_packer_init(&pk, out, append);
    msgpack_pack_map(&pk, 17);
    pack_number(&pk, "v", 1);
    pack_key(&pk, "kind");
    msgpack_pack_str_with_body(&pk, in->kind, strlen(in->kind));
    const char *features = in->features;
    uint32_t count = *features ? 1 : 0;
    for (const char *p = features; *p; p++) count += *p == ',';
    pack_key(&pk, "features");
    msgpack_pack_array(&pk, count);
    for (; count; count--) {
        size_t bytes = strcspn(features, ",");
        msgpack_pack_str_with_body(&pk, features, bytes);
        features += bytes + 1;
    }
    pack_number(&pk, "chunk_bytes", manifest_chunk_bytes(l->region_bytes));
    pack_number(&pk, "region_bytes", l->region_bytes);
    pack_number(&pk, "data_bytes", l->data_bytes);
    pack_number(&pk, "count", l->count);
    pack_bytes(&pk, "config", in->config);
    pack_bytes(&pk, "metadata", in->metadata);
    pack_table(&pk, l, in->tensors);

    h1_t h1;
    layout_h1_begin(l, in->tensors, in->config, &h1);
    uint8_t *chunks = pack_column(&pk, "chunks", 16 * chunk_count(l->region_bytes));
    int rc = digest_region(in, chunks, &h1);
    if (!rc) *ret_h1 = h1_final(&h1);
    return rc;
}

uint64_t manifest_bound(const layout_t *l, const heddle_tensor_t *tensors, size_t config_bytes,
                        size_t metadata_bytes)
{
    sums_t sums = sum_columns(tensors, l->count);
    return FIXED_BYTES + config_bytes + metadata_bytes + sums.names + 8 * sums.dims +
           16 * chunk_count(l->region_bytes) + (4 + 1 + 1 + 8 + 8) * (uint64_t)l->count;
}
