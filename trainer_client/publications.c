/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/publications.h"

#include "client/sharing.h"
#include "core/digest.h"

#include <string.h>

static void let_go(publications_t *p, publication_slot_t *s)
{
    if (s->state == PUBLICATION_SERVED) p->io->tr->unshare(p->io->t, s->key);
    if (s->region) regions_withdraw(s->region); /* at once: a send that is open keeps a reference */
    region_unref(&s->region);
    *s = (publication_slot_t){.state = PUBLICATION_FREE};
}

int publications_init(publications_t *p, const node_io_t *io, bool is_guarded)
{
    regions_opts_t opts = {.most = LIMIT_OFFERED, .is_guarded = is_guarded};
    *p = (publications_t){.io = io};
    return regions_new(io, &opts, &p->regions);
}

void publications_fini(publications_t *p)
{
    if (p->regions) publications_give_up(p);
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) let_go(p, &p->slots[i]);
    sharing_close(&p->sharing);
    regions_close(&p->regions);
}

/* ---- which version is given up ---- */

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

typedef bool before_t(const publication_slot_t *a, const publication_slot_t *b);

/* The first slot of a state in the given order, leaving out two; NULL: none. */
static publication_slot_t *first_but(publications_t *p, publication_state_t state, before_t *goes_first,
                                     const publication_slot_t *but1, const publication_slot_t *but2)
{
    publication_slot_t *best = NULL;
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) {
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
    for (int i = 0; i < PUBLICATIONS_WANTED; i++)
        if (p->slots[i].state == state) return true;
    return false;
}

/* ---- taken and given back ---- */

/* FREE, or SERVED and to go: a version that was released goes as soon as another one is wanted. */
static int find_slot(publications_t *p, bool may_drop_any, publication_slot_t **ret_slot,
                     heddle_error_t *error)
{
    publication_slot_t *free_one = first_in(p, PUBLICATION_FREE, is_newer), *served = least_missed(p);
    uint32_t wanted = 0;
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) wanted += p->slots[i].state != PUBLICATION_FREE;
    bool is_to_go = !free_one || (wanted > 1 && served && served->is_released);
    if (is_to_go && !served)
        return error_fail(error, HEDDLE_ERR_NO_SLOT, "every version of the publisher is being written");
    if (is_to_go && !(may_drop_any || served->is_released || served->is_decided)) return HEDDLE_ERR_AGAIN;
    *ret_slot = is_to_go ? served : free_one;
    return HEDDLE_OK;
}

bool publications_are_making(const publications_t *p) { return p->bytes && !p->next && !p->failure.code; }

bool publications_make(publications_t *p)
{
    if (!publications_are_making(p)) return false;
    int rc = regions_take(p->regions, p, (size_t)p->bytes, &p->next, &p->failure);
    p->failure.code = rc == HEDDLE_ERR_AGAIN ? HEDDLE_OK : rc;
    return rc == HEDDLE_ERR_AGAIN;
}

/* The region of the next version, in p->next. */
static int take_region(publications_t *p, const publication_take_t *take)
{
    if (take->bytes != p->bytes) publications_give_up(p); /* of another publication */
    p->bytes = take->bytes;
    if (take->own && !p->next) p->failure.code = regions_adopt(p->regions, take->own, &p->next, &p->failure);
    else (void)publications_make(p);
    return p->next ? HEDDLE_OK : p->failure.code ? p->failure.code : HEDDLE_ERR_AGAIN;
}

/* Without this version there is memory for the next one; or others have it, and there may be. */
static bool gives_memory(const publication_slot_t *s, uint64_t bytes)
{
    bool is_held = memory_region_is_held(s->region->own);
    return s->state == PUBLICATION_SERVED && !is_held && (s->is_decided || s->region->bytes >= bytes);
}

int publications_take(publications_t *p, publication_take_t *take, heddle_error_t *error)
{
    publication_slot_t *s = NULL;
    take->waits = PUBLICATION_FOR_BROKER;
    int rc = find_slot(p, take->may_drop_any, &s, error);
    if (rc) return rc;
    if (s->is_released) let_go(p, s);
    take->waits = PUBLICATION_FOR_MEMORY;
    rc = take_region(p, take);
    bool is_short = rc == HEDDLE_ERR_NO_SLOT || rc == HEDDLE_ERR_NO_MEMORY;
    if (is_short && s->region && gives_memory(s, take->bytes)) {
        let_go(p, s);
        p->failure = (heddle_error_t){0};
        rc = take_region(p, take);
    }
    if (rc == HEDDLE_ERR_AGAIN) return rc;
    if (rc) {
        if (error) *error = p->failure;
        publications_give_up(p);
        return rc;
    }
    let_go(p, s);
    *s = (publication_slot_t){.state = PUBLICATION_TAKEN, .region = p->next};
    p->next = NULL;
    p->bytes = 0;
    take->region = s->region;
    take->slot = (int)(s - p->slots);
    return HEDDLE_OK;
}

