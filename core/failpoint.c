/* SPDX-License-Identifier: Apache-2.0 */
#include "core/failpoint.h"

#ifdef HEDDLE_TEST_BUILD
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POINTS_MAX 16
typedef struct {
    char name[64];
    char action[8];
    unsigned nth;
    _Atomic unsigned hits;
} point_t;
static point_t points[POINTS_MAX];
static int point_count;
static int hits_fd = -1; /* opened at the start: some failpoints lie where no descriptor is left */

__attribute__((constructor)) static void read_environment(void)
{
    const char *at = getenv("HEDDLE_FAILPOINTS"), *hits = getenv("HEDDLE_FAILPOINTS_HIT");
    if (hits) hits_fd = open(hits, O_WRONLY | O_APPEND | O_CLOEXEC);
    while (at && *at && point_count < POINTS_MAX) {
        point_t *p = &points[point_count];
        p->nth = 1;
        if (sscanf(at, "%63[^=]=%7[a-z]:%u", p->name, p->action, &p->nth) >= 2) point_count++;
        at = strchr(at, ',');
        if (at) at++;
    }
}

static void tell_hit(const char *name)
{
    char line[72];
    if (hits_fd < 0) return;
    ssize_t n = write(hits_fd, line, (size_t)snprintf(line, sizeof line, "%.63s\n", name));
    (void)n; /* a hit that cannot be written is missed by the test, which fails then */
}

/* ---- for tests in the same process ---- */

#define PASSED_MAX 160
static struct {
    bool is_armed, has_failed;
    char name[64];
    unsigned nth, count;
    struct {
        char name[64];
        unsigned count;
    } passed[PASSED_MAX];
} test;

void failpoint_arm(const char *name, unsigned nth)
{
    memset(&test, 0, sizeof test);
    snprintf(test.name, sizeof test.name, "%s", name);
    test.nth = nth;
    test.is_armed = true;
}

void failpoint_disarm(void) { test.is_armed = false; }
bool failpoint_has_failed(void) { return test.has_failed; }

const char *failpoint_passed(int index, unsigned *ret_count)
{
    if (index >= (int)test.count) return NULL;
    *ret_count = test.passed[index].count;
    return test.passed[index].name;
}

/* Counts every failpoint that is passed, so that a test can fail each of them in turn. */
static bool pass(const char *name)
{
    unsigned i = 0;
    while (i < test.count && strcmp(test.passed[i].name, name) != 0) i++;
    if (i == PASSED_MAX) return false;
    if (i == test.count) snprintf(test.passed[test.count++].name, sizeof test.passed[i].name, "%s", name);
    bool fails = ++test.passed[i].count == test.nth && !strcmp(name, test.name);
    test.has_failed |= fails;
    if (fails) tell_hit(name);
    return fails;
}

bool failpoint_hit_of(const char *place, const char *what)
{
    char name[64];
    if (!test.is_armed && !point_count) return false;
    snprintf(name, sizeof name, "%s.%s", place, what);
    return failpoint_hit(name);
}

bool failpoint_hit(const char *name)
{
    if (test.is_armed) return pass(name);
    for (int i = 0; i < point_count; i++) {
        point_t *p = &points[i];
        if (strcmp(p->name, name) != 0 || atomic_fetch_add(&p->hits, 1) + 1 != p->nth) continue;
        tell_hit(name);
        if (!strcmp(p->action, "kill")) kill(getpid(), SIGKILL);
        if (!strcmp(p->action, "stop")) raise(SIGSTOP); /* this thread stops here, too */
        return !strcmp(p->action, "error");
    }
    return false;
}
#else
typedef int failpoint_is_off;
#endif
