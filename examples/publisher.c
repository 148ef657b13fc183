/* SPDX-License-Identifier: Apache-2.0 */
/* publisher ADAPTER [VERSIONS [WORKERS]]: a trainer in short.  Each "step" writes a small LoRA once, into memory that Heddle
 * serves, and goes on as soon as the record is on the broker's disk; here it then also waits until WORKERS serve it. */
#include <heddle/heddle.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, RANK = 8, WIDTH = 256, TENSORS = 2 * LAYERS };

static const char CONFIG[] =
    "{\"peft_type\": \"LORA\", \"base_model_name_or_path\": \"example\", \"r\": 8, \"lora_alpha\": 16,"
    " \"target_modules\": [\"q_proj\"], \"task_type\": \"CAUSAL_LM\"}";

static int fail(const char *what)
{
    const heddle_error_t *e = heddle_last_error();
    fprintf(stderr, "%s: %s: %s\n", what, heddle_err_name(e->code), e->message);
    if (e->expected[0]) fprintf(stderr, "  expected: %s\n", e->expected);
    if (e->found[0]) fprintf(stderr, "  found: %s\n", e->found);
    if (e->hint[0]) fprintf(stderr, "  hint: %s\n", e->hint);
    return heddle_err_exit(e->code);
}

/* The table is made once: shapes do not change between versions. */
static void describe(heddle_tensor_t table[TENSORS])
{
    static const uint64_t A[] = {RANK, WIDTH}, B[] = {WIDTH, RANK};
    static char names[TENSORS][96];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i],
                 "base_model.model.model.layers.%d.self_attn.q_proj.lora_%c.weight", i / 2,
                 i % 2 ? 'B' : 'A');
        table[i] = (heddle_tensor_t){.size = sizeof *table,
                                     .name = names[i],
                                     .dtype = HEDDLE_DTYPE_F32,
                                     .ndim = 2,
                                     .dims = i % 2 ? B : A};
    }
}

static int publish_step(heddle_publisher_t *p, const heddle_tensor_t *table, int64_t step,
                        heddle_published_t *ret_done)
{
    heddle_publication_t *publication;
    int rc = heddle_publication_begin(p, table, TENSORS, CONFIG, sizeof CONFIG - 1, NULL, &publication);
    if (rc) return rc;
    for (uint32_t i = 0; i < TENSORS; i++) {
        float *to = heddle_publication_tensor(publication, i); /* a GPU would copy its tensor here */
        for (int k = 0; k < RANK * WIDTH; k++) to[k] = (float)step + (float)i / TENSORS;
    }
    heddle_publish_opts_t opts = {.size = sizeof opts, .step = step};
    return heddle_publication_commit(&publication, &opts, ret_done);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: %s ADAPTER [VERSIONS [WORKERS]]\n", argv[0]);
        return 2;
    }
    int versions = argc > 2 ? atoi(argv[2]) : 1;
    heddle_quorum_t quorum = {.kind = HEDDLE_QUORUM_COUNT, .n = argc > 3 ? (uint32_t)atoi(argv[3]) : 1};
    heddle_publisher_opts_t opts = {.size = sizeof opts, .adapter = argv[1]}; /* the broker: $HEDDLE_BROKER */
    heddle_publisher_t *p;
    if (heddle_publisher_open(&opts, &p)) return fail("open");
    heddle_tensor_t table[TENSORS];
    describe(table);
    int status = 0;
    for (int64_t step = 1; step <= versions && !status; step++) {
        heddle_published_t done = {.size = sizeof done};
        static heddle_report_t report;
        report.size = sizeof report;
        if (publish_step(p, table, step, &done)) status = fail("publish");
        else if (heddle_publisher_wait(p, done.version, HEDDLE_PHASE_ACTIVE, quorum, 30000, &report))
            status = fail("wait");
        else
            printf("published %s, active on %u worker%s\n", done.tag, report.active_count,
                   report.active_count == 1 ? "" : "s");
        fflush(stdout);
    }
    heddle_publisher_close(&p);
    return status;
}
