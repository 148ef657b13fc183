/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/download.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "worker/verify_fetched.h"

#include <assert.h>
#include <stdlib.h>

/* Digested in one call of download_work: 0.1 ms, 0.03 with vectors. */
#define WORK_BYTES (LIMIT_WINDOW_BYTES / 2)
#define QUIET_POLL_US 1000u

/* The first failure counts: later ones follow from it. */
static void fail_download(download_t *p, int code, const char *phase, const char *text)
{
    if (p->state == DOWNLOAD_FAILED) return;
    p->state = DOWNLOAD_FAILED;
    error_fail(&p->error, code, "%s", text);
    error_where(&p->error, NULL, p->what->version, NULL, phase);
}

/* No open receive can write into the slot any more. */
static bool is_quiet(const download_t *p) { return p->io->tr->idle(p->io->t, p->slot->parts[0].region); }

/* A read request can end while its receive is still open (rendezvous). Such a receive may write over a
 * chunk that is digested meanwhile, so that all chunks are checked again at the end. Until then no further
 * one is served on: other workers would blame this one for what was written over it. */
static void note_open_receives(download_t *p)
{
    if (!is_quiet(p)) p->overwritten = true;
}

/* --- by source -------------------------------------------------------------------------------- */

/* The row of a source, which STAGED carries.  It is made when the source is first asked: a later list may not
 * have it.  A full table adds to its last row: the counts stay right, and the name of the source is lost. */
static served_t *served_row(announced_t *w, uint64_t token)
{
    uint32_t row = 0;
    while (row < w->served_count && w->served[row].token != token) row++;
    if (row == ANNOUNCED_SERVED_MAX) row--;
    if (row == w->served_count) {
        const announced_source_t *source = announced_source(w, token);
        w->served[w->served_count++] = (served_t){.token = token, .kind = source ? source->kind : 0};
        if (source) memcpy(w->served[row].name, source->name, sizeof source->name);
    }
    return &w->served[row];
}

static int by_bytes(const void *a, const void *b)
{
    const served_t *one = a, *other = b;
    return one->bytes > other->bytes ? -1 : one->bytes < other->bytes;
}

/* --- what the fetch asks for (fetch_ops_t) ---------------------------------------------------- */

/* The row of a source in bulk->asked; behind them all where it has none. */
static uint32_t asked_row(const bulk_t *bulk, uint64_t token)
{
    uint32_t row = 0;
    while (row < bulk->asked_count && bulk->asked[row].token != token) row++;
    return row;
}

/* Fetches are counted as they come to a source and leave it, for each event of a fetch looks several times
 * how many share a window: it costs a step for each source that is asked, and none for each other fetch. */
static void asks_source(void *self, uint64_t token)
{
    download_run_t *run = self;
    bulk_t *bulk = run->of->bulk;
    if (run->asked == token) return;
    uint32_t left = asked_row(bulk, run->asked);
    if (left < bulk->asked_count && --bulk->asked[left].count == 0)
        bulk->asked[left] = bulk->asked[--bulk->asked_count];
    uint32_t row = asked_row(bulk, token);
    assert(!token ||
           row < BULK_ASKED_MAX); /* each fetch asks one source at most, and has left the one before */
    if (token && row == bulk->asked_count) bulk->asked[bulk->asked_count++] = (asked_t){.token = token};
    if (token) bulk->asked[row].count++;
    run->asked = token;
}

static uint32_t window_sharers(void *self, uint64_t token)
{
    const download_run_t *run = self;
    const bulk_t *bulk = run->of->bulk;
    uint32_t row = asked_row(bulk, token), others = row < bulk->asked_count ? bulk->asked[row].count : 0;
    return others + (run->asked != token);
}

/* Where a piece of the payload lies.  Returns its bytes. */
static uint32_t payload_piece(const download_t *p, uint32_t piece, uint64_t *ret_offset)
{
    uint64_t offset = (uint64_t)piece * p->piece_bytes, left = p->manifest.payload_bytes - offset;
    *ret_offset = offset;
    return left < p->piece_bytes ? (uint32_t)left : p->piece_bytes;
}

