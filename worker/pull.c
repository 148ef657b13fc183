/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/pull.h"

#include "core/errors.h"
#include "core/failpoint.h"

#include <stdlib.h>

/* Looked at in one call of pull_work: 0.1 ms where nobody digested it on its way, 0.03 with vectors. */
#define WORK_BYTES (LIMIT_WINDOW_BYTES / 2)
enum { ACTIONS = 64, BAD_MAX = 16, QUIET_POLL_US = 1000 };

typedef struct { uint64_t ask, token; uint32_t piece; } open_t;
typedef struct { uint64_t token; uint32_t piece; bool is_digested; } landed_t;

struct pull {
    const node_io_t *io;
    announced_t *what;
    slot_t *slot;
    pull_counters_t *counters;
    pull_state_t state;
    heddle_error_t error;
    fetch_t *fetch;                      /* of the manifest, then of the chunks */
    open_t *open;                        /* asks that were not answered */
    uint32_t open_count, open_capacity;
    landed_t *landed;                    /* ring: chunks that wait for their digest */
    uint32_t landed_first, landed_count, landed_capacity;
    manifest_t manifest;
    early_bytes_t early;
    uint64_t *leaves;
    uint64_t bytes_done, last_token, started_us;
    uint64_t bad[BAD_MAX];               /* sources that sent a wrong manifest */
    uint32_t bad_count;
    uint32_t manifest_tries;
    uint64_t met[LIMIT_SOURCES * 2];     /* sources that answered */
    uint32_t met_count;
    bool needs_sources;
    bool manifest_here;                  /* all of its pieces came; not verified yet */
    bool overwritten;                    /* a dropped ask may have written after its chunk was digested */
    uint32_t checked;                    /* CLOSING: chunks that were digested again */
};

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

static void fail(pull_t *p, int code, const char *phase, const char *text)
{
    if (p->state == PULL_FAILED) return;
    p->state = PULL_FAILED;
    error_fail(&p->error, code, "%s", text);
    error_where(&p->error, NULL, p->what->version, NULL, phase);
}

/* --- who sent what ---------------------------------------------------------------------------- */

static const source_t *find_source(const pull_t *p, uint64_t token)
{
    for (uint32_t i = 0; i < p->what->source_count; i++)
        if (p->what->sources[i].token == token) return &p->what->sources[i];
    return NULL;
}

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

/* Nothing can write into the slot any more but open asks. */
static bool is_quiet(const pull_t *p) { return p->io->tr->idle(p->io->t, p->slot->region); }

/* --- asks ------------------------------------------------------------------------------------- */

/* Where a piece of the current fetch lies in the arena. */
static uint32_t piece_range(const pull_t *p, uint32_t piece, uint64_t *ret_offset)
{
    if (p->state != PULL_MANIFEST) return manifest_chunk(&p->manifest, piece, ret_offset);
    uint64_t at = (uint64_t)piece * PULL_PIECE_BYTES, left = p->what->manifest_bytes - at;
    *ret_offset = manifest_offset(p->what->region_bytes) + at;
    return left < PULL_PIECE_BYTES ? (uint32_t)left : PULL_PIECE_BYTES;
}

static bool room_for_open(pull_t *p)
{
    if (p->open_count < p->open_capacity) return true;
    uint32_t capacity = p->open_capacity ? p->open_capacity * 2 : 64;
    open_t *grown = realloc(p->open, capacity * sizeof *grown);
    if (!grown) return false;
    p->open = grown;
    p->open_capacity = capacity;
    return true;
}

/* OK, or why this source cannot be asked now. */
static int ask(pull_t *p, const fetch_action_t *a)
{
    const source_t *source = find_source(p, a->token);
    if (!source) return HEDDLE_ERR_GONE;
    if (!room_for_open(p)) return HEDDLE_ERR_AGAIN;
    uint64_t offset, id;
    uint32_t bytes = piece_range(p, a->piece, &offset);
    peer_ref_t ref = source_ref(source);
    int rc = p->io->tr->ask(p->io->t, &ref, p->what->key, offset, bytes, p->slot->region, offset, &id);
    if (rc == HEDDLE_OK) p->open[p->open_count++] = (open_t){id, a->token, a->piece};
    return rc;
}

