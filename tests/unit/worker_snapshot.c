/* SPDX-License-Identifier: Apache-2.0 */
/* What a hold offers, and what heddle_worker_open refuses before it starts anything. */
#include "core/errors.h"
#include "tests/unit/memory_rig.h"
#include "tests/unit/worker_content.h"
#include "tests/unit/worker_slot.h"
#include "worker/slots.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { READERS = 4 };

static void nothing(void *self) { (void)self; }

static slots_t *slots;
static test_content_t content;

/* Of `content`. */
static heddle_snapshot_t *open_snapshot_of(bool is_offered)
{
    static const char *const NAMES[] = {"policy"};
    slot_t *slot = NULL, *held = NULL;
    manifest_t m;
    cr_assert_eq(slots_new(NAMES, 1, &(slots_ops_t){.io = &SLOT_IO, .wake = nothing}, &slots), HEDDLE_OK);
    cr_assert_eq(slot_take(slots, 0, 0, content.content_bytes, &slot, NULL), HEDDLE_OK);
    memcpy(slot->parts[0].region->base, content.bytes, content.content_bytes);
    cr_assert_eq(manifest_decode(bytes_of((const uint8_t *)slot->parts[0].region->view +
                                              manifest_offset(content.payload_bytes),
                                          content.manifest_bytes),
                                 &m, NULL),
                 HEDDLE_OK);
    if (is_offered) slot_offer(slot, &content.manifest_digest, content.content_bytes);
    cr_assert_eq(slot_seal(slot, &(seal_t){.version = 5, .h1 = content.h1, .step = 3, .manifest = &m}),
                 HEDDLE_OK);
    cr_assert_eq(slots_acquire(slots, 0, 5, &held), HEDDLE_OK);
    return held;
}

static heddle_snapshot_t *open_snapshot(void) { return open_snapshot_of(true); }

static heddle_snapshot_t *snapshot(void)
{
    content = content_make(5, 12, 100);
    return open_snapshot();
}

static void end(heddle_snapshot_t *s)
{
    heddle_snapshot_release(&s);
    heddle_snapshot_release(&s);
    heddle_snapshot_release(NULL);
    slots_close(&slots);
    free(content.bytes);
}

Test(snapshot, tensors_in_order_of_name_with_their_bytes)
{
    static char text_of_ours[] = "ours";
    heddle_snapshot_t *s = snapshot();
    char before[200] = "";
    for (uint32_t i = 0; i < heddle_snapshot_manifest(s)->tensor_count; i++) {
        heddle_tensor_t t = {0};
        cr_assert_eq(heddle_snapshot_tensor(s, i, &t), HEDDLE_OK);
        cr_assert_gt(strcmp(t.name, before), 0);
        snprintf(before, sizeof before, "%s", t.name);
        cr_assert(t.size == sizeof t && t.dtype == HEDDLE_DTYPE_F32 && t.ndim == 2 && t.dims[0] == 100 &&
                  t.dims[1] == 16 && t.data_bytes == 6400);
        uint64_t offset = (uint64_t)((const uint8_t *)t.data - (const uint8_t *)s->parts[0].region->view);
        cr_assert_eq(offset % 4096, 0);
        for (uint64_t b = 0; b < t.data_bytes; b += 97)
            cr_assert_eq(((const uint8_t *)t.data)[b], content_byte(5, offset + b));
    }
    heddle_tensor_t t = {.size = sizeof t};
    cr_assert_eq(heddle_snapshot_tensor(s, 12, &t), HEDDLE_ERR_USAGE);
    cr_assert_str_eq(heddle_last_error()->expected, "0 to 11");
    t = (heddle_tensor_t){.size = offsetof(heddle_tensor_t, data), .data = text_of_ours};
    cr_assert_eq(heddle_snapshot_tensor(s, 0, &t), HEDDLE_OK);
    cr_assert(t.data_bytes == 6400 && t.data == text_of_ours, "an older program has no room for it");
    end(s);
}

