/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/keys.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/others.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { FILE_BYTES = 4096, RAW_BYTES = 32, KNOWN_MAX = 1024, PRUNED_MAX = 16 };

static const char COMMENT[] =
    "# A key of Heddle.  Whoever reads the secret line can act under it: keep this file to yourself.\n";

/* ---- keys ---- */

bool key_is_valid(const char *text)
{
    static const char Z85[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    uint8_t raw[RAW_BYTES];
    bool is_text = strlen(text) == KEY_TEXT - 1 && strspn(text, Z85) == KEY_TEXT - 1;
    return is_text && zmq_z85_decode(raw, text);
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
    } while (!isalnum((unsigned char)pair.public_key[0]));
    *ret_pair = pair;
    explicit_bzero(&pair, sizeof pair);
    return HEDDLE_OK;
}

/* ---- reading ---- */

static int refuse(const char *path, const char *what, int number, heddle_error_t *error)
{
    int rc = error_fail(error, number == ENOENT ? HEDDLE_ERR_NOT_FOUND : HEDDLE_ERR_DATA_DIR,
                        "%.300s: %s%s%s", path, what, number ? ": " : "", number ? strerror(number) : "");
    if (number == ENOENT) error_hint(error, "name a key file that is there; `heddle keygen` makes one");
    else if (!number) error_hint(error, "name a key file; `heddle keygen` makes one");
    else error_hint(error, "see that uid %u may read and write there", (unsigned)geteuid());
    return rc;
}

/* The value of a line "word value"; NULL when it is another word's. */
static const char *value_of(const char *line, const char *word)
{
    size_t n = strlen(word);
    return !strncmp(line, word, n) && line[n] == ' ' ? line + n + 1 : NULL;
}

static bool take_line(const char *line, key_pair_t *pair, char *endpoint)
{
    const char *v;
    char *key = NULL;
    if ((v = value_of(line, "public"))) key = pair->public_key;
    else if ((v = value_of(line, "secret"))) key = pair->secret_key;
    if (!key) {
        if (endpoint && (v = value_of(line, "endpoint"))) snprintf(endpoint, FILE_BYTES, "%s", v);
        return true;
    }
    if (!key_is_valid(v)) return false;
    memcpy(key, v, KEY_TEXT);
    return true;
}

static bool belong_together(const key_pair_t *pair)
{
    char derived[KEY_TEXT];
    return !pair->secret_key[0] ||
           (zmq_curve_public(derived, pair->secret_key) == 0 && !strcmp(derived, pair->public_key));
}

/* `endpoint`: FILE_BYTES, or NULL.  Changes the text. */
static bool parse(char *text, key_pair_t *ret_pair, char *endpoint)
{
    key_pair_t pair = {0};
    char *rest = text, *line;
    bool ok = true;
    while (ok && (line = strsep(&rest, "\n"))) ok = take_line(line, &pair, endpoint);
    ok = ok && pair.public_key[0] && belong_together(&pair);
    if (ok) *ret_pair = pair;
    explicit_bzero(&pair, sizeof pair);
    return ok;
}

/* A file of moderate size and nothing else: a FIFO would hold us for ever. */
static int read_text(const char *path, char ret_text[FILE_BYTES], struct stat *ret_stat,
                     heddle_error_t *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return refuse(path, "cannot be read", errno, error);
    ssize_t n = -1;
    bool is_file =
        fstat(fd, ret_stat) == 0 && S_ISREG(ret_stat->st_mode) && ret_stat->st_size < FILE_BYTES;
    if (is_file) n = read(fd, ret_text, FILE_BYTES - 1);
    int number = is_file && n < 0 ? errno : 0;
    close(fd);
    if (n < 0) return refuse(path, is_file ? "cannot be read" : "is no key file", number, error);
    ret_text[n] = 0;
    return HEDDLE_OK;
}

