/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/etcd.h"

#include "broker/store/etcd_http.h"
#include "broker/store/etcd_leader.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/errors.h"
#include "core/owner.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

enum { SLEEP_MAX_MS = 1000, LOAD_TURN_US = 50000 };

struct etcd {
    owner_t owner;
    const clock_ops_t *clock;
    char *url, *parts; /* `parts`: the same, cut into the prefix and the endpoints */
    char *ca, *cert, *key, *user, *password;
    const char *prefix;
    char *urls[ETCD_ENDPOINTS];
    int url_count;
    char run[40], fresh[17], holder[STANDBY_HOLDER_BYTES];
    brokers_row_t own;
    etcd_leader_t leader;
    etcd_http_t *http;
    void (*on_wait)(void *self, const etcd_wait_t *now);
    void *self;
    uint32_t patience_ms;
    uint64_t steps, stepped_us; /* of the leader, when it was waited for last */
};

/* ---- the address ---- */

static bool is_prefix(const char *text)
{
    size_t length = strlen(text);
    static const char ALLOWED[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
    return length > 0 && length < ETCD_PREFIX_BYTES && strspn(text, ALLOWED) == length && text[0] != '/' &&
           text[length - 1] != '/' && !strstr(text, "//");
}

/* HOST:PORT, with an IPv6 address in brackets. */
static bool is_endpoint(const char *text)
{
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || strlen(text) > 255 || strpbrk(text, "@?# \t%\\\"")) return false;
    size_t digits = strspn(colon + 1, "0123456789");
    bool is_host = *text == '[' ? colon[-1] == ']' : memchr(text, ':', (size_t)(colon - text)) == NULL;
    return is_host && digits > 0 && digits <= 5 && !colon[1 + digits] && atoi(colon + 1) > 0 &&
           atoi(colon + 1) <= 65535;
}

static bool is_encrypted(const char *url) { return !strncmp(url, "etcds://", 8); }

/* Cuts `parts` in place.  The number of endpoints; 0: not an address of an etcd. */
static int cut(char *parts, const char **ret_prefix, const char *endpoints[ETCD_ENDPOINTS])
{
    int count = 0;
    bool is_safe = is_encrypted(parts);
    if (!is_safe && strncmp(parts, "etcd://", 7)) return 0;
    char *at = parts + (is_safe ? 8 : 7), *slash = strchr(at, '/');
    if (!slash || !is_prefix(slash + 1)) return 0;
    *slash = 0;
    *ret_prefix = slash + 1;
    while (at) {
        char *comma = strchr(at, ',');
        if (comma) *comma = 0;
        if (count == ETCD_ENDPOINTS || !is_endpoint(at)) return 0;
        endpoints[count++] = at;
        at = comma ? comma + 1 : NULL;
    }
    return count;
}

/* Of HOST:PORT. */
static bool is_loopback(const char *endpoint)
{
    size_t bytes = (size_t)(strrchr(endpoint, ':') - endpoint);
    return (bytes == 9 && !strncasecmp(endpoint, "localhost", 9)) ||
           (bytes == 5 && !strncmp(endpoint, "[::1]", 5)) ||
           (!strncmp(endpoint, "127.", 4) && strspn(endpoint, "0123456789.") == bytes);
}

bool etcd_is_exposed(const char *url)
{
    const char *prefix, *endpoints[ETCD_ENDPOINTS];
    char *parts = is_encrypted(url) ? NULL : strdup(url);
    bool is_exposed = false;
    int count = parts ? cut(parts, &prefix, endpoints) : 0;
    for (int i = 0; i < count; i++) is_exposed = is_exposed || !is_loopback(endpoints[i]);
    free(parts);
    return is_exposed;
}

/* A password is not repeated: the error goes to logs. */
static int refuse_url(const char *url, heddle_error_t *error)
{
    int rc;
    if (strchr(url, '@')) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "--store: a user is not named in the address of an etcd");
        error_hint(error,
                   "write USER:PASSWORD into a file for its owner alone, and name it with --store-user");
        return rc;
    }
    rc = error_fail(error, HEDDLE_ERR_USAGE, "--store: %.200s is not the address of an etcd", url);
    error_expected(error, "etcd://HOST:PORT[,HOST:PORT...]/PREFIX or etcds://..., up to %d endpoints",
                   ETCD_ENDPOINTS);
    error_hint(error, "the prefix is for this cluster alone, for instance etcd://etcd-0:2379/heddle/prod");
    return rc;
}

