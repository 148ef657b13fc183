/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of rows, and the table of rows at the end.
 *
 * A kind is what happens in one repetition, and which figures that gives. A reference among the notes is a
 * number that is known, not measured: its ratio turns a figure into one for each byte or for each worker. */
#include "bench/row.h"

#include "bench/moment.h"
#include "core/errors.h"

#include <errno.h>
#include <time.h>

typedef struct {
    const char *name, *unit;
    double value;
    bool is_reference;
} bench_note_t;

/* The figures of one repetition, in the order in which they are printed. */
static int note_all(row_run_t *run, const bench_note_t *notes, size_t count, heddle_error_t *error)
{
    for (size_t i = 0; i < count; i++) {
        const bench_note_t *n = &notes[i];
        int rc = n->is_reference ? result_refer(run->result, n->name, n->unit, n->value)
                                 : result_note(run->result, n->name, n->unit, n->value);
        if (rc) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a figure");
    }
    return HEDDLE_OK;
}
#define NOTE_ALL(run, notes, error) note_all(run, notes, sizeof(notes) / sizeof *(notes), error)

/* ---- publish: from tensors in memory to active in every worker ------------------------------- */

/* The steps in the order in which they happen. Their times count from the call, so that they grow; connect,
 * fetch and verify alone are what that part took in the slowest worker. */
static int publish_once(row_run_t *run, heddle_error_t *error)
{
    cluster_times_t t;
    model_change(run->model);
    int rc = cluster_publish(run->cluster, run->model, HEDDLE_ACTIVATION_ALL, &t, error);
    if (rc) return rc;
    double bytes = (double)run->model->table.data_bytes;
    const bench_note_t notes[] = {{"fill", "ms", t.fill, false},
                                  {"sealed", "ms", t.sealed, false},
                                  {"durable", "ms", t.durable, false},
                                  {"connect", "ms", t.connect, false},
                                  {"fetch", "ms", t.fetch, false},
                                  {"verify", "ms", t.verify, false},
                                  {"staged", "ms", t.staged, false},
                                  {"active", "ms", t.active, false},
                                  {"heard", "ms", t.heard, false},
                                  {"cpu", "CPU-s/GB", t.cpu_s / (bytes * run->row->workers / 1e9), false},
                                  {"publisher_out", "bytes", (double)t.publisher_bytes, false},
                                  {"shared", "bytes", (double)cluster_shared_bytes(run->cluster), false},
                                  {"adapter", "bytes", bytes, true}};
    return NOTE_ALL(run, notes, error);
}

/* ---- keys: the same beside a broker without them --------------------------------------------- */

static int active_of(row_run_t *run, cluster_t *c, const char *name, bool is_reference, heddle_error_t *error)
{
    cluster_times_t t;
    model_change(run->model);
    int rc = cluster_publish(c, run->model, HEDDLE_ACTIVATION_ALL, &t, error);
    const bench_note_t notes[] = {{name, "ms", rc ? 0 : t.active, is_reference}};
    return rc ? rc : NOTE_ALL(run, notes, error);
}

/* ---- joined, restarted and new: the first versions, beside a later one ------------------------ */

/* Each version that is kept has its own memory, made with the first ones: those between are not measured. */
static int then_warm(row_run_t *run, heddle_error_t *error)
{
    cluster_times_t unused;
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; !rc && i < run->row->kind->warm_ups; i++) {
        model_change(run->model);
        rc = cluster_publish(run->cluster, run->model, HEDDLE_ACTIVATION_ALL, &unused, error);
    }
    return rc ? rc : active_of(run, run->cluster, "warm", true, error);
}

static int joined_once(row_run_t *run, heddle_error_t *error)
{
    int rc = cluster_renew_workers(run->cluster, error);
    if (!rc) rc = active_of(run, run->cluster, "active", false, error);
    return rc ? rc : then_warm(run, error);
}

static int restarted_once(row_run_t *run, heddle_error_t *error)
{
    int rc = cluster_renew_publisher(run->cluster, error);
    if (!rc) rc = active_of(run, run->cluster, "active", false, error);
    return rc ? rc : then_warm(run, error);
}

/* No process knows how large the first version will be; of the second one all do, in time for it. */
static int new_once(row_run_t *run, heddle_error_t *error)
{
    int rc = cluster_renew(run->cluster, error);
    if (!rc) rc = active_of(run, run->cluster, "first", false, error);
    if (!rc) rc = cluster_rest(error);
    if (!rc) rc = active_of(run, run->cluster, "second", false, error);
    return rc ? rc : then_warm(run, error);
}

/* The two clusters take turns at being first, so that neither profits from the other's warm caches. */
static int keys_once(row_run_t *run, heddle_error_t *error)
{
    bool keys_first = run->turn % 2 == 0;
    int rc = keys_first ? active_of(run, run->cluster, "active", false, error) : HEDDLE_OK;
    if (!rc) rc = active_of(run, run->beside, "insecure", true, error);
    if (!rc && !keys_first) rc = active_of(run, run->cluster, "active", false, error);
    return rc;
}

