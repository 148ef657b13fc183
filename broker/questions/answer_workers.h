/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/answer_workers.h (PURE): the page of workers, of which a row has a subscription for each
 * adapter.  See answer.h. */
#ifndef BROKER_ANSWER_WORKERS_H
#define BROKER_ANSWER_WORKERS_H

#include "broker/questions/cell.h"

int answer_workers(const answer_view_t *b, const msg_query_t *q, answer_page_t *ret_page,
                   heddle_error_t *error);

#endif
