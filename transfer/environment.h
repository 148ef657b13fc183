/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/environment.h: variables that a library reads at one moment only, set for that moment, so that
 * neither the host process nor its children inherit them.
 *
 *   unset --environment_set--> set, locked --environment_restore--> unset
 *
 * A variable that the user has set stays as it is.  Threads: any; one at a time is between set and restore,
 * and the others wait.  Threads of the application that read or change the environment meanwhile are not
 * kept out: the public headers say so.  Without memory of its own. */
#ifndef TRANSFER_ENVIRONMENT_H
#define TRANSFER_ENVIRONMENT_H

#include <stddef.h>
#include <stdint.h>

typedef struct { const char *name, *value; } env_setting_t;

/* At most 32 rows.  Returns which of them were set, for environment_restore, which must follow. */
uint32_t environment_set(const env_setting_t *rows, size_t count);
void environment_restore(const env_setting_t *rows, size_t count, uint32_t set);

#endif
