/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold at every moment, by the names of docs/architecture.md:
 *
 *   I1   what a publisher was told is recorded stays recorded
 *   I2   one digest for a version, for ever
 *   I3   only verified, whole snapshots are served, and a reader's bytes do not change
 *   I4   a stale token changes nothing (world.c asks check_signature)
 *   I9   queues and tables are bounded
 *   I11  two sessions of one name never both count
 *   I13  decisions are applied in their order
 *
 * And: a version number is given once; a decision is made once, by its policy, on disk first, and not while
 * the broker settles. */
#include "broker/registry/decision.h"
#include "tests/lib/registry_equal.h"
#include "tests/lib/rollout_sound.h"
#include "tests/scenario/leftover.h"
#include "tests/scenario/world.h"

#include <heddle/publisher.h>

#include <inttypes.h>

/* ---- messages
 * --------------------------------------------------------------------------------------------------- */

uint64_t msg_token(const msg_t *m)
{
    switch (m->type) {
    case MSG_HELLO:
    case MSG_HELLO_OK:
    case MSG_JOIN:
    case MSG_OPEN:
    case MSG_PUBLISHED:
    case MSG_QUERY:
    case MSG_REPORT:
    case MSG_PING: return 0;
    case MSG_WELCOME: return m->welcome.token;
    case MSG_ERROR: return m->error.token;
    default: return m->heartbeat.token; /* first in all the others */
    }
}

/* ---- a worker
 * --------------------------------------------------------------------------------------------------- */

static const version_row_t *recorded(const world_t *w, const char *adapter, uint64_t version)
{
    const adapter_row_t *a = registry_adapter(&w->shadow, adapter);
    return a ? registry_version(a, version) : NULL;
}

static void check_bytes(world_t *w, const actor_t *a, const slot_t *slot)
{
    const content_t *c = content_of_digest(&slot->h1);
    if (!c)
        world_fail(w, "I3: %s serves v%" PRIu64 " with a digest that nobody published", a->name,
                   slot->view.version);
    if (slot->parts[0].manifest.payload_bytes != c->layout.payload_bytes ||
        memcmp(slot->parts[0].region->view, c->payload, c->layout.payload_bytes) != 0)
        world_fail(w, "I3: %s serves torn bytes as v%" PRIu64, a->name, slot->view.version);
}

static void check_slots(world_t *w, actor_t *a)
{
    const versions_t *s = &worker_node_adapter(a->worker, 0)->versions;
    const slot_t *active = slots_active(worker_node_slots(a->worker), 0);
    uint32_t used = 0;
    for (uint32_t i = 0; i < s->slot_count; i++) {
        const slot_t *slot = slots_at(worker_node_slots(a->worker), 0, i);
        if (!slot || slot->state == SLOT_FREE) continue;
        used++;
        if (slot->state != SLOT_SEALED) continue;
        if (slot->view.version >= w->lost_from && slot->view.version <= w->lost_to) continue;
        const version_row_t *v = recorded(w, a->adapters[0], slot->view.version);
        if (!v)
            world_fail(w, "I1: %s holds v%" PRIu64 ", which is not recorded", a->name, slot->view.version);
        if (!digest_equal(&v->digest, &slot->h1))
            world_fail(w, "I2: %s holds v%" PRIu64 " with another digest", a->name, slot->view.version);
    }
    if (active && active->state != SLOT_SEALED)
        world_fail(w, "I3: %s serves a slot that is not sealed", a->name);
    if (used != slots_count(worker_node_slots(a->worker), 0).used)
        world_fail(w, "I9: %s uses slots beyond its %u", a->name, s->slot_count);
}

