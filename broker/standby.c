/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/standby.h"

#include "core/errors.h"
#include "proto/msg.h"

#include <string.h>

#define FULL ", and etcd has no room"
#define KEY_MARK ", key " /* what follows it in a leader's key is its public key, to the end */

/* What it knows of a leader is of the last answer of etcd. */
static int fail(const standby_t *s, const char *doubt, const char *hint, heddle_error_t *error)
{
    const char *leads = *s->leader ? "the one that leads is " : "none leads at the moment";
    if (!s->is_answered) {
        doubt = ", and etcd does not answer it";
        leads = *s->leader ? "no broker is known to lead; before it was " : "no broker is known to lead";
        hint = "see that etcd runs and has a majority, and that this host reaches it";
    }
    int rc =
        error_fail(error, HEDDLE_ERR_UNAVAILABLE, "this broker stands by%s: %s%s", doubt, leads, s->leader);
    error_hint(error, "%s", hint);
    return rc;
}

int standby_check_ready(const standby_t *s, heddle_error_t *error)
{
    int rc;
    if (s->is_full) {
        rc = error_fail(error, HEDDLE_ERR_NO_SPACE, "this broker stands by" FULL ": none leads until it has");
        error_hint(error, "compact and defragment etcd, raise its quota, disarm the alarm");
        return rc;
    }
    if (s->is_following) return HEDDLE_OK;
    if (s->refusal.code) {
        rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE, "this broker could not take over: %s",
                        s->refusal.message);
        error_hint(error, "%s", s->refusal.hint);
        return rc;
    }
    return fail(s, ", and does not follow the registry yet", "it reads the registry: see its log", error);
}

int standby_refuse(const standby_t *s, heddle_error_t *error)
{
    return fail(s, "", "ask the one that leads", error);
}

bool standby_answer(bytes_t frame, const standby_t *s, buf_t *out)
{
    msg_t m, answer;
    heddle_error_t error;
    int rc = msg_decode(frame, &m, &error);
    msg_type_t of = rc ? (msg_type_t)0 : m.type;
    if (!rc) msg_fini(&m);
    if (of == MSG_PING) return false;
    if (!rc && !*s->leader && s->refusal.code) {
        error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "this broker stands by, and none leads: %s",
                   s->refusal.message);
        error_hint(&error, "%s", s->refusal.hint);
    } else if (!rc) {
        fail(s, s->is_full ? FULL : "",
             "a client goes to the one that leads by itself; opts.broker may name all of them", &error);
    }
    msg_from_error(&error, 0, of, &answer);
    answer.error.retriable = true;
    answer.error.retry_ms = *s->leader || !s->is_following ? STANDBY_RETRY_MS : STANDBY_SOON_MS;
    answer.error.leader = s->leader;
    answer.error.leader_key = s->leader_key;
    return !msg_encode(&answer, out);
}

/* False: there is no other one, or it was sent there a moment ago.  A list that is full forgets the oldest,
 * which is sent once more. */
static bool goes_on(const key16_t *admin, const standby_way_t *way, standby_sent_t *sent)
{
    if (!admin || !way->to) return false;
    size_t known = sent->count < STANDBY_SENT ? sent->count : STANDBY_SENT, i = 0;
    while (i < known && memcmp(&sent->admins[i].life, admin, sizeof *admin) != 0) i++;
    if (i < known && way->now_us - sent->admins[i].sent_us < STANDBY_STAY_US) return false;
    if (i == known) i = sent->count++ % STANDBY_SENT;
    sent->admins[i].life = *admin;
    sent->admins[i].sent_us = way->now_us;
    return true;
}

/* What a member needs another broker for, with the number of the request and of the session.  Other messages
 * follow from a session, which ends at its next heartbeat. */
static bool is_of_member(const msg_t *m, uint64_t *ret_req, uint64_t *ret_token)
{
    *ret_req = *ret_token = 0;
    switch (m->type) {
    case MSG_HELLO: return true;
    case MSG_JOIN: *ret_req = m->join.req; return true;
    case MSG_OPEN: *ret_req = m->open.req; return true;
    case MSG_PUBLISH:
        *ret_req = m->publish.req;
        *ret_token = m->publish.token;
        return true;
    case MSG_HEARTBEAT: *ret_token = m->heartbeat.token; return true;
    default: return false;
    }
}

