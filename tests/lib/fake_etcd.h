/* SPDX-License-Identifier: Apache-2.0 */
/* An etcd of one process, for tests: it does what a request of broker/store/etcd_json.h asks, and answers as
 * the gateway of etcd 3.4 does.  Time is what the test says; leases end by fake_etcd_pass. */
#ifndef TESTS_FAKE_ETCD_H
#define TESTS_FAKE_ETCD_H

#include "broker/store/etcd_leader.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { FAKE_KEYS = 2048, FAKE_LEASES = 256, FAKE_TXN_OPS = 128 };

typedef struct {
    char *key, *value; /* base64, as they came */
    uint64_t created, changed, lease;
} fake_key_t;

typedef struct {
    char *key, *value; /* NULL: the key was deleted */
    uint64_t revision;
} fake_event_t;

typedef struct {
    fake_key_t keys[FAKE_KEYS];
    fake_event_t *events;
    int event_count;
    uint64_t compacted; /* no watch begins at this revision, or before it */
    int count;
    uint64_t revision, lease_ends_us[FAKE_LEASES]; /* 0: none */
    uint64_t ttl_s[FAKE_LEASES];
    int leases;
    uint64_t now_us;
    const char *error; /* every transaction that writes is refused with it; NULL: none */
    bool fills;        /* the next one that does is done, and refused for want of room */
    int error_code, page_rows_max;
    const char *denied; /* the user may not read this key; NULL: it may read all */
    char *answer;
} fake_etcd_t;

static inline void fake_must(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "fake etcd: %s\n", what);
    abort();
}

static inline int fake_digit(char c)
{
    const char *digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strchr(digits, c);
    return c && at ? (int)(at - digits) : 0;
}

/* Of at most 511 bytes, which keys have. */
static inline size_t fake_decode(const char *text, char to[512])
{
    size_t n = 0, length = strlen(text);
    for (size_t i = 0; i + 3 < length && n < 508; i += 4) {
        unsigned v = 0;
        for (size_t k = i; k < i + 4; k++) v = v << 6 | (unsigned)fake_digit(text[k]);
        for (int k = 0; k < 3; k++)
            if (text[i + 1 + (size_t)k] != '=') to[n++] = (char)(v >> (16 - 8 * k));
    }
    to[n] = 0;
    return n;
}

static inline int fake_order(const char *a, const char *b)
{
    char x[512], y[512];
    size_t n = fake_decode(a, x), m = fake_decode(b, y);
    int order = memcmp(x, y, n < m ? n : m);
    return order ? order : n < m ? -1 : n > m;
}

static inline fake_key_t *fake_find(fake_etcd_t *f, const char *key)
{
    for (int i = 0; i < f->count; i++)
        if (!fake_order(f->keys[i].key, key)) return &f->keys[i];
    return NULL;
}

static inline void fake_note(fake_etcd_t *f, const char *key, const char *value)
{
    f->events = realloc(f->events, sizeof *f->events * (size_t)(f->event_count + 1));
    fake_must(f->events != NULL, "no memory");
    f->events[f->event_count++] =
        (fake_event_t){.key = strdup(key), .value = value ? strdup(value) : NULL, .revision = f->revision};
}

static inline void fake_drop(fake_etcd_t *f, int i)
{
    fake_note(f, f->keys[i].key, NULL);
    free(f->keys[i].key);
    free(f->keys[i].value);
    memmove(&f->keys[i], &f->keys[i + 1], sizeof *f->keys * (size_t)(--f->count - i));
}

/* The keys of an etcd as they were at a revision. */
typedef struct {
    fake_key_t keys[FAKE_KEYS];
    int count, leases;
    uint64_t revision;
} fake_keys_t;

static inline void fake_etcd_save(const fake_etcd_t *f, fake_keys_t *to)
{
    to->count = f->count;
    to->leases = f->leases;
    to->revision = f->revision;
    for (int i = 0; i < f->count; i++) {
        to->keys[i] = f->keys[i];
        to->keys[i].key = strdup(f->keys[i].key);
        to->keys[i].value = strdup(f->keys[i].value);
    }
}

static inline void fake_etcd_forget(fake_keys_t *saved)
{
    for (; saved->count; saved->count--) {
        free(saved->keys[saved->count - 1].key);
        free(saved->keys[saved->count - 1].value);
    }
}

