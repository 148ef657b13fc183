/* SPDX-License-Identifier: Apache-2.0 */
#include "broker/store/etcd_json.h"

#include <jansson.h>
#include <stdlib.h>

/* ---- base64 ---- */

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* `rest`: up to two bytes that were left over before, as a key comes in pieces. */
typedef struct {
    buf_t *out;
    uint8_t rest[3];
    size_t count;
} coder_t;

static void code_group(coder_t *c, const uint8_t *from, size_t bytes)
{
    uint32_t v = (uint32_t)from[0] << 16 | (uint32_t)from[1] << 8 | from[2];
    uint8_t *to = buf_grow(c->out, 4);
    if (!to) return;
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)DIGITS[v >> (18 - 6 * i) & 63];
    if (bytes < 3) to[3] = '=';
    if (bytes < 2) to[2] = '=';
}

static void code(coder_t *c, bytes_t from)
{
    const uint8_t *at = from.data;
    for (size_t left = from.bytes; left > 0; left--) {
        c->rest[c->count++] = *at++;
        if (c->count < 3) continue;
        code_group(c, c->rest, 3);
        c->count = 0;
    }
}

static void code_end(coder_t *c)
{
    if (!c->count) return;
    for (size_t i = c->count; i < 3; i++) c->rest[i] = 0;
    code_group(c, c->rest, c->count);
    c->count = 0;
}

/* False: not base64, or no memory. */
static bool decode(const char *text, size_t length, arena_t *arena, bytes_t *ret_bytes)
{
    *ret_bytes = bytes_of("", 0);
    if (length % 4) return false;
    if (!length) return true;
    size_t padding = (text[length - 1] == '=') + (text[length - 2] == '=' && text[length - 1] == '=');
    size_t bytes = length / 4 * 3 - padding, at = 0;
    uint8_t *to = arena_alloc(arena, bytes + 3);
    if (!to) return false;
    for (size_t i = 0; i < length; i += 4) {
        uint32_t v = 0;
        for (size_t k = i; k < i + 4; k++) {
            const char *digit = text[k] ? strchr(DIGITS, text[k]) : NULL;
            if (!digit && k < length - padding) return false;
            v = v << 6 | (digit ? (uint32_t)(digit - DIGITS) : 0);
        }
        for (int k = 0; k < 3; k++) to[at++] = (uint8_t)(v >> (16 - 8 * k));
    }
    *ret_bytes = bytes_of(to, bytes);
    return true;
}

/* ---- requests ---- */

static void add_base64(buf_t *out, const char *name, bytes_t value)
{
    coder_t c = {.out = out};
    buf_printf(out, "\"%s\":\"", name);
    code(&c, value);
    code_end(&c);
    buf_add_text(out, "\"");
}

static void add_key(buf_t *out, const char *name, const char *prefix, bytes_t key, uint8_t end)
{
    coder_t c = {.out = out};
    buf_printf(out, "\"%s\":\"", name);
    code(&c, bytes_of(prefix, strlen(prefix)));
    if (end != '0') code(&c, bytes_of("/", 1));
    code(&c, key);
    code(&c, bytes_of(&end, end ? 1 : 0));
    code_end(&c);
    buf_add_text(out, "\"");
}

static bytes_t key_of(const char *key) { return bytes_of(key, strlen(key)); }

/* All keys of the prefix end before the prefix with the byte that follows '/'. */
static void add_end_of_prefix(buf_t *out, const char *prefix)
{
    add_key(out, "range_end", prefix, bytes_of("", 0), '0');
}

void etcd_txn_begin(etcd_txn_t *t, buf_t *out, const char *prefix)
{
    *t = (etcd_txn_t){.out = out, .prefix = prefix};
    buf_add_text(out, "{\"compare\":[");
}

static void next(etcd_txn_t *t, int section)
{
    static const char *const BEGIN[] = {"", "],\"success\":[", "],\"failure\":["};
    while (t->section < section) {
        buf_add_text(t->out, BEGIN[++t->section]);
        t->count = 0;
    }
    if (t->count++) buf_add_text(t->out, ",");
}

static void compare(etcd_txn_t *t, const char *key, const char *target)
{
    next(t, 0);
    buf_printf(t->out, "{\"result\":\"EQUAL\",\"target\":\"%s\",", target);
    add_key(t->out, "key", t->prefix, key_of(key), 0);
}

void etcd_txn_compare_created(etcd_txn_t *t, const char *key, uint64_t revision)
{
    compare(t, key, "CREATE");
    buf_printf(t->out, ",\"create_revision\":\"%llu\"}", (unsigned long long)revision);
}

void etcd_txn_compare_changed(etcd_txn_t *t, const char *key, uint64_t revision)
{
    compare(t, key, "MOD");
    buf_printf(t->out, ",\"mod_revision\":\"%llu\"}", (unsigned long long)revision);
}

