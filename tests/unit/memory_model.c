/* SPDX-License-Identifier: Apache-2.0 */
/* All interleavings of an owner that writes three contents and two holders that hand on to each other, to the
 * end: every world that can be reached, some 100,000, is looked at. The tables of memory/rules.h decide what
 * comes next, and the functions of the header what is in it and what a holder accepts; the model adds the
 * kernel's locks, the bytes, and death between any two acts, the stores of the header among them. Two rules:
 * what a holder may read is the whole content that was announced to it, and a header that says `sealed` names
 * the bytes that are there. */
#include "memory/rules.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { CONTENTS = 3, BEGUN = 4, HOLDERS = 2, OWNER = HOLDERS, CAPACITY = 1 };

/* A description that a source makes for a holder, or that the holder has. The source's machine ends when it
 * is sent. */
typedef struct {
    uint8_t state, act, announced;            /* of the holder; announced: number of a content, 0 for none */
    uint8_t source, source_state, source_act; /* source: OWNER, the other holder, or NO_SOURCE */
    bool is_there, has_lock;                  /* the description */
} holder_t;
enum { NO_SOURCE = 9 };

typedef struct {
    uint8_t owner, acts[REGION_ACTS];
    bool is_dead, has_lock;
    uint8_t header_state, header_generation;
    uint8_t header_content;         /* whose manifest the header has */
    uint8_t begun;                  /* granted, at most BEGUN: the worlds are finite */
    uint8_t written;                /* contents begun; what is written is named by this number */
    uint8_t halves;                 /* of the one that is being written */
    uint8_t bytes[2];               /* the two halves of the memory */
    uint8_t begun_at[CONTENTS + 1]; /* the generation that each content was written in */
    uint8_t announced,
        generations[CONTENTS + 1]; /* contents whose seal has returned, and their generations */
    holder_t holders[HOLDERS];
} world_t;

/* ---- the header, through the product's own functions ---- */

static header_t header_of(const world_t *w)
{
    header_t h = {.layout = HEADER_LAYOUT,
                  .state = w->header_state,
                  .generation = w->header_generation,
                  .bytes = CAPACITY};
    h.manifest.b[0] =
        7; /* the same bytes may be published again: the generation alone tells contents apart */
    return h;
}

static void put_header(world_t *w, const header_t *h)
{
    w->header_state = (uint8_t)h->state;
    w->header_generation = (uint8_t)h->generation;
}

static bool header_fits(const world_t *w, uint8_t announced)
{
    header_t h = header_of(w);
    content_id_t id = {.generation = w->generations[announced], .manifest = h.manifest};
    return header_check(&h, &id, CAPACITY) == HEADER_MATCHES;
}

/* ---- the owner ---- */

static bool owner_step(world_t *w, region_event_t event)
{
    region_state_t state = w->owner;
    region_act_t acts[REGION_ACTS];
    if (!region_step(&state, event, acts)) return false;
    w->owner = (uint8_t)state;
    for (int i = 0; i < REGION_ACTS; i++) w->acts[i] = (uint8_t)acts[i];
    return true;
}

static bool may_lock(const world_t *w)
{
    for (int i = 0; i < HOLDERS; i++)
        if (w->holders[i].is_there && w->holders[i].has_lock) return false;
    return true;
}

/* The first act that is open; as memory/region.c, which asks for the lock only if the table says so. */
static bool owner_act(world_t *w)
{
    header_t h = header_of(w);
    uint8_t act = w->acts[0];
    if (w->owner == REGION_LOCKING && act == REGION_DO_NOTHING) return owner_step(w, REGION_GRANTED);
    if (act == REGION_DO_NOTHING) return false;
    for (int i = 0; i < REGION_ACTS; i++)
        w->acts[i] = i + 1 < REGION_ACTS ? w->acts[i + 1] : REGION_DO_NOTHING;
    if (act == REGION_TRY_LOCK) {
        w->has_lock = may_lock(w);
        w->begun += w->has_lock;
        return owner_step(w, w->has_lock ? REGION_GRANTED : REGION_REFUSED);
    }
    header_put(&h, (region_act_t)act, &h);
    put_header(w, &h);
    if (act == REGION_PUT_CONTENT) w->header_content = w->written;
    if (act == REGION_UNLOCK) w->has_lock = false;
    if (w->owner == REGION_SEALED && w->acts[0] == REGION_DO_NOTHING) {
        w->announced = w->written;
        w->generations[w->announced] = w->header_generation;
    }
    return true;
}

