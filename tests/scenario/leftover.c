/* SPDX-License-Identifier: Apache-2.0 */
/* A look inside a transfer.  A file of its own: broker and transfer each have a type called send_t. */
#include "tests/scenario/leftover.h"

#include "transfer/exchange.h"

leftover_t leftover_of(const transfer_t *t) { return (leftover_t){t->asks_used, t->standing_used, t->share_count}; }
