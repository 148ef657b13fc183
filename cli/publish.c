/* SPDX-License-Identifier: Apache-2.0 */
/* heddle publish: makes a PEFT directory, or files of weights, a version, waits for the workers, and prints
 * the result.
 *
 * This process holds the bytes until a worker has them, so the command must not end before that: it waits
 * for one worker that has the version staged, and then for as many as --wait asks for. With --stay it goes on
 * serving, until another version takes the place of its own. Whatever happens, it prints one answer, filled
 * as far as it went.
 *
 * In this order: the arguments, the answer, progress on stderr, the wait, --stay, the publication. */
#include "cli/cli.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    common_t common;
    const char *adapter, *request_id, *writer, *data_device, *host_share;
    int64_t step;
    int kind, activation, if_unchanged;
    uint32_t deadline_ms;
    heddle_quorum_t wait;
    bool takeover, allow_step_back, stay, insecure, dry_run;
    const char **meta;
    uint64_t max_rate_bytes;
} args_t;
#define AT(field) offsetof(args_t, field)
static const option_t OPTIONS[] = {
    {"adapter", 0, OPTION_TEXT, "NAME", NULL, NULL, "the adapter's name (required)", AT(adapter)},
    {"kind", 0, OPTION_CHOICE, "lora|tensors", NULL, "lora",
     "what is published: a LoRA adapter in DIR, or full weights in one FILE or more", AT(kind)},
    {"step", 0, OPTION_INTEGER, "N", NULL, "-1",
     "the trainer's step, from 0; one below that of the last version with one is refused; -1: none",
     AT(step)},
    {"activation", 0, OPTION_CHOICE, "all|as-ready|manual", NULL, "all",
     "when the workers switch: all have it staged, each as it has, or by heddle activate", AT(activation)},
    {"deadline", 0, OPTION_DEADLINE, "DUR", NULL, "60s",
     "from the call on; past it the version fails and the old one stays live", AT(deadline_ms)},
    {"wait", 0, OPTION_QUORUM, "all|N|P%|none", NULL, "all",
     "how many workers must serve it (with --activation manual: hold it); none: one holder is enough",
     AT(wait)},
    {"if-unchanged", 0, OPTION_CHOICE, "fail|skip|publish", NULL, "fail",
     "when the bytes equal the newest live version's", AT(if_unchanged)},
    {"request-id", 0, OPTION_TEXT, "ID", NULL, NULL,
     "makes a repetition harmless: one id, one version, unless its publisher ended (default: random)",
     AT(request_id)},
    {"writer", 0, OPTION_TEXT, "NAME", NULL, NULL, "name of this writer (default: HOST-PID)", AT(writer)},
    {"takeover", 0, OPTION_FLAG, NULL, NULL, NULL,
     "fence another writer of the adapter now (default: wait for a silent one, refuse a live one)",
     AT(takeover)},
    {"allow-step-back", 0, OPTION_FLAG, NULL, NULL, NULL, "a lower step is meant", AT(allow_step_back)},
    {"meta", 0, OPTION_LIST, "K=V", NULL, NULL, "kept with the version; may be given again", AT(meta)},
    {"stay", 0, OPTION_FLAG, NULL, NULL, NULL, "go on serving until superseded or interrupted", AT(stay)},
    {"max-rate", 0, OPTION_SIZE, "SIZE", NULL, "0", "bytes served a second; 0: no limit", AT(max_rate_bytes)},
    {"data-device", 0, OPTION_TEXT, "IF", NULL, NULL,
     "network interface of the tensor bytes; default: the one that reaches the broker, if it is private",
     AT(data_device)},
    {"host-share", 0, OPTION_TEXT, "DIR", NULL, NULL,
     "directory, mode 0700, in which processes of this host share memory; default: in a network namespace",
     AT(host_share)},
    {"insecure", 0, OPTION_FLAG, NULL, NULL, NULL, "allow other addresses than loopback", AT(insecure)},
    {"dry-run", 0, OPTION_FLAG, NULL, NULL, NULL, "check the files and digest them; needs no broker",
     AT(dry_run)},
    {0}};
