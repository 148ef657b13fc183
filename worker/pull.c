/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/pull.h"

#include "core/digest_stage.h"
#include "core/errors.h"
#include "core/failpoint.h"

#include <stdlib.h>

/* Digested in one call of pull_work: 0.1 ms, 0.03 with vectors. */
#define WORK_BYTES (LIMIT_WINDOW_BYTES / 2)
enum { ACTIONS = 64, BAD_MAX = 16, QUIET_POLL_US = 1000 };

struct pull {
    const node_io_t *io;
    announced_t *what;
    slot_t *slot;
    pull_counters_t *counters;
    pull_state_t state;
    heddle_error_t error;
    const announced_part_t *part;        /* of `what`: the one that comes */
    uint64_t cookie;                     /* of its asks, but for the piece */
    fetch_t *fetch;                      /* of the manifest, then of the chunks; NULL: that one came early */
    manifest_t manifest;
    early_bytes_t early;
    uint64_t *leaves;                    /* of the region */
    digest_stage_t *digests;             /* of chunks that landed without theirs, by chunk */
    uint64_t bytes_done, last_token, started_us;
    uint64_t bad[BAD_MAX];               /* sources that sent a wrong manifest */
    uint32_t bad_count;
    uint32_t manifest_tries;
    uint64_t met[LIMIT_SOURCES * 2];     /* sources that answered */
    uint32_t met_count;
    bool needs_sources;
    bool manifest_here;                  /* all of its pieces came; not verified yet */
    bool overwritten;                    /* a dropped ask may have written after its chunk was digested */
    uint32_t again, checked;             /* CLOSING: chunks that are, and were, digested again */
};

/* The number of parts was checked when the message came (adapter.c). */
void announced_parts(announced_t *a, const msg_part_t *parts, const key16_t *key)
{
    share_key_t of_version;
    memcpy(&of_version, key, sizeof of_version);
    for (uint32_t i = 0; i < ANNOUNCED_PARTS; i++)
        a->part[i] = (announced_part_t){.region_bytes = parts[i].region_bytes,
                                        .manifest_bytes = parts[i].manifest_bytes,
                                        .manifest_digest = parts[i].manifest_digest,
                                        .key = share_key_of_part(of_version, i)};
}

/* A source without a usable address can never be connected to, so that it is left out. */
void announced_sources(announced_t *a, const msg_source_t *sources, uint32_t count)
{
    a->source_count = 0;
    for (uint32_t i = 0; i < count && a->source_count < LIMIT_SOURCES; i++) {
        const msg_source_t *from = &sources[i];
        if (from->token == 0 || from->address.bytes == 0 || from->address.bytes > LIMIT_ADDRESS_BYTES)
            continue;
        source_t *to = &a->sources[a->source_count++];
        *to = (source_t){
            .token = from->token, .kind = from->kind, .address_bytes = (uint32_t)from->address.bytes};
        memcpy(to->address, from->address.data, from->address.bytes);
        error_text(to->name, sizeof to->name, from->name);
    }
}

/* The first failure counts: later ones follow from it. */
static void fail(pull_t *p, int code, const char *phase, const char *text)
{
    if (p->state == PULL_FAILED) return;
    p->state = PULL_FAILED;
    error_fail(&p->error, code, "%s", text);
    error_where(&p->error, NULL, p->what->version, NULL, phase);
}

/* --- sources ---------------------------------------------------------------------------------- */

/* NULL when the last list no longer has it: an answer may come from a source that the broker has left out
 * since. */
static const source_t *find_source(const pull_t *p, uint64_t token)
{
    for (uint32_t i = 0; i < p->what->source_count; i++)
        if (p->what->sources[i].token == token) return &p->what->sources[i];
    return NULL;
}

/* The row that counts the bytes of one source, for STAGED. A full table adds to its last row: the count
 * of bytes stays right, and the name of the source is lost. */
static served_t *served_by(pull_t *p, uint64_t token)
{
    announced_t *a = p->what;
    for (uint32_t i = 0; i < a->served_count; i++)
        if (a->served[i].token == token) return &a->served[i];
    if (a->served_count == PULL_SERVED_MAX) return &a->served[PULL_SERVED_MAX - 1];
    const source_t *source = find_source(p, token);
    if (!source && p->early.from.token == token) source = &p->early.from;
    served_t *s = &a->served[a->served_count++];
    *s = (served_t){.token = token, .kind = source ? source->kind : 0};
    if (source) memcpy(s->name, source->name, sizeof s->name);
    return s;
}

