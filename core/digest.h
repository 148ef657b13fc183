/* SPDX-License-Identifier: Apache-2.0 */
/* core/digest.h: leaf, chunk and h1 digests.
 *
 *   payload  | 4 KiB | 4 KiB | 4 KiB | ...          every tensor begins a new leaf, padding is zero
 *   leaf       u64     u64     u64                   XXH64, seed 0
 *   chunk    [ XXH3-128 of its leaves, LE ]          unit of transfer and verification
 *   h1       BLAKE2b-256( record, then all leaves )  identity of the content; record: formats/manifest.h
 *
 * One pass over the bytes gives all three.  XXH64 and XXH3: xxhash (github.com/Cyan4973/xxHash,
 * doc/xxhash_spec.md); BLAKE2b: RFC 7693 through libsodium.  The digests detect accidental damage, not a
 * malicious source: XXH64 is not collision-resistant.
 *
 * The caller owns an h1_t and uses it in one thread; all other calls have no state.  Hot path: no allocation,
 * no system call. */
#ifndef CORE_DIGEST_H
#define CORE_DIGEST_H

#include "core/bytes.h"
#include "core/names.h"
#include <stdbool.h>

typedef struct {
    uint8_t b[16];
} chunk_digest_t;

/* Computes the leaves of `bytes` of a payload, ceil(bytes/4096) of them; the last one as if it were padded
 * with zeros to 4 KiB. */
void digest_leaves(const void *data, size_t bytes, uint64_t *ret_leaves);
/* memcpy, and the leaves of the bytes that then are at `to`.  Each byte of `from` is read once, so that the
 * leaves fit the copy even while another process writes to `from`.  The two must not overlap. */
void digest_copy(void *to, const void *from, size_t bytes, uint64_t *ret_leaves);
/* The same with one kind of vector instructions, for tests and benchmarks; the two above use the fastest.
 * False if this machine, or this build, does not have the kind. */
typedef enum { DIGEST_SCALAR, DIGEST_AVX2, DIGEST_AVX512 } digest_vectors_t;
bool digest_leaves_with(digest_vectors_t vectors, const void *data, size_t bytes, uint64_t *ret_leaves);
bool digest_copy_with(digest_vectors_t vectors, void *to, const void *from, size_t bytes,
                      uint64_t *ret_leaves);
chunk_digest_t digest_chunk(const uint64_t *leaves, size_t count);
/* BLAKE2b-256 of plain bytes (manifests). */
digest_t digest_blake2b(const void *data, size_t bytes);

/* h1, fed piece by piece: the record first, then the leaves in order. */
typedef struct {
    _Alignas(64) uint8_t opaque[384];
} h1_t;
void h1_init(h1_t *h);
void h1_add(h1_t *h, const void *data, size_t bytes);
void h1_add_u32(h1_t *h, uint32_t v);
void h1_add_u64(h1_t *h, uint64_t v);
void h1_add_leaves(h1_t *h, const uint64_t *leaves, size_t count);
/* The leaves of `bytes` of a payload, which begin where a leaf does. */
void h1_add_payload(h1_t *h, const void *data, size_t bytes);
digest_t h1_final(h1_t *h);

/* Two secrets are the same text.  The time that this takes says nothing of where they differ. */
bool digest_secret_equal(const char *a, const char *b);

/* `bytes` of randomness from the system. */
void random_bytes(void *data, size_t bytes);

#endif
