/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the plugin: what is said when it, UCX or the interface is not there. */
#include "transfer/device.h"
#include "transfer/transfer.h"

#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static const transfer_ops_t *ops;
static heddle_error_t e;

Test(load, a_missing_plugin_is_a_sentence)
{
    setenv("HEDDLE_PLUGIN_DIR", "/proc/nonexistent", 1);
    cr_assert_eq(transfer_ucx_load(NULL, &ops, &e), HEDDLE_ERR_INTERNAL);
    cr_assert_null(ops);
    cr_assert(strstr(e.message, "transfer_ucx.so") && strstr(e.message, "/proc/nonexistent"), "%s",
              e.message);
    cr_assert(strstr(e.expected, "/proc/nonexistent/transfer_ucx.so") && strstr(e.hint, "HEDDLE_PLUGIN_DIR"));
}

/* A directory of our own with a "plugin" of the given bytes. */
static void place(char dir[64], const char *bytes)
{
    char path[96];
    snprintf(dir, 64, "/tmp/heddle-load-%d", (int)getpid());
    cr_assert_eq(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/transfer_ucx.so", dir);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(bytes, f);
    fclose(f);
    setenv("HEDDLE_PLUGIN_DIR", dir, 1);
}

static void unplace(const char *dir)
{
    char path[96];
    snprintf(path, sizeof path, "%s/transfer_ucx.so", dir);
    unlink(path);
    rmdir(dir);
}

static void none_is_left(void)
{
    for (char **v = environ; *v; v++) cr_assert_neq(strncmp(*v, "UCX_", 4), 0, "%s was left behind", *v);
}

Test(load, a_file_that_is_no_plugin_is_refused)
{
    char dir[64];
    place(dir, "not a library");
    int rc = transfer_ucx_load(NULL, &ops, &e);
    unplace(dir);
    cr_assert_eq(rc, HEDDLE_ERR_INTERNAL);
    cr_assert_null(ops);
    cr_assert(strstr(e.message, dir), "%s", e.message);
    none_is_left();
}

Test(load, an_interface_that_is_not_there_is_named)
{
    cr_assert_eq(device_check("nosuchif0", DEVICE_ANY, &e), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(e.retriable, 1, "it may come");
    cr_assert(strstr(e.message, "nosuchif0") && strstr(e.expected, "lo") &&
              strstr(e.hint, "opts.data_device"));
    cr_assert_eq(transfer_ucx_load("nosuchif0", &ops, &e), HEDDLE_ERR_INTERNAL);
}

Test(load, loopback_is_the_only_interface_that_is_safe)
{
    cr_assert_eq(device_check(NULL, DEVICE_LOOPBACK, &e), HEDDLE_OK);
    cr_assert_eq(device_check("lo", DEVICE_LOOPBACK, &e), HEDDLE_OK);
    cr_assert(device_is_loopback(NULL) && device_is_loopback("lo"));
    cr_assert_not(device_is_loopback("nosuchif0"));
    char name[64] = ""; /* one that is up and not loopback, if this machine has one */
    FILE *f = popen("ip -o link show up 2>/dev/null | awk -F': ' '$3 !~ /LOOPBACK/ {print $2; exit}'", "r");
    if (f && fgets(name, sizeof name, f)) name[strcspn(name, "@\n")] = 0;
    if (f) pclose(f);
    if (!name[0]) cr_skip_test("no interface but loopback");
    cr_assert_eq(device_check(name, DEVICE_LOOPBACK, &e), HEDDLE_ERR_INSECURE_ADDRESS);
    cr_assert(strstr(e.message, name) && strstr(e.message, "memory") && strstr(e.hint, "opts.insecure"));
    cr_assert_eq(device_check(name, DEVICE_ANY, &e), HEDDLE_OK);
    cr_assert_not(device_is_loopback(name));
}

Test(load, public_addresses_are_told_from_private_ones)
{
    static const struct {
        const char *text;
        bool is_private;
    } ROWS[] = {{"10.0.0.1", true},     {"10.255.255.255", true},  {"9.255.255.255", false},
                {"11.0.0.0", false},    {"127.0.0.1", true},       {"126.0.0.1", false},
                {"172.16.0.1", true},   {"172.31.255.255", true},  {"172.15.255.255", false},
                {"172.32.0.0", false},  {"192.168.0.1", true},     {"192.167.1.1", false},
                {"192.169.1.1", false}, {"169.254.9.9", true},     {"169.253.9.9", false},
                {"100.64.0.1", true},   {"100.127.255.255", true}, {"100.63.255.255", false},
                {"100.128.0.0", false}, {"203.0.113.7", false},    {"::1", true},
                {"fe80::1", true},      {"febf::1", true},         {"fec0::1", false},
                {"fc00::1", true},      {"fdff::1", true},         {"fe00::1", false},
                {"fbff::1", false},     {"2001:db8::1", false}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        struct {
            struct sockaddr_in6 six;
            struct sockaddr_in four;
        } a = {.six.sin6_family = AF_INET6, .four.sin_family = AF_INET};
        bool is_v6 = strchr(ROWS[i].text, ':');
        cr_assert_eq(inet_pton(is_v6 ? AF_INET6 : AF_INET, ROWS[i].text,
                               is_v6 ? (void *)&a.six.sin6_addr : (void *)&a.four.sin_addr),
                     1);
        const struct sockaddr *address = is_v6 ? (void *)&a.six : (void *)&a.four;
        cr_assert_eq(device_address_is_private(address), ROWS[i].is_private, "%s", ROWS[i].text);
    }
}

/* One that `ip addr` shows under a label of its own, too. */
Test(load, a_public_address_is_seen_under_a_label)
{
    if (unshare(CLONE_NEWNET) ||
        system("{ ip link add d0 type veth peer name d1 && ip addr add 10.1.1.1/24 dev d0; } 2>/dev/null"))
        cr_skip_test("no network of one's own may be made here");
    cr_assert_neq(device_check("d0", DEVICE_PRIVATE, &e), HEDDLE_ERR_INSECURE_ADDRESS);
    cr_assert_eq(system("ip addr add 203.0.113.7/24 dev d0 label d0:1"), 0);
    cr_assert_eq(device_check("d0", DEVICE_PRIVATE, &e), HEDDLE_ERR_INSECURE_ADDRESS, "%s", e.message);
    cr_assert_str_eq(e.found, "203.0.113.7");
    cr_assert_eq(device_check("d", DEVICE_PRIVATE, &e), HEDDLE_ERR_INTERNAL);
}

/* The kernel looks for a carrier a moment after the link is up. */
static void wait_for_carrier(void)
{
    while (system("ip -o link show d0 | grep -q 'state UP'")) sched_yield();
}
static void make_devices(void)
{
    if (unshare(CLONE_NEWNET) ||
        system("{ ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d1 up &&"
               " ip addr add 10.1.1.1/24 dev d0 && ip link set d0 up; } 2>/dev/null"))
        cr_skip_test("no network of one's own may be made here");
    wait_for_carrier();
}
static int run_ip(const char *arguments)
{
    char command[256];
    snprintf(command, sizeof command, "ip %s 2>/dev/null", arguments);
    return system(command);
}
static void expect_addresses(const device_addresses_t *a, const char *wanted)
{
    char text[DEVICE_ADDRESSES_TEXT];
    device_addresses_text(a, text);
    cr_expect_str_eq(text, wanted);
}

Test(load, addresses_are_kept_until_they_are_gone, .timeout = 20)
{
    device_addresses_t had, now;
    make_devices();
    device_addresses("lo", &had);
    expect_addresses(&had, "127.0.0.1");
    cr_assert(device_address_is_loopback(&had.of[DEVICE_INET]));
    device_addresses("d0", &had);
    expect_addresses(&had, "10.1.1.1");
    cr_assert_not(device_moved("d0", &had, &now));
    cr_assert_eq(run_ip("addr add 10.2.2.2/16 dev d0"), 0);
    cr_assert_not(device_moved("d0", &had, &now), "the first is still there");
    cr_assert_eq(run_ip("link set d0 down"), 0);
    cr_assert_eq(run_ip("addr del 10.1.1.1/24 dev d0"), 0);
    cr_assert_not(device_moved("d0", &had, &now), "while it is down, nothing is known");
    expect_addresses(&now, "10.1.1.1");
    cr_assert_eq(run_ip("link set d0 up"), 0);
    wait_for_carrier();
    cr_assert(device_moved("d0", &had, &now));
    expect_addresses(&now, "10.2.2.2");
    cr_assert_not(device_moved("nosuchif0", &had, &now));
    if (run_ip("addr add fd01::1/64 dev d0 nodad")) cr_skip_test("no IPv6 here");
    had = now;
    cr_assert(device_moved("d0", &had, &now), "a family came");
    expect_addresses(&now, "10.2.2.2,fd01::1");
    had = now;
    cr_assert_eq(run_ip("addr flush dev d0"), 0);
    cr_assert(device_moved("d0", &had, &now));
    expect_addresses(&now, "");
}

/* The check for duplicates takes a second: nobody can listen there until then. */
Test(load, an_address_that_is_still_checked_is_none, .timeout = 20)
{
    device_addresses_t now;
    make_devices();
    cr_assert_eq(system("echo 1 >/proc/sys/net/ipv6/conf/d0/accept_dad 2>/dev/null;"
                        "echo 60 >/proc/sys/net/ipv6/conf/d0/dad_transmits 2>/dev/null"),
                 0);
    if (run_ip("addr add fd01::1/64 dev d0") || system("ip addr show dev d0 | grep -q 'fd01.*tentative'"))
        cr_skip_test("no such address here");
    device_addresses("d0", &now);
    expect_addresses(&now, "10.1.1.1");
}

Test(load, routes_from_an_address, .timeout = 20)
{
    device_addresses_t from;
    device_address_t to = {.family = AF_INET, .bytes = {10, 1, 1, 200}};
    device_address_t six = {.family = AF_INET6, .bytes = {0xfd, 1, [15] = 2}};
    make_devices();
    device_addresses("d0", &from);
    const device_address_t *ours = &from.of[DEVICE_INET];
    cr_assert_eq(device_route(ours, &to), DEVICE_ON_LINK);
    cr_assert_eq(device_route(ours, &six), DEVICE_NO_ROUTE);
    to.bytes[2] = 2;
    cr_assert_eq(device_route(ours, &to), DEVICE_NO_ROUTE);
    cr_assert_eq(run_ip("route add default via 10.1.1.254"), 0);
    cr_assert_eq(device_route(ours, &to), DEVICE_ROUTED);
}

Test(load, the_interface_towards_a_host, .timeout = 20)
{
    char device[IF_NAMESIZE] = "";
    make_devices();
    cr_assert_eq(device_towards("10.1.1.9", device, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(device, "d0");
    cr_assert_eq(device_towards("10.1.1.1", device, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_str_eq(device, "d0", "an address of this machine is its interface's");
    cr_assert_eq(device_towards("192.0.2.1", device, &e), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(e.retriable && strstr(e.message, "192.0.2.1 cannot be reached") &&
                  strstr(e.found, "d0 10.1.1.1") && strstr(e.hint, "opts.data_device"),
              "%s", e.found);
    cr_assert_eq(device_towards("no host", device, &e), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(strstr(e.message, "cannot be resolved"), "%s", e.message);
    cr_assert_eq(run_ip("addr add 203.0.113.7/24 dev d0"), 0);
    cr_assert_eq(device_towards("203.0.113.9", device, &e), HEDDLE_ERR_INSECURE_ADDRESS);
    cr_assert(!e.retriable && strstr(e.found, "d0 203.0.113.7 (public)"), "%s", e.found);
    cr_assert_eq(device_towards("10.1.1.9", device, &e), HEDDLE_OK, "its address there is private");
}

Test(load, networks_are_told_apart, .timeout = 20)
{
    uint64_t before = device_network();
    cr_assert_eq(device_network(), before);
    make_devices();
    cr_assert(device_network() && device_network() != before);
}

/* In a network of our own, where loopback is down at first.  (Carrier and address: tests/blackbox.) */
Test(load, an_interface_that_is_down_is_waited_for)
{
    if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        cr_skip_test("no network of one's own may be made here");
    cr_assert_eq(device_check(NULL, DEVICE_LOOPBACK, &e), HEDDLE_ERR_INTERNAL);
    cr_assert(e.retriable && strstr(e.message, "lo is down"), "%s", e.message);
    cr_assert(device_is_loopback(NULL));
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &lo), 0);
    close(fd);
    cr_assert_eq(device_check(NULL, DEVICE_LOOPBACK, &e), HEDDLE_OK, "%s", e.message);
}

/* In a namespace of our own, where /sys is an empty place. */
Test(load, an_interface_that_sys_does_not_show_is_refused)
{
    bool is_alone = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    if (!is_alone || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/sys", "tmpfs", 0, NULL))
        cr_skip_test("no namespace may be made here");
    cr_assert_eq(device_check(NULL, DEVICE_LOOPBACK, &e), HEDDLE_ERR_INTERNAL);
    cr_assert(strstr(e.message, "lo") && strstr(e.expected, "/sys/class/net/lo"), "%s", e.message);
    cr_assert(strstr(e.found, "No such file") && strstr(e.hint, "mount /sys"));
    cr_assert_eq(transfer_ucx_load(NULL, &ops, &e), HEDDLE_ERR_INTERNAL);
}

static void *load_again_and_again(void *arg)
{
    const transfer_ops_t *none = NULL;
    heddle_error_t error;
    for (int i = 0; i < 200; i++) transfer_ucx_load(NULL, &none, &error);
    return arg;
}

Test(load, four_threads_leave_nothing_behind, .timeout = 20)
{
    char dir[64];
    pthread_t threads[4];
    place(dir, "no plugin");
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, load_again_and_again, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    none_is_left();
    unplace(dir);
}

Test(load, what_the_user_set_stays)
{
    char dir[64];
    place(dir, "no plugin");
    setenv("UCX_LOG_LEVEL", "info", 1);
    cr_assert_eq(transfer_ucx_load(NULL, &ops, &e), HEDDLE_ERR_INTERNAL);
    cr_assert_str_eq(getenv("UCX_LOG_LEVEL"), "info");
    unsetenv("UCX_LOG_LEVEL");
    none_is_left();
    unplace(dir);
}
