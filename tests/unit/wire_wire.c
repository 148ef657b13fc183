/* SPDX-License-Identifier: Apache-2.0 */
/* Frames over real sockets on loopback: endpoints, sending and receiving, slow and dead peers, bad
 * frames, strangers. */
#include "core/limits.h"
#include "tests/lib/machine_time.h"
#include "tests/unit/loop_until.h"
#include "wire/peers.h"
#include "wire/wire.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

/* One end of a wire, and what it heard. */
typedef struct {
    wire_t *wire;
    int frames, bad, ups, downs;
    bool up, echo, redial;
    peer_t last_from;
    size_t last_bytes;
    char last[64], why[64], endpoint[256];
} end_t;

static loop_t *loop;

static void on_frame(void *self, peer_t from, bytes_t frame)
{
    end_t *e = self;
    e->frames++;
    e->last_from = from;
    e->last_bytes = frame.bytes;
    snprintf(e->last, sizeof e->last, "%.*s", (int)(frame.bytes < 60 ? frame.bytes : 60),
             (const char *)frame.data);
    if (e->echo) wire_send(e->wire, from, frame);
    if (e->redial) wire_redial(e->wire);
}
static void on_connection(void *self, bool up)
{
    end_t *e = self;
    e->up = up;
    up ? e->ups++ : e->downs++;
}
static void on_bad_frame(void *self, peer_t from, const char *why)
{
    end_t *e = self;
    e->bad++;
    e->last_from = from;
    snprintf(e->why, sizeof e->why, "%s", why);
}
static const wire_sink_t SINK = {on_frame, on_connection, on_bad_frame};

static void setup(void) { cr_assert_eq(loop_new(clock_system(), &loop), 0); }
static void teardown(void) { loop_destroy(&loop); }
TestSuite(wire, .init = setup, .fini = teardown, .timeout = 30);

static uint64_t now_us(void) { return clock_now(clock_system()); }

/* A port that was just closed is free a moment later: ZeroMQ closes it on a thread of its own. */
static void listen_at(end_t *e, const char *endpoint)
{
    heddle_error_t error;
    uint64_t end_us = now_us() + PATIENCE_US;
    int rc;
    do rc = wire_listen(loop, endpoint, NULL, &SINK, e, &e->wire, &error);
    while (rc == HEDDLE_ERR_ADDRESS_IN_USE && now_us() < end_us);
    cr_assert_eq(rc, 0, "%s", error.message);
    snprintf(e->endpoint, sizeof e->endpoint, "%s", wire_endpoint(e->wire));
}
static void dial(end_t *e, const char *endpoints)
{
    heddle_error_t error;
    cr_assert_eq(wire_dial(loop, endpoints, NULL, &SINK, e, &e->wire, &error), 0, "%s", error.message);
}
static int say(end_t *e, peer_t to, const char *text)
{
    return wire_send(e->wire, to, bytes_of(text, strlen(text)));
}
static int port_of(const end_t *e) { return atoi(strrchr(e->endpoint, ':') + 1); }

/* A port that nobody listens on; made without ZeroMQ, which must not be running where a child is forked. */
static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&address, bytes) &&
              !getsockname(fd, (struct sockaddr *)&address, &bytes));
    close(fd);
    return ntohs(address.sin_port);
}

/* Listener and dialler that have said hello: the listener knows the dialler's number. */
static void pair(end_t *server, end_t *client)
{
    listen_at(server, "tcp://127.0.0.1:*");
    dial(client, server->endpoint);
    UNTIL(client->up);
    cr_assert_eq(say(client, 0, "hello"), 0);
    UNTIL(server->frames == 1);
}

/* The kernel takes connections for it, as for a process that stands still. */
static int silent_listener(char endpoint[64])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&address, bytes) && !listen(fd, 64) &&
              !getsockname(fd, (struct sockaddr *)&address, &bytes));
    snprintf(endpoint, 64, "tcp://127.0.0.1:%d", ntohs(address.sin_port));
    return fd;
}

Test(wire, tells_a_listener_that_is_silent_from_one_that_is_not_there)
{
    end_t client = {0};
    char endpoint[64];
    int fd = silent_listener(endpoint);
    wire_set_handshake(20);
    dial(&client, endpoint);
    cr_assert_not(wire_is_reached(client.wire));
    UNTIL(wire_is_reached(client.wire));
    cr_assert_not(client.up);
    int taken[3], count = 0;
    while (count < 3) { /* each given up for its silence, and tried again */
        loop_turn(loop, now_us() + 1000);
        cr_assert(wire_is_reached(client.wire));
        int connection = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
        if (connection >= 0) taken[count++] = connection;
    }
    while (count) close(taken[--count]);
    close(fd);
    UNTIL(!wire_is_reached(client.wire));
    wire_close(&client.wire);
}

