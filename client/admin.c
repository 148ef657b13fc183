/* SPDX-License-Identifier: Apache-2.0 */
#include <heddle/keys.h>

#include "client/admin.h"
#include "client/broker_address.h"
#include "client/opening.h"
#include "core/clock.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/sized.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 5000, WAIT_MS = 30000, ACTIVATE_MS = 10000, VERIFY_MS = 30000, EVENTS_LIMIT = 500 };

/* ---- arguments ---- */

/* Admin calls write their errors in place: the last error of the thread is the only result beside the
 * code. */
static int misused(const char *what) { return error_fail(error_last(), HEDDLE_ERR_USAGE, "%s", what); }

/* No options are those that are all 0. */
#define TAKE_OPTS(to, opts)                                                                                  \
    sized_take(&(to), sizeof(to), (opts) ? (const void *)(opts) : &(size_t){sizeof(size_t)},                 \
               "the struct of options", error_last())

/* The reference is parsed here, so that a misspelled name costs no round trip. */
static int take_ref(const char *ref, bool with_version, ref_t *ret_ref)
{
    if (!ref) return misused("the name of an adapter is missing");
    int rc = ref_parse(ref, ret_ref, error_last());
    if (!rc && with_version && !ret_ref->version) {
        rc = error_fail(error_last(), HEDDLE_ERR_USAGE, "\"%s\" names no version", ref);
        error_contrast(error_last(), "NAME@V, or a tag", ref);
        error_hint(error_last(), "`heddle versions %.128s` lists them", ref);
    }
    if (!rc && ret_ref->version > LIMIT_EXACT) { /* it fits no message, and no version will ever have it */
        rc = error_fail(error_last(), HEDDLE_ERR_NOT_FOUND, "there is no version %llu of %s",
                        (unsigned long long)ret_ref->version, ret_ref->name);
        error_where(error_last(), ret_ref->name, ret_ref->version, NULL, NULL);
        error_expected(error_last(), "a version up to %llu", (unsigned long long)LIMIT_EXACT);
        error_found(error_last(), "%llu", (unsigned long long)ret_ref->version);
        error_hint(error_last(), "`heddle versions %.128s` lists what there is", ret_ref->name);
    }
    return rc;
}

/* NULL and "" stand for "any". */
static int take_name(const char *what, const char *name)
{
    return name && name[0] ? name_check(what, name, error_last()) : HEDDLE_OK;
}

/* The list is borrowed until the question was sent. */
static int take_workers(const char *const *workers, msg_query_t *m)
{
    for (; workers && workers[m->worker_count]; m->worker_count++) {
        if (m->worker_count == LIMIT_NAMED_WORKERS) {
            error_fail(error_last(), HEDDLE_ERR_USAGE, "too many workers are named");
            error_expected(error_last(), "at most %u", LIMIT_NAMED_WORKERS);
            error_hint(error_last(), "leave the list out: every subscriber counts then");
            return HEDDLE_ERR_USAGE;
        }
        int rc = name_check("worker", workers[m->worker_count], error_last());
        if (rc) return rc;
    }
    m->workers = (const char **)(uintptr_t)workers; /* encoding only reads them */
    return HEDDLE_OK;
}

/* ---- asking ---- */

/* The answer is JSON text, since the broker's report is meant for people and scripts; the caller owns it. */
static int ask(heddle_admin_t *a, const msg_query_t *question, char **ret_json)
{
    if (!a || !ret_json) return misused("an admin handle and a place for the answer are needed");
    json_t *body = NULL;
    int rc = query_ask(a->query, question, &body, error_last());
    if (!body) return rc;
    char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(15));
    json_decref(body);
    if (!text)
        return error_fail(error_last(), HEDDLE_ERR_NO_MEMORY, "no memory is left for the broker's answer");
    *ret_json = text;
    return rc;
}

/* False: no memory. NULL stays NULL. */
static bool keep_text(const char *text, char **ret_copy)
{
    *ret_copy = text ? strdup(text) : NULL;
    return !text || *ret_copy;
}

