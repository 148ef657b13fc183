/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/provider.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/log.h"
#include "memory/file.h"

#include <stdlib.h>
#include <string.h>

typedef struct content {
    struct content *next;
    hold_t *hold; /* NULL: the pool has it */
    round_t round;
} content_t;

struct provider {
    pool_t *pool;
    handover_t *handover;
    content_t *first;
    uint64_t now_us; /* of the turn */
    uint64_t due_us; /* the next one */
};

static content_t *find(const provider_t *p, const content_id_t *id)
{
    content_t *c = p->first;
    while (c && !content_is(&c->round.id, id)) c = c->next;
    return c;
}

/* A region alone may be mapped whatever is in it; content only while it is added, and not known to be bad. */
static int find_file(void *self, const content_id_t *id)
{
    const provider_t *p = self;
    const content_t *c = find(p, id);
    int fd;
    if (!id->generation) return pool_find(p->pool, id);
    if (!c || c->round.state == ROUND_SPOILED) return HEDDLE_ERR_NOT_FOUND;
    if (!c->hold) return pool_find(p->pool, id);
    return hold_hand_on(c->hold, &fd, NULL) ? HEDDLE_ERR_NOT_FOUND : fd;
}

static void tell(provider_t *p, const content_t *c, round_act_t act)
{
    for (uint32_t i = 0; i < LIMIT_WATCHERS && act.is_any; i++)
        if (act.watcher == i || (act.watcher == ROUND_ALL && round_has(&c->round, i)))
            handover_tell(p->handover, i, act.note, &c->round.id);
}

/* The only trace of it: a process that uses the content already is not stopped. */
static void log_doubt(const round_t *r, round_state_t before)
{
    char name[CONTENT_TEXT];
    if (r->state == before || r->state < ROUND_DOUBTED) return;
    const char *was = before == ROUND_VERIFIED ? ", after another one had found it good" : "";
    if (r->state == ROUND_DOUBTED)
        log_emit(LOG_WARN, "memory.doubted",
                 "a process of this host found that %s differs from its manifest%s: each process verifies it "
                 "for itself from now on",
                 content_text(&r->id, name), was);
    else
        log_emit(LOG_WARN, "memory.spoiled",
                 "two processes of this host found that %s differs from its manifest: it is no longer handed "
                 "over",
                 content_text(&r->id, name));
}

static void hear(void *self, uint32_t watcher, note_t note, const content_id_t *id)
{
    provider_t *p = self;
    round_event_t event = note == NOTE_HELD ? ROUND_HELD : note == NOTE_GOOD ? ROUND_GOOD : ROUND_BAD;
    if (note == NOTE_GONE) {
        for (content_t *c = p->first; c; c = c->next)
            tell(p, c, round_step(&c->round, ROUND_GONE, watcher, p->now_us));
        return;
    }
    content_t *c = find(p, id);
    if (c) {
        round_state_t before = c->round.state;
        tell(p, c, round_step(&c->round, event, watcher, p->now_us));
        log_doubt(&c->round, before);
    } else if (note == NOTE_HELD) {
        handover_tell(p->handover, watcher, NOTE_VERIFY, id);
    }
}

int provider_new(const provider_opts_t *opts, provider_t **ret_provider, heddle_error_t *error)
{
    provider_t *p = calloc(1, sizeof *p);
    if (!p) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to offer shared memory");
    p->pool = opts->pool;
    int rc = handover_listen(opts->directory, opts->name, find_file, p, &p->handover, error);
    if (rc) {
        provider_destroy(&p);
        return rc;
    }
    handover_hear(p->handover, hear);
    *ret_provider = p;
    return HEDDLE_OK;
}

void provider_destroy(provider_t **provider)
{
    provider_t *p = provider ? *provider : NULL;
    if (!p) return;
    *provider = NULL;
    handover_destroy(&p->handover);
    for (content_t *c = p->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(p);
}

bool provider_is_there(const provider_t *p) { return handover_is_there(p->handover); }
int provider_fd(const provider_t *p) { return handover_fd(p->handover); }

uint64_t provider_deadline(const provider_t *p) { return pool_list_is_new(p->pool) ? 0 : p->due_us; }

uint64_t provider_turn(provider_t *p, uint64_t now_us)
{
    region_name_t names[LIMIT_OFFERED];
    uint32_t count;
    p->now_us = now_us;
    if (pool_list(p->pool, names, &count)) handover_offer(p->handover, names, count);
    p->due_us = handover_turn(p->handover, now_us);
    for (content_t *c = p->first; c; c = c->next) {
        if (c->round.due_us <= now_us) tell(p, c, round_step(&c->round, ROUND_TIME, 0, now_us));
        p->due_us = clock_earlier(p->due_us, c->round.due_us);
    }
    return p->due_us;
}

int provider_add(provider_t *p, const provider_content_t *content, heddle_error_t *error)
{
    if (find(p, &content->id)) return HEDDLE_OK;
    content_t *c = calloc(1, sizeof *c);
    if (!c) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to offer shared memory");
    round_begin(&c->round, &content->id, content->bytes, content->is_verified);
    c->round.verified_us = content->verified_us;
    c->hold = content->hold;
    c->next = p->first;
    p->first = c;
    return HEDDLE_OK;
}

void provider_remove(provider_t *p, const content_id_t *id)
{
    content_t **at = &p->first, *c = find(p, id);
    if (!c) return;
    for (uint32_t i = 0; i < LIMIT_WATCHERS; i++)
        if (round_waits(&c->round, i)) handover_tell(p->handover, i, NOTE_VERIFY, id);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    free(c);
}

void provider_doubt(provider_t *p, const content_id_t *id)
{
    content_t *c = find(p, id);
    if (c) tell(p, c, round_doubt(&c->round));
}
