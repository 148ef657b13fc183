/* SPDX-License-Identifier: Apache-2.0 */
/* heddle versions: the versions of an adapter as a table, or one version in detail.
 *
 * The detail answers "why is it slow, or not there": which worker and which phase took the time, from which
 * sources its bytes came, and which version goes first. Members that are missing belong to steps that were
 * not reached, or that a restarted broker no longer has. */
#include "cli/cli.h"
#include "cli/way.h"

#include "core/errors.h"
#include "core/listing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    common_t common;
    uint32_t watch_ms;
    bool all;
    const char *ref;
} args_t;
static const option_t OPTIONS[] = {{"all", 0, OPTION_FLAG, NULL, NULL, NULL,
                                    "also older versions that ended; -o json always has all",
                                    offsetof(args_t, all)},
                                   CLI_WATCH(args_t),
                                   {0}};
static const char *const ARGS[] = {"REF", NULL};
static const option_set_t SET = {
    "heddle versions",
    "NAME|NAME@V|TAG [OPTION...]",
    "The versions of an adapter; with NAME@V that version alone, with its configuration and who has it.",
    "version, digest: its number, and its content.  step: the trainer's own.  created: how long ago.\n"
    "state: staging, staged, active, kept (to go back to), superseded, failed, retired or lost.\n"
    "bytes, tensors: how much it is.  holders: the workers that have its bytes, and on which host or hosts.\n"
    "why: why it failed or was lost, or what it waits for.\n"
    "Of NAME@V a row for each worker:\n"
    "worker, since: its name, and how long it has been in that state.\n"
    "hop: over how many links of the network its bytes came, 0: it holds them in the publisher's memory, -:\n"
    "not known.  state former: what a worker fetched before it was started again, left or dropped it.\n"
    "The rows are in that order.  sources: where its bytes came from, how they were held (memory of ...),\n"
    "and asks that moved to another source, by the reason: late, gone, refused, bad or slow.\n"
    "ms: how long each phase took there.\n"
    "way: the bytes of all workers.  progress: what they have together, while it is on its way.\n"
    "took: from created to activated, and the worker and the phase (connect, fetch, stage) that took\n"
    "longest of those that the activation waited for; then what took the rest of the time, where that is\n"
    "known.  Until it is active: so far, and the worker that is furthest behind, or the version that goes\n"
    "first.  Of one that ended before: until it ended, and the worker that it failed at, or that was\n"
    "furthest behind.  Not finished: a worker that does not serve it yet.\n"
    "-o json: took_ms, so_far_ms, ended_after_ms, slowest, rest, switch, unfinished.\n" CLI_TAG
    "\n" CLI_WATCH_HELP CLI_DUR,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS ", 3 there is no such adapter or version.\n" CLI_EXITS_COMMON
              ".\n\nExamples:\n  heddle versions policy\n"
              "  heddle versions policy@7                 who has it, from whom, and why it failed\n"
              "  heddle versions policy@7 --watch=500ms   how it comes to the workers\n"
              "  heddle versions policy@7:3f9a1c20d4e1    the version of a sample\n"
              "  heddle versions policy -o json | jq '.versions[-1].state'"};

enum { NEWEST_ROWS = 30 }; /* always shown, even if they have ended */
/* Less than this are messages on their way. */
#define WAIT_IS_LONG_MS 10.0
/* A switch is mentioned from this part of the time before it on: usually it takes next to nothing. */
#define SWITCH_IS_LONG 0.2

/* "10.0 MB from w1, 7.6 MB from trainer"; "nothing from w2 (4 asks moved: late)"; "memory of w1" where it
 * is held there; while it fetches "trainer".  A worker that had the content under another number fetched
 * nothing; of a version that was staged before a restart of the broker the sources are not known any more. */
