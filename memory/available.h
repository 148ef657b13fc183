/* SPDX-License-Identifier: Apache-2.0 */
/* memory/available.h: how much memory the machine has to give.  The kernel gives a memory file page after
 * page and refuses only when nothing is left, so the question must be asked before.  No state.  Any thread;
 * reads small files of the kernel. */
#ifndef MEMORY_AVAILABLE_H
#define MEMORY_AVAILABLE_H

#include <heddle/error.h>
#include <stddef.h>
#include <stdint.h>

/* OK where so many bytes are available, else NO_MEMORY with an error for people. */
int memory_available_check(size_t bytes, heddle_error_t *error);

/* Bytes that may be taken without waking the OOM killer: what the machine has available, and what is left to
 * this process's control group (version 2) and to each above it.  UINT64_MAX where nothing can be told.
 * `root` stands before /proc and /sys: "", or a test's directory. */
uint64_t memory_available(const char *root);

#endif
