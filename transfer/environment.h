/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/environment.h: variables that a library reads at one moment only, set for that moment, so that neither the host
 * process nor its children inherit them.  A variable that is set already stays as it is: the user's word.
 * Not for use beside threads that change the environment. */
#ifndef TRANSFER_ENVIRONMENT_H
#define TRANSFER_ENVIRONMENT_H

#include <stddef.h>
#include <stdint.h>

typedef struct { const char *name, *value; } env_setting_t;

/* At most 32 rows.  Returns which of them were set. */
uint32_t environment_set(const env_setting_t *rows, size_t count);
void environment_restore(const env_setting_t *rows, size_t count, uint32_t set);

#endif
