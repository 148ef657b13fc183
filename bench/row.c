/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring one row: clusters, warm-up, references, repetitions.
 *
 * All of them are open at the same time and take turns, one repetition each: a machine that becomes slower in
 * the course of a run becomes so for all of them, and their ratios stay what they are. */
#include "bench/row.h"

#include "bench/machine.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/units.h"

#include <stdio.h>
#include <stdlib.h>

#define PROCESS_BYTES (64ull << 20) /* of a worker, beside its slots */
#define SMOKE_WORKERS 2u

uint64_t row_bytes(const bench_row_t *row, const model_t *m)
{
    uint64_t region =
        m->table.data_bytes + (uint64_t)m->table.count * LIMIT_PAGE_BYTES; /* each tensor begins a page */
    uint64_t clusters = row->kind->has_beside ? 2 : 1;
    /* A worker holds the active version, the kept ones and one that arrives; a publisher one that it serves
     * and one that it fills. */
    return clusters *
           (row->workers * ((2ull + row->keep) * region + PROCESS_BYTES) + 2 * region + PROCESS_BYTES);
}

bool row_smoke(const bench_row_t *row, bench_row_t *ret_row, char name[RESULT_NAME])
{
    for (const bench_row_t *r = ROWS; r != row; r++)
        if (r->kind == row->kind) return false;
    *ret_row = *row;
    snprintf(name, RESULT_NAME, "smoke/%s", row->kind->name);
    ret_row->name = name;
    ret_row->shape = "tiny";
    if (ret_row->workers > SMOKE_WORKERS) ret_row->workers = SMOKE_WORKERS;
    return true;
}

/* ---- references ------------------------------------------------------------------------------ */

typedef struct {
    reference_t *open[ROW_REFERENCES_MAX];
    uint32_t count;
} references_t;

/* A row that swaps would measure the disk, so it is left out, with the reason in its place. */
static void skip(char to[160], uint64_t need, uint64_t available)
{
    char needs[16], has[16];
    units_bytes_text(need, needs);
    units_bytes_text(available, has);
    snprintf(to, 160, "needs %s of memory, %s is free", needs, has);
}

/* A reference that cannot run here is named in the result, with the reason. */
static int open_reference(row_run_t *run, const reference_ops_t *ops, uint64_t *room, references_t *refs,
                          heddle_error_t *error)
{
    reference_opts_t o = {run->model, run->row->workers, run->env->scratch, run->env->python};
    result_series_t *series = result_series(run->result, ops->name, "ms", true);
    if (!series) return error_fail(error, HEDDLE_ERR_LIMIT, "too many series in a row");
    if (ops->bytes(&o) > *room) {
        skip(series->skipped, ops->bytes(&o), *room);
        return HEDDLE_OK;
    }
    reference_t *r;
    heddle_error_t why;
    int rc = ops->open(&o, &r, &why);
    if (rc == HEDDLE_ERR_NOT_FOUND) {
        snprintf(series->skipped, sizeof series->skipped, "%.159s", why.message);
        return HEDDLE_OK;
    }
    if (rc) return *error = why, rc;
    refs->open[refs->count++] = r;
    *room -= ops->bytes(&o);
    if (r->about[0] && run->env->machine)
        json_object_set_new(run->env->machine, ops->name, json_string(r->about));
    return HEDDLE_OK;
}

static int refer_once(row_run_t *run, reference_t *r, heddle_error_t *error)
{
    double ms;
    int rc = r->ops->once(r, &ms, error);
    if (!rc && result_refer(run->result, r->ops->name, "ms", ms))
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a figure");
    /* One thread copies and never waits, so its time is its CPU time. */
    double gb = (double)run->model->table.data_bytes / 1e9;
    if (!rc && r->ops == &REFERENCE_MEMCPY &&
        result_refer(run->result, "memcpy_cpu", "CPU-s/GB", ms / 1e3 / gb))
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a figure");
    return rc;
}

/* ---- a row ----------------------------------------------------------------------------------- */

static int measure(row_run_t *run, heddle_error_t *error)
{
    const row_kind_t *kind = run->row->kind;
    references_t refs = {0};
    cluster_opts_t o = {.scratch = run->env->scratch,
                        .name = "registry",
                        .workers = run->row->workers,
                        .keep = run->row->keep,
                        .is_app = kind->is_app,
                        .owns_memory = run->env->owns_memory,
                        .is_tapped = kind->is_tapped};
    int rc = cluster_open(&o, &run->cluster, error);
    if (!rc && kind->has_beside) {
        o.name = "registry-without-keys";
        o.insecure = true;
        rc = cluster_open(&o, &run->beside, error);
    }
    for (uint32_t i = 0; !rc && i < kind->warm_ups; i++) {
        cluster_times_t unused;
        model_change(run->model);
        rc = cluster_publish(run->cluster, run->model, HEDDLE_ACTIVATION_ALL, &unused, error);
        if (!rc && run->beside)
            rc = cluster_publish(run->beside, run->model, HEDDLE_ACTIVATION_ALL, &unused, error);
    }
    if (!rc && kind->prepare) rc = kind->prepare(run, error);
    /* After the warm-up: the cluster has its memory by now. A reference takes its own only when it runs. */
    uint64_t room = machine_available_bytes();
    for (const reference_ops_t *const *ops = kind->references; !rc && *ops && !run->env->is_alone; ops++)
        rc = open_reference(run, *ops, &room, &refs, error);
    /* Turn 0 is Heddle; each repetition begins one place further on. */
    uint32_t turns = refs.count + 1;
    for (run->turn = 0; !rc && run->turn < run->env->repeat; run->turn++)
        for (uint32_t i = 0; !rc && i < turns; i++) {
            uint32_t which = (run->turn + i) % turns;
            rc = which ? refer_once(run, refs.open[which - 1], error) : kind->once(run, error);
        }
    /* Which data plane the workers had decides what the figures can be compared with. */
    json_t *transport =
        run->cluster && run->env->machine ? json_loads(run->cluster->transport, 0, NULL) : NULL;
    if (transport) json_object_set_new(run->env->machine, "transport", transport);
    for (uint32_t i = 0; i < refs.count; i++) refs.open[i]->ops->close(refs.open[i]);
    cluster_close(&run->beside);
    cluster_close(&run->cluster);
    return rc;
}

int row_measure(const bench_row_t *row, const row_env_t *env, result_row_t *result, heddle_error_t *error)
{
    row_run_t run = {.row = row, .env = env, .result = result};
    int rc = model_new(row->shape, row->rank, &run.model, error);
    if (rc) return rc;
    result->data_bytes = run.model->table.data_bytes;
    result->tensor_count = run.model->table.count;
    result->workers = row->workers;
    result->keep = row->keep;
    uint64_t need = row_bytes(row, run.model), available = machine_available_bytes();
    if (need > available) skip(result->skipped, need, available);
    else rc = measure(&run, error);
    model_destroy(&run.model);
    return rc;
}
