/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/pool.h"

#include "core/clock.h"
#include "core/errors.h"
#include "memory/holders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the search for processes that hold a region, in an error. A large one takes 30 ms; heartbeats wait. */
#define NAME_STEPS (HOLDERS_FILES_MAX / HOLDERS_STEP_FILES / 2)

typedef struct making {
    struct making *next;
    memory_region_t *region;
    const void *taker; /* that asks for it; NULL: it is given up, or one made ahead */
} making_t;

struct pool {
    pool_opts_t opts;
    uint32_t most, usual, count, places, making_count;
    memory_region_t **regions; /* whole, in the order in which they were taken last */
    bool *free_now;            /* of each: what a step in the background has found, once */
    bool has_looked;           /* that is valid */
    making_t *makings;
    memory_region_t *leaving;
    size_t expected;     /* bytes of the first version; 0: not known, or there was one */
    uint64_t surplus_us; /* since when there is more than one free region; CLOCK_NEVER: there is not */
    uint64_t retry_us;   /* when a region ahead is tried again */
    uint64_t missing_us; /* since when one is missing, and none was taken; CLOCK_NEVER: none is missing */
    uint64_t guard_us;   /* since when a step of the guard waits; CLOCK_NEVER: none does */
    bool is_list_changed;
    bool has_begun;  /* a region was taken or adopted */
    bool is_turning; /* one was taken, or adopted after another one: the next version will need one, too */
};

int pool_new(const pool_opts_t *opts, pool_t **ret_pool, heddle_error_t *error)
{
    pool_t *p = calloc(1, sizeof *p);
    if (!p) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a pool of shared memory");
    p->opts = *opts;
    p->most = opts->most ? opts->most : UINT32_MAX;
    p->surplus_us = p->missing_us = p->guard_us = CLOCK_NEVER;
    p->is_list_changed = true;
    *ret_pool = p;
    return HEDDLE_OK;
}

static bool is_unused(const pool_t *p, const memory_region_t *r)
{
    return !p->opts.is_unused || p->opts.is_unused(p->opts.self, r);
}

/* It is not in the list of what is made any more. */
static memory_region_t *end_making(pool_t *p, making_t *m)
{
    making_t **at = &p->makings;
    memory_region_t *r = m->region;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    p->making_count--;
    free(m);
    return r;
}

void pool_destroy(pool_t **pool)
{
    pool_t *p = pool ? *pool : NULL;
    if (!p) return;
    *pool = NULL;
    for (uint32_t i = 0; i < p->count; i++) {
        if (!is_unused(p, p->regions[i])) continue;
        if (p->opts.leaving) p->opts.leaving(p->opts.self, p->regions[i]);
        memory_region_destroy(&p->regions[i]);
    }
    while (p->makings) {
        memory_region_t *half = end_making(p, p->makings);
        memory_region_destroy(&half);
    }
    memory_region_destroy(&p->leaving);
    free(p->regions);
    free(p->free_now);
    free(p);
}

/* A place for one more region. */
static bool has_place(pool_t *p)
{
    if (p->count < p->places) return true;
    uint32_t places = p->places ? 2 * p->places : 8;
    memory_region_t **regions = realloc(p->regions, places * sizeof(memory_region_t *));
    if (regions) p->regions = regions;
    bool *free_now = realloc(p->free_now, places * sizeof *free_now);
    if (free_now) p->free_now = free_now;
    if (!regions || !free_now) return false;
    p->places = places;
    return true;
}

static bool is_large_enough(const memory_region_t *r, size_t bytes) { return r->bytes >= bytes; }

static bool is_far_too_large(const memory_region_t *r, size_t bytes)
{
    return r->bytes > 2 * bytes + MEMORY_STEP_BYTES;
}

static bool fits(const memory_region_t *r, size_t bytes)
{
    return is_large_enough(r, bytes) && !is_far_too_large(r, bytes);
}

static bool is_free(const pool_t *p, uint32_t at)
{
    if (p->has_looked) return p->free_now[at];
    return memory_region_is_free(p->regions[at]) && is_unused(p, p->regions[at]);
}

/* Two system calls for each region that is not wanted. A step in the background asks this of each region
 * several times; what it finds is only a reason to make or to give back. The exclusive lock decides what may
 * be written. */
static void look(pool_t *p)
{
    for (uint32_t i = 0; i < p->count; i++) p->free_now[i] = is_free(p, i);
    p->has_looked = true;
}

