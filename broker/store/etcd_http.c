/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/etcd_http.h"

#include "core/clock.h"
#include "core/errors.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS = 16, URL_BYTES = 320, CONNECT_TIMEOUT_MS = 2000 };
enum { SILENT_S = 10, PROBE_S = 3 }; /* a watch may be silent for as long as the registry does not change */
enum { TOKEN_BYTES = 8192 };         /* a signed token has some hundreds */

typedef struct {
    CURL *curl;
    bool is_busy, is_stream;
    bool is_out;   /* bytes of the request may have arrived */
    uint64_t sent; /* so many requests, this one among them */
    struct curl_slist *headers;
    buf_t body;  /* of the answer */
    buf_t lines; /* of a stream, while they are handed on */
    char why[CURL_ERROR_SIZE];
} lane_t;

struct etcd_http {
    etcd_http_opts_t opts;
    int epoll_fd;
    CURLM *multi;
    lane_t lanes[ETCD_LANES];
    uint64_t due_us;
    const clock_ops_t *clock;
};

static const char *const PATHS[] = {[ETCD_RANGE] = "kv/range",      [ETCD_TXN] = "kv/txn",
                                    [ETCD_GRANT] = "lease/grant",   [ETCD_KEEPALIVE] = "lease/keepalive",
                                    [ETCD_REVOKE] = "lease/revoke", [ETCD_AUTHENTICATE] = "auth/authenticate",
                                    [ETCD_STREAM] = "watch"};

/* ---- what libcurl calls ---- */

static size_t on_body(char *data, size_t size, size_t count, void *lane_at)
{
    lane_t *lane = lane_at;
    if (lane->body.bytes + size * count > ETCD_ANSWER_BYTES) return 0;
    buf_add(&lane->body, data, size * count);
    return lane->body.failed ? 0 : size * count;
}

/* The pointer that is kept for a socket says whether it is in the set already. */
static int on_socket(CURL *curl, curl_socket_t fd, int what, void *self, void *known)
{
    etcd_http_t *h = self;
    struct epoll_event event = {.data.fd = fd};
    (void)curl;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(h->epoll_fd, EPOLL_CTL_DEL, fd, &event);
        return 0;
    }
    if (what & CURL_POLL_IN) event.events |= EPOLLIN;
    if (what & CURL_POLL_OUT) event.events |= EPOLLOUT;
    /* A descriptor that was closed without a word, and is another one's now, is not in the set. */
    if (epoll_ctl(h->epoll_fd, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) && known)
        epoll_ctl(h->epoll_fd, EPOLL_CTL_ADD, fd, &event);
    curl_multi_assign(h->multi, fd, h);
    return 0;
}

/* With a connection, before anything is sent.  libcurl sends a request again by itself, where a connection
 * that was kept ends without an answer, and then says what became of the last try alone.  The first one may
 * have happened, though the second one is refused.  So it is not sent again here: the leader repeats it, as
 * one of which an earlier try may have happened. */
