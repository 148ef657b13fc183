/* SPDX-License-Identifier: Apache-2.0 */
/* A PEFT directory, or files of weights: the rules for a config, opening and reading them (formats/peft.h
 * says in which steps), their digest, and writing them. */
#include "formats/peft.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "core/log.h"
#include "core/stop.h"
#include "formats/input_file.h"
#include "formats/json_text.h"
#include "formats/safetensors.h"
#include "formats/tensor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define PEFT_CONFIG "adapter_config.json"
#define PEFT_MODEL "adapter_model.safetensors"
#define WEIGHTS "model.safetensors"
#define PEFT_PICKLE "adapter_model.bin"

/* The bytes that are read and digested at a time: whole leaves, and few enough to stay in the cache between
 * the two. */
#define PIECE_BYTES (256u << 10)
#define PIECE_LEAVES (PIECE_BYTES / LIMIT_PAGE_BYTES)

/* A safetensors file. */
typedef struct {
    input_file_t file;
    safetensors_t table;
    uint32_t first;      /* row of its first tensor in the table of all */
    uint64_t data_start; /* of the tensors' bytes */
    buf_t header;        /* the bytes before them; kept to be compared at the end */
} weights_file_t;

struct peft_dir {
    const content_kind_t *kind;
    int fd;                   /* -1: files that were named one by one */
    input_file_t config_file; /* closed where there is none */
    buf_t config;
    weights_file_t *models;
    uint32_t model_count;
    heddle_tensor_t *tensors; /* of all models, one after the other */
    uint32_t tensor_count;
    layout_t layout;
    char features[192], base_model[256];
};

#define WHAT "the config"
#define READ_OTHERWISE "other bytes when it was read again"
#define STOP_BYTES (4u << 20)   /* between two calls of stop_check: some milliseconds */
#define ENTRIES_MAX 4096        /* entries that are searched for a hint: it is not worth more time */
#define WRITE_MODE 0644         /* less the umask: an engine may run as another user */
#define STREAM_BYTES (1u << 20) /* gathers small tensors; larger ones go straight to the file */

/* ---- the config ---- */

/* The error of a field with a wrong value. */
static int refuse_field(const char *field, const char *expected, const json_t *found, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "'%s' in the config must be %s", field, expected);
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    error_contrast(error, expected, text ? text : "nothing");
    free(text);
    error_hint(error, "correct the field, or save the adapter again with PEFT");
    return rc;
}

/* PEFT writes target_modules as a list, and as a text where it is a regular expression. */
static bool is_texts(const json_t *value)
{
    size_t i;
    json_t *item;
    if (json_is_string(value)) return true;
    json_array_foreach(value, i, item) if (!json_is_string(item)) return false;
    return json_is_array(value);
}

/* The type, and the fields that engines compute with. PEFT writes null for a field that was not given. */
static int check_fields(const json_t *config, heddle_error_t *error)
{
    const json_t *r = json_object_get(config, "r"), *alpha = json_object_get(config, "lora_alpha");
    const json_t *targets = json_object_get(config, "target_modules");
    const json_t *type = json_object_get(config, "peft_type");
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0) {
        int rc = error_fail(error, HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE, "peft_type in the config must be LORA");
        error_expected(error, "\"LORA\"");
        if (json_is_string(type)) error_found(error, "\"%s\"", json_string_value(type));
        else error_found(error, type ? "not a text" : "no peft_type");
        error_hint(error, type ? "Heddle carries LoRA adapters: train with LoraConfig"
                               : "is this PEFT's adapter_config.json?");
        return rc;
    }
    if (r && !(json_is_integer(r) && json_integer_value(r) > 0))
        return refuse_field("r", "a positive integer", r, error);
    if (alpha && !json_is_number(alpha)) return refuse_field("lora_alpha", "a number", alpha, error);
    if (targets && !json_is_null(targets) && !is_texts(targets))
        return refuse_field("target_modules", "a text or a list of texts", targets, error);
    static const char *const PATTERNS[] = {"rank_pattern", "alpha_pattern"};
    for (int i = 0; i < 2; i++) {
        const json_t *pattern = json_object_get(config, PATTERNS[i]);
        if (pattern && !json_is_null(pattern) && !json_is_object(pattern))
            return refuse_field(PATTERNS[i], "an object", pattern, error);
    }
    return HEDDLE_OK;
}

/* Which kinds of tensors the names show. */
typedef struct {
    bool lora, magnitude, embeddings;
} named_t;

/* PEFT writes false or null where a feature is not used. */
static bool is_true(const json_t *config, const char *field)
{
    return json_is_true(json_object_get(config, field));
}

/* Whether the field is a list, an object or a text that is not empty. */
static bool is_filled(const json_t *config, const char *field)
{
    const json_t *value = json_object_get(config, field);
    return json_array_size(value) > 0 || json_object_size(value) > 0 || json_string_length(value) > 0;
}

