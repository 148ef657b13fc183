/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets without Nagle's delay: the last bytes of a message would otherwise wait for an acknowledgement, and
 * the references would measure that wait. */
#include "bench/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 64 };

static int without_delay(int fd)
{
    int on = 1;
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

int tcp_listen(uint16_t *ret_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&at, size) || listen(fd, BACKLOG) ||
        getsockname(fd, (struct sockaddr *)&at, &size)) {
        close(fd);
        return -1;
    }
    *ret_port = ntohs(at.sin_port);
    return fd;
}

int tcp_accept(int listener) { return without_delay(accept4(listener, NULL, NULL, SOCK_CLOEXEC)); }

int tcp_dial(const char *host, uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd =
        inet_pton(AF_INET, host, &to.sin_addr) == 1 ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return without_delay(fd);
}

bool tcp_write(int fd, const void *data, size_t bytes)
{
    for (const char *at = data; bytes;) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}
