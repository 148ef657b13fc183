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

/* Signal handlers come here too. */
static void raise_fd(int fd)
{
    uint64_t one = 1;
    int kept = errno;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
    errno = kept;
}

static bool lower_fd(int fd)
{
    uint64_t count;
    return read(fd, &count, sizeof count) == (ssize_t)sizeof count;
}

void handle_changed(void *publisher) { raise_fd(((heddle_publisher_t *)publisher)->changed_fd); }
void handle_interrupt(heddle_publisher_t *p) { raise_fd(p->interrupt_fd); }
bool handle_is_interrupted(const heddle_publisher_t *p)
{
    struct pollfd fd = {.fd = p->interrupt_fd, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}
void handle_forget_interrupt(heddle_publisher_t *p) { lower_fd(p->interrupt_fd); }

static int poll_timeout(uint64_t until_us)
{
    uint64_t now = handle_now(), left_ms = until_us > now ? (until_us - now + 999) / 1000 : 0;
    return (int)(left_ms < SLEEP_MAX_MS ? left_ms : SLEEP_MAX_MS);
}

int handle_sleep(heddle_publisher_t *p, int fd, uint64_t until_us)
{
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = p->interrupt_fd, .events = POLLIN}};
    for (;;) {
        int n = poll(fds, 2, poll_timeout(until_us));
        if (n > 0) return lower_fd(p->interrupt_fd) ? HEDDLE_ERR_INTERRUPTED : HEDDLE_OK;
        if (n == 0 && handle_now() >= until_us) return HEDDLE_ERR_AGAIN;
    }
}

/* -- questions -------------------------------------------------------------------------------- */

static void on_loop(void *node, void *arg, uint64_t now_us)
{
    question_t *q = arg;
    q->rc = q->ask(q, node, now_us);
}

int handle_ask(heddle_publisher_t *p, question_t *q)
{
    int rc = shell_call(p->shell, on_loop, q);
    return rc ? error_fail(q->error, rc, "the publisher of %s has ended", p->adapter) : q->rc;
}

int handle_ask_until(heddle_publisher_t *p, question_t *q, uint64_t until_us)
{
    for (;;) {
        lower_fd(p->changed_fd); /* before asking: what changes from here on wakes us */
        int rc = handle_ask(p, q);
        if (rc != HEDDLE_ERR_AGAIN) return rc;
        rc = handle_sleep(p, p->changed_fd, until_us);
        if (rc == HEDDLE_ERR_INTERRUPTED) return error_fail(q->error, rc, "interrupted");
        if (rc) return rc;
    }
}

int handle_misuse(const char *call, const char *why)
{
    heddle_error_t error;
    error_fail(&error, HEDDLE_ERR_USAGE, "%s: %s", call, why);
    return error_publish(&error);
}
