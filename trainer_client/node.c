/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer_client/node_part.h"

#include "core/errors.h"
#include "core/failpoint.h"
#include "core/limits.h"

#include <stdlib.h>

#define PROGRESS_US 50000u     /* at most 20 events a second */
#define RESEND_US 20000u       /* after a full queue */

/* -- out -------------------------------------------------------------------------------------- */

static int send(publisher_node_t *n, const msg_t *m)
{
    buf_clear(&n->frame);
    int rc = FAILPOINT_OF("publisher.say", msg_name((int)m->type)) ? HEDDLE_ERR_NO_MEMORY
                                                                   : msg_encode(m, &n->frame);
    return rc ? rc : n->io->send(n->io->self, buf_view(&n->frame));
}

static heddle_event_t event_of(const publisher_node_t *n, heddle_event_type_t type, uint64_t version)
{
    heddle_event_t e = {.size = sizeof e, .type = type, .at_ms = clock_wall(n->io->clock),
                        .token = n->session.token, .epoch = n->session.epoch, .version = version,
                        .step = -1};
    error_text(e.adapter, sizeof e.adapter, n->adapter);
    return e;
}

static void tell(publisher_node_t *n, heddle_event_type_t type, uint64_t version,
                 const heddle_error_t *why)
{
    heddle_event_t e = event_of(n, type, version);
    if (why) {
        e.code = why->code;
        e.retriable = why->retriable;
        error_text(e.message, sizeof e.message, why->message);
    }
    n->io->event(n->io->self, &e);
    n->is_changed = true;
}

/* Last in every call from the shell. */
static void wake_waiters(publisher_node_t *n)
{
    bool changed = n->is_changed;
    n->is_changed = false;
    if (changed && n->changed) n->changed(n->self);
}

/* -- the request ------------------------------------------------------------------------------ */

void request_finish(publisher_node_t *n, int rc, const heddle_error_t *error)
{
    request_t *r = &n->request;
    if (r->state != REQUEST_PENDING) return;
    bool is_kept = n->orphans[r->asked.slot].req != 0;
    if (rc && !is_kept && n->publications.slots[r->asked.slot].state == PUBLICATION_TAKEN)
        publications_give_back(&n->publications, r->asked.slot);
    r->state = REQUEST_DONE;
    r->rc = rc;
    if (error) r->error = *error;
    n->is_changed = true;
}

static uint32_t split(char *text, const char **ret_words, uint32_t cap)
{
    uint32_t count = 0;
    char *state = NULL, *word = strtok_r(text, ",", &state);
    for (; word && count < cap; word = strtok_r(NULL, ",", &state)) ret_words[count++] = word;
    return count;
}

/* "key=value" each, checked by the caller. */
static uint32_t split_meta(const char *const *meta, char (*ret_keys)[HEDDLE_NAME_MAX + 1],
                           msg_pair_t *ret_pairs)
{
    uint32_t count = 0;
    for (; meta && meta[count] && count < LIMIT_META; count++) {
        size_t n = strcspn(meta[count], "=");
        const char *value = meta[count] + n + (meta[count][n] == '=');
        if (n > HEDDLE_NAME_MAX) n = HEDDLE_NAME_MAX;
        memcpy(ret_keys[count], meta[count], n);
        ret_keys[count][n] = 0;
        ret_pairs[count] = (msg_pair_t){ret_keys[count], value};
    }
    return count;
}

/* 0 would be the broker's default. */
static uint64_t left_ms(uint64_t until_us, uint64_t now_us)
{
    return until_us > now_us ? (until_us - now_us + 999) / 1000 : 1;
}

