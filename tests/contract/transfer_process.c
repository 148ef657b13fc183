/* SPDX-License-Identifier: Apache-2.0 */
/* What only two processes can show: peers that are killed and stopped, descriptors, and what loading leaves
 * behind. */
#include "tests/contract/ask.h"
#include "core/limits.h"
#include "tests/contract/rig.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE LIMIT_CHUNK_MIN_BYTES
#define BIG (32u << 20)
#define LONG_US 20000000u
#define CHILD_TOKEN 200u
#define REMOTE 1 /* the child's place in the parent's rig */

static const share_key_t KEY = {{9, 9, 9, 9}};

TestSuite(process, .timeout = 60);

/* The other process: does what its role says until it is killed or the line closes; says 'g' at each
 * TR_PEER_GONE. */
typedef struct {
    pid_t pid;
    int line;
} child_t;
typedef enum { SOURCE, RECEIVER } role_t;

static bool is_line_closed(int line)
{
    struct pollfd p = {.fd = line, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static void report(rig_t *r, int line, int *seen)
{
    for (; *seen < r->nodes[0].count; ++*seen)
        if (r->nodes[0].events[*seen].kind == TR_PEER_GONE)
            send(line, "g", 1, MSG_NOSIGNAL); /* the parent may have left */
}

/* Asks for everything, again and again. */
static void keep_asking(rig_t *r, uint64_t *at)
{
    node_t *n = &r->nodes[0];
    uint64_t ask;
    while (ask_into(r->ops, n->t, &r->nodes[REMOTE].ref, KEY, *at, LIMIT_CHUNK_MAX_BYTES, n->region, *at,
                    &ask) == HEDDLE_OK)
        *at = (*at + LIMIT_CHUNK_MAX_BYTES) % n->region->bytes;
}

static void run_child(role_t role, size_t bytes, uint64_t extended, int line, pid_t parent)
{
    rig_in_child = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    uint8_t address[LIMIT_ADDRESS_BYTES];
    rig_t *r = rig_open(1, bytes, NULL);
    node_t *n = &r->nodes[0];
    r->ops->set_token(n->t, CHILD_TOKEN);
    if (write(line, n->ref.address.data, n->ref.address.bytes) < 0) _exit(2);
    ssize_t got = read(line, address, sizeof address);
    if (got <= 0) _exit(2);
    r->nodes[REMOTE].ref = (peer_ref_t){101, {address, (size_t)got}};
    if (role == SOURCE) {
        r->ops->share(n->t, n->region, KEY);
        r->ops->extend(n->t, KEY, 0, extended);
    }
    uint64_t at = 0;
    int seen = 0;
    while (!is_line_closed(line)) {
        if (role == RECEIVER && rig_events(r, 0, TR_PEER_GONE) == 0) keep_asking(r, &at);
        rig_turn(r);
        report(r, line, &seen);
        if (n->count > RIG_EVENTS / 2) n->count = seen = 0;
    }
    rig_close(r);
    _exit(0);
}

static child_t start_child(role_t role, size_t bytes, uint64_t extended)
{
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    pid_t parent = getpid(),
          pid = fork(); /* before this process loads UCX: its threads do not survive a fork */
    if (pid == 0) {
        close(pair[0]);
        run_child(role, bytes, extended, pair[1], parent);
    }
    close(pair[1]);
    return (child_t){pid, pair[0]};
}

/* The parent's one node, which knows the child as node REMOTE. */
static rig_t *meet(child_t *c, size_t bytes, const transfer_opts_t *opts)
{
    static uint8_t address[LIMIT_ADDRESS_BYTES];
    rig_t *r = rig_open(1, bytes, opts);
    const bytes_t own = r->nodes[0].ref.address;
    cr_assert_eq(write(c->line, own.data, own.bytes), (ssize_t)own.bytes);
    ssize_t got = read(c->line, address, sizeof address);
    cr_assert_gt(got, 0);
    r->nodes[REMOTE].ref = (peer_ref_t){CHILD_TOKEN, {address, (size_t)got}};
    return r;
}

static void end_child(child_t *c, int expected_signal)
{
    int status;
    close(c->line);
    cr_assert_eq(waitpid(c->pid, &status, 0), c->pid);
    if (expected_signal) cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == expected_signal);
    else cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %x", status);
}

/* Waits for the child's 'g' while this process goes on. */
static bool child_saw_gone(rig_t *r, const child_t *c)
{
    uint64_t end = clock_now(clock_system()) + LONG_US;
    char said = 0;
    while (!is_line_closed(c->line) && clock_now(clock_system()) < end) rig_turn(r);
    return recv(c->line, &said, 1, MSG_DONTWAIT) == 1 && said == 'g';
}

/* stderr of this test, to be found empty. */
static FILE *catch_stderr(void)
{
    FILE *f = tmpfile();
    cr_assert_not_null(f);
    dup2(fileno(f), STDERR_FILENO);
    return f;
}

static void assert_nothing_printed(FILE *f)
{
    char text[400] = "";
    fseek(f, 0, SEEK_SET);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    cr_assert_eq(n, 0, "printed: %s", text);
}

static void assert_ended(const rig_t *r, int asks)
{
    const node_t *n = &r->nodes[0];
    int ended = 0, gone = 0;
    for (int i = 0; i < n->count; i++) {
        if (n->events[i].kind == TR_BEAT) continue;
        cr_assert_eq(gone, 0, "an event after TR_PEER_GONE");
        gone += n->events[i].kind == TR_PEER_GONE;
        ended += n->events[i].kind != TR_PEER_GONE;
        if (n->events[i].kind == TR_REFUSED) cr_assert_eq(n->events[i].err, HEDDLE_ERR_GONE);
    }
    cr_assert_eq(gone, 1);
    cr_assert_eq(ended, asks);
}

static bool is_idle(rig_t *r, int node, int unused)
{
    (void)unused;
    return r->ops->idle(r->nodes[node].t, r->nodes[node].region);
}

Test(process, a_killed_source_is_gone_at_once)
{
    FILE *printed = catch_stderr();
    child_t child = start_child(SOURCE, 64 * PIECE, 32 * PIECE);
    rig_t *r = meet(&child, 64 * PIECE, NULL);
    memset(r->nodes[0].region->base, 0, 64 * PIECE);
    for (int i = 0; i < 64; i++) rig_ask(r, 0, REMOTE, KEY, (uint64_t)i * PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 0, 8, LONG_US));
    kill(child.pid, SIGKILL);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    assert_ended(r, 64);
    cr_assert(rig_until(r, is_idle, 0, 0, LONG_US));
    rig_close(r);
    end_child(&child, SIGKILL);
    assert_nothing_printed(printed);
}