/* `of` has the type of what is answered, and its request and token where it has them.  A session that is not
 * found ends, and its member says HELLO, as to a broker that was started again. */
static void send_away(const msg_error_t *of, const brokers_row_t *to, buf_t *out)
{
    heddle_error_t error;
    msg_t answer;
    error_fail(&error, of->token ? HEDDLE_ERR_NOT_FOUND : HEDDLE_ERR_UNAVAILABLE,
               "etcd does not answer this broker, and another one may lead%s%s", to ? ": ask " : "",
               to ? to->endpoint : "");
    error_hint(&error, "a client goes there by itself; see that etcd runs, and that this host reaches it");
    msg_from_error(&error, of->req, (msg_type_t)of->of, &answer);
    answer.error.token = of->token;
    answer.error.retriable = true;
    answer.error.retry_ms = STANDBY_RETRY_MS;
    answer.error.leader = to ? to->endpoint : "";
    answer.error.leader_key = to ? to->key : "";
    (void)msg_encode(&answer, out);
}

bool standby_turn_away(bytes_t frame, const standby_way_t *way, standby_sent_t *sent, buf_t *out)
{
    msg_t m;
    heddle_error_t error;
    if (msg_decode(frame, &m, &error)) return false;
    msg_error_t of = {.of = m.type};
    bool is_taken = is_of_member(&m, &of.req, &of.token);
    if (m.type == MSG_HELLO && m.hello.role == ROLE_ADMIN) is_taken = goes_on(&m.hello.life, way, sent);
    if (m.type == MSG_QUERY) {
        of.req = m.query.req;
        is_taken = goes_on(way->admin, way, sent);
    }
    msg_fini(&m);
    if (is_taken) send_away(&of, way->to, out);
    return is_taken;
}

bool standby_send_on(uint64_t req, const standby_way_t *way, standby_sent_t *sent, buf_t *out)
{
    bool is_taken = goes_on(way->admin, way, sent);
    if (is_taken) send_away(&(msg_error_t){.of = MSG_QUERY, .req = req}, way->to, out);
    return is_taken;
}

void standby_holder(const char *endpoint, int pid, const char *host, const char *key,
                    char to[STANDBY_HOLDER_BYTES])
{
    text_printf(to, STANDBY_HOLDER_BYTES, "%.*s of pid %d on %.50s%s%.*s", STANDBY_ADDRESS_BYTES - 1,
                endpoint, pid, host, *key ? KEY_MARK : "", (int)HEDDLE_KEY_TEXT - 1, key);
}

void standby_leader(const char *holder, char to[STANDBY_ADDRESS_BYTES], char key[HEDDLE_KEY_TEXT])
{
    const char *mark = strstr(holder, KEY_MARK), *word = mark ? mark + sizeof KEY_MARK - 1 : "";
    size_t bytes = strcspn(holder, " ");
    bool is_address = bytes < STANDBY_ADDRESS_BYTES && strstr(holder, "://");
    text_printf(to, STANDBY_ADDRESS_BYTES, "%.*s", is_address ? (int)bytes : 0, holder);
    text_printf(key, HEDDLE_KEY_TEXT, "%s", strlen(word) == HEDDLE_KEY_TEXT - 1 ? word : "");
}

void standby_reachable(const char *bound, const char *host, char to[STANDBY_ADDRESS_BYTES])
{
    static const char *const ALL[] = {"tcp://0.0.0.0:", "tcp://[::]:", "tcp://*:"};
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if (!strncmp(bound, ALL[i], strlen(ALL[i])) && *host) {
            text_printf(to, STANDBY_ADDRESS_BYTES, "tcp://%s:%s", host, bound + strlen(ALL[i]));
            return;
        }
    text_printf(to, STANDBY_ADDRESS_BYTES, "%s", bound);
}
