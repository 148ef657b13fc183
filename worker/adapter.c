/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/adapter.h"

#include "client/sharing.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "formats/kind.h"

#include <inttypes.h>
#include <stdlib.h>

/* NULL for an entry without a slot, and for a slot that was never reserved. */
static slot_t *slot_of(const adapter_t *a, int slot)
{
    return slot < 0 ? NULL : slots_at(a->core->bulk.slots, a->index, (uint32_t)slot);
}

/* versions_step does not pick a slot by itself: the table knows which one is free. */
static versions_slots_t look_at_slots(const adapter_t *a)
{
    const intake_t *in = &a->intake;
    versions_slots_t view = {.next = slots_next_free(a->core->bulk.slots, a->index)};
    if (in->state == INTAKE_DOWNLOADING)
        view.is_half_fetched = intake_bytes(in) >= announced_payload_bytes(in->what) / 2;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        if (!slot) break; /* slots are made in the order of their index */
        if (slot->state == SLOT_LEAVING) view.leaving[view.leaving_count++] = slot->taken_for;
    }
    return view;
}

/* --- what is said: to the application and to the broker --------------------------------------- */

/* The event carries the reason of a failure, since the application cannot ask for it later. */
void adapter_tell(adapter_t *a, const versions_action_t *action)
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
    if (action->err) { /* A failure here, which versions_t remembers, or the reason that the broker gave. */
        const versions_nack_t *nack = versions_nack(&a->versions, action->version, VERSIONS_ANY_DECISION);
        const heddle_error_t *why = nack ? &nack->error : NULL;
        if (!why || why->code != action->err) why = action->why;
        error_text(event.message, sizeof event.message, why ? why->message : heddle_err_text(action->err));
        event.retriable = why ? why->retriable : 0;
    }
    member_tell(&a->core->member, &event);
}

/* The broker has decided for a version that no process has.  The application and the log get one report of
 * what the worker waits for, however often the session is renewed.  It is STALE: after FAILED an exported
 * copy would be removed, which may be the last one. */
