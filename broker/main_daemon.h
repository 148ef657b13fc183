/* SPDX-License-Identifier: Apache-2.0 */
/* broker/main_daemon.h: the broker's shell: store, loop, one listening wire, signals, around the pure
 * broker_t.
 *
 *   opened (clients can connect) --run--> serving --SIGTERM, SIGINT--> ended, OK
 *                                                 --the disk failed--> ended, DATA_DIR
 *                                                 --another broker leads--> ended, FENCED (--store)
 *
 * One thread, and with --http another one that has no part of its state (main_http.h).  SIGTERM and SIGINT
 * must be blocked before daemon_open: they are read from a descriptor. */
#ifndef BROKER_MAIN_DAEMON_H
#define BROKER_MAIN_DAEMON_H

#include "broker/main_store.h"
#include "http/service.h"

#include <heddle/error.h>
#include <stdbool.h>

typedef struct daemon daemon_t;

/* What the ready line tells; texts are borrowed from the daemon. */
typedef struct {
    const char *endpoint, *public_key; /* public_key NULL: it runs without keys */
    const char *data_dir;              /* or the address of the store */
    const char *http;                  /* NULL: it does not serve HTTP */
    bool leads;                        /* false: it stands by */
    const char *leader;                /* of a standby; "": none leads, or it is not known */
    const char *cluster;               /* of the one that leads, as is the next one; NULL */
    uint64_t epoch;
} daemon_facts_t;

typedef struct {
    const char *listen, *data;
    const char *store;         /* an etcd instead of `data`; NULL: none */
    const char *store_cluster; /* that must be there; NULL: any, or none yet */
    const char *store_led;     /* of the registry that this process led before; NULL: none */
    main_store_access_t store_access;
    uint32_t store_lease_ms; /* of the leader's key in it */
    const char *advertise;   /* where clients reach it, as standbys name it; NULL: `listen`, as bound */
    uint32_t lease_ms;
    uint32_t timeout_ms; /* for a connection to introduce itself; 0: the wire's default */
    uint64_t keep;
    int plan; /* plan_shape_t */
    bool insecure;
    const char *keys; /* where they are; NULL: the user's ring */
    service_opts_t http;
    const char **admin_keys; /* public ones, NULL-terminated, that become admins; NULL: none */
    void (*on_standby)(const daemon_facts_t *facts); /* once, within daemon_open: clients can connect */
} daemon_opts_t;

/* INSECURE_ADDRESS, USAGE: the endpoint · what store_open says of the data · ADDRESS_IN_USE · NO_MEMORY,
 * INTERNAL.
 * DATA_DIR: no keys where --keys says, or what service_open says of a file · USAGE, REQUEST_CONFLICT: an
 * admin key.  With `store` it blocks while another broker leads, and names that to clients: what etcd_open
 * says, INTERRUPTED for a signal among it.  On failure nothing is left open. */
int daemon_open(const daemon_opts_t *opts, daemon_t **ret_daemon, heddle_error_t *error);
void daemon_facts(const daemon_t *d, daemon_facts_t *ret_facts);
/* Blocks until a signal ends it (OK), the store fails for good (DATA_DIR, INTERNAL), or another broker may
 * lead (FENCED). */
int daemon_run(daemon_t *d, heddle_error_t *error);
void daemon_close(daemon_t **d);

#endif
