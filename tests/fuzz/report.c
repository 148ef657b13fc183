/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of reports: msgpack -> JSON -> msgpack -> the same JSON. */
#include "proto/value.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heddle_error_t error;
    json_t *value = NULL, *again = NULL;
    int rc = value_decode(bytes_of(data, size), &value, &error);
    if (rc) {
        MUST((rc == HEDDLE_ERR_PROTOCOL || rc == HEDDLE_ERR_LIMIT) && error.code == rc && error.message[0]);
        return 0;
    }
    buf_t body = {0};
    MUST(value_encode(value, &body) == HEDDLE_OK);
    MUST(value_decode(buf_view(&body), &again, &error) == HEDDLE_OK && json_equal(value, again));
    json_decref(value);
    json_decref(again);
    buf_fini(&body);
    return 0;
}
