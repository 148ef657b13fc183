/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/export.h: versions of adapters as directories on disk: PEFT's, or of full weights.
 *
 *    ROOT/policy@3/   adapter_config.json, adapter_model.safetensors; or model.safetensors: complete and
 *                     synced before it has its name
 *    ROOT/policy      -> policy@3, the active one: moves atomically
 *
 * A directory of an earlier run is replaced where its content differs. Other files under one of these names
 * are never touched: the error names them, and nothing is left under a temporary name. A ROOT that was
 * removed is made again when the next version is written. One process at a time exports an adapter into a
 * ROOT (sidecar/lock.h).
 *
 * The caller owns the exports_t. One thread; calls block on the disk. */
#ifndef SIDECAR_EXPORT_H
#define SIDECAR_EXPORT_H

#include <heddle/worker.h>
#include <stdbool.h>

typedef struct {
    int root;                    /* descriptor; -1: nothing is exported */
    int lock;                    /* holds the locks of the adapters below; -1: none */
    const char *const *adapters; /* exported by this process; borrowed; NULL: nothing is locked */
    char path[4096];             /* absolute */
    uint32_t keep;               /* old directories of an adapter that stay */
} exports_t;

/* Makes ROOT where it is missing. */
int exports_open(exports_t *x, const char *root, uint32_t keep, heddle_error_t *error);
/* Takes the right to export these adapters (a list that ends with NULL and outlives `x`) into ROOT, until
 * exports_close.  If ROOT is made again or its lock file is removed, exports_find takes the locks anew;
 * another worker may be faster then, and writing fails with DATA_LOCKED.  Temporary files of these adapters
 * that a killed process left are removed.  DATA_LOCKED: another process has one; the message names it. */
int exports_lock(exports_t *x, const char *const *adapters, heddle_error_t *error);
void exports_close(exports_t *x);
/* ROOT/adapter@version; version 0: ROOT/adapter, the link; "" when nothing is exported. */
void exports_path(const exports_t *x, const char *adapter, uint64_t version, char ret_path[4400]);
/* DATA_DIR: the link's name is taken by something that is no link. */
int exports_check_link(exports_t *x, const char *adapter, heddle_error_t *error);
/* Opens the directory that has ROOT's path now, making it where it is missing, and uses it from here on. Then
 * checks the adapter's link as exports_check_link does. */
int exports_find(exports_t *x, const char *adapter, heddle_error_t *error);
/* Compares the directory at the path with the digest: OK · DIGEST_MISMATCH (*ret_found: its digest; that of
 * zeros: its files are no adapter; "": it is missing, or one of its files is) · any other error: it could not
 * be read, and may be right. */
int exports_look(const char *path, const char *digest, char ret_found[HEDDLE_DIGEST_TEXT],
                 heddle_error_t *error);
/* Writes the version's directory.  An existing one with the same content stays as it is; one with other
 * content is replaced in one step.
 * NO_SPACE, NO_MEMORY (descriptors too), DATA_DIR: the path is in the message. */
int exports_write(exports_t *x, const heddle_snapshot_t *snapshot, heddle_error_t *error);
/* Moves the link; version 0: removes it. */
int exports_link(exports_t *x, const char *adapter, uint64_t version, heddle_error_t *error);
/* The version that the link names; 0: none. */
uint64_t exports_linked(const exports_t *x, const char *adapter);
bool exports_has(const exports_t *x, const char *adapter, uint64_t version);
/* Removes one version's directory, unless the link names it. */
void exports_remove(exports_t *x, const char *adapter, uint64_t version);
/* Removes the oldest directories beyond `keep`.  The one that the link names, and those for which `is_needed`
 * returns true, stay in any case. */
void exports_prune(exports_t *x, const char *adapter,
                   bool (*is_needed)(void *self, const char *adapter, uint64_t version), void *self);

#endif