static bool has_sent_bytes(rig_t *r, int node, int mega)
{
    if (r->nodes[node].count > RIG_EVENTS / 2) r->nodes[node].count = 0;
    return rig_counters(r, node).bytes_out >= (uint64_t)mega << 20;
}

/* Peers that connect, say HI and ask, and die before this process looks. */
Test(process, a_peer_killed_while_it_connects_does_no_harm)
{
    if (rig_is_rendezvous())
        cr_skip_test("UCX 1.13 aborts: it answers on the same connection (transfer/ucx.h)");
    FILE *printed = catch_stderr();
    child_t children[8];
    for (int i = 0; i < 8; i++) children[i] = start_child(RECEIVER, BIG, 0);
    rig_t *r = meet(&children[0], BIG, NULL);
    const bytes_t own = r->nodes[0].ref.address;
    rig_share_all(r, 0, KEY);
    for (int i = 1; i < 8; i++) {
        uint8_t theirs[LIMIT_ADDRESS_BYTES];
        cr_assert_eq(write(children[i].line, own.data, own.bytes), (ssize_t)own.bytes);
        cr_assert_gt(read(children[i].line, theirs, sizeof theirs), 0);
        poll(NULL, 0, 5 * i); /* the kernel's part of connecting; more of it each time */
        kill(children[i].pid, SIGKILL);
        end_child(&children[i], SIGKILL);
    }
    cr_assert(rig_until(r, has_sent_bytes, 0, 8, LONG_US), "the one that lives is served");
    kill(children[0].pid, SIGKILL);
    end_child(&children[0], SIGKILL);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    rig_close(r);
    assert_nothing_printed(printed);
}

