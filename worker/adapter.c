/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/adapter.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"

#include <inttypes.h>
#include <stdlib.h>

/* NULL for an entry without a slot, and for a slot that was never reserved. */
static slot_t *slot_of(const adapter_t *a, int slot)
{
    return slot < 0 ? NULL : slots_at(a->core->slots, a->index, (uint32_t)slot);
}

/* Sync does not pick a slot by itself: the table knows which one is free. */
static sync_slots_t look_at_slots(const adapter_t *a)
{
    const download_t *p = a->download;
    sync_slots_t view = {.next = slots_next_free(a->core->slots, a->index),
                         .is_half_fetched = p && p->bytes_done >= p->part->region_bytes / 2};
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        if (!slot) break; /* slots are made in the order of their index */
        if (slot->state == SLOT_LEAVING) view.leaving[view.leaving_count++] = slot->taken_for;
    }
    return view;
}

/* --- what is said: to the application and to the broker --------------------------------------- */

/* The event carries the reason of a failure, since the application cannot ask for it later. */
void adapter_tell(adapter_t *a, const sync_action_t *action)
{
    const announced_t *w = action->what;
    bool is_staging = action->event == HEDDLE_EVENT_FETCHING || action->event == HEDDLE_EVENT_STAGED;
    if (a->core->opts.omits_staging && is_staging) return;
    heddle_event_t event = {.type = action->event,
                            .version = action->version,
                            .decision = action->decision,
                            .code = action->err,
                            .step = w ? w->step : -1,
                            .data_bytes = w ? w->data_bytes : 0};
    error_text(event.adapter, sizeof event.adapter, a->name);
    digest_text(&action->digest, event.digest);
    tag_text(a->name, action->version, &action->digest, event.tag);
    if (action->err) { /* A failure here, which sync remembers, or the reason that the broker gave. */
        const sync_nack_t *nack = sync_nack(&a->sync, action->version, SYNC_ANY_DECISION);
        const heddle_error_t *why = nack ? &nack->error : NULL;
        if (!why || why->code != action->err) why = action->why;
        error_text(event.message, sizeof event.message, why ? why->message : heddle_err_text(action->err));
        event.retriable = why ? why->retriable : 0;
    }
    member_tell(&a->core->member, &event);
}

/* In messages 0 stands for "not known", but work that began and ended within one turn takes 0 by the
 * turn's clock. It is reported as 1 microsecond. */
static uint64_t took(uint64_t us) { return us ? us : 1; }

/* The application loads one version after the other: of one that arrived meanwhile the loading begins when it
 * has answered for the one before. */
static uint64_t loading_from(const adapter_t *a, const announced_t *w)
{
    return a->answered_us > w->sealed_us ? a->answered_us : w->sealed_us;
}

/* STAGED, ACTIVE or NACK; `why`: of a NACK. They are sent once: a lost one would be missing at the broker
 * until the worker joins again, so the next heartbeat makes it join. Operators see times, sources and
 * reasons at the broker, because they cannot see this worker's log. */