/* Checked before the file is read, and again for a config that a program passes. */
static int check_config_bytes(uint64_t bytes, heddle_error_t *error)
{
    if (bytes <= LIMIT_CONFIG_BYTES) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_LIMIT, WHAT " is too long");
    error_expected(error, "at most %u bytes", LIMIT_CONFIG_BYTES);
    error_found(error, "%" PRIu64 " bytes", bytes);
    error_hint(error, "is this PEFT's adapter_config.json?");
    return rc;
}

/* Whether init_lora_weights names a method that subtracts the adapter's first product from the base's
 * weights, or quantises them (PEFT 0.21). Such an adapter computes something else over the base as it was
 * downloaded. Where PEFT converted it on saving, the field is true. */
static bool is_init_of_base(const json_t *config)
{
    static const char *const METHODS[] = {"pissa", "olora", "corda", "loftq"}; /* pissa_niter_16, too */
    const char *init = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; init && i < sizeof METHODS / sizeof *METHODS; i++)
        if (!strncasecmp(init, METHODS[i], strlen(METHODS[i]))) return true;
    return false;
}

/* Engines choose their kernels by the features: what the fields do not tell, the names of the tensors do.
 * A feature that an engine does not apply is refused by the application: python/heddle/worker.py (accepts)
 * and python/heddle/engine/releases.py.  No C code refuses one. */
static void list_features(const json_t *config, const named_t *named, char ret_features[192])
{
    const char *bias = json_string_value(json_object_get(config, "bias"));
    const struct {
        const char *name;
        bool there;
    } FEATURES[] = {
        /* sorted */
        {"alora", is_filled(config, "alora_invocation_tokens")},
        {"bdlora", is_filled(config, "use_bdlora") || is_true(config, "use_bdlora")},
        {"bias", (bias && strcmp(bias, "none") != 0) || is_true(config, "lora_bias")},
        {"dora", is_true(config, "use_dora") || named->magnitude},
        {"embeddings", named->embeddings},
        {"init_base", is_init_of_base(config)},
        {"layer_replication", is_filled(config, "layer_replication")},
        {"modules_to_save", is_filled(config, "modules_to_save")},
        {"qalora", is_true(config, "use_qalora")},
        {"rank_pattern", is_filled(config, "rank_pattern") || is_filled(config, "alpha_pattern")},
        {"rslora", is_true(config, "use_rslora")},
        {"target_parameters", is_filled(config, "target_parameters")},
    };
    size_t used = 0;
    ret_features[0] = 0;
    for (size_t i = 0; i < sizeof FEATURES / sizeof *FEATURES; i++)
        if (FEATURES[i].there)
            used +=
                (size_t)snprintf(ret_features + used, 192 - used, "%s%s", used ? "," : "", FEATURES[i].name);
}

/* Where the letter is by which the halves of a pair differ, in `….lora_A.weight` and `….lora_B.weight`,
 * `….lora_embedding_A` and `….lora_embedding_B`. NULL: it is no half of a pair. */
static const char *letter_of(const char *name)
{
    static const char *const BEFORE[] = {"lora_", "lora_embedding_"};
    size_t bytes = strlen(name), ending = strlen(".weight");
    if (bytes > ending && !strcmp(name + bytes - ending, ".weight")) bytes -= ending;
    for (size_t i = 0; bytes && i < sizeof BEFORE / sizeof *BEFORE; i++) {
        size_t before = strlen(BEFORE[i]), start = bytes - 1 - before;
        if (bytes <= before || strncmp(name + start, BEFORE[i], before) != 0) continue;
        if (start && name[start - 1] != '.') continue;
        const char *letter = &name[bytes - 1];
        return *letter == 'A' || *letter == 'B' ? letter : NULL;
    }
    return NULL;
}

/* The first name in order without its other half; NULL: each has it, or there is no memory to look. */
static const char *find_lone(const heddle_tensor_t *tensors, uint32_t count, char ret_other[1024])
{
    const char **names = malloc(count * sizeof *names), *lone = NULL;
    for (uint32_t i = 0; names && i < count; i++) names[i] = tensors[i].name;
    if (names) qsort(names, count, sizeof *names, text_order);
    for (uint32_t i = 0; names && !lone && i < count; i++) {
        const char *letter = letter_of(names[i]), *other = ret_other;
        if (!letter || strlen(names[i]) >= 1024) continue;
        strcpy(ret_other, names[i]);
        ret_other[letter - names[i]] = *letter == 'A' ? 'B' : 'A';
        if (!bsearch(&other, names, count, sizeof *names, text_order)) lone = names[i];
    }
    free(names);
    return lone;
}

/* In the sum of the names' hashes (FNV-1a, without the letter) the halves of a pair cancel out, so that no
 * memory is needed where all is well. */
