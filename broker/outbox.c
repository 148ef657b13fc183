/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/outbox.h"

#include <stdlib.h>

void outbox_fini(outbox_t *o)
{
    free(o->sends);
    buf_fini(&o->frames);
    arena_fini(&o->texts);
    *o = (outbox_t){0};
}

/* Memory of sends and frames stays, because each turn needs it again. */
void outbox_clear(outbox_t *o)
{
    o->record_count = 0;
    o->send_count = 0;
    buf_clear(&o->frames);
    arena_fini(&o->texts);
    o->failed = false;
    o->unsendable = (msg_type_t)0;
}

/* Texts are "" and never NULL, so that store and registry need no check. */
record_t *outbox_record(outbox_t *o, record_kind_t kind, const char *adapter, instant_t now)
{
    if (!outbox_has_room(o, 1)) return NULL;
    record_t *r = &o->records[o->record_count++];
    *r = (record_t){.kind = kind,
                    .adapter = adapter,
                    .at_ms = now.wall_ms,
                    .step = -1,
                    .request_id = "",
                    .writer = "",
                    .base_model = "",
                    .kind_text = "",
                    .features = "",
                    .meta = "",
                    .message = "",
                    .worker = "",
                    .phase = "",
                    .by = "",
                    .host = "",
                    .public_key = "",
                    .name = "",
                    .roles = "",
                    .serves = ""};
    return r;
}

bool outbox_has_room(const outbox_t *o, int records) { return records <= OUTBOX_RECORDS - o->record_count; }

/* Without memory, or for a message beyond its limits, nothing is added.  The flags say so, and the caller
 * of the step decides what follows. */
void outbox_send(outbox_t *o, uint64_t peer, const msg_t *m)
{
    size_t at = o->frames.bytes;
    int rc = HEDDLE_OK;
    if (o->send_count == o->send_capacity) {
        size_t capacity = o->send_capacity ? o->send_capacity * 2 : 64;
        outbox_send_t *sends = realloc(o->sends, capacity * sizeof *sends);
        if (sends) {
            o->sends = sends;
            o->send_capacity = capacity;
        } else rc = HEDDLE_ERR_NO_MEMORY;
    }
    if (!rc) rc = msg_encode(m, &o->frames);
    if (rc) {
        o->failed |= rc == HEDDLE_ERR_NO_MEMORY;
        if (rc != HEDDLE_ERR_NO_MEMORY && !o->unsendable) o->unsendable = m->type;
        return;
    }
    o->sends[o->send_count++] =
        (outbox_send_t){.peer = peer, .type = m->type, .at = at, .bytes = o->frames.bytes - at};
}

const char *outbox_text(outbox_t *o, const char *text)
{
    const char *copy = arena_text(&o->texts, text, strlen(text));
    if (copy) return copy;
    o->failed = true;
    return "";
}

/* Copies all texts of the records, because they point into the request that is freed before the commit
 * ends. */
bool outbox_own(outbox_t *o)
{
    for (int i = 0; i < o->record_count; i++) {
        record_t *r = &o->records[i];
        const char **texts[] = {&r->adapter,  &r->request_id, &r->writer,  &r->base_model, &r->kind_text,
                                &r->features, &r->meta,       &r->message, &r->worker,     &r->phase,
                                &r->by,       &r->host,       &r->name,    &r->public_key, &r->roles,
                                &r->serves,   &r->entered_by};
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            if (*texts[k] && **texts[k]) *texts[k] = outbox_text(o, *texts[k]);
        if (!r->config.bytes) continue;
        r->config.data = arena_copy(&o->texts, r->config.data, r->config.bytes);
        o->failed |= !r->config.data;
    }
    return !o->failed;
}