static const char *const ARGS[] = {"DIR|FILE...", NULL};
static const option_set_t SET = {
    "heddle publish",
    "DIR|FILE... --adapter NAME [OPTION...]",
    "Publishes the PEFT adapter in DIR (adapter_config.json, adapter_model.safetensors) as a new version "
    "and\n"
    "waits until the workers serve it.  While the version before it is still on its way to workers, the new "
    "one\n"
    "waits for that; a line on stderr then says for which, also with --wait none.\n"
    "With --kind tensors, the safetensors files FILE... are one version of full weights.  An adapter has "
    "one\n"
    "kind for life, and workers take only the kinds that they name (heddle worker --kinds).",
    CLI_DUR "  SIZE: bytes, or with k M G Ki Mi Gi (2M, 2MB/s), or 16Mbit.\n" CLI_QUORUM,
    OPTIONS,
    CLI_COMMON,
    ARGS,
    1,
    CLI_EXITS
    ", another process holds the bytes and as many workers as --wait asks serve them; 1 the\n"
    "version failed, or too many workers refused it; 3 there is no DIR or FILE; 4 unchanged, held, another\n"
    "writer (also one that takes over during --stay), a lower step, or a request id of other bytes;\n"
    "with --stay also 1 where the broker does not know the version any more (older data were put back);\n"
    "5 the deadline ran out, or no worker came; 8 what is in the files is refused, or the adapter is of\n"
    "another kind.\n" CLI_EXITS_COMMON ".\n\n"
    "Environment:\n  HEDDLE_TRANSFER_MODE  how tensor bytes are sent: eager or rendezvous [eager]\n"
    "  HEDDLE_GUARD          0: the memory of a complete version is not protected from stray writes [1]\n"
    "  HEDDLE_PLUGIN_DIR     where transfer_ucx.so is [beside the program, else where it was installed]\n"
    "  UCX_...               UCX's own settings; those that are set are left as they are\n\n"
    "Examples:\n  heddle publish ./checkpoint-100 --adapter policy --step 100\n"
    "  heddle publish ./checkpoint-100 --adapter policy --wait 50% --request-id run7-step100    may be "
    "repeated\n"
    "  heddle publish ./checkpoint-100 --adapter policy --activation manual; heddle activate policy@8\n"
    "  heddle publish ./checkpoint-100 --adapter policy --dry-run    would it be taken?\n"
    "  heddle publish --kind tensors model-0000*-of-00002.safetensors --adapter base"};
static const char *const KINDS[] = {"lora", "tensors"};
enum { KIND_OF_DIR, KIND_OF_FILES }; /* as in --kind */
static const char *const ACTIVATIONS[] = {"all", "as-ready", "manual"};

/* The command ends at most 2 s after its deadline. The rest is for a late result from the broker, for a
 * publisher that was suspended past its lease and must register again, and for closing. */
enum { SLICE_MS = 100, AGAIN_MS = 200, GRACE_MS = 400, AWAY_MS = 600, CLOSE_MS = 900, STILL_MS = 2000 };
enum { PRINT_MS = 1000 }; /* between two lines about the version that goes first */

/* Everything the answer needs, filled as far as it went, and what was printed on the way. */
typedef struct {
    const args_t *args;
    heddle_published_t published;
    heddle_report_t report;
    bool have_version, have_report;
    double opening_ms; /* until the broker had admitted us; the directory was read meanwhile */
    heddle_error_t error;
    bool has_settling; /* the last report was of a broker in its startup grace period */
    bool is_silent;    /* the last report was of a broker that does not answer */
    bool is_drawn;     /* the last line on stderr is the progress bar */
    char queued[512];  /* what was printed last of a version that waits for another; "" */
    uint64_t printed_us;
    uint64_t waited_us; /* when the last slice of the wait began */
} outcome_t;

/* ---- the answer ---- */

static json_t *text_or_null(const char *text) { return text && text[0] ? json_string(text) : json_null(); }

/* A count that is 0 and one that is not known are different answers. */
static json_t *integer_or_null(bool is_known, uint64_t n)
{
    return is_known ? json_integer((json_int_t)n) : json_null();
}

/* A time measured by the library, which counts from its own call, plus the time that passed before it. */
static json_t *ms_or_null(const outcome_t *o, bool is_known, double ms)
{
    bool is_there = is_known && ms >= 0;
    return is_there ? json_real((double)(int64_t)((o->opening_ms + ms) * 1000) / 1000) : json_null();
}