typedef enum {
    O_BEGIN,
    O_ACT,
    O_FIRST_HALF,
    O_SECOND_HALF,
    O_SEAL,
    O_ABORT,
    O_DROP,
    O_DIE,
    O_EVENTS
} owner_move_t;

static bool owner_move(world_t *w, owner_move_t move)
{
    bool is_open =
        w->acts[0] != REGION_DO_NOTHING; /* begin, seal and abort return when their acts are done */
    if (w->is_dead) return false;
    switch (move) {
    case O_BEGIN:
        if (is_open || w->begun == BEGUN || w->written == CONTENTS || !owner_step(w, REGION_BEGIN))
            return false;
        w->halves = 0;
        return true;
    case O_ACT: return owner_act(w);
    case O_FIRST_HALF:
    case O_SECOND_HALF:
        if (is_open || w->owner != REGION_WRITING || w->halves != move - O_FIRST_HALF) return false;
        if (move == O_FIRST_HALF) w->begun_at[++w->written] = w->begun;
        w->bytes[w->halves++] = w->written;
        return true;
    case O_SEAL: return !is_open && w->halves == 2 && owner_step(w, REGION_SEAL);
    case O_ABORT: return !is_open && owner_step(w, REGION_ABORT);
    case O_DROP: return !is_open && owner_step(w, REGION_DROP);
    default: break;
    }
    w->is_dead = true;
    w->has_lock = false;
    w->owner = REGION_IDLE;
    memset(w->acts, 0, sizeof w->acts);
    for (int i = 0; i < HOLDERS; i++) /* what it was about to send goes with it */
        if (w->holders[i].source == OWNER) {
            w->holders[i].source = NO_SOURCE;
            w->holders[i].is_there = w->holders[i].has_lock = false;
        }
    return true;
}

/* ---- the holders ---- */

/* One act of a machine that works on this holder's description: the source's, or the holder's own. */
static bool hold_act(world_t *w, holder_t *h, uint8_t *state, uint8_t *act)
{
    hold_state_t s = *state;
    hold_act_t next = HOLD_DO_NOTHING;
    if (*act == HOLD_DO_NOTHING) return false;
    if (*act == HOLD_TRY_LOCK) {
        h->has_lock |= !w->has_lock;
        (void)hold_step(&s, h->has_lock ? HOLD_GRANTED : HOLD_REFUSED, &next);
    } else if (*act == HOLD_READ_HEADER) {
        (void)hold_step(&s, header_fits(w, h->announced) ? HOLD_FOUND : HOLD_FOUND_OTHER, &next);
    } else if (*act == HOLD_UNLOCK) {
        h->has_lock = false;
    }
    *state = (uint8_t)s;
    *act = (uint8_t)next;
    return true;
}

static bool hold_event(uint8_t *state, uint8_t *act, hold_event_t event)
{
    hold_state_t s = *state;
    hold_act_t next;
    if (*act != HOLD_DO_NOTHING || !hold_step(&s, event, &next)) return false;
    *state = (uint8_t)s;
    *act = (uint8_t)next;
    return true;
}

/* The source makes a new description, if it may hand over at all. */
static bool source_start(world_t *w, holder_t *h, uint8_t source)
{
    if (h->is_there || h->source != NO_SOURCE || !h->announced) return false;
    if (source == OWNER) {
        if (w->is_dead || w->acts[0] != REGION_DO_NOTHING || !owner_step(w, REGION_HAND_OVER)) return false;
    } else {
        holder_t *other = &w->holders[source];
        if (other == h || !hold_event(&other->state, &other->act, HOLD_HAND_ON)) return false;
    }
    h->source = source;
    h->source_state = HOLD_NONE;
    h->source_act = HOLD_DO_NOTHING;
    h->is_there = true;
    h->has_lock = false;
    return hold_event(&h->source_state, &h->source_act, HOLD_ASK);
}

