/* SPDX-License-Identifier: Apache-2.0 */
/* heddle reach: the process that asks, and the one that starts it.  The command is hidden from all lists: its
 * output is for `heddle doctor` of the same release, on descriptor 3, because UCX writes to stdout. */
#include "cli/reach.h"

#include "core/errors.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ANSWER_FD = 3,
    ENDS_MOST = 8, /* workers at which it ended, before the others are left untested */
    START_S = 30,  /* beside what one worker may take: the broker, UCX, and a data plane */
    ARGS_MOST = 16 + ENDS_MOST
};

/* ---- the process that asks ---- */

typedef struct {
    common_t common;
    const char *data_device;
    const char *const *left_out;
    bool insecure, alone;
} args_t;
static const option_t OPTIONS[] = {
    {"data-device", 0, OPTION_TEXT, "IF", NULL, NULL, "as of `heddle worker`", offsetof(args_t, data_device)},
    {"insecure", 0, OPTION_FLAG, NULL, NULL, NULL, "as of `heddle worker`", offsetof(args_t, insecure)},
    {"left-out", 0, OPTION_LIST, "WORKER", NULL, NULL, "is not asked; may be given again",
     offsetof(args_t, left_out)},
    {"alone", 0, OPTION_FLAG, NULL, NULL, NULL, "one worker at a time", offsetof(args_t, alone)},
    {0}};
static const option_set_t SET = {"heddle reach",
                                 "[OPTION...]",
                                 "Which workers this host reaches, for `heddle doctor`.",
                                 CLI_DUR,
                                 OPTIONS,
                                 CLI_COMMON,
                                 NULL,
                                 0,
                                 CLI_EXITS "."};

static void say(const char *word, const char *text) { dprintf(ANSWER_FD, "%s %s\n", word, text); }

/* A process that stands still in UCX ends, too (SIGALRM). */
static void on_ask(void *self, const char *worker)
{
    const args_t *args = self;
    alarm(START_S + args->common.timeout_ms / 1000);
    say("asks", worker);
}

static int ask(heddle_admin_t *admin, args_t *args)
{
    char *text = NULL;
    heddle_reach_opts_t with = {.size = sizeof with,
                                .data_device = args->data_device,
                                .insecure = args->insecure,
                                .patience_ms = args->common.timeout_ms,
                                .at_once = args->alone ? 1 : 0,
                                .left_out = args->left_out,
                                .on_ask = on_ask,
                                .self = args};
    int rc = heddle_admin_reach(admin, &with, &text);
    say(rc ? "failed" : "answer", rc ? heddle_last_error()->message : text);
    heddle_free(text);
    return rc ? heddle_err_exit(rc) : 0;
}

/* What UCX writes when it ends the process is for its developers, as a dump of the memory is. */
int command_reach(int argc, char **argv)
{
    args_t args = {0};
    struct rlimit none = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &none);
    setenv("UCX_HANDLE_ERRORS", "none", 1);
    int end = cli_parse(&SET, "reach", argc, argv, &args, NULL);
    if (end >= 0) return end;
    alarm(START_S + args.common.timeout_ms / 1000);
    heddle_admin_t *admin = cli_admin(&args.common, "reach", &end);
    if (!admin) {
        say("failed", heddle_last_error()->message);
        return end;
    }
    end = ask(admin, &args);
    cli_admin_close(&admin);
    return end;
}

/* ---- the one that starts it ---- */

typedef enum { ASKER_RUNS, ASKER_ANSWERED, ASKER_FAILED, ASKER_ENDED } asker_state_t;
typedef struct {
    asker_state_t state;
    pid_t pid;
    char asked[HEDDLE_NAME_MAX + 1]; /* the last one; "": none yet */
    char why[300];                   /* FAILED, ENDED */
    json_t *answer;
} reach_asker_t;

