/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over msgpack bytes before they are decoded.  It refuses what the library would accept or allocate
 * for: too deep, too many objects, lengths beyond the end, repeated keys, text that is not UTF-8. */
#include "proto/scan.h"

#include "core/errors.h"
#include "core/utf8.h"

typedef enum { SCALAR, TEXT, BIN, ARRAY, MAP, EXT, RESERVED } kind_t;

/* One header.  body: bytes that follow it; elements: objects that follow it. */
typedef struct {
    kind_t kind;
    size_t head_bytes;
    uint64_t body_bytes, elements;
} item_t;

typedef struct {
    uint32_t at, bytes;
} span_t;

/* An open container. */
typedef struct {
    uint64_t left; /* elements still to come; even in a map: a key is next */
    bool is_map;
    uint32_t key_count;
    span_t keys[LIMIT_MAP_KEYS];
} level_t;

typedef struct {
    const uint8_t *data;
    size_t bytes, at;
    const scan_limits_t *limits;
    const char *what;
    heddle_error_t *error;
    uint64_t nodes, owed; /* objects so far; objects declared by headers and still to come */
    uint32_t depth;
    level_t levels[LIMIT_REPORT_DEPTH];
} scan_t;

/* Headers 0xc0..0xdf: what they begin, and the bytes of the length (or of the scalar) behind them. */
static const struct {
    uint8_t kind, width;
} HEADS[32] = {
    {SCALAR, 0}, {RESERVED, 0}, {SCALAR, 0}, {SCALAR, 0}, /* nil, 0xc1, false, true */
    {BIN, 1},    {BIN, 2},      {BIN, 4},    {EXT, 0},    {EXT, 0}, {EXT, 0},
    {SCALAR, 4}, {SCALAR, 8},                             /* float 32, 64 */
    {SCALAR, 1}, {SCALAR, 2},   {SCALAR, 4}, {SCALAR, 8}, /* uint */
    {SCALAR, 1}, {SCALAR, 2},   {SCALAR, 4}, {SCALAR, 8}, /* int */
    {EXT, 0},    {EXT, 0},      {EXT, 0},    {EXT, 0},    {EXT, 0}, {TEXT, 1},
    {TEXT, 2},   {TEXT, 4},     {ARRAY, 2},  {ARRAY, 4},  {MAP, 2}, {MAP, 4},
};

/* The byte and its place lead to the bug in an encoder that is not ours. */
static int refuse(const scan_t *s, int code, const char *why, const char *expected)
{
    int rc =
        error_fail(s->error, code, "%s is malformed at byte %zu of %zu: %s", s->what, s->at, s->bytes, why);
    if (expected) error_contrast(s->error, expected, NULL);
    if (s->at < s->bytes) error_found(s->error, "byte 0x%02x", s->data[s->at]);
    else error_found(s->error, "the end");
    return rc;
}

/* A map of n pairs has 2n elements, keys and values in turn. */
static void fill_item(item_t *item, kind_t kind, uint64_t n)
{
    item->kind = kind;
    if (kind == TEXT || kind == BIN) item->body_bytes = n;
    if (kind == ARRAY) item->elements = n;
    if (kind == MAP) item->elements = 2 * n;
}

/* False when the header itself is cut off. */
static bool read_item(const scan_t *s, item_t *ret_item)
{
    const uint8_t *p = s->data + s->at;
    uint8_t b = p[0];
    *ret_item = (item_t){.kind = SCALAR, .head_bytes = 1};
    if (b <= 0x7f || b >= 0xe0) return true;
    if (b <= 0x8f) return fill_item(ret_item, MAP, b & 15), true;
    if (b <= 0x9f) return fill_item(ret_item, ARRAY, b & 15), true;
    if (b <= 0xbf) return fill_item(ret_item, TEXT, b & 31), true;
    size_t width = HEADS[b - 0xc0].width;
    if (s->bytes - s->at - 1 < width) return false;
    uint64_t n = 0;
    for (size_t i = 1; i <= width; i++) n = n << 8 | p[i];
    ret_item->head_bytes = 1 + width;
    fill_item(ret_item, HEADS[b - 0xc0].kind, n);
    return true;
}

/* A key: a text that this map did not have yet. */
static int check_key(scan_t *s, level_t *map, const item_t *item)
{
    if (item->kind != TEXT) return refuse(s, HEDDLE_ERR_PROTOCOL, "a key is not a text", "a text");
    if (!s->limits->keys) return HEDDLE_OK;
    span_t key = {(uint32_t)(s->at + item->head_bytes), (uint32_t)item->body_bytes};
    for (uint32_t i = 0; i < map->key_count; i++) {
        span_t old = map->keys[i];
        if (old.bytes == key.bytes && !memcmp(s->data + old.at, s->data + key.at, key.bytes))
            return refuse(s, HEDDLE_ERR_PROTOCOL, "a key comes twice in one map", "each key once");
    }
    map->keys[map->key_count++] = key;
    return HEDDLE_OK;
}

