/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/pack.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/stop.h"
#include "formats/safetensors.h"

#include <assert.h>
#include <stdlib.h>

static int fail_memory(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the table of the adapter");
}

/* The caller's table may be gone before the publication is committed, so that every row is copied. */
static int copy_row(arena_t *a, const heddle_tensor_t *from, heddle_tensor_t *to, heddle_error_t *error)
{
    const char *name = from->name ? from->name : "";
    if (from->memory != HEDDLE_MEMORY_HOST) {
        int rc =
            error_fail(error, HEDDLE_ERR_UNSUPPORTED_FEATURE, "tensor '%.200s' is not in host memory", name);
        error_expected(error, "HEDDLE_MEMORY_HOST");
        error_found(error,
                    from->memory == HEDDLE_MEMORY_CUDA ? "HEDDLE_MEMORY_CUDA" : "another kind of memory");
        error_hint(error, "copy it to the host first");
        return rc;
    }
    if (from->ndim > LIMIT_TENSOR_DIMS || (from->ndim && !from->dims)) {
        int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "tensor '%.200s' has no shape", name);
        error_expected(error, "ndim up to %u, and as many dims", LIMIT_TENSOR_DIMS);
        error_found(error, "ndim %u%s", from->ndim, from->dims ? "" : ", dims NULL");
        error_hint(error, "describe every tensor's shape; a scalar has ndim 0");
        return rc;
    }
    *to = *from;
    to->name = arena_text(a, name, strlen(name));
    to->dims = arena_copy(a, from->dims, from->ndim * sizeof *from->dims);
    return to->name && to->dims ? HEDDLE_OK : fail_memory(error);
}

/* The count is checked before memory is taken for it. */
static int copy_input(pack_t *p, const pack_input_t *in, heddle_error_t *error)
{
    if (in->count > LIMIT_TENSORS) {
        error_fail(error, HEDDLE_ERR_LIMIT, "there are too many tensors");
        error_expected(error, "at most %u", LIMIT_TENSORS);
        error_found(error, "%u", in->count);
        error_hint(error, "publish it as several adapters");
        return HEDDLE_ERR_LIMIT;
    }
    p->tensors = calloc(in->count ? in->count : 1, sizeof *p->tensors);
    p->marks = calloc(in->count ? in->count : 1, sizeof *p->marks);
    p->config = bytes_of(arena_copy(&p->arena, in->config.data, in->config.bytes), in->config.bytes);
    p->metadata = bytes_of(arena_copy(&p->arena, in->metadata.data, in->metadata.bytes), in->metadata.bytes);
    if (!p->tensors || !p->marks || !p->config.data || !p->metadata.data) return fail_memory(error);
    for (uint32_t i = 0; i < in->count; i++) {
        int rc = copy_row(&p->arena, &in->tensors[i], &p->tensors[i], error);
        if (rc) return rc;
    }
    return HEDDLE_OK;
}

/* Everything that can be refused without the bytes is refused here, before a region is taken. */
int pack_new(const pack_input_t *in, pack_t **ret_pack, heddle_error_t *error)
{
    /* Before anything is copied: these texts come from files, and may be huge. */
    const struct {
        const char *what;
        size_t bytes;
        uint32_t limit;
    } PARTS[] = {{"the config", in->config.bytes, LIMIT_CONFIG_BYTES},
                 {"the metadata", in->metadata.bytes, LIMIT_METADATA_BYTES}};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        if (PARTS[i].bytes <= PARTS[i].limit) continue;
        error_fail(error, HEDDLE_ERR_LIMIT, "%s of the adapter is too long", PARTS[i].what);
        error_expected(error, "at most %u bytes", PARTS[i].limit);
        error_found(error, "%zu bytes", PARTS[i].bytes);
        error_hint(error, "keep large texts out of the adapter");
        return HEDDLE_ERR_LIMIT;
    }
    pack_t *p = calloc(1, sizeof *p);
    if (!p) return fail_memory(error);
    p->kind = in->kind;
    int rc = copy_input(p, in, error);
    if (!rc) rc = layout_make(p->tensors, in->count, &p->layout, error);
    if (!rc) rc = p->kind->check(p->config, p->tensors, in->count, p->features, p->base_model, error);
    if (!rc) rc = safetensors_check_metadata(p->metadata, error);
    if (rc) goto fail;
    p->kind->warn(p->tensors, in->count);
    *ret_pack = p;
    return HEDDLE_OK;
fail:
    pack_destroy(&p);
    return rc;
}