/* A guard that was not taken back yet would be in the way of the version that is written next. */
static bool is_better(const memory_region_t *r, const memory_region_t *than)
{
    if (!r->guarded_bytes != !than->guarded_bytes) return !r->guarded_bytes;
    return r->bytes < than->bytes;
}

/* The best one that is free and fits; -1: none. */
static int find_free(const pool_t *p, size_t bytes)
{
    int best = -1;
    for (uint32_t i = 0; i < p->count; i++)
        if (fits(p->regions[i], bytes) && is_free(p, i) &&
            (best < 0 || is_better(p->regions[i], p->regions[best])))
            best = (int)i;
    return best;
}

static uint32_t count_free(const pool_t *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->count; i++) n += is_free(p, i);
    return n;
}

/* 0: nothing is in use. */
static size_t largest_in_use(const pool_t *p)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->regions[i]->bytes > bytes && !is_free(p, i)) bytes = p->regions[i]->bytes;
    return bytes;
}

/* The others keep their order. */
static memory_region_t *take_out(pool_t *p, int at)
{
    memory_region_t *r = p->regions[at], **after = p->regions + at + 1;
    p->has_looked = false;
    memmove(p->regions + at, after, (size_t)(p->regions + p->count - after) * sizeof *after);
    p->count--;
    return r;
}

/* Nothing else is leaving. */
static void let_go(pool_t *p, int at)
{
    p->leaving = take_out(p, at);
    if (p->opts.leaving) p->opts.leaving(p->opts.self, p->leaving);
    p->is_list_changed = true;
}

/* The smallest one that is free, but for the one ahead, leaves, unless another one is leaving. */
static bool let_go_of_one(pool_t *p, int next)
{
    int at = -1;
    for (uint32_t i = 0; i < p->count && !p->leaving; i++)
        if ((int)i != next && is_free(p, i) && (at < 0 || p->regions[i]->bytes < p->regions[at]->bytes))
            at = (int)i;
    if (at < 0) return false;
    let_go(p, at);
    return true;
}

/* One step of the region that leaves. */
static void give_back(pool_t *p)
{
    if (p->leaving && !memory_region_shrink(p->leaving)) memory_region_destroy(&p->leaving);
}

/* What is made for a taker of no more; NULL: there is nothing. */
static making_t *find_given_up(const pool_t *p)
{
    making_t *m = p->makings;
    while (m && m->taker) m = m->next;
    return m;
}

/* What was made goes step by step. Nothing else is leaving. */
static void stop_making(pool_t *p, making_t *m) { p->leaving = end_making(p, m); }

/* There may not be memory for a region and for those in its way. False: none of them is left. */
static bool make_way(pool_t *p)
{
    making_t *given_up = find_given_up(p);
    if (!p->leaving && given_up) stop_making(p, given_up);
    if (!p->leaving && !let_go_of_one(p, -1)) return false;
    give_back(p);
    return true;
}

/* What is made for this taker, or was given up and serves as well; NULL: nothing. Of another size it is given
 * up: each taker has one. */
static making_t *find_making(pool_t *p, const void *taker, size_t bytes)
{
    making_t *found = NULL;
    for (making_t *m = p->makings; m; m = m->next) {
        bool is_fit = fits(m->region, bytes);
        if (m->taker == taker && !is_fit) m->taker = NULL;
        if (is_fit && (m->taker == taker || (!m->taker && !found))) found = m;
    }
    if (found) found->taker = taker;
    return found;
}

/* One step of a region that is being made; NO_MEMORY: it is as it was. OK: `m` has gone. */
static int make(pool_t *p, making_t *m, heddle_error_t *error)
{
    memory_region_t *r = m->region;
    bool is_to_ask = p->opts.may_make && r->made_bytes % POOL_ASK_BYTES == 0;
    int rc = is_to_ask ? p->opts.may_make(p->opts.self, r->bytes - r->made_bytes, error) : HEDDLE_OK;
    if (!rc) rc = memory_region_grow(r, error);
    if (!rc && !has_place(p)) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    if (rc) return rc;
    p->regions[p->count++] = end_making(p, m);
    p->has_looked = false;
    p->is_list_changed = true;
    return HEDDLE_OK;
}

/* Address space alone. Versions of one adapter differ little in size: a sixteenth of room at most saves a new
 * region when a manifest grows. */
