/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/handover.h"

#include "core/clock.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/limits.h"
#include "memory/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/* Between processes of one machine, of builds that may differ: a message, with a request or a note, and the
 * answer to a request. */
typedef struct {
    uint32_t magic, code;
    content_id_t id;
} message_t; /* a request of the receiver; or a note, both ways */
typedef enum { CODE_HOLD, CODE_WATCH, CODE_NOTE = 16 } code_t; /* of a request; a note is added to the last */
typedef struct {
    uint32_t magic, code;
    uint64_t generation;
} answer_t;                 /* code: 0, or that of an error */
#define REQUEST 0x31716568u /* "heq1" */
#define ANSWER 0x31616568u  /* "hea1" */
typedef struct {
    uint32_t magic, count;
    region_name_t regions[LIMIT_OFFERED];
} region_list_t;         /* as long as `count` says */
#define LIST 0x316c6568u /* "hel1" */
static size_t list_bytes(uint32_t count)
{
    return offsetof(region_list_t, regions) + count * sizeof(region_name_t);
}

/* ---- the place, and the socket in it ---- */

static bool name_is_usable(const char *name)
{
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= HANDOVER_NAME_MAX && name[n] == 0;
}

/* A small file of the kernel, as text; "" where it cannot be read. */
static const char *read_text(const char *path, char *scratch, size_t bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, scratch, bytes - 1) : 0;
    scratch[n > 0 ? n : 0] = 0;
    if (fd >= 0) close(fd);
    return scratch;
}

/* The kernel shows all users that have no number in this user namespace under this one. */
static bool stands_for_many(uid_t user)
{
    char text[64], map[128];
    unsigned first, outside, count;
    const char *said = read_text("/proc/sys/kernel/overflowuid", text, sizeof text);
    if (user != (said[0] ? (uid_t)strtoul(said, NULL, 10) : 65534)) return false;
    read_text("/proc/self/uid_map", map, sizeof map);
    bool has_all =
        sscanf(map, "%u %u %u", &first, &outside, &count) == 3 && first == 0 && count == UINT32_MAX;
    return !has_all;
}

static const char *user_remark(uid_t user)
{
    return stands_for_many(user) ? " (any user that has no number in this user namespace)" : "";
}

/* Each user without a number would count as this one, and could read and offer its memory. */
static int check_user(heddle_error_t *error)
{
    uid_t user = geteuid();
    if (!stands_for_many(user)) return HEDDLE_OK;
    error_fail(error, HEDDLE_ERR_DENIED, "this process cannot tell its own user from others");
    error_expected(error, "a user that has a number in this user namespace (/proc/self/uid_map)");
    error_found(error, "user %u%s", (unsigned)user, user_remark(user));
    error_hint(error, "map the user into the namespace of the container, under another number than %u",
               (unsigned)user);
    return HEDDLE_ERR_DENIED;
}

/* Opened once, and used through its descriptor: what was checked is what is used. */
static int open_directory(const char *directory, int *ret_fd, heddle_error_t *error)
{
    struct stat s;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), why = errno;
    if (fd < 0 || fstat(fd, &s) < 0) {
        bool is_short = why == EMFILE || why == ENFILE;
        if (fd >= 0) close(fd);
        error_fail(error, is_short ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_USAGE,
                   "the directory %s for shared memory cannot be opened: %s", directory, strerror(why));
        error_expected(error, "a directory of user %u with mode 0700, not a symbolic link",
                       (unsigned)geteuid());
        error_hint(error, is_short ? "raise the limit of open files (ulimit -n)"
                                   : "`install -d -m 0700 DIR` makes one; opts.host_share names it");
        return is_short ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_USAGE;
    }
    if (s.st_uid == geteuid() && (s.st_mode & 07777) == 0700) {
        *ret_fd = fd;
        return HEDDLE_OK;
    }
    close(fd);
    error_fail(error, HEDDLE_ERR_DENIED, "the directory %s for shared memory is not this user's alone",
               directory);
    error_expected(error, "user %u, mode 0700", (unsigned)geteuid());
    error_found(error, "user %u, mode %04o%s", (unsigned)s.st_uid, (unsigned)(s.st_mode & 07777),
                user_remark(s.st_uid));
    error_hint(error, "`install -d -m 0700 DIR` makes one for this user alone; opts.host_share names it");
    return HEDDLE_ERR_DENIED;
}

