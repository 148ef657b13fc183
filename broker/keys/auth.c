/* SPDX-License-Identifier: Apache-2.0 */
#define HASH_NONFATAL_OOM 1
#define uthash_nonfatal_oom(key) ((key)->unfit = true)
#include "broker/keys/auth.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/option.h"

#include <stdlib.h>

static const struct {
    const char *name;
    auth_role_t role;
    bool has_adapter;
} ROLES[] = {{"admin", AUTH_ADMIN, false},
             {"reader", AUTH_READER, false},
             {"publisher", AUTH_PUBLISHER, true},
             {"worker", AUTH_WORKER, true}};
enum { ROLE_COUNT = sizeof ROLES / sizeof *ROLES };

/* ---- roles ---- */

/* "admin", "reader", "publisher:ADAPTER" or "worker:ADAPTER", where ADAPTER may be "*". */
int grant_parse(const char *text, grant_t *ret_grant, heddle_error_t *error)
{
    const char *colon = strchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : strlen(text);
    for (int i = 0; i < ROLE_COUNT; i++) {
        if (strlen(ROLES[i].name) != n || strncmp(ROLES[i].name, text, n)) continue;
        if (ROLES[i].has_adapter != (colon != NULL)) break;
        bool is_any = colon && !strcmp(colon + 1, "*");
        int rc = colon && !is_any ? name_check("adapter", colon + 1, error) : HEDDLE_OK;
        if (rc) return rc;
        *ret_grant = (grant_t){.role = ROLES[i].role};
        text_printf(ret_grant->adapter, sizeof ret_grant->adapter, "%s", colon ? colon + 1 : "");
        return HEDDLE_OK;
    }
    int rc = error_fail(error, HEDDLE_ERR_USAGE, "\"%.140s\" is not a role", text);
    error_contrast(error, "admin, reader, publisher:ADAPTER or worker:ADAPTER, where ADAPTER may be *", text);
    return rc;
}

/* An admin may do everything.  Other roles are good for one adapter, or for all of them ("*").  `adapter`
 * NULL: the role for any adapter is enough, because HELLO names no adapter yet. */
static bool may(const auth_key_t *k, auth_role_t role, const char *adapter)
{
    for (uint32_t i = 0; i < k->grant_count; i++) {
        const grant_t *g = &k->grants[i];
        if (g->role == AUTH_ADMIN) return true;
        if (g->role != role) continue;
        if (!adapter || !strcmp(g->adapter, "*") || !strcmp(g->adapter, adapter)) return true;
    }
    return false;
}

bool auth_is_admin(const auth_key_t *k) { return may(k, AUTH_ADMIN, NULL); }

bool auth_is_member(const auth_key_t *k, const char *adapter)
{
    return may(k, AUTH_WORKER, adapter) || may(k, AUTH_PUBLISHER, adapter);
}

/* ---- the table ---- */

static void free_key(auth_key_t *k)
{
    if (!k) return;
    free(k->roles);
    free(k->grants);
    free(k);
}

static void drop_key(auth_t *a, const char *public_key)
{
    auth_key_t *k;
    HASH_FIND_STR(a->keys, public_key, k);
    if (!k) return;
    HASH_DEL(a->keys, k);
    free_key(k);
}

void auth_fini(auth_t *a)
{
    while (a->keys) drop_key(a, a->keys->public_key);
}

/* A public key of CURVE is 32 bytes, which are 40 characters of Z85. */
static bool is_key_text(const char *text)
{
    static const char Z85[] =
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    return strlen(text) == HEDDLE_KEY_TEXT - 1 && strspn(text, Z85) == HEDDLE_KEY_TEXT - 1;
}

/* Reads the roles of a key from their stored text.  False: no roles, too many, or one that does not exist. */
static bool take_roles(auth_key_t *k)
{
    char one[2 * HEDDLE_NAME_MAX];
    for (const char *at = k->roles, *end; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        size_t n = (size_t)(end - at);
        if (n >= sizeof one || k->grant_count >= LIMIT_ROLES) return false;
        memcpy(one, at, n);
        one[n] = 0;
        if (grant_parse(one, &k->grants[k->grant_count], NULL)) return false;
        k->grant_count++;
    }
    return true;
}

