/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/tally.h"

/* One copy more, or one less.  Several workers may have one rank of a group, for a while or by mistake: the
 * rank counts once. */
static void count(tally_t *t, const tallied_t *what, bool more)
{
    uint32_t one = more ? 1 : UINT32_MAX; /* unsigned: wraps to one less */
    bool holds = state_holds(what->state), is_present = what->state != COPY_GONE;
    group_t *g = what->group;
    t->in[what->is_eligible][what->state] += one;
    if (is_present && what->has_reached) t->reached[what->is_eligible] += one;
    if (is_present && (holds || what->has_reached)) t->done[what->is_eligible] += one;
    if (what->state == COPY_KEPT && what->is_spare) t->spare += one;
    if (tallied_is_switching(what)) t->switching += one;
    if (what->is_out) t->out += one;
    if (holds && !g) t->units += one;
    if (!holds || !g) return;
    uint32_t before = g->staged_ranks;
    if (more) g->staged_ranks += g->holders[what->rank]++ == 0;
    else g->staged_ranks -= --g->holders[what->rank] == 0;
    if (before < g->ranks && g->staged_ranks == g->ranks) t->units++;
    if (before == g->ranks && g->staged_ranks < g->ranks) t->units--;
}

void tally_move(tally_t *t, const tallied_t *was, const tallied_t *now)
{
    if (was) count(t, was, false);
    if (now) count(t, now, true);
}
