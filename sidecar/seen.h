/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/seen.h: how an exported directory looked when it was last known to be right, so that a
 * switch need not read it again: that would take seconds for gigabytes.  Inode, size and both times of its
 * files tell of whatever was written, replaced or removed since; that a disk gives other bytes back they do
 * not: `verify` reads them.
 *
 * Plain values; calls look at the directory and change nothing. */
#ifndef SIDECAR_SEEN_H
#define SIDECAR_SEEN_H

#include "core/digest.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct { uint64_t device, inode, bytes; struct timespec changed, modified; } seen_file_t;
/* is_there: both files are */
typedef struct { bool is_there; seen_file_t config, tensors; } seen_look_t;
/* version 0: nothing was seen */
typedef struct { uint64_t version; char digest[HEDDLE_DIGEST_TEXT]; seen_look_t look; } seen_t;

/* How the directory `name` of `root` looks now. */
seen_look_t seen_look(int root, const char *name);
/* The version's directory was found right, or written, between two looks.  Nothing is seen where it was
 * there before and looks otherwise now: what was read may not be what is there. */
void seen_note(seen_t *s, uint64_t version, const char *digest, const seen_look_t *before,
               const seen_look_t *now);
/* It is that version's, and looks as it did then. */
bool seen_is_same(const seen_t *s, uint64_t version, const char *digest, const seen_look_t *now);

#endif
