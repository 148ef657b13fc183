/* SPDX-License-Identifier: Apache-2.0 */
#include "client/regions.h"

#include "core/errors.h"
#include "core/log.h"
#include "memory/available.h"

#include <stdlib.h>

typedef struct handle {
    region_t region; /* first: its pointer is the handle's */
    regions_t *owner;
    struct handle *next;
} handle_t;

struct regions {
    const node_io_t *io;
    pool_t *pool;
    handle_t *handles;
    uint64_t due_us; /* 0: the pool has changed */
};

static handle_t **find(regions_t *m, const memory_region_t *own)
{
    handle_t **at = &m->handles;
    while (*at && (*at)->region.own != own) at = &(*at)->next;
    return at;
}

static bool is_used(const handle_t *h) { return atomic_load(&((handle_t *)h)->region.refs) > 0; }

/* ---- what the pool asks ---- */

static int may_make(void *self, size_t bytes, heddle_error_t *error)
{
    (void)self;
    return memory_check(bytes, error);
}

static bool is_unused(void *self, const memory_region_t *own)
{
    regions_t *m = self;
    const handle_t *h = *find(m, own);
    return !h || (!is_used(h) && m->io->tr->idle(m->io->t, &h->region));
}

static void on_leaving(void *self, memory_region_t *own)
{
    regions_t *m = self;
    handle_t **at = find(m, own), *h = *at;
    if (!h) return;
    *at = h->next;
    m->io->tr->unmap(m->io->t, &h->region);
    free(h);
}

int regions_new(const node_io_t *io, const regions_opts_t *opts, regions_t **ret_regions)
{
    regions_t *m = calloc(1, sizeof *m);
    if (!m) return HEDDLE_ERR_NO_MEMORY;
    m->io = io;
    m->due_us = CLOCK_NEVER;
    pool_opts_t pool = {.versions = opts->versions,
                        .has_views = opts->has_views,
                        .may_make = may_make,
                        .is_unused = is_unused,
                        .leaving = on_leaving,
                        .self = m};
    int rc = pool_new(&pool, &m->pool, NULL);
    if (rc) free(m);
    else *ret_regions = m;
    return rc;
}

/* ---- taken, and parked again ---- */

/* The last reference on the loop's thread. */
static void park(region_t *r)
{
    regions_t *m = ((handle_t *)(void *)r)->owner;
    m->due_us = 0;
    pool_drop(m->pool, r->own);
}

/* The last reference after regions_close, on any thread. */
static void give_back(region_t *r)
{
    memory_region_destroy(&r->own);
    free(r);
}

static int make_handle(regions_t *m, memory_region_t *own, handle_t **ret_handle, heddle_error_t *error)
{
    handle_t *h = calloc(1, sizeof *h);
    if (!h) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    h->owner = m;
    h->region =
        (region_t){.base = own->base, .view = own->view, .bytes = own->bytes, .own = own, .end = park};
    int rc = m->io->tr->map(m->io->t, &h->region);
    if (rc) {
        free(h);
        error_fail(error, rc, "a region of %zu bytes cannot be registered", own->bytes);
        error_hint(error, "free memory, or raise the limit of locked memory: ulimit -l");
        return rc;
    }
    h->next = m->handles;
    *ret_handle = m->handles = h;
    return HEDDLE_OK;
}

static region_t *use(handle_t *h)
{
    atomic_store(&h->region.refs, 1);
    return &h->region;
}

int regions_take(regions_t *m, size_t bytes, region_t **ret_region, heddle_error_t *error)
{
    memory_region_t *own;
    owner_check(m->io->owner);
    m->due_us = 0;
    int rc = pool_take(m->pool, bytes, &own, error);
    if (rc) return rc;
    handle_t *h = *find(m, own);
    rc = h ? HEDDLE_OK : make_handle(m, own, &h, error);
    if (rc) {
        pool_drop(m->pool, own);
        return rc;
    }
    *ret_region = use(h);
    return HEDDLE_OK;
}

int regions_adopt(regions_t *m, memory_region_t *own, region_t **ret_region, heddle_error_t *error)
{
    handle_t *h;
    owner_check(m->io->owner);
    m->due_us = 0;
    int rc = make_handle(m, own, &h, error);
    if (rc) return rc;
    rc = pool_adopt(m->pool, own, error);
    if (rc) on_leaving(m, own);
    else *ret_region = use(h);
    return rc;
}

/* ---- in the background ---- */

bool regions_work(regions_t *m, uint64_t now_us)
{
    owner_check(m->io->owner);
    if (now_us < m->due_us) return false;
    m->due_us = pool_work(m->pool, now_us);
    return m->due_us <= now_us;
}

uint64_t regions_deadline(const regions_t *m) { return m->due_us; }
pool_count_t regions_count(const regions_t *m) { return pool_count(m->pool); }
pool_t *regions_pool(regions_t *m) { return m->pool; }

/* ---- the end ---- */

/* The pool forgets what is used (is_unused): that goes with its last reference, and never where a receive is
 * open in it, for which a reference stays. */
void regions_close(regions_t **regions)
{
    regions_t *m = regions ? *regions : NULL;
    if (!m) return;
    *regions = NULL;
    owner_check(m->io->owner);
    for (handle_t *h = m->handles; h; h = h->next) {
        bool is_idle = m->io->tr->idle(m->io->t, &h->region);
        if (is_idle && is_used(h)) m->io->tr->unmap(m->io->t, &h->region);
        h->region.end = give_back;
        if (is_idle) continue;
        log_emit(LOG_WARN, "worker.region", "%zu bytes are not given back: a receive into them is open",
                 h->region.bytes);
        region_ref(&h->region);
    }
    pool_destroy(&m->pool);
    free(m);
}
