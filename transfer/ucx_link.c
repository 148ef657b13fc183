/* SPDX-License-Identifier: Apache-2.0 */
/* The UCX carrier: endpoints and active messages.  See transfer/ucx.h for why frames are sent at once or not
 * at all. */
#include "transfer/ucx.h"

#include "core/digest.h"
#include "core/failpoint.h"

#include <stdlib.h>
#include <utlist.h>

#define MESSAGE_ID 1u
#define STAGING_BYTES ((size_t)EXCHANGE_DATA_SENDS * LIMIT_CHUNK_MAX_BYTES)

static sent_t outcome(ucs_status_t status) { return status == UCS_OK ? SENT : SENT_FAILED; }

/* UCX calls this inside its progress, where an endpoint must not be closed: the exchange ends it in the
 * next turn. */
static void on_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    (void)status;
    endpoint_t *e = arg;
    exchange_broken(e);
}

/* The plane over which a peer is reached, and its address there: the family that worked last, else one
 * within our own network, else any with a route. NULL: they have no network in common. */
static const plane_t *choose(const ucx_t *u, uint64_t token, const offers_t *offers,
                             const ucp_address_t **ret_address)
{
    const plane_t *best = NULL;
    int best_rank = -1;
    for (int f = 0; f < DEVICE_FAMILIES; f++) {
        const plane_t *plane = u->planes[f];
        if (!plane || !offers->of[f].worker) continue;
        int rank = (int)device_route(&plane->at, &offers->of[f].at);
        for (uint32_t i = 0; rank && i < UCX_WAYS; i++)
            if (u->ways[i].token == token && (int)u->ways[i].family == f) rank = DEVICE_ON_LINK + 1;
        if (rank <= best_rank) continue;
        best = plane;
        best_rank = rank;
        *ret_address = offers->of[f].worker;
    }
    return best;
}

/* The address comes from the control plane and is checked before UCX sees it. GONE: there is no way to
 * that peer. */
static int ucx_connect(transfer_t *t, endpoint_t *e, bytes_t address)
{
    ucx_t *u = ucx_of(t);
    offers_t offers;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = e},
    };
    if (!ucx_address_open(address, &offers)) return HEDDLE_ERR_GONE;
    const plane_t *plane = choose(u, e->token, &offers, &params.address);
    link_t *link = plane ? calloc(1, sizeof *link) : NULL;
    if (!link) return HEDDLE_ERR_GONE;
    if (ucp_ep_create(plane->out, &params, &link->endpoint) != UCS_OK) {
        free(link);
        return HEDDLE_ERR_GONE;
    }
    link->plane = plane;
    link->end = e;
    link->pin = near_pin(&u->board, e->line);
    if (!link->pin) e->reads_us = false;    /* nothing is lent to it */
    link->view = u->board.words ? near_view_open(&offers.near) : NULL;
    e->link = link;
    return HEDDLE_OK;
}

/* On the list of those that have NEAR or TAKEN to say, or off it. */
static void set_due(link_t *link, bool due)
{
    ucx_t *u = ucx_of(link->end->transfer);
    if (link->due == due) return;
    link->due = due;
    if (due) DL_APPEND2(u->due, link, due_prev, due_next);
    else DL_DELETE2(u->due, link, due_prev, due_next);
}

/* Nothing of what was lent is good from here on, and then it is ours again.  Where no word ever came over
 * this family, the next try takes the other. */
static void ucx_abandon(endpoint_t *e)
{
    link_t *link = e->link;
    bool is_four = link->plane->at.family == AF_INET;
    if (!e->remote_line)
        ucx_prefer(ucx_of(e->transfer), e->token, is_four ? DEVICE_INET6 : DEVICE_INET);
    set_due(link, false);
    link->lending.count = link->unsaid = 0;
    near_unpin(&ucx_of(e->transfer)->board, link->pin);
    link->pin = 0;
    for (uint32_t i = 0; i < EXCHANGE_DATA_SENDS; i++) {
        send_t *s = link->lent[i];
        link->lent[i] = NULL;
        if (s) exchange_sent(e->transfer, s, SENT_UNREAD);
    }
}

static void ucx_release(endpoint_t *e)
{
    link_t *link = e->link;
    near_view_close(&link->view);
    free(link->staging);
    free(link);
}

