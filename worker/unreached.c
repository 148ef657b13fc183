/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/unreached.h"

#include "core/errors.h"
#include "core/log.h"

void unreached_begin(unreached_t *u) { *u = (unreached_t){.reported = u->reported}; }

/* NULL when the last list does not have it. */
static const source_t *find_source(const announced_t *w, uint64_t token)
{
    for (uint32_t i = 0; i < w->source_count; i++)
        if (w->sources[i].token == token) return &w->sources[i];
    return NULL;
}

/* A refusal is kept as the reason, except for those that may pass. Bytes or a keepalive of a listed
 * source end the trouble. */
void unreached_hear(unreached_t *u, const pull_t *pull, const tr_event_t *event)
{
    bool is_life = event->kind == TR_BEAT || event->kind == TR_ARRIVED;
    bool is_no = event->kind == TR_REFUSED && event->err != HEDDLE_ERR_GONE && event->err != HEDDLE_ERR_AGAIN;
    if (!(is_life || is_no) || !find_source(pull_what(pull), event->token)) return;
    if (is_life) unreached_begin(u);
    else u->refused = event->err;
}

/* "trainer-x, w2". Sources that the last list left out were reported by an earlier call. True when one of
 * them is new: only then is there something new to report. */
static bool name_sources(unreached_t *u, const announced_t *w, const uint64_t *lost, uint32_t count,
                         buf_t *names)
{
    bool is_new = false;
    for (uint32_t i = 0; i < count; i++) {
        const source_t *source = find_source(w, lost[i]);
        if (!source) continue;
        buf_printf(names, "%s%s", names->bytes ? ", " : "", source->name);
        bool is_told = u->told_count == UNREACHED_TOLD_MAX;
        for (uint32_t t = 0; t < u->told_count; t++) is_told |= u->told[t] == source->token;
        if (is_told) continue;
        u->told[u->told_count++] = source->token;
        is_new = true;
    }
    return is_new;
}

/* Why a lost source cannot be reached, where the transfer can say; "" where it cannot. The last reason
 * found stands for all. */
static void explain(const node_io_t *io, const announced_t *w, const uint64_t *lost, uint32_t count,
                    char *ret_why, size_t size)
{
    ret_why[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        char why[192] = "";
        const source_t *source = find_source(w, lost[i]);
        if (source) io->tr->explain(io->t, bytes_of(source->address, source->address_bytes), why, sizeof why);
        if (why[0]) error_text(ret_why, size, why);
    }
}

/* Three causes need three different answers of the operator: the source refused, the two have no network
 * in common, or the network does not answer. */
static void describe(unreached_t *u, const node_io_t *io, const announced_t *w, const char *names,
                     const char *why)
{
    char devices[256] = "";
    io->tr->devices(io->t, devices, sizeof devices);
    if (u->refused)
        error_fail(&u->error, HEDDLE_ERR_UNAVAILABLE, "no source serves it: %s answered %s", names,
                   heddle_err_name(u->refused));
    else if (why[0])
        error_fail(&u->error, HEDDLE_ERR_UNAVAILABLE,
                   "cannot reach %s over %s: %s; name the same network with --data-device everywhere", names,
                   devices, why);
    else /* The message has the remedy too, because most logs show the message alone. */
        error_fail(&u->error, HEDDLE_ERR_UNAVAILABLE,
                   "cannot reach %s over %s: no answer there; "
                   "name the same network with --data-device everywhere",
                   names, devices);
    error_where(&u->error, NULL, w->version, NULL, "fetch");
    if (!u->refused)
        error_hint(&u->error, "name the same network with --data-device for the publisher and every worker");
}

const heddle_error_t *unreached_error(const unreached_t *u, const pull_t *pull)
{
    return u->told_count && !pull_source(pull) ? &u->error : NULL;
}

/* Reported once for each new source, and given up shortly before the deadline: one worker's trouble must
 * not end a rollout early. */
bool unreached_look(unreached_t *u, const node_io_t *io, const pull_t *pull, const uint64_t *lost,
                    uint32_t count, uint64_t deadline_us, uint64_t now_us)
{
    if (pull_source(pull) || count == 0) return false;
    const announced_t *w = pull_what(pull);
    buf_t names = {0};
    if (name_sources(u, w, lost, count, &names)) {
        char scratch[REPEAT_TEXT];
        char why[192];
        explain(io, w, lost, count, why, sizeof why);
        describe(u, io, w, buf_text(&names), why);
        bool is_gone = u->refused == HEDDLE_ERR_NOT_FOUND; /* as a rule it was just retired */
        uint64_t times = repeat_note(&u->reported, repeat_key(u->error.message), now_us);
        if (times)
            log_emit(is_gone ? LOG_INFO : LOG_WARN, "fetch.unreached", "version %llu: %s%s",
                     (unsigned long long)w->version, u->error.message, repeat_text(times, scratch));
    }
    buf_fini(&names);
    return u->told_count && deadline_us != CLOCK_NEVER && now_us + UNREACHED_BEFORE_US >= deadline_us;
}