/* The pieces of the manifest lie behind the payload; those of the payload are chunks, or several at once. */
static int ask_piece(void *self, uint32_t piece, uint64_t token, uint64_t *ret_ask)
{
    const download_run_t *run = self;
    download_t *p = run->of;
    const announced_source_t *source = announced_source(p->what, token);
    if (!source) return HEDDLE_ERR_GONE;
    piece += run->first;
    bool is_manifest = p->state == DOWNLOAD_MANIFEST;
    sink_t sink = sink_of(p->slot->parts[0].region, is_manifest ? NULL : p->leaves);
    tr_read_t read = {.key = p->part->key, .sink = &sink, .cookie = p->cookie | piece};
    if (is_manifest) {
        uint64_t at = (uint64_t)piece * DOWNLOAD_PIECE_BYTES, left = p->part->manifest_bytes - at;
        read.offset = manifest_offset(p->part->payload_bytes) + at;
        read.bytes = left < DOWNLOAD_PIECE_BYTES ? (uint32_t)left : DOWNLOAD_PIECE_BYTES;
    } else {
        read.bytes = payload_piece(p, piece, &read.offset);
    }
    read.at = read.offset;
    peer_ref_t from = source_ref(source);
    (void)served_row(p->what, token);
    return p->io->tr->ask(p->io->t, &from, &read, ret_ask);
}

static void drop_ask(void *self, uint64_t ask)
{
    download_t *p = ((download_run_t *)self)->of;
    p->io->tr->drop_ask(p->io->t, ask);
    note_open_receives(p);
}

static void asks_moved(void *self, uint64_t token, moved_t why)
{
    served_row(((download_run_t *)self)->of->what, token)->moved[why]++;
}

/* A drop of a read request beside an open receive costs too much (note_open_receives). */
static lend_t may_lend(void *self, uint64_t token)
{
    const download_t *p = ((download_run_t *)self)->of;
    const announced_source_t *source = announced_source(p->what, token);
    if (!source || p->bulk->is_limited || p->overwritten || !is_quiet(p)) return LEND_NOT;
    return source->is_partial ? LEND_PARTIAL : LEND_WHOLE;
}

static void need_sources(void *self) { ((download_run_t *)self)->of->needs_sources = true; }

/* The manifest is verified by download_work: its digest takes long enough to delay a heartbeat. */
static void fetch_ended(void *self, bool is_good, uint64_t now_us)
{
    download_run_t *run = self;
    download_t *p = run->of;
    run->is_good = is_good;
    if (!is_good) {
        fail_download(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify",
                      "the bytes came wrong from every source that was tried");
    } else if (p->state == DOWNLOAD_MANIFEST) {
        p->state = DOWNLOAD_VERIFYING;
    } else if (p->runs[0].is_good && p->runs[p->run_count - 1].is_good) {
        /* From the first bytes on: connecting has a time of its own. */
        p->what->fetch_us = now_us - p->started_us - p->what->connect_us;
        p->bulk->fetch_rate = p->manifest.payload_bytes * 1000000 / (p->what->fetch_us + 1);
        p->state = DOWNLOAD_CLOSING;
    }
}

static const fetch_ops_t FETCH_OPS = {.ask = ask_piece,
                                      .drop_ask = drop_ask,
                                      .need_sources = need_sources,
                                      .moved = asks_moved,
                                      .lend = may_lend,
                                      .asks = asks_source,
                                      .sharers = window_sharers,
                                      .end = fetch_ended};

/* --- a fetch begins --------------------------------------------------------------------------- */

void download_new_sources(download_t *p, uint64_t now_us)
{
    for (uint32_t i = 0; i < p->run_count && p->state <= DOWNLOAD_CHUNKS; i++) {
        uint64_t tokens[LIMIT_SOURCES];
        uint32_t count = announced_tokens(p->what, p->runs[i].half, tokens);
        fetch_sources(p->runs[i].fetch, tokens, (int)count, now_us);
    }
}

static void end_runs(download_t *p)
{
    for (uint32_t i = 0; i < p->run_count; i++) fetch_destroy(&p->runs[i].fetch);
    fetch_destroy(&p->before);
    p->run_count = 0;
}

/* The fetch of a manifest is over, and another one begins, which knows what it found out of the sources. */
static void next_runs(download_t *p)
{
    fetch_t *before = p->run_count ? p->runs[0].fetch : NULL;
    if (before) p->runs[0].fetch = NULL;
    end_runs(p);
    p->before = before;
}

static bool new_run(download_t *p, uint64_t half, uint32_t first, fetch_plan_t plan)
{
    download_run_t *run = &p->runs[p->run_count];
    *run = (download_run_t){.of = p, .half = half, .first = first};
    plan.before = p->before;
    plan.bad = p->bad;
    plan.bad_count = p->bad_count;
    if (fetch_new(&plan, &FETCH_OPS, run, &run->fetch)) {
        end_runs(p);
        fail_download(p, HEDDLE_ERR_NO_MEMORY, "fetch", "no memory for a fetch");
        return false;
    }
    p->run_count++;
    return true;
}