const char *peft_lone_half(const heddle_tensor_t *tensors, uint32_t count, char ret_other[1024])
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        const char *letter = letter_of(tensors[i].name);
        uint64_t hash = 0xcbf29ce484222325;
        for (const char *c = tensors[i].name; letter && *c; c++)
            if (c != letter) hash = (hash ^ (uint8_t)*c) * 0x100000001b3;
        if (letter) sum += *letter == 'A' ? hash : -hash;
    }
    return sum ? find_lone(tensors, count, ret_other) : NULL;
}

void peft_warn(const heddle_tensor_t *tensors, uint32_t count)
{
    char other[1024];
    const char *lone = peft_lone_half(tensors, count, other);
    if (lone)
        log_emit(
            LOG_WARN, "adapter.half",
            "tensor '%.200s' has no '%.200s' beside it: engines refuse such an adapter, or serve the base "
            "model in its name",
            lone, other);
}

/* A program that publishes tensors from memory passes the same rules as a directory: both come here. */
int peft_check(bytes_t config, const heddle_tensor_t *tensors, uint32_t count, char ret_features[192],
               char ret_base_model[256], heddle_error_t *error)
{
    json_t *root = NULL;
    named_t named = {0};
    for (uint32_t i = 0; i < count; i++) {
        const char *name = tensors[i].name, *lora = strstr(name, "lora_");
        named.lora |= lora != NULL;
        named.magnitude |= lora && strstr(lora, "lora_magnitude_vector");
        named.embeddings |= (lora && strstr(lora, "lora_embedding_")) || strstr(name, "embed_tokens") ||
                            strstr(name, "trainable_tokens");
    }
    int rc = check_config_bytes(config.bytes, error);
    if (!rc) rc = json_text_load(config, WHAT, &root, error);
    if (!rc && !json_is_object(root)) {
        rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, WHAT " is not a JSON object");
        error_contrast(error, "{\"peft_type\": \"LORA\", ...}",
                       json_is_array(root) ? "a list" : "a single value");
        error_hint(error, "is this PEFT's adapter_config.json?");
    }
    if (!rc) rc = check_fields(root, error);
    if (!rc && !named.lora) {
        rc = error_fail(error, HEDDLE_ERR_NO_LORA, "there is no LoRA tensor among %u", count);
        error_expected(error, "names with lora_A and lora_B in them");
        error_found(error, count ? "'%.100s' and others" : "no tensor", count ? tensors[0].name : "");
        error_hint(error, "save the adapter (PeftModel.save_pretrained), not the base model nor one that was "
                          "merged into it");
    }
    if (!rc) {
        const char *base = json_string_value(json_object_get(root, "base_model_name_or_path"));
        list_features(root, &named, ret_features);
        error_text(ret_base_model, 256, base ? base : "");
    }
    json_decref(root);
    return rc;
}

/* ---- opening ---- */

/* Links are followed: an adapter may be one. */
static bool exists(int dir_fd, const char *name)
{
    struct stat st;
    return fstatat(dir_fd, name, &st, 0) == 0;
}

/* The first subdirectory by name that holds an adapter; PEFT saves one that is not named "default" there. */
static bool find_below(int dir_fd, char ret_name[NAME_MAX + 1], int *ret_count)
{
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries) {
        if (fd >= 0) close(fd);
        return false;
    }
    const struct dirent *entry;
    int count = 0;
    for (int i = 0; i < ENTRIES_MAX && (entry = readdir(entries)); i++) {
        char model[NAME_MAX + sizeof "/" PEFT_MODEL];
        snprintf(model, sizeof model, "%s/" PEFT_MODEL, entry->d_name);
        if (entry->d_name[0] == '.' || !exists(dir_fd, model)) continue;
        if (count++ == 0 || strcmp(entry->d_name, ret_name) < 0) strcpy(ret_name, entry->d_name);
    }
    closedir(entries);
    *ret_count = count;
    return count > 0;
}

/* Explains why DIR holds no adapter when one of its files is missing: a pickle, which is never read; an
 * adapter one level below; a save that is not finished.  `missing`: PEFT_CONFIG or PEFT_MODEL. */
static int explain_missing(int dir_fd, const char *dir, const char *missing, heddle_error_t *error)
{
    char path[256], below[NAME_MAX + 1] = "", below_path[256];
    int count = 0;
    input_file_shown(dir, missing, path);
    struct stat link;
    bool dangling = fstatat(dir_fd, missing, &link, AT_SYMLINK_NOFOLLOW) == 0;
    int rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "there is no %s", path);
    error_contrast(error, PEFT_CONFIG " and " PEFT_MODEL,
                   dangling ? "a symbolic link to nothing" : "no such file");
    if (dangling) {
        error_hint(error, "the file that the link names was removed: fetch or save the adapter again");
    } else if (!strcmp(missing, PEFT_MODEL) && exists(dir_fd, PEFT_PICKLE)) {
        error_found(error, "only " PEFT_PICKLE ", a pickle, which is never read");
        error_hint(error, "save it with model.save_pretrained(DIR, safe_serialization=True)");
    } else if (find_below(dir_fd, below, &count)) {
        input_file_shown(dir, below, below_path);
        error_found(error, count > 1 ? "adapters in %d directories below" : "an adapter one level below",
                    count);
        error_hint(error, "did you mean %s?", below_path);
    } else {
        error_hint(error, "PEFT writes " PEFT_CONFIG
                          " last: is the save over? Is this the directory of the adapter?");
    }
    return rc;
}

