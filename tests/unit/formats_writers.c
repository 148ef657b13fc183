/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters that somebody has open for writing while they are read: torn bytes are never taken. */
#include "core/clock.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/stop.h"
#include "formats/peft.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONFIG "adapter_config.json"
#define MODEL "adapter_model.safetensors"
#define DATA_BYTES (9u << 20) /* more than two looks at the clock */
#define BAD HEDDLE_ERR_BAD_ADAPTER

static const char CONFIG_TEXT[] = "{\"peft_type\": \"LORA\", \"r\": 1}";
static const char *const PLACES[] = {"/tmp", "/dev/shm"};

static char dir[64];
static uint64_t data_start;
static uint8_t *payload;
static heddle_error_t why;

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(path_of(name), "w");
    cr_assert(f && fwrite(data, 1, bytes, f) == bytes && !fclose(f), "%s", path_of(name));
}

/* An overlay does not tell who mapped a file, and others nothing at all: there the bytes are compared. */
static bool tells_of_writers(const char *place)
{
    struct statfs fs;
    cr_assert_eq(statfs(place, &fs), 0);
    return fs.f_type == TMPFS_MAGIC || fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC ||
           (uint32_t)fs.f_type == BTRFS_SUPER_MAGIC;
}

static void make_adapter(const char *place)
{
    char header[160];
    buf_t b = {0};
    snprintf(dir, sizeof dir, "%s/heddle-writers-XXXXXX", place);
    cr_assert(mkdtemp(dir));
    int n = snprintf(header, sizeof header,
                     "{\"a.lora_A\":{\"dtype\":\"U8\",\"shape\":[%u],\"data_offsets\":[0,%u]}}", DATA_BYTES,
                     DATA_BYTES);
    le64_put(buf_grow(&b, 8), (uint64_t)n);
    buf_add(&b, header, (size_t)n);
    memset(buf_grow(&b, DATA_BYTES), 1, DATA_BYTES);
    data_start = 8 + (uint64_t)n;
    put(MODEL, b.data, b.bytes);
    put(CONFIG, CONFIG_TEXT, sizeof CONFIG_TEXT - 1);
    buf_fini(&b);
    payload = malloc(DATA_BYTES + 4096);
    cr_assert(payload);
}

static void drop_adapter(void)
{
    unlink(path_of(MODEL));
    unlink(path_of(CONFIG));
    rmdir(dir);
    free(payload);
}

static int read_adapter(void)
{
    peft_dir_t *d = NULL;
    why = (heddle_error_t){0};
    static uint64_t leaves[DATA_BYTES / 4096 + 1];
    int rc = peft_open(dir, &d, &why);
    if (!rc) rc = peft_read(d, &(peft_sink_t){.base = payload, .leaves = leaves}, (uint64_t[]){0}, &why);
    peft_close(&d);
    return rc;
}

/* The whole of the model file, mapped; the descriptor is closed. */
static uint8_t *map(int flags, int protection, int kind)
{
    int fd = open(path_of(MODEL), flags);
    cr_assert_geq(fd, 0);
    uint8_t *at = mmap(NULL, data_start + DATA_BYTES, protection, kind, fd, 0);
    cr_assert_neq(at, MAP_FAILED);
    close(fd);
    return at;
}
static void unmap(uint8_t *at) { munmap(at, data_start + DATA_BYTES); }
static uint8_t *map_to_write(void) { return map(O_RDWR, PROT_READ | PROT_WRITE, MAP_SHARED); }

static void refused_as(int rc, const char *message, const char *found)
{
    cr_assert_eq(rc, BAD, "%d %s", rc, why.message);
    cr_assert(strstr(why.message, message), "'%s' in '%s'", message, why.message);
    cr_assert(strstr(why.found, found), "'%s' in '%s'", found, why.found);
    cr_assert(why.expected[0] && why.hint[0]);
}

static void refuses_writers(const char *place)
{
    static const char *const NAMES[] = {MODEL, CONFIG};
    heddle_adapter_info_t info;
    make_adapter(place);
    for (int i = 0; i < 2; i++) {
        int fd = open(path_of(NAMES[i]), O_WRONLY | O_APPEND);
        refused_as(read_adapter(), NAMES[i], "open for writing");
        refused_as(read_adapter(), "is still open for writing", "open for writing");
        refused_as(peft_digest(dir, &info, &why), "is still open for writing", "open for writing");
        close(fd);
    }
    uint8_t *at = map_to_write();
    refused_as(read_adapter(), "is still open for writing", "mapped so");
    refused_as(peft_digest(dir, &info, &why), "is still open for writing", "mapped so");
    unmap(at);
    cr_assert_eq(read_adapter(), HEDDLE_OK, "%s", why.message);
    drop_adapter();
}

Test(writers, who_may_still_write_is_waited_for)
{
    for (int i = 0; i < 2; i++)
        if (tells_of_writers(PLACES[i])) refuses_writers(PLACES[i]);
}

