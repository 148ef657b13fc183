/* SPDX-License-Identifier: Apache-2.0 */
/* libmicrohttpd runs inside the thread's own poll, and not in a thread of its own: so the thread can end what
 * takes too long, and everything below is used by it alone. */
#include "http/server.h"

#include "core/clock.h"
#include "core/descriptors.h"
#include "core/errors.h"
#include "core/log.h"
#include "core/option_json.h"
#include "core/repeat.h"
#include "core/thread.h"
#include "http/token.h"
#include "proto/pages.h"
#include "proto/value.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

enum {
    CONNECTIONS = 256,        /* but not more than: */
    DESCRIPTORS_SHARE = 8,    /* the limit of descriptors, divided by this: members need theirs */
    ADDRESSES = 4,            /* of clients that have all of them, where other hosts reach the server */
    HEADERS_BYTES = 16384,    /* of one request, its answer's headers too */
    JOINING = 4,              /* answers of several pages at a time */
    PAGES = 256,              /* of one answer: 128 MiB */
    BODIES_BYTES = 256 << 20, /* of all answers on their way */
    READ_US = 5000000,        /* for a request to come: each connection has one */
    SEND_US = 60000000,       /* for an answer to be read */
    LOOP_US = 2000000,        /* for the loop to answer: more, and it stands still */
    SWEEP_US = 1000000,       /* how often connections are looked at */
    LOOK_MS = 100,            /* the same, where poll fails */
    STREAMS_SHARE = 8,        /* of the connections may be streams: 32 that never take all of the mailbox */
    STREAM_BYTES = 16384,     /* of a stream that are given to the kernel at a time */
    NICE = 10,                /* where processors are short, a tenth of the share of other threads */
    PAGE_MS = 100,            /* between two questions, for each page that is open */
    SHARED_FROM = 5,          /* streams, with which equal requests have one question: */
    SHARE_US = 50000,         /* those that come in such a time */
    ROOM_US = 5000,           /* between two connections that end to make room */
    PACE_US = 100000,         /* streams ask as often, all at once, so that events come together */
    BEAT_US = 15000000,       /* between two signs of life in a stream without events */
    RETRY_S = 1               /* after which a client may try again what found no place */
};

static char TLS_PRIORITIES[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

/* What this thread counts itself. */
static const metric_t METRICS[] = {
    {"heddle_http_connections", "", METRIC_GAUGE, NULL, "Open connections to this address"},
    {"heddle_http_requests", "", METRIC_COUNTER, "code",
     "Requests that were answered, by status; not those whose head is malformed or too large"},
    {"heddle_http_certificate_end_seconds", "seconds", METRIC_GAUGE, NULL,
     "With TLS: when the certificate of this address ends to be valid, since 1970"},
};
static const struct {
    int status;
    const char *text;
} STATUSES[] = {{200, "200"}, {400, "400"}, {401, "401"}, {404, "404"}, {405, "405"},
                {421, "421"}, {500, "500"}, {503, "503"}, {504, "504"}};
enum { STATUS_COUNT = sizeof STATUSES / sizeof *STATUSES };

/* One connection. */
typedef struct client {
    int fd;
    uint64_t since_us; /* its state */
    bool is_served;    /* a request is being answered; else one is waited for */
    struct client *prev, *next;
} client_t;

typedef enum {
    VISIT_PLAIN,   /* its answer is there, or is made at once */
    VISIT_WAITING, /* for the loop's answer, in the list of those that do */
    VISIT_STREAM,  /* of events; libmicrohttpd comes for more */
    VISIT_IDLE,    /* the same: all was sent, and the connection is suspended */
    VISIT_LEFT     /* the same: its client has hung up */
} visit_state_t;

/* One request. */
typedef struct visit {
    struct server *server;
    struct MHD_Connection *connection;
    client_t *client;
    visit_state_t state;
    char target[REQUEST_TARGET_MAX + 2]; /* one more than is taken shows that it is too long */
    /* asked */
    question_t question;
    json_t *whole; /* pages so far; NULL: none yet */
    int pages;
    struct visit *prev, *next;
    /* answered */
    int status;     /* 0: not yet */
    bool has_asset; /* its text is the answer; else: */
    const char *type;
    char *text;
    size_t bytes;
    uint32_t retry_s; /* 0: none is said */
    bool follows;     /* it is to be a stream of events, and is one when its first page has come */
    /* a stream of events: its request has the page that comes next */
    buf_t pending;   /* events on their way to the client */
    size_t sent;     /* of these */
    uint64_t ask_us; /* also of a request that waits for others of its kind, before it has a ticket */
    uint64_t beat_us;
} visit_t;

static bool is_stream(const visit_t *v) { return v->state >= VISIT_STREAM; }

struct server {
    struct MHD_Daemon *daemon;
    mailbox_t *mailbox;
    const char *program;
    bool has_api;
    uint64_t certificate_end_ms; /* 0: no TLS */
    char token[TOKEN_MAX + 1];   /* "": none is asked for */
    pthread_t thread;
    bool has_thread;
    int end_fd; /* readable: the thread ends */
    uint64_t last_ticket, sweep_us, room_us;
    uint64_t probes[REQUEST_READYZ + 1]; /* by kind: the ticket of the one that the loop has; 0: none */
    client_t *clients;                   /* the oldest first */
    unsigned client_count, clients_most;
    bool has_closed; /* a connection; see sleep_ms */
    visit_t *waiting, *streams;
    int stream_count; /* also those that wait for their first page */
    bool is_ending;
    int joining;
    size_t bodies_bytes;
    uint64_t answered[STATUS_COUNT];
    char *busy; /* the body of the answer where there is no memory for one */
    repeat_t poll_failures;
};

static uint64_t now_us(void) { return clock_now(clock_system()); }

static const char *header(const visit_t *v, const char *name)
{
    return MHD_lookup_connection_value(v->connection, MHD_HEADER_KIND, name);
}

/* ---- answers ---- */

/* Takes the text, which is on its way from now on.  Without memory for it (NULL), or for one more beside the
 * others, the answer is that the server is busy; the few bytes of a probe always go. */
static void answer_text(server_t *s, visit_t *v, int status, const char *type, char *text)
{
    size_t bytes = text ? strlen(text) : 0;
    bool is_over = s->bodies_bytes + bytes > BODIES_BYTES && !request_is_probe(&v->question.request);
    if (!text || is_over) {
        free(text);
        text = NULL;
        bytes = 0;
        status = 503;
        type = "application/json"; /* of s->busy */
    }
    s->bodies_bytes += bytes;
    v->status = status;
    v->type = type;
    v->text = text;
    v->bytes = bytes;
    if (status == 503) v->retry_s = RETRY_S;
}

/* Takes the body.  The words of options are the command's, as in `-o json`. */
static void answer(server_t *s, visit_t *v, int status, json_t *body)
{
    option_json_words(body);
    answer_text(s, v, status, "application/json",
                body ? json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(10)) : NULL);
    json_decref(body);
}

