/* SPDX-License-Identifier: Apache-2.0 */
/* sidecar/jobs.h: what has to be done about a version, one thing after the other for each
 * adapter.
 *
 *   ARRIVED  export, on-stage, then staged() and its line, or reject()
 *   COMMIT   directory, on-activate, link, then activate() or reject()
 *   VERIFY   digest of the exported directory, verified(); for the active version it is read
 *            through the link; one that is missing or differs is then written again from memory
 *   FAILED   a command that still stages it is killed; the directory goes
 *   ACTIVE   the link; old directories go
 *   RETIRED  old directories go
 *
 * A COMMIT is void once a later decision took it back or the lease lapsed: then neither its
 * command is started nor the link moved.  Where activate() refuses what was linked, the link goes
 * back.  So the link names what is served, but for the moment between the link and activate().
 *
 * A command runs beside everything else: other adapters, heartbeats and fetches go on.  One thread. */
#ifndef SIDECAR_JOBS_H
#define SIDECAR_JOBS_H

#include "core/limits.h"
#include "sidecar/export.h"
#include "sidecar/hook.h"
#include "sidecar/seen.h"

#include <poll.h>

typedef struct job {
    struct job *next;
    heddle_event_t event;
    hook_t hook;                  /* pid 0: no command is running */
    bool is_void;                 /* COMMIT that may not be carried out any more */
} job_t;

/* The directory of an adapter that was last found right. */
typedef struct { char adapter[HEDDLE_NAME_MAX + 1]; seen_t seen; } known_t;

typedef struct {
    heddle_worker_t *worker;
    const char *name;             /* of the worker, for what is printed */
    exports_t exports;
    const char *on_stage, *on_activate;   /* NULL: none */
    uint32_t hook_timeout_ms;
    job_t *first;                 /* in the order of their events */
    known_t known[LIMIT_ADAPTERS_PER_WORKER];
} jobs_t;

/* Queues what an event asks for; NO_MEMORY. */
int  jobs_add(jobs_t *j, const heddle_event_t *event);
/* Starts what can be started, ends what has ended.  Returns the next deadline in us; UINT64_MAX:
 * none. */
uint64_t jobs_run(jobs_t *j, uint64_t now_us);
/* Descriptors to poll for what commands say (at most cap), and after the poll. */
int  jobs_poll(const jobs_t *j, struct pollfd *fds, int cap);
void jobs_polled(jobs_t *j, const struct pollfd *fds, int count);
/* Kills what runs and forgets the rest. */
void jobs_fini(jobs_t *j);

#endif