static int send_outcome(adapter_t *a, const sync_action_t *action, const heddle_error_t *why, uint64_t now_us)
{
    announced_t *w = action->what;
    const node_io_t *io = a->core->io;
    uint64_t token = a->core->member.session.token;
    bool has_times = w && w->sealed_us; /* not of a version that was staged before the process began */
    msg_served_t rows[ANNOUNCED_SERVED_MAX];
    msg_t m = {0};
    if (action->kind == SA_SEND_STAGED) {
        tr_counters_t c;
        io->tr->counters(io->t, &c);
        m.type = MSG_STAGED;
        m.staged = (msg_staged_t){.verified = VERIFIED_HERE,
                                  .bytes_in = c.bytes_in,
                                  .bytes_out = c.bytes_out,
                                  .chunks_bad = a->core->counters.chunks_bad,
                                  .retries = a->core->counters.retries,
                                  .token = token,
                                  .version = action->version,
                                  .adapter = a->name,
                                  .digest = action->digest,
                                  .sources = rows};
        if (has_times) {
            m.staged.connect_us = took(w->connect_us);
            m.staged.fetch_us = took(w->fetch_us);
            m.staged.verify_us = took(w->verify_us);
            m.staged.busy_us = loading_from(a, w) - w->sealed_us;
            m.staged.stage_us = w->stage_us = took(now_us - loading_from(a, w));
            for (uint32_t i = 0; i < w->served_count; i++)
                rows[m.staged.source_count++] = (msg_served_t){w->served[i].token, w->served[i].kind,
                                                               w->served[i].bytes, w->served[i].name};
        }
    } else if (action->kind == SA_SEND_ACTIVE) {
        /* The activation began at the later of two moments: the decision arrived, or the bytes did. */
        uint64_t since_us = w && w->sealed_us > a->commit_us ? w->sealed_us : a->commit_us;
        m.type = MSG_ACTIVE;
        m.active = (msg_active_t){.token = token,
                                  .version = action->version,
                                  .decision = action->decision,
                                  .activate_us = since_us ? took(now_us - since_us) : 0,
                                  .adapter = a->name,
                                  .digest = action->digest};
        if (w) w->activate_us = m.active.activate_us;
    } else {
        m.type = MSG_NACK;
        m.nack = (msg_nack_t){.token = token,
                              .version = action->version,
                              .decision = action->decision,
                              .adapter = a->name,
                              .phase = why->phase,
                              .code = heddle_err_name(why->code),
                              .message = why->message,
                              .expected = why->expected,
                              .found = why->found,
                              .hint = why->hint};
        if (has_times) {
            m.nack.connect_us = took(w->connect_us);
            m.nack.fetch_us = took(w->fetch_us);
            m.nack.verify_us = took(w->verify_us);
            m.nack.stage_us = w->stage_us ? w->stage_us : took(now_us - loading_from(a, w));
        }
    }
    int rc = member_send(&a->core->member, &m);
    a->core->has_unsent |= rc != HEDDLE_OK;
    return rc;
}

/* --- a version that is COMING: memory, then bytes --------------------------------------------- */

/* A publisher may publish the same content again, under another version. A sealed slot with that arena
 * saves the fetch: both versions then refer to one region. The manifest must be equal too, since it lies
 * in the region. NULL: none, or it is known to be damaged. */
static slot_t *find_equal(const adapter_t *a, const announced_t *w)
{
    const announced_part_t *part = &w->part;
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        if (!sync_is_held(e) || e->what == w) continue;
        const announced_part_t *its = &e->what->part;
        bool is_equal = digest_equal(&e->what->h1, &w->h1) && its->region_bytes == part->region_bytes &&
                        its->manifest_bytes == part->manifest_bytes &&
                        digest_equal(&its->manifest_digest, &part->manifest_digest);
        slot_t *slot = slot_of(a, e->slot);
        if (is_equal && !slot->is_damaged) return slot;
    }
    return NULL;
}

/* The bytes were verified when they arrived, and memory may have gone bad since. They are hashed again
 * before a second version relies on them, 1 MiB a turn, so that heartbeats stay in time. OK, AGAIN;
 * DIGEST_MISMATCH: the version has to be fetched. */
static int check_equal(adapter_t *a, slot_t *equal, const announced_t *w)
{
    check_t *c = &a->equal;
    uint64_t version = atomic_load(&equal->version), end = equal->manifest.region_bytes;
    if (c->version != version) {
        *c = (check_t){.version = version};
        manifest_h1_begin(&equal->manifest, &c->h);
    }
    c->slot = equal;
    for (int piece = 0; piece < 4 && c->at < end; piece++) check_work(c, a->core->io->clock);
    if (c->at < end) return HEDDLE_ERR_AGAIN;
    bytes_t encoded = announced_manifest(&w->part, equal->region->view);
    digest_t manifest = digest_blake2b(encoded.data, encoded.bytes);
    if (!digest_equal(&manifest, &w->part.manifest_digest)) equal->is_damaged = true;
    if (!equal->is_damaged) return HEDDLE_OK;
    log_emit(LOG_ERROR, "slot.damaged",
             "the memory of %s@%llu no longer has its digest: version %llu of the same content is fetched",
             a->name, (unsigned long long)version, (unsigned long long)w->version);
    return HEDDLE_ERR_DIGEST_MISMATCH;
}

/* Makes one piece of memory a call: the kernel needs long to provide pages, and heartbeats must not wait
 * for it. OK: the slot is RESERVED; AGAIN: it is MAKING, and adapter_work goes on; else the reason, and
 * the slot is FREE. */