/* The connection is begun and not awaited: the first question waits for it, with its own timeout. */
int heddle_admin_open(const heddle_admin_opts_t *given, heddle_admin_t **ret_admin)
{
    heddle_admin_opts_t opts;
    int rc = TAKE_OPTS(opts, given);
    if (rc) return rc;
    if (!ret_admin) return misused("a place for the handle is needed");
    heddle_admin_t *a = calloc(1, sizeof *a);
    if (!a) return error_fail(error_last(), HEDDLE_ERR_NO_MEMORY, "no memory is left for a client");
    contexts_t contexts;
    rc = opening_context(&opts.broker, &opts.broker_key, &opts.key, &contexts, error_last());
    if (!rc && !(keep_text(opts.broker, &a->broker) && keep_text(opts.broker_key, &a->broker_key) &&
                 keep_text(opts.key, &a->key)))
        rc = error_fail(error_last(), HEDDLE_ERR_NO_MEMORY, "no memory is left for a client");
    credentials_t keys = {.broker_key = opts.broker_key,
                          .key = opts.key,
                          .makes_no_file = opts.makes_no_file != 0};
    uint32_t timeout_ms = opts.timeout_ms ? opts.timeout_ms : TIMEOUT_MS;
    if (!rc) rc = query_open(opts.broker, &keys, timeout_ms, &a->query, error_last());
    contexts_fini(&contexts);
    if (rc) heddle_admin_close(&a);
    else *ret_admin = a;
    return rc;
}

void heddle_admin_close(heddle_admin_t **admin)
{
    heddle_admin_t *a = admin ? *admin : NULL;
    if (!a) return;
    *admin = NULL;
    query_close(&a->query);
    free(a->broker);
    free(a->broker_key);
    free(a->key);
    free(a);
}

void heddle_admin_interrupt(heddle_admin_t *a) { query_interrupt(a->query); }

/* ---- keys ---- */

int heddle_admin_keys(heddle_admin_t *a, char **ret_json)
{
    return ask(a, &(msg_query_t){.op = "keys"}, ret_json);
}

/* A key is revoked by its name and added by itself: the hint names the key that has that name, or had it. */
static void hint_at_named(heddle_admin_t *a, const char *name)
{
    heddle_error_t why = *error_last(), ignored;
    json_t *table = NULL;
    if (a && name_is_valid(name) && !query_ask(a->query, &(msg_query_t){.op = "keys"}, &table, &ignored)) {
        const json_t *row, *list = json_object_get(table, "keys");
        size_t i;
        json_array_foreach(list, i, row)
        {
            const char *its = json_string_value(json_object_get(row, "name"));
            const char *key = json_string_value(json_object_get(row, "public_key"));
            bool is_revoked = !json_is_null(json_object_get(row, "revoked_at"));
            if (!its || !key || strcmp(its, name) != 0) continue;
            error_hint(&why, "%s is the name of the key '%s'%s: give the key in its place", name, key,
                       is_revoked ? ", which was revoked" : "");
            if (!is_revoked) break;
        }
    }
    json_decref(table);
    *error_last() = why;
}

/* The key may be a file, whose public part is what the broker needs. */
int heddle_admin_key_add(heddle_admin_t *a, const char *key, const char *name, const char *const *roles,
                         char **ret_json)
{
    char public_key[KEY_TEXT];
    msg_query_t m = {.op = "key_add", .key = public_key, .name = name};
    if (!key) return misused("the key is missing");
    int rc = take_name("key", name);
    if (!rc) rc = key_take(key, public_key, error_last());
    if (!rc && credentials_is_own_secret(a ? a->key : NULL, public_key)) rc = key_is_secret(error_last());
    if (rc == HEDDLE_ERR_NOT_FOUND) hint_at_named(a, key);
    if (rc) return rc;
    while (roles && roles[m.role_count])
        if (++m.role_count > LIMIT_ROLES) return misused("a key has fewer roles");
    m.roles = (const char **)(uintptr_t)roles; /* encoding only reads them */
    return ask(a, &m, ret_json);
}

