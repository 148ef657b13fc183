/* SPDX-License-Identifier: Apache-2.0 */
/* The registry's table, cell by cell: states of a version against records, and every decision with its
 * refusals. */
#include "broker/registry/decision.h"
#include "broker/registry/publish.h"
#include "broker/registry/registry.h"
#include "broker/registry/writer.h"
#include "core/limits.h"
#include "tests/lib/registry_equal.h"

#include <criterion/criterion.h>
#include <heddle/publisher.h>
#include <stdio.h>
#include <stdlib.h>

static registry_t reg;
static outbox_t out;
static heddle_error_t error;
static instant_t now = {.us = 1000, .wall_ms = 1780000000000};

static void start(void)
{
    registry_init(&reg);
    out = (outbox_t){0};
}
static void stop(void)
{
    registry_fini(&reg);
    outbox_fini(&out);
}
TestSuite(registry, .init = start, .fini = stop);

static digest_t digest_of(uint64_t n)
{
    digest_t d = {{7}};
    memcpy(d.b + 8, &n, sizeof n);
    return d;
}

static key16_t life_of(uint8_t n) { return (key16_t){{n}}; }

/* The outbox's records happen. */
static void commit(void)
{
    cr_assert(!out.failed);
    for (int i = 0; i < out.record_count; i++) cr_assert_eq(registry_apply(&reg, &out.records[i]), HEDDLE_OK);
    outbox_clear(&out);
}

static const adapter_row_t *policy(void) { return registry_adapter(&reg, "policy"); }
static const version_row_t *row(uint64_t v) { return registry_version(policy(), v); }

static open_by_t opener(uint64_t token, uint8_t life, bool holder_is_live)
{
    return (open_by_t){.token = token,
                       .pid = 10 + life,
                       .host = "h",
                       .life = life_of(life),
                       .holder_is_live = holder_is_live};
}

static int try_open(const char *writer, uint64_t token, uint8_t life, bool takeover, bool holder_is_live)
{
    msg_open_t m = {.adapter = "policy", .writer = writer, .takeover = takeover};
    open_by_t by = opener(token, life, holder_is_live);
    return writer_decide_open(&reg, &m, &by, now, &out, &error);
}

static void open_policy(void)
{
    cr_assert_eq(try_open("trainer", 5, 1, false, false), HEDDLE_OK);
    commit();
}

typedef struct {
    uint64_t digest;
    const char *id;
    int64_t step;
    heddle_unchanged_t unchanged;
    bool back, stranger, is_ended;
    bool is_alone; /* no other process has the bytes of the newest live version */
    size_t cut_off;
} ask_t;
static publish_answer_t got;

static int try_publish(ask_t a)
{
    static char id[24];
    static int count;
    snprintf(id, sizeof id, "id-%d", ++count);
    static msg_part_t part = {.payload_bytes = 4096, .manifest_bytes = 50};
    msg_publish_t m = {.req = 3,
                       .adapter = "policy",
                       .request_id = a.id ? a.id : id,
                       .digest = digest_of(a.digest),
                       .parts = &part,
                       .part_count = 1,
                       .step = a.step ? a.step : -1,
                       .if_unchanged = (uint64_t)a.unchanged,
                       .allow_step_back = a.back,
                       .data_bytes = 4000,
                       .tensor_count = 2,
                       .kind = "lora",
                       .base_model = "base",
                       .config = bytes_of("{}", 2)};
    uint64_t token = policy() && !a.stranger ? policy()->writer.token : 99;
    if (a.is_ended) token = 0;
    publish_by_t by = {.now = now,
                       .adapter = policy(),
                       .peer = 4,
                       .token = token,
                       .writer = "trainer",
                       .share_key = {{9}},
                       .live = policy() ? registry_newest_live(policy()) : NULL,
                       .is_live_whole = !a.is_alone,
                       .cut_off_count = a.cut_off,
                       .addresses = "127.0.0.1"};
    return publish_decide(&m, &by, &out, &got, &error);
}

static uint64_t publish(uint64_t digest)
{
    cr_assert_eq(try_publish((ask_t){.digest = digest}), HEDDLE_OK, "%s", error.message);
    commit();
    cr_assert(got.is_new);
    return got.version;
}

static void decide(uint64_t version)
{
    decision_by_rule(policy(), row(version), SCOPE_EVERYONE, now, &out);
    commit();
}

static void end(uint64_t version, version_state_t state, int code)
{
    heddle_error_t e = {.code = code};
    snprintf(e.message, sizeof e.message, "because");
    if (code != HEDDLE_ERR_VERSION_LOST)
        snprintf(e.worker, sizeof e.worker, "w1"); /* that is no worker's word */
    snprintf(e.phase, sizeof e.phase, "fetch");
    decision_end_version(policy(), row(version), state, code ? &e : NULL, now, &out);
    commit();
}

static msg_t answer(size_t i)
{
    msg_t m;
    cr_assert_lt(i, out.send_count);
    cr_assert_eq(msg_decode(outbox_frame(&out, i), &m, NULL), HEDDLE_OK);
    return m;
}

/* ---- publish ---- */

Test(registry, publish_makes_a_version_and_answers)
{
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .step = 7}), HEDDLE_OK);
    cr_assert_eq(out.record_count, 1);
    cr_assert_eq(out.records[0].kind, RECORD_VERSION);
    msg_t m = answer(0);
    cr_assert_eq(m.type, MSG_PUBLISHED);
    cr_assert_eq(out.sends[0].peer, 4);
    cr_assert_eq(m.published.version, 1);
    cr_assert_eq(m.published.req, 3);
    cr_assert(m.published.created);
    cr_assert_eq(m.published.key.b[0], 9);
    msg_fini(&m);
    cr_assert_null(policy()->versions, "decide changed the registry");
    commit();
    const version_row_t *v = row(1);
    cr_assert_eq(v->state, VERSION_STAGING);
    cr_assert_eq(v->step, 7);
    cr_assert_eq(v->deadline_ms, 60000);
    cr_assert_str_eq(v->writer, "trainer");
    cr_assert_eq(v->config_bytes, 2);
    cr_assert_eq(registry_staging(policy()), v);
    cr_assert_eq(registry_newest(policy()), v);
    cr_assert_eq(registry_newest_live(policy()), v);
    cr_assert_null(registry_active(policy()));
}

