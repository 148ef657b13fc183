/* SPDX-License-Identifier: Apache-2.0 */
/* A fork on another thread, at each place of an operation that opens, maps, sends or closes: before and after
 * each of these calls, and where a section of memory/forks.h ends. It waits until the section has ended, or goes
 * through at once; in both cases its child has no descriptor and no mapping of the operation. Each run of an
 * operation has a fork at one place, so that nothing depends on chance. */
#include "memory/mappings.h"
#include "tests/unit/memory_rig.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>

typedef enum {
    AT_MEMFD,
    AT_MMAP,
    AT_MADVISE,
    AT_OPEN,
    AT_SOCKET,
    AT_EPOLL,
    AT_ACCEPT,
    AT_SENDMSG,
    AT_RECVMSG,
    AT_CLOSE,
    AT_SECTION_END
} place_t;
#define BIT(At) (1u << (At))

/* ---- the fork ---- */

enum { FORK_NONE, FORK_RUNS, FORK_WAITS, FORK_DONE };
static _Atomic int fork_state;
static int fork_status; /* of the child */
static pthread_t forker;
static _Thread_local bool is_forker, is_watched;
static int places, fork_place; /* passed in this run; the one with the fork */
static unsigned seen, held_up; /* places passed, and those at which the fork had to wait: BIT each */

enum { HAS_NOTHING, HAS_MEMORY_FILE, HAS_MAPPING, HAS_SOCKET, HAS_POLL_SET };
static const char *const HAS[] = {"nothing", "a memory file", "a mapping", "a socket", "a poll set"};
enum { DESCRIPTORS = 4096 };
static bool is_of_the_runner[DESCRIPTORS]; /* open before the test began */

static int look_at_descriptors(void)
{
    char path[300], name[64];
    int found = HAS_NOTHING;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(d)) && !found;) {
        int fd = atoi(e->d_name);
        if (fd < DESCRIPTORS && is_of_the_runner[fd]) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t n = readlink(path, name, sizeof name - 1);
        name[n > 0 ? n : 0] = 0;
        if (strstr(name, MEMORY_REGION_FILE)) found = HAS_MEMORY_FILE;
        if (strstr(name, "socket:")) found = HAS_SOCKET;
        if (strstr(name, "eventpoll")) found = HAS_POLL_SET;
    }
    closedir(d);
    return found;
}

static int look(void)
{
    int found = look_at_descriptors();
    FILE *maps = fopen("/proc/self/maps", "re");
    for (char line[512]; !found && fgets(line, sizeof line, maps);)
        if (strstr(line, MEMORY_REGION_FILE)) found = HAS_MAPPING;
    fclose(maps);
    return found;
}

static void *fork_and_look(void *unused)
{
    int status = -1;
    (void)unused;
    is_forker = true;
    pid_t child = fork();
    if (child == 0) _exit(look());
    waitpid(child, &status, 0);
    fork_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    atomic_store(&fork_state, FORK_DONE);
    return NULL;
}

static void wait_while(int state)
{
    uint64_t end_us = clock_now(clock_system()) + RIG_PATIENCE_US;
    while (atomic_load(&fork_state) == state && clock_now(clock_system()) < end_us) sched_yield();
}

static void pass(place_t place)
{
    int why = errno;
    if (!is_watched) return;
    is_watched = false;
    seen |= BIT(place);
    if (places++ == fork_place) {
        atomic_store(&fork_state, FORK_RUNS);
        if (pthread_create(&forker, NULL, fork_and_look, NULL)) abort();
        wait_while(FORK_RUNS);
        if (atomic_load(&fork_state) == FORK_WAITS) held_up |= BIT(place);
    }
    is_watched = true;
    errno = why;
}

/* ---- the calls, in place of those of the C library ---- */

static int next_of(const char *call, pthread_mutex_t *mutex)
{
    int (*next)(pthread_mutex_t *);
    void *found = dlsym(RTLD_NEXT, call);
    memcpy(&next, &found, sizeof next);
    return next(mutex);
}

/* A fork that finds a section open waits here. */
int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (is_forker && pthread_mutex_trylock(mutex) == 0) return 0;
    if (is_forker) atomic_store(&fork_state, FORK_WAITS);
    return next_of("pthread_mutex_lock", mutex);
}

/* A fork that waits goes on at once, before the operation does. */
int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    int rc = next_of("pthread_mutex_unlock", mutex);
    if (is_watched) wait_while(FORK_WAITS);
    pass(AT_SECTION_END);
    return rc;
}

#define AROUND(Type, Place, Number, ...)                                                                     \
    do {                                                                                                     \
        pass(Place);                                                                                         \
        Type rc = (Type)syscall(Number, __VA_ARGS__);                                                        \
        pass(Place);                                                                                         \
        return rc;                                                                                           \
    } while (0)

int memfd_create(const char *name, unsigned flags) { AROUND(int, AT_MEMFD, SYS_memfd_create, name, flags); }
int madvise(void *at, size_t bytes, int advice) { AROUND(int, AT_MADVISE, SYS_madvise, at, bytes, advice); }
int socket(int domain, int type, int protocol) { AROUND(int, AT_SOCKET, SYS_socket, domain, type, protocol); }
int epoll_create1(int flags) { AROUND(int, AT_EPOLL, SYS_epoll_create1, flags); }
int close(int fd) { AROUND(int, AT_CLOSE, SYS_close, fd); }

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    AROUND(void *, AT_MMAP, SYS_mmap, at, bytes, protection, flags, fd, offset);
}

