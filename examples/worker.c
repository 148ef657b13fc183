/* SPDX-License-Identifier: Apache-2.0 */
/* worker ADAPTER: a rollout worker with a poll loop of its own, until SIGINT or SIGTERM.  Heddle switches by itself (APPLY_AUTO); the program
 * takes the active version whenever it needs one, and learns of changes through a descriptor beside its others. */
#include <heddle/heddle.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

static int fail(const char *what)
{
    const heddle_error_t *e = heddle_last_error();
    fprintf(stderr, "%s: %s: %s\n", what, heddle_err_name(e->code), e->message);
    if (e->expected[0]) fprintf(stderr, "  expected: %s\n", e->expected);
    if (e->found[0]) fprintf(stderr, "  found: %s\n", e->found);
    if (e->hint[0]) fprintf(stderr, "  hint: %s\n", e->hint);
    return heddle_err_exit(e->code);
}

/* What a rollout does with an adapter: hold it, use it, let go.  The tag goes with every sample. */
static int use(heddle_worker_t *w, const char *adapter)
{
    heddle_snapshot_t *s;
    if (heddle_worker_acquire(w, adapter, 0, &s)) return fail("acquire");
    const heddle_manifest_t *m = heddle_snapshot_manifest(s);
    double sum = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        heddle_tensor_t t = {.size = sizeof t};
        if (heddle_snapshot_tensor(s, i, &t) || t.dtype != HEDDLE_DTYPE_F32) continue;
        sum += *(const float *)t.data;
    }
    printf("serving %s, step %lld, %u tensors, sum of first elements %.2f\n", m->tag, (long long)m->step,
           m->tensor_count, sum);
    fflush(stdout);
    heddle_snapshot_release(&s);
    return 0;
}

/* Before any thread: the library's inherits the mask. */
static int signals(void)
{
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, SIGINT);
    sigaddset(&mine, SIGTERM);
    sigprocmask(SIG_BLOCK, &mine, NULL);
    return signalfd(-1, &mine, SFD_CLOEXEC);
}

int main(int argc, char **argv)
{
    if (argc != 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: %s ADAPTER\n", argv[0]);
        return 2;
    }
    int status = 0, signal_fd = signals();
    heddle_worker_opts_t opts = {.size = sizeof opts, .adapters = (const char *const[]){argv[1], NULL}};
    heddle_worker_t *w;
    if (signal_fd < 0) return 9;
    if (heddle_worker_open(&opts, &w)) return fail("open");
    struct pollfd fds[] = {{.fd = heddle_worker_fd(w), .events = POLLIN},
                           {.fd = signal_fd, .events = POLLIN}};
    while (!status && poll(fds, 2, -1) >= 0 &&
           !fds[1].revents) { /* the library says on stderr when no broker admits this worker */
        heddle_event_t e = {.size = sizeof e};
        while (!status && heddle_worker_next_event(w, 0, &e) == HEDDLE_OK) {
            if (e.type == HEDDLE_EVENT_JOINED) puts("joined"), fflush(stdout);
            if (e.type == HEDDLE_EVENT_REFUSED && !e.retriable) status = fail("refused");
            if (e.type == HEDDLE_EVENT_FAILED) fprintf(stderr, "%s failed: %s\n", e.tag, e.message);
            if (e.type == HEDDLE_EVENT_ACTIVE) status = use(w, e.adapter);
        }
    }
    heddle_worker_close(&w);
    close(signal_fd);
    return status;
}
