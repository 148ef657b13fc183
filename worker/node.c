/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/node.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"

#include <stdlib.h>

enum { SETTLE_TURNS = 200, SETTLE_US = 100000 };

/* --- the application is told ------------------------------------------------------------------ */

void worker_node_tell(worker_node_t *n, heddle_event_t *event)
{
    event->size = sizeof *event;
    event->at_ms = clock_wall(n->io.clock);
    event->epoch = n->session.epoch;
    event->token = n->session.token;
    error_text(event->cluster, sizeof event->cluster, n->session.cluster);
    n->io.event(n->io.self, event);
}

void worker_node_tell_error(worker_node_t *n, int type, const heddle_error_t *error, int retriable)
{
    heddle_event_t event = {.type = type, .code = error->code, .retriable = retriable, .step = -1};
    memcpy(event.adapter, error->adapter, sizeof event.adapter);
    error_text(event.message, sizeof event.message, error->message);
    worker_node_tell(n, &event);
}

void worker_node_tell_refusal(worker_node_t *n, int retriable, uint64_t now_us)
{
    uint64_t times = repeat_note(&n->refusals, error_reason(&n->join_error) ^ (retriable != 0), now_us);
    heddle_event_t event = {.type = HEDDLE_EVENT_REFUSED, .code = n->join_error.code,
                            .retriable = retriable, .step = -1, .repeat_count = times};
    error_text(event.message, sizeof event.message, n->join_error.message);
    if (times) worker_node_tell(n, &event);
}

/* Why a version failed here: what sync said, or the broker. */
static const heddle_error_t *reason_of(adapter_t *a, uint64_t version, int code)
{
    const sync_nack_t *nack = sync_nack(&a->sync, version, SYNC_ANY_DECISION);
    if (nack && nack->error.code == code) return &nack->error;
    return a->error.code == code ? &a->error : NULL;
}

static bool is_staging(int event) { return event == HEDDLE_EVENT_FETCHING || event == HEDDLE_EVENT_STAGED; }

static void offer(worker_node_t *n, adapter_t *a, const sync_action_t *action)
{
    if (n->opts.omits_staging && is_staging(action->event)) return;
    const announced_t *w = announced_find(a, action->version);
    heddle_event_t event = {.type = action->event,
                            .version = action->version,
                            .decision = action->decision,
                            .code = action->err,
                            .step = w ? w->step : -1,
                            .data_bytes = w ? w->data_bytes : 0};
    error_text(event.adapter, sizeof event.adapter, a->name);
    digest_text(&action->digest, event.digest);
    tag_text(a->name, action->version, &action->digest, event.tag);
    const heddle_error_t *why = action->err ? reason_of(a, action->version, action->err) : NULL;
    if (action->err)
        error_text(event.message, sizeof event.message, why ? why->message : heddle_err_text(action->err));
    if (why) event.retriable = why->retriable;
    worker_node_tell(n, &event);
}

static void tell_fetching(worker_node_t *n, adapter_t *a, const announced_t *w)
{
    sync_action_t action = {
        .kind = SA_OFFER, .event = HEDDLE_EVENT_FETCHING, .version = w->version, .digest = w->h1};
    offer(n, a, &action);
}

/* --- slots ------------------------------------------------------------------------------------ */

static void answer(adapter_t *a, sync_event_kind_t kind, uint64_t version)
{
    a->has_answer = true;
    a->answer = (sync_event_t){.kind = kind, .version = version, .error = &a->error};
}

int worker_node_check(const worker_node_t *n, heddle_error_t *error)
{
    return n->opts.check ? n->opts.check(error) : HEDDLE_OK;
}

/* A sealed slot with the same arena, of another version, that is not known to be damaged; NULL: none. */
static slot_t *find_equal(const worker_node_t *n, const adapter_t *a, const announced_t *w)
{
    for (const announced_t *other = a->announced; other; other = other->next) {
        const sync_entry_t *e = other == w ? NULL : sync_find(&a->sync, other->version);
        bool is_equal = digest_equal(&other->h1, &w->h1) && other->region_bytes == w->region_bytes &&
                        other->manifest_bytes == w->manifest_bytes &&
                        digest_equal(&other->manifest_digest, &w->manifest_digest);
        if (!e || !is_equal || !sync_is_held(e)) continue;
        slot_t *slot = slots_at(n->slots, a->index, (uint32_t)e->slot);
        if (slot && !slot->is_damaged) return slot;
    }
    return NULL;
}