/* A key may be named by its name or by itself; a text that could be both counts as the key. */
static int ask_to_revoke(heddle_admin_t *a, const char *op, const char *key, char **ret_json)
{
    char public_key[KEY_TEXT];
    if (!key) return misused("the key is missing");
    if (name_is_valid(key) && !key_is_valid(key))
        return ask(a, &(msg_query_t){.op = op, .name = key}, ret_json);
    int rc = key_take(key, public_key, error_last());
    return rc ? rc : ask(a, &(msg_query_t){.op = op, .key = public_key}, ret_json);
}

int heddle_admin_key_revoke(heddle_admin_t *a, const char *key, char **ret_json)
{
    return ask_to_revoke(a, "key_revoke", key, ret_json);
}

int heddle_admin_key_revoke_entered(heddle_admin_t *a, const char *invitation, char **ret_json)
{
    return ask_to_revoke(a, "key_revoke_entered", invitation, ret_json);
}

/* ---- invitations ---- */

enum { INVITE_MS = 3600000 };

static bool is_everywhere(const char *endpoint)
{
    return !strncmp(endpoint, "tcp://0.0.0.0:", 14) || !strncmp(endpoint, "tcp://*:", 8) ||
           !strncmp(endpoint, "tcp://[::]:", 11);
}

/* Where other hosts reach the broker: as the caller says; as it was reached, if that leads over a network;
 * where it listens.  *ret_loopback: this host alone reaches it. */
static int choose_addresses(const heddle_admin_t *a, const char *given, const char *listens,
                            char ret_endpoints[JOIN_STRING_ENDPOINTS], bool *ret_loopback)
{
    bool asked_here = true;
    const char *asked = broker_address(a->broker), *chosen = given;
    (void)wire_check_endpoints(asked, &asked_here,
                               error_last()); /* it was checked when the handle was opened */
    if (!chosen && asked_here && listens && is_everywhere(listens)) {
        int rc = misused("the broker listens on all addresses of its host, and none is named for others");
        error_contrast(error_last(), "tcp://HOST:PORT, as other hosts reach it", listens);
        error_hint(error_last(), "name it with opts.address");
        return rc;
    }
    bool listens_here = true;
    if (listens) (void)wire_check_endpoint(listens, true, &listens_here, error_last());
    if (!chosen) chosen = asked_here && !listens_here ? listens : asked;
    int rc = wire_check_endpoints(chosen, ret_loopback, error_last());
    if (!rc && strlen(chosen) >= JOIN_STRING_ENDPOINTS) rc = misused("the addresses are too long");
    if (!rc) text_printf(ret_endpoints, JOIN_STRING_ENDPOINTS, "%s", chosen);
    return rc;
}

/* The broker's key and addresses, as the broker itself says them over a connection with keys. */
static int take_broker(heddle_admin_t *a, const char *address, join_string_t *ret_string, bool *ret_loopback)
{
    json_t *status = NULL;
    int rc = query_ask(a->query, &(msg_query_t){.op = "status"}, &status, error_last());
    const json_t *broker = json_object_get(status, "broker");
    const char *key = json_string_value(json_object_get(broker, "public_key"));
    const char *listens = json_string_value(json_object_get(broker, "endpoint"));
    if (!rc && (!key || !key_is_valid(key))) {
        rc = error_fail(error_last(), HEDDLE_ERR_DENIED,
                        "this broker runs without keys, and needs no invitation");
        error_hint(error_last(), "start it without --insecure");
    }
    if (!rc) memcpy(ret_string->broker_key, key, KEY_TEXT);
    if (!rc) rc = choose_addresses(a, address, listens, ret_string->endpoints, ret_loopback);
    json_decref(status);
    return rc;
}

