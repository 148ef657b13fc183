/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/publisher.h: one publication, from a table of tensors or a directory to a durable record. */
#include "trainer_client/handle.h"

#include "core/limits.h"
#include "core/sized.h"
#include "core/stop.h"
#include "proto/peft.h"
#include "trainer_client/fill.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define DEADLINE_MS 60000u

struct heddle_publication {
    heddle_publisher_t *publisher;
    pack_t *pack;
    int slot;
    uint64_t start_us;                /* when reading a directory began; 0: it counts from commit */
};

/* -- time ------------------------------------------------------------------------------------- */

/* Called between pieces of packing, by any thread that packs. */
static int check_patience(const stop_t *stop, heddle_error_t *error)
{
    const patience_t *p = (const patience_t *)stop;
    const char *adapter = p->publisher->adapter;
    if (handle_is_interrupted(p->publisher))
        return error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted while %s was packed", adapter);
    uint64_t now_us = handle_now();
    uint32_t deadline_ms = atomic_load(&p->deadline_ms);
    if (now_us < p->start_us + deadline_ms * 1000ull) return HEDDLE_OK;
    error_fail(error, HEDDLE_ERR_DEADLINE, "%s was not packed within its deadline", adapter);
    error_expected(error, "all of it read and digested within %u ms", deadline_ms);
    error_found(error, "not after %llu ms", (unsigned long long)((now_us - p->start_us) / 1000));
    error_hint(error, "give it a longer deadline; each tensor takes at least 4 KiB, so few large ones "
                      "pack faster than many small ones");
    return HEDDLE_ERR_DEADLINE;
}

/* From here on stop_check ends packing at the deadline or an interrupt. */
static void patience_begin(patience_t *p, heddle_publisher_t *publisher, uint64_t start_us,
                           uint32_t deadline_ms)
{
    *p = (patience_t){.stop = {check_patience}, .publisher = publisher, .start_us = start_us};
    atomic_init(&p->deadline_ms, deadline_ms);
    stop_begin(&p->stop);
}

/* An interrupt that ended the packing is spent: it must not end the next call too. */
static int patience_over(const patience_t *p, int rc, heddle_error_t *error)
{
    stop_end();
    if (rc == HEDDLE_ERR_INTERRUPTED) handle_forget_interrupt(p->publisher);
    if (rc) error_where(error, p->publisher->adapter, 0, NULL, "pack");
    return rc;
}

/* -- a region --------------------------------------------------------------------------------- */

/* A loop that has ended needs no slot back, hence no check. */
static void give_back(heddle_publisher_t *p, int slot)
{
    handle_run(p, &(command_t){.kind = COMMAND_GIVE_BACK, .slot = slot});
}

/* Waits for a slot at most for the publisher's timeout. The error names what keeps the older one. */
static int take_slot(heddle_publisher_t *p, command_t *t, heddle_error_t *error)
{
    t->kind = COMMAND_TAKE;
    t->error = error;
    int rc = handle_run_until(p, t, handle_until((int)p->timeout_ms));
    if (rc) {
        handle_run(p, &(command_t){.kind = COMMAND_GIVE_UP});
        if (rc != HEDDLE_ERR_AGAIN && rc != HEDDLE_ERR_NO_SLOT) return rc;
        error_fail(error, HEDDLE_ERR_NO_SLOT, "every region of the publisher is in use");
        error_expected(error, "the older one free within %u ms", p->timeout_ms);
        error_found(error, "bytes of it still on their way to a worker");
        error_hint(error, "publish again: a worker that stands still is dropped after a while");
        return HEDDLE_ERR_NO_SLOT;
    }
    rc = stop_check(error);    /* it may have been waited for */
    if (rc) give_back(p, t->slot);
    return rc;
}

/* Gives new memory to the slot, which owns it from here on, also on failure. */
static int fit(heddle_publisher_t *p, command_t *t, heddle_error_t *error)
{
    t->kind = COMMAND_FIT;
    int rc = handle_run(p, t);
    if (!rc) return HEDDLE_OK;
    error_fail(error, rc, "%llu bytes of memory cannot be registered", (unsigned long long)t->bytes);
    error_hint(error, "free memory, or raise the limit of locked memory: ulimit -l");
    give_back(p, t->slot);
    return rc;
}

