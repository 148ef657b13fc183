/* SPDX-License-Identifier: Apache-2.0 */
/* What a pack refuses, and that it copies what it was given. */
#include "trainer_client/pack.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/stop.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

static const char CONFIG[] = "{\"peft_type\":\"LORA\",\"r\":4}";
static const uint64_t DIMS[] = {2, 3};

static heddle_tensor_t row(const char *name)
{
    return (heddle_tensor_t){.size = sizeof(heddle_tensor_t),
                             .name = name,
                             .dtype = HEDDLE_DTYPE_F32,
                             .ndim = 2,
                             .dims = DIMS};
}

static int pack(const heddle_tensor_t *tensors, uint32_t count, const char *config, const char *metadata,
                heddle_error_t *error)
{
    pack_t *p = NULL;
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = tensors,
                       .count = count,
                       .config = bytes_of(config, strlen(config)),
                       .metadata = bytes_of(metadata, strlen(metadata))};
    int rc = pack_new(&in, &p, error);
    cr_assert_eq(rc == HEDDLE_OK, p != NULL);
    pack_destroy(&p);
    cr_assert_null(p);
    return rc;
}

Test(pack, refusals)
{
    heddle_error_t error;
    heddle_tensor_t good = row("a.lora_A.weight"), t = good;
    cr_assert_eq(pack(&good, 1, CONFIG, "", &error), HEDDLE_OK);
    cr_assert_eq(pack(&good, 0, CONFIG, "", &error), HEDDLE_ERR_BAD_ADAPTER);
    cr_assert_eq(pack(&good, LIMIT_TENSORS + 1, CONFIG, "", &error), HEDDLE_ERR_LIMIT);
    cr_assert_eq(pack(&good, 1, "{\"peft_type\":\"IA3\"}", "", &error), HEDDLE_ERR_UNSUPPORTED_PEFT_TYPE);
    cr_assert_eq(pack(&good, 1, "[", "", &error), HEDDLE_ERR_BAD_ADAPTER);
    cr_assert_eq(pack(&good, 1, CONFIG, "[1]", &error), HEDDLE_ERR_BAD_ADAPTER);
    cr_assert_eq(pack(&good, 1, CONFIG, "{\"a\":1}", &error), HEDDLE_ERR_BAD_ADAPTER);
    t = row("a.weight");
    cr_assert_eq(pack(&t, 1, CONFIG, "", &error), HEDDLE_ERR_NO_LORA);
    t = row(NULL);
    cr_assert_eq(pack(&t, 1, CONFIG, "", &error), HEDDLE_ERR_BAD_ADAPTER);
    heddle_tensor_t twice[] = {good, good};
    cr_assert_eq(pack(twice, 2, CONFIG, "", &error), HEDDLE_ERR_BAD_ADAPTER);
    t = good, t.dims = NULL;
    cr_assert_eq(pack(&t, 1, CONFIG, "", &error), HEDDLE_ERR_BAD_ADAPTER);
    t = good, t.ndim = LIMIT_TENSOR_DIMS + 1;
    cr_assert_eq(pack(&t, 1, CONFIG, "", &error), HEDDLE_ERR_BAD_ADAPTER);
    t = good, t.dtype = HEDDLE_DTYPE_COUNT;
    cr_assert_eq(pack(&t, 1, CONFIG, "", &error), HEDDLE_ERR_BAD_ADAPTER);
    for (int memory = HEDDLE_MEMORY_PINNED; memory <= HEDDLE_MEMORY_CUDA; memory++) {
        t = good, t.memory = memory;
        cr_assert_eq(pack(&t, 1, CONFIG, "", &error), HEDDLE_ERR_UNSUPPORTED_FEATURE);
    }
}

