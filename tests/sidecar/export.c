/* SPDX-License-Identifier: Apache-2.0 */
/* Versions as directories: complete or not there, linked atomically, pruned, and nothing left behind. */
#include "core/clock.h"
#include "tests/unit/worker_content.h"
#include "tests/unit/worker_slot.h"
#include "sidecar/export.h"
#include "worker/slots.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <heddle/adapter.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];
static exports_t exports;
static slots_t *slots;

static void nothing(void *self) { (void)self; }

static void setup(void)
{
    static const char *const NAMES[] = {"policy", "policy-2"};
    snprintf(root, sizeof root, "/tmp/heddle-export.XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    cr_assert_eq(slots_new(NAMES, 2, &(slots_ops_t){.io = &SLOT_IO, .wake = nothing}, &slots), HEDDLE_OK);
    cr_assert_eq(exports_open(&exports, root, 2, NULL), HEDDLE_OK);
}

static void teardown(void)
{
    char command[128];
    exports_close(&exports);
    slots_close(&slots);
    snprintf(command, sizeof command, "rm -rf %s", root);
    cr_assert_eq(system(command), 0);
}

TestSuite(exports, .init = setup, .fini = teardown);

/* A hold on one more version. */
static heddle_snapshot_t *snapshot(uint64_t version)
{
    test_content_t a = content_make(version, 4, 100);
    slot_t *slot = NULL, *held = NULL;
    manifest_t m;
    cr_assert_eq(slot_take(slots, 0, (uint32_t)version, a.content_bytes, &slot, NULL), HEDDLE_OK);
    memcpy(slot->parts[0].region->base, a.bytes, a.content_bytes);
    cr_assert_eq(manifest_decode(
                     bytes_of((const uint8_t *)slot->parts[0].region->view + manifest_offset(a.payload_bytes),
                              a.manifest_bytes),
                     &m, NULL),
                 HEDDLE_OK);
    cr_assert_eq(slot_seal(slot, &(seal_t){.version = version, .h1 = a.h1, .step = -1, .manifest = &m}),
                 HEDDLE_OK);
    cr_assert_eq(slots_acquire(slots, 0, version, &held), HEDDLE_OK);
    free(a.bytes);
    return held;
}

static void write_version(uint64_t version)
{
    heddle_snapshot_t *s = snapshot(version);
    heddle_error_t error = {0};
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_OK, "%s", error.message);
    heddle_snapshot_release(&s);
}

/* Names in the root, sorted, with blanks between. */
static const char *listing(void)
{
    static char text[4096];
    struct dirent **names;
    int n = scandir(root, &names, NULL, alphasort);
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i]->d_name, ".") && strcmp(names[i]->d_name, "..")) {
            strcat(text, text[0] ? " " : "");
            strcat(text, names[i]->d_name);
        }
        free(names[i]);
    }
    free(names);
    return text;
}

