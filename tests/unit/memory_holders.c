/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that hold a region, found by their locks. */
#include "memory/holders.h"
#include "tests/unit/memory_rig.h"

/* In place of the C library's. A file of a mount whose server does not answer blocks its reader, so only what
 * the kernel calls a region may be asked for. */
static unsigned asked;
int fstatat(int at, const char *name, struct stat *ret_stat, int flags)
{
    static const char NAME[] = "/memfd:heddle-region";
    char link[64] = "";
    if (readlinkat(at, name, link, sizeof link - 1) < 0) return -1; /* closed since, or of another user */
    cr_assert(!strncmp(link, NAME, sizeof NAME - 1), "\"%s\" is asked for", link);
    asked++;
    return (int)syscall(SYS_newfstatat, at, name, ret_stat, flags);
}

static memory_region_t *region;
static content_id_t id;

static void set_up(void)
{
    region = rig_region(RIG_BYTES);
    id = rig_publish(region, 1);
}

static void tear_down(void) { memory_region_destroy(&region); }

TestSuite(memory_holders, .init = set_up, .fini = tear_down);

/* A process that has a description of its own of the region, which the test has no more: with the lock, or
 * without it. It ends with the test, or by a signal. */
static pid_t other(const char *name, bool is_holding)
{
    int ready[2], fd, own = -1;
    char byte;
    cr_assert_eq(memory_region_hand_over(region, &fd, NULL), HEDDLE_OK);
    cr_assert_eq(hold_open(fd, &id, &own, NULL), HEDDLE_OK);
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        prctl(PR_SET_NAME, name);
        if (!is_holding) file_unlock(own);
        if (write(ready[1], "x", 1) < 0) _exit(1);
        for (;;) pause();
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(own);
    return pid;
}

static holders_t find(void)
{
    holders_t h;
    holders_find(&h, region->file.fd, UINT32_MAX);
    cr_assert_not(h.is_cut);
    return h;
}

Test(memory_holders, are_named_by_what_they_lock)
{
    char text[HOLDERS_TEXT], expected[HOLDERS_TEXT];
    int before = rig_descriptors();
    pid_t idle = other("idle", false), reader = other("reader", true);
    holders_t h = find();
    cr_assert_geq(asked, 2);
    cr_assert(h.count == 1 && h.named[0].process == reader, "%u, pid %d", h.count, h.named[0].process);
    snprintf(expected, sizeof expected, "reader (pid %d)", reader);
    cr_assert_str_eq(holders_text(&h, text), expected);
    rig_reap(reader, SIGKILL);
    h = find();
    cr_assert_eq(h.count, 0);
    cr_assert(strstr(holders_text(&h, text), "cannot be seen from here"), "%s", text);
    rig_reap(idle, SIGKILL);
    cr_assert_eq(rig_descriptors(), before);
}

Test(memory_holders, of_another_region_are_others)
{
    memory_region_t *second = rig_region(RIG_BYTES);
    holders_t h;
    pid_t reader = other("reader", true);
    holders_find(&h, second->file.fd, UINT32_MAX);
    cr_assert_eq(h.count, 0);
    rig_reap(reader, SIGKILL);
    memory_region_destroy(&second);
}

Test(memory_holders, are_counted_where_there_is_no_room_for_their_names)
{
    enum { COUNT = HOLDERS_NAMED_MAX + 3 };
    pid_t readers[COUNT];
    char text[HOLDERS_TEXT];
    for (int i = 0; i < COUNT; i++) readers[i] = other("a-long-name-of-it", true);
    holders_t h = find();
    cr_assert_eq(h.count, COUNT);
    holders_text(&h, text);
    cr_assert(strstr(text, "a-long-name-of- (pid ") && strstr(text, " and 3 more"), "%s", text);
    for (int i = 0; i < COUNT; i++) rig_reap(readers[i], SIGKILL);
}

/* A step is bounded, whatever the number of files of a process; and so is a search. */
Test(memory_holders, are_searched_in_steps)
{
    enum { FILES = 4 * HOLDERS_STEP_FILES };
    int ready[2];
    char byte, text[HOLDERS_TEXT];
    holders_t h;
    struct rlimit limit = {2 * FILES, 2 * FILES};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(pipe(ready), 0);
    pid_t crowd = fork();
    if (crowd == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < FILES; i++)
            if (dup(STDIN_FILENO) < 0) _exit(1);
        (void)!write(ready[1], "x", 1);
        for (;;) pause();
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    holders_begin(&h, region->file.fd);
    for (uint32_t looked = 0; holders_step(&h); looked = h.looked)
        cr_assert_leq(h.looked - looked, HOLDERS_STEP_FILES + 1u);
    cr_assert(h.looked > FILES && !h.is_cut && !h.count);
    holders_find(&h, region->file.fd, 1);
    cr_assert(h.is_cut && !h.processes && !h.files);
    cr_assert_str_eq(holders_text(&h, text),
                     "a process that is not among the first ones, in whose open files it was searched");
    rig_reap(crowd, SIGKILL);
}

Test(memory_holders, cannot_be_searched_without_a_descriptor)
{
    holders_t h;
    struct rlimit old, none;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = (struct rlimit){0, old.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    holders_find(&h, region->file.fd, UINT32_MAX);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert(h.is_cut && !h.count && !h.processes);
}
