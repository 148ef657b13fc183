/* SPDX-License-Identifier: Apache-2.0 */
#include "client/broker_address.h"

#include "client/credentials.h"
#include "core/bytes.h"
#include "core/errors.h"
#include "core/limits.h"
#include "core/thread.h"
#include "wire/wire.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RESOLVE_S = 1 };

const char *broker_address(const char *given)
{
    const char *set = given && given[0] ? given : getenv(BROKER_ADDRESS_ENV);
    return set && set[0] ? set : BROKER_ADDRESS_DEFAULT;
}

void broker_address_told(wire_t *w, const msg_t *m)
{
    bool is_hello = m->type == MSG_HELLO_OK;
    const msg_broker_t *rows = is_hello ? m->hello_ok.brokers : m->heartbeat_ok.brokers;
    uint32_t count = is_hello ? m->hello_ok.broker_count : m->heartbeat_ok.broker_count;
    wire_broker_t told[LIMIT_BROKERS];
    for (uint32_t i = 0; i < count && i < LIMIT_BROKERS; i++)
        told[i] = (wire_broker_t){rows[i].endpoint, rows[i].key};
    wire_told(w, told, count < LIMIT_BROKERS ? count : LIMIT_BROKERS);
}

/* A look-up cannot be cancelled.  One that takes too long is left to its thread, which frees it then. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done, is_left;
    int rc; /* of getaddrinfo */
    char host[WIRE_HOST_BYTES];
} lookup_t;

static void lookup_free(lookup_t *l)
{
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void *look_up(void *self)
{
    lookup_t *l = self;
    struct addrinfo *addresses = NULL;
    int rc = getaddrinfo(l->host, NULL, NULL, &addresses);
    if (!rc) freeaddrinfo(addresses);
    pthread_mutex_lock(&l->lock);
    l->rc = rc;
    l->is_done = true;
    bool is_left = l->is_left;
    pthread_cond_signal(&l->done);
    pthread_mutex_unlock(&l->lock);
    if (is_left) lookup_free(l);
    return NULL;
}

/* Why the host has no address; NULL: it has one, or the resolver has not answered in time. */
static const char *why_unresolved(const char *host)
{
    lookup_t *l = calloc(1, sizeof *l);
    pthread_condattr_t monotonic;
    pthread_t thread;
    struct timespec until;
    if (!l) return NULL;
    memcpy(l->host, host, sizeof l->host);
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start("heddle-resolve", look_up, l, &thread)) {
        lookup_free(l);
        return NULL;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += RESOLVE_S;
    pthread_mutex_lock(&l->lock);
    while (!l->is_done && !pthread_cond_timedwait(&l->done, &l->lock, &until)) {}
    l->is_left = !l->is_done;
    int rc = l->is_done ? l->rc : 0;
    bool is_left = l->is_left;
    pthread_mutex_unlock(&l->lock);
    if (is_left) {
        pthread_detach(thread);
        return NULL;
    }
    pthread_join(thread, NULL);
    lookup_free(l);
    return rc ? gai_strerror(rc) : NULL;
}

void broker_address_unreached(const char *endpoints, const char *untried, bool is_reached, const char *hint,
                              heddle_error_t *error)
{
    char host[WIRE_HOST_BYTES], rest[240] = "";
    const char *list = endpoints, *why = NULL;
    if (untried) text_printf(rest, sizeof rest, "; %s was not tried in that time", untried);
    else if (strchr(endpoints, ',')) text_printf(rest, sizeof rest, "; each of them was tried");
    if (is_reached) {
        error_found(error, "a connection, but no answer%s", rest);
        error_hint(error, "a broker on a busy host or disk is slow to answer: see its log, or give it longer "
                          "with opts.timeout_ms; or is it another program that listens there?");
        return;
    }
    while (!why && wire_next_host(&list, host)) why = why_unresolved(host);
    if (why) {
        error_found(error, "no connection: %s has no address (%s)", host, why);
        error_hint(error, "check the name of the host; opts.broker or HEDDLE_BROKER names another address");
        return;
    }
    error_found(error, "no connection%s", rest);
    credentials_hint_elsewhere(endpoints, hint, error);
}
