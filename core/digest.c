/* SPDX-License-Identifier: Apache-2.0 */
/* Four leaves at once by vector instructions, chosen at run time; the rest by xxhash and libsodium. */
#include "core/digest.h"

#include "core/limits.h"

#include <assert.h>
#include <sodium.h>
#include <stdbool.h>
#include <xxhash.h>

static_assert(sizeof(h1_t) >= sizeof(crypto_generichash_state), "h1_t holds libsodium's state");
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "leaves are hashed as little-endian words in place"
#endif

/* The leaves of four pages; copy: also copies the bytes. */
typedef struct {
    void (*hash)(const uint8_t *at, uint64_t *ret_leaves);
    void (*copy)(uint8_t *to, const uint8_t *at, uint64_t *ret_leaves);
} four_t;

#ifdef __x86_64__
#include <immintrin.h>

/* XXH64 of four whole leaves at once.  A single leaf is bound by the latency of multiplications, because
 * XXH64 has only four accumulators that are independent of each other.  Four leaves are independent too and
 * fill the vector units: twice (AVX2) to six times (AVX-512) as fast, with the same results. */
#define PRIME_1 0x9E3779B185EBCA87u
#define PRIME_2 0xC2B2AE3D27D4EB4Fu
#define PRIME_3 0x165667B19E3779F9u
#define PRIME_4 0x85EBCA77C2B2AE63u
#define AHEAD_BYTES 512
typedef uint64_t lanes_t __attribute__((vector_size(32))); /* the accumulators of one leaf */
typedef uint64_t words_t __attribute__((vector_size(32), aligned(1), may_alias));

static uint64_t rotate(uint64_t v, int bits) { return v << bits | v >> (64 - bits); }

/* The finalization of XXH64 after 4096 bytes. */
static uint64_t finish(const lanes_t *a)
{
    uint64_t h = rotate((*a)[0], 1) + rotate((*a)[1], 7) + rotate((*a)[2], 12) + rotate((*a)[3], 18);
    for (int i = 0; i < 4; i++) h = (h ^ rotate((*a)[i] * PRIME_2, 31) * PRIME_1) * PRIME_1 + PRIME_4;
    h += LIMIT_PAGE_BYTES;
    h = (h ^ h >> 33) * PRIME_2;
    h = (h ^ h >> 29) * PRIME_3;
    return h ^ h >> 32;
}

typedef uint32_t halves_t __attribute__((vector_size(32), may_alias));

/* A multiplication of 64 bits. AVX-512 has one; AVX2 does not: there, one multiplication of 32 bits with the
 * factor's halves exchanged gives both cross products. */
#define TIMES(v, by) ((v) * (by))
#define TIMES_AVX2(v, by)                                                                                    \
    __extension__({                                                                                          \
        lanes_t cross = (lanes_t)((halves_t)(v) * (halves_t)(lanes_t){SWAPPED(by)});                         \
        (lanes_t) _mm256_mul_epu32((__m256i)(v), (__m256i)(lanes_t){REPEATED(by)}) + (cross << 32) +         \
            (cross >> 32 << 32);                                                                             \
    })
#define REPEATED(v) v, v, v, v
#define SWAPPED(v) REPEATED((uint64_t)(v) << 32 | (uint64_t)(v) >> 32)

/* One step of a leaf. With `is_copy` the words are also stored at `to`, so that the hashed words are the
 * copied ones. The prefetch is explicit, because hardware prefetchers stop at the end of a page. */
#define ROUND(times, acc, word)                                                                              \
    do {                                                                                                     \
        (acc) += times(word, PRIME_2);                                                                       \
        (acc) = (acc) << 31 | (acc) >> 33;                                                                   \
        (acc) = times(acc, PRIME_1);                                                                         \
    } while (0)
#define LINE(times, is_copy, acc, offset)                                                                    \
    do {                                                                                                     \
        words_t first = *(const words_t *)(at + (offset)), second = *(const words_t *)(at + (offset) + 32);  \
        __builtin_prefetch(at + (offset) + AHEAD_BYTES);                                                     \
        if (is_copy) {                                                                                       \
            *(words_t *)(to + (offset)) = first;                                                             \
            *(words_t *)(to + (offset) + 32) = second;                                                       \
        }                                                                                                    \
        ROUND(times, acc, (lanes_t)first);                                                                   \
        ROUND(times, acc, (lanes_t)second);                                                                  \
    } while (0)
#define FOUR_LEAVES(times, is_copy)                                                                          \
    const lanes_t start = {PRIME_1 + PRIME_2, PRIME_2, 0, -PRIME_1};                                         \
    lanes_t a = start, b = start, c = start, d = start;                                                      \
    for (size_t i = 0; i < LIMIT_PAGE_BYTES; i += 64) {                                                      \
        LINE(times, is_copy, a, i);                                                                          \
        LINE(times, is_copy, b, i + LIMIT_PAGE_BYTES);                                                       \
        LINE(times, is_copy, c, i + 2 * LIMIT_PAGE_BYTES);                                                   \
        LINE(times, is_copy, d, i + 3 * LIMIT_PAGE_BYTES);                                                   \
    }                                                                                                        \
    ret_leaves[0] = finish(&a);                                                                              \
    ret_leaves[1] = finish(&b);                                                                              \
    ret_leaves[2] = finish(&c);                                                                              \
    ret_leaves[3] = finish(&d)
