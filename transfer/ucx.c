/* SPDX-License-Identifier: Apache-2.0 */
/* The UCX backend: links and their messages (the carrier), planes, opening, closing, and its table, the one
 * symbol that the plugin exports.  See transfer/ucx.h for why frames are sent at once or not at all. */
#include "transfer/ucx.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/failpoint.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utlist.h>

#define CLOSE_WAIT_MS 2000u
#define CONNECT_US 300000u /* what connecting may take while we close */

/* Kept by a context for the workers that it makes later.  Not through the environment: a worker is made
 * anew while the application runs, and setenv frees what its threads read there.  Those that UCX reads when
 * it is loaded: transfer/load.c. */
typedef struct {
    const char *name, *value;
} setting_t;
static const setting_t SETTINGS[] = {
    /* In PEER error mode the only transport between processes of a machine without RDMA, and the only one
     * of 1.13 that notices a killed peer at once. */
    {"TLS", "tcp,self"},
    /* A whole chunk and its header in one segment (256 KiB + header): else UCX assembles fragments with one
     * more copy on arrival, and cannot take a chunk at once when it is sent. */
    {"TCP_RX_SEG_SIZE", "512K"},
    {"TCP_TX_SEG_SIZE", "512K"},
    /* The worker that only receives has no endpoints, and UCX would leave its socket to a thread of its own:
     * two switches for each message. */
    {"ADAPTIVE_PROGRESS", "n"},
    /* Connecting must not block the loop. */
    {"TCP_CONN_NB", "y"},
    /* The protocols of 1.13: those that 1.18 and later take by default choose a way by what they think an
     * interface carries, and from 1.20 on send no frame at once on a slow one, however small. */
    {"PROTO_ENABLE", "n"},
    /* A pulled cable is noticed after 5 s. */
    {"TCP_KEEPIDLE", "2s"},
    {"TCP_KEEPINTVL", "1s"},
    {"TCP_KEEPCNT", "3"},
};
#define SETTING_COUNT (sizeof SETTINGS / sizeof *SETTINGS)

static int fail_ucx(const char *what, ucs_status_t status, const char *device, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_INTERNAL, "UCX could not %s on network interface %s: %s", what, device,
               ucs_status_string(status));
    error_hint(error, "is the interface up, with an IP address?  UCX_LOG_LEVEL=info shows what UCX says; "
                      "unset UCX_* variables that you do not need");
    if (error) error->retriable = status == UCS_ERR_NO_DEVICE;
    return HEDDLE_ERR_INTERNAL;
}

/* ---- links and messages ---- */

#define MESSAGE_ID 1u
#define STAGING_BYTES ((size_t)EXCHANGE_DATA_SENDS * LIMIT_CHUNK_MAX_BYTES)

/* UCX calls this inside its progress, where an endpoint must not be closed: the exchange ends it in the
 * next turn. */
static void on_error(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    (void)status;
    endpoint_t *e = arg;
    exchange_broken(e);
}

/* Remembers the address family over which a peer is reached; the oldest entry makes room. */
static void prefer(ucx_t *u, uint64_t token, device_family_t family)
{
    uint32_t at = 0;
    while (at < UCX_WAYS && u->ways[at].token != token) at++;
    if (at == UCX_WAYS) at = u->way_next++ % UCX_WAYS;
    u->ways[at] = (way_t){token, family};
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
    e->link = link;
    /* Until something comes from it, the next try takes the other family. */
    if (!e->remote_line) prefer(u, e->token, plane->at.family == AF_INET ? DEVICE_INET6 : DEVICE_INET);
    return HEDDLE_OK;
}

static void ucx_release(endpoint_t *e)
{
    link_t *link = e->link;
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
static bool send_at_once(transfer_t *t, endpoint_t *e, send_t *s)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    if (FAILPOINT("transfer.room")) return false;
    const link_t *link = e->link;
    ucs_status_ptr_t sent =
        ucp_am_send_nbx(link->endpoint, MESSAGE_ID, s->frame, s->frame_bytes, s->body, s->body_bytes, &param);
    ucs_status_t status = UCS_PTR_STATUS(sent); /* a macro that reads it twice */
    if (status != UCS_ERR_NO_RESOURCE) exchange_sent(t, s, status == UCS_OK);
    return status != UCS_ERR_NO_RESOURCE;
}

/* The end of a rendezvous, in UCX's progress. */
static void on_sent(void *request, ucs_status_t status, void *arg)
{
    send_t *s = arg;
    exchange_sent(s->end->transfer, s, status == UCS_OK);
    ucp_request_free(request);
}

