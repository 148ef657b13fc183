/* SPDX-License-Identifier: Apache-2.0 */
/* A worker process: its node, and an application that answers when it is asked to switch. */
#include "tests/scenario/world.h"

#include "core/errors.h"

#include <stdlib.h>

static void wake(void *self)
{
    actor_t *a = self;
    a->due_us = a->w->now_us;
}

static key16_t life_of(actor_t *a)
{
    key16_t life;
    for (size_t i = 0; i < sizeof life.b; i++) life.b[i] = (uint8_t)world_random(a->w, 256);
    return life;
}

void worker_boot(actor_t *a)
{
    world_t *w = a->w;
    a->seen_decision = a->seen_version = 0;
    actor_open_transfer(a, a->conf.max_rate_bytes, a->conf.link);
    a->io = (node_io_t){.self = a,
                        .send = actor_send,
                        .redial = actor_redial,
                        .event = actor_event,
                        .tr = &transfer_mem_ops,
                        .t = a->t,
                        .clock = &w->clock};
    worker_opts_t opts = {.name = a->name,
                          .host = a->conf.host ? a->conf.host : "host",
                          .is_sharing = a->conf.host != NULL,
                          .host_share = world_directory(w, a->conf.host),
                          .adapters = a->adapters,
                          .adapter_count = 1,
                          .slots = a->conf.slots,
                          .max_rate_bytes = a->conf.max_rate_bytes,
                          .no_relay = a->conf.no_relay,
                          .kinds = a->conf.kinds,
                          .group = a->conf.group,
                          .rank = a->conf.rank,
                          .ranks = a->conf.ranks,
                          .app = a->conf.app != APP_NONE,
                          .pid = WORLD_PID + a->incarnation,
                          .seed = world_random(w, UINT32_MAX),
                          .life = life_of(a),
                          .wake = wake,
                          .wake_self = a};
    int rc;
    do PRODUCT(rc = worker_node_new(&opts, &a->io, &a->worker, NULL));
    while (rc == HEDDLE_ERR_NO_MEMORY); /* it is started again */
    cr_assert_eq(rc, HEDDLE_OK);
    a->node = a->worker;
    a->ops = &worker_node_ops;
    int fds[WORKER_FDS];
    worker_node_fds(a->worker, fds);
    actor_poll(a, fds, WORKER_FDS);
}

/* `text`: why it rejects the version; NULL: it does not. */
static int answer(actor_t *a, app_answer_kind_t kind, uint64_t version, const char *text)
{
    heddle_error_t why;
    int rc;
    error_fail(&why, HEDDLE_ERR_VERSION_FAILED, "%s", text ? text : "");
    app_answer_t it = {.kind = text ? APP_REJECT : kind, .version = version, .why = &why};
    PRODUCT(rc = worker_node_answer(a->worker, &it, a->w->now_us));
    return rc;
}

int worker_staged(actor_t *a, uint64_t version) { return answer(a, APP_STAGED, version, NULL); }

static void answer_arrived(actor_t *a, uint64_t version)
{
    answer(a, APP_STAGED, version, a->conf.app == APP_REJECTS_STAGE ? "the engine cannot load it" : NULL);
}

static void answer_commit(actor_t *a, uint64_t version)
{
    answer(a, APP_ACTIVATE, version, a->conf.app == APP_REJECTS_COMMIT ? "the engine cannot switch" : NULL);
}

/* What the node said is answered after the turn, as an application's thread would. */
void worker_app(actor_t *a)
{
    for (; a->event_done < a->event_count; a->event_done++) {
        const heddle_event_t *e = &a->events[a->event_done % EVENTS_KEPT];
        if (a->conf.app == APP_NONE || a->conf.app == APP_SILENT) continue;
        if (e->type == HEDDLE_EVENT_ARRIVED) answer_arrived(a, e->version);
        if (e->type == HEDDLE_EVENT_COMMIT) answer_commit(a, e->version);
        check_actor(a->w, a);
    }
}

void worker_answers_late(actor_t *a)
{
    if (!a->worker || a->conf.app == APP_NONE || a->stopped) return;
    for (uint32_t i = 0; i < VERSIONS_ENTRIES; i++)
        worker_answers(a, worker_node_adapter(a->worker, 0)->versions.entries[i].version);
}

void worker_answers(actor_t *a, uint64_t version)
{
    const versions_entry_t *found =
        a->worker && version ? versions_find(&worker_node_adapter(a->worker, 0)->versions, version) : NULL;
    if (!found) return;
    versions_state_t state = found->state;
    if (state == VERSIONS_ARRIVED) answer_arrived(a, version);
    if (state == VERSIONS_STAGED && found->asked_decision) answer_commit(a, version);
    a->due_us = a->w->now_us;
}

uint64_t worker_takes_up(const actor_t *a)
{
    const versions_t *versions = &worker_node_adapter(a->worker, 0)->versions;
    for (uint32_t i = 0; i < VERSIONS_ENTRIES; i++)
        if (versions->entries[i].state == VERSIONS_STAGED && versions->entries[i].asked_decision)
            return versions->entries[i].version;
    const versions_entry_t *loading = versions_loading(versions);
    return loading ? loading->version : 0;
}

void actor_leave(actor_t *a)
{
    world_note(a->w, "%s leaves", a->name);
    if (a->kind == ACTOR_WORKER) PRODUCT(worker_node_leave(a->worker, a->w->now_us));
    else trainer_leave(a);
    a->due_us = a->w->now_us;
}

/* ---- looking
 * ---------------------------------------------------------------------------------------------------- */

uint64_t worker_active(const actor_t *a)
{
    const versions_entry_t *e =
        a->worker ? versions_active(&worker_node_adapter(a->worker, 0)->versions) : NULL;
    return e ? e->version : 0;
}

bool worker_holds(const actor_t *a, uint64_t version)
{
    const versions_entry_t *e =
        a->worker ? versions_find(&worker_node_adapter(a->worker, 0)->versions, version) : NULL;
    return e && versions_is_here(e);
}

bool worker_is_ready(const actor_t *a) { return a->worker && worker_node_adapter(a->worker, 0)->versions.up; }

uint64_t worker_slots_used(const actor_t *a) { return slots_count(worker_node_slots(a->worker), 0).used; }

uint64_t worker_fenced(const actor_t *a) { return worker_node_core(a->worker)->member.session.fenced_count; }

slot_t *worker_hold(actor_t *a, uint64_t version)
{
    slot_t *slot;
    if (slots_acquire(worker_node_slots(a->worker), 0, version, &slot)) return NULL;
    for (int i = 0; i < HOLDS_MAX; i++) {
        if (a->holds[i]) continue;
        a->holds[i] = slot;
        return slot;
    }
    slot_release(&slot);
    return NULL;
}

void worker_unhold(actor_t *a, slot_t *slot)
{
    for (int i = 0; i < HOLDS_MAX; i++)
        if (a->holds[i] == slot) {
            slot_release(&a->holds[i]);
            return;
        }
}

bool world_all_active(const world_t *w, uint64_t version)
{
    bool any = false;
    for (uint32_t i = 0; i < w->actor_count; i++) {
        const actor_t *a = w->actors[i];
        if (a->kind != ACTOR_WORKER || !a->alive) continue;
        if (!worker_is_ready(a) || worker_active(a) != version) return false;
        any = true;
    }
    return any;
}

bool world_all_ready(const world_t *w, uint32_t count)
{
    uint32_t ready = 0;
    for (uint32_t i = 0; i < w->actor_count; i++)
        ready += w->actors[i]->kind == ACTOR_WORKER && worker_is_ready(w->actors[i]);
    return ready >= count;
}
