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

/* ---- one begins: for HELLO, JOIN and OPEN (broker/inbox/) ---- */

/* NULL: there is no room for another connection. */
broker_peer_t *sessions_add_peer(broker_t *b, uint64_t number);
member_hello_t sessions_hello(const broker_peer_t *peer); /* what it said */
/* False: the message is not for its role, and was refused. */
bool sessions_has_role(const call_t *c, role_t role);
/* One connection has one session.  A JOIN or OPEN under another name ends the former one. */
void sessions_end_former(const call_t *c, role_t role, const char *key);
/* The member was admitted: its connection is bound to it, and the session that it replaces has ended. */
void sessions_begin(const call_t *c, const admitted_t *admitted);
void sessions_send_welcome(const call_t *c, const member_t *member, msg_welcome_t *welcome);
/* PEERS, to one worker; and to all of a place, because a publisher of the adapter came to it, or left it. */
void sessions_send_peers(broker_t *b, const member_t *worker);
void sessions_peers_changed(broker_t *b, const char *adapter, uint64_t place);
/* The event that it is there.  It shows where the same process has other data plane addresses now. */
void sessions_note_begun(const call_t *c, const member_t *member);

/* ---- while it lasts ---- */

/* The token that a message names is stale, or of another connection (it is good only on the one that got it):
 * ERROR fenced answers the message. */
void sessions_stale_token(const call_t *c, uint64_t token);
/* ERROR fenced: the token of this connection is stale, or its session was replaced just now.  `name`: of the
 * session; "". */
void sessions_send_fenced(broker_t *b, const asker_t *to, uint64_t token, const char *name,
                          const member_t *by);
/* The event that `by` has taken over from the session of this token. */
void sessions_note_fenced(broker_t *b, const char *name, uint64_t token, const member_t *by, instant_t now);

/* The worker is to leave: it drains from now on, unless it does already. */
void sessions_drain(broker_t *b, member_t *worker, instant_t now);
/* It stays: rollouts that begin from now on wait for it again, and what others took over they keep.  One that
 * does not drain stays as it is.  The answer goes to the worker at once.  REQUEST_CONFLICT: it leaves all the
 * same. */
int sessions_undrain(broker_t *b, member_t *worker, instant_t now, heddle_error_t *error);

/* It is forgotten when the messages to it have left. */
void sessions_end_peer(broker_t *b, broker_peer_t *peer);
void sessions_forget_ending(broker_t *b);

/* Sends a PING to find out whether the member's connection is still there; sets is_gone if it is not. */
void sessions_probe(broker_t *b, member_t *member);
/* A send to its connection said GONE. */
void sessions_note_gone(const broker_t *b, member_t *member);
bool sessions_is_gone(broker_t *b, uint64_t peer); /* the same of any connection */

/* ---- it ends ---- */

/* Ends a session, for any reason but a new one of its name, with all that follows: its row, its event, the
 * questions that wait for it, its copies, and what the other members know of it. */
void sessions_end_member(broker_t *b, member_t *member, member_end_t end, instant_t now);

/* WRITER is about to close the adapter's: an event, where the session ended before this start of the
 * broker. */
void sessions_note_closed(broker_t *b, const char *adapter, instant_t now);
/* Its writer is closed, or could not be: BYE, and the connection is ending. */
void sessions_send_bye(broker_t *b, const asker_t *asker, uint64_t token);

#endif
