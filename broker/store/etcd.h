/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/etcd.h: the broker's durable memory in an etcd, for brokers of which one outlives the other's
 * host.  What the states are, and why nothing is decided twice: etcd_leader.h.  Where the rows lie: rows.h.
 *
 *   etcd_open: looks, waits while another broker leads, follows all rows, and takes the lead
 *   open       etcd_turn when etcd_fd is readable or etcd_due has come; a commit ends in one of these turns
 *   lost       another broker may lead: etcd_lost says why, and the process must decide nothing more
 *
 * A commit that was confirmed survives what etcd survives.  The loop's thread; only etcd_open, and etcd_close
 * for a moment, block. */
#ifndef BROKER_ETCD_H
#define BROKER_ETCD_H

#include "broker/store/etcd_leader.h"

typedef struct etcd etcd_t;

/* Of a broker that stands by. */
typedef struct {
    bool is_following;             /* it has all rows, but for the latest */
    bool is_answered;              /* as etcd_is_answered */
    bool is_full;                  /* none leads, and etcd has no room for the key of a leader */
    uint64_t behind;               /* revisions of etcd that it has not followed yet */
    uint64_t anew_count;           /* so often it had to read all rows again */
    const char *why_anew;          /* the last time; static */
    const heddle_error_t *refusal; /* etcd_leader_refusal */
} etcd_standing_t;

/* Of what etcd_open, etcd_write and the calls after it wait for. */
typedef struct {
    uint64_t rows;       /* that were read, or written, so far */
    uint32_t silent_ms;  /* since etcd answered */
    const char *trouble; /* what came in place of an answer; "" */
} etcd_wait_t;

typedef struct {
    /* etcd://HOST:PORT[,HOST:PORT...]/PREFIX, or etcds://; borrowed during etcd_open, as are the next ones */
    const char *url;
    const char *ca, *cert, *key; /* files (PEM), of etcds://; NULL: the system's authorities; none */
    const char *user, *password; /* NULL: none */
    const char *cluster;         /* that the prefix must have; NULL: any, or none yet; IMPORT: that it gets */
    const char *led;             /* the cluster that this process led before; NULL: none */
    etcd_purpose_t purpose;      /* etcd_leader.h; 0: to serve */
    uint64_t import_epoch;       /* IMPORT: that the prefix gets */
    const char *endpoint;        /* where clients reach this broker: other brokers name it to them */
    const char *public_key;      /* that it proves there; NULL: none */
    uint32_t lease_ms;           /* of the leader's key; etcd counts in seconds */
    uint32_t member_lease_ms;    /* etcd_leader.h */
    /* Sleeps until `fd` is readable or `until_us` (clock_system) has come.  False: etcd_open ends,
     * INTERRUPTED.  NULL: it sleeps by itself. */
    bool (*wait)(void *self, int fd, uint64_t until_us);
    /* Another broker leads; once for each.  "": that one does not any more, and none does yet. */
    void (*on_standby)(void *self, const char *leader);
    void (*on_follow)(void *self, const etcd_standing_t *now); /* while it stands by, with each change */
    void (*on_stuck)(void *self, const heddle_error_t *why);   /* etcd_leader_is_stuck, once for each time */
    void (*on_wait)(void *self, const etcd_wait_t *now);       /* once a second, or more often */
    uint32_t patience_ms; /* etcd answers nothing for so long: what waits ends, UNAVAILABLE; 0: it waits on */
    void *self;
} etcd_opts_t;

/* Of --store and what goes with it: OK · USAGE.  Nothing is connected, and no file is read. */
int etcd_check(const etcd_opts_t *opts, heddle_error_t *error);
/* It is plain HTTP, and a node is on another host: what goes there may be read on the way. */
bool etcd_is_exposed(const char *url);
/* Blocks until this broker leads.  UNAVAILABLE: no endpoint answered · DATA_DIR: the prefix has something
 * else, or another cluster · DATA_NEWER · DENIED · NO_SPACE · FENCED: another one took the lead while the
 * rows were read: open again · INTERRUPTED: `wait` · USAGE, NO_MEMORY, INTERNAL.  Not to serve, it does not
 * wait: DATA_LOCKED: a broker leads · NOT_FOUND: EXPORT, and there is no registry. */
int etcd_open(const etcd_opts_t *opts, etcd_t **ret_etcd, heddle_error_t *error);
/* The lead is given up, so that the next broker need not wait for the end of the lease. */
void etcd_close(etcd_t **etcd);

/* False: no endpoint answered what was asked last. */
bool etcd_is_answered(const etcd_t *e);
const char *etcd_trouble(const etcd_t *e); /* what came last in place of an answer; "": nothing has yet */
/* Of the one that leads; borrowed until the next turn. */
const brokers_t *etcd_brokers(etcd_t *e);
/* It took the lead with the rows that it had followed as a standby, and read none. */
bool etcd_has_followed(const etcd_t *e);

int etcd_fd(const etcd_t *e);
void etcd_turn(etcd_t *e);
uint64_t etcd_due(const etcd_t *e);
/* OK, or FENCED. */
int etcd_lost(const etcd_t *e, heddle_error_t *error);

/* As store_load and store_config (store.h).  etcd_load turns meanwhile, and may fail with FENCED. */
int etcd_load(etcd_t *e, int (*each)(void *self, const record_t *record), void *self, heddle_error_t *error);
int etcd_config(etcd_t *e, const char *adapter, uint64_t version, buf_t *out, heddle_error_t *error);
/* AGAIN: begun, and etcd_committed says how it ended · none: OK · what etcd_leader_commit refuses. */
int etcd_commit(etcd_t *e, const record_t *records, int count, heddle_error_t *error);
/* True, once: OK, or nothing happened: NO_SPACE, DENIED, LIMIT, UNAVAILABLE, INTERNAL. */
bool etcd_committed(etcd_t *e, int *ret_rc, heddle_error_t *error);

/* As etcd_commit, but it blocks until the outcome is known: OK, or nothing happened.  FENCED: as
 * etcd_lost.  UNAVAILABLE: after `patience_ms` it is not known; close it. */
int etcd_write(etcd_t *e, const record_t *records, int count, heddle_error_t *error);
/* The same: the rows are those that etcd has. */
int etcd_read_again(etcd_t *e, heddle_error_t *error);
/* The same: ends an IMPORT, which counts from here on; or an EXPORT, after which the registry goes on
 * elsewhere, and no broker takes the lead of it any more. */
int etcd_finish(etcd_t *e, heddle_error_t *error);

const char *etcd_url(const etcd_t *e);
const char *etcd_prefix(const etcd_t *e);
const char *etcd_cluster(const etcd_t *e);
uint64_t etcd_epoch(const etcd_t *e);
uint64_t etcd_bytes(const etcd_t *e);
uint64_t etcd_key_count(const etcd_t *e);

#endif
