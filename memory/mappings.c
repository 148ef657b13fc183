/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/mappings.h"

#include "core/clock.h"
#include "core/errors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

typedef enum {
    MAPPING_WANTED,  /* its source is asked for the region alone, from due_us on */
    MAPPING_ASKED,   /* for `asked`: `ask` is under way, until due_us */
    MAPPING_REFUSED, /* `asked`, and mappings_take has not said so yet: forgotten at due_us */
    MAPPING_MAPPED,
    MAPPING_LOCKED, /* it came with a lock for mappings_take, which is let go at due_us */
    MAPPING_HELD,
    MAPPING_LEAVING,
    MAPPING_ASIDE
} mapping_state_t;
enum { NOT_OFFERED = -1 };
typedef struct mapping {
    struct mapping *next;
    mapping_state_t state;
    region_name_t name;
    int source;          /* that offers it; NOT_OFFERED: it goes when it is not used any more */
    hold_t *hold;        /* MAPPED to LEAVING */
    handover_ask_t *ask; /* ASKED */
    content_id_t asked;  /* ASKED, REFUSED; generation 0: the region alone, which is never REFUSED */
    char asked_of[HANDOVER_NAME_MAX + 1]; /* ASKED, REFUSED: the source, which need not be `source` */
    uint64_t due_us;                      /* as above */
    uint32_t unused;                      /* contents that were taken since it was used */
    int rc;                               /* REFUSED, and the error */
    heddle_error_t error;
} mapping_t;

typedef struct {
    char name[HANDOVER_NAME_MAX + 1]; /* "": free */
    handover_watch_t *watch;          /* NULL: not connected */
    bool has_list;                    /* of this connection */
    uint64_t retry_us;                /* not connected: when to try again */
    uint64_t gone_us;                 /* without a list: when its regions are let go */
    bool is_forgone;                  /* it is not tried again, and unwatched when its regions are let go */
} source_t;

struct mappings {
    const char *directory;
    memory_fd_t poll;
    source_t sources[MAPPINGS_SOURCES_MAX];
    mapping_t *first;
    mapping_t *asking; /* for a region alone: one at a time; NULL */
    uint32_t count;
    mappings_received_t received;
    void *self;
    uint64_t due_us; /* of the next turn */
    pid_t process;
};

/* ---- made and destroyed ---- */

int mappings_new(const char *directory, mappings_received_t received, void *self, mappings_t **ret_mappings,
                 heddle_error_t *error)
{
    mappings_t *m = calloc(1, sizeof *m);
    if (m)
        *m = (mappings_t){.directory = directory, .poll = MEMORY_FD_NONE, .received = received, .self = self};
    if (m && forks_stop()) {
        forks_add(&m->poll, epoll_create1(EPOLL_CLOEXEC));
        forks_go();
    }
    if (!m || m->poll.fd < 0) {
        free(m);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to map what processes of this host offer");
    }
    m->process = getpid();
    *ret_mappings = m;
    return HEDDLE_OK;
}

