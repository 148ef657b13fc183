/* SPDX-License-Identifier: Apache-2.0 */
/* The UCX backend: opening, closing, and its table, the one symbol that the plugin exports. */
#include "transfer/ucx.h"

#include "core/digest.h"
#include "core/errors.h"
#include "transfer/environment.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#define CLOSE_WAIT_MS 2000u
#define SETTLE_US 300000u     /* what connecting may take while we close */

/* Read by UCX when a context and its worker are made.  Through the environment and not ucp_config_modify,
 * which takes transport options under other names in 1.13 than later.  Those that UCX reads when it is
 * loaded: transfer/load.c. */
static const env_setting_t SETTINGS[] = {
    /* In PEER error mode the only transport between processes of a machine without RDMA, and the only one
     * of 1.13 that notices a killed peer at once. */
    {"UCX_TLS", "tcp,self"},
    /* A whole chunk and its header in one segment (256 KiB + header): else UCX assembles fragments with one
     * more copy on arrival, and cannot take a chunk at once when it is sent. */
    {"UCX_TCP_RX_SEG_SIZE", "512K"},
    {"UCX_TCP_TX_SEG_SIZE", "512K"},
    /* The worker that only receives has no endpoints, and UCX would leave its socket to a thread of its own:
     * two switches for each message. */
    {"UCX_ADAPTIVE_PROGRESS", "n"},
    /* Connecting must not block the loop. */
    {"UCX_TCP_CONN_NB", "y"},
    /* The protocols of 1.13: those that 1.18 and later take by default choose a way by what they think an
     * interface carries, and from 1.20 on send no frame at once on a slow one, however small. */
    {"UCX_PROTO_ENABLE", "n"},
    /* A pulled cable is noticed after 5 s. */
    {"UCX_TCP_KEEPIDLE", "2s"},
    {"UCX_TCP_KEEPINTVL", "1s"},
    {"UCX_TCP_KEEPCNT", "3"},
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

static size_t count_of(const char *text, const char *word)
{
    size_t count = 0;
    for (; (text = strstr(text, word)); text++) count++;
    return count;
}

/* UCX opens also where it can do nothing with the interface, and tells only in print what is left. */
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

static ucs_status_t make_context(ucx_t *u)
{
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) return status;
    /* The interface is never the environment's: it was checked for being loopback, or allowed not to be. */
    status = ucp_config_modify(config, "NET_DEVICES", u->device);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    if (status == UCS_OK) status = ucp_init(&params, config, &u->context);
    ucp_config_release(config);
    return status == UCS_OK && reaches_itself_alone(u->context) ? UCS_ERR_NO_DEVICE : status;
}

/* SERIALIZED, not SINGLE: the owner opens, the loop's thread runs, never both at once.  UCX's other
 * descriptors are not close-on-exec: who starts programs closes them. */
static ucs_status_t make_worker(ucx_t *u, ucp_worker_h *ret_worker)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_worker_create(u->context, &params, ret_worker);
    if (status != UCS_OK) return status;
    int fd;
    status = ucp_worker_get_efd(*ret_worker, &fd);
    if (status != UCS_OK) return status;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return epoll_ctl(u->fd, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}) == 0
               ? UCS_OK
               : UCS_ERR_IO_ERROR;
}

static ucs_status_t make_workers(ucx_t *u)
{
    u->fd = epoll_create1(EPOLL_CLOEXEC);
    if (u->fd < 0) return UCS_ERR_IO_ERROR;
    ucs_status_t status = make_worker(u, &u->in);
    if (status == UCS_OK && u->rendezvous) u->out = u->in;
    else if (status == UCS_OK) status = make_worker(u, &u->out);
    if (status == UCS_OK) status = ucx_address_make(u);
    if (status == UCS_OK) status = ucx_listen(u);
    if (status != UCS_OK) return status;
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    status = ucp_worker_query(u->out, &attr);
    return status == UCS_OK && attr.max_am_header < FRAME_MAX ? UCS_ERR_EXCEEDS_LIMIT : status;
}

/* UCX starts a thread that would take the process's signals: it is born with all of them blocked. */
static int start(ucx_t *u, heddle_error_t *error)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    uint32_t set = environment_set(SETTINGS, SETTING_COUNT);
    const char *what = "start";
    ucs_status_t status = make_context(u);
    if (status == UCS_OK) {
        what = "listen";
        status = make_workers(u);
    }
    environment_restore(SETTINGS, SETTING_COUNT, set);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == UCS_OK ? HEDDLE_OK : fail_ucx(what, status, u->device, error);
}

static bool is_asleep(const ucx_t *u)
{
    return ucp_worker_arm(u->in) == UCS_OK && (u->out == u->in || ucp_worker_arm(u->out) == UCS_OK);
}

static void turn(ucx_t *u)
{
    if (u->base.carrier->progress(&u->base) || !is_asleep(u)) return;
    poll(&(struct pollfd){.fd = u->fd, .events = POLLIN}, 1, 10);
}

static void wait_for_closes(ucx_t *u)
{
    const clock_ops_t *clock = clock_system();
    uint64_t end = clock_now(clock) + u->close_ms * 1000ull;
    while (!exchange_quiet(&u->base) && clock_now(clock) < end) turn(u);
}

