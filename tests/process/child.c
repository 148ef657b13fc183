/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/process/child.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void become(const char *const argv[], const char *const env[], pid_t parent, int out, int err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("HEDDLE_BIN_DIR"), argv[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126); /* it died before that */
    for (int i = 0; env && env[i]; i++) {
        char *equals = strchr(env[i], '=');
        if (equals) putenv((char *)(unsigned long)env[i]);
        else unsetenv(env[i]);
    }
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
    dup2(out, 1);
    dup2(err, 2);
    execv(path, (char *const *)(unsigned long)argv);
    dprintf(2, "cannot run %s\n", path);
    _exit(127);
}

void child_start(child_t *c, const char *const argv[], const char *const env[])
{
    int out[2];
    *c = (child_t){0};
    cr_assert_not_null(getenv("HEDDLE_BIN_DIR"), "HEDDLE_BIN_DIR says where the programs are");
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    c->err_fd = memfd_create("stderr", MFD_CLOEXEC);
    pid_t parent = getpid();
    c->pid = fork();
    cr_assert_geq(c->pid, 0);
    if (c->pid == 0) become(argv, env, parent, out[1], c->err_fd);
    close(out[1]);
    c->out_fd = out[0];
    c->pid_fd = (int)syscall(SYS_pidfd_open, c->pid, 0);
    cr_assert_geq(c->pid_fd, 0);
}

static bool wait_for(int fd, long until_ms)
{
    long left = until_ms - now_ms();
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, left > 0 ? (int)left : 0) > 0;
}

bool child_line(child_t *c, char *line, size_t size, int timeout_ms)
{
    long until = now_ms() + timeout_ms;
    for (;;) {
        char *end = memchr(c->out, '\n', c->out_bytes);
        if (end) {
            size_t n = (size_t)(end - c->out);
            snprintf(line, size, "%.*s", (int)n, c->out);
            c->out_bytes -= n + 1;
            memmove(c->out, end + 1, c->out_bytes);
            return true;
        }
        if (c->out_bytes == sizeof c->out || !wait_for(c->out_fd, until)) return false;
        ssize_t n = read(c->out_fd, c->out + c->out_bytes, sizeof c->out - c->out_bytes);
        if (n <= 0) return false;
        c->out_bytes += (size_t)n;
    }
}

void child_signal(const child_t *c, int number) { cr_assert_eq(kill(c->pid, number), 0); }

int child_end(child_t *c, int timeout_ms)
{
    bool ended = wait_for(c->pid_fd, now_ms() + timeout_ms);
    if (!ended) kill(c->pid, SIGKILL);
    int status = 0;
    cr_assert_eq(waitpid(c->pid, &status, 0), c->pid);
    ssize_t n = pread(c->err_fd, c->err, sizeof c->err - 1, 0);
    c->err[n > 0 ? n : 0] = 0;
    close(c->pid_fd);
    close(c->err_fd);
    close(c->out_fd);
    if (!ended) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