/* False when there is no memory for it. */
static bool stage(link_t *link, send_t *s)
{
    if (!link->staging) link->staging = malloc(STAGING_BYTES);
    if (!link->staging) return false;
    uint8_t *copy = link->staging + (size_t)s->slot * LIMIT_CHUNK_MAX_BYTES;
    memcpy(copy, s->body, s->body_bytes);
    s->body = copy;
    return true;
}

/* Rendezvous, from a copy; UCX keeps the frame too until it has ended. */
static bool send_and_wait(transfer_t *t, endpoint_t *e, send_t *s)
{
    link_t *link = e->link;
    if (s->kind == SEND_DATA && !stage(link, s)) {
        exchange_sent(t, s, false);
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
        ucp_am_send_nbx(link->endpoint, MESSAGE_ID, s->frame, s->frame_bytes, s->body, s->body_bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) exchange_sent(t, s, UCS_PTR_STATUS(request) == UCS_OK);
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

/* Every message is a frame, checked before anything of it is used: it comes from the network. */
static ucs_status_t on_active_message(void *arg, const void *header, size_t header_bytes, void *data,
                                      size_t bytes, const ucp_am_recv_param_t *param)
{
    const plane_t *plane = arg;
    ucx_t *u = plane->ucx;
    frame_t f;
    if (FAILPOINT("transfer.truncate")) header_bytes--;
    if (!frame_decode(bytes_of(header, header_bytes), &f) || (bytes > 0 && f.kind != FRAME_DATA)) {
        u->base.counters.malformed++;
        return UCS_OK;
    }
    if (f.kind == FRAME_HI) prefer(u, f.hi.token, plane->at.family == AF_INET ? DEVICE_INET : DEVICE_INET6);
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

/* ---- planes ---- */

/* How often a word occurs in a text. */
static size_t count_of(const char *text, const char *word)
{
    size_t count = 0;
    for (; (text = strstr(text, word)); text++) count++;
    return count;
}

/* UCX opens even where it can use no device of the interface, and has no call that says so. Its printed
 * summary does: only "self" is left then. */
static bool reaches_itself_alone(ucp_context_h context)
{
    char *text = NULL;
    size_t bytes;
    FILE *print = open_memstream(&text, &bytes);
    if (!print) return false;
    ucp_context_print_info(context, print);
    size_t ways = fclose(print) ? 0 : count_of(text, " resource ");
    bool is_alone = ways && count_of(text, " self/") == ways;
    free(text);
    return is_alone;
}

/* From UCX 1.18 on the options of a transport have its name before them; earlier releases have them without
 * it, and later ones refuse that. */
static ucs_status_t set(ucp_config_t *config, const char *name, const char *value)
{
    ucs_status_t status = ucp_config_modify(config, name, value);
    if (!strncmp(name, "TCP_", 4)) (void)ucp_config_modify(config, name + 4, value);
    return status;
}

/* The settings go into this context alone. Setting environment variables here would race with threads of the
 * application. */
static ucs_status_t make_context(ucx_t *u, device_family_t family, ucp_context_h *ret_context)
{
    ucs_status_t status = UCS_OK;
    /* UCX adds to a configuration what is set in it again, and takes nothing away: an address that cannot be
     * used is tried again each second. */
    if (!u->families[0] && u->config_family != (int)family) {
        status = set(u->config, "TCP_AF_PRIO", family == DEVICE_INET ? "inet" : "inet6");
        u->config_family = (int)family;
    }
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucp_context_h context = NULL;
    if (status == UCS_OK) status = ucp_init(&params, u->config, &context);
    if (status == UCS_OK && reaches_itself_alone(context)) {
        ucp_cleanup(context);
        status = UCS_ERR_NO_DEVICE;
    }
    if (status == UCS_OK) *ret_context = context;
    return status;
}

/* SERIALIZED, not SINGLE: the owner opens, the loop's thread runs, never both at once.  UCX's other
 * descriptors are not close-on-exec: code that starts programs must close them. */
static ucs_status_t make_worker(const ucx_t *u, ucp_context_h context, ucp_worker_h *ret_worker)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_worker_create(context, &params, ret_worker);
    if (status != UCS_OK) return status;
    int fd;
    status = ucp_worker_get_efd(*ret_worker, &fd);
    if (status != UCS_OK) return status;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return epoll_ctl(u->fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}) == 0
               ? UCS_OK
               : UCS_ERR_IO_ERROR;
}

static void end_worker(const ucx_t *u, ucp_worker_h worker)
{
    int fd;
    if (!worker) return;
    if (ucp_worker_get_efd(worker, &fd) == UCS_OK) epoll_ctl(u->fd, EPOLL_CTL_DEL, fd, NULL);
    ucp_worker_destroy(worker);
}

/* No link uses it any more. */
static void end_plane(plane_t **plane)
{
    plane_t *it = *plane;
    *plane = NULL;
    if (!it) return;
    if (it->out != it->in) end_worker(it->ucx, it->out);
    end_worker(it->ucx, it->in);
    free(it);
}

/* Opens a plane at an address of the interface; it must be the address that UCX chooses. */
static ucs_status_t make_plane(ucx_t *u, device_family_t family, const device_address_t *at,
                               plane_t **ret_plane)
{
    ucs_status_t status = UCS_OK;
    if (!u->contexts[family]) status = make_context(u, family, &u->contexts[family]);
    plane_t *plane = status == UCS_OK ? calloc(1, sizeof *plane) : NULL;
    if (!plane) return status == UCS_OK ? UCS_ERR_NO_MEMORY : status;
    *plane = (plane_t){.ucx = u, .at = *at};
    status = FAILPOINT("transfer.plane") ? UCS_ERR_IO_ERROR : make_worker(u, u->contexts[family], &plane->in);
    if (status == UCS_OK && u->rendezvous) plane->out = plane->in;
    else if (status == UCS_OK) status = make_worker(u, u->contexts[family], &plane->out);
    if (status == UCS_OK) {
        /* The handler's argument is the plane, so that a message says over which family it came. */
        ucp_am_handler_param_t param = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = MESSAGE_ID,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = on_active_message,
            .arg = plane,
        };
        status = ucp_worker_set_am_recv_handler(plane->in, &param);
    }
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    if (status == UCS_OK) status = ucp_worker_query(plane->out, &attr);
    if (status == UCS_OK && attr.max_am_header < FRAME_MAX) status = UCS_ERR_EXCEEDS_LIMIT;
    if (status == UCS_OK) *ret_plane = plane;
    else end_plane(&plane);
    return status;
}

