/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/pool.h"

#include "core/clock.h"
#include "core/errors.h"
#include "memory/holders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of processes that hold a region, in an error: some milliseconds on a host with a thousand processes. */
#define NAME_STEPS 16u

struct pool {
    pool_opts_t opts;
    uint32_t most, count, places;
    memory_region_t **regions; /* whole: free, written, wanted, lingering */
    memory_region_t *making, *leaving;
    uint64_t uses;       /* regions that were taken or adopted, ever */
    uint64_t surplus_us; /* since when there is more than one free region; CLOCK_NEVER: there is not */
    uint64_t retry_us;   /* when a spare region is tried again */
    bool is_list_changed;
};

int pool_new(const pool_opts_t *opts, pool_t **ret_pool, heddle_error_t *error)
{
    pool_t *p = calloc(1, sizeof *p);
    if (!p) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a pool of shared memory");
    uint32_t most = opts->versions < LIMIT_OFFERED / 2 ? 2 * opts->versions : LIMIT_OFFERED;
    p->opts = *opts;
    p->most = opts->versions == 0 ? UINT32_MAX : most < POOL_LEAST ? POOL_LEAST : most;
    p->surplus_us = CLOCK_NEVER;
    p->is_list_changed = true;
    *ret_pool = p;
    return HEDDLE_OK;
}

static bool is_unused(const pool_t *p, const memory_region_t *r)
{
    return !p->opts.is_unused || p->opts.is_unused(p->opts.self, r);
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
    memory_region_destroy(&p->making);
    memory_region_destroy(&p->leaving);
    free(p->regions);
    free(p);
}

/* A place for one more region. */
static bool has_place(pool_t *p)
{
    if (p->count < p->places) return true;
    uint32_t places = p->places ? 2 * p->places : POOL_LEAST;
    memory_region_t **regions = realloc(p->regions, places * sizeof(memory_region_t *));
    if (!regions) return false;
    p->regions = regions;
    p->places = places;
    return true;
}

static bool is_large_enough(const memory_region_t *r, size_t bytes) { return r->bytes >= bytes; }

static bool is_far_too_large(const memory_region_t *r, size_t bytes)
{
    return r->bytes > 2 * bytes + MEMORY_STEP_BYTES;
}

static bool is_free(const pool_t *p, const memory_region_t *r)
{
    return memory_region_is_free(r) && is_unused(p, r);
}

/* The smallest one that is free and fits; -1: none. */
static int find_free(const pool_t *p, size_t bytes)
{
    int best = -1;
    for (uint32_t i = 0; i < p->count; i++)
        if (is_large_enough(p->regions[i], bytes) && !is_far_too_large(p->regions[i], bytes) &&
            is_free(p, p->regions[i]) && (best < 0 || p->regions[i]->bytes < p->regions[best]->bytes))
            best = (int)i;
    return best;
}

static uint32_t count_free(const pool_t *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->count; i++) n += is_free(p, p->regions[i]);
    return n;
}

/* 0: nothing is in use. */
static size_t largest_in_use(const pool_t *p)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < p->count; i++)
        if (p->regions[i]->bytes > bytes && !is_free(p, p->regions[i])) bytes = p->regions[i]->bytes;
    return bytes;
}

/* Nothing else is leaving. */
static void let_go(pool_t *p, int at)
{
    p->leaving = p->regions[at];
    if (p->opts.leaving) p->opts.leaving(p->opts.self, p->leaving);
    p->regions[at] = p->regions[--p->count];
    p->is_list_changed = true;
}