static bool gives_admin(const auth_key_t *k)
{
    for (uint32_t i = 0; i < k->grant_count; i++)
        if (k->grants[i].role == AUTH_ADMIN) return true;
    return false;
}

static int new_key(const record_t *r, auth_key_t **ret_key)
{
    auth_key_t *k = calloc(1, sizeof *k);
    if (!k) return HEDDLE_ERR_NO_MEMORY;
    k->roles = strdup(r->roles);
    k->grants = calloc(LIMIT_ROLES, sizeof *k->grants);
    k->added_ms = r->at_ms;
    k->revoked_ms = r->revoked_ms;
    k->invitation = (invitation_t){.uses = r->uses, .used = r->used, .ends_ms = r->ends_ms};
    text_printf(k->entered_by, sizeof k->entered_by, "%s", r->entered_by ? r->entered_by : "");
    int rc = k->roles && k->grants ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
    if (!rc && (!is_key_text(r->public_key) || !name_is_valid(r->name) || !take_roles(k)))
        rc = HEDDLE_ERR_INTERNAL;
    if (!rc && r->entered_by && *r->entered_by && !is_key_text(r->entered_by)) rc = HEDDLE_ERR_INTERNAL;
    if (!rc && (r->used > r->uses || r->uses > LIMIT_INVITATION_USES || (r->uses && gives_admin(k))))
        rc = HEDDLE_ERR_INTERNAL;
    if (rc) {
        free_key(k);
        return rc;
    }
    text_printf(k->public_key, sizeof k->public_key, "%s", r->public_key);
    text_printf(k->name, sizeof k->name, "%s", r->name);
    *ret_key = k;
    return HEDDLE_OK;
}

/* A record of a key replaces the row of the same key, so a key that is added again is live again. */
int auth_apply(auth_t *a, const record_t *r)
{
    auth_key_t *k = NULL;
    if (r->kind == RECORD_KEY_DROP) {
        drop_key(a, r->public_key);
        return HEDDLE_OK;
    }
    if (r->kind == RECORD_KEYS_REVOKE) {
        for (k = a->keys; k; k = k->hh.next)
            if (auth_is_live(k) && auth_is_of_invitation(k, r->public_key)) k->revoked_ms = r->revoked_ms;
        return HEDDLE_OK;
    }
    int rc = new_key(r, &k);
    if (rc) return rc;
    const auth_key_t *former = auth_key(a, k->public_key);
    if (former) k->invitation.busy_us = former->invitation.busy_us;
    drop_key(a, k->public_key);
    HASH_ADD_STR(a->keys, public_key, k);
    if (!k->unfit) return HEDDLE_OK;
    free_key(k);
    return HEDDLE_ERR_NO_MEMORY;
}

const auth_key_t *auth_key(const auth_t *a, const char *public_key)
{
    auth_key_t *k = NULL;
    HASH_FIND_STR(a->keys, public_key, k);
    return k;
}

/* A public key, or a name.  A live key has the name before a revoked one; of revoked ones the latest is
 * found. */
const auth_key_t *auth_named(const auth_t *a, const char *key_or_name)
{
    const auth_key_t *found = auth_key(a, key_or_name);
    if (found) return found;
    for (const auth_key_t *k = a->keys; k; k = k->hh.next) {
        if (strcmp(k->name, key_or_name) != 0) continue;
        if (auth_is_live(k)) return k;
        if (!found || k->revoked_ms > found->revoked_ms) found = k;
    }
    return found;
}

bool auth_may_connect(const auth_key_t *k, uint64_t wall_ms)
{
    return auth_is_live(k) && !(auth_is_invitation(k) && wall_ms >= k->invitation.ends_ms);
}

uint32_t auth_admin_count(const auth_t *a)
{
    uint32_t count = 0;
    for (const auth_key_t *k = a->keys; k; k = k->hh.next) count += auth_is_live(k) && auth_is_admin(k);
    return count;
}

/* ---- what a key may ---- */

