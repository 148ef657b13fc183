/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/holding.h"

#include "client/sharing.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "worker/verify_fetched.h"

#include <string.h>

#define TRIES 2u

_Static_assert(HOLDING_SOCKET == SHARING_NAME_BYTES, "a name of a socket");

void holding_begin(holding_t *h, uint64_t now_us) { *h = (holding_t){.begun_us = now_us}; }

void holding_end(holding_t *h)
{
    region_unref(&h->region);
    manifest_fini(&h->manifest);
}

static holding_row_t row_of(const announced_source_t *s)
{
    return (holding_row_t){.life = s->life, .region = s->region};
}

/* NULL: it was not asked. */
static const holding_asked_t *find_asked(const holding_t *h, const holding_row_t *row)
{
    for (uint32_t i = 0; i < h->asked_count && i < LIMIT_SOURCES; i++)
        if (!memcmp(&h->asked[i].row, row, sizeof *row)) return &h->asked[i];
    return NULL;
}

/* The one whose answer is waited for, as long as it is listed: a list of another order does not end that.
 * Then the first one that has a region and was not asked; then the one that is to be asked once more, at
 * *ret_us. NULL: none. */
static const announced_source_t *next_source(const holding_t *h, const announced_t *w, uint64_t *ret_us)
{
    const announced_source_t *next = NULL;
    uint64_t next_us = CLOCK_NEVER;
    *ret_us = 0;
    for (const announced_source_t *s = w->sources; s < w->sources + w->source_count; s++) {
        holding_row_t row = row_of(s);
        const holding_asked_t *asked = find_asked(h, &row);
        if (!s->region.generation) continue;
        if (!memcmp(&row, &h->row, sizeof row)) return s;
        uint64_t us = !asked ? 0 : asked->tries < TRIES ? asked->again_us : CLOCK_NEVER;
        if (us >= next_us) continue;
        next = s;
        next_us = us;
    }
    *ret_us = next_us;
    return next;
}

bool holding_may_answer(const holding_t *h, const announced_t *w, uint64_t now_us)
{
    for (const announced_source_t *s = w->sources; s < w->sources + w->source_count; s++) {
        holding_row_t row = row_of(s);
        const holding_asked_t *asked = find_asked(h, &row);
        if (s->region.generation && (!asked || asked->again_us <= now_us)) return true;
    }
    return false;
}

bool holding_has_news(const holding_t *h, const announced_t *w) { return holding_may_answer(h, w, 0); }
bool holding_waits(const holding_t *h) { return !h->region || h->claim.state == CLAIM_WAITING; }

uint64_t holding_deadline(const holding_t *h)
{
    if (!h->region) return h->again_us ? h->again_us : CLOCK_NEVER;
    return holding_waits(h) ? h->claim.due_us : CLOCK_NEVER;
}

void holding_receive(holding_t *h, const char *source, note_t note, const content_id_t *id)
{
    if (!h->region) return;
    if (note != NOTE_GONE) (void)claim_receive(&h->claim, note, id);
    else if (!strcmp(source, h->socket)) claim_lose(&h->claim);
}

/* What is held is let go, and the next source is asked. A source that stood still may hand it over later, and
 * one that had too many connections; so may any where it, or this process, had no descriptor or no memory. */
static void let_go(holding_t *h, int rc, uint64_t now_us)
{
    bool may_pass = rc == HEDDLE_ERR_DEADLINE || rc == HEDDLE_ERR_UNAVAILABLE || rc == HEDDLE_ERR_NO_MEMORY;
    const holding_asked_t *before = find_asked(h, &h->row);
    uint32_t tries = before ? before->tries + 1 : 1;
    uint64_t pause_us = tries < TRIES ? HOLDING_AGAIN_US : HOLDING_PAUSE_US;
    h->asked[before ? before - h->asked : h->asked_count++ % LIMIT_SOURCES] =
        (holding_asked_t){.row = h->row,
                          .tries = tries,
                          .again_us = may_pass ? now_us + pause_us : CLOCK_NEVER};
    holding_end(h);
    h->job.at = 0;
    h->row = (holding_row_t){.region = {.generation = 0}};
}

/* The manifest is copied before it is compared and decoded: its owner could change it meanwhile. */
static int begin_check(holding_t *h, const announced_part_t *part, heddle_error_t *error)
{
    if (h->region->bytes < announced_bytes(part))
        return error_fail(error, HEDDLE_ERR_PROTOCOL, "it is smaller than what was announced");
    int rc = FAILPOINT("worker.manifest")
                 ? error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a manifest")
                 : verify_fetched_manifest(part, h->region->view, &h->manifest, error);
    if (rc) return rc;
    hashing_begin(&h->job, &h->manifest, h->region->view);
    h->check_us = 0;
    h->is_digested = false;
    return HEDDLE_OK;
}