static void report_lost(adapter_t *a, uint64_t version, const heddle_error_t *why)
{
    const decision_t *decided = &a->versions.decided;
    bool is_decided = decided->version == version;
    if (a->lost_version == version) return;
    a->lost_version = version;
    log_emit(LOG_WARN, "version.lost", "%s: %s", heddle_err_name(why->code), why->message);
    adapter_tell(a, &(versions_action_t){.event = HEDDLE_EVENT_STALE,
                                         .version = version,
                                         .decision = is_decided ? decided->decision : 0,
                                         .digest = is_decided ? decided->digest : (digest_t){{0}},
                                         .err = why->code,
                                         .why = why});
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

/* Where others of this host may hold a version that is SEALED here; generation 0: nowhere. */
static msg_region_t region_of(const adapter_t *a, int slot, bool *ret_is_held)
{
    const slot_t *s = a->core->bulk.sharing ? slot_of(a, slot) : NULL;
    content_id_t id =
        s && s->parts[0].region ? regions_offered(s->parts[0].region) : (content_id_t){.generation = 0};
    *ret_is_held = s && s->parts[0].region && s->parts[0].region->held;
    return sharing_region(&id);
}

/* STAGED, ACTIVE or NACK; `why`: of a NACK. They are sent once: a lost one would be missing at the broker
 * until the worker joins again, so the next heartbeat makes it join. One that can never be sent would make it
 * join without end: it is dropped, and of a NACK the code alone is sent. Operators see times, sources and
 * reasons at the broker, because they cannot see this worker's log. False: it is to be sent again. */
static bool send_outcome(adapter_t *a, const versions_action_t *action, const heddle_error_t *why,
                         uint64_t now_us)
{
    announced_t *w = action->what;
    const node_io_t *io = a->core->io;
    uint64_t token = a->core->member.session.token;
    bool has_times = w && w->sealed_us; /* not of a version that was staged before the process began */
    msg_served_t rows[ANNOUNCED_SERVED_MAX];
    msg_t m = {0};
    if (action->kind == VA_SEND_STAGED) {
        tr_counters_t c;
        io->tr->counters(io->t, &c);
        m.type = MSG_STAGED;
        m.staged = (msg_staged_t){.verified = w && w->is_verified_for ? VERIFIED_ON_HOST : VERIFIED_HERE,
                                  .bytes_in = c.bytes_in,
                                  .bytes_out = c.bytes_out,
                                  .chunks_bad = a->core->bulk.chunks_bad,
                                  .retries = a->core->bulk.retries,
                                  .token = token,
                                  .version = action->version,
                                  .adapter = a->name,
                                  .digest = action->digest,
                                  .sources = rows};
        const versions_entry_t *e = versions_find(&a->versions, action->version);
        if (e) m.staged.region = region_of(a, e->slot, &m.staged.held);
        if (has_times) {
            m.staged.connect_us = took(w->connect_us);
            m.staged.fetch_us = took(w->fetch_us);
            m.staged.verify_us = took(w->verify_us);
            m.staged.busy_us = loading_from(a, w) - w->sealed_us;
            m.staged.stage_us = w->stage_us = took(now_us - loading_from(a, w));
            for (uint32_t i = 0; i < w->served_count; i++) {
                const served_t *s = &w->served[i];
                rows[m.staged.source_count++] = (msg_served_t){.token = s->token,
                                                               .kind = s->kind,
                                                               .bytes = s->bytes,
                                                               .name = s->name,
                                                               .moved = {.late = s->moved[MOVED_LATE],
                                                                         .gone = s->moved[MOVED_GONE],
                                                                         .refused = s->moved[MOVED_REFUSED],
                                                                         .bad = s->moved[MOVED_BAD],
                                                                         .slow = s->moved[MOVED_SLOW]}};
            }
        }
    } else if (action->kind == VA_SEND_ACTIVE) {
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
        if (w && w->connect_us) m.nack.connect_us = w->connect_us; /* also where the bytes never were whole */
        if (has_times) {
            m.nack.connect_us = took(w->connect_us);
            m.nack.fetch_us = took(w->fetch_us);
            m.nack.verify_us = took(w->verify_us);
            m.nack.stage_us = w->stage_us ? w->stage_us : took(now_us - loading_from(a, w));
        }
    }
    int rc = member_send(&a->core->member, &m);
    if (rc && !member_may_resend(rc) && m.type == MSG_NACK) {
        m.nack = (msg_nack_t){.token = token,
                              .version = action->version,
                              .decision = action->decision,
                              .adapter = a->name,
                              .code = m.nack.code};
        rc = member_send(&a->core->member, &m);
    }
    a->core->has_unsent |= member_may_resend(rc);
    return !member_may_resend(rc);
}

/* VERIFIED that no VERIFY asked for. Of a version that is dropped NACK says it. */
static void send_damaged(adapter_t *a, const versions_entry_t *e)
{
    if (!a->versions.up) return; /* said after the next WELCOME */
    msg_t m = {.type = MSG_VERIFIED};
    m.verified = (msg_verified_t){.token = a->core->member.session.token,
                                  .version = e->version,
                                  .adapter = a->name,
                                  .code = heddle_err_name(HEDDLE_ERR_DIGEST_MISMATCH)};
    (void)member_send(&a->core->member, &m);
}

/* --- the version that is COMING --------------------------------------------------------------- */

/* What is fetched after its decision is fetched late: later decisions may overtake it, and the broker keeps
 * a version that a worker names in its heartbeat. What is held comes too soon for that. */
static void tell_fetching(intake_t *in)
{
    adapter_t *a = in->self;
    announced_t *w = in->what;
    adapter_tell(a, &(versions_action_t){.event = HEDDLE_EVENT_FETCHING,
                                         .version = w->version,
                                         .what = w,
                                         .digest = w->h1});
    bool is_chosen = versions_is_chosen(&a->versions, versions_coming(&a->versions));
    if (in->state == INTAKE_DOWNLOADING && a->versions.up && is_chosen) a->core->heartbeat(a->core->self);
}

/* True when the intake is at its end, which is the next event of versions_t; `error` is part of it. The
 * intake goes first, for versions_step may begin the next one within that event. */
static bool end_intake(adapter_t *a, versions_event_t *ret_event, heddle_error_t *error)
{
    intake_t *in = &a->intake;
    if (!intake_has_ended(in)) return false;
    *ret_event = (versions_event_t){.kind = VE_ARRIVED, .version = in->what->version, .error = error};
    if (in->state == INTAKE_FAILED) {
        ret_event->kind = VE_BRING_FAILED;
        const char *phase = in->error.phase[0] ? NULL : in->slot ? "fetch" : "announce";
        *error = in->error;
        error_where(error, a->name, in->what->version, a->core->opts.name, phase);
    }
    intake_end(in);
    return true;
}

/* --- versions: an event, and the actions that follow ------------------------------------------ */

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
    error_fail(error, HEDDLE_ERR_NO_SLOT, "all %u slots are in use: %s", a->versions.slot_count,
               buf_text(&text));
    error_where(error, a->name, version, a->core->opts.name, "announce");
    error_expected(error, "a free slot");
    error_found(error, "none of %u", a->versions.slot_count);
    error_hint(error, "release snapshots that are no longer used, or run the worker with more opts.slots");
    buf_fini(&text);
}