/* Watches that are there say nothing of it, and none reaches back before it.  Keys have their leases again. */
static inline void fake_etcd_restore(fake_etcd_t *f, const fake_keys_t *from)
{
    for (; f->event_count; f->event_count--) {
        free(f->events[f->event_count - 1].key);
        free(f->events[f->event_count - 1].value);
    }
    for (; f->count; f->count--) {
        free(f->keys[f->count - 1].key);
        free(f->keys[f->count - 1].value);
    }
    f->count = from->count;
    for (int i = 0; i < f->count; i++) {
        f->keys[i] = from->keys[i];
        f->keys[i].key = strdup(from->keys[i].key);
        f->keys[i].value = strdup(from->keys[i].value);
        if (f->keys[i].lease)
            f->lease_ends_us[f->keys[i].lease] = f->now_us + f->ttl_s[f->keys[i].lease] * 1000000;
    }
    for (int i = from->leases + 1; i <= f->leases; i++) f->lease_ends_us[i] = 0;
    f->revision = f->compacted = from->revision;
}

static inline uint64_t fake_number(const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));
    return text ? strtoull(text, NULL, 10) : 0;
}

static inline const char *fake_text(const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));
    return text ? text : "";
}

static inline void fake_put(fake_etcd_t *f, const json_t *put)
{
    fake_key_t *k = fake_find(f, fake_text(put, "key"));
    if (!k) {
        int at = 0;
        fake_must(f->count < FAKE_KEYS, "too many keys");
        while (at < f->count && fake_order(f->keys[at].key, fake_text(put, "key")) < 0) at++;
        memmove(&f->keys[at + 1], &f->keys[at], sizeof *f->keys * (size_t)(f->count++ - at));
        k = &f->keys[at];
        *k = (fake_key_t){.key = strdup(fake_text(put, "key")), .created = f->revision};
    }
    free(k->value);
    k->value = strdup(fake_text(put, "value"));
    k->changed = f->revision;
    k->lease = fake_number(put, "lease");
    fake_note(f, k->key, k->value);
}

static inline bool fake_is_within(const char *key, const json_t *range)
{
    const char *end = fake_text(range, "range_end");
    int order = fake_order(key, fake_text(range, "key"));
    return *end ? order >= 0 && fake_order(key, end) < 0 : order == 0;
}

static inline bool fake_is_in(const fake_key_t *k, const json_t *range)
{
    return fake_is_within(k->key, range);
}

static inline json_t *fake_range(const fake_etcd_t *f, const json_t *range)
{
    uint64_t limit = fake_number(range, "limit"), n = 0;
    json_t *kvs = json_array();
    for (int i = 0; i < f->count; i++) {
        const fake_key_t *k = &f->keys[i];
        if (!fake_is_in(k, range) || (n++ >= limit && limit)) continue;
        char created[24], changed[24], lease[24];
        snprintf(created, sizeof created, "%llu", (unsigned long long)k->created);
        snprintf(changed, sizeof changed, "%llu", (unsigned long long)k->changed);
        snprintf(lease, sizeof lease, "%llu", (unsigned long long)k->lease);
        json_t *kv =
            json_pack("{s:s, s:s, s:s}", "key", k->key, "create_revision", created, "mod_revision", changed);
        if (!json_is_true(json_object_get(range, "keys_only")))
            json_object_set_new(kv, "value", json_string(k->value));
        if (k->lease) json_object_set_new(kv, "lease", json_string(lease));
        json_array_append_new(kvs, kv);
    }
    char count[24];
    snprintf(count, sizeof count, "%llu", (unsigned long long)n);
    json_t *answer = json_pack("{s:o, s:s}", "kvs", kvs, "count", count);
    if (limit && n > limit) json_object_set_new(answer, "more", json_true());
    return answer;
}

static inline bool fake_compares(fake_etcd_t *f, const json_t *c)
{
    const fake_key_t *k = fake_find(f, fake_text(c, "key"));
    const char *target = fake_text(c, "target");
    if (!strcmp(target, "CREATE")) return (k ? k->created : 0) == fake_number(c, "create_revision");
    if (!strcmp(target, "MOD")) return (k ? k->changed : 0) == fake_number(c, "mod_revision");
    return k && !strcmp(k->value, fake_text(c, "value"));
}

/* etcd refuses a transaction that puts a key twice, or puts one that it deletes. */
static inline void fake_check_ops(const json_t *ops)
{
    size_t i, k;
    const json_t *a, *b;
    fake_must(json_array_size(ops) <= FAKE_TXN_OPS, "too many operations");
    json_array_foreach(ops, i, a)
    {
        const json_t *put = json_object_get(a, "request_put");
        json_array_foreach(ops, k, b)
        {
            const json_t *other = json_object_get(b, "request_put"),
                         *gone = json_object_get(b, "request_delete_range");
            fake_key_t key = {.key = (char *)fake_text(put, "key")};
            fake_must(!put || !other || i == k || fake_order(key.key, fake_text(other, "key")),
                      "a key is put twice");
            fake_must(!put || !gone || !fake_is_in(&key, gone), "a key is put and deleted");
        }
    }
}

