/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that has the connections, with a loop made here: what it bounds, and what it gives back. */
#include "http/listener.h"
#include "http/server.h"

#include "core/clock.h"
#include "core/errors.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PATIENCE_MS = 30000,
    LARGE_BYTES = 8 << 20,
    LARGE_COUNT = 40,
    STREAM_COUNT = 32,
    PROBE_COUNT = 100, /* more than the mailbox has places */
    QUESTION_COUNT = 40,
    FEW_DESCRIPTORS = 256,
    STREAM_PLACE_US = 8000000, /* much less than the 15 s between two signs of life */
    BEAT_S = 15,               /* between two signs of life */
    SEND_S = 60,               /* for an answer to be read */
    EVENTS_BYTES = 16 << 20,   /* of a page: more than the sockets of both ends hold */
    NEWS_END = 10000,          /* beyond all numbers of events that are noted */
    READS_MOST = 20000         /* of the clock, while PROBE_COUNT requests are answered: about 20 each */
};

typedef struct {
    server_t *server;
    uint16_t port;
    pthread_t loop;
    int end_fd;
    json_t *large;         /* of each page, in the test about bytes */
    int together;          /* so many questions are answered one right after the other */
    bool more;             /* pages never end */
    int unready;           /* of each probe: why; 0: it is well */
    atomic_int asked;      /* for pages that are not of events */
    char *words;           /* of the event that the first pages have; NULL: there is none */
    int pages;             /* so many more than one have it */
    atomic_bool stands_by; /* it has no events */
    atomic_int events_asked;
} rig_t;

/* ---- the clock ---- */

static atomic_long ahead_s;
/* Since the start of this host: on a slow machine no question is late, and no connection is ended while its
 * answer waits. */
static atomic_bool is_standing = true;
static atomic_ulong clock_reads;

/* Instead of libc's: the time of the server is that of the test. */
int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, ret_now);
    if (clock != CLOCK_BOOTTIME) return rc;
    atomic_fetch_add(&clock_reads, 1);
    ret_now->tv_sec += atomic_load(&ahead_s);
    if (atomic_load(&is_standing)) *ret_now = (struct timespec){.tv_sec = 1 + atomic_load(&ahead_s)};
    return rc;
}

/* Instead of libc's: the server's thread runs as the others do.  On a busy machine the tests would wait
 * minutes for what is done in a second. */
int setpriority(__priority_which_t which, id_t who, int priority)
{
    (void)which, (void)who, (void)priority;
    return 0;
}

/* ---- the loop ---- */

/* The first pages have the event, if there is one; the others have nothing. */
static void add_events(rig_t *r, const request_t *request, reply_t *reply)
{
    bool is_first = atomic_fetch_add(&r->events_asked, 1) <= r->pages;
    reply->epoch = 1;
    reply->next = is_first || !r->words ? 1 : NEWS_END;
    if (is_first && r->words)
        buf_printf(&reply->events,
                   "id: 1-0\ndata: {\"words\":\"%s\",\"adapter\":\"%s\",\"worker\":\"%s\"}\n\n", r->words,
                   request->ref.name, request->worker);
}

static void answer(rig_t *r, const question_t *q)
{
    reply_t reply = {.ticket = q->ticket, .more = r->more};
    if (!q->is_stream && !request_is_probe(&q->request)) atomic_fetch_add(&r->asked, 1);
    if (request_is_probe(&q->request)) reply.more = false;
    if (request_is_probe(&q->request) && r->unready) error_fail(&reply.error, r->unready, "etcd refuses it");
    else if (request_is_probe(&q->request)) reply.body = json_pack("{s:b}", "ok", 1);
    else if (q->is_stream && atomic_load(&r->stands_by))
        error_fail(&reply.error, HEDDLE_ERR_UNAVAILABLE, "another broker leads");
    else if (q->is_stream) add_events(r, &q->request, &reply);
    else if (r->large) reply.body = json_deep_copy(r->large); /* one of two threads counts its readers */
    else reply.body = json_pack("{s:[i]}", "workers", 1);
    mailbox_reply(server_mailbox(r->server), &reply);
}