static bool take_open(pull_t *p, uint64_t id, open_t *ret_open)
{
    for (uint32_t i = 0; i < p->open_count; i++) {
        if (p->open[i].ask != id) continue;
        *ret_open = p->open[i];
        memmove(&p->open[i], &p->open[i + 1], (--p->open_count - i) * sizeof *p->open);
        return true;
    }
    return false;
}

/* An ask has ended, not its receive: that may write over what is digested meanwhile. */
static void note_open_receives(pull_t *p)
{
    if (!is_quiet(p)) p->overwritten = true;
}

static void drop_ask(pull_t *p, uint64_t id)
{
    open_t o;
    if (!take_open(p, id, &o)) return;
    p->io->tr->drop_ask(p->io->t, id);
    note_open_receives(p);
}

/* Asks of one piece, from one source or (0) from any. */
static void drop_piece(pull_t *p, uint32_t piece, uint64_t token)
{
    for (uint32_t i = p->open_count; i-- > 0;)
        if (p->open[i].piece == piece && (!token || p->open[i].token == token)) drop_ask(p, p->open[i].ask);
}

static void drop_all(pull_t *p)
{
    while (p->open_count) drop_ask(p, p->open[0].ask);
}

/* --- driving the fetch ------------------------------------------------------------------------ */

static void on_fetch_done(pull_t *p, uint64_t now_us);

typedef struct { bool any, done; uint32_t piece; uint64_t token; int err; } trouble_t;

static void fail_fetch(pull_t *p, int code)
{
    bool is_wrong = code == HEDDLE_ERR_DIGEST_MISMATCH;
    fail(p, code, is_wrong ? "verify" : "fetch",
         is_wrong ? "the bytes came wrong from every source that there is" : "there is no source");
}

static void obey(pull_t *p, const fetch_action_t *a, trouble_t *trouble)
{
    switch (a->kind) {
    case FA_ASK: {
        if (trouble->any && trouble->token == a->token) break;    /* it is about to be taken back */
        int rc = ask(p, a);
        if (rc) *trouble = (trouble_t){.any = true, .piece = a->piece, .token = a->token, .err = rc};
        break;
    }
    case FA_DROP_ASK: drop_piece(p, a->piece, a->token); break;
    case FA_DROP_PEER:
        p->counters->retries++;
        p->io->tr->drop_peer(p->io->t, a->token);
        break;
    case FA_NEED_SOURCES: p->needs_sources = true; break;
    case FA_DONE: trouble->done = true; break;
    case FA_FAILED: fail_fetch(p, a->err); break;
    }
}

/* Feeds one event and obeys until the fetch has nothing more to say.  A source that cannot be asked is told
 * to it as refused. */
static void drive(pull_t *p, const fetch_event_t *event, uint64_t now_us)
{
    fetch_event_t next = *event;
    for (bool more = true; more && p->fetch;) {
        fetch_action_t actions[ACTIONS];
        trouble_t trouble = {0};
        int n = fetch_step(p->fetch, &next, now_us, actions, ACTIONS);
        for (int i = 0; i < n; i++) obey(p, &actions[i], &trouble);
        if (trouble.done) {
            on_fetch_done(p, now_us);
            return;
        }
        next = (fetch_event_t){.kind = FE_TICK};
        if (trouble.any)
            next = (fetch_event_t){
                .kind = FE_REFUSED, .piece = trouble.piece, .token = trouble.token, .err = trouble.err};
        more = trouble.any || n == ACTIONS;
    }
}

static void feed_sources(pull_t *p, uint64_t now_us)
{
    fetch_source_t list[LIMIT_SOURCES];
    int count = 0;
    for (uint32_t i = 0; i < p->what->source_count; i++) {
        peer_ref_t ref = source_ref(&p->what->sources[i]);
        list[count++] = (fetch_source_t){ref.token};
        p->io->tr->greet(p->io->t, &ref);    /* where it fails, ask tells */
    }
    drive(p, &(fetch_event_t){.kind = FE_SOURCES, .sources = list, .source_count = count}, now_us);
}

