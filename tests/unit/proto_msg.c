/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages: every message, every field, and what must be refused. */
#include "tests/lib/bytes_equal.h"
#include "core/errors.h"
#include "proto_sample.h"

static void assert_rows_equal(const table_t *t, const void *a, const void *b);

static void assert_lists_equal(const field_t *f, const void *a, const void *b)
{
    const uint8_t *x = pointer_of(f, a), *y = pointer_of(f, b);
    cr_assert_eq(count_of(f, a), count_of(f, b), "%s", f->key);
    for (uint32_t i = 0; i < count_of(f, a); i++) {
        const void *p = x + i * item_bytes(f), *q = y + i * item_bytes(f);
        if (f->kind == FIELD_LIST) assert_rows_equal(f->rows, p, q);
        else if (f->kind == FIELD_TEXTS) cr_assert_str_eq(*(const char *const *)p, *(const char *const *)q);
        else cr_assert_eq(*(const uint64_t *)p, *(const uint64_t *)q);
    }
}

static void assert_fields_equal(const field_t *f, const void *a, const void *b)
{
    const void *p = member_const(f, a), *q = member_const(f, b);
    switch (f->kind) {
    case FIELD_U64:
    case FIELD_I64: cr_assert_eq(*(const uint64_t *)p, *(const uint64_t *)q, "%s", f->key); break;
    case FIELD_BOOL: cr_assert_eq(*(const bool *)p, *(const bool *)q, "%s", f->key); break;
    case FIELD_TEXT:
    case FIELD_NAME: cr_assert_str_eq(pointer_of(f, a), pointer_of(f, b), "%s", f->key); break;
    case FIELD_BIN: cr_assert(bytes_equal(*(const bytes_t *)p, *(const bytes_t *)q), "%s", f->key); break;
    case FIELD_KEY16: cr_assert_arr_eq(p, q, 16, "%s", f->key); break;
    case FIELD_DIGEST: cr_assert_arr_eq(p, q, 32, "%s", f->key); break;
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S: assert_lists_equal(f, a, b); break;
    }
}

static void assert_rows_equal(const table_t *t, const void *a, const void *b)
{
    for (uint32_t i = 0; i < t->count; i++) assert_fields_equal(&t->fields[i], a, b);
}

/* The sample of a type, encoded. */
static buf_t encoded_sample(int type)
{
    msg_t m = sample(type);
    buf_t b = {0};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK, "%s", msg_name(type));
    msg_fini(&m);
    return b;
}

Test(msg, round_trip_of_every_field)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        msg_t m = sample(TYPES[i]), back;
        buf_t b = {0};
        cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
        heddle_error_t e = {0};
        cr_assert_eq(msg_decode(buf_view(&b), &back, &e), HEDDLE_OK, "%s", e.message);
        cr_assert_eq(back.type, m.type);
        assert_rows_equal(msg_table(TYPES[i]), &m.hello, &back.hello);
        msg_fini(&back);
        msg_fini(&m);
        buf_fini(&b);
    }
}

/* As messages of a version are, that come to each process. */
Test(msg, what_is_small_takes_no_memory_of_the_heap)
{
    msg_t m = {.type = MSG_RELEASE, .release = {.token = 1, .version = 2, .adapter = "policy"}}, back;
    buf_t b = {0};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    cr_assert_eq(msg_decode(buf_view(&b), &back, NULL), HEDDLE_OK);
    const uint8_t *at = (const uint8_t *)back.release.adapter;
    cr_assert(!back.arena.blocks && at >= back.room && at < back.room + sizeof back.room);
    cr_assert_str_eq(back.release.adapter, "policy");
    msg_fini(&back);
    buf_fini(&b);
    static msg_peer_t peers[100];
    for (int i = 0; i < 100; i++) peers[i].life.b[0] = (uint8_t)(i + 1);
    m = (msg_t){.type = MSG_PEERS, .peers = {.token = 1, .peers = peers, .peer_count = 100}};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    cr_assert_eq(msg_decode(buf_view(&b), &back, NULL), HEDDLE_OK);
    cr_assert_not_null(back.arena.blocks, "what is larger has memory of its own");
    for (int i = 0; i < 100; i++) cr_assert_eq(back.peers.peers[i].life.b[0], i + 1);
    msg_fini(&back);
    cr_assert_null(back.arena.blocks);
    buf_fini(&b);
}

