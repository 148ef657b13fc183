/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/answer_pending.h"
#include "broker/questions/why.h"

#include "proto/value.h"

/* A verdict with a code makes the body an error too, with the reason. */
static int finish(const char *kind, const heddle_error_t *verdict, json_t *fields, json_t **ret_body)
{
    if (verdict->code && fields && json_object_set_new(fields, "error", value_from_error(verdict)) != 0) {
        json_decref(fields);
        return HEDDLE_ERR_NO_MEMORY;
    }
    json_t *body = cell_body(kind, !verdict->code, fields);
    if (!body) return HEDDLE_ERR_NO_MEMORY;
    *ret_body = body;
    return HEDDLE_OK;
}

/* ---- wait, activate -------------------------------------------------------------------------- */

/* Both lists of a wait are made of the same rows: of all workers that count, what each serves; of the missing
 * ones, how far each has come and why it goes no further. */
static json_t *wait_list(const answer_view_t *b, const pending_row_t *asked, const wait_view_t *w,
                         const heddle_error_t *verdict, bool missing)
{
    const adapter_row_t *a = registry_adapter(b->registry, asked->adapter);
    const track_t *t = track_find(b->rollout, asked->adapter, asked->version);
    rows_t rows;
    rows_init(&rows, 0, ANSWER_WAIT_ROWS);
    for (uint32_t i = 0; i < w->count; i++) {
        const wait_row_t *row = &w->rows[i];
        const version_row_t *v = a && row->version ? registry_version(a, row->version) : NULL;
        const copy_row_t *c = missing ? row->copy : NULL;
        why_copy_t p = c && !row->code ? why_copy(b, t, c) : (why_copy_t){0};
        int code = row->code                              ? row->code
                   : verdict->code == HEDDLE_ERR_DEADLINE ? HEDDLE_ERR_DEADLINE
                                                          : HEDDLE_OK;
        if (missing && row->is_reached) continue;
        json_t *part =
            missing
                ? json_pack("{s:s, s:o, s:o, s:o, s:o}", "worker", row->worker, "phase",
                            cell_text(row->phase), "code", cell_code(code), "heartbeat_age_ms",
                            row->member ? cell_count(row->heartbeat_age_ms) : json_null(), "note",
                            cell_text(row->code ? row->message : p.note))
                : json_pack("{s:s, s:o, s:o, s:o, s:o}", "worker", row->worker, "version",
                            cell_number(row->version), "digest", cell_digest(v ? &v->digest : NULL), "state",
                            cell_text(row->state == COPY_NONE ? NULL : copy_state_name(row->state)),
                            "since_at", cell_time(row->since_ms));
        if (!rows_add(&rows, part)) break;
    }
    return rows_end(&rows);
}

/* The worker has the bytes of this version, perhaps under another number: then it fetches nothing. */
static bool has_content(const answer_view_t *b, const adapter_row_t *a, const version_row_t *v,
                        const member_t *m)
{
    for (size_t i = 0; i < a->version_count; i++)
        if (digest_equal(&a->versions[i]->digest, &v->digest) &&
            copy_holds(copy_of(track_find(b->rollout, a->name, a->versions[i]->version), m)))
            return true;
    return false;
}

/* A trial says which workers would fetch the version, and what each serves until then. */
static json_t *fetch_list(const answer_view_t *b, const wait_view_t *w, const adapter_row_t *a,
                          const version_row_t *v, uint64_t *ret_bytes)
{
    rows_t rows;
    uint64_t bytes = 0;
    bool has_room = true; /* the sum is of all, also where the list is cut */
    rows_init(&rows, 0, ANSWER_WAIT_ROWS);
    for (uint32_t i = 0; v && i < w->count; i++) {
        const wait_row_t *row = &w->rows[i];
        if (!row->member || has_content(b, a, v, row->member)) continue;
        bytes += v->data_bytes;
        if (!has_room) continue;
        json_t *part = json_pack("{s:s, s:o, s:o}", "worker", row->worker, "bytes", cell_count(v->data_bytes),
                                 "version", cell_number(row->version));
        has_room = rows_add(&rows, part);
    }
    *ret_bytes = bytes;
    return rows_end(&rows);
}