static int read_file(const char *path, key_pair_t *ret_pair, char *endpoint, heddle_error_t *error)
{
    char text[FILE_BYTES];
    struct stat st;
    int rc = read_text(path, text, &st, error);
    if (rc) return rc;
    if (!parse(text, ret_pair, endpoint)) {
        rc = refuse(path, "is no key file, or is damaged", 0, error);
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
    return read_file(path, ret_pair, NULL, error);
}

/* Keys that key_make makes do not begin so. */
static bool begins_as_path(const char *text)
{
    return text[0] == '/' || !strncmp(text, "./", 2) || !strncmp(text, "../", 3);
}

/* A path of 40 characters may read as a key.  Where one is both, neither is guessed: whoever can write where
 * we stand could put another key in place of the one that was named. */
static int take_text(const char *key, char ret_key[KEY_TEXT], heddle_error_t *error)
{
    if (access(key, F_OK) == 0) {
        error_fail(error, HEDDLE_ERR_USAGE, "\"%s\" reads as a public key, and is a file too", key);
        error_contrast(error, "a key, or a path that begins with / or ./", key);
        error_hint(error, "for the file: ./%s; for the key: from another directory", key);
        return HEDDLE_ERR_USAGE;
    }
    memcpy(ret_key, key, KEY_TEXT);
    return HEDDLE_OK;
}

int key_take(const char *text, char ret_key[KEY_TEXT], heddle_error_t *error)
{
    key_pair_t pair;
    if (!begins_as_path(text) && key_is_valid(text)) return take_text(text, ret_key, error);
    int rc = key_read(text, &pair, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) {
        rc = error_fail(error, rc, "\"%.200s\" is neither a public key nor a file with one", text);
        error_contrast(error, "40 characters of Z85, quoted for the shell, or the path of a key file",
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
        if (n == 0) errno = EIO; /* nothing was written, and nobody says why */
        if (n <= 0) return false;
        text += n;
        bytes -= (size_t)n;
    }
    return fsync(fd) == 0;
}

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

/* A full disk is nobody's lack of rights. */
static int fail_write(const char *path, const char *what, int number, heddle_error_t *error)
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

static bool is_unknown_to_file_system(int number)
{
    return number == EPERM || number == EOPNOTSUPP || number == ENOSYS || number == EINVAL;
}

static int write_new(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), number = 0;
    if (fd < 0) return errno;
    if (!write_all(fd, text)) number = errno;
    close(fd);
    if (number) unlink(path);
    return number;
}

/* Under its name what is written already, in nobody's place: by a link; where there are none (vfat, some of
 * FUSE) by a rename; where that cannot be told to replace nothing, by writing it there. */
static int put_in_place(const char *temporary, const char *path, const char *text)
{
    bool has_links = !FAILPOINT("wire.link"), has_renames = !FAILPOINT("wire.rename");
    if (has_links && has_renames && !link(temporary, path)) return 0;
    if (has_links && has_renames && !is_unknown_to_file_system(errno)) return errno;
    if (has_renames && !renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE)) return 0;
    if (has_renames && !is_unknown_to_file_system(errno)) return errno;
    return write_new(path, text);
}

/* Whole or not at all; `replace`: in place of one that is there, else EEXIST. Returns 0 or an errno. */
static int put_file(const char *path, const char *text, bool replace)
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

static int write_pair(const char *path, const key_pair_t *pair, int *ret_number, heddle_error_t *error)
{
    char text[FILE_BYTES];
    snprintf(text, sizeof text, "%spublic %s\nsecret %s\n", COMMENT, pair->public_key, pair->secret_key);
    int number = put_file(path, text, false);
    explicit_bzero(text, sizeof text);
    if (!number) return HEDDLE_OK;
    *ret_number = number;
    return fail_write(path, "the key is not written", number, error);
}

int key_write(const char *path, const key_pair_t *pair, heddle_error_t *error)
{
    int number;
    return write_pair(path, pair, &number, error);
}

/* ---- the ring ---- */

/* The user's of the password file: daemons are started without HOME. */
static const char *listed_home(char buffer[KEYRING_PATH])
{
    struct passwd entry, *found = NULL;
    return getpwuid_r(geteuid(), &entry, buffer, KEYRING_PATH, &found) == 0 && found ? found->pw_dir : NULL;
}

