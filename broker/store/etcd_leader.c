/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/etcd_leader.h"

#include "core/clock.h"
#include "core/errors.h"

#include <stdlib.h>

#define LEADER ETCD_KEY_LEADER
#define LAST ETCD_KEY_LAST
#define META ETCD_KEY_META
#define IMPORT ETCD_KEY_IMPORT
#define MOVED "moved" /* the value of IMPORT in a registry that was moved */
#define MARKER_BYTES ETCD_MARKER_BYTES
#define HURRY_US 20000ull  /* none leads, and some rows are missing */
#define PAUSE_US 200000ull /* when no endpoint answered */
#define TIMEOUT_MAX_MS 2000u
#define PAGE_TIMEOUT_MS 5000u
#define SECOND_US 1000000ull
#define UNUSED_PART 10         /* of a lease, the last one: no commit begins in it */
#define LONG_TIMEOUT_MS 10000u /* etcd hashes a password slowly on purpose, and no page is less than a row */

static etcd_lane_state_t *work(etcd_leader_t *l) { return &l->lanes[ETCD_WORK]; }

static void next_endpoint(etcd_leader_t *l)
{
    l->endpoint = (l->endpoint + 1) % l->opts.endpoints;
    l->failures++;
}

/* The lane's next request; its body is written by the caller. */
static buf_t *want(etcd_leader_t *l, etcd_lane_t lane, etcd_call_t call, uint64_t due_us)
{
    etcd_lane_state_t *s = &l->lanes[lane];
    s->call = call;
    s->is_wanted = true;
    s->is_sent = s->is_unknown = false;
    s->due_us = due_us;
    buf_clear(&s->body);
    return &s->body;
}

static void stop(etcd_leader_t *l, etcd_state_t state)
{
    l->state = state;
    for (int i = 0; i < ETCD_LANES; i++) l->lanes[i].is_wanted = false;
}

static int refuse(etcd_leader_t *l, int code, const char *what, const char *why, const char *hint)
{
    error_fail(&l->why, code, "etcd: %s: %s", what, why);
    error_hint(&l->why, "%s", hint);
    stop(l, ETCD_REFUSED);
    return code;
}

static void lose(etcd_leader_t *l, const char *why)
{
    error_fail(&l->why, HEDDLE_ERR_FENCED, "this broker does not lead any more: %s", why);
    error_hint(&l->why, "nothing is decided here; the broker that leads now has all that was acknowledged");
    stop(l, ETCD_LOST);
}

/* ---- the user ---- */

/* Once a second at most: a token that is never taken would be asked for without a pause. */
static void log_in(etcd_leader_t *l, uint64_t now_us)
{
    uint64_t due_us = l->login_us ? l->login_us + SECOND_US : now_us;
    buf_clear(&l->token);
    l->login_us = due_us > now_us ? due_us : now_us;
    etcd_json_login(want(l, ETCD_LOGIN, ETCD_AUTHENTICATE, l->login_us), l->opts.user, l->opts.password);
}

static bool is_logging_in(const etcd_leader_t *l) { return l->lanes[ETCD_LOGIN].is_wanted; }

/* The request itself was not refused: its token has expired, or etcd's users have changed since. */
static bool needs_login(const etcd_leader_t *l, const etcd_answer_t *a)
{
    if (!l->opts.user) return false;
    return a->code == ETCD_UNAUTHENTICATED ||
           (a->code == ETCD_INVALID && (strstr(a->message, "user name is empty") ||
                                        strstr(a->message, "revision of auth store is old")));
}

/* ---- LOOKING, STANDBY, TAKING ---- */

static void look(etcd_leader_t *l, etcd_state_t state, uint64_t due_us)
{
    etcd_txn_t t;
    l->state = state;
    etcd_txn_begin(&t, want(l, ETCD_WORK, ETCD_TXN, due_us), l->opts.prefix);
    etcd_txn_get(&t, META);
    etcd_txn_get(&t, LEADER);
    etcd_txn_get(&t, LAST);
    etcd_txn_get(&t, IMPORT);
    etcd_txn_end(&t);
}

static void marker(const etcd_leader_t *l, uint64_t number, char to[MARKER_BYTES])
{
    text_printf(to, MARKER_BYTES, "%s.%llu", l->opts.run, (unsigned long long)number);
}

static void put_text(etcd_txn_t *t, const char *key, const char *text, uint64_t lease)
{
    etcd_txn_put(t, key, bytes_of(text, strlen(text)), lease);
}

static void leader_value(const etcd_leader_t *l, char to[ETCD_HOLDER_BYTES])
{
    text_printf(to, ETCD_HOLDER_BYTES, "%s %s", l->opts.run, l->opts.holder);
}

/* What an import before this one left is cleared. */
static void begin_import(const etcd_leader_t *l, etcd_txn_t *t)
{
    static const char *const ROWS[] = {"a/", "f/", "k/", "n/", "r/", "v/", "w/"};
    put_text(t, IMPORT, l->opts.run, 0);
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS && l->import_revision; i++)
        etcd_txn_delete_below(t, ROWS[i]);
}

/* The row of meta that TAKE writes. */
static void next_meta(const etcd_leader_t *l, char to[ROWS_META_BYTES])
{
    const char *cluster = rows_cluster(l->rows);
    if (l->opts.purpose == ETCD_IMPORT) rows_meta(l->opts.fresh, l->opts.epoch, to);
    else rows_meta(*cluster ? cluster : l->opts.fresh, rows_epoch(l->rows) + 1, to);
}

/* Its own of before may be among them. */
static void get_brokers(etcd_txn_t *t) { etcd_txn_get_below(t, ETCD_KEY_BROKERS, BROKERS_MAX + 1); }

/* A standby whose rows are of another history, as before a snapshot was restored, sees it by this. */
static void begin_markers(etcd_leader_t *l)
{
    int before = (int)strcspn(l->last_marker, ETCD_BEHIND);
    text_printf(l->marker, sizeof l->marker, "%s.0%s%.*s", l->opts.run, before ? ETCD_BEHIND : "", before,
                l->last_marker);
}

static void take_leadership(etcd_leader_t *l, uint64_t now_us)
{
    etcd_txn_t t;
    char text[ETCD_HOLDER_BYTES];
    l->state = ETCD_TAKING;
    etcd_txn_begin(&t, want(l, ETCD_WORK, ETCD_TXN, now_us), l->opts.prefix);
    etcd_txn_compare_created(&t, LEADER, 0);
    etcd_txn_compare_changed(&t, META, l->meta_revision);
    l->took_revision = etcd_follow_has(&l->follow, l->last_revision, l->last_marker) ? l->last_revision : 0;
    if (*l->last_marker) etcd_txn_compare_value(&t, LAST, l->last_marker);
    else etcd_txn_compare_changed(&t, LAST, l->last_revision);
    etcd_txn_compare_changed(&t, IMPORT, l->import_revision);
    leader_value(l, text);
    put_text(&t, LEADER, text, l->lease);
    if (l->opts.purpose == ETCD_IMPORT) begin_import(l, &t);
    next_meta(l, text);
    put_text(&t, META, text, 0);
    begin_markers(l);
    put_text(&t, LAST, l->marker, 0);
    if (l->opts.own) get_brokers(&t);
    etcd_txn_end(&t);
}

/* One that was refused to a standby is asked for again at once. */
static void want_lease(etcd_leader_t *l, uint64_t now_us)
{
    etcd_lane_state_t *s = &l->lanes[ETCD_LEASE];
    if (!s->is_wanted || s->call != ETCD_GRANT)
        etcd_json_grant(want(l, ETCD_LEASE, ETCD_GRANT, now_us), l->opts.ttl_s);
    else if (!s->is_sent && s->due_us > now_us) s->due_us = now_us;
}

/* TAKING without a lease, or with one that may be over soon: it is granted first. */
static void take_or_grant(etcd_leader_t *l, uint64_t now_us)
{
    l->state = ETCD_TAKING;
    work(l)->is_wanted = false;
    if (l->lease && now_us + l->ttl_s * SECOND_US / 2 < l->lease_us) take_leadership(l, now_us);
    else want_lease(l, now_us);
}