void etcd_txn_compare_value(etcd_txn_t *t, const char *key, const char *value)
{
    compare(t, key, "VALUE");
    buf_add_text(t->out, ",");
    add_base64(t->out, "value", key_of(value));
    buf_add_text(t->out, "}");
}

static void begin_op(etcd_txn_t *t, const char *op, const char *key)
{
    next(t, t->section ? t->section : 1);
    buf_printf(t->out, "{\"request_%s\":{", op);
    add_key(t->out, "key", t->prefix, key_of(key), 0);
}

static void end_op(etcd_txn_t *t) { buf_add_text(t->out, "}}"); }

void etcd_txn_put(etcd_txn_t *t, const char *key, bytes_t value, uint64_t lease)
{
    begin_op(t, "put", key);
    buf_add_text(t->out, ",");
    add_base64(t->out, "value", value);
    if (lease) buf_printf(t->out, ",\"lease\":\"%llu\"", (unsigned long long)lease);
    end_op(t);
}

void etcd_txn_delete(etcd_txn_t *t, const char *key)
{
    begin_op(t, "delete_range", key);
    end_op(t);
}

/* `begin` ends with '/', and all that begin with it come before it with the next byte. */
static void begin_op_below(etcd_txn_t *t, const char *op, const char *begin)
{
    begin_op(t, op, begin);
    coder_t c = {.out = t->out};
    buf_add_text(t->out, ",\"range_end\":\"");
    code(&c, key_of(t->prefix));
    code(&c, bytes_of("/", 1));
    code(&c, bytes_of(begin, strlen(begin) - 1));
    code(&c, bytes_of("0", 1));
    code_end(&c);
    buf_add_text(t->out, "\"");
}

void etcd_txn_delete_below(etcd_txn_t *t, const char *begin)
{
    begin_op_below(t, "delete_range", begin);
    end_op(t);
}

void etcd_txn_get(etcd_txn_t *t, const char *key)
{
    begin_op(t, "range", key);
    end_op(t);
}

void etcd_txn_get_below(etcd_txn_t *t, const char *begin, uint32_t limit)
{
    begin_op_below(t, "range", begin);
    buf_printf(t->out, ",\"limit\":\"%u\"", (unsigned)limit);
    end_op(t);
}

void etcd_txn_get_any(etcd_txn_t *t, uint32_t limit)
{
    begin_op(t, "range", "");
    buf_add_text(t->out, ",");
    add_end_of_prefix(t->out, t->prefix);
    buf_printf(t->out, ",\"limit\":\"%u\",\"keys_only\":true", (unsigned)limit);
    end_op(t);
}

void etcd_txn_else(etcd_txn_t *t)
{
    next(t, 2);
    t->count = 0;
}

void etcd_txn_end(etcd_txn_t *t) { buf_add_text(t->out, "]}"); }

void etcd_json_range(buf_t *out, const char *prefix, bytes_t after, uint32_t limit, uint64_t revision)
{
    coder_t c = {.out = out};
    buf_add_text(out, "{\"key\":\"");
    code(&c, key_of(prefix));
    code(&c, bytes_of("/", 1));
    code(&c, after);
    code(&c, bytes_of("", after.bytes ? 1 : 0)); /* with a NUL: the next key that there can be */
    code_end(&c);
    buf_add_text(out, "\",");
    add_end_of_prefix(out, prefix);
    buf_printf(out, ",\"limit\":\"%u\"", (unsigned)limit);
    if (revision) buf_printf(out, ",\"revision\":\"%llu\"", (unsigned long long)revision);
    buf_add_text(out, "}");
}

void etcd_json_watch(buf_t *out, const char *prefix, uint64_t revision)
{
    buf_add_text(out, "{\"create_request\":{");
    add_key(out, "key", prefix, bytes_of("", 0), 0);
    buf_add_text(out, ",");
    add_end_of_prefix(out, prefix);
    buf_printf(out, ",\"start_revision\":\"%llu\"}}", (unsigned long long)revision);
}

void etcd_json_grant(buf_t *out, uint64_t ttl_s)
{
    buf_printf(out, "{\"TTL\":\"%llu\"}", (unsigned long long)ttl_s);
}

void etcd_json_lease(buf_t *out, uint64_t lease)
{
    buf_printf(out, "{\"ID\":\"%llu\"}", (unsigned long long)lease);
}

void etcd_json_login(buf_t *out, const char *user, const char *password)
{
    json_t *object = json_pack("{s:s, s:s}", "name", user, "password", password);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    if (text) buf_add_text(out, text);
    else out->failed = true;
    free(text);
    json_decref(object);
}

/* ---- answers ---- */

bytes_t etcd_json_below(const char *prefix, bytes_t key)
{
    size_t before = strlen(prefix) + 1;
    return key.bytes > before ? bytes_of((const char *)key.data + before, key.bytes - before)
                              : bytes_of("", 0);
}

/* A number as text, as the gateway writes 64 bits, or as a number; 0 where it is missing.  Negative ones, and
 * others that are none, are 0: a TTL of a lease that is gone is -1 in some releases. */