static uint32_t manifest_pieces(const download_t *p)
{
    return (uint32_t)((p->part->manifest_bytes + DOWNLOAD_PIECE_BYTES - 1) / DOWNLOAD_PIECE_BYTES);
}

/* The manifest comes first: it has the digest of each chunk, without which no chunk can be accepted. */
static bool fetch_manifest(download_t *p, uint64_t now_us)
{
    fetch_plan_t plan = {.count = manifest_pieces(p), .piece_bytes = DOWNLOAD_PIECE_BYTES};
    p->state = DOWNLOAD_MANIFEST;
    next_runs(p);
    if (!new_run(p, 0, 0, plan)) return false;
    download_new_sources(p, now_us);
    return true;
}

/* In halves where their sources differ: these are to carry half of the bytes each, and at the same time. */
static void fetch_chunks(download_t *p, uint64_t now_us)
{
    /* A chunk, so that it is served on as soon as it is there.  Where all sources have all bytes, and the
     * network is so fast that those of a large piece come within a millisecond, it is what fits into one
     * message: each message has its cost. */
    bool is_large = p->bulk->fetch_rate / 1000 >= LIMIT_CHUNK_MAX_BYTES && !p->what->is_in_halves;
    for (uint32_t i = 0; i < p->what->source_count; i++) is_large &= !p->what->sources[i].is_partial;
    p->piece_bytes = is_large ? LIMIT_CHUNK_MAX_BYTES : p->manifest.chunk_bytes;
    uint32_t count = (uint32_t)((p->manifest.payload_bytes + p->piece_bytes - 1) / p->piece_bytes);
    uint32_t first_count = (count + 1) / 2;
    p->piece_count = count;
    fetch_plan_t plan = {.count = count, .piece_bytes = p->piece_bytes};
    p->state = DOWNLOAD_CHUNKS;
    next_runs(p);
    if (p->what->is_in_halves && count > 1) {
        plan.count = first_count;
        if (!new_run(p, 1, 0, plan)) return;
        plan.count = count - first_count;
        if (!new_run(p, 2, first_count, plan)) return;
    } else if (!new_run(p, 0, 0, plan)) {
        return;
    }
    download_new_sources(p, now_us);
}

/* --- begin ------------------------------------------------------------------------------------ */

int download_new(const download_opts_t *opts, uint64_t now_us, download_t **ret_download)
{
    announced_t *what = opts->what;
    download_t *p = calloc(1, sizeof *p);
    if (!p) return HEDDLE_ERR_NO_MEMORY;
    p->bulk = opts->bulk;
    p->io = opts->bulk->io;
    p->what = what;
    p->slot = opts->slot;
    p->unreached = opts->unreached;
    p->part = &what->parts[0];
    p->cookie = cookie_of(opts->adapter);
    p->started_us = now_us;
    what->connect_us = what->fetch_us = what->verify_us = what->sealed_us = 0;
    what->served_count = 0;
    unreached_begin(p->unreached, p->io, what);
    if (!fetch_manifest(p, now_us)) {
        download_destroy(&p);
        return HEDDLE_ERR_NO_MEMORY;
    }
    *ret_download = p;
    return HEDDLE_OK;
}

/* Every open read request is dropped, and none of them reports an event any more. */
void download_destroy(download_t **download)
{
    download_t *p = download ? *download : NULL;
    if (!p) return;
    *download = NULL;
    /* The fetches go first: their open read requests name this memory. */
    for (uint32_t i = 0; i < p->run_count; i++) fetch_cancel(p->runs[i].fetch);
    end_runs(p);
    manifest_fini(&p->manifest);
    digest_queue_destroy(&p->digests);
    free(p->leaves);
    free(p);
}

/* --- a piece landed --------------------------------------------------------------------------- */

/* has_leaves: they were made as it was copied. */
static digest_job_t piece_job(const download_t *p, uint32_t piece, bool has_leaves)
{
    uint64_t offset;
    digest_job_t job = {.bytes = payload_piece(p, piece, &offset)};
    job.cookie = offset;
    if (!has_leaves) job.data = (const uint8_t *)p->slot->parts[0].region->view + offset;
    job.leaves = p->leaves + offset / LIMIT_PAGE_BYTES;
    return job;
}

