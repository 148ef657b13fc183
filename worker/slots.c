/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/slots.h"

#include "core/errors.h"
#include "core/listing.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Bits of slot->refs above the count of readers. */
#define CLOSED (1u << 31) /* no new readers */
#define WANTED (1u << 30) /* the last reader wakes the loop */
#define ORPHAN (1u << 29) /* the table was closed: the last reader frees the slot's memory */
#define READERS (ORPHAN - 1)

typedef struct {
    char name[HEDDLE_NAME_MAX + 1];
    _Atomic(slot_t *) active;
    _Atomic(slot_t *) slots[LIMIT_SLOTS]; /* filled once each, by the loop; freed with the table */
} shelf_t;

struct slots {
    slots_ops_t ops;
    regions_t *memory;  /* loop thread; NULL after slots_unmap_all */
    atomic_uint owners; /* the worker, and each slot: the last to go frees the table */
    atomic_uint wakers; /* releases between "mine is the last hold" and the wake-up of the loop */
    uint32_t count;
    pid_t process;
    uint32_t *by_name; /* adapter numbers in order of name */
    shelf_t shelves[];
};

/* --- the table -------------------------------------------------------------------------------- */

/* An index by name is made once, because threads of the application look adapters up without a lock. */
int slots_new(const char *const *adapters, uint32_t count, const slots_ops_t *ops, slots_t **ret_slots)
{
    slots_t *s = calloc(1, sizeof *s + count * sizeof *s->shelves);
    if (!s) return HEDDLE_ERR_NO_MEMORY;
    s->by_name = calloc(count, sizeof *s->by_name);
    regions_opts_t memory = {.has_views = true, .is_guarded = ops->is_guarded};
    if (!s->by_name || regions_new(ops->io, &memory, &s->memory)) goto fail;
    s->ops = *ops;
    s->count = count;
    s->process = getpid();
    atomic_init(&s->owners, 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;
        error_text(s->shelves[i].name, sizeof s->shelves[i].name, adapters[i]);
        for (; at > 0 && strcmp(s->shelves[s->by_name[at - 1]].name, s->shelves[i].name) > 0; at--)
            s->by_name[at] = s->by_name[at - 1];
        s->by_name[at] = i;
    }
    *ret_slots = s;
    return HEDDLE_OK;
fail:
    free(s->by_name);
    free(s);
    return HEDDLE_ERR_NO_MEMORY;
}

/* Gives back what slot_seal made for readers. */
static void forget_content(slot_t *slot)
{
    manifest_fini(&slot->parts[0].manifest);
    slot->parts[0].manifest = (manifest_t){0};
    slot->view = (heddle_manifest_t){0};
    slot->parts[0].file = (regions_file_t){.fd = -1};
    free(slot->dims);
    slot->dims = NULL;
}

/* The last owner frees the table. Slots count as owners because a reader may hold one after the worker
 * has closed. */
static void unown(slots_t *s)
{
    if (atomic_fetch_sub(&s->owners, 1) != 1) return;
    for (uint32_t a = 0; a < s->count; a++)
        for (uint32_t i = 0; i < LIMIT_SLOTS; i++) free(atomic_load(&s->shelves[a].slots[i]));
    free(s->by_name);
    free(s);
}

/* The slot's memory goes; the struct itself stays until the table goes. */
static void dispose(slot_t *slot)
{
    forget_content(slot);
    region_unref(&slot->parts[0].region);
    unown(slot->table);
}

slot_t *slots_at(const slots_t *s, uint32_t adapter, uint32_t index)
{
    return atomic_load(&((slots_t *)s)->shelves[adapter].slots[index]);
}

/* Nothing has to come of it, because a peer that stands still must not hold up the end. */
void slots_drain(slots_t *s)
{
    enum { TURNS = 200, PATIENCE_US = 100000 };
    const node_io_t *io = s->ops.io;
    tr_event_t events[16];
    uint64_t end_us = clock_now(io->clock) + PATIENCE_US;
    for (int turn = 0; turn < TURNS && clock_now(io->clock) < end_us; turn++)
        io->tr->events(io->t, clock_now(io->clock), events, 16);
}

void slots_unmap_all(slots_t *s) { regions_close(&s->memory); }

/* A slot without readers is disposed here, one with readers by the last release: both see ORPHAN and the
 * count in one atomic step. */
