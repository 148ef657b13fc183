/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves, chunks, h1 against values computed elsewhere (python xxhash 3.5, hashlib). */
#include "core/digest.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <xxhash.h>

Test(digest, a_short_leaf_is_padded_with_zeros)
{
    uint8_t page[4096] = {1, 2, 3};
    uint64_t a, b;
    digest_leaves(page, 3, &a);
    digest_leaves(page, sizeof page, &b);
    cr_assert_eq(a, b);
}

/* However many leaves are hashed together, and wherever they lie: what xxhash says of each alone. */
Test(digest, leaves_hashed_together_are_the_leaves_alone)
{
    enum { LEAVES = 13 };
    uint8_t *data = malloc(LEAVES * 4096 + 8);
    uint64_t random = 88172645463325252u, leaves[LEAVES + 1];
    for (size_t i = 0; i < LEAVES * 4096 + 8; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        data[i] = (uint8_t)random;
    }
    for (size_t count = 0; count <= LEAVES; count++) {
        for (size_t shift = 0; shift < 8; shift += 7) {
            memset(leaves, 0, sizeof leaves);
            digest_leaves(data + shift, count * 4096, leaves);
            for (size_t i = 0; i < count; i++)
                cr_assert_eq(leaves[i], XXH64(data + shift + i * 4096, 4096, 0), "leaf %zu of %zu", i, count);
            cr_assert_eq(leaves[count], 0, "nothing is written behind");
        }
    }
    free(data);
}

Test(digest, one_bit_changes_leaf_chunk_and_h1)
{
    uint8_t *data = calloc(1, 65536);
    uint64_t leaves[16], other[16];
    digest_leaves(data, 65536, leaves);
    data[40000] ^= 4;
    digest_leaves(data, 65536, other);
    cr_assert_neq(leaves[9], other[9]);
    chunk_digest_t a = digest_chunk(leaves, 16), b = digest_chunk(other, 16);
    cr_assert_neq(memcmp(&a, &b, sizeof a), 0);
    free(data);
}

Test(digest, h1_is_blake2b_256_of_what_was_fed)
{
    h1_t h;
    h1_init(&h);
    h1_add(&h, "ab", 2);
    h1_add_u32(&h, 0x04030201);
    h1_add_u64(&h, 5);
    digest_t d = h1_final(&h), e = digest_blake2b("ab\1\2\3\4\5\0\0\0\0\0\0\0", 14);
    cr_assert(digest_equal(&d, &e));
    digest_t empty = digest_blake2b("", 0); /* RFC 7693 parameters: 32 bytes, no key */
    char text[HEDDLE_DIGEST_TEXT];
    digest_text(&empty, text);
    cr_assert_str_eq(text, "h1:0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
}
