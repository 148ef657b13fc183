/* SPDX-License-Identifier: Apache-2.0 */
/* broker/main_http.h: the broker over HTTP, where --http asks for it: what its loop answers.  The rest is in
 * http/server.h, on a thread of its own.  Loop thread; nothing blocks but main_http_close, which waits for
 * that thread. */
#ifndef BROKER_MAIN_HTTP_H
#define BROKER_MAIN_HTTP_H

#include "broker/broker.h"
#include "broker/main_store.h"
#include "broker/standby.h"
#include "http/metrics.h"
#include "http/service.h"
#include "wire/loop.h"

typedef struct main_http main_http_t;

typedef struct {
    service_opts_t service;
    loop_t *loop;
    const broker_t *broker;   /* NULL: it stands by, until main_http_lead */
    const standby_t *standby; /* borrowed until then */
    const main_store_t *store;
    const histogram_t *commits; /* of it */
} main_http_opts_t;
/* From here on clients connect; they are answered when the loop runs.  Errors as of service_open. */
int main_http_open(const main_http_opts_t *opts, main_http_t **ret_http, heddle_error_t *error);
/* What a standby answered to is a broker's from here on.  Accepts NULL. */
void main_http_lead(main_http_t *h, const broker_t *broker);
/* How far the broker's events have come, for those who follow them; at the end of a turn.  Accepts NULL. */
void main_http_note(main_http_t *h, uint64_t last_seq);
const char *main_http_url(const main_http_t *h); /* "http://127.0.0.1:9700"; NULL for NULL */
/* Accepts NULL and pointers to NULL. */
void main_http_close(main_http_t **http);

#endif
