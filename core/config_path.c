/* SPDX-License-Identifier: Apache-2.0 */
#include "core/config_path.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The specification says to ignore a relative path.  Daemons are often started without HOME; the password
 * file has it too. */
bool config_path(const char *name, char *ret_path, size_t size)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    char buffer[4096];
    struct passwd entry, *found = NULL;
    bool is_homeless = !home || !*home, has_config = config && *config == '/';
    if (is_homeless && getpwuid_r(geteuid(), &entry, buffer, sizeof buffer, &found)) found = NULL;
    if (is_homeless) home = found ? found->pw_dir : NULL;
    const char *base = has_config ? config : home;
    int n = -1;
    if (base && *base == '/')
        n = snprintf(ret_path, size, "%s/%sheddle/%s", base, has_config ? "" : ".config/", name);
    return n > 0 && (size_t)n < size;
}