/* Each action is obeyed at once and in order: a DROP must find the slot as the FLIP before it left it. */
static void obey(adapter_t *a, const versions_action_t *action, uint64_t now_us)
{
    const node_io_t *io = a->core->io;
    slot_t *slot = slot_of(a, action->slot);
    bool fails =
        action->kind == VA_SEND_NACK || (action->kind == VA_TELL_APP && action->event == HEDDLE_EVENT_FAILED);
    versions_nack_t *why = fails ? versions_nack(&a->versions, action->version, VERSIONS_ANY_DECISION) : NULL;
    if (why && why->lacks_occupants) {
        describe_slots(a, why->version, &why->error, now_us);
        why->lacks_occupants = false;
    }
    switch (action->kind) {
    case VA_BRING:
        intake_begin(&a->intake, action->what, (uint32_t)action->slot);
        intake_work(&a->intake, now_us);
        break;
    case VA_SEND_STAGED:
        if (FAILPOINT("worker.before_staged")) break;
        send_outcome(a, action, NULL, now_us);
        break;
    case VA_SEND_ACTIVE: send_outcome(a, action, NULL, now_us); break;
    case VA_SEND_NACK: {
        versions_nack_t *nack = versions_nack(&a->versions, action->version, action->decision);
        if (nack && !send_outcome(a, action, &nack->error, now_us))
            nack->pending = true; /* after the next WELCOME */
        break;
    }
    case VA_TELL_APP: adapter_tell(a, action); break;
    case VA_FLIP:
        (void)FAILPOINT("worker.before_flip");
        slots_activate(a->core->bulk.slots, slot);
        (void)FAILPOINT("worker.after_flip");
        break;
    case VA_FORGET:
        announced_unshare(action->what, io); /* it may be expected */
        free(action->what);
        break;
    case VA_DROP:
        /* Nothing is requested into the slot any more; what is under way may still land (free_dropped). Those
         * that wait for its bytes ask another source at once, also where it is begun anew later. */
        announced_unshare(action->what, io);
        if (!slot) break; /* nor was there anything: its struct could not be made */
        if (a->intake.slot == slot) intake_end(&a->intake);
        slot_drop(slot, now_us);
        break;
    }
}

/* Gives one event to versions_step and obeys its actions.  Returns its answer to an event of the
 * application. */
static int feed_versions(adapter_t *a, const versions_event_t *event, uint64_t now_us)
{
    versions_action_t actions[VERSIONS_ACTIONS_MAX];
    versions_slots_t slots = look_at_slots(a);
    int count = versions_step(&a->versions, event, &slots, now_us, actions);
    for (int i = 0; i < count; i++) obey(a, &actions[i], now_us);
    return count < 0 ? count : HEDDLE_OK;
}

/* Frees a slot that was dropped, once no reader holds it and no open receive can write into it. Only then may
 * another version use the memory. True with the event for versions_step. */
static bool free_dropped(adapter_t *a, versions_event_t *ret_event)
{
    const node_io_t *io = a->core->io;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        slot_t *slot = slot_of(a, i);
        if (!slot || slot->state != SLOT_LEAVING) continue;
        bool is_written = slot->parts[0].region && !io->tr->idle(io->t, slot->parts[0].region);
        if (!slot_is_unread(slot) || is_written) continue;
        slot_free(slot);
        *ret_event = (versions_event_t){.kind = VE_DRAINED};
        return true;
    }
    return false;
}

