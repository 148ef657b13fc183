/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/device.h"

#include "core/digest.h"
#include "core/errors.h"
#include "core/listing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    unsigned flags;
    bool is_there, has_address;
    char public_address[INET6_ADDRSTRLEN]; /* the first; "" */
} interface_t;

/* 10/8, 127/8, 172.16/12, 192.168/16, 169.254/16, 100.64/10. */
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

/* The first public address is enough for the error. */
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

/* `ret_list`: the interfaces that are up. */
static interface_t look_at(const char *device, char *ret_list, size_t size)
{
    struct ifaddrs *first, *a;
    interface_t seen = {0};
    listing_t list = {.text = ret_list, .size = size};
    ret_list[0] = 0;
    if (getifaddrs(&first) != 0) return seen;
    for (a = first; a; a = a->ifa_next) {
        if (!a->ifa_addr) continue;
        /* An IPv4 address comes under its label, which may be "eth0:1". */
        size_t n = strlen(device);
        bool is_it = !strncmp(a->ifa_name, device, n) && (!a->ifa_name[n] || a->ifa_name[n] == ':');
        seen.has_address |= is_it && is_address(a->ifa_addr);
        if (is_it) note_public(&seen, a->ifa_addr);
        if (a->ifa_addr->sa_family != AF_PACKET) continue;
        if (is_it) seen.is_there = true, seen.flags = a->ifa_flags;
        if (a->ifa_flags & IFF_UP) listing_add(&list, "%s", a->ifa_name);
    }
    listing_text(&list);
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
    error_hint(error, "`ip addr show %.20s` shows its state; opts.data_device names another", name);
    if (error) error->retriable = 1;
    return HEDDLE_ERR_INTERNAL;
}

/* The interface is the guard of the data plane: UCX over TCP has no access control, and a peer could
 * write this process's memory. */
int device_check(const char *device, device_reach_t reach, heddle_error_t *error)
{
    const char *name = device ? device : "lo";
    char up[160];
    interface_t seen = look_at(name, up, sizeof up);
    if (!seen.is_there) {
        /* While a machine starts, any of this may come a moment after us. */
        error_fail(error, HEDDLE_ERR_INTERNAL, "there is no network interface %s: there is %s", name, up);
        error_expected(error, "one of %s", up);
        error_found(error, "%s", name);
        error_hint(error, "name the interface of the data plane: opts.data_device");
        if (error) error->retriable = 1;
        return HEDDLE_ERR_INTERNAL;
    }
    bool is_loopback = seen.flags & IFF_LOOPBACK;
    if (!is_loopback && reach == DEVICE_LOOPBACK) {
        error_fail(
            error, HEDDLE_ERR_INSECURE_ADDRESS,
            "network interface %s is not loopback: UCX over TCP has no access control, and a peer could "
            "write this process's memory",
            name);
        error_expected(error, "a loopback interface, such as lo");
        error_found(error, "%s", name);
        error_hint(error,
                   "on a private network: name the broker's key (opts.broker_key), or set opts.insecure");
        return HEDDLE_ERR_INSECURE_ADDRESS;
    }
    if (!is_loopback && reach == DEVICE_PRIVATE && seen.public_address[0]) {
        error_fail(error, HEDDLE_ERR_INSECURE_ADDRESS,
                   "network interface %s has the public address %s: UCX over TCP has no access control, and "
                   "a peer could write this process's memory",
                   name, seen.public_address);
        error_expected(error, "an interface with private addresses alone (RFC 1918, RFC 6598, RFC 4193)");
        error_found(error, "%s", seen.public_address);
        error_hint(error,
                   "name another with opts.data_device, or set opts.insecure where a firewall keeps others "
                   "out");
        return HEDDLE_ERR_INSECURE_ADDRESS;
    }
    int rc = check_listed(name, error);
    return rc ? rc : check_ready(name, &seen, error);
}

/* ---- addresses ---- */

