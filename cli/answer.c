/* SPDX-License-Identifier: Apache-2.0 */
/* One answer, or one failure, as the user gets it.
 *
 * With -o json, stdout is one JSON object whatever happens, and a failure is part of it; the same failure is
 * also printed on stderr, for the user who looks on. The exit status follows from the code of the failure
 * alone, so both forms of output have the same. */
#include "cli/cli.h"

#include "core/errors.h"
#include "core/option_json.h"
#include "core/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The fields that an answer of each kind always has.  In an answer that is only a failure they are null, so
 * that a script can read them without a check. */
#define WAIT_FIELDS                                                                                          \
    "adapter version digest decision phase need_count have_count eligible_count elapsed_ms workers missing"
#define DECIDE_FIELDS " from to changed same_bytes held dry_run bytes_moved would_fetch would_fetch_bytes"
static const struct {
    const char *kind, *fields;
    int exit; /* of every failure; 0: it follows from the code */
} KINDS[] = {
    {"publish", "adapter version tag digest created reason state step request_id data_bytes tensor_count "
                "chunk_count features "
                "rollout timing"},
    {"status", "broker warnings reasons count adapters"},
    {"brokers", "cluster epoch brokers store"},
    {"adapters", "adapters"},
    {"check", "status adapter adapter_count workers_ready max_lag age_ms findings", 3},
    {"doctor", "status findings checks facts", 3},
    {"versions", "adapter versions"},
    {"workers", "settling_ms workers"},
    {"wait", WAIT_FIELDS},
    {"activate", WAIT_FIELDS DECIDE_FIELDS},
    {"rollback", WAIT_FIELDS DECIDE_FIELDS},
    {"resume", WAIT_FIELDS DECIDE_FIELDS},
    {"forget", "adapter version_count dry_run"},
    {"drain", "dry_run cancel workers"},
    {"pull", "adapter version tag digest state step data_bytes tensor_count path elapsed_ms sources"},
    {"keys list", "keys"},
    {"keys add", "changed key added_roles session_count entered_count"},
    {"keys revoke", "changed key added_roles session_count entered_count"},
    {"keygen", "public_key file created"},
    {"invite", "join addresses loopback key"},
    {"context", "file in_use contexts"},
    {"verify", "adapter version expected elapsed_ms workers"},
};

/* The general hint for each code, used if the failure itself has none. The library knows the case and has the
 * better words; this is for failures that come from the broker, or from a program without hints. */
#define H(NAME, text)                                                                                        \
    {                                                                                                        \
        HEDDLE_ERR_##NAME, text                                                                              \
    }
static const struct {
    int code;
    const char *hint;
} HINTS[] = {
    H(USAGE, "`heddle COMMAND --help` lists its options and arguments"),
    H(BAD_NAME, "names are a letter or digit, then up to 127 of letters, digits, '.', '_', '-'"),
    H(INSECURE_ADDRESS, "--insecure allows it, on a network that you trust"),
    H(NOT_FOUND, "`heddle adapters` and `heddle versions NAME` list what there is"),
    H(REQUEST_CONFLICT, "use another --request-id for other bytes"),
    H(WRITER_HELD, "`heddle adapters` names the writer; --takeover fences it"),
    H(FENCED, "another session took its place: end one of the two, then try again"),
    H(WORKER_ALIVE, "end that worker, or give this one another --name"),
    H(UNCHANGED, "--if-unchanged skip takes the version that is there, publish makes another"),
    H(STEP_BACK, "--allow-step-back where a lower step is meant"),
    H(HELD, "`heddle resume NAME` ends the hold: it activates the newest version"),
    H(NOT_ACTIVATABLE, "`heddle versions NAME` lists those that are live; publish the bytes again"),
    H(TOO_FEW_SLOTS, "start the worker with more --slots"),
    H(UCX_VERSION, "install the same UCX on every host"),
    H(WIRE_VERSION,
      "install releases that share a wire version: `heddle --version` on both sides, brokers first"),
    H(DATA_LOCKED, "end the broker that has it, or name another --data"),
    H(DEADLINE, "`heddle workers` shows which workers lag, and why; a longer --deadline gives more time"),
    H(NO_WORKERS, "start one: `heddle worker --adapter NAME`, or the engine plug (python -m heddle.engine)"),
    H(DENIED, "ask the administrator of the broker for a role that may"),
    H(UNAVAILABLE, "is heddle-broker running there? --broker or HEDDLE_BROKER names another address"),
    H(BAD_ADAPTER, "save the adapter again with PEFT's save_pretrained"),
    H(NO_LORA, "is this the adapter's own directory? its tensors are named lora_A, lora_B"),
    H(UNSUPPORTED_PEFT_TYPE, "only adapters of peft_type LORA are carried"),
    H(UNSUPPORTED_FEATURE, "save the adapter without that feature"),
    H(LIMIT, "make it smaller, or split it"),
    H(PROTOCOL, "compare `heddle --version` on both sides: they may be of different releases"),
    H(VERSION_FAILED,
      "`heddle versions NAME@V` tells which worker, in which phase, and why; then publish again"),
    H(VERSION_LOST, "publish the bytes again"),
    H(DIGEST_MISMATCH, "end the worker that is named: it fetches the version again when it is back"),
    H(UNHEALTHY, "operations.md, Watching, says for each reason what to do"),
    H(DATA_DIR, "name a directory that this user may write with --data"),
    H(DATA_NEWER, "run the newer release, or name another --data"),
    H(NO_SPACE, "make room on the broker's disk, then try again"),
    H(ADDRESS_IN_USE, "end what listens there, or --listen elsewhere; `:*` takes a free port"),
    H(NO_MEMORY, "free memory or descriptors, then try again"),
    H(NO_SLOT, "let readers release old versions, or start the worker with more --slots"),
    H(INTERRUPTED, "the request may still be carried out: `heddle status` shows the result"),
    H(INTERNAL, "run it again with --log-level debug, and report the output"),
};

