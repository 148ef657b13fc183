/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/rollout/next.h"

#include "broker/rollout/rule.h"

static bool serves_nothing(const member_t *member, const track_t *t)
{
    return !member_sub(member, t->adapter)->serving.version;
}

/* The member serves nothing yet, and the version that is on its way comes to it about as soon as the active
 * one would: to fetch both takes twice as long, and half of their uplinks from workers that serve each other.
 * That is by what the active version took the others: a lease at most.  After twice that time, from its
 * announcement to this member on, something holds the newest one up. */
static bool comes_as_soon(const track_t *newest, const track_t *active, const member_t *member,
                          uint64_t now_us, uint64_t lease_us)
{
    if (!newest || !active || !serves_nothing(member, newest)) return false;
    bool is_by_rule = !rule_is_by_operator(newest->row->activation) && !newest->of->row->held;
    if (!is_by_rule || newest->phase == TRACK_WAITING || plan_is_at_place(&active->plan, member->place))
        return false;
    const copy_row_t *c = copy_of(newest, member);
    uint64_t since_us = c && c->first_sent_us ? c->first_sent_us : newest->created_us;
    uint64_t rate = active->plan.best_rate;
    double takes_us = (double)record_payload_bytes(&newest->row->parts) * 1e6 / (double)rate;
    return rate && takes_us <= (double)lease_us && (double)(now_us - since_us) < 2 * takes_us;
}

next_first_t next_first(const track_t *newest, const track_t *active, const member_t *member, uint64_t now_us,
                        uint64_t lease_us)
{
    const copy_row_t *c = copy_of(newest, member);
    if (c && c->is_eligible) return NEXT_AWAITED; /* else its rollout would wait for two fetches */
    return comes_as_soon(newest, active, member, now_us, lease_us) ? NEXT_AS_SOON : NEXT_ACTIVE;
}

/* A fetch of the newest that is under way goes on before the active version is sent.  Where no rollout waits
 * for it and the worker serves nothing, that is only as long as the newest comes as soon. */
static bool is_newest_before(next_first_t first, const track_t *newest, const member_t *member)
{
    const copy_row_t *c = copy_of(newest, member);
    if (first == NEXT_AS_SOON) return copy_is_out(c) || copy_holds(c);
    return copy_is_out(c) && (first == NEXT_AWAITED || !serves_nothing(member, newest));
}

next_send_t next_of_active(next_first_t first, const track_t *newest, const track_t *active,
                           const member_t *member)
{
    if (!active || !active->row) return NEXT_NOTHING;
    const copy_row_t *c = copy_of(active, member);
    if (copy_holds(c))
        return c->state == COPY_COMMITTED || c->state == COPY_ACTIVE ? NEXT_NOTHING : NEXT_COMMIT;
    if (is_newest_before(first, newest, member) || !track_has_source(active)) return NEXT_NOTHING;
    return NEXT_ANNOUNCE;
}

/* Where the active version was announced and is not in flight, it failed here: the worker is stale, by
 * name. */
bool next_newest_follows(next_first_t first, next_send_t sent, const track_t *active, const member_t *member)
{
    bool is_on_its_way = sent == NEXT_ANNOUNCE && copy_in_flight(copy_of(active, member));
    return first == NEXT_ACTIVE && !is_on_its_way;
}