/* What was applied last is what somebody decided, and later than all before. */
static void check_decision(world_t *w, actor_t *a, const decision_t *applied)
{
    if (applied->decision < a->seen_decision)
        world_fail(w, "I13: %s went back from d%" PRIu64 " to d%" PRIu64, a->name, a->seen_decision,
                   applied->decision);
    if (applied->decision == a->seen_decision && applied->version != a->seen_version)
        world_fail(w, "I13: %s serves v%" PRIu64 " and then v%" PRIu64 " by one decision", a->name,
                   a->seen_version, applied->version);
    if (applied->decision == a->seen_decision) return;
    a->seen_decision = applied->decision;
    a->seen_version = applied->version;
    if (applied->decision > w->lost_decisions &&
        !store_has_decision(w, a->adapters[0], applied->decision, applied->version))
        world_fail(w, "I13: %s serves v%" PRIu64 " by d%" PRIu64 ", which is not recorded", a->name,
                   applied->version, applied->decision);
    for (int i = 0; i < HOLDS_MAX; i++)
        if (a->holds[i]) check_bytes(w, a, a->holds[i]); /* a reader's bytes do not change */
    const versions_entry_t *e = versions_active(&worker_node_adapter(a->worker, 0)->versions);
    if (!e || e->version != applied->version) return;
    const slot_t *slot = slots_at(worker_node_slots(a->worker), 0, (uint32_t)e->slot);
    if (slot != slots_active(worker_node_slots(a->worker), 0) || slot->view.version != e->version)
        world_fail(w, "I3: %s says v%" PRIu64 " and serves v%" PRIu64, a->name, e->version,
                   slot->view.version);
    check_bytes(w, a, slot);
}

static void check_queues(world_t *w, const actor_t *a)
{
    leftover_t left = leftover_of(a->t);
    if (left.asks > LEFTOVER_ASKS_MAX || left.standing > LEFTOVER_STANDING_MAX)
        world_fail(w, "I9: asks of %s", a->name);
}

static void check_worker(world_t *w, actor_t *a)
{
    check_slots(w, a);
    check_decision(w, a, &worker_node_adapter(a->worker, 0)->versions.applied);
    check_queues(w, a);
}

/* ---- the broker
 * ------------------------------------------------------------------------------------------------- */

static void check_members(world_t *w)
{
    const membership_t *m = &w->broker->members;
    for (size_t i = 0; i < m->worker_count; i++) {
        const member_t *row = m->workers[i];
        if (i && strcmp(m->workers[i - 1]->name, row->name) >= 0)
            world_fail(w, "I11: two rows of worker %s", row->name);
        bool counts = membership_by_token(m, row->token) == row;
        if (counts != member_is_ready(row))
            world_fail(w, "I11: worker %s counts, and is not there", row->name);
    }
    if (m->token_count > m->worker_count + m->publisher_count) world_fail(w, "I11: more tokens than members");
    if (m->ended_count > MEMBER_ENDED_MAX) world_fail(w, "I9: members that ended");
}

/* A worker that was lost, left or drains counts for no version of before, also when it is back. */
static void check_eligible(world_t *w)
{
    for (uint32_t i = 0; i < w->actor_count; i++) {
        actor_t *a = w->actors[i];
        const member_t *m = membership_worker(&w->broker->members, a->name);
        if (a->kind == ACTOR_WORKER && (!m || m->state != MEMBER_READY))
            memset(a->eligible, 0, sizeof a->eligible);
    }
}

static void check_acknowledged(world_t *w, const actor_t *a)
{
    const published_t *p = &a->published;
    if (!p->is_answered || p->code) return;
    const char *adapter = a->trainer.adapter ? a->trainer.adapter : ADAPTER;
    const version_row_t *v = recorded(w, adapter, p->version);
    if (!v) world_fail(w, "I1: v%" PRIu64 " of %s was acknowledged and is not recorded", p->version, a->name);
    if (!digest_equal(&v->digest, &p->content->h1))
        world_fail(w, "I2: v%" PRIu64 " of %s has other bytes", p->version, a->name);
    const adapter_row_t *row = w->broker ? registry_adapter(&w->broker->registry, adapter) : NULL;
    if (w->broker && (!row || !registry_version(row, p->version)))
        world_fail(w, "I1: the broker forgot v%" PRIu64, p->version);
}

static void check_broker(world_t *w)
{
    const broker_t *b = w->broker;
    check_members(w);
    check_eligible(w);
    if (b->pending.count > LIMIT_PENDING_QUERIES) world_fail(w, "I9: questions");
    if (b->idle_count > BROKER_IDLE_PEERS) world_fail(w, "I9: idle connections");
    if (b->bad_frames)
        world_fail(w, "the broker was sent %" PRIu64 " frames that are out of place", b->bad_frames);
    if (b->out->record_count || b->out->send_count)
        world_fail(w, "the outbox is not empty between two events");
    if (b->txn.is_open != (w->committing != NULL))
        world_fail(w, "the transaction is %s, and the store's is not", b->txn.is_open ? "open" : "ended");
    if (!b->txn.is_open && b->waiting) world_fail(w, "a request waits for no transaction");
}

