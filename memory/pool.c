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
    uint32_t most, count;
    memory_region_t *regions[LIMIT_OFFERED]; /* whole: free, written, wanted, lingering */
    memory_region_t *making, *leaving;
    size_t size;         /* last asked for; 0: nothing yet */
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
    p->most = most < POOL_LEAST ? POOL_LEAST : most;
    p->surplus_us = CLOCK_NEVER;
    p->is_list_changed = true;
    *ret_pool = p;
    return HEDDLE_OK;
}

void pool_destroy(pool_t **pool)
{
    pool_t *p = pool ? *pool : NULL;
    if (!p) return;
    *pool = NULL;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->opts.leaving) p->opts.leaving(p->opts.self, p->regions[i]);
        memory_region_destroy(&p->regions[i]);
    }
    memory_region_destroy(&p->making);
    memory_region_destroy(&p->leaving);
    free(p);
}

static bool has_room_for(const pool_t *p, size_t bytes)
{
    return !p->opts.may_make || p->opts.may_make(p->opts.self, bytes);
}

static bool is_large_enough(const memory_region_t *r, size_t bytes) { return r->bytes >= bytes; }

/* The smallest one that is free and has the bytes; -1: none. */
static int find_free(const pool_t *p, size_t bytes)
{
    int best = -1;
    for (uint32_t i = 0; i < p->count; i++)
        if (is_large_enough(p->regions[i], bytes) && memory_region_is_free(p->regions[i]) &&
            (best < 0 || p->regions[i]->bytes < p->regions[best]->bytes))
            best = (int)i;
    return best;
}

static uint32_t count_free(const pool_t *p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->count; i++) n += memory_region_is_free(p->regions[i]);
    return n;
}

/* The smallest one that is free, but for the spare one, leaves. Nothing else is leaving. */
static bool let_go_of_one(pool_t *p, int spare)
{
    int at = -1;
    for (uint32_t i = 0; i < p->count && !p->leaving; i++)
        if ((int)i != spare && memory_region_is_free(p->regions[i]) &&
            (at < 0 || p->regions[i]->bytes < p->regions[at]->bytes))
            at = (int)i;
    if (at < 0) return false;
    p->leaving = p->regions[at];
    if (p->opts.leaving) p->opts.leaving(p->opts.self, p->leaving);
    p->regions[at] = p->regions[--p->count];
    p->is_list_changed = true;
    return true;
}

static int fail_memory(size_t bytes, heddle_error_t *error)
{
    error_fail(error, HEDDLE_ERR_NO_MEMORY, "there is no memory for %zu bytes of shared memory", bytes);
    error_hint(error, "free memory, keep fewer versions, or use a smaller adapter");
    return HEDDLE_ERR_NO_MEMORY;
}

/* One step of the region that is being made. */
static int make(pool_t *p, heddle_error_t *error)
{
    memory_region_t *r = p->making;
    bool is_to_ask = r->made_bytes > 0 && r->made_bytes % POOL_ASK_BYTES == 0;
    int rc =
        !is_to_ask || has_room_for(p, r->bytes - r->made_bytes) ? HEDDLE_OK : fail_memory(r->bytes, error);
    if (!rc) rc = memory_region_grow(r, error);
    if (rc == HEDDLE_ERR_AGAIN) return rc;
    if (rc) {
        memory_region_destroy(&p->making);
        return rc;
    }
    p->making = NULL;
    p->regions[p->count++] = r;
    p->is_list_changed = true;
    return HEDDLE_OK;
}

static int begin_making(pool_t *p, size_t bytes, heddle_error_t *error)
{
    int rc = has_room_for(p, bytes) ? memory_region_new(bytes, &p->making, error) : fail_memory(bytes, error);
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
    if (!lingering) return HEDDLE_ERR_NO_SLOT;
    holders_find(&h, lingering->file.fd, NAME_STEPS);
    error_found(error, "held by %s", holders_text(&h, text));
    error_hint(error, "release versions that are not used any more");
    return HEDDLE_ERR_NO_SLOT;
}