static const char *in_root(const char *name)
{
    static char path[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static uint64_t inode(const char *name)
{
    struct stat st;
    cr_assert_eq(stat(in_root(name), &st), 0);
    return st.st_ino;
}

Test(exports, directory_has_the_same_digest)
{
    heddle_snapshot_t *s = snapshot(3);
    char path[4400];
    heddle_adapter_info_t info = {.size = sizeof info};
    cr_assert_eq(exports_write(&exports, s, NULL), HEDDLE_OK);
    exports_path(&exports, "policy", 3, path);
    cr_assert_eq(heddle_adapter_check(path, &info), HEDDLE_OK);
    cr_assert_str_eq(info.digest, heddle_snapshot_manifest(s)->digest);
    cr_assert_str_eq(listing(), "policy@3");
    heddle_snapshot_release(&s);
}

Test(exports, same_content_stays_and_other_content_is_replaced)
{
    write_version(3);
    uint64_t before = inode("policy@3/adapter_model.safetensors");
    exports_close(&exports); /* a new run */
    cr_assert_eq(exports_open(&exports, root, 2, NULL), HEDDLE_OK);
    heddle_snapshot_t *s = NULL;
    cr_assert_eq(slots_acquire(slots, 0, 3, &s), HEDDLE_OK);
    cr_assert_eq(exports_write(&exports, s, NULL), HEDDLE_OK);
    cr_assert_eq(inode("policy@3/adapter_model.safetensors"), before);
    int fd = open(in_root("policy@3/adapter_model.safetensors"), O_WRONLY);
    cr_assert_eq(pwrite(fd, "x", 1, 5000), 1);
    close(fd);
    cr_assert_eq(exports_write(&exports, s, NULL), HEDDLE_OK);
    heddle_adapter_info_t info = {.size = sizeof info};
    cr_assert_eq(heddle_adapter_check(in_root("policy@3"), &info), HEDDLE_OK);
    cr_assert_str_eq(info.digest, heddle_snapshot_manifest(s)->digest);
    cr_assert_str_eq(listing(), "policy@3");
    heddle_snapshot_release(&s);
}

Test(exports, link_moves_atomically)
{
    char target[64] = "";
    write_version(1);
    write_version(2);
    cr_assert_eq(exports_link(&exports, "policy", 1, NULL), HEDDLE_OK);
    cr_assert_eq(exports_link(&exports, "policy", 2, NULL), HEDDLE_OK);
    cr_assert_gt(readlink(in_root("policy"), target, sizeof target - 1), 0);
    cr_assert_str_eq(target, "policy@2");
    cr_assert_str_eq(listing(), "policy policy@1 policy@2");
}

/* The error names the path and says what to do. */
static void cr_tells(const heddle_error_t *error, const char *name)
{
    cr_assert(strstr(error->message, in_root(name)) && !strcmp(error->phase, "export"), "%s", error->message);
    cr_assert(strstr(error->hint, "--export"), "%s", error->hint);
}

static void touch(const char *name) { close(open(in_root(name), O_CREAT | O_WRONLY | O_EXCL, 0600)); }

Test(exports, what_is_in_the_links_place_is_an_error_before_anything_is_written)
{
    heddle_error_t error;
    write_version(1);
    heddle_snapshot_t *s = snapshot(2);
    cr_assert_eq(mkdir(in_root("policy"), 0700), 0);
    cr_assert_eq(exports_check_link(&exports, "policy", &error), HEDDLE_ERR_DATA_DIR);
    cr_tells(&error, "policy");
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_ERR_DATA_DIR);
    cr_tells(&error, "policy");
    cr_assert_eq(exports_link(&exports, "policy", 1, &error), HEDDLE_ERR_DATA_DIR);
    cr_tells(&error, "policy");
    cr_assert_str_eq(listing(), "policy policy@1");
    rmdir(in_root("policy"));
    touch("policy");
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert_eq(exports_link(&exports, "policy", 1, &error), HEDDLE_ERR_DATA_DIR);
    cr_tells(&error, "policy");
    cr_assert_eq(exports_link(&exports, "policy", 0, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert_str_eq(listing(), "policy policy@1");
    heddle_snapshot_release(&s);
}

Test(exports, what_cannot_be_replaced_stays_whole_and_is_named)
{
    heddle_error_t error;
    heddle_snapshot_t *s = snapshot(3);
    touch("policy@3");
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_ERR_DATA_DIR);
    cr_tells(&error, "policy@3");
    unlink(in_root("policy@3"));
    mkdir(in_root("policy@3"), 0700);
    touch("policy@3/notes");
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_ERR_DATA_DIR);
    cr_tells(&error, "policy@3");
    touch("policy@3/adapter_config.json");
    mkdir(in_root("policy@3/more"), 0700);
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_ERR_DATA_DIR);
    cr_tells(&error, "policy@3");
    exports_remove(&exports, "policy", 3);
    cr_assert_eq(access(in_root("policy@3/notes"), F_OK), 0);
    cr_assert_eq(access(in_root("policy@3/adapter_config.json"), F_OK), 0);
    cr_assert_str_eq(listing(), "policy@3");
    rmdir(in_root("policy@3/more")); /* flat, with one of PEFT's files: of an earlier run */
    cr_assert_eq(exports_write(&exports, s, NULL), HEDDLE_OK);
    cr_assert_neq(access(in_root("policy@3/notes"), F_OK), 0);
    heddle_snapshot_release(&s);
}

Test(exports, a_root_that_was_removed_is_made_again)
{
    write_version(1);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
    write_version(2);
    cr_assert_eq(exports_link(&exports, "policy", 2, NULL), HEDDLE_OK);
    cr_assert_str_eq(listing(), "policy policy@2");
    cr_assert_eq(system(command), 0);
    close(open(root, O_CREAT | O_WRONLY | O_EXCL, 0600));
    heddle_error_t error;
    heddle_snapshot_t *s = snapshot(3);
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.message, root) && !strcmp(error.phase, "export") && error.hint[0]);
    unlink(root);
    cr_assert_eq(exports_write(&exports, s, NULL), HEDDLE_OK);
    heddle_snapshot_release(&s);
}

