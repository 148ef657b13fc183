/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of tensors from the dimensions of public models.
 *
 * How long a version takes depends on the number and the sizes of its tensors as well as on its bytes, so the
 * tables have the names and extents that PEFT gives to a LoRA on all linear layers. Only the values are made
 * up. */
#include "bench/shape.h"

#include <stdio.h>
#include <stdlib.h>

/* The first `dense` layers have an MLP of width ff; the others have experts, and `shared` ones in addition.
 * With latent_q, attention uses latents (MLA): q and kv are then the widths behind the latents, and out is
 * the input of o_proj. */
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
    {"deepseek-v3", "deepseek-ai/DeepSeek-V3", 61, 7168, 24576, 32768, 16384, 18432, 256, 2048, 1, 3, 1536,
     512, 64},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES, ELEMENT_BYTES = 2 };

int shape_find(const char *name)
{
    for (int i = 0; i < SHAPE_COUNT; i++)
        if (!strcmp(SHAPES[i].name, name)) return i;
    return -1;
}

static bool add_tensor(shape_table_t *t, const char *module, const char *side, uint64_t rows,
                       uint64_t columns)
{
    char name[256];
    int n = snprintf(name, sizeof name, "base_model.model.model.%s.lora_%s.weight", module, side);
    const uint64_t extents[] = {rows, columns};
    uint64_t *dims = arena_copy(&t->arena, extents, sizeof extents);
    char *copy = arena_text(&t->arena, name, (size_t)n);
    if (t->count == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 1024;
        heddle_tensor_t *grown = realloc(t->rows, capacity * sizeof *grown);
        if (!grown) return false;
        t->rows = grown;
        t->capacity = capacity;
    }
    if (!dims || !copy) return false;
    t->rows[t->count++] = (heddle_tensor_t){.size = sizeof *t->rows,
                                            .name = copy,
                                            .dtype = HEDDLE_DTYPE_BF16,
                                            .ndim = 2,
                                            .dims = dims,
                                            .data_bytes = rows * columns * ELEMENT_BYTES};
    t->data_bytes += rows * columns * ELEMENT_BYTES;
    return true;
}

/* A LoRA is two factors: A of rank x in, B of out x rank. */
static bool add_linear(shape_table_t *t, unsigned layer, const char *module, unsigned in, unsigned out,
                       unsigned rank)
{
    char full[160];
    snprintf(full, sizeof full, "layers.%u.%s", layer, module);
    return add_tensor(t, full, "A", rank, in) && add_tensor(t, full, "B", out, rank);
}

static bool add_mlp(shape_table_t *t, unsigned layer, const char *prefix, unsigned hidden, unsigned ff,
                    unsigned rank)
{
    static const struct {
        const char *name;
        bool is_down;
    } PARTS[] = {{"gate_proj", false}, {"up_proj", false}, {"down_proj", true}};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        char module[96];
        snprintf(module, sizeof module, "%s.%s", prefix, PARTS[i].name);
        unsigned in = PARTS[i].is_down ? ff : hidden, out = PARTS[i].is_down ? hidden : ff;
        if (!add_linear(t, layer, module, in, out, rank)) return false;
    }
    return true;
}

static bool add_attention(shape_table_t *t, const shape_t *s, unsigned layer, unsigned rank)
{
    const struct {
        const char *name;
        unsigned in, out;
    } direct[] = {{"self_attn.q_proj", s->hidden, s->q},
                  {"self_attn.k_proj", s->hidden, s->kv},
                  {"self_attn.v_proj", s->hidden, s->kv}},
      latent[] = {{"self_attn.q_a_proj", s->hidden, s->latent_q},
                  {"self_attn.q_b_proj", s->latent_q, s->q},
                  {"self_attn.kv_a_proj_with_mqa", s->hidden, s->latent_kv + s->rope},
                  {"self_attn.kv_b_proj", s->latent_kv, s->kv}};
    bool ok = true;
    for (size_t i = 0; ok && !s->latent_q && i < sizeof direct / sizeof *direct; i++)
        ok = add_linear(t, layer, direct[i].name, direct[i].in, direct[i].out, rank);
    for (size_t i = 0; ok && s->latent_q && i < sizeof latent / sizeof *latent; i++)
        ok = add_linear(t, layer, latent[i].name, latent[i].in, latent[i].out, rank);
    return ok && add_linear(t, layer, "self_attn.o_proj", s->out, s->hidden, rank);
}