static const char *kind_of(const visit_t *v)
{
    const request_t *r = &v->question.request;
    static const char *const KINDS[] = {[REQUEST_LIVEZ] = "livez",
                                        [REQUEST_READYZ] = "readyz",
                                        [REQUEST_METRICS] = "metrics",
                                        [REQUEST_ASSET] = "page"};
    return r->kind == REQUEST_API ? r->op : r->kind ? KINDS[r->kind] : "http";
}

static json_t *body_of_error(const char *kind, const heddle_error_t *error)
{
    return json_pack("{s:s, s:s, s:b, s:o}", "schema", "heddle/1", "kind", kind, "ok", 0, "error",
                     value_from_error(error));
}

static void answer_error(server_t *s, visit_t *v, int status, const heddle_error_t *error)
{
    answer(s, v, status, body_of_error(kind_of(v), error));
}

static void be_busy(heddle_error_t *ret_error)
{
    error_fail(ret_error, HEDDLE_ERR_LIMIT, "too many requests are being answered");
    error_hint(ret_error, "try again in a moment");
    ret_error->retriable = 1;
}

static void answer_asset(visit_t *v)
{
    v->has_asset = true;
    v->status = 200;
    v->type = v->question.request.asset->type;
}

/* The request has the token, or none is asked for. */
static bool is_trusted(const server_t *s, const visit_t *v)
{
    return !s->token[0] || token_is_shown(s->token, header(v, "Authorization"));
}

/* The loop's error.  A probe without the token gets the code alone: the words name adapters, versions and
 * paths. */
static void answer_failure(server_t *s, visit_t *v, const heddle_error_t *error)
{
    heddle_error_t general;
    bool is_probe = request_is_probe(&v->question.request); /* 401 would say that the token is missing */
    int status = request_status(is_probe ? HEDDLE_ERR_UNAVAILABLE : error->code);
    if (is_trusted(s, v)) {
        answer_error(s, v, status, error);
        return;
    }
    error_fail(&general, error->code, "/%s of the %s fails", kind_of(v), s->program);
    error_hint(&general, "a request with the token has the reason");
    general.retriable = error->retriable;
    answer_error(s, v, status, &general);
}

typedef struct {
    server_t *server;
    char *text;
    size_t bytes;
} body_t;

static void free_body(void *self)
{
    body_t *b = self;
    b->server->bodies_bytes -= b->bytes;
    free(b->text);
    free(b);
}