static mode_t mode_of(const char *name)
{
    struct stat st;
    cr_assert_eq(stat(in_root(name), &st), 0);
    return st.st_mode & 0777;
}

Test(exports, others_may_read_as_the_umask_says)
{
    umask(022);
    write_version(1);
    cr_assert_eq(mode_of("policy@1"), 0755);
    cr_assert_eq(mode_of("policy@1/adapter_config.json"), 0644);
    cr_assert_eq(mode_of("policy@1/adapter_model.safetensors"), 0644);
    umask(0);
    write_version(2);
    cr_assert_eq(mode_of("policy@2"), 0755);
    cr_assert_eq(mode_of("policy@2/adapter_model.safetensors"), 0644);
    umask(077);
    write_version(3);
    cr_assert_eq(mode_of("policy@3"), 0700);
    cr_assert_eq(mode_of("policy@3/adapter_model.safetensors"), 0600);
    exports_t x;
    umask(0);
    cr_assert_eq(exports_open(&x, in_root("new"), 2, NULL), HEDDLE_OK);
    exports_close(&x);
    cr_assert_eq(mode_of("new"), 0755);
}

static bool never(void *self, const char *adapter, uint64_t version)
{
    (void)self;
    (void)adapter;
    (void)version;
    return false;
}
static bool is_four(void *self, const char *adapter, uint64_t version)
{
    (void)self;
    (void)adapter;
    return version == 4;
}

Test(exports, old_directories_go_and_the_active_one_stays)
{
    for (uint64_t v = 1; v <= 11; v++) write_version(v);
    cr_assert_eq(mkdir(in_root("policy-2@1"), 0700), 0); /* of another adapter */
    cr_assert_eq(mkdir(in_root("policy@x"), 0700), 0);   /* of somebody else */
    cr_assert_eq(mkdir(in_root("policy@99:3f9a1c20d4e1"), 0700), 0);
    exports_link(&exports, "policy", 2, NULL);
    exports_prune(&exports, "policy", is_four, NULL);
    cr_assert_str_eq(listing(), "policy policy-2@1 policy@10 policy@11 policy@2 policy@4 "
                                "policy@99:3f9a1c20d4e1 policy@x");
    exports_prune(&exports, "policy", never, NULL);
    cr_assert_str_eq(listing(),
                     "policy policy-2@1 policy@10 policy@11 policy@2 policy@99:3f9a1c20d4e1 policy@x");
    exports_link(&exports, "policy", 11, NULL);
    exports_prune(&exports, "policy", never, NULL);
    cr_assert_str_eq(listing(),
                     "policy policy-2@1 policy@10 policy@11 policy@2 policy@99:3f9a1c20d4e1 policy@x");
}

Test(exports, a_damaged_one_stays_until_there_is_another)
{
    write_version(3);
    exports_link(&exports, "policy", 3, NULL);
    heddle_snapshot_t *s = NULL;
    cr_assert_eq(slots_acquire(slots, 0, 3, &s), HEDDLE_OK);
    int fd = open(in_root("policy@3/adapter_model.safetensors"), O_WRONLY);
    cr_assert_eq(pwrite(fd, "x", 1, 5000), 1);
    close(fd);
    uint64_t before = inode("policy@3/adapter_model.safetensors");
    struct rlimit limit, small = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &limit);
    small.rlim_max = limit.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    heddle_error_t error;
    cr_assert_neq(exports_write(&exports, s, &error), HEDDLE_OK);
    cr_assert_eq(inode("policy/adapter_model.safetensors"), before, "what the link names is still there");
    cr_assert_str_eq(listing(), "policy policy@3");
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_OK);
    heddle_adapter_info_t info = {.size = sizeof info};
    cr_assert_eq(heddle_adapter_check(in_root("policy"), &info), HEDDLE_OK);
    cr_assert_str_eq(listing(), "policy policy@3");
    heddle_snapshot_release(&s);
}

