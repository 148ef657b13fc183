/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/inquiry.h"

#include "core/clock.h"
#include "proto/value.h"

/* Due at once: the question is sent in the same turn. */
void inquiry_begin(inquiry_t *q, uint64_t version, uint64_t now_us)
{
    q->version = version;
    q->due_us = now_us;
}

void inquiry_end(inquiry_t *q) { q->version = 0; }

bool inquiry_is_due(const inquiry_t *q, uint64_t now_us) { return q->version && now_us >= q->due_us; }

uint64_t inquiry_deadline(const inquiry_t *q) { return q->version ? q->due_us : CLOCK_NEVER; }

/* Each question has a number of its own, so that a late answer to an earlier one is ignored. */
void inquiry_ask(inquiry_t *q, const char *adapter, uint64_t now_us, msg_t *ret_msg)
{
    q->due_us = now_us + INQUIRY_US;
    *ret_msg = (msg_t){.type = MSG_QUERY};
    ret_msg->query =
        (msg_query_t){.req = ++q->req, .op = "versions", .name = adapter, .version = q->version};
}

/* -- the answer ------------------------------------------------------------------------------- */

/* "" where the answer does not have the field: a broker of another release may have others. */
static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* A negative number would become a huge count. */
static uint64_t count_of(const json_t *object, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(object, key));
    return n > 0 ? (uint64_t)n : 0;
}

/* As many rows as a report has room for; the texts are borrowed from the JSON. */
static uint32_t list_missing(const json_t *rollout, msg_missing_t rows[HEDDLE_MISSING_MAX])
{
    const json_t *list = json_object_get(rollout, "missing");
    uint32_t count = 0;
    for (; count < HEDDLE_MISSING_MAX && count < json_array_size(list); count++) {
        const json_t *m = json_array_get(list, count);
        rows[count] = (msg_missing_t){.worker = text_of(m, "worker"), .phase = text_of(m, "phase"),
                                      .code = text_of(m, "code"), .message = text_of(m, "message")};
    }
    return count;
}

/* The answer is brought into the form of a ROLLOUT, so that one function updates the row. What the answer
 * does not have stays as the row has it. */
static void learn(report_row_t *row, const json_t *version, uint64_t now_us)
{
    msg_missing_t missing[HEDDLE_MISSING_MAX];
    const json_t *rollout = json_object_get(version, "rollout"), *why = json_object_get(version, "reason");
    const char *state = text_of(version, "state");
    msg_rollout_t m = {.version = row->report.version, .decision = row->report.decision,
                       .activation = (uint64_t)row->report.activation,
                       .deadline_ms = row->report.deadline_ms,
                       .eligible_count = count_of(rollout, "eligible_count"),
                       .staged_count = count_of(rollout, "staged_count"),
                       .active_count = count_of(rollout, "active_count"), .state = state,
                       .code = text_of(why, "code"), .message = text_of(why, "message"),
                       .missing = missing, .missing_count = list_missing(rollout, missing)};
    reports_update(row, &m, now_us);
    bool was_active = text_of(version, "activated_at")[0] != 0;
    if (!strcmp(state, "retired") && was_active) reports_was_active(row); /* the counts are forgotten */
}

/* An answer to an earlier question, or about another version, is ignored. */
bool inquiry_answer(const inquiry_t *q, const msg_report_t *m, report_row_t *row, uint64_t now_us)
{
    json_t *body = NULL;
    if (!q->version || m->req != q->req || value_decode(m->body, &body, NULL)) return false;
    const json_t *version = json_array_get(json_object_get(body, "versions"), 0);
    bool is_told = row && count_of(version, "version") == q->version;
    if (is_told) learn(row, version, now_us);
    json_decref(body);
    return is_told;
}