static struct MHD_Response *response_of(server_t *s, visit_t *v)
{
    const asset_t *asset = v->question.request.asset;
    if (v->has_asset)
        return MHD_create_response_from_buffer(asset->bytes, (void *)(uintptr_t)asset->text,
                                               MHD_RESPMEM_PERSISTENT);
    if (!v->text) return MHD_create_response_from_buffer(strlen(s->busy), s->busy, MHD_RESPMEM_PERSISTENT);
    body_t *b = malloc(sizeof *b);
    if (!b) return NULL;
    *b = (body_t){s, v->text, v->bytes};
    struct MHD_Response *r =
        MHD_create_response_from_buffer_with_free_callback_cls(v->bytes, v->text, free_body, b);
    if (!r) {
        free(b);
        return NULL;
    }
    v->text = NULL; /* the response has it */
    return r;
}

/* libmicrohttpd asks for more of a stream.  Where there is nothing, the connection is suspended until there
 * is. */
static ssize_t read_stream(void *self, uint64_t at, char *to, size_t size)
{
    visit_t *v = self;
    size_t left = v->pending.bytes - v->sent;
    (void)at;
    if (v->server->is_ending) return MHD_CONTENT_READER_END_OF_STREAM;
    if (v->state == VISIT_LEFT) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (v->client) v->client->since_us = now_us();
    if (!left) {
        v->state = VISIT_IDLE;
        MHD_suspend_connection(v->connection);
        return 0;
    }
    if (left > size) left = size;
    memcpy(to, v->pending.data + v->sent, left);
    v->sent += left;
    if (v->sent == v->pending.bytes) {
        buf_clear(&v->pending);
        v->sent = 0;
    }
    return (ssize_t)left;
}

/* After which a page may ask again.  Where many are open, they all ask at the same moments, and share their
 * questions: at the multiples of the time that they need together, but not one soon after the last one. */
static uint64_t pace_ms(const server_t *s, const visit_t *v)
{
    uint64_t all = (uint64_t)s->stream_count * PAGE_MS, came_us = v->client ? v->client->since_us : now_us();
    if (s->stream_count < SHARED_FROM) return all;
    uint64_t left = all - came_us / 1000 % all;
    return left < all / 4 ? left + all : left;
}

/* MHD_NO closes the connection. */
static enum MHD_Result respond(server_t *s, visit_t *v)
{
    char retry[16], pace[16];
    struct MHD_Response *r =
        is_stream(v) ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BYTES, read_stream, v, NULL)
                     : response_of(s, v);
    if (!r) return MHD_NO;
    for (size_t i = 0; i < STATUS_COUNT; i++) s->answered[i] += STATUSES[i].status == v->status;
    MHD_add_response_header(r, "Content-Type", v->type);
    MHD_add_response_header(r, "Connection", "close"); /* one that stays would have 5 s again and again */
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Content-Security-Policy",
                            v->has_asset ? ASSET_POLICY : "default-src 'none'; frame-ancestors 'none'");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    if (v->status == 405) MHD_add_response_header(r, "Allow", "GET, HEAD");
    if (v->status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    snprintf(retry, sizeof retry, "%u", v->retry_s);
    if (v->retry_s) MHD_add_response_header(r, "Retry-After", retry);
    snprintf(pace, sizeof pace, "%llu", (unsigned long long)pace_ms(s, v));
    if (v->status == 200 && v->question.request.kind == REQUEST_API)
        MHD_add_response_header(r, "X-Pace-Ms", pace);
    enum MHD_Result rc = MHD_queue_response(v->connection, (unsigned)v->status, r);
    MHD_destroy_response(r);
    return rc;
}

/* ---- questions ---- */

static void stop_waiting(server_t *s, visit_t *v)
{
    DL_DELETE(s->waiting, v);
    v->state = VISIT_PLAIN;
    if (v->whole) {
        s->joining--;
        json_decref(v->whole);
        v->whole = NULL;
    }
}

/* The answer is there, or will not come: the connection goes on with it. */
static void go_on(visit_t *v) { MHD_resume_connection(v->connection); }

/* The loop has one question of each kind of probe at a time, however many clients wait for the answer: probes
 * need no token, and could take all places.  It answers such a question also when it is late, for those that
 * came meanwhile. */
static bool ask_probe(server_t *s, visit_t *v)
{
    uint64_t *ticket = &s->probes[v->question.request.kind];
    question_t for_all = v->question;
    v->question.due_us = now_us() + LOOP_US;
    if (!*ticket) {
        for_all.ticket = ++s->last_ticket;
        for_all.due_us = CLOCK_NEVER;
        if (!mailbox_ask(s->mailbox, &for_all)) return false;
        *ticket = for_all.ticket;
    }
    v->question.ticket = *ticket;
    return true;
}

/* Streams that have come to the same event have one question, so that the loop makes the page once. */
static bool shares_question(const visit_t *others, visit_t *v)
{
    const visit_t *other;
    DL_FOREACH(others, other)
    {
        bool is_asked = other->follows && other->question.ticket != 0 && other != v;
        if (!is_asked || !request_is_same(&other->question.request, &v->question.request)) continue;
        v->question.ticket = other->question.ticket;
        return true;
    }
    return false;
}

