/* SPDX-License-Identifier: Apache-2.0 */
/* What one process owns: made, written, sealed, offered, guarded, given back. */
#include "core/limits.h"
#include "tests/unit/memory_rig.h"
#include "tests/unit/memory_unmapped.h"

#include <setjmp.h>

static header_t *header_in(const memory_region_t *r)
{
    return (header_t *)(void *)((uint8_t *)r->base + r->bytes);
}

Test(memory_region, has_whole_pages_and_a_header_behind_them)
{
    const size_t sizes[][2] = {{0, 0}, {1, 4096}, {4096, 4096}, {4097, 8192}, {1u << 20, 1u << 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memory_region_t *r = rig_region(sizes[i][0]);
        cr_assert_eq(r->bytes, sizes[i][1]);
        cr_assert_eq(rig_file_bytes(r->file.fd), r->bytes + LIMIT_PAGE_BYTES);
        cr_assert_eq((uintptr_t)r->base % LIMIT_PAGE_BYTES, 0);
        cr_assert(header_in(r)->state == HEADER_EMPTY && header_in(r)->generation == 0);
        cr_assert(fcntl(r->file.fd, F_GETFD) & FD_CLOEXEC);
        memory_region_destroy(&r);
        cr_assert_null(r);
    }
}

Test(memory_region, each_has_an_identity_of_its_own)
{
    memory_region_t *a = rig_region(4096), *b = rig_region(4096);
    static const uint8_t NONE[MEMORY_IDENTITY_BYTES];
    cr_assert_neq(memcmp(header_in(a)->identity, header_in(b)->identity, MEMORY_IDENTITY_BYTES), 0);
    cr_assert_neq(memcmp(header_in(a)->identity, NONE, MEMORY_IDENTITY_BYTES), 0);
    memory_region_destroy(&a);
    memory_region_destroy(&b);
}

Test(memory_region, is_made_in_steps_and_its_pages_are_mapped)
{
    memory_region_t *r = NULL;
    static unsigned char resident[2 * MEMORY_STEP_BYTES / LIMIT_PAGE_BYTES + 2];
    const size_t bytes = 2 * MEMORY_STEP_BYTES + LIMIT_PAGE_BYTES;
    cr_assert_eq(memory_region_new(bytes, &r, NULL), HEDDLE_OK);
    for (size_t made = 1; made <= 2; made++) {
        cr_assert_eq(memory_region_grow(r, NULL), HEDDLE_ERR_AGAIN);
        cr_assert_eq(rig_file_bytes(r->file.fd), made * MEMORY_STEP_BYTES + LIMIT_PAGE_BYTES);
    }
    cr_assert_eq(memory_region_grow(r, NULL), HEDDLE_OK);
    cr_assert_eq(memory_region_grow(r, NULL), HEDDLE_OK, "whole already");
    cr_assert_eq(mincore(r->base, r->mapped_bytes, resident), 0);
    for (size_t i = 0; i < sizeof resident; i++) cr_assert(resident[i] & 1, "page %zu", i);
    memory_region_destroy(&r);
}

Test(memory_region, too_much_is_an_error_with_the_size)
{
    memory_region_t *r = NULL;
    heddle_error_t e;
    const size_t sizes[] = {(size_t)LIMIT_REGION_BYTES + 1, SIZE_MAX, (size_t)LIMIT_REGION_BYTES};
    struct rlimit few = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    for (size_t i = 0; i < 2; i++) {
        cr_assert_eq(memory_region_new(sizes[i], &r, &e), HEDDLE_ERR_NO_MEMORY);
        cr_assert(!r && strstr(e.message, "bytes of shared memory") && e.hint[0] && e.retriable, "%s",
                  e.message);
    }
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &few), 0);
    cr_assert_eq(memory_region_new(1 << 20, &r, &e), HEDDLE_ERR_NO_MEMORY, "the header is beyond the limit");
    cr_assert(strstr(e.message, "limit of file sizes") && strstr(e.hint, "ulimit -f"), "%s", e.message);
}