static void ask_for_sources(adapter_t *a, uint64_t now_us)
{
    intake_t *in = &a->intake;
    uint64_t lost[LIMIT_SOURCES * 2], unmet[LIMIT_SERVED], bad[LIMIT_SERVED], slow[LIMIT_SERVED];
    uint32_t count = intake_lost(in, lost, LIMIT_SOURCES * 2);
    if (!a->versions.up) return;
    msg_t m = {.type = MSG_NEED_SOURCES};
    m.need_sources = (msg_need_sources_t){.token = a->core->member.session.token,
                                          .version = in->what->version,
                                          .adapter = a->name,
                                          .lost = lost,
                                          .lost_count = count,
                                          .unmet = unmet,
                                          .bad = bad,
                                          .slow = slow};
    m.need_sources.bad_count = download_blamed(in->download, BLAME_BAD, bad, LIMIT_SERVED);
    m.need_sources.slow_count = download_blamed(in->download, BLAME_SLOW, slow, LIMIT_SERVED);
    for (uint32_t i = 0; i < count && i < LIMIT_SERVED; i++)
        if (!intake_has_failed(in, lost[i])) unmet[m.need_sources.unmet_count++] = lost[i];
    (void)member_send(&a->core->member, &m); /* the fetch asks again */
    intake_unreached(in, lost, count, now_us);
}

/* One that no source can be reached for fails shortly before its deadline, while the broker still waits for a
 * NACK that says why. */
static uint64_t give_up(adapter_t *a, uint64_t now_us)
{
    const versions_entry_t *coming = versions_coming(&a->versions);
    uint64_t deadline_us = a->versions.up && coming ? coming->deadline_us : CLOCK_NEVER;
    if (deadline_us != CLOCK_NEVER) deadline_us -= VERSIONS_GRACE_US;
    return intake_give_up(&a->intake, deadline_us, now_us);
}

/* The last step of each call from outside.  It is the one place where an intake ends and a dropped slot is
 * freed, each with its event; an event may lead to the next one. */
static void follow_up(adapter_t *a, uint64_t now_us)
{
    versions_event_t event;
    heddle_error_t error;
    bool has_arrived = false, is_held;
    if (intake_needs_sources(&a->intake)) ask_for_sources(a, now_us);
    while (end_intake(a, &event, &error) || free_dropped(a, &event)) {
        feed_versions(a, &event, now_us);
        has_arrived |= event.kind == VE_ARRIVED;
    }
    /* Others of this host wait for the bytes, and not until the application has loaded them: STAGED is sent
     * only then. */
    const versions_entry_t *loading = has_arrived && a->versions.up ? versions_loading(&a->versions) : NULL;
    if (loading && region_of(a, loading->slot, &is_held).generation) a->core->heartbeat(a->core->self);
}

/* --- the session ------------------------------------------------------------------------------ */

/* WELCOME names the decision to serve and the versions to keep; versions_step compares both with what this
 * worker has. */
void adapter_up(adapter_t *a, const msg_welcome_t *m, uint64_t now_us)
{
    uint64_t keep[VERSIONS_ENTRIES];
    versions_event_t event = {.kind = VE_UP,
                              .slot_count = m->slots < LIMIT_SLOTS ? (uint32_t)m->slots : LIMIT_SLOTS,
                              .keep = keep};
    for (uint32_t i = 0; i < m->adapter_count; i++) {
        if (strcmp(m->adapters[i].adapter, a->name) != 0) continue;
        event.decision = m->adapters[i].decision;
        event.version = m->adapters[i].version;
        event.digest = m->adapters[i].digest;
    }
    /* Which of what is held may stay: a list of the broker needs no memory, for at most so many are held. */
    for (uint32_t i = 0; i < m->keep_count && event.keep_count < VERSIONS_ENTRIES; i++)
        if (!strcmp(m->keep[i].adapter, a->name) && versions_find(&a->versions, m->keep[i].version))
            keep[event.keep_count++] = m->keep[i].version;
    a->commit_us = now_us;
    feed_versions(a, &event, now_us);
    for (const versions_entry_t *e = a->versions.entries; e < a->versions.entries + VERSIONS_ENTRIES; e++)
        if (versions_is_here(e) && e->is_damaged) send_damaged(a, e);
    follow_up(a, now_us);
}

/* The lease is over: decisions that were not applied yet count no more, and reads go on. */
void adapter_down(adapter_t *a, uint64_t now_us)
{
    feed_versions(a, &(versions_event_t){.kind = VE_DOWN}, now_us);
    follow_up(a, now_us);
}

/* --- the broker's messages -------------------------------------------------------------------- */