Test(registry, features_are_sorted_and_meta_is_json)
{
    const char *features[] = {"rslora", "bias", "dora"};
    msg_pair_t meta[] = {{"run", "a \"b\" \\ \n"}, {"x", ""}};
    msg_part_t part = {.payload_bytes = 4096, .manifest_bytes = 50};
    open_policy();
    msg_publish_t m = {.adapter = "policy",
                       .request_id = "a",
                       .parts = &part,
                       .part_count = 1,
                       .step = -1,
                       .features = features,
                       .feature_count = 3,
                       .meta = meta,
                       .meta_count = 2,
                       .deadline_ms = 5};
    publish_by_t by = {.now = now, .adapter = policy(), .token = 5, .writer = "trainer"};
    cr_assert_eq(publish_decide(&m, &by, &out, &got, &error), HEDDLE_OK);
    commit();
    cr_assert_str_eq(row(1)->features, "bias,dora,rslora");
    cr_assert_str_eq(row(1)->meta, "{\"run\":\"a \\\"b\\\" \\\\ \\u000a\",\"x\":\"\"}");
    cr_assert_eq(row(1)->deadline_ms, 5);
    cr_assert_eq(row(1)->asked_ms, 5, "not told: the same");
}

Test(registry, a_replay_is_answered_before_everything_else)
{
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same", .step = 9}), HEDDLE_OK);
    commit();
    publish(2);
    end(1, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    /* Not the writer any more, a lower step, bytes of an ended version: the id counts. */
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same", .step = 1, .stranger = true}), HEDDLE_OK);
    msg_t m = answer(0);
    cr_assert_eq(m.published.version, 1);
    cr_assert(!m.published.created && !got.is_new);
    cr_assert_str_eq(m.published.reason, "replayed");
    cr_assert_eq(m.published.key.b[0], 0, "nobody will fetch it");
    cr_assert_eq(out.record_count, 0);
    msg_fini(&m);
}

/* Its publisher ended before any worker had the bytes: asking again is what the id is for. */
Test(registry, an_id_whose_publisher_ended_makes_a_new_version)
{
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same"}), HEDDLE_OK);
    commit();
    end(1, VERSION_FAILED, HEDDLE_ERR_VERSION_LOST);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same", .is_ended = true}), HEDDLE_ERR_FENCED);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same"}), HEDDLE_OK);
    cr_assert(got.is_new && got.version == 2);
    commit();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same"}), HEDDLE_OK);
    cr_assert(!got.is_new && got.version == 2, "the id stands for the new one");
    cr_assert_eq(try_publish((ask_t){.digest = 2, .id = "same"}), HEDDLE_ERR_REQUEST_CONFLICT);
    end(2, VERSION_FAILED, HEDDLE_ERR_NO_WORKERS);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same"}), HEDDLE_OK);
    cr_assert(!got.is_new && got.version == 2, "that is an answer");
}

Test(registry, the_same_id_with_other_bytes_is_a_conflict)
{
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same"}), HEDDLE_OK);
    commit();
    cr_assert_eq(try_publish((ask_t){.digest = 2, .id = "same"}), HEDDLE_ERR_REQUEST_CONFLICT);
    char one[HEDDLE_DIGEST_TEXT], two[HEDDLE_DIGEST_TEXT];
    digest_t a = digest_of(1), b = digest_of(2);
    digest_text(&a, one);
    digest_text(&b, two);
    cr_assert_str_eq(error.expected, one);
    cr_assert_str_eq(error.found, two);
    cr_assert_eq(error.version, 1);
    cr_assert_eq(out.record_count + (int)out.send_count, 0);
}

/* The interruption left the id free, and other bytes have it now.  The error names both, so that the caller
 * sees what became of the first ones. */
Test(registry, an_interrupted_id_that_other_bytes_took_is_a_conflict_that_names_both)
{
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same"}), HEDDLE_OK);
    commit();
    end(1, VERSION_FAILED, HEDDLE_ERR_VERSION_LOST);
    cr_assert_eq(try_publish((ask_t){.digest = 2, .id = "same"}), HEDDLE_OK);
    commit();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .id = "same"}), HEDDLE_ERR_REQUEST_CONFLICT);
    char one[HEDDLE_DIGEST_TEXT], two[HEDDLE_DIGEST_TEXT];
    digest_t a = digest_of(1), b = digest_of(2);
    digest_text(&a, one);
    digest_text(&b, two);
    cr_assert(strstr(error.message, "stands for other bytes: policy@2, published by trainer at 20"), "%s",
              error.message);
    cr_assert(strstr(error.message, "version 1, of these bytes, was interrupted before"), "%s",
              error.message);
    cr_assert_str_eq(error.expected, two);
    cr_assert_str_eq(error.found, one);
    cr_assert(strstr(error.hint, "under another request id") &&
              strstr(error.hint, "heddle versions policy@2"));
}

Test(registry, only_the_writer_publishes)
{
    cr_assert_eq(try_publish((ask_t){.digest = 1}), HEDDLE_ERR_PROTOCOL); /* never opened */
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .stranger = true}), HEDDLE_ERR_PROTOCOL);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .is_ended = true}), HEDDLE_ERR_FENCED);
    cr_assert_eq(out.record_count, 0);
}

Test(registry, malformed_publications_are_refused)
{
    msg_part_t part = {.payload_bytes = 4096, .manifest_bytes = 50}, empty = {0},
               no_manifest = {.payload_bytes = 4096}, odd = {.payload_bytes = 4097, .manifest_bytes = 50};
    static const msg_pair_t TWICE[] = {{"run", "7"}, {"seed", "1"}, {"run", "8"}};
    const struct {
        msg_part_t *parts;
        uint32_t count;
        const char *id;
        int64_t step;
        int code;
        uint64_t data_bytes;
        uint32_t meta_count;
    } ROWS[] = {{&part, 1, "", -1, HEDDLE_ERR_PROTOCOL},
                {&part, 1, NULL, -1, HEDDLE_ERR_PROTOCOL},
                {NULL, 0, "a", -1, HEDDLE_ERR_UNSUPPORTED_FEATURE}, /* as the decoder gives an empty list */
                {&part, 0, "a", -1, HEDDLE_ERR_UNSUPPORTED_FEATURE},
                {&part, 2, "a", -1, HEDDLE_ERR_UNSUPPORTED_FEATURE},
                {&empty, 1, "a", -1, HEDDLE_ERR_PROTOCOL},
                {&no_manifest, 1, "a", -1, HEDDLE_ERR_PROTOCOL},
                {&odd, 1, "a", -1, HEDDLE_ERR_PROTOCOL},
                {&part, 1, "a", -1, HEDDLE_ERR_PROTOCOL, .data_bytes = 4097},
                {&part, 1, "a", -1, HEDDLE_ERR_PROTOCOL, .meta_count = 3},
                {&part, 1, "a", -2, HEDDLE_ERR_PROTOCOL}};
    open_policy();
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        msg_publish_t m = {.adapter = "policy",
                           .request_id = ROWS[i].id,
                           .parts = ROWS[i].parts,
                           .part_count = ROWS[i].count,
                           .step = ROWS[i].step,
                           .data_bytes = ROWS[i].data_bytes,
                           .meta = (msg_pair_t *)TWICE,
                           .meta_count = ROWS[i].meta_count};
        publish_by_t by = {.now = now, .adapter = policy(), .token = 5, .writer = "trainer"};
        int rc = publish_decide(&m, &by, &out, &got, &error);
        cr_assert_eq(rc, ROWS[i].code, "row %zu: %d", i, rc);
        cr_assert_str_eq(error.adapter, "policy");
        cr_assert_eq(out.record_count, 0);
    }
}

