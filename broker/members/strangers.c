/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/members/strangers.h"

#include "core/bytes.h"

#include <string.h>

bool stranger_is_listed(const stranger_t *row, uint64_t now_us)
{
    return row->received_us && now_us < row->received_us + STRANGERS_US;
}

/* The row of that id, or the one that has been silent for longest. */
static stranger_t *note(strangers_t *s, const void *id, size_t bytes, instant_t now)
{
    char key[sizeof s->rows->id] = "";
    stranger_t *row = NULL, *oldest = s->rows;
    memcpy(key, id, bytes < sizeof key ? bytes : sizeof key - 1);
    for (stranger_t *r = s->rows; !row && r < s->rows + STRANGERS_MAX; r++) {
        if (r->received_us && !memcmp(r->id, key, sizeof key)) row = r;
        else if (r->received_us < oldest->received_us) oldest = r;
    }
    if (!row) {
        row = oldest;
        *row = (stranger_t){0};
        memcpy(row->id, key, sizeof key);
    }
    if (!stranger_is_listed(row, now.us)) row->count = 0;
    row->count++;
    row->received_us = now.us ? now.us : 1;
    row->received_ms = now.wall_ms;
    return row;
}

/* A whole cluster that is misdirected must not fill the log. */
static const char *line_of(strangers_t *s, stranger_t *row)
{
    if (row->logged_us && row->received_us - row->logged_us < STRANGERS_US) return NULL;
    if (s->logged_us && row->received_us - s->logged_us < STRANGERS_PAUSE_US) {
        s->unlogged_count++;
        return NULL;
    }
    s->logged_us = row->logged_us = row->received_us;
    if (!s->unlogged_count) return row->text;
    text_printf(s->line, sizeof s->line, "%s (and %llu more like it since the last line)", row->text,
                (unsigned long long)s->unlogged_count);
    s->unlogged_count = 0;
    return s->line;
}

const char *strangers_hello(strangers_t *s, const msg_hello_t *m, const char *cluster, instant_t now)
{
    static const char *const ROLES[] = {"a client", "a worker", "a publisher", "a command"};
    if (!m->cluster || !m->cluster[0] || !strcmp(m->cluster, cluster)) return NULL;
    stranger_t *row = note(s, &m->life, sizeof m->life, now);
    text_printf(row->text, sizeof row->text,
                "%s on %s, pid %llu, belongs to cluster %.64s, this is %.64s: it will not join; is this the "
                "right --data?",
                ROLES[m->role], m->host, (unsigned long long)m->pid, m->cluster, cluster);
    return line_of(s, row);
}

const char *strangers_key(strangers_t *s, const char *public_key, bool is_revoked, const char *command,
                          instant_t now)
{
    stranger_t *row = note(s, public_key, strlen(public_key), now);
    row->lacks_role = false;
    text_printf(row->text, sizeof row->text, "the key %s was refused %llu time%s: it %s; `%s` admits it",
                public_key, (unsigned long long)row->count, row->count == 1 ? "" : "s",
                is_revoked ? "was revoked" : "is not in the table of keys", command);
    return line_of(s, row);
}

const char *strangers_role(strangers_t *s, const char *public_key, const heddle_error_t *why, instant_t now)
{
    stranger_t *row = note(s, public_key, strlen(public_key), now);
    row->lacks_role = true;
    text_printf(row->text, sizeof row->text, "%.300s; it has %.120s (refused %llu time%s)", why->message,
                why->found, (unsigned long long)row->count, row->count == 1 ? "" : "s");
    return line_of(s, row);
}

void strangers_forget(strangers_t *s, const char *public_key)
{
    for (stranger_t *r = s->rows; r < s->rows + STRANGERS_MAX; r++)
        if (r->received_us && !strcmp(r->id, public_key)) *r = (stranger_t){0};
}