/* In a signal handler. */
static void end_asker(void *self)
{
    const reach_asker_t *a = self;
    if (a->pid > 0) kill(a->pid, SIGTERM);
}

/* The variables that name a broker are its options, and an invitation is overwritten in its own. */
static char **environment(void)
{
    static const char *const NOT[] = {
        "HEDDLE_BROKER=", "HEDDLE_CONTEXT=", "HEDDLE_JOIN=", "HEDDLE_BROKER_KEY=", "HEDDLE_KEY="};
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    char **copy = calloc(count + 1, sizeof *copy);
    for (size_t i = 0; copy && i < count; i++) {
        bool is_kept = true;
        for (size_t k = 0; k < sizeof NOT / sizeof *NOT; k++)
            is_kept &= strncmp(environ[i], NOT[k], strlen(NOT[k])) != 0;
        if (is_kept) copy[kept++] = environ[i];
    }
    return copy;
}

static int start(reach_asker_t *a, const char *const *argv, int to_fd)
{
    char **env = environment();
    posix_spawn_file_actions_t actions;
    if (!env) return ENOMEM;
    int rc = posix_spawn_file_actions_init(&actions);
    if (!rc) {
        rc = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
        if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
        if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, to_fd, ANSWER_FD);
        if (!rc) rc = posix_spawn(&a->pid, "/proc/self/exe", &actions, NULL, (char *const *)argv, env);
        posix_spawn_file_actions_destroy(&actions);
    }
    free(env);
    return rc;
}

static void take_line(reach_asker_t *a, char *line)
{
    char *text = strchr(line, ' ');
    if (!text) return;
    *text++ = 0;
    if (!strcmp(line, "asks")) text_printf(a->asked, sizeof a->asked, "%s", text);
    else if (!strcmp(line, "failed")) {
        a->state = ASKER_FAILED;
        text_printf(a->why, sizeof a->why, "%s", text);
    } else if (!strcmp(line, "answer") && (a->answer = json_loads(text, 0, NULL))) a->state = ASKER_ANSWERED;
}

/* The last worker that was asked is why it ended: it was asked alone, or it is asked alone now. */
static void name_end(reach_asker_t *a, int status)
{
    const char *how = WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it ended without an answer";
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) how = "it stood still";
    a->state = ASKER_ENDED;
    text_printf(a->why, sizeof a->why,
                "UCX of this host cannot read its address: the process that asked it ended (%s)", how);
}

static int run(reach_asker_t *a, const char *const *argv)
{
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC)) return errno;
    int rc = start(a, argv, ends[1]);
    close(ends[1]);
    FILE *from = rc ? NULL : fdopen(ends[0], "re");
    if (!from) close(ends[0]);
    else {
        cli_on_signal(end_asker, a);
        char *line = NULL;
        size_t size = 0;
        for (ssize_t n; (n = getline(&line, &size, from)) > 0;) {
            line[n - (line[n - 1] == '\n')] = 0;
            take_line(a, line);
        }
        free(line);
        fclose(from);
    }
    while (!rc && waitpid(a->pid, &status, 0) < 0 && errno == EINTR) continue;
    cli_on_signal(NULL, NULL);
    if (!rc && a->state == ASKER_RUNS) name_end(a, status);
    return rc;
}

/* ---- the rows ---- */

static json_t *row_named(const json_t *rows, const char *name)
{
    for (size_t i = 0; name && i < json_array_size(rows); i++) {
        json_t *row = json_array_get(rows, i);
        const char *other = cli_string(row, "name");
        if (other && !strcmp(other, name)) return row;
    }
    return NULL;
}

static void set_reach(json_t *row, const char *reach, const char *why)
{
    json_object_set_new(row, "reach", json_string(reach));
    json_object_set_new(row, "reach_why", utf8_json(why));
}

static bool is_untested(const json_t *row)
{
    const char *reach = cli_string(row, "reach");
    return reach && !strcmp(reach, "untested");
}

