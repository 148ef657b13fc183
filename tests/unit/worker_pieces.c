/* SPDX-License-Identifier: Apache-2.0 */
/* How many bytes a worker asks for at once: a chunk, or several where all sources have all bytes and the network
 * is fast. */
#include "worker_world.h"

TestSuite(pieces, .fini = world_end);

enum { CHUNKS = 18, LARGE = 5 }; /* of a version of 1.1 MB, which has one piece of a manifest */

static test_content_t content[3];
static worker_t *w;
static origin_t *o[2];

static void open_world(void)
{
    w = worker_joined(0, NULL);
    for (uint32_t i = 0; i < 2; i++) o[i] = origin_start(i, TR_MODE_EAGER);
    for (uint32_t i = 1; i < 3; i++) content[i] = content_make(i, 6, 3000);
    cr_assert_eq((content[2].payload_bytes + LIMIT_CHUNK_MIN_BYTES - 1) / LIMIT_CHUNK_MIN_BYTES, CHUNKS);
}

static void close_world(void)
{
    for (uint32_t i = 1; i < 3; i++) free(content[i].bytes);
}

static uint64_t asks_of(const origin_t *from)
{
    tr_counters_t c;
    transfer_mem_ops.counters(from->t, &c);
    return c.asks_in;
}

/* The version comes from both, the first one first.  Returns how often that one was asked for pieces. */
static uint64_t fetch(uint64_t version, msg_source_t first)
{
    const test_content_t *a = &content[version];
    uint64_t before = asks_of(o[0]);
    msg_source_t sources[] = {first, source_of(o[1])};
    for (uint32_t i = 0; i < 2; i++) origin_serve(o[i], a, version);
    announce_to(w, a, version, sources, 2);
    run_for(1000000);
    commit_to(w, a, version, version);
    run_for(1000);
    cr_assert(serves(w, a, version));
    return asks_of(o[0]) - before - 1;
}

Test(pieces, are_large_where_the_last_version_came_fast)
{
    open_world();
    cr_assert_eq(fetch(1, source_of(o[0])), CHUNKS, "nothing is known of the network");
    cr_assert_eq(fetch(2, source_of(o[0])), LARGE);
    close_world();
}

Test(pieces, are_chunks_where_the_last_version_came_slowly)
{
    open_world();
    w->piece_us = 10000; /* of its work, so that 1.1 MB take 10 ms or more */
    fetch(1, source_of(o[0]));
    cr_assert_eq(fetch(2, source_of(o[0])), CHUNKS);
    close_world();
}

Test(pieces, are_chunks_where_a_source_still_fetches)
{
    open_world();
    msg_source_t partial = source_of(o[0]);
    partial.partial = true;
    fetch(1, source_of(o[0]));
    cr_assert_eq(fetch(2, partial), CHUNKS);
    close_world();
}

/* One bit, in each chunk of the second large piece in turn. */
Test(pieces, each_chunk_of_a_large_one_is_compared)
{
    for (uint32_t chunk = 4; chunk < 8; chunk++) {
        open_world();
        fetch(1, source_of(o[0]));
        for (uint32_t i = 0; i < 2; i++) origin_serve(o[i], &content[2], 2);
        ((uint8_t *)o[0]->region->base)[chunk * LIMIT_CHUNK_MIN_BYTES + 17] ^= 1;
        msg_source_t sources[] = {source_of(o[0]), source_of(o[1])};
        announce_to(w, &content[2], 2, sources, 2);
        run_for(1000000);
        commit_to(w, &content[2], 2, 2);
        run_for(1000);
        cr_assert(serves(w, &content[2], 2), "chunk %u", chunk);
        const msg_t *blame = last_said(w, MSG_NEED_SOURCES);
        cr_assert(blame && blame->need_sources.bad_count == 1 && blame->need_sources.bad[0] == o[0]->token);
        close_world();
        world_end();
    }
}