Test(snapshot, the_digest_of_the_table_is_the_manifests)
{
    heddle_snapshot_t *s = snapshot();
    digest_t wanted = manifest_table_digest(&s->parts[0].manifest), found;
    ((uint8_t *)s->parts[0].region->base)[9000] ^= 4;
    heddle_snapshot_table_digest(s, found.b);
    cr_assert(digest_equal(&wanted, &found));
    end(s);
}

Test(snapshot, digest_is_of_the_bytes_as_they_are)
{
    heddle_snapshot_t *s = snapshot();
    char text[HEDDLE_DIGEST_TEXT];
    cr_assert_eq(heddle_snapshot_digest(s, text), HEDDLE_OK);
    cr_assert_str_eq(text, heddle_snapshot_manifest(s)->digest);
    ((uint8_t *)s->parts[0].region->base)[9000] ^= 4;
    cr_assert_eq(heddle_snapshot_digest(s, text), HEDDLE_OK);
    cr_assert_str_neq(text, heddle_snapshot_manifest(s)->digest);
    end(s);
}

/* ---- the memory for other processes (also python/tests/test_slot.py) ---- */

static heddle_shared_t share(const heddle_snapshot_t *s)
{
    heddle_shared_t shared = {.size = sizeof shared};
    cr_assert_eq(heddle_snapshot_fd(s, &shared), HEDDLE_OK, "%s", heddle_last_error()->message);
    return shared;
}

static bool is_version_5(const uint8_t *base, const heddle_shared_t *shared, uint64_t from)
{
    for (uint64_t i = from; i < shared->bytes; i++)
        if (base[shared->offset + i] != content.bytes[i]) return false;
    return memcmp(base + shared->mark_offset, shared->mark, sizeof shared->mark) == 0;
}

typedef struct {
    pid_t pid;
    int socket;
} reader_t;

/* Says whether it finds the version, before and after it has written to its own first page. */
static _Noreturn void run_reader(int socket, const heddle_shared_t *shared)
{
    char seen, go;
    int fd = rig_receive_descriptor(socket);
    uint8_t *base =
        mmap(NULL, shared->mark_offset + HEDDLE_MARK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED || close(fd)) _exit(3);
    seen = is_version_5(base, shared, 0);
    memset(base + shared->offset, 0xee, 100);
    if (write(socket, &seen, 1) != 1) _exit(4);
    while (read(socket, &go, 1) == 1) {
        seen = is_version_5(base, shared, 100) && base[shared->offset] == 0xee;
        if (write(socket, &seen, 1) != 1) _exit(5);
    }
    _exit(0);
}

static bool reader_sees_it(const reader_t *r)
{
    char seen = 0;
    return read(r->socket, &seen, 1) == 1 && seen;
}

static reader_t start_reader(const heddle_shared_t *shared)
{
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    reader_t r = {.pid = fork(), .socket = pair[0]};
    if (r.pid == 0) {
        close(shared->fd);
        close(pair[0]);
        run_reader(pair[1], shared);
    }
    close(pair[1]);
    cr_assert(rig_send_descriptor(r.socket, shared->fd));
    cr_assert(reader_sees_it(&r));
    return r;
}

Test(snapshot, its_memory_is_held_by_each_process_that_maps_it)
{
    reader_t readers[READERS];
    heddle_snapshot_t *s = snapshot(), *held = s;
    memory_region_t *own = s->parts[0].region->own;
    heddle_shared_t shared = share(s);
    cr_assert(shared.base == s->parts[0].region->view && shared.bytes == content.payload_bytes);
    for (int i = 0; i < READERS; i++) readers[i] = start_reader(&shared);
    close(shared.fd);
    heddle_snapshot_release(&held);
    cr_assert_eq(slot_readers(s), 0);
    for (int i = 0; i < READERS; i++) {
        cr_assert(memory_region_is_held(own), "%d readers are left", READERS - i);
        for (int k = i; k < READERS; k++)
            cr_assert(write(readers[k].socket, "g", 1) == 1 && reader_sees_it(&readers[k]));
        rig_reap(readers[i].pid, i % 2 ? SIGTERM : SIGKILL);
        close(readers[i].socket);
    }
    cr_assert(!memory_region_is_held(own), "the last one has ended");
    cr_assert(is_version_5(s->parts[0].region->view, &shared, 0), "what they wrote was their own");
    slots_close(&slots);
    free(content.bytes);
}