static int check_url(const char *url, heddle_error_t *error)
{
    const char *prefix, *endpoints[ETCD_ENDPOINTS];
    char *parts = strdup(url);
    if (!parts) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory");
    int count = cut(parts, &prefix, endpoints);
    free(parts);
    return count ? HEDDLE_OK : refuse_url(url, error);
}

int etcd_check(const etcd_opts_t *o, heddle_error_t *error)
{
    int rc = check_url(o->url, error);
    if (rc) return rc;
    const char *alone = o->ca ? "--store-ca" : o->cert ? "--store-cert" : o->key ? "--store-key" : NULL;
    if (alone && !is_encrypted(o->url)) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "%s is for an encrypted --store", alone);
        error_contrast(error, "etcds://...", o->url);
    } else if (!o->cert != !o->key) {
        rc = error_fail(error, HEDDLE_ERR_USAGE, "--store-cert and --store-key go together");
        error_contrast(error, "both, or neither", o->cert ? "--store-cert alone" : "--store-key alone");
    }
    return rc;
}

static bool copy_text(char **to, const char *text)
{
    *to = text ? strdup(text) : NULL;
    return !text || *to;
}

static int take_opts(etcd_t *e, const etcd_opts_t *o, heddle_error_t *error)
{
    bool is_good = copy_text(&e->ca, o->ca) && copy_text(&e->cert, o->cert) && copy_text(&e->key, o->key) &&
                   copy_text(&e->user, o->user) && copy_text(&e->password, o->password);
    return is_good ? HEDDLE_OK : error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the store");
}

static int take_url(etcd_t *e, const char *url, heddle_error_t *error)
{
    const char *endpoints[ETCD_ENDPOINTS];
    e->url = strdup(url);
    e->parts = strdup(url);
    if (!e->url || !e->parts) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the store");
    int count = cut(e->parts, &e->prefix, endpoints);
    if (!count) return refuse_url(url, error);
    for (; e->url_count < count; e->url_count++)
        if (asprintf(&e->urls[e->url_count], "http%s://%s", is_encrypted(url) ? "s" : "",
                     endpoints[e->url_count]) < 0) {
            e->urls[e->url_count] = NULL;
            return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the store");
        }
    return HEDDLE_OK;
}

/* ---- a turn ---- */

static void on_end(void *self, etcd_lane_t lane, etcd_outcome_t outcome, bytes_t body)
{
    etcd_t *e = self;
    etcd_leader_answer(&e->leader, lane, outcome, body, clock_now(e->clock));
}

/* libcurl reads a request's body where it is, and it is written anew with what is wanted next, which may not
 * be sent for a while: the transfer before ends with it. */
static void send_what_is_due(etcd_t *e)
{
    etcd_request_t request;
    for (int i = 0; i < ETCD_LANES; i++) {
        uint64_t now_us = clock_now(e->clock);
        const etcd_lane_state_t *lane = &e->leader.lanes[i];
        if (!lane->is_wanted || !lane->is_sent) etcd_http_stop(e->http, (etcd_lane_t)i);
        if (etcd_leader_next(&e->leader, (etcd_lane_t)i, now_us, &request) &&
            !etcd_http_send(e->http, (etcd_lane_t)i, &request))
            etcd_leader_answer(&e->leader, (etcd_lane_t)i, ETCD_UNSENT, bytes_of("", 0), now_us);
    }
}

void etcd_turn(etcd_t *e)
{
    owner_check(&e->owner);
    etcd_http_turn(e->http, clock_now(e->clock));
    send_what_is_due(e);
}

int etcd_fd(const etcd_t *e) { return etcd_http_fd(e->http); }

uint64_t etcd_due(const etcd_t *e)
{
    return clock_earlier(etcd_http_due(e->http), etcd_leader_due(&e->leader));
}

