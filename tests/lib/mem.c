/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/mem.h"

#include "core/digest.h"
#include "core/errors.h"
#include "transfer/exchange_state.h"

#include <stdlib.h>
#include <utlist.h>

/* What one connection may have on a link that has a rate, as a socket buffer: without a bound the first of
 * many peers would fill the link for a long time. */
#define SOCKET_BYTES 262144u

typedef struct mem mem_t;

/* In the mailbox of its receiver. */
typedef struct message {
    enum { MAIL_FRAME, MAIL_BODY, MAIL_BROKEN } kind;
    uint64_t head_ns, tail_ns; /* when its first and its last byte have left the uplink, and travelled */
    bool is_in;                /* the downlink has a place for it: at_us counts */
    uint64_t at_us;            /* not before */
    mem_t *from;
    send_t *send; /* FRAME, BODY */
    bool corrupt;
    uint32_t corrupt_at;
    const sink_t *sink; /* BODY: the open receive of a rendezvous */
    uint64_t ask;
    uint64_t line; /* BROKEN: the receiver's own line */
    struct message *prev, *next;
    uint8_t body[]; /* the sender's region may be written again once it is sent */
} message_t;

struct mem {
    transfer_t base;
    uint32_t id;
    uint8_t address[4];
    bool rendezvous, stopped, killed, fails_receive;
    int refuse_err;
    uint32_t drop_count, corrupt_nth, corrupt_at;
    mem_link_t link;
    uint64_t up_free_ns, down_free_ns; /* each way of the link is busy until then */
    uint64_t delay_until_us, hold_until_us, cut_until_us, last_head_ns;
    message_t *mail;
    mem_t *prev, *next;
};

static mem_t *all; /* the process's transfers; one thread */
static uint32_t last_id;

static mem_t *mem_of(transfer_t *t) { return (mem_t *)t; }

/* Links are ids and not pointers: the other end may be closed at any time. */
static mem_t *find(uint32_t id)
{
    mem_t *m;
    DL_SEARCH_SCALAR(all, m, id, id);
    return m;
}

/* NULL when the other end was closed. */
static mem_t *other_end(const endpoint_t *e) { return find((uint32_t)(uintptr_t)e->link); }

/* Each message is allocated when it is sent: this is a test double, and the order of mail is what counts.
 * False: no memory. */
static bool post(mem_t *to, message_t message)
{
    size_t bytes = message.send ? message.send->body_bytes : 0;
    message_t *m = malloc(sizeof *m + bytes);
    if (!m) return false;
    *m = message;
    if (bytes) memcpy(m->body, message.send->body, bytes);
    DL_APPEND(to->mail, m);
    return true;
}

/* Without memory the message is lost, as on a network; deadlines are for that. */
static void post_broken(mem_t *to, const endpoint_t *e)
{
    (void)post(to, (message_t){.kind = MAIL_BROKEN, .is_in = true, .line = e->line});
}

static void unpost(mem_t *of, message_t *m)
{
    DL_DELETE(of->mail, m);
    free(m);
}

/* Links.  The downlink begins with a message when its first byte comes, and not after its last: equal links
 * one behind the other take the time of one. */

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t bytes_of_send(const send_t *s) { return s ? s->frame_bytes + s->body_bytes : 0; }

static uint64_t takes_ns(const mem_link_t *link, const message_t *m)
{
    return link->bytes_per_s ? bytes_of_send(m->send) * 1000000000u / link->bytes_per_s : 0;
}

/* The uplink sends one message after another.  Ends without limits need no common clock, as ever. */
static void go_up(mem_t *from, const mem_t *to, message_t *m)
{
    uint64_t takes = takes_ns(&from->link, m), start = 0;
    if (from->link.bytes_per_s || from->link.latency_us || to->link.bytes_per_s)
        start = later(from->base.now_us * 1000, from->up_free_ns);
    from->up_free_ns = start + takes;
    from->last_head_ns = later(from->last_head_ns, start + from->link.latency_us * 1000);
    from->last_head_ns = later(from->last_head_ns, later(from->delay_until_us, from->cut_until_us) * 1000);
    m->head_ns = from->last_head_ns;
    m->tail_ns = m->head_ns + takes;
}

/* When the downlink has all of a message that is the next to come. */
static uint64_t down_at_ns(const mem_t *to, const message_t *m)
{
    return later(later(m->head_ns, to->down_free_ns) + takes_ns(&to->link, m), m->tail_ns);
}

/* The downlink receives in the order of the first bytes.  Those that have come by now come before all that is
 * sent later, so that the result does not depend on when this is called. */
