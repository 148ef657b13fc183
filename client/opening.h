/* SPDX-License-Identifier: Apache-2.0 */
/* client/opening.h: a lock: one handle of the process at a time is opened.  UCX finds its settings in the
 * environment meanwhile (transfer/load.c), and setenv frees the text that getenv has returned.  So
 * keys, addresses, the plugin and CZMQ's own settings are read between begin and end.
 * Any thread; the second one blocks until the first has ended. */
#ifndef CLIENT_OPENING_H
#define CLIENT_OPENING_H

#include "core/contexts.h"

void opening_begin(void);
void opening_end(void);
/* What a handle was opened with: fills what is NULL from the user's context (core/contexts.h), where the
 * broker is.  The caller ends *ret_contexts once the texts are not needed any more, whatever is returned. */
int opening_context(const char **broker, const char **broker_key, const char **key, contexts_t *ret_contexts,
                    heddle_error_t *error);

#endif