/* `number`: of the source that is watched, or ANSWERS: few requests are under way at a time. */
enum { ANSWERS = MAPPINGS_SOURCES_MAX };
static bool poll_for(mappings_t *m, int fd, uint32_t number)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
    return epoll_ctl(m->poll.fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Taken out of the poll set explicitly: closing does not do that while a forked child has the socket. */
static void end_ask(mappings_t *m, mapping_t *p)
{
    if (p->ask) (void)epoll_ctl(m->poll.fd, EPOLL_CTL_DEL, handover_ask_fd(p->ask), NULL);
    handover_ask_destroy(&p->ask);
    if (m->asking == p) m->asking = NULL;
}

static void end_watch(mappings_t *m, source_t *s)
{
    if (s->watch) (void)epoll_ctl(m->poll.fd, EPOLL_CTL_DEL, handover_watch_fd(s->watch), NULL);
    handover_watch_destroy(&s->watch);
}

static void forget(mappings_t *m, mapping_t *p)
{
    mapping_t **at = &m->first;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    end_ask(m, p);
    if (p->state != MAPPING_HELD) hold_destroy(&p->hold);
    free(p);
    m->count--;
}

void mappings_destroy(mappings_t **mappings)
{
    mappings_t *m = mappings ? *mappings : NULL;
    if (!m) return;
    *mappings = NULL;
    while (m->first) forget(m, m->first);
    for (source_t *s = m->sources; s < m->sources + MAPPINGS_SOURCES_MAX; s++) end_watch(m, s);
    forks_close(&m->poll);
    free(m);
}

int mappings_fd(const mappings_t *m) { return m->poll.fd; }

static mapping_t *find(const mappings_t *m, const uint8_t identity[MEMORY_IDENTITY_BYTES])
{
    mapping_t *p = m->first;
    while (p && memcmp(p->name.identity, identity, sizeof p->name.identity) != 0) p = p->next;
    return p;
}

static bool has_hold(const mapping_t *p) { return p->state >= MAPPING_MAPPED && p->state <= MAPPING_LEAVING; }

/* mappings_take has it, or is about to. */
static bool is_used(const mapping_t *p)
{
    bool is_wanted = (p->state == MAPPING_ASKED && p->asked.generation) || p->state == MAPPING_REFUSED;
    return is_wanted || p->state == MAPPING_LOCKED || p->state == MAPPING_HELD;
}

/* What is not used makes room for what is: first what is not mapped, then what was not used for the longest
 * time. False: all are used. */
static bool make_room(mappings_t *m)
{
    mapping_t *least = NULL;
    for (mapping_t *p = m->first; p; p = p->next) {
        if (is_used(p) || (least && !has_hold(least))) continue;
        if (!least || !has_hold(p) || p->unused > least->unused) least = p;
    }
    if (least) forget(m, least);
    return least != NULL;
}

/* NULL: there are too many, or no memory. */
static mapping_t *add(mappings_t *m, const uint8_t identity[MEMORY_IDENTITY_BYTES], int source)
{
    mapping_t *p = m->count < MAPPINGS_REGIONS_MAX ? calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    memcpy(p->name.identity, identity, sizeof p->name.identity);
    p->source = source;
    p->next = m->first;
    m->first = p;
    m->count++;
    return p;
}

/* ---- sources ---- */

static source_t *source_of(mappings_t *m, const char *name)
{
    for (source_t *s = m->sources; s < m->sources + MAPPINGS_SOURCES_MAX; s++)
        if (!strcmp(s->name, name)) return s;
    return NULL;
}

/* It is not offered any more. What is held stays until it is given back, and what a taker waits for is
 * taken. */
static void withdraw(mappings_t *m, mapping_t *p)
{
    p->source = NOT_OFFERED;
    if (is_used(p)) return;
    if (has_hold(p)) p->state = MAPPING_LEAVING;
    else forget(m, p);
}

static void withdraw_all(mappings_t *m, const source_t *s)
{
    for (mapping_t *p = m->first, *next; p; p = next) {
        next = p->next;
        if (p->source == (int)(s - m->sources)) withdraw(m, p);
    }
}

static bool has(const watch_event_t *list, const region_name_t *name)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (!memcmp(&list->offered[i], name, sizeof *name)) return true;
    return false;
}

static void take_list(mappings_t *m, source_t *s, const watch_event_t *list)
{
    int number = (int)(s - m->sources);
    s->has_list = true;
    for (mapping_t *p = m->first, *next; p; p = next) {
        next = p->next;
        if (p->source == number && !has(list, &p->name)) withdraw(m, p);
    }
    for (uint32_t i = 0; i < list->count; i++) {
        mapping_t *p = find(m, list->offered[i].identity);
        if (!p) p = add(m, list->offered[i].identity, number);
        if (!p || p->source >= 0) continue;
        p->source = number;
        if (p->state == MAPPING_LEAVING) p->state = MAPPING_MAPPED; /* it is mapped again below */
    }
}

static void lose(mappings_t *m, source_t *s, uint64_t now_us)
{
    end_watch(m, s);
    s->retry_us = now_us + MAPPINGS_RETRY_US;
    if (s->has_list) s->gone_us = now_us + MAPPINGS_GONE_US;
    s->has_list = false;
    if (m->received) m->received(m->self, s->name, NOTE_GONE, NULL);
}

static void connect_to(mappings_t *m, source_t *s, uint64_t now_us)
{
    s->retry_us = now_us + MAPPINGS_RETRY_US;
    if (handover_watch(m->directory, s->name, &s->watch, NULL) != HEDDLE_OK) return;
    if (!poll_for(m, handover_watch_fd(s->watch), (uint32_t)(s - m->sources))) end_watch(m, s);
}

