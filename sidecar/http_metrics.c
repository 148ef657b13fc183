/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/http_metrics.h"

#include "core/errors.h"

#include <heddle/types.h>
#include <string.h>

/* ---- the table ---- */

/* clang-format off */
enum {
    BUILD, START_TIME, READY, SESSION, JOINS, FENCED,
    SERVED, DECIDED, LAG, VERSIONS, CHANGES,
    MEMORY, SLOTS, SLOTS_HELD, BYTES, CHUNKS_BAD, RETRIES
};
static const metric_t METRICS[] = {
    [BUILD] = {"heddle_worker_build", "", METRIC_INFO, "version",
        "The worker's release"},
    [START_TIME] = {"heddle_worker_start_time_seconds", "seconds", METRIC_GAUGE, NULL,
        "When the worker began, since 1970"},
    [READY] = {"heddle_worker_ready", "", METRIC_GAUGE, NULL,
        "1 while /readyz answers 200, else 0"},
    [SESSION] = {"heddle_worker_session", "", METRIC_GAUGE, NULL,
        "1 while the worker has a session with its broker, else 0"},
    [JOINS] = {"heddle_worker_joins", "", METRIC_COUNTER, NULL,
        "How often the broker admitted the worker"},
    [FENCED] = {"heddle_worker_fenced", "", METRIC_COUNTER, NULL,
        "Sessions that the broker replaced while the worker went on"},
    [SERVED] = {"heddle_worker_served_version", "", METRIC_GAUGE, "adapter",
        "Number of the version that is served; 0: none"},
    [DECIDED] = {"heddle_worker_decided_version", "", METRIC_GAUGE, "adapter",
        "Number of the version that was decided last; 0: none; without a session no sample"},
    [LAG] = {"heddle_worker_lag_versions", "", METRIC_GAUGE, "adapter",
        "How many decided versions the worker is behind; without a session no sample"},
    [VERSIONS] = {"heddle_worker_versions", "", METRIC_GAUGE, "state",
        "Versions of all adapters, by state"},
    [CHANGES] = {"heddle_worker_version_changes", "", METRIC_COUNTER, "change",
        "Versions that were staged, that became active, and failures, of all adapters"},
    [MEMORY] = {"heddle_worker_memory_bytes", "bytes", METRIC_GAUGE, "memory",
        "Memory for versions: of the worker's own, and held in other processes of its host"},
    [SLOTS] = {"heddle_worker_slots", "", METRIC_GAUGE, "state",
        "Places for versions, of all adapters"},
    [SLOTS_HELD] = {"heddle_worker_slots_held", "", METRIC_GAUGE, NULL,
        "Of the used ones, those with readers"},
    [BYTES] = {"heddle_worker_data_bytes", "bytes", METRIC_COUNTER, "way",
        "Bytes of versions that were fetched (in) and served to others (out)"},
    [CHUNKS_BAD] = {"heddle_worker_chunks_bad", "", METRIC_COUNTER, NULL,
        "Chunks that came with a wrong digest"},
    [RETRIES] = {"heddle_worker_chunks_retried", "", METRIC_COUNTER, NULL,
        "Chunks that were asked for again"},
};
/* clang-format on */

static uint64_t number(const json_t *of, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(of, key));
    return n > 0 ? (uint64_t)n : 0;
}

static bool is_session(const json_t *stats, const char *wanted)
{
    const char *state = json_string_value(json_object_get(json_object_get(stats, "session"), "state"));
    return state && !strcmp(state, wanted);
}

static bool has_session(const json_t *stats)
{
    return is_session(stats, "ready") || is_session(stats, "draining");
}

/* ---- ready ---- */

static int not_ready(heddle_error_t *error, const char *text, const char *hint)
{
    int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE, "%s", text);
    error_hint(error, "%s", hint);
    error->retriable = 1;
    return rc;
}

