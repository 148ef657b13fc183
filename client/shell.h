/* SPDX-License-Identifier: Apache-2.0 */
/* client/shell.h: runs one node on a thread of its own: loop, connection to the broker, transfer,
 * and the two ways between the application and that thread: calls in, events out.
 *
 *   open --(the owner builds its node on shell_io)--> start --> running --> stop
 *   stop --(the owner destroys its node)--> close
 *
 * Threads: open, start, stop and close by the owner; shell_call by any thread of the application;
 * shell_next_event by one at a time; shell_wake and shell_interrupt by any, signal handlers too.  From start
 * to stop the loop's thread alone touches node, wire and transfer; before and after, the owner's.  The loop's
 * thread, and those that UCX makes, block all signals.
 *
 * While it runs, the shell checks whether the interface still has the addresses that the broker has.  If not,
 * the data plane takes the new ones, and the shell dials anew: the node joins under a new token.
 *
 * A forked child has neither the loop's thread nor the memory of versions, and shares the sockets with its
 * parent.  There shell_call and shell_next_event are CLOSED, and nothing of the shell may be stopped or
 * closed: the owner of a handle asks shell_is_forked first. */
#ifndef CLIENT_SHELL_H
#define CLIENT_SHELL_H

#include "client/credentials.h"
#include "client/node.h"

typedef struct shell shell_t;
typedef struct {
    const char *broker;      /* NULL: $HEDDLE_BROKER, else the default */
    bool transfer;           /* load and open UCX */
    const char *data_device; /* NULL: as client/data_device.h says */
    bool insecure;           /* other addresses than loopback are allowed, for control and data; without it
                              * for control with the broker's key; for data, if that key or the ring was
                              * named, or the broker is reached over a network */
    credentials_t keys;
    uint64_t max_rate_bytes;
    bool quiet_events;   /* event_queue_t.is_quiet */
    uint32_t timeout_ms; /* of the application's wait for a broker, of which each one of a list gets its part;
                          * 0: it waits for ever */
    uint32_t close_ms;   /* what the end of the transfer may take; 0: its default */
} shell_opts_t;

/* Checks addresses and keys, loads the data plane, begins to connect; the broker may be away.  USAGE,
 * INSECURE_ADDRESS, NOT_FOUND and DATA_DIR (a key), NO_MEMORY, INTERNAL (no UCX). */
int shell_open(const shell_opts_t *opts, shell_t **ret_shell, heddle_error_t *error);
/* For a caller that is its own loop: the same checks, and the transfer alone.  `io` has clock and owner;
 * `io->tr` and `io->t` are set on success, and the caller ends it (io->tr->close).  Errors as above. */
int shell_open_transfer(const shell_opts_t *opts, node_io_t *io, heddle_error_t *error);
/* Valid until shell_close; its send answers GONE until it is connected. */
const node_io_t *shell_io(shell_t *s);
/* A descriptor of the node's: while it is readable, the loop turns, and each turn begins with the node's
 * tick, which reads it.  Before shell_start, at most SHELL_FDS; it is not polled from shell_stop on, and the
 * node closes it then.  NO_MEMORY. */
#define SHELL_FDS 4u
int shell_poll(shell_t *s, int fd, heddle_error_t *error);
/* `ops` and `node` are borrowed until shell_stop.  NO_MEMORY. */
int shell_start(shell_t *s, const node_ops_t *ops, void *node, heddle_error_t *error);
/* Runs fn(node, arg, now) on the loop's thread and waits for it: a turn of the loop at most.
 * CLOSED when the loop is not running, and in a forked child; nothing else can fail. */
int shell_call(shell_t *s, void (*fn)(void *node, void *arg, uint64_t now_us), void *arg);
bool shell_is_forked(const shell_t *s);  /* a child of the process that opened it; any thread; accepts NULL */
bool shell_is_reached(const shell_t *s); /* wire_is_reached; any thread */
const char *shell_untried(const shell_t *s); /* wire_untried; any thread */
void shell_wake(shell_t *s);                 /* makes the loop tick; while it is started */
/* Events in order (client/event_queue.h tells what a full queue drops), waited for at most
 * timeout_ms (-1: without limit).
 * OK · AGAIN · INTERRUPTED · CLOSED (in a forked child). */
int shell_next_event(shell_t *s, int timeout_ms, heddle_event_t *ret_event);
int shell_fd(const shell_t *s);   /* readable while an event waits; never to be read */
void shell_interrupt(shell_t *s); /* next_event, this call or the next, returns INTERRUPTED once */
/* Ends the loop and joins its thread; calls that were accepted have run.  Idempotent. */
void shell_stop(shell_t *s);
/* After shell_stop and the end of the node.  Accepts NULL and pointers to NULL. */
void shell_close(shell_t **s);

#endif
