/* SPDX-License-Identifier: Apache-2.0 */
/* Full weights: several files are one version, under no rules of PEFT's; and what tells the kinds apart. */
#include "core/limits.h"
#include "formats/peft.h"
#include "tests/lib/bytes_equal.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64], first[96], second[96];

static void put(const char *path, const char *header, const char *data, size_t bytes)
{
    uint8_t length[8];
    le64_put(length, strlen(header));
    FILE *f = fopen(path, "w");
    fwrite(length, 1, sizeof length, f);
    fwrite(header, 1, strlen(header), f);
    fwrite(data, 1, bytes, f);
    cr_assert_eq(fclose(f), 0);
}

#define ROW(name, dtype, shape, from, to)                                                                    \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"

static void setup(void)
{
    strcpy(root, "/tmp/heddle-kind-XXXXXX");
    cr_assert(mkdtemp(root) != NULL);
    snprintf(first, sizeof first, "%s/model-1.safetensors", root);
    snprintf(second, sizeof second, "%s/model-2.safetensors", root);
    put(first,
        "{\"__metadata__\":{\"format\":\"pt\"}," ROW("m.b", "F32", "[1,2]", "0",
                                                     "8") "," ROW("m.d", "U8", "[3]", "8", "11") "}",
        "\0\0\200\77\0\0\0\100abc", 11);
    put(second, "{" ROW("m.a", "F16", "[2]", "0", "4") "," ROW("m.c", "F32", "[]", "4", "8") "}",
        "\1\2\3\4\5\6\7\10", 8);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}
static void teardown(void) { nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS); }
TestSuite(kind, .init = setup, .fini = teardown, .timeout = 60);

/* Computed by tests/independent/digest.py, which shares no code with Heddle. */
static const char DIGEST[] = "h1:0c35516d3965201e6320e51259b2c839a184fb99b52ec70cf6ee0e1e5d446a5e";

static heddle_adapter_info_t digest_of(const char *const *files)
{
    heddle_error_t e;
    heddle_adapter_info_t info;
    cr_assert_eq(peft_digest_files(files, &info, &e), HEDDLE_OK, "%s", e.message);
    return info;
}

Test(kind, files_are_one_version_in_any_order)
{
    const char *const one[] = {first, second, NULL}, *const other[] = {second, first, NULL};
    heddle_adapter_info_t info = digest_of(one);
    cr_assert_str_eq(info.kind, "tensors");
    cr_assert_str_eq(info.digest, DIGEST);
    cr_assert_str_eq(info.features, "");
    cr_assert_eq(info.tensor_count, 4);
    cr_assert_eq(info.data_bytes, 19);
    cr_assert_str_eq(digest_of(other).digest, DIGEST);
}