static int send_publish(publisher_node_t *n, const publish_request_t *a, uint64_t now_us)
{
    char features[192], keys[LIMIT_META][HEDDLE_NAME_MAX + 1];
    const char *words[LIMIT_FEATURES];
    msg_pair_t pairs[LIMIT_META];
    msg_part_t part = a->sealed->part;
    memcpy(features, a->pack->features, sizeof features);
    msg_t m = {.type = MSG_PUBLISH};
    m.publish = (msg_publish_t){
        .token = n->session.token,
        .req = n->request.req,
        .deadline_ms = left_ms(a->until_us, now_us),
        .activation = (uint64_t)a->opts.activation,
        .if_unchanged = (uint64_t)a->opts.if_unchanged,
        .allow_step_back = a->opts.allow_step_back != 0,
        .adapter = n->adapter,
        .request_id = a->opts.request_id,
        .digest = a->sealed->digest,
        .parts = &part, .part_count = 1,
        .step = a->opts.step,
        .data_bytes = a->pack->layout.data_bytes,
        .tensor_count = a->pack->layout.count,
        .chunk_count = a->sealed->chunk_count,
        .kind = "lora",
        .base_model = a->pack->base_model,
        .features = words, .feature_count = split(features, words, LIMIT_FEATURES),
        .config = a->pack->config,
        .meta = pairs, .meta_count = split_meta(a->opts.meta, keys, pairs),
        .asked_ms = a->opts.asked_ms ? a->opts.asked_ms : a->opts.deadline_ms};
    return send(n, &m);
}

/* GONE needs nothing: the line's end is reported, and WELCOME brings us here again. */
void request_send(publisher_node_t *n, uint64_t now_us)
{
    request_t *r = &n->request;
    if (r->state != REQUEST_PENDING || n->session.state != SESSION_READY) return;
    r->req++;
    r->is_sent = false;
    r->resend_us = CLOCK_NEVER;
    r->error = (heddle_error_t){0};
    (void)FAILPOINT("publisher.before_publish"); /* only to die or stop here */
    int rc = send_publish(n, &r->asked, now_us);
    r->is_sent = rc == HEDDLE_OK;
    if (rc == HEDDLE_ERR_SLOW) r->resend_us = now_us + RESEND_US;
    if (rc == HEDDLE_OK) {
        if (!n->publications.slots[r->asked.slot].is_early) r->base_bytes = bytes_served(n);
        if (!reports_staged(&n->reports, &r->asked.sealed->digest))
            publications_early(&n->publications, r->asked.slot, r->asked.sealed->arena_bytes);
    }
    if (rc == HEDDLE_OK || rc == HEDDLE_ERR_SLOW || rc == HEDDLE_ERR_GONE) return;
    heddle_error_t error;
    error_fail(&error, rc, "PUBLISH of %s cannot be sent", n->adapter);
    error_hint(&error, "its config, features and meta go in one message: make them shorter");
    error_where(&error, n->adapter, 0, NULL, "commit");
    request_finish(n, rc, &error);
}

static bool is_none(const key16_t *key)
{
    static const key16_t NO_KEY;
    return !memcmp(key, &NO_KEY, sizeof NO_KEY);
}

uint64_t bytes_served(const publisher_node_t *n)
{
    tr_counters_t c;
    n->io->tr->counters(n->io->t, &c);
    return c.bytes_out;
}

static void begin_progress(publisher_node_t *n, uint64_t version, uint64_t base_bytes, uint64_t now_us)
{
    n->progress = (progress_t){.version = version, .base_bytes = base_bytes, .due_us = now_us + PROGRESS_US};
}

/* Workers may have been told of the version before we were: asks that came early stand until now. */
static int serve(publisher_node_t *n, const msg_published_t *m, heddle_error_t *error)
{
    const publish_request_t *a = &n->request.asked;
    share_key_t key;
    memcpy(key.b, m->key.b, sizeof key.b);
    (void)FAILPOINT("publisher.before_share");
    int rc = publications_share(&n->publications, a->slot, m->version, &key, a->sealed->arena_bytes);
    (void)FAILPOINT("publisher.after_share");
    if (!rc) return HEDDLE_OK;
    error_fail(error, rc, "%s@%llu is recorded, but its bytes cannot be served", n->adapter,
               (unsigned long long)m->version);
    error_where(error, n->adapter, m->version, NULL, "announce");
    error_hint(error, "free memory, and publish again under the same request id");
    return rc;
}