static int make_slot_for(adapter_t *a, const announced_t *w, uint32_t index, heddle_error_t *error)
{
    slot_t *slot = slot_of(a, (int)index), *equal;
    int rc = HEDDLE_OK;
    if (!slot || slot->state == SLOT_FREE) {
        a->equal = (check_t){0};
        if (a->core->opts.check) rc = a->core->opts.check(error);
        if (!rc && FAILPOINT("worker.reserve"))
            rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a slot");
        if (!rc) rc = slots_begin(a->core->slots, a->index, index, &slot, error);
        if (rc) return rc;
        slot->taken_for = w->version;
    }
    while ((equal = find_equal(a, w)) && (rc = check_equal(a, equal, w)) == HEDDLE_ERR_DIGEST_MISMATCH) {}
    if (equal && rc) return rc;
    return equal ? slot_adopt(slot, equal) : slot_reserve(slot, announced_bytes(&w->part), error);
}

/* Nothing is fetched for an adopted slot: its bytes are those of another version, and check_equal has
 * just verified them. The times of the fetch are 0, and no source served it. */
static int seal_adopted(adapter_t *a, announced_t *w, slot_t *slot, uint64_t now_us, heddle_error_t *error)
{
    const node_io_t *io = a->core->io;
    const announced_part_t *part = &w->part;
    manifest_t manifest = {0};
    int rc =
        manifest_read(announced_manifest(part, slot->region->view), &part->manifest_digest, &manifest, error);
    if (rc) return rc;
    /* Both versions have the same manifest, but each slot has a decoded one of its own. */
    seal_t seal = {.version = w->version, .h1 = w->h1, .step = w->step, .manifest = &manifest};
    rc = slot_seal(slot, &seal);
    manifest_fini(&manifest);
    if (!rc) rc = io->tr->extend(io->t, part->key, 0, announced_bytes(part));
    if (rc) return error_fail(error, rc, "the slot cannot be sealed: %s", heddle_err_text(rc));
    w->connect_us = w->fetch_us = w->verify_us = 0;
    w->served_count = 0;
    w->sealed_us = now_us;
    return HEDDLE_OK;
}

/* The slot is shared before its first byte arrives. Read requests of other workers may come early: they are
 * pending here, and each is served as soon as its chunk is verified, so that versions spread in a pipeline.
 * AGAIN: the download runs; OK: nothing has to be fetched; else the reason why it cannot be fetched. */
static int start_download(adapter_t *a, const sync_entry_t *e, uint64_t now_us, heddle_error_t *error)
{
    worker_core_t *core = a->core;
    announced_t *w = e->what;
    const node_io_t *io = core->io;
    slot_t *slot = slot_of(a, e->slot);
    share_key_t key = w->part.key;
    int rc = FAILPOINT("worker.share") ? HEDDLE_ERR_NO_MEMORY : io->tr->share(io->t, slot->region, key);
    if (rc) {
        bool is_told = rc == HEDDLE_ERR_NO_MEMORY || rc == HEDDLE_ERR_LIMIT;
        return error_fail(error, is_told ? rc : HEDDLE_ERR_INTERNAL, "the slot cannot be shared: %s",
                          heddle_err_text(rc));
    }
    slot->key = key;
    slot->is_shared = true;
    if (slot->is_adopted) return seal_adopted(a, w, slot, now_us, error);
    download_opts_t opts = {.io = io,
                            .what = w,
                            .slot = slot,
                            .counters = &core->counters,
                            .unreached = &a->unreached,
                            .adapter = a->index};
    if (FAILPOINT("worker.download") || download_new(&opts, now_us, &a->download))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a fetch");
    adapter_tell(
        a,
        &(sync_action_t){.event = HEDDLE_EVENT_FETCHING, .version = w->version, .what = w, .digest = w->h1});
    /* What is fetched after its decision is fetched late: later decisions may overtake it, and the broker
     * keeps a version that a worker names in its heartbeat. */
    bool is_named = e->decision > a->sync.applied.decision;
    if (a->sync.up && is_named) core->heartbeat(core->self);
    return HEDDLE_ERR_AGAIN;
}

/* Works on the version that is COMING until it has to wait. True when it came to its end, which is
 * `ret_event` for sync; `error` is part of it. */
static bool fetch_coming(adapter_t *a, uint64_t now_us, sync_event_t *ret_event, heddle_error_t *error)
{
    const sync_entry_t *e = sync_coming(&a->sync);
    if (!e || a->download) return false;
    const slot_t *slot = slot_of(a, e->slot);
    bool is_reserved = slot && slot->state == SLOT_RESERVED;
    int rc = is_reserved ? HEDDLE_OK : make_slot_for(a, e->what, (uint32_t)e->slot, error);
    *ret_event = (sync_event_t){.kind = SY_NOT_RESERVED, .version = e->version, .error = error};
    if (!rc) {
        rc = start_download(a, e, now_us, error);
        ret_event->kind = rc ? SY_FETCH_FAILED : SY_FETCHED;
    }
    if (rc == HEDDLE_ERR_AGAIN) return false;
    const char *phase = ret_event->kind == SY_NOT_RESERVED ? "announce" : "fetch";
    if (rc) error_where(error, a->name, e->version, a->core->opts.name, phase);
    return true;
}

