/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor tables on all their ways round: manifest -> safetensors -> table -> layout -> manifest. */
#ifndef TESTS_FUZZ_TABLES_H
#define TESTS_FUZZ_TABLES_H

#include "tests/lib/bytes_equal.h"
#include "core/limits.h"
#include "formats/manifest.h"
#include "formats/safetensors.h"
#include "tests/fuzz/fuzz.h"

#define TABLES_PAYLOAD_BYTES (1u << 17) /* larger ones are not laid out: no new kind of thing is in them */

/* Everything that a reader of the manifest may ask for. */
static inline void tables_read(const manifest_t *m)
{
    uint64_t data_bytes = 0, at = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        manifest_row_t row;
        manifest_row(m, i, &row);
        for (uint32_t d = 0; d < row.ndim; d++) (void)manifest_dim(m, i, d);
        MUST(row.name.bytes > 0 && row.offset % LIMIT_PAGE_BYTES == 0);
        MUST(row.offset <= m->payload_bytes && row.bytes <= m->payload_bytes - row.offset);
        data_bytes += row.bytes;
    }
    MUST(data_bytes == m->data_bytes && data_bytes <= m->payload_bytes);
    for (uint32_t c = 0; c < m->chunk_count; c++) {
        uint64_t offset;
        chunk_digest_t digest;
        uint32_t bytes = manifest_chunk(m, c, &offset);
        manifest_chunk_digest(m, c, &digest);
        MUST(offset == at && bytes > 0 && bytes <= m->chunk_bytes);
        at += bytes;
    }
    MUST(at == m->payload_bytes);
}

static inline digest_t tables_h1(const manifest_t *m, const void *payload)
{
    static uint64_t leaves[TABLES_PAYLOAD_BYTES / LIMIT_PAGE_BYTES];
    h1_t h1;
    manifest_h1_begin(m, &h1);
    digest_leaves(payload, (size_t)m->payload_bytes, leaves);
    h1_add_leaves(&h1, leaves, (size_t)(m->payload_bytes / LIMIT_PAGE_BYTES));
    return h1_final(&h1);
}

static inline void tables_same(const manifest_t *a, const manifest_t *b)
{
    MUST(a->tensor_count == b->tensor_count && a->payload_bytes == b->payload_bytes &&
         a->data_bytes == b->data_bytes);
    MUST(a->chunk_bytes == b->chunk_bytes && a->chunk_count == b->chunk_count);
    MUST(!strcmp(a->kind, b->kind) && !strcmp(a->features, b->features));
    MUST(bytes_equal(a->config, b->config) && bytes_equal(a->metadata, b->metadata));
    MUST(bytes_equal(a->names, b->names) && bytes_equal(a->name_ends, b->name_ends));
    MUST(bytes_equal(a->dtypes, b->dtypes) && bytes_equal(a->ndims, b->ndims) &&
         bytes_equal(a->dims, b->dims));
    MUST(bytes_equal(a->offsets, b->offsets) && bytes_equal(a->sizes, b->sizes));
}

/* A table of a safetensors file -> layout -> manifest, over a payload of zeros.  False: it was refused,
 * or is too large. */
static inline bool tables_build(const safetensors_t *table, const manifest_t *like, buf_t *out)
{
    static const uint8_t zeros[TABLES_PAYLOAD_BYTES];
    heddle_error_t error;
    layout_t layout;
    digest_t h1;
    manifest_t m;
    if (layout_make(table->tensors, table->count, &layout, &error)) return false;
    bool small = layout.payload_bytes <= sizeof zeros;
    manifest_input_t in = {.tensors = table->tensors,
                           .layout = &layout,
                           .config = bytes_of("{}", 2),
                           .metadata = table->metadata,
                           .kind = "tensors",
                           .features = "",
                           .payload = zeros};
    if (like) in.config = like->config, in.kind = like->kind, in.features = like->features;
    if (small) {
        MUST(manifest_build(&in, out, &h1) == HEDDLE_OK);
        MUST(out->bytes <= manifest_bound(&layout, in.tensors, in.config.bytes, in.metadata.bytes));
        MUST(manifest_decode(buf_view(out), &m, &error) == HEDDLE_OK);
        digest_t again = tables_h1(&m, zeros);
        MUST(digest_equal(&h1, &again));
        manifest_fini(&m);
    }
    layout_fini(&layout);
    return small;
}

/* A manifest -> the header of a file -> its table again. */
static inline void tables_write(const manifest_t *m)
{
    heddle_error_t error;
    buf_t file = {0}, built = {0};
    safetensors_t table;
    manifest_t again;
    uint32_t *order = malloc(m->tensor_count * sizeof *order);
    MUST(order);
    if (safetensors_write(m, &file, order, &error) == HEDDLE_OK) {
        bytes_t header =
            bytes_of(file.data + SAFETENSORS_PREFIX_BYTES, file.bytes - SAFETENSORS_PREFIX_BYTES);
        MUST(le64_get(file.data) == header.bytes && header.bytes % 8 == 0);
        MUST(safetensors_parse(header, m->data_bytes, &table, &error) == HEDDLE_OK);
        MUST(table.count == m->tensor_count && bytes_equal(table.metadata, m->metadata));
        if (tables_build(&table, m, &built)) {
            MUST(manifest_decode(buf_view(&built), &again, &error) == HEDDLE_OK);
            tables_same(m, &again);
            manifest_fini(&again);
        }
        safetensors_fini(&table);
    }
    free(order);
    buf_fini(&file);
    buf_fini(&built);
}

#endif
