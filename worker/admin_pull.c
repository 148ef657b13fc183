/* SPDX-License-Identifier: Apache-2.0 */
/* heddle_admin_fetch and heddle_admin_pull: one version, fetched by a process that is no member, and given as
 * a snapshot, or written as a PEFT directory.
 *
 *   ask -> open the bulk plane -> take in (worker/intake.h) -> close the bulk plane -> give, or write
 *                                  ^ asked again while no source is left
 *
 * A version that a process of this host has in a region is held there, until the snapshot is released.
 *
 * The admin handle's loop carries all of it on the caller's thread: the intake and the transfer are a source
 * of work beside the connection to the broker. */
#include "client/admin.h"

#include "client/opening.h"
#include "client/sharing.h"
#include "client/shell.h"
#include "core/errors.h"
#include "core/sized.h"
#include "core/units.h"
#include "worker/intake.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEADLINE_MS = 60000,
    TURN_EVENTS = 64,
    ASK_AGAIN_US = 500000 /* between two questions for sources */
};

typedef struct {
    heddle_admin_t *admin;
    heddle_pull_opts_t opts;
    ref_t ref;
    uint64_t began_us, end_us, asked_us;
    json_t *body;               /* of the broker's answer, then ours */
    announced_t reported, what; /* of the last answer; being fetched: its sources alone change */
    bool has_parts;             /* `reported` has, of the last answer */
    heddle_error_t bad_parts;   /* not, and why */
    node_io_t io;
    bulk_t bulk; /* one slot, of a table of its own: nothing else of this process shares it */
    intake_t intake;
} pull_t;

static uint64_t now_of(void) { return clock_now(clock_system()); }

/* ---- where from ---- */

/* What to fetch (parts, share key, sources) is in fields of the message, and not in its JSON body, which
 * is printed. */
static void on_report(void *self, const msg_report_t *m)
{
    pull_t *p = self;
    p->reported = (announced_t){0};
    p->has_parts = !announced_parts(&p->reported, m->parts, m->part_count, &m->key, &p->bad_parts);
    if (!p->has_parts) return;
    announced_sources(&p->reported, m->sources, m->source_count);
}

/* The error says how far the fetch came, and why no source could be reached, where that is the cause. */
static int fail_late(const pull_t *p, heddle_error_t *error)
{
    char done[16], all[16];
    const heddle_error_t *why = intake_trouble(&p->intake);
    units_bytes_text(intake_bytes(&p->intake), done);
    units_bytes_text(announced_payload_bytes(&p->what), all);
    buf_t asked = {0};
    /* "w1, w2, asked for memory, did not answer": the sources, and how far this process is with them. */
    for (uint32_t i = 0; i < p->what.source_count; i++)
        buf_printf(&asked, "%s%s", i ? ", " : "", p->what.sources[i].name);
    if (!asked.bytes) buf_printf(&asked, "no source was known");
    else if (p->intake.state <= INTAKE_HOLDING) buf_printf(&asked, ", asked for memory, did not answer");
    else if (!intake_bytes(&p->intake)) buf_printf(&asked, ", asked for bytes, sent none");
    else buf_printf(&asked, " sent too slowly");
    error_fail(error, HEDDLE_ERR_DEADLINE, "%s@%llu was not fetched in %u ms: %s", p->ref.name,
               (unsigned long long)p->what.version, p->opts.deadline_ms, buf_text(&asked));
    buf_fini(&asked);
    error_where(error, p->ref.name, p->what.version, NULL, "fetch");
    error_expected(error, "%s", all);
    if (why) error_found(error, "%s", why->message);
    else error_found(error, "%s", done);
    error_hint(error, "%s", why ? why->hint : "a longer opts.deadline_ms gives it more time");
    return HEDDLE_ERR_DEADLINE;
}

/* A broker may be restarted between two questions. It must mean the same bytes each time, since some of
 * them are here already. */
static int check_answer(pull_t *p, json_t *body, heddle_error_t *error)
{
    digest_t digest = {0};
    const char *text = json_string_value(json_object_get(body, "digest"));
    uint64_t version = (uint64_t)json_integer_value(json_object_get(body, "version"));
    bool is_whole = p->has_parts && version && text && digest_parse(text, &digest);
    bool is_same = !p->what.version || (p->what.version == version && digest_equal(&p->what.h1, &digest));
    if (!is_whole || !is_same) {
        int rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "the broker's answer %s",
                            is_whole ? "names other bytes than before" : "does not say what to fetch");
        if (!p->has_parts && p->bad_parts.code) error_found(error, "%s", p->bad_parts.message);
        error_hint(error, "compare `heddle --version` with the broker's in `heddle status`");
        return rc;
    }
    if (p->what.version) {
        memcpy(p->what.sources, p->reported.sources, sizeof p->what.sources);
        p->what.source_count = p->reported.source_count;
        return HEDDLE_OK;
    }
    p->what = p->reported;
    p->what.version = p->ref.version = version;
    p->what.h1 = digest;
    p->what.step = -1;
    if (json_is_integer(json_object_get(body, "step")))
        p->what.step = json_integer_value(json_object_get(body, "step"));
    return HEDDLE_OK;
}

