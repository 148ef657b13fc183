/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/answer_events.h"

#include "broker/questions/cell.h"
#include "core/clock.h"
#include "core/errors.h"

#include <stdlib.h>

/* ---- which ---- */

/* Stands for the events that are gone.  It has the number before the first event that is kept, and the time
 * of that, so that numbers and times still rise; and a code, since what is gone may have been a failure: a
 * reader that looks for codes sees it. */
static void make_gap(event_walk_t *w, const answer_view_t *b, const msg_query_t *q)
{
    const event_row_t *next = events_at(w->log, w->seq);
    w->gap = (event_row_t){.seq = w->seq - 1,
                           .at_ms = next ? next->at_ms : b->now.wall_ms,
                           .type = EVENT_GAP,
                           .bytes = -1,
                           .duration_ms = -1};
    if (q->epoch && q->epoch != w->log->epoch)
        events_message(&w->gap, HEDDLE_ERR_GONE,
                       "the broker was started again: the events of epoch %llu from %llu on are gone",
                       (unsigned long long)q->epoch, (unsigned long long)q->after);
    else if (q->after > w->log->last_seq)
        events_message(&w->gap, HEDDLE_ERR_GONE,
                       "there is no event %llu, the newest is %llu: those before it were of another "
                       "registry, or the number is wrong",
                       (unsigned long long)q->after, (unsigned long long)w->log->last_seq);
    else
        events_message(&w->gap, HEDDLE_ERR_GONE, "events %llu to %llu are no longer kept",
                       (unsigned long long)q->after, (unsigned long long)(w->seq - 1));
}

void event_walk_begin(event_walk_t *w, const answer_view_t *b, const msg_query_t *q)
{
    bool has_gap = false;
    *w = (event_walk_t){
        .log = b->events,
        .filter = {.epoch = q->epoch, .after = q->after, .adapter = q->name, .worker = q->worker}};
    w->seq = events_begin(w->log, &w->filter, &has_gap);
    w->has_gap = has_gap;
    if (has_gap) make_gap(w, b, q);
}

const event_row_t *event_walk_next(event_walk_t *w)
{
    if (w->has_gap) {
        w->has_gap = false;
        return &w->gap;
    }
    while (w->seq <= w->log->last_seq) {
        const event_row_t *e = events_at(w->log, w->seq++);
        if (e && events_match(e, &w->filter)) return e;
    }
    return NULL;
}

/* ---- one ---- */

/* Nearly all texts need no escape, and then are not worth a tree. */
static void add_text(buf_t *to, const char *text)
{
    bool is_plain = true;
    for (const char *c = text; *c; c++) is_plain &= *c >= ' ' && *c < 0x7f && *c != '"' && *c != '\\';
    if (*text && is_plain) {
        buf_add_text(to, "\"");
        buf_add_text(to, text);
        buf_add_text(to, "\"");
        return;
    }
    json_t *value = cell_text(text);
    char *escaped = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (escaped) buf_add_text(to, escaped);
    else to->failed = true;
    free(escaped);
    json_decref(value);
}

/* `before` the number: the comma and the key. */
static void add_count(buf_t *to, const char *before, uint64_t n)
{
    buf_add_text(to, before);
    buf_add_number(to, n < LIMIT_EXACT ? n : LIMIT_EXACT);
}

static void add_field(buf_t *to, const char *before, const char *text)
{
    buf_add_text(to, before);
    add_text(to, text);
}

/* Has only what this type of event has.  The first comma is where the object begins. */
static void add_data(buf_t *to, const event_row_t *e)
{
    size_t begin = to->bytes;
    bool is_source =
        e->type == EVENT_SOURCE_LOST || e->type == EVENT_SOURCE_BAD || e->type == EVENT_SOURCE_SLOW;
    if (e->decision) add_count(to, ",\"decision\":", e->decision);
    if (e->token) add_count(to, ",\"token\":", e->token);
    if (e->other[0]) add_field(to, is_source ? ",\"source\":" : ",\"by\":", e->other);
    if (e->bytes >= 0) add_count(to, ",\"bytes\":", (uint64_t)e->bytes);
    if (e->duration_ms >= 0) add_count(to, ",\"duration_ms\":", (uint64_t)e->duration_ms);
    if (to->bytes == begin) buf_add_text(to, "{");
    if (!to->failed) to->data[begin] = '{';
    buf_add_text(to, "}");
}

void event_text(buf_t *to, const event_row_t *e, uint64_t epoch)
{
    char at[25] = "";
    if (e->at_ms) clock_text(e->at_ms, at);
    add_count(to, "{\"schema\":\"heddle/1\",\"kind\":\"event\",\"ok\":true,\"seq\":", e->seq);
    add_count(to, ",\"epoch\":", epoch);
    add_field(to, ",\"at\":", at);
    add_field(to, ",\"type\":", events_name(e->type));
    add_field(to, ",\"adapter\":", e->adapter);
    if (e->version) add_count(to, ",\"version\":", e->version);
    else buf_add_text(to, ",\"version\":null");
    add_field(to, ",\"worker\":", e->worker);
    add_field(to, ",\"code\":", e->code ? heddle_err_name(e->code) : "");
    add_field(to, ",\"message\":", e->message);
    buf_add_text(to, ",\"data\":");
    add_data(to, e);
    buf_add_text(to, "}");
}

/* ---- a page ---- */

int answer_events(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error)
{
    event_walk_t walk;
    const event_row_t *e;
    rows_t rows;
    buf_t text = {0};
    uint64_t epoch = b->events->epoch;
    event_walk_begin(&walk, b, q);
    rows_init(&rows, q->limit, ANSWER_PAGE_EVENTS);
    page->next = walk.seq;
    while ((e = event_walk_next(&walk)) != NULL) {
        buf_clear(&text);
        event_text(&text, e, epoch);
        json_t *row = text.failed ? NULL : json_loadb((const char *)text.data, text.bytes, 0, NULL);
        if (!rows_add(&rows, row)) break;
        page->next = walk.seq;
    }
    if (!e) page->next = walk.seq;
    buf_fini(&text);
    page->more = rows.full;
    /* The oldest event that is kept, whatever was asked for: a reader that asks by time sees the gap. */
    const event_row_t *first = events_at(b->events, events_first(b->events));
    page->body = cell_body("events", true,
                           json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "events", rows_end(&rows),
                                     "first_seq", cell_count(events_first(b->events)), "first_at",
                                     cell_time(first ? first->at_ms : 0), "last_seq",
                                     cell_count(b->events->last_seq), "next", cell_count(page->next), "epoch",
                                     cell_count(epoch), "more", (int)page->more));
    return page->body ? HEDDLE_OK : cell_no_memory(error);
}
