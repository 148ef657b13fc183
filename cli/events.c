/* SPDX-License-Identifier: Apache-2.0 */
/* heddle events: lists the events that the broker keeps, and follows new ones. */
#include "cli/cli.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    common_t common;
    bool follow;
    const char *since, *adapter, *worker;
    int64_t limit, last;
} args_t;
static const option_t OPTIONS[] = {
    {"follow", 'f', OPTION_FLAG, NULL, NULL, NULL,
     "show those that are kept, then what happens; a broker restart is a line of type gap",
     offsetof(args_t, follow)},
    {"since", 0, OPTION_TEXT, "SEQ|DUR|TIME", NULL, "0",
     "from this number on; of the last 5m; or since 2026-11-25T15:50:00Z; 0: the oldest kept",
     offsetof(args_t, since)},
    {"adapter", 0, OPTION_TEXT, "NAME", NULL, NULL, "only of this adapter", offsetof(args_t, adapter)},
    {"worker", 0, OPTION_TEXT, "NAME", NULL, NULL, "only of this worker", offsetof(args_t, worker)},
    {"last", 0, OPTION_INTEGER, "N", NULL, "0", "of those that are kept, only the newest so many; 0: all",
     offsetof(args_t, last)},
    {"limit", 0, OPTION_INTEGER, "N", NULL, "0", "stop after so many; 0: no limit", offsetof(args_t, limit)},
    {0}};
static const option_set_t SET = {
    "heddle events",
    "[OPTION...]",
    "The numbered events that the broker keeps (the last 10,000 of this epoch); with -o json one object a "
    "line.",
    "DUR: 500ms, 30s, 5m, 2h; a bare number is seconds, and for --since a SEQ.\n"
    "TIME: as events show it (RFC 3339); DUR counts back from this host's clock, events have the broker's.",
    OPTIONS,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS " (also when there are none).\n" CLI_EXITS_COMMON
              ".\n\nExamples:\n  heddle events --adapter policy --last 20\n"
              "  heddle events --follow -o json | jq -r 'select(.type == \"version.failed\") | .message'\n"
              "  heddle events --since 5m     what happened in the last five minutes\n"
              "  heddle events --since 120    what happened from number 120 on"};

enum { PAGE = 500, POLL_MS = 10000 };

/* "17.6 MB, 30 ms", "decision 4", "source w2", "by ann"; tokens are left out: they matter to programs only.
 */
static const char *data_of(const json_t *e, char *to, size_t size)
{
    static const char *const WORDS[] = {"decision", "source", "by"};
    const json_t *data = json_object_get(e, "data");
    char text[64];
    size_t n = 0;
    to[0] = 0;
    if (json_object_get(data, "bytes")) {
        units_bytes_text((uint64_t)cli_integer(data, "bytes"), text);
        n += (size_t)snprintf(to, size, "%s", text);
    }
    if (json_object_get(data, "duration_ms")) {
        units_ms_text((double)cli_integer(data, "duration_ms"), text);
        n += (size_t)snprintf(to + n, size - n, "%s%s", n ? ", " : "", text);
    }
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS && n < size; i++)
        if (json_object_get(data, WORDS[i]))
            n += (size_t)snprintf(to + n, size - n, "%s%s %s", n ? ", " : "", WORDS[i],
                                  cli_text(data, WORDS[i], text));
    return to[0] ? to : "-";
}

static void print_event(const common_t *c, json_t *e)
{
    if (c->output == OUTPUT_JSON) {
        char *text = json_dumps(e, JSON_COMPACT | JSON_PRESERVE_ORDER);
        if (text) puts(text);
        free(text);
    } else {
        cli_settle_texts(e);
        char s[5][64], where[320] = "", data[400], why[600];
        bool has_code = json_is_string(json_object_get(e, "code"));
        const char *adapter = cli_text(e, "adapter", s[0]), *version = cli_text(e, "version", s[1]);
        if (strcmp(adapter, "-") != 0)
            snprintf(where, sizeof where, strcmp(version, "-") != 0 ? "%s@%s" : "%s", adapter, version);
        printf("%6s  %s  %-18s %-20s %-16s %-18s %s\n", cli_text(e, "seq", s[2]),
               json_string_value(json_object_get(e, "at")), json_string_value(json_object_get(e, "type")),
               where, cli_text(e, "worker", s[3]), data_of(e, data, sizeof data),
               has_code ? cli_why(e, why, sizeof why) : cli_text(e, "message", s[4]));
    }
    fflush(stdout);
}

/* What was read and is not printed yet: with --last that waits until all that is kept was read.  `last` 0:
 * all.  `from`: kept events of an earlier time are dropped; "" or NULL: none.  `has_first`: nothing that the
 * broker keeps was left out. */
typedef struct { json_t *rows; size_t last; uint64_t left; char from[25]; bool has_first; } unprinted_t;

