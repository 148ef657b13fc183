/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is read from another: this process's own, found as another's would be. */
#include "tests/contract/region_new.h"
#include "core/digest.h"
#include "core/limits.h"
#include "transfer/near.h"
#include "transfer/region.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 65536u
#define LINE 71u

static near_board_t board;
static region_t *region;
static near_view_t *view;
static uint8_t into[BYTES];

static void set_up(void)
{
    heddle_error_t error;
    cr_assert(near_board_open(&board));
    cr_assert_eq(region_new(BYTES, &region, &error), HEDDLE_OK);
    for (size_t i = 0; i < BYTES; i++) ((uint8_t *)region->base)[i] = (uint8_t)(i * 7 + 1);
    near_id_t id = near_board_id(&board);
    view = near_view_open(&id);
    cr_assert_not_null(view);
}

static void tear_down(void)
{
    near_view_close(&view);
    near_board_close(&board);
    region_unref(&region);
}

TestSuite(near, .init = set_up, .fini = tear_down);

static near_loan_t loan_of(uint32_t pin)
{
    return (near_loan_t){.file = near_file(region->own->file.fd),
                         .fd = (uint32_t)region->own->file.fd,
                         .pin = pin,
                         .line = LINE,
                         .offset = 4096,
                         .bytes = 5000};
}

static near_result_t copied(near_view_t *from, const near_loan_t *loan)
{
    near_copy_t copy = {.loan = *loan, .into = into};
    near_copy(from, &copy, 1, NULL);
    return copy.result;
}

Test(near, a_range_is_copied_while_its_pin_holds)
{
    uint32_t pin = near_pin(&board, LINE);
    near_loan_t loan = loan_of(pin);
    cr_assert_eq(copied(view, &loan), NEAR_COPIED);
    cr_assert_eq(memcmp(into, (uint8_t *)region->base + 4096, 5000), 0);
    cr_assert_eq(into[5000], 0);
    near_unpin(&board, pin);
    cr_assert_eq(copied(view, &loan), NEAR_ENDED, "the loan has ended");
    cr_assert_eq(near_pin(&board, LINE + 1), pin);
    cr_assert_eq(copied(view, &loan), NEAR_ENDED, "the pin is another connection's");
}

Test(near, a_frame_is_copied_up_to_what_cannot_be_read)
{
    enum { COUNT = 16, BAD = 7 };
    crew_t *crew = crew_new(1);
    near_copy_t copies[COUNT];
    uint64_t leaves[COUNT], expected;
    uint32_t pin = near_pin(&board, LINE);
    memset(into, 0, sizeof into);
    for (uint32_t i = 0; i < COUNT; i++) {
        copies[i] = (near_copy_t){.loan = loan_of(pin), .into = into + i * 4096, .leaves = &leaves[i]};
        copies[i].loan.offset = i == BAD ? region->own->mapped_bytes - 4095 : i * 4096;
        copies[i].loan.bytes = 4096;
    }
    near_copy(view, copies, COUNT, crew);
    for (uint32_t i = 0; i < COUNT; i++)
        cr_assert_eq(copies[i].result, i < BAD ? NEAR_COPIED : NEAR_UNREADABLE, "%u", i);
    cr_assert_eq(memcmp(into, region->base, BAD * 4096), 0);
    for (uint32_t i = 0; i < BAD; i++) {
        digest_leaves(into + i * 4096, 4096, &expected);
        cr_assert_eq(leaves[i], expected, "%u", i);
    }
    for (uint32_t at = BAD * 4096; at < BYTES; at++) cr_assert_eq(into[at], 0);
    crew_end(&crew);
}

/* The source gives the connection up while it is copied, and writes there at once: at the first touch of a
 * page of ours. */
static struct {
    uint32_t pin;
    void *page;
} ending;
static void end_the_loan(int sign)
{
    (void)sign;
    near_unpin(&board, ending.pin);
    memset(region->base, 2, BYTES);
    mprotect(ending.page, 4096, PROT_READ | PROT_WRITE);
}

