/* SPDX-License-Identifier: Apache-2.0 */
/* heddle broker, heddle worker, heddle bench: exec the program in the same directory, so that a single
 * command name reaches all of them, of the same release. */
#include "cli/cli.h"

#include "core/errors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int run_beside(const char *kind, const char *program, char **argv)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    char *slash = NULL;
    if (n > 0) {
        path[n] = 0;
        slash = strrchr(path, '/');
    }
    if (slash) {
        snprintf(slash + 1, 64, "%s", program);
        argv[0] = path;
        execv(path, argv);
    }
    int why = errno;
    heddle_error_t error;
    common_t common = {0};
    error_fail(&error, HEDDLE_ERR_INTERNAL, "cannot run %s: %s", slash ? path : program, strerror(why));
    error_hint(&error, "%s is installed beside heddle; in a checkout, make build", program);
    return cli_fail(&common, kind, &error);
}

int command_broker(int argc, char **argv)
{
    (void)argc;
    return run_beside("broker", "heddle-broker", argv);
}

int command_worker(int argc, char **argv)
{
    (void)argc;
    return run_beside("worker", "heddle-worker", argv);
}

int command_bench(int argc, char **argv)
{
    (void)argc;
    return run_beside("bench", "heddle-bench", argv);
}
