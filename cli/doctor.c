/* SPDX-License-Identifier: Apache-2.0 */
/* heddle doctor: what this host has, what is wrong with it, why that matters, and how to mend it.
 *
 * It ends as `heddle check` does, for the same reason: a script that sets up hosts has to tell a warning from
 * a failure.  Facts, findings and this file, which prints both, know nothing of each other but the JSON. */
#include "cli/cli.h"

#include "cli/diagnosis.h"
#include "cli/facts.h"
#include "core/descriptors.h"
#include "core/errors.h"

#include <stdio.h>
#include <string.h>

static const option_t OPTIONS[] = {
    {"data-device", 0, OPTION_TEXT, "IF", NULL, NULL,
     "as of `heddle worker`: the interface of the data plane; default the one that reaches the broker",
     offsetof(facts_opts_t, data_device)},
    {"host-share", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "as of `heddle worker`: the directory by which processes of the host share memory",
     offsetof(facts_opts_t, host_share)},
    {"export", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "as of `heddle worker`: is there room, and may it be written", offsetof(facts_opts_t, export_dir)},
    {"join", 0, OPTION_TEXT, "STRING|@FILE", "HEDDLE_JOIN", NULL,
     "as of `heddle worker`, in place of --broker: is this invitation still good; it is not used",
     offsetof(facts_opts_t, common.join)},
    {"insecure", 0, OPTION_FLAG, NULL, NULL, NULL, "as of `heddle worker`: without keys over a network",
     offsetof(facts_opts_t, insecure)},
    {"listen", 0, OPTION_TEXT, "EP", NULL, NULL, "as of `heddle broker`: can it listen there",
     offsetof(facts_opts_t, listen)},
    {"data", 0, OPTION_TEXT, "DIR", NULL, NULL, "as of `heddle broker`: is there room, and may it be written",
     offsetof(facts_opts_t, data)},
    {0}};
static const option_set_t SET = {
    "heddle doctor",
    "[OPTION...]",
    "What this host has, and what is wrong with it: each finding with why it matters and how to mend it.\n"
    "It looks at UCX, the data plane, memory and how processes share it, limits and keys, as a worker that\n"
    "is started with the same options would; at the broker: its release, disk and clock; and at each "
    "worker:\n"
    "its UCX, and whether this host reaches it and is reached by it.  Nothing is changed.\n"
    "critical: a program would not start here, or no bytes can come or go.\n"
    "warning: it works, and not as well as it could, or not for long.\n"
    "note: worth knowing, or not examined.",
    "operations.md, `heddle doctor`, has every finding by its name.\n" CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    NULL,
    0,
    "Exit status: 0 ok, with notes or without; 1 warning; 2 critical; 3 wrong usage.\n"
    "Interrupted as everywhere: 129, 130 or 143.\n\nExamples:\n"
    "  heddle doctor\n"
    "  heddle doctor --broker tcp://10.0.0.5:7700     before a worker is started on another host\n"
    "  heddle doctor --join @join.txt                 the same, for one that an invitation lets in\n"
    "  heddle doctor -o json | jq -r '.findings[] | .name, .mend'     what is wrong, and what to do"};

/* ---- for people ---- */

static const json_t *part(const json_t *answer, const char *name)
{
    return json_object_get(json_object_get(answer, "facts"), name);
}

/* Findings are below, and say why. */
static bool has_failed(const json_t *object) { return json_is_object(json_object_get(object, "error")); }

static void show_data(const json_t *data, const json_t *network)
{
    char s[2][64], addresses[160];
    if (!cli_string(data, "device")) {
        printf("data plane   %s\n", has_failed(data) ? "failed, see below" : "not examined");
        return;
    }
    printf("data plane   %s (%s), %s, congestion control %s\n", cli_string(data, "device"),
           cli_join(json_object_get(data, "addresses"), ", ", addresses, sizeof addresses),
           cli_join(json_object_get(data, "transports"), ",", s[0], sizeof s[0]),
           cli_text(network, "congestion", s[1]));
}

static void show_key(const json_t *key)
{
    const char *text = cli_string(key, "public_key");
    printf("key          %s\n", text              ? text
                                : has_failed(key) ? "failed, see below"
                                                  : "none yet: it is made when it is needed first");
}

