/* SPDX-License-Identifier: Apache-2.0 */
#include "core/descriptors.h"

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TRIED_MAX = 64 };

uint64_t descriptors_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) ? 0 : limit.rlim_max;
}

void descriptors_set_limit(uint64_t count)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = count < limit.rlim_max ? count : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

void descriptors_raise_limit(void) { descriptors_set_limit(UINT64_MAX); }

bool descriptors_left(int count)
{
    int fds[TRIED_MAX], had = 0;
    if (count > TRIED_MAX) count = TRIED_MAX;
    while (had < count && (fds[had] = eventfd(0, EFD_CLOEXEC)) >= 0) had++;
    for (int i = 0; i < had; i++) close(fds[i]);
    return had == count;
}
