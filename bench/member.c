/* SPDX-License-Identifier: Apache-2.0 */
/* The worker of a measurement, and the table of roles.
 *
 * A worker uses the library as an engine does: one thread that waits for its descriptor and takes events.
 * Each clock reading is taken as soon as the event is there, before a line is formatted. */
#include "bench/member.h"

#include "bench/child.h"
#include "bench/moment.h"
#include "bench/socket.h"
#include "bench/tap.h"

#include <errno.h>
#include <heddle/heddle.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef struct {
    heddle_worker_t *worker;
    bool is_app;
} bench_member_t;

/* Its parent puts the end of the log into its own error. */
static int fail(const char *what)
{
    const heddle_error_t *e = heddle_last_error();
    fprintf(stderr, "heddle-bench: %s: %s: %s\n", what, heddle_err_name(e->code), e->message);
    return heddle_err_exit(e->code);
}

/* With "auto" the library stages and switches, and its events are reported. With "app" both are done and
 * timed here, so that the time of the switching call itself is known. */
static int on_event(const bench_member_t *m, const heddle_event_t *e)
{
    uint64_t start = moment_ns();
    switch (e->type) {
    case HEDDLE_EVENT_JOINED: {
        char *transport = NULL;
        if (heddle_worker_transport(m->worker, &transport)) return fail("transport");
        printf("joined %s\n", transport);
        heddle_free(transport);
        break;
    }
    case HEDDLE_EVENT_RETIRED: printf("retired %" PRIu64 "\n", e->version); break;
    case HEDDLE_EVENT_ARRIVED:
        if (heddle_worker_staged(m->worker, e->adapter, e->version)) return fail("staged");
        printf("staged %" PRIu64 " %" PRIu64 "\n", e->version, moment_ns());
        break;
    case HEDDLE_EVENT_STAGED: printf("staged %" PRIu64 " %" PRIu64 "\n", e->version, start); break;
    case HEDDLE_EVENT_COMMIT:
        if (heddle_worker_activate(m->worker, e->adapter, e->version)) return fail("activate");
        uint64_t end = moment_ns();
        printf("active %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", e->version, end, end - start);
        break;
    case HEDDLE_EVENT_ACTIVE:
        if (!m->is_app) printf("active %" PRIu64 " %" PRIu64 " 0\n", e->version, start);
        break;
    /* Goes on: the publisher hears of it through the broker, and this line is for the log. */
    case HEDDLE_EVENT_FAILED:
    case HEDDLE_EVENT_REFUSED:
        fprintf(stderr, "heddle-bench: worker: %s: %s\n", heddle_err_name(e->code), e->message);
        break;
    default: break;
    }
    return HEDDLE_OK;
}

/* Until stdin ends, with which the parent asks for the byte counts. Lines are flushed once a turn: the parent
 * reads the times in them, not their arrival. */
static int serve(const bench_member_t *m)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = heddle_worker_fd(m->worker), .events = POLLIN}};
    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return 9;
        heddle_event_t e = {.size = sizeof e};
        while (heddle_worker_next_event(m->worker, 0, &e) == HEDDLE_OK)
            if (on_event(m, &e)) return 9;
        char asked[MEMBER_LINE];
        if (fds[0].revents) {
            ssize_t n = read(STDIN_FILENO, asked, sizeof asked);
            if (n <= 0) return 0;
            char *json = NULL;
            if (heddle_worker_stats(m->worker, &json)) return fail("stats"), 9;
            const char *in = strstr(json, "\"bytes_in\":"), *out = strstr(json, "\"bytes_out\":");
            printf("counted %s %s\n", in ? strtok(strdupa(in + 11), ",} ") : "0",
                   out ? strtok(strdupa(out + 12), ",} ") : "0");
            heddle_free(json);
        }
        fflush(stdout);
    }
}

static int be_worker(int argc, char **argv)
{
    if (argc != 5) return 2;
    static const char *const ADAPTERS[] = {MEMBER_ADAPTER, NULL};
    bench_member_t m = {.is_app = !strcmp(argv[3], "app")};
    heddle_worker_opts_t opts = {.size = sizeof opts,
                                 .broker = argv[0],
                                 .broker_key = argv[1][0] ? argv[1] : NULL,
                                 .name = argv[2],
                                 .adapters = ADAPTERS,
                                 .own_memory = !strcmp(argv[4], "own"),
                                 .apply = m.is_app ? HEDDLE_APPLY_APP : HEDDLE_APPLY_AUTO};
    if (heddle_worker_open(&opts, &m.worker)) return fail("worker");
    int end = serve(&m);
    heddle_worker_close(&m.worker);
    return end;
}

/* Between the parent and a program of another kind, so that child_follow_parent counts for that one too. */
static int be_program(int argc, char **argv)
{
    if (argc < 1) return 2;
    execvp(argv[0], argv);
    fprintf(stderr, "heddle-bench: cannot run %s: %s\n", argv[0], strerror(errno));
    return 127;
}

int member_main(int argc, char **argv)
{
    static const struct {
        const char *role;
        int (*run)(int argc, char **argv);
    } ROLES[] = {{"program", be_program},
                 {"worker", be_worker},
                 {"receiver", socket_receiver},
                 {"tap", tap_main}};
    child_follow_parent();
    prctl(PR_SET_NAME, argc > 2 ? argv[2] : ""); /* for ps, top and perf */
    for (size_t i = 0; argc > 2 && i < sizeof ROLES / sizeof *ROLES; i++)
        if (!strcmp(argv[2], ROLES[i].role)) return ROLES[i].run(argc - 3, argv + 3);
    return 2;
}
