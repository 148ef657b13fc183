/* SPDX-License-Identifier: Apache-2.0 */
/* A look inside a transfer.  A file of its own: broker and transfer each have a type called outbox_send_t. */
#include "tests/scenario/leftover.h"

#include "transfer/exchange_state.h"

leftover_t leftover_of(const transfer_t *t)
{
    leftover_t left = {.shares = t->x->share_count};
    for (uint32_t i = 0; i < t->x->asks_used; i++) left.asks += t->x->asks[i].state != ASK_FREE;
    for (const conn_t *p = t->x->conns; p; p = p->next) left.standing += p->standing_count;
    return left;
}