/* The bytes were verified when they came, and memory may have gone bad since: hashed again, 1 MiB a turn.
 * OK, AGAIN; DIGEST_MISMATCH: the version has to be fetched. */
static int check_equal(worker_node_t *n, adapter_t *a, slot_t *equal, const announced_t *w)
{
    check_t *c = &a->equal;
    uint64_t version = atomic_load(&equal->version), end = equal->manifest.region_bytes;
    if (!a->making.version || c->version != version) {
        *c = (check_t){.version = version};
        manifest_h1_begin(&equal->manifest, &c->h);
    }
    c->slot = equal;
    for (int piece = 0; piece < 4 && c->at < end; piece++) check_work(c, n->io.clock);
    if (c->at < end) return HEDDLE_ERR_AGAIN;
    const uint8_t *view = equal->region->view;
    digest_t manifest = digest_blake2b(view + manifest_offset(w->region_bytes), w->manifest_bytes);
    if (!digest_equal(&manifest, &w->manifest_digest)) equal->is_damaged = true;
    if (!equal->is_damaged) return HEDDLE_OK;
    log_emit(LOG_ERROR, "slot.damaged",
             "the memory of %s@%llu no longer has its digest: version %llu of the same content is fetched",
             a->name, (unsigned long long)version, (unsigned long long)w->version);
    return HEDDLE_ERR_DIGEST_MISMATCH;
}

/* What is written ahead of its announcement needs its memory until then.  `slot`: where that comes to;
 * -1: it is not needed. */
static void leave_early(worker_node_t *n, adapter_t *a, const announced_t *w, int slot)
{
    const slot_t *early = a->early.slot;
    if (!early || (early->index == (uint32_t)slot && early->region->bytes >= announced_bytes(w))) return;
    early_end(&a->early, &n->io);
    a->has_surplus = true;
}

/* Memory is made piece by piece: touching it takes long, and the loop has a lease to keep. */
static void reserve(worker_node_t *n, adapter_t *a, const sync_action_t *action)
{
    const announced_t *w = announced_find(a, action->version);
    slot_t *slot;
    int rc = !w                  ? error_fail(&a->error, HEDDLE_ERR_INTERNAL, "the announcement is missing")
             : a->making.version ? HEDDLE_OK
                                 : worker_node_check(n, &a->error);
    if (!rc && FAILPOINT("worker.reserve"))
        rc = error_fail(&a->error, HEDDLE_ERR_NO_MEMORY, "no memory for a slot");
    slot_t *equal = rc ? NULL : find_equal(n, a, w);
    while (equal && (rc = check_equal(n, a, equal, w)) == HEDDLE_ERR_DIGEST_MISMATCH)
        equal = find_equal(n, a, w);
    if (!equal && rc == HEDDLE_ERR_DIGEST_MISMATCH) rc = HEDDLE_OK;
    if (!rc) leave_early(n, a, w, equal ? -1 : action->slot);
    if (!rc && equal) rc = slots_adopt(n->slots, equal, (uint32_t)action->slot, &slot, &a->error);
    else if (!rc)
        rc = slots_reserve(n->slots, a->index, (uint32_t)action->slot, announced_bytes(w), &slot, &a->error);
    a->making = rc == HEDDLE_ERR_AGAIN ? *action : (sync_action_t){.version = 0};
    if (rc == HEDDLE_ERR_AGAIN) return;    /* goes on in worker_node_ops.work */
    if (rc) error_where(&a->error, a->name, action->version, n->opts.name, "announce");
    answer(a, rc ? SY_NO_SLOT : SY_SLOT, action->version);
}

/* Shares the slot before a byte is there: whoever asks early waits here, and is served as chunks turn out
 * good. */
static int share_slot(worker_node_t *n, adapter_t *a, slot_t *slot, const announced_t *w)
{
    int rc =
        FAILPOINT("worker.share") ? HEDDLE_ERR_NO_MEMORY : n->io.tr->share(n->io.t, slot->region, w->key);
    bool is_told = rc == HEDDLE_ERR_NO_MEMORY || rc == HEDDLE_ERR_LIMIT;
    if (rc)
        return error_fail(&a->error, is_told ? rc : HEDDLE_ERR_INTERNAL, "the slot cannot be shared: %s",
                          heddle_err_text(rc));
    a->shares[slot->index].key = w->key;
    a->shares[slot->index].shared = true;
    return HEDDLE_OK;
}

