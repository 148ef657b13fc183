/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors over unix sockets: asked for, checked again, sent; hostile peers on either side. */
#include "core/limits.h"
#include "tests/unit/memory_rig.h"

#include <linux/magic.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>

static memory_region_t *region;
static content_id_t id;
static handover_t *source;
static char name[32];
static uint64_t now_us;

static uint64_t turn(void)
{
    now_us = clock_now(clock_system());
    return handover_turn(source, now_us);
}

static void set_up(void)
{
    heddle_error_t e;
    region = rig_region(RIG_BYTES);
    id = rig_publish(region, 1);
    snprintf(name, sizeof name, "test-%d", getpid());
    cr_assert_eq(handover_listen(NULL, name, rig_find, region, &source, &e), HEDDLE_OK, "%s", e.message);
}

static void tear_down(void)
{
    handover_destroy(&source);
    memory_region_destroy(&region);
}

TestSuite(memory_handover, .init = set_up, .fini = tear_down);

/* Source and receiver in one process: turns of the first until the second has its answer. */
static int ask_in(const char *directory, const char *at, const content_id_t *asked, hold_t **ret_hold,
                  heddle_error_t *error)
{
    handover_ask_t *a = NULL;
    int rc = handover_ask(directory, at, asked, clock_now(clock_system()) + RIG_PATIENCE_US, &a, error);
    if (rc) return rc;
    do turn();
    while ((rc = handover_ask_take(a, now_us, ret_hold, error)) == HEDDLE_ERR_AGAIN);
    handover_ask_destroy(&a);
    return rc;
}

static int ask(const content_id_t *asked, hold_t **ret_hold, heddle_error_t *error)
{
    return ask_in(NULL, name, asked, ret_hold, error);
}

static bool owner_may_write(void) { return !file_is_held(region->file.fd); }

/* ---- good peers ---- */

