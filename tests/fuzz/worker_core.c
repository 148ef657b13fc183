/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 how versions are applied | events |: a worker's sync under any sequence of events
 * (tests/unit/worker_walk.h): those of a world that obeys it, and, one in eight, any event at all with
 * any version, decision and slot that the world has. */
#include "../unit/worker_walk.h"

static input_t bytes;

static uint64_t roll(uint64_t n) { return input_below(&bytes, n); }

/* An event that nobody waits for. */
static void wild(world_t *w)
{
    static const sync_event_kind_t KINDS[] = {SY_UP,         SY_DOWN,         SY_TICK,      SY_ANNOUNCE,
                                              SY_COMMIT,     SY_ABORT,        SY_RETIRE,    SY_SOURCES,
                                              SY_APP_STAGED, SY_APP_ACTIVATE, SY_APP_REJECT};
    uint64_t keep[3] = {roll(w->next_version + 2), roll(w->next_version + 2), roll(w->next_version + 2)};
    sync_event_t ev = {.kind = KINDS[roll(sizeof KINDS / sizeof *KINDS)],
                       .version = 1 + roll(w->next_version + 1),
                       .decision = roll(w->next_decision + 3),
                       .deadline_us = roll(4) ? roll(60000000) : 0,
                       .source_count = (uint32_t)roll(3),
                       .keep = keep,
                       .keep_count = (uint32_t)roll(4)};
    if (ev.version > w->next_version) w->next_version = ev.version;
    if (ev.decision > w->next_decision) w->next_decision = ev.decision;
    if (ev.kind == SY_UP && w->s.up) ev.kind = SY_DOWN; /* that comes before */
    if (ev.kind == SY_UP) ev.slot_count = 3;            /* the world has so many */
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
