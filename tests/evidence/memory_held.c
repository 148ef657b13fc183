/* SPDX-License-Identifier: Apache-2.0 */
/* memory-held [MB [VERSIONS]]: what a version costs that processes of one host hold, beside a memcpy of the same
 * bytes in the same run. A publisher writes versions into its pool of regions in turn, and announces each to 1,
 * 4 and 16 holders, each a process that is woken by a message. For each number of holders a row of medians:
 *
 *   begin, fill, seal   the publisher has a region, has copied and digested the bytes, has sealed it
 *   held                from the announcement until the last holder has its hold
 *   usable              from the announcement until the last holder may use it: one of them has digested it
 *   all                 from begin to usable, and as a multiple of the memcpy
 *
 * `cold`: regions that no holder has mapped: asked for, mapped and populated. `first`: the first version in a
 * region that was offered and mapped in advance. `warm`: regions that were used before. Fill and verification run
 * on two threads where there are two cores. */
#include "core/clock.h"
#include "core/crew.h"
#include "core/digest.h"
#include "core/errors.h"
#include "memory/mappings.h"
#include "memory/offer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_HOLDERS = 16, MOST_VERSIONS = 201, PIECES = 64 };

static size_t size;
static uint8_t *bytes;
static uint64_t *leaves;
static crew_t *crew;
static char name[32];

static uint64_t now_us(void) { return clock_now(clock_system()); }

static void check(int rc, const heddle_error_t *e)
{
    if (!rc) return;
    fprintf(stderr, "memory-held: %s\n", rc == HEDDLE_ERR_AGAIN ? "it did not come" : e->message);
    exit(9);
}

/* ---- work on the bytes ---- */

typedef struct {
    void *to; /* NULL: digest alone */
    const void *from;
} work_t;

static void piece(void *work, uint32_t i)
{
    const work_t *w = work;
    size_t pages = (size + 4095) / 4096, from = pages * i / PIECES * 4096,
           to = pages * (i + 1) / PIECES * 4096;
    if (to > size) to = size;
    if (w->to)
        digest_copy((uint8_t *)w->to + from, (const uint8_t *)w->from + from, to - from,
                    leaves + from / 4096);
    else digest_leaves((const uint8_t *)w->from + from, to - from, leaves + from / 4096);
}

static void do_work(void *to, const void *from)
{
    work_t work = {to, from};
    if (!crew && crew_cores() > 1) crew = crew_new(1);
    crew_do(crew, PIECES, piece, &work);
}

/* ---- a holder ---- */

typedef struct {
    content_id_t id;
    bool is_cold;
} announcement_t;
typedef struct {
    bool is_usable; /* else held */
    long faults;    /* of pages, since the announcement */
} report_t;

static struct {
    mappings_t *m;
    claim_t claim;
    hold_t *hold;
    int orders;
    long faults;
} self;

static long count_faults(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_minflt + usage.ru_majflt;
}

static void report(bool is_usable)
{
    report_t r = {is_usable, count_faults() - self.faults};
    if (write(self.orders, &r, sizeof r) != (ssize_t)sizeof r) _exit(9);
}

static void hear(void *none, const char *source, note_t note, const content_id_t *id)
{
    claim_state_t was = self.claim.state;
    (void)none;
    if (note == NOTE_GONE) _exit(0);
    if (!claim_receive(&self.claim, note, id) || was == self.claim.state) return;
    if (self.claim.state == CLAIM_VERIFYING) {
        do_work(NULL, self.hold->base);
        (void)claim_found(&self.claim, true, &note);
        if (mappings_tell(self.m, source, note, id, NULL)) _exit(9);
    }
    report(true);
}

/* The hold before ends with the next announcement, as a worker's does when it has switched. */
static void hold(const announcement_t *a)
{
    heddle_error_t e;
    int rc;
    if (self.hold) mappings_give(self.m, &self.hold);
    self.faults = count_faults();
    while ((rc = mappings_take(self.m, name, &a->id, now_us(), &self.hold, &e)) == HEDDLE_ERR_AGAIN) {
        struct pollfd p = {mappings_fd(self.m), POLLIN, 0};
        (void)poll(&p, 1, 1000);
        (void)mappings_turn(self.m, now_us());
    }
    check(rc, &e);
    for (bool more = a->is_cold; more;) more = hold_populate(self.hold);
    report(false);
    claim_begin(&self.claim, &a->id, size, false, now_us());
    check(mappings_tell(self.m, name, NOTE_HELD, &a->id, &e), &e);
}