static const struct {
    const char *op, *what;
} ADMINS[] = {{"activate", "activate versions"},
              {"rollback", "roll back"},
              {"resume", "end a hold"},
              {"forget", "forget adapters"},
              {"keys", "list keys"},
              {"key_add", "add keys"},
              {"key_revoke", "revoke keys"},
              {"invite", "invite"},
              {"drain", "drain workers"},
              {"key_revoke_entered", "revoke keys"},
              {"drain_cancel", "drain workers"}};
enum { ADMIN_COUNT = sizeof ADMINS / sizeof *ADMINS };

/* The error says which role is missing and which roles the key has, because the operator who reads it has
 * to grant one. */
static int need(const auth_key_t *k, const msg_t *m, auth_role_t role, const char *adapter,
                heddle_error_t *error)
{
    if (may(k, role, adapter)) return HEDDLE_OK;
    const char *name = "", *colon = role == AUTH_ADMIN ? "" : ":";
    const char *of = role == AUTH_ADMIN ? "" : adapter ? adapter : "ADAPTER";
    for (int i = 0; i < ROLE_COUNT; i++)
        if (ROLES[i].role == role) name = ROLES[i].name;
    /* What the message asks for, in the words of the command that sent it. */
    const char *wanted = m->type == MSG_QUERY && !strcmp(m->query.op, "reach")
                             ? "get the addresses of workers"
                         : m->type == MSG_QUERY   ? "pull"
                         : role == AUTH_PUBLISHER ? "publish"
                                                  : "be a worker";
    for (int i = 0; i < ADMIN_COUNT && m->type == MSG_QUERY; i++)
        if (!strcmp(m->query.op, ADMINS[i].op)) wanted = ADMINS[i].what;
    int rc = error_fail(error, HEDDLE_ERR_DENIED, "the key %s may not %s: it needs the role %s%s%s", k->name,
                        wanted, name, colon, of);
    error_where(error, adapter, 0, NULL, NULL);
    error_expected(error, "%s%s%s", name, colon, of);
    error_found(error, "%s", k->roles);
    error_hint(error,
               "`heddle keys add '%s' --role %s%s%.128s` gives it; or use another key (--key, HEDDLE_KEY)",
               k->public_key, name, colon, of);
    return rc;
}

void auth_write_add(const auth_key_t *k, const char *public_key, char ret_command[AUTH_COMMAND])
{
    size_t used, roles_at;
    bool invites = auth_is_invitation(k); /* its own key is never added: another invitation is made */
    text_printf(ret_command, AUTH_COMMAND, "heddle %s%s%s%s%s", invites ? "invite" : "keys add '",
                invites ? "" : public_key, invites ? "" : "'", k && !invites ? " --name " : "",
                k && !invites ? k->name : "");
    used = roles_at = strlen(ret_command);
    for (const char *at = k ? k->roles : ""; *at && used < AUTH_COMMAND - 1; at += strspn(at, ",")) {
        size_t n = strcspn(at, ",");
        text_printf(ret_command + used, AUTH_COMMAND - used, " --role %.*s", (int)n, at);
        used += strlen(ret_command + used);
        at += n;
    }
    bool is_whole = used > roles_at && used < AUTH_COMMAND - 1;
    if (!is_whole) text_printf(ret_command + roles_at, AUTH_COMMAND - roles_at, " --role ROLE");
}

/* All that an invitation may say: HELLO, and two questions. */
static int check_invitation(const auth_key_t *k, const msg_t *m, heddle_error_t *error)
{
    bool is_hello = m->type == MSG_HELLO && m->hello.role == ROLE_ADMIN;
    bool is_enter =
        m->type == MSG_QUERY && (!strcmp(m->query.op, "enter") || !strcmp(m->query.op, "invitation"));
    if (is_hello || is_enter || m->type == MSG_PING) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_DENIED, "the key %s is the invitation %s, and enters keys alone",
                        k->public_key, k->name);
    error_expected(error, "HELLO of an admin, or the questions enter and invitation");
    error_found(error, "%s", msg_name((int)m->type));
    error_hint(error, "give the whole join string as opts.join or HEDDLE_JOIN");
    return rc;
}

