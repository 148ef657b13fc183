/* SPDX-License-Identifier: Apache-2.0 */
/* The question `reach`: where the data plane of each worker is, for a process that is no member and wants to
 * know which of them it reaches.  Nothing is remembered of it. */
#include "broker/questions/query.h"

#include "broker/questions/cell.h"
#include "core/errors.h"
#include "proto/value.h"

#include <string.h>

/* A worker that was fenced or has left has an address that is another process's by now, perhaps. */
static bool is_there(const member_t *m)
{
    return (m->state == MEMBER_READY || m->state == MEMBER_DRAINING) && m->address_bytes;
}

/* An address leads into a process, so a key is named those of its own adapters alone.  Without keys (NULL)
 * there is nothing to tell clients apart by. */
static bool is_for(const auth_key_t *key, const member_t *m)
{
    for (uint32_t i = 0; key && i < m->sub_count; i++)
        if (auth_is_member(key, m->subs[i].adapter)) return true;
    return !key;
}

/* A page has as many workers as a list of sources: an address is too long for many more. */
void on_reach(const call_t *c)
{
    heddle_error_t error;
    msg_source_t sources[LIMIT_SOURCES];
    const msg_query_t *q = &c->m->query;
    const membership_t *all = &c->b->members;
    msg_report_t report = {.req = q->req, .sources = sources};
    json_t *rows = json_array();
    bool ok = rows;
    for (size_t i = 0; ok && i < all->worker_count && !report.more; i++) {
        const member_t *m = all->workers[i];
        if (!is_there(m) || !is_for(c->key, m)) continue;
        if (q->after_name && strcmp(m->name, q->after_name) <= 0) continue;
        report.more = report.source_count == LIMIT_SOURCES;
        if (report.more) continue;
        ok = json_array_append_new(rows, json_pack("{s:s, s:o, s:o}", "name", m->name, "host",
                                                   cell_text(m->host), "ucx", cell_text(m->ucx))) == 0;
        sources[report.source_count++] = (msg_source_t){.token = m->token,
                                                        .kind = SOURCE_WORKER,
                                                        .name = m->name,
                                                        .address = bytes_of(m->address, m->address_bytes)};
        report.next_name = m->name;
    }
    json_t *body = ok ? cell_body("reach", true, json_pack("{s:O}", "workers", rows)) : NULL;
    buf_t bytes = {0};
    int rc = body ? value_encode(body, &bytes) : cell_no_memory(&error);
    if (rc) {
        error_fail(&error, rc, "no memory for the answer");
        broker_refuse(c, &error, 0);
    } else {
        report.body = buf_view(&bytes);
        msg_t m = {.type = MSG_REPORT, .report = report};
        outbox_send(c->b->out, c->from, &m);
    }
    buf_fini(&bytes);
    json_decref(rows);
    json_decref(body);
}
