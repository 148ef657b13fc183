/* SPDX-License-Identifier: Apache-2.0 */
/* client/report.h: one answer of the broker that came in several pages, put together.  Without state; the
 * caller owns the JSON.  Any thread, one at a time; nothing blocks. */
#ifndef CLIENT_REPORT_H
#define CLIENT_REPORT_H

#include <heddle/error.h>
#include <jansson.h>
#include <stdbool.h>

/* Adds a later page to the first: the lists `adapters`, `versions`, `workers` and `events` grow,
 * every other field takes the later value.  `inside`: the pages are of one version, and the list
 * that grows is that of its workers.  PROTOCOL when they do not fit together, NO_MEMORY; *into is
 * then to be thrown away. */
int report_merge(json_t *into, json_t *page, bool inside, heddle_error_t *error);
/* The "error" object of a negative answer, as an error of this code. */
void report_error(const json_t *body, int code, heddle_error_t *ret_error);

#endif
