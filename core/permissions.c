/* SPDX-License-Identifier: Apache-2.0 */
#include "core/permissions.h"

#include "core/log.h"

#include <sys/stat.h>
#include <unistd.h>

void permissions_warn(const char *id, const char *path, const char *what)
{
    struct stat st;
    if (stat(path, &st)) return;
    unsigned mode = (unsigned)st.st_mode & 07777;
    if (st.st_uid != geteuid() && st.st_uid != 0 &&
        geteuid() != 0) /* root works in other users' directories */
        log_emit(LOG_WARN, id, "%s belongs to uid %u, who can change %s: this process is of uid %u", path,
                 (unsigned)st.st_uid, what, (unsigned)geteuid());
    if (mode & 022)
        log_emit(LOG_WARN, id, "%s can be written by others (mode %03o), who can change %s: chmod go-w it",
                 path, mode, what);
}
