/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/keys/client_keys.h"

#include "broker/members/sessions.h"
#include "broker/questions/answer_keys.h"
#include "broker/questions/query.h"
#include "core/errors.h"

#include <string.h>

enum { RETRY_MS = 2000 };

/* ---- which keys are admitted ---- */

bool broker_lets_in(const broker_t *b, const char *public_key, instant_t now)
{
    return auth_may_connect(auth_key(&b->auth, public_key), now.wall_ms);
}

/* An invitation that has ended is presented by each worker that is started again with its string, and goes
 * on with its own key: no reason for a warning. */
void broker_refused_key(broker_t *b, const char *public_key, instant_t now)
{
    char command[AUTH_COMMAND];
    const auth_key_t *k = auth_key(&b->auth, public_key);
    if (auth_is_live(k)) return;
    auth_write_add(k, public_key, command);
    const char *text = strangers_key(&b->refused, public_key, k && k->revoked_ms, command, now);
    if (text && b->io.warn) b->io.warn(b->io.self, "keys.refused", text);
}

void keys_deny(const call_t *c, const char *proved, heddle_error_t *error)
{
    msg_type_t type = c->m->type;
    c->b->denied++;
    if (!auth_is_live(c->key)) {
        const char *key = proved ? proved : "of this connection";
        if (type != MSG_HELLO) return;
        if (proved) broker_refused_key(c->b, proved, c->now); /* a connection of before the key was revoked */
        error_fail(error, HEDDLE_ERR_DENIED, "the key %s is not admitted any more", key);
        error_expected(error, "a key that `heddle keys list` shows, and that was not revoked");
        char command[AUTH_COMMAND];
        if (proved) auth_write_add(auth_key(&c->b->auth, proved), proved, command);
        if (proved) error_hint(error, "`%s` admits it again", command);
    }
    /* Workers and publishers try again, because an admin may add the key or give it another role.  A command
     * ends with the error. */
    bool is_admin = type == MSG_HELLO && c->m->hello.role == ROLE_ADMIN;
    error->retriable = !is_admin && (type == MSG_HELLO || type == MSG_JOIN || type == MSG_OPEN);
    const char *text = error->retriable && auth_is_live(c->key)
                           ? strangers_role(&c->b->refused, c->key->public_key, error, c->now)
                           : NULL;
    if (text && c->b->io.warn) c->b->io.warn(c->b->io.self, "keys.refused", text);
    broker_refuse(c, error, error->retriable ? RETRY_MS : 0);
}

/* Another key may not replace a live worker: otherwise any worker's key could take over any name. */
bool keys_may_take_name(const call_t *c, const member_t *holder)
{
    heddle_error_t error;
    if (!c->key || !member_is_ready(holder) || auth_is_admin(c->key)) return true;
    const broker_peer_t *peer = broker_peer(c->b, holder->peer);
    if (peer && !strcmp(peer->key, c->key->public_key)) return true;
    error_fail(&error, HEDDLE_ERR_WORKER_ALIVE, "worker %s joined under another key, from %s, pid %llu",
               holder->name, holder->host, (unsigned long long)holder->pid);
    error_where(&error, NULL, 0, holder->name, NULL);
    error_hint(
        &error,
        "take another opts.name, or end the other one; a worker that is dead is gone when its lease ends");
    broker_refuse(c, &error, c->b->opts.lease_ms / 4);
    return false;
}

/* ---- revoked ---- */

static bool is_of(const broker_peer_t *peer, const char *key) { return peer && !strcmp(peer->key, key); }

/* Ends the sessions of a key at once, as if their leases had ended.  A key may have several, one for each
 * connection.  The connections end when the messages to them have been sent. */
static uint64_t end_sessions(broker_t *b, const auth_key_t *key, instant_t now)
{
    uint64_t count = 0;
    char command[AUTH_COMMAND];
    auth_write_add(key, key->public_key, command);
    for (size_t i = 0; i < b->members.token_count;) {
        member_t *member = b->members.tokens[i];
        if (!is_of(broker_peer(b, member->peer), key->public_key)) {
            i++;
            continue;
        }
        heddle_error_t error;
        msg_t m;
        error_fail(&error, HEDDLE_ERR_DENIED, "the key %s of %s was revoked", key->name, member->name);
        error_hint(&error, "`%s` admits it again", command);
        msg_from_error(&error, 0, (msg_type_t)0, &m);
        m.error.token = member->token;
        outbox_send(b->out, member->peer, &m);
        sessions_end_member(b, member, END_SHUT_OUT, now); /* the next one is at i */
        count++;
    }
    for (size_t i = 0; i < b->peer_count; i++)
        if (is_of(b->peers[i], key->public_key)) sessions_end_peer(b, b->peers[i]);
    return count;
}

