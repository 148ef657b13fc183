/* SPDX-License-Identifier: Apache-2.0 */
/* What another process holds: which files it accepts, in what order it looks, how a hold ends. */
#include "core/limits.h"
#include "tests/unit/memory_rig.h"
#include "tests/unit/memory_unmapped.h"

#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/vfs.h>

static memory_region_t *region;
static content_id_t id;

static void set_up(void)
{
    region = rig_region(RIG_BYTES);
    id = rig_publish(region, 1);
}

static void tear_down(void) { memory_region_destroy(&region); }

TestSuite(memory_hold, .init = set_up, .fini = tear_down);

/* A description of the region with a hold on it, as it comes from a source. */
static int sent(void)
{
    int fd, own;
    heddle_error_t e;
    cr_assert_eq(memory_region_hand_over(region, &fd, NULL), HEDDLE_OK);
    cr_assert_eq(hold_open(fd, &id, &own, &e), HEDDLE_OK, "%s", e.message);
    return own;
}

static bool owner_may_write(void) { return !file_is_held(region->file.fd); }

/* ---- which files ---- */

static void refuses(int fd, int code, const char *text)
{
    hold_t *h = NULL;
    heddle_error_t e = {0};
    int before = rig_descriptors();
    memory_fd_t listed = rig_listed(fd);
    cr_assert_eq(hold_new(&listed, &h, &e), code, "%s", e.message);
    cr_assert(!h && strstr(e.message, text), "%s", e.message);
    cr_assert_eq(listed.fd, -1);
    cr_assert_eq(rig_descriptors(), before - 1, "closed");
}

static int sealed_file(size_t bytes, int seals)
{
    int fd = file_new("heddle-region");
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    int own = rig_open(fd, O_RDONLY);
    close(fd);
    return own;
}

enum { ALL_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL };

Test(memory_hold, a_file_that_is_not_shared_memory_is_refused)
{
    char path[] = "/tmp/heddle-XXXXXX";
    int fd = mkstemp(path), pipes[2];
    unlink(path);
    cr_assert_eq(pipe(pipes), 0);
    refuses(fd, HEDDLE_ERR_PROTOCOL, "is not shared memory");
    refuses(pipes[0], HEDDLE_ERR_PROTOCOL, "is not shared memory");
    refuses(open("/dev/zero", O_RDONLY), HEDDLE_ERR_PROTOCOL, "is not shared memory");
    refuses(open("/", O_RDONLY | O_DIRECTORY), HEDDLE_ERR_PROTOCOL, "is not shared memory");
}

Test(memory_hold, a_file_that_lacks_a_seal_is_refused)
{
    static const int SEALS[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL};
    for (size_t i = 0; i < sizeof SEALS / sizeof *SEALS; i++)
        refuses(sealed_file(8192, ALL_SEALS & ~SEALS[i]), HEDDLE_ERR_PROTOCOL, "is not sealed");
    refuses(rig_open(region->file.fd, O_RDONLY), HEDDLE_ERR_PROTOCOL,
            "is not sealed"); /* not handed over yet */
}

Test(memory_hold, a_file_that_is_no_region_is_refused)
{
    heddle_error_t e;
    refuses(sealed_file(0, ALL_SEALS), HEDDLE_ERR_PROTOCOL, "has 0 bytes");
    refuses(sealed_file(5000, ALL_SEALS), HEDDLE_ERR_PROTOCOL, "has 5000 bytes");
    hold_t *h = rig_hold_new(sealed_file(8192, ALL_SEALS));
    cr_assert_eq(hold_take(h, &id, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, "header is not one of this release"), "%s", e.message);
    hold_destroy(&h);
}

Test(memory_hold, a_description_that_writes_is_refused)
{
    close(sent());
    refuses(rig_open(region->file.fd, O_RDWR), HEDDLE_ERR_PROTOCOL, "came writable");
}

/* Its description came with a lock. A child that was forked meanwhile has it, too, so that to close it ends
 * nothing. */
Test(memory_hold, what_is_refused_is_locked_no_longer)
{
    int fd = rig_open(region->file.fd, O_RDONLY), childs = dup(fd);
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
    cr_assert_not(owner_may_write());
    refuses(fd, HEDDLE_ERR_PROTOCOL, "is not sealed");
    cr_assert(owner_may_write());
    close(childs);
}

