/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/txn.h"

#include "broker/call.h"
#include "broker/keys/client_keys.h"
#include "broker/forget.h"
#include "broker/inbox/inbox.h"
#include "broker/members/sessions.h"
#include "broker/questions/query.h"
#include "broker/restored_numbers.h"
#include "core/errors.h"
#include "core/failpoint.h"

#include <stdlib.h>
#include <utlist.h>

/* What a failed transaction left undecided is tried again so much later. */
#define COMMIT_RETRY_US 1000000ull

/* ---- records are applied ---- */

int broker_apply(broker_t *b, const record_t *record)
{
    owner_check(&b->owner);
    if (record->kind == RECORD_WORKER && !roster_takes(b, record)) return HEDDLE_OK;
    bool is_of_a_key =
        record->kind == RECORD_KEY || record->kind == RECORD_KEY_DROP || record->kind == RECORD_KEYS_REVOKE;
    return is_of_a_key ? auth_apply(&b->auth, record) : registry_apply(&b->registry, record);
}

/* Takes the records of the outbox into memory, with all that follows from each (txn.h).  They are on disk
 * now: a record that cannot be applied would leave memory behind the disk.  So the process ends, and a
 * restart reads all of it. */
static int apply(broker_t *b, instant_t now, heddle_error_t *error)
{
    step_t step = broker_step(b, now);
    for (int i = 0; i < b->out->record_count; i++) {
        const record_t *rec = &b->out->records[i];
        if (rec->kind == RECORD_WRITER && !rec->token) sessions_note_closed(b, rec->adapter, now);
        if (rec->kind == RECORD_ADAPTER_FORGET) forget_adapter(b, rec, now);
        int rc = FAILPOINT("broker.apply") ? HEDDLE_ERR_NO_MEMORY : broker_apply(b, rec);
        if (rc) {
            broker_end_broken(b, rc, "a record that is on disk could not be taken into memory", error);
            return rc;
        }
        switch (rec->kind) {
        case RECORD_EPOCH:
            membership_raise_epoch(&b->members, b->registry.epoch);
            b->events.epoch = b->registry.epoch;
            break;
        case RECORD_VERSION:
        case RECORD_DECISION:
        case RECORD_STATE:
        case RECORD_FLOOR:
        case RECORD_FORGET: /* the registry has freed the version's row: its track must not keep it */
            rollout_apply(&step, rec);
            break;
        case RECORD_WRITER:
            if (rec->token) open_recorded(b, rec->token, now);
            break;
        case RECORD_KEY: keys_apply(b, rec, now); break;
        case RECORD_KEYS_REVOKE: keys_apply_entered(b, rec, now); break;
        case RECORD_ADAPTER:
        case RECORD_WORKER:
        case RECORD_LOSS:
        case RECORD_STAGED:
        case RECORD_KEY_DROP:
        case RECORD_ADAPTER_DROP:
        case RECORD_ADAPTER_FORGET: break;
        }
    }
    b->out->record_count = 0;
    return HEDDLE_OK;
}

/* ---- begin and end ---- */

/* The store begins to refuse records, or takes them again. */
static void note_store(broker_t *b, int rc, instant_t now)
{
    event_row_t *e =
        events_add(&b->events, rc ? EVENT_STORE_REFUSED : EVENT_STORE_RECOVERED, NULL, 0, NULL, now);
    if (rc) events_message(e, rc, "the broker takes no records: %s", b->read_only_why);
    else events_message(e, HEDDLE_OK, "the broker takes records again");
}

static void note_refusal(broker_t *b, const heddle_error_t *error)
{
    b->read_only_code = error->code;
    error_text(b->read_only_why, sizeof b->read_only_why, error->message);
    error_text(b->read_only_hint, sizeof b->read_only_hint, error->hint);
}

/* Greater numbers of members are recorded now.  The request that revealed them is handled again, before all
 * that wait, unless it got an error meanwhile. */
static void take_numbers(broker_t *b, instant_t now)
{
    txn_t *t = &b->txn;
    restored_numbers_note(b, &t->frame->recovery, now);
    if (t->is_answered) return;
    DL_PREPEND(b->waiting, t->frame);
    b->waiting_count++;
    b->waiting_bytes += t->frame->bytes;
    t->frame = NULL;
}

/* The transaction has ended; `was_tried`: the store has answered.  The broker's state follows the store's,
 * and then the request that began the transaction gets its answer. */
