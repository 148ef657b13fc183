/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/intake.h"

#include "client/sharing.h"
#include "core/errors.h"
#include "core/failpoint.h"
#include "core/log.h"
#include "worker/verify_fetched.h"

#include <inttypes.h>

/* A slot that got no memory is FREE again. */
static void fail(intake_t *in, int code)
{
    if (in->slot && in->slot->state == SLOT_FREE) in->slot = NULL;
    if (!in->error.code) error_fail(&in->error, code, "%s", heddle_err_text(code));
    in->state = INTAKE_FAILED;
}

/* --- a version that is here ------------------------------------------------------------------- */

/* A publisher may publish the same content again, under another version. A sealed slot with that content
 * saves the fetch: both versions then refer to one region. The manifest must be equal too, since it lies
 * in the region. NULL: none, or it is known to be damaged. */
static slot_t *find_equal(const intake_t *in)
{
    const announced_t *w = in->what;
    const announced_part_t *part = &w->parts[0];
    for (uint32_t i = 0; in->versions && i < VERSIONS_ENTRIES; i++) {
        const versions_entry_t *e = &in->versions->entries[i];
        if (!versions_is_here(e)) continue;
        const announced_part_t *its = &e->what->parts[0];
        bool is_equal = digest_equal(&e->what->h1, &w->h1) && its->payload_bytes == part->payload_bytes &&
                        its->manifest_bytes == part->manifest_bytes &&
                        digest_equal(&its->manifest_digest, &part->manifest_digest);
        slot_t *slot = slots_at(in->bulk->slots, in->adapter, (uint32_t)e->slot);
        if (is_equal && !regions_is_withdrawn(slot->parts[0].region)) return slot;
    }
    return NULL;
}

/* The bytes were verified when they arrived, and memory may have gone bad since. They are hashed again
 * before a second version relies on them, a slice a call. OK: the slot has adopted their region, and the
 * manifest is decoded anew, for each slot has one of its own; AGAIN; NOT_FOUND; else the intake fails. */
static int compare(intake_t *in)
{
    check_t *c = &in->equal;
    const announced_part_t *part = &in->what->parts[0];
    for (slot_t *equal; (equal = find_equal(in)) != NULL;) {
        uint64_t version = atomic_load(&equal->version);
        if (c->version != version || c->job.payload != equal->parts[0].region->view) {
            *c = (check_t){.version = version, .part = *part};
            hashing_begin(&c->job, &equal->parts[0].manifest, equal->parts[0].region->view);
        }
        c->slot = equal;
        if (!check_work(c, in->bulk->hashing, in->bulk->io->clock)) return HEDDLE_ERR_AGAIN;
        if (!regions_is_withdrawn(equal->parts[0].region)) {
            int rc = verify_fetched_manifest(part, equal->parts[0].region->view, &in->manifest, &in->error);
            return rc ? rc : slot_adopt(in->slot, equal->parts[0].region);
        }
        log_emit(LOG_ERROR, "slot.damaged",
                 "the memory of %s@%" PRIu64 " no longer has its digest: version %" PRIu64
                 " of the same content is fetched",
                 slots_adapter(in->bulk->slots, in->adapter), version, in->what->version);
    }
    return HEDDLE_ERR_NOT_FOUND;
}

/* --- a version of another process ------------------------------------------------------------- */

/* A process of this host has the version. */
static bool is_on_host(const announced_t *w)
{
    for (uint32_t i = 0; i < w->source_count; i++)
        if (w->sources[i].region.generation || w->sources[i].is_apart) return true;
    return false;
}

/* OK: the slot has adopted the region of another process, which takes the place of memory here. AGAIN;
 * NOT_FOUND: the reason is in the log once, and `heddle workers` shows it until a version is held. */
static int hold_region(intake_t *in, uint64_t now_us)
{
    char scratch[REPEAT_TEXT];
    bulk_t *bulk = in->bulk;
    announced_t *w = in->what;
    holding_t *h = &in->holding;
    region_t *region = NULL;
    int rc = bulk->sharing ? holding_take(h, bulk, w, now_us, &region, &in->manifest) : HEDDLE_ERR_NOT_FOUND;
    if (rc == HEDDLE_ERR_AGAIN) return rc;
    /* What removed the socket of this process has removed those of others, as a rule. */
    if (rc && in->versions && bulk->sharing && is_on_host(w) && !sharing_is_there(bulk->sharing)) {
        h->why_code = HEDDLE_ERR_GONE;
        text_printf(h->why, sizeof h->why,
                    "the socket of this worker in its --host-share was removed while it ran: restart it");
    }
    if (rc && h->why[0] && in->versions) {
        error_text(bulk->unheld, sizeof bulk->unheld, h->why);
        uint64_t times = repeat_note(&bulk->unheld_reports, (uint32_t)h->why_code, now_us);
        if (times)
            log_emit(LOG_WARN, "memory.unheld",
                     "%s is copied, though a process of this host has it: %s; this works, and takes more "
                     "memory and time%s",
                     slots_adapter(bulk->slots, in->adapter), h->why, repeat_text(times, scratch));
    }
    h->why[0] = 0;
    if (rc) return rc;
    bulk->unheld[0] = 0;
    w->fetch_us = h->took_us;
    w->verify_us = h->check_us;
    w->is_verified_for = !h->is_digested;
    w->served[w->served_count++] = h->from;
    rc = slot_adopt(in->slot, region);
    region_unref(&region);
    return rc;
}

