/* SPDX-License-Identifier: Apache-2.0 */
/* wire/greeting.h: how a listener greets, asked over a connection of its own; inside wire/.
 *
 * Two ends of ZMTP that speak different mechanisms part as soon as one has read the other's, and who reads
 * last may find the connection gone.  Here we begin a greeting and hold back our mechanism: the listener
 * tells its own, and has nothing yet to part over.  Asked once; whoever asked ends it.
 *
 * On the loop's thread; nothing blocks. */
#ifndef WIRE_GREETING_H
#define WIRE_GREETING_H

#include "core/bytes.h"
#include "wire/loop.h"

#define GREETING_MECHANISM 20u

/* What a stranger says, up to its mechanism, in pieces as they come.  PURE. */
typedef struct { size_t bytes; uint8_t at[12 + GREETING_MECHANISM]; } greeting_heard_t;
/* False when no more is needed. */
bool greeting_take(greeting_heard_t *h, bytes_t part);
/* As greeting_mechanism() has it: "" where it is none, or not whole. */
void greeting_read(const greeting_heard_t *h, char ret_mechanism[GREETING_MECHANISM + 1]);

typedef struct greeting greeting_t;

/* `on_heard` is called once, from the loop, when there is an answer, or an end without one; it may not
 * destroy the greeting.  Never when nobody can be reached.  NO_MEMORY. */
int  greeting_ask(loop_t *loop, const char *endpoint, void (*on_heard)(void *self), void *self,
                  greeting_t **ret_greeting);
/* As the listener spells it: "CURVE", "NULL"; "" when it ended without, or does not speak ZMTP 3; NULL: not
 * heard yet. */
const char *greeting_mechanism(const greeting_t *g);
/* Accepts NULL and pointers to NULL. */
void greeting_destroy(greeting_t **greeting);

#endif
