/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/keys.h: keys and roles: who may do what.
 *
 * A key is a CURVE pair in a file; a broker that runs with keys (the default) lets in those in its table
 * alone, and does for each what its roles say:
 *
 *   admin                everything
 *   publisher:ADAPTER    write versions of it; read
 *   worker:ADAPTER       receive versions of it; read          (ADAPTER may be * in both)
 *   reader               read
 *
 * On one host nothing has to be done: the first start of a broker makes the user's keys and admits them.
 *
 * Threads: the file calls on any; the others as the admin handle. */
#ifndef HEDDLE_KEYS_H
#define HEDDLE_KEYS_H

#include <heddle/admin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 40 characters of Z85 and the NUL.  A key that Heddle makes has none of those that a shell reads. */
#define HEDDLE_KEY_TEXT 41

/* Makes a pair in a new file that only this user can read, and writes the public key.  `path` NULL:
 * client.key of the user's key ring ($HEDDLE_KEYS, else ~/.config/heddle/keys), which is made.  ret_path
 * (may be NULL): where it is; free with heddle_free.  USAGE (there is no such place), DATA_DIR (it is there
 * already, or cannot be written), NO_MEMORY. */
HEDDLE_API int heddle_key_generate(const char *path, char ret_public[HEDDLE_KEY_TEXT], char **ret_path);
/* The public key of a file that is there; `path` and ret_path as above.  USAGE, NOT_FOUND, DATA_DIR,
 * NO_MEMORY. */
HEDDLE_API int heddle_key_public(const char *path, char ret_public[HEDDLE_KEY_TEXT], char **ret_path);
/* Whether a client could connect with these, as they are given to heddle_admin_open: each may be NULL, which
 * is then not checked.  Files are read, and no broker is asked: it may be away.  Any thread.  USAGE (also: a
 * join string, or a secret key), NOT_FOUND, DATA_DIR. */
HEDDLE_API int heddle_broker_check(const char *broker, const char *broker_key, const char *key);

/* -> {"keys":[{"name","public_key","roles":[...],"added_at","revoked_at","session_count","invitation",
 * "entered_by"}]}, by name.  "invitation": null, or {"state","use_count","used_count","ends_at"}.
 * "entered_by": null, or the name of the invitation that entered the key, or its public key where it is
 * known no more. */
HEDDLE_API int heddle_admin_keys(heddle_admin_t *a, char **ret_json);
/* `key`: a public key, or the path of a file with one.  `roles`: NULL-terminated, at least one.  `name`:
 * NULL for one made from the key.  A key that is there gets the roles that it lacks, keeps the others, and
 * its sessions go on.  -> {"changed","key":{...},"added_roles":[...]}; changed false: it lacked none.
 * USAGE, BAD_NAME, NOT_FOUND (no such file), REQUEST_CONFLICT (there under another name, or the name is
 * taken), LIMIT, DENIED. */
HEDDLE_API int heddle_admin_key_add(heddle_admin_t *a, const char *key, const char *name,
                                    const char *const *roles, char **ret_json);
/* `key`: a name, a public key, or the path of a file with one.  Its sessions end at once.
 * -> {"changed","key":{...},"session_count"}.  NOT_FOUND, DENIED (also: no admin key would be left). */
HEDDLE_API int heddle_admin_key_revoke(heddle_admin_t *a, const char *key, char **ret_json);

/* Revokes an invitation and every key that it entered, all or none, and ends their sessions.  `invitation`:
 * its name, or its public key.  A key that was live when it gave it more roles is not one of them.
 * -> {"changed","key":{...},"session_count","entered_count"}: "key" is the invitation, null where it is known
 * no more, "entered_count" how many live keys it had entered.  NOT_FOUND, USAGE (a key that does not invite),
 * DENIED (also: no admin key would be left). */
HEDDLE_API int heddle_admin_key_revoke_entered(heddle_admin_t *a, const char *invitation, char **ret_json);

/* An invitation: a key that has others entered, and whose secret one string carries to other hosts
 * (heddle_worker_opts_t.join).  It is listed and revoked as all keys are. */
#define HEDDLE_INVITE_USES_MAX 1000
typedef struct heddle_invite_opts {
    size_t size;
    const char *const *roles; /* that the entered keys get, NULL-terminated, at least one; never "admin" */
    const char *name;         /* the keys are NAME-1, NAME-2...; NULL: made from its key */
    uint32_t uses;            /* how many keys it enters, up to HEDDLE_INVITE_USES_MAX; 0: 1 */
    uint32_t ttl_ms;          /* how long it is good; 0: an hour */
    const char *address; /* where other hosts reach the broker, "EP[,EP]"; NULL: as it was reached here, or
                          * where it listens */
} heddle_invite_opts_t;
/* -> {"join":"heddle-join-1:...","addresses":[...],"loopback","key":{...}}.  The string is made here, and no
 * other process has its secret.  USAGE (also: the broker listens on all addresses, and `address` names none),
 * BAD_NAME, REQUEST_CONFLICT (the name is taken), LIMIT, DENIED. */
HEDDLE_API int heddle_admin_invite(heddle_admin_t *a, const heddle_invite_opts_t *opts, char **ret_json);
/* Whether a string of heddle_admin_invite ("@FILE": in a file) would still enter a key; no use of it is
 * counted.  -> {"key":{...}}: the invitation, as heddle_admin_keys has it.  Any thread; blocks at most
 * timeout_ms (0: 5000).  USAGE, NOT_FOUND, DATA_DIR (the string), DENIED (it ended, is used up, or was
 * revoked), UNAVAILABLE. */
HEDDLE_API int heddle_join_check(const char *join, uint32_t timeout_ms, char **ret_json);
/* Which broker such a string names; none is asked.  -> {"broker":"EP[,EP]","broker_key":"..."}, and nothing
 * of the secret.  Any thread.  USAGE, NOT_FOUND, DATA_DIR (the string), NO_MEMORY. */
HEDDLE_API int heddle_join_read(const char *join, char **ret_json);

#ifdef __cplusplus
}
#endif
#endif
