/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sidecar_seen.h: how an exported directory looked when it was last known to be right, so that a switch
 * need not read it again: that would take seconds for gigabytes.  Inode, size and both times of its files tell
 * of whatever was written, replaced or removed since; that a disk gives other bytes back they do not: `verify`
 * reads them.
 *
 * Plain values; calls look at the directory and change nothing. */
#ifndef WORKER_SIDECAR_SEEN_H
#define WORKER_SIDECAR_SEEN_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct { uint64_t device, inode, bytes; struct timespec changed, modified; } seen_file_t;
/* version 0: nothing was seen */
typedef struct { uint64_t version; seen_file_t config, tensors; } seen_t;

/* The version's directory is right as it is; nothing is seen where it cannot be looked at. */
void seen_note(seen_t *s, uint64_t version, const char *path);
/* It is that version's, and looks as it did then. */
bool seen_is_same(const seen_t *s, uint64_t version, const char *path);

#endif
