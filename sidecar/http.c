/* SPDX-License-Identifier: Apache-2.0 */
#include "sidecar/http.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/thread.h"
#include "sidecar/http_metrics.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { KEPT_US = 200000 };

struct http {
    http_opts_t opts; /* without those of the service */
    service_t *service;
    uint64_t started_ms;
    pthread_t thread;
    bool has_thread;
    int end_fd;           /* readable: the thread ends */
    json_t *stats;        /* of the thread: what the worker said last; NULL */
    uint64_t asked_us;    /* when that was asked for */
    pthread_mutex_t lock; /* of: */
    heddle_worker_t *worker;
};

/* ---- answers ---- */

/* Probes need no token and may come without end, and the report is work for the thread that
 * moves bytes: so it serves for a moment. */
static int look(http_t *h, heddle_error_t *error)
{
    uint64_t now_us = clock_now(clock_system());
    if (h->stats && now_us - h->asked_us < KEPT_US) return HEDDLE_OK;
    json_decref(h->stats);
    h->asked_us = now_us;
    /* What the library's thread says, within a turn of its loop.  NULL: the worker is not opened. */
    char *text = NULL;
    h->stats = NULL;
    pthread_mutex_lock(&h->lock);
    bool is_open = h->worker != NULL;
    int rc = is_open ? heddle_worker_stats(h->worker, &text) : HEDDLE_OK;
    if (rc) *error = *heddle_last_error();
    pthread_mutex_unlock(&h->lock);
    if (!is_open || rc) return rc;
    h->stats = json_loads(text, 0, NULL);
    heddle_free(text);
    return h->stats ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for an answer");
}

static int answer_metrics(const http_t *h, reply_t *to, heddle_error_t *error)
{
    heddle_error_t why;
    to->samples = calloc(1, sizeof *to->samples);
    if (!to->samples) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for metrics");
    bool is_ready = http_metrics_ready(h->stats, h->opts.ready_lag, &why) == HEDDLE_OK;
    http_metrics_gather(h->stats, h->opts.adapters, h->started_ms, is_ready, to->samples);
    return HEDDLE_OK;
}

static int answer(http_t *h, const question_t *q, reply_t *to, heddle_error_t *error)
{
    bool is_readyz = q->request.kind == REQUEST_READYZ;
    int rc = look(h, error);
    if (!rc && q->request.kind == REQUEST_METRICS) rc = answer_metrics(h, to, error);
    else if (!rc && is_readyz) rc = http_metrics_ready(h->stats, h->opts.ready_lag, error);
    if (rc || to->samples) return rc;
    to->body =
        json_pack("{s:s, s:s, s:b}", "schema", "heddle/1", "kind", is_readyz ? "readyz" : "livez", "ok", 1);
    return to->body ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for an answer");
}

static void *run(void *self)
{
    http_t *h = self;
    mailbox_t *mailbox = service_mailbox(h->service);
    struct pollfd fds[] = {{.fd = mailbox_question_fd(mailbox), .events = POLLIN},
                           {.fd = h->end_fd, .events = POLLIN}};
    while (!fds[1].revents) {
        question_t q;
        reply_t reply = {0};
        poll(fds, sizeof fds / sizeof *fds, -1);
        if (!mailbox_next(mailbox, clock_now(clock_system()), &q)) continue;
        reply.ticket = q.ticket;
        answer(h, &q, &reply, &reply.error);
        mailbox_reply(mailbox, &reply);
    }
    return NULL;
}

/* ---- open and close ---- */

int http_open(const http_opts_t *opts, http_t **ret_http, heddle_error_t *error)
{
    http_t *h = calloc(1, sizeof *h);
    if (!h) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to serve HTTP");
    h->opts = *opts;
    h->opts.service = (service_opts_t){0};
    h->started_ms = clock_wall(clock_system());
    pthread_mutex_init(&h->lock, NULL);
    h->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = service_open(&opts->service, &h->service, error);
    if (!rc) {
        h->has_thread = h->end_fd >= 0 && thread_start("heddle-probes", run, h, &h->thread) == 0;
        if (!h->has_thread)
            rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no descriptor or thread is left to serve HTTP");
    }
    if (rc) http_close(&h);
    else *ret_http = h;
    return rc;
}

void http_set_worker(http_t *h, heddle_worker_t *worker)
{
    if (!h) return;
    pthread_mutex_lock(&h->lock);
    h->worker = worker;
    pthread_mutex_unlock(&h->lock);
}

const char *http_url(const http_t *h) { return h ? service_url(h->service) : NULL; }

void http_close(http_t **http)
{
    http_t *h = http ? *http : NULL;
    uint64_t one = 1;
    if (!h) return;
    *http = NULL;
    if (h->has_thread) {
        while (write(h->end_fd, &one, sizeof one) < 0 && errno == EINTR) {}
        pthread_join(h->thread, NULL);
    }
    service_close(&h->service);
    json_decref(h->stats);
    if (h->end_fd >= 0) close(h->end_fd);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
