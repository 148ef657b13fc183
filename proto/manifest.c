/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding: bytes from outside -> a manifest of which every number has been checked. */
#include "proto/manifest.h"

#include "core/errors.h"
#include "core/limits.h"
#include "proto/scan.h"
#include "proto/tensor.h"

#include <inttypes.h>
#include <msgpack.h>
#include <stdio.h>
#include <stdlib.h>

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

/* What the map holds, before it is believed. */
typedef struct {
    uint64_t v, chunk_bytes, region_bytes, data_bytes, count;
    const msgpack_object *features;
    bytes_t kind, config, metadata, names, name_ends, dtypes, ndims, dims, offsets, sizes, chunks;
} fields_t;

typedef enum { NUMBER, TEXT, LIST, BYTES } kind_t;

static const struct { const char *key; kind_t kind; size_t at;
} FIELDS[] = {
#define ROW(kind, name) {#name, kind, offsetof(fields_t, name)}
    ROW(NUMBER, v),       ROW(NUMBER, chunk_bytes), ROW(NUMBER, region_bytes), ROW(NUMBER, data_bytes),
    ROW(NUMBER, count),   ROW(LIST, features),      ROW(TEXT, kind),           ROW(BYTES, config),
    ROW(BYTES, metadata), ROW(BYTES, names),        ROW(BYTES, name_ends),     ROW(BYTES, dtypes),
    ROW(BYTES, ndims),    ROW(BYTES, dims),         ROW(BYTES, offsets),       ROW(BYTES, sizes),
    ROW(BYTES, chunks),
#undef ROW
};
#define FIELD_COUNT (sizeof FIELDS / sizeof *FIELDS)

static const scan_limits_t SCAN_LIMITS = {.depth = 4, .nodes = 256, .keys = 32};

static int refuse(heddle_error_t *error, int code, const char *what, uint64_t expected, uint64_t found)
{
    int rc = error_fail(error, code, "the manifest is malformed: %s", what);
    error_expected(error, code == HEDDLE_ERR_LIMIT ? "1 to %" PRIu64 : "%" PRIu64, expected);
    error_found(error, "%" PRIu64, found);
    return rc;
}

/* The type is checked per field. The scan before it guarantees that every text and bin lies within the
 * input. */
static bool take_value(const msgpack_object *value, kind_t kind, void *to)
{
    switch (kind) {
    case NUMBER:
        if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER) return false;
        *(uint64_t *)to = value->via.u64;
        return true;
    case LIST:
        if (value->type != MSGPACK_OBJECT_ARRAY) return false;
        *(const msgpack_object **)to = value;
        return true;
    case TEXT:
        if (value->type != MSGPACK_OBJECT_STR) return false;
        *(bytes_t *)to = bytes_of(value->via.str.ptr, value->via.str.size);
        return true;
    case BYTES:
        if (value->type != MSGPACK_OBJECT_BIN) return false;
        *(bytes_t *)to = bytes_of(value->via.bin.ptr, value->via.bin.size);
        return true;
    }
    return false;
}

static int find_field(const msgpack_object_str *key)
{
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (strlen(FIELDS[i].key) == key->size && !memcmp(FIELDS[i].key, key->ptr, key->size)) return (int)i;
    return -1;
}