static const char *sources_of(const json_t *w, char *to, size_t size)
{
    const json_t *sources = json_object_get(w, "sources");
    char now[64], bytes[64];
    const char *state = cli_string(w, "state");
    bool holds = state && (!strcmp(state, "staged") || !strcmp(state, "committed") ||
                           !strcmp(state, "active") || !strcmp(state, "kept") || !strcmp(state, "stale"));
    if (!json_array_size(sources)) {
        snprintf(to, size, "%s",
                 way_is_unknown(w) ? "not known"
                 : !holds          ? cli_text(w, "source", now)
                                   : "already here");
        return to;
    }
    listing_t list = {.text = to, .size = size};
    for (size_t k = 0; k < json_array_size(sources); k++) {
        const json_t *s = json_array_get(sources, k);
        bool is_held = way_is_in_place(s);
        char moved[192];
        listing_add(&list, "%s %s %s%s",
                    is_held                   ? "memory"
                    : cli_integer(s, "bytes") ? cli_bytes(s, "bytes", bytes)
                                              : "nothing",
                    is_held ? "of" : "from", cli_text(s, "name", now),
                    way_moved(json_object_get(s, "moved"), moved, sizeof moved));
    }
    return listing_text(&list);
}

/* "312.0 MB of 640.0 MB on 16 workers (48 %), 36.1 MB/s" */
static void print_progress(const json_t *v)
{
    char s[4][64];
    const json_t *p = json_object_get(v, "progress");
    double all = (double)cli_integer(p, "all_bytes");
    if (all <= 0) return;
    printf("%-11s %s of %s on %s (%d %%)", "progress", cli_bytes(p, "bytes_done", s[0]),
           cli_bytes(p, "all_bytes", s[1]), cli_count(cli_integer(p, "worker_count"), "worker", s[2]),
           (int)(100 * (double)cli_integer(p, "bytes_done") / all));
    if (json_is_integer(json_object_get(p, "rate_bytes"))) printf(", %s/s", cli_bytes(p, "rate_bytes", s[3]));
    puts("");
}

/* "announce 0.1, queued behind policy@6 812.0, fetch 3.1, verify 0.9": what took time, in ms */
static const char *timing_of(const json_t *v, const json_t *w, char *to, size_t size)
{
    static const char *const PHASES[] = {"announce", "queued", "waiting", "connect",
                                         "fetch",    "verify", "stage",   "activate"};
    const json_t *timing = json_object_get(w, "timing");
    char queued[HEDDLE_NAME_MAX + 48], scratch[64];
    listing_t list = {.text = to, .size = size};
    const char *tag = cli_text(v, "tag", scratch); /* of the adapter whose name it begins with */
    snprintf(queued, sizeof queued, "queued behind %.*s@%lld", (int)strcspn(tag, "@"), tag,
             (long long)cli_integer(w, "queued_behind"));
    for (size_t i = 0; i < sizeof PHASES / sizeof *PHASES; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_ms", PHASES[i]);
        const json_t *ms = json_object_get(timing, key);
        const char *phase = strcmp(PHASES[i], "queued") ? PHASES[i] : queued;
        bool is_short = !strcmp(PHASES[i], "waiting") && json_number_value(ms) < WAIT_IS_LONG_MS;
        if (json_is_number(ms) && !is_short) listing_add(&list, "%s %.1f", phase, json_number_value(ms));
    }
    return listing_text(&list)[0] ? to : "-";
}

/* Of a fetch whose worker was started again, has left or has dropped the version, no other time is kept. */
static const char *fetch_of(const json_t *former, char *to, size_t size)
{
    double ms = json_number_value(json_object_get(former, "fetch_ms"));
    snprintf(to, size, ms > 0 ? "fetch %.1f" : "-", ms);
    return to;
}

/* Why it ended, or which version it waits for. */
static const char *why_of(const json_t *v, char *scratch, size_t size)
{
    const json_t *reason = json_object_get(v, "reason");
    return cli_why(json_is_object(reason) ? reason : v, scratch, size);
}

/* The adapter may be a mistyped name.  NULL: nothing to say. */
static const char *hint_of(const json_t *v) { return cli_string(json_object_get(v, "reason"), "hint"); }

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

/* A worker's own row.  NULL: it has left, or has the version no more. */
static const json_t *copy_of(const json_t *v, const char *worker)
{
    const json_t *list = json_object_get(v, "workers");
    for (size_t i = 0; worker && i < json_array_size(list); i++) {
        const char *name = cli_string(json_array_get(list, i), "worker");
        if (name && !strcmp(name, worker)) return json_array_get(list, i);
    }
    return NULL;
}

/* Which workers the activation waited for is soft state of the broker, and a restart loses it. */
static bool is_forgotten(const json_t *v)
{
    return json_is_null(json_object_get(json_object_get(v, "rollout"), "eligible_count"));
}