/* Pages are made on this thread, piece by piece, between which it can be stopped. */
static int grow(command_t *t, heddle_error_t *error)
{
    int rc;
    while ((rc = region_grow(t->region, error)) == HEDDLE_ERR_AGAIN && !(rc = stop_check(error))) {}
    return rc;
}

/* A slot with enough memory, which is warm or made now; and `r` read into it, unless that is NULL. On
 * this thread: touching memory takes long, and the loop has a lease to keep. */
static int take_region(heddle_publisher_t *p, reading_t *r, command_t *t, heddle_error_t *error)
{
    int rc = take_slot(p, t, error);
    if (rc) return rc;
    bool is_new = !t->region;
    if (is_new) rc = region_begin(t->bytes, &t->region, error);
    bool is_begun = is_new && !rc;
    if (!rc) rc = r ? reading_into(r, t->region, error) : grow(t, error);
    if (!rc) return is_new ? fit(p, t, error) : HEDDLE_OK;
    if (is_begun) region_unref(&t->region);
    give_back(p, t->slot);
    return rc;
}

/* -- begin and abort -------------------------------------------------------------------------- */

/* Takes the pack, also on failure. */
static int open_publication(heddle_publisher_t *p, pack_t *pack, const command_t *t,
                            heddle_publication_t **ret_publication, heddle_error_t *error)
{
    heddle_publication_t *pub = calloc(1, sizeof *pub);
    if (!pub) {
        give_back(p, t->slot);
        pack_destroy(&pack);
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a publication");
    }
    *pub = (heddle_publication_t){.publisher = p, .pack = pack, .slot = t->slot};
    p->open = *ret_publication = pub;
    return HEDDLE_OK;
}

/* The table is checked and laid out before a region is taken, so that a mistake costs no memory. */
int heddle_publication_begin(heddle_publisher_t *p, const heddle_tensor_t *tensors, uint32_t count,
                             const void *config, size_t config_bytes, const char *metadata,
                             heddle_publication_t **ret_publication)
{
    static const char CALL[] = "heddle_publication_begin", PT[] = "{\"format\":\"pt\"}";
    heddle_error_t error;
    if (!p || !ret_publication || (count && !tensors) || (config_bytes && !config))
        return handle_misuse(CALL, "a pointer is NULL");
    if (p->open) return handle_misuse(CALL, "another publication is open");
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].size != sizeof *tensors)
            return handle_misuse(CALL, "the size of a row is not sizeof(heddle_tensor_t)");
    if (!metadata) metadata = PT;
    pack_input_t in = {.tensors = tensors, .count = count, .config = bytes_of(config, config_bytes),
                       .metadata = bytes_of(metadata, strlen(metadata))};
    pack_t *pack = NULL;
    command_t t = {0};
    int rc = pack_new(&in, &pack, &error);
    if (!rc) t.bytes = pack_bytes(pack), rc = take_region(p, NULL, &t, &error);
    if (!rc) pack_lay(pack, t.region->base), rc = open_publication(p, pack, &t, ret_publication, &error);
    else pack_destroy(&pack);
    if (rc) error_where(&error, p->adapter, 0, NULL, "pack");
    return rc ? error_publish(&error) : HEDDLE_OK;
}

void *heddle_publication_tensor(heddle_publication_t *pub, uint32_t index)
{
    return pub ? pack_tensor(pub->pack, index) : NULL;
}

int heddle_publication_write(heddle_publication_t *pub, const void *const *sources)
{
    if (!pub || !sources) return handle_misuse("heddle_publication_write", "a pointer is NULL");
    fill(pub->pack, sources, fill_threads(pub->pack->layout.region_bytes, pub->publisher->fill_threads));
    return HEDDLE_OK;
}

