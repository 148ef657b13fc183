/* SPDX-License-Identifier: Apache-2.0 */
/* The Nth call to the file system fails, for every N, where directories are exported, keys are kept, and a broker has
 * its data (datadir.c).
 *
 *   torture_files [--only PLAY] [--nth N] [--list]
 *
 * Each N is tried with ENOSPC, EIO, EMFILE, with a write that writes nothing, and with EIO from there on.  What then lies there is whole or not there; the link names a whole
 * directory; and when the disk is well again, everything is done, and nothing is left under a temporary name.  The
 * calls are those of our own code (tests.cmake: --wrap, of every object that is linked here); the first process ends after
 * the failure, without a leak, and a second one goes on, as after a restart. */
#include "tests/torture/batch.h"
#include "tests/torture/files.h"
#include "tests/unit/worker_content.h"
#include "tests/unit/worker_slot.h"
#include "wire/keyring.h"
#include "sidecar/export.h"
#include "worker/slots.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <heddle/adapter.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- calls that fail ---- */

static struct {
    volatile bool is_armed;
    int number;
    uint64_t count, nth, length, failed;
} calls;

bool files_arm(bool is_armed)
{
    bool was_armed = calls.is_armed;
    calls.is_armed = is_armed;
    return was_armed;
}

static bool refuse(void)
{
    if (!calls.is_armed || ++calls.count < calls.nth || calls.count >= calls.nth + calls.length) return false;
    errno = calls.number ? calls.number : EIO;
    return ++calls.failed > 0; /* counted where it is told: a run asks */
}

/* Nothing was written, and nobody says why. */
static ssize_t no_write(void)
{
    if (calls.number) return -1;
    errno = 0;
    return 0;
}