static bytes_t short_key(const etcd_leader_t *l, bytes_t key) { return etcd_json_below(l->opts.prefix, key); }

static bool is_key(bytes_t key, const char *name)
{
    return key.bytes == strlen(name) && !memcmp(key.data, name, key.bytes);
}

/* One with an older lease of this run would end with that. */
static bool is_own(const etcd_leader_t *l, const etcd_kv_t *leader)
{
    char own[ETCD_HOLDER_BYTES];
    leader_value(l, own);
    return leader->lease == l->lease && leader->value.bytes == strlen(own) &&
           !memcmp(leader->value.data, own, leader->value.bytes);
}

/* What is behind the name of its run. */
static void note_other(etcd_leader_t *l, const etcd_kv_t *leader)
{
    const char *text = leader->value.data, *blank = memchr(text, ' ', leader->value.bytes);
    size_t skipped = blank ? (size_t)(blank + 1 - text) : 0;
    char other[sizeof l->other];
    text_printf(other, sizeof other, "%.*s", (int)(leader->value.bytes - skipped), text + skipped);
    error_text(l->other, sizeof l->other, other);
}

static void refuse_import(etcd_leader_t *l)
{
    refuse(l, HEDDLE_ERR_DATA_DIR, l->opts.prefix, "the prefix has data, and an import replaces none",
           "choose another prefix; this one was left as it was");
}

static void refuse_moved(etcd_leader_t *l)
{
    refuse(l, HEDDLE_ERR_DATA_DIR, l->opts.prefix, "its registry was moved to another store", "");
    error_contrast(&l->why, "the registry that the cluster goes on with",
                   "the mark of heddle registry export --move");
    error_hint(&l->why,
               "start the broker with the store that it was imported into; to go on with this registry, see "
               "that no broker has the other one, and delete the key %.100s/" IMPORT,
               l->opts.prefix);
}

/* What it finds may be there, of a prefix with or without a registry, or with an import that was not
 * finished. */
static bool fits_purpose(etcd_leader_t *l, bool has_meta)
{
    const char *prefix = l->opts.prefix;
    if (l->is_moved && l->opts.purpose == ETCD_SERVE) refuse_moved(l);
    else if (l->is_moved && l->opts.purpose == ETCD_IMPORT) refuse_import(l);
    else if (l->import_revision && !l->is_moved && l->opts.purpose != ETCD_IMPORT)
        refuse(l, HEDDLE_ERR_DATA_DIR, prefix, "an import into the prefix was not finished",
               "run `heddle registry import` again: it begins anew; until then no broker starts there");
    else if (!l->import_revision && l->opts.purpose == ETCD_IMPORT && has_meta) refuse_import(l);
    else if (l->opts.purpose == ETCD_EXPORT && !has_meta)
        refuse(l, HEDDLE_ERR_NOT_FOUND, prefix, "the prefix has no registry",
               "see that --store names the right etcd and prefix");
    return l->state != ETCD_REFUSED;
}

static void show_standby(etcd_leader_t *l, uint64_t now_us);
static void wait_for_any_registry(etcd_leader_t *l, uint64_t now_us);

/* `cluster`: of the one that is there; "": none is.  A broker that is started there sees by its row that this
 * one waits. */
static void wait_for_registry(etcd_leader_t *l, const char *cluster, uint64_t now_us)
{
    l->denied_lane = ETCD_WORK;
    error_fail(&l->denied, HEDDLE_ERR_DATA_DIR, "etcd: %s: the registry of cluster %s is not there: %s%s",
               l->opts.prefix, l->known, *cluster ? "there is that of cluster " : "the prefix is empty",
               cluster);
    error_contrast(&l->denied, l->known, *cluster ? cluster : "none: the prefix is empty");
    error_hint(&l->denied,
               "restore a snapshot of etcd, or import what was exported, and this broker goes on; to "
               "begin with what is there, end all brokers of the prefix before one is started");
    l->other[0] = 0;
    look(l, ETCD_STANDBY, now_us + ETCD_POLL_MS * 1000ull);
    show_standby(l, now_us);
}

/* It waits for a registry, and an import that is not finished may bring that. */
static bool waits_for_import(etcd_leader_t *l, uint64_t now_us)
{
    if (l->opts.purpose != ETCD_SERVE || !l->import_revision || l->is_moved) return false;
    if (*l->known) wait_for_registry(l, "", now_us);
    else if (l->must_wait) wait_for_any_registry(l, now_us);
    return *l->known || l->must_wait;
}

static bool may_be_taken(etcd_leader_t *l, const etcd_kv_t *meta, uint64_t now_us)
{
    heddle_error_t error;
    if (waits_for_import(l, now_us)) return false;
    if (!fits_purpose(l, meta != NULL)) return false;
    if (meta && rows_read(l->rows, bytes_of(META, strlen(META)), meta->value, &error)) {
        l->why = error;
        stop(l, ETCD_REFUSED);
        return false;
    }
    const char *cluster = meta ? rows_cluster(l->rows) : "";
    if (*l->known && strcmp(cluster, l->known)) {
        wait_for_registry(l, cluster, now_us);
        return false;
    }
    if (l->opts.cluster && strcmp(cluster, l->opts.cluster)) {
        refuse(
            l, HEDDLE_ERR_DATA_DIR, l->opts.prefix, "the prefix belongs to another cluster",
            "see that --store names the right etcd and prefix, and --store-cluster, where it is given, the "
            "right cluster; where etcd has lost its data, restore a snapshot");
        error_contrast(&l->why, l->opts.cluster, *cluster ? cluster : "none: the prefix is empty");
        return false;
    }
    if (l->opts.purpose == ETCD_SERVE) text_printf(l->known, sizeof l->known, "%s", cluster);
    if (l->denied.code == HEDDLE_ERR_DATA_DIR) l->denied.code = 0; /* of wait_for_registry */
    if (rows_epoch(l->rows) < EPOCH_MAX) return true;
    refuse(l, HEDDLE_ERR_DATA_DIR, l->opts.prefix, "its epochs are used up: no token could be new",
           "begin a new cluster with another prefix; workers and publishers are to be started again");
    return false;
}

/* ---- CHECKING ---- */

/* The prefix that is `steps` names shorter.  False: it has not so many. */
static bool is_above(const char *prefix, int steps, char to[ETCD_PREFIX_BYTES])
{
    text_printf(to, ETCD_PREFIX_BYTES, "%s", prefix);
    for (char *slash; steps > 0 && (slash = strrchr(to, '/')); steps--) *slash = 0;
    return !steps;
}

/* First the keys of the prefix itself, then `meta` of each one above, with a request of its own: the user may
 * have no rights there, and that is no answer to the others. */
static void check(etcd_leader_t *l, int steps, uint64_t now_us)
{
    etcd_txn_t t;
    char prefix[ETCD_PREFIX_BYTES];
    l->checked = steps;
    l->is_alone = !is_above(l->opts.prefix, steps, prefix);
    if (l->is_alone) {
        look(l, ETCD_LOOKING, now_us);
        return;
    }
    l->state = ETCD_CHECKING;
    etcd_txn_begin(&t, want(l, ETCD_WORK, ETCD_TXN, now_us), prefix);
    etcd_txn_get(&t, META);
    if (!steps) etcd_txn_get_any(&t, BROKERS_MAX + 4); /* behind the rows of brokers, and other such keys */
    etcd_txn_end(&t);
}

static bool is_below_brokers(bytes_t key)
{
    size_t skipped = strlen(ETCD_KEY_BROKERS);
    return key.bytes >= skipped && !memcmp(key.data, ETCD_KEY_BROKERS, skipped);
}

/* The row of a broker.  Another key below b/ is of a registry there. */
static bool is_row_of_broker(bytes_t key)
{
    size_t skipped = strlen(ETCD_KEY_BROKERS);
    if (!is_below_brokers(key)) return false;
    bytes_t run = bytes_of((const char *)key.data + skipped, key.bytes - skipped);
    return !memchr(run.data, '/', run.bytes) && !is_key(run, META) && !etcd_follow_is_beside(run);
}

