/* SPDX-License-Identifier: Apache-2.0 */
/* How the limit is put into effect; the header says why there is one. */
#include "wire/accept_limit.h"

#include "core/descriptors.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "core/repeat.h"
#include "wire/socket.h"

#include <czmq.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum {
    EVENTS_MAX = 64,    /* read in one turn, so that other sockets get theirs */
    DRAIN_MAX = 100000, /* more than libzmq queues for a monitor; ends a drain that would not end */
    RESERVE_PART = 4,   /* the queue may take a quarter of the limit */
    QUEUE_MIN = 8,
    MONITORED = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED
};

struct accept_limit {
    loop_t *loop;
    void *socket, *handle; /* the listener's; the monitor's */
    void *monitor;
    int listener; /* its descriptor, from the LISTENING event; -1: not bound yet */
    uint64_t low; /* the limit while OPEN */
    bool is_shut;
    uint64_t look_us; /* SHUT: when free descriptors are counted next */
    repeat_t shuts;
};

int accept_limit_backlog(int wanted)
{
    uint64_t part = descriptors_limit() / RESERVE_PART;
    if (part > (uint64_t)wanted) return wanted;
    return part > QUEUE_MIN ? (int)part : QUEUE_MIN;
}

/* ---- dropping new connections in the kernel ---- */

/* A packet whose time to live is below `ttl` is dropped. Common defaults are 64 and 128, and each router
 * takes one off, so 255 drops everything but packets that a neighbour sent with 255. */
static void set_min_ttl(int fd, int ttl)
{
    setsockopt(fd, IPPROTO_IP, IP_MINTTL, &ttl, sizeof ttl);
    setsockopt(fd, IPPROTO_IPV6, IPV6_MINHOPCOUNT, &ttl, sizeof ttl); /* one of the two applies */
}

/* A filter is preferred, because it drops every packet. Some kernels reserve filters for root; the minimum
 * TTL needs no privilege. */
static void drop_new(const accept_limit_t *a)
{
    static struct sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog program = {1, nothing};
    bool is_refused = FAILPOINT("wire.filter") ||
                      setsockopt(a->listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0;
    if (is_refused) set_min_ttl(a->listener, 255);
}

/* ---- open and shut ---- */

/* The loop must know of the time too, or it would sleep past it. */
static void look_at(accept_limit_t *a, uint64_t at_us)
{
    a->look_us = at_us;
    loop_set_due(a->loop, a, at_us);
}

/* A work hook: SHUT -> OPEN. The free descriptors are counted under the lower limit of OPEN: connections
 * beyond that limit stay, and count as used. */
static bool look(void *self)
{
    accept_limit_t *a = self;
    if (!a->is_shut || loop_now(a->loop) < a->look_us) return false;
    descriptors_set_limit(a->low);
    if (descriptors_count(ACCEPT_FREE) < ACCEPT_FREE) {
        descriptors_raise_limit();
        look_at(a, loop_now(a->loop) + ACCEPT_LOOK_US);
        return false;
    }
    if (a->listener >= 0) {
        setsockopt(a->listener, SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, sizeof(int));
        set_min_ttl(a->listener, 0);
    }
    a->is_shut = false;
    look_at(a, CLOCK_NEVER);
    if (repeat_over(&a->shuts))
        log_emit(LOG_INFO, "wire.descriptors_again", "new connections are accepted again");
    return false;
}

static bool may_sleep(void *self)
{
    (void)self;
    return true;
}

/* ---- events of libzmq's monitor ---- */

/* An accepted socket inherits the listener's minimum TTL if its last handshake packet came while the
 * limiter was SHUT; it would receive nothing for good, so it is set back to 0. The number in the event may
 * meanwhile belong to another connection; that one has 0 anyway. */
static void on_event(accept_limit_t *a, uint16_t event, int32_t value)
{
    if (event == ZMQ_EVENT_LISTENING) a->listener = value;
    else if (event == ZMQ_EVENT_ACCEPTED) set_min_ttl(value, 0);
    else if (value == EMFILE || value == ENFILE || value == ENOBUFS || value == ENOMEM) {
        if (!a->is_shut) {
            a->is_shut = true;
            if (a->listener >= 0) drop_new(a);
            descriptors_raise_limit();
            look_at(a, loop_now(a->loop) + ACCEPT_LOOK_US);
            char scratch[REPEAT_TEXT];
            uint64_t times = repeat_note(&a->shuts, 0, loop_now(a->loop));
            if (times)
                log_emit(
                    LOG_ERROR, "wire.no_descriptor",
                    "no descriptor is left for a new connection (%s, limit %llu): new connections wait, and "
                    "the present ones continue; raise the limit of open files (ulimit -n)%s",
                    strerror(value), (unsigned long long)a->low, repeat_text(times, scratch));
        }
    }
}

/* An event is a message of two frames: number and value, then the endpoint. False when none is queued. */
static bool read_event(accept_limit_t *a, uint16_t *ret_event, int32_t *ret_value)
{
    zmq_msg_t part;
    bool more = true;
    *ret_event = 0;
    *ret_value = 0;
    for (int frame = 0; more; frame++) {
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, a->handle, ZMQ_DONTWAIT) < 0) return false;
        if (!frame && zmq_msg_size(&part) >= sizeof *ret_event + sizeof *ret_value) {
            memcpy(ret_event, zmq_msg_data(&part), sizeof *ret_event);
            memcpy(ret_value, (uint8_t *)zmq_msg_data(&part) + sizeof *ret_event, sizeof *ret_value);
        }
        more = zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
    return true;
}

