/* SPDX-License-Identifier: Apache-2.0 */
/* formats/manifest.h: the description of a payload: what its bytes mean, and the digests of their chunks.
 *
 *   content    | payload: tensors sorted by name, each in whole 4 KiB pages, padding zero | manifest, at
 *              round_up(payload_bytes, 4096) |
 *   chunk      payload / 1024 rounded down to a power of two, 64 KiB .. 256 KiB; the last one is short
 *
 * The manifest is one msgpack map: v, kind, features[], chunk_bytes, payload_bytes, data_bytes, count, config
 * (bin), metadata (bin: the JSON text of safetensors' __metadata__, "" where there was none), and columns
 * (bin, little-endian, unaligned):
 *   names     the names one after the other            name_ends u32 x count     end of each in names
 *   dtypes    u8 x count (heddle_dtype_t)               ndims     u8 x count
 *   dims      u64, all extents one after the other      offsets   u64 x count     sizes  u64 x count: bytes
 *                                                                 of each
 *   chunks    16 x chunk_count: XXH3-128 of each chunk's leaves
 * It describes content only, without step, time or writer, so that equal content has an equal manifest. Every
 * number from outside is checked before it is used: columns of
 * the right length, names sorted and unique UTF-8, offsets exactly what layout gives, sizes = product of
 * dims, no overflow.  Keys that are not known are skipped; one that is missing or of another type is
 * refused.  payload_bytes is a whole number of pages, never 0.
 *
 * h1 = BLAKE2b-256 of: "heddle/h1\n" | u64 config bytes | config | u64 count | for each tensor in order of
 * name: u32 name bytes, name, u32 dtype-name bytes, dtype name ("BF16"), u32 ndim, u64 x ndim dims, u64
 * bytes | then every leaf's u64 in order.  All integers little-endian.
 *
 * A manifest_t borrows from the bytes that it was decoded from, without copies of the columns.  Those bytes
 * must outlive it, unless manifest_read copied them.  One thread uses it while it is built; a decoded one is
 * read-only, and any thread may read it.  The caller owns it (manifest_fini). */
#ifndef FORMATS_MANIFEST_H
#define FORMATS_MANIFEST_H

#include "core/digest.h"
#include "formats/layout.h"
#include <heddle/types.h>

typedef struct manifest {
    uint32_t tensor_count, chunk_count, chunk_bytes;
    uint64_t payload_bytes, data_bytes;
    char kind[16];
    char features[192];       /* comma-separated, sorted */
    bytes_t config, metadata; /* metadata: JSON object text, or empty */
    bytes_t names, name_ends, dtypes, ndims, dims, offsets, sizes, chunks;
    uint32_t *dim_starts; /* owned: index into dims of each tensor's first extent */
    uint8_t *encoded;     /* owned: what the bytes above borrow from (manifest_read); NULL: they
                           * are the caller's */
} manifest_t;

/* Chunk size for a payload. */
uint32_t manifest_chunk_bytes(uint64_t payload_bytes);
static inline uint64_t manifest_offset(uint64_t payload_bytes) { return (payload_bytes + 4095) & ~4095ull; }

/* Decodes and checks.  PROTOCOL or LIMIT, with what is wrong.  On OK the caller calls manifest_fini. */
int manifest_decode(bytes_t encoded, manifest_t *ret_manifest, heddle_error_t *error);
/* The same from a copy that the manifest owns, after its BLAKE2b-256 was compared, so that neither the digest
 * nor the decoder sees bytes that another process may write.  DIGEST_MISMATCH, NO_MEMORY, or as above. */
int manifest_read(bytes_t encoded, const digest_t *expected, manifest_t *ret_manifest, heddle_error_t *error);
void manifest_fini(manifest_t *m);

/* One row; strings borrow from the manifest; *ret_name is not NUL-terminated.  index < tensor_count is the
 * caller's duty. */
typedef struct {
    bytes_t name;
    int dtype;
    uint32_t ndim;
    uint64_t offset, bytes;
} manifest_row_t;
void manifest_row(const manifest_t *m, uint32_t index, manifest_row_t *ret_row);
uint64_t manifest_dim(const manifest_t *m, uint32_t index, uint32_t d);
/* Offset and length of a chunk in the payload. */
uint32_t manifest_chunk(const manifest_t *m, uint32_t chunk, uint64_t *ret_offset);
void manifest_chunk_digest(const manifest_t *m, uint32_t chunk, chunk_digest_t *ret_digest);
/* BLAKE2b-256 of all names, types and shapes: they alone decide where each tensor lies. */
digest_t manifest_table_digest(const manifest_t *m);
/* Starts h1 with everything but the leaves: feed those, then h1_final. */
void manifest_h1_begin(const manifest_t *m, h1_t *ret_h1);

/* Digests the filled payload in one pass and encodes the manifest into `out`; gives h1.  `features`: sorted,
 * comma-separated.
 * Padding in the payload must be zero already.  NO_MEMORY, LIMIT when config or metadata are too long, or
 * what core/stop.h ended it with. */
typedef struct {
    const heddle_tensor_t *tensors;
    const layout_t *layout;
    bytes_t config, metadata;
    const char *kind, *features;
    const void *payload;
    const uint64_t *leaves; /* of the whole payload: it is not read then; NULL: they are not known */
} manifest_input_t;
int manifest_build(const manifest_input_t *in, buf_t *out, digest_t *ret_h1);
/* An upper bound of the bytes that manifest_build writes for this input.  The memory is allocated before the
 * digest pass, so that a long pass cannot fail at its end. */
uint64_t manifest_bound(const layout_t *l, const heddle_tensor_t *tensors, size_t config_bytes,
                        size_t metadata_bytes);

#endif
