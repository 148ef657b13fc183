/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/http.h: the worker over HTTP, where --http asks for it.  A thread answers what http/server.h asks:
 * the main thread may write a large version to disk for minutes, and the worker is alive meanwhile.  Answers
 * come from a report of the library's thread that is at most 0.2 s old.
 *
 *   opened: /livez 200, /readyz 503 --http_set_worker--> both as the library's thread says --> closed
 *
 * Main thread; http_close and http_set_worker wait for an answer that is being made. */
#ifndef SIDECAR_HTTP_H
#define SIDECAR_HTTP_H

#include "http/service.h"

#include <heddle/worker.h>

typedef struct http http_t;

typedef struct {
    service_opts_t service;
    const char *const *adapters; /* as the worker has them; borrowed until http_close */
    uint64_t ready_lag;          /* as in http_metrics_ready */
} http_opts_t;

/* Errors as of service_open. */
int http_open(const http_opts_t *opts, http_t **ret_http, heddle_error_t *error);
/* From now on it is asked; NULL: no longer.  Accepts NULL for `h`. */
void http_set_worker(http_t *h, heddle_worker_t *worker);
const char *http_url(const http_t *h); /* NULL for NULL */
/* Accepts NULL and pointers to NULL. */
void http_close(http_t **http);

#endif