/* Bytes under a key that stands for other bytes would only be refused by every worker. */
static int fail_digest(publisher_node_t *n, const msg_published_t *m, heddle_error_t *error)
{
    char ours[HEDDLE_DIGEST_TEXT], theirs[HEDDLE_DIGEST_TEXT];
    digest_text(&n->request.asked.sealed->digest, ours);
    digest_text(&m->digest, theirs);
    error_fail(error, HEDDLE_ERR_PROTOCOL, "the broker recorded other bytes as %s@%llu", n->adapter,
               (unsigned long long)m->version);
    error_where(error, n->adapter, m->version, NULL, "commit");
    error_contrast(error, ours, theirs);
    error_hint(error, "publish again; if it stays, report it: the broker and this publisher do not agree");
    return HEDDLE_ERR_PROTOCOL;
}

/* -- what was abandoned ----------------------------------------------------------------------- */

int orphan_find(const publisher_node_t *n, uint64_t req)
{
    int found = -1;
    for (int i = 0; i < PUBLICATION_SLOTS; i++) {
        uint64_t at = n->orphans[i].req;
        if (!at || (req && at != req)) continue;
        if (found < 0 || at < n->orphans[found].req) found = i;
    }
    return found;
}

void orphan_end(publisher_node_t *n, int slot)
{
    n->orphans[slot] = (orphan_t){0};
    publications_give_back(&n->publications, slot);
    n->is_changed = true;
}

/* What a broker recorded in another session OPEN tells it: that it is not served. */
static void end_orphans(publisher_node_t *n)
{
    for (int slot; (slot = orphan_find(n, 0)) >= 0;) orphan_end(n, slot);
}

/* Recorded after all: the broker counts on us, and nobody else has the bytes. */
static void on_late(publisher_node_t *n, const msg_published_t *m, uint64_t now_us)
{
    int slot = orphan_find(n, m->req);
    if (slot < 0) return;
    orphan_t o = n->orphans[slot];
    share_key_t key;
    memcpy(key.b, m->key.b, sizeof key.b);
    n->orphans[slot] = (orphan_t){0};
    n->is_changed = true;
    bool is_ours = !is_none(&m->key) && digest_equal(&m->digest, &o.digest);
    int rc = is_ours ? publications_share(&n->publications, slot, m->version, &key, o.arena_bytes)
                     : HEDDLE_ERR_GONE;
    if (rc && n->publications.slots[slot].state == PUBLICATION_TAKEN)
        publications_give_back(&n->publications, slot);
    if (rc) return;
    heddle_publish_opts_t opts = {.activation = o.activation, .deadline_ms = (uint32_t)o.deadline_ms};
    reports_begin(&n->reports, m->version, &opts, o.start_us);
    if (m->version > n->progress.version) begin_progress(n, m->version, o.base_bytes, now_us);
}

/* A version that stands for ours, replayed or unchanged, may still need its bytes: its publisher
 * may have died before anybody had them.  The broker counts on us where it gives the key. */
static void on_published(publisher_node_t *n, const msg_published_t *m, uint64_t now_us)
{
    request_t *r = &n->request;
    if (r->state != REQUEST_PENDING || m->req != r->req) {
        on_late(n, m, now_us);
        return;
    }
    bool is_replayed = !strcmp(m->reason, "replayed"), is_unchanged = !m->created && !is_replayed;
    r->result = (publish_result_t){.version = m->version, .published_us = now_us, .digest = m->digest,
                                   .replayed = is_replayed && !r->asked.is_random_id,
                                   .unchanged = is_unchanged};
    error_text(r->result.held, sizeof r->result.held, m->held);
    heddle_error_t error;
    if (!digest_equal(&m->digest, &r->asked.sealed->digest)) {
        request_finish(n, fail_digest(n, m, &error), &error);
        return;
    }
    reports_begin(&n->reports, m->version, &r->asked.opts, r->asked.start_us);
    reports_find(&n->reports, m->version)->digest = m->digest;
    int rc = HEDDLE_OK;
    if (is_none(&m->key))
        publications_give_back(&n->publications, r->asked.slot);
    else rc = serve(n, m, &error);
    if (!rc && publications_of(&n->publications, m->version))
        begin_progress(n, m->version, r->base_bytes, now_us);
    request_finish(n, rc, rc ? &error : NULL);
}

