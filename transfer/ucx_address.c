/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/ucx.h"

#include "core/digest.h"
#include "core/limits.h"

/* "UCX" | u8 zero | u16 major | u16 minor | u64 leaf digest of all that follows | worker address
 * and, where our memory may be read: | u64 host | u64 process | u64 board | u64 proof | "HEDDNEAR"
 * UCX finds the end of its own address by itself. */
#define ENVELOPE_BYTES 16u
#define NEAR_BYTES 40u
static const char NEAR_MARK[8] = {'H', 'E', 'D', 'D', 'N', 'E', 'A', 'R'};

static void put_head(uint8_t head[8])
{
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    memcpy(head, "UCX", 4);
    le16_put(head + 4, (uint16_t)major);
    le16_put(head + 6, (uint16_t)minor);
}

static void put_near(const near_board_t *board, uint8_t at[NEAR_BYTES])
{
    near_id_t id = near_board_id(board);
    le64_put(at, id.host);
    le64_put(at + 8, id.process);
    le64_put(at + 16, id.board);
    le64_put(at + 24, id.proof);
    memcpy(at + 32, NEAR_MARK, sizeof NEAR_MARK);
}

static near_id_t get_near(const uint8_t *address, size_t bytes)
{
    const uint8_t *at = address + bytes - NEAR_BYTES;
    if (bytes <= NEAR_BYTES || memcmp(at + 32, NEAR_MARK, sizeof NEAR_MARK) != 0) return (near_id_t){0};
    return (near_id_t){le64_get(at), le64_get(at + 8), le64_get(at + 16), le64_get(at + 24)};
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
    size_t bytes, near_bytes = u->board.words ? NEAR_BYTES : 0;
    ucs_status_t status = ucp_worker_get_address(u->in, &address, &bytes);
    if (status != UCS_OK) return status;
    if (ENVELOPE_BYTES + bytes + near_bytes <= sizeof u->address) {
        uint8_t *at = u->address + ENVELOPE_BYTES;
        memcpy(at, address, bytes);
        if (near_bytes) put_near(&u->board, at + bytes);
        put_head(u->address);
        le64_put(u->address + 8, check_of(at, bytes + near_bytes));
        u->address_bytes = ENVELOPE_BYTES + bytes + near_bytes;
    } else {
        status = UCS_ERR_EXCEEDS_LIMIT;
    }
    ucp_worker_release_address(u->in, address);
    return status;
}

const ucp_address_t *ucx_address_open(bytes_t envelope, near_id_t *ret_near)
{
    const uint8_t *at = envelope.data;
    uint8_t head[8];
    put_head(head);
    if (envelope.bytes <= ENVELOPE_BYTES || memcmp(at, head, sizeof head) != 0) return NULL;
    if (le64_get(at + 8) != check_of(at + ENVELOPE_BYTES, envelope.bytes - ENVELOPE_BYTES)) return NULL;
    *ret_near = get_near(at + ENVELOPE_BYTES, envelope.bytes - ENVELOPE_BYTES);
    return (const ucp_address_t *)(at + ENVELOPE_BYTES);
}