/* What is fetched after its decision is fetched late: later decisions may overtake it, and the broker keeps a
 * version that somebody says he is at. */
static void say_late(worker_node_t *n, const adapter_t *a, uint64_t version)
{
    const sync_entry_t *e = sync_find(&a->sync, version);
    if (n->up && e && e->decision > a->sync.applied.decision) say_heartbeat(n);
}

/* Nothing is fetched: the bytes are those of another version, and were just verified (check_equal). */
static int seal_adopted(worker_node_t *n, announced_t *w, slot_t *slot, uint64_t now_us,
                        heddle_error_t *error)
{
    const uint8_t *view = slot->region->view;
    manifest_t manifest = {0};
    int rc = manifest_decode(bytes_of(view + manifest_offset(w->region_bytes), w->manifest_bytes), &manifest,
                             error);
    if (rc) return rc;
    seal_t seal = {.version = w->version, .h1 = w->h1, .step = w->step, .manifest = &manifest};
    rc = slot_seal(slot, &seal);
    manifest_fini(&manifest);
    if (!rc) rc = n->io.tr->extend(n->io.t, w->key, 0, announced_bytes(w));
    if (rc) return error_fail(error, rc, "the slot cannot be sealed: %s", heddle_err_text(rc));
    w->connect_us = w->fetch_us = w->verify_us = 0;
    w->served_count = 0;
    w->sealed_us = now_us;
    return HEDDLE_OK;
}

static void start_pull(worker_node_t *n, adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    announced_t *w = (announced_t *)announced_find(a, action->version);
    slot_t *slot = slots_at(n->slots, a->index, (uint32_t)action->slot);
    int rc = share_slot(n, a, slot, w);
    if (!rc && slot->is_adopted) {
        rc = seal_adopted(n, w, slot, now_us, &a->error);
        if (rc) error_where(&a->error, a->name, action->version, n->opts.name, "fetch");
        answer(a, rc ? SY_FETCH_FAILED : SY_FETCHED, action->version);
        return;
    }
    if (!rc && FAILPOINT("worker.pull"))
        rc = error_fail(&a->error, HEDDLE_ERR_NO_MEMORY, "no memory for a fetch");
    if (!rc && pull_new(&n->io, w, slot, &a->early, &n->counters, now_us, &a->pull))
        rc = error_fail(&a->error, HEDDLE_ERR_NO_MEMORY, "no memory for a fetch");
    unreached_begin(&a->unreached);
    if (!rc) {
        tell_fetching(n, a, w);
        say_late(n, a, action->version);
        return;
    }
    error_where(&a->error, a->name, action->version, n->opts.name, "fetch");
    answer(a, SY_FETCH_FAILED, action->version);
}

static void drop(worker_node_t *n, adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    slot_t *slot = slots_at(n->slots, a->index, (uint32_t)action->slot);
    if (slot) slot_drop(slot, now_us);
    if (a->making.slot == action->slot) a->making.version = 0;
    if (a->shares[action->slot].shared) n->io.tr->unshare(n->io.t, a->shares[action->slot].key);
}

/* Nobody reads the slot, nothing of it is being sent, nothing can be written into it. */
static bool is_drained(const worker_node_t *n, const adapter_t *a, const slot_t *slot)
{
    bool is_asked_for = a->pull && pull_slot(a->pull) == slot;
    return slot_is_unread(slot) && !a->shares[slot->index].shared && !is_asked_for &&
           n->io.tr->idle(n->io.t, slot->region);
}

void worker_node_drain(worker_node_t *n, adapter_t *a, uint64_t now_us)
{
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        if (e->state != SYNC_LEAVING) continue;
        slot_t *slot = slots_at(n->slots, a->index, (uint32_t)e->slot);
        if (slot && slot->state != SLOT_FREE && !is_drained(n, a, slot)) continue;
        if (slot) slot_free(slot);
        a->has_surplus = true;
        worker_node_feed(n, a, &(sync_event_t){.kind = SY_DRAINED, .slot = e->slot}, now_us);
    }
}

/* --- sync's actions --------------------------------------------------------------------------- */

