/* SPDX-License-Identifier: Apache-2.0 */
/* bench/cluster.h: a cluster to measure: a broker and workers as processes, and a publisher in this
 * process.
 *
 *    open (all workers have joined) -> publish, activate, ... -> close
 *
 * All files lie below a scratch directory, and all connections are on loopback. A wait ends with DEADLINE,
 * or with INTERRUPTED after cluster_interrupt. The caller owns the cluster. One thread. */
#ifndef BENCH_CLUSTER_H
#define BENCH_CLUSTER_H

#include "bench/child.h"
#include "bench/member.h"
#include "bench/model.h"
#include <heddle/heddle.h>

#define CLUSTER_DEADLINE_MS 60000
#define CLUSTER_REST_MS 1000

typedef struct {
    const char *scratch; /* a directory that is there */
    const char *name;    /* of the cluster's own files in it */
    uint32_t workers, keep;
    bool insecure;    /* no keys */
    bool is_app;      /* the application in the worker switches (HEDDLE_APPLY_APP), not the library */
    bool owns_memory; /* workers: no memory is held */
    bool is_tapped;   /* control messages pass a process that counts them */
} cluster_opts_t;

/* dialled: used by the publisher and the workers. Questions about them go to `endpoint`, past the tap, so
 * that they are not counted. */
typedef struct {
    char endpoint[256], dialled[256], key[64];
} cluster_address_t;

/* What a worker reported last; times in ns of CLOCK_MONOTONIC. */
typedef struct {
    child_t child;
    bool is_joined, is_counted;
    uint64_t staged, staged_ns, active, active_ns, switch_ns, retired, bytes_in, bytes_out;
} cluster_worker_t;

typedef struct {
    cluster_opts_t opts;
    cluster_address_t address;
    child_t broker, tap;
    cluster_worker_t *workers;
    uint32_t worker_count;
    heddle_publisher_t *publisher;
    heddle_admin_t *admin;
    uint64_t newest; /* version that was published last */
    uint32_t version_count, registry_count;
    char log[512];
    char transport[MEMBER_LINE]; /* JSON, a worker's report of what its data plane runs on */
} cluster_t;

/* What one publication took; ms since begin was called. */
typedef struct {
    double fill, sealed, durable;
    double staged, active; /* when the last worker was there, by its own clock reading */
    double heard;          /* the publisher has received that it is active on all */
    double connect, fetch,
        verify;   /* the slowest worker's: to the first bytes, from there to the last, in digests */
    double cpu_s; /* of all processes, until the version that this one replaces was retired */
    uint64_t publisher_bytes; /* that left the publisher */
} cluster_times_t;

/* Ready: all have joined.  On failure nothing is left running. */
int cluster_open(const cluster_opts_t *opts, cluster_t **ret_cluster, heddle_error_t *error);
void cluster_close(cluster_t **c);
/* All workers end and others join in their place; the publisher stays, with what it has shared. Then both
 * have CLUSTER_REST_MS for what they prepare. */
int cluster_renew_workers(cluster_t *c, heddle_error_t *error);
/* The publisher is closed and another one opened, which then has CLUSTER_REST_MS for what it prepares, as a
 * trainer has that opens it before its first step. */
int cluster_renew_publisher(cluster_t *c, heddle_error_t *error);
/* All of it starts anew, with an empty registry. */
int cluster_renew(cluster_t *c, heddle_error_t *error);
/* CLUSTER_REST_MS, as a trainer has for a step. */
int cluster_rest(heddle_error_t *error);
/* The shared memory that the workers and this process use, each page counted once (Pss_Shmem of
 * /proc/PID/smaps_rollup). */
uint64_t cluster_shared_bytes(const cluster_t *c);
/* Publishes one version of the model to all workers. Returns when the version that it replaces was retired
 * and its region is free. activation: HEDDLE_ACTIVATION_ALL; or MANUAL: it is only staged, and active and
 * heard are 0. */
int cluster_publish(cluster_t *c, const model_t *m, int activation, cluster_times_t *ret_times,
                    heddle_error_t *error);

/* What one decision took. */
typedef struct {
    double active;   /* ms, from the call to the last worker */
    double told;     /* ms, the call returned */
    double skew;     /* ms, from the first worker to the last */
    double switched; /* ms, in the slowest process: the call that switches */
    uint64_t moved_bytes;
} cluster_flip_t;
int cluster_activate(cluster_t *c, uint64_t version, cluster_flip_t *ret_flip, heddle_error_t *error);

/* CPU seconds so far: of the broker, of all workers, of this process. */
typedef struct {
    double broker, workers, publisher;
} cluster_cpu_t;
cluster_cpu_t cluster_cpu(const cluster_t *c);
/* Control messages and their bytes since the last call, both ways (is_tapped). */
typedef struct {
    uint64_t to_broker, from_broker, bytes;
} cluster_tally_t;
int cluster_tally(cluster_t *c, cluster_tally_t *ret_tally, heddle_error_t *error);

/* For a signal handler: the current wait ends with INTERRUPTED. */
void cluster_interrupt(void);

#endif
