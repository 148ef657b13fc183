/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file, read and written.  It comes from any writer, so every number in it is
 * checked before it is used.  The result is a table in the order of the file's data. */
#include "formats/safetensors.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/stop.h"
#include "formats/json_text.h"
#include "formats/tensor.h"

#include <inttypes.h>
#include <stdlib.h>

#define WHAT "the header"
#define STOP_ROWS 1024u /* between two calls of stop_check: some milliseconds */
#define HINT_DAMAGED "the file is damaged: save the adapter again"

/* A tensor and where its data begin in the file, while the table is not sorted yet. */
typedef struct {
    heddle_tensor_t tensor;
    uint64_t start;
} tensor_row_t;

/* The table while it is being built; its parts move into a safetensors_t at the end. */
typedef struct {
    buf_t rows;
    uint32_t count;
    bytes_t metadata;
    arena_t arena;
    heddle_error_t *error;
} builder_t;

/* The tensor is named, because a header of 90,000 tensors gives no other clue. */
static int refuse_tensor(builder_t *b, const char *name, const char *why, const char *expected)
{
    int rc = error_fail(b->error, HEDDLE_ERR_BAD_ADAPTER, "tensor '%s' in the header %s",
                        tensor_shown(bytes_of(name, strlen(name))).text, why);
    error_contrast(b->error, expected, NULL);
    error_hint(b->error, HINT_DAMAGED);
    return rc;
}

static int fail_memory(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a safetensors header");
}

/* JSON numbers with a fraction or a sign are no extents, even where their value would fit. */
static bool is_count(const json_t *value) { return json_is_integer(value) && json_integer_value(value) >= 0; }

/* The number of dimensions is limited before memory is taken for them. */
static int take_shape(builder_t *b, const json_t *entry, heddle_tensor_t *t)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t ndim = json_array_size(shape);
    if (ndim > LIMIT_TENSOR_DIMS) {
        int rc = error_fail(b->error, HEDDLE_ERR_LIMIT, "tensor '%s' in the header has too many dimensions",
                            tensor_shown(bytes_of(t->name, strlen(t->name))).text);
        error_expected(b->error, "at most %u", LIMIT_TENSOR_DIMS);
        error_found(b->error, "%zu", ndim);
        error_hint(b->error, HINT_DAMAGED);
        return rc;
    }
    uint64_t *dims = arena_alloc(&b->arena, 8 * ndim);
    if (!dims) return fail_memory(b->error);
    bool counts = json_is_array(shape);
    for (size_t d = 0; d < ndim; d++) {
        const json_t *extent = json_array_get(shape, d);
        counts = counts && is_count(extent);
        dims[d] = (uint64_t)json_integer_value(extent);
    }
    if (!counts) {
        int rc =
            refuse_tensor(b, t->name, "has no valid shape", "\"shape\": a list of integers, none negative");
        error_found(b->error, "something else");
        return rc;
    }
    t->ndim = (uint32_t)ndim;
    t->dims = dims;
    const char *why = tensor_shape_problem(t->dtype, t->ndim, dims, &t->data_bytes);
    if (!why) return HEDDLE_OK;
    int rc = refuse_tensor(b, t->name, why, "whole bytes, at most 1 TiB");
    error_found(b->error, "%s with %zu dimensions, the first %" PRIu64, heddle_dtype_name(t->dtype), ndim,
                ndim ? dims[0] : 0);
    return rc;
}

/* Exactly three members are accepted: a fourth one could change the meaning in a later version of the
 * format.  A tensor's place and its shape must agree on its size: a reader that trusts one of the two would
 * read past the tensor's end. */