static void flip(worker_node_t *n, adapter_t *a, const sync_action_t *action)
{
    (void)FAILPOINT("worker.before_flip");
    slots_activate(n->slots, slots_at(n->slots, a->index, (uint32_t)action->slot));
    (void)FAILPOINT("worker.after_flip");
}

static void send_nack(worker_node_t *n, adapter_t *a, const sync_action_t *action)
{
    sync_nack_t *nack = sync_nack(&a->sync, action->version, action->decision);
    if (nack && say_nack(n, a, nack->version, nack->decision, &nack->error))
        nack->pending = true; /* after the next WELCOME */
}

static void execute(worker_node_t *n, adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    bool fails =
        action->kind == SA_SEND_NACK || (action->kind == SA_OFFER && action->event == HEDDLE_EVENT_FAILED);
    sync_nack_t *why = fails ? sync_nack(&a->sync, action->version, SYNC_ANY_DECISION) : NULL;
    if (why && why->error.code == HEDDLE_ERR_NO_SLOT && !why->error.hint[0])
        describe_slots(n, a, why->version, &why->error, now_us);
    switch (action->kind) {
    case SA_RESERVE: reserve(n, a, action); break;
    case SA_FETCH: start_pull(n, a, action, now_us); break;
    case SA_RESOURCE:
        if (a->pull) pull_resource(a->pull, now_us);
        break;
    case SA_CANCEL: pull_destroy(&a->pull); break;
    case SA_SEND_STAGED: say_staged(n, a, action, now_us); break;
    case SA_SEND_ACTIVE: say_active(n, a, action, now_us); break;
    case SA_SEND_NACK: send_nack(n, a, action); break;
    case SA_OFFER: offer(n, a, action); break;
    case SA_FLIP: flip(n, a, action); break;
    case SA_KEEP: break;    /* the flip left it in its slot */
    case SA_DROP: drop(n, a, action, now_us); break;
    }
}