static _Noreturn void be_holder(int orders)
{
    announcement_t a;
    heddle_error_t e;
    crew = NULL; /* the publisher's */
    self.orders = orders;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check(mappings_new(NULL, hear, NULL, &self.m, &e), &e);
    check(mappings_watch(self.m, name, now_us(), &e), &e);
    for (;;) {
        uint64_t due_us = mappings_turn(self.m, now_us()), now = now_us();
        struct pollfd p[2] = {{orders, POLLIN, 0}, {mappings_fd(self.m), POLLIN, 0}};
        (void)poll(p, 2, due_us == CLOCK_NEVER ? -1 : due_us <= now ? 0 : (int)((due_us - now) / 1000 + 1));
        if (!p[0].revents) continue;
        if (read(orders, &a, sizeof a) != (ssize_t)sizeof a) _exit(0);
        hold(&a);
    }
}

/* ---- the publisher ---- */

static offer_t *offer;
static pool_t *pool;

/* In the background, as client/regions.h does it between versions: regions are made, offered, and mapped by
 * all. */
static void rest(uint64_t for_us)
{
    uint64_t end_us = now_us() + for_us;
    while (now_us() < end_us) {
        struct pollfd p = {offer_fd(offer), POLLIN, 0};
        bool has_more = pool_work(pool, now_us()) <= now_us();
        has_more |= offer_turn(offer, now_us()) <= now_us();
        (void)poll(&p, 1, has_more ? 0 : 1);
    }
}

typedef struct {
    double begin, fill, seal, held, usable, all;
    double faults; /* of the holders, all together */
} times_t;

/* Until all have reported twice: held, usable. */
static void wait_for(const int *holders, int count, uint64_t start_us, times_t *t)
{
    int held = 0, usable = 0;
    struct pollfd p[MOST_HOLDERS + 1];
    while (usable < count) {
        for (int i = 0; i < count; i++) p[i] = (struct pollfd){holders[i], POLLIN, 0};
        p[count] = (struct pollfd){offer_fd(offer), POLLIN, 0};
        if (poll(p, (nfds_t)count + 1, 10000) <= 0) check(HEDDLE_ERR_AGAIN, NULL);
        (void)offer_turn(offer, now_us());
        for (int i = 0; i < count; i++) {
            report_t r;
            if (!p[i].revents) continue;
            if (read(holders[i], &r, sizeof r) != (ssize_t)sizeof r) exit(9);
            if (r.is_usable) t->faults += (double)r.faults;
            if (r.is_usable) usable++;
            else if (++held == count) t->held = (double)(now_us() - start_us) / 1e3;
        }
    }
    t->usable = (double)(now_us() - start_us) / 1e3;
}

static times_t publish(const int *holders, int count, uint64_t version, bool is_cold, memory_region_t **last)
{
    times_t t = {0};
    heddle_error_t e;
    memory_region_t *r;
    digest_t manifest = {{(uint8_t)version, 1}};
    int rc;
    uint64_t t0 = now_us();
    while ((rc = pool_take(pool, &offer, size, &r, &e)) == HEDDLE_ERR_AGAIN) {}
    check(rc, &e);
    uint64_t t1 = now_us();
    do_work(r->base, bytes);
    uint64_t t2 = now_us();
    check(memory_region_seal(r, &manifest, size, &e), &e);
    announcement_t a = {memory_region_content(r), is_cold};
    check(offer_add(offer, &(offer_content_t){.id = a.id, .bytes = size}, &e), &e);
    uint64_t t3 = now_us();
    for (int i = 0; i < count; i++)
        if (write(holders[i], &a, sizeof a) != (ssize_t)sizeof a) exit(9);
    wait_for(holders, count, t3, &t);
    t.begin = (double)(t1 - t0) / 1e3;
    t.fill = (double)(t2 - t1) / 1e3;
    t.seal = (double)(t3 - t2) / 1e3;
    t.all = (double)(t3 - t0) / 1e3 + t.usable;
    if (*last) {
        content_id_t old = memory_region_content(*last);
        offer_remove(offer, &old);
        pool_drop(pool, *last);
    }
    *last = r;
    return t;
}