/* Keys beside the rows may be left of a registry that was deleted. */
static bool may_be_left(bytes_t key)
{
    return etcd_follow_is_beside(key) && (!is_below_brokers(key) || is_row_of_broker(key));
}

/* A row of a broker goes with its lease.  So that broker runs, and knows a registry, or waits for one itself.
 * It may be cut off, or end, before the registry is there again. */
static void wait_for_any_registry(etcd_leader_t *l, uint64_t now_us)
{
    l->must_wait = true;
    l->denied_lane = ETCD_WORK;
    error_fail(&l->denied, HEDDLE_ERR_DATA_DIR,
               "etcd: %s: there is no registry, and this broker waits for the one that another broker knew",
               l->opts.prefix);
    error_contrast(&l->denied, "a registry, or no row of a broker", "the row of a broker");
    error_hint(&l->denied, "restore a snapshot of etcd, or import what was exported; to begin a new cluster, "
                           "end all brokers of the prefix before one is started");
    l->other[0] = 0;
    look(l, ETCD_STANDBY, now_us + ETCD_POLL_MS * 1000ull);
    show_standby(l, now_us);
}

static void refuse_neighbour(etcd_leader_t *l, const char *what, bytes_t key)
{
    char text[ETCD_PREFIX_BYTES * 2], name[ETCD_PREFIX_BYTES * 2];
    text_printf(text, sizeof text, "%.*s", key.bytes < sizeof text ? (int)key.bytes : (int)sizeof text - 1,
                (const char *)key.data);
    error_text(name, sizeof name, text);
    refuse(l, HEDDLE_ERR_DATA_DIR, l->opts.prefix, what, "");
    error_expected(&l->why, "a prefix with a registry, or an empty one that is below none");
    error_found(&l->why, "the key %.150s", name);
    error_hint(&l->why, "choose a prefix that is neither above nor below %.150s; all was left as it was",
               name);
}

/* `a`: NULL: the user has no rights there.  By now another broker may have made the registry. */
static void on_checked(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    for (size_t i = 0; a && i < a->kv_count && !l->checked; i++)
        if (is_key(short_key(l, a->kvs[i].key), META)) {
            look(l, ETCD_LOOKING, now_us);
            return;
        }
    for (size_t i = 0; a && i < a->kv_count && l->state == ETCD_CHECKING; i++) {
        const etcd_kv_t *kv = &a->kvs[i];
        bool is_waiting = !l->checked && is_row_of_broker(short_key(l, kv->key));
        if (l->checked && rows_is_meta(kv->value))
            refuse_neighbour(l, "a registry lies above the prefix", kv->key);
        else if (is_waiting && l->opts.purpose == ETCD_SERVE) wait_for_any_registry(l, now_us);
        else if (!l->checked && !is_waiting && l->opts.purpose == ETCD_IMPORT) refuse_import(l);
        else if (!l->checked && !may_be_left(short_key(l, kv->key)))
            refuse_neighbour(l, "the prefix has keys of something else", kv->key);
    }
    if (l->state == ETCD_CHECKING) check(l, l->checked + 1, now_us);
}

/* A third of the lease, so that another endpoint may be asked before it ends.  Until any endpoint has
 * answered there is no lease, and the first request has the time of the start: a host that starts many
 * processes may need it.  A page has longer, as the lease is renewed beside it: where etcd is short of CPU,
 * one of few rows takes as long as one of many. */
static uint32_t time_for(const etcd_leader_t *l, etcd_lane_t lane)
{
    uint64_t third_ms = (l->ttl_s ? l->ttl_s : l->opts.ttl_s) * 1000 / 3;
    uint32_t start_ms = ETCD_START_MS / (uint32_t)l->opts.endpoints;
    if (lane == ETCD_LOGIN) return LONG_TIMEOUT_MS;
    if (l->lanes[lane].call == ETCD_STREAM) return 0;
    if (l->lanes[lane].call == ETCD_RANGE) return l->follow.page.rows > 1 ? PAGE_TIMEOUT_MS : LONG_TIMEOUT_MS;
    if (!l->was_answered) return start_ms > TIMEOUT_MAX_MS ? start_ms : TIMEOUT_MAX_MS;
    return third_ms < TIMEOUT_MAX_MS ? (uint32_t)third_ms : TIMEOUT_MAX_MS;
}

/* ---- refusals ---- */

/* What etcd refuses for good.  0: it may do it later. */
static int refusal(const etcd_answer_t *a)
{
    switch (a->code) {
    case ETCD_DENIED:
    case ETCD_UNAUTHENTICATED: return HEDDLE_ERR_DENIED;
    case ETCD_EXHAUSTED: return strstr(a->message, "space exceeded") ? HEDDLE_ERR_NO_SPACE : 0;
    case ETCD_INVALID:
        return strstr(a->message, "user name is empty") ? HEDDLE_ERR_DENIED
               : strstr(a->message, "too large")        ? HEDDLE_ERR_LIMIT
                                                        : HEDDLE_ERR_INTERNAL;
    case ETCD_UNIMPLEMENTED: return HEDDLE_ERR_INTERNAL;
    default: return 0;
    }
}

static const char *refusal_hint(int code)
{
    switch (code) {
    case HEDDLE_ERR_DENIED:
        return "name a user that may read and write the prefix, with --store-user (docs/operations.md)";
    case HEDDLE_ERR_NO_SPACE:
        return "nothing was lost: compact and defragment etcd, raise its quota, disarm the alarm";
    case HEDDLE_ERR_LIMIT: return "raise --max-request-bytes of etcd";
    default: return "etcd 3.4 or later is needed";
    }
}

/* Of what is asked for again, and no commit says: etcd_leader_refusal. */
static void note_denial(etcd_leader_t *l, etcd_lane_t lane, const char *what, const char *why,
                        const char *hint)
{
    l->denied_lane = lane;
    error_fail(&l->denied, HEDDLE_ERR_DENIED, "etcd %s: %s", what, why);
    error_hint(&l->denied, "%s", hint);
}

static void note_denied_rows(etcd_leader_t *l, etcd_lane_t lane, const char *why)
{
    note_denial(l, lane, "refuses what this broker reads and writes", why, refusal_hint(HEDDLE_ERR_DENIED));
}

/* By what that lane is answered, or because it asks no more. */
static void end_denial(etcd_leader_t *l, etcd_lane_t lane)
{
    if (l->denied_lane == lane) l->denied.code = 0;
}

/* ---- following ---- */

static void follow(etcd_leader_t *l, uint64_t due_us)
{
    buf_t *body = want(l, ETCD_FOLLOW, ETCD_RANGE, due_us);
    if (etcd_follow_request(&l->follow, l->opts.prefix, body)) l->lanes[ETCD_FOLLOW].call = ETCD_STREAM;
}

static void end_following(etcd_leader_t *l)
{
    l->lanes[ETCD_FOLLOW].is_wanted = false;
    end_denial(l, ETCD_FOLLOW);
    etcd_follow_fini(&l->follow);
}

bool etcd_leader_is_answered(const etcd_leader_t *l) { return l->failures < (uint64_t)l->opts.endpoints; }

bool etcd_leader_is_following(const etcd_leader_t *l)
{
    return l->state == ETCD_STANDBY && l->follow.state == ETCD_FOLLOWING && etcd_leader_is_answered(l) &&
           !l->denied.code;
}

bool etcd_leader_is_stuck(const etcd_leader_t *l, heddle_error_t *ret_why)
{
    char row[ETCD_PREFIX_BYTES * 2], key[ETCD_PREFIX_BYTES * 2];
    const buf_t *after = l->state == ETCD_READING ? &l->after : &l->follow.after;
    if (!l->follow.page.is_stuck) return false;
    text_printf(row, sizeof row, "%.*s", after->bytes < sizeof row ? (int)after->bytes : (int)sizeof row - 1,
                after->bytes ? (const char *)after->data : "");
    error_text(key, sizeof key, row);
    error_fail(ret_why, HEDDLE_ERR_UNAVAILABLE,
               "etcd: a row of the registry does not come, the first one %s %s%s%.100s: %s",
               *key ? "behind the key" : "of", l->opts.prefix, *key ? "/" : "", key, l->trouble);
    error_hint(ret_why,
               "it is asked for again, with %u s for it alone; see that etcd and the way to it have room "
               "for 2 MB in that time",
               LONG_TIMEOUT_MS / 1000);
    return true;
}

