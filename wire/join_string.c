/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/join_string.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/log.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { KEY_BYTES = 32, CHECK_BYTES = 4, HEAD_BYTES = 2 * KEY_BYTES, RAW_MAX = JOIN_STRING_TEXT * 3 / 4 };

static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* ---- base64url, without padding (RFC 4648, section 5) ---- */

static void encode(const uint8_t *raw, size_t bytes, char *ret_text)
{
    uint32_t bits = 0;
    int count = 0;
    for (size_t i = 0; i < bytes; i++) {
        bits = bits << 8 | raw[i];
        for (count += 8; count >= 6; count -= 6) *ret_text++ = ALPHABET[bits >> (count - 6) & 63];
    }
    if (count) *ret_text++ = ALPHABET[bits << (6 - count) & 63];
    *ret_text = 0;
}

/* The number of bytes of the first line; -1: another character, too long, or bits that no text of `encode`
 * has. */
static int decode(const char *text, uint8_t ret_raw[RAW_MAX])
{
    uint32_t bits = 0;
    int count = 0, bytes = 0;
    for (const char *end = text + strcspn(text, "\r\n"); text < end; text++) {
        const char *at = strchr(ALPHABET, *text);
        if (!at || bytes == RAW_MAX) return -1;
        bits = bits << 6 | (uint32_t)(at - ALPHABET);
        count += 6;
        if (count < 8) continue;
        count -= 8;
        ret_raw[bytes++] = (uint8_t)(bits >> count);
    }
    return count < 6 && !(bits & ((1u << count) - 1)) ? bytes : -1;
}

/* ---- the text ---- */

static int refuse(const char *what, const char *text, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "%s", what);
    error_expected(error, JOIN_STRING_PREFIX "..., whole, as `heddle invite` printed it");
    error_found(error, "%zu characters", strlen(text));
    error_hint(error, "copy the line again, or put it in a file and name that: @FILE");
    return rc;
}

static bool take_bytes(const uint8_t *raw, size_t bytes, join_string_t *ret)
{
    size_t n = bytes - HEAD_BYTES - CHECK_BYTES;
    const uint8_t *endpoints = raw + HEAD_BYTES;
    if (n == 0 || n >= sizeof ret->endpoints || memchr(endpoints, 0, n)) return false;
    memcpy(ret->endpoints, endpoints, n);
    ret->endpoints[n] = 0;
    return zmq_z85_encode(ret->broker_key, raw, KEY_BYTES) &&
           zmq_z85_encode(ret->pair.secret_key, raw + KEY_BYTES, KEY_BYTES) &&
           !zmq_curve_public(ret->pair.public_key, ret->pair.secret_key) &&
           !wire_check_endpoints(ret->endpoints, NULL, &(heddle_error_t){0});
}

bool join_string_is_like(const char *text) { return strstr(text, "heddle-join-") != NULL; }

int join_string_parse(const char *text, join_string_t *ret_string, heddle_error_t *error)
{
    uint8_t raw[RAW_MAX];
    join_string_t string = {0};
    size_t prefix = sizeof JOIN_STRING_PREFIX - 1;
    int rc = HEDDLE_OK;
    if (strncmp(text, JOIN_STRING_PREFIX, prefix) != 0) {
        bool is_other = !strncmp(text, JOIN_STRING_PREFIX, prefix - 2); /* heddle-join-2 */
        return refuse(is_other ? "that join string is of another release" : "that is not a join string", text,
                      error);
    }
    int bytes = decode(text + prefix, raw);
    digest_t check = {0};
    bool is_whole = bytes > HEAD_BYTES + CHECK_BYTES;
    if (is_whole) check = digest_blake2b(raw, (size_t)bytes - CHECK_BYTES);
    is_whole = is_whole && !memcmp(check.b, raw + bytes - CHECK_BYTES, CHECK_BYTES);
    if (!is_whole || !take_bytes(raw, (size_t)bytes, &string))
        rc = refuse("the join string is cut or damaged", text, error);
    if (!rc) *ret_string = string;
    explicit_bzero(raw, sizeof raw);
    explicit_bzero(&string, sizeof string);
    return rc;
}

int join_string_write(const join_string_t *string, char ret_text[JOIN_STRING_TEXT], heddle_error_t *error)
{
    uint8_t raw[RAW_MAX];
    size_t n = strlen(string->endpoints), bytes = HEAD_BYTES + n;
    int rc = wire_check_endpoints(string->endpoints, NULL, error);
    if (!rc && n >= sizeof string->endpoints) rc = HEDDLE_ERR_USAGE;
    if (rc) return rc;
    zmq_z85_decode(raw, string->broker_key);
    zmq_z85_decode(raw + KEY_BYTES, string->pair.secret_key);
    memcpy(raw + HEAD_BYTES, string->endpoints, n);
    digest_t check = digest_blake2b(raw, bytes);
    memcpy(raw + bytes, check.b, CHECK_BYTES);
    memcpy(ret_text, JOIN_STRING_PREFIX, sizeof JOIN_STRING_PREFIX);
    encode(raw, bytes + CHECK_BYTES, ret_text + sizeof JOIN_STRING_PREFIX - 1);
    explicit_bzero(raw, sizeof raw);
    return HEDDLE_OK;
}

/* ---- a file ---- */

static void hint_of_denied(heddle_error_t *error, const char *path)
{
    char user[33], names[1024];
    struct passwd entry, *me = NULL;
    snprintf(user, sizeof user, "%lu", (unsigned long)geteuid());
    if (!getpwuid_r(geteuid(), &entry, names, sizeof names, &me) && me)
        snprintf(user, sizeof user, "%.32s", me->pw_name);
    error_hint(error, "this runs as the user %s, which must be able to read the file: chown %s %.140s", user,
               user, path);
}

static void warn_of_others(const char *path)
{
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode) || !(st.st_mode & (S_IRWXG | S_IRWXO))) return;
    log_emit(LOG_WARN, "keys.others", "%s can be used by other users (mode %04o): chmod 600 it", path,
             (unsigned)st.st_mode & 07777u);
}

static int read_line(const char *path, char ret_text[JOIN_STRING_TEXT], heddle_error_t *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n = fd < 0 ? -1 : read(fd, ret_text, JOIN_STRING_TEXT - 1);
    int why = errno;
    if (fd >= 0) close(fd);
    if (n < 0) {
        int rc = error_fail(error, why == ENOENT ? HEDDLE_ERR_NOT_FOUND : HEDDLE_ERR_DATA_DIR,
                            "the join string cannot be read from %.300s: %s", path, strerror(why));
        if (why == EACCES) hint_of_denied(error, path);
        else error_hint(error, "name the file that has the line which `heddle invite` printed");
        return rc;
    }
    ret_text[n] = 0;
    ret_text[strcspn(ret_text, "\r\n")] = 0;
    return HEDDLE_OK;
}

int join_string_read(const char *text_or_file, join_string_t *ret_string, heddle_error_t *error)
{
    char line[JOIN_STRING_TEXT];
    if (text_or_file[0] != '@') return join_string_parse(text_or_file, ret_string, error);
    int rc = read_line(text_or_file + 1, line, error);
    if (!rc) rc = join_string_parse(line, ret_string, error);
    explicit_bzero(line, sizeof line);
    return rc;
}

int join_string_take(const char *text_or_file, join_string_t *ret_string, heddle_error_t *error)
{
    if (text_or_file[0] == '@') warn_of_others(text_or_file + 1);
    return join_string_read(text_or_file, ret_string, error);
}