Test(msg, encoder_agrees_with_a_second_one)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        msg_t m = sample(TYPES[i]);
        buf_t ours = {0}, raw = {0};
        cr_assert_eq(msg_encode(&m, &ours), HEDDLE_OK);
        raw_type(&raw, TYPES[i]);
        raw_row(&raw, msg_table(TYPES[i]), &m.hello, NULL);
        cr_assert(bytes_equal(buf_view(&ours), buf_view(&raw)), "%s", msg_name(TYPES[i]));
        msg_fini(&m);
        buf_fini(&ours);
        buf_fini(&raw);
    }
}

/* --- golden bytes --- */

static void write_golden(void)
{
    FILE *f = open_source("tests/golden/messages.txt", "w");
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        buf_t b = encoded_sample(TYPES[i]);
        fprintf(f, "%s ", msg_name(TYPES[i]));
        for (size_t k = 0; k < b.bytes; k++) fprintf(f, "%02x", b.data[k]);
        fputc('\n', f);
        buf_fini(&b);
    }
    cr_assert_eq(fclose(f), 0);
}

static void parse_hex(const char *hex, buf_t *ret_bytes)
{
    for (unsigned byte; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        buf_add(ret_bytes, &(uint8_t){(uint8_t)byte}, 1);
}

Test(golden, every_message)
{
    if (getenv("HEDDLE_GOLDEN_WRITE")) write_golden();
    FILE *f = open_source("tests/golden/messages.txt", "r");
    static char name[32], hex[8192];
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        cr_assert_eq(fscanf(f, "%31s %8191s", name, hex), 2, "the golden file ends before %s",
                     msg_name(TYPES[i]));
        cr_assert_str_eq(name, msg_name(TYPES[i]));
        buf_t want = {0}, got = encoded_sample(TYPES[i]);
        parse_hex(hex, &want);
        cr_assert(bytes_equal(buf_view(&want), buf_view(&got)), "the bytes of %s changed", name);
        buf_fini(&want);
        buf_fini(&got);
    }
    cr_assert_eq(fscanf(f, "%31s", name), EOF);
    fclose(f);
}

/* Written by hand from docs/protocol.md: no table, no sample. */
static const char COMMIT_BY_HAND[] = "\x92\x10\x85"
                                     "\xa5"
                                     "token"
                                     "\xcf\0\0\0\x07\0\0\0\x02"
                                     "\xa7"
                                     "version"
                                     "\x03"
                                     "\xa8"
                                     "decision"
                                     "\x04"
                                     "\xa7"
                                     "adapter"
                                     "\xa6"
                                     "policy"
                                     "\xa6"
                                     "digest"
                                     "\xc4\x20"
                                     "0123456789abcdef0123456789abcdef";

Test(golden, commit_by_hand)
{
    bytes_t frame = bytes_of(COMMIT_BY_HAND, sizeof COMMIT_BY_HAND - 1);
    msg_t m;
    cr_assert_eq(msg_decode(frame, &m, NULL), HEDDLE_OK);
    cr_assert_eq(m.type, MSG_COMMIT);
    cr_assert(m.commit.token == (7ull << 32 | 2) && m.commit.version == 3 && m.commit.decision == 4);
    cr_assert_str_eq(m.commit.adapter, "policy");
    cr_assert_arr_eq(m.commit.digest.b, "0123456789abcdef0123456789abcdef", 32);
    buf_t b = {0};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    cr_assert(bytes_equal(buf_view(&b), frame));
    buf_fini(&b);
    msg_fini(&m);
}

/* --- zero values --- */

Test(msg, zero_fields_are_left_out_and_come_back_as_zero)
{
    msg_t m = {.type = MSG_QUERY, .query = {.op = "status"}}, back;
    buf_t b = {0};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    cr_assert(bytes_equal(buf_view(&b), bytes_of("\x92\x17\x81\xa2op\xa6status", 13)));
    cr_assert_eq(msg_decode(buf_view(&b), &back, NULL), HEDDLE_OK);
    cr_assert_str_eq(back.query.name, "");
    cr_assert_str_eq(back.query.expected, "");
    cr_assert(back.query.version == 0 && !back.query.exact && back.query.workers == NULL &&
              back.query.worker_count == 0);
    msg_fini(&back);
    buf_fini(&b);
}

