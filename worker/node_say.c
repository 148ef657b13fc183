/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a worker: built from the state of its node. */
#include "core/errors.h"
#include "core/failpoint.h"
#include "worker/node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEVICES_MAX = 16 };

int say(worker_node_t *n, const msg_t *m)
{
    buf_clear(&n->frame);
    int rc =
        FAILPOINT_OF("worker.say", msg_name((int)m->type)) ? HEDDLE_ERR_NO_MEMORY : msg_encode(m, &n->frame);
    return rc ? rc : n->io.send(n->io.self, buf_view(&n->frame));
}

/* What is said once, and would be missed for ever. */
static int say_once(worker_node_t *n, const msg_t *m)
{
    int rc = say(n, m);
    n->has_unsaid |= rc != HEDDLE_OK;
    return rc;
}

const announced_t *announced_find(const adapter_t *a, uint64_t version)
{
    const announced_t *w = a->announced;
    while (w && w->version != version) w = w->next;
    return w;
}

/* 0 would say that it is not known: what was done within one turn took no time by the turn's clock. */
static uint64_t took(uint64_t us) { return us ? us : 1; }

/* --- JOIN ------------------------------------------------------------------------------------- */

static uint32_t split_list(char *list, const char *ret_words[DEVICES_MAX])
{
    uint32_t count = 0;
    char *save = NULL;
    for (char *name = strtok_r(list, ",", &save); name && count < DEVICES_MAX;
         name = strtok_r(NULL, ",", &save))
        ret_words[count++] = name;
    return count;
}

static uint64_t held_state(sync_state_t state)
{
    switch (state) {
    case SYNC_ARRIVED: return HELD_SEALED;
    case SYNC_STAGED: return HELD_STAGED;
    case SYNC_ACTIVE: return HELD_ACTIVE;
    default: return HELD_KEPT;
    }
}

static uint32_t list_held(const worker_node_t *n, msg_held_t *held)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->adapter_count; i++)
        for (uint32_t e = 0; e < SYNC_ENTRIES && count < LIMIT_HELD; e++) {
            const sync_entry_t *entry = &n->adapters[i].sync.entries[e];
            if (!sync_is_held(entry)) continue;
            const announced_t *w = announced_find(&n->adapters[i], entry->version);
            msg_held_t *h = &held[count++];
            *h = (msg_held_t){n->adapters[i].name, entry->version, held_state(entry->state), entry->digest};
            if (!w || !w->sealed_us) continue;
            h->connect_us = took(w->connect_us);
            h->fetch_us = took(w->fetch_us);
            h->verify_us = took(w->verify_us);
            h->stage_us = w->stage_us;
            h->activate_us = w->activate_us;
        }
    return count;
}

static msg_counts_t sum_counts(const worker_node_t *n)
{
    tr_counters_t c;
    n->io.tr->counters(n->io.t, &c);
    msg_counts_t sum = {.bytes_in = c.bytes_in,
                        .bytes_out = c.bytes_out,
                        .chunks_bad = n->counters.chunks_bad,
                        .retries = n->counters.retries,
                        .fenced = n->session.fenced_count};
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        uint32_t total = n->adapters[i].sync.slot_count;
        slots_count_t count = slots_count(n->slots, i);
        sum.slots_total += total;
        sum.slots_free += total > count.used ? total - count.used : 0;
        sum.slots_held += count.held;
    }
    return sum;
}

