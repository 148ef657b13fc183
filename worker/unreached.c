/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/unreached.h"

#include "core/errors.h"
#include "core/listing.h"
#include "core/log.h"

#include <string.h>

/* What was written in the log stays known, so that each fetch does not write it again. */
void unreached_begin(unreached_t *u, const node_io_t *io, const announced_t *what)
{
    *u = (unreached_t){.io = io, .what = what, .reported = u->reported};
}

/* True when one of them is new: only then is there something new to report. */
static bool note_sources(unreached_t *u, const uint64_t *lost, uint32_t count)
{
    bool is_new = false;
    for (uint32_t i = 0; i < count; i++) {
        const announced_source_t *source = announced_source(u->what, lost[i]);
        if (!source) continue;
        bool is_reported = u->reported_count == UNREACHED_REPORTED_MAX;
        for (uint32_t t = 0; t < u->reported_count; t++) is_reported |= u->reported_to[t] == source->token;
        if (is_reported) continue;
        u->reported_to[u->reported_count++] = source->token;
        is_new = true;
    }
    return is_new;
}

/* A worker whose session is another one since has a second row. */
static bool is_named_before(const announced_t *w, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (w->served[i].kind == w->served[at].kind && !strcmp(w->served[i].name, w->served[at].name))
            return true;
    return false;
}

/* "trainer-x, w2 and 3 others": all that were asked, also those that the last list left out.  The publisher
 * comes first, since all others have the bytes from it. */
static const char *name_sources(const announced_t *w, char *ret_text, size_t size)
{
    listing_t list = {.text = ret_text, .size = size, .most = 6};
    for (int workers = 0; workers < 2; workers++)
        for (uint32_t i = 0; i < w->served_count; i++)
            if ((w->served[i].kind == SOURCE_WORKER) == (workers == 1) && !is_named_before(w, i))
                listing_add(&list, "%s", w->served[i].name);
    return listing_text(&list);
}

/* Three causes need three different answers of the operator: the source refused, the two have no network
 * in common, or the network does not answer. */
static void describe(unreached_t *u)
{
    const node_io_t *io = u->io;
    const announced_t *w = u->what;
    char devices[256] = "", why[192] = "", scratch[512];
    const char *names = name_sources(w, scratch, sizeof scratch);
    io->tr->devices(io->t, devices, sizeof devices);
    /* Where the transfer can say why a source cannot be reached, the last reason stands for all. */
    for (uint32_t i = 0; i < w->source_count; i++) {
        char text[sizeof why] = "";
        const announced_source_t *s = &w->sources[i];
        io->tr->explain(io->t, bytes_of(s->address, s->address_bytes), text, sizeof text);
        if (text[0]) error_text(why, sizeof why, text);
    }
    if (u->refused)
        error_fail(&u->error, HEDDLE_ERR_UNAVAILABLE, "no source serves it: %s answered %s", names,
                   heddle_err_name(u->refused));
    else if (why[0])
        error_fail(&u->error, HEDDLE_ERR_UNAVAILABLE,
                   "cannot reach %s over %s: %s; all need the same network as their data device", names,
                   devices, why);
    else /* The message has the remedy too, because most logs show the message alone. */
        error_fail(&u->error, HEDDLE_ERR_UNAVAILABLE,
                   "cannot reach %s over %s: no answer there; "
                   "unless it has ended, all need the same network as their data device",
                   names, devices);
    error_where(&u->error, NULL, u->what->version, NULL, "fetch");
    if (!u->refused)
        error_hint(&u->error,
                   "name the same network with opts.data_device for the publisher and every worker");
}

/* Heartbeats have the reason at once.  The log has it at the next look: a publisher that has ended is no
 * trouble of the network, and the broker's answer may list another source. */
void unreached_look(unreached_t *u, const uint64_t *lost, uint32_t count, uint64_t now_us)
{
    bool is_listed = false;
    for (uint32_t i = 0; i < count; i++) is_listed |= announced_source(u->what, lost[i]) != NULL;
    if (note_sources(u, lost, count)) {
        describe(u);
        u->is_unwritten = true;
    } else if (u->is_unwritten && is_listed) { /* it is still lost */
        char scratch[REPEAT_TEXT];
        bool is_gone = u->refused == HEDDLE_ERR_NOT_FOUND; /* as a rule it was just retired */
        uint64_t times = repeat_note(&u->reported, repeat_key(u->error.message), now_us);
        if (times)
            log_emit(is_gone ? LOG_INFO : LOG_WARN, "fetch.unreached", "version %llu: %s%s",
                     (unsigned long long)u->what->version, u->error.message, repeat_text(times, scratch));
        u->is_unwritten = false;
    }
}

/* Shortly before the deadline: one worker's trouble must not end a rollout early. */
uint64_t unreached_end_us(const unreached_t *u, uint64_t deadline_us)
{
    bool has_end = u->reported_count && deadline_us != CLOCK_NEVER;
    return !has_end ? CLOCK_NEVER : deadline_us > UNREACHED_BEFORE_US ? deadline_us - UNREACHED_BEFORE_US : 0;
}

const heddle_error_t *unreached_error(unreached_t *u)
{
    describe(u);
    return &u->error;
}
