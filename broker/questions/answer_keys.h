/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/answer_keys.h (PURE): the page of keys, what became of a key, and a forgotten
 * adapter.  See answer.h. */
#ifndef BROKER_ANSWER_KEYS_H
#define BROKER_ANSWER_KEYS_H

#include "broker/questions/cell.h"

int answer_keys(const answer_view_t *b, const msg_query_t *q, answer_page_t *ret_page, heddle_error_t *error);
typedef struct {
    bool has_changed;
    uint32_t kept_roles; /* of its roles so many, the first ones, it had before */
    uint64_t ended_sessions;
    bool is_of_entered;     /* of an invitation with the keys that it entered */
    uint32_t entered_count; /* of which so many were live */
} key_change_t;
/* What became of a key; `key` NULL: the table has forgotten the invitation.  On OK the caller owns *ret_body.
 * NO_MEMORY. */
int answer_key(const auth_t *a, const auth_key_t *key, const key_change_t *change, instant_t now,
               json_t **ret_body, heddle_error_t *error);
/* An adapter is forgotten, or (is_trial) would be.  On OK the caller owns *ret_body.  NO_MEMORY. */
int answer_forget(const adapter_row_t *a, bool is_trial, json_t **ret_body, heddle_error_t *error);

#endif