static int take_entry(builder_t *b, const char *name, const json_t *entry)
{
    if (b->count == LIMIT_TENSORS) {
        int rc = error_fail(b->error, HEDDLE_ERR_LIMIT, WHAT " lists too many tensors");
        error_expected(b->error, "at most %u", LIMIT_TENSORS);
        error_found(b->error, "more");
        error_hint(b->error, "publish it as several adapters");
        return rc;
    }
    if (json_object_size(entry) != 3) {
        int rc = refuse_tensor(b, name, "is not described as safetensors requires",
                               "{\"dtype\", \"shape\", \"data_offsets\"}");
        error_found(b->error, json_is_object(entry) ? "%zu members" : "not an object",
                    json_object_size(entry));
        return rc;
    }
    tensor_row_t row = {
        .tensor = {.size = sizeof row.tensor, .name = arena_text(&b->arena, name, strlen(name))}};
    if (!row.tensor.name) return fail_memory(b->error);

    const json_t *dtype = json_object_get(entry, "dtype");
    row.tensor.dtype = heddle_dtype_from_name(json_string_value(dtype));
    if (row.tensor.dtype < 0) {
        int rc = refuse_tensor(b, name, "has an unknown dtype",
                               "one of BOOL F4 F6_* U8 I8 F8_* I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64");
        error_found(b->error, "%.64s", json_is_string(dtype) ? json_string_value(dtype) : "not a text");
        error_hint(b->error, "cast the tensor to one of these types and save the adapter again");
        return rc;
    }
    int rc = take_shape(b, entry, &row.tensor);
    if (rc) return rc;

    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *start = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !is_count(start) || !is_count(end)) {
        rc = refuse_tensor(b, name, "has no valid data_offsets", "\"data_offsets\": [begin, end]");
        error_found(b->error, "something else");
        return rc;
    }
    row.start = (uint64_t)json_integer_value(start);
    uint64_t stop = (uint64_t)json_integer_value(end);
    if (stop < row.start || stop - row.start != row.tensor.data_bytes) {
        rc = refuse_tensor(b, name, "has data_offsets of another size than its shape", NULL);
        error_expected(b->error, "%" PRIu64 " bytes", row.tensor.data_bytes);
        error_found(b->error, "data_offsets [%" PRIu64 ", %" PRIu64 "]", row.start, stop);
        return rc;
    }
    buf_add(&b->rows, &row, sizeof row);
    b->count++;
    return b->rows.failed ? fail_memory(b->error) : HEDDLE_OK;
}

/* safetensors defines the metadata as a map from text to text. Readers of the exported file rely on
 * that. */
static int check_texts(const json_t *metadata, heddle_error_t *error)
{
    const char *name = NULL;
    json_t *value = NULL;
    bool texts = json_is_object(metadata);
    if (texts) json_object_foreach((json_t *)metadata, name, value) if (!json_is_string(value))
        {
            texts = false;
            break;
        }
    if (texts) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER,
                        "__metadata__ in the header is not a map from text to text");
    error_contrast(error, "{\"name\": \"text\", ...}", NULL);
    error_found(error, name ? "'%.100s' is not a text" : "not an object", name);
    error_hint(error, "save numbers and lists of the metadata as texts");
    return rc;
}

/* The text is kept as it stands in the file, so that an exported file comes out identical. */
static int take_metadata(builder_t *b, bytes_t text, const json_t *value)
{
    int rc = HEDDLE_OK;
    if (text.bytes > LIMIT_METADATA_BYTES) {
        rc = error_fail(b->error, HEDDLE_ERR_LIMIT, "__metadata__ in the header is too long");
        error_expected(b->error, "at most %u bytes", LIMIT_METADATA_BYTES);
        error_found(b->error, "%zu bytes", text.bytes);
        error_hint(b->error, "keep large texts out of the adapter's file");
    } else if (b->metadata.bytes) {
        rc = error_fail(b->error, HEDDLE_ERR_BAD_ADAPTER, "__metadata__ in the header occurs twice");
        error_contrast(b->error, "each name once", "two");
        error_hint(b->error, HINT_DAMAGED);
    } else {
        rc = check_texts(value, b->error);
    }
    if (rc) return rc;
    b->metadata = bytes_of(arena_copy(&b->arena, text.data, text.bytes), text.bytes);
    return b->metadata.data ? HEDDLE_OK : fail_memory(b->error);
}

/* Metadata that a program passes to the library obey the same rule as metadata in a file. */
int safetensors_check_metadata(bytes_t metadata, heddle_error_t *error)
{
    if (metadata.bytes == 0) return HEDDLE_OK;
    json_t *value = NULL;
    int rc = json_text_load(metadata, "__metadata__", &value, error);
    if (!rc) rc = check_texts(value, error);
    json_decref(value);
    return rc;
}

/* By place; an empty tensor comes before the one that begins where it lies. */
static int by_place(const void *a, const void *b)
{
    const tensor_row_t *x = a, *y = b;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return (x->tensor.data_bytes > y->tensor.data_bytes) - (x->tensor.data_bytes < y->tensor.data_bytes);
}