/* -- what it was not told --------------------------------------------------------------------- */

static void inquire(publisher_node_t *n, uint64_t now_us)
{
    msg_t m;
    inquiry_ask(&n->inquiry, n->adapter, now_us, &m);
    (void)send(n, &m); /* it is asked again */
}

static void begin_inquiry(publisher_node_t *n, uint64_t now_us)
{
    const report_row_t *row = reports_newest(&n->reports);
    if (!row || report_is_over(row)) return;
    inquiry_begin(&n->inquiry, row->report.version, now_us);
    inquire(n, now_us);
}

static void end_inquiry(publisher_node_t *n)
{
    inquiry_end(&n->inquiry);
    n->is_changed = true;
}

/* Somebody may wait for more, and ROLLOUT will not tell: the broker does not know us as its source. */
static bool is_deaf_to(const publisher_node_t *n, const report_row_t *row, uint64_t now_us)
{
    bool is_late = now_us >= row->start_us + row->report.deadline_ms * 1000ull;
    bool is_told = publications_of(&n->publications, row->report.version) != NULL;
    return !n->is_fenced && !is_told && !is_late && !report_is_over(row);
}

static void on_report(publisher_node_t *n, const msg_report_t *m, uint64_t now_us)
{
    uint64_t version = n->inquiry.version;
    report_row_t *row = reports_find(&n->reports, version);
    if (!inquiry_answer(&n->inquiry, m, row, now_us)) return;
    if (!is_deaf_to(n, row, now_us)) end_inquiry(n);
    tell(n, HEDDLE_EVENT_ROLLOUT, version, NULL);
}

/* Who is fenced asks once. */
static void check_inquiry(publisher_node_t *n, uint64_t now_us)
{
    if (!inquiry_is_due(&n->inquiry, now_us)) return;
    if (n->is_fenced) end_inquiry(n);
    else inquire(n, now_us);
}

/* -- standing with the broker ----------------------------------------------------------------- */

static void act(publisher_node_t *n, unsigned bits, const msg_t *m, uint64_t now_us);

void publisher_node_step(publisher_node_t *n, session_event_kind_t kind, uint64_t now_us)
{
    act(n, session_step(&n->session, &(session_event_t){kind, NULL}, now_us), NULL, now_us);
}

static void fence(publisher_node_t *n, const msg_error_t *m, uint64_t now_us)
{
    heddle_error_t said;
    msg_to_error(m, &said);
    error_fail(&n->fence, HEDDLE_ERR_FENCED, "this publisher of %s was replaced: %s", n->adapter,
               said.message);
    error_where(&n->fence, n->adapter, 0, NULL, NULL);
    error_contrast(&n->fence, said.expected[0] ? said.expected : NULL,
                   said.found[0] ? said.found : NULL);
    error_hint(&n->fence, "close it, and open the adapter again when the other writer is done");
    n->is_fenced = true;
    end_orphans(n);
    tell(n, HEDDLE_EVENT_FENCED, 0, &n->fence);
    request_finish(n, HEDDLE_ERR_FENCED, &n->fence);
    begin_inquiry(n, now_us);
    publisher_node_step(n, SE_LEAVE, now_us);
}

/* Whatever it waits for is not there, and its writer is not known there. */
static void leave_cluster(publisher_node_t *n, uint64_t now_us)
{
    const session_t *s = &n->session;
    error_fail(&n->fence, HEDDLE_ERR_REQUEST_CONFLICT,
               "the broker has the registry of another cluster (%s) than this publisher of %s joined (%s)",
               s->cluster, n->adapter, s->joined);
    error_where(&n->fence, n->adapter, 0, NULL, NULL);
    error_contrast(&n->fence, s->joined, s->cluster);
    error_hint(&n->fence, "was the broker started with another --data? start the publisher again to "
                          "publish there");
    n->is_fenced = true;
    tell(n, HEDDLE_EVENT_REFUSED, 0, &n->fence);
    request_finish(n, n->fence.code, &n->fence);
    publisher_node_step(n, SE_LEAVE, now_us);
}

