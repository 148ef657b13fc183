/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/tally.h"

/* States up to ARRIVED are in flight, STAGED to REFUSED hold the bytes: the order of copy_state_t says so. */
bool state_in_flight(copy_state_t state) { return state <= COPY_ARRIVED; }

bool state_holds(copy_state_t state) { return state >= COPY_STAGED && state <= COPY_REFUSED; }

/* Several workers may have one rank, for a while or by mistake: the rank counts once. */
static void count_group(tally_t *t, group_t *g, uint32_t rank, bool more)
{
    uint32_t before = g->staged_ranks;
    if (more) g->staged_ranks += g->holders[rank]++ == 0;
    else g->staged_ranks -= --g->holders[rank] == 0;
    if (before < g->ranks && g->staged_ranks == g->ranks) t->units++;
    if (before == g->ranks && g->staged_ranks < g->ranks) t->units--;
}

static void count(tally_t *t, const tallied_t *what, bool more)
{
    uint32_t one = more ? 1 : UINT32_MAX; /* unsigned: wraps to one less */
    bool holds = state_holds(what->state), is_present = what->state != COPY_GONE;
    t->in[what->is_eligible][what->state] += one;
    if (is_present && what->has_reached) t->reached[what->is_eligible] += one;
    if (is_present && (holds || what->has_reached)) t->done[what->is_eligible] += one;
    if (what->state == COPY_KEPT && what->is_spare) t->spare += one;
    if (holds && what->state != COPY_REFUSED && what->is_ordered && !what->has_reached) t->switching += one;
    if (holds && what->group) count_group(t, what->group, what->rank, more);
    else if (holds) t->units += one;
}

void tally_add(tally_t *t, const tallied_t *what) { count(t, what, true); }

void tally_remove(tally_t *t, const tallied_t *what) { count(t, what, false); }

static uint32_t sum(const uint32_t in[COPY_STATES], copy_state_t first, copy_state_t last)
{
    uint32_t count = 0;
    for (int state = (int)first; state <= (int)last; state++) count += in[state];
    return count;
}

/* GONE is not present; every other state of an eligible worker is. */
uint32_t tally_present(const tally_t *t, bool eligible_only)
{
    uint32_t count = sum(t->in[true], COPY_NONE, COPY_FAILED);
    return eligible_only ? count : count + sum(t->in[false], COPY_NONE, COPY_FAILED);
}

uint32_t tally_gone(const tally_t *t) { return t->in[true][COPY_GONE]; }

uint32_t tally_in_flight(const tally_t *t) { return sum(t->in[true], COPY_NONE, COPY_ARRIVED); }

uint32_t tally_failed(const tally_t *t) { return t->in[true][COPY_FAILED]; }

uint32_t tally_holders(const tally_t *t, bool eligible_only)
{
    uint32_t count = sum(t->in[true], COPY_STAGED, COPY_REFUSED);
    return eligible_only ? count : count + sum(t->in[false], COPY_STAGED, COPY_REFUSED);
}

uint32_t tally_in(const tally_t *t, copy_state_t state) { return t->in[true][state] + t->in[false][state]; }

/* At least one unit has staged the version, and no eligible worker is still on its way. */
bool tally_is_complete(const tally_t *t) { return t->units > 0 && !tally_in_flight(t); }