/* ---- flip and rollback: a decision about what is staged already ------------------------------ */

static int note_flip(row_run_t *run, const cluster_flip_t *f, heddle_error_t *error)
{
    const bench_note_t notes[] = {{"active", "ms", f->active, false},
                                  {"told", "ms", f->told, false},
                                  {"skew", "ms", f->skew, false},
                                  {"switch", "ms", f->switched, false},
                                  {"moved", "bytes", (double)f->moved_bytes, false},
                                  {"adapter", "bytes", (double)run->model->table.data_bytes, true}};
    return NOTE_ALL(run, notes, error);
}

/* A new version each time: one that was active before would be a roll-back, which is another row. */
static int flip_once(row_run_t *run, heddle_error_t *error)
{
    cluster_times_t unused;
    cluster_flip_t f;
    model_change(run->model);
    int rc = cluster_publish(run->cluster, run->model, HEDDLE_ACTIVATION_MANUAL, &unused, error);
    if (!rc) rc = cluster_activate(run->cluster, run->cluster->newest, &f, error);
    return rc ? rc : note_flip(run, &f, error);
}

/* The version before the newest is kept, so every worker still has it in memory. */
static int rollback_prepare(row_run_t *run, heddle_error_t *error)
{
    (void)error;
    run->older = run->cluster->newest - 1;
    return HEDDLE_OK;
}

static int rollback_once(row_run_t *run, heddle_error_t *error)
{
    cluster_flip_t back, forth;
    int rc = cluster_activate(run->cluster, run->older, &back, error);
    if (!rc) rc = cluster_activate(run->cluster, run->cluster->newest, &forth, error);
    return rc ? rc : note_flip(run, &back, error);
}

/* ---- idle: CPU that the processes use while nothing happens ---------------------------------- */

static int idle_once(row_run_t *run, heddle_error_t *error)
{
    struct timespec t = {run->env->idle_ms / 1000, run->env->idle_ms % 1000 * 1000000};
    cluster_cpu_t from = cluster_cpu(run->cluster);
    uint64_t start = moment_ns();
    if (nanosleep(&t, NULL) != 0)
        return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted"); /* a shorter time would mislead */
    double seconds = moment_ms(start, moment_ns()) / 1e3;
    cluster_cpu_t to = cluster_cpu(run->cluster);
    const bench_note_t notes[] = {
        {"broker", "%", 100 * (to.broker - from.broker) / seconds, false},
        {"worker", "%", 100 * (to.workers - from.workers) / run->row->workers / seconds, false},
        {"publisher", "%", 100 * (to.publisher - from.publisher) / seconds, false},
        {"core", "%", 100, true}};
    return NOTE_ALL(run, notes, error);
}

/* ---- control: what a version costs the control plane ----------------------------------------- */

static int control_prepare(row_run_t *run, heddle_error_t *error)
{
    cluster_tally_t unused;
    return cluster_tally(run->cluster, &unused, error);
}

static int control_once(row_run_t *run, heddle_error_t *error)
{
    cluster_times_t unused;
    cluster_tally_t t;
    model_change(run->model);
    int rc = cluster_tally(run->cluster, &t, error); /* drops the heartbeats since the last repetition */
    if (!rc) rc = cluster_publish(run->cluster, run->model, HEDDLE_ACTIVATION_ALL, &unused, error);
    if (!rc) rc = cluster_tally(run->cluster, &t, error);
    if (rc) return rc;
    const bench_note_t notes[] = {{"to_broker", "messages", (double)t.to_broker, false},
                                  {"from_broker", "messages", (double)t.from_broker, false},
                                  {"messages", "messages", (double)(t.to_broker + t.from_broker), false},
                                  {"bytes", "bytes", (double)t.bytes, false},
                                  {"workers", "messages", run->row->workers, true},
                                  {"adapter", "bytes", (double)run->model->table.data_bytes, true}};
    return NOTE_ALL(run, notes, error);
}

/* ---- the tables ------------------------------------------------------------------------------ */