/* " of 1 eligible; w2, w3 came later": without the others the table below would seem to contradict it. */
static const char *eligible_of(const json_t *v, char *to, size_t size)
{
    char count[64], later[480];
    listing_t names = {.text = later, .size = sizeof later, .most = 4};
    const json_t *list = json_object_get(v, "workers"), *rollout = json_object_get(v, "rollout");
    snprintf(to, size, "%s",
             is_forgotten(v) ? "; of how many is not known since the broker was started again" : "");
    if (cli_integer(rollout, "eligible_count") <= 0) return to;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i);
        bool is_later = json_is_false(json_object_get(w, "awaited")) && cli_string(w, "state");
        if (is_later) listing_add(&names, "%s", cli_string(w, "worker"));
    }
    listing_text(&names);
    snprintf(to, size, " of %s eligible%s%s%s", cli_text(rollout, "eligible_count", count),
             later[0] ? "; " : "", later, later[0] ? " came later" : "");
    return to;
}

/* What the slowest worker did in that phase.  One that is announced has not begun, and may fetch another
 * version first. */
static const char *phase_of(const json_t *v, const json_t *slowest, char *to, size_t size)
{
    const char *phase = cli_string(slowest, "phase");
    const json_t *copy = copy_of(v, cli_string(slowest, "worker"));
    char scratch[64];
    const char *tag = cli_text(v, "tag", scratch); /* of the adapter whose name it begins with */
    if (!phase || strcmp(phase, "announce") != 0) return phase ? phase : "";
    if (!json_is_integer(json_object_get(copy, "queued_behind"))) return "announced, and not begun:";
    snprintf(to, size, "queued behind %.*s@%lld", (int)strcspn(tag, "@"), tag,
             (long long)cli_integer(copy, "queued_behind"));
    return to;
}

/* "; not finished: w3, switching for 12.0 s, and 1 other": it is active, and these do not serve it yet. */
static void print_unfinished(const json_t *last)
{
    char s[3][64];
    int64_t others = cli_integer(last, "count") - 1;
    const char *phase = cli_text(last, "phase", s[0]);
    if (!json_is_object(last)) return;
    bool is_switching = !strcmp(phase, "activate");
    printf("; not finished: %s, %s%s for %s", cli_text(last, "worker", s[1]), is_switching ? "" : "in phase ",
           is_switching ? "switching" : phase, cli_ms(last, "ms", s[2]));
    if (others > 0) printf(", and %s", cli_count(others, "other", s[0]));
}

/* "took  4.4 s; slowest w2: fetch 4.35 s at 4.0 MB/s, its own --max-rate of 4.0 MB/s": until it was
 * activated, or ended without that.  A switch that took long comes after that. */