static void *run_loop(void *self)
{
    rig_t *r = self;
    question_t q[MAILBOX_PLACES];
    mailbox_t *m = server_mailbox(r->server);
    struct pollfd fds[] = {{.fd = mailbox_question_fd(m), .events = POLLIN},
                           {.fd = r->end_fd, .events = POLLIN}};
    int count = 0;
    for (;;) {
        poll(fds, 2, -1);
        if (fds[1].revents) return NULL;
        if (!mailbox_next(m, clock_now(clock_system()), &q[count])) continue;
        if (request_is_probe(&q[count].request)) answer(r, &q[count]);
        else if (++count >= r->together)
            while (count) answer(r, &q[--count]);
    }
}

/* Questions wait until rig_answer. */
static void rig_open_silent(rig_t *r)
{
    listener_address_t address;
    char url[96];
    server_opts_t with = {.program = "test", .has_api = true};
    heddle_error_t error;
    cr_assert_eq(listener_parse("127.0.0.1:*", &address, &error), HEDDLE_OK);
    cr_assert_eq(listener_open(&address, false, &with.listen_fd, url, &error), HEDDLE_OK);
    r->port = (uint16_t)atoi(strrchr(url, ':') + 1);
    cr_assert_eq(server_open(&with, &r->server, &error), HEDDLE_OK);
    r->end_fd = eventfd(0, EFD_CLOEXEC);
}

static void rig_answer(rig_t *r) { cr_assert_eq(pthread_create(&r->loop, NULL, run_loop, r), 0); }

static void rig_open(rig_t *r)
{
    rig_open_silent(r);
    rig_answer(r);
}

static void rig_close(rig_t *r)
{
    cr_assert_eq(eventfd_write(r->end_fd, 1), 0);
    pthread_join(r->loop, NULL);
    server_close(&r->server);
    close(r->end_fd);
    json_decref(r->large);
}

/* ---- clients ---- */

