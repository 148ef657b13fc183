/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/registry/writer.h"

#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"

/* A live writer keeps its adapter, except against its own process and --takeover.  A second trainer that
 * is started by mistake then cannot take versions over. */
int writer_check_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, heddle_error_t *error)
{
    const adapter_row_t *a = registry_adapter(r, m->adapter);
    if (!a && !registry_has_room(r)) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "%s would be one adapter too many", m->adapter);
        error_expected(error, "at most %u adapters at one broker, and numbers of %u", LIMIT_ADAPTERS,
                       LIMIT_ADAPTER_ROWS);
        return rc;
    }
    int other = registry_check_kind(a, m->kind, error);
    if (other) return other;
    bool has_holder = a && a->writer.token && by->holder_is_live &&
                      memcmp(&a->writer.life, &by->life, sizeof by->life) != 0;
    if (!has_holder || m->takeover) return HEDDLE_OK;
    char since[25];
    clock_text(a->writer.since_ms, since);
    int rc = error_fail(error, HEDDLE_ERR_WRITER_HELD, "%s has a writer: %s on %s, pid %llu, since %s",
                        a->name, a->writer.name, a->writer.host, (unsigned long long)a->writer.pid, since);
    error_where(error, a->name, 0, NULL, NULL);
    error_expected(error, "no live writer");
    const char *when = by->is_of_before ? "no message since the broker's start" : "last message";
    error_found(error, "%s, %s %llu ms ago", a->writer.name, when, (unsigned long long)by->heartbeat_age_ms);
    const version_row_t *newest = registry_newest(a);
    if (!(newest && newest->state == VERSION_STAGING)) {
        error_hint(error, "the writer keeps the adapter until its session ends; opts.takeover ends it now");
        return rc;
    }
    /* A command that was started again under its request id finds its first try there.  A part of an id would
     * be of no use, so where the hint has no room for the whole one it is left out. */
    unsigned long long version = newest->version;
    char whole[512];
    text_printf(
        whole, sizeof whole,
        "`heddle wait %s@%llu` follows what it publishes (request id %s); opts.takeover ends its session",
        a->name, version, newest->request_id);
    if (strlen(whole) < sizeof error->hint) error_hint(error, "%s", whole);
    else
        error_hint(error, "`heddle wait %s@%llu` follows what it publishes; opts.takeover ends its session",
                   a->name, version);
    return rc;
}

int writer_decide_open(const registry_t *r, const msg_open_t *m, const open_by_t *by, instant_t now,
                       outbox_t *out, heddle_error_t *error)
{
    int rc = writer_check_open(r, m, by, error);
    if (rc) return rc;
    if (!registry_adapter(r, m->adapter)) outbox_record(out, RECORD_ADAPTER, m->adapter, now);
    record_t *rec = outbox_record(out, RECORD_WRITER, m->adapter, now);
    rec->token = by->token;
    rec->writer = m->writer;
    rec->pid = by->pid;
    rec->host = by->host;
    rec->life = by->life;
    return HEDDLE_OK;
}

bool writer_is_session(const adapter_row_t *a, uint64_t token)
{
    return a && token && a->writer.token == token;
}

int writer_check_publish(const adapter_row_t *a, uint64_t token, const char *adapter, heddle_error_t *error)
{
    if (writer_is_session(a, token)) return HEDDLE_OK;
    if (!token) return HEDDLE_ERR_FENCED;
    return error_fail(error, HEDDLE_ERR_PROTOCOL, "PUBLISH to %s by a session that did not open it", adapter);
}

void writer_decide_close(const adapter_row_t *a, instant_t now, outbox_t *out)
{
    outbox_record(out, RECORD_WRITER, a->name, now);
    /* The row goes with its name.  Without room for the record it goes at the next start. */
    if (registry_is_blank(a)) outbox_record(out, RECORD_ADAPTER_DROP, outbox_text(out, a->name), now);
}