/* Every field is in every answer, null as long as it is not known: a script reads them without a check. */
static char *answer_of(const outcome_t *o)
{
    const args_t *args = o->args;
    const heddle_published_t *p = &o->published;
    const heddle_report_t *r = &o->report;
    bool is_packed = p->digest[0] != 0, have_version = o->have_version, have_report = o->have_report;
    json_t *missing = json_array(), *features = is_packed ? json_array() : json_null();
    for (uint32_t i = 0; i < r->missing_count && i < HEDDLE_MISSING_MAX; i++) {
        const heddle_missing_t *m = &r->missing[i];
        json_array_append_new(
            missing, json_pack("{s:s, s:o, s:o, s:o}", "worker", m->worker, "phase", text_or_null(m->phase),
                               "code", m->code ? json_string(heddle_err_name(m->code)) : json_null(),
                               "message", text_or_null(m->message)));
    }
    char list[192], *state = NULL;
    snprintf(list, sizeof list, "%s", p->features);
    for (char *word = strtok_r(list, ",", &state); word; word = strtok_r(NULL, ",", &state))
        json_array_append_new(features, json_string(word));
    json_t *rollout = json_pack("{s:s, s:I, s:o, s:o, s:o, s:o}", "activation", ACTIVATIONS[args->activation],
                                "deadline_ms", (json_int_t)args->deadline_ms, "eligible_count",
                                integer_or_null(have_report, r->eligible_count), "staged_count",
                                integer_or_null(have_report, r->staged_count), "active_count",
                                integer_or_null(have_report, r->active_count), "missing", missing);
    json_t *timing = json_pack("{s:o, s:o, s:o, s:o}", "pack_ms", ms_or_null(o, is_packed, p->pack_ms),
                               "commit_ms", ms_or_null(o, have_version, p->commit_ms), "staged_ms",
                               ms_or_null(o, have_report, r->staged_ms), "active_ms",
                               ms_or_null(o, have_report, r->active_ms));
    /* Names that were refused as arguments may hold anything, so they are not repeated. */
    const char *adapter = name_is_valid(args->adapter) ? args->adapter : NULL,
               *asked_id = name_is_valid(args->request_id) ? args->request_id : NULL,
               *reason = p->replayed    ? "replayed"
                         : p->unchanged ? "unchanged"
                                        : NULL;
    json_t *a = json_pack(
        "{s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "schema", "heddle/1", "kind", "publish", "ok", o->error.code == 0, "adapter", text_or_null(adapter),
        "version", integer_or_null(have_version, p->version), "tag",
        text_or_null(have_version ? p->tag : NULL), "digest", text_or_null(p->digest), "created",
        have_version ? json_boolean(p->created) : json_null(), "reason", text_or_null(reason), "state",
        text_or_null(have_report ? r->state : NULL), "step",
        integer_or_null(args->step >= 0, (uint64_t)args->step), "request_id",
        text_or_null(p->request_id[0] ? p->request_id : asked_id), "data_bytes",
        integer_or_null(is_packed, p->data_bytes), "tensor_count",
        integer_or_null(is_packed, p->tensor_count), "chunk_count",
        integer_or_null(is_packed, p->chunk_count), "features", features, "rollout", rollout, "timing",
        timing);
    char *text = json_dumps(a, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    json_decref(a);
    return text;
}

/* "staged 3/4 in 17 ms". If no worker was there at the announcement, only those that joined later count. A
 * time that is absent belongs to a step that was not reached. */
static void print_reached(const json_t *a, const char *verb, const char *count, const char *ms)
{
    char s[64];
    const json_t *rollout = json_object_get(a, "rollout"), *timing = json_object_get(a, "timing");
    long long eligible = cli_integer(rollout, "eligible_count");
    printf("%s %lld", verb, (long long)cli_integer(rollout, count));
    if (eligible) printf("/%lld", eligible);
    if (json_is_number(json_object_get(timing, ms))) printf(" in %s ms", cli_text(timing, ms, s));
}

static void render(const common_t *c, json_t *a)
{
    (void)c;
    if (!cli_string(a, "digest")) return; /* refused before there was anything to show */
    char s[4][64];
    const char *tag = cli_string(a, "tag"), *reason = cli_string(a, "reason");
    printf("%s  %s%s%s  %s, %s", tag ? tag : cli_string(a, "digest"), cli_text(a, "state", s[0]),
           reason ? ", " : "", reason ? reason : "", cli_bytes(a, "data_bytes", s[1]),
           cli_count(cli_integer(a, "tensor_count"), "tensor", s[2]));
    if (cli_string(a, "state")) {
        print_reached(a, "  staged", "staged_count", "staged_ms");
        print_reached(a, ", active", "active_count", "active_ms");
    }
    puts("");
    const json_t *missing = json_object_get(json_object_get(a, "rollout"), "missing");
    for (size_t i = 0; i < json_array_size(missing); i++) {
        const json_t *m = json_array_get(missing, i);
        /* no code: it is on its way */
        const char *code = cli_string(m, "code"), *message = cli_string(m, "message");
        printf("  missing: %s, phase %s%s%s%s%s\n", cli_string(m, "worker"), cli_text(m, "phase", s[0]),
               code ? ", " : "", code ? code : "", message ? ": " : "", message ? message : "");
    }
}

/* Prints the answer.  rc: the failure of the library's last call, unless the command has its own words for it
 * already. */
static int finish(outcome_t *o, int rc)
{
    if (rc && o->error.code != rc) o->error = *heddle_last_error();
    return cli_answer(&o->args->common, "publish", &o->error, answer_of(o), render);
}

/* ---- progress on stderr ---- */

static void clear_bar(outcome_t *o)
{
    if (o->is_drawn) cli_clear_bar();
    o->is_drawn = false;
}

/* Printed once for each start of the broker: during its startup grace period it waits for workers to come
 * back. */
static void print_grace(outcome_t *o)
{
    bool is_new = o->report.settling_ms > 0 && !o->has_settling;
    o->has_settling = o->report.settling_ms > 0;
    if (!is_new || o->args->common.quiet) return;
    clear_bar(o);
    fprintf(stderr, "the broker has just started: it decides in %.1f s, when its members are back\n",
            o->report.settling_ms / 1000.0);
}

/* Printed once for each silence: without it a wait for a broker that has died looks like one for workers. */
static void print_silence(outcome_t *o)
{
    bool is_new = o->report.silent_ms > 0 && !o->is_silent;
    o->is_silent = o->report.silent_ms > 0;
    if (!is_new || o->args->common.quiet) return;
    clear_bar(o);
    fprintf(stderr, "the broker at %s does not answer (for %u s); waiting for it\n", o->args->common.broker,
            o->report.silent_ms / 1000);
}

/* Printed when a slice of the wait took far longer than it should: what was due meanwhile was not done, and
 * the broker may have ended the session. */
static void print_standstill(outcome_t *o)
{
    uint64_t now_us = clock_now(clock_system()), before_us = o->waited_us;
    o->waited_us = now_us;
    if (now_us - before_us < STILL_MS * 1000 || o->args->common.quiet) return;
    clear_bar(o);
    fprintf(stderr, "this process stood still for %.0f s, and goes on\n", (double)(now_us - before_us) / 1e6);
}

/* "waits for policy@14 (staged on 1 of 2)"; "" if it waits for no other version. */
static const char *queued_text(const heddle_report_t *r)
{
    bool is_staging = strcmp(r->state, "staging") == 0;
    return is_staging && !r->code ? r->message : "";
}

/* Shows what one slice of the wait brought.  True: the broker was lost in it. */
static bool show_progress(heddle_publisher_t *p, outcome_t *o)
{
    bool is_quiet = o->args->common.quiet, is_shown = !is_quiet && isatty(STDERR_FILENO), is_lost = false;
    print_grace(o);
    print_standstill(o);
    print_silence(o);
    /* Printed at once, and then at most each PRINT_MS, because the counts may change with each worker. */
    const char *queued = queued_text(&o->report);
    uint64_t now_us = clock_now(clock_system());
    bool is_new = queued[0] && strcmp(queued, o->queued) != 0;
    if (is_new && !is_quiet && (!o->queued[0] || now_us >= o->printed_us + PRINT_MS * 1000)) {
        clear_bar(o);
        fprintf(stderr, "%s@%llu %s\n", o->args->adapter, (unsigned long long)o->published.version, queued);
        snprintf(o->queued, sizeof o->queued, "%s", queued);
        o->printed_us = now_us;
    }
    heddle_event_t event = {.size = sizeof event};
    while (heddle_publisher_next_event(p, 0, &event) == HEDDLE_OK) {
        is_lost = is_lost || event.type == HEDDLE_EVENT_LOST_BROKER;
        if (!is_shown || event.type != HEDDLE_EVENT_PROGRESS || event.data_bytes == 0) continue;
        cli_draw_bar(event.bytes_done, event.data_bytes);
        fprintf(stderr, " staged %u", o->report.staged_count);
        if (o->report.eligible_count) fprintf(stderr, "/%u", o->report.eligible_count);
        fputs(" ", stderr);
        o->is_drawn = true;
    }
    return is_lost;
}

/* ---- the wait ---- */

/* The deadline passed while the rollout goes on: the broker has not ended it. */
static bool is_late(int rc, const outcome_t *o)
{
    bool is_over = strcmp(o->report.state, "failed") == 0;
    return !is_over && (rc == HEDDLE_ERR_DEADLINE || rc == HEDDLE_ERR_NO_WORKERS);
}

/* Waits in slices, so that progress is seen between them. */
static int wait_for(heddle_publisher_t *p, outcome_t *o, int phase, heddle_quorum_t quorum, uint64_t until_us)
{
    const char *adapter = o->args->adapter, *reached = phase == HEDDLE_PHASE_STAGED ? "staged" : "active";
    unsigned long long version = o->published.version;
    int rc;
    o->queued[0] = 0;
    o->waited_us = clock_now(clock_system());
    do {
        rc = heddle_publisher_wait(p, version, phase, quorum, SLICE_MS, &o->report);
        o->error = *cli_error(rc); /* before next_event replaces it */
        o->have_report = true;
        /* After the broker was lost, the result gets a moment more to arrive. */
        uint64_t away_us = show_progress(p, o) ? clock_now(clock_system()) + AWAY_MS * 1000 : 0;
        if (until_us < away_us) until_us = away_us;
    } while (is_late(rc, o) && !cli_signal_exit() && clock_now(clock_system()) < until_us);
    clear_bar(o);
    if (cli_signal_exit()) { /* asked for itself: show_progress may have taken the interrupt */
        error_fail(&o->error, HEDDLE_ERR_INTERRUPTED, "interrupted before %s@%llu was %s", adapter, version,
                   reached);
        error_where(&o->error, adapter, version, NULL, phase == HEDDLE_PHASE_STAGED ? "fetch" : "activate");
        error_hint(&o->error,
                   "the version fails unless a worker has its bytes: `heddle versions %.128s@%llu` tells",
                   adapter, version);
        return HEDDLE_ERR_INTERRUPTED;
    }
    if (is_late(rc, o)) {
        /* The error names the length of the last slice; the user gave a deadline, so that is named instead.
         */
        heddle_error_t slice = o->error;
        bool has_its_hint = slice.code == HEDDLE_ERR_NO_WORKERS || queued_text(&o->report)[0];
        error_fail(&o->error, slice.code, "%s@%llu was not %s on enough workers within its deadline of %u ms",
                   adapter, version, reached, o->args->deadline_ms);
        error_where(&o->error, adapter, version, slice.worker, slice.phase);
        error_contrast(&o->error, slice.expected, slice.found);
        error_hint(&o->error,
                   "`heddle versions %.128s@%llu` shows the progress; a longer --deadline gives more time",
                   adapter, version);
        if (has_its_hint) error_hint(&o->error, "%s", slice.hint);
        /* An earlier version that stands for these bytes keeps the activation that it was published with. */
        bool is_operator = phase == HEDDLE_PHASE_ACTIVE && !strcmp(o->report.state, "staged") &&
                           o->report.activation == HEDDLE_ACTIVATION_MANUAL;
        if (is_operator)
            error_hint(&o->error, "its activation is manual: `heddle activate %.128s@%llu`", adapter,
                       version);
        if (o->report.silent_ms) error_silent_broker(&o->error, o->args->common.broker, o->report.silent_ms);
    } else if (rc && o->published.replayed) {
        /* The same call would give the same answer for ever. */
        o->error.retriable = 0;
        error_hint(&o->error,
                   "the request id stands for %.128s@%llu, which has ended: publish under another one",
                   adapter, version);
    }
    return rc;
}

/* ---- --stay ---- */

/* Serves until the version is superseded or has ended. The last line explains why the command ends. */
static int serve_on(heddle_publisher_t *p, outcome_t *o)
{
    static const char *const OVER[] = {"superseded", "kept", "failed", "retired"};
    const char *adapter = o->args->adapter;
    unsigned long long version = o->published.version;
    bool is_quiet = o->args->common.quiet, is_over = false;
    heddle_event_t event = {.size = sizeof event};
    heddle_error_t over = {0}; /* why the session ended before the version did */
    if (!is_quiet) fprintf(stderr, "serving %s@%llu until superseded; Ctrl-C ends\n", adapter, version);
    while (!is_over && !cli_signal_exit()) {
        int rc = heddle_publisher_next_event(p, -1, &event);
        /* An interrupt ends the loop above; any other failure means that the session is over. */
        if (rc != HEDDLE_OK && rc != HEDDLE_ERR_AGAIN && rc != HEDDLE_ERR_INTERRUPTED) break;
        /* A refusal that does not pass: another registry, or a key that was revoked. */
        bool is_refused = event.type == HEDDLE_EVENT_REFUSED && !event.retriable;
        if (rc == HEDDLE_OK && (event.type == HEDDLE_EVENT_FENCED || is_refused)) {
            int code = is_refused ? event.code : HEDDLE_ERR_FENCED;
            error_fail(&over, code, "%s%s", is_refused ? "" : "fenced: ", event.message);
            break;
        }
        if (heddle_publisher_report(p, version, &o->report) != HEDDLE_OK) continue;
        for (size_t i = 0; i < sizeof OVER / sizeof *OVER; i++)
            is_over = is_over || !strcmp(o->report.state, OVER[i]);
        /* This process has the bytes, so the broker has no record of the version. */
        if (strcmp(o->report.state, "lost") != 0) continue;
        error_fail(&over, HEDDLE_ERR_VERSION_LOST, "%s", o->report.message);
        break;
    }
    int end = cli_signal_exit();
    const char *why = end ? "interrupted" : over.code ? over.message : o->report.state;
    const char *hint = over.code == HEDDLE_ERR_REQUEST_CONFLICT
                           ? "; start the broker on its former data, or publish it there again"
                       : over.code == HEDDLE_ERR_VERSION_LOST ? "; were older data put back? Publish it again"
                                                              : "";
    if (over.code || !is_quiet)
        fprintf(stderr, "%s@%llu is served no longer: %s%s\n", adapter, version, why, end ? "" : hint);
    return end ? end : heddle_err_exit(over.code);
}

/* ---- the publication ---- */

/* The call that this one repeats still runs: the writer in the way publishes under the same request id. */
static bool is_repeated(const args_t *args, const heddle_error_t *error)
{
    char id[HEDDLE_NAME_MAX + 16];
    snprintf(id, sizeof id, "(request id %s)", args->request_id ? args->request_id : "");
    return args->request_id && strstr(error->hint, id);
}

/* How long ago the last message of the writer in the way came, at the end of the error's `found`; -1: it is
 * not said. */
static int64_t silent_ms_of(const heddle_error_t *error)
{
    static const char TAIL[] = " ms ago";
    size_t n = strlen(error->found), tail = sizeof TAIL - 1;
    const char *at = error->found + n - (n > tail ? tail : n);
    if (strcmp(at, TAIL) != 0) return -1;
    while (at > error->found && at[-1] >= '0' && at[-1] <= '9') at--;
    return strtoll(at, NULL, 10);
}

/* Opens a session as a writer. A conflicting writer may have died a moment ago: its session ends with the
 * broker's lease, and until then it is only silent. If it sends a heartbeat meanwhile, it is alive, and the
 * conflict is final; except where this call repeats that of the writer, whose version is then the answer to
 * both. */
static int open_writer(const args_t *args, const heddle_publisher_opts_t *opts, uint64_t began_us,
                       heddle_publisher_t **ret_publisher)
{
    bool is_quiet = args->common.quiet;
    uint64_t repeated_us = 0;
    for (int64_t last_ms = 0;;) {
        int rc = heddle_publisher_open(opts, ret_publisher);
        const heddle_error_t *error = cli_error(rc);
        int64_t ms = silent_ms_of(error);
        if (rc != HEDDLE_ERR_WRITER_HELD || ms < 0) return rc;
        uint64_t now_us = clock_now(clock_system());
        if (is_repeated(args, error)) repeated_us = now_us;
        /* The writer leaves a moment after its version has ended its rollout; with --stay it does not. */
        bool is_expected = repeated_us && now_us < repeated_us + AWAY_MS * 1000;
        /* Less than before means a heartbeat in between. The deadline may end the wait as well: then the
         * conflict is what is reported, since it says more than a deadline would. */
        bool is_alive = ms < last_ms && !is_expected;
        if (is_alive || cli_left_ms(args->deadline_ms, began_us) <= AGAIN_MS) return rc;
        bool is_shown = !is_quiet && (repeated_us || isatty(STDERR_FILENO));
        if (is_shown)
            fprintf(stderr, "%s; waiting for %s\n", error->message,
                    repeated_us ? "it: it publishes under this request id"
                                : "a message of it, or for the end of its session");
        is_quiet = is_quiet || is_shown;
        last_ms = ms;
        usleep(AGAIN_MS * 1000);
    }
}

/* What publish would read and digest, without a broker. Times count from here, since nothing was opened. */
static int dry_run(outcome_t *o, const char *const *files)
{
    heddle_adapter_info_t info = {.size = sizeof info};
    uint64_t began_us = clock_now(clock_system());
    int rc = o->args->kind == KIND_OF_FILES ? heddle_adapter_check_files(files, &info)
                                            : heddle_adapter_check(files[0], &info);
    if (!rc &&
        strcmp(info.kind, KINDS[o->args->kind]) != 0) { /* weights that were pulled are a directory, too */
        rc = error_fail(&o->error, HEDDLE_ERR_BAD_ADAPTER, "%.200s does not hold an adapter of kind %s",
                        files[0], KINDS[o->args->kind]);
        error_found(&o->error, "kind %s", info.kind);
        error_hint(&o->error, "full weights are published with --kind tensors FILE...");
    }
    if (rc) return finish(o, rc);
    heddle_published_t *p = &o->published;
    memcpy(p->digest, info.digest, sizeof p->digest);
    memcpy(p->features, info.features, sizeof p->features);
    p->data_bytes = info.data_bytes;
    p->tensor_count = info.tensor_count;
    p->chunk_count = info.chunk_count;
    p->pack_ms = (double)(clock_now(clock_system()) - began_us) / 1000.0;
    return finish(o, HEDDLE_OK);
}

static void interrupt_publisher(void *handle) { heddle_publisher_interrupt(handle); }

static int publish(const args_t *args, const char *const *files, outcome_t *o)
{
    bool has_files = args->kind == KIND_OF_FILES;
    bool none = args->wait.kind == HEDDLE_QUORUM_NONE,
         is_manual = args->activation == HEDDLE_ACTIVATION_MANUAL;
    heddle_publisher_t *p = NULL;
    uint64_t began_us = clock_now(clock_system()),
             until_us = began_us + ((uint64_t)args->deadline_ms + GRACE_MS) * 1000;
    /* Connecting may not take longer than the deadline, but a broker always gets a moment to answer. */
    uint32_t most_ms = args->deadline_ms > AWAY_MS ? args->deadline_ms : AWAY_MS;
    heddle_publisher_opts_t opts = {.size = sizeof opts,
                                    .broker = args->common.broker,
                                    .broker_key = args->common.broker_key,
                                    .key = args->common.key,
                                    .adapter = args->adapter,
                                    .writer = args->writer,
                                    .takeover = args->takeover,
                                    .timeout_ms =
                                        args->common.timeout_ms < most_ms ? args->common.timeout_ms : most_ms,
                                    .max_rate_bytes = args->max_rate_bytes,
                                    .data_device = args->data_device,
                                    .host_share = args->host_share,
                                    .insecure = args->insecure,
                                    .close_ms = CLOSE_MS,
                                    .kind = KINDS[args->kind],
                                    .read_dir = has_files ? NULL : files[0]};
    int rc = open_writer(args, &opts, began_us, &p);
    if (rc) return finish(o, rc);
    cli_on_signal(interrupt_publisher, p);
    heddle_publish_opts_t how = {.size = sizeof how,
                                 .step = args->step,
                                 .request_id = args->request_id,
                                 .activation = args->activation,
                                 .if_unchanged = args->if_unchanged,
                                 .allow_step_back = args->allow_step_back,
                                 .deadline_ms = cli_left_ms(args->deadline_ms, began_us),
                                 .asked_ms = args->deadline_ms,
                                 .meta = args->meta};
    o->published.size = sizeof o->published;
    o->report.size = sizeof o->report;
    heddle_publisher_report(p, 0, &o->report); /* of no version: shows whether the grace period runs */
    print_grace(o);
    o->opening_ms = (double)(clock_now(clock_system()) - began_us) / 1000.0;
    rc = has_files ? heddle_publisher_publish_files(p, files, &how, &o->published)
                   : heddle_publisher_publish_dir(p, files[0], &how, &o->published);
    o->have_version = rc == HEDDLE_OK;
    /* OK means that at least one other process holds the bytes, or that this one stays. That counts also for
     * an earlier version with the same content: its publisher may have died before a worker had fetched it.
     */
    if (!rc && (!none || !args->stay))
        rc = wait_for(p, o, HEDDLE_PHASE_STAGED, (heddle_quorum_t){HEDDLE_QUORUM_COUNT, 1}, until_us);
    if (!rc && !none)
        rc = wait_for(p, o, is_manual ? HEDDLE_PHASE_STAGED : HEDDLE_PHASE_ACTIVE, args->wait, until_us);
    /* The answer comes before --stay: a script goes on when it has read it. */
    int end = finish(o, rc);
    if (!rc && o->published.held[0] && !is_manual && none && !args->common.quiet)
        fprintf(stderr,
                "%s: it is staged and waits, until a newer one is staged; `heddle resume %s` ends the "
                "hold\n",
                o->published.held, args->adapter);
    if (!rc && o->published.held[0] && is_manual && !args->common.quiet)
        fprintf(stderr,
                "%s: `heddle activate %s@%llu` serves this version; `heddle resume %s` ends the hold and "
                "activates the newest, which may be this one\n",
                o->published.held, args->adapter, (unsigned long long)o->published.version, args->adapter);
    int stay_end = !rc && args->stay ? serve_on(p, o) : 0;
    if (stay_end) end = stay_end; /* else the status of the answer: it may not have been written */
    cli_on_signal(NULL, NULL);
    if (rc || cli_signal_exit())
        heddle_publisher_interrupt(p); /* the wait is over, so closing must not wait again */
    heddle_publisher_close(&p);
    return end;
}

int command_publish(int argc, char **argv)
{
    args_t args = {0};
    const char *first = NULL;
    outcome_t outcome = {.args = &args};
    heddle_error_t *error = &outcome.error;
    int rc = HEDDLE_OK, end = cli_parse(&SET, "publish", argc, argv, &args, &first);
    const char *const *files = (const char *const *)argv;
    while (end < 0 && *files != first) files++;
    if (end < 0 && !args.adapter) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "--adapter is missing");
        error_expected(error, "heddle publish DIR --adapter NAME");
        error_hint(error, "an adapter is what workers subscribe to; a name that is new makes a new one");
    } else if (end < 0 && args.kind == KIND_OF_DIR && files[1]) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "heddle publish: unexpected argument \"%.200s\"", files[1]);
        error_contrast(error, "one DIR", files[1]);
        error_hint(error, "several FILEs are full weights: publish them with --kind tensors");
    } else if (end < 0) {
        rc = name_check("adapter", args.adapter, error);
        if (!rc && args.request_id) rc = name_check("request id", args.request_id, error);
        if (!rc && args.writer) rc = name_check("writer", args.writer, error);
        for (const char **m = args.meta; !rc && m && *m; m++) rc = label_check(*m, error);
    }
    /* A path that leads to no directory, or no file, is reported as a dry run reports it, before a session is
     * opened: a session as writer fences or is refused, which a mistyped path should not cause. */
    struct stat st;
    bool is_there = !rc && end < 0;
    for (int i = 0; is_there && files[i]; i++)
        is_there = stat(files[i], &st) == 0 && (args.kind == KIND_OF_FILES) == (S_ISDIR(st.st_mode) == 0);
    if (end < 0)
        end = rc                          ? finish(&outcome, rc)
              : args.dry_run || !is_there ? dry_run(&outcome, files)
                                          : publish(&args, files, &outcome);
    option_fini(&SET, &args);
    return end;
}