void publications_give_up(publications_t *p)
{
    regions_give_up(p->regions, p);
    region_unref(&p->next);
    p->bytes = 0;
    p->failure = (heddle_error_t){0};
}

void publications_give_back(publications_t *p, int slot) { let_go(p, &p->slots[slot]); }

/* The version's number is not known yet: those that hold it get its identity, generation and manifest. */
void publications_seal(publications_t *p, int slot, const digest_t *manifest, uint64_t content_bytes)
{
    regions_content_t content = {.manifest = *manifest, .bytes = content_bytes, .is_to_be_verified = true};
    regions_offer(p->regions, p->slots[slot].region, &content);
}

void publications_doubt(publications_t *p, int slot, uint64_t content_bytes, const publication_doubt_t *doubt)
{
    publication_slot_t *s = &p->slots[slot];
    s->state = PUBLICATION_IN_DOUBT;
    s->content_bytes = content_bytes;
    s->doubt = *doubt;
}

/* Request numbers grow, so that the smallest one is the oldest. */
int publications_in_doubt(const publications_t *p, uint64_t req)
{
    int found = -1;
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) {
        const publication_slot_t *s = &p->slots[i];
        if (s->state != PUBLICATION_IN_DOUBT || (req && s->doubt.req != req)) continue;
        if (found < 0 || s->doubt.req < p->slots[found].doubt.req) found = i;
    }
    return found;
}

/* The same version may be published twice under one request id. The first slot goes on serving it, and
 * the second one is free. */
int publications_share(publications_t *p, int slot, uint64_t version, const key16_t *given,
                       uint64_t content_bytes)
{
    static const key16_t NO_KEY;
    publication_slot_t *s = &p->slots[slot];
    share_key_t key;
    memcpy(key.b, given->b, sizeof key.b);
    int rc = memcmp(given, &NO_KEY, sizeof NO_KEY) ? HEDDLE_OK : HEDDLE_ERR_GONE;
    bool is_served = publications_of(p, version) != NULL;
    if (!rc && !is_served) rc = p->io->tr->share(p->io->t, s->region, key);
    if (rc || is_served) {
        publications_give_back(p, slot);
        return rc;
    }
    *s = (publication_slot_t){.state = PUBLICATION_SERVED,
                              .region = s->region,
                              .version = version,
                              .content_bytes = content_bytes,
                              .key = key};
    rc = p->io->tr->extend(p->io->t, key, 0, content_bytes);
    if (rc) let_go(p, s);
    return rc;
}

/* ---- served ---- */

const publication_slot_t *publications_of(const publications_t *p, uint64_t version)
{
    for (int i = 0; i < PUBLICATIONS_WANTED; i++)
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
    for (int i = 0; i < PUBLICATIONS_WANTED; i++)
        if (p->slots[i].state == PUBLICATION_SERVED && (!version || p->slots[i].version == version))
            let_go(p, &p->slots[i]);
}

/* The newest first: the broker takes the first as the current one. */
uint32_t publications_served(const publications_t *p, uint64_t ret_versions[PUBLICATIONS_WANTED])
{
    uint32_t count = 0;
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) {
        if (p->slots[i].state != PUBLICATION_SERVED) continue;
        uint32_t at = count++;
        for (; at && ret_versions[at - 1] < p->slots[i].version; at--)
            ret_versions[at] = ret_versions[at - 1];
        ret_versions[at] = p->slots[i].version;
    }
    return count;
}

uint32_t publications_offered(const publications_t *p, msg_offered_t ret_offered[PUBLICATIONS_WANTED])
{
    uint32_t count = 0;
    for (int i = 0; i < PUBLICATIONS_WANTED; i++) {
        const publication_slot_t *s = &p->slots[i];
        if (s->state != PUBLICATION_SERVED) continue;
        content_id_t content = regions_offered(s->region);
        if (!content.generation) continue;
        ret_offered[count++] = (msg_offered_t){.version = s->version, .region = sharing_region(&content)};
    }
    return count;
}
