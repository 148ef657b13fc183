/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints and active messages. */
#include "transfer/ucx.h"

#include "core/failpoint.h"

#include <stdlib.h>

#define MESSAGE_ID 1u
#define STAGING_BYTES ((size_t)EXCHANGE_DATA_SENDS * LIMIT_CHUNK_MAX_BYTES)

static void on_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    (void)status;
    peer_t *p = arg;
    exchange_broken(p->transfer, p);
}

static int ucx_connect(transfer_t *t, peer_t *p, bytes_t address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = ucx_address_open(address),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = on_error, .arg = p},
    };
    link_t *link = params.address ? calloc(1, sizeof *link) : NULL;
    if (!link) return HEDDLE_ERR_GONE;
    if (ucp_ep_create(ucx_of(t)->out, &params, &link->endpoint) != UCS_OK) {
        free(link);
        return HEDDLE_ERR_GONE;
    }
    p->link = link;
    return HEDDLE_OK;
}

static void ucx_release(peer_t *p)
{
    link_t *link = p->link;
    free(link->staging);
    free(link);
}

static void on_closed(void *request, ucs_status_t status, void *arg)
{
    (void)status;
    peer_t *p = arg;
    exchange_closed(p->transfer, p);
    ucp_request_free(request);
}

static void ucx_disconnect(transfer_t *t, peer_t *p)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = p,
    };
    ucs_status_ptr_t request = ucp_ep_close_nbx(((link_t *)p->link)->endpoint, &param);
    if (!UCS_PTR_IS_PTR(request)) exchange_closed(t, p);
}

/* Eager: the network takes all of it now (what the socket has no room for is copied by UCX), or nothing. So
 * nothing of ours is in use after the call, and UCX has no reason to ask the peer for the name of an
 * endpoint, which would make it connect back: it does that for every send that it has to keep. */
static bool send_at_once(transfer_t *t, peer_t *p, send_t *s)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    const link_t *link = p->link;
    ucs_status_ptr_t status =
        ucp_am_send_nbx(link->endpoint, MESSAGE_ID, s->frame, s->frame_bytes, s->data ? s->payload : NULL,
                        s->data ? s->payload_bytes : 0, &param);
    if (UCS_PTR_STATUS(status) == UCS_ERR_NO_RESOURCE) return false;
    exchange_sent(t, s, UCS_PTR_STATUS(status) == UCS_OK);
    return true;
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    send_t *s = arg;
    exchange_sent(s->peer->transfer, s, status == UCS_OK);
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
static bool send_and_wait(transfer_t *t, peer_t *p, send_t *s)
{
    link_t *link = p->link;
    if (s->data && !stage(t, link, s)) {
        exchange_sent(t, s, false);
        return true;
    }
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = s->data ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_sent,
        .user_data = s,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request =
        ucp_am_send_nbx(link->endpoint, MESSAGE_ID, s->frame, s->frame_bytes, s->data ? s->payload : NULL,
                        s->data ? s->payload_bytes : 0, &param);
    if (!UCS_PTR_IS_PTR(request)) exchange_sent(t, s, UCS_PTR_STATUS(request) == UCS_OK);
    return true;
}

static void on_received(void *request, ucs_status_t status, size_t bytes, void *arg)
{
    (void)bytes;
    receive_t *r = arg;
    exchange_arrived(&r->ucx->base, r->ask, status == UCS_OK);
    ucp_request_free(request);
}

/* Rendezvous: the data move into their place now, or later. */
static ucs_status_t receive_into(ucx_t *u, uint64_t ask, void *descriptor, void *into, size_t bytes)
{
    receive_t *r = &u->receives[ask % (1u << ASK_INDEX_BITS)];
    *r = (receive_t){u, ask};
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv_am = on_received,
        .user_data = r,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(u->in, descriptor, into, bytes, &param);
    if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
    exchange_arrived(&u->base, ask, UCS_PTR_STATUS(request) == UCS_OK);
    return UCS_OK;
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param)
{
    ucx_t *u = arg;
    frame_t f;
    if (FAILPOINT("transfer.truncate")) header_bytes--;
    if (!frame_decode(bytes_of(header, header_bytes), &f) || (bytes > 0 && f.kind != FRAME_DATA)) {
        u->base.counters.malformed++;
        return UCS_OK;
    }
    if (f.kind != FRAME_DATA) {
        exchange_frame(&u->base, &f);
        return UCS_OK;
    }
    void *into = exchange_place(&u->base, &f, bytes);
    if (!into) return UCS_OK; /* a rendezvous that nobody receives ends at the sender too */
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) return receive_into(u, f.data.ask, data, into, bytes);
    memcpy(into, data, bytes);
    exchange_arrived(&u->base, f.data.ask, true);
    return UCS_OK;
}

ucs_status_t ucx_listen(ucx_t *u)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = on_message,
        .arg = u,
    };
    return ucp_worker_set_am_recv_handler(u->in, &param);
}

static bool ucx_progress(transfer_t *t)
{
    ucx_t *u = ucx_of(t);
    unsigned moved = ucp_worker_progress(u->in);
    if (u->out != u->in) moved += ucp_worker_progress(u->out);
    return moved != 0;
}

static bytes_t ucx_address(transfer_t *t) { return bytes_of(ucx_of(t)->address, ucx_of(t)->address_bytes); }

/* For a BYE that the network does not take yet; then the link is cut without. */
#define LINGER_US 1000000u
#define CARRIER(linger, send)                                                                                \
    {linger, ucx_connect, ucx_disconnect, send, ucx_progress, ucx_address, ucx_release}
const carrier_ops_t ucx_eager_carrier = CARRIER(LINGER_US, send_at_once);
const carrier_ops_t ucx_rendezvous_carrier = CARRIER(CLOCK_NEVER, send_and_wait);
