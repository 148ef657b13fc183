/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/json_parts.h"

#include "proto/value.h"

/* A verdict with a code makes the body an error too, with the reason. */
static int finish(const char *kind, const heddle_error_t *verdict, json_t *fields, json_t **ret_body)
{
    if (verdict->code && fields && json_object_set_new(fields, "error", value_from_error(verdict)) != 0) {
        json_decref(fields);
        return HEDDLE_ERR_NO_MEMORY;
    }
    json_t *body = part_body(kind, !verdict->code, fields);
    if (!body) return HEDDLE_ERR_NO_MEMORY;
    *ret_body = body;
    return HEDDLE_OK;
}

/* ---- wait, activate -------------------------------------------------------------------------- */

static const digest_t *digest_of(const adapter_row_t *a, uint64_t version)
{
    const version_row_t *v = a && version ? registry_version(a, version) : NULL;
    return v ? &v->digest : NULL;
}

static json_t *wait_worker(const wait_row_t *w, const adapter_row_t *a)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o}", "worker", w->worker, "version", part_number(w->version),
                     "digest", part_digest(digest_of(a, w->version)), "state",
                     w->state == COPY_NONE ? json_null() : part_text(copy_state_name(w->state)), "since_at",
                     part_time(w->since_ms));
}

static json_t *wait_missing(const wait_row_t *w, const heddle_error_t *verdict)
{
    int code = w->code ? w->code : verdict->code == HEDDLE_ERR_DEADLINE ? HEDDLE_ERR_DEADLINE : HEDDLE_OK;
    return json_pack("{s:s, s:o, s:o, s:o}", "worker", w->worker, "phase", part_text(w->phase), "code",
                     part_code(code), "heartbeat_age_ms",
                     w->member ? part_count(w->heartbeat_age_ms) : json_null());
}

static json_t *wait_list(const wait_view_t *w, const adapter_row_t *a, const heddle_error_t *verdict,
                         bool missing)
{
    rows_t rows;
    rows_init(&rows, 0, REPORT_WAIT_ROWS);
    for (uint32_t i = 0; i < w->count; i++) {
        const wait_row_t *row = &w->rows[i];
        if (missing && row->is_reached) continue;
        if (!rows_add(&rows, missing ? wait_missing(row, verdict) : wait_worker(row, a))) break;
    }
    return rows_end(&rows);
}

/* The version's latest decision.  An activation that is only tried out decides nothing, so it shows the
 * current one. */
static uint64_t decision_of(const pending_row_t *row, const version_row_t *v)
{
    if (row->kind == PENDING_ACTIVATE && row->dry_run) return row->activated.decision;
    return v ? v->decision : 0;
}

/* What an activation adds to a wait. */
static json_t *activate_fields(const report_view_t *b, const pending_row_t *row, json_t *fields)
{
    const track_t *t = rollout_track(b->rollout, row->adapter, row->version);
    uint64_t moved =
        t && row->is_decided && t->bytes_moved > row->moved_base ? t->bytes_moved - row->moved_base : 0;
    json_t *more = json_pack("{s:o, s:o, s:b, s:b, s:o}", "from", part_number(row->activated.from), "to",
                             part_number(row->version), "changed", (int)row->activated.changed, "held",
                             (int)row->activated.held, "bytes_moved", part_count(moved));
    bool ok = fields && more && json_object_update(fields, more) == 0;
    json_decref(more);
    if (ok) return fields;
    json_decref(fields);
    return NULL;
}

int report_wait(const report_view_t *b, const pending_row_t *row, const heddle_error_t *verdict,
                json_t **ret_body)
{
    wait_view_t view = {0};
    int rc = wait_view(row, b->rollout, (view_t){b->registry, b->members, b->now}, &view);
    if (rc) return rc;
    const adapter_row_t *a = registry_adapter(b->registry, row->adapter);
    const version_row_t *v = a ? registry_version(a, row->version) : NULL;
    json_t *fields = json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "adapter", row->adapter, "version",
        part_number(row->version), "digest", part_digest(v ? &v->digest : NULL), "decision",
        part_number(decision_of(row, v)), "phase", row->phase == HEDDLE_PHASE_STAGED ? "staged" : "active",
        "need_count", part_count(view.need), "have_count", part_count(view.have), "eligible_count",
        part_count(view.eligible), "elapsed_ms", part_ms(b->now.us - row->asked_us), "workers",
        wait_list(&view, a, verdict, false), "missing", wait_list(&view, a, verdict, true));
    wait_view_fini(&view);
    if (row->kind == PENDING_ACTIVATE) fields = activate_fields(b, row, fields);
    return finish(row->kind == PENDING_ACTIVATE ? aim_name(row->aim) : "wait", verdict, fields, ret_body);
}

/* ---- verify ---------------------------------------------------------------------------------- */

static json_t *verify_part(const pending_row_t *row, const verify_row_t *v)
{
    bool hashed = verify_has_digest(v);
    int code = v->code           ? v->code
               : !v->is_answered ? HEDDLE_ERR_DEADLINE
               : v->is_match     ? HEDDLE_OK
                                 : HEDDLE_ERR_DIGEST_MISMATCH;
    json_t *exported =
        v->exported == EXPORTED_UNKNOWN ? json_null() : json_boolean(v->exported == EXPORTED_MATCH);
    return json_pack("{s:s, s:o, s:o, s:b, s:o, s:o, s:o}", "worker", v->worker, "version",
                     part_count(row->version), "digest", part_digest(hashed ? &v->digest : NULL), "match",
                     (int)(hashed && v->is_match), "exported_match", exported, "hash_ms",
                     hashed ? part_ms(v->hash_us) : json_null(), "code", part_code(code));
}

/* The list has one row for each holder that was asked, whether it answered or not. */
int report_verify(const report_view_t *b, const pending_row_t *row, const heddle_error_t *verdict,
                  json_t **ret_body)
{
    rows_t rows;
    rows_init(&rows, 0, REPORT_WAIT_ROWS);
    for (uint32_t i = 0; i < row->row_count && rows_add(&rows, verify_part(row, &row->rows[i])); i++)
        continue;
    json_t *fields = json_pack("{s:s, s:o, s:o, s:o, s:o}", "adapter", row->adapter, "version",
                               part_count(row->version), "expected", part_digest(&row->expected),
                               "elapsed_ms", part_ms(b->now.us - row->asked_us), "workers", rows_end(&rows));
    return finish("verify", verdict, fields, ret_body);
}
