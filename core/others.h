/* SPDX-License-Identifier: Apache-2.0 */
/* core/others.h: who else may change what we rely on.  Any thread; one system call. */
#ifndef CORE_OTHERS_H
#define CORE_OTHERS_H

/* A warning in the log, under `id`, where `path` (a directory, said to hold `what`) belongs to somebody who
 * is neither this user nor root (who is not told of that), or can be written by its group or by everybody. */
void others_warn(const char *id, const char *path, const char *what);

#endif