/* Each question gets what is left of the call's time. The sources of the answer replace the ones before. */
static int ask(pull_t *p, heddle_error_t *error)
{
    json_t *body = NULL;
    uint64_t now_us = now_of();
    if (now_us >= p->end_us) return fail_late(p, error);
    p->asked_us = now_us;
    p->has_parts = false;
    p->bad_parts.code = HEDDLE_OK;
    msg_query_t m = {.op = "pull",
                     .name = p->ref.name,
                     .version = p->ref.version,
                     .digest_head = p->ref.head,
                     .deadline_ms = (p->end_us - now_us + 999) / 1000,
                     .place = p->bulk.sharing ? sharing_place(p->bulk.sharing) : 0};
    query_on_report(p->admin->query, on_report, p);
    int rc = query_ask(p->admin->query, &m, &body, error);
    query_on_report(p->admin->query, NULL, NULL);
    if (!rc) rc = check_answer(p, body, error);
    if (rc) {
        json_decref(body);
        return rc;
    }
    json_decref(p->body);
    p->body = body;
    return HEDDLE_OK;
}

/* ---- the bulk plane ---- */

/* One turn of the loop: a batch of transfer events, then one piece of work. */
static bool work(void *self)
{
    pull_t *p = self;
    tr_event_t events[TURN_EVENTS];
    uint64_t now_us = now_of();
    int count = p->io.tr->events(p->io.t, now_us, events, TURN_EVENTS);
    for (int i = 0; i < count; i++) intake_transfer(&p->intake, &events[i], now_us);
    bool has_worked = intake_work(&p->intake, now_us);
    return count > 0 || has_worked;
}

/* False keeps the loop awake: the transfer has something to do. */
static bool arm(void *self)
{
    pull_t *p = self;
    return p->io.tr->deadline(p->io.t) > now_of() && p->io.tr->arm(p->io.t);
}

static void on_shared(void *self)
{
    pull_t *p = self;
    sharing_readable(p->bulk.sharing);
    (void)sharing_turn(p->bulk.sharing, now_of());
}

/* This process is no member, and its token must not be that of one: the highest bit is above all epochs
 * of a broker. */
static int open_transfer(pull_t *p, heddle_error_t *error)
{
    const heddle_admin_t *a = p->admin;
    loop_t *loop = query_loop(a->query);
    shell_opts_t opts = {.broker = a->broker,
                         .transfer = true,
                         .data_device = p->opts.data_device,
                         .insecure = p->opts.insecure != 0,
                         .max_rate_bytes = p->opts.max_rate_bytes,
                         .keys = {.broker_key = a->broker_key, .key = a->key}};
    p->io.clock = clock_system();
    p->io.owner = loop_owner(loop);
    int rc = shell_open_transfer(&opts, &p->io, error);
    if (rc) return rc;
    uint64_t token;
    random_bytes(&token, sizeof token);
    p->io.tr->set_token(p->io.t, token | ADMIN_TOKEN_BIT);
    int fds[SHARING_FDS] = {-1, -1};
    if (p->bulk.sharing) sharing_fds(p->bulk.sharing, fds);
    if (loop_add_source(loop, p->io.tr->fd(p->io.t), work, arm, p) ||
        (p->bulk.sharing && loop_add_fd(loop, fds[1], on_shared, p)))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the event loop");
    return HEDDLE_OK;
}

/* Sends and receives finish before the memory is unregistered. Connections to sources that do not move
 * are closed. */
static void close_transfer(pull_t *p)
{
    loop_t *loop = query_loop(p->admin->query);
    int fds[SHARING_FDS];
    intake_end(&p->intake);
    loop_remove_source(loop, p);
    if (p->bulk.sharing) {
        sharing_fds(p->bulk.sharing, fds);
        loop_remove_fd(loop, fds[1]);
    }
    if (!p->io.t) return;
    if (p->bulk.slots) {
        slots_drain(p->bulk.slots);
        const slot_t *slot = slots_at(p->bulk.slots, 0, 0);
        bool is_idle = !slot || !slot->parts[0].region || p->io.tr->idle(p->io.t, slot->parts[0].region);
        for (uint32_t i = 0; i < p->what.source_count && !is_idle; i++)
            p->io.tr->drop_peer(p->io.t, p->what.sources[i].token);
        if (!is_idle) slots_drain(p->bulk.slots);
        slots_unmap_all(p->bulk.slots);
    }
    p->io.tr->close(&p->io.t);
}

