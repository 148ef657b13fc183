/* SPDX-License-Identifier: Apache-2.0 */
/* worker/announced.h: one announced version: what to fetch, from which sources, and how that went.
 *
 * It is a copy of what ANNOUNCE and SOURCES said, because messages are gone when their handler returns and a
 * version may wait for a slot, or be fetched anew.  It has no states: its entry in versions_t has them.
 *
 * Loop thread only.  The version's entry in versions_t owns it (the admin handle, for its pull), and a
 * download borrows it. */
#ifndef WORKER_ANNOUNCED_H
#define WORKER_ANNOUNCED_H

#include "client/node.h"
#include "core/limits.h"
#include "core/names.h"
#include "formats/manifest.h"
#include "proto/msg.h"
#include "transfer/transfer.h"
#include "worker/fetch.h"

#define ANNOUNCED_SERVED_MAX 32u

/* A process that has the bytes, as the broker named it: a publisher or another worker. */
typedef struct {
    uint64_t token, kind; /* source_kind_t */
    char name[HEDDLE_NAME_MAX + 1];
    uint8_t address[LIMIT_ADDRESS_BYTES];
    uint32_t address_bytes;
    key16_t
        life; /* these two where it is a process of this host; generation 0: it is not, or has no region */
    msg_region_t region;
    bool is_apart;   /* of this host, but out of reach for holding */
    bool is_partial; /* it still fetched the version itself when the broker listed it */
    uint64_t half;   /* of the chunks: 1, 2; 0: for all */
} announced_source_t;

/* How many bytes one source served, and how many read requests were taken back from it. */
typedef struct {
    uint64_t token, kind, bytes;
    char name[HEDDLE_NAME_MAX + 1];
    uint64_t moved[MOVED_REASONS];
    bool is_held; /* in its memory: nothing was copied */
} served_t;

/* One part of a version: its content, and the key that its bytes are asked for under. */
typedef struct {
    uint64_t payload_bytes, manifest_bytes;
    digest_t manifest_digest;
    share_key_t key;
    char kind[16]; /* that the manifest must have (formats/kind.h); "": any */
} announced_part_t;

typedef struct announced {
    uint64_t version, data_bytes;
    digest_t h1;
    announced_part_t parts[LIMIT_VERSION_PARTS];
    uint32_t part_count;
    int64_t step;
    announced_source_t sources[LIMIT_SOURCES]; /* in the order to be tried */
    uint32_t source_count;
    bool is_in_halves; /* a list had sources for a half of the chunks: each half is fetched by itself */
    uint64_t connect_us, fetch_us; /* until the first bytes; from then to the last ones */
    uint64_t verify_us, sealed_us; /* spent in digests; when it was sealed */
    bool is_verified_for; /* another process of this host compared the bytes, for all that hold them */
    uint64_t stage_us, activate_us; /* as reported to the broker; 0: not yet */
    served_t served[ANNOUNCED_SERVED_MAX];
    uint32_t served_count;
} announced_t;

/* Keeps what ANNOUNCE says: as a new one, to be freed, or, where the version is known already, only its
 * sources, for bytes and key of a version never change.  While it is fetched they come behind those that are
 * known: the broker was restarted, which moves no transfer.  NULL: it cannot be kept (PROTOCOL, LIMIT,
 * NO_MEMORY). */
announced_t *announced_receive(announced_t *known, const msg_announce_t *m, bool is_fetched,
                               heddle_error_t *error);

/* Copies the parts of a message, and their keys, which follow from the version's.  Any kind is taken.
 * PROTOCOL: there is none, or more than this release takes; nothing is copied. */
int announced_parts(announced_t *w, const msg_part_t *parts, uint32_t count, const key16_t *key,
                    heddle_error_t *error);
/* Each part of the version, at the transfer: `expect`, before there is memory for it, and `unshare`. */
void announced_expect(const announced_t *w, const node_io_t *io);
void announced_unshare(const announced_t *w, const node_io_t *io);
/* Copies the list of a message, which replaces the one before.  Sources without an address, or with one that
 * is too long, are left out: they could never be connected to. */
void announced_sources(announced_t *w, const msg_source_t *sources, uint32_t count);
/* NULL when the last list does not have it: an answer may come from a source that the broker has left out
 * since. */
const announced_source_t *announced_source(const announced_t *w, uint64_t token);
/* The sources of a half, in the order to be tried; half 0: of the manifest, which are those of the half that
 * the first row is for.  Returns how many. */
uint32_t announced_tokens(const announced_t *w, uint64_t half, uint64_t ret_tokens[LIMIT_SOURCES]);

static inline uint64_t announced_bytes(const announced_part_t *part)
{
    return manifest_offset(part->payload_bytes) + part->manifest_bytes;
}
static inline uint64_t announced_payload_bytes(const announced_t *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->part_count; i++) bytes += w->parts[i].payload_bytes;
    return bytes;
}
/* The manifest of a part, in memory that holds its content. */
static inline bytes_t announced_manifest(const announced_part_t *part, const void *content)
{
    return bytes_of((const uint8_t *)content + manifest_offset(part->payload_bytes), part->manifest_bytes);
}
static inline peer_ref_t source_ref(const announced_source_t *s)
{
    return (peer_ref_t){s->token, bytes_of(s->address, s->address_bytes)};
}

#endif