/* Sleeps until there is something to do.  False: the caller of etcd_open wants it to end. */
static bool wait_for_more(const etcd_t *e, const etcd_opts_t *opts)
{
    struct pollfd fd = {.fd = etcd_fd(e), .events = POLLIN};
    uint64_t now_us = clock_now(e->clock);
    uint64_t until_us = clock_earlier(etcd_due(e), now_us + SLEEP_MAX_MS * 1000ull);
    if (opts && opts->wait) return opts->wait(opts->self, fd.fd, until_us);
    (void)poll(&fd, 1, until_us <= now_us ? 0 : (int)((until_us - now_us + 999) / 1000));
    return true;
}

static void begin_wait(etcd_t *e)
{
    e->steps = e->leader.steps;
    e->stepped_us = clock_now(e->clock);
}

/* A lane that is answered beside the one that is waited for says nothing: its lease may be renewed by an etcd
 * that takes no transaction. */
static int wait_on(etcd_t *e, heddle_error_t *error)
{
    if (e->steps != e->leader.steps) begin_wait(e);
    uint64_t silent_ms = (clock_now(e->clock) - e->stepped_us) / 1000;
    etcd_wait_t now = {rows_count(e->leader.rows), (uint32_t)silent_ms, e->leader.trouble};
    if (e->on_wait) e->on_wait(e->self, &now);
    if (!e->patience_ms || silent_ms < e->patience_ms) return HEDDLE_OK;
    int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE, "%.200s: etcd has not answered for %u s%s%.200s",
                        e->url, (unsigned)(silent_ms / 1000), *now.trouble ? ": " : "", now.trouble);
    error_hint(error, "see that etcd runs and has a majority");
    return rc;
}

/* ---- open and close ---- */

typedef struct {
    char leader[ETCD_HOLDER_BYTES];
    etcd_standing_t standing;
    bool is_stuck;
} said_t;

static void say_stuck(const etcd_t *e, const etcd_opts_t *opts, said_t *said)
{
    heddle_error_t why;
    bool was_stuck = said->is_stuck;
    said->is_stuck = etcd_leader_is_stuck(&e->leader, &why);
    if (said->is_stuck && !was_stuck && opts->on_stuck) opts->on_stuck(opts->self, &why);
}

static void say_standby(const etcd_t *e, const etcd_opts_t *opts, said_t *said)
{
    etcd_standing_t now = {.is_following = etcd_leader_is_following(&e->leader),
                           .is_answered = etcd_leader_is_answered(&e->leader),
                           .is_full = e->leader.is_full,
                           .behind = etcd_leader_behind(&e->leader),
                           .anew_count = e->leader.follow.anew_count,
                           .why_anew = e->leader.follow.why_anew,
                           .refusal = etcd_leader_refusal(&e->leader)};
    if (strcmp(said->leader, e->leader.other)) {
        text_printf(said->leader, sizeof said->leader, "%s", e->leader.other);
        if (opts->on_standby) opts->on_standby(opts->self, said->leader);
    }
    if (e->leader.state != ETCD_STANDBY) return;
    if (now.is_following == said->standing.is_following && now.behind == said->standing.behind &&
        now.is_answered == said->standing.is_answered && now.is_full == said->standing.is_full &&
        now.anew_count == said->standing.anew_count && !now.refusal == !said->standing.refusal)
        return;
    said->standing = now;
    if (opts->on_follow) opts->on_follow(opts->self, &now);
}

/* A broker that leads may lead for long.  The lease of a command that was killed ends soon, too. */
static int refuse_locked(const etcd_t *e, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DATA_LOCKED, "%.200s is in use by %.150s", e->url, e->leader.other);
    error_expected(error, "a registry that no broker serves");
    error_hint(error,
               "stop its brokers, the standbys first; after a process that was killed, try again in %u s",
               (unsigned)e->leader.opts.ttl_s);
    return rc;
}

/* Until it leads, or cannot. */
static int become_leader(etcd_t *e, const etcd_opts_t *opts, heddle_error_t *error)
{
    said_t said = {0};
    begin_wait(e);
    for (;;) {
        etcd_turn(e);
        switch (e->leader.state) {
        case ETCD_LEADING: return HEDDLE_OK;
        case ETCD_LOST:
        case ETCD_REFUSED: *error = e->leader.why; return error->code;
        default:
            if (e->leader.state == ETCD_STANDBY && opts->purpose != ETCD_SERVE)
                return refuse_locked(e, error);
            say_standby(e, opts, &said);
            say_stuck(e, opts, &said);
            break;
        }
        int rc = wait_on(e, error);
        if (rc) return rc;
        if (!wait_for_more(e, opts))
            return error_fail(error, HEDDLE_ERR_INTERRUPTED, "a signal came before this broker led");
    }
}

