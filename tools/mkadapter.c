/* SPDX-License-Identifier: Apache-2.0 */
/* mkadapter: makes a PEFT directory with the shape of a real LoRA, filled from a seed: for the demo, tests, benchmarks. */
#include "core/errors.h"
#include "core/option.h"
#include "proto/peft.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first `dense` layers have an MLP of width ff; the others have experts, and `shared` ones beside them.  Where latent_q is
 * set attention goes by latents (MLA): q and kv are the widths that come out of them, out goes into o_proj. */
typedef struct {
    const char *name, *base;
    unsigned layers, hidden, q, kv, out, ff, experts, expert_ff, shared, dense, latent_q, latent_kv, rope;
} shape_t;
/* From the models' config.json on the hub. */
static const shape_t SHAPES[] = {
    {"tiny", "example/tiny", 2, 64, 64, 32, 64, 128, 0, 0, 0, 2, 0, 0, 0},
    {"qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 24, 896, 896, 128, 896, 4864, 0, 0, 0, 24, 0, 0, 0},
    {"qwen3-8b", "Qwen/Qwen3-8B", 36, 4096, 4096, 1024, 4096, 12288, 0, 0, 0, 36, 0, 0, 0},
    {"llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 4096, 4096, 1024, 4096, 14336, 0, 0, 0, 32, 0, 0, 0},
    {"llama-3.1-70b", "meta-llama/Llama-3.1-70B", 80, 8192, 8192, 1024, 8192, 28672, 0, 0, 0, 80, 0, 0, 0},
    {"qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 48, 2048, 4096, 512, 4096, 0, 128, 768, 0, 0, 0, 0, 0},
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3", 61, 7168, 24576, 32768, 16384, 18432, 256, 2048, 1, 3, 1536, 512, 64},
};
#define SHAPE_NAMES "tiny|qwen2.5-0.5b|qwen3-8b|llama-3.1-8b|llama-3.1-70b|qwen3-30b-a3b|deepseek-v3"

typedef struct { int shape; int64_t rank, narrow, seed, tensors; bool force; } args_t;
static const option_t OPTIONS[] = {
    {"shape", 0, OPTION_CHOICE, SHAPE_NAMES, NULL, "qwen2.5-0.5b", "model whose linear layers get a LoRA", offsetof(args_t, shape)},
    {"rank", 'r', OPTION_INTEGER, "N", NULL, "16", "rank, 1 to 1024", offsetof(args_t, rank)},
    {"narrow", 0, OPTION_INTEGER, "N", NULL, "1", "divide every width of the shape by N, 1 to 1024: as many tensors, fewer bytes", offsetof(args_t, narrow)},
    {"seed", 's', OPTION_INTEGER, "N", NULL, "1", "other seeds give other bytes", offsetof(args_t, seed)},
    {"tensors", 0, OPTION_INTEGER, "N", NULL, "0", "instead of a shape: N tiny tensors, an even number up to 1000000", offsetof(args_t, tensors)},
    {"force", 'f', OPTION_FLAG, NULL, NULL, NULL, "write into DIR though it exists", offsetof(args_t, force)},
    {0}};
static const char *const ARGS[] = {"DIR", NULL};
static const option_set_t SET = {"mkadapter", "[OPTION...] DIR",
    "Makes DIR, a PEFT adapter (adapter_config.json, adapter_model.safetensors) of bf16 tensors in the shape of a real LoRA on all\n"
    "linear layers.  The same options give the same bytes.", NULL, OPTIONS, NULL, ARGS, 1};

typedef struct { heddle_tensor_t *rows; uint32_t count, capacity; } table_t;

static void add_tensor(table_t *t, const char *module, const char *side, uint64_t rows, uint64_t columns)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 1024;
        t->rows = realloc(t->rows, t->capacity * sizeof *t->rows);
        if (!t->rows) abort();
    }
    char name[256];
    snprintf(name, sizeof name, "base_model.model.model.%s.lora_%s.weight", module, side);
    uint64_t *dims = malloc(2 * sizeof *dims);
    char *copy = strdup(name);
    if (!dims || !copy) abort();
    dims[0] = rows;
    dims[1] = columns;
    t->rows[t->count++] = (heddle_tensor_t){.size = sizeof *t->rows, .name = copy, .dtype = HEDDLE_DTYPE_BF16, .ndim = 2, .dims = dims};
}

static void add_linear(table_t *t, unsigned layer, const char *module, unsigned in, unsigned out, unsigned rank)
{
    char full[160];
    snprintf(full, sizeof full, "layers.%u.%s", layer, module);
    add_tensor(t, full, "A", rank, in);
    add_tensor(t, full, "B", out, rank);
}

static void add_mlp(table_t *t, unsigned layer, const char *prefix, unsigned hidden, unsigned ff, unsigned rank)
{
    char module[96];
    snprintf(module, sizeof module, "%s.gate_proj", prefix);
    add_linear(t, layer, module, hidden, ff, rank);
    snprintf(module, sizeof module, "%s.up_proj", prefix);
    add_linear(t, layer, module, hidden, ff, rank);
    snprintf(module, sizeof module, "%s.down_proj", prefix);
    add_linear(t, layer, module, ff, hidden, rank);
}

static void add_attention(table_t *t, const shape_t *s, unsigned layer, unsigned rank)
{
    if (s->latent_q) {
        add_linear(t, layer, "self_attn.q_a_proj", s->hidden, s->latent_q, rank);
        add_linear(t, layer, "self_attn.q_b_proj", s->latent_q, s->q, rank);
        add_linear(t, layer, "self_attn.kv_a_proj_with_mqa", s->hidden, s->latent_kv + s->rope, rank);
        add_linear(t, layer, "self_attn.kv_b_proj", s->latent_kv, s->kv, rank);
    } else {
        add_linear(t, layer, "self_attn.q_proj", s->hidden, s->q, rank);
        add_linear(t, layer, "self_attn.k_proj", s->hidden, s->kv, rank);
        add_linear(t, layer, "self_attn.v_proj", s->hidden, s->kv, rank);
    }
    add_linear(t, layer, "self_attn.o_proj", s->out, s->hidden, rank);
}

static void add_experts(table_t *t, const shape_t *s, unsigned layer, unsigned rank)
{
    for (unsigned e = 0; e < s->experts; e++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "mlp.experts.%u", e);
        add_mlp(t, layer, prefix, s->hidden, s->expert_ff, rank);
    }
    if (s->shared) add_mlp(t, layer, "mlp.shared_experts", s->hidden, s->shared * s->expert_ff, rank);
}

