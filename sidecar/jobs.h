/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/jobs.h: what has to be done about a version, in order for each adapter.
 *
 *    ARRIVED  export, on-stage, then staged() and its line, or reject()
 *    COMMIT   directory, on-activate, link, then activate() or reject()
 *    VERIFY   digest of the exported directory, verified(); for the active version it is read
 *             through the link; one that is missing or differs is then written again from memory
 *    FAILED   a command that still stages it is killed; the directory is removed
 *    ACTIVE   the link follows; old directories are removed
 *    RETIRED  old directories are removed
 *
 * A COMMIT becomes void when a later decision takes it back or the lease lapses: then its command is not
 * started and the link is not moved. If activate() refuses a version that was linked, the link moves back.
 * So the link names the version that is served, except between the move and the end of activate().
 *
 *    job:  waiting (an earlier job of its adapter is there) -> running (a command) -> done, freed
 *
 * A command runs beside everything else: other adapters, heartbeats and fetches go on. The sidecar's main
 * thread only; the caller owns the jobs_t and everything that it points to. */
#ifndef SIDECAR_JOBS_H
#define SIDECAR_JOBS_H

#include "core/limits.h"
#include "sidecar/export.h"
#include "sidecar/hook.h"
#include "sidecar/fingerprint.h"

#include <poll.h>

typedef struct job {
    struct job *next;
    heddle_event_t event;
    hook_t hook;  /* pid 0: no command is running */
    bool is_void; /* a COMMIT that must not be carried out any more */
} job_t;

/* The directory of an adapter that was last known to be right. */
typedef struct {
    char adapter[HEDDLE_NAME_MAX + 1];
    noted_t noted;
} known_dir_t;

typedef struct {
    heddle_worker_t *worker;
    const char *name; /* of the worker, for what is printed */
    exports_t exports;
    const char *on_stage, *on_activate; /* NULL: none */
    uint32_t hook_timeout_ms;
    job_t *first; /* in the order of their events */
    known_dir_t known[LIMIT_ADAPTERS_PER_WORKER];
} jobs_t;

/* Queues the job that an event requires, if any, and updates the queued ones; NO_MEMORY. */
int jobs_add(jobs_t *j, const heddle_event_t *event);
/* Starts the jobs that can start, and finishes those whose command has ended.  Returns the next deadline in
 * us; UINT64_MAX: none. */
uint64_t jobs_run(jobs_t *j, uint64_t now_us);
/* Fills in the descriptors to poll for the output of commands (at most cap); jobs_polled reads them after the
 * poll. */
int jobs_poll(const jobs_t *j, struct pollfd *fds, int cap);
void jobs_polled(jobs_t *j, const struct pollfd *fds, int count);
/* Kills the running commands and frees all jobs. */
void jobs_fini(jobs_t *j);

#endif