static void come_down(mem_t *to)
{
    for (;;) {
        message_t *m, *next = NULL;
        DL_FOREACH(to->mail, m)
        if (!m->is_in && m->head_ns <= to->base.now_us * 1000 && (!next || m->head_ns < next->head_ns))
            next = m;
        if (!next) return;
        next->is_in = true;
        next->at_us = (down_at_ns(to, next) + 999) / 1000;
        to->down_free_ns = later(next->head_ns, to->down_free_ns) + takes_ns(&to->link, next);
    }
}

/* As a socket whose buffer is full.  It has room again when a message is delivered. */
static bool is_full(const mem_t *from, const mem_t *to, const endpoint_t *e)
{
    uint64_t bytes = 0;
    if (!from->link.bytes_per_s) return false;
    for (const message_t *m = to->mail; m; m = m->next)
        if (m->send && m->send->end == e) bytes += bytes_of_send(m->send);
    return bytes >= SOCKET_BYTES;
}

/* The carrier. */

static int mem_connect(transfer_t *t, endpoint_t *e, bytes_t address)
{
    (void)t;
    mem_t *to = address.bytes == 4 ? find(le32_get(address.data)) : NULL;
    if (!to || to->killed) return HEDDLE_ERR_GONE;
    /* A link is the id of the other end, which may be gone by the time it is looked up. */
    e->link = (void *)(uintptr_t)to->id;
    return HEDDLE_OK;
}

/* Receives that are open for rendezvous data of `q` end now: nothing is written after a disconnect. */
static void cancel_receives(mem_t *to, const endpoint_t *q)
{
    message_t *m, *next;
    DL_FOREACH_SAFE(to->mail, m, next)
    {
        if (m->kind != MAIL_BODY || m->send->end != q) continue;
        exchange_arrived(&to->base, m->ask, false);
        exchange_sent(&m->from->base, m->send, false);
        unpost(to, m);
    }
}

/* Takes back what this end sent and the other end has not received, and breaks the other end's link. A
 * receive that is open for these bytes ends, so that nothing is written after a disconnect. */
static void mem_disconnect(endpoint_t *e)
{
    transfer_t *t = e->transfer;
    mem_t *to = other_end(e);
    if (to) {
        /* Takes back what `p` sent and `to` did not receive yet. */
        message_t *m, *next;
        DL_FOREACH_SAFE(to->mail, m, next)
        {
            if (!m->send || m->send->end != e) continue;
            if (m->kind == MAIL_BODY) exchange_arrived(&to->base, m->ask, false);
            exchange_sent(t, m->send, false);
            unpost(to, m);
        }
        for (const conn_t *c = to->base.x->conns; c; c = c->next) {
            const endpoint_t *q = &c->end;
            if (other_end(q) != mem_of(t) || !(q->remote_line == e->line || q->line == e->remote_line))
                continue;
            cancel_receives(mem_of(t), q);
            post_broken(to, q);
        }
    }
    exchange_closed(e);
}

/* The fault knobs act here, on the way out, so that the exchange itself runs as with a real carrier. */
static bool mem_send(transfer_t *t, endpoint_t *e, send_t *s)
{
    mem_t *m = mem_of(t), *to = other_end(e);
    bool data = s->kind == SEND_DATA;
    if (!to || to->killed) {
        exchange_broken(e); /* within the send, as UCX does it */
        exchange_sent(t, s, false);
        return true;
    }
    if (is_full(m, to, e)) return false;
    if (data && m->drop_count > 0) {
        m->drop_count--;
        exchange_sent(t, s, true);
        return true;
    }
    bool corrupt = data && m->corrupt_nth > 0 && --m->corrupt_nth == 0;
    message_t message = {.kind = MAIL_FRAME,
                         .from = m,
                         .send = s,
                         .corrupt = corrupt,
                         .corrupt_at = m->corrupt_at};
    go_up(m, to, &message);
    return post(to, message);
}

/* The bytes arrive; corruption happens on the way, before they are digested. */
static void land(mem_t *to, message_t *m)
{
    const send_t *s = m->send;
    uint8_t *into = m->sink->base;
    memcpy(into, m->body, s->body_bytes);
    if (m->corrupt) into[m->corrupt_at % s->body_bytes] ^= 0xff;
    /* What a rendezvous places is not digested, as in the UCX backend. */
    if (m->kind != MAIL_BODY && m->sink->leaves) digest_leaves(into, s->body_bytes, m->sink->leaves);
    exchange_arrived(&to->base, m->ask, true);
}

