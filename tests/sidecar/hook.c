/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of users: what they get, how their end is told, and that none outlives its deadline. */
#include "core/clock.h"
#include "sidecar/hook.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t now(void) { return clock_now(clock_system()); }
static const heddle_event_t EVENT = {
    .version = 7, .adapter = "policy", .digest = "h1:00", .tag = "policy@7:00"};
static char reason[641];

/* Runs it to its end, with nothing but poll to wait. */
static void run(hook_t *h, const char *command, uint32_t timeout_ms)
{
    cr_assert_eq(hook_start(h, command, &EVENT, "/export/policy@7", timeout_ms, NULL), HEDDLE_OK);
    while (!hook_look(h, now(), reason)) {
        struct pollfd fd = {.fd = h->err_fd, .events = POLLIN};
        poll(&fd, 1, 5);
        if (fd.revents) hook_read(h);
    }
    cr_assert_eq(h->pid, 0);
}

Test(hook, success_says_nothing)
{
    hook_t h;
    run(&h, "true", 10000);
    cr_assert_str_eq(reason, "");
}

Test(hook, failure_tells_status_and_last_words)
{
    hook_t h;
    run(&h, "echo 'no such engine' >&2; echo ' at all' >&2; exit 3", 10000);
    cr_assert_str_eq(reason, "ended with status 3: no such engine  at all");
    run(&h, "exit 4", 10000);
    cr_assert_str_eq(reason, "ended with status 4");
    run(&h, "kill -9 $$", 10000);
    cr_assert_str_eq(reason, "was killed by signal 9");
    run(&h, "/no/such/program", 10000);
    cr_assert_eq(strncmp(reason, "ended with status 127: ", 23), 0);
}

Test(hook, only_the_last_512_bytes_are_kept)
{
    hook_t h;
    run(&h, "i=0; while [ $i -lt 300 ]; do printf 'x%05d ' $i >&2; i=$((i+1)); done; printf END >&2; exit 1",
        30000);
    cr_assert(strstr(reason, "END") && !strstr(reason, "x00200") && strstr(reason, "x00299"));
    cr_assert_leq(strlen(reason), 640);
    cr_assert_eq(h.tail_bytes, HOOK_TAIL_BYTES);
}

Test(hook, version_is_in_the_environment)
{
    hook_t h;
    setenv("HEDDLE_TAG", "stale", 1);
    run(&h,
        "test \"$HEDDLE_ADAPTER $HEDDLE_VERSION $HEDDLE_DIGEST $HEDDLE_TAG $HEDDLE_PATH\" = 'policy 7 "
        "h1:00 policy@7:00 /export/policy@7' || { env >&2; exit 1; }",
        10000);
    cr_assert_str_eq(reason, "");
    run(&h, "test \"$(env | grep -c '^HEDDLE_TAG=')\" = 1 && test -n \"$PATH\"", 10000);
    cr_assert_str_eq(reason, "");
}

Test(hook, nothing_of_ours_is_inherited)
{
    hook_t h;
    int fd = dup(0); /* without CLOEXEC */
    cr_assert_geq(fd, 3);
    char command[64];
    snprintf(command, sizeof command, "test -e /proc/$$/fd/2 && test ! -e /proc/$$/fd/%d", fd);
    run(&h, command, 10000);
    cr_assert_str_eq(reason, "");
    run(&h, "read line && exit 1; exit 0", 10000); /* an empty input */
    cr_assert_str_eq(reason, "");
    close(fd);
}

Test(hook, signals_are_as_a_shell_expects)
{
    hook_t h;
    sigset_t all;
    signal(SIGPIPE, SIG_IGN);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    run(&h, "grep -q '^SigBlk:.0*$' /proc/self/status || exit 1; kill -PIPE $$; exit 2", 10000);
    cr_assert_str_eq(reason, "was killed by signal 13");
}

/* An orphan is a zombie until init reaps it: gone, or dead. */
static bool is_running(int pid)
{
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d %*s %c", &state) != 1) state = 'Z';
    if (f) fclose(f);
    return state != 'Z';
}

Test(hook, command_and_its_children_are_killed_at_the_deadline)
{
    hook_t h;
    char file[] = "/tmp/heddle-hook.XXXXXX", command[300];
    close(mkstemp(file));
    snprintf(command, sizeof command, "echo working >&2; sleep 1000 & echo $! > %s; wait", file);
    uint64_t before = now();
    run(&h, command, 300);
    cr_assert_lt(now() - before, 5000000);
    cr_assert_str_eq(reason, "ran longer than 0.3 s and was killed: working");
    FILE *f = fopen(file, "r");
    int pid = 0;
    cr_assert_eq(fscanf(f, "%d", &pid), 1);
    fclose(f);
    unlink(file);
    while (is_running(pid) && now() - before < 5000000)
        sched_yield(); /* killed it is, and the kernel takes its time */
    cr_assert_not(is_running(pid));
}

Test(hook, a_child_in_the_background_does_not_hold_us_up)
{
    hook_t h;
    uint64_t before = now();
    run(&h, "sleep 5 & exit 0", 20000);
    cr_assert_str_eq(reason, "");
    cr_assert_lt(now() - before, 4000000);
}

/* Whoever looks was busy, or stopped. */
Test(hook, one_that_ended_in_time_may_be_looked_at_late)
{
    hook_t h;
    siginfo_t info;
    cr_assert_eq(hook_start(&h, "exit 0", &EVENT, "", 60000, NULL), HEDDLE_OK);
    cr_assert_eq(waitid(P_PID, (id_t)h.pid, &info, WEXITED | WNOWAIT), 0);
    cr_assert(hook_look(&h, h.deadline_us + 1, reason));
    cr_assert_str_eq(reason, "");
}

Test(hook, kill_ends_it)
{
    hook_t h;
    cr_assert_eq(hook_start(&h, "sleep 1000", &EVENT, "", 60000, NULL), HEDDLE_OK);
    pid_t pid = h.pid;
    hook_kill(&h);
    cr_assert(kill(pid, 0) != 0 && errno == ESRCH);
    hook_kill(&h);
}