/* The slot is the node's by now, or was given back. */
static void end(heddle_publication_t *pub)
{
    pub->publisher->open = NULL;
    pack_destroy(&pub->pack);
    free(pub);
}

void heddle_publication_abort(heddle_publication_t **pub)
{
    if (!pub || !*pub) return;
    heddle_publication_t *it = *pub;
    *pub = NULL;
    give_back(it->publisher, it->slot);
    end(it);
}

/* -- commit ----------------------------------------------------------------------------------- */

typedef struct {
    publish_request_t request;
    publish_result_t result;
    heddle_error_t error;             /* code 0: none */
    atomic_bool is_done;              /* the two above are written */
} publish_t;

/* On the loop's thread; the flag is set last, so that the waiting thread sees the rest. */
static void on_done(void *self, const publish_result_t *result, const heddle_error_t *error)
{
    publish_t *it = self;
    if (error) it->error = *error;
    else it->result = *result;
    atomic_store(&it->is_done, true);
}

/* The node owns the slot from here on. An answer that comes while the call gives up still counts. */
static int wait_published(heddle_publisher_t *p, publish_t *it, heddle_error_t *error)
{
    command_t c = {.kind = COMMAND_PUBLISH, .error = error, .request = &it->request};
    it->request.done = on_done;
    it->request.self = it;
    int closed = handle_run(p, &c);
    if (closed) return closed;
    int rc = handle_wait(p, &it->is_done, it->request.until_us);
    c.kind = COMMAND_ABANDON;
    if (rc && (closed = handle_run(p, &c))) return closed;
    *error = it->error;
    if (it->error.code && rc == HEDDLE_ERR_INTERRUPTED) return error_fail(error, rc, "interrupted");
    return it->error.code;
}

/* The ranges are a table, so that each has the same error. */
static int check_choices(const heddle_publish_opts_t *o, heddle_error_t *error)
{
    static const char ENUM[] = "take one of the names that heddle/publisher.h has for it";
    const struct { const char *what; int64_t value, least, most; const char *hint; } CHOICES[] = {
        {"step", o->step, -1, LIMIT_EXACT, "steps count from 0; -1 says that there is none"},
        {"activation", o->activation, HEDDLE_ACTIVATION_ALL, HEDDLE_ACTIVATION_MANUAL, ENUM},
        {"if_unchanged", o->if_unchanged, HEDDLE_UNCHANGED_FAIL, HEDDLE_UNCHANGED_PUBLISH, ENUM}};
    for (size_t i = 0; i < sizeof CHOICES / sizeof *CHOICES; i++) {
        if (CHOICES[i].value >= CHOICES[i].least && CHOICES[i].value <= CHOICES[i].most) continue;
        int rc = error_fail(error, HEDDLE_ERR_USAGE, "the %s is out of range", CHOICES[i].what);
        error_expected(error, "%lld to %lld", (long long)CHOICES[i].least, (long long)CHOICES[i].most);
        error_found(error, "%lld", (long long)CHOICES[i].value);
        error_hint(error, "%s", CHOICES[i].hint);
        return rc;
    }
    return HEDDLE_OK;
}

/* Checked before anything is sealed: a refusal by the broker would come after all the work. */
static int check_opts(const heddle_publish_opts_t *o, heddle_error_t *error)
{
    int rc = check_choices(o, error);
    if (!rc && o->request_id) rc = name_check("request id", o->request_id, error);
    for (uint32_t i = 0; !rc && o->meta && o->meta[i]; i++) {
        if (i < LIMIT_META) {
            rc = label_check(o->meta[i], error);
            continue;
        }
        rc = error_fail(error, HEDDLE_ERR_LIMIT, "there are too many pairs of meta");
        error_expected(error, "at most %u", LIMIT_META);
        error_found(error, "more");
        error_hint(error, "put what belongs together into one value");
    }
    return rc;
}

static double ms_between(uint64_t from_us, uint64_t to_us) { return (double)(to_us - from_us) / 1000.0; }

