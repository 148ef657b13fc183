/* SPDX-License-Identifier: Apache-2.0 */
/* heddle_join_check: an invitation is asked about by itself, over a connection that its own key opened.
 * heddle_join_read: the broker that it names. */
#include <heddle/keys.h>

#include "client/query.h"
#include "core/errors.h"
#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 5000 };

/* A broker does not let in a key that it does not know, or that is not good any more: of an invitation that
 * has ended or was revoked, or of another broker. */
static int explain(int rc, const join_string_t *string, heddle_error_t *error)
{
    if (rc != HEDDLE_ERR_DENIED || !strstr(error->message, "does not admit")) return rc;
    rc = error_fail(
        error, rc,
        "the broker at %.200s refuses this invitation: it has ended, was revoked, or is not its own",
        string->endpoints);
    error_expected(error, "an invitation that `heddle keys list` shows there as open");
    error_hint(error, "`heddle invite` on the broker's host makes another one");
    return rc;
}

static int check(const char *join, uint32_t timeout_ms, json_t **ret_body, heddle_error_t *error)
{
    join_string_t string = {0};
    query_t *query = NULL;
    credentials_t keys = {.join = &string, .makes_no_file = true};
    int rc = join_string_take(join, &string, error);
    if (!rc) rc = query_open(string.endpoints, &keys, timeout_ms, &query, error);
    if (!rc) rc = query_ask(query, &(msg_query_t){.op = "invitation"}, ret_body, error);
    if (rc) rc = explain(rc, &string, error);
    query_close(&query);
    explicit_bzero(&string, sizeof string);
    return rc;
}

int heddle_join_check(const char *join, uint32_t timeout_ms, char **ret_json)
{
    heddle_error_t error;
    json_t *body = NULL;
    if (!join || !ret_json) {
        error_fail(&error, HEDDLE_ERR_USAGE, "a join string and a place for the answer are needed");
        return error_publish(&error);
    }
    int rc = check(join, timeout_ms ? timeout_ms : TIMEOUT_MS, &body, &error);
    char *text = rc ? NULL : json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(body);
    if (!rc && !text) rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the answer");
    if (rc) return error_publish(&error);
    *ret_json = text;
    return HEDDLE_OK;
}

int heddle_join_read(const char *join, char **ret_json)
{
    heddle_error_t error;
    join_string_t string = {0};
    char *text = NULL;
    int rc = HEDDLE_OK;
    if (!join || !ret_json)
        rc = error_fail(&error, HEDDLE_ERR_USAGE, "a join string and a place for the answer are needed");
    if (!rc) rc = join_string_read(join, &string, &error);
    json_t *body =
        rc ? NULL
           : json_pack("{s:o, s:s}", "broker", utf8_json(string.endpoints), "broker_key", string.broker_key);
    if (body) text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    explicit_bzero(&string, sizeof string);
    if (!rc && !text) rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the answer");
    if (rc) return error_publish(&error);
    *ret_json = text;
    return HEDDLE_OK;
}