static inline bool fake_is_denied(const fake_etcd_t *f, const json_t *txn)
{
    char key[512];
    size_t i;
    const json_t *op;
    json_array_foreach(json_object_get(txn, "success"), i, op)
    {
        fake_decode(fake_text(json_object_get(op, "request_range"), "key"), key);
        if (f->denied && !strcmp(key, f->denied)) return true;
    }
    return false;
}

static inline json_t *fake_txn(fake_etcd_t *f, const json_t *txn)
{
    size_t i;
    const json_t *c, *op;
    bool succeeds = true;
    if (fake_is_denied(f, txn))
        return json_pack("{s:s, s:i}", "error", "etcdserver: permission denied", "code", 7);
    json_array_foreach(json_object_get(txn, "compare"), i, c) succeeds = succeeds && fake_compares(f, c);
    const json_t *ops = json_object_get(txn, succeeds ? "success" : "failure");
    fake_check_ops(ops);
    json_array_foreach(ops, i, op)
    {
        uint64_t lease = fake_number(json_object_get(op, "request_put"), "lease");
        if (lease && (lease > (uint64_t)f->leases || !f->lease_ends_us[lease]))
            return json_pack("{s:s, s:i}", "error", "etcdserver: requested lease not found", "code", 5);
    }
    json_t *responses = json_array();
    bool writes = false;
    json_array_foreach(ops, i, op) writes = writes || !json_object_get(op, "request_range");
    f->revision += writes;
    json_array_foreach(ops, i, op)
    {
        const json_t *put = json_object_get(op, "request_put"), *range = json_object_get(op, "request_range"),
                     *gone = json_object_get(op, "request_delete_range");
        if (put) fake_put(f, put);
        for (int k = f->count - 1; gone && k >= 0; k--)
            if (fake_is_in(&f->keys[k], gone)) fake_drop(f, k);
        json_array_append_new(responses, range ? json_pack("{s:o}", "response_range", fake_range(f, range))
                                               : json_object());
    }
    json_t *answer = json_pack("{s:o}", "responses", responses);
    if (succeeds) json_object_set_new(answer, "succeeded", json_true());
    return answer;
}

static inline void fake_end_lease(fake_etcd_t *f, int id)
{
    f->lease_ends_us[id] = 0;
    for (int i = f->count - 1; i >= 0; i--)
        if (f->keys[i].lease == (uint64_t)id) {
            f->revision++;
            fake_drop(f, i);
        }
}

static inline void fake_etcd_pass(fake_etcd_t *f, uint64_t now_us)
{
    f->now_us = now_us;
    for (int i = 1; i <= f->leases; i++)
        if (f->lease_ends_us[i] && f->lease_ends_us[i] <= now_us) fake_end_lease(f, i);
}

static inline json_t *fake_lease(fake_etcd_t *f, etcd_call_t call, const json_t *request)
{
    char id_text[24], ttl[24];
    uint64_t id = fake_number(request, "ID");
    if (call == ETCD_GRANT) {
        id = (uint64_t)++f->leases;
        fake_must(id < FAKE_LEASES, "too many leases");
        f->ttl_s[id] = fake_number(request, "TTL");
        f->lease_ends_us[id] = 1;
    }
    bool is_there = id && id <= (uint64_t)f->leases && f->lease_ends_us[id];
    if (call == ETCD_REVOKE) {
        if (!is_there)
            return json_pack("{s:s, s:i}", "error", "etcdserver: requested lease not found", "code", 5);
        fake_end_lease(f, (int)id);
        return json_object();
    }
    if (is_there) f->lease_ends_us[id] = f->now_us + f->ttl_s[id] * 1000000;
    snprintf(id_text, sizeof id_text, "%llu", (unsigned long long)id);
    snprintf(ttl, sizeof ttl, "%llu", (unsigned long long)(is_there ? f->ttl_s[id] : 0));
    json_t *lease = json_pack("{s:s}", "ID", id_text);
    if (is_there) json_object_set_new(lease, "TTL", json_string(ttl));
    return call == ETCD_GRANT ? lease : json_pack("{s:o}", "result", lease);
}