/* The smallest one that is free, but for the spare one, leaves, unless another one is leaving. */
static bool let_go_of_one(pool_t *p, int spare)
{
    int at = -1;
    for (uint32_t i = 0; i < p->count && !p->leaving; i++)
        if ((int)i != spare && is_free(p, p->regions[i]) &&
            (at < 0 || p->regions[i]->bytes < p->regions[at]->bytes))
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

/* There may not be memory for a region and for those in its way. False: none of them is left. */
static bool make_way(pool_t *p)
{
    if (!p->leaving && !let_go_of_one(p, -1)) return false;
    give_back(p);
    return true;
}

/* What was made goes step by step. Nothing else is leaving. */
static void stop_making(pool_t *p)
{
    p->leaving = p->making;
    p->making = NULL;
}

/* One step of the region that is being made; NO_MEMORY: it is as it was. */
static int make(pool_t *p, heddle_error_t *error)
{
    memory_region_t *r = p->making;
    bool is_to_ask = p->opts.may_make && r->made_bytes % POOL_ASK_BYTES == 0;
    int rc = is_to_ask ? p->opts.may_make(p->opts.self, r->bytes - r->made_bytes, error) : HEDDLE_OK;
    if (!rc) rc = memory_region_grow(r, error);
    if (!rc && !has_place(p)) rc = error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    if (rc) return rc;
    p->making = NULL;
    p->regions[p->count++] = r;
    p->is_list_changed = true;
    return HEDDLE_OK;
}

/* Address space alone. Versions of one adapter differ little in size: a sixteenth of room at most saves a new
 * region when a manifest grows. */
static int begin_making(pool_t *p, size_t bytes, heddle_error_t *error)
{
    size_t step = POOL_ROUND_BYTES, whole = bytes;
    while (step < bytes / 32) step *= 2;
    if (bytes <= LIMIT_REGION_BYTES) whole = (bytes + step - 1) / step * step;
    int rc = memory_region_new(whole, &p->making, error);
    if (!rc && p->opts.has_views) rc = memory_region_view(p->making, error);
    if (rc) memory_region_destroy(&p->making);
    return rc;
}

/* Those of the first region that lingers: it is the oldest. */
static int fail_in_use(const pool_t *p, heddle_error_t *error)
{
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

/* AGAIN: none is free. */
static int take_free(pool_t *p, size_t bytes, memory_region_t **ret_region, heddle_error_t *error)
{
    for (int at; (at = find_free(p, bytes)) >= 0;) {
        int rc = memory_region_begin(p->regions[at], error);
        if (rc == HEDDLE_ERR_NO_SLOT) continue; /* another process was first */
        if (rc) return rc;
        *ret_region = p->regions[at];
        p->uses++;
        return HEDDLE_OK;
    }
    return HEDDLE_ERR_AGAIN;
}

int pool_take(pool_t *p, size_t bytes, memory_region_t **ret_region, heddle_error_t *error)
{
    int rc = take_free(p, bytes, ret_region, error);
    if (rc != HEDDLE_ERR_AGAIN) return rc;
    bool is_unfit = p->making && (!is_large_enough(p->making, bytes) || is_far_too_large(p->making, bytes));
    if (is_unfit && p->leaving) {
        give_back(p);
        return HEDDLE_ERR_AGAIN;
    }
    if (is_unfit) stop_making(p);
    if (!p->making && p->count >= p->most) return make_way(p) ? HEDDLE_ERR_AGAIN : fail_in_use(p, error);
    rc = p->making ? HEDDLE_OK : begin_making(p, bytes, error);
    if (rc) return rc;
    rc = make(p, error);
    if (!rc) return take_free(p, bytes, ret_region, error);
    if (rc != HEDDLE_ERR_NO_MEMORY || make_way(p)) return HEDDLE_ERR_AGAIN;
    stop_making(p);
    return rc;
}

int pool_adopt(pool_t *p, memory_region_t *region, heddle_error_t *error)
{
    uint32_t count = p->count + (p->making != NULL);
    if (count >= p->most) memory_region_destroy(&p->leaving);
    if (count >= p->most && !let_go_of_one(p, -1)) return fail_in_use(p, error);
    if (!has_place(p)) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    p->regions[p->count++] = region;
    p->is_list_changed = true;
    p->uses++;
    return HEDDLE_OK;
}

void pool_drop(pool_t *p, memory_region_t *region)
{
    (void)p;
    memory_region_abort(region);
    memory_region_drop(region);
}

/* One step of the guard; false: all is as it is to be. */
static bool guard(pool_t *p)
{
    for (uint32_t i = 0; i < p->count && p->opts.is_guarded; i++) {
        memory_region_t *r = p->regions[i];
        size_t was = r->guarded_bytes;
        if (r->state == REGION_SEALED) (void)memory_region_guard(r);
        else if (r->guarded_bytes && is_free(p, r)) (void)memory_region_unguard(r);
        if (r->guarded_bytes != was) return true;
    }
    return false;
}

/* What is far too large for what is in use goes at once: a large version that failed, or a larger model of
 * last week, leaves no memory behind. -1: there is none. */
static int find_useless(const pool_t *p, size_t in_use)
{
    for (uint32_t i = 0; i < p->count && in_use; i++)
        if (is_far_too_large(p->regions[i], in_use) && is_free(p, p->regions[i])) return (int)i;
    return -1;
}

/* What else there is too much of goes after a while: it may be needed for the next version. */
static uint64_t trim(pool_t *p, int spare, uint64_t now_us)
{
    if (count_free(p) <= (spare >= 0)) p->surplus_us = CLOCK_NEVER;
    else if (p->surplus_us == CLOCK_NEVER) p->surplus_us = now_us;
    if (p->surplus_us == CLOCK_NEVER) return CLOCK_NEVER;
    if (now_us - p->surplus_us < POOL_SURPLUS_US) return p->surplus_us + POOL_SURPLUS_US;
    (void)let_go_of_one(p, spare);
    return now_us;
}

/* A spare region is made only while another is in use: a process that publishes nothing any more needs none,
 * nor does one that publishes once. */
static bool needs_spare(const pool_t *p, int spare)
{
    return spare < 0 && p->opts.versions && p->uses > 1 && p->count > count_free(p) && p->count < p->most;
}

uint64_t pool_work(pool_t *p, uint64_t now_us)
{
    if (p->leaving) {
        give_back(p);
        return now_us;
    }
    size_t size = largest_in_use(p);
    int spare = find_free(p, size);
    bool is_to_make = p->making || needs_spare(p, spare);
    if (is_to_make && p->retry_us <= now_us) {
        int rc = p->making ? HEDDLE_OK : begin_making(p, size, NULL);
        if (!rc) rc = make(p, NULL);
        if (rc && rc != HEDDLE_ERR_AGAIN) {
            p->retry_us = now_us + POOL_RETRY_US;
            stop_making(p);
        }
        return now_us;
    }
    int useless = find_useless(p, size);
    if (useless >= 0) {
        let_go(p, useless);
        return now_us;
    }
    if (guard(p)) return now_us;
    uint64_t due_us = trim(p, spare, now_us);
    return is_to_make ? clock_earlier(due_us, p->retry_us) : due_us;
}

int pool_find(void *pool, const content_id_t *id)
{
    const pool_t *p = pool;
    for (uint32_t i = 0; i < p->count; i++) {
        content_id_t has = memory_region_content(p->regions[i]);
        int fd = -1;
        if (memcmp(has.identity, id->identity, sizeof has.identity) != 0) continue;
        int rc = id->epoch ? memory_region_hand_over(p->regions[i], &fd, NULL)
                           : memory_region_offer(p->regions[i], &fd, NULL);
        return rc ? -1 : fd;
    }
    return -1;
}

bool pool_list(pool_t *p, region_name_t ret_names[LIMIT_OFFERED], uint32_t *ret_count)
{
    bool is_changed = p->is_list_changed;
    p->is_list_changed = false;
    *ret_count = p->count < LIMIT_OFFERED ? p->count : LIMIT_OFFERED;
    for (uint32_t i = 0; i < *ret_count; i++) {
        content_id_t id = memory_region_content(p->regions[i]);
        memcpy(ret_names[i].identity, id.identity, sizeof id.identity);
    }
    return is_changed;
}

pool_count_t pool_count(const pool_t *p)
{
    pool_count_t c = {.regions = p->count};
    for (uint32_t i = 0; i < p->count; i++) {
        bool is_in_use = !is_free(p, p->regions[i]);
        c.bytes += p->regions[i]->made_bytes;
        c.in_use += is_in_use;
        c.lingering += is_in_use && p->regions[i]->state == REGION_IDLE;
    }
    if (p->making) c.bytes += p->making->made_bytes;
    if (p->leaving) c.bytes += p->leaving->mapped_bytes;
    return c;
}