Test(memory_region, no_descriptor_left_is_an_error_and_leaves_nothing)
{
    memory_region_t *r = NULL;
    heddle_error_t e;
    int before = rig_descriptors();
    struct rlimit old, none = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY};
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    none.rlim_max = old.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    cr_assert_eq(memory_region_new(4096, &r, &e), HEDDLE_ERR_NO_MEMORY);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_null(r);
    cr_assert_eq(rig_descriptors(), before);
}

/* The flags of the mapping at `base`, as /proc/self/smaps has them. */
static void mapping_flags(const void *base, char *ret_flags, size_t size)
{
    char line[512], start[32];
    FILE *maps = fopen("/proc/self/smaps", "re");
    cr_assert_not_null(maps);
    snprintf(start, sizeof start, "%lx-", (unsigned long)base);
    ret_flags[0] = 0;
    for (bool is_it = false; !ret_flags[0] && fgets(line, sizeof line, maps);) {
        if (!strncmp(line, start, strlen(start))) is_it = true;
        if (is_it && !strncmp(line, "VmFlags:", 8)) snprintf(ret_flags, size, "%s", line);
    }
    fclose(maps);
}

Test(memory_region, asks_for_huge_pages_and_is_not_for_children)
{
    char flags[512];
    memory_region_t *r = rig_region(RIG_BYTES);
    mapping_flags(r->base, flags, sizeof flags);
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0)
        cr_assert(strstr(flags, " hg"), "%s", flags);
    cr_assert(strstr(flags, " dc"), "%s", flags);
    memory_region_destroy(&r);
}

/* ---- written and sealed ---- */

Test(memory_region, says_writing_before_the_first_byte_and_sealed_after_the_last)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    digest_t manifest = rig_manifest(1);
    for (uint64_t generation = 1; generation <= 3; generation++) {
        cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
        cr_assert(header_in(r)->state == HEADER_WRITING && header_in(r)->generation == generation);
        cr_assert_eq(memory_region_seal(r, &manifest, 5000, NULL), HEDDLE_OK);
        cr_assert(header_in(r)->state == HEADER_SEALED && header_in(r)->generation == generation);
        cr_assert_eq(header_in(r)->bytes, 5000);
        memory_region_drop(r);
    }
    cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
    memory_region_abort(r);
    cr_assert(header_in(r)->state == HEADER_WRITING && header_in(r)->generation == 4,
              "an abort leaves `writing`");
    cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
    cr_assert_eq(header_in(r)->generation, 5);
    memory_region_destroy(&r);
}

Test(memory_region, what_a_state_does_not_allow_is_refused_and_names_the_region)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    digest_t manifest = rig_manifest(1);
    heddle_error_t e;
    int fd = -1;
    cr_assert_eq(memory_region_seal(r, &manifest, 1, &e), HEDDLE_ERR_USAGE);
    cr_assert_eq(memory_region_hand_over(r, &fd, &e), HEDDLE_ERR_USAGE);
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_OK);
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_ERR_USAGE);
    cr_assert(strstr(e.message, "generation 1") && strstr(e.message, "being written"), "%s", e.message);
    cr_assert_eq(memory_region_hand_over(r, &fd, &e), HEDDLE_ERR_USAGE, "before the seal");
    cr_assert_eq(memory_region_seal(r, &manifest, r->bytes + 1, &e), HEDDLE_ERR_USAGE);
    cr_assert_eq(memory_region_seal(r, &manifest, r->bytes, &e), HEDDLE_OK);
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_ERR_USAGE, "it is offered");
    memory_region_drop(r);
    cr_assert_eq(memory_region_hand_over(r, &fd, &e), HEDDLE_ERR_USAGE, "not offered any more");
    cr_assert_eq(fd, -1);
    memory_region_destroy(&r);
}