/* --- sync: an event, and the actions that follow ---------------------------------------------- */

/* "All slots are in use" alone does not help an operator. The error lists which versions occupy the slots,
 * how many readers hold each, and for how long one that was dropped has been waiting for its readers. */
static void describe_slots(const adapter_t *a, uint64_t version, heddle_error_t *error, uint64_t now_us)
{
    buf_t text = {0};
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        if (!slot || slot->state == SLOT_FREE) continue;
        uint32_t readers = slot_readers(slot);
        buf_printf(&text, "%sversion %" PRIu64, text.bytes ? ", " : "", slot->taken_for);
        if (readers) buf_printf(&text, " held by %u reader%s", readers, readers == 1 ? "" : "s");
        if (slot->state == SLOT_LEAVING)
            buf_printf(&text, " for %.1f s since it was to go", (double)(now_us - slot->leaving_us) / 1e6);
    }
    error_fail(error, HEDDLE_ERR_NO_SLOT, "all %u slots are in use: %s", a->sync.slot_count, buf_text(&text));
    error_where(error, a->name, version, a->core->opts.name, "announce");
    error_expected(error, "a free slot");
    error_found(error, "none of %u", a->sync.slot_count);
    error_hint(error, "release snapshots that are no longer used, or run the worker with more opts.slots");
    buf_fini(&text);
}

/* Each action is obeyed at once and in order: a DROP must find the slot as the FLIP before it left it. */
static void obey(adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    const node_io_t *io = a->core->io;
    slot_t *slot = slot_of(a, action->slot);
    bool fails =
        action->kind == SA_SEND_NACK || (action->kind == SA_OFFER && action->event == HEDDLE_EVENT_FAILED);
    sync_nack_t *why = fails ? sync_nack(&a->sync, action->version, SYNC_ANY_DECISION) : NULL;
    if (why && why->lacks_occupants) {
        describe_slots(a, why->version, &why->error, now_us);
        why->lacks_occupants = false;
    }
    switch (action->kind) {
    case SA_NEW_SOURCES:
        /* Without a download the slot's memory is still being made: it will begin with the new list. */
        if (a->download) download_new_sources(a->download, now_us);
        break;
    case SA_SEND_STAGED:
        if (FAILPOINT("worker.before_staged")) break;
        send_outcome(a, action, NULL, now_us);
        break;
    case SA_SEND_ACTIVE: send_outcome(a, action, NULL, now_us); break;
    case SA_SEND_NACK: {
        sync_nack_t *nack = sync_nack(&a->sync, action->version, action->decision);
        if (nack && send_outcome(a, action, &nack->error, now_us))
            nack->pending = true; /* after the next WELCOME */
        break;
    }
    case SA_OFFER: adapter_tell(a, action); break;
    case SA_FLIP:
        (void)FAILPOINT("worker.before_flip");
        slots_activate(a->core->slots, slot);
        (void)FAILPOINT("worker.after_flip");
        break;
    case SA_FORGET: free(action->what); break;
    case SA_DROP:
        /* Nothing is requested into the slot any more; what is under way may still land (free_dropped). */
        if (a->download && a->download->slot == slot) download_destroy(&a->download);
        slot_drop(slot, now_us);
        if (slot->is_shared) io->tr->unshare(io->t, slot->key);
        break;
    }
}

/* Frees a slot that was dropped, once no reader holds it, no send of its bytes is in flight, and no open
 * receive can write into it. Only then may another version use the memory. True with the event for sync. */
static bool free_dropped(adapter_t *a, sync_event_t *ret_event)
{
    const node_io_t *io = a->core->io;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        slot_t *slot = slot_of(a, i);
        if (!slot || slot->state != SLOT_LEAVING) continue;
        bool is_written = (a->download && a->download->slot == slot) ||
                          (slot->region && !io->tr->idle(io->t, slot->region));
        if (!slot_is_unread(slot) || slot->is_shared || is_written) continue;
        slot_free(slot);
        *ret_event = (sync_event_t){.kind = SY_DRAINED};
        return true;
    }
    return false;
}