static void add_shape(table_t *t, const shape_t *s, unsigned rank)
{
    for (unsigned layer = 0; layer < s->layers; layer++) {
        add_attention(t, s, layer, rank);
        if (layer < s->dense) add_mlp(t, layer, "mlp", s->hidden, s->ff, rank);
        else add_experts(t, s, layer, rank);
    }
}

/* The same layers with every width divided, none below 1. */
static shape_t narrowed(const shape_t *shape, unsigned by)
{
    shape_t s = *shape;
    unsigned *widths[] = {&s.hidden, &s.q, &s.kv, &s.out, &s.ff, &s.expert_ff, &s.latent_q, &s.latent_kv, &s.rope};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (*widths[i]) *widths[i] = *widths[i] > by ? *widths[i] / by : 1;
    return s;
}

static void add_tiny(table_t *t, int64_t tensors)
{
    for (int64_t i = 0; i < tensors / 2; i++) add_linear(t, (unsigned)(i / 1000), (char[]){'m', (char)('0' + i / 100 % 10), (char)('0' + i / 10 % 10), (char)('0' + i % 10), 0}, 8, 8, 1);
}

/* xorshift64*: small bf16 numbers around zero, so that the adapter looks like weights. */
static void fill(uint16_t *at, uint64_t count, uint64_t *state)
{
    for (uint64_t i = 0; i < count; i++) {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        uint64_t r = *state * 2685821657736338717ull >> 32;
        at[i] = (uint16_t)((r & 0x8000u) | 0x3c00u | (r & 0x01ffu)); /* sign, 2^-7 .. 2^-3 */
    }
}

static void add_config(buf_t *b, const shape_t *s, int64_t rank)
{
    buf_printf(b, "{\n  \"base_model_name_or_path\": \"%s\",\n  \"bias\": \"none\",\n  \"inference_mode\": true,\n"
                  "  \"lora_alpha\": %lld,\n  \"lora_dropout\": 0.0,\n  \"peft_type\": \"LORA\",\n  \"r\": %lld,\n"
                  "  \"target_modules\": [\n    \"q_proj\",\n    \"k_proj\",\n    \"v_proj\",\n    \"o_proj\",\n    \"gate_proj\",\n"
                  "    \"up_proj\",\n    \"down_proj\"\n  ],\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_dora\": false,\n  \"use_rslora\": false\n}",
               s->base, 2 * (long long)rank, (long long)rank);
}

