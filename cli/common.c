/* SPDX-License-Identifier: Apache-2.0 */
/* Printing answers and errors, and signals. */
#include "cli/cli.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const option_t CLI_COMMON[] = {
    {"broker", 0, OPTION_TEXT, "EP[,EP]", "HEDDLE_BROKER", "tcp://127.0.0.1:7700", "where the broker listens",
     offsetof(common_t, broker)},
    {"broker-key", 0, OPTION_TEXT, "KEY|FILE", "HEDDLE_BROKER_KEY", NULL,
     "the broker's public key; default what the key ring knows of it", offsetof(common_t, broker_key)},
    {"key", 0, OPTION_TEXT, "FILE", "HEDDLE_KEY", NULL, "your own key; default client.key of the key ring",
     offsetof(common_t, key)},
    {"timeout", 0, OPTION_DURATION, "DUR", NULL, "5s", "to connect and to get a reply",
     offsetof(common_t, timeout_ms)},
    CLI_OUTPUT,
    {0}};

int cli_parse(const option_set_t *set, const char *kind, int argc, char **argv, void *into,
              const char **ret_args)
{
    heddle_error_t error;
    common_t *common = into;
    int rc = option_parse(set, argc, argv, into, ret_args, &error);
    if (rc == 1) return 0;
    log_set_level((log_level_t)common->log_level);
    if (rc == HEDDLE_OK) return -1;
    common->output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE;
    return cli_fail(common, kind, &error);
}

/* The error as JSON; after a signal, its "exit" is that of the signal. */
static json_t *error_object(const heddle_error_t *error)
{
    char *text = NULL;
    json_t *object = heddle_error_json(error, &text) == HEDDLE_OK ? json_loads(text, 0, NULL) : NULL;
    heddle_free(text);
    if (object && error->code == HEDDLE_ERR_INTERRUPTED && cli_signal_exit())
        json_object_set_new(object, "exit", json_integer(cli_signal_exit()));
    return object ? object : json_null();
}

/* A copy with the general hint of its code, if the failure itself came without one. */
static heddle_error_t with_hint(const heddle_error_t *error)
{
    heddle_error_t e = *error;
    const char *hint = e.hint[0] ? NULL : cli_hint(e.code);
    if (hint) error_hint(&e, "%s", hint);
    option_words(e.hint);
    return e;
}

static void print_json(json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(10));
    if (text) puts(text);
    free(text);
    fflush(stdout);
}

static void say(const char *kind, const heddle_error_t *e)
{
    const char *message = e->message[0] ? e->message : heddle_err_text(e->code);
    const char *rest = strncmp(message, "heddle ", 7) ? NULL : strstr(message, ": ");
    if (rest) message = rest + 2; /* messages of the option parser begin with the command already */
    fprintf(stderr, "heddle%s%s: %s: %s\n", kind[0] ? " " : "", kind, heddle_err_name(e->code), message);
    if (e->expected[0]) fprintf(stderr, "  expected: %s\n", e->expected);
    if (e->found[0]) fprintf(stderr, "  found:    %s\n", e->found);
    if (e->hint[0]) fprintf(stderr, "  hint:     %s\n", e->hint);
}

/* The user knows that the command was interrupted, but not which version it had requested and what happens to
 * it now: that is printed. */
static int end_by_signal(const char *kind, const heddle_error_t *e)
{
    if (e->version) say(kind, e);
    return cli_signal_exit();
}

int cli_fail(const common_t *c, const char *kind, const heddle_error_t *error)
{
    heddle_error_t e = with_hint(error);
    bool is_signal = e.code == HEDDLE_ERR_INTERRUPTED && cli_signal_exit();
    if (c->output == OUTPUT_JSON) {
        json_t *object =
            json_pack("{s:s, s:s, s:b}", "schema", "heddle/1", "kind", kind[0] ? kind : "heddle", "ok", 0);
        cli_null_fields(kind, object);
        json_object_set_new(object, "error", error_object(&e));
        print_json(object);
        json_decref(object);
    }
    if (is_signal) return end_by_signal(kind, &e);
    say(kind, &e);
    return heddle_err_exit(e.code);
}

