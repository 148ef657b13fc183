/* SPDX-License-Identifier: Apache-2.0 */
/* broker/rollout/rollout_part.h (PURE): what the files of the rollout share; for rollout*.c alone.
 *
 *   rollout.c         tracks and copies, and what can be read of them
 *   rollout_member.c  versions begin, members come and go
 *   rollout_step.c    what workers said of a version
 *   rollout_decide.c  policy, records, time
 *   rollout_keep.c    which decided versions stay
 *   rollout_send.c    the messages */
#ifndef BROKER_ROLLOUT_PART_H
#define BROKER_ROLLOUT_PART_H

#include "broker/rollout/rollout.h"

/* Where the consequences of a step go. */
typedef struct { rollout_t *ro; view_t v; events_t *ev; outbox_t *out; } step_t;

/* ---- rollout.c ---- */
/* found or new; NULL: no memory */
track_t *track_add(rollout_t *ro, const char *adapter, uint64_t version, uint64_t now_us);
/* all but the latest ROLLOUT_ENDED_TRACKS */
void     track_forget_ended(rollout_t *ro, const char *adapter);
/* index of the adapter's first track */
size_t   track_first(const rollout_t *ro, const char *adapter);
/* The member's copy, found or new with its token; NULL: no memory.  A row of another session of that name
 * is made anew. */
copy_row_t *copy_add(track_t *t, const member_t *member);
void     copy_drop(track_t *t, const char *worker);
void     copy_move(copy_row_t *c, copy_state_t state, instant_t now);   /* sets `since` */
/* there, announced, and not yet staged or failed */
bool     copy_in_flight(const copy_row_t *c);
void     copy_blame(copy_row_t *c, int code, const char *phase, const char *message);
void     copy_fail(copy_row_t *c, int code, const char *phase, const char *message, instant_t now);
void     track_touch(rollout_t *ro, track_t *t);                        /* it changed */
uint32_t track_present(const track_t *t, bool eligible_only);           /* copies whose worker is there */
/* somebody staged it, and nobody eligible is under way */
bool     track_is_complete(const track_t *t);

/* ---- rollout_send.c ---- */
/* ANNOUNCE with planned sources; false: nobody has the bytes (the copy waits for a source), or no memory. */
bool send_announce(step_t *s, track_t *t, const version_row_t *row, copy_row_t *c, const member_t *member);
/* SOURCES, those named in `lost` last of all; false: there is none. */
bool send_sources(step_t *s, track_t *t, copy_row_t *c, const member_t *member, const uint64_t *lost,
                  uint32_t lost_count);
void send_commit(step_t *s, const adapter_row_t *a, const member_t *member);
void send_abort(step_t *s, const char *adapter, const version_row_t *row, const member_t *member);
void send_retire(step_t *s, const char *adapter, uint64_t version, const member_t *member);
void send_release(step_t *s, track_t *t, const member_t *publisher);
void send_rollout(const rollout_t *ro, const adapter_row_t *a, const version_row_t *row,
                  const member_t *publisher, outbox_t *out);

/* ---- rollout_keep.c ---- */
#define RETIRE_AT_ONCE 16u /* of one adapter in one look; the next look takes the rest */
/* Adds STATE retired for what is more than is kept and nobody has need of, or no room for. */
void keep_decide(const rollout_t *ro, view_t v, const adapter_row_t *a, outbox_t *out);
/* It fetches `version` (0: it has fetched one to the end, and goes on with the latest): none of the others
 * that were overtaken meanwhile. */
void keep_moved_on(rollout_t *ro, const adapter_row_t *a, const member_t *member, uint64_t version);
/* Until when somebody loads it, or switches to it, at most: who has arrived has its bytes, though nobody may
 * fetch them from there yet.  0: nobody does. */
uint64_t keep_loaded_until(const rollout_t *ro, view_t v, const version_row_t *row, const track_t *t);
/* One of those who do; "": none. */
const char *keep_loader(const rollout_t *ro, view_t v, const version_row_t *row, const track_t *t);
/* Who fetches what of the decided ones, and room for it at those who have it; before keep_decide. */
void keep_look(step_t *s, const adapter_row_t *a);

/* ---- rollout_member.c ---- */
/* copy_add; without memory the outbox fails */
copy_row_t *copy_need(track_t *t, const member_t *member, outbox_t *out);
void wake_member(step_t *s, member_t *member, const adapter_row_t *a);
void wake_adapter(step_t *s, const adapter_row_t *a);                   /* every READY subscriber */
/* The staging version, when it was not yet: every READY subscriber is eligible, and told of it. */
void begin_next(step_t *s, const adapter_row_t *a);
/* The new track of a version that was recorded just now; without memory the rollout is incomplete. */
void begin_published(step_t *s, const adapter_row_t *a, uint64_t version);

#endif