static int exit_of(const char *kind, const heddle_error_t *error)
{
    if (error->code == HEDDLE_ERR_INTERRUPTED && cli_signal_exit()) return cli_signal_exit();
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (KINDS[i].exit && !strcmp(KINDS[i].kind, kind)) return KINDS[i].exit;
    return heddle_err_exit(error->code);
}

/* The error as JSON; its "exit" repeats the exit status. */
static json_t *error_object(const char *kind, const heddle_error_t *error)
{
    char *text = NULL;
    json_t *object = heddle_error_json(error, &text) == HEDDLE_OK ? json_loads(text, 0, NULL) : NULL;
    heddle_free(text);
    if (object) json_object_set_new(object, "exit", json_integer(exit_of(kind, error)));
    return object ? object : json_null();
}

/* A copy with the general hint of its code, if the failure itself came without one.  The library's texts name
 * fields of its options; here they are options of the command. */
static heddle_error_t with_hint(const char *kind, const heddle_error_t *error)
{
    heddle_error_t e = *error;
    if (!e.hint[0] && e.code == HEDDLE_ERR_USAGE && kind[0])
        error_hint(&e, "`heddle %s --help` lists its options and arguments", kind);
    for (size_t i = 0; !error->hint[0] && i < sizeof HINTS / sizeof *HINTS; i++)
        if (HINTS[i].code == e.code) error_hint(&e, "%s", HINTS[i].hint);
    option_error_words(&e);
    return e;
}

json_t *cli_error_object(const char *kind, const heddle_error_t *error)
{
    heddle_error_t e = with_hint(kind, error);
    return error_object(kind, &e);
}

/* One line, flushed at once: a script may read it while the command goes on (--stay). */
void cli_print_json(json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    if (text) puts(text);
    free(text);
    fflush(stdout);
}

static int print_error(const char *kind, const heddle_error_t *e)
{
    char program[64];
    snprintf(program, sizeof program, "heddle%s%s", kind[0] ? " " : "", kind);
    process_fail(program, e);
    return exit_of(kind, e);
}

/* The user knows that the command was interrupted, but not which version it had requested and what happens to
 * it now: that is printed. */
static int end_by_signal(const char *kind, const heddle_error_t *e)
{
    if (e->version) print_error(kind, e);
    return cli_signal_exit();
}

int cli_fail(const common_t *c, const char *kind, const heddle_error_t *error)
{
    heddle_error_t e = with_hint(kind, error);
    bool is_signal = e.code == HEDDLE_ERR_INTERRUPTED && cli_signal_exit();
    if (c->output == OUTPUT_JSON) {
        /* Of a command with actions the kind is the first word. */
        json_t *object =
            json_pack("{s:s, s:s%, s:b}", "schema", "heddle/1", "kind", kind[0] ? kind : "heddle",
                      kind[0] ? strcspn(kind, " ") : strlen("heddle"), "ok", 0);
        const char *fields = "";
        for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
            if (!strcmp(KINDS[i].kind, kind)) fields = KINDS[i].fields;
        char text[256], *state = NULL;
        snprintf(text, sizeof text, "%s", fields);
        for (char *name = strtok_r(text, " ", &state); name; name = strtok_r(NULL, " ", &state))
            json_object_set_new(object, name, json_null());
        json_object_set_new(object, "error", error_object(kind, &e));
        cli_print_json(object);
        json_decref(object);
    }
    if (is_signal) return end_by_signal(kind, &e);
    return print_error(kind, &e);
}

int cli_answer(const common_t *c, const char *kind, const heddle_error_t *why, char *json, render_t *render)
{
    heddle_error_t error = with_hint(kind, why);
    int rc = error.code;
    json_t *answer = json ? json_loads(json, 0, NULL) : NULL;
    heddle_free(json);
    option_json_words(answer);
    /* A failed wait has an answer too: which workers were there and which were not. It is printed as far as
     * it goes, and the failure comes with it. */
    if (rc && !answer) return cli_fail(c, kind, &error);
    bool is_signal = rc == HEDDLE_ERR_INTERRUPTED && cli_signal_exit();
    if (rc) {
        json_object_set_new(answer, "ok", json_false());
        json_object_set_new(answer, "error", error_object(kind, &error));
    }
    if (c->output == OUTPUT_JSON) cli_print_json(answer);
    else if (!is_signal) {
        cli_clean_texts(answer);
        render(c, answer);
    }
    json_decref(answer);
    fflush(stdout);
    if (is_signal) return end_by_signal(kind, &error);
    return rc ? print_error(kind, &error) : 0;
}

const heddle_error_t *cli_error(int rc)
{
    static const heddle_error_t none;
    return rc ? heddle_last_error() : &none;
}
