/* SPDX-License-Identifier: Apache-2.0 */
/* What every command does around its own request: its common options, its session with the broker, and how a
 * signal ends it.
 *
 * A signal only interrupts the library's current call, which then fails with INTERRUPTED: the command prints
 * what it has by then, on the path of every other failure, and exits with the status of the signal. */
#include "cli/cli.h"

#include "core/clock.h"
#include "core/contexts.h"
#include "core/errors.h"
#include "core/join_argument.h"
#include "core/log.h"
#include "core/process.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const option_t CLI_COMMON[] = {
    {"broker", 0, OPTION_TEXT, "EP[,EP]", "HEDDLE_BROKER", NULL,
     "where the broker listens; default that of the context, else " CONTEXTS_BROKER,
     offsetof(common_t, broker)},
    {"context", 0, OPTION_TEXT, "NAME", "HEDDLE_CONTEXT", NULL,
     "connect as this context has it; default the one in use (heddle context)", offsetof(common_t, context)},
    {"broker-key", 0, OPTION_TEXT, "KEY|FILE", "HEDDLE_BROKER_KEY", NULL,
     "the broker's public key; default what the key ring knows of it", offsetof(common_t, broker_key)},
    {"key", 0, OPTION_TEXT, "FILE", "HEDDLE_KEY", NULL, "your own key; default client.key of the key ring",
     offsetof(common_t, key)},
    {"timeout", 0, OPTION_DURATION, "DUR", NULL, "5s", "to connect and to get a reply",
     offsetof(common_t, timeout_ms)},
    CLI_OUTPUT,
    {0}};

/* Commands that are about all there is, or about an adapter as a whole: which one a word too many is for. */
static const struct {
    const char *kind, *hint;
} INSTEAD[] = {
    {"status", "`heddle versions NAME` is about one adapter, `heddle workers NAME` about one worker"},
    {"adapters", "`heddle versions NAME` is about one adapter"},
    {"resume", "it takes an adapter without a version: `heddle activate NAME@V` takes both"},
    {"forget", "it takes an adapter without a version: all of its versions are forgotten"},
    {"drain", "one worker, or --label K=V for all that have it"},
    {"keygen", "--out FILE names the file"},
    {"workers", "`heddle workers NAME` is about one, `heddle workers` about all"}};

static void hint_instead(const char *kind, heddle_error_t *error)
{
    if (!strstr(error->message, ": unexpected argument ")) return;
    for (size_t i = 0; i < sizeof INSTEAD / sizeof *INSTEAD; i++)
        if (!strcmp(INSTEAD[i].kind, kind)) error_hint(error, "%s", INSTEAD[i].hint);
}

/* Its texts are in use until the process ends. */
static contexts_t contexts;

static int choose_broker(common_t *c, context_t *ret_context, heddle_error_t *error)
{
    context_t values = {.name = c->context, .broker = c->broker, .broker_key = c->broker_key, .key = c->key};
    int rc = contexts_choose(&values, &contexts, error);
    c->context = values.name;
    c->broker = values.broker;
    c->broker_key = values.broker_key;
    c->key = values.key;
    *ret_context = values;
    return rc;
}

/* What a context has besides its broker.  A text that is no value of the option is of another release, or was
 * written by hand. */
static int take_default(const option_set_t *set, const char *name, const char *text, common_t *c,
                        heddle_error_t *error)
{
    int rc = option_store(set, name, text, c, error);
    if (rc) error_hint(error, "it is a default of context %s: `heddle context add` replaces it", c->context);
    return rc;
}

/* Its string names the broker, in place of an option and of a context. */
static int take_join(common_t *c, int argc, char **argv, heddle_error_t *error)
{
    join_argument_t values = {c->join, c->broker, c->broker_key, c->context};
    int rc = join_argument_take(&values, argc, argv, error);
    c->join = values.join;
    return rc;
}

