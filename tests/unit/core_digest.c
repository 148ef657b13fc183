/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves, chunks, h1 against values computed elsewhere (python xxhash 3.5, hashlib). */
#include "core/digest.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

Test(digest, a_short_leaf_is_padded_with_zeros)
{
    uint8_t page[4096] = {1, 2, 3};
    uint64_t a, b;
    digest_leaves(page, 3, &a);
    digest_leaves(page, sizeof page, &b);
    cr_assert_eq(a, b);
}

enum { LEAVES = 13, DATA_BYTES = LEAVES * 4096 + 8 };

static uint8_t *random_data(void)
{
    uint8_t *data = malloc(DATA_BYTES);
    uint64_t random = 88172645463325252u;
    for (size_t i = 0; i < DATA_BYTES; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        data[i] = (uint8_t)random;
    }
    return data;
}

static bool hash_best(const void *data, size_t bytes, uint64_t *ret_leaves)
{
    digest_leaves(data, bytes, ret_leaves);
    return true;
}

static bool hash_scalar(const void *data, size_t bytes, uint64_t *ret_leaves)
{
    return digest_leaves_with(DIGEST_SCALAR, data, bytes, ret_leaves);
}

static bool hash_avx2(const void *data, size_t bytes, uint64_t *ret_leaves)
{
    return digest_leaves_with(DIGEST_AVX2, data, bytes, ret_leaves);
}

static bool hash_avx512(const void *data, size_t bytes, uint64_t *ret_leaves)
{
    return digest_leaves_with(DIGEST_AVX512, data, bytes, ret_leaves);
}

/* However many leaves are hashed together, and wherever they lie: what xxhash says of each alone. */
static void assert_leaves(bool (*hash)(const void *data, size_t bytes, uint64_t *ret_leaves))
{
    uint8_t *data = random_data();
    uint64_t leaves[LEAVES + 1];
    for (size_t count = 0; count <= LEAVES; count++) {
        for (size_t shift = 0; shift < 8; shift += 7) {
            memset(leaves, 0, sizeof leaves);
            cr_assert(hash(data + shift, count * 4096, leaves));
            for (size_t i = 0; i < count; i++)
                cr_assert_eq(leaves[i], XXH64(data + shift + i * 4096, 4096, 0), "leaf %zu of %zu", i, count);
            cr_assert_eq(leaves[count], 0, "nothing is written behind");
        }
    }
    free(data);
}

static bool has(digest_vectors_t vectors)
{
    uint64_t none;
    return digest_leaves_with(vectors, "", 0, &none);
}

Test(digest, leaves_hashed_together_are_the_leaves_alone) { assert_leaves(hash_best); }
Test(digest, so_they_are_one_by_one) { assert_leaves(hash_scalar); }

Test(digest, so_they_are_with_avx2)
{
    if (!has(DIGEST_AVX2)) cr_skip_test("this machine has no AVX2");
    assert_leaves(hash_avx2);
}

Test(digest, so_they_are_with_avx512)
{
    if (!has(DIGEST_AVX512)) cr_skip_test("this machine has no AVX-512");
    assert_leaves(hash_avx512);
}

/* Of every kind, wherever both lie, and whatever the length: the bytes, their leaves, and nothing behind. */
static void assert_copied(digest_vectors_t vectors)
{
    enum { SHIFTS = 3 };
    static const size_t AT[SHIFTS] = {0, 7, 64}, OVER[] = {0, 1, 4095};
    uint8_t *data = random_data(), *into = malloc(DATA_BYTES + 64);
    uint64_t leaves[LEAVES + 1], expected[LEAVES + 1];
    for (size_t count = 0; count < LEAVES; count++)
        for (size_t way = 0; way < SHIFTS * SHIFTS * 3; way++) {
            const uint8_t *from = data + AT[way % SHIFTS];
            uint8_t *to = into + AT[way / SHIFTS % SHIFTS];
            size_t bytes = count * 4096 + OVER[way / SHIFTS / SHIFTS], pages = (bytes + 4095) / 4096;
            if (from + bytes > data + DATA_BYTES) continue;
            memset(into, 0xee, DATA_BYTES + 64);
            memset(leaves, 0, sizeof leaves);
            cr_assert(digest_copy_with(vectors, to, from, bytes, leaves));
            digest_leaves_with(DIGEST_SCALAR, from, bytes, expected);
            cr_assert_eq(memcmp(to, from, bytes), 0, "%zu bytes, way %zu", bytes, way);
            cr_assert_eq(memcmp(leaves, expected, pages * sizeof *leaves), 0, "%zu bytes, way %zu", bytes,
                         way);
            cr_assert(to[bytes] == 0xee && leaves[pages] == 0, "nothing is written behind");
        }
    free(into);
    free(data);
}