/* The three mistakes with a path have three answers: another kind of file, a typo, a lack of rights. */
static int fail_dir(const char *dir, int err, heddle_error_t *error)
{
    struct stat st;
    int rc;
    if (err == ENOTDIR && stat(dir, &st) == 0) {
        rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%.300s is not a directory", dir);
        error_contrast(error, "a directory with " PEFT_CONFIG " and " PEFT_MODEL,
                       S_ISREG(st.st_mode) ? "a file" : "not a directory");
        error_hint(error, "give the directory that holds the adapter's two files");
    } else if (err == ENOENT || err == ENOTDIR || err == ENAMETOOLONG) {
        rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no directory %.300s", dir);
        error_contrast(error, "a directory with " PEFT_CONFIG " and " PEFT_MODEL, strerror(err));
        error_hint(error, "check the path, and the directory that it is relative to");
    } else {
        rc = error_fail(error, err == ENOMEM ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_INTERNAL,
                        "cannot open the directory %.300s: %s", dir, strerror(err));
        error_contrast(error, "a directory that can be read", strerror(err));
        error_hint(error, "run as the user who saved it, or change its mode");
    }
    return rc;
}

/* A missing file is the usual mistake, so that it gets the longest explanation. */
static int open_file(peft_dir_t *d, const char *dir, const char *name, input_file_t *file,
                     heddle_error_t *error)
{
    int rc = input_file_open(d->fd, dir, name, file, error);
    return rc == HEDDLE_ERR_NOT_FOUND ? explain_missing(d->fd, dir, name, error) : rc;
}

/* Puts the file's path before a message about its content. */
static int within(const input_file_t *f, int rc, heddle_error_t *error)
{
    if (rc == HEDDLE_OK || !error) return rc;
    char message[sizeof error->message + sizeof f->shown + sizeof ": "];
    snprintf(message, sizeof message, "%s: %s", f->shown, error->message);
    error_text(error->message, sizeof error->message, message);
    return rc;
}

/* The first bytes of files that are often found in place of a safetensors file. */
static const char *guess_format(const uint8_t first[SAFETENSORS_PREFIX_BYTES])
{
    if (!memcmp(first, "version ", 8)) return "this is a Git LFS pointer: run git lfs pull";
    if (!memcmp(first, "PK\3\4", 4))
        return "this is a zip archive, as torch.save writes it: save with safe_serialization=True";
    if (first[0] == '{') return "this is a JSON file";
    return "is this a safetensors file? Save the adapter again";
}

/* A length of the header that the file is too short for is refused, since it is about to be allocated. */
static int read_header(weights_file_t *m, heddle_error_t *error)
{
    const input_file_t *f = &m->file;
    uint8_t first[SAFETENSORS_PREFIX_BYTES];
    uint64_t file_bytes = (uint64_t)f->opened.st_size, room = file_bytes - sizeof first;
    int rc;
    if (file_bytes < sizeof first) {
        rc = error_fail(error, HEDDLE_ERR_BAD_ADAPTER, "%s is too short for a safetensors file", f->shown);
        error_expected(error, "a header's length in %zu bytes", sizeof first);
        error_found(error, "%" PRIu64 " bytes", file_bytes);
        error_hint(error, "a copy or a save ended early, or still runs: save the adapter again");
        return rc;
    }
    rc = input_file_read(f, 0, first, sizeof first, error);
    if (rc) return rc;
    uint64_t bytes = le64_get(first);
    if (bytes < 2 || bytes > LIMIT_SAFETENSORS_HEADER || bytes > room) {
        bool too_long = bytes > LIMIT_SAFETENSORS_HEADER && bytes <= room;
        rc = error_fail(error, too_long ? HEDDLE_ERR_LIMIT : HEDDLE_ERR_BAD_ADAPTER,
                        "%s has a header of impossible length", f->shown);
        error_expected(error, "2 to %" PRIu64 " bytes",
                       room < LIMIT_SAFETENSORS_HEADER ? room : LIMIT_SAFETENSORS_HEADER);
        error_found(error, "%" PRIu64 " bytes, in a file of %" PRIu64, bytes, file_bytes);
        error_hint(error, "%s", guess_format(first));
        return rc;
    }
    m->data_start = sizeof first + bytes;
    void *header = buf_grow(&m->header, (size_t)bytes);
    if (!header) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the header of %s", f->shown);
    rc = input_file_read(f, sizeof first, header, bytes, error);
    if (rc) return rc;
    return within(f, safetensors_parse(buf_view(&m->header), room - bytes, &m->table, error), error);
}

