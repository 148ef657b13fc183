/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sidecar.h: heddle-worker: a worker beside an engine that cannot link the library.  It exports each version as a PEFT
 * directory, runs two hooks, and moves a link.  Written against include/heddle and core's option table alone.
 *
 *   ARRIVED  -> export DIR/<adapter>@<version>/ (synced) -> on-stage hook    -> staged, or reject
 *   COMMIT   -> on-activate hook -> link DIR/<adapter> moves -> activate, or reject (stale by name)
 *   VERIFY   -> the exported files are digested again
 *
 * One thread besides the library's; hooks may block it up to --hook-timeout, heartbeats go on meanwhile. */
#ifndef WORKER_SIDECAR_H
#define WORKER_SIDECAR_H

#include <heddle/heddle.h>
#include <stdbool.h>

typedef struct {
    const char *broker, *name, *export_dir, *on_stage, *on_activate, *data_device;
    const char **adapters, **labels;
    int64_t slots, export_keep;
    uint32_t hook_timeout_ms, join_timeout_ms;
    uint64_t max_rate_bytes;
    bool insecure, quiet;
    int output, log_level;
} sidecar_args_t;

/* --- sidecar_export.c: directories and links under DIR ------------------------------------------------------------------- */

/* DIR exists (made if need be), is writable; leftovers of a killed run (".NAME.tmp-PID") are removed. */
int  export_open(const char *dir, heddle_error_t *error);
/* DIR/<adapter>@<version> holds this snapshot when it returns OK: written now, or found there with the same digest. */
int  export_write(const char *dir, const heddle_snapshot_t *s, heddle_error_t *error);
/* DIR/<adapter> -> <adapter>@<version>, atomically. */
int  export_link(const char *dir, const char *adapter, uint64_t version, heddle_error_t *error);
/* Removes directories of the adapter but the linked one, newer ones, and the `keep` newest of the others. */
void export_prune(const char *dir, const char *adapter, int64_t keep);
void export_path(const char *dir, const char *adapter, uint64_t version, char ret_path[4096]);

/* --- sidecar_hook.c ------------------------------------------------------------------------------------------------------ */

/* Runs `sh -c command` in a process group of its own, with HEDDLE_* set and every other descriptor closed.  OK when it
 * ended with 0 in time; else *ret_reason says how it ended and the last 512 bytes of its stderr.  INTERRUPTED when
 * *stop became set: the group was killed. */
typedef struct { const char *command, *path; const heddle_event_t *event; uint32_t timeout_ms; const volatile int *stop; } hook_t;
int  hook_run(const hook_t *hook, char ret_reason[768]);

#endif
