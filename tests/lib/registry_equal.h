/* SPDX-License-Identifier: Apache-2.0 */
/* tests/lib/registry_equal.h: what the store reads back must be what was in memory, byte for byte. */
#ifndef TESTS_REGISTRY_EQUAL_H
#define TESTS_REGISTRY_EQUAL_H

#include "tests/lib/bytes_equal.h"
#include "broker/registry/registry.h"

#include <string.h>

static inline bool same_texts(const version_row_t *a, const version_row_t *b)
{
    return !strcmp(a->request_id, b->request_id) && !strcmp(a->writer, b->writer) &&
           !strcmp(a->base_model, b->base_model) && !strcmp(a->kind, b->kind) &&
           !strcmp(a->features, b->features) && !strcmp(a->meta, b->meta) &&
           !strcmp(a->message, b->message) && !strcmp(a->worker, b->worker) && !strcmp(a->phase, b->phase) &&
           !strcmp(a->lost_why, b->lost_why) &&
           bytes_equal(bytes_of(a->config, a->config_bytes), bytes_of(b->config, b->config_bytes));
}

static inline bool same_version(const version_row_t *a, const version_row_t *b)
{
    return a->version == b->version && a->created_ms == b->created_ms && a->state == b->state &&
           a->decision == b->decision && a->activated_ms == b->activated_ms &&
           a->first_decision == b->first_decision && a->first_ms == b->first_ms &&
           a->ended_ms == b->ended_ms && digest_equal(&a->digest, &b->digest) &&
           a->parts.count == b->parts.count &&
           a->parts.part[0].payload_bytes == b->parts.part[0].payload_bytes &&
           a->parts.part[0].manifest_bytes == b->parts.part[0].manifest_bytes &&
           digest_equal(&a->parts.part[0].manifest_digest, &b->parts.part[0].manifest_digest) &&
           !memcmp(&a->share_key, &b->share_key, sizeof a->share_key) && a->step == b->step &&
           a->data_bytes == b->data_bytes && a->tensor_count == b->tensor_count &&
           a->chunk_count == b->chunk_count && a->activation == b->activation &&
           a->deadline_ms == b->deadline_ms && a->asked_ms == b->asked_ms && a->code == b->code &&
           a->lost_ms == b->lost_ms && a->staged_ms == b->staged_ms && same_texts(a, b);
}

static inline bool same_writer(const writer_row_t *a, const writer_row_t *b)
{
    return a->token == b->token && a->pid == b->pid && a->since_ms == b->since_ms &&
           !strcmp(a->name, b->name) && !strcmp(a->host, b->host) &&
           !memcmp(&a->life, &b->life, sizeof a->life);
}

static inline bool same_adapter(const adapter_row_t *a, const adapter_row_t *b)
{
    bool same = !strcmp(a->name, b->name) && a->version_count == b->version_count &&
                a->ended_count == b->ended_count && a->last_version == b->last_version &&
                a->decision == b->decision && a->floor_decision == b->floor_decision &&
                a->active == b->active && a->scope == b->scope && a->decided_ms == b->decided_ms &&
                a->held == b->held && !strcmp(a->held_by, b->held_by) && same_writer(&a->writer, &b->writer);
    for (size_t i = 0; same && i < a->version_count; i++) same = same_version(a->versions[i], b->versions[i]);
    return same;
}

static inline bool same_worker(const worker_row_t *a, const worker_row_t *b)
{
    return !strcmp(a->name, b->name) && !strcmp(a->host, b->host) && a->pid == b->pid &&
           a->joined_ms == b->joined_ms && !strcmp(a->serves, b->serves);
}

static inline bool registry_equal(const registry_t *a, const registry_t *b)
{
    bool same =
        a->epoch == b->epoch && a->adapter_count == b->adapter_count && a->worker_count == b->worker_count;
    for (size_t i = 0; same && i < a->adapter_count; i++) same = same_adapter(a->adapters[i], b->adapters[i]);
    for (size_t i = 0; same && i < a->worker_count; i++) same = same_worker(a->workers[i], b->workers[i]);
    return same;
}

#endif
