/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/publications.h"

#include "core/digest.h"

#include <string.h>

void publications_init(publications_t *p, const transfer_ops_t *tr, transfer_t *t)
{
    *p = (publications_t){.tr = tr, .t = t};
}

/* Unregistered first: the transfer must not have a region that is gone. */
static void drop_region(publications_t *p, publication_slot_t *s)
{
    if (!s->region) return;
    p->tr->unmap(p->t, s->region);
    region_unref(&s->region);
}

/* No new read request is served; the slot is free when the last send is over. */
static void stop(publications_t *p, publication_slot_t *s)
{
    s->state = PUBLICATION_CLOSING;
    p->tr->unshare(p->t, s->key);
}

/* Serving ends at once: the transfer is closed next, and reports no end of a share any more. */
void publications_fini(publications_t *p)
{
    publications_stop(p, 0);
    for (int i = 0; i < PUBLICATION_SLOTS; i++) drop_region(p, &p->slots[i]);
}

/* Served ones by how little they are missed: released, then decided, then older before newer. */
static bool goes_before(const publication_slot_t *a, const publication_slot_t *b)
{
    if (a->is_released != b->is_released) return a->is_released;
    if (a->is_decided != b->is_decided) return a->is_decided;
    return a->version < b->version;
}

/* An order for first_in. */
static bool is_newer(const publication_slot_t *a, const publication_slot_t *b)
{
    return a->version > b->version;
}

/* A larger region fits more versions; one without memory comes last. */
static bool is_larger(const publication_slot_t *a, const publication_slot_t *b)
{
    return (a->region ? a->region->bytes : 0) > (b->region ? b->region->bytes : 0);
}

typedef bool before_t(const publication_slot_t *a, const publication_slot_t *b);

/* The first slot of a state in the given order, leaving out two; NULL: none. */
static publication_slot_t *first_but(publications_t *p, publication_state_t state, before_t *goes_first,
                                     const publication_slot_t *but1, const publication_slot_t *but2)
{
    publication_slot_t *best = NULL;
    for (int i = 0; i < PUBLICATION_SLOTS; i++) {
        publication_slot_t *s = &p->slots[i];
        if (s->state == state && s != but1 && s != but2 && (!best || goes_first(s, best))) best = s;
    }
    return best;
}

static publication_slot_t *first_in(publications_t *p, publication_state_t state, before_t *goes_first)
{
    return first_but(p, state, goes_first, NULL, NULL);
}

/* The version that is given up when a slot is needed. Where all may still be needed, the oldest is on its
 * way to a worker and the newest comes next, so that one between them goes. */
static publication_slot_t *least_missed(publications_t *p)
{
    publication_slot_t *first = first_in(p, PUBLICATION_SERVED, goes_before);
    if (!first || first->is_released || first->is_decided) return first;
    publication_slot_t *newest = first_in(p, PUBLICATION_SERVED, is_newer);
    publication_slot_t *between = first_but(p, PUBLICATION_SERVED, goes_before, first, newest);
    return between ? between : first;
}

bool publications_have(const publications_t *p, publication_state_t state)
{
    for (int i = 0; i < PUBLICATION_SLOTS; i++)
        if (p->slots[i].state == state) return true;
    return false;
}

/* A region that is being closed is free soon, and is waited for before a version is given up. */
int publications_take(publications_t *p, uint64_t bytes, bool is_spare_any, int *ret_slot,
                      region_t **ret_region)
{
    publication_slot_t *s = first_in(p, PUBLICATION_FREE, is_larger), *served = least_missed(p);
    /* A free slot without memory is used only while there are fewer warm ones than needed, or when none will
     * become free: memory that is made once stays. */
    int warm = 0;
    for (int i = 0; i < PUBLICATION_SLOTS; i++) warm += p->slots[i].region != NULL;
    bool comes_free = publications_have(p, PUBLICATION_CLOSING) || (served && served->is_released);
    if (s && !s->region && warm >= PUBLICATION_WARM && comes_free) s = NULL;
    if (!s && publications_have(p, PUBLICATION_CLOSING)) return HEDDLE_ERR_AGAIN;
    if (!s && served && (is_spare_any || served->is_released || served->is_decided)) stop(p, served);
    if (!s) return served ? HEDDLE_ERR_AGAIN : HEDDLE_ERR_NO_SLOT;
    /* Before the larger one is made: there may not be memory for both. */
    if (s->region && s->region->bytes < bytes) drop_region(p, s);
    s->state = PUBLICATION_TAKEN;
    *ret_slot = (int)(s - p->slots);
    *ret_region = s->region;
    return HEDDLE_OK;
}

