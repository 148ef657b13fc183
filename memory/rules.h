/* SPDX-License-Identifier: Apache-2.0 */
/* memory/rules.h (PURE): what may be entered next, by the owner of a region and by a holder, and in what
 * order it is done. memory/region.c and memory/hold.c do what these tables say; unit/memory_model.c drives
 * the same tables through all interleavings.
 *
 *   region   | content, whole pages ........................ | header, one page |
 *
 * A lock says that no process writes now. It does not say what was written: an owner that dies in mid-rewrite
 * loses its lock, and leaves bytes of two versions under an intact manifest. Therefore the header says what
 * is there, and a holder reads it under its lock. Only the owner writes the header, under the exclusive lock:
 * `writing` and the next generation before the first byte, `sealed` after the last one.
 *
 * Without state; any thread; nothing blocks. */
#ifndef MEMORY_RULES_H
#define MEMORY_RULES_H

#include "core/names.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMORY_IDENTITY_BYTES 16u
#define HEADER_LAYOUT 0x326d6568u /* "hem2": another layout gets another number */

/* The name of a region, for its life. */
typedef struct {
    uint8_t identity[MEMORY_IDENTITY_BYTES];
} region_name_t;

/* Names what a region holds in one generation. Every message about a region has both numbers. */
typedef struct {
    uint8_t identity[MEMORY_IDENTITY_BYTES]; /* random: of the region, for its life */
    uint64_t generation;                     /* of the region: grows with each reuse; 0 before the first, and
                                              * in a request for the region alone */
    digest_t manifest;                       /* of the manifest of the content */
} content_id_t;

bool content_is(const content_id_t *a, const content_id_t *b);
/* "region 3f9a1c20d4e1b2c3 generation 7" */
#define CONTENT_TEXT 64u
const char *content_text(const content_id_t *id, char scratch[CONTENT_TEXT]);

/* ---- header ---- */

typedef enum { HEADER_EMPTY, HEADER_WRITING, HEADER_SEALED } header_state_t;

/* As it lies at the start of the last page. Both sides are one build of one machine: fields are native. */
typedef struct {
    uint32_t layout;
    uint32_t state; /* header_state_t */
    uint8_t identity[MEMORY_IDENTITY_BYTES];
    uint64_t generation, bytes; /* bytes count only where it is sealed */
    digest_t manifest;
} header_t;

/* What a holder finds. Only HEADER_MATCHES may be read. */
typedef enum {
    HEADER_MATCHES,
    HEADER_UNKNOWN,
    HEADER_OTHER_REGION,
    HEADER_UNSEALED,
    HEADER_OTHER_GENERATION,
    HEADER_OTHER_MANIFEST,
    HEADER_TOO_LARGE,
} header_verdict_t;
/* `capacity`: bytes of the file before its last page. */
header_verdict_t header_check(const header_t *h, const content_id_t *id, size_t capacity);

/* ---- the owner ---- */

typedef enum {
    REGION_IDLE,
    REGION_LOCKING,
    REGION_WRITING,
    REGION_SEALED,
    REGION_GONE,
    REGION_STATES,
} region_state_t;
typedef enum {
    REGION_BEGIN,
    REGION_GRANTED,
    REGION_REFUSED,
    REGION_SEAL,
    REGION_ABORT,
    REGION_DROP,
    REGION_HAND_OVER,
    REGION_OFFER,
    REGION_SHRINK,
    REGION_EVENTS,
} region_event_t;
typedef enum {
    REGION_DO_NOTHING,
    REGION_TRY_LOCK,
    REGION_PUT_WRITING,
    REGION_PUT_GENERATION,
    REGION_PUT_CONTENT,
    REGION_PUT_SEALED,
    REGION_UNLOCK,
} region_act_t;

/* False: the event is not allowed in this state, and nothing changes. Else the state moves on, and the acts
 * are to be done in their order; REGION_DO_NOTHING fills the rest. */
#define REGION_ACTS 3
bool region_step(region_state_t *state, region_event_t event, region_act_t ret_acts[REGION_ACTS]);

/* Does one act of those that put something into the header, and nothing for the others; a death may come
 * between any two. `writing` comes first, then the next generation; the content's manifest and bytes, then
 * `sealed`. So a header that says `sealed` always names the bytes that are there. `content`: for
 * REGION_PUT_CONTENT. */
void header_put(header_t *h, region_act_t act, const header_t *content);

/* ---- a holder ---- */

typedef enum { HOLD_NONE, HOLD_ASKED, HOLD_LOCKED, HOLD_CHECKED, HOLD_MAPPED, HOLD_STATES } hold_state_t;
typedef enum {
    HOLD_ASK,
    HOLD_GRANTED,
    HOLD_REFUSED,
    HOLD_FOUND,
    HOLD_FOUND_OTHER,
    HOLD_MAP,
    HOLD_MAP_FAILED,
    HOLD_SEND,
    HOLD_RELEASE,
    HOLD_HAND_ON,
    HOLD_EVENTS,
} hold_event_t;
/* HOLD_GIVE: the description belongs to another process now, and so does its lock. It is closed here, and not
 * unlocked. */
typedef enum { HOLD_DO_NOTHING, HOLD_TRY_LOCK, HOLD_READ_HEADER, HOLD_UNLOCK, HOLD_GIVE } hold_act_t;

/* As region_step, with one act. */
bool hold_step(hold_state_t *state, hold_event_t event, hold_act_t *ret_act);

#endif