static void send_open(publisher_node_t *n)
{
    bytes_t address = {NULL, 0};
    tr_where_t where;
    const char *addresses[LIMIT_ADDRESSES];
    uint64_t served[PUBLICATION_SLOTS] = {0};
    uint32_t count = publications_served(&n->publications, served);
    msg_t m = {.type = MSG_OPEN};
    if (n->io->tr->address(n->io->t, &address)) return; /* no answer comes: it is tried again */
    n->io->tr->where(n->io->t, &where);
    m.open = (msg_open_t){.req = n->session.req, .epoch = n->session.epoch,
                          .prev_token = n->session.token, .takeover = n->takeover,
                          .adapter = n->adapter, .writer = n->writer, .backend = n->io->tr->name,
                          .ucx = n->io->tr->version(), .address = address,
                          .serving = served[0], .served = served, .served_count = count,
                          .addresses = addresses,
                          .address_count = split(where.addresses, addresses, LIMIT_ADDRESSES),
                          .network = where.network};
    (void)send(n, &m);
}

static bool is_kept(const msg_welcome_t *m, const char *adapter, uint64_t version)
{
    for (uint32_t i = 0; i < m->keep_count; i++)
        if (m->keep[i].version == version && !strcmp(m->keep[i].adapter, adapter)) return true;
    return false;
}

static void on_joined(publisher_node_t *n, const msg_welcome_t *m, uint64_t now_us)
{
    uint64_t served[PUBLICATION_SLOTS];
    uint32_t count = publications_served(&n->publications, served);
    for (uint32_t i = 0; i < count; i++)
        if (!is_kept(m, n->adapter, served[i])) publications_stop(&n->publications, served[i]);
    end_orphans(n);
    n->io->tr->set_token(n->io->t, n->session.token);
    n->takeover = false;
    bool is_back = n->has_joined;
    n->has_joined = true;
    n->refusal = (heddle_error_t){0};
    n->settled_us = now_us + m->settling_ms * 1000;
    tell(n, HEDDLE_EVENT_JOINED, 0, NULL);
    request_send(n, now_us);
    if (is_back) begin_inquiry(n, now_us);
}

static void on_refused(publisher_node_t *n, const msg_error_t *m, uint64_t now_us)
{
    msg_to_error(m, &n->refusal);
    n->is_line_refused = false;
    tell(n, HEDDLE_EVENT_REFUSED, 0, &n->refusal);
    if (n->has_joined && n->refusal.code == HEDDLE_ERR_WRITER_HELD) fence(n, m, now_us);
    else if (!m->retriable) request_finish(n, n->refusal.code, &n->refusal);
}

static void send_heartbeat(publisher_node_t *n)
{
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = n->session.token, .seq = n->session.heartbeat_seq};
    (void)send(n, &m); /* one that is lost is one of four */
}

static void send_leave(publisher_node_t *n)
{
    msg_t m = {.type = MSG_LEAVE, .leave = {.token = n->session.token, .req = n->session.req}};
    (void)send(n, &m); /* else the lease ends it */
}

static void send_hello(publisher_node_t *n)
{
    msg_t m;
    session_hello(&n->session, &m);
    (void)send(n, &m); /* said again when nobody answers */
}

/* -- what the broker says --------------------------------------------------------------------- */

static void on_rollout(publisher_node_t *n, const msg_rollout_t *m, uint64_t now_us)
{
    report_row_t *row = reports_find(&n->reports, m->version);
    if (!row || strcmp(m->adapter, n->adapter) != 0) return;
    reports_update(row, m, now_us);
    if (m->decision && m->staged_count) publications_decided(&n->publications, m->version);
    tell(n, HEDDLE_EVENT_ROLLOUT, m->version, NULL);
}

/* A broker that settles. */
static void put_off(request_t *r, const heddle_error_t *why, uint64_t resend_us)
{
    r->resend_us = resend_us;
    r->is_sent = false;
    r->error = *why;
}

