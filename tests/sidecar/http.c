/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's probes, with a library made here: how often it is asked. */
#include "sidecar/http.h"

#include "core/clock.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ASKS = 100, KEPT_US = 200000 };

static atomic_int reports;
static atomic_bool is_down;

/* The library's. */
int heddle_worker_stats(heddle_worker_t *w, char **ret_json)
{
    (void)w;
    reports++;
    *ret_json =
        strdup(is_down ? "{\"session\":{\"state\":\"down\"}}" : "{\"session\":{\"state\":\"ready\"}}");
    return *ret_json ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
}

static int status_of(const http_t *h, const char *path)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(strrchr(http_url(h), ':') + 1)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[256] = "";
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    cr_assert_eq(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
    ssize_t got = recv(fd, text, sizeof text - 1, MSG_WAITALL);
    close(fd);
    return got > 12 ? atoi(text + strlen("HTTP/1.1 ")) : 0;
}

Test(http, probes_without_end_cost_the_library_little, .timeout = 60)
{
    static const char *const PATHS[] = {"/livez", "/readyz", "/metrics"}, *const NONE[] = {NULL};
    http_opts_t with = {.service = {.program = "worker", .listen = "*"}, .adapters = NONE};
    http_t *h = NULL;
    heddle_error_t error;
    cr_assert_eq(http_open(&with, &h, &error), HEDDLE_OK, "%s", error.message);
    cr_expect_eq(status_of(h, "/readyz"), 503, "there is no worker");
    cr_expect_eq(reports, 0);
    http_set_worker(h, (heddle_worker_t *)&with); /* it is given back to the library alone */
    uint64_t begin_us = clock_now(clock_system());
    for (int i = 0; i < ASKS; i++) cr_expect_eq(status_of(h, PATHS[i % 3]), 200, "%d", i);
    uint64_t most = 1 + (clock_now(clock_system()) - begin_us) / KEPT_US;
    cr_expect((uint64_t)reports <= most, "%d reports for %d questions", reports, ASKS);
    is_down = true;
    while (status_of(h, "/readyz") != 503) continue; /* what is old is not said for long */
    cr_expect_eq(status_of(h, "/livez"), 200);
    http_close(&h);
}
