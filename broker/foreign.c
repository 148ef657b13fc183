/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/foreign.h"

#include "core/bytes.h"

#include <string.h>

bool foreign_is_listed(const foreign_member_t *row, uint64_t now_us)
{
    return row->heard_us && now_us < row->heard_us + FOREIGN_US;
}

/* Each process is logged once in FOREIGN_US, and all together once in FOREIGN_PAUSE_US: a whole cluster
 * that is misdirected must not fill the log. */
const char *foreign_heard(foreign_t *s, const msg_hello_t *m, const char *cluster, instant_t now)
{
    static const char *const ROLES[] = {"a client", "a worker", "a publisher", "a command"};
    if (!m->cluster || !m->cluster[0] || !strcmp(m->cluster, cluster)) return NULL;
    /* The row of that process, or the one that has been silent for longest. */
    foreign_member_t *row = NULL, *oldest = s->rows;
    for (foreign_member_t *r = s->rows; !row && r < s->rows + FOREIGN_MAX; r++) {
        if (r->heard_us && !memcmp(&r->life, &m->life, sizeof m->life)) row = r;
        else if (r->heard_us < oldest->heard_us) oldest = r;
    }
    if (!row) {
        row = oldest;
        *row = (foreign_member_t){.life = m->life};
    }
    row->heard_us = now.us ? now.us : 1;
    row->heard_ms = now.wall_ms;
    text_printf(row->text, sizeof row->text,
                "%s on %s, pid %llu, belongs to cluster %.64s, this is %.64s: it will not join; is this the "
                "right --data?",
                ROLES[m->role], m->host, (unsigned long long)m->pid, m->cluster, cluster);
    if (row->said_us && now.us - row->said_us < FOREIGN_US) return NULL;
    if (s->said_us && row->heard_us - s->said_us < FOREIGN_PAUSE_US) {
        s->unsaid_count++;
        return NULL;
    }
    s->said_us = row->said_us = row->heard_us;
    if (!s->unsaid_count) return row->text;
    text_printf(s->line, sizeof s->line, "%s (and %llu more like it since the last line)", row->text,
                (unsigned long long)s->unsaid_count);
    s->unsaid_count = 0;
    return s->line;
}