static void free_table(table_t *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        free((char *)(uintptr_t)t->rows[i].name);
        free((uint64_t *)(uintptr_t)t->rows[i].dims);
    }
    free(t->rows);
}

static int write_files(const manifest_input_t *in, int dir_fd, heddle_error_t *error)
{
    manifest_t manifest = {0};
    buf_t encoded = {0};
    digest_t h1;
    int rc = manifest_build(in, &encoded, &h1);
    if (rc) error_fail(error, rc, "no memory for a manifest");
    else rc = manifest_decode(buf_view(&encoded), &manifest, error);
    if (!rc) rc = peft_write(dir_fd, &manifest, in->region, error);
    if (!rc) {
        char text[HEDDLE_DIGEST_TEXT];
        digest_text(&h1, text);
        printf("%u tensors, %llu bytes, %s\n", manifest.tensor_count, (unsigned long long)in->layout->data_bytes, text);
    }
    manifest_fini(&manifest);
    buf_fini(&encoded);
    return rc;
}

static int make_files(const args_t *args, const table_t *table, const layout_t *layout, int dir_fd, heddle_error_t *error)
{
    uint8_t *region = mmap(NULL, layout->region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)layout->region_bytes);
    uint64_t state = (uint64_t)args->seed * 0x9e3779b97f4a7c15ull | 1;
    for (uint32_t i = 0; i < table->count; i++) fill((uint16_t *)(void *)(region + layout->places[i]), layout->sizes[i] / 2, &state);
    buf_t config = {0};
    add_config(&config, &SHAPES[args->shape], args->rank);
    manifest_input_t in = {table->rows, layout, buf_view(&config), bytes_of("{\"format\":\"pt\"}", 15), "lora", "", region};
    int rc = write_files(&in, dir_fd, error);
    buf_fini(&config);
    munmap(region, layout->region_bytes);
    return rc;
}

static int make(const args_t *args, int dir_fd, heddle_error_t *error)
{
    table_t table = {0};
    shape_t shape = narrowed(&SHAPES[args->shape], (unsigned)args->narrow);
    if (args->tensors) add_tiny(&table, args->tensors);
    else add_shape(&table, &shape, (unsigned)args->rank);
    layout_t layout = {0};
    int rc = layout_make(table.rows, table.count, &layout, error);
    if (!rc) rc = make_files(args, &table, &layout, dir_fd, error);
    if (!rc) layout_fini(&layout);
    free_table(&table);
    return rc;
}

static int check_args(const args_t *args, heddle_error_t *error)
{
    bool is_fine = args->rank >= 1 && args->rank <= 1024 && args->narrow >= 1 && args->narrow <= 1024 && args->tensors >= 0 &&
                   args->tensors <= 1000000 && args->tensors % 2 == 0;
    if (is_fine) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "mkadapter: --rank, --narrow or --tensors is out of range");
    error_expected(error, "rank and narrow 1..1024; tensors even, 0..1000000");
    return rc;
}

int main(int argc, char **argv)
{
    args_t args = {0};
    const char *dir = NULL;
    heddle_error_t error = {0};
    int rc = option_parse(&SET, argc, argv, &args, &dir, &error);
    if (rc == 1) return 0;
    if (!rc) rc = check_args(&args, &error);
    if (!rc && mkdir(dir, 0777) != 0 && !(errno == EEXIST && args.force))
        rc = error_fail(&error, HEDDLE_ERR_INTERNAL, "mkadapter: cannot make %s: %s", dir, strerror(errno));
    if (!rc && args.force) {
        char path[4096];
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
        unlink(path);
        snprintf(path, sizeof path, "%s/adapter_config.json", dir);
        unlink(path);
    }
    int fd = rc ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!rc && fd < 0) rc = error_fail(&error, HEDDLE_ERR_INTERNAL, "mkadapter: cannot open %s: %s", dir, strerror(errno));
    if (!rc) rc = make(&args, fd, &error);
    if (fd >= 0) close(fd);
    bool is_named = !strncmp(error.message, "mkadapter: ", 11);    /* the option parser names the program itself */
    if (rc) fprintf(stderr, "%s%s%s%s\n", is_named ? "" : "mkadapter: ", error.message, error.hint[0] ? "; " : "", error.hint);
    return heddle_err_exit(rc);
}