Test(msg, required_zeros_are_written)
{
    msg_t m = {.type = MSG_HEARTBEAT, .heartbeat = {.token = 0}}, back;
    buf_t b = {0};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    cr_assert_eq(msg_decode(buf_view(&b), &back, NULL), HEDDLE_OK);
    msg_fini(&back);
    buf_fini(&b);
}

/* --- the encoder's refusals leave nothing behind --- */

static void assert_not_encoded(const msg_t *m, int code)
{
    buf_t b = {0};
    buf_add_text(&b, "before");
    cr_assert_eq(msg_encode(m, &b), code);
    cr_assert_str_eq(buf_text(&b), "before");
    buf_fini(&b);
}

Test(encode, refuses_what_no_peer_would_take)
{
    static char long_text[LIMIT_TEXT_BYTES + 2], config[LIMIT_CONFIG_BYTES + 1];
    memset(long_text, 'x', LIMIT_TEXT_BYTES + 1);
    assert_not_encoded(&(msg_t){.type = MSG_ERROR, .error = {.code = "limit", .message = long_text}},
                       HEDDLE_ERR_LIMIT);
    assert_not_encoded(&(msg_t){.type = MSG_HELLO, .hello = {.role = 4}}, HEDDLE_ERR_LIMIT);
    assert_not_encoded(&(msg_t){.type = MSG_RETIRE, .retire = {.adapter = "../x"}}, HEDDLE_ERR_PROTOCOL);
    assert_not_encoded(&(msg_t){.type = MSG_RETIRE}, HEDDLE_ERR_PROTOCOL);
    assert_not_encoded(&(msg_t){.type = (msg_type_t)99}, HEDDLE_ERR_PROTOCOL);
    msg_t publish = {.type = MSG_PUBLISH, .publish = {.adapter = "a", .config = {config, sizeof config}}};
    assert_not_encoded(&publish, HEDDLE_ERR_LIMIT);
    publish.publish.config = (bytes_t){0};
    publish.publish.step = INT64_MIN;
    assert_not_encoded(&publish, HEDDLE_ERR_LIMIT);
}

Test(encode, bytes_that_are_not_utf8_become_question_marks)
{
    msg_t m = {.type = MSG_NACK,
               .nack = {.adapter = "a", .code = "internal", .message = "caf\xe9 \xc3\xa9 \xff\xf0\x9f"}},
          back;
    buf_t b = {0};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    cr_assert_eq(msg_decode(buf_view(&b), &back, NULL), HEDDLE_OK);
    cr_assert_str_eq(back.nack.message, "caf? \xc3\xa9 ???");
    msg_fini(&back);
    buf_fini(&b);
}