/* Connecting takes longer than a small fetch, so it begins with the list of sources and not with the first
 * read request. Memory of this host is held, without a connection; where that fails the first read request
 * connects. A failure needs no handling here: the first read request fails then.
 * True: the intake of this version gets nowhere, and another process of the host has the bytes by now. */
static bool receive_sources(adapter_t *a, const announced_t *w, bool has_lost_all, uint64_t now_us)
{
    const node_io_t *io = a->core->io;
    /* A process that lacks descriptors connects to nothing; that is reported when the slot is reserved. */
    bool may_connect = !a->core->bulk.check || !a->core->bulk.check(NULL);
    for (uint32_t i = 0; i < w->source_count && may_connect; i++) {
        peer_ref_t peer = source_ref(&w->sources[i]);
        bool is_to_hold = a->core->bulk.sharing && w->sources[i].region.generation;
        if (!is_to_hold) io->tr->greet(io->t, &peer);
    }
    if (a->intake.what != w) return false;
    if (intake_is_better_held(&a->intake, has_lost_all, now_us)) return true;
    intake_new_sources(&a->intake, now_us);
    return false;
}

/* A version of another kind is of no use to the application, which may not even know that there are such. */
static int check_kind(const adapter_t *a, const msg_announce_t *m, heddle_error_t *error)
{
    static const char *const LORA[] = {"lora", NULL};
    const char *const *kinds = a->core->opts.kinds ? a->core->opts.kinds : LORA;
    char taken[64] = "";
    for (uint32_t i = 0; kinds[i]; i++) {
        if (!strcmp(kinds[i], kind_name(m->kind))) return HEDDLE_OK;
        size_t used = strlen(taken);
        text_printf(taken + used, sizeof taken - used, "%s%s", used ? ", " : "", kinds[i]);
    }
    int rc =
        error_fail(error, HEDDLE_ERR_UNSUPPORTED_FEATURE,
                   "%s is of kind %.64s, and this worker takes only %s", a->name, kind_name(m->kind), taken);
    error_contrast(error, taken, kind_name(m->kind));
    error_hint(error, "run the worker with opts.kinds %.64s, or do not subscribe it to %.100s",
               kind_name(m->kind), a->name);
    return rc;
}

/* Each message is one event of versions_t, after what this adapter keeps of it. */
void adapter_receive(adapter_t *a, const msg_t *m, uint64_t now_us)
{
    heddle_error_t error;
    versions_event_t event;
    const versions_entry_t *e;
    announced_t *w;
    switch (m->type) {
    case MSG_ANNOUNCE:
        e = versions_find(&a->versions, m->announce.version);
        w = e ? e->what : NULL;
        w = check_kind(a, &m->announce, &error)
                ? NULL
                : announced_receive(w, &m->announce, w && intake_is_fetching(&a->intake, w), &error);
        if (!w) {
            /* Refused at once, so that the rollout does not wait for this worker until its deadline. */
            error_where(&error, a->name, m->announce.version, a->core->opts.name, "announce");
            send_outcome(a, &(versions_action_t){.kind = VA_SEND_NACK, .version = m->announce.version},
                         &error, now_us);
            break;
        }
        if (a->lost_version == w->version) a->lost_version = 0;
        /* This one may be named to other workers as a source, and ask before the version has memory here. */
        announced_expect(w, a->core->io);
        event = (versions_event_t){.kind = VE_HOLDABLE, .version = w->version};
        if (receive_sources(a, w, false, now_us)) feed_versions(a, &event, now_us);
        event = (versions_event_t){.kind = VE_ANNOUNCE,
                                   .version = w->version,
                                   .what = w,
                                   .digest = m->announce.digest,
                                   .deadline_us = m->announce.deadline_ms * 1000,
                                   .is_kept = m->announce.kept};
        feed_versions(a, &event, now_us);
        break;
    case MSG_SOURCES:
        e = versions_find(&a->versions, m->sources.version);
        if (!e) break;
        w = e->what;
        announced_sources(w, m->sources.sources, m->sources.source_count);
        /* They come when a fetch has lost all others, and it tries the new list at once. versions_step gets
         * the count, because a version without any source gives way to others. */
        event =
            (versions_event_t){.kind = VE_SOURCES, .version = w->version, .source_count = w->source_count};
        if (receive_sources(a, w, true, now_us)) event.kind = VE_HOLDABLE;
        feed_versions(a, &event, now_us);
        break;
    case MSG_COMMIT:
        a->commit_us = now_us;
        event = (versions_event_t){.kind = VE_COMMIT,
                                   .version = m->commit.version,
                                   .decision = m->commit.decision,
                                   .digest = m->commit.digest};
        feed_versions(a, &event, now_us);
        break;
    case MSG_ABORT: {
        bool is_overtaken = !strcmp(m->abort.code, "superseded"); /* a state, not an error of ours */
        int code = is_overtaken ? HEDDLE_ERR_VERSION_FAILED : heddle_err_from_name(m->abort.code);
        error_fail(&error, code, "%s", m->abort.message);
        bool is_known = versions_find(&a->versions, m->abort.version);
        feed_versions(a, &(versions_event_t){.kind = VE_ABORT, .version = m->abort.version, .error = &error},
                      now_us);
        /* A version that was dropped now has failed.  One that stays, since it is decided, waits on. */
        e = versions_find(&a->versions, m->abort.version);
        if (code == HEDDLE_ERR_VERSION_LOST && (e ? !versions_is_here(e) : !is_known))
            report_lost(a, m->abort.version, &error);
        break;
    }
    case MSG_RETIRE:
        feed_versions(a, &(versions_event_t){.kind = VE_RETIRE, .version = m->retire.version}, now_us);
        break;
    default: break;
    }
    follow_up(a, now_us);
}