/* A description of the region alone comes at any time, without a lock and without a look at the header. */
static bool offer(world_t *w, holder_t *h)
{
    if (w->is_dead || w->acts[0] != REGION_DO_NOTHING || h->is_there || h->source != NO_SOURCE) return false;
    if (!owner_step(w, REGION_OFFER)) return false;
    h->is_there = true;
    return true;
}

/* One step of the source; what it does not send is closed. */
static bool source_move(world_t *w, holder_t *h)
{
    if (h->source == NO_SOURCE) return false;
    if (hold_act(w, h, &h->source_state, &h->source_act)) return true;
    bool is_sent = hold_event(&h->source_state, &h->source_act, HOLD_SEND) && h->source_act == HOLD_GIVE;
    h->source = NO_SOURCE;
    if (!is_sent) h->is_there = h->has_lock = false;
    return true;
}

typedef enum {
    H_RECEIVE_1,
    H_RECEIVE_2,
    H_RECEIVE_3,
    H_FROM_OWNER,
    H_FROM_OTHER,
    H_OFFERED,
    H_SOURCE,
    H_TAKE,
    H_ACT,
    H_MAP,
    H_MAP_FAILS,
    H_RELEASE,
    H_DIE,
    H_EVENTS,
} holder_move_t;

static bool holder_move(world_t *w, int number, holder_move_t move)
{
    holder_t *h = &w->holders[number];
    switch (move) {
    case H_RECEIVE_1:
    case H_RECEIVE_2:
    case H_RECEIVE_3: {
        uint8_t content = (uint8_t)(move - H_RECEIVE_1 + 1);
        if (content > w->announced || h->announced == content || h->state != HOLD_NONE ||
            h->source != NO_SOURCE || !w->generations[content])
            return false;
        h->announced = content;
        return true;
    }
    case H_FROM_OWNER: return source_start(w, h, OWNER);
    case H_FROM_OTHER: return source_start(w, h, (uint8_t)(1 - number));
    case H_OFFERED: return offer(w, h);
    case H_SOURCE: return source_move(w, h);
    case H_TAKE:
        return h->is_there && h->source == NO_SOURCE && h->announced &&
               hold_event(&h->state, &h->act, HOLD_ASK);
    case H_ACT: return hold_act(w, h, &h->state, &h->act);
    case H_MAP: return hold_event(&h->state, &h->act, HOLD_MAP);
    case H_MAP_FAILS: return hold_event(&h->state, &h->act, HOLD_MAP_FAILED);
    case H_RELEASE:
        return (h->state == HOLD_MAPPED ||
                (h->state == HOLD_NONE && h->is_there && h->source == NO_SOURCE)) &&
               hold_event(&h->state, &h->act, HOLD_RELEASE);
    default: break;
    }
    holder_t *other = &w->holders[1 - number];
    if (other->source == number) {
        other->source = NO_SOURCE;
        other->is_there = other->has_lock = false;
    }
    *h = (holder_t){.source = NO_SOURCE};
    return true;
}

/* ---- all of them ---- */

enum { MOVES = O_EVENTS + HOLDERS * H_EVENTS };

static bool move(world_t *w, int number)
{
    if (number < O_EVENTS) return owner_move(w, (owner_move_t)number);
    number -= O_EVENTS;
    return holder_move(w, number / H_EVENTS, (holder_move_t)(number % H_EVENTS));
}

/* A header that says `sealed` names what is there, whenever the owner dies. */
static bool header_is_true(const world_t *w)
{
    return w->header_state != HEADER_SEALED ||
           (w->bytes[0] == w->header_content && w->bytes[1] == w->header_content &&
            w->header_generation == w->begun_at[w->header_content]);
}

/* What is read is the content that was announced, whole. */
static bool is_sound(const world_t *w)
{
    for (int i = 0; i < HOLDERS; i++) {
        const holder_t *h = &w->holders[i];
        if (h->state == HOLD_MAPPED && (w->bytes[0] != h->announced || w->bytes[1] != h->announced))
            return false;
    }
    return true;
}