Test(exports, what_cannot_be_read_is_not_known_to_be_wrong)
{
    write_version(3);
    char found[HEDDLE_DIGEST_TEXT];
    heddle_error_t error;
    struct rlimit limit, none;
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = 3;
    char path[300];
    snprintf(path, sizeof path, "%s", in_root("policy@3"));
    setrlimit(RLIMIT_NOFILE, &none);
    int rc = exports_look(path, "h1:", found, &error);
    setrlimit(RLIMIT_NOFILE, &limit);
    cr_assert(rc != HEDDLE_OK && rc != HEDDLE_ERR_DIGEST_MISMATCH && !found[0] && error.message[0]);
    cr_assert_eq(exports_look(path, "h1:", found, &error), HEDDLE_ERR_DIGEST_MISMATCH);
    cr_assert(found[0]);
    cr_assert_eq(exports_look(in_root("policy@4"), "h1:", found, &error), HEDDLE_ERR_DIGEST_MISMATCH);
    cr_assert_str_eq(found, "");
}

/* Both files are there, and they are no adapter: they have a digest that no version has. */
Test(exports, what_was_damaged_is_not_missing)
{
    write_version(3);
    char found[HEDDLE_DIGEST_TEXT];
    heddle_error_t error;
    digest_t digest;
    int fd = open(in_root("policy@3/adapter_model.safetensors"), O_WRONLY | O_APPEND);
    cr_assert_eq(write(fd, "xx", 2), 2);
    close(fd);
    cr_assert_eq(exports_look(in_root("policy@3"), "h1:", found, &error), HEDDLE_ERR_DIGEST_MISMATCH);
    cr_assert(digest_parse(found, &digest) && digest_equal(&digest, &(digest_t){0}), "%s", found);
    cr_assert_eq(unlink(in_root("policy@3/adapter_config.json")), 0);
    cr_assert_eq(exports_look(in_root("policy@3"), "h1:", found, &error), HEDDLE_ERR_DIGEST_MISMATCH);
    cr_assert_str_eq(found, "", "half of it is missing");
}

Test(exports, failed_version_is_removed_but_not_the_active_one)
{
    write_version(1);
    write_version(2);
    exports_link(&exports, "policy", 1, NULL);
    exports_remove(&exports, "policy", 1);
    exports_remove(&exports, "policy", 2);
    exports_remove(&exports, "policy", 9);
    cr_assert_str_eq(listing(), "policy policy@1");
}

Test(exports, leftovers_go_and_nothing_else)
{
    static const char *const MINE[] = {"policy", NULL};
    static const char *const OTHERS[] = {".policy.tmp-99@1.tmp-1.0", ".policy2@5.tmp-1.0", ".critic.link-7",
                                         ".policy.link-x",           ".policy@x.tmp-1.0",  ".hidden"};
    mkdir(in_root(".policy@5.tmp-1.0"), 0700); /* whatever the pid: 1 is every container's */
    close(open(in_root(".policy@5.tmp-1.0/adapter_config.json"), O_CREAT | O_WRONLY, 0600));
    mkdir(in_root(".policy@12.tmp-9.gone"), 0700);
    cr_assert_eq(symlink("policy@5", in_root(".policy.link-1")), 0);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        cr_assert_eq(mkdir(in_root(OTHERS[i]), 0700), 0);
    exports_close(&exports);
    cr_assert_eq(exports_open(&exports, root, 2, NULL), HEDDLE_OK);
    cr_assert(strstr(listing(), ".policy@5.tmp-1.0"), "until the adapter is locked it may be somebody's");
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    cr_assert(!strstr(listing(), ".policy@5.") && !strstr(listing(), ".policy@12.") &&
              !strstr(listing(), ".policy.link-1"));
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        cr_assert(strstr(listing(), OTHERS[i]), "%s", OTHERS[i]);
}

