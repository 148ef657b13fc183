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

typedef enum { MAPPING_WANTED, MAPPING_MAPPED, MAPPING_HELD, MAPPING_LEAVING, MAPPING_ASIDE } mapping_state_t;
enum { NEVER_OFFERED = -1, WITHDRAWN = -2 };
typedef struct mapping {
    struct mapping *next;
    mapping_state_t state;
    region_name_t name;
    int source;           /* that offers it, or one of the two above */
    hold_t *hold;         /* MAPPED, HELD, LEAVING */
    handover_ask_t *ask;  /* WANTED: under way */
    uint64_t asked_epoch; /* 0: for the region alone; else its answer is waited for by mappings_take */
    uint64_t
        due_us; /* WANTED: ask again. MAPPED: its lock came with it, and is let go then; 0: it has none */
    uint32_t unused; /* contents that were taken since it was used */
    int failed;      /* of a request for a content, until mappings_take has returned it */
    heddle_error_t error;
} mapping_t;

typedef struct {
    char name[HANDOVER_NAME_MAX + 1]; /* "": free */
    handover_watch_t *watch;          /* NULL: not connected */
    uint64_t retry_us, gone_us;       /* not connected: when to try again, and when its regions are let go */
    bool is_forgone;                  /* it is not tried again, and unwatched when its regions are let go */
} source_t;

struct mappings {
    const char *directory;
    memory_fd_t poll;
    source_t sources[MAPPINGS_SOURCES_MAX];
    mapping_t *first;
    uint32_t count;
    mappings_heard_t heard;
    void *self;
    pid_t process;
};

/* ---- made and destroyed ---- */

