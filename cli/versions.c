/* SPDX-License-Identifier: Apache-2.0 */
/* heddle versions: the versions of an adapter as a table, or one version in detail. */
#include "cli/cli.h"

#include "core/errors.h"
#include "core/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { common_t common; bool all; } args_t;
static const option_t OPTIONS[] = {{"all", 0, OPTION_FLAG, NULL, NULL, NULL,
                                    "also older versions that ended; -o json always has all",
                                    offsetof(args_t, all)},
                                   {0}};
static const char *const ARGS[] = {"REF", NULL};
static const option_set_t SET = {
    "heddle versions",
    "NAME|NAME@V|TAG [OPTION...]",
    "The versions of an adapter; with NAME@V that version alone, with its configuration and who has it.",
    "took: from created to activated, and the worker and the phase (connect, fetch, stage) that took longest "
    "of those\nthat the activation waited for; then what took the rest of the time, where that is known.  "
    "Until it is active:\nso far, and the worker that is furthest behind, or the version that goes first.  "
    "-o json: took_ms, so_far_ms, slowest, rest.\n" CLI_TAG "\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ", 3 there is no such adapter or version.\n" CLI_EXITS_COMMON
              ".\n\nExamples:\n  heddle versions policy\n"
              "  heddle versions policy@7                 who has it, from whom, and why it failed\n"
              "  heddle versions policy@7:3f9a1c20d4e1    the version of a sample\n"
              "  heddle versions policy -o json | jq '.versions[-1].state'"};

enum { NEWEST_ROWS = 30 }; /* always shown, even if they have ended */
/* A fetch at more than this part of --max-rate is limited by it. */
#define RATE_IS_LIMITED 0.8
/* A switch is mentioned from this part of the time before it on. */
#define SWITCH_IS_LONG 0.2
static bool shows_all;

/* "10.0 MB from w1, 7.6 MB from trainer"; while it fetches "trainer" */
static const char *sources_of(const json_t *w, char *to, size_t size)
{
    const json_t *sources = json_object_get(w, "sources");
    char now[64];
    snprintf(to, size, "%s", json_array_size(sources) ? "" : cli_text(w, "source", now));
    for (size_t k = 0; k < json_array_size(sources); k++) {
        char one[200], n[16], scratch[64];
        const json_t *s = json_array_get(sources, k);
        units_bytes_text((uint64_t)cli_integer(s, "bytes"), n);
        snprintf(one, sizeof one, "%s%s from %.128s", k ? ", " : "", n, cli_text(s, "name", scratch));
        strncat(to, one, size - strlen(to) - 1);
    }
    return to;
}

/* "announce 0.1, queued behind policy@6 812.0, fetch 3.1, verify 0.9": what took time, in ms */
static const char *timing_of(const json_t *w, const char *adapter, char *to, size_t size)
{
    static const char *const PHASES[] = {"announce", "queued", "connect", "fetch",
                                         "verify",   "stage",  "activate"};
    const json_t *timing = json_object_get(w, "timing");
    char queued[HEDDLE_NAME_MAX + 48];
    size_t n = 0;
    snprintf(queued, sizeof queued, "queued behind %s@%lld", adapter,
             (long long)cli_integer(w, "queued_behind"));
    to[0] = 0;
    for (size_t i = 0; i < sizeof PHASES / sizeof *PHASES && n < size; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_ms", PHASES[i]);
        const json_t *ms = json_object_get(timing, key);
        const char *phase = strcmp(PHASES[i], "queued") ? PHASES[i] : queued;
        if (json_is_number(ms))
            n += (size_t)snprintf(to + n, size - n, "%s%s %.1f", n ? ", " : "", phase, json_number_value(ms));
    }
    return to[0] ? to : "-";
}

static void render_workers(const json_t *v)
{
    const json_t *list = json_object_get(v, "workers");
    if (json_array_size(list) == 0) return;
    table_t t;
    char adapter[HEDDLE_NAME_MAX + 1], scratch[64];
    const char *tag = cli_text(v, "tag", scratch);
    snprintf(adapter, sizeof adapter, "%.*s", (int)strcspn(tag, "@"), tag);
    table_init(&t, 7, (const char *const[]){"WORKER", "STATE", "SINCE", ">BYTES", "SOURCES", "MS", "WHY"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i);
        char s1[64], s2[64], bytes[16], from[512], ms[320], why[600];
        units_bytes_text((uint64_t)cli_integer(w, "bytes_done"), bytes);
        table_row(&t, json_string_value(json_object_get(w, "worker")), cli_text(w, "state", s1),
                  cli_age(w, "since_at", s2), bytes, sources_of(w, from, sizeof from),
                  timing_of(w, adapter, ms, sizeof ms), cli_why(w, why, sizeof why));
    }
    puts("");
    table_print(&t);
}

/* Why it ended, or which version it waits for. */
static const char *why_of(const json_t *v, char *scratch, size_t size)
{
    const json_t *reason = json_object_get(v, "reason");
    return cli_why(json_is_object(reason) ? reason : v, scratch, size);
}