/* What must be among the worlds: a model that cannot move proves nothing. */
static bool both_read(const world_t *w)
{
    return w->holders[0].state == HOLD_MAPPED && w->holders[1].state == HOLD_MAPPED;
}
static bool both_read_what_outlived_its_owner(const world_t *w) { return w->is_dead && both_read(w); }
static bool one_reads_the_last(const world_t *w)
{
    return w->holders[0].state == HOLD_MAPPED && w->holders[0].announced == CONTENTS;
}
static bool torn_under_an_old_mapping(const world_t *w)
{
    return w->is_dead && w->bytes[0] != w->bytes[1] && w->holders[0].is_there && w->announced == 1;
}
static bool dead_between_two_stores_of_the_header(const world_t *w)
{
    return w->is_dead && w->header_state == HEADER_WRITING && w->header_generation < w->begun;
}
static bool dead_before_it_is_sealed(const world_t *w)
{
    return w->is_dead && w->header_state == HEADER_WRITING && w->header_content > w->announced;
}
static bool handed_on_after_the_owners_death(const world_t *w)
{
    return w->is_dead && w->holders[1].source == 0 && w->holders[1].source_state == HOLD_CHECKED;
}
static bool offered_before_anything_was_sealed(const world_t *w)
{
    return w->holders[0].is_there && w->written == 0;
}
static bool shut_out_by_what_is_on_its_way(const world_t *w)
{
    return w->owner == REGION_LOCKING && w->holders[0].has_lock && w->holders[0].state == HOLD_NONE &&
           w->holders[0].source == NO_SOURCE;
}

static const struct {
    const char *name;
    bool (*is)(const world_t *w);
} REACHED[] = {
    {"both read", both_read},
    {"both read what outlived its owner", both_read_what_outlived_its_owner},
    {"one reads the last content", one_reads_the_last},
    {"the bytes of two contents, under a mapping of the first", torn_under_an_old_mapping},
    {"a death after `writing` and before the next generation", dead_between_two_stores_of_the_header},
    {"a death after the manifest and before `sealed`", dead_before_it_is_sealed},
    {"handed on after the owner's death", handed_on_after_the_owners_death},
    {"offered before anything was sealed", offered_before_anything_was_sealed},
    {"the owner is shut out by what is on its way", shut_out_by_what_is_on_its_way},
};

/* Every world once: an open hash table. */
enum { SLOTS = 1 << 22 };
typedef struct {
    world_t *worlds;
    uint32_t *slots;
    uint32_t count, room;
} seen_t;

static bool add(seen_t *seen, const world_t *w)
{
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < sizeof *w; i++) hash = (hash ^ ((const uint8_t *)w)[i]) * 1099511628211u;
    uint32_t at = (uint32_t)(hash >> 20) % SLOTS;
    for (; seen->slots[at]; at = (at + 1) % SLOTS)
        if (!memcmp(&seen->worlds[seen->slots[at] - 1], w, sizeof *w)) return false;
    if (seen->count == seen->room) {
        seen->room = seen->room ? 2 * seen->room : 1 << 16;
        seen->worlds = realloc(seen->worlds, seen->room * sizeof *seen->worlds);
        cr_assert_not_null(seen->worlds);
    }
    cr_assert(seen->count < SLOTS / 2, "more worlds than the table has room for");
    seen->worlds[seen->count++] = *w;
    seen->slots[at] = seen->count;
    return true;
}

