/* SPDX-License-Identifier: Apache-2.0 */
/* The assertion of ownership fires on the wrong thread, and on no other. */
#include "core/owner.h"
#include "tests/unit/other_thread.h"

#include <criterion/criterion.h>
#include <signal.h>

static void check(void *owner) { owner_check((owner_t *)owner); }
static void hand_over(void *owner) { owner_hand_over((owner_t *)owner); }

Test(owner, another_threads_call_ends_the_process, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    owner_check(&owner);
    on_another_thread(check, &owner);
}

/* The one that came first has ended, and has not said that it is done. */
Test(owner, a_thread_that_ended_owns_still, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    on_another_thread(check, &owner);
    owner_check(&owner);
}

Test(owner, a_thread_hands_over_only_what_it_owns, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    owner_check(&owner);
    on_another_thread(hand_over, &owner);
}

Test(owner, what_was_handed_over_is_owned_by_the_next, .disabled = !OWNERS_ARE_CHECKED)
{
    owner_t owner = {0};
    owner_check(&owner);
    owner_check(&owner);
    owner_hand_over(&owner);
    on_another_thread(check, &owner);
    cr_assert_neq(owner.thread, 0);
}

Test(owner, what_was_handed_over_is_no_longer_ours, ENDS_THE_PROCESS)
{
    owner_t owner = {0};
    owner_check(&owner);
    owner_hand_over(&owner);
    on_another_thread(check, &owner);
    owner_check(&owner);
}

Test(owner, a_thread_hands_back)
{
    owner_t owner = {0};
    on_another_thread(hand_over, &owner);
    owner_check(&owner);
    on_another_thread(check, NULL);
}