static json_t *list_of_endpoints(const char *endpoints)
{
    json_t *list = json_array();
    for (const char *at = endpoints; *at; at += strspn(at, ",")) {
        size_t n = strcspn(at, ",");
        json_array_append_new(list, json_stringn(at, n));
        at += n;
    }
    return list;
}

/* The pair is made here, and the broker gets the public key alone. */
int heddle_admin_invite(heddle_admin_t *a, const heddle_invite_opts_t *given, char **ret_json)
{
    heddle_invite_opts_t opts;
    join_string_t string;
    char text[JOIN_STRING_TEXT];
    bool is_loopback = false;
    json_t *body = NULL, *answer = NULL;
    int rc = TAKE_OPTS(opts, given);
    if (!rc) rc = take_name("invitation", opts.name);
    if (rc) return rc;
    if (!a || !ret_json) return misused("an admin handle and a place for the answer are needed");
    msg_query_t m = {.op = "invite",
                     .name = opts.name,
                     .key = string.pair.public_key,
                     .uses = opts.uses ? opts.uses : 1,
                     .ttl_ms = opts.ttl_ms ? opts.ttl_ms : INVITE_MS,
                     .roles = (const char **)(uintptr_t)opts.roles}; /* encoding only reads them */
    while (opts.roles && opts.roles[m.role_count])
        if (++m.role_count > LIMIT_ROLES) return misused("a key has fewer roles");
    if (!m.role_count) return misused("the roles are missing");
    if (m.uses > HEDDLE_INVITE_USES_MAX) return misused("an invitation has fewer uses");
    rc = take_broker(a, opts.address, &string, &is_loopback);
    if (!rc) rc = key_make(&string.pair, error_last());
    if (!rc) rc = join_string_write(&string, text, error_last());
    if (!rc) rc = query_ask(a->query, &m, &body, error_last());
    if (!rc)
        answer = json_pack("{s:s, s:s, s:b, s:s, s:o, s:b, s:O}", "schema", "heddle/1", "kind", "invite",
                           "ok", 1, "join", text, "addresses", list_of_endpoints(string.endpoints),
                           "loopback", (int)is_loopback, "key", json_object_get(body, "key"));
    *ret_json = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (!rc && !*ret_json)
        rc = error_fail(error_last(), HEDDLE_ERR_NO_MEMORY, "no memory is left for the broker's answer");
    explicit_bzero(&string, sizeof string);
    explicit_bzero(text, sizeof text);
    json_decref(answer);
    json_decref(body);
    return rc;
}

/* ---- what there is ---- */

int heddle_admin_status(heddle_admin_t *a, char **ret_json)
{
    return ask(a, &(msg_query_t){.op = "status"}, ret_json);
}
int heddle_admin_brokers(heddle_admin_t *a, char **ret_json)
{
    return ask(a, &(msg_query_t){.op = "brokers"}, ret_json);
}
int heddle_admin_adapters(heddle_admin_t *a, char **ret_json)
{
    return ask(a, &(msg_query_t){.op = "adapters"}, ret_json);
}

int heddle_admin_versions(heddle_admin_t *a, const char *ref, char **ret_json)
{
    ref_t r;
    int rc = take_ref(ref, false, &r);
    if (rc) return rc;
    return ask(a,
               &(msg_query_t){.op = "versions", .name = r.name, .version = r.version, .digest_head = r.head},
               ret_json);
}

int heddle_admin_workers(heddle_admin_t *a, const char *name, char **ret_json)
{
    int rc = take_name("worker", name);
    return rc ? rc : ask(a, &(msg_query_t){.op = "workers", .name = name}, ret_json);
}