/* The options as this release knows them, checked and with defaults. */
static int take_opts(const heddle_publish_opts_t *opts, heddle_publish_opts_t *ret_opts,
                     heddle_error_t *error)
{
    int rc = sized_take(ret_opts, sizeof *ret_opts, opts, "heddle_publish_opts_t", error);
    if (!rc) rc = check_opts(ret_opts, error);
    if (!ret_opts->deadline_ms) ret_opts->deadline_ms = DEADLINE_MS;
    return rc;
}

/* Seals, then publishes under the caller's request id, or under a random one, which no other process can
 * have used. */
static int publish(heddle_publication_t *pub, publish_t *it, heddle_published_t *ret_published,
                   heddle_error_t *error)
{
    sealed_t sealed;
    char id[40];
    uint8_t random[16];
    patience_t patience;
    patience_begin(&patience, pub->publisher, it->request.start_us, it->request.opts.deadline_ms);
    int rc = pack_seal(pub->pack, &sealed, error);
    if (!rc) rc = stop_check(error);
    rc = patience_over(&patience, rc, error);
    if (rc) give_back(pub->publisher, pub->slot);
    if (rc) return rc;
    uint64_t sealed_us = handle_now();
    random_bytes(random, sizeof random);
    memcpy(id, "r-", 2);
    for (size_t i = 0; i < sizeof random; i++) snprintf(id + 2 + 2 * i, 3, "%02x", random[i]);
    it->request.sealed = &sealed;
    it->request.is_random_id = !it->request.opts.request_id;
    if (it->request.is_random_id) it->request.opts.request_id = id;
    rc = wait_published(pub->publisher, it, error);
    if (!rc) {
        const publish_request_t *a = &it->request;
        const publish_result_t *r = &it->result;
        *ret_published = (heddle_published_t){.size = sizeof *ret_published,
                                              .version = r->version,
                                              .replayed = r->replayed,
                                              .unchanged = r->unchanged,
                                              .created = !r->replayed && !r->unchanged,
                                              .data_bytes = a->pack->layout.data_bytes,
                                              .tensor_count = a->pack->layout.count,
                                              .chunk_count = a->sealed->chunk_count,
                                              .pack_ms = ms_between(a->start_us, sealed_us),
                                              .commit_ms = ms_between(a->start_us, r->published_us)};
        digest_text(&r->digest, ret_published->digest);
        tag_text(pub->publisher->adapter, r->version, &r->digest, ret_published->tag);
        error_text(ret_published->request_id, sizeof ret_published->request_id, a->opts.request_id);
        memcpy(ret_published->features, a->pack->features, sizeof ret_published->features);
        memcpy(ret_published->held, r->held, sizeof ret_published->held);
    }
    return rc;
}

/* Takes the publication, also on failure: a sealed pack cannot be written again. */
static int commit(heddle_publication_t *pub, const heddle_publish_opts_t *opts,
                  heddle_published_t *ret_published, heddle_error_t *error)
{
    heddle_published_t published;
    uint64_t start_us = pub->start_us ? pub->start_us : handle_now();
    publish_t it = {.request = {.slot = pub->slot, .pack = pub->pack, .opts = *opts, .start_us = start_us,
                                .until_us = start_us + opts->deadline_ms * 1000ull}};
    int rc = publish(pub, &it, &published, error);
    if (rc) error_where(error, pub->publisher->adapter, 0, NULL, error->phase[0] ? NULL : "commit");
    end(pub);
    if (!rc) sized_give(ret_published, &published, sizeof published);
    return rc;
}

/* The publication is gone after the call, whatever its result: its slot belongs to the node then. */
int heddle_publication_commit(heddle_publication_t **pub, const heddle_publish_opts_t *opts,
                              heddle_published_t *ret_published)
{
    heddle_error_t error;
    heddle_publish_opts_t o;
    if (!pub || !*pub) return handle_misuse("heddle_publication_commit", "there is no publication");
    heddle_publication_t *p = *pub;
    *pub = NULL;
    int rc = take_opts(opts, &o, &error);
    if (!rc) {
        rc = commit(p, &o, ret_published, &error);
    } else {
        error_where(&error, p->publisher->adapter, 0, NULL, "commit");
        heddle_publication_abort(&p);
    }
    return rc ? error_publish(&error) : HEDDLE_OK;
}

