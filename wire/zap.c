/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/zap.h"

#include "wire/keyring.h"
#include "wire/socket.h"

#include <czmq.h>

#define ADDRESS "inproc://zeromq.zap.01"

/* The frames of a request, in their order (RFC 27). KEY_BYTES: a raw CURVE key. TURN_QUESTIONS bounds the
 * requests in one turn, so that a flood of connections cannot hold up the frames of the existing ones. */
enum {
    VERSION,
    REQUEST,
    DOMAIN,
    PEER,
    IDENTITY,
    MECHANISM,
    KEY,
    FRAMES,
    KEY_BYTES = 32,
    TURN_QUESTIONS = 64
};

struct zap {
    loop_t *loop;
    void *socket;
    bool (*allow)(void *self, const char *public_key);
    void *self;
};

static bool is_text(const zmq_msg_t *part, const char *text)
{
    zmq_msg_t *p = (zmq_msg_t *)(uintptr_t)part; /* libzmq's accessors only read */
    return zmq_msg_size(p) == strlen(text) && !memcmp(zmq_msg_data(p), text, strlen(text));
}

/* Takes a whole message. Returns its number of parts, FRAMES + 1 if it has more, -1 if none is queued.
 * Excess parts are read and dropped: a REP socket answers only after the last part. */
static int take(void *handle, zmq_msg_t parts[FRAMES])
{
    zmq_msg_t excess;
    int count = 0;
    for (;;) {
        zmq_msg_t *part = count < FRAMES ? &parts[count] : &excess;
        zmq_msg_init(part);
        if (zmq_msg_recv(part, handle, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(part);
            return count ? count : -1;
        }
        bool more = zmq_msg_more(part);
        if (count < FRAMES) count++;
        else {
            zmq_msg_close(part);
            if (!more) return FRAMES + 1;
        }
        if (!more) return count;
    }
}

static void send_part(void *handle, const void *data, size_t bytes, bool more)
{
    zmq_send(handle, data, bytes, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
}

static void on_question(void *self)
{
    zap_t *z = self;
    void *handle = z->socket;
    zmq_msg_t parts[FRAMES], nothing;
    zmq_msg_init(&nothing);
    for (int i = 0; i < TURN_QUESTIONS; i++) {
        char key[KEY_TEXT];
        int count = take(handle, parts);
        if (count < 0) break;
        /* Every request that does not have the expected form is answered with 400. */
        bool is_sound = count == FRAMES && is_text(&parts[VERSION], "1.0") &&
                        is_text(&parts[MECHANISM], "CURVE") && zmq_msg_size(&parts[KEY]) == KEY_BYTES &&
                        zmq_z85_encode(key, zmq_msg_data(&parts[KEY]), KEY_BYTES);
        bool is_in = is_sound && z->allow(z->self, key);
        /* REP drops the reply silently if the connection has ended meanwhile; that needs no handling. */
        zmq_msg_t *request = count > REQUEST ? &parts[REQUEST] : &nothing;
        const char *user = is_in ? key : NULL;
        const char *code = user ? "200" : "400", *text = user ? "OK" : "this key is not known";
        send_part(handle, "1.0", 3, true);
        send_part(handle, zmq_msg_data(request), zmq_msg_size(request), true);
        send_part(handle, code, 3, true);
        send_part(handle, text, strlen(text), true);
        send_part(handle, user ? user : "", user ? strlen(user) : 0, true);
        send_part(handle, "", 0, false);
        for (int k = 0; k < count && k < FRAMES; k++) zmq_msg_close(&parts[k]);
    }
    zmq_msg_close(&nothing);
}

int zap_new(loop_t *loop, bool (*allow)(void *self, const char *public_key), void *self, zap_t **ret_zap)
{
    int rc = HEDDLE_ERR_NO_MEMORY;
    zap_t *z = calloc(1, sizeof *z);
    if (!z) return rc;
    *z = (zap_t){.loop = loop, .socket = socket_new(ZMQ_REP), .allow = allow, .self = self};
    if (!z->socket) goto fail;
    zsock_set_linger(z->socket, 0);
    if (zmq_bind(z->socket, ADDRESS)) {
        if (errno == EADDRINUSE) rc = HEDDLE_ERR_UNAVAILABLE;
        goto fail;
    }
    if (loop_add_socket(loop, z->socket, on_question, z)) goto fail;
    *ret_zap = z;
    return HEDDLE_OK;
fail:
    zap_destroy(&z);
    return rc;
}

void zap_destroy(zap_t **zap)
{
    zap_t *z = zap ? *zap : NULL;
    if (!z) return;
    *zap = NULL;
    if (z->socket) loop_remove_socket(z->loop, z->socket);
    socket_close(&z->socket);
    free(z);
}