Test(near, what_is_written_over_meanwhile_never_counts)
{
    enum { COUNT = 16 };
    near_copy_t copies[COUNT];
    heddle_error_t error;
    region_t *to = NULL;
    cr_assert_eq(region_new(BYTES, &to, &error), HEDDLE_OK);
    sigaction(SIGSEGV, &(struct sigaction){.sa_handler = end_the_loan}, NULL);
    for (uint32_t at = 0; at < COUNT; at++) {
        memset(region->base, 1, BYTES);
        ending.pin = near_pin(&board, LINE);
        ending.page = (uint8_t *)to->base + at * 4096;
        for (uint32_t i = 0; i < COUNT; i++) {
            copies[i] = (near_copy_t){.loan = loan_of(ending.pin), .into = (uint8_t *)to->base + i * 4096};
            copies[i].loan.offset = i * 4096;
            copies[i].loan.bytes = 4096;
        }
        cr_assert_eq(mprotect(ending.page, 4096, PROT_NONE), 0);
        near_copy(view, copies, COUNT, NULL); /* a crew's threads have signals blocked */
        cr_assert_eq(((uint8_t *)ending.page)[2048], 2, "written over before that was copied");
        for (uint32_t i = 0; i < COUNT; i++)
            cr_assert_eq(copies[i].result, NEAR_ENDED, "page %u, loan %u", at, i);
    }
    signal(SIGSEGV, SIG_DFL);
    region_unref(&to);
}

Test(near, what_is_out_of_range_is_not_read)
{
    uint32_t pin = near_pin(&board, LINE);
    const near_loan_t good = loan_of(pin);
    near_loan_t bad = good;
    bad.offset = region->own->mapped_bytes - 4999;
    cr_assert_eq(copied(view, &bad), NEAR_UNREADABLE);
    bad.offset = UINT64_MAX - 10;
    cr_assert_eq(copied(view, &bad), NEAR_UNREADABLE);
    bad = good, bad.pin = 0;
    cr_assert_eq(copied(view, &bad), NEAR_UNREADABLE);
    bad.pin = NEAR_PINS + 1;
    cr_assert_eq(copied(view, &bad), NEAR_UNREADABLE);
    bad = good, bad.file++;
    cr_assert_eq(copied(view, &bad), NEAR_UNREADABLE, "another file");
    bad.file = 0;
    cr_assert_eq(copied(view, &bad), NEAR_UNREADABLE);
    bad = good, bad.fd = 4000000;
    cr_assert_eq(copied(view, &bad), NEAR_UNREADABLE, "no such descriptor");
    cr_assert_eq(copied(view, &good), NEAR_COPIED);
}

