/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/early.h"

#include <stdlib.h>

void early_bytes_fini(early_bytes_t *b)
{
    free(b->leaves);
    free(b->here);
    *b = (early_bytes_t){0};
}

bool early_covers(const early_bytes_t *b, uint64_t offset, uint64_t bytes)
{
    if (!b->leaves || bytes == 0 || offset + bytes > b->bytes) return false;
    uint64_t last = (offset + bytes - 1) / EARLY_PIECE_BYTES;
    for (uint64_t i = offset / EARLY_PIECE_BYTES; i <= last; i++)
        if (i >= b->piece_count || !b->here[i]) return false;
    return true;
}

static void drop_open(early_t *e, const node_io_t *io)
{
    while (e->open_count) io->tr->drop_ask(io->t, e->open[--e->open_count].ask);
}

/* What is here stays. */
static void stop(early_t *e, const node_io_t *io)
{
    e->next = e->got.piece_count;
    drop_open(e, io);
}

/* A frame of them, where there is room for one. */
static void ask_more(early_t *e, const node_io_t *io)
{
    peer_ref_t from = source_ref(&e->got.from);
    uint32_t room = EARLY_OPEN_MAX - e->open_count;
    if (room < LIMIT_ASK_RANGES) return;
    sink_t sink = sink_of(e->slot->region, e->got.leaves);
    sink.only_copied = true;
    for (; room > 0 && e->next < e->got.piece_count; room--) {
        uint64_t at = (uint64_t)e->next * EARLY_PIECE_BYTES, left = e->got.bytes - at, ask;
        uint32_t bytes = left < EARLY_PIECE_BYTES ? (uint32_t)left : EARLY_PIECE_BYTES;
        tr_read_t read = {.key = e->key,
                          .offset = at,
                          .bytes = bytes,
                          .sink = &sink,
                          .at = at,
                          .cookie = e->cookie | e->next};
        if (io->tr->ask(io->t, &from, &read, &ask)) {
            stop(e, io);
            return;
        }
        e->open[e->open_count].ask = ask;
        e->open[e->open_count++].piece = e->next++;
    }
}

void early_heard(early_t *e, const node_io_t *io, const tr_event_t *event, slot_t *slot)
{
    if (e->publisher.token == 0 || event->token != e->publisher.token) return;
    early_end(e, io);
    if (!slot || event->bytes > slot->region->bytes) return;
    uint64_t pages = (event->bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES,
             pieces = (event->bytes + EARLY_PIECE_BYTES - 1) / EARLY_PIECE_BYTES;
    e->got = (early_bytes_t){.from = e->publisher,
                             .piece_count = (uint32_t)pieces,
                             .bytes = event->bytes,
                             .leaf_count = pages,
                             .leaves = calloc(pages, sizeof *e->got.leaves),
                             .here = calloc(pieces, sizeof *e->got.here)};
    if (!e->got.leaves || !e->got.here) {
        early_bytes_fini(&e->got);
        return;
    }
    e->slot = slot;
    e->key = event->key;
    e->next = 0;
    e->began_us = clock_now(io->clock);
    ask_more(e, io);
}

static bool take_open(early_t *e, uint64_t ask, uint32_t *ret_piece)
{
    for (uint32_t i = 0; i < e->open_count; i++) {
        if (e->open[i].ask != ask) continue;
        *ret_piece = e->open[i].piece;
        e->open[i] = e->open[--e->open_count];
        return true;
    }
    return false;
}

void early_transfer(early_t *e, const node_io_t *io, const tr_event_t *event)
{
    uint32_t piece;
    if (!e->slot || !take_open(e, event->ask, &piece)) return;
    if (event->kind != TR_ARRIVED) {
        stop(e, io);
        return;
    }
    e->got.took_us = clock_now(io->clock) - e->began_us;
    e->got.here[piece] = event->is_digested;
    ask_more(e, io);
}

early_bytes_t early_take(early_t *e, const node_io_t *io, const slot_t *slot)
{
    early_bytes_t got = {0};
    if (e->slot == slot) {
        got = e->got;
        e->got = (early_bytes_t){0};
    }
    early_end(e, io);
    return got;
}

void early_end(early_t *e, const node_io_t *io)
{
    if (!e->slot) return;
    drop_open(e, io);
    e->slot = NULL;
    early_bytes_fini(&e->got);
}
