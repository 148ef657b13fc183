/* SPDX-License-Identifier: Apache-2.0 */
/* heddle_admin_pull: one version, fetched by a process that is no member, and written as a PEFT directory.
 *
 *   ask -> open the bulk plane -> make memory -> fetch -> close the bulk plane -> write
 *           ^ asked again while no source is left
 *
 * The admin handle's loop carries all of it on the caller's thread: the transfer is a source of work beside
 * the connection to the broker. */
#include "client/admin.h"

#include "client/shell.h"
#include "core/errors.h"
#include "core/sized.h"
#include "core/units.h"
#include "worker/download.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEADLINE_MS = 60000,
    TURN_EVENTS = 64,
    ASK_AGAIN_US = 500000 /* between two questions for sources */
};
/* Of the HI that this process says to sources.  No epoch of a broker comes that far, so it is no member's. */
#define TOKEN_OF_NO_MEMBER (1ull << 63)

typedef struct {
    heddle_admin_t *admin;
    heddle_pull_opts_t opts;
    ref_t ref;
    uint64_t began_us, end_us, asked_us;
    json_t *body;            /* of the broker's answer, then ours */
    announced_t heard, what; /* of the last answer; being fetched: its sources alone change */
    bool has_parts, has_loop_source;
    node_io_t io;
    slots_t *slots;
    slot_t *slot; /* memory; NULL: not made yet */
    download_counters_t counters;
    download_t *download;
    unreached_t unreached;
    uint64_t told_bytes; /* of the last call of opts.progress */
} job_t;

static uint64_t now_of(void) { return clock_now(clock_system()); }

/* ---- where from ---- */

/* What to fetch (parts, share key, sources) is in fields of the message, and not in its JSON body, which
 * is printed. */
static void hear(void *self, const msg_report_t *m)
{
    job_t *j = self;
    j->has_parts = m->part_count == 1;
    if (!j->has_parts) return;
    j->heard = (announced_t){0};
    announced_part(&j->heard, &m->parts[0], &m->key);
    announced_sources(&j->heard, m->sources, m->source_count);
}

/* The error says how far the fetch came, and why no source could be reached, where that is the cause. */
static int fail_late(const job_t *j, heddle_error_t *error)
{
    char done[16], all[16];
    const heddle_error_t *why = j->download ? download_trouble(j->download) : NULL;
    units_bytes_text(j->download ? j->download->bytes_done : 0, done);
    units_bytes_text(j->what.part.region_bytes, all);
    error_fail(error, HEDDLE_ERR_DEADLINE, "%s@%llu was not fetched in %u ms", j->ref.name,
               (unsigned long long)j->what.version, j->opts.deadline_ms);
    error_where(error, j->ref.name, j->what.version, NULL, "fetch");
    error_expected(error, "%s", all);
    if (why) error_found(error, "%s", why->message);
    else error_found(error, "%s%s", done, j->what.source_count ? "" : ", and no source was known");
    error_hint(error, "%s", why ? why->hint : "a longer opts.deadline_ms gives it more time");
    return HEDDLE_ERR_DEADLINE;
}

/* A broker may be restarted between two questions. It must mean the same bytes each time, since some of
 * them are here already. */
static int check_answer(job_t *j, json_t *body, heddle_error_t *error)
{
    digest_t digest = {0};
    const char *text = json_string_value(json_object_get(body, "digest"));
    uint64_t version = (uint64_t)json_integer_value(json_object_get(body, "version"));
    bool is_whole = j->has_parts && version && text && digest_parse(text, &digest);
    bool is_same = !j->what.version || (j->what.version == version && digest_equal(&j->what.h1, &digest));
    if (!is_whole || !is_same) {
        int rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "the broker's answer %s",
                            is_whole ? "names other bytes than before" : "does not say what to fetch");
        error_hint(error, "compare `heddle --version` with the broker's in `heddle status`");
        return rc;
    }
    if (j->what.version) {
        memcpy(j->what.sources, j->heard.sources, sizeof j->what.sources);
        j->what.source_count = j->heard.source_count;
        return HEDDLE_OK;
    }
    j->what = j->heard;
    j->what.version = j->ref.version = version;
    j->what.h1 = digest;
    j->what.step = -1;
    if (json_is_integer(json_object_get(body, "step")))
        j->what.step = json_integer_value(json_object_get(body, "step"));
    return HEDDLE_OK;
}

/* Each question gets what is left of the call's time. The sources of the answer replace the ones before. */
static int ask(job_t *j, heddle_error_t *error)
{
    json_t *body = NULL;
    uint64_t now_us = now_of();
    if (now_us >= j->end_us) return fail_late(j, error);
    j->asked_us = now_us;
    j->has_parts = false;
    msg_query_t m = {.op = "pull",
                     .name = j->ref.name,
                     .version = j->ref.version,
                     .digest_head = j->ref.head,
                     .deadline_ms = (j->end_us - now_us + 999) / 1000};
    query_hear(j->admin->query, hear, j);
    int rc = query_ask(j->admin->query, &m, &body, error);
    query_hear(j->admin->query, NULL, NULL);
    if (!rc) rc = check_answer(j, body, error);
    if (rc) {
        json_decref(body);
        return rc;
    }
    json_decref(j->body);
    j->body = body;
    return HEDDLE_OK;
}