/* core/limits.h: a join with 256 adapters and all it holds is the largest frame. */
static void check_largest_join(uint32_t fetched_count)
{
    static char names[LIMIT_HELD][HEDDLE_NAME_MAX + 1];
    static msg_held_t held[LIMIT_HELD];
    static msg_subscription_t adapters[LIMIT_ADAPTERS_PER_WORKER];
    static msg_fetched_t fetched[LIMIT_ADAPTERS_PER_WORKER];
    static uint64_t tokens[LIMIT_FORMER_TOKENS];
    static const char *labels[LIMIT_LABELS], *devices[LIMIT_DEVICES];
    static char label[2 * HEDDLE_NAME_MAX + 2], dir[LIMIT_TEXT_BYTES + 1], address[LIMIT_ADDRESS_BYTES];
    memset(label, 'l', 2 * HEDDLE_NAME_MAX + 1);
    memset(dir, 'd', LIMIT_TEXT_BYTES);
    for (size_t i = 0; i < LIMIT_HELD; i++) {
        snprintf(names[i], sizeof names[i], "%0128zu", i);
        held[i] = (msg_held_t){names[i], LIMIT_EXACT, HELD_ACTIVE, {{1}}};
        if (i >= LIMIT_HELD_WHOLE - 2 * fetched_count) continue;
        msg_held_t *h = &held[i];
        h->connect_us = h->fetch_us = h->verify_us = h->stage_us = h->activate_us = h->age_us = LIMIT_EXACT;
        h->region = (msg_region_t){{{1}}, LIMIT_EXACT};
        h->verified = VERIFIED_ON_HOST;
        h->held = true;
    }
    for (size_t i = 0; i < LIMIT_ADAPTERS_PER_WORKER; i++)
        adapters[i] = (msg_subscription_t){names[i], LIMIT_EXACT, LIMIT_EXACT};
    memset(tokens, 0xff, sizeof tokens);
    for (size_t i = 0; i < LIMIT_ADAPTERS_PER_WORKER; i++)
        fetched[i] = (msg_fetched_t){.adapter = names[i],
                                     .version = LIMIT_EXACT,
                                     .half = 2,
                                     .sources = tokens,
                                     .source_count = LIMIT_SOURCES,
                                     .others = tokens,
                                     .other_count = LIMIT_SOURCES};
    for (size_t i = 0; i < LIMIT_LABELS; i++) labels[i] = label;
    for (size_t i = 0; i < LIMIT_DEVICES; i++) devices[i] = names[i];
    msg_t m = {.type = MSG_JOIN,
               .join = {.req = UINT64_MAX,
                        .epoch = UINT32_MAX,
                        .slots = LIMIT_SLOTS,
                        .prev_token = UINT64_MAX,
                        .name = names[0],
                        .labels = labels,
                        .label_count = LIMIT_LABELS,
                        .adapters = adapters,
                        .adapter_count = LIMIT_ADAPTERS_PER_WORKER,
                        .held = held,
                        .held_count = LIMIT_HELD,
                        .fetched = fetched,
                        .fetched_count = fetched_count,
                        .former_tokens = tokens,
                        .former_count = LIMIT_FORMER_TOKENS,
                        .devices = devices,
                        .device_count = LIMIT_DEVICES,
                        .address = {address, sizeof address},
                        .export_dir = dir,
                        .counts.slots_total = LIMIT_EXACT,
                        .counts.slots_free = LIMIT_EXACT,
                        .counts.slots_held = LIMIT_EXACT,
                        .counts.bytes_in = LIMIT_EXACT,
                        .counts.bytes_out = LIMIT_EXACT,
                        .counts.chunks_bad = LIMIT_EXACT,
                        .counts.retries = LIMIT_EXACT,
                        .counts.fenced = LIMIT_EXACT,
                        .counts.own_bytes = LIMIT_EXACT,
                        .counts.held_bytes = LIMIT_EXACT,
                        .place = UINT64_MAX}},
          back;
    buf_t b = {0};
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    heddle_error_t e = {0};
    cr_assert_eq(msg_decode(buf_view(&b), &back, &e), HEDDLE_OK, "%s", e.message);
    cr_assert_eq(back.join.held_count, LIMIT_HELD);
    cr_assert_str_eq(back.join.held[LIMIT_HELD - 1].adapter, names[LIMIT_HELD - 1]);
    msg_fini(&back);
    buf_fini(&b);
}

Test(encode, largest_join_fits)
{
    check_largest_join(0);
    check_largest_join(LIMIT_ADAPTERS_PER_WORKER);
}

/* --- every field: required, kind, limit --- */

static void assert_refused(buf_t *b, int code, int type, const field_t *f)
{
    heddle_error_t e = {0};
    cr_assert_eq(decode_only(buf_view(b), &e), code, "%s %s: %s", msg_name(type), f->key, e.message);
    cr_assert(strstr(e.message, msg_name(type)) && strstr(e.message, f->key), "%s", e.message);
    cr_assert(e.expected[0] && e.found[0], "%s", e.message);
    buf_fini(b);
}

static void check_required(int type, const field_t *outer, const field_t *f)
{
    if (!f->required) return;
    msg_t m = sample(type);
    buf_t b = {0};
    raw_type(&b, type);
    if (outer) {
        raw_map(&b, 1);
        raw_text(&b, outer->key);
        raw_array(&b, 1);
        raw_row(&b, outer->rows, pointer_of(outer, &m.hello), f);
    } else {
        raw_row(&b, msg_table(type), &m.hello, f);
    }
    msg_fini(&m);
    assert_refused(&b, HEDDLE_ERR_PROTOCOL, type, f);
}