static void end_txn(broker_t *b, int rc, bool was_tried, instant_t now, heddle_error_t *error)
{
    txn_t *t = &b->txn;
    t->is_open = false;

    /* After a refused commit the broker is read-only, and tries again after COMMIT_RETRY_US.  A store whose
     * content is not known any more ends the process. */
    if (was_tried && b->state != BROKER_BROKEN) {
        broker_state_t before = b->state;
        if ((b->state == BROKER_READ_ONLY || t->has_turned_away) && !rc) rollout_resume(&b->rollout, now.us);
        if (b->state == BROKER_READY && rc) b->read_only_ms = now.wall_ms;
        if (rc) note_refusal(b, error);
        b->state = rc ? BROKER_READ_ONLY : BROKER_READY;
        if (b->state != before) note_store(b, rc, now);
    }
    if (!rc) rc = apply(b, now, error);
    else if (rc == HEDDLE_ERR_DATA_DIR) broker_end_broken(b, rc, NULL, error);
    /* A request that failed before the store was asked leaves nothing undecided.  The broker's own decisions
     * do: without a retry no event would lead to them again.  A further failure does not delay the retry. */
    bool leaves_undecided = rc && (was_tried || t->kind == TXN_OWN);
    if (leaves_undecided && !b->retry_us) b->retry_us = now.us + COMMIT_RETRY_US;
    if (rc) outbox_clear(b->out);
    if (b->state == BROKER_BROKEN) return;

    bool is_refused = rc && t->asker.peer && !t->is_answered;
    switch (t->kind) {
    case TXN_OWN:
        b->has_abandoned |= rc != HEDDLE_OK;
        if (rc) roster_touch(b, COMMIT_RETRY_US, now);
        break;
    case TXN_PUBLISH:
    case TXN_FORGET: break; /* PUBLISHED, or the report, is in the outbox */
    case TXN_LEAVE:
        b->has_abandoned |= rc != HEDDLE_OK;
        sessions_send_bye(b, &t->asker, t->token);
        is_refused = false;
        break;
    case TXN_ACTIVATE:
        query_activation_ended(b, t->question, rc ? error : NULL);
        is_refused = false;
        break;
    case TXN_KEY:
        if (!rc) keys_answer(b, t, now);
        break;
    case TXN_NUMBERS:
        if (!rc) take_numbers(b, now);
        /* fall through */
    case TXN_OPEN:
        if (rc && b->state == BROKER_READ_ONLY) open_note_refused(b, t->frame);
        break;
    }
    if (is_refused) broker_refuse_asker(b, &t->asker, error, t->retry_ms);
    free(t->frame);
    t->frame = NULL;
    broker_send_outbox(b);
    b->has_news = true;
}

/* Only one transaction is open at a time.  AGAIN: the store answers later, by broker_committed. */
int txn_commit(broker_t *b, const txn_t *txn, instant_t now, heddle_error_t *ret_error)
{
    outbox_t *out = b->out;
    int rc = HEDDLE_OK;
    *ret_error = (heddle_error_t){0};
    b->txn = *txn;
    b->txn.began_us = now.us;

    /* The answers must be complete before anything is recorded, because they cannot be taken back after it.
     * They also must own their bytes, because the event that they belong to ends before the commit may do. */
    if (out->unsendable) {
        rc = error_fail(ret_error, HEDDLE_ERR_INTERNAL, "the reply (%s) would be too large",
                        msg_name((int)out->unsendable));
        error_hint(ret_error, "nothing was changed; the broker's log has the reason");
        broker_note_unsendable(b);
    } else if (out->failed || !outbox_own(out)) {
        rc = error_fail(ret_error, HEDDLE_ERR_NO_MEMORY, "no memory for what this would change");
    }
    bool is_tried = !rc && out->record_count;
    if (is_tried)
        rc = FAILPOINT("broker.commit")
                 ? error_fail(ret_error, HEDDLE_ERR_NO_SPACE, "no space is left")
                 : b->io.commit(b->io.self, out->records, out->record_count, ret_error);

    /* An open transaction keeps its records and replies where they are.  Other events get the other outbox,
     * which is empty. */
    b->txn.is_open = is_tried && rc == HEDDLE_ERR_AGAIN;
    if (b->txn.is_open) {
        b->out = &b->outboxes[out == b->outboxes];
        return rc;
    }
    end_txn(b, rc, is_tried, now, ret_error);
    return b->state == BROKER_BROKEN ? ret_error->code : rc;
}

