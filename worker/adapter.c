/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/adapter.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"

#include <inttypes.h>
#include <stdlib.h>

/* --- announced versions ----------------------------------------------------------------------- */

/* An announcement outlives its message, because a version may wait for a slot or be fetched anew. At most
 * a few exist at a time, so that a list is enough. */
static announced_t *find_announced(const adapter_t *a, uint64_t version)
{
    announced_t *w = a->announced;
    while (w && w->version != version) w = w->next;
    return w;
}

/* Keeps what an announcement says until sync has no entry for its version any more. A repeated
 * announcement only renews the sources: bytes and key of a version never change. NULL: no memory. */
static announced_t *remember(adapter_t *a, const msg_announce_t *m)
{
    announced_t *w = find_announced(a, m->version);
    if (!w) {
        w = calloc(1, sizeof *w);
        if (!w) return NULL;
        w->version = m->version;
        w->h1 = m->digest;
        announced_parts(w, m->parts, &m->key);
        w->data_bytes = m->data_bytes;
        w->step = m->step;
        w->next = a->announced;
        a->announced = w;
    }
    announced_sources(w, m->sources, m->source_count);
    return w;
}

/* The process may lack descriptors for another region and its connections. UCX ends a process that runs
 * out of them, so the check comes before a slot is reserved. */
static int check_process(const adapter_t *a, heddle_error_t *error)
{
    return a->core->opts.check ? a->core->opts.check(error) : HEDDLE_OK;
}

/* NULL for an entry without a slot, and for a slot that was never reserved. */
static slot_t *slot_of(const adapter_t *a, int slot)
{
    return slot < 0 ? NULL : slots_at(a->core->slots, a->index, (uint32_t)slot);
}

static int next_slot(const adapter_t *a) { return slots_next_free(a->core->slots, a->index); }

/* --- events for the application --------------------------------------------------------------- */

/* The event carries the reason of a failure, since the application cannot ask for it later. */
void adapter_tell(adapter_t *a, const sync_action_t *action)
{
    bool is_staging = action->event == HEDDLE_EVENT_FETCHING || action->event == HEDDLE_EVENT_STAGED;
    if (a->core->opts.omits_staging && is_staging) return;
    const announced_t *w = find_announced(a, action->version);
    heddle_event_t event = {.type = action->event,
                            .version = action->version,
                            .decision = action->decision,
                            .code = action->err,
                            .step = w ? w->step : -1,
                            .data_bytes = w ? w->data_bytes : 0};
    error_text(event.adapter, sizeof event.adapter, a->name);
    digest_text(&action->digest, event.digest);
    tag_text(a->name, action->version, &action->digest, event.tag);
    if (action->err) {    /* A failure here, which sync remembers, or the reason that the broker gave. */
        const sync_nack_t *nack = sync_nack(&a->sync, action->version, SYNC_ANY_DECISION);
        const heddle_error_t *why = nack ? &nack->error : NULL;
        if (!why || why->code != action->err) why = action->why;
        error_text(event.message, sizeof event.message, why ? why->message : heddle_err_text(action->err));
        event.retriable = why ? why->retriable : 0;
    }
    member_tell(&a->core->member, &event);
}

/* --- messages to the broker ------------------------------------------------------------------- */

/* In messages 0 stands for "not known", but work that began and ended within one turn takes 0 by the
 * turn's clock. It is reported as 1 microsecond. */
static uint64_t took(uint64_t us) { return us ? us : 1; }

/* STAGED, ACTIVE and NACK are sent once. A lost one would be missing at the broker until the worker joins
 * again, so the next heartbeat makes it join. */
static int say_once(adapter_t *a, const msg_t *m)
{
    int rc = member_say(&a->core->member, m);
    a->core->has_unsaid |= rc != HEDDLE_OK;
    return rc;
}

/* STAGED also carries the times of the fetch and what each source served: operators see both at the
 * broker. A version that was staged before a restart of the broker has no times any more. */
