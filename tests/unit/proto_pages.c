/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of one answer, put together. */
#include "proto/pages.h"

#include <criterion/criterion.h>

Test(pages, those_that_do_not_fit_are_refused)
{
    static const char *const ROWS[][3] = {
        {"{\"adapters\":[1]}", "{\"adapters\":{}}", ""},
        {"{\"events\":0}", "{\"events\":[1]}", ""},
        {"{\"versions\":[{\"workers\":[]}]}", "{\"versions\":[]}", "inside"},
        {"{}", "{}", "inside"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        json_t *into = json_loads(ROWS[i][0], 0, NULL), *page = json_loads(ROWS[i][1], 0, NULL);
        cr_expect_eq(pages_append(into, page, ROWS[i][2][0] != 0, NULL), HEDDLE_ERR_PROTOCOL, "%s",
                     ROWS[i][1]);
        json_decref(into);
        json_decref(page);
    }
}

Test(pages, lists_grow_and_the_rest_is_the_latest)
{
    json_t *into = json_loads("{\"next\":1,\"workers\":[1],\"count\":{\"a\":1}}", 0, NULL);
    json_t *page = json_loads("{\"next\":2,\"workers\":[2,3],\"count\":{\"a\":2}}", 0, NULL);
    json_t *whole = json_loads("{\"next\":2,\"workers\":[1,2,3],\"count\":{\"a\":2}}", 0, NULL);
    cr_expect_eq(pages_append(into, page, false, NULL), HEDDLE_OK);
    cr_expect(json_equal(into, whole));
    json_decref(into);
    json_decref(page);
    json_decref(whole);
}
