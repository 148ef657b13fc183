/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the bulk plane.  A frame has one form: what is decoded is encoded to the same
 * bytes. */
#include "tests/fuzz/fuzz.h"
#include "transfer/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    frame_t f;
    uint8_t out[FRAME_MAX];
    if (!frame_decode(bytes_of(data, size), &f)) return 0;
    MUST(size <= sizeof out && (f.kind == FRAME_HI || size <= FRAME_SMALL_MAX));
    MUST(frame_encode(&f, out) == size && !memcmp(out, data, size));
    return 0;
}
