/* SPDX-License-Identifier: Apache-2.0 */
/* heddle events: lists the events that the broker keeps, and follows new ones.
 *
 * The broker gives pages; each names the number and the epoch at which the next one begins. With --follow the
 * request waits at the broker until there is an event, and a broker that restarts meanwhile is not a failure:
 * its events begin a new epoch, after a line of type gap. */
#include "cli/cli.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/option_json.h"
#include "core/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    common_t common;
    bool follow, failed;
    const char *since, *adapter, *worker;
    int64_t limit, last;
} args_t;
static const option_t OPTIONS[] = {
    {"follow", 'f', OPTION_FLAG, NULL, NULL, NULL,
     "show those that are kept, then what happens; a broker restart is a line of type gap",
     offsetof(args_t, follow)},
    {"since", 0, OPTION_TEXT, "SEQ|DUR|TIME", NULL, "0",
     "from this number on; of the last 5m; or since 2026-11-25T15:50, in UTC; 0: the oldest kept",
     offsetof(args_t, since)},
    {"adapter", 0, OPTION_TEXT, "NAME", NULL, NULL, "only of this adapter", offsetof(args_t, adapter)},
    {"worker", 0, OPTION_TEXT, "NAME", NULL, NULL, "only of this worker", offsetof(args_t, worker)},
    {"failed", 0, OPTION_FLAG, NULL, NULL, NULL, "only failures; exit status 1 where there are any",
     offsetof(args_t, failed)},
    {"last", 0, OPTION_INTEGER, "N", NULL, "0", "of those that are kept, only the newest so many; 0: all",
     offsetof(args_t, last)},
    {"limit", 0, OPTION_INTEGER, "N", NULL, "0", "stop after so many; 0: no limit", offsetof(args_t, limit)},
    {0}};
static const option_set_t SET = {
    "heddle events",
    "[OPTION...]",
    "The numbered events that the broker keeps (the last 10,000 of this epoch); with -o json one object a "
    "line.",
    "DUR: 500ms, 30s, 5m, 2h, 1d; a bare number is seconds, and for --since a SEQ.  It counts back from "
    "this\n"
    "host's clock; events have the broker's.\n"
    "TIME: as events show it (RFC 3339); shorter also 2026-11-25 and 2026-11-25T15:50.  UTC, unless it ends "
    "in\n"
    "an offset (+01:00).\n"
    "A failure has a code: a version, a copy or a session that failed or was lost, a store that takes no "
    "records.\n"
    "The loss of an earlier version that was only kept to go back to does not count.",
    OPTIONS,
    CLI_COMMON,
    NULL,
    0,
    CLI_EXITS " (also when there are none); with --failed 1: a failure was shown.\n" CLI_EXITS_COMMON
              ".\n\nExamples:\n  heddle events --adapter policy --last 20\n"
              "  heddle events --follow -o json | jq -r 'select(.type == \"version.failed\") | .message'\n"
              "  heddle events --since 5m     what happened in the last five minutes\n"
              "  heddle events --since 2026-11-25T15:50     what happened since then, in UTC\n"
              "  heddle events --since 1h --failed     what failed in the last hour; exit status 0: nothing\n"
              "  heddle events --since 120    what happened from number 120 on"};

/* A request that waits ends after POLL_MS and is repeated, so that a lost broker is noticed. */
enum { PAGE = 500, POLL_MS = 2000 };

/* For people: the columns have fixed widths, because later rows are not known yet. */
#define ROW "%6s  %-24s  %-18s %-20s %-16s %-18s %s\n"

/* With -o json an event is a line of its own, as the broker made it: a script reads them as they come.  The
 * headings of the table come with the first row. */
static void print_event(const common_t *c, json_t *e)
{
    static bool has_headings;
    if (c->output == OUTPUT_JSON) {
        char *text = json_dumps(e, JSON_COMPACT | JSON_PRESERVE_ORDER);
        if (text) puts(text);
        free(text);
        fflush(stdout);
        return;
    }
    cli_clean_texts(e);
    if (!has_headings) printf(ROW, "SEQ", "AT", "TYPE", "ADAPTER", "WORKER", "DATA", "MESSAGE");
    has_headings = true;
    char s[5][64], where[320] = "-", data[400] = "-", why[600];
    const char *adapter = cli_text(e, "adapter", s[0]), *version = cli_text(e, "version", s[1]);
    if (strcmp(adapter, "-") != 0)
        snprintf(where, sizeof where, strcmp(version, "-") != 0 ? "%s@%s" : "%s", adapter, version);
    /* "17.6 MB, 30 ms", "decision 4", "source w2", "by ann"; tokens are left out: they matter to programs
     * only. */
    static const char *const MEMBERS[] = {"bytes", "duration_ms", "decision", "source", "by"};
    const json_t *members = json_object_get(e, "data");
    size_t n = 0;
    for (size_t i = 0; i < sizeof MEMBERS / sizeof *MEMBERS && n < sizeof data; i++) {
        const char *key = MEMBERS[i];
        if (!json_object_get(members, key)) continue;
        const char *comma = n ? ", " : "";
        if (i == 0) n += (size_t)snprintf(data, sizeof data, "%s", cli_bytes(members, key, s[2]));
        else if (i == 1)
            n += (size_t)snprintf(data + n, sizeof data - n, "%s%s", comma, cli_ms(members, key, s[2]));
        else
            n += (size_t)snprintf(data + n, sizeof data - n, "%s%s %s", comma, key,
                                  cli_text(members, key, s[2]));
    }
    printf(ROW, cli_text(e, "seq", s[2]), cli_string(e, "at"), cli_string(e, "type"), where,
           cli_text(e, "worker", s[3]), data,
           cli_string(e, "code") ? cli_why(e, why, sizeof why) : cli_text(e, "message", s[4]));
    fflush(stdout);
}

