/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests, in both directions: from bytes that come from outside to a manifest of which every number has
 * been checked, and from a filled payload to the manifest that describes it.  The digest h1 is made of
 * either. */
#include "formats/manifest.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/stop.h"
#include "formats/kind.h"
#include "formats/tensor.h"
#include "proto/scan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define H1_DOMAIN "heddle/h1\n"
#define LEAVES_MAX (LIMIT_CHUNK_MAX_BYTES / LIMIT_PAGE_BYTES)
#define STOP_CHUNKS 32u   /* between two calls of stop_check: some milliseconds */
#define FIXED_BYTES 1024u /* the map, its keys, numbers, kind, features and the headers of the columns */

/* The layout of a manifest. A reader refuses another number, because columns could have other
 * meanings. */
#define VERSION 1u

/* The order of names in a manifest: by bytes, independent of any locale. */
static int compare(bytes_t a, bytes_t b)
{
    size_t common = a.bytes < b.bytes ? a.bytes : b.bytes;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

/* The size grows with the payload, so that the column of digests of a large one stays short. */
uint32_t manifest_chunk_bytes(uint64_t payload_bytes)
{
    uint32_t bytes = LIMIT_CHUNK_MIN_BYTES;
    while (bytes < LIMIT_CHUNK_MAX_BYTES && 2ull * bytes <= payload_bytes / 1024) bytes *= 2;
    return bytes;
}

/* What the map holds, before it is believed. */
typedef struct {
    uint64_t v, chunk_bytes, payload_bytes, data_bytes, count;
    const msgpack_object *features;
    bytes_t kind, config, metadata, names, name_ends, dtypes, ndims, dims, offsets, sizes, chunks;
} fields_t;

typedef enum { NUMBER, TEXT, LIST, BYTES } kind_t;
static const msgpack_object_type TYPES[] = {[NUMBER] = MSGPACK_OBJECT_POSITIVE_INTEGER,
                                            [TEXT] = MSGPACK_OBJECT_STR,
                                            [LIST] = MSGPACK_OBJECT_ARRAY,
                                            [BYTES] = MSGPACK_OBJECT_BIN};

static const struct {
    const char *key;
    kind_t kind;
    size_t at;
} FIELDS[] = {
/* One row a key: the decoder, its duplicates and what is missing all follow from this table. */
#define ROW(kind, name)                                                                                      \
    {                                                                                                        \
#name, kind, offsetof(fields_t, name)                                                                \
    }
    ROW(NUMBER, v),          ROW(NUMBER, chunk_bytes), ROW(NUMBER, payload_bytes),
    ROW(NUMBER, data_bytes), ROW(NUMBER, count),       ROW(LIST, features),
    ROW(TEXT, kind),         ROW(BYTES, config),       ROW(BYTES, metadata),
    ROW(BYTES, names),       ROW(BYTES, name_ends),    ROW(BYTES, dtypes),
    ROW(BYTES, ndims),       ROW(BYTES, dims),         ROW(BYTES, offsets),
    ROW(BYTES, sizes),       ROW(BYTES, chunks),
#undef ROW
};
#define FIELD_COUNT (sizeof FIELDS / sizeof *FIELDS)

static const scan_limits_t SCAN_LIMITS = {.depth = 4, .nodes = 256, .keys = 32};

/* All numbers are shown as they were found: a manifest that is malformed comes from another release, or
 * was damaged in a way that its digest did not show. */
static int refuse(heddle_error_t *error, int code, const char *what, uint64_t expected, uint64_t found)
{
    int rc = error_fail(error, code, "the manifest is malformed: %s", what);
    error_expected(error, code == HEDDLE_ERR_LIMIT ? "1 to %" PRIu64 : "%" PRIu64, expected);
    error_found(error, "%" PRIu64, found);
    return rc;
}

/* Unknown keys are skipped: a later release may add some.  Missing keys and values of another type are
 * errors.  The scan saw to it that every text and bin lies within the input, and that each key is a text that
 * comes once. */
static int take_fields(const msgpack_object *map, fields_t *ret_fields, heddle_error_t *error)
{
    if (map->type != MSGPACK_OBJECT_MAP)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed: it is not a map");
    uint32_t seen = 0;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_str *key = &map->via.map.ptr[i].key.via.str;
        const msgpack_object *value = &map->via.map.ptr[i].val;
        size_t at = 0;
        while (at < FIELD_COUNT &&
               (strlen(FIELDS[at].key) != key->size || memcmp(FIELDS[at].key, key->ptr, key->size) != 0))
            at++;
        if (at == FIELD_COUNT) continue;
        void *to = (char *)ret_fields + FIELDS[at].at;
        if (value->type != TYPES[FIELDS[at].kind])
            return error_fail(error, HEDDLE_ERR_PROTOCOL,
                              "the manifest is malformed: '%s' has the wrong type", FIELDS[at].key);
        switch (FIELDS[at].kind) {
        case NUMBER: *(uint64_t *)to = value->via.u64; break;
        case LIST: *(const msgpack_object **)to = value; break;
        case TEXT: *(bytes_t *)to = bytes_of(value->via.str.ptr, value->via.str.size); break;
        case BYTES: *(bytes_t *)to = bytes_of(value->via.bin.ptr, value->via.bin.size); break;
        }
        seen |= 1u << at;
    }
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (!(seen & 1u << i))
            return error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed: '%s' is missing",
                              FIELDS[i].key);
    return HEDDLE_OK;
}

