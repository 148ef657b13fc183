/* SPDX-License-Identifier: Apache-2.0 */
/* heddle-bench: measures the rows of bench/row_kinds.c, and compares two reports.
 *
 * It is also the program of its own members (bench/member.h): a first argument --as makes it one of them
 * before any option is parsed. Everything that a run writes lies below one scratch directory, which is
 * removed at its end, whether it succeeded or not. */
#include "bench/child.h"
#include "bench/compare.h"
#include "bench/machine.h"
#include "bench/member.h"
#include "bench/row.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/option.h"
#include "core/process.h"

#include <errno.h>
#include <ftw.h>
#include <regex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum { OUTPUT_TABLE, OUTPUT_JSON } output_t;
enum { REPEAT = 11, SMOKE_REPEAT = 2, IDLE_MS = 2000, SMOKE_IDLE_MS = 100 };

typedef struct {
    const char **patterns, *python, *data;
    int64_t repeat;
    bool smoke, alone, own_memory, pin, quiet;
    int output, log_level;
} args_t;

#define AT(field) offsetof(args_t, field)
static const option_t OPTIONS[] = {
    {"row", 0, OPTION_LIST, "REGEX", NULL, NULL,
     "measure the rows whose names match; may be given again; default all", AT(patterns)},
    {"repeat", 0, OPTION_INTEGER, "N", NULL, "0", "repetitions of each row; 0: 11, or 2 with --smoke",
     AT(repeat)},
    {"smoke", 0, OPTION_FLAG, NULL, NULL, NULL,
     "one small row of each kind: does it run?  Its figures say nothing", AT(smoke)},
    {"alone", 0, OPTION_FLAG, NULL, NULL, NULL, "without the references: for a profiler", AT(alone)},
    {"own-memory", 0, OPTION_FLAG, NULL, NULL, NULL, "workers copy each version, as those of another host do",
     AT(own_memory)},
    {"pin", 0, OPTION_FLAG, NULL, NULL, NULL,
     "senders run on the first CPU that this process may use, receivers and all else on the second", AT(pin)},
    {"python", 0, OPTION_TEXT, "CMD", NULL, "python3",
     "Python that has safetensors and numpy, for that reference", AT(python)},
    {"data", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "where the registry and other files lie meanwhile; default $TMPDIR, else /tmp", AT(data)},
    {0}};
static const option_t COMMON[] = {
    {"output", 'o', OPTION_CHOICE, "table|json", NULL, "table",
     "json: one object on stdout, with every sample", AT(output)},
    {"quiet", 'q', OPTION_FLAG, NULL, NULL, NULL, "no progress on stderr", AT(quiet)},
    {"log-level", 0, OPTION_CHOICE, "error|warn|info|debug", NULL, "error", "what is logged on stderr",
     AT(log_level)},
    {0}};
static const char *const ARGS[] = {"ACTION", "BEFORE", "AFTER", NULL};
static option_set_t SET =
    {/* program: as it was typed */
     "heddle-bench",
     "run | list | compare BEFORE.json AFTER.json [OPTION...]",
     "Measures a broker, workers and a publisher of its own on this host, beside references in the same\n"
     "run; without ACTION: run.",
     "BEFORE and AFTER are what -o json printed.  A figure is compared as a multiple of its reference, and "
     "a\n"
     "change counts where it is more than the noise that the repetitions of both reports show.  Times are\n"
     "medians; less is better everywhere.",
     OPTIONS,
     COMMON,
     ARGS,
     0,
     "Exit status: 0 ok, everything was measured or is skipped with the reason; 1 compare: something became\n"
     "worse or is missing, or nothing could be judged; 2 usage; 3 no such row or file; 5 deadline;\n"
     "7 a process of the measurement ended; 8 a file is not a report, of a run that failed, or has numbers\n"
     "that cannot be compared; 9 this machine; 130 or 143 interrupted.\n\n"
     "Examples:\n  heddle-bench\n  heddle-bench -o json --row '^publish/17.6MB' --repeat 31 >before.json\n"
     "  heddle-bench compare before.json after.json"};

/* ---- ending ---------------------------------------------------------------------------------- */

/* A signal ends the current wait; the run then ends as after any failure, and removes its directory. */
static volatile sig_atomic_t caught;
static void on_signal(int number)
{
    caught = number;
    cluster_interrupt();
}

static void print_json(json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(12));
    if (text) puts(text);
    free(text);
    json_decref(json);
}

/* A hint by the kind of failure, for errors that come without one. */
static void add_hint(heddle_error_t *e)
{
    option_error_words(e);
    if (e->hint[0] || !e->code || e->code == HEDDLE_ERR_INTERRUPTED) return;
    switch (heddle_err_exit(e->code)) {
    case 2: error_hint(e, "see %s --help", SET.program); break;
    case 3: error_hint(e, "heddle-bench list names the rows; files are looked for from here"); break;
    case 8: error_hint(e, "name a file that `heddle-bench -o json` has printed to its end"); break;
    case 9: error_hint(e, "free memory, or name a directory with room in it with --data"); break;
    default: error_hint(e, "run it again, on a quieter machine or with fewer rows (--row)"); break;
    }
}