static bool is_same_row(const heddle_tensor_t *a, const heddle_tensor_t *b)
{
    return b->name && !strcmp(a->name, b->name) && a->dtype == b->dtype && a->memory == b->memory &&
           a->ndim == b->ndim &&
           (!b->ndim || (b->dims && !memcmp(a->dims, b->dims, b->ndim * sizeof *b->dims)));
}

static bool is_same_text(bytes_t a, bytes_t b)
{
    return a.bytes == b.bytes && (!b.bytes || !memcmp(a.data, b.data, b.bytes));
}

/* The region is another one, with bytes of an older version: all marks go, so that each tensor is written. */
bool pack_renew(pack_t *p, const pack_input_t *in)
{
    if (p->layout.count != in->count || !is_same_text(p->config, in->config) ||
        !is_same_text(p->metadata, in->metadata))
        return false;
    for (uint32_t i = 0; i < in->count; i++)
        if (!is_same_row(&p->tensors[i], &in->tensors[i])) return false;
    memset(p->marks, 0, in->count);
    p->base = NULL;
    return true;
}

/* The manifest's size is a bound: it is built when the bytes are known. */
uint64_t pack_bytes(const pack_t *p)
{
    uint64_t manifest = manifest_bound(&p->layout, p->tensors, p->config.bytes, p->metadata.bytes);
    return manifest_offset(p->layout.payload_bytes) + manifest;
}

/* The region may have content of an earlier version. Padding is part of the digest and must be zero. */
void pack_lay(pack_t *p, void *base)
{
    p->base = base;
    layout_zero_padding(&p->layout, base);
}

uint64_t *pack_lay_digested(pack_t *p, void *base)
{
    p->leaves = malloc(p->layout.payload_bytes / LIMIT_PAGE_BYTES * sizeof *p->leaves);
    if (!p->leaves) return NULL;
    p->base = base;
    memset(p->marks, PACK_DIGESTED, p->layout.count);
    return p->leaves;
}

/* -- tensors ---------------------------------------------------------------------------------- */

/* Copied and digested in one go, or digested between two looks at the clock. */
#define STEP_BYTES LIMIT_CHUNK_MAX_BYTES
#define STOP_BYTES (32u * STEP_BYTES)

static uint8_t *place_of(const pack_t *p, uint32_t row) { return (uint8_t *)p->base + p->layout.places[row]; }
static uint64_t *leaves_of(const pack_t *p, uint32_t row)
{
    return p->leaves + p->layout.places[row] / LIMIT_PAGE_BYTES;
}

void *pack_tensor(pack_t *p, uint32_t index)
{
    if (index >= p->layout.count) return NULL;
    p->marks[index] |= PACK_HANDED_OUT;
    return place_of(p, index);
}

/* Without memory for their leaves these rows are digested by pack_seal, like rows that the caller wrote. */
void pack_write_begin(pack_t *p, const void *const *sources)
{
    if (!p->leaves) p->leaves = malloc(p->layout.payload_bytes / LIMIT_PAGE_BYTES * sizeof *p->leaves);
    for (uint32_t row = 0; row < p->layout.count; row++)
        if (sources[row]) p->marks[row] |= p->leaves ? PACK_DIGESTED : PACK_HANDED_OUT;
}