void slots_close(slots_t **slots)
{
    slots_t *s = slots ? *slots : NULL;
    if (!s) return;
    *slots = NULL;
    slots_unmap_all(s);
    for (uint32_t a = 0; a < s->count; a++)
        for (uint32_t i = 0; i < LIMIT_SLOTS; i++) {
            slot_t *slot = slots_at(s, a, i);
            if (slot && (atomic_fetch_or(&slot->refs, CLOSED | ORPHAN) & READERS) == 0) dispose(slot);
        }
    /* A release that saw its slot before it was orphaned may be about to wake the loop: it is over in one
     * write. */
    while (atomic_load(&s->wakers) > 0) sched_yield();
    unown(s);
}

/* A binary search in the order of names: it runs on threads of the application for each acquire, so that
 * it takes no lock. */
int slots_find(const slots_t *s, const char *adapter)
{
    uint32_t low = 0, high = s->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(adapter, s->shelves[s->by_name[middle]].name);
        if (order == 0) return (int)s->by_name[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return -1;
}

const char *slots_adapter(const slots_t *s, uint32_t adapter) { return s->shelves[adapter].name; }

/* --- readers: any thread ---------------------------------------------------------------------- */

/* True with a hold; false when the slot is closed, and then nothing of it but refs was touched. */
static bool try_hold(slot_t *slot)
{
    if (!(atomic_fetch_add(&slot->refs, 1) & CLOSED)) return true;
    slot_release(&slot);
    return false;
}

/* The version is read again after the hold, since the slot may have been freed and sealed with another
 * version in between. */
int slots_acquire(slots_t *s, uint32_t adapter, uint64_t version, slot_t **ret_slot)
{
    shelf_t *shelf = &s->shelves[adapter];
    if (version == 0) {
        /* Between the load of the pointer and the hold a flip may have happened. The pointer is read again
         * after the hold, and a version that is not active any more is released. */
        for (;;) {
            slot_t *slot = atomic_load(&shelf->active);
            if (!slot) return HEDDLE_ERR_NOT_FOUND;
            if (!try_hold(slot)) continue;
            if (slot == atomic_load(&shelf->active)) {
                *ret_slot = slot;
                return HEDDLE_OK;
            }
            slot_release(&slot); /* lost a race with the flip: look again */
        }
    }
    for (uint32_t i = 0; i < LIMIT_SLOTS; i++) {
        slot_t *slot = atomic_load(&shelf->slots[i]);
        if (!slot) break; /* slots are made in order of index */
        if (atomic_load(&slot->version) != version || !try_hold(slot)) continue;
        if (atomic_load(&slot->version) == version) {
            *ret_slot = slot;
            return HEDDLE_OK;
        }
        slot_release(&slot);
    }
    return HEDDLE_ERR_NOT_FOUND;
}

/* Read without a lock: the list may be a moment old, which is enough for an error. */
void slots_tell(const slots_t *s, uint32_t adapter, char *to, size_t size)
{
    listing_t list = {.text = to, .size = size};
    for (uint32_t i = 0; i < LIMIT_SLOTS; i++) {
        slot_t *slot = atomic_load(&s->shelves[adapter].slots[i]);
        uint64_t version = slot ? atomic_load(&slot->version) : 0;
        if (version) listing_add(&list, "%llu", (unsigned long long)version);
    }
    if (!listing_text(&list)[0]) snprintf(to, size, "none");
}

void slot_hold(slot_t *slot) { atomic_fetch_add(&slot->refs, 1); }

/* A thread that will wake the loop first counts itself in `wakers`: once the hold is gone, that count
 * alone keeps the table alive until the wake-up is done. */
void slot_release(slot_t **held)
{
    slot_t *slot = held ? *held : NULL;
    if (!slot) return;
    *held = NULL;
    slots_t *table = slot->table;
    unsigned refs = atomic_load(&slot->refs);
    for (;;) {
        bool last = (refs & READERS) == 1, tells = last && (refs & (WANTED | ORPHAN)) == WANTED;
        if (tells) atomic_fetch_add(&table->wakers, 1);
        bool done = atomic_compare_exchange_weak(&slot->refs, &refs, refs - 1);
        if (done && tells) table->ops.wake(table->ops.self);
        if (tells) atomic_fetch_sub(&table->wakers, 1);
        if (!done) continue;
        if (last && (refs & ORPHAN)) dispose(slot);
        return;
    }
}

/* --- the loop's side -------------------------------------------------------------------------- */

/* Slots are created in order of their index and never moved, because application threads look at them
 * without a lock. */
int slots_begin(slots_t *s, uint32_t adapter, uint32_t index, slot_t **ret_slot, heddle_error_t *error)
{
    owner_check(s->ops.io->owner);
    slot_t *slot = NULL;
    for (uint32_t i = 0; i <= index; i++) {
        slot = slots_at(s, adapter, i);
        if (slot) continue;
        slot = calloc(1, sizeof *slot);
        if (!slot) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a slot");
        atomic_init(&slot->refs, CLOSED);
        slot->table = s;
        slot->adapter = adapter;
        slot->index = i;
        atomic_fetch_add(&s->owners, 1);
        atomic_store(&s->shelves[adapter].slots[i], slot);
    }
    if (slot->state != SLOT_FREE) return error_fail(error, HEDDLE_ERR_NO_SLOT, "slot %u is in use", index);
    slot->state = SLOT_MAKING;
    slot->parts[0].is_adopted = false;
    *ret_slot = slot;
    return HEDDLE_OK;
}

/* One piece a call, so that a turn of the loop stays short. */
int slot_reserve(slot_t *slot, uint64_t bytes, heddle_error_t *error)
{
    owner_check(slot->table->ops.io->owner);
    if (slot->state != SLOT_MAKING)
        return error_fail(error, HEDDLE_ERR_INTERNAL, "slot %u is not being made", slot->index);
    int rc = regions_take(slot->table->memory, slot, (size_t)bytes, &slot->parts[0].region, error);
    if (rc != HEDDLE_ERR_AGAIN) slot->state = rc ? SLOT_FREE : SLOT_RESERVED;
    return rc;
}

int slot_adopt(slot_t *slot, region_t *region)
{
    owner_check(slot->table->ops.io->owner);
    if (slot->state != SLOT_MAKING) return HEDDLE_ERR_INTERNAL;
    regions_give_up(slot->table->memory, slot);
    slot->parts[0].region = region_ref(region);
    slot->parts[0].is_adopted = true;
    slot->state = SLOT_RESERVED;
    return HEDDLE_OK;
}

int slots_map(slots_t *s, struct mappings *from, struct hold *hold, region_t **ret_region,
              heddle_error_t *error)
{
    return regions_hold(s->memory, from, hold, ret_region, error);
}

void slot_offer(slot_t *slot, const digest_t *manifest, size_t bytes)
{
    regions_content_t content = {.manifest = *manifest, .bytes = bytes};
    regions_offer(slot->table->memory, slot->parts[0].region, &content);
    if (regions_file(slot->parts[0].region, &slot->parts[0].file, NULL))
        slot->parts[0].file = (regions_file_t){.fd = -1};
}

/* All that a reader may ask for is made before the slot opens, so that readers need no lock. The last two
 * stores open it, in this order: a reader that gets a hold finds the version and its view complete. */
int slot_seal(slot_t *slot, const seal_t *seal)
{
    owner_check(slot->table->ops.io->owner);
    if (slot->state != SLOT_RESERVED) return HEDDLE_ERR_INTERNAL;
    /* The manifest has names without an end and extents without alignment. Callers of the public interface
     * get NUL-terminated names and aligned extents, made once a version. */
    const manifest_t *m = seal->manifest;
    size_t dim_count = m->dims.bytes / sizeof(uint64_t);
    size_t starts_bytes = m->tensor_count * sizeof *slot->name_starts;
    slot->dims = malloc(m->dims.bytes + starts_bytes + m->names.bytes + m->tensor_count);
    if (!slot->dims) return HEDDLE_ERR_NO_MEMORY;
    slot->name_starts = (uint32_t *)(slot->dims + dim_count);
    slot->names = (char *)slot->name_starts + starts_bytes;
    uint32_t at = 0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        manifest_row_t row;
        manifest_row(m, i, &row);
        slot->name_starts[i] = at;
        memcpy(slot->names + at, row.name.data, row.name.bytes);
        at += (uint32_t)row.name.bytes;
        slot->names[at++] = 0;
    }
    for (size_t d = 0; d < dim_count; d++)
        slot->dims[d] = le64_get((const uint8_t *)m->dims.data + d * sizeof(uint64_t));
    slot->parts[0].manifest = *seal->manifest;
    *seal->manifest = (manifest_t){0};
    m = &slot->parts[0].manifest;
    const char *adapter = slots_adapter(slot->table, slot->adapter);
    slot->h1 = seal->h1;
    digest_text(&seal->h1, slot->digest);
    tag_text(adapter, seal->version, &seal->h1, slot->tag);
    slot->view = (heddle_manifest_t){.size = sizeof slot->view,
                                     .adapter = adapter,
                                     .version = seal->version,
                                     .digest = slot->digest,
                                     .tag = slot->tag,
                                     .config = m->config.data,
                                     .config_bytes = m->config.bytes,
                                     .tensor_count = m->tensor_count,
                                     .chunk_count = m->chunk_count,
                                     .data_bytes = m->data_bytes,
                                     .step = seal->step,
                                     .features = m->features,
                                     .kind = m->kind};
    slot->state = SLOT_SEALED;
    atomic_store(&slot->version, seal->version);
    atomic_fetch_and(&slot->refs, ~CLOSED);
    return HEDDLE_OK;
}

