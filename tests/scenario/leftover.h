/* SPDX-License-Identifier: Apache-2.0 */
/* scenario/leftover.h: what a transfer still has to do: asks that it made, asks that it answers, regions
 * that it serves. */
#ifndef SCENARIO_LEFTOVER_H
#define SCENARIO_LEFTOVER_H

#include "transfer/transfer.h"

#define LEFTOVER_ASKS_MAX 4096u      /* EXCHANGE_ASKS_MAX */
#define LEFTOVER_STANDING_MAX 16384u /* EXCHANGE_STANDING_MAX */

typedef struct {
    uint32_t asks, standing, shares;
} leftover_t;
leftover_t leftover_of(const transfer_t *t);

#endif