/* --since: a number of an event, or a time, which is then where the listing begins. */
static int parse_since(const char *text, uint64_t *ret_seq, char ret_from[25], heddle_error_t *error)
{
    uint64_t now_ms = clock_wall(clock_system()), at_ms;
    uint32_t ago_ms;
    size_t digits = strspn(text, "0123456789");
    *ret_seq = 0;
    ret_from[0] = 0;
    if (digits > 0 && !text[digits]) {
        *ret_seq = strtoull(text, NULL, 10); /* one that is too large becomes the largest */
        return HEDDLE_OK;
    }
    /* A bare number was an event's, so a duration here always has its unit. */
    if (units_parse_duration(text, &ago_ms)) at_ms = now_ms > ago_ms ? now_ms - ago_ms : 0;
    else if (!clock_parse(text, &at_ms)) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "\"%.200s\" is not a value for --since", text);
        error_contrast(error,
                       "a number of an event; a duration: 5m, 2h, 1d; or a time in UTC: 2026-11-25, "
                       "2026-11-25T15:50, 2026-11-25T15:50:00Z",
                       text);
        error_hint(error, "see heddle events --help");
        return rc;
    }
    clock_text(at_ms, ret_from);
    return HEDDLE_OK;
}

/* --since a time that is before the oldest event that the broker keeps: what was between them is gone, and a
 * line says so.  A broker of the first epoch had nothing before.  NULL: nothing is gone. */
static json_t *gap_of(const char *from, const json_t *answer)
{
    const char *first_at = cli_string(answer, "first_at");
    uint64_t first = (uint64_t)cli_integer(answer, "first_seq"),
             epoch = (uint64_t)cli_integer(answer, "epoch");
    bool is_cut = first > 1 || epoch > 1;
    if (!from[0] || !first_at || !first || !is_cut || strcmp(from, first_at) >= 0) return NULL;
    char message[160];
    if (first > 1)
        snprintf(message, sizeof message, "events before %llu are no longer kept", (unsigned long long)first);
    else
        snprintf(message, sizeof message,
                 "the broker was started again at %.30s: earlier events are gone; `heddle versions NAME` "
                 "still lists what failed",
                 first_at);
    return json_pack("{s:s, s:s, s:b, s:I, s:I, s:s, s:s, s:n, s:n, s:n, s:s, s:s, s:{}}", "schema",
                     "heddle/1", "kind", "event", "ok", 1, "seq", (json_int_t)(first - 1), "epoch",
                     (json_int_t)epoch, "at", first_at, "type", "gap", "adapter", "version", "worker", "code",
                     heddle_err_name(HEDDLE_ERR_GONE), "message", message, "data");
}

/* With --failed a gap is no row, because nothing may have failed then: a line on stderr says that this is not
 * known. */
static bool is_shown(const args_t *args, const json_t *e)
{
    bool is_gap = !strcmp(cli_string(e, "type"), "gap");
    if (args->failed && is_gap && !args->common.quiet)
        fprintf(stderr, "heddle events: %s\n", cli_string(e, "message"));
    return !args->failed || (cli_string(e, "code") && !is_gap);
}

