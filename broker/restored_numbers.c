/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/restored_numbers.h"

#include "broker/registry/active.h"
#include "broker/registry/decision.h"
#include "core/errors.h"
#include "core/limits.h"

#include <stdio.h>

/* No history can be further ahead of a copy than this: one number by JUMP_MAX, all numbers that were
 * accepted since the start by JUMPS_MAX.  A greater jump is an error of the member that reports it.  The
 * sums are so small that no number comes near the limit of a message, however many members err and however
 * often the broker is started again. */
#define JUMP_MAX (1ull << 24)
#define JUMPS_MAX (1ull << 32)
#define EPOCHS_MAX (1ull << 10)
/* Adapters that exist here only because members reported numbers of them. */
#define REPORTED_MAX 256u

typedef struct {
    const call_t *c;
    buf_t text;        /* the greater numbers that the member has, one item an adapter, for operators */
    buf_t back;        /* what workers go back to, one item an adapter */
    char epoch[64];    /* the greater epoch or token, an item behind the adapters */
    recovery_t so_far; /* what the records of this transaction raise */
    bool is_opening;   /* the adapter is a writer's: it would be made anyway */
    bool is_absurd;
    bool is_crowded; /* one more adapter would be made by reports than may be */
    bool is_full;    /* the outbox: the rest is taken when these are recorded */
    bool is_older;   /* a number was found that is not here */
} recovering_t;

/* Adds as many of the items as fit, whole, and returns how many are left out.  Names have no comma. */
static uint32_t take_items(char *text, size_t size, const char *items)
{
    uint32_t left_out = 0;
    size_t used = strlen(text);
    while (*items) {
        size_t bytes = strcspn(items, ",");
        if (left_out || used + bytes + 3 > size) left_out++;
        else
            used += (size_t)snprintf(text + used, size - used, "%s%.*s", used ? ", " : "", (int)bytes, items);
        items += bytes;
        items += strspn(items, ", ");
    }
    return left_out;
}

/* The items that fit, and how many more there are. */
static void show_items(char *text, size_t size, const items_t *items)
{
    enum { MORE = 24 }; /* " and 4294967295 more" */
    text[0] = 0;
    if (!take_items(text, size, items->text) && !items->others) return;
    text[0] = 0;
    uint32_t others = items->others + take_items(text, size - MORE, items->text);
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%u more", used ? " and " : "", others);
}

/* A jump beyond JUMP_MAX cannot come from a real history: the member is refused, because numbers that are
 * raised never go down again. */
static void raise_number(recovering_t *h, uint64_t reported, uint64_t here)
{
    uint64_t jump = reported > here ? reported - here : 0;
    if (jump <= JUMP_MAX && !h->is_full) h->so_far.numbers += jump;
    h->is_absurd |= jump > JUMP_MAX || h->so_far.numbers > JUMPS_MAX - h->c->b->raised.numbers;
}

/* The member knows an epoch greater than ours, or a token of our epoch that was never given.  Either means
 * that the registry is older than the cluster. */
static void compare_epoch(recovering_t *h, uint64_t epoch, uint64_t token)
{
    broker_t *b = h->c->b;
    uint64_t here = b->registry.epoch, reported = token >> 32 > epoch ? token >> 32 : epoch;
    bool is_ours = token >> 32 != here || (uint32_t)token <= b->members.counter;
    bool is_later = reported > b->start_epoch || token > b->start_token;
    h->is_older |= is_later && reported < here; /* another member has raised it since the start */
    if (reported < here || (reported == here && is_ours)) return;
    h->is_older = true;
    if (reported == here)
        text_printf(h->epoch, sizeof h->epoch, "its epoch's token %u (here %llu)", (uint32_t)token,
                    (unsigned long long)b->members.counter);
    else
        text_printf(h->epoch, sizeof h->epoch, "epoch %llu (here %llu)", (unsigned long long)reported,
                    (unsigned long long)here);
    h->so_far.epochs = reported + 1 - here;
    h->is_absurd |= reported >= EPOCH_REPORTED_MAX || h->so_far.epochs > EPOCHS_MAX - b->raised.epochs;
    if (h->is_absurd) return;
    if (here == b->start_epoch) b->start_token = here << 32 | b->members.counter;
    record_t *rec = outbox_record(b->out, RECORD_EPOCH, "", h->c->now);
    rec->epoch = reported + 1;
}

/* Adapters that no publisher opened here, but members reported: in the registry, and in the records of this
 * transaction. Those that were forgotten do not count. */
