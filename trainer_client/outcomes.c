/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/outcomes.h"

#include "core/errors.h"
#include "core/units.h"

#include <stdio.h>
#include <stdlib.h>

int outcomes_init(outcomes_t *r, const char *adapter)
{
    *r = (outcomes_t){.rows = calloc(OUTCOMES_MAX, sizeof *r->rows)};
    error_text(r->adapter, sizeof r->adapter, adapter);
    return r->rows ? HEDDLE_OK : HEDDLE_ERR_NO_MEMORY;
}

void outcomes_fini(outcomes_t *r)
{
    free(r->rows);
    r->rows = NULL;
}

outcome_row_t *outcomes_find(const outcomes_t *r, uint64_t version)
{
    for (unsigned i = 0; version && i < OUTCOMES_MAX; i++)
        if (r->rows[i].report.version == version) return &r->rows[i];
    return NULL;
}

/* The oldest version makes room. A version that was published again gets new times. */
outcome_row_t *outcomes_begin(outcomes_t *r, uint64_t version, const heddle_publish_opts_t *opts,
                              uint64_t start_us)
{
    outcome_row_t *row = outcomes_find(r, version);
    if (!row) {
        row = &r->rows[0];
        for (unsigned i = 1; i < OUTCOMES_MAX; i++)
            if (r->rows[i].report.version < row->report.version) row = &r->rows[i];
        *row =
            (outcome_row_t){.report = {.size = sizeof row->report, .version = version, .state = "staging"}};
    }
    row->report.activation = opts->activation;
    row->report.deadline_ms = opts->asked_ms ? opts->asked_ms : opts->deadline_ms;
    row->report.staged_ms = row->report.active_ms = row->staged_ms = row->active_ms = -1;
    row->start_us = start_us;
    row->back_us = 0;
    row->is_unreported = row->was_decided_unreported = false;
    return row;
}

/* -- what the broker says --------------------------------------------------------------------- */

static bool is_all(uint32_t have, uint32_t eligible) { return have > 0 && have >= eligible; }
/* An active worker has staged the version too, whichever count has it. */
static uint32_t staged_count(const heddle_report_t *r)
{
    return r->staged_count > r->active_count ? r->staged_count : r->active_count;
}

/* Times are taken when the report came, and only the first one counts. */
static void stamp(const outcome_row_t *row, double *ms)
{
    if (*ms < 0) *ms = (double)(row->received_us - row->start_us) / 1000.0;
}

static bool is_state(const outcome_row_t *row, const char *state)
{
    return !strcmp(row->report.state, state);
}

void outcomes_missed(outcomes_t *r, uint64_t now_us)
{
    for (outcome_row_t *row = r->rows; row < r->rows + OUTCOMES_MAX; row++) {
        row->back_us = now_us;
        row->is_unreported = true;
    }
}

/* Counts may go down when workers leave; the highest ones are kept, because a quorum that was reached
 * stays reached. */
void outcomes_update(outcome_row_t *row, const msg_rollout_t *m, uint64_t now_us)
{
    heddle_report_t *r = &row->report;
    r->decision = m->decision;
    r->activation = (int)m->activation;
    r->deadline_ms = (uint32_t)m->deadline_ms;
    r->eligible_count = (uint32_t)m->eligible_count;
    r->staged_count = (uint32_t)m->staged_count;
    r->active_count = (uint32_t)m->active_count;
    r->code = m->code[0] ? heddle_err_from_name(m->code) : HEDDLE_OK;
    error_text(r->state, sizeof r->state, m->state);
    error_text(r->message, sizeof r->message, m->message);
    if (is_state(row, "staging")) {
        error_text(row->queued, sizeof row->queued, r->code ? "" : m->message);
        error_text(row->nearest, sizeof row->nearest, r->code == HEDDLE_ERR_NO_WORKERS ? m->message : "");
        if (row->nearest[0]) r->code = HEDDLE_OK, r->message[0] = 0; /* nothing has failed yet */
    }
    if (row->staged_most < staged_count(r)) row->staged_most = staged_count(r);
    if (row->active_most < r->active_count) row->active_most = r->active_count;
    /* The rows of the message are borrowed, so that their texts are copied. */
    r->missing_count = m->missing_count;
    for (uint32_t i = 0; i < m->missing_count && i < HEDDLE_MISSING_MAX; i++) {
        heddle_missing_t *missing = &r->missing[i];
        error_text(missing->worker, sizeof missing->worker, m->missing[i].worker);
        error_text(missing->phase, sizeof missing->phase, m->missing[i].phase);
        error_text_at_word(missing->message, sizeof missing->message, m->missing[i].message);
        missing->code = m->missing[i].code[0] ? heddle_err_from_name(m->missing[i].code) : HEDDLE_OK;
    }
    row->received_us = now_us;
    row->was_decided_unreported |= row->is_unreported && m->decision;
    row->is_unreported = false;
    /* A broker that was away may count more workers than before: the time of fewer is not theirs. */
    if (row->back_us && r->eligible_count > row->staged_of) r->staged_ms = -1;
    if (is_all(staged_count(r), r->eligible_count)) {
        if (r->staged_ms < 0) row->staged_of = r->eligible_count;
        stamp(row, &r->staged_ms);
    }
    if (is_all(r->active_count, r->eligible_count)) stamp(row, &r->active_ms);
}

