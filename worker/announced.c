/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/announced.h"

#include "core/errors.h"
#include "formats/kind.h"

#include <stdlib.h>

/* The same process: under the same token, or under a new one, of a session that it has begun since. */
static bool is_same(const announced_source_t *known, const msg_source_t *s)
{
    static const key16_t none;
    bool has_life = memcmp(&s->life, &none, sizeof none) != 0;
    return known->token == s->token || (has_life && !memcmp(&known->life, &s->life, sizeof none));
}

/* The order is the broker's plan, and is kept. One that is known stays as it is. */
static void add_sources(announced_t *w, const msg_source_t *sources, uint32_t count)
{
    for (const msg_source_t *from = sources; from < sources + count && w->source_count < LIMIT_SOURCES;
         from++) {
        if (from->token == 0 || from->address.bytes == 0 || from->address.bytes > LIMIT_ADDRESS_BYTES)
            continue;
        uint32_t i = 0;
        while (i < w->source_count && !(is_same(&w->sources[i], from) && w->sources[i].half == from->half))
            i++;
        if (i < w->source_count) continue;
        announced_source_t *to = &w->sources[w->source_count++];
        *to = (announced_source_t){.token = from->token,
                                   .kind = from->kind,
                                   .address_bytes = (uint32_t)from->address.bytes,
                                   .life = from->life,
                                   .region = from->region,
                                   .is_apart = from->apart,
                                   .is_partial = from->partial,
                                   .half = from->half};
        w->is_in_halves |= from->half != 0;
        memcpy(to->address, from->address.data, from->address.bytes);
        error_text(to->name, sizeof to->name, from->name);
    }
}

/* The sizes come from the network and are checked before memory is reserved for them. */
announced_t *announced_receive(announced_t *known, const msg_announce_t *m, bool is_fetched,
                               heddle_error_t *error)
{
    announced_t *w = known, received;
    if (announced_parts(&received, m->parts, m->part_count, &m->key, error)) return NULL;
    bool is_in_range = m->version != 0;
    for (uint32_t i = 0; i < received.part_count; i++)
        is_in_range &= received.parts[i].payload_bytes > 0 && received.parts[i].manifest_bytes > 0 &&
                       received.parts[i].payload_bytes <= LIMIT_PAYLOAD_BYTES &&
                       received.parts[i].manifest_bytes <= LIMIT_MANIFEST_BYTES;
    if (!is_in_range) {
        error_fail(error, HEDDLE_ERR_LIMIT, "the announced sizes are out of range");
        return NULL;
    }
    if (!w) {
        w = calloc(1, sizeof *w);
        if (!w) {
            error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for an announcement");
            return NULL;
        }
        w->version = m->version;
        w->h1 = m->digest;
        announced_parts(w, m->parts, m->part_count, &m->key, error);
        for (uint32_t i = 0; i < w->part_count; i++)
            error_text(w->parts[i].kind, sizeof w->parts[i].kind, kind_name(m->kind));
        w->data_bytes = m->data_bytes;
        w->step = m->step;
    }
    if (!known || !is_fetched) w->source_count = 0;
    add_sources(w, m->sources, m->source_count);
    return w;
}

/* The first part is shared under the version's key, the one with number n under the key with n added to its
 * last byte. */
int announced_parts(announced_t *w, const msg_part_t *parts, uint32_t count, const key16_t *key,
                    heddle_error_t *error)
{
    if (!count || count > LIMIT_VERSION_PARTS)
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "a version in %u parts came, and this release takes %u",
                          count, LIMIT_VERSION_PARTS);
    w->part_count = count;
    for (uint32_t i = 0; i < count; i++) {
        announced_part_t *part = &w->parts[i];
        *part = (announced_part_t){.payload_bytes = parts[i].payload_bytes,
                                   .manifest_bytes = parts[i].manifest_bytes,
                                   .manifest_digest = parts[i].manifest_digest};
        memcpy(&part->key, key, sizeof part->key);
        part->key.b[sizeof part->key.b - 1] = (uint8_t)(part->key.b[sizeof part->key.b - 1] + i);
    }
    return HEDDLE_OK;
}

void announced_expect(const announced_t *w, const node_io_t *io)
{
    for (uint32_t i = 0; i < w->part_count; i++) (void)io->tr->expect(io->t, w->parts[i].key);
}

void announced_unshare(const announced_t *w, const node_io_t *io)
{
    for (uint32_t i = 0; i < w->part_count; i++) io->tr->unshare(io->t, w->parts[i].key);
}

void announced_sources(announced_t *w, const msg_source_t *sources, uint32_t count)
{
    w->source_count = 0;
    add_sources(w, sources, count);
}

const announced_source_t *announced_source(const announced_t *w, uint64_t token)
{
    for (uint32_t i = 0; i < w->source_count; i++)
        if (w->sources[i].token == token) return &w->sources[i];
    return NULL;
}

uint32_t announced_tokens(const announced_t *w, uint64_t half, uint64_t ret_tokens[LIMIT_SOURCES])
{
    uint32_t count = 0;
    uint64_t wanted = half || !w->source_count ? half : w->sources[0].half;
    for (uint32_t i = 0; i < w->source_count; i++)
        if (!wanted || !w->sources[i].half || w->sources[i].half == wanted)
            ret_tokens[count++] = w->sources[i].token;
    return count;
}