static download_run_t *run_of(download_t *p, uint32_t piece)
{
    download_run_t *last = &p->runs[p->run_count - 1];
    return piece >= last->first ? last : &p->runs[0];
}

/* A source that never answered is reported to the broker as unmet: the network between the two may be
 * broken, and not the source. */
static bool has_answered(const download_t *p, uint64_t token)
{
    for (uint32_t i = 0; i < p->answered_count; i++)
        if (p->answered[i] == token) return true;
    return false;
}

/* What a peer did, for the state of its source first, then for the piece. In state CLOSING and later no read
 * request is open any more. */
void download_transfer(download_t *p, const tr_event_t *event, uint64_t now_us)
{
    if (p->state > DOWNLOAD_CHUNKS || !p->run_count) return;
    uint32_t piece = cookie_piece(event->cookie);
    download_run_t *run = run_of(p, piece);
    unreached_t *u = p->unreached;
    /* GONE is no answer of the source: it reports that the connection was lost. */
    bool is_life = event->kind == TR_ARRIVED || event->kind == TR_BEAT;
    bool is_no = event->kind == TR_REFUSED && event->err != HEDDLE_ERR_GONE;
    if ((is_life || is_no) && p->answered_count < sizeof p->answered / sizeof *p->answered &&
        !has_answered(p, event->token))
        p->answered[p->answered_count++] = event->token;
    if (is_life && (u->reported_count || u->refused) && announced_source(p->what, event->token))
        unreached_begin(u, p->io, p->what);
    switch (event->kind) {
    case TR_ARRIVED:
        /* Bytes of a read request that was given up count as nothing. */
        if (!fetch_land(run->fetch, piece - run->first, event->ask, now_us)) break;
        /* The time to the first bytes counts as connecting. */
        if (p->last_token == 0) p->what->connect_us = now_us - p->started_us;
        p->last_token = event->token;
        if (p->state == DOWNLOAD_MANIFEST) {
            fetch_good(run->fetch, piece, now_us);
        } else { /* there is room for every piece once */
            digest_job_t job = piece_job(p, piece, event->is_digested && !p->overwritten);
            (void)digest_queue_submit(p->digests, &job);
        }
        break;
    case TR_REFUSED:
        /* A refusal is kept as the reason why nothing comes, except for one that may pass. */
        if (is_no && event->err != HEDDLE_ERR_AGAIN && announced_source(p->what, event->token))
            u->refused = event->err;
        note_open_receives(p);
        fetch_refused(run->fetch, piece - run->first, event->ask, event->err, now_us);
        break;
    case TR_BEAT:
        for (uint32_t i = 0; i < p->run_count; i++) fetch_beat(p->runs[i].fetch, event->token, now_us);
        break;
    case TR_PEER_GONE:
        if (announced_source(p->what, event->token)) p->bulk->retries++;
        for (uint32_t i = 0; i < p->run_count; i++) fetch_gone(p->runs[i].fetch, event->token, now_us);
        break;
    }
}

/* --- a digest is done ------------------------------------------------------------------------- */

/* False: no memory.  A part that is not shared, as in a pull, is served to none, and that is well. */
static bool serve_on(download_t *p, uint64_t offset, uint64_t bytes)
{
    return p->io->tr->extend(p->io->t, p->part->key, offset, bytes) != HEDDLE_ERR_NO_MEMORY;
}

/* What there was no memory for is served at the end, when all is one range (check_whole). */
static void serve_early(download_t *p, uint64_t offset, uint64_t bytes)
{
    if (!serve_on(p, offset, bytes)) p->is_partly_served = true;
}

/* What verify_fetched.h found, in phase "verify". */
static void fail_verification(download_t *p, int code, const heddle_error_t *why)
{
    fail_download(p, code, "verify", why->message);
    error_contrast(&p->error, why->expected, why->found);
}

