/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of each kind of job, then the queue of jobs. */
#include "sidecar/jobs.h"

#include "core/errors.h"
#include "core/log.h"
#include "sidecar/print.h"

#include <stdio.h>
#include <heddle/adapter.h>
#include <stdlib.h>
#include <string.h>

/* --- one job ---------------------------------------------------------------------------------- */

/* A version that is active already cannot be rejected any more, so its failure is only logged. */
static void log_not_switched(const heddle_event_t *e, const char *why)
{
    log_emit(LOG_ERROR, "version.not_switched", "%s is served, but: %s", e->tag, why);
}

/* A rejected version is not kept on disk: it would never be linked. */
static void reject(jobs_t *j, const heddle_event_t *e, const heddle_error_t *why)
{
    if (e->type == HEDDLE_EVENT_ACTIVE) {
        log_not_switched(e, why->message);
        return;
    }
    bool is_wanted = heddle_worker_reject_error(j->worker, e->adapter, e->version, why) == HEDDLE_OK;
    log_emit(LOG_WARN, "version.rejected", "%s: %s%s%s%s", e->tag, why->message, why->hint[0] ? "; " : "",
             why->hint, is_wanted ? "" : "; it was not wanted any more");
    if (e->type == HEDDLE_EVENT_ARRIVED) exports_remove(&j->exports, e->adapter, e->version);
}

/* NOT_FOUND: the version was overtaken. Its FAILED follows, or a newer version is active already. */
static void finish_stage(jobs_t *j, const heddle_event_t *e)
{
    if (heddle_worker_staged(j->worker, e->adapter, e->version) == HEDDLE_OK) print_stage_done(e, j->name);
    else log_emit(LOG_INFO, "version.overtaken", "%s is not wanted any more", e->tag);
}

/* Nothing is rejected: the activation is not wanted any more. */
static void log_not_activated(const heddle_event_t *e, const char *why)
{
    log_emit(LOG_WARN, "version.not_activated", "%s: %s", e->tag, why);
}

/* The link moves before activate(), so that a reader that reacts to the activation finds it moved. It moves
 * back if the library does not activate. */
static void finish_activate(jobs_t *j, const heddle_event_t *e)
{
    heddle_error_t error;
    bool exports = j->exports.root >= 0;
    uint64_t before = exports ? exports_linked(&j->exports, e->adapter) : 0;
    if (exports && exports_link(&j->exports, e->adapter, e->version, &error)) {
        reject(j, e, &error);
        return;
    }
    if (heddle_worker_activate(j->worker, e->adapter, e->version) == HEDDLE_OK) return;
    log_not_activated(e, heddle_last_error()->message);
    if (exports && exports_link(&j->exports, e->adapter, before, &error))
        log_emit(LOG_ERROR, "export.link", "%s", error.message);
}

/* True when a command runs now. */
static bool run_command(jobs_t *j, job_t *job, const char *command)
{
    char path[4400];
    heddle_error_t error;
    const heddle_event_t *e = &job->event;
    exports_path(&j->exports, e->adapter, e->version, path);
    if (hook_start(&job->hook, command, e, path, j->hook_timeout_ms, &error) == HEDDLE_OK) return true;
    reject(j, e, &error);
    return false;
}

/* Ensures that the directory is there and right. It is read only if it looks different from when it was
 * last known to be right, because reading gigabytes takes seconds. */
static int write_directory(jobs_t *j, const heddle_snapshot_t *snapshot, heddle_error_t *error)
{
    char path[4400];
    const heddle_manifest_t *m = heddle_snapshot_manifest(snapshot);
    if (j->exports.root < 0) return HEDDLE_OK;
    known_dir_t *row = j->known; /* a worker has no more adapters than there are rows */
    while (row->adapter[0] && strcmp(row->adapter, m->adapter) != 0) row++;
    snprintf(row->adapter, sizeof row->adapter, "%s", m->adapter);
    noted_t *noted = &row->noted;
    int rc = exports_find(&j->exports, m->adapter, error);
    if (rc) return rc;
    exports_path(&j->exports, m->adapter, m->version, path);
    const char *name = strrchr(path, '/') + 1;
    fingerprint_t before = fingerprint_take(j->exports.root, name);
    if (fingerprint_is_noted(noted, m->version, m->digest, &before)) return HEDDLE_OK;
    rc = exports_write(&j->exports, snapshot, error);
    if (rc) return rc;
    fingerprint_t now = fingerprint_take(j->exports.root, name);
    fingerprint_note(noted, m->version, m->digest, &before, &now);
    return HEDDLE_OK;
}

