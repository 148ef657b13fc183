/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 unused | rows |: rows that somebody else wrote are read, written and read again; what the
 * registry and the table of keys take of them stands in order, and can be taken a second time. */
#include "broker/keys/auth.h"
#include "tests/fuzz/rows.h"

static void check_registry(const registry_t *r)
{
    for (size_t i = 0; i < r->adapter_count; i++) {
        const adapter_row_t *a = r->adapters[i];
        MUST(registry_adapter(r, a->name) == a);
        MUST(i == 0 || strcmp(r->adapters[i - 1]->name, a->name) < 0);
        for (size_t k = 0; k < a->version_count; k++) {
            MUST(registry_version(a, a->versions[k]->version) == a->versions[k]);
            MUST(a->versions[k]->version <= a->last_version);
        }
        if (a->decision) MUST(a->active <= a->last_version);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    registry_t registry;
    auth_t auth = {0};
    record_t record;
    input_byte(&in);
    R = (struct rig){0};
    registry_init(&registry);
    for (uint64_t n = 0; in.left && n < ROWS_MAX; n++) {
        if (!take_row(&in, n, &record)) continue;
        if (record.kind == RECORD_KEY) auth_apply(&auth, &record);
        else if (registry_apply(&registry, &record) == HEDDLE_OK)
            MUST(registry_apply(&registry, &record) == HEDDLE_OK);
    }
    check_registry(&registry);
    auth_fini(&auth);
    registry_fini(&registry);
    arena_fini(&R.texts);
    return 0;
}
