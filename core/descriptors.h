/* SPDX-License-Identifier: Apache-2.0 */
/* core/descriptors.h: how many descriptors this process may have.  [any thread]; nothing blocks. */
#ifndef CORE_DESCRIPTORS_H
#define CORE_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

/* For programs, not for a library inside somebody's process: the soft limit becomes the hard one. */
void descriptors_raise_limit(void);
/* The hard limit, and the soft one set below it (never above). */
uint64_t descriptors_limit(void);
void descriptors_set_limit(uint64_t count);
/* Can `count` more be had now? At most 64 are tried. */
bool descriptors_left(int count);

#endif