Test(digest, what_is_copied_is_digested) { assert_copied(DIGEST_SCALAR); }

Test(digest, so_it_is_with_avx2)
{
    if (!has(DIGEST_AVX2)) cr_skip_test("this machine has no AVX2");
    assert_copied(DIGEST_AVX2);
}

Test(digest, so_it_is_with_avx512)
{
    if (!has(DIGEST_AVX512)) cr_skip_test("this machine has no AVX-512");
    assert_copied(DIGEST_AVX512);
}

/* Another process writes for ever into what is copied. */
static pid_t start_writer(uint8_t *shared, size_t bytes)
{
    pid_t parent = getpid(), child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint64_t n = 1; getppid() == parent; n++)
        for (size_t at = 0; at < bytes; at += 8) *(volatile uint64_t *)(shared + at) = n;
    _exit(0);
}

/* The leaves are those of what lies there afterwards, not of what a second look would find. */
Test(digest, what_others_write_meanwhile_is_read_once)
{
    enum { PAGES = 7, BYTES = PAGES * 4096, CHANGES = 2000 };
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < 2)
        cr_skip_test("on one core nothing else writes meanwhile");
    uint8_t *shared = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shared, MAP_FAILED);
    static uint8_t into[BYTES], last[BYTES];
    pid_t writer = start_writer(shared, BYTES);
    cr_assert_gt(writer, 0);
    int changes = 0;
    for (bool is_same = true; is_same && changes < CHANGES;) {
        uint64_t leaves[PAGES], expected[PAGES];
        memcpy(last, into, BYTES);
        cr_assert(digest_copy_with(DIGEST_SCALAR, into, shared, BYTES, leaves));
        digest_leaves_with(DIGEST_SCALAR, into, BYTES, expected);
        is_same = memcmp(leaves, expected, sizeof leaves) == 0;
        changes += is_same && memcmp(last, into, BYTES) != 0;
    }
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    munmap(shared, BYTES);
    cr_assert_eq(changes, CHANGES, "leaves of other bytes than those that lie there");
}

/* The copy lies over what is copied, a word before or behind it: so a word is overwritten at once after it was
 * read, as another process could do it.  Each word of the copy is written once, and its leaves are those of the
 * words as they were read first. */
static void assert_words_read_once(digest_vectors_t vectors)
{
    enum { PAGES = 4, BYTES = PAGES * 4096, WORD = 32 };
    uint8_t *data = random_data();
    for (size_t to = 0; to <= 2 * (size_t)WORD; to += 2 * (size_t)WORD) {
        uint64_t leaves[PAGES], expected[PAGES];
        cr_assert(digest_copy_with(vectors, data + to, data + WORD, BYTES, leaves));
        digest_leaves_with(DIGEST_SCALAR, data + to, BYTES, expected);
        cr_assert_eq(memcmp(leaves, expected, sizeof leaves), 0,
                     "leaves of other bytes than those that lie there");
    }
    free(data);
}

Test(digest, so_it_is_read_with_vectors)
{
    if (!has(DIGEST_AVX2)) cr_skip_test("this machine has no AVX2");
    assert_words_read_once(DIGEST_AVX2);
    if (has(DIGEST_AVX512)) assert_words_read_once(DIGEST_AVX512);
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

/* Whole leaves and a rest, below, at and above the pieces in which it is read. */
Test(digest, a_payload_is_fed_as_its_leaves)
{
    enum { LEAF = 4096, MOST = 130 * LEAF };
    static const size_t BYTES[] = {0, 1, LEAF, LEAF + 1, 64 * LEAF - 1, 64 * LEAF, 64 * LEAF + 1, MOST};
    uint8_t *payload = malloc(MOST);
    uint64_t leaves[MOST / LEAF];
    for (size_t i = 0; i < MOST; i++) payload[i] = (uint8_t)(i * 7 + i / LEAF);
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES; i++) {
        h1_t whole, by_leaves;
        h1_init(&whole);
        h1_init(&by_leaves);
        h1_add_payload(&whole, payload, BYTES[i]);
        digest_leaves(payload, BYTES[i], leaves);
        h1_add_leaves(&by_leaves, leaves, (BYTES[i] + LEAF - 1) / LEAF);
        digest_t a = h1_final(&whole), b = h1_final(&by_leaves);
        cr_assert(digest_equal(&a, &b), "%zu bytes", BYTES[i]);
    }
    free(payload);
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