/* An empty file too is read, and then refused as JSON. */
static int read_config(peft_dir_t *d, heddle_error_t *error)
{
    const input_file_t *f = &d->config_file;
    uint64_t bytes = (uint64_t)f->opened.st_size;
    int rc = check_config_bytes(bytes, error);
    if (rc) return within(f, rc, error);
    void *to = buf_grow(&d->config, (size_t)bytes + 1);
    if (!to) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %s", f->shown);
    d->config.bytes = (size_t)bytes;
    return input_file_read(f, 0, to, bytes, error);
}

/* A publisher holds the payload in memory: an adapter that cannot fit is refused here. */
static int check_fits(const peft_dir_t *d, heddle_error_t *error)
{
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (d->layout.payload_bytes <= memory) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "%s: the tensors are larger than this machine's memory",
                        d->models[0].file.shown);
    error_expected(error, "at most %" PRIu64 " bytes", memory);
    error_found(error, "%" PRIu64 " bytes in whole pages", d->layout.payload_bytes);
    error_hint(error, "publish from a machine with more memory");
    return rc;
}

/* NULL: no memory. */
static peft_dir_t *dir_new(const content_kind_t *kind, uint32_t model_count)
{
    peft_dir_t *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->kind = kind;
    d->fd = d->config_file.fd = -1;
    d->models = calloc(model_count, sizeof *d->models);
    if (!d->models) {
        free(d);
        return NULL;
    }
    d->model_count = model_count;
    for (uint32_t i = 0; i < model_count; i++) d->models[i].file.fd = -1;
    return d;
}

/* The tables of all files as one.  Names and extents stay with the file that they were read from. */
static int join_tables(peft_dir_t *d, heddle_error_t *error)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < d->model_count; i++) {
        d->models[i].first = (uint32_t)count;
        count += d->models[i].table.count;
    }
    if (count > LIMIT_TENSORS) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "there are too many tensors");
        error_expected(error, "at most %u", LIMIT_TENSORS);
        error_found(error, "%" PRIu64, count);
        error_hint(error, "publish it as several adapters");
        return rc;
    }
    d->tensors = calloc(count ? (size_t)count : 1, sizeof *d->tensors);
    if (!d->tensors)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a table of %" PRIu64 " tensors", count);
    for (uint32_t i = 0; i < d->model_count; i++) {
        const weights_file_t *m = &d->models[i];
        if (m->table.count)
            memcpy(d->tensors + m->first, m->table.tensors, m->table.count * sizeof *d->tensors);
    }
    d->tensor_count = (uint32_t)count;
    return HEDDLE_OK;
}

/* The file of a row: the last one that begins at it or before. */
static const weights_file_t *model_of(const peft_dir_t *d, uint32_t row)
{
    uint32_t low = 0, high = d->model_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (d->models[middle].first <= row) low = middle;
        else high = middle;
    }
    return &d->models[low];
}

/* What the files are together, once each is opened. */
static int read_tables(peft_dir_t *d, heddle_error_t *error)
{
    for (uint32_t i = 0; i < d->model_count; i++) {
        int rc = read_header(&d->models[i], error);
        if (rc) return rc;
    }
    int rc = join_tables(d, error);
    if (rc) return rc;
    rc = d->kind->check(peft_config(d), d->tensors, d->tensor_count, d->features, d->base_model, error);
    if (rc) return within(rc == HEDDLE_ERR_NO_LORA ? &d->models[0].file : &d->config_file, rc, error);
    rc = layout_make(d->tensors, d->tensor_count, &d->layout, error);
    if (d->model_count == 1) rc = within(&d->models[0].file, rc, error);
    return rc ? rc : check_fits(d, error);
}

/* Both files are opened before either is read, so that the check for changes covers all of the reading. */
int peft_open(const char *dir, peft_dir_t **ret_dir, heddle_error_t *error)
{
    peft_dir_t *d = dir_new(&KIND_LORA, 1);
    if (!d) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to open %.300s", dir);
    d->fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = d->fd < 0 ? fail_dir(dir, errno, error) : HEDDLE_OK;
    if (!rc) rc = open_file(d, dir, PEFT_MODEL, &d->models[0].file, error);
    if (!rc) rc = open_file(d, dir, PEFT_CONFIG, &d->config_file, error);
    if (!rc) rc = read_config(d, error);
    if (!rc) rc = read_tables(d, error);
    if (rc) peft_close(&d);
    else *ret_dir = d;
    return rc;
}

/* The hints of a file in a directory speak of the directory. */
static int open_named(const char *path, input_file_t *file, heddle_error_t *error)
{
    int rc = input_file_open(AT_FDCWD, NULL, path, file, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) error_hint(error, "check the path");
    if (rc == HEDDLE_ERR_BAD_ADAPTER) error_hint(error, "name the safetensors files themselves");
    return rc;
}