int heddle_admin_events(heddle_admin_t *a, const heddle_events_opts_t *given, char **ret_json)
{
    heddle_events_opts_t opts;
    int rc = TAKE_OPTS(opts, given);
    if (!rc) rc = take_name("adapter", opts.adapter);
    if (!rc) rc = take_name("worker", opts.worker);
    if (rc) return rc;
    return ask(a,
               &(msg_query_t){.op = "events",
                              .name = opts.adapter,
                              .worker = opts.worker,
                              /* no event will ever have a greater number */
                              .after = opts.since < LIMIT_EXACT ? opts.since : LIMIT_EXACT,
                              .epoch = opts.epoch,
                              .limit = opts.limit ? opts.limit : EVENTS_LIMIT,
                              .wait_ms = opts.wait_ms},
               ret_json);
}

/* ---- what is waited for ---- */

/* Defaults are filled in here, so that the broker needs none for old clients. */
int heddle_admin_wait(heddle_admin_t *a, const char *ref, const heddle_wait_opts_t *given, char **ret_json)
{
    heddle_wait_opts_t opts;
    ref_t r;
    int rc = TAKE_OPTS(opts, given);
    if (!rc) rc = take_ref(ref, false, &r);
    if (rc) return rc;
    if (opts.phase < 0 || opts.phase > HEDDLE_PHASE_ACTIVE)
        return misused("phase is neither STAGED nor ACTIVE");
    msg_query_t m = {.op = "wait",
                     .name = r.name,
                     .version = r.version,
                     .digest_head = r.head,
                     .phase = (uint64_t)(opts.phase ? opts.phase : HEDDLE_PHASE_ACTIVE),
                     .quorum_kind = opts.quorum.kind,
                     .quorum_n = opts.quorum.n,
                     .min = opts.min ? opts.min : 1,
                     .exact = opts.exact != 0,
                     .deadline_ms = opts.deadline_ms ? opts.deadline_ms : WAIT_MS};
    rc = take_workers(opts.workers, &m);
    if (rc || !a) return rc ? rc : ask(a, &m, ret_json);
    query_on_silence(a->query, opts.silent, opts.silent_self);
    rc = ask(a, &m, ret_json);
    query_on_silence(a->query, NULL, NULL);
    return rc;
}

/* A question is asked again when the connection breaks, and must not step back twice. So the broker is
 * first asked which version that would be, and the question that decides names it. */
static int step_back(heddle_admin_t *a, msg_query_t *m, char **ret_json)
{
    uint64_t began_us = clock_now(clock_system());
    json_t *found = NULL;
    m->dry_run = true;
    int rc = query_ask(a->query, m, &found, error_last());
    m->version = (uint64_t)json_integer_value(json_object_get(found, "to"));
    json_decref(found);
    if (rc) return rc;
    uint64_t spent_ms = (clock_now(clock_system()) - began_us) / 1000;
    m->asked_ms = m->deadline_ms;
    m->deadline_ms = m->deadline_ms > spent_ms ? m->deadline_ms - spent_ms : 1;
    m->dry_run = false;
    return ask(a, m, ret_json);
}

/* Each decision by hand has the name of a person in the events; where the caller names none, it is
 * user@host. */
typedef struct {
    char text[2 * HEDDLE_NAME_MAX];
} person_t;
static const char *name_person(person_t *who)
{
    char host[HEDDLE_NAME_MAX + 1], buffer[4096];
    struct passwd entry, *found = NULL;
    name_host(host);
    if (getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &found) == 0 && found)
        snprintf(who->text, sizeof who->text, "%.100s@%s", found->pw_name, host);
    else snprintf(who->text, sizeof who->text, "%lu@%s", (unsigned long)getuid(), host);
    return who->text;
}