/* False for an address of another kind than IP. */
static bool address_of(const struct sockaddr *from, device_address_t *ret_address)
{
    *ret_address = (device_address_t){0};
    if (!from || (from->sa_family != AF_INET && from->sa_family != AF_INET6)) return false;
    ret_address->family = from->sa_family;
    if (from->sa_family == AF_INET)
        memcpy(ret_address->bytes, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    else memcpy(ret_address->bytes, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16);
    return true;
}

/* The form that bind and connect take; port 0 leaves the choice to the kernel. */
static socklen_t socket_address(const device_address_t *a, uint16_t port, struct sockaddr_storage *ret_at)
{
    *ret_at = (struct sockaddr_storage){.ss_family = (sa_family_t)a->family};
    if (a->family == AF_INET) {
        struct sockaddr_in *at = (struct sockaddr_in *)ret_at;
        memcpy(&at->sin_addr, a->bytes, 4);
        at->sin_port = htons(port);
        return sizeof *at;
    }
    struct sockaddr_in6 *at = (struct sockaddr_in6 *)ret_at;
    memcpy(&at->sin6_addr, a->bytes, 16);
    at->sin6_port = htons(port);
    return sizeof *at;
}

/* The length of the network does not count: it may change while the address stays. */
static bool is_same(const device_address_t *a, const device_address_t *b)
{
    return a->family == b->family && !memcmp(a->bytes, b->bytes, sizeof a->bytes);
}

/* Asks the kernel for a route, without sending a packet. port 0: only bound. */
static bool can_connect(const device_address_t *from, const device_address_t *to, uint16_t port)
{
    struct sockaddr_storage at;
    int fd = socket(from->family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return false;
    socklen_t bytes = socket_address(from, 0, &at);
    bool can = bind(fd, (struct sockaddr *)&at, bytes) == 0;
    if (can && port) {
        bytes = socket_address(to, port, &at);
        can = connect(fd, (struct sockaddr *)&at, bytes) == 0;
    }
    close(fd);
    return can;
}

/* Both addresses have the same network prefix. */
static bool is_on_link(const device_address_t *from, const device_address_t *to)
{
    uint32_t bits = from->prefix_bits;
    if (!bits || memcmp(from->bytes, to->bytes, bits / 8) != 0) return false;
    return bits % 8 == 0 || ((from->bytes[bits / 8] ^ to->bytes[bits / 8]) >> (8 - bits % 8)) == 0;
}

device_route_t device_route(const device_address_t *from, const device_address_t *to)
{
    if (!from->family || from->family != to->family || !can_connect(from, to, 9)) return DEVICE_NO_ROUTE;
    return is_on_link(from, to) ? DEVICE_ON_LINK : DEVICE_ROUTED;
}

/* As UCX chooses: not of the loopback of IPv6, not of the link alone, and not under a label. */
static bool is_for_ucx(const struct ifaddrs *a, const char *device, device_address_t *ret_address)
{
    const struct in6_addr *six = (const struct in6_addr *)(const void *)ret_address->bytes;
    device_address_t mask;
    if (strcmp(a->ifa_name, device) != 0 || !address_of(a->ifa_addr, ret_address)) return false;
    if (address_of(a->ifa_netmask, &mask)) {
        uint32_t bits = 0;
        while (bits < 128 && mask.bytes[bits / 8] >> (7 - bits % 8) & 1) bits++;
        ret_address->prefix_bits = bits;
    }
    return ret_address->family == AF_INET || (!IN6_IS_ADDR_LOOPBACK(six) && !IN6_IS_ADDR_LINKLOCAL(six));
}

/* Addresses that are still there are kept, so that a connection over them goes on; only what is gone or
 * new changes the planes. */
bool device_moved(const char *device, const device_addresses_t *had, device_addresses_t *ret_now)
{
    static const device_addresses_t NONE;
    struct ifaddrs *first, *a;
    device_addresses_t kept = NONE, found = NONE;
    bool is_up = false, is_loopback = false;
    *ret_now = had ? *had : NONE;
    if (getifaddrs(&first) != 0) return false;
    for (a = first; a; a = a->ifa_next) {
        device_address_t address;
        if (strcmp(a->ifa_name, device) != 0) continue;
        is_up |= (a->ifa_flags & IFF_UP) && (a->ifa_flags & IFF_RUNNING);
        is_loopback |= (a->ifa_flags & IFF_LOOPBACK) != 0;
        if (!is_for_ucx(a, device, &address)) continue;
        device_family_t f = address.family == AF_INET ? DEVICE_INET : DEVICE_INET6;
        if (!found.of[f].family) found.of[f] = address;
        if (had && is_same(&address, &had->of[f])) kept.of[f] = address;
    }
    freeifaddrs(first);
    if (!is_up) return false;
    bool is_moved = false;
    for (int f = 0; f < DEVICE_FAMILIES; f++) {
        bool is_second = is_loopback && f == DEVICE_INET6 && ret_now->of[DEVICE_INET].family;
        if (!kept.of[f].family && found.of[f].family && !is_second && can_connect(&found.of[f], NULL, 0))
            kept.of[f] = found.of[f];
        is_moved |= !is_same(&kept.of[f], &ret_now->of[f]);
        ret_now->of[f] = kept.of[f];
    }
    return is_moved;
}

void device_addresses(const char *device, device_addresses_t *ret_addresses)
{
    (void)device_moved(device, NULL, ret_addresses);
}

void device_address_text(const device_address_t *address, char ret_text[DEVICE_ADDRESS_TEXT])
{
    ret_text[0] = 0;
    if (address->family) inet_ntop(address->family, address->bytes, ret_text, DEVICE_ADDRESS_TEXT);
}

void device_addresses_text(const device_addresses_t *addresses, char ret_text[DEVICE_ADDRESSES_TEXT])
{
    size_t used = 0;
    ret_text[0] = 0;
    for (int f = 0; f < DEVICE_FAMILIES; f++) {
        char one[DEVICE_ADDRESS_TEXT];
        device_address_text(&addresses->of[f], one);
        if (one[0])
            used +=
                (size_t)snprintf(ret_text + used, DEVICE_ADDRESSES_TEXT - used, "%s%s", used ? "," : "", one);
    }
}

bool device_address_is_loopback(const device_address_t *address)
{
    return (address->family == AF_INET && address->bytes[0] == 127) ||
           (address->family == AF_INET6 &&
            IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)address->bytes));
}