/* Announcements of versions that sync has nothing to do with any more. */
static void forget_announced(adapter_t *a)
{
    for (announced_t **at = &a->announced; *at;) {
        announced_t *w = *at;
        if (sync_find(&a->sync, w->version) || (a->pull && pull_what(a->pull) == w)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free(w);
    }
}

static int step(worker_node_t *n, adapter_t *a, const sync_event_t *event, uint64_t now_us)
{
    sync_action_t actions[SYNC_ACTIONS_MAX];
    int count = sync_step(&a->sync, event, now_us, actions);
    for (int i = 0; i < count; i++) execute(n, a, &actions[i], now_us);
    return count < 0 ? count : HEDDLE_OK;
}

static void feed_answers(worker_node_t *n, adapter_t *a, uint64_t now_us)
{
    while (a->has_answer) {
        sync_event_t next = a->answer;
        a->has_answer = false;
        step(n, a, &next, now_us);
    }
    forget_announced(a);
}

static int feed_result(worker_node_t *n, adapter_t *a, const sync_event_t *event, uint64_t now_us)
{
    int rc = step(n, a, event, now_us);
    feed_answers(n, a, now_us);
    return rc;
}

void worker_node_feed(worker_node_t *n, adapter_t *a, const sync_event_t *event, uint64_t now_us)
{
    feed_result(n, a, event, now_us);
}

/* Asks for other sources; true when it is of no use any more: a->error tells why. */
static bool is_out_of_reach(worker_node_t *n, adapter_t *a, uint64_t now_us)
{
    uint64_t version = pull_what(a->pull)->version, lost[LIMIT_SOURCES * 2];
    uint32_t count;
    if (!pull_needs_sources(a->pull, lost, LIMIT_SOURCES * 2, &count) || !n->up) return false;
    say_need_sources(n, a, version, lost, count);
    const sync_entry_t *e = sync_find(&a->sync, version);
    uint64_t deadline_us = e && e->deadline_us != CLOCK_NEVER ? e->deadline_us - SYNC_GRACE_US : CLOCK_NEVER;
    if (!unreached_look(&a->unreached, &n->io, a->pull, lost, count, deadline_us, now_us)) return false;
    a->error = a->unreached.error;
    return true;
}

/* Its next version may come early. */
static void note_publisher(adapter_t *a)
{
    const announced_t *w = pull_what(a->pull);
    for (uint32_t i = 0; i < w->source_count; i++) {
        const source_t *s = &w->sources[i];
        if (s->kind == SOURCE_PUBLISHER && s->token == pull_source(a->pull)) a->early.publisher = *s;
    }
}

/* What a pull has come to. */
static void look_at_pull(worker_node_t *n, adapter_t *a, uint64_t now_us)
{
    if (!a->pull) return;
    uint64_t version = pull_what(a->pull)->version;
    pull_state_t state = is_out_of_reach(n, a, now_us) ? PULL_FAILED : pull_state(a->pull);
    if (state != PULL_DONE && state != PULL_FAILED) return;
    if (pull_state(a->pull) == PULL_FAILED) a->error = *pull_error(a->pull);
    if (state == PULL_DONE) note_publisher(a);
    pull_destroy(&a->pull);
    error_where(&a->error, a->name, version, n->opts.name, NULL);
    worker_node_feed(n, a,
         &(sync_event_t){.kind = state == PULL_DONE ? SY_FETCHED : SY_FETCH_FAILED,
                         .version = version,
                         .error = &a->error},
         now_us);
}

/* --- node_ops --------------------------------------------------------------------------------- */

static void node_line(void *self, bool up, uint64_t now_us)
{
    owner_check(((worker_node_t *)self)->io.owner);
    worker_node_step(self, up ? SE_LINE_UP : SE_LINE_DOWN, NULL, now_us);
}

static void note_bad_frame(worker_node_t *n, const char *why, uint64_t now_us)
{
    char scratch[REPEAT_TEXT];
    uint64_t times = repeat_note(&n->bad_frames, 0, now_us);
    if (times)
        log_emit(LOG_WARN, "worker.frame", "a frame from the broker was dropped: %s%s", why,
                 repeat_text(times, scratch));
}

static void node_frame(void *self, bytes_t frame, uint64_t now_us)
{
    owner_check(((worker_node_t *)self)->io.owner);
    worker_node_t *n = self;
    msg_t m;
    heddle_error_t error;
    int rc = msg_decode(frame, &m, &error);
    if (!rc && FAILPOINT_OF("worker.frame", msg_name((int)m.type))) {
        msg_fini(&m);
        rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for it");
    }
    if (rc) note_bad_frame(n, error.message, now_us);
    if (rc == HEDDLE_ERR_NO_MEMORY) n->io.redial(n->io.self); /* a WELCOME tells all of it anew */
    if (rc) return;
    worker_node_step(self, SE_FRAME, &m, now_us);
    msg_fini(&m);
}

static void on_unshared(worker_node_t *n, const share_key_t *key, uint64_t now_us)
{
    for (uint32_t i = 0; i < n->adapter_count; i++)
        for (uint32_t slot = 0; slot < LIMIT_SLOTS; slot++) {
            adapter_t *a = &n->adapters[i];
            if (!a->shares[slot].shared || memcmp(&a->shares[slot].key, key, sizeof *key) != 0) continue;
            a->shares[slot].shared = false;
            worker_node_drain(n, a, now_us);
        }
}

/* While another version comes, or memory for one is made, the line is that one's. */
static void hear_early(worker_node_t *n, adapter_t *a, const tr_event_t *event)
{
    const slot_t *before = a->early.slot;
    if (n->up && !a->pull && !a->making.version)
        early_heard(&a->early, &n->io, event, slots_next(n->slots, a->index));
    if (a->early.slot != before) a->has_surplus = true;    /* the memory of the one before */
}

static void node_transfer(void *self, const tr_event_t *event, uint64_t now_us)
{
    owner_check(((worker_node_t *)self)->io.owner);
    worker_node_t *n = self;
    if (event->kind == TR_UNSHARED) {
        on_unshared(n, &event->key, now_us);
        return;
    }
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        if (event->kind == TR_EARLY) hear_early(n, &n->adapters[i], event);
        else early_transfer(&n->adapters[i].early, &n->io, event);
        if (!n->adapters[i].pull) continue;
        unreached_hear(&n->adapters[i].unreached, n->adapters[i].pull, event);
        pull_transfer(n->adapters[i].pull, event, now_us);
        look_at_pull(n, &n->adapters[i], now_us);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A version waits for a slot: a heartbeat lists the kept ones that may go, and the broker retires one of them
 * here.  Returns when to look again: a reader that lets go of a kept version does not wake this thread. */
static uint64_t ask_for_room(worker_node_t *n, adapter_t *a, uint64_t now_us)
{
    uint64_t spare[LIMIT_SLOTS];
    if (!sync_lacks_slot(&a->sync)) return CLOCK_NEVER;
    if (now_us < a->room_us) return a->room_us;
    a->room_us = now_us + ROOM_AGAIN_US;
    if (list_spare(n, a, now_us, spare)) say_heartbeat(n);
    return a->room_us;
}

static uint64_t tick_adapter(worker_node_t *n, adapter_t *a, uint64_t now_us)
{
    uint64_t next = CLOCK_NEVER;
    worker_node_drain(n, a, now_us);
    if (now_us >= sync_deadline(&a->sync)) {
        worker_node_feed(n, a, &(sync_event_t){.kind = SY_TICK}, now_us);
        worker_node_drain(n, a, now_us);    /* memory that was being made is free at once */
    }
    if (a->pull) next = pull_tick(a->pull, now_us);
    look_at_pull(n, a, now_us);
    next = earlier(next, ask_for_room(n, a, now_us));
    return earlier(next, sync_deadline(&a->sync));
}

/* `err`: what is wrong with the application's copy but its bytes; OK: nothing. */
static void answer_check(worker_node_t *n, check_t *check, exported_t exported, int err)
{
    say_verified(n, check->adapter,
                 &(msg_verified_t){.req = check->req,
                                   .version = check->version,
                                   .hash_us = check->hash_us,
                                   .exported = exported,
                                   .code = err ? heddle_err_name(err) : NULL,
                                   .digest = check->found});
    check_end(check);
}

static void give_up_joining(worker_node_t *n, uint64_t now_us)
{
    n->join_end_us = CLOCK_NEVER;
    worker_node_tell_refusal(n, 0, now_us);
    worker_node_leave(n, now_us);
}

static uint64_t node_tick(void *self, uint64_t now_us)
{
    owner_check(((worker_node_t *)self)->io.owner);
    worker_node_t *n = self;
    worker_node_step(n, SE_TICK, NULL, now_us);
    if (now_us >= n->join_end_us) give_up_joining(n, now_us);
    uint64_t unjoined_us = worker_node_report_unjoined(n, now_us);
    for (check_t *check; (check = checks_overdue(&n->checks, now_us));)
        answer_check(n, check, EXPORTED_UNKNOWN, HEDDLE_OK);
    uint64_t next = earlier(earlier(n->join_end_us, unjoined_us), checks_deadline(&n->checks));
    for (uint32_t i = 0; i < n->adapter_count; i++)
        next = earlier(next, tick_adapter(n, &n->adapters[i], now_us));
    return earlier(next, session_deadline(&n->session));
}

static void hash_piece(worker_node_t *n, check_t *check, uint64_t now_us)
{
    if (!check_work(check, n->io.clock)) return;
    if (!n->opts.answers_verify) {
        answer_check(n, check, EXPORTED_UNKNOWN, HEDDLE_OK);
        return;
    }
    check->state = CHECK_ASKING;
    check->deadline_us = now_us + CHECK_ANSWER_US;
    sync_action_t action = {.kind = SA_OFFER,
                            .event = HEDDLE_EVENT_VERIFY,
                            .version = check->version,
                            .digest = check->slot->h1};
    offer(n, &n->adapters[check->adapter], &action);
}

static adapter_t *next_to_work(worker_node_t *n)
{
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        adapter_t *a = &n->adapters[(n->turn + i) % n->adapter_count];
        if (a->making.version || (a->pull && pull_has_work(a->pull)) || a->has_surplus) return a;
    }
    return NULL;
}

/* A piece of memory, a digest, or a piece of memory given back: in this order, so that what is wanted next
 * is not given back first. */
static void work_for(worker_node_t *n, adapter_t *a, uint64_t now_us)
{
    if (a->making.version) {
        sync_action_t making = a->making;
        reserve(n, a, &making);
        feed_answers(n, a, now_us);
        return;
    }
    if (!a->pull || !pull_has_work(a->pull)) {
        a->has_surplus = slots_trim(n->slots, a->index, a->early.slot);
        return;
    }
    pull_work(a->pull, now_us);
    look_at_pull(n, a, now_us);
}

/* One piece: of an adapter in turn, else of a check. */
static bool node_work(void *self, uint64_t now_us)
{
    owner_check(((worker_node_t *)self)->io.owner);
    worker_node_t *n = self;
    adapter_t *a = next_to_work(n);
    check_t *check = a ? NULL : checks_hashing(&n->checks);
    if (a) {
        n->turn = a->index + 1;
        work_for(n, a, now_us);
    } else if (check) {
        hash_piece(n, check, now_us);
    }
    return next_to_work(n) || checks_hashing(&n->checks);
}

static void node_refused(void *self, const heddle_error_t *why, uint64_t now_us)
{
    owner_check(((worker_node_t *)self)->io.owner);
    worker_node_t *n = self;
    n->join_error = *why;
    worker_node_tell_refusal(n, 1, now_us);
}

const node_ops_t worker_node_ops = {.line = node_line,
                                    .refused = node_refused,
                                    .frame = node_frame,
                                    .transfer = node_transfer,
                                    .tick = node_tick,
                                    .work = node_work};

/* --- the application's words ------------------------------------------------------------------ */

int worker_node_staged(worker_node_t *n, uint32_t adapter, uint64_t version, uint64_t now_us)
{
    owner_check(n->io.owner);
    return feed_result(n, &n->adapters[adapter], &(sync_event_t){.kind = SY_APP_STAGED, .version = version},
                       now_us);
}

int worker_node_activate(worker_node_t *n, uint32_t adapter, uint64_t version, uint64_t now_us)
{
    owner_check(n->io.owner);
    int rc = feed_result(n, &n->adapters[adapter],
                         &(sync_event_t){.kind = SY_APP_ACTIVATE, .version = version}, now_us);
    worker_node_drain(n, &n->adapters[adapter], now_us);
    return rc;
}

int worker_node_reject_error(worker_node_t *n, uint32_t adapter, uint64_t version,
                             const heddle_error_t *why, uint64_t now_us)
{
    owner_check(n->io.owner);
    adapter_t *a = &n->adapters[adapter];
    const sync_entry_t *e = sync_find(&a->sync, version);
    const char *phase = e && e->decision > a->sync.applied.decision ? "activate" : "stage";
    heddle_error_t error = *why;
    error_where(&error, a->name, version, n->opts.name, why->phase[0] ? NULL : phase);
    int rc = feed_result(n, a, &(sync_event_t){.kind = SY_APP_REJECT, .version = version, .error = &error},
                         now_us);
    worker_node_drain(n, a, now_us);
    return rc;
}

int worker_node_reject(worker_node_t *n, uint32_t adapter, uint64_t version, const char *reason,
                       uint64_t now_us)
{
    heddle_error_t why;
    error_fail(&why, HEDDLE_ERR_VERSION_FAILED, "%s", reason);
    return worker_node_reject_error(n, adapter, version, &why, now_us);
}

int worker_node_verified(worker_node_t *n, uint32_t adapter, uint64_t version, const digest_t *digest,
                         uint64_t now_us)
{
    owner_check(n->io.owner);
    (void)now_us;
    check_t *check = checks_asking(&n->checks, adapter, version);
    if (!check) return HEDDLE_ERR_NOT_FOUND;
    answer_check(n, check,
                 !digest                                  ? EXPORTED_UNKNOWN
                 : digest_equal(digest, &check->slot->h1) ? EXPORTED_MATCH
                                                          : EXPORTED_DIFFERS,
                 HEDDLE_OK);
    return HEDDLE_OK;
}

int worker_node_copy_missing(worker_node_t *n, uint32_t adapter, uint64_t version, uint64_t now_us)
{
    owner_check(n->io.owner);
    (void)now_us;
    check_t *check = checks_asking(&n->checks, adapter, version);
    if (!check) return HEDDLE_ERR_NOT_FOUND;
    answer_check(n, check, EXPORTED_DIFFERS, HEDDLE_ERR_NOT_FOUND);
    return HEDDLE_OK;
}

void worker_node_leave(worker_node_t *n, uint64_t now_us)
{
    owner_check(n->io.owner);
    worker_node_step(n, SE_LEAVE, NULL, now_us);
}

/* --- life ------------------------------------------------------------------------------------- */

static void wake(void *self) { worker_node_t *n = self; n->opts.wake(n->opts.wake_self); }
static int map(void *self, region_t *r) { worker_node_t *n = self; return n->io.tr->map(n->io.t, r); }

/* What a stopped source may still write into must outlive the transfer: nobody can tell here when that
 * ends. */
static void unmap(void *self, region_t *r)
{
    worker_node_t *n = self;
    if (n->io.tr->idle(n->io.t, r)) {
        n->io.tr->unmap(n->io.t, r);
        return;
    }
    log_emit(LOG_WARN, "worker.region", "%zu bytes are not given back: a receive into them is open",
             r->bytes);
    region_ref(r);
}

int worker_node_new(const worker_opts_t *opts, const node_io_t *io, worker_node_t **ret_node)
{
    worker_node_t *n = calloc(1, sizeof *n + opts->adapter_count * sizeof *n->adapters);
    if (!n) return HEDDLE_ERR_NO_MEMORY;
    n->opts = *opts;
    n->io = *io;
    n->join_end_us = CLOCK_NEVER;
    n->unjoined_us = opts->broker ? 0 : CLOCK_NEVER;
    slots_ops_t ops = {.self = n, .wake = wake, .map = map, .unmap = unmap, .owner = io->owner};
    if (slots_new(opts->adapters, opts->adapter_count, &ops, &n->slots)) goto fail;
    n->adapter_count = opts->adapter_count;
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        n->adapters[i].index = i;
        n->adapters[i].name = slots_adapter(n->slots, i);
        sync_init(&n->adapters[i].sync, opts->app);
    }
    session_init(&n->session, &(session_opts_t){.role = ROLE_WORKER,
                                                .life = opts->life,
                                                .host = opts->host,
                                                .pid = opts->pid,
                                                .seed = opts->seed});
    *ret_node = n;
    return HEDDLE_OK;
fail:
    worker_node_destroy(&n);
    return HEDDLE_ERR_NO_MEMORY;
}