/* Each message is checked by itself, because a connection may name any adapter in each. */
int auth_check(const auth_key_t *k, const msg_t *m, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    if (auth_is_invitation(k)) return check_invitation(k, m, error);
    switch (m->type) {
    case MSG_HELLO: /* any key may read */
        if (m->hello.role == ROLE_WORKER) rc = need(k, m, AUTH_WORKER, NULL, error);
        if (m->hello.role == ROLE_PUBLISHER) rc = need(k, m, AUTH_PUBLISHER, NULL, error);
        return rc;
    case MSG_JOIN:
        /* It also restates versions that the worker has, which may belong to other adapters. */
        for (uint32_t i = 0; i < m->join.adapter_count && !rc; i++)
            rc = need(k, m, AUTH_WORKER, m->join.adapters[i].adapter, error);
        for (uint32_t i = 0; i < m->join.held_count && !rc; i++)
            rc = need(k, m, AUTH_WORKER, m->join.held[i].adapter, error);
        return rc;
    case MSG_OPEN: return need(k, m, AUTH_PUBLISHER, m->open.adapter, error);
    case MSG_PUBLISH: return need(k, m, AUTH_PUBLISHER, m->publish.adapter, error);
    case MSG_STAGED: return need(k, m, AUTH_WORKER, m->staged.adapter, error);
    case MSG_ACTIVE: return need(k, m, AUTH_WORKER, m->active.adapter, error);
    case MSG_NACK: return need(k, m, AUTH_WORKER, m->nack.adapter, error);
    case MSG_NEED_SOURCES: return need(k, m, AUTH_WORKER, m->need_sources.adapter, error);
    case MSG_VERIFIED: return need(k, m, AUTH_WORKER, m->verified.adapter, error);
    case MSG_QUERY:
        for (int i = 0; i < ADMIN_COUNT; i++)
            if (!strcmp(m->query.op, ADMINS[i].op)) return need(k, m, AUTH_ADMIN, NULL, error);
        if (!strcmp(m->query.op, "enter") || !strcmp(m->query.op, "invitation"))
            return error_fail(error, HEDDLE_ERR_DENIED, "the key %s is not an invitation", k->name);
        /* Of their adapters workers and publishers are named such addresses anyway. */
        if (!strcmp(m->query.op, "reach"))
            return may(k, AUTH_PUBLISHER, NULL) ? HEDDLE_OK : need(k, m, AUTH_WORKER, NULL, error);
        return strcmp(m->query.op, "pull") ? HEDDLE_OK : need(k, m, AUTH_WORKER, m->query.name, error);
    default: return HEDDLE_OK; /* of a session, which its token ties to the connection, or of no effect */
    }
}

/* ---- adding ---- */

static bool has_role(const auth_key_t *k, const char *role)
{
    size_t n = strlen(role);
    for (const char *at = k ? k->roles : ""; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && !strncmp(at, role, n)) return true;
    return false;
}

/* The roles as one text, each of them once: those that the live key `known` has (NULL: none), then those that
 * are asked for, in the order given. */
static int check_and_join_roles(const key_ask_t *ask, const auth_key_t *known, buf_t *out,
                                heddle_error_t *error)
{
    uint32_t count = known ? known->grant_count : 0;
    if (ask->role_count == 0 || ask->role_count > LIMIT_ROLES) {
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "a key has 1 to %u roles", LIMIT_ROLES);
        error_found(error, "%u", ask->role_count);
        return rc;
    }
    if (known) buf_printf(out, "%s", known->roles);
    for (uint32_t i = 0; i < ask->role_count; i++) {
        grant_t grant;
        int rc = grant_parse(ask->roles[i], &grant, error);
        if (rc) return rc;
        bool is_new = !has_role(known, ask->roles[i]);
        for (uint32_t k = 0; k < i; k++) is_new &= strcmp(ask->roles[k], ask->roles[i]) != 0;
        if (is_new) buf_printf(out, "%s%s", out->bytes ? "," : "", ask->roles[i]);
        count += is_new;
    }
    buf_text(out);
    if (count > LIMIT_ROLES) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "a key has at most %u roles, and %s would have %u",
                            LIMIT_ROLES, known->name, count);
        error_hint(error, "a role for any adapter (worker:*) stands for many, or use another key");
        return rc;
    }
    return out->failed ? error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the roles of a key")
                       : HEDDLE_OK;
}