/* Inodes of namespaces repeat from one boot, or host, to the next. */
uint64_t device_network(void)
{
    struct {
        uint64_t network;
        char boot[40];
    } id = {0};
    struct stat network;
    uint64_t leaf;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, id.boot, sizeof id.boot) : -1;
    if (fd >= 0) close(fd);
    if (got <= 0 || stat("/proc/self/ns/net", &network) < 0) return 0;
    id.network = (uint64_t)network.st_ino;
    digest_leaves(&id, sizeof id, &leaf);
    return leaf;
}

/* ---- towards a host ---- */

/* "eth0 10.0.0.5, eth1 203.0.113.7 (public)": those that are up and no loopback.  *ret_device: the one that
 * has `source`. */
static void list_interfaces(const device_address_t *source, char ret_device[IF_NAMESIZE], char *ret_list,
                            size_t size)
{
    struct ifaddrs *first, *a;
    listing_t list = {.text = ret_list, .size = size};
    ret_device[0] = ret_list[0] = 0;
    if (getifaddrs(&first) != 0) return;
    for (a = first; a; a = a->ifa_next) {
        device_address_t address;
        char text[DEVICE_ADDRESS_TEXT];
        if (!address_of(a->ifa_addr, &address) || !(a->ifa_flags & IFF_UP)) continue;
        if (source && is_same(source, &address))
            snprintf(ret_device, IF_NAMESIZE, "%.*s", (int)strcspn(a->ifa_name, ":"), a->ifa_name);
        if ((a->ifa_flags & IFF_LOOPBACK) || !is_address(a->ifa_addr)) continue;
        device_address_text(&address, text);
        listing_add(&list, "%s %s%s", a->ifa_name, text,
                    device_address_is_private(a->ifa_addr) ? "" : " (public)");
    }
    listing_text(&list);
    freeifaddrs(first);
}

/* The broker's name or route is wrong as a rule, and an interface that is named would hide that. */
static int fail_towards(const char *host, const char *why, const char *list, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_UNAVAILABLE,
               "no network interface can be chosen for the data plane: the broker's host %s %s", host, why);
    error_expected(error, "a route to %s", host);
    error_found(error, "%s", list[0] ? list : "no interface that is up but loopback");
    error_hint(error,
               "is the host in opts.broker (HEDDLE_BROKER) right?  Where the broker is reached by another "
               "network than the data, opts.data_device names the interface of the data plane");
    if (error) error->retriable = 1;
    return HEDDLE_ERR_UNAVAILABLE;
}

static int fail_public_source(const char *host, const char *device, const char *source, const char *list,
                              heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_INSECURE_ADDRESS,
               "no network interface can be chosen for the data plane: %s, which reaches the broker's host "
               "%s, has the public address %s",
               device, host, source);
    error_expected(error, "an interface that reaches the broker with a private address");
    error_found(error, "%s", list);
    error_hint(error, "opts.data_device names another; a public one needs opts.insecure too, and a firewall");
    return HEDDLE_ERR_INSECURE_ADDRESS;
}

static bool is_private(const device_address_t *a)
{
    struct sockaddr_storage at;
    socket_address(a, 0, &at);
    return device_address_is_private((struct sockaddr *)&at);
}

int device_towards(const char *host, char ret_device[IF_NAMESIZE], heddle_error_t *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    device_address_t source = {0};
    char device[IF_NAMESIZE], list[sizeof error->found], text[DEVICE_ADDRESS_TEXT];
    int rc = getaddrinfo(host, "9", &hints, &found);
    bool is_reached = false;
    for (const struct addrinfo *to = found; !rc && to && !is_reached; to = to->ai_next) {
        /* The address that the kernel would send from; false: there is no route. */
        struct sockaddr_storage at;
        socklen_t bytes = sizeof at;
        int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bool is_found = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                        getsockname(fd, (struct sockaddr *)&at, &bytes) == 0 &&
                        address_of((struct sockaddr *)&at, &source);
        if (fd >= 0) close(fd);
        is_reached = is_found;
    }
    if (found) freeaddrinfo(found);
    list_interfaces(is_reached ? &source : NULL, device, list, sizeof list);
    if (rc) return fail_towards(host, "cannot be resolved", list, error);
    if (!is_reached || !device[0]) return fail_towards(host, "cannot be reached", list, error);
    device_address_text(&source, text);
    if (!is_private(&source)) return fail_public_source(host, device, text, list, error);
    memcpy(ret_device, device, sizeof device);
    return HEDDLE_OK;
}
