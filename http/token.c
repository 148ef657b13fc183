/* SPDX-License-Identifier: Apache-2.0 */
#include "http/token.h"

#include "core/digest.h"
#include "core/errors.h"
#include "http/secret.h"

#include <string.h>
#include <strings.h>

static const char HOW[] = "make one: (umask 077; openssl rand -hex 32 >FILE)";

static int take_line(const char *path, const char *line, size_t bytes, char ret_token[TOKEN_MAX + 1],
                     heddle_error_t *error)
{
    while (bytes && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r')) bytes--;
    bool is_token = bytes >= TOKEN_MIN && bytes <= TOKEN_MAX;
    for (size_t i = 0; i < bytes && is_token; i++) is_token = line[i] > ' ' && line[i] < 0x7f;
    if (!is_token) {
        int rc = error_fail(error, HEDDLE_ERR_DATA_DIR, "%.300s has not one line with a token", path);
        error_expected(error, "%u to %u characters of ASCII, without blanks", TOKEN_MIN, TOKEN_MAX);
        error_hint(error, HOW);
        return rc;
    }
    memcpy(ret_token, line, bytes);
    ret_token[bytes] = 0;
    return HEDDLE_OK;
}

int token_read(const char *path, char ret_token[TOKEN_MAX + 1], heddle_error_t *error)
{
    char line[TOKEN_MAX + 2];
    size_t bytes = 0;
    int rc = secret_read(path, "the token", true, line, sizeof line, &bytes, error);
    if (rc && !error->found[0]) error_hint(error, HOW);
    if (!rc) rc = take_line(path, line, bytes, ret_token, error);
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
