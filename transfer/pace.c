/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/pace.h"

#define MICRO 1000000
#define RATE_MAX 1000000000000ull /* 1 TB/s: the burst in micro-bytes still fits an int64 */
#define BURST_MIN_BYTES 65536     /* one chunk */
#define BURST_PARTS 20            /* 50 ms of the rate: short enough for a progress bar to be true */

/* A new rate starts with a full bucket. */
void pace_set(pace_t *p, uint64_t rate, uint64_t now_us)
{
    p->rate = rate < RATE_MAX ? rate : RATE_MAX;
    uint64_t burst = p->rate / BURST_PARTS;
    p->burst = (int64_t)(burst < BURST_MIN_BYTES ? BURST_MIN_BYTES : burst) * MICRO;
    p->credit = p->burst;
    p->at_us = now_us;
}

/* Credit grows with the time since the last call, up to the burst. */
bool pace_ready(pace_t *p, uint64_t now_us)
{
    if (p->rate == 0) return true;
    uint64_t passed = now_us > p->at_us ? now_us - p->at_us : 0;
    p->at_us += passed;
    /* Compared by division first: a long pause must not overflow the product. */
    if (passed > (uint64_t)(p->burst - p->credit) / p->rate) p->credit = p->burst;
    else p->credit += (int64_t)(passed * p->rate);
    return p->credit > 0;
}

/* The credit may become negative: a range is paid for whole, and the next one waits longer. */
void pace_take(pace_t *p, uint32_t bytes)
{
    if (p->rate) p->credit -= (int64_t)bytes * MICRO;
}

void pace_refund(pace_t *p, uint32_t bytes)
{
    if (!p->rate) return;
    p->credit += (int64_t)bytes * MICRO;
    if (p->credit > p->burst) p->credit = p->burst;
}

/* The time at which the debt is paid, rounded up so that the caller does not come too early. */
uint64_t pace_when(const pace_t *p, uint64_t now_us)
{
    if (p->rate == 0 || p->credit > 0) return now_us;
    return p->at_us + (uint64_t)(-p->credit) / p->rate + 1;
}