/* No open receive can write into the slot any more. */
static bool is_quiet(const pull_t *p) { return p->io->tr->idle(p->io->t, p->slot->region); }

/* --- read requests ---------------------------------------------------------------------------- */

/* Where a piece of the current fetch lies in the arena. */
static uint32_t piece_range(const pull_t *p, uint32_t piece, uint64_t *ret_offset)
{
    if (p->state != PULL_MANIFEST) return manifest_chunk(&p->manifest, piece, ret_offset);
    uint64_t at = (uint64_t)piece * PULL_PIECE_BYTES, left = p->part->manifest_bytes - at;
    *ret_offset = manifest_offset(p->part->region_bytes) + at;
    return left < PULL_PIECE_BYTES ? (uint32_t)left : PULL_PIECE_BYTES;
}

/* Sends the read request that the fetch has chosen. True when the source cannot be asked now: the fetch
 * has put it out, and has more to say. */
static bool ask(pull_t *p, const fetch_action_t *a, uint64_t now_us)
{
    uint64_t id = 0, token;
    if (fetch_piece(p->fetch, a->piece, &token) != PIECE_ASKED || token != a->token) return false;
    const source_t *source = find_source(p, a->token);
    sink_t sink = sink_of(p->slot->region, p->leaves);
    tr_read_t read = {.key = p->part->key, .sink = &sink, .cookie = p->cookie | a->piece};
    read.bytes = piece_range(p, a->piece, &read.offset);
    read.at = read.offset;
    if (p->state == PULL_MANIFEST) sink.leaves = NULL;
    peer_ref_t from = source ? source_ref(source) : (peer_ref_t){0};
    int rc = source ? p->io->tr->ask(p->io->t, &from, &read, &id) : HEDDLE_ERR_GONE;
    fetch_asked(p->fetch, a->piece, id, rc, now_us);
    return rc != HEDDLE_OK;
}

/* A read request can end while its receive is still open (rendezvous). Such a receive may write over a
 * chunk that is digested meanwhile, so that all chunks are checked again at the end. */
static void note_open_receives(pull_t *p)
{
    if (!is_quiet(p)) p->overwritten = true;
}

/* The manifest is verified by pull_work, not here: its digest takes long enough to delay a heartbeat. */
static void on_fetch_done(pull_t *p, uint64_t now_us)
{
    if (p->state == PULL_MANIFEST) {
        p->manifest_here = true;
        return;
    }
    p->what->fetch_us = now_us - p->started_us - p->what->connect_us + p->early.took_us;
    p->state = PULL_CLOSING;
}

