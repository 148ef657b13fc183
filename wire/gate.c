/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/gate.h"

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

enum { EVENTS_MAX = 64, DRAIN_MAX = 100000, RESERVE_PART = 4, QUEUE_MIN = 8 };
enum { TOLD = ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED };

struct gate {
    loop_t *loop;
    void *socket, *handle;         /* the listener's; the monitor's */
    void *monitor;
    int listener;                  /* its descriptor, as libzmq told; -1: not yet */
    uint64_t low;                  /* the limit while OPEN */
    bool is_shut;
    uint64_t look_us;              /* SHUT: when to look */
    repeat_t shuts;
};

int gate_backlog(int wanted)
{
    uint64_t part = descriptors_limit() / RESERVE_PART;
    if (part > (uint64_t)wanted) return wanted;
    return part > QUEUE_MIN ? (int)part : QUEUE_MIN;
}

/* ---- what the kernel does with who dials ---- */

/* The least time to live that a packet may come with: 255 comes from no further than the next host, and from
 * none whose own default is less, as it is everywhere (64, 128). */
static void set_min_ttl(int fd, int ttl)
{
    setsockopt(fd, IPPROTO_IP, IP_MINTTL, &ttl, sizeof ttl);
    setsockopt(fd, IPPROTO_IPV6, IPV6_MINHOPCOUNT, &ttl, sizeof ttl); /* one of the two applies */
}

/* Some kernels leave filters to root; a least time to live anybody may ask for. */
static void drop_new(const gate_t *g)
{
    static struct sock_filter nothing[] = {BPF_STMT(BPF_RET | BPF_K, 0)};
    struct sock_fprog program = {1, nothing};
    bool is_refused = FAILPOINT("wire.filter") ||
                      setsockopt(g->listener, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0;
    if (is_refused) set_min_ttl(g->listener, 255);
}

/* ---- open and shut ---- */

static void look_at(gate_t *g, uint64_t at_us)
{
    g->look_us = at_us;
    loop_set_due(g->loop, g, at_us);
}

/* With the limit of OPEN: what is beyond it stays, and counts. */
static bool open_again(gate_t *g)
{
    descriptors_set_limit(g->low);
    if (!descriptors_left(GATE_FREE)) {
        descriptors_raise_limit();
        return false;
    }
    if (g->listener >= 0) {
        setsockopt(g->listener, SOL_SOCKET, SO_DETACH_FILTER, &(int){0}, sizeof(int));
        set_min_ttl(g->listener, 0);
    }
    g->is_shut = false;
    if (repeat_over(&g->shuts))
        log_emit(LOG_INFO, "wire.descriptors_again", "new connections are taken in again");
    return true;
}

static bool look(void *self)
{
    gate_t *g = self;
    if (!g->is_shut || loop_now(g->loop) < g->look_us) return false;
    look_at(g, open_again(g) ? CLOCK_NEVER : loop_now(g->loop) + GATE_LOOK_US);
    return false;
}

static bool may_sleep(void *self)
{
    (void)self;
    return true;
}

/* ---- what libzmq tells ---- */

/* A connection that was begun before the gate was shut, and whose last packet came while it was, has the
 * listener's least time to live for itself: it would hear nobody, for good.  The number may have been
 * closed meanwhile, and be another connection's: that one has 0 anyway. */
static void on_event(gate_t *g, uint16_t event, int32_t value)
{
    if (event == ZMQ_EVENT_LISTENING) g->listener = value;
    else if (event == ZMQ_EVENT_ACCEPTED) set_min_ttl(value, 0);
    else if (value == EMFILE || value == ENFILE || value == ENOBUFS || value == ENOMEM) {
        if (!g->is_shut) {
            g->is_shut = true;
            if (g->listener >= 0) drop_new(g);
            descriptors_raise_limit();
            look_at(g, loop_now(g->loop) + GATE_LOOK_US);
            char scratch[REPEAT_TEXT];
            uint64_t times = repeat_note(&g->shuts, 0, loop_now(g->loop));
            if (times)
                log_emit(LOG_ERROR, "wire.no_descriptor",
                         "no descriptor for one more connection (%s, limit %llu): new ones wait, those that "
                         "are here "
                         "go on; raise the limit of open files (ulimit -n)%s",
                         strerror(value), (unsigned long long)g->low, repeat_text(times, scratch));
        }
    }
}

/* An event is two frames: number and value, and the endpoint.  False when there is none. */
static bool read_event(gate_t *g, uint16_t *ret_event, int32_t *ret_value)
{
    zmq_msg_t part;
    bool more = true;
    *ret_event = 0;
    *ret_value = 0;
    for (int frame = 0; more; frame++) {
        zmq_msg_init(&part);
        if (zmq_msg_recv(&part, g->handle, ZMQ_DONTWAIT) < 0) return false;
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
    gate_t *g = self;
    uint16_t event;
    int32_t value;
    for (int i = 0; i < EVENTS_MAX && read_event(g, &event, &value); i++) on_event(g, event, value);
}

/* ---- life ---- */

int gate_new(loop_t *loop, void *socket, int backlog, gate_t **ret_gate)
{
    static atomic_uint count;
    char tale[48];
    gate_t *g = calloc(1, sizeof *g);
    if (!g) return HEDDLE_ERR_NO_MEMORY;
    uint64_t limit = descriptors_limit(), reserve = (uint64_t)backlog + 1;
    *g = (gate_t){.loop = loop, .socket = socket, .listener = -1, .look_us = CLOCK_NEVER};
    g->low = limit > 2 * reserve ? limit - reserve : limit;
    snprintf(tale, sizeof tale, "inproc://heddle-gate-%u", atomic_fetch_add(&count, 1));
    g->monitor = socket_new(ZMQ_PAIR);
    void *handle = g->monitor;
    if (!handle || zmq_socket_monitor(socket, tale, TOLD) ||
        zmq_connect(handle, tale) || loop_add_socket(loop, handle, on_monitor, g))
        goto fail;
    g->handle = handle;
    if (loop_add_source(loop, -1, look, may_sleep, g)) goto fail;
    descriptors_set_limit(g->low);
    *ret_gate = g;
    return HEDDLE_OK;
fail:
    gate_destroy(&g);
    return HEDDLE_ERR_NO_MEMORY;
}

/* The monitor is stopped before its reader goes: the I/O thread waits for ever for a reader that is not
 * there. */
void gate_destroy(gate_t **gate)
{
    gate_t *g = gate ? *gate : NULL;
    if (!g) return;
    *gate = NULL;
    loop_remove_source(g->loop, g);
    if (g->handle) loop_remove_socket(g->loop, g->handle);
    if (g->listener >= 0) drop_new(g); /* or more would come than room is made for */
    if (g->handle) {
        /* libzmq's I/O thread waits for room in a queue that is full, and keeps meanwhile what stopping the
         * monitor needs. */
        uint16_t event;
        int32_t value;
        for (int i = 0; i < DRAIN_MAX && read_event(g, &event, &value); i++) {}
    }
    zmq_socket_monitor(g->socket, NULL, 0);
    socket_close(&g->monitor);
    free(g);
}
