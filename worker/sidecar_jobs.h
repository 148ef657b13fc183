/* SPDX-License-Identifier: Apache-2.0 */
/* worker/sidecar_jobs.h: what has to be done about a version, one thing after the other for each
 * adapter.
 *
 *   ARRIVED  export, on-stage, then staged() or reject()
 *   COMMIT   directory, on-activate, link, then activate() or reject()
 *   VERIFY   digest of the exported directory, verified()
 *   FAILED   the directory goes
 *   ACTIVE, RETIRED  old directories go
 *
 * A command runs beside everything else: other adapters, heartbeats and fetches go on.  One thread. */
#ifndef WORKER_SIDECAR_JOBS_H
#define WORKER_SIDECAR_JOBS_H

#include "worker/sidecar_export.h"
#include "worker/sidecar_hook.h"

#include <poll.h>

typedef struct job {
    struct job *next;
    heddle_event_t event;
    hook_t hook;                  /* pid 0: no command is running */
} job_t;

typedef struct {
    heddle_worker_t *worker;
    exports_t exports;
    const char *on_stage, *on_activate;   /* NULL: none */
    uint32_t hook_timeout_ms;
    job_t *first;                 /* in the order of their events */
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