/* A file of `GROWING_BYTES` that is to grow and be sealed, as by a peer that is hostile, before one of the calls
 * that look at it. -1: none, or it has grown. */
enum { GROWING_BYTES = 8192 };
static int growing = -1, calls_to_let_pass;

static void pass_call(void)
{
    int fd = growing;
    if (fd < 0 || calls_to_let_pass-- > 0) return;
    growing = -1;
    header_t header = {.layout = HEADER_LAYOUT,
                       .state = HEADER_SEALED,
                       .generation = id.generation,
                       .bytes = RIG_BYTES,
                       .manifest = id.manifest};
    memcpy(header.identity, id.identity, sizeof header.identity);
    cr_assert_eq(ftruncate(fd, RIG_BYTES + LIMIT_PAGE_BYTES), 0);
    cr_assert_eq(pwrite(fd, &header, sizeof header, RIG_BYTES), (ssize_t)sizeof header);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
}

/* In place of those of the C library. */
int fstat(int fd, struct stat *s) { return pass_call(), (int)syscall(SYS_fstat, fd, s); }
int fstatfs(int fd, struct statfs *s) { return pass_call(), (int)syscall(SYS_fstatfs, fd, s); }
int fcntl(int fd, int command, ...)
{
    va_list more;
    va_start(more, command);
    long argument = va_arg(more, long);
    va_end(more);
    pass_call();
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

/* Else a header in what is not mapped says how much may be read. */
Test(memory_hold, what_grows_while_it_is_looked_at_is_mapped_whole_or_refused)
{
    int taken = 0, refused = 0;
    bool has_grown = true;
    for (int calls = 0; has_grown; calls++) {
        int fd = file_new("heddle-region");
        hold_t *h = NULL;
        heddle_error_t e;
        cr_assert_eq(ftruncate(fd, GROWING_BYTES), 0);
        memory_fd_t file = rig_listed(rig_open(fd, O_RDONLY));
        calls_to_let_pass = calls;
        growing = fd;
        int rc = hold_new(&file, &h, &e);
        has_grown = growing < 0;
        growing = -1;
        if (rc) {
            cr_assert(strstr(e.message, "is not sealed"), "call %d: %s", calls, e.message);
            refused++;
        } else {
            cr_assert_eq(h->file_bytes, RIG_BYTES + LIMIT_PAGE_BYTES, "call %d", calls);
            cr_assert_eq(hold_take(h, &id, &e), HEDDLE_OK, "call %d: %s", calls, e.message);
            cr_assert(rig_is_whole(h->base, 0, h->header.bytes));
            hold_destroy(&h);
            taken++;
        }
        close(fd);
    }
    cr_assert(taken > 0 && refused > 0, "%d taken, %d refused", taken, refused);
}

static int send_foreign(void *socket)
{
    if (setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000)) return 1;
    int fd = file_new("heddle-region"), own;
    if (ftruncate(fd, 8192) || fcntl(fd, F_ADD_SEALS, ALL_SEALS) || (own = rig_open(fd, O_RDONLY)) < 0)
        return 2;
    return rig_send_descriptor(*(int *)socket, own) ? 0 : 3;
}

Test(memory_hold, a_file_of_another_user_is_refused)
{
    int pair[2], fd;
    if (geteuid() != 0) cr_skip_test("only root can be another user");
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    cr_assert_eq(rig_in_child(send_foreign, &pair[0]), 0);
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    cr_assert_eq(recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC), 1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    refuses(fd, HEDDLE_ERR_DENIED, "belongs to another user");
}

/* ---- what is in it ---- */

static void is_not_found(hold_t *h, const content_id_t *asked, const char *text)
{
    heddle_error_t e;
    cr_assert_eq(hold_take(h, asked, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, text) && strstr(e.message, "generation "), "%s", e.message);
    cr_assert_eq(h->state, HOLD_NONE);
    cr_assert(owner_may_write(), "nothing stays locked");
}

Test(memory_hold, what_was_not_announced_is_not_held)
{
    hold_t *h = rig_hold_new(sent());
    content_id_t asked = id;
    asked.identity[0] ^= 1;
    is_not_found(h, &asked, "the memory is another region");
    asked = id;
    asked.generation++;
    is_not_found(h, &asked, "the memory has been written again");
    asked = id;
    asked.manifest.b[31] ^= 1;
    is_not_found(h, &asked, "its manifest is another");
    cr_assert_null(h->base, "nothing was mapped for it");
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    cr_assert(h->header.bytes == region->bytes);
    hold_destroy(&h);
}