static void say_staged(adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    if (FAILPOINT("worker.before_staged")) return;
    const node_io_t *io = a->core->io;
    msg_served_t rows[PULL_SERVED_MAX];
    announced_t *w = find_announced(a, action->version);
    tr_counters_t c;
    io->tr->counters(io->t, &c);
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.bytes_in = c.bytes_in,
                              .bytes_out = c.bytes_out,
                              .chunks_bad = a->core->counters.chunks_bad,
                              .retries = a->core->counters.retries,
                              .token = a->core->member.session.token,
                              .version = action->version,
                              .adapter = a->name,
                              .digest = action->digest};
    if (w && w->sealed_us) {
        m.staged.connect_us = took(w->connect_us);
        m.staged.fetch_us = took(w->fetch_us);
        m.staged.verify_us = took(w->verify_us);
        m.staged.stage_us = w->stage_us = took(now_us - w->sealed_us);
        m.staged.sources = rows;
        for (uint32_t i = 0; i < w->served_count; i++)
            rows[m.staged.source_count++] = (msg_served_t){w->served[i].token, w->served[i].kind,
                                                           w->served[i].bytes, w->served[i].name};
    }
    say_once(a, &m);
}

/* The time of the activation counts from the later of two moments: the decision arrived, or the bytes
 * did. */
static void say_active(adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    announced_t *w = find_announced(a, action->version);
    /* From when it was decided and its bytes were here. */
    uint64_t since_us = w && w->sealed_us > a->commit_us ? w->sealed_us : a->commit_us;
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = a->core->member.session.token,
                              .version = action->version,
                              .decision = action->decision,
                              .activate_us = since_us ? took(now_us - since_us) : 0,
                              .adapter = a->name,
                              .digest = action->digest};
    if (w) w->activate_us = m.active.activate_us;
    say_once(a, &m);
}

/* A NACK carries the whole error, because the broker shows it to operators who cannot see this worker's
 * log. */
static int say_nack(adapter_t *a, uint64_t version, uint64_t decision, const heddle_error_t *error,
                    uint64_t now_us)
{
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = a->core->member.session.token,
                          .version = version,
                          .decision = decision,
                          .adapter = a->name,
                          .phase = error->phase,
                          .code = heddle_err_name(error->code),
                          .message = error->message,
                          .expected = error->expected,
                          .found = error->found,
                          .hint = error->hint};
    const announced_t *w = find_announced(a, version);
    if (w && w->sealed_us) {
        m.nack.connect_us = took(w->connect_us);
        m.nack.fetch_us = took(w->fetch_us);
        m.nack.verify_us = took(w->verify_us);
        m.nack.stage_us = w->stage_us ? w->stage_us : took(now_us - w->sealed_us);
    }
    return say_once(a, &m);
}

/* --- RESERVING: memory for a version ---------------------------------------------------------- */

/* A publisher may publish the same content again, under another version. A sealed slot with that arena
 * saves the fetch: both versions then refer to one region. The manifest must be equal too, since it lies
 * in the region. NULL: none, or it is known to be damaged. */
