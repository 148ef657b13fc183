/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 version asked for | rows |: a broker starts with rows that somebody else wrote, as many of them
 * as its registry takes; a worker and a writer come, and everything is asked for, while it settles and
 * after. */
#include "tests/fuzz/rows.h"

enum { ASKER = 3 };

static void ask_all(uint64_t version)
{
    static const char *const OPS[] = {"status", "adapters", "versions", "workers", "events", "activate"};
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++) {
        count_steps(1);
        rig_query(ASKER, (msg_query_t){.op = OPS[i],
                                       .name = version ? "policy" : "",
                                       .version = version,
                                       .by = "ann",
                                       .deadline_ms = 100,
                                       .limit = 50});
    }
}

/* A start with these rows: everybody comes back, time goes on past settling, and everything is asked
 * for. */
static void live(uint64_t version)
{
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = R.b->registry.epoch + 1};
    if (epoch.epoch > UINT32_MAX || broker_apply(R.b, &epoch) || broker_start(R.b, R.now)) return;
    rig_hello(ASKER, ROLE_ADMIN);
    rig_hello(W1, ROLE_WORKER);
    rig_join_with(W1, "w1", &(msg_subscription_t){.adapter = "policy"}, 1, NULL, 0);
    rig_open(T, "policy", "trainer", version, true);
    ask_all(version);
    rig_pass(LEASE_MS + 100);
    ask_all(version);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    uint64_t version = input_byte(&in) % 9;
    heddle_error_t error;
    record_t record;
    broker_io_t io = {.send = rig_send,
                      .forget = rig_forget,
                      .commit = rig_commit,
                      .fatal = rig_fatal,
                      .random = rig_random};
    broker_opts_t opts = {.lease_ms = LEASE_MS,
                          .keep = 1,
                          .cluster = "c",
                          .endpoint = "e",
                          .data_dir = "/d",
                          .pid = 1,
                          .seed = 1};
    R = (struct rig){.now = {.us = 1000000000, .wall_ms = 1780000000000}};
    MUST(broker_new(&opts, &io, &R.b, &error) == HEDDLE_OK);
    for (uint64_t n = 0; in.left && n < ROWS_MAX; n++) {
        count_steps(1);
        if (take_row(&in, n, &record)) broker_apply(R.b, &record); /* what cannot be is refused */
    }
    live(version);
    rig_stop();
    return 0;
}
