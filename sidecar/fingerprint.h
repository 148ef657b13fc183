/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/fingerprint.h: what stat() says of an exported directory that is known to be right, so that a
 * switch need not read gigabytes again.
 *
 * Inode, size and both times of its files change with every write, replacement or removal since. They do
 * not show a disk that returns other bytes: `verify` reads the files for that.
 *
 * Plain values, owned by the caller; any thread. The calls look at the directory and change nothing. */
#ifndef SIDECAR_FINGERPRINT_H
#define SIDECAR_FINGERPRINT_H

#include "core/digest.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    uint64_t device, inode, bytes;
    struct timespec changed, modified;
} file_print_t;
/* is_there: both files exist */
typedef struct {
    bool is_there;
    file_print_t config, tensors;
} fingerprint_t;
/* What was last known to be right; version 0: nothing. */
typedef struct {
    uint64_t version;
    char digest[HEDDLE_DIGEST_TEXT];
    fingerprint_t look;
} noted_t;

/* How the directory `name` of `root` looks now. */
fingerprint_t fingerprint_take(int root, const char *name);
/* Notes that the version's directory was found right, or written, between two looks.  If it was there before
 * and looks different now, nothing is noted: the bytes that were read may not be the ones that are there. */
void fingerprint_note(noted_t *s, uint64_t version, const char *digest, const fingerprint_t *before,
                      const fingerprint_t *now);
/* The directory is of that version, and looks as it did when it was noted. */
bool fingerprint_is_noted(const noted_t *s, uint64_t version, const char *digest, const fingerprint_t *now);

#endif