int pool_take(pool_t *p, size_t bytes, memory_region_t **ret_region, heddle_error_t *error)
{
    p->size = bytes;
    for (int at; (at = find_free(p, bytes)) >= 0;) {
        int rc = memory_region_begin(p->regions[at], error);
        if (rc == HEDDLE_OK) *ret_region = p->regions[at];
        if (rc != HEDDLE_ERR_NO_SLOT) return rc; /* else another process was first */
    }
    if (p->making && !is_large_enough(p->making, bytes)) memory_region_destroy(&p->making);
    if (!p->making) {
        if (p->count >= p->most && !let_go_of_one(p, -1)) return fail_in_use(p, error);
        int rc = begin_making(p, bytes, error);
        if (rc) return rc;
    }
    int rc = make(p, error);
    return rc ? rc : HEDDLE_ERR_AGAIN;
}

int pool_adopt(pool_t *p, memory_region_t *region, heddle_error_t *error)
{
    uint32_t count = p->count + (p->making != NULL);
    if (count >= p->most && !let_go_of_one(p, -1)) return fail_in_use(p, error);
    p->regions[p->count++] = region;
    p->is_list_changed = true;
    return HEDDLE_OK;
}

void pool_drop(pool_t *p, memory_region_t *region)
{
    (void)p;
    memory_region_abort(region);
    memory_region_drop(region);
}

/* The free region that is kept; one that is far too large is none. -1: there is none. */
static int find_spare(const pool_t *p)
{
    int at = find_free(p, p->size);
    return at >= 0 && p->regions[at]->bytes <= 2 * p->size + MEMORY_STEP_BYTES ? at : -1;
}

/* One step of the guard; false: all is as it is to be. */
static bool guard(pool_t *p)
{
    for (uint32_t i = 0; i < p->count && p->opts.is_guarded; i++) {
        memory_region_t *r = p->regions[i];
        size_t was = r->guarded_bytes;
        if (r->state == REGION_SEALED) (void)memory_region_guard(r);
        else if (r->guarded_bytes && memory_region_is_free(r)) (void)memory_region_unguard(r);
        if (r->guarded_bytes != was) return true;
    }
    return false;
}

/* What there is too much of goes after a while: it may be needed for the next version. */
static uint64_t trim(pool_t *p, int spare, uint64_t now_us)
{
    if (count_free(p) <= (spare >= 0)) p->surplus_us = CLOCK_NEVER;
    else if (p->surplus_us == CLOCK_NEVER) p->surplus_us = now_us;
    if (p->surplus_us == CLOCK_NEVER) return CLOCK_NEVER;
    if (now_us - p->surplus_us < POOL_SURPLUS_US) return p->surplus_us + POOL_SURPLUS_US;
    (void)let_go_of_one(p, spare);
    return now_us;
}

/* A spare region is made only while another is in use: a process that publishes nothing any more needs
 * none. */
uint64_t pool_work(pool_t *p, uint64_t now_us)
{
    if (p->leaving && memory_region_shrink(p->leaving)) return now_us;
    memory_region_destroy(&p->leaving);
    int spare = find_spare(p);
    bool is_to_make = p->making || (spare < 0 && p->count > count_free(p) && p->count < p->most);
    if (is_to_make && p->retry_us <= now_us) {
        int rc = p->making ? HEDDLE_OK : begin_making(p, p->size, NULL);
        if (!rc) rc = make(p, NULL);
        if (rc && rc != HEDDLE_ERR_AGAIN) p->retry_us = now_us + POOL_RETRY_US;
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
    *ret_count = p->count;
    for (uint32_t i = 0; i < p->count; i++) {
        content_id_t id = memory_region_content(p->regions[i]);
        memcpy(ret_names[i].identity, id.identity, sizeof id.identity);
    }
    return is_changed;
}

pool_count_t pool_count(const pool_t *p)
{
    pool_count_t c = {.regions = p->count};
    for (uint32_t i = 0; i < p->count; i++) {
        bool is_free = memory_region_is_free(p->regions[i]);
        c.bytes += p->regions[i]->made_bytes;
        c.in_use += !is_free;
        c.lingering += !is_free && p->regions[i]->state == REGION_IDLE;
    }
    if (p->making) c.bytes += p->making->made_bytes;
    return c;
}