/* One object: its header, its body, and its place in the container that holds it. */
static int scan_object(scan_t *s)
{
    item_t item;
    if (s->at == s->bytes || !read_item(s, &item))
        return refuse(s, HEDDLE_ERR_PROTOCOL, "it is cut off", "more bytes");
    s->nodes++;
    s->owed--;

    /* Lengths are compared with what is left of the input, so no later step reads past its end. */
    uint64_t left = s->bytes - s->at - item.head_bytes;
    if (item.kind == RESERVED)
        return refuse(s, HEDDLE_ERR_PROTOCOL, "the byte is reserved", "a msgpack object");
    if (item.kind == EXT)
        return refuse(s, HEDDLE_ERR_PROTOCOL, "ext types are not used here", "another type");
    if (item.body_bytes > left)
        return refuse(s, HEDDLE_ERR_PROTOCOL, "a text or bin is longer than what is left", "its bytes");
    if (item.kind == TEXT && !utf8_is_valid(s->data + s->at + item.head_bytes, (size_t)item.body_bytes))
        return refuse(s, HEDDLE_ERR_PROTOCOL, "a text is not UTF-8", "UTF-8");
    if (s->depth > 0) {
        level_t *level = &s->levels[s->depth - 1];
        int rc = level->is_map && level->left % 2 == 0 ? check_key(s, level, &item) : HEDDLE_OK;
        if (rc) return rc;
        level->left--;
    }
    if (item.kind == ARRAY || item.kind == MAP) {
        if (s->depth == s->limits->depth)
            return refuse(s, HEDDLE_ERR_LIMIT, "too many containers in each other", NULL);
        if (item.kind == MAP && s->limits->keys && item.elements / 2 > s->limits->keys)
            return refuse(s, HEDDLE_ERR_LIMIT, "too many keys in one map", NULL);
        /* Every object takes a byte at least: what all open containers still want must fit into the rest. */
        s->owed += item.elements;
        if (s->owed > left)
            return refuse(s, HEDDLE_ERR_PROTOCOL, "more elements are declared than bytes are left",
                          "at most one a byte");
        if (s->nodes + s->owed > s->limits->nodes)
            return refuse(s, HEDDLE_ERR_LIMIT, "too many objects", NULL);
        if (item.elements) {
            level_t *level = &s->levels[s->depth++];
            level->left = item.elements;
            level->is_map = item.kind == MAP;
            level->key_count = 0;
        }
    }
    s->at += item.head_bytes + (size_t)item.body_bytes;
    while (s->depth > 0 && s->levels[s->depth - 1].left == 0) s->depth--;
    return HEDDLE_OK;
}

/* The walk is a loop with a stack of its own: the depth of a hostile input costs no stack of the
 * thread. */
int scan_check(bytes_t input, const scan_limits_t *limits, const char *what, heddle_error_t *error)
{
    scan_t s;
    s.data = input.data, s.bytes = input.bytes, s.at = 0;
    s.limits = limits, s.what = what, s.error = error;
    s.nodes = 0, s.owed = 1, s.depth = 0; /* levels are set as they open */
    if (input.bytes > UINT32_MAX) return refuse(&s, HEDDLE_ERR_LIMIT, "it is too long", NULL);
    while (s.owed > 0) {
        int rc = scan_object(&s);
        if (rc) return rc;
    }
    return s.at == s.bytes ? HEDDLE_OK : refuse(&s, HEDDLE_ERR_PROTOCOL, "bytes follow the end", "the end");
}

/* The library decodes every input that passes the scan.  Where it does not, its answer counts. */
int scan_decode(bytes_t input, const scan_limits_t *limits, const char *what, scan_tree_t *ret_tree,
                heddle_error_t *error)
{
    size_t used = 0;
    ret_tree->root = (msgpack_object){.type = MSGPACK_OBJECT_NIL};
    ret_tree->zone = (msgpack_zone){.chunk_list = {.free = sizeof ret_tree->first, .ptr = ret_tree->first},
                                    .chunk_size = MSGPACK_ZONE_CHUNK_SIZE};
    int rc = scan_check(input, limits, what, error);
    if (rc) return rc;
    msgpack_unpack_return got =
        msgpack_unpack((const char *)input.data, input.bytes, &used, &ret_tree->zone, &ret_tree->root);
    if (got == MSGPACK_UNPACK_NOMEM_ERROR)
        return error_fail(error, HEDDLE_ERR_NO_MEMORY, "no memory to decode %s", what);
    if (got == MSGPACK_UNPACK_SUCCESS && used == input.bytes) return HEDDLE_OK;
    return error_fail(error, HEDDLE_ERR_PROTOCOL, "%s is malformed", what);
}

/* A zone without a chunk of its own has nothing to end, and the library takes it that each has one. */
void scan_end(scan_tree_t *t)
{
    if (t->zone.chunk_list.head) msgpack_zone_destroy(&t->zone);
    t->zone = (msgpack_zone){.chunk_size = 0};
}

int scan_sink(void *out, const char *data, size_t bytes)
{
    buf_add(out, data, bytes);
    return ((buf_t *)out)->failed ? -1 : 0;
}