/* have: a bit for each piece that is there; NULL: none. */
static bool begin_fetch(pull_t *p, uint32_t pieces, uint32_t piece_bytes, const uint8_t *have,
                        uint64_t now_us)
{
    fetch_destroy(&p->fetch);
    fetch_plan_t plan = {.count = pieces,
                         .piece_bytes = piece_bytes,
                         .window_bytes = LIMIT_WINDOW_BYTES,
                         .have = have,
                         .bad = p->bad,
                         .bad_count = p->bad_count};
    if (fetch_new(&plan, now_us, &p->fetch)) {
        fail(p, HEDDLE_ERR_NO_MEMORY, "fetch", "no memory for a fetch");
        return false;
    }
    feed_sources(p, now_us);
    return true;
}

/* --- the manifest ----------------------------------------------------------------------------- */

static bool begin_manifest(pull_t *p, uint64_t now_us)
{
    p->state = PULL_MANIFEST;
    return begin_fetch(p, (uint32_t)((p->what->manifest_bytes + PULL_PIECE_BYTES - 1) / PULL_PIECE_BYTES),
                       PULL_PIECE_BYTES, NULL, now_us);
}

/* Which piece was wrong cannot be told: whoever sent any of it is not asked again. */
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

static bool prepare_chunks(pull_t *p)
{
    p->leaves = calloc(leaf_count(p), sizeof *p->leaves);
    p->landed_capacity = p->manifest.chunk_count;
    p->landed = calloc(p->landed_capacity, sizeof *p->landed);
    if (!p->leaves || !p->landed) {
        fail(p, HEDDLE_ERR_NO_MEMORY, "fetch", "no memory for the digests of the chunks");
        return false;
    }
    p->slot->region->leaves = p->leaves;
    return true;
}

static void begin_chunks(pull_t *p, uint64_t now_us);

static void check_manifest(pull_t *p, uint64_t now_us)
{
    bool is_early = !p->fetch;
    p->manifest_here = false;
    const announced_t *a = p->what;
    uint64_t offset = manifest_offset(a->region_bytes);
    const uint8_t *view = p->slot->region->view;
    bytes_t encoded = bytes_of(view + offset, a->manifest_bytes);
    digest_t found = digest_blake2b(encoded.data, encoded.bytes);
    if (!digest_equal(&found, &a->manifest_digest)) {
        if (!is_early) {
            refuse_manifest(p, now_us);
            return;
        }
        early_bytes_fini(&p->early);    /* it was another version's */
        begin_manifest(p, now_us);
        return;
    }
    heddle_error_t why;
    int rc = manifest_decode(encoded, &p->manifest, &why);
    if (rc == HEDDLE_OK && p->manifest.region_bytes != a->region_bytes)
        rc = error_fail(&why, HEDDLE_ERR_PROTOCOL,
                        "the manifest speaks of a region of another size than the announcement");
    if (rc) {
        fail(p, rc, "verify", why.message);
        error_contrast(&p->error, why.expected, why.found);
        return;
    }
    if (!prepare_chunks(p)) return;
    uint8_t *base = p->slot->region->base;
    memset(base + a->region_bytes, 0, offset - a->region_bytes);
    p->io->tr->extend(p->io->t, a->key, offset, a->manifest_bytes);
    begin_chunks(p, now_us);
}

/* --- chunks ----------------------------------------------------------------------------------- */

/* has_leaves: p->leaves has them already, of what lies there now. */
static bool digest_matches(pull_t *p, uint32_t chunk, bool has_leaves, uint64_t *ret_offset,
                           uint32_t *ret_bytes)
{
    uint32_t bytes = manifest_chunk(&p->manifest, chunk, ret_offset);
    uint64_t *leaves = p->leaves + *ret_offset / LIMIT_PAGE_BYTES;
    const uint8_t *view = p->slot->region->view;
    if (!has_leaves) digest_leaves(view + *ret_offset, bytes, leaves);
    chunk_digest_t found = digest_chunk(leaves, (bytes + LIMIT_PAGE_BYTES - 1) / LIMIT_PAGE_BYTES), expected;
    manifest_chunk_digest(&p->manifest, chunk, &expected);
    *ret_bytes = bytes;
    return memcmp(&found, &expected, sizeof found) == 0;
}