static int find_home(char buffer[KEYRING_PATH], const char **ret_base, const char **ret_below)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (!home || !*home) home = listed_home(buffer);
    bool has_config = config && *config == '/'; /* a relative one does not count, as its standard says */
    *ret_base = has_config ? config : home;
    *ret_below = has_config ? "heddle/keys" : ".config/heddle/keys";
    return *ret_base && **ret_base == '/' ? HEDDLE_OK : HEDDLE_ERR_USAGE;
}

int keyring_find(const char *given, keyring_t *ret_ring, bool *ret_chosen, heddle_error_t *error)
{
    const char *set = given && *given ? given : getenv("HEDDLE_KEYS"), *below = NULL;
    char buffer[KEYRING_PATH];
    bool is_chosen = set && *set;
    if (ret_chosen) *ret_chosen = is_chosen;
    int n = -1;
    if (is_chosen) n = snprintf(ret_ring->dir, sizeof ret_ring->dir, "%s", set);
    else if (find_home(buffer, &set, &below) == HEDDLE_OK)
        n = snprintf(ret_ring->dir, sizeof ret_ring->dir, "%s/%s", set, below);
    if (n > 0 && (size_t)n < sizeof ret_ring->dir - 16) return HEDDLE_OK;
    ret_ring->dir[0] = 0;
    int rc = error_fail(
        error, HEDDLE_ERR_USAGE,
        "no place for keys: neither HEDDLE_KEYS nor XDG_CONFIG_HOME nor HOME is a usable path");
    error_hint(error, "name a directory of your own with HEDDLE_KEYS");
    return rc;
}

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
            int rc = fail_write(path, "cannot be made for keys", errno, error);
            if (rc == HEDDLE_ERR_DATA_DIR)
                error_hint(error, "name a directory that uid %u may make: HEDDLE_KEYS",
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

/* `file` is short. */
static void path_in(const keyring_t *r, const char *file, char ret_path[KEYRING_PATH])
{
    snprintf(ret_path, KEYRING_PATH, "%s/%.60s", r->dir, file);
}

static int make_pair(const keyring_t *r, const char *path, int *ret_number, heddle_error_t *error)
{
    key_pair_t pair;
    int rc = make_ring(r, ret_number, error);
    if (!rc) rc = key_make(&pair, error);
    if (!rc) rc = write_pair(path, &pair, ret_number, error);
    explicit_bzero(&pair, sizeof pair);
    return rc && access(path, F_OK) == 0 ? HEDDLE_OK : rc; /* somebody else was faster: his is the one */
}

/* Nothing is there, and this user may put nothing there; `number`: why it could not be made, 0. */
static bool is_barred(const char *path, int number)
{
    struct stat st;
    if (lstat(path, &st) == 0) return false;
    if (errno != ENOENT) number = errno;
    return number == EACCES || number == EPERM || number == EROFS || number == ENOTDIR;
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
    path_in(r, file, path);
    int rc = key_read(path, ret_pair, error);
    if (rc == HEDDLE_ERR_NOT_FOUND) {
        rc = make_pair(r, path, &number, error);
        if (!rc) rc = key_read(path, ret_pair, error);
    }
    if (!rc) others_warn("keys.others", r->dir, "the keys there");
    *ret_barred = rc == HEDDLE_ERR_DATA_DIR && is_barred(path, number);
    if (rc || ret_pair->secret_key[0]) return rc == HEDDLE_ERR_NOT_FOUND ? HEDDLE_ERR_DATA_DIR : rc;
    return refuse(path, "has no secret line", 0, error);
}

/* ---- known brokers ---- */

/* As a client names it: names in small letters, the loopback address where it listens everywhere.
 * Addresses have one spelling (wire_check_endpoint). */
static void settle_endpoint(const char *endpoint, char *to, size_t size)
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

static bool known_path(const keyring_t *r, const char *settled, char *to, size_t size)
{
    char name[300];
    if (!r->dir[0] || (size_t)snprintf(name, sizeof name, "%s.pub", settled) >= 250) return false;
    for (char *c = name; *c; c++)
        if (*c == '/' || *c == ':') *c = '_';
    return (size_t)snprintf(to, size, "%s/brokers/%s", r->dir, name) < size;
}

static bool is_known_broker(const char *name)
{
    size_t n = strlen(name);
    return n > 4 && !strcmp(name + n - 4, ".pub");
}

/* The one written longest ago goes when there are more than KNOWN_MAX; false: nothing was to go. */
static bool forget_oldest(DIR *dir)
{
    struct dirent *entry;
    struct stat st;
    struct timespec at = {0};
    char oldest[sizeof entry->d_name] = "";
    size_t count = 0;
    rewinddir(dir);
    while ((entry = readdir(dir))) {
        if (!is_known_broker(entry->d_name) || fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        bool is_older = st.st_mtim.tv_sec < at.tv_sec ||
                        (st.st_mtim.tv_sec == at.tv_sec && st.st_mtim.tv_nsec < at.tv_nsec);
        if (count++ && !is_older) continue;
        at = st.st_mtim;
        snprintf(oldest, sizeof oldest, "%s", entry->d_name);
    }
    return count > KNOWN_MAX && unlinkat(dirfd(dir), oldest, 0) == 0;
}

/* A broker that takes any free port leaves a file for each that it had. */
static void prune_known(const keyring_t *brokers)
{
    DIR *dir = opendir(brokers->dir);
    for (int i = 0; dir && i < PRUNED_MAX && forget_oldest(dir); i++) {}
    if (dir) closedir(dir);
}

static bool says_already(const char *path, const char *text)
{
    char told[FILE_BYTES];
    struct stat st;
    return read_text(path, told, &st, NULL) == HEDDLE_OK && !strcmp(told, text);
}

static int tell(const keyring_t *r, const char *settled, const char *key, heddle_error_t *error)
{
    char path[KEYRING_PATH + 300], text[FILE_BYTES];
    keyring_t brokers;
    if (!known_path(r, settled, path, sizeof path)) return HEDDLE_OK; /* nobody could look it up either */
    int n = snprintf(brokers.dir, sizeof brokers.dir, "%s/brokers", r->dir);
    if (n < 0 || (size_t)n >= sizeof brokers.dir) return refuse(r->dir, "is too long a name", 0, error);
    snprintf(text, sizeof text,
             "# The public key of the broker that listens here.\npublic %s\nendpoint %s\n", key, settled);
    if (says_already(path, text)) {
        utimensat(AT_FDCWD, path, NULL, 0); /* so that it is not the one to go; a full disk can do that */
        return HEDDLE_OK;
    }
    int rc = keyring_make(&brokers, error);
    if (rc) return rc;
    int number = put_file(path, text, true);
    if (number) return fail_write(path, "cannot be written", number, error);
    prune_known(&brokers);
    return HEDDLE_OK;
}

static void forget(const keyring_t *r, const char *settled)
{
    char path[KEYRING_PATH + 300];
    if (known_path(r, settled, path, sizeof path)) unlink(path);
}

/* Endpoint `i` of those who listen on every address, and so on that of `settled`; [::] takes both kinds. */
static bool everywhere(const char *settled, int i, char ret_endpoint[300])
{
    const char *port = strrchr(settled, ':');
    i += !strncmp(settled, "tcp://[", 7);
    if (strncmp(settled, "tcp://", 6) != 0 || !port || i > 1) return false;
    snprintf(ret_endpoint, 300, "tcp://%s%s", i ? "[::]" : "0.0.0.0", port);
    return true;
}

/* One that listens everywhere has a file of that name too: clients may name any address of the machine. */
int keyring_tell_broker(const keyring_t *r, const char *endpoint, const char *key, heddle_error_t *error)
{
    char settled[300];
    settle_endpoint(endpoint, settled, sizeof settled);
    bool is_everywhere =
        !strncmp(endpoint, "tcp://0.0.0.0:", 14) || !strncmp(endpoint, "tcp://[::]:", 11);
    int rc = tell(r, settled, key, error);
    return rc || !is_everywhere ? rc : tell(r, endpoint, key, error);
}

/* Whoever listens at one address, nobody listens at all of them any more. */
void keyring_forget_broker(const keyring_t *r, const char *endpoint)
{
    char settled[300], all[300];
    settle_endpoint(endpoint, settled, sizeof settled);
    forget(r, settled);
    for (int i = 0; everywhere(settled, i, all); i++) forget(r, all);
}

/* Two endpoints may have one file name; what tells of a third is damaged. */
static bool is_namesake(const keyring_t *r, const char *path, const char *told)
{
    char theirs[KEYRING_PATH + 300];
    return told[0] && known_path(r, told, theirs, sizeof theirs) && !strcmp(theirs, path);
}

/* Of what was seen to be there.  Gone since: it is not guessed why. */
static int read_known(const keyring_t *r, const char *path, const char *settled, char ret_key[KEY_TEXT],
                      heddle_error_t *error)
{
    char told[FILE_BYTES] = "";
    key_pair_t pair;
    int rc = read_file(path, &pair, told, error);
    if (rc == HEDDLE_OK && !strcmp(told, settled)) {
        memcpy(ret_key, pair.public_key, KEY_TEXT);
        return HEDDLE_OK;
    }
    if (rc == HEDDLE_OK && is_namesake(r, path, told)) return HEDDLE_ERR_NOT_FOUND;
    if (rc == HEDDLE_OK) {
        refuse(path, "is no key file, or is damaged", 0, error);
        error_expected(error, "a line `endpoint %.200s`", settled);
    }
    if (rc == HEDDLE_ERR_NOT_FOUND) refuse(path, "has gone, or leads nowhere", 0, error);
    error_hint(error,
               "remove the file where the broker there may be believed, or name its key with --broker-key");
    return HEDDLE_ERR_DATA_DIR;
}

/* What is there and tells nothing is no leave to go without, nor is what cannot be looked at: somebody may
 * have known the broker. */
static int look_up(const keyring_t *r, const char *settled, char ret_key[KEY_TEXT], heddle_error_t *error)
{
    char path[KEYRING_PATH + 300];
    struct stat st;
    if (!known_path(r, settled, path, sizeof path)) return HEDDLE_ERR_NOT_FOUND;
    if (lstat(path, &st) == 0) return read_known(r, path, settled, ret_key, error);
    if (errno == ENOENT || errno == ENOTDIR) return HEDDLE_ERR_NOT_FOUND;
    int rc = refuse(path, "cannot be looked at", errno, error);
    error_hint(error,
               "see that uid %u may read there, name a ring of its own with HEDDLE_KEYS, or the broker's key "
               "with --broker-key",
               (unsigned)geteuid());
    return rc;
}

/* `host`: an address in its one spelling. */
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

static bool is_of_this_machine(const char *settled)
{
    char host[INET6_ADDRSTRLEN];
    bool is_v6 = settled[6] == '[';
    int n = (int)(strrchr(settled, ':') - settled) - (is_v6 ? 8 : 6);
    return snprintf(host, sizeof host, "%.*s", n, settled + (is_v6 ? 7 : 6)) < (int)sizeof host &&
           is_own_address(host);
}

static int look_up_everywhere(const keyring_t *r, const char *settled, char ret_key[KEY_TEXT],
                              heddle_error_t *error)
{
    char all[300], key[KEY_TEXT];
    int rc = HEDDLE_ERR_NOT_FOUND;
    for (int i = 0; rc == HEDDLE_ERR_NOT_FOUND && everywhere(settled, i, all); i++)
        rc = look_up(r, all, key, error);
    if (rc == HEDDLE_ERR_NOT_FOUND || !is_of_this_machine(settled)) return HEDDLE_ERR_NOT_FOUND;
    if (!rc) memcpy(ret_key, key, sizeof key);
    return rc;
}

int keyring_known_broker(const keyring_t *r, const char *endpoint, char ret_key[KEY_TEXT],
                         heddle_error_t *error)
{
    char settled[300];
    settle_endpoint(endpoint, settled, sizeof settled);
    int rc = look_up(r, settled, ret_key, error);
    return rc == HEDDLE_ERR_NOT_FOUND ? look_up_everywhere(r, settled, ret_key, error) : rc;
}
