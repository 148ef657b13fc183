/* SPDX-License-Identifier: Apache-2.0 */
/* The frame around a table: type number and map. */
#include "proto/msg.h"

#include "core/errors.h"
#include "core/limits.h"
#include "proto/field.h"
#include "proto/scan.h"

static const scan_limits_t FRAME_LIMITS = {LIMIT_FRAME_DEPTH, LIMIT_FRAME_NODES, LIMIT_MAP_KEYS};

/* For logs, which also show what cannot be decoded. */
const char *msg_name(int type)
{
    const table_t *table = msg_table(type);
    return table ? table->name : "?";
}

/* A frame that fails half-way must not leave a piece of itself in a buffer that may hold other frames. */
int msg_encode(const msg_t *m, buf_t *out)
{
    size_t start = out->bytes;
    const table_t *table = msg_table((int)m->type);
    if (!table) return HEDDLE_ERR_PROTOCOL;
    const uint8_t head[] = {0x92, (uint8_t)m->type}; /* an array of two; types below 128 are one byte */
    buf_add(out, head, sizeof head);
    /* All bodies are members of one union, so this is the address of any of them. */
    int rc = table_encode(table, &m->hello, out);
    if (rc == HEDDLE_OK && out->failed) rc = HEDDLE_ERR_NO_MEMORY;
    if (rc == HEDDLE_OK && out->bytes - start > LIMIT_FRAME_BYTES) rc = HEDDLE_ERR_LIMIT;
    if (rc) out->bytes = start;
    return rc;
}

/* A frame is [type, {...}] with a type that is known.  A body that cannot be decoded leaves nothing. */
int msg_decode(bytes_t frame, msg_t *ret_msg, heddle_error_t *error)
{
    memset(ret_msg, 0, offsetof(msg_t, room));
    ret_msg->arena = (arena_t){.room = ret_msg->room, .room_bytes = sizeof ret_msg->room};
    if (frame.bytes > LIMIT_FRAME_BYTES) {
        int rc = error_fail(error, HEDDLE_ERR_LIMIT, "the frame is too long");
        error_expected(error, "up to %u bytes", LIMIT_FRAME_BYTES);
        error_found(error, "%zu bytes", frame.bytes);
        return rc;
    }
    scan_tree_t tree;
    int rc = scan_decode(frame, &FRAME_LIMITS, "frame", &tree, error);
    const msgpack_object *root = &tree.root, *item = root->via.array.ptr;
    bool is_message = !rc && root->type == MSGPACK_OBJECT_ARRAY && root->via.array.size == 2 &&
                      item[0].type == MSGPACK_OBJECT_POSITIVE_INTEGER && item[1].type == MSGPACK_OBJECT_MAP;
    unsigned long long type = is_message ? item[0].via.u64 : 0;
    const table_t *table = type <= INT32_MAX ? msg_table((int)type) : NULL;
    if (is_message && table) {
        ret_msg->type = (msg_type_t)type;
        rc = table_decode(table, &item[1], &ret_msg->arena, &ret_msg->hello, error);
    } else if (is_message) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "message type %llu is not known", type);
        error_expected(error, "a type of wire versions %u to %u", WIRE_VERSION_MIN, WIRE_VERSION_MAX);
        error_found(error, "%llu", type);
        error_hint(error, "the peer may run a newer Heddle");
    } else if (!rc) {
        rc = error_fail(error, HEDDLE_ERR_PROTOCOL, "the frame is not a message");
        error_contrast(error, "an array of a type number and a map", "another msgpack object");
    }
    scan_end(&tree);
    if (rc) msg_fini(ret_msg);
    return rc;
}

/* All texts and lists of a message lie in its arena, so that one call ends them. */
void msg_fini(msg_t *m)
{
    arena_fini(&m->arena);
    memset(m, 0, offsetof(msg_t, room));
}

/* The texts are borrowed: an answer is encoded before its error object goes. */
void msg_from_error(const heddle_error_t *error, uint64_t req, msg_type_t of, msg_t *ret_msg)
{
    *ret_msg = (msg_t){.type = MSG_ERROR};
    ret_msg->error = (msg_error_t){
        .req = req,
        .of = (uint64_t)of,
        .version = error->version,
        .retriable = error->retriable != 0,
        .code = heddle_err_name(error->code),
        .message = error->message,
        .adapter = error->adapter,
        .worker = error->worker,
        .phase = error->phase,
        .expected = error->expected,
        .found = error->found,
        .hint = error->hint,
    };
}

/* Codes of a later release have no number here, and become the general one; their text stays. */
void msg_to_error(const msg_error_t *m, heddle_error_t *ret_error)
{
    error_fail(ret_error, heddle_err_from_name(m->code), "%s", m->message ? m->message : "");
    error_where(ret_error, m->adapter, m->version, m->worker, m->phase);
    error_contrast(ret_error, m->expected, m->found);
    if (m->hint) error_hint(ret_error, "%s", m->hint);
    ret_error->retriable = m->retriable;
}