int command_events(int argc, char **argv)
{
    args_t args = {0};
    int end = cli_parse(&SET, "events", argc, argv, &args, NULL);
    if (end >= 0) return end;
    size_t last = args.last > 0 ? (size_t)args.last : 0;
    uint64_t left = args.limit > 0 ? (uint64_t)args.limit : UINT64_MAX;
    char from[25]; /* kept events of an earlier time are dropped; "": none */
    heddle_events_opts_t opts = {.size = sizeof opts, .adapter = args.adapter, .worker = args.worker};
    heddle_error_t error;
    int wrong = args.last < 0    ? option_refuse(&SET, "--last", "0 or more", args.last, &error)
                : args.limit < 0 ? option_refuse(&SET, "--limit", "0 or more", args.limit, &error)
                                 : parse_since(args.since, &opts.since, from, &error);
    if (wrong) return cli_fail(&args.common, "events", &error);
    /* The time may be the local one of a user east of Greenwich: no event is then no answer. */
    char now[25];
    clock_text(clock_wall(clock_system()), now);
    if (strcmp(from, now) > 0 && !args.common.quiet)
        fprintf(stderr, "heddle events: --since %s is later than now, %s: times are in UTC\n", from, now);
    heddle_admin_t *admin = cli_admin(&args.common, "events", &end);
    if (!admin) return end;
    /* What was read and is not printed yet: with --last that waits until all that is kept was read. */
    json_t *rows = json_array();
    bool is_away = false, has_answer = false,
         has_first = opts.since < 2; /* nothing that the broker keeps was left out */
    end = 0;
    while (left > 0 && !cli_signal_exit() && !ferror(stdout)) {
        char *text = NULL;
        /* With --last, --failed or a time, events that are read may be dropped: a page is not cut at
         * --limit. */
        bool is_all = last == 0 && !from[0] && !args.failed;
        opts.limit = left < PAGE && is_all ? (uint32_t)left : PAGE;
        opts.wait_ms = args.follow && has_answer ? POLL_MS : 0;
        int rc = heddle_admin_events(admin, &opts, &text);
        /* A question that a broker took and did not answer, as one that is stopped, ends with DEADLINE.  Both
         * waited --timeout already, so this does not spin. */
        bool is_unanswered = rc == HEDDLE_ERR_UNAVAILABLE || rc == HEDDLE_ERR_DEADLINE;
        if (is_unanswered && args.follow && has_answer) {
            if (!is_away && !args.common.quiet)
                fprintf(stderr, "the broker at %s does not answer; waiting for it\n", args.common.broker);
            is_away = true;
            continue;
        }
        is_away = false;
        /* The first request must succeed: a wrong address would otherwise wait for ever. */
        if (rc) {
            end = cli_fail(&args.common, "events", heddle_last_error());
            break;
        }
        json_t *answer = json_loads(text, 0, NULL);
        heddle_free(text);
        option_json_words(answer);
        const json_t *events = json_object_get(answer, "events");
        bool more = cli_is(answer, "more");
        json_t *gap = has_answer ? NULL : gap_of(from, answer);
        if (gap) has_first = false;
        if (gap && is_shown(&args, gap)) json_array_append(rows, gap);
        json_decref(gap);
        for (size_t i = 0; i < json_array_size(events); i++) {
            /* RFC 3339 times in UTC sort as texts, so they are compared as such. */
            json_t *e = json_array_get(events, i);
            const char *at = cli_string(e, "at");
            if (at && strcmp(at, from) < 0) has_first = false;
            else if (is_shown(&args, e)) json_array_append(rows, e);
        }
        for (; last > 0 && json_array_size(rows) > last; has_first = false) json_array_remove(rows, 0);
        /* After the first complete reading --last has done its work: what follows is printed as it comes. */
        bool is_empty = !has_answer && !more && json_array_size(rows) == 0;
        if (is_empty && args.adapter)
            cli_note_unknown(admin, &args.common, "events", "adapter", args.adapter);
        if (is_empty && args.worker) cli_note_unknown(admin, &args.common, "events", "worker", args.worker);
        if (last == 0 || !more) {
            for (size_t i = 0; i < json_array_size(rows) && left > 0; i++, left--)
                print_event(&args.common, json_array_get(rows, i));
            if (args.failed && json_array_size(rows)) end = heddle_err_exit(HEDDLE_ERR_VERSION_FAILED);
            json_array_clear(rows);
            last = 0;
        }
        uint64_t next = (uint64_t)cli_integer(answer, "next");
        bool is_ahead = opts.since > 1 && next <= opts.since && json_array_size(events) == 0;
        if (!has_answer && is_ahead && !args.common.quiet && isatty(STDERR_FILENO))
            fprintf(stderr, "no event has the number %s yet: `heddle events --last 1` shows the newest%s\n",
                    args.since, args.follow ? "" : "; --follow waits for it");
        opts.since = next;
        uint64_t epoch = (uint64_t)cli_integer(answer, "epoch");
        if (has_answer && epoch != opts.epoch && !args.common.quiet)
            fputs("the broker was started again, or another one leads: events go on there\n", stderr);
        opts.epoch = epoch;
        json_decref(answer);
        /* A restarted broker has lost its older events, so the user is referred to its log. */
        if (!has_answer && has_first && opts.epoch > 1 && !args.common.quiet && isatty(STDERR_FILENO))
            fputs("earlier events are in the broker's log: it keeps the last 10,000 since its start\n",
                  stderr);
        has_answer = true;
        if (!more) from[0] = 0; /* what happens from now on is later, whatever the clocks say */
        if (!args.follow && !more) break;
    }
    json_decref(rows);
    cli_admin_close(&admin);
    return cli_signal_exit() ? cli_signal_exit() : end;
}
