/* SPDX-License-Identifier: Apache-2.0 */
/* Recursion over trees whose depth is limited, so the stack is bounded too. */
#include "proto/value.h"

#include "core/errors.h"
#include "core/limits.h"
#include "core/utf8.h"
#include "proto/scan.h"

#include <math.h>
#include <msgpack.h>

/* Keys per map: any number; jansson's hash finds the duplicates. */
static const scan_limits_t REPORT_LIMITS = {LIMIT_REPORT_DEPTH, LIMIT_REPORT_NODES, 0};

/* --- JSON -> msgpack --- */

typedef struct {
    buf_t *out;
    msgpack_packer packer;
    uint32_t nodes;
} writer_t;

/* Texts of jansson are valid UTF-8 already. */
static void put_text(writer_t *w, const char *text, size_t bytes)
{
    msgpack_pack_str(&w->packer, bytes);
    buf_add(w->out, text, bytes);
}

/* A container counts its keys as nodes too, as the decoder's scan does. */
static int put_value(writer_t *w, const json_t *value, uint32_t depth)
{
    int rc = HEDDLE_OK;
    bool container = json_is_array(value) || json_is_object(value);
    if (++w->nodes > LIMIT_REPORT_NODES || (container && depth == LIMIT_REPORT_DEPTH))
        return HEDDLE_ERR_LIMIT;
    if (!value) return HEDDLE_ERR_NO_MEMORY; /* what failed constructors of jansson leave */
    switch (json_typeof(value)) {
    case JSON_OBJECT: {
        json_t *object = (json_t *)(uintptr_t)value; /* jansson has no const iterator */
        msgpack_pack_map(&w->packer, json_object_size(object));
        for (void *at = json_object_iter(object); at && !rc; at = json_object_iter_next(object, at)) {
            w->nodes++;
            put_text(w, json_object_iter_key(at), json_object_iter_key_len(at));
            rc = put_value(w, json_object_iter_value(at), depth + 1);
        }
        break;
    }
    case JSON_ARRAY: {
        size_t count = json_array_size(value);
        msgpack_pack_array(&w->packer, count);
        for (size_t i = 0; i < count && !rc; i++) rc = put_value(w, json_array_get(value, i), depth + 1);
        break;
    }
    case JSON_STRING: put_text(w, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: msgpack_pack_int64(&w->packer, json_integer_value(value)); break;
    case JSON_REAL: msgpack_pack_double(&w->packer, json_real_value(value)); break;
    case JSON_TRUE: msgpack_pack_true(&w->packer); break;
    case JSON_FALSE: msgpack_pack_false(&w->packer); break;
    case JSON_NULL: msgpack_pack_nil(&w->packer); break;
    }
    return rc;
}

/* jansson reports a lack of memory as a value that is missing, which is found on the walk. */
int value_encode(const json_t *value, buf_t *out)
{
    size_t start = out->bytes;
    writer_t w = {.out = out};
    msgpack_packer_init(&w.packer, out, scan_sink);
    int rc = put_value(&w, value, 0);
    if (rc == HEDDLE_OK && out->failed) rc = HEDDLE_ERR_NO_MEMORY;
    if (rc) out->bytes = start;
    return rc;
}

/* --- msgpack -> JSON --- */

/* Reports come from the broker, so a malformed one is a bug or another release. */
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

/* msgpack-c has no place for an empty text that nothing came before. */
static const char *text_of(const msgpack_object_str *str) { return str->size ? str->ptr : ""; }

static int take(const msgpack_object *o, json_t **ret_value, heddle_error_t *error);

/* The scan leaves the search for repeated keys to jansson's hash, which is faster for large objects. */
static int take_container(const msgpack_object *o, json_t **ret_value, heddle_error_t *error)
{
    bool is_array = o->type == MSGPACK_OBJECT_ARRAY;
    uint32_t count = is_array ? o->via.array.size : o->via.map.size;
    json_t *value = is_array ? json_array() : json_object(), *item = NULL;
    int rc = value ? HEDDLE_OK : no_memory(error);
    for (uint32_t i = 0; i < count && !rc; i++) {
        if (is_array) {
            rc = take(&o->via.array.ptr[i], &item, error);
            if (!rc && json_array_append_new(value, item)) rc = no_memory(error);
            continue;
        }
        const msgpack_object_kv *pair = &o->via.map.ptr[i];
        const char *name = text_of(&pair->key.via.str);
        uint32_t bytes = pair->key.via.str.size;
        if (memchr(name, 0, bytes)) rc = refuse(error, "keys without NUL", "a key with a NUL");
        else if (json_object_getn(value, name, bytes))
            rc = refuse(error, "each key once", "a key that comes twice");
        else rc = take(&pair->val, &item, error);
        if (!rc && json_object_setn_new_nocheck(value, name, bytes, item)) rc = no_memory(error);
    }
    if (rc) json_decref(value);
    else *ret_value = value;
    return rc;
}

/* jansson has signed integers and finite reals only: what does not fit is refused, and never rounded. */
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
    scan_tree_t tree;
    int rc = scan_decode(body, &REPORT_LIMITS, "report", &tree, error);
    if (!rc) rc = take(&tree.root, ret_value, error);
    scan_end(&tree);
    return rc;
}

/* --- errors --- */

/* The fields are always all there, so that scripts need no test for a missing key.  The texts may have bytes
 * that are not UTF-8: a hook's output, a file's name. */
json_t *value_from_error(const heddle_error_t *error)
{
    json_t *version = error->version ? json_integer((json_int_t)error->version) : json_null();
    return json_pack("{so, si, so, so, so, so, so, so, so, so, sb}", "code",
                     utf8_json_or_null(heddle_err_name(error->code)), "exit", heddle_err_exit(error->code),
                     "message", utf8_json_or_null(error->message), "adapter",
                     utf8_json_or_null(error->adapter), "version", version, "worker",
                     utf8_json_or_null(error->worker), "phase", utf8_json_or_null(error->phase), "expected",
                     utf8_json_or_null(error->expected), "found", utf8_json_or_null(error->found), "hint",
                     utf8_json_or_null(error->hint), "retriable", error->retriable != 0);
}

const char *value_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

void value_to_error(const json_t *value, int code, heddle_error_t *ret_error)
{
    const char *message = value_text(value, "message");
    json_int_t version = json_integer_value(json_object_get(value, "version"));
    error_fail(ret_error, code, "%s", message[0] ? message : heddle_err_text(code));
    error_where(ret_error, value_text(value, "adapter"), version > 0 ? (uint64_t)version : 0,
                value_text(value, "worker"), value_text(value, "phase"));
    error_contrast(ret_error, value_text(value, "expected"), value_text(value, "found"));
    error_hint(ret_error, "%s", value_text(value, "hint"));
}
