/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD: TORTURE_ACCEPT="NUMBER:FIRST:LENGTH": from the FIRST connection on LENGTH calls of accept say errno NUMBER,
 * 0: what they would have said; each is told on stderr. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static int refuses(void)
{
    static _Atomic unsigned count;
    const char *text = getenv("TORTURE_ACCEPT");
    int number = 0;
    unsigned first = 0, length = 0;
    if (!text || sscanf(text, "%d:%u:%u", &number, &first, &length) != 3) return 0;
    unsigned n = atomic_fetch_add(&count, 1) + 1;
    if (n < first || n >= first + length) return 0;
    fprintf(stderr, "torture: accept %u says %d\n", n, number);
    return errno = number;
}

int accept4(int fd, struct sockaddr *restrict peer, socklen_t *restrict size, int flags)
{
    static int (*next)(int, struct sockaddr *, socklen_t *, int);
    if (refuses()) return -1;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "accept4");
    return next(fd, peer, size, flags);
}

int accept(int fd, struct sockaddr *restrict peer, socklen_t *restrict size)
{
    static int (*next)(int, struct sockaddr *, socklen_t *);
    if (refuses()) return -1;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "accept");
    return next(fd, peer, size);
}