/* A user who set one of UCX's own variables has the last word. They are read once, and given to UCX by value:
 * the application may set others while the loop's thread looks at addresses, and makes planes for them. (Of
 * a transport's variables that are none of SETTINGS, UCX looks at the environment for each plane.) */
static ucs_status_t read_environment(ucx_t *u)
{
    const char *families = getenv("UCX_TCP_AF_PRIO");
    error_text(u->families, sizeof u->families, families ? families : "");
    u->config_family = -1;
    ucs_status_t status = ucp_config_read(NULL, NULL, &u->config);
    if (status == UCS_OK && u->families[0]) status = set(u->config, "TCP_AF_PRIO", u->families);
    for (size_t i = 0; i < SETTING_COUNT && status == UCS_OK; i++) {
        char variable[64];
        snprintf(variable, sizeof variable, "UCX_%s", SETTINGS[i].name);
        const char *given = getenv(variable);
        status = set(u->config, SETTINGS[i].name, given ? given : SETTINGS[i].value);
    }
    /* The interface is never the environment's: it was checked for being loopback, or allowed not to be. */
    return status == UCS_OK ? ucp_config_modify(u->config, "NET_DEVICES", u->device) : status;
}

static void restrict_families(const ucx_t *u, device_addresses_t *addresses)
{
    if (!u->families[0]) return;
    bool six_first = !strncasecmp(u->families, "inet6", 5);
    device_family_t first = six_first ? DEVICE_INET6 : DEVICE_INET, second = !first;
    bool has_second = strchr(u->families, ',') != NULL;
    if (addresses->of[first].family || !has_second) addresses->of[second] = (device_address_t){0};
}

static bool is_different(const device_address_t *a, const device_address_t *b)
{
    return a->family != b->family || memcmp(a->bytes, b->bytes, sizeof a->bytes) != 0;
}

/* Opens a plane for each address of `now` that has none. All or none, so that a failed change of
 * addresses leaves the old planes as they were. */