int cli_answer(const common_t *c, const char *kind, const heddle_error_t *why, char *json, render_t *render)
{
    heddle_error_t error = with_hint(why);
    int rc = error.code;
    json_t *answer = json ? json_loads(json, 0, NULL) : NULL;
    heddle_free(json);
    if (rc && !answer) return cli_fail(c, kind, &error);
    bool is_signal = rc == HEDDLE_ERR_INTERRUPTED && cli_signal_exit();
    if (rc) {
        json_object_set_new(answer, "ok", json_false());
        json_object_set_new(answer, "error", error_object(&error));
    }
    if (c->output == OUTPUT_JSON) print_json(answer);
    else if (!is_signal) {
        cli_settle_texts(answer);
        render(c, answer);
    }
    json_decref(answer);
    fflush(stdout);
    if (is_signal) return end_by_signal(kind, &error);
    if (rc) say(kind, &error);
    return heddle_err_exit(rc);
}

static void (*volatile on_interrupt)(void *);
static void *volatile interrupt_handle;
static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    void (*interrupt)(void *) = on_interrupt;
    caught = number;
    if (interrupt) interrupt(interrupt_handle);
}

void cli_on_signal(void (*interrupt)(void *handle), void *handle)
{
    on_interrupt = NULL;
    interrupt_handle = handle;
    on_interrupt = interrupt;
    struct sigaction action = {.sa_handler = on_signal}; /* without a handle it only notes the signal */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup;
    sigaction(SIGHUP, NULL, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL); /* under nohup it stays ignored */
}

int cli_signal_exit(void) { return caught ? 128 + caught : 0; }

static void interrupt_admin(void *handle) { heddle_admin_interrupt(handle); }

heddle_admin_t *cli_admin(const common_t *c, const char *kind, int *ret_exit)
{
    heddle_admin_t *admin = NULL;
    heddle_admin_opts_t opts = {.size = sizeof opts,
                                .broker = c->broker,
                                .broker_key = c->broker_key,
                                .key = c->key,
                                .timeout_ms = c->timeout_ms};
    if (heddle_admin_open(&opts, &admin) != HEDDLE_OK) {
        *ret_exit = cli_fail(c, kind, heddle_last_error());
        return NULL;
    }
    cli_on_signal(interrupt_admin, admin);
    return admin;
}

void cli_admin_close(heddle_admin_t **admin)
{
    cli_on_signal(NULL, NULL);
    heddle_admin_close(admin);
}

const char *cli_text(const json_t *object, const char *key, char scratch[64])
{
    const json_t *v = json_object_get(object, key);
    if (json_is_string(v)) return json_string_value(v)[0] ? json_string_value(v) : "-";
    if (json_is_integer(v)) snprintf(scratch, 64, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v)) snprintf(scratch, 64, "%.1f", json_real_value(v));
    else if (json_is_boolean(v)) snprintf(scratch, 64, "%s", json_is_true(v) ? "yes" : "no");
    else return "-";
    return scratch;
}

const char *cli_count(int64_t n, const char *noun, char scratch[64])
{
    snprintf(scratch, 64, "%lld %s%s", (long long)n, noun, n == 1 ? "" : "s");
    return scratch;
}

int64_t cli_integer(const json_t *object, const char *key)
{
    return (int64_t)json_number_value(json_object_get(object, key));
}

uint32_t cli_left_ms(uint32_t deadline_ms, uint64_t began_us)
{
    uint64_t spent_ms = (clock_now(clock_system()) - began_us) / 1000;
    return spent_ms < deadline_ms ? deadline_ms - (uint32_t)spent_ms : 1;
}

const heddle_error_t *cli_error(int rc)
{
    static const heddle_error_t none;
    return rc ? heddle_last_error() : &none;
}

const char *cli_age(const json_t *object, const char *key, char scratch[64])
{
    const char *text = json_string_value(json_object_get(object, key));
    struct tm t = {0};
    if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &t)) return "-";
    long seconds = (long)(time(NULL) - timegm(&t));
    if (seconds < 0) seconds = 0;
    if (seconds < 120) snprintf(scratch, 64, "%ld s ago", seconds);
    else if (seconds < 7200) snprintf(scratch, 64, "%ld m ago", seconds / 60);
    else if (seconds < 172800) snprintf(scratch, 64, "%ld h ago", seconds / 3600);
    else snprintf(scratch, 64, "%ld d ago", seconds / 86400);
    return scratch;
}

const char *cli_short_digest(const json_t *object, const char *key, char scratch[64])
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strlen(text) < 15) return "-";
    snprintf(scratch, 64, "%.12s", text + 3);
    return scratch;
}

const char *cli_why(const json_t *object, char *scratch, size_t size)
{
    const char *code = json_string_value(json_object_get(object, "code")),
               *message = json_string_value(json_object_get(object, "message"));
    const char *note = json_string_value(json_object_get(object, "note"));
    if (!code) return note ? note : "-";
    snprintf(scratch, size, "%s%s%s", code, message ? ": " : "", message ? message : "");
    return scratch;
}
