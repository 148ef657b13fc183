/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of this process, and of an owner in a process of its own that does what it is asked to, one step at
 * a time, and hands over meanwhile. Each byte of a content is its version. */
#ifndef TESTS_UNIT_MEMORY_RIG_H
#define TESTS_UNIT_MEMORY_RIG_H

#include "core/clock.h"
#include "memory/file.h"
#include "memory/handover.h"
#include "memory/hold.h"
#include "memory/region.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RIG_BYTES = 65536, RIG_PATIENCE_US = 8000000 };

static inline memory_region_t *rig_region(size_t bytes)
{
    memory_region_t *r = NULL;
    heddle_error_t e = {0};
    cr_assert_eq(memory_region_new(bytes, &r, &e), HEDDLE_OK, "%s", e.message);
    int rc;
    do rc = memory_region_grow(r, &e);
    while (rc == HEDDLE_ERR_AGAIN);
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    return r;
}

static inline digest_t rig_manifest(uint64_t version)
{
    digest_t d = {{(uint8_t)version, 1}};
    return d;
}

static inline region_name_t rig_name(const memory_region_t *r)
{
    region_name_t name;
    content_id_t id = memory_region_content(r);
    memcpy(name.identity, id.identity, sizeof name.identity);
    return name;
}

/* begin, all bytes, seal. */
static inline content_id_t rig_publish(memory_region_t *r, uint64_t version)
{
    heddle_error_t e = {0};
    digest_t manifest = rig_manifest(version);
    cr_assert_eq(memory_region_begin(r, &e), HEDDLE_OK, "%s", e.message);
    memset(r->base, (int)version, r->bytes);
    cr_assert_eq(memory_region_seal(r, &manifest, r->bytes, &e), HEDDLE_OK, "%s", e.message);
    return memory_region_content(r);
}

/* A descriptor as another process sends it: listed, so that hold_new may take it. */
static inline memory_fd_t rig_listed(int fd)
{
    memory_fd_t file;
    cr_assert(forks_stop());
    forks_add(&file, fd);
    forks_go();
    return file;
}

/* Another description of a file. */
static inline int rig_open(int fd, int flags)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

static inline hold_t *rig_hold_new(int fd)
{
    hold_t *h = NULL;
    heddle_error_t e = {0};
    memory_fd_t file = rig_listed(fd);
    cr_assert_eq(hold_new(&file, &h, &e), HEDDLE_OK, "%s", e.message);
    return h;
}

