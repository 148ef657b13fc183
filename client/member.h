/* SPDX-License-Identifier: Apache-2.0 */
/* client/member.h: a member of the cluster, which a worker and a publisher both are: the session with the
 * broker (client/session.h) and the duties that come with it.
 *
 *   a frame, connection, time -> member_step -> HELLO, LEAVE, redial are done here
 *                                          -> what is left (session_out_t) is for the node
 *
 * The states are the session's.  The node builds the messages of its own: JOIN or OPEN, HEARTBEAT.
 *
 * Loop thread only; nothing blocks.  The node owns it; `io` is borrowed for its life. */
#ifndef CLIENT_MEMBER_H
#define CLIENT_MEMBER_H

#include "client/node.h"
#include "client/session.h"
#include "core/repeat.h"

typedef struct {
    const node_io_t *io;
    session_t session;
    heddle_error_t refusal; /* why it is not admitted; code 0: not refused since the last WELCOME */
    repeat_t bad_frames;    /* frames that were dropped, for the log */
    repeat_t unsendable;    /* messages that cannot be encoded, by type, for the log */
    buf_t frame;            /* the message that is being sent */
} client_member_t;

void member_init(client_member_t *m, const session_opts_t *opts, const node_io_t *io);
void member_fini(client_member_t *m);

/* Decodes the frame, steps the session and does what every member has to do.  Returns what is left for the
 * node, as bits of session_out_t: all but SO_HELLO, SO_LEAVE, SO_REDIAL and SO_TOLD.  With SO_REFUSED and
 * SO_ELSEWHERE `refusal` is set, with SO_JOINED it is cleared.  The caller ends *ret_msg with msg_fini; its
 * type is 0 without a frame.  A frame that cannot be decoded is dropped and logged, and the session is not
 * stepped; where memory was lacking the connection is made anew, because WELCOME repeats all. */
unsigned member_step(client_member_t *m, const node_event_t *event, uint64_t now_us, msg_t *ret_msg);
/* The handshake was rejected, mostly for a key, and no message came through: sets `refusal`. */
void member_connection_refused(client_member_t *m, const heddle_error_t *why);
/* Encodes and sends.  OK, NO_MEMORY, or SLOW or GONE of io->send; PROTOCOL or LIMIT: it can never be sent,
 * which is in a worker's log. */
int member_send(client_member_t *m, const msg_t *msg);
/* An answer of member_send: sent again later, the message may get through. */
static inline bool member_may_resend(int rc)
{
    return rc && rc != HEDDLE_ERR_PROTOCOL && rc != HEDDLE_ERR_LIMIT;
}
/* Gives an event to the application, with the time and the session it belongs to. */
void member_tell(client_member_t *m, heddle_event_t *event);

/* The words of a list "a,b", which is cut apart in place; at most `cap` of them. */
uint32_t member_split(char *list, const char **ret_words, uint32_t cap);

#endif