static void on_error(publisher_node_t *n, const msg_error_t *m, uint64_t now_us)
{
    heddle_error_t error;
    if (m->of == MSG_QUERY && m->req == n->inquiry.req) end_inquiry(n); /* it knows nothing of it */
    int orphan = m->of == MSG_PUBLISH && m->req ? orphan_find(n, m->req) : -1;
    if (orphan >= 0) orphan_end(n, orphan);
    bool is_ours = !m->req || m->req == n->request.req; /* 0: the broker could not read so far */
    if (m->of != MSG_PUBLISH || !is_ours || n->request.state != REQUEST_PENDING) return;
    msg_to_error(m, &error);
    if (error.code == HEDDLE_ERR_FENCED) fence(n, m, now_us);
    else if (m->retriable && m->retry_ms) put_off(&n->request, &error, now_us + m->retry_ms * 1000);
    else request_finish(n, error.code, &error);
}

static void deliver(publisher_node_t *n, const msg_t *m, uint64_t now_us)
{
    switch (m->type) {
    case MSG_PUBLISHED: on_published(n, &m->published, now_us); break;
    case MSG_ROLLOUT:   on_rollout(n, &m->rollout, now_us); break;
    case MSG_ERROR:     on_error(n, &m->error, now_us); break;
    case MSG_RELEASE:
        if (publications_release(&n->publications, m->release.version))
            tell(n, HEDDLE_EVENT_RELEASED, m->release.version, NULL);
        break;
    default: break; /* what a publisher does not hear */
    }
}

static void act(publisher_node_t *n, unsigned bits, const msg_t *m, uint64_t now_us)
{
    if (bits & SO_LAPSED) tell(n, HEDDLE_EVENT_LOST_BROKER, 0, NULL);
    if (bits & SO_HELLO) send_hello(n);
    if (bits & SO_ELSEWHERE) leave_cluster(n, now_us);
    if (bits & SO_JOIN) send_open(n);
    if (bits & SO_JOINED) on_joined(n, &m->welcome, now_us);
    if (bits & SO_REFUSED) on_refused(n, &m->error, now_us);
    if (bits & SO_HEARTBEAT) send_heartbeat(n);
    if (bits & SO_LEAVE) send_leave(n);
    if (bits & SO_LEFT) n->has_left = n->is_changed = true;
    if (bits & SO_REDIAL) n->io->redial(n->io->self);
    if (bits & SO_DELIVER) deliver(n, m, now_us);
}

/* The broker's word that a token is void, while our own lease is still good: it was given to
 * another session, for our own lease always ends before the broker's. */
static bool is_fencing(const msg_t *m, bool was_live, unsigned bits)
{
    bool is_void = was_live && bits & SO_LAPSED && m->type == MSG_ERROR;
    return is_void && heddle_err_from_name(m->error.code) == HEDDLE_ERR_FENCED;
}

static void on_frame(void *node, bytes_t frame, uint64_t now_us)
{
    owner_check(((publisher_node_t *)node)->io->owner);
    publisher_node_t *n = node;
    msg_t m;
    int rc = msg_decode(frame, &m, NULL);
    if (!rc && FAILPOINT_OF("publisher.frame", msg_name((int)m.type))) {
        msg_fini(&m);
        rc = HEDDLE_ERR_NO_MEMORY;
    }
    if (rc == HEDDLE_ERR_NO_MEMORY) n->io->redial(n->io->self); /* a WELCOME tells all of it anew */
    if (rc) return;
    bool was_live = session_is_live(&n->session, now_us);
    if (m.type == MSG_REPORT) on_report(n, &m.report, now_us); /* also to who has left */
    unsigned bits = session_step(&n->session, &(session_event_t){SE_FRAME, &m}, now_us);
    if (is_fencing(&m, was_live, bits)) fence(n, &m.error, now_us);
    else act(n, bits, &m, now_us);
    msg_fini(&m);
    wake_waiters(n);
}

static void on_line(void *node, bool up, uint64_t now_us)
{
    owner_check(((publisher_node_t *)node)->io->owner);
    publisher_node_step(node, up ? SE_LINE_UP : SE_LINE_DOWN, now_us);
    wake_waiters(node);
}