static int client_open(const rig_t *r)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(r->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), small = 4096;
    cr_assert(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void client_ask(int fd, const char *path, const char *accept)
{
    char text[256];
    int n =
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: %s\r\n\r\n", path, accept);
    cr_assert_eq(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
}

/* The beginning of an answer, up to `until`; returns its status, 0: the connection ended before it.  An
 * answer may take as long as the test has. */
static int client_read(int fd, const char *until, char text[4096])
{
    size_t n = 0;
    text[0] = 0;
    while (!strstr(text, until) && n < 4095) {
        ssize_t got = recv(fd, text + n, 4095 - n, 0);
        if (got <= 0) return 0;
        text[n += (size_t)got] = 0;
    }
    return atoi(text + strlen("HTTP/1.1 "));
}

static int status_of(const rig_t *r, const char *path, char text[4096])
{
    int fd = client_open(r);
    client_ask(fd, path, "*/*");
    int status = client_read(fd, "\r\n\r\n", text);
    close(fd);
    return status;
}

static int stream_open(const rig_t *r, const char *until, char text[4096], int *ret_fd)
{
    int fd = ret_fd[0] = client_open(r);
    client_ask(fd, "/api/v1/events", "text/event-stream");
    return client_read(fd, until, text);
}

/* ---- what is bounded ---- */

/* Answers count from when they are made, also those of one turn, until they are sent or given up. */
Test(server, answers_on_their_way_are_bounded, .timeout = 120)
{
    rig_t r = {.together = LARGE_COUNT};
    char text[4096], *letters = malloc(LARGE_BYTES);
    int fds[LARGE_COUNT], taken = 0, busy = 0, status = 0;
    memset(letters, 'x', LARGE_BYTES);
    r.large = json_pack("{s:[s#]}", "workers", letters, LARGE_BYTES);
    free(letters);
    rig_open(&r);
    for (int i = 0; i < LARGE_COUNT; i++) {
        fds[i] = client_open(&r);
        client_ask(fds[i], "/api/v1/workers", "*/*");
    }
    for (int i = LARGE_COUNT - 1; i >= 0; i--) { /* the last question is answered first */
        int found = client_read(fds[i], "}", text);
        taken += found == 200;
        busy += found == 503 && strstr(text, "\"code\":\"limit\"") && strstr(text, "Retry-After: 1");
    }
    cr_expect_eq(taken, 31, "%d answers of 8 MiB and a little in 256 MiB", taken);
    cr_expect_eq(busy, LARGE_COUNT - taken, "for the others it is busy: %s", text);
    cr_expect_eq(status_of(&r, "/livez", text), 200, "a probe is answered all the same: %s", text);
    cr_expect(strstr(text, "Content-Length: 11\r\n"), "with its body: %s", text);
    for (int i = 0; i < LARGE_COUNT; i++) close(fds[i]);
    r.together = 1;
    while (status != 200) status = status_of(&r, "/api/v1/workers", text); /* as their room is free again */
    rig_close(&r);
}

/* An answer that never ends is refused for good; and few are joined at a time. */
Test(server, an_answer_of_too_many_pages_is_refused, .timeout = 60)
{
    rig_t r = {.together = 1, .more = true};
    char text[4096];
    rig_open(&r);
    int fd = client_open(&r);
    client_ask(fd, "/api/v1/workers", "*/*");
    cr_expect_eq(client_read(fd, "\"retriable\"", text), 500, "%s", text);
    cr_expect(strstr(text, "more than 256 pages"), "%s", text);
    cr_expect_not(strstr(text, "Retry-After"), "it will be the same in a moment: %s", text);
    close(fd);
    rig_close(&r);
}

/* With 401 its asker would look for a token. */
Test(server, a_probe_that_fails_is_unavailable_whatever_the_reason, .timeout = 60)
{
    rig_t r = {.together = 1, .unready = HEDDLE_ERR_DENIED};
    char text[4096];
    rig_open(&r);
    int fd = client_open(&r);
    client_ask(fd, "/readyz", "*/*");
    cr_expect_eq(client_read(fd, "etcd refuses it", text), 503, "%s", text);
    cr_expect(strstr(text, "\"code\":\"denied\""), "%s", text);
    close(fd);
    rig_close(&r);
}

/* They need no token, and so must not keep out what has one: one question stands for all of a kind. */
Test(server, probes_take_no_places_of_questions, .timeout = 60)
{
    static const char *const PROBES[] = {"/livez", "/readyz"};
    rig_t r = {.together = 1};
    char text[4096];
    enum { LAST = PROBE_COUNT + QUESTION_COUNT };
    int fds[LAST + 1];
    rig_open_silent(&r);
    for (int i = 0; i <= LAST; i++)
        fds[i] = client_open(&r); /* takes as long as it takes; a question has 2 s */
    for (int i = 0; i < LAST; i++)
        client_ask(fds[i], i < PROBE_COUNT ? PROBES[i % 2] : "/api/v1/workers", "*/*");
    client_ask(fds[LAST], "/nothing", "*/*");
    cr_expect_eq(client_read(fds[LAST], "\r\n\r\n", text), 404, "those before it wait: %s", text);
    close(fds[LAST]);
    rig_answer(&r);
    for (int i = 0; i < LAST; i++) {
        cr_expect_eq(client_read(fds[i], "}", text), 200, "%d: %s", i, text);
        close(fds[i]);
    }
    rig_close(&r);
}

/* No loop answers any more, and a probe must not take it for a crowd. */
Test(server, a_request_that_waits_at_the_end_has_the_reason, .timeout = 60)
{
    rig_t r = {.together = 1};
    char text[4096];
    rig_open_silent(&r);
    int fd = client_open(&r);
    struct pollfd asked = {.fd = mailbox_question_fd(server_mailbox(r.server)), .events = POLLIN};
    client_ask(fd, "/api/v1/workers", "*/*");
    cr_assert_eq(poll(&asked, 1, PATIENCE_MS), 1, "the question is there");
    server_close(&r.server);
    close(r.end_fd);
    cr_expect_eq(client_read(fd, "}", text), 503, "%s", text);
    cr_expect(strstr(text, "\"unavailable\"") && strstr(text, "the test is ending"), "%s", text);
    close(fd);
}

static void limit_descriptors(void)
{
    struct rlimit few;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &few), 0);
    few.rlim_cur = few.rlim_max = FEW_DESCRIPTORS;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
}

/* Members need descriptors, and the limit may be low. */
Test(server, connections_leave_descriptors, .timeout = 60)
{
    rig_t r = {.together = 1};
    char text[4096];
    int fds[FEW_DESCRIPTORS / 4];
    enum { LAST = FEW_DESCRIPTORS / 4 - 1 };
    limit_descriptors();
    atomic_store(&is_standing, false);
    rig_open(&r);
    for (int i = 0; i <= LAST; i++) fds[i] = client_open(&r);
    client_ask(fds[LAST], "/livez", "*/*");
    cr_expect_eq(client_read(fds[LAST], "}", text), 200, "%s", text);
    cr_expect_eq(recv(fds[0], text, 1, MSG_DONTWAIT), 0,
                 "it had no place before those that say nothing lost theirs");
    for (int i = 0; i <= LAST; i++) close(fds[i]);
    rig_close(&r);
}