static int begin_making(pool_t *p, const void *taker, size_t bytes, making_t **ret_making,
                        heddle_error_t *error)
{
    size_t step = POOL_ROUND_BYTES, whole = bytes;
    while (step < bytes / 32) step *= 2;
    if (bytes <= LIMIT_REGION_BYTES) whole = (bytes + step - 1) / step * step;
    making_t *m = calloc(1, sizeof *m);
    if (!m) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    int rc = memory_region_new(whole, &m->region, error);
    if (!rc && p->opts.has_views) rc = memory_region_view(m->region, error);
    if (rc) {
        memory_region_destroy(&m->region);
        free(m);
        return rc;
    }
    m->taker = taker;
    m->next = p->makings;
    *ret_making = p->makings = m;
    p->making_count++;
    return HEDDLE_OK;
}

/* The first region that lingers is the oldest. The search for its holders is for people alone. */
static int fail_in_use(const pool_t *p, heddle_error_t *error)
{
    if (!error) return HEDDLE_ERR_NO_SLOT;
    char text[HOLDERS_TEXT];
    holders_t h = {.count = 0};
    const memory_region_t *lingering = NULL;
    for (uint32_t i = 0; i < p->count && !lingering; i++)
        if (p->regions[i]->state == REGION_IDLE) lingering = p->regions[i];
    error_fail(error, HEDDLE_ERR_NO_SLOT, "all %u regions of shared memory are in use", p->most);
    error_expected(error, "one that is not wanted, and not read by any process");
    error_hint(error, "release versions that are not used any more");
    if (!lingering) {
        error_found(error, "each is being written, or has a version that is wanted");
    } else if (!is_unused(p, lingering)) {
        error_found(error, "bytes of the oldest one are still on their way to a worker");
    } else {
        holders_find(&h, lingering->file.fd, NAME_STEPS);
        error_found(error, "the oldest one is held by %s", holders_text(&h, text));
    }
    return HEDDLE_ERR_NO_SLOT;
}

static uint32_t first_listed(const pool_t *p)
{
    return p->count > LIMIT_OFFERED ? p->count - LIMIT_OFFERED : 0;
}

/* AGAIN: none is free. */
static int take_free(pool_t *p, size_t bytes, memory_region_t **ret_region, heddle_error_t *error)
{
    for (int at; (at = find_free(p, bytes)) >= 0;) {
        int rc = memory_region_begin(p->regions[at], error);
        if (rc == HEDDLE_ERR_NO_SLOT) continue; /* another process was first */
        if (rc) return rc;
        p->is_list_changed |= (uint32_t)at < first_listed(p);
        *ret_region = take_out(p, at);
        p->regions[p->count++] = *ret_region;
        p->has_begun = p->is_turning = true;
        p->expected = 0;
        p->missing_us = CLOCK_NEVER;
        return HEDDLE_OK;
    }
    return HEDDLE_ERR_AGAIN;
}

/* A free region is unguarded step by step, too. */
static bool unguard_free(pool_t *p, size_t bytes)
{
    int at = find_free(p, bytes);
    return at >= 0 && memory_region_unguard(p->regions[at]);
}

int pool_take(pool_t *p, const void *taker, size_t bytes, memory_region_t **ret_region, heddle_error_t *error)
{
    if (unguard_free(p, bytes)) return HEDDLE_ERR_AGAIN;
    int rc = take_free(p, bytes, ret_region, error);
    if (rc == HEDDLE_OK) pool_give_up(p, taker);
    if (rc != HEDDLE_ERR_AGAIN) return rc;
    making_t *m = find_making(p, taker, bytes);
    if (!m && p->count + p->making_count >= p->most)
        return make_way(p) ? HEDDLE_ERR_AGAIN : fail_in_use(p, error);
    rc = m ? HEDDLE_OK : begin_making(p, taker, bytes, &m, error);
    if (rc) return rc;
    rc = make(p, m, error);
    if (!rc) return take_free(p, bytes, ret_region, error);
    if (rc != HEDDLE_ERR_NO_MEMORY || make_way(p)) return HEDDLE_ERR_AGAIN;
    stop_making(p, m);
    return rc;
}

void pool_expect(pool_t *p, size_t bytes)
{
    if (!p->has_begun) p->expected = bytes;
}

void pool_usual(pool_t *p, uint32_t count)
{
    p->usual = count;
    if (p->opts.most) p->most = 2 * count > p->opts.most ? 2 * count : p->opts.most;
}