/* One atomic store is the switch: each reader gets the old version or the new one, and both are whole. */
void slots_activate(slots_t *s, slot_t *slot)
{
    owner_check(s->ops.io->owner);
    atomic_store(&s->shelves[slot->adapter].active, slot);
}

slot_t *slots_active(const slots_t *s, uint32_t adapter)
{
    return atomic_load(&((slots_t *)s)->shelves[adapter].active);
}

/* WANTED makes the last reader wake the loop, which then frees the slot. */
void slot_drop(slot_t *slot, uint64_t now_us)
{
    owner_check(slot->table->ops.io->owner);
    bool is_active = slot == slots_active(slot->table, slot->adapter);
    if (slot->state == SLOT_FREE || slot->state == SLOT_LEAVING || is_active) return;
    if (slot->state == SLOT_MAKING) regions_give_up(slot->table->memory, slot);
    slot->state = SLOT_LEAVING;
    slot->leaving_us = now_us;
    atomic_fetch_or(&slot->refs, CLOSED | WANTED);
    atomic_store(&slot->version, 0);
}

bool slot_is_of_this_process(const slot_t *slot) { return slot->table->process == getpid(); }

uint32_t slot_readers(const slot_t *slot) { return atomic_load(&((slot_t *)slot)->refs) & READERS; }
bool slot_is_unread(const slot_t *slot) { return slot->state == SLOT_LEAVING && slot_readers(slot) == 0; }

