/* SPDX-License-Identifier: Apache-2.0 */
/* What workers say of a version on its way, and what the broker answers of it: for the tests of the time that it took
 * (broker_timing.c) and of how it gets on (broker_progress.c). */
#ifndef TESTS_UNIT_TIMING_RIG_H
#define TESTS_UNIT_TIMING_RIG_H

#include "broker_rig.h"

#include <jansson.h>

static json_t *body; /* of the last answer */
static void stop(void)
{
    json_decref(body);
    body = NULL;
    rig_stop();
}

static void beat(uint64_t peer, uint64_t fetching, uint64_t bytes_done)
{
    msg_progress_t p = {.adapter = "policy",
                        .fetching = fetching,
                        .bytes_done = bytes_done,
                        .data_bytes = 5000,
                        .source = R.tokens[T]};
    msg_t m = {.type = MSG_HEARTBEAT};
    m.heartbeat = (msg_heartbeat_t){.token = R.tokens[peer], .seq = 1, .adapters = &p, .adapter_count = 1};
    rig_frame(peer, &m);
}

static void stage_version(uint64_t peer, uint64_t version, uint64_t fetch_ms, uint64_t stage_ms)
{
    msg_t m = {.type = MSG_STAGED};
    m.staged = (msg_staged_t){.token = R.tokens[peer],
                              .version = version,
                              .adapter = "policy",
                              .digest = rig_digest(version),
                              .connect_us = 1000,
                              .fetch_us = fetch_ms * 1000,
                              .stage_us = stage_ms * 1000};
    rig_frame(peer, &m);
}

static void stage(uint64_t peer, uint64_t fetch_ms, uint64_t stage_ms)
{
    stage_version(peer, 1, fetch_ms, stage_ms);
}

static void ask(const char *op, uint64_t version)
{
    heddle_error_t error;
    json_decref(body);
    rig_hello(ADMIN, ROLE_ADMIN);
    rig_query(ADMIN, (msg_query_t){.op = op, .name = version ? "policy" : NULL, .version = version});
    cr_assert_eq(value_decode(rig_last(ADMIN, MSG_REPORT)->report.body, &body, &error), HEDDLE_OK);
}

static const json_t *version(void)
{
    ask("versions", 1);
    return json_array_get(json_object_get(body, "versions"), 0);
}

/* The row of w1 is 0, of w2 is 1. */
static const json_t *copy(size_t i) { return json_array_get(json_object_get(version(), "workers"), i); }

static const json_t *copy_in(uint64_t version, size_t i)
{
    ask("versions", version);
    const json_t *v = json_array_get(json_object_get(body, "versions"), 0);
    return json_array_get(json_object_get(v, "workers"), i);
}

static const json_t *standing(size_t i)
{
    ask("workers", 0);
    const json_t *w = json_array_get(json_object_get(body, "workers"), i);
    return json_array_get(json_object_get(w, "adapters"), 0);
}

static void is(const json_t *object, const char *key, const char *want)
{
    const json_t *value = json_object_get(object, key);
    cr_assert_not_null(value, "%s", key);
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    cr_assert_str_eq(text, want, "%s: %s", key, text);
    free(text);
}

static const json_t *newest(uint64_t number)
{
    ask("versions", number);
    return json_array_get(json_object_get(body, "versions"), 0);
}

static void join_with_rate(uint64_t peer, const char *name, uint64_t max_rate_bytes)
{
    R.max_rates[peer] = max_rate_bytes;
    rig_worker(peer, name);
}

static void is_slowest(const json_t *v, const char *worker, const char *phase, const char *ms)
{
    const json_t *slowest = json_object_get(v, "slowest");
    cr_assert(json_is_object(slowest), "no worker is named");
    cr_assert_str_eq(json_string_value(json_object_get(slowest, "worker")), worker);
    cr_assert_str_eq(json_string_value(json_object_get(slowest, "phase")), phase);
    is(slowest, "ms", ms);
}

/* The first worker serves the version, and the second one still fetches it. */
static void one_is_ahead(void)
{
    publish_to(2, (rig_publish_t){.activation = HEDDLE_ACTIVATION_AS_READY});
    R.is_quiet[W1] = R.is_quiet[W2] = true;
    stage(W1, 1, 0);
    rig_active(W1, 1, 1, 1);
    rig_pass(1000);
    beat(W2, 1, 1000);
}

#endif
