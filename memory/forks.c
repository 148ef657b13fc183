/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/forks.h"

#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_installed;
static memory_fd_t *listed;

static void begin_fork(void) { pthread_mutex_lock(&lock); }
static void end_fork(void) { pthread_mutex_unlock(&lock); }

/* The child's thread holds the lock, as the parent's thread did in begin_fork. */
static void begin_child(void)
{
    for (memory_fd_t *d = listed, *next; d; d = next) {
        next = d->next;
        close(d->fd);
        *d = MEMORY_FD_NONE;
    }
    listed = NULL;
    pthread_mutex_unlock(&lock);
}

static void install(void) { is_installed = !pthread_atfork(begin_fork, end_fork, begin_child); }

bool forks_stop(void)
{
    pthread_once(&once, install);
    if (is_installed) pthread_mutex_lock(&lock);
    return is_installed;
}

void forks_go(void) { pthread_mutex_unlock(&lock); }

void forks_add(memory_fd_t *d, int fd)
{
    *d = (memory_fd_t){.fd = fd};
    if (fd < 0) return;
    d->next = listed;
    if (listed) listed->previous = d;
    listed = d;
}

static void take_off(memory_fd_t *d)
{
    if (d->next) d->next->previous = d->previous;
    if (d->previous) d->previous->next = d->next;
    else listed = d->next;
    *d = MEMORY_FD_NONE;
}

void forks_move(memory_fd_t *to, memory_fd_t *from)
{
    *to = MEMORY_FD_NONE;
    if (from->fd < 0) return;
    pthread_mutex_lock(&lock);
    int fd = from->fd;
    take_off(from);
    forks_add(to, fd);
    pthread_mutex_unlock(&lock);
}

/* Closed before it leaves the list: a fork between the two would leave the descriptor to the child. */
void forks_close(memory_fd_t *d)
{
    if (d->fd < 0) return;
    pthread_mutex_lock(&lock);
    close(d->fd);
    take_off(d);
    pthread_mutex_unlock(&lock);
}
