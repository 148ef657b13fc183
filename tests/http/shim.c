/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD: a disk that is slow, and a clock that is ahead.  HTTP_SHIM names a folder: where it has a file
 * `slow`, the next sync takes 1.2 s and removes it; while it has a file `ahead`, the time of day is four minutes
 * later. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const char *path_of(const char *name, char path[4096])
{
    const char *folder = getenv("HTTP_SHIM");
    snprintf(path, 4096, "%s/%s", folder ? folder : "/nowhere", name);
    return path;
}

static void be_slow(void)
{
    char path[4096];
    if (unlink(path_of("slow", path)) == 0) nanosleep(&(struct timespec){1, 200000000}, NULL);
}

int fdatasync(int fd)
{
    static int (*next)(int);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "fdatasync");
    be_slow();
    return next(fd);
}

int fsync(int fd)
{
    static int (*next)(int);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "fsync");
    be_slow();
    return next(fd);
}

int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    static int (*next)(clockid_t, struct timespec *);
    char path[4096];
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    int rc = next(clock, ret_now);
    if (!rc && clock == CLOCK_REALTIME && access(path_of("ahead", path), F_OK) == 0) ret_now->tv_sec += 240;
    return rc;
}
