/* SPDX-License-Identifier: Apache-2.0 */
/* memory/hold.h: a hold: a region of another process (memory/region.h), mapped read-only, with a shared lock
 * on a description of its own. While it lasts, the owner cannot write.
 *
 *   state      | take                                                       | hand on      | release
 *   -----------+------------------------------------------------------------+--------------+----------------
 *   none       | lock refused (it is written again):              -> none   | –            | unlock, -> none
 *              | header is not what was announced: unlock,        -> none   |              |
 *              | it is, but there is no memory to map it: unlock, -> none   |              |
 *              | else                                             -> mapped |              |
 *   mapped     | –                                                          | stays mapped | unlock, -> none
 *
 * A description comes with a lock: in `none`, and yet the owner cannot write. So it is taken at once, or
 * released.
 *
 * Within take: `asked`, `locked`, `checked`, in this order (memory/rules.h). The header is read after the
 * lock and never before, and nothing of the content is read before both.
 *
 * The mapping is a cache, and outlives the hold: to take a hold again costs a lock and a look at the header.
 * Without a hold the mapping must not be read; its bytes may change at any time.
 *
 * A hold ends by F_UNLCK, never by close alone: a mapping keeps a lock after its descriptor is closed, and so
 * does a forked child. And it ends only in the process that took it: a child's F_UNLCK would end its
 * parent's. A forked child has neither mapping nor descriptor, and its calls do nothing.
 *
 * Threads: one; release may be called on another thread than take, one at a time. Only page faults block. The
 * caller owns it. */
#ifndef MEMORY_HOLD_H
#define MEMORY_HOLD_H

#include "memory/forks.h"
#include "memory/rules.h"

#include <heddle/error.h>
#include <sys/types.h>

typedef struct hold {
    const void *base;  /* the content; NULL: not mapped */
    size_t file_bytes; /* content and header */
    size_t mapped_bytes, populated_bytes;
    memory_fd_t file;
    hold_state_t state;
    header_t header; /* as found; its bytes count while it is held */
    pid_t process;   /* that has it */
} hold_t;

/* Of a descriptor that came from another process, which is taken in any case: `file` has none afterwards. The
 * lock that is on it stays. DENIED: a file of another user. PROTOCOL: not a region that was sealed and may be
 * read only; it was unlocked and closed, and the process that sent it is not to be asked again. NO_MEMORY. */
int hold_new(memory_fd_t *file, hold_t **ret_hold, heddle_error_t *error);
/* In mapped: `base` and `header.bytes` of it may be read until hold_release. NOT_FOUND: this is not the
 * content that was announced, or not any more; ask for it again, here or elsewhere. NO_MEMORY: it cannot be
 * mapped. USAGE: it is held already. */
int hold_take(hold_t *h, const content_id_t *id, heddle_error_t *error);
void hold_release(hold_t *h);

/* Mapped in advance, without a hold. map: NO_MEMORY. populate: one step a call, true while there are more. */
int hold_map(hold_t *h, heddle_error_t *error);
bool hold_populate(hold_t *h);
/* Gives the mapping back but for its first step, one step a call; true while there is more. Does nothing
 * while it is held. */
bool hold_unmap(hold_t *h);
/* Releases, unmaps what is left, and closes. The last reference of a large region ends on a thread of its own
 * (memory/file.h). Accepts NULL. */
void hold_destroy(hold_t **h);

/* For memory/handover.h: the descriptor of what is held, which stays this hold's. USAGE: it is not held. */
int hold_hand_on(hold_t *h, int *ret_fd, heddle_error_t *error);
/* A new description of the file of `fd`, with a hold of this content on it, to be sent to another process;
 * or, for generation 0, of this region and without a hold, to be mapped in advance. Within forks_stop and
 * forks_go: the caller closes it there, after F_UNLCK unless it was sent. NOT_FOUND, as hold_take;
 * NO_MEMORY: no descriptor is left. */
int hold_open(int fd, const content_id_t *id, int *ret_fd, heddle_error_t *error);

#endif
