/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/answer_events.h (PURE): the log of events as questions see it: what is kept from a number
 * on, after a gap for what is not kept any more.  An event is the same object everywhere, written as text by
 * event_text: a page has it as a tree, a stream as it is.
 *
 * Loop thread, but for event_text: it has no state, and any thread may call it.  Nothing blocks. */
#ifndef BROKER_ANSWER_EVENTS_H
#define BROKER_ANSWER_EVENTS_H

#include "broker/questions/answer.h"

/* The events that a question asks for, one after the other. */
typedef struct {
    const events_t *log;
    events_filter_t filter;
    uint64_t seq; /* the next one that is looked at; at the end, where the next question goes on */
    bool has_gap; /* it comes first */
    event_row_t gap;
} event_walk_t;
void event_walk_begin(event_walk_t *w, const answer_view_t *b, const msg_query_t *q);
const event_row_t *event_walk_next(event_walk_t *w); /* valid until the next call; NULL: there is none */

/* Appends the JSON of an event in one line, with every field that docs/json.md lists. */
void event_text(buf_t *to, const event_row_t *e, uint64_t epoch);

/* One page of them (answer.h). */
int answer_events(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error);

#endif
