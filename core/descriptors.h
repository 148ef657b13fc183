/* SPDX-License-Identifier: Apache-2.0 */
/* core/descriptors.h: the limit of open file descriptors of this process. The limit is process-wide; any
 * thread; nothing blocks. */
#ifndef CORE_DESCRIPTORS_H
#define CORE_DESCRIPTORS_H

#include <stdint.h>

/* Raises the soft limit to the hard one.  For programs only: a library must not change limits of its host. */
void descriptors_raise_limit(void);
/* Returns the hard limit; sets the soft one, at most to the hard one. */
uint64_t descriptors_limit(void);
void descriptors_set_limit(uint64_t count);
/* How many more descriptors can be opened now, counted up to `most`, which is at most 64.  It opens and
 * closes them. */
int descriptors_count(int most);

#endif
