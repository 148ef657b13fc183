/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/events.h"

#include "core/errors.h"
#include "core/limits.h"

#include <stdarg.h>
#include <stdlib.h>

static const char *const NAMES[] = {
#define X(NAME, name) [EVENT_##NAME] = name,
    EVENT_TYPES(X)
#undef X
};

int events_init(events_t *e, uint64_t epoch)
{
    *e = (events_t){.epoch = epoch};
    size_t bytes = (size_t)LIMIT_EVENTS * sizeof *e->rows;
    e->rows = malloc(bytes);
    if (!e->rows) return HEDDLE_ERR_NO_MEMORY;
    memset(e->rows, 0xff,
           bytes); /* touched now: a broker's memory is as large at its start as it will be later */
    return HEDDLE_OK;
}

void events_fini(events_t *e)
{
    free(e->rows);
    *e = (events_t){0};
}

const char *events_name(event_type_t type)
{
    return type > EVENT_NONE && (size_t)type < sizeof NAMES / sizeof *NAMES ? NAMES[type] : "unknown";
}

event_row_t *events_add(events_t *e, event_type_t type, const char *adapter, uint64_t version,
                        const char *worker, instant_t now)
{
    event_row_t *row = &e->rows[e->last_seq % LIMIT_EVENTS];
    e->counts[type]++;
    *row = (event_row_t){.seq = ++e->last_seq,
                         .at_ms = now.wall_ms,
                         .type = type,
                         .version = version,
                         .bytes = -1,
                         .duration_ms = -1};
    error_text(row->adapter, sizeof row->adapter, adapter ? adapter : "");
    error_text(row->worker, sizeof row->worker, worker ? worker : "");
    return row;
}

void events_message(event_row_t *row, int code, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    text_vprintf(text, sizeof text, format, args);
    va_end(args);
    row->code = code;
    error_text_at_word(row->message, sizeof row->message, text);
}

/* The ring keeps the latest LIMIT_EVENTS events. */
uint64_t events_first(const events_t *e)
{
    return e->last_seq > LIMIT_EVENTS ? e->last_seq - LIMIT_EVENTS + 1 : 1;
}

const event_row_t *events_at(const events_t *e, uint64_t seq)
{
    return seq < events_first(e) || seq > e->last_seq ? NULL : &e->rows[(seq - 1) % LIMIT_EVENTS];
}

/* The first event that the reader has not seen.  A gap: events were dropped meanwhile, or the broker was
 * started again.  A reader that names this epoch and has seen more than happened in it read them of another
 * registry, which came to the same epoch: one that was restored, or made anew. */
uint64_t events_begin(const events_t *e, const events_filter_t *f, bool *ret_gap)
{
    uint64_t first = events_first(e);
    bool of_others = f->epoch && (f->epoch != e->epoch || f->after > e->last_seq + 1);
    *ret_gap = of_others || (f->after && f->after < first);
    return *ret_gap || f->after < first ? first : f->after;
}

static bool is_wanted(const char *wanted, const char *found)
{
    return !wanted || !*wanted || !strcmp(wanted, found);
}

bool events_match(const event_row_t *row, const events_filter_t *f)
{
    return is_wanted(f->adapter, row->adapter) && is_wanted(f->worker, row->worker);
}

/* True where a reader that waits has something to get: an event that matches, or a gap. */
bool events_ready(const events_t *e, const events_filter_t *f)
{
    bool gap;
    uint64_t seq = events_begin(e, f, &gap);
    for (; !gap && seq <= e->last_seq; seq++)
        if (events_match(events_at(e, seq), f)) return true;
    return gap;
}