Test(decode, every_required_key) { for_each_field(check_required); }

static const struct {
    const char *bytes;
    size_t n;
    unsigned fits;
} VALUES[] = {
#define FITS(kind) (1u << FIELD_##kind)
    {"\xc0", 1, 0}, /* nil */
    {"\xc3", 1, FITS(BOOL)},
    {"\x01", 1, FITS(U64) | FITS(I64)},
    {"\xff", 1, FITS(I64)},             /* -1 */
    {"\xcb\x3f\xf8\0\0\0\0\0\0", 9, 0}, /* 1.5 */
    {"\xa1x", 2, FITS(TEXT) | FITS(NAME)},
    {"\xc4\x01x", 3, FITS(BIN)},
    {"\xc4\x11"
     "0123456789abcdefg",
     19, FITS(BIN)}, /* no key, no digest */
    {"\x90", 1, FITS(LIST) | FITS(TEXTS) | FITS(U64S)},
    {"\x91\xc0", 2, 0}, /* [nil] */
    {"\x80", 1, 0},
};

static void check_kinds(int type, const field_t *outer, const field_t *f)
{
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        if (VALUES[i].fits >> f->kind & 1) continue;
        buf_t b = {0};
        raw_up_to(&b, type, outer, f);
        buf_add(&b, VALUES[i].bytes, VALUES[i].n);
        assert_refused(&b, HEDDLE_ERR_PROTOCOL, type, f);
    }
}

Test(decode, wrong_kinds_of_every_field) { for_each_field(check_kinds); }

/* Appends a value one over the limit of the field; false where there is no such value in a frame. */
static bool add_over_limit(buf_t *b, const field_t *f)
{
    int fill;
    if (f->max >= LIMIT_FRAME_BYTES && f->kind != FIELD_U64 && f->kind != FIELD_I64) return false;
    switch (f->kind) {
    case FIELD_U64:
        if (f->max < UINT64_MAX) raw_u64(b, f->max + 1);
        return f->max < UINT64_MAX;
    case FIELD_I64: raw_i64(b, -(int64_t)f->max - 1); return true;
    case FIELD_TEXT:
    case FIELD_NAME:
        raw_str_head(b, f->max + 1);
        memset(buf_grow(b, f->max + 1), 'x', f->max + 1);
        return true;
    case FIELD_BIN:
        raw_bin(b, NULL, 0);
        b->bytes -= 2;
        raw_head(b, f->max < 65535 ? 0xc5 : 0xc6, f->max + 1, f->max < 65535 ? 2 : 4);
        memset(buf_grow(b, f->max + 1), 'x', f->max + 1);
        return true;
    case FIELD_LIST:
    case FIELD_TEXTS:
    case FIELD_U64S:
        raw_array(b, f->max + 1);
        fill = f->kind == FIELD_LIST ? 0x80 : f->kind == FIELD_TEXTS ? 0xa0 : 0; /* {} "" 0 */
        memset(buf_grow(b, f->max + 1), fill, f->max + 1);
        return true;
    default: return false;
    }
}

static void check_limit(int type, const field_t *outer, const field_t *f)
{
    buf_t b = {0};
    raw_up_to(&b, type, outer, f);
    if (add_over_limit(&b, f)) assert_refused(&b, HEDDLE_ERR_LIMIT, type, f);
    else buf_fini(&b);
}

Test(decode, limit_of_every_field) { for_each_field(check_limit); }

static void check_items(int type, const field_t *outer, const field_t *f)
{
    if (f->kind != FIELD_TEXTS) return;
    buf_t b = {0};
    raw_up_to(&b, type, outer, f);
    raw_array(&b, 1);
    raw_str_head(&b, f->text_max + 1);
    memset(buf_grow(&b, f->text_max + 1), 'x', f->text_max + 1);
    assert_refused(&b, HEDDLE_ERR_LIMIT, type, f);
}

Test(decode, limit_of_texts_in_lists) { for_each_field(check_items); }