outcome_row_t *outcomes_newest(const outcomes_t *r)
{
    outcome_row_t *newest = &r->rows[0];
    for (unsigned i = 1; i < OUTCOMES_MAX; i++)
        if (r->rows[i].report.version > newest->report.version) newest = &r->rows[i];
    return newest->report.version ? newest : NULL;
}

void outcomes_was_active(outcome_row_t *row)
{
    stamp(row, &row->staged_ms);
    stamp(row, &row->active_ms);
}

/* A broker that was away counts the workers anew as they come back, so that its counts tell nothing of when
 * they staged or switched before. */
static double known(const outcome_row_t *row, double ms, bool was_missed)
{
    bool is_before = !row->back_us || (double)row->start_us + 1000.0 * ms < (double)row->back_us;
    return is_before || !was_missed ? ms : -1;
}

/* Where not all workers are there yet, the times are those of the quorum that was asked for. */
void outcomes_copy(const outcome_row_t *row, heddle_report_t *ret_report)
{
    const heddle_report_t *r = &row->report;
    *ret_report = *r;
    ret_report->staged_ms = known(row, r->staged_ms < 0 ? row->staged_ms : r->staged_ms, true);
    ret_report->active_ms =
        known(row, r->active_ms < 0 ? row->active_ms : r->active_ms, row->was_decided_unreported);
}

bool outcome_is_staging_over(const outcome_row_t *row)
{
    return !is_state(row, "staging") || is_all(staged_count(&row->report), row->report.eligible_count);
}

/* These states mean that a worker has staged the version, or that it is no longer needed. */
bool outcome_is_elsewhere(const outcome_row_t *row)
{
    bool is_reported = is_state(row, "staged") || is_state(row, "active") || is_state(row, "kept") ||
                       is_state(row, "retired") || is_state(row, "superseded");
    return is_reported || (is_state(row, "staging") && staged_count(&row->report) > 0);
}

/* A later report would change nothing that a caller can wait for. */
bool outcome_is_over(const outcome_row_t *row)
{
    const heddle_report_t *r = &row->report;
    bool has_ended = is_state(row, "failed") || is_state(row, "superseded") || is_state(row, "retired");
    return has_ended || is_all(r->active_count, r->eligible_count);
}

/* -- whether a wait is over ------------------------------------------------------------------- */

static const char *phase_word(const wait_for_t *want)
{
    return want->phase == HEDDLE_PHASE_STAGED ? "staged" : "active";
}

/* A quorum of all, or of a share, means the workers that are there now. A quorum of a number means that
 * so many have switched: one that leaves afterwards still counts, since no other would take its place. */
static uint32_t have_count(const outcome_row_t *row, const wait_for_t *want)
{
    if (want->phase == HEDDLE_PHASE_STAGED) return staged_count(&row->report);
    return want->quorum.kind == HEDDLE_QUORUM_COUNT ? row->active_most : row->report.active_count;
}

/* At least one worker, so that a version without workers is never "everywhere". */
static uint32_t need_count(const outcome_row_t *row, const wait_for_t *want)
{
    return units_quorum_need(want->quorum, row->report.eligible_count, 1);
}

/* "3 of 4 workers"; "3 workers" where there are not so many, or of how many is not known yet: after a restart
 * of the broker. */
static const char *of_workers(uint32_t count, uint32_t eligible, char ret_text[64])
{
    if (eligible && eligible >= count)
        snprintf(ret_text, 64, "%u of %u worker%s", count, eligible, eligible == 1 ? "" : "s");
    else if (count) snprintf(ret_text, 64, "%u worker%s", count, count == 1 ? "" : "s");
    else snprintf(ret_text, 64, "no worker");
    return ret_text;
}

#define VERSION_LIMIT "opts.deadline_ms"
#define WAIT_LIMIT "timeout_ms"

/* The first worker that is missing stands for all of them in the error; the report has the others.  A longer
 * `limit` gives more time. */