Test(wire, endpoints_good_and_bad)
{
    static const struct {
        const char *text;
        bool listen, good, loopback;
    } ROWS[] = {
        {"tcp://127.0.0.1:7700", false, true, true},
        {"tcp://127.8.9.10:1", false, true, true},
        {"tcp://localhost:7700", false, true, true},
        {"tcp://[::1]:7700", false, true, true},
        {"ipc:///tmp/x", false, true, true},
        {"tcp://10.0.0.1:7700", false, true, false},
        {"tcp://[fe80::1]:7700", false, true, false},
        {"tcp://broker.example:65535", false, true, false},
        {"tcp://127.evil.example:7700", false, true, false},
        {"tcp://0.0.0.0:7700", true, true, false},
        {"tcp://*:7700", true, true, false},
        {"tcp://127.0.0.1:*", true, true, true},
        {"tcp://127.0.0.1:0", true, true, true},
        {"tcp://*:7700", false, false, false},
        {"tcp://127.0.0.1:*", false, false, false},
        {"tcp://127.0.0.1:0", false, false, false},
        {"tcp://127.0.0.1:65536", false, false, false},
        {"tcp://127.0.0.1:7x", false, false, false},
        {"tcp://127.0.0.1:", false, false, false},
        {"tcp://127.0.0.1", false, false, false},
        {"tcp://:7700", false, false, false},
        {"tcp://a b:7700", false, false, false},
        {"tcp://[::1:7700", false, false, false},
        {"tcp://1.2.3.4;5.6.7.8:7700", false, false, false},
        {"tcp://LocalHost:7700", false, true, true},
        {"tcp://localhost.:7700", false, true, true},
        {"tcp://[FE80::1]:7700", false, true, false},
        {"tcp://127.1:7700", false, false, false},
        {"tcp://2130706433:7700", false, false, false},
        {"tcp://0x7f.0.0.1:7700", false, false, false},
        {"tcp://127.0.0.1:07700", false, false, false},
        {"tcp://[::ffff:127.0.0.1]:7700", false, false, false},
        {"tcp://[0:0:0:0:0:0:0:1]:7700", false, false, false},
        {"udp://127.0.0.1:7700", false, false, false},
        {"inproc://x", false, false, false},
        {"ipc://", false, false, false},
        {"127.0.0.1:7700", false, false, false},
        {"", false, false, false},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        heddle_error_t error = {0};
        bool loopback = false;
        int rc = wire_check_endpoint(ROWS[i].text, ROWS[i].listen, &loopback, &error);
        cr_expect_eq(rc, ROWS[i].good ? 0 : HEDDLE_ERR_USAGE, "%s", ROWS[i].text);
        cr_expect_eq(loopback, ROWS[i].loopback, "%s", ROWS[i].text);
        if (rc) cr_expect(error.message[0] && error.expected[0] && error.hint[0], "%s", ROWS[i].text);
    }
    char longest[400];
    snprintf(longest, sizeof longest, "tcp://%0300d:7700", 1);
    cr_assert_eq(wire_check_endpoint(longest, false, NULL, NULL), HEDDLE_ERR_USAGE);
}

Test(wire, endpoint_lists)
{
    bool loopback;
    cr_assert_eq(wire_check_endpoints("tcp://127.0.0.1:1,tcp://localhost:2", &loopback, NULL), 0);
    cr_assert(loopback);
    cr_assert_eq(wire_check_endpoints("tcp://127.0.0.1:1,tcp://10.0.0.1:2", &loopback, NULL), 0);
    cr_assert_not(loopback);
    const char *bad[] = {"", ",", "tcp://127.0.0.1:1,", ",tcp://127.0.0.1:1",
                         "tcp://127.0.0.1:1,,tcp://127.0.0.1:2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_expect_eq(wire_check_endpoints(bad[i], NULL, NULL), HEDDLE_ERR_USAGE, "%s", bad[i]);
}

Test(wire, hosts_beyond_this_one)
{
    char host[WIRE_HOST_BYTES];
    const char *list = "tcp://127.0.0.1:1,ipc:///tmp/x,tcp://10.0.0.1:2,tcp://localhost:3,tcp://[fd00::1]:4,"
                       "tcp://[::1]:5,tcp://broker.example:6";
    static const char *const WANTED[] = {"10.0.0.1", "fd00::1", "broker.example"};
    for (size_t i = 0; i < sizeof WANTED / sizeof *WANTED; i++) {
        cr_assert(wire_next_host(&list, host));
        cr_expect_str_eq(host, WANTED[i]);
    }
    cr_assert_not(wire_next_host(&list, host));
}

Test(wire, frames_go_both_ways_whole)
{
    end_t server = {.echo = true}, client = {0};
    pair(&server, &client);
    UNTIL(client.frames == 1);
    cr_assert_str_eq(client.last, "hello");
    cr_assert_eq(client.last_from, 0);
    cr_assert_neq(server.last_from, 0);
    uint8_t *large = calloc(1, LIMIT_FRAME_BYTES + 1);
    cr_assert_eq(wire_send(client.wire, 0, bytes_of(large, LIMIT_FRAME_BYTES)), 0);
    UNTIL(client.frames == 2);
    cr_assert_eq(client.last_bytes, LIMIT_FRAME_BYTES);
    cr_assert_eq(wire_send(client.wire, 0, bytes_of(large, LIMIT_FRAME_BYTES + 1)), HEDDLE_ERR_LIMIT);
    cr_assert_eq(wire_send(client.wire, 0, bytes_of(large, 0)), HEDDLE_ERR_LIMIT);
    free(large);
    wire_close(&client.wire);
    wire_close(&server.wire);
    cr_assert_null(server.wire);
    wire_close(&server.wire);
}

Test(wire, ipc_and_a_second_listener_on_its_path)
{
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "ipc:///tmp/heddle-wire-%d", (int)getpid());
    end_t server = {.echo = true}, client = {0}, second = {0};
    listen_at(&server, endpoint);
    heddle_error_t error;
    cr_assert_eq(wire_listen(loop, endpoint, NULL, &SINK, &second, &second.wire, &error),
                 HEDDLE_ERR_ADDRESS_IN_USE);
    dial(&client, endpoint);
    UNTIL(client.up);
    say(&client, 0, "over a file");
    UNTIL(client.frames == 1);
    wire_close(&client.wire);
    wire_close(&server.wire);
    unlink(endpoint + 6);
}