/* Where one worker is both: lets connections that are being made, ours and those that peers begin, be made
 * to the end; false when one is not in time.  UCX 1.13 does not survive a close in between: the other end
 * aborts when it cannot answer a connection that it accepted (tcp_ep.c:478), this one when it goes with its
 * own answer unsent (ucp_request.c:684). */
static bool settle(ucx_t *u)
{
    if (u->out != u->in) return true;
    const clock_ops_t *clock = clock_system();
    uint64_t end = clock_now(clock) + SETTLE_US;
    ucs_status_ptr_t flush = ucp_worker_flush_nbx(u->in, &(ucp_request_param_t){0});
    if (!UCS_PTR_IS_PTR(flush)) return true;
    while (ucp_request_check_status(flush) == UCS_INPROGRESS && clock_now(clock) < end) turn(u);
    bool is_done = ucp_request_check_status(flush) != UCS_INPROGRESS;
    ucp_request_free(flush);
    return is_done;
}

/* False when something does not end in time.  UCX aborts the process when a worker goes with requests
 * pending. */
static bool end_links(ucx_t *u)
{
    if (!u->in || !u->out) return true;
    settle(u);
    exchange_shut(&u->base);
    wait_for_closes(u);
    return exchange_quiet(&u->base) && settle(u);
}

static void ucx_close(transfer_t **t)
{
    ucx_t *u = t && *t ? ucx_of(*t) : NULL;
    if (!u) return;
    *t = NULL;
    bool is_ended = end_links(u);
    crew_end(&u->crew);
    if (!is_ended) return;                   /* left to UCX, with all that it may still touch */
    if (u->out && u->out != u->in) ucp_worker_destroy(u->out);
    if (u->in) ucp_worker_destroy(u->in);
    if (u->context) ucp_cleanup(u->context);
    if (u->fd >= 0) close(u->fd);
    exchange_fini(&u->base);
    near_board_close(&u->board);
    free(u->receives);
    free(u);
}

static int ucx_open(const transfer_opts_t *opts, transfer_t **ret, heddle_error_t *error)
{
    ucx_t *u = calloc(1, sizeof *u);
    if (!u) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the data plane");
    transfer_t *t = &u->base;
    uint64_t line;
    random_bytes(&line, sizeof line);
    u->fd = -1;
    u->rendezvous = opts->mode == TR_MODE_RENDEZVOUS;
    if (opts->mode == TR_MODE_AUTO) near_board_open(&u->board);    /* without, bytes travel */
    u->close_ms = opts->close_ms ? opts->close_ms : CLOSE_WAIT_MS;
    error_text(u->device, sizeof u->device, opts->device ? opts->device : "lo");
    const carrier_ops_t *carrier = u->rendezvous ? &ucx_rendezvous_carrier : &ucx_eager_carrier;
    u->receives = calloc(EXCHANGE_ASKS_MAX, sizeof *u->receives);
    int rc = u->receives ? exchange_init(t, carrier, opts, line >> 1 | 1) : HEDDLE_ERR_NO_MEMORY;
    if (rc != HEDDLE_OK) error_fail(error, rc, "no memory for the data plane");
    else rc = start(u, error);
    if (rc != HEDDLE_OK) ucx_close(&t);
    else *ret = t;
    return rc;
}

static const char *ucx_version(void)
{
    static char text[32];
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
    return text;
}

static void ucx_devices(transfer_t *t, char *ret_list, size_t size)
{
    error_text(ret_list, size, ucx_of(t)->device);
}

/* Nothing is registered with TCP; with RDMA the pages are pinned here, once, and not at the first chunk. */
static int ucx_map(transfer_t *t, region_t *r)
{
    int rc = exchange_map(t, r);
    if (rc != HEDDLE_OK) return rc;
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = r->base,
        .length = r->bytes,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucp_mem_h handle;
    if (ucp_mem_map(ucx_of(t)->context, &params, &handle) != UCS_OK) {
        exchange_unmap(t, r);
        return HEDDLE_ERR_NO_MEMORY;
    }
    ((mapping_t *)r->backend)->registration = handle;
    return HEDDLE_OK;
}

static void ucx_unmap(transfer_t *t, region_t *r)
{
    const mapping_t *m = r->backend;
    if (!m) return;
    owner_check(t->owner);
    ucp_mem_unmap(ucx_of(t)->context, m->registration);
    exchange_unmap(t, r);
}

static bool ucx_arm(transfer_t *t)
{
    ucx_flush(ucx_of(t));
    return !exchange_pending(t) && is_asleep(ucx_of(t));
}

static int ucx_fd(transfer_t *t) { return ucx_of(t)->fd; }

extern const transfer_ops_t transfer_ops __attribute__((visibility("default")));
const transfer_ops_t transfer_ops = {
    .name = "ucx",
    .open = ucx_open,
    .close = ucx_close,
    .version = ucx_version,
    .devices = ucx_devices,
    .address = exchange_address,
    .set_token = exchange_set_token,
    .map = ucx_map,
    .unmap = ucx_unmap,
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
    .early = exchange_early,
};