Test(exports, export_refuses_what_is_there_and_leaves_nothing)
{
    heddle_snapshot_t *s = snapshot(1);
    write_version(2);
    cr_assert_eq(heddle_snapshot_export(s, in_root("policy@2")), HEDDLE_ERR_USAGE);
    cr_assert(strstr(heddle_last_error()->message, "policy@2") && *heddle_last_error()->hint);
    cr_assert_eq(heddle_snapshot_export(s, in_root("no/such/parent")), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(heddle_snapshot_export(s, ""), HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_snapshot_export(s, ".."), HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_snapshot_export(s, "/"), HEDDLE_ERR_USAGE);
    cr_assert_str_eq(listing(), "policy@2");
    cr_assert_eq(heddle_snapshot_export(s, in_root("slash///")), HEDDLE_OK);
    cr_assert_str_eq(listing(), "policy@2 slash");
    heddle_snapshot_release(&s);
}

/* As `mkdir DIR` before the call leaves it; nothing else is replaced. */
Test(exports, export_takes_the_place_of_an_empty_directory)
{
    heddle_snapshot_t *s = snapshot(1);
    mkdir(in_root("empty"), 0700);
    cr_assert_eq(heddle_snapshot_export(s, in_root("empty")), HEDDLE_OK, "%s", heddle_last_error()->message);
    cr_assert_eq(access(in_root("empty/adapter_config.json"), R_OK), 0);
    struct stat there;
    cr_assert(!stat(in_root("empty"), &there) && (there.st_mode & 07777) == 0700, "%o", there.st_mode);
    close(open(in_root("file"), O_CREAT | O_WRONLY, 0600));
    mkdir(in_root("other"), 0700);
    cr_assert_eq(symlink("other", in_root("link")), 0);
    cr_assert_eq(symlink("nowhere", in_root("dangling")), 0);
    static const char *const TAKEN[] = {"empty", "file", "link", "dangling"};
    for (size_t i = 0; i < sizeof TAKEN / sizeof *TAKEN; i++)
        cr_assert_eq(heddle_snapshot_export(s, in_root(TAKEN[i])), HEDDLE_ERR_USAGE, "%s", TAKEN[i]);
    cr_assert_str_eq(listing(), "dangling empty file link other");
    heddle_snapshot_release(&s);
}

Test(exports, root_is_made_or_the_error_names_it)
{
    exports_t x;
    heddle_error_t error;
    cr_assert_eq(exports_open(&x, in_root("a/b/c"), 2, NULL), HEDDLE_OK);
    exports_close(&x);
    close(open(in_root("file"), O_CREAT | O_WRONLY, 0600));
    cr_assert_eq(exports_open(&x, in_root("file"), 2, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.message, "file"));
    cr_assert_eq(exports_open(&x, in_root("file/below"), 2, &error), HEDDLE_ERR_DATA_DIR);
}

/* What another process hears that wants `adapter` exported into the same root: its code; its pid is told in the message. */
static int lock_elsewhere(const char *adapter, bool *ret_named)
{
    int channel[2], answer[2] = {0};
    cr_assert_eq(pipe(channel), 0);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        const char *const wanted[] = {adapter, NULL};
        char pid[32];
        exports_t x;
        heddle_error_t error = {0};
        snprintf(pid, sizeof pid, "pid %ld", (long)parent);
        answer[0] = exports_open(&x, root, 2, NULL);
        if (!answer[0]) answer[0] = exports_lock(&x, wanted, &error);
        answer[1] = strstr(error.message, pid) && strstr(error.message, adapter) && error.expected[0] &&
                    error.hint[0];
        exports_close(&x);
        _exit(write(channel[1], answer, sizeof answer) != sizeof answer);
    }
    waitpid(child, NULL, 0);
    cr_assert_eq(read(channel[0], answer, sizeof answer), sizeof answer);
    close(channel[0]);
    close(channel[1]);
    *ret_named = answer[1];
    return answer[0];
}

Test(exports, one_process_exports_an_adapter_into_a_root)
{
    static const char *const MINE[] = {"policy", "critic", NULL};
    bool is_named;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    cr_assert_eq(lock_elsewhere("critic", &is_named), HEDDLE_ERR_DATA_LOCKED);
    cr_assert(is_named);
    cr_assert_eq(lock_elsewhere("actor", &is_named), HEDDLE_OK);
    cr_assert_str_eq(listing(), ".heddle.lock"); /* who shared it left it */
    write_version(1);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
    write_version(2); /* the root that is made again is locked as well */
    cr_assert_eq(lock_elsewhere("policy", &is_named), HEDDLE_ERR_DATA_LOCKED);
    exports_close(&exports);
    cr_assert_eq(lock_elsewhere("policy", &is_named), HEDDLE_OK);
    cr_assert_eq(exports_open(&exports, root, 2, NULL), HEDDLE_OK);
    cr_assert_str_eq(listing(), "policy@2");
}

