/* SPDX-License-Identifier: Apache-2.0 */
/* trainer_client/fill.h: tensors into a region, on as many threads as help: one core cannot saturate the
 * memory, and the trainer's loop stands still until it is done. */
#ifndef TRAINER_CLIENT_FILL_H
#define TRAINER_CLIENT_FILL_H

#include "trainer_client/pack.h"

enum { FILL_THREADS_MAX = 4 };

/* How many threads are to fill so many bytes where there may be `most`, the caller's one of them: 1 to
 * FILL_THREADS_MAX. */
uint32_t fill_threads(uint64_t region_bytes, uint32_t most);
/* pack_write_begin and pack_write of everything, on so many threads.  Those that it starts have ended when it
 * returns; the caller does what those that cannot be started, or start late, have not done. */
void fill(pack_t *p, const void *const *sources, uint32_t threads);

#endif