static int refuse_conflict(const auth_key_t *k, const char *what, const char *hint, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_REQUEST_CONFLICT, "%s: %s has the roles %.400s", what, k->name,
                        k->roles);
    error_found(error, "%s", k->public_key);
    error_hint(error, "%s revoke it first: `heddle keys revoke %.128s`", hint, k->name);
    return rc;
}

/* When the key lost its last use: revoked, or of an invitation used up or ended; 0: it has not. */
static uint64_t over_ms(const auth_key_t *k, instant_t now)
{
    if (k->revoked_ms || !auth_is_invitation(k)) return k->revoked_ms;
    invitation_state_t state = invitation_state(&k->invitation, now.wall_ms);
    return state == INVITATION_ENDED ? k->invitation.ends_ms : state == INVITATION_USED_UP ? k->added_ms : 0;
}

/* Where the table is full, the key that was revoked first is dropped for the new one. */
static int make_room(const auth_t *a, instant_t now, outbox_t *out, heddle_error_t *error)
{
    if (HASH_COUNT(a->keys) < LIMIT_KEYS) return HEDDLE_OK;
    const auth_key_t *first = NULL;
    for (const auth_key_t *k = a->keys; k; k = k->hh.next) {
        /* Revoked admin keys are dropped last.  --admin-key may still name such a key, and adds it again
         * unless its row says that it was revoked. */
        if (!over_ms(k, now)) continue;
        bool is_admin = auth_is_admin(k), than_admin = first && auth_is_admin(first);
        bool is_sooner =
            !first || (is_admin == than_admin ? over_ms(k, now) < over_ms(first, now) : than_admin);
        if (is_sooner) first = k;
    }
    record_t *r = first ? outbox_record(out, RECORD_KEY_DROP, "", now) : NULL;
    if (!r)
        return error_fail(error, HEDDLE_ERR_LIMIT, "a broker knows at most %u keys, and all are live",
                          LIMIT_KEYS);
    r->public_key = first->public_key;
    return HEDDLE_OK;
}

/* NULL: the outbox is full, and *error says so. */
static record_t *record_key(outbox_t *out, const char *key, const char *name, const char *roles,
                            instant_t now, heddle_error_t *error)
{
    record_t *r = outbox_record(out, RECORD_KEY, "", now);
    if (!r) {
        error_fail(error, HEDDLE_ERR_LIMIT, "one transaction has no room for more records");
        return NULL;
    }
    r->public_key = outbox_text(out, key);
    r->name = outbox_text(out, name);
    r->roles = outbox_text(out, roles);
    return r;
}