Test(wire, address_in_use_and_addresses_that_are_not_ours)
{
    end_t first = {0}, second = {0};
    heddle_error_t error;
    listen_at(&first, "tcp://127.0.0.1:*");
    cr_assert_eq(wire_listen(loop, first.endpoint, NULL, &SINK, &second, &second.wire, &error),
                 HEDDLE_ERR_ADDRESS_IN_USE);
    cr_assert_not_null(strstr(error.message, first.endpoint));
    cr_assert(error.hint[0]);
    cr_assert_null(second.wire);
    cr_assert_eq(wire_listen(loop, "tcp://192.0.2.1:7700", NULL, &SINK, &second, &second.wire, &error),
                 HEDDLE_ERR_INTERNAL);
    cr_assert(error.retriable && strstr(error.message, "tcp://192.0.2.1:7700"), "%s", error.message);
    cr_assert_eq(wire_listen(loop, "nonsense", NULL, &SINK, &second, &second.wire, &error), HEDDLE_ERR_USAGE);
    cr_assert_eq(wire_dial(loop, "nonsense", NULL, &SINK, &second, &second.wire, &error), HEDDLE_ERR_USAGE);
    wire_close(&first.wire);
}

/* A listener that was just closed may take one more connection, and then nobody reads what is said to it. */
static bool say_and_see(end_t *client, const char *text, int frames)
{
    if (client->up) say(client, 0, text);
    return client->frames > frames;
}