/* What a watch says of the revisions from `from` on; 0: it begins. */
static inline json_t *fake_watch(const fake_etcd_t *f, const json_t *request, uint64_t from)
{
    const json_t *create = json_object_get(request, "create_request");
    json_t *events = json_array(), *result = json_object();
    bool begins = !from;
    if (begins) from = fake_number(create, "start_revision");
    for (int i = 0; i < f->event_count; i++) {
        const fake_event_t *e = &f->events[i];
        char revision[24];
        if (e->revision < from || !fake_is_within(e->key, create)) continue;
        snprintf(revision, sizeof revision, "%llu", (unsigned long long)e->revision);
        json_t *event = json_pack("{s:{s:s, s:s}}", "kv", "key", e->key, "mod_revision", revision);
        if (e->value) json_object_set_new(json_object_get(event, "kv"), "value", json_string(e->value));
        else json_object_set_new(event, "type", json_string("DELETE"));
        json_array_append_new(events, event);
    }
    bool is_canceled = begins && from <= f->compacted;
    json_object_set_new(result, "created", json_boolean(begins));
    if (is_canceled) json_object_set_new(result, "canceled", json_true());
    else if (json_array_size(events)) json_object_set(result, "events", events);
    json_decref(events);
    return json_pack("{s:o}", "result", result);
}

/* In front of what an answer says, of a stream within its wrapping. */
static inline void fake_add_header(const fake_etcd_t *f, json_t *answer)
{
    char revision[24];
    json_t *result = json_object_get(answer, "result");
    snprintf(revision, sizeof revision, "%llu", (unsigned long long)f->revision);
    json_object_set_new(result ? result : answer, "header", json_pack("{s:s}", "revision", revision));
}

/* Borrowed until the next call.  `from`: of a watch that has begun, the next revision. */
static inline bytes_t fake_etcd_go_on(fake_etcd_t *f, bytes_t body, uint64_t from)
{
    json_t *request = json_loadb(body.data, body.bytes, 0, NULL);
    fake_must(request != NULL, "a request is no JSON");
    json_t *answer = fake_watch(f, request, from);
    fake_add_header(f, answer);
    free(f->answer);
    f->answer = json_dumps(answer, JSON_COMPACT);
    json_decref(answer);
    json_decref(request);
    return bytes_of(f->answer, strlen(f->answer));
}

/* Borrowed until the next call. */
static inline bytes_t fake_etcd_do(fake_etcd_t *f, etcd_call_t call, bytes_t body)
{
    json_t *request = json_loadb(body.data, body.bytes, 0, NULL), *answer;
    fake_must(request != NULL, "a request is no JSON");
    uint64_t limit = fake_number(request, "limit");
    if (!f->revision) f->revision = 1;
    const json_t *does = call == ETCD_TXN ? json_object_get(request, "success") : NULL;
    bool writes = false;
    for (size_t i = 0; i < json_array_size(does); i++)
        writes |= !json_object_get(json_array_get(does, i), "request_range");
    if (f->fills && writes) {
        f->fills = false;
        f->error = "etcdserver: mvcc: database space exceeded";
        f->error_code = 8;
        json_decref(fake_txn(f, request));
        answer = json_pack("{s:s, s:s, s:i}", "error", f->error, "message", f->error, "code", f->error_code);
    } else if (f->error && writes)
        answer = json_pack("{s:s, s:s, s:i}", "error", f->error, "message", f->error, "code", f->error_code);
    else if (call == ETCD_RANGE && f->page_rows_max && limit > (uint64_t)f->page_rows_max)
        answer = json_pack("{s:s, s:i}", "error", "grpc: received message larger than max", "code", 8);
    else if (call == ETCD_TXN) answer = fake_txn(f, request);
    else if (call == ETCD_RANGE) answer = fake_range(f, request);
    else if (call == ETCD_STREAM) answer = fake_watch(f, request, 0);
    else answer = fake_lease(f, call, request);
    fake_add_header(f, answer);
    free(f->answer);
    f->answer = json_dumps(answer, JSON_COMPACT);
    json_decref(answer);
    json_decref(request);
    return bytes_of(f->answer, strlen(f->answer));
}

static inline void fake_etcd_fini(fake_etcd_t *f)
{
    while (f->count) fake_drop(f, f->count - 1);
    for (int i = 0; i < f->event_count; i++) {
        free(f->events[i].key);
        free(f->events[i].value);
    }
    free(f->events);
    free(f->answer);
    *f = (fake_etcd_t){0};
}

#endif