/* Unknown keys are skipped: a later release may add some. Missing keys are an error. */
static int take_fields(const msgpack_object *map, fields_t *ret_fields, heddle_error_t *error)
{
    if (map->type != MSGPACK_OBJECT_MAP)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed: it is no map");
    uint32_t seen = 0;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *pair = &map->via.map.ptr[i];
        int field = find_field(&pair->key.via.str);   /* the scan saw to it: a text, and none twice */
        if (field < 0) continue;
        if (!take_value(&pair->val, FIELDS[field].kind, (char *)ret_fields + FIELDS[field].at))
            return error_fail(error, HEDDLE_ERR_PROTOCOL,
                              "the manifest is malformed: '%s' has the wrong type", FIELDS[field].key);
        seen |= 1u << field;
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
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed: kind is no word");
    memcpy(m->kind, f->kind.data, f->kind.bytes);

    const msgpack_object_array *list = &f->features->via.array;
    bytes_t last = {0};
    size_t used = 0;
    for (uint32_t i = 0; i < list->size; i++) {
        const msgpack_object *o = &list->ptr[i];
        if (o->type != MSGPACK_OBJECT_STR || !is_word(o->via.str.ptr, o->via.str.size) ||
            used + 1 + o->via.str.size >= sizeof m->features)
            return error_fail(error, HEDDLE_ERR_PROTOCOL,
                              "the manifest is malformed: features are no short list of words");
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
    if (f->region_bytes == 0 || f->region_bytes > LIMIT_REGION_BYTES)
        return refuse(error, HEDDLE_ERR_LIMIT, "region_bytes", LIMIT_REGION_BYTES, f->region_bytes);
    uint64_t chunk_bytes = manifest_chunk_bytes(f->region_bytes),
             chunks = (f->region_bytes + chunk_bytes - 1) / chunk_bytes;
    const struct { const char *what; uint64_t expected, found; } CHECKS[] = {
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

/* Where the walk over the rows is: what the next row must begin with. */
typedef struct { uint64_t name_end, dims, offset, data_bytes; bytes_t last_name; } walk_t;

static int refuse_row(heddle_error_t *error, uint32_t row, const char *what, uint64_t expected,
                      uint64_t found)
{
    char text[160];
    snprintf(text, sizeof text, "%s of row %" PRIu32, what, row);
    return refuse(error, HEDDLE_ERR_PROTOCOL, text, expected, found);
}

static int check_row_name(const manifest_t *m, uint32_t row, walk_t *walk, heddle_error_t *error)
{
    uint32_t end = le32_get((const uint8_t *)m->name_ends.data + 4 * (size_t)row);
    if (end < walk->name_end || end > m->names.bytes)
        return refuse_row(error, row, "name_ends", m->names.bytes, end);
    bytes_t name = bytes_of((const uint8_t *)m->names.data + walk->name_end, (size_t)(end - walk->name_end));
    const char *why = tensor_name_problem(name);
    if (why)
        return error_fail(error, HEDDLE_ERR_PROTOCOL,
                          "the manifest is malformed: the name of row %" PRIu32 " %s", row, why);
    if (compare(walk->last_name, name) >= 0)
        return error_fail(error, HEDDLE_ERR_PROTOCOL,
                          "the manifest is malformed: row %" PRIu32 " is out of order: '%s'", row,
                          tensor_shown(name).text);
    walk->name_end = end;
    walk->last_name = name;
    return HEDDLE_OK;
}

static int check_row_shape(const manifest_t *m, uint32_t row, walk_t *walk, heddle_error_t *error)
{
    int dtype = ((const uint8_t *)m->dtypes.data)[row];
    uint32_t ndim = ((const uint8_t *)m->ndims.data)[row];
    if (8 * (walk->dims + ndim) > m->dims.bytes)
        return refuse_row(error, row, "dims", m->dims.bytes, 8 * (walk->dims + ndim));
    uint64_t bytes, size = le64_get((const uint8_t *)m->sizes.data + 8 * (size_t)row);
    const char *why =
        tensor_shape_problem(dtype, ndim, (const uint8_t *)m->dims.data + 8 * walk->dims, &bytes);
    if (why)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed: row %" PRIu32 " %s", row,
                          why);
    if (size != bytes) return refuse_row(error, row, "sizes", bytes, size);
    uint64_t offset = le64_get((const uint8_t *)m->offsets.data + 8 * (size_t)row);
    if (offset != walk->offset) return refuse_row(error, row, "offsets", walk->offset, offset);
    m->dim_starts[row] = (uint32_t)walk->dims;
    walk->dims += ndim;
    walk->offset += tensor_room(bytes);   /* no overflow: 10^6 rows of 2^40 bytes */
    walk->data_bytes += bytes;
    return HEDDLE_OK;
}

/* Rows are walked once, in order: each row's name, dimensions and offset must begin where the row
 * before it ended. That excludes gaps, overlaps and unsorted names without any further memory. */
static int check_rows(const manifest_t *m, heddle_error_t *error)
{
    walk_t walk = {0};
    for (uint32_t row = 0; row < m->tensor_count; row++) {
        int rc = check_row_name(m, row, &walk, error);
        if (!rc) rc = check_row_shape(m, row, &walk, error);
        if (rc) return rc;
    }
    if (walk.name_end != m->names.bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "bytes of names", walk.name_end, m->names.bytes);
    if (8 * walk.dims != m->dims.bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "bytes of dims", 8 * walk.dims, m->dims.bytes);
    if (walk.offset != m->region_bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "region_bytes", walk.offset, m->region_bytes);
    if (walk.data_bytes != m->data_bytes)
        return refuse(error, HEDDLE_ERR_PROTOCOL, "data_bytes", walk.data_bytes, m->data_bytes);
    return HEDDLE_OK;
}

/* Counts are checked before memory is taken for them, columns before rows are read from them. */
static int take_manifest(const msgpack_object *map, manifest_t *m, heddle_error_t *error)
{
    fields_t fields = {0};
    int rc = take_fields(map, &fields, error);
    if (!rc && fields.v != VERSION)
        rc = refuse(error, HEDDLE_ERR_PROTOCOL, "v, the layout's version", VERSION, fields.v);
    if (!rc) rc = take_words(&fields, m, error);
    if (!rc) rc = check_columns(&fields, error);
    if (rc) return rc;
    m->tensor_count = (uint32_t)fields.count;
    m->chunk_bytes = (uint32_t)fields.chunk_bytes;
    m->chunk_count = (uint32_t)(fields.chunks.bytes / sizeof(chunk_digest_t));
    m->region_bytes = fields.region_bytes;
    m->data_bytes = fields.data_bytes;
    m->config = fields.config, m->metadata = fields.metadata;
    m->names = fields.names, m->name_ends = fields.name_ends, m->dtypes = fields.dtypes,
    m->ndims = fields.ndims;
    m->dims = fields.dims, m->offsets = fields.offsets, m->sizes = fields.sizes, m->chunks = fields.chunks;
    m->dim_starts = calloc(m->tensor_count, sizeof *m->dim_starts);
    if (!m->dim_starts)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a manifest of %" PRIu32 " tensors",
                          m->tensor_count);
    return check_rows(m, error);
}

int manifest_decode(bytes_t encoded, manifest_t *ret_manifest, heddle_error_t *error)
{
    if (encoded.bytes > LIMIT_MANIFEST_BYTES)
        return refuse(error, HEDDLE_ERR_LIMIT, "it is too long", LIMIT_MANIFEST_BYTES, encoded.bytes);
    int rc = scan_check(encoded, &SCAN_LIMITS, "the manifest", error);
    if (rc) return rc;
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    manifest_t m = {0};
    switch (msgpack_unpack_next(&unpacked, encoded.data, encoded.bytes, NULL)) {
    case MSGPACK_UNPACK_SUCCESS: rc = take_manifest(&unpacked.data, &m, error); break;
    case MSGPACK_UNPACK_NOMEM_ERROR:
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to decode a manifest");
        break;
    default: rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "the manifest is malformed"); break;
    }
    msgpack_unpacked_destroy(&unpacked);   /* the columns point into `encoded`, not into this */
    if (rc) manifest_fini(&m);
    else *ret_manifest = m;
    return rc;
}

