/* SPDX-License-Identifier: Apache-2.0 */
/* broker/keys/auth.h (PURE): the table of keys, and what each may do.
 *
 *   unknown --add--> live --revoke--> revoked --add--> live
 *
 * A key's roles only grow while it lives: what a session was let do at its beginning, it may do to its
 * end or to the revocation. Revoked keys are remembered until LIMIT_KEYS need the place; forgotten is
 * as good as revoked.  A key may be an invitation (broker/keys/invitation.h).  It has roles to give and none
 * itself.  It enters other keys that were not live before, and these name it. decide makes records for the
 * outbox, apply takes them in, also those of the store at start.  One thread. */
#ifndef BROKER_AUTH_H
#define BROKER_AUTH_H

#include "broker/keys/invitation.h"
#include <heddle/keys.h>
#include <uthash.h>

typedef enum { AUTH_ADMIN = 1, AUTH_READER, AUTH_PUBLISHER, AUTH_WORKER } auth_role_t;
/* adapter: "*" any; "" where the role has none */
typedef struct {
    auth_role_t role;
    char adapter[HEDDLE_NAME_MAX + 1];
} grant_t;

typedef struct auth_key {
    char public_key[HEDDLE_KEY_TEXT], name[HEDDLE_NAME_MAX + 1];
    char *roles; /* as stored: comma-separated */
    grant_t *grants;
    uint32_t grant_count;
    uint64_t added_ms, revoked_ms;    /* wall clock; revoked_ms 0: live */
    invitation_t invitation;          /* uses 0: it is none */
    char entered_by[HEDDLE_KEY_TEXT]; /* public key of the invitation that entered it; "": none did */
    bool unfit;                       /* memory ran out while it was added */
    UT_hash_handle hh;
} auth_key_t;
typedef struct {
    auth_key_t *keys;
} auth_t;

void auth_fini(auth_t *a);
/* KEY, KEY_DROP, KEYS_REVOKE.  NO_MEMORY · INTERNAL: a row that no decision made. */
int auth_apply(auth_t *a, const record_t *record);
/* Live or revoked; NULL: unknown. */
const auth_key_t *auth_key(const auth_t *a, const char *public_key);
/* By public key, else the live one of that name, else the one revoked last. */
const auth_key_t *auth_named(const auth_t *a, const char *key_or_name);
static inline bool auth_is_live(const auth_key_t *k) { return k && !k->revoked_ms; }
static inline bool auth_is_invitation(const auth_key_t *k) { return k && k->invitation.uses; }
/* The CURVE handshake admits it: it is live, and no invitation whose time is over.  One that is used up may
 * connect until then, and is answered so. */
bool auth_may_connect(const auth_key_t *k, uint64_t wall_ms);
bool auth_is_admin(const auth_key_t *k);
/* It may be a worker or a publisher of this adapter, and so is named the addresses of its workers. */
bool auth_is_member(const auth_key_t *k, const char *adapter);
/* Live ones with the role admin. */
uint32_t auth_admin_count(const auth_t *a);

/* The command that admits the key, with the name and the roles that it had; k NULL: they are not known. */
#define AUTH_COMMAND 220u
void auth_write_add(const auth_key_t *k, const char *public_key, char ret_command[AUTH_COMMAND]);

/* May this live key send this message?  DENIED with what it would need. */
int auth_check(const auth_key_t *key, const msg_t *m, heddle_error_t *error);

/* "worker:policy".  USAGE, BAD_NAME. */
int grant_parse(const char *text, grant_t *ret_grant, heddle_error_t *error);

/* name "": what a revoked key was called, where no other live key is called that; else made from the key */
typedef struct {
    const char *public_key, *name;
    const char **roles;
    uint32_t role_count;
    const char *entered_by; /* of a key that is not live; NULL: none */
} key_ask_t;
/* A live key keeps the roles that it has, and gets those of `ask` that it lacks.  *ret_changed false: it
 * lacks none.  USAGE, BAD_NAME, LIMIT · REQUEST_CONFLICT: live under another name, or the name is another
 * live key's. */
int auth_decide_add(const auth_t *a, const key_ask_t *ask, instant_t now, outbox_t *out, bool *ret_changed,
                    heddle_error_t *error);
/* A new key that is an invitation: it gives the roles of `ask`, never admin, to `uses` keys within `ttl_ms`.
 * USAGE, BAD_NAME, LIMIT · REQUEST_CONFLICT: the key or the name is there. */
int auth_decide_invite(const auth_t *a, const key_ask_t *ask, uint64_t uses, uint64_t ttl_ms, instant_t now,
                       outbox_t *out, heddle_error_t *error);
/* The key gets the roles that it lacks of the invitation, which is one use of it; *ret_changed false: it
 * lacks none, and no use is counted.  UNAVAILABLE: again in *ret_retry_ms · DENIED: used up, ended, or the
 * key was revoked · USAGE, LIMIT. */
int auth_decide_enter(auth_t *a, const auth_key_t *invitation, const char *public_key, instant_t now,
                      outbox_t *out, bool *ret_changed, uint64_t *ret_retry_ms, heddle_error_t *error);
/* Whether the invitation would enter a key that is not in yet; no use of it is counted.  UNAVAILABLE: again
 * in *ret_retry_ms · DENIED: used up or ended. */
int auth_check_open(auth_t *a, const auth_key_t *invitation, instant_t now, uint64_t *ret_retry_ms,
                    heddle_error_t *error);
/* *ret_changed false: it was revoked before.  NOT_FOUND · DENIED: the last admin. */
int auth_decide_revoke(const auth_t *a, const char *key_or_name, instant_t now, outbox_t *out,
                       const auth_key_t **ret_key, bool *ret_changed, heddle_error_t *error);
/* An invitation is revoked, and all live keys that it entered, by one record.  The table may have forgotten
 * the invitation itself: then its public key names it.  *ret_key is that public key, *ret_count how many live
 * keys it entered; *ret_changed false: all were revoked before.  NOT_FOUND · USAGE: a key that is no
 * invitation · DENIED: no admin would be left. */
int auth_decide_revoke_entered(const auth_t *a, const char *key_or_name, instant_t now, outbox_t *out,
                               const char **ret_key, uint32_t *ret_count, bool *ret_changed,
                               heddle_error_t *error);
/* The key is that of the invitation, or was entered by it. */
bool auth_is_of_invitation(const auth_key_t *k, const char *invitation);

#endif