/* --- the application's answers ---------------------------------------------------------------- */

/* A rejected version gets the phase in which the application had it: one that was to become active fails
 * "activate", any other one "stage". */
int adapter_answer(adapter_t *a, const app_answer_t *answer, uint64_t now_us)
{
    static const versions_event_kind_t KINDS[] =
        {[APP_STAGED] = VE_APP_STAGED, [APP_ACTIVATE] = VE_APP_ACTIVATE, [APP_REJECT] = VE_APP_REJECT};
    heddle_error_t error = {0};
    if (answer->kind == APP_REJECT) {
        const versions_entry_t *e = versions_find(&a->versions, answer->version);
        /* A version that is already decided is still loaded first. */
        bool is_switch = e && e->state != VERSIONS_ARRIVED && versions_is_chosen(&a->versions, e);
        const char *phase = is_switch ? "activate" : "stage";
        error = *answer->why;
        error_where(&error, a->name, answer->version, a->core->opts.name, error.phase[0] ? NULL : phase);
    }
    int rc = feed_versions(
        a, &(versions_event_t){.kind = KINDS[answer->kind], .version = answer->version, .error = &error},
        now_us);
    if (!rc) a->answered_us = now_us; /* after the step, which counts up to the answer before */
    follow_up(a, now_us);
    return rc;
}

/* --- the transfer ----------------------------------------------------------------------------- */

/* Events of a read request come to the adapter that its cookie names; events of a peer come to every adapter.
 */
void adapter_receive_transfer(adapter_t *a, const tr_event_t *event, uint64_t now_us)
{
    intake_transfer(&a->intake, event, now_us);
    follow_up(a, now_us);
}

/* --- time and work ---------------------------------------------------------------------------- */

/* Versions that the broker may retire here to make room. The list is empty while a dropped slot is about
 * to be free: no version needs to go then. */
static uint32_t list_spare(const adapter_t *a, uint64_t now_us, uint64_t ret_spare[LIMIT_SLOTS])
{
    uint32_t count = 0;
    versions_slots_t slots = look_at_slots(a);
    if (!versions_lacks_slot(&a->versions, &slots)) return 0;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        bool is_leaving = slot && slot_is_unread(slot);
        if (is_leaving && now_us < slot->leaving_us + ROOM_AGAIN_US) return 0;
    }
    /* A slot that a reader holds would not be free after its version has gone. */
    for (uint32_t i = 0; i < VERSIONS_ENTRIES; i++) {
        const versions_entry_t *e = &a->versions.entries[i];
        bool may_go = e->state == VERSIONS_KEPT && !versions_is_chosen(&a->versions, e);
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
    versions_slots_t slots = look_at_slots(a);
    if (!versions_lacks_slot(&a->versions, &slots)) return CLOCK_NEVER;
    if (now_us < a->room_us) return a->room_us;
    a->room_us = now_us + ROOM_AGAIN_US;
    if (list_spare(a, now_us, spare)) a->core->heartbeat(a->core->self);
    return a->room_us;
}

