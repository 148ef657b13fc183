/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_http.h"

#include "broker/main_metrics.h"
#include "broker/questions/json_parts.h"
#include "broker/questions/query.h"
#include "core/errors.h"
#include "core/units.h"

#include <stdlib.h>
#include <string.h>

struct main_http {
    main_http_opts_t opts; /* without those of the service */
    service_t *service;
    bool is_looked_at; /* the loop has the descriptor of questions */
};

/* ---- answers ---- */

/* Ready: it takes what members ask for, and decides. */
static int check_ready(const answer_view_t *view, heddle_error_t *error)
{
    char time[16];
    uint64_t settling_us = rollout_settling_us(view->rollout, view->members, view->now.us);
    if (view->is_read_only) {
        int rc =
            error_fail(error, HEDDLE_ERR_NO_SPACE, "the broker takes no records: %s", view->read_only_why);
        error_hint(error, "make room on its disk: it tries again each second");
        return rc;
    }
    if (!settling_us) return HEDDLE_OK;
    units_ms_text((double)settling_us / 1000, time);
    int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE,
                        "the broker has just started, and decides nothing for %s", time);
    error_hint(error, "members come back meanwhile; it is ready then");
    return rc;
}

static int answer_api(const answer_view_t *view, const question_t *q, reply_t *to, heddle_error_t *error)
{
    msg_query_t query;
    answer_page_t page = {0};
    request_query(&q->request, &query);
    if (q->after) query.after = q->after;
    query.after_name = q->after_name;
    int rc = answer_page(view, &query, &page, error);
    if (rc) return rc;
    to->body = page.body;
    to->more = page.more;
    to->next = page.next;
    memcpy(to->next_name, page.next_name, sizeof to->next_name);
    return HEDDLE_OK;
}

static int answer(const main_http_t *h, const question_t *q, reply_t *to, heddle_error_t *error)
{
    const clock_ops_t *clock = clock_system();
    instant_t now = {.us = clock_now(clock), .wall_ms = clock_wall(clock)};
    answer_view_t view = query_view(h->opts.broker, now);
    if (q->request.kind == REQUEST_API) return answer_api(&view, q, to, error);
    if (q->request.kind == REQUEST_METRICS) {
        to->samples = calloc(1, sizeof *to->samples);
        if (!to->samples) return part_no_memory(error);
        main_metrics_gather(h->opts.broker, h->opts.commits, now, to->samples);
        return HEDDLE_OK;
    }
    int rc = q->request.kind == REQUEST_READYZ ? check_ready(&view, error) : HEDDLE_OK;
    if (rc) return rc;
    to->body = part_body(q->request.kind == REQUEST_READYZ ? "readyz" : "livez", true, json_object());
    return to->body ? HEDDLE_OK : part_no_memory(error);
}

/* One question a turn, so that members come between any two. */
static void on_question(void *self)
{
    main_http_t *h = self;
    question_t q;
    reply_t reply = {0};
    mailbox_t *mailbox = service_mailbox(h->service);
    if (!mailbox_next(mailbox, clock_now(clock_system()), &q)) return;
    reply.ticket = q.ticket;
    answer(h, &q, &reply, &reply.error);
    mailbox_reply(mailbox, &reply);
}

/* ---- open and close ---- */

int main_http_open(const main_http_opts_t *opts, main_http_t **ret_http, heddle_error_t *error)
{
    main_http_t *h = calloc(1, sizeof *h);
    if (!h) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to serve HTTP");
    h->opts = *opts;
    h->opts.service = (service_opts_t){0};
    int rc = service_open(&opts->service, &h->service, error);
    if (!rc) {
        int fd = mailbox_question_fd(service_mailbox(h->service));
        h->is_looked_at = loop_add_fd(opts->loop, fd, on_question, h) == HEDDLE_OK;
        if (!h->is_looked_at) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to serve HTTP");
    }
    if (rc) main_http_close(&h);
    else *ret_http = h;
    return rc;
}

void main_http_note(main_http_t *h, uint64_t last_seq)
{
    if (h) mailbox_note(service_mailbox(h->service), last_seq);
}

const char *main_http_url(const main_http_t *h) { return h ? service_url(h->service) : NULL; }

void main_http_close(main_http_t **http)
{
    main_http_t *h = http ? *http : NULL;
    if (!h) return;
    *http = NULL;
    if (h->is_looked_at) loop_remove_fd(h->opts.loop, mailbox_question_fd(service_mailbox(h->service)));
    service_close(&h->service);
    free(h);
}
