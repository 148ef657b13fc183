/* SPDX-License-Identifier: Apache-2.0 */
/* proto/pages.h: one answer of the broker that came in several pages, put together.  Without state; the
 * caller owns the JSON.  Any thread, one at a time; nothing blocks. */
#ifndef PROTO_PAGES_H
#define PROTO_PAGES_H

#include <heddle/error.h>
#include <jansson.h>
#include <stdbool.h>

/* Adds a later page to the first: the lists `adapters`, `versions`, `workers` and `events` grow,
 * every other field takes the later value.  `inside`: the pages are of one version, and the list
 * that grows is that of its workers.  PROTOCOL when they do not fit together, NO_MEMORY; *into is
 * then to be thrown away. */
int pages_append(json_t *into, json_t *page, bool inside, heddle_error_t *error);

#endif