/* The peer gets the refusals at once, in place of what its frame would have set in motion here. */
static void refuse_all(mem_t *at, mem_t *asker, const frame_t *ask)
{
    frame_t f = {.kind = FRAME_REFUSED, .count = ask->count};
    const conn_t *c;
    DL_SEARCH_SCALAR(at->base.x->conns, c, end.remote_line, ask->line);
    if (!c) return;
    f.line = c->end.line;
    for (uint32_t i = 0; i < f.count; i++)
        f.refused.rows[i] = (frame_refusal_t){ask->ask.ranges[i].ask, at->refuse_err};
    exchange_frame(&asker->base, &f);
}

/* False when the body comes in a second step: a rendezvous first opens a receive, and its bytes land
 * later. */
static bool deliver_frame(mem_t *to, message_t *m)
{
    frame_t f;
    if (!frame_decode(bytes_of(m->send->frame, m->send->frame_bytes), &f)) to->base.counters.malformed++;
    else if (f.kind == FRAME_DATA) {
        /* False when the body comes in a second step. */
        placing_t how = m->from->rendezvous ? BY_ITSELF : BY_COPY;
        m->sink = exchange_place(&to->base, &f, m->send->body_bytes, how);
        m->ask = f.data.ask;
        if (!m->sink) return true;
        if (how == BY_ITSELF && m->from->fails_receive) {
            m->from->fails_receive = false;
            exchange_arrived(&to->base, m->ask, false);
            return true;
        }
        if (how == BY_ITSELF) {
            m->kind = MAIL_BODY;
            if (m->from->hold_until_us > m->at_us) m->at_us = m->from->hold_until_us;
            DL_DELETE(to->mail, m);
            DL_APPEND(to->mail, m);
            return false;
        }
        land(to, m);
        return true;
    } else if (f.kind == FRAME_ASK && to->refuse_err) {
        refuse_all(to, m->from, &f);
    } else {
        exchange_frame(&to->base, &f);
    }
    return true;
}

static message_t *first_due(mem_t *to)
{
    message_t *m;
    come_down(to);
    for (m = to->mail; m && !(m->is_in && m->at_us <= to->base.now_us); m = m->next) continue;
    return m;
}

/* One message a call, so that tests can stop between any two. */
static bool mem_progress(transfer_t *t)
{
    mem_t *to = mem_of(t);
    message_t *m = first_due(to);
    if (!m) return false;
    bool done = true;
    switch (m->kind) {
    case MAIL_BROKEN: { /* The connection may have ended since: then there is nothing to break. */
        conn_t *c;
        DL_SEARCH_SCALAR(to->base.x->conns, c, end.line, m->line);
        if (c) exchange_broken(&c->end);
        break;
    }
    case MAIL_FRAME: done = deliver_frame(to, m); break;
    case MAIL_BODY: land(to, m); break;
    }
    if (!done) return true;
    if (m->send) exchange_sent(&m->from->base, m->send, true);
    unpost(to, m);
    return true;
}

static bytes_t mem_address(transfer_t *t) { return bytes_of(mem_of(t)->address, sizeof mem_of(t)->address); }

static const carrier_ops_t CARRIER = {.connect = mem_connect,
                                      .disconnect = mem_disconnect,
                                      .send = mem_send,
                                      .progress = mem_progress,
                                      .address = mem_address};

/* The table. */

/* The peers see a closed transfer as one that died: its links break. */
static void mem_close(transfer_t **t)
{
    mem_t *m = t && *t ? mem_of(*t) : NULL;
    if (!m) return;
    *t = NULL;
    mem_kill(&m->base);
    exchange_shut(&m->base);
    while (m->mail) {
        if (m->mail->send) exchange_sent(&m->mail->from->base, m->mail->send, false);
        unpost(m, m->mail);
    }
    DL_DELETE(all, m);
    exchange_fini(&m->base);
    free(m);
}

static int mem_open(const transfer_opts_t *opts, transfer_t **ret, heddle_error_t *error)
{
    mem_t *m = calloc(1, sizeof *m);
    if (!m) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a transfer");
    m->id = ++last_id;
    m->rendezvous = opts->mode == TR_MODE_RENDEZVOUS;
    le32_put(m->address, m->id);
    DL_APPEND(all, m);
    if (exchange_init(&m->base, &CARRIER, opts, (uint64_t)m->id << 32 | 1) != HEDDLE_OK) {
        transfer_t *half = &m->base;
        mem_close(&half);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a transfer");
    }
    *ret = &m->base;
    return HEDDLE_OK;
}

static const char *mem_version(void) { return ""; }

