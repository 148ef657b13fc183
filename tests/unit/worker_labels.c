/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/labels.h"

#include "core/limits.h"

#include <criterion/criterion.h>
#include <stdio.h>

static char **labels;
static heddle_error_t error;

static void stop(void)
{
    labels_free(labels);
    labels = NULL;
}
TestSuite(labels, .fini = stop);

static int gather(const char *const *options, char *const *environment)
{
    stop();
    return labels_gather(options, environment, &labels, &error);
}

Test(labels, an_option_beats_the_environment)
{
    const char *const options[] = {"node=a", "zone=z", NULL};
    char *const environment[] = {"HOME=/root",           "HEDDLE_LABEL_NODE=b", "HEDDLE_LABEL_POD=p-0",
                                 "HEDDLE_LABEL_NODES=c", "HEDDLE_LABEL_IP=",    NULL};
    cr_assert_eq(gather(options, environment), HEDDLE_OK);
    cr_assert_str_eq(labels[0], "node=a");
    cr_assert_str_eq(labels[1], "zone=z");
    cr_assert_str_eq(labels[2], "pod=p-0");
    cr_assert_str_eq(labels[3], "nodes=c");
    cr_assert_null(labels[4], "a variable without a value is no label");
}

Test(labels, there_may_be_none)
{
    cr_assert_eq(gather(NULL, NULL), HEDDLE_OK);
    cr_assert_null(labels[0]);
}

Test(labels, a_bad_one_names_its_variable)
{
    char *const environment[] = {"HEDDLE_LABEL_A B=c", NULL};
    cr_assert_neq(gather(NULL, environment), HEDDLE_OK);
    cr_assert_not_null(strstr(error.hint, "HEDDLE_LABEL_A B"), "%s", error.hint);
}

Test(labels, they_are_limited_together)
{
    char texts[LIMIT_LABELS + 1][40];
    char *environment[LIMIT_LABELS + 2] = {NULL};
    for (size_t i = 0; i <= LIMIT_LABELS; i++) {
        snprintf(texts[i], sizeof texts[i], "HEDDLE_LABEL_K%zu=v", i);
        environment[i] = texts[i];
    }
    cr_assert_eq(gather(NULL, environment), HEDDLE_ERR_USAGE);
    environment[LIMIT_LABELS] = NULL;
    cr_assert_eq(gather(NULL, environment), HEDDLE_OK);
    const char *const option[] = {"one=more", NULL};
    cr_assert_eq(gather(option, environment), HEDDLE_ERR_USAGE);
}