int mappings_watch(mappings_t *m, const char *source, uint64_t now_us, heddle_error_t *error)
{
    if (strlen(source) > HANDOVER_NAME_MAX || !source[0])
        return error_fail(error, HEDDLE_ERR_USAGE, "\"%s\" is not a name of a socket for shared memory",
                          source);
    source_t *s = source_of(m, source);
    if (s) {
        s->is_forgone = false;
        return HEDDLE_OK;
    }
    m->due_us = 0;
    s = source_of(m, "");
    if (!s)
        return error_fail(error, HEDDLE_ERR_LIMIT, "more than %u processes of this host cannot be watched",
                          MAPPINGS_SOURCES_MAX);
    snprintf(s->name, sizeof s->name, "%s", source);
    s->gone_us = now_us + MAPPINGS_GONE_US;
    connect_to(m, s, now_us);
    return HEDDLE_OK;
}

void mappings_forgo(mappings_t *m, const char *source)
{
    source_t *s = source[0] ? source_of(m, source) : NULL;
    m->due_us = 0;
    if (s) s->is_forgone = true;
}

bool mappings_meet(mappings_t *m, const char *source, uint64_t now_us)
{
    bool is_known = source[0] && source_of(m, source);
    if (!is_known && mappings_watch(m, source, now_us, NULL) != HEDDLE_OK) return false;
    if (!is_known) mappings_forgo(m, source);
    return source_of(m, source)->watch != NULL;
}

int mappings_tell(mappings_t *m, const char *source, note_t note, const content_id_t *id,
                  heddle_error_t *error)
{
    source_t *s = source[0] ? source_of(m, source) : NULL;
    if (s && s->watch) return handover_watch_tell(s->watch, note, id, error);
    return error_fail(error, HEDDLE_ERR_GONE, "the process %s of this host is not connected", source);
}

/* A bounded number of events: what is left keeps the descriptor readable. */
static void turn_source(mappings_t *m, source_t *s, bool is_readable, uint64_t now_us)
{
    watch_event_t event;
    if (!s->watch && !s->is_forgone && s->retry_us <= now_us) connect_to(m, s, now_us);
    for (int i = 0; is_readable && s->watch && i < 16; i++) {
        int rc = handover_watch_take(s->watch, &event, NULL);
        if (rc == HEDDLE_ERR_AGAIN) break;
        if (rc) lose(m, s, now_us);
        else if (event.is_list) take_list(m, s, &event);
        else if (m->received) m->received(m->self, s->name, event.note, &event.id);
    }
    if (s->has_list || s->gone_us > now_us) return;
    withdraw_all(m, s);
    if (!s->is_forgone) return;
    if (s->watch) lose(m, s, now_us);
    *s = (source_t){.watch = NULL};
}

/* ---- descriptions come ---- */

/* Of one that is not asked for. On failure its state stays. */
static int ask(mappings_t *m, mapping_t *p, const char *source, const content_id_t *id, uint64_t now_us,
               heddle_error_t *error)
{
    int rc = handover_ask(m->directory, source, id, now_us + MAPPINGS_ASK_US, &p->ask, error);
    if (rc) return rc;
    if (!poll_for(m, handover_ask_fd(p->ask), ANSWERS)) {
        end_ask(m, p);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to wait for shared memory");
    }
    p->state = MAPPING_ASKED;
    p->asked = *id;
    snprintf(p->asked_of, sizeof p->asked_of, "%s", source);
    p->due_us = now_us + MAPPINGS_ASK_US;
    if (!id->generation) m->asking = p;
    return HEDDLE_OK;
}

/* The region alone: what was refused for good is forgotten, else it is asked for again. */
static void put_off(mappings_t *m, mapping_t *p, int rc, uint64_t now_us)
{
    p->state = MAPPING_WANTED;
    p->due_us = now_us + MAPPINGS_RETRY_US;
    bool is_for_good = rc == HEDDLE_ERR_NOT_FOUND || rc == HEDDLE_ERR_PROTOCOL || rc == HEDDLE_ERR_DENIED ||
                       rc == HEDDLE_ERR_INTERNAL;
    if (is_for_good) forget(m, p);
}