Test(registry, steps_do_not_go_back)
{
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .step = 100}), HEDDLE_OK);
    commit();
    cr_assert_eq(try_publish((ask_t){.digest = 2, .step = 99}), HEDDLE_ERR_STEP_BACK);
    cr_assert_str_eq(error.expected, "step 100 or more");
    cr_assert_eq(try_publish((ask_t){.digest = 2, .step = 99, .back = true}), HEDDLE_OK);
    outbox_clear(&out);
    cr_assert_eq(try_publish((ask_t){.digest = 2}), HEDDLE_OK); /* no step: no claim */
    outbox_clear(&out);
    cr_assert_eq(try_publish((ask_t){.digest = 2, .step = 100}), HEDDLE_OK);
}

Test(registry, a_version_without_a_step_does_not_hide_the_step_before)
{
    open_policy();
    cr_assert_eq(try_publish((ask_t){.digest = 1, .step = 100}), HEDDLE_OK);
    commit();
    cr_assert_eq(try_publish((ask_t){.digest = 2}), HEDDLE_OK);
    commit();
    cr_assert_eq(try_publish((ask_t){.digest = 3, .step = 99}), HEDDLE_ERR_STEP_BACK);
    cr_assert_eq(error.version, 1);
    cr_assert_str_eq(error.expected, "step 100 or more");
    cr_assert_eq(try_publish((ask_t){.digest = 3, .step = 50, .back = true}), HEDDLE_OK);
    commit();
    cr_assert_eq(try_publish((ask_t){.digest = 4, .step = 60}), HEDDLE_OK, "it was meant: the newest counts");
}

Test(registry, a_writer_that_no_worker_reaches_makes_no_version)
{
    open_policy();
    publish(1);
    decide(1);
    cr_assert_eq(try_publish((ask_t){.digest = 2, .cut_off = 3}), HEDDLE_ERR_UNAVAILABLE);
    cr_assert(!error.retriable && strstr(error.message, "trainer") && strstr(error.message, "127.0.0.1") &&
                  strstr(error.message, "(3)") && strstr(error.hint, "opts.data_device"),
              "%s", error.message);
    cr_assert_eq(out.record_count, 0);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .cut_off = 3, .unchanged = HEDDLE_UNCHANGED_SKIP}),
                 HEDDLE_OK);
    cr_assert_eq(got.version, 1, "what is there needs no source");
    outbox_clear(&out);
}

Test(registry, unchanged_is_compared_with_the_newest_live_version)
{
    open_policy();
    publish(1);
    decide(1);
    cr_assert_eq(try_publish((ask_t){.digest = 1}), HEDDLE_ERR_UNCHANGED);
    cr_assert_eq(error.version, 1);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .unchanged = HEDDLE_UNCHANGED_SKIP}), HEDDLE_OK);
    cr_assert(!got.is_new);
    cr_assert_eq(got.version, 1);
    msg_t m = answer(0);
    cr_assert_str_eq(m.published.reason, "unchanged");
    msg_fini(&m);
    cr_assert_eq(out.record_count, 0);
    outbox_clear(&out);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .unchanged = HEDDLE_UNCHANGED_PUBLISH}), HEDDLE_OK);
    cr_assert(got.is_new);
    cr_assert_eq(got.version, 2);
    outbox_clear(&out);
    cr_assert_eq(publish(5), 2);
    end(2, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    cr_assert_eq(try_publish((ask_t){.digest = 5}), HEDDLE_OK,
                 "a failed version is not what is compared with");
    outbox_clear(&out);
    cr_assert_eq(try_publish((ask_t){.digest = 1}), HEDDLE_ERR_UNCHANGED, "the newest live one is version 1");
}