static slot_t *find_equal(const adapter_t *a, const announced_t *w)
{
    const announced_part_t *part = &w->part[0];
    for (const announced_t *other = a->announced; other; other = other->next) {
        const sync_entry_t *e = other == w ? NULL : sync_find(&a->sync, other->version);
        const announced_part_t *its = &other->part[0];
        bool is_equal = digest_equal(&other->h1, &w->h1) && its->region_bytes == part->region_bytes &&
                        its->manifest_bytes == part->manifest_bytes &&
                        digest_equal(&its->manifest_digest, &part->manifest_digest);
        if (!e || !is_equal || !sync_is_held(e)) continue;
        slot_t *slot = slot_of(a, e->slot);
        if (slot && !slot->is_damaged) return slot;
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
    bytes_t encoded = announced_manifest(&w->part[0], equal->region->view);
    digest_t manifest = digest_blake2b(encoded.data, encoded.bytes);
    if (!digest_equal(&manifest, &w->part[0].manifest_digest)) equal->is_damaged = true;
    if (!equal->is_damaged) return HEDDLE_OK;
    log_emit(LOG_ERROR, "slot.damaged",
             "the memory of %s@%llu no longer has its digest: version %llu of the same content is fetched",
             a->name, (unsigned long long)version, (unsigned long long)w->version);
    return HEDDLE_ERR_DIGEST_MISMATCH;
}

/* Makes one piece of memory a call: the kernel needs long to provide pages, and heartbeats must not wait
 * for it. OK: the slot is RESERVED; AGAIN: it is MAKING, and adapter_work goes on; else the reason, and
 * the slot is FREE. */
static int reserve(adapter_t *a, const sync_entry_t *e, heddle_error_t *error)
{
    slots_t *slots = a->core->slots;
    uint32_t index = (uint32_t)e->slot;
    const announced_t *w = find_announced(a, e->version);
    slot_t *slot = slot_of(a, e->slot), *equal;
    int rc = HEDDLE_OK;
    if (!slot || slot->state == SLOT_FREE) {
        a->equal = (check_t){0};
        if (!w) rc = error_fail(error, HEDDLE_ERR_INTERNAL, "the announcement is missing");
        else rc = check_process(a, error);
        if (!rc && FAILPOINT("worker.reserve"))
            rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a slot");
        if (!rc) rc = slots_begin(slots, a->index, index, &slot, error);
        if (rc) return rc;
    }
    while ((equal = find_equal(a, w)) && (rc = check_equal(a, equal, w)) == HEDDLE_ERR_DIGEST_MISMATCH) {}
    if (equal && rc) return rc;
    /* What is written ahead of its announcement needs its memory until then. */
    const slot_t *early = a->early.slot;
    bool is_its_memory = early == slot && !equal && early->region->bytes >= announced_bytes(&w->part[0]);
    if (early && !is_its_memory) {
        early_end(&a->early, a->core->io);
        a->has_surplus = true;
    }
    return equal ? slots_adopt(slots, equal, index, &slot, error)
                 : slots_reserve(slots, a->index, index, announced_bytes(&w->part[0]), &slot, error);
}

/* --- FETCHING: its bytes ---------------------------------------------------------------------- */

/* Shares the slot before its first byte arrives. Read requests of other workers may come early: they are
 * pending here, and each is served as soon as its chunk is verified, so that versions spread in a
 * pipeline. */
static int share_slot(adapter_t *a, slot_t *slot, const announced_t *w, heddle_error_t *error)
{
    const node_io_t *io = a->core->io;
    share_key_t key = w->part[0].key;
    int rc = FAILPOINT("worker.share") ? HEDDLE_ERR_NO_MEMORY : io->tr->share(io->t, slot->region, key);
    bool is_told = rc == HEDDLE_ERR_NO_MEMORY || rc == HEDDLE_ERR_LIMIT;
    if (rc)
        return error_fail(error, is_told ? rc : HEDDLE_ERR_INTERNAL, "the slot cannot be shared: %s",
                          heddle_err_text(rc));
    slot->key = key;
    slot->is_shared = true;
    return HEDDLE_OK;
}

/* Nothing is fetched for an adopted slot: its bytes are those of another version, and check_equal has
 * just verified them. The times of the fetch are 0, and no source served it. */
static int seal_adopted(adapter_t *a, announced_t *w, slot_t *slot, uint64_t now_us, heddle_error_t *error)
{
    const node_io_t *io = a->core->io;
    const announced_part_t *part = &w->part[0];
    manifest_t manifest = {0};
    int rc = manifest_read(announced_manifest(part, slot->region->view), &part->manifest_digest, &manifest,
                           error);
    if (rc) return rc;
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

/* Begins the fetch session of a reserved slot. AGAIN: it runs; OK: nothing has to be fetched; else the
 * reason why it cannot be fetched. */
static int start_fetch(adapter_t *a, const sync_entry_t *e, uint64_t now_us, heddle_error_t *error)
{
    worker_core_t *core = a->core;
    announced_t *w = find_announced(a, e->version);
    slot_t *slot = slot_of(a, e->slot);
    int rc = share_slot(a, slot, w, error);
    if (rc) return rc;
    if (slot->is_adopted) return seal_adopted(a, w, slot, now_us, error);
    unreached_begin(&a->unreached);
    pull_opts_t opts = {.io = core->io, .what = w, .slot = slot, .counters = &core->counters,
                        .early = &a->early, .adapter = a->index};
    if (FAILPOINT("worker.pull") || pull_new(&opts, now_us, &a->pull))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a fetch");
    adapter_tell(a, &(sync_action_t){.event = HEDDLE_EVENT_FETCHING, .version = w->version, .digest = w->h1});
    /* What is fetched after its decision is fetched late: later decisions may overtake it, and the broker
     * keeps a version that a worker names in its heartbeat. */
    bool is_named = e->decision > a->sync.applied.decision;
    if (a->sync.up && is_named) core->heartbeat(core->self);
    return HEDDLE_ERR_AGAIN;
}

/* Asks for other sources.  True when no source can be reached and the deadline is near: the fetch fails with
 * unreached.error then, while the broker still waits for a NACK that says why. */
static bool is_out_of_reach(adapter_t *a, uint64_t now_us)
{
    uint64_t version = pull_what(a->pull)->version, lost[LIMIT_SOURCES * 2];
    uint32_t count;
    if (!pull_needs_sources(a->pull, lost, LIMIT_SOURCES * 2, &count) || !a->sync.up) return false;
    uint64_t unmet[LIMIT_SERVED];
    msg_t m = {.type = MSG_NEED_SOURCES};
    m.need_sources = (msg_need_sources_t){.token = a->core->member.session.token,
                                          .version = version,
                                          .adapter = a->name,
                                          .lost = lost,
                                          .lost_count = count,
                                          .unmet = unmet};
    for (uint32_t i = 0; i < count && i < LIMIT_SERVED; i++)
        if (!pull_has_met(a->pull, lost[i])) unmet[m.need_sources.unmet_count++] = lost[i];
    (void)member_say(&a->core->member, &m); /* the fetch asks again */
    const sync_entry_t *e = sync_find(&a->sync, version);
    uint64_t deadline_us = e && e->deadline_us != CLOCK_NEVER ? e->deadline_us - SYNC_GRACE_US : CLOCK_NEVER;
    return unreached_look(&a->unreached, a->core->io, a->pull, lost, count, deadline_us, now_us);
}

/* --- sync's actions --------------------------------------------------------------------------- */

/* NO_SLOT alone does not help an operator. The error lists which versions occupy the slots, how many
 * readers hold each, and for how long one that was dropped has been waiting for its readers. */
static void describe_slots(const adapter_t *a, uint64_t version, heddle_error_t *error, uint64_t now_us)
{
    buf_t text = {0};
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        const slot_t *slot = slot_of(a, e->slot);
        if (!slot) continue;
        uint32_t readers = slot_readers(slot);
        buf_printf(&text, "%sversion %" PRIu64, text.bytes ? ", " : "", e->version);
        if (readers) buf_printf(&text, " held by %u reader%s", readers, readers == 1 ? "" : "s");
        if (slot->state == SLOT_LEAVING)
            buf_printf(&text, " for %.1f s since it was to go", (double)(now_us - slot->leaving_us) / 1e6);
    }
    error_fail(error, HEDDLE_ERR_NO_SLOT, "all %u slots are in use: %s", a->sync.slot_count, buf_text(&text));
    error_where(error, a->name, version, a->core->opts.name, "announce");
    error_expected(error, "a free slot");
    error_found(error, "none of %u", a->sync.slot_count);
    error_hint(error, "release snapshots that are no longer used, or run the worker with more --slots");
    buf_fini(&text);
}

/* Obeys one action of sync. RESERVE and FETCH are no calls: the entry's new state is the order, and go_on
 * works on it in pieces. */
static void execute(adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    const node_io_t *io = a->core->io;
    slot_t *slot = slot_of(a, action->slot);
    bool fails =
        action->kind == SA_SEND_NACK || (action->kind == SA_OFFER && action->event == HEDDLE_EVENT_FAILED);
    sync_nack_t *why = fails ? sync_nack(&a->sync, action->version, SYNC_ANY_DECISION) : NULL;
    if (why && why->error.code == HEDDLE_ERR_NO_SLOT && !why->error.hint[0])
        describe_slots(a, why->version, &why->error, now_us);
    switch (action->kind) {
    case SA_RESERVE: case SA_FETCH: break;    /* the entry's state says so: go_on */
    case SA_RESOURCE:
        if (a->pull) pull_resource(a->pull, now_us);
        break;
    case SA_CANCEL: pull_destroy(&a->pull); break;
    case SA_SEND_STAGED: say_staged(a, action, now_us); break;
    case SA_SEND_ACTIVE: say_active(a, action, now_us); break;
    case SA_SEND_NACK: {
        sync_nack_t *nack = sync_nack(&a->sync, action->version, action->decision);
        if (nack && say_nack(a, nack->version, nack->decision, &nack->error, now_us))
            nack->pending = true;    /* after the next WELCOME */
        break;
    }
    case SA_OFFER: adapter_tell(a, action); break;
    case SA_FLIP:
        (void)FAILPOINT("worker.before_flip");
        slots_activate(a->core->slots, slot);
        (void)FAILPOINT("worker.after_flip");
        break;
    case SA_KEEP: break;    /* the flip left it in its slot */
    case SA_DROP:
        slot_drop(slot, now_us);
        if (slot->is_shared) io->tr->unshare(io->t, slot->key);
        break;
    }
}

/* Gives one event to sync and obeys its actions. Returns sync's answer to an event of the application. */
static int step(adapter_t *a, const sync_event_t *event, uint64_t now_us)
{
    sync_action_t actions[SYNC_ACTIONS_MAX];
    int count = sync_step(&a->sync, event, next_slot(a), now_us, actions);
    for (int i = 0; i < count; i++) execute(a, &actions[i], now_us);
    return count < 0 ? count : HEDDLE_OK;
}

/* Works on the version that is RESERVING or FETCHING until it has to wait, and reports each result to
 * sync. A result may start the next version, hence the loop. */
static void go_on(adapter_t *a, uint64_t now_us)
{
    const sync_entry_t *e;
    while ((e = sync_coming(&a->sync)) && (e->state == SYNC_RESERVING || !a->pull)) {
        bool is_reserving = e->state == SYNC_RESERVING;
        uint64_t version = e->version;
        heddle_error_t error = {0};
        int rc = is_reserving ? reserve(a, e, &error) : start_fetch(a, e, now_us, &error);
        if (rc == HEDDLE_ERR_AGAIN) break;
        const char *phase = is_reserving ? "announce" : "fetch";
        if (rc) error_where(&error, a->name, version, a->core->opts.name, phase);
        sync_event_kind_t kind = is_reserving ? (rc ? SY_NO_SLOT : SY_SLOT)
                                              : (rc ? SY_FETCH_FAILED : SY_FETCHED);
        step(a, &(sync_event_t){.kind = kind, .version = version, .error = &error}, now_us);
    }
    /* Announcements of versions that sync has nothing to do with any more. */
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

/* Every event ends with go_on, because any of them may have started, stopped or replaced a fetch. */
static int feed(adapter_t *a, const sync_event_t *event, uint64_t now_us)
{
    int rc = step(a, event, now_us);
    go_on(a, now_us);
    return rc;
}

/* Frees slots that were dropped, once no reader holds them, no send of their bytes is in flight, and no
 * open receive can write into them. Only then may another version use the memory. */
static void drain(adapter_t *a, uint64_t now_us)
{
    const node_io_t *io = a->core->io;
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        if (e->state != SYNC_LEAVING) continue;
        slot_t *slot = slot_of(a, e->slot);
        bool is_written = (a->pull && pull_slot(a->pull) == slot) ||
                          (slot->region && !io->tr->idle(io->t, slot->region));
        if (!slot_is_unread(slot) || slot->is_shared || is_written) continue;
        slot_free(slot);
        a->has_surplus = true;
        feed(a, &(sync_event_t){.kind = SY_DRAINED, .slot = e->slot}, now_us);
    }
}

/* Ends a fetch session that is done or has failed, and reports the result to sync. The session is
 * destroyed first: sync may start the next one within the same event. */
static void look_at_pull(adapter_t *a, uint64_t now_us)
{
    if (!a->pull) return;
    const announced_t *w = pull_what(a->pull);
    uint64_t version = w->version;
    pull_state_t state = is_out_of_reach(a, now_us) ? PULL_FAILED : pull_state(a->pull);
    if (state != PULL_DONE && state != PULL_FAILED) return;
    heddle_error_t error = pull_state(a->pull) == PULL_FAILED ? *pull_error(a->pull) : a->unreached.error;
    for (uint32_t i = 0; state == PULL_DONE && i < w->source_count; i++) {
        const source_t *s = &w->sources[i];    /* it may send its next version early */
        if (s->kind == SOURCE_PUBLISHER && s->token == pull_source(a->pull)) a->early.publisher = *s;
    }
    pull_destroy(&a->pull);
    error_where(&error, a->name, version, a->core->opts.name, NULL);
    feed(a,
         &(sync_event_t){.kind = state == PULL_DONE ? SY_FETCHED : SY_FETCH_FAILED,
                         .version = version,
                         .error = &error},
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
    feed(a, &event, now_us);
    drain(a, now_us);
}

/* The lease is over: decisions that were not applied yet count no more, and reads go on. */
void adapter_down(adapter_t *a, uint64_t now_us) { feed(a, &(sync_event_t){.kind = SY_DOWN}, now_us); }

/* --- the broker's messages -------------------------------------------------------------------- */

/* The sizes come from the network and are checked before memory is reserved for them. */
static int check_announce(const msg_announce_t *m, heddle_error_t *error)
{
    const msg_part_t *part = m->part_count == 1 ? &m->parts[0] : NULL;
    if (!part)
        return error_fail(error, HEDDLE_ERR_PROTOCOL,
                          "a version in %u parts was announced, and this release takes one", m->part_count);
    if (part->region_bytes == 0 || part->region_bytes > LIMIT_REGION_BYTES || part->manifest_bytes == 0 ||
        part->manifest_bytes > LIMIT_MANIFEST_BYTES || m->version == 0)
        return error_fail(error, HEDDLE_ERR_LIMIT, "the announced sizes are out of range");
    return HEDDLE_OK;
}

/* Connecting takes longer than a small fetch, so it begins with the announcement and not with the first
 * read request. A failure needs no handling here: the first read request fails then. */
static void greet_sources(adapter_t *a, const announced_t *w)
{
    const node_io_t *io = a->core->io;
    if (check_process(a, NULL)) return;    /* the error is reported when the slot is reserved */
    for (uint32_t i = 0; i < w->source_count; i++) {
        peer_ref_t peer = source_ref(&w->sources[i]);
        io->tr->greet(io->t, &peer);
    }
}

/* An announcement that cannot be kept is refused at once, so that the rollout does not wait for this
 * worker until its deadline. */
static void on_announce(adapter_t *a, const msg_announce_t *m, uint64_t now_us)
{
    heddle_error_t error;
    const announced_t *w = NULL;
    if (!check_announce(m, &error)) {
        w = remember(a, m);
        if (!w) error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for an announcement");
    }
    if (!w) {
        error_where(&error, a->name, m->version, a->core->opts.name, "announce");
        say_nack(a, m->version, 0, &error, now_us);
        return;
    }
    greet_sources(a, w);
    feed(a,
         &(sync_event_t){.kind = SY_ANNOUNCE,
                         .version = m->version,
                         .digest = m->digest,
                         .deadline_us = m->deadline_ms * 1000},
         now_us);
}

/* A new list of sources is tried by a running fetch at once. Sync gets the count, because a version
 * without any source gives way to others. */
static void on_sources(adapter_t *a, const msg_sources_t *m, uint64_t now_us)
{
    announced_t *w = find_announced(a, m->version);
    if (!w) return;
    announced_sources(w, m->sources, m->source_count);
    greet_sources(a, w);
    if (a->pull && pull_what(a->pull) == w) pull_resource(a->pull, now_us);
    feed(a, &(sync_event_t){.kind = SY_SOURCES, .version = m->version, .source_count = w->source_count},
         now_us);
}

/* COMMIT counts only under a live lease: after its end another decision may be in force. */
void adapter_hear(adapter_t *a, const msg_t *m, uint64_t now_us)
{
    switch (m->type) {
    case MSG_ANNOUNCE: on_announce(a, &m->announce, now_us); break;
    case MSG_SOURCES: on_sources(a, &m->sources, now_us); break;
    case MSG_COMMIT:
        if (!session_is_live(&a->core->member.session, now_us)) break;
        a->commit_us = now_us;
        feed(a,
             &(sync_event_t){.kind = SY_COMMIT,
                             .version = m->commit.version,
                             .decision = m->commit.decision,
                             .digest = m->commit.digest},
             now_us);
        break;
    case MSG_ABORT: {
        bool is_overtaken = !strcmp(m->abort.code, "superseded");    /* a state, not an error of ours */
        int code = is_overtaken ? HEDDLE_ERR_VERSION_FAILED : heddle_err_from_name(m->abort.code);
        heddle_error_t error;
        error_fail(&error, code, "%s", m->abort.message);
        feed(a, &(sync_event_t){.kind = SY_ABORT, .version = m->abort.version, .error = &error}, now_us);
        break;
    }
    case MSG_RETIRE:
        feed(a, &(sync_event_t){.kind = SY_RETIRE, .version = m->retire.version}, now_us);
        break;
    default: break;
    }
    drain(a, now_us);
}

/* --- the application's answers ---------------------------------------------------------------- */

/* A rejected version gets the phase in which the application had it: one that was to become active fails
 * "activate", any other one "stage". */
int adapter_answer(adapter_t *a, const app_answer_t *answer, uint64_t now_us)
{
    static const sync_event_kind_t KINDS[] = {
        [APP_STAGED] = SY_APP_STAGED, [APP_ACTIVATE] = SY_APP_ACTIVATE, [APP_REJECT] = SY_APP_REJECT};
    heddle_error_t error = {0};
    if (answer->kind == APP_REJECT) {
        const sync_entry_t *e = sync_find(&a->sync, answer->version);
        /* A version that is already decided is still loaded first. */
        bool is_switch = e && e->state != SYNC_ARRIVED && e->decision > a->sync.applied.decision;
        const char *phase = is_switch ? "activate" : "stage";
        error = *answer->why;
        error_where(&error, a->name, answer->version, a->core->opts.name, error.phase[0] ? NULL : phase);
    }
    int rc = feed(
        a, &(sync_event_t){.kind = KINDS[answer->kind], .version = answer->version, .error = &error}, now_us);
    drain(a, now_us);
    return rc;
}

/* --- the transfer ----------------------------------------------------------------------------- */

/* Events of a read request come to the adapter that its cookie names; events of a peer or a share come to
 * every adapter, and each looks for its own. */
void adapter_transfer(adapter_t *a, const tr_event_t *event, uint64_t now_us)
{
    const node_io_t *io = a->core->io;
    if (event->kind == TR_UNSHARED) {
        for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
            slot_t *slot = slot_of(a, i);
            if (slot && slot->is_shared && !memcmp(&slot->key, &event->key, sizeof slot->key))
                slot->is_shared = false;
        }
        drain(a, now_us);
        return;
    }
    bool is_idle = a->sync.up && !sync_coming(&a->sync);    /* else the line is that version's */
    if (event->kind == TR_EARLY && is_idle) {
        const slot_t *before = a->early.slot;
        slot_t *next = slot_of(a, next_slot(a));
        early_heard(&a->early, io, event, next && next->region ? next : NULL);
        if (a->early.slot != before) a->has_surplus = true;    /* the memory of the one before */
    }
    if (event->kind == TR_EARLY) return;
    if (event->cookie & COOKIE_EARLY) {
        early_transfer(&a->early, io, event);
        return;
    }
    if (!a->pull) return;
    unreached_hear(&a->unreached, a->pull, event);
    pull_transfer(a->pull, event, now_us);
    look_at_pull(a, now_us);
}

/* --- time and work ---------------------------------------------------------------------------- */

/* Versions that the broker may retire here to make room. The list is empty while a dropped slot is about
 * to be free: no version needs to go then. */
static uint32_t list_spare(const adapter_t *a, uint64_t now_us, uint64_t ret_spare[LIMIT_SLOTS])
{
    uint32_t count = 0;
    if (!sync_lacks_slot(&a->sync, next_slot(a))) return 0;
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        const slot_t *slot = slot_of(a, e->slot);
        if (!slot || slot_readers(slot) > 0) continue;
        if (slot->state == SLOT_LEAVING && now_us < slot->leaving_us + ROOM_AGAIN_US) return 0;
        bool is_named = e->decision > a->sync.applied.decision;
        if (e->state == SYNC_KEPT && !is_named) ret_spare[count++] = e->version;
    }
    return count;
}

