/* SPDX-License-Identifier: Apache-2.0 */
/* heddle/publisher.h: open and close, waiting, events.  Publications: publication.c. */
#include "trainer_client/handle.h"

#include "client/broker_address.h"
#include "client/credentials.h"
#include "client/opening.h"
#include "core/crew.h"
#include "core/digest.h"
#include "core/log.h"
#include "core/sized.h"
#include "trainer_client/fill.h"

#include <stdlib.h>
#include <unistd.h>

#define TIMEOUT_MS 5000u
#define CLOSE_MS 3000u

/* -- open ------------------------------------------------------------------------------------- */

/* Without a name of its own a writer has that of its host and process, so that logs can tell two apart. */
static int make_node(heddle_publisher_t *p, const heddle_publisher_opts_t *o, heddle_error_t *error)
{
    char writer[HEDDLE_NAME_MAX + 1], host[HEDDLE_NAME_MAX + 1];
    name_default(writer);
    name_host(host);
    publisher_node_opts_t opts = {.adapter = o->adapter, .writer = o->writer ? o->writer : writer,
                                  .host = host, .takeover = o->takeover != 0,
                                  .pid = (uint64_t)getpid(), .changed = handle_changed, .self = p};
    random_bytes(&opts.life, sizeof opts.life);
    random_bytes(&opts.seed, sizeof opts.seed);
    int rc = publisher_node_new(&opts, shell_io(p->shell), &p->node);
    return rc ? error_fail(error, rc, "no memory for a publisher") : HEDDLE_OK;
}

/* A third of it to leave, the rest for the transfer. */
static uint32_t close_ms(const heddle_publisher_opts_t *o) { return o->close_ms ? o->close_ms : CLOSE_MS; }
static uint32_t leave_ms(const heddle_publisher_opts_t *o) { return close_ms(o) / 3; }

/* The shell first, then the node on it, then the thread that runs both. */
static int start(heddle_publisher_t *p, const heddle_publisher_opts_t *o, heddle_error_t *error)
{
    char roles[112];
    credentials_roles("publisher", (const char *const[]){o->adapter, NULL}, roles);
    shell_opts_t opts = {.broker = o->broker, .transfer = true, .data_device = o->data_device,
                         .insecure = o->insecure != 0,
                         .keys = {.broker_key = o->broker_key, .key = o->key, .roles = roles},
                         .max_rate_bytes = o->max_rate_bytes,
                         .quiet_events = o->quiet_events != 0,
                         .close_ms = close_ms(o) - leave_ms(o)};
    int rc = handle_open_fds(p);
    if (rc) return error_fail(error, rc, "no descriptor is left for a publisher");
    if (o->read_dir) handle_read_ahead(p, o->read_dir);
    rc = shell_open(&opts, &p->shell, error);
    if (!rc) rc = make_node(p, o, error);
    if (!rc) rc = shell_start(p->shell, &publisher_node_ops, p->node, error);
    p->is_running = !rc;
    return rc;
}

/* The environment is read under the lock of opening, since UCX changes it meanwhile. */
static int make_handle(const heddle_publisher_opts_t *o, heddle_publisher_t **ret_publisher,
                       heddle_error_t *error)
{
    heddle_publisher_t *p = calloc(1, sizeof *p);
    if (!p) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for a publisher");
    p->changed_fd = p->interrupt_fd = -1;
    p->timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
    if (p->timeout_ms > INT32_MAX) p->timeout_ms = INT32_MAX;
    p->fill_threads = o->fill_threads ? o->fill_threads : crew_cores();
    p->close_ms = close_ms(o);
    p->leave_ms = leave_ms(o);
    error_text(p->adapter, sizeof p->adapter, o->adapter);
    opening_begin();
    error_text(p->broker, sizeof p->broker, broker_address(o->broker));
    opening_end();
    *ret_publisher = p;
    return HEDDLE_OK;
}

/* Does not wait for the broker: a trainer can go on loading meanwhile. */
int heddle_publisher_start(const heddle_publisher_opts_t *opts, heddle_publisher_t **ret_publisher)
{
    heddle_error_t error;
    heddle_publisher_opts_t o;
    heddle_publisher_t *p = NULL;
    if (!ret_publisher)
        return handle_misuse("heddle_publisher_start", "there is nowhere to put the handle");
    int rc = sized_take(&o, sizeof o, opts, "heddle_publisher_opts_t", &error);
    if (!rc) rc = name_check("adapter", o.adapter, &error);
    if (!rc && o.writer) rc = name_check("writer", o.writer, &error);
    if (!rc) rc = make_handle(&o, &p, &error);
    if (!rc) rc = start(p, &o, &error);
    if (rc) goto fail;
    *ret_publisher = p;
    return HEDDLE_OK;
fail:
    heddle_publisher_close(&p);
    error_where(&error, o.adapter, 0, NULL, NULL);
    return error_publish(&error);
}