/* --- the slot is RESERVED --------------------------------------------------------------------- */

/* Offers the slot to other processes of the host, and opens it to readers. */
static int seal(intake_t *in, manifest_t *manifest, uint64_t now_us)
{
    announced_t *w = in->what;
    seal_t seal = {.version = w->version, .h1 = w->h1, .step = w->step, .manifest = manifest};
    int rc = FAILPOINT("worker.before_seal") ? HEDDLE_ERR_INTERNAL : HEDDLE_OK;
    if (!rc) {
        slot_offer(in->slot, &w->parts[0].manifest_digest, announced_bytes(&w->parts[0]));
        rc = slot_seal(in->slot, &seal);
    }
    if (rc) {
        error_fail(&in->error, rc, "the slot cannot be sealed: %s", heddle_err_text(rc));
        error_where(&in->error, NULL, 0, NULL, "verify");
        return rc;
    }
    w->sealed_us = now_us;
    in->state = INTAKE_SEALED;
    return HEDDLE_OK;
}

/* Nothing is fetched for an adopted slot: its bytes are those of another version, or of another process, and
 * compare or hold_region has just verified them. */
static int seal_adopted(intake_t *in, uint64_t now_us)
{
    const node_io_t *io = in->bulk->io;
    const announced_part_t *part = &in->what->parts[0];
    int rc = in->versions ? io->tr->extend(io->t, part->key, 0, announced_bytes(part)) : HEDDLE_OK;
    return rc ? rc : seal(in, &in->manifest, now_us);
}

/* The slot has its bytes already, or the memory for them. It is shared before its first byte arrives. Read
 * requests of other workers may come early: they are pending here, and each is served as soon as its chunk is
 * verified: a source may still be fetching itself (broker/plan/plan.h). A pull
 * serves nothing. */
static int use_slot(intake_t *in, uint64_t now_us)
{
    const node_io_t *io = in->bulk->io;
    slot_t *slot = in->slot;
    int rc = HEDDLE_OK;
    if (in->versions)
        rc = FAILPOINT("worker.share") ? HEDDLE_ERR_NO_MEMORY
                                       : io->tr->share(io->t, slot->parts[0].region, in->what->parts[0].key);
    if (rc) {
        bool is_reported = rc == HEDDLE_ERR_NO_MEMORY || rc == HEDDLE_ERR_LIMIT;
        return error_fail(&in->error, is_reported ? rc : HEDDLE_ERR_INTERNAL, "the slot cannot be shared: %s",
                          heddle_err_text(rc));
    }
    if (slot->parts[0].region->held && in->begun) in->begun(in);
    if (slot->parts[0].is_adopted) return seal_adopted(in, now_us);
    download_opts_t opts = {.bulk = in->bulk,
                            .what = in->what,
                            .slot = in->slot,
                            .unreached = &in->unreached,
                            .adapter = in->adapter};
    if (FAILPOINT("worker.download") || download_new(&opts, now_us, &in->download))
        return error_fail(&in->error, HEDDLE_ERR_NO_MEMORY, "no memory for a fetch");
    in->state = INTAKE_DOWNLOADING;
    if (in->begun) in->begun(in);
    return HEDDLE_OK;
}

/* --- life ------------------------------------------------------------------------------------- */

void intake_begin(intake_t *in, announced_t *what, uint32_t slot)
{
    bulk_t *bulk = in->bulk;
    int rc = bulk->check ? bulk->check(&in->error) : HEDDLE_OK;
    in->what = what;
    in->equal = (check_t){0};
    in->state = INTAKE_COMPARING;
    if (!rc && FAILPOINT("worker.reserve"))
        rc = error_fail(&in->error, HEDDLE_ERR_NO_MEMORY, "no memory for a slot");
    if (!rc) rc = slots_begin(bulk->slots, in->adapter, slot, &in->slot, &in->error);
    if (rc) {
        fail(in, rc);
        return;
    }
    in->slot->taken_for = what->version;
    what->connect_us = what->fetch_us = what->verify_us = what->served_count = 0;
    what->is_verified_for = false;
}

