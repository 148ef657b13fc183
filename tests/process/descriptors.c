/* SPDX-License-Identifier: Apache-2.0 */
/* A broker that has no descriptor left for one more connection: who is there goes on, it says so once, and sleeps. */
#include "tests/process/child.h"
#include "tests/process/caller.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT = 80, CROWD = 300, PATIENCE_MS = 15000, WATCH_MS = 2000, TERM_MS = 1000 };

static uint64_t now_ms(void) { return clock_now(clock_system()) / 1000; }

/* A process of its own, whose descriptors are not the test's: connects, sends nothing, holds until it is killed. */
typedef struct {
    pid_t pid;
    int to;
} crowd_t;

static void hold_connections(int from)
{
    uint16_t port;
    if (read(from, &port, sizeof port) != sizeof port) _exit(1);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < CROWD; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (fd >= 0) (void)!connect(fd, (const struct sockaddr *)&to, sizeof to);
    }
    pause();
    _exit(0);
}

static crowd_t gather(void)
{
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    crowd_t crowd = {.pid = fork(), .to = ends[1]};
    if (!crowd.pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hold_connections(ends[0]);
    }
    close(ends[0]);
    return crowd;
}

static void let_in(const crowd_t *crowd, const char *endpoint)
{
    uint16_t port = (uint16_t)atoi(strrchr(endpoint, ':') + 1);
    cr_assert_eq(write(crowd->to, &port, sizeof port), sizeof port);
}

static void disperse(crowd_t *crowd)
{
    kill(crowd->pid, SIGKILL);
    waitpid(crowd->pid, NULL, 0);
    close(crowd->to);
}

static int descriptors_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *d = opendir(path);
    int count = 0;
    while (d && readdir(d)) count++;
    if (d) closedir(d);
    return count - 2;
}