static int on_connected(void *lane_at, char *address, char *own_address, int port, int own_port)
{
    lane_t *lane = lane_at;
    bool was_out = lane->is_out;
    (void)address, (void)own_address, (void)port, (void)own_port;
    lane->is_out = true;
    return was_out ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static int on_timer(CURLM *multi, long ms, void *self)
{
    etcd_http_t *h = self;
    (void)multi;
    h->due_us = ms < 0 ? CLOCK_NEVER : clock_now(h->clock) + (uint64_t)ms * 1000;
    return 0;
}

/* ---- requests ---- */

static void stop(etcd_http_t *h, lane_t *lane)
{
    if (!lane->is_busy) return;
    curl_multi_remove_handle(h->multi, lane->curl);
    lane->is_busy = false;
}

void etcd_http_stop(etcd_http_t *http, etcd_lane_t lane) { stop(http, &http->lanes[lane]); }

static bool add_header(lane_t *lane, const char *text)
{
    struct curl_slist *more = curl_slist_append(lane->headers, text);
    if (more) lane->headers = more;
    return more != NULL;
}

static bool set_headers(lane_t *lane, const char *token)
{
    char text[TOKEN_BYTES];
    curl_slist_free_all(lane->headers);
    lane->headers = NULL;
    if (!add_header(lane, "Content-Type: application/json")) return false;
    int n = token ? snprintf(text, sizeof text, "Authorization: %s", token) : 0;
    return n < (int)sizeof text && (!token || add_header(lane, text)) &&
           !curl_easy_setopt(lane->curl, CURLOPT_HTTPHEADER, lane->headers);
}

bool etcd_http_send(etcd_http_t *h, etcd_lane_t at, const etcd_request_t *r)
{
    lane_t *lane = &h->lanes[at];
    char url[URL_BYTES];
    stop(h, lane);
    buf_clear(&lane->body);
    lane->why[0] = 0;
    lane->is_out = false;
    lane->is_stream = r->call == ETCD_STREAM;
    lane->sent++;
    if (!set_headers(lane, r->token)) return false;
    snprintf(url, sizeof url, "%s/v3/%s", h->opts.urls[r->endpoint], PATHS[r->call]);
    CURLcode bad = curl_easy_setopt(lane->curl, CURLOPT_URL, url); /* libcurl copies it */
    if (!bad) bad = curl_easy_setopt(lane->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body.bytes);
    if (!bad) bad = curl_easy_setopt(lane->curl, CURLOPT_POSTFIELDS, r->body.data);
    if (!bad) bad = curl_easy_setopt(lane->curl, CURLOPT_TIMEOUT_MS, (long)r->timeout_ms);
    lane->is_busy = !bad && !curl_multi_add_handle(h->multi, lane->curl);
    return lane->is_busy;
}

/* Only where there was no connection it is certain that nothing arrived.  That etcd does not take the
 * certificate of this broker comes after it, and counts as any other end. */
static etcd_outcome_t outcome_of(CURLcode code, const lane_t *lane)
{
    if (code && lane->is_out) return ETCD_UNKNOWN;
    switch (code) {
    case CURLE_OK: return ETCD_ANSWERED;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT: return ETCD_UNSENT;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CONNECT_ERROR: return ETCD_UNTRUSTED;
    default: return ETCD_UNKNOWN;
    }
}

/* Why it has no answer, for people. */
static const char *why_of(CURLcode code, const lane_t *lane)
{
    if (code == CURLE_ABORTED_BY_CALLBACK) return "the connection ended without an answer";
    return *lane->why ? lane->why : curl_easy_strerror(code);
}

/* on_end may end the stream, or send the lane's next request: the lines that are left are of no interest
 * then. */
static void hand_lines(etcd_http_t *h, etcd_lane_t at)
{
    lane_t *lane = &h->lanes[at];
    if (!lane->is_busy || !lane->is_stream || !lane->body.bytes) return;
    uint64_t sent = lane->sent;
    buf_t all = lane->body;
    lane->body = lane->lines;
    lane->lines = all;
    buf_clear(&lane->body);
    const char *from = (const char *)all.data, *end = from + all.bytes, *line_end;
    while ((line_end = memchr(from, '\n', (size_t)(end - from)))) {
        h->opts.on_end(h->opts.self, at, ETCD_PIECE, bytes_of(from, (size_t)(line_end - from)));
        if (!lane->is_busy || lane->sent != sent) return;
        from = line_end + 1;
    }
    buf_add(&lane->body, from, (size_t)(end - from));
}

/* The lane is idle before on_end is called, which may send its next request. */
static void end_requests(etcd_http_t *h)
{
    const CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(h->multi, &left))) {
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode code = m->data.result;
        for (int i = 0; i < ETCD_LANES; i++) {
            lane_t *lane = &h->lanes[i];
            if (lane->curl != m->easy_handle) continue;
            stop(h, lane);
            const char *why = why_of(code, lane);
            bytes_t body = code ? bytes_of(why, strlen(why)) : buf_view(&lane->body);
            h->opts.on_end(h->opts.self, (etcd_lane_t)i, outcome_of(code, lane), body);
            break;
        }
    }
}