/* Words of ours: a-z, 0-9 and '_'. */
static bool is_word(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789_", text[i]) || !text[i]) return false;
    return bytes > 0;
}

/* Features are sorted, so that one set of features has one encoding and one digest. */
static int take_words(const fields_t *f, manifest_t *m, heddle_error_t *error)
{
    if (f->kind.bytes >= sizeof m->kind || !is_word(f->kind.data, f->kind.bytes))
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed: kind is not a word");
    memcpy(m->kind, f->kind.data, f->kind.bytes);

    const msgpack_object_array *list = &f->features->via.array;
    bytes_t last = {0};
    size_t used = 0;
    for (uint32_t i = 0; i < list->size; i++) {
        const msgpack_object *o = &list->ptr[i];
        if (o->type != MSGPACK_OBJECT_STR || !is_word(o->via.str.ptr, o->via.str.size) ||
            used + 1 + o->via.str.size >= sizeof m->features)
            return error_fail(error, HEDDLE_ERR_PROTOCOL,
                              "the manifest is malformed: features are not a short list of words");
        bytes_t word = bytes_of(o->via.str.ptr, o->via.str.size);
        if (compare(last, word) >= 0)
            return error_fail(error, HEDDLE_ERR_PROTOCOL,
                              "the manifest is malformed: features are not sorted");
        if (i > 0) m->features[used++] = ',';
        memcpy(m->features + used, word.data, word.bytes);
        used += word.bytes;
        last = word;
    }
    return HEDDLE_OK;
}

/* Lengths that follow from the counts alone: after this no column is read past its end. */
static int check_columns(const fields_t *f, heddle_error_t *error)
{
    if (f->count == 0 || f->count > LIMIT_TENSORS)
        return refuse(error, HEDDLE_ERR_LIMIT, "count", LIMIT_TENSORS, f->count);
    if (f->payload_bytes == 0 || f->payload_bytes > LIMIT_PAYLOAD_BYTES)
        return refuse(error, HEDDLE_ERR_LIMIT, "payload_bytes", LIMIT_PAYLOAD_BYTES, f->payload_bytes);
    uint64_t chunk_bytes = manifest_chunk_bytes(f->payload_bytes),
             chunks = (f->payload_bytes + chunk_bytes - 1) / chunk_bytes;
    /* The size of a chunk is no choice of the writer: readers compute it, and compare. */
    const struct {
        const char *what;
        uint64_t expected, found;
    } CHECKS[] = {
        {"chunk_bytes", chunk_bytes, f->chunk_bytes},
        {"bytes of name_ends", 4 * f->count, f->name_ends.bytes},
        {"bytes of dtypes", f->count, f->dtypes.bytes},
        {"bytes of ndims", f->count, f->ndims.bytes},
        {"bytes of offsets", 8 * f->count, f->offsets.bytes},
        {"bytes of sizes", 8 * f->count, f->sizes.bytes},
        {"bytes of chunks", 16 * chunks, f->chunks.bytes},
    };
    for (size_t i = 0; i < sizeof CHECKS / sizeof *CHECKS; i++)
        if (CHECKS[i].expected != CHECKS[i].found)
            return refuse(error, HEDDLE_ERR_PROTOCOL, CHECKS[i].what, CHECKS[i].expected, CHECKS[i].found);
    if (f->config.bytes == 0 || f->config.bytes > LIMIT_CONFIG_BYTES)
        return refuse(error, HEDDLE_ERR_LIMIT, "bytes of config", LIMIT_CONFIG_BYTES, f->config.bytes);
    if (f->metadata.bytes > LIMIT_METADATA_BYTES)
        return refuse(error, HEDDLE_ERR_LIMIT, "bytes of metadata", LIMIT_METADATA_BYTES, f->metadata.bytes);
    return HEDDLE_OK;
}

