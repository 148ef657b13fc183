/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to an etcd, with a node that ends at the worst moment. */
#include "broker/store/etcd_http.h"

#include "core/clock.h"
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
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

/* It answers the first request.  The second one it takes whole, and then it is gone without an answer.  Ends
 * with how many came whole. */
static void run_node(int listen_fd)
{
    static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    int fd = accept(listen_fd, NULL, NULL), requests = take_request(fd);
    send(fd, ANSWER, strlen(ANSWER), 0);
    requests += take_request(fd);
    close(listen_fd);
    close(fd);
    _exit(requests);
}

static void on_end(void *self, etcd_lane_t lane, etcd_outcome_t outcome, bytes_t body)
{
    ended_t *n = self;
    (void)lane;
    (void)body;
    n->is_over = true;
    n->outcome = outcome;
}

static etcd_outcome_t ask(etcd_http_t *h, ended_t *n)
{
    uint64_t end_us = clock_now(clock_system()) + PATIENCE_MS * 1000ull;
    etcd_request_t request = {.call = ETCD_TXN, .timeout_ms = PATIENCE_MS, .body = bytes_of("body", 4)};
    n->is_over = false;
    cr_assert(etcd_http_send(h, ETCD_WORK, &request));
    while (!n->is_over && clock_now(clock_system()) < end_us) {
        poll(&(struct pollfd){.fd = etcd_http_fd(h), .events = POLLIN}, 1, 10);
        etcd_http_turn(h, clock_now(clock_system()));
    }
    cr_assert(n->is_over);
    return n->outcome;
}

/* libcurl tries the second one again by itself, and finds none that listens. */
Test(etcd_http, a_request_that_arrived_is_not_called_unsent)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    ended_t n = {0};
    int listen_fd = socket(AF_INET, SOCK_STREAM, 0), status = 0;
    char url[64];
    const char *urls[] = {url};
    etcd_http_t *h;
    heddle_error_t e;
    cr_assert_eq(bind(listen_fd, (struct sockaddr *)&at, sizeof at), 0);
    cr_assert_eq(listen(listen_fd, 1), 0);
    cr_assert_eq(getsockname(listen_fd, (struct sockaddr *)&at, &bytes), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    pid_t node = fork();
    if (!node) run_node(listen_fd);
    close(listen_fd);
    etcd_http_opts_t opts = {.urls = urls, .count = 1, .on_end = on_end, .self = &n};
    cr_assert_eq(etcd_http_new(&opts, &h, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(ask(h, &n), ETCD_ANSWERED);
    cr_expect_eq(ask(h, &n), ETCD_UNKNOWN);
    cr_assert_eq(waitpid(node, &status, 0), node);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 2, "both came: %#x", (unsigned)status);
    cr_expect_eq(ask(h, &n), ETCD_UNSENT, "now nothing can arrive");
    etcd_http_destroy(&h);
}