int peft_open_files(const char *const *files, peft_dir_t **ret_dir, heddle_error_t *error)
{
    uint32_t count = 0;
    while (files[count]) count++;
    if (!count) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "there is no file to publish");
        error_contrast(error, "one safetensors file or more", "none");
        error_hint(error, "name each file of the weights");
        return rc;
    }
    peft_dir_t *d = dir_new(&KIND_TENSORS, count);
    if (!d) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to open %u files", count);
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; i < count && !rc; i++) rc = open_named(files[i], &d->models[i].file, error);
    buf_add_text(&d->config, d->kind->config);
    if (!rc && d->config.failed)
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to open %u files", count);
    if (!rc) rc = read_tables(d, error);
    if (rc) peft_close(&d);
    else *ret_dir = d;
    return rc;
}

/* It may be called on a handle that was filled half. */
void peft_close(peft_dir_t **dir)
{
    peft_dir_t *d = *dir;
    if (!d) return;
    layout_fini(&d->layout);
    for (uint32_t i = 0; i < d->model_count; i++) {
        safetensors_fini(&d->models[i].table);
        buf_fini(&d->models[i].header);
        input_file_close(&d->models[i].file);
    }
    free(d->models);
    free(d->tensors);
    buf_fini(&d->config);
    input_file_close(&d->config_file);
    if (d->fd >= 0) close(d->fd);
    free(d);
    *dir = NULL;
}

const heddle_tensor_t *peft_tensors(const peft_dir_t *d, uint32_t *ret_count)
{
    *ret_count = d->tensor_count;
    return d->tensors;
}

const content_kind_t *peft_kind(const peft_dir_t *d) { return d->kind; }
bytes_t peft_config(const peft_dir_t *d) { return buf_view(&d->config); }
bytes_t peft_metadata(const peft_dir_t *d) { return d->models[0].table.metadata; }
const char *peft_features(const peft_dir_t *d) { return d->features; }
const char *peft_base_model(const peft_dir_t *d) { return d->base_model; }

/* The header is compared with what was kept of it; only the tensors are too large for that, and are left to
 * the caller, which reads them anyway. */
static int check_model(const weights_file_t *m, bool *ret_sure, heddle_error_t *error)
{
    int rc = input_file_check_unchanged(&m->file, ret_sure, error);
    if (rc || *ret_sure) return rc;
    uint8_t prefix[SAFETENSORS_PREFIX_BYTES];
    le64_put(prefix, m->header.bytes);
    rc = input_file_compare(&m->file, 0, prefix, sizeof prefix, error);
    if (!rc) rc = input_file_compare(&m->file, sizeof prefix, m->header.data, m->header.bytes, error);
    return rc;
}

int peft_check_unchanged(const peft_dir_t *d, bool *ret_sure, heddle_error_t *error)
{
    bool is_config_sure = d->config_file.fd < 0, are_models_sure = true;
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; i < d->model_count && !rc; i++) {
        bool is_sure = false;
        rc = check_model(&d->models[i], &is_sure, error);
        are_models_sure &= is_sure;
    }
    if (!rc && !is_config_sure) rc = input_file_check_unchanged(&d->config_file, &is_config_sure, error);
    if (!rc && !is_config_sure)
        rc = input_file_compare(&d->config_file, 0, d->config.data, d->config.bytes, error);
    if (!rc) *ret_sure = are_models_sure;
    return rc;
}

/* A trainer may have renamed the directory and put another one in its place. */
bool peft_is_at(const peft_dir_t *d, const char *dir)
{
    struct stat opened, named;
    return !fstat(d->fd, &opened) && !stat(dir, &named) && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

/* ---- reading ---- */

/* A pass over the tensors' bytes: the first one passes them on, a second one compares them with the file. */
typedef struct {
    const peft_dir_t *dir;
    const peft_sink_t *to;
    bool is_second;
    uint8_t *piece;
} pass_t;

/* In pieces, so that a stop takes effect within a large tensor too.  Each is digested at once, while it is
 * still in the cache. */
static int pass_model(const pass_t *p, const weights_file_t *m, const uint64_t *places, heddle_error_t *error)
{
    const peft_sink_t *to = p->to;
    uint64_t since_stop_bytes = 0, again[PIECE_LEAVES];
    for (uint32_t i = 0; i < m->table.count; i++) {
        uint64_t offset = m->data_start + m->table.starts[i], left = m->table.tensors[i].data_bytes;
        uint64_t at = places[m->first + i];
        since_stop_bytes += LIMIT_PAGE_BYTES; /* a small tensor costs a call and a page too */
        while (left > 0) {
            size_t bytes = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES, room = (size_t)tensor_room(bytes);
            uint64_t *leaves = to->leaves + at / LIMIT_PAGE_BYTES;
            uint8_t *piece = to->base && !p->is_second ? to->base + at : p->piece;
            int rc = input_file_read(&m->file, offset, piece, bytes, error);
            if (rc) return rc;
            digest_leaves(piece, bytes, p->is_second ? again : leaves);
            if (p->is_second && memcmp(again, leaves, room / LIMIT_PAGE_BYTES * sizeof *leaves) != 0)
                return input_file_refuse_changed(&m->file, READ_OTHERWISE, error);
            if (!p->is_second) memset(piece + bytes, 0, room - bytes);
            if (!p->is_second && !to->base) rc = to->put(to, at, piece, room, error);
            since_stop_bytes += bytes;
            if (!rc && since_stop_bytes >= STOP_BYTES) {
                rc = stop_check(error);
                since_stop_bytes = 0;
            }
            if (rc) return rc;
            at += bytes;
            offset += bytes;
            left -= bytes;
        }
    }
    return HEDDLE_OK;
}

static int pass_tensors(const pass_t *p, const uint64_t *places, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; i < p->dir->model_count && !rc; i++)
        rc = pass_model(p, &p->dir->models[i], places, error);
    return rc;
}