void keys_apply(broker_t *b, const record_t *rec, instant_t now)
{
    const auth_key_t *key = auth_key(&b->auth, rec->public_key);
    strangers_forget(&b->refused, rec->public_key);
    bool is_asked_for = b->txn.kind == TXN_KEY; /* at a start the ready line tells of them */
    if (is_asked_for) {
        event_type_t type = rec->revoked_ms ? EVENT_KEY_REVOKED
                            : !rec->uses    ? EVENT_KEY_ADDED
                            : rec->used     ? EVENT_INVITATION_USED
                                            : EVENT_INVITATION_MADE;
        event_row_t *e = events_add(&b->events, type, NULL, 0, NULL, now);
        if (rec->uses)
            events_message(e, HEDDLE_OK, "%.60s: %.60s, used %llu of %llu", key->name, key->roles,
                           (unsigned long long)rec->used, (unsigned long long)rec->uses);
        else events_message(e, HEDDLE_OK, "%.60s: %.90s", key->name, key->roles);
    }
    if (rec->revoked_ms) b->txn.ended_sessions = end_sessions(b, key, now);
}

/* Of all keys of the invitation, also of those that were revoked before and whose session has not ended
 * yet. */
static uint64_t end_entered(broker_t *b, const char *invitation, instant_t now)
{
    uint64_t count = 0;
    for (const auth_key_t *k = b->auth.keys; k; k = k->hh.next)
        if (k->revoked_ms && auth_is_of_invitation(k, invitation)) count += end_sessions(b, k, now);
    return count;
}

void keys_apply_entered(broker_t *b, const record_t *rec, instant_t now)
{
    const auth_key_t *invitation = auth_key(&b->auth, rec->public_key);
    for (const auth_key_t *k = b->auth.keys; k; k = k->hh.next)
        if (auth_is_of_invitation(k, rec->public_key)) strangers_forget(&b->refused, k->public_key);
    event_row_t *e = events_add(&b->events, EVENT_KEY_REVOKED, NULL, 0, NULL, now);
    events_message(e, HEDDLE_OK, "%.60s: an invitation, and the keys that it entered: %u",
                   invitation ? invitation->name : rec->public_key, (unsigned)b->txn.entered_count);
    b->txn.ended_sessions = end_entered(b, rec->public_key, now);
}

/* ---- questions ---- */

void keys_answer(broker_t *b, const txn_t *txn, instant_t now)
{
    heddle_error_t error;
    json_t *body = NULL;
    const auth_key_t *key = auth_key(&b->auth, txn->key);
    key_change_t change = {.has_changed = txn->has_changed,
                           .kept_roles = txn->kept_roles,
                           .is_of_entered = txn->is_of_entered,
                           .entered_count = txn->entered_count,
                           .ended_sessions = txn->ended_sessions};
    if (answer_key(&b->auth, key, &change, now, &body, &error))
        broker_refuse_asker(b, &txn->asker, &error, 0);
    else query_answer(b, txn->asker.peer, txn->asker.req, body);
    json_decref(body);
}

/* Of the invitation that asks: no use is counted, and nothing is written. */
static void answer_invitation(const call_t *c)
{
    heddle_error_t error;
    uint64_t retry_ms = 0;
    json_t *body = NULL;
    int rc = auth_check_open(&c->b->auth, c->key, c->now, &retry_ms, &error);
    if (!rc) rc = answer_key(&c->b->auth, c->key, &(key_change_t){0}, c->now, &body, &error);
    if (rc) broker_refuse(c, &error, retry_ms);
    else query_answer(c->b, c->from, c->m->query.req, body);
    json_decref(body);
}

