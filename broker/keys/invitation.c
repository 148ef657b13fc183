/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/keys/invitation.h"

#include "core/errors.h"

invitation_state_t invitation_state(const invitation_t *i, uint64_t wall_ms)
{
    if (i->used >= i->uses) return INVITATION_USED_UP;
    return wall_ms >= i->ends_ms ? INVITATION_ENDED : INVITATION_OPEN;
}

const char *invitation_state_name(invitation_state_t state)
{
    static const char *const NAMES[] =
        {[INVITATION_OPEN] = "open", [INVITATION_USED_UP] = "used_up", [INVITATION_ENDED] = "ended"};
    return NAMES[state];
}

/* A bucket that is kept as one number: the time at which it will be full again, and a burst of that lies
 * in the future when it is empty. */
static bool takes_turn(invitation_t *i, uint64_t now_us, uint64_t *ret_retry_ms)
{
    uint64_t busy_us = i->busy_us > now_us ? i->busy_us : now_us;
    uint64_t most_us = now_us + (uint64_t)(INVITATION_BURST - 1) * INVITATION_STEP_US;
    if (busy_us > most_us) {
        *ret_retry_ms = (busy_us - most_us) / 1000 + 1;
        return false;
    }
    i->busy_us = busy_us + INVITATION_STEP_US;
    return true;
}

int invitation_decide(invitation_t *i, const char *name, bool is_in, instant_t now, uint64_t *ret_retry_ms,
                      heddle_error_t *error)
{
    *ret_retry_ms = 0;
    if (!takes_turn(i, now.us, ret_retry_ms)) {
        int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE, "the invitation %s is asked too often", name);
        error_expected(error, "at most %u questions a second", 1000000u / INVITATION_STEP_US);
        error->retriable = 1;
        return rc;
    }
    /* A program that is started again presents the same string, which may have ended meanwhile. */
    invitation_state_t state = is_in ? INVITATION_OPEN : invitation_state(i, now.wall_ms);
    if (state == INVITATION_OPEN) return HEDDLE_OK;
    int rc;
    if (state == INVITATION_USED_UP) {
        rc = error_fail(error, HEDDLE_ERR_DENIED, "the invitation %s is used up", name);
        error_expected(error, "fewer than %llu uses", (unsigned long long)i->uses);
        error_found(error, "%llu", (unsigned long long)i->used);
    } else {
        uint64_t ago_s = (now.wall_ms - i->ends_ms) / 1000;
        rc = error_fail(error, HEDDLE_ERR_DENIED, "the invitation %s ended %llu s ago", name,
                        (unsigned long long)ago_s);
        error_expected(error, "a use within the time that `heddle invite --ttl` gave it");
        error_found(error, "%llu s too late", (unsigned long long)ago_s);
    }
    error_hint(error, "`heddle invite` on the broker's host makes another one");
    return rc;
}