static uint64_t take_u64(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (json_is_integer(value))
        return json_integer_value(value) > 0 ? (uint64_t)json_integer_value(value) : 0;
    const char *text = json_string_value(value);
    uint64_t number = 0;
    if (!text || !*text) return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || number > (UINT64_MAX - 9) / 10) return 0;
        number = number * 10 + (uint64_t)(*text - '0');
    }
    return number;
}

static bool take_bytes(const json_t *kv, const char *name, arena_t *arena, bytes_t *ret_bytes)
{
    const json_t *value = json_object_get(kv, name);
    *ret_bytes = bytes_of("", 0);
    return !value || (json_is_string(value) &&
                      decode(json_string_value(value), json_string_length(value), arena, ret_bytes));
}

static bool take_kv(const json_t *kv, arena_t *arena, etcd_answer_t *a)
{
    etcd_kv_t *to = &a->kvs[a->kv_count++];
    to->create_revision = take_u64(kv, "create_revision");
    to->mod_revision = take_u64(kv, "mod_revision");
    to->lease = take_u64(kv, "lease");
    return take_bytes(kv, "key", arena, &to->key) && take_bytes(kv, "value", arena, &to->value);
}

static bool take_kvs(const json_t *range, arena_t *arena, etcd_answer_t *a)
{
    size_t i;
    const json_t *kv, *kvs = json_object_get(range, "kvs");
    json_array_foreach(kvs, i, kv)
    {
        if (!take_kv(kv, arena, a)) return false;
    }
    if (json_is_true(json_object_get(range, "more"))) a->has_more = true;
    else if (take_u64(range, "count") > json_array_size(kvs)) return false; /* some were lost on the way */
    return true;
}

/* An event without a type is a PUT. */
static bool take_events(const json_t *events, arena_t *arena, etcd_answer_t *a)
{
    size_t i;
    const json_t *event;
    json_array_foreach(events, i, event)
    {
        const char *type = json_string_value(json_object_get(event, "type"));
        if (!take_kv(json_object_get(event, "kv"), arena, a)) return false;
        a->kvs[a->kv_count - 1].is_gone = type && !strcmp(type, "DELETE");
    }
    return true;
}

/* That of a stream, as of a keepalive, is wrapped. */
static void take_error(const json_t *root, const json_t *error, etcd_answer_t *a)
{
    const json_t *from = json_is_object(error) ? error : root;
    const char *text = json_string_value(json_object_get(from, "message"));
    if (!text) text = json_string_value(error);
    a->code = (int)take_u64(from, json_is_object(error) ? "grpc_code" : "code");
    if (a->code <= 0) a->code = ETCD_UNAVAILABLE;
    text_printf(a->message, sizeof a->message, "%s", text ? text : "an error without a text");
}

/* Each answer of etcd has its revision, which is 1 from the first on; only a watch that is canceled may have
 * none.  Without it an object of another server would count, and be taken for a registry without rows. */
static bool take_answer(const json_t *root, arena_t *arena, etcd_answer_t *a)
{
    const json_t *object = json_object_get(root, "result"), *error = json_object_get(root, "error");
    if (!json_is_object(object)) object = root; /* else of a stream */
    if (error) {
        take_error(root, error, a);
        return true;
    }
    a->revision = take_u64(json_object_get(object, "header"), "revision");
    a->is_canceled = json_is_true(json_object_get(object, "canceled"));
    if (!a->revision && !a->is_canceled) return false;
    a->lease = take_u64(object, "ID");
    a->ttl_s = take_u64(object, "TTL");
    a->succeeded = json_is_true(json_object_get(object, "succeeded"));
    const char *token = json_string_value(json_object_get(object, "token"));
    a->token = token ? arena_text(arena, token, strlen(token)) : NULL;
    if (token && !a->token) return false;

    const json_t *events = json_object_get(object, "events");
    size_t i, count = json_array_size(json_object_get(object, "kvs")) + json_array_size(events);
    const json_t *response, *responses = json_object_get(object, "responses");
    json_array_foreach(responses, i, response) count +=
        json_array_size(json_object_get(json_object_get(response, "response_range"), "kvs"));
    if (count) a->kvs = arena_alloc(arena, count * sizeof *a->kvs);
    if (count && !a->kvs) return false;
    if (!take_kvs(object, arena, a) || !take_events(events, arena, a)) return false;
    json_array_foreach(responses, i, response)
    {
        if (!take_kvs(json_object_get(response, "response_range"), arena, a)) return false;
    }
    return true;
}

/* Behind an error's object comes a trailer of HTTP, as text. */
bool etcd_answer_read(bytes_t body, arena_t *arena, etcd_answer_t *ret_answer)
{
    etcd_answer_t a = {0};
    json_t *root = body.bytes ? json_loadb(body.data, body.bytes, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    bool is_good = json_is_object(root) && take_answer(root, arena, &a);
    json_decref(root);
    if (is_good) *ret_answer = a;
    return is_good;
}