/* The old region goes first: there may not be memory for both. */
int publications_fit(publications_t *p, int slot, region_t *region)
{
    publication_slot_t *s = &p->slots[slot];
    drop_region(p, s);
    int rc = p->tr->map(p->t, region);
    if (rc) region_unref(&region);
    else s->region = region;
    return rc;
}

void publications_give_back(publications_t *p, int slot) { p->slots[slot].state = PUBLICATION_FREE; }

void publications_doubt(publications_t *p, int slot, uint64_t arena_bytes, const publication_doubt_t *doubt)
{
    publication_slot_t *s = &p->slots[slot];
    s->state = PUBLICATION_IN_DOUBT;
    s->arena_bytes = arena_bytes;
    s->doubt = *doubt;
}

/* Request numbers grow, so that the smallest one is the oldest. */
int publications_in_doubt(const publications_t *p, uint64_t req)
{
    int found = -1;
    for (int i = 0; i < PUBLICATION_SLOTS; i++) {
        const publication_slot_t *s = &p->slots[i];
        if (s->state != PUBLICATION_IN_DOUBT || (req && s->doubt.req != req)) continue;
        if (found < 0 || s->doubt.req < p->slots[found].doubt.req) found = i;
    }
    return found;
}

/* The same version may be published twice under one request id. The first slot goes on serving it, and
 * the second one is free. */
int publications_share(publications_t *p, int slot, uint64_t version, const key16_t *given,
                       uint64_t arena_bytes)
{
    static const key16_t NO_KEY;
    publication_slot_t *s = &p->slots[slot];
    share_key_t key;
    memcpy(key.b, given->b, sizeof key.b);
    int rc = memcmp(given, &NO_KEY, sizeof NO_KEY) ? HEDDLE_OK : HEDDLE_ERR_GONE;
    if (!rc && !publications_of(p, version)) {
        rc = p->tr->share(p->t, s->region, key);
        if (!rc) {
            *s = (publication_slot_t){.state = PUBLICATION_SERVED,
                                      .region = s->region,
                                      .version = version,
                                      .arena_bytes = arena_bytes,
                                      .key = key};
            rc = p->tr->extend(p->t, key, 0, arena_bytes);
            if (rc) stop(p, s);
            return rc;
        }
    }
    publications_give_back(p, slot);
    return rc;
}

/* The last send is over, so that the region can be written again. */
void publications_unshared(publications_t *p, const share_key_t *key)
{
    for (int i = 0; i < PUBLICATION_SLOTS; i++) {
        publication_slot_t *s = &p->slots[i];
        if (s->state == PUBLICATION_CLOSING && !memcmp(&s->key, key, sizeof *key))
            s->state = PUBLICATION_FREE;
    }
}

const publication_slot_t *publications_of(const publications_t *p, uint64_t version)
{
    for (int i = 0; i < PUBLICATION_SLOTS; i++)
        if (p->slots[i].state == PUBLICATION_SERVED && p->slots[i].version == version) return &p->slots[i];
    return NULL;
}

/* A released version is served on, because its memory is there anyway; it is the first to go. */
bool publications_release(publications_t *p, uint64_t version)
{
    publication_slot_t *s = (publication_slot_t *)publications_of(p, version);
    if (s) s->is_released = true;
    return s != NULL;
}

void publications_decided(publications_t *p, uint64_t version)
{
    publication_slot_t *s = (publication_slot_t *)publications_of(p, version);
    if (s) s->is_decided = true;
}

void publications_stop(publications_t *p, uint64_t version)
{
    for (int i = 0; i < PUBLICATION_SLOTS; i++)
        if (p->slots[i].state == PUBLICATION_SERVED && (!version || p->slots[i].version == version))
            stop(p, &p->slots[i]);
}

/* The newest first: the broker takes the first as the current one. */
uint32_t publications_served(const publications_t *p, uint64_t ret_versions[PUBLICATION_SLOTS])
{
    uint32_t count = 0;
    for (int i = 0; i < PUBLICATION_SLOTS; i++) {
        if (p->slots[i].state != PUBLICATION_SERVED) continue;
        uint32_t at = count++;
        for (; at && ret_versions[at - 1] < p->slots[i].version; at--)
            ret_versions[at] = ret_versions[at - 1];
        ret_versions[at] = p->slots[i].version;
    }
    return count;
}
