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
    CLI_TAG "\n" CLI_DUR,
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
static bool shows_all;

/* "10.0 MB from w1, 7.6 MB from trainer" */
static const char *sources_of(const json_t *w, char *to, size_t size)
{
    const json_t *sources = json_object_get(w, "sources");
    to[0] = 0;
    for (size_t k = 0; k < json_array_size(sources); k++) {
        char one[200], n[16], scratch[64];
        const json_t *s = json_array_get(sources, k);
        units_bytes_text((uint64_t)cli_integer(s, "bytes"), n);
        snprintf(one, sizeof one, "%s%s from %.128s", k ? ", " : "", n, cli_text(s, "name", scratch));
        strncat(to, one, size - strlen(to) - 1);
    }
    return to[0] ? to : "-";
}

/* "fetch 3.1, verify 0.9": what took time, in ms */
static const char *timing_of(const json_t *w, char *to, size_t size)
{
    static const char *const PHASES[] = {"announce", "connect", "fetch", "verify", "stage", "activate"};
    const json_t *timing = json_object_get(w, "timing");
    size_t n = 0;
    to[0] = 0;
    for (size_t i = 0; i < sizeof PHASES / sizeof *PHASES && n < size; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_ms", PHASES[i]);
        const json_t *ms = json_object_get(timing, key);
        if (json_is_number(ms))
            n += (size_t)snprintf(to + n, size - n, "%s%s %.1f", n ? ", " : "", PHASES[i],
                                  json_number_value(ms));
    }
    return to[0] ? to : "-";
}

static void render_workers(const json_t *v)
{
    const json_t *list = json_object_get(v, "workers");
    if (json_array_size(list) == 0) return;
    table_t t;
    table_init(&t, 7, (const char *const[]){"WORKER", "STATE", "SINCE", ">BYTES", "SOURCES", "MS", "WHY"});
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i);
        char s1[64], s2[64], bytes[16], from[512], ms[160], why[600];
        units_bytes_text((uint64_t)cli_integer(w, "bytes_done"), bytes);
        table_row(&t, json_string_value(json_object_get(w, "worker")), cli_text(w, "state", s1),
                  cli_age(w, "since_at", s2), bytes, sources_of(w, from, sizeof from),
                  timing_of(w, ms, sizeof ms), cli_why(w, why, sizeof why));
    }
    puts("");
    table_print(&t);
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

typedef struct {
    const json_t *copy;                  /* NULL: no worker has timings */
    const char *phase;                   /* that took longest there */
    double phase_ms, staged_ms, activate_ms;
} slowest_t;

/* The worker that took longest from its first request to a source until the version was loaded. */
static slowest_t slowest_of(const json_t *list)
{
    static const char *const PHASES[] = {"connect", "fetch", "stage"};
    slowest_t slowest = {0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        slowest_t s = {.copy = json_array_get(list, i)};
        const json_t *timing = json_object_get(s.copy, "timing");
        for (size_t k = 0; k < sizeof PHASES / sizeof *PHASES; k++) {
            char key[32];
            snprintf(key, sizeof key, "%s_ms", PHASES[k]);
            double ms = json_number_value(json_object_get(timing, key));
            s.staged_ms += ms;
            if (ms > s.phase_ms) s.phase = PHASES[k], s.phase_ms = ms;
        }
        double activate_ms = json_number_value(json_object_get(timing, "activate_ms"));
        if (slowest.activate_ms < activate_ms) slowest.activate_ms = activate_ms;
        s.activate_ms = slowest.activate_ms;
        if (s.phase && s.staged_ms > slowest.staged_ms) slowest = s;
    }
    return slowest;
}

/* "took  4.4 s; slowest w2: fetch 4.35 s at 4.0 MB/s, its own --max-rate 4M": the slowest worker until it
 * had loaded the version, and the slowest switch. */
static void print_took(const json_t *v)
{
    char all[24], phase[24], rate[16], limit[16], scratch[64];
    slowest_t s = slowest_of(json_object_get(v, "workers"));
    if (!s.copy) return;
    units_ms_text(s.staged_ms + s.activate_ms, all);
    units_ms_text(s.phase_ms, phase);
    printf("%-11s %s; slowest %s: %s %s", "took", all, cli_text(s.copy, "worker", scratch), s.phase, phase);
    if (!strcmp(s.phase, "fetch")) {
        double per_second = (double)cli_integer(s.copy, "bytes_done") * 1000 / s.phase_ms;
        double max_rate = (double)cli_integer(s.copy, "max_rate_bytes");
        units_bytes_text((uint64_t)per_second, rate);
        units_bytes_text((uint64_t)max_rate, limit);
        printf(" at %s/s", rate);
        if (max_rate > 0 && per_second > RATE_IS_LIMITED * max_rate)
            printf(", its own --max-rate of %s/s", limit);
    }
    puts("");
}

/* NAME@V: one version in detail. */
static void render_one(const json_t *v)
{
    char s[4][64], bytes[16], text[600];
    units_bytes_text((uint64_t)cli_integer(v, "data_bytes"), bytes);
    print_line("tag", cli_text(v, "tag", s[0]));
    print_line("digest", cli_text(v, "digest", s[0]));
    print_line("state", cli_text(v, "state", s[0]));
    print_line("why", cli_why(json_object_get(v, "reason"), text, sizeof text));
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
                      cli_why(json_object_get(v, "reason"), why, sizeof why));
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