static void print_took(const json_t *v, const char *key)
{
    char s[3][64];
    const json_t *slowest = json_object_get(v, "slowest"), *rest = json_object_get(v, "rest"),
                 *last = json_object_get(v, "switch");
    const char *why = cli_string(rest, "message");
    double took_ms = json_number_value(json_object_get(v, key));
    printf("%-11s %s%s", "took", cli_ms(v, key, s[0]), strcmp(key, "took_ms") ? " until it ended" : "");
    if (json_is_object(slowest)) {
        const json_t *copy = copy_of(v, cli_string(slowest, "worker"));
        bool has_rate = json_is_integer(json_object_get(slowest, "rate_bytes"));
        char text[HEDDLE_NAME_MAX + 48];
        const char *worker = cli_text(slowest, "worker", s[1]);
        printf("; slowest %s: %s %s", worker, phase_of(v, slowest, text, sizeof text),
               cli_ms(slowest, "ms", s[0]));
        if (has_rate) printf(" at %s/s", cli_bytes(slowest, "rate_bytes", s[0]));
        if (json_is_integer(json_object_get(slowest, "max_rate_bytes")))
            printf(", its own --max-rate of %s/s", cli_bytes(slowest, "max_rate_bytes", s[0]));
        const json_t *rows = json_object_get(v, "workers"), *former = json_object_get(v, "former");
        const char *through = has_rate ? way_through(rows, former, worker) : NULL;
        const json_t *through_row = way_row(rows, former, through);
        const json_t *timing = json_object_get(through_row, "timing");
        if (through)
            printf(", its bytes came through %s, whose fetch took %s", through,
                   cli_ms(timing ? timing : through_row, "fetch_ms", s[0]));
        /* That a source was lost: of a version that ended, and of a switch, the table has the note; and one
         * that was started again has a note of its own. */
        bool is_here = way_row(rows, former, worker) == copy;
        bool has_note = is_here && has_rate && !strcmp(key, "took_ms") && cli_string(copy, "note") &&
                        strcmp(cli_text(copy, "state", s[0]), "committed") != 0;
        if (has_note) printf(", %s", cli_string(copy, "note"));
    }
    /* The phases of the slowest worker need not add up to the whole: the rest is named even without an
     * explanation, else the line would seem to blame that worker for all of it. */
    if (is_forgotten(v)) printf("; which phases took it is not known since the broker was started again");
    else if (why) printf("; %s of the whole: %s", cli_ms(rest, "ms", s[0]), why);
    else if (json_is_object(rest) && json_is_object(slowest))
        printf("; %s of the whole: waiting, in no phase of a worker", cli_ms(rest, "ms", s[0]));
    else if (json_is_object(rest)) printf("; in which phases is not known");
    if (json_number_value(json_object_get(last, "ms")) > took_ms * SWITCH_IS_LONG)
        printf("; then %s switched in %s", cli_text(last, "worker", s[0]), cli_ms(last, "ms", s[1]));
    print_unfinished(json_object_get(v, "unfinished"));
    puts("");
}

/* No worker is on its way to the version.  Where workers have refused it, a later one may take it. */
static const char *awaited(const json_t *v)
{
    const json_t *list = json_object_get(v, "workers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *state = cli_string(json_array_get(list, i), "state");
        if (state && !strcmp(state, "failed")) return "it failed at each worker so far";
    }
    return "waits for a worker";
}

/* "took  so far 2.1 s; waits for w2: fetch 6.0 MB of 17.6 MB, 4.0 MB/s; 9 others wait for it" */
static void print_so_far(const json_t *v)
{
    char s[2][64];
    const json_t *slowest = json_object_get(v, "slowest");
    const char *worker = cli_string(slowest, "worker"), *phase = cli_string(slowest, "phase");
    printf("%-11s so far %s", "took", cli_ms(v, "so_far_ms", s[0]));
    if (!worker) {
        bool is_staged = !strcmp(cli_text(v, "state", s[0]), "staged");
        const char *queued = cli_string(v, "note");
        printf("; %s\n", is_staged ? "it is staged" : queued ? queued : awaited(v));
        return;
    }
    const json_t *copy = copy_of(v, worker);
    const char *note = cli_string(copy, "note"), *message = cli_string(copy, "message");
    printf("; waits for %s: %s", worker, phase ? phase : "");
    if (phase && !strcmp(phase, "fetch"))
        printf(" %s of %s", cli_bytes(copy, "bytes_done", s[0]), cli_bytes(v, "data_bytes", s[1]));
    if (message || note) printf(", %s", message ? message : note);
    /* The others that wait for this worker's bytes. */
    int64_t others = 0;
    const json_t *list = json_object_get(v, "workers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *first = cli_string(json_array_get(list, i), "waits_for");
        others += first && !strcmp(first, worker);
    }
    if (others == 1) printf("; another one waits for it");
    else if (others) printf("; %lld others wait for it", (long long)others);
    puts("");
}

/* "4.0 MB, last known": no later heartbeat will correct it. */
static const char *bytes_of(const json_t *v, const json_t *w, char *to, size_t size)
{
    char s[64];
    const char *state = cli_string(w, "state");
    int64_t done = cli_integer(w, "bytes_done");
    bool is_gone =
        cli_string(w, "code") && cli_string(w, "note"); /* or silent, with another trouble before */
    bool is_over = is_gone || !state || !strcmp(state, "failed");
    bool is_last = is_over && done > 0 && done < cli_integer(v, "data_bytes");
    snprintf(to, size, "%s%s", cli_bytes(w, "bytes_done", s), is_last ? ", last known" : "");
    return to;
}

/* "1.6 MB, 100000 tensors; 410 MB in memory and over the network (each tensor begins a page of 4 KiB)": the
 * bytes of workers and sources are those, and add up to them. */