/* What is written again later is not what the mark says. */
Test(snapshot, its_memory_is_written_again_when_the_descriptor_is_closed)
{
    heddle_snapshot_t *s = snapshot(), *held = s;
    memory_region_t *own = s->parts[0].region->own;
    heddle_shared_t shared = share(s), other = share(s);
    uint8_t mark[HEDDLE_MARK_BYTES];
    int later = rig_open(shared.fd, O_RDONLY);
    close(shared.fd);
    heddle_snapshot_release(&held);
    memory_region_drop(own);
    cr_assert_eq(memory_region_begin(own, NULL), HEDDLE_ERR_NO_SLOT, "the other descriptor is a hold, too");
    close(other.fd);
    cr_assert_eq(memory_region_begin(own, NULL), HEDDLE_OK);
    cr_assert_eq(pread(later, mark, sizeof mark, (off_t)other.mark_offset), (ssize_t)sizeof mark);
    cr_assert_neq(memcmp(mark, other.mark, sizeof mark), 0);
    memory_region_abort(own);
    close(later);
    slots_close(&slots);
    free(content.bytes);
}

Test(snapshot, its_memory_can_only_be_read)
{
    heddle_snapshot_t *s = snapshot();
    heddle_shared_t shared = share(s), small = {.size = offsetof(heddle_shared_t, bytes)};
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    cr_assert_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shared.fd, 0), MAP_FAILED);
    cr_assert_lt(fcntl(shared.fd, F_OFD_SETLK, &lock), 0);
    cr_assert_eq(fcntl(shared.fd, F_GETFD), FD_CLOEXEC);
    cr_assert_eq(heddle_snapshot_fd(s, &small), HEDDLE_OK);
    cr_assert(small.fd >= 0 && small.bytes == 0, "an older program has no room for it");
    close(small.fd);
    close(shared.fd);
    end(s);
}

/* As where a kernel cannot seal it against writers. */
Test(snapshot, memory_that_was_not_sealed_is_not_given_to_others)
{
    content = content_make(5, 12, 100);
    heddle_snapshot_t *s = open_snapshot_of(false);
    heddle_shared_t shared = {.size = sizeof shared, .fd = 77};
    cr_assert_eq(heddle_snapshot_fd(s, &shared), HEDDLE_ERR_INTERNAL);
    cr_assert(shared.fd == 77 && strstr(heddle_last_error()->message, s->tag));
    end(s);
}

Test(snapshot, memory_for_which_no_descriptor_is_left)
{
    heddle_snapshot_t *s = snapshot();
    heddle_shared_t shared = {.size = sizeof shared, .fd = 77};
    struct rlimit before, none;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = heddle_snapshot_fd(s, &shared);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert(rc == HEDDLE_ERR_NO_MEMORY && shared.fd == 77);
    cr_assert(heddle_last_error()->hint[0] && heddle_last_error()->version == 5);
    end(s);
}

/* ---- views (torch reads them too: python/tests/test_misuse.py) ---- */

/* DLManagedTensor, as DLPack 0.x and 1.x have it. */
struct dltensor {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
    void *context;
    void (*deleter)(struct dltensor *self);
};

static heddle_views_t *views_of(heddle_snapshot_t *s)
{
    heddle_views_t *v = NULL;
    cr_assert_eq(heddle_snapshot_views(s, &v), HEDDLE_OK);
    return v;
}

