/* SPDX-License-Identifier: Apache-2.0 */
/* A handle on memory: its references, and what its end gives back. */
#include "tests/contract/region_new.h"
#include "core/limits.h"
#include "transfer/region.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
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
    struct stat s;
    cr_assert_eq(fstat(r->own->file.fd, &s), 0);
    cr_assert_eq((size_t)s.st_blocks * 512, (1u << 20) + LIMIT_PAGE_BYTES);
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
