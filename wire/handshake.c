/* SPDX-License-Identifier: Apache-2.0 */
/* The messages for each way in which a handshake fails. libzmq reports little, so the possible causes are
 * distinguished by the event, and by whether either side has keys. */
#include "wire/handshake.h"

#include "core/errors.h"

#include <string.h>
#include <zmq.h>

/* Both sides must have the other's key, so the hint has two parts: the option that takes the broker's here,
 * which is what is known to be missing, and the command that registers ours there.  It is short because the
 * command is whole even with the longest roles. */
static void hint_at_both(const char *why, const key_pair_t *own, const char *roles, heddle_error_t *error)
{
    const char *quote = own->public_key[0] ? "'" : "";
    error_hint(error,
               "%sname its key with opts.broker_key; register yours: `heddle keys add %s%s%s --role %s`%s",
               why, quote, own->public_key[0] ? own->public_key : "KEY", quote,
               roles[0] ? roles : "worker:ADAPTER", roles[0] ? "" : " (or publisher:ADAPTER, reader)");
}

int handshake_explain(uint16_t event, uint32_t value, const char *endpoint, const wire_keys_t *keys,
                      heddle_error_t *ret_error)
{
    heddle_error_t *error = ret_error;
    key_pair_t own = keys->own;
    bool has_key = keys->broker_key[0];
    bool is_mismatch =
        event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL && value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH;
    int rc = HEDDLE_ERR_UNAVAILABLE;
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
        rc = error_fail(error, HEDDLE_ERR_DENIED, "the broker at %.200s does not admit the key %s", endpoint,
                        own.public_key);
        error_expected(error, "a key that `heddle keys list` shows there and that is not revoked");
        error_found(error, "%s", own.public_key);
        error_hint(error, "the broker's user runs `heddle keys add '%s' --role %s`%s", own.public_key,
                   keys->roles[0] ? keys->roles : "worker:ADAPTER",
                   keys->roles[0] ? "" : " (or publisher:ADAPTER, reader, admin)");
    } else if (is_mismatch && has_key) {
        /* Never answered by connecting without keys: an attacker in the broker's place could bring that
         * about. */
        rc = error_fail(error, HEDDLE_ERR_DENIED,
                        "the broker at %.200s runs without keys, but a key of it is known here", endpoint);
        error_expected(error, "a broker that was not started with --insecure");
        error_found(error, "a broker without keys");
        error_hint(error, "is it another program? start your broker there without --insecure; or, to accept "
                          "this one, omit opts.broker_key and remove its file in brokers/ of the key ring "
                          "(your own broker started with --insecure removes it)");
        error->retriable = 1;
    } else if (is_mismatch) {
        /* This side had no use for a key so far. One is made now, because the broker's user must register
         * it. */
        heddle_error_t ignored;
        bool has_ring = keys->ring.dir[0];
        if (!own.public_key[0] && has_ring) keyring_pair(&keys->ring, "client.key", &own, &ignored);
        rc = error_fail(error, HEDDLE_ERR_DENIED,
                        "the broker at %.200s has a key that %.200s does not know: another user started it, "
                        "or it has another key ring",
                        endpoint, has_ring ? keys->ring.dir : "this program");
        error_expected(error, "the broker's public key, which `heddle status` prints on its host");
        error_found(error, "none");
        hint_at_both("", &own, keys->roles, error);
        error->retriable = 1;
    } else if (has_key) {
        error_fail(error, rc, "the broker at %.200s ends the connection in the handshake", endpoint);
        error_expected(error, "the broker whose key is %s", keys->broker_key);
        error_found(error, "a broker that does not prove that it has this key");
        if (keys->is_fixed) error_hint(error, "compare with the key that `heddle status` prints there");
        else hint_at_both("if it is another user's: ", &own, keys->roles, error);
    } else if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) {
        /* It is no broker, or it has keys and closed the connection before it had sent its mechanism. */
        error_fail(error, rc, "the listener at %.200s closed the connection in the handshake", endpoint);
        error_expected(error, "a broker without keys, or one whose key is known here");
        error_found(error, "another program, or a broker with keys");
        error_hint(error,
                   "opts.broker or HEDDLE_BROKER names another address, opts.broker_key the broker's key");
    } else {
        error_fail(error, rc, "%.200s is not a Heddle broker: the handshake failed", endpoint);
        error_hint(error,
                   "is heddle-broker running there? opts.broker or HEDDLE_BROKER names another address");
    }
    explicit_bzero(&own, sizeof own);
    return rc;
}