Test(registry, unchanged_bytes_complete_a_version_that_no_process_has)
{
    open_policy();
    publish(1);
    cr_assert_eq(try_publish((ask_t){.digest = 1}), HEDDLE_ERR_UNCHANGED);
    cr_assert_eq(try_publish((ask_t){.digest = 1, .is_alone = true}), HEDDLE_OK);
    cr_assert(!got.is_new && got.version == 1);
    msg_t m = answer(0);
    cr_assert_str_eq(m.published.reason, "unchanged");
    msg_fini(&m);
    outbox_clear(&out);
    decide(1);
    publish(2);
    decide(2);
    publish(3);
    decide(1); /* by hand; the newest is not wanted, and what it lacks is not asked for */
    end(3, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    cr_assert_eq(try_publish((ask_t){.digest = 2, .is_alone = true}), HEDDLE_ERR_UNCHANGED);
}

Test(registry, a_number_is_never_used_again)
{
    open_policy();
    cr_assert_eq(publish(1), 1);
    end(1, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    cr_assert_eq(publish(2), 2);
    decide(2);
    cr_assert_eq(publish(3), 3);
    cr_assert_eq(publish(4), 4);
    end(4, VERSION_SUPERSEDED, 0);
    cr_assert_eq(publish(5), 5);
    cr_assert_eq(policy()->last_version, 5);
}

/* The first is on its way, the newest waits for it; of those between nobody needs anything. */
Test(registry, one_is_staging_and_one_waits)
{
    open_policy();
    publish(1);
    cr_assert(registry_staging(policy()) == row(1) && !registry_waiting(policy()));
    for (uint64_t v = 2; v <= 5; v++) {
        publish(v);
        cr_assert(registry_staging(policy()) == row(1) && registry_waiting(policy()) == row(v));
        if (v > 2) cr_assert_eq(row(v - 1)->state, VERSION_SUPERSEDED);
    }
    decide(1);
    cr_assert(registry_staging(policy()) == row(5) && !registry_waiting(policy()));
    cr_assert_eq(row(1)->state, VERSION_COMMITTED);
    publish(6);
    end(6, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    cr_assert(registry_staging(policy()) == row(5) && !registry_waiting(policy()));
    publish(7);
    end(5, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    cr_assert(registry_staging(policy()) == row(7) && !registry_waiting(policy()));
    decide(7);
    cr_assert(!registry_staging(policy()) && !registry_waiting(policy()));
}

/* ---- states against records ---- */

Test(registry, every_state_meets_every_record)
{
    enum { DECIDE = 100 };
    const struct {
        int before, event;
        version_state_t after;
    } ROWS[] = {
        {0, DECIDE, VERSION_COMMITTED},
        {0, VERSION_SUPERSEDED, VERSION_SUPERSEDED},
        {0, VERSION_FAILED, VERSION_FAILED},
        {0, VERSION_RETIRED, VERSION_RETIRED},
        {DECIDE, DECIDE, VERSION_COMMITTED},
        {DECIDE, VERSION_RETIRED, VERSION_RETIRED},
        {VERSION_FAILED, DECIDE,
         VERSION_FAILED}, /* rows of a store come in any order: what ended stays ended */
        {VERSION_FAILED, VERSION_RETIRED, VERSION_FAILED},
        {VERSION_SUPERSEDED, DECIDE, VERSION_SUPERSEDED},
        {VERSION_RETIRED, DECIDE, VERSION_RETIRED},
        {VERSION_RETIRED, VERSION_FAILED, VERSION_RETIRED},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        stop();
        start();
        open_policy();
        publish(1);
        int events[] = {ROWS[i].before, ROWS[i].event};
        for (int k = 0; k < 2; k++) {
            if (events[k] == DECIDE) decide(1);
            else if (events[k]) end(1, (version_state_t)events[k], HEDDLE_ERR_DEADLINE);
        }
        cr_assert_eq(row(1)->state, ROWS[i].after, "row %zu: state %d", i, row(1)->state);
    }
}

Test(registry, rows_that_cannot_be_are_refused)
{
    open_policy();
    publish(1);
    digest_t other = digest_of(2);
    const record_t ROWS[] = {
        {.kind = (record_kind_t)0, .adapter = "policy"},
        {.kind = (record_kind_t)99, .adapter = "policy"},
        {.kind = RECORD_ADAPTER, .adapter = ""},
        {.kind = RECORD_ADAPTER, .adapter = "a b"},
        {.kind = RECORD_VERSION, .adapter = "new\n", .version = 1},
        {.kind = RECORD_VERSION, .adapter = "policy", .version = 0},
        {.kind = RECORD_VERSION, .adapter = "policy", .version = 1, .digest = other}, /* I2 */
        {.kind = RECORD_DECISION, .adapter = "nobody", .decision = 1, .version = 1},
        {.kind = RECORD_DECISION, .adapter = "policy", .decision = 0, .version = 1},
        {.kind = RECORD_DECISION, .adapter = "policy", .decision = 1, .version = 2},
        {.kind = RECORD_DECISION, .adapter = "policy", .decision = 1, .version = 1, .scope = (scope_t)1},
        {.kind = RECORD_STATE, .adapter = "nobody", .version = 1, .state = VERSION_FAILED},
        {.kind = RECORD_STATE, .adapter = "policy", .version = 2, .state = VERSION_FAILED},
        {.kind = RECORD_STATE, .adapter = "policy", .version = 1, .state = VERSION_COMMITTED},
        {.kind = RECORD_STATE, .adapter = "policy", .version = 1, .state = VERSION_STAGING},
        {.kind = RECORD_LOSS, .adapter = "absent", .version = 1, .message = "x"},
        {.kind = RECORD_LOSS, .adapter = "policy", .version = 2, .message = "x"},
        {.kind = RECORD_STAGED, .adapter = "absent", .version = 1, .at_ms = 1},
        {.kind = RECORD_STAGED, .adapter = "policy", .version = 2, .at_ms = 1},
        {.kind = RECORD_FORGET, .adapter = "absent", .version = 1},
        {.kind = RECORD_WORKER, .adapter = "policy", .worker = "a b", .serves = "x"},
        {.kind = RECORD_ADAPTER_DROP, .adapter = "absent"},
        {.kind = RECORD_ADAPTER_DROP, .adapter = "policy"}, /* it has a version */
        {.kind = RECORD_ADAPTER_FORGET, .adapter = "absent"},
        {.kind = RECORD_ADAPTER_FORGET, .adapter = "policy"}, /* it has a writer */
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
        cr_assert_eq(registry_apply(&reg, &ROWS[i]), HEDDLE_ERR_INTERNAL, "row %zu", i);
    cr_assert_eq(policy()->version_count, 1);
    cr_assert_eq(row(1)->state, VERSION_STAGING);
}

Test(registry, only_a_live_version_was_staged_or_is_lost)
{
    open_policy();
    publish(1);
    record_t staged = {.kind = RECORD_STAGED, .adapter = "policy", .version = 1, .at_ms = 7};
    record_t lost = {.kind = RECORD_LOSS, .adapter = "policy", .version = 1, .at_ms = 8, .message = "gone"};
    cr_assert_eq(registry_apply(&reg, &staged), HEDDLE_OK);
    cr_assert_eq(registry_apply(&reg, &lost), HEDDLE_OK);
    cr_assert_eq(row(1)->staged_ms, 7);
    cr_assert_eq(row(1)->lost_ms, 8);
    end(1, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    staged.at_ms = lost.at_ms = 9;
    cr_assert_eq(registry_apply(&reg, &staged), HEDDLE_OK);
    cr_assert_eq(registry_apply(&reg, &lost), HEDDLE_OK);
    cr_assert_neq(row(1)->staged_ms, 9);
    cr_assert_neq(row(1)->lost_ms, 9);
}

Test(registry, the_same_row_twice_changes_nothing)
{
    open_policy();
    publish(1);
    record_t rec = {.kind = RECORD_VERSION, .adapter = "policy", .version = 1, .digest = digest_of(1)};
    cr_assert_eq(registry_apply(&reg, &rec), HEDDLE_OK);
    cr_assert_eq(policy()->version_count, 1);
    record_t adapter = {.kind = RECORD_ADAPTER, .adapter = "policy"};
    cr_assert_eq(registry_apply(&reg, &adapter), HEDDLE_OK);
    cr_assert_eq(reg.adapter_count, 1);
}

Test(registry, epochs_only_go_up)
{
    record_t e = {.kind = RECORD_EPOCH, .epoch = 7};
    cr_assert_eq(registry_apply(&reg, &e), HEDDLE_OK);
    e.epoch = 3;
    cr_assert_eq(registry_apply(&reg, &e), HEDDLE_OK);
    cr_assert_eq(reg.epoch, 7);
}

Test(registry, adapters_are_found_in_a_sorted_table)
{
    const char *NAMES[] = {"m", "a", "z", "k", "b", "y", "c", "x", "d", "w"};
    for (size_t i = 0; i < 10; i++) {
        record_t rec = {.kind = RECORD_ADAPTER, .adapter = NAMES[i]};
        cr_assert_eq(registry_apply(&reg, &rec), HEDDLE_OK);
    }
    for (size_t i = 0; i < 10; i++) cr_assert_str_eq(registry_adapter(&reg, NAMES[i])->name, NAMES[i]);
    for (size_t i = 1; i < 10; i++) cr_assert_lt(strcmp(reg.adapters[i - 1]->name, reg.adapters[i]->name), 0);
    cr_assert_null(registry_adapter(&reg, "n"));
}

Test(registry, the_greatest_decision_counts_whatever_the_order_of_rows)
{
    open_policy();
    publish(1);
    publish(2);
    record_t d2 = {.kind = RECORD_DECISION,
                   .adapter = "policy",
                   .decision = 2,
                   .version = 1,
                   .held = true,
                   .by = "ann",
                   .at_ms = 20};
    record_t d1 = {.kind = RECORD_DECISION, .adapter = "policy", .decision = 1, .version = 2, .at_ms = 10};
    cr_assert_eq(registry_apply(&reg, &d2), HEDDLE_OK);
    cr_assert_eq(registry_apply(&reg, &d1), HEDDLE_OK);
    cr_assert_eq(policy()->decision, 2);
    cr_assert_eq(policy()->active, 1);
    cr_assert(policy()->held);
    cr_assert_str_eq(policy()->held_by, "ann");
    cr_assert_eq(policy()->decided_ms, 20);
    cr_assert_eq(row(2)->state, VERSION_COMMITTED);
    cr_assert_eq(row(2)->activated_ms, 10);
}

Test(registry, an_ended_version_drops_its_content_and_tells_why)
{
    open_policy();
    publish(1);
    end(1, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    const version_row_t *v = row(1);
    cr_assert_eq(v->config_bytes, 0);
    cr_assert_str_eq(v->base_model, "");
    heddle_error_t reason;
    cr_assert(decision_end_reason(policy(), v, &reason));
    cr_assert_eq(reason.code, HEDDLE_ERR_DEADLINE);
    cr_assert_str_eq(reason.message, "because");
    cr_assert_str_eq(reason.worker, "w1");
    cr_assert_str_eq(reason.phase, "fetch");
    cr_assert_eq(reason.version, 1);
    publish(2);
    cr_assert(!decision_end_reason(policy(), row(2), &reason));
    publish(3);
    end(2, VERSION_SUPERSEDED, 0);
    cr_assert(decision_end_reason(policy(), row(2), &reason));
    cr_assert_not_null(strstr(reason.message, "newer version"));
    decide(3);
    publish(4);
    decide(4);
    end(3, VERSION_RETIRED, 0);
    cr_assert(decision_end_reason(policy(), row(3), &reason));
    cr_assert_not_null(strstr(reason.message, "retired"));
}

/* Version v, as a turn that publishes it and ends it leaves it. */
static void come_and_go(uint64_t v)
{
    record_t rec = {.kind = RECORD_VERSION, .adapter = "policy", .request_id = "", .step = -1, .version = v};
    cr_assert_eq(registry_apply(&reg, &rec), HEDDLE_OK);
    end(v, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
}

Test(registry, history_is_bounded)
{
    open_policy();
    publish(1);
    decide(1);
    for (uint64_t v = 2; v < LIMIT_HISTORY + 12; v++) come_and_go(v);
    cr_assert_eq(policy()->ended_count, LIMIT_HISTORY);
    cr_assert_eq(policy()->version_count, LIMIT_HISTORY + 1);
    cr_assert_not_null(row(1), "a live version is never forgotten");
    cr_assert_null(row(11));
    cr_assert_not_null(row(12));
    cr_assert_eq(policy()->last_version, LIMIT_HISTORY + 11);
    record_t gone = {.kind = RECORD_STATE, .adapter = "policy", .state = VERSION_FAILED, .version = 5};
    cr_assert_eq(registry_apply(&reg, &gone), HEDDLE_OK, "a forgotten row ends again: nothing to do");
    record_t d = {.kind = RECORD_DECISION, .adapter = "policy", .decision = 9, .version = 5};
    cr_assert_eq(registry_apply(&reg, &d), HEDDLE_OK);
    cr_assert_null(registry_active(policy()));
}

/* The end comes first in the turn: who is told of it finds the version still there. */
Test(registry, what_is_forgotten_is_a_record_of_the_same_turn)
{
    open_policy();
    for (uint64_t v = 1; v <= LIMIT_HISTORY; v++) come_and_go(v);
    publish(LIMIT_HISTORY + 1);
    cr_assert_eq(policy()->ended_count, LIMIT_HISTORY);
    decision_end_version(policy(), row(LIMIT_HISTORY + 1), VERSION_FAILED, NULL, now, &out);
    cr_assert_eq(out.record_count, 2);
    cr_assert(out.records[0].kind == RECORD_STATE && out.records[0].version == LIMIT_HISTORY + 1);
    cr_assert(out.records[1].kind == RECORD_FORGET && out.records[1].version == 1);
    commit();
    cr_assert_null(row(1));
    cr_assert_not_null(row(2));
}

Test(registry, a_version_that_ends_when_younger_ones_are_history_is_forgotten_at_once)
{
    open_policy();
    publish(1);
    decide(1);
    for (uint64_t v = 2; v < LIMIT_HISTORY + 2; v++) come_and_go(v);
    uint64_t last = LIMIT_HISTORY + 2;
    publish(last);
    decide(last);
    decision_end_version(policy(), row(1), VERSION_RETIRED, NULL, now, &out);
    cr_assert(out.record_count == 2 && out.records[1].kind == RECORD_FORGET && out.records[1].version == 1);
    commit();
    cr_assert_eq(policy()->ended_count, LIMIT_HISTORY);
}

/* As the rows of a file that was never pruned: two go with each that ends. */
Test(registry, too_long_a_history_shrinks)
{
    open_policy();
    record_t rec = {.kind = RECORD_VERSION, .adapter = "policy"};
    record_t gone = {.kind = RECORD_STATE, .adapter = "policy", .state = VERSION_FAILED};
    for (uint64_t v = 1; v <= LIMIT_HISTORY + 3; v++) {
        rec.version = gone.version = v;
        registry_apply(&reg, &rec);
        registry_apply(&reg, &gone);
    }
    for (uint64_t v = LIMIT_HISTORY + 4; v <= LIMIT_HISTORY + 7; v++) come_and_go(v);
    cr_assert_eq(policy()->ended_count, LIMIT_HISTORY);
    cr_assert_not_null(row(8));
    cr_assert_null(row(7));
}

Test(registry, what_must_stay_cannot_be_forgotten)
{
    open_policy();
    publish(1);
    decide(1);
    publish(2);
    record_t forget = {.kind = RECORD_FORGET, .adapter = "policy", .version = 1};
    cr_assert_eq(registry_apply(&reg, &forget), HEDDLE_ERR_INTERNAL, "it is served");
    forget.version = 2;
    end(2, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    cr_assert_eq(registry_apply(&reg, &forget), HEDDLE_ERR_INTERNAL, "its number would be free again");
    forget.version = 3;
    cr_assert_eq(registry_apply(&reg, &forget), HEDDLE_ERR_INTERNAL, "it never was");
    forget.adapter = "nobody";
    cr_assert_eq(registry_apply(&reg, &forget), HEDDLE_ERR_INTERNAL);
    cr_assert_eq(policy()->version_count, 2);
}

/* ---- writers ---- */

Test(registry, one_writer)
{
    open_policy();
    cr_assert_eq(policy()->writer.token, 5);
    cr_assert_str_eq(policy()->writer.name, "trainer");
    cr_assert_eq(try_open("other", 6, 2, false, true), HEDDLE_ERR_WRITER_HELD);
    cr_assert_not_null(strstr(error.message, "trainer on h, pid 11"));
    cr_assert_neq(error.hint[0], 0);
    cr_assert_eq(out.record_count, 0);
    cr_assert_eq(try_open("other", 6, 2, true, true), HEDDLE_OK, "takeover");
    outbox_clear(&out);
    cr_assert_eq(try_open("trainer", 7, 1, false, true), HEDDLE_OK, "the same life");
    outbox_clear(&out);
    cr_assert_eq(try_open("other", 6, 2, false, false), HEDDLE_OK, "its session is over");
    cr_assert_eq(out.record_count, 1);
    cr_assert_eq(out.records[0].kind, RECORD_WRITER);
    commit();
    cr_assert_eq(policy()->writer.token, 6);
    writer_decide_close(policy(), now, &out);
    commit();
    cr_assert_null(policy(), "nothing was published: the name goes with its writer");
    cr_assert_eq(try_open("other", 8, 2, false, true), HEDDLE_OK);
    commit();
    publish(1);
    writer_decide_close(policy(), now, &out);
    commit();
    cr_assert_eq(policy()->writer.token, 0);
    cr_assert_str_eq(policy()->writer.name, "");
}

Test(registry, the_first_open_makes_the_adapter)
{
    cr_assert_eq(try_open("trainer", 5, 1, false, false), HEDDLE_OK);
    cr_assert_eq(out.record_count, 2);
    cr_assert_eq(out.records[0].kind, RECORD_ADAPTER);
    cr_assert_eq(out.records[1].kind, RECORD_WRITER);
}

Test(registry, adapters_are_bounded)
{
    char name[16];
    for (unsigned i = 0; i < LIMIT_ADAPTERS; i++) {
        snprintf(name, sizeof name, "a%05u", i);
        record_t rec = {.kind = RECORD_ADAPTER, .adapter = name};
        cr_assert_eq(registry_apply(&reg, &rec), HEDDLE_OK);
    }
    cr_assert_eq(try_open("trainer", 5, 1, false, false), HEDDLE_ERR_LIMIT);
    cr_assert_eq(out.record_count, 0);
}

/* Only the numbers of one that was forgotten are kept, and those have a limit of their own. */
Test(registry, forgotten_adapters_do_not_count_among_them)
{
    char name[16];
    for (unsigned i = 0; i < LIMIT_ADAPTER_ROWS; i++) {
        snprintf(name, sizeof name, "a%05u", i);
        record_t rec = {.kind = RECORD_FLOOR, .adapter = name, .version = 3};
        cr_assert_eq(registry_apply(&reg, &rec), HEDDLE_OK);
        if (i + 1 == LIMIT_ADAPTERS) cr_assert(registry_has_room(&reg));
    }
    cr_assert_eq(try_open("trainer", 5, 1, false, false), HEDDLE_ERR_LIMIT);
}

/* ---- activation by hand ---- */

typedef struct {
    uint64_t version;
    bool source, staged, dry;
    const char *adapter, *lost;
} act_t;
static activated_t done;

static int try_activate(act_t a)
{
    activate_by_t by = {.version = a.version,
                        .by = "ann",
                        .lost = a.lost,
                        .has_source = a.source,
                        .has_staged = a.staged,
                        .dry_run = a.dry};
    return decision_by_hand(&reg, a.adapter ? a.adapter : "policy", &by, now, &out, &done, &error);
}

static int activate(uint64_t version)
{
    int rc = try_activate((act_t){.version = version, .source = true, .staged = true});
    commit();
    return rc;
}

Test(registry, activate_refusals)
{
    cr_assert_eq(try_activate((act_t){.version = 1}), HEDDLE_ERR_NOT_FOUND);
    open_policy();
    cr_assert_eq(try_activate((act_t){.version = 1}), HEDDLE_ERR_NOT_FOUND);
    publish(1);
    cr_assert_eq(try_activate((act_t){.version = 0}), HEDDLE_ERR_NOT_FOUND);
    cr_assert_eq(try_activate((act_t){.version = 2}), HEDDLE_ERR_NOT_FOUND);
    cr_assert_str_eq(error.expected, "a version up to 1");
    cr_assert_eq(try_activate((act_t){.version = 1, .source = true}), HEDDLE_ERR_NOT_ACTIVATABLE,
                 "nobody staged it");
    cr_assert_str_eq(error.found, "staging");
    cr_assert_eq(try_activate((act_t){.version = 1}), HEDDLE_ERR_NOT_ACTIVATABLE, "lost");
    cr_assert_str_eq(error.found, "lost");
    const struct {
        version_state_t state;
        const char *found;
    } ROWS[] = {{VERSION_FAILED, "failed"}, {VERSION_SUPERSEDED, "superseded"}, {VERSION_RETIRED, "retired"}};
    for (size_t i = 0; i < 3; i++) {
        uint64_t v = publish(10 + i);
        end(v, ROWS[i].state, ROWS[i].state == VERSION_FAILED ? HEDDLE_ERR_NO_SLOT : 0);
        cr_assert_eq(try_activate((act_t){.version = v, .source = true, .staged = true}),
                     HEDDLE_ERR_NOT_ACTIVATABLE);
        cr_assert_str_eq(error.found, ROWS[i].found);
    }
    cr_assert_eq(try_activate((act_t){.version = 2, .source = true, .staged = true}),
                 HEDDLE_ERR_NOT_ACTIVATABLE);
    cr_assert_not_null(strstr(error.message, "because"), "the reason is in it: %s", error.message);
    cr_assert_eq(out.record_count, 0);
}

Test(registry, a_lost_version_is_refused_where_it_is_active_too)
{
    open_policy();
    publish(1);
    cr_assert_eq(activate(1), HEDDLE_OK);
    cr_assert_eq(try_activate((act_t){.version = 1, .lost = "w1 had it last"}), HEDDLE_ERR_NOT_ACTIVATABLE);
    cr_assert(strstr(error.message, "w1 had it last") && !strcmp(error.found, "lost"), "%s", error.message);
    cr_assert_eq(try_activate((act_t){.version = 1, .lost = "gone", .dry = true}),
                 HEDDLE_ERR_NOT_ACTIVATABLE);
    cr_assert_eq(try_activate((act_t){.version = 1}), HEDDLE_OK, "a worker may load it still");
    cr_assert(!done.changed && out.record_count == 0);
}

Test(registry, activating_the_newest_does_not_hold)
{
    open_policy();
    publish(1);
    cr_assert_eq(activate(1), HEDDLE_OK);
    cr_assert(done.changed && !done.held);
    cr_assert_eq(done.from, 0);
    cr_assert_eq(done.decision, 1);
    cr_assert_eq(policy()->active, 1);
    cr_assert(!policy()->held);
}

Test(registry, activating_an_older_one_holds_until_the_newest_is_activated)
{
    open_policy();
    publish(1);
    decide(1);
    publish(2);
    decide(2);
    cr_assert_eq(activate(1), HEDDLE_OK);
    cr_assert(done.changed && done.held);
    cr_assert_eq(done.from, 2);
    cr_assert_eq(done.decision, 3);
    cr_assert(policy()->held);
    cr_assert_str_eq(policy()->held_by, "ann");
    cr_assert_eq(row(1)->decision, 3);
    /* again: nothing changes, the hold stays */
    cr_assert_eq(activate(1), HEDDLE_OK);
    cr_assert(!done.changed && done.held);
    cr_assert_eq(done.decision, 3);
    cr_assert_eq(policy()->decision, 3);
    /* a new version comes, and is not activated by anybody */
    publish(3);
    cr_assert(policy()->held);
    cr_assert_eq(activate(2), HEDDLE_OK);
    cr_assert(policy()->held, "2 is not the newest either");
    cr_assert_eq(activate(3), HEDDLE_OK);
    cr_assert(!policy()->held && !done.held);
    cr_assert_str_eq(policy()->held_by, "");
}

Test(registry, naming_the_active_version_lets_go_when_it_has_become_the_newest)
{
    open_policy();
    publish(1);
    decide(1);
    publish(2);
    cr_assert_eq(activate(1), HEDDLE_OK);
    cr_assert(!done.changed && !done.held, "1 is active and the adapter was not held");
    decide(2);
    publish(3);
    cr_assert_eq(activate(1), HEDDLE_OK);
    cr_assert(policy()->held);
    end(3, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    end(2, VERSION_RETIRED, 0);
    cr_assert_eq(activate(1), HEDDLE_OK);
    cr_assert(!done.changed && !done.held);
    cr_assert(!policy()->held);
    cr_assert_eq(policy()->decision, 4, "letting go is a decision");
}

Test(registry, dry_run_says_what_would_happen)
{
    open_policy();
    publish(1);
    decide(1);
    publish(2);
    decide(2);
    cr_assert_eq(try_activate((act_t){.version = 1, .source = true, .dry = true}), HEDDLE_OK);
    cr_assert(done.changed && done.held);
    cr_assert_eq(done.decision, 2);
    cr_assert_eq(out.record_count, 0);
}

Test(registry, a_forgotten_version_is_not_activatable)
{
    open_policy();
    for (uint64_t v = 1; v < LIMIT_HISTORY + 2; v++) come_and_go(v);
    cr_assert_null(row(1));
    cr_assert_eq(try_activate((act_t){.version = 1, .source = true, .staged = true}),
                 HEDDLE_ERR_NOT_ACTIVATABLE);
}

Test(registry, history_lies_before_the_earliest_live_one)
{
    open_policy();
    cr_assert_eq(registry_live_from(policy()), 0);
    publish(1);
    cr_assert_eq(registry_live_from(policy()), 0);
    for (uint64_t v = 2; v < 40; v++) come_and_go(v);
    cr_assert_eq(registry_live_from(policy()), 0, "version 1 is staging still");
    end(1, VERSION_FAILED, HEDDLE_ERR_DEADLINE);
    cr_assert_eq(registry_live_from(policy()), policy()->version_count, "nothing but history");
    publish(40);
    decide(40);
    come_and_go(41);
    size_t at = registry_live_from(policy());
    cr_assert_eq(policy()->versions[at]->version, 40);
}

/* ---- keep, reached ---- */

static size_t excess(uint64_t keep, uint64_t *first)
{
    size_t n = 0;
    *first = 0;
    for (uint64_t v = policy()->last_version; v >= 1; v--) {
        if (!registry_is_excess(policy(), row(v), keep)) continue;
        *first = v;
        n++;
    }
    return n;
}

Test(registry, keep_counts_by_the_order_of_decisions)
{
    uint64_t first;
    open_policy();
    for (uint64_t v = 1; v <= 4; v++) {
        publish(v);
        decide(v);
    }
    publish(5);
    cr_assert_eq(excess(0, &first), 3);
    cr_assert_eq(excess(1, &first), 2);
    cr_assert_eq(first, 1);
    cr_assert_eq(excess(2, &first), 1);
    cr_assert_eq(excess(3, &first), 0);
    activate(1); /* 1 is active, then by decision: 4, 3, 2 */
    cr_assert_eq(excess(2, &first), 1);
    cr_assert_eq(first, 2);
}

Test(registry, reached_is_the_decision_that_named_or_overtook_it)
{
    open_policy();
    publish(1);
    cr_assert_eq(registry_reached_at(policy(), row(1)), 0);
    decide(1);
    publish(2);
    publish(3); /* supersedes 2 */
    cr_assert_eq(registry_reached_at(policy(), row(2)), 0);
    decide(3);
    cr_assert_eq(registry_reached_at(policy(), row(1)), 1);
    cr_assert_eq(registry_reached_at(policy(), row(2)), 2);
    cr_assert_eq(registry_reached_at(policy(), row(3)), 2);
    activate(1);
    publish(4);
    activate(4);
    cr_assert_eq(registry_reached_at(policy(), row(1)), 3);
    cr_assert_eq(registry_reached_at(policy(), row(2)), 2, "the first decision for a later version");
}

/* ---- comparing ---- */

/* A registry of one adapter with a writer and one ended version, every field of it set. */
typedef struct {
    record_t adapter, version, decision, state, writer;
    uint64_t epoch;
} whole_t;

static whole_t whole(void)
{
    record_t base = {.adapter = "policy"};
    whole_t w = {base, base, base, base, base, 4};
    w.adapter.kind = RECORD_ADAPTER;
    w.version =
        (record_t){.kind = RECORD_VERSION,
                   .adapter = "policy",
                   .version = 3,
                   .digest = digest_of(1),
                   .at_ms = 10,
                   .parts = {{{.payload_bytes = 1, .manifest_bytes = 2, .manifest_digest = digest_of(2)}}, 1},
                   .share_key = {{3}},
                   .request_id = "id",
                   .writer = "t",
                   .base_model = "b",
                   .kind_text = "lora",
                   .features = "dora",
                   .meta = "{}",
                   .step = 5,
                   .data_bytes = 6,
                   .tensor_count = 7,
                   .chunk_count = 8,
                   .activation = 1,
                   .deadline_ms = 9,
                   .config = bytes_of("{}", 2)};
    w.decision = (record_t){.kind = RECORD_DECISION,
                            .adapter = "policy",
                            .version = 3,
                            .decision = 2,
                            .at_ms = 11,
                            .held = true,
                            .by = "ann"};
    w.state =
        (record_t){.kind = RECORD_STATE, .adapter = "policy", .version = 99}; /* of no version: left out */
    w.writer = (record_t){.kind = RECORD_WRITER,
                          .adapter = "policy",
                          .token = 1,
                          .pid = 2,
                          .writer = "t",
                          .host = "h",
                          .at_ms = 12,
                          .life = {{4}}};
    return w;
}

static void make(registry_t *r, const whole_t *w)
{
    record_t epoch = {.kind = RECORD_EPOCH, .epoch = w->epoch};
    const record_t *rows[] = {&epoch, &w->adapter, &w->version, &w->decision, &w->state, &w->writer};
    registry_init(r);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i]->version != 99) cr_assert_eq(registry_apply(r, rows[i]), HEDDLE_OK, "%zu", i);
}

static bool is_same_with(const whole_t *other)
{
    registry_t a, b;
    whole_t w = whole();
    make(&a, &w);
    make(&b, other);
    bool same = registry_equal(&a, &b) && registry_equal(&b, &a);
    registry_fini(&a);
    registry_fini(&b);
    return same;
}

#define DIFFERS(field, value)                                                                                \
    do {                                                                                                     \
        whole_t w_ = whole();                                                                                \
        w_.field = value;                                                                                    \
        cr_assert(!is_same_with(&w_), #field);                                                               \
    } while (0)

Test(registry, equal_looks_at_every_field)
{
    whole_t same = whole();
    cr_assert(is_same_with(&same));
    DIFFERS(epoch, 5);
    DIFFERS(version.digest, digest_of(9));
    DIFFERS(version.at_ms, 99);
    DIFFERS(version.parts.part[0].payload_bytes, 99);
    DIFFERS(version.parts.part[0].manifest_bytes, 99);
    DIFFERS(version.parts.part[0].manifest_digest, digest_of(9));
    DIFFERS(version.share_key, life_of(9));
    DIFFERS(version.request_id, "x");
    DIFFERS(version.writer, "x");
    DIFFERS(version.base_model, "x");
    DIFFERS(version.kind_text, "x");
    DIFFERS(version.features, "x");
    DIFFERS(version.meta, "x");
    DIFFERS(version.step, 99);
    DIFFERS(version.data_bytes, 99);
    DIFFERS(version.tensor_count, 99);
    DIFFERS(version.chunk_count, 99);
    DIFFERS(version.activation, 2);
    DIFFERS(version.deadline_ms, 99);
    DIFFERS(version.asked_ms, 98);
    DIFFERS(version.config, bytes_of("{ }", 3));
    DIFFERS(decision.decision, 9);
    DIFFERS(decision.at_ms, 99);
    DIFFERS(decision.held, false);
    DIFFERS(decision.by, "bob");
    DIFFERS(decision.version, 99); /* no decision at all */
    DIFFERS(writer.token, 9);
    DIFFERS(writer.pid, 9);
    DIFFERS(writer.writer, "x");
    DIFFERS(writer.host, "x");
    DIFFERS(writer.at_ms, 99);
    DIFFERS(writer.life, life_of(9));
    DIFFERS(writer.adapter, "other");
    DIFFERS(adapter.adapter, "other");
}

Test(registry, equal_looks_at_how_a_version_ended)
{
    const record_t ended = {.kind = RECORD_STATE,
                            .adapter = "policy",
                            .version = 3,
                            .state = VERSION_FAILED,
                            .code = -1,
                            .message = "m",
                            .worker = "w",
                            .phase = "p",
                            .at_ms = 20};
    record_t others[5] = {ended, ended, ended, ended, ended};
    others[0].state = VERSION_RETIRED;
    others[1].code = -2;
    others[2].message = "x";
    others[3].worker = "x";
    others[4].phase = "x";
    whole_t w = whole();
    registry_t a, b;
    make(&a, &w);
    registry_apply(&a, &ended);
    for (size_t i = 0; i < 5; i++) {
        make(&b, &w);
        cr_assert(!registry_equal(&a, &b), "not ended");
        registry_apply(&b, &others[i]);
        cr_assert(!registry_equal(&a, &b), "row %zu", i);
        registry_fini(&b);
    }
    make(&b, &w);
    registry_apply(&b, &ended);
    cr_assert(registry_equal(&a, &b));
    registry_fini(&a);
    registry_fini(&b);
}

Test(registry, texts_that_a_row_leaves_out_are_empty)
{
    record_t version = {.kind = RECORD_VERSION, .adapter = "policy", .version = 1, .step = -1};
    record_t writer = {.kind = RECORD_WRITER, .adapter = "policy", .token = 1};
    record_t decision = {.kind = RECORD_DECISION,
                         .adapter = "policy",
                         .version = 1,
                         .decision = 1,
                         .held = true};
    record_t state = {.kind = RECORD_STATE, .adapter = "policy", .version = 1, .state = VERSION_RETIRED};
    cr_assert_eq(registry_apply(&reg, &version), HEDDLE_OK);
    cr_assert_eq(registry_apply(&reg, &writer), HEDDLE_OK);
    cr_assert_eq(registry_apply(&reg, &decision), HEDDLE_OK);
    cr_assert_eq(registry_apply(&reg, &state), HEDDLE_OK);
    cr_assert_str_eq(row(1)->request_id, "");
    cr_assert_str_eq(row(1)->message, "");
    cr_assert_str_eq(policy()->writer.name, "");
    cr_assert_str_eq(policy()->writer.host, "");
    cr_assert_str_eq(policy()->held_by, "");
}
