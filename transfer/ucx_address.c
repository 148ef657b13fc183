/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/ucx.h"

#include "core/digest.h"
#include "core/limits.h"

/* "UCX" | u8 zero | u16 major | u16 minor | u64 leaf digest of the worker address | worker address */
#define ENVELOPE_BYTES 16u

static void put_head(uint8_t head[8])
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    memcpy(head, "UCX", 4);
    le16_put(head + 4, (uint16_t)major);
    le16_put(head + 6, (uint16_t)minor);
}

/* A damaged address would make UCX abort: it is checked before UCX sees it. */
static uint64_t check_of(const void *address, size_t bytes)
{
    uint64_t leaf = 0;
    if (bytes <= LIMIT_PAGE_BYTES) digest_leaves(address, bytes, &leaf);
    return leaf;
}

ucs_status_t ucx_address_make(ucx_t *u)
{
    ucp_address_t *address;
    size_t bytes;
    ucs_status_t status = ucp_worker_get_address(u->in, &address, &bytes);
    if (status != UCS_OK) return status;
    if (ENVELOPE_BYTES + bytes <= sizeof u->address) {
        put_head(u->address);
        le64_put(u->address + 8, check_of(address, bytes));
        memcpy(u->address + ENVELOPE_BYTES, address, bytes);
        u->address_bytes = ENVELOPE_BYTES + bytes;
    } else {
        status = UCS_ERR_EXCEEDS_LIMIT;
    }
    ucp_worker_release_address(u->in, address);
    return status;
}

const ucp_address_t *ucx_address_open(bytes_t envelope)
{
    const uint8_t *at = envelope.data;
    uint8_t head[8];
    put_head(head);
    if (envelope.bytes <= ENVELOPE_BYTES || memcmp(at, head, sizeof head) != 0) return NULL;
    if (le64_get(at + 8) != check_of(at + ENVELOPE_BYTES, envelope.bytes - ENVELOPE_BYTES)) return NULL;
    return (const ucp_address_t *)(at + ENVELOPE_BYTES);
}
