/* SPDX-License-Identifier: Apache-2.0 */
/* worker/download.h: the fetch session of one version, from its announcement to its verified bytes.
 *
 *   MANIFEST  its pieces are fetched
 *   VERIFYING it is whole: it is copied to memory of its own, and its BLAKE2b-256 is compared before anything
 *             of it is decoded; with another digest it is fetched again
 *   CHUNKS    they are fetched, one or several at once as a piece: by one fetch, or, where each half of
 *             them has sources of its own, by one for each half. What arrives goes
 *             through the digest queue (worker/digest_queue.h), also where its leaves were made as it was
 *             copied; a few completions a call of download_work are compared with the manifest: good pieces
 *             are served on at once (but see `overwritten`), bad ones come again from another source
 *   CLOSING   all chunks are good: h1 over all leaves is compared
 *   DONE      the bytes are the announced ones; the slot can be sealed with `manifest`
 *   FAILED    `error` has the reason; the slot stays RESERVED
 *
 * The state of each piece (requested from which source, landed, good) is in its fetch (`runs`) alone
 * (worker/fetch.h).  The cookie of an event says which piece its read request was for.
 *
 * Loop thread only; an intake (worker/intake.h) owns it and reads its fields; only this file's functions
 * change them.  It borrows the announcement and the slot until download_destroy, which
 * drops every open read request: the memory may still be written into until ops->idle says otherwise. */
#ifndef WORKER_DOWNLOAD_H
#define WORKER_DOWNLOAD_H

#include "client/node.h"
#include "worker/digest_queue.h"
#include "core/limits.h"
#include "worker/fetch.h"
#include "worker/announced.h"
#include "worker/bulk.h"
#include "worker/unreached.h"

#define DOWNLOAD_PIECE_BYTES LIMIT_CHUNK_MIN_BYTES /* of a manifest */
/* manifests that may come wrong before the version fails here */
#define DOWNLOAD_BAD_LIMIT 3u
/* sources that sent a wrong manifest, and are not asked for it again */
#define DOWNLOAD_BAD_MAX 16u

/* The cookie of a read request: | adapter: 16 bits | 0: 16 | piece: 32 |.  Its events are routed by it. */
static inline uint64_t cookie_of(uint32_t adapter) { return (uint64_t)adapter << 48; }
static inline uint32_t cookie_adapter(uint64_t cookie) { return (uint32_t)(cookie >> 48); }
static inline uint32_t cookie_piece(uint64_t cookie) { return (uint32_t)cookie; }

/* Borrowed until download_destroy. */
typedef struct {
    bulk_t *bulk;
    announced_t *what;
    slot_t *slot;
    unreached_t *unreached; /* what is known of sources that cannot be reached */
    uint32_t adapter;       /* for the cookies */
} download_opts_t;

typedef enum {
    DOWNLOAD_MANIFEST,
    DOWNLOAD_VERIFYING,
    DOWNLOAD_CHUNKS,
    DOWNLOAD_CLOSING,
    DOWNLOAD_DONE,
    DOWNLOAD_FAILED
} download_state_t;

/* One of its fetches: of the manifest, of all chunks, or of a half of them. */
typedef struct download_run {
    struct download *of;
    fetch_t *fetch;
    uint32_t first; /* piece 0 of the fetch */
    uint64_t half;  /* of the chunks: 1, 2; 0: of all, or of the manifest */
    uint64_t asked; /* token of the source that the fetch asks, counted in bulk->asked; 0: of none */
    bool is_good;   /* it has ended: all its pieces are */
} download_run_t;

typedef struct download {
    bulk_t *bulk;
    const node_io_t *io; /* the bulk plane's */
    announced_t *what;
    slot_t *slot;
    unreached_t *unreached;
    download_state_t state;
    heddle_error_t error;         /* FAILED */
    const announced_part_t *part; /* of `what` */
    uint64_t cookie;              /* of its asks, but for the piece */
    download_run_t runs[2];       /* under way; ascending by `first` */
    uint32_t run_count;           /* 0: FAILED, no memory */
    fetch_t *before;              /* the fetch that was before these; NULL: none */
    manifest_t manifest;
    uint32_t piece_bytes, piece_count; /* of the payload: a piece is one or more chunks */
    uint64_t *leaves;                  /* of the payload */
    digest_queue_t *digests;           /* of chunks that landed, by chunk */
    uint64_t bytes_done;               /* of the payload */
    uint64_t last_token;               /* source of the last bytes; 0: none came */
    uint64_t started_us;
    uint64_t bad[DOWNLOAD_BAD_MAX];
    bool is_doubtful[DOWNLOAD_BAD_MAX]; /* of `bad`, which sent some pieces of a wrong manifest, not all */
    uint32_t bad_count;
    uint32_t manifest_tries;
    uint64_t answered[LIMIT_SOURCES * 2]; /* sources that answered */
    uint32_t answered_count;
    bool needs_sources;      /* every source was lost, or one is to be blamed: until download_lost */
    uint32_t blamed_count;   /* that were, when it was last looked */
    bool is_partly_served;   /* some of what was verified could not be served on: it is at the end */
    bool overwritten;        /* a dropped ask may write after its chunk was digested: chunks are served on
                              * when all have been digested again */
    uint32_t again, checked; /* CLOSING: chunks that are, and were, digested again */
} download_t;

/* Starts: asks for the manifest.  The slot's region is shared under the
 * version's key already; what is verified is served on.  NO_MEMORY. */
int download_new(const download_opts_t *opts, uint64_t now_us, download_t **ret_download);
/* Drops what is asked; the share stays. */
void download_destroy(download_t **download);
/* what->sources changed. */
void download_new_sources(download_t *p, uint64_t now_us);
/* The end of an ask with a cookie of this adapter, or what a peer does: BEAT, PEER_GONE. */
void download_transfer(download_t *p, const tr_event_t *event, uint64_t now_us);
/* One bounded piece of digests or comparisons; false: there is nothing to do now. */
bool download_work(download_t *p, uint64_t now_us);
/* Returns the next deadline. */
uint64_t download_tick(download_t *p, uint64_t now_us);
/* The owner looks for other sources: tokens of those that are late or were lost, at most `cap`.  Returns how
 * many. */
uint32_t download_lost(download_t *p, uint64_t *ret_lost, uint32_t cap);
/* As fetch_blamed, of chunks, or of the manifest. */
uint32_t download_blamed(const download_t *p, blame_t blame, uint64_t *ret_tokens, uint32_t cap);
/* Of one of these: it answered something since the download began, and its connection has ended since, or it
 * refused, or its bytes were bad. */
bool download_has_failed(const download_t *p, uint64_t token);
/* Why no byte came yet, as long as that is known; NULL. */
static inline const heddle_error_t *download_trouble(const download_t *p)
{
    return p->unreached->reported_count && !p->last_token ? &p->unreached->error : NULL;
}

#endif