/* Rollouts that changed during the commit are undecided, and are looked at now. */
void broker_committed(broker_t *b, int rc, const heddle_error_t *error, instant_t now)
{
    owner_check(&b->owner);
    if (b->state == BROKER_BROKEN || !b->txn.is_open) return;
    heddle_error_t why = error ? *error : (heddle_error_t){0};
    b->out = &b->outboxes[b->out == b->outboxes];
    end_txn(b, rc, true, now, &why);
    if (!b->retry_us) rollout_look_again(&b->rollout);
    broker_go_on(b, now);
}

/* ---- requests that wait ---- */

/* Out of the queue; the caller frees it. */
static saved_frame_t *take(broker_t *b, saved_frame_t *r)
{
    DL_DELETE(b->waiting, r);
    b->waiting_count--;
    b->waiting_bytes -= r->bytes;
    return r;
}

/* The frame is copied, because the request is decoded again when its turn comes. */
saved_frame_t *txn_save_frame(const call_t *c)
{
    heddle_error_t error;
    saved_frame_t *r = malloc(sizeof *r + c->frame.bytes);
    if (!r) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "the broker has no memory for this request");
        broker_refuse(c, &error, c->b->opts.lease_ms / 4);
        return NULL;
    }
    *r = (saved_frame_t){.asker = c->asker, .deadline_us = c->deadline_us, .bytes = c->frame.bytes};
    if (c->again) r->recovery = c->again->recovery;
    memcpy(r->frame, c->frame.data, c->frame.bytes);
    return r;
}

/* A client that waits for WELCOME repeats its request every second, and accepts only the answer to the
 * latest.  So an earlier copy that still waits is dropped. */
static bool is_asked_again(const saved_frame_t *r, const asker_t *asker)
{
    return r->asker.peer == asker->peer && r->asker.type == asker->type &&
           (asker->type == MSG_OPEN || asker->type == MSG_JOIN);
}

/* The request waits until the open transaction has ended.  Its sender is alive, so its lease is renewed. */
void txn_defer(const call_t *c)
{
    broker_t *b = c->b;
    heddle_error_t error;
    saved_frame_t *r, *next;
    outbox_clear(b->out);
    if (c->peer->token)
        membership_received(&b->members, membership_by_token(&b->members, c->peer->token), c->now.us);
    /* The same OPEN arrives again while its record is being written.  WELCOME then answers the later copy. */
    if (b->txn.kind == TXN_OPEN && is_asked_again(b->txn.frame, &c->asker) &&
        open_is_same(b->txn.frame, &c->m->open)) {
        r = txn_save_frame(c);
        if (!r) return;
        free(b->txn.frame);
        b->txn.frame = r;
        b->txn.asker = r->asker;
        b->txn.is_answered = false;
        return;
    }
    DL_FOREACH_SAFE(b->waiting, r, next)
    if (is_asked_again(r, &c->asker)) free(take(b, r));
    if (b->waiting_count >= TXN_REQUESTS || b->waiting_bytes + c->frame.bytes > TXN_REQUEST_BYTES) {
        error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "too many requests wait for the registry's store");
        error_expected(&error, "at most %u requests, %u bytes", TXN_REQUESTS, TXN_REQUEST_BYTES);
        broker_refuse(c, &error, b->opts.lease_ms / 4);
        return;
    }
    r = txn_save_frame(c);
    if (!r) return;
    DL_APPEND(b->waiting, r);
    b->waiting_count++;
    b->waiting_bytes += r->bytes;
}

void txn_forget_waiting(broker_t *b, uint64_t peer)
{
    saved_frame_t *r, *next;
    DL_FOREACH_SAFE(b->waiting, r, next)
    {
        if (r->asker.peer == peer) free(take(b, r));
    }
}

bool txn_has_waiting(const broker_t *b, uint64_t peer)
{
    const saved_frame_t *r;
    DL_FOREACH(b->waiting, r)
    if (r->asker.peer == peer) return true;
    return b->txn.is_open && b->txn.asker.peer == peer;
}