#define WRAP(type, failed, name, parameters, arguments)                                                      \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters { return refuse() ? (failed) : __real_##name arguments; }
WRAP(int, -1, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(int, -1, fsync, (int fd), (fd))
WRAP(int, -1, fdatasync, (int fd), (fd))
WRAP(int, -1, ftruncate, (int fd, off_t bytes), (fd, bytes))
WRAP(int, -1, flock, (int fd, int how), (fd, how))
WRAP(int, -1, fstat, (int fd, struct stat *to), (fd, to))
WRAP(int, -1, unlink, (const char *path), (path))
WRAP(ssize_t, -1, read, (int fd, void *data, size_t bytes), (fd, data, bytes))
WRAP(ssize_t, -1, pread, (int fd, void *data, size_t bytes, off_t at), (fd, data, bytes, at))
WRAP(ssize_t, no_write(), pwrite, (int fd, const void *data, size_t bytes, off_t at), (fd, data, bytes, at))
WRAP(DIR *, NULL, opendir, (const char *path), (path))
WRAP(int, -1, stat, (const char *path, struct stat *to), (path, to))
WRAP(int, -1, lstat, (const char *path, struct stat *to), (path, to))
WRAP(int, -1, fstatat, (int dir, const char *name, struct stat *to, int flags), (dir, name, to, flags))
WRAP(int, -1, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes))
WRAP(ssize_t, no_write(), write, (int fd, const void *data, size_t bytes), (fd, data, bytes))
WRAP(int, -1, rename, (const char *from, const char *to), (from, to))
WRAP(int, -1, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
WRAP(int, -1, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
     (a, from, b, to, flags))
WRAP(int, -1, link, (const char *from, const char *to), (from, to))
WRAP(int, -1, symlinkat, (const char *to, int dir, const char *name), (to, dir, name))
WRAP(int, -1, unlinkat, (int dir, const char *name, int flags), (dir, name, flags))
WRAP(int, -1, mkdirat, (int dir, const char *name, mode_t mode), (dir, name, mode))
WRAP(int, -1, mkostemp, (char *name, int flags), (name, flags))
WRAP(char *, NULL, realpath, (const char *path, char *to), (path, to))
WRAP(FILE *, NULL, fdopen, (int fd, const char *mode), (fd, mode))
WRAP(DIR *, NULL, fdopendir, (int fd), (fd))
WRAP(struct dirent *, NULL, readdir, (DIR * dir), (dir))
WRAP(ssize_t, -1, readlinkat, (int dir, const char *name, char *to, size_t bytes), (dir, name, to, bytes))
WRAP(int, -1, faccessat, (int dir, const char *name, int mode, int flags), (dir, name, mode, flags))
WRAP(int, -1, utimensat, (int dir, const char *name, const struct timespec times[2], int flags),
     (dir, name, times, flags))
WRAP(int, EOF, fflush, (FILE * f), (f))
WRAP(size_t, 0, fwrite, (const void *data, size_t size, size_t count, FILE *f), (data, size, count, f))

/* What fails to close is closed. */
#define WRAP_CLOSE(name, parameters, arguments)                                                              \
    int __real_##name parameters;                                                                            \
    int __wrap_##name parameters;                                                                            \
    int __wrap_##name parameters                                                                             \
    {                                                                                                        \
        bool fails = refuse();                                                                               \
        int number = errno, rc = __real_##name arguments;                                                    \
        if (fails) errno = number;                                                                           \
        return fails ? -1 : rc;                                                                              \
    }
WRAP_CLOSE(close, (int fd), (fd))
WRAP_CLOSE(fclose, (FILE * f), (f))
_Static_assert(EOF == -1, "what fclose says");

int __real_fcntl(int fd, int what, ...);
int __wrap_fcntl(int fd, int what, ...);
int __wrap_fcntl(int fd, int what, ...)
{
    va_list more;
    va_start(more, what);
    void *with = va_arg(more, void *); /* or a number: it comes the same way */
    va_end(more);
    return refuse() ? -1 : __real_fcntl(fd, what, with);
}

#define WRAP_OPEN(name, parameters, arguments)                                                               \
    int __real_##name parameters;                                                                            \
    int __wrap_##name parameters                                                                             \
    {                                                                                                        \
        va_list more;                                                                                        \
        va_start(more, flags);                                                                               \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;                                            \
        va_end(more);                                                                                        \
        return refuse() ? -1 : __real_##name arguments;                                                      \
    }
WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int dir, const char *path, int flags, ...), (dir, path, flags, mode))

/* ---- exports ---- */

char files_root[64];
static char outbox[96];
static exports_t exports;
static uint64_t first_version; /* before it comes what is not ours */

static void nothing(void *self) { (void)self; }

static heddle_snapshot_t *snapshot(slots_t *slots, uint64_t version)
{
    test_content_t a = content_make(version, 4, 100);
    slot_t *slot = NULL, *held = NULL;
    manifest_t m;
    cr_assert_eq(slot_take(slots, 0, (uint32_t)version, a.content_bytes, &slot, NULL), HEDDLE_OK);
    memcpy(slot->parts[0].region->base, a.bytes, a.content_bytes);
    const uint8_t *manifest = (const uint8_t *)slot->parts[0].region->view + manifest_offset(a.payload_bytes);
    cr_assert_eq(manifest_decode(bytes_of(manifest, a.manifest_bytes), &m, NULL), HEDDLE_OK);
    cr_assert_eq(slot_seal(slot, &(seal_t){.version = version, .h1 = a.h1, .step = -1, .manifest = &m}),
                 HEDDLE_OK);
    cr_assert_eq(slots_acquire(slots, 0, version, &held), HEDDLE_OK);
    free(a.bytes);
    return held;
}

static heddle_snapshot_t *snapshots[4];

static void exports_before(void) { first_version = 1; }