/* AGAIN: the answer is on its way, or there is something to check; NOT_FOUND: no source is left. */
static int ask_for_region(holding_t *h, bulk_t *bulk, const announced_t *w, uint64_t now_us)
{
    heddle_error_t error;
    uint64_t ask_us;
    h->again_us = 0;
    for (const announced_source_t *s; (s = next_source(h, w, &ask_us)) != NULL;) {
        if (now_us < ask_us) {
            h->again_us = ask_us;
            return HEDDLE_ERR_AGAIN;
        }
        mappings_t *mappings = sharing_mappings(bulk->sharing);
        content_id_t id = sharing_content(&s->region, &w->parts[0].manifest_digest);
        (void)sharing_name(&s->life, h->socket);
        h->row = row_of(s);
        hold_t *hold = NULL;
        int rc = mappings_take(mappings, h->socket, &id, now_us, &hold, &error);
        if (rc == HEDDLE_ERR_AGAIN) return rc;
        if (!rc) rc = slots_map(bulk->slots, mappings, hold, &h->region, &error);
        if (rc && hold) mappings_give(mappings, &hold);
        h->from = (served_t){.token = s->token, .kind = s->kind, .is_held = true};
        memcpy(h->from.name, s->name, sizeof h->from.name);
        if (!rc) rc = begin_check(h, &w->parts[0], &error);
        if (!rc) {
            bool is_watched = mappings_meet(mappings, h->socket, now_us) &&
                              !mappings_tell(mappings, h->socket, NOTE_HELD, &id, NULL);
            bool is_own = bulk->is_digested_here || h->has_found_bad || !is_watched;
            claim_begin(&h->claim, &id, announced_bytes(&w->parts[0]), is_own, now_us);
            return HEDDLE_ERR_AGAIN;
        }
        let_go(h, rc, now_us);
        if (rc != HEDDLE_ERR_NOT_FOUND) {
            h->why_code = rc;
            text_printf(h->why, sizeof h->why, "the memory of %s: %s", s->name, error.message);
        }
        log_emit(LOG_DEBUG, "version.not_held", "version %llu cannot be held in the memory of %s: %s",
                 (unsigned long long)w->version, s->name, error.message);
    }
    for (uint32_t i = 0; i < w->source_count && !h->why[0]; i++) {
        if (!w->sources[i].is_apart) continue;
        h->why_code = HEDDLE_OK;
        text_printf(h->why, sizeof h->why,
                    "%s has another --host-share (or it was made anew), network namespace or user",
                    w->sources[i].name);
    }
    return HEDDLE_ERR_NOT_FOUND;
}

/* OK: all of it has the announced digest. */
static int digest_held(holding_t *h, bulk_t *bulk, const announced_t *w)
{
    digest_t found;
    uint64_t before_us = clock_now(bulk->io->clock);
    bool is_whole = hashing_work(bulk->hashing, &h->job, &found);
    h->check_us += clock_now(bulk->io->clock) - before_us;
    if (!is_whole) return HEDDLE_ERR_AGAIN;
    bool is_good = digest_equal(&found, &w->h1) && !FAILPOINT("worker.verify");
    return is_good ? HEDDLE_OK : HEDDLE_ERR_DIGEST_MISMATCH;
}

/* OK, AGAIN, DIGEST_MISMATCH. */
static int check_held(holding_t *h, bulk_t *bulk, const announced_t *w, uint64_t now_us)
{
    note_t note;
    claim_tick(&h->claim, now_us);
    if (h->claim.state == CLAIM_WAITING) return HEDDLE_ERR_AGAIN;
    if (h->claim.state == CLAIM_VERIFYING) {
        int rc = digest_held(h, bulk, w);
        if (rc == HEDDLE_ERR_AGAIN) return rc;
        h->is_digested = true;
        /* Without a connection no process waits for the note. */
        if (claim_found(&h->claim, !rc, &note))
            (void)mappings_tell(sharing_mappings(bulk->sharing), h->socket, note, &h->claim.id, NULL);
    }
    return h->claim.state == CLAIM_USABLE ? HEDDLE_OK : HEDDLE_ERR_DIGEST_MISMATCH;
}

int holding_take(holding_t *h, bulk_t *bulk, const announced_t *w, uint64_t now_us, region_t **ret_region,
                 manifest_t *ret_manifest)
{
    if (!h->region) return ask_for_region(h, bulk, w, now_us);
    int rc = check_held(h, bulk, w, now_us);
    if (rc == HEDDLE_ERR_DIGEST_MISMATCH) {
        log_emit(LOG_WARN, "version.spoiled",
                 "version %llu in the memory of %s has another digest than was announced",
                 (unsigned long long)w->version, h->from.name);
        h->why_code = HEDDLE_ERR_DIGEST_MISMATCH;
        text_printf(h->why, sizeof h->why, "the memory of %s: its bytes have another digest", h->from.name);
        let_go(h, rc, now_us);
        h->has_found_bad = true;
        return ask_for_region(h, bulk, w, now_us);
    }
    if (rc) return rc;
    h->took_us = clock_now(bulk->io->clock) - h->begun_us;
    *ret_region = h->region;
    *ret_manifest = h->manifest;
    h->region = NULL;
    h->manifest = (manifest_t){0};
    return HEDDLE_OK;
}
