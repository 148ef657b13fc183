/* SPDX-License-Identifier: Apache-2.0 */
/* client/sharing.h: what a member shares with the other members of its host: the regions of its pool, which
 * are offered at a socket (memory/offer.h), and the regions of others, mapped here (memory/mappings.h).
 *
 *   a peer   | event                        -> next
 *   ---------+----------------------------------------------------
 *   (none)   | sharing_peers lists it       -> watched: its regions are mapped in advance
 *   watched  | sharing_peers without it     -> forgone: what it offers stays while its process is there
 *   forgone  | listed again                 -> watched
 *            | its process has ended        -> (none)
 *
 * The socket of a process is named by the life that its HELLO says, so that every message which names a
 * process names its socket. By default it is an abstract one, which belongs to a network namespace; with a
 * directory it is a file there (memory/handover.h), for containers with networks of their own.
 *
 * Two descriptors are to be polled: when one is readable, sharing_readable is to be called. A turn that is
 * not due makes no system call: while a transfer is under way a loop turns as often as it can.
 *
 * A publisher opens it, a worker that is not set to use memory of its own alone, and a pull, which offers
 * nothing.
 *
 * Threads: one, a loop's. Nothing blocks, but for page faults. The member's node owns it. */
#ifndef CLIENT_SHARING_H
#define CLIENT_SHARING_H

#include "memory/mappings.h"
#include "memory/offer.h"
#include "proto/msg.h"

#define SHARING_NAME_BYTES 33u /* 32 hex digits */

typedef struct sharing sharing_t;
typedef struct {
    const char *directory; /* NULL: abstract sockets */
    key16_t life;
    pool_t *pool;                 /* borrowed; NULL: nothing is offered, and no socket listens */
    mappings_received_t received; /* as in mappings_new; NULL for none */
    void *self;
} sharing_opts_t;

/* DENIED, USAGE: the directory is not this user's alone, or cannot be opened. DENIED: this user cannot be
 * told from others (memory/handover.h). ADDRESS_IN_USE: the process has opened it twice. NO_SPACE: its
 * file system is full. NO_MEMORY, also without a descriptor. INTERNAL: the kernel has no place for it. */
int sharing_new(const sharing_opts_t *opts, sharing_t **ret_sharing, heddle_error_t *error);
/* What others hold stays theirs; what this process holds is ended by its taker (mappings_destroy). Accepts
 * NULL and pointers to NULL. */
void sharing_close(sharing_t **s);

/* For JOIN and OPEN; never 0. */
uint64_t sharing_place(const sharing_t *s);
/* Others of this host find its socket, if it has one (handover_is_there). */
bool sharing_is_there(const sharing_t *s);
offer_t *sharing_offer(sharing_t *s); /* NULL without a pool */
mappings_t *sharing_mappings(sharing_t *s);
enum { SHARING_FDS = 2 }; /* the first is -1 without a pool */
void sharing_fds(const sharing_t *s, int ret_fds[SHARING_FDS]);
/* One of the descriptors is readable: the next turn is due. Accepts NULL. */
void sharing_readable(sharing_t *s);
/* Does a part of what is to do, if a turn is due. Returns when the next one is: `now_us` or earlier while
 * there is more. */
uint64_t sharing_turn(sharing_t *s, uint64_t now_us);

/* All that PEERS lists: replaces the list before. More than MAPPINGS_SOURCES_MAX are not watched; their
 * regions are asked for when they are used. */
void sharing_peers(sharing_t *s, const msg_peer_t *peers, uint32_t count, uint64_t now_us);

/* ---- names ---- */

/* Of the socket of a process. */
const char *sharing_name(const key16_t *life, char scratch[SHARING_NAME_BYTES]);
/* What a source's region has, if it is the part with that manifest. */
content_id_t sharing_content(const msg_region_t *region, const digest_t *manifest);
/* As messages name a region of this process. */
msg_region_t sharing_region(const content_id_t *content);

#endif