/* Somebody's own directories have names of old versions. */
static void exports_foreign_before(void)
{
    char command[600];
    snprintf(command, sizeof command,
             "mkdir -p %s && cd %s && mkdir -p policy@1/run policy@2 && "
             "touch policy@1/adapter_config.json policy@1/run/notes policy@2/notes",
             outbox, outbox);
    cr_assert_eq(system(command), 0);
    first_version = 3;
}

static bool is_needed(void *self, const char *adapter, uint64_t version)
{
    return (void)self, (void)adapter, (void)version, false;
}

static int put_version(uint64_t version)
{
    heddle_error_t e = {0};
    int rc = exports_write(&exports, snapshots[version], &e);
    if (!rc) rc = exports_link(&exports, "policy", version, &e);
    cr_assert(!rc || e.message[0]);
    exports_prune(&exports, "policy", is_needed, NULL);
    return rc;
}

/* Another process sees the lock, whatever failed here. */
static bool is_locked(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        files_arm(false);
        struct flock others = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1};
        _exit(fcntl(exports.lock, F_GETLK, &others) || others.l_type != F_WRLCK);
    }
    return waitpid(child, &status, 0) == child && status == 0;
}

static int export_all(void)
{
    static const char *const MINE[] = {"policy", NULL};
    heddle_error_t e = {0};
    int first = exports_open(&exports, outbox, 1, &e);
    if (first) exports.root = -1;
    else if ((first = exports_lock(&exports, MINE, &e))) exports_close(&exports);
    for (uint64_t v = first_version; v <= 3 && exports.root >= 0; v++) {
        int rc = put_version(v);
        if (!first) first = rc;
        cr_assert(is_locked());
    }
    exports_close(&exports);
    return first;
}

/* A forked child has not the memory of its parent's versions: the process that exports them makes them. No
 * call fails meanwhile. */
static int exports_act(void)
{
    static const char *const NAMES[] = {"policy"};
    slots_t *slots;
    bool was_armed = files_arm(false);
    cr_assert_eq(slots_new(NAMES, 1, &(slots_ops_t){.io = &SLOT_IO, .wake = nothing}, &slots), HEDDLE_OK);
    for (uint64_t v = 1; v <= 3; v++) snapshots[v] = snapshot(slots, v);
    files_arm(was_armed);
    int rc = export_all();
    files_arm(false);
    for (uint64_t v = 1; v <= 3; v++) heddle_snapshot_release(&snapshots[v]);
    slots_close(&slots);
    files_arm(was_armed);
    return rc;
}

static unsigned version_in(const char *name) { return (unsigned)atoi(strchr(name, '@') + 1); }

static void check_directory(const char *name)
{
    char path[512];
    heddle_adapter_info_t info = {.size = sizeof info};
    snprintf(path, sizeof path, "%s/%s", outbox, name);
    test_content_t a = content_make(version_in(name), 4, 100);
    char digest[HEDDLE_DIGEST_TEXT];
    digest_text(&a.h1, digest);
    free(a.bytes);
    cr_assert_eq(heddle_adapter_check(path, &info), HEDDLE_OK);
    cr_assert(!strcmp(info.digest, digest));
}

/* Whole or not there. */
static unsigned exports_check(bool is_tidy)
{
    unsigned count = 0;
    DIR *d = opendir(outbox);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (e->d_name[0] == '.') {
            if (is_tidy) fprintf(stderr, "left behind: %s\n", e->d_name);
            cr_assert(!is_tidy);
        } else if (strchr(e->d_name, '@')) {
            if (version_in(e->d_name) >= first_version) check_directory(e->d_name);
            count++;
        } else {
            char target[256] = "", path[400];
            snprintf(path, sizeof path, "%s/%s", outbox, e->d_name);
            cr_assert(readlink(path, target, sizeof target - 1) > 0);
            check_directory(target);
        }
    }
    if (d) closedir(d);
    return count;
}

static void exports_after(void)
{
    exports_check(false);
    cr_assert_eq(exports_act(), HEDDLE_OK);
    cr_assert_eq(exports_check(true), 2u); /* the active one, and one before it */
}

