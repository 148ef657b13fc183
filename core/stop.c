/* SPDX-License-Identifier: Apache-2.0 */
#include "core/stop.h"

static _Thread_local const stop_t *current;

void stop_begin(const stop_t *stop) { current = stop; }
void stop_end(void) { current = NULL; }

int stop_check(heddle_error_t *error) { return current ? current->check(current, error) : HEDDLE_OK; }