Test(snapshot, views_hold_it_until_the_last_is_given_back)
{
    heddle_snapshot_t *s = snapshot(), *held = s;
    const uint32_t wanted[] = {3, 11};
    struct DLManagedTensor *got[2];
    heddle_views_t *v = views_of(s);
    cr_assert(slot_readers(s) == 1 && heddle_views_held(v) == 0, "nobody has taken one");
    cr_assert_eq(heddle_views_take(v, wanted, 2, got), HEDDLE_OK);
    cr_assert(slot_readers(s) == 2 && heddle_views_held(v) == 2);
    cr_assert(heddle_views_is_held(v, 3) && heddle_views_is_held(v, 11) && !heddle_views_is_held(v, 4));
    heddle_snapshot_release(&held);
    heddle_views_put(got[1]);
    heddle_views_put(got[1]);
    heddle_views_put(NULL);
    cr_assert(slot_readers(s) == 1 && heddle_views_held(v) == 1 && !heddle_views_is_held(v, 11));
    cr_assert(!heddle_views_is_held(v, 12), "there is no such tensor");
    heddle_views_release(&v);
    heddle_views_release(&v);
    heddle_views_release(NULL);
    cr_assert_eq(slot_readers(s), 1, "what was taken goes on holding");
    heddle_views_put(got[0]);
    cr_assert_eq(slot_readers(s), 0);
    slots_close(&slots);
    free(content.bytes);
}

Test(snapshot, views_are_taken_all_or_none_and_once)
{
    heddle_snapshot_t *s = snapshot();
    struct DLManagedTensor *got[3];
    heddle_views_t *v = views_of(s);
    cr_assert_eq(heddle_views_take(v, (uint32_t[]){0, 12}, 2, got), HEDDLE_ERR_USAGE);
    cr_assert_str_eq(heddle_last_error()->expected, "0 to 11");
    cr_assert(slot_readers(s) == 1 && heddle_views_held(v) == 0);
    cr_assert_eq(heddle_views_take(v, (uint32_t[]){0, 5, 0}, 3, got), HEDDLE_ERR_USAGE);
    cr_assert(strstr(heddle_last_error()->message, "taken already") && heddle_views_held(v) == 0);
    cr_assert_eq(heddle_views_take(v, (uint32_t[]){0, 5}, 2, got), HEDDLE_OK);
    heddle_views_put(got[0]);
    cr_assert_eq(heddle_views_take(v, (uint32_t[]){0}, 1, got), HEDDLE_ERR_USAGE,
                 "its deleter may be called again");
    heddle_views_put(got[1]);
    cr_assert_eq(slot_readers(s), 1);
    heddle_views_release(&v);
    end(s);
}

/* One tensor of each type, of 3 by 16 elements; the last is empty, of extents that multiply to 2^63. */
static heddle_snapshot_t *snapshot_of_all_types(void)
{
    enum { ROWS = HEDDLE_DTYPE_COUNT + 1 };
    static const uint64_t DIMS[] = {3, 16}, EMPTY[] = {0, 1ull << 52, 1ull << 11};
    static char names[ROWS][32];
    heddle_tensor_t rows[ROWS];
    for (int i = 0; i < ROWS; i++) {
        snprintf(names[i], sizeof names[i], "%02d.lora_A.weight", i);
        rows[i] =
            (heddle_tensor_t){.size = sizeof *rows, .name = names[i], .dtype = i, .ndim = 2, .dims = DIMS};
    }
    rows[ROWS - 1].dtype = HEDDLE_DTYPE_F32;
    rows[ROWS - 1].ndim = 3;
    rows[ROWS - 1].dims = EMPTY;
    content = content_of(5, rows, ROWS);
    return open_snapshot();
}

