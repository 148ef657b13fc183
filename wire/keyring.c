/* SPDX-License-Identifier: Apache-2.0 */
/* Key files: their text, and how they are written whole and never over another key; the key ring of a user:
 * where it is, its key pairs, and which public key is expected at which endpoint. */
#include "wire/keyring.h"

#include "core/config_path.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/permissions.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

/* PRUNED_MAX bounds the files that one start removes: each costs a scan of the directory. */
enum { RAW_BYTES = 32, KEY_FILE_BYTES = 4096, KNOWN_MAX = 1024, PRUNED_MAX = 16 };

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

bool key_is_word(const char *text)
{
    static const char PLAIN[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=/@";
    return isalnum((unsigned char)text[0]) && !text[strspn(text, PLAIN)];
}

/* Users copy public keys between terminals, so pairs are made until a public key is a word.  One in 4,000 is,
 * which takes a tenth of a second. */
int key_make(key_pair_t *ret_pair, heddle_error_t *error)
{
    key_pair_t pair;
    do {
        if (zmq_curve_keypair(pair.public_key, pair.secret_key)) {
            int rc = error_fail(error, HEDDLE_ERR_INTERNAL, "no key can be made: %s", zmq_strerror(errno));
            error_hint(
                error,
                "libzmq was built without CURVE: install one with it, or go without keys (opts.insecure)");
            return rc;
        }
    } while (!key_is_word(pair.public_key));
    *ret_pair = pair;
    explicit_bzero(&pair, sizeof pair);
    return HEDDLE_OK;
}

/* ---- reading ---- */

static int key_file_refuse(const char *path, const char *what, int number, heddle_error_t *error)
{
    int rc = error_fail(error, number == ENOENT ? HEDDLE_ERR_NOT_FOUND : HEDDLE_ERR_DATA_DIR,
                        "%.300s: %s%s%s", path, what, number ? ": " : "", number ? strerror(number) : "");
    if (number == ENOENT) error_hint(error, "name a key file that exists; `heddle keygen` makes one");
    else if (!number) error_hint(error, "name a key file; `heddle keygen` makes one");
    else error_hint(error, "check that uid %u may read and write there", (unsigned)geteuid());
    return rc;
}

/* The value of a line "word value"; NULL when the line begins with another word. */
static const char *value_of(const char *line, const char *word)
{
    size_t n = strlen(word);
    return !strncmp(line, word, n) && line[n] == ' ' ? line + n + 1 : NULL;
}

/* `endpoint`: KEY_FILE_BYTES, or NULL.  Changes the text. False where a key is malformed. Lines with other
 * words are skipped, so that later versions can add some. */
static bool parse(char *text, key_pair_t *ret_pair, char *endpoint)
{
    key_pair_t pair = {0};
    char *rest = text, *line;
    bool ok = true;
    char derived[KEY_TEXT];
    while (ok && (line = strsep(&rest, "\n"))) {
        const char *v;
        char *key = NULL;
        if ((v = value_of(line, "public"))) key = pair.public_key;
        else if ((v = value_of(line, "secret"))) key = pair.secret_key;
        else if (endpoint && (v = value_of(line, "endpoint"))) snprintf(endpoint, KEY_FILE_BYTES, "%s", v);
        if (!key) continue;
        ok = key_is_valid(v);
        if (ok) memcpy(key, v, KEY_TEXT);
    }
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
static int key_file_text(const char *path, char ret_text[KEY_FILE_BYTES], struct stat *ret_stat,
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
    if (n < 0) return key_file_refuse(path, is_file ? "cannot be read" : "is not a key file", number, error);
    ret_text[n] = 0;
    return HEDDLE_OK;
}

/* A path written like this is never a key from key_make, which begins with a letter or a digit. */
static bool is_path(const char *text)
{
    return text[0] == '/' || !strncmp(text, "./", 2) || !strncmp(text, "../", 3);
}

/* A secret that was given in place of a path, or of a public key, is not repeated in the error.  A key
 * without its word may be a public one. */
static int refuse_secret(const char *text, const char *expected, heddle_error_t *error)
{
    bool is_line = !strncmp(text, "secret ", 7) || strstr(text, "\nsecret ");
    if (!is_line && (is_path(text) || !key_is_valid(text))) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "this is the %s, not %s",
                        is_line ? "line of a secret key" : "text of a key", expected);
    error_hint(error, is_line ? "name the file, or the key after the word public: a secret key stays in its "
                                "file"
                              : "name a key file that exists; `heddle keygen` makes one");
    return rc;
}

static int key_file_read(const char *path, key_pair_t *ret_pair, char *endpoint, heddle_error_t *error)
{
    char text[KEY_FILE_BYTES];
    struct stat st;
    int rc = key_file_text(path, text, &st, error);
    if (rc == HEDDLE_ERR_NOT_FOUND && refuse_secret(path, "a key file", error)) return rc;
    if (rc) return rc;
    if (!parse(text, ret_pair, endpoint)) {
        rc = key_file_refuse(path, "is not a key file, or is damaged", 0, error);
        error_expected(error,
                       "a line `public KEY`, and in your own key file `secret KEY`, 40 characters each");
        error_hint(error,
                   "move it elsewhere; `heddle keygen` makes another, and `heddle keys add` gives it to "
                   "the broker");
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

int key_is_secret(heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "this is a secret key, not a public one");
    error_hint(error, "name the key file, or the key after the word public: a secret key stays in its file");
    return rc;
}

/* Public keys are below 2^255 - 19, so their last bit is 0; half of all secret keys have it set.  The other
 * half is not told apart from public ones. */
static bool is_surely_secret(const char *key)
{
    uint8_t bytes[32];
    bool is_secret = zmq_z85_decode(bytes, key) && bytes[31] & 0x80;
    explicit_bzero(bytes, sizeof bytes);
    return is_secret;
}

int key_take(const char *text, char ret_key[KEY_TEXT], heddle_error_t *error)
{
    key_pair_t pair;
    if (!is_path(text) && key_is_valid(text)) {
        /* A path of 40 characters may also be a valid key. Guessing would be unsafe: with write access to the
         * working directory, another user could replace the key that was meant. */
        if (access(text, F_OK) == 0) {
            error_fail(error, HEDDLE_ERR_USAGE, "\"%s\" is both a public key and the name of a file", text);
            error_contrast(error, "a key, or a path that begins with / or ./", text);
            error_hint(error, "for the file, write ./%s; for the key, run this in another directory", text);
            return HEDDLE_ERR_USAGE;
        }
        if (is_surely_secret(text)) return key_is_secret(error);
        memcpy(ret_key, text, KEY_TEXT);
        return HEDDLE_OK;
    }
    /* The output of `heddle keygen >FILE`: the public key alone, in one line. */
    char printed[KEY_FILE_BYTES];
    struct stat st;
    heddle_error_t none;
    int rc = key_file_text(text, printed, &st, &none);
    if (!rc && strlen(printed) == KEY_TEXT && printed[KEY_TEXT - 1] == '\n') printed[KEY_TEXT - 1] = 0;
    if (!rc && key_is_valid(printed)) {
        rc = is_surely_secret(printed) ? key_is_secret(error) : HEDDLE_OK;
        if (!rc) memcpy(ret_key, printed, KEY_TEXT);
        explicit_bzero(printed, sizeof printed);
        return rc;
    }
    explicit_bzero(printed, sizeof printed); /* it may hold a secret line */
    rc = key_read(text, &pair, error);
    if (rc == HEDDLE_ERR_NOT_FOUND && !refuse_secret(text, "a public key or a file", error)) {
        error_fail(error, rc, "\"%.200s\" is neither a public key nor a file with one", text);
        error_contrast(error, "40 characters of Z85, or the path of a key file", text);
        error_hint(error, "`heddle keygen` makes a key file and prints its public key; "
                          "the ready line of heddle-broker shows the broker's key");
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

/* A full disk gets its own error: the hint about rights would mislead. */
static int key_file_fail(const char *path, const char *what, int number, heddle_error_t *error)
{
    bool is_full = number == ENOSPC || number == EDQUOT;
    int rc = error_fail(error, is_full ? HEDDLE_ERR_NO_SPACE : HEDDLE_ERR_DATA_DIR, "%.300s: %s: %s", path,
                        what, strerror(number));
    if (is_full) error_hint(error, "make room on the file system of %.300s, then try again", path);
    else if (number == EEXIST)
        error_hint(error, "a key is never overwritten: move the old file elsewhere, or name another");
    else
        error_hint(error, "check that the directory exists and that uid %u may write in it",
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
static int key_file_put(const char *path, const char *text, bool replace)
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
    if (number) return number;
    /* The name of a new file is durable only when its directory has been synced. */
    char *slash = strrchr(temporary, '/');
    if (slash) slash[slash == temporary] = 0;
    fd = open(slash ? temporary : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd)) number = errno;
    if (fd >= 0) close(fd);
    return number;
}

static int key_file_write(const char *path, const key_pair_t *pair, int *ret_number, heddle_error_t *error)
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

/* ---- the ring ---- */

int keyring_find(const char *given, keyring_t *ret_ring, bool *ret_chosen, heddle_error_t *error)
{
    const char *set = given && *given ? given : getenv("HEDDLE_KEYS");
    bool is_chosen = set && *set;
    if (ret_chosen) *ret_chosen = is_chosen;
    size_t room = sizeof ret_ring->dir - 16; /* for the names of its files */
    int n = is_chosen ? snprintf(ret_ring->dir, room, "%s", set) : 0;
    if (is_chosen ? (size_t)n < room : config_path("keys", ret_ring->dir, room)) return HEDDLE_OK;
    ret_ring->dir[0] = 0;
    int rc =
        error_fail(error, HEDDLE_ERR_USAGE,
                   "no place for keys: neither HEDDLE_KEYS nor XDG_CONFIG_HOME nor HOME is a usable path");
    error_hint(error, "name a directory of your own with HEDDLE_KEYS");
    return rc;
}

/* The directory and its missing parents, each 0700: they are to hold secrets. */
static int make_ring(const keyring_t *r, int *ret_number, heddle_error_t *error)
{
    char path[KEYRING_DIR];
    snprintf(path, sizeof path, "%s", r->dir);
    for (char *at = path + 1;; at++) {
        bool is_end = !*at;
        if (*at != '/' && !is_end) continue;
        *at = 0;
        if (mkdir(path, 0700) && errno != EEXIST) {
            *ret_number = errno;
            int rc = key_file_fail(path, "cannot be made for keys", errno, error);
            if (rc == HEDDLE_ERR_DATA_DIR)
                error_hint(error, "name with HEDDLE_KEYS a directory that uid %u may make",
                           (unsigned)geteuid());
            return rc;
        }
        if (is_end) return HEDDLE_OK;
        *at = '/';
    }
}

int keyring_make(const keyring_t *r, heddle_error_t *error)
{
    int number;
    return make_ring(r, &number, error);
}

int keyring_pair(const keyring_t *r, const char *file, key_pair_t *ret_pair, heddle_error_t *error)
{
    bool barred;
    return keyring_pair_unless(r, file, ret_pair, &barred, error);
}

int keyring_pair_unless(const keyring_t *r, const char *file, key_pair_t *ret_pair, bool *ret_barred,
                        heddle_error_t *error)
{
    char path[KEYRING_PATH];
    int number = 0;
    /* The names of ring files are short constants, and KEYRING_DIR leaves room for them. */
    snprintf(path, KEYRING_PATH, "%s/%.60s", r->dir, file);
    int rc = key_read(path, ret_pair, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) {
        key_pair_t pair;
        rc = make_ring(r, &number, error);
        if (!rc) rc = key_make(&pair, error);
        if (!rc) rc = key_file_write(path, &pair, &number, error);
        explicit_bzero(&pair, sizeof pair);
        /* Another program may have made the file first; then its pair is the one to use. */
        if (!rc || access(path, F_OK) == 0) rc = key_read(path, ret_pair, error);
    }
    if (!rc) permissions_warn("keys.others", r->dir, "the keys there");
    /* Barred: there is no file, and this user has no right to make one. */
    struct stat st;
    bool is_missing = rc == HEDDLE_ERR_DATA_DIR && lstat(path, &st) != 0;
    if (is_missing && errno != ENOENT) number = errno;
    *ret_barred = is_missing && (number == EACCES || number == EPERM || number == EROFS || number == ENOTDIR);
    if (rc || ret_pair->secret_key[0]) return rc == HEDDLE_ERR_NOT_FOUND ? HEDDLE_ERR_DATA_DIR : rc;
    return key_file_refuse(path, "has no secret line", 0, error);
}

/* The directory itself, or the nearest one above it that is there. */
static int check_ring_may_be_made(const keyring_t *r, heddle_error_t *error)
{
    char above[KEYRING_DIR], *slash;
    snprintf(above, sizeof above, "%s", r->dir);
    while (access(above, F_OK) && errno == ENOENT && (slash = strrchr(above, '/')) && slash > above)
        *slash = 0;
    if (access(above, W_OK | X_OK) == 0) return HEDDLE_OK;
    int rc = key_file_fail(r->dir, "cannot be made for keys", errno, error);
    error_hint(error, "name with HEDDLE_KEYS a directory that uid %u may make", (unsigned)geteuid());
    return rc;
}

int keyring_pair_unkept(const keyring_t *r, const char *file, key_pair_t *ret_pair, heddle_error_t *error)
{
    char path[KEYRING_PATH];
    snprintf(path, KEYRING_PATH, "%s/%.60s", r->dir, file);
    int rc = key_read(path, ret_pair, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) {
        rc = check_ring_may_be_made(r, error);
        return rc ? rc : key_make(ret_pair, error);
    }
    if (rc || ret_pair->secret_key[0]) return rc;
    return key_file_refuse(path, "has no secret line", 0, error);
}

/* ---- known brokers ---- */

/* The endpoint as a client names it: in small letters, and the loopback address for a broker that listens
 * on all addresses. Numeric addresses have one spelling already (wire_check_endpoint). */
static void normalize_endpoint(const char *endpoint, char *to, size_t size)
{
    static const struct {
        const char *said, *meant;
    } SAME[] = {{"tcp://localhost:", "tcp://127.0.0.1:"},
                {"tcp://localhost.:", "tcp://127.0.0.1:"},
                {"tcp://0.0.0.0:", "tcp://127.0.0.1:"},
                {"tcp://[::]:", "tcp://[::1]:"}};
    snprintf(to, size, "%s", endpoint);
    if (!strncmp(to, "tcp:", 4))
        for (char *c = to; *c; c++) *c = (char)tolower((unsigned char)*c);
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++) {
        size_t n = strlen(SAME[i].said);
        if (!strncmp(to, SAME[i].said, n)) snprintf(to, size, "%s%s", SAME[i].meant, endpoint + n);
    }
}

/* The file of an endpoint. False when its name would be too long for a file, so that it is never
 * registered. */
static bool known_path(const keyring_t *r, const char *normal, char *to, size_t size)
{
    char name[300];
    if (!r->dir[0] || (size_t)snprintf(name, sizeof name, "%s.pub", normal) >= 250) return false;
    for (char *c = name; *c; c++)
        if (*c == '/' || *c == ':') *c = '_';
    return (size_t)snprintf(to, size, "%s/brokers/%s", r->dir, name) < size;
}

static bool is_key_file(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && !strcmp(name + n - 4, ".pub");
}

static bool is_later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec > b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec > b->tv_nsec);
}

/* Removes the file that was written longest ago when there are more than KNOWN_MAX. False: none was
 * removed. */
static bool forget_oldest(DIR *dir)
{
    struct dirent *entry;
    struct stat st;
    struct timespec at = {0};
    char oldest[sizeof entry->d_name] = "";
    size_t count = 0;
    rewinddir(dir);
    while ((entry = readdir(dir))) {
        if (!is_key_file(entry->d_name) || fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        if (count++ && !is_later(&at, &st.st_mtim)) continue;
        at = st.st_mtim;
        snprintf(oldest, sizeof oldest, "%s", entry->d_name);
    }
    return count > KNOWN_MAX && unlinkat(dirfd(dir), oldest, 0) == 0;
}

static int register_key(const keyring_t *r, const char *normal, const char *key, heddle_error_t *error)
{
    char path[KEYRING_PATH + 300], text[KEY_FILE_BYTES];
    keyring_t brokers;
    if (!known_path(r, normal, path, sizeof path)) return HEDDLE_OK; /* clients could not look it up either */
    int n = snprintf(brokers.dir, sizeof brokers.dir, "%s/brokers", r->dir);
    if (n < 0 || (size_t)n >= sizeof brokers.dir)
        return key_file_refuse(r->dir, "is too long a name", 0, error);
    snprintf(text, sizeof text, "# The public key of the broker that listens here.\npublic %s\nendpoint %s\n",
             key, normal);
    char found[KEY_FILE_BYTES];
    struct stat st;
    if (key_file_text(path, found, &st, NULL) == HEDDLE_OK && !strcmp(found, text)) {
        /* A new time keeps the file from being pruned. Unlike a rewrite, it works on a full disk. */
        utimensat(AT_FDCWD, path, NULL, 0);
        return HEDDLE_OK;
    }
    int rc = keyring_make(&brokers, error);
    if (rc) return rc;
    int number = key_file_put(path, text, true);
    if (number) return key_file_fail(path, "cannot be written", number, error);
    /* A broker that listens on any free port leaves a file for each port that it had. */
    DIR *dir = opendir(brokers.dir);
    for (int i = 0; dir && i < PRUNED_MAX && forget_oldest(dir); i++) {}
    if (dir) closedir(dir);
    return HEDDLE_OK;
}

static void forget(const keyring_t *r, const char *normal)
{
    char path[KEYRING_PATH + 300];
    if (known_path(r, normal, path, sizeof path)) unlink(path);
}

/* Endpoint number `i` of a broker that listens on all addresses, and so also at `normal`. [::] covers IPv4
 * too. False: there are no more. */
static bool everywhere(const char *normal, int i, char ret_endpoint[300])
{
    const char *port = strrchr(normal, ':');
    i += !strncmp(normal, "tcp://[", 7);
    if (strncmp(normal, "tcp://", 6) != 0 || !port || i > 1) return false;
    snprintf(ret_endpoint, 300, "tcp://%s%s", i ? "[::]" : "0.0.0.0", port);
    return true;
}

/* A broker that listens on all addresses gets a second file under that name, because clients may dial any
 * address of the machine. */
int keyring_register_broker(const keyring_t *r, const char *endpoint, const char *key, heddle_error_t *error)
{
    char normal[300];
    normalize_endpoint(endpoint, normal, sizeof normal);
    bool is_everywhere = !strncmp(endpoint, "tcp://0.0.0.0:", 14) || !strncmp(endpoint, "tcp://[::]:", 11);
    int rc = register_key(r, normal, key, error);
    return rc || !is_everywhere ? rc : register_key(r, endpoint, key, error);
}

/* A listener at one address of a port means that no broker listens on all addresses of that port. */
void keyring_forget_broker(const keyring_t *r, const char *endpoint)
{
    char normal[300], all[300];
    normalize_endpoint(endpoint, normal, sizeof normal);
    forget(r, normal);
    for (int i = 0; everywhere(normal, i, all); i++) forget(r, all);
}

/* Reads a file that exists. If it has gone since, that is an error, not NOT_FOUND: the reason is unknown. */
static int read_known(const keyring_t *r, const char *path, const char *normal, char ret_key[KEY_TEXT],
                      heddle_error_t *error)
{
    char found[KEY_FILE_BYTES] = "";
    key_pair_t pair;
    int rc = key_file_read(path, &pair, found, error);
    if (rc == HEDDLE_OK && !strcmp(found, normal)) {
        memcpy(ret_key, pair.public_key, KEY_TEXT);
        return HEDDLE_OK;
    }
    /* Two endpoints may share a file name. A file with an endpoint of another name is damaged. */
    char theirs[KEYRING_PATH + 300];
    bool is_namesake =
        rc == HEDDLE_OK && found[0] && known_path(r, found, theirs, sizeof theirs) && !strcmp(theirs, path);
    if (is_namesake) return HEDDLE_ERR_NOT_FOUND;
    if (rc == HEDDLE_OK) {
        key_file_refuse(path, "is not a key file, or is damaged", 0, error);
        error_expected(error, "a line `endpoint %.200s`", normal);
    }
    if (rc == HEDDLE_ERR_NOT_FOUND) key_file_refuse(path, "was removed, or is a link to nothing", 0, error);
    error_hint(error, "remove the file if you trust the broker at that address, or name its key with "
                      "opts.broker_key");
    return HEDDLE_ERR_DATA_DIR;
}

/* Only a file that certainly does not exist is NOT_FOUND, which lets the client connect without a key. A
 * file that is unreadable, or a directory that cannot be searched, may hide the key of the broker. */
static int look_up(const keyring_t *r, const char *normal, char ret_key[KEY_TEXT], heddle_error_t *error)
{
    char path[KEYRING_PATH + 300];
    struct stat st;
    if (!known_path(r, normal, path, sizeof path)) return HEDDLE_ERR_NOT_FOUND;
    if (lstat(path, &st) == 0) return read_known(r, path, normal, ret_key, error);
    if (errno == ENOENT || errno == ENOTDIR) return HEDDLE_ERR_NOT_FOUND;
    int rc = key_file_refuse(path, "cannot be examined", errno, error);
    error_hint(
        error,
        "check that uid %u may read there, or name a ring of its own with HEDDLE_KEYS, or the broker's key "
        "with opts.broker_key",
        (unsigned)geteuid());
    return rc;
}

/* Whether an interface of this machine has the address. `host`: an address in its one spelling. */
static bool is_own_address(const char *host)
{
    struct ifaddrs *first, *a;
    char text[INET6_ADDRSTRLEN];
    bool is_own = false;
    if (getifaddrs(&first)) return false;
    for (a = first; a && !is_own; a = a->ifa_next) {
        const void *at = a->ifa_addr;
        if (!at) continue;
        int family = a->ifa_addr->sa_family;
        if (family == AF_INET) at = &((const struct sockaddr_in *)at)->sin_addr;
        else if (family == AF_INET6) at = &((const struct sockaddr_in6 *)at)->sin6_addr;
        else continue;
        is_own = inet_ntop(family, at, text, sizeof text) && !strcmp(text, host);
    }
    freeifaddrs(first);
    return is_own;
}

int keyring_known_broker(const keyring_t *r, const char *endpoint, char ret_key[KEY_TEXT],
                         heddle_error_t *error)
{
    char normal[300], all[300], key[KEY_TEXT];
    normalize_endpoint(endpoint, normal, sizeof normal);
    int rc = look_up(r, normal, ret_key, error);
    if (rc != HEDDLE_ERR_NOT_FOUND) return rc;
    /* A broker that listens on all addresses. It counts only for an endpoint of this machine: another machine
     * may have another broker at the same port. */
    for (int i = 0; rc == HEDDLE_ERR_NOT_FOUND && everywhere(normal, i, all); i++)
        rc = look_up(r, all, key, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) return rc;
    char host[INET6_ADDRSTRLEN];
    bool is_v6 = normal[6] == '[';
    int n = (int)(strrchr(normal, ':') - normal) - (is_v6 ? 8 : 6);
    bool is_own = snprintf(host, sizeof host, "%.*s", n, normal + (is_v6 ? 7 : 6)) < (int)sizeof host &&
                  is_own_address(host);
    if (!is_own) return HEDDLE_ERR_NOT_FOUND;
    if (!rc) memcpy(ret_key, key, sizeof key);
    return rc;
}

/* The endpoint that a file names.  "": none, or it is all addresses of a port, which cannot be dialled. */
static void read_endpoint(const keyring_t *r, const char *file, char ret_endpoint[KEYRING_ENDPOINT])
{
    char path[KEYRING_PATH + 300], text[KEY_FILE_BYTES] = "";
    key_pair_t pair;
    heddle_error_t ignored;
    int n = snprintf(path, sizeof path, "%s/brokers/%s", r->dir, file);
    bool is_read = n < (int)sizeof path && key_file_read(path, &pair, text, &ignored) == HEDDLE_OK;
    bool is_everywhere = !strncmp(text, "tcp://0.0.0.0:", 14) || !strncmp(text, "tcp://[::]:", 11);
    snprintf(ret_endpoint, KEYRING_ENDPOINT, "%.*s", KEYRING_ENDPOINT - 1,
             is_read && !is_everywhere ? text : "");
}

size_t keyring_other_brokers(const keyring_t *r, const char *endpoint, char ret_endpoints[][KEYRING_ENDPOINT],
                             size_t most)
{
    char path[KEYRING_PATH + 300], normal[300], found[KEYRING_ENDPOINT];
    struct dirent *entry;
    struct stat st;
    struct timespec at[KEYRING_OTHERS_MAX];
    size_t count = 0;
    normalize_endpoint(endpoint, normal, sizeof normal);
    if (most > KEYRING_OTHERS_MAX) most = KEYRING_OTHERS_MAX;
    snprintf(path, sizeof path, "%s/brokers", r->dir);
    DIR *dir = r->dir[0] ? opendir(path) : NULL;
    while (dir && (entry = readdir(dir))) {
        if (!is_key_file(entry->d_name) || fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        size_t place = count;
        while (place > 0 && is_later(&st.st_mtim, &at[place - 1])) place--;
        if (place == most) continue;
        read_endpoint(r, entry->d_name, found);
        if (!found[0] || !strcmp(found, normal)) continue;
        if (count < most) count++;
        size_t moved = count - 1 - place;
        memmove(&at[place + 1], &at[place], moved * sizeof at[0]);
        memmove(ret_endpoints[place + 1], ret_endpoints[place], moved * sizeof ret_endpoints[0]);
        at[place] = st.st_mtim;
        memcpy(ret_endpoints[place], found, sizeof found);
    }
    if (dir) closedir(dir);
    return count;
}