/* An eighth of the places, also of few: streams alone never take all. */
Test(server, streams_leave_places, .timeout = 60)
{
    enum { STREAMS = FEW_DESCRIPTORS / 8 / 8 };
    rig_t r = {.together = 1};
    char text[4096];
    int fds[STREAMS + 1];
    limit_descriptors();
    rig_open(&r);
    for (int i = 0; i < STREAMS; i++)
        cr_expect_eq(stream_open(&r, "retry: ", text, &fds[i]), 200, "%d: %s", i, text);
    cr_expect_eq(stream_open(&r, "}", text, &fds[STREAMS]), 503, "%s", text);
    cr_expect_eq(status_of(&r, "/api/v1/workers", text), 200, "%s", text);
    for (int i = 0; i <= STREAMS; i++) close(fds[i]);
    rig_close(&r);
}

/* Only so much time passes that none has lost its place by its time.  One ends at a time: connections without
                                       * end cost no more than that. */
Test(server, the_oldest_that_says_nothing_makes_room, .timeout = 60)
{
    enum { PLACES = FEW_DESCRIPTORS / 8 };
    rig_t r = {.together = 1};
    char text[4096];
    int fds[PLACES], stream;
    limit_descriptors();
    rig_open(&r);
    cr_assert_eq(stream_open(&r, "retry: ", text, &stream), 200, "%s", text);
    for (int i = 0; i < PLACES; i++) fds[i] = client_open(&r);
    cr_expect_eq(recv(fds[0], text, 1, 0), 0, "the oldest has ended");
    atomic_store(&ahead_s, 1);
    cr_expect_eq(status_of(&r, "/livez", text), 200, "%s", text);
    cr_expect_eq(recv(fds[1], text, 1, MSG_DONTWAIT), 0, "and the next one, a moment later");
    cr_expect_eq(recv(fds[2], text, 1, MSG_DONTWAIT), -1, "no other one in that moment");
    cr_expect_eq(recv(fds[PLACES - 1], text, 1, MSG_DONTWAIT), -1, "the newest has not");
    cr_expect(recv(stream, text, sizeof text, MSG_DONTWAIT) != 0, "nor one that is answered");
    for (int i = 0; i < PLACES; i++) close(fds[i]);
    close(stream);
    rig_close(&r);
}

/* ---- what comes back ---- */

/* In a second, and not when a sign of life finds no reader. */
Test(server, a_stream_without_a_client_gives_its_place_back, .timeout = 60)
{
    rig_t r = {.together = 1};
    char text[4096];
    int fds[STREAM_COUNT + 1], status = 0;
    atomic_store(&is_standing, false);
    rig_open(&r);
    for (int i = 0; i <= STREAM_COUNT; i++) {
        fds[i] = client_open(&r);
        client_ask(fds[i], "/api/v1/events", "text/event-stream");
        cr_expect_eq(client_read(fds[i], i < STREAM_COUNT ? "retry: " : "\r\n\r\n", text),
                     i < STREAM_COUNT ? 200 : 503, "%d: %s", i, text);
    }
    for (int i = 0; i <= STREAM_COUNT; i++) close(fds[i]);
    uint64_t end_us = clock_now(clock_system()) + STREAM_PLACE_US;
    while (status != 200 && clock_now(clock_system()) < end_us) {
        fds[0] = client_open(&r);
        client_ask(fds[0], "/api/v1/events", "text/event-stream");
        status = client_read(fds[0], "\r\n\r\n", text);
        if (status != 200) close(fds[0]);
    }
    cr_expect_eq(status, 200, "%s", text);
    close(fds[0]);
    rig_close(&r);
}

/* A turn of the thread looks at all streams; a request that is answered without the loop shows that some were. */
static void let_turn(const rig_t *r, int seconds)
{
    char text[4096];
    atomic_fetch_add(&ahead_s, seconds);
    for (int i = 0; i < 3; i++) cr_assert_eq(status_of(r, "/nowhere", text), 404, "%s", text);
}

/* Opens so many while the clock stands at 1 s. */
static void pages_open(rig_t *r, int count, int *ret_fds)
{
    char text[4096];
    for (int i = 0; i < count; i++)
        cr_assert_eq(stream_open(r, "retry: ", text, &ret_fds[i]), 200, "%s", text);
}