/* The error tells silence from no connection, because the remedies differ. */
int heddle_publisher_opened(heddle_publisher_t *p)
{
    heddle_error_t error;
    if (!p) return handle_misuse("heddle_publisher_opened", "there is no publisher");
    command_t c = {.kind = COMMAND_OPENED, .error = &error};
    error = (heddle_error_t){0};
    int rc = handle_run_until(p, &c, handle_until((int)p->timeout_ms));
    if (!rc) return HEDDLE_OK;
    if (rc == HEDDLE_ERR_AGAIN && !error.code) {
        bool is_reached = shell_is_reached(p->shell);
        error_fail(&error, HEDDLE_ERR_UNAVAILABLE, "no broker answers at %s", p->broker);
        error_expected(&error, "an answer within %u ms", p->timeout_ms);
        error_found(&error, is_reached ? "a connection, and silence" : "no connection");
        if (is_reached)
            error_hint(&error,
                       "a broker on a busy host or disk is slow to answer: see its log, or give it longer "
                       "with --timeout; or is it another program that listens there?");
        else
            credentials_hint_elsewhere(
                p->broker, "start one with `heddle broker`, or name it with --broker or HEDDLE_BROKER",
                &error);
    }
    error_where(&error, p->adapter, 0, NULL, NULL);
    return error_publish(&error);
}

int heddle_publisher_open(const heddle_publisher_opts_t *opts, heddle_publisher_t **ret_publisher)
{
    heddle_publisher_t *p = NULL;
    if (!ret_publisher)
        return handle_misuse("heddle_publisher_open", "there is nowhere to put the handle");
    int rc = heddle_publisher_start(opts, &p);
    if (!rc) rc = heddle_publisher_opened(p);
    if (!rc) {
        *ret_publisher = p;
        return HEDDLE_OK;
    }
    heddle_error_t why = *heddle_last_error();   /* closing may leave another one */
    heddle_publisher_close(&p);
    return error_publish(&why);
}

/* -- close ------------------------------------------------------------------------------------ */

/* How long to wait for a worker to take the last version. Without one that fetches it the broker may
 * still be about to announce it, which it does soon or not at all. */
static uint64_t hold_end(const heddle_publisher_t *p, const command_t *h, uint64_t until_us)
{
    uint64_t end_us = h->wanted_us + p->leave_ms * 1000ull / 4;
    return h->is_wanted || end_us > until_us ? until_us : end_us;
}

/* An absent broker or a stopped worker must not hold up the end: nothing here takes longer than leave_ms. */
static void leave(heddle_publisher_t *p)
{
    command_t go = {.kind = COMMAND_LEAVE}, gone = {.kind = COMMAND_HAS_LEFT};
    uint64_t until_us = handle_until((int)p->leave_ms);
    handle_forget_interrupt(p); /* meant for the call before: what is bounded needs no interrupting */
    if (handle_run(p, &go) == HEDDLE_OK) handle_run_until(p, &gone, until_us);
    shell_stop(p->shell);
}

/* A version whose only source is this process would end with it, so that close waits for a worker to take
 * it, unless the publisher was interrupted. */
void heddle_publisher_close(heddle_publisher_t **p)
{
    if (!p || !*p) return;
    heddle_publisher_t *it = *p;
    *p = NULL;
    handle_drop_ahead(it);
    heddle_publication_abort(&it->open);
    if (it->is_running) {
        /* The version that was committed last would end with its only source. */
        heddle_error_t error = {0};
        command_t h = {.kind = COMMAND_IS_HELD, .error = &error, .wanted_us = handle_now()};
        uint64_t until_us = handle_until((int)it->close_ms);
        if (!handle_is_interrupted(it)) {
            int rc = handle_run(it, &h);
            while (rc == HEDDLE_ERR_AGAIN && handle_now() < hold_end(it, &h, until_us))
                rc = handle_run_until(it, &h, hold_end(it, &h, until_us));
            bool is_lost = rc == HEDDLE_ERR_AGAIN || rc == HEDDLE_ERR_VERSION_FAILED;
            if (is_lost && error.version != it->told_version)
                log_emit(LOG_WARN, "publisher.unheld", "%s; %s", error.message, error.hint);
        }
    }
    if (it->is_running) leave(it);
    publisher_node_destroy(&it->node);
    shell_close(&it->shell);
    handle_close_fds(it);
    free(it);
}

