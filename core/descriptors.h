/* SPDX-License-Identifier: Apache-2.0 */
/* core/descriptors.h: the limit of open file descriptors of this process. The limit is process-wide; any
 * thread; nothing blocks. */
#ifndef CORE_DESCRIPTORS_H
#define CORE_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

/* Raises the soft limit to the hard one.  For programs only: a library must not change limits of its host. */
void descriptors_raise_limit(void);
/* Returns the hard limit; sets the soft one, at most to the hard one. */
uint64_t descriptors_limit(void);
void descriptors_set_limit(uint64_t count);
/* Whether `count` more descriptors can be opened now.  It opens and closes them, at most 64. */
bool descriptors_left(int count);

#endif
