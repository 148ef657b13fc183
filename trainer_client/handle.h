/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/handle.h: what the public calls of a publisher share: its handle, and the one way to its
 * node.
 *
 *   application's thread                               loop's thread
 *   handle_run  ---------- shell_call ------------->   the command, a call of trainer_client/node.h
 *        <------------------------------------------   OK, an error, or AGAIN
 *   AGAIN: poll(changed, interrupt, time) <---------   the node's changed()
 *
 * The application's thread, one at a time; handle_interrupt on any.  The application owns the handle, which
 * owns its shell and its node.  Only handle_run_until, handle_wait and handle_sleep block. */
#ifndef TRAINER_CLIENT_HANDLE_H
#define TRAINER_CLIENT_HANDLE_H

#include "client/shell.h"
#include "core/errors.h"
#include "trainer_client/node.h"
#include "trainer_client/reading.h"

#include <stdatomic.h>

/* Packing runs on the caller's thread: the call's deadline and its interrupt end it. */
typedef struct {
    stop_t stop;
    heddle_publisher_t *publisher;
    uint64_t start_us;
    atomic_uint deadline_ms;           /* of what is read ahead: UINT_MAX, until a call wants it */
} patience_t;

struct heddle_publisher {
    shell_t *shell;
    publisher_node_t *node;
    int changed_fd, interrupt_fd;      /* eventfds: the node has changed; heddle_publisher_interrupt */
    uint32_t timeout_ms;
    uint32_t fill_threads;             /* at most; at least 1 */
    uint32_t close_ms, leave_ms;       /* for a holder of the last version; for the broker's BYE */
    uint64_t told_version;             /* the application knows what became of it */
    char adapter[HEDDLE_NAME_MAX + 1];
    char broker[512];                  /* where it was sought, for people */
    heddle_publication_t *open;        /* the one that is being written */
    ahead_t *ahead;                    /* the directory that is read while the publisher opens; NULL: none */
    patience_t ahead_patience;
    bool is_running;
};

/* One call of the node, its arguments and its results. */
typedef enum {
    COMMAND_OPENED, COMMAND_TAKE, COMMAND_GIVE_UP, COMMAND_FIT, COMMAND_GIVE_BACK, COMMAND_PUBLISH,
    COMMAND_ABANDON, COMMAND_JUDGE, COMMAND_LATE, COMMAND_REPORT, COMMAND_IS_HELD, COMMAND_LEAVE,
    COMMAND_HAS_LEFT
} command_kind_t;
typedef struct {
    command_kind_t kind;
    int rc;
    heddle_error_t *error;
    int slot; uint64_t bytes; region_t *region;    /* TAKE, FIT, GIVE_BACK */
    const publish_request_t *request;              /* PUBLISH */
    uint64_t version; wait_for_t want;             /* JUDGE, LATE, REPORT */
    uint32_t waited_ms;                            /* LATE */
    heddle_report_t *report;                       /* filled, but by a JUDGE that answers AGAIN */
    bool is_wanted; uint64_t wanted_us;            /* IS_HELD */
} command_t;

uint64_t handle_now(void);                    /* the loop's clock */
uint64_t handle_until(int timeout_ms);        /* -1: CLOCK_NEVER */
int  handle_open_fds(heddle_publisher_t *p);  /* NO_MEMORY */
void handle_close_fds(heddle_publisher_t *p);
void handle_changed(void *publisher);         /* the node's changed() */
void handle_interrupt(heddle_publisher_t *p);
bool handle_is_interrupted(const heddle_publisher_t *p);   /* and no call has reported it yet */
void handle_forget_interrupt(heddle_publisher_t *p);

/* CLOSED when the loop has ended, else what the node answers. */
int  handle_run(heddle_publisher_t *p, command_t *c);
/* Runs it again whenever the node has changed.  AGAIN: until_us came first; INTERRUPTED. */
int  handle_run_until(heddle_publisher_t *p, command_t *c, uint64_t until_us);
/* Until the loop's thread has set `done`.  AGAIN: until_us came first; INTERRUPTED. */
int  handle_wait(heddle_publisher_t *p, const atomic_bool *done, uint64_t until_us);
/* OK: fd is readable · AGAIN: until_us came first · INTERRUPTED. */
int  handle_sleep(heddle_publisher_t *p, int fd, uint64_t until_us);

/* A directory that will be published, and its end where it was not (trainer_client/publication.c). */
void handle_read_ahead(heddle_publisher_t *p, const char *dir);
void handle_drop_ahead(heddle_publisher_t *p);

/* Publishes USAGE for a call that makes no sense. */
int  handle_misuse(const char *call, const char *why);

#endif
