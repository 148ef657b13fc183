/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/older_store.h"

#include "broker/registry/decision.h"
#include "core/errors.h"
#include "core/limits.h"

/* No history can be further ahead of a copy than this: one number by JUMP_MAX, all numbers that were
 * accepted since the start by JUMPS_MAX.  A greater jump is an error of the member that reports it.  The
 * sums are so small that no number comes near the limit of a message, however many members err and however
 * often the broker is started again. */
#define JUMP_MAX (1ull << 24)
#define JUMPS_MAX (1ull << 32)
#define EPOCHS_MAX (1ull << 10)
/* Adapters that exist here only because members reported numbers of them. */
#define CLAIMED_MAX 256u

typedef struct {
    const call_t *c;
    buf_t text;        /* the greater numbers that the member has, as text for operators */
    recovery_t so_far; /* what the records of this transaction raise */
    bool is_opening;   /* the adapter is a writer's: it would be made anyway */
    bool is_absurd;
    bool is_crowded; /* one more adapter would be claimed than may be */
    bool is_full;    /* the outbox: the rest is taken when these are recorded */
    bool is_older;   /* a number was found that is not here */
} recovering_t;

/* Adds one number to the text that operators read. */
static void note(recovering_t *h, uint64_t heard, uint64_t here, const char *what, const char *of)
{
    if (heard <= here) return;
    buf_printf(&h->text, "%s%s%s%s %llu (here %llu)", h->text.bytes ? ", " : "", of, *of ? " " : "", what,
               (unsigned long long)heard, (unsigned long long)here);
}

/* A jump beyond JUMP_MAX cannot come from a real history: the member is refused, because numbers that are
 * raised never go down again. */
static void raise_number(recovering_t *h, uint64_t heard, uint64_t here, const char *what, const char *of)
{
    uint64_t jump = heard > here ? heard - here : 0;
    note(h, heard, here, what, of);
    if (jump <= JUMP_MAX && !h->is_full) h->so_far.numbers += jump;
    h->is_absurd |= jump > JUMP_MAX || h->so_far.numbers > JUMPS_MAX - h->c->b->raised.numbers;
}

/* The member knows an epoch greater than ours, or a token of our epoch that was never given.  Either means
 * that the registry is older than the cluster. */
static void compare_epoch(recovering_t *h, uint64_t epoch, uint64_t token)
{
    broker_t *b = h->c->b;
    uint64_t here = b->registry.epoch, heard = token >> 32 > epoch ? token >> 32 : epoch;
    bool is_ours = token >> 32 != here || (uint32_t)token <= b->members.counter;
    bool is_later = heard > b->start_epoch || token > b->start_token;
    h->is_older |= is_later && heard < here; /* another member has raised it since the start */
    if (heard < here || (heard == here && is_ours)) return;
    if (heard == here) note(h, (uint32_t)token, b->members.counter, "token", "its epoch's");
    else note(h, heard, here, "epoch", "");
    h->so_far.epochs = heard + 1 - here;
    h->is_absurd |= heard >= EPOCH_HEARD_MAX || h->so_far.epochs > EPOCHS_MAX - b->raised.epochs;
    if (h->is_absurd) return;
    if (here == b->start_epoch) b->start_token = here << 32 | b->members.counter;
    record_t *rec = outbox_record(b->out, RECORD_EPOCH, "", h->c->now);
    rec->epoch = heard + 1;
}

/* Adapters that were never published to here, but were reported by members: in the registry, and in the
 * records of this transaction. */
static size_t claimed_count(const broker_t *b)
{
    size_t count = 0;
    for (size_t i = 0; i < b->registry.adapter_count; i++) {
        const adapter_row_t *a = b->registry.adapters[i];
        count += !a->version_count && (a->last_version || a->floor_decision);
    }
    for (int i = 0; i < b->out->record_count; i++) count += b->out->records[i].kind == RECORD_ADAPTER;
    return count;
}

/* Compares what the member reports of one adapter with the registry, and records the greater numbers. */
static void compare_adapter(recovering_t *h, const char *adapter, uint64_t version, uint64_t decision)
{
    broker_t *b = h->c->b;
    const adapter_row_t *a = registry_adapter(&b->registry, adapter);
    uint64_t last = a ? a->last_version : 0, latest = a ? registry_next_decision(a) - 1 : 0;
    if (version <= last && decision <= latest) return;
    if (!a && b->registry.adapter_count >= LIMIT_ADAPTERS) return;
    h->is_full |= !outbox_has_room(b->out, 2);
    raise_number(h, version, last, "version", adapter);
    raise_number(h, decision, latest, "decision", adapter);
    if (!a && !h->is_opening && !h->is_crowded) h->is_crowded |= claimed_count(b) >= CLAIMED_MAX;
    if (h->is_absurd || h->is_crowded) return;
    h->is_full |= !registry_decide_floor(&b->registry, adapter, version, decision, h->c->now, b->out);
}

