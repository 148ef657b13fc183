/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a command with posix_spawn, and reading its output through a pipe. */
#include "sidecar/hook.h"

#include "core/clock.h"
#include "core/errors.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { VARIABLES = 5 };

static const char *const NAMES[VARIABLES] = {"HEDDLE_ADAPTER", "HEDDLE_VERSION", "HEDDLE_DIGEST",
                                             "HEDDLE_TAG", "HEDDLE_PATH"};

/* Only the first strings are of this program; the others are the process's own. */
static void free_environment(char **env)
{
    for (int i = 0; env && i < VARIABLES; i++) free(env[i]);
    free(env);
}

/* The variables of this program come first, so that free_environment knows which strings to free; then the
 * inherited ones. An inherited variable of the same name would shadow ours in some shells, so it is left
 * out. */
static char **make_environment(const heddle_event_t *event, const char *path)
{
    size_t count = 0, at = VARIABLES;
    while (environ[count]) count++;
    char **env = calloc(count + VARIABLES + 1, sizeof *env);
    if (!env) return NULL;
    char version[32];
    snprintf(version, sizeof version, "%llu", (unsigned long long)event->version);
    const char *values[VARIABLES] = {event->adapter, version, event->digest, event->tag, path};
    for (int i = 0; i < VARIABLES; i++)
        if (asprintf(&env[i], "%s=%s", NAMES[i], values[i]) < 0) {
            env[i] = NULL;
            free_environment(env);
            return NULL;
        }
    for (size_t i = 0; i < count; i++) {
        bool is_ours = false;
        for (int k = 0; k < VARIABLES; k++) {
            size_t n = strlen(NAMES[k]);
            is_ours |= !strncmp(environ[i], NAMES[k], n) && environ[i][n] == '=';
        }
        if (!is_ours) env[at++] = environ[i];
    }
    return env;
}

/* posix_spawn, not fork: other threads of this process may hold locks. The process group lets a kill reach
 * the command's children. Descriptors above standard error are closed, since a child would keep the locks
 * of ours. */
static int spawn(hook_t *h, const char *command, char **env, int err_write)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, err_write, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    char *argv[] = {"sh", "-c", (char *)command, NULL};
    int why = posix_spawn(&h->pid, "/bin/sh", &files, &attr, argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return why;
}

/* Standard error of the command is a pipe: it goes to the log, and its end is the reason of a failure. */
int hook_start(hook_t *h, const char *command, const heddle_event_t *event, const char *path,
               uint32_t timeout_ms, heddle_error_t *error)
{
    int fds[2], why = ENOMEM;
    *h = (hook_t){.err_fd = -1,
                  .timeout_ms = timeout_ms,
                  .deadline_us = clock_now(clock_system()) + timeout_ms * 1000ull};
    if (pipe2(fds, O_CLOEXEC) != 0)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "no pipe for a command: %s", strerror(errno));
    /* This end is read between other work, and must not block it. */
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    char **env = make_environment(event, path);
    if (env) why = spawn(h, command, env, fds[1]);
    free_environment(env);
    close(fds[1]);
    h->err_fd = fds[0];
    if (why == 0) return HEDDLE_OK;
    close(fds[0]);
    *h = (hook_t){.err_fd = -1};
    return error_fail(error, HEDDLE_ERR_INTERNAL, "a command cannot be started: %s", strerror(why));
}

/* Copies output into the worker's log. Each line is marked, so that it cannot pass for one of ours, and
 * control characters are replaced, so that it cannot drive a terminal. */
static void copy_to_log(hook_t *h, const char *text, size_t bytes)
{
    static const char MARK[] = "hook: ";
    char out[4096];
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (n + sizeof MARK > sizeof out) {
            fwrite(out, 1, n, stderr);
            n = 0;
        }
        if (!h->in_line) n += (size_t)snprintf(out + n, sizeof out - n, "%s", MARK);
        h->in_line = c != '\n';
        out[n++] = c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f) ? text[i] : '?';
    }
    fwrite(out, 1, n, stderr);
}

/* Bytes read; 0: nothing now; -1: the end. */
static ssize_t read_some(hook_t *h)
{
    char text[4096];
    if (h->err_fd < 0) return -1;
    ssize_t n = read(h->err_fd, text, sizeof text);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) {
        close(h->err_fd);
        h->err_fd = -1;
        if (h->in_line) putc('\n', stderr);
        h->in_line = false;
        return -1;
    }
    copy_to_log(h, text, (size_t)n);
    /* The last bytes stay, a sliding window: enough for an error message at the end of a long log. */
    size_t bytes = (size_t)n < HOOK_TAIL_BYTES ? (size_t)n : HOOK_TAIL_BYTES;
    size_t keep = h->tail_bytes + bytes > HOOK_TAIL_BYTES ? HOOK_TAIL_BYTES - bytes : h->tail_bytes;
    memmove(h->tail, h->tail + h->tail_bytes - keep, keep);
    memcpy(h->tail + keep, text + n - bytes, bytes);
    h->tail_bytes = keep + bytes;
    h->tail[h->tail_bytes] = 0;
    return n;
}

void hook_read(hook_t *h) { read_some(h); }

/* The whole process group is killed at the time-out, because a shell's children would go on and hold the
 * pipe. True when the command has ended; an empty reason: it went well. */
bool hook_look(hook_t *h, uint64_t now_us, char ret_reason[641])
{
    int status;
    pid_t pid = waitpid(h->pid, &status, WNOHANG);
    if (pid == 0 && !h->timed_out && now_us >= h->deadline_us) {
        h->timed_out = true;
        kill(-h->pid, SIGKILL);
    }
    if (pid == 0) return false;
    /* Read what is left in the pipe, but not to its end: a background child may hold it open for ever. */
    while (read_some(h) > 0) {}
    if (h->err_fd >= 0) close(h->err_fd);
    h->err_fd = -1;
    if (pid < 0) status = 127 << 8;
    /* The reason is one line: it goes into an event and a table. */
    char tail[HOOK_TAIL_BYTES + 1];
    memcpy(tail, h->tail, sizeof tail);
    for (size_t n = strlen(tail); n > 0 && (tail[n - 1] == '\n' || tail[n - 1] == ' '); n--) tail[n - 1] = 0;
    for (char *c = tail; *c; c++)
        if (*c == '\n' || *c == '\t') *c = ' ';
    const char *colon = tail[0] ? ": " : "";
    if (h->timed_out)
        snprintf(ret_reason, 641, "ran longer than %.1f s and was killed%s%s", h->timeout_ms / 1000.0, colon,
                 tail);
    else if (WIFSIGNALED(status))
        snprintf(ret_reason, 641, "was killed by signal %d%s%s", WTERMSIG(status), colon, tail);
    else if (WEXITSTATUS(status))
        snprintf(ret_reason, 641, "ended with status %d%s%s", WEXITSTATUS(status), colon, tail);
    else ret_reason[0] = 0;
    h->pid = 0;
    return true;
}

/* The process is waited for, so that it is no zombie and its pid names nothing else meanwhile. */
void hook_kill(hook_t *h)
{
    if (h->pid) {
        kill(-h->pid, SIGKILL);
        while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR) {}
    }
    if (h->pid && h->err_fd >= 0) close(h->err_fd);
    h->pid = 0;
    h->err_fd = -1;
}
