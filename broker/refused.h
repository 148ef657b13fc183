/* SPDX-License-Identifier: Apache-2.0 */
/* broker/refused.h (PURE): keys whose connections were refused: where a member is missing, no other
 * process can tell which key it came with.
 *
 *   unknown --refused--> listed --10 minutes without a refusal--> unknown
 *
 * Bounded: REFUSED_MAX keys; the one that was refused longest ago makes room.  The log gets a line for each
 * key in 10 minutes, and one a second at most, whatever number of keys try.  One thread; nothing blocks. */
#ifndef BROKER_REFUSED_H
#define BROKER_REFUSED_H

#include "broker/outbox.h"
#include <heddle/keys.h>

#define REFUSED_MAX 16u
#define REFUSED_US 600000000ull     /* listed so long after the last refusal; logged again after that */
#define REFUSED_PAUSE_US 1000000ull /* between two lines of the log */
#define REFUSED_TEXT 384u

/* heard_us 0: a free row */
typedef struct {
    char public_key[HEDDLE_KEY_TEXT];
    uint64_t count, heard_us, heard_ms, said_us;
} refused_key_t;
typedef struct {
    refused_key_t rows[REFUSED_MAX];
    uint64_t said_us;
} refused_t;

/* A connection with this key was refused.  The row that is to be logged now, valid until the next call; NULL:
 * the key, or another one, was logged lately. */
const refused_key_t *refused_note(refused_t *r, const char *public_key, instant_t now);
bool refused_is_listed(const refused_key_t *row, uint64_t now_us);
/* "the key ... was refused 12 times; ...": what `status` shows and the log says. */
void refused_text(const refused_key_t *row, char ret_text[REFUSED_TEXT]);

#endif
