/* SPDX-License-Identifier: Apache-2.0 */
/* One ask with everything in its place, for tests that are about something else.  Its cookie is `at`. */
#ifndef TESTS_CONTRACT_ASK_H
#define TESTS_CONTRACT_ASK_H

#include "transfer/transfer.h"

static inline int ask_into(const transfer_ops_t *ops, transfer_t *t, const peer_ref_t *from, share_key_t key,
                           uint64_t offset, uint32_t bytes, const region_t *into, uint64_t at,
                           uint64_t *ret_ask)
{
    sink_t sink = sink_of(into, NULL);
    tr_read_t read = {.key = key, .offset = offset, .bytes = bytes, .sink = &sink, .at = at, .cookie = at};
    return ops->ask(t, from, &read, ret_ask);
}

#endif