Test(memory_region, what_is_held_is_not_written)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    heddle_error_t e;
    content_id_t id = rig_publish(r, 1);
    cr_assert_not(memory_region_is_free(r), "offered");
    hold_t *h = rig_hold(r, &id);
    memory_region_drop(r);
    cr_assert_not(memory_region_is_free(r), "held");
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_ERR_NO_SLOT);
    cr_assert(strstr(e.message, "generation 1 cannot be written again: another process holds it"), "%s",
              e.message);
    cr_assert(header_in(r)->state == HEADER_SEALED && header_in(r)->generation == 1, "nothing has changed");
    hold_release(h);
    cr_assert(memory_region_is_free(r));
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_OK);
    cr_assert_not(memory_region_is_free(r), "being written");
    hold_destroy(&h);
    memory_region_destroy(&r);
}

/* ---- written through the file ---- */

Test(memory_region, pages_are_put_in_any_order_and_the_rest_is_made)
{
    enum { PAGE = LIMIT_PAGE_BYTES };
    static uint8_t pages[4][PAGE];
    memory_region_t *r = NULL;
    digest_t manifest = rig_manifest(1);
    heddle_error_t e;
    for (int i = 0; i < 4; i++) memset(pages[i], i + 1, PAGE);
    cr_assert_eq(memory_region_new(6 * PAGE, &r, &e), HEDDLE_OK);
    cr_assert_eq(memory_region_put(r, 0, pages, PAGE, &e), HEDDLE_ERR_USAGE, "not being written");
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_OK);
    static const int ORDER[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(memory_region_put(r, (size_t)ORDER[i] * PAGE, pages[ORDER[i]], PAGE, &e), HEDDLE_OK,
                     "%s", e.message);
    cr_assert_eq(r->made_bytes, 4 * PAGE);
    cr_assert_eq(memory_region_grow(r, &e), HEDDLE_OK);
    cr_assert(!memcmp(r->base, pages, sizeof pages) &&
              rig_is_whole((uint8_t *)r->base + sizeof pages, 0, 2 * PAGE));
    cr_assert_eq(memory_region_seal(r, &manifest, r->bytes, &e), HEDDLE_OK);
    cr_assert_eq(memory_region_put(r, 0, pages, PAGE, &e), HEDDLE_ERR_USAGE, "sealed");
    int fd;
    cr_assert_eq(memory_region_offer(r, &fd, &e), HEDDLE_OK);
    memory_region_drop(r);
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_OK);
    cr_assert_eq(memory_region_put(r, 0, pages, PAGE, &e), HEDDLE_ERR_USAGE,
                 "offered: only its mapping writes");
    memory_region_destroy(&r);
}

/* ---- views ---- */

Test(memory_region, a_view_reads_what_is_written_and_goes_with_its_region)
{
    unsigned char v;
    memory_region_t *r = NULL;
    cr_assert_eq(memory_region_new(2 * MEMORY_STEP_BYTES, &r, NULL), HEDDLE_OK);
    cr_assert_eq(memory_region_grow(r, NULL), HEDDLE_ERR_AGAIN);
    cr_assert_eq(memory_region_view(r, NULL), HEDDLE_OK);
    const void *view = r->view;
    cr_assert_eq(memory_region_view(r, NULL), HEDDLE_OK);
    cr_assert_eq(r->view, view);
    cr_assert_eq(memory_region_grow(r, NULL), HEDDLE_OK);
    rig_publish(r, 9);
    cr_assert(rig_is_whole(view, 9, r->bytes));
    cr_assert(mprotect((void *)(uintptr_t)view, 4096, PROT_READ | PROT_WRITE) == 0, "not sealed yet");
    cr_assert(memory_region_shrink(r));
    cr_assert(mincore((uint8_t *)(uintptr_t)view + 2 * MEMORY_STEP_BYTES, 4096, &v) < 0 && errno == ENOMEM);
    memory_region_destroy(&r);
    cr_assert(mincore((void *)(uintptr_t)view, 4096, &v) < 0 && errno == ENOMEM);
}

static int has_no_view(void *view)
{
    unsigned char v;
    return mincore(view, 4096, &v) == 0;
}

