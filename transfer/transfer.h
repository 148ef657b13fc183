/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/transfer.h: the data plane: bytes of shared regions between peers.  It deals with keys, ranges,
 * sinks and peers; not with adapters, chunks or manifests, and of digests only with the leaves of what it
 * copies itself.
 *
 * A receiver sends read requests ("asks") for ranges under a share key.  The source answers each range when
 * it has those bytes.  A request may come before its bytes, and before the memory for them (expect): it is
 * pending until they are there, until the source's serve deadline, or until the receiver cancels it (UNASK).
 * The receiver paces.
 *
 * Loop thread only; nothing blocks.  The owner of a transfer closes it, after its regions are unmapped.  A
 * backend is a plugin with one `const transfer_ops_t`.
 *
 * Hot path (per range): no allocation, no log, no system call but the backend's own socket I/O. */
#ifndef TRANSFER_TRANSFER_H
#define TRANSFER_TRANSFER_H

#include "core/bytes.h"
#include "core/clock.h"
#include "core/owner.h"
#include "transfer/region.h"
#include <stdbool.h>

typedef struct {
    uint8_t b[16];
} share_key_t; /* a holder of the key may read */
typedef struct {
    uint64_t token;
    bytes_t address;
} peer_ref_t; /* address: from the control plane only */
typedef struct transfer transfer_t;

/* Where the bytes of an ask go: memory that map() was called for.  ask() copies it.  `leaves` is written
 * only until the ask ends or is dropped; the memory and its mapping stay until idle() says that nothing
 * writes there any more. */
typedef struct {
    heddle_memory_t memory; /* HOST; ask() refuses others with USAGE */
    uint8_t *base;          /* writable */
    uint64_t bytes;
    uint64_t *leaves; /* one for each page from `base` on: what the carrier copies to its
                       * place is digested in the same pass, while it is in the cache.
                       * NULL: not wanted */
    void *mapping;    /* region_t.backend */
} sink_t;
static inline sink_t sink_of(const region_t *r, uint64_t *leaves)
{
    return (sink_t){.memory = HEDDLE_MEMORY_HOST,
                    .base = r->base,
                    .bytes = r->bytes,
                    .leaves = leaves,
                    .mapping = r->backend};
}
/* A read request: one range of a share, and where its bytes go. */
typedef struct {
    share_key_t key;
    uint64_t offset; /* in the share */
    uint32_t bytes;
    const sink_t *sink;
    uint64_t at;     /* in the sink */
    uint64_t cookie; /* the caller's: comes back with the ask's event */
} tr_read_t;

typedef enum {
    TR_ARRIVED,  /* the range of `ask` lies in its place.  is_digested: its leaves lie in the sink's;
                  * else its digest is still to be made */
    TR_REFUSED,  /* `ask` will not be served: err NOT_FOUND (unknown key), LIMIT (out of range, too
                  * many), AGAIN (the source itself makes no progress), PROTOCOL (its answer has
                  * another shape), GONE */
    TR_BEAT,     /* keepalive: the source `token` is alive and has nothing to send yet, or our own rate
                  * limit holds requests back */
    TR_PEER_GONE /* the connection to `token` has ended; every ask of it ended before this (as
                  * TR_REFUSED, err GONE).  It may not come where the peer closed the connection because
                  * we took nothing: deadlines are the caller's */
} tr_kind_t;
typedef struct {
    tr_kind_t kind;
    bool is_digested;
    uint64_t ask, cookie, token;
    share_key_t key;
    int err;
} tr_event_t;

typedef struct {
    uint64_t bytes_in, bytes_out; /* body of DATA */
    uint64_t asks_in, asks_out, data_in, data_out, refused_in, refused_out, beats_in, beats_out;
    uint64_t late, maps, malformed;
} tr_counters_t;

typedef enum { TR_MODE_EAGER, TR_MODE_RENDEZVOUS } tr_mode_t;
typedef struct {
    const char *device;         /* network interface; NULL: "lo" */
    uint64_t max_rate_bytes;    /* a second, sent, and received: each way by itself; 0: none */
    uint32_t serve_deadline_ms; /* a peer that takes nothing for so long is dropped; 0: 10000 */
    uint32_t beat_ms;           /* how often a source with standing asks says BEAT; 0: 50 */
    uint32_t close_ms;          /* how long close may wait for sends in flight; 0: 2000 */
    tr_mode_t mode;             /* RENDEZVOUS: for transports that place data themselves; over TCP,
                                 * UCX 1.13 may abort when a peer dies while it connects */
    const clock_ops_t *clock;
    const owner_t *owner; /* of the calling thread; borrowed until close.  NULL: not checked */
} transfer_opts_t;

/* Where peers find a transfer. */
typedef struct {
    char addresses[96]; /* "10.0.0.5,fd00::5", for people */
    uint64_t network;   /* equal where loopback is the same; 0: not known */
} tr_where_t;

