/* SPDX-License-Identifier: Apache-2.0 */
#include "core/failpoint.h"

#ifdef HEDDLE_TEST_BUILD
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POINTS_MAX 16
typedef struct { char name[64]; char action[8]; unsigned nth; _Atomic unsigned hits; } point_t;
static point_t points[POINTS_MAX];
static int point_count;

__attribute__((constructor)) static void read_environment(void)
{
    const char *at = getenv("HEDDLE_FAILPOINTS");
    while (at && *at && point_count < POINTS_MAX) {
        point_t *p = &points[point_count];
        p->nth = 1;
        if (sscanf(at, "%63[^=]=%7[a-z]:%u", p->name, p->action, &p->nth) >= 2) point_count++;
        at = strchr(at, ',');
        if (at) at++;
    }
}

bool failpoint_hit(const char *name)
{
    for (int i = 0; i < point_count; i++) {
        point_t *p = &points[i];
        if (strcmp(p->name, name) != 0 || atomic_fetch_add(&p->hits, 1) + 1 != p->nth) continue;
        if (!strcmp(p->action, "kill")) kill(getpid(), SIGKILL);
        if (!strcmp(p->action, "stop")) kill(getpid(), SIGSTOP);
        return !strcmp(p->action, "error");
    }
    return false;
}
#else
typedef int failpoint_is_off;
#endif