/* ---- the bulk plane ---- */

/* One turn of the loop: a batch of transfer events, then one piece of digests. */
static bool work(void *self)
{
    job_t *j = self;
    tr_event_t events[TURN_EVENTS];
    uint64_t now_us = now_of();
    int count = j->io.tr->events(j->io.t, now_us, events, TURN_EVENTS);
    for (int i = 0; i < count && j->download; i++) download_transfer(j->download, &events[i], now_us);
    bool has_worked = j->download && download_work(j->download, now_us);
    return count > 0 || has_worked;
}

/* False keeps the loop awake: the transfer has something to do. */
static bool arm(void *self)
{
    job_t *j = self;
    return j->io.tr->deadline(j->io.t) > now_of() && j->io.tr->arm(j->io.t);
}

/* This process is no member, and its token must not be that of one: the highest bit is above all epochs
 * of a broker. */
static int open_transfer(job_t *j, heddle_error_t *error)
{
    const heddle_admin_t *a = j->admin;
    loop_t *loop = query_loop(a->query);
    shell_opts_t opts = {.broker = a->broker,
                         .transfer = true,
                         .data_device = j->opts.data_device,
                         .insecure = j->opts.insecure != 0,
                         .max_rate_bytes = j->opts.max_rate_bytes,
                         .keys = {.broker_key = a->broker_key, .key = a->key}};
    j->io.clock = clock_system();
    j->io.owner = loop_owner(loop);
    int rc = shell_open_transfer(&opts, &j->io, error);
    if (rc) return rc;
    uint64_t token;
    random_bytes(&token, sizeof token);
    j->io.tr->set_token(j->io.t, token | TOKEN_OF_NO_MEMBER);
    if (loop_add_source(loop, j->io.tr->fd(j->io.t), work, arm, j))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for a loop");
    j->has_loop_source = true;
    return HEDDLE_OK;
}

/* Sends and receives finish before the memory is unregistered. Connections to sources that do not move
 * are closed. */
static void close_transfer(job_t *j)
{
    download_destroy(&j->download);
    if (j->has_loop_source) loop_remove_source(query_loop(j->admin->query), j);
    if (!j->io.t) return;
    if (j->slots) slots_settle(j->slots);
    bool is_idle = !j->slot || j->io.tr->idle(j->io.t, j->slot->region);
    for (uint32_t i = 0; i < j->what.source_count && !is_idle; i++)
        j->io.tr->drop_peer(j->io.t, j->what.sources[i].token);
    if (!is_idle) slots_settle(j->slots);
    if (j->slots) slots_unmap_all(j->slots);
    j->io.tr->close(&j->io.t);
}

/* ---- memory ---- */

static void wake(void *self) { (void)self; }

/* Checked between pieces of work: the call can be interrupted, and has a deadline. */
static int is_over(job_t *j, heddle_error_t *error)
{
    if (query_take_interrupt(j->admin->query)) {
        error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted while %s@%llu was fetched", j->ref.name,
                   (unsigned long long)j->what.version);
        error_where(error, j->ref.name, j->what.version, NULL, "fetch");
        error_hint(error, "nothing was written, and the broker has nothing to undo: pull again");
        return HEDDLE_ERR_INTERRUPTED;
    }
    return now_of() >= j->end_us ? fail_late(j, error) : HEDDLE_OK;
}

/* One slot of a table of its own: nothing else of this process shares it. */
static int make_memory(job_t *j, heddle_error_t *error)
{
    const char *name = j->ref.name;
    slots_ops_t ops = {.io = &j->io, .wake = wake};
    if (slots_new(&name, 1, &ops, &j->slots))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for a version");
    slot_t *slot;
    int rc = slots_begin(j->slots, 0, 0, &slot, error);
    if (rc) return rc;
    while ((rc = slot_reserve(slot, announced_bytes(&j->what.part), error)) == HEDDLE_ERR_AGAIN) {
        rc = is_over(j, error);
        if (rc) return rc;
    }
    if (!rc) j->slot = slot;
    return rc;
}

/* ---- the fetch ---- */

/* Every known source was lost: the broker may know of another one. It is asked at most twice a second. */
static int find_sources(job_t *j, heddle_error_t *error)
{
    download_t *p = j->download;
    uint64_t lost[LIMIT_SOURCES * 2];
    if (!p->needs_sources) return HEDDLE_OK;
    uint32_t count = download_lost(p, lost, LIMIT_SOURCES * 2);
    if (count && !p->last_token) unreached_look(&j->unreached, lost, count, CLOCK_NEVER, now_of());
    if (now_of() < j->asked_us + ASK_AGAIN_US) return HEDDLE_OK; /* the download says it again */
    int rc = ask(j, error);
    if (!rc) download_new_sources(p, now_of());
    return rc;
}