/* The second pass compares digests, and not bytes: the first pass has passed its bytes on. */
int peft_read(peft_dir_t *d, const peft_sink_t *to, const uint64_t *places, heddle_error_t *error)
{
    bool is_sure = false;
    pass_t p = {.dir = d, .to = to, .piece = malloc(PIECE_BYTES)};
    if (!p.piece) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to read an adapter");
    int rc = pass_tensors(&p, places, error);
    if (!rc) rc = peft_check_unchanged(d, &is_sure, error);
    p.is_second = true;
    if (!rc && !is_sure) rc = pass_tensors(&p, places, error);
    free(p.piece);
    return rc;
}

/* ---- the digest ---- */

/* h1 in constant memory: the digest needs each tensor's leaves, never the whole payload. */
static int digest_once(const peft_dir_t *d, digest_t *ret_digest, heddle_error_t *error)
{
    uint8_t *piece = malloc(PIECE_BYTES);
    if (!piece) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to digest an adapter");
    h1_t h1;
    layout_h1_begin(&d->layout, d->tensors, peft_config(d), &h1);
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; i < d->layout.count && !rc; i++) {
        uint32_t row = d->layout.order[i];
        const weights_file_t *m = model_of(d, row);
        uint64_t offset = m->data_start + m->table.starts[row - m->first], left = d->layout.sizes[row];
        while (left > 0 && !rc) {
            size_t bytes = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
            rc = input_file_read(&m->file, offset, piece, bytes, error);
            if (rc) break;
            h1_add_payload(&h1, piece, bytes);
            offset += bytes;
            left -= bytes;
        }
    }
    free(piece);
    if (!rc) *ret_digest = h1_final(&h1);
    return rc;
}

/* Takes the handle.  The files are digested twice if it is not certain otherwise that no process wrote to
 * them meanwhile. */
static int digest_opened(peft_dir_t *d, heddle_adapter_info_t *ret_info, heddle_error_t *error)
{
    digest_t digest, again;
    bool is_sure = false;
    int rc = digest_once(d, &digest, error);
    if (!rc) rc = peft_check_unchanged(d, &is_sure, error);
    if (!rc && !is_sure) {
        rc = digest_once(d, &again, error);
        if (!rc && !digest_equal(&again, &digest))
            rc = input_file_refuse_changed(&d->models[0].file, READ_OTHERWISE, error);
    }
    if (!rc) {
        uint32_t chunk_bytes = manifest_chunk_bytes(d->layout.payload_bytes);
        *ret_info = (heddle_adapter_info_t){
            .size = sizeof *ret_info,
            .data_bytes = d->layout.data_bytes,
            .tensor_count = d->layout.count,
            .chunk_count = (uint32_t)((d->layout.payload_bytes + chunk_bytes - 1) / chunk_bytes),
            .chunk_bytes = chunk_bytes,
        };
        error_text(ret_info->kind, sizeof ret_info->kind, d->kind->name);
        digest_text(&digest, ret_info->digest);
        memcpy(ret_info->features, d->features, sizeof ret_info->features);
        memcpy(ret_info->base_model, d->base_model, sizeof ret_info->base_model);
        d->kind->warn(d->tensors, d->tensor_count);
    }
    peft_close(&d);
    return rc;
}

/* An exported version of kind tensors. With a file of PEFT's it is half of an adapter, and reported so. */
static bool is_of_weights(const char *dir)
{
    int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool is_so = fd >= 0 && exists(fd, WEIGHTS) && !exists(fd, PEFT_MODEL) && !exists(fd, PEFT_CONFIG);
    if (fd >= 0) close(fd);
    return is_so;
}