static void print_line(const char *key, const char *value) { printf("%-11s %s\n", key, value); }

static void print_json(const char *key, const json_t *value)
{
    char *text = json_is_object(value) && json_object_size(value)
                     ? json_dumps(value, JSON_COMPACT | JSON_PRESERVE_ORDER)
                     : NULL;
    if (text) error_text(text, strlen(text) + 1, text); /* field names come from peers too */
    print_line(key, text ? text : "-");
    free(text);
}

static const char *features_of(const json_t *v, char *to, size_t size)
{
    const json_t *list = json_object_get(v, "features");
    size_t n = 0;
    to[0] = 0;
    for (size_t i = 0; i < json_array_size(list) && n < size; i++)
        n += (size_t)snprintf(to + n, size - n, "%s%s", i ? ", " : "",
                              json_string_value(json_array_get(list, i)));
    return to[0] ? to : "-";
}

static void print_rollout(const json_t *rollout)
{
    char s[4][64], of[96] = "";
    if (cli_integer(rollout, "eligible_count") > 0) /* a restarted broker no longer has the number */
        snprintf(of, sizeof of, " of %s eligible", cli_text(rollout, "eligible_count", s[3]));
    printf("%-11s %s; staged on %s and active on %s%s; deadline %s ms\n", "rollout",
           cli_text(rollout, "activation", s[0]), cli_text(rollout, "staged_count", s[1]),
           cli_text(rollout, "active_count", s[2]), of, cli_text(rollout, "deadline_ms", s[3]));
}

static const json_t *copy_of(const json_t *v, const char *worker)
{
    const json_t *list = json_object_get(v, "workers");
    for (size_t i = 0; worker && i < json_array_size(list); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(list, i), "worker"));
        if (name && !strcmp(name, worker)) return json_array_get(list, i);
    }
    return NULL;
}

static const char *ms_text(const json_t *object, const char *key, char to[16])
{
    units_ms_text(json_number_value(json_object_get(object, key)), to);
    return to;
}

/* " at 4.0 MB/s, its own --max-rate of 4.0 MB/s" */
static void print_rate(const json_t *copy, double fetch_ms)
{
    char rate[16], limit[16];
    double per_second = fetch_ms > 0 ? (double)cli_integer(copy, "bytes_done") * 1000 / fetch_ms : 0;
    double max_rate = (double)cli_integer(copy, "max_rate_bytes");
    if (per_second <= 0) return;
    units_bytes_text((uint64_t)per_second, rate);
    units_bytes_text((uint64_t)max_rate, limit);
    printf(" at %s/s", rate);
    if (max_rate > 0 && per_second > RATE_IS_LIMITED * max_rate)
        printf(", its own --max-rate of %s/s", limit);
}

/* "took  4.4 s; slowest w2: fetch 4.35 s at 4.0 MB/s": until it was activated.  A switch that took long comes
 * after that. */
static void print_done(const json_t *v, const json_t *slowest)
{
    char all[16], part[16], scratch[64];
    const json_t *rest = json_object_get(v, "rest"), *last = json_object_get(v, "switch");
    const char *why = json_string_value(json_object_get(rest, "message"));
    printf("%-11s %s", "took", ms_text(v, "took_ms", all));
    if (json_is_object(slowest)) {
        const char *worker = cli_text(slowest, "worker", scratch);
        const char *phase = json_string_value(json_object_get(slowest, "phase"));
        printf("; slowest %s: %s %s", worker, phase ? phase : "", ms_text(slowest, "ms", part));
        if (phase && !strcmp(phase, "fetch"))
            print_rate(copy_of(v, worker), json_number_value(json_object_get(slowest, "ms")));
    }
    double took_ms = json_number_value(json_object_get(v, "took_ms"));
    bool is_most = json_number_value(json_object_get(rest, "ms")) > took_ms / 2;
    if (why) printf("; of it %s %s", ms_text(rest, "ms", part), why);
    else if (is_most && json_is_object(slowest))
        printf("; of it %s in no phase of a worker", ms_text(rest, "ms", part));
    else if (is_most) printf("; in which phases is not known");
    double switch_ms = json_number_value(json_object_get(last, "ms"));
    if (switch_ms > took_ms * SWITCH_IS_LONG)
        printf("; then %s switched in %s", cli_text(last, "worker", scratch), ms_text(last, "ms", part));
    puts("");
}

