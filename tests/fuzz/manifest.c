/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest as a peer sends it.  What is decoded can be read to its end, written as a safetensors file,
 * and built again. */
#include "tests/fuzz/tables.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    heddle_error_t error = {0};
    manifest_t m;
    int rc = manifest_decode(bytes_of(data, size), &m, &error);
    if (rc) {
        MUST((rc == HEDDLE_ERR_PROTOCOL || rc == HEDDLE_ERR_LIMIT) && error.code == rc && error.message[0]);
        return 0;
    }
    tables_read(&m);
    tables_write(&m);
    manifest_fini(&m);
    return 0;
}
