/* SPDX-License-Identifier: Apache-2.0 */
#include "core/process.h"

#include <heddle/error.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

void process_settle(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY); /* the lowest free one:
                                                                                  * this */
    signal(SIGXFSZ, SIG_IGN);
}

int process_end(int end)
{
    if (!fflush(stdout) && !ferror(stdout)) return end;
    fputs("internal: the answer could not be written to stdout\n  hint:     is its disk full, or the "
          "descriptor closed?\n",
          stderr);
    return end ? end : heddle_err_exit(HEDDLE_ERR_INTERNAL);
}
