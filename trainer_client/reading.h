/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/reading.h: a PEFT directory, or files of weights, read into a region in one pass over their
 * bytes.
 *
 *   reading_open --(a region of pack_bytes)--> reading_into --> the caller takes the pack and seals it
 *
 *   reading_ahead ... reading_join             both, on a thread of its own, into a region of its own, while
 *                                              the publisher opens: in `writing` when it is given
 *
 * That thread reads no environment, since UCX's settings change in it meanwhile (client/opening.h).  All
 * other calls are made on the application's thread, which owns a reading.  core/stop.h ends it early; only
 * reading_join blocks until another thread has ended. */
#ifndef TRAINER_CLIENT_READING_H
#define TRAINER_CLIENT_READING_H

#include "core/stop.h"
#include "formats/peft.h"
#include "memory/region.h"
#include "trainer_client/pack.h"

typedef struct {
    peft_dir_t *dir;
    pack_t *pack;
} reading_t;

/* Opened, checked and laid out; nothing of the tensors is read yet. */
int reading_open(reading_t *r, const char *dir, heddle_error_t *error);
/* The same of a list of files that ends with NULL, and is borrowed until reading_close. */
int reading_open_files(reading_t *r, const char *const *files, heddle_error_t *error);
/* All of it, and what of the region is not made yet. */
int reading_into(reading_t *r, memory_region_t *region, heddle_error_t *error);
/* Accepts one that is empty. */
void reading_close(reading_t *r);

typedef struct ahead ahead_t;
#define READING_THREAD "heddle-ahead" /* the name of its thread */

/* `stop` ends it early; borrowed until reading_join.  NULL: no thread or no memory for it, and nothing is
 * read. */
ahead_t *reading_ahead(const char *dir, const stop_t *stop);
bool reading_is_of(const ahead_t *a, const char *dir);
/* Waits for its end and frees it.  OK: reading and region are the caller's; the path still leads to that
 * directory, and its files are as they were.  BAD_ADAPTER where that is not sure: it is to be read again.
 * Else what ended the reading. */
int reading_join(ahead_t **a, reading_t *ret_reading, memory_region_t **ret_region, heddle_error_t *error);

#endif