/* "key-" and the first letters and digits of the key. */
static void name_of_key(const char *prefix, const char *public_key, char ret_name[HEDDLE_NAME_MAX + 1])
{
    text_printf(ret_name, HEDDLE_NAME_MAX + 1, "%s", prefix);
    size_t n = strlen(ret_name), end = n + 8;
    for (const char *c = public_key; *c && n < end; c++)
        if ((*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z'))
            ret_name[n++] = *c;
    ret_name[n] = 0;
}

int auth_decide_add(const auth_t *a, const key_ask_t *ask, instant_t now, outbox_t *out, bool *ret_changed,
                    heddle_error_t *error)
{
    char name[HEDDLE_NAME_MAX + 1];
    buf_t roles = {0};
    int rc = HEDDLE_OK;
    if (!is_key_text(ask->public_key)) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "\"%.80s\" is not a public key", ask->public_key);
        error_expected(error, "40 characters of Z85");
    }
    if (!rc && ask->name[0]) rc = name_check("key", ask->name, error);
    if (rc) return rc;
    const auth_key_t *known = auth_key(a, ask->public_key), *live = auth_is_live(known) ? known : NULL;
    if (auth_is_invitation(known))
        return error_fail(error, HEDDLE_ERR_REQUEST_CONFLICT, "this key is that of the invitation %s",
                          known->name);
    /* A key that was revoked is called what it was before, unless another one has taken the name. */
    bool is_free = known && !auth_is_live(auth_named(a, known->name));
    name_of_key("key-", ask->public_key, name);
    if (ask->name[0]) text_printf(name, HEDDLE_NAME_MAX + 1, "%s", ask->name);
    else if (is_free) text_printf(name, HEDDLE_NAME_MAX + 1, "%s", known->name);
    const auth_key_t *other = auth_named(a, name);
    rc = check_and_join_roles(ask, live, &roles, error);
    bool is_renamed = live && ask->name[0] && strcmp(live->name, ask->name) != 0;
    if (!rc && is_renamed)
        rc = refuse_conflict(live, "this key is there under another name",
                             "without opts.name the roles are added to it; for another name,", error);
    else if (!rc && !live && auth_is_live(other))
        rc = refuse_conflict(other, "another key has this name", "take another name, or", error);
    /* A key that has all these roles changes nothing, so that a command may be repeated. */
    bool is_change = !rc && !(live && !strcmp(live->roles, buf_text(&roles)));
    if (!rc) *ret_changed = is_change;
    if (is_change) {
        if (!known) rc = make_room(a, now, out, error);
        record_t *r =
            rc ? NULL
               : record_key(out, ask->public_key, live ? live->name : name, buf_text(&roles), now, error);
        if (!rc && !r) rc = HEDDLE_ERR_LIMIT;
        /* A key that is in keeps what it came by. */
        if (r && live) r->at_ms = live->added_ms;
        if (r) r->entered_by = live ? live->entered_by : ask->entered_by;
    }
    buf_fini(&roles);
    return rc;
}

/* ---- inviting ---- */

enum {
    INVITATION_NAME_MAX = HEDDLE_NAME_MAX - 5
}; /* the keys that it enters are called NAME-1 to NAME-1000 */

static bool has_entered(const auth_t *a, const char *invitation)
{
    for (const auth_key_t *k = a->keys; k; k = k->hh.next)
        if (!strcmp(k->entered_by, invitation)) return true;
    return false;
}

/* It is added as every other key, and the record gets the bounds. */
int auth_decide_invite(const auth_t *a, const key_ask_t *ask, uint64_t uses, uint64_t ttl_ms, instant_t now,
                       outbox_t *out, heddle_error_t *error)
{
    char name[HEDDLE_NAME_MAX + 1];
    bool changed;
    int rc = HEDDLE_OK;
    if (!uses || uses > LIMIT_INVITATION_USES || !ttl_ms) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "an invitation without %s", ttl_ms ? "uses" : "a time");
        error_expected(error, "1 to %u uses, and a time above 0", LIMIT_INVITATION_USES);
        error_found(error, "%llu uses, %llu ms", (unsigned long long)uses, (unsigned long long)ttl_ms);
        return rc;
    }
    for (uint32_t i = 0; i < ask->role_count; i++)
        if (!strcmp(ask->roles[i], "admin")) {
            rc = error_fail(error, HEDDLE_ERR_USAGE, "an invitation does not give the role admin");
            error_expected(error, "reader, publisher:ADAPTER or worker:ADAPTER");
            error_hint(error, "add an admin by its key: `heddle keys add KEY --role admin`");
            return rc;
        }
    if (strlen(ask->name) > INVITATION_NAME_MAX) {
        rc = error_fail(error, HEDDLE_ERR_BAD_NAME, "an invitation's name has at most %u characters",
                        INVITATION_NAME_MAX);
        error_found(error, "%zu", strlen(ask->name));
        return rc;
    }
    /* One that was forgotten is not made again while keys name it: they would be revoked with the new one. */
    if (auth_key(a, ask->public_key) || has_entered(a, ask->public_key))
        return error_fail(error, HEDDLE_ERR_REQUEST_CONFLICT, "this key is in the table");
    key_ask_t named = *ask;
    name_of_key("invite-", ask->public_key, name);
    if (!ask->name[0]) named.name = name;
    rc = auth_decide_add(a, &named, now, out, &changed, error);
    if (rc) return rc;
    record_t *r = &out->records[out->record_count - 1];
    r->name = outbox_text(out, named.name);
    r->uses = uses;
    r->ends_ms = now.wall_ms + ttl_ms;
    return HEDDLE_OK;
}