void broker_note_recovered(broker_t *b, const recovery_t *r, instant_t now)
{
    b->raised.epochs += r->epochs;
    b->raised.numbers += r->numbers;
    if (!r->text[0]) return;
    event_row_t *e = events_add(&b->events, EVENT_BROKER_STARTED, NULL, 0, r->who, now);
    events_message(e, HEDDLE_ERR_DATA_DIR,
                   "older data were put back: %s knows %s; numbering continues above these", r->who, r->text);
    b->restored.at_ms = now.wall_ms;
    error_text(b->restored.from, sizeof b->restored.from, r->who);
    error_text(b->restored.message, sizeof b->restored.message, e->message);
}

/* Commits the greater numbers, and handles this request again after that.  True: there are none, and the
 * request goes on now. */
static bool record_numbers(recovering_t *h)
{
    const call_t *c = h->c;
    broker_t *b = c->b;
    heddle_error_t error;
    if (h->is_absurd || h->is_crowded) {
        outbox_clear(b->out);
        if (h->is_absurd) {
            error_fail(&error, HEDDLE_ERR_PROTOCOL, "%s reports impossible numbers: %.300s", h->so_far.who,
                       buf_text(&h->text));
            error_expected(&error, "what this cluster's broker has given");
            error_hint(&error, "start the process again: it begins with nothing");
        } else { /* a faulty member could otherwise fill the registry with adapters that do not exist */
            error_fail(&error, HEDDLE_ERR_LIMIT,
                       "%s reports versions of adapters that were never published here: %.300s",
                       h->so_far.who, buf_text(&h->text));
            error_expected(&error, "at most %u such adapters at one broker", CLAIMED_MAX);
            error_hint(&error, "start the process again: it begins with nothing; or put the newer data back");
        }
        broker_refuse(c, &error, 0);
        return false;
    }
    if (!b->out->record_count) return true;
    if (b->txn.is_open) {
        broker_defer(c);
        return false;
    }
    txn_t txn = {.kind = TXN_NUMBERS,
                 .asker = c->asker,
                 .deadline_us = c->deadline_us,
                 .retry_ms = b->opts.lease_ms / 4,
                 .request = request_of_call(c)};
    if (!txn.request) {
        b->out->record_count = 0;
        return false;
    }
    txn.request->recovery = h->so_far;
    txn.request->recovery.is_whole = !h->is_full;
    text_printf(txn.request->recovery.text, sizeof txn.request->recovery.text, "%.300s", buf_text(&h->text));
    broker_commit(b, &txn, c->now, &error);
    return false;
}

/* An older registry may have lost decisions too, which no member reports.  The next decision number is
 * raised for each adapter that the worker subscribes to, so that no number is used twice. */
static void doubt_decisions(recovering_t *h, const msg_join_t *join)
{
    broker_t *b = h->c->b;
    for (; h->so_far.doubted < join->adapter_count && !h->is_full; h->so_far.doubted++) {
        const adapter_row_t *a = registry_adapter(&b->registry, join->adapters[h->so_far.doubted].adapter);
        if (!a || !a->active) continue;
        h->is_full =
            !registry_decide_floor(&b->registry, a->name, 0, registry_next_decision(a), h->c->now, b->out);
        if (h->is_full) return;
    }
}

static recovering_t begin(const call_t *c, const char *who)
{
    recovering_t h = {.c = c};
    if (c->again) h.so_far.doubted = c->again->recovery.doubted;
    error_text(h.so_far.who, sizeof h.so_far.who, who);
    return h;
}

/* A JOIN that was handled again after its numbers were recorded is not compared a second time. */
bool broker_recover_join(const call_t *c)
{
    const msg_join_t *join = &c->m->join;
    if (c->again && c->again->recovery.is_whole) return true;
    recovering_t h = begin(c, join->name);
    compare_epoch(&h, join->epoch, join->prev_token);
    for (uint32_t i = 0; i < join->adapter_count; i++)
        compare_adapter(&h, join->adapters[i].adapter, join->adapters[i].version, join->adapters[i].decision);
    for (uint32_t i = 0; i < join->held_count; i++) {
        const msg_held_t *held = &join->held[i];
        const adapter_row_t *a = registry_adapter(&c->b->registry, held->adapter);
        bool is_beyond = held->version > (a ? a->last_version : 0);
        bool is_subscribed = false;
        for (uint32_t k = 0; is_beyond && !is_subscribed && k < join->adapter_count; k++)
            is_subscribed = !strcmp(join->adapters[k].adapter, held->adapter);
        if (is_subscribed) compare_adapter(&h, held->adapter, held->version, 0);
    }
    h.is_older |= h.text.bytes > 0;
    if (h.is_older) doubt_decisions(&h, join);
    bool goes_on = !h.is_older || record_numbers(&h);
    buf_fini(&h.text);
    return goes_on;
}

bool broker_recover_open(const call_t *c)
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
    h.is_older = h.text.bytes > 0;
    bool goes_on = !h.is_older || record_numbers(&h);
    buf_fini(&h.text);
    return goes_on;
}
