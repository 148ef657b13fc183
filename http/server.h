/* SPDX-License-Identifier: Apache-2.0 */
/* http/server.h: HTTP on one address, answered from what a loop knows.
 *
 *   a request came --(http/request.h)--> asked --(http/mailbox.h, the loop's answer)--> sent
 *                  --> refused                 --(2 s without the loop)--> 504; of /livez 503
 *
 * A thread of its own has all connections.  It reads and writes, checks, joins pages and makes texts, so that
 * a slow or hostile client costs the loop nothing: what the loop does is one page for each question, and it
 * takes one question a turn.  Bounded are connections, also those of one address, bytes and time of a
 * request, time of an answer, questions, and the bytes of all answers on their way.  A connection has one
 * request.
 *
 * A stream of events (Accept: text/event-stream) is a request whose answer goes on: it asks for a page
 * whenever the loop notes that there are new events.  It begins when its first page is there, so that what is
 * refused has a status.  Where many are open, as from pages, equal requests of one moment have one question:
 * it is asked after all of them have come, so that no answer is of before its request.
 *
 * The loop's side is the mailbox alone.  Opened and closed by one thread, which blocks in server_close until
 * the other one has ended. */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include "http/certificate.h"
#include "http/mailbox.h"

typedef struct server server_t;

typedef struct {
    int listen_fd;       /* taken, also on failure */
    const char *program; /* "broker", for texts; borrowed for ever */
    const char *token;   /* NULL: each client is answered that reaches the address and names it as an address
                          * (request_is_of_address) */
    const certificate_t *certificate; /* NULL: no TLS */
    bool has_api;                     /* else /api/v1 and the page are not found */
    bool is_remote;                   /* other hosts reach it: none of them has all places */
} server_opts_t;
/* `opts` is borrowed for the call.  NO_MEMORY, also without a thread. */
int server_open(const server_opts_t *opts, server_t **ret_server, heddle_error_t *error);
mailbox_t *server_mailbox(server_t *s); /* of the loop: its questions; borrowed */
/* After the loop has stopped looking at the mailbox.  Accepts NULL and pointers to NULL. */
void server_close(server_t **server);

#endif
