/* SPDX-License-Identifier: Apache-2.0 */
/* What a service manager hears: the test is the manager, with a datagram socket of its own. */
#include "core/notify.h"

#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Listens at `name` ('@...' in the abstract space) and says so in $NOTIFY_SOCKET. */
static int listen_as(const char *name)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    size_t n = strlen(name);
    memcpy(at.sun_path, name, n);
    if (*name == '@') at.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
                 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static void expect(int fd, const char *text)
{
    char got[1024];
    ssize_t n = recv(fd, got, sizeof got - 1, 0);
    cr_assert(n >= 0, "nothing came");
    got[n] = 0;
    cr_assert_str_eq(got, text);
}

static void life(int fd)
{
    cr_assert(notify_status("waiting for a broker"));
    cr_assert(notify_ready("tcp://127.0.0.1:7700"));
    cr_assert(notify_stopping());
    expect(fd, "STATUS=waiting for a broker");
    expect(fd, "READY=1\nSTATUS=tcp://127.0.0.1:7700");
    expect(fd, "STOPPING=1");
}

Test(notify, a_path)
{
    char name[64];
    snprintf(name, sizeof name, "/tmp/heddle-notify-%d", (int)getpid());
    int fd = listen_as(name);
    life(fd);
    close(fd);
    unlink(name);
}

Test(notify, an_abstract_name)
{
    char name[64];
    snprintf(name, sizeof name, "@heddle-notify-%d", (int)getpid());
    int fd = listen_as(name);
    life(fd);
    close(fd);
}

Test(notify, a_line_feed_begins_nothing)
{
    char name[64];
    snprintf(name, sizeof name, "@heddle-notify-%d", (int)getpid());
    int fd = listen_as(name);
    cr_assert(notify_ready("one\nMAINPID=1\r2"));
    expect(fd, "READY=1\nSTATUS=one MAINPID=1 2");
    close(fd);
}

Test(notify, a_long_status_is_cut)
{
    char name[64], status[2000], got[1024];
    snprintf(name, sizeof name, "@heddle-notify-%d", (int)getpid());
    int fd = listen_as(name);
    memset(status, 'x', sizeof status - 1);
    status[sizeof status - 1] = 0;
    cr_assert(notify_ready(status));
    cr_assert_eq(recv(fd, got, sizeof got, 0), 511);
    close(fd);
}

Test(notify, nobody_asked)
{
    unsetenv("NOTIFY_SOCKET");
    cr_assert_not(notify_ready(""));
    char longest[200] = "/";
    memset(longest + 1, 'x', sizeof longest - 2);
    const char *wrong[] = {"", "@", "/", "relative", "/nowhere/at/all", "vsock:2:1234", longest};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("NOTIFY_SOCKET", wrong[i], 1);
        cr_assert_not(notify_stopping(), "%s", wrong[i]);
    }
}

Test(notify, a_manager_that_does_not_read_stops_nobody, .timeout = 30)
{
    char name[64];
    snprintf(name, sizeof name, "@heddle-notify-%d", (int)getpid());
    int fd = listen_as(name);
    int taken = 0;
    while (notify_stopping()) cr_assert_lt(++taken, 1000000);
    cr_assert_gt(taken, 0);
    close(fd);
}