static size_t reported_count(const broker_t *b)
{
    size_t count = 0;
    for (size_t i = 0; i < b->registry.adapter_count; i++) {
        const adapter_row_t *a = b->registry.adapters[i];
        count += !a->version_count && !a->was_opened && (a->last_version || a->floor_decision);
    }
    for (int i = 0; i < b->out->record_count; i++) count += b->out->records[i].kind == RECORD_ADAPTER;
    return count;
}

/* Compares what the member reports of one adapter with the registry, and records the greater numbers. */
static void compare_adapter(recovering_t *h, const char *adapter, uint64_t version, uint64_t decision)
{
    broker_t *b = h->c->b;
    const adapter_row_t *a = registry_adapter(&b->registry, adapter);
    uint64_t last = a ? a->last_version : 0, latest = a ? decision_next(a) - 1 : 0;
    if (version <= last && decision <= latest) return;
    if (!a && !registry_has_room(&b->registry)) return;
    h->is_full |= !outbox_has_room(b->out, 2);
    buf_printf(&h->text, "%s%s", h->text.bytes ? ", " : "", adapter);
    if (version > last) buf_printf(&h->text, "@%llu", (unsigned long long)version);
    if (version > last && decision > latest) buf_printf(&h->text, " and");
    if (decision > latest) buf_printf(&h->text, " decision %llu", (unsigned long long)decision);
    if (version > last && decision > latest)
        buf_printf(&h->text, " (here %llu and %llu)", (unsigned long long)last, (unsigned long long)latest);
    else buf_printf(&h->text, " (here %llu)", (unsigned long long)(version > last ? last : latest));
    raise_number(h, version, last);
    raise_number(h, decision, latest);
    if (!a && !h->is_opening && !h->is_crowded) h->is_crowded |= reported_count(b) >= REPORTED_MAX;
    if (h->is_absurd || h->is_crowded) return;
    h->is_full |= !decision_raise_floor(&b->registry, adapter, version, decision, h->c->now, b->out);
}

void restored_numbers_note(broker_t *b, recovery_t *r, instant_t now)
{
    b->raised.epochs += r->epochs;
    b->raised.numbers += r->numbers;
    if (!r->known.text[0]) return;
    char few[88], known[sizeof r->known.text + 24], back[sizeof r->back.text + 24];
    if (!r->is_noted) { /* an event has room for few items, and names the member elsewhere */
        show_items(few, sizeof few, &r->known);
        event_row_t *e = events_add(&b->events, EVENT_BROKER_STARTED, NULL, 0, r->who, now);
        events_message(e, HEDDLE_ERR_DATA_DIR,
                       "older data were put back: it knows %s; publish the newest checkpoint again", few);
        b->restored.at_ms = now.wall_ms;
        r->is_noted = true;
    }
    show_items(known, sizeof known, &r->known);
    show_items(back, sizeof back, &r->back);
    error_text(b->restored.from, sizeof b->restored.from, r->who);
    text_printf(b->restored.message, sizeof b->restored.message,
                "older data were put back: %s knows %s%s%s%s; publish the newest checkpoint again; "
                "the next start of the broker ends this message",
                r->who, known, back[0] ? "; once settling has ended workers go back to " : "", back,
                back[0] ? " if one still has it" : "");
}

/* An older registry may have lost decisions too, which no member reports.  The next decision number is
 * raised for each adapter that the worker subscribes to, so that no number is used twice. */
static void doubt_decisions(recovering_t *h, const msg_join_t *join)
{
    broker_t *b = h->c->b;
    for (; h->so_far.doubted < join->adapter_count && !h->is_full; h->so_far.doubted++) {
        const adapter_row_t *a = registry_adapter(&b->registry, join->adapters[h->so_far.doubted].adapter);
        if (!a || !active_latest(a)) continue;
        h->is_full = !decision_raise_floor(&b->registry, a->name, 0, decision_next(a), h->c->now, b->out);
        if (h->is_full) return;
        uint64_t followed = join->adapters[h->so_far.doubted].version;
        if (followed && followed != active_latest(a))
            buf_printf(&h->back, "%s%s@%llu", h->back.bytes ? ", " : "", a->name,
                       (unsigned long long)active_latest(a));
    }
}

/* ---- what becomes of the request ---- */

/* A faulty member could otherwise raise numbers for good, or fill the registry with adapters that do not
 * exist. */
