/* SPDX-License-Identifier: Apache-2.0 */
#include "core/digest.h"

#include "core/limits.h"

#include <assert.h>
#include <sodium.h>
#include <xxhash.h>

static_assert(sizeof(h1_t) >= sizeof(crypto_generichash_state), "h1_t holds libsodium's state");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "leaves are hashed as little-endian words in place"
#endif

void digest_leaves(const void *data, size_t bytes, uint64_t *ret_leaves)
{
    const uint8_t *at = data;
    for (; bytes >= LIMIT_PAGE_BYTES; at += LIMIT_PAGE_BYTES, bytes -= LIMIT_PAGE_BYTES)
        *ret_leaves++ = XXH64(at, LIMIT_PAGE_BYTES, 0);
    if (bytes) {
        uint8_t page[LIMIT_PAGE_BYTES] = {0};
        memcpy(page, at, bytes);
        *ret_leaves = XXH64(page, sizeof page, 0);
    }
}

chunk_digest_t digest_chunk(const uint64_t *leaves, size_t count)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(leaves, count * sizeof *leaves));
    chunk_digest_t d;
    memcpy(d.b, canonical.digest, sizeof d.b);
    return d;
}

digest_t digest_blake2b(const void *data, size_t bytes)
{
    digest_t d;
    crypto_generichash(d.b, sizeof d.b, data, bytes, NULL, 0);
    return d;
}

void h1_init(h1_t *h) { crypto_generichash_init((void *)h, NULL, 0, 32); }
void h1_add(h1_t *h, const void *data, size_t bytes) { crypto_generichash_update((void *)h, data, bytes); }

void h1_add_u32(h1_t *h, uint32_t v)
{
    uint8_t b[4];
    le32_put(b, v);
    h1_add(h, b, sizeof b);
}

void h1_add_u64(h1_t *h, uint64_t v)
{
    uint8_t b[8];
    le64_put(b, v);
    h1_add(h, b, sizeof b);
}

void h1_add_leaves(h1_t *h, const uint64_t *leaves, size_t count) { h1_add(h, leaves, count * sizeof *leaves); }

digest_t h1_final(h1_t *h)
{
    digest_t d;
    crypto_generichash_final((void *)h, d.b, sizeof d.b);
    return d;
}

void random_bytes(void *data, size_t bytes) { randombytes_buf(data, bytes); }