/* A verified manifest is served to other workers like a chunk, and the chunks are fetched. */
static void check_manifest(download_t *p, uint64_t now_us)
{
    const announced_part_t *a = p->part;
    heddle_error_t why;
    int rc = verify_fetched_manifest(a, p->slot->parts[0].region->view, &p->manifest, &why);
    if (rc == HEDDLE_ERR_DIGEST_MISMATCH) {
        /* A manifest has one digest for all of its pieces, so the piece that was wrong cannot be found. Every
         * source that sent any of them is left out of the next try. It is to be blamed if it sent all. */
        for (uint32_t i = 0; i < p->what->source_count && p->bad_count < DOWNLOAD_BAD_MAX; i++) {
            uint32_t sent = fetch_from(p->runs[0].fetch, p->what->sources[i].token);
            if (!sent) continue;
            p->is_doubtful[p->bad_count] = sent < manifest_pieces(p);
            p->bad[p->bad_count++] = p->what->sources[i].token;
        }
        p->bulk->chunks_bad++;
        if (++p->manifest_tries < DOWNLOAD_BAD_LIMIT) fetch_manifest(p, now_us);
        else
            fail_download(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify",
                          "the manifest differs from what was announced, from every source that was tried");
        return;
    }
    if (rc) {
        fail_verification(p, rc, &why);
        return;
    }
    /* The number of chunks is known only now, and can be trusted. */
    p->leaves = calloc(leaf_count(p->manifest.payload_bytes), sizeof *p->leaves);
    p->digests = digest_queue_new(p->manifest.chunk_count, p->bulk->hashing);
    if (!p->leaves || !p->digests) {
        fail_download(p, HEDDLE_ERR_NO_MEMORY, "fetch", "no memory for the digests of the chunks");
        return;
    }
    serve_early(p, manifest_offset(a->payload_bytes), a->manifest_bytes);
    fetch_chunks(p, now_us);
}

/* A receive of a dropped read request may have written over a chunk after it was digested (rendezvous
 * only). Once no receive is open, all chunks are digested again, one a call. */
static void check_again(download_t *p)
{
    digest_job_t job;
    if (p->again < p->piece_count) {
        job = piece_job(p, p->again++, false);
        (void)digest_queue_submit(p->digests, &job);
    }
    if (!digest_queue_completed(p->digests, &job)) return;
    p->checked++;
    if (!verify_fetched_chunks(&p->manifest, &job))
        fail_download(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify",
                      "a chunk was written over by a source that had been given up");
}

static void check_whole(download_t *p)
{
    uint64_t before_us = clock_now(p->io->clock);
    heddle_error_t why;
    int rc = verify_fetched_whole(&p->manifest, p->leaves, &p->what->h1, &why);
    p->what->verify_us += clock_now(p->io->clock) - before_us;
    if (rc) {
        fail_verification(p, rc, &why);
        return;
    }
    bool is_unserved = p->overwritten || p->is_partly_served;
    if (is_unserved && !serve_on(p, 0, announced_bytes(p->part))) {
        fail_download(p, HEDDLE_ERR_NO_MEMORY, "fetch", "no memory to serve the version to other workers");
        return;
    }
    /* Of those that were asked: a source whose answers were not needed is no source of this version.  The
     * source of most bytes comes first, for the broker remembers only some of them. */
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->what->served_count; i++) {
        uint64_t moved = 0;
        for (int k = 0; k < MOVED_REASONS; k++) moved += p->what->served[i].moved[k];
        if (moved || p->what->served[i].bytes) p->what->served[kept++] = p->what->served[i];
    }
    p->what->served_count = kept;
    qsort(p->what->served, kept, sizeof *p->what->served, by_bytes);
    p->state = DOWNLOAD_DONE;
}

/* A source that is to be blamed is reported to the broker at once, while the fetch goes on at another one. */
static void look_for_blame(download_t *p)
{
    uint64_t tokens[LIMIT_SERVED];
    uint32_t count = 0;
    for (blame_t blame = BLAME_BAD; blame <= BLAME_SLOW; blame++)
        count += download_blamed(p, blame, tokens, LIMIT_SERVED);
    if (count > p->blamed_count) p->needs_sources = true;
    p->blamed_count = count;
}