int http_metrics_ready(const json_t *stats, uint64_t lag, heddle_error_t *error)
{
    size_t i;
    json_t *row;
    if (!stats)
        return not_ready(error, "the worker has not begun to join yet", "its log says what it waits for");
    if (!has_session(stats))
        return not_ready(error, "the worker has no session with its broker",
                         "it serves on, and tries again; `heddle doctor` on its host says what is wrong");
    if (is_session(stats, "draining"))
        return not_ready(error, "the worker is draining: it is about to leave",
                         "`heddle drain NAME --cancel` keeps it");
    json_array_foreach(json_object_get(stats, "adapters"), i, row)
    {
        uint64_t behind = number(row, "lag");
        if (number(row, "version") && behind <= lag) continue;
        if (behind)
            not_ready(error, "the worker is behind the latest decision",
                      "`heddle workers NAME` says why, and how far it is");
        else
            not_ready(error, "no version of an adapter is active yet",
                      "publish one, or choose one: `heddle activate`");
        error_where(error, json_string_value(json_object_get(row, "name")), number(row, "version"), NULL,
                    NULL);
        error_expected(error, "at most %llu behind", (unsigned long long)lag);
        error_found(error, number(row, "version") ? "%llu behind" : "no version is served",
                    (unsigned long long)behind);
        return error->code;
    }
    return HEDDLE_OK;
}

/* ---- samples ---- */

static void put(samples_t *to, int metric, const char *value, uint64_t n)
{
    samples_add(to, &METRICS[metric], value, (double)n);
}

/* Without a session a decision may have been missed: lag and the latest decision are then not known, and
 * have no sample. */
static void put_adapters(const json_t *rows, const char *const *adapters, bool has_decisions, samples_t *to)
{
    static const struct {
        int metric;
        const char *key;
    } COLUMNS[] = {{SERVED, "version"}, {DECIDED, "decided_version"}, {LAG, "lag"}};
    size_t columns = has_decisions ? sizeof COLUMNS / sizeof *COLUMNS : 1;
    for (size_t c = 0; c < columns; c++)
        for (size_t i = 0; i < json_array_size(rows) && adapters[i]; i++)
            put(to, COLUMNS[c].metric, adapters[i], number(json_array_get(rows, i), COLUMNS[c].key));
}

/* A sum over all adapters for each of the words. */
static void put_sums(const json_t *rows, const char *key, int metric, const char *const *words, samples_t *to)
{
    for (; *words; words++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < json_array_size(rows); i++)
            sum += number(json_object_get(json_array_get(rows, i), key), *words);
        put(to, metric, *words, sum);
    }
}

void http_metrics_gather(const json_t *stats, const char *const *adapters, uint64_t started_ms, bool is_ready,
                         samples_t *to)
{
    static const char *const STATES[] = {"waiting", "coming", "arrived", "staged", "active", "kept", NULL},
                             *const DONE[] = {"staged", "activated", "failed", NULL};
    const json_t *rows = json_object_get(stats, "adapters"), *slots = json_object_get(stats, "slots");
    uint64_t total = number(slots, "total"), unused = number(slots, "free");
    put(to, BUILD, heddle_version(), 1);
    samples_add(to, &METRICS[START_TIME], NULL, (double)started_ms / 1e3);
    put(to, READY, NULL, is_ready);
    put(to, SESSION, NULL, has_session(stats));
    put(to, JOINS, NULL, number(json_object_get(stats, "session"), "joined_count"));
    put(to, FENCED, NULL, number(stats, "fenced"));
    put_adapters(rows, adapters, has_session(stats), to);
    put_sums(rows, "versions", VERSIONS, STATES, to);
    put_sums(rows, "counts", CHANGES, DONE, to);
    put(to, MEMORY, "own", number(stats, "own_bytes"));
    put(to, MEMORY, "held", number(stats, "held_bytes"));
    put(to, SLOTS, "free", unused);
    put(to, SLOTS, "used", total > unused ? total - unused : 0);
    put(to, SLOTS_HELD, NULL, number(slots, "held"));
    put(to, BYTES, "in", number(stats, "bytes_in"));
    put(to, BYTES, "out", number(stats, "bytes_out"));
    put(to, CHUNKS_BAD, NULL, number(stats, "chunks_bad"));
    put(to, RETRIES, NULL, number(stats, "retries"));
}
