/* SPDX-License-Identifier: Apache-2.0 */
/* PEFT directories: what is read comes out identical; every bad input is refused with what, where, expected, found, hint. */
#include "tests/lib/bytes_equal.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/stop.h"
#include "formats/peft.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONFIG "adapter_config.json"
#define MODEL "adapter_model.safetensors"

static const char GOOD_CONFIG[] = "{\"peft_type\": \"LORA\", \"r\": 1}";
static const char GOOD_HEADER[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"q.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_"
    "offsets\":[0,8]},"
    "\"q.lora_B.weight\":{\"dtype\":\"F16\",\"shape\":[3,1],\"data_offsets\":[8,14]}}     ";
static const char GOOD_DATA[] = "\0\0\x80\x3f\0\0\0\x40\0\x38\0\0\0\xbc";
#define GOOD_DIGEST "h1:277ae4c4cccdb03b9c7775ed2a667ef9d5c2dfba2dbc9f8044d93da5acd71e5c"

static char root[64], dir[80];

/* Every test has a directory of its own, and in it DIR, the adapter of docs/protocol.md. */
static void put(const char *name, const void *data, size_t bytes)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    cr_assert(f && fwrite(data, 1, bytes, f) == bytes && !fclose(f), "%s", path);
}
static void put_config(const char *text) { put(CONFIG, text, strlen(text)); }

static void put_model(const char *header, const void *data, size_t data_bytes)
{
    buf_t b = {0};
    le64_put(buf_grow(&b, 8), strlen(header));
    buf_add_text(&b, header);
    buf_add(&b, data, data_bytes);
    put(MODEL, b.data, b.bytes);
    buf_fini(&b);
}

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void fill(void)
{
    put_config(GOOD_CONFIG);
    put_model(GOOD_HEADER, GOOD_DATA, 14);
}

static void setup(void)
{
    strcpy(root, "/tmp/heddle-peft-XXXXXX");
    cr_assert(mkdtemp(root) != NULL);
    snprintf(dir, sizeof dir, "%s/policy", root);
    cr_assert_eq(mkdir(dir, 0755), 0);
    fill();
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}
static void teardown(void) { nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS); }
TestSuite(peft, .init = setup, .fini = teardown, .timeout = 60);

/* The whole directory is refused, and says so completely. */
static void refused_at(const char *path, int code, const char *message, const char *expected,
                       const char *found, const char *hint)
{
    heddle_adapter_info_t info;
    heddle_error_t e = {0};
    int rc = peft_digest(path, &info, &e);
    cr_assert_eq(rc, code, "%s: %s %s", message, heddle_err_name(rc), e.message);
    cr_assert_eq(e.code, code);
    cr_assert(strstr(e.message, message), "'%s' in '%s'", message, e.message);
    cr_assert(e.expected[0] && strstr(e.expected, expected), "'%s' in '%s'", expected, e.expected);
    cr_assert(e.found[0] && strstr(e.found, found), "'%s' in '%s'", found, e.found);
    cr_assert(e.hint[0] && strstr(e.hint, hint), "'%s' in '%s'", hint, e.hint);
}
static void refused(int code, const char *message, const char *expected, const char *found, const char *hint)
{
    refused_at(dir, code, message, expected, found, hint);
}
#define BAD HEDDLE_ERR_BAD_ADAPTER

/* An adapter in memory, as publish and a worker have it. */
typedef struct {
    peft_dir_t *peft;
    layout_t layout;
    uint8_t *payload;
    buf_t encoded;
    manifest_t manifest;
    digest_t h1;
} loaded_t;

enum { LEAVES_MAX = 8192 };

