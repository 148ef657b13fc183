/* SPDX-License-Identifier: Apache-2.0 */
/* transfer/memory.h: how much memory may be taken without waking the OOM killer.  fallocate on a memfd takes
 * page after page and is refused only when nothing is left, so the question must be asked before.  Without
 * state; any thread; reads files of the kernel. */
#ifndef TRANSFER_MEMORY_H
#define TRANSFER_MEMORY_H

#include <stdint.h>

/* Bytes: what the machine has available, and what is left to this process's control group (version 2) and to
 * each above it.  UINT64_MAX where nothing can be told.  `root` stands before /proc and /sys: "", or a test's
 * directory.  Reads small files of the kernel. */
uint64_t memory_available(const char *root);

#endif