int cli_parse(const option_set_t *set, const char *kind, int argc, char **argv, void *into,
              const char **ret_args)
{
    heddle_error_t error;
    common_t *common = into;
    context_t context = {0};
    int rc = option_parse(set, argc, argv, into, ret_args, &error);
    if (rc == 1) return 0;
    log_set_level((log_level_t)common->log_level);
    bool needs_broker = rc == HEDDLE_OK && set->common == CLI_COMMON;
    if (needs_broker) rc = take_join(common, argc, argv, &error);
    if (needs_broker && !rc && !common->join) rc = choose_broker(common, &context, &error);
    if (!rc && context.timeout && !option_is_given(set, argc, argv, "timeout"))
        rc = take_default(set, "timeout", context.timeout, common, &error);
    if (!rc && context.output && !option_is_given(set, argc, argv, "output"))
        rc = take_default(set, "output", context.output, common, &error);
    if (rc == HEDDLE_OK) return -1;
    /* The parse may have stopped before -o json, and a script must get this error as JSON too. */
    common->output = option_wants_json(argc, argv) ? OUTPUT_JSON : OUTPUT_TABLE;
    hint_instead(kind, &error);
    return cli_fail(common, kind, &error);
}

/* ---- signals ---- */

/* The handler reads these at any moment, so the function is taken away while the handle changes. */
static void (*volatile on_interrupt)(void *);
static void *volatile interrupt_handle;
static volatile sig_atomic_t caught;

/* Only what a signal handler may do: it notes the number, and the library's interrupt functions may be called
 * from one. */
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
    process_on_signal(on_signal);               /* without a handle it only notes the signal */
    if (caught && interrupt) interrupt(handle); /* one that came before the handle was there */
}

/* A signal that came before the wait must not be slept over, so they are let in by the wait itself. */
void cli_pause(uint32_t ms)
{
    sigset_t ends, before;
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, &before);
    if (!caught) ppoll(NULL, 0, &time, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

int cli_signal_exit(void) { return caught ? 128 + caught : 0; }

/* ---- the session ---- */

static void interrupt_admin(void *handle) { heddle_admin_interrupt(handle); }

/* The handlers come after the handle: until then there is nothing that waits, and the default action ends the
 * process at once. */
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

void cli_note_unknown(heddle_admin_t *admin, const common_t *c, const char *kind, const char *noun,
                      const char *name)
{
    bool is_worker = !strcmp(noun, "worker");
    char *text = NULL;
    int rc = c->quiet    ? HEDDLE_ERR_AGAIN
             : is_worker ? heddle_admin_workers(admin, NULL, &text)
                         : heddle_admin_adapters(admin, &text);
    json_t *answer = rc ? NULL : json_loads(text, 0, NULL);
    heddle_free(text);
    const json_t *list = json_object_get(answer, is_worker ? "workers" : "adapters");
    size_t count = json_array_size(list);
    const char **names = answer ? calloc(count + 1, sizeof *names) : NULL;
    bool is_known = !names;
    for (size_t i = 0; !is_known && i < count; i++) {
        names[i] = cli_string(json_array_get(list, i), "name");
        is_known = !names[i] || !strcmp(names[i], name);
    }
    const char *nearest = is_known ? NULL : option_nearest(name, names);
    if (!is_known)
        fprintf(stderr, "heddle %s: no %s has the name %s%s%s%s\n", kind, noun, name,
                nearest ? ": did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    free(names);
    json_decref(answer);
}

int cli_note_settling(heddle_admin_t *admin, const common_t *c)
{
    char *text = NULL;
    int rc = c->quiet ? HEDDLE_OK : heddle_admin_status(admin, &text);
    json_t *answer = text ? json_loads(text, 0, NULL) : NULL;
    heddle_free(text);
    double ms = json_number_value(json_object_get(json_object_get(answer, "broker"), "settling_ms"));
    json_decref(answer);
    if (ms > 0)
        fprintf(stderr, "the broker has just started: it decides in %.1f s, when its members are back\n",
                ms / 1000.0);
    return rc;
}

int cli_ask(const void *args, const char *kind, call_t *call, render_t *render)
{
    int end;
    heddle_admin_t *admin = cli_admin(args, kind, &end);
    if (!admin) return end;
    char *json = NULL;
    int rc = call(admin, args, &json);
    end = cli_answer(args, kind, cli_error(rc), json, render);
    cli_admin_close(&admin);
    return end;
}

/* A deadline counts from the call, so what connecting took is taken off before the request is made. */
uint32_t cli_left_ms(uint32_t deadline_ms, uint64_t began_us)
{
    uint64_t spent_ms = (clock_now(clock_system()) - began_us) / 1000;
    return spent_ms < deadline_ms ? deadline_ms - (uint32_t)spent_ms : 1;
}
