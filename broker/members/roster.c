/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/members/roster.h"

#include "broker/state.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/names.h"
#include "core/sorted.h"
#include "core/utf8.h"

#include <stdlib.h>

void roster_touch(broker_t *b, uint64_t within_us, instant_t now)
{
    b->roster.write_us = clock_earlier(b->roster.write_us, now.us + within_us);
}

void roster_start(broker_t *b)
{
    b->roster = (roster_t){.write_us = CLOCK_NEVER, .awaits = b->registry.worker_count > 0};
}

uint64_t roster_deadline(const broker_t *b)
{
    if (b->roster.awaits) return b->members.grace_end_us;
    return b->roster.is_on ? 0 : b->roster.write_us;
}

/* ---- what is remembered ---- */

/* False: the outbox is full, or there is no memory.  `row` NULL: the registry has none. */
static bool remember_change(broker_t *b, const worker_row_t *row, const member_t *m, instant_t now)
{
    buf_t serves = {0};
    /* "policy@7,other@0": its subscriptions, and the version that it serves of each. */
    for (uint32_t i = 0; i < m->sub_count; i++)
        buf_printf(&serves, "%s%s@%llu", i ? "," : "", m->subs[i].adapter,
                   (unsigned long long)m->subs[i].serving.version);
    const char *text = buf_text(&serves);
    bool is_same = row && row->pid == m->pid && !strcmp(row->host, m->host) && !strcmp(row->serves, text);
    record_t *rec = is_same ? NULL : outbox_record(b->out, RECORD_WORKER, "", now);
    if (rec) {
        rec->at_ms = m->joined_ms;
        rec->worker = m->name;
        rec->host = m->host;
        rec->pid = m->pid;
        rec->serves = outbox_text(b->out, text);
    }
    buf_fini(&serves);
    return is_same || rec;
}

static int order_row(const void *row, const void *name)
{
    return strcmp(((const worker_row_t *)row)->name, name);
}

static int order_member(const void *row, const void *name)
{
    return strcmp(((const member_t *)row)->name, name);
}

/* Where a list goes on behind the last name that was compared. */
static size_t after(const void *rows, size_t count, const char *name, sorted_order_fn *order)
{
    bool found;
    size_t at = sorted_place(rows, count, name, order, &found);
    return at + found;
}

/* Workers that are ready now are remembered, and those that are not any more are forgotten.  True: all were
 * compared. */
static bool compare_rest(broker_t *b, instant_t now)
{
    const registry_t *r = &b->registry;
    const membership_t *members = &b->members;
    size_t i = after(r->workers, r->worker_count, b->roster.done, order_row);
    size_t k = after(members->workers, members->worker_count, b->roster.done, order_member);
    const char *name = NULL;
    bool fits = true;
    while (i < r->worker_count || k < members->worker_count) {
        const worker_row_t *row = i < r->worker_count ? r->workers[i] : NULL;
        const member_t *m = k < members->worker_count ? members->workers[k] : NULL;
        int order = !row ? 1 : !m ? -1 : strcmp(row->name, m->name);
        if (order > 0) row = NULL;
        if (order < 0) m = NULL;
        if (member_is_ready(m)) fits = remember_change(b, row, m, now);
        else if (row) {
            /* The same.  Without `serves` the row goes. */
            record_t *rec = outbox_record(b->out, RECORD_WORKER, "", now);
            if (rec) rec->worker = row->name;
            fits = rec != NULL;
        }
        b->roster.compared++;
        if (!fits) break;
        name = row ? row->name : m->name;
        i += row != NULL;
        k += m != NULL;
    }
    if (name) error_text(b->roster.done, sizeof b->roster.done, name);
    return fits;
}

/* Until the grace after a start is over nothing is written: workers of before may still come back. */
void roster_decide(broker_t *b, instant_t now)
{
    roster_t *r = &b->roster;
    if (r->awaits || (!r->is_on && now.us < r->write_us)) return;
    if (!r->is_on) {
        r->is_on = true;
        r->done[0] = 0;
        r->write_us = CLOCK_NEVER;
    }
    r->is_on = !compare_rest(b, now);
}

/* ---- after a start ---- */