/* --since: a number of an event, or a time, which is then where the listing begins. */
static int parse_since(const char *text, uint64_t *ret_seq, char ret_from[25], heddle_error_t *error)
{
    uint64_t now_ms = clock_wall(clock_system()), at_ms;
    uint32_t ago_ms;
    size_t digits = strspn(text, "0123456789");
    *ret_seq = 0;
    ret_from[0] = 0;
    if (digits > 0 && digits <= 18 && !text[digits]) {
        *ret_seq = strtoull(text, NULL, 10);
        return HEDDLE_OK;
    }
    if (units_parse_duration(text, &ago_ms)) at_ms = now_ms > ago_ms ? now_ms - ago_ms : 0;
    else if (!clock_parse(text, &at_ms)) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "\"%.200s\" is not a value for --since", text);
        error_contrast(error, "a number of an event, a duration (5m), or a time (2026-11-25T15:50:00Z)",
                       text);
        error_hint(error, "see heddle events --help");
        return rc;
    }
    clock_text(at_ms, ret_from);
    return HEDDLE_OK;
}

/* --since a time that is before the oldest event that the broker keeps: what was between them is gone, and a
 * line says so.  A broker of the first epoch had nothing before. */
static void take_gap(unprinted_t *u, const json_t *answer)
{
    const char *first_at = json_string_value(json_object_get(answer, "first_at"));
    uint64_t first = (uint64_t)cli_integer(answer, "first_seq"),
             epoch = (uint64_t)cli_integer(answer, "epoch");
    bool is_cut = first > 1 || epoch > 1;
    if (!u->from[0] || !first_at || !first || !is_cut || strcmp(u->from, first_at) >= 0) return;
    char message[120];
    if (first > 1)
        snprintf(message, sizeof message, "events before %llu are no longer kept", (unsigned long long)first);
    else
        snprintf(message, sizeof message, "the broker was started again at %.30s: earlier events are gone",
                 first_at);
    json_t *gap = json_pack("{s:s, s:s, s:b, s:I, s:I, s:s, s:s, s:n, s:n, s:n, s:n, s:s, s:{}}", "schema",
                            "heddle/1", "kind", "event", "ok", 1, "seq", (json_int_t)(first - 1), "epoch",
                            (json_int_t)epoch, "at", first_at, "type", "gap", "adapter", "version", "worker",
                            "code", "message", message, "data");
    if (gap) json_array_append_new(u->rows, gap);
    u->has_first = false;
}

/* Takes the events of one page. RFC 3339 times in UTC sort as texts, so they are compared as such. */
static void take(unprinted_t *u, const json_t *events)
{
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *e = json_array_get(events, i);
        const char *at = json_string_value(json_object_get(e, "at"));
        if (at && strcmp(at, u->from) < 0) u->has_first = false;
        else json_array_append(u->rows, e);
    }
    for (; u->last > 0 && json_array_size(u->rows) > u->last; u->has_first = false)
        json_array_remove(u->rows, 0);
}

/* A restarted broker has lost its older events, so the user is referred to its log. */
static void print_log_hint(const args_t *args, const unprinted_t *u, uint64_t epoch)
{
    if (!u->has_first || epoch < 2 || args->common.quiet || !isatty(STDERR_FILENO)) return;
    fputs("earlier events are in the broker's log: it keeps the last 10,000 since its start\n", stderr);
}

int command_events(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "events", argc, argv, &args, NULL);
    if (end >= 0) return end;
    unprinted_t u = {.last = args.last > 0 ? (size_t)args.last : 0,
                     .left = args.limit > 0 ? (uint64_t)args.limit : UINT64_MAX};
    heddle_events_opts_t opts = {.size = sizeof opts, .adapter = args.adapter, .worker = args.worker};
    heddle_error_t error;
    if (parse_since(args.since, &opts.since, u.from, &error)) return cli_fail(&args.common, "events", &error);
    heddle_admin_t *admin = cli_admin(&args.common, "events", &end);
    if (!admin) return end;
    u.rows = json_array();
    u.has_first = opts.since < 2;
    bool heard = false;
    end = 0;
    while (u.left > 0 && !cli_signal_exit() && !ferror(stdout)) {
        char *text = NULL;
        opts.limit = u.left < PAGE && u.last == 0 && !u.from[0] ? (uint32_t)u.left : PAGE;
        opts.wait_ms = args.follow && heard ? POLL_MS : 0;
        int rc = heddle_admin_events(admin, &opts, &text);
        if (rc == HEDDLE_ERR_UNAVAILABLE && args.follow && heard) continue; /* it waited --timeout for a
                                                                             * broker already */
        if (rc) { end = cli_fail(&args.common, "events", heddle_last_error()); break; }
        json_t *answer = json_loads(text, 0, NULL);
        heddle_free(text);
        bool more = json_is_true(json_object_get(answer, "more"));
        if (!heard) take_gap(&u, answer);
        take(&u, json_object_get(answer, "events"));
        if (u.last == 0 || !more) {
            for (size_t i = 0; i < json_array_size(u.rows) && u.left > 0; i++, u.left--)
                print_event(&args.common, json_array_get(u.rows, i));
            json_array_clear(u.rows);
            u.last = 0;
        }
        opts.since = (uint64_t)cli_integer(answer, "next");
        opts.epoch = (uint64_t)cli_integer(answer, "epoch");
        json_decref(answer);
        if (!heard) print_log_hint(&args, &u, opts.epoch);
        heard = true;
        if (!more) u.from[0] = 0; /* what happens from now on is later, whatever the clocks say */
        if (!args.follow && !more) break;
    }
    json_decref(u.rows);
    cli_admin_close(&admin);
    return cli_signal_exit() ? cli_signal_exit() : end;
}