Test(snapshot, views_have_their_type_shape_and_place)
{
    /* DLDataTypeCode; -1: none */
    static const int CODE[HEDDLE_DTYPE_COUNT] = {
        [HEDDLE_DTYPE_BOOL] = 6,         [HEDDLE_DTYPE_F4] = -1,          [HEDDLE_DTYPE_F6_E2M3] = -1,
        [HEDDLE_DTYPE_F6_E3M2] = -1,     [HEDDLE_DTYPE_U8] = 1,           [HEDDLE_DTYPE_I8] = 0,
        [HEDDLE_DTYPE_F8_E5M2] = 12,     [HEDDLE_DTYPE_F8_E4M3] = 10,     [HEDDLE_DTYPE_F8_E8M0] = 14,
        [HEDDLE_DTYPE_F8_E4M3FNUZ] = 11, [HEDDLE_DTYPE_F8_E5M2FNUZ] = 13, [HEDDLE_DTYPE_I16] = 0,
        [HEDDLE_DTYPE_U16] = 1,          [HEDDLE_DTYPE_F16] = 2,          [HEDDLE_DTYPE_BF16] = 4,
        [HEDDLE_DTYPE_I32] = 0,          [HEDDLE_DTYPE_U32] = 1,          [HEDDLE_DTYPE_F32] = 2,
        [HEDDLE_DTYPE_C64] = 5,          [HEDDLE_DTYPE_F64] = 2,          [HEDDLE_DTYPE_I64] = 0,
        [HEDDLE_DTYPE_U64] = 1};
    heddle_snapshot_t *s = snapshot_of_all_types();
    heddle_views_t *v = views_of(s);
    struct DLManagedTensor *got;
    for (uint32_t i = 0; i <= HEDDLE_DTYPE_COUNT; i++) {
        heddle_tensor_t t = {.size = sizeof t};
        cr_assert_eq(heddle_snapshot_tensor(s, i, &t), HEDDLE_OK);
        int rc = heddle_views_take(v, &i, 1, &got);
        if (CODE[t.dtype] < 0) {
            cr_assert_eq(rc, HEDDLE_ERR_USAGE, "%s", t.name);
            continue;
        }
        struct dltensor d;
        cr_assert_eq(rc, HEDDLE_OK, "%s", t.name);
        memcpy(&d, got, sizeof d);
        cr_assert(d.data == (t.data_bytes ? t.data : NULL) && d.byte_offset == 0 && d.device_type == 1, "%s",
                  t.name);
        cr_assert(d.code == CODE[t.dtype] && d.bits == heddle_dtype_bits(t.dtype) && d.lanes == 1, "%s",
                  t.name);
        cr_assert_eq((uint32_t)d.ndim, t.ndim);
        for (uint32_t k = 0; k < t.ndim; k++)
            cr_assert((uint64_t)d.shape[k] == t.dims[k] && d.strides[k] > 0);
        cr_assert(t.data_bytes == 0 || (d.strides[0] == 16 && d.strides[1] == 1));
        d.deleter((struct dltensor *)got);
    }
    cr_assert(slot_readers(s) == 1 && heddle_views_held(v) == 0);
    heddle_views_release(&v);
    end(s);
}

/* ---- export ---- */

#define SYNCS_MAX 8

/* Each fsync of this program, in order: of which entry, and whether the directory had its name by then. */
static struct {
    char parent[64], final[96];
    struct {
        char entry[96];
        bool is_named;
    } rows[SYNCS_MAX];
    int count, fail_at; /* from 1; 0: none */
} synced;