/* While a version waits for a slot, heartbeats list the kept versions that may go, and the broker retires
 * one of them here. Returns when to look again: a reader that releases a kept version does not wake this
 * thread. */
static uint64_t ask_for_room(adapter_t *a, uint64_t now_us)
{
    uint64_t spare[LIMIT_SLOTS];
    if (!sync_lacks_slot(&a->sync, next_slot(a))) return CLOCK_NEVER;
    if (now_us < a->room_us) return a->room_us;
    a->room_us = now_us + ROOM_AGAIN_US;
    if (list_spare(a, now_us, spare)) a->core->heartbeat(a->core->self);
    return a->room_us;
}

/* Slots are drained before sync gets the time, so that a version is not refused for lack of a slot that
 * is free already. */
uint64_t adapter_tick(adapter_t *a, uint64_t now_us)
{
    uint64_t next = CLOCK_NEVER;
    drain(a, now_us);
    if (now_us >= sync_deadline(&a->sync)) {
        feed(a, &(sync_event_t){.kind = SY_TICK}, now_us);
        drain(a, now_us);    /* memory that was being made is free at once */
    }
    if (a->pull) next = pull_tick(a->pull, now_us);
    look_at_pull(a, now_us);
    next = clock_earlier(next, ask_for_room(a, now_us));
    return clock_earlier(next, sync_deadline(&a->sync));
}