Test(memory_region, a_forked_child_has_no_view)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    cr_assert_eq(memory_region_view(r, NULL), HEDDLE_OK);
    cr_assert_eq(rig_in_child(has_no_view, (void *)(uintptr_t)r->view), 0);
    memory_region_destroy(&r);
}

/* ---- sealed files ---- */

Test(memory_region, its_size_is_sealed_when_it_is_made_and_writing_when_it_is_handed_over)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    int fd;
    cr_assert(ftruncate(r->file.fd, 4096) < 0 && errno == EPERM);
    cr_assert(ftruncate(r->file.fd, 1 << 20) < 0 && errno == EPERM);
    cr_assert_eq(fcntl(r->file.fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL), 0);
    rig_publish(r, 1);
    cr_assert_eq(fcntl(r->file.fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL), 0,
                 "not handed over yet");
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(memory_region_hand_over(r, &fd, NULL), HEDDLE_OK);
        cr_assert_eq(fd, r->file.fd);
        cr_assert_eq(fcntl(fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL | F_SEAL_WRITE),
                     F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    }
    cr_assert_eq(pwrite(fd, "x", 1, 0), -1);
    cr_assert_eq(mmap(NULL, RIG_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    memory_region_drop(r);
    rig_publish(r, 2); /* its own mapping still writes */
    cr_assert(rig_is_whole(r->base, 2, r->bytes));
    memory_region_destroy(&r);
}

Test(memory_region, is_offered_in_each_state_and_sealed_against_new_writers_then)
{
    digest_t manifest = rig_manifest(1);
    for (int state = REGION_IDLE; state <= REGION_SEALED; state++) {
        memory_region_t *r = rig_region(RIG_BYTES);
        int fd = -1;
        if (state == REGION_LOCKING) state++; /* lasts only within begin */
        if (state >= REGION_WRITING) cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
        if (state == REGION_SEALED) cr_assert_eq(memory_region_seal(r, &manifest, r->bytes, NULL), HEDDLE_OK);
        cr_assert_eq(memory_region_offer(r, &fd, NULL), HEDDLE_OK);
        cr_assert_eq((int)r->state, state);
        cr_assert_eq(fcntl(fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL),
                     F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
        memory_region_destroy(&r);
    }
    heddle_error_t e;
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    int fd;
    cr_assert(memory_region_shrink(r));
    cr_assert_eq(memory_region_offer(r, &fd, &e), HEDDLE_ERR_USAGE);
    cr_assert(strstr(e.message, "cannot be offered: it is given back"), "%s", e.message);
    memory_region_destroy(&r);
}

/* ---- guarded ---- */

static sigjmp_buf fault;
static void on_fault(int number)
{
    (void)number;
    siglongjmp(fault, 1);
}

static bool is_writable(memory_region_t *r, size_t at)
{
    struct sigaction action = {.sa_handler = on_fault}, old;
    sigaction(SIGSEGV, &action, &old);
    bool is = false;
    if (sigsetjmp(fault, 1) == 0) {
        volatile uint8_t *byte = (volatile uint8_t *)r->base + at;
        *byte = *byte;
        is = true;
    }
    sigaction(SIGSEGV, &old, NULL);
    return is;
}

Test(memory_region, a_stray_write_into_what_is_guarded_is_a_fault)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
    cr_assert_not(memory_region_guard(r));
    cr_assert(is_writable(r, 0), "it is being written");
    memory_region_abort(r);
    rig_publish(r, 1);
    cr_assert(is_writable(r, 0));
    cr_assert_not(memory_region_guard(r), "one step");
    cr_assert(!is_writable(r, 0) && !is_writable(r, r->bytes - 1) && !is_writable(r, r->bytes));
    memory_region_drop(r);
    cr_assert_not(memory_region_unguard(r));
    cr_assert(is_writable(r, 0) && is_writable(r, r->bytes));
    cr_assert_not(memory_region_guard(r));
    rig_publish(r, 2); /* begin takes the guard back by itself */
    cr_assert(is_writable(r, 0) && is_writable(r, r->bytes));
    memory_region_destroy(&r);
}

/* As where the process has as many mappings as the kernel allows. */
static bool has_no_mappings_left;

int mprotect(void *at, size_t bytes, int prot)
{
    if (!has_no_mappings_left) return (int)syscall(SYS_mprotect, at, bytes, prot);
    errno = ENOMEM;
    return -1;
}

/* Its lock, left behind, would keep all others from the version that is in it. */
Test(memory_region, one_whose_guard_cannot_be_taken_back_is_not_locked)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    heddle_error_t e;
    content_id_t id = rig_publish(r, 1);
    cr_assert_not(memory_region_guard(r));
    memory_region_drop(r);
    has_no_mappings_left = true;
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_ERR_NO_MEMORY);
    cr_assert(strstr(e.message, "cannot be written again: Cannot allocate memory"), "%s", e.message);
    int fd = rig_open(r->file.fd, O_RDONLY);
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
    close(fd);
    cr_assert(header_in(r)->state == HEADER_SEALED && header_in(r)->generation == id.generation);
    has_no_mappings_left = false;
    cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
    cr_assert(is_writable(r, 0));
    memory_region_destroy(&r);
}