void heddle_publisher_interrupt(heddle_publisher_t *p)
{
    if (p) handle_interrupt(p);
}

/* -- what became of a version ----------------------------------------------------------------- */

/* The report is filled also where the wait failed: it says how far the version came. */
static int look(heddle_publisher_t *p, command_t *c, int timeout_ms)
{
    int rc = handle_run_until(p, c, handle_until(timeout_ms));
    if (rc != HEDDLE_ERR_AGAIN && rc != HEDDLE_ERR_INTERRUPTED) return rc;
    heddle_error_t ignored, *error = c->error;
    c->kind = COMMAND_LATE;
    if (rc == HEDDLE_ERR_INTERRUPTED) c->error = &ignored;
    int late = handle_run(p, c);
    c->error = error;
    return rc == HEDDLE_ERR_INTERRUPTED ? rc : late;
}

/* On the heap: a report is 26 KB, and stacks of callers may be small. */
static int look_and_tell(heddle_publisher_t *p, command_t *l, int timeout_ms, heddle_report_t *ret_report)
{
    heddle_error_t error = {0};
    l->report = calloc(1, sizeof *l->report);
    if (!l->report) {
        error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory for a report");
        return error_publish(&error);
    }
    l->error = &error;
    l->waited_ms = timeout_ms > 0 ? (uint32_t)timeout_ms : 0;
    int rc = look(p, l, timeout_ms);
    sized_give(ret_report, l->report, sizeof *l->report);
    free(l->report);
    return rc ? error_publish(&error) : HEDDLE_OK;
}

int heddle_publisher_wait(heddle_publisher_t *p, uint64_t version, int phase,
                          heddle_quorum_t quorum, int timeout_ms, heddle_report_t *ret_report)
{
    if (!p) return handle_misuse("heddle_publisher_wait", "there is no publisher");
    if (phase != HEDDLE_PHASE_STAGED && phase != HEDDLE_PHASE_ACTIVE)
        return handle_misuse("heddle_publisher_wait",
                             "the phase is neither HEDDLE_PHASE_STAGED nor HEDDLE_PHASE_ACTIVE");
    if (quorum.kind != HEDDLE_QUORUM_NONE) p->told_version = version;
    command_t l = {.kind = COMMAND_JUDGE, .version = version,
                   .want = {.phase = (heddle_phase_t)phase, .quorum = quorum}};
    return look_and_tell(p, &l, timeout_ms, ret_report);
}

int heddle_publisher_report(heddle_publisher_t *p, uint64_t version, heddle_report_t *ret_report)
{
    if (!p) return handle_misuse("heddle_publisher_report", "there is no publisher");
    command_t l = {.kind = COMMAND_REPORT, .version = version, .want = {.phase = HEDDLE_PHASE_STAGED}};
    return look_and_tell(p, &l, 0, ret_report);
}

/* -- events ----------------------------------------------------------------------------------- */

int heddle_publisher_fd(const heddle_publisher_t *p) { return p ? shell_fd(p->shell) : -1; }

/* The interrupt of the handle ends this wait too, not only that of the shell. */
int heddle_publisher_next_event(heddle_publisher_t *p, int timeout_ms, heddle_event_t *ret_event)
{
    heddle_error_t error;
    heddle_event_t event;
    if (!p) return handle_misuse("heddle_publisher_next_event", "there is no publisher");
    uint64_t until_us = handle_until(timeout_ms);
    int rc = shell_next_event(p->shell, 0, &event);
    while (rc == HEDDLE_ERR_AGAIN && (rc = handle_sleep(p, shell_fd(p->shell), until_us)) == HEDDLE_OK)
        rc = shell_next_event(p->shell, 0, &event);
    if (rc) {
        error_fail(&error, rc, rc == HEDDLE_ERR_INTERRUPTED ? "interrupted" : "no event of %s came",
                   p->adapter);
        return error_publish(&error);
    }
    sized_give(ret_event, &event, sizeof event);
    return HEDDLE_OK;
}