static void on_closed(void *request, ucs_status_t status, void *arg)
{
    (void)status;
    endpoint_t *e = arg;
    exchange_closed(e);
    ucp_request_free(request);
}

/* Closed by force: a graceful close would wait for a peer that may not answer. */
static void ucx_disconnect(endpoint_t *e)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = e,
    };
    ucs_status_ptr_t request = ucp_ep_close_nbx(((link_t *)e->link)->endpoint, &param);
    if (!UCS_PTR_IS_PTR(request)) exchange_closed(e);
}

/* The network takes all of it now (what the socket has no room for is copied by UCX), or nothing. So
 * nothing of ours is in use after the call, and UCX has no reason to ask the peer for the name of an
 * endpoint, which would make it connect back: it does that for every send that it has to keep. */
static ucs_status_t put(const link_t *link, const void *frame, size_t frame_bytes, const void *data,
                        size_t bytes)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t status =
        ucp_am_send_nbx(link->endpoint, MESSAGE_ID, frame, frame_bytes, data, bytes, &param);
    return UCS_PTR_STATUS(status);    /* a macro that reads it twice */
}

/* True when it was said, or never will be; where the network takes nothing now it stays due. */
static bool say(const link_t *link, const frame_t *f)
{
    uint8_t bytes[FRAME_SMALL_MAX];
    if (FAILPOINT("transfer.room")) return false;
    return put(link, bytes, frame_encode(f, bytes), NULL, 0) != UCS_ERR_NO_RESOURCE;
}

static bool say_lent(link_t *link)
{
    link->lending.kind = FRAME_LENT;
    link->lending.line = link->end->line;
    link->lending.lent.pin = link->pin;
    if (!say(link, &link->lending)) return false;
    link->lending.count = link->unsaid = 0;
    return true;
}

/* Says what is due; true when it said something. */
static bool flush(link_t *link)
{
    frame_t near = {.kind = FRAME_NEAR, .line = link->end->line, .count = link->view != NULL};
    frame_t taken = {.kind = FRAME_TAKEN, .line = link->end->line, .taken = {link->taken_due}};
    bool said = false;
    if (link->near_due && say(link, &near)) said = true, link->near_due = false;
    if (link->taken_due && say(link, &taken)) said = true, link->taken_due = 0;
    if (link->lending.count && say_lent(link)) said = true;
    set_due(link, link->near_due || link->taken_due || link->lending.count);
    return said;
}

bool ucx_flush(ucx_t *u)
{
    bool said = false;
    link_t *link, *next;
    DL_FOREACH_SAFE2(u->due, link, next, due_next) said |= flush(link);
    return said;
}

/* The receiver copies from where the bytes lie; TAKEN ends the send.  One frame is about one region. */
static bool lend(link_t *link, send_t *s)
{
    frame_t data, *f = &link->lending;
    uint32_t fd = (uint32_t)s->region->fd;
    bool is_full = f->count == LIMIT_ASK_RANGES || (f->count && f->lent.fd != fd);
    if (is_full && !say_lent(link)) return false;
    if (f->count == 0) f->lent.fd = fd, f->lent.file = near_file(s->region->fd);
    frame_decode(bytes_of(s->frame, s->frame_bytes), &data);
    f->lent.rows[f->count++] = (frame_loan_t){data.data.ask, data.data.offset, data.data.bytes, s->slot};
    link->lent[s->slot] = s;
    link->unsaid |= 1u << s->slot;
    set_due(link, true);
    return true;
}

/* Eager, or not at all. */
static bool send_at_once(transfer_t *t, endpoint_t *e, send_t *s)
{
    link_t *link = e->link;
    if (s->kind == SEND_DATA && e->reads_us) return lend(link, s);
    ucs_status_t status =
        put(link, s->frame, s->frame_bytes, s->payload, s->payload_bytes);
    if (status == UCS_ERR_NO_RESOURCE) return false;
    if (s->kind == SEND_HI && status == UCS_OK) {    /* before it, our line means nothing to them */
        link->near_due = link->view != NULL;
        flush(link);
    }
    exchange_sent(t, s, outcome(status));
    return true;
}

/* The end of a rendezvous, in UCX's progress. */
static void on_sent(void *request, ucs_status_t status, void *arg)
{
    send_t *s = arg;
    exchange_sent(s->end->transfer, s, outcome(status));
    ucp_request_free(request);
}

