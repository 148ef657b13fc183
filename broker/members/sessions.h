/* SPDX-License-Identifier: Apache-2.0 */
/* broker/members/sessions.h: connections, and the sessions that they speak for.
 *
 *   unknown --HELLO--> idle --JOIN, OPEN--> bound to a session --LEAVE, lease over, replaced, revoked--> idle
 *   idle --LEAVE answered, key revoked, too many of them--> ending --its messages have left--> forgotten
 *
 * Every session ends in sessions_end_member; broker_tick calls it for each lease that is over.  The rows and
 * their states are in membership.h.
 *
 * A session of a worker begins at once.  That of a publisher begins when the WRITER record is applied.
 * At most LIMIT_PEERS connections; of idle ones BROKER_IDLE_PEERS, the longest silent makes room.
 *
 * Loop thread; nothing blocks but a commit (broker/txn.h). */
#ifndef BROKER_SESSIONS_H
#define BROKER_SESSIONS_H

#include "broker/call.h"

void on_hello(const call_t *c);
void on_join(const call_t *c);
void on_open(const call_t *c);
void on_heartbeat(const call_t *c);
void on_leave(const call_t *c);

/* The token that a message names is stale, or of another connection (it is good only on the one that got it):
 * ERROR fenced answers the message. */
void sessions_stale_token(const call_t *c, uint64_t token);
/* ERROR fenced: the token of this connection is stale, or its session was replaced just now.  `name`: of the
 * session; "". */
void sessions_send_fenced(broker_t *b, const asker_t *to, uint64_t token, const char *name,
                          const member_t *by);

/* It is forgotten when the messages to it have left. */
void sessions_end_peer(broker_t *b, broker_peer_t *peer);
void sessions_forget_ending(broker_t *b);

/* Sends a PING to find out whether the member's connection is still there; sets is_gone if it is not. */
void sessions_probe(broker_t *b, member_t *member);
bool sessions_is_gone(broker_t *b, uint64_t peer); /* the same of any connection */

/* Ends a session, for any reason but a new one of its name, with all that follows: its row, its event, the
 * questions that wait for it, its copies, and what the other members know of it. */
void sessions_end_member(broker_t *b, member_t *member, member_end_t end, instant_t now);

/* WRITER was applied: the session of the transaction's OPEN begins.  Where its connection ended meanwhile,
 * the writer is closed again. */
void sessions_begin_writer(broker_t *b, uint64_t token, instant_t now);
/* WRITER is about to close the adapter's: an event, where the session ended before this start of the
 * broker. */
void sessions_note_closed(broker_t *b, const char *adapter, instant_t now);
/* Its writer is closed, or could not be: BYE, and the connection is ending. */
void sessions_send_bye(broker_t *b, const asker_t *asker, uint64_t token);
/* The store refused to record it: what it serves is waited for, for a lease after the store takes records. */
void sessions_note_refused(broker_t *b, const saved_frame_t *open);
/* Is `open` the same request once more? */
bool sessions_is_same_open(const saved_frame_t *saved, const msg_open_t *open);

#endif
