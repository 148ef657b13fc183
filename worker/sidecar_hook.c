/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/sidecar.h"

#include "core/clock.h"
#include "core/errors.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { VARIABLES = 5, TAIL_BYTES = 512, SLICE_MS = 100 };
typedef struct { char text[TAIL_BYTES]; size_t bytes; } tail_t;   /* the end of what the hook said */

static void tail_add(tail_t *t, const char *data, size_t bytes)
{
    if (bytes >= TAIL_BYTES) {
        memcpy(t->text, data + bytes - TAIL_BYTES, TAIL_BYTES);
        t->bytes = TAIL_BYTES;
        return;
    }
    size_t keep = t->bytes + bytes > TAIL_BYTES ? TAIL_BYTES - bytes : t->bytes;
    memmove(t->text, t->text + t->bytes - keep, keep);
    memcpy(t->text + keep, data, bytes);
    t->bytes = keep + bytes;
}

/* What there is on the pipe goes to our stderr too.  False at its end. */
static bool drain(int fd, tail_t *t)
{
    char data[4096];
    for (;;) {
        ssize_t n = read(fd, data, sizeof data);
        if (n == 0) return false;
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        tail_add(t, data, (size_t)n);
        ssize_t said = write(STDERR_FILENO, data, (size_t)n);
        (void)said;
    }
}

/* The environment plus five; texts[] holds those. */
static char **environment(const hook_t *h, char texts[VARIABLES][4224])
{
    size_t n = 0, k = 0;
    while (environ[n]) n++;
    char **env = calloc(n + VARIABLES + 1, sizeof *env);
    if (!env) return NULL;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "HEDDLE_", 7) != 0) env[k++] = environ[i];
    snprintf(texts[0], sizeof texts[0], "HEDDLE_ADAPTER=%s", h->event->adapter);
    snprintf(texts[1], sizeof texts[1], "HEDDLE_VERSION=%llu", (unsigned long long)h->event->version);
    snprintf(texts[2], sizeof texts[2], "HEDDLE_DIGEST=%s", h->event->digest);
    snprintf(texts[3], sizeof texts[3], "HEDDLE_TAG=%s", h->event->tag);
    snprintf(texts[4], sizeof texts[4], "HEDDLE_PATH=%s", h->path);
    for (int i = 0; i < VARIABLES; i++) env[k++] = texts[i];
    return env;
}

static int spawn(const hook_t *h, int say_fd, pid_t *ret_pid)
{
    char texts[VARIABLES][4224];
    char **env = environment(h, texts);
    if (!env) return ENOMEM;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&how);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO); /* stdout is for our own lines */
    posix_spawn_file_actions_adddup2(&files, say_fd, STDERR_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, 3); /* UCX's descriptors are not close-on-exec */
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, (char *)(uintptr_t)h->command, NULL};
    int err = posix_spawn(ret_pid, "/bin/sh", &files, &how, argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&how);
    free(env);
    return err;
}

/* Until the hook ends, its time is over, or we are told to stop.  True when it ended by itself. */
static bool watch(const hook_t *h, int pid_fd, int pipe_fd, tail_t *t)
{
    uint64_t end_us = clock_now(clock_system()) + (uint64_t)h->timeout_ms * 1000;
    struct pollfd fds[2] = {{.fd = pid_fd, .events = POLLIN}, {.fd = pipe_fd, .events = POLLIN}};
    for (;;) {
        uint64_t now = clock_now(clock_system());
        if (now >= end_us || (h->stop && *h->stop)) return false;
        uint64_t left_ms = (end_us - now) / 1000 + 1;
        poll(fds, 2, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS); /* a signal between the check and the poll is seen a slice later */
        if (fds[1].revents && !drain(pipe_fd, t)) fds[1].fd = -1;
        if (fds[0].revents) return true;
    }
}

static void explain(int status, const tail_t *t, char ret_reason[768])
{
    int n = WIFEXITED(status) ? snprintf(ret_reason, 768, "hook ended with exit status %d", WEXITSTATUS(status))
                              : snprintf(ret_reason, 768, "hook was ended by signal %d", WTERMSIG(status));
    if (t->bytes) snprintf(ret_reason + n, 768 - (size_t)n, ": %.*s", (int)t->bytes, t->text);
    for (char *p = ret_reason; *p; p++)
        if (*p == '\n') *p = ' ';
}

int hook_run(const hook_t *h, char ret_reason[768])
{
    int pipes[2], status = 0;
    pid_t pid;
    tail_t tail = {.bytes = 0};
    if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK) != 0) {
        snprintf(ret_reason, 768, "hook could not be started: %s", strerror(errno));
        return HEDDLE_ERR_INTERNAL;
    }
    int err = spawn(h, pipes[1], &pid);
    close(pipes[1]);
    if (err) {
        close(pipes[0]);
        snprintf(ret_reason, 768, "hook could not be started: %s", strerror(err));
        return HEDDLE_ERR_INTERNAL;
    }
    int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool ended = pid_fd >= 0 && watch(h, pid_fd, pipes[0], &tail);
    if (!ended) kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    drain(pipes[0], &tail);
    close(pipes[0]);
    if (pid_fd >= 0) close(pid_fd);
    if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0) return HEDDLE_OK;
    if (ended) explain(status, &tail, ret_reason);
    else if (h->stop && *h->stop) return HEDDLE_ERR_INTERRUPTED;
    else snprintf(ret_reason, 768, "hook did not end within %u ms and was killed", h->timeout_ms);
    return ended ? HEDDLE_ERR_VERSION_FAILED : HEDDLE_ERR_DEADLINE;
}