Test(process, a_killed_receiver_frees_the_source)
{
    FILE *printed = catch_stderr();
    child_t child = start_child(RECEIVER, BIG, 0);
    rig_t *r = meet(&child, BIG, NULL);
    rig_share_all(r, 0, KEY);
    cr_assert(rig_until(r, has_sent_bytes, 0, 40, LONG_US));
    kill(child.pid, SIGKILL);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    r->ops->unshare(r->nodes[0].t, KEY);
    rig_close(r);
    end_child(&child, SIGKILL);
    assert_nothing_printed(printed);
}

Test(process, a_stopped_source_writes_nothing_after_it_was_dropped)
{
    FILE *printed = catch_stderr();
    child_t child = start_child(SOURCE, 64 * PIECE, 64 * PIECE);
    rig_t *r = meet(&child, 64 * PIECE, NULL);
    node_t *n = &r->nodes[0];
    rig_ask(r, 0, REMOTE, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 0, 1, LONG_US));
    kill(child.pid, SIGSTOP);
    n->count = 0;
    for (int i = 0; i < 64; i++) rig_ask(r, 0, REMOTE, KEY, (uint64_t)i * PIECE, PIECE);
    rig_pass(r, 300000);
    cr_assert_eq(rig_events(r, 0, TR_PEER_GONE), 0, "UCX never says that a process is stopped");
    r->ops->drop_peer(n->t, CHILD_TOKEN);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    assert_ended(r, 64);
    cr_assert(rig_until(r, is_idle, 0, 0, LONG_US));
    memset(n->region->base, 0xee, 64 * PIECE);
    kill(child.pid, SIGCONT);
    cr_assert(child_saw_gone(r, &child));
    cr_assert(rig_is_all(r, 0, 0xee, 0, 64 * PIECE), "a late byte");
    rig_ask(r, 0, REMOTE, KEY, 0, PIECE);
    n->count = 0;
    cr_assert(rig_until(r, rig_has_arrived, 0, 1, LONG_US), "it is as good as new");
    rig_close(r);
    end_child(&child, 0);
    assert_nothing_printed(printed);
}

Test(process, a_stopped_receiver_is_dropped_at_the_deadline)
{
    FILE *printed = catch_stderr();
    child_t child = start_child(RECEIVER, BIG, 0);
    rig_t *r =
        meet(&child, BIG, &(transfer_opts_t){.serve_deadline_ms = 2000}); /* a busy one is not stopped */
    rig_share_all(r, 0, KEY);
    cr_assert(rig_until(r, has_sent_bytes, 0, 40, LONG_US));
    kill(child.pid, SIGSTOP);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    r->ops->unshare(r->nodes[0].t, KEY);
    memset(r->nodes[0].region->base, 0, BIG);
    kill(child.pid, SIGCONT);
    rig_pass(r, 100000);
    rig_close(r);
    end_child(&child, 0);
    assert_nothing_printed(printed);
}

#ifdef HEDDLE_TEST_BUILD
Test(process, a_frame_out_of_shape_is_dropped)
{
    FILE *printed = catch_stderr();
    setenv("HEDDLE_FAILPOINTS", "transfer.truncate=error:2",
           1); /* read when the plugin is loaded: the child gets HI and */
    child_t child =
        start_child(SOURCE, 64 * PIECE, 64 * PIECE); /* then an ASK with one byte less than it should have */
    unsetenv("HEDDLE_FAILPOINTS");
    rig_t *r = meet(&child, 64 * PIECE, NULL);
    memset(r->nodes[0].region->base, 0, 64 * PIECE);
    for (int i = 0; i < 16; i++) rig_ask(r, 0, REMOTE, KEY, (uint64_t)i * PIECE, PIECE);
    rig_pass(r, 300000);
    cr_assert_eq(r->nodes[0].count, 0, "lost with its frame");
    for (int i = 16; i < 32; i++) rig_ask(r, 0, REMOTE, KEY, (uint64_t)i * PIECE, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 0, 16, LONG_US));
    cr_assert(rig_is_all(r, 0, 0, 0, 16 * PIECE));
    r->ops->drop_peer(r->nodes[0].t, CHILD_TOKEN);
    cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
    rig_close(r);
    end_child(&child, 0);
    assert_nothing_printed(printed);
}
#endif

