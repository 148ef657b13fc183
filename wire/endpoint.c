/* SPDX-License-Identifier: Apache-2.0 */
/* The syntax of endpoints, and the rule which of them only this host can reach. */
#include "wire/endpoint.h"

#include "core/errors.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

static bool host_is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (!strcasecmp(host, "localhost") || !strcasecmp(host, "localhost.")) return true;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* Each address must have one spelling, because keys are stored under the address as text. inet_aton accepts
 * more (127.1, octal, hexadecimal); such a host is refused here instead of being stored twice. */
static bool is_one_spelling(const char *host, bool bracketed)
{
    struct in_addr v4;
    struct in6_addr v6;
    char text[INET6_ADDRSTRLEN] = "";
    if (!bracketed && !inet_aton(host, &v4)) return true;
    if (!bracketed) return inet_ntop(AF_INET, &v4, text, sizeof text) && !strcmp(text, host);
    return inet_pton(AF_INET6, host, &v6) == 1 && !IN6_IS_ADDR_V4MAPPED(&v6) &&
           inet_ntop(AF_INET6, &v6, text, sizeof text) && !strcasecmp(text, host);
}

/* The host without brackets. False when it cannot be a host name or an address in its one spelling. */
static bool take_host(const char *text, size_t bytes, bool listen, char ret_host[ENDPOINT_BYTES])
{
    bool bracketed = bytes >= 2 && text[0] == '[' && text[bytes - 1] == ']';
    if (bracketed) text++, bytes -= 2;
    memcpy(ret_host, text, bytes);
    ret_host[bytes] = 0;
    if (bracketed) return is_one_spelling(ret_host, true);
    if (listen && !strcmp(ret_host, "*")) return true;
    size_t named = strspn(ret_host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_");
    return named && !ret_host[named] && is_one_spelling(ret_host, false);
}

static bool check_tcp(const char *rest, bool listen, bool *ret_loopback)
{
    const char *colon = strrchr(rest, ':');
    char host[ENDPOINT_BYTES];
    if (!colon || !take_host(rest, (size_t)(colon - rest), listen, host)) return false;
    const char *port = colon + 1;
    bool is_any = listen && (!strcmp(port, "*") || !strcmp(port, "0"));
    size_t digits = strspn(port, "0123456789");
    /* A leading zero would be a second spelling of the same endpoint. */
    bool is_number =
        digits > 0 && digits <= 5 && port[0] != '0' && !port[digits] && atoi(port) > 0 && atoi(port) <= 65535;
    if (!is_any && !is_number) return false;
    *ret_loopback = host_is_loopback(host);
    return true;
}

int wire_check_endpoint(const char *endpoint, bool listen, bool *ret_loopback, heddle_error_t *error)
{
    bool loopback = false, good = false;
    if (strlen(endpoint) < ENDPOINT_BYTES - 1) { /* at that length endpoint_next may have cut it */
        if (!strncmp(endpoint, "tcp://", 6)) good = check_tcp(endpoint + 6, listen, &loopback);
        if (!strncmp(endpoint, "ipc://", 6)) {
            const char *path = endpoint + 6;
            loopback = true;
            good =
                path[0] && strcmp(path, "*") != 0 && strlen(path) < sizeof((struct sockaddr_un *)0)->sun_path;
        }
    }
    if (good) {
        if (ret_loopback) *ret_loopback = loopback;
        return HEDDLE_OK;
    }
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "\"%.200s\" is not an address to %s", endpoint,
                        listen ? "listen on" : "connect to");
    error_contrast(
        error, listen ? "tcp://HOST:PORT (either may be *) or ipc:///PATH" : "tcp://HOST:PORT or ipc:///PATH",
        endpoint);
    if (!strpbrk(endpoint, ":/.")) /* "policy" */
        error_hint(error,
                   "for example tcp://127.0.0.1:7700; the name of an adapter goes into its own argument");
    else
        error_hint(error, "for example tcp://127.0.0.1:7700; write an address in full, and a port without "
                          "leading zeros");
    return rc;
}

bool endpoint_next(const char **list, char ret_endpoint[ENDPOINT_BYTES])
{
    const char *from = *list;
    if (!from) return false;
    size_t bytes = strcspn(from, ",");
    *list = from[bytes] ? from + bytes + 1 : NULL;
    if (bytes >= ENDPOINT_BYTES) bytes = ENDPOINT_BYTES - 1;
    memcpy(ret_endpoint, from, bytes);
    ret_endpoint[bytes] = 0;
    return true;
}

int wire_check_endpoints(const char *endpoints, bool *ret_loopback, heddle_error_t *error)
{
    bool all = true;
    char one[ENDPOINT_BYTES];
    for (const char *rest = endpoints; endpoint_next(&rest, one);) {
        bool loopback;
        int rc = wire_check_endpoint(one, false, &loopback, error);
        if (rc) return rc;
        all &= loopback;
    }
    if (ret_loopback) *ret_loopback = all;
    return HEDDLE_OK;
}

bool wire_next_host(const char **list, char ret_host[WIRE_HOST_BYTES])
{
    char one[ENDPOINT_BYTES];
    while (endpoint_next(list, one)) {
        const char *colon = strrchr(one, ':');
        bool is_tcp = !strncmp(one, "tcp://", 6) && colon > one + 6;
        if (is_tcp && take_host(one + 6, (size_t)(colon - one - 6), false, ret_host) &&
            !host_is_loopback(ret_host))
            return true;
    }
    return false;
}