int handover_check(const char *directory, heddle_error_t *error)
{
    int fd = -1, rc = check_user(error);
    if (!rc && directory) rc = open_directory(directory, &fd, error);
    if (fd >= 0) close(fd);
    return rc;
}

/* Through the descriptor of the directory a path of any length fits. */
static socklen_t address_of(int directory, const char *name, struct sockaddr_un *ret_address)
{
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    char *path = ret_address->sun_path;
    if (directory >= 0) {
        snprintf(path, sizeof ret_address->sun_path, "/proc/self/fd/%d/heddle-%s", directory, name);
        return sizeof *ret_address;
    }
    int n = snprintf(path + 1, sizeof ret_address->sun_path - 1, "heddle-%s", name); /* begins with a NUL */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Both halves have the boot in them: the upper halves of two hosts are equal in one of a hundred clusters of
 * ten thousand hosts, and the numbers of namespaces and of directories are the same on many hosts. */
uint64_t handover_place_of(const char boot_id[HANDOVER_BOOT_BYTES], const handover_way_t *way)
{
    struct {
        handover_way_t way;
        char boot_id[HANDOVER_BOOT_BYTES];
    } reach = {.way = *way};
    uint64_t host_leaf, reach_leaf;
    memcpy(reach.boot_id, boot_id, sizeof reach.boot_id);
    digest_leaves(boot_id, HANDOVER_BOOT_BYTES, &host_leaf);
    digest_leaves(&reach, sizeof reach, &reach_leaf);
    uint64_t place = (host_leaf & 0xffffffff00000000u) | (reach_leaf & 0xffffffffu);
    return place ? place : 1;
}

/* A directory belongs to its one user already, who may have another number in a container. */
uint64_t handover_place(const char *directory)
{
    handover_way_t way = {.kind = "net", .user = geteuid()};
    struct stat s;
    char boot_id[HANDOVER_BOOT_BYTES] = "";
    int at = -1, boot = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    bool is_known = boot >= 0 && read(boot, boot_id, sizeof boot_id) > 0;
    if (directory) {
        way.user = 0;
        snprintf(way.kind, sizeof way.kind, "dir");
        is_known = is_known && open_directory(directory, &at, NULL) == HEDDLE_OK && fstat(at, &s) == 0;
    } else {
        is_known = is_known && stat("/proc/self/ns/net", &s) == 0;
    }
    if (at >= 0) close(at);
    if (boot >= 0) close(boot);
    if (!is_known) return 0;
    way.device = (uint64_t)s.st_dev;
    way.file = (uint64_t)s.st_ino;
    return handover_place_of(boot_id, &way);
}

static bool is_of_this_user(int socket, uid_t *ret_user)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t bytes = sizeof peer;
    bool is_known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
    *ret_user = peer.uid;
    return is_known && peer.uid == geteuid();
}

static bool is_out_of_descriptors(int why)
{
    return why == EMFILE || why == ENFILE || why == ENOMEM || why == ENOBUFS;
}