Test(pack, long_texts_are_refused_before_they_are_copied)
{
    heddle_error_t error;
    heddle_tensor_t t = row("a.lora_A.weight");
    pack_t *p;
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = &t,
                       .count = 1,
                       .config = bytes_of(CONFIG, (size_t)LIMIT_CONFIG_BYTES + 1)};
    cr_assert_eq(pack_new(&in, &p, &error), HEDDLE_ERR_LIMIT);
    in.config.bytes = sizeof CONFIG - 1;
    in.metadata = bytes_of(CONFIG, (size_t)LIMIT_METADATA_BYTES + 1);
    cr_assert_eq(pack_new(&in, &p, &error), HEDDLE_ERR_LIMIT);
}

/* The digest that the same content has, whatever order and memory it came in. */
static sealed_t seal(bool reversed, uint8_t before)
{
    char names[2][32] = {"a.lora_A.weight", "b.lora_B.weight"}, config[64];
    uint64_t dims[] = {2, 3};
    heddle_error_t error;
    snprintf(config, sizeof config, "%s", CONFIG);
    heddle_tensor_t tensors[] = {row(names[reversed]), row(names[!reversed])};
    tensors[0].dims = tensors[1].dims = dims;
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = tensors,
                       .count = 2,
                       .config = bytes_of(config, strlen(config))};
    pack_t *p;
    cr_assert_eq(pack_new(&in, &p, &error), HEDDLE_OK);
    memset(names, 'x', sizeof names); /* all of it was copied */
    memset(tensors, 0xff, sizeof tensors);
    memset(config, 'x', sizeof config);
    dims[0] = 1000;
    uint8_t *base = aligned_alloc(4096, (pack_bytes(p) + 4095) & ~4095ull);
    memset(base, before, pack_bytes(p));
    pack_lay(p, base);
    cr_assert_null(pack_tensor(p, 2));
    for (uint32_t i = 0; i < 2; i++) memset(pack_tensor(p, i), 'a' + (reversed ? 1 - (int)i : (int)i), 24);
    sealed_t s;
    cr_assert_eq(pack_seal(p, &s, &error), HEDDLE_OK);
    cr_assert_leq(s.content_bytes, pack_bytes(p));
    cr_assert_eq(s.content_bytes, s.part.payload_bytes + s.part.manifest_bytes);
    cr_assert_eq(s.chunk_count, 1);
    pack_destroy(&p);
    free(base);
    return s;
}

Test(pack, the_digest_is_of_the_content_alone)
{
    sealed_t a = seal(false, 0), b = seal(true, 0xee);
    cr_assert(digest_equal(&a.digest, &b.digest));
    cr_assert(digest_equal(&a.part.manifest_digest, &b.part.manifest_digest));
}

/* Two tensors of three pages and a bit, written in different ways over what lay there before. */
typedef enum { BY_POINTER, BY_WRITE, BY_BOTH, WRITTEN_THEN_CHANGED, POINTER_KEPT } way_t;

static void write_row(pack_t *p, uint32_t row, const void *from)
{
    const void *sources[2] = {0};
    sources[row] = from;
    pack_write_begin(p, sources);
    pack_write(p, sources, 0, p->layout.payload_bytes);
}

static digest_t digest_of(way_t way)
{
    enum { BYTES = 3 * 4096 + 100 };
    static const uint64_t SIZE[] = {BYTES / 4};
    static uint8_t source[2][BYTES];
    heddle_error_t error;
    pack_t *p;
    sealed_t s;
    heddle_tensor_t tensors[] = {row("b.lora_B.weight"), row("a.lora_A.weight")};
    for (int i = 0; i < 2; i++)
        tensors[i].ndim = 1, tensors[i].dims = SIZE, memset(source[i], 'a' + i, BYTES);
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = tensors,
                       .count = 2,
                       .config = bytes_of(CONFIG, strlen(CONFIG))};
    cr_assert_eq(pack_new(&in, &p, &error), HEDDLE_OK);
    uint8_t *base = aligned_alloc(4096, (pack_bytes(p) + 4095) & ~4095ull), *kept = NULL;
    memset(base, 0xee, pack_bytes(p));
    pack_lay(p, base);
    if (way == POINTER_KEPT) kept = pack_tensor(p, 0);
    for (uint32_t i = 0; i < 2; i++)
        if (way == BY_POINTER || (way == BY_BOTH && i == 0)) memcpy(pack_tensor(p, i), source[i], BYTES);
        else write_row(p, i, source[i]);
    if (way == WRITTEN_THEN_CHANGED) kept = pack_tensor(p, 0);
    if (kept) kept[5000] = 'x';
    cr_assert_eq(pack_seal(p, &s, &error), HEDDLE_OK);
    pack_destroy(&p);
    free(base);
    return s.digest;
}