Test(wire, nothing_is_queued_while_nobody_is_there)
{
    end_t server = {0}, client = {0};
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", free_port());
    dial(&client, endpoint);
    for (int i = 0; i < 10; i++) cr_assert_eq(say(&client, 0, "anybody?"), HEDDLE_ERR_GONE);
    listen_at(&server, endpoint);
    UNTIL(client.up);
    cr_assert_eq(say(&client, 0, "first"), 0);
    UNTIL(server.frames == 1);
    cr_assert_str_eq(server.last, "first");
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(wire, reconnects_when_the_listener_comes_back_on_its_port)
{
    end_t server = {.echo = true}, client = {0};
    pair(&server, &client);
    UNTIL(client.frames == 1);
    peer_t old = server.last_from;
    wire_close(&server.wire);
    UNTIL(client.downs > 0 && !client.up);
    cr_assert_eq(say(&client, 0, "lost"), HEDDLE_ERR_GONE);
    listen_at(&server, server.endpoint);
    UNTIL(say_and_see(&client, "again", 1));
    cr_assert_str_eq(client.last, "again");
    cr_assert_geq(client.ups, 2);
    cr_assert_eq(wire_send(server.wire, old + 1000, bytes_of("x", 1)), HEDDLE_ERR_GONE);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(wire, peer_that_left_is_gone_and_numbers_are_new)
{
    end_t server = {0}, client = {0}, next = {0};
    pair(&server, &client);
    peer_t old = server.last_from;
    cr_assert_eq(say(&server, old, "still there"), 0);
    wire_close(&client.wire);
    UNTIL(say(&server, old, "?") == HEDDLE_ERR_GONE);
    dial(&next, server.endpoint);
    UNTIL(next.up);
    say(&next, 0, "new");
    UNTIL(server.frames == 2);
    cr_assert_neq(server.last_from, old);
    wire_forget(server.wire, server.last_from);
    cr_assert_eq(say(&server, server.last_from, "?"), HEDDLE_ERR_GONE);
    peer_t forgotten = server.last_from;
    say(&next, 0, "me again");
    UNTIL(server.frames == 3);
    cr_assert_gt(server.last_from, forgotten);
    cr_assert_eq(say(&server, server.last_from, "welcome"), 0);
    UNTIL(next.frames == 1);
    wire_close(&next.wire);
    wire_close(&server.wire);
}

/* A child that does not outlive the test. */
static pid_t fork_child(void)
{
    pid_t pid = fork();
    if (!pid) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

/* A client in a process of its own: it connects, says one thing, stops when it is answered, and
 * stays until it is killed. */
static pid_t client_process(const char *endpoint)
{
    pid_t pid = fork_child();
    if (pid) return pid;
    end_t client = {0};
    if (loop_new(clock_system(), &loop) ||
        wire_dial(loop, endpoint, NULL, &SINK, &client, &client.wire, NULL))
        _exit(1);
    while (!client.up) loop_turn(loop, now_us() + 5000);
    say(&client, 0, "hello");
    while (!client.frames) loop_turn(loop, now_us() + 5000);
    raise(SIGSTOP);
    loop_run(loop);
    _exit(0);
}

Test(wire, peer_that_does_not_read_is_slow_and_never_blocks_us)
{
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", free_port());
    pid_t pid = client_process(endpoint);
    end_t server = {.echo = true};
    listen_at(&server, endpoint);
    UNTIL(server.frames == 1);
    int status;
    cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
    cr_assert(WIFSTOPPED(status));
    static uint8_t frame[16384];
    int rc = 0;
    size_t sent = 0;
    machine_time_t taken;
    machine_time_start(&taken);
    while (!(rc = wire_send(server.wire, server.last_from, bytes_of(frame, sizeof frame)))) sent++;
    cr_assert_lt(machine_time_stop(&taken), 5000);
    cr_assert_eq(rc, HEDDLE_ERR_SLOW);
    cr_assert_geq(sent, LIMIT_QUEUE_FRAMES / 2); /* ZeroMQ frees room by halves of the queue */
    cr_assert_lt(sent, 4 * LIMIT_QUEUE_FRAMES);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    UNTIL(wire_send(server.wire, server.last_from, bytes_of(frame, 1)) == HEDDLE_ERR_GONE);
    wire_close(&server.wire);
}

Test(wire, listener_that_does_not_read_makes_the_dialler_slow)
{
    char endpoint[64];
    int port = free_port();
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", port);
    pid_t pid = fork_child();
    if (!pid) {
        end_t server = {0};
        if (loop_new(clock_system(), &loop) ||
            wire_listen(loop, endpoint, NULL, &SINK, &server, &server.wire, NULL))
            _exit(1);
        while (!server.frames) loop_turn(loop, now_us() + 5000);
        raise(SIGSTOP);
        loop_run(loop);
    }
    end_t client = {0};
    dial(&client, endpoint);
    UNTIL(client.up);
    static uint8_t frame[16384];
    int rc;
    size_t sent = 0;
    while (!(rc = wire_send(client.wire, 0, bytes_of(frame, sizeof frame)))) sent++;
    cr_assert_eq(rc, HEDDLE_ERR_SLOW);
    cr_assert_geq(sent, LIMIT_QUEUE_FRAMES / 2); /* ZeroMQ frees room by halves of the queue */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    UNTIL(!client.up);
    cr_assert_eq(wire_send(client.wire, 0, bytes_of(frame, 1)), HEDDLE_ERR_GONE);
    wire_close(&client.wire);
}

/* ---- strangers: raw ZeroMQ and raw TCP ---- */

typedef struct {
    void *context, *socket;
} stranger_t;

static stranger_t stranger(const end_t *server, int type, const char *id)
{
    stranger_t s = {zmq_ctx_new(), NULL};
    s.socket = zmq_socket(s.context, type);
    zmq_setsockopt(s.socket, ZMQ_LINGER, &(int){0}, sizeof(int));
    if (id) zmq_setsockopt(s.socket, ZMQ_ROUTING_ID, id, strlen(id));
    cr_assert_eq(zmq_connect(s.socket, server->endpoint), 0);
    return s;
}
static void leave(stranger_t *s)
{
    zmq_close(s->socket);
    zmq_ctx_term(s->context);
}

Test(wire, multipart_empty_and_self_named_are_refused)
{
    end_t server = {0}, client = {0};
    pair(&server, &client);
    stranger_t s = stranger(&server, ZMQ_DEALER, NULL);
    for (int i = 0; i < 100; i++) zmq_send(s.socket, "part", 4, ZMQ_SNDMORE);
    zmq_send(s.socket, "last", 4, 0);
    UNTIL(server.bad == 1);
    cr_assert_not_null(strstr(server.why, "more than one"));
    cr_assert_neq(server.last_from, 0);
    zmq_send(s.socket, "", 0, 0);
    UNTIL(server.bad == 2);
    cr_assert_not_null(strstr(server.why, "empty"));
    zmq_send(s.socket, "good", 4, 0);
    UNTIL(server.frames == 2);
    cr_assert_str_eq(server.last, "good");
    leave(&s);
    stranger_t named = stranger(&server, ZMQ_DEALER, "worker-1");
    zmq_send(named.socket, "me", 2, 0);
    UNTIL(server.bad == 3);
    cr_assert_eq(server.last_from, 0);
    cr_assert_not_null(strstr(server.why, "own choice"));
    leave(&named);
    cr_assert_eq(server.frames, 2);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(wire, oversize_frame_is_not_delivered_and_others_go_on)
{
    end_t server = {0}, client = {0};
    pair(&server, &client);
    stranger_t s = stranger(&server, ZMQ_DEALER, NULL);
    size_t bytes = LIMIT_FRAME_BYTES + 1;
    zmq_msg_t large;
    zmq_msg_init_size(&large, bytes);
    memset(zmq_msg_data(&large), 7, bytes);
    zmq_msg_send(&large, s.socket, 0);
    zmq_send(s.socket, "after", 5, 0);
    for (int i = 0; i < 20; i++) {
        say(&client, 0, "normal");
        UNTIL(server.frames >= i + 2);
    }
    cr_assert_eq(server.bad, 0);
    cr_assert_leq(server.last_bytes, 6u);
    leave(&s);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

static int raw_connect(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

/* True once the other side has closed the connection. */
static bool is_closed(int fd)
{
    char sink[4096];
    ssize_t n = recv(fd, sink, sizeof sink, MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

Test(wire, garbage_on_the_port_harms_nobody)
{
    end_t server = {.echo = true}, client = {0};
    pair(&server, &client);
    unsigned seed = 20261121;
    printf("seed %u\n", seed);
    static const char OPENINGS[][28] = {
        "GET / HTTP/1.1\r\nHost: x\r\n\r", "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL",
        "\x16\x03\x01\x02\x00", "SSH-2.0-x\r\n"}; /* HTTP, half a ZMTP greeting, TLS, SSH */
    int fds[40];
    for (int i = 0; i < 40; i++) {
        uint8_t noise[2048];
        fds[i] = raw_connect(port_of(&server));
        for (size_t k = 0; k < sizeof noise; k++) noise[k] = (uint8_t)rand_r(&seed);
        if (i % 2) send(fds[i], OPENINGS[i / 2 % 4], sizeof OPENINGS[0], MSG_NOSIGNAL);
        send(fds[i], noise, sizeof noise, MSG_NOSIGNAL);
        say(&client, 0, "ping");
        UNTIL(client.frames >= i + 2);
    }
    for (int i = 0; i < 40; i++) close(fds[i]);
    cr_assert_eq(server.frames, client.frames);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(wire, connection_that_never_speaks_is_dropped)
{
    end_t server = {0};
    listen_at(&server, "tcp://127.0.0.1:*");
    int fd = raw_connect(port_of(&server));
    uint64_t start = now_us();
    UNTIL(is_closed(fd));
    cr_assert_gt(now_us() - start, 3000000u);
    close(fd);
    wire_close(&server.wire);
}

/* What ZMTP 3.1 begins with: the greeting (mechanism NULL), then READY of a DEALER without an identity. */
static void shake_hands(int fd)
{
    uint8_t greeting[64] = {0xff, [9] = 0x7f, 3, 1, 'N', 'U', 'L', 'L'};
    static const char READY[] = "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06"
                                "DEALER\x08Identity\0\0\0\0";
    cr_assert_eq(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), (ssize_t)sizeof greeting);
    cr_assert_eq(send(fd, READY, sizeof READY - 1, MSG_NOSIGNAL), (ssize_t)sizeof READY - 1);
}

/* It shook hands, then its machine lost power: no byte comes, and none tells that it is over. */
Test(wire, connection_that_goes_silent_is_dropped)
{
    end_t server = {0};
    listen_at(&server, "tcp://127.0.0.1:*");
    int fd = raw_connect(port_of(&server));
    shake_hands(fd);
    uint64_t start = now_us();
    while (!is_closed(fd) && now_us() - start < 20000000u) loop_turn(loop, now_us() + 50000);
    cr_assert(is_closed(fd));
    cr_assert_gt(now_us() - start, 8000000u, "not the time-out of the handshake");
    close(fd);
    wire_close(&server.wire);
}

/* A listener whose queue is full answers no connect, as a host behind a firewall that drops packets. */
static int deaf_listener(int *ret_port, int *ret_fill, int fill_count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert(fd >= 0 && !bind(fd, (struct sockaddr *)&address, bytes) && !listen(fd, 0) &&
              !getsockname(fd, (struct sockaddr *)&address, &bytes));
    for (int i = 0; i < fill_count; i++) {
        ret_fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        cr_assert(ret_fill[i] >= 0);
        connect(ret_fill[i], (struct sockaddr *)&address, bytes);
    }
    *ret_port = ntohs(address.sin_port);
    return fd;
}

Test(wire, endpoint_that_does_not_answer_is_passed_over)
{
    end_t server = {.echo = true}, client = {0};
    int port, fill[4], deaf = deaf_listener(&port, fill, 4);
    listen_at(&server, "tcp://127.0.0.1:*");
    char list[600];
    snprintf(list, sizeof list, "tcp://127.0.0.1:%d,%s", port, server.endpoint);
    uint64_t start = now_us();
    dial(&client, list);
    while (!client.up && now_us() - start < 20000000u) loop_turn(loop, now_us() + 50000);
    cr_assert(client.up);
    cr_assert_gt(now_us() - start, 5000000u, "two tries of three seconds");
    cr_assert_str_eq(wire_endpoint(client.wire), server.endpoint);
    for (int i = 0; i < 4; i++) close(fill[i]);
    close(deaf);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

static int taken_of(int fd)
{
    int count = 0;
    for (int one; (one = accept4(fd, NULL, NULL, SOCK_NONBLOCK)) >= 0; count++) close(one);
    return count;
}

/* As a broker that stands still, the first of a list, or named by another one: its deadline passes once. */
Test(wire, endpoint_that_stands_still_is_tried_once)
{
    end_t server = {0}, client = {0}, other = {0};
    char list[600], endpoint[64];
    int fd = silent_listener(endpoint);
    listen_at(&server, "tcp://127.0.0.1:*");
    wire_set_handshake(1000);
    snprintf(list, sizeof list, "%s,%s", endpoint, server.endpoint);
    dial(&client, list);
    UNTIL(client.up);
    cr_assert_str_eq(wire_endpoint(client.wire), server.endpoint);
    cr_assert_eq(taken_of(fd), 1);
    dial(&other, server.endpoint);
    UNTIL(other.up);
    wire_redial_to(other.wire, endpoint, "");
    UNTIL(other.ups == 2);
    cr_assert_str_eq(wire_endpoint(other.wire), server.endpoint);
    cr_assert_eq(taken_of(fd), 1);
    close(fd);
    wire_close(&other.wire);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* Three endpoints of which two answer nothing: each has a third of the time, and none the two tries of three
 * seconds. */
Test(wire, each_endpoint_of_a_list_has_its_part_of_the_time)
{
    end_t server = {.echo = true}, client = {0};
    int ports[2], fill[2][4], deaf[2];
    for (int i = 0; i < 2; i++) deaf[i] = deaf_listener(&ports[i], fill[i], 4);
    listen_at(&server, "tcp://127.0.0.1:*");
    char list[600];
    snprintf(list, sizeof list, "tcp://127.0.0.1:%d,tcp://127.0.0.1:%d,%s", ports[0], ports[1],
             server.endpoint);
    machine_time_t taken;
    machine_time_start(&taken);
    uint64_t start = now_us();
    loop_turn(loop, start); /* parts begin at the time of the turn */
    dial(&client, list);
    wire_share(client.wire, 1500);
    cr_assert_str_eq(wire_untried(client.wire), strchr(list, ',') + 1);
    while (!client.up && now_us() - start < 20000000u) loop_turn(loop, now_us() + 50000);
    cr_assert(client.up);
    cr_assert_gt(now_us() - start, 900000u, "two parts of half a second");
    cr_assert_lt(machine_time_stop(&taken), 6000, "as of one that is tried twice");
    cr_assert_null(wire_untried(client.wire));
    cr_assert_str_eq(wire_endpoint(client.wire), server.endpoint);
    start = now_us();
    while (now_us() - start < 1000000u) loop_turn(loop, now_us() + 50000);
    cr_assert(client.up && !client.downs, "a connection that is there stays");
    for (int i = 0; i < 8; i++) close(fill[i / 4][i % 4]);
    for (int i = 0; i < 2; i++) close(deaf[i]);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* A port that takes connections and says nothing, then the real one. */
Test(wire, dead_endpoint_of_a_list_is_passed_over)
{
    end_t server = {.echo = true}, client = {0};
    listen_at(&server, "tcp://127.0.0.1:*");
    char list[600];
    snprintf(list, sizeof list, "tcp://127.0.0.1:%d,%s", free_port(), server.endpoint);
    dial(&client, list);
    UNTIL(client.up);
    cr_assert_str_eq(wire_endpoint(client.wire), server.endpoint);
    say(&client, 0, "found");
    UNTIL(client.frames == 1);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

Test(wire, redial_goes_to_the_next_endpoint_and_drops_the_rest)
{
    end_t a = {.echo = true}, b = {.echo = true}, client = {0};
    listen_at(&a, "tcp://127.0.0.1:*");
    listen_at(&b, "tcp://127.0.0.1:*");
    char list[600];
    snprintf(list, sizeof list, "%s,%s", a.endpoint, b.endpoint);
    dial(&client, list);
    UNTIL(client.up);
    cr_assert_str_eq(wire_endpoint(client.wire), a.endpoint);
    say(&client, 0, "to a");
    UNTIL(client.frames == 1);
    wire_redial(client.wire);
    UNTIL(client.downs == 1);
    UNTIL(client.up);
    cr_assert_str_eq(wire_endpoint(client.wire), b.endpoint);
    say(&client, 0, "to b");
    UNTIL(client.frames == 2);
    cr_assert_str_eq(b.last, "to b");
    cr_assert_eq(a.frames, 1);
    wire_redial(client.wire);
    UNTIL(client.ups == 3);
    cr_assert_str_eq(wire_endpoint(client.wire), a.endpoint);
    cr_assert_eq(client.downs, 2);
    wire_close(&client.wire);
    wire_close(&a.wire);
    wire_close(&b.wire);
}

/* The list has a alone.  b is named, is gone, and the dialler is back at a. */
Test(wire, a_named_endpoint_comes_before_the_list)
{
    end_t a = {0}, b = {0}, client = {0};
    listen_at(&a, "tcp://127.0.0.1:*");
    listen_at(&b, "tcp://127.0.0.1:*");
    dial(&client, a.endpoint);
    UNTIL(client.up);
    wire_redial_to(client.wire, b.endpoint, "");
    UNTIL(client.ups == 2);
    cr_assert_str_eq(wire_endpoint(client.wire), b.endpoint);
    wire_close(&b.wire);
    UNTIL(client.ups == 3);
    cr_assert_str_eq(wire_endpoint(client.wire), a.endpoint);
    wire_close(&client.wire);
    wire_close(&a.wire);
}

/* b, the second one, names c, the third one, which is gone: the first one is next. */
Test(wire, the_list_goes_on_after_a_named_endpoint)
{
    end_t a = {0}, b = {0}, client = {0};
    listen_at(&a, "tcp://127.0.0.1:*");
    listen_at(&b, "tcp://127.0.0.1:*");
    char list[900], gone[64];
    snprintf(gone, sizeof gone, "tcp://127.0.0.1:%d", free_port());
    snprintf(list, sizeof list, "%s,%s,%s", b.endpoint, a.endpoint, gone);
    dial(&client, list);
    UNTIL(client.up);
    wire_redial_to(client.wire, gone, "");
    UNTIL(client.ups == 2);
    cr_assert_str_eq(wire_endpoint(client.wire), b.endpoint);
    wire_close(&client.wire);
    wire_close(&a.wire);
    wire_close(&b.wire);
}

Test(wire, what_is_named_is_not_always_gone_to)
{
    end_t a = {.echo = true}, b = {0}, client = {0};
    listen_at(&a, "tcp://127.0.0.1:*");
    listen_at(&b, "tcp://127.0.0.1:*");
    dial(&client, a.endpoint);
    UNTIL(client.up);
    wire_redial_to(client.wire, a.endpoint, ""); /* it is there */
    wire_redial_to(client.wire, "tcp://*:7700", "");
    wire_redial_to(client.wire, "tcp://192.0.2.1:7700", ""); /* another host, on a plain connection */
    say(&client, 0, "stays");
    UNTIL(client.frames == 1);
    cr_assert_eq(client.downs, 0);
    wire_redial_to(client.wire, b.endpoint, "");
    UNTIL(client.ups == 2);
    wire_redial_to(client.wire, a.endpoint, ""); /* it was there a moment ago */
    say(&client, 0, "at b");
    UNTIL(b.frames == 1);
    cr_assert_eq(client.downs, 1);
    wire_redial_to(client.wire, "", ""); /* the next one of the list */
    UNTIL(client.ups == 3);
    cr_assert_str_eq(wire_endpoint(client.wire), a.endpoint);
    wire_close(&client.wire);
    wire_close(&a.wire);
    wire_close(&b.wire);
}

/* The list has a alone, which is gone: those that were told are next, and then the list again. */
Test(wire, those_that_were_told_come_after_the_list)
{
    end_t a = {0}, b = {0}, client = {0};
    listen_at(&a, "tcp://127.0.0.1:*");
    listen_at(&b, "tcp://127.0.0.1:*");
    char gone[64], first[256];
    snprintf(gone, sizeof gone, "tcp://127.0.0.1:%d", free_port());
    snprintf(first, sizeof first, "%s", a.endpoint);
    dial(&client, first);
    UNTIL(client.up);
    wire_broker_t old[] = {{"tcp://127.0.0.1:1", ""}};
    wire_told(client.wire, old, 1); /* replaced by the next one */
    wire_broker_t told[] = {{first, ""},
                            {gone, ""},
                            {"no address", ""},
                            {"tcp://192.0.2.1:7700", ""}, /* another host, on a plain connection */
                            {b.endpoint, ""}};
    wire_told(client.wire, told, sizeof told / sizeof *told);
    wire_close(&a.wire);
    UNTIL(client.ups == 2);
    cr_assert_str_eq(wire_endpoint(client.wire), b.endpoint);
    listen_at(&a, first);
    wire_close(&b.wire);
    UNTIL(client.ups == 3);
    cr_assert_str_eq(wire_endpoint(client.wire), first);
    wire_told(client.wire, NULL, 0);
    wire_close(&client.wire);
    wire_close(&a.wire);
}

/* Asked for inside on_frame, with more frames of the old connection waiting: they are not delivered. */
Test(wire, redial_inside_a_callback)
{
    end_t server = {0}, client = {.redial = true};
    pair(&server, &client);
    for (int i = 0; i < 50; i++) say(&server, server.last_from, "late");
    UNTIL(client.downs == 1);
    cr_assert_eq(client.frames, 1);
    UNTIL(client.up);
    cr_assert_eq(client.frames, 1);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

static unsigned open_fds(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 2000; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* libzmq tells of the lost connection on its own thread, while the one it tells is being closed. */
Test(wire, lines_closed_as_their_connections_end_stall_nobody)
{
    for (int i = 0; i < 200; i++) {
        end_t server = {0}, clients[4] = {0};
        listen_at(&server, "tcp://127.0.0.1:*");
        for (int k = 0; k < 4; k++) dial(&clients[k], server.endpoint);
        UNTIL(clients[0].up && clients[1].up && clients[2].up && clients[3].up);
        wire_close(&server.wire);
        for (int k = 0; k < 4; k++) wire_close(&clients[k].wire);
    }
}

Test(wire, descriptors_come_back)
{
    end_t server = {0}, client = {0};
    pair(&server, &client);
    unsigned before = open_fds();
    for (int i = 0; i < 30; i++) {
        wire_redial(client.wire);
        UNTIL(client.ups == i + 2);
    }
    UNTIL(open_fds() <= before);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* Out of descriptors: an error, not an abort of ZeroMQ's. */
Test(wire, no_descriptor_left_is_an_error)
{
    end_t server = {0}, client = {0}, late = {0};
    pair(&server, &client);
    struct rlimit limit = {open_fds() + 8, open_fds() + 8};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    heddle_error_t error;
    cr_assert_eq(wire_dial(loop, server.endpoint, NULL, &SINK, &late, &late.wire, &error),
                 HEDDLE_ERR_NO_MEMORY);
    cr_assert(error.hint[0]);
    cr_assert_eq(wire_listen(loop, "tcp://127.0.0.1:*", NULL, &SINK, &late, &late.wire, &error),
                 HEDDLE_ERR_NO_MEMORY);
    wire_redial(client.wire);
    loop_turn(loop, 0);
    cr_assert_eq(say(&client, 0, "the old line stays"), 0);
    UNTIL(server.frames == 2);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* More than libzmq keeps of what it tells: its thread then waits for a reader, and a close must not wait for that thread. */
Test(wire, a_crowd_that_nobody_looked_at_does_not_hold_a_close)
{
    enum { CROWD = 2500 };
    end_t server = {0};
    uint8_t first;
    listen_at(&server, "tcp://127.0.0.1:*");
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port_of(&server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 1};
    for (int i = 0; i < CROWD; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        cr_assert_eq(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (i == CROWD - 1) (void)!read(fd, &first, 1); /* it is greeted, or libzmq's thread waits */
        close(fd);
    }
    wire_close(&server.wire);
}

static void on_int(int number) { (void)number; }

Test(wire, signal_handlers_of_the_process_stay)
{
    static const int NUMBERS[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGSEGV};
    struct sigaction mine = {.sa_handler = on_int}, now;
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) sigaction(NUMBERS[i], &mine, NULL);
    end_t server = {0}, client = {0};
    pair(&server, &client);
    wire_close(&client.wire);
    wire_close(&server.wire);
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
        sigaction(NUMBERS[i], NULL, &now);
        cr_expect_eq(now.sa_handler, on_int, "signal %d", NUMBERS[i]);
    }
}

/* One loud peer does not keep the loop from its tick: at most LOOP_TURN_FRAMES of a socket in a turn. */
Test(wire, turns_are_bounded)
{
    end_t server = {0}, client = {0};
    pair(&server, &client);
    for (int i = 0; i < 1000; i++) cr_assert_eq(say(&client, 0, "burst"), 0);
    int largest = 0;
    uint64_t end_us = now_us() + PATIENCE_US;
    while (server.frames < 1001 && now_us() < end_us) {
        int before = server.frames;
        loop_turn(loop, now_us() + 5000);
        if (server.frames - before > largest) largest = server.frames - before;
    }
    cr_assert_eq(server.frames, 1001);
    cr_assert_leq(largest, LOOP_TURN_FRAMES);
    cr_assert_gt(largest, 1);
    wire_close(&client.wire);
    wire_close(&server.wire);
}

/* ---- the table of numbers ---- */

Test(peers, the_most_silent_makes_room)
{
    peers_t *p = peers_new(3);
    uint32_t id;
    cr_assert_eq(peers_received(p, 10), 1);
    cr_assert_eq(peers_received(p, 20), 2);
    cr_assert_eq(peers_received(p, 30), 3);
    cr_assert_eq(peers_received(p, 10), 1);
    cr_assert_eq(peers_received(p, 40), 4); /* 20 was silent for longest */
    cr_assert(peers_find(p, 3, &id) && peers_find(p, 4, &id), "the others stay");
    cr_assert_not(peers_find(p, 2, &id));
    cr_assert(peers_find(p, 1, &id) && id == 10);
    cr_assert_eq(peers_received(p, 20), 5, "a number is never given twice");
    peers_forget(p, 5);
    peers_forget(p, 5);
    peers_forget(p, 999);
    cr_assert(!peers_find(p, 5, &id) && peers_find(p, 1, &id) && peers_find(p, 4, &id));
    peers_destroy(&p);
    peers_destroy(&p);
}
