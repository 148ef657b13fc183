/* SPDX-License-Identifier: Apache-2.0 */
/* worker/slots.h: the slots of a worker: memory for versions of adapters, and the counted holds of readers.
 *
 *   FREE -> MAKING --reserve, adopt--> RESERVED --seal--> SEALED
 *    ^          |                         |                 |
 *    |          +-------------------------+------ drop -----+
 *    |                                            v
 *    +------- free (no reader, no ask) ------ LEAVING
 *
 * One SEALED slot of an adapter may be the active one (slots_active): that of the version that is ACTIVE in
 * worker/versions.h, which alone decides it.  Here it is a pointer of the table, and not a state of the slot,
 * because readers must get it in one load.  The active slot is not dropped.
 *
 * An adapter has up to LIMIT_SLOTS slots.  A slot has memory from reserve to free: a region of one pool for
 * all adapters (client/regions.h), which is used again by the next version that it fits, of whichever
 * adapter. SEALED slots can be acquired; their bytes and their view (manifest, digest, tag, names) do not
 * change until the last reader has left.
 *
 * Two versions of an adapter may have the same content: their slots then refer to one region (slot_adopt).
 *
 * Threads: slots_find, slots_acquire, slot_hold and slot_release on any thread: no lock, no system call
 * (except: the last release of a slot that is wanted back calls ops.wake; the last release after slots_close
 * unmaps).  Everything else on the loop's thread.  Ownership: the table lives until slots_close was called
 * AND the last hold is released. */
#ifndef WORKER_SLOTS_H
#define WORKER_SLOTS_H

#include "client/regions.h"
#include "core/limits.h"
#include "formats/manifest.h"

#include <heddle/worker.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct heddle_snapshot slot_t; /* a hold is a pointer to the slot whose count it is part of */
typedef struct slots slots_t;

typedef enum { SLOT_FREE, SLOT_MAKING, SLOT_RESERVED, SLOT_SEALED, SLOT_LEAVING } slot_state_t;

/* The memory of one part of the version. */
typedef struct {
    region_t *region; /* NULL while FREE and MAKING; another slot may refer to it too */
    bool is_adopted;  /* RESERVED: the region came with its bytes */
    /* Written before the slot opens, and read by its readers. */
    regions_file_t file; /* what readers may hand on; its generation is 0: nothing */
    manifest_t manifest; /* with a copy of its bytes, which the owner of a held region cannot change */
} slot_part_t;
/* The worker's code uses parts[0] alone, and readers get one manifest: a greater limit needs more than places
 * here. */
_Static_assert(LIMIT_VERSION_PARTS == 1, "slots of one part");

struct heddle_snapshot {
    atomic_uint refs;         /* readers, and the bits below */
    _Atomic uint64_t version; /* 0: nothing to acquire here */
    slots_t *table;
    /* Loop thread only. */
    slot_state_t state;
    uint32_t adapter, index;
    uint64_t taken_for;  /* version that it was begun for, until it is FREE; its adapter's */
    uint64_t leaving_us; /* when it was dropped, for "held for so long" */
    slot_part_t parts[LIMIT_VERSION_PARTS];
    /* Written before the slot opens, and read by its readers. */
    digest_t h1;
    heddle_manifest_t view;
    char digest[HEDDLE_DIGEST_TEXT], tag[HEDDLE_TAG_TEXT];
    uint64_t *dims; /* all extents, in order; manifest.dim_starts indexes them.  In one block with these: */
    uint32_t *name_starts;
    char *names; /* NUL-terminated, one after the other */
};

/* What a table needs of its owner. */
typedef struct {
    const node_io_t *io; /* its transfer registers the memory; its owner is the loop's */
    /* [any thread] a slot that is wanted back lost its last reader */
    void (*wake)(void *self);
    void *self;
    bool is_guarded; /* as in regions_opts_t */
} slots_ops_t;

/* `adapters`: names, copied; their order gives the numbers 0..count-1. */
int slots_new(const char *const *adapters, uint32_t count, const slots_ops_t *ops, slots_t **ret_slots);
/* Lets go of the table: nothing can be acquired any more; slots with readers stay until these are
 * gone.  Wake is not called after this returned.  Accepts NULL and pointers to NULL. */
