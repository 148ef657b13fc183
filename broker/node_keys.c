/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: who may say what, and the questions that change it.  Without io.key there are none, and nobody is
 * asked. */
#include "broker/node_part.h"

#include "broker/questions/report.h"
#include "core/errors.h"

#include <string.h>

enum { RETRY_MS = 2000 };

/* ---- who is let in ---- */

bool broker_lets_in(const broker_t *b, const char *public_key)
{
    return auth_is_live(auth_key(&b->auth, public_key));
}

static void tell_unknown(const char *key, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_DENIED, "the key %s is not let in any more", key);
    error_expected(error, "a key that `heddle keys list` shows, and that was not revoked");
    error_hint(error, "heddle keys add '%s' --role ... admits it again", key);
}

/* Long-lived ones try again: a key may be added, or get another role. */
static void deny(const call_t *c, heddle_error_t *error)
{
    msg_type_t type = c->m->type;
    bool is_admin = type == MSG_HELLO && c->m->hello.role == ROLE_ADMIN;
    error->retriable = !is_admin && (type == MSG_HELLO || type == MSG_JOIN || type == MSG_OPEN);
    broker_refuse(c, error, error->retriable ? RETRY_MS : 0);
}

bool broker_allows(call_t *c)
{
    broker_t *b = c->b;
    heddle_error_t error;
    if (!b->io.key) return true;
    const char *proved = b->io.key(b->io.self, c->from);
    c->key = proved ? auth_key(&b->auth, proved) : NULL;
    if (auth_is_live(c->key) && auth_check(c->key, c->m, &error) == HEDDLE_OK) return true;
    b->denied++;
    if (auth_is_live(c->key)) {
        deny(c, &error);
    } else if (c->m->type == MSG_HELLO) { /* all else of a revoked key is dropped */
        tell_unknown(proved ? proved : "of this connection", &error);
        deny(c, &error);
    }
    return false;
}

bool broker_may_take_name(const call_t *c, const member_t *holder)
{
    heddle_error_t error;
    if (!c->key || !member_is_ready(holder) || auth_is_admin(c->key)) return true;
    const broker_peer_t *peer = broker_peer(c->b, holder->peer);
    if (peer && !strcmp(peer->key, c->key->public_key)) return true;
    error_fail(&error, HEDDLE_ERR_WORKER_ALIVE, "worker %s joined under another key, from %s, pid %llu",
               holder->name, holder->host, (unsigned long long)holder->pid);
    error_where(&error, NULL, 0, holder->name, NULL);
    error_hint(&error, "take another --name, or wait until its lease has ended");
    broker_refuse(c, &error, c->b->opts.lease_ms / 4);
    return false;
}

/* ---- revoked ---- */

static bool is_of(const broker_peer_t *peer, const char *key) { return peer && !strcmp(peer->key, key); }

static member_t *session_of(const broker_t *b, const char *key)
{
    for (size_t i = 0; i < b->members.token_count; i++)
        if (is_of(broker_peer(b, b->members.tokens[i]->peer), key)) return b->members.tokens[i];
    return NULL;
}

static void end_session(broker_t *b, member_t *member, const auth_key_t *key, instant_t now)
{
    heddle_error_t error;
    msg_t m;
    error_fail(&error, HEDDLE_ERR_DENIED, "the key %s of %s was revoked", key->name, member->name);
    error_hint(&error, "`heddle keys add` on the broker's host admits it again");
    msg_from_error(&error, 0, (msg_type_t)0, &m);
    m.error.token = member->token;
    outbox_send(&b->out, member->peer, &m);
    broker_end_member_because(b, member, "its key was revoked", now);
}

/* Its sessions end as if their leases had, at once; its connections are nobody's from now on. */
static uint64_t cut_off(broker_t *b, const auth_key_t *key, instant_t now)
{
    uint64_t count = 0;
    for (member_t *m; (m = session_of(b, key->public_key)) != NULL; count++) end_session(b, m, key, now);
    return count;
}

static void forget_connections(broker_t *b, const char *key)
{
    broker_peer_t *peer, *next;
    HASH_ITER(hh, b->peers, peer, next)
    if (is_of(peer, key)) broker_forget_peer(b, peer);
}

/* ---- questions ---- */