/* The name of the entered key tells who gave it its roles, and no other process chooses it. */
static int enter(const auth_t *a, const auth_key_t *invitation, const key_ask_t *asked, instant_t now,
                 outbox_t *out, bool *ret_changed, heddle_error_t *error)
{
    char name[HEDDLE_NAME_MAX + 1];
    key_ask_t ask = *asked;
    uint64_t used = invitation->invitation.used + 1;
    text_printf(name, sizeof name, "%s-%llu", invitation->name, (unsigned long long)used);
    bool is_free = !auth_key(a, ask.public_key) && !auth_is_live(auth_named(a, name));
    ask.name = is_free ? name : "";
    ask.entered_by = invitation->public_key;
    int rc = auth_decide_add(a, &ask, now, out, ret_changed, error);
    if (rc || !*ret_changed) return rc;
    record_t *r = record_key(out, invitation->public_key, invitation->name, invitation->roles, now, error);
    if (!r) return HEDDLE_ERR_LIMIT;
    r->at_ms = invitation->added_ms;
    r->uses = invitation->invitation.uses;
    r->used = used;
    r->ends_ms = invitation->invitation.ends_ms;
    return HEDDLE_OK;
}

int auth_decide_enter(auth_t *a, const auth_key_t *invitation, const char *public_key, instant_t now,
                      outbox_t *out, bool *ret_changed, uint64_t *ret_retry_ms, heddle_error_t *error)
{
    const char *roles[LIMIT_ROLES];
    const auth_key_t *known = auth_key(a, public_key);
    auth_key_t *own = NULL;
    HASH_FIND_STR(a->keys, invitation->public_key, own);
    char *text = own ? strdup(own->roles) : NULL;
    *ret_retry_ms = 0;
    if (!text) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the roles of a key");
    key_ask_t ask = {.public_key = public_key, .name = "", .roles = roles};
    /* The roles that the invitation gives, one by one; the texts are cut out of `text`. */
    uint32_t count = 0;
    char *rest = text;
    for (char *one; count < LIMIT_ROLES && (one = strsep(&rest, ","));) roles[count++] = one;
    ask.role_count = count;
    bool is_in = auth_is_live(known) && !auth_is_invitation(known);
    for (uint32_t i = 0; i < ask.role_count && is_in; i++) is_in = has_role(known, roles[i]);
    int rc = invitation_decide(&own->invitation, own->name, is_in, now, ret_retry_ms, error);
    /* A revocation is an admin's decision about this key, and a string that is still good does not undo
     * it. */
    if (!rc && known && known->revoked_ms && !auth_is_invitation(known)) {
        rc = error_fail(error, HEDDLE_ERR_DENIED, "the key %s was revoked, and no invitation enters it again",
                        known->name);
        error_found(error, "%s", public_key);
        error_hint(error, "`heddle keys add '%s' --role ROLE` admits it again", public_key);
    }
    if (!rc) rc = enter(a, own, &ask, now, out, ret_changed, error);
    free(text);
    return rc;
}

int auth_check_open(auth_t *a, const auth_key_t *invitation, instant_t now, uint64_t *ret_retry_ms,
                    heddle_error_t *error)
{
    auth_key_t *own = NULL; /* that may be written: the question counts */
    HASH_FIND_STR(a->keys, invitation->public_key, own);
    return invitation_decide(&own->invitation, own->name, false, now, ret_retry_ms, error);
}

/* ---- revoking ---- */

/* The hint names what was probably meant, of the keys that are of the kind. */
static void suggest(const auth_t *a, const char *key_or_name, bool (*is_meant)(const auth_key_t *k),
                    const char *list, heddle_error_t *error)
{
    const char **names = calloc(HASH_COUNT(a->keys) + 1, sizeof *names);
    size_t n = 0;
    for (const auth_key_t *k = a->keys; names && k; k = k->hh.next)
        if (is_meant(k)) names[n++] = k->name;
    option_unknown_name(key_or_name, names, list, error);
    free(names);
}