uint64_t etcd_leader_behind(const etcd_leader_t *l)
{
    return l->last_revision > l->follow.last_revision ? l->last_revision - l->follow.last_revision : 0;
}

/* Those that a broker has to have before it leads.  Of a new registry there are none, and a command reads
 * them afterwards. */
static bool lacks_rows(const etcd_leader_t *l)
{
    return l->opts.purpose == ETCD_SERVE && *l->last_marker &&
           !etcd_follow_has(&l->follow, l->last_revision, l->last_marker);
}

/* Whether what is missing may come yet, by a watch that is there. */
static bool is_catching_up(etcd_leader_t *l, uint64_t now_us)
{
    bool is_behind =
        l->follow.state == ETCD_FOLLOWING && !etcd_follow_has(&l->follow, l->last_revision, l->last_marker);
    if (!is_behind) l->behind_us = 0;
    else if (!l->behind_us) l->behind_us = now_us;
    return is_behind && now_us - l->behind_us < ETCD_CATCH_UP_MS * 1000ull;
}

/* A watch does not say it: it would begin behind the last revision of that etcd, and wait.  `last` was asked
 * for after what the watch had said by then, so it cannot be older. */
static void follow_anew_if_restored(etcd_leader_t *l, uint64_t now_us)
{
    const etcd_follow_t *f = &l->follow;
    bool is_older = l->last_revision < l->asked_revision;
    bool is_another = l->last_revision == f->last_revision && strcmp(l->last_marker, f->marker) != 0;
    if (f->state != ETCD_FOLLOWING || (!is_older && !is_another)) return;
    etcd_follow_forget(&l->follow);
    follow(l, now_us);
}

/* The leader's key is gone: whether it is time to take the lead is looked up now.  A look that is under way
 * may have been before. */
static void look_if_gone(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    etcd_lane_state_t *s = work(l);
    for (size_t i = 0; i < a->kv_count; i++)
        if (a->kvs[i].is_gone && is_key(short_key(l, a->kvs[i].key), LEADER) && l->state == ETCD_STANDBY &&
            s->is_wanted) {
            l->is_gone = s->is_sent;
            s->due_us = now_us;
        }
}

/* With a watch that brings nothing of what is missing, another one. */
static void follow_on(etcd_leader_t *l, bool may_come, uint64_t now_us)
{
    if (l->lanes[ETCD_FOLLOW].is_wanted && (!l->behind_us || may_come)) return;
    follow(l, now_us);
    l->behind_us = 0;
}

/* The last page came, and none leads: what is missing is looked up now. */
static void look_if_read(etcd_leader_t *l, uint64_t now_us)
{
    etcd_lane_state_t *s = work(l);
    bool is_looking = (l->state == ETCD_LOOKING || l->state == ETCD_STANDBY) && s->is_wanted && !s->is_sent;
    if (l->follow.state == ETCD_FOLLOWING && is_looking && !l->other[0]) s->due_us = now_us;
}

/* `why`: of an answer that was read, what it says; of one that was not, whatever came. */
static void note_trouble(etcd_leader_t *l, etcd_outcome_t outcome, bool is_read, bytes_t why)
{
    char text[sizeof l->trouble] = "what answers there is not an etcd of version 3.4 or later, or its JSON "
                                   "gateway is off (enable-grpc-gateway)";
    if (is_read || outcome != ETCD_ANSWERED)
        text_printf(text, sizeof text, "%.*s",
                    why.bytes < sizeof text ? (int)why.bytes : (int)sizeof text - 1,
                    why.bytes ? (const char *)why.data : "");
    error_text(l->trouble, sizeof l->trouble, *text ? text : "none is reached");
    l->is_untrusted = outcome == ETCD_UNTRUSTED;
}

/* It was too large, or may have been, or too slow for its time. */
static bool is_no_page(etcd_outcome_t outcome, const etcd_answer_t *a)
{
    if (a) return a->code == ETCD_EXHAUSTED;
    return outcome != ETCD_UNSENT && outcome != ETCD_UNTRUSTED;
}

/* One that has not led or stood by yet ends, as by what else it may not read. */
static void on_denied_rows(etcd_leader_t *l, const char *why, uint64_t now_us)
{
    if (l->state == ETCD_LOOKING) {
        refuse(l, HEDDLE_ERR_DENIED, "it refuses a request", why, refusal_hint(HEDDLE_ERR_DENIED));
        return;
    }
    note_denied_rows(l, ETCD_FOLLOW, why);
    follow(l, now_us + SECOND_US);
}

/* What fails for a moment is asked for again, from where it was. */
static void on_followed(etcd_leader_t *l, etcd_outcome_t outcome, bytes_t body, uint64_t now_us)
{
    etcd_lane_state_t *s = &l->lanes[ETCD_FOLLOW];
    arena_t arena = {0};
    etcd_answer_t a;
    bool is_read = (outcome == ETCD_ANSWERED || outcome == ETCD_PIECE) && etcd_answer_read(body, &arena, &a);
    bool is_said = is_read && (!a.code || a.code == ETCD_EXHAUSTED || a.code == ETCD_OUT_OF_RANGE);
    bool is_page = s->call == ETCD_RANGE;
    if (is_read && needs_login(l, &a)) {
        follow(l, now_us);
        if (!is_logging_in(l)) log_in(l, now_us);
    } else if (is_page && is_no_page(outcome, is_read ? &a : NULL)) {
        note_trouble(l, outcome, is_read, is_read ? bytes_of(a.message, strlen(a.message)) : body);
        etcd_page_failed(&l->follow.page);
        follow(l, now_us + PAUSE_US);
    } else if (is_read && refusal(&a) == HEDDLE_ERR_DENIED) {
        on_denied_rows(l, a.message, now_us);
    } else if (!is_said) {
        follow(l, now_us + PAUSE_US);
    } else if (!etcd_follow_answer(&l->follow, l->opts.prefix, &a)) {
        follow(l, now_us + SECOND_US);
    } else if (is_page) {
        end_denial(l, ETCD_FOLLOW);
        etcd_page_came(&l->follow.page, body.bytes);
        follow(l, now_us);
        look_if_read(l, now_us);
    } else {
        end_denial(l, ETCD_FOLLOW);
        look_if_gone(l, &a, now_us);
        if (outcome == ETCD_ANSWERED) follow(l, now_us + PAUSE_US);
    }
    arena_fini(&arena);
}

/* ---- the rows of brokers ---- */

/* A standby's own, under a lease that it has for that.  What changed since is written a second later. */
static void show_standby(etcd_leader_t *l, uint64_t now_us)
{
    if (!l->opts.own) return;
    if (!l->lease && !l->lanes[ETCD_LEASE].is_wanted) want_lease(l, now_us);
    brokers_row_t row = *l->opts.own;
    row.is_following = etcd_leader_is_following(l);
    row.behind = row.is_following ? etcd_leader_behind(l) : 0;
    bool is_same = l->shown.lease == l->lease && l->shown.row.is_following == row.is_following &&
                   l->shown.row.behind == row.behind;
    bool is_early = l->shown.sent_us && now_us < l->shown.sent_us + SECOND_US;
    if (!l->lease || is_same || is_early || l->lanes[ETCD_BROKERS].is_wanted) return;
    etcd_txn_t t;
    char key[sizeof ETCD_KEY_BROKERS + ETCD_MARKER_BYTES];
    buf_t value = {0}, *body = want(l, ETCD_BROKERS, ETCD_TXN, now_us);
    brokers_write(&row, &value);
    text_printf(key, sizeof key, ETCD_KEY_BROKERS "%s", l->opts.run);
    etcd_txn_begin(&t, body, l->opts.prefix);
    etcd_txn_put(&t, key, buf_view(&value), l->lease);
    etcd_txn_end(&t);
    body->failed = body->failed || value.failed;
    buf_fini(&value);
    l->shown.row = row;
    l->shown.with = l->lease;
    l->shown.lease = 0;
    l->shown.sent_us = now_us;
}