/* Gives one event to sync and obeys its actions. Any of them may have started, stopped or replaced a fetch,
 * or dropped a slot that is free at once; what comes of that is the next event. Returns sync's answer to an
 * event of the application. */
static int feed_sync(adapter_t *a, const sync_event_t *event, uint64_t now_us)
{
    sync_action_t actions[SYNC_ACTIONS_MAX];
    sync_event_t next = *event;
    heddle_error_t error;
    int rc = HEDDLE_OK;
    do {
        sync_slots_t slots = look_at_slots(a);
        int count = sync_step(&a->sync, &next, &slots, now_us, actions);
        if (count < 0) rc = count;
        for (int i = 0; i < count; i++) obey(a, &actions[i], now_us);
    } while (fetch_coming(a, now_us, &next, &error) || free_dropped(a, &next));
    return rc;
}

/* The download needs other sources, or has ended. One that no source can be reached for fails shortly before
 * its deadline, while the broker still waits for a NACK that says why. */
static void look_at_download(adapter_t *a, uint64_t now_us)
{
    download_t *p = a->download;
    const announced_t *w = p->what;
    uint64_t version = w->version, lost[LIMIT_SOURCES * 2], unmet[LIMIT_SERVED];
    bool needs_sources = p->needs_sources && a->sync.up, is_given_up = false;
    uint32_t count = download_lost(p, lost, LIMIT_SOURCES * 2);
    if (needs_sources) {
        msg_t m = {.type = MSG_NEED_SOURCES};
        m.need_sources = (msg_need_sources_t){.token = a->core->member.session.token,
                                              .version = version,
                                              .adapter = a->name,
                                              .lost = lost,
                                              .lost_count = count,
                                              .unmet = unmet};
        for (uint32_t i = 0; i < count && i < LIMIT_SERVED; i++)
            if (!download_has_met(p, lost[i])) unmet[m.need_sources.unmet_count++] = lost[i];
        (void)member_send(&a->core->member, &m); /* the fetch asks again */
        const sync_entry_t *e = sync_find(&a->sync, version);
        bool has_deadline = e && e->deadline_us != CLOCK_NEVER;
        uint64_t deadline_us = has_deadline ? e->deadline_us - SYNC_GRACE_US : CLOCK_NEVER;
        is_given_up =
            count && !p->last_token && unreached_look(&a->unreached, lost, count, deadline_us, now_us);
    }
    if (p->state < DOWNLOAD_DONE && !is_given_up) return;
    /* The download goes with its error, which is sent below. */
    bool is_done = p->state == DOWNLOAD_DONE && !is_given_up;
    heddle_error_t error = p->state == DOWNLOAD_FAILED ? p->error : a->unreached.error;
    /* Sync may start the next one within the same event. */
    download_destroy(&a->download);
    error_where(&error, a->name, version, a->core->opts.name, NULL);
    feed_sync(
        a,
        &(sync_event_t){.kind = is_done ? SY_FETCHED : SY_FETCH_FAILED, .version = version, .error = &error},
        now_us);
}

/* --- the session ------------------------------------------------------------------------------ */

/* WELCOME names the decision to serve and the versions to keep; sync compares both with what this worker
 * has. */
void adapter_up(adapter_t *a, const msg_welcome_t *m, uint64_t now_us)
{
    uint64_t keep[SYNC_ENTRIES];
    sync_event_t event = {.kind = SY_UP,
                          .slot_count = m->slots < LIMIT_SLOTS ? (uint32_t)m->slots : LIMIT_SLOTS,
                          .keep = keep};
    for (uint32_t i = 0; i < m->adapter_count; i++) {
        if (strcmp(m->adapters[i].adapter, a->name) != 0) continue;
        event.decision = m->adapters[i].decision;
        event.version = m->adapters[i].version;
        event.digest = m->adapters[i].digest;
    }
    /* Which of what is held may stay: a list of the broker needs no memory, for at most so many are held. */
    for (uint32_t i = 0; i < m->keep_count && event.keep_count < SYNC_ENTRIES; i++)
        if (!strcmp(m->keep[i].adapter, a->name) && sync_find(&a->sync, m->keep[i].version))
            keep[event.keep_count++] = m->keep[i].version;
    a->commit_us = now_us;
    feed_sync(a, &event, now_us);
}

