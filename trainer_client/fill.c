/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/fill.h"

#include "core/crew.h"

#include <assert.h>

/* Less is copied sooner than another thread wakes. */
#define SHARE_BYTES (4u << 20)

/* Each is taken by the next free thread: one that starts late, or shares its core, takes fewer. */
#define PIECE_BYTES (1u << 20)

typedef struct { const pack_t *pack; const void *const *sources; } work_t;

/* A thread pays only for several megabytes: starting it costs as long as copying a few. */
uint32_t fill_threads(uint64_t region_bytes, uint32_t most)
{
    uint64_t shares = region_bytes / SHARE_BYTES;
    if (most > FILL_THREADS_MAX) most = FILL_THREADS_MAX;
    if (shares < most) most = (uint32_t)shares;
    return most ? most : 1;
}

/* Pieces do not overlap, so that the threads need no lock. */
static void write_piece(void *self, uint32_t i)
{
    const work_t *w = self;
    uint64_t from = (uint64_t)i * PIECE_BYTES;
    pack_write(w->pack, w->sources, from, from + PIECE_BYTES);
}

void fill(pack_t *p, const void *const *sources, uint32_t threads)
{
    work_t work = {p, sources};
    assert(threads >= 1 && threads <= FILL_THREADS_MAX);
    pack_write_begin(p, sources);
    crew_t *crew = crew_new(threads - 1);
    crew_do(crew, (uint32_t)((p->layout.region_bytes + PIECE_BYTES - 1) / PIECE_BYTES), write_piece, &work);
    crew_end(&crew);
}