/* What is known to be good is served on. */
static void note_good(pull_t *p, uint64_t token, uint64_t offset, uint32_t bytes)
{
    p->io->tr->extend(p->io->t, p->what->key, offset, bytes);
    p->bytes_done += bytes;
    served_by(p, token)->bytes += bytes;
}

/* Which chunks came early and are the announced ones: a bit each.  Nobody is blamed for others. */
static void take_early(pull_t *p, uint8_t *ret_have)
{
    uint64_t offset, before_us = clock_now(p->io->clock), count = leaf_count(p);
    if (count > p->early.leaf_count) count = p->early.leaf_count;
    memcpy(p->leaves, p->early.leaves, count * sizeof *p->leaves);
    for (uint32_t i = 0; i < p->manifest.chunk_count; i++) {
        uint32_t bytes = manifest_chunk(&p->manifest, i, &offset);
        if (!early_covers(&p->early, offset, bytes) || !digest_matches(p, i, true, &offset, &bytes)) continue;
        ret_have[i / 8] |= (uint8_t)(1u << i % 8);
        p->last_token = p->early.from.token;
        note_good(p, p->early.from.token, offset, bytes);
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

static void on_good(pull_t *p, const landed_t *l, uint64_t offset, uint32_t bytes, uint64_t now_us)
{
    drop_piece(p, l->piece, 0);    /* whoever else was asked for it must not write over it */
    note_good(p, l->token, offset, bytes);
    drive(p, &(fetch_event_t){.kind = FE_GOOD, .piece = l->piece, .token = l->token}, now_us);
}

static void digest_one(pull_t *p, uint64_t now_us)
{
    landed_t l = p->landed[p->landed_first];
    p->landed_first = (p->landed_first + 1) % p->landed_capacity;
    p->landed_count--;
    if (fetch_is_good(p->fetch, l.piece)) return;
    uint64_t offset, before_us = clock_now(p->io->clock);
    uint32_t bytes;
    bool has_leaves = l.is_digested && p->slot->region->leaves;
    bool good = digest_matches(p, l.piece, has_leaves, &offset, &bytes) && !FAILPOINT("worker.chunk");
    p->what->verify_us += clock_now(p->io->clock) - before_us;
    if (good) {
        on_good(p, &l, offset, bytes, now_us);
        return;
    }
    p->counters->chunks_bad++;
    drive(p, &(fetch_event_t){.kind = FE_BAD, .piece = l.piece, .token = l.token}, now_us);
}

/* What is asked again goes out in one frame then, and not in one for each chunk. */
static void digest_some(pull_t *p, uint64_t now_us)
{
    uint32_t count = WORK_BYTES / p->manifest.chunk_bytes;
    do digest_one(p, now_us);
    while (count-- > 1 && p->state == PULL_CHUNKS && p->landed_count > 0);
}

/* --- closing ---------------------------------------------------------------------------------- */

static void on_fetch_done(pull_t *p, uint64_t now_us)
{
    drop_all(p);
    if (p->state == PULL_MANIFEST) {
        p->manifest_here = true;
        return;
    }
    p->what->fetch_us = now_us - p->started_us - p->what->connect_us + p->early.took_us;
    p->state = PULL_CLOSING;
}

/* An open receive of a dropped ask may have written over a chunk after it was digested (rendezvous only):
 * once it is quiet, all are digested again. */
static bool check_again(pull_t *p)
{
    if (!p->overwritten || p->checked == p->manifest.chunk_count) return false;
    uint64_t offset;
    uint32_t bytes;
    if (!digest_matches(p, p->checked++, false, &offset, &bytes))
        fail(p, HEDDLE_ERR_DIGEST_MISMATCH, "verify",
             "a chunk was written over by a source that had been given up");
    return true;
}

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

bool pull_has_work(const pull_t *p)
{
    if (p->state == PULL_CHUNKS) return p->landed_count > 0;
    return (p->state == PULL_CLOSING || p->manifest_here) && is_quiet(p);
}

void pull_work(pull_t *p, uint64_t now_us)
{
    if (!pull_has_work(p)) return;
    if (p->state == PULL_CHUNKS) digest_some(p, now_us);
    else if (p->state == PULL_MANIFEST) check_manifest(p, now_us);
    else if (!check_again(p)) seal(p, now_us);
}

/* --- events ----------------------------------------------------------------------------------- */

static void on_arrived(pull_t *p, const open_t *o, bool is_digested, uint64_t now_us)
{
    if (p->last_token == 0) p->what->connect_us = now_us - p->started_us;
    p->last_token = o->token;
    if (p->state == PULL_MANIFEST) {
        drop_piece(p, o->piece, 0);
        drive(p, &(fetch_event_t){.kind = FE_GOOD, .piece = o->piece, .token = o->token}, now_us);
        return;
    }
    for (uint32_t i = 0; i < p->landed_count; i++) {
        landed_t *l = &p->landed[(p->landed_first + i) % p->landed_capacity];
        if (l->piece != o->piece) continue;
        l->token = o->token;    /* it landed twice: the bytes there are the later sender's */
        l->is_digested = is_digested;
        return;
    }
    p->landed[(p->landed_first + p->landed_count++) % p->landed_capacity] =
        (landed_t){o->token, o->piece, is_digested};
}

bool pull_has_met(const pull_t *p, uint64_t token)
{
    for (uint32_t i = 0; i < p->met_count; i++)
        if (p->met[i] == token) return true;
    return false;
}

static void note_met(pull_t *p, const tr_event_t *event)
{
    bool is_answer = event->kind == TR_ARRIVED || event->kind == TR_BEAT ||
                     (event->kind == TR_REFUSED && event->err != HEDDLE_ERR_GONE);
    if (is_answer && p->met_count < sizeof p->met / sizeof *p->met && !pull_has_met(p, event->token))
        p->met[p->met_count++] = event->token;
}

void pull_transfer(pull_t *p, const tr_event_t *event, uint64_t now_us)
{
    open_t o;
    if (p->state > PULL_CHUNKS) return;
    note_met(p, event);
    switch (event->kind) {
    case TR_ARRIVED:
        if (take_open(p, event->ask, &o)) on_arrived(p, &o, event->is_digested, now_us);
        break;
    case TR_REFUSED:
        if (!take_open(p, event->ask, &o)) break;
        note_open_receives(p);
        drive(p,
              &(fetch_event_t){.kind = FE_REFUSED, .piece = o.piece, .token = o.token, .err = event->err},
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
    const announced_t *a = p->what;
    if (!early_covers(&p->early, manifest_offset(a->region_bytes), a->manifest_bytes))
        return begin_manifest(p, now_us);
    p->state = PULL_MANIFEST;
    p->manifest_here = true;
    return true;
}

int pull_new(const node_io_t *io, announced_t *what, slot_t *slot, early_t *early,
             pull_counters_t *counters, uint64_t now_us, pull_t **ret_pull)
{
    pull_t *p = calloc(1, sizeof *p);
    if (!p) return HEDDLE_ERR_NO_MEMORY;
    p->io = io;
    p->what = what;
    p->slot = slot;
    p->counters = counters;
    p->started_us = now_us;
    what->connect_us = what->fetch_us = what->verify_us = what->sealed_us = 0;
    what->served_count = 0;
    p->early = early_take(early, io, slot);
    if (!begin(p, now_us)) {
        pull_destroy(&p);
        return HEDDLE_ERR_NO_MEMORY;
    }
    *ret_pull = p;
    return HEDDLE_OK;
}

void pull_destroy(pull_t **pull)
{
    pull_t *p = pull ? *pull : NULL;
    if (!p) return;
    *pull = NULL;
    drop_all(p);
    p->slot->region->leaves = NULL;
    fetch_destroy(&p->fetch);
    manifest_fini(&p->manifest);
    early_bytes_fini(&p->early);
    free(p->open);
    free(p->landed);
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
