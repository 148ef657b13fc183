/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 how versions are applied | events |: a worker's versions under any sequence of events
 * (tests/unit/worker_walk.h): those of a world that obeys it, and, one in eight, any event at all with
 * any version, decision and slot that the world has. */
#include "../unit/worker_walk.h"

static input_t bytes;

static uint64_t roll(uint64_t n) { return input_below(&bytes, n); }

/* An event that nobody waits for. */
static void wild(world_t *w)
{
    static const versions_event_kind_t KINDS[] = {VE_UP,         VE_DOWN,         VE_TICK,       VE_ANNOUNCE,
                                                  VE_COMMIT,     VE_ABORT,        VE_RETIRE,     VE_SOURCES,
                                                  VE_APP_STAGED, VE_APP_ACTIVATE, VE_APP_REJECT, VE_HOLDABLE};
    uint64_t keep[3] = {roll(w->next_version + 2), roll(w->next_version + 2), roll(w->next_version + 2)};
    versions_event_t ev = {.kind = KINDS[roll(sizeof KINDS / sizeof *KINDS)],
                           .version = 1 + roll(w->next_version + 1),
                           .decision = roll(w->next_decision + 3),
                           .deadline_us = roll(4) ? roll(60000000) : 0,
                           .source_count = (uint32_t)roll(3),
                           .keep = keep,
                           .keep_count = (uint32_t)roll(4)};
    if (ev.version > w->next_version) w->next_version = ev.version;
    if (ev.decision > w->next_decision) w->next_decision = ev.decision;
    if (ev.kind == VE_UP && w->s.up) ev.kind = VE_DOWN; /* that comes before */
    if (ev.kind == VE_UP) ev.slot_count = 3;            /* the world has so many */
    w->is_unreserved = false;
    take_event(w, ev);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    world_t w;
    bytes = (input_t){data, size};
    walk_begin(&w, roll(2));
    while (bytes.left) {
        count_steps(1);
        if (roll(8)) walk_step(&w);
        else wild(&w);
    }
    return 0;
}