Test(pack, the_digest_is_the_same_however_tensors_were_written)
{
    digest_t a = digest_of(BY_POINTER), b = digest_of(BY_WRITE), c = digest_of(BY_BOTH);
    cr_assert(digest_equal(&a, &b));
    cr_assert(digest_equal(&a, &c));
}

/* Whoever has a pointer may write until the seal: before or after the library wrote there. */
Test(pack, what_is_written_after_it_was_digested_counts)
{
    digest_t a = digest_of(BY_WRITE), b = digest_of(WRITTEN_THEN_CHANGED), c = digest_of(POINTER_KEPT);
    cr_assert_not(digest_equal(&a, &b));
    cr_assert(digest_equal(&b, &c));
}

/* -- what was left out ------------------------------------------------------------------------ */

typedef enum { LEFT_OUT, LEFT_OUT_WITHOUT_BYTES, READ_INTO_ITS_PLACE } left_t;

/* What comes of sealing a pack of which the second row was not given by pack_write. */
static int seal_without(left_t how, heddle_error_t *error)
{
    static const uint64_t NONE[] = {0, 4};
    static const uint8_t source[24];
    heddle_tensor_t rows[] = {row("a.lora_A.weight"), row("a.lora_B.weight")};
    if (how == LEFT_OUT_WITHOUT_BYTES) rows[1].dims = NONE;
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = rows,
                       .count = 2,
                       .config = bytes_of(CONFIG, strlen(CONFIG))};
    pack_t *p;
    sealed_t sealed;
    cr_assert_eq(pack_new(&in, &p, error), HEDDLE_OK);
    uint8_t *base =
        aligned_alloc(LIMIT_PAGE_BYTES, (pack_bytes(p) / LIMIT_PAGE_BYTES + 1) * LIMIT_PAGE_BYTES);
    memset(base, 0xee, pack_bytes(p)); /* an older version's */
    pack_lay(p, base);
    write_row(p, 0, source);
    if (how == READ_INTO_ITS_PLACE) memset(pack_tensor(p, 1), 1, sizeof source);
    int rc = pack_seal(p, &sealed, error);
    pack_destroy(&p);
    free(base);
    return rc;
}

/* Its place still holds what was published from this region before: no version may be made of that. */
Test(pack, a_tensor_that_nobody_wrote_is_refused_by_name)
{
    heddle_error_t error = {0};
    cr_assert_eq(seal_without(LEFT_OUT, &error), HEDDLE_ERR_USAGE);
    cr_assert_eq(error.code, HEDDLE_ERR_USAGE);
    cr_assert_not_null(strstr(error.message, "'a.lora_B.weight'"), "%s", error.message);
    cr_assert(error.expected[0] && error.found[0] && error.hint[0]);
    cr_assert_eq(seal_without(LEFT_OUT_WITHOUT_BYTES, &error), HEDDLE_OK);
    cr_assert_eq(seal_without(READ_INTO_ITS_PLACE, &error), HEDDLE_OK);
}

/* -- ended early ------------------------------------------------------------------------------ */

static int patience; /* how often it is still allowed to go on */

static int run_out(const stop_t *stop, heddle_error_t *error)
{
    (void)stop;
    if (patience-- > 0) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_DEADLINE, "time is up");
}