/* Of a marker of this run.  False: it is another one's. */
static bool take_number(const etcd_leader_t *l, bytes_t value, uint64_t *ret_number)
{
    char text[MARKER_BYTES];
    size_t run = strlen(l->opts.run);
    text_printf(text, sizeof text, "%.*s", (int)value.bytes, (const char *)value.data);
    if (strncmp(text, l->opts.run, run) || text[run] != '.') return false;
    *ret_number = strtoull(text + run + 1, NULL, 10);
    return true;
}

/* With what says that this broker leads on. */
static void read_brokers(etcd_leader_t *l, uint64_t due_us)
{
    etcd_txn_t t;
    if (!l->opts.own) return;
    (void)take_number(l, bytes_of(l->marker, strlen(l->marker)), &l->asked_number);
    etcd_txn_begin(&t, want(l, ETCD_BROKERS, ETCD_TXN, due_us), l->opts.prefix);
    etcd_txn_get(&t, LEADER);
    etcd_txn_get(&t, LAST);
    get_brokers(&t);
    etcd_txn_end(&t);
}

/* A snapshot that was restored may have the lease, so that keepalives succeed, and neither the key nor what
 * was acknowledged since.  Commits fail by that; answers to what only reads do not. */
static void lose_if_restored(etcd_leader_t *l, const etcd_answer_t *a)
{
    bool has_key = false, has_last = false;
    uint64_t number;
    for (size_t i = 0; i < a->kv_count; i++) {
        const etcd_kv_t *kv = &a->kvs[i];
        bytes_t key = short_key(l, kv->key);
        if (is_key(key, LEADER)) has_key = is_own(l, kv) && kv->create_revision == l->created_revision;
        if (is_key(key, LAST)) has_last = take_number(l, kv->value, &number) && number >= l->asked_number;
    }
    if (!has_key) lose(l, "its key in etcd is gone");
    else if (!has_last) lose(l, "etcd does not have what it recorded, as after a snapshot was restored");
}

static void take_brokers(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    l->brokers.count = 0;
    for (size_t i = 0; i < a->kv_count; i++) {
        bytes_t key = short_key(l, a->kvs[i].key);
        size_t below = strlen(ETCD_KEY_BROKERS);
        if (key.bytes < below || memcmp(key.data, ETCD_KEY_BROKERS, below)) continue;
        bytes_t run = bytes_of((const char *)key.data + below, key.bytes - below);
        if (!is_key(run, l->opts.run)) (void)brokers_add(&l->brokers, a->kvs[i].value);
    }
    l->brokers.revision = a->revision;
    l->brokers.seen_us = now_us;
}

/* A request that failed, or was refused, is not repeated but for the next time.  A user whose rights were
 * taken away is seen by it before there is something to record. */
static void on_brokers(etcd_leader_t *l, etcd_outcome_t outcome, bytes_t body, uint64_t now_us)
{
    arena_t arena = {0};
    etcd_answer_t a;
    bool is_read = outcome == ETCD_ANSWERED && etcd_answer_read(body, &arena, &a);
    bool is_good = is_read && !a.code, has_no_token = is_read && needs_login(l, &a);
    int code = is_read && !has_no_token ? refusal(&a) : 0;
    l->lanes[ETCD_BROKERS].is_wanted = false;
    if (has_no_token && !is_logging_in(l)) log_in(l, now_us);
    if (is_good) end_denial(l, ETCD_BROKERS);
    else if (code == HEDDLE_ERR_DENIED) note_denied_rows(l, ETCD_BROKERS, a.message);
    if (l->state == ETCD_STANDBY && is_good) l->shown.lease = l->shown.with;
    if (l->state == ETCD_LEADING && is_good) lose_if_restored(l, &a);
    if (l->state == ETCD_LEADING) {
        if (is_good) take_brokers(l, &a, now_us);
        if (is_good) l->failures = 0;
        else if (!is_read || a.code == ETCD_UNAVAILABLE) { /* as one without a majority says */
            note_trouble(l, outcome, is_read, is_read ? bytes_of(a.message, strlen(a.message)) : body);
            next_endpoint(l);
        }
        read_brokers(l, now_us + SECOND_US);
    }
    arena_fini(&arena);
}

/* ---- READING ---- */

static void read_page(etcd_leader_t *l, uint64_t now_us)
{
    etcd_json_range(want(l, ETCD_WORK, ETCD_RANGE, now_us), l->opts.prefix, buf_view(&l->after),
                    l->follow.page.rows, l->page_revision);
}

static int start_reading(etcd_leader_t *l, uint64_t now_us)
{
    heddle_error_t error;
    end_following(l);
    l->took_revision = 0;
    rows_destroy(&l->rows);
    int rc = rows_new(&l->rows, &error);
    if (rc) return refuse(l, rc, "the rows", "no memory", "start the broker again");
    buf_clear(&l->after);
    l->page_revision = 0;
    l->has_last = false;
    l->state = ETCD_READING;
    read_page(l, now_us);
    return HEDDLE_OK;
}

static void on_page(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    heddle_error_t error = {0};
    int rc = HEDDLE_OK;
    for (size_t i = 0; i < a->kv_count && !rc; i++) {
        bytes_t key = short_key(l, a->kvs[i].key);
        if (i + 1 == a->kv_count) {
            buf_clear(&l->after);
            buf_add(&l->after, key.data, key.bytes);
        }
        if (is_key(key, LAST)) l->has_last = is_key(a->kvs[i].value, l->marker);
        if (!etcd_follow_is_beside(key)) rc = rows_read(l->rows, key, a->kvs[i].value, &error);
    }
    if (!rc && l->after.failed) rc = error_fail(&error, HEDDLE_ERR_NO_MEMORY, "no memory to read the rows");
    if (!rc && !l->page_revision) l->page_revision = a->revision;
    bool is_last = !a->has_more;
    if (!rc && is_last) rc = rows_end_read(l->rows, &error);
    if (rc) {
        l->why = error;
        stop(l, ETCD_REFUSED);
    } else if (is_last && !l->has_last) {
        lose(l, "what it read from etcd does not end with what it wrote");
    } else if (is_last) {
        l->state = ETCD_LEADING;
        work(l)->is_wanted = false;
        read_brokers(l, now_us);
    } else {
        read_page(l, now_us);
    }
}

/* ---- LEADING ---- */

bool etcd_leader_has_yielded(const etcd_leader_t *l) { return l->has_yielded; }

/* When it yields (etcd_leader.h).  Never without a standby, or when etcd is asked again after this process
 * stood still: its members have no better place to be. */
static uint64_t yield_due(const etcd_leader_t *l)
{
    bool is_cut_off = l->failures || l->denied.code;
    if (l->state != ETCD_LEADING || l->has_yielded || !l->brokers.count || !is_cut_off) return CLOCK_NEVER;
    uint64_t lease_us = l->ttl_s * SECOND_US, end_us = l->lease_us + lease_us / UNUSED_PART;
    return end_us + clock_earlier(l->opts.member_lease_ms * 1000ull / 4, lease_us);
}

static void revoke(etcd_leader_t *l, uint64_t now_us)
{
    etcd_json_lease(want(l, ETCD_LEASE, ETCD_REVOKE, now_us), l->lease);
}

/* Where only the answers of etcd are lost, keepalives go on renewing the lease, and no standby could lead. */
static void yield_if_due(etcd_leader_t *l, uint64_t now_us)
{
    if (now_us < yield_due(l)) return;
    l->has_yielded = true;
    revoke(l, now_us);
}