static void turn_ask(mappings_t *m, mapping_t *p, uint64_t now_us)
{
    p->rc = handover_ask_take(p->ask, now_us, &p->hold, &p->error);
    if (p->rc == HEDDLE_ERR_AGAIN) return;
    end_ask(m, p);
    p->due_us = now_us + MAPPINGS_ASK_US;
    if (!p->rc) p->state = p->asked.generation ? MAPPING_LOCKED : MAPPING_MAPPED;
    else if (p->asked.generation) p->state = MAPPING_REFUSED;
    else put_off(m, p, p->rc, now_us);
}

/* Its source can be asked for it in the background. */
static bool is_askable(const mappings_t *m, const mapping_t *p)
{
    return p->state == MAPPING_WANTED && p->source >= 0 && m->sources[p->source].watch && !m->asking;
}

static void turn_mapping(mappings_t *m, mapping_t *p, bool is_answered, uint64_t now_us)
{
    bool is_due = p->due_us <= now_us;
    content_id_t id = {.generation = 0};
    int rc;
    switch (p->state) {
    case MAPPING_WANTED:
        if (!is_due || !is_askable(m, p)) break;
        memcpy(id.identity, p->name.identity, sizeof id.identity);
        rc = ask(m, p, m->sources[p->source].name, &id, now_us, NULL);
        if (rc) put_off(m, p, rc, now_us);
        break;
    case MAPPING_ASKED:
        if (is_answered || is_due) turn_ask(m, p, now_us);
        break;
    case MAPPING_REFUSED:
        if (is_due) forget(m, p); /* its taker never came back */
        break;
    case MAPPING_LOCKED:
        if (!is_due) break;
        hold_release(p->hold);
        p->state = p->source < 0 ? MAPPING_LEAVING : MAPPING_MAPPED;
        break;
    default: break;
    }
}

/* ---- mapped and unmapped, a step at a time ---- */

static bool is_populated(const hold_t *h)
{
    return h->mapped_bytes == h->file_bytes && h->populated_bytes == h->file_bytes;
}

/* Without memory for it the hold is taken later, or not at all. */
static bool step(mappings_t *m)
{
    for (mapping_t *p = m->first; p; p = p->next) {
        if (p->state == MAPPING_LEAVING) {
            if (hold_unmap(p->hold)) return true;
            hold_destroy(&p->hold);
            p->state = MAPPING_ASIDE;
            if (p->source < 0) forget(m, p);
            return true;
        }
        if (has_hold(p) && !is_populated(p->hold)) {
            if (hold_map(p->hold, NULL) != HEDDLE_OK) continue;
            (void)hold_populate(p->hold);
            return true;
        }
    }
    return false;
}

uint64_t mappings_deadline(const mappings_t *m) { return m->due_us; }

uint64_t mappings_turn(mappings_t *m, uint64_t now_us)
{
    struct epoll_event events[MAPPINGS_SOURCES_MAX + 1];
    bool is_readable[MAPPINGS_SOURCES_MAX + 1] = {false};
    uint64_t due_us = CLOCK_NEVER;
    m->due_us = CLOCK_NEVER;
    if (m->process != getpid()) return due_us;
    int count = epoll_wait(m->poll.fd, events, MAPPINGS_SOURCES_MAX + 1, 0);
    for (int i = 0; i < count; i++) is_readable[events[i].data.u32] = true;
    for (source_t *s = m->sources; s < m->sources + MAPPINGS_SOURCES_MAX; s++) {
        if (!s->name[0]) continue;
        turn_source(m, s, is_readable[s - m->sources], now_us);
        if (!s->name[0]) continue;
        if (!s->has_list && s->gone_us > now_us) due_us = clock_earlier(due_us, s->gone_us);
        if (!s->watch && !s->is_forgone) due_us = clock_earlier(due_us, s->retry_us);
    }
    for (mapping_t *p = m->first, *next; p; p = next) {
        next = p->next;
        turn_mapping(m, p, is_readable[ANSWERS], now_us);
    }
    bool has_more = step(m);
    for (mapping_t *p = m->first; p; p = p->next) {
        bool is_to_ask = is_askable(m, p);
        if (is_to_ask && p->due_us <= now_us) has_more = true;
        if (is_to_ask || p->state == MAPPING_ASKED || p->state == MAPPING_REFUSED ||
            p->state == MAPPING_LOCKED)
            due_us = clock_earlier(due_us, p->due_us);
    }
    m->due_us = has_more ? now_us : due_us;
    return m->due_us;
}