/* ---- figures ---- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const times_t *samples, int count, size_t field)
{
    double values[MOST_VERSIONS];
    for (int i = 0; i < count; i++) memcpy(&values[i], (const uint8_t *)&samples[i] + field, sizeof *values);
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}
#define MEDIAN(field) median(samples, n, offsetof(times_t, field))

static void print(const char *what, int holders, const times_t *samples, int n, double memcpy_ms)
{
    printf("%-5s %2d holders: begin %5.2f  fill %6.2f  seal %5.2f  held %7.2f  usable %7.2f  all %7.2f ms, "
           "%5.2f x memcpy; %.0f page faults\n",
           what, holders, MEDIAN(begin), MEDIAN(fill), MEDIAN(seal), MEDIAN(held), MEDIAN(usable),
           MEDIAN(all), MEDIAN(all) / memcpy_ms, MEDIAN(faults));
}

static double memcpy_ms(void)
{
    times_t samples[11];
    enum { n = 11 };
    uint8_t *to = malloc(size);
    if (!to) exit(9);
    memset(to, 1, size);
    for (int i = 0; i < n; i++) {
        uint64_t start_us = now_us();
        memcpy(to, bytes, size);
        __asm__ volatile("" : : "r"(to) : "memory");
        samples[i].all = (double)(now_us() - start_us) / 1e3;
    }
    free(to);
    return MEDIAN(all);
}

static void start(int *holders, int count)
{
    heddle_error_t e;
    int pair[2];
    const char *guard = getenv("HEDDLE_GUARD");
    pool_opts_t of_pool = {.most = 16, .is_guarded = !guard || strcmp(guard, "0") != 0};
    snprintf(name, sizeof name, "held-%d", getpid());
    check(pool_new(&of_pool, &pool, &e), &e);
    offer_opts_t opts = {.name = name, .pool = pool};
    check(offer_new(&opts, &offer, &e), &e);
    for (int i = 0; i < count; i++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) exit(9);
        pid_t pid = fork();
        if (pid == 0) {
            for (int k = 0; k < i; k++) close(holders[k]);
            close(pair[0]);
            be_holder(pair[1]);
        }
        close(pair[1]);
        holders[i] = pair[0];
    }
}

static void measure(int count, int versions)
{
    int holders[MOST_HOLDERS];
    times_t samples[MOST_VERSIONS], one;
    memory_region_t *last = NULL;
    double reference = memcpy_ms();
    start(holders, count);
    one = publish(holders, count, 1, true, &last); /* nothing is offered yet, so nothing is mapped */
    print("cold", count, &one, 1, reference);
    rest(300000 + size / 1000 * 3);
    one = publish(holders, count, 2, false, &last);
    print("first", count, &one, 1, reference);
    for (int i = -4; i < versions; i++) {
        rest(20000);
        one = publish(holders, count, (uint64_t)i + 10, false, &last);
        if (i >= 0) samples[i] = one;
    }
    print("warm", count, samples, versions, (reference + memcpy_ms()) / 2);
    for (int i = 0; i < count; i++) close(holders[i]);
    while (wait(NULL) > 0) {}
    offer_destroy(&offer);
    pool_destroy(&pool);
}

int main(int argc, char **argv)
{
    long megabytes = argc > 1 ? atol(argv[1]) : 80, versions = argc > 2 ? atol(argv[2]) : 21;
    if (megabytes < 1 || versions < 1 || versions > MOST_VERSIONS) return 2;
    size = (size_t)megabytes * 1000000;
    bytes = malloc(size);
    leaves = malloc((size / 4096 + 1) * sizeof *leaves);
    if (!bytes || !leaves) return 2;
    memset(bytes, 7, size);
    memset(leaves, 0, (size / 4096 + 1) * sizeof *leaves);
    printf("%zu bytes, memcpy %.2f ms, %u cores, %ld versions\n", size, memcpy_ms(), crew_cores(), versions);
    measure(1, (int)versions);
    measure(4, (int)versions);
    measure(MOST_HOLDERS, (int)versions);
    crew_end(&crew);
    free(bytes);
    free(leaves);
    return 0;
}