/* The lease is over: decisions that were not applied yet count no more, and reads go on. */
void adapter_down(adapter_t *a, uint64_t now_us) { feed_sync(a, &(sync_event_t){.kind = SY_DOWN}, now_us); }

/* --- the broker's messages -------------------------------------------------------------------- */

/* Connecting takes longer than a small fetch, so it begins with the list of sources and not with the first
 * read request. A failure needs no handling here: the first read request fails then. */
static void greet(adapter_t *a, const announced_t *w)
{
    const node_io_t *io = a->core->io;
    /* A process that lacks descriptors connects to nothing; that is reported when the slot is reserved. */
    if (a->core->opts.check && a->core->opts.check(NULL)) return;
    for (uint32_t i = 0; i < w->source_count; i++) {
        peer_ref_t peer = source_ref(&w->sources[i]);
        io->tr->greet(io->t, &peer);
    }
}

/* Each message is one event of sync, after what this adapter keeps of it. */
void adapter_hear(adapter_t *a, const msg_t *m, uint64_t now_us)
{
    heddle_error_t error;
    sync_event_t event;
    const sync_entry_t *e;
    announced_t *w;
    if (!a->sync.up) return; /* of a session that has ended */
    switch (m->type) {
    case MSG_ANNOUNCE:
        e = sync_find(&a->sync, m->announce.version);
        w = announced_hear(e ? e->what : NULL, &m->announce, &error);
        if (!w) {
            /* Refused at once, so that the rollout does not wait for this worker until its deadline. */
            error_where(&error, a->name, m->announce.version, a->core->opts.name, "announce");
            send_outcome(a, &(sync_action_t){.kind = SA_SEND_NACK, .version = m->announce.version}, &error,
                         now_us);
            break;
        }
        greet(a, w);
        event = (sync_event_t){.kind = SY_ANNOUNCE,
                               .version = w->version,
                               .what = w,
                               .digest = m->announce.digest,
                               .deadline_us = m->announce.deadline_ms * 1000};
        feed_sync(a, &event, now_us);
        break;
    case MSG_SOURCES:
        e = sync_find(&a->sync, m->sources.version);
        if (!e) break;
        w = e->what;
        announced_sources(w, m->sources.sources, m->sources.source_count);
        greet(a, w);
        /* A running fetch tries the new list at once. Sync gets the count, because a version without any
         * source gives way to others. */
        if (a->download && a->download->what == w) download_new_sources(a->download, now_us);
        event = (sync_event_t){.kind = SY_SOURCES, .version = w->version, .source_count = w->source_count};
        feed_sync(a, &event, now_us);
        break;
    case MSG_COMMIT:
        a->commit_us = now_us;
        event = (sync_event_t){.kind = SY_COMMIT,
                               .version = m->commit.version,
                               .decision = m->commit.decision,
                               .digest = m->commit.digest};
        feed_sync(a, &event, now_us);
        break;
    case MSG_ABORT: {
        bool is_overtaken = !strcmp(m->abort.code, "superseded"); /* a state, not an error of ours */
        int code = is_overtaken ? HEDDLE_ERR_VERSION_FAILED : heddle_err_from_name(m->abort.code);
        error_fail(&error, code, "%s", m->abort.message);
        feed_sync(a, &(sync_event_t){.kind = SY_ABORT, .version = m->abort.version, .error = &error}, now_us);
        break;
    }
    case MSG_RETIRE:
        feed_sync(a, &(sync_event_t){.kind = SY_RETIRE, .version = m->retire.version}, now_us);
        break;
    default: break;
    }
}

/* --- the application's answers ---------------------------------------------------------------- */

/* A rejected version gets the phase in which the application had it: one that was to become active fails
 * "activate", any other one "stage". */
int adapter_answer(adapter_t *a, const app_answer_t *answer, uint64_t now_us)
{
    static const sync_event_kind_t KINDS[] =
        {[APP_STAGED] = SY_APP_STAGED, [APP_ACTIVATE] = SY_APP_ACTIVATE, [APP_REJECT] = SY_APP_REJECT};
    heddle_error_t error = {0};
    if (answer->kind == APP_REJECT) {
        const sync_entry_t *e = sync_find(&a->sync, answer->version);
        /* A version that is already decided is still loaded first. */
        bool is_switch = e && e->state != SYNC_ARRIVED && e->decision > a->sync.applied.decision;
        const char *phase = is_switch ? "activate" : "stage";
        error = *answer->why;
        error_where(&error, a->name, answer->version, a->core->opts.name, error.phase[0] ? NULL : phase);
    }
    int rc = feed_sync(
        a, &(sync_event_t){.kind = KINDS[answer->kind], .version = answer->version, .error = &error}, now_us);
    if (!rc) a->answered_us = now_us; /* after the step, which counts up to the answer before */
    return rc;
}