Test(writers, who_reads_is_in_nobodys_way)
{
    for (int i = 0; i < 2; i++) {
        heddle_adapter_info_t info;
        make_adapter(PLACES[i]);
        int fd = open(path_of(MODEL), O_RDONLY);
        uint8_t *shared = map(O_RDONLY, PROT_READ, MAP_SHARED);
        uint8_t *private = map(O_RDONLY, PROT_READ | PROT_WRITE, MAP_PRIVATE);
        private[data_start] = 7;
        cr_assert_eq(read_adapter(), HEDDLE_OK, "%s", why.message);
        cr_assert_eq(payload[0], 1);
        cr_assert_eq(peft_digest(dir, &info, &why), HEDDLE_OK, "%s", why.message);
        unmap(shared);
        unmap(private);
        close(fd);
        drop_adapter();
    }
}

/* ---- what happens in the middle: after the first piece was read, before the last one is */

static void (*middle)(void);
static uint8_t *mapped;

static int act(const stop_t *stop, heddle_error_t *error)
{
    (void)stop;
    (void)error;
    if (middle) middle();
    middle = NULL;
    return HEDDLE_OK;
}

static int read_while(void (*action)(void))
{
    static const stop_t STOP = {act};
    middle = action;
    stop_begin(&STOP);
    int rc = read_adapter();
    stop_end();
    cr_assert_null(middle);
    return rc;
}

static void write_mapped(void) { memset(mapped + data_start, 2, DATA_BYTES); }
static void let_go(void) { unmap(mapped); }
static void write_mapped_and_let_go(void)
{
    write_mapped();
    let_go();
}
/* A page that was read first is written, on tmpfs, without moving the file's times. */
static void come_and_go(void)
{
    mapped = map_to_write();
    cr_assert(!memchr(mapped + data_start, 2, DATA_BYTES));
    write_mapped_and_let_go();
}

/* Dirty before the file is opened, so that no write moves its times any more. */
static void map_dirty(void)
{
    mapped = map_to_write();
    memset(mapped + data_start, 1, DATA_BYTES);
}

Test(writers, who_lets_go_while_it_is_read_has_left_what_was_read_or_it_is_refused)
{
    for (int i = 0; i < 2; i++) {
        make_adapter(PLACES[i]);
        map_dirty();
        cr_assert_eq(read_while(let_go), HEDDLE_OK, "%s", why.message);
        map_dirty();
        refused_as(read_while(write_mapped_and_let_go), "changed while it was read", "");
        drop_adapter();
    }
}

Test(writers, who_comes_and_goes_while_it_is_read_is_seen)
{
    for (int i = 0; i < 2; i++) {
        make_adapter(PLACES[i]);
        refused_as(read_while(come_and_go), "changed while it was read", "");
        drop_adapter();
    }
}

/* ---- where the system does not tell who writes: the second look at the model file is its last */

enum { OPENED_MODEL = 1, OPENED_CONFIG, READ_MODEL };

Test(writers, where_nobody_tells_the_bytes_are_compared)
{
    make_adapter("/dev/shm");
    map_dirty();
    failpoint_arm("peft.lease", READ_MODEL);
    cr_assert_eq(read_adapter(), HEDDLE_OK, "%s", why.message);
    cr_assert(failpoint_has_failed());
    failpoint_arm("peft.lease", READ_MODEL);
    refused_as(read_while(write_mapped), "changed while it was read", "read again");
    failpoint_disarm();
    let_go();
    drop_adapter();
}

static atomic_bool is_over;

static void *count_up(void *data)
{
    _Atomic uint64_t *at = data;
    while (!is_over) atomic_fetch_add(at, 1);
    return NULL;
}

Test(writers, where_nobody_tells_it_is_digested_twice)
{
    heddle_adapter_info_t info;
    pthread_t thread;
    make_adapter("/dev/shm");
    map_dirty();
    uint8_t *counter = mapped + ((data_start + 4095) & ~4095ull);
    cr_assert_eq(pthread_create(&thread, NULL, count_up, counter), 0);
    uint64_t until_us = clock_now(clock_system()) + 20000000;
    int rc;
    do {
        failpoint_arm("peft.lease", READ_MODEL);
        rc = peft_digest(dir, &info, &why);
    } while (!rc && clock_now(clock_system()) < until_us);
    failpoint_disarm();
    is_over = true;
    pthread_join(thread, NULL);
    refused_as(rc, "changed while it was read", "read again");
    let_go();
    drop_adapter();
}

/* ---- the writer's side */

static volatile sig_atomic_t broken_count;
static void on_break(int number) { broken_count += number == SIGURG; }

/* One that opens it in the very moment in which the lease is held breaks it: by a signal that nobody dies
 * of, and the writer goes on at once. */
Test(writers, who_opens_it_just_then_kills_nobody, .timeout = 60)
{
    make_adapter("/dev/shm");
    signal(SIGURG, on_break);
    pid_t child = fork();
    if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (child == 0) close(open(path_of(MODEL), O_WRONLY));
    uint64_t until_us = clock_now(clock_system()) + 50000000;
    while (!broken_count && clock_now(clock_system()) < until_us) {
        peft_dir_t *d = NULL;
        cr_assert_eq(peft_open(dir, &d, &why), HEDDLE_OK, "%s", why.message);
        peft_close(&d);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert(broken_count);
    drop_adapter();
}