/* ---- the intake ---- */

static void wake(void *self) { (void)self; }

/* Checked between pieces of work: the call can be interrupted, and has a deadline. */
static int is_over(pull_t *p, heddle_error_t *error)
{
    if (query_take_interrupt(p->admin->query)) {
        error_fail(error, HEDDLE_ERR_INTERRUPTED, "interrupted while %s@%llu was fetched", p->ref.name,
                   (unsigned long long)p->what.version);
        error_where(error, p->ref.name, p->what.version, NULL, "fetch");
        error_hint(error, "nothing was written, and the broker has nothing to undo: call again");
        return HEDDLE_ERR_INTERRUPTED;
    }
    return now_of() >= p->end_us ? fail_late(p, error) : HEDDLE_OK;
}

/* A directory that was named has to be usable; without one a version is fetched where it cannot be held. */
static int open_sharing(pull_t *p, heddle_error_t *error)
{
    sharing_opts_t opts = {.directory = p->opts.host_share};
    random_bytes(&opts.life, sizeof opts.life);
    int rc = sharing_new(&opts, &p->bulk.sharing, error);
    return opts.directory ? rc : HEDDLE_OK;
}

/* Every known source was lost: the broker may know of another one. It is asked at most twice a second. */
static int find_sources(pull_t *p, heddle_error_t *error)
{
    uint64_t lost[LIMIT_SOURCES * 2];
    if (!intake_needs_sources(&p->intake)) return HEDDLE_OK;
    uint32_t count = intake_lost(&p->intake, lost, LIMIT_SOURCES * 2);
    intake_unreached(&p->intake, lost, count, now_of());
    if (now_of() < p->asked_us + ASK_AGAIN_US) return HEDDLE_OK; /* the download says it again */
    int rc = ask(p, error);
    if (!rc) intake_new_sources(&p->intake, now_of());
    return rc;
}

/* Turns the loop until the version is sealed, failed, interrupted or late. */
static int take_in(pull_t *p, heddle_error_t *error)
{
    const char *name = p->ref.name;
    uint64_t reported_bytes = 0;
    opening_begin(); /* the environment is read */
    slots_ops_t ops = {.io = &p->io, .wake = wake, .is_guarded = regions_are_guarded()};
    opening_end();
    if (slots_new(&name, 1, &ops, &p->bulk.slots))
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for a version");
    intake_begin(&p->intake, &p->what, 0);
    while (!intake_has_ended(&p->intake)) {
        uint64_t due_us = clock_earlier(intake_tick(&p->intake, now_of()), p->io.tr->deadline(p->io.t));
        if (p->intake.state == INTAKE_HOLDING)
            due_us = clock_earlier(due_us, sharing_turn(p->bulk.sharing, now_of()));
        int rc = is_over(p, error);
        if (!rc) rc = find_sources(p, error);
        if (rc) return rc;
        loop_turn(query_loop(p->admin->query), clock_earlier(due_us, p->end_us));
        uint64_t bytes = intake_bytes(&p->intake);
        if (p->opts.progress && bytes != reported_bytes)
            p->opts.progress(p->opts.progress_self, bytes, announced_payload_bytes(&p->what));
        reported_bytes = bytes;
    }
    if (p->intake.state == INTAKE_SEALED) return HEDDLE_OK;
    *error = p->intake.error;
    error_where(error, name, p->what.version, NULL, error->phase[0] ? NULL : "fetch");
    return error->code;
}

/* ---- the answer ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const served_t *)a)->name, ((const served_t *)b)->name);
}

/* The broker's description of the version, with the path, the time and what each source served. NULL: no
 * memory. */
static char *answer_of(pull_t *p, const char *dir)
{
    json_t *list = json_array();
    qsort(p->what.served, p->what.served_count, sizeof *p->what.served, compare_names);
    for (uint32_t i = 0; i < p->what.served_count; i++) {
        const served_t *s = &p->what.served[i];
        json_t *moved =
            json_pack("{s:I, s:I, s:I, s:I, s:I}", "late", (json_int_t)s->moved[MOVED_LATE], "gone",
                      (json_int_t)s->moved[MOVED_GONE], "refused", (json_int_t)s->moved[MOVED_REFUSED], "bad",
                      (json_int_t)s->moved[MOVED_BAD], "slow", (json_int_t)s->moved[MOVED_SLOW]);
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I, s:o}", "name", s->name, "kind",
                                              s->kind == SOURCE_PUBLISHER ? "publisher" : "worker", "way",
                                              s->is_held ? "host" : "network", "bytes", (json_int_t)s->bytes,
                                              "moved", moved));
    }
    json_object_set_new(p->body, "path", json_string(dir));
    json_object_set_new(p->body, "elapsed_ms", json_real((double)(now_of() - p->began_us) / 1000));
    json_object_set_new(p->body, "sources", list);
    return json_dumps(p->body, JSON_COMPACT | JSON_REAL_PRECISION(15));
}

