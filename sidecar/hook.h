/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/hook.h: runs a user's command with sh -c, in its own process group, with a deadline; keeps the
 * end of its output.
 *
 *    IDLE -> RUNNING (poll err_fd; hook_look after SIGCHLD and at the deadline) -> ended
 *
 * The command inherits nothing but standard error, which is read here, kept and copied to our log; its
 * standard output goes there too. It gets empty input, default signals, and HEDDLE_ADAPTER, VERSION,
 * DIGEST, TAG, PATH.
 *
 * The job owns the hook. One thread; nothing blocks, but hook_kill waits for the killed process. */
#ifndef SIDECAR_HOOK_H
#define SIDECAR_HOOK_H

#include <heddle/types.h>
#include <stdbool.h>
#include <sys/types.h>

#define HOOK_TAIL_BYTES 512u

typedef struct {
    pid_t pid;    /* and of its group; 0: IDLE */
    int err_fd;   /* -1: none */
    bool in_line; /* our log ends within a line of the command's output */
    uint64_t deadline_us;
    uint32_t timeout_ms;
    bool timed_out;
    char tail[HOOK_TAIL_BYTES + 1];
    size_t tail_bytes;
} hook_t;

/* Starts the command; its timeout begins now, however long the caller's turn has run.  `event`: the version
 * that it is about; `path`: its directory, "" where nothing is exported.  INTERNAL: it cannot be started. */
int hook_start(hook_t *h, const char *command, const heddle_event_t *event, const char *path,
               uint32_t timeout_ms, heddle_error_t *error);
/* Reads its output: the end is kept, and all of it is copied to the log. */
void hook_read(hook_t *h);
/* True when it has ended; *ret_reason is then "" for success, else what became of it, with the end of its
 * output: "ended with status 3: no room".  A command past its deadline is killed with its group.  The exit
 * status decides, even if it is looked at after the deadline. */
bool hook_look(hook_t *h, uint64_t now_us, char ret_reason[641]);
/* Kills and reaps. */
void hook_kill(hook_t *h);

#endif
