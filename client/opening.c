/* SPDX-License-Identifier: Apache-2.0 */
#include "client/opening.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void opening_begin(void) { pthread_mutex_lock(&lock); }

void opening_end(void) { pthread_mutex_unlock(&lock); }
