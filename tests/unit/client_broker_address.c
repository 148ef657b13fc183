/* SPDX-License-Identifier: Apache-2.0 */
/* Why no broker answered: each reason has its own remedy. */
#include "client/broker_address.h"

#include "core/errors.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static heddle_error_t e;
static char home[] = "/tmp/heddle-unit-XXXXXX"; /* without a key ring that knows another broker */

static void setup(void)
{
    cr_assert(mkdtemp(home));
    setenv("XDG_CONFIG_HOME", home, 1);
    unsetenv("HEDDLE_KEYS");
    error_fail(&e, HEDDLE_ERR_UNAVAILABLE, "no answer");
}

static void teardown(void) { cr_assert_eq(rmdir(home), 0); }

TestSuite(broker_address, .init = setup, .fini = teardown);

Test(broker_address, silence_is_told_from_no_connection)
{
    broker_address_unreached("tcp://127.0.0.1:1", NULL, true, "start one", &e);
    cr_assert_str_eq(e.found, "a connection, but no answer");
    cr_assert(strstr(e.hint, "slow to answer"), "%s", e.hint);
    broker_address_unreached("tcp://127.0.0.1:1", NULL, false, "start one", &e);
    cr_assert_str_eq(e.found, "no connection");
    cr_assert_str_eq(e.hint, "start one");
}

/* A part of a name may have 63 characters: this name is refused without a question to any server. */
#define LONG_PART "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

Test(broker_address, a_host_without_an_address_is_named)
{
    broker_address_unreached("tcp://127.0.0.1:1,tcp://" LONG_PART ":7700", NULL, false, "start one", &e);
    cr_assert(strstr(e.found, "no connection: " LONG_PART " has no address ("), "%s", e.found);
    cr_assert(strstr(e.hint, "check the name of the host"), "%s", e.hint);
    broker_address_unreached("tcp://10.255.255.1:7700", NULL, false, "start one", &e);
    cr_assert_str_eq(e.found, "no connection", "an address needs no name");
}

Test(broker_address, of_a_list_what_was_not_tried_is_named)
{
    static const char LIST[] = "tcp://10.255.255.1:7700,tcp://10.255.255.2:7700";
    broker_address_unreached(LIST, strchr(LIST, ',') + 1, false, "start one", &e);
    cr_assert_str_eq(e.found, "no connection; tcp://10.255.255.2:7700 was not tried in that time");
    broker_address_unreached(LIST, NULL, false, "start one", &e);
    cr_assert_str_eq(e.found, "no connection; each of them was tried");
    broker_address_unreached(LIST, NULL, true, "start one", &e);
    cr_assert_str_eq(e.found, "a connection, but no answer; each of them was tried");
}
