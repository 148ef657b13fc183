/* SPDX-License-Identifier: Apache-2.0 */
/* client/shell.h: runs one node on a thread of its own: loop, connection to the broker, transfer, and the two ways
 * between the application and that thread: calls in, events out.
 *
 * Threads: shell_open and shell_close by the owner; shell_call and shell_next_event by one application thread at a time;
 * shell_post, shell_interrupt by any.  The loop's thread blocks all signals. */
#ifndef CLIENT_SHELL_H
#define CLIENT_SHELL_H

#include "client/node.h"

typedef struct shell shell_t;
typedef struct {
    const char *broker;                /* NULL: $HEDDLE_BROKER, else the default */
    bool transfer;                     /* load and open UCX */
    const char *data_device;
    bool insecure;
    uint64_t max_rate_bytes;
} shell_opts_t;

/* Checks addresses, loads the data plane; no thread yet: the caller builds its node on shell_io(), then shell_start. */
int  shell_open(const shell_opts_t *opts, shell_t **ret_shell, heddle_error_t *error);
const node_io_t *shell_io(shell_t *s);
int  shell_start(shell_t *s, const node_ops_t *ops, void *node, heddle_error_t *error);
/* Runs fn(node, arg, now) on the loop's thread and waits for it.  CLOSED when the loop has ended. */
int  shell_call(shell_t *s, void (*fn)(void *node, void *arg, uint64_t now_us), void *arg);
/* [any thread] The same without waiting; no allocation: at most one post of each `slot` (0..7) is pending. */
void shell_wake(shell_t *s);           /* [any thread, signal-safe] makes the loop tick */
/* Events in order, from a bounded queue; when it overflows the oldest PROGRESS, FETCHING or ROLLOUT is dropped first.
 * OK · AGAIN · INTERRUPTED. */
int  shell_next_event(shell_t *s, int timeout_ms, heddle_event_t *ret_event);
int  shell_fd(const shell_t *s);       /* readable while an event waits */
void shell_interrupt(shell_t *s);      /* [any thread, signal-safe] next_event returns INTERRUPTED once */
/* Ends the loop and joins its thread; the node is then touched by nobody, and the caller destroys it before shell_close. */
void shell_stop(shell_t *s);
void shell_close(shell_t **s);

#endif