void say_join(worker_node_t *n)
{
    char list[256] = "";
    const char *devices[DEVICES_MAX], *addresses[DEVICES_MAX];
    tr_where_t where;
    n->io.tr->devices(n->io.t, list, sizeof list);
    n->io.tr->where(n->io.t, &where);
    msg_subscription_t *adapters = calloc(n->adapter_count, sizeof *adapters);
    msg_held_t *held = calloc(LIMIT_HELD, sizeof *held);
    if (!adapters || !held) goto done;    /* no answer will come, and the session asks again */
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        const adapter_t *a = &n->adapters[i];
        adapters[i] = (msg_subscription_t){a->name, a->sync.applied.decision, a->sync.applied.version};
    }
    msg_t m = {.type = MSG_JOIN};
    m.join = (msg_join_t){.req = n->session.req,
                          .epoch = n->session.epoch,
                          .slots = n->opts.slots,
                          .prev_token = n->session.token,
                          .name = n->opts.name,
                          .labels = (const char **)n->opts.labels,
                          .label_count = n->opts.label_count,
                          .adapters = adapters,
                          .adapter_count = n->adapter_count,
                          .held = held,
                          .held_count = list_held(n, held),
                          .backend = n->io.tr->name,
                          .ucx = n->io.tr->version(),
                          .devices = devices,
                          .device_count = split_list(list, devices),
                          .export_dir = n->opts.export_dir,
                          .counts = sum_counts(n),
                          .max_rate_bytes = n->opts.max_rate_bytes,
                          .addresses = addresses,
                          .address_count = split_list(where.addresses, addresses),
                          .network = where.network};
    if (n->io.tr->address(n->io.t, &m.join.address)) goto done;
    if (say(n, &m) == HEDDLE_OK)
        for (uint32_t i = 0; i < n->adapter_count; i++) sync_restate(&n->adapters[i].sync);
done:
    free(adapters);
    free(held);
}

/* --- HEARTBEAT -------------------------------------------------------------------------------- */

uint32_t list_spare(const worker_node_t *n, const adapter_t *a, uint64_t now_us,
                    uint64_t ret_spare[LIMIT_SLOTS])
{
    uint32_t count = 0;
    if (!n->up || !sync_lacks_slot(&a->sync)) return 0;
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        const slot_t *slot = e->slot >= 0 ? slots_at(n->slots, a->index, (uint32_t)e->slot) : NULL;
        if (!slot || slot_readers(slot) > 0) continue;
        if (slot->state == SLOT_LEAVING && now_us < slot->leaving_us + ROOM_AGAIN_US) return 0;
        bool is_named = e->decision > a->sync.applied.decision;
        if (e->state == SYNC_KEPT && !is_named) ret_spare[count++] = e->version;
    }
    return count;
}

static msg_progress_t progress_of(const worker_node_t *n, const adapter_t *a)
{
    msg_progress_t p = {.adapter = a->name, .held_count = slots_count(n->slots, a->index).held};
    const sync_entry_t *loading = sync_loading(&a->sync);
    const announced_t *w = loading ? announced_find(a, loading->version) : NULL;
    if (w) { /* before what is fetched meanwhile: it comes to its end first */
        p.fetching = w->version;
        p.bytes_done = p.data_bytes = w->region_bytes;
        return p;
    }
    if (!a->pull) return p;
    p.fetching = pull_what(a->pull)->version;
    p.bytes_done = pull_bytes_done(a->pull);
    p.data_bytes = pull_what(a->pull)->region_bytes;
    p.source = pull_source(a->pull);
    const heddle_error_t *why = unreached_error(&a->unreached, a->pull);
    p.message = why ? why->message : NULL;
    return p;
}

void say_heartbeat(worker_node_t *n)
{
    msg_progress_t *rows = calloc(n->adapter_count, sizeof *rows);
    uint64_t (*spare)[LIMIT_SLOTS] = calloc(n->adapter_count, sizeof *spare);
    if (!rows || !spare) goto done;    /* the next one is due soon */
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = n->session.token,
                                    .seq = n->session.heartbeat_seq,
                                    .adapters = rows,
                                    .adapter_count = n->adapter_count,
                                    .counts = sum_counts(n)};
    for (uint32_t i = 0; i < n->adapter_count; i++) {
        rows[i] = progress_of(n, &n->adapters[i]);
        rows[i].spare = spare[i];
        rows[i].spare_count = list_spare(n, &n->adapters[i], clock_now(n->io.clock), spare[i]);
    }
    say(n, &m);
    if (n->has_unsaid) n->io.redial(n->io.self); /* JOIN and what follows tell all of it anew */
done:
    free(rows);
    free(spare);
}

/* --- about versions --------------------------------------------------------------------------- */

void say_staged(worker_node_t *n, const adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    if (FAILPOINT("worker.before_staged")) return;
    msg_served_t rows[PULL_SERVED_MAX];
    announced_t *w = (announced_t *)announced_find(a, action->version);
    tr_counters_t c;
    n->io.tr->counters(n->io.t, &c);
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.bytes_in = c.bytes_in,
                              .bytes_out = c.bytes_out,
                              .chunks_bad = n->counters.chunks_bad,
                              .retries = n->counters.retries,
                              .token = n->session.token,
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
    say_once(n, &m);
}