bool on_keys(const call_t *c)
{
    heddle_error_t error;
    const char *op = c->m->query.op;
    bool is_add = !strcmp(op, "key_add"), is_entered = !strcmp(op, "key_revoke_entered"),
         is_revoke = !strcmp(op, "key_revoke") || is_entered, is_invite = !strcmp(op, "invite"),
         is_enter = !strcmp(op, "enter"), is_list = !strcmp(op, "keys"), is_look = !strcmp(op, "invitation");
    bool is_change = is_add || is_revoke || is_invite || is_enter;
    if (!is_change && !is_look && (!is_list || c->b->io.key)) return false;
    if (!c->b->io.key) {
        error_fail(&error, HEDDLE_ERR_DENIED,
                   "this broker runs without keys: every client that reaches it may do everything");
        error_hint(&error, "start it without --insecure");
        broker_refuse(c, &error, 0);
    } else if (is_look) {
        answer_invitation(c);
    } else if (c->b->txn.is_open) {
        txn_defer(c);
    } else {
        txn_t txn = {.kind = TXN_KEY, .asker = c->asker, .deadline_us = c->deadline_us};
        const msg_query_t *q = &c->m->query;
        const auth_key_t *key = NULL;
        const char *named = q->key[0] ? q->key : q->name, *invitation = NULL;
        key_ask_t ask = {.public_key = q->key,
                         .name = q->name,
                         .roles = q->roles,
                         .role_count = q->role_count};
        const auth_key_t *known = is_add || is_enter ? auth_key(&c->b->auth, q->key) : NULL;
        if (auth_is_live(known)) txn.kept_roles = known->grant_count;
        uint64_t retry_ms = 0;
        int rc;
        if (is_add) rc = auth_decide_add(&c->b->auth, &ask, c->now, c->b->out, &txn.has_changed, &error);
        else if (is_enter)
            rc = auth_decide_enter(&c->b->auth, c->key, q->key, c->now, c->b->out, &txn.has_changed,
                                   &retry_ms, &error);
        else if (is_invite) {
            rc = auth_decide_invite(&c->b->auth, &ask, q->uses, q->ttl_ms, c->now, c->b->out, &error);
            txn.has_changed = !rc;
        } else if (is_entered) {
            txn.is_of_entered = true;
            rc = auth_decide_revoke_entered(&c->b->auth, named, c->now, c->b->out, &invitation,
                                            &txn.entered_count, &txn.has_changed, &error);
        } else rc = auth_decide_revoke(&c->b->auth, named, c->now, c->b->out, &key, &txn.has_changed, &error);
        if (!rc)
            error_text(txn.key, sizeof txn.key, invitation ? invitation : key ? key->public_key : q->key);
        /* A key that was revoked before may still have a session, if the broker ended between the record and
         * the end of that session. */
        if (!rc && key && !txn.has_changed) txn.ended_sessions = end_sessions(c->b, key, c->now);
        if (!rc && invitation && !txn.has_changed) txn.ended_sessions = end_entered(c->b, invitation, c->now);
        if (rc) broker_refuse(c, &error, retry_ms);
        else txn_commit(c->b, &txn, c->now, &error);
    }
    return true;
}

/* ---- at the start ---- */

int broker_admit_admin(broker_t *b, const char *public_key, const char *name, instant_t now,
                       heddle_error_t *error)
{
    const char *roles[] = {"admin"};
    key_ask_t ask = {.public_key = public_key, .name = name, .roles = roles, .role_count = 1};
    const auth_key_t *known = auth_key(&b->auth, public_key);
    bool changed;
    if (known) {
        if (!auth_is_live(known) || !auth_is_admin(known)) {
            /* What an admin decided about a key holds: otherwise each start with --admin-key would undo a
             * revocation. */
            char text[1024];
            text_printf(
                text, sizeof text,
                "the key %s was not made an admin's: it is registered as %s, %s%.400s, and that stays; name "
                "another key (heddle keygen), or have an admin change this one (heddle keys)",
                known->public_key, known->name, known->revoked_ms ? "revoked" : "with the roles ",
                known->revoked_ms ? "" : known->roles);
            if (b->io.warn) b->io.warn(b->io.self, "broker.admin_key", text);
        }
        return HEDDLE_OK;
    }
    if (b->txn.is_open) return error_fail(error, HEDDLE_ERR_AGAIN, "an earlier record is not confirmed yet");
    int rc = auth_decide_add(&b->auth, &ask, now, b->out, &changed, error);
    return rc ? rc : txn_commit(b, &(txn_t){.kind = TXN_OWN}, now, error);
}