/* "policy@7,other@0", as remember_change wrote it. */
static bool names_adapters(const char *serves)
{
    while (*serves) {
        char name[HEDDLE_NAME_MAX + 1];
        size_t bytes = strcspn(serves, ","), mark = strcspn(serves, "@");
        if (mark >= bytes || mark >= sizeof name) return false;
        memcpy(name, serves, mark);
        name[mark] = 0;
        if (!name_is_valid(name)) return false;
        serves += bytes + (serves[bytes] == ',');
    }
    return true;
}

/* The roster is a memory aid, so a damaged row must not keep the broker from its start. */
bool roster_takes(const broker_t *b, const record_t *record)
{
    const char *host = record->host ? record->host : "", *serves = record->serves ? record->serves : "";
    const char *flaw = !name_is_valid(record->worker)       ? "its name is not a worker's"
                       : !utf8_is_valid(host, strlen(host)) ? "its host is not valid UTF-8"
                       : !names_adapters(serves)            ? "what it serves are not adapters"
                                                            : NULL;
    char text[HEDDLE_NAME_MAX + 128];
    if (flaw && b->io.warn) {
        size_t shown = utf8_prefix(record->worker, strnlen(record->worker, HEDDLE_NAME_MAX));
        text_printf(text, sizeof text, "table workers: row '%.*s' is passed over: %s", (int)shown,
                    record->worker, flaw);
        b->io.warn(b->io.self, "registry.row", text);
    }
    return !flaw;
}

/* Reads what remember_change wrote.  *ret_count 0: none, or no memory. */
static msg_subscription_t *subscriptions_of(const worker_row_t *row, arena_t *arena, uint32_t *ret_count)
{
    msg_subscription_t *subs = arena_alloc(arena, LIMIT_ADAPTERS_PER_WORKER * sizeof *subs);
    char *at = subs ? (char *)arena_text(arena, row->serves, strlen(row->serves)) : NULL;
    for (*ret_count = 0; at && *at && *ret_count < LIMIT_ADAPTERS_PER_WORKER;) {
        char *end = at + strcspn(at, ","), *mark = at + strcspn(at, "@");
        bool is_last = !*end;
        *end = 0;
        if (mark < end) {
            *mark = 0;
            subs[(*ret_count)++] =
                (msg_subscription_t){.adapter = at, .version = strtoull(mark + 1, NULL, 10)};
        }
        at = is_last ? NULL : end + 1;
    }
    return subs;
}

/* A version of 0 was not recorded yet, because it is recorded up to ROSTER_LATE_US after the switch. */
static void add_lost(broker_t *b, const member_t *m, instant_t now)
{
    buf_t served = {0};
    for (uint32_t i = 0; i < m->sub_count; i++)
        if (m->subs[i].serving.version)
            buf_printf(&served, "%s%s@%llu", served.bytes ? "," : "it served ", m->subs[i].adapter,
                       (unsigned long long)m->subs[i].serving.version);
    event_row_t *e = events_add(&b->events, EVENT_WORKER_LOST, NULL, 0, m->name, now);
    events_message(e, m->end_code, "%s; %s", m->end_message,
                   served.bytes ? buf_text(&served) : "the version that it served is not known");
    buf_fini(&served);
}

/* Workers that were ready before the start and did not come back are listed as lost, as if this broker had
 * seen their leases end. */
void roster_end_grace(broker_t *b, instant_t now)
{
    if (!b->roster.awaits || now.us < b->members.grace_end_us) return;
    b->roster.awaits = false;
    for (size_t i = 0; i < b->registry.worker_count; i++) {
        const worker_row_t *row = b->registry.workers[i];
        if (membership_worker(&b->members, row->name)) continue;
        arena_t arena = {0};
        msg_join_t past = {.name = row->name};
        member_hello_t hello = {.role = ROLE_WORKER, .host = row->host, .pid = row->pid};
        past.adapters = subscriptions_of(row, &arena, &past.adapter_count);
        member_t *m = past.adapter_count ? membership_add_lost(&b->members, &past, &hello, now) : NULL;
        if (m) { /* without memory for its row it is not listed */
            m->joined_ms = row->joined_ms;
            m->received_us = b->started_us;
            add_lost(b, m, now);
        }
        arena_fini(&arena);
    }
    roster_touch(b, 0, now);
}
