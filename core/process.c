/* SPDX-License-Identifier: Apache-2.0 */
#include "core/process.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/repeat.h"

#include <heddle/error.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <unistd.h>

void process_settle(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY); /* the lowest free one:
                                                                                  * this */
    signal(SIGXFSZ, SIG_IGN);
}

bool process_print(const char *line)
{
    static repeat_t lost;
    bool is_written = puts(line) >= 0 && fflush(stdout) == 0;
    if (!is_written) {
        char scratch[REPEAT_TEXT];
        int why = errno;
        uint64_t times = repeat_note(&lost, (uint32_t)why, clock_now(clock_system()));
        if (times)
            log_emit(LOG_WARN, "stdout.lost",
                     "a line cannot be written to stdout and is lost: %s; is its disk full, or the "
                     "descriptor closed?  The line: %.400s%s", strerror(why), line,
                     repeat_text(times, scratch));
        __fpurge(stdout); /* else it comes late, before the next one */
        clearerr(stdout);
    }
    if (is_written && repeat_over(&lost)) log_emit(LOG_WARN, "stdout.again", "stdout takes lines again");
    return is_written;
}

int process_end(int end)
{
    if (!fflush(stdout) && !ferror(stdout)) return end;
    fputs("internal: the answer could not be written to stdout\n  hint:     is its disk full, or the "
          "descriptor closed?\n",
          stderr);
    return end ? end : heddle_err_exit(HEDDLE_ERR_INTERNAL);
}