void intake_end(intake_t *in)
{
    download_destroy(&in->download);
    holding_end(&in->holding);
    manifest_fini(&in->manifest);
    in->state = INTAKE_NONE;
    in->what = NULL;
    in->slot = NULL;
    in->error.code = HEDDLE_OK;
}

/* --- work, events and time -------------------------------------------------------------------- */

/* The state follows the download's. */
static void look_at_download(intake_t *in, uint64_t now_us)
{
    download_t *p = in->download;
    int rc = p->state == DOWNLOAD_DONE ? seal(in, &p->manifest, now_us) : HEDDLE_OK;
    if (p->state == DOWNLOAD_FAILED) in->error = p->error, rc = p->error.code;
    if (rc) fail(in, rc);
}

/* What costs least is tried first: bytes that are here, then those of this host, then a fetch. */
bool intake_work(intake_t *in, uint64_t now_us)
{
    if (in->state == INTAKE_NONE || intake_has_ended(in)) return false;
    if (in->state == INTAKE_DOWNLOADING) {
        bool has_worked = download_work(in->download, now_us);
        look_at_download(in, now_us);
        return has_worked;
    }
    int rc = HEDDLE_OK;
    /* Each piece of this work is progress for workers that wait for the bytes. */
    if (in->versions) announced_expect(in->what, in->bulk->io);
    if (in->state == INTAKE_COMPARING && (rc = compare(in)) == HEDDLE_ERR_NOT_FOUND) {
        in->state = INTAKE_HOLDING;
        holding_begin(&in->holding, now_us);
    }
    if (in->state == INTAKE_HOLDING && (rc = hold_region(in, now_us)) == HEDDLE_ERR_NOT_FOUND)
        in->state = INTAKE_RESERVING;
    if (in->state == INTAKE_RESERVING)
        rc = slot_reserve(in->slot, announced_bytes(&in->what->parts[0]), &in->error);
    if (rc == HEDDLE_ERR_AGAIN) return in->state != INTAKE_HOLDING || !holding_waits(&in->holding);
    if (!rc) rc = use_slot(in, now_us);
    if (rc) fail(in, rc);
    return true;
}

uint64_t intake_tick(intake_t *in, uint64_t now_us)
{
    if (in->state == INTAKE_HOLDING) return holding_deadline(&in->holding);
    if (in->state != INTAKE_DOWNLOADING) return CLOCK_NEVER;
    uint64_t next = download_tick(in->download, now_us);
    look_at_download(in, now_us);
    return next;
}

void intake_transfer(intake_t *in, const tr_event_t *event, uint64_t now_us)
{
    if (in->state != INTAKE_DOWNLOADING) return;
    download_transfer(in->download, event, now_us);
    look_at_download(in, now_us);
}

void intake_receive(intake_t *in, const char *source, note_t note, const content_id_t *id)
{
    holding_receive(&in->holding, source, note, id);
}

/* --- sources ---------------------------------------------------------------------------------- */

void intake_new_sources(intake_t *in, uint64_t now_us)
{
    bool has_news = in->state == INTAKE_RESERVING && in->bulk->sharing;
    if (in->state == INTAKE_DOWNLOADING) download_new_sources(in->download, now_us);
    else if (has_news && holding_has_news(&in->holding, in->what)) in->state = INTAKE_HOLDING;
}

bool intake_is_better_held(const intake_t *in, bool has_lost_all, uint64_t now_us)
{
    const download_t *p = in->download;
    bool is_open = in->state == INTAKE_DOWNLOADING && p->state < DOWNLOAD_CLOSING;
    if (!is_open || !in->bulk->sharing) return false;
    if (!p->last_token) return holding_may_answer(&in->holding, in->what, now_us);
    return has_lost_all && holding_has_news(&in->holding, in->what);
}

void intake_unreached(intake_t *in, const uint64_t *lost, uint32_t count, uint64_t now_us)
{
    if (count && !in->download->last_token) unreached_look(&in->unreached, lost, count, now_us);
}

uint64_t intake_give_up(intake_t *in, uint64_t deadline_us, uint64_t now_us)
{
    bool may_end = in->state == INTAKE_DOWNLOADING && !in->download->last_token;
    uint64_t end_us = may_end ? unreached_end_us(&in->unreached, deadline_us) : CLOCK_NEVER;
    if (now_us < end_us) return end_us;
    in->error = *unreached_error(&in->unreached);
    in->state = INTAKE_FAILED;
    return CLOCK_NEVER;
}

const heddle_error_t *intake_trouble(const intake_t *in)
{
    return in->state == INTAKE_DOWNLOADING ? download_trouble(in->download) : NULL;
}
