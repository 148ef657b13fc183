/* SPDX-License-Identifier: Apache-2.0 */
/* The public check of an adapter: what it gives, and where it leaves the reason of a failure. */
#include <heddle/adapter.h>
#include "tests/unit/captured.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *fixture(const char *name)
{
    static char path[500];
    const char *source = getenv("HEDDLE_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/%s", source ? source : ".", name);
    return path;
}

Test(adapter, tells_what_is_there)
{
    heddle_adapter_info_t info = {.size = sizeof info};
    cr_assert_eq(heddle_adapter_check(fixture("dora"), &info), HEDDLE_OK, "%s", heddle_last_error()->message);
    cr_assert_eq(info.size, sizeof info);
    cr_assert_eq(strncmp(info.digest, "h1:", 3), 0);
    cr_assert_eq(strlen(info.digest), HEDDLE_DIGEST_TEXT - 1);
    cr_assert_str_eq(info.kind, "lora");
    cr_assert_str_eq(info.features, "dora");
    cr_assert(info.tensor_count > 0 && info.data_bytes > 0 && info.chunk_count == 1 &&
              info.chunk_bytes == 65536);
}

/* Computed by tests/independent/digest.py, which shares no code with Heddle. */
Test(adapter, digests_of_what_peft_saved)
{
    static const struct {
        const char *name, *digest;
    } KNOWN[] = {
        {"bf16", "h1:a55ed0bff2eb3a88f0332fcc670716104f4585c38861c839133433f262dd5bd5"},
        {"dora", "h1:8aba44c0f9293cd9c92d7170d2d12bc574b25058bddd5c45fb5e4581de077ce2"},
        {"embeddings", "h1:bcef0e9058465b155a538f34587ff90b3f559492d0c6a674f6599a103b393126"},
        {"modules_to_save", "h1:86254a43dae1a200ad15bb02ab6332e90e9c7e4309e7aa014eb4e8b68a8a1af8"},
        {"plain", "h1:1c037d8c8df5d1e34cfc97911cf7e5cbbd6042a262f09d551abe9601537461fc"},
        {"rank_pattern", "h1:450fd75eaa161ae655f964264d0f0a4fd34cc3666855825c5399dfc741b85f4d"},
        {"rslora", "h1:2f32d348b1ac595cb943c356f77df605420fb85b262fcdd1baac2cb28b2fa321"},
    };
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        heddle_adapter_info_t info = {.size = sizeof info};
        cr_assert_eq(heddle_adapter_check(fixture(KNOWN[i].name), &info), HEDDLE_OK, "%s",
                     heddle_last_error()->message);
        cr_assert_str_eq(info.digest, KNOWN[i].digest, "%s", KNOWN[i].name);
    }
}

Test(adapter, writes_no_more_than_the_callers_size)
{
    heddle_adapter_info_t info;
    memset(&info, 0x5a, sizeof info);
    info.size =
        offsetof(heddle_adapter_info_t, features); /* a program built before the later fields were there */
    cr_assert_eq(heddle_adapter_check(fixture("dora"), &info), HEDDLE_OK, "%s", heddle_last_error()->message);
    cr_assert_str_eq(info.kind, "lora");
    cr_assert_eq(info.features[0], 0x5a);
    cr_assert_eq(info.size, offsetof(heddle_adapter_info_t, features));
}

Test(adapter, failures_are_published)
{
    heddle_adapter_info_t info = {.size = sizeof info, .kind = "before"};
    cr_assert_eq(heddle_adapter_check("/proc/nonexistent/policy", &info), HEDDLE_ERR_NOT_FOUND);
    const heddle_error_t *e = heddle_last_error();
    cr_assert_eq(e->code, HEDDLE_ERR_NOT_FOUND);
    cr_assert_str_eq(e->phase, "pack");
    cr_assert(strstr(e->message, "/proc/nonexistent/policy") && e->expected[0] && e->found[0] && e->hint[0]);
    cr_assert_str_eq(info.kind, "before");
    cr_assert_eq(heddle_adapter_check(fixture(""), &info), HEDDLE_ERR_BAD_ADAPTER);
    cr_assert(strstr(heddle_last_error()->hint, "did you mean"));
}

Test(adapter, wrong_calls_are_usage_errors)
{
    heddle_adapter_info_t info = {.size = sizeof info};
    cr_assert_eq(heddle_adapter_check(NULL, &info), HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_adapter_check("x", NULL), HEDDLE_ERR_USAGE);
    cr_assert(heddle_last_error()->hint[0]);
}

/* What publish warns of, the check before it warns of too. */
Test(adapter, half_of_a_pair_is_warned_of)
{
    static const char
        CONFIG[] = "{\"peft_type\": \"LORA\", \"r\": 1}",
        TABLE[] = "{\"m.q.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}";
    char dir[] = "/tmp/heddle-half.XXXXXX", config[64], model[64];
    heddle_adapter_info_t info = {.size = sizeof info};
    cr_assert_not_null(mkdtemp(dir));
    snprintf(config, sizeof config, "%s/adapter_config.json", dir);
    snprintf(model, sizeof model, "%s/adapter_model.safetensors", dir);
    FILE *f = fopen(config, "w");
    fputs(CONFIG, f);
    fclose(f);
    f = fopen(model, "w");
    fwrite(&(uint64_t){sizeof TABLE - 1}, 8, 1, f);
    fputs(TABLE, f);
    fwrite(&(float){1}, 4, 1, f);
    fclose(f);
    captured_t c = captured_begin();
    int rc = heddle_adapter_check(dir, &info);
    const char *log = captured_end(&c);
    cr_assert_eq(rc, HEDDLE_OK, "%s", heddle_last_error()->message);
    cr_assert(strstr(log, "'m.q.lora_A.weight' has no 'm.q.lora_B.weight' beside it"), "%s", log);
    unlink(config), unlink(model), rmdir(dir);
}
