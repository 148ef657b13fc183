/* SPDX-License-Identifier: Apache-2.0 */
/* Recursion over trees whose depth is limited, so the stack is bounded too. */
#include "proto/value.h"

#include "core/errors.h"
#include "core/limits.h"
#include "proto/scan.h"
#include "proto/utf8.h"

#include <math.h>
#include <msgpack.h>

/* Keys per map: any number; jansson's hash finds the duplicates. */
static const scan_limits_t REPORT_LIMITS = {LIMIT_REPORT_DEPTH, LIMIT_REPORT_NODES, 0};

/* --- JSON -> msgpack --- */

typedef struct { buf_t *out; msgpack_packer packer; uint32_t nodes; } writer_t;

static int sink(void *out, const char *data, size_t bytes)
{
    buf_add(out, data, bytes);
    return ((buf_t *)out)->failed ? -1 : 0;
}

static void put_text(writer_t *w, const char *text, size_t bytes)
{
    msgpack_pack_str(&w->packer, bytes);
    buf_add(w->out, text, bytes);
}

static int put_value(writer_t *w, const json_t *value, uint32_t depth);

static int put_array(writer_t *w, const json_t *array, uint32_t depth)
{
    size_t count = json_array_size(array);
    msgpack_pack_array(&w->packer, count);
    int rc = HEDDLE_OK;
    for (size_t i = 0; i < count && rc == HEDDLE_OK; i++)
        rc = put_value(w, json_array_get(array, i), depth + 1);
    return rc;
}

static int put_object(writer_t *w, const json_t *object, uint32_t depth)
{
    msgpack_pack_map(&w->packer, json_object_size(object));
    void *at = json_object_iter((json_t *)(uintptr_t)object);   /* jansson has no const iterator */
    for (; at; at = json_object_iter_next((json_t *)(uintptr_t)object, at)) {
        w->nodes++;
        put_text(w, json_object_iter_key(at), json_object_iter_key_len(at));
        int rc = put_value(w, json_object_iter_value(at), depth + 1);
        if (rc) return rc;
    }
    return HEDDLE_OK;
}

static int put_value(writer_t *w, const json_t *value, uint32_t depth)
{
    bool container = json_is_array(value) || json_is_object(value);
    if (++w->nodes > LIMIT_REPORT_NODES || (container && depth == LIMIT_REPORT_DEPTH))
        return HEDDLE_ERR_LIMIT;
    if (!value) return HEDDLE_ERR_NO_MEMORY;   /* what failed constructors of jansson leave */
    switch (json_typeof(value)) {
    case JSON_OBJECT: return put_object(w, value, depth);
    case JSON_ARRAY: return put_array(w, value, depth);
    case JSON_STRING: put_text(w, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: msgpack_pack_int64(&w->packer, json_integer_value(value)); break;
    case JSON_REAL: msgpack_pack_double(&w->packer, json_real_value(value)); break;
    case JSON_TRUE: msgpack_pack_true(&w->packer); break;
    case JSON_FALSE: msgpack_pack_false(&w->packer); break;
    case JSON_NULL: msgpack_pack_nil(&w->packer); break;
    }
    return HEDDLE_OK;
}

int value_encode(const json_t *value, buf_t *out)
{
    size_t start = out->bytes;
    writer_t w = {.out = out};
    msgpack_packer_init(&w.packer, out, sink);
    int rc = put_value(&w, value, 0);
    if (rc == HEDDLE_OK && out->failed) rc = HEDDLE_ERR_NO_MEMORY;
    if (rc) out->bytes = start;
    return rc;
}

/* --- msgpack -> JSON --- */

static int refuse(heddle_error_t *error, const char *expected, const char *found)
{
    int rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "report: %s", found);
    error_contrast(error, expected, found);
    return rc;
}

static int no_memory(heddle_error_t *error)
{
    return error_fail(error, HEDDLE_ERR_NO_MEMORY, "report: no memory to decode it");
}

static int take(const msgpack_object *o, json_t **ret_value, heddle_error_t *error);

static int take_array(const msgpack_object_array *from, json_t *array, heddle_error_t *error)
{
    for (uint32_t i = 0; i < from->size; i++) {
        json_t *item;
        int rc = take(&from->ptr[i], &item, error);
        if (rc) return rc;
        if (json_array_append_new(array, item)) return no_memory(error);
    }
    return HEDDLE_OK;
}

