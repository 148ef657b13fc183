/* SPDX-License-Identifier: Apache-2.0 */
/* broker/restored_numbers.h: numbers that continue above those of an older data directory that was put
 * back.  A member shows that this happened: it reports greater numbers than the store has.
 *
 *   JOIN, OPEN --knows no more--> handled
 *              --knows more--> the numbers are recorded (TXN_NUMBERS) --> handled again
 *                              as many adapters at a time as one transaction takes
 *              --impossible numbers, or too many adapters--> refused
 *
 * What was acknowledged since that copy is gone, but its numbers may not be given again: members that have
 * seen them would take other bytes for those they know, and new decisions for old ones.  Every number
 * therefore goes on above the greatest that any member knows.  The latest decision of such a member's
 * adapters is made anew above those that members follow: a decision that is not known here may have been in
 * force.
 *
 * Loop thread; nothing blocks but a commit (broker/txn.h). */
#ifndef BROKER_RESTORED_NUMBERS_H
#define BROKER_RESTORED_NUMBERS_H

#include "broker/call.h"

/* True: the store knows as much as the member; go on.  False: it was refused, or is handled again later. */
bool restored_numbers_check_join(const call_t *c);
bool restored_numbers_check_open(const call_t *c);
/* The numbers are recorded: `status` says so, and an event, once for all transactions of a request. */
void restored_numbers_note(broker_t *b, recovery_t *r, instant_t now);

#endif
