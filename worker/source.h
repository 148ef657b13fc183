/* SPDX-License-Identifier: Apache-2.0 */
/* worker/source.h: one source of a version, as the broker named it: a publisher or another worker. It is
 * a copy of what a message said, because messages are gone when their handler returns. Without state; the
 * announcement that has it owns it. Loop thread only. */
#ifndef WORKER_SOURCE_H
#define WORKER_SOURCE_H

#include "core/limits.h"
#include "core/names.h"
#include "transfer/transfer.h"

typedef struct {
    uint64_t token, kind;                        /* source_kind_t */
    char name[HEDDLE_NAME_MAX + 1];
    uint8_t address[LIMIT_ADDRESS_BYTES];
    uint32_t address_bytes;
} source_t;

static inline peer_ref_t source_ref(const source_t *s)
{
    return (peer_ref_t){s->token, bytes_of(s->address, s->address_bytes)};
}

#endif