/* False when nothing more is to be done about the version: it was aborted meanwhile, or has been rejected
 * here. */
static bool have_directory(jobs_t *j, const heddle_event_t *e)
{
    heddle_snapshot_t *snapshot = NULL;
    heddle_error_t error;
    if (heddle_worker_acquire(j->worker, e->adapter, e->version, &snapshot) != HEDDLE_OK)
        return false; /* aborted meanwhile */
    int rc = write_directory(j, snapshot, &error);
    heddle_snapshot_release(&snapshot);
    if (rc) reject(j, e, &error);
    return rc == HEDDLE_OK;
}

/* A directory is kept as long as a job may still link it, or the version is in memory and may be activated
 * again. */
static bool is_needed(void *self, const char *adapter, uint64_t version)
{
    const jobs_t *j = self;
    heddle_snapshot_t *snapshot = NULL;
    /* The queue first: it costs nothing to look at. */
    for (const job_t *job = j->first; job; job = job->next)
        if (job->event.version == version && !strcmp(job->event.adapter, adapter)) return true;
    bool is_resident = heddle_worker_acquire(j->worker, adapter, version, &snapshot) == HEDDLE_OK;
    heddle_snapshot_release(&snapshot);
    return is_resident;
}

/* The version that the library serves; 0: none. */
static uint64_t active_version(jobs_t *j, const char *adapter)
{
    heddle_snapshot_t *snapshot = NULL;
    if (heddle_worker_acquire(j->worker, adapter, 0, &snapshot) != HEDDLE_OK) return 0;
    uint64_t version = heddle_snapshot_manifest(snapshot)->version;
    heddle_snapshot_release(&snapshot);
    return version;
}

/* Makes the link name the active version, whatever it named before: a worker that restarts may find an old
 * link. */
static void move_link(jobs_t *j, const heddle_event_t *e)
{
    heddle_error_t error;
    if (j->exports.root < 0) return;
    if (exports_find(&j->exports, e->adapter, &error)) {
        log_not_switched(e, error.message);
        return;
    }
    bool has = exports_has(&j->exports, e->adapter, e->version);
    if (has && exports_linked(&j->exports, e->adapter) == e->version) return;
    if (have_directory(j, e) && exports_link(&j->exports, e->adapter, e->version, &error))
        log_not_switched(e, error.message);
}

/* Writes a directory anew that was found wrong or missing. The version in memory is verified first, so that
 * a damaged copy does not replace a damaged one. */
static int write_again(jobs_t *j, const heddle_event_t *e, bool is_active, heddle_error_t *error)
{
    heddle_snapshot_t *snapshot = NULL;
    char found[HEDDLE_DIGEST_TEXT];
    int rc = heddle_worker_acquire(j->worker, e->adapter, e->version, &snapshot);
    if (!rc) rc = heddle_snapshot_digest(snapshot, found);
    if (!rc && strcmp(found, e->digest) != 0)
        rc = error_fail(error, HEDDLE_ERR_DIGEST_MISMATCH, "the version differs in memory too");
    else if (rc) *error = *heddle_last_error();
    else rc = exports_write(&j->exports, snapshot, error);
    heddle_snapshot_release(&snapshot);
    if (!rc && is_active) rc = exports_link(&j->exports, e->adapter, e->version, error);
    return rc;
}

/* Checks what a reader would open: the link, where it should name this version. The result is reported as
 * it was found, and only then repaired. */
