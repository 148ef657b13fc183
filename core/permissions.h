/* SPDX-License-Identifier: Apache-2.0 */
/* core/permissions.h: warns about directories that other users can change.  Without state; any thread; one
 * system call. */
#ifndef CORE_PERMISSIONS_H
#define CORE_PERMISSIONS_H

/* Logs a warning under `id` if another user can change `path`, a directory that holds `what`: it belongs to a
 * user other than this one and root, or its mode lets its group or all users write.  For root, foreign
 * ownership is normal and not reported. */
void permissions_warn(const char *id, const char *path, const char *what);

#endif