/* Sequenced packets: a message comes whole or not at all. */
static bool new_socket(memory_fd_t *ret_socket)
{
    *ret_socket = MEMORY_FD_NONE;
    if (!forks_stop()) return false;
    forks_add(ret_socket, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int why = errno;
    forks_go();
    errno = why;
    return ret_socket->fd >= 0;
}

/* ---- the source ---- */

/* Connections that wait in the kernel, as many as it takes by default. */
#define BACKLOG 4096

typedef struct {
    memory_fd_t socket;
    bool is_watching;
    uint64_t due_us;
} handover_connection_t;
/* The first LIMIT_WATCHERS places are for those that watch, the others for those that have asked nothing
 * yet. */
enum { CONNECTIONS = LIMIT_WATCHERS + LIMIT_HANDOVERS };
struct handover {
    char name[HANDOVER_NAME_MAX + 1];
    int directory; /* -1: the name is an abstract one */
    memory_fd_t listener, poll;
    handover_connection_t connections[CONNECTIONS]; /* fd -1: free */
    uint32_t count;                                 /* of those that have asked nothing yet */
    region_list_t list;
    handover_received_t received;
    bool is_accepting; /* the listener is in the poll set */
    uint64_t retry_us; /* when it may accept again; 0: at once */
    handover_find_t find;
    void *self;
    pid_t process;
};

#define LISTENER CONNECTIONS /* its number in the poll set */

static bool poll_for(handover_t *h, int fd, uint32_t number)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    return epoll_ctl(h->poll.fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* A listener that cannot accept stays readable: in the poll set it would keep the loop awake. */
static void set_accepting(handover_t *h, bool is_to_accept)
{
    if (h->is_accepting == is_to_accept) return;
    if (is_to_accept) h->is_accepting = poll_for(h, h->listener.fd, LISTENER);
    else h->is_accepting = epoll_ctl(h->poll.fd, EPOLL_CTL_DEL, h->listener.fd, NULL) != 0;
}

/* The file of a process that died refuses connections, and is removed. */
static bool is_stale(const struct sockaddr_un *address, socklen_t bytes)
{
    memory_fd_t probe;
    if (!new_socket(&probe)) return false;
    bool is_refused = connect(probe.fd, (const struct sockaddr *)address, bytes) < 0 && errno == ECONNREFUSED;
    forks_close(&probe);
    return is_refused && unlink(address->sun_path) == 0;
}

/* On a file system of several hosts the sockets of the others refuse connections, too. */
static bool is_of_this_host(int directory)
{
    static const unsigned long LOCAL[] = {TMPFS_MAGIC,       EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,
                                          BTRFS_SUPER_MAGIC, RAMFS_MAGIC,      OVERLAYFS_SUPER_MAGIC,
                                          F2FS_SUPER_MAGIC};
    struct statfs s;
    if (fstatfs(directory, &s) != 0) return false;
    for (size_t i = 0; i < sizeof LOCAL / sizeof *LOCAL; i++)
        if ((unsigned long)s.f_type == LOCAL[i]) return true;
    return false;
}

/* Names are random, so the file of a process that was killed would stay for ever. */
static void sweep(const handover_t *h)
{
    int fd = -1;
    if (is_of_this_host(h->directory)) fd = openat(h->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    for (const struct dirent *e; list && (e = readdir(list));) {
        struct sockaddr_un address;
        struct stat s;
        const char *name = e->d_name + strlen("heddle-");
        if (strncmp(e->d_name, "heddle-", strlen("heddle-")) != 0 || !name_is_usable(name)) continue;
        if (fstatat(h->directory, e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(s.st_mode)) continue;
        if (s.st_mtime + HANDOVER_STALE_S > time(NULL)) continue;
        socklen_t bytes = address_of(h->directory, name, &address);
        (void)is_stale(&address, bytes);
    }
    if (list) closedir(list);
    else if (fd >= 0) close(fd);
}

static int bind_listener(handover_t *h, const char *directory, heddle_error_t *error)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(h->directory, h->name, &address);
    const struct sockaddr *at = (const struct sockaddr *)&address;
    if (h->directory >= 0) sweep(h);
    int rc = bind(h->listener.fd, at, bytes);
    if (rc < 0 && errno == EADDRINUSE && h->directory >= 0) {
        if (is_stale(&address, bytes)) rc = bind(h->listener.fd, at, bytes);
        else errno = EADDRINUSE;
    }
    if (rc == 0 && listen(h->listener.fd, BACKLOG) == 0) return HEDDLE_OK;
    bool is_full = errno == ENOSPC || errno == EDQUOT;
    int code = errno == EADDRINUSE ? HEDDLE_ERR_ADDRESS_IN_USE
               : is_full           ? HEDDLE_ERR_NO_SPACE
                                   : HEDDLE_ERR_INTERNAL;
    error_fail(error, code, "the socket %s%sheddle-%s for shared memory cannot listen: %s",
               directory ? directory : "", directory ? "/" : "", h->name, strerror(errno));
    if (directory && code != HEDDLE_ERR_ADDRESS_IN_USE)
        error_hint(error, "name a writable directory on a local file system that is not full with "
                          "opts.host_share, for example one of /dev/shm or /run");
    return code;
}

static bool new_poll(handover_t *h)
{
    if (!forks_stop()) return false;
    forks_add(&h->poll, epoll_create1(EPOLL_CLOEXEC));
    int why = errno;
    forks_go();
    errno = why;
    return h->poll.fd >= 0;
}

int handover_listen(const char *directory, const char *name, handover_find_t find, void *self,
                    handover_t **ret_handover, heddle_error_t *error)
{
    if (!name_is_usable(name))
        return error_fail(error, HEDDLE_ERR_USAGE, "\"%s\" is not a name of a socket for shared memory",
                          name);
    if (check_user(error)) return HEDDLE_ERR_DENIED;
    handover_t *h = calloc(1, sizeof *h);
    if (!h) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to listen for shared memory");
    snprintf(h->name, sizeof h->name, "%s", name);
    h->directory = -1;
    h->find = find;
    h->self = self;
    h->process = getpid();
    h->listener = h->poll = MEMORY_FD_NONE;
    h->list.magic = LIST;
    for (uint32_t i = 0; i < CONNECTIONS; i++) h->connections[i].socket = MEMORY_FD_NONE;
    int rc = directory ? open_directory(directory, &h->directory, error) : HEDDLE_OK;
    if (!rc && (!new_poll(h) || !new_socket(&h->listener)))
        rc = error_fail(error, is_out_of_descriptors(errno) ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_INTERNAL,
                        "no socket for shared memory: %s", strerror(errno));
    if (!rc) rc = bind_listener(h, directory, error);
    if (!rc) set_accepting(h, true);
    if (!rc && !h->is_accepting)
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to listen for shared memory");
    if (rc) handover_destroy(&h);
    else *ret_handover = h;
    return rc;
}

bool handover_is_there(const handover_t *h)
{
    char file[sizeof "heddle-" + HANDOVER_NAME_MAX];
    snprintf(file, sizeof file, "heddle-%s", h->name);
    return h->directory < 0 || faccessat(h->directory, file, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int handover_fd(const handover_t *h) { return h->poll.fd; }

/* In a forked child nothing is open; the file of the socket is its parent's. */
void handover_destroy(handover_t **handover)
{
    handover_t *h = handover ? *handover : NULL;
    if (!h) return;
    *handover = NULL;
    bool is_bound = h->listener.fd >= 0 && h->process == getpid();
    struct sockaddr_un address;
    if (is_bound && h->directory >= 0) {
        socklen_t bytes = sizeof address;
        is_bound = getsockname(h->listener.fd, (struct sockaddr *)&address, &bytes) == 0 &&
                   bytes > sizeof(sa_family_t);
        address_of(h->directory, h->name, &address);
        if (is_bound) (void)unlink(address.sun_path);
    }
    for (uint32_t i = 0; i < CONNECTIONS; i++) forks_close(&h->connections[i].socket);
    forks_close(&h->listener);
    forks_close(&h->poll);
    if (h->directory >= 0) close(h->directory);
    free(h);
}

/* Taken out of the poll set explicitly: closing does not do that while a forked child has the socket. */
static void end_connection(handover_t *h, handover_connection_t *c)
{
    (void)epoll_ctl(h->poll.fd, EPOLL_CTL_DEL, c->socket.fd, NULL);
    forks_close(&c->socket);
    if (!c->is_watching) h->count--;
    else if (h->received) h->received(h->self, (uint32_t)(c - h->connections), NOTE_GONE, NULL);
}

/* The message, with a descriptor where there is one. The answer is the only message that the connection's
 * buffer has to take, so it is sent at once or never. */
static bool send_answer(int socket, const answer_t *answer, int fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)answer, sizeof *answer};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        control.head = (struct cmsghdr){CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *answer;
}

/* The new description is open only here, where no fork begins. Once sent, its lock is the receiver's. */
static void hand_over(int socket, int fd, const content_id_t *id)
{
    answer_t answer = {.magic = ANSWER, .generation = id->generation};
    int own = -1;
    if (!forks_stop()) return;
    int rc = fd < 0 ? fd : hold_open(fd, id, &own, NULL);
    answer.code = (uint32_t)-rc;
    bool is_sent = send_answer(socket, &answer, own);
    if (own >= 0 && !is_sent) file_unlock(own);
    if (own >= 0) close(own);
    forks_go();
}

/* Nothing waits for a watcher that does not read: its connection ends, in the next turn, for a caller may be
 * about to tell others. */
static void send_to_watcher(handover_connection_t *c, const void *data, size_t bytes)
{
    if (send(c->socket.fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)bytes)
        (void)shutdown(c->socket.fd, SHUT_RDWR);
}

/* Moves it to a place of those that watch. False: there is none, or no memory to poll for it. */
static bool begin_watch(handover_t *h, handover_connection_t *c)
{
    handover_connection_t *to = h->connections;
    while (to < h->connections + LIMIT_WATCHERS && to->socket.fd >= 0) to++;
    if (to == h->connections + LIMIT_WATCHERS) return false;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(to - h->connections)};
    if (epoll_ctl(h->poll.fd, EPOLL_CTL_MOD, c->socket.fd, &event) != 0) return false;
    forks_move(&to->socket, &c->socket);
    to->is_watching = true;
    to->due_us = CLOCK_NEVER;
    h->count--;
    send_to_watcher(to, &h->list, list_bytes(h->list.count));
    return true;
}

static bool take_note(handover_t *h, handover_connection_t *c, const message_t *note)
{
    if (note->code < CODE_NOTE || note->code > CODE_NOTE + NOTE_BAD) return false;
    if (h->received)
        h->received(h->self, (uint32_t)(c - h->connections), (note_t)(note->code - CODE_NOTE), &note->id);
    return true;
}

/* Descriptors that come with a request are dropped by the kernel, for there is no room for them. */
static void answer_request(handover_t *h, handover_connection_t *c)
{
    message_t request;
    ssize_t n;
    do n = recv(c->socket.fd, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return;
    bool is_whole = n == (ssize_t)sizeof request && request.magic == REQUEST;
    if (is_whole && c->is_watching && take_note(h, c, &request)) return;
    if (is_whole && !c->is_watching && request.code == CODE_WATCH && begin_watch(h, c)) return;
    if (is_whole && !c->is_watching && request.code == CODE_HOLD)
        hand_over(c->socket.fd, h->find(h->self, &request.id), &request.id);
    end_connection(h, c);
}

/* False: none waits, or there is no descriptor for it. */
static bool accept_one(handover_t *h, uint64_t now_us)
{
    handover_connection_t *c = h->connections + LIMIT_WATCHERS;
    while (c->socket.fd >= 0) c++;
    c->is_watching = false;
    if (!forks_stop()) return false;
    forks_add(&c->socket, accept4(h->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    int why = errno;
    forks_go();
    if (c->socket.fd < 0 && why != EAGAIN && why != EINTR && why != ECONNABORTED) {
        h->retry_us = now_us + HANDOVER_RETRY_US;
        set_accepting(h, false);
    }
    if (c->socket.fd < 0) return false;
    h->count++;
    c->due_us = now_us + HANDOVER_QUIET_US;
    uid_t user;
    bool is_welcome =
        is_of_this_user(c->socket.fd, &user) && poll_for(h, c->socket.fd, (uint32_t)(c - h->connections));
    if (is_welcome) answer_request(h, c); /* which mostly is there already */
    else end_connection(h, c);
    return true;
}

uint64_t handover_turn(handover_t *h, uint64_t now_us)
{
    struct epoll_event events[CONNECTIONS + 1];
    uint64_t due_us = CLOCK_NEVER;
    if (h->process != getpid()) return due_us;
    int count = epoll_wait(h->poll.fd, events, CONNECTIONS + 1, 0);
    bool is_one_waiting = false;
    for (int i = 0; i < count; i++) {
        if (events[i].data.u32 == LISTENER) is_one_waiting = true;
        else answer_request(h, &h->connections[events[i].data.u32]);
    }
    for (handover_connection_t *c = h->connections; c < h->connections + CONNECTIONS; c++) {
        if (c->socket.fd < 0) continue;
        if (c->due_us <= now_us) end_connection(h, c);
        else due_us = clock_earlier(due_us, c->due_us);
    }
    if (h->retry_us <= now_us) h->retry_us = 0;
    if (!h->retry_us) {
        bool is_to_accept = h->count < LIMIT_HANDOVERS;
        is_one_waiting |= is_to_accept && !h->is_accepting; /* since it was left out of the poll set */
        set_accepting(h, is_to_accept);
        /* Without memory for the poll set no event would come, and no turn would try again. */
        if (h->is_accepting != is_to_accept) h->retry_us = now_us + HANDOVER_RETRY_US;
    }
    for (uint32_t i = 0; i < LIMIT_HANDOVERS && is_one_waiting && h->count < LIMIT_HANDOVERS; i++) {
        is_one_waiting = h->is_accepting && accept_one(h, now_us);
        if (!is_one_waiting) break;
        due_us = clock_earlier(due_us, now_us + HANDOVER_QUIET_US);
    }
    if (h->count == LIMIT_HANDOVERS) set_accepting(h, false);
    return h->retry_us ? clock_earlier(due_us, h->retry_us) : due_us;
}

void handover_offer(handover_t *h, const region_name_t *regions, uint32_t count)
{
    if (count > LIMIT_OFFERED) count = LIMIT_OFFERED;
    h->list.count = count;
    if (count) memcpy(h->list.regions, regions, count * sizeof *regions);
    for (handover_connection_t *c = h->connections; c < h->connections + LIMIT_WATCHERS; c++)
        if (c->socket.fd >= 0) send_to_watcher(c, &h->list, list_bytes(count));
}

void handover_on_note(handover_t *h, handover_received_t received) { h->received = received; }

void handover_tell(handover_t *h, uint32_t watcher, note_t note, const content_id_t *id)
{
    message_t message = {.magic = REQUEST, .code = CODE_NOTE + note, .id = *id};
    handover_connection_t *c = &h->connections[watcher];
    if (c->socket.fd >= 0) send_to_watcher(c, &message, sizeof message);
}

/* ---- the receiver ---- */

struct handover_ask {
    memory_fd_t socket;
    content_id_t id;
    uint64_t deadline_us;
};
struct handover_watch {
    memory_fd_t socket;
};

static int fail_ask(int code, const content_id_t *id, const char *why, heddle_error_t *error)
{
    char name[CONTENT_TEXT];
    return error_fail(error, code, "%s was not handed over: %s", content_text(id, name), why);
}

static int fail_watch(int code, const char *why, heddle_error_t *error)
{
    return error_fail(error, code, "regions that a process of this host offers cannot be watched: %s", why);
}

static int fail_request(int code, const message_t *request, const char *why, heddle_error_t *error)
{
    return request->code == CODE_WATCH ? fail_watch(code, why, error)
                                       : fail_ask(code, &request->id, why, error);
}

/* Connects, and sends the request. The socket may be there also on failure. */
static int connect_to(int directory, const char *name, const message_t *request, memory_fd_t *ret_socket,
                      heddle_error_t *error)
{
    struct sockaddr_un address;
    socklen_t bytes = address_of(directory, name, &address);
    if (!new_socket(ret_socket))
        return fail_request(is_out_of_descriptors(errno) ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_INTERNAL,
                            request, strerror(errno), error);
    int rc;
    do rc = connect(ret_socket->fd, (const struct sockaddr *)&address, bytes);
    while (rc < 0 && errno == EINTR);
    if (rc < 0 && errno == EAGAIN)
        return fail_request(HEDDLE_ERR_UNAVAILABLE, request, "its source has too many connections", error);
    if (rc < 0 && (errno == EACCES || errno == EPERM))
        return fail_request(HEDDLE_ERR_DENIED, request, strerror(errno), error);
    if (rc < 0)
        return fail_request(HEDDLE_ERR_NOT_FOUND, request, "no process listens for it on this host", error);
    uid_t user;
    if (!is_of_this_user(ret_socket->fd, &user)) {
        fail_request(HEDDLE_ERR_DENIED, request, "a process of another user listens there", error);
        error_expected(error, "user %u", (unsigned)geteuid());
        error_found(error, "user %u%s", (unsigned)user, user_remark(user));
        return HEDDLE_ERR_DENIED;
    }
    if (send(ret_socket->fd, request, sizeof *request, MSG_NOSIGNAL | MSG_DONTWAIT) ==
        (ssize_t)sizeof *request)
        return HEDDLE_OK;
    return fail_request(HEDDLE_ERR_GONE, request, strerror(errno), error);
}

static int dial(const char *directory, const char *name, const message_t *request, memory_fd_t *ret_socket,
                heddle_error_t *error)
{
    int at = -1;
    *ret_socket = MEMORY_FD_NONE;
    if (!name_is_usable(name))
        return fail_request(HEDDLE_ERR_USAGE, request, "its source's name is not usable", error);
    int rc = check_user(error);
    if (!rc && directory) rc = open_directory(directory, &at, error);
    if (!rc) rc = connect_to(at, name, request, ret_socket, error);
    if (at >= 0) close(at);
    return rc;
}

int handover_ask(const char *directory, const char *name, const content_id_t *id, uint64_t deadline_us,
                 handover_ask_t **ret_ask, heddle_error_t *error)
{
    message_t request = {.magic = REQUEST, .code = CODE_HOLD, .id = *id};
    handover_ask_t *a = calloc(1, sizeof *a);
    if (!a) return fail_ask(HEDDLE_ERR_NO_MEMORY, id, strerror(ENOMEM), error);
    a->id = *id;
    a->deadline_us = deadline_us;
    int rc = dial(directory, name, &request, &a->socket, error);
    if (rc) handover_ask_destroy(&a);
    else *ret_ask = a;
    return rc;
}

int handover_ask_fd(const handover_ask_t *a) { return a->socket.fd; }

void handover_ask_destroy(handover_ask_t **ask)
{
    handover_ask_t *a = ask ? *ask : NULL;
    if (!a) return;
    *ask = NULL;
    forks_close(&a->socket);
    free(a);
}

/* Takes the descriptors out of a message: the first stays, all others are closed. Returns how many came. */
static int take_descriptors(struct msghdr *message, int *ret_fd)
{
    int count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t bytes = c->cmsg_len - CMSG_LEN(0);
        for (size_t i = 0; i + sizeof(int) <= bytes; i += sizeof(int)) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i, sizeof fd);
            if (count++ == 0) *ret_fd = fd;
            else close(fd);
        }
    }
    return count;
}

/* -1 with errno, or the bytes of the message. *ret_count descriptors came with it, the first of which stays;
 * -1: one came, and there was no descriptor left for it. */
static ssize_t receive(int socket, answer_t *ret_answer, memory_fd_t *ret_file, int *ret_count)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec part = {ret_answer, sizeof *ret_answer};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int fd = -1;
    errno = ENOMEM;
    if (!forks_stop()) return -1;
    ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    int why = errno;
    *ret_count = n < 0 ? 0 : take_descriptors(&message, &fd);
    forks_add(ret_file, fd);
    forks_go();
    errno = why;
    if (n >= 0 && (message.msg_flags & MSG_TRUNC)) return (ssize_t)sizeof *ret_answer + 1;
    if (n >= 0 && (message.msg_flags & MSG_CTRUNC))
        *ret_count = *ret_count ? 2 : -1; /* more, or none was free */
    return n;
}

/* OK: the answer is good, and has one descriptor. */
static int judge(const handover_ask_t *a, ssize_t n, const answer_t *answer, int count, heddle_error_t *error)
{
    if (n == 0) return fail_ask(HEDDLE_ERR_GONE, &a->id, "its source ended the connection", error);
    if (n < 0) return fail_ask(HEDDLE_ERR_GONE, &a->id, strerror(errno), error);
    if (n != (ssize_t)sizeof *answer || answer->magic != ANSWER)
        return fail_ask(HEDDLE_ERR_PROTOCOL, &a->id, "its source's answer is malformed", error);
    if (answer->code == (uint32_t)-HEDDLE_ERR_NO_MEMORY)
        return fail_ask(HEDDLE_ERR_NO_MEMORY, &a->id, "its source has no descriptor left", error);
    if (answer->code == (uint32_t)-HEDDLE_ERR_INTERNAL)
        return fail_ask(HEDDLE_ERR_INTERNAL, &a->id, "the kernel of its source refuses to seal or to lock it",
                        error);
    if (answer->code)
        return fail_ask(HEDDLE_ERR_NOT_FOUND, &a->id, "its source does not have it any more", error);
    if (count < 0)
        return fail_ask(HEDDLE_ERR_NO_MEMORY, &a->id, "this process has no descriptor left", error);
    if (count == 1) return HEDDLE_OK;
    fail_ask(HEDDLE_ERR_PROTOCOL, &a->id, "its source sent the wrong number of descriptors", error);
    error_expected(error, "1");
    error_found(error, count ? "more" : "none");
    return HEDDLE_ERR_PROTOCOL;
}

int handover_ask_take(handover_ask_t *a, uint64_t now_us, hold_t **ret_hold, heddle_error_t *error)
{
    answer_t answer = {0};
    memory_fd_t file = MEMORY_FD_NONE;
    int count = 0;
    ssize_t n = receive(a->socket.fd, &answer, &file, &count);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (now_us < a->deadline_us) return HEDDLE_ERR_AGAIN;
        return fail_ask(HEDDLE_ERR_DEADLINE, &a->id, "its source does not answer", error);
    }
    int rc = judge(a, n, &answer, count, error);
    if (!rc) return hold_new(&file, ret_hold, error);
    if (file.fd >= 0) file_unlock(file.fd);
    forks_close(&file);
    return rc;
}

/* ---- a watcher ---- */

int handover_watch(const char *directory, const char *name, handover_watch_t **ret_watch,
                   heddle_error_t *error)
{
    message_t request = {.magic = REQUEST, .code = CODE_WATCH};
    handover_watch_t *w = calloc(1, sizeof *w);
    if (!w) return fail_watch(HEDDLE_ERR_NO_MEMORY, strerror(ENOMEM), error);
    int rc = dial(directory, name, &request, &w->socket, error);
    if (rc) handover_watch_destroy(&w);
    else *ret_watch = w;
    return rc;
}

int handover_watch_fd(const handover_watch_t *w) { return w->socket.fd; }

void handover_watch_destroy(handover_watch_t **watch)
{
    handover_watch_t *w = watch ? *watch : NULL;
    if (!w) return;
    *watch = NULL;
    forks_close(&w->socket);
    free(w);
}

/* Descriptors that come with it are dropped by the kernel, as in a request. */
int handover_watch_take(handover_watch_t *w, watch_event_t *ret_event, heddle_error_t *error)
{
    union {
        region_list_t list;
        message_t note;
    } m = {.list = {0}};
    ssize_t n = recv(w->socket.fd, &m, sizeof m, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return HEDDLE_ERR_AGAIN;
    if (n <= 0) return fail_watch(HEDDLE_ERR_GONE, "the connection has ended", error);
    *ret_event = (watch_event_t){.is_list = m.list.magic == LIST};
    if (ret_event->is_list && m.list.count <= LIMIT_OFFERED && n == (ssize_t)list_bytes(m.list.count)) {
        ret_event->count = m.list.count;
        memcpy(ret_event->offered, m.list.regions, m.list.count * sizeof *m.list.regions);
        return HEDDLE_OK;
    }
    bool is_note = n == (ssize_t)sizeof m.note && m.note.magic == REQUEST &&
                   m.note.code >= CODE_NOTE + NOTE_VERIFY && m.note.code <= CODE_NOTE + NOTE_SPOILED;
    if (!is_note) return fail_watch(HEDDLE_ERR_PROTOCOL, "a message is malformed", error);
    ret_event->note = (note_t)(m.note.code - CODE_NOTE);
    ret_event->id = m.note.id;
    return HEDDLE_OK;
}

int handover_watch_tell(handover_watch_t *w, note_t note, const content_id_t *id, heddle_error_t *error)
{
    message_t message = {.magic = REQUEST, .code = CODE_NOTE + note, .id = *id};
    if (send(w->socket.fd, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof message)
        return HEDDLE_OK;
    return fail_watch(HEDDLE_ERR_GONE, strerror(errno), error);
}