/* --- the transfer ----------------------------------------------------------------------------- */

/* Events of a read request come to the adapter that its cookie names; events of a peer or a share come to
 * every adapter, and each looks for its own. */
void adapter_transfer(adapter_t *a, const tr_event_t *event, uint64_t now_us)
{
    sync_event_t drained;
    /* The last send from a slot that was dropped is over. */
    if (event->kind == TR_UNSHARED) {
        for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
            slot_t *slot = slot_of(a, i);
            if (slot && slot->is_shared && !memcmp(&slot->key, &event->key, sizeof slot->key))
                slot->is_shared = false;
        }
        if (free_dropped(a, &drained)) feed_sync(a, &drained, now_us);
        return;
    }
    if (!a->download) return;
    download_transfer(a->download, event, now_us);
    if (download_needs_owner(a->download)) look_at_download(a, now_us);
}

/* --- time and work ---------------------------------------------------------------------------- */

/* Versions that the broker may retire here to make room. The list is empty while a dropped slot is about
 * to be free: no version needs to go then. */
static uint32_t list_spare(const adapter_t *a, uint64_t now_us, uint64_t ret_spare[LIMIT_SLOTS])
{
    uint32_t count = 0;
    sync_slots_t slots = look_at_slots(a);
    if (!sync_lacks_slot(&a->sync, &slots)) return 0;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        bool is_leaving = slot && slot_is_unread(slot);
        if (is_leaving && now_us < slot->leaving_us + ROOM_AGAIN_US) return 0;
    }
    /* A slot that a reader holds would not be free after its version has gone. */
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        bool is_named = e->decision > a->sync.applied.decision;
        bool may_go = e->state == SYNC_KEPT && !is_named;
        if (may_go && slot_readers(slot_of(a, e->slot)) == 0) ret_spare[count++] = e->version;
    }
    return count;
}

/* While a version waits for a slot, heartbeats list the kept versions that may go, and the broker retires
 * one of them here. Returns when to look again: a reader that releases a kept version does not wake this
 * thread. */
static uint64_t ask_for_room(adapter_t *a, uint64_t now_us)
{
    uint64_t spare[LIMIT_SLOTS];
    sync_slots_t slots = look_at_slots(a);
    if (!sync_lacks_slot(&a->sync, &slots)) return CLOCK_NEVER;
    if (now_us < a->room_us) return a->room_us;
    a->room_us = now_us + ROOM_AGAIN_US;
    if (list_spare(a, now_us, spare)) a->core->heartbeat(a->core->self);
    return a->room_us;
}

/* Dropped slots are freed before sync gets the time: no version is refused for lack of a slot that
 * is free already. */
uint64_t adapter_tick(adapter_t *a, uint64_t now_us)
{
    uint64_t next = CLOCK_NEVER;
    sync_event_t drained;
    if (free_dropped(a, &drained)) feed_sync(a, &drained, now_us);
    if (now_us >= sync_deadline(&a->sync)) feed_sync(a, &(sync_event_t){.kind = SY_TICK}, now_us);
    if (a->download) {
        next = download_tick(a->download, now_us);
        if (download_needs_owner(a->download)) look_at_download(a, now_us);
    }
    next = clock_earlier(next, ask_for_room(a, now_us));
    return clock_earlier(next, sync_deadline(&a->sync));
}

bool adapter_is_fetching(const adapter_t *a) { return a->download || sync_coming(&a->sync); }

/* Work is what needs no event to go on. */
bool adapter_work(adapter_t *a, uint64_t now_us)
{
    if (a->download) {
        if (download_work(a->download, now_us)) {
            if (download_needs_owner(a->download)) look_at_download(a, now_us);
            return true;
        }
    } else if (sync_coming(&a->sync)) {
        sync_event_t event;
        heddle_error_t error;
        if (fetch_coming(a, now_us, &event, &error)) feed_sync(a, &event, now_us);
        return true;
    }
    return false;
}

/* --- rows of JOIN and HEARTBEAT --------------------------------------------------------------- */

/* JOIN lists what is held here, with its times, so that a broker that was restarted reports the same as
 * before. */
