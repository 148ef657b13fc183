/* SPDX-License-Identifier: Apache-2.0 */
/* Standard descriptors, signals, stack and standard output of a program. */
#include "core/process.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/option.h"
#include "core/repeat.h"
#include "core/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int process_begin(heddle_error_t *error)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            /* open() returns the lowest free descriptor, which is this one. */
            (void)!open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    log_set_words(option_words);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    /* The limit of the main thread, and the default size for threads of other libraries (ZeroMQ, UCX). */
    struct rlimit limit;
    pthread_attr_t attr;
    size_t bytes = 0;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= PROCESS_STACK_BYTES) return HEDDLE_OK;
    if (limit.rlim_max < PROCESS_STACK_BYTES) {
        error_fail(error, HEDDLE_ERR_NO_MEMORY, "the limit of the stack is too low");
        error_expected(error, "%u KiB or more", PROCESS_STACK_BYTES / 1024);
        error_found(error, "%llu KiB", (unsigned long long)limit.rlim_max / 1024);
        error_hint(error, "raise it for this program: ulimit -s 8192");
        return HEDDLE_ERR_NO_MEMORY;
    }
    limit.rlim_cur = PROCESS_STACK_BYTES;
    setrlimit(RLIMIT_STACK, &limit);
    pthread_attr_init(&attr);
    if (!pthread_getattr_default_np(&attr) && !pthread_attr_getstacksize(&attr, &bytes) &&
        bytes < THREAD_STACK_BYTES && !pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES))
        pthread_setattr_default_np(&attr);
    pthread_attr_destroy(&attr);
    return HEDDLE_OK;
}

bool process_print(const char *line)
{
    static repeat_t lost;
    bool is_written = puts(line) >= 0 && fflush(stdout) == 0;
    if (!is_written) {
        char scratch[REPEAT_TEXT];
        int why = errno;
        uint64_t times = repeat_note(&lost, (uint32_t)why, clock_now(clock_system()));
        if (times)
            log_emit(LOG_WARN, "stdout.lost",
                     "a line cannot be written to stdout and is lost: %s; is its disk full, or the "
                     "descriptor closed?  The line: %.400s%s",
                     strerror(why), line, repeat_text(times, scratch));
        __fpurge(stdout); /* or the lost line would be printed late, before the next one */
        clearerr(stdout);
    }
    if (is_written && repeat_over(&lost)) log_emit(LOG_WARN, "stdout.again", "stdout takes lines again");
    return is_written;
}

static bool is_reader_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) > 0 && out.revents & POLLERR;
}

void process_on_signal(void (*handler)(int number))
{
    struct sigaction action = {.sa_handler = handler}, hangup;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, NULL, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

void process_take_log_format(int argc, char **argv)
{
    static const char NAME[] = "--log-format", *const FORMATS[] = {"text", "json", "journal"};
    for (int i = 1; i < argc; i++) {
        size_t n = strcspn(argv[i], "=");
        if (n != sizeof NAME - 1 || strncmp(argv[i], NAME, n) != 0) continue;
        const char *value = argv[i][n] ? argv[i] + n + 1 : i + 1 < argc ? argv[i + 1] : "";
        for (int f = 0; f < (int)(sizeof FORMATS / sizeof *FORMATS); f++)
            if (!strcmp(value, FORMATS[f])) log_set_format((log_format_t)f);
    }
}

const char *process_name(const char *argv0, const char *own)
{
    return argv0 && !strncmp(argv0, "heddle ", 7) ? argv0 : own;
}

/* What collects a log in which each line is an object takes nothing else. */
static void log_failure(const char *program, const char *message, const heddle_error_t *e)
{
    const char *const parts[][2] = {{"expected", e->expected}, {"found", e->found}, {"hint", e->hint}};
    char text[sizeof *e];
    snprintf(text, sizeof text, "%s: %s: %s", program, heddle_err_name(e->code), message);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strlen(text);
        if (parts[i][1][0]) snprintf(text + n, sizeof text - n, "; %s: %s", parts[i][0], parts[i][1]);
    }
    log_emit(LOG_ERROR, "process.failed", "%s", text);
}

int process_fail(const char *program, const heddle_error_t *e)
{
    const char *message = e->message[0] ? e->message : heddle_err_text(e->code);
    size_t n = strlen(program);
    /* Messages of the option parser begin with the program's name already. */
    if (!strncmp(message, program, n) && !strncmp(message + n, ": ", 2)) message += n + 2;
    if (log_format() != LOG_TEXT) {
        log_failure(program, message, e);
        return heddle_err_exit(e->code);
    }
    fprintf(stderr, "%s: %s: %s\n", program, heddle_err_name(e->code), message);
    if (e->expected[0]) fprintf(stderr, "  expected: %s\n", e->expected);
    if (e->found[0]) fprintf(stderr, "  found:    %s\n", e->found);
    if (e->hint[0]) fprintf(stderr, "  hint:     %s\n", e->hint);
    return heddle_err_exit(e->code);
}

int process_end(int end)
{
    if (!fflush(stdout) && !ferror(stdout)) return end;
    if (!end && is_reader_gone()) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    fputs("internal: the answer could not be written to stdout\n  hint:     is its disk full, or the "
          "descriptor closed?\n",
          stderr);
    return end ? end : heddle_err_exit(HEDDLE_ERR_INTERNAL);
}
