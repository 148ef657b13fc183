/* SPDX-License-Identifier: Apache-2.0 */
/* wire/greeting.h: asks a listener for its security mechanism over a connection of its own.
 *
 * Two ZMTP peers with different mechanisms close the connection as soon as one has read the other's
 * greeting. The second one may then find the connection closed before it has read anything, and cannot say
 * why. Here only the first half of a greeting is sent, without a mechanism. The listener answers with its
 * own mechanism and has no reason yet to close.
 *
 * CONNECTING -> CONNECTED (half a greeting sent) -> OVER (on_answer called; the mechanism can be read)
 *
 * One greeting asks once; its owner destroys it. The loop's thread; nothing blocks but
 * greeting_first. */
#ifndef WIRE_GREETING_H
#define WIRE_GREETING_H

#include "core/bytes.h"
#include "wire/loop.h"

/* ZMTP 3 pads the name of the mechanism with zeros to this length. */
#define GREETING_MECHANISM 20u

/* The listener's greeting up to and with the mechanism; it may arrive in several pieces. PURE. */
typedef struct {
    size_t bytes;
    uint8_t at[12 + GREETING_MECHANISM];
} greeting_answer_t;
/* False when the greeting is complete up to the mechanism. */
bool greeting_take(greeting_answer_t *h, bytes_t part);
/* The mechanism as greeting_mechanism() returns it: "" where the bytes are no ZMTP 3 greeting, or not all
 * are there. */
void greeting_read(const greeting_answer_t *h, char ret_mechanism[GREETING_MECHANISM + 1]);

typedef struct greeting greeting_t;

/* `on_answer` is called once, from the loop, with the answer or when the connection ends without one; it
 * must not destroy the greeting. It is never called when the endpoint cannot be reached. NO_MEMORY. */
int greeting_ask(loop_t *loop, const char *endpoint, void (*on_answer)(void *self), void *self,
                 greeting_t **ret_greeting);
/* As the listener spells it: "CURVE", "NULL". "": the connection ended without an answer, or the listener
 * does not speak ZMTP 3. NULL: no answer yet. */
const char *greeting_mechanism(const greeting_t *g);
/* Asks all of them at once, and waits for the first answer: its number.  -1: none of them has a listener that
 * speaks ZMTP 3 and answers in time.  Any thread. */
#define GREETING_FIRST_MAX 16
int greeting_first(const char *const *endpoints, int count, uint32_t timeout_ms);
/* Accepts NULL and pointers to NULL. */
void greeting_destroy(greeting_t **greeting);

#endif
