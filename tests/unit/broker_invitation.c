/* SPDX-License-Identifier: Apache-2.0 */
/* Which state an invitation is in, what it answers in each, and how many questions it takes. */
#include "broker/keys/invitation.h"

#include <criterion/criterion.h>
#include <string.h>

enum { S = 1000000 };
static const instant_t NOW = {.us = 10 * S, .wall_ms = 5000};

Test(invitation, is_open_until_it_is_used_up_or_ends)
{
    static const struct {
        invitation_t i;
        invitation_state_t state;
    } ROWS[] = {{{.uses = 1, .ends_ms = 5001}, INVITATION_OPEN},
                {{.uses = 1, .ends_ms = 5000}, INVITATION_ENDED},
                {{.uses = 3, .used = 2, .ends_ms = 5001}, INVITATION_OPEN},
                {{.uses = 3, .used = 3, .ends_ms = 5001}, INVITATION_USED_UP},
                {{.uses = 3, .used = 3, .ends_ms = 4000}, INVITATION_USED_UP}};
    for (size_t k = 0; k < sizeof ROWS / sizeof *ROWS; k++)
        cr_assert_eq(invitation_state(&ROWS[k].i, NOW.wall_ms), ROWS[k].state, "row %zu", k);
}

Test(invitation, says_why_it_enters_no_key)
{
    invitation_t open = {.uses = 1, .ends_ms = 9000}, used = {.uses = 2, .used = 2, .ends_ms = 9000},
                 ended = {.uses = 2, .ends_ms = 3000};
    heddle_error_t e;
    uint64_t retry_ms;
    cr_assert_eq(invitation_decide(&open, "i", false, NOW, &retry_ms, &e), HEDDLE_OK);
    cr_assert_eq(invitation_decide(&used, "i", false, NOW, &retry_ms, &e), HEDDLE_ERR_DENIED);
    cr_assert(strstr(e.message, "the invitation i is used up") && !strcmp(e.found, "2") && !e.retriable);
    cr_assert_eq(invitation_decide(&ended, "i", false, NOW, &retry_ms, &e), HEDDLE_ERR_DENIED);
    cr_assert(strstr(e.message, "ended 2 s ago") && strstr(e.hint, "heddle invite"), "%s", e.message);
}

Test(invitation, of_a_key_that_is_in_is_good_for_ever)
{
    invitation_t used = {.uses = 2, .used = 2, .ends_ms = 9000}, ended = {.uses = 2, .ends_ms = 3000};
    heddle_error_t e;
    uint64_t retry_ms;
    cr_assert_eq(invitation_decide(&used, "i", true, NOW, &retry_ms, &e), HEDDLE_OK);
    cr_assert_eq(invitation_decide(&ended, "i", true, NOW, &retry_ms, &e), HEDDLE_OK);
}

Test(invitation, takes_a_burst_and_then_so_many_a_second)
{
    invitation_t i = {.uses = 1000, .ends_ms = 100000};
    heddle_error_t e;
    uint64_t retry_ms = 0;
    instant_t now = NOW;
    for (unsigned n = 0; n < INVITATION_BURST; n++)
        cr_assert_eq(invitation_decide(&i, "i", true, now, &retry_ms, &e), HEDDLE_OK, "%u", n);
    cr_assert_eq(invitation_decide(&i, "i", true, now, &retry_ms, &e), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(e.retriable && retry_ms > 0 && retry_ms <= INVITATION_STEP_US / 1000 + 1);
    now.us += retry_ms * 1000;
    cr_assert_eq(invitation_decide(&i, "i", true, now, &retry_ms, &e), HEDDLE_OK, "when it said");
    unsigned count = 0;
    for (unsigned n = 0; n < 1000; n++, now.us += 1000)
        count += invitation_decide(&i, "i", true, now, &retry_ms, &e) == HEDDLE_OK;
    cr_assert(count >= 63 && count <= 65, "64 a second, not %u", count);
    now.us += 3600ull * S;
    for (unsigned n = 0; n < INVITATION_BURST; n++)
        cr_assert_eq(invitation_decide(&i, "i", true, now, &retry_ms, &e), HEDDLE_OK);
    cr_assert(invitation_decide(&i, "i", true, now, &retry_ms, &e), "an hour saves up no more than a burst");
}