static void verify(jobs_t *j, const heddle_event_t *e)
{
    char path[4400], found[HEDDLE_DIGEST_TEXT];
    heddle_error_t why;
    bool is_active = active_version(j, e->adapter) == e->version;
    exports_path(&j->exports, e->adapter, is_active ? 0 : e->version, path);
    int rc = exports_look(path, e->digest, found, &why);
    if (rc && rc != HEDDLE_ERR_DIGEST_MISMATCH) { /* unreadable is not wrong: nothing is touched */
        log_emit(LOG_WARN, "export.unread", "%s", why.message);
        heddle_worker_verified(j->worker, e->adapter, e->version, NULL);
        return;
    }
    heddle_worker_verified(j->worker, e->adapter, e->version, found);
    if (rc) {
        heddle_error_t error;
        const char *what = !found[0] ? "is missing, or is not whole" : "has other bytes";
        if (write_again(j, e, is_active, &error))
            log_emit(LOG_ERROR, "export.damaged", "%s %s, and cannot be written again: %s", path, what,
                     error.message);
        else log_emit(LOG_WARN, "export.repaired", "%s %s: it was written again", path, what);
    }
}

/* --- all of them ------------------------------------------------------------------------------ */

/* The version has ended. To go on loading it would be useless, and would hold up the next version. */
static void give_up_staging(jobs_t *j, const heddle_event_t *failed)
{
    for (job_t **at = &j->first; *at;) {
        job_t *job = *at;
        if (job->event.type != HEDDLE_EVENT_ARRIVED || job->event.version != failed->version ||
            strcmp(job->event.adapter, failed->adapter) != 0) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        hook_kill(&job->hook);
        free(job);
    }
}

/* An event may be work of its own, and may make queued work void: that is looked at first, because the job
 * in progress must learn of it even where the event itself is none. */
int jobs_add(jobs_t *j, const heddle_event_t *event)
{
    int type = event->type;
    bool is_answered = false;
    if (type == HEDDLE_EVENT_FAILED) give_up_staging(j, event);
    for (job_t *at = j->first; at; at = at->next) {
        const heddle_event_t *commit = &at->event;
        if (commit->type != HEDDLE_EVENT_COMMIT) continue;
        /* Without a session, or by a later decision, a COMMIT is taken back. One of a newer version does not
         * do that: the rollout goes on from the version of the first one. */
        bool is_same = !strcmp(event->adapter, commit->adapter);
        bool is_back =
            type == HEDDLE_EVENT_ACTIVE || (type == HEDDLE_EVENT_COMMIT && event->version < commit->version);
        if (type == HEDDLE_EVENT_LOST_BROKER || type == HEDDLE_EVENT_FENCED) at->is_void = true;
        if (is_same && event->decision > commit->decision && is_back) at->is_void = true;
        /* A COMMIT may be sent again, after a short loss of the connection for instance. The job that runs
         * already answers it: a command that ran twice could end in two ways. Jobs queued behind that one
         * were decided before this COMMIT, so they become void. */
        if (type != HEDDLE_EVENT_COMMIT || !is_same || at->is_void) continue;
        if (is_answered) {
            at->is_void = true;
        } else if (commit->version == event->version) {
            at->event.decision = event->decision;
            is_answered = true;
        }
    }
    bool is_work = type == HEDDLE_EVENT_ARRIVED || type == HEDDLE_EVENT_COMMIT || type == HEDDLE_EVENT_VERIFY;
    bool is_disk_work =
        type == HEDDLE_EVENT_FAILED || type == HEDDLE_EVENT_ACTIVE || type == HEDDLE_EVENT_RETIRED;
    if (!is_work && !(is_disk_work && j->exports.root >= 0)) return HEDDLE_OK;
    if (is_answered) return HEDDLE_OK;
    /* At the end of the queue: the order of events is the order in which an adapter changes. */
    job_t *job = calloc(1, sizeof *job), **last = &j->first;
    if (!job) return HEDDLE_ERR_NO_MEMORY;
    job->event = *event;
    job->hook.err_fd = -1;
    while (*last) last = &(*last)->next;
    *last = job;
    return HEDDLE_OK;
}

