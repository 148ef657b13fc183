/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/hook.h: a user's command: sh -c in a process group of its own, with a deadline,
 * its last words kept.
 *
 *   IDLE -> RUNNING (poll err_fd; hook_look after SIGCHLD and at the deadline) -> ended
 *
 * The command gets nothing of ours but standard error (its own is kept and passed on; its output
 * goes there too), an empty input, default signals, and HEDDLE_ADAPTER, VERSION, DIGEST, TAG, PATH.
 * One thread; nothing blocks. */
#ifndef SIDECAR_HOOK_H
#define SIDECAR_HOOK_H

#include <heddle/types.h>
#include <stdbool.h>
#include <sys/types.h>

#define HOOK_TAIL_BYTES 512u

typedef struct {
    pid_t pid;                    /* and of its group; 0: IDLE */
    int err_fd;                   /* -1: none */
    bool in_line;                 /* of what it says, in our log */
    uint64_t deadline_us;
    uint32_t timeout_ms;
    bool timed_out;
    char tail[HOOK_TAIL_BYTES + 1];
    size_t tail_bytes;
} hook_t;

/* Its time begins now, whenever the caller's turn began.  `event`: the version that it is about; `path`: its
 * directory, "" where nothing is exported.  INTERNAL when it cannot be started. */
int  hook_start(hook_t *h, const char *command, const heddle_event_t *event, const char *path,
                uint32_t timeout_ms, heddle_error_t *error);
/* What it said: kept and passed on. */
void hook_read(hook_t *h);
/* True when it has ended; then *ret_reason is "" for success, else what to tell, with the end of
 * what it said, however late it is looked at.  One that runs past its deadline is killed with its group. */
bool hook_look(hook_t *h, uint64_t now_us, char ret_reason[641]);
/* Kills and reaps. */
void hook_kill(hook_t *h);

#endif