int answer_wait(const answer_view_t *b, const pending_row_t *row, const heddle_error_t *verdict,
                json_t **ret_body)
{
    wait_view_t view = {0};
    int rc = wait_view(row, b->rollout, (view_t){b->registry, b->members, b->now}, &view);
    if (rc) return rc;
    const adapter_row_t *a = registry_adapter(b->registry, row->adapter);
    const version_row_t *v = a ? registry_version(a, row->version) : NULL;
    /* An activation that is only tried out decides nothing, so it shows the current decision. */
    bool is_trial = row->kind == PENDING_ACTIVATE && row->dry_run;
    uint64_t decision = is_trial ? row->activated.decision : v ? v->decision : 0;
    json_t *fields = json_pack(
        "{s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "adapter", row->adapter, "version",
        cell_number(row->version), "digest", cell_digest(v ? &v->digest : NULL), "decision",
        cell_number(decision), "phase", row->phase == HEDDLE_PHASE_STAGED ? "staged" : "active", "need_count",
        cell_count(view.need), "have_count", cell_count(view.have), "eligible_count",
        cell_count(view.eligible), "elapsed_ms", cell_ms(b->now.us - row->asked_us), "workers",
        wait_list(b, row, &view, verdict, false), "missing", wait_list(b, row, &view, verdict, true));
    uint64_t to_fetch = 0;
    json_t *would_fetch = row->kind != PENDING_ACTIVATE ? NULL
                          : is_trial                    ? fetch_list(b, &view, a, v, &to_fetch)
                                                        : json_array();
    wait_view_fini(&view);
    if (row->kind != PENDING_ACTIVATE) return finish("wait", verdict, fields, ret_body);
    uint64_t moved = track_moved_bytes(track_find(b->rollout, row->adapter, row->version));
    moved = row->is_decided && !is_trial && moved > row->moved_base ? moved - row->moved_base : 0;
    json_t *more =
        json_pack("{s:o, s:o, s:b, s:b, s:b, s:b, s:o, s:o, s:o}", "from", cell_number(row->activated.from),
                  "to", cell_number(row->version), "changed", (int)row->activated.changed, "same_bytes",
                  (int)row->activated.same_bytes, "held", (int)row->activated.held, "dry_run", (int)is_trial,
                  "bytes_moved", cell_count(moved), "would_fetch", would_fetch, "would_fetch_bytes",
                  is_trial ? cell_count(to_fetch) : json_null());
    bool ok = fields && more && json_object_update(fields, more) == 0;
    json_decref(more);
    if (!ok) {
        json_decref(fields);
        return HEDDLE_ERR_NO_MEMORY;
    }
    return finish(aim_name(row->aim), verdict, fields, ret_body);
}

/* ---- verify ---------------------------------------------------------------------------------- */

/* The list has one row for each holder that was asked, whether it answered or not. */
int answer_verify(const answer_view_t *b, const pending_row_t *row, const heddle_error_t *verdict,
                  json_t **ret_body)
{
    rows_t rows;
    rows_init(&rows, 0, ANSWER_WAIT_ROWS);
    for (uint32_t i = 0; i < row->row_count; i++) {
        const verify_row_t *v = &row->rows[i];
        bool hashed = verify_row_has_digest(v);
        int code = v->code           ? v->code
                   : !v->is_answered ? HEDDLE_ERR_DEADLINE
                   : v->is_match     ? HEDDLE_OK
                                     : HEDDLE_ERR_DIGEST_MISMATCH;
        json_t *exported =
            v->exported == EXPORTED_UNKNOWN ? json_null() : json_boolean(v->exported == EXPORTED_MATCH);
        json_t *part = json_pack("{s:s, s:o, s:o, s:b, s:o, s:o, s:o}", "worker", v->worker, "version",
                                 cell_count(row->version), "digest", cell_digest(hashed ? &v->digest : NULL),
                                 "match", (int)(hashed && v->is_match), "exported_match", exported, "hash_ms",
                                 hashed ? cell_ms(v->hash_us) : json_null(), "code", cell_code(code));
        if (!rows_add(&rows, part)) break;
    }
    json_t *fields = json_pack("{s:s, s:o, s:o, s:o, s:o}", "adapter", row->adapter, "version",
                               cell_count(row->version), "expected", cell_digest(&row->expected),
                               "elapsed_ms", cell_ms(b->now.us - row->asked_us), "workers", rows_end(&rows));
    return finish("verify", verdict, fields, ret_body);
}
