/* SPDX-License-Identifier: Apache-2.0 */
/* broker/store/etcd_http.h: requests to the endpoints of an etcd, over libcurl's multi interface: one at most
 * in each lane (etcd_leader.h), connections kept open between them.
 *
 *   idle --etcd_http_send--> under way --answered, failed or late--> idle, and on_end is called
 *                            under way --a line of a stream--> under way, and on_end is called with it
 *                            under way --etcd_http_stop--> idle
 *                            under way --etcd_http_send--> under way, and the earlier one is forgotten
 *
 * The requests are HTTP/1.1: no two of them share a connection, and one that is late or stopped ends its own.
 * Each one is sent once: what is repeated etcd_leader.h decides.
 * All sockets are behind one descriptor, which is readable when etcd_http_turn has something to do.  An
 * answer has at most ETCD_ANSWER_BYTES.  The thread of the loop; nothing blocks, and names are resolved by a
 * thread of libcurl. */
#ifndef BROKER_ETCD_HTTP_H
#define BROKER_ETCD_HTTP_H

#include "broker/store/etcd_leader.h"

#define ETCD_ANSWER_BYTES (64u << 20)

typedef struct etcd_http etcd_http_t;

typedef struct {
    const char *const *urls; /* http:// or https://HOST:PORT of each endpoint; borrowed for its life */
    int count;
    const char *ca, *cert, *key; /* files (PEM), of https; NULL: those of the system; none */
    /* With an answer, or why there is none, for people. */
    void (*on_end)(void *self, etcd_lane_t lane, etcd_outcome_t outcome, bytes_t body);
    void *self;
} etcd_http_opts_t;

/* NO_MEMORY, INTERNAL.  Files are read with each connection. */
int etcd_http_new(const etcd_http_opts_t *opts, etcd_http_t **ret_http, heddle_error_t *error);
void etcd_http_destroy(etcd_http_t **http);
int etcd_http_fd(const etcd_http_t *http);
/* The request's body is borrowed until on_end.  False: no memory; the lane is idle. */
bool etcd_http_send(etcd_http_t *http, etcd_lane_t lane, const etcd_request_t *request);
void etcd_http_stop(etcd_http_t *http, etcd_lane_t lane); /* nothing, where it is idle */
void etcd_http_turn(etcd_http_t *http, uint64_t now_us);
uint64_t
etcd_http_due(const etcd_http_t *http); /* of its next time-out, whether or not the descriptor is ready */

#endif
