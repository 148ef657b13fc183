/* SPDX-License-Identifier: Apache-2.0 */
#include "client/opening.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void opening_begin(void) { pthread_mutex_lock(&lock); }

void opening_end(void) { pthread_mutex_unlock(&lock); }

int opening_context(const char **broker, const char **broker_key, const char **key, contexts_t *ret_contexts,
                    heddle_error_t *error)
{
    context_t values = {.broker = *broker, .broker_key = *broker_key, .key = *key};
    opening_begin();
    int rc = contexts_fill(NULL, &values, ret_contexts, error);
    opening_end();
    *broker = values.broker;
    *broker_key = values.broker_key;
    *key = values.key;
    return rc;
}