/* False when there is no memory for it. */
static bool stage(transfer_t *t, link_t *link, send_t *s)
{
    if (!link->staging) link->staging = malloc(STAGING_BYTES);
    if (!link->staging) return false;
    uint8_t *copy = link->staging + (size_t)s->slot * LIMIT_CHUNK_MAX_BYTES;
    memcpy(copy, s->payload, s->payload_bytes);
    s->payload = copy;
    exchange_copied(t, s);
    return true;
}

/* Rendezvous, from a copy; UCX keeps the frame too until it has ended. */
static bool send_and_wait(transfer_t *t, endpoint_t *e, send_t *s)
{
    link_t *link = e->link;
    if (s->kind == SEND_DATA && !stage(t, link, s)) {
        exchange_sent(t, s, SENT_FAILED);
        return true;
    }
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = s->kind == SEND_DATA ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_sent,
        .user_data = s,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request =
        ucp_am_send_nbx(link->endpoint, MESSAGE_ID, s->frame, s->frame_bytes, s->payload, s->payload_bytes,
                        &param);
    if (!UCS_PTR_IS_PTR(request)) exchange_sent(t, s, outcome(UCS_PTR_STATUS(request)));
    return true;
}

/* The end of a receive that UCX wrote by itself. */
static void on_received(void *request, ucs_status_t status, size_t bytes, void *arg)
{
    (void)bytes;
    receive_t *r = arg;
    exchange_arrived(&r->ucx->base, r->ask, status == UCS_OK);
    ucp_request_free(request);
}

/* Rendezvous: UCX writes the data to their place, now or later. */
static ucs_status_t receive_into(const plane_t *plane, uint64_t ask, void *descriptor, const sink_t *sink)
{
    ucx_t *u = plane->ucx;
    receive_t *r = &u->receives[ask % (1u << ASK_INDEX_BITS)];
    *r = (receive_t){u, ask};
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv_am = on_received,
        .user_data = r,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(plane->in, descriptor, sink->base, sink->bytes, &param);
    if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
    exchange_arrived(&u->base, ask, UCS_PTR_STATUS(request) == UCS_OK);
    return UCS_OK;
}

/* One more: a core does not saturate the memory, two almost do. */
static crew_t *crew_of(ucx_t *u)
{
    if (!u->has_crew && crew_cores() > 1) u->crew = crew_new(1);
    u->has_crew = true;
    return u->crew;
}

/* Makes place for what is to be copied; false where nobody waits for it any more. */
static bool place(ucx_t *u, const frame_t *f, const frame_loan_t *row, near_copy_t *ret_copy)
{
    frame_t data = {.kind = FRAME_DATA, .line = f->line, .data = {row->ask, row->offset, row->bytes}};
    const sink_t *sink = exchange_place(&u->base, &data, row->bytes, BY_COPY);
    if (!sink) return false;
    *ret_copy = (near_copy_t){
        .loan = {.file = f->lent.file, .fd = f->lent.fd, .pin = f->lent.pin, .line = f->line,
                 .offset = row->offset, .bytes = row->bytes},
        .into = sink->base, .leaves = sink->leaves, .result = NEAR_UNREADABLE};
    return true;
}

static void on_lent(ucx_t *u, const frame_t *f)
{
    endpoint_t *e = exchange_of_line(&u->base, f->line);
    link_t *link = e ? e->link : NULL;
    near_copy_t copies[LIMIT_ASK_RANGES];
    uint64_t asks[LIMIT_ASK_RANGES];
    uint32_t count = 0;
    bool is_unreadable = false;
    if (!link) return;
    for (const frame_loan_t *row = f->lent.rows; row < f->lent.rows + f->count; row++) {
        if (row->slot >= EXCHANGE_DATA_SENDS) continue;
        link->taken_due |= 1u << row->slot;
        if (place(u, f, row, &copies[count])) asks[count++] = row->ask;
    }
    if (link->view) near_copy(link->view, copies, count, count > 1 ? crew_of(u) : NULL);
    for (uint32_t i = 0; i < count; i++) {
        bool is_read = copies[i].result != NEAR_UNREADABLE;
        if (is_read) exchange_arrived(&u->base, asks[i], copies[i].result == NEAR_COPIED);
        else exchange_again(&u->base, asks[i]);
        is_unreadable = is_unreadable || !is_read;
    }
    if (is_unreadable) {
        /* Not to be tried again: what comes next is to travel. */
        near_view_close(&link->view);
        link->near_due = true;
    }
    set_due(link, true);
}