/* activate, rollback and resume: one decision for the whole cluster, and the wait until it is served. */
static int decide(heddle_admin_t *a, const char *op, const char *text, const heddle_activate_opts_t *given,
                  char **ret_json)
{
    heddle_activate_opts_t opts;
    ref_t ref;
    person_t person;
    int rc = TAKE_OPTS(opts, given);
    if (!rc) rc = take_ref(text, !strcmp(op, "activate"), &ref);
    if (rc) return rc;
    if (!a || !ret_json) return misused("an admin handle and a place for the answer are needed");
    msg_query_t m = {.op = op,
                     .name = ref.name,
                     .version = ref.version,
                     .digest_head = ref.head,
                     .phase = HEDDLE_PHASE_ACTIVE,
                     .quorum_kind = opts.quorum.kind,
                     .quorum_n = opts.quorum.n,
                     .dry_run = opts.dry_run != 0,
                     .by = opts.by ? opts.by : name_person(&person),
                     .deadline_ms = opts.deadline_ms ? opts.deadline_ms : ACTIVATE_MS};
    bool steps = !strcmp(op, "rollback") && !ref.version && !opts.dry_run;
    return steps ? step_back(a, &m, ret_json) : ask(a, &m, ret_json);
}

int heddle_admin_activate(heddle_admin_t *a, const char *ref, const heddle_activate_opts_t *opts,
                          char **ret_json)
{
    return decide(a, "activate", ref, opts, ret_json);
}

int heddle_admin_rollback(heddle_admin_t *a, const char *ref, const heddle_activate_opts_t *opts,
                          char **ret_json)
{
    return decide(a, "rollback", ref, opts, ret_json);
}

int heddle_admin_resume(heddle_admin_t *a, const char *adapter, const heddle_activate_opts_t *opts,
                        char **ret_json)
{
    if (adapter && strchr(adapter, '@')) {
        misused("an adapter is resumed, not one version of it");
        error_contrast(error_last(), "NAME", adapter);
        error_hint(error_last(), "`heddle activate %.128s` names a version", adapter);
        return HEDDLE_ERR_USAGE;
    }
    return decide(a, "resume", adapter, opts, ret_json);
}

int heddle_admin_forget(heddle_admin_t *a, const char *adapter, int dry_run, char **ret_json)
{
    person_t person;
    if (!adapter) return misused("the name of an adapter is missing");
    if (strchr(adapter, '@')) {
        misused("an adapter is forgotten, not one version of it");
        error_contrast(error_last(), "NAME", adapter);
        error_hint(error_last(), "versions are retired by themselves: see --keep of `heddle broker --help`");
        return HEDDLE_ERR_USAGE;
    }
    int rc = name_check("adapter", adapter, error_last());
    if (rc) return rc;
    msg_query_t m = {.op = "forget", .name = adapter, .dry_run = dry_run != 0, .by = name_person(&person)};
    return ask(a, &m, ret_json);
}

static int ask_of_drain(heddle_admin_t *a, const char *op, const char *worker, char **ret_json)
{
    if (!worker) return misused("the name of a worker is missing");
    int rc = name_check("worker", worker, error_last());
    return rc ? rc : ask(a, &(msg_query_t){.op = op, .name = worker}, ret_json);
}

int heddle_admin_drain(heddle_admin_t *a, const char *worker, char **ret_json)
{
    return ask_of_drain(a, "drain", worker, ret_json);
}

int heddle_admin_drain_cancel(heddle_admin_t *a, const char *worker, char **ret_json)
{
    return ask_of_drain(a, "drain_cancel", worker, ret_json);
}

/* The expected digest is parsed here: a text that is none would compare as "differs" everywhere. */
int heddle_admin_verify(heddle_admin_t *a, const char *ref, const char *expected, uint32_t deadline_ms,
                        char **ret_json)
{
    ref_t r;
    digest_t digest;
    int rc = take_ref(ref, false, &r);
    if (rc) return rc;
    if (expected && !digest_parse(expected, &digest)) {
        rc = misused("the expected digest is not one");
        error_contrast(error_last(), "h1: and 64 hexadecimal digits", expected);
        error_hint(error_last(), "`heddle publish DIR --adapter NAME --dry-run` gives that of a directory");
        return rc;
    }
    return ask(a,
               &(msg_query_t){.op = "verify",
                              .name = r.name,
                              .version = r.version,
                              .digest_head = r.head,
                              .expected = expected,
                              .deadline_ms = deadline_ms ? deadline_ms : VERIFY_MS},
               ret_json);
}
