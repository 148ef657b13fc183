/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: what they hold, what they refuse, and who may write. */
#include "tests/contract/region_new.h"
#include "core/failpoint.h"
#include "core/limits.h"
#include "transfer/region.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static region_t *make(size_t bytes)
{
    region_t *r = NULL;
    heddle_error_t e;
    cr_assert_eq(region_new(bytes, &r, &e), HEDDLE_OK, "%s", e.message);
    return r;
}

Test(region, sizes_are_whole_pages)
{
    const size_t sizes[][2] = {{0, 4096}, {1, 4096}, {4096, 4096}, {4097, 8192}, {1u << 20, 1u << 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        region_t *r = make(sizes[i][0]);
        cr_assert_eq(r->bytes, sizes[i][1]);
        cr_assert_eq((uintptr_t)r->base % LIMIT_PAGE_BYTES, 0);
        cr_assert_eq(((uint8_t *)r->base)[r->bytes - 1], 0);
        cr_assert_null(r->backend);
        region_unref(&r);
        cr_assert_null(r);
    }
}

Test(region, memory_is_there_before_it_is_used)
{
    region_t *r = make(8u << 20);
    struct stat s;
    cr_assert_eq(fstat(r->own->file.fd, &s), 0);
    cr_assert_eq(s.st_size, (8 << 20) + LIMIT_PAGE_BYTES, "with its header");
    cr_assert_eq(s.st_blocks * 512, s.st_size, "reserved");
    static unsigned char resident[(8u << 20) / LIMIT_PAGE_BYTES];
    cr_assert_eq(mincore(r->base, r->bytes, resident), 0);
    for (size_t i = 0; i < sizeof resident; i++) cr_assert(resident[i] & 1, "page %zu", i);
    region_unref(&r);
}

static size_t bytes_of_file(int fd)
{
    struct stat s;
    cr_assert_eq(fstat(fd, &s), 0);
    return (size_t)s.st_blocks * 512;
}

/* The descriptor stands for the mapping of another process, which has read it. */
Test(region, one_that_is_still_mapped_elsewhere_has_no_pages)
{
    region_t *r = make(8u << 20);
    int other = dup(r->own->file.fd);
    region_t *held = region_ref(r);
    region_unref(&r);
    cr_assert_eq(bytes_of_file(other), (8u << 20) + LIMIT_PAGE_BYTES, "there is a reference");
    region_unref(&held);
    cr_assert_eq(bytes_of_file(other), 0);
    close(other);
}

Test(region, a_child_gives_nothing_of_its_parents_back)
{
    region_t *r = make(1u << 20);
    memset(r->base, 7, r->bytes);
    pid_t child = fork();
    if (child == 0) {
        region_unref(&r);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, NULL, 0), child);
    cr_assert_eq(bytes_of_file(r->own->file.fd), (1u << 20) + LIMIT_PAGE_BYTES);
    cr_assert_eq(((uint8_t *)r->base)[5000], 7);
    region_unref(&r);
}

Test(region, it_is_made_in_pieces_of_bounded_size)
{
    const size_t bytes = 3 * MEMORY_STEP_BYTES + LIMIT_PAGE_BYTES;
    region_t *r = NULL;
    heddle_error_t e;
    cr_assert_eq(region_begin(bytes, &r, &e), HEDDLE_OK);
    cr_assert_eq(region_view(r), HEDDLE_OK);
    for (size_t made = 1; made <= 3; made++) {
        struct stat s;
        cr_assert_eq(region_grow(r, &e), HEDDLE_ERR_AGAIN);
        cr_assert_eq(fstat(r->own->file.fd, &s), 0);
        cr_assert_eq((size_t)s.st_blocks * 512, made * MEMORY_STEP_BYTES + LIMIT_PAGE_BYTES);
    }
    cr_assert_eq(region_grow(r, &e), HEDDLE_OK);
    cr_assert_eq(region_grow(r, &e), HEDDLE_OK, "whole already");
    static unsigned char resident[3 * MEMORY_STEP_BYTES / LIMIT_PAGE_BYTES + 1];
    cr_assert_eq(mincore((void *)(uintptr_t)r->view, r->bytes, resident), 0);
    for (size_t i = 0; i < sizeof resident; i++) cr_assert(resident[i] & 1, "page %zu", i);
    region_unref(&r);
}

Test(region, pages_that_are_put_are_made_and_the_rest_is_grown)
{
    heddle_error_t e;
    region_t *r = NULL;
    static uint8_t pages[3][LIMIT_PAGE_BYTES];
    cr_assert_eq(region_begin(6 * LIMIT_PAGE_BYTES, &r, &e), HEDDLE_OK);
    for (int i = 2; i >= 0; i--) { /* in any order */
        memset(pages[i], 'a' + i, sizeof *pages);
        cr_assert_eq(region_put(r, (size_t)i * LIMIT_PAGE_BYTES, pages[i], sizeof *pages, &e), HEDDLE_OK);
    }
    cr_assert_eq(bytes_of_file(r->own->file.fd), sizeof pages + LIMIT_PAGE_BYTES, "no page but those");
    cr_assert_eq(region_grow(r, &e), HEDDLE_OK);
    cr_assert_eq(bytes_of_file(r->own->file.fd), r->bytes + LIMIT_PAGE_BYTES);
    cr_assert_arr_eq((uint8_t *)r->base, pages, sizeof pages);
    cr_assert_eq(((uint8_t *)r->base)[sizeof pages], 0);
    cr_assert_eq(r->own->made_bytes, r->bytes);
    region_unref(&r);
}

