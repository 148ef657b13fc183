/* SPDX-License-Identifier: Apache-2.0 */
/* What the application asks of a publisher's node. */
#include "trainer_client/node_part.h"

#include "core/errors.h"

#include <stdlib.h>

int publisher_node_new(const publisher_node_opts_t *opts, const node_io_t *io,
                       publisher_node_t **ret_node)
{
    publisher_node_t *n = calloc(1, sizeof *n);
    if (!n) return HEDDLE_ERR_NO_MEMORY;
    n->io = io;
    error_text(n->adapter, sizeof n->adapter, opts->adapter);
    error_text(n->writer, sizeof n->writer, opts->writer);
    error_text(n->host, sizeof n->host, opts->host);
    n->takeover = opts->takeover;
    n->changed = opts->changed;
    n->self = opts->self;
    n->request.resend_us = n->word_us = CLOCK_NEVER;
    session_opts_t session = {.role = ROLE_PUBLISHER, .life = opts->life, .host = n->host,
                              .pid = opts->pid, .seed = opts->seed};
    session_init(&n->session, &session);
    publications_init(&n->publications, io->tr, io->t);
    if (reports_init(&n->reports, n->adapter)) goto fail;
    *ret_node = n;
    return HEDDLE_OK;
fail:
    publisher_node_destroy(&n);
    return HEDDLE_ERR_NO_MEMORY;
}

void publisher_node_destroy(publisher_node_t **n)
{
    if (!n || !*n) return;
    owner_check((*n)->io->owner);
    publications_fini(&(*n)->publications);
    reports_fini(&(*n)->reports);
    buf_fini(&(*n)->frame);
    free(*n);
    *n = NULL;
}

int publisher_node_opened(const publisher_node_t *n, heddle_error_t *error)
{
    owner_check(n->io->owner);
    if (n->is_fenced) {
        *error = n->fence;
        return n->fence.code;
    }
    *error = n->refusal;
    if (n->session.state == SESSION_READY) return HEDDLE_OK;
    /* A broker that says no will say it again; one that was met without its key may be starting. */
    bool is_final = n->refusal.code == HEDDLE_ERR_WRITER_HELD ||
                    (n->refusal.code == HEDDLE_ERR_DENIED && !n->is_line_refused);
    bool may_pass = n->refusal.retriable && !is_final;
    return n->refusal.code && !may_pass ? n->refusal.code : HEDDLE_ERR_AGAIN;
}

/* A version that is given up here may be the one that the broker has just announced, or will announce, where
 * nobody waited for its answer: it knows, and says so within a turn.  Where it is away OPEN will tell it what
 * is served still. */
int publisher_node_take(publisher_node_t *n, uint64_t bytes, uint64_t now_us, int *ret_slot,
                        region_t **ret_region)
{
    owner_check(n->io->owner);
    bool is_spare_any = n->session.state != SESSION_READY || !n->session.line_up || n->is_word_late;
    int orphan = publications_have_free(&n->publications) ? -1 : orphan_find(n, 0);
    if (orphan >= 0 && is_spare_any) orphan_end(n, orphan); /* before one that is served */
    bool is_answered = orphan < 0 || is_spare_any;
    int rc = is_answered ? publications_take(&n->publications, bytes, is_spare_any, ret_slot, ret_region)
                         : HEDDLE_ERR_AGAIN;
    bool is_waiting = rc == HEDDLE_ERR_AGAIN && !is_spare_any && !publications_are_closing(&n->publications);
    n->is_word_late = false;
    if (!is_waiting) n->word_us = CLOCK_NEVER;
    else if (n->word_us == CLOCK_NEVER) n->word_us = now_us + TAKE_WORD_US;
    return rc;
}

void publisher_node_give_up(publisher_node_t *n)
{
    owner_check(n->io->owner);
    n->word_us = CLOCK_NEVER;
    n->is_word_late = false;
}

int publisher_node_fit(publisher_node_t *n, int slot, region_t *region)
{
    owner_check(n->io->owner);
    return publications_fit(&n->publications, slot, region);
}
void publisher_node_give_back(publisher_node_t *n, int slot)
{
    owner_check(n->io->owner);
    publications_give_back(&n->publications, slot);
}

void publisher_node_publish(publisher_node_t *n, const publish_request_t *request, uint64_t now_us)
{
    owner_check(n->io->owner);
    n->request = (request_t){.state = REQUEST_PENDING, .asked = *request, .req = n->request.req,
                             .base_bytes = bytes_served(n), .resend_us = CLOCK_NEVER};
    if (n->is_fenced) request_finish(n, n->fence.code, &n->fence);
    else request_send(n, now_us);
}

int publisher_node_result(publisher_node_t *n, publish_result_t *ret_result, heddle_error_t *error)
{
    owner_check(n->io->owner);
    request_t *r = &n->request;
    if (r->state == REQUEST_PENDING) return HEDDLE_ERR_AGAIN;
    r->state = REQUEST_NONE;
    if (r->rc) *error = r->error;
    else *ret_result = r->result;
    return r->rc;
}

