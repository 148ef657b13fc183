/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/frame.h: the seven frames of the bulk plane <-> structs.  PURE: no memory is taken,
 * nothing blocks.
 *
 *   head (16)   u8 kind | u8 version = 1 | u16 count | u32 zero | u64 line
 *   HI          head, u64 token, u64 answer, address            count = bytes of address
 *   ASK         head, key (16), count x { u64 ask, u64 offset, u32 bytes }
 *   UNASK       head, count x { u64 ask }
 *   DATA        head, u64 ask, u64 offset, u32 bytes            count = 0; the body travels beside it
 *   BEAT        head                                            count = 0
 *   REFUSED     head, count x { u64 ask, u32 reason }           reason: 1 NOT_FOUND, 2 LIMIT, 3 AGAIN
 *   BYE         head                                            count = 0
 *
 * All little-endian; the length is exact.  `line` is the sender's number of this connection, introduced by
 * HI; frames of another line are ignored.  The numbers of one process grow, so that a newer connection can
 * be told apart from a late frame of an older one.  Any thread; the caller owns the bytes. */
#ifndef TRANSFER_FRAME_H
#define TRANSFER_FRAME_H

#include "core/limits.h"
#include "transfer/transfer.h"

#define FRAME_VERSION 1u
#define FRAME_HEAD_BYTES 16u
#define FRAME_HI_BYTES (FRAME_HEAD_BYTES + 16u) /* and the address */
#define FRAME_ASK_BYTES(count) (FRAME_HEAD_BYTES + 16u + 20u * (count))
#define FRAME_UNASK_BYTES(count) (FRAME_HEAD_BYTES + 8u * (count))
#define FRAME_DATA_BYTES (FRAME_HEAD_BYTES + 20u)
#define FRAME_REFUSED_BYTES(count) (FRAME_HEAD_BYTES + 12u * (count))
#define FRAME_SMALL_MAX FRAME_ASK_BYTES(LIMIT_ASK_RANGES) /* every frame but HI fits */
#define FRAME_MAX (FRAME_HI_BYTES + LIMIT_ADDRESS_BYTES)

typedef enum {
    FRAME_HI = 1,
    FRAME_ASK,
    FRAME_UNASK,
    FRAME_DATA,
    FRAME_BEAT,
    FRAME_REFUSED,
    FRAME_BYE
} frame_kind_t;
typedef struct {
    uint64_t ask, offset;
    uint32_t bytes;
} frame_range_t;
typedef struct {
    uint64_t ask;
    int err;
} frame_refusal_t;

typedef struct frame {
    frame_kind_t kind;
    uint32_t count; /* rows of ASK, UNASK, REFUSED: 1..LIMIT_ASK_RANGES */
    uint64_t line;  /* never 0 */
    union {
        struct {
            uint64_t token, answer;
            bytes_t address;
        } hi; /* answer: the line answered; 0: it
               * begins */
        struct {
            share_key_t key;
            frame_range_t ranges[LIMIT_ASK_RANGES];
        } ask;
        struct {
            uint64_t asks[LIMIT_ASK_RANGES];
        } unask;
        struct {
            uint64_t ask, offset;
            uint32_t bytes;
        } data;
        struct {
            frame_refusal_t rows[LIMIT_ASK_RANGES];
        } refused;
    };
} frame_t;

/* Writes the frame; `out` has room for FRAME_MAX (HI) or FRAME_SMALL_MAX.  Returns its bytes. */
size_t frame_encode(const frame_t *f, uint8_t *out);
/* False when anything is out of shape.  hi.address is borrowed from `in`. */
bool frame_decode(bytes_t in, frame_t *ret_frame);

#endif