/* A stream waits as long as it takes, and may share the question of another one, which has waited longer. */
static bool ask(server_t *s, visit_t *v)
{
    if (request_is_probe(&v->question.request)) return ask_probe(s, v);
    v->question.due_us = now_us() + LOOP_US;
    if (v->follows && (shares_question(s->streams, v) || shares_question(s->waiting, v))) return true;
    v->question.ticket = ++s->last_ticket;
    question_t asked = v->question;
    asked.is_stream = v->follows;
    if (v->follows) asked.due_us = CLOCK_NEVER;
    return mailbox_ask(s->mailbox, &asked);
}

static void answer_busy(server_t *s, visit_t *v)
{
    heddle_error_t error;
    be_busy(&error);
    answer_error(s, v, 503, &error);
}

/* With many pages open, a request waits a moment for others of its kind. */
static bool begin_asking(server_t *s, visit_t *v)
{
    bool is_shared = s->stream_count >= SHARED_FROM && v->question.request.kind == REQUEST_API && !v->follows;
    if (!is_shared) return ask(s, v);
    v->ask_us = (now_us() / SHARE_US + 1) * SHARE_US;
    return true;
}

/* Each question once.  All that share it came before it is asked, so that none has an answer of before. */
static void ask_together(server_t *s, uint64_t now)
{
    uint64_t before = s->last_ticket;
    visit_t *v, *next, *other;
    DL_FOREACH_SAFE(s->waiting, v, next)
    {
        if (v->question.ticket || now < v->ask_us) continue;
        DL_FOREACH(s->waiting, other)
        if (other->question.ticket > before &&
            request_is_same(&other->question.request, &v->question.request))
            break;
        if (other) {
            v->question.ticket = other->question.ticket;
            v->question.due_us = other->question.due_us;
        } else if (!ask(s, v)) {
            answer_busy(s, v);
            stop_waiting(s, v);
            go_on(v);
        }
    }
}

/* Of another kind than being busy: what asks again in a moment may find nothing there. */
static void answer_ending(server_t *s, visit_t *v)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "the %s is ending", s->program);
    error_hint(&error, "ask again when it has been started again");
    error.retriable = 1;
    answer_error(s, v, 503, &error);
}

/* Not a matter of time: the next answer has as many pages. */
static void answer_too_long(server_t *s, visit_t *v)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_LIMIT, "the answer has more than %d pages", PAGES);
    error_hint(&error,
               "ask for one adapter or one worker, or with the command heddle, which has no such limit");
    answer_error(s, v, 500, &error);
}

static void answer_metrics(server_t *s, visit_t *v, samples_t *samples)
{
    const char *accept = header(v, "Accept");
    bool is_openmetrics = accept && strstr(accept, "application/openmetrics-text");
    buf_t out = {0};
    samples_add(samples, &METRICS[0], NULL, s->client_count);
    for (size_t i = 0; i < STATUS_COUNT; i++)
        samples_add(samples, &METRICS[1], STATUSES[i].text, (double)s->answered[i]);
    if (s->certificate_end_ms) samples_add(samples, &METRICS[2], NULL, (double)s->certificate_end_ms / 1e3);
    metrics_text(samples, is_openmetrics, &out);
    answer_text(s, v, 200, metrics_content_type(is_openmetrics), out.failed ? NULL : strdup(buf_text(&out)));
    buf_fini(&out);
}

/* A page goes to those before it.  True: the answer is complete, or has failed. */
static bool take_page(server_t *s, visit_t *v, reply_t *reply)
{
    request_t *r = &v->question.request;
    bool is_events = r->op && !strcmp(r->op, "events"); /* its reader asks for the rest */
    heddle_error_t error;
    if (v->whole && pages_append(v->whole, reply->body, r->ref.version != 0, &error)) {
        answer_error(s, v, 500, &error);
        return true;
    }
    if (!reply->more || is_events) {
        answer(s, v, 200, json_incref(v->whole ? v->whole : reply->body));
        return true;
    }
    if (!v->whole) {
        if (s->joining == JOINING) {
            answer_busy(s, v);
            return true;
        }
        s->joining++;
        v->whole = json_incref(reply->body);
    }
    v->question.after = reply->next;
    memcpy(v->question.after_name, reply->next_name, sizeof reply->next_name);
    if (++v->pages == PAGES) answer_too_long(s, v);
    else if (ask(s, v)) return false;
    else answer_busy(s, v);
    return true;
}

/* ---- streams of events ---- */

static void go_on_stream(visit_t *v)
{
    if (v->state != VISIT_IDLE) return; /* libmicrohttpd comes for it */
    v->state = VISIT_STREAM;
    go_on(v);
}

/* Of a stream that has come so far without an event for it: an id without data is no event, and yet where a
 * client that connects again goes on.  Else it would begin anew, and a gap would not be said. */