static void print_bytes(const json_t *v)
{
    char data[64], payload[64], count[64];
    cli_bytes(v, "data_bytes", data);
    const char *kind = cli_string(v, "kind"); /* NULL: of a broker that knows one kind */
    printf("%-11s %s, %s", "bytes", data, cli_count(cli_integer(v, "tensor_count"), "tensor", count));
    if (kind && strcmp(kind, "lora") != 0) printf(" (kind %s)", kind);
    if (strcmp(data, cli_bytes(v, "payload_bytes", payload)) != 0 && strcmp(payload, "-") != 0)
        printf("; %s in memory and over the network (each tensor begins a page of 4 KiB)", payload);
    puts("");
}

/* "2 on node-a", which loses the version where that host ends; "3 on 2 hosts". */
static const char *holders_of(const json_t *v, char *to, size_t size)
{
    char count[64];
    const char *host = cli_string(v, "holder_host"), *holders = cli_text(v, "holder_count", count);
    long long hosts = (long long)cli_integer(v, "holder_host_count");
    if (host) snprintf(to, size, "%s on %s", holders, host);
    else if (hosts > 1) snprintf(to, size, "%s on %lld hosts", holders, hosts);
    else snprintf(to, size, "%s", holders);
    return to;
}

/* NAME@V: one version in detail. The lines are in the order of its life: what it is, how it was made, which
 * processes hold it, and how it reached the workers. */
static void render_one(const json_t *v)
{
    char s[4][64], text[600];
    print_line("tag", cli_text(v, "tag", s[0]));
    print_line("digest", cli_text(v, "digest", s[0]));
    print_line("state", cli_text(v, "state", s[0]));
    print_line("why", why_of(v, text, sizeof text));
    if (hint_of(v)) print_line("hint", hint_of(v));
    print_line("step", cli_text(v, "step", s[0]));
    printf("%-11s %s (%s)\n", "created", cli_text(v, "created_at", s[0]), cli_age(v, "created_at", s[1]));
    if (!cli_string(v, "activated_at")) print_line("activated", "-");
    else
        printf("%-11s %s (%s)\n", "activated", cli_text(v, "activated_at", s[0]),
               cli_age(v, "activated_at", s[1]));
    print_line("writer", cli_text(v, "writer", s[0]));
    print_line("request id", cli_text(v, "request_id", s[0]));
    print_bytes(v);
    cli_join(json_object_get(v, "features"), ", ", text, sizeof text);
    print_line("features", text[0] ? text : "-");
    print_json("meta", json_object_get(v, "meta"));
    print_json("config", json_object_get(v, "config"));
    print_line("holders", holders_of(v, text, sizeof text));
    const json_t *rollout = json_object_get(v, "rollout");
    printf("%-11s %s; staged on %s and active on %s%s; deadline %s ms\n", "rollout",
           cli_text(rollout, "activation", s[0]), cli_text(rollout, "staged_count", s[1]),
           cli_text(rollout, "active_count", s[2]), eligible_of(v, text, sizeof text),
           cli_text(rollout, "deadline_ms", s[3]));
    if (json_is_number(json_object_get(v, "took_ms"))) print_took(v, "took_ms");
    else if (json_is_number(json_object_get(v, "ended_after_ms"))) print_took(v, "ended_after_ms");
    else if (json_is_number(json_object_get(v, "so_far_ms"))) print_so_far(v);
    print_progress(v);
    const json_t *list = json_object_get(v, "workers"), *former = json_object_get(v, "former");
    size_t stop_count = 0;
    way_stop_t *stops = way_stops(list, former, &stop_count);
    if (!stops) return;
    if (way_text(list, former, cli_integer(v, "former_count"), text, sizeof text)) print_line("way", text);
    cli_table_t t;
    table_init(&t, "<WORKER", "STATE", "SINCE", ">BYTES", "~>HOP", "~SOURCES", "~MS", "+WHY");
    for (size_t i = 0; i < stop_count; i++) {
        const json_t *w = stops[i].row;
        char from[768], ms[320], bytes[96], hop[16] = "-";
        if (stops[i].hop != WAY_UNKNOWN) snprintf(hop, sizeof hop, "%u", stops[i].hop);
        if (stops[i].is_former) {
            table_row(&t, stops[i].name, "former", "-", "-", hop, sources_of(w, from, sizeof from),
                      fetch_of(w, ms, sizeof ms), "-");
            continue;
        }
        table_row(&t, cli_string(w, "worker"), cli_text(w, "state", s[0]), cli_age(w, "since_at", s[1]),
                  bytes_of(v, w, bytes, sizeof bytes), hop, sources_of(w, from, sizeof from),
                  timing_of(v, w, ms, sizeof ms), cli_why(w, text, sizeof text));
    }
    free(stops);
    puts("");
    table_print(&t);
}

