/* SPDX-License-Identifier: Apache-2.0 */
/* The invitation of a command line: its secret does not stay there, and it does not mix with another broker. */
#include "core/errors.h"
#include "core/join_argument.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static heddle_error_t error;
static char apart[] = "heddle-join-1:SECRET", joined[] = "--join=heddle-join-1:SECRET", file[] = "@join.txt";
static char *argv[] = {"heddle", "doctor", "--join", apart, joined, file, NULL};

static int take(join_argument_t *values) { return join_argument_take(values, 6, argv, &error); }

static void init(void)
{
    unsetenv("HEDDLE_JOIN");
    unsetenv("HEDDLE_BROKER");
}
TestSuite(join_argument, .init = init);

Test(join_argument, none_is_none)
{
    join_argument_t values = {.broker = "tcp://b:1"};
    cr_assert_eq(take(&values), HEDDLE_OK);
    cr_assert_null(values.join);
    cr_assert_str_eq(values.broker, "tcp://b:1");
}

Test(join_argument, the_secret_is_overwritten)
{
    join_argument_t values = {.join = apart};
    cr_assert_eq(take(&values), HEDDLE_OK);
    cr_assert_str_eq(values.join, "heddle-join-1:SECRET");
    cr_assert_str_eq(apart, "xxxxxxxxxxxxxxxxxxxx");
    values.join = strchr(joined, '=') + 1;
    cr_assert_eq(take(&values), HEDDLE_OK);
    cr_assert_str_eq(values.join, "heddle-join-1:SECRET");
    cr_assert_str_eq(joined, "--join=xxxxxxxxxxxxxxxxxxxx");
    values.join = file;
    cr_assert_eq(take(&values), HEDDLE_OK);
    cr_assert_str_eq(file, "@join.txt", "a name is no secret");
}

Test(join_argument, the_variable_is_wiped)
{
    setenv("HEDDLE_JOIN", "heddle-join-1:SECRET", 1);
    char *lies = getenv("HEDDLE_JOIN");
    join_argument_t values = {.join = lies};
    cr_assert_eq(take(&values), HEDDLE_OK);
    cr_assert_str_eq(values.join, "heddle-join-1:SECRET");
    cr_assert_null(getenv("HEDDLE_JOIN"));
}

Test(join_argument, another_broker_is_refused_or_comes_before_the_variable)
{
    join_argument_t each[] = {{.broker = "tcp://b:1"}, {.broker_key = "K"}, {.context = "prod"}};
    for (size_t i = 0; i < 3; i++) {
        join_argument_t values = each[i];
        values.join = file;
        cr_assert_eq(take(&values), HEDDLE_ERR_USAGE);
        cr_assert(strstr(error.message, "--join names the broker"), "%s", error.message);
        setenv("HEDDLE_JOIN", "@other.txt", 1);
        values = each[i];
        values.join = getenv("HEDDLE_JOIN");
        cr_assert_eq(take(&values), HEDDLE_OK);
        cr_assert_null(values.join, "an option holds, and not a variable");
    }
    setenv("HEDDLE_BROKER", "tcp://b:1", 1);
    join_argument_t values = {.join = file, .broker = "tcp://b:1"};
    cr_assert_eq(take(&values), HEDDLE_OK);
    cr_assert_str_eq(values.join, "@join.txt", "of variables it is the other way round");
}