static int fail_late(const outcomes_t *r, const outcome_row_t *row, int code, const char *why,
                     const char *limit, heddle_error_t *error)
{
    const heddle_report_t *p = &row->report;
    char name[HEDDLE_NAME_MAX + 24];
    text_printf(name, sizeof name, "%s@%llu", r->adapter, (unsigned long long)p->version);
    if (strstr(p->message, name)) error_fail(error, code, "%s", p->message); /* it names the version itself */
    else error_fail(error, code, "%s %s%s%s", name, why, p->message[0] ? ": " : "", p->message);
    error_where(error, r->adapter, p->version, NULL, NULL);
    if (p->missing_count) error_where(error, NULL, 0, p->missing[0].worker, p->missing[0].phase);
    if (row->queued[0]) {
        error_found(error, "%s", row->queued);
        error_hint(error, "`heddle versions %.128s` lists both; last reported: %s %s", r->adapter, name,
                   row->queued);
        return code;
    }
    char count[64];
    error_found(error, "staged on %s", of_workers(p->staged_count, p->eligible_count, count));
    const char *hint =
        code == HEDDLE_ERR_NO_WORKERS ? "start one: `heddle worker --adapter %.128s`, or the engine plug "
                                        "(python -m heddle.engine)"
        : code == HEDDLE_ERR_VERSION_LOST
            ? "publish it again: no process holds the bytes of %.128s@%llu any more"
        : code == HEDDLE_ERR_DEADLINE
            ? "`heddle versions %.128s@%llu` shows how far each worker came; a longer %s gives "
              "more time"
            : "`heddle versions %.128s@%llu` shows how far each worker came";
    error_hint(error, hint, r->adapter, (unsigned long long)p->version, limit);
    if (code == HEDDLE_ERR_NO_WORKERS && row->nearest[0]) error_hint(error, "%s", row->nearest);
    if (code == HEDDLE_ERR_DEADLINE && strstr(p->message, "(queued behind "))
        error_hint(error,
                   "`heddle workers` shows which worker still fetches an earlier version: restart it, and it "
                   "skips that one; a longer %s gives more time",
                   limit);
    return code;
}

static int fail_version(const outcomes_t *r, const outcome_row_t *row, int code, const char *why,
                        heddle_error_t *error)
{
    return fail_late(r, row, code, why, VERSION_LIMIT, error);
}

/* Each worker that was waited for is gone, as far as the report names them. */
static bool are_all_gone(const heddle_report_t *p)
{
    if (p->eligible_count || p->missing_count > HEDDLE_MISSING_MAX) return false;
    for (uint32_t i = 0; i < p->missing_count; i++)
        if (p->missing[i].code != HEDDLE_ERR_UNAVAILABLE) return false;
    return true;
}

/* A worker that refused to switch has staged the bytes nevertheless. */
static bool is_refusal(const heddle_missing_t *m, const wait_for_t *want)
{
    heddle_error_t e = {0};
    if (m->code) error_fail(&e, m->code, "%s", ""); /* which says whether the same may succeed later */
    bool is_final = m->code && !e.retriable;
    return is_final && (want->phase != HEDDLE_PHASE_STAGED || strcmp(m->phase, "activate") != 0);
}

/* So many eligible workers have refused for good that the quorum cannot be reached: waiting on would change
 * nothing. Workers that left are listed as missing too, but are not eligible any more. The list does not say
 * which these are, so as many refusals are not counted. */
static int judge_refused(const outcomes_t *r, const outcome_row_t *row, const wait_for_t *want,
                         heddle_error_t *error)
{
    const heddle_report_t *p = &row->report;
    bool is_staging = is_state(row, "staging") || is_state(row, "staged");
    uint32_t there = is_staging ? staged_count(p) : p->active_count, need = need_count(row, want);
    uint32_t awaited = p->eligible_count > there ? p->eligible_count - there : 0;
    uint32_t gone = p->missing_count > awaited ? p->missing_count - awaited : 0, refused = 0;
    for (uint32_t i = 0; i < p->missing_count && i < HEDDLE_MISSING_MAX; i++)
        refused += is_refusal(&p->missing[i], want);
    refused = refused > gone ? refused - gone : 0;
    if (!refused || p->eligible_count >= need + refused) return HEDDLE_ERR_AGAIN;
    const heddle_missing_t *first = p->missing;
    while (!is_refusal(first, want)) first++;
    error_fail(error, HEDDLE_ERR_VERSION_FAILED, "%s@%llu was refused by %s: %s", r->adapter,
               (unsigned long long)p->version, first->worker, first->message);
    error_where(error, r->adapter, p->version, first->worker, first->phase);
    char count[64];
    error_expected(error, "%s on %s", phase_word(want), of_workers(need, p->eligible_count, count));
    error_found(error, "on %u; refused by %u", have_count(row, want), refused);
    error_hint(
        error,
        strcmp(first->phase, "activate")
            ? "fix the reported problem and publish again; `heddle versions %.128s@%llu` lists all of them"
            : "fix the reported problem, then `heddle activate %.128s@%llu` makes them retry",
        r->adapter, (unsigned long long)p->version);
    return HEDDLE_ERR_VERSION_FAILED;
}

