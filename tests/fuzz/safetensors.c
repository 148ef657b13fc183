/* SPDX-License-Identifier: Apache-2.0 */
/* | u64 bytes of tensors | header |: the header of a safetensors file.  What is read can be laid out,
 * described by a manifest and written again. */
#include "tests/fuzz/tables.h"

static void check_table(const safetensors_t *t, uint64_t data_bytes)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        MUST(t->starts[i] == at && strlen(t->tensors[i].name) < (1u << 20));
        at += t->tensors[i].data_bytes;
    }
    MUST(at == data_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8) return 0;
    heddle_error_t error = {0};
    safetensors_t table;
    manifest_t m;
    buf_t built = {0};
    uint64_t data_bytes = le64_get(data);
    int rc = safetensors_parse(bytes_of(data + 8, size - 8), data_bytes, &table, &error);
    if (rc) {
        MUST((rc == HEDDLE_ERR_BAD_ADAPTER || rc == HEDDLE_ERR_LIMIT) && error.code == rc &&
             error.message[0]);
        return 0;
    }
    check_table(&table, data_bytes);
    if (tables_build(&table, NULL, &built)) {
        MUST(manifest_decode(buf_view(&built), &m, &error) == HEDDLE_OK);
        MUST(m.tensor_count == table.count && m.data_bytes == data_bytes);
        tables_write(&m);
        manifest_fini(&m);
    }
    buf_fini(&built);
    safetensors_fini(&table);
    return 0;
}
