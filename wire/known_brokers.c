/* SPDX-License-Identifier: Apache-2.0 */
/* The known brokers of a ring: which public key is expected at which endpoint. */
#include "wire/keys_part.h"

#include "core/errors.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* PRUNED_MAX bounds the files that one start removes: each costs a scan of the directory. */
enum { KNOWN_MAX = 1024, PRUNED_MAX = 16 };

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
        bool is_older = st.st_mtim.tv_sec < at.tv_sec ||
                        (st.st_mtim.tv_sec == at.tv_sec && st.st_mtim.tv_nsec < at.tv_nsec);
        if (count++ && !is_older) continue;
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
int keyring_tell_broker(const keyring_t *r, const char *endpoint, const char *key, heddle_error_t *error)
{
    char normal[300];
    normalize_endpoint(endpoint, normal, sizeof normal);
    bool is_everywhere =
        !strncmp(endpoint, "tcp://0.0.0.0:", 14) || !strncmp(endpoint, "tcp://[::]:", 11);
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
        key_file_refuse(path, "is no key file, or is damaged", 0, error);
        error_expected(error, "a line `endpoint %.200s`", normal);
    }
    if (rc == HEDDLE_ERR_NOT_FOUND) key_file_refuse(path, "has gone, or leads nowhere", 0, error);
    error_hint(error,
               "remove the file where the broker there may be believed, or name its key with --broker-key");
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
    int rc = key_file_refuse(path, "cannot be looked at", errno, error);
    error_hint(error,
               "see that uid %u may read there, name a ring of its own with HEDDLE_KEYS, or the broker's key "
               "with --broker-key",
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

/* The key of a broker that listens on all addresses. It counts only for an endpoint of this machine:
 * another machine may have another broker at the same port. */
static int look_up_everywhere(const keyring_t *r, const char *normal, char ret_key[KEY_TEXT],
                              heddle_error_t *error)
{
    char all[300], key[KEY_TEXT];
    int rc = HEDDLE_ERR_NOT_FOUND;
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

int keyring_known_broker(const keyring_t *r, const char *endpoint, char ret_key[KEY_TEXT],
                         heddle_error_t *error)
{
    char normal[300];
    normalize_endpoint(endpoint, normal, sizeof normal);
    int rc = look_up(r, normal, ret_key, error);
    return rc == HEDDLE_ERR_NOT_FOUND ? look_up_everywhere(r, normal, ret_key, error) : rc;
}

/* The endpoint that a file in brokers/ names; "": it names none. */
static void read_endpoint(const keyring_t *r, const char *name, char ret_endpoint[300])
{
    char path[KEYRING_PATH + 300], told[KEY_FILE_BYTES] = "";
    key_pair_t pair;
    heddle_error_t ignored;
    bool is_read = snprintf(path, sizeof path, "%s/brokers/%s", r->dir, name) < (int)sizeof path &&
                   key_file_read(path, &pair, told, &ignored) == HEDDLE_OK;
    snprintf(ret_endpoint, 300, "%.290s", is_read ? told : "");
}

bool keyring_other_broker(const keyring_t *r, const char *endpoint, char ret_endpoint[300])
{
    char path[KEYRING_PATH + 300], normal[300], found[300];
    struct dirent *entry;
    struct stat st;
    struct timespec at = {0};
    normalize_endpoint(endpoint, normal, sizeof normal);
    ret_endpoint[0] = 0;
    snprintf(path, sizeof path, "%s/brokers", r->dir);
    DIR *dir = r->dir[0] ? opendir(path) : NULL;
    while (dir && (entry = readdir(dir))) {
        if (!is_key_file(entry->d_name) || fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        bool is_older = st.st_mtim.tv_sec < at.tv_sec ||
                        (st.st_mtim.tv_sec == at.tv_sec && st.st_mtim.tv_nsec <= at.tv_nsec);
        if (is_older) continue;
        read_endpoint(r, entry->d_name, found);
        bool is_everywhere = !strncmp(found, "tcp://0.0.0.0:", 14) || !strncmp(found, "tcp://[::]:", 11);
        if (!found[0] || is_everywhere || !strcmp(found, normal)) continue;
        at = st.st_mtim;
        memcpy(ret_endpoint, found, sizeof found);
    }
    if (dir) closedir(dir);
    return ret_endpoint[0];
}