static int take_arguments(pull_t *p, const char *ref, const heddle_pull_opts_t *given, heddle_error_t *error)
{
    static const heddle_pull_opts_t none = {.size = sizeof none};
    int rc = sized_take(&p->opts, sizeof p->opts, given ? given : &none, "the struct of options", error);
    if (!rc) rc = ref_parse(ref, &p->ref, error);
    if (!p->opts.deadline_ms) p->opts.deadline_ms = DEADLINE_MS;
    p->began_us = now_of();
    p->end_us = p->began_us + (uint64_t)p->opts.deadline_ms * 1000;
    return rc;
}

/* A hold on the sealed slot. It outlives the table of slots, which is closed in every case, and the data
 * plane: from then on no source is kept busy by this call. */
static int fetch(pull_t *p, heddle_snapshot_t **ret_snapshot, heddle_error_t *error)
{
    p->bulk.hashing = hashing_new();
    int rc = open_sharing(p, error);
    if (!rc) rc = ask(p, error);
    if (!rc) rc = open_transfer(p, error);
    if (!rc) rc = take_in(p, error);
    close_transfer(p);
    sharing_close(&p->bulk.sharing);
    hashing_destroy(&p->bulk.hashing);
    loop_hand_over(query_loop(p->admin->query)); /* the next call may be another thread's */
    if (!rc && slots_acquire(p->bulk.slots, 0, p->what.version, ret_snapshot))
        rc = error_fail(error, HEDDLE_ERR_INTERNAL, "the fetched version cannot be read");
    slots_close(&p->bulk.slots);
    return rc;
}

/* Its parts borrow from one another. It is large for the stack of a caller's thread. */
static int begin(heddle_admin_t *a, pull_t **ret_pull, heddle_error_t *error)
{
    pull_t *p = calloc(1, sizeof *p);
    if (!p) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory is left for a version");
    p->admin = a;
    p->bulk.io = &p->io;
    p->bulk.is_digested_here = true;
    p->intake.bulk = &p->bulk;
    *ret_pull = p;
    return HEDDLE_OK;
}

/* Accepts pointers to NULL. */
static void end(pull_t **pull)
{
    if (!*pull) return;
    json_decref((*pull)->body);
    free(*pull);
    *pull = NULL;
}

int heddle_admin_fetch(heddle_admin_t *a, const char *ref, const heddle_pull_opts_t *opts,
                       heddle_snapshot_t **ret_snapshot)
{
    pull_t *p = NULL;
    heddle_error_t error;
    if (!a || !ref || !ret_snapshot) {
        error_fail(&error, HEDDLE_ERR_USAGE,
                   "an admin handle, the name of an adapter and a place for the snapshot are needed");
        return error_publish(&error);
    }
    int rc = begin(a, &p, &error);
    if (!rc) rc = take_arguments(p, ref, opts, &error);
    if (!rc) rc = fetch(p, ret_snapshot, &error);
    end(&p);
    return rc ? error_publish(&error) : HEDDLE_OK;
}

/* The directory is checked before anything is fetched: a mistake should not cost a transfer. */
int heddle_admin_pull(heddle_admin_t *a, const char *ref, const char *dir, const heddle_pull_opts_t *opts,
                      char **ret_json)
{
    pull_t *p = NULL;
    heddle_snapshot_t *snapshot = NULL;
    heddle_error_t error;
    char *text = NULL;
    if (!a || !ret_json) {
        error_fail(&error, HEDDLE_ERR_USAGE, "an admin handle and a place for the answer are needed");
        return error_publish(&error);
    }
    if (!ref || !dir || !dir[0]) {
        error_fail(&error, HEDDLE_ERR_USAGE, "the name of an adapter and a directory are needed");
        return error_publish(&error);
    }
    int rc = begin(a, &p, &error);
    if (!rc) rc = take_arguments(p, ref, opts, &error);
    if (!rc) rc = snapshot_check_place(dir, &error);
    if (!rc) rc = fetch(p, &snapshot, &error);
    if (!rc && (rc = heddle_snapshot_export(snapshot, dir)) != HEDDLE_OK) error = *heddle_last_error();
    heddle_snapshot_release(&snapshot);
    if (!rc && !(text = answer_of(p, dir)))
        rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory is left for the answer");
    end(&p);
    if (rc) return error_publish(&error);
    *ret_json = text;
    return HEDDLE_OK;
}