/* Takes the place of the C library's. */
int fsync(int fd)
{
    char link[64], path[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    cr_assert_gt(n, 0);
    path[n] = 0;
    cr_assert_lt(synced.count, SYNCS_MAX);
    const char *last = strrchr(path, '/') + 1;
    snprintf(synced.rows[synced.count].entry, sizeof synced.rows->entry, "%.90s",
             strcmp(path, synced.parent) ? last : "(parent)");
    synced.rows[synced.count].is_named = access(synced.final, F_OK) == 0;
    if (++synced.count != synced.fail_at) return (int)syscall(SYS_fsync, fd);
    errno = EIO;
    return -1;
}

static void make_parent(void)
{
    snprintf(synced.parent, sizeof synced.parent, "/tmp/heddle-snapshot-XXXXXX");
    cr_assert_not_null(mkdtemp(synced.parent));
    snprintf(synced.final, sizeof synced.final, "%s/adapter", synced.parent);
}

static void remove_parent(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", synced.parent);
    cr_assert_eq(system(command), 0);
}

static bool is_file_sync(int i)
{
    return !synced.rows[i].is_named && !strncmp(synced.rows[i].entry, "adapter_", 8);
}

/* What has its name is on disk, whole, whenever the machine dies. */
Test(snapshot, an_export_is_on_disk_before_it_has_its_name, .init = make_parent, .fini = remove_parent)
{
    heddle_snapshot_t *s = snapshot();
    cr_assert_eq(heddle_snapshot_export(s, synced.final), HEDDLE_OK, "%s", heddle_last_error()->message);
    cr_assert_eq(synced.count, 4, "two files, their directory, its parent");
    cr_assert(is_file_sync(0) && is_file_sync(1) && strcmp(synced.rows[0].entry, synced.rows[1].entry));
    cr_assert(!strncmp(synced.rows[2].entry, ".adapter.tmp-", 13) && !synced.rows[2].is_named);
    cr_assert(!strcmp(synced.rows[3].entry, "(parent)") && synced.rows[3].is_named);
    end(s);
}

Test(snapshot, an_export_that_cannot_be_synced_fails, .init = make_parent, .fini = remove_parent)
{
    heddle_snapshot_t *s = snapshot();
    for (int at = 1; at <= 4; at++) {
        synced.count = 0;
        synced.fail_at = at;
        cr_assert_neq(heddle_snapshot_export(s, synced.final), HEDDLE_OK, "sync %d", at);
        cr_assert_eq(synced.count, at);
        cr_assert_eq(access(synced.final, F_OK) == 0, at == 4, "sync %d", at);
        if (at < 4) cr_assert_eq(rmdir(synced.parent), 0, "something was left behind by sync %d", at);
        if (at < 4) cr_assert_eq(mkdir(synced.parent, 0700), 0);
    }
    end(s);
}

static const heddle_error_t *fail_to_export(const heddle_snapshot_t *s, const char *dir, int code)
{
    cr_assert_eq(heddle_snapshot_export(s, dir), code, "%s", dir);
    return heddle_last_error();
}

Test(snapshot, an_export_without_a_place_says_what_is_there, .init = make_parent, .fini = remove_parent)
{
    heddle_snapshot_t *s = snapshot();
    cr_assert_eq(symlink("nowhere", synced.final), 0);
    cr_assert_str_eq(fail_to_export(s, synced.final, HEDDLE_ERR_USAGE)->found, "a symbolic link");
    cr_assert_eq(unlink(synced.final), 0);
    cr_assert_eq(mknod(synced.final, S_IFREG | 0600, 0), 0);
    cr_assert_str_eq(fail_to_export(s, synced.final, HEDDLE_ERR_USAGE)->found, "a file");
    cr_assert_eq(unlink(synced.final), 0);
    cr_assert_eq(heddle_snapshot_export(s, synced.final), HEDDLE_OK);
    cr_assert_str_eq(fail_to_export(s, synced.final, HEDDLE_ERR_USAGE)->found,
                     "a directory that is not empty");
    const heddle_error_t *e = fail_to_export(s, "/proc/heddle", HEDDLE_ERR_INTERNAL);
    cr_assert(strstr(e->hint, "name another path"), "%s", e->hint);
    end(s);
}

static int open_with(heddle_worker_opts_t opts, size_t size)
{
    heddle_worker_t *w = NULL;
    opts.size = size;
    int rc = heddle_worker_open(&opts, &w);
    cr_assert_null(w);
    cr_assert_eq(heddle_last_error()->code, rc);
    cr_assert(heddle_last_error()->message[0] != 0);
    return rc;
}

Test(worker, wrong_options_are_refused)
{
    static const char *const ONE[] = {"policy", NULL}, *const TWICE[] = {"a", "b", "a", NULL},
                             *const BAD[] = {"..", NULL}, *const NONE[] = {NULL};
    static const char *const LABEL[] = {"no-equals", NULL};
    const char *many[300], *labels[50];
    char names[300][16];
    for (int i = 0; i < 299; i++) {
        snprintf(names[i], sizeof names[i], "a%d", i);
        many[i] = names[i];
    }
    many[299] = NULL;
    for (int i = 0; i < 49; i++) labels[i] = "k=v";
    labels[49] = NULL;
    size_t all = sizeof(heddle_worker_opts_t);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE}, 0), HEDDLE_ERR_USAGE);
    struct {
        heddle_worker_opts_t ours;
        uint64_t newer;
    } more = {.ours.adapters = ONE, .newer = 1};
    heddle_worker_t *newer = NULL;
    more.ours.size = sizeof more;
    cr_assert_eq(heddle_worker_open(&more.ours, &newer), HEDDLE_ERR_USAGE);
    cr_assert_null(newer);
    cr_assert_eq(open_with((heddle_worker_opts_t){0}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = NONE}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = TWICE}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = many}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = BAD}, all), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .name = "a/b"}, all), HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .labels = LABEL}, all),
                 HEDDLE_ERR_BAD_NAME);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .labels = labels}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .slots = 65}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .apply = 2}, all), HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .join_timeout_ms = -1}, all),
                 HEDDLE_ERR_USAGE);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .broker = "tcp://10.1.2.3:7700"}, all),
                 HEDDLE_ERR_INSECURE_ADDRESS);
    cr_assert_eq(open_with((heddle_worker_opts_t){.adapters = ONE, .broker = "nonsense"}, all),
                 HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_worker_open(NULL, NULL), HEDDLE_ERR_USAGE);
    heddle_worker_close(NULL);
    heddle_worker_t *none = NULL;
    heddle_worker_close(&none);
}