Test(memory_region, a_large_one_is_guarded_in_steps)
{
    memory_region_t *r = NULL;
    const size_t bytes = 2 * MEMORY_GUARD_BYTES + LIMIT_PAGE_BYTES;
    if (memory_region_new(bytes, &r, NULL)) cr_skip_test("no address space");
    cr_assert(memory_region_guard(r));
    cr_assert_eq(r->guarded_bytes, MEMORY_GUARD_BYTES);
    cr_assert(memory_region_guard(r) && !memory_region_guard(r) && !memory_region_guard(r));
    cr_assert_eq(r->guarded_bytes, r->mapped_bytes);
    cr_assert(memory_region_unguard(r));
    cr_assert_eq(r->guarded_bytes, 2 * MEMORY_GUARD_BYTES);
    cr_assert(memory_region_unguard(r) && !memory_region_unguard(r) && !memory_region_unguard(r));
    cr_assert(is_writable(r, r->bytes));
    memory_region_destroy(&r);
}

/* ---- given back ---- */

Test(memory_region, one_that_was_never_handed_over_gives_its_pages_back_though_another_has_them)
{
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    int other = dup(r->file.fd);
    cr_assert(memory_region_shrink(r)); /* the header's page, and what is left of the last step */
    cr_assert_eq(rig_file_bytes(other), 2 * MEMORY_STEP_BYTES);
    cr_assert(!memory_region_shrink(r) && !memory_region_shrink(r));
    cr_assert_eq(rig_file_bytes(other), MEMORY_STEP_BYTES);
    memory_region_destroy(&r);
    cr_assert_eq(rig_file_bytes(other), 0);
    close(other);
}

Test(memory_region, one_that_was_given_back_is_used_no_more)
{
    static const content_id_t NONE;
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    heddle_error_t e;
    int fd;
    rig_publish(r, 5);
    cr_assert(memory_region_shrink(r));
    content_id_t id = memory_region_content(r);
    cr_assert(!memcmp(&id, &NONE, sizeof id), "its header is gone");
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_ERR_USAGE);
    cr_assert(strstr(e.message, "it is given back"), "%s", e.message);
    cr_assert_eq(memory_region_grow(r, &e), HEDDLE_ERR_USAGE);
    cr_assert_eq(memory_region_hand_over(r, &fd, &e), HEDDLE_ERR_USAGE);
    cr_assert_eq(memory_region_seal(r, &id.manifest, 1, &e), HEDDLE_ERR_USAGE);
    memory_region_abort(r);
    memory_region_drop(r);
    cr_assert(!memory_region_is_free(r) && !memory_region_guard(r));
    memory_region_destroy(&r);
    r = rig_region(2 * MEMORY_STEP_BYTES);
    cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
    cr_assert(memory_region_shrink(r));
    memory_region_abort(r);
    memory_region_destroy(&r);
}

