/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to an etcd, with a node that ends at the worst moment. */
#include "broker/store/etcd_http.h"

#include "core/clock.h"
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000 };

typedef struct {
    bool is_over;
    etcd_outcome_t outcome;
} ended_t;

static bool take_request(int fd)
{
    char text[4096] = "";
    size_t have = 0;
    while (!strstr(text, "\r\n\r\nbody")) {
        ssize_t n = recv(fd, text + have, sizeof text - 1 - have, 0);
        if (n <= 0) return false;
        have += (size_t)n;
        text[have] = 0;
    }
    return true;
}

static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

static void send_answer(int fd) { send(fd, ANSWER, strlen(ANSWER), 0); }

/* It answers the first request.  The second one it takes whole, and then it is gone without an answer.  Ends
 * with how many came whole. */
static void run_node(int listen_fd)
{
    int fd = accept(listen_fd, NULL, NULL), requests = take_request(fd);
    send_answer(fd);
    requests += take_request(fd);
    close(listen_fd);
    close(fd);
    _exit(requests);
}

/* As run_node, but that it stays, and answers the request that comes next, over whatever connection. */
static void run_node_that_stays(int listen_fd)
{
    int fd = accept(listen_fd, NULL, NULL);
    take_request(fd);
    send_answer(fd);
    take_request(fd);
    do {
        close(fd);
        fd = accept(listen_fd, NULL, NULL);
    } while (!take_request(fd));
    send_answer(fd);
    _exit(take_request(fd));
}

static void on_end(void *self, etcd_lane_t lane, etcd_outcome_t outcome, bytes_t body)
{
    ended_t *n = self;
    (void)lane;
    (void)body;
    n->is_over = true;
    n->outcome = outcome;
}

static void send_request(etcd_http_t *h, ended_t *n)
{
    etcd_request_t request = {.call = ETCD_TXN, .timeout_ms = PATIENCE_MS, .body = bytes_of("body", 4)};
    n->is_over = false;
    cr_assert(etcd_http_send(h, ETCD_WORK, &request));
}

static void turn(etcd_http_t *h)
{
    poll(&(struct pollfd){.fd = etcd_http_fd(h), .events = POLLIN}, 1, 10);
    etcd_http_turn(h, clock_now(clock_system()));
}

static etcd_outcome_t ask(etcd_http_t *h, ended_t *n)
{
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_MS * 1000ull;
    send_request(h, n);
    while (!n->is_over && clock_now(clock_system()) < end_us) turn(h);
    cr_assert(n->is_over);
    return n->outcome;
}

/* -> a socket that listens; `ret_url`: its address */
static int listen_at(const char *scheme, char ret_url[64])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    snprintf(ret_url, 64, "%s://127.0.0.1:%d", scheme, ntohs(at.sin_port));
    return fd;
}

static etcd_http_t *open_http(const char *url, ended_t *n)
{
    static const char *urls[1];
    etcd_http_opts_t opts = {.urls = urls, .count = 1, .on_end = on_end, .self = n};
    etcd_http_t *h;
    heddle_error_t e;
    urls[0] = url;
    cr_assert_eq(etcd_http_new(&opts, &h, &e), HEDDLE_OK, "%s", e.message);
    return h;
}

/* libcurl would try the second one again by itself, and finds none that listens. */
Test(etcd_http, a_request_that_arrived_is_not_called_unsent)
{
    ended_t n = {0};
    char url[64];
    int listen_fd = listen_at("http", url), status = 0;
    pid_t node = fork();
    if (!node) run_node(listen_fd);
    close(listen_fd);
    etcd_http_t *h = open_http(url, &n);
    cr_assert_eq(ask(h, &n), ETCD_ANSWERED);
    cr_expect_eq(ask(h, &n), ETCD_UNKNOWN);
    cr_assert_eq(waitpid(node, &status, 0), node);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "both came: %#x", (unsigned)status);
    cr_expect_eq(ask(h, &n), ETCD_UNSENT, "now nothing can arrive");
    etcd_http_destroy(&h);
}

/* What libcurl would send again by itself may be refused, though the first try of it has happened. */
Test(etcd_http, a_request_without_an_answer_is_not_sent_again)
{
    ended_t n = {0};
    char url[64];
    int listen_fd = listen_at("http", url), status = 0;
    pid_t node = fork();
    if (!node) run_node_that_stays(listen_fd);
    close(listen_fd);
    etcd_http_t *h = open_http(url, &n);
    cr_assert_eq(ask(h, &n), ETCD_ANSWERED);
    cr_expect_eq(ask(h, &n), ETCD_UNKNOWN);
    cr_expect_eq(ask(h, &n), ETCD_ANSWERED, "the next one is sent");
    etcd_http_destroy(&h);
    cr_assert_eq(waitpid(node, &status, 0), node);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "and nothing else: %#x", (unsigned)status);
}

/* The first message of TLS names the protocols that the client offers. */
Test(etcd_http, over_tls_each_lane_has_a_connection_of_its_own)
{
    ended_t n = {0};
    char url[64], hello[4096];
    int listen_fd = listen_at("https", url);
    etcd_http_t *h = open_http(url, &n);
    send_request(h, &n);
    while (poll(&(struct pollfd){.fd = listen_fd, .events = POLLIN}, 1, 0) == 0 && !n.is_over) turn(h);
    int fd = accept(listen_fd, NULL, NULL);
    while (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 0 && !n.is_over) turn(h);
    ssize_t bytes = recv(fd, hello, sizeof hello, 0);
    cr_assert_gt(bytes, 0);
    cr_expect(memmem(hello, (size_t)bytes, "\x08http/1.1", 9) != NULL);
    cr_expect(!memmem(hello, (size_t)bytes, "\x02h2", 3), "HTTP/2 would share one");
    etcd_http_destroy(&h);
    close(fd);
    close(listen_fd);
}

/* The socket of the client whose peer has this port. */
static int find_socket(const char *url)
{
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in peer = {0};
        socklen_t bytes = sizeof peer;
        if (!getpeername(fd, (struct sockaddr *)&peer, &bytes) && peer.sin_family == AF_INET &&
            ntohs(peer.sin_port) == atoi(strrchr(url, ':') + 1))
            return fd;
    }
    return -1;
}

/* The answers to a watch have no time-out. */
Test(etcd_http, a_silent_connection_is_probed)
{
    ended_t n = {0};
    char url[64];
    int listen_fd = listen_at("http", url), is_kept = 0;
    socklen_t bytes = sizeof is_kept;
    etcd_http_t *h = open_http(url, &n);
    send_request(h, &n);
    while (poll(&(struct pollfd){.fd = listen_fd, .events = POLLIN}, 1, 0) == 0 && !n.is_over) turn(h);
    cr_assert_eq(getsockopt(find_socket(url), SOL_SOCKET, SO_KEEPALIVE, &is_kept, &bytes), 0);
    cr_expect(is_kept);
    etcd_http_destroy(&h);
    close(listen_fd);
}