int manifest_read(bytes_t encoded, const digest_t *expected, manifest_t *ret_manifest,
                  heddle_error_t *error)
{
    uint8_t *copy = malloc(encoded.bytes);
    if (!copy) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a manifest");
    memcpy(copy, encoded.data, encoded.bytes);
    digest_t found = digest_blake2b(copy, encoded.bytes);
    int rc = digest_equal(&found, expected)
                 ? manifest_decode(bytes_of(copy, encoded.bytes), ret_manifest, error)
                 : error_fail(error, HEDDLE_ERR_DIGEST_MISMATCH,
                              "the manifest differs from what was announced");
    if (rc) free(copy);
    else ret_manifest->encoded = copy;
    return rc;
}

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

uint64_t manifest_dim(const manifest_t *m, uint32_t index, uint32_t d)
{
    return le64_get((const uint8_t *)m->dims.data + 8 * ((size_t)m->dim_starts[index] + d));
}

uint32_t manifest_chunk(const manifest_t *m, uint32_t chunk, uint64_t *ret_offset)
{
    uint64_t offset = (uint64_t)chunk * m->chunk_bytes, left = m->region_bytes - offset;
    *ret_offset = offset;
    return left < m->chunk_bytes ? (uint32_t)left : m->chunk_bytes;
}

void manifest_chunk_digest(const manifest_t *m, uint32_t chunk, chunk_digest_t *ret_digest)
{
    memcpy(ret_digest->b, (const uint8_t *)m->chunks.data + sizeof ret_digest->b * (size_t)chunk,
           sizeof ret_digest->b);
}

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
