/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages: a frame as it comes from a socket.  What is decoded can be encoded, in no more
 * bytes, and means the same. */
#include "tests/lib/bytes_equal.h"
#include "proto/msg.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heddle_error_t error = {0};
    msg_t m, again;
    int rc = msg_decode(bytes_of(data, size), &m, &error);
    if (rc) {
        MUST(rc == HEDDLE_ERR_PROTOCOL || rc == HEDDLE_ERR_LIMIT);
        MUST(error.code == rc && error.message[0]);
        return 0;
    }
    buf_t once = {0}, twice = {0};
    MUST(msg_encode(&m, &once) == HEDDLE_OK && once.bytes <= size);
    MUST(msg_decode(buf_view(&once), &again, &error) == HEDDLE_OK && again.type == m.type);
    MUST(msg_encode(&again, &twice) == HEDDLE_OK && bytes_equal(buf_view(&once), buf_view(&twice)));
    msg_fini(&again);
    msg_fini(&m);
    buf_fini(&once);
    buf_fini(&twice);
    return 0;
}
