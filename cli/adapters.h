/* SPDX-License-Identifier: Apache-2.0 */
/* cli/adapters.h: the table of adapters, which `heddle status` shows too. Main thread. */
#ifndef CLI_ADAPTERS_H
#define CLI_ADAPTERS_H
#include "cli/cli.h"
void adapters_render(const common_t *c, json_t *answer);
#endif
