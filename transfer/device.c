/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/device.h"

#include "core/errors.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    unsigned flags;
    bool is_there, has_address;
    char public_address[INET6_ADDRSTRLEN]; /* the first; "" */
} interface_t;

static bool is_private_v4(uint32_t a)
{
    return a >> 24 == 10 || a >> 24 == 127 || a >> 20 == 0xac1 || a >> 16 == 0xc0a8 || a >> 16 == 0xa9fe ||
           a >> 22 == 0x191;
}

bool device_address_is_private(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return is_private_v4(ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr));
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || IN6_IS_ADDR_LINKLOCAL(six) || (six->s6_addr[0] & 0xfe) == 0xfc;
}

static void note_public(interface_t *i, const struct sockaddr *a)
{
    bool is_v6 = a->sa_family == AF_INET6;
    if (i->public_address[0] || (!is_v6 && a->sa_family != AF_INET) || device_address_is_private(a)) return;
    const void *at = is_v6 ? (const void *)&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr
                           : &((const struct sockaddr_in *)(const void *)a)->sin_addr;
    inet_ntop(a->sa_family, at, i->public_address, sizeof i->public_address);
}

/* Of an address of the link alone, a peer could not say which link. */
static bool is_address(const struct sockaddr *a)
{
    if (a->sa_family != AF_INET6) return a->sa_family == AF_INET;
    return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* An IPv4 address comes under its label, which may be "eth0:1". */
static bool is_of(const char *name, const char *device)
{
    size_t n = strlen(device);
    return !strncmp(name, device, n) && (!name[n] || name[n] == ':');
}

/* `ret_list`: the interfaces that are up, with a comma between. */
static interface_t look_at(const char *device, char *ret_list, size_t size)
{
    struct ifaddrs *first, *a;
    interface_t seen = {0};
    ret_list[0] = 0;
    if (getifaddrs(&first) != 0) return seen;
    for (a = first; a; a = a->ifa_next) {
        if (!a->ifa_addr) continue;
        bool is_it = is_of(a->ifa_name, device);
        seen.has_address |= is_it && is_address(a->ifa_addr);
        if (is_it) note_public(&seen, a->ifa_addr);
        if (a->ifa_addr->sa_family != AF_PACKET) continue;
        if (is_it) seen.is_there = true, seen.flags = a->ifa_flags;
        size_t used = strlen(ret_list);
        if (a->ifa_flags & IFF_UP)
            snprintf(ret_list + used, size - used, "%s%s", used ? ", " : "", a->ifa_name);
    }
    freeifaddrs(first);
    return seen;
}

bool device_is_loopback(const char *device)
{
    char up[160];
    return look_at(device ? device : "lo", up, sizeof up).flags & IFF_LOOPBACK;
}

/* UCX finds interfaces there and nowhere else.  Without, it would open and reach only this process. */
static int check_listed(const char *name, heddle_error_t *error)
{
    char path[sizeof "/sys/class/net/" + IF_NAMESIZE];
    snprintf(path, sizeof path, "/sys/class/net/%s", name);
    if (access(path, F_OK) == 0) return HEDDLE_OK;
    const char *why = strerror(errno);
    error_fail(error, HEDDLE_ERR_INTERNAL, "UCX cannot use network interface %s: it is not shown in /sys",
               name);
    error_expected(error, "%s", path);
    error_found(error, "%s", why);
    error_hint(error, "mount /sys, in a container too: mount -t sysfs sysfs /sys");
    return HEDDLE_ERR_INTERNAL;
}

/* While a machine starts, any of this may come a moment after us. */
static int fail_absent(const char *name, const char *up, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_INTERNAL, "there is no network interface %s: there is %s", name, up);
    error_expected(error, "one of %s", up);
    error_found(error, "%s", name);
    error_hint(error, "name the interface of the data plane: --data-device");
    if (error) error->retriable = 1;
    return HEDDLE_ERR_INTERNAL;
}

/* UCX does without an interface that lacks one of these, and would reach only this process. */
static int check_ready(const char *name, const interface_t *i, heddle_error_t *error)
{
    const char *lacks = !(i->flags & IFF_UP)        ? "is down"
                        : !(i->flags & IFF_RUNNING) ? "has no carrier"
                        : !i->has_address           ? "has no address"
                                                    : NULL;
    if (!lacks) return HEDDLE_OK;
    error_fail(error, HEDDLE_ERR_INTERNAL, "network interface %s %s", name, lacks);
    error_expected(error, "one that is up, with a carrier and an IP address");
    error_found(error, "%s %s", name, lacks);
    error_hint(error, "`ip addr show %.20s` tells more; --data-device names another", name);
    if (error) error->retriable = 1;
    return HEDDLE_ERR_INTERNAL;
}

static int fail_insecure(const char *name, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_INSECURE_ADDRESS,
               "network interface %s is not loopback: whoever can reach UCX over TCP can write this "
               "process's memory", name);
    error_expected(error, "a loopback interface, such as lo");
    error_found(error, "%s", name);
    error_hint(error, "on a private network: name the broker's key (--broker-key), or say --insecure");
    return HEDDLE_ERR_INSECURE_ADDRESS;
}

static int fail_public(const char *name, const interface_t *i, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_INSECURE_ADDRESS,
               "network interface %s has the public address %s: whoever can reach UCX over TCP can write "
               "this process's memory", name, i->public_address);
    error_expected(error, "an interface with private addresses alone (RFC 1918, RFC 6598, RFC 4193)");
    error_found(error, "%s", i->public_address);
    error_hint(error, "name another with --data-device, or say --insecure where a firewall keeps others out");
    return HEDDLE_ERR_INSECURE_ADDRESS;
}

int device_check(const char *device, device_reach_t reach, heddle_error_t *error)
{
    const char *name = device ? device : "lo";
    char up[160];
    interface_t seen = look_at(name, up, sizeof up);
    if (!seen.is_there) return fail_absent(name, up, error);
    bool is_loopback = seen.flags & IFF_LOOPBACK;
    if (!is_loopback && reach == DEVICE_LOOPBACK) return fail_insecure(name, error);
    if (!is_loopback && reach == DEVICE_PRIVATE && seen.public_address[0])
        return fail_public(name, &seen, error);
    int rc = check_listed(name, error);
    return rc ? rc : check_ready(name, &seen, error);
}
