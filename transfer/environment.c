/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/environment.h"

#include <pthread.h>
#include <stdlib.h>

/* Held from set to restore: two that overlap would each take away what the other has set. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Remembers which variables it set, so that restore takes away only those. */
uint32_t environment_set(const env_setting_t *rows, size_t count)
{
    pthread_mutex_lock(&lock);
    uint32_t set = 0;
    for (size_t i = 0; i < count; i++)
        if (!getenv(rows[i].name) && setenv(rows[i].name, rows[i].value, 0) == 0) set |= 1u << i;
    return set;
}

void environment_restore(const env_setting_t *rows, size_t count, uint32_t set)
{
    for (size_t i = 0; i < count; i++)
        if (set & 1u << i) unsetenv(rows[i].name);
    pthread_mutex_unlock(&lock);
}