int etcd_leader_commit(etcd_leader_t *l, const record_t *records, int count, uint64_t now_us,
                       heddle_error_t *error)
{
    rows_ops_t ops;
    etcd_txn_t t;
    char text[MARKER_BYTES];
    if (l->state != ETCD_LEADING || now_us >= l->lease_us) {
        if (error && l->denied.code) *error = l->denied;
        if (l->denied.code) return l->denied.code;
        error_fail(error, HEDDLE_ERR_UNAVAILABLE, "etcd has not confirmed for %u s that this broker leads",
                   (unsigned)l->ttl_s);
        error_hint(error, "nothing was recorded; see that etcd answers and has a majority");
        return HEDDLE_ERR_UNAVAILABLE;
    }
    uint64_t epoch = rows_epoch(l->rows);
    int rc = rows_change(l->rows, records, count, &ops, error);
    if (rc) return rc;
    buf_t *body = want(l, ETCD_WORK, ETCD_TXN, now_us);
    etcd_txn_begin(&t, body, l->opts.prefix);
    etcd_txn_compare_created(&t, LEADER, l->created_revision);
    etcd_txn_compare_value(&t, LAST, l->marker);
    for (int i = 0; i < ops.count; i++) {
        const rows_op_t *op = &ops.op[i];
        if (op->kind == ROWS_PUT) etcd_txn_put(&t, op->key, op->value, 0);
        else if (op->kind == ROWS_DELETE) etcd_txn_delete(&t, op->key);
        else etcd_txn_delete_below(&t, op->key);
    }
    if (rows_epoch(l->rows) != epoch) {
        char meta[ROWS_META_BYTES];
        rows_meta(rows_cluster(l->rows), rows_epoch(l->rows), meta);
        put_text(&t, META, meta, 0);
    }
    if (l->is_last && l->opts.purpose == ETCD_IMPORT) etcd_txn_delete(&t, IMPORT);
    else if (l->is_last) put_text(&t, IMPORT, MOVED, 0);
    marker(l, ++l->tries, text);
    put_text(&t, LAST, text, 0);
    etcd_txn_else(&t);
    etcd_txn_get(&t, LEADER);
    etcd_txn_get(&t, LAST);
    etcd_txn_end(&t);
    if (body->failed || body->bytes > ETCD_REQUEST_BYTES / 3 * 4) {
        rc = body->failed ? HEDDLE_ERR_NO_MEMORY : HEDDLE_ERR_LIMIT;
        error_fail(error, rc,
                   body->failed ? "no memory for a transaction" : "too large for a transaction of etcd");
        work(l)->is_wanted = false;
        rows_undo(l->rows);
        return rc;
    }
    l->is_committing = true;
    l->has_outcome = false;
    return HEDDLE_ERR_AGAIN;
}

void etcd_leader_read_again(etcd_leader_t *l, uint64_t now_us)
{
    if (l->state == ETCD_LEADING) (void)start_reading(l, now_us);
}

/* Its records change nothing: the rows are those of a registry from here on. */
int etcd_leader_finish(etcd_leader_t *l, uint64_t now_us, heddle_error_t *error)
{
    record_t same = {.kind = RECORD_EPOCH, .epoch = rows_epoch(l->rows)};
    l->is_last = true;
    int rc = etcd_leader_commit(l, &same, 1, now_us, error);
    l->is_last = false;
    return rc;
}

static void end_commit(etcd_leader_t *l, int rc)
{
    if (rc) rows_undo(l->rows);
    else rows_keep(l->rows);
    if (!rc) marker(l, l->tries, l->marker);
    l->is_committing = l->is_refused = false;
    l->refused = 0;
    l->has_outcome = true;
    l->outcome = rc;
    work(l)->is_wanted = false;
}

const heddle_error_t *etcd_leader_refusal(const etcd_leader_t *l)
{
    if (l->state == ETCD_LEADING && l->is_refused) return &l->why;
    return l->denied.code ? &l->denied : NULL;
}

bool etcd_leader_take_outcome(etcd_leader_t *l, int *ret_rc, heddle_error_t *error)
{
    if (!l->has_outcome) return false;
    l->has_outcome = false;
    *ret_rc = l->outcome;
    if (l->outcome) *error = l->why;
    return true;
}

/* A comparison failed, or it was looked up.  The marker says whether the commit happened. */
static void on_failed_commit(etcd_leader_t *l, const etcd_answer_t *a)
{
    char text[MARKER_BYTES];
    bool is_leader = false, has_happened = false, is_before = false;
    marker(l, l->tries, text);
    for (size_t i = 0; i < a->kv_count; i++) {
        bytes_t key = short_key(l, a->kvs[i].key), value = a->kvs[i].value;
        if (is_key(key, LEADER)) is_leader = a->kvs[i].create_revision == l->created_revision;
        if (is_key(key, LAST)) has_happened = is_key(value, text), is_before = is_key(value, l->marker);
    }
    if (has_happened) end_commit(l, HEDDLE_OK);
    else if (l->refused && is_leader && is_before) end_commit(l, l->refused);
    if (is_leader && !l->is_committing) return;
    lose(l, is_leader ? "another process wrote to the registry" : "its key in etcd is gone");
}

/* ---- answers ---- */

/* To the next endpoint at once, or after a pause when each of them failed. */
static void try_again(etcd_leader_t *l, etcd_lane_state_t *s, uint64_t now_us)
{
    next_endpoint(l);
    s->is_sent = false;
    s->due_us = l->failures % (uint64_t)l->opts.endpoints ? now_us : now_us + PAUSE_US;
}

static void on_lease_answer(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    etcd_lane_state_t *s = &l->lanes[ETCD_LEASE];
    bool is_grant = s->call == ETCD_GRANT;
    s->is_wanted = false;
    if (s->call == ETCD_REVOKE) {
        l->lease = 0;
        if (l->state == ETCD_ENDING) l->state = ETCD_ENDED;
        else lose(l, "its lease was over before etcd answered, and its members were sent to other brokers");
        return;
    }
    bool is_gone = a->code == ETCD_NOT_FOUND || !a->ttl_s || (is_grant && !a->lease);
    if (is_gone && !is_grant) {
        l->lease = 0;
        if (l->state == ETCD_LEADING || l->state == ETCD_READING) lose(l, "its lease in etcd has ended");
        return;
    }
    if (is_gone) {
        etcd_json_grant(want(l, ETCD_LEASE, ETCD_GRANT, now_us + PAUSE_US), l->opts.ttl_s);
        return;
    }
    if (is_grant) l->lease = a->lease;
    l->ttl_s = a->ttl_s;
    /* It was renewed after it was asked for, so it holds for longer than by this. */
    l->lease_us = s->sent_us + a->ttl_s * SECOND_US - a->ttl_s * SECOND_US / UNUSED_PART;
    etcd_json_lease(want(l, ETCD_LEASE, ETCD_KEEPALIVE, s->sent_us + a->ttl_s * SECOND_US / 3), l->lease);
    if (is_grant && l->state == ETCD_TAKING) take_leadership(l, now_us);
}

/* With the rows that it followed, and `meta` as TAKE has written it. */
static void lead(etcd_leader_t *l, const char *meta, uint64_t now_us)
{
    store_rows_t *rows = etcd_follow_take(&l->follow);
    int rc = rows_read(rows, bytes_of(META, strlen(META)), bytes_of(meta, strlen(meta)), &l->why);
    if (!rc) rc = rows_end_read(rows, &l->why);
    rows_destroy(&l->rows);
    l->rows = rows;
    if (rc) {
        stop(l, ETCD_REFUSED);
        return;
    }
    l->state = ETCD_LEADING;
    work(l)->is_wanted = false;
    end_following(l);
    read_brokers(l, now_us);
}

/* NULL: there is none. */
static void take_looked(etcd_leader_t *l, const etcd_answer_t *a, const etcd_kv_t **ret_meta,
                        const etcd_kv_t **ret_leader)
{
    *ret_meta = *ret_leader = NULL;
    l->import_revision = l->last_revision = 0;
    l->last_marker[0] = 0;
    l->is_moved = false;
    for (size_t i = 0; i < a->kv_count; i++) {
        const etcd_kv_t *kv = &a->kvs[i];
        bytes_t key = short_key(l, kv->key);
        if (is_key(key, META) && kv->value.bytes) *ret_meta = kv;
        if (is_key(key, LEADER) && kv->value.bytes) *ret_leader = kv;
        if (is_key(key, IMPORT)) {
            l->import_revision = kv->mod_revision;
            l->is_moved = is_key(kv->value, MOVED);
        }
        if (!is_key(key, LAST) || !kv->value.bytes) continue;
        l->last_revision = kv->mod_revision;
        text_printf(l->last_marker, sizeof l->last_marker, "%.*s", (int)kv->value.bytes,
                    (const char *)kv->value.data);
        if (!is_key(kv->value, l->last_marker)) l->last_marker[0] = 0; /* another program's: no marker */
    }
}