/* "`heddle rollback policy` can go back to 4, 5, 6": the versions below the active one that were active, are
 * still held and have other bytes.  Nothing where none is active, or it is the first one. */
static void print_way_back(const json_t *answer, const json_t *list)
{
    int64_t active = 0, earlier = 0;
    size_t count = json_array_size(list);
    const char *digest = NULL; /* of the active one */
    bool has_same = false;
    char kept[400], number[64];
    listing_t names = {.text = kept, .size = sizeof kept};
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, i);
        const char *state = cli_string(v, "state");
        if (!state || strcmp(state, "active") != 0) continue;
        active = cli_integer(v, "version");
        digest = cli_string(v, "digest");
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, i);
        const char *state = cli_string(v, "state"), *of = cli_string(v, "digest");
        if (cli_integer(v, "version") >= active) break;
        earlier++;
        if (!state || strcmp(state, "kept") != 0) continue;
        if (of && digest && !strcmp(of, digest)) has_same = true;
        else listing_add(&names, "%s", cli_text(v, "version", number));
    }
    const char *name = cli_string(answer, "adapter");
    if (listing_text(&names)[0])
        printf("\n`heddle rollback %s` can go back to %s; --dry-run says to which, --to V names one\n", name,
               kept);
    else if (earlier)
        printf("\nthere is no version to roll back to: none before %lld is kept%s\n", (long long)active,
               has_same ? " that has other bytes" : "");
}

static void render(const common_t *c, json_t *answer)
{
    const json_t *list = json_object_get(answer, "versions"), *first = json_array_get(list, 0);
    size_t hidden = 0, count = json_array_size(list);
    cli_table_t t;
    /* The broker puts the workers only into the answer about one version. */
    if (json_object_get(first, "workers")) {
        render_one(first);
        return;
    }
    table_init(&t, ">VERSION", "STATE", "~DIGEST", "~>STEP", "CREATED", "~>TOOK", "~>BYTES", "~>TENSORS",
               ">HOLDERS", "+WHY");
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, i);
        const char *state = cli_string(v, "state");
        char s[7][64], took[64], holders[HEDDLE_NAME_MAX + 64], why[600];
        /* Of thousands of versions almost all have ended long ago, so only the newest and the live ones are
         * shown. */
        bool has_ended =
            state && (!strcmp(state, "failed") || !strcmp(state, "superseded") || !strcmp(state, "retired"));
        if (has_ended && !((const args_t *)c)->all && i + NEWEST_ROWS < count) {
            hidden++;
            continue;
        }
        table_row(&t, cli_text(v, "version", s[0]), cli_text(v, "state", s[1]),
                  cli_short_digest(v, "digest", s[2]), cli_text(v, "step", s[3]),
                  cli_age(v, "created_at", s[4]), cli_ms(v, "took_ms", took),
                  cli_bytes(v, "data_bytes", s[5]), cli_text(v, "tensor_count", s[6]),
                  holders_of(v, holders, sizeof holders), why_of(v, why, sizeof why));
    }
    table_print(&t);
    const char *hint = hint_of(json_array_get(list, count - 1));
    if (count && hint) printf("\nhint: %s\n", hint);
    char text[64];
    if (hidden)
        printf("\n%s that ended not shown: --all shows them\n",
               cli_count((int64_t)hidden, "older version", text));
    print_way_back(answer, list);
}

static int ask(heddle_admin_t *admin, const void *args, char **ret_json)
{
    return heddle_admin_versions(admin, ((const args_t *)args)->ref, ret_json);
}

int command_versions(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "versions", argc, argv, &args, &args.ref);
    return end >= 0 ? end : cli_watch(&args, args.watch_ms, "versions", ask, render);
}