static ucs_status_t make_planes(ucx_t *u, const device_addresses_t *now, plane_t *ret_planes[DEVICE_FAMILIES])
{
    ucs_status_t status = UCS_OK;
    for (int f = 0; f < DEVICE_FAMILIES && status == UCS_OK; f++) {
        bool is_open = u->planes[f] && !is_different(&u->planes[f]->at, &now->of[f]);
        if (now->of[f].family && !is_open)
            status = make_plane(u, (device_family_t)f, &now->of[f], &ret_planes[f]);
    }
    for (int f = 0; f < DEVICE_FAMILIES && status != UCS_OK; f++) end_plane(&ret_planes[f]);
    return status;
}

/* The test for exchange_cut and exchange_any: connections over this plane. */
static bool is_over(const endpoint_t *e, const void *plane)
{
    return e->link && ((const link_t *)e->link)->plane == plane;
}

/* Cuts the connections over a plane whose address is gone. It is progressed until the last of them has
 * ended. */
static void retire(ucx_t *u, plane_t **plane)
{
    plane_t *it = *plane;
    *plane = NULL;
    if (!it) return;
    exchange_cut(&u->base, is_over, it);
    it->next = u->retired;
    u->retired = it;
}

/* ---- the carrier ---- */

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
    if (u->retired) {
        /* With rendezvous UCX may still write into an open receive: then it stays until we close. */
        for (plane_t **at = &u->retired; *at;) {
            plane_t *it = *at;
            if (u->rendezvous || exchange_any(&u->base, is_over, it)) {
                at = &it->next;
                continue;
            }
            *at = it->next;
            end_plane(&it);
        }
    }
    return moved != 0;
}

static bytes_t ucx_address(transfer_t *t)
{
    return bytes_of(ucx_of(t)->address.data, ucx_of(t)->address.bytes);
}

/* For a BYE that the network does not take yet; then the link is cut without. */
#define LINGER_US 1000000u
#define CARRIER(linger, send)                                                                                \
    {                                                                                                        \
        linger, ucx_connect, ucx_disconnect, send, ucx_progress, ucx_address, ucx_release                    \
    }
static const carrier_ops_t EAGER = CARRIER(LINGER_US, send_at_once);
static const carrier_ops_t RENDEZVOUS = CARRIER(CLOCK_NEVER, send_and_wait);

/* ---- opening and closing ---- */

/* UCX must be armed before the loop sleeps, or a message that arrives in between would not wake it. */
static bool arm(const plane_t *plane)
{
    return !plane || (ucp_worker_arm(plane->in) == UCS_OK &&
                      (plane->out == plane->in || ucp_worker_arm(plane->out) == UCS_OK));
}

static bool is_asleep(const ucx_t *u)
{
    for (int f = 0; f < DEVICE_FAMILIES; f++)
        if (!arm(u->planes[f])) return false;
    for (const plane_t *plane = u->retired; plane; plane = plane->next)
        if (!arm(plane)) return false;
    return true;
}

/* One turn of progress while we wait for connections to end, with a short sleep. */
static void turn(ucx_t *u)
{
    if (u->base.carrier->progress(&u->base) || !is_asleep(u)) return;
    poll(&(struct pollfd){.fd = u->fd, .events = POLLIN}, 1, 10);
}

/* Where one worker is both: lets connections that are being made, ours and those that peers begin, be made
 * to the end; false when one is not in time.  UCX 1.13 does not survive a close in between: the other end
 * aborts when it cannot answer a connection that it accepted (tcp_ep.c:478), this one when it goes with its
 * own answer unsent (ucp_request.c:684). */
static bool finish_connecting(ucx_t *u, const plane_t *plane)
{
    if (!plane || plane->out != plane->in) return true;
    const clock_ops_t *clock = clock_system();
    uint64_t end = clock_now(clock) + CONNECT_US;
    ucs_status_ptr_t flush = ucp_worker_flush_nbx(plane->in, &(ucp_request_param_t){0});
    if (!UCS_PTR_IS_PTR(flush)) return true;
    while (ucp_request_check_status(flush) == UCS_INPROGRESS && clock_now(clock) < end) turn(u);
    bool is_done = ucp_request_check_status(flush) != UCS_INPROGRESS;
    ucp_request_free(flush);
    return is_done;
}

/* Every plane must be quiet before any worker is destroyed. */
static bool finish_all(ucx_t *u)
{
    bool is_done = true;
    for (int f = 0; f < DEVICE_FAMILIES; f++) is_done = finish_connecting(u, u->planes[f]) && is_done;
    for (const plane_t *plane = u->retired; plane; plane = plane->next)
        is_done = finish_connecting(u, plane) && is_done;
    return is_done;
}

