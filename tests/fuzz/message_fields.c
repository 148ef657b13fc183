/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages from the other side: a struct with anything in it.  What is encoded can be decoded,
 * and means the same. */
#include "tests/lib/bytes_equal.h"
#include "tests/fuzz/fields.h"

static const char *const NAMES[] = {"policy", "w-1", "tenant.42", "", "../x"};
static const char *const TEXTS[] = {"", "fetch", "no_slot", "\xc3\xa9", "\xff\xfe"};
static const words_t WORDS = {NAMES, TEXTS, 5, 5};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    heddle_error_t error;
    msg_t m = fields_message(&in, &WORDS), again;
    buf_t once = {0}, twice = {0};
    int rc = msg_encode(&m, &once);
    MUST(rc == HEDDLE_OK || rc == HEDDLE_ERR_LIMIT || rc == HEDDLE_ERR_PROTOCOL);
    MUST(rc == HEDDLE_OK || once.bytes == 0);
    if (rc == HEDDLE_OK) {
        MUST(msg_decode(buf_view(&once), &again, &error) == HEDDLE_OK && again.type == m.type);
        MUST(msg_encode(&again, &twice) == HEDDLE_OK && bytes_equal(buf_view(&once), buf_view(&twice)));
        msg_fini(&again);
    }
    msg_fini(&m);
    buf_fini(&once);
    buf_fini(&twice);
    return 0;
}
