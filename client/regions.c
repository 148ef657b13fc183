/* SPDX-License-Identifier: Apache-2.0 */
#include "client/regions.h"

#include "core/errors.h"
#include "memory/mappings.h"
#include "memory/offer.h"
#include "core/log.h"
#include "memory/available.h"

#include <stdlib.h>
#include <string.h>

typedef struct handle {
    region_t region; /* first: its pointer is the handle's */
    regions_t *owner;
    mappings_t *from;     /* held; NULL: own */
    content_id_t offered; /* generation 0: it is not */
    bool is_withdrawn;    /* until it is taken again */
    struct handle *next;
} handle_t;

struct regions {
    const node_io_t *io;
    pool_t *pool;
    offer_t *offer; /* NULL: there is none */
    handle_t *handles;
    uint64_t due_us;      /* 0: the pool has changed */
    uint64_t rest_us;     /* the background waits until then, */
    uint64_t rest_end_us; /* and no longer than this, however busy the member is */
    bool may_rest;        /* the pool has changed since the last rest began */
    bool is_guarded;
};

static void change(regions_t *m)
{
    m->due_us = 0;
    m->may_rest = true;
}

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
    return memory_available_check(bytes, error);
}

static bool is_unused(void *self, const memory_region_t *own)
{
    regions_t *m = self;
    const handle_t *h = *find(m, own);
    return !h || (!is_used(h) && m->io->tr->idle(m->io->t, &h->region));
}