static void end_adapter(worker_node_t *n, adapter_t *a)
{
    pull_destroy(&a->pull);
    early_end(&a->early, &n->io);
    for (uint32_t slot = 0; slot < LIMIT_SLOTS; slot++)
        if (a->shares[slot].shared) n->io.tr->unshare(n->io.t, a->shares[slot].key);
}

static void free_announced(adapter_t *a)
{
    while (a->announced) {
        announced_t *w = a->announced;
        a->announced = w->next;
        free(w);
    }
}

static bool is_idle(const worker_node_t *n, const adapter_t *a)
{
    for (uint32_t i = 0; i < LIMIT_SLOTS; i++) {
        const slot_t *slot = slots_at(n->slots, a->index, i);
        if (slot && slot->region && !n->io.tr->idle(n->io.t, slot->region)) return false;
    }
    return true;
}

/* By force: what it was asked for ends, come or not. */
static bool drop_sources(worker_node_t *n, const adapter_t *a)
{
    if (is_idle(n, a)) return false;
    for (const announced_t *w = a->announced; w; w = w->next)
        for (uint32_t i = 0; i < w->source_count; i++) n->io.tr->drop_peer(n->io.t, w->sources[i].token);
    return true;
}

/* Lets what is in flight land or leave before the memory is unregistered; a peer that does not move is not
 * waited for. */
static void settle_transfer(worker_node_t *n)
{
    tr_event_t events[16];
    uint64_t end_us = clock_now(n->io.clock) + SETTLE_US;
    for (int turn = 0; turn < SETTLE_TURNS && clock_now(n->io.clock) < end_us; turn++)
        n->io.tr->events(n->io.t, clock_now(n->io.clock), events, 16);
}

static void end_transfers(worker_node_t *n)
{
    bool dropped = false;
    settle_transfer(n);
    for (uint32_t i = 0; i < n->adapter_count; i++) dropped = drop_sources(n, &n->adapters[i]) || dropped;
    if (dropped) settle_transfer(n);
    slots_unmap_all(n->slots);
}

void worker_node_destroy(worker_node_t **node)
{
    worker_node_t *n = node ? *node : NULL;
    if (!n) return;
    *node = NULL;
    owner_check(n->io.owner);
    checks_fini(&n->checks);
    for (uint32_t i = 0; i < n->adapter_count; i++) end_adapter(n, &n->adapters[i]);
    if (n->slots) end_transfers(n);
    for (uint32_t i = 0; i < n->adapter_count; i++) free_announced(&n->adapters[i]);
    slots_close(&n->slots);
    buf_fini(&n->frame);
    free(n);
}