void pool_give_up(pool_t *p, const void *taker)
{
    for (making_t *m = p->makings; m; m = m->next)
        if (m->taker == taker) m->taker = NULL;
}

/* One that is in its way goes in the background. */
int pool_adopt(pool_t *p, memory_region_t *region, heddle_error_t *error)
{
    bool is_full = p->count + p->making_count >= p->most;
    if (is_full && !find_given_up(p) && !count_free(p)) return fail_in_use(p, error);
    if (!has_place(p)) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    p->regions[p->count++] = region;
    p->is_list_changed = true;
    p->is_turning |= p->has_begun;
    p->has_begun = true;
    p->expected = 0;
    return HEDDLE_OK;
}

void pool_drop(pool_t *p, memory_region_t *region)
{
    (void)p;
    memory_region_abort(region);
    memory_region_drop(region);
}

static bool is_one_written(const pool_t *p)
{
    uint32_t i = 0;
    while (i < p->count && p->regions[i]->state != REGION_WRITING) i++;
    return i < p->count;
}

/* Steps of the guard wait while a region is filled, but not for as long as a publication may stay open. */
static bool may_guard_wait(const pool_t *p, uint64_t now_us)
{
    return is_one_written(p) && (p->guard_us == CLOCK_NEVER || now_us - p->guard_us < POOL_RETRY_US);
}

/* One step of the guard. It takes a millisecond, in which no thread of this process gets memory: so for a
 * second not while one fills a region. Returns when to call again: CLOCK_NEVER where all is as it is to
 * be. */
static uint64_t guard(pool_t *p, uint64_t now_us)
{
    uint64_t due_us = CLOCK_NEVER, since_us = CLOCK_NEVER;
    bool may_wait = may_guard_wait(p, now_us);
    for (uint32_t i = 0; i < p->count && p->opts.is_guarded; i++) {
        memory_region_t *r = p->regions[i];
        size_t was = r->guarded_bytes;
        bool is_to_guard = r->state == REGION_SEALED && was < r->mapped_bytes;
        bool is_to_free = !is_to_guard && was && is_free(p, i);
        bool is_open = is_to_guard && p->opts.may_guard && !p->opts.may_guard(p->opts.self, r);
        if (is_open) due_us = clock_earlier(due_us, now_us + POOL_RETRY_US);
        else if ((is_to_guard || is_to_free) && may_wait) since_us = clock_earlier(p->guard_us, now_us);
        else if (is_to_guard) (void)memory_region_guard(r);
        else if (is_to_free) (void)memory_region_unguard(r);
        if (r->guarded_bytes != was) return now_us;
    }
    p->guard_us = since_us;
    return since_us == CLOCK_NEVER ? due_us : clock_earlier(due_us, since_us + POOL_RETRY_US);
}

/* What is far too large for what is in use goes at once: a large version that failed, or a larger model of
 * last week, leaves no memory behind. -1: there is none. */
static int find_useless(const pool_t *p, size_t in_use)
{
    for (uint32_t i = 0; i < p->count && in_use; i++)
        if (is_far_too_large(p->regions[i], in_use) && is_free(p, i)) return (int)i;
    return -1;
}

/* Free regions that are kept ahead. The first version that is expected takes one, and another one would be
 * made beside it. */
static uint32_t ahead(const pool_t *p) { return p->expected ? 2 : 1; }

/* What else there is too much of goes after a while: it may be needed for the next version. */
static uint64_t trim(pool_t *p, int next, uint64_t now_us)
{
    if (count_free(p) <= (next >= 0 ? ahead(p) : 0)) p->surplus_us = CLOCK_NEVER;
    else if (p->surplus_us == CLOCK_NEVER) p->surplus_us = now_us;
    if (p->surplus_us == CLOCK_NEVER) return CLOCK_NEVER;
    if (now_us - p->surplus_us < POOL_SURPLUS_US) return p->surplus_us + POOL_SURPLUS_US;
    (void)let_go_of_one(p, next);
    return now_us;
}

/* A region ahead is made only while another is in use, or is expected to be: a process that publishes nothing
 * any more needs none, nor does one that publishes what was made elsewhere, once. */
static bool needs_next(const pool_t *p, int next)
{
    bool is_in_turn = p->expected || (p->is_turning && p->count > count_free(p));
    bool is_missing = next < 0 || count_free(p) < ahead(p);
    return is_missing && p->opts.most && is_in_turn && p->count + p->making_count < p->most;
}