/* All pages together ask as often as four do, and at the same moments: every 2.5 s here.  What comes soon
 * before such a moment is for the next one. */
Test(server, pages_share_how_often_they_ask, .timeout = 60)
{
    enum { COUNT = 25 };
    static const char *const PACES[] = {"X-Pace-Ms: 1500\r\n", "X-Pace-Ms: 3000\r\n", "X-Pace-Ms: 2000\r\n"};
    rig_t r = {.together = 1};
    char text[4096];
    int fds[COUNT];
    rig_open(&r);
    cr_assert_eq(status_of(&r, "/api/v1/workers", text), 200, "%s", text);
    cr_expect(strstr(text, "X-Pace-Ms: 0\r\n"), "%s", text);
    pages_open(&r, COUNT, fds);
    for (int i = 0; i < 3; i++) {
        int fd = client_open(&r);
        client_ask(fd, "/api/v1/workers", "*/*");
        let_turn(&r, 0);
        let_turn(&r, 1);
        cr_assert_eq(client_read(fd, "}", text), 200, "%s", text);
        cr_expect(strstr(text, PACES[i]), "%d s: %s", i + 1, text);
        close(fd);
    }
    for (int i = 0; i < COUNT; i++) close(fds[i]);
    rig_close(&r);
}

/* The first `count` of the paths are asked for while the clock stands, and answered a second later. */
static void ask_at_once(rig_t *r, const char *const *paths, int count, int status, const char *wanted)
{
    char text[4096];
    int fds[8];
    for (int i = 0; i < count; i++) {
        fds[i] = client_open(r);
        client_ask(fds[i], paths[i], "*/*");
    }
    let_turn(r, 0);
    cr_expect_eq(atomic_load(&r->asked), 0, "they wait for each other");
    let_turn(r, 1);
    for (int i = 0; i < count; i++) {
        cr_expect_eq(client_read(fds[i], wanted, text), status, "%s: %s", paths[i], text);
        close(fds[i]);
    }
}

static const char *const SAME[] = {"/api/v1/workers",   "/api/v1/workers",   "/api/v1/workers",
                                   "/api/v1/workers/a", "/api/v1/workers/b", "/api/v1/status"};

Test(server, requests_of_many_pages_have_one_question, .timeout = 60)
{
    enum { MANY = 5 };
    rig_t r = {.together = 1};
    char text[4096];
    int fds[MANY];
    rig_open(&r);
    pages_open(&r, MANY - 1, fds);
    cr_expect_eq(status_of(&r, SAME[0], text), 200, "with few pages nothing waits: %s", text);
    atomic_store(&r.asked, 0);
    pages_open(&r, 1, &fds[MANY - 1]);
    ask_at_once(&r, SAME, 6, 200, "}");
    cr_expect_eq(atomic_load(&r.asked), 4, "asked %d times", atomic_load(&r.asked));
    for (int i = 0; i < MANY; i++) close(fds[i]);
    rig_close(&r);
}

/* So have the pages of an answer, and how it ends. */
Test(server, pages_of_an_answer_are_joined_once, .timeout = 60)
{
    enum { MANY = 5 };
    rig_t r = {.together = 1};
    int fds[MANY];
    rig_open(&r);
    pages_open(&r, MANY, fds);
    r.more = true;
    ask_at_once(&r, SAME, 3, 500, "more than 256 pages");
    cr_expect_eq(atomic_load(&r.asked), 256, "asked %d times", atomic_load(&r.asked));
    for (int i = 0; i < MANY; i++) close(fds[i]);
    rig_close(&r);
}

/* However many pages are open.  A request that is answered without the loop shows that the thread has looked at
 * its streams again. */
Test(server, streams_that_are_at_one_event_have_one_question, .timeout = 60)
{
    enum { COUNT = 20 };
    rig_t r = {.together = 1, .words = "x"};
    char text[4096];
    int fds[COUNT];
    rig_open_silent(&r);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = client_open(&r);
        client_ask(fds[i], "/api/v1/events", "text/event-stream");
    }
    for (int i = 0; i < 2; i++) cr_assert_eq(status_of(&r, "/nowhere", text), 404, "%s", text);
    rig_answer(&r);
    for (int i = 0; i < COUNT; i++) {
        cr_expect_eq(client_read(fds[i], "data: {", text), 200, "%d: %s", i, text);
        cr_expect(strstr(text, "id: 1-0\ndata: {"), "%d: %s", i, text);
        close(fds[i]);
    }
    cr_expect_eq(atomic_load(&r.events_asked), 1, "asked %d times", atomic_load(&r.events_asked));
    rig_close(&r);
}