/* Sorted by place, each tensor begins where the one before it ends, and the last ends with the file. */
static int check_cover(builder_t *b, uint64_t data_bytes)
{
    const tensor_row_t *rows = (const tensor_row_t *)b->rows.data;
    uint64_t at = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        uint64_t start = rows[i].start;
        if (start != at) {
            int rc =
                refuse_tensor(b, rows[i].tensor.name,
                              start > at ? "leaves a gap before it" : "overlaps the one before it", NULL);
            error_expected(b->error, "a start at byte %" PRIu64 " of the data", at);
            error_found(b->error, "%" PRIu64, start);
            return rc;
        }
        at +=
            rows[i].tensor.data_bytes; /* no overflow: start was a signed 64-bit number, bytes at most 2^40 */
    }
    if (at == data_bytes) return HEDDLE_OK;
    int rc =
        error_fail(b->error, HEDDLE_ERR_BAD_ADAPTER,
                   at > data_bytes ? "the file is truncated" : "the file has bytes after the last tensor");
    error_expected(b->error, "%" PRIu64 " bytes of tensors", at);
    error_found(b->error, "%" PRIu64, data_bytes);
    error_hint(b->error, at > data_bytes
                             ? "a copy or a save ended early, or still runs: save the adapter again"
                             : HINT_DAMAGED);
    return rc;
}

/* The members are taken one after the other: the tree of the whole header would take many times its bytes. */
int safetensors_parse(bytes_t header, uint64_t data_bytes, safetensors_t *ret_table, heddle_error_t *error)
{
    builder_t b = {.error = error};
    json_members_t members;
    json_member_t member;
    bool more = true;
    int rc = json_members_begin(header, WHAT, &members, b.error);
    while (!rc) {
        json_t *key = NULL, *value = NULL;
        rc = json_members_next(&members, &member, &more, b.error);
        if (rc || !more) break;
        rc = json_member_load(&members, member.key, &key, b.error);
        if (!rc) rc = json_member_load(&members, member.value, &value, b.error);
        if (!rc && !strcmp(json_string_value(key), "__metadata__"))
            rc = take_metadata(&b, member.value, value);
        else if (!rc) rc = take_entry(&b, json_string_value(key), value);
        json_decref(key);
        json_decref(value);
        if (!rc && b.count % STOP_ROWS == 0) rc = stop_check(b.error);
    }

    /* Files of the usual writers are in order already, so the check costs less than the sort. */
    tensor_row_t *rows = (tensor_row_t *)b.rows.data;
    bool is_sorted = true;
    for (uint32_t i = 1; !rc && i < b.count && is_sorted; i++)
        is_sorted = by_place(&rows[i - 1], &rows[i]) <= 0;
    if (!is_sorted) qsort(rows, b.count, sizeof *rows, by_place);
    if (!rc) rc = check_cover(&b, data_bytes);

    /* Callers need the tensors as one array for the layout, and the starts as another one for reading. */
    safetensors_t table = {.arena = b.arena, .metadata = b.metadata, .count = b.count};
    if (!rc) {
        table.tensors = calloc(b.count + 1u, sizeof *table.tensors);
        table.starts = calloc(b.count + 1u, sizeof *table.starts);
        if (!table.tensors || !table.starts) rc = fail_memory(error);
    }
    for (uint32_t i = 0; !rc && i < b.count; i++) {
        table.tensors[i] = rows[i].tensor;
        table.starts[i] = rows[i].start;
    }
    buf_fini(&b.rows);
    if (rc) safetensors_fini(&table);
    else *ret_table = table;
    return rc;
}

/* It may be called on a table of zeros. */
void safetensors_fini(safetensors_t *t)
{
    free(t->tensors);
    free(t->starts);
    arena_fini(&t->arena);
    *t = (safetensors_t){0};
}

/* ---- writing ---- */

/* Escapes of serde_json, which upstream writes with: short forms where JSON has them, else \u00xx for
 * control characters; everything else as it is.  The same escapes give the same bytes as the file had. */
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

/* Written member by member into one buffer: a tree of the header would take many times its bytes. */
int safetensors_write(const manifest_t *m, buf_t *out, uint32_t *ret_order, heddle_error_t *error)
{
    int rc = safetensors_check_metadata(m->metadata, error);
    if (rc) return rc;

    /* The manifest is sorted by name: what is left is to deal the rows out by dtype, the last of the list
     * first. */
    const uint8_t *dtypes = m->dtypes.data;
    uint32_t next[HEDDLE_DTYPE_COUNT + 1] = {0}, place = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) next[dtypes[i]]++;
    for (int dtype = HEDDLE_DTYPE_COUNT; dtype-- > 0;) {
        uint32_t count = next[dtype];
        next[dtype] = place;
        place += count;
    }
    for (uint32_t i = 0; i < m->tensor_count; i++) ret_order[next[dtypes[i]]++] = i;

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
