/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a registry that somebody else wrote, out of fuzz bytes: u8 kind | u8 n | n x { u8 column, u8
 * type, value }.  A row is one that could be, with n columns replaced.  What can be read is put and
 * taken again, and must be the same. */
#ifndef TESTS_FUZZ_ROWS_H
#define TESTS_FUZZ_ROWS_H

#include "tests/lib/bytes_equal.h"
#include "../unit/broker_rig.h"
#include "broker/store/store_row.h"

#include <sqlite3.h>

enum { COLUMNS_MAX = 22, ROWS_MAX = 24 };

static const record_kind_t KINDS[] = {RECORD_EPOCH,  RECORD_ADAPTER, RECORD_VERSION, RECORD_DECISION,
                                      RECORD_STATE,  RECORD_WRITER,  RECORD_FLOOR,   RECORD_KEY,
                                      RECORD_WORKER, RECORD_LOSS,    RECORD_STAGED};
static const int COLUMNS[] = {[RECORD_EPOCH] = 1,    [RECORD_ADAPTER] = 2, [RECORD_VERSION] = COLUMNS_MAX,
                              [RECORD_DECISION] = 7, [RECORD_STATE] = 8,   [RECORD_WRITER] = 7,
                              [RECORD_FLOOR] = 3,    [RECORD_KEY] = 9,     [RECORD_WORKER] = 5,
                              [RECORD_LOSS] = 4,     [RECORD_STAGED] = 3};

static sqlite3_stmt *statement_of(int columns)
{
    static sqlite3 *db;
    static sqlite3_stmt *statements[COLUMNS_MAX + 1];
    if (!db) MUST(sqlite3_open(":memory:", &db) == SQLITE_OK);
    if (!statements[columns]) {
        char sql[16 + 2 * COLUMNS_MAX] = "SELECT ?";
        for (int i = 1; i < columns; i++) strcat(sql, ",?");
        MUST(sqlite3_prepare_v2(db, sql, -1, &statements[columns], NULL) == SQLITE_OK);
    }
    return statements[columns];
}

static record_t plain_record(record_kind_t kind, uint64_t n)
{
    return (record_t){.kind = kind,
                      .adapter = "policy",
                      .epoch = 1 + n,
                      .version = 1 + n % 8,
                      .decision = 1 + n % 4,
                      .at_ms = 1780000000000,
                      .digest = rig_digest(n % 8),
                      .parts = {{{.payload_bytes = 8192, .manifest_bytes = 100}}, 1},
                      .request_id = "r1",
                      .writer = "trainer",
                      .base_model = "base",
                      .kind_text = "lora",
                      .features = "bias,dora",
                      .step = -1,
                      .data_bytes = 5000,
                      .tensor_count = 2,
                      .chunk_count = 1,
                      .deadline_ms = 60000,
                      .asked_ms = 60001,
                      .config = bytes_of("{}", 2),
                      .meta = "{\"k\":\"v\"}",
                      .state = VERSION_FAILED,
                      .message = "m",
                      .serves = "policy@1",
                      .worker = "w",
                      .phase = "fetch",
                      .by = "ann",
                      .token = 1ull << 32 | 1,
                      .pid = 7,
                      .host = "host",
                      .public_key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
                      .name = "k",
                      .roles = "admin,worker:policy"};
}

static void bind_column(input_t *in, sqlite3_stmt *sql, int columns)
{
    int column = 1 + input_byte(in) % columns;
    uint8_t type = input_byte(in);
    bytes_t raw;
    switch (type % 8) {
    case 0: sqlite3_bind_int64(sql, column, input_byte(in)); break;
    case 1: sqlite3_bind_int64(sql, column, (sqlite3_int64)input_take(in, 8)); break;
    case 2: sqlite3_bind_null(sql, column); break;
    case 3: sqlite3_bind_double(sql, column, (double)input_take(in, 8)); break;
    case 4: sqlite3_bind_zeroblob(sql, column, input_byte(in)); break;
    case 5:
        raw = input_bytes(in, input_byte(in));
        sqlite3_bind_blob(sql, column, raw.data, (int)raw.bytes, SQLITE_TRANSIENT);
        break;
    default:
        raw = input_bytes(in, input_byte(in));
        sqlite3_bind_text(sql, column, raw.data, (int)raw.bytes, SQLITE_TRANSIENT);
        break;
    }
}

