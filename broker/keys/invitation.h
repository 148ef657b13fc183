/* SPDX-License-Identifier: Apache-2.0 */
/* broker/keys/invitation.h (PURE): whether an invitation still enters keys.
 *
 * An invitation is a CURVE key of the table that may do one thing: have another key entered, with the roles
 * of the invitation.  Its secret is in the join string alone; the table has the public key, from which the
 * secret cannot be computed.  The CURVE handshake proves that a client has the string.
 *
 *   open --uses keys were entered--> used up
 *   open --ends_ms--> ended
 *
 * It may be revoked in each of them, as every key (broker/keys/auth.h).  One thread; no memory. */
#ifndef BROKER_INVITATION_H
#define BROKER_INVITATION_H

#include "broker/outbox.h"

typedef enum { INVITATION_OPEN, INVITATION_USED_UP, INVITATION_ENDED } invitation_state_t;
typedef struct {
    uint64_t uses, used; /* uses 0: this key is no invitation */
    uint64_t ends_ms;    /* wall clock */
    uint64_t busy_us;    /* the questions of before have used up the allowance until then; not stored */
} invitation_t;

invitation_state_t invitation_state(const invitation_t *i, uint64_t wall_ms);
const char *invitation_state_name(invitation_state_t state); /* open, used_up, ended */

/* An allowance of INVITATION_BURST questions, and one more each INVITATION_STEP_US. */
#define INVITATION_BURST 128u
#define INVITATION_STEP_US 15625u /* 64 a second */

/* A key asks to be entered.  Every question counts against the allowance.  `is_in`: the key has all the roles
 * of the invitation.  OK · UNAVAILABLE (too many questions: again in *ret_retry_ms) · DENIED (used up or
 * ended, and the key is not in). */
int invitation_decide(invitation_t *i, const char *name, bool is_in, instant_t now, uint64_t *ret_retry_ms,
                      heddle_error_t *error);

#endif
