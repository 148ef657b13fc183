/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/pace.h (PURE): a token bucket over the bytes of one way.  A range may go while
 * there is any credit and is paid for whole (the bucket goes into debt), so that ranges larger
 * than the bucket pass too.  Loop thread only; the exchange owns it. */
#ifndef TRANSFER_PACE_H
#define TRANSFER_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Credit and burst in millionths of a byte. */
typedef struct {
    uint64_t rate, at_us;
    int64_t credit, burst;
} pace_t;

/* `rate` bytes per second; 0: no limit. */
void pace_set(pace_t *p, uint64_t rate, uint64_t now_us);
/* True when something may go now. */
bool pace_ready(pace_t *p, uint64_t now_us);
void pace_take(pace_t *p, uint32_t bytes);
/* What was paid for and will not come. */
void pace_refund(pace_t *p, uint32_t bytes);
/* When pace_ready will be true. */
uint64_t pace_when(const pace_t *p, uint64_t now_us);

#endif
