/* SPDX-License-Identifier: Apache-2.0 */
/* client/entering.h (PURE): a client that was invited has its own key entered, over a connection that the
 * invitation's key opened.  When this is over, the client connects anew with its own key.
 *
 *   state     event                          -> next     what the caller does
 *   GREETING  HELLO_OK                       -> ASKED    sends the question `enter` with the own public key
 *   ASKED     REPORT                         -> OVER     EN_ENTERED: the key is in the broker's table
 *             ERROR, not retriable           -> OVER     EN_REFUSED: used up, ended, or the key was revoked
 *             ERROR, retriable               -> WAITING  EN_REFUSED, and EN_AGAIN: it is asked again
 *             no answer for ENTERING_ANSWER_US -> GREETING EN_REDIAL
 *   WAITING   its retry_ms are over          -> ASKED    asks again
 *   all but OVER: a connection lost          -> GREETING
 *
 * HELLO, its repetition and redials are those of client/session.h, as of an admin.  Loop thread; the shell
 * owns it. */
#ifndef CLIENT_ENTERING_H
#define CLIENT_ENTERING_H

#include "client/session.h"

#define ENTERING_ANSWER_US 5000000u
#define ENTERING_RETRY_US 1000000u /* where the ERROR names no retry_ms */

typedef enum { ENTERING_OVER, ENTERING_GREETING, ENTERING_ASKED, ENTERING_WAITING } entering_state_t;
typedef struct {
    entering_state_t state;
    session_t session;
    uint64_t req, due_us; /* due_us: of ASKED and WAITING */
    char host[HEDDLE_NAME_MAX + 1];
    char own[64]; /* public key */
} entering_t;

typedef enum {
    EN_SEND = 1 << 0,   /* *ret_msg; what cannot be sent is repeated */
    EN_REDIAL = 1 << 1, /* to session.leader, as SO_REDIAL */
    EN_ENTERED = 1 << 2,
    EN_REFUSED = 1 << 3, /* *ret_why */
    EN_AGAIN = 1 << 4
} entering_out_t;

/* `seed`: jitter. */
void entering_init(entering_t *e, const char *own_public_key, uint64_t pid, uint64_t seed);
static inline bool entering_is_over(const entering_t *e) { return e->state == ENTERING_OVER; }
/* `msg`: of SE_FRAME, decoded.  Returns bits of entering_out_t; the texts of *ret_msg are the
 * entering_t's. */
unsigned entering_step(entering_t *e, session_event_kind_t kind, const msg_t *msg, uint64_t now_us,
                       msg_t *ret_msg, heddle_error_t *ret_why);
uint64_t entering_deadline(const entering_t *e);

#endif