static void exports_foreign_after(void)
{
    char command[600];
    exports_check(false);
    cr_assert_eq(exports_act(), HEDDLE_OK);
    cr_assert_eq(exports_check(true), 3u);
    snprintf(command, sizeof command,
             "cd %s && ls policy@1/adapter_config.json policy@1/run/notes policy@2/notes >/dev/null", outbox);
    cr_assert_eq(system(command), 0);
}

/* ---- keys ---- */

static keyring_t ring;
static char brokers_key[KEY_TEXT];

/* A pair whose public key is a word takes thousands of tries, a tenth of a second. Some are made once, in the
 * process that starts the others, and given in turn: no two that follow each other are equal. */
enum { PAIRS = 8 };
static key_pair_t pairs[PAIRS];
static uint32_t pair_count, next_pair;

int __real_zmq_curve_keypair(char *public_key, char *secret_key);
/* Visible: libczmq calls it as well. */
__attribute__((visibility("default"))) int __wrap_zmq_curve_keypair(char *public_key, char *secret_key);
int __wrap_zmq_curve_keypair(char *public_key, char *secret_key)
{
    if (pair_count < PAIRS) return __real_zmq_curve_keypair(public_key, secret_key);
    const key_pair_t *pair = &pairs[next_pair++ % PAIRS];
    memcpy(public_key, pair->public_key, sizeof pair->public_key);
    memcpy(secret_key, pair->secret_key, sizeof pair->secret_key);
    return 0;
}

static void keys_before(void)
{
    snprintf(ring.dir, sizeof ring.dir, "%s/a/keys", files_root);
    for (; pair_count < PAIRS; pair_count++) cr_assert_eq(key_make(&pairs[pair_count], NULL), HEDDLE_OK);
    if (!brokers_key[0]) memcpy(brokers_key, pairs[next_pair++].public_key, sizeof brokers_key);
}

static int keys_act(void)
{
    key_pair_t pair;
    heddle_error_t e = {0};
    int rc = keyring_pair(&ring, "broker", &pair, &e);
    cr_assert(!rc || e.message[0]);
    int told = keyring_register_broker(&ring, "tcp://127.0.0.1:7700", brokers_key, &e);
    if (!told)
        told = keyring_register_broker(&ring, "tcp://127.0.0.1:7700", brokers_key, &e); /* it knows already */
    return rc ? rc : told;
}

/* A key that is there is whole, and its own: never a part of one, never another. */
static void keys_after(void)
{
    key_pair_t first, again;
    char path[sizeof ring.dir + 16], known[KEY_TEXT];
    heddle_error_t e = {0};
    snprintf(path, sizeof path, "%s/broker", ring.dir);
    bool was_there = access(path, F_OK) == 0;
    if (was_there) cr_assert_eq(key_read(path, &first, &e), HEDDLE_OK);
    if (!keyring_known_broker(&ring, "tcp://127.0.0.1:7700", known, NULL))
        cr_assert(!strcmp(known, brokers_key));
    cr_assert_eq(keys_act(), HEDDLE_OK);
    cr_assert_eq(key_read(path, &again, &e), HEDDLE_OK);
    if (was_there) cr_assert(!memcmp(&first, &again, sizeof first));
    cr_assert(!keyring_known_broker(&ring, "tcp://127.0.0.1:7700", known, NULL) &&
              !strcmp(known, brokers_key));
}

/* ---- runs ---- */

static const files_row_t OWN[] = {
    {"exports", exports_before, exports_act, exports_after},
    {"exports_foreign", exports_foreign_before, exports_act, exports_foreign_after},
    {"keys", keys_before, keys_act, keys_after}};
