/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/answer_versions.h (PURE): the pages of versions, and of one version.  See answer.h. */
#ifndef BROKER_ANSWER_VERSIONS_H
#define BROKER_ANSWER_VERSIONS_H

#include "broker/questions/cell.h"

int answer_versions(const answer_view_t *b, const msg_query_t *q, answer_page_t *ret_page,
                    heddle_error_t *error);
/* What is known of a version that is about to be fetched.  On OK the caller owns *ret_body.  NO_MEMORY. */
int answer_pull(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v, json_t **ret_body);

#endif