/* Memory is being made, which is work for adapter_work. */
static bool is_reserving(const adapter_t *a)
{
    const sync_entry_t *e = sync_coming(&a->sync);
    return e && e->state == SYNC_RESERVING;
}

/* Work is what needs no event to go on: making memory, comparing digests, giving memory back. */
bool adapter_has_work(const adapter_t *a)
{
    return is_reserving(a) || (a->pull && pull_has_work(a->pull)) || a->has_surplus;
}

/* The order matters: memory that the next version needs must not be given back first. */
void adapter_work(adapter_t *a, uint64_t now_us)
{
    if (is_reserving(a)) {
        go_on(a, now_us);
    } else if (a->pull && pull_has_work(a->pull)) {
        pull_work(a->pull, now_us);
        look_at_pull(a, now_us);
    } else {
        a->has_surplus = slots_trim(a->core->slots, a->index, a->early.slot);
    }
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
        const announced_t *w = find_announced(a, e->version);
        msg_held_t *h = &ret_rows[count++];
        *h = (msg_held_t){a->name, e->version, STATES[e->state], e->digest};
        if (!w || !w->sealed_us) continue;
        h->connect_us = took(w->connect_us);
        h->fetch_us = took(w->fetch_us);
        h->verify_us = took(w->verify_us);
        h->stage_us = w->stage_us;
        h->activate_us = w->activate_us;
    }
    return count;
}