/* -- a directory ------------------------------------------------------------------------------ */

/* Reading has no deadline yet: the call that will want it brings one. */
void handle_read_ahead(heddle_publisher_t *p, const char *dir)
{
    patience_t *patience = &p->ahead_patience;
    *patience = (patience_t){.stop = {check_patience}, .publisher = p, .start_us = handle_now()};
    atomic_init(&patience->deadline_ms, UINT_MAX);
    p->ahead = reading_ahead(dir, &patience->stop);
}

/* A deadline of 0 stops the reading thread at its next check. */
void handle_drop_ahead(heddle_publisher_t *p)
{
    reading_t reading = {0};
    region_t *region = NULL;
    heddle_error_t ignored;
    if (!p->ahead) return;
    atomic_store(&p->ahead_patience.deadline_ms, 0);
    reading_join(&p->ahead, &reading, &region, &ignored);
    reading_close(&reading);
    region_unref(&region);
}

/* Takes what was read while the publisher opened, if that is this directory and still unchanged. False:
 * there is none; the error that ended it is found again, or no longer there. */
static bool join_ahead(heddle_publisher_t *p, const char *dir, const patience_t *patience, reading_t *r,
                       region_t **ret_region)
{
    heddle_error_t ignored;
    if (!reading_is_of(p->ahead, dir)) {
        handle_drop_ahead(p);
        return false;
    }
    uint64_t passed_ms = (patience->start_us - p->ahead_patience.start_us) / 1000;
    uint64_t deadline_ms = passed_ms + atomic_load(&patience->deadline_ms);
    atomic_store(&p->ahead_patience.deadline_ms, deadline_ms < UINT_MAX ? (unsigned)deadline_ms : UINT_MAX);
    return !reading_join(&p->ahead, r, ret_region, &ignored);
}

/* Reads the directory into a region, unless it was read ahead into a region of its own, which then
 * becomes the slot's. */
static int read_dir(heddle_publisher_t *p, const char *dir, const patience_t *patience,
                    heddle_publication_t **ret_publication, heddle_error_t *error)
{
    reading_t r = {0};
    region_t *region = NULL;
    command_t t = {0};
    int rc;
    if (join_ahead(p, dir, patience, &r, &region)) {
        t.bytes = region->bytes;
        rc = take_slot(p, &t, error);
        t.region = region;
        if (!rc) rc = fit(p, &t, error);
        else region_unref(&t.region);
    } else {
        rc = reading_open(&r, dir, error);
        if (!rc) t.bytes = pack_bytes(r.pack), rc = take_region(p, &r, &t, error);
    }
    if (!rc) {
        rc = open_publication(p, r.pack, &t, ret_publication, error);
        r.pack = NULL;
    }
    reading_close(&r);
    if (!rc) (*ret_publication)->start_us = patience->start_us;
    return rc;
}

/* Reading counts against the deadline of the call, so that a slow disk cannot exceed it. */
int heddle_publisher_publish_dir(heddle_publisher_t *p, const char *dir,
                                 const heddle_publish_opts_t *opts, heddle_published_t *ret_published)
{
    heddle_error_t error;
    heddle_publication_t *pub = NULL;
    heddle_publish_opts_t o;
    patience_t patience;
    if (!p || !dir) return handle_misuse("heddle_publisher_publish_dir", "a pointer is NULL");
    if (p->open) return handle_misuse("heddle_publisher_publish_dir", "another publication is open");
    int rc = take_opts(opts, &o, &error);
    if (rc) return error_publish(&error);
    patience_begin(&patience, p, handle_now(), o.deadline_ms);
    rc = patience_over(&patience, read_dir(p, dir, &patience, &pub, &error), &error);
    if (!rc) rc = commit(pub, &o, ret_published, &error);
    return rc ? error_publish(&error) : HEDDLE_OK;
}