static void name_run(etcd_t *e, const etcd_opts_t *opts)
{
    uint8_t bytes[24];
    char host[HEDDLE_NAME_MAX + 1] = "";
    random_bytes(bytes, sizeof bytes);
    snprintf(e->run, sizeof e->run, "%016" PRIx64 "%016" PRIx64, le64_get(bytes), le64_get(bytes + 8));
    snprintf(e->fresh, sizeof e->fresh, "%016" PRIx64, le64_get(bytes + 16));
    gethostname(host, sizeof host - 1);
    const char *key = opts->public_key ? opts->public_key : "";
    standby_holder(opts->endpoint, (int)getpid(), host, key, e->holder);
    e->own.pid = (uint64_t)getpid();
    text_printf(e->own.endpoint, sizeof e->own.endpoint, "%s", opts->endpoint);
    text_printf(e->own.release, sizeof e->own.release, "%s", heddle_version());
    text_printf(e->own.key, sizeof e->own.key, "%s", key);
}

int etcd_open(const etcd_opts_t *opts, etcd_t **ret_etcd, heddle_error_t *error)
{
    etcd_t *e = calloc(1, sizeof *e);
    if (!e) return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory for the store");
    owner_check(&e->owner);
    e->clock = clock_system();
    name_run(e, opts);
    e->on_wait = opts->on_wait;
    e->self = opts->self;
    e->patience_ms = opts->patience_ms;
    int rc = take_url(e, opts->url, error);
    if (!rc) rc = take_opts(e, opts, error);
    bool is_import = opts->purpose == ETCD_IMPORT;
    if (is_import) text_printf(e->fresh, sizeof e->fresh, "%s", opts->cluster);
    etcd_leader_opts_t leader = {.purpose = opts->purpose,
                                 .epoch = opts->import_epoch,
                                 .prefix = e->prefix,
                                 .run = e->run,
                                 .holder = e->holder,
                                 .cluster = is_import ? NULL : opts->cluster,
                                 .led = opts->led,
                                 .fresh = e->fresh,
                                 .user = e->user,
                                 .password = e->password,
                                 .own = opts->purpose == ETCD_SERVE ? &e->own : NULL,
                                 .endpoints = e->url_count,
                                 .ttl_s = (opts->lease_ms + 999) / 1000,
                                 .member_lease_ms = opts->member_lease_ms};
    if (!rc) rc = etcd_leader_init(&e->leader, &leader, clock_now(e->clock), error);
    etcd_http_opts_t http = {.urls = (const char *const *)e->urls,
                             .count = e->url_count,
                             .ca = e->ca,
                             .cert = e->cert,
                             .key = e->key,
                             .on_end = on_end,
                             .self = e};
    if (!rc) rc = etcd_http_new(&http, &e->http, error);
    if (!rc) rc = become_leader(e, opts, error);
    e->leader.opts.cluster = NULL;
    if (rc) etcd_close(&e);
    else *ret_etcd = e;
    return rc;
}

void etcd_close(etcd_t **etcd)
{
    etcd_t *e = *etcd;
    if (!e) return;
    *etcd = NULL;
    owner_check(&e->owner);
    if (e->http) {
        etcd_leader_end(&e->leader, clock_now(e->clock));
        send_what_is_due(e);
        while (etcd_turn(e), e->leader.state != ETCD_ENDED) wait_for_more(e, NULL);
        etcd_http_destroy(&e->http);
    }
    etcd_leader_fini(&e->leader);
    for (int i = 0; i < e->url_count; i++) free(e->urls[i]);
    if (e->password) explicit_bzero(e->password, strlen(e->password));
    char *texts[] = {e->ca, e->cert, e->key, e->user, e->password, e->parts, e->url};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) free(texts[i]);
    free(e);
}

bool etcd_is_answered(const etcd_t *e) { return etcd_leader_is_answered(&e->leader); }

const char *etcd_trouble(const etcd_t *e) { return e->leader.trouble; }

