/* SPDX-License-Identifier: Apache-2.0 */
/* Who is to blame where a directory is not what the registry says: who said nothing is no witness. */
#include "cli/agreement.h"

#include <criterion/criterion.h>
#include <string.h>

#define DIR "h1:dd"
#define REGISTRY "h1:aa"

/* A letter each: d has DIR's bytes, a the registry's, x others, s said nothing. */
static const char *hint_of(const char *workers, long long version)
{
    static heddle_error_t error;
    json_t *list = json_array(), *answer;
    for (const char *c = workers; *c; c++) {
        const char *digest = *c == 'd' ? DIR : *c == 'a' ? REGISTRY : *c == 'x' ? "h1:xx" : NULL;
        char name[] = {'w', (char)('1' + (c - workers)), 0};
        json_array_append_new(list, json_pack("{s:s, s:s?}", "worker", name, "digest", digest));
    }
    answer = json_pack("{s:o}", "workers", list);
    error = (heddle_error_t){0};
    agreement_t h = agreement_of(answer, DIR, REGISTRY);
    agreement_hint(&h, "policy", version, &error);
    json_decref(answer);
    return error.hint;
}

Test(agreement, the_registry_differs_where_all_say_so)
{
    cr_assert(strstr(hint_of("ddd", 0), "every worker has that is listed (3): the registry is what differs"));
}

Test(agreement, who_is_silent_is_no_witness)
{
    const char *hint = hint_of("dss", 0);
    cr_assert(strstr(hint, "every worker that answered has (1 of 3)"), "%s", hint);
    cr_assert(!strstr(hint, "the registry is what differs"), "%s", hint);
}

Test(agreement, who_has_other_bytes_is_named)
{
    cr_assert(strstr(hint_of("dxs", 0), "w2: end that worker"));
    cr_assert(strstr(hint_of("x", 3), "w1: end that worker"));
}

Test(agreement, else_it_is_another_version_or_none)
{
    cr_assert(strstr(hint_of("aad", 2), "it is policy@2"));
    cr_assert(strstr(hint_of("da", 0), "not a version of policy"));
    cr_assert(strstr(hint_of("ss", 0), "not a version of policy"));
    agreement_t none = agreement_of(NULL, DIR, REGISTRY);
    cr_assert(!none.listed_count && !none.other);
}