Test(region, what_cannot_be_put_is_an_error)
{
    heddle_error_t e = {0};
    region_t *r = NULL;
    static uint8_t pages[LIMIT_PAGE_BYTES];
    cr_assert_eq(region_begin(sizeof pages, &r, &e), HEDDLE_OK);
    failpoint_arm("region.memory", 1);
    int rc = HEDDLE_OK; /* what is free is asked for after so many bytes of all regions */
    for (int i = 0; !rc && i < 1 << 16; i++) {
        r->own->made_bytes = 0;
        rc = region_put(r, 0, pages, sizeof pages, &e);
    }
    cr_assert(failpoint_has_failed());
    cr_assert_eq(rc, HEDDLE_ERR_NO_MEMORY);
    failpoint_disarm();
    cr_assert_eq(region_put(r, 2 * sizeof pages, pages, sizeof pages, &e), HEDDLE_ERR_NO_MEMORY, "beyond it");
    cr_assert(e.message[0] && e.hint[0]);
    region_unref(&r);
}

Test(region, one_that_is_half_made_can_be_given_back)
{
    region_t *r = NULL;
    heddle_error_t e;
    cr_assert_eq(region_begin(3 * MEMORY_STEP_BYTES, &r, &e), HEDDLE_OK);
    cr_assert_eq(region_grow(r, &e), HEDDLE_ERR_AGAIN);
    region_unref(&r);
    cr_assert_null(r);
}

/* Small ones are many, and each alone asks for too little to be asked about. */
Test(region, what_others_took_meanwhile_is_asked_for_again_and_again)
{
    enum { COUNT = 8 };
    region_t *r[COUNT];
    heddle_error_t e;
    for (int i = 0; i < COUNT; i++) cr_assert_eq(region_begin(3 * MEMORY_STEP_BYTES, &r[i], &e), HEDDLE_OK);
    failpoint_arm("region.memory", 1);
    int rc = HEDDLE_OK, at = 0;
    for (; at < 3 * COUNT && rc != HEDDLE_ERR_NO_MEMORY; at++) rc = region_grow(r[at % COUNT], &e);
    cr_assert(failpoint_has_failed());
    cr_assert_eq(rc, HEDDLE_ERR_NO_MEMORY);
    failpoint_arm("region.memory", 1);
    cr_assert_eq(region_grow(r[at % COUNT], &e), HEDDLE_ERR_NO_MEMORY, "after a no the next one asks");
    failpoint_disarm();
    cr_assert(strstr(e.message, "control group") && e.hint[0], "%s", e.message);
    for (int i = 0; i < COUNT; i++) region_unref(&r[i]);
}

Test(region, its_size_is_sealed_and_its_bytes_are_not)
{
    region_t *r = make(1u << 20);
    cr_assert(ftruncate(r->own->file.fd, 4096) < 0 && errno == EPERM);
    cr_assert(ftruncate(r->own->file.fd, 2 << 20) < 0 && errno == EPERM);
    cr_assert(fcntl(r->own->file.fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EBUSY,
              "it cannot be made read-only for ever");
    cr_assert(fcntl(r->own->file.fd, F_GETFD) & FD_CLOEXEC);
    memset(r->base, 7, r->bytes);
    region_unref(&r);
}

Test(region, a_view_shows_the_same_memory)
{
    region_t *r = make(1u << 16);
    cr_assert_null(r->view);
    cr_assert_eq(region_view(r), HEDDLE_OK);
    const void *view = r->view;
    cr_assert_eq(region_view(r), HEDDLE_OK);
    cr_assert_eq(r->view, view, "made once");
    strcpy(r->base, "seen");
    cr_assert_str_eq(r->view, "seen");
    region_unref(&r);
}

Test(region, a_view_is_read_only)
{
    region_t *r = make(1u << 16);
    cr_assert_eq(region_view(r), HEDDLE_OK);
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    cr_assert(read(zeros, (void *)(uintptr_t)r->view, 1) < 0 && errno == EFAULT,
              "the kernel may not write there either");
    cr_assert_eq(read(zeros, r->base, 1), 1);
    close(zeros);
    region_unref(&r);
}

Test(region, too_much_is_an_error_that_says_how_much)
{
    region_t *r = NULL;
    heddle_error_t e;
    const size_t sizes[] = {(size_t)1 << 39, LIMIT_REGION_BYTES, (size_t)LIMIT_REGION_BYTES + 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char bytes[32];
        snprintf(bytes, sizeof bytes, "%zu", sizes[i]);
        cr_assert_eq(region_new(sizes[i], &r, &e), HEDDLE_ERR_NO_MEMORY);
        cr_assert_null(r);
        cr_assert(strstr(e.message, bytes), "%s", e.message);
        cr_assert(e.hint[0] && e.retriable);
    }
    cr_assert_eq(region_new((size_t)1 << 39, &r, NULL), HEDDLE_ERR_NO_MEMORY);
}

static int open_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

Test(region, the_last_reference_frees_it)
{
    int before = open_descriptors();
    region_t *a = make(4096), *b = region_ref(a);
    void *base = a->base;
    region_unref(&a);
    memset(b->base, 1, 4096);
    region_unref(&b);
    region_unref(&b);
    region_unref(NULL);
    unsigned char v;
    cr_assert(mincore(base, 4096, &v) < 0 && errno == ENOMEM, "unmapped");
    cr_assert_eq(open_descriptors(), before);
}

static void *ref_and_unref(void *arg)
{
    for (int i = 0; i < 100000; i++) {
        region_t *mine = region_ref(arg);
        region_unref(&mine);
    }
    return NULL;
}

Test(region, references_count_on_any_thread)
{
    region_t *r = make(4096);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, ref_and_unref, r);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    cr_assert_eq(atomic_load(&r->refs), 1);
    region_unref(&r);
}