static void refuse_numbers(const recovering_t *h, const items_t *found)
{
    char known[sizeof found->text + 24];
    heddle_error_t error;
    show_items(known, sizeof known, found);
    outbox_clear(h->c->b->out);
    if (h->is_absurd) {
        error_fail(&error, HEDDLE_ERR_PROTOCOL, "%s reports impossible numbers: %s", h->so_far.who, known);
        error_expected(&error, "what this cluster's broker has given");
        error_hint(&error, "restart the process: it then begins without versions");
    } else {
        error_fail(&error, HEDDLE_ERR_LIMIT,
                   "%s reports versions of adapters that were never published here: %s", h->so_far.who,
                   known);
        error_expected(&error, "at most %u such adapters at one broker", REPORTED_MAX);
        error_hint(&error,
                   "restart the process: it then begins without versions; or put the newer data back");
    }
    broker_refuse(h->c, &error, 0);
}

/* The request is handled again when the numbers are recorded.  Without memory to keep it nothing is recorded,
 * and the member sends it again. */
static void record_numbers(recovering_t *h, const items_t *found)
{
    const call_t *c = h->c;
    broker_t *b = c->b;
    heddle_error_t error;
    recovery_t *r = &h->so_far;
    txn_t txn = {.kind = TXN_NUMBERS,
                 .asker = c->asker,
                 .deadline_us = c->deadline_us,
                 .retry_ms = b->opts.lease_ms / 4,
                 .frame = txn_save_frame(c)};
    if (!txn.frame) {
        b->out->record_count = 0;
        return;
    }
    /* The first of several transactions has all that the member knows. */
    if (!r->is_noted) r->known = *found;
    r->back.others += take_items(r->back.text, sizeof r->back.text, buf_text(&h->back));
    txn.frame->recovery = *r;
    txn.frame->recovery.is_whole = !h->is_full;
    txn_commit(b, &txn, c->now, &error);
}

/* True: nothing is to be recorded, and the request goes on now. */
static bool finish(recovering_t *h)
{
    broker_t *b = h->c->b;
    bool is_refused = h->is_older && (h->is_absurd || h->is_crowded);
    bool has_records = h->is_older && b->out->record_count;
    items_t found = {0};
    if (h->epoch[0]) buf_printf(&h->text, "%s%s", h->text.bytes ? ", " : "", h->epoch);
    found.others = take_items(found.text, sizeof found.text, buf_text(&h->text));
    if (is_refused) refuse_numbers(h, &found);
    else if (has_records && b->txn.is_open) txn_defer(h->c);
    else if (has_records) record_numbers(h, &found);
    buf_fini(&h->text);
    buf_fini(&h->back);
    return !is_refused && !has_records;
}

/* ---- JOIN and OPEN ---- */

static recovering_t begin(const call_t *c, const char *who)
{
    recovering_t h = {.c = c};
    if (c->again) h.so_far = c->again->recovery;
    h.so_far.epochs = h.so_far.numbers = 0;
    error_text(h.so_far.who, sizeof h.so_far.who, who);
    return h;
}

/* A JOIN that was handled again after its numbers were recorded is not compared a second time. */
bool restored_numbers_check_join(const call_t *c)
{
    const msg_join_t *join = &c->m->join;
    if (c->again && c->again->recovery.is_whole) return true;
    recovering_t h = begin(c, join->name);
    compare_epoch(&h, join->epoch, join->prev_token);
    uint64_t newest[LIMIT_ADAPTERS_PER_WORKER]; /* that it follows or holds, of each subscription */
    for (uint32_t i = 0; i < join->adapter_count; i++) newest[i] = join->adapters[i].version;
    for (uint32_t i = 0; i < join->held_count; i++) {
        const msg_held_t *held = &join->held[i];
        const adapter_row_t *a = registry_adapter(&c->b->registry, held->adapter);
        if (held->version <= (a ? a->last_version : 0)) continue;
        for (uint32_t k = 0; k < join->adapter_count; k++)
            if (held->version > newest[k] && !strcmp(join->adapters[k].adapter, held->adapter))
                newest[k] = held->version;
    }
    for (uint32_t i = 0; i < join->adapter_count; i++)
        compare_adapter(&h, join->adapters[i].adapter, newest[i], join->adapters[i].decision);
    h.is_older |= h.text.bytes > 0;
    if (h.is_older) doubt_decisions(&h, join);
    return finish(&h);
}

bool restored_numbers_check_open(const call_t *c)
{
    const msg_open_t *open = &c->m->open;
    if (c->again && c->again->recovery.is_whole) return true;
    recovering_t h = begin(c, open->writer);
    h.is_opening = true;
    compare_epoch(&h, open->epoch, open->prev_token);
    uint64_t newest = open->serving;
    for (uint32_t i = 0; i < open->served_count; i++)
        if (open->served[i] > newest) newest = open->served[i];
    compare_adapter(&h, open->adapter, newest, 0);
    h.is_older |= h.text.bytes > 0;
    return finish(&h);
}
