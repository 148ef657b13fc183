/* SPDX-License-Identifier: Apache-2.0 */
#include "http/secret.h"

#include "core/errors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -1: errno says why. */
static ssize_t read_all(int fd, char *to, size_t size)
{
    size_t bytes = 0;
    while (bytes < size) {
        ssize_t n = read(fd, to + bytes, size - bytes);
        if (n < 0) return n;
        if (!n) break;
        bytes += (size_t)n;
    }
    return (ssize_t)bytes;
}

int secret_read(const char *path, const char *what, bool is_secret, char *to, size_t size, size_t *ret_bytes,
                heddle_error_t *error)
{
    struct stat st = {0};
    int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n = fd < 0 || fstat(fd, &st) ? -1 : read_all(fd, to, size);
    int why = errno;
    if (fd >= 0) close(fd);
    if (n < 0) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%s cannot be read from %.300s: %s", what, path,
                        strerror(why));
        error_hint(error, "name a file that the user of this program can read");
        return rc;
    }
    if (is_secret && st.st_mode & (S_IRWXG | S_IRWXO)) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "other users may use %s in %.300s", what, path);
        error_expected(error, "mode 0600 or 0400");
        error_found(error, "mode %04o", st.st_mode & 07777u);
        error_hint(error, "chmod 600 the file, and put a new one in it: the old one may be known");
        return rc;
    }
    *ret_bytes = (size_t)n;
    return HEDDLE_OK;
}