static void add_place(visit_t *v)
{
    const request_t *r = &v->question.request;
    buf_printf(&v->pending, "id: %llu-%llu\n\n", (unsigned long long)r->epoch,
               (unsigned long long)(r->after ? r->after - 1 : 0));
}

/* An answer of the loop goes to its stream.  A failure ends that: its client connects again, and has the
 * reason as a status. */
static void take_events(visit_t *v, reply_t *reply)
{
    uint64_t now = now_us();
    v->question.ticket = 0;
    v->ask_us = reply->more ? now : (now / PACE_US + 1) * PACE_US;
    if (reply->error.code) {
        if (v->client) shutdown(v->client->fd, SHUT_RDWR);
        return;
    }
    const buf_t *events = reply_events(reply);
    buf_add(&v->pending, events->data, events->bytes);
    v->pending.failed |= events->failed;
    v->question.request.after = reply->next;
    v->question.request.epoch = reply->epoch;
    if (!v->pending.bytes && !v->pending.failed) return;
    v->beat_us = now + BEAT_US;
    go_on_stream(v);
}

/* One whose memory ran out ends: its client connects again, and goes on after what it has. */
static void feed_streams(server_t *s, uint64_t now)
{
    uint64_t last_seq = mailbox_noted(s->mailbox);
    visit_t *v;
    DL_FOREACH(s->streams, v)
    {
        bool is_new = last_seq >= v->question.request.after;
        if (v->pending.failed && v->client) shutdown(v->client->fd, SHUT_RDWR);
        if (v->state != VISIT_IDLE) continue; /* its client has not read what there is */
        if (v->client) v->client->since_us = now;
        if (is_new && !v->question.ticket && now >= v->ask_us && !ask(s, v)) {
            v->question.ticket = 0;
            v->ask_us = now + PACE_US;
        }
        if (now < v->beat_us) continue;
        v->beat_us = now + BEAT_US;
        add_place(v); /* a proxy would end a silent connection */
        go_on_stream(v);
    }
}

/* When feed_streams has to look again.  News wake it where a stream waits for them, and not one by one while
 * all wait for their pace or for an answer. */
static uint64_t streams_due(const server_t *s)
{
    uint64_t due = CLOCK_NEVER, last_seq = mailbox_noted(s->mailbox);
    bool waits_for_news = false;
    for (const visit_t *v = s->streams; v; v = v->next) {
        bool is_new = last_seq >= v->question.request.after;
        if (v->state != VISIT_IDLE) continue;
        due = clock_earlier(due, v->beat_us);
        if (v->question.ticket) continue;
        if (is_new) due = clock_earlier(due, v->ask_us);
        else waits_for_news = true;
    }
    if (waits_for_news) mailbox_listen(s->mailbox, last_seq);
    return due;
}

/* Its first page has come: before, it waited as every question does, which may be refused. */
static void begin_stream(server_t *s, visit_t *v, reply_t *reply)
{
    stop_waiting(s, v);
    buf_printf(&v->pending, "retry: %d\n\n", RETRY_S * 1000);
    v->state = VISIT_STREAM;
    v->status = 200;
    v->type = "text/event-stream";
    v->beat_us = now_us() + BEAT_US;
    DL_APPEND(s->streams, v);
    take_events(v, reply);
    if (!reply_events(reply)->bytes) add_place(v);
    go_on(v);
}

static visit_t *visit_of(const server_t *s, uint64_t ticket)
{
    visit_t *v;
    DL_SEARCH_SCALAR(s->waiting, v, question.ticket, ticket);
    if (!v) DL_SEARCH_SCALAR(s->streams, v, question.ticket, ticket);
    return v;
}

/* ---- what the loop says ---- */

/* Those that share its question have the same answer, or wait for the page that it has asked for now.  It
 * stays as long as they do: libmicrohttpd looks at no connection that waits, and all are late together. */
static void take_along(server_t *s, const visit_t *first, uint64_t ticket)
{
    visit_t *v, *next;
    DL_FOREACH_SAFE(s->waiting, v, next)
    {
        if (v == first || v->question.ticket != ticket) continue;
        v->question.ticket = first->question.ticket;
        v->question.due_us = first->question.due_us;
        if (!first->status) continue;
        answer_text(s, v, first->status, first->type, first->text ? strdup(first->text) : NULL);
        stop_waiting(s, v);
        go_on(v);
    }
}

static void take_reply(server_t *s, visit_t *v, reply_t *reply)
{
    bool is_over = !is_stream(v) && (reply->error.code || !v->follows);
    uint64_t ticket = v->question.ticket;
    if (is_stream(v)) take_events(v, reply);
    else if (reply->error.code) answer_failure(s, v, &reply->error);
    else if (v->follows) begin_stream(s, v, reply);
    else if (reply->samples) answer_metrics(s, v, reply->samples);
    else is_over = take_page(s, v, reply);
    if (v->question.request.kind == REQUEST_API && !v->follows) take_along(s, v, ticket);
    if (!is_over) return;
    stop_waiting(s, v);
    go_on(v);
}