static void take_answer(json_t *rows, const json_t *answer)
{
    static const char *const FIELDS[] = {"reach", "reach_ms", "reach_why"};
    const json_t *list = json_object_get(answer, "workers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *w = json_array_get(list, i);
        json_t *row = row_named(rows, cli_string(w, "name"));
        for (size_t k = 0; row && is_untested(row) && k < sizeof FIELDS / sizeof *FIELDS; k++)
            json_object_set(row, FIELDS[k], json_object_get(w, FIELDS[k]));
    }
}

static void leave_untested(json_t *rows, const char *why)
{
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (is_untested(json_array_get(rows, i))) set_reach(json_array_get(rows, i), "untested", why);
}

/* ---- both together ---- */

/* "--left-out=w1" of each row at which the process ended; the caller frees the texts. */
static size_t add_left_out(const json_t *rows, char *ret_args[ENDS_MOST])
{
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(rows) && count < ENDS_MOST; i++) {
        const json_t *row = json_array_get(rows, i);
        const char *reach = cli_string(row, "reach");
        if (!reach || strcmp(reach, "unreadable") != 0) continue;
        if (asprintf(&ret_args[count], "--left-out=%s", cli_string(row, "name")) >= 0) count++;
    }
    return count;
}

static int run_without_those(reach_asker_t *a, const facts_opts_t *opts, const json_t *rows, bool is_alone)
{
    const common_t *c = &opts->common;
    const char *argv[ARGS_MOST] = {"heddle", "reach", "--broker", c->broker};
    char *left_out[ENDS_MOST], timeout[32];
    size_t n = 4, count = add_left_out(rows, left_out);
    snprintf(timeout, sizeof timeout, "--timeout=%ums", c->timeout_ms);
    argv[n++] = timeout;
    if (c->broker_key) argv[n++] = "--broker-key", argv[n++] = c->broker_key;
    if (c->key) argv[n++] = "--key", argv[n++] = c->key;
    if (opts->data_device) argv[n++] = "--data-device", argv[n++] = opts->data_device;
    if (opts->insecure) argv[n++] = "--insecure";
    if (is_alone) argv[n++] = "--alone";
    for (size_t i = 0; i < count; i++) argv[n++] = left_out[i];
    int rc = run(a, argv);
    for (size_t i = 0; i < count; i++) free(left_out[i]);
    return rc;
}

/* True: another process is to ask the others. */
static bool take_end(const reach_asker_t *a, json_t *rows, bool was_alone)
{
    json_t *row = row_named(rows, a->asked);
    if (a->state == ASKER_ANSWERED) take_answer(rows, a->answer);
    if (a->state == ASKER_FAILED || (a->state == ASKER_ENDED && !row)) leave_untested(rows, a->why);
    if (a->state != ASKER_ENDED || !row) return false;
    if (was_alone) set_reach(row, "unreadable", a->why);
    return true;
}

/* Many are asked at a time: which of them ended the process is seen when one is asked after the other. */
int reach_ask(const facts_opts_t *opts, json_t *rows)
{
    bool goes_on = true;
    for (int ends = 0; goes_on && ends <= ENDS_MOST; ends++) {
        reach_asker_t a = {0};
        int why = run_without_those(&a, opts, rows, ends > 0);
        if (why) {
            int rc = error_fail(error_last(), HEDDLE_ERR_INTERNAL,
                                "no process can be started to ask the workers: %s", strerror(why));
            leave_untested(rows, heddle_last_error()->message);
            return rc;
        }
        goes_on = !cli_signal_exit() && take_end(&a, rows, ends > 0);
        json_decref(a.answer);
    }
    if (cli_signal_exit())
        return error_fail(error_last(), HEDDLE_ERR_INTERRUPTED, "interrupted while workers were asked");
    if (goes_on)
        leave_untested(
            rows,
            "it was not asked: the processes that asked the workers before it ended one after the other");
    return HEDDLE_OK;
}