void txn_handle_waiting(broker_t *b, instant_t now)
{
    saved_frame_t *r = take(b, b->waiting);
    heddle_error_t error;
    msg_t m;
    call_t c = {.b = b,
                .m = &m,
                .frame = bytes_of(r->frame, r->bytes),
                .from = r->asker.peer,
                .again = r,
                .now = now};
    if (msg_decode(c.frame, &m, &error) == HEDDLE_OK) {
        inbox_handle(&c);
        msg_fini(&m);
    } else { /* it was decoded when it was received, so memory is missing now */
        broker_refuse_asker(b, &r->asker, &error, b->opts.lease_ms / 4);
    }
    free(r);
}

/* ---- deadlines ---- */

/* Why the store does not confirm the open transaction; NULL: it has not said so. */
static const heddle_error_t *refusal_of(const broker_t *b)
{
    const brokers_t *brokers = b->io.brokers ? b->io.brokers(b->io.self) : NULL;
    return brokers ? brokers->refusal : NULL;
}

/* A publisher that opens repeats its request, so that no deadline of it ever comes: a reason ends it. */
static uint64_t waits_until_us(const broker_t *b, const asker_t *asker, uint64_t deadline_us)
{
    return asker->type == MSG_OPEN && refusal_of(b) ? 0 : deadline_us;
}

/* The answer says whether the request may still be recorded, because only then the client must ask with
 * the same request id. */
static void answer_late(broker_t *b, const asker_t *asker, bool is_under_way, instant_t now)
{
    heddle_error_t error;
    bool is_publish = asker->type == MSG_PUBLISH;
    unsigned long long open_ms = (now.us - b->txn.began_us) / 1000;
    const char *name = msg_name((int)asker->type);
    const heddle_error_t *refusal = refusal_of(b);
    const char *why = refusal ? refusal->message : "";
    bool has_reason = refusal && asker->type == MSG_OPEN;
    int code = is_publish ? HEDDLE_ERR_DEADLINE : has_reason ? refusal->code : HEDDLE_ERR_UNAVAILABLE;
    char waited[32] = ""; /* a reason does not wait */
    if (!has_reason) text_printf(waited, sizeof waited, " for %llu ms", open_ms);
    if (is_under_way)
        error_fail(&error, code, "the registry's store has not confirmed this %s%s%s%s", name, waited,
                   *why ? ": " : "", why);
    else
        error_fail(&error, code,
                   "this %s was not started: an earlier write has waited %llu ms for the store%s%s", name,
                   open_ms, *why ? ": " : "", why);
    error_where(&error, NULL, 0, NULL, is_publish ? "commit" : NULL);
    error_hint(&error, "%s",
               has_reason      ? refusal->hint
               : !is_under_way ? "nothing was recorded; try again"
               : is_publish
                   ? "it may still be recorded: publish again with the same opts.request_id to find out"
                   : "it may still be recorded; try again");
    broker_refuse_asker(b, asker, &error, is_publish ? 0 : b->opts.lease_ms / 4);
}

/* Of the one that began the open transaction. */
static uint64_t asker_waits_until_us(const broker_t *b)
{
    const txn_t *t = &b->txn;
    bool waits = t->is_open && t->asker.peer && t->deadline_us && !t->is_answered;
    return waits ? waits_until_us(b, &t->asker, t->deadline_us) : CLOCK_NEVER;
}

/* It is not there when the store goes on, and its versions wait for it then. */
static void turn_away(broker_t *b, const saved_frame_t *open)
{
    open_note_refused(b, open);
    b->txn.has_turned_away = true;
}

/* A transaction cannot be taken back, so only its answer is late.  Requests that have not begun are
 * dropped. */
void txn_end_late_waiting(broker_t *b, instant_t now)
{
    txn_t *t = &b->txn;
    if (!t->is_open) return;
    if (now.us >= asker_waits_until_us(b)) {
        t->is_answered = true;
        answer_late(b, &t->asker, true, now);
        if (t->asker.type == MSG_OPEN) turn_away(b, t->frame);
    }
    saved_frame_t *r, *next;
    DL_FOREACH_SAFE(b->waiting, r, next)
    {
        if (now.us < waits_until_us(b, &r->asker, r->deadline_us)) continue;
        answer_late(b, &r->asker, false, now);
        if (r->asker.type == MSG_OPEN) turn_away(b, r);
        free(take(b, r));
    }
}

uint64_t txn_waiting_deadline(const broker_t *b)
{
    uint64_t first = asker_waits_until_us(b);
    const saved_frame_t *r;
    DL_FOREACH(b->waiting, r)
    first = clock_earlier(first, waits_until_us(b, &r->asker, r->deadline_us));
    return first;
}
