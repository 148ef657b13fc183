/* SPDX-License-Identifier: Apache-2.0 */
/* tests/lib/record_sample.h: records of an adapter, in which each field has something. */
#ifndef TESTS_RECORD_SAMPLE_H
#define TESTS_RECORD_SAMPLE_H

#include "broker/registry/record.h"

static inline record_t adapter_record(const char *name)
{
    return (record_t){.kind = RECORD_ADAPTER, .adapter = name, .at_ms = 1000};
}

static inline record_t version_record(const char *name, uint64_t version)
{
    record_t r = {.kind = RECORD_VERSION,
                  .adapter = name,
                  .version = version,
                  .at_ms = 1700000000123,
                  .request_id = "req-1",
                  .writer = "trainer-0",
                  .base_model = "Qwen/Qwen2.5-0.5B",
                  .kind_text = "lora",
                  .features = "dora,rslora",
                  .step = -1,
                  .data_bytes = 17596416,
                  .tensor_count = 336,
                  .chunk_count = 269,
                  .activation = 2,
                  .deadline_ms = 60000,
                  .asked_ms = 61000,
                  .config = {"{\"r\":16}\0\xff", 10},
                  .meta = "{\"run\":\"7\"}"};
    for (int i = 0; i < 32; i++) r.digest.b[i] = (uint8_t)(i + (int)version);
    for (int i = 0; i < 32; i++) r.parts.part[0].manifest_digest.b[i] = (uint8_t)(255 - i);
    for (int i = 0; i < 16; i++) r.share_key.b[i] = (uint8_t)(i * 3);
    r.parts.count = 1;
    r.parts.part[0].payload_bytes = 18000000;
    r.parts.part[0].manifest_bytes = 40000;
    return r;
}

static inline record_t decision_record(const char *name, uint64_t decision, uint64_t version)
{
    return (record_t){.kind = RECORD_DECISION,
                      .adapter = name,
                      .decision = decision,
                      .version = version,
                      .at_ms = 1700000000500,
                      .held = decision == 2,
                      .by = "ann@host"};
}

#endif