static bool same_text(const char *a, const char *b) { return !strcmp(a ? a : "", b ? b : ""); }

static void check_same(const record_t *a, const record_t *b)
{
    MUST(same_text(a->adapter, b->adapter) && same_text(a->request_id, b->request_id) &&
         same_text(a->writer, b->writer));
    MUST(same_text(a->base_model, b->base_model) && same_text(a->kind_text, b->kind_text) &&
         same_text(a->meta, b->meta));
    MUST(same_text(a->features, b->features) && same_text(a->message, b->message) &&
         same_text(a->worker, b->worker));
    MUST(same_text(a->phase, b->phase) && same_text(a->by, b->by) && same_text(a->host, b->host));
    MUST(a->epoch == b->epoch && a->version == b->version && a->decision == b->decision &&
         a->at_ms == b->at_ms);
    MUST(a->parts.part[0].payload_bytes == b->parts.part[0].payload_bytes &&
         a->parts.part[0].manifest_bytes == b->parts.part[0].manifest_bytes);
    MUST(digest_equal(&a->digest, &b->digest) &&
         digest_equal(&a->parts.part[0].manifest_digest, &b->parts.part[0].manifest_digest));
    MUST(!memcmp(&a->share_key, &b->share_key, sizeof a->share_key) &&
         !memcmp(&a->life, &b->life, sizeof a->life));
    MUST(a->step == b->step && a->data_bytes == b->data_bytes && a->tensor_count == b->tensor_count);
    MUST(a->chunk_count == b->chunk_count && a->activation == b->activation &&
         a->deadline_ms == b->deadline_ms && a->asked_ms == b->asked_ms);
    MUST(bytes_equal(a->config, b->config) && a->state == b->state && a->code == b->code);
    MUST(same_text(a->public_key, b->public_key) && same_text(a->name, b->name) &&
         same_text(a->roles, b->roles) && same_text(a->serves, b->serves) &&
         same_text(a->entered_by, b->entered_by));
    MUST(a->revoked_ms == b->revoked_ms && a->held == b->held && a->token == b->token && a->pid == b->pid);
}

/* `kept` owns its texts: the statement is used again. */
static void check_round(const record_t *kept)
{
    if (kept->kind == RECORD_WRITER && !kept->token) return; /* such a one is never put: its row goes */
    if (kept->kind == RECORD_WORKER && !*kept->serves) return;
    sqlite3_stmt *sql = statement_of(COLUMNS[kept->kind]);
    store_row_t to = {.sql = sql}, from = {.sql = sql};
    record_t again = {.kind = kept->kind};
    row_put(&to, kept);
    MUST(to.code == SQLITE_OK && to.at == COLUMNS[kept->kind] && sqlite3_step(sql) == SQLITE_ROW);
    row_take(&from, &again);
    MUST(from.code == SQLITE_OK && from.at == to.at);
    check_same(kept, &again);
    sqlite3_reset(sql);
    sqlite3_clear_bindings(sql);
}

/* The next row; false: it was refused.  What it borrows lives as long as R.texts. */
static bool take_row(input_t *in, uint64_t n, record_t *ret_record)
{
    record_kind_t kind = KINDS[input_byte(in) % (sizeof KINDS / sizeof *KINDS)];
    sqlite3_stmt *sql = statement_of(COLUMNS[kind]);
    record_t plain = plain_record(kind, n), taken = {.kind = kind};
    store_row_t to = {.sql = sql}, from = {.sql = sql};
    row_put(&to, &plain);
    for (int left = input_byte(in) % 4; left > 0; left--) bind_column(in, sql, COLUMNS[kind]);
    MUST(sqlite3_step(sql) == SQLITE_ROW);
    row_take(&from, &taken);
    MUST(from.at == COLUMNS[kind]);
    bool good = from.code == SQLITE_OK;
    record_t kept = good ? rig_keep_record(&taken) : (record_t){0};
    sqlite3_reset(sql);
    sqlite3_clear_bindings(sql);
    if (!good) return false;
    check_round(&kept);
    *ret_record = kept;
    return true;
}

#endif
