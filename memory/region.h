/* SPDX-License-Identifier: Apache-2.0 */
/* memory/region.h: shared memory with the writer's exclusive lock: one process owns and writes it, others of
 * the host hold it (memory/hold.h, the readers' shared locks; memory/rules.h, which lock allows what). A
 * memfd: content in whole pages, and a header in the last page. The memory of every version is made with it
 * (client/regions.h).
 *
 *   state      | begin             | seal             | abort     | offer     | hand over     | drop
 *   -----------+-------------------+------------------+-----------+-----------+---------------+--------
 *   idle       | -> writing if no  | –                | –         | stays     | –             | idle
 *              | other has it held |                  |           |           |               |
 *   writing    | –                 | -> sealed        | -> idle   | stays     | –             | –
 *   sealed     | –                 | –                | –         | stays     | stays         | -> idle
 *   gone       | –                 | –                | –         | –         | –             | –
 *
 * `locking`, between idle and writing, lasts only within begin. `gone`, from each state but
 * `locking`, comes with shrink: the header's page is given back first, and only destroy is left. "–": USAGE,
 * and nothing changes. The owner's death in any state takes nothing from those that hold the region; in
 * `writing` it leaves a header that no holder accepts.
 *
 * `sealed` means: its content may be held by others. offer gives the region alone, to be mapped in advance
 * and read later, under a hold. A region that was dropped may still be held; begin then fails at once with
 * NO_SLOT. Nothing but the exclusive lock decides when the memory may be written: no message, count or
 * timer.
 *
 * SHRINK and GROW are sealed when it is made, FUTURE_WRITE and SEAL when it is first offered or handed
 * over. From then on only the owner's mapping can write, and no page can be punched: the memory is back
 * when the last mapping and the last descriptor are gone.
 *
 * *Mark*: the header, for processes that have no library (heddle_snapshot_fd).
 *
 * Threads: one, the owner's; the guard may be set and taken back by another one while the region is not
 * written. Only page faults block. The caller owns it. A forked child has neither the mapping (MADV_DONTFORK)
 * nor the descriptor, and its calls do nothing. */
#ifndef MEMORY_REGION_H
#define MEMORY_REGION_H

#include "memory/forks.h"
#include "memory/rules.h"

#include <heddle/error.h>
#include <sys/types.h>

typedef struct memory_region {
    void *base; /* content; writable but for what is guarded */
    const void
        *view;    /* a mapping that only reads, for readers in this process; NULL until memory_region_view */
    size_t bytes; /* of content, whole pages */
    size_t made_bytes;    /* of content: has pages; nothing may read or write beyond */
    size_t mapped_bytes;  /* from base on, header included */
    size_t guarded_bytes; /* from base on, read-only now */
    memory_fd_t file;
    region_state_t state;
    bool is_handed_over; /* ever, or offered: writing is sealed */
    pid_t process;       /* that made it */
} memory_region_t;

/* What /proc calls its file. */
#define MEMORY_REGION_FILE "heddle-region"
/* One step of grow or shrink: a millisecond or less. */
#define MEMORY_STEP_BYTES ((size_t)1 << 20)
/* One step of the guard: 4 to 7 ms. */
#define MEMORY_GUARD_BYTES ((size_t)256 << 20)

/* NO_MEMORY with the size asked for. new: address space, a file, and the header. grow: gives the content its
 * pages, one step a call: AGAIN until it is whole, then OK. The kernel refuses only what it cannot give at
 * all, so the caller checks first how much memory is free, and stays below that. */
int memory_region_new(size_t bytes, memory_region_t **ret_region, heddle_error_t *error);
int memory_region_grow(memory_region_t *r, heddle_error_t *error);

/* Pages of content that are written through the file, each once and in any order before some point; grow
 * makes the rest. Half of what grow and a copy take: nothing is cleared first, and nothing mapped. In
 * `writing`, before the region is first offered. NO_MEMORY. USAGE: it is sealed against such writes, or not
 * being written. */
int memory_region_put(memory_region_t *r, size_t at, const void *pages, size_t bytes, heddle_error_t *error);
/* Makes r->view once, populated as far as there are pages. NO_MEMORY. USAGE: it is given back. */
int memory_region_view(memory_region_t *r, heddle_error_t *error);

/* Takes the exclusive lock, without waiting, and begins the next generation: the content may be written then.
 * NO_SLOT: another process holds an older generation, nothing has changed. NO_MEMORY: what is guarded cannot
 * be made writable again. */
int memory_region_begin(memory_region_t *r, heddle_error_t *error);
/* The content is complete, and is offered: the first `bytes` of it, which have pages. No receive and no copy
 * into it may be open. */
int memory_region_seal(memory_region_t *r, const digest_t *manifest, size_t bytes, heddle_error_t *error);
/* Neither waits nor fails. abort: what was written is nothing. drop: it is no longer offered. */
void memory_region_abort(memory_region_t *r);
void memory_region_drop(memory_region_t *r);
/* By another process, now. */
bool memory_region_is_held(const memory_region_t *r);
/* Whether begin would be granted now: idle, and held by no other process. */
bool memory_region_is_free(const memory_region_t *r);

/* What it holds, for messages; of a region that is sealed. */
content_id_t memory_region_content(const memory_region_t *r);
/* For memory/handover.h, of a region that is sealed: its descriptor, which stays the region's own. The first
 * call seals the file against new writable mappings. USAGE: not sealed. INTERNAL: the kernel cannot (before
 * 5.1). */
int memory_region_hand_over(memory_region_t *r, int *ret_fd, heddle_error_t *error);
/* The same for processes that map it in advance, without a hold. USAGE: given back. */
int memory_region_offer(memory_region_t *r, int *ret_fd, heddle_error_t *error);

/* Makes the owner's mapping of a sealed or idle region read-only, so that a stray write is a fault and not a
 * change under those that hold it; and writable again. One step a call; true while there are more. A kernel
 * that has no memory for it leaves the rest as it is. */
bool memory_region_guard(memory_region_t *r);
bool memory_region_unguard(memory_region_t *r);

/* Gives memory back but for its first step, one step a call; true while there is more. From the
 * first step on it is `gone`, unless it has no more than one. */
bool memory_region_shrink(memory_region_t *r);
/* Shrinks what is left, and closes. The last reference of a large region ends on a thread of its own
 * (memory/file.h). Accepts NULL. */
void memory_region_destroy(memory_region_t **r);

#endif