static void mem_where(transfer_t *t, tr_where_t *ret_where)
{
    (void)t;
    *ret_where = (tr_where_t){.addresses = ""};
}

static void mem_explain(transfer_t *t, bytes_t address, char *ret_text, size_t size)
{
    (void)t;
    (void)address;
    if (size) ret_text[0] = 0;
}

static bool mem_moved(transfer_t *t)
{
    (void)t;
    return false;
}

static int mem_reopen(transfer_t *t, heddle_error_t *error)
{
    (void)t;
    (void)error;
    return HEDDLE_OK;
}

static void mem_devices(transfer_t *t, char *ret_list, size_t size)
{
    (void)t;
    error_text(ret_list, size, "memory");
}

static int mem_events(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap)
{
    return mem_of(t)->stopped || mem_of(t)->killed ? 0 : exchange_events(t, now_us, out, cap);
}

/* Mail that is due later is a deadline, so that a test can move its clock there. */
static uint64_t mem_deadline(transfer_t *t)
{
    const mem_t *m = mem_of(t);
    if (m->stopped || m->killed) return CLOCK_NEVER;
    uint64_t due = exchange_deadline(t);
    for (const message_t *mail = m->mail; mail; mail = mail->next)
        due = clock_earlier(due, mail->is_in ? mail->at_us : (down_at_ns(m, mail) + 999) / 1000);
    return due > t->now_us ? due : t->now_us;
}

static bool mem_arm(transfer_t *t) { return !exchange_pending(t) && !first_due(mem_of(t)); }

static int mem_fd(transfer_t *t)
{
    (void)t;
    return -1;
}

const transfer_ops_t transfer_mem_ops = {
    .name = "mem",
    .open = mem_open,
    .close = mem_close,
    .version = mem_version,
    .devices = mem_devices,
    .where = mem_where,
    .explain = mem_explain,
    .moved = mem_moved,
    .reopen = mem_reopen,
    .address = exchange_address,
    .set_token = exchange_set_token,
    .map = exchange_map,
    .unmap = exchange_unmap,
    .expect = exchange_expect,
    .share = exchange_share,
    .extend = exchange_extend,
    .unshare = exchange_unshare,
    .greet = exchange_greet,
    .ask = exchange_ask,
    .drop_ask = exchange_drop_ask,
    .drop_peer = exchange_drop_peer,
    .set_rate = exchange_set_rate,
    .events = mem_events,
    .deadline = mem_deadline,
    .arm = mem_arm,
    .fd = mem_fd,
    .counters = exchange_counters,
    .idle = exchange_idle,
};

/* Knobs. */

/* What is in flight from the killed end is lost; its peers get a broken link, each in its own mail. */
void mem_kill(transfer_t *t)
{
    mem_t *m, *killed = mem_of(t);
    if (killed->killed) return;
    killed->killed = true;
    DL_FOREACH(all, m)
    {
        if (m == killed) continue;
        message_t *mail, *next;
        DL_FOREACH_SAFE(m->mail, mail, next)
        {
            if (mail->from != killed) continue;
            if (mail->kind == MAIL_BODY) exchange_arrived(&m->base, mail->ask, false);
            exchange_sent(t, mail->send, false);
            unpost(m, mail);
        }
        for (const conn_t *c = m->base.x->conns; c; c = c->next)
            if (other_end(&c->end) == killed) post_broken(m, &c->end);
    }
}

void mem_stop(transfer_t *t, bool stopped) { mem_of(t)->stopped = stopped; }
void mem_drop_data(transfer_t *t, uint32_t count) { mem_of(t)->drop_count = count; }

void mem_corrupt_data(transfer_t *t, uint32_t nth, uint32_t byte)
{
    mem_of(t)->corrupt_nth = nth;
    mem_of(t)->corrupt_at = byte;
}

void mem_fail_receive(transfer_t *t) { mem_of(t)->fails_receive = true; }
void mem_set_link(transfer_t *t, mem_link_t link) { mem_of(t)->link = link; }
void mem_delay(transfer_t *t, uint64_t until_us) { mem_of(t)->delay_until_us = until_us; }
void mem_cut(transfer_t *t, uint64_t until_us)
{
    mem_t *m = mem_of(t);
    m->cut_until_us = until_us;
    m->down_free_ns = later(m->down_free_ns, until_us * 1000);
}

void mem_hold(transfer_t *t, uint64_t until_us) { mem_of(t)->hold_until_us = until_us; }

void mem_refuse(transfer_t *t, int err) { mem_of(t)->refuse_err = err; }
