/* SPDX-License-Identifier: Apache-2.0 */
#include "core/listing.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char *list_of(listing_t list, uint32_t count, const char *name)
{
    memset(list.text, 'x', list.size);
    for (uint32_t i = 1; i <= count; i++) listing_add(&list, "%s%u", name, i);
    return listing_text(&list);
}

Test(listing, the_first_items_are_shown_and_the_others_counted)
{
    static const struct {
        uint32_t count;
        const char *text;
    } ROW[] = {
        {0, ""}, {1, "w1"}, {3, "w1, w2, w3"}, {4, "w1, w2, w3 and 1 other"}, {9, "w1, w2, w3 and 6 others"},
    };
    char text[64];
    for (size_t i = 0; i < sizeof ROW / sizeof *ROW; i++)
        cr_assert_str_eq(
            list_of((listing_t){.text = text, .size = sizeof text, .most = 3}, ROW[i].count, "w"),
            ROW[i].text);
}

/* Whatever the size: the list ends within it, has whole items only, and counts the rest. */
Test(listing, an_item_that_does_not_fit_is_counted)
{
    char text[160];
    uint32_t shown_before = 0;
    for (uint32_t size = 24; size <= sizeof text; size++) {
        const char *got = list_of((listing_t){.text = text, .size = size}, 9, "worker-");
        const char *rest = strstr(got, " and ");
        uint32_t shown = 0;
        for (const char *at = got; (at = strstr(at, "worker-")); at++) shown++;
        unsigned long others = strtoul(rest ? rest + 5 : shown ? "0" : got, NULL, 10);
        cr_assert_lt(strlen(got), size);
        cr_assert_eq(shown + others, 9, "size %u: %s", size, got);
        cr_assert_geq(shown, shown_before, "size %u: %s", size, got);
        shown_before = shown;
    }
    cr_assert_eq(shown_before, 9, "%s", text);
}

Test(listing, items_stand_apart_by_what_is_asked_for)
{
    char text[64];
    cr_assert_str_eq(list_of((listing_t){.text = text, .size = sizeof text, .between = "; "}, 3, "n"),
                     "n1; n2; n3");
}
