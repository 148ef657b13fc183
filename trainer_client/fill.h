/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/fill.h: a parallel copy of tensors into a region, on as many threads as help: one core
 * cannot saturate the memory, and the trainer's own loop waits until it is done.  Without state.  Called on
 * the application's thread, one at a time; the pack stays the caller's. */
#ifndef TRAINER_CLIENT_FILL_H
#define TRAINER_CLIENT_FILL_H

#include "trainer_client/pack.h"

enum { FILL_THREADS_MAX = 4 };

/* How many threads are to fill so many bytes where there may be `most`, the caller's one of them: 1 to
 * FILL_THREADS_MAX. */
uint32_t fill_threads(uint64_t region_bytes, uint32_t most);
/* pack_write_begin and pack_write of everything, on so many threads.  The threads that it starts have ended
 * when it returns.  Where one cannot be started, or starts late, the calling thread does its share. */
void fill(pack_t *p, const void *const *sources, uint32_t threads);

#endif