/* Several visits wait for the answer to a probe; none, where the client is gone or had its answer.  One that
 * has taken it waits no longer, or for another one. */
static void take_replies(server_t *s)
{
    reply_t reply;
    visit_t *v;
    while (mailbox_take(s->mailbox, &reply)) {
        for (int kind = 0; kind <= REQUEST_READYZ; kind++)
            if (s->probes[kind] == reply.ticket) s->probes[kind] = 0;
        while (!reply.is_late && (v = visit_of(s, reply.ticket)))
            take_reply(s, v, &reply); /* else end_late */
        reply_fini(&reply);
    }
}

/* What the loop has not answered in time.  Its answer is dropped when it comes. */
static void end_late(server_t *s, uint64_t now)
{
    visit_t *v, *next;
    DL_FOREACH_SAFE(s->waiting, v, next)
    {
        heddle_error_t error;
        bool is_probe = request_is_probe(&v->question.request);
        if (!v->question.ticket || now < v->question.due_us) continue;
        error_fail(&error, is_probe ? HEDDLE_ERR_UNAVAILABLE : HEDDLE_ERR_DEADLINE,
                   "the %s's loop did not answer for %d s", s->program, LOOP_US / 1000000);
        error_hint(&error, "it may wait for a disk: its log says more");
        error.retriable = 1;
        answer_error(s, v, request_status(error.code), &error);
        stop_waiting(s, v);
        go_on(v);
    }
}

/* ---- requests ---- */

/* A body is neither expected nor read: the answer comes before it, and the connection ends. */
static bool has_body(const visit_t *v)
{
    const char *length = header(v, "Content-Length");
    return header(v, "Transfer-Encoding") || (length && strcmp(length, "0") != 0);
}

static enum MHD_Result count_host(void *count, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind, (void)value;
    *(unsigned *)count += !strcasecmp(name, "Host");
    return MHD_YES;
}

/* A supervisor has no token, and gets no more than whether all is well.  Nor has a browser that asks for the
 * page: that is what asks its reader for the token. */
static int check_client(const server_t *s, const visit_t *v, heddle_error_t *error)
{
    const char *host = header(v, "Host");
    unsigned hosts = 0;
    MHD_get_connection_values(v->connection, MHD_HEADER_KIND, count_host, &hosts);
    if (hosts > 1) { /* the first would be checked, and another server may take the second */
        error_fail(error, HEDDLE_ERR_USAGE, "the request has the header Host %u times", hosts);
        return 400;
    }
    bool is_open = request_is_probe(&v->question.request) || v->question.request.kind == REQUEST_ASSET;
    if (s->token[0]) {
        if (is_open || is_trusted(s, v)) return 200;
        error_fail(error, HEDDLE_ERR_DENIED, "the request has not the %s's token for HTTP", s->program);
        error_expected(error, "Authorization: Bearer TOKEN, with the line of --http-token's file");
        return 401;
    }
    if (!host || request_is_of_address(host)) return 200;
    error_fail(error, HEDDLE_ERR_DENIED, "without a token this address is reached by its number alone");
    error_expected(error, "Host: an IP address, or localhost");
    error_found(error, "%.200s", host);
    error_hint(error, "ask for 127.0.0.1:PORT, or start the %s with --http-token", s->program);
    return 421;
}

static bool wants_stream(const visit_t *v)
{
    const char *accept = header(v, "Accept"), *op = v->question.request.op;
    return op && !strcmp(op, "events") && accept && strstr(accept, "text/event-stream");
}

/* False: all places for streams are taken. */
static bool takes_place(server_t *s, visit_t *v)
{
    const char *id = header(v, "Last-Event-ID");
    if (!wants_stream(v)) return true;
    if (s->stream_count >= (int)(s->clients_most / STREAMS_SHARE)) return false;
    if (id) request_resume(&v->question.request, id);
    v->follows = true;
    s->stream_count++;
    return true;
}

static void begin(server_t *s, visit_t *v, const char *method)
{
    heddle_error_t error = {0};
    int status = request_parse(method, v->target, &v->question.request, &error);
    if (status == 200) status = check_client(s, v, &error);
    request_kind_t kind = v->question.request.kind;
    if (status == 200 && (kind == REQUEST_API || kind == REQUEST_ASSET) && !s->has_api) {
        status = 404;
        error_fail(&error, HEDDLE_ERR_NOT_FOUND, "the %s does not answer this address", s->program);
        error_expected(&error, "/livez, /readyz or /metrics");
        error_hint(&error, "the broker answers it: `heddle broker --http`");
    }
    if (status == 200 && has_body(v)) {
        status = 400;
        error_fail(&error, HEDDLE_ERR_USAGE, "the request has a body");
        error_expected(&error, "none");
    }
    if (status != 200) answer_error(s, v, status, &error);
    else if (kind == REQUEST_ASSET) answer_asset(v);
    else if (s->is_ending) answer_ending(s, v);
    else if (!takes_place(s, v) || !begin_asking(s, v)) answer_busy(s, v);
    else {
        DL_APPEND(s->waiting, v);
        v->state = VISIT_WAITING;
        MHD_suspend_connection(v->connection);
    }
}