#define VECTORS(name, isa, times)                                                                            \
    __attribute__((target(isa))) static void hash_##name(const uint8_t *at, uint64_t *ret_leaves)            \
    {                                                                                                        \
        uint8_t *to = NULL;                                                                                  \
        FOUR_LEAVES(times, false);                                                                           \
    }                                                                                                        \
    __attribute__((target(isa))) static void copy_##name(uint8_t *to, const uint8_t *at,                     \
                                                         uint64_t *ret_leaves)                               \
    {                                                                                                        \
        FOUR_LEAVES(times, true);                                                                            \
    }
VECTORS(avx512, "avx512dq,avx512vl", TIMES)
VECTORS(avx2, "avx2", TIMES_AVX2)

static const four_t *four_of(digest_vectors_t vectors)
{
    static const four_t AVX512 = {hash_avx512, copy_avx512}, AVX2 = {hash_avx2, copy_avx2};
    switch (vectors) {
    case DIGEST_AVX512:
        return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") ? &AVX512 : NULL;
    case DIGEST_AVX2: return __builtin_cpu_supports("avx2") ? &AVX2 : NULL;
    case DIGEST_SCALAR: break;
    }
    return NULL;
}
#else
static const four_t *four_of(digest_vectors_t vectors) { return (void)vectors, NULL; }
#endif

enum { FOUR_BYTES = 4 * LIMIT_PAGE_BYTES };

/* NULL without such vectors: scalar code is faster with one leaf after the other. */
static const four_t *best(void)
{
    const four_t *four = four_of(DIGEST_AVX512);
    return four ? four : four_of(DIGEST_AVX2);
}

static void hash_leaves(const four_t *four, const uint8_t *at, size_t bytes, uint64_t *ret_leaves)
{
    for (; four && bytes >= FOUR_BYTES; at += FOUR_BYTES, bytes -= FOUR_BYTES, ret_leaves += 4)
        four->hash(at, ret_leaves);
    for (; bytes >= LIMIT_PAGE_BYTES; at += LIMIT_PAGE_BYTES, bytes -= LIMIT_PAGE_BYTES)
        *ret_leaves++ = XXH64(at, LIMIT_PAGE_BYTES, 0);
    if (bytes) {
        uint8_t page[LIMIT_PAGE_BYTES] = {0};
        memcpy(page, at, bytes);
        *ret_leaves = XXH64(page, sizeof page, 0);
    }
}

static void copy_leaves(const four_t *four, uint8_t *to, const uint8_t *at, size_t bytes,
                        uint64_t *ret_leaves)
{
    for (; four && bytes >= FOUR_BYTES;
         at += FOUR_BYTES, to += FOUR_BYTES, bytes -= FOUR_BYTES, ret_leaves += 4)
        four->copy(to, at, ret_leaves);
    for (size_t piece; bytes > 0; at += piece, to += piece, bytes -= piece) {
        piece = bytes < LIMIT_PAGE_BYTES ? bytes : LIMIT_PAGE_BYTES;
        memcpy(to, at, piece);
        hash_leaves(NULL, to, piece, ret_leaves++);
    }
}

bool digest_leaves_with(digest_vectors_t vectors, const void *data, size_t bytes, uint64_t *ret_leaves)
{
    const four_t *four = four_of(vectors);
    if (!four && vectors != DIGEST_SCALAR) return false;
    hash_leaves(four, data, bytes, ret_leaves);
    return true;
}

bool digest_copy_with(digest_vectors_t vectors, void *to, const void *from, size_t bytes,
                      uint64_t *ret_leaves)
{
    const four_t *four = four_of(vectors);
    if (!four && vectors != DIGEST_SCALAR) return false;
    copy_leaves(four, to, from, bytes, ret_leaves);
    return true;
}

void digest_leaves(const void *data, size_t bytes, uint64_t *ret_leaves)
{
    hash_leaves(best(), data, bytes, ret_leaves);
}

void digest_copy(void *to, const void *from, size_t bytes, uint64_t *ret_leaves)
{
    copy_leaves(best(), to, from, bytes, ret_leaves);
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

/* Digests of equal length are compared, so that neither length nor content shows in the time. */
bool digest_secret_equal(const char *a, const char *b)
{
    digest_t of_a = digest_blake2b(a, strlen(a)), of_b = digest_blake2b(b, strlen(b));
    return sodium_memcmp(of_a.b, of_b.b, sizeof of_a.b) == 0;
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

void h1_add_leaves(h1_t *h, const uint64_t *leaves, size_t count)
{
    h1_add(h, leaves, count * sizeof *leaves);
}

void h1_add_payload(h1_t *h, const void *data, size_t bytes)
{
    uint64_t leaves[64];
    const size_t most = sizeof leaves / sizeof *leaves * LIMIT_PAGE_BYTES;
    for (const uint8_t *at = data; bytes > 0;) {
        size_t piece = bytes < most ? bytes : most;
        digest_leaves(at, piece, leaves);
        h1_add_leaves(h, leaves, (piece + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES);
        at += piece;
        bytes -= piece;
    }
}

digest_t h1_final(h1_t *h)
{
    digest_t d;
    crypto_generichash_final((void *)h, d.b, sizeof d.b);
    return d;
}

void random_bytes(void *data, size_t bytes) { randombytes_buf(data, bytes); }
