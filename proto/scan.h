/* SPDX-License-Identifier: Apache-2.0 */
/* proto/scan.h: a check of msgpack bytes from outside, before any of them is decoded; and what the encoders
 * and decoders of this room share of msgpack-c.
 *
 * msgpack-c allocates what a header declares, so five bytes can request gigabytes.  Therefore bytes are
 * passed to it only after this scan, which allocates nothing and does not recurse.  It requires: exactly one
 * value and no byte after it · depth, number of objects and keys per map within the limits · never more
 * declared elements than bytes left · whole texts in valid UTF-8 · unique text keys in each map · no ext type
 * and no reserved byte.  Pure, without state; any thread. */
#ifndef PROTO_SCAN_H
#define PROTO_SCAN_H

#include "core/bytes.h"
#include "core/limits.h"
#include <heddle/error.h>
#include <msgpack.h>

typedef struct {
    uint32_t depth; /* containers in each other; at most LIMIT_REPORT_DEPTH */
    uint32_t nodes; /* objects in all: containers, keys, values */
    uint32_t keys;  /* pairs in one map, at most LIMIT_MAP_KEYS; 0: any number, and the caller looks for
                         duplicates */
} scan_limits_t;

/* PROTOCOL or LIMIT; the message begins with `what` ("frame") and says at which byte. */
int scan_check(bytes_t input, const scan_limits_t *limits, const char *what, heddle_error_t *error);
/* A tree lies in `first` as far as it fits, so that a message takes no memory of the heap for it; it is not
 * moved. */
#define SCAN_TREE_BYTES 4096u
typedef struct {
    msgpack_object root;
    msgpack_zone zone;
    _Alignas(16) char first[SCAN_TREE_BYTES];
} scan_tree_t;
/* The same, then the tree of what was scanned.  NO_MEMORY too.  The caller ends the tree in any case
 * (scan_end); its texts and bins lie in `input`. */
int scan_decode(bytes_t input, const scan_limits_t *limits, const char *what, scan_tree_t *ret_tree,
                heddle_error_t *error);
void scan_end(scan_tree_t *t);
/* For msgpack_packer_init with a buf_t: a message needs no buffer besides the caller's. */
int scan_sink(void *out, const char *data, size_t bytes);

#endif