/* What came of a pack of 64 tensors of 16 KiB, 16 chunks, that was asked `times` whether to go on. */
static int seal_within(int times, heddle_error_t *error)
{
    static const stop_t STOP = {run_out};
    enum { COUNT = 64 };
    static const uint64_t LARGE[] = {4096};
    char names[COUNT][32];
    heddle_tensor_t rows[COUNT];
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof names[i], "m%02d.lora_A.weight", i);
        rows[i] = row(names[i]);
        rows[i].ndim = 1;
        rows[i].dims = LARGE;
    }
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = rows,
                       .count = COUNT,
                       .config = bytes_of(CONFIG, strlen(CONFIG))};
    pack_t *p;
    sealed_t sealed;
    cr_assert_eq(pack_new(&in, &p, error), HEDDLE_OK);
    void *base = aligned_alloc(LIMIT_PAGE_BYTES, (pack_bytes(p) / LIMIT_PAGE_BYTES + 1) * LIMIT_PAGE_BYTES);
    memset(base, 0, pack_bytes(p));
    pack_lay(p, base);
    for (uint32_t i = 0; i < COUNT; i++) pack_tensor(p, i);
    patience = times;
    stop_begin(&STOP);
    int rc = pack_seal(p, &sealed, error);
    stop_end();
    pack_destroy(&p);
    free(base);
    return rc;
}

Test(pack, sealing_ends_when_its_time_is_up)
{
    heddle_error_t error = {0};
    cr_assert_eq(seal_within(1000, &error), HEDDLE_OK);
    cr_assert_lt(patience, 1000, "it never asked");
    cr_assert_eq(seal_within(0, &error), HEDDLE_ERR_DEADLINE);
    cr_assert_eq(error.code, HEDDLE_ERR_DEADLINE);
    cr_assert_str_eq(error.message, "time is up");
    cr_assert_eq(stop_check(&error), HEDDLE_OK, "nothing stops a thread for which nobody set a time");
}

/* -- the next version ------------------------------------------------------------------------- */

static const uint64_t MORE[] = {2, 4};

/* One thing of the input differs in each. */
static const struct {
    const char *what, *first, *second, *config, *metadata;
    int dtype, memory;
    uint32_t ndim, count;
    const uint64_t *dims;
} OTHERS[] = {
    {"a name", "a.lora_A.weight", "a.lora_C.weight", CONFIG, "", HEDDLE_DTYPE_F32, 0, 2, 2, DIMS},
    {"no name", "a.lora_A.weight", NULL, CONFIG, "", HEDDLE_DTYPE_F32, 0, 2, 2, DIMS},
    {"the order", "a.lora_B.weight", "a.lora_A.weight", CONFIG, "", HEDDLE_DTYPE_F32, 0, 2, 2, DIMS},
    {"the config", "a.lora_A.weight", "a.lora_B.weight", "{}", "", HEDDLE_DTYPE_F32, 0, 2, 2, DIMS},
    {"the metadata", "a.lora_A.weight", "a.lora_B.weight", CONFIG, "{}", HEDDLE_DTYPE_F32, 0, 2, 2, DIMS},
    {"a type", "a.lora_A.weight", "a.lora_B.weight", CONFIG, "", HEDDLE_DTYPE_I32, 0, 2, 2, DIMS},
    {"its memory", "a.lora_A.weight", "a.lora_B.weight", CONFIG, "", HEDDLE_DTYPE_F32, HEDDLE_MEMORY_CUDA, 2,
     2, DIMS},
    {"the number of dims", "a.lora_A.weight", "a.lora_B.weight", CONFIG, "", HEDDLE_DTYPE_F32, 0, 1, 2, DIMS},
    {"a dim", "a.lora_A.weight", "a.lora_B.weight", CONFIG, "", HEDDLE_DTYPE_F32, 0, 2, 2, MORE},
    {"no dims", "a.lora_A.weight", "a.lora_B.weight", CONFIG, "", HEDDLE_DTYPE_F32, 0, 2, 2, NULL},
    {"the number of tensors", "a.lora_A.weight", "a.lora_B.weight", CONFIG, "", HEDDLE_DTYPE_F32, 0, 2, 1,
     DIMS},
};

