/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/handle.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SLEEP_MAX_MS 3600000u

uint64_t handle_now(void) { return clock_now(clock_system()); }

uint64_t handle_until(int timeout_ms)
{
    return timeout_ms < 0 ? CLOCK_NEVER : handle_now() + (uint64_t)timeout_ms * 1000;
}

/* -- descriptors ------------------------------------------------------------------------------ */

/* Two descriptors, since a poll must tell an interrupt from a change of the node. */
int handle_open_fds(heddle_publisher_t *p)
{
    p->changed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return p->changed_fd >= 0 && p->interrupt_fd >= 0 ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
}

void handle_close_fds(heddle_publisher_t *p)
{
    if (p->changed_fd >= 0) close(p->changed_fd);
    if (p->interrupt_fd >= 0) close(p->interrupt_fd);
}

/* Also called in signal handlers: one write, and errno is as before. */
static void raise_fd(int fd)
{
    uint64_t one = 1;
    int kept = errno;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
    errno = kept;
}

/* True when it was raised since it was lowered last. */
static bool lower_fd(int fd)
{
    uint64_t count;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count;
}

void handle_changed(void *publisher) { raise_fd(((heddle_publisher_t *)publisher)->changed_fd); }
void handle_interrupt(heddle_publisher_t *p) { raise_fd(p->interrupt_fd); }
/* Only looks: the interrupt stays until a call has reported it. */
bool handle_is_interrupted(const heddle_publisher_t *p)
{
    struct pollfd fd = {.fd = p->interrupt_fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}
void handle_forget_interrupt(heddle_publisher_t *p) { lower_fd(p->interrupt_fd); }

/* Rounded up: a poll that ends too early would only be repeated. Waits without an end wake once an hour. */
static int poll_timeout(uint64_t until_us)
{
    uint64_t now = handle_now(), left_ms = until_us > now ? (until_us - now + 999) / 1000 : 0;
    return (int)(left_ms < SLEEP_MAX_MS ? left_ms : SLEEP_MAX_MS);
}

/* An interrupt comes before the event that is waited for. */
int handle_sleep(heddle_publisher_t *p, int fd, uint64_t until_us)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = p->interrupt_fd, .events = POLLIN}};
    for (;;) {
        int n = poll(fds, 2, poll_timeout(until_us));
        if (n > 0) return lower_fd(p->interrupt_fd) ? HEDDLE_ERR_INTERRUPTED : HEDDLE_OK;
        if (n == 0 && handle_now() >= until_us) return HEDDLE_ERR_AGAIN;
    }
}

/* -- commands --------------------------------------------------------------------------------- */

/* The report of a version of another publisher is empty, except for the state of the broker. */
static report_row_t *copy_report(publisher_node_t *n, const command_t *c, uint64_t now_us)
{
    report_row_t *row = reports_find(publisher_node_reports(n), c->version);
    if (row) reports_copy(row, c->report);
    else *c->report = (heddle_report_t){.size = sizeof *c->report, .version = c->version,
                                        .staged_ms = -1, .active_ms = -1};
    c->report->settling_ms = publisher_node_settling_ms(n, now_us);
    return row;
}

/* JUDGE, LATE and REPORT: the answer and the report are of the same moment, since both are made in one
 * turn of the loop. */
static int look(publisher_node_t *n, const command_t *c, uint64_t now_us)
{
    report_row_t *row = reports_find(publisher_node_reports(n), c->version);
    int rc = HEDDLE_OK;
    if (c->kind == COMMAND_LATE && row)
        rc = reports_late(publisher_node_reports(n), row, &c->want, c->waited_ms, c->error);
    else if (c->kind != COMMAND_REPORT || !row)
        rc = publisher_node_judge(n, c->version, &c->want, c->error);
    if (c->kind != COMMAND_JUDGE || rc != HEDDLE_ERR_AGAIN) copy_report(n, c, now_us);
    return rc;
}

/* One command on the loop's thread; each is one call of the node. */
static void execute(void *node, void *arg, uint64_t now_us)
{
    publisher_node_t *n = node;
    command_t *c = arg;
    c->rc = HEDDLE_OK;
    switch (c->kind) {
    case COMMAND_OPENED: c->rc = publisher_node_opened(n, c->error); break;
    case COMMAND_TAKE: c->rc = publisher_node_take(n, c->bytes, now_us, &c->slot, &c->region); break;
    case COMMAND_GIVE_UP: publisher_node_give_up(n); break;
    case COMMAND_FIT: c->rc = publisher_node_fit(n, c->slot, c->region); break;
    case COMMAND_GIVE_BACK: publisher_node_give_back(n, c->slot); break;
    case COMMAND_PUBLISH: publisher_node_publish(n, c->request, now_us); break;
    case COMMAND_ABANDON: publisher_node_abandon(n); break;
    case COMMAND_JUDGE: case COMMAND_LATE: case COMMAND_REPORT: c->rc = look(n, c, now_us); break;
    case COMMAND_IS_HELD:
        c->rc = publisher_node_is_held(n, &c->is_wanted, c->error);
        if (c->is_wanted) c->wanted_us = now_us;
        break;
    case COMMAND_LEAVE: publisher_node_leave(n, now_us); break;
    case COMMAND_HAS_LEFT: c->rc = publisher_node_has_left(n) ? HEDDLE_OK : HEDDLE_ERR_AGAIN; break;
    }
}

/* A loop that has ended answers no command: every call then fails with the same error. */
int handle_run(heddle_publisher_t *p, command_t *c)
{
    heddle_error_t ignored;
    int rc = shell_call(p->shell, execute, c);
    if (!rc) return c->rc;
    return error_fail(c->error ? c->error : &ignored, rc, "the publisher of %s has ended", p->adapter);
}

/* The descriptor is lowered before the call, so that a change during the call is not missed. */
int handle_run_until(heddle_publisher_t *p, command_t *c, uint64_t until_us)
{
    for (;;) {
        lower_fd(p->changed_fd);    /* before the call: what changes from here on wakes us */
        int rc = handle_run(p, c);
        if (rc != HEDDLE_ERR_AGAIN) return rc;
        rc = handle_sleep(p, p->changed_fd, until_us);
        if (rc == HEDDLE_ERR_INTERRUPTED && c->error) return error_fail(c->error, rc, "interrupted");
        if (rc) return rc;
    }
}

/* The flag is set by the loop's thread, which raises the descriptor afterwards. */
int handle_wait(heddle_publisher_t *p, const atomic_bool *done, uint64_t until_us)
{
    while (!atomic_load(done)) {
        int rc = handle_sleep(p, p->changed_fd, until_us);
        if (rc) return rc;
        lower_fd(p->changed_fd);
    }
    return HEDDLE_OK;
}

int handle_misuse(const char *call, const char *why)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "%s: %s", call, why);
    return error_publish(&error);
}
