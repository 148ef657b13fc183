/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors into a region on several threads: the same bytes and digest as on one, also where threads cannot
 * be started. */
#include "trainer_client/pack.h"

#include "core/failpoint.h"

#include <criterion/criterion.h>
#include <stdlib.h>

enum { ROWS = 5, MB = 1 << 20 };
/* Pieces end within the large ones, between two and at the end of a page; one has no bytes, one is odd. */
static const uint64_t SIZES[ROWS][1] = {{9 * MB + 4096}, {0}, {100}, {3 * MB - 1}, {8 * MB}};
static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":4}";
static uint8_t *sources[ROWS];

static void make_sources(void)
{
    uint64_t x = 88172645463325252ull;
    for (int i = 0; i < ROWS; i++) {
        sources[i] = malloc(SIZES[i][0] + 1);
        for (uint64_t at = 0; at < SIZES[i][0]; at++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            sources[i][at] = (uint8_t)x;
        }
    }
}

static pack_t *pack_of(void **ret_base)
{
    static const char *const NAMES[ROWS] = {"a.lora_A.weight", "b.lora_A.weight", "c.lora_A.weight",
                                            "d.lora_A.weight", "e.lora_A.weight"};
    heddle_tensor_t tensors[ROWS];
    heddle_error_t error;
    pack_t *p;
    for (int i = 0; i < ROWS; i++)
        tensors[i] = (heddle_tensor_t){.size = sizeof *tensors,
                                       .name = NAMES[i],
                                       .dtype = HEDDLE_DTYPE_U8,
                                       .ndim = 1,
                                       .dims = SIZES[i]};
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = tensors,
                       .count = ROWS,
                       .config = bytes_of(CONFIG, sizeof CONFIG - 1)};
    cr_assert_eq(pack_new(&in, &p, &error), HEDDLE_OK, "%s", error.message);
    size_t bytes = (pack_bytes(p) + 4095) & ~4095ull;
    *ret_base = aligned_alloc(4096, bytes);
    memset(*ret_base, 0xee, bytes);
    pack_lay(p, *ret_base);
    return p;
}

/* `fails`: the start that fails; 0: none does. */
static digest_t digest_filled(uint32_t threads, unsigned fails)
{
    void *base;
    sealed_t sealed;
    heddle_error_t error;
    pack_t *p = pack_of(&base);
    const void *given[ROWS];
    for (int i = 0; i < ROWS; i++) given[i] = sources[i];
    if (fails) failpoint_arm("crew.thread", fails);
    crew_t *crew = crew_new(threads - 1);
    cr_assert(!fails || failpoint_has_failed());
    failpoint_disarm();
    pack_fill(p, given, crew);
    crew_end(&crew);
    for (uint32_t i = 0; i < ROWS; i++)
        cr_assert(!memcmp((uint8_t *)base + p->layout.places[i], sources[i], SIZES[i][0]), "row %u", i);
    cr_assert_eq(pack_seal(p, &sealed, &error), HEDDLE_OK, "%s", error.message);
    pack_destroy(&p);
    free(base);
    return sealed.digest;
}

Test(fill, is_the_same_on_any_number_of_threads)
{
    make_sources();
    digest_t one = digest_filled(1, 0);
    for (uint32_t threads = 2; threads <= PACK_THREADS_MAX; threads++)
        for (unsigned fails = 0; fails < threads; fails++) {
            digest_t other = digest_filled(threads, fails);
            cr_assert(digest_equal(&one, &other), "%u threads, start %u failed", threads, fails);
        }
}

Test(fill, takes_threads_for_much)
{
    static const struct {
        uint64_t bytes;
        uint32_t most, threads;
    } ROW[] = {{4096, 64, 1},       {8 * MB - 4096, 64, 1}, {8 * MB, 64, 2},
               {17 * MB, 2, 2},     {17 * MB, 64, 4},       {414ull * MB, 1, 1},
               {414ull * MB, 0, 1}, {414ull * MB, 3, 3},    {1ull << 40, 1024, 4}};
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++)
        cr_assert_eq(pack_fill_threads(ROW[i].bytes, ROW[i].most), ROW[i].threads, "row %zu", i);
}