static void check_texts(int type, const field_t *outer, const field_t *f)
{
    static const struct {
        const char *bytes;
        size_t n;
        bool name_only;
    } BAD[] = {{"\xa3x\0y", 4, false}, {"\xa2..", 3, true}, {"\xa3x y", 4, true}, {"\xa2\xc3\xa9", 3, true}};
    if (f->kind != FIELD_TEXT && f->kind != FIELD_NAME) return;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        if (BAD[i].name_only && f->kind != FIELD_NAME) continue;
        buf_t b = {0};
        raw_up_to(&b, type, outer, f);
        buf_add(&b, BAD[i].bytes, BAD[i].n);
        assert_refused(&b, HEDDLE_ERR_PROTOCOL, type, f);
    }
    if (!f->required) return;
    buf_t b = {0};
    raw_up_to(&b, type, outer, f);
    raw_text(&b, "");
    assert_refused(&b, HEDDLE_ERR_PROTOCOL, type, f);
}

Test(decode, embedded_nul_bad_name_empty_text) { for_each_field(check_texts); }

/* --- what is not known --- */

Test(decode, unknown_keys_are_skipped_whatever_they_hold)
{
    static const char *const STRANGE[] = {"\xc0", "\x81\xa1z\x91\x91\x01", "\xcb\x3f\xf8zzzzzz", "\xa3xyz",
                                          "\xc4\x02zz"};
    for (size_t i = 0; i < sizeof STRANGE / sizeof *STRANGE; i++) {
        buf_t b = {0};
        raw_type(&b, MSG_PING);
        raw_map(&b, 3);
        raw_text(&b, "of_a_later_release");
        buf_add_text(&b, STRANGE[i]);
        raw_text(&b, "nonce");
        raw_u64(&b, 300);
        raw_text(&b, "nonc");
        buf_add_text(&b, STRANGE[i]);
        msg_t m;
        heddle_error_t e = {0};
        cr_assert_eq(msg_decode(buf_view(&b), &m, &e), HEDDLE_OK, "%s", e.message);
        cr_assert_eq(m.ping.nonce, 300);
        msg_fini(&m);
        buf_fini(&b);
    }
}

Test(decode, unknown_types_and_other_shapes_are_refused)
{
    static const struct {
        const char *bytes;
        size_t n;
    } BAD[] = {{"\x92\x00\x80", 3}, {"\x92\x1e\x80", 3},  {"\x92\xcf\x80\0\0\0\0\0\0\x01\x80", 11},
               {"\x92\xff\x80", 3}, {"\x91\x1c", 2},      {"\x93\x1c\x80\x80", 4},
               {"\x92\x1c\x90", 3}, {"\x92\xa1x\x80", 4}, {"\x90", 1},
               {"\x80", 1},         {"\xc0", 1},          {"\x1c", 1}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        heddle_error_t e = {0};
        cr_assert_eq(decode_only(bytes_of(BAD[i].bytes, BAD[i].n), &e), HEDDLE_ERR_PROTOCOL, "%zu", i);
        cr_assert(e.message[0] && e.expected[0] && e.found[0], "%s", e.message);
    }
    cr_assert_str_eq(msg_name(0), "?");
    cr_assert_str_eq(msg_name(30), "?");
    cr_assert_str_eq(msg_name(-1), "?");
    cr_assert_null(msg_table(30));
}

Test(decode, too_long_a_frame)
{
    static uint8_t zeros[LIMIT_FRAME_BYTES + 1];
    heddle_error_t e = {0};
    cr_assert_eq(decode_only(bytes_of(zeros, sizeof zeros), &e), HEDDLE_ERR_LIMIT);
    cr_assert_eq(decode_only(bytes_of(NULL, 0), &e), HEDDLE_ERR_PROTOCOL);
}

/* --- damaged frames --- */

Test(damage, cut_anywhere_or_followed_by_a_byte)
{
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        buf_t b = encoded_sample(TYPES[i]);
        for (size_t n = 0; n < b.bytes; n++)
            cr_assert_eq(decode_only(bytes_of(b.data, n), NULL), HEDDLE_ERR_PROTOCOL, "%s cut at %zu",
                         msg_name(TYPES[i]), n);
        buf_add(&b, "\xc0", 1);
        cr_assert_eq(decode_only(buf_view(&b), NULL), HEDDLE_ERR_PROTOCOL);
        buf_fini(&b);
    }
}