/* The page of one adapter is not that of another, nor that of a worker. */
Test(server, streams_with_other_filters_have_questions_of_their_own, .timeout = 60)
{
    static const char *const PATHS[] = {"/api/v1/events?adapter=a", "/api/v1/events?adapter=b",
                                        "/api/v1/events?worker=a"};
    static const char *const WANTED[] = {"\"adapter\":\"a\",\"worker\":\"\"",
                                         "\"adapter\":\"b\",\"worker\":\"\"",
                                         "\"adapter\":\"\",\"worker\":\"a\""};
    enum { COUNT = sizeof PATHS / sizeof *PATHS };
    rig_t r = {.together = 1, .words = "x", .pages = COUNT - 1};
    char text[4096];
    int fds[COUNT];
    rig_open_silent(&r);
    for (int i = 0; i < COUNT; i++) {
        fds[i] = client_open(&r);
        client_ask(fds[i], PATHS[i], "text/event-stream");
    }
    for (int i = 0; i < 2; i++) cr_assert_eq(status_of(&r, "/nowhere", text), 404, "%s", text);
    rig_answer(&r);
    for (int i = 0; i < COUNT; i++) {
        client_read(fds[i], "\"}", text);
        cr_expect(strstr(text, WANTED[i]), "%s: %s", PATHS[i], text);
        close(fds[i]);
    }
    cr_expect_eq(atomic_load(&r.events_asked), COUNT, "asked %d times", atomic_load(&r.events_asked));
    rig_close(&r);
}

/* The first that asked, or another one: the answer is for those that are left. */
Test(server, a_client_that_leaves_takes_no_answer_along, .timeout = 60)
{
    enum { COUNT = 3 };
    for (int leaver = 0; leaver < COUNT - 1; leaver++) {
        rig_t r = {.together = 1, .words = "x", .pages = COUNT};
        char text[4096];
        int fds[COUNT];
        rig_open(&r);
        for (int i = 0; i < COUNT; i++)
            cr_assert_eq(stream_open(&r, "\"}\n\n", text, &fds[i]), 200, "%s", text);
        r.together = 2; /* the loop answers when there is another question */
        mailbox_note(server_mailbox(r.server), 1);
        let_turn(&r, 1);
        close(fds[leaver]);
        let_turn(&r, 2);
        cr_expect_eq(atomic_load(&r.events_asked), COUNT, "the question is out");
        cr_expect_eq(status_of(&r, "/api/v1/workers", text), 200, "%s", text);
        for (int i = 0; i < COUNT; i++) {
            if (i == leaver) continue;
            client_read(fds[i], "\n\n", text);
            cr_expect(strstr(text, "data: {"), "%d without %d: %s", i, leaver, text);
            close(fds[i]);
        }
        cr_expect_eq(atomic_load(&r.events_asked), COUNT + 1, "once for all");
        rig_close(&r);
    }
}

/* Else it would begin anew when it connects again, and what it missed would not be said. */
Test(server, a_stream_without_events_has_a_place, .timeout = 60)
{
    rig_t r = {.together = 1};
    char text[4096];
    int fd;
    atomic_store(&is_standing, true); /* no sign of life comes */
    rig_open(&r);
    stream_open(&r, "id: 1-0\n\n", text, &fd);
    cr_expect(strstr(text, "id: 1-0\n\n"), "%s", text);
    atomic_store(&is_standing, false);
    atomic_store(&ahead_s, BEAT_S + 1);
    cr_expect_eq(status_of(&r, "/nowhere", text), 404);
    client_read(fd, "\n\n", text);
    cr_expect(strstr(text, "id: 1-0\n\n"), "so has its sign of life: %s", text);
    close(fd);
    rig_close(&r);
}

/* The first event has its place, which is not said twice: the next block is the next event. */
Test(server, a_stream_that_begins_with_an_event_has_one_place, .timeout = 60)
{
    rig_t r = {.together = 1, .words = "x", .pages = 1};
    char text[4096], next[4096];
    int fd, places = 0;
    atomic_store(&is_standing, true); /* no sign of life comes */
    rig_open(&r);
    stream_open(&r, "data: {", text, &fd);
    atomic_store(&ahead_s, 1);
    mailbox_note(server_mailbox(r.server), 1000);
    client_read(fd, "data: {", next);
    for (const char *at = text; (at = strstr(at, "id: ")) != NULL; at++) places++;
    for (const char *at = next; (at = strstr(at, "id: ")) != NULL; at++) places++;
    cr_expect_eq(places, 2, "one for each event: %s, %s", text, next);
    close(fd);
    rig_close(&r);
}