/* libmicrohttpd calls this when the headers are there, and again when the connection goes on. */
static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **request)
{
    server_t *s = self;
    visit_t *v = *request;
    (void)url, (void)version, (void)upload, (void)upload_bytes;
    if (!v) return MHD_NO; /* there was no memory for it */
    if (!v->connection) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        v->server = s;
        v->connection = connection;
        v->client = info ? info->socket_context : NULL;
        if (v->client) v->client->is_served = true, v->client->since_us = now_us();
        begin(s, v, method);
        if (v->state == VISIT_WAITING) return MHD_YES;
    }
    return v->status ? respond(s, v) : MHD_NO;
}

/* The target as it came: what libmicrohttpd makes of it has lost its escapes. */
static void *on_target(void *self, const char *uri, struct MHD_Connection *connection)
{
    (void)self, (void)connection;
    visit_t *v = calloc(1, sizeof *v);
    if (v) snprintf(v->target, sizeof v->target, "%s", uri ? uri : "");
    return v;
}

static void on_completed(void *self, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode how)
{
    server_t *s = self;
    visit_t *v = *request;
    (void)connection, (void)how;
    if (!v) return;
    *request = NULL;
    if (v->state == VISIT_WAITING) stop_waiting(s, v);
    if (is_stream(v)) DL_DELETE(s->streams, v);
    if (v->follows) s->stream_count--;
    buf_fini(&v->pending);
    if (v->client) v->client->is_served = false, v->client->since_us = now_us();
    if (v->text) s->bodies_bytes -= v->bytes;
    free(v->text);
    free(v);
}

/* ---- connections ---- */

/* libmicrohttpd accepts none beyond the limit, so that one that comes then would wait until the time of
 * another one is over: the oldest without a request ends at once.  Not more often than ROOM_US says, so that
 * connections without end cost no more than that many. */
static void make_room(server_t *s, uint64_t now)
{
    client_t *c = s->clients;
    if (s->client_count < s->clients_most || now < s->room_us) return;
    s->room_us = now + ROOM_US;
    while (c && c->is_served) c = c->next;
    if (c && c->next) shutdown(c->fd, SHUT_RDWR); /* else it is the one that has just come */
}

static void on_connection(void *self, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    server_t *s = self;
    client_t *c = *context;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (c) {
            DL_DELETE(s->clients, c);
            s->client_count--;
        }
        free(c);
        *context = NULL;
        s->has_closed = true;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    c = info ? calloc(1, sizeof *c) : NULL;
    if (!c) return;
    *c = (client_t){.fd = info->connect_fd, .since_us = now_us()};
    DL_APPEND(s->clients, c);
    *context = c;
    s->client_count++;
}

static void sweep(server_t *s, uint64_t now)
{
    if (now < s->sweep_us) return;
    s->sweep_us = now + SWEEP_US;
    /* A client that sends a byte now and then keeps a connection from being idle, and so is held to a time
     * for the whole.  The socket ends here, and libmicrohttpd finds that out. */
    client_t *c;
    DL_FOREACH(s->clients, c)
    if (now - c->since_us > (c->is_served ? SEND_US : READ_US)) shutdown(c->fd, SHUT_RDWR);
    /* libmicrohttpd does not look at a connection that is suspended, and would keep the place of an idle
     * stream for a client that has gone. */
    visit_t *v;
    DL_FOREACH(s->streams, v)
    {
        if (v->state != VISIT_IDLE || !v->client) continue;
        if (poll(&(struct pollfd){.fd = v->client->fd, .events = POLLRDHUP}, 1, 0) <= 0) continue;
        v->state = VISIT_LEFT;
        go_on(v);
    }
}

/* ---- the thread ---- */

/* At its limit of connections libmicrohttpd does not listen, and begins again in the turn after one has
 * closed: that turn must not wait for anything. */
static int sleep_ms(const server_t *s)
{
    MHD_UNSIGNED_LONG_LONG most = 0;
    uint64_t now = now_us(), until = clock_earlier(s->clients ? s->sweep_us : CLOCK_NEVER, streams_due(s));
    for (const visit_t *v = s->waiting; v; v = v->next)
        until = clock_earlier(until, v->question.ticket ? v->question.due_us : v->ask_us);
    if (s->client_count == s->clients_most) until = clock_earlier(until, s->room_us);
    bool is_due = MHD_get_timeout(s->daemon, &most) == MHD_YES;
    if (is_due) until = clock_earlier(until, now + most * 1000);
    if (s->has_closed) return 0;
    if (until == CLOCK_NEVER) return -1;
    return until > now ? (int)((until - now + 999) / 1000) : 0;
}