void say_active(worker_node_t *n, const adapter_t *a, const sync_action_t *action, uint64_t now_us)
{
    announced_t *w = (announced_t *)announced_find(a, action->version);
    uint64_t since_us =
        w && w->sealed_us > a->commit_us ? w->sealed_us : a->commit_us; /* decided, and here */
    msg_t m = {.type = MSG_ACTIVE};
    m.active = (msg_active_t){.token = n->session.token,
                              .version = action->version,
                              .decision = action->decision,
                              .activate_us = since_us ? took(now_us - since_us) : 0,
                              .adapter = a->name,
                              .digest = action->digest};
    if (w) w->activate_us = m.active.activate_us;
    say_once(n, &m);
}

int say_nack(worker_node_t *n, const adapter_t *a, uint64_t version, uint64_t decision,
             const heddle_error_t *error)
{
    msg_t m = {.type = MSG_NACK};
    m.nack = (msg_nack_t){.token = n->session.token,
                          .version = version,
                          .decision = decision,
                          .adapter = a->name,
                          .phase = error->phase,
                          .code = heddle_err_name(error->code),
                          .message = error->message,
                          .expected = error->expected,
                          .found = error->found,
                          .hint = error->hint};
    const announced_t *w = announced_find(a, version);
    if (w && w->sealed_us) {
        m.nack.connect_us = took(w->connect_us);
        m.nack.fetch_us = took(w->fetch_us);
        m.nack.verify_us = took(w->verify_us);
        m.nack.stage_us = w->stage_us ? w->stage_us : took(clock_now(n->io.clock) - w->sealed_us);
    }
    return say_once(n, &m);
}

void say_need_sources(worker_node_t *n, const adapter_t *a, uint64_t version, uint64_t *lost, uint32_t count)
{
    uint64_t unmet[LIMIT_SERVED];
    msg_t m = {.type = MSG_NEED_SOURCES};
    m.need_sources = (msg_need_sources_t){.token = n->session.token,
                                          .version = version,
                                          .adapter = a->name,
                                          .lost = lost,
                                          .lost_count = count,
                                          .unmet = unmet};
    for (uint32_t i = 0; i < count && i < LIMIT_SERVED; i++)
        if (!pull_has_met(a->pull, lost[i])) unmet[m.need_sources.unmet_count++] = lost[i];
    say(n, &m);    /* the fetch asks again */
}

void say_verified(worker_node_t *n, uint32_t adapter, const msg_verified_t *result)
{
    msg_t m = {.type = MSG_VERIFIED, .verified = *result};
    m.verified.token = n->session.token;
    m.verified.adapter = n->adapters[adapter].name;
    say(n, &m);
}

/* --- NO_SLOT ---------------------------------------------------------------------------------- */

void describe_slots(const worker_node_t *n, const adapter_t *a, uint64_t version, heddle_error_t *error,
                    uint64_t now_us)
{
    buf_t text = {0};
    for (uint32_t i = 0; i < SYNC_ENTRIES; i++) {
        const sync_entry_t *e = &a->sync.entries[i];
        const slot_t *slot = e->slot >= 0 ? slots_at(n->slots, a->index, (uint32_t)e->slot) : NULL;
        if (!slot) continue;
        uint32_t readers = slot_readers(slot);
        buf_printf(&text, "%sversion %" PRIu64, text.bytes ? ", " : "", e->version);
        if (readers) buf_printf(&text, " held by %u reader%s", readers, readers == 1 ? "" : "s");
        if (slot->state == SLOT_LEAVING)
            buf_printf(&text, " for %.1f s since it was to go", (double)(now_us - slot->leaving_us) / 1e6);
    }
    error_fail(error, HEDDLE_ERR_NO_SLOT, "all %u slots are in use: %s", a->sync.slot_count, buf_text(&text));
    error_where(error, a->name, version, n->opts.name, "announce");
    error_expected(error, "a free slot");
    error_found(error, "none of %u", a->sync.slot_count);
    error_hint(error, "release snapshots that are no longer used, or run the worker with more --slots");
    buf_fini(&text);
}
