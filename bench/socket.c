/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of the references: one sender and as many receivers as the row has workers.
 *
 * The sender has one thread and sends to all of them side by side, as much as each socket takes: a slow
 * receiver does not hold up the others. One repetition ends with the last answer. */
#include "bench/socket.h"

#include "bench/child.h"
#include "bench/moment.h"
#include "bench/reference.h"
#include "bench/tcp.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STEP_BYTES = 256 * 1024, WAIT_MS = 60000 };

/* ---- the receiver ---------------------------------------------------------------------------- */

/* Blocking: the receiver has nothing else to do. */
static bool read_all(int fd, void *into, size_t bytes)
{
    for (char *at = into; bytes;) {
        ssize_t n = read(fd, at, bytes);
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

int socket_receiver(int argc, char **argv)
{
    int fd = argc == 1 ? tcp_dial("127.0.0.1", (uint16_t)atoi(argv[0])) : -1;
    static uint64_t leaves[STEP_BYTES / LIMIT_PAGE_BYTES];
    char *into = NULL;
    size_t room = 0;
    if (fd < 0) return 9;
    for (socket_head_t head; read_all(fd, &head, sizeof head);) {
        if (head.bytes > room) {
            free(into);
            room = head.bytes;
            into = malloc(room);
            if (!into) return 9;
            memset(into, 1, room); /* so that no page fault is measured */
        }
        /* In steps, so that the bytes are still in the cache when they are digested. */
        for (uint64_t at = 0; at < head.bytes; at += STEP_BYTES) {
            size_t step = head.bytes - at < STEP_BYTES ? head.bytes - at : STEP_BYTES;
            if (!read_all(fd, into + at, step)) return 9;
            if (head.is_digested) digest_leaves(into + at, step, leaves);
        }
        /* The answer means that the bytes have arrived, and not only that the kernel has taken them. */
        if (!tcp_write(fd, "+", 1)) return 9;
    }
    return 0;
}

/* ---- the sender ------------------------------------------------------------------------------ */

typedef struct {
    child_t child;
    int fd;
    uint64_t sent;
} receiver_t;
typedef struct {
    reference_t base;
    receiver_t *receivers;
    uint32_t count;
    bool is_digested;
    char *bytes;
    uint64_t size;
} star_t;

static uint64_t star_bytes(const reference_opts_t *o)
{
    return (o->receivers + 1) * o->model->table.data_bytes;
}

static void star_close(reference_t *r)
{
    star_t *s = (star_t *)r;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->receivers[i].fd > 0) close(s->receivers[i].fd);
        child_end(&s->receivers[i].child);
    }
    free(s->receivers);
    free(s->bytes);
    free(s);
}

/* One step for one receiver: sends what its socket takes, then reads its answer. *ret_open: not answered yet.
 */
static int send_some(star_t *s, receiver_t *r, bool *ret_open)
{
    if (r->sent < s->size) {
        ssize_t n = send(r->fd, s->bytes + r->sent, s->size - r->sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return HEDDLE_ERR_GONE;
        if (n > 0) r->sent += (uint64_t)n;
        *ret_open = true;
        return HEDDLE_OK;
    }
    char answer;
    ssize_t n = recv(r->fd, &answer, 1, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return HEDDLE_ERR_GONE;
    *ret_open = n < 0;
    return HEDDLE_OK;
}

static int fail_gone(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_GONE, "a receiver of the reference socket ended");
}

static int send_to_all(star_t *s, struct pollfd *fds, heddle_error_t *error)
{
    uint32_t open = s->count;
    for (uint32_t i = 0; i < s->count; i++)
        fds[i] = (struct pollfd){.fd = s->receivers[i].fd, .events = POLLOUT};
    while (open) {
        int n = poll(fds, s->count, WAIT_MS);
        if (n < 0) return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted");
        if (n == 0)
            return error_fail(error, HEDDLE_ERR_DEADLINE, "the reference socket stood still for %d ms",
                              WAIT_MS);
        for (uint32_t i = 0; i < s->count; i++) {
            bool is_open = true;
            if (!fds[i].revents) continue;
            if (send_some(s, &s->receivers[i], &is_open)) return fail_gone(error);
            fds[i].events = s->receivers[i].sent < s->size ? POLLOUT : POLLIN;
            if (is_open) continue;
            fds[i].fd = -1;
            open--;
        }
    }
    return HEDDLE_OK;
}

static int star_once(reference_t *r, double *ret_ms, heddle_error_t *error)
{
    star_t *s = (star_t *)r;
    socket_head_t head = {s->size, s->is_digested};
    struct pollfd *fds = calloc(s->count, sizeof *fds);
    if (!fds) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory");
    uint64_t start = moment_ns();
    int rc = HEDDLE_OK;
    for (uint32_t i = 0; !rc && i < s->count; i++) {
        s->receivers[i].sent = 0;
        if (!tcp_write(s->receivers[i].fd, &head, sizeof head)) rc = fail_gone(error);
    }
    if (!rc) rc = send_to_all(s, fds, error);
    if (!rc) *ret_ms = moment_ms(start, moment_ns());
    free(fds);
    return rc;
}

/* The receivers dial, one after the other, so the order of the accepted sockets is that of the processes. */
static int star_open(const reference_opts_t *o, bool is_digested, reference_t **ret_reference,
                     heddle_error_t *error)
{
    uint16_t port = 0;
    double unused;
    star_t *s = calloc(1, sizeof *s);
    if (!s) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory");
    *s = (star_t){.base.ops = is_digested ? &REFERENCE_SOCKET_DIGEST : &REFERENCE_SOCKET,
                  .size = o->model->table.data_bytes,
                  .receivers = calloc(o->receivers, sizeof *s->receivers),
                  .is_digested = is_digested};
    s->bytes = malloc(s->size);
    int listener = tcp_listen(&port), rc = HEDDLE_OK;
    if (!s->receivers || !s->bytes || listener < 0)
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory or socket for receivers");
    else model_copy(o->model, s->bytes);
    char text[8], log[4096];
    snprintf(text, sizeof text, "%u", port);
    snprintf(log, sizeof log, "%s/receivers.log", o->scratch);
    const char *const argv[] = {"/proc/self/exe", "--as", "receiver", text, NULL};
    for (uint32_t i = 0; !rc && i < o->receivers; i++) {
        receiver_t *r = &s->receivers[s->count++];
        struct pollfd p = {.fd = listener, .events = POLLIN};
        rc = child_start(argv, log, &r->child, error);
        if (rc) break; /* nothing will dial */
        r->fd = poll(&p, 1, WAIT_MS) == 1 ? tcp_accept(listener) : -1;
        if (r->fd < 0) rc = error_fail(error, HEDDLE_ERR_INTERNAL, "a receiver did not dial");
        else fcntl(r->fd, F_SETFL, O_NONBLOCK);
    }
    if (listener >= 0) close(listener);
    if (!rc)
        rc = star_once(&s->base, &unused, error); /* in the first round the receivers touch their memory */
    if (rc) star_close(&s->base);
    else *ret_reference = &s->base;
    return rc;
}

static int plain_open(const reference_opts_t *o, reference_t **ret, heddle_error_t *error)
{
    return star_open(o, false, ret, error);
}
static int digest_open(const reference_opts_t *o, reference_t **ret, heddle_error_t *error)
{
    return star_open(o, true, ret, error);
}

const reference_ops_t REFERENCE_SOCKET = {"socket", star_bytes, plain_open, star_once, star_close};
const reference_ops_t REFERENCE_SOCKET_DIGEST = {"socket+digest", star_bytes, digest_open, star_once,
                                                 star_close};