static int count_descriptors(pid_t pid)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    cr_assert_not_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static bool has_descriptors(rig_t *r, int pid, int at_most)
{
    (void)r;
    return count_descriptors(pid) <= at_most;
}

Test(process, connections_leave_no_descriptor_behind)
{
    child_t child = start_child(SOURCE, PIECE, PIECE);
    rig_t *r = meet(&child, PIECE, NULL);
    int own = 0, childs = 0;
    for (int cycle = 0; cycle < 40; cycle++) {
        r->nodes[0].count = 0;
        rig_ask(r, 0, REMOTE, KEY, 0, PIECE);
        cr_assert(rig_until(r, rig_has_arrived, 0, 1, LONG_US), "cycle %d", cycle);
        r->ops->drop_peer(r->nodes[0].t, CHILD_TOKEN);
        cr_assert(rig_until(r, rig_has_gone, 0, 1, LONG_US));
        cr_assert(child_saw_gone(r, &child));
        if (cycle == 1) own = count_descriptors(getpid()), childs = count_descriptors(child.pid);
    }
    cr_assert(rig_until(r, has_descriptors, getpid(), own, LONG_US));
    cr_assert(rig_until(r, has_descriptors, child.pid, childs, LONG_US));
    rig_close(r);
    end_child(&child, 0);
}

/* An interface of our own, at 10.1.1.1.  UCX looks for it in /sys. */
static void make_device(void)
{
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/sys", "sysfs", 0, NULL) ||
        system("{ ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d1 up &&"
               " ip addr add 10.1.1.1/24 dev d0 && ip link set d0 up; } 2>/dev/null"))
        cr_skip_test("no network of one's own may be made here");
    while (system("ip -o link show d0 | grep -q 'state UP'")) sched_yield();
}

static bool takes_six(const char *device)
{
    char command[128];
    snprintf(command, sizeof command, "ip addr add fd01::1/64 dev %s nodad 2>/dev/null", device);
    return system(command) == 0;
}

static const char *place_of(const rig_t *r, int node)
{
    static tr_where_t where;
    r->ops->where(r->nodes[node].t, &where);
    return where.addresses;
}

static void reopens(rig_t *r, int node, const char *at)
{
    heddle_error_t error = {0};
    node_t *n = &r->nodes[node];
    cr_assert_eq(r->ops->reopen(n->t, &error), HEDDLE_OK, "%s", error.message);
    cr_assert_str_eq(place_of(r, node), at);
    r->ops->address(n->t, &n->ref.address);
}

#ifdef HEDDLE_TEST_BUILD
/* Neither where the second of two families cannot be listened on, nor where there is no memory for the address
 * of both.  The next try takes them. */
Test(process, addresses_that_cannot_be_taken_leave_all_as_it_was)
{
    uint8_t was[LIMIT_ADDRESS_BYTES];
    heddle_error_t error;
    bytes_t now;
    make_device();
    bool has_six = takes_six("d1");
    setenv("HEDDLE_FAILPOINTS",
           has_six ? "transfer.plane=error:4,transfer.address=error"
                   : "transfer.plane=error:3,transfer.address=error",
           1);
    rig_t *r = rig_open(2, PIECE, &(transfer_opts_t){.device = "d0"});
    node_t *source = &r->nodes[0];
    rig_share_all(r, 0, KEY);
    memcpy(was, source->ref.address.data, source->ref.address.bytes);
    if (has_six) cr_assert(takes_six("d0"));
    cr_assert_eq(system("ip addr add 10.2.2.2/16 dev d0 && ip addr del 10.1.1.1/24 dev d0"), 0);
    cr_assert(r->ops->moved(source->t));
    int descriptors = count_descriptors(getpid());
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(r->ops->reopen(source->t, &error), HEDDLE_ERR_INTERNAL, "try %d", i);
        cr_assert_str_eq(place_of(r, 0), "10.1.1.1");
        r->ops->address(source->t, &now);
        cr_assert(now.bytes == source->ref.address.bytes && !memcmp(now.data, was, now.bytes));
        cr_assert_eq(count_descriptors(getpid()), descriptors, "try %d", i);
        cr_assert(r->ops->moved(source->t), "it is to be tried again");
    }
    for (int i = 0; i < 2; i++) reopens(r, i, has_six ? "10.2.2.2,fd01::1" : "10.2.2.2");
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    rig_close(r);
}
#endif