/* A hold of what a region of this process has. */
static inline hold_t *rig_hold(memory_region_t *r, const content_id_t *id)
{
    heddle_error_t e = {0};
    memory_fd_t file;
    hold_t *h = NULL;
    int fd, own = -1;
    cr_assert_eq(memory_region_hand_over(r, &fd, &e), HEDDLE_OK, "%s", e.message);
    cr_assert(forks_stop());
    int rc = hold_open(fd, id, &own, &e);
    forks_add(&file, own);
    forks_go();
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    cr_assert_eq(hold_new(&file, &h, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(hold_take(h, id, &e), HEDDLE_OK, "%s", e.message);
    return h;
}

static inline bool rig_is_whole(const void *base, uint64_t version, size_t bytes)
{
    const uint8_t *b = base;
    for (size_t i = 0; i < bytes; i++)
        if (b[i] != (uint8_t)version) return false;
    return true;
}

static inline int rig_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static inline size_t rig_file_bytes(int fd)
{
    struct stat s;
    cr_assert_eq(fstat(fd, &s), 0);
    return (size_t)s.st_blocks * 512;
}

/* As any process may send one, without what memory/handover.h checks. */
static inline bool rig_send_descriptor(int socket, int fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {(char[]){"x"}, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    control.head = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    return sendmsg(socket, &message, 0) == 1;
}

static inline int rig_receive_descriptor(int socket)
{
    int fd = -1;
    char byte, control[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8)));
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Without the handlers of pthread_atfork, as a bare clone makes it. */
static inline pid_t rig_bare_fork(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

/* It does nothing until it is killed, or the test has ended: a child that outlives a test that fails keeps the
 * pipe of its output open, and ctest waits for that. */
static inline pid_t rig_idle_bare_fork(void)
{
    pid_t pid = rig_bare_fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
}

static inline void rig_reap(pid_t pid, int number)
{
    int status;
    if (number) kill(pid, number);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
}

static inline int rig_status(pid_t pid)
{
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The exit status of a child that does `work`. */
static inline int rig_in_child(int (*work)(void *arg), void *arg)
{
    pid_t pid = fork();
    if (pid == 0) _exit(work(arg));
    return rig_status(pid);
}

static inline int rig_in_bare_child(int (*work)(void *arg), void *arg)
{
    pid_t pid = rig_bare_fork();
    if (pid == 0) _exit(work(arg));
    return rig_status(pid);
}

/* ---- an owner in a process of its own ---- */

typedef enum {
    RIG_BEGIN,
    RIG_HALF,
    RIG_FILL,
    RIG_SEAL,
    RIG_SEAL_AND_KEEP_THE_LOCK,
    RIG_ABORT,
    RIG_DROP,
    RIG_IS_FREE,
    RIG_FORK,
    RIG_END,
} rig_order_t;
typedef struct {
    rig_order_t order;
    uint64_t version;
    int region; /* 0, or another one, which is made when it is asked for */
} rig_ask_t;
typedef struct {
    int rc;
    content_id_t id;
    pid_t child;
} rig_reply_t;

typedef struct {
    pid_t pid;
    int orders;
    char name[32];
    content_id_t id;
} rig_owner_t;

static inline int rig_find(void *self, const content_id_t *id)
{
    memory_region_t *r = self;
    int fd;
    if (memcmp(id->identity, memory_region_content(r).identity, sizeof id->identity) != 0)
        return HEDDLE_ERR_NOT_FOUND;
    int rc = id->generation ? memory_region_hand_over(r, &fd, NULL) : memory_region_offer(r, &fd, NULL);
    return !rc ? fd : rc == HEDDLE_ERR_INTERNAL ? rc : HEDDLE_ERR_NOT_FOUND;
}

enum { RIG_REGIONS = 2 };
static inline int rig_find_any(void *self, const content_id_t *id)
{
    memory_region_t **regions = self;
    int rc = HEDDLE_ERR_NOT_FOUND;
    for (int i = 0; i < RIG_REGIONS && regions[i] && rc == HEDDLE_ERR_NOT_FOUND; i++)
        rc = rig_find(regions[i], id);
    return rc;
}

static inline rig_reply_t rig_obey(memory_region_t *r, const rig_ask_t *ask)
{
    digest_t manifest = rig_manifest(ask->version);
    header_t *header = (header_t *)(void *)((uint8_t *)r->base + r->bytes);
    rig_reply_t reply = {0};
    switch (ask->order) {
    case RIG_BEGIN: reply.rc = memory_region_begin(r, NULL); break;
    case RIG_HALF: memset(r->base, (int)ask->version, r->bytes / 2); break;
    case RIG_FILL: memset(r->base, (int)ask->version, r->bytes); break;
    case RIG_SEAL: reply.rc = memory_region_seal(r, &manifest, r->bytes, NULL); break;
    case RIG_SEAL_AND_KEEP_THE_LOCK: /* before the last act of a seal */
        header_put(header, REGION_PUT_CONTENT, &(header_t){.manifest = manifest, .bytes = r->bytes});
        header_put(header, REGION_PUT_SEALED, NULL);
        break;
    case RIG_ABORT: memory_region_abort(r); break;
    case RIG_DROP: memory_region_drop(r); break;
    case RIG_IS_FREE: reply.rc = memory_region_is_free(r); break;
    case RIG_FORK:
        if ((reply.child = rig_bare_fork()) == 0)
            for (;;) pause();
        break;
    default: _exit(0);
    }
    reply.id = memory_region_content(r);
    return reply;
}

static inline _Noreturn void rig_run_owner(int orders, const char *name)
{
    memory_region_t *regions[RIG_REGIONS] = {rig_region(RIG_BYTES)};
    handover_t *h = NULL;
    heddle_error_t e = {0};
    rig_ask_t ask;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (handover_listen(NULL, name, rig_find_any, regions, &h, &e)) _exit(3);
    rig_reply_t reply = {0};
    (void)!write(orders, &reply, sizeof reply); /* it listens */
    for (;;) {
        struct pollfd polls[2] = {{orders, POLLIN, 0}, {handover_fd(h), POLLIN, 0}};
        if (poll(polls, 2, 1000) < 0 && errno != EINTR) _exit(4);
        handover_turn(h, clock_now(clock_system()));
        if (!(polls[0].revents & (POLLIN | POLLHUP))) continue;
        if (read(orders, &ask, sizeof ask) != (ssize_t)sizeof ask) _exit(0);
        if (!regions[ask.region]) regions[ask.region] = rig_region(RIG_BYTES);
        reply = rig_obey(regions[ask.region], &ask);
        if (write(orders, &reply, sizeof reply) != (ssize_t)sizeof reply) _exit(0);
    }
}

static inline rig_owner_t rig_owner(void)
{
    static unsigned count;
    rig_owner_t o = {0};
    rig_reply_t reply;
    int pair[2];
    snprintf(o.name, sizeof o.name, "test-%d-%u", getpid(), count++);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    o.pid = fork();
    cr_assert_geq(o.pid, 0);
    if (o.pid == 0) {
        close(pair[0]);
        rig_run_owner(pair[1], o.name);
    }
    close(pair[1]);
    o.orders = pair[0];
    cr_assert_eq(read(o.orders, &reply, sizeof reply), (ssize_t)sizeof reply, "the owner does not start");
    return o;
}

static inline rig_reply_t rig_order_in(rig_owner_t *o, int region, rig_order_t order, uint64_t version)
{
    rig_ask_t ask = {order, version, region};
    rig_reply_t reply;
    cr_assert_eq(write(o->orders, &ask, sizeof ask), (ssize_t)sizeof ask);
    cr_assert_eq(read(o->orders, &reply, sizeof reply), (ssize_t)sizeof reply);
    o->id = reply.id;
    return reply;
}

static inline rig_reply_t rig_order(rig_owner_t *o, rig_order_t order, uint64_t version)
{
    return rig_order_in(o, 0, order, version);
}

static inline content_id_t rig_owner_publishes_in(rig_owner_t *o, int region, uint64_t version)
{
    cr_assert_eq(rig_order_in(o, region, RIG_BEGIN, 0).rc, HEDDLE_OK);
    rig_order_in(o, region, RIG_FILL, version);
    cr_assert_eq(rig_order_in(o, region, RIG_SEAL, version).rc, HEDDLE_OK);
    return o->id;
}

static inline content_id_t rig_owner_publishes(rig_owner_t *o, uint64_t version)
{
    return rig_owner_publishes_in(o, 0, version);
}

static inline void rig_kill(rig_owner_t *o)
{
    rig_reap(o->pid, SIGKILL);
    close(o->orders);
}

/* Asks, and waits for the answer. */
static inline int rig_ask(const char *directory, const char *name, const content_id_t *id, hold_t **ret_hold,
                          heddle_error_t *error)
{
    handover_ask_t *a = NULL;
    uint64_t end_us = clock_now(clock_system()) + RIG_PATIENCE_US;
    int rc = handover_ask(directory, name, id, end_us, &a, error);
    if (rc) return rc;
    while ((rc = handover_ask_take(a, clock_now(clock_system()), ret_hold, error)) == HEDDLE_ERR_AGAIN) {
        struct pollfd p = {handover_ask_fd(a), POLLIN, 0};
        (void)poll(&p, 1, 100);
    }
    handover_ask_destroy(&a);
    return rc;
}

static inline hold_t *rig_held(rig_owner_t *o, const content_id_t *id)
{
    hold_t *h = NULL;
    heddle_error_t e = {0};
    cr_assert_eq(rig_ask(NULL, o->name, id, &h, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(hold_take(h, id, &e), HEDDLE_OK, "%s", e.message);
    return h;
}

#endif