/* A receive that was given up may still write into the region; if that is read-only, this process dies. */
static bool may_guard(void *self, const memory_region_t *own)
{
    regions_t *m = self;
    const handle_t *h = *find(m, own);
    return !h || m->io->tr->idle(m->io->t, &h->region);
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

bool regions_are_guarded(void)
{
    const char *guard = getenv("HEDDLE_GUARD");
    return !guard || strcmp(guard, "0") != 0;
}

int regions_new(const node_io_t *io, const regions_opts_t *opts, regions_t **ret_regions)
{
    regions_t *m = calloc(1, sizeof *m);
    if (!m) return HEDDLE_ERR_NO_MEMORY;
    m->io = io;
    m->due_us = CLOCK_NEVER;
    m->may_rest = true;
    m->is_guarded = opts->is_guarded;
    pool_opts_t pool = {.most = opts->most,
                        .has_views = opts->has_views,
                        .is_guarded = opts->is_guarded,
                        .may_make = may_make,
                        .is_unused = is_unused,
                        .may_guard = opts->has_views ? may_guard : NULL, /* only these are received into */
                        .leaving = on_leaving,
                        .self = m};
    int rc = pool_new(&pool, &m->pool, NULL);
    if (rc) free(m);
    else *ret_regions = m;
    return rc;
}

/* ---- taken, and parked again ---- */

static handle_t *handle_of(region_t *r) { return (handle_t *)(void *)r; }

static void end_offer(handle_t *h)
{
    if (h->offered.generation && h->owner->offer) offer_remove(h->owner->offer, &h->offered);
    h->offered.generation = 0;
}

/* The last reference on the loop's thread. */
static void park(region_t *r)
{
    handle_t *h = handle_of(r);
    change(h->owner);
    end_offer(h);
    pool_drop(h->owner->pool, r->own);
}

/* The last reference after regions_close, on any thread. */
static void give_back(region_t *r)
{
    memory_region_destroy(&r->own);
    hold_destroy(&r->held);
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
    h->is_withdrawn = false;
    return &h->region;
}

int regions_take(regions_t *m, const void *taker, size_t bytes, region_t **ret_region, heddle_error_t *error)
{
    memory_region_t *own;
    owner_check(m->io->owner);
    change(m);
    int rc = pool_take(m->pool, taker, bytes, &own, error);
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

void regions_expect(regions_t *m, size_t bytes)
{
    change(m);
    pool_expect(m->pool, bytes);
}

void regions_usual(regions_t *m, uint32_t count) { pool_usual(m->pool, count); }

void regions_give_up(regions_t *m, const void *taker)
{
    change(m);
    pool_give_up(m->pool, taker);
}

int regions_adopt(regions_t *m, memory_region_t *own, region_t **ret_region, heddle_error_t *error)
{
    handle_t *h;
    owner_check(m->io->owner);
    change(m);
    int rc = make_handle(m, own, &h, error);
    if (rc) return rc;
    rc = pool_adopt(m->pool, own, error);
    if (rc) on_leaving(m, own);
    else *ret_region = use(h);
    return rc;
}

/* ---- held ---- */

/* The last reference on the loop's thread. */
static void let_go(region_t *r)
{
    handle_t *h = handle_of(r), **at = &h->owner->handles;
    while (*at != h) at = &(*at)->next;
    *at = h->next;
    end_offer(h);
    h->owner->io->tr->unmap(h->owner->io->t, r);
    mappings_give(h->from, &r->held);
    free(h);
}

int regions_hold(regions_t *m, mappings_t *from, hold_t *hold, region_t **ret_region, heddle_error_t *error)
{
    owner_check(m->io->owner);
    handle_t *h = calloc(1, sizeof *h);
    if (!h) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a region");
    h->owner = m;
    h->from = from;
    h->region =
        (region_t){.view = hold->base, .bytes = (size_t)hold->header.bytes, .held = hold, .end = let_go};
    int rc = m->io->tr->map(m->io->t, &h->region);
    if (rc) {
        free(h);
        return error_fail(error, rc, "a region of %zu bytes cannot be registered",
                          (size_t)hold->header.bytes);
    }
    h->next = m->handles;
    m->handles = h;
    *ret_region = use(h);
    return HEDDLE_OK;
}

/* ---- offered ---- */

static content_id_t content_of(const region_t *r)
{
    if (r->own) return memory_region_content(r->own);
    content_id_t id = {.generation = r->held->header.generation, .manifest = r->held->header.manifest};
    memcpy(id.identity, r->held->header.identity, sizeof id.identity);
    return id;
}

/* Nothing of the version depends on it: other processes fetch over the network what is not offered. */
void regions_offer(regions_t *m, region_t *r, const regions_content_t *content)
{
    heddle_error_t error;
    handle_t *h = handle_of(r);
    if (h->offered.generation || h->is_withdrawn) return;
    /* It is sealed already, and has that content, where it had no socket or the offer failed before. */
    bool is_open = r->own && r->own->state != REGION_SEALED;
    int rc = is_open ? memory_region_seal(r->own, &content->manifest, content->bytes, &error) : HEDDLE_OK;
    if (!rc && !m->offer) return;
    offer_content_t offer = {.id = content_of(r),
                             .bytes = content->bytes,
                             .hold = r->held,
                             .is_verified = !content->is_to_be_verified,
                             .verified_us = clock_now(m->io->clock)};
    if (!rc) rc = offer_add(m->offer, &offer, &error);
    if (!rc) {
        h->offered = offer.id;
        return;
    }
    log_emit(LOG_WARN, "memory.unoffered",
             "a version is not offered to the processes of this host, which fetch it over the network: %s",
             error.message);
}

int regions_file(const region_t *r, regions_file_t *ret_file, heddle_error_t *error)
{
    int rc = r->own ? memory_region_hand_over(r->own, &ret_file->fd, error)
                    : hold_hand_on(r->held, &ret_file->fd, error);
    if (!rc) ret_file->id = content_of(r);
    return rc;
}

void regions_withdraw(region_t *r)
{
    handle_t *h = handle_of(r);
    owner_check(h->owner->io->owner);
    end_offer(h);
    h->is_withdrawn = true;
}

bool regions_is_withdrawn(const region_t *r) { return ((const handle_t *)(const void *)r)->is_withdrawn; }
content_id_t regions_offered(const region_t *r) { return ((const handle_t *)(const void *)r)->offered; }
void regions_share(regions_t *m, offer_t *offer) { m->offer = offer; }

/* ---- in the background ---- */

/* A member may be busy for hours, with a version whose sources are gone. Without a change of the pool the
 * next rest would only delay the same step again. */
void regions_busy(regions_t *m, uint64_t now_us)
{
    if (m->may_rest && now_us >= m->rest_us) {
        m->rest_end_us = now_us + REGIONS_REST_MOST_US;
        m->may_rest = false;
    }
    m->rest_us = now_us + REGIONS_REST_US;
}

bool regions_work(regions_t *m, uint64_t now_us)
{
    owner_check(m->io->owner);
    if (now_us < regions_deadline(m)) return false;
    m->due_us = pool_work(m->pool, now_us);
    return m->due_us <= now_us;
}

uint64_t regions_deadline(const regions_t *m)
{
    uint64_t rest_us = clock_earlier(m->rest_us, m->rest_end_us);
    return m->due_us > rest_us ? m->due_us : rest_us;
}
pool_count_t regions_count(const regions_t *m) { return pool_count(m->pool); }
pool_t *regions_pool(regions_t *m) { return m->pool; }

/* ---- the end ---- */

/* The background has no other turn: what was not guarded yet is guarded at once. */
static void guard(const regions_t *m, const region_t *r)
{
    if (!m->is_guarded || !r->own || r->own->state != REGION_SEALED) return;
    while (memory_region_guard(r->own)) {}
}

/* The pool leaves a region that is in use alone (is_unused): the last reference frees it.  A region with an
 * open receive gets one more reference, so that it is never freed. */
void regions_close(regions_t **regions)
{
    regions_t *m = regions ? *regions : NULL;
    if (!m) return;
    *regions = NULL;
    owner_check(m->io->owner);
    for (handle_t *h = m->handles; h; h = h->next) {
        bool is_idle = m->io->tr->idle(m->io->t, &h->region);
        end_offer(h);
        if (is_idle && is_used(h)) {
            m->io->tr->unmap(m->io->t, &h->region);
            guard(m, &h->region);
        }
        h->region.end = give_back;
        if (is_idle) continue;
        log_emit(LOG_WARN, "memory.region", "%zu bytes are not given back: a receive into them is open",
                 h->region.bytes);
        region_ref(&h->region);
    }
    pool_destroy(&m->pool);
    free(m);
}
