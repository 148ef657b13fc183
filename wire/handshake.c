/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handshake.h"

#include "core/errors.h"

#include <zmq.h>

static int key_unknown(const char *endpoint, const key_pair_t *own, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DENIED, "the broker at %.200s does not let in the key %s",
                        endpoint, own->public_key);
    error_expected(error, "a key that `heddle keys list` shows there, and that was not revoked");
    error_found(error, "%s", own->public_key);
    error_hint(
        error,
        "on the broker's host: heddle keys add '%s' --role worker:ADAPTER (or publisher:ADAPTER, reader, "
        "admin)",
        own->public_key);
    return rc;
}

static int plain_against_keys(const char *endpoint, heddle_error_t *error)
{
    int rc = error_fail(
        error, HEDDLE_ERR_DENIED,
        "the broker at %.200s takes connections with keys alone, and its own key is not known here",
        endpoint);
    error_expected(error, "the broker's public key");
    error_found(error, "none");
    error_hint(
        error,
        "name it with --broker-key or HEDDLE_BROKER_KEY: the `public` line of broker.key among the "
        "broker's keys, or its known-broker file");
    error->retriable = 1;
    return rc;
}

/* A listener of another kind; or one with keys that did not greet in time. */
static int plain_is_shut_out(const char *endpoint, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE,
                        "whoever listens on %.200s ends the connection in the handshake", endpoint);
    error_expected(error, "a broker without keys, or one whose key is known here");
    error_found(error, "another program, or a broker with keys");
    error_hint(error, "--broker or HEDDLE_BROKER names another address, --broker-key the broker's key");
    return rc;
}

static int keys_against_plain(const char *endpoint, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_DENIED,
                        "the broker at %.200s runs without keys, and is expected to have one", endpoint);
    error_expected(error, "a broker that was not started with --insecure");
    error_found(error, "a plain one");
    error_hint(error, "is it another program? start your broker there without --insecure; or, to take this "
                      "one as it is, leave --broker-key away and remove its file in brokers/ of the key ring "
                      "(your own broker started with --insecure does)");
    error->retriable = 1;
    return rc;
}

static int broken_off(const char *endpoint, const char *broker_key, heddle_error_t *error)
{
    int rc = error_fail(error, HEDDLE_ERR_UNAVAILABLE,
                        "the broker at %.200s ends the connection in the handshake", endpoint);
    error_expected(error, "the broker whose key is %s", broker_key);
    error_found(error, "one that does not prove it");
    error_hint(
        error,
        "compare with the `public` line of its broker.key; --broker-key names another, and a file in "
        "brokers/ of the key ring may be out of date");
    return rc;
}

int handshake_explain(uint16_t event, uint32_t value, const char *endpoint, const key_pair_t *own,
                      const char *broker_key, heddle_error_t *ret_error)
{
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) return key_unknown(endpoint, own, ret_error);
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL &&
        value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
        return broker_key[0] ? keys_against_plain(endpoint, ret_error)
                             : plain_against_keys(endpoint, ret_error);
    if (broker_key[0]) return broken_off(endpoint, broker_key, ret_error);
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) return plain_is_shut_out(endpoint, ret_error);
    int rc = error_fail(ret_error, HEDDLE_ERR_UNAVAILABLE,
                        "whoever listens on %.200s does not speak as a broker does", endpoint);
    error_hint(ret_error,
               "is heddle-broker running there? --broker or HEDDLE_BROKER names another address");
    return rc;
}