typedef struct transfer_ops {
    const char *name; /* "ucx"; "mem" in tests */
    int (*open)(const transfer_opts_t *opts, transfer_t **ret, heddle_error_t *error);
    void (*close)(transfer_t **t);
    const char *(*version)(void);                                /* "1.13.1"; "" for mem */
    void (*devices)(transfer_t *t, char *ret_list, size_t size); /* comma-separated, for people */
    void (*where)(transfer_t *t, tr_where_t *ret_where);
    /* Why no connection to that address can be made from here, for people; "" where one may. */
    void (*explain)(transfer_t *t, bytes_t address, char *ret_text, size_t size);
    /* The interface's addresses are not those of address() any more. */
    bool (*moved)(transfer_t *t);
    /* Takes the current addresses of the interface: address() has them then, and must be sent to the broker
     * again.  Peers over addresses that are gone are gone too (TR_PEER_GONE).  Mappings and shares stay.
     * INTERNAL, retriable: it cannot be done now; what still works stays. */
    int (*reopen)(transfer_t *t, heddle_error_t *error);
    int (*address)(transfer_t *t, bytes_t *ret_address); /* borrowed until close, or reopen */
    void (*set_token)(transfer_t *t, uint64_t token);    /* our own, for HI; after each WELCOME */
    int (*map)(transfer_t *t, region_t *r);              /* once, before share or ask;
                                                          * counters.maps */
    void (*unmap)(transfer_t *t, region_t *r);
    /* The memory of this version is not there yet, but will be.  Asks of the key are pending from now on,
     * until it is shared and extended, until it is unshared, or for the serve deadline after the last
     * expect().  A key that is shared stays as it is.  LIMIT: too many; NO_MEMORY: then it is not known. */
    int (*expect)(transfer_t *t, share_key_t key);
    /* Nothing is readable until extended.  USAGE: the key is shared already. */
    int (*share)(transfer_t *t, region_t *r, share_key_t key);
    /* These bytes are verified: answer the asks that waited for them.  NOT_FOUND: the key is not shared;
     * LIMIT: outside of it; NO_MEMORY: nothing has changed. */
    int (*extend)(transfer_t *t, share_key_t key, uint64_t offset, uint64_t bytes);
    /* New asks are refused, standing ones too, also of a key that was only expected.  The region may be
     * written again at once. */
    void (*unshare)(transfer_t *t, share_key_t key);
    /* Connect and say HI ahead of the first ask; idempotent.  Errors as for ask. */
    int (*greet)(transfer_t *t, const peer_ref_t *peer);
    /* SLOW: this process has as many asks open as it may, at this peer or at all: one more can be made when
     * one has ended; AGAIN: too many connections, no token yet; GONE: cannot connect, or TR_PEER_GONE of this
     * peer was not seen yet; LIMIT: more than LIMIT_CHUNK_MAX_BYTES, or outside the sink.  No two asks have
     * the same number, ever. */
    int (*ask)(transfer_t *t, const peer_ref_t *from, const tr_read_t *read, uint64_t *ret_ask);
    /* Soft (UNASK): what still comes is discarded; no event follows. */
    void (*drop_ask)(transfer_t *t, uint64_t ask);
    /* Hard: the connection ends; events as for TR_PEER_GONE. */
    void (*drop_peer)(transfer_t *t, uint64_t token);
    void (*set_rate)(transfer_t *t, uint64_t max_rate_bytes);
    /* Progress, then up to `cap` events.  Sends what ask() gathered (one ASK frame for up to 16 ranges). */
    int (*events)(transfer_t *t, uint64_t now_us, tr_event_t *out, int cap);
    /* When events() must be called though nothing arrived; CLOCK_NEVER. */
    uint64_t (*deadline)(transfer_t *t);
    bool (*arm)(transfer_t *t); /* true: safe to sleep on fd */
    int (*fd)(transfer_t *t);   /* -1: none */
    void (*counters)(transfer_t *t, tr_counters_t *ret);
    /* True when nothing writes into `r` any more: always with eager data; with rendezvous, once
     * no dropped ask has an open receive.  Memory of dropped asks is reused, and unmapped, only
     * then. */
    bool (*idle)(transfer_t *t, const region_t *r);
} transfer_ops_t;

/* Loads the UCX plugin once: HEDDLE_PLUGIN_DIR, else ../lib/heddle beside the program or library,
 * else the install directory.  Sets UCX's environment first (device, segments, no signal
 * handlers; a variable that the user set stays). INTERNAL with the package to install where UCX
 * is missing.  `device`: NULL = "lo". */
int transfer_ucx_load(const char *device, const transfer_ops_t **ret_ops, heddle_error_t *error);
/* The same without a device, and with UCX's libraries out of `ucx_dir` (NULL: the dynamic linker's), unless
 * the plugin was loaded before.  Where plugin and UCX came from; "" where unknown. */
typedef struct {
    char plugin[1024], ucx[1024];
} transfer_place_t;
int transfer_ucx_load_from(const char *ucx_dir, const transfer_ops_t **ret_ops, transfer_place_t *ret_place,
                           heddle_error_t *error);

#endif