/* The digest covers the config, and through it the kind. */
static int check_kind(const manifest_t *m, bytes_t config, heddle_error_t *error)
{
    if (kind_has_config(m->kind, config)) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_PROTOCOL,
                      "the manifest is malformed: its config is not one of kind %s", m->kind);
}

/* The row is named, since a manifest has up to a million of them. */
static int refuse_row(heddle_error_t *error, uint32_t row, const char *what, uint64_t expected,
                      uint64_t found)
{
    char text[160];
    snprintf(text, sizeof text, "%s of row %" PRIu32, what, row);
    return refuse(error, HEDDLE_ERR_PROTOCOL, text, expected, found);
}

/* Rows are walked once, in order: each row's name, dimensions and offset must begin where the row before it
 * ended.  That excludes gaps, overlaps and unsorted names without any further memory. */
static int check_rows(const manifest_t *m, heddle_error_t *error)
{
    uint64_t name_end = 0, dims = 0, offset = 0, data_bytes = 0;
    bytes_t last_name = {0};
    for (uint32_t row = 0; row < m->tensor_count; row++) {
        uint32_t end = le32_get((const uint8_t *)m->name_ends.data + 4 * (size_t)row);
        if (end < name_end || end > m->names.bytes)
            return refuse_row(error, row, "name_ends", m->names.bytes, end);
        bytes_t name = bytes_of((const uint8_t *)m->names.data + name_end, (size_t)(end - name_end));
        const char *why = tensor_name_problem(name);
        if (why)
            return error_fail(error, HEDDLE_ERR_PROTOCOL,
                              "the manifest is malformed: the name of row %" PRIu32 " %s", row, why);
        if (compare(last_name, name) >= 0)
            return error_fail(error, HEDDLE_ERR_PROTOCOL,
                              "the manifest is malformed: row %" PRIu32 " is out of order: '%s'", row,
                              tensor_shown(name).text);
        name_end = end;
        last_name = name;

        /* The size follows from type and shape: what the row says of it must agree. */
        int dtype = ((const uint8_t *)m->dtypes.data)[row];
        uint32_t ndim = ((const uint8_t *)m->ndims.data)[row];
        if (8 * (dims + ndim) > m->dims.bytes)
            return refuse_row(error, row, "dims", m->dims.bytes, 8 * (dims + ndim));
        uint64_t bytes, size = le64_get((const uint8_t *)m->sizes.data + 8 * (size_t)row);
        why = tensor_shape_problem(dtype, ndim, (const uint8_t *)m->dims.data + 8 * dims, &bytes);
        if (why)
            return error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed: row %" PRIu32 " %s",
                              row, why);
        if (size != bytes) return refuse_row(error, row, "sizes", bytes, size);
        uint64_t found = le64_get((const uint8_t *)m->offsets.data + 8 * (size_t)row);
        if (found != offset) return refuse_row(error, row, "offsets", offset, found);
        m->dim_starts[row] = (uint32_t)dims;
        dims += ndim;
        offset += tensor_room(bytes); /* no overflow: 10^6 rows of 2^40 bytes */
        data_bytes += bytes;
    }
    if (name_end != m->names.bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "bytes of names", name_end, m->names.bytes);
    if (8 * dims != m->dims.bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "bytes of dims", 8 * dims, m->dims.bytes);
    if (offset != m->payload_bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "payload_bytes", offset, m->payload_bytes);
    if (data_bytes != m->data_bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "data_bytes", data_bytes, m->data_bytes);
    return HEDDLE_OK;
}

/* Counts are checked before memory is taken for them, columns before rows are read from them. */
int manifest_decode(bytes_t encoded, manifest_t *ret_manifest, heddle_error_t *error)
{
    if (encoded.bytes > LIMIT_MANIFEST_BYTES)
        return refuse(error, HEDDLE_ERR_LIMIT, "it is too long", LIMIT_MANIFEST_BYTES, encoded.bytes);
    fields_t f = {0};
    manifest_t m = {0};
    scan_tree_t tree;
    int rc = scan_decode(encoded, &SCAN_LIMITS, "the manifest", &tree, error);
    if (!rc) rc = take_fields(&tree.root, &f, error);
    if (!rc && f.v != VERSION)
        rc = refuse(error, HEDDLE_ERR_PROTOCOL, "v, the layout's version", VERSION, f.v);
    if (!rc) rc = take_words(&f, &m, error);
    if (!rc) rc = check_columns(&f, error);
    if (!rc) rc = check_kind(&m, f.config, error);
    scan_end(&tree); /* the columns point into `encoded`, not into this */
    if (rc) return rc;
    m.tensor_count = (uint32_t)f.count;
    m.chunk_bytes = (uint32_t)f.chunk_bytes;
    m.chunk_count = (uint32_t)(f.chunks.bytes / sizeof(chunk_digest_t));
    m.payload_bytes = f.payload_bytes;
    m.data_bytes = f.data_bytes;
    m.config = f.config, m.metadata = f.metadata;
    m.names = f.names, m.name_ends = f.name_ends, m.dtypes = f.dtypes, m.ndims = f.ndims;
    m.dims = f.dims, m.offsets = f.offsets, m.sizes = f.sizes, m.chunks = f.chunks;
    m.dim_starts = calloc(m.tensor_count, sizeof *m.dim_starts);
    rc = m.dim_starts ? check_rows(&m, error)
                      : error_fail(error, HEDDLE_ERR_NO_MEMORY,
                                   "no memory for a manifest of %" PRIu32 " tensors", m.tensor_count);
    if (rc) manifest_fini(&m);
    else *ret_manifest = m;
    return rc;
}