Test(memory_hold, a_description_that_would_have_no_hold_is_closed)
{
    int fd, own = -1;
    content_id_t later = id, other = id;
    later.generation++;
    other.generation = 0; /* the region alone, and it is another one */
    other.identity[0] ^= 1;
    cr_assert_eq(memory_region_hand_over(region, &fd, NULL), HEDDLE_OK);
    int before = rig_descriptors();
    cr_assert_eq(hold_open(fd, &later, &own, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(hold_open(fd, &other, &own, NULL), HEDDLE_ERR_NOT_FOUND);
    cr_assert(own == -1 && rig_descriptors() == before);
    cr_assert(owner_may_write());
}

Test(memory_hold, what_is_being_written_or_was_given_up_is_not_held)
{
    hold_t *h = rig_hold_new(sent());
    heddle_error_t e;
    hold_release(h);
    cr_assert_eq(hold_take(h, &id, &e), HEDDLE_OK);
    hold_release(h);
    memory_region_drop(region);
    cr_assert_eq(hold_take(h, &id, &e), HEDDLE_OK, "dropped, and still there");
    hold_release(h);
    cr_assert_eq(memory_region_begin(region, NULL), HEDDLE_OK);
    cr_assert_eq(hold_take(h, &id, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, "its owner is writing the memory"), "%s", e.message);
    memory_region_abort(region);
    is_not_found(h, &id, "the memory has been written again");
    id.generation++;
    is_not_found(h, &id, "it was not written to its end");
    hold_destroy(&h);
}

Test(memory_hold, a_header_with_more_bytes_than_the_memory_is_refused)
{
    hold_t *h = rig_hold_new(sent());
    header_t *header = (header_t *)(void *)((uint8_t *)region->base + region->bytes);
    hold_release(h);
    header->bytes = region->bytes + 1;
    is_not_found(h, &id, "more bytes than its memory");
    hold_destroy(&h);
}

/* Whatever the file has. */
Test(memory_hold, a_header_with_more_bytes_than_is_mapped_is_refused)
{
    hold_t *h = rig_hold_new(sent());
    h->file_bytes -= LIMIT_PAGE_BYTES;
    is_not_found(h, &id, "more bytes than its memory");
    cr_assert_null(h->base, "nothing was mapped for it");
    hold_destroy(&h);
}

/* ---- how long ---- */

Test(memory_hold, what_cannot_be_mapped_is_locked_no_longer)
{
    hold_t *h = rig_hold_new(sent());
    heddle_error_t e;
    struct rlimit was, none;
    cr_assert_eq(getrlimit(RLIMIT_AS, &was), 0);
    none = (struct rlimit){0, was.rlim_max};
    cr_assert_not(owner_may_write());
    cr_assert_eq(setrlimit(RLIMIT_AS, &none), 0);
    int rc = hold_take(h, &id, &e);
    cr_assert_eq(setrlimit(RLIMIT_AS, &was), 0);
    cr_assert_eq(rc, HEDDLE_ERR_NO_MEMORY);
    cr_assert(strstr(e.message, "could not be mapped"), "%s", e.message);
    cr_assert(owner_may_write());
    cr_assert_eq(hold_take(h, &id, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
}

Test(memory_hold, the_mapping_outlives_the_hold_and_serves_the_next_version)
{
    hold_t *h = rig_hold_new(sent());
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    const void *base = h->base;
    for (uint64_t version = 2; version < 5; version++) {
        cr_assert_not(owner_may_write());
        cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_ERR_USAGE, "held already");
        hold_release(h);
        hold_release(h);
        cr_assert(owner_may_write());
        memory_region_drop(region);
        id = rig_publish(region, version);
        cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
        cr_assert_eq(h->base, base);
        cr_assert(rig_is_whole(h->base, version, h->header.bytes));
    }
    hold_destroy(&h);
}

Test(memory_hold, it_is_mapped_in_advance_and_given_back_in_steps)
{
    memory_region_destroy(&region);
    region = rig_region(2 * MEMORY_STEP_BYTES);
    id = rig_publish(region, 7);
    hold_t *h = rig_hold_new(sent());
    static unsigned char resident[2 * MEMORY_STEP_BYTES / LIMIT_PAGE_BYTES + 1];
    hold_release(h);
    cr_assert_eq(hold_map(h, NULL), HEDDLE_OK);
    cr_assert(owner_may_write(), "mapped, and not held");
    cr_assert(hold_populate(h) && hold_populate(h) && !hold_populate(h) && !hold_populate(h));
    cr_assert_eq(mincore((void *)(uintptr_t)h->base, h->mapped_bytes, resident), 0);
    for (size_t i = 0; i < sizeof resident; i++) cr_assert(resident[i] & 1);
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    cr_assert_not(hold_unmap(h), "held");
    cr_assert(rig_is_whole(h->base, 7, h->header.bytes));
    hold_release(h);
    cr_assert(hold_unmap(h));
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK, "what was to go is wanted again");
    cr_assert(rig_is_whole(h->base, 7, h->header.bytes));
    hold_release(h);
    cr_assert(hold_unmap(h) && !hold_unmap(h) && !hold_unmap(h));
    cr_assert_eq(h->mapped_bytes, MEMORY_STEP_BYTES);
    hold_destroy(&h);
}

Test(memory_hold, it_is_read_only)
{
    hold_t *h = rig_hold_new(sent());
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    cr_assert(read(zeros, (void *)(uintptr_t)h->base, 1) < 0 && errno == EFAULT);
    cr_assert(mprotect((void *)(uintptr_t)h->base, 4096, PROT_READ | PROT_WRITE) < 0 && errno == EACCES);
    close(zeros);
    hold_destroy(&h);
}

Test(memory_hold, it_ends_with_the_object_and_leaves_nothing)
{
    int before = rig_descriptors();
    hold_t *h = rig_hold_new(sent());
    cr_assert_not(owner_may_write(), "the lock came with the description");
    hold_destroy(&h);
    cr_assert(owner_may_write());
    h = rig_hold_new(sent());
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    const void *base = h->base;
    unsigned char v;
    hold_destroy(&h);
    hold_destroy(&h);
    cr_assert(owner_may_write());
    cr_assert(mincore((void *)(uintptr_t)base, 4096, &v) < 0 && errno == ENOMEM);
    cr_assert_eq(rig_descriptors(), before);
}

/* Its owner may be gone: then the pages are given back in the holder's last munmap. */
Test(memory_hold, a_large_one_ends_on_a_thread_of_its_own)
{
    const size_t sizes[] = {FILE_LARGE_BYTES, FILE_LARGE_BYTES - 2 * LIMIT_PAGE_BYTES};
    for (int is_small = 0; is_small < 2; is_small++) {
        memory_region_t *r = rig_region(sizes[is_small]);
        content_id_t published = rig_publish(r, 1);
        hold_t *h = rig_hold(r, &published);
        memory_region_destroy(&r);
        unmapped_watch(h->base);
        hold_destroy(&h);
        pid_t by = unmapped_by_thread();
        cr_assert(by && (by == gettid()) == is_small, "thread %d, called by %d", by, gettid());
    }
}

/* ---- forks ---- */

/* Or until the test has ended: a child that outlives one that fails keeps the pipe of its output open, and ctest
 * waits for that. */
static _Noreturn void wait_to_be_killed(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

static int child_has_nothing(void *hold)
{
    hold_t *h = hold;
    unsigned char v;
    heddle_error_t e;
    bool is_closed = h->file.fd == -1 && region->file.fd == -1;
    bool is_unmapped =
        mincore((void *)(uintptr_t)h->base, 4096, &v) < 0 && mincore(region->base, 4096, &v) < 0;
    hold_release(h);
    bool is_refused =
        hold_take(h, &id, &e) == HEDDLE_ERR_USAGE && memory_region_begin(region, &e) == HEDDLE_ERR_USAGE;
    memory_region_drop(region);
    memory_region_abort(region);
    hold_destroy(&h);
    memory_region_t *r = region;
    memory_region_destroy(&r);
    return !is_closed ? 1 : !is_unmapped ? 2 : !is_refused ? 3 : 0;
}

Test(memory_hold, a_forked_child_has_nothing_and_ends_nothing)
{
    hold_t *h = rig_hold_new(sent());
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    cr_assert_eq(rig_in_child(child_has_nothing, h), 0);
    cr_assert_not(owner_may_write());
    cr_assert(rig_is_whole(h->base, 1, h->header.bytes));
    cr_assert_eq(region->state, REGION_SEALED);
    hold_release(h);
    cr_assert(owner_may_write());
    hold_destroy(&h);
}

/* A bare clone runs no handlers: the child has the descriptors, and must not use them. */
Test(memory_hold, a_child_without_handlers_does_not_end_its_parents_hold)
{
    hold_t *h = rig_hold_new(sent());
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    pid_t child = rig_bare_fork();
    if (child == 0) {
        hold_release(h);
        hold_destroy(&h);
        _exit(0);
    }
    rig_reap(child, 0);
    cr_assert_not(owner_may_write());
    hold_destroy(&h);
    cr_assert(owner_may_write());
}

static hold_t *open_one; /* not taken */

static int child_takes_nothing(void *taken)
{
    hold_t *h = taken;
    size_t populated = h->populated_bytes;
    int fd;
    if (hold_take(open_one, &id, NULL) != HEDDLE_ERR_USAGE || open_one->state != HOLD_NONE) return 1;
    if (hold_map(open_one, NULL) != HEDDLE_ERR_NO_MEMORY || open_one->mapped_bytes) return 2;
    if (hold_hand_on(h, &fd, NULL) != HEDDLE_ERR_USAGE) return 3;
    return hold_populate(h) || h->populated_bytes != populated ? 4 : 0;
}

Test(memory_hold, a_child_without_handlers_takes_and_hands_on_nothing)
{
    hold_t *h = rig_hold_new(sent());
    open_one = rig_hold_new(sent());
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    cr_assert_eq(rig_in_bare_child(child_takes_nothing, h), 0);
    hold_destroy(&h);
    cr_assert_not(owner_may_write(), "the lock of the other one is as it was");
    hold_destroy(&open_one);
    cr_assert(owner_may_write());
}

Test(memory_hold, a_child_without_handlers_does_not_keep_what_its_parent_releases)
{
    hold_t *h = rig_hold_new(sent());
    cr_assert_eq(hold_take(h, &id, NULL), HEDDLE_OK);
    pid_t child = rig_idle_bare_fork();
    hold_destroy(&h);
    cr_assert(owner_may_write(), "ended by F_UNLCK, and not by the last close");
    rig_reap(child, SIGKILL);
}

Test(memory_hold, a_child_of_an_owner_that_writes_keeps_neither_lock_nor_memory)
{
    memory_region_drop(region);
    cr_assert_eq(memory_region_begin(region, NULL), HEDDLE_OK);
    int fd = rig_open(region->file.fd, O_RDONLY);
    pid_t child = fork();
    if (child == 0) wait_to_be_killed();
    memory_region_abort(region);
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
    close(fd);
    rig_reap(child, SIGKILL);
}

/* The child maps memory of its own where its parent has the region. */
static int child_keeps_its_pages(void *released)
{
    hold_t *h = released;
    size_t bytes = h->mapped_bytes;
    void *own = mmap((void *)(uintptr_t)h->base, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (own == MAP_FAILED) return 1;
    if (hold_unmap(h)) return 2;
    hold_destroy(&h);
    memset(own, 9, bytes);
    return 0;
}

Test(memory_hold, a_child_that_destroys_one_keeps_its_own_pages_at_that_address)
{
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    content_id_t content = rig_publish(r, 1);
    hold_t *h = rig_hold(r, &content);
    hold_release(h);
    cr_assert_eq(rig_in_child(child_keeps_its_pages, h), 0);
    cr_assert(h->mapped_bytes == h->file_bytes && rig_is_whole(h->base, 1, r->bytes));
    hold_destroy(&h);
    memory_region_destroy(&r);
}

/* A process that holds the region, by a description that is its own once the test has closed it, and has a
 * forked child. It releases on request. */
typedef struct {
    pid_t pid, child;
    int orders;
} holder_t;

/* The other end is closed with the test, also where an assertion fails. */
static _Noreturn void wait_for_the_tests_end(int orders)
{
    struct pollfd end = {.fd = orders};
    while (poll(&end, 1, -1) != 1) {}
    _exit(0);
}

/* Until a child has run its fork handler it has the holder's description. Therefore the child itself reports
 * its number, which it can do only after the handler. */
static _Noreturn void run_holder(int own, int orders)
{
    char byte;
    hold_t *hold = rig_hold_new(own);
    if (hold_take(hold, &id, NULL)) _exit(1);
    if (fork() == 0) {
        pid_t self = getpid();
        if (write(orders, &self, sizeof self) < 0) _exit(2);
        wait_for_the_tests_end(orders);
    }
    if (read(orders, &byte, 1) != 1) _exit(3);
    hold_release(hold);
    if (write(orders, "r", 1) < 0) _exit(4);
    wait_for_the_tests_end(orders);
}

static holder_t holder_with_child(void)
{
    holder_t h;
    int pair[2], own = sent();
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    h.pid = fork();
    if (h.pid == 0) {
        close(pair[0]);
        run_holder(own, pair[1]);
    }
    close(own);
    close(pair[1]);
    h.orders = pair[0];
    cr_assert_eq(read(h.orders, &h.child, sizeof h.child), (ssize_t)sizeof h.child);
    return h;
}

static void do_step(const holder_t *h, char step)
{
    char byte;
    if (step == 'c') kill(h->child, SIGKILL);
    if (step == 'k') rig_reap(h->pid, SIGKILL);
    if (step != 'r') return;
    cr_assert_eq(write(h->orders, "r", 1), 1);
    cr_assert_eq(read(h->orders, &byte, 1), 1);
}

/* r: release, k: the holder is killed, c: its child ends. The hold ends with the first of r and k. */
Test(memory_hold, a_childs_life_never_matters)
{
    static const char *const ORDERS[] = {"rkc", "rck", "crk", "kc", "ck"};
    for (size_t i = 0; i < sizeof ORDERS / sizeof *ORDERS; i++) {
        holder_t h = holder_with_child();
        bool is_held = true;
        for (const char *step = ORDERS[i]; *step; step++) {
            cr_assert_eq(owner_may_write(), !is_held, "%s before %s", ORDERS[i], step);
            do_step(&h, *step);
            is_held &= *step == 'c';
            cr_assert_eq(owner_may_write(), !is_held, "%s at %s", ORDERS[i], step);
        }
        close(h.orders);
    }
}

/* ---- forks while another thread opens and maps ---- */

static void *open_and_close(void *is_over)
{
    while (!atomic_load((atomic_bool *)is_over)) {
        hold_t *h = rig_hold(region, &id);
        hold_destroy(&h);
    }
    return NULL;
}

static int has_no_memory_file(void *arg)
{
    (void)arg;
    char path[300], name[64];
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(path, name, sizeof name - 1);
        name[n > 0 ? n : 0] = 0;
        if (strstr(name, "heddle-region")) return 1;
    }
    closedir(d);
    FILE *maps = fopen("/proc/self/maps", "re");
    for (char line[512]; fgets(line, sizeof line, maps);)
        if (strstr(line, "heddle-region")) return 2;
    fclose(maps);
    return 0;
}

Test(memory_hold, a_fork_between_open_and_lock_and_map_leaves_the_child_nothing)
{
    atomic_bool is_over = false;
    pthread_t thread;
    int failed = 0;
    cr_assert_eq(pthread_create(&thread, NULL, open_and_close, &is_over), 0);
    for (int i = 0; i < 200 && !failed; i++) failed = rig_in_child(has_no_memory_file, NULL);
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    cr_assert_eq(failed, 0, "a child has %s", failed == 1 ? "a descriptor" : "a mapping");
}

/* What is executed has none of the descriptors, whatever was under way: posix_spawn runs no handlers. */
Test(memory_hold, an_executed_program_has_no_descriptor_of_a_region)
{
    atomic_bool is_over = false;
    pthread_t thread;
    char *const argv[] = {"sh", "-c", "! ls -l /proc/self/fd | grep -q heddle-region", NULL};
    int failed = 0;
    cr_assert_eq(pthread_create(&thread, NULL, open_and_close, &is_over), 0);
    for (int i = 0; i < 50 && !failed; i++) {
        pid_t pid;
        int status = 1;
        cr_assert_eq(posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ), 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        failed = status;
    }
    atomic_store(&is_over, true);
    pthread_join(thread, NULL);
    cr_assert_eq(failed, 0);
}
