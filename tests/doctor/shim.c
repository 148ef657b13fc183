/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD, for what no namespace can make: DOCTOR_UCX=1.99: UCX says that it is of this version;
 * DOCTOR_AHEAD_S=3600: the time of day is so much later; DOCTOR_ADDRESS=255: the address of the data plane has
 * this in each byte. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *of_ucx(const char *name)
{
    void *ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    return ucp ? dlsym(ucp, name) : NULL;
}

void ucp_get_version(unsigned *ret_major, unsigned *ret_minor, unsigned *ret_release)
{
    const char *given = getenv("DOCTOR_UCX");
    static void (*next)(unsigned *, unsigned *, unsigned *);
    *ret_release = 0;
    if (given && sscanf(given, "%u.%u", ret_major, ret_minor) == 2) return;
    if (!next) *(void **)&next = of_ucx("ucp_get_version");
    if (next) next(ret_major, ret_minor, ret_release);
}

int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    static int (*next)(clockid_t, struct timespec *);
    const char *ahead = getenv("DOCTOR_AHEAD_S");
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    int rc = next(clock, ret_now);
    if (!rc && clock == CLOCK_REALTIME && ahead) ret_now->tv_sec += atol(ahead);
    return rc;
}

signed char ucp_worker_get_address(void *worker, void **ret_address, size_t *ret_bytes)
{
    static signed char (*next)(void *, void **, size_t *);
    const char *given = getenv("DOCTOR_ADDRESS");
    if (!next) *(void **)&next = of_ucx("ucp_worker_get_address");
    signed char status = next(worker, ret_address, ret_bytes);
    if (!status && given) memset(*ret_address, atoi(given), *ret_bytes);
    return status;
}
