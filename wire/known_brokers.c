/* SPDX-License-Identifier: Apache-2.0 */
/* The known brokers of a ring: which key is expected at which endpoint. */
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

enum { KNOWN_MAX = 1024, PRUNED_MAX = 16 };

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

static bool says_already(const char *path, const char *text)
{
    char told[KEY_FILE_BYTES];
    struct stat st;
    return key_file_text(path, told, &st, NULL) == HEDDLE_OK && !strcmp(told, text);
}

static int tell(const keyring_t *r, const char *settled, const char *key, heddle_error_t *error)
{
    char path[KEYRING_PATH + 300], text[KEY_FILE_BYTES];
    keyring_t brokers;
    if (!known_path(r, settled, path, sizeof path)) return HEDDLE_OK; /* nobody could look it up either */
    int n = snprintf(brokers.dir, sizeof brokers.dir, "%s/brokers", r->dir);
    if (n < 0 || (size_t)n >= sizeof brokers.dir)
        return key_file_refuse(r->dir, "is too long a name", 0, error);
    snprintf(text, sizeof text,
             "# The public key of the broker that listens here.\npublic %s\nendpoint %s\n", key, settled);
    if (says_already(path, text)) {
        utimensat(AT_FDCWD, path, NULL, 0); /* so that it is not the one to go; a full disk can do that */
        return HEDDLE_OK;
    }
    int rc = keyring_make(&brokers, error);
    if (rc) return rc;
    int number = key_file_put(path, text, true);
    if (number) return key_file_fail(path, "cannot be written", number, error);
    /* A broker that takes any free port leaves a file for each that it had. */
    DIR *dir = opendir(brokers.dir);
    for (int i = 0; dir && i < PRUNED_MAX && forget_oldest(dir); i++) {}
    if (dir) closedir(dir);
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
    char told[KEY_FILE_BYTES] = "";
    key_pair_t pair;
    int rc = key_file_read(path, &pair, told, error);
    if (rc == HEDDLE_OK && !strcmp(told, settled)) {
        memcpy(ret_key, pair.public_key, KEY_TEXT);
        return HEDDLE_OK;
    }
    if (rc == HEDDLE_OK && is_namesake(r, path, told)) return HEDDLE_ERR_NOT_FOUND;
    if (rc == HEDDLE_OK) {
        key_file_refuse(path, "is no key file, or is damaged", 0, error);
        error_expected(error, "a line `endpoint %.200s`", settled);
    }
    if (rc == HEDDLE_ERR_NOT_FOUND) key_file_refuse(path, "has gone, or leads nowhere", 0, error);
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
    int rc = key_file_refuse(path, "cannot be looked at", errno, error);
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
