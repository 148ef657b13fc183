/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/main_http.h"

#include "broker/main_metrics.h"
#include "broker/questions/answer_events.h"
#include "broker/questions/cell.h"
#include "broker/questions/query.h"
#include "core/errors.h"
#include "core/option.h"

#include <stdlib.h>
#include <string.h>

struct main_http {
    main_http_opts_t opts; /* without those of the service */
    service_t *service;
    bool is_looked_at; /* the loop has the descriptor of questions */
};

/* ---- answers ---- */

/* A number of an event without an epoch is of this one: a reader of HTTP has it from an answer, so that one
 * beyond the end is of another registry, or wrong, and is not waited for. */
static void ask_of(const answer_view_t *view, const question_t *q, msg_query_t *ret_query)
{
    request_query(&q->request, ret_query);
    if (!ret_query->epoch) ret_query->epoch = view->events->epoch;
}

static int answer_api(const answer_view_t *view, const question_t *q, reply_t *to, heddle_error_t *error)
{
    msg_query_t query;
    answer_page_t page = {0};
    ask_of(view, q, &query);
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

/* Of a stream: copies, which become text on the HTTP thread.  At every version some come from each worker. */
typedef struct {
    uint64_t epoch;
    size_t count;
    event_row_t rows[];
} event_copies_t;

/* "id: 3-17", and the event as a line of `heddle events -o json`, each. */
static void add_events(const void *rows, buf_t *to)
{
    const event_copies_t *copies = rows;
    for (const event_row_t *e = copies->rows; e < copies->rows + copies->count; e++) {
        event_row_t shown = *e;
        option_words(shown.message);
        buf_add_text(to, "id: ");
        buf_add_number(to, copies->epoch);
        buf_add_text(to, "-");
        buf_add_number(to, e->seq);
        buf_add_text(to, "\ndata: ");
        event_text(to, &shown, copies->epoch);
        buf_add_text(to, "\n\n");
    }
}

static int answer_stream(const answer_view_t *view, const question_t *q, reply_t *to, heddle_error_t *error)
{
    msg_query_t query;
    event_walk_t walk;
    const event_row_t *e = NULL;
    ask_of(view, q, &query);
    event_walk_begin(&walk, view, &query);
    uint64_t most = query.limit ? query.limit : ANSWER_PAGE_EVENTS, last = view->events->last_seq,
             there = walk.has_gap + (last < walk.seq ? 0 : last + 1 - walk.seq);
    if (most > there) most = there;
    event_copies_t *copies = malloc(sizeof *copies + most * sizeof *copies->rows);
    if (!copies) return cell_no_memory(error);
    copies->epoch = to->epoch = view->events->epoch;
    copies->count = 0;
    while (copies->count < most && (e = event_walk_next(&walk)) != NULL) copies->rows[copies->count++] = *e;
    to->rows = copies;
    to->add_rows = add_events;
    to->more = walk.seq <= view->events->last_seq;
    to->next = walk.seq;
    return HEDDLE_OK;
}

/* It is well, and ready where it could take over at once; only the leader answers more. */
static int answer_standby(const main_http_t *h, const question_t *q, reply_t *to, heddle_error_t *error)
{
    const standby_t *s = h->opts.standby;
    bool is_readyz = q->request.kind == REQUEST_READYZ;
    if (q->request.kind == REQUEST_API) return standby_refuse(s, error);
    if (q->request.kind == REQUEST_METRICS) {
        to->samples = calloc(1, sizeof *to->samples);
        if (!to->samples) return cell_no_memory(error);
        main_metrics_of_standby(s, to->samples);
        return HEDDLE_OK;
    }
    int rc = is_readyz ? standby_check_ready(s, error) : HEDDLE_OK;
    if (rc) return rc;
    json_t *about = json_pack("{s:s, s:s, s:b, s:I}", "role", "standby", "leader", s->leader, "following",
                              (int)s->is_following, "behind", (json_int_t)s->behind);
    to->body = about ? cell_body(is_readyz ? "readyz" : "livez", true, about) : NULL;
    return to->body ? HEDDLE_OK : cell_no_memory(error);
}

static int answer(const main_http_t *h, const question_t *q, reply_t *to, heddle_error_t *error)
{
    if (!h->opts.broker) return answer_standby(h, q, to, error);
    const clock_ops_t *clock = clock_system();
    instant_t now = {.us = clock_now(clock), .wall_ms = clock_wall(clock)};
    answer_view_t view = query_view(h->opts.broker, now);
    if (q->is_stream) return answer_stream(&view, q, to, error);
    if (q->request.kind == REQUEST_API) return answer_api(&view, q, to, error);
    if (q->request.kind == REQUEST_METRICS) {
        to->samples = calloc(1, sizeof *to->samples);
        if (!to->samples) return cell_no_memory(error);
        main_metrics_gather(h->opts.broker, h->opts.store, h->opts.commits, now, to->samples);
        return HEDDLE_OK;
    }
    int rc = q->request.kind == REQUEST_READYZ ? answer_check_ready(&view, error) : HEDDLE_OK;
    if (rc) return rc;
    to->body = cell_body(q->request.kind == REQUEST_READYZ ? "readyz" : "livez", true, json_object());
    return to->body ? HEDDLE_OK : cell_no_memory(error);
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

void main_http_lead(main_http_t *h, const broker_t *broker)
{
    if (h) h->opts.broker = broker;
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
