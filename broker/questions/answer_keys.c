/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/answer_keys.h"

#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

/* The public key alone is shown.  No secret key is ever in the broker's registry. */
static json_t *key_json(const auth_t *a, const auth_key_t *k, uint64_t sessions, instant_t now)
{
    /* By its name, while the table has it. */
    const auth_key_t *by = k->entered_by[0] ? auth_key(a, k->entered_by) : NULL;
    const char *entered_by = by ? by->name : k->entered_by[0] ? k->entered_by : NULL;
    const invitation_t *i = &k->invitation;
    const char *state = k->revoked_ms ? "revoked" : invitation_state_name(invitation_state(i, now.wall_ms));
    json_t *invitation =
        auth_is_invitation(k)
            ? json_pack("{s:s, s:o, s:o, s:o}", "state", state, "use_count", cell_count(i->uses),
                        "used_count", cell_count(i->used), "ends_at", cell_time(i->ends_ms))
            : json_null();
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:s?}", "name", k->name, "public_key",
                     k->public_key, "roles", cell_words(k->roles), "added_at", cell_time(k->added_ms),
                     "revoked_at", cell_time(k->revoked_ms), "session_count", cell_count(sessions),
                     "invitation", invitation, "entered_by", entered_by);
}

static int by_name(const void *a, const void *b)
{
    const auth_key_t *x = *(const auth_key_t *const *)a, *y = *(const auth_key_t *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->public_key, y->public_key);
}

int answer_keys(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error)
{
    /* The keys of sessions, one entry a session, are looked up once; and all keys are sorted by name, because
     * a page begins after a number of them. */
    size_t most = b->members->token_count, session_count = 0, key_count = 0, i = q->after;
    const auth_key_t **sessions = calloc(most + 1u, sizeof *sessions);
    const auth_key_t **keys = calloc(HASH_COUNT(b->auth->keys) + 1u, sizeof *keys);
    bool ok = sessions && keys;
    for (size_t n = 0; ok && n < most; n++) {
        const char *key = b->session_key(b->self, b->members->tokens[n]);
        if (*key) sessions[session_count++] = auth_key(b->auth, key);
    }
    for (const auth_key_t *k = b->auth->keys; ok && k; k = k->hh.next) keys[key_count++] = k;
    if (ok) qsort(keys, key_count, sizeof *keys, by_name);

    rows_t rows;
    rows_init(&rows, q->limit, LIMIT_KEYS);
    for (; ok && i < key_count; i++) {
        uint64_t count = 0;
        for (size_t n = 0; n < session_count; n++) count += sessions[n] == keys[i];
        if (!rows_add(&rows, key_json(b->auth, keys[i], count, b->now))) break;
    }
    free(sessions);
    free(keys);
    page->more = rows.full;
    page->next = i;
    json_t *list = rows_end(&rows);
    page->body = cell_body("keys", true, json_pack("{s:o}", "keys", list));
    if (ok && page->body) return HEDDLE_OK;
    json_decref(page->body);
    page->body = NULL;
    return cell_no_memory(error);
}

int answer_key(const auth_t *a, const auth_key_t *k, const key_change_t *change, instant_t now,
               json_t **ret_body, heddle_error_t *error)
{
    json_t *added = !k || k->revoked_ms ? json_array() : cell_words(k->roles);
    for (uint32_t i = 0; i < change->kept_roles; i++) json_array_remove(added, 0);
    json_t *entered = change->is_of_entered ? cell_count(change->entered_count) : json_null();
    *ret_body =
        cell_body("keys", true,
                  json_pack("{s:b, s:o, s:o, s:o, s:o}", "changed", (int)change->has_changed, "key",
                            k ? key_json(a, k, 0, now) : json_null(), "added_roles", added, "session_count",
                            cell_count(change->ended_sessions), "entered_count", entered));
    return *ret_body ? HEDDLE_OK : cell_no_memory(error);
}

int answer_forget(const adapter_row_t *a, bool is_trial, json_t **ret_body, heddle_error_t *error)
{
    *ret_body = cell_body("forget", true,
                          json_pack("{s:s, s:o, s:b}", "adapter", a->name, "version_count",
                                    cell_count(a->version_count), "dry_run", (int)is_trial));
    return *ret_body ? HEDDLE_OK : cell_no_memory(error);
}
