/* SPDX-License-Identifier: Apache-2.0 */
/* broker/main_daemon.h: the broker's shell: store, loop, one listening wire, signals, around the pure
 * broker_t.
 *
 *   opened (clients can connect) --run--> serving --SIGTERM, SIGINT--> ended, OK
 *                                                 --the disk failed--> ended, DATA_DIR
 *
 * One thread, and with --http another one that has no part of its state (main_http.h).  SIGTERM and SIGINT
 * must be blocked before daemon_open: they are read from a descriptor. */
#ifndef BROKER_MAIN_DAEMON_H
#define BROKER_MAIN_DAEMON_H

#include "http/service.h"

#include <heddle/error.h>
#include <stdbool.h>

typedef struct daemon daemon_t;

typedef struct {
    const char *listen, *data;
    uint32_t lease_ms;
    uint32_t timeout_ms; /* for a connection to introduce itself; 0: the wire's default */
    uint64_t keep;
    int plan; /* plan_shape_t */
    bool insecure;
    const char *keys; /* where they are; NULL: the user's ring */
    service_opts_t http;
    const char **admin_keys; /* public ones, NULL-terminated, that become admins; NULL: none */
} daemon_opts_t;

/* What the ready line tells; texts are borrowed from the daemon. */
typedef struct {
    const char *endpoint, *cluster, *data_dir, *public_key; /* public_key NULL: it runs without keys */
    const char *http;                                       /* NULL: it does not serve HTTP */
    uint64_t epoch;
} daemon_facts_t;

/* INSECURE_ADDRESS, USAGE: the endpoint · what store_open says of the data · ADDRESS_IN_USE · NO_MEMORY,
 * INTERNAL.
 * DATA_DIR: no keys where --keys says, or what service_open says of a file · USAGE, REQUEST_CONFLICT: an
 * admin key.  On failure nothing is left open. */
int daemon_open(const daemon_opts_t *opts, daemon_t **ret_daemon, heddle_error_t *error);
void daemon_facts(const daemon_t *d, daemon_facts_t *ret_facts);
/* Blocks until a signal ends it (OK) or the store fails for good (DATA_DIR, INTERNAL). */
int daemon_run(daemon_t *d, heddle_error_t *error);
void daemon_close(daemon_t **d);

#endif