/* What decodes also encodes, and comes back equal. */
static void assert_still_whole(const msg_t *m)
{
    buf_t b = {0};
    msg_t back;
    cr_assert_eq(msg_encode(m, &b), HEDDLE_OK);
    cr_assert_eq(msg_decode(buf_view(&b), &back, NULL), HEDDLE_OK);
    cr_assert_eq(back.type, m->type);
    assert_rows_equal(msg_table((int)m->type), &m->hello, &back.hello);
    msg_fini(&back);
    buf_fini(&b);
}

static void decode_damaged(bytes_t frame, size_t *taken, size_t *refused)
{
    msg_t m;
    void *memory;
    heddle_error_t e = {0};
    int rc = decode_exact(frame, &m, &e, &memory);
    if (rc == HEDDLE_OK) {
        assert_still_whole(&m);
        ++*taken;
    } else {
        cr_assert(rc == HEDDLE_ERR_PROTOCOL || rc == HEDDLE_ERR_LIMIT, "%s", e.message);
        cr_assert(e.message[0] && !m.type && !m.arena.blocks);
        ++*refused;
    }
    msg_fini(&m);
    free(memory);
}

Test(damage, any_one_byte_changed)
{
    static const uint8_t HEADS[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0,
                                    0xc1, 0xc6, 0xc9, 0xcf, 0xd9, 0xdb, 0xdd, 0xdf, 0xff};
    size_t taken = 0, refused = 0;
    for (size_t i = 0; i < TYPE_COUNT; i++) {
        buf_t b = encoded_sample(TYPES[i]);
        for (size_t at = 0; at < b.bytes; at++) {
            uint8_t was = b.data[at];
            for (size_t k = 0; k < sizeof HEADS + 8; k++) {
                b.data[at] = k < 8 ? (uint8_t)(was ^ 1u << k) : HEADS[k - 8];
                decode_damaged(buf_view(&b), &taken, &refused);
            }
            b.data[at] = was;
        }
        buf_fini(&b);
    }
    cr_assert(taken > 1000 && refused > 1000, "taken %zu, refused %zu", taken, refused);
}

/* --- errors as messages --- */

Test(errors, travel_whole)
{
    heddle_error_t e, back;
    error_fail(&e, HEDDLE_ERR_WRITER_HELD, "adapter \"policy\" has a writer");
    error_where(&e, "policy", 7, "w1", "commit");
    error_contrast(&e, "no live writer", "writer \"t1\" on host-a, pid 12");
    error_hint(&e, "wait for its lease to end, or give opts.takeover");
    msg_t m, got;
    buf_t b = {0};
    msg_from_error(&e, 9, MSG_OPEN, &m);
    cr_assert_eq(msg_encode(&m, &b), HEDDLE_OK);
    cr_assert_eq(msg_decode(buf_view(&b), &got, NULL), HEDDLE_OK);
    cr_assert(got.error.req == 9 && got.error.of == MSG_OPEN && got.error.retriable);
    cr_assert_str_eq(got.error.code, "writer_held");
    msg_to_error(&got.error, &back);
    cr_assert_arr_eq(&back, &e, sizeof e);
    msg_fini(&got);
    buf_fini(&b);
}

Test(errors, every_code_travels)
{
#define X(NAME, value, name, exit, group, retriable, text) HEDDLE_ERR_##NAME,
    static const int CODES[] = {HEDDLE_ERRORS(X)};
#undef X
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++) {
        heddle_error_t e, back;
        error_fail(&e, CODES[i], "text");
        msg_t m;
        msg_from_error(&e, 0, (msg_type_t)0, &m);
        msg_to_error(&m.error, &back);
        cr_assert(back.code == CODES[i] && back.retriable == e.retriable);
    }
}

Test(errors, of_a_newer_peer_keep_their_message)
{
    msg_error_t m = {.code = "of_a_later_release", .message = "something new", .retriable = true};
    heddle_error_t e;
    msg_to_error(&m, &e);
    cr_assert(e.code == HEDDLE_ERR_INTERNAL && e.retriable);
    cr_assert_str_eq(e.message, "something new");
}
