/* SPDX-License-Identifier: Apache-2.0 */
/* A handle on memory: its references, and what its end gives back. */
#include "tests/contract/region_new.h"
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