void slots_close(slots_t **slots);
/* Where the transfer is closed before that: no slot gets memory any more; those that have some keep it. */
void slots_unmap_all(slots_t *s);
/* Before both: lets what is in flight land or leave, for at most 0.1 s. */
void slots_drain(slots_t *s);

/* [any thread] Number of an adapter; -1: not subscribed. */
int slots_find(const slots_t *s, const char *adapter);
const char *slots_adapter(const slots_t *s, uint32_t adapter);
/* [any thread] A hold on the active version (0) or on a given one.  NOT_FOUND when it is not here. */
int slots_acquire(slots_t *s, uint32_t adapter, uint64_t version, slot_t **ret_slot);
/* [any thread] For people: the versions that can be acquired now, as "3, 4"; "none".  Cut to fit. */
void slots_tell(const slots_t *s, uint32_t adapter, char *to, size_t size);
/* [any thread] One more hold, for a caller that has one. */
void slot_hold(slot_t *slot);
/* [any thread] Ends a hold.  Accepts NULL and pointers to NULL. */
void slot_release(slot_t **held);

/* FREE -> MAKING: takes slot `index` for a version that comes.  NO_MEMORY; NO_SLOT: it is in use. */
int slots_begin(slots_t *s, uint32_t adapter, uint32_t index, slot_t **ret_slot, heddle_error_t *error);
/* MAKING -> RESERVED: takes memory for content of `bytes`.  AGAIN: a piece of it was made, and the slot is
 * MAKING: call again, or drop it.  NO_MEMORY: it is FREE.  INTERNAL: it is not MAKING. */
int slot_reserve(slot_t *slot, uint64_t bytes, heddle_error_t *error);
/* The same, with a region that has the bytes already, as of another slot, or held in another process
 * (slots_map): one more reference.  INTERNAL: it is not MAKING. */
int slot_adopt(slot_t *slot, region_t *region);
/* As regions_hold. */
int slots_map(slots_t *s, struct mappings *from, struct hold *hold, region_t **ret_region,
              heddle_error_t *error);
/* The RESERVED slot's content is complete and verified: it is offered to this host from now on
 * (regions_offer), and readers of the slot may give it to other processes (heddle_snapshot_fd). Before
 * slot_seal, which lets them in. */
void slot_offer(slot_t *slot, const digest_t *manifest, size_t bytes);
/* Slot `index`; NULL when it was never reserved. */
slot_t *slots_at(const slots_t *s, uint32_t adapter, uint32_t index);
/* Opens a RESERVED slot to readers: its bytes are verified.  Takes `manifest` on success, one of
 * manifest_read: it borrows from its own copy, and not from the region. */
typedef struct {
    uint64_t version;
    digest_t h1;
    int64_t step;
    manifest_t *manifest;
} seal_t;
int slot_seal(slot_t *slot, const seal_t *seal);
/* The flip: acquire(adapter, 0) gives this SEALED slot from now on. */
void slots_activate(slots_t *s, slot_t *slot);
/* The active slot of an adapter; NULL: none yet. */
slot_t *slots_active(const slots_t *s, uint32_t adapter);
/* Closes a slot that is not active to new readers; it is free after the last one has left. */
void slot_drop(slot_t *slot, uint64_t now_us);
/* A LEAVING slot has no reader left. */
bool slot_is_unread(const slot_t *slot);
/* LEAVING -> FREE, without memory; it is unread, and nothing reads or writes its region any more. */
void slot_free(slot_t *slot);
uint32_t slot_readers(const slot_t *slot);
/* A forked child has not the memory of its parent's slots. Any thread. */
bool slot_is_of_this_process(const slot_t *slot);
/* The memory's work in the background (client/regions.h), and when it has some. */
bool slots_work(slots_t *s, uint64_t now_us);
uint64_t slots_deadline(const slots_t *s);
pool_count_t slots_memory(const slots_t *s);
regions_t *slots_regions(slots_t *s);

/* The slot that is reserved next: the first one that is FREE, made or not; -1: all are used. */
int slots_next_free(const slots_t *s, uint32_t adapter);

/* May heddle_snapshot_export write there, as things are now?  Errors as there. */
int snapshot_check_place(const char *dir, heddle_error_t *error);

/* Of one adapter: slots that are not FREE, and those with readers. */
typedef struct {
    uint32_t used, held;
} slots_count_t;
slots_count_t slots_count(const slots_t *s, uint32_t adapter);

#endif