enum { OWN_ROWS = sizeof OWN / sizeof *OWN };
static files_row_t ROWS[OWN_ROWS + DATADIR_ROWS];
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };
enum { FOR_LONG = 1000000, REFUSED = 3 /* an exit that is no sanitizer's */ };
static const struct way {
    int number;
    uint64_t length;
} WAYS[] = {{ENOSPC, 1}, {EIO, 1}, {EMFILE, 1}, {0, 1}, {EIO, FOR_LONG}};
enum { WAY_COUNT = sizeof WAYS / sizeof *WAYS };

static void begin(const files_row_t *row)
{
    snprintf(files_root, sizeof files_root, "%s/heddle-files-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    cr_assert_not_null(mkdtemp(files_root));
    snprintf(outbox, sizeof outbox, "%s/out/box", files_root);
    row->before();
}

static void end(void)
{
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", files_root);
    cr_assert_eq(system(command), 0);
}

static uint64_t count_of(const files_row_t *row)
{
    begin(row);
    calls.nth = calls.length = 0;
    calls.count = 0;
    calls.is_armed = true;
    cr_assert_eq(row->act(), HEDDLE_OK);
    calls.is_armed = false;
    row->after();
    end();
    return calls.count;
}

/* The process in which it happens ends: what it leaves is an ended process's. */
static void act_elsewhere(const files_row_t *row, uint64_t nth, struct way way)
{
    pid_t pid = fork();
    if (!pid) {
        calls.nth = nth;
        calls.length = way.length;
        calls.number = way.number;
        calls.count = calls.failed = 0;
        calls.is_armed = true;
        int rc = row->act();
        calls.is_armed = false;
        cr_assert(calls.failed > 0);
        int status = rc ? REFUSED : 0;
        if (way.number == EIO && way.length == 1)
            exit(status); /* with the leak check, which takes its time */
        _exit(status);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == REFUSED));
    batch_note(WEXITSTATUS(status) ? NOTE_REFUSED : NOTE_FINE);
}

static int ways_of(const files_row_t *row) { return WAY_COUNT - row->is_once; }

static void run(void *self, uint64_t nth)
{
    const files_row_t *row = self;
    for (int i = 0; i < ways_of(row); i++) {
        begin(row);
        act_elsewhere(row, nth, WAYS[i]);
        row->after();
        end();
    }
}

static bool torture(const files_row_t *row)
{
    uint64_t count = count_of(row), *list = malloc((size_t)(count + 1) * sizeof *list);
    for (uint64_t i = 0; i < count; i++) list[i] = i + 1;
    char repeat[64];
    snprintf(repeat, sizeof repeat, "torture_files --only %s --nth", row->name);
    batch_result_t r = batch_run(run, (void *)row, list, count, repeat);
    printf("%-16s %4llu calls, each made to fail in %d ways: %zu said so, %zu could do without, %zu wrong\n",
           row->name, (unsigned long long)count, ways_of(row), r.notes[NOTE_REFUSED], r.notes[NOTE_FINE],
           r.bad);
    free(list);
    return r.bad == 0 && count > 0;
}

int main(int argc, char **argv)
{
    const char *only = batch_only();
    uint64_t nth = 0;
    bool good = true, any = false;
    memcpy(ROWS, OWN, sizeof OWN);
    memcpy(ROWS + OWN_ROWS, DATADIR, sizeof DATADIR);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list")) return batch_list(&ROWS[0].name, ROW_COUNT, sizeof *ROWS);
        else if (i + 1 == argc) return batch_usage(argv[0]);
        else if (!strcmp(argv[i], "--only")) only = argv[++i];
        else if (!strcmp(argv[i], "--nth")) nth = strtoull(argv[++i], NULL, 10);
        else return batch_usage(argv[0]);
    }
    for (int i = 0; i < ROW_COUNT; i++) {
        if (only && strcmp(only, ROWS[i].name) != 0) continue;
        any = true;
        if (nth) run((void *)&ROWS[i], nth);
        else good &= torture(&ROWS[i]);
    }
    return good && any ? 0 : 1;
}