/* True when the job is over. It waits while an earlier one of its adapter is queued, is begun, and ends with
 * its command, where it has one. An activation needs the directory again: a version that is named once more
 * may have lost it since, and the link must never lead nowhere. */
static bool run_one(jobs_t *j, job_t *job, uint64_t now_us)
{
    char reason[641], text[sizeof reason + 16];
    const heddle_event_t *e = &job->event;
    if (!job->hook.pid) {
        for (const job_t *at = j->first; at != job; at = at->next)
            if (!strcmp(at->event.adapter, e->adapter)) return false;
        switch (e->type) {
        case HEDDLE_EVENT_ARRIVED:
            if (!have_directory(j, e)) return true;
            if (j->on_stage) return !run_command(j, job, j->on_stage);
            finish_stage(j, e);
            return true;
        case HEDDLE_EVENT_COMMIT:
            if (job->is_void || !have_directory(j, e)) return true;
            if (j->on_activate) return !run_command(j, job, j->on_activate);
            finish_activate(j, e);
            return true;
        case HEDDLE_EVENT_VERIFY: verify(j, e); return true;
        case HEDDLE_EVENT_FAILED: exports_remove(&j->exports, e->adapter, e->version); return true;
        case HEDDLE_EVENT_ACTIVE:
            /* An event may be late: only the version that is active now gets the link. */
            if (active_version(j, e->adapter) == e->version) move_link(j, e);
            break;
        default: break;
        }
        exports_prune(&j->exports, e->adapter, is_needed, j);
        return true;
    }
    if (!hook_look(&job->hook, now_us, reason)) return false;
    bool is_stage = e->type == HEDDLE_EVENT_ARRIVED;
    snprintf(text, sizeof text, "%s %s", is_stage ? "--on-stage" : "--on-activate", reason);
    if (job->is_void) {
        log_not_activated(e, reason[0] ? text : "another decision followed, or the lease ran out");
    } else if (reason[0]) {
        heddle_error_t why;
        error_fail(&why, HEDDLE_ERR_VERSION_FAILED, "%s", text);
        error_where(&why, NULL, 0, NULL, is_stage ? "stage" : "activate");
        reject(j, e, &why);
    } else if (is_stage) {
        finish_stage(j, e);
    } else {
        finish_activate(j, e);
    }
    return true;
}

/* Runs what can run now. Returns when a command that runs is late; UINT64_MAX: none does. */
uint64_t jobs_run(jobs_t *j, uint64_t now_us)
{
    uint64_t next_us = UINT64_MAX;
    for (job_t **at = &j->first; *at;) {
        job_t *job = *at;
        if (!run_one(j, job, now_us)) {
            if (job->hook.pid && !job->hook.timed_out && job->hook.deadline_us < next_us)
                next_us = job->hook.deadline_us;
            at = &job->next;
            continue;
        }
        *at = job->next;
        free(job);
        at = &j->first; /* an earlier job in the list may have waited for this one */
    }
    return next_us;
}

/* The pipes of commands that run: they must be read, or a command that writes much would block. */
int jobs_poll(const jobs_t *j, struct pollfd *fds, int cap)
{
    int count = 0;
    for (const job_t *job = j->first; job && count < cap; job = job->next)
        if (job->hook.pid && job->hook.err_fd >= 0)
            fds[count++] = (struct pollfd){.fd = job->hook.err_fd, .events = POLLIN};
    return count;
}

/* The list may have changed since jobs_poll, so that each pipe is found again by its descriptor. */
void jobs_polled(jobs_t *j, const struct pollfd *fds, int count)
{
    for (job_t *job = j->first; job; job = job->next)
        for (int i = 0; i < count; i++)
            if (job->hook.pid && job->hook.err_fd == fds[i].fd && fds[i].revents) hook_read(&job->hook);
}

/* Commands are killed: their answers would come to a worker that has closed. */
void jobs_fini(jobs_t *j)
{
    while (j->first) {
        job_t *job = j->first;
        j->first = job->next;
        hook_kill(&job->hook);
        free(job);
    }
}
