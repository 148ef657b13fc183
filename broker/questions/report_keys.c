/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/json_parts.h"

#include "core/errors.h"
#include "core/limits.h"

#include <stdlib.h>
#include <string.h>

static json_t *roles_part(const auth_key_t *k)
{
    json_t *list = json_array();
    bool ok = list;
    for (const char *at = k->roles; ok && at;) {
        size_t n = strcspn(at, ",");
        ok = json_array_append_new(list, json_stringn(at, n)) == 0;
        at = at[n] ? at + n + 1 : NULL;
    }
    if (ok) return list;
    json_decref(list);
    return NULL;
}

static json_t *key_part(const auth_key_t *k, uint64_t sessions)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "name", k->name, "public_key", k->public_key,
                     "roles", roles_part(k), "added_at", part_time(k->added_ms), "revoked_at",
                     part_time(k->revoked_ms), "session_count", part_count(sessions));
}

/* The keys of sessions, one entry a session; and all keys, by name. */
typedef struct {
    const auth_key_t **sessions, **keys;
    size_t session_count, key_count;
} census_t;

static int by_name(const void *a, const void *b)
{
    const auth_key_t *x = *(const auth_key_t *const *)a, *y = *(const auth_key_t *const *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->public_key, y->public_key);
}

static bool take_census(const report_view_t *b, census_t *census)
{
    size_t most = b->members->token_count;
    *census = (census_t){.sessions = calloc(most + 1u, sizeof *census->sessions),
                         .keys = calloc(HASH_COUNT(b->auth->keys) + 1u, sizeof *census->keys)};
    if (!census->sessions || !census->keys) return false;
    for (size_t i = 0; i < most; i++) {
        const char *key = b->session_key(b->self, b->members->tokens[i]);
        if (*key) census->sessions[census->session_count++] = auth_key(b->auth, key);
    }
    for (const auth_key_t *k = b->auth->keys; k; k = k->hh.next) census->keys[census->key_count++] = k;
    qsort(census->keys, census->key_count, sizeof *census->keys, by_name);
    return true;
}

static uint64_t sessions_of(const census_t *census, const auth_key_t *k)
{
    uint64_t count = 0;
    for (size_t i = 0; i < census->session_count; i++) count += census->sessions[i] == k;
    return count;
}

int report_keys(const report_view_t *b, const msg_query_t *q, report_page_t *page,
                heddle_error_t *error)
{
    census_t census;
    rows_t rows;
    rows_init(&rows, q->limit, LIMIT_KEYS);
    bool ok = take_census(b, &census);
    size_t i = q->after;
    for (; ok && i < census.key_count; i++)
        if (!rows_add(&rows, key_part(census.keys[i], sessions_of(&census, census.keys[i])))) break;
    free(census.sessions);
    free(census.keys);
    page->more = rows.full;
    page->next = i;
    json_t *list = rows_end(&rows);
    page->body = part_body("keys", true, json_pack("{s:o}", "keys", list));
    if (ok && page->body) return HEDDLE_OK;
    json_decref(page->body);
    page->body = NULL;
    return part_no_memory(error);
}

int report_key(const auth_key_t *k, bool changed, uint64_t ended, json_t **ret_body, heddle_error_t *error)
{
    *ret_body = part_body("keys", true,
                          json_pack("{s:b, s:o, s:o}", "changed", (int)changed, "key", key_part(k, 0),
                                    "session_count", part_count(ended)));
    return *ret_body ? HEDDLE_OK : part_no_memory(error);
}