/* Closing waits for sends in flight, for a bounded time. UCX aborts the process when a worker with
 * pending requests is destroyed, so that one that is not quiet is left to the end of the process. */
static void ucx_close(transfer_t **t)
{
    ucx_t *u = t && *t ? ucx_of(*t) : NULL;
    if (!u) return;
    *t = NULL;
    /* False when something does not end in time.  UCX aborts the process when a worker goes with requests
     * pending. */
    finish_all(u);
    exchange_shut(&u->base);
    const clock_ops_t *clock = clock_system();
    uint64_t end = clock_now(clock) + u->close_ms * 1000ull;
    while (!exchange_quiet(&u->base) && clock_now(clock) < end) turn(u);
    bool is_ended = exchange_quiet(&u->base) && finish_all(u);
    if (!is_ended) return; /* left to UCX, with all that it may still touch */
    for (int f = 0; f < DEVICE_FAMILIES; f++) end_plane(&u->planes[f]);
    for (plane_t *plane; (plane = u->retired);) {
        u->retired = plane->next;
        end_plane(&plane);
    }
    for (int f = 0; f < DEVICE_FAMILIES; f++)
        if (u->contexts[f]) ucp_cleanup(u->contexts[f]);
    if (u->config) ucp_config_release(u->config);
    if (u->fd >= 0) close(u->fd);
    exchange_fini(&u->base);
    free(u->receives);
    free(u);
}

/* Everything that UCX starts is started here, with all signals blocked: its thread would otherwise
 * receive the application's signals. */
static int ucx_open(const transfer_opts_t *opts, transfer_t **ret, heddle_error_t *error)
{
    ucx_t *u = calloc(1, sizeof *u);
    if (!u) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the data plane");
    transfer_t *t = &u->base;
    uint64_t line;
    random_bytes(&line, sizeof line);
    u->fd = -1;
    u->rendezvous = opts->mode == TR_MODE_RENDEZVOUS;
    u->close_ms = opts->close_ms ? opts->close_ms : CLOSE_WAIT_MS;
    error_text(u->device, sizeof u->device, opts->device ? opts->device : "lo");
    const carrier_ops_t *carrier = u->rendezvous ? &RENDEZVOUS : &EAGER;
    u->receives = calloc(EXCHANGE_ASKS_MAX, sizeof *u->receives);
    int rc = u->receives ? exchange_init(t, carrier, opts, line >> 1 | 1) : HEDDLE_ERR_NO_MEMORY;
    if (rc != HEDDLE_OK) error_fail(error, rc, "no memory for the data plane");
    else {
        /* UCX starts a thread that would take the process's signals: it is born with all of them blocked. */
        sigset_t all, before;
        device_addresses_t now;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        u->fd = epoll_create1(EPOLL_CLOEXEC);
        device_addresses(u->device, &now);
        ucs_status_t status = u->fd < 0 ? UCS_ERR_IO_ERROR : read_environment(u);
        restrict_families(u, &now);
        bool has_one = now.of[DEVICE_INET].family || now.of[DEVICE_INET6].family;
        if (status == UCS_OK && !has_one) status = UCS_ERR_NO_DEVICE;
        if (status == UCS_OK) status = make_planes(u, &now, u->planes);
        u->registrar = u->planes[DEVICE_INET] ? DEVICE_INET : DEVICE_INET6;
        if (status == UCS_OK) status = ucx_address_make(u->planes, &u->address);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        rc = status == UCS_OK ? HEDDLE_OK : fail_ucx("listen", status, u->device, error);
    }
    if (rc != HEDDLE_OK) ucx_close(&t);
    else *ret = t;
    return rc;
}

/* For a loop's thread: a process may have a publisher and a worker, each with one of its own. */
static const char *ucx_version(void)
{
    static _Thread_local char text[32];
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
    return text;
}

static void ucx_devices(transfer_t *t, char *ret_list, size_t size)
{
    error_text(ret_list, size, ucx_of(t)->device);
}

static void ucx_where(transfer_t *t, tr_where_t *ret_where)
{
    device_addresses_t addresses;
    ucx_addresses(ucx_of(t), &addresses);
    device_addresses_text(&addresses, ret_where->addresses);
    ret_where->network = device_network();
}

static void ucx_explain(transfer_t *t, bytes_t address, char *ret_text, size_t size)
{
    ucx_address_explain(ucx_of(t), address, ret_text, size);
}

/* ---- the interface's addresses change ---- */

