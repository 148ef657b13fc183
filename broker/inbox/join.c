/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/inbox/inbox.h"

#include "broker/keys/client_keys.h"
#include "broker/members/sessions.h"
#include "broker/restored_numbers.h"
#include "broker/rollout/messages.h"
#include "broker/rollout/presence.h"
#include "core/errors.h"

/* It is about to be forgotten, which is refused while a worker subscribes to it, as this one will. */
static bool is_being_forgotten(const broker_t *b, const msg_join_t *join)
{
    const outbox_t *open = &b->outboxes[b->out == b->outboxes];
    if (!b->txn.is_open || b->txn.kind != TXN_FORGET) return false;
    const char *name = open->records[open->record_count - 1].adapter;
    for (uint32_t i = 0; i < join->adapter_count; i++)
        if (!strcmp(join->adapters[i].adapter, name)) return true;
    return false;
}

/* The order matters: the former session of this connection ends first, and the holder of the name before the
 * rollouts see the new session. */
void on_join(const call_t *c)
{
    broker_t *b = c->b;
    const msg_join_t *join = &c->m->join;
    heddle_error_t error;
    uint64_t retry_ms = 0;
    admitted_t admitted;
    if (!sessions_has_role(c, ROLE_WORKER)) return;
    if (is_being_forgotten(b, join)) {
        txn_defer(c);
        return;
    }
    member_t *holder = membership_worker(&b->members, join->name);
    if (!keys_may_take_name(c, holder)) return;
    bool is_anothers = member_is_ready(holder) && memcmp(&holder->life, &c->peer->life, sizeof holder->life);
    if (is_anothers) sessions_probe(b, holder);
    if (holder && membership_note_rival(holder, join->prev_token))
        sessions_note_fenced(b, join->name, join->prev_token, holder, c->now);
    member_hello_t hello = sessions_hello(c->peer);
    if (membership_decide_join(&b->members, join, &hello, c->now.us, &retry_ms, &error)) {
        broker_refuse(c, &error, retry_ms);
        return;
    }
    if (!restored_numbers_check_join(c)) return;
    sessions_end_former(c, ROLE_WORKER, join->name);
    arena_t arena = {0};
    msg_welcome_t welcome = {.req = join->req};
    if (membership_join(&b->members, join, &hello, c->now, &admitted)) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "the broker has no memory for worker %s", join->name);
        broker_refuse(c, &error, b->opts.lease_ms);
        return;
    }
    member_t *member = admitted.member;
    sessions_begin(c, &admitted);
    step_t step = broker_step(b, c->now);
    if (presence_joined(&step, member, join, &arena, &welcome)) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "the broker has no memory for what worker %s holds",
                   join->name);
        broker_refuse(c, &error, b->opts.lease_ms);
        sessions_end_member(b, member, END_LEFT, c->now);
    } else {
        sessions_send_welcome(c, member, &welcome);
        sessions_send_peers(b, member);
        sessions_note_begun(c, member);
        if (membership_hear_drain(member, join->draining, join->own_wish)) sessions_drain(b, member, c->now);
        roster_touch(b, ROSTER_SOON_US, c->now);
        messages_wake(&step, member);
    }
    arena_fini(&arena);
}