/* Dropped slots are freed before versions_step gets the time: no version is refused for lack of a slot that
 * is free already. */
uint64_t adapter_tick(adapter_t *a, uint64_t now_us)
{
    follow_up(a, now_us);
    if (now_us >= versions_deadline(&a->versions)) {
        feed_versions(a, &(versions_event_t){.kind = VE_TICK}, now_us);
        follow_up(a, now_us);
    }
    uint64_t next = intake_tick(&a->intake, now_us);
    next = clock_earlier(next, give_up(a, now_us));
    follow_up(a, now_us);
    next = clock_earlier(next, ask_for_room(a, now_us));
    return clock_earlier(next, versions_deadline(&a->versions));
}

bool adapter_is_fetching(const adapter_t *a) { return a->intake.state != INTAKE_NONE; }

/* A check, of VERIFY or before another version relies on the bytes, has withdrawn a region: what is in it is
 * served to no other process any more. Those that wait for its bytes ask another source at once. */
static void follow_checks(adapter_t *a, uint64_t now_us)
{
    for (uint32_t i = 0; i < VERSIONS_ENTRIES; i++) {
        const versions_entry_t *e = &a->versions.entries[i];
        if (!versions_is_here(e) || e->is_damaged ||
            !regions_is_withdrawn(slot_of(a, e->slot)->parts[0].region))
            continue;
        log_emit(LOG_ERROR, "version.damaged",
                 "the bytes of %s@%" PRIu64 " in memory have gone bad: others get them here no more", a->name,
                 e->version);
        announced_unshare(e->what, a->core->io);
        feed_versions(a, &(versions_event_t){.kind = VE_DAMAGED, .version = e->version}, now_us);
        if (e->is_damaged) send_damaged(a, e);
    }
}

/* Work is what needs no event to go on. */
bool adapter_work(adapter_t *a, uint64_t now_us)
{
    bool has_worked = intake_work(&a->intake, now_us);
    follow_up(a, now_us);
    follow_checks(a, now_us);
    follow_up(a, now_us);
    return has_worked;
}

/* --- rows of JOIN and HEARTBEAT --------------------------------------------------------------- */

/* JOIN lists what is held here, with its times, so that a broker that was restarted reports the same as
 * before. */
uint32_t adapter_join_rows(const adapter_t *a, uint64_t now_us, msg_held_t *ret_rows, uint32_t cap)
{
    static const uint64_t STATES[VERSIONS_STATE_COUNT] = {[VERSIONS_ARRIVED] = HELD_SEALED,
                                                          [VERSIONS_STAGED] = HELD_STAGED,
                                                          [VERSIONS_ACTIVE] = HELD_ACTIVE,
                                                          [VERSIONS_KEPT] = HELD_KEPT};
    uint32_t count = 0;
    for (uint32_t i = 0; i < VERSIONS_ENTRIES && count < cap; i++) {
        const versions_entry_t *e = &a->versions.entries[i];
        if (!versions_is_here(e)) continue;
        const announced_t *w = e->what;
        msg_held_t *h = &ret_rows[count++];
        *h = (msg_held_t){a->name, e->version, STATES[e->state], e->digest};
        h->age_us = took(now_us - e->since_us);
        h->verified = w->is_verified_for ? VERIFIED_ON_HOST : VERIFIED_HERE;
        h->region = region_of(a, e->slot, &h->held);
        if (!w->sealed_us) continue;
        h->connect_us = took(w->connect_us);
        h->fetch_us = took(w->fetch_us);
        h->verify_us = took(w->verify_us);
        h->stage_us = w->stage_us;
        h->activate_us = w->activate_us;
    }
    return count;
}

/* Tokens for a half of the chunks, `asked` first.  Returns how many. */
static uint32_t join_list(const announced_t *w, uint64_t half, uint64_t asked,
                          uint64_t ret_tokens[LIMIT_SOURCES])
{
    uint64_t tokens[LIMIT_SOURCES];
    uint32_t found = announced_tokens(w, half, tokens), count = 0;
    for (uint32_t i = 0; i < found; i++)
        if (tokens[i] == asked) ret_tokens[count++] = asked;
    for (uint32_t i = 0; i < found; i++)
        if (tokens[i] != asked) ret_tokens[count++] = tokens[i];
    return count;
}