int mappings_new(const char *directory, mappings_heard_t heard, void *self, mappings_t **ret_mappings,
                 heddle_error_t *error)
{
    mappings_t *m = calloc(1, sizeof *m);
    if (m) *m = (mappings_t){.directory = directory, .poll = MEMORY_FD_NONE, .heard = heard, .self = self};
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

static bool poll_for(mappings_t *m, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(m->poll.fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Taken out of the poll set explicitly: closing does not do that while a forked child has the socket. */
static void end_ask(mappings_t *m, mapping_t *p)
{
    if (p->ask) (void)epoll_ctl(m->poll.fd, EPOLL_CTL_DEL, handover_ask_fd(p->ask), NULL);
    handover_ask_destroy(&p->ask);
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
    p->source = WITHDRAWN;
    if (p->state == MAPPING_MAPPED) p->state = MAPPING_LEAVING;
    else if (p->state == MAPPING_ASIDE || (p->state == MAPPING_WANTED && !p->asked_epoch)) forget(m, p);
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

static void take_list(mappings_t *m, const source_t *s, const watch_event_t *list)
{
    int number = (int)(s - m->sources);
    for (mapping_t *p = m->first, *next; p; p = next) {
        next = p->next;
        if (p->source == number && !has(list, &p->name)) withdraw(m, p);
    }
    for (uint32_t i = 0; i < list->count; i++) {
        mapping_t *p = find(m, list->offered[i].identity);
        if (!p) p = add(m, list->offered[i].identity, number);
        if (!p) continue;
        if (p->source < 0) p->source = number;
        if (p->state == MAPPING_LEAVING) p->state = MAPPING_MAPPED; /* it is mapped again below */
    }
}

static void lose(mappings_t *m, source_t *s, uint64_t now_us)
{
    end_watch(m, s);
    s->retry_us = now_us + MAPPINGS_RETRY_US;
    s->gone_us = now_us + MAPPINGS_GONE_US;
    if (m->heard) m->heard(m->self, s->name, NOTE_GONE, NULL);
}

static void connect_to(mappings_t *m, source_t *s, uint64_t now_us)
{
    s->retry_us = now_us + MAPPINGS_RETRY_US;
    if (handover_watch(m->directory, s->name, &s->watch, NULL) != HEDDLE_OK) return;
    if (!poll_for(m, handover_watch_fd(s->watch))) end_watch(m, s);
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
    s = source_of(m, "");
    if (!s)
        return error_fail(error, HEDDLE_ERR_LIMIT, "more than %u processes of this host cannot be watched",
                          MAPPINGS_SOURCES_MAX);
    snprintf(s->name, sizeof s->name, "%s", source);
    s->gone_us = now_us + MAPPINGS_GONE_US;
    connect_to(m, s, now_us);
    return HEDDLE_OK;
}

void mappings_unwatch(mappings_t *m, const char *source)
{
    source_t *s = source[0] ? source_of(m, source) : NULL;
    if (!s) return;
    withdraw_all(m, s);
    end_watch(m, s);
    *s = (source_t){.watch = NULL};
}

void mappings_forgo(mappings_t *m, const char *source)
{
    source_t *s = source[0] ? source_of(m, source) : NULL;
    if (s) s->is_forgone = true;
}

int mappings_tell(mappings_t *m, const char *source, note_t note, const content_id_t *id,
                  heddle_error_t *error)
{
    source_t *s = source[0] ? source_of(m, source) : NULL;
    if (s && s->watch) return handover_watch_tell(s->watch, note, id, error);
    return error_fail(error, HEDDLE_ERR_GONE, "the process %s of this host is not connected", source);
}

/* A bounded number of events: what is left keeps the descriptor readable. */
static void turn_source(mappings_t *m, source_t *s, uint64_t now_us)
{
    watch_event_t event;
    if (!s->watch && !s->is_forgone && s->retry_us <= now_us) connect_to(m, s, now_us);
    for (int i = 0; s->watch && i < 16; i++) {
        int rc = handover_watch_take(s->watch, &event, NULL);
        if (rc == HEDDLE_ERR_AGAIN) break;
        if (rc) lose(m, s, now_us);
        else if (event.is_list) take_list(m, s, &event);
        else if (m->heard) m->heard(m->self, s->name, event.note, &event.id);
    }
    if (s->watch || s->gone_us > now_us) return;
    withdraw_all(m, s);
    if (s->is_forgone) *s = (source_t){.watch = NULL};
}

/* ---- descriptions come ---- */

static int ask(mappings_t *m, mapping_t *p, const char *source, const content_id_t *id, uint64_t now_us,
               heddle_error_t *error)
{
    int rc = handover_ask(m->directory, source, id, now_us + MAPPINGS_ASK_US, &p->ask, error);
    if (!rc && !poll_for(m, handover_ask_fd(p->ask))) {
        end_ask(m, p);
        rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to wait for shared memory");
    }
    p->asked_epoch = rc ? 0 : id->epoch;
    return rc;
}

/* What was refused for good is forgotten, or reported to its taker; else it is asked for again. */
static void fail(mappings_t *m, mapping_t *p, int rc, uint64_t now_us)
{
    bool is_for_good = rc == HEDDLE_ERR_NOT_FOUND || rc == HEDDLE_ERR_PROTOCOL || rc == HEDDLE_ERR_DENIED;
    end_ask(m, p);
    p->due_us = now_us + (p->asked_epoch ? MAPPINGS_ASK_US : MAPPINGS_RETRY_US);
    p->failed = p->asked_epoch ? rc : 0;
    if (!p->asked_epoch && is_for_good) forget(m, p);
}

/* A lock that came with it is its taker's, for a while. */
static void turn_ask(mappings_t *m, mapping_t *p, uint64_t now_us)
{
    int rc = handover_ask_take(p->ask, now_us, &p->hold, &p->error);
    if (rc == HEDDLE_ERR_AGAIN) return;
    if (rc) {
        fail(m, p, rc, now_us);
        return;
    }
    end_ask(m, p);
    p->state = MAPPING_MAPPED;
    p->due_us = p->asked_epoch ? now_us + MAPPINGS_ASK_US : 0;
    p->asked_epoch = 0;
}

static void turn_mapping(mappings_t *m, mapping_t *p, bool *is_asking, uint64_t now_us)
{
    bool is_due = p->due_us <= now_us;
    if (p->ask) {
        turn_ask(m, p, now_us);
    } else if (p->state == MAPPING_WANTED && p->failed) {
        if (is_due) forget(m, p); /* its taker never came back */
    } else if (p->state == MAPPING_WANTED && is_due && !*is_asking && p->source >= 0 &&
               m->sources[p->source].watch) {
        content_id_t id = {.epoch = 0};
        memcpy(id.identity, p->name.identity, sizeof id.identity);
        int rc = ask(m, p, m->sources[p->source].name, &id, now_us, NULL);
        *is_asking = !rc;
        if (rc) fail(m, p, rc, now_us);
    } else if (p->state == MAPPING_MAPPED && p->due_us && is_due) {
        hold_release(p->hold);
        p->due_us = 0;
        if (p->source == WITHDRAWN) p->state = MAPPING_LEAVING;
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
        if (p->hold && !is_populated(p->hold)) {
            if (hold_map(p->hold, NULL) != HEDDLE_OK) continue;
            (void)hold_populate(p->hold);
            return true;
        }
    }
    return false;
}

uint64_t mappings_turn(mappings_t *m, uint64_t now_us)
{
    struct epoll_event events[8];
    uint64_t due_us = CLOCK_NEVER;
    bool is_asking = false;
    if (m->process != getpid()) return due_us;
    (void)epoll_wait(m->poll.fd, events, 8, 0);
    for (source_t *s = m->sources; s < m->sources + MAPPINGS_SOURCES_MAX; s++) {
        if (!s->name[0]) continue;
        turn_source(m, s, now_us);
        if (s->name[0] && !s->watch) due_us = clock_earlier(due_us, s->is_forgone ? s->gone_us : s->retry_us);
    }
    for (mapping_t *p = m->first; p; p = p->next) is_asking |= p->ask && !p->asked_epoch;
    for (mapping_t *p = m->first, *next; p; p = next) {
        next = p->next;
        turn_mapping(m, p, &is_asking, now_us);
    }
    bool has_more = step(m);
    for (mapping_t *p = m->first; p; p = p->next) {
        if (p->ask) due_us = clock_earlier(due_us, now_us + MAPPINGS_ASK_US);
        else if (p->due_us > now_us) due_us = clock_earlier(due_us, p->due_us);
        else
            has_more |=
                p->state == MAPPING_WANTED && !is_asking && p->source >= 0 && m->sources[p->source].watch;
    }
    return has_more ? now_us : due_us;
}

/* ---- held ---- */

/* One more content of a source was taken. Its regions that MAPPINGS_UNUSED of them did not use go. A source
 * that publishes seldom keeps its mappings beside one that publishes often. */
static void count_unused(mappings_t *m, const mapping_t *used)
{
    for (mapping_t *p = m->first; p; p = p->next) {
        bool is_idle = p != used && p->source == used->source && p->state == MAPPING_MAPPED && !p->due_us;
        if (is_idle && ++p->unused >= MAPPINGS_UNUSED) p->state = MAPPING_LEAVING;
    }
}

static int take_mapped(mappings_t *m, mapping_t *p, const content_id_t *id, hold_t **ret_hold,
                       heddle_error_t *error)
{
    int rc = hold_take(p->hold, id, error);
    p->due_us = 0; /* hold_take has let go of a lock that came with it, or it is ours now */
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
    mapping_t *p = find(m, id->identity);
    if (!p) p = add(m, id->identity, NEVER_OFFERED);
    if (!p)
        return error_fail(error, HEDDLE_ERR_LIMIT, "no more than %u regions of other processes can be mapped",
                          MAPPINGS_REGIONS_MAX);
    if (p->state == MAPPING_HELD)
        return error_fail(error, HEDDLE_ERR_USAGE, "a region that is held cannot be taken again");
    if (p->hold) return take_mapped(m, p, id, ret_hold, error);
    if (p->ask) return HEDDLE_ERR_AGAIN;
    int rc = p->failed;
    if (rc && error) *error = p->error;
    if (!rc) rc = ask(m, p, source, id, now_us, error);
    if (p->failed) p->asked_epoch = 0;
    p->failed = 0;
    p->state = MAPPING_WANTED;
    p->due_us = now_us + MAPPINGS_RETRY_US; /* while it is offered it is asked for again, in the background */
    if (!rc) return HEDDLE_ERR_AGAIN;
    if (p->source < 0) forget(m, p);
    return rc;
}

void mappings_give(mappings_t *m, hold_t **hold)
{
    for (mapping_t *p = m->first; p; p = p->next) {
        if (!*hold || p->hold != *hold || p->state != MAPPING_HELD) continue;
        hold_release(p->hold);
        p->state = p->source == WITHDRAWN ? MAPPING_LEAVING : MAPPING_MAPPED;
        break;
    }
    *hold = NULL;
}

mappings_count_t mappings_count(const mappings_t *m)
{
    mappings_count_t c = {0};
    for (const mapping_t *p = m->first; p; p = p->next) {
        if (!p->hold) continue;
        c.mapped++;
        c.mapped_bytes += p->hold->mapped_bytes;
        if (p->state != MAPPING_HELD) continue;
        c.held++;
        c.held_bytes += p->hold->header.bytes;
    }
    return c;
}