/* Obeys one action of the fetch. True when the fetch has more to say. */
static bool obey(pull_t *p, const fetch_action_t *a, uint64_t now_us)
{
    switch (a->kind) {
    case FA_ASK: return ask(p, a, now_us);
    case FA_DROP_ASK:
        if (a->ask) p->io->tr->drop_ask(p->io->t, a->ask);
        note_open_receives(p);
        break;
    case FA_DROP_PEER:
        p->counters->retries++;
        p->io->tr->drop_peer(p->io->t, a->token);
        break;
    case FA_NEED_SOURCES: p->needs_sources = true; break;
    case FA_DONE: on_fetch_done(p, now_us); break;
    case FA_FAILED:
        fail(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify", "the bytes came wrong from every source that there is");
        break;
    }
    return false;
}

/* Gives one event to the fetch and obeys it until it has nothing more to say. A failed read request
 * changes the plan at once, hence the repetition with TICK. */
static void drive(pull_t *p, const fetch_event_t *event, uint64_t now_us)
{
    fetch_event_t next = *event;
    for (bool more = p->fetch != NULL; more; next = (fetch_event_t){.kind = FE_TICK}) {
        fetch_action_t actions[ACTIONS];
        int n = fetch_step(p->fetch, &next, now_us, actions, ACTIONS);
        more = n == ACTIONS;
        for (int i = 0; i < n; i++) more |= obey(p, &actions[i], now_us);
    }
}

/* Sources are greeted here, so that connections are made while the first one is asked. A failure shows
 * when it is asked. */
static void feed_sources(pull_t *p, uint64_t now_us)
{
    uint64_t tokens[LIMIT_SOURCES];
    int count = 0;
    for (uint32_t i = 0; i < p->what->source_count; i++) {
        peer_ref_t ref = source_ref(&p->what->sources[i]);
        tokens[count++] = ref.token;
        p->io->tr->greet(p->io->t, &ref);
    }
    drive(p, &(fetch_event_t){.kind = FE_SOURCES, .sources = tokens, .source_count = count}, now_us);
}

/* Begins the fetch of the manifest, then that of the chunks. `have`: a bit for each piece that is there
 * already; NULL: none. */
static bool begin_fetch(pull_t *p, uint32_t pieces, uint32_t piece_bytes, const uint8_t *have,
                        uint64_t now_us)
{
    fetch_destroy(&p->fetch);
    fetch_plan_t plan = {.count = pieces,
                         .piece_bytes = piece_bytes,
                         .have = have,
                         .bad = p->bad,
                         .bad_count = p->bad_count};
    if (fetch_new(&plan, &p->fetch)) {
        fail(p, HEDDLE_ERR_NO_MEMORY, "fetch", "no memory for a fetch");
        return false;
    }
    feed_sources(p, now_us);
    return true;
}

/* --- the manifest ----------------------------------------------------------------------------- */

/* The manifest comes first: it has the digest of each chunk, without which no chunk can be accepted. */
static bool begin_manifest(pull_t *p, uint64_t now_us)
{
    p->state = PULL_MANIFEST;
    return begin_fetch(p, (uint32_t)((p->part->manifest_bytes + PULL_PIECE_BYTES - 1) / PULL_PIECE_BYTES),
                       PULL_PIECE_BYTES, NULL, now_us);
}

/* A manifest has one digest for all of its pieces, so the piece that was wrong cannot be found. Every
 * source that sent any of them is left out of the next try. */
static void refuse_manifest(pull_t *p, uint64_t now_us)
{
    for (uint32_t i = 0; i < p->what->source_count && p->bad_count < BAD_MAX; i++)
        if (fetch_from(p->fetch, p->what->sources[i].token))
            p->bad[p->bad_count++] = p->what->sources[i].token;
    p->counters->chunks_bad++;
    if (++p->manifest_tries < PULL_BAD_LIMIT) {
        begin_manifest(p, now_us);
        return;
    }
    fail(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify",
         "the manifest differs from what was announced, from every source that was tried");
}

static uint64_t leaf_count(const pull_t *p)
{
    return (p->manifest.region_bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES;
}

static void begin_chunks(pull_t *p, uint64_t now_us);

/* Compares the manifest with the announcement before it is decoded: a decoder must see only bytes that
 * were announced. It is then served to other workers like a chunk. */
static void check_manifest(pull_t *p, uint64_t now_us)
{
    const announced_part_t *a = p->part;
    uint64_t offset = manifest_offset(a->region_bytes);
    bytes_t encoded = announced_manifest(a, p->slot->region->view);
    bool is_early = !p->fetch;
    heddle_error_t why;
    p->manifest_here = false;
    int rc = manifest_read(encoded, &a->manifest_digest, &p->manifest, &why);
    if (rc == HEDDLE_ERR_DIGEST_MISMATCH && is_early) {
        early_bytes_fini(&p->early);    /* it was another version's */
        begin_manifest(p, now_us);
        return;
    }
    if (rc == HEDDLE_ERR_DIGEST_MISMATCH) {
        refuse_manifest(p, now_us);
        return;
    }
    if (rc == HEDDLE_OK && p->manifest.region_bytes != a->region_bytes)
        rc = error_fail(&why, HEDDLE_ERR_PROTOCOL,
                        "the manifest speaks of a region of another size than the announcement");
    if (rc) {
        fail(p, rc, "verify", why.message);
        error_contrast(&p->error, why.expected, why.found);
        return;
    }
    p->leaves = calloc(leaf_count(p), sizeof *p->leaves);
    p->digests = digest_stage_new(p->manifest.chunk_count);
    if (!p->leaves || !p->digests) {
        fail(p, HEDDLE_ERR_NO_MEMORY, "fetch", "no memory for the digests of the chunks");
        return;
    }
    uint8_t *base = p->slot->region->base;
    memset(base + a->region_bytes, 0, offset - a->region_bytes);
    p->io->tr->extend(p->io->t, a->key, offset, a->manifest_bytes);
    begin_chunks(p, now_us);
}

/* --- chunks ----------------------------------------------------------------------------------- */

/* True when the leaves of the chunk fold to the digest that the manifest has of it. */
static bool chunk_matches(const pull_t *p, uint32_t chunk)
{
    uint64_t offset;
    uint32_t bytes = manifest_chunk(&p->manifest, chunk, &offset);
    chunk_digest_t expected, found = digest_chunk(p->leaves + offset / LIMIT_PAGE_BYTES,
                                                  (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES);
    manifest_chunk_digest(&p->manifest, chunk, &expected);
    return memcmp(&found, &expected, sizeof found) == 0;
}

/* A verified chunk is served to other workers at once. */
static void note_good(pull_t *p, uint64_t token, uint32_t chunk)
{
    uint64_t offset;
    uint32_t bytes = manifest_chunk(&p->manifest, chunk, &offset);
    p->io->tr->extend(p->io->t, p->part->key, offset, bytes);
    p->bytes_done += bytes;
    served_by(p, token)->bytes += bytes;
}

/* Which chunks came early and are the announced ones: a bit each.  No source is blamed for others. */
static void take_early(pull_t *p, uint8_t *ret_have)
{
    uint64_t offset, before_us = clock_now(p->io->clock), count = leaf_count(p);
    if (count > p->early.leaf_count) count = p->early.leaf_count;
    memcpy(p->leaves, p->early.leaves, count * sizeof *p->leaves);
    for (uint32_t i = 0; i < p->manifest.chunk_count; i++) {
        uint32_t bytes = manifest_chunk(&p->manifest, i, &offset);
        if (!early_covers(&p->early, offset, bytes) || !chunk_matches(p, i)) continue;
        ret_have[i / 8] |= (uint8_t)(1u << i % 8);
        p->last_token = p->early.from.token;
        note_good(p, p->early.from.token, i);
    }
    if (p->bytes_done == 0) p->early.took_us = 0;
    p->what->verify_us += clock_now(p->io->clock) - before_us;
}

static void begin_chunks(pull_t *p, uint64_t now_us)
{
    p->state = PULL_CHUNKS;
    uint8_t *have = p->early.leaves ? calloc(p->manifest.chunk_count / 8 + 1, 1) : NULL;
    if (have) take_early(p, have);
    begin_fetch(p, p->manifest.chunk_count, p->manifest.chunk_bytes, have, now_us);
    free(have);
}

/* There is room for every chunk once.  has_leaves: they were made as it was copied. */
static void submit(pull_t *p, uint32_t chunk, bool has_leaves)
{
    uint64_t offset;
    digest_job_t job = {.cookie = chunk, .bytes = manifest_chunk(&p->manifest, chunk, &offset)};
    if (!has_leaves) job.data = (const uint8_t *)p->slot->region->view + offset;
    job.leaves = p->leaves + offset / LIMIT_PAGE_BYTES;
    (void)digest_submit(p->digests, &job);
}

/* Compares chunks whose leaves are complete. A few are compared at once, because the requests that follow
 * then go out in one frame, and not in one for each chunk. */
static void judge_some(pull_t *p, uint64_t now_us)
{
    for (uint32_t left = WORK_BYTES / p->manifest.chunk_bytes; left > 0 && p->state == PULL_CHUNKS; left--) {
        uint64_t chunk, token, before_us = clock_now(p->io->clock);
        if (!digest_completed(p->digests, &chunk)) break;
        uint32_t piece = (uint32_t)chunk;
        bool good = chunk_matches(p, piece) && !FAILPOINT("worker.chunk");
        p->what->verify_us += clock_now(p->io->clock) - before_us;
        fetch_piece(p->fetch, piece, &token);
        if (good) note_good(p, token, piece);
        else p->counters->chunks_bad++;
        drive(p, &(fetch_event_t){.kind = good ? FE_GOOD : FE_BAD, .piece = piece}, now_us);
    }
}

/* --- closing ---------------------------------------------------------------------------------- */

/* A receive of a dropped read request may have written over a chunk after it was digested (rendezvous
 * only). Once no receive is open, all chunks are digested again. True while that goes on. */
static bool check_again(pull_t *p)
{
    uint64_t chunk;
    if (!p->overwritten || p->checked == p->manifest.chunk_count) return false;
    if (p->again < p->manifest.chunk_count) submit(p, p->again++, false);
    if (!digest_completed(p->digests, &chunk)) return true;
    p->checked++;
    if (!chunk_matches(p, (uint32_t)chunk))
        fail(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify",
             "a chunk was written over by a source that had been given up");
    return true;
}

/* The digest of the whole is what the broker has announced and what STAGED attests. It is computed from
 * the leaves, so that the bytes are read only once. */
static void seal(pull_t *p, uint64_t now_us)
{
    uint64_t before_us = clock_now(p->io->clock);
    h1_t h;
    manifest_h1_begin(&p->manifest, &h);
    h1_add_leaves(&h, p->leaves, leaf_count(p));
    digest_t found = h1_final(&h);
    if (!digest_equal(&found, &p->what->h1)) {
        fail(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify",
             "the digest of the whole differs from what was announced");
        char expected[HEDDLE_DIGEST_TEXT], text[HEDDLE_DIGEST_TEXT];
        digest_text(&p->what->h1, expected);
        digest_text(&found, text);
        error_contrast(&p->error, expected, text);
        return;
    }
    seal_t seal = {.version = p->what->version, .h1 = found, .step = p->what->step, .manifest = &p->manifest};
    int rc = FAILPOINT("worker.before_seal") ? HEDDLE_ERR_INTERNAL : slot_seal(p->slot, &seal);
    if (rc) {
        fail(p, rc, "verify", "the slot cannot be sealed");
        return;
    }
    p->what->verify_us += clock_now(p->io->clock) - before_us;
    p->what->sealed_us = now_us;
    p->state = PULL_DONE;
}

/* Work waits for open receives where they could change the bytes that are checked. */
bool pull_has_work(const pull_t *p)
{
    if (p->state == PULL_CHUNKS) return digest_is_pending(p->digests);
    return (p->state == PULL_CLOSING || p->manifest_here) && is_quiet(p);
}

void pull_work(pull_t *p, uint64_t now_us)
{
    if (!pull_has_work(p)) return;
    if (p->state == PULL_CHUNKS) judge_some(p, now_us);
    else if (p->state == PULL_MANIFEST) check_manifest(p, now_us);
    else if (!check_again(p)) seal(p, now_us);
}

/* --- events ----------------------------------------------------------------------------------- */

/* The time to the first bytes counts as connecting. Bytes of a read request that was given up count as
 * nothing. */
static void on_arrived(pull_t *p, const tr_event_t *event, uint64_t now_us)
{
    uint32_t piece = cookie_piece(event->cookie);
    if (!fetch_land(p->fetch, piece, event->ask, now_us)) return;
    if (p->last_token == 0) p->what->connect_us = now_us - p->started_us;
    p->last_token = event->token;
    if (p->state == PULL_MANIFEST) drive(p, &(fetch_event_t){.kind = FE_GOOD, .piece = piece}, now_us);
    else submit(p, piece, event->is_digested && !p->overwritten);
}

/* A source that never answered is reported to the broker as unmet: the network between the two may be
 * broken, and not the source. */
bool pull_has_met(const pull_t *p, uint64_t token)
{
    for (uint32_t i = 0; i < p->met_count; i++)
        if (p->met[i] == token) return true;
    return false;
}

/* GONE is no answer of the source: it reports that the connection was lost. */
void pull_transfer(pull_t *p, const tr_event_t *event, uint64_t now_us)
{
    if (p->state > PULL_CHUNKS || !p->fetch) return;
    bool is_answer = event->kind == TR_ARRIVED || event->kind == TR_BEAT ||
                     (event->kind == TR_REFUSED && event->err != HEDDLE_ERR_GONE);
    if (is_answer && p->met_count < sizeof p->met / sizeof *p->met && !pull_has_met(p, event->token))
        p->met[p->met_count++] = event->token;
    switch (event->kind) {
    case TR_ARRIVED: on_arrived(p, event, now_us); break;
    case TR_REFUSED:
        note_open_receives(p);
        drive(p,
              &(fetch_event_t){.kind = FE_REFUSED, .piece = cookie_piece(event->cookie), .ask = event->ask,
                               .err = event->err},
              now_us);
        break;
    case TR_BEAT: drive(p, &(fetch_event_t){.kind = FE_BEAT, .token = event->token}, now_us); break;
    case TR_PEER_GONE:
        if (find_source(p, event->token)) p->counters->retries++;
        drive(p, &(fetch_event_t){.kind = FE_GONE, .token = event->token}, now_us);
        break;
    case TR_EARLY:
    case TR_UNSHARED: break;
    }
}

void pull_resource(pull_t *p, uint64_t now_us)
{
    if (p->state <= PULL_CHUNKS) feed_sources(p, now_us);
}

/* The end of an open receive is not reported, so it is polled for. */
uint64_t pull_tick(pull_t *p, uint64_t now_us)
{
    if (p->state <= PULL_CHUNKS && !p->manifest_here && now_us >= fetch_deadline(p->fetch))
        drive(p, &(fetch_event_t){.kind = FE_TICK}, now_us);
    if (p->state == PULL_CLOSING || p->manifest_here) return now_us + QUIET_POLL_US;
    return p->state <= PULL_CHUNKS ? fetch_deadline(p->fetch) : CLOCK_NEVER;
}

/* --- life ------------------------------------------------------------------------------------- */

/* The manifest, where it is part of what came early, needs no fetch. */
static bool begin(pull_t *p, uint64_t now_us)
{
    const announced_part_t *a = p->part;
    if (!early_covers(&p->early, manifest_offset(a->region_bytes), a->manifest_bytes))
        return begin_manifest(p, now_us);
    p->state = PULL_MANIFEST;
    p->manifest_here = true;
    return true;
}

int pull_new(const pull_opts_t *opts, uint64_t now_us, pull_t **ret_pull)
{
    announced_t *what = opts->what;
    pull_t *p = calloc(1, sizeof *p);
    if (!p) return HEDDLE_ERR_NO_MEMORY;
    p->io = opts->io;
    p->what = what;
    p->slot = opts->slot;
    p->counters = opts->counters;
    p->part = &what->part[opts->part];
    p->cookie = cookie_of(opts->adapter) | (uint64_t)opts->part << 32;
    p->started_us = now_us;
    what->connect_us = what->fetch_us = what->verify_us = what->sealed_us = 0;
    what->served_count = 0;
    p->early = early_take(opts->early, p->io, p->slot);
    if (!begin(p, now_us)) {
        pull_destroy(&p);
        return HEDDLE_ERR_NO_MEMORY;
    }
    *ret_pull = p;
    return HEDDLE_OK;
}

/* Every open read request is dropped, and none of them reports an event any more. */
void pull_destroy(pull_t **pull)
{
    pull_t *p = pull ? *pull : NULL;
    if (!p) return;
    *pull = NULL;
    if (p->fetch) drive(p, &(fetch_event_t){.kind = FE_CANCEL}, 0);
    fetch_destroy(&p->fetch);
    manifest_fini(&p->manifest);
    early_bytes_fini(&p->early);
    digest_stage_destroy(&p->digests);
    free(p->leaves);
    free(p);
}

pull_state_t pull_state(const pull_t *p) { return p->state; }
const heddle_error_t *pull_error(const pull_t *p) { return &p->error; }
const announced_t *pull_what(const pull_t *p) { return p->what; }
const slot_t *pull_slot(const pull_t *p) { return p->slot; }
uint64_t pull_bytes_done(const pull_t *p) { return p->bytes_done; }
uint64_t pull_source(const pull_t *p) { return p->last_token; }

bool pull_needs_sources(pull_t *p, uint64_t *ret_lost, uint32_t cap, uint32_t *ret_count)
{
    if (!p->needs_sources) return false;
    p->needs_sources = false;
    *ret_count = p->fetch ? (uint32_t)fetch_lost(p->fetch, ret_lost, (int)cap) : 0;
    return true;
}