int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags)
{
    AROUND(int, AT_ACCEPT, SYS_accept4, fd, address, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    AROUND(ssize_t, AT_SENDMSG, SYS_sendmsg, fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    AROUND(ssize_t, AT_RECVMSG, SYS_recvmsg, fd, message, flags);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    AROUND(int, AT_OPEN, SYS_openat, AT_FDCWD, path, flags, mode);
}

/* ---- each place of an operation ---- */

static memory_region_t *region;
static content_id_t id;
static char name[32];
static handover_t *source;

/* The places are counted by the runs. `expected` are among those at which a fork has to wait. */
static void try_each_place(void (*operation)(void), unsigned expected)
{
    seen = held_up = 0;
    for (fork_place = 0;; fork_place++) {
        places = 0;
        atomic_store(&fork_state, FORK_NONE);
        is_watched = true;
        operation();
        is_watched = false;
        if (atomic_load(&fork_state) == FORK_NONE) break;
        wait_while(FORK_WAITS);
        cr_assert_eq(atomic_load(&fork_state), FORK_DONE, "place %d: the fork does not end", fork_place);
        pthread_join(forker, NULL);
        cr_assert(fork_status == HAS_NOTHING, "place %d: the child has %s", fork_place,
                  fork_status <= HAS_POLL_SET ? HAS[fork_status] : "died");
    }
    cr_assert_eq(held_up & expected, expected, "places %#x, a fork waits at %#x, expected %#x", seen, held_up,
                 expected);
}

static void set_up(void)
{
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; (e = readdir(d));)
        if (atoi(e->d_name) < DESCRIPTORS && atoi(e->d_name) != dirfd(d))
            is_of_the_runner[atoi(e->d_name)] = true;
    closedir(d);
    cr_assert(forks_stop()); /* from now on forks have their handlers */
    forks_go();
    snprintf(name, sizeof name, "test-%d", getpid());
}

TestSuite(memory_forks, .init = set_up);

static void make_and_destroy(void)
{
    memory_region_t *r = NULL;
    heddle_error_t e;
    cr_assert_eq(memory_region_new(RIG_BYTES, &r, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(memory_region_view(r, &e), HEDDLE_OK, "%s", e.message);
    memory_region_destroy(&r);
}

Test(memory_forks, a_child_has_no_region_that_is_being_made)
{
    try_each_place(make_and_destroy, BIT(AT_MEMFD) | BIT(AT_MMAP) | BIT(AT_MADVISE) | BIT(AT_CLOSE));
}

/* Source and receiver in one process. */
static void ask_and_hold(void)
{
    handover_ask_t *a = NULL;
    hold_t *h = NULL;
    heddle_error_t e;
    int rc = handover_ask(NULL, name, &id, CLOCK_NEVER, &a, &e);
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    while ((rc = handover_ask_take(a, 0, &h, &e)) == HEDDLE_ERR_AGAIN)
        handover_turn(source, clock_now(clock_system()));
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    cr_assert_eq(hold_take(h, &id, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
    handover_ask_destroy(&a);
}

static void listen_for(memory_region_t *found)
{
    heddle_error_t e;
    cr_assert_eq(handover_listen(NULL, name, rig_find, found, &source, &e), HEDDLE_OK, "%s", e.message);
}

Test(memory_forks, a_child_has_nothing_of_what_is_handed_over)
{
    region = rig_region(RIG_BYTES);
    id = rig_publish(region, 1);
    listen_for(region);
    try_each_place(ask_and_hold, BIT(AT_SOCKET) | BIT(AT_ACCEPT) | BIT(AT_OPEN) | BIT(AT_SENDMSG) |
                                     BIT(AT_RECVMSG) | BIT(AT_MMAP) | BIT(AT_MADVISE) | BIT(AT_CLOSE));
    handover_destroy(&source);
    memory_region_destroy(&region);
}

static void listen_and_watch(void)
{
    mappings_t *m = NULL;
    uint64_t now_us = clock_now(clock_system());
    listen_for(NULL);
    cr_assert_eq(mappings_new(NULL, NULL, NULL, &m, NULL), HEDDLE_OK);
    cr_assert_eq(mappings_watch(m, name, now_us, NULL), HEDDLE_OK);
    handover_turn(source, now_us);
    mappings_destroy(&m);
    handover_destroy(&source);
}

Test(memory_forks, a_child_has_no_listener_and_no_watcher)
{
    try_each_place(listen_and_watch, BIT(AT_SOCKET) | BIT(AT_EPOLL) | BIT(AT_ACCEPT) | BIT(AT_CLOSE));
}

/* ---- a child that goes on ---- */

static memory_fd_t inherited;

static bool open_one(memory_fd_t *d)
{
    if (!forks_stop()) return false;
    forks_add(d, open("/dev/null", O_RDONLY | O_CLOEXEC));
    forks_go();
    return d->fd >= 0;
}

static int has_none(void *d) { return ((memory_fd_t *)d)->fd != -1; }

/* It has freed what it inherited, and that memory has other contents by now. */
static int open_and_fork(void *unused)
{
    memory_fd_t own;
    uint8_t other[sizeof inherited];
    (void)unused;
    memset(other, 0x55, sizeof other);
    memcpy(&inherited, other, sizeof other);
    if (!open_one(&own)) return 1;
    if (rig_in_child(has_none, &own)) return 2;
    forks_close(&own);
    if (own.fd != -1) return 3;
    return memcmp(&inherited, other, sizeof other) ? 4 : 0;
}

Test(memory_forks, a_child_with_descriptors_of_its_own_leaves_alone_what_it_inherited)
{
    cr_assert(open_one(&inherited));
    cr_assert_eq(rig_in_child(open_and_fork, NULL), 0);
    cr_assert_geq(inherited.fd, 0);
    forks_close(&inherited);
}