/* The kernel is short of memory, or the limit of descriptors is too low.  The end alone is waited for; all
 * else is looked at after a moment. */
static void wait_without(server_t *s, struct pollfd *end)
{
    char scratch[REPEAT_TEXT];
    int why = errno;
    uint64_t times = repeat_note(&s->poll_failures, 0, now_us());
    if (times)
        log_emit(LOG_ERROR, "http.poll",
                 "HTTP cannot wait for its connections: %s; it looks at them every %d ms%s", strerror(why),
                 LOOK_MS, repeat_text(times, scratch));
    poll(end, 1, LOOK_MS);
}

static void *run(void *self)
{
    server_t *s = self;
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* of this thread: readers wait, and not members */
    int http_fd = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    struct pollfd fds[] = {{.fd = http_fd, .events = POLLIN},
                           {.fd = mailbox_reply_fd(s->mailbox), .events = POLLIN},
                           {.fd = s->end_fd, .events = POLLIN}};
    while (!fds[2].revents) {
        if (poll(fds, sizeof fds / sizeof *fds, sleep_ms(s)) < 0 && errno != EINTR) wait_without(s, &fds[2]);
        uint64_t now = now_us();
        take_replies(s);
        end_late(s, now);
        ask_together(s, now);
        feed_streams(s, now);
        sweep(s, now);
        make_room(s, now);
        s->has_closed = false;
        MHD_run(s->daemon);
    }
    /* A connection that waits has to go on before libmicrohttpd can end it, and no other one may begin to. */
    s->is_ending = true;
    while (s->waiting) {
        visit_t *v = s->waiting;
        answer_ending(s, v);
        stop_waiting(s, v);
        go_on(v);
    }
    visit_t *v;
    DL_FOREACH(s->streams, v) go_on_stream(v);
    MHD_run(s->daemon);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
    return NULL;
}

/* NULL: it did not start.  Where libmicrohttpd fails it has closed the socket that it was given, or has not,
 * and a second close could end another descriptor of that number: so it gets one of its own. */
static struct MHD_Daemon *start(server_t *s, const server_opts_t *opts)
{
    uint64_t most = descriptors_limit() / DESCRIPTORS_SHARE;
    unsigned connections = s->clients_most = most < CONNECTIONS ? (unsigned)most : CONNECTIONS;
    int listen_fd = fcntl(opts->listen_fd, F_DUPFD_CLOEXEC, 0);
    if (listen_fd < 0) return NULL;
    const certificate_t *c = opts->certificate;
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, c ? c->chain : NULL},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, c ? c->key : NULL},
                                   {MHD_OPTION_HTTPS_PRIORITIES, 0, TLS_PRIORITIES},
                                   {MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (c ? MHD_USE_TLS : 0u), 0, NULL, NULL, on_request, s,
        MHD_OPTION_ARRAY, c ? tls : tls + 3, MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT, opts->is_remote ? connections / ADDRESSES : 0u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADERS_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_URI_LOG_CALLBACK, on_target, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
}

static char *busy_text(void)
{
    heddle_error_t error;
    be_busy(&error);
    json_t *body = body_of_error("http", &error);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

int server_open(const server_opts_t *opts, server_t **ret_server, heddle_error_t *error)
{
    server_t *s = calloc(1, sizeof *s);
    if (!s) {
        close(opts->listen_fd);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to serve HTTP");
    }
    s->program = opts->program;
    s->has_api = opts->has_api;
    if (opts->certificate) s->certificate_end_ms = opts->certificate->end_ms;
    if (opts->token) error_text(s->token, sizeof s->token, opts->token);
    s->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->busy = busy_text();
    int rc = mailbox_new(&s->mailbox);
    if (!rc && s->busy && s->end_fd >= 0) s->daemon = start(s, opts);
    close(opts->listen_fd);
    if (s->daemon && thread_start("heddle-http", run, s, &s->thread) == 0) {
        s->has_thread = true;
        *ret_server = s;
        return HEDDLE_OK;
    }
    server_close(&s);
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory, descriptor or thread is left to serve HTTP");
}

mailbox_t *server_mailbox(server_t *s) { return s->mailbox; }

void server_close(server_t **server)
{
    server_t *s = server ? *server : NULL;
    uint64_t one = 1;
    if (!s) return;
    *server = NULL;
    if (s->has_thread) {
        while (write(s->end_fd, &one, sizeof one) < 0 && errno == EINTR) {}
        pthread_join(s->thread, NULL);
    }
    if (s->daemon) MHD_stop_daemon(s->daemon);
    if (s->end_fd >= 0) close(s->end_fd);
    mailbox_destroy(&s->mailbox);
    explicit_bzero(s->token, sizeof s->token);
    free(s->busy);
    free(s);
}