/* Into memory, and piece by piece: the same bytes, and the same leaves. */
typedef struct {
    peft_sink_t sink;
    uint8_t *payload;
} pieces_t;
static int put_piece(const peft_sink_t *sink, uint64_t at, const void *pages, size_t bytes,
                     heddle_error_t *error)
{
    (void)error;
    cr_assert_eq((at | bytes) % 4096, 0);
    memcpy(((const pieces_t *)(const void *)sink)->payload + at, pages, bytes);
    return HEDDLE_OK;
}
static void check_pieces(peft_dir_t *d, const layout_t *layout, const uint8_t *payload,
                         const uint64_t *leaves)
{
    uint64_t again[LEAVES_MAX];
    heddle_error_t e;
    pieces_t to = {{.put = put_piece, .leaves = again}, malloc(layout->payload_bytes)};
    memset(to.payload, 0x11, layout->payload_bytes);
    cr_assert_eq(peft_read(d, &to.sink, layout->places, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_arr_eq(to.payload, payload, layout->payload_bytes);
    cr_assert_arr_eq(again, leaves, layout->payload_bytes / 4096 * sizeof *again);
    free(to.payload);
}

static loaded_t load(const char *path)
{
    loaded_t a = {0};
    heddle_error_t e;
    uint32_t count;
    cr_assert_eq(peft_open(path, &a.peft, &e), HEDDLE_OK, "%s", e.message);
    const heddle_tensor_t *tensors = peft_tensors(a.peft, &count);
    cr_assert_eq(layout_make(tensors, count, &a.layout, &e), HEDDLE_OK, "%s", e.message);
    a.payload = malloc(a.layout.payload_bytes);
    memset(a.payload, 0xee, a.layout.payload_bytes);
    uint64_t leaves[LEAVES_MAX], looked[LEAVES_MAX];
    cr_assert_leq(a.layout.payload_bytes, sizeof leaves / sizeof *leaves * 4096);
    peft_sink_t to = {.base = a.payload, .leaves = leaves};
    cr_assert_eq(peft_read(a.peft, &to, a.layout.places, &e), HEDDLE_OK, "%s", e.message);
    digest_leaves(a.payload, a.layout.payload_bytes, looked);
    cr_assert_arr_eq(leaves, looked, a.layout.payload_bytes / 4096 * sizeof *leaves);
    check_pieces(a.peft, &a.layout, a.payload, leaves);
    manifest_input_t in = {
        tensors,  &a.layout, peft_config(a.peft), peft_metadata(a.peft), "lora", peft_features(a.peft),
        a.payload};
    cr_assert_eq(manifest_build(&in, &a.encoded, &a.h1), HEDDLE_OK);
    cr_assert_eq(manifest_decode(buf_view(&a.encoded), &a.manifest, &e), HEDDLE_OK, "%s", e.message);
    return a;
}

static void unload(loaded_t *a)
{
    peft_close(&a->peft);
    layout_fini(&a->layout);
    free(a->payload);
    manifest_fini(&a->manifest);
    buf_fini(&a->encoded);
}

static void same_file(const char *a_dir, const char *b_dir, const char *name)
{
    buf_t text[2] = {0};
    for (int i = 0; i < 2; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", i ? b_dir : a_dir, name);
        FILE *f = fopen(path, "r");
        cr_assert(f != NULL, "%s", path);
        for (int c; (c = getc(f)) != EOF;) buf_add(&text[i], &(char){(char)c}, 1);
        fclose(f);
    }
    cr_assert(bytes_equal(buf_view(&text[0]), buf_view(&text[1])), "%s of %s", name, a_dir);
    buf_fini(&text[0]);
    buf_fini(&text[1]);
}

/* Read, exported, compared; and the digest of the tools is that of the publisher. */
static void round_trip(const char *path)
{
    char out[100], text[HEDDLE_DIGEST_TEXT];
    snprintf(out, sizeof out, "%s/out", root);
    cr_assert_eq(mkdir(out, 0700), 0);
    loaded_t a = load(path);
    heddle_error_t e;
    heddle_adapter_info_t info;
    int fd = open(out, O_RDONLY | O_DIRECTORY);
    cr_assert_eq(peft_write(fd, &a.manifest, a.payload, &e), HEDDLE_OK, "%s", e.message);
    close(fd);
    same_file(path, out, CONFIG);
    same_file(path, out, MODEL);
    cr_assert_eq(peft_digest(out, &info, &e), HEDDLE_OK, "%s", e.message);
    digest_text(&a.h1, text);
    cr_assert_str_eq(info.digest, text);
    cr_assert_eq(info.tensor_count, a.manifest.tensor_count);
    cr_assert_eq(info.chunk_count, a.manifest.chunk_count);
    cr_assert_eq(info.chunk_bytes, a.manifest.chunk_bytes);
    cr_assert_eq(info.data_bytes, a.manifest.data_bytes);
    cr_assert_str_eq(info.features, a.manifest.features);
    unload(&a);
    nftw(out, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- what is good */

Test(peft, the_example_of_the_protocol_page)
{
    heddle_adapter_info_t info;
    heddle_error_t e;
    cr_assert_eq(peft_digest(dir, &info, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(info.digest, GOOD_DIGEST);
    cr_assert_str_eq(info.kind, "lora");
    cr_assert_str_eq(info.features, "");
    cr_assert_str_eq(info.base_model, "");
    cr_assert_eq(info.data_bytes, 14);
    cr_assert_eq(info.tensor_count, 2);
    cr_assert_eq(info.chunk_count, 1);
    round_trip(dir);
}

/* Adapters that PEFT itself saved: tests/fixtures holds them. */
Test(peft, what_peft_saved_comes_out_identical)
{
    char fixtures[400], path[700];
    const char *source = getenv("HEDDLE_SOURCE_DIR");
    snprintf(fixtures, sizeof fixtures, "%s/tests/fixtures", source ? source : ".");
    DIR *entries = opendir(fixtures);
    if (!entries) cr_skip_test("no fixtures in %s", fixtures);
    for (struct dirent *entry; (entry = readdir(entries));) {
        snprintf(path, sizeof path, "%s/%s/" MODEL, fixtures, entry->d_name);
        if (access(path, F_OK)) continue;
        path[strlen(path) - sizeof MODEL] = 0;
        round_trip(path);
    }
    closedir(entries);
}

Test(peft, tensors_come_in_the_order_of_their_data)
{
    put_model("{\"z.lora_B\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},\"a.lora_A\":{\"dtype\":"
              "\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},"
              "\"k.lora_A\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
              "\1\2\3", 3);
    loaded_t a = load(dir);
    uint32_t count;
    const heddle_tensor_t *t = peft_tensors(a.peft, &count);
    cr_assert_eq(count, 3);
    cr_assert_str_eq(t[0].name, "k.lora_A");
    cr_assert_str_eq(t[1].name, "z.lora_B");
    cr_assert_str_eq(t[2].name, "a.lora_A");
    cr_assert_eq(a.payload[0], 3);    /* a */
    cr_assert_eq(a.payload[4096], 1); /* k */
    cr_assert_eq(a.payload[8192], 2); /* z */
    cr_assert_eq(a.payload[1], 0);
    unload(&a);
}

Test(peft, digest_reads_large_tensors_in_pieces)
{
    size_t bytes = 3 * (256u << 10) + 5001;
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i * 31 >> 3);
    char header[200];
    snprintf(header, sizeof header,
             "{\"x.lora_A\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", bytes, bytes);
    put_model(header, data, bytes);
    free(data);
    loaded_t a = load(dir);
    heddle_adapter_info_t info;
    char text[HEDDLE_DIGEST_TEXT];
    cr_assert_eq(peft_digest(dir, &info, NULL), HEDDLE_OK);
    digest_text(&a.h1, text);
    cr_assert_str_eq(info.digest, text);
    cr_assert_eq(info.chunk_count, 13);
    unload(&a);
}

Test(peft, links_to_files_are_followed)
{
    char blob[100];
    snprintf(blob, sizeof blob, "%s/blob", root);
    cr_assert_eq(rename(path_of(MODEL), blob), 0);
    cr_assert_eq(symlink("../blob", path_of(MODEL)), 0);
    heddle_adapter_info_t info;
    heddle_error_t e;
    cr_assert_eq(peft_digest(dir, &info, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(info.digest, GOOD_DIGEST);
}

/* ---- configs */

static const char *features_of(const char *config, const char *tensor)
{
    static char features[192];
    char base[256];
    heddle_error_t e;
    heddle_tensor_t t[2] = {{.name = "q.lora_A.weight"}, {.name = tensor}};
    cr_assert_eq(peft_check(bytes_of(config, strlen(config)), t, 2, features, base, &e), HEDDLE_OK, "%s: %s",
                 config, e.message);
    return features;
}

Test(peft, features_are_told)
{
    static const struct {
        const char *fields, *tensor, *features;
    } CASES[] = {
        {"", "x", ""},
        {",\"use_dora\":true", "x", "dora"},
        {",\"use_dora\":false,\"use_rslora\":false,\"bias\":\"none\",\"modules_to_save\":null,\"rank_"
         "pattern\":{},\"alpha_pattern\":{},"
         "\"target_parameters\":null,\"lora_bias\":false",
         "x", ""},
        {"", "q.lora_magnitude_vector", "dora"},
        {",\"use_rslora\":true", "x", "rslora"},
        {",\"bias\":\"all\"", "x", "bias"},
        {",\"bias\":\"lora_only\"", "x", "bias"},
        {",\"lora_bias\":true", "x", "bias"},
        {",\"modules_to_save\":[\"lm_head\"]", "x", "modules_to_save"},
        {",\"modules_to_save\":[]", "x", ""},
        {",\"rank_pattern\":{\"q\":2}", "x", "rank_pattern"},
        {",\"alpha_pattern\":{\"q\":2}", "x", "rank_pattern"},
        {",\"target_parameters\":[\"experts.w\"]", "x", "target_parameters"},
        {"", "m.lora_embedding_A", "embeddings"},
        {"", "m.embed_tokens.weight", "embeddings"},
        {"", "m.token_adapter.trainable_tokens_delta", "embeddings"},
        {",\"init_lora_weights\":true", "x", ""},
        {",\"init_lora_weights\":false", "x", ""},
        {",\"init_lora_weights\":\"gaussian\"", "x", ""},
        {",\"init_lora_weights\":\"eva\"", "x", ""},
        {",\"init_lora_weights\":\"orthogonal\"", "x", ""},
        {",\"init_lora_weights\":\"lora_ga\"", "x", ""},
        {",\"init_lora_weights\":\"pissa\"", "x", "init_base"},
        {",\"init_lora_weights\":\"pissa_niter_16\"", "x", "init_base"},
        {",\"init_lora_weights\":\"OLoRA\"", "x", "init_base"},
        {",\"init_lora_weights\":\"corda\"", "x", "init_base"},
        {",\"init_lora_weights\":\"loftq\"", "x", "init_base"},
        {",\"alora_invocation_tokens\":[1,2]", "x", "alora"},
        {",\"layer_replication\":[[0,4],[2,5]]", "x", "layer_replication"},
        {",\"use_qalora\":true", "x", "qalora"},
        {",\"use_bdlora\":{\"nblocks\":2}", "x", "bdlora"},
        {",\"use_bdlora\":true", "x", "bdlora"},
        {",\"alora_invocation_tokens\":null,\"layer_replication\":null,\"use_qalora\":false,\"use_bdlora\":"
         "null,"
         "\"init_lora_weights\":null",
         "x", ""},
        {",\"alora_invocation_tokens\":[],\"layer_replication\":[]", "x", ""},
        {",\"use_dora\":true,\"use_rslora\":true,\"bias\":\"all\",\"modules_to_save\":[\"x\"],\"rank_"
         "pattern\":{\"q\":2},\"target_parameters\":[\"w\"],"
         "\"init_lora_weights\":\"pissa\",\"alora_invocation_tokens\":[1],\"layer_replication\":[[0,1]],"
         "\"use_qalora\":true,\"use_bdlora\":{\"nblocks\":2}",
         "m.embed_tokens",
         "alora,bdlora,bias,dora,embeddings,init_base,layer_replication,modules_to_save,qalora,rank_pattern,"
         "rslora,target_parameters"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char config[600];
        snprintf(config, sizeof config, "{\"peft_type\":\"LORA\"%s}", CASES[i].fields);
        cr_assert_str_eq(features_of(config, CASES[i].tensor), CASES[i].features, "%s %s", config,
                         CASES[i].tensor);
    }
}

Test(peft, configs_that_pass)
{
    static const char *const CONFIGS[] = {
        "{\"peft_type\":\"LORA\"}",
        " \n{\"peft_type\":\"LORA\",\"r\":16,\"lora_alpha\":8.5,\"target_modules\":\"all-linear\",\"rank_"
        "pattern\":null,\"alpha_pattern\":null} \n",
        "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":32,\"target_modules\":[\"q\",\"v\"],\"rank_pattern\":"
        "{\"a\":\"untouched\"},\"auto_mapping\":{\"x\":[[]]}}",
        "{\"peft_type\":\"LORA\",\"target_modules\":null,\"base_model_name_or_path\":null,\"future\":{"
        "\"deep\":[1,2.5,true,null]}}"};
    for (size_t i = 0; i < sizeof CONFIGS / sizeof *CONFIGS; i++) features_of(CONFIGS[i], "x");
}

Test(peft, base_model_is_cut_to_fit)
{
    char config[600], features[192], base[256];
    snprintf(config, sizeof config, "{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"org/%0300d\"}", 0);
    heddle_tensor_t t = {.name = "q.lora_A"};
    cr_assert_eq(peft_check(bytes_of(config, strlen(config)), &t, 1, features, base, NULL), HEDDLE_OK);
    cr_assert_eq(strlen(base), 255);
    cr_assert_eq(strncmp(base, "org/000", 7), 0);
}

Test(peft, configs_that_are_refused)
{
    static const struct {
        const char *config;
        int code;
        const char *message, *expected, *found;
    } CASES[] = {
        {"", BAD, "is not JSON at byte 0", "JSON", "nothing"},
        {" \n ", BAD, "is not JSON at byte 3", "JSON", "nothing"},
        {"{\"peft_type\": \"LO", BAD, "is not JSON", "JSON", ""},
        {"{\"peft_type\": \"LORA\"} x", BAD, "is not JSON", "JSON", ""},
        {"{\"peft_type\": \"LORA\", \"r\": NaN}", BAD, "is not JSON", "JSON", ""},
        {"{\"peft_type\": \"LORA\xff\"}", BAD, "is not JSON", "JSON", ""},
        {"\200\002}", BAD, "is not JSON", "JSON", ""},
        {"[1]", BAD, "not a JSON object", "peft_type", "a list"},
        {"7", BAD, "not a JSON object", "peft_type", "a single value"},
        {"{\"peft_type\":\"LORA\",\"peft_type\":\"LORA\"}", BAD, "a name twice", "each name once",
         "peft_type"},
        {"{}", HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE, "peft_type in the config must be LORA", "\"LORA\"",
         "no peft_type"},
        {"{\"peft_type\":\"PREFIX_TUNING\"}", HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE, "must be LORA", "\"LORA\"",
         "PREFIX_TUNING"},
        {"{\"peft_type\":\"lora\"}", HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE, "must be LORA", "\"LORA\"", "lora"},
        {"{\"peft_type\":null}", HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE, "must be LORA", "\"LORA\"", "not a text"},
        {"{\"peft_type\":\"LORA\",\"r\":0}", BAD, "'r' in the config", "a positive integer", "0"},
        {"{\"peft_type\":\"LORA\",\"r\":-4}", BAD, "'r' in the config", "a positive integer", "-4"},
        {"{\"peft_type\":\"LORA\",\"r\":8.0}", BAD, "'r' in the config", "a positive integer", "8.0"},
        {"{\"peft_type\":\"LORA\",\"r\":true}", BAD, "'r' in the config", "a positive integer", "true"},
        {"{\"peft_type\":\"LORA\",\"r\":\"8\"}", BAD, "'r' in the config", "a positive integer", "\"8\""},
        {"{\"peft_type\":\"LORA\",\"r\":null}", BAD, "'r' in the config", "a positive integer", "null"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":\"16\"}", BAD, "'lora_alpha' in the config", "a number",
         "\"16\""},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":false}", BAD, "'lora_alpha' in the config", "a number",
         "false"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":7}", BAD, "'target_modules' in the config",
         "list of texts", "7"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":[\"q\",1]}", BAD, "'target_modules' in the config",
         "list of texts", "[\"q\",1]"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":{}}", BAD, "'target_modules' in the config",
         "list of texts", "{}"},
        {"{\"peft_type\":\"LORA\",\"rank_pattern\":[]}", BAD, "'rank_pattern' in the config", "an object",
         "[]"},
        {"{\"peft_type\":\"LORA\",\"alpha_pattern\":4}", BAD, "'alpha_pattern' in the config", "an object",
         "4"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        put_config(CASES[i].config);
        refused(CASES[i].code, CASES[i].message, CASES[i].expected, CASES[i].found, "");
        refused(CASES[i].code, path_of(CONFIG), "", "", ""); /* where */
    }
}

Test(peft, config_too_long_or_too_deep)
{
    char *text = malloc(LIMIT_CONFIG_BYTES + 2);
    memset(text, ' ', LIMIT_CONFIG_BYTES + 1);
    memcpy(text, GOOD_CONFIG, sizeof GOOD_CONFIG - 1);
    put(CONFIG, text, LIMIT_CONFIG_BYTES);
    heddle_adapter_info_t info;
    cr_assert_eq(peft_digest(dir, &info, NULL), HEDDLE_OK);
    put(CONFIG, text, LIMIT_CONFIG_BYTES + 1);
    char expected[40], found[40];
    snprintf(expected, sizeof expected, "at most %u bytes", LIMIT_CONFIG_BYTES);
    snprintf(found, sizeof found, "%u bytes", LIMIT_CONFIG_BYTES + 1);
    refused(HEDDLE_ERR_LIMIT, "the config is too long", expected, found, "adapter_config.json");
    heddle_tensor_t t = {.name = "q.lora_A"};
    char features[192], base[256];
    cr_assert_eq(peft_check(bytes_of(text, LIMIT_CONFIG_BYTES + 1), &t, 1, features, base, NULL),
                 HEDDLE_ERR_LIMIT);
    memset(text, '[', LIMIT_CONFIG_BYTES);
    put(CONFIG, text, LIMIT_CONFIG_BYTES);
    refused(HEDDLE_ERR_LIMIT, "nested too deep", "64 levels", "levels", "PEFT");
    free(text);
}

/* ---- directories */

Test(peft, no_such_directory)
{
    refused_at("/proc/nonexistent/policy", HEDDLE_ERR_NOT_FOUND,
               "there is no directory /proc/nonexistent/policy", CONFIG, "No such file", "path");
    refused_at("", HEDDLE_ERR_NOT_FOUND, "there is no directory", CONFIG, "No such file", "path");
    char path[200];
    strcat(strcpy(path, path_of(CONFIG)), "/below");
    refused_at(path, HEDDLE_ERR_NOT_FOUND, "there is no directory", CONFIG, "Not a directory", "path");
    char *longest = malloc(5001);
    memset(longest, 'x', 5000);
    longest[5000] = 0;
    refused_at(longest, HEDDLE_ERR_NOT_FOUND, "there is no directory", CONFIG, "too long", "path");
    free(longest);
    cr_assert_eq(heddle_err_exit(HEDDLE_ERR_NOT_FOUND), 3);
}

Test(peft, a_file_in_place_of_the_directory)
{
    char path[200];
    strcpy(path, path_of(MODEL));
    refused_at(path, BAD, "is not a directory", "a directory", "a file", "the directory that holds");
}

Test(peft, files_are_missing)
{
    unlink(path_of(CONFIG));
    refused(BAD, "there is no", CONFIG, "no such file", "is the save over?");
    put_config(GOOD_CONFIG);
    unlink(path_of(MODEL));
    refused(BAD, MODEL, MODEL, "no such file", "is the save over?");
    unlink(path_of(CONFIG));
    refused(BAD, "there is no", CONFIG, "no such file", "");
    cr_assert_eq(symlink("/proc/nonexistent/blob", path_of(MODEL)), 0);
    refused(BAD, "there is no", MODEL, "a symbolic link to nothing", "was removed");
}

Test(peft, only_a_pickle)
{
    unlink(path_of(MODEL));
    put("adapter_model.bin", "\200\002}q.", 5);
    cr_assert_eq(chmod(path_of("adapter_model.bin"), 0), 0);
    refused(BAD, "there is no", MODEL, "a pickle, which is never read", "safe_serialization=True");
    struct stat st;
    cr_assert(stat(path_of("adapter_model.bin"), &st) == 0 && st.st_size == 5);
}

Test(peft, a_pickle_beside_the_weights_is_ignored)
{
    put("adapter_model.bin", "\200\002}q.", 5);
    heddle_adapter_info_t info;
    cr_assert_eq(peft_digest(dir, &info, NULL), HEDDLE_OK);
    cr_assert_str_eq(info.digest, GOOD_DIGEST);
}

Test(peft, the_adapter_is_one_level_below)
{
    char expected[100];
    snprintf(expected, sizeof expected, "did you mean %s?", dir);
    refused_at(root, BAD, "there is no", MODEL, "an adapter one level below", expected);
    char other[100], slashes[100];
    snprintf(other, sizeof other, "%s/critic", root);
    cr_assert_eq(mkdir(other, 0700), 0);
    refused_at(root, BAD, "there is no", MODEL, "an adapter one level below",
               expected); /* an empty one is no adapter */
    snprintf(other, sizeof other, "%s/critic/" MODEL, root);
    cr_assert_eq(link(path_of(MODEL), other), 0);
    snprintf(expected, sizeof expected, "did you mean %s/critic?", root);
    snprintf(slashes, sizeof slashes, "%s///", root);
    refused_at(slashes, BAD, "there is no", MODEL, "adapters in 2 directories below", expected);
}

Test(peft, a_path_too_long_for_a_message_is_told_by_its_end)
{
    char path[700];
    strcpy(path, root);
    for (int i = 0; i < 4; i++) {
        snprintf(path + strlen(path), sizeof path - strlen(path), "/%0100d", i);
        cr_assert_eq(mkdir(path, 0700), 0);
    }
    refused_at(path, BAD, "0003/" MODEL, MODEL, "no such file", "");
}

/* ---- things in place of files */

static void refused_in_place_of(const char *name, const char *found)
{
    refused(BAD, "is not a regular file", "a regular file", found, "save_pretrained");
    refused(BAD, path_of(name), "", "", "");
    cr_assert_eq(remove(path_of(name)), 0);
}

Test(peft, what_is_no_regular_file)
{
    static const char *const NAMES[] = {CONFIG, MODEL};
    for (int i = 0; i < 2; i++) {
        const char *name = NAMES[i];
        unlink(path_of(name));
        cr_assert_eq(mkfifo(path_of(name), 0600), 0); /* a blocking open would wait for a writer for ever */
        refused_in_place_of(name, "a FIFO");
        cr_assert_eq(mkdir(path_of(name), 0700), 0);
        refused_in_place_of(name, "a directory");
        cr_assert_eq(symlink("/dev/zero", path_of(name)), 0);
        refused_in_place_of(name, "a device");
        cr_assert_eq(symlink(name, path_of(name)), 0);
        refused_in_place_of(name, "symbolic links in a circle");
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strcpy(address.sun_path, path_of(name));
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
        refused_in_place_of(name, "a socket");
        close(fd);
        fill();
    }
}

/* Root reads everything: become nobody first. */
static void become_nobody(void)
{
    cr_assert_eq(chmod(root, 0755), 0);
    cr_assert_eq(chmod(dir, 0755), 0);
    if (geteuid() == 0) cr_assert(setgroups(0, NULL) == 0 && setegid(65534) == 0 && seteuid(65534) == 0);
}

Test(peft, files_that_cannot_be_read)
{
    chmod(path_of(MODEL), 0);
    become_nobody();
    refused(HEDDLE_ERR_INTERNAL, "cannot open", "can be read", "Permission denied",
            "PEFT saves with mode 0600");
    cr_assert_eq(heddle_err_exit(HEDDLE_ERR_INTERNAL), 9);
    if (getuid() == 0) cr_assert_eq(seteuid(0), 0);
    chmod(path_of(MODEL), 0644);
    chmod(path_of(CONFIG), 0);
    become_nobody();
    refused(HEDDLE_ERR_INTERNAL, CONFIG, "can be read", "Permission denied", "");
    if (getuid() == 0) cr_assert_eq(seteuid(0), 0);
    chmod(path_of(CONFIG), 0644);
}

Test(peft, directories_that_cannot_be_read)
{
    become_nobody();
    if (getuid() == 0) cr_assert_eq(seteuid(0), 0);
    chmod(root, 0);
    if (getuid() == 0) cr_assert_eq(seteuid(65534), 0);
    refused(HEDDLE_ERR_INTERNAL, "cannot open the directory", "can be read", "Permission denied", "mode");
    if (getuid() == 0) cr_assert_eq(seteuid(0), 0);
    chmod(root, 0700);
}

/* ---- weights */

Test(peft, no_lora_tensor)
{
    put_model("{\"model.norm.weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", "x", 1);
    refused(HEDDLE_ERR_NO_LORA, MODEL, "lora_A", "model.norm.weight", "save_pretrained");
    put_model("{\"__metadata__\":{}}", "", 0);
    refused(HEDDLE_ERR_NO_LORA, "there is no LoRA tensor", "lora_A", "no tensor", "save_pretrained");
}

Test(peft, headers_of_impossible_length)
{
    static const struct {
        const char *bytes;
        size_t n;
        int code;
        const char *message, *hint;
    } CASES[] = {
        {"", 0, BAD, "too short", "ended early"},
        {"\0\0\0\0\0\0\0", 7, BAD, "too short", "ended early"},
        {"\0\0\0\0\0\0\0\0", 8, BAD, "impossible length", "Save the adapter again"},
        {"\1\0\0\0\0\0\0\0{", 9, BAD, "impossible length", ""},
        {"\3\0\0\0\0\0\0\0{}", 10, BAD, "impossible length", ""},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, BAD, "impossible length", ""},
        {"\0\0\0\0\0\0\0\x80{}", 10, BAD, "impossible length", ""},
        {"version https://git-lfs.github.com/spec/v1\n", 43, BAD, "impossible length", "git lfs pull"},
        {"PK\3\4\0\0\0\0\0\0\0\0", 12, BAD, "impossible length", "safe_serialization=True"},
        {"{\"peft_type\":1}", 15, BAD, "impossible length", "JSON file"},
        {"\2\0\0\0\0\0\0\0[]", 10, BAD, "not JSON", ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        put(MODEL, CASES[i].bytes, CASES[i].n);
        refused(CASES[i].code, CASES[i].message, "", "", CASES[i].hint);
        refused(CASES[i].code, path_of(MODEL), "", "", "");
    }
}

static void put_sparse(const char *header, uint64_t data_bytes)
{
    put_model(header, "", 0);
    struct stat st;
    cr_assert(stat(path_of(MODEL), &st) == 0);
    if (truncate(path_of(MODEL), st.st_size + (off_t)data_bytes))
        cr_skip_test("no sparse files of this size here: %s", strerror(errno));
}

Test(peft, a_header_longer_than_upstreams_cap)
{
    uint8_t length[8];
    le64_put(length, LIMIT_SAFETENSORS_HEADER + 1);
    put(MODEL, length, 8);
    cr_assert_eq(truncate(path_of(MODEL), LIMIT_SAFETENSORS_HEADER + 100), 0);
    refused(HEDDLE_ERR_LIMIT, "impossible length", "100000000", "100000001", "");
}

Test(peft, tensors_larger_than_memory)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) + 4096;
    char header[200];
    snprintf(header, sizeof header,
             "{\"x.lora_A\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
             (unsigned long long)bytes, (unsigned long long)bytes);
    put_sparse(header, bytes);
    refused(HEDDLE_ERR_NO_MEMORY, "larger than this machine's memory", "at most", "whole pages",
            "more memory");
    cr_assert_eq(heddle_err_exit(HEDDLE_ERR_NO_MEMORY), 9);
}

Test(peft, truncated_and_grown_files)
{
    put_model(GOOD_HEADER, GOOD_DATA, 13);
    refused(BAD, "the file is truncated", "14 bytes of tensors", "13", "ended early");
    put_model(GOOD_HEADER, GOOD_DATA, 15);
    refused(BAD, "the file has bytes after the last tensor", "14 bytes of tensors", "15", "");
    put(MODEL, "\x40\0\0\0\0\0\0\0{\"q.lora_A\":{\"dty", 24);
    refused(BAD, "impossible length", "2 to 16 bytes", "64 bytes, in a file of 24", "");
}

Test(peft, every_truncation_is_refused)
{
    buf_t whole = {0};
    le64_put(buf_grow(&whole, 8), sizeof GOOD_HEADER - 1);
    buf_add_text(&whole, GOOD_HEADER);
    buf_add(&whole, GOOD_DATA, 14);
    for (size_t n = 0; n < whole.bytes; n++) {
        put(MODEL, whole.data, n);
        refused(BAD, path_of(MODEL), "", "", "");
    }
    buf_fini(&whole);
}

Test(peft, tensors_that_the_layout_refuses_are_told_with_the_file)
{
    put_model("{\"a.lora_A\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a.lora_A\":{\"dtype\":"
              "\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
              "xy", 2);
    refused(BAD, "'a.lora_A' occurs twice", "each name once", "two", "");
    refused(BAD, path_of(MODEL), "", "", "");
    put_model("{\"a.lora_A\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", "", 0);
    refused(BAD, "all tensors are empty", "", "0 bytes", "ZeRO");
    char header[1300];
    snprintf(header, sizeof header,
             "{\"lora_A%01025d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 0);
    put_model(header, "x", 1);
    refused(HEDDLE_ERR_LIMIT, "is too long", "1024", "1031", "");
}

/* ---- reading that is ended early */

static int refuse_to_go_on(const stop_t *stop, heddle_error_t *error)
{
    (void)stop;
    return error_fail(error, HEDDLE_ERR_INTERRUPTED, "enough");
}

/* Many tensors in the header, or many bytes in one. */
static int open_and_read(const char *header, size_t header_bytes, uint64_t data_bytes, heddle_error_t *e)
{
    static const stop_t STOP = {refuse_to_go_on};
    peft_dir_t *d = NULL;
    uint8_t *data = calloc(1, data_bytes + 4096);
    uint64_t leaves[LEAVES_MAX];
    buf_t whole = {0};
    le64_put(buf_grow(&whole, 8), header_bytes);
    buf_add(&whole, header, header_bytes);
    buf_add(&whole, data, data_bytes);
    put(MODEL, whole.data, whole.bytes);
    buf_fini(&whole);
    *e = (heddle_error_t){0};
    stop_begin(&STOP);
    int rc = peft_open(dir, &d, e);
    if (!rc) rc = peft_read(d, &(peft_sink_t){.base = data, .leaves = leaves}, (uint64_t[]){0}, e);
    stop_end();
    if (d) peft_close(&d);
    free(data);
    fill();
    return rc;
}

Test(peft, reading_ends_when_its_time_is_up)
{
    heddle_error_t e;
    char header[160];
    snprintf(header, sizeof header,
             "{\"a.lora_A\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", 9 << 20, 9 << 20);
    cr_assert_eq(open_and_read(header, strlen(header), 9 << 20, &e), HEDDLE_ERR_INTERRUPTED, "%s", e.message);
    cr_assert_str_eq(e.message, "enough");
    buf_t many = {0};
    for (int i = 0; i < 3000; i++)
        buf_printf(&many, "%c\"%d.lora_A\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                   i ? ',' : '{', i, i, i + 1);
    buf_add_text(&many, "}");
    cr_assert_eq(open_and_read((const char *)many.data, many.bytes, 3000, &e), HEDDLE_ERR_INTERRUPTED, "%s",
                 e.message);
    cr_assert(strstr(e.message, "enough"), "%s", e.message);
    buf_fini(&many);
}

/* ---- files that change while they are read */

static int read_after(void (*change)(void), const char *message, const char *found)
{
    heddle_error_t e = {0};
    peft_dir_t *d;
    cr_assert_eq(peft_open(dir, &d, &e), HEDDLE_OK, "%s", e.message);
    uint8_t *payload = calloc(2, 4096);
    change();
    uint64_t leaves[2];
    int rc = peft_read(d, &(peft_sink_t){.base = payload, .leaves = leaves}, (uint64_t[]){0, 4096}, &e);
    cr_assert(strstr(e.message, message), "'%s' in '%s'", message, e.message);
    cr_assert(strstr(e.found, found), "'%s' in '%s'", found, e.found);
    cr_assert(e.expected[0] && strstr(e.hint, "rename it"));
    peft_close(&d);
    cr_assert_null(d);
    free(payload);
    fill();
    return rc;
}

static void append_to(const char *name)
{
    FILE *f = fopen(path_of(name), "a");
    cr_assert(f && fputc('x', f) == 'x' && !fclose(f));
}
static void grow_model(void) { append_to(MODEL); }
static void grow_config(void) { append_to(CONFIG); }
static void truncate_model(void) { cr_assert_eq(truncate(path_of(MODEL), 190), 0); }
static void truncate_config(void) { cr_assert_eq(truncate(path_of(CONFIG), 3), 0); }
static void touch_model(void)
{
    cr_assert_eq(utimensat(AT_FDCWD, path_of(MODEL), (struct timespec[2]){{1, 0}, {1, 0}}, 0), 0);
}
static void chmod_model(void) { cr_assert_eq(chmod(path_of(MODEL), 0640), 0); }
static void remove_config(void) { cr_assert_eq(unlink(path_of(CONFIG)), 0); }
static void replace_model(void)
{
    char fresh[200];
    put("fresh", "new", 3);
    strcpy(fresh, path_of("fresh"));
    cr_assert_eq(rename(fresh, path_of(MODEL)), 0);
}

Test(peft, files_that_change)
{
    cr_assert_eq(read_after(grow_model, "changed while it was read", "it grew"), BAD);
    cr_assert_eq(read_after(grow_config, "changed while it was read", "it grew"), BAD);
    cr_assert_eq(read_after(truncate_model, "is shorter than it was", "an end at byte 190"), BAD);
    cr_assert_eq(read_after(truncate_config, "changed while it was read", "it shrank"), BAD);
    cr_assert_eq(read_after(touch_model, "changed while it was read", "it was written to"), BAD);
    cr_assert_eq(read_after(chmod_model, "changed while it was read", "mode or owner"), BAD);
    cr_assert_eq(read_after(remove_config, "changed while it was read", "its name is gone"), BAD);
    cr_assert_eq(read_after(replace_model, "changed while it was read", "another file took its name"), BAD);
}

/* ---- export */

static int write_to(const loaded_t *a, const char *path, heddle_error_t *error)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    cr_assert_geq(fd, 0);
    int rc = peft_write(fd, &a->manifest, a->payload, error);
    close(fd);
    return rc;
}

/* Engines of other users read them, where the umask lets them. */
Test(peft, exported_files_can_be_read_as_the_umask_says)
{
    static const char *const NAMES[] = {CONFIG, MODEL};
    char out[100];
    snprintf(out, sizeof out, "%s/out", root);
    cr_assert_eq(mkdir(out, 0700), 0);
    loaded_t a = load(dir);
    umask(0027);
    cr_assert_eq(write_to(&a, out, NULL), HEDDLE_OK);
    strcpy(dir, out);
    for (int i = 0; i < 2; i++) {
        struct stat st;
        cr_assert_eq(stat(path_of(NAMES[i]), &st), 0);
        cr_assert_eq(st.st_mode & 07777, 0640);
    }
    unload(&a);
}

Test(peft, export_never_overwrites)
{
    loaded_t a = load(dir);
    heddle_error_t e;
    cr_assert_eq(write_to(&a, dir, &e), HEDDLE_ERR_INTERNAL);
    cr_assert(strstr(e.message, MODEL) && e.expected[0] && strstr(e.found, "File exists") && e.hint[0]);
    unload(&a);
    heddle_adapter_info_t info;
    cr_assert_eq(peft_digest(dir, &info, NULL), HEDDLE_OK);
    cr_assert_str_eq(info.digest, GOOD_DIGEST);
}

/* A tmpfs of one page in a mount namespace of our own. */
static bool mount_small(const char *path)
{
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) return false;
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) return false;
    return mount("tmpfs", path, "tmpfs", 0, "size=4096") == 0;
}

Test(peft, a_full_disk_is_told)
{
    char out[100];
    snprintf(out, sizeof out, "%s/out", root);
    cr_assert_eq(mkdir(out, 0700), 0);
    char *data = calloc(1, 20000);
    put_model("{\"x.lora_A\":{\"dtype\":\"U8\",\"shape\":[20000],\"data_offsets\":[0,20000]}}", data, 20000);
    free(data);
    loaded_t a = load(dir);
    heddle_error_t e;
    if (mount_small(out)) {
        cr_assert_eq(write_to(&a, out, &e), HEDDLE_ERR_NO_SPACE, "%s", e.message);
        cr_assert(strstr(e.message, MODEL) && strstr(e.expected, "room for 20") &&
                  strstr(e.found, "No space") && strstr(e.hint, "make room"));
        umount(out);
    }
    signal(SIGXFSZ, SIG_IGN); /* the same by another limit, which every user can set */
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){8192, 8192}), 0);
    cr_assert_eq(write_to(&a, out, &e), HEDDLE_ERR_NO_SPACE, "%s", e.message);
    cr_assert(strstr(e.message, MODEL) && e.expected[0] && e.found[0] && e.hint[0]);
    unload(&a);
}

Test(peft, a_write_that_fails_is_told)
{
    char out[100];
    snprintf(out, sizeof out, "%s/out", root);
    cr_assert_eq(mkdir(out, 0700), 0);
    loaded_t a = load(dir);
    heddle_error_t e;
    int fd = open(out, O_RDONLY | O_DIRECTORY);
    cr_assert_eq(rmdir(out), 0);
    cr_assert_eq(peft_write(fd, &a.manifest, a.payload, &e), HEDDLE_ERR_INTERNAL);
    cr_assert(strstr(e.found, "No such file") && e.expected[0] && e.hint[0]);
    close(fd);
    unload(&a);
}

Test(peft, metadata_of_a_manifest_is_checked_before_it_is_written)
{
    loaded_t a = load(dir);
    heddle_error_t e;
    char out[100];
    snprintf(out, sizeof out, "%s/out", root);
    cr_assert_eq(mkdir(out, 0700), 0);
    a.manifest.metadata = bytes_of("{},\"x\":{}", 9);
    cr_assert_eq(write_to(&a, out, &e), BAD);
    cr_assert_eq(rmdir(out), 0); /* nothing was left in it */
    unload(&a);
}

/* ---- no descriptor stays open */

static int count_descriptors(void)
{
    int count = 0;
    DIR *fds = opendir("/proc/self/fd");
    while (readdir(fds)) count++;
    closedir(fds);
    return count;
}

Test(peft, refusals_leave_nothing_open)
{
    int before = count_descriptors();
    heddle_adapter_info_t info;
    cr_assert_eq(peft_digest(dir, &info, NULL), HEDDLE_OK);
    refused_at(root, BAD, "there is no", "", "", "did you mean");
    put_config("{}");
    refused(HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE, "", "", "", "");
    put_model(GOOD_HEADER, GOOD_DATA, 13);
    refused(BAD, "", "", "", "");
    unlink(path_of(CONFIG));
    refused(BAD, "", "", "", "");
    cr_assert_eq(count_descriptors(), before);
}

/* ---- pairs ---- */

static const char *lone_half(const char *const *names, uint32_t count, char other[1024])
{
    heddle_tensor_t rows[8] = {0};
    for (uint32_t i = 0; i < count; i++) rows[i].name = names[i];
    return peft_lone_half(rows, count, other);
}

Test(peft, half_of_a_pair_is_found)
{
    static const char
        *const WHOLE[] = {"m.q.lora_A.weight", "m.q.lora_B.weight",        "m.k.lora_B.weight",
                          "m.k.lora_A.weight", "m.e.lora_embedding_A",     "m.e.lora_embedding_B",
                          "m.q.lora_B.bias",   "m.q.lora_magnitude_vector"},
               *const WITHOUT_B[] = {"m.q.lora_A.weight", "m.k.lora_B.weight", "m.k.lora_A.weight"},
               *const WITHOUT_A[] = {"m.e.lora_embedding_B", "m.e.lora_B.weight", "m.e.lora_X.weight"},
               *const OTHERS[] = {"m.xlora_A.weight", "lora_C.weight", "lora_", "A", ".weight", ""};
    char other[1024];
    cr_assert_null(lone_half(WHOLE, 8, other));
    cr_assert_null(lone_half(OTHERS, 6, other));
    cr_assert_str_eq(lone_half(WITHOUT_B, 3, other), "m.q.lora_A.weight");
    cr_assert_str_eq(other, "m.q.lora_B.weight");
    cr_assert_str_eq(lone_half(WITHOUT_A, 3, other), "m.e.lora_B.weight");
    cr_assert_str_eq(other, "m.e.lora_A.weight");
}
