/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded random walks (broker_walk.h).  HEDDLE_SEED=n repeats one walk; a failure prints its seed and step. */
#include "broker_walk.h"

enum { STEPS = 400, WALKS = 120 };

static uint64_t rng;

static uint64_t draw(uint64_t below)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % below;
}

static void walk(uint64_t seed)
{
    rng = seed * 0x9e3779b97f4a7c15ull + 1;
    walk_begin(seed, seed % 3);
    for (M.step = 0; M.step < STEPS; M.step++) {
        one_step();
        check();
    }
    walk_end();
}

Test(random, invariants_hold_on_every_walk)
{
    const char *one = getenv("HEDDLE_SEED");
    if (one) walk(strtoull(one, NULL, 10));
    for (uint64_t seed = 1; !one && seed <= WALKS; seed++) walk(seed);
}