/* A process that holds the first byte of the lock file, as whoever may read it could. */
static pid_t bar_gate(int *ret_leave)
{
    int leave[2], ready[2];
    char byte;
    cr_assert(pipe(leave) == 0 && pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct flock gate = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1};
        int fd = open(in_root(".heddle.lock"), O_RDONLY);
        close(leave[1]);
        if (fcntl(fd, F_SETLK, &gate) || write(ready[1], "x", 1) != 1) _exit(1);
        _exit(read(leave[0], &byte, 1) < 0);
    }
    close(leave[0]);
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *ret_leave = leave[1];
    return child;
}

Test(exports, a_process_that_stays_at_the_gate_delays_others_for_a_time, .timeout = 10)
{
    static const char *const MINE[] = {"policy", NULL}, *const ANOTHERS[] = {"critic", NULL};
    heddle_error_t error = {0};
    exports_t later;
    char pid[32];
    int leave;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    pid_t child = bar_gate(&leave);
    exports_close(&exports);
    cr_assert_str_eq(listing(), ".heddle.lock");
    cr_assert_eq(exports_open(&later, root, 2, NULL), HEDDLE_OK);
    cr_assert_eq(exports_lock(&later, ANOTHERS, &error), HEDDLE_ERR_DATA_LOCKED);
    snprintf(pid, sizeof pid, "pid %ld", (long)child);
    cr_assert(strstr(error.message, pid) && strstr(error.message, root) && error.hint[0] && error.retriable);
    close(leave);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    cr_assert_eq(exports_lock(&later, ANOTHERS, &error), HEDDLE_OK);
    exports_close(&later);
    cr_assert_str_eq(listing(), "");
}

Test(exports, who_may_only_read_cannot_lock)
{
    static const char *const MINE[] = {"policy", NULL};
    umask(022);
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    cr_assert_eq(mode_of(".heddle.lock"), 0600);
    exports_close(&exports);
    umask(002);
    cr_assert_eq(exports_open(&exports, root, 2, NULL), HEDDLE_OK);
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    cr_assert_eq(mode_of(".heddle.lock"), 0620, "a group that may write may export");
}

Test(exports, what_is_no_file_in_the_locks_place_holds_nobody, .timeout = 10)
{
    static const char *const MINE[] = {"policy", NULL};
    heddle_error_t error = {0};
    cr_assert_eq(mkfifo(in_root(".heddle.lock"), 0666), 0);
    cr_assert_eq(exports_lock(&exports, MINE, &error), HEDDLE_ERR_DATA_DIR);
    cr_assert(strstr(error.message, ".heddle.lock") && error.hint[0]);
}

/* As in another container: who holds the lock has no number here. */
static int lock_in_a_namespace(heddle_error_t *ret_error)
{
    static const char *const MINE[] = {"policy", NULL};
    struct {
        int code;
        heddle_error_t error;
    } answer = {.code = 1};
    int channel[2];
    cr_assert_eq(pipe(channel), 0);
    pid_t child = fork();
    if (child == 0) {
        if (unshare((geteuid() ? CLONE_NEWUSER : 0) | CLONE_NEWPID) != 0) _exit(2);
        if (fork() == 0) {
            exports_t x;
            answer.code = exports_open(&x, root, 2, NULL);
            if (!answer.code) answer.code = exports_lock(&x, MINE, &answer.error);
            exports_close(&x);
            _exit(write(channel[1], &answer, sizeof answer) != sizeof answer);
        }
        wait(NULL);
        _exit(0);
    }
    int status;
    cr_assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
    close(channel[1]);
    if (WEXITSTATUS(status) == 2) cr_skip_test("no namespaces here");
    cr_assert_eq(read(channel[0], &answer, sizeof answer), sizeof answer);
    close(channel[0]);
    *ret_error = answer.error;
    return answer.code;
}

Test(exports, who_has_no_number_here_is_somewhere_else)
{
    static const char *const MINE[] = {"policy", NULL};
    heddle_error_t error;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    cr_assert_eq(lock_in_a_namespace(&error), HEDDLE_ERR_DATA_LOCKED);
    cr_assert(strstr(error.message, "in another container or on another host") &&
                  !strstr(error.message, "pid"),
              "%s", error.message);
    cr_assert_str_eq(error.found, "a worker in another container or on another host");
    cr_assert_eq(error.retriable, 1);
}

/* The directory seems to be another one, and the lock file in it is the one that is locked: opened and closed again,
 * it would be locked no more. */