/* A plane is made anew on the loop's thread, while the application may set any: those that it had set before,
 * and others. */
Test(process, variables_are_read_at_the_start_alone)
{
    static const struct {
        const char *name, *given, *later;
    } VARIABLES[] = {{"UCX_TLS", NULL, "nosuch"},
                     {"UCX_TLS", "tcp,self", "nosuch"},
                     {"UCX_TCP_TX_SEG_SIZE", "512K", "64"}};
    make_device();
    for (size_t i = 0; i < sizeof VARIABLES / sizeof *VARIABLES; i++) {
        if (VARIABLES[i].given) setenv(VARIABLES[i].name, VARIABLES[i].given, 1);
        rig_t *r = rig_open(1, PIECE, &(transfer_opts_t){.device = "d0"});
        if (!takes_six("d0")) cr_skip_test("no IPv6 here");
        setenv(VARIABLES[i].name, VARIABLES[i].later, 1);
        reopens(r, 0, "10.1.1.1,fd01::1");
        rig_close(r);
        unsetenv(VARIABLES[i].name);
        cr_assert_eq(system("ip addr del fd01::1/64 dev d0"), 0);
    }
}

/* The same of the families that UCX may use: of the one that comes first there is no address at the start. */
Test(process, families_are_read_at_the_start_alone)
{
    make_device();
    if (!takes_six("d0")) cr_skip_test("no IPv6 here");
    cr_assert_eq(system("ip addr del 10.1.1.1/24 dev d0"), 0);
    setenv("UCX_TCP_AF_PRIO", "inet,inet6", 1);
    rig_t *r = rig_open(1, PIECE, &(transfer_opts_t){.device = "d0"});
    setenv("UCX_TCP_AF_PRIO", "nosuch", 1);
    cr_assert_eq(system("ip addr add 10.1.1.1/24 dev d0"), 0);
    reopens(r, 0, "10.1.1.1");
    rig_close(r);
}

static bool is_default(int signal)
{
    struct sigaction now;
    sigaction(signal, NULL, &now);
    return now.sa_handler == SIG_DFL;
}

Test(process, loading_leaves_the_host_process_as_it_was)
{
    char before[16], after[16];
    const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP, SIGTERM, SIGINT};
    bool was[sizeof signals / sizeof *signals]; /* Criterion has its own */
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) was[i] = is_default(signals[i]);
    memcpy(before, (const void *)(uintptr_t)dlsym(RTLD_DEFAULT, "munmap"), sizeof before);
    rig_t *r = rig_open(2, PIECE, NULL);
    rig_share_all(r, 0, KEY);
    rig_ask(r, 1, 0, KEY, 0, PIECE);
    cr_assert(rig_until(r, rig_has_arrived, 1, 1, LONG_US));
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        cr_assert_eq(is_default(signals[i]), was[i], "signal %d", signals[i]);
    for (char **e = environ; *e; e++) cr_assert_neq(strncmp(*e, "UCX_", 4), 0, "%s", *e);
    memcpy(after, (const void *)(uintptr_t)dlsym(RTLD_DEFAULT, "munmap"), sizeof after);
    cr_assert_eq(memcmp(before, after, sizeof before), 0, "munmap was patched");
    cr_assert_null(dlsym(RTLD_DEFAULT, "ucp_init"), "UCX's names stay with the plugin");
    cr_assert_neq(strlen(r->ops->version()), 0);
    rig_close(r);
}