/* The broker may be away, also at start. */
Test(worker, opens_without_a_broker_and_closes_at_once)
{
    static const char *const ONE[] = {"policy", NULL};
    heddle_worker_opts_t opts = {.size = sizeof opts,
                                 .adapters = ONE,
                                 .broker = "tcp://127.0.0.1:1",
                                 .name = "w1"};
    heddle_worker_t *w = NULL;
    heddle_event_t event = {.size = sizeof event};
    heddle_snapshot_t *s = NULL;
    char *text = NULL;
    cr_assert_eq(heddle_worker_open(&opts, &w), HEDDLE_OK, "%s", heddle_last_error()->message);
    cr_assert_eq(heddle_worker_next_event(w, 0, &event), HEDDLE_ERR_AGAIN);
    heddle_worker_interrupt(w);
    cr_assert_eq(heddle_worker_next_event(w, -1, &event), HEDDLE_ERR_INTERRUPTED);
    cr_assert_eq(heddle_worker_acquire(w, "policy", 0, &s), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_acquire(w, "policy", 3, &s), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_acquire(w, "other", 0, &s), HEDDLE_ERR_NOT_FOUND);
    cr_assert_null(s);
    cr_assert_eq(heddle_worker_staged(w, "policy", 1), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_activate(w, "policy", 1), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_reject(w, "policy", 1, NULL), HEDDLE_ERR_NOT_FOUND);
    heddle_error_t why = {.code = HEDDLE_ERR_NO_SPACE, .phase = "export"};
    cr_assert_eq(heddle_worker_reject_error(w, "policy", 1, &why), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_reject_error(w, "policy", 1, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_reject_error(w, "policy", 1, &(heddle_error_t){.code = -999}),
                 HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_worker_reject_error(w, "policy", 1, &(heddle_error_t){.phase = "lunch"}),
                 HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_worker_verified(w, "policy", 1, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(heddle_worker_verified(w, "policy", 1, "h1:xx"), HEDDLE_ERR_USAGE);
    cr_assert_eq(heddle_worker_transport(w, &text), HEDDLE_OK);
    cr_assert(strstr(text, "\"backend\":\"ucx\"") && strstr(text, "\"devices\":[\"lo\"]"));
    heddle_free(text);
    cr_assert_eq(heddle_worker_stats(w, &text), HEDDLE_OK);
    static const char BEGIN[] = "{\"bytes_in\":0,\"bytes_out\":0,\"chunks_bad\":0,\"retries\":0,\"fenced\":0,"
                                "\"own_bytes\":0,\"held_bytes\":0,"
                                "\"slots\":{\"total\":0,\"free\":0,\"held\":0},\"session\":{\"state\":\"",
                      END[] = "\"joined_count\":0},\"adapters\":[{\"name\":\"policy\",\"version\":0,"
                              "\"decision\":0,\"decided_version\":0,\"lag\":0,\"versions\":{\"waiting\":0,"
                              "\"coming\":0,\"arrived\":0,\"staged\":0,\"active\":0,\"kept\":0},"
                              "\"counts\":{\"staged\":0,\"activated\":0,\"failed\":0}}]}";
    cr_assert(!strncmp(text, BEGIN, strlen(BEGIN)) && strstr(text, END), "%s", text);
    heddle_free(text);
    heddle_worker_close(&w);
    cr_assert_null(w);
}