/* A number is compared with the highest count that was reported. For other quorums it is enough that the
 * version was active once, which an answer of the broker may say without a count. */
static bool was_there(const outcome_row_t *row, const wait_for_t *want)
{
    bool staged = want->phase == HEDDLE_PHASE_STAGED;
    uint32_t most = staged ? row->staged_most : row->active_most;
    if (want->quorum.kind == HEDDLE_QUORUM_COUNT && most > 0) return most >= need_count(row, want);
    return (staged ? row->report.staged_ms : row->report.active_ms) >= 0 ||
           (staged ? row->staged_ms : row->active_ms) >= 0;
}

/* The states in which a version ends come first, since their counts say nothing any more. */
int outcomes_judge(const outcomes_t *r, outcome_row_t *row, const wait_for_t *want, heddle_error_t *error)
{
    double *ms = want->phase == HEDDLE_PHASE_STAGED ? &row->staged_ms : &row->active_ms;
    if (want->quorum.kind == HEDDLE_QUORUM_NONE) return HEDDLE_OK;
    if (is_state(row, "retired") && was_there(row, want)) return HEDDLE_OK; /* replaced since */
    /* A version that ended; `kept` and `active` have not. */
    int cause = row->report.code;
    bool is_named =
        cause == HEDDLE_ERR_DEADLINE || cause == HEDDLE_ERR_NO_WORKERS || cause == HEDDLE_ERR_VERSION_LOST;
    if (is_state(row, "failed"))
        return fail_version(r, row, is_named ? cause : HEDDLE_ERR_VERSION_FAILED, "failed", error);
    if (is_state(row, "lost")) return fail_version(r, row, HEDDLE_ERR_VERSION_LOST, "is lost", error);
    if (is_state(row, "superseded"))
        return fail_version(r, row, HEDDLE_ERR_VERSION_FAILED, "was overtaken by a newer version", error);
    if (is_state(row, "retired")) return fail_version(r, row, HEDDLE_ERR_VERSION_FAILED, "is retired", error);
    if (have_count(row, want) >= need_count(row, want)) {
        stamp(row, ms);
        return HEDDLE_OK;
    }
    if (row->report.code == HEDDLE_ERR_HELD && want->phase == HEDDLE_PHASE_ACTIVE) {
        const char *why =
            is_state(row, "staged") ? "is staged and waits, until a newer one is staged" : "was taken back";
        fail_version(r, row, HEDDLE_ERR_HELD, why, error);
        error_hint(error, "`heddle resume %s` ends the hold", r->adapter);
        return HEDDLE_ERR_HELD;
    }
    return judge_refused(r, row, want, error);
}

/* The broker may have reported since the last look, so that the judgement comes once more before the
 * error. */
int outcomes_late(const outcomes_t *r, outcome_row_t *row, const wait_for_t *want, uint32_t waited_ms,
                  heddle_error_t *error)
{
    int judged = outcomes_judge(r, row, want, error);
    if (judged != HEDDLE_ERR_AGAIN) return judged;
    char why[96], count[64];
    uint32_t eligible = row->report.eligible_count, need = need_count(row, want);
    const char *word = phase_word(want);
    if (waited_ms) snprintf(why, sizeof why, "was not %s on enough workers within %u ms", word, waited_ms);
    else snprintf(why, sizeof why, "is not %s on enough workers yet", word);
    bool is_nobody = row->received_us && are_all_gone(&row->report) && !row->queued[0];
    int rc = is_nobody ? HEDDLE_ERR_NO_WORKERS : HEDDLE_ERR_DEADLINE;
    if (row->report.missing_count) {
        /* The first missing worker that gives a reason explains the most. */
        const heddle_missing_t *m = row->report.missing;
        for (uint32_t i = 0; !m->message[0] && i < row->report.missing_count && i < HEDDLE_MISSING_MAX; i++)
            if (row->report.missing[i].message[0]) m = &row->report.missing[i];
        char who[sizeof why + HEDDLE_NAME_MAX + sizeof m->message];
        const char *said = m->message[0] ? m->message : "has not answered";
        text_printf(who, sizeof who, "%s; %s: %s", why, m->worker, said);
        fail_late(r, row, rc, who, WAIT_LIMIT, error);
        error_where(error, NULL, 0, m->worker, m->phase);
    } else {
        fail_late(r, row, rc, why, WAIT_LIMIT, error);
    }
    error_expected(error, "%s on %s", word, of_workers(need, eligible, count));
    if (row->queued[0]) return rc;
    if (is_nobody) error_found(error, "no worker of %s", r->adapter);
    else if (!row->received_us) error_found(error, "the broker has not reported which workers take it");
    else error_found(error, "on %u", have_count(row, want));
    return rc;
}