Test(memory_region, one_that_was_handed_over_lives_on_with_those_that_hold_it)
{
    int before = rig_descriptors();
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    content_id_t id = rig_publish(r, 5);
    hold_t *h = rig_hold(r, &id);
    memory_region_destroy(&r);
    cr_assert(rig_is_whole(h->base, 5, h->header.bytes));
    hold_destroy(&h);
    cr_assert_eq(rig_descriptors(), before);
}

/* The kernel gives all pages back in the last munmap, and the loop would stand still meanwhile. */
Test(memory_region, a_large_one_is_given_back_on_a_thread_of_its_own)
{
    memory_region_t *r = rig_region(FILE_LARGE_BYTES);
    rig_publish(r, 1);
    unmapped_watch(r->base);
    memory_region_destroy(&r);
    pid_t by = unmapped_by_thread();
    cr_assert(by && by != gettid(), "thread %d, called by %d", by, gettid());
}

/* It has none of the application's signals, and the caller goes on with those that it had. */
Test(memory_region, the_thread_that_gives_back_takes_no_signals_and_is_not_joined)
{
    sigset_t before, after;
    memory_region_t *r = rig_region(FILE_LARGE_BYTES);
    rig_publish(r, 1);
    unmapped_watch(r->base);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    memory_region_destroy(&r);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    cr_assert_neq(unmapped_by_thread(), gettid());
    cr_assert_not(unmapped_takes_signals);
    cr_assert_not(unmapped_is_to_be_joined);
    for (int s = 1; s <= SIGSYS; s++)
        cr_assert_eq(sigismember(&after, s), sigismember(&before, s), "signal %d", s);
}

Test(memory_region, a_small_one_is_given_back_by_its_caller)
{
    memory_region_t *r = rig_region(FILE_LARGE_BYTES - LIMIT_PAGE_BYTES);
    rig_publish(r, 1);
    unmapped_watch(r->base);
    memory_region_destroy(&r);
    cr_assert_eq(unmapped_by_thread(), gettid());
}

/* A child that was forked meanwhile has its description, too: to close it ends no lock. */
Test(memory_region, one_that_is_destroyed_while_it_is_written_is_not_locked)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
    int childs = dup(r->file.fd), fd = rig_open(childs, O_RDONLY);
    cr_assert_eq(file_lock(fd, F_RDLCK), EAGAIN);
    memory_region_destroy(&r);
    cr_assert_eq(file_lock(fd, F_RDLCK), 0);
    close(fd);
    close(childs);
}

Test(memory_region, one_that_is_half_made_can_be_destroyed)
{
    memory_region_t *r = NULL;
    void *base;
    unsigned char v;
    cr_assert_eq(memory_region_new(3 * MEMORY_STEP_BYTES, &r, NULL), HEDDLE_OK);
    cr_assert_eq(memory_region_grow(r, NULL), HEDDLE_ERR_AGAIN);
    base = r->base;
    memory_region_destroy(&r);
    memory_region_destroy(&r);
    memory_region_destroy(NULL);
    cr_assert(mincore(base, 4096, &v) < 0 && errno == ENOMEM, "unmapped");
}

/* ---- in a child ---- */

static memory_region_t *idle;

/* It has the descriptors, and with them the descriptions that have the lock; but none of the mappings. */
static int child_changes_nothing(void *writing)
{
    static const uint8_t PAGE[LIMIT_PAGE_BYTES];
    static const content_id_t NONE;
    memory_region_t *r = writing;
    digest_t manifest = rig_manifest(2);
    int fd;
    bool is_refused = memory_region_put(r, 0, PAGE, sizeof PAGE, NULL) == HEDDLE_ERR_USAGE &&
                      memory_region_view(r, NULL) == HEDDLE_ERR_USAGE &&
                      memory_region_seal(r, &manifest, r->bytes, NULL) == HEDDLE_ERR_USAGE &&
                      memory_region_offer(r, &fd, NULL) == HEDDLE_ERR_USAGE &&
                      memory_region_begin(idle, NULL) == HEDDLE_ERR_USAGE;
    content_id_t has = memory_region_content(r);
    memory_region_abort(r);
    bool is_as_it_was = r->state == REGION_WRITING && content_is(&has, &NONE) && !memory_region_shrink(r) &&
                        !memory_region_is_free(idle);
    memory_region_destroy(&r);
    memory_region_destroy(&idle);
    return !is_refused ? 1 : !is_as_it_was ? 2 : 0;
}

