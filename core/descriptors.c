/* SPDX-License-Identifier: Apache-2.0 */
#include "core/descriptors.h"

#include <fcntl.h>
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

/* Opening them is the only true test, because other threads open files too. The first one counts against the
 * limit of the system as well; the others are its duplicates, which cost a quarter of new files. */
int descriptors_count(int most)
{
    int fds[TRIED_MAX], count = 0;
    if (most > TRIED_MAX) most = TRIED_MAX;
    if (most > 0 && (fds[0] = eventfd(0, EFD_CLOEXEC)) >= 0) count++;
    while (count > 0 && count < most && (fds[count] = fcntl(fds[0], F_DUPFD_CLOEXEC, 0)) >= 0) count++;
    for (int i = 0; i < count; i++) close(fds[i]);
    return count;
}