int peft_digest(const char *dir, heddle_adapter_info_t *ret_info, heddle_error_t *error)
{
    peft_dir_t *d = NULL;
    char path[PATH_MAX];
    bool fits = snprintf(path, sizeof path, "%s/" WEIGHTS, dir) < (int)sizeof path;
    if (fits && is_of_weights(dir))
        return peft_digest_files((const char *const[]){path, NULL}, ret_info, error);
    int rc = peft_open(dir, &d, error);
    return rc ? rc : digest_opened(d, ret_info, error);
}

int peft_digest_files(const char *const *files, heddle_adapter_info_t *ret_info, heddle_error_t *error)
{
    peft_dir_t *d = NULL;
    int rc = peft_open_files(files, &d, error);
    return rc ? rc : digest_opened(d, ret_info, error);
}

/* ---- writing ---- */

/* Beyond a quota or a limit of file sizes is as full as the disk itself, and has the same remedy. */
static bool is_full(int err) { return err == ENOSPC || err == EDQUOT || err == EFBIG; }

/* The bytes of the whole file are named: an operator needs to know how much room to make. */
static int fail_write(const char *name, int err, uint64_t bytes, heddle_error_t *error)
{
    bool full = is_full(err);
    int rc = error_fail(error,
                        full            ? HEDDLE_ERR_NO_SPACE
                        : err == ENOMEM ? HEDDLE_ERR_NO_MEMORY
                                        : HEDDLE_ERR_INTERNAL,
                        "cannot write %s: %s", name, strerror(err));
    error_expected(error, "room for %" PRIu64 " bytes", bytes);
    error_found(error, "%s", strerror(err));
    error_hint(error, full ? "make room on the disk of the export directory"
                           : "check the export directory and its file system");
    return rc;
}

/* Allocates all blocks of a new file, so that a full disk is found before anything is written. */
static int create(int dir_fd, const char *name, uint64_t bytes, heddle_error_t *error, FILE **ret_stream)
{
    int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, WRITE_MODE);
    if (fd < 0) return fail_write(name, errno, bytes, error);
    int err = fallocate(fd, 0, 0, (off_t)bytes) ? errno : 0;
    if (!is_full(err)) err = 0; /* not every file system can */
    if (!err && FAILPOINT("peft.write")) err = ENOSPC;
    FILE *stream = err ? NULL : fdopen(fd, "w");
    if (!stream) {
        err = err ? err : errno;
        close(fd);
        return fail_write(name, err, bytes, error);
    }
    setvbuf(stream, NULL, _IOFBF, STREAM_BYTES);
    *ret_stream = stream;
    return HEDDLE_OK;
}

/* Flushes, syncs and closes; `err` is what went wrong before, or 0. */
static int finish(FILE *stream, const char *name, int err, uint64_t bytes, heddle_error_t *error)
{
    if (!err && (fflush(stream) || fsync(fileno(stream)))) err = errno;
    if (fclose(stream) && !err) err = errno;
    return err ? fail_write(name, err, bytes, error) : HEDDLE_OK;
}

/* 0, or errno. */
static int put(FILE *stream, const void *data, size_t bytes)
{
    return bytes && fwrite(data, 1, bytes, stream) != bytes ? errno : 0;
}

/* Whole files are written and synced one after the other; the caller renames the directory when both are
 * there. */
int peft_write(int dir_fd, const manifest_t *m, const void *payload, heddle_error_t *error)
{
    FILE *stream;
    buf_t header = {0};
    const content_kind_t *kind = kind_find(m->kind);
    if (!kind) {
        int rc = error_fail(error, HEDDLE_ERR_UNSUPPORTED_FEATURE, "this release writes no files of kind %s",
                            m->kind);
        error_contrast(error, "lora or tensors", m->kind);
        error_hint(error, "use a later release of Heddle");
        return rc;
    }
    uint32_t *order = calloc(m->tensor_count, sizeof *order);
    int rc = order ? safetensors_write(m, &header, order, error)
                   : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to export %" PRIu32 " tensors",
                                m->tensor_count);
    uint64_t bytes = header.bytes + m->data_bytes;
    if (!rc) rc = create(dir_fd, kind->model_file, bytes, error, &stream);
    if (!rc) {
        int err = put(stream, header.data, header.bytes);
        for (uint32_t i = 0; i < m->tensor_count && !err; i++) {
            manifest_row_t row;
            manifest_row(m, order[i], &row);
            err = put(stream, (const uint8_t *)payload + row.offset, (size_t)row.bytes);
        }
        rc = finish(stream, kind->model_file, err, bytes, error);
    }
    /* The config comes last, as PEFT writes it: its presence shows that the weights are complete. */
    const char *config = kind->config_file;
    if (!rc && config) rc = create(dir_fd, config, m->config.bytes, error, &stream);
    if (!rc && config)
        rc = finish(stream, config, put(stream, m->config.data, m->config.bytes), m->config.bytes, error);
    buf_fini(&header);
    free(order);
    return rc;
}