static void on_monitor(void *self)
{
    accept_limit_t *a = self;
    uint16_t event;
    int32_t value;
    for (int i = 0; i < EVENTS_MAX && read_event(a, &event, &value); i++) on_event(a, event, value);
}

/* ---- life ---- */

int accept_limit_new(loop_t *loop, void *socket, int backlog, accept_limit_t **ret_limit)
{
    static atomic_uint count;
    char address[48]; /* in-process, so its number must be unique in the process */
    accept_limit_t *a = calloc(1, sizeof *a);
    if (!a) return HEDDLE_ERR_NO_MEMORY;
    uint64_t limit = descriptors_limit(), reserve = (uint64_t)backlog + 1;
    *a = (accept_limit_t){.loop = loop, .socket = socket, .listener = -1, .look_us = CLOCK_NEVER};
    a->low = limit > 2 * reserve ? limit - reserve : limit;
    snprintf(address, sizeof address, "inproc://heddle-accept-%u", atomic_fetch_add(&count, 1));
    a->monitor = socket_new(ZMQ_PAIR);
    void *handle = a->monitor;
    if (!handle || zmq_socket_monitor(socket, address, MONITORED) || zmq_connect(handle, address) ||
        loop_add_socket(loop, handle, on_monitor, a))
        goto fail;
    a->handle = handle;
    if (loop_add_source(loop, -1, look, may_sleep, a)) goto fail;
    descriptors_set_limit(a->low);
    *ret_limit = a;
    return HEDDLE_OK;
fail:
    accept_limit_destroy(&a);
    return HEDDLE_ERR_NO_MEMORY;
}

/* The order matters. libzmq's I/O thread blocks while the monitor's queue is full, and holds a lock then
 * that stopping the monitor needs: so the queue is drained first. And it blocks for ever on a monitor whose
 * reader is gone: so the monitor is stopped before its reader is closed. */
void accept_limit_destroy(accept_limit_t **limit)
{
    accept_limit_t *a = limit ? *limit : NULL;
    if (!a) return;
    *limit = NULL;
    loop_remove_source(a->loop, a);
    if (a->handle) loop_remove_socket(a->loop, a->handle);
    if (a->listener >= 0) drop_new(a); /* so that no more events come than the drain removes */
    if (a->handle) {
        uint16_t event;
        int32_t value;
        for (int i = 0; i < DRAIN_MAX && read_event(a, &event, &value); i++) {}
    }
    zmq_socket_monitor(a->socket, NULL, 0);
    socket_close(&a->monitor);
    free(a);
}
