/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/questions/answer_brokers.h"
#include "broker/questions/cell.h"

#include <heddle/heddle.h>

static json_t *leader_json(const answer_view_t *b)
{
    const brokers_row_t *own = b->brokers ? &b->brokers->own : NULL;
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:s}", "endpoint", own ? own->endpoint : b->endpoint, "role",
                     "leader", "following", json_null(), "behind", json_null(), "pid", cell_count(b->pid),
                     "heddle", heddle_version());
}

static json_t *standby_json(const brokers_row_t *row)
{
    return json_pack("{s:s, s:s, s:b, s:o, s:o, s:o}", "endpoint", row->endpoint, "role", "standby",
                     "following", (int)row->is_following, "behind",
                     row->is_following ? cell_count(row->behind) : json_null(), "pid", cell_count(row->pid),
                     "heddle", cell_text(row->release));
}

static json_t *list_json(const answer_view_t *b)
{
    rows_t rows;
    rows_init(&rows, 0, BROKERS_MAX + 1);
    bool has_room = rows_add(&rows, leader_json(b));
    for (size_t i = 0; b->brokers && has_room && i < b->brokers->count; i++)
        has_room = rows_add(&rows, standby_json(&b->brokers->rows[i]));
    return rows_end(&rows);
}

/* That etcd does not answer comes before what else it takes no records for. */
static json_t *store_json(const answer_view_t *b)
{
    const brokers_t *of = b->brokers;
    bool is_silent = of && !of->is_answered;
    const char *state = is_silent ? "unanswered" : b->is_read_only ? "read_only" : "ready";
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o}", "kind", of ? "etcd" : "sqlite", "place",
                     b->data_dir, "state", state, "message",
                     b->is_read_only ? cell_text(b->read_only_why) : json_null(), "revision",
                     cell_number(of ? of->revision : 0), "seen_age_ms",
                     of && of->seen_us ? cell_ms(b->now.us - of->seen_us) : json_null(), "registry_bytes",
                     cell_count(b->registry_bytes(b->self)));
}

int answer_brokers(const answer_view_t *b, const msg_query_t *q, answer_page_t *page, heddle_error_t *error)
{
    (void)q;
    page->body =
        cell_body("brokers", true,
                  json_pack("{s:s, s:o, s:o, s:o}", "cluster", b->cluster, "epoch",
                            cell_count(b->registry->epoch), "brokers", list_json(b), "store", store_json(b)));
    return page->body ? HEDDLE_OK : cell_no_memory(error);
}