/* "took  so far 2.1 s; waits for w2: fetch 6.0 MB of 17.6 MB, 4.0 MB/s" */
static void print_so_far(const json_t *v, const json_t *slowest)
{
    char all[16], done[16], of[16], scratch[64];
    const char *worker = json_string_value(json_object_get(slowest, "worker"));
    const json_t *copy = copy_of(v, worker);
    const char *note = json_string_value(json_object_get(copy, "note")),
               *message = json_string_value(json_object_get(copy, "message")),
               *phase = json_string_value(json_object_get(slowest, "phase"));
    printf("%-11s so far %s", "took", ms_text(v, "so_far_ms", all));
    if (!worker) {
        bool is_staged = !strcmp(cli_text(v, "state", scratch), "staged");
        const char *queued = json_string_value(json_object_get(v, "note"));
        printf("; %s\n", is_staged ? "it is staged" : queued ? queued : "waits for a worker");
        return;
    }
    printf("; waits for %s: %s", worker, phase ? phase : "");
    if (phase && !strcmp(phase, "fetch")) {
        units_bytes_text((uint64_t)cli_integer(copy, "bytes_done"), done);
        units_bytes_text((uint64_t)cli_integer(v, "data_bytes"), of);
        printf(" %s of %s", done, of);
    }
    if (message || note) printf(", %s", message ? message : note);
    puts("");
}

static void print_took(const json_t *v)
{
    const json_t *slowest = json_object_get(v, "slowest");
    if (json_is_number(json_object_get(v, "took_ms"))) print_done(v, slowest);
    else if (json_is_number(json_object_get(v, "so_far_ms"))) print_so_far(v, slowest);
}

/* NAME@V: one version in detail. */
static void render_one(const json_t *v)
{
    char s[4][64], bytes[16], text[600];
    units_bytes_text((uint64_t)cli_integer(v, "data_bytes"), bytes);
    print_line("tag", cli_text(v, "tag", s[0]));
    print_line("digest", cli_text(v, "digest", s[0]));
    print_line("state", cli_text(v, "state", s[0]));
    print_line("why", why_of(v, text, sizeof text));
    print_line("step", cli_text(v, "step", s[0]));
    printf("%-11s %s (%s)\n", "created", cli_text(v, "created_at", s[0]), cli_age(v, "created_at", s[1]));
    printf("%-11s %s (%s)\n", "activated", cli_text(v, "activated_at", s[0]),
           cli_age(v, "activated_at", s[1]));
    print_line("writer", cli_text(v, "writer", s[0]));
    print_line("request id", cli_text(v, "request_id", s[0]));
    printf("%-11s %s, %s\n", "bytes", bytes, cli_count(cli_integer(v, "tensor_count"), "tensor", s[0]));
    print_line("features", features_of(v, text, sizeof text));
    print_json("meta", json_object_get(v, "meta"));
    print_json("config", json_object_get(v, "config"));
    print_line("holders", cli_text(v, "holder_count", s[0]));
    print_rollout(json_object_get(v, "rollout"));
    print_took(v);
    render_workers(v);
}

/* Of thousands of versions almost all have ended long ago, so only the newest and the live ones are shown. */
static bool is_shown(const json_t *list, size_t i)
{
    static const char *const ENDED[] = {"failed", "superseded", "retired"};
    if (shows_all || i + NEWEST_ROWS >= json_array_size(list)) return true;
    const char *state = json_string_value(json_object_get(json_array_get(list, i), "state"));
    for (size_t k = 0; state && k < sizeof ENDED / sizeof *ENDED; k++)
        if (!strcmp(state, ENDED[k])) return false;
    return true;
}

static void render(const common_t *c, json_t *answer)
{
    (void)c;
    const json_t *list = json_object_get(answer, "versions"), *first = json_array_get(list, 0);
    size_t hidden = 0;
    char text[64];
    table_t t;
    if (json_object_get(first, "workers")) {
        render_one(first);
        return;
    }
    table_init(&t, 9,
               (const char *const[]){">VERSION", "STATE", "DIGEST", ">STEP", "CREATED", ">BYTES", ">TENSORS",
                                     ">HOLDERS", "WHY"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (is_shown(list, i)) {
            const json_t *v = json_array_get(list, i);
            char s[7][64], bytes[16], why[600];
            units_bytes_text((uint64_t)cli_integer(v, "data_bytes"), bytes);
            table_row(&t, cli_text(v, "version", s[1]), cli_text(v, "state", s[2]),
                      cli_short_digest(v, "digest", s[3]), cli_text(v, "step", s[4]),
                      cli_age(v, "created_at", s[5]), bytes, cli_text(v, "tensor_count", s[6]),
                      cli_text(v, "holder_count", s[0]),
                      why_of(v, why, sizeof why));
        } else hidden++;
    }
    table_print(&t);
    if (hidden)
        printf("\n%s that ended not shown: --all shows them\n",
               cli_count((int64_t)hidden, "older version", text));
}

int command_versions(int argc, char **argv)
{
    args_t args = {0};
    const char *ref = NULL;
    int end = cli_parse(&SET, "versions", argc, argv, &args, &ref);
    if (end >= 0) return end;
    shows_all = args.all;
    heddle_admin_t *admin = cli_admin(&args.common, "versions", &end);
    if (!admin) return end;
    char *json = NULL;
    int rc = heddle_admin_versions(admin, ref, &json);
    end = cli_answer(&args.common, "versions", cli_error(rc), json, render);
    cli_admin_close(&admin);
    return end;
}