/* What they cannot have read of yet, they cannot have taken. */
static void on_taken(ucx_t *u, const frame_t *f)
{
    endpoint_t *e = exchange_of_line(&u->base, f->line);
    link_t *link = e ? e->link : NULL;
    uint32_t slots = link ? f->taken.slots & ~link->unsaid : 0;
    for (uint32_t i = 0; i < EXCHANGE_DATA_SENDS; i++) {
        send_t *s = slots >> i & 1 ? link->lent[i] : NULL;
        if (!s) continue;
        link->lent[i] = NULL;
        exchange_sent(&u->base, s, SENT);
    }
}

/* Frames that the exchange does not know of. */
static bool on_near(ucx_t *u, const frame_t *f)
{
    endpoint_t *e = exchange_of_line(&u->base, f->line);
    const link_t *link = e ? e->link : NULL;    /* its NEAR may come before we have connected back */
    if (f->kind == FRAME_NEAR && e) e->reads_us = f->count > 0 && (!link || link->pin);
    if (f->kind == FRAME_LENT) on_lent(u, f);
    if (f->kind == FRAME_TAKEN) on_taken(u, f);
    return f->kind == FRAME_NEAR || f->kind == FRAME_LENT || f->kind == FRAME_TAKEN;
}

/* Every message is a frame, checked before anything of it is used: it comes from the network. */
static ucs_status_t on_message(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param)
{
    const plane_t *plane = arg;
    ucx_t *u = plane->ucx;
    frame_t f;
    if (FAILPOINT("transfer.truncate")) header_bytes--;
    if (!frame_decode(bytes_of(header, header_bytes), &f) || (bytes > 0 && f.kind != FRAME_DATA)) {
        u->base.counters.malformed++;
        return UCS_OK;
    }
    if (on_near(u, &f)) return UCS_OK;
    if (f.kind == FRAME_HI && !f.hi.answer)
        ucx_prefer(u, f.hi.token, plane->at.family == AF_INET ? DEVICE_INET : DEVICE_INET6);
    if (f.kind != FRAME_DATA) {
        exchange_frame(&u->base, &f);
        return UCS_OK;
    }
    placing_t how = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ? BY_ITSELF : BY_COPY;
    const sink_t *sink = exchange_place(&u->base, &f, bytes, how);
    if (!sink) return UCS_OK; /* UCX ends a rendezvous without a receive at the sender too */
    if (how == BY_ITSELF) return receive_into(plane, f.data.ask, data, sink);
    if (sink->leaves) digest_copy(sink->base, data, bytes, sink->leaves);
    else memcpy(sink->base, data, bytes);
    exchange_arrived(&u->base, f.data.ask, true);
    return UCS_OK;
}

/* The handler's argument is the plane, so that a message says over which family it came. */
ucs_status_t ucx_listen(plane_t *plane)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = plane,
    };
    return ucp_worker_set_am_recv_handler(plane->in, &param);
}

/* Two workers where no connection carries both directions (transfer/ucx.h). */
static unsigned progress(const plane_t *plane)
{
    if (!plane) return 0;
    unsigned moved = ucp_worker_progress(plane->in);
    return plane->out == plane->in ? moved : moved + ucp_worker_progress(plane->out);
}

static bool ucx_progress(transfer_t *t)
{
    ucx_t *u = ucx_of(t);
    unsigned moved = 0;
    for (int f = 0; f < DEVICE_FAMILIES; f++) moved += progress(u->planes[f]);
    for (const plane_t *plane = u->retired; plane; plane = plane->next) moved += progress(plane);
    if (u->retired) ucx_end_retired(u);
    return ucx_flush(u) || moved != 0;
}

static bytes_t ucx_address(transfer_t *t) { return bytes_of(ucx_of(t)->address, ucx_of(t)->address_bytes); }

/* For a BYE that the network does not take yet; then the link is cut without. */
#define LINGER_US 1000000u
#define CARRIER(linger, send)                                                                                \
    {linger, ucx_connect, ucx_disconnect, send, ucx_progress, ucx_address, ucx_release, ucx_abandon}
const carrier_ops_t ucx_eager_carrier = CARRIER(LINGER_US, send_at_once);
const carrier_ops_t ucx_rendezvous_carrier = CARRIER(CLOCK_NEVER, send_and_wait);
