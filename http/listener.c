/* SPDX-License-Identifier: Apache-2.0 */
#include "http/listener.h"

#include "core/errors.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 64 };

typedef struct {
    struct sockaddr_storage address;
    socklen_t bytes;
} place_t;

/* False: `host` is not an IP address. */
static bool place_of(const char *host, uint16_t port, place_t *ret_place)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    *ret_place = (place_t){0};
    if (!strcmp(host, "*") || inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        memcpy(&ret_place->address, &v4, sizeof v4); /* "*": v4.sin_addr is 0.0.0.0 */
        ret_place->bytes = sizeof v4;
    } else if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        memcpy(&ret_place->address, &v6, sizeof v6);
        ret_place->bytes = sizeof v6;
    }
    return ret_place->bytes > 0;
}

static bool is_loopback(const place_t *place)
{
    if (place->address.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&place->address)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)&place->address)->sin_addr.s_addr) >> 24 == 127;
}

static bool take_port(const char *text, uint16_t *ret_port)
{
    *ret_port = 0;
    if (!strcmp(text, "*")) return true;
    if (!*text || strlen(text) > 5 || text[strspn(text, "0123456789")]) return false;
    long port = strtol(text, NULL, 10);
    *ret_port = (uint16_t)port;
    return port > 0 && port <= UINT16_MAX;
}

int listener_parse(const char *text, listener_address_t *ret_address, heddle_error_t *error)
{
    listener_address_t a = {.host = "127.0.0.1"};
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
    size_t bytes = colon ? (size_t)(colon - text) : 0;
    place_t place;
    bool has_brackets = bytes > 2 && text[0] == '[' && text[bytes - 1] == ']';
    if (has_brackets) snprintf(a.host, sizeof a.host, "%.*s", (int)(bytes - 2), text + 1);
    else if (colon) snprintf(a.host, sizeof a.host, "%.*s", (int)bytes, text);
    bool is_v6 = strchr(a.host, ':') != NULL;
    if (!take_port(port, &a.port) || is_v6 != has_brackets || !place_of(a.host, a.port, &place)) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "\"%.100s\" is not an address for HTTP", text);
        error_expected(error, "[HOST:]PORT: 9700, 127.0.0.1:9700, [::1]:9700 or *:9700");
        error_found(error, "%.100s", text);
        error_hint(error,
                   "HOST is an IP address of this host, without it 127.0.0.1; port * takes a free one");
        return rc;
    }
    a.is_loopback = is_loopback(&place);
    *ret_address = a;
    return HEDDLE_OK;
}

static int open_failed(int err, const char *url, heddle_error_t *error)
{
    int rc;
    switch (err) {
    case EADDRINUSE:
        rc = error_fail(error, HEDDLE_ERR_ADDRESS_IN_USE, "another program listens on %s", url);
        error_contrast(error, "a free port", url);
        error_hint(error, "`ss -ltnp` names the program; give --http another port, or * for any free one");
        return rc;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no descriptor is left for %s: %s", url,
                          strerror(err));
    default:
        rc = error_fail(error, HEDDLE_ERR_INTERNAL, "cannot listen on %s: %s", url, strerror(err));
        error_hint(error, "`ip addr` lists the addresses of this host; ports below 1024 need privileges");
        return rc;
    }
}

static void write_url(const char *host, unsigned port, bool is_tls, char ret_url[96])
{
    bool is_v6 = strchr(host, ':') != NULL;
    snprintf(ret_url, 96, "http%s://%s%s%s:%u", is_tls ? "s" : "", is_v6 ? "[" : "", host, is_v6 ? "]" : "",
             port);
}

int listener_open(const listener_address_t *address, bool is_tls, int *ret_fd, char ret_url[96],
                  heddle_error_t *error)
{
    place_t place;
    int on = 1;
    write_url(address->host, address->port, is_tls, ret_url);
    if (!place_of(address->host, address->port, &place)) return open_failed(EINVAL, ret_url, error);
    int fd = socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return open_failed(errno, ret_url, error);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* connections of a former run linger */
    bool is_open = bind(fd, (struct sockaddr *)&place.address, place.bytes) == 0 &&
                   listen(fd, BACKLOG) == 0 &&
                   getsockname(fd, (struct sockaddr *)&place.address, &place.bytes) == 0;
    if (!is_open) {
        int rc = open_failed(errno, ret_url, error);
        close(fd);
        return rc;
    }
    bool is_v6 = place.address.ss_family == AF_INET6;
    unsigned port = is_v6 ? ((struct sockaddr_in6 *)&place.address)->sin6_port
                          : ((struct sockaddr_in *)&place.address)->sin_port;
    write_url(address->host, ntohs((uint16_t)port), is_tls, ret_url);
    *ret_fd = fd;
    return HEDDLE_OK;
}