/* A version that the application loads comes before one that is fetched meanwhile: it reaches its end
 * first, and the broker keeps the version that a heartbeat names. */
msg_progress_t adapter_progress(const adapter_t *a, uint64_t now_us, uint64_t ret_spare[LIMIT_SLOTS])
{
    msg_progress_t p = {.adapter = a->name,
                        .held_count = slots_count(a->core->slots, a->index).held,
                        .spare = ret_spare,
                        .spare_count = list_spare(a, now_us, ret_spare)};
    const sync_entry_t *loading = sync_loading(&a->sync);
    const announced_t *w = loading ? find_announced(a, loading->version) : NULL;
    if (w) {    /* before what is fetched meanwhile: it comes to its end first */
        p.fetching = w->version;
        p.bytes_done = p.data_bytes = w->part[0].region_bytes;
    } else if (a->pull) {
        const heddle_error_t *why = unreached_error(&a->unreached, a->pull);
        p.fetching = pull_what(a->pull)->version;
        p.bytes_done = pull_bytes_done(a->pull);
        p.data_bytes = pull_what(a->pull)->part[0].region_bytes;
        p.source = pull_source(a->pull);
        p.message = why ? why->message : NULL;
    }
    return p;
}

/* --- life ------------------------------------------------------------------------------------- */

/* All other fields begin as zero: no version, no fetch. */
void adapter_init(adapter_t *a, worker_core_t *core, uint32_t index)
{
    *a = (adapter_t){.core = core, .index = index, .name = slots_adapter(core->slots, index)};
    a->early.cookie = cookie_of(index) | COOKIE_EARLY;
    sync_init(&a->sync, core->opts.app);
}

/* Shares end here; TR_UNSHARED follows when the last send of each is over. */
void adapter_end(adapter_t *a)
{
    const node_io_t *io = a->core->io;
    pull_destroy(&a->pull);
    early_end(&a->early, io);
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
    for (const announced_t *w = is_idle ? NULL : a->announced; w; w = w->next)
        for (uint32_t i = 0; i < w->source_count; i++) io->tr->drop_peer(io->t, w->sources[i].token);
    return !is_idle;
}

/* Announcements stay until now: adapter_drop_sources needs the tokens of their sources. */
void adapter_free(adapter_t *a)
{
    while (a->announced) {
        announced_t *w = a->announced;
        a->announced = w->next;
        free(w);
    }
}