bool adapter_join_fetched(const adapter_t *a, uint64_t ret_sources[LIMIT_SOURCES],
                          uint64_t ret_others[LIMIT_SOURCES], msg_fetched_t *ret_row)
{
    const intake_t *in = &a->intake;
    if (!intake_is_fetching(in, in->what) || !in->what->source_count) return false;
    const announced_t *w = in->what;
    uint64_t half = w->sources[0].half, asked[3] = {0};
    for (uint32_t i = 0; i < in->download->run_count; i++)
        asked[in->download->runs[i].half] = in->download->runs[i].asked;
    *ret_row = (msg_fetched_t){.adapter = a->name,
                               .version = w->version,
                               .half = half,
                               .sources = ret_sources,
                               .others = ret_others};
    ret_row->source_count = join_list(w, half, asked[half], ret_sources);
    if (half) ret_row->other_count = join_list(w, 3 - half, asked[3 - half], ret_others);
    return true;
}

/* A version that waits for its former slot is reported with the reason, because the wait may be long: it ends
 * with the last reader, and the last transfer, of what was dropped there.  `data_bytes` stays 0: it has not
 * begun. */
static void fill_barred(adapter_t *a, msg_progress_t *p)
{
    versions_slots_t slots = look_at_slots(a);
    const versions_entry_t *e = versions_barred(&a->versions, &slots);
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
                        .held_count = slots_count(a->core->bulk.slots, a->index).held,
                        .spare = ret_spare,
                        .spare_count = list_spare(a, now_us, ret_spare)};
    const versions_entry_t *loading = versions_loading(&a->versions);
    const announced_t *w = loading ? loading->what : NULL;
    if (w) { /* before what is fetched meanwhile: it comes to its end first */
        p.fetching = w->version;
        p.bytes_done = p.data_bytes = announced_payload_bytes(w);
        p.region = region_of(a, loading->slot, &(bool){false});
    } else if (a->intake.state == INTAKE_DOWNLOADING) {
        const heddle_error_t *why = intake_trouble(&a->intake);
        p.fetching = a->intake.what->version;
        p.bytes_done = intake_bytes(&a->intake);
        p.data_bytes = announced_payload_bytes(a->intake.what);
        p.source = intake_source(&a->intake);
        p.message = why ? why->message : NULL;
    } else if (!versions_coming(&a->versions)) {
        fill_barred(a, &p);
    }
    return p;
}

/* --- life ------------------------------------------------------------------------------------- */

/* All other fields begin as zero: no version, no fetch. */
void adapter_init(adapter_t *a, worker_core_t *core, uint32_t index)
{
    *a = (adapter_t){.core = core, .index = index, .name = slots_adapter(core->bulk.slots, index)};
    a->intake = (intake_t){.bulk = &core->bulk,
                           .adapter = index,
                           .versions = &a->versions,
                           .begun = tell_fetching,
                           .self = a};
    versions_init(&a->versions, core->opts.app);
}

void adapter_end(adapter_t *a)
{
    const node_io_t *io = a->core->io;
    intake_end(&a->intake);
    for (const versions_entry_t *e = a->versions.entries; e < a->versions.entries + VERSIONS_ENTRIES; e++)
        if (e->what) announced_unshare(e->what, io);
}

/* At the end of the node memory must not be unregistered while the transfer may write into it. Closing
 * the connections to the sources ends such writes. */
bool adapter_drop_sources(adapter_t *a)
{
    const node_io_t *io = a->core->io;
    bool is_idle = true;
    for (int i = 0; i < (int)LIMIT_SLOTS; i++) {
        const slot_t *slot = slot_of(a, i);
        if (slot && slot->parts[0].region && !io->tr->idle(io->t, slot->parts[0].region)) is_idle = false;
    }
    for (const versions_entry_t *e = a->versions.entries;
         !is_idle && e < a->versions.entries + VERSIONS_ENTRIES; e++)
        for (uint32_t i = 0; e->what && i < e->what->source_count; i++)
            io->tr->drop_peer(io->t, e->what->sources[i].token);
    return !is_idle;
}

/* Announcements stay until now: adapter_drop_sources needs the tokens of their sources. */
void adapter_free(adapter_t *a)
{
    for (uint32_t i = 0; i < VERSIONS_ENTRIES; i++) free(a->versions.entries[i].what);
}