/* Manifest and slot are checked only where no open receive can change their bytes meanwhile. */
bool download_work(download_t *p, uint64_t now_us)
{
    bool is_checked = p->state == DOWNLOAD_CLOSING || p->state == DOWNLOAD_VERIFYING;
    if (is_checked && is_quiet(p)) {
        if (p->state == DOWNLOAD_VERIFYING) check_manifest(p, now_us), look_for_blame(p);
        else if (p->overwritten && p->checked < p->piece_count) check_again(p);
        else check_whole(p);
        return true;
    }
    if (p->state != DOWNLOAD_CHUNKS || !digest_queue_is_pending(p->digests)) return false;
    /* Compares chunks whose leaves are complete. A few are compared at once, because the requests that follow
     * then go out in one frame, and not in one for each chunk. */
    for (uint32_t left = WORK_BYTES / p->piece_bytes; left > 0; left--) {
        digest_job_t job;
        uint64_t before_us = clock_now(p->io->clock);
        if (p->state != DOWNLOAD_CHUNKS || !digest_queue_completed(p->digests, &job)) break;
        bool good = verify_fetched_chunks(&p->manifest, &job) && !FAILPOINT("worker.chunk");
        p->what->verify_us += clock_now(p->io->clock) - before_us;
        uint32_t piece = (uint32_t)(job.cookie / p->piece_bytes);
        const download_run_t *run = run_of(p, piece);
        piece -= run->first;
        if (good) {
            /* A verified chunk is served to other workers at once, where nothing can write over it any
             * more. It is counted for the source that it came from. */
            uint64_t token = fetch_good(run->fetch, piece, now_us);
            uint64_t offset = (uint64_t)(job.leaves - p->leaves) * LIMIT_PAGE_BYTES;
            if (!p->overwritten) serve_early(p, offset, job.bytes);
            p->bytes_done += job.bytes;
            served_row(p->what, token)->bytes += job.bytes;
        } else {
            p->bulk->chunks_bad++;
            fetch_bad(run->fetch, piece, now_us);
        }
    }
    look_for_blame(p);
    return true;
}

/* --- time ------------------------------------------------------------------------------------- */

/* The end of an open receive is not reported, so it is polled for. */
uint64_t download_tick(download_t *p, uint64_t now_us)
{
    uint64_t due_us = CLOCK_NEVER;
    for (uint32_t i = 0; i < p->run_count && p->state <= DOWNLOAD_CHUNKS; i++)
        if (now_us >= fetch_deadline(p->runs[i].fetch)) fetch_tick(p->runs[i].fetch, now_us);
    if (p->state <= DOWNLOAD_CHUNKS) look_for_blame(p);
    switch (p->state) {
    case DOWNLOAD_MANIFEST:
    case DOWNLOAD_CHUNKS:
        for (uint32_t i = 0; i < p->run_count; i++)
            due_us = clock_earlier(due_us, fetch_deadline(p->runs[i].fetch));
        return due_us;
    case DOWNLOAD_VERIFYING:
    case DOWNLOAD_CLOSING: return now_us + QUIET_POLL_US;
    case DOWNLOAD_DONE:
    case DOWNLOAD_FAILED: break;
    }
    return CLOCK_NEVER;
}

bool download_has_failed(const download_t *p, uint64_t token)
{
    bool is_late = false;
    for (uint32_t i = 0; i < p->run_count; i++) is_late |= fetch_is_late(p->runs[i].fetch, token);
    return has_answered(p, token) && !is_late;
}

/* Adds those that are not there. */
static uint32_t join_tokens(uint64_t *tokens, uint32_t count, uint32_t cap, const uint64_t *more,
                            int more_count)
{
    for (int i = 0; i < more_count && count < cap; i++) {
        uint32_t known = 0;
        while (known < count && tokens[known] != more[i]) known++;
        if (known == count) tokens[count++] = more[i];
    }
    return count;
}

/* A fetch says it again after a while, so that the flag needs no other reset.  What a fetch lost that has all
 * its pieces concerns it no more. */
uint32_t download_lost(download_t *p, uint64_t *ret_lost, uint32_t cap)
{
    uint64_t tokens[LIMIT_SOURCES * 2];
    uint32_t count = 0;
    p->needs_sources = false;
    for (uint32_t i = 0; i < p->run_count; i++) {
        if (p->runs[i].is_good) continue;
        int lost = fetch_lost(p->runs[i].fetch, tokens, LIMIT_SOURCES * 2);
        count = join_tokens(ret_lost, count, cap, tokens, lost);
    }
    return count;
}
/* It sent some pieces of a wrong manifest, and they may have been good. */
static bool is_doubtful(const download_t *p, uint64_t token)
{
    for (uint32_t i = 0; i < p->bad_count; i++)
        if (p->bad[i] == token) return p->is_doubtful[i];
    return false;
}

uint32_t download_blamed(const download_t *p, blame_t blame, uint64_t *ret_tokens, uint32_t cap)
{
    uint64_t tokens[LIMIT_SERVED];
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->run_count; i++) {
        int blamed = fetch_blamed(p->runs[i].fetch, blame, tokens, LIMIT_SERVED), sure = 0;
        for (int k = 0; k < blamed; k++)
            if (!is_doubtful(p, tokens[k])) tokens[sure++] = tokens[k];
        count = join_tokens(ret_tokens, count, cap, tokens, sure);
    }
    return count;
}