/* The copy is made first: another process may write to the bytes between their digest and their decoding. */
int manifest_read(bytes_t encoded, const digest_t *expected, manifest_t *ret_manifest, heddle_error_t *error)
{
    uint8_t *copy = malloc(encoded.bytes);
    if (!copy) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a manifest");
    memcpy(copy, encoded.data, encoded.bytes);
    digest_t found = digest_blake2b(copy, encoded.bytes);
    int rc =
        digest_equal(&found, expected)
            ? manifest_decode(bytes_of(copy, encoded.bytes), ret_manifest, error)
            : error_fail(error, HEDDLE_ERR_DIGEST_MISMATCH, "the manifest differs from what was announced");
    if (rc) free(copy);
    else ret_manifest->encoded = copy;
    return rc;
}

/* It may be called on a manifest of zeros, as every failed decoding leaves one. */
void manifest_fini(manifest_t *m)
{
    free(m->dim_starts);
    free(m->encoded);
    *m = (manifest_t){0};
}

/* Rows are read from the encoded columns in place: a manifest of a million tensors needs no million
 * structs. */
void manifest_row(const manifest_t *m, uint32_t index, manifest_row_t *ret_row)
{
    const uint8_t *ends = m->name_ends.data;
    uint32_t start = index ? le32_get(ends + 4 * (size_t)(index - 1)) : 0,
             end = le32_get(ends + 4 * (size_t)index);
    *ret_row = (manifest_row_t){
        .name = bytes_of((const uint8_t *)m->names.data + start, end - start),
        .dtype = ((const uint8_t *)m->dtypes.data)[index],
        .ndim = ((const uint8_t *)m->ndims.data)[index],
        .offset = le64_get((const uint8_t *)m->offsets.data + 8 * (size_t)index),
        .bytes = le64_get((const uint8_t *)m->sizes.data + 8 * (size_t)index),
    };
}

/* Extents of all tensors stand one after the other, and dim_starts saves the walk to the first of each. */
uint64_t manifest_dim(const manifest_t *m, uint32_t index, uint32_t d)
{
    return le64_get((const uint8_t *)m->dims.data + 8 * ((size_t)m->dim_starts[index] + d));
}

/* The last chunk is as short as the payload demands. */
uint32_t manifest_chunk(const manifest_t *m, uint32_t chunk, uint64_t *ret_offset)
{
    uint64_t offset = (uint64_t)chunk * m->chunk_bytes, left = m->payload_bytes - offset;
    *ret_offset = offset;
    return left < m->chunk_bytes ? (uint32_t)left : m->chunk_bytes;
}

/* A copy, because the column is not aligned. */
void manifest_chunk_digest(const manifest_t *m, uint32_t chunk, chunk_digest_t *ret_digest)
{
    memcpy(ret_digest->b, (const uint8_t *)m->chunks.data + sizeof ret_digest->b * (size_t)chunk,
           sizeof ret_digest->b);
}

/* Columns of known lengths need no separators: two tables that differ give different bytes. */
digest_t manifest_table_digest(const manifest_t *m)
{
    h1_t h;
    h1_init(&h);
    h1_add_u32(&h, m->tensor_count); /* and with it the bytes of the next three */
    h1_add(&h, m->name_ends.data, m->name_ends.bytes);
    h1_add(&h, m->dtypes.data, m->dtypes.bytes);
    h1_add(&h, m->ndims.data, m->ndims.bytes);
    h1_add(&h, m->dims.data, m->dims.bytes);
    h1_add(&h, m->names.data, m->names.bytes);
    return h1_final(&h);
}

/* ---- h1 ---- */