static int end_with(const heddle_error_t *e) { return caught ? 128 + caught : process_fail(SET.program, e); }

/* With -o json stdout is one object whatever happens; the failure is printed on stderr too (end_with). */
static void print_failure(const args_t *a, const char *kind, heddle_error_t *error)
{
    char *why = NULL;
    add_hint(error);
    if (a->output != OUTPUT_JSON) return;
    heddle_error_json(error, &why);
    print_json(json_pack("{s:s, s:s, s:b, s:o?}", "schema", "heddle/1", "kind", kind, "ok", 0, "error",
                         why ? json_loads(why, 0, NULL) : NULL));
    heddle_free(why);
}

/* ---- run ------------------------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

/* The name is unique, so that two runs on one host do not share a registry. */
static int make_dir(char *path, heddle_error_t *error)
{
    if (mkdtemp(path)) return HEDDLE_OK;
    return error_fail(error, errno == ENOSPC ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_DATA_DIR,
                      "cannot make %s: %s", path, strerror(errno));
}

/* 1: wanted; 0: not; negative: a pattern is wrong. */
static int is_wanted(const args_t *a, const char *name, heddle_error_t *error)
{
    for (const char **p = a->patterns; p && *p; p++) {
        regex_t regex;
        if (regcomp(&regex, *p, REG_EXTENDED | REG_NOSUB) != 0) {
            error_fail(error, HEDDLE_ERR_USAGE, "heddle-bench: \"%.100s\" is not a value for --row", *p);
            error_contrast(error, "an extended regular expression", *p);
            return HEDDLE_ERR_USAGE;
        }
        int found = regexec(&regex, name, 0, NULL, 0) == 0;
        regfree(&regex);
        if (found) return 1;
    }
    return !a->patterns;
}

static int measure_rows(const args_t *a, const row_env_t *env, result_t *r, heddle_error_t *error)
{
    for (const bench_row_t *row = ROWS; row->name; row++) {
        char name[RESULT_NAME], dir[4200];
        bench_row_t it = *row;
        if (a->smoke && !row_smoke(row, &it, name)) continue;
        int rc = is_wanted(a, it.name, error);
        if (rc == 0) continue;
        /* A directory for each row: the registry of the row before must not be there. */
        snprintf(dir, sizeof dir, "%s/row", env->scratch);
        row_env_t own = *env;
        own.scratch = dir;
        if (rc > 0) rc = make_dir(strcat(dir, "XXXXXX"), error);
        result_row_t *result = rc ? NULL : result_add(r, it.name);
        if (!rc && !result) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a row");
        if (!rc && !a->quiet) fprintf(stderr, "%s\n", it.name);
        if (!rc) rc = row_measure(&it, &own, result, error);
        buf_t text = {0};
        if (!rc && a->output == OUTPUT_TABLE) {
            result_row_text(result, &text);
            fputs(buf_text(&text), stdout);
            fflush(stdout);
        }
        buf_fini(&text);
        /* The library may have reported it as the end of a wait, or of a process that got the same signal. */
        if (caught) return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted");
        if (rc) return rc;
    }
    if (r->count) return HEDDLE_OK;
    error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no such row");
    error_hint(error, "see heddle-bench list");
    return HEDDLE_ERR_NOT_FOUND;
}

static int run(const args_t *a)
{
    char scratch[4096];
    heddle_error_t error = {0};
    result_t r = {0};
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/heddle-bench.XXXXXX",
             a->data       ? a->data
             : tmp && *tmp ? tmp
                           : "/tmp");
    int rc = make_dir(scratch, &error);
    if (!rc && a->pin) rc = child_pin(&error);
    if (rc) {
        print_failure(a, "bench", &error);
        return end_with(&error);
    }
    /* The user's own key ring and broker must play no part: a measurement makes its own. */
    char keys[4200];
    snprintf(keys, sizeof keys, "%s/keys", scratch);
    setenv("HEDDLE_KEYS", keys, 1);
    static const char *const OTHERS[] = {"HEDDLE_KEY", "HEDDLE_BROKER_KEY", "HEDDLE_BROKER"};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) unsetenv(OTHERS[i]);
    r.machine = machine_facts(scratch);
    uint32_t repeat = a->repeat ? (uint32_t)a->repeat : a->smoke ? SMOKE_REPEAT : REPEAT;
    row_env_t env = {.scratch = scratch,
                     .python = a->python,
                     .repeat = repeat,
                     .idle_ms = a->smoke ? SMOKE_IDLE_MS : IDLE_MS,
                     .is_alone = a->alone,
                     .owns_memory = a->own_memory,
                     .machine = r.machine};
    if (r.machine) json_object_set_new(r.machine, "memory", json_string(a->own_memory ? "own" : "shared"));
    if (r.machine) json_object_set_new(r.machine, "pinned", json_boolean(a->pin));
    if (r.machine) rc = measure_rows(a, &env, &r, &error);
    else rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for a report");
    nftw(scratch, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    buf_t text = {0};
    if (r.machine) machine_finish(r.machine);
    add_hint(&error);
    if (a->output == OUTPUT_JSON) print_json(result_encode(&r, rc ? &error : NULL));
    else if (!rc) result_machine_text(r.machine, &text), fputs(buf_text(&text), stdout);
    buf_fini(&text);
    result_fini(&r);
    return rc ? end_with(&error) : 0;
}