static bool ucx_moved(transfer_t *t, device_addresses_t *ret_now)
{
    const ucx_t *u = ucx_of(t);
    device_addresses_t had;
    ucx_addresses(u, &had);
    if (!device_moved(u->device, &had, ret_now)) return false;
    restrict_families(u, ret_now);
    return is_different(&had.of[DEVICE_INET], &ret_now->of[DEVICE_INET]) ||
           is_different(&had.of[DEVICE_INET6], &ret_now->of[DEVICE_INET6]);
}

static bool ucx_has_moved(transfer_t *t)
{
    device_addresses_t now;
    return ucx_moved(t, &now);
}

/* The new ones first, and their address: where either cannot be made, all stays as it was, and it is tried
 * again. */
static int ucx_reopen(transfer_t *t, heddle_error_t *error)
{
    ucx_t *u = ucx_of(t);
    device_addresses_t now;
    plane_t *fresh[DEVICE_FAMILIES] = {0}, *next[DEVICE_FAMILIES] = {0};
    envelope_t address;
    owner_check(t->owner);
    if (!ucx_moved(t, &now)) return HEDDLE_OK;
    bool has_one = now.of[DEVICE_INET].family || now.of[DEVICE_INET6].family;
    ucs_status_t status = has_one ? make_planes(u, &now, fresh) : UCS_ERR_NO_DEVICE;
    for (int f = 0; f < DEVICE_FAMILIES; f++)
        next[f] = fresh[f] ? fresh[f] : now.of[f].family ? u->planes[f] : NULL;
    if (status == UCS_OK)
        status = FAILPOINT("transfer.address") ? UCS_ERR_NO_MEMORY : ucx_address_make(next, &address);
    if (status != UCS_OK) {
        for (int f = 0; f < DEVICE_FAMILIES; f++) end_plane(&fresh[f]);
        return fail_ucx("listen again", status, u->device, error);
    }
    for (int f = 0; f < DEVICE_FAMILIES; f++) {
        if (u->planes[f] != next[f]) retire(u, &u->planes[f]);
        u->planes[f] = next[f];
    }
    u->address = address;
    return HEDDLE_OK;
}

/* Nothing is registered with TCP; with RDMA the pages are pinned here, once, and not at the first chunk.
 * With one context: those of other families have the same transports. */
static ucp_context_h registrar(const transfer_t *t)
{
    const ucx_t *u = (const ucx_t *)t;
    return u->contexts[u->registrar];
}

/* The mapping hangs on the region, where each read request finds its count of open receives. A region that is
 * held may only be read, and cannot be registered everywhere: it is sent as any memory is. */
static int ucx_map(transfer_t *t, region_t *r)
{
    int rc = exchange_map(t, r);
    if (rc || !r->base) return rc;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = r->base,
        .length = r->bytes,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucp_mem_h handle;
    if (ucp_mem_map(registrar(t), &params, &handle) != UCS_OK) {
        exchange_unmap(t, r);
        return HEDDLE_ERR_NO_MEMORY;
    }
    ((carrier_mapping_t *)r->backend)->registration = handle;
    return HEDDLE_OK;
}

static void ucx_unmap(transfer_t *t, region_t *r)
{
    const carrier_mapping_t *m = r->backend;
    if (!m) return;
    owner_check(t->owner);
    if (m->registration) ucp_mem_unmap(registrar(t), m->registration);
    exchange_unmap(t, r);
}

static bool ucx_arm(transfer_t *t) { return !exchange_pending(t) && is_asleep(ucx_of(t)); }

static int ucx_fd(transfer_t *t) { return ucx_of(t)->fd; }

extern const transfer_ops_t transfer_ops __attribute__((visibility("default")));
const transfer_ops_t transfer_ops = {
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .version = ucx_version,
    .devices = ucx_devices,
    .where = ucx_where,
    .explain = ucx_explain,
    .moved = ucx_has_moved,
    .reopen = ucx_reopen,
    .address = exchange_address,
    .set_token = exchange_set_token,
    .map = ucx_map,
    .unmap = ucx_unmap,
    .expect = exchange_expect,
    .share = exchange_share,
    .extend = exchange_extend,
    .unshare = exchange_unshare,
    .greet = exchange_greet,
    .ask = exchange_ask,
    .drop_ask = exchange_drop_ask,
    .drop_peer = exchange_drop_peer,
    .set_rate = exchange_set_rate,
    .events = exchange_events,
    .deadline = exchange_deadline,
    .arm = ucx_arm,
    .fd = ucx_fd,
    .counters = exchange_counters,
    .idle = exchange_idle,
};