Test(memory_region, a_child_without_handlers_changes_nothing_of_what_its_parent_writes)
{
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    digest_t manifest = rig_manifest(1);
    idle = rig_region(RIG_BYTES);
    cr_assert_eq(memory_region_begin(r, NULL), HEDDLE_OK);
    memset(r->base, 7, r->bytes);
    int reader = rig_open(r->file.fd, O_RDONLY);
    cr_assert_eq(rig_in_bare_child(child_changes_nothing, r), 0);
    cr_assert_eq(file_lock(reader, F_RDLCK), EAGAIN, "the owner still has its exclusive lock");
    cr_assert(rig_is_whole(r->base, 7, r->bytes), "no page is given back");
    cr_assert(header_in(r)->state == HEADER_WRITING && header_in(r)->generation == 1);
    cr_assert_eq(fcntl(r->file.fd, F_GET_SEALS) & (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL), 0);
    cr_assert_eq(memory_region_seal(r, &manifest, r->bytes, NULL), HEDDLE_OK);
    cr_assert_eq(file_lock(reader, F_RDLCK), 0);
    close(reader);
    memory_region_destroy(&r);
    memory_region_destroy(&idle);
}

/* The child maps memory of its own there. */
static int child_makes_nothing_writable(void *guarded)
{
    memory_region_t *r = guarded;
    size_t bytes = r->guarded_bytes;
    void *own = mmap(r->base, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return own == MAP_FAILED || memory_region_unguard(r) || r->guarded_bytes != bytes;
}

Test(memory_region, a_child_without_handlers_makes_no_guarded_page_writable)
{
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    rig_publish(r, 1);
    (void)memory_region_guard(r);
    cr_assert_gt(r->guarded_bytes, 0);
    cr_assert_eq(rig_in_bare_child(child_makes_nothing_writable, r), 0);
    memory_region_destroy(&r);
}

static int child_hands_nothing_over(void *sealed)
{
    memory_region_t *r = sealed;
    int fd;
    return memory_region_hand_over(r, &fd, NULL) != HEDDLE_ERR_USAGE ? 1 : memory_region_is_held(r) ? 2 : 0;
}

Test(memory_region, a_child_without_handlers_hands_nothing_over)
{
    memory_region_t *r = rig_region(RIG_BYTES);
    content_id_t content = rig_publish(r, 1);
    hold_t *h = rig_hold(r, &content);
    cr_assert(memory_region_is_held(r));
    cr_assert_eq(rig_in_bare_child(child_hands_nothing_over, r), 0);
    cr_assert(memory_region_is_held(r));
    hold_destroy(&h);
    memory_region_destroy(&r);
}

/* The child maps memory of its own where its parent has the region. */
static int child_keeps_its_pages(void *sealed)
{
    memory_region_t *r = sealed;
    size_t bytes = r->mapped_bytes;
    void *own = mmap(r->base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (own == MAP_FAILED) return 1;
    memory_region_drop(r);
    if (r->state != REGION_SEALED || memory_region_guard(r)) return 2;
    memset(own, 8, bytes);
    memory_region_destroy(&r);
    memset(own, 9, bytes);
    return 0;
}

Test(memory_region, a_child_that_destroys_it_keeps_its_own_pages_at_that_address)
{
    memory_region_t *r = rig_region(2 * MEMORY_STEP_BYTES);
    rig_publish(r, 1);
    cr_assert_eq(rig_in_child(child_keeps_its_pages, r), 0);
    cr_assert(rig_is_whole(r->base, 1, r->bytes));
    memory_region_destroy(&r);
}