/* msgpack-c has no place for an empty text that nothing came before. */
static const char *text_of(const msgpack_object_str *str) { return str->size ? str->ptr : ""; }

static int take_object(const msgpack_object_map *from, json_t *object, heddle_error_t *error)
{
    for (uint32_t i = 0; i < from->size; i++) {
        const msgpack_object_str *key = &from->ptr[i].key.via.str;
        const char *name = text_of(key);
        if (memchr(name, 0, key->size)) return refuse(error, "keys without NUL", "a key with a NUL");
        if (json_object_getn(object, name, key->size))
            return refuse(error, "each key once", "a key that comes twice");
        json_t *item;
        int rc = take(&from->ptr[i].val, &item, error);
        if (rc) return rc;
        if (json_object_setn_new_nocheck(object, name, key->size, item)) return no_memory(error);
    }
    return HEDDLE_OK;
}

static int take_container(const msgpack_object *o, json_t **ret_value, heddle_error_t *error)
{
    bool is_array = o->type == MSGPACK_OBJECT_ARRAY;
    json_t *value = is_array ? json_array() : json_object();
    if (!value) return no_memory(error);
    int rc = is_array ? take_array(&o->via.array, value, error) : take_object(&o->via.map, value, error);
    if (rc) json_decref(value);
    else *ret_value = value;
    return rc;
}

static int take(const msgpack_object *o, json_t **ret_value, heddle_error_t *error)
{
    json_t *value = NULL;
    switch (o->type) {
    case MSGPACK_OBJECT_ARRAY:
    case MSGPACK_OBJECT_MAP: return take_container(o, ret_value, error);
    case MSGPACK_OBJECT_NIL: value = json_null(); break;
    case MSGPACK_OBJECT_BOOLEAN: value = json_boolean(o->via.boolean); break;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        if (o->via.u64 > INT64_MAX) return refuse(error, "integers below 2^63", "a larger integer");
        value = json_integer((json_int_t)o->via.u64);
        break;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER: value = json_integer(o->via.i64); break;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        if (!isfinite(o->via.f64)) return refuse(error, "finite reals", "a real that is not finite");
        value = json_real(o->via.f64);
        break;
    case MSGPACK_OBJECT_STR: value = json_stringn_nocheck(text_of(&o->via.str), o->via.str.size); break;
    case MSGPACK_OBJECT_BIN:
    case MSGPACK_OBJECT_EXT: return refuse(error, "what JSON has too", "a bin");
    }
    if (!value) return no_memory(error);
    *ret_value = value;
    return HEDDLE_OK;
}

int value_decode(bytes_t body, json_t **ret_value, heddle_error_t *error)
{
    int rc = scan_check(body, &REPORT_LIMITS, "report", error);
    if (rc) return rc;
    msgpack_unpacked tree;
    msgpack_unpacked_init(&tree);
    size_t used = 0;
    msgpack_unpack_return got = msgpack_unpack_next(&tree, body.data, body.bytes, &used);
    if (got == MSGPACK_UNPACK_NOMEM_ERROR) rc = no_memory(error);
    else if (got != MSGPACK_UNPACK_SUCCESS || used != body.bytes)
        rc = refuse(error, "one msgpack value", "malformed bytes");
    else rc = take(&tree.data, ret_value, error);
    msgpack_unpacked_destroy(&tree);
    return rc;
}

/* --- errors --- */

/* null where empty; bytes that are not UTF-8 (a hook's output, a file's name) as '?'. */
static json_t *text_or_null(const char *text)
{
    if (!*text) return json_null();
    buf_t clean = {0};
    utf8_add_clean(&clean, text, strlen(text));
    json_t *value = clean.failed ? NULL : json_stringn_nocheck((const char *)clean.data, clean.bytes);
    buf_fini(&clean);
    return value;
}

json_t *value_from_error(const heddle_error_t *error)
{
    json_t *version = error->version ? json_integer((json_int_t)error->version) : json_null();
    return json_pack("{so, si, so, so, so, so, so, so, so, so, sb}",
                     "code", text_or_null(heddle_err_name(error->code)),
                     "exit", heddle_err_exit(error->code),
                     "message", text_or_null(error->message),
                     "adapter", text_or_null(error->adapter),
                     "version", version,
                     "worker", text_or_null(error->worker),
                     "phase", text_or_null(error->phase),
                     "expected", text_or_null(error->expected),
                     "found", text_or_null(error->found),
                     "hint", text_or_null(error->hint),
                     "retriable", error->retriable != 0);
}