/* The last admin key cannot be revoked, because no key could be added after that.  A revoked key keeps its
 * row, so that its holder gets an error that says so. */
int auth_decide_revoke(const auth_t *a, const char *key_or_name, instant_t now, outbox_t *out,
                       const auth_key_t **ret_key, bool *ret_changed, heddle_error_t *error)
{
    const auth_key_t *k = auth_named(a, key_or_name);
    if (!k) {
        int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no key \"%.128s\"", key_or_name);
        suggest(a, key_or_name, auth_is_live, "`heddle keys list` shows them", error);
        return rc;
    }
    if (auth_is_live(k) && auth_is_admin(k) && auth_admin_count(a) == 1) {
        int rc = error_fail(error, HEDDLE_ERR_DENIED,
                            "%s is the last admin: without it no key could add another", k->name);
        error_hint(error, "add another admin first: `heddle keys add KEY --role admin`");
        return rc;
    }
    *ret_key = k;
    *ret_changed = auth_is_live(k);
    if (!*ret_changed) return HEDDLE_OK;
    record_t *r = record_key(out, k->public_key, k->name, k->roles, now, error);
    if (!r) return HEDDLE_ERR_LIMIT;
    r->at_ms = k->added_ms;
    r->uses = k->invitation.uses;
    r->used = k->invitation.used;
    r->ends_ms = k->invitation.ends_ms;
    r->entered_by = k->entered_by;
    r->revoked_ms = now.wall_ms ? now.wall_ms : 1;
    return HEDDLE_OK;
}

bool auth_is_of_invitation(const auth_key_t *k, const char *invitation)
{
    return !strcmp(k->public_key, invitation) || !strcmp(k->entered_by, invitation);
}

static int no_invitation(const auth_t *a, const auth_key_t *found, const char *key_or_name,
                         heddle_error_t *error)
{
    int rc;
    if (found) rc = error_fail(error, HEDDLE_ERR_USAGE, "%s is a key, and entered no others", found->name);
    else rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "there is no invitation \"%.128s\"", key_or_name);
    suggest(a, key_or_name, auth_is_invitation, "`heddle keys list` shows invitations", error);
    return rc;
}

int auth_decide_revoke_entered(const auth_t *a, const char *key_or_name, instant_t now, outbox_t *out,
                               const char **ret_key, uint32_t *ret_count, bool *ret_changed,
                               heddle_error_t *error)
{
    const auth_key_t *named = auth_named(a, key_or_name);
    const char *invitation = named ? named->public_key : key_or_name;
    uint32_t entered = 0, live = 0, admins = 0;
    if (named ? !auth_is_invitation(named) : !has_entered(a, invitation))
        return no_invitation(a, named, key_or_name, error);
    for (const auth_key_t *k = a->keys; k; k = k->hh.next) {
        if (!auth_is_live(k) || !auth_is_of_invitation(k, invitation)) continue;
        live++;
        entered += k != named;
        admins += auth_is_admin(k);
    }
    if (admins && admins == auth_admin_count(a)) {
        int rc = error_fail(error, HEDDLE_ERR_DENIED,
                            "this would revoke the last admin: without it no key could add another");
        error_found(error, "%u of %u admin keys", admins, admins);
        error_hint(error, "add another admin first: `heddle keys add KEY --role admin`");
        return rc;
    }
    *ret_key = invitation;
    *ret_count = entered;
    *ret_changed = live > 0;
    if (!live) return HEDDLE_OK;
    record_t *r = outbox_record(out, RECORD_KEYS_REVOKE, "", now);
    if (!r) return error_fail(error, HEDDLE_ERR_LIMIT, "one transaction has no room for more records");
    r->public_key = outbox_text(out, invitation);
    r->revoked_ms = now.wall_ms ? now.wall_ms : 1;
    return HEDDLE_OK;
}