Test(exports, a_lock_that_is_there_already_is_kept)
{
    static const char *const MINE[] = {"policy", NULL};
    char before[80], lock[100];
    bool is_named;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    snprintf(before, sizeof before, "%s.before", root);
    snprintf(lock, sizeof lock, "%s/.heddle.lock", before);
    cr_assert(rename(root, before) == 0 && mkdir(root, 0755) == 0 &&
              link(lock, in_root(".heddle.lock")) == 0);
    write_version(1);
    cr_assert_str_eq(listing(), ".heddle.lock policy@1");
    cr_assert_eq(lock_elsewhere("policy", &is_named), HEDDLE_ERR_DATA_LOCKED);
    cr_assert(is_named && unlink(lock) == 0 && rmdir(before) == 0);
    exports_close(&exports);
    cr_assert_str_eq(listing(), "policy@1");
}

Test(exports, full_disk_is_no_space_and_leaves_nothing)
{
    if (geteuid() != 0 || system("mount -t tmpfs -o size=16k none /mnt 2>/dev/null") != 0)
        cr_skip("needs the right to mount");
    exports_t x;
    heddle_error_t error;
    heddle_snapshot_t *s = snapshot(1);
    cr_assert_eq(exports_open(&x, "/mnt", 2, NULL), HEDDLE_OK);
    int rc = exports_write(&x, s, &error);
    exports_close(&x);
    bool is_empty = system("test -z \"$(ls -A /mnt)\"") == 0;
    cr_assert_eq(system("umount /mnt"), 0);
    cr_assert_eq(rc, HEDDLE_ERR_NO_SPACE);
    cr_assert(is_empty);
    heddle_snapshot_release(&s);
}

/* A file system that gives the lock's file another number whenever its name is looked at, or cannot tell. */
static bool numbers_change, is_unreadable;

int fstatat(int dir, const char *restrict name, struct stat *restrict st, int flags)
{
    if (is_unreadable && !strcmp(name, ".heddle.lock")) {
        errno = EIO;
        return -1;
    }
    if (syscall(SYS_newfstatat, dir, name, st, flags) != 0) return -1;
    if (numbers_change && !strcmp(name, ".heddle.lock")) st->st_ino++;
    return 0;
}

Test(exports, a_lock_whose_number_changes_holds_nobody, .timeout = 10)
{
    static const char *const ADAPTERS[] = {"policy", NULL};
    heddle_error_t error;
    numbers_change = true;
    cr_assert_eq(exports_lock(&exports, ADAPTERS, &error), HEDDLE_ERR_DATA_LOCKED);
    cr_assert(error.retriable && strstr(error.message, "another file at each of") && error.hint[0], "%s",
              error.message);
    numbers_change = false;
    cr_assert_eq(exports_lock(&exports, ADAPTERS, &error), HEDDLE_OK);
}

/* A file system without locks, for once or for good; or a gate that is barred 15 times of 16. */
static bool has_no_locks, is_barred;

static bool is_gate(int command, const struct flock *lock)
{
    return command == F_SETLK && lock->l_type == F_WRLCK && lock->l_start == 0;
}

