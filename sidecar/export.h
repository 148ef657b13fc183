/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/export.h: versions as PEFT directories.
 *
 *   ROOT/policy@3/   adapter_config.json, adapter_model.safetensors: complete and synced before it
 *                    has its name
 *   ROOT/policy      -> policy@3, the active one: moves atomically
 *
 * A directory of an earlier run is replaced where its content differs.  What somebody else put under one of
 * these names is never touched: it is an error that names it, and nothing is left under a temporary name.
 * A ROOT that was removed is made again when the next version is written.  An adapter is exported into a
 * ROOT by one process (sidecar_lock.h).
 *
 * One thread; calls block on the disk. */
#ifndef SIDECAR_EXPORT_H
#define SIDECAR_EXPORT_H

#include <heddle/worker.h>
#include <stdbool.h>

typedef struct {
    int root;                 /* descriptor; -1: nothing is exported */
    int lock;                 /* of the adapters below; -1: none */
    const char *const *adapters;    /* that this process exports; borrowed; NULL: nothing is locked */
    char path[4096];          /* absolute */
    uint32_t keep;            /* old directories of an adapter that stay */
} exports_t;

/* Makes ROOT where it is missing. */
int  exports_open(exports_t *x, const char *root, uint32_t keep, heddle_error_t *error);
/* Nobody else exports these adapters (a list that ends with NULL, and outlives it) into ROOT until it is
 * closed, also where ROOT is made again, or the lock file was removed: until exports_find takes it anew
 * another worker may come first, and what would be written is then DATA_LOCKED.  What a killed run left of
 * them under temporary names is removed.  DATA_LOCKED: who does is named. */
int  exports_lock(exports_t *x, const char *const *adapters, heddle_error_t *error);
void exports_close(exports_t *x);
/* ROOT/adapter@version; version 0: ROOT/adapter, the link; "" when nothing is exported. */
void exports_path(const exports_t *x, const char *adapter, uint64_t version, char ret_path[4400]);
/* What sits where the link belongs, and is no link: DATA_DIR. */
int  exports_check_link(exports_t *x, const char *adapter, heddle_error_t *error);
/* The directory that has ROOT's path now, made where it is missing, is the one that is used from here on;
 * and the adapter's link has its place there, as above. */
int  exports_find(exports_t *x, const char *adapter, heddle_error_t *error);
/* What lies at the path: OK · DIGEST_MISMATCH (*ret_found: its digest; "": it is missing, or no adapter) ·
 * any other: it could not be read, and nothing is known. */
int  exports_look(const char *path, const char *digest, char ret_found[HEDDLE_DIGEST_TEXT],
                  heddle_error_t *error);
/* Writes the version's directory; one that is there already with the same content stays as it is, and
 * another is replaced in one step.
 * NO_SPACE, NO_MEMORY (descriptors too), DATA_DIR: the path is in the message. */
int  exports_write(exports_t *x, const heddle_snapshot_t *snapshot, heddle_error_t *error);
/* Moves the link; version 0: removes it. */
int  exports_link(exports_t *x, const char *adapter, uint64_t version, heddle_error_t *error);
/* The version that the link names; 0: none. */
uint64_t exports_linked(const exports_t *x, const char *adapter);
bool exports_has(const exports_t *x, const char *adapter, uint64_t version);
/* Removes one version's directory, unless the link names it. */
void exports_remove(exports_t *x, const char *adapter, uint64_t version);
/* Removes the oldest directories beyond `keep` besides the one that the link names; what
 * `is_needed` stays in any case. */
void exports_prune(exports_t *x, const char *adapter, bool (*is_needed)(void *self,
                   const char *adapter, uint64_t version), void *self);

#endif