/* ---- held ---- */

/* One more content of a source was taken. Its regions that MAPPINGS_UNUSED of them did not use go. A source
 * that publishes seldom keeps its mappings beside one that publishes often. */
static void count_unused(mappings_t *m, const mapping_t *used)
{
    for (mapping_t *p = m->first; p; p = p->next) {
        bool is_idle = p != used && p->source == used->source && p->state == MAPPING_MAPPED;
        if (is_idle && ++p->unused >= MAPPINGS_UNUSED) p->state = MAPPING_LEAVING;
    }
}

static int take_mapped(mappings_t *m, mapping_t *p, const content_id_t *id, hold_t **ret_hold,
                       heddle_error_t *error)
{
    int rc = hold_take(p->hold, id, error);
    if (rc && p->source < 0) p->state = MAPPING_LEAVING;
    else if (rc && p->state == MAPPING_LOCKED)
        p->state = MAPPING_MAPPED; /* hold_take has let go of the lock */
    if (rc) return rc;
    p->state = MAPPING_HELD;
    p->unused = 0;
    count_unused(m, p);
    *ret_hold = p->hold;
    return HEDDLE_OK;
}

int mappings_take(mappings_t *m, const char *source, const content_id_t *id, uint64_t now_us,
                  hold_t **ret_hold, heddle_error_t *error)
{
    if (m->process != getpid())
        return error_fail(error, HEDDLE_ERR_USAGE, "regions of other processes are not usable after fork");
    m->due_us = 0;
    mapping_t *p = find(m, id->identity);
    if (!p && (m->count < MAPPINGS_REGIONS_MAX || make_room(m))) p = add(m, id->identity, NOT_OFFERED);
    if (!p)
        return error_fail(error, HEDDLE_ERR_LIMIT, "no more than %u regions of other processes can be mapped",
                          MAPPINGS_REGIONS_MAX);
    if (p->state == MAPPING_HELD)
        return error_fail(error, HEDDLE_ERR_USAGE, "a region that is held cannot be taken again");
    if (has_hold(p)) return take_mapped(m, p, id, ret_hold, error);
    bool is_asked_before = p->state == MAPPING_ASKED || p->state == MAPPING_REFUSED;
    bool is_content = is_asked_before && content_is(&p->asked, id);
    bool is_it = is_content && !strcmp(p->asked_of, source);
    if (is_it && p->state == MAPPING_ASKED) return HEDDLE_ERR_AGAIN;
    if (is_asked_before && !is_content && p->asked.generation >= id->generation)
        return error_fail(error, HEDDLE_ERR_NOT_FOUND,
                          "it was written again: generation %llu of its region was asked for",
                          (unsigned long long)p->asked.generation);
    int rc = p->rc;
    if (is_it && error) *error = p->error;
    if (!is_it) { /* an answer about something else, or of another source, is not one to this question */
        end_ask(m, p);
        p->state = MAPPING_WANTED;
        rc = ask(m, p, source, id, now_us, error);
    }
    if (!rc) return HEDDLE_ERR_AGAIN;
    p->state = MAPPING_WANTED;
    p->due_us = now_us + MAPPINGS_RETRY_US;
    if (p->source < 0) forget(m, p);
    return rc;
}

void mappings_give(mappings_t *m, hold_t **hold)
{
    m->due_us = 0;
    for (mapping_t *p = m->first; p; p = p->next) {
        if (!*hold || p->hold != *hold || p->state != MAPPING_HELD) continue;
        hold_release(p->hold);
        p->state = p->source < 0 ? MAPPING_LEAVING : MAPPING_MAPPED;
        break;
    }
    *hold = NULL;
}

mappings_count_t mappings_count(const mappings_t *m)
{
    mappings_count_t c = {0};
    for (const mapping_t *p = m->first; p; p = p->next) {
        if (!has_hold(p)) continue;
        c.mapped++;
        c.mapped_bytes += p->hold->mapped_bytes;
        if (p->state != MAPPING_HELD) continue;
        c.held++;
        c.held_bytes += p->hold->header.bytes;
    }
    return c;
}
