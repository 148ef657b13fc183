/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/inbox.h"

#include "broker/members/sessions.h"
#include "broker/registry/writer.h"

/* The writer's record is closed before BYE is sent, even while the broker settles: a publisher that left
 * does not come back, and the next writer must not wait for it.  If the store refuses or is busy, the
 * record is closed later. */
void on_leave(const call_t *c)
{
    broker_t *b = c->b;
    heddle_error_t error;
    /* No deadline: its client waits for a second, and goes. */
    txn_t txn = {.kind = TXN_LEAVE, .asker = c->asker, .token = c->member->token};
    const char *adapter = c->member->role == ROLE_PUBLISHER ? c->member->subs[0].adapter : "";
    const adapter_row_t *a = registry_adapter(&b->registry, adapter);
    sessions_end_member(b, c->member, END_LEFT, c->now);
    if (writer_is_session(a, txn.token) && !b->txn.is_open) {
        writer_decide_close(a, c->now, b->out);
        txn_commit(b, &txn, c->now, &error);
    } else {
        sessions_send_bye(b, &txn.asker, txn.token);
    }
}