void slot_free(slot_t *slot)
{
    owner_check(slot->table->ops.io->owner);
    if (!slot_is_unread(slot)) return;
    atomic_fetch_and(&slot->refs, ~WANTED);
    forget_content(slot);
    region_unref(&slot->parts[0].region);
    slot->state = SLOT_FREE;
}

int slots_next_free(const slots_t *s, uint32_t adapter)
{
    owner_check(s->ops.io->owner);
    for (uint32_t i = 0; i < LIMIT_SLOTS; i++) {
        const slot_t *slot = slots_at(s, adapter, i);
        if (!slot || slot->state == SLOT_FREE) return (int)i;
    }
    return -1;
}

bool slots_work(slots_t *s, uint64_t now_us) { return regions_work(s->memory, now_us); }
uint64_t slots_deadline(const slots_t *s) { return regions_deadline(s->memory); }
regions_t *slots_regions(slots_t *s) { return s->memory; }
pool_count_t slots_memory(const slots_t *s) { return regions_count(s->memory); }

/* Slots are made in the order of their index, so that the first missing one ends the count. */
slots_count_t slots_count(const slots_t *s, uint32_t adapter)
{
    owner_check(s->ops.io->owner);
    slots_count_t count = {0, 0};
    for (uint32_t i = 0; i < LIMIT_SLOTS; i++) {
        const slot_t *slot = slots_at(s, adapter, i);
        if (!slot) break;
        count.used += slot->state != SLOT_FREE;
        count.held += slot_readers(slot) > 0;
    }
    return count;
}
