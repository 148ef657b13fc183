/* SPDX-License-Identifier: Apache-2.0 */
/* Key files: their text, and how they are written whole and never over another key. */
#include "wire/keys_part.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/others.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { RAW_BYTES = 32 };

static const char COMMENT[] =
    "# A key of Heddle.  The secret line gives all rights of this key: keep this file private.\n";

/* ---- keys ---- */

bool key_is_valid(const char *text)
{
    static const char Z85[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    uint8_t raw[RAW_BYTES];
    bool is_text = strlen(text) == KEY_TEXT - 1 && strspn(text, Z85) == KEY_TEXT - 1;
    return is_text && zmq_z85_decode(raw, text);
}

/* Users copy public keys between terminals, so a key must be one word to a double click, and hold nothing
 * that a shell, a unit file or YAML interprets. One pair in 4,000 is such; finding one takes a tenth of a
 * second. */
static bool is_a_word(const char *key)
{
    static const char PLAIN[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=/@";
    return isalnum((unsigned char)key[0]) && !key[strspn(key, PLAIN)];
}

int key_make(key_pair_t *ret_pair, heddle_error_t *error)
{
    key_pair_t pair;
    do {
        if (zmq_curve_keypair(pair.public_key, pair.secret_key)) {
            int rc =
                error_fail(error, HEDDLE_ERR_INTERNAL, "no key can be made: %s", zmq_strerror(errno));
            error_hint(error, "libzmq was built without CURVE: install one with it, or say --insecure");
            return rc;
        }
    } while (!is_a_word(pair.public_key));
    *ret_pair = pair;
    explicit_bzero(&pair, sizeof pair);
    return HEDDLE_OK;
}

/* ---- reading ---- */

int key_file_refuse(const char *path, const char *what, int number, heddle_error_t *error)
{
    int rc = error_fail(error, number == ENOENT ? HEDDLE_ERR_NOT_FOUND : HEDDLE_ERR_DATA_DIR,
                        "%.300s: %s%s%s", path, what, number ? ": " : "", number ? strerror(number) : "");
    if (number == ENOENT) error_hint(error, "name a key file that is there; `heddle keygen` makes one");
    else if (!number) error_hint(error, "name a key file; `heddle keygen` makes one");
    else error_hint(error, "see that uid %u may read and write there", (unsigned)geteuid());
    return rc;
}

/* The value of a line "word value"; NULL when the line begins with another word. */
static const char *value_of(const char *line, const char *word)
{
    size_t n = strlen(word);
    return !strncmp(line, word, n) && line[n] == ' ' ? line + n + 1 : NULL;
}

/* False where a key is malformed. Lines with other words are skipped, so that later versions can add some. */
static bool take_line(const char *line, key_pair_t *pair, char *endpoint)
{
    const char *v;
    char *key = NULL;
    if ((v = value_of(line, "public"))) key = pair->public_key;
    else if ((v = value_of(line, "secret"))) key = pair->secret_key;
    if (!key) {
        if (endpoint && (v = value_of(line, "endpoint"))) snprintf(endpoint, KEY_FILE_BYTES, "%s", v);
        return true;
    }
    if (!key_is_valid(v)) return false;
    memcpy(key, v, KEY_TEXT);
    return true;
}

/* `endpoint`: KEY_FILE_BYTES, or NULL.  Changes the text. */
static bool parse(char *text, key_pair_t *ret_pair, char *endpoint)
{
    key_pair_t pair = {0};
    char *rest = text, *line;
    bool ok = true;
    char derived[KEY_TEXT];
    while (ok && (line = strsep(&rest, "\n"))) ok = take_line(line, &pair, endpoint);
    ok = ok && pair.public_key[0];
    /* A file put together from two pairs would fail in every handshake, without a reason. */
    if (ok && pair.secret_key[0])
        ok = zmq_curve_public(derived, pair.secret_key) == 0 && !strcmp(derived, pair.public_key);
    if (ok) *ret_pair = pair;
    explicit_bzero(&pair, sizeof pair);
    return ok;
}

/* Reads a regular file of moderate size only: opening a FIFO without O_NONBLOCK, or reading it, would
 * block. */
int key_file_text(const char *path, char ret_text[KEY_FILE_BYTES], struct stat *ret_stat,
                  heddle_error_t *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return key_file_refuse(path, "cannot be read", errno, error);
    ssize_t n = -1;
    bool is_file =
        fstat(fd, ret_stat) == 0 && S_ISREG(ret_stat->st_mode) && ret_stat->st_size < KEY_FILE_BYTES;
    if (is_file) n = read(fd, ret_text, KEY_FILE_BYTES - 1);
    int number = is_file && n < 0 ? errno : 0;
    close(fd);
    if (n < 0) return key_file_refuse(path, is_file ? "cannot be read" : "is no key file", number, error);
    ret_text[n] = 0;
    return HEDDLE_OK;
}

int key_file_read(const char *path, key_pair_t *ret_pair, char *endpoint, heddle_error_t *error)
{
    char text[KEY_FILE_BYTES];
    struct stat st;
    int rc = key_file_text(path, text, &st, error);
    if (rc) return rc;
    if (!parse(text, ret_pair, endpoint)) {
        rc = key_file_refuse(path, "is no key file, or is damaged", 0, error);
        error_expected(error, "a line `public KEY`, and of one's own `secret KEY`, 40 characters each");
        error_hint(error, "move it away; heddle keygen makes another, which the broker has to be told of "
                          "(heddle keys add)");
    } else if (ret_pair->secret_key[0] && st.st_mode & 077) {
        log_emit(LOG_WARN, "keys.mode", "%s can be read by others (mode %03o): chmod 600 it", path,
                 (unsigned)st.st_mode & 0777);
    }
    explicit_bzero(text, sizeof text);
    return rc;
}

int key_read(const char *path, key_pair_t *ret_pair, heddle_error_t *error)
{
    return key_file_read(path, ret_pair, NULL, error);
}

/* The output of `heddle keygen >FILE`: the public key alone, in one line. */
static bool read_printed(const char *path, char ret_key[KEY_TEXT])
{
    char text[KEY_FILE_BYTES];
    struct stat st;
    heddle_error_t none;
    if (key_file_text(path, text, &st, &none)) return false;
    if (strlen(text) == KEY_TEXT && text[KEY_TEXT - 1] == '\n') text[KEY_TEXT - 1] = 0;
    if (!key_is_valid(text)) return false;
    memcpy(ret_key, text, KEY_TEXT);
    return true;
}

int key_take(const char *text, char ret_key[KEY_TEXT], heddle_error_t *error)
{
    key_pair_t pair;
    /* A path written like this is never a key from key_make, which begins with a letter or a digit. */
    if (!(text[0] == '/' || !strncmp(text, "./", 2) || !strncmp(text, "../", 3)) && key_is_valid(text)) {
        /* A path of 40 characters may also be a valid key. Guessing would be unsafe: with write access to the
         * working directory, another user could replace the key that was meant. */
        if (access(text, F_OK) == 0) {
            error_fail(error, HEDDLE_ERR_USAGE, "\"%s\" reads as a public key, and is a file too", text);
            error_contrast(error, "a key, or a path that begins with / or ./", text);
            error_hint(error, "for the file: ./%s; for the key: from another directory", text);
            return HEDDLE_ERR_USAGE;
        }
        memcpy(ret_key, text, KEY_TEXT);
        return HEDDLE_OK;
    }
    if (read_printed(text, ret_key)) return HEDDLE_OK;
    int rc = key_read(text, &pair, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) {
        rc = error_fail(error, rc, "\"%.200s\" is neither a public key nor a file with one", text);
        error_contrast(error, "40 characters of Z85, or the path of a key file",
                       text);
        error_hint(error, "`heddle keygen` makes a key file and prints its public key; "
                          "heddle-broker's ready line has the broker's");
    }
    if (!rc) memcpy(ret_key, pair.public_key, KEY_TEXT);
    explicit_bzero(&pair, sizeof pair);
    return rc;
}

/* ---- writing ---- */

static bool write_all(int fd, const char *text)
{
    size_t bytes = strlen(text);
    while (bytes) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO; /* write() sets no errno when it writes nothing */
        if (n <= 0) return false;
        text += n;
        bytes -= (size_t)n;
    }
    return fsync(fd) == 0;
}

/* The name of a new file is durable only when its directory has been synced. */
static bool sync_parent(const char *path)
{
    char dir[KEYRING_PATH + 300];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    return ok;
}

/* A full disk gets its own error: the hint about rights would mislead. */
int key_file_fail(const char *path, const char *what, int number, heddle_error_t *error)
{
    bool is_full = number == ENOSPC || number == EDQUOT;
    int rc = error_fail(error, is_full ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_DATA_DIR, "%.300s: %s: %s", path,
                        what, strerror(number));
    if (is_full) error_hint(error, "make room on the file system of %.300s, then try again", path);
    else if (number == EEXIST)
        error_hint(error, "a key is never overwritten: move the old file away, or name another");
    else
        error_hint(error, "see that the directory is there and that uid %u may write in it",
                   (unsigned)geteuid());
    return rc;
}

/* The errno values with which file systems reject an operation that they do not have. */
static bool is_unknown_to_file_system(int number)
{
    return number == EPERM || number == EOPNOTSUPP || number == ENOSYS || number == EINVAL;
}

/* Gives the written file its name without replacing another: by a link; where the file system has none
 * (vfat, some FUSE) by a rename that fails if the name is taken; and where it has none of those either, by
 * writing the file under its name, which is not atomic. Returns 0 or an errno. */
static int put_in_place(const char *temporary, const char *path, const char *text)
{
    bool has_links = !FAILPOINT("wire.link"), has_renames = !FAILPOINT("wire.rename");
    if (has_links && has_renames && !link(temporary, path)) return 0;
    if (has_links && has_renames && !is_unknown_to_file_system(errno)) return errno;
    if (has_renames && !renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE)) return 0;
    if (has_renames && !is_unknown_to_file_system(errno)) return errno;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), number = 0;
    if (fd < 0) return errno;
    if (!write_all(fd, text)) number = errno;
    close(fd);
    if (number) unlink(path);
    return number;
}