static void check_inbox(world_t *w, const actor_t *a)
{
    if (a->inbox_count > LIMIT_QUEUE_FRAMES + 2)
        world_fail(w, "I9: %u frames wait for %s", a->inbox_count, a->name);
}

/* A client changes its own state, and what waits for the broker. */
void check_actor(world_t *w, actor_t *a)
{
    if (w->is_dying) return;
    check_inbox(w, a);
    check_inbox(w, w->host);
    if (a->worker) check_worker(w, a);
    if (a->kind == ACTOR_TRAINER) check_acknowledged(w, a);
}

void check_all(world_t *w)
{
    if (w->is_dying) return;
    for (uint32_t i = 0; i < w->actor_count; i++) check_actor(w, w->actors[i]);
    if (w->broker) check_broker(w);
}

void check_restart(world_t *w)
{
    if (!registry_equal(&w->broker->registry, &w->shadow))
        world_fail(w, "I1: the broker came back with another registry");
}

static uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 0x100000001b3ull; }

static uint64_t mix_track(uint64_t h, const track_t *t)
{
    h = mix(mix(mix(h, t->version), t->plan.publisher.token), t->plan.publisher.state);
    for (size_t c = 0; c < t->copy_count; c++) {
        const copy_row_t *copy = t->copies[c];
        h = mix(mix(mix(mix(h, copy->token), copy->state), copy->bytes_done), copy->is_eligible);
    }
    return h;
}

/* All that a message under a valid token could have changed, but for what says that somebody was heard.
 */
uint64_t check_signature(const broker_t *b)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < b->registry.adapter_count; i++) {
        const adapter_row_t *a = b->registry.adapters[i];
        h = mix(mix(mix(mix(h, a->decision), a->active), a->held), a->writer.token);
        for (size_t v = 0; v < a->version_count; v++)
            h = mix(mix(h, a->versions[v]->version), a->versions[v]->state);
    }
    for (size_t i = 0; i < b->rollout.adapter_count; i++)
        for (size_t k = 0; k < b->rollout.adapters[i]->track_count; k++)
            h = mix_track(h, b->rollout.adapters[i]->tracks[k]);
    for (size_t i = 0; i < b->members.worker_count; i++) {
        const member_t *m = b->members.workers[i];
        h = mix(mix(mix(h, m->token), m->state), m->received_us);
    }
    return h;
}

/* ---- records
 * ---------------------------------------------------------------------------------------------------- */

/* Those who count for a version: there when it was announced.  A session that a process of the same name left
 * behind may still be ready then: the one that came after it joins a rollout that has begun. */
static void note_eligible(world_t *w, const record_t *r)
{
    for (uint32_t i = 0; i < w->actor_count; i++) {
        actor_t *a = w->actors[i];
        if (a->kind != ACTOR_WORKER || strcmp(a->adapters[0], r->adapter) != 0) continue;
        const member_t *m = membership_worker(&w->broker->members, a->name);
        if (!a->worker || !m || m->state != MEMBER_READY || m->pid != WORLD_PID + a->incarnation) continue;
        size_t at = r->version % ELIGIBLE_KEPT;
        a->eligible[at].version = r->version;
        a->eligible[at].incarnation = a->incarnation;
        a->eligible[at].epoch = w->epoch;
    }
}

static bool must_have_staged(const world_t *w, const actor_t *a, const record_t *r)
{
    size_t at = r->version % ELIGIBLE_KEPT;
    return a->worker && a->eligible[at].version == r->version &&
           a->eligible[at].incarnation == a->incarnation && a->eligible[at].epoch == w->epoch &&
           !strcmp(a->adapters[0], r->adapter) &&
           membership_worker(&w->broker->members, a->name)->state == MEMBER_READY;
}

