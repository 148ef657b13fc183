/* SPDX-License-Identifier: Apache-2.0 */
/* core/option_json.h: the words of options in an answer of the broker, for what a program shows of it.
 * Without state; any thread; nothing blocks. */
#ifndef CORE_OPTION_JSON_H
#define CORE_OPTION_JSON_H

#include <jansson.h>

/* option_words in every text about a failure, at any depth: members "hint", "why", "message", "reason". */
void option_json_words(json_t *value);

#endif