/* A client of a standby must not take silence for peace. */
Test(server, a_stream_that_is_refused_has_a_status, .timeout = 60)
{
    rig_t r = {.together = 1};
    char text[4096];
    int fds[2];
    atomic_store(&is_standing, false);
    rig_open(&r);
    cr_assert_eq(stream_open(&r, "retry: ", text, &fds[0]), 200, "%s", text);
    atomic_store(&r.stands_by, true);
    cr_expect_eq(stream_open(&r, "leads", text, &fds[1]), 503, "%s", text);
    cr_expect(strstr(text, "another broker leads") && strstr(text, "Retry-After: "), "%s", text);
    cr_expect_not(strstr(text, "X-Pace-Ms"), "%s", text);
    mailbox_note(server_mailbox(r.server), 1000);
    while (client_read(fds[0], "never", text)) {}
    cr_expect_eq(recv(fds[0], text, 1, MSG_DONTWAIT), 0, "one that went on ends with what it waits for");
    for (int i = 0; i < 2; i++) close(fds[i]);
    rig_close(&r);
}

/* More is not asked for while there is what was not read; it costs no turns; and after a minute its place is
 * free. */
Test(server, a_stream_that_is_not_read_costs_nothing_and_ends, .timeout = 120)
{
    rig_t r = {.together = 1, .words = malloc(EVENTS_BYTES + 1)};
    char text[4096];
    int fds[STREAM_COUNT + 1], status = 0;
    memset(r.words, 'x', EVENTS_BYTES);
    r.words[EVENTS_BYTES] = 0;
    rig_open(&r);
    cr_assert_eq(stream_open(&r, "data: ", text, &fds[0]), 200, "%s", text);
    unsigned long before = atomic_load(&clock_reads);
    for (int i = 0; i < PROBE_COUNT; i++) {
        mailbox_note(server_mailbox(r.server), 1000 + (uint64_t)i);
        cr_assert_eq(status_of(&r, "/livez", text), 200, "%s", text);
    }
    unsigned long reads = atomic_load(&clock_reads) - before;
    cr_expect_eq(atomic_load(&r.events_asked), 1, "asked %d times", atomic_load(&r.events_asked));
    cr_expect_lt(reads, READS_MOST, "%lu reads of the clock", reads);

    for (int i = 1; i <= STREAM_COUNT; i++)
        cr_expect_eq(stream_open(&r, i < STREAM_COUNT ? "retry: " : "\r\n\r\n", text, &fds[i]),
                     i < STREAM_COUNT ? 200 : 503, "%d: %s", i, text);
    atomic_store(&ahead_s, SEND_S + 1);
    while (status != 200) {
        close(fds[STREAM_COUNT]);
        status = stream_open(&r, "\r\n\r\n", text, &fds[STREAM_COUNT]);
    }
    cr_expect_eq(status, 200, "its place is free: %s", text);
    size_t got = 0;
    for (ssize_t n = 1; n > 0 && got<EVENTS_BYTES; got += n> 0 ? (size_t)n : 0)
        n = recv(fds[0], text, sizeof text, 0);
    cr_expect_lt(got, EVENTS_BYTES, "its connection ends after %zu bytes", got);
    for (int i = 0; i <= STREAM_COUNT; i++) close(fds[i]);
    rig_close(&r);
    free(r.words);
}

/* poll fails where it is given more descriptors than the process may have. */
Test(server, a_poll_that_fails_ends_nothing, .timeout = 60)
{
    rig_t r = {.together = 1};
    char text[4096];
    struct rlimit before, few;
    rig_open(&r);
    int fds[] = {client_open(&r), client_open(&r), client_open(&r)};
    cr_expect_eq(status_of(&r, "/livez", text), 200, "all connections are accepted");
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = 2, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < 3; i++) {
        client_ask(fds[i], "/livez", "*/*");
        cr_expect_eq(client_read(fds[i], "}", text), 200, "%d: %s", i, text);
        close(fds[i]);
    }
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_expect_eq(status_of(&r, "/livez", text), 200);
    rig_close(&r);
}