uint32_t adapter_held(const adapter_t *a, msg_held_t *ret_rows, uint32_t cap)
{
    static const uint64_t STATES[SYNC_STATE_COUNT] = {[SYNC_ARRIVED] = HELD_SEALED,
                                                      [SYNC_STAGED] = HELD_STAGED,
                                                      [SYNC_ACTIVE] = HELD_ACTIVE,
                                                      [SYNC_KEPT] = HELD_KEPT};
    uint32_t count = 0;
    for (uint32_t i = 0; i < SYNC_ENTRIES && count < cap; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        if (!sync_is_held(e)) continue;
        const announced_t *w = e->what;
        msg_held_t *h = &ret_rows[count++];
        *h = (msg_held_t){a->name, e->version, STATES[e->state], e->digest, .verified = VERIFIED_HERE};
        if (!w->sealed_us) continue;
        h->connect_us = took(w->connect_us);
        h->fetch_us = took(w->fetch_us);
        h->verify_us = took(w->verify_us);
        h->stage_us = w->stage_us;
        h->activate_us = w->activate_us;
    }
    return count;
}

/* A version that waits for its former slot is named with the reason, because the wait may be long: it ends
 * with the last reader, and the last transfer, of what was dropped there.  `data_bytes` stays 0: it has not
 * begun. */
static void fill_barred(adapter_t *a, msg_progress_t *p)
{
    sync_slots_t slots = look_at_slots(a);
    const sync_entry_t *e = sync_barred(&a->sync, &slots);
    if (!e) return;
    uint32_t readers = 0;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        if (slot && slot->state == SLOT_LEAVING && slot->taken_for == e->version)
            readers += slot_readers(slot);
    }
    text_printf(a->barred, sizeof a->barred, "its former slot here is not free yet (readers: %u)", readers);
    p->fetching = e->version;
    p->message = a->barred;
}

/* A version that the application loads comes before one that is fetched meanwhile: it reaches its end
 * first, and the broker keeps the version that a heartbeat names. */
msg_progress_t adapter_progress(adapter_t *a, uint64_t now_us, uint64_t ret_spare[LIMIT_SLOTS])
{
    msg_progress_t p = {.adapter = a->name,
                        .held_count = slots_count(a->core->slots, a->index).held,
                        .spare = ret_spare,
                        .spare_count = list_spare(a, now_us, ret_spare)};
    const sync_entry_t *loading = sync_loading(&a->sync);
    const announced_t *w = loading ? loading->what : NULL;
    if (w) { /* before what is fetched meanwhile: it comes to its end first */
        p.fetching = w->version;
        p.bytes_done = p.data_bytes = w->part.region_bytes;
    } else if (a->download) {
        const heddle_error_t *why = download_trouble(a->download);
        p.fetching = a->download->what->version;
        p.bytes_done = a->download->bytes_done;
        p.data_bytes = a->download->part->region_bytes;
        p.source = a->download->last_token;
        p.message = why ? why->message : NULL;
    } else if (!sync_coming(&a->sync)) {
        fill_barred(a, &p);
    }
    return p;
}

/* --- life ------------------------------------------------------------------------------------- */

/* All other fields begin as zero: no version, no fetch. */
void adapter_init(adapter_t *a, worker_core_t *core, uint32_t index)
{
    *a = (adapter_t){.core = core, .index = index, .name = slots_adapter(core->slots, index)};
    sync_init(&a->sync, core->opts.app);
}

/* Shares end here; TR_UNSHARED follows when the last send of each is over. */
void adapter_end(adapter_t *a)
{
    const node_io_t *io = a->core->io;
    download_destroy(&a->download);
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        if (slot && slot->is_shared) io->tr->unshare(io->t, slot->key);
    }
}

/* At the end of the node memory must not be unregistered while the transfer may write into it. Closing
 * the connections to the sources ends such writes. */
bool adapter_drop_sources(adapter_t *a)
{
    const node_io_t *io = a->core->io;
    bool is_idle = true;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        if (slot && slot->region && !io->tr->idle(io->t, slot->region)) is_idle = false;
    }
    for (const sync_entry_t *e = a->sync.entries; !is_idle && e < a->sync.entries + SYNC_ENTRIES; e++)
        for (uint32_t i = 0; e->what && i < e->what->source_count; i++)
            io->tr->drop_peer(io->t, e->what->sources[i].token);
    return !is_idle;
}

/* Announcements stay until now: adapter_drop_sources needs the tokens of their sources. */
void adapter_free(adapter_t *a)
{
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) free(a->sync.entries[i].what);
}
