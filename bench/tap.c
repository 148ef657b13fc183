/* SPDX-License-Identifier: Apache-2.0 */
/* A ZMTP frame counter, and the forwarding process around it.
 *
 * It runs in a process of its own, so that its work is not counted as CPU of a member. It understands of the
 * protocol only where a frame ends; the bytes pass unchanged, so the members cannot tell that it is there. */
#include "bench/tap.h"

#include "bench/tcp.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    GREETING_BYTES = 64,
    FLAG_MORE = 1,
    FLAG_LONG = 2,
    FLAG_COMMAND = 4,
    LINES_MAX = 64,
    BUFFER_BYTES = 65536
};

void tap_count(tap_count_t *c, const void *data, size_t bytes)
{
    c->bytes += bytes;
    for (const uint8_t *at = data, *end = at + bytes; at < end;) {
        uint64_t here = (uint64_t)(end - at);
        if (c->seen < GREETING_BYTES) {
            uint64_t step = GREETING_BYTES - c->seen < here ? GREETING_BYTES - c->seen : here;
            c->seen += step;
            at += step;
        } else if (c->left) {
            uint64_t step = c->left < here ? c->left : here;
            c->left -= step;
            at += step;
        } else {
            /* The header of a frame: flags, then a length of one byte or of eight in network order (ZMTP 3.1,
             * RFC 37). It may come in pieces, so it is kept until it is complete. */
            c->head[c->head_bytes++] = *at++;
            size_t need = c->head[0] & FLAG_LONG ? 9 : 2;
            if (c->head_bytes < need) continue;
            for (size_t i = 1; i < need; i++) c->left = c->left << 8 | c->head[i];
            c->head_bytes = 0;
            c->messages += !(c->head[0] & (FLAG_MORE | FLAG_COMMAND));
        }
    }
}

/* A client and its own connection to the broker. */
typedef struct {
    int client, broker;
    tap_count_t up, down;
} pair_t;
typedef struct {
    int listener;
    const char *host;
    uint16_t port;
    pair_t pairs[LINES_MAX];
    int count;
} tap_t;

static bool accept_client(tap_t *t)
{
    int client = tcp_accept(t->listener), broker = client >= 0 ? tcp_dial(t->host, t->port) : -1;
    /* A broker that does not answer is no failure of the tap: the client dials again. More connections than
     * there is room for are one, because their messages would be missing from the tally. */
    if (broker < 0 || t->count == LINES_MAX) {
        if (client >= 0) close(client);
        if (broker >= 0) close(broker);
        return client >= 0 && t->count < LINES_MAX;
    }
    t->pairs[t->count++] = (pair_t){.client = client, .broker = broker};
    return true;
}

/* Writes all of it before it returns: the pairs are few, and their messages short.  False: the connection
 * ended. */
static bool pass(int from, int to, tap_count_t *count)
{
    static uint8_t buffer[BUFFER_BYTES];
    ssize_t n = read(from, buffer, sizeof buffer);
    if (n <= 0) return false;
    tap_count(count, buffer, (size_t)n);
    return tcp_write(to, buffer, (size_t)n);
}

/* One turn; -1: go on, else the exit status. */
static int turn(tap_t *t)
{
    struct pollfd fds[2 + 2 * LINES_MAX] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                            {.fd = t->listener, .events = POLLIN}};
    int count = t->count;
    for (int i = 0; i < count; i++) {
        fds[2 + 2 * i] = (struct pollfd){.fd = t->pairs[i].client, .events = POLLIN};
        fds[3 + 2 * i] = (struct pollfd){.fd = t->pairs[i].broker, .events = POLLIN};
    }
    if (poll(fds, 2 + 2 * (nfds_t)count, -1) < 0) return 9;
    /* From the end, because a pair that is dropped is replaced by the last one. */
    for (int i = count - 1; i >= 0; i--) {
        pair_t *l = &t->pairs[i];
        if ((fds[2 + 2 * i].revents && !pass(l->client, l->broker, &l->up)) ||
            (fds[3 + 2 * i].revents && !pass(l->broker, l->client, &l->down))) {
            close(t->pairs[i].client);
            close(t->pairs[i].broker);
            t->pairs[i] = t->pairs[--t->count];
        }
    }
    if (fds[1].revents && !accept_client(t)) return 9;
    char asked[64];
    if (!fds[0].revents) return -1;
    if (read(STDIN_FILENO, asked, sizeof asked) <= 0) return 0;
    uint64_t up = 0, down = 0, bytes = 0;
    for (int i = 0; i < t->count; i++) {
        pair_t *l = &t->pairs[i];
        up += l->up.messages;
        down += l->down.messages;
        bytes += l->up.bytes + l->down.bytes;
        l->up.messages = l->down.messages = l->up.bytes = l->down.bytes = 0;
    }
    printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", up, down, bytes);
    fflush(stdout);
    return -1;
}

int tap_main(int argc, char **argv)
{
    static tap_t t;
    char *colon = argc == 1 ? strrchr(argv[0], ':') : NULL;
    uint16_t port = 0;
    if (!colon) return 2;
    *colon = 0;
    t.host = argv[0];
    t.port = (uint16_t)atoi(colon + 1);
    t.listener = tcp_listen(&port);
    if (t.listener < 0) return 9;
    printf("%u\n", port);
    fflush(stdout);
    int end;
    while ((end = turn(&t)) < 0) continue;
    return end;
}