Test(model, no_holder_reads_what_was_not_announced_to_it)
{
    enum { REACHED_COUNT = sizeof REACHED / sizeof *REACHED };
    unsigned reached[REACHED_COUNT] = {0};
    seen_t seen = {.slots = calloc(SLOTS, sizeof *seen.slots)};
    world_t w;
    cr_assert_not_null(seen.slots);
    memset(&w, 0, sizeof w);
    for (int i = 0; i < HOLDERS; i++) w.holders[i].source = NO_SOURCE;
    add(&seen, &w);
    for (uint32_t at = 0; at < seen.count; at++) {
        for (int i = 0; i < REACHED_COUNT; i++) reached[i] += REACHED[i].is(&seen.worlds[at]);
        for (int m = 0; m < MOVES; m++) {
            w = seen.worlds[at];
            if (!move(&w, m)) continue;
            cr_assert(header_is_true(&w),
                      "world %u, move %d: the header has content %u generation %u, "
                      "the bytes are of %u %u",
                      at, m, w.header_content, w.header_generation, w.bytes[0], w.bytes[1]);
            cr_assert(is_sound(&w), "world %u, move %d: bytes %u %u, announced %u and %u", at, m, w.bytes[0],
                      w.bytes[1], w.holders[0].announced, w.holders[1].announced);
            add(&seen, &w);
        }
    }
    for (int i = 0; i < REACHED_COUNT; i++) cr_assert_gt(reached[i], 0, "never reached: %s", REACHED[i].name);
    cr_log_info("%u worlds", seen.count);
    free(seen.worlds);
    free(seen.slots);
}

/* Each cell that is not in the tables of memory/region.h and memory/hold.h refuses, and changes nothing. */
Test(model, what_a_table_does_not_allow_changes_nothing)
{
    int allowed = 0;
    for (int state = 0; state < REGION_STATES; state++)
        for (int event = 0; event < REGION_EVENTS; event++) {
            region_state_t s = (region_state_t)state;
            region_act_t acts[REGION_ACTS] = {REGION_UNLOCK, REGION_UNLOCK, REGION_UNLOCK};
            if (region_step(&s, (region_event_t)event, acts)) allowed++;
            else cr_assert(s == (region_state_t)state && acts[0] == REGION_UNLOCK);
        }
    cr_assert_eq(allowed, 14);
    allowed = 0;
    for (int state = 0; state < HOLD_STATES; state++)
        for (int event = 0; event < HOLD_EVENTS; event++) {
            hold_state_t s = (hold_state_t)state;
            hold_act_t act = HOLD_GIVE;
            if (hold_step(&s, (hold_event_t)event, &act)) allowed++;
            else cr_assert(s == (hold_state_t)state && act == HOLD_GIVE);
        }
    cr_assert_eq(allowed, 12);
}

/* All acts of an event, as memory/region.c does them. */
static void put(header_t *h, region_state_t state, region_event_t event, const header_t *content)
{
    region_act_t acts[REGION_ACTS];
    cr_assert(region_step(&state, event, acts));
    for (int i = 0; i < REGION_ACTS; i++) header_put(h, acts[i], content);
}

static header_t sealed_header(void)
{
    header_t h = {.layout = HEADER_LAYOUT, .identity = {1}};
    header_t content = {.manifest = {{7}}, .bytes = 4096};
    put(&h, REGION_LOCKING, REGION_GRANTED, NULL);
    put(&h, REGION_WRITING, REGION_SEAL, &content);
    return h;
}

Test(header, says_what_is_there)
{
    header_t h = sealed_header();
    content_id_t id = {.identity = {1}, .generation = 1, .manifest = {{7}}};
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_MATCHES);
    cr_assert_eq(header_check(&h, &id, 4095), HEADER_TOO_LARGE);
    id.generation = 2;
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_OTHER_GENERATION);
    id.generation = 1;
    id.identity[15] = 1;
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_OTHER_REGION);
    id.identity[15] = 0;
    id.manifest.b[31] = 1;
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_OTHER_MANIFEST);
    id.manifest.b[31] = 0;
    h.layout++;
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_UNKNOWN);
}

/* `writing` and the next generation, each of which is enough: the same generation is never sealed twice. */
Test(header, what_is_written_is_not_what_was_there)
{
    header_t h = sealed_header();
    content_id_t id = {.identity = {1}, .generation = 1, .manifest = {{7}}};
    put(&h, REGION_LOCKING, REGION_GRANTED, NULL);
    cr_assert(h.state == HEADER_WRITING && h.generation == 2);
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_OTHER_GENERATION);
    id.generation = 2;
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_UNSEALED);
    header_t content = {.manifest = id.manifest, .bytes = 4096};
    put(&h, REGION_WRITING, REGION_SEAL, &content);
    cr_assert_eq(header_check(&h, &id, 4096), HEADER_MATCHES);
    cr_assert_eq(h.bytes, 4096);
}