static void say_event(broker_t *b, event_type_t type, const auth_key_t *key, instant_t now)
{
    event_row_t *e = events_add(&b->events, type, NULL, 0, NULL, now);
    events_say(e, HEDDLE_OK, "%.60s: %.90s", key->name, key->roles);
}

static int answer(const call_t *c, const auth_key_t *key, bool changed, uint64_t sessions,
                  heddle_error_t *error)
{
    json_t *body = NULL;
    int rc = report_key(c->b, key, changed, sessions, &body, error);
    if (!rc) broker_report(c->b, c->from, c->m->query.req, body);
    json_decref(body);
    return rc;
}

static int add_key(const call_t *c, heddle_error_t *error)
{
    broker_t *b = c->b;
    const msg_query_t *q = &c->m->query;
    key_ask_t ask = {
        .public_key = q->key, .name = q->name, .roles = q->roles, .role_count = q->role_count};
    bool changed;
    int rc = auth_decide_add(&b->auth, &ask, c->now, &b->out, &changed, error);
    if (!rc && changed && !broker_make_durable(b, c->now, error)) rc = error->code;
    if (rc) return rc;
    const auth_key_t *key = auth_key(&b->auth, q->key);
    if (changed) say_event(b, EVENT_KEY_ADDED, key, c->now);
    return answer(c, key, changed, 0, error);
}

static int revoke_key(const call_t *c, heddle_error_t *error)
{
    broker_t *b = c->b;
    const msg_query_t *q = &c->m->query;
    const auth_key_t *key;
    char public_key[HEDDLE_KEY_TEXT];
    bool changed;
    int rc = auth_decide_revoke(&b->auth, q->key[0] ? q->key : q->name, c->now, &b->out, &key, &changed,
                                error);
    if (rc) return rc;
    memcpy(public_key, key->public_key, sizeof public_key);
    if (changed && !broker_make_durable(b, c->now, error)) return error->code;
    key = auth_key(&b->auth, public_key);
    if (changed) say_event(b, EVENT_KEY_REVOKED, key, c->now);
    uint64_t sessions = cut_off(b, key, c->now);
    rc = answer(c, key, changed, sessions, error);
    broker_let_go(b); /* the last words to its connections, before their numbers are forgotten */
    broker_close_writers(b, c->now);
    forget_connections(b, public_key);
    return rc;
}

bool on_keys(const call_t *c)
{
    heddle_error_t error;
    const char *op = c->m->query.op;
    bool is_add = !strcmp(op, "key_add"), is_revoke = !strcmp(op, "key_revoke"),
         is_list = !strcmp(op, "keys");
    if (!is_add && !is_revoke && (!is_list || c->b->io.key)) return false;
    int rc;
    if (!c->b->io.key) {
        rc = error_fail(&error, HEDDLE_ERR_DENIED,
                        "this broker runs without keys: whoever reaches it may do everything");
        error_hint(&error, "start it without --insecure");
    } else {
        rc = is_add ? add_key(c, &error) : revoke_key(c, &error);
    }
    if (rc) broker_refuse(c, &error, 0);
    return true;
}

/* ---- at the start ---- */

/* What an admin said of a key stands, or each start would undo a revocation. */
static void tell_left_out(const broker_t *b, const auth_key_t *k)
{
    char text[1024];
    text_printf(text, sizeof text,
                "%s is not let in as an admin: it is in the table as %s, %s%.400s, and stays so; another "
                "one is (heddle keygen), or an admin changes it (heddle keys)",
                k->public_key, k->name, k->revoked_ms ? "revoked" : "with the roles ",
                k->revoked_ms ? "" : k->roles);
    if (b->io.warn) b->io.warn(b->io.self, "broker.admin_key", text);
}

int broker_admit_admin(broker_t *b, const char *public_key, const char *name, instant_t now,
                       heddle_error_t *error)
{
    const char *roles[] = {"admin"};
    key_ask_t ask = {.public_key = public_key, .name = name, .roles = roles, .role_count = 1};
    const auth_key_t *known = auth_key(&b->auth, public_key);
    bool changed;
    if (known) {
        if (!auth_is_live(known) || !auth_is_admin(known)) tell_left_out(b, known);
        return HEDDLE_OK;
    }
    int rc = auth_decide_add(&b->auth, &ask, now, &b->out, &changed, error);
    if (!rc && !broker_make_durable(b, now, error)) rc = error->code;
    return rc;
}
