/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/offer.h"

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

struct offer {
    pool_t *pool;
    handover_t *handover;
    content_t *first;
    uint64_t now_us; /* of the turn */
    uint64_t due_us; /* the next one */
};

static content_t *find(const offer_t *o, const content_id_t *id)
{
    content_t *c = o->first;
    while (c && !content_is(&c->round.id, id)) c = c->next;
    return c;
}

/* A region alone may be mapped whatever is in it; content only while it is added, and not known to be bad. */
static int find_file(void *self, const content_id_t *id)
{
    const offer_t *o = self;
    const content_t *c = find(o, id);
    int fd;
    if (!id->generation) return pool_find(o->pool, id);
    if (!c || c->round.state == ROUND_SPOILED) return HEDDLE_ERR_NOT_FOUND;
    if (!c->hold) return pool_find(o->pool, id);
    return hold_hand_on(c->hold, &fd, NULL) ? HEDDLE_ERR_NOT_FOUND : fd;
}

static void tell(offer_t *o, const content_t *c, round_act_t act)
{
    for (uint32_t i = 0; i < LIMIT_WATCHERS && act.is_any; i++)
        if (act.watcher == i || (act.watcher == ROUND_ALL && round_has(&c->round, i)))
            handover_tell(o->handover, i, act.note, &c->round.id);
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

static void on_note(void *self, uint32_t watcher, note_t note, const content_id_t *id)
{
    offer_t *o = self;
    round_event_t event = note == NOTE_HELD ? ROUND_HELD : note == NOTE_GOOD ? ROUND_GOOD : ROUND_BAD;
    if (note == NOTE_GONE) {
        for (content_t *c = o->first; c; c = c->next)
            tell(o, c, round_step(&c->round, ROUND_GONE, watcher, o->now_us));
        return;
    }
    content_t *c = find(o, id);
    if (c) {
        round_state_t before = c->round.state;
        tell(o, c, round_step(&c->round, event, watcher, o->now_us));
        log_doubt(&c->round, before);
    } else if (note == NOTE_HELD) {
        handover_tell(o->handover, watcher, NOTE_VERIFY, id);
    }
}

int offer_new(const offer_opts_t *opts, offer_t **ret_offer, heddle_error_t *error)
{
    offer_t *o = calloc(1, sizeof *o);
    if (!o) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to offer shared memory");
    o->pool = opts->pool;
    int rc = handover_listen(opts->directory, opts->name, find_file, o, &o->handover, error);
    if (rc) {
        offer_destroy(&o);
        return rc;
    }
    handover_on_note(o->handover, on_note);
    *ret_offer = o;
    return HEDDLE_OK;
}

void offer_destroy(offer_t **offer)
{
    offer_t *o = offer ? *offer : NULL;
    if (!o) return;
    *offer = NULL;
    handover_destroy(&o->handover);
    for (content_t *c = o->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(o);
}

bool offer_is_there(const offer_t *o) { return handover_is_there(o->handover); }
int offer_fd(const offer_t *o) { return handover_fd(o->handover); }

uint64_t offer_deadline(const offer_t *o) { return pool_list_is_new(o->pool) ? 0 : o->due_us; }

uint64_t offer_turn(offer_t *o, uint64_t now_us)
{
    region_name_t names[LIMIT_OFFERED];
    uint32_t count;
    o->now_us = now_us;
    if (pool_list(o->pool, names, &count)) handover_offer(o->handover, names, count);
    o->due_us = handover_turn(o->handover, now_us);
    for (content_t *c = o->first; c; c = c->next) {
        if (c->round.due_us <= now_us) tell(o, c, round_step(&c->round, ROUND_TIME, 0, now_us));
        o->due_us = clock_earlier(o->due_us, c->round.due_us);
    }
    return o->due_us;
}

int offer_add(offer_t *o, const offer_content_t *content, heddle_error_t *error)
{
    if (find(o, &content->id)) return HEDDLE_OK;
    content_t *c = calloc(1, sizeof *c);
    if (!c) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to offer shared memory");
    round_begin(&c->round, &content->id, content->bytes, content->is_verified);
    c->round.verified_us = content->verified_us;
    c->hold = content->hold;
    c->next = o->first;
    o->first = c;
    return HEDDLE_OK;
}

void offer_remove(offer_t *o, const content_id_t *id)
{
    content_t **at = &o->first, *c = find(o, id);
    if (!c) return;
    for (uint32_t i = 0; i < LIMIT_WATCHERS; i++)
        if (round_waits(&c->round, i)) handover_tell(o->handover, i, NOTE_VERIFY, id);
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    free(c);
}

void offer_doubt(offer_t *o, const content_id_t *id)
{
    content_t *c = find(o, id);
    if (c) tell(o, c, round_doubt(&c->round));
}
