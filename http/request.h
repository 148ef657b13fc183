/* SPDX-License-Identifier: Apache-2.0 */
/* http/request.h (PURE): one HTTP request, from outside, as a question.  Nothing in it is believed: names,
 * numbers and lengths are checked here, and what is not known is refused with words.
 *
 *   GET / /page/…                       the page: its files
 *   GET /livez /readyz                  is the broker well?
 *   GET /metrics                        counters, for Prometheus
 *   GET /api/v1/status  /adapters  /versions/NAME  /versions/NAME@V  /workers  /workers/NAME
 *   GET /api/v1/versions/NAME?after=N
 *   GET /api/v1/events?after=N&epoch=N&limit=N&adapter=NAME&worker=NAME
 *
 * The caller owns a request.  One thread at a time; nothing blocks. */
#ifndef HTTP_REQUEST_H
#define HTTP_REQUEST_H

#include "core/names.h"
#include "http/asset.h"
#include "proto/msg.h"

#define REQUEST_TARGET_MAX 2048u /* bytes of path and query: a name has 128, each at most three of them */
#define REQUEST_EVENTS_MAX 500u  /* in one answer */

/* 0: none that is known */
typedef enum {
    REQUEST_LIVEZ = 1,
    REQUEST_READYZ,
    REQUEST_METRICS,
    REQUEST_API,
    REQUEST_ASSET
} request_kind_t;
typedef struct {
    request_kind_t kind;
    const char *op;                   /* API: of msg_query_t */
    ref_t ref;                        /* versions; events and workers: name alone */
    char worker[HEDDLE_NAME_MAX + 1]; /* events */
    uint64_t after;                   /* events; versions of NAME: those of greater numbers */
    uint64_t epoch, limit;            /* events */
    const asset_t *asset;
} request_t;

/* `target`: path and query as they were sent.  Returns the status of the answer: 200, and *ret_request is
 * filled; 400, 404 or 405, and `error` says why. */
int request_parse(const char *method, const char *target, request_t *ret_request, heddle_error_t *error);
/* The question of the first page; its texts are borrowed from the request. */
void request_query(const request_t *r, msg_query_t *ret_query);
/* Goes on after an event that the reader has: `id` is "EPOCH-SEQ", as a stream of events gives it.  What is
 * none changes nothing. */
void request_resume(request_t *r, const char *id);
bool request_is_probe(const request_t *r); /* /livez or /readyz */
/* One answer is for both; of /api/v1. */
bool request_is_same(const request_t *a, const request_t *b);
/* The status of an answer that failed with this code. */
int request_status(int code);
/* `host`, of the header Host, is an IP address or localhost, with or without a port.  A page of a foreign
 * site can make a browser send requests to this address under a name of its own, and no other. */
bool request_is_of_address(const char *host);

#endif