/* When that is due. What was retired is held for a moment still, while the next version is written: it is the
 * region ahead then, and another one would stay beside it. */
static uint64_t next_due(pool_t *p, int next, uint64_t now_us)
{
    bool is_missing = needs_next(p, next);
    if (!is_missing) p->missing_us = CLOCK_NEVER;
    else if (p->missing_us == CLOCK_NEVER) p->missing_us = now_us;
    bool is_usual = p->count + p->making_count < p->usual;
    bool may_become_free = is_missing && !is_usual && pool_count(p).lingering;
    return is_missing ? p->missing_us + (may_become_free ? POOL_LET_GO_US : 0) : CLOCK_NEVER;
}

static uint64_t do_step(pool_t *p, uint64_t now_us)
{
    size_t size = p->expected ? p->expected : largest_in_use(p);
    int next = size ? find_free(p, size) : -1;
    making_t *m = find_given_up(p);
    bool is_too_many = p->count + p->making_count > p->most;
    if (m && (is_too_many || (size && !fits(m->region, size)))) {
        stop_making(p, m);
        return now_us;
    }
    if (is_too_many && let_go_of_one(p, -1)) return now_us;
    uint64_t make_us = next_due(p, next, now_us);
    if (m) make_us = now_us;
    if (make_us < p->retry_us) make_us = p->retry_us;
    if (make_us <= now_us) {
        int rc = m ? HEDDLE_OK : begin_making(p, NULL, size, &m, NULL);
        if (!rc) rc = make(p, m, NULL);
        if (rc && rc != HEDDLE_ERR_AGAIN) {
            p->retry_us = now_us + POOL_RETRY_US;
            if (m) stop_making(p, m);
        }
        return now_us;
    }
    int useless = find_useless(p, size);
    if (useless >= 0) {
        let_go(p, useless);
        return now_us;
    }
    uint64_t due_us = guard(p, now_us);
    if (due_us <= now_us) return now_us;
    due_us = clock_earlier(due_us, trim(p, next, now_us));
    due_us = clock_earlier(due_us, make_us);
    return pool_count(p).lingering ? clock_earlier(due_us, now_us + POOL_RETRY_US) : due_us;
}

uint64_t pool_work(pool_t *p, uint64_t now_us)
{
    if (p->leaving) {
        give_back(p);
        return now_us;
    }
    look(p);
    uint64_t due_us = do_step(p, now_us);
    p->has_looked = false;
    return due_us;
}

int pool_find(void *pool, const content_id_t *id)
{
    const pool_t *p = pool;
    for (uint32_t i = 0; i < p->count; i++) {
        content_id_t has = memory_region_content(p->regions[i]);
        int fd = -1;
        if (memcmp(has.identity, id->identity, sizeof has.identity) != 0) continue;
        int rc = id->generation ? memory_region_hand_over(p->regions[i], &fd, NULL)
                                : memory_region_offer(p->regions[i], &fd, NULL);
        return !rc ? fd : rc == HEDDLE_ERR_INTERNAL ? rc : HEDDLE_ERR_NOT_FOUND;
    }
    return HEDDLE_ERR_NOT_FOUND;
}

bool pool_list_is_new(const pool_t *p) { return p->is_list_changed; }

bool pool_list(pool_t *p, region_name_t ret_names[LIMIT_OFFERED], uint32_t *ret_count)
{
    bool is_changed = p->is_list_changed;
    uint32_t first = first_listed(p);
    p->is_list_changed = false;
    *ret_count = p->count - first;
    for (uint32_t i = 0; i < *ret_count; i++) {
        content_id_t id = memory_region_content(p->regions[first + i]);
        memcpy(ret_names[i].identity, id.identity, sizeof id.identity);
    }
    return is_changed;
}

pool_count_t pool_count(const pool_t *p)
{
    pool_count_t c = {.regions = p->count};
    for (uint32_t i = 0; i < p->count; i++) {
        bool is_in_use = !is_free(p, i);
        c.bytes += p->regions[i]->made_bytes;
        c.in_use += is_in_use;
        c.lingering += is_in_use && p->regions[i]->state == REGION_IDLE;
    }
    for (const making_t *m = p->makings; m; m = m->next) c.bytes += m->region->made_bytes;
    if (p->leaving) c.bytes += p->leaving->mapped_bytes;
    return c;
}