/* It could be truncated under us: that would be a signal. */
Test(near, what_is_not_sealed_is_not_mapped)
{
    int fd = memfd_create("heddle-unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(fd, BYTES), 0);
    near_loan_t loan = {.file = near_file(fd),
                        .fd = (uint32_t)fd,
                        .pin = near_pin(&board, LINE),
                        .line = LINE,
                        .bytes = 16};
    cr_assert_eq(copied(view, &loan), NEAR_UNREADABLE);
    close(fd);
}

static void lend_descriptor(int fd)
{
    near_loan_t loan = {.file = near_file(fd),
                        .fd = (uint32_t)fd,
                        .pin = near_pin(&board, LINE),
                        .line = LINE,
                        .bytes = 16};
    cr_assert_eq(copied(view, &loan), NEAR_UNREADABLE);
}

/* A peer may name any descriptor that it has. */
Test(near, what_is_no_memory_of_ours_is_not_even_opened)
{
    char dir[] = "/tmp/heddle-near-XXXXXX", fifo[64], file[64];
    cr_assert_not_null(mkdtemp(dir));
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    snprintf(file, sizeof file, "%s/file", dir);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    const int fds[] = {open(fifo, O_RDWR | O_CLOEXEC), open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600),
                       open(dir, O_RDONLY | O_CLOEXEC),
                       memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    cr_assert(inotify_add_watch(watch, fifo, IN_OPEN) >= 0 && inotify_add_watch(watch, file, IN_OPEN) >= 0);
    cr_assert_eq(ftruncate(fds[3], BYTES), 0);
    cr_assert_eq(fcntl(fds[3], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    char event[512];
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) lend_descriptor(fds[i]);
    cr_assert_eq(read(watch, event, sizeof event), -1, "it was opened");
    close(open(fifo, O_RDWR | O_CLOEXEC));
    cr_assert_gt(read(watch, event, sizeof event), 0, "the watch works");
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close(fds[i]);
    close(watch);
    cr_assert(unlink(fifo) == 0 && unlink(file) == 0 && rmdir(dir) == 0);
}

/* Opened, it could be mapped: and where no page is left for a hole in it, reading it is a signal. */
Test(near, huge_pages_are_not_even_opened)
{
    char path[64], event[512];
    int fd = memfd_create("heddle-huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd < 0) cr_skip_test("no huge pages here");
    cr_assert(ftruncate(fd, 1 << 30) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    cr_assert(inotify_add_watch(watch, path, IN_OPEN) >= 0);
    lend_descriptor(fd);
    cr_assert_eq(read(watch, event, sizeof event), -1, "it was opened");
    close(open(path, O_RDONLY | O_CLOEXEC));
    cr_assert_gt(read(watch, event, sizeof event), 0, "the watch works");
    close(watch);
    close(fd);
}

/* A memory file of our name and seals, without a page. */
static int sparse(uint64_t bytes)
{
    int fd = memfd_create("heddle-sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert(ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

static uint64_t mapped_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    cr_assert(f && fscanf(f, "%llu", &pages) == 1 && fclose(f) == 0);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

Test(near, no_more_is_mapped_than_a_region_may_have)
{
    static const uint64_t PART = LIMIT_REGION_BYTES / 3 + 4096;
    int fds[NEAR_MAPS], large = sparse(LIMIT_REGION_BYTES + 4096), whole = sparse(LIMIT_REGION_BYTES);
    uint32_t pin = near_pin(&board, LINE);
    uint64_t before = mapped_bytes();
    near_loan_t loan = {.pin = pin, .line = LINE, .bytes = 16};
    lend_descriptor(large);
    for (uint32_t i = 0; i < NEAR_MAPS; i++) {
        fds[i] = sparse(PART);
        loan.fd = (uint32_t)fds[i], loan.file = near_file(fds[i]);
        cr_assert_eq(copied(view, &loan), NEAR_COPIED, "file %u", i);
        cr_assert_leq(mapped_bytes() - before, LIMIT_REGION_BYTES, "after file %u", i);
    }
    loan.fd = (uint32_t)whole, loan.file = near_file(whole);
    cr_assert_eq(copied(view, &loan), NEAR_COPIED, "the largest that may be");
    cr_assert_leq(mapped_bytes() - before, LIMIT_REGION_BYTES + BYTES);
    for (uint32_t i = 0; i < NEAR_MAPS; i++) close(fds[i]);
    close(large);
    close(whole);
}

Test(near, more_regions_than_stay_mapped)
{
    heddle_error_t error;
    region_t *regions[NEAR_MAPS + 3];
    uint32_t pin = near_pin(&board, LINE);
    for (uint32_t i = 0; i < NEAR_MAPS + 3; i++) {
        cr_assert_eq(region_new(4096, &regions[i], &error), HEDDLE_OK);
        memset(regions[i]->base, (int)i + 1, 4096);
    }
    for (uint32_t k = 0; k < 3 * (NEAR_MAPS + 3); k++) {
        uint32_t i = k % (NEAR_MAPS + 3);
        near_loan_t loan = {.file = near_file(regions[i]->own->file.fd),
                            .fd = (uint32_t)regions[i]->own->file.fd,
                            .pin = pin,
                            .line = LINE,
                            .bytes = 4096};
        cr_assert_eq(copied(view, &loan), NEAR_COPIED);
        cr_assert(into[0] == i + 1 && into[4095] == i + 1);
    }
    for (uint32_t i = 0; i < NEAR_MAPS + 3; i++) region_unref(&regions[i]);
}

static near_loan_t loan_of_all(const region_t *r, uint32_t pin)
{
    return (near_loan_t){.file = near_file(r->own->file.fd),
                         .fd = (uint32_t)r->own->file.fd,
                         .pin = pin,
                         .line = LINE,
                         .bytes = (uint32_t)r->bytes};
}

/* It can be copied from when its descriptor is closed: it has not been mapped again. */
Test(near, the_region_in_use_stays_mapped)
{
    heddle_error_t error;
    uint32_t pin = near_pin(&board, LINE);
    const near_loan_t used = loan_of_all(region, pin);
    cr_assert_eq(copied(view, &used), NEAR_COPIED);
    for (uint32_t i = 0; i < 3 * NEAR_MAPS; i++) {
        region_t *other = NULL;
        cr_assert_eq(region_new(4096, &other, &error), HEDDLE_OK);
        near_loan_t loan = loan_of_all(other, pin);
        cr_assert_eq(copied(view, &loan), NEAR_COPIED);
        region_unref(&other);
        int fd = region->own->file.fd;
        region->own->file.fd = fcntl(fd, F_DUPFD_CLOEXEC, fd + 100);
        close(fd);
        cr_assert_eq(copied(view, &used), NEAR_COPIED, "after %u others", i + 1);
        int back = dup3(region->own->file.fd, fd, O_CLOEXEC);
        close(region->own->file.fd);
        region->own->file.fd = back;
    }
}

/* A publisher whose adapter grows: what it gave up costs the receivers nothing. */
Test(near, regions_that_were_given_up_hold_no_memory)
{
    heddle_error_t error;
    uint32_t pin = near_pin(&board, LINE);
    int files[NEAR_MAPS];
    for (uint32_t i = 0; i < NEAR_MAPS; i++) {
        region_t *grown = NULL;
        struct stat s;
        cr_assert_eq(region_new(BYTES - 4096 * (NEAR_MAPS - i), &grown, &error), HEDDLE_OK);
        near_loan_t loan = loan_of_all(grown, pin);
        cr_assert_eq(copied(view, &loan), NEAR_COPIED);
        files[i] = dup(grown->own->file.fd);
        cr_assert(fstat(files[i], &s) == 0 && s.st_blocks > 0);
        region_unref(&grown);
    }
    for (uint32_t i = 0; i < NEAR_MAPS; i++) {
        struct stat s;
        cr_assert(fstat(files[i], &s) == 0 && s.st_blocks == 0, "region %u", i);
        close(files[i]);
    }
}

Test(near, only_who_it_says)
{
    near_id_t id = near_board_id(&board), other = id;
    other.proof ^= 2;
    cr_assert_null(near_view_open(&other), "proof");
    other = id, other.host++;
    cr_assert_null(near_view_open(&other), "another host");
    other = id, other.board = 4000000;
    cr_assert_null(near_view_open(&other), "board");
    other = id, other.board = (uint64_t)region->own->file.fd;
    cr_assert_null(near_view_open(&other), "a board has one size");
    other = id, other.process = 0;
    cr_assert_null(near_view_open(&other), "process");
    near_board_t closed = {0};
    other = near_board_id(&closed);
    cr_assert_null(near_view_open(&other), "nobody");
}

/* The id of a process with numbers of its own; 1 where it may not be made.  In a child, whose threads nobody
 * needs: after the first process of the new numbers has ended, there are none. */
static int tell_from_own_numbers(int line)
{
    if (unshare(CLONE_NEWPID) < 0) return 1;
    pid_t child = fork();
    if (child == 0) {
        near_id_t id = near_board_id(&board);
        _exit(write(line, &id, sizeof id) != sizeof id);
    }
    return waitpid(child, NULL, 0) == child ? 0 : 2;
}

/* Pods of one host may share a network and have numbers of their own: 7 here is another process there. */
Test(near, other_process_numbers_are_another_host)
{
    int line[2], status;
    near_id_t own = near_board_id(&board), theirs;
    cr_assert_eq(pipe(line), 0);
    pid_t child = fork();
    if (child == 0) _exit(tell_from_own_numbers(line[1]));
    cr_assert_eq(waitpid(child, &status, 0), child);
    if (WEXITSTATUS(status) == 1) cr_skip_test("may not make a namespace of process numbers");
    cr_assert_eq(status, 0);
    cr_assert_eq(read(line[0], &theirs, sizeof theirs), (ssize_t)sizeof theirs);
    cr_assert_neq(own.host, 0);
    cr_assert_neq(theirs.host, own.host);
    cr_assert_eq(near_board_id(&board).host, own.host);
}

/* A process without standard input may get descriptor 0, and no memory behind it. */
static int fail_with_descriptor_0(void)
{
    near_board_t b;
    close(0);
    if (!near_board_open(&b) || b.fd != 0) return 1;
    near_board_close(&b);
    if (b.fd != -1 || b.words || fcntl(0, F_GETFD) != -1) return 2;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}) < 0 || near_board_open(&b)) return 3;
    near_board_close(&b);
    return fcntl(0, F_GETFD) == -1 ? 0 : 4;
}

Test(near, a_board_that_was_not_made_leaves_no_descriptor)
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(fail_with_descriptor_0());
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "step %d", WEXITSTATUS(status));
}

Test(near, pins_are_limited)
{
    for (uint32_t i = 1; i <= NEAR_PINS; i++) cr_assert_eq(near_pin(&board, i), i);
    cr_assert_eq(near_pin(&board, LINE), 0);
    near_unpin(&board, 0);
    near_unpin(&board, 500);
    cr_assert_eq(near_pin(&board, LINE), 500);
}

/* The process is gone, and what was mapped of it is still there to be read. */
Test(near, a_source_that_ends_takes_nothing_away)
{
    int line[2];
    cr_assert_eq(pipe(line), 0);
    pid_t child = fork();
    if (child == 0) {
        near_board_t theirs;
        struct {
            near_id_t id;
            near_loan_t loan;
        } told;
        /* A region of its own: it has none of its parent's. */
        if (!near_board_open(&theirs) || region_new(BYTES, &region, NULL)) _exit(1);
        for (size_t i = 0; i < BYTES; i++) ((uint8_t *)region->base)[i] = (uint8_t)(i * 7 + 1);
        told.id = near_board_id(&theirs);
        told.loan = loan_of(near_pin(&theirs, LINE));
        if (write(line[1], &told, sizeof told) != sizeof told) _exit(1);
        for (;;) pause();
    }
    struct {
        near_id_t id;
        near_loan_t loan;
    } told;
    cr_assert_eq(read(line[0], &told, sizeof told), (ssize_t)sizeof told);
    near_view_t *theirs = near_view_open(&told.id);
    cr_assert_not_null(theirs);
    cr_assert_eq(copied(theirs, &told.loan), NEAR_COPIED);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    memset(into, 0, sizeof into);
    cr_assert_eq(copied(theirs, &told.loan), NEAR_COPIED);
    cr_assert_eq(memcmp(into, (uint8_t *)region->base + 4096, 5000), 0);
    near_view_close(&theirs);
    cr_assert_null(near_view_open(&told.id), "but it is not found again");
}
