/* SPDX-License-Identifier: Apache-2.0 */
/* worker/pull.h: the fetch session of one version, from its announcement to its sealed slot.
 *
 *   MANIFEST  its pieces are fetched, unless they came early (worker/early.h); whole, it is copied to memory
 *             of its own, and its BLAKE2b-256 is compared before anything of it is decoded
 *   CHUNKS    chunks that came early are compared with the manifest, those that are not there, or are others,
 *             are fetched.  What arrives goes through the digest stage (core/digest_stage.h), also where its
 *             leaves were made as it was copied; a few completions a call of pull_work are compared too:
 *             good chunks are served on at once, bad ones come again from another source
 *   CLOSING   all chunks are good: h1 over all leaves is compared, the slot is sealed
 *   DONE      sealed; pull_destroy is all that is left
 *   FAILED    pull_error has the reason; the slot stays RESERVED
 *
 * The state of each piece (requested from which source, landed, good) is in its fetch alone
 * (transfer/fetch.h).  The cookie of an event says which piece its read request was for.
 *
 * Loop thread only; the adapter owns it.  It borrows the announcement and the slot until pull_destroy, which
 * drops every open read request: the memory may still be written into until ops->idle says otherwise. */
#ifndef WORKER_PULL_H
#define WORKER_PULL_H

#include "client/node.h"
#include "core/limits.h"
#include "proto/msg.h"
#include "transfer/fetch.h"
#include "worker/early.h"
#include "worker/slots.h"

#define PULL_PIECE_BYTES LIMIT_CHUNK_MIN_BYTES   /* of a manifest */
#define PULL_SERVED_MAX 32u
/* manifests that may come wrong before the version fails here */
#define PULL_BAD_LIMIT 3u

/* How many bytes one source served. */
typedef struct { uint64_t token, kind, bytes; char name[HEDDLE_NAME_MAX + 1]; } served_t;

/* One part of a version: an arena, and the key that its bytes are asked for under. */
#define ANNOUNCED_PARTS 1u                       /* a version with more is refused (adapter.c) */
typedef struct {
    uint64_t region_bytes, manifest_bytes;
    digest_t manifest_digest;
    share_key_t key;
} announced_part_t;

/* One announced version: what to fetch, from whom, and how that went. */
typedef struct announced {
    struct announced *next;
    uint64_t version, data_bytes;
    digest_t h1;
    announced_part_t part[ANNOUNCED_PARTS];
    int64_t step;
    source_t sources[LIMIT_SOURCES];             /* in the order to be tried */
    uint32_t source_count;
    uint64_t connect_us, fetch_us;               /* until the first bytes; from then to the last ones, with
                                                  * the time of those that came early */
    uint64_t verify_us, sealed_us;               /* spent in digests; when it was sealed */
    uint64_t stage_us, activate_us;              /* as reported to the broker; 0: not yet */
    served_t served[PULL_SERVED_MAX];
    uint32_t served_count;
} announced_t;

static inline uint64_t announced_bytes(const announced_part_t *part)
{
    return manifest_offset(part->region_bytes) + part->manifest_bytes;
}
/* The manifest of a part, in memory that holds its arena. */
static inline bytes_t announced_manifest(const announced_part_t *part, const void *arena)
{
    return bytes_of((const uint8_t *)arena + manifest_offset(part->region_bytes), part->manifest_bytes);
}
/* Copies the parts of a message, of which there are ANNOUNCED_PARTS; `key`: the version's. */
void announced_parts(announced_t *a, const msg_part_t *parts, const key16_t *key);
/* Copies the list of a message.  Sources without an address, or with one that is too long, are left
 * out. */
void announced_sources(announced_t *a, const msg_source_t *sources, uint32_t count);

typedef enum { PULL_MANIFEST, PULL_CHUNKS, PULL_CLOSING, PULL_DONE, PULL_FAILED } pull_state_t;
typedef struct pull pull_t;

typedef struct { uint64_t chunks_bad, retries; } pull_counters_t;

/* The cookie of a read request: | adapter: 16 bits | early: 8, 0 or 1 | part: 8 | piece: 32 |.  Its events
 * are routed by it. */
#define COOKIE_EARLY (1ull << 40)
static inline uint64_t cookie_of(uint32_t adapter) { return (uint64_t)adapter << 48; }
static inline uint32_t cookie_adapter(uint64_t cookie) { return (uint32_t)(cookie >> 48); }
static inline uint32_t cookie_piece(uint64_t cookie) { return (uint32_t)cookie; }

/* Borrowed until pull_destroy, but for `early`. */
typedef struct {
    const node_io_t *io;
    announced_t *what;
    slot_t *slot;
    pull_counters_t *counters;
    early_t *early;                              /* what it has in that slot is the pull's, and it is over */
    uint32_t adapter;                            /* for the cookies */
    uint32_t part;                               /* below ANNOUNCED_PARTS */
} pull_opts_t;

/* Starts: says HI to the sources, asks for the manifest.  The slot's region is shared under the
 * version's key already; what is verified is served on.  NO_MEMORY. */
int  pull_new(const pull_opts_t *opts, uint64_t now_us, pull_t **ret_pull);
/* Drops what is asked; the share stays. */
void pull_destroy(pull_t **pull);
/* announced->sources changed. */
void pull_resource(pull_t *p, uint64_t now_us);
/* The end of an ask with a cookie of this adapter, or what a peer does: BEAT, PEER_GONE. */
void pull_transfer(pull_t *p, const tr_event_t *event, uint64_t now_us);
/* There is a digest to do: one bounded piece of it a call of pull_work. */
bool pull_has_work(const pull_t *p);
void pull_work(pull_t *p, uint64_t now_us);
/* Returns the next deadline. */
uint64_t pull_tick(pull_t *p, uint64_t now_us);

pull_state_t pull_state(const pull_t *p);
const heddle_error_t *pull_error(const pull_t *p);
const announced_t *pull_what(const pull_t *p);
const slot_t *pull_slot(const pull_t *p);
uint64_t pull_bytes_done(const pull_t *p);       /* of the region */
uint64_t pull_source(const pull_t *p);           /* token of the source of the last bytes; 0: none came */
/* The source answered something since the pull began. */
bool pull_has_met(const pull_t *p, uint64_t token);
/* True once after every source was lost; tokens of those that were (at most cap). */
bool pull_needs_sources(pull_t *p, uint64_t *ret_lost, uint32_t cap, uint32_t *ret_count);

#endif