static void on_transfer(void *node, const tr_event_t *event, uint64_t now_us)
{
    owner_check(((publisher_node_t *)node)->io->owner);
    publisher_node_t *n = node;
    (void)now_us;
    if (event->kind != TR_UNSHARED) return; /* a publisher asks nobody */
    publications_unshared(&n->publications, &event->key);
    n->is_changed = true;
    wake_waiters(n);
}

/* -- time ------------------------------------------------------------------------------------- */

/* Nobody counts bytes by worker: who left had as much as each of those that are not staged yet. */
static uint64_t leavers_bytes(const report_row_t *row, uint64_t sent_bytes, uint32_t before, uint32_t now,
                              uint64_t arena_bytes)
{
    uint32_t staged = row->report.staged_count < now ? row->report.staged_count : now;
    uint64_t whole_bytes = staged * arena_bytes;
    return sent_bytes > whole_bytes ? (sent_bytes - whole_bytes) / (before - staged) * (before - now) : 0;
}

static void tell_progress(publisher_node_t *n, const publication_slot_t *slot, const report_row_t *row)
{
    progress_t *p = &n->progress;
    uint64_t sent_bytes = bytes_served(n);
    uint32_t copies = row->report.eligible_count ? row->report.eligible_count : 1;
    if (copies < p->copy_count)
        p->base_bytes += leavers_bytes(row, sent_bytes - p->base_bytes, p->copy_count, copies,
                                       slot->arena_bytes);
    p->copy_count = copies;
    uint64_t bytes = sent_bytes - p->base_bytes, all_bytes = copies * slot->arena_bytes;
    if (bytes >= all_bytes) bytes = all_bytes - !report_is_settled(row); /* all is when they say so */
    if (bytes == p->told_bytes) return;
    p->told_bytes = bytes;
    heddle_event_t e = event_of(n, HEDDLE_EVENT_PROGRESS, slot->version);
    e.bytes_done = bytes;
    e.data_bytes = all_bytes;
    n->io->event(n->io->self, &e);
}

/* Looks at the counters only while somebody is being staged; the last look is after that. */
static void check_progress(publisher_node_t *n, uint64_t now_us)
{
    progress_t *p = &n->progress;
    if (!p->version || now_us < p->due_us) return;
    const report_row_t *row = reports_find(&n->reports, p->version);
    const publication_slot_t *slot = publications_of(&n->publications, p->version);
    if (row && slot) tell_progress(n, slot, row);
    p->due_us = now_us + PROGRESS_US;
    if (!row || !slot || report_is_settled(row)) p->version = 0;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Its word got lost: who waits for a region takes one. */
static void check_word(publisher_node_t *n, uint64_t now_us)
{
    if (now_us < n->word_us) return;
    n->word_us = CLOCK_NEVER;
    n->is_word_late = n->is_changed = true;
}

static uint64_t on_tick(void *node, uint64_t now_us)
{
    owner_check(((publisher_node_t *)node)->io->owner);
    publisher_node_t *n = node;
    publisher_node_step(n, SE_TICK, now_us);
    if (now_us >= n->request.resend_us) request_send(n, now_us);
    check_progress(n, now_us);
    check_inquiry(n, now_us);
    check_word(n, now_us);
    wake_waiters(n);
    uint64_t at = earlier(session_deadline(&n->session), inquiry_deadline(&n->inquiry));
    at = earlier(at, n->word_us);
    if (n->request.state == REQUEST_PENDING) at = earlier(at, n->request.resend_us);
    return n->progress.version ? earlier(at, n->progress.due_us) : at;
}

static void on_line_refused(void *node, const heddle_error_t *why, uint64_t now_us)
{
    owner_check(((publisher_node_t *)node)->io->owner);
    publisher_node_t *n = node;
    (void)now_us;
    n->refusal = *why;
    n->is_line_refused = n->is_changed = true;
    tell(n, HEDDLE_EVENT_REFUSED, 0, &n->refusal);
    if (!why->retriable) request_finish(n, why->code, why);
    wake_waiters(n);
}

const node_ops_t publisher_node_ops = {.line = on_line, .refused = on_line_refused, .frame = on_frame,
                                       .transfer = on_transfer, .tick = on_tick, .work = NULL};