static void fail_waiting(const publisher_node_t *n, heddle_error_t *error)
{
    bool is_there = n->session.state == SESSION_READY && n->session.line_up;
    const char *why = n->request.error.message; /* said when it put the request off */
    if (is_there)
        error_fail(error, HEDDLE_ERR_DEADLINE, "the broker did not record the version of %s in time%s%s",
                   n->adapter, *why ? ": " : "", why);
    else error_fail(error, HEDDLE_ERR_UNAVAILABLE, "the broker of %s is away", n->adapter);
}

/* The broker may have it: a version that nobody serves would bar all others until its deadline. */
static void keep_orphan(publisher_node_t *n)
{
    const request_t *r = &n->request;
    const publish_request_t *a = &r->asked;
    if (!r->is_sent || n->session.state != SESSION_READY) return;
    n->orphans[a->slot] = (orphan_t){.req = r->req, .digest = a->sealed->digest, .start_us = a->start_us,
                                     .arena_bytes = a->sealed->arena_bytes, .base_bytes = r->base_bytes,
                                     .activation = a->opts.activation, .deadline_ms = a->opts.deadline_ms};
}

int publisher_node_abandon(publisher_node_t *n, publish_result_t *ret_result, heddle_error_t *error)
{
    owner_check(n->io->owner);
    if (n->request.state == REQUEST_PENDING) {
        keep_orphan(n);
        heddle_error_t e = n->refusal;
        if (!e.code) fail_waiting(n, &e);
        error_where(&e, n->adapter, 0, NULL, "commit");
        error_hint(&e, "publish again under the same request id: it becomes one version at most");
        request_finish(n, e.code, &e);
    }
    return publisher_node_result(n, ret_result, error);
}

int publisher_node_judge(publisher_node_t *n, uint64_t version, const wait_for_t *want,
                         heddle_error_t *error)
{
    owner_check(n->io->owner);
    report_row_t *row = reports_find(&n->reports, version);
    if (!row) {
        int rc = error_fail(error, HEDDLE_ERR_NOT_FOUND, "%s@%llu was not published here",
                            n->adapter, (unsigned long long)version);
        error_hint(error, "`heddle wait` waits for any version; a publisher remembers its last %u",
                   REPORTS_MAX);
        return rc;
    }
    int rc = reports_judge(&n->reports, row, want, error);
    bool is_asking = n->inquiry.version == version;
    if (rc != HEDDLE_ERR_AGAIN || !n->is_fenced || is_asking) return rc;
    *error = n->fence;
    return n->fence.code;
}

const reports_t *publisher_node_reports(const publisher_node_t *n) { return &n->reports; }

uint32_t publisher_node_settling_ms(const publisher_node_t *n, uint64_t now_us)
{
    return now_us < n->settled_us ? (uint32_t)((n->settled_us - now_us + 999) / 1000) : 0;
}

/* One that waits for an earlier one to be staged is wanted, too: it is announced next. */
static bool is_wanted(const publisher_node_t *n)
{
    for (int i = 0; i < PUBLICATION_SLOTS; i++) {
        const publication_slot_t *slot = &n->publications.slots[i];
        const report_row_t *row =
            slot->state == PUBLICATION_SERVED ? reports_find(&n->reports, slot->version) : NULL;
        if (row && row->report.eligible_count > 0 && !report_is_settled(row)) return true;
    }
    return false;
}

int publisher_node_is_held(const publisher_node_t *n, bool *ret_wanted, heddle_error_t *error)
{
    owner_check(n->io->owner);
    const report_row_t *row = reports_newest(&n->reports);
    const publication_slot_t *slot = row ? publications_of(&n->publications, row->report.version) : NULL;
    *ret_wanted = false;
    if (!slot || slot->is_released || report_is_held(row)) return HEDDLE_OK;
    const char *why = row->report.message[0] ? row->report.message : "no worker has its bytes";
    error_fail(error, HEDDLE_ERR_VERSION_FAILED, "%s@%llu is lost with its publisher: %s", n->adapter,
               (unsigned long long)row->report.version, why);
    error_where(error, n->adapter, row->report.version, NULL, "fetch");
    error_hint(error, "wait for phase staged before closing; publish it again");
    bool has_ended = strcmp(row->report.state, "staging") != 0;
    if (has_ended || n->is_fenced) return HEDDLE_ERR_VERSION_FAILED;
    *ret_wanted = is_wanted(n);
    return HEDDLE_ERR_AGAIN;
}

void publisher_node_leave(publisher_node_t *n, uint64_t now_us)
{
    owner_check(n->io->owner);
    publications_stop(&n->publications, 0);
    publisher_node_step(n, SE_LEAVE, now_us);
    n->has_left |= n->session.state == SESSION_LEFT;
}

bool publisher_node_has_left(const publisher_node_t *n)
{
    owner_check(n->io->owner);
    return n->has_left && publications_are_quiet(&n->publications);
}
