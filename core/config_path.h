/* SPDX-License-Identifier: Apache-2.0 */
/* core/config_path.h: where this user's settings are, as the XDG directory specification has it.  Without
 * state; any thread; may read the password file. */
#ifndef CORE_CONFIG_PATH_H
#define CORE_CONFIG_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* $XDG_CONFIG_HOME/heddle/NAME, else ~/.config/heddle/NAME.  False: neither is a usable path, or it is too
 * long. */
bool config_path(const char *name, char *ret_path, size_t size);

#endif