static bool add_experts(shape_table_t *t, const shape_t *s, unsigned layer, unsigned rank)
{
    bool ok = true;
    for (unsigned e = 0; ok && e < s->experts; e++) {
        char prefix[48];
        snprintf(prefix, sizeof prefix, "mlp.experts.%u", e);
        ok = add_mlp(t, layer, prefix, s->hidden, s->expert_ff, rank);
    }
    return ok &&
           (!s->shared || add_mlp(t, layer, "mlp.shared_experts", s->hidden, s->shared * s->expert_ff, rank));
}

int shape_table(int shape, uint32_t rank, uint32_t narrow, shape_table_t *ret_table)
{
    shape_table_t t = {0};
    /* The same layers with every width divided, none below 1. */
    shape_t s = SHAPES[shape];
    unsigned *widths[] = {&s.hidden,    &s.q,        &s.kv,        &s.out, &s.ff,
                          &s.expert_ff, &s.latent_q, &s.latent_kv, &s.rope};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (*widths[i]) *widths[i] = *widths[i] > narrow ? *widths[i] / narrow : 1;
    for (unsigned layer = 0; layer < s.layers; layer++) {
        bool ok = add_attention(&t, &s, layer, rank) &&
                  (layer < s.dense ? add_mlp(&t, layer, "mlp", s.hidden, s.ff, rank)
                                   : add_experts(&t, &s, layer, rank));
        if (ok) continue;
        shape_table_fini(&t);
        return HEDDLE_ERR_NO_MEMORY;
    }
    *ret_table = t;
    return HEDDLE_OK;
}

/* For tests of many tensors: their number is what is tried, so the bytes are as few as they can be. */
int shape_tiny_table(uint32_t count, shape_table_t *ret_table)
{
    shape_table_t t = {0};
    for (uint32_t i = 0; i < count / 2; i++) {
        char module[] = {'m', (char)('0' + i / 100 % 10), (char)('0' + i / 10 % 10), (char)('0' + i % 10), 0};
        if (!add_linear(&t, i / 1000, module, 8, 8, 1)) {
            shape_table_fini(&t);
            return HEDDLE_ERR_NO_MEMORY;
        }
    }
    *ret_table = t;
    return HEDDLE_OK;
}

void shape_table_fini(shape_table_t *t)
{
    free(t->rows);
    arena_fini(&t->arena);
    *t = (shape_table_t){0};
}

/* lora_alpha is twice the rank, as most recipes have it; it changes no byte of the tensors. */
void shape_config(int shape, uint32_t rank, buf_t *out)
{
    buf_printf(
        out,
        "{\n  \"base_model_name_or_path\": \"%s\",\n  \"bias\": \"none\",\n  \"inference_mode\": true,\n"
        "  \"lora_alpha\": %u,\n  \"lora_dropout\": 0.0,\n  \"peft_type\": \"LORA\",\n  \"r\": %u,\n"
        "  \"target_modules\": [\n    \"q_proj\",\n    \"k_proj\",\n    \"v_proj\",\n    \"o_proj\",\n"
        "    \"gate_proj\",\n    \"up_proj\",\n    \"down_proj\"\n  ],\n  \"task_type\": \"CAUSAL_LM\",\n"
        "  \"use_dora\": false,\n  \"use_rslora\": false\n}",
        SHAPES[shape].base, 2 * rank, rank);
}

uint64_t shape_seed(uint64_t seed) { return seed * 0x9e3779b97f4a7c15ull | 1; }

/* xorshift64*: fast, and good enough for bytes that must merely not compress or repeat. */
void shape_fill(void *at, uint64_t bytes, uint64_t *state)
{
    uint16_t *numbers = at;
    for (uint64_t i = 0; i < bytes / ELEMENT_BYTES; i++) {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        uint64_t r = *state * 2685821657736338717ull >> 32;
        numbers[i] = (uint16_t)((r & 0x8000u) | 0x3c00u | (r & 0x01ffu)); /* sign, 2^-7 .. 2^-3 */
    }
}
