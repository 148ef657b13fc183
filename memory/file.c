/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/file.h"

#include "core/limits.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL /* of headers older than the kernel: Debian 12 has 6.1 */
#define MFD_NOEXEC_SEAL 8u
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

int file_new(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

int file_lock(int fd, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0) return 0;
    return errno == EACCES ? EAGAIN : errno;
}

void file_unlock(int fd)
{
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    (void)fcntl(fd, F_OFD_SETLK, &lock);
}

bool file_is_held(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool file_header(int fd, header_t *ret_header, size_t *ret_capacity)
{
    struct stat s;
    if (fstat(fd, &s) < 0 || s.st_size < (off_t)LIMIT_PAGE_BYTES) return false;
    size_t capacity = (size_t)s.st_size - LIMIT_PAGE_BYTES;
    if (pread(fd, ret_header, sizeof *ret_header, (off_t)capacity) != sizeof *ret_header) return false;
    *ret_capacity = capacity;
    return true;
}

void file_populate(void *at, size_t bytes, bool is_to_write)
{
    if (madvise(at, bytes, is_to_write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0 || errno != EINVAL)
        return;
    for (size_t i = 0; i < bytes; i += LIMIT_PAGE_BYTES) {
        volatile uint8_t *byte = (volatile uint8_t *)at + i;
        uint8_t was = *byte;
        if (is_to_write) *byte = was;
    }
}

/* By faults of the mapping: a hint for huge pages is the mapping's, and fallocate does not see it. A kernel
 * without the call (before 5.14) has fallocate; touching alone would be a SIGBUS where no memory is left. */
int file_make(int fd, void *at, size_t offset, size_t bytes)
{
    int rc;
    if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno == EFAULT ? ENOMEM : errno;
    do rc = fallocate(fd, 0, (off_t)offset, (off_t)bytes);
    while (rc < 0 && errno == EINTR);
    if (rc < 0) return errno;
    file_populate(at, bytes, true);
    return 0;
}

typedef struct {
    void *at;
    size_t bytes;
} range_t;

static void *unmap(void *range)
{
    range_t r = *(range_t *)range;
    free(range);
    munmap(r.at, r.bytes);
    return NULL;
}

void file_unmap_last(void *at, size_t bytes, size_t file_bytes)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, old;
    range_t *range = file_bytes < FILE_LARGE_BYTES ? NULL : malloc(sizeof *range);
    bool is_started = false;
    if (range && !pthread_attr_init(&attributes)) {
        *range = (range_t){at, bytes};
        /* The application's signals are not for this thread. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        is_started = !pthread_create(&thread, &attributes, unmap, range);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        pthread_attr_destroy(&attributes);
    }
    if (is_started) return;
    free(range);
    munmap(at, bytes);
}