/* Turns the loop until the version is sealed, failed, interrupted or late. */
static int fetch(job_t *j, heddle_error_t *error)
{
    loop_t *loop = query_loop(j->admin->query);
    download_opts_t opts = {.io = &j->io,
                            .what = &j->what,
                            .slot = j->slot,
                            .counters = &j->counters,
                            .unreached = &j->unreached};
    if (download_new(&opts, now_of(), &j->download))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for a fetch");
    while (j->download->state < DOWNLOAD_DONE) {
        uint64_t due_us = download_tick(j->download, now_of()), transfer_us = j->io.tr->deadline(j->io.t);
        if (transfer_us < due_us) due_us = transfer_us;
        int rc = is_over(j, error);
        if (!rc) rc = find_sources(j, error);
        if (rc) return rc;
        loop_turn(loop, due_us < j->end_us ? due_us : j->end_us);
        uint64_t bytes = j->download->bytes_done;
        if (!j->opts.progress || bytes == j->told_bytes) continue;
        j->told_bytes = bytes;
        j->opts.progress(j->opts.progress_self, bytes, j->what.part.region_bytes);
    }
    if (j->download->state == DOWNLOAD_DONE) return HEDDLE_OK;
    *error = j->download->error;
    error_where(error, j->ref.name, j->what.version, NULL, error->phase[0] ? error->phase : "fetch");
    return error->code;
}

/* ---- the answer ---- */

/* The export reads the sealed slot through a hold, as an application does. */
static int write_directory(job_t *j, const char *dir, heddle_error_t *error)
{
    heddle_snapshot_t *snapshot = NULL;
    int rc = slots_acquire(j->slots, 0, j->what.version, &snapshot);
    if (rc) return error_fail(error, rc, "the fetched version cannot be read");
    rc = heddle_snapshot_export(snapshot, dir);
    slot_release(&snapshot);
    if (rc) *error = *heddle_last_error();
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const served_t *)a)->name, ((const served_t *)b)->name);
}

/* The broker's description of the version, with the path, the time and what each source served. NULL: no
 * memory. */
static char *answer_of(job_t *j, const char *dir)
{
    json_t *list = json_array();
    qsort(j->what.served, j->what.served_count, sizeof *j->what.served, compare_names);
    for (uint32_t i = 0; i < j->what.served_count; i++) {
        const served_t *s = &j->what.served[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:I}", "name", s->name, "kind",
                                              s->kind == SOURCE_PUBLISHER ? "publisher" : "worker", "bytes",
                                              (json_int_t)s->bytes));
    }
    json_object_set_new(j->body, "path", json_string(dir));
    json_object_set_new(j->body, "elapsed_ms", json_real((double)(now_of() - j->began_us) / 1000));
    json_object_set_new(j->body, "sources", list);
    return json_dumps(j->body, JSON_COMPACT | JSON_REAL_PRECISION(15));
}

/* The directory is checked before anything is fetched: a mistake should not cost a transfer. */
static int take_arguments(job_t *j, const char *ref, const char *dir, const heddle_pull_opts_t *given,
                          heddle_error_t *error)
{
    static const heddle_pull_opts_t none = {.size = sizeof none};
    if (!ref || !dir || !dir[0])
        return error_fail(error, HEDDLE_ERR_USAGE, "the name of an adapter and a directory are needed");
    int rc = sized_take(&j->opts, sizeof j->opts, given ? given : &none, "the struct of options", error);
    if (!rc) rc = ref_parse(ref, &j->ref, error);
    if (!rc) rc = snapshot_check_place(dir, error);
    if (!j->opts.deadline_ms) j->opts.deadline_ms = DEADLINE_MS;
    j->began_us = now_of();
    j->end_us = j->began_us + (uint64_t)j->opts.deadline_ms * 1000;
    return rc;
}

/* The data plane is closed before the files are written: from then on no source is kept busy by this
 * call. */
int heddle_admin_pull(heddle_admin_t *a, const char *ref, const char *dir, const heddle_pull_opts_t *opts,
                      char **ret_json)
{
    job_t j = {.admin = a};
    heddle_error_t error;
    char *text = NULL;
    if (!a || !ret_json) {
        error_fail(&error, HEDDLE_ERR_USAGE, "an admin handle and a place for the answer are needed");
        return error_publish(&error);
    }
    int rc = take_arguments(&j, ref, dir, opts, &error);
    if (rc) return error_publish(&error);
    rc = ask(&j, &error);
    if (!rc) rc = open_transfer(&j, &error);
    if (!rc) rc = make_memory(&j, &error);
    if (!rc) rc = fetch(&j, &error);
    close_transfer(&j);
    loop_hand_over(query_loop(a->query)); /* the next call may be another thread's */
    if (!rc) rc = write_directory(&j, dir, &error);
    if (!rc && !(text = answer_of(&j, dir)))
        rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the answer");
    slots_close(&j.slots);
    json_decref(j.body);
    if (rc) return error_publish(&error);
    *ret_json = text;
    return HEDDLE_OK;
}