/* As a publisher and a worker have it: into memory, a manifest, and out as one file. */
Test(kind, what_is_written_is_the_same_version)
{
    const char *const files[] = {first, second, NULL};
    heddle_error_t e;
    peft_dir_t *d;
    uint32_t count;
    layout_t layout;
    uint8_t payload[4 * LIMIT_PAGE_BYTES];
    uint64_t leaves[4];
    cr_assert_eq(peft_open_files(files, &d, &e), HEDDLE_OK, "%s", e.message);
    const heddle_tensor_t *tensors = peft_tensors(d, &count);
    cr_assert_eq(layout_make(tensors, count, &layout, &e), HEDDLE_OK);
    cr_assert_eq(layout.payload_bytes, sizeof payload);
    cr_assert_eq(peft_read(d, &(peft_sink_t){.base = payload, .leaves = leaves}, layout.places, &e),
                 HEDDLE_OK);
    manifest_input_t in = {.tensors = tensors,
                           .layout = &layout,
                           .config = peft_config(d),
                           .metadata = peft_metadata(d),
                           .kind = peft_kind(d)->name,
                           .features = peft_features(d),
                           .payload = payload};
    buf_t encoded = {0};
    digest_t h1;
    manifest_t m;
    char text[HEDDLE_DIGEST_TEXT];
    cr_assert_eq(manifest_build(&in, &encoded, &h1), HEDDLE_OK);
    digest_text(&h1, text);
    cr_assert_str_eq(text, DIGEST);
    cr_assert_eq(manifest_decode(buf_view(&encoded), &m, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(m.kind, "tensors");

    char out[96], path[128];
    snprintf(out, sizeof out, "%s/out", root);
    cr_assert_eq(mkdir(out, 0755), 0);
    int fd = open(out, O_RDONLY | O_DIRECTORY);
    cr_assert_eq(peft_write(fd, &m, payload, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(faccessat(fd, "adapter_config.json", F_OK, 0), -1);
    close(fd);
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    cr_assert_str_eq(digest_of((const char *const[]){path, NULL}).digest, DIGEST);
    heddle_adapter_info_t info; /* of the directory */
    cr_assert_eq(peft_digest(out, &info, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(info.digest, DIGEST);
    manifest_fini(&m);
    buf_fini(&encoded);
    layout_fini(&layout);
    peft_close(&d);
}

static void refused(const char *const *files, int code, const char *message, const char *hint)
{
    heddle_adapter_info_t info;
    heddle_error_t e = {0};
    cr_assert_eq(peft_digest_files(files, &info, &e), code, "%s: %s", message, e.message);
    cr_assert(strstr(e.message, message), "'%s' in '%s'", message, e.message);
    cr_assert(e.hint[0] && strstr(e.hint, hint), "'%s' in '%s'", hint, e.hint);
    cr_assert(e.expected[0] && e.found[0]);
}

Test(kind, files_that_are_no_weights_are_refused)
{
    refused((const char *const[]){first, first, NULL}, HEDDLE_ERR_BAD_ADAPTER, "m.b", "");
    refused((const char *const[]){NULL}, HEDDLE_ERR_USAGE, "no file", "each file");
    refused((const char *const[]){first, "/nowhere/x.safetensors", NULL}, HEDDLE_ERR_NOT_FOUND,
            "/nowhere/x.safetensors", "path");
    refused((const char *const[]){root, NULL}, HEDDLE_ERR_BAD_ADAPTER, root, "safetensors files themselves");
}

/* A LoRA in the same files is weights, if they are published as such. */
Test(kind, names_follow_no_rules)
{
    put(first, "{" ROW("lora_A", "U8", "[3]", "0", "3") "}", "abc", 3);
    cr_assert_eq(digest_of((const char *const[]){first, NULL}).tensor_count, 1);
}

Test(kind, each_has_a_config_of_its_own)
{
    char features[192], base[256];
    heddle_error_t e = {0};
    heddle_tensor_t t = {.name = "x"};
    bytes_t lora = bytes_of("{\"peft_type\":\"LORA\"}", 20);
    cr_assert_eq(KIND_TENSORS.check(bytes_of("{}", 2), &t, 1, features, base, &e), HEDDLE_OK);
    cr_assert_str_eq(features, "");
    cr_assert_str_eq(base, "");
    cr_assert_eq(KIND_TENSORS.check(lora, &t, 1, features, base, &e), HEDDLE_ERR_BAD_ADAPTER);
    cr_assert(e.expected[0] && e.found[0] && e.hint[0]);
    cr_assert(kind_has_config("lora", lora) && !kind_has_config("lora", bytes_of("{}", 2)));
    cr_assert(kind_has_config("tensors", bytes_of("{}", 2)) && !kind_has_config("tensors", lora));
    cr_assert(!kind_has_config("later", bytes_of("{}", 2)));
}

/* Otherwise a version of one kind could have the digest of one of the other. */
Test(kind, a_manifest_has_the_config_of_its_kind)
{
    static const struct {
        const char *kind, *config;
        int code;
    } CASES[] = {{"tensors", "{}", HEDDLE_OK},
                 {"tensors", "{\"r\":1}", HEDDLE_ERR_PROTOCOL},
                 {"lora", "{}", HEDDLE_ERR_PROTOCOL},
                 {"later", "{}", HEDDLE_ERR_PROTOCOL},
                 {"later", "{\"r\":1}", HEDDLE_OK}};
    const uint64_t dims[] = {4};
    heddle_tensor_t t = {.size = sizeof t, .name = "x", .dtype = HEDDLE_DTYPE_U8, .ndim = 1, .dims = dims};
    uint8_t payload[LIMIT_PAGE_BYTES] = {0};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        layout_t layout;
        buf_t encoded = {0};
        digest_t h1;
        manifest_t m;
        heddle_error_t e = {0};
        cr_assert_eq(layout_make(&t, 1, &layout, &e), HEDDLE_OK);
        manifest_input_t in = {.tensors = &t,
                               .layout = &layout,
                               .config = bytes_of(CASES[i].config, strlen(CASES[i].config)),
                               .kind = CASES[i].kind,
                               .features = "",
                               .payload = payload};
        cr_assert_eq(manifest_build(&in, &encoded, &h1), HEDDLE_OK);
        int rc = manifest_decode(buf_view(&encoded), &m, &e);
        cr_assert_eq(rc, CASES[i].code, "%s %s: %s", CASES[i].kind, CASES[i].config, e.message);
        if (!rc) manifest_fini(&m);
        buf_fini(&encoded);
        layout_fini(&layout);
    }
}

Test(kind, names)
{
    heddle_error_t e = {0};
    cr_assert_eq(kind_find(NULL), &KIND_LORA);
    cr_assert_eq(kind_find(""), &KIND_LORA);
    cr_assert_eq(kind_find("lora"), &KIND_LORA);
    cr_assert_eq(kind_find("tensors"), &KIND_TENSORS);
    cr_assert_null(kind_find("Tensors"));
    cr_assert_eq(kind_refuse("x", &e), HEDDLE_ERR_USAGE);
    cr_assert_str_eq(e.found, "x");
    cr_assert_str_eq(kind_said("lora"), "");
    cr_assert_str_eq(kind_said("tensors"), "tensors");
    cr_assert_str_eq(kind_name(""), "lora");
}