/* None leads, or this one does by a TAKE whose answer was lost, and rows are missing.  A lease that ends
 * meanwhile ends nothing of what was read. */
static void read_first(etcd_leader_t *l, bool may_come, uint64_t now_us)
{
    if (l->follow.bad.code) {
        l->why = l->follow.bad;
        stop(l, ETCD_REFUSED);
        return;
    }
    follow_on(l, may_come, now_us);
    etcd_lane_state_t *s = &l->lanes[ETCD_FOLLOW];
    if (l->follow.state == ETCD_UNREAD && !s->is_sent) s->due_us = now_us;
    look(l, l->state, now_us + (may_come ? HURRY_US : ETCD_POLL_MS * 1000ull));
}

/* By a TAKE whose answer was lost.  Without what that wrote, as an etcd may say, there are no rows to lead
 * with. */
static void lead_by_own_key(etcd_leader_t *l, const etcd_kv_t *leader, uint64_t now_us)
{
    char meta[ROWS_META_BYTES];
    l->created_revision = leader->create_revision;
    bool has_rows = *l->last_marker && !strcmp(l->last_marker, l->marker);
    if (l->opts.purpose != ETCD_SERVE || !has_rows) {
        start_reading(l, now_us);
        return;
    }
    rows_meta(rows_cluster(l->rows), rows_epoch(l->rows), meta);
    lead(l, meta, now_us);
}

static void on_looked(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    const etcd_kv_t *meta, *leader;
    take_looked(l, a, &meta, &leader);
    if (!may_be_taken(l, meta, now_us)) return;
    if (!meta && l->must_wait) {
        wait_for_any_registry(l, now_us);
        return;
    }
    if (!meta && l->is_alone && l->opts.purpose == ETCD_SERVE && now_us < l->may_make_us) {
        l->is_alone = false; /* those that knew a registry show themselves when etcd answers them */
        look(l, ETCD_STANDBY, now_us + ETCD_POLL_MS * 1000ull);
        return;
    }
    if (!meta && !l->is_alone) {
        check(l, 0, now_us);
        return;
    }
    if (meta) l->is_alone = false;
    l->meta_revision = meta ? meta->mod_revision : 0;
    follow_anew_if_restored(l, now_us);
    bool may_come = is_catching_up(l, now_us), was_gone = l->is_gone;
    l->is_gone = false;
    bool leads = leader && is_own(l, leader);
    if (!leader) l->other[0] = 0;
    if ((!leader || leads) && lacks_rows(l)) {
        read_first(l, may_come, now_us);
    } else if (!leader) {
        take_or_grant(l, now_us);
    } else if (leads) {
        lead_by_own_key(l, leader, now_us);
    } else {
        note_other(l, leader);
        l->is_full = false;
        follow_on(l, may_come, now_us);
        look(l, ETCD_STANDBY, was_gone ? now_us : now_us + ETCD_POLL_MS * 1000ull);
        show_standby(l, now_us);
    }
}

static void on_taken(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    if (a->code == ETCD_NOT_FOUND) l->lease = 0; /* the lease */
    if (a->code || !a->succeeded) {
        look(l, ETCD_LOOKING, now_us);
        return;
    }
    l->created_revision = a->revision;
    l->is_full = false;
    if (l->opts.own) take_brokers(l, a, now_us);
    /* TAKE wrote `last`, too, and that may have been followed by now. */
    bool has_rows = l->took_revision && (etcd_follow_has(&l->follow, l->took_revision, l->last_marker) ||
                                         etcd_follow_has(&l->follow, a->revision, l->marker));
    char meta[ROWS_META_BYTES];
    next_meta(l, meta);
    if (has_rows) lead(l, meta, now_us);
    else if (l->took_revision) look(l, ETCD_LOOKING, now_us); /* they are read anew, and then it leads */
    else start_reading(l, now_us);
}

/* Etcd says that it has no room also of a transaction that it has done, where that was the one that filled
 * it.  No earlier try of this one is under way, so what is there now stays. */
static void look_up_commit(etcd_leader_t *l, int code, uint64_t now_us)
{
    etcd_txn_t t;
    etcd_txn_begin(&t, want(l, ETCD_WORK, ETCD_TXN, now_us), l->opts.prefix);
    etcd_txn_get(&t, LEADER);
    etcd_txn_get(&t, LAST);
    etcd_txn_end(&t);
    work(l)->is_unknown = true;
    l->refused = code;
}

/* An etcd without room grants no lease, and takes no leader's key: it is asked again once a second. */
static void stand_by_for_room(etcd_leader_t *l, uint64_t now_us)
{
    l->is_full = true;
    look(l, ETCD_STANDBY, now_us + SECOND_US);
}

static void on_refusal(etcd_leader_t *l, etcd_lane_state_t *s, const etcd_answer_t *a, int code,
                       uint64_t now_us)
{
    if (l->state == ETCD_LEADING && l->is_committing && s == work(l)) {
        error_fail(&l->why, code, "etcd refuses a transaction: %s", a->message);
        error_hint(&l->why, "%s", refusal_hint(code));
        if (s->is_unknown) { /* an earlier try may have happened: only a comparison says so */
            l->is_refused = true;
            s->is_sent = false;
            s->due_us = now_us + SECOND_US;
            return;
        }
        if (code == HEDDLE_ERR_NO_SPACE) look_up_commit(l, code, now_us);
        else end_commit(l, code);
    } else if (l->state == ETCD_LEADING || l->state == ETCD_ENDING ||
               (code == HEDDLE_ERR_NO_SPACE && l->opts.purpose == ETCD_SERVE)) {
        s->is_sent = false;
        s->due_us = now_us + SECOND_US;
        if (l->state == ETCD_TAKING) stand_by_for_room(l, now_us);
    } else if (l->state == ETCD_CHECKING && l->checked && code == HEDDLE_ERR_DENIED && s == work(l)) {
        on_checked(l, NULL, now_us);
    } else {
        refuse(l, code, "it refuses a request", a->message, refusal_hint(code));
    }
}

static void on_work_answer(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    switch (l->state) {
    case ETCD_LOOKING:
    case ETCD_STANDBY: on_looked(l, a, now_us); break;
    case ETCD_CHECKING: on_checked(l, a, now_us); break;
    case ETCD_TAKING: on_taken(l, a, now_us); break;
    case ETCD_READING:
        if (a->code == ETCD_OUT_OF_RANGE) start_reading(l, now_us); /* what it had was compacted */
        else on_page(l, a, now_us);
        break;
    case ETCD_LEADING:
        if (!l->is_committing) work(l)->is_wanted = false;
        else if (a->succeeded && !l->refused) end_commit(l, HEDDLE_OK);
        else on_failed_commit(l, a);
        break;
    default: work(l)->is_wanted = false; break;
    }
}

/* An etcd without users needs no token. */
static void on_login_answer(etcd_leader_t *l, const etcd_answer_t *a, uint64_t now_us)
{
    etcd_lane_state_t *s = &l->lanes[ETCD_LOGIN];
    if (a->token) buf_add(&l->token, a->token, strlen(a->token) + 1);
    if ((a->token && !l->token.failed) || a->code == ETCD_PRECONDITION) {
        s->is_wanted = false;
        l->denied.code = 0;
        l->failures = 0;
        return;
    }
    const char *why = *a->message ? a->message : "it gives no token";
    const char *hint = "see the user and password in the file of --store-user";
    if (l->state != ETCD_LEADING && l->state != ETCD_ENDING) {
        refuse(l, HEDDLE_ERR_DENIED, "it does not let this user in", why, hint);
        return;
    }
    s->is_sent = false;
    s->due_us = now_us + SECOND_US;
    l->failures = 0;
    note_denial(l, ETCD_LOGIN, "does not let this user in", why, hint);
    if (!l->is_committing || work(l)->is_sent || work(l)->is_unknown) return;
    l->why = l->denied;
    error_hint(&l->why, "nothing was recorded; %s", hint);
    end_commit(l, HEDDLE_ERR_DENIED);
}