/* Of both its threads and in both modes. */
static uint64_t cpu_ms(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    unsigned long user, system;
    cr_assert_eq(
        sscanf(strrchr(text, ')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system),
        2);
    return (user + system) * 1000 / (unsigned long)sysconf(_SC_CLK_TCK);
}

static void start_limited(child_t *c, const char *dir, const char *const env[], char *endpoint, size_t size)
{
    char line[4096];
    struct rlimit before, few = {LIMIT, LIMIT};
    getrlimit(RLIMIT_NOFILE, &before);
    few.rlim_max = before.rlim_max < LIMIT ? before.rlim_max : LIMIT;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    child_start(c, (const char *[]){"heddle-broker", "--listen", "tcp://127.0.0.1:*", "--data", dir, NULL},
                env);
    setrlimit(RLIMIT_NOFILE, &before); /* not for everybody: the test itself needs few */
    cr_assert(child_line(c, line, sizeof line, PATIENCE_MS));
    json_t *ready = json_loads(line, 0, NULL);
    snprintf(endpoint, size, "%s", json_string_value(json_object_get(ready, "endpoint")));
    json_decref(ready);
}

static size_t count_in(const char *text, const char *word)
{
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) count++;
    return count;
}

static void none_is_left(const char *const env[])
{
    char dir[] = "/tmp/heddle-descriptors-XXXXXX", endpoint[128], command[96];
    child_t c;
    caller_t here, later;
    crowd_t crowd = gather();
    cr_assert_not_null(mkdtemp(dir));
    start_limited(&c, dir, env, endpoint, sizeof endpoint);
    cr_assert(caller_dial(&here, endpoint, ROLE_ADMIN, PATIENCE_MS));
    let_in(&crowd, endpoint);
    uint64_t end_ms = now_ms() + PATIENCE_MS;
    while (descriptors_of(c.pid) < LIMIT / 2 && now_ms() < end_ms) usleep(1000);
    uint64_t start_ms = now_ms(), used_ms = cpu_ms(c.pid);
    for (uint64_t req = 1; now_ms() < start_ms + WATCH_MS; req++) {
        json_decref(caller_ask(&here, &(msg_query_t){.req = req, .op = "status"}));
        usleep(20000); /* not to be what keeps it busy */
    }
    used_ms = cpu_ms(c.pid) - used_ms;
    cr_assert_lt(used_ms, WATCH_MS / 8, "it was busy for %llu of %d ms", (unsigned long long)used_ms,
                 WATCH_MS);
    disperse(&crowd);
    cr_assert(caller_dial(&later, endpoint, ROLE_ADMIN, PATIENCE_MS),
              "it takes in others when there is room");
    json_decref(caller_ask(&later, &(msg_query_t){.req = 1, .op = "status"}));
    caller_hang_up(&later);
    caller_hang_up(&here);
    child_signal(&c, SIGTERM);
    cr_assert_eq(child_end(&c, TERM_MS), 0, "%s", c.err);
    cr_assert_eq(count_in(c.err, "wire.no_descriptor"), 1, "%s", c.err);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

Test(descriptors, none_is_left_for_strangers, .timeout = 60) { none_is_left(NULL); }

#ifdef HEDDLE_TEST_BUILD
Test(descriptors, nor_where_the_kernel_leaves_filters_to_root, .timeout = 60)
{
    none_is_left((const char *const[]){"HEDDLE_FAILPOINTS=wire.filter=error", NULL});
}

static struct sockaddr_in address_of(const char *endpoint)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void set_min_ttl(int fd, int ttl)
{
    cr_assert_eq(setsockopt(fd, IPPROTO_IP, IP_MINTTL, &ttl, sizeof ttl), 0);
}

/* Its first packet is sent; the broker's answer to it is dropped here until the least time to live is 0. */
static int begin_to_dial(const char *endpoint)
{
    struct sockaddr_in to = address_of(endpoint);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    set_min_ttl(fd, 255);
    cr_assert(connect(fd, (const struct sockaddr *)&to, sizeof to) != 0 && errno == EINPROGRESS);
    return fd;
}

static bool has_said(const child_t *c, const char *word)
{
    static char text[65536];
    ssize_t n = pread(c->err_fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return strstr(text, word) != NULL;
}

/* One at a time, so that nobody is in the queue when the gate is shut. */
static int dial_until_shut(const child_t *c, const char *endpoint, int fds[LIMIT])
{
    struct sockaddr_in to = address_of(endpoint);
    int count = 0;
    for (uint64_t end_ms = now_ms() + PATIENCE_MS; !has_said(c, "wire.no_descriptor"); count++) {
        cr_assert(count < LIMIT && now_ms() < end_ms);
        fds[count] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)!connect(fds[count], (const struct sockaddr *)&to, sizeof to);
        usleep(10000);
    }
    return count;
}

/* What a peer of ZMTP 3 says first, and whether it is answered in whole: that takes the other to have heard it.  The first
 * of it may be lost; it is sent again until the broker gives up who says nothing. */
static bool is_heard(int fd)
{
    static const uint8_t GREETING[64] = {0xff, [8] = 1, [9] = 0x7f, [10] = 3, [12] = 'C', 'U', 'R', 'V', 'E'};
    uint8_t answer[sizeof GREETING];
    size_t count = 0;
    cr_assert_eq(send(fd, GREETING, sizeof GREETING, MSG_NOSIGNAL), sizeof GREETING);
    while (count < sizeof answer && poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) == 1) {
        ssize_t n = recv(fd, answer + count, sizeof answer - count, 0);
        if (n <= 0) return false;
        count += (size_t)n;
    }
    return count == sizeof answer;
}

Test(descriptors, who_came_in_while_it_was_shut_is_heard, .timeout = 60)
{
    char dir[] = "/tmp/heddle-descriptors-XXXXXX", endpoint[128], command[96];
    int fds[LIMIT];
    child_t c;
    cr_assert_not_null(mkdtemp(dir));
    start_limited(&c, dir, (const char *const[]){"HEDDLE_FAILPOINTS=wire.filter=error", NULL}, endpoint,
                  sizeof endpoint);
    int late = begin_to_dial(endpoint), count = dial_until_shut(&c, endpoint, fds);
    set_min_ttl(late, 0);
    cr_assert_eq(poll(&(struct pollfd){.fd = late, .events = POLLOUT}, 1, PATIENCE_MS), 1);
    cr_assert(is_heard(late));
    for (int i = 0; i < count; i++) close(fds[i]);
    close(late);
    child_signal(&c, SIGTERM);
    cr_assert_eq(child_end(&c, TERM_MS), 0, "%s", c.err);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}
#endif

/* The soft limit is for others: a broker takes all that it may have. */
Test(descriptors, the_soft_limit_is_raised, .timeout = 60)
{
    char dir[] = "/tmp/heddle-descriptors-XXXXXX", line[4096], command[96];
    struct rlimit before, soft, now;
    child_t c;
    cr_assert_not_null(mkdtemp(dir));
    getrlimit(RLIMIT_NOFILE, &before);
    soft = (struct rlimit){before.rlim_max / 4, before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &soft), 0);
    child_start(&c, (const char *[]){"heddle-broker", "--listen", "tcp://127.0.0.1:*", "--data", dir, NULL},
                NULL);
    cr_assert(child_line(&c, line, sizeof line, PATIENCE_MS));
    cr_assert_eq(prlimit(c.pid, RLIMIT_NOFILE, NULL, &now), 0);
    cr_assert_gt(now.rlim_cur, before.rlim_max / 2, "all but what is kept for a full queue");
    child_signal(&c, SIGTERM);
    cr_assert_eq(child_end(&c, TERM_MS), 0, "%s", c.err);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}