int fcntl(int fd, int command, ...)
{
    static unsigned asked;
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    if ((has_no_locks || is_barred) && is_gate(command, argument)) {
        errno = has_no_locks ? ENOLCK : EAGAIN;
        if (has_no_locks || ++asked % 16) return -1;
    }
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

static uint64_t now_ms(void) { return clock_now(clock_system()) / 1000; }

Test(exports, a_lock_costs_a_moment_in_all, .timeout = 10)
{
    static const char *const ADAPTERS[] = {"policy", NULL};
    uint64_t began_ms = now_ms();
    numbers_change = is_barred = true;
    cr_assert_eq(exports_lock(&exports, ADAPTERS, NULL), HEDDLE_ERR_DATA_LOCKED);
    cr_assert_lt(now_ms() - began_ms, 800, "20 rounds of 80 ms");
}

/* Locks that were to be had before: w1 has one, and is not robbed of its file. */
Test(exports, who_goes_without_a_lock_leaves_the_file_of_another)
{
    static const char *const MINE[] = {"policy", NULL};
    bool is_named;
    has_no_locks = true;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    cr_assert_str_eq(listing(), "", "its own goes");
    has_no_locks = false;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    has_no_locks = true;
    uint64_t before = inode(".heddle.lock");
    cr_assert_eq(lock_elsewhere("critic", &is_named), HEDDLE_OK);
    has_no_locks = false;
    cr_assert(!access(in_root(".heddle.lock"), F_OK) && inode(".heddle.lock") == before);
    cr_assert_eq(lock_elsewhere("policy", &is_named), HEDDLE_ERR_DATA_LOCKED);
    cr_assert(is_named);
}

/* A worker that got the adapter: a process that holds it until it is told. */
static pid_t take_elsewhere(int *ret_leave)
{
    static const char *const THEIRS[] = {"policy", NULL};
    int leave[2], ready[2];
    char byte = 0;
    cr_assert(pipe(leave) == 0 && pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        exports_t x;
        close(leave[1]);
        if (exports_open(&x, root, 2, NULL) || exports_lock(&x, THEIRS, NULL) || write(ready[1], "x", 1) != 1)
            _exit(1);
        if (read(leave[0], &byte, 1) < 0) _exit(1);
        exports_close(&x);
        _exit(0);
    }
    close(leave[0]);
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    *ret_leave = leave[1];
    return child;
}

Test(exports, a_lock_file_that_was_removed_is_noticed)
{
    static const char *const MINE[] = {"policy", NULL};
    heddle_error_t error = {0};
    bool is_named;
    int leave;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    cr_assert_eq(unlink(in_root(".heddle.lock")), 0);
    write_version(1);
    cr_assert_eq(lock_elsewhere("policy", &is_named), HEDDLE_ERR_DATA_LOCKED, "it is taken again");
    cr_assert_eq(unlink(in_root(".heddle.lock")), 0);
    pid_t child = take_elsewhere(&leave);
    heddle_snapshot_t *s = snapshot(2);
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_ERR_DATA_LOCKED);
    cr_assert(strstr(error.message, "another worker exports policy there") && error.hint[0], "%s",
              error.message);
    close(leave);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    cr_assert_eq(exports_write(&exports, s, &error), HEDDLE_OK, "%s", error.message);
    exports_close(&exports);
    cr_assert_str_eq(listing(), "policy@1 policy@2");
    heddle_snapshot_release(&s);
}

static void cannot_be_told(int rc, const heddle_error_t *error, const char *what)
{
    cr_assert_eq(rc, HEDDLE_ERR_DATA_DIR, "%s: %s", heddle_err_name(rc), error->message);
    cr_assert(strstr(error->message, what) && strstr(error->message, root) && error->hint[0], "%s",
              error->message);
}

/* A failing disk says nothing about who has the lock: neither that it is ours, nor that it is not. */
Test(exports, a_lock_that_cannot_be_looked_at_is_nobodys)
{
    static const char *const MINE[] = {"policy", NULL};
    heddle_error_t error = {0};
    char command[200];
    is_unreadable = true;
    cannot_be_told(exports_lock(&exports, MINE, &error), &error, "cannot lock");
    is_unreadable = false;
    cr_assert_eq(exports_lock(&exports, MINE, &error), HEDDLE_OK);
    is_unreadable = true;
    cannot_be_told(exports_find(&exports, "policy", &error), &error, "cannot look at the lock");
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
    cannot_be_told(exports_find(&exports, "policy", &error), &error, "cannot look at the lock");
    is_unreadable = false;
    cr_assert_eq(exports_find(&exports, "policy", &error), HEDDLE_OK, "%s", error.message);
    cr_assert_str_eq(listing(), ".heddle.lock");
}

static const char *hidden_path; /* cannot be looked at the next time */

int stat(const char *restrict path, struct stat *restrict st)
{
    bool is_hidden = hidden_path && !strcmp(path, hidden_path);
    if (!is_hidden) return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
    hidden_path = NULL;
    errno = EIO;
    return -1;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir)) count++;
    closedir(dir);
    return count;
}

Test(exports, a_directory_that_could_not_be_looked_at_for_a_moment_costs_no_descriptor)
{
    static const char *const MINE[] = {"policy", NULL};
    bool is_named;
    cr_assert_eq(exports_lock(&exports, MINE, NULL), HEDDLE_OK);
    int before = count_descriptors(), used = exports.root;
    hidden_path = exports.path;
    cr_assert_eq(exports_find(&exports, "policy", NULL), HEDDLE_OK);
    cr_assert(!hidden_path && exports.root == used);
    cr_assert_eq(count_descriptors(), before);
    cr_assert_eq(lock_elsewhere("policy", &is_named), HEDDLE_ERR_DATA_LOCKED);
}