void etcd_http_turn(etcd_http_t *h, uint64_t now_us)
{
    struct epoll_event events[EVENTS];
    int running, n = epoll_wait(h->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        int mask = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                   (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(h->multi, events[i].data.fd, mask, &running);
    }
    if (now_us >= h->due_us) {
        h->due_us = CLOCK_NEVER;
        curl_multi_socket_action(h->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    for (int i = 0; i < ETCD_LANES; i++) hand_lines(h, (etcd_lane_t)i);
    end_requests(h);
}

int etcd_http_fd(const etcd_http_t *h) { return h->epoll_fd; }
uint64_t etcd_http_due(const etcd_http_t *h) { return h->due_us; }

/* ---- new ---- */

static bool set_up_tls(CURL *curl, const etcd_http_opts_t *o)
{
    return (!o->ca || !curl_easy_setopt(curl, CURLOPT_CAINFO, o->ca)) &&
           (!o->cert || !curl_easy_setopt(curl, CURLOPT_SSLCERT, o->cert)) &&
           (!o->key || !curl_easy_setopt(curl, CURLOPT_SSLKEY, o->key)) &&
           !curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
}

/* With HTTP/2, which etcd offers over TLS, all lanes share one connection.  A request that is late ends its
 * stream alone, and the next one goes over the same connection, which may have gone silent for good. */
static bool set_up_connection(CURL *curl)
{
    return !curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) &&
           !curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_TIMEOUT_MS) &&
           !curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L) &&
           !curl_easy_setopt(curl, CURLOPT_TCP_KEEPIDLE, (long)SILENT_S) &&
           !curl_easy_setopt(curl, CURLOPT_TCP_KEEPINTVL, (long)PROBE_S);
}

static bool set_up_lane(etcd_http_t *h, lane_t *lane)
{
    lane->curl = curl_easy_init();
    return lane->curl && set_up_tls(lane->curl, &h->opts) && set_up_connection(lane->curl) &&
           !curl_easy_setopt(lane->curl, CURLOPT_WRITEFUNCTION, on_body) &&
           !curl_easy_setopt(lane->curl, CURLOPT_WRITEDATA, lane) &&
           !curl_easy_setopt(lane->curl, CURLOPT_PREREQFUNCTION, on_connected) &&
           !curl_easy_setopt(lane->curl, CURLOPT_PREREQDATA, lane) &&
           !curl_easy_setopt(lane->curl, CURLOPT_ERRORBUFFER, lane->why) &&
           !curl_easy_setopt(lane->curl, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(lane->curl, CURLOPT_PROXY, "") && /* never by a proxy of the environment */
           !curl_easy_setopt(lane->curl, CURLOPT_PROTOCOLS_STR, "http,https");
}

int etcd_http_new(const etcd_http_opts_t *opts, etcd_http_t **ret_http, heddle_error_t *error)
{
    etcd_http_t *h = calloc(1, sizeof *h);
    if (!h) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for requests to etcd");
    *h = (etcd_http_t){.opts = *opts,
                       .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                       .due_us = CLOCK_NEVER,
                       .clock = clock_system()};
    bool is_good =
        h->epoll_fd >= 0 && !curl_global_init(CURL_GLOBAL_DEFAULT) && (h->multi = curl_multi_init());
    is_good = is_good && !curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, on_socket) &&
              !curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h) &&
              !curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, on_timer) &&
              !curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    for (int i = 0; i < ETCD_LANES && is_good; i++) is_good = set_up_lane(h, &h->lanes[i]);
    if (is_good) {
        *ret_http = h;
        return HEDDLE_OK;
    }
    etcd_http_destroy(&h);
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory or descriptor for requests to etcd");
}

void etcd_http_destroy(etcd_http_t **http)
{
    etcd_http_t *h = *http;
    if (!h) return;
    *http = NULL;
    for (int i = 0; i < ETCD_LANES; i++) {
        stop(h, &h->lanes[i]);
        curl_easy_cleanup(h->lanes[i].curl);
        curl_slist_free_all(h->lanes[i].headers);
        buf_fini(&h->lanes[i].body);
        buf_fini(&h->lanes[i].lines);
    }
    curl_multi_cleanup(h->multi);
    if (h->epoll_fd >= 0) close(h->epoll_fd);
    curl_global_cleanup();
    free(h);
}
