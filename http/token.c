/* SPDX-License-Identifier: Apache-2.0 */
#include "http/token.h"

#include "core/digest.h"
#include "core/errors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static int unreadable(const char *path, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "the token cannot be read from %.300s: %s", path,
                        strerror(errno));
    error_hint(error, "make one: (umask 077; openssl rand -hex 32 >FILE)");
    return rc;
}

int token_read(const char *path, char ret_token[TOKEN_MAX + 1], heddle_error_t *error)
{
    struct stat st = {0};
    char line[TOKEN_MAX + 2];
    int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n = fd < 0 || fstat(fd, &st) ? -1 : read(fd, line, sizeof line);
    if (n < 0) {
        rc = unreadable(path, error);
        if (fd >= 0) close(fd);
        return rc;
    }
    close(fd);
    if (st.st_mode & (S_IRWXG | S_IRWXO)) {
        rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "other users may use the token in %.300s", path);
        error_expected(error, "mode 0600 or 0400");
        error_found(error, "mode %04o", st.st_mode & 07777u);
        error_hint(error, "chmod 600 the file, and put a new token in it: the old one may be known");
    } else {
        size_t bytes = (size_t)n;
        while (bytes && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r')) bytes--;
        bool is_token = bytes >= TOKEN_MIN && bytes <= TOKEN_MAX;
        for (size_t i = 0; i < bytes && is_token; i++) is_token = line[i] > ' ' && line[i] < 0x7f;
        if (is_token) {
            memcpy(ret_token, line, bytes);
            ret_token[bytes] = 0;
            rc = HEDDLE_OK;
        } else {
            rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s has not one line with a token", path);
            error_expected(error, "%u to %u characters of ASCII, without blanks", TOKEN_MIN, TOKEN_MAX);
            error_hint(error, "make one: (umask 077; openssl rand -hex 32 >FILE)");
        }
    }
    explicit_bzero(line, sizeof line);
    return rc;
}

bool token_is_shown(const char *token, const char *authorization)
{
    static const char SCHEME[] = "Bearer ";
    size_t n = sizeof SCHEME - 1;
    if (!authorization || strncasecmp(authorization, SCHEME, n) != 0) return false;
    while (authorization[n] == ' ') n++;
    return digest_secret_equal(token, authorization + n);
}