static bool is_reading(const etcd_leader_t *l, etcd_lane_t lane)
{
    return lane == ETCD_WORK && l->state == ETCD_READING;
}

/* The answers that an error may be, beside no answer at all.  A page that is asked for because there are more
 * rows has some. */
static bool is_expected(const etcd_leader_t *l, etcd_lane_t lane, const etcd_answer_t *a)
{
    bool is_page = is_reading(l, lane);
    if (!a->code) return !is_page || a->kv_count || (!l->page_revision && !a->has_more);
    if (lane == ETCD_LEASE) return a->code == ETCD_NOT_FOUND;
    return (l->state == ETCD_TAKING && a->code == ETCD_NOT_FOUND) ||
           (is_page && a->code == ETCD_OUT_OF_RANGE);
}

static void refuse_start(etcd_leader_t *l)
{
    if (l->is_untrusted)
        refuse(l, HEDDLE_ERR_DENIED, "no endpoint can be trusted", l->trouble,
               "see --store-ca, --store-cert and --store-key, and that etcd's certificate names the host of "
               "--store");
    else
        refuse(l, HEDDLE_ERR_UNAVAILABLE, "no endpoint answers", l->trouble,
               "see that etcd runs, that --store names its client addresses, and, where it asks for "
               "certificates, --store-cert and --store-key");
}

static void on_no_answer(etcd_leader_t *l, etcd_lane_t lane, uint64_t now_us)
{
    etcd_lane_state_t *s = &l->lanes[lane];
    try_again(l, s, now_us);
    if (!etcd_leader_is_answered(l)) l->may_make_us = now_us + (l->opts.ttl_s + 1) * SECOND_US;
    bool may_wait = l->opts.purpose != ETCD_SERVE && !l->is_untrusted; /* as long as its caller says */
    if (l->state == ETCD_LOOKING && !l->was_answered && !may_wait &&
        now_us - l->began_us >= ETCD_START_MS * 1000ull)
        refuse_start(l);
    else if (l->state == ETCD_TAKING && lane == ETCD_WORK)
        look(l, ETCD_LOOKING, s->due_us); /* did it take? */
    else if (l->state == ETCD_LEADING && lane != ETCD_LEASE && l->is_committing && !work(l)->is_sent &&
             !work(l)->is_unknown && now_us >= l->lease_us) {
        error_fail(&l->why, HEDDLE_ERR_UNAVAILABLE, "no endpoint of etcd can be reached");
        error_hint(&l->why, "nothing was recorded; see that etcd runs");
        end_commit(l, HEDDLE_ERR_UNAVAILABLE);
    }
}

void etcd_leader_answer(etcd_leader_t *l, etcd_lane_t lane, etcd_outcome_t outcome, bytes_t body,
                        uint64_t now_us)
{
    etcd_lane_state_t *s = &l->lanes[lane];
    arena_t arena = {0};
    etcd_answer_t a;
    if (!s->is_wanted || !s->is_sent) return;
    if (lane == ETCD_FOLLOW) {
        on_followed(l, outcome, body, now_us);
        return;
    }
    if (lane == ETCD_BROKERS) {
        on_brokers(l, outcome, body, now_us);
        return;
    }
    bool is_read = outcome == ETCD_ANSWERED && etcd_answer_read(body, &arena, &a);
    bool is_page = is_reading(l, lane);
    if (is_read) l->was_answered = true;
    int code = is_read ? refusal(&a) : 0;
    if (is_read && lane == ETCD_LOGIN && (code || !a.code || a.code == ETCD_PRECONDITION)) {
        on_login_answer(l, &a, now_us);
    } else if (is_read && lane != ETCD_LOGIN && needs_login(l, &a)) {
        s->is_sent = false;
        s->due_us = now_us;
        if (!is_logging_in(l)) log_in(l, now_us);
    } else if (code) {
        on_refusal(l, s, &a, code, now_us);
    } else if (is_read && is_expected(l, lane, &a)) {
        l->failures = 0;
        l->steps += lane == ETCD_WORK;
        if (is_page) etcd_page_came(&l->follow.page, body.bytes);
        if (lane == ETCD_LEASE) on_lease_answer(l, &a, now_us);
        else on_work_answer(l, &a, now_us);
    } else {
        const char *said = !is_read ? ""
                           : a.code ? a.message
                                    : "it says that more rows follow, and sends none";
        note_trouble(l, outcome, is_read, is_read ? bytes_of(said, strlen(said)) : body);
        if (outcome != ETCD_UNSENT && outcome != ETCD_UNTRUSTED) s->is_unknown = true;
        on_no_answer(l, lane, now_us);
        if (is_page && is_no_page(outcome, is_read ? &a : NULL)) {
            etcd_page_failed(&l->follow.page);
            read_page(l, s->due_us);
        }
    }
    arena_fini(&arena);
}

bool etcd_leader_next(etcd_leader_t *l, etcd_lane_t lane, uint64_t now_us, etcd_request_t *ret_request)
{
    etcd_lane_state_t *s = &l->lanes[lane];
    yield_if_due(l, now_us);
    if (l->state == ETCD_ENDING && now_us >= l->began_us + ETCD_END_MS * 1000ull) stop(l, ETCD_ENDED);
    if (!s->is_wanted || s->is_sent || now_us < s->due_us || (lane != ETCD_LOGIN && is_logging_in(l)))
        return false;
    if (s->body.failed) { /* no memory: once more later, as if no endpoint had answered */
        s->due_us = now_us + SECOND_US;
        return false;
    }
    s->is_sent = true;
    s->sent_us = now_us;
    if (lane == ETCD_WORK) l->asked_revision = l->follow.last_revision;
    *ret_request = (etcd_request_t){.call = s->call,
                                    .endpoint = l->endpoint,
                                    .timeout_ms = time_for(l, lane),
                                    .token = l->token.bytes ? (const char *)l->token.data : NULL,
                                    .body = buf_view(&s->body)};
    return true;
}

uint64_t etcd_leader_due(const etcd_leader_t *l)
{
    uint64_t due_us = l->state == ETCD_ENDING ? l->began_us + ETCD_END_MS * 1000ull : yield_due(l);
    for (int i = 0; i < ETCD_LANES; i++)
        if (l->lanes[i].is_wanted && !l->lanes[i].is_sent && (i == ETCD_LOGIN || !is_logging_in(l)))
            due_us = clock_earlier(due_us, l->lanes[i].due_us);
    return due_us;
}

/* ---- begin and end ---- */

int etcd_leader_init(etcd_leader_t *l, const etcd_leader_opts_t *opts, uint64_t now_us, heddle_error_t *error)
{
    *l = (etcd_leader_t){.opts = *opts, .began_us = now_us, .was_answered = opts->led != NULL};
    text_printf(l->known, sizeof l->known, "%s", opts->led ? opts->led : "");
    etcd_follow_init(&l->follow);
    int rc = rows_new(&l->rows, error);
    if (!rc) look(l, ETCD_LOOKING, now_us);
    if (!rc && l->opts.user) log_in(l, now_us);
    return rc;
}

void etcd_leader_fini(etcd_leader_t *l)
{
    rows_destroy(&l->rows);
    etcd_follow_fini(&l->follow);
    for (int i = 0; i < ETCD_LANES; i++) buf_fini(&l->lanes[i].body);
    buf_fini(&l->after);
    buf_fini(&l->token);
}

/* The key goes with its lease, so that the next broker need not wait for its end. */
void etcd_leader_end(etcd_leader_t *l, uint64_t now_us)
{
    bool has_lease = l->lease != 0;
    stop(l, has_lease ? ETCD_ENDING : ETCD_ENDED);
    l->began_us = now_us;
    if (has_lease) revoke(l, now_us);
}