const brokers_t *etcd_brokers(etcd_t *e)
{
    brokers_t *b = &e->leader.brokers;
    b->own = e->own;
    b->is_answered = etcd_is_answered(e);
    b->has_yielded = etcd_leader_has_yielded(&e->leader);
    b->refusal = etcd_leader_refusal(&e->leader);
    return b;
}

bool etcd_has_followed(const etcd_t *e) { return e->leader.took_revision != 0; }

int etcd_lost(const etcd_t *e, heddle_error_t *error)
{
    if (e->leader.state != ETCD_LOST) return HEDDLE_OK;
    *error = e->leader.why;
    return error->code;
}

/* ---- rows ---- */

typedef struct {
    etcd_t *etcd;
    int (*each)(void *self, const record_t *record);
    void *self;
    heddle_error_t *error;
    uint64_t turned_us;
} loading_t;

/* To apply a large registry takes longer than a short lease, which is renewed meanwhile. */
static int load_one(void *self, const record_t *record)
{
    loading_t *l = self;
    uint64_t now_us = clock_now(l->etcd->clock);
    if (now_us - l->turned_us >= LOAD_TURN_US) {
        l->turned_us = now_us;
        etcd_turn(l->etcd);
        if (etcd_lost(l->etcd, l->error)) return l->error->code;
    }
    return l->each(l->self, record);
}

int etcd_load(etcd_t *e, int (*each)(void *self, const record_t *record), void *self, heddle_error_t *error)
{
    loading_t loading = {.etcd = e, .each = each, .self = self, .error = error};
    return rows_walk(e->leader.rows, load_one, &loading, error);
}

int etcd_config(etcd_t *e, const char *adapter, uint64_t version, buf_t *out, heddle_error_t *error)
{
    return rows_config(e->leader.rows, adapter, version, out, error);
}

int etcd_commit(etcd_t *e, const record_t *records, int count, heddle_error_t *error)
{
    owner_check(&e->owner);
    if (count == 0) return HEDDLE_OK;
    int rc = etcd_leader_commit(&e->leader, records, count, clock_now(e->clock), error);
    send_what_is_due(e);
    return rc;
}

bool etcd_committed(etcd_t *e, int *ret_rc, heddle_error_t *error)
{
    return etcd_leader_take_outcome(&e->leader, ret_rc, error);
}

/* Of a commit that has begun, for as long as etcd takes, or the caller has patience: it is never assumed. */
static int wait_for_outcome(etcd_t *e, heddle_error_t *error)
{
    int rc = HEDDLE_OK;
    begin_wait(e);
    while (etcd_turn(e), !etcd_committed(e, &rc, error)) {
        if (etcd_lost(e, error) || wait_on(e, error)) return error->code;
        wait_for_more(e, NULL);
    }
    return rc;
}

int etcd_read_again(etcd_t *e, heddle_error_t *error)
{
    owner_check(&e->owner);
    begin_wait(e);
    etcd_leader_read_again(&e->leader, clock_now(e->clock));
    while (etcd_turn(e), e->leader.state == ETCD_READING) {
        if (wait_on(e, error)) return error->code;
        wait_for_more(e, NULL);
    }
    if (e->leader.state == ETCD_LEADING) return HEDDLE_OK;
    *error = e->leader.why;
    return error->code;
}

int etcd_write(etcd_t *e, const record_t *records, int count, heddle_error_t *error)
{
    int rc = etcd_commit(e, records, count, error);
    return rc == HEDDLE_ERR_AGAIN ? wait_for_outcome(e, error) : rc;
}

int etcd_finish(etcd_t *e, heddle_error_t *error)
{
    owner_check(&e->owner);
    int rc = etcd_leader_finish(&e->leader, clock_now(e->clock), error);
    return rc == HEDDLE_ERR_AGAIN ? wait_for_outcome(e, error) : rc;
}

const char *etcd_url(const etcd_t *e) { return e->url; }
const char *etcd_prefix(const etcd_t *e) { return e->prefix; }
const char *etcd_cluster(const etcd_t *e) { return rows_cluster(e->leader.rows); }
uint64_t etcd_epoch(const etcd_t *e) { return rows_epoch(e->leader.rows); }
uint64_t etcd_bytes(const etcd_t *e) { return rows_bytes(e->leader.rows); }
uint64_t etcd_key_count(const etcd_t *e) { return rows_live_keys(e->leader.rows); }
