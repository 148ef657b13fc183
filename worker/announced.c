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
announced_t *announced_hear(announced_t *known, const msg_announce_t *m, bool is_fetched,
                            heddle_error_t *error)
{
    announced_t *w = known;
    const msg_part_t *part = m->part_count == 1 ? &m->parts[0] : NULL;
    if (!part) {
        error_fail(error, HEDDLE_ERR_PROTOCOL,
                   "a version in %u parts was announced, and this release takes one", m->part_count);
        return NULL;
    }
    if (part->payload_bytes == 0 || part->payload_bytes > LIMIT_PAYLOAD_BYTES || part->manifest_bytes == 0 ||
        part->manifest_bytes > LIMIT_MANIFEST_BYTES || m->version == 0) {
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
        announced_part(w, part, &m->key);
        error_text(w->part.kind, sizeof w->part.kind, kind_name(m->kind));
        w->data_bytes = m->data_bytes;
        w->step = m->step;
    }
    if (!known || !is_fetched) w->source_count = 0;
    add_sources(w, m->sources, m->source_count);
    return w;
}

void announced_part(announced_t *w, const msg_part_t *part, const key16_t *key)
{
    w->part = (announced_part_t){.payload_bytes = part->payload_bytes,
                                 .manifest_bytes = part->manifest_bytes,
                                 .manifest_digest = part->manifest_digest};
    memcpy(&w->part.key, key, sizeof w->part.key);
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