/* h1's record: the same bytes whether they come from a caller's table or from a manifest's columns. */
static void add_head(h1_t *h1, bytes_t config, uint64_t count)
{
    h1_init(h1);
    h1_add(h1, H1_DOMAIN, sizeof H1_DOMAIN - 1);
    h1_add_u64(h1, config.bytes);
    h1_add(h1, config.data, config.bytes);
    h1_add_u64(h1, count);
}

/* Lengths come before texts, so that no name can pass for the beginning of the next field. */
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

/* A worker makes h1 from the manifest that it fetched, a publisher from its own table: both go through the
 * same two functions, so that they cannot drift apart. */
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
        manifest_row_t row = {.name = bytes_of(t->name, strlen(t->name)),
                              .dtype = t->dtype,
                              .ndim = t->ndim,
                              .bytes = l->sizes[l->order[i]]};
        add_row(ret_h1, &row, t->dims);
    }
}

/* ---- making ---- */

static uint64_t chunk_count(uint64_t payload_bytes)
{
    uint32_t chunk_bytes = manifest_chunk_bytes(payload_bytes);
    return (payload_bytes + chunk_bytes - 1) / chunk_bytes;
}

/* One pass over the bytes, where their leaves are not known: leaves, chunks and h1. */
static int digest_region(const manifest_input_t *in, uint8_t *ret_chunks, h1_t *h1)
{
    uint64_t payload_bytes = in->layout->payload_bytes;
    uint32_t chunk_bytes = manifest_chunk_bytes(payload_bytes);
    for (uint64_t offset = 0; offset < payload_bytes; offset += chunk_bytes) {
        uint64_t own[LEAVES_MAX], left = payload_bytes - offset;
        const uint64_t *leaves = in->leaves ? in->leaves + offset / LIMIT_PAGE_BYTES : own;
        size_t bytes = left < chunk_bytes ? (size_t)left : chunk_bytes, count = bytes / LIMIT_PAGE_BYTES;
        if (!in->leaves) digest_leaves((const uint8_t *)in->payload + offset, bytes, own);
        h1_add_leaves(h1, leaves, count);
        chunk_digest_t chunk = digest_chunk(leaves, count);
        memcpy(ret_chunks, chunk.b, sizeof chunk.b);
        ret_chunks += sizeof chunk.b;
        int rc = offset / chunk_bytes % STOP_CHUNKS ? HEDDLE_OK : stop_check(NULL);
        if (rc) return rc;
    }
    return HEDDLE_OK;
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

typedef struct {
    uint64_t names, dims;
} sums_t;

/* The columns of names and extents are the only ones whose lengths do not follow from the count. */
static sums_t sum_columns(const heddle_tensor_t *tensors, uint32_t count)
{
    sums_t sums = {0};
    for (uint32_t i = 0; i < count; i++) {
        sums.names += strlen(tensors[i].name);
        sums.dims += tensors[i].ndim;
    }
    return sums;
}

/* Columns instead of rows: a reader checks the length of each at once, and a tensor costs no map of its
 * own. */
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

/* All memory is taken before the digest pass, which takes seconds for a large payload. */
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
    msgpack_packer_init(&pk, out, scan_sink);
    msgpack_pack_map(&pk, 17);
    pack_number(&pk, "v", VERSION);
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
    pack_number(&pk, "chunk_bytes", manifest_chunk_bytes(l->payload_bytes));
    pack_number(&pk, "payload_bytes", l->payload_bytes);
    pack_number(&pk, "data_bytes", l->data_bytes);
    pack_number(&pk, "count", l->count);
    pack_bytes(&pk, "config", in->config);
    pack_bytes(&pk, "metadata", in->metadata);
    pack_table(&pk, l, in->tensors);

    h1_t h1;
    layout_h1_begin(l, in->tensors, in->config, &h1);
    uint8_t *chunks = pack_column(&pk, "chunks", 16 * chunk_count(l->payload_bytes));
    int rc = digest_region(in, chunks, &h1);
    if (!rc) *ret_h1 = h1_final(&h1);
    return rc;
}

/* What has no fixed length is added up, and the rest is rounded up generously: the bound is of memory that
 * is given back soon. */
uint64_t manifest_bound(const layout_t *l, const heddle_tensor_t *tensors, size_t config_bytes,
                        size_t metadata_bytes)
{
    sums_t sums = sum_columns(tensors, l->count);
    return FIXED_BYTES + config_bytes + metadata_bytes + sums.names + 8 * sums.dims +
           16 * chunk_count(l->payload_bytes) + (4 + 1 + 1 + 8 + 8) * (uint64_t)l->count;
}
