/* SPDX-License-Identifier: Apache-2.0 */
/* transfer_pair [BYTES [CHUNK [WINDOW [ROUNDS [eager|rendezvous]]]]]: one source process, one receiver, UCX
 * on loopback. Prints the best and the median round in GB/s and the CPU seconds that a GB costs on either
 * side. */
#include "tests/contract/region_new.h"
#include "tests/contract/ask.h"
#include "transfer/transfer.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOURCE_TOKEN 1u
#define RECEIVER_TOKEN 2u
#define ROUNDS_MAX 1000

typedef struct {
    uint64_t bytes, window;
    uint32_t chunk, rounds;
    tr_mode_t mode;
} plan_t;
typedef struct {
    const transfer_ops_t *ops;
    transfer_t *t;
    region_t *region;
} end_t;

static const share_key_t KEY = {{'p', 'a', 'i', 'r'}};

static const char *const MODES[] = {[TR_MODE_EAGER] = "eager", [TR_MODE_RENDEZVOUS] = "rendezvous"};

static void die(const char *what, const heddle_error_t *e)
{
    fprintf(stderr, "transfer_pair: %s%s%s\n", what, e ? ": " : "", e ? e->message : "");
    exit(1);
}

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static end_t open_end(const plan_t *plan, uint64_t token)
{
    end_t e = {0};
    heddle_error_t error;
    if (transfer_ucx_load(NULL, &e.ops, &error) != HEDDLE_OK) die("load", &error);
    transfer_opts_t opts = {.mode = plan->mode};
    if (e.ops->open(&opts, &e.t, &error) != HEDDLE_OK) die("open", &error);
    if (region_new(plan->bytes, &e.region, &error) != HEDDLE_OK) die("region", &error);
    e.ops->set_token(e.t, token);
    if (e.ops->map(e.t, e.region) != HEDDLE_OK) die("map", NULL);
    return e;
}

static void close_end(end_t *e)
{
    e->ops->unmap(e->t, e->region);
    e->ops->close(&e->t);
    region_unref(&e->region);
}

static int turn(end_t *e, tr_event_t *out, int cap, int extra_fd)
{
    int n = e->ops->events(e->t, clock_now(clock_system()), out, cap);
    if (n > 0 || !e->ops->arm(e->t)) return n;
    struct pollfd fds[2] = {{.fd = e->ops->fd(e->t), .events = POLLIN}, {.fd = extra_fd, .events = POLLIN}};
    poll(fds, 2, 100);
    return fds[1].revents ? -1 : 0;
}

static void run_source(const plan_t *plan, int line)
{
    end_t e = open_end(plan, SOURCE_TOKEN);
    uint8_t *at = e.region->base;
    for (uint64_t i = 0; i < plan->bytes; i++) at[i] = (uint8_t)(i * 2654435761u >> 13);
    e.ops->share(e.t, e.region, KEY);
    e.ops->extend(e.t, KEY, 0, plan->bytes);
    bytes_t address;
    e.ops->address(e.t, &address);
    if (write(line, address.data, address.bytes) != (ssize_t)address.bytes) die("address", NULL);
    tr_event_t events[64];
    while (turn(&e, events, 64, line) >= 0) continue;
    double cpu = cpu_seconds();
    if (write(line, &cpu, sizeof cpu) != sizeof cpu) die("report", NULL);
    close_end(&e);
}

static void ask_chunk(end_t *e, const plan_t *plan, const peer_ref_t *from, uint64_t chunk)
{
    uint64_t at = chunk * plan->chunk, left = plan->bytes - at, id;
    uint32_t bytes = left < plan->chunk ? (uint32_t)left : plan->chunk;
    if (ask_into(e->ops, e->t, from, KEY, at, bytes, e->region, at, &id) != HEDDLE_OK) die("ask", NULL);
}

/* Returns the seconds it took. */
static double fetch(end_t *e, const plan_t *plan, const peer_ref_t *from)
{
    uint64_t count = (plan->bytes + plan->chunk - 1) / plan->chunk, window = plan->window / plan->chunk;
    uint64_t asked = 0, arrived = 0, begun = clock_now(clock_system());
    tr_event_t events[64];
    while (arrived < count) {
        while (asked < count && (asked == arrived || asked - arrived < window))
            ask_chunk(e, plan, from, asked++);
        int n = turn(e, events, 64, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].kind == TR_ARRIVED) arrived++;
            else if (events[i].kind != TR_BEAT) die("the source refused or went", NULL);
        }
    }
    return 1e-6 * (double)(clock_now(clock_system()) - begun);
}

static void check(const end_t *e, const plan_t *plan)
{
    const uint8_t *at = e->region->base;
    for (uint64_t i = 0; i < plan->bytes; i++)
        if (at[i] != (uint8_t)(i * 2654435761u >> 13)) die("a byte differs", NULL);
}

static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

static void run_receiver(const plan_t *plan, int line)
{
    static double seconds[ROUNDS_MAX];
    end_t e = open_end(plan, RECEIVER_TOKEN);
    uint8_t address[1024];
    ssize_t n = read(line, address, sizeof address);
    if (n <= 0) die("no address", NULL);
    peer_ref_t from = {SOURCE_TOKEN, bytes_of(address, (size_t)n)};
    fetch(&e, plan, &from);
    check(&e, plan);
    double before = cpu_seconds();
    for (uint32_t i = 0; i < plan->rounds; i++) seconds[i] = fetch(&e, plan, &from);
    double receiver = cpu_seconds() - before, source;
    shutdown(line, SHUT_WR);
    if (read(line, &source, sizeof source) != sizeof source) die("no report", NULL);
    qsort(seconds, plan->rounds, sizeof *seconds, by_size);
    double gb = 1e-9 * (double)plan->bytes, all = gb * plan->rounds;
    printf("%llu bytes, chunk %u, window %llu, %s, UCX %s: best %.2f GB/s, median %.2f GB/s; CPU-s per GB: "
           "receiver %.2f, source %.2f\n",
           (unsigned long long)plan->bytes, plan->chunk, (unsigned long long)plan->window, MODES[plan->mode],
           e.ops->version(), gb / seconds[0], gb / seconds[plan->rounds / 2], receiver / all,
           source / (all + gb));
    close_end(&e);
}

int main(int argc, char **argv)
{
    plan_t plan = {.bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 17600000,
                   .chunk = argc > 2 ? (uint32_t)atoi(argv[2]) : 65536,
                   .window = argc > 3 ? strtoull(argv[3], NULL, 10) : 2u << 20,
                   .rounds = argc > 4 ? (uint32_t)atoi(argv[4]) : 20,
                   .mode = argc > 5 && !strcmp(argv[5], MODES[TR_MODE_RENDEZVOUS])};
    if (plan.bytes == 0 || plan.chunk == 0 || plan.rounds == 0 || plan.rounds > ROUNDS_MAX)
        die("bad arguments", NULL);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) die("socketpair", NULL);
    pid_t child = fork(); /* before UCX: its threads do not survive a fork */
    if (child == 0) {
        close(pair[0]);
        run_source(&plan, pair[1]);
        return 0;
    }
    close(pair[1]);
    run_receiver(&plan, pair[0]);
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
