/* SPDX-License-Identifier: Apache-2.0 */
/* broker/questions/answer_brokers.h (PURE): the answer to `brokers`: the broker that leads, its standbys, and
 * how their store is.  Loop thread; nothing blocks. */
#ifndef BROKER_ANSWER_BROKERS_H
#define BROKER_ANSWER_BROKERS_H

#include "broker/questions/answer.h"

/* As answer_page, and always one page. */
int answer_brokers(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error);

#endif