/* The first row that ends behind `from`, as its place in the order of the payload, by binary search. */
static uint32_t first_behind(const layout_t *l, uint64_t from)
{
    uint32_t low = 0, high = l->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2, row = l->order[middle];
        if (l->places[row] + l->sizes[row] <= from) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Only the rows that lie in the range are visited, since several threads write a range each. Copying and
 * digesting go step by step, so that the bytes are digested while they are in the cache. */
void pack_write(const pack_t *p, const void *const *sources, uint64_t from, uint64_t to)
{
    const layout_t *l = &p->layout;
    for (uint32_t i = first_behind(l, from); i < l->count && l->places[l->order[i]] < to; i++) {
        uint32_t row = l->order[i];
        uint64_t first = l->places[row], end = first + l->sizes[row];
        if (!sources[row] || end <= from) continue;
        const uint8_t *source = sources[row];
        uint64_t at = from > first ? from - first : 0, until = (to < end ? to : end) - first;
        for (size_t bytes; at < until; at += bytes) {
            bytes = until - at < STEP_BYTES ? (size_t)(until - at) : STEP_BYTES;
            uint8_t *into = place_of(p, row) + at;
            if (p->leaves) digest_copy(into, source + at, bytes, leaves_of(p, row) + at / LIMIT_PAGE_BYTES);
            else memcpy(into, source + at, bytes);
        }
    }
}

/* -- on several threads ----------------------------------------------------------------------- */

/* Less is copied sooner than another thread wakes. */
#define SHARE_BYTES (4u << 20)

/* Each is taken by the next free thread: one that starts late, or shares its core, takes fewer. */
#define PIECE_BYTES (1u << 20)

typedef struct {
    const pack_t *pack;
    const void *const *sources;
} fill_t;

/* A thread pays only for several megabytes: starting it costs as long as copying a few. */
uint32_t pack_fill_threads(uint64_t payload_bytes, uint32_t most)
{
    uint64_t shares = payload_bytes / SHARE_BYTES;
    if (most > PACK_THREADS_MAX) most = PACK_THREADS_MAX;
    if (shares < most) most = (uint32_t)shares;
    return most ? most : 1;
}

/* Pieces do not overlap, so that the threads need no lock. */
static void write_piece(void *self, uint32_t i)
{
    const fill_t *f = self;
    uint64_t from = (uint64_t)i * PIECE_BYTES;
    pack_write(f->pack, f->sources, from, from + PIECE_BYTES);
}

void pack_fill(pack_t *p, const void *const *sources, crew_t *crew)
{
    fill_t work = {p, sources};
    pack_write_begin(p, sources);
    crew_do(crew, (uint32_t)((p->layout.payload_bytes + PIECE_BYTES - 1) / PIECE_BYTES), write_piece, &work);
}

/* -- the seal --------------------------------------------------------------------------------- */

/* The manifest goes behind the tensors, into the same region: workers fetch both under one key. */
int pack_seal(pack_t *p, sealed_t *ret_sealed, heddle_error_t *error)
{
    buf_t manifest = {0};
    manifest_input_t in = {.tensors = p->tensors,
                           .layout = &p->layout,
                           .config = p->config,
                           .metadata = p->metadata,
                           .kind = p->kind->name,
                           .features = p->features,
                           .payload = p->base,
                           .leaves = p->leaves};
    sealed_t s;
    int rc = HEDDLE_OK;
    for (uint32_t row = 0; row < p->layout.count; row++) {
        /* A row that was not written has the bytes of an older version, which must not be published. */
        if (p->marks[row] || !p->layout.sizes[row]) continue;
        error_fail(error, HEDDLE_ERR_USAGE, "tensor '%.200s' was not written", p->tensors[row].name);
        error_expected(error, "%llu bytes of it", (unsigned long long)p->layout.sizes[row]);
        error_found(error, "a source that is NULL, or none");
        error_hint(error, "write every tensor of the table before commit, or leave it out of the table");
        return HEDDLE_ERR_USAGE;
    }
    /* Rows that the caller wrote, or may have changed since they were digested, are digested now. */
    uint64_t since = 0;
    for (uint32_t row = 0; p->leaves && row < p->layout.count; row++) {
        uint64_t size = p->marks[row] == PACK_DIGESTED ? 0 : p->layout.sizes[row];
        for (uint64_t at = 0; at < size; at += STOP_BYTES) {
            size_t bytes = size - at < STOP_BYTES ? (size_t)(size - at) : STOP_BYTES;
            if (since >= STOP_BYTES) {
                rc = stop_check(error);
                if (rc) return rc;
                since = 0;
            }
            digest_leaves(place_of(p, row) + at, bytes, leaves_of(p, row) + at / LIMIT_PAGE_BYTES);
            since += bytes;
        }
    }
    rc = manifest_build(&in, &manifest, &s.digest);
    if (rc) {
        buf_fini(&manifest);
        error_fail(error, rc, "the manifest of the adapter could not be made");
        error_hint(error, "free memory, or publish a smaller adapter");
        return stop_check(error) ? error->code : rc;
    }
    uint64_t payload_bytes = p->layout.payload_bytes, offset = manifest_offset(payload_bytes);
    uint32_t chunk_bytes = manifest_chunk_bytes(payload_bytes);
    memcpy((uint8_t *)p->base + offset, manifest.data, manifest.bytes);
    s.part = (msg_part_t){.payload_bytes = payload_bytes,
                          .manifest_bytes = manifest.bytes,
                          .manifest_digest = digest_blake2b(manifest.data, manifest.bytes)};
    s.content_bytes = offset + manifest.bytes;
    s.chunk_count = (uint32_t)((payload_bytes + chunk_bytes - 1) / chunk_bytes);
    buf_fini(&manifest);
    *ret_sealed = s;
    return HEDDLE_OK;
}

void pack_destroy(pack_t **p)
{
    if (!p || !*p) return;
    layout_fini(&(*p)->layout);
    free((*p)->tensors);
    free((*p)->marks);
    free((*p)->leaves);
    arena_fini(&(*p)->arena);
    free(*p);
    *p = NULL;
}
