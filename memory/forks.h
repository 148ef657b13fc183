/* SPDX-License-Identifier: Apache-2.0 */
/* memory/forks.h: descriptors that a forked child does not keep.
 *
 *   none --(forks_stop, open, forks_add, forks_go)--> listed --(forks_close)--> none
 *
 * A child shares its parent's descriptions: it would keep a hold alive after the parent has closed it, and an
 * F_UNLCK by it would end the parent's. So a handler of pthread_atfork closes all listed descriptors in the
 * child. It cannot see what is not listed yet: opening and listing are one section, during which no fork
 * begins, and so are mmap and MADV_DONTFORK.
 *
 * Process-wide: a list and its lock. Any thread; a section never blocks on anything but another section, and
 * does not nest. The caller owns each memory_fd_t, which stays in place while it is listed. */
#ifndef MEMORY_FORKS_H
#define MEMORY_FORKS_H

#include <stdbool.h>

typedef struct memory_fd {
    int fd;                            /* -1: none; also in a forked child */
    struct memory_fd *next, *previous; /* of the list */
} memory_fd_t;
#define MEMORY_FD_NONE ((memory_fd_t){.fd = -1})

/* False: the handlers could not be installed (no memory), and the section has not begun. */
bool forks_stop(void);
void forks_go(void);
/* Within a section. `fd` may be -1. */
void forks_add(memory_fd_t *d, int fd);
/* Not within a section. Both accept one that has no descriptor. move: `to` takes the descriptor of `from`.
 * close: the last one of a large file takes milliseconds, during which no fork begins; with the file still
 * mapped it is quick, and the pages go when that mapping goes. */
void forks_move(memory_fd_t *to, memory_fd_t *from);
void forks_close(memory_fd_t *d);

#endif
