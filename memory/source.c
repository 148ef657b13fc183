/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/source.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdlib.h>
#include <string.h>

typedef struct content {
    struct content *next;
    hold_t *hold; /* NULL: the pool has it */
    round_t round;
} content_t;

struct source {
    pool_t *pool;
    handover_t *handover;
    content_t *first;
    uint32_t count;
    uint64_t now_us;   /* of the turn */
    uint64_t quiet_us; /* when the background may go on */
};

static content_t *find(const source_t *s, const content_id_t *id)
{
    content_t *c = s->first;
    while (c && !content_is(&c->round.id, id)) c = c->next;
    return c;
}

/* A region alone may be mapped whatever is in it; content only while it is added, and not known to be bad. */
static int find_file(void *self, const content_id_t *id)
{
    const source_t *s = self;
    const content_t *c = find(s, id);
    int fd;
    if (!id->epoch) return pool_find(s->pool, id);
    if (!c || c->round.state == ROUND_SPOILED) return -1;
    if (!c->hold) return pool_find(s->pool, id);
    return hold_hand_on(c->hold, &fd, NULL) ? -1 : fd;
}

static void tell(source_t *s, const content_t *c, round_act_t act)
{
    for (uint32_t i = 0; i < LIMIT_WATCHERS && act.is_any; i++)
        if (act.watcher == i || (act.watcher == ROUND_ALL && round_has(&c->round, i)))
            handover_tell(s->handover, i, act.note, &c->round.id);
}

static void hear(void *self, uint32_t watcher, note_t note, const content_id_t *id)
{
    source_t *s = self;
    s->quiet_us = s->now_us + SOURCE_QUIET_US;
    round_event_t event = note == NOTE_HELD ? ROUND_HELD : note == NOTE_GOOD ? ROUND_GOOD : ROUND_BAD;
    if (note == NOTE_GONE) {
        for (content_t *c = s->first; c; c = c->next)
            tell(s, c, round_step(&c->round, ROUND_GONE, watcher, s->now_us));
        return;
    }
    content_t *c = find(s, id);
    if (c) tell(s, c, round_step(&c->round, event, watcher, s->now_us));
}

int source_new(const source_opts_t *opts, source_t **ret_source, heddle_error_t *error)
{
    source_t *s = calloc(1, sizeof *s);
    if (!s) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to offer shared memory");
    s->pool = opts->pool;
    int rc = handover_listen(opts->directory, opts->name, find_file, s, &s->handover, error);
    if (rc) {
        source_destroy(&s);
        return rc;
    }
    handover_hear(s->handover, hear);
    *ret_source = s;
    return HEDDLE_OK;
}

void source_destroy(source_t **source)
{
    source_t *s = source ? *source : NULL;
    if (!s) return;
    *source = NULL;
    handover_destroy(&s->handover);
    for (content_t *c = s->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(s);
}

int source_fd(const source_t *s) { return handover_fd(s->handover); }

uint64_t source_turn(source_t *s, uint64_t now_us)
{
    region_name_t names[LIMIT_OFFERED];
    uint32_t count;
    s->now_us = now_us;
    if (pool_list(s->pool, names, &count)) handover_offer(s->handover, names, count);
    uint64_t due_us = handover_turn(s->handover, now_us);
    for (content_t *c = s->first; c; c = c->next) {
        if (c->round.due_us <= now_us) tell(s, c, round_step(&c->round, ROUND_TIME, 0, now_us));
        due_us = clock_earlier(due_us, c->round.due_us);
    }
    return clock_earlier(due_us, s->quiet_us <= now_us ? pool_work(s->pool, now_us) : s->quiet_us);
}

int source_add(source_t *s, const source_content_t *content, uint64_t now_us, heddle_error_t *error)
{
    s->quiet_us = now_us + SOURCE_QUIET_US;
    if (find(s, &content->id)) return HEDDLE_OK;
    if (s->count == LIMIT_OFFERED)
        return error_fail(error, HEDDLE_ERR_LIMIT, "more than %u contents cannot be offered to this host",
                          LIMIT_OFFERED);
    content_t *c = calloc(1, sizeof *c);
    if (!c) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to offer shared memory");
    round_begin(&c->round, &content->id, content->bytes, content->is_verified);
    c->hold = content->hold;
    c->next = s->first;
    s->first = c;
    s->count++;
    return HEDDLE_OK;
}

void source_remove(source_t *s, const content_id_t *id)
{
    content_t **at = &s->first, *c = find(s, id);
    if (!c) return;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    free(c);
    s->count--;
}

round_state_t source_state(const source_t *s, const content_id_t *id)
{
    const content_t *c = find(s, id);
    return c ? c->round.state : ROUND_SPOILED;
}
