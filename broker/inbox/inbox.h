/* SPDX-License-Identifier: Apache-2.0 */
/* broker/inbox/inbox.h: the messages that members and commands send.  Each has a file of its name, with its
 * handler on_MESSAGE; QUERY alone has a folder (broker/questions/).
 *
 *   message       from              what is checked                recorded  sent
 *   HELLO         every connection  wire version, role             –         HELLO_OK
 *   JOIN          a worker          name, subscriptions, numbers   –         WELCOME, PEERS, ANNOUNCE, COMMIT
 *   OPEN          a publisher       name, who writes, numbers      WRITER    WELCOME, ROLLOUT
 *   HEARTBEAT     a member          token                          –         HEARTBEAT_OK
 *   LEAVE         a member          token                          WRITER    BYE
 *   PUBLISH       a publisher       token, request, step, digest   VERSION   PUBLISHED, ANNOUNCE
 *   STAGED        a worker          token, version, digest         –         COMMIT, if it is decided
 *   ACTIVE        a worker          token, decision, digest        –         –
 *   NACK          a worker          token, version                 –         –
 *   VERIFIED      a worker          token, version, digest         –         –
 *   NEED_SOURCES  a worker          token, version                 –         SOURCES
 *
 * A message that is refused is answered by ERROR.  What follows from a record follows when it is durable
 * (broker/txn.h).  STAGED, ACTIVE and NACK may make a decision possible: that is looked at after the message
 * (broker_decide).  A lease that ends is no message: broker_tick, and sessions_end_member.
 *
 * Loop thread; nothing blocks but a commit (broker/txn.h). */
#ifndef BROKER_INBOX_H
#define BROKER_INBOX_H

#include "broker/call.h"

/* Handles the message of `c`: b, m, frame, from, again and now are set, and the rest is found here. */
void inbox_handle(call_t *c);

void on_hello(const call_t *c);
void on_join(const call_t *c);
void on_open(const call_t *c);
void on_heartbeat(const call_t *c);
void on_leave(const call_t *c);
void on_publish(const call_t *c);
/* The reports of workers are pure: report.h. */

/* ---- OPEN, later ---- */

/* WRITER was applied: the session of the transaction's OPEN begins.  Where its connection ended meanwhile,
 * the writer is closed again. */
void open_recorded(broker_t *b, uint64_t token, instant_t now);
/* The store refused to record it: what it serves is waited for, for a lease after the store takes records. */
void open_note_refused(broker_t *b, const saved_frame_t *open);
/* Is `open` the same request once more? */
bool open_is_same(const saved_frame_t *saved, const msg_open_t *open);

/* A PUBLISH that may be old was answered: its sender is to send it again. */
bool publish_is_put_off(const call_t *c);

#endif