static const row_kind_t
    PUBLISH = {"publish",
               "from tensors in memory to active in every worker",
               {&REFERENCE_MEMCPY, &REFERENCE_SOCKET, &REFERENCE_SOCKET_DIGEST, &REFERENCE_SAFETENSORS,
                &REFERENCE_SYNC, NULL},
               .warm_ups = 4,
               .once = publish_once},
    KEYS = {"keys",        "publish with keys, beside a broker without them",
            {NULL},        .has_beside = true,
            .warm_ups = 4, .once = keys_once},
    JOINED = {"joined",
              "the first version after all workers joined, beside a later one",
              {NULL},
              .warm_ups = 4,
              .once = joined_once},
    RESTARTED = {"restarted",
                 "the first version of a publisher that was restarted, beside a later one",
                 {NULL},
                 .warm_ups = 4,
                 .once = restarted_once},
    NEW =
        {"new",
         "the first and the second version of an adapter, with a second of rest between, beside a later one",
         {NULL},
         .warm_ups = 4,
         .once = new_once},
    FLIP = {"flip",
            "activate a version that is staged everywhere",
            {&REFERENCE_SYNC, NULL},
            .is_app = true,
            .warm_ups = 4,
            .once = flip_once},
    ROLLBACK = {"rollback",    "activate the version before", {&REFERENCE_SYNC, NULL}, .is_app = true,
                .warm_ups = 4, .prepare = rollback_prepare,   .once = rollback_once},
    CONTROL = {"control",
               "control messages and their bytes, for one version",
               {NULL},
               .is_tapped = true,
               .warm_ups = 4,
               .prepare = control_prepare,
               .once = control_once},
    IDLE = {"idle", "CPU while nothing happens", {NULL}, .warm_ups = 1, .once = idle_once};

/* 16 workers with 414 MB keep no older version, so that the row fits into 15 GB. */
const bench_row_t ROWS[] = {{"publish/17.6MB/1", &PUBLISH, "qwen2.5-0.5b", 16, 1, 1},
                            {"publish/17.6MB/4", &PUBLISH, "qwen2.5-0.5b", 16, 4, 1},
                            {"publish/17.6MB/16", &PUBLISH, "qwen2.5-0.5b", 16, 16, 1},
                            {"publish/87MB/1", &PUBLISH, "qwen3-8b", 16, 1, 1},
                            {"publish/87MB/4", &PUBLISH, "qwen3-8b", 16, 4, 1},
                            {"publish/87MB/16", &PUBLISH, "qwen3-8b", 16, 16, 1},
                            {"publish/414MB/1", &PUBLISH, "llama-3.1-70b", 16, 1, 1},
                            {"publish/414MB/4", &PUBLISH, "llama-3.1-70b", 16, 4, 1},
                            {"publish/414MB/16", &PUBLISH, "llama-3.1-70b", 16, 16, 0},
                            {"publish/2.2MB/1", &PUBLISH, "qwen2.5-0.5b", 2, 1, 1},
                            {"publish/2.2MB/4", &PUBLISH, "qwen2.5-0.5b", 2, 4, 1},
                            {"publish/2.2MB/16", &PUBLISH, "qwen2.5-0.5b", 2, 16, 1},
                            {"keys/17.6MB/1", &KEYS, "qwen2.5-0.5b", 16, 1, 1},
                            {"keys/17.6MB/4", &KEYS, "qwen2.5-0.5b", 16, 4, 1},
                            {"joined/87MB/1", &JOINED, "qwen3-8b", 16, 1, 1},
                            {"joined/87MB/4", &JOINED, "qwen3-8b", 16, 4, 1},
                            {"joined/87MB/16", &JOINED, "qwen3-8b", 16, 16, 1},
                            {"restarted/87MB/1", &RESTARTED, "qwen3-8b", 16, 1, 1},
                            {"restarted/87MB/4", &RESTARTED, "qwen3-8b", 16, 4, 1},
                            {"restarted/87MB/16", &RESTARTED, "qwen3-8b", 16, 16, 1},
                            {"new/87MB/1", &NEW, "qwen3-8b", 16, 1, 1},
                            {"new/87MB/4", &NEW, "qwen3-8b", 16, 4, 1},
                            {"new/87MB/16", &NEW, "qwen3-8b", 16, 16, 1},
                            {"flip/17.6MB/1", &FLIP, "qwen2.5-0.5b", 16, 1, 1},
                            {"flip/17.6MB/4", &FLIP, "qwen2.5-0.5b", 16, 4, 1},
                            {"flip/17.6MB/16", &FLIP, "qwen2.5-0.5b", 16, 16, 1},
                            {"rollback/17.6MB/1", &ROLLBACK, "qwen2.5-0.5b", 16, 1, 1},
                            {"rollback/17.6MB/4", &ROLLBACK, "qwen2.5-0.5b", 16, 4, 1},
                            {"rollback/17.6MB/16", &ROLLBACK, "qwen2.5-0.5b", 16, 16, 1},
                            {"control/17.6MB/1", &CONTROL, "qwen2.5-0.5b", 16, 1, 1},
                            {"control/17.6MB/4", &CONTROL, "qwen2.5-0.5b", 16, 4, 1},
                            {"control/17.6MB/16", &CONTROL, "qwen2.5-0.5b", 16, 16, 1},
                            {"idle/17.6MB/4", &IDLE, "qwen2.5-0.5b", 16, 4, 1},
                            {0}};