Test(pack, another_input_renews_nothing)
{
    heddle_error_t error = {0};
    heddle_tensor_t rows[] = {row("a.lora_A.weight"), row("a.lora_B.weight")};
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = rows,
                       .count = 2,
                       .config = bytes_of(CONFIG, strlen(CONFIG))};
    pack_t *p;
    cr_assert_eq(pack_new(&in, &p, &error), HEDDLE_OK);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        heddle_tensor_t other[] = {row(OTHERS[i].first), row(OTHERS[i].second)};
        other[1].dtype = OTHERS[i].dtype, other[1].memory = OTHERS[i].memory;
        other[1].ndim = OTHERS[i].ndim, other[1].dims = OTHERS[i].dims;
        pack_input_t that = {.kind = &KIND_LORA,
                             .tensors = other,
                             .count = OTHERS[i].count,
                             .config = bytes_of(OTHERS[i].config, strlen(OTHERS[i].config)),
                             .metadata = bytes_of(OTHERS[i].metadata, strlen(OTHERS[i].metadata))};
        cr_assert_not(pack_renew(p, &that), "%s is another one", OTHERS[i].what);
    }
    cr_assert(pack_renew(p, &in));
    pack_destroy(&p);
}

/* Each version has a region of its own, with bytes of an older one. */
Test(pack, a_renewed_pack_wants_each_tensor_written)
{
    heddle_error_t error = {0};
    heddle_tensor_t rows[] = {row("a.lora_A.weight"), row("a.lora_B.weight")};
    float values[2][6] = {{1, 2, 3}, {4, 5, 6}};
    const void *both[] = {values[0], values[1]}, *one[] = {values[0], NULL};
    pack_input_t in = {.kind = &KIND_LORA,
                       .tensors = rows,
                       .count = 2,
                       .config = bytes_of(CONFIG, strlen(CONFIG))};
    pack_t *p, *fresh;
    sealed_t sealed, again;
    cr_assert_eq(pack_new(&in, &p, &error), HEDDLE_OK);
    cr_assert_eq(pack_new(&in, &fresh, &error), HEDDLE_OK);
    size_t bytes = (pack_bytes(p) / LIMIT_PAGE_BYTES + 1) * LIMIT_PAGE_BYTES;
    void *region[2] = {aligned_alloc(LIMIT_PAGE_BYTES, bytes), aligned_alloc(LIMIT_PAGE_BYTES, bytes)};
    for (int i = 0; i < 2; i++) memset(region[i], 0xa5, bytes);
    pack_lay(p, region[0]);
    pack_fill(p, both, NULL);
    cr_assert_eq(pack_seal(p, &sealed, &error), HEDDLE_OK);
    cr_assert(pack_renew(p, &in));
    pack_lay(p, region[1]);
    pack_fill(p, one, NULL);
    cr_assert_eq(pack_seal(p, &sealed, &error), HEDDLE_ERR_USAGE);
    cr_assert(strstr(error.message, "'a.lora_B.weight'"), "%s", error.message);

    values[1][5] = 7;
    cr_assert(pack_renew(p, &in));
    pack_lay(p, region[1]);
    pack_fill(p, both, NULL);
    cr_assert_eq(pack_seal(p, &sealed, &error), HEDDLE_OK);
    pack_lay(fresh, region[0]);
    memcpy(pack_tensor(fresh, 0), values[0], sizeof values[0]);
    memcpy(pack_tensor(fresh, 1), values[1], sizeof values[1]);
    cr_assert_eq(pack_seal(fresh, &again, &error), HEDDLE_OK);
    cr_assert(digest_equal(&sealed.digest, &again.digest), "the same content has the same digest");
    cr_assert_arr_eq(region[0], region[1], again.content_bytes);
    for (int i = 0; i < 2; i++) free(region[i]);
    pack_destroy(&p);
    pack_destroy(&fresh);
}