static void show_host(const json_t *answer)
{
    char s[4][64];
    const json_t *ucx = part(answer, "ucx"), *memory = part(answer, "memory"),
                 *limits = part(answer, "limits");
    printf("host         %s, Heddle %s\n", cli_text(json_object_get(answer, "facts"), "host", s[0]),
           cli_text(json_object_get(answer, "facts"), "heddle", s[1]));
    if (!cli_string(ucx, "version")) printf("UCX          failed, see below\n");
    else printf("UCX          %s, %s\n", cli_string(ucx, "version"), cli_text(ucx, "library", s[0]));
    show_data(part(answer, "data"), part(answer, "network"));
    printf("memory       %s, %s available, /dev/shm %s, huge pages %s\n",
           has_failed(memory) ? "not shared (see below)" : cli_text(memory, "way", s[0]),
           cli_bytes(memory, "available_bytes", s[1]), cli_bytes(memory, "shm_bytes", s[2]),
           cli_text(memory, "huge_pages", s[3]));
    if (cli_string(memory, "host_share") && !has_failed(memory))
        printf("             shared in %s\n", cli_string(memory, "host_share"));
    printf("limits       %s open files, files of %s\n", cli_text(limits, "descriptors", s[0]),
           cli_integer(limits, "file_bytes") ? cli_bytes(limits, "file_bytes", s[1]) : "any size");
    show_key(part(answer, "key"));
}

static void show_broker(const json_t *answer)
{
    char s[5][64], off[64] = "not compared with its own";
    const json_t *broker = part(answer, "broker"), *clock = part(answer, "clock"),
                 *workers = part(answer, "workers");
    size_t reached = 0;
    for (size_t i = 0; i < json_array_size(workers); i++) {
        const char *reach = cli_string(json_array_get(workers, i), "reach");
        reached += reach && !strcmp(reach, "yes");
    }
    int64_t ahead_ms = cli_integer(clock, "ahead_ms");
    if (json_is_object(clock))
        snprintf(off, sizeof off, "%.3f s %s its own", (double)(ahead_ms < 0 ? -ahead_ms : ahead_ms) / 1000.0,
                 ahead_ms < 0 ? "behind" : "ahead of");
    const char *state = cli_string(broker, "state");
    printf("broker       %s, %s\n", cli_string(broker, "endpoint"),
           state ? state : "not examined, see below");
    if (!state) return;
    printf("             Heddle %s, cluster %s; this host's clock is %s\n", cli_text(broker, "heddle", s[0]),
           cli_text(broker, "cluster", s[1]), off);
    if (!json_array_size(workers)) puts("workers      none is there");
    else
        printf("workers      %zu of %s reached from here\n", reached,
               cli_count((int64_t)json_array_size(workers), "worker", s[0]));
}

static void show_findings(const json_t *findings)
{
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *f = json_array_get(findings, i);
        printf("\n%s  %s\n  what  %s\n  why   %s\n  mend  %s\n", cli_string(f, "level"),
               cli_string(f, "name"), cli_string(f, "what"), cli_string(f, "why"), cli_string(f, "mend"));
    }
}

static void show(json_t *answer)
{
    char s[64];
    const json_t *findings = json_object_get(answer, "findings");
    cli_clean_texts(answer);
    show_host(answer);
    show_broker(answer);
    show_findings(findings);
    printf("\n%s: %zu checks, %s\n", cli_string(answer, "status"),
           json_array_size(json_object_get(answer, "checks")),
           cli_count((int64_t)json_array_size(findings), "finding", s));
}

/* ---- the answer ---- */

/* With -o json what is not ok has an error, as every answer. */
static void add_error(json_t *answer, const json_t *findings, int level)
{
    heddle_error_t error;
    const json_t *first = json_array_get(findings, 0);
    error_fail(&error, HEDDLE_ERR_UNHEALTHY, "%.60s: %.400s", cli_string(first, "name"),
               cli_string(first, "what"));
    error_hint(&error, "%s", cli_string(first, "mend"));
    json_t *object = cli_error_object("doctor", &error);
    json_object_set_new(object, "exit", json_integer(level));
    json_object_set_new(answer, "error", object);
}

static int answer_with(const common_t *c, json_t *facts)
{
    heddle_error_t error;
    json_t *findings = diagnosis_of(facts);
    if (!findings) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the findings");
        return cli_fail(c, "doctor", &error);
    }
    diagnosis_level_t level = diagnosis_level(findings);
    json_t *answer = json_pack("{s:s, s:s, s:b, s:s, s:O, s:o, s:O}", "schema", "heddle/1", "kind", "doctor",
                               "ok", level == DIAGNOSIS_OK, "status", diagnosis_level_name(level), "findings",
                               findings, "checks", diagnosis_checks(facts), "facts", facts);
    if (level != DIAGNOSIS_OK) add_error(answer, findings, (int)level);
    if (c->output == OUTPUT_JSON) cli_print_json(answer);
    else show(answer);
    json_decref(answer);
    json_decref(findings);
    return (int)level;
}

int command_doctor(int argc, char **argv)
{
    facts_opts_t opts = {0};
    int end = cli_parse(&SET, "doctor", argc, argv, &opts, NULL);
    if (end >= 0) return end;
    cli_on_signal(NULL, NULL);
    descriptors_raise_limit(); /* as a worker and a broker do */
    json_t *facts = facts_gather(&opts);
    if (!facts) return cli_fail(&opts.common, "doctor", heddle_last_error());
    end = answer_with(&opts.common, facts);
    json_decref(facts);
    return end;
}