/* ---- list and compare ------------------------------------------------------------------------ */

static int read_report(const char *path, result_t *ret_report, heddle_error_t *error)
{
    json_error_t why;
    FILE *f = fopen(path, "re");
    if (!f)
        return error_fail(error, errno == ENOENT ? HEDDLE_ERR_NOT_FOUND : HEDDLE_ERR_DATA_DIR,
                          "cannot read %s: %s", path, strerror(errno));
    json_t *json = json_loadf(f, JSON_REJECT_DUPLICATES, &why);
    fclose(f);
    int rc = json ? result_decode(json, path, ret_report, error)
                  : error_fail(error, HEDDLE_ERR_PROTOCOL, "%s is not a report of heddle-bench: %s", path,
                               why.text);
    json_decref(json);
    return rc;
}

static int compare(const args_t *a, const char *before, const char *after)
{
    heddle_error_t error = {0};
    result_t x = {0}, y = {0};
    compare_t c = {0};
    int rc = read_report(before, &x, &error);
    if (!rc) rc = read_report(after, &y, &error);
    if (!rc) rc = compare_make(&x, &y, &c, &error);
    if (rc) print_failure(a, "bench_compare", &error);
    else if (a->output == OUTPUT_JSON) print_json(compare_encode(&c));
    else {
        buf_t text = {0};
        compare_text(&c, &text);
        fputs(buf_text(&text), stdout);
        buf_fini(&text);
    }
    int end = rc ? end_with(&error) : compare_is_ok(&c) ? 0 : 1;
    compare_fini(&c);
    result_fini(&x);
    result_fini(&y);
    return end;
}

/* ---- the program ----------------------------------------------------------------------------- */

static int act(args_t *a, const char *const *args, heddle_error_t *error, int *ret_end)
{
    /* Without an action it measures: that is what the program is named for. */
    const char *action = args[0] ? args[0] : "run";
    if (a->repeat < 0 || a->repeat > STATS_REPEAT_MAX) {
        error_fail(error, HEDDLE_ERR_USAGE, "--repeat is out of range");
        error_expected(error, "0 to %u", STATS_REPEAT_MAX);
        error_found(error, "%lld", (long long)a->repeat);
        return HEDDLE_ERR_USAGE;
    }
    if (!strcmp(action, "run") && !args[1]) *ret_end = run(a);
    else if (!strcmp(action, "list") && !args[1]) {
        json_t *rows = json_array();
        for (const bench_row_t *r = ROWS; r->name; r++) {
            if (a->output == OUTPUT_TABLE) printf("%-20s  %s\n", r->name, r->kind->summary);
            json_array_append_new(rows,
                                  json_pack("{s:s, s:s, s:i, s:s}", "name", r->name, "shape", r->shape,
                                            "worker_count", (int)r->workers, "summary", r->kind->summary));
        }
        json_t *answer = json_pack("{s:s, s:s, s:b, s:o}", "schema", "heddle/1", "kind", "bench_list", "ok",
                                   1, "rows", rows);
        if (a->output == OUTPUT_JSON) print_json(answer);
        else json_decref(answer);
        *ret_end = 0;
    } else if (!strcmp(action, "compare") && args[2]) *ret_end = compare(a, args[1], args[2]);
    else {
        error_fail(error, HEDDLE_ERR_USAGE, "\"%.100s\" is not an action, or has words amiss", action);
        error_expected(error, "%s", SET.usage);
        error_hint(error, "see %s --help", SET.program);
        return HEDDLE_ERR_USAGE;
    }
    return HEDDLE_OK;
}

int main(int argc, char **argv)
{
    args_t args = {0};
    const char *words[3] = {0};
    heddle_error_t error = {0};
    int end = 0, rc = process_begin(&error);
    if (!rc && argc > 1 && !strcmp(argv[1], "--as")) return member_main(argc, argv);
    SET.program = process_name(argv[0], "heddle-bench");
    if (!rc) rc = option_parse(&SET, argc, argv, &args, words, &error);
    if (rc == 1) return process_end(0);
    if (rc) args.output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE;
    log_set_level((log_level_t)args.log_level);
    /* Blocked, so that the end of a child stays pending and ends the wait for it (bench/child.c). */
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    process_on_signal(on_signal);
    if (!rc) rc = act(&args, words, &error, &end);
    if (rc) {
        print_failure(&args, "bench", &error);
        end = end_with(&error);
    }
    option_fini(&SET, &args);
    return process_end(end);
}
