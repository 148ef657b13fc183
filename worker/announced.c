/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/announced.h"

#include "core/errors.h"

/* The number of parts was checked when the message came. */
void announced_parts(announced_t *w, const msg_part_t *parts, const key16_t *key)
{
    share_key_t of_version;
    memcpy(&of_version, key, sizeof of_version);
    for (uint32_t i = 0; i < ANNOUNCED_PARTS; i++)
        w->part[i] = (announced_part_t){.region_bytes = parts[i].region_bytes,
                                        .manifest_bytes = parts[i].manifest_bytes,
                                        .manifest_digest = parts[i].manifest_digest,
                                        .key = share_key_of_part(of_version, i)};
}

void announced_sources(announced_t *w, const msg_source_t *sources, uint32_t count)
{
    w->source_count = 0;
    for (uint32_t i = 0; i < count && w->source_count < LIMIT_SOURCES; i++) {
        const msg_source_t *from = &sources[i];
        if (from->token == 0 || from->address.bytes == 0 || from->address.bytes > LIMIT_ADDRESS_BYTES)
            continue;
        announced_source_t *to = &w->sources[w->source_count++];
        *to = (announced_source_t){
            .token = from->token, .kind = from->kind, .address_bytes = (uint32_t)from->address.bytes};
        memcpy(to->address, from->address.data, from->address.bytes);
        error_text(to->name, sizeof to->name, from->name);
    }
}

const announced_source_t *announced_source(const announced_t *w, uint64_t token)
{
    for (uint32_t i = 0; i < w->source_count; i++)
        if (w->sources[i].token == token) return &w->sources[i];
    return NULL;
}