Test(memory_handover, what_comes_is_held_already_and_by_the_receiver_alone)
{
    hold_t *h = NULL;
    heddle_error_t e;
    int before = rig_descriptors();
    cr_assert_eq(ask(&id, &h, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_not(owner_may_write(), "before hold_take");
    cr_assert_eq(fcntl(h->file.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    cr_assert(fcntl(h->file.fd, F_GETFD) & FD_CLOEXEC);
    turn();
    cr_assert_eq(rig_descriptors(), before + 1, "the source keeps none");
    cr_assert_eq(hold_take(h, &id, &e), HEDDLE_OK, "%s", e.message);
    cr_assert(rig_is_whole(h->base, 1, h->header.bytes));
    hold_release(h);
    cr_assert(owner_may_write());
    hold_destroy(&h);
    cr_assert_eq(rig_descriptors(), before);
}

/* Its unlock would end the owner's lock. */
Test(memory_handover, the_owners_own_description_is_never_sent)
{
    hold_t *h = NULL;
    cr_assert_eq(ask(&id, &h, NULL), HEDDLE_OK);
    memory_region_drop(region);
    hold_release(h);
    cr_assert_eq(memory_region_begin(region, NULL), HEDDLE_OK);
    file_unlock(h->file.fd);
    int fd = rig_open(region->file.fd, O_RDONLY);
    cr_assert_eq(file_lock(fd, F_RDLCK), EAGAIN, "the owner still has its exclusive lock");
    close(fd);
    hold_destroy(&h);
}

/* A holder that hands on: its descriptor is the source, and the owner is not asked. */
static int find_hold(void *self, const content_id_t *asked)
{
    int fd;
    (void)asked;
    return hold_hand_on(self, &fd, NULL) ? HEDDLE_ERR_NOT_FOUND : fd;
}

Test(memory_handover, a_holder_hands_on_when_the_owner_is_gone)
{
    hold_t *first = NULL, *second = NULL;
    heddle_error_t e;
    cr_assert_eq(ask(&id, &first, NULL), HEDDLE_OK);
    cr_assert_eq(hold_take(first, &id, NULL), HEDDLE_OK);
    handover_destroy(&source);
    memory_region_destroy(&region);
    cr_assert_eq(handover_listen(NULL, name, find_hold, first, &source, NULL), HEDDLE_OK,
                 "the name is free again");
    cr_assert_eq(ask(&id, &second, &e), HEDDLE_OK, "%s", e.message);
    hold_release(first);
    cr_assert_eq(hold_take(second, &id, &e), HEDDLE_OK, "%s", e.message);
    cr_assert(rig_is_whole(second->base, 1, second->header.bytes));
    hold_destroy(&second);
    cr_assert_eq(ask(&id, &second, &e), HEDDLE_ERR_NOT_FOUND, "it holds nothing any more");
    hold_destroy(&first);
}

Test(memory_handover, what_is_not_there_any_more_is_not_handed_over)
{
    hold_t *h = NULL;
    heddle_error_t e;
    content_id_t old = id;
    int before = rig_descriptors();
    old.identity[3] ^= 1;
    cr_assert_eq(ask(&old, &h, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, "generation 1 was not handed over: its source does not have it any more"),
              "%s", e.message);
    memory_region_drop(region);
    cr_assert_eq(ask(&id, &h, &e), HEDDLE_ERR_NOT_FOUND, "not offered");
    old = id;
    id = rig_publish(region, 2);
    cr_assert_eq(ask(&old, &h, &e), HEDDLE_ERR_NOT_FOUND, "written again");
    cr_assert_eq(ask(&id, &h, &e), HEDDLE_OK);
    hold_destroy(&h);
    turn();
    cr_assert_eq(rig_descriptors(), before);
    cr_assert(owner_may_write());
}

/* Here because the file takes no more seals, as on a kernel that does not know one of them. */
Test(memory_handover, a_kernel_that_does_not_seal_is_the_reason)
{
    hold_t *h = NULL;
    heddle_error_t e;
    handover_destroy(&source);
    memory_region_destroy(&region);
    region = rig_region(RIG_BYTES);
    cr_assert_eq(fcntl(region->file.fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
    id = rig_publish(region, 1);
    cr_assert_eq(handover_listen(NULL, name, rig_find, region, &source, NULL), HEDDLE_OK);
    cr_assert_eq(ask(&id, &h, &e), HEDDLE_ERR_INTERNAL);
    cr_assert(strstr(e.message, "the kernel of its source refuses to seal or to lock it"), "%s", e.message);
}

/* The source itself looks at the header after the lock: a finder may be wrong. */
static int find_anything(void *self, const content_id_t *asked)
{
    (void)asked;
    return ((memory_region_t *)self)->file.fd;
}

Test(memory_handover, what_is_not_sealed_is_not_handed_over_even_if_it_is_found)
{
    hold_t *h = NULL;
    heddle_error_t e;
    handover_destroy(&source);
    cr_assert_eq(handover_listen(NULL, name, find_anything, region, &source, NULL), HEDDLE_OK);
    memory_region_drop(region);
    cr_assert_eq(memory_region_begin(region, NULL), HEDDLE_OK);
    content_id_t next = memory_region_content(region);
    cr_assert_eq(ask(&id, &h, &e), HEDDLE_ERR_NOT_FOUND, "being written: the lock refuses");
    memory_region_abort(region);
    cr_assert_eq(ask(&next, &h, &e), HEDDLE_ERR_NOT_FOUND, "given up: the header refuses");
    cr_assert(strstr(e.message, "its source does not have it any more"), "%s", e.message);
    cr_assert(owner_may_write());
}

/* ---- offered in advance ---- */

/* Mapped before anything is in it, without a lock; its first content costs a lock and a look at the header. */
Test(memory_handover, a_region_is_mapped_before_anything_is_in_it)
{
    memory_region_t *fresh = rig_region(RIG_BYTES);
    handover_destroy(&source);
    cr_assert_eq(handover_listen(NULL, name, rig_find, fresh, &source, NULL), HEDDLE_OK);
    hold_t *h = NULL;
    heddle_error_t e;
    content_id_t early = memory_region_content(fresh);
    cr_assert_eq(early.generation, 0);
    cr_assert_eq(ask(&early, &h, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_not(file_is_held(fresh->file.fd), "it came without a lock");
    cr_assert_eq(hold_map(h, &e), HEDDLE_OK);
    cr_assert_not(hold_populate(h));
    cr_assert_eq(hold_take(h, &early, &e), HEDDLE_ERR_NOT_FOUND, "nothing is in it");
    content_id_t first = rig_publish(fresh, 4);
    const void *base = h->base;
    cr_assert_eq(hold_take(h, &first, &e), HEDDLE_OK, "%s", e.message);
    cr_assert(h->base == base && rig_is_whole(base, 4, h->header.bytes));
    early.identity[0] ^= 1;
    hold_t *other = NULL;
    cr_assert_eq(ask(&early, &other, &e), HEDDLE_ERR_NOT_FOUND);
    hold_destroy(&h);
    memory_region_destroy(&fresh);
}

/* A finder may be wrong about the region, too. */
Test(memory_handover, another_region_is_not_handed_over_in_its_place)
{
    hold_t *h = NULL;
    content_id_t other = id;
    other.generation = 0;
    other.identity[0] ^= 1;
    handover_destroy(&source);
    cr_assert_eq(handover_listen(NULL, name, find_anything, region, &source, NULL), HEDDLE_OK);
    rig_hold(region, &id);
    cr_assert_eq(ask(&other, &h, NULL), HEDDLE_ERR_NOT_FOUND);
}

/* ---- watched ---- */

static struct {
    int count;
    uint32_t watcher;
    note_t note;
    content_id_t id;
} heard;
static void hear(void *self, uint32_t watcher, note_t note, const content_id_t *about)
{
    cr_assert_eq(self, region);
    heard.count++;
    heard.watcher = watcher;
    heard.note = note;
    if (about) heard.id = *about;
}

static handover_watch_t *watch(void)
{
    handover_watch_t *w = NULL;
    heddle_error_t e;
    cr_assert_eq(handover_watch(NULL, name, &w, &e), HEDDLE_OK, "%s", e.message);
    turn();
    return w;
}

static watch_event_t event_of(handover_watch_t *w)
{
    watch_event_t event;
    heddle_error_t e;
    cr_assert_eq(handover_watch_take(w, &event, &e), HEDDLE_OK, "%s", e.message);
    return event;
}

Test(memory_handover, a_list_of_what_is_offered_comes_at_once_and_with_each_change)
{
    region_name_t regions[LIMIT_OFFERED] = {rig_name(region)};
    watch_event_t event;
    int before = rig_descriptors();
    handover_watch_t *w = watch();
    cr_assert(event_of(w).is_list);
    cr_assert_eq(handover_watch_take(w, &event, NULL), HEDDLE_ERR_AGAIN);
    handover_offer(source, regions, 1);
    event = event_of(w);
    cr_assert(event.is_list && event.count == 1);
    cr_assert(!memcmp(&event.offered[0], &regions[0], sizeof regions[0]));
    handover_offer(source, regions, LIMIT_OFFERED + 1);
    cr_assert_eq(event_of(w).count, LIMIT_OFFERED);
    handover_watch_t *late = watch();
    cr_assert_eq(event_of(late).count, LIMIT_OFFERED);
    handover_offer(source, NULL, 0);
    cr_assert_eq(event_of(w).count, 0, "withdrawn");
    cr_assert_eq(event_of(late).count, 0);
    handover_watch_destroy(&w);
    handover_watch_destroy(&late);
    turn();
    cr_assert_eq(rig_descriptors(), before);
}

Test(memory_handover, a_watcher_is_not_silent_and_outlives_the_deadline_of_requests)
{
    handover_watch_t *w = watch();
    watch_event_t event;
    handover_turn(source, now_us + 100 * HANDOVER_QUIET_US);
    cr_assert(event_of(w).is_list);
    cr_assert_eq(handover_watch_take(w, &event, NULL), HEDDLE_ERR_AGAIN);
    handover_watch_destroy(&w);
}

Test(memory_handover, notes_go_both_ways)
{
    handover_watch_t *first = watch(), *second = watch();
    watch_event_t event;
    content_id_t other = id;
    handover_on_note(source, hear);
    cr_assert_eq(handover_watch_tell(first, NOTE_HELD, &id, NULL), HEDDLE_OK);
    turn();
    uint32_t watcher = heard.watcher;
    cr_assert(heard.count == 1 && heard.note == NOTE_HELD && !memcmp(&heard.id, &id, sizeof id));
    other.generation = 9;
    cr_assert_eq(handover_watch_tell(second, NOTE_GOOD, &other, NULL), HEDDLE_OK);
    turn();
    cr_assert(heard.count == 2 && heard.note == NOTE_GOOD && heard.id.generation == 9 &&
              heard.watcher != watcher);
    event_of(first), event_of(second); /* the lists */
    handover_tell(source, watcher, NOTE_VERIFY, &id);
    event = event_of(first);
    cr_assert(!event.is_list && event.note == NOTE_VERIFY && !memcmp(&event.id, &id, sizeof id));
    cr_assert_eq(handover_watch_take(second, &event, NULL), HEDDLE_ERR_AGAIN);
    handover_watch_destroy(&first);
    turn();
    cr_assert(heard.count == 3 && heard.note == NOTE_GONE && heard.watcher == watcher);
    handover_watch_destroy(&second);
}

/* As a process that is stopped. It is not waited for, and the others are not kept. */
Test(memory_handover, a_watcher_that_reads_nothing_is_disconnected_and_may_come_back)
{
    handover_watch_t *stopped = watch(), *w = watch();
    watch_event_t event;
    heddle_error_t e;
    handover_on_note(source, hear);
    int rc, told = 0;
    for (; heard.count == 0 && told < 100000; told++) {
        handover_offer(source, NULL, 0);
        event_of(w);
        turn();
    }
    cr_assert(heard.count == 1 && heard.note == NOTE_GONE);
    while ((rc = handover_watch_take(stopped, &event, &e)) == HEDDLE_OK) told--;
    cr_assert(rc == HEDDLE_ERR_GONE && strstr(e.message, "the connection has ended"), "%s", e.message);
    cr_assert_leq(told, 1, "what was sent before is read");
    handover_watch_destroy(&stopped);
    stopped = watch();
    cr_assert(event_of(stopped).is_list);
    handover_watch_destroy(&stopped);
    handover_watch_destroy(&w);
}

Test(memory_handover, no_more_than_the_limit_watch)
{
    static handover_watch_t *watches[LIMIT_WATCHERS];
    struct rlimit limit = {4 * LIMIT_WATCHERS, 4 * LIMIT_WATCHERS};
    handover_watch_t *more = NULL;
    watch_event_t event;
    hold_t *h = NULL;
    heddle_error_t e;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    for (uint32_t i = 0; i < LIMIT_WATCHERS; i++) watches[i] = watch();
    more = watch();
    cr_assert_eq(handover_watch_take(more, &event, &e), HEDDLE_ERR_GONE);
    handover_watch_destroy(&more);
    cr_assert_eq(ask(&id, &h, &e), HEDDLE_OK, "regions are handed over still: %s", e.message);
    hold_destroy(&h);
    handover_watch_destroy(&watches[7]);
    turn();
    more = watch();
    cr_assert(event_of(more).is_list);
    handover_watch_destroy(&more);
    for (uint32_t i = 0; i < LIMIT_WATCHERS; i++) handover_watch_destroy(&watches[i]);
}

/* ---- hostile receivers ---- */

static int dial(const char *at)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "heddle-%s", at);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    if (connect(fd, (struct sockaddr *)&address, bytes) == 0) return fd;
    close(fd);
    return -1;
}

/* The bytes of a request, as memory/handover.c has it. */
typedef struct {
    uint32_t magic, code;
    content_id_t id;
} message_t;
typedef struct {
    uint32_t magic, code;
    uint64_t generation;
} answer_t;
static message_t good_request(void) { return (message_t){.magic = 0x31716568u, .id = id}; }

static bool is_ended(int fd)
{
    char bytes[64];
    return recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

Test(memory_handover, a_request_of_another_size_or_kind_ends_its_connection)
{
    message_t request = good_request();
    char large[4096] = {0};
    message_t other = request;
    other.magic++;
    const struct {
        const void *data;
        size_t bytes;
    } BAD[] = {
        {&request, sizeof request - 1},
        {&request, 1},
        {large, sizeof large},
        {&other, sizeof other},
    };
    int before = rig_descriptors();
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        int fd = dial(name);
        turn();
        cr_assert_eq(send(fd, BAD[i].data, BAD[i].bytes, 0), (ssize_t)BAD[i].bytes);
        turn();
        cr_assert(is_ended(fd), "%zu", i);
        close(fd);
    }
    turn();
    cr_assert_eq(rig_descriptors(), before);
    cr_assert(owner_may_write());
}

static void send_with(int socket, const void *data, size_t bytes, const int *fds, size_t count)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(64 * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.head = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), fds, count * sizeof(int));
    }
    cr_assert_eq(sendmsg(socket, &message, MSG_NOSIGNAL), (ssize_t)bytes);
}

/* While `is_cut` no message is sent. What it would have carried is then open in a child as well, which was
 * forked without the handlers (memory/forks.h). */
static bool is_cut;
static int childs = -1;

ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
    int fd;
    if (!is_cut || message->msg_controllen == 0) return syscall(SYS_sendmsg, socket, message, flags);
    memcpy(&fd, CMSG_DATA((struct cmsghdr *)message->msg_control), sizeof fd);
    childs = dup(fd);
    errno = EAGAIN;
    return -1;
}

Test(memory_handover, what_could_not_be_sent_is_locked_no_longer)
{
    message_t request = good_request();
    int fd = dial(name);
    turn();
    send_with(fd, &request, sizeof request, NULL, 0);
    is_cut = true;
    turn();
    cr_assert_geq(childs, 0, "it was about to be sent");
    cr_assert(owner_may_write());
    close(childs);
    close(fd);
}

/* Once it watches, it may send notes, and those for a source alone. */
Test(memory_handover, a_watcher_that_sends_anything_else_is_disconnected)
{
    message_t request = good_request();
    handover_on_note(source, hear);
    for (uint32_t code = 0; code < 30; code++) {
        bool is_for_sources = code >= 16 + NOTE_HELD && code <= 16 + NOTE_BAD;
        char list[64];
        int fd = dial(name);
        turn();
        request.code = 1;
        cr_assert_eq(send(fd, &request, sizeof request, 0), (ssize_t)sizeof request);
        turn();
        cr_assert_gt(recv(fd, list, sizeof list, 0), 0);
        request.code = code;
        heard.note = NOTE_SPOILED;
        cr_assert_eq(send(fd, &request, sizeof request, 0), (ssize_t)sizeof request);
        turn();
        cr_assert_eq(heard.note, is_for_sources ? (note_t)(code - 16) : NOTE_GONE, "%u", code);
        cr_assert_eq(is_ended(fd), !is_for_sources, "%u", code);
        close(fd);
        turn();
    }
    cr_assert(owner_may_write());
}

Test(memory_handover, descriptors_in_a_request_are_dropped)
{
    message_t request = good_request();
    int before = rig_descriptors(), fds[64];
    for (int i = 0; i < 64; i++) fds[i] = STDIN_FILENO;
    int fd = dial(name);
    turn();
    send_with(fd, &request, sizeof request, fds, 64);
    turn();
    cr_assert_eq(rig_descriptors(), before + 1, "this end's socket");
    close(fd);
    cr_assert(owner_may_write(), "what was in flight to it is gone");
}

Test(memory_handover, silent_connections_are_bounded_and_end)
{
    int fds[2 * LIMIT_HANDOVERS], count = 0;
    int before = rig_descriptors();
    hold_t *h = NULL;
    for (; count < (int)LIMIT_HANDOVERS; count++) cr_assert_geq(fds[count] = dial(name), 0);
    turn();
    cr_assert_geq(fds[count++] = dial(name), 0, "waits in the backlog");
    uint64_t due_us = turn();
    cr_assert_eq(rig_descriptors(), before + count + (int)LIMIT_HANDOVERS, "no more are accepted");
    cr_assert(due_us > now_us && due_us <= now_us + HANDOVER_QUIET_US);
    struct pollfd p = {handover_fd(source), POLLIN, 0};
    cr_assert_eq(poll(&p, 1, 0), 0, "the backlog does not keep the loop awake");
    cr_assert_gt(handover_turn(source, due_us - 1), due_us - 1);
    cr_assert_not(is_ended(fds[0]));
    handover_turn(source, due_us + HANDOVER_QUIET_US);
    for (int i = 0; i < (int)LIMIT_HANDOVERS; i++) {
        cr_assert(is_ended(fds[i]), "%d", i);
        close(fds[i]);
    }
    close(fds[LIMIT_HANDOVERS]);
    turn();
    cr_assert_eq(ask(&id, &h, NULL), HEDDLE_OK);
    hold_destroy(&h);
    turn();
    cr_assert_eq(rig_descriptors(), before);
}

/* Fewer than the limit are open, and more come at once than there is room for. */
Test(memory_handover, one_turn_accepts_no_more_than_there_is_room_for)
{
    enum { OPEN = LIMIT_HANDOVERS - 4, MORE = 10 };
    int fds[OPEN + MORE], count = 0, before = rig_descriptors();
    while (count < OPEN) cr_assert_geq(fds[count++] = dial(name), 0);
    turn();
    cr_assert_eq(rig_descriptors(), before + 2 * OPEN);
    while (count < OPEN + MORE) cr_assert_geq(fds[count++] = dial(name), 0);
    turn();
    cr_assert_eq(rig_descriptors(), before + count + (int)LIMIT_HANDOVERS);
    for (int i = 0; i < count; i++) {
        cr_assert_not(is_ended(fds[i]), "%d", i);
        close(fds[i]);
    }
    for (int i = 0; i < 3; i++) turn();
    cr_assert_eq(rig_descriptors(), before);
}

Test(memory_handover, a_receiver_that_dies_before_it_reads_holds_nothing)
{
    message_t request = good_request();
    int fd = dial(name);
    turn();
    send_with(fd, &request, sizeof request, NULL, 0);
    turn();
    cr_assert_not(owner_may_write(), "in flight");
    close(fd);
    cr_assert(owner_may_write());
    fd = dial(name);
    turn();
    send_with(fd, &request, sizeof request, NULL, 0);
    close(fd);
    turn();
    cr_assert(owner_may_write(), "gone before it was sent");
}

static int be_refused(void *arg)
{
    (void)arg;
    if (setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000)) return 1;
    heddle_error_t e;
    handover_ask_t *a = NULL;
    message_t request = good_request();
    char byte;
    if (handover_ask(NULL, name, &id, CLOCK_NEVER, &a, &e) != HEDDLE_ERR_DENIED) return 2;
    int fd = dial(name);
    if (fd < 0) return 3;
    (void)!send(fd, &request, sizeof request, MSG_NOSIGNAL);
    return recv(fd, &byte, 1, 0) <= 0 ? 0 : 4;
}

Test(memory_handover, another_user_is_refused_by_both_sides)
{
    int status;
    if (geteuid() != 0) cr_skip_test("only root can be another user");
    pid_t child = fork();
    if (child == 0) _exit(be_refused(NULL));
    while (waitpid(child, &status, WNOHANG) == 0) {
        struct pollfd p = {handover_fd(source), POLLIN, 0};
        (void)poll(&p, 1, 10);
        turn();
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d", WEXITSTATUS(status));
    cr_assert(owner_may_write());
}

/* ---- hostile sources ---- */

/* A listener that answers as the test says. */
static int impostor;
static void pretend(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(name, sizeof name, "impostor-%d", getpid());
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "heddle-%s", name);
    impostor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(impostor, (struct sockaddr *)&address,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
                 0);
    cr_assert_eq(listen(impostor, 8), 0);
}

/* What a watcher says of a message. */
static int watched(const void *message, size_t bytes, heddle_error_t *e)
{
    handover_watch_t *w = NULL;
    watch_event_t event;
    message_t request;
    cr_assert_eq(handover_watch(NULL, name, &w, e), HEDDLE_OK);
    int fd = accept4(impostor, NULL, NULL, SOCK_CLOEXEC), one = STDIN_FILENO;
    cr_assert_eq(recv(fd, &request, sizeof request, 0), (ssize_t)sizeof request);
    send_with(fd, message, bytes, &one, 1);
    int rc = handover_watch_take(w, &event, e);
    handover_watch_destroy(&w);
    close(fd);
    return rc;
}

Test(memory_handover, what_a_hostile_source_tells_a_watcher_is_refused)
{
    struct {
        uint32_t magic, count;
        region_name_t regions[LIMIT_OFFERED + 1];
    } list = {.magic = 0x316c6568u, .count = 1};
    message_t note = good_request();
    heddle_error_t e;
    pretend();
    int before = rig_descriptors();
    cr_assert_eq(watched(&list, 8 + sizeof list.regions[0], &e), HEDDLE_OK,
                 "a good one, and its descriptor is dropped");
    cr_assert_eq(watched(&list, 8, &e), HEDDLE_ERR_PROTOCOL, "shorter than it says");
    cr_assert_eq(watched(&list, 8 + 2 * sizeof list.regions[0], &e), HEDDLE_ERR_PROTOCOL);
    list.count = LIMIT_OFFERED + 1;
    cr_assert_eq(watched(&list, sizeof list, &e), HEDDLE_ERR_PROTOCOL, "too many");
    list.count = UINT32_MAX;
    cr_assert_eq(watched(&list, 8, &e), HEDDLE_ERR_PROTOCOL);
    for (uint32_t code = 0; code < 30; code++) {
        note.code = code;
        bool is_for_watchers = code >= 16 + NOTE_VERIFY && code <= 16 + NOTE_SPOILED;
        cr_assert_eq(watched(&note, sizeof note, &e), is_for_watchers ? HEDDLE_OK : HEDDLE_ERR_PROTOCOL, "%u",
                     code);
    }
    cr_assert(strstr(e.message, "malformed"), "%s", e.message);
    cr_assert_eq(watched(&note, 3, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(rig_descriptors(), before);
    close(impostor);
}

static int answered(const void *answer, size_t bytes, const int *fds, size_t count, heddle_error_t *e)
{
    handover_ask_t *a = NULL;
    hold_t *h = NULL;
    cr_assert_eq(handover_ask(NULL, name, &id, 1000, &a, e), HEDDLE_OK);
    int fd = accept4(impostor, NULL, NULL, SOCK_CLOEXEC);
    message_t request;
    cr_assert_eq(recv(fd, &request, sizeof request, 0), (ssize_t)sizeof request);
    if (answer) send_with(fd, answer, bytes, fds, count);
    close(fd);
    int rc = handover_ask_take(a, 0, &h, e);
    cr_assert_null(h);
    handover_ask_destroy(&a);
    return rc;
}

Test(memory_handover, what_a_hostile_source_sends_is_refused_and_closed)
{
    answer_t good = {.magic = 0x31616568u, .generation = 1}, other = good, large[2] = {good, good};
    int fds[64], before;
    heddle_error_t e;
    other.magic++;
    pretend();
    for (int i = 0; i < 64; i++) fds[i] = STDIN_FILENO;
    before = rig_descriptors();
    static const size_t COUNTS[] = {0, 2, 3, 64};
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        cr_assert_eq(answered(&good, sizeof good, fds, COUNTS[i], &e), HEDDLE_ERR_PROTOCOL);
        cr_assert(strstr(e.message, "wrong number of descriptors"), "%s", e.message);
    }
    cr_assert_eq(answered(&good, sizeof good - 1, fds, 1, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(answered(large, sizeof large, fds, 1, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(answered(&other, sizeof other, fds, 1, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert(strstr(e.message, "malformed"), "%s", e.message);
    cr_assert_eq(answered(&good, sizeof good, fds, 1, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert(strstr(e.message, "is not shared memory"), "%s", e.message);
    cr_assert_eq(answered(NULL, 0, NULL, 0, &e), HEDDLE_ERR_GONE);
    cr_assert_eq(rig_descriptors(), before);
    close(impostor);
}

/* The source has the description still, or a child of it. */
Test(memory_handover, what_came_with_a_bad_answer_is_locked_no_longer)
{
    answer_t other = {.magic = 0x31616569u, .generation = 1};
    heddle_error_t e;
    int fd, own;
    cr_assert_eq(memory_region_hand_over(region, &fd, NULL), HEDDLE_OK);
    cr_assert_eq(hold_open(fd, &id, &own, NULL), HEDDLE_OK);
    cr_assert_not(owner_may_write());
    pretend();
    cr_assert_eq(answered(&other, sizeof other, &own, 1, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert(owner_may_write());
    close(own);
    close(impostor);
}

Test(memory_handover, a_source_that_sends_what_it_holds_itself_is_refused)
{
    answer_t good = {.magic = 0x31616568u, .generation = 1};
    heddle_error_t e;
    int fd;
    cr_assert_eq(memory_region_hand_over(region, &fd, NULL), HEDDLE_OK);
    pretend();
    cr_assert_eq(answered(&good, sizeof good, &fd, 1, &e), HEDDLE_ERR_PROTOCOL);
    cr_assert(strstr(e.message, "came writable"), "%s", e.message);
    close(impostor);
}

Test(memory_handover, a_source_that_does_not_answer_is_given_up_at_the_deadline)
{
    handover_ask_t *a = NULL;
    hold_t *h = NULL;
    heddle_error_t e;
    cr_assert_eq(handover_ask(NULL, name, &id, 1000, &a, &e), HEDDLE_OK);
    cr_assert_eq(handover_ask_take(a, 999, &h, &e), HEDDLE_ERR_AGAIN);
    cr_assert_eq(handover_ask_take(a, 1000, &h, &e), HEDDLE_ERR_DEADLINE);
    handover_ask_destroy(&a);
    handover_ask_destroy(&a);
    cr_assert_eq(handover_ask(NULL, "no-such-name", &id, 1000, &a, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert(strstr(e.message, "no process listens for it on this host"), "%s", e.message);
}

/* As all workers of a large host do, while the loop of their publisher does something else. */
Test(memory_handover, many_may_wait_for_a_source_that_is_busy)
{
    enum { MANY = 4 * LIMIT_HANDOVERS };
    handover_ask_t *asks[MANY] = {0};
    heddle_error_t e;
    hold_t *h = NULL;
    for (int i = 0, rc; i < MANY; i++) {
        rc = handover_ask(NULL, name, &id, CLOCK_NEVER, &asks[i], &e);
        cr_assert_eq(rc, HEDDLE_OK, "%d: %s", i, e.message);
    }
    for (int i = 0, rc; i < MANY; i++) {
        while ((rc = handover_ask_take(asks[i], 0, &h, &e)) == HEDDLE_ERR_AGAIN) turn();
        cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
        hold_destroy(&h);
        handover_ask_destroy(&asks[i]);
    }
}

Test(memory_handover, a_source_with_too_many_connections_says_so)
{
    handover_ask_t *asks[8] = {0};
    heddle_error_t e;
    int count = 0, rc;
    pretend();
    cr_assert_eq(listen(impostor, 0), 0, "it has room for fewer");
    while ((rc = handover_ask(NULL, name, &id, CLOCK_NEVER, &asks[count], &e)) == HEDDLE_OK)
        cr_assert_lt(++count, 8);
    cr_assert_eq(rc, HEDDLE_ERR_UNAVAILABLE);
    cr_assert(e.retriable && strstr(e.message, "too many connections"), "%s", e.message);
    while (count > 0) handover_ask_destroy(&asks[--count]);
    close(impostor);
}

/* ---- descriptors run out ---- */

static struct rlimit allow_descriptors(int count)
{
    struct rlimit old, few;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    few = (struct rlimit){(rlim_t)count, old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    return old;
}

/* The lowest descriptor that is free: a limit of it allows none. */
static int next_descriptor(void)
{
    int fd = dup(STDIN_FILENO);
    close(fd);
    return fd;
}

Test(memory_handover, without_a_descriptor_the_receiver_says_so_and_nothing_is_held)
{
    handover_ask_t *a = NULL;
    hold_t *h = NULL;
    heddle_error_t e;
    struct rlimit old = allow_descriptors(next_descriptor());
    cr_assert_eq(handover_ask(NULL, name, &id, 1000, &a, &e), HEDDLE_ERR_NO_MEMORY);
    setrlimit(RLIMIT_NOFILE, &old);
    cr_assert_eq(handover_ask(NULL, name, &id, 1000, &a, &e), HEDDLE_OK);
    struct pollfd p = {handover_ask_fd(a), POLLIN, 0};
    while (poll(&p, 1, 0) == 0) turn();
    old = allow_descriptors(next_descriptor());
    cr_assert_eq(handover_ask_take(a, 0, &h, &e), HEDDLE_ERR_NO_MEMORY);
    setrlimit(RLIMIT_NOFILE, &old);
    cr_assert(strstr(e.message, "this process has no descriptor left"), "%s", e.message);
    handover_ask_destroy(&a);
    cr_assert(owner_may_write());
}

/* The socket that listens for requests. */
static int listener(void)
{
    for (int fd = 0; fd < 1024; fd++) {
        int is_listening = 0;
        socklen_t bytes = sizeof is_listening;
        if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &bytes) && is_listening) return fd;
    }
    return -1;
}

/* The test takes the listener's place in the poll set, as a kernel without memory for one would refuse it. */
Test(memory_handover, a_source_that_cannot_listen_again_tries_later)
{
    handover_ask_t *a = NULL;
    hold_t *h = NULL;
    heddle_error_t e;
    struct epoll_event none = {.events = 0};
    cr_assert_eq(handover_ask(NULL, name, &id, CLOCK_NEVER, &a, &e), HEDDLE_OK);
    struct rlimit old = allow_descriptors(next_descriptor());
    uint64_t due_us = turn();
    setrlimit(RLIMIT_NOFILE, &old);
    cr_assert_eq(epoll_ctl(handover_fd(source), EPOLL_CTL_ADD, listener(), &none), 0);
    cr_assert_eq(handover_turn(source, due_us), due_us + HANDOVER_RETRY_US, "it is not deaf for good");
    cr_assert_eq(epoll_ctl(handover_fd(source), EPOLL_CTL_DEL, listener(), NULL), 0);
    handover_turn(source, due_us + HANDOVER_RETRY_US);
    cr_assert_eq(handover_ask_take(a, 0, &h, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
    handover_ask_destroy(&a);
}

Test(memory_handover, without_a_descriptor_the_source_says_so_or_lets_it_wait)
{
    handover_ask_t *a = NULL;
    hold_t *h = NULL;
    heddle_error_t e;
    cr_assert_eq(handover_ask(NULL, name, &id, CLOCK_NEVER, &a, &e), HEDDLE_OK);
    struct rlimit old = allow_descriptors(next_descriptor());
    uint64_t due_us = turn();
    struct pollfd p = {handover_fd(source), POLLIN, 0};
    cr_assert_eq(poll(&p, 1, 0), 0, "a connection that cannot be accepted does not keep the loop awake");
    setrlimit(RLIMIT_NOFILE, &old);
    cr_assert_eq(due_us, now_us + HANDOVER_RETRY_US);
    old = allow_descriptors(next_descriptor() + 1); /* for the connection, and none for the region */
    handover_turn(source, due_us);
    setrlimit(RLIMIT_NOFILE, &old);
    cr_assert_eq(handover_ask_take(a, 0, &h, &e), HEDDLE_ERR_NO_MEMORY);
    cr_assert(strstr(e.message, "its source has no descriptor left"), "%s", e.message);
    handover_ask_destroy(&a);
    cr_assert(owner_may_write());
}

/* ---- places ---- */

static char directory[300];

static void make_directory(void)
{
    /* Longer than a socket's address may be. */
    char base[] = "/tmp/heddle-XXXXXX";
    cr_assert_not_null(mkdtemp(base));
    snprintf(directory, sizeof directory, "%s/%0120d", base, 0);
    cr_assert_eq(mkdir(directory, 0700), 0);
}

static void remove_directory(void)
{
    rmdir(directory);
    *strrchr(directory, '/') = 0;
    rmdir(directory);
}

Test(memory_handover, a_directory_serves_in_place_of_the_network_namespace)
{
    hold_t *h = NULL;
    heddle_error_t e;
    make_directory();
    handover_destroy(&source);
    cr_assert_eq(handover_listen(directory, name, rig_find, region, &source, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
    cr_assert_eq(ask_in(NULL, name, &id, &h, &e), HEDDLE_ERR_NOT_FOUND);
    handover_t *second = NULL;
    cr_assert_eq(handover_listen(directory, name, rig_find, region, &second, &e), HEDDLE_ERR_ADDRESS_IN_USE);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_OK, "the first one still listens: %s",
                 e.message);
    hold_destroy(&h);
    handover_destroy(&source);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_ERR_NOT_FOUND, "the file is removed");
    remove_directory();
    cr_assert_eq(access(directory, F_OK), -1, "nothing else is left");
}

/* Where it points to may change after it was checked. */
Test(memory_handover, a_symbolic_link_is_no_directory)
{
    heddle_error_t e;
    char link[sizeof directory + 8];
    make_directory();
    handover_destroy(&source);
    snprintf(link, sizeof link, "%s.link", directory);
    cr_assert_eq(symlink(directory, link), 0);
    int rc = handover_check(link, &e);
    int listened = handover_listen(link, name, rig_find, region, &source, NULL);
    cr_assert_eq(unlink(link), 0);
    cr_assert(rc == HEDDLE_ERR_USAGE && listened == HEDDLE_ERR_USAGE, "%d, %d", rc, listened);
    cr_assert(strstr(e.expected, "not a symbolic link"), "%s", e.expected);
    remove_directory();
}

static int die_listening(void *arg)
{
    (void)arg;
    handover_t *h = NULL;
    return handover_listen(directory, name, rig_find, NULL, &h, NULL) ? 1 : 0;
}

Test(memory_handover, the_file_of_a_dead_process_gives_way)
{
    hold_t *h = NULL;
    heddle_error_t e;
    make_directory();
    handover_destroy(&source);
    cr_assert_eq(rig_in_child(die_listening, NULL), 0);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(handover_listen(directory, name, rig_find, region, &source, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
    char path[512];
    snprintf(path, sizeof path, "%s/heddle-%s", directory, name);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_ERR_NOT_FOUND, "removed while it listens");
    handover_destroy(&source);
    remove_directory();
}

static void path_of(const char *file, char ret_path[512])
{
    snprintf(ret_path, 512, "%s/heddle-%s", directory, file);
}

static void date_back(const char *file, int seconds)
{
    char path[512];
    struct timespec now, times[2];
    cr_assert_eq(clock_gettime(CLOCK_REALTIME, &now), 0);
    now.tv_sec -= seconds;
    times[0] = times[1] = now;
    path_of(file, path);
    cr_assert_eq(utimensat(AT_FDCWD, path, times, 0), 0, "%s", path);
}

static bool is_there(const char *file)
{
    char path[512];
    path_of(file, path);
    return access(path, F_OK) == 0;
}

/* Names are random: no other process would ever take the place of one that was killed. */
Test(memory_handover, files_of_dead_processes_are_swept)
{
    heddle_error_t e;
    hold_t *h = NULL;
    handover_t *alive = NULL;
    char path[512];
    make_directory();
    handover_destroy(&source);
    static const char *const DEAD[] = {"dead-1", "dead-2", "young"};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s", DEAD[i]);
        cr_assert_eq(rig_in_child(die_listening, NULL), 0);
        date_back(name, i < 2 ? HANDOVER_STALE_S : -HANDOVER_STALE_S);
    }
    cr_assert_eq(handover_listen(directory, "alive", rig_find, region, &alive, &e), HEDDLE_OK, "%s",
                 e.message);
    date_back("alive", HANDOVER_STALE_S);
    path_of("note", path);
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    date_back("note", HANDOVER_STALE_S);
    cr_assert(is_there("young") && is_there("note"));
    cr_assert(!is_there("dead-1") && !is_there("dead-2"));

    int before = rig_descriptors();
    cr_assert_eq(handover_listen(directory, "next", rig_find, region, &source, &e), HEDDLE_OK, "%s",
                 e.message);
    handover_destroy(&source);
    cr_assert_eq(rig_descriptors(), before);
    cr_assert(is_there("young"), "it may not listen yet");
    cr_assert(is_there("note"), "it is not a socket");
    cr_assert(is_there("alive"));
    source = alive;
    (void)handover_turn(source, clock_now(clock_system()));
    cr_assert_eq(ask_in(directory, "alive", &id, &h, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
    handover_destroy(&source);
    path_of("young", path);
    cr_assert_eq(unlink(path), 0);
    path_of("note", path);
    cr_assert_eq(unlink(path), 0);
    remove_directory();
    cr_assert_eq(access(directory, F_OK), -1, "nothing else is left");
}

/* As if the directory were on a network file system. */
static bool is_of_many_hosts;

int fstatfs(int fd, struct statfs *ret)
{
    int rc = (int)syscall(SYS_fstatfs, fd, ret);
    if (is_of_many_hosts) ret->f_type = NFS_SUPER_MAGIC;
    return rc;
}

/* Here they refuse connections; on their own host they listen. */
Test(memory_handover, files_of_other_hosts_are_not_swept)
{
    heddle_error_t e;
    char path[512];
    make_directory();
    handover_destroy(&source);
    snprintf(name, sizeof name, "elsewhere");
    cr_assert_eq(rig_in_child(die_listening, NULL), 0);
    date_back("elsewhere", HANDOVER_STALE_S);
    is_of_many_hosts = true;
    int rc = handover_listen(directory, "next", rig_find, region, &source, &e);
    is_of_many_hosts = false;
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    cr_assert(is_there("elsewhere"));
    handover_destroy(&source);
    path_of("elsewhere", path);
    cr_assert_eq(unlink(path), 0);
    remove_directory();
}

Test(memory_handover, a_directory_that_others_may_change_is_refused)
{
    static const mode_t MODES[] = {0777, 0750, 0701, 01700, 0500};
    handover_t *h = NULL;
    handover_ask_t *a = NULL;
    heddle_error_t e;
    int before;
    make_directory();
    before = rig_descriptors();
    cr_assert_neq(handover_place(directory), 0);
    for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
        cr_assert_eq(chmod(directory, MODES[i]), 0);
        cr_assert_eq(handover_listen(directory, "a", rig_find, region, &h, &e), HEDDLE_ERR_DENIED);
        cr_assert(strstr(e.found, "mode ") && strstr(e.hint, "install -d -m 0700 DIR"), "%s", e.hint);
        cr_assert_eq(handover_ask(directory, "a", &id, 0, &a, &e), HEDDLE_ERR_DENIED);
        cr_assert_eq(handover_place(directory), 0);
    }
    cr_assert_eq(chmod(directory, 0700), 0);
    if (geteuid() == 0) {
        cr_assert_eq(chown(directory, 1000, 1000), 0);
        cr_assert_eq(handover_listen(directory, "a", rig_find, region, &h, &e), HEDDLE_ERR_DENIED);
        cr_assert(strstr(e.found, "user 1000"), "%s", e.found);
    }
    remove_directory();
    cr_assert_eq(handover_listen("/no/such/place", "a", rig_find, region, &h, &e), HEDDLE_ERR_USAGE);
    cr_assert(strstr(e.message, "/no/such/place") && e.expected[0] && strstr(e.hint, "opts.host_share"));
    cr_assert_eq(rig_descriptors(), before);
}

/* A file system that takes no more files. */
static int listen_where_it_is_full(void *arg)
{
    handover_t *h = NULL;
    heddle_error_t *e = arg;
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", directory, "tmpfs", 0, "nr_inodes=1,mode=0700"))
        return 77;
    int rc = handover_listen(directory, "a", rig_find, region, &h, e);
    bool is_named = strstr(e->message, directory) && strstr(e->message, strerror(ENOSPC)) && e->hint[0];
    return rc != HEDDLE_ERR_NO_SPACE ? 1 : is_named ? 0 : 2;
}

Test(memory_handover, a_directory_that_takes_no_socket_is_named)
{
    heddle_error_t e;
    make_directory();
    int status = rig_in_child(listen_where_it_is_full, &e);
    remove_directory();
    if (status == 77) cr_skip_test("no mount namespaces");
    cr_assert_eq(status, 0);
}

/* Another one of the same name has none of the sockets. */
Test(memory_handover, a_directory_that_is_removed_meanwhile_reaches_nothing)
{
    hold_t *h = NULL;
    heddle_error_t e;
    char path[512];
    make_directory();
    uint64_t place = handover_place(directory);
    handover_destroy(&source);
    cr_assert_eq(handover_listen(directory, name, rig_find, region, &source, &e), HEDDLE_OK, "%s", e.message);
    snprintf(path, sizeof path, "%s/heddle-%s", directory, name);
    cr_assert(unlink(path) == 0 && rmdir(directory) == 0);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_ERR_USAGE);
    cr_assert(strstr(e.message, directory), "%s", e.message);
    cr_assert(mkdir(directory, 0700) == 0);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_ERR_NOT_FOUND);
    cr_assert_neq(handover_place(directory), place, "a host's processes do not count on the old one");
    handover_destroy(&source);
    remove_directory();
    cr_assert_eq(access(directory, F_OK), -1, "its end leaves no file");
}

Test(memory_handover, a_name_is_short_and_plain)
{
    handover_t *h = NULL;
    handover_ask_t *a = NULL;
    char longest[HANDOVER_NAME_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[HANDOVER_NAME_MAX + 1] = 0;
    const char *const BAD[] = {"", "a/b", "../x", "a b", longest};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        cr_assert_eq(handover_listen(NULL, BAD[i], rig_find, region, &h, NULL), HEDDLE_ERR_USAGE);
        cr_assert_eq(handover_ask(NULL, BAD[i], &id, 0, &a, NULL), HEDDLE_ERR_USAGE);
    }
    longest[HANDOVER_NAME_MAX] = 0;
    cr_assert_eq(handover_listen(NULL, longest, rig_find, region, &h, NULL), HEDDLE_OK);
    handover_destroy(&h);
    cr_assert_eq(handover_listen(NULL, name, rig_find, region, &h, NULL), HEDDLE_ERR_ADDRESS_IN_USE);
}

static int place_elsewhere(void *place)
{
    hold_t *h = NULL;
    if (unshare(CLONE_NEWNET)) return 77;
    uint64_t here = *(uint64_t *)place;
    if (handover_place(NULL) == here || handover_place(NULL) >> 32 != here >> 32) return 1;
    if (handover_place(directory) == 0 || handover_place(directory) >> 32 != here >> 32) return 2;
    return rig_ask(NULL, name, &id, &h, NULL) == HEDDLE_ERR_NOT_FOUND ? 0 : 3;
}

/* Of ten thousand hosts whose namespaces have one number, a few have equal halves, and none equal places. */
Test(memory_handover, two_hosts_have_two_places_in_each_half)
{
    enum { HOSTS = 1000 };
    static uint64_t places[HOSTS];
    handover_way_t way = {.kind = "net", .device = 4, .file = 4026531840, .user = 0};
    for (int i = 0; i < HOSTS; i++) {
        char boot_id[HANDOVER_BOOT_BYTES] = "";
        snprintf(boot_id, sizeof boot_id, "%08x-0000-4000-8000-000000000000\n", i);
        places[i] = handover_place_of(boot_id, &way);
        for (int k = 0; k < i; k++) {
            cr_assert_neq(places[i] >> 32, places[k] >> 32, "hosts %d and %d", i, k);
            cr_assert_neq((uint32_t)places[i], (uint32_t)places[k], "hosts %d and %d", i, k);
        }
    }
    handover_way_t other = way;
    other.user = 1000;
    char boot_id[HANDOVER_BOOT_BYTES] = "a";
    uint64_t place = handover_place_of(boot_id, &way), of_other = handover_place_of(boot_id, &other);
    cr_assert_eq(place >> 32, of_other >> 32, "the broker sees that the host is the same");
    cr_assert_neq(place, of_other);
}

Test(memory_handover, a_place_is_what_can_be_reached)
{
    uint64_t place = handover_place(NULL);
    make_directory();
    cr_assert_neq(place, 0);
    cr_assert_eq(handover_place(NULL), place);
    cr_assert_neq(handover_place(directory), place);
    cr_assert_eq(handover_place(directory) >> 32, place >> 32, "the host is the same");
    cr_assert_eq(handover_place("/no/such/place"), 0);
    int status = rig_in_child(place_elsewhere, &place);
    remove_directory();
    if (status == 77) cr_skip_test("no network namespaces");
    cr_assert_eq(status, 0);
}

/* The same user under another number, as in a container without root. */
static int place_renamed(void *place)
{
    char map[32];
    uid_t here = geteuid();
    int n = snprintf(map, sizeof map, "%u %u 1", here + 1000, here);
    if (unshare(CLONE_NEWUSER)) return 77;
    int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, map, (size_t)n) != n || geteuid() != here + 1000) return 77;
    return handover_place(directory) == *(uint64_t *)place ? 0 : 1;
}

Test(memory_handover, a_directory_is_the_same_place_under_another_number_of_its_user)
{
    make_directory();
    uint64_t place = handover_place(directory);
    int status = rig_in_child(place_renamed, &place);
    remove_directory();
    if (status == 77) cr_skip_test("no user namespaces");
    cr_assert_eq(status, 0);
}

/* The kernel shows the user of this process under the number that stands for all others without one. */
static int listen_without_a_number(void *arg)
{
    (void)arg;
    handover_t *h = NULL;
    handover_ask_t *a = NULL;
    heddle_error_t e = {0};
    if (unshare(CLONE_NEWUSER)) return 77;
    if (handover_check(NULL, &e) != HEDDLE_ERR_DENIED || !strstr(e.found, "no number")) return 1;
    if (handover_listen(NULL, "without-a-number", rig_find, region, &h, &e) != HEDDLE_ERR_DENIED) return 2;
    if (handover_ask(NULL, name, &id, CLOCK_NEVER, &a, &e) != HEDDLE_ERR_DENIED) return 3;
    return strstr(e.message, "cannot tell its own user") && strstr(e.hint, "map the user") ? 0 : 4;
}

Test(memory_handover, a_user_that_cannot_be_told_from_others_shares_nothing)
{
    int status = rig_in_child(listen_without_a_number, NULL);
    if (status == 77) cr_skip_test("no user namespaces");
    cr_assert_eq(status, 0);
    cr_assert_eq(handover_check(NULL, NULL), HEDDLE_OK);
}

/* A container that has a number for this process alone, and one that its directory's user has not. */
static int name_a_directory_of_an_unknown_user(void *arg)
{
    (void)arg;
    heddle_error_t e = {0};
    if (chmod(directory, 0755) || chown(directory, 4242, (gid_t)-1)) return 77;
    if (unshare(CLONE_NEWUSER)) return 77;
    int fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "7 0 1", 5) != 5 || geteuid() != 7) return 77;
    return handover_check(directory, &e) == HEDDLE_ERR_DENIED && strstr(e.found, "no number") ? 0 : 1;
}

Test(memory_handover, a_directory_of_a_user_without_a_number_is_refused_with_the_reason)
{
    make_directory();
    int status = rig_in_child(name_a_directory_of_an_unknown_user, NULL);
    remove_directory();
    if (status == 77) cr_skip_test("not root, or no user namespaces");
    cr_assert_eq(status, 0);
}

/* PID namespaces do not matter: no number of a process is used. */
static int ask_from_other_processes(void *arg)
{
    (void)arg;
    if (unshare(CLONE_NEWPID)) return 77;
    pid_t child = fork();
    hold_t *h = NULL;
    if (child == 0)
        _exit(rig_ask(NULL, name, &id, &h, NULL) || hold_take(h, &id, NULL)
                  ? 1
                  : !rig_is_whole(h->base, 1, h->header.bytes));
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

Test(memory_handover, another_pid_namespace_is_reached)
{
    int status;
    pid_t child = fork();
    if (child == 0) _exit(ask_from_other_processes(NULL));
    while (waitpid(child, &status, WNOHANG) == 0) {
        struct pollfd p = {handover_fd(source), POLLIN, 0};
        (void)poll(&p, 1, 10);
        turn();
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) cr_skip_test("no PID namespaces");
    cr_assert_eq(status, 0);
    cr_assert(owner_may_write());
}

Test(memory_handover, a_forked_child_neither_serves_nor_removes)
{
    hold_t *h = NULL;
    heddle_error_t e;
    make_directory();
    handover_destroy(&source);
    cr_assert_eq(handover_listen(directory, name, rig_find, region, &source, &e), HEDDLE_OK);
    pid_t child = fork();
    if (child == 0) {
        bool is_silent = handover_turn(source, 0) == CLOCK_NEVER && handover_fd(source) == -1;
        handover_destroy(&source);
        _exit(!is_silent);
    }
    int status;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cr_assert_eq(ask_in(directory, name, &id, &h, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
    handover_destroy(&source);
    remove_directory();
}

static int child_does_not_serve(void *unused)
{
    (void)unused;
    bool is_silent = handover_turn(source, 0) == CLOCK_NEVER;
    handover_destroy(&source);
    return !is_silent;
}

/* A bare clone runs no handlers: the child has the listener, and shares its poll set. */
Test(memory_handover, a_child_without_handlers_neither_serves_nor_removes)
{
    hold_t *h = NULL;
    handover_ask_t *a = NULL;
    heddle_error_t e;
    int rc;
    make_directory();
    handover_destroy(&source);
    cr_assert_eq(handover_listen(directory, name, rig_find, region, &source, &e), HEDDLE_OK);
    uint64_t end_us = clock_now(clock_system()) + RIG_PATIENCE_US;
    cr_assert_eq(handover_ask(directory, name, &id, end_us, &a, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(rig_in_bare_child(child_does_not_serve, NULL), 0);
    cr_assert(handover_is_there(source), "the file of the socket is its parent's");
    do turn();
    while ((rc = handover_ask_take(a, now_us, &h, &e)) == HEDDLE_ERR_AGAIN);
    cr_assert_eq(rc, HEDDLE_OK, "%s", e.message);
    handover_ask_destroy(&a);
    hold_destroy(&h);
    handover_destroy(&source);
    remove_directory();
}

/* Its copy of a connection that has ended could wake the source for ever, and be ended again. */
Test(memory_handover, a_child_without_handlers_keeps_no_connection_in_the_poll_set)
{
    hold_t *h = NULL;
    heddle_error_t e;
    int fd = dial(name);
    struct pollfd p = {handover_fd(source), POLLIN, 0};
    turn();
    pid_t child = rig_idle_bare_fork();
    handover_turn(source, now_us + HANDOVER_QUIET_US);
    cr_assert_eq(send(fd, "x", 1, MSG_NOSIGNAL), 1, "the child has the other end");
    cr_assert_eq(poll(&p, 1, 0), 0);
    turn();
    cr_assert_eq(ask(&id, &h, &e), HEDDLE_OK, "%s", e.message);
    hold_destroy(&h);
    close(fd);
    rig_reap(child, SIGKILL);
}