/* A temporary file first, so that a reader, or a crash, never meets half a key. */
int key_file_put(const char *path, const char *text, bool replace)
{
    char temporary[KEYRING_PATH + 300];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= sizeof temporary)
        return ENAMETOOLONG;
    int fd = mkostemp(temporary, O_CLOEXEC), number = 0; /* 0600 */
    if (fd < 0) return errno;
    if (!write_all(fd, text)) number = errno;
    close(fd);
    if (!number && replace && rename(temporary, path)) number = errno;
    if (!number && !replace) number = put_in_place(temporary, path, text);
    if (number || !replace) unlink(temporary);
    return number || sync_parent(path) ? number : errno;
}

int key_file_write(const char *path, const key_pair_t *pair, int *ret_number, heddle_error_t *error)
{
    char text[KEY_FILE_BYTES];
    snprintf(text, sizeof text, "%spublic %s\nsecret %s\n", COMMENT, pair->public_key, pair->secret_key);
    int number = key_file_put(path, text, false);
    explicit_bzero(text, sizeof text);
    if (!number) return HEDDLE_OK;
    *ret_number = number;
    return key_file_fail(path, "the key is not written", number, error);
}

int key_write(const char *path, const key_pair_t *pair, heddle_error_t *error)
{
    int number;
    return key_file_write(path, pair, &number, error);
}
