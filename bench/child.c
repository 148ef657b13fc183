/* SPDX-License-Identifier: Apache-2.0 */
/* Spawning, reading lines with a deadline, and ending processes.
 *
 * One socket is both standard input and standard output of the child: the parent sees in one descriptor that
 * a line came, that the process ended, and it ends the process by closing it. */
#include "bench/child.h"

#include "bench/moment.h"
#include "core/errors.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool is_pinned;
static cpu_set_t ours, theirs;

int child_pin(heddle_error_t *error)
{
    cpu_set_t *const sets[] = {&ours, &theirs};
    cpu_set_t all;
    int found = 0;
    CPU_ZERO(&all);
    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, sets[found++]);
    if (found < 2) return error_fail(error, HEDDLE_ERR_INTERNAL, "--pin needs two CPUs");
    is_pinned = true;
    return sched_setaffinity(0, sizeof ours, &ours) == 0
               ? HEDDLE_OK
               : error_fail(error, HEDDLE_ERR_INTERNAL, "cannot be pinned to a CPU: %s", strerror(errno));
}

int child_start(const char *const *argv, const char *log, child_t *ret_child, heddle_error_t *error)
{
    int ends[2];
    pid_t pid;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "no socket for %s: %s", argv[0], strerror(errno));
    /* The other end is close-on-exec; the copies at 0 and 1 are not, so the child has no third one. */
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (is_pinned) sched_setaffinity(0, sizeof theirs, &theirs); /* inherited */
    int why = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)(uintptr_t)argv, environ);
    if (is_pinned) sched_setaffinity(0, sizeof ours, &ours);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    if (why) {
        close(ends[0]);
        return error_fail(error, why == ENOSPC ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_INTERNAL,
                          "cannot run %s: %s", argv[0], strerror(why));
    }
    *ret_child = (child_t){pid, ends[0]};
    return HEDDLE_OK;
}

static volatile sig_atomic_t is_interrupted;
void child_interrupt(void) { is_interrupted = 1; }

int child_line(const child_t *c, const char *log, int timeout_ms, char *line, size_t size,
               heddle_error_t *error)
{
    uint64_t until = moment_ns() + (uint64_t)timeout_ms * 1000000u;
    /* Byte by byte: what follows the line stays in the socket for the next call, without a buffer here. The
     * lines are few and short, and no time depends on when they are read. */
    for (size_t n = 0; n + 1 < size;) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        int64_t left = (int64_t)(until - moment_ns()) / 1000000;
        /* A signal that came before the poll is in the flag, one that comes in it ends it with EINTR. */
        int rc = is_interrupted ? -1 : left > 0 ? poll(&p, 1, (int)left) : 0;
        if (rc < 0) return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted");
        if (rc == 0)
            return error_fail(error, HEDDLE_ERR_DEADLINE,
                              "a process of the measurement said nothing for %d ms", timeout_ms);
        if (read(c->fd, line + n, 1) != 1) { /* it ended; the end of its log usually says why */
            char text[512] = "";
            int fd = open(log, O_RDONLY | O_CLOEXEC);
            off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
            if (fd >= 0 && pread(fd, text, sizeof text - 1, end > 400 ? end - 400 : 0) < 0) text[0] = 0;
            if (fd >= 0) close(fd);
            return error_fail(error, HEDDLE_ERR_GONE, "a process of the measurement ended: %s",
                              text[0] ? text : "it said nothing");
        }
        line[n] = line[n] == '\n' ? 0 : line[n];
        if (!line[n++]) return HEDDLE_OK;
    }
    return error_fail(error, HEDDLE_ERR_PROTOCOL,
                      "a process of the measurement said a line of more than %zu bytes", size);
}

void child_end(child_t *c)
{
    if (!c->pid) return;
    close(c->fd);
    kill(c->pid, SIGTERM);
    /* The wait ends at SIGCHLD; it is repeated every 10 ms, because the signal may have been for another
     * child. */
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (uint64_t until = moment_ns() + CHILD_END_MS * 1000000ull; waitpid(c->pid, NULL, WNOHANG) == 0;) {
        if (moment_ns() > until) kill(c->pid, SIGKILL);
        /* main blocks SIGCHLD, so one that came before this call is still pending and ends the wait. */
        sigtimedwait(&child, NULL, &(struct timespec){.tv_nsec = 10000000});
    }
    *c = (child_t){0};
}

void child_follow_parent(void)
{
    /* A parent that was killed cannot end its children, and a broker that is left over would disturb the next
     * measurement. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN); /* the parent decides when this ends */
}

void child_beside(const char *program, char *path, size_t size)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash) slash[1] = 0;
    snprintf(path, size, "%s%s", slash ? self : "", program);
}

double child_cpu_s(pid_t pid)
{
    /* For another process that still runs, getrusage has nothing, and the counters in /proc are ticks of
     * 10 ms: too coarse for a process that is idle. */
    clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
    struct timespec t = {0};
    if (pid && clock_getcpuclockid(pid, &clock) != 0) return 0;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
