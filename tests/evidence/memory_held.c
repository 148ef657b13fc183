/* SPDX-License-Identifier: Apache-2.0 */
/* memory-held [MB]: what a version costs that processes of one host hold, beside a memcpy of the same bytes.
 * For 1, 4 and 16 holders, medians of 21 versions in two regions by turns: begin, seal, and from the announcement
 * until the last holder has looked at the header under its lock (each is woken by a message; its mapping exists).
 * Before that, once: a region made and touched, and handed over, mapped and populated. */
#include "core/clock.h"
#include "memory/handover.h"
#include "memory/hold.h"
#include "memory/region.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REGIONS = 2, MOST_HOLDERS = 16, VERSIONS = 21 };

static memory_region_t *regions[REGIONS];
static char name[32];

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void check(int rc, const heddle_error_t *e)
{
    if (!rc) return;
    fprintf(stderr, "memory-held: %s\n", e->message);
    exit(9);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples)
{
    qsort(samples, VERSIONS, sizeof *samples, compare);
    return samples[VERSIONS / 2];
}

static int find(void *self, const content_id_t *id)
{
    int fd;
    (void)self;
    for (int i = 0; i < REGIONS; i++) {
        content_id_t has = memory_region_content(regions[i]);
        if (!memcmp(has.identity, id->identity, sizeof id->identity) &&
            memory_region_hand_over(regions[i], &fd, NULL) == HEDDLE_OK)
            return fd;
    }
    return -1;
}

/* A holder: for each content that is announced, a hold until the next message; the answer is the time that the
 * hold took by itself. The first of each region is asked for. */
static void be_holder(int orders)
{
    hold_t *holds[REGIONS] = {NULL}, *held = NULL;
    struct {
        int region;
        content_id_t id;
    } order;
    heddle_error_t e;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(orders, &order, sizeof order) == (ssize_t)sizeof order) {
        if (held) hold_release(held);
        double start = now_us();
        hold_t **h = &holds[order.region];
        if (!*h) {
            handover_ask_t *a;
            int rc;
            check(handover_ask(NULL, name, &order.id, CLOCK_NEVER, &a, &e), &e);
            while ((rc = handover_ask_take(a, 0, h, &e)) == HEDDLE_ERR_AGAIN) {
                struct pollfd p = {handover_ask_fd(a), POLLIN, 0};
                (void)poll(&p, 1, -1);
            }
            check(rc, &e);
            handover_ask_destroy(&a);
            check(hold_map(*h, &e), &e);
            while (hold_populate(*h)) {}
        }
        check(hold_take(*h, &order.id, &e), &e);
        held = *h;
        double took = now_us() - start;
        if (write(orders, &took, sizeof took) < 0) break;
    }
    _exit(0);
}

static double announce(const int *holders, int count, int region, handover_t *source, double *ret_slowest)
{
    struct {
        int region;
        content_id_t id;
    } order = {region, memory_region_content(regions[region])};
    double start = now_us(), took;
    *ret_slowest = 0;
    for (int i = 0; i < count; i++)
        if (write(holders[i], &order, sizeof order) < 0) exit(9);
    for (int done = 0; done < count;) {
        struct pollfd p[2] = {{holders[done], POLLIN, 0}, {handover_fd(source), POLLIN, 0}};
        (void)poll(p, 2, -1);
        if (p[1].revents) (void)handover_turn(source, 0);
        if (!(p[0].revents & POLLIN)) continue;
        if (read(holders[done++], &took, sizeof took) < 0) exit(9);
        if (took > *ret_slowest) *ret_slowest = took;
    }
    return now_us() - start;
}

static void measure(int count, const void *bytes, size_t size)
{
    int holders[MOST_HOLDERS], pair[2];
    double begin[VERSIONS], fill[VERSIONS], seal[VERSIONS], all[VERSIONS], own[VERSIONS], first = 0;
    digest_t manifest = {{1}};
    heddle_error_t e;
    handover_t *source;
    snprintf(name, sizeof name, "held-%d", getpid());
    check(handover_listen(NULL, name, find, NULL, &source, &e), &e);
    for (int i = 0; i < count; i++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair)) exit(9);
        pid_t pid = fork();
        if (pid == 0) {
            for (int k = 0; k < i; k++) close(holders[k]);
            close(pair[0]);
            be_holder(pair[1]);
        }
        close(pair[1]);
        holders[i] = pair[0];
    }
    for (int v = -REGIONS; v < VERSIONS; v++) {
        memory_region_t *r = regions[(v + REGIONS) % REGIONS];
        int at = v < 0 ? 0 : v;
        memory_region_drop(r);
        double t0 = now_us();
        check(memory_region_begin(r, &e), &e);
        double t1 = now_us();
        memcpy(r->base, bytes, size);
        double t2 = now_us();
        check(memory_region_seal(r, (uint64_t)(v + 3), &manifest, size, &e), &e);
        double t3 = now_us();
        all[at] = announce(holders, count, (v + REGIONS) % REGIONS, source, &own[at]);
        begin[at] = t1 - t0;
        fill[at] = t2 - t1;
        seal[at] = t3 - t2;
        if (v == -1) first = all[at];
    }
    printf("%2d holders: first handed over, mapped and populated %.1f ms; then begin %.1f us, seal %.1f us, "
           "held by all "
           "%.0f us after the announcement (slowest hold itself %.1f us); memcpy %.2f ms\n",
           count, first / 1e3, median(begin), median(seal), median(all), median(own), median(fill) / 1e3);
    for (int i = 0; i < count; i++) close(holders[i]);
    while (wait(NULL) > 0) {}
    for (int i = 0; i < REGIONS; i++) memory_region_drop(regions[i]);
    handover_destroy(&source);
}

int main(int argc, char **argv)
{
    size_t size = (size_t)(argc > 1 ? atol(argv[1]) : 80) * 1000000;
    heddle_error_t e;
    void *bytes = malloc(size);
    if (!bytes || size == 0) return 2;
    memset(bytes, 7, size);
    double start = now_us();
    for (int i = 0; i < REGIONS; i++) {
        int rc;
        check(memory_region_new(size, &regions[i], &e), &e);
        while ((rc = memory_region_grow(regions[i], &e)) == HEDDLE_ERR_AGAIN) {}
        check(rc, &e);
    }
    printf("%zu bytes: made and touched %.1f ms a region\n", size, (now_us() - start) / 1e3 / REGIONS);
    for (int i = 0; i < REGIONS; i++) memset(regions[i]->base, 1, size);
    measure(1, bytes, size);
    measure(4, bytes, size);
    measure(MOST_HOLDERS, bytes, size);
    start = now_us();
    while (memory_region_guard(regions[0])) {}
    double guarded = now_us() - start;
    start = now_us();
    while (memory_region_unguard(regions[0])) {}
    printf("guard %.1f ms, taken back %.1f ms\n", guarded / 1e3, (now_us() - start) / 1e3);
    start = now_us();
    double worst = 0, step = start;
    while (memory_region_shrink(regions[0])) {
        double now = now_us();
        worst = now - step > worst ? now - step : worst;
        step = now;
    }
    double shrunk = now_us();
    memory_region_destroy(&regions[0]);
    printf("given back in %.1f ms, longest step %.2f ms, then destroyed in %.2f ms\n", (shrunk - start) / 1e3,
           worst / 1e3, (now_us() - shrunk) / 1e3);
    memory_region_destroy(&regions[1]);
    free(bytes);
    return 0;
}
