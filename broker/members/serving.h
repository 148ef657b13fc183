/* SPDX-License-Identifier: Apache-2.0 */
/* broker/members/serving.h (PURE): what a worker serves of one adapter, as it reported: the version, and the
 * decision that it applied last.
 *
 *   event                                           -> what it serves             behind
 *   JOIN                                            -> as it restates, undated    by what is active
 *   the process's session before served the same    -> dated as there             as there, if it was ready
 *   the registry does not have what it restates     -> nothing                    by what is active
 *   ACTIVE                                          -> that version, from now on  from now on, or not at all
 *   NACK of that switch, later                      -> the same, refused          as before that ACTIVE
 *   a decision for another version                  -> the same                   from then on, if it was not
 *
 * *Behind* counts through all later decisions, from the first that the worker has not followed.  The state of
 * its copies (broker/rollout/copy.h) follows from the same messages.
 *
 * Each subscription of a member has one.  Other files than serving.c only read it (tests/style/rooms.py).  No
 * state of its own, one thread. */
#ifndef BROKER_SERVING_H
#define BROKER_SERVING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint64_t decision, version; /* applied last, and served; 0, 0: none */
    uint64_t since_ms;          /* when that was reported, or as JOIN restates it; 0: not known */
    bool is_refused;            /* its application could not switch to them after all */
    uint64_t behind_ms; /* since when it has not served what was active; 0: it serves that, or nothing is */
    uint64_t was_behind_ms; /* before its last ACTIVE */
} serving_t;

/* A JOIN restates it. */
void serving_restated(serving_t *s, uint64_t decision, uint64_t version);
/* `before`: of the former session of the process.  Nothing changes where that served something else. */
void serving_renewed(serving_t *s, const serving_t *before, bool was_ready);
/* The registry does not have what was restated. */
void serving_forgotten(serving_t *s);
/* It is known since when: where no session of this process has reported it. */
void serving_dated(serving_t *s, uint64_t since_ms);
/* ACTIVE.  It counts as behind from now on, unless it has caught up. */
void serving_switched(serving_t *s, uint64_t decision, uint64_t version, uint64_t now_ms);
/* Its application could not switch after all, though ACTIVE was sent. */
void serving_refused(serving_t *s, uint64_t now_ms);
/* It serves what is active, or nothing is. */
void serving_caught_up(serving_t *s);
/* It does not, since then or earlier. */
void serving_fell_behind(serving_t *s, uint64_t since_ms);

/* It serves this version by this decision, and its application has not refused since. */
static inline bool serving_is(const serving_t *s, uint64_t decision, uint64_t version)
{
    return s->version == version && s->decision == decision && !s->is_refused;
}

#endif
