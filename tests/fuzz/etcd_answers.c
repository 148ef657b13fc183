/* SPDX-License-Identifier: Apache-2.0 */
/* | u8 how | ... |: what an etcd answers.  how 0: a row, | u8 bytes of the key | key | value |, is read, and if it
 * can be, walked over and found again.  Else answers, each a line and a byte in front of it for its lane and
 * what became of it, to whatever a broker asks: it goes on asking, leads, or has a reason. */
#include "broker/store/etcd_leader.h"
#include "core/clock.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static int see(void *self, const record_t *r)
{
    size_t *count = self;
    MUST(r->kind == RECORD_EPOCH || r->kind == RECORD_KEY || r->kind == RECORD_WORKER || r->adapter);
    ++*count;
    return HEDDLE_OK;
}

static void read_row(input_t *in)
{
    store_rows_t *rows = NULL;
    heddle_error_t error = {0};
    size_t count = 0;
    MUST(rows_new(&rows, &error) == HEDDLE_OK);
    bytes_t key = input_bytes(in, input_byte(in)), value = input_bytes(in, in->left);
    int rc = rows_read(rows, key, value, &error);
    MUST(rc == HEDDLE_OK || (rc == error.code && error.hint[0]));
    if (!rc) MUST(rows_walk(rows, see, &count, &error) == HEDDLE_OK && count <= 1);
    rows_destroy(&rows);
}

static void answer(input_t *in)
{
    static const etcd_leader_opts_t OPTS =
        {.prefix = "p", .run = "r", .holder = "h", .fresh = "0123456789abcdef", .endpoints = 2, .ttl_s = 5};
    etcd_leader_t l;
    heddle_error_t error;
    uint64_t now_us = 0;
    int rc;
    MUST(etcd_leader_init(&l, &OPTS, 0, &error) == HEDDLE_OK);
    while (in->left) {
        etcd_request_t request;
        uint8_t how = input_byte(in);
        etcd_lane_t lane = (etcd_lane_t)(how % ETCD_LANES);
        const uint8_t *end = memchr(in->at, '\n', in->left);
        bytes_t body = input_bytes(in, end ? (size_t)(end - in->at) : in->left);
        if (end) input_byte(in);
        record_t floor = {.kind = RECORD_FLOOR, .adapter = "a", .version = 1};
        if (l.state == ETCD_LEADING && !l.is_committing) etcd_leader_commit(&l, &floor, 1, now_us, &error);
        etcd_leader_next(&l, lane, now_us, &request);
        etcd_leader_answer(&l, lane, (etcd_outcome_t)(how / 8 % 8 == 7 ? ETCD_UNKNOWN : ETCD_ANSWERED), body,
                           now_us);
        if (etcd_leader_take_outcome(&l, &rc, &error)) MUST(rc == HEDDLE_OK || error.code == rc);
        if (l.state == ETCD_LOST || l.state == ETCD_REFUSED) MUST(l.why.code && l.why.message[0]);
        now_us += how / 64 * 100000;
    }
    etcd_leader_fini(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t in = {data, size};
    if (input_byte(&in) == 0) read_row(&in);
    else answer(&in);
    return 0;
}
