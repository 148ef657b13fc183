/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/frame.h"

/* Reasons of REFUSED on the wire; everything else that could go wrong is the peer's own affair and reads
 * AGAIN. */
static const struct {
    uint32_t wire;
    int err;
} REASONS[] = {{1, HEDDLE_ERR_NOT_FOUND}, {2, HEDDLE_ERR_LIMIT}, {3, HEDDLE_ERR_AGAIN}};
#define REASON_COUNT (sizeof REASONS / sizeof *REASONS)

/* An error without a reason of its own is a passing trouble of the source. */
static uint32_t reason_of(int err)
{
    for (size_t i = 0; i < REASON_COUNT; i++)
        if (REASONS[i].err == err) return REASONS[i].wire;
    return 3;
}

/* 0: no reason of this release, and the frame is malformed. */
static int err_of(uint32_t reason)
{
    for (size_t i = 0; i < REASON_COUNT; i++)
        if (REASONS[i].wire == reason) return REASONS[i].err;
    return 0;
}

static uint8_t *put_u32(uint8_t *at, uint32_t v)
{
    le32_put(at, v);
    return at + 4;
}
static uint8_t *put_u64(uint8_t *at, uint64_t v)
{
    le64_put(at, v);
    return at + 8;
}

/* The exact mirror of frame_decode: one case a kind, in the order of the fields. */
size_t frame_encode(const frame_t *f, uint8_t *out)
{
    uint32_t count = f->kind == FRAME_HI ? (uint32_t)f->hi.address.bytes : f->count;
    out[0] = (uint8_t)f->kind;
    out[1] = FRAME_VERSION;
    le16_put(out + 2, (uint16_t)count);
    le32_put(out + 4, 0);
    uint8_t *at = put_u64(out + 8, f->line);
    switch (f->kind) {
    case FRAME_HI:
        at = put_u64(put_u64(at, f->hi.token), f->hi.answer);
        memcpy(at, f->hi.address.data, f->hi.address.bytes);
        at += f->hi.address.bytes;
        break;
    case FRAME_ASK:
        memcpy(at, f->ask.key.b, sizeof f->ask.key.b);
        at += sizeof f->ask.key.b;
        for (uint32_t i = 0; i < f->count; i++) {
            const frame_range_t *r = &f->ask.ranges[i];
            at = put_u32(put_u64(put_u64(at, r->ask), r->offset), r->bytes);
        }
        break;
    case FRAME_UNASK:
        for (uint32_t i = 0; i < f->count; i++) at = put_u64(at, f->unask.asks[i]);
        break;
    case FRAME_DATA: at = put_u32(put_u64(put_u64(at, f->data.ask), f->data.offset), f->data.bytes); break;
    case FRAME_BEAT:
    case FRAME_BYE: break;
    case FRAME_REFUSED:
        for (uint32_t i = 0; i < f->count; i++)
            at = put_u32(put_u64(at, f->refused.rows[i].ask), reason_of(f->refused.rows[i].err));
        break;
    }
    return (size_t)(at - out);
}

/* The one length that a frame of this kind and count may have, so that no decoder reads past its frame.
 * 0: the count is out of range. */
static size_t length_of(uint32_t kind, uint32_t count)
{
    bool rows = count >= 1 && count <= LIMIT_ASK_RANGES;
    switch (kind) {
    case FRAME_HI: return FRAME_HI_BYTES + count;
    case FRAME_ASK: return rows ? FRAME_ASK_BYTES(count) : 0;
    case FRAME_UNASK: return rows ? FRAME_UNASK_BYTES(count) : 0;
    case FRAME_DATA: return count == 0 ? FRAME_DATA_BYTES : 0;
    case FRAME_BEAT:
    case FRAME_BYE: return count == 0 ? FRAME_HEAD_BYTES : 0;
    case FRAME_REFUSED: return rows ? FRAME_REFUSED_BYTES(count) : 0;
    default: return 0;
    }
}

/* The head is checked before the body, and the exact length before any field is read. */
bool frame_decode(bytes_t in, frame_t *f)
{
    const uint8_t *at = in.data;
    if (in.bytes < FRAME_HEAD_BYTES || at[1] != FRAME_VERSION || le32_get(at + 4) != 0) return false;
    f->count = le16_get(at + 2);
    f->line = le64_get(at + 8);
    if (f->line == 0 || in.bytes != length_of(at[0], f->count)) return false;
    f->kind = (frame_kind_t)at[0];
    at += FRAME_HEAD_BYTES;
    switch (f->kind) {
    case FRAME_HI: /* Token 0 is no member, and without an address nothing can be connected to. */
        if (f->count == 0 || f->count > LIMIT_ADDRESS_BYTES) return false;
        f->hi.token = le64_get(at);
        f->hi.answer = le64_get(at + 8);
        f->hi.address = bytes_of(at + 16, f->count);
        return f->hi.token != 0;
    case FRAME_ASK:
        memcpy(f->ask.key.b, at, sizeof f->ask.key.b);
        at += sizeof f->ask.key.b;
        for (uint32_t i = 0; i < f->count; i++, at += 20)
            f->ask.ranges[i] = (frame_range_t){le64_get(at), le64_get(at + 8), le32_get(at + 16)};
        return true;
    case FRAME_UNASK:
        for (uint32_t i = 0; i < f->count; i++) f->unask.asks[i] = le64_get(at + 8u * i);
        return true;
    case FRAME_DATA:
        f->data.ask = le64_get(at);
        f->data.offset = le64_get(at + 8);
        f->data.bytes = le32_get(at + 16);
        return true;
    case FRAME_BEAT:
    case FRAME_BYE: return true;
    case FRAME_REFUSED: /* A reason of another release cannot be acted on. */
        for (uint32_t i = 0; i < f->count; i++, at += 12) {
            f->refused.rows[i] = (frame_refusal_t){le64_get(at), err_of(le32_get(at + 8))};
            if (f->refused.rows[i].err == 0) return false;
        }
        return true;
    }
    return false;
}