static void check_policy(world_t *w, const record_t *r, const version_row_t *v)
{
    bool by_hand = r->version <= 64 && w->by_hand >> (r->version - 1) & 1;
    if (by_hand || v->activation != HEDDLE_ACTIVATION_ALL) return;
    for (uint32_t i = 0; i < w->actor_count; i++) {
        const actor_t *a = w->actors[i];
        if (a->kind == ACTOR_WORKER && must_have_staged(w, a, r) && !worker_holds(a, r->version))
            world_fail(w, "d%" PRIu64 " commits v%" PRIu64 ", and %s has not staged it", r->decision,
                       r->version, a->name);
    }
}

static void check_new_version(world_t *w, const record_t *r)
{
    const adapter_row_t *a = registry_adapter(&w->shadow, r->adapter);
    uint64_t last = a ? a->last_version : 0;
    if (r->version != last + 1)
        world_fail(w, "version %" PRIu64 " is assigned after %" PRIu64, r->version, last);
    note_eligible(w, r);
}

static void check_new_decision(world_t *w, const record_t *r)
{
    const adapter_row_t *a = registry_adapter(&w->shadow, r->adapter);
    const version_row_t *v = a ? registry_version(a, r->version) : NULL;
    if (!v || !registry_is_live(v))
        world_fail(w, "a decision for v%" PRIu64 ", which is not live", r->version);
    if (r->decision != decision_next(a))
        world_fail(w, "d%" PRIu64 " follows d%" PRIu64, r->decision, a->decision);
    if (w->had_records && w->now_us < w->started_us + w->opts.lease_ms * MS)
        world_fail(w, "d%" PRIu64 " is decided %.3f s after the start: it settles", r->decision,
                   (double)(w->now_us - w->started_us) / 1e6);
    check_policy(w, r, v);
}

static void check_state_change(world_t *w, const record_t *r)
{
    const adapter_row_t *a = registry_adapter(&w->shadow, r->adapter);
    const version_row_t *v = a ? registry_version(a, r->version) : NULL;
    bool from_staging = r->state == VERSION_FAILED || r->state == VERSION_SUPERSEDED;
    if (!v || v->state != (from_staging ? VERSION_STAGING : VERSION_COMMITTED))
        world_fail(w, "v%" PRIu64 " ends as %d, and was not what can end so", r->version, (int)r->state);
    if (r->state == VERSION_RETIRED && a->active == r->version)
        world_fail(w, "the active v%" PRIu64 " is retired", r->version);
}

void check_record(world_t *w, const record_t *r)
{
    if (r->kind == RECORD_VERSION) check_new_version(w, r);
    if (r->kind == RECORD_DECISION) check_new_decision(w, r);
    if (r->kind == RECORD_STATE) check_state_change(w, r);
}

/* ---- the end
 * ---------------------------------------------------------------------------------------------------- */

static void check_worker_settled(world_t *w, const actor_t *a)
{
    const adapter_row_t *row = registry_adapter(&w->shadow, a->adapters[0]);
    uint64_t active = row ? row->active : 0;
    const adapter_t *adapter = worker_node_adapter(a->worker, 0);
    if (!worker_is_ready(a)) world_fail(w, "%s is not admitted", a->name);
    if (worker_active(a) != active)
        world_fail(w, "%s serves v%" PRIu64 ", decided is v%" PRIu64, a->name, worker_active(a), active);
    if (active && adapter->versions.applied.decision != row->decision)
        world_fail(w, "%s applied d%" PRIu64 " of d%" PRIu64, a->name, adapter->versions.applied.decision,
                   row->decision);
    if (adapter->intake.what)
        world_fail(w, "%s is still fetching v%" PRIu64, a->name, adapter->intake.what->version);
    leftover_t left = leftover_of(a->t);
    if (left.asks || left.standing)
        world_fail(w, "%s has %u asks and %u standing ones left over", a->name, left.asks, left.standing);
}

void check_settled(world_t *w)
{
    MUST(w, w->broker && !w->host->stopped);
    UNTIL(w, SECOND, !w->committing);
    MUST(w, rollout_is_sound(&w->broker->rollout));
    check_restart(w);
    for (uint32_t i = 0; i < w->actor_count; i++) {
        const actor_t *a = w->actors[i];
        if (a->worker && !a->stopped && !a->cut) check_worker_settled(w, a);
    }
}
